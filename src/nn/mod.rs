//! Networks: layers, losses, optimisers, under the names and argument orders that candle's users know.
//!
//! A layer's weights come out of a [`VarBuilder`]: out of a file, or out of a [`VarMap`], which makes variables of
//! them. Uses only what users can use, and no unsafe code.
#![forbid(unsafe_code)]

pub mod activation;
mod activation_names;
pub mod attention;
pub mod batch_norm;
pub mod conv;
pub mod embedding;
pub mod encoding;
pub mod func;
pub mod group_norm;
pub mod init;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub(crate) mod module;
pub mod moe;
pub mod ops;
pub mod optim;
pub mod prefetch;
pub mod rnn;
pub mod rotary_emb;
pub mod sampling;
pub mod sequential;
#[doc(hidden)]
pub mod streaming;
pub mod var_builder;
pub mod var_map;
pub mod varlen_attention;

pub use activation::{Activation, PReLU, prelu};
pub use attention::cpu_flash::standard as cpu_flash_attention;
pub use batch_norm::{BatchNorm, BatchNormConfig, batch_norm};
pub use conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d,
    ConvTranspose2dConfig, conv_transpose1d, conv_transpose1d_no_bias, conv_transpose2d, conv_transpose2d_no_bias,
    conv1d, conv1d_no_bias, conv2d, conv2d_no_bias,
};
pub use embedding::{Embedding, embedding};
pub use func::{Func, FuncT, func, func_t};
pub use group_norm::{GroupNorm, group_norm};
pub use init::Init;
pub use layer_norm::{LayerNorm, LayerNormConfig, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use linear::{Linear, Mlp, linear, linear_b, linear_no_bias};
pub use module::{Module, ModuleT};
pub use ops::Dropout;
pub use optim::{Adam, AdamConfig, AdamW, Optimizer, ParamsAdamW, SGD, SgdConfig, StepRule};
pub use prefetch::{Batch, Prefetch};
pub use rnn::{GRU, GRUConfig, LSTM, LSTMConfig, RNN, gru, lstm};
pub use sequential::{Sequential, seq};
pub use var_builder::VarBuilder;
pub use var_map::VarMap;
