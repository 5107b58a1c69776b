//! The way of every operation: checks, the result's memory, the launch, and what is recorded for gradients.

pub(crate) mod check;
pub(crate) mod compose;
pub(crate) mod exec;
pub(crate) mod inplace;
pub(crate) mod make;
pub(crate) mod place;
pub(crate) mod reuse;
pub(crate) mod target;
