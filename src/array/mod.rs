//! The array that users compute with: making, viewing, reading, printing; variables and gradients.
//!
//! Everything here is a method of [`Proxy`](crate::Proxy) or of [`NdManager`](crate::NdManager). Operations that
//! run a kernel are in `ops`.

pub(crate) mod access;
pub(crate) mod autograd;
pub(crate) mod create;
pub(crate) mod fmt;
pub(crate) mod random;
pub(crate) mod var;
