//! The layers that come with the runtime.

mod attention;
mod convolution;
mod dense;
mod module;
mod normalization;
mod recurrent;

pub use attention::SelfAttention;
pub use convolution::{Convolution2D, GlobalPooling, PoolingType, Subsampling};
pub(super) use dense::beyond_probabilities;
pub use dense::{ActivationLayer, Dense, DropoutLayer, Embedding, LossLayer, OutputLayer, RnnOutputLayer};
pub use module::ModuleLayer;
pub use normalization::{BatchNormalization, LayerNormalization};
pub use recurrent::{Gru, LastTimeStep, Lstm, SimpleRnn};
