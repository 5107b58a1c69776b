//! Variables, checkpoints, and operations that callers write.

pub(crate) mod backward;
pub(crate) mod checkpoint;
pub(crate) mod custom;
pub(crate) mod var;
