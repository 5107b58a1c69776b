//! The array that users see: reading it, printing it, and the graph of its gradients. No kernel runs here.

pub(crate) mod access;
pub(crate) mod autograd;
pub(crate) mod fmt;
