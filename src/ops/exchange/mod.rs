//! Arrays that other libraries made, and arrays given to them. DLPack and addresses are apart (`promised/mod.rs`).

pub(crate) mod foreign;
#[cfg(feature = "cuda")]
pub(crate) mod nccl;
#[cfg(feature = "ndarray")]
pub(crate) mod ndarrays;
