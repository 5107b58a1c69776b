//! Functions element by element: of one operand, of two, of conditions; in place and into arrays that are there.

pub(crate) mod binary;
pub(crate) mod expression;
pub(crate) mod scalar;
pub(crate) mod unary;

pub(crate) mod bits;
pub(crate) mod compare;
pub(crate) mod logic;
pub(crate) mod math;

pub(crate) mod activation;
pub(crate) mod into;
