//! Rotary positions under the names that candle's users know.

use crate::{Result, Tensor};

/// [`Tensor::rope`]: `[batch, heads, positions, width]`, pairs are the halves of the last axis.
///
/// # Errors
/// As [`Tensor::rope`].
#[track_caller]
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    x.rope(cos, sin)
}

/// [`Tensor::rope_i`]: pairs are neighbours on the last axis.
///
/// # Errors
/// As [`Tensor::rope_i`].
#[track_caller]
pub fn rope_i(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    x.rope_i(cos, sin)
}

/// [`Tensor::rope_thd`]: `[batch, positions, heads, width]`.
///
/// # Errors
/// As [`Tensor::rope_thd`].
#[track_caller]
pub fn rope_thd(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    x.rope_thd(cos, sin)
}

/// As [`rope`].
///
/// # Errors
/// As [`rope`].
#[track_caller]
pub fn rope_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope(x, cos, sin)
}

/// As [`rope_i`].
///
/// # Errors
/// As [`rope_i`].
#[track_caller]
pub fn rope_i_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope_i(x, cos, sin)
}
