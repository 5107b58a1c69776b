//! Choosing one of several by chance.

use crate::base::call::Call;
use crate::{DType, Dim, Error, Result, Tensor};

/// Indices along an axis, each chosen with the probability that a softmax of `logits / temperature` gives it; with a
/// temperature of 0 or less, the largest. Of u32, without the axis.
///
/// Noise of a Gumbel distribution is added to the logits as f32, so that the largest sum is such a choice.
///
/// # Errors
/// [`Error::Argument`] for a temperature that is no number; as [`Tensor::argmax`] and [`Tensor::rand_like`].
///
/// ```
/// # use ndgc::{nn::sampling::gumbel_softmax, Device, Tensor};
/// let logits = Tensor::new(&[[0f32, 100., 0.], [90., 0., 0.]], &Device::Cpu)?;
/// assert_eq!(gumbel_softmax(&logits, 1., 1)?.to_vec1::<u32>()?, [1, 0]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn gumbel_softmax<A: Dim>(logits: &Tensor, temperature: f64, dim: A) -> Result<Tensor> {
    if temperature.is_nan() {
        return Err(Error::argument(Call::here("gumbel_softmax"), "temperature", temperature, "a number"));
    }
    if temperature <= 0.0 {
        return logits.argmax(dim);
    }
    logits.compose("gumbel_softmax", || {
        let logits = logits.to_dtype(DType::F32)?;
        let less = logits.rand_like(1e-7, 0.999)?.log()?.neg()?.log()?;
        logits.sub(&less.affine(temperature, 0.0)?)?.argmax(dim)
    })
}
