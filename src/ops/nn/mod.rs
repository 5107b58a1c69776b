//! What networks are made of: windows, normalisation, softmax, resizing, steps of optimisers.

pub(crate) mod conv;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod pool;
pub(crate) mod resize;
pub(crate) mod softmax;
