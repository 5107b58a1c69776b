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
