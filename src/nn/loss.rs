//! Losses: a scalar from predictions and targets.

use crate::{Result, Tensor};

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
/// As [`Tensor::gather`].
#[track_caller]
pub fn nll(log_probs: &Tensor, labels: &Tensor) -> Result<Tensor> {
    log_probs.gather(&labels.unsqueeze(1)?, 1)?.mean_all()?.neg()
}

/// The mean of the squared differences.
///
/// # Errors
/// As [`Tensor::sub`].
#[track_caller]
pub fn mse(predictions: &Tensor, targets: &Tensor) -> Result<Tensor> {
    predictions.sub(targets)?.sqr()?.mean_all()
}
