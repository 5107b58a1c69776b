//! Losses: a scalar from predictions and targets, and nothing else left with their owner.

use crate::base::call::Call;
use crate::ops::call::compose::{in_single, single};
use crate::{DType, Error, Result, Tensor};

/// The mean over rows of `-log softmax(logits)[label]`: `[rows, classes]` and `[rows]` to a scalar.
///
/// # Errors
/// As [`Tensor::cross_entropy`].
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    logits.cross_entropy(labels)
}

/// The mean over rows of `-log_probs[label]`: the cross entropy of probabilities whose logarithm is known.
///
/// # Errors
/// [`Error::Shape`] if there is not one label a row; as [`Tensor::gather`].
#[track_caller]
pub fn nll(log_probs: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let call = Call::here("nll");
    let rows = labels.shape().dims1().map_err(|error| error.of(call))?;
    let dims = log_probs.dims();
    if dims.len() != 2 || dims[0] != rows {
        let expected = format!("[rows, classes], with a row for each of {rows} labels");
        return Err(Error::shape(call, dims, expected));
    }
    log_probs.compose("nll", || log_probs.gather(&labels.unsqueeze(1)?, 1)?.mean_all()?.neg())
}

/// The mean of the squared differences. Of halves computed in f32 and rounded once.
///
/// # Errors
/// As [`Tensor::sub`].
#[track_caller]
pub fn mse(predictions: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let call = Call::here("mse");
    predictions.compose(call.op, || {
        same_dtype(call, predictions, targets)?;
        in_single(predictions, |predictions| predictions.sub(&single(targets)?)?.sqr()?.mean_all())
    })
}

/// Whether both have one dtype, which [`single`] would hide.
fn same_dtype(call: Call, predictions: &Tensor, targets: &Tensor) -> Result<()> {
    match predictions.dtype() == targets.dtype() {
        true => Ok(()),
        false => Err(Error::dtype_mismatch(call, predictions.dtype(), targets.dtype())),
    }
}

/// The mean of `-(t log p + (1 - t) log(1 - p))` with `p = sigmoid(logits)`, without overflow or cancellation for any
/// logit.
///
/// # Errors
/// As [`Tensor::sub`] and [`Tensor::softplus`].
#[track_caller]
pub fn binary_cross_entropy_with_logit(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let op = "binary_cross_entropy_with_logit";
    logits.compose(op, || {
        // Both logarithms as they are: one of them and a difference would lose its small values.
        let (of_one, of_zero) = (logits.neg()?.softplus()?, logits.softplus()?);
        of_one.mul(targets)?.add(&of_zero.mul(&targets.affine(-1.0, 1.0)?)?)?.mean_all()
    })
}

/// The mean of `d^2 / 2` where the difference is at most `delta`, which may be infinite, else of
/// `delta (|d| - delta / 2)`. Of halves computed in f32 and rounded once.
///
/// # Errors
/// [`Error::Argument`] for a `delta` that is negative or NaN; as [`Tensor::sub`].
#[track_caller]
pub fn huber(predictions: &Tensor, targets: &Tensor, delta: f64) -> Result<Tensor> {
    let call = Call::here("huber");
    predictions.compose(call.op, || {
        same_dtype(call, predictions, targets)?;
        in_single(predictions, |predictions| {
            let difference = predictions.sub(&single(targets)?)?;
            // Nothing is further; and an infinite slope that is not taken would be NaN in the gradient.
            let largest = if difference.dtype() == DType::F64 { f64::MAX } else { f32::MAX.into() };
            if delta > largest {
                return difference.sqr()?.affine(0.5, 0.0)?.mean_all();
            }
            let size = difference.abs()?;
            let near = size.le(&size.full_like(delta)?)?;
            // Of what is near alone: the gradient of the square of an infinity is NaN, also where it is not taken.
            let square = difference.clamp(-delta, delta)?.sqr()?.affine(0.5, 0.0)?;
            // In this order: `delta^2` may be beyond the numbers, and a difference of two infinities would be NaN.
            near.where_cond(&square, &size.affine(1.0, -0.5 * delta)?.affine(delta, 0.0)?)?.mean_all()
        })
    })
}
