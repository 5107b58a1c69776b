//! What is added to gradients, and how they are kept small.

use ndgc::{DType, Result, Tensor};

use super::super::shared::upcast_half;

/// Penalties on weights, and what they add to the gradient before the updater.
///
/// `l1` adds `l1 sum(|w|)` to the score, `l2` adds `l2 / 2 sum(w^2)`. `weight_decay` adds to the score as `l2` does,
/// and to the step beside the updater's `weight_decay w`, times the learning rate if `apply_rate`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regularization {
    /// Of the sum of magnitudes.
    pub l1: f64,
    /// Of half of the sum of squares.
    pub l2: f64,
    /// Of the weights themselves, beside the updater.
    pub weight_decay: f64,
    /// Whether `weight_decay` is multiplied by the learning rate.
    pub apply_rate: bool,
}

impl Regularization {
    /// What it adds to the score for a parameter.
    pub(super) fn score(&self, param: &Tensor) -> Result<f64> {
        let (squares, mut score) = (self.l2 + self.weight_decay, 0.0);
        if squares != 0.0 {
            score += 0.5 * squares * number(&upcast_half(param)?.sqr()?.sum_all()?)?;
        }
        if self.l1 != 0.0 {
            score += self.l1 * number(&upcast_half(param)?.abs()?.sum_all()?)?;
        }
        Ok(score)
    }

    /// The gradient with what `l1` and `l2` add, in an array of its own if they do.
    pub(super) fn add_to(&self, grad: Tensor, param: &Tensor) -> Result<Tensor> {
        if (self.l1, self.l2) == (0.0, 0.0) {
            return Ok(grad);
        }
        let sum = grad.copy()?;
        // A step down by minus so much is one up.
        if self.l2 != 0.0 {
            sum.sgd_step_(param, None, -self.l2, 0.0, 0.0)?;
        }
        if self.l1 != 0.0 {
            sum.sgd_step_(&param.sign()?, None, -self.l1, 0.0, 0.0)?;
        }
        Ok(sum)
    }
}

/// The only element of an array of floats.
pub(super) fn number(array: &Tensor) -> Result<f64> {
    array.to_dtype(DType::F64)?.to_scalar::<f64>()
}

/// How the gradients of a layer are kept small. Names are DL4J's; the threshold is the layer's
/// `gradient_normalization_threshold`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientNormalization {
    /// As they are.
    #[default]
    None,
    /// Divided by the length of all gradients of the layer.
    RenormalizeL2PerLayer,
    /// Each divided by its length.
    RenormalizeL2PerParamType,
    /// Each number within minus the threshold and the threshold.
    ClipElementWiseAbsoluteValue,
    /// Shortened if all of the layer together are longer than the threshold.
    ClipL2PerLayer,
    /// Each shortened if it is longer than the threshold.
    ClipL2PerParamType,
}

impl GradientNormalization {
    /// The gradients of a layer, kept small.
    pub(super) fn apply(self, grads: &mut [Option<Tensor>], threshold: f64) -> Result<()> {
        use GradientNormalization as G;
        let square = |grad: &Tensor| number(&upcast_half(grad)?.sqr()?.sum_all()?);
        let whole = match self {
            G::RenormalizeL2PerLayer | G::ClipL2PerLayer => {
                grads.iter().flatten().map(square).sum::<Result<f64>>()?.sqrt()
            }
            _ => 0.0,
        };
        for grad in grads.iter_mut().flatten() {
            let length = match self {
                G::None => continue,
                G::ClipElementWiseAbsoluteValue => {
                    *grad = grad.clamp(-threshold, threshold)?;
                    continue;
                }
                G::RenormalizeL2PerLayer | G::ClipL2PerLayer => whole,
                G::RenormalizeL2PerParamType | G::ClipL2PerParamType => square(grad)?.sqrt(),
            };
            let factor = match self {
                G::RenormalizeL2PerLayer | G::RenormalizeL2PerParamType if length == 0.0 => 1.0,
                G::RenormalizeL2PerLayer | G::RenormalizeL2PerParamType => 1.0 / length,
                _ if length > threshold => threshold / length,
                _ => continue,
            };
            *grad = grad.affine(factor, 0.0)?;
        }
        Ok(())
    }
}
