//! Functions under the names and argument order that candle's users know.

use crate::base::call::Call;
use crate::base::shape::{D, Dim};
use crate::nn::module::{Module, ModuleT};
use crate::{Error, Result, Tensor};

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

/// Alias of [`Tensor::sigmoid`]: candle's name.
///
/// # Errors
/// As [`Tensor::sigmoid`].
#[track_caller]
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    x.sigmoid()
}

/// Alias of [`Tensor::silu`]: candle's name.
///
/// # Errors
/// As [`Tensor::silu`].
#[track_caller]
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x.silu()
}

/// Alias of [`Tensor::swiglu`]: candle's name.
///
/// # Errors
/// As [`Tensor::swiglu`].
#[track_caller]
pub fn swiglu(x: &Tensor) -> Result<Tensor> {
    x.swiglu()
}

/// Alias of [`Tensor::hard_sigmoid`]: candle's name.
///
/// # Errors
/// As [`Tensor::hard_sigmoid`].
#[track_caller]
pub fn hard_sigmoid(x: &Tensor) -> Result<Tensor> {
    x.hard_sigmoid()
}

/// Alias of [`Tensor::mish`]: candle's name.
///
/// # Errors
/// As [`Tensor::mish`].
#[track_caller]
pub fn mish(x: &Tensor) -> Result<Tensor> {
    x.mish()
}

/// Alias of [`Tensor::leaky_relu`]: candle's name.
///
/// # Errors
/// As [`Tensor::leaky_relu`].
#[track_caller]
pub fn leaky_relu(x: &Tensor, negative_slope: f64) -> Result<Tensor> {
    x.leaky_relu(negative_slope)
}

/// Alias of [`Tensor::selu`]: candle's name.
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

/// A share of the elements dropped in training, and the others scaled up.
#[derive(Clone, Debug)]
pub struct Dropout {
    drop_p: f32,
}

impl Dropout {
    /// Drops with this probability.
    pub fn new(drop_p: f32) -> Self {
        Dropout { drop_p }
    }

    /// The input itself if this is not training.
    ///
    /// # Errors
    /// As [`Tensor::dropout`].
    ///
    /// ```
    /// # use ndgc::{nn::Dropout, DType, Device, Tensor};
    /// let (dropout, x) = (Dropout::new(0.5), Tensor::ones(100, DType::F32, &Device::Cpu)?);
    /// assert!(dropout.forward(&x, false)?.is_same(&x)); // no array is made
    /// let y = dropout.forward(&x, true)?.to_vec1::<f32>()?;
    /// assert!(y.iter().all(|y| [0., 2.].contains(y))); // what stays makes up for what does not
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { dropout(x, self.drop_p) } else { Ok(x.clone()) }
    }
}

impl ModuleT for Dropout {
    #[track_caller]
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(x, train)
    }
}

/// The input itself.
#[derive(Clone, Debug, Default)]
pub struct Identity;

impl Identity {
    /// The one that there is.
    pub fn new() -> Self {
        Identity
    }
}

impl Module for Identity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// As [`rms_norm`].
///
/// # Errors
/// As [`rms_norm`].
#[track_caller]
pub fn rms_norm_slow(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    rms_norm(x, alpha, eps)
}

/// As [`layer_norm`].
///
/// # Errors
/// As [`layer_norm`].
#[track_caller]
pub fn layer_norm_slow(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    layer_norm(x, alpha, beta, eps)
}

#[track_caller]
fn divided(op: &'static str, x: &Tensor, size: usize, by: usize) -> Result<usize> {
    match size.checked_div(by) {
        Some(part) if part * by == size => Ok(part),
        _ => Err(Error::shape(Call::here(op), x.dims(), format!("sizes that {by} divides"))),
    }
}

/// Channels spread over pixels: `[b, c * f * f, h, w]` to `[b, c, h * f, w * f]`.
///
/// # Errors
/// [`Error::Shape`] if `f * f` does not divide the channels.
#[track_caller]
pub fn pixel_shuffle(x: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    let (op, f) = ("pixel_shuffle", upscale_factor);
    let (b, channels, h, w) = x.dims4().map_err(|error| error.of(op))?;
    let c = divided(op, x, channels, f.saturating_mul(f))?;
    x.compose(op, || {
        x.reshape((b, c, f, f, h, w))?.permute((0, 1, 4, 2, 5, 3))?.reshape((b, c, h * f, w * f))?.contiguous()
    })
}

/// Pixels gathered into channels: `[b, c, h * f, w * f]` to `[b, c * f * f, h, w]`.
///
/// # Errors
/// [`Error::Shape`] if `f` does not divide height and width.
#[track_caller]
pub fn pixel_unshuffle(x: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    let (op, f) = ("pixel_unshuffle", downscale_factor);
    let (b, c, height, width) = x.dims4().map_err(|error| error.of(op))?;
    let (h, w) = (divided(op, x, height, f)?, divided(op, x, width, f)?);
    x.compose(op, || {
        x.reshape((b, c, h, f, w, f))?.permute((0, 1, 3, 5, 2, 4))?.reshape((b, c * f * f, h, w))?.contiguous()
    })
}

/// The pixels at the edges repeated outwards, `pad` of them at each side of `[b, c, h, w]`.
///
/// # Errors
/// As [`Tensor::pad_with_same`].
#[track_caller]
pub fn replication_pad2d(x: &Tensor, pad: usize) -> Result<Tensor> {
    let op = "replication_pad2d";
    x.shape().dims4().map_err(|error| error.of(op))?;
    x.compose(op, || x.pad_with_same(3, pad, pad)?.pad_with_same(2, pad, pad))
}

/// Alias of [`Tensor::layer_norm`]: candle's name.
///
/// # Errors
/// As [`Tensor::layer_norm`].
#[track_caller]
pub fn layer_norm(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    x.layer_norm(alpha, beta, f64::from(eps))
}

/// Alias of [`Tensor::rms_norm`]: candle's name.
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
