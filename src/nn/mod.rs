//! Networks: layers, losses, optimisers. Uses only what users can use, and no unsafe code.
#![forbid(unsafe_code)]

pub mod encoding;
mod linear;
pub mod loss;
pub mod ops;
mod optim;
pub mod rotary_emb;

pub use linear::{Linear, Mlp, linear};
pub use optim::{Adam, AdamConfig, Optimizer, SGD, SgdConfig};

use crate::{Result, Tensor};

/// Something that maps an array to an array.
pub trait Module {
    /// The output for an input; it belongs to the owner of the input, as every result does.
    ///
    /// # Errors
    /// Those of the operations inside.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor>;
}
