//! Arrays that other libraries made, and arrays given to them.

pub mod dlpack;
pub(crate) mod foreign;
#[cfg(feature = "cuda")]
pub(crate) mod nccl;
#[cfg(feature = "ndarray")]
pub(crate) mod ndarrays;
