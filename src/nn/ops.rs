//! Functions under the names and argument order that candle's users know.

use crate::base::shape::{D, Dim};
use crate::{Result, Tensor};

/// [`Tensor::softmax`] along an axis.
///
/// # Errors
/// As [`Tensor::softmax`].
#[track_caller]
pub fn softmax<A: Dim>(x: &Tensor, dim: A) -> Result<Tensor> {
    x.softmax(dim)
}

/// [`Tensor::softmax`] along the last axis.
///
/// # Errors
/// As [`Tensor::softmax`].
#[track_caller]
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    x.softmax(D::Minus1)
}

/// [`Tensor::log_softmax`] along an axis.
///
/// # Errors
/// As [`Tensor::softmax`].
#[track_caller]
pub fn log_softmax<A: Dim>(x: &Tensor, dim: A) -> Result<Tensor> {
    x.log_softmax(dim)
}

/// [`Tensor::sigmoid`].
///
/// # Errors
/// As [`Tensor::sigmoid`].
#[track_caller]
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    x.sigmoid()
}

/// [`Tensor::silu`].
///
/// # Errors
/// As [`Tensor::silu`].
#[track_caller]
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x.silu()
}

/// [`Tensor::swiglu`].
///
/// # Errors
/// As [`Tensor::swiglu`].
#[track_caller]
pub fn swiglu(x: &Tensor) -> Result<Tensor> {
    x.swiglu()
}

/// [`Tensor::hard_sigmoid`].
///
/// # Errors
/// As [`Tensor::hard_sigmoid`].
#[track_caller]
pub fn hard_sigmoid(x: &Tensor) -> Result<Tensor> {
    x.hard_sigmoid()
}

/// [`Tensor::mish`].
///
/// # Errors
/// As [`Tensor::mish`].
#[track_caller]
pub fn mish(x: &Tensor) -> Result<Tensor> {
    x.mish()
}

/// [`Tensor::leaky_relu`].
///
/// # Errors
/// As [`Tensor::leaky_relu`].
#[track_caller]
pub fn leaky_relu(x: &Tensor, negative_slope: f64) -> Result<Tensor> {
    x.leaky_relu(negative_slope)
}

/// [`Tensor::selu`].
///
/// # Errors
/// As [`Tensor::selu`].
#[track_caller]
pub fn selu(x: &Tensor, alpha: f32, gamma: f32) -> Result<Tensor> {
    x.selu(f64::from(alpha), f64::from(gamma))
}

/// [`Tensor::dropout`]: for training, as it drops at every call.
///
/// # Errors
/// As [`Tensor::dropout`].
#[track_caller]
pub fn dropout(x: &Tensor, drop_p: f32) -> Result<Tensor> {
    x.dropout(f64::from(drop_p))
}

/// [`Tensor::layer_norm`].
///
/// # Errors
/// As [`Tensor::layer_norm`].
#[track_caller]
pub fn layer_norm(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    x.layer_norm(alpha, beta, f64::from(eps))
}

/// [`Tensor::rms_norm`].
///
/// # Errors
/// As [`Tensor::rms_norm`].
#[track_caller]
pub fn rms_norm(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    x.rms_norm(alpha, f64::from(eps))
}

/// [`Tensor::sdpa`] of queries, keys and values.
///
/// # Errors
/// As [`Tensor::sdpa`].
#[track_caller]
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    q.sdpa(k, v, mask, do_causal, f64::from(scale), f64::from(softcapping))
}
