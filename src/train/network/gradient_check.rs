//! Gradients beside differences of scores.

use ndgc::{DType, Error, Result, Tensor};

use super::super::data::Examples;
use super::super::place::called_here;
use super::network::Network;

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientCheck {
    /// Numbers that were looked at.
    pub checked: usize,
    /// The largest relative error, of those whose absolute error is not tiny.
    pub max_error: f64,
    /// Where it was, as `0_W[3]`.
    pub worst: String,
}

/// Compares the gradients of a network of `f64` with central differences of its score, of at most `per_param` numbers
/// of each parameter: DL4J's `GradientCheckUtil`. For tests of layers; an error below 1e-5 is usual.
///
/// ```
/// use ndgc::train::{Activation, DataSet, Dense, InputType, Loss, NetworkConfig, OutputLayer, gradient_check};
/// use ndgc::{DType, Device, Tensor};
///
/// let net = NetworkConfig::builder()
///     .data_type(DType::F64)
///     .input_type(InputType::feed_forward(2))
///     .layer(Dense::new(3).activation(Activation::Tanh))
///     .layer(OutputLayer::new(2, Loss::Mcxent))
///     .build()?;
/// let (x, y) = (Tensor::new(&[[1., 2.], [-1., 0.5]], &Device::Cpu)?, Tensor::new(&[[1., 0.], [0., 1.]],
/// &Device::Cpu)?); let found = gradient_check(&net, &DataSet::new(x, y)?, 100)?;
/// assert!(found.checked == 17 && found.max_error < 1e-6, "{found:?}");
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnsupportedDType`] for a network of another type; as [`Network::compute_gradient_and_score`].
#[track_caller]
pub fn gradient_check<B: Examples>(net: &Network, batch: &B, per_param: usize) -> Result<GradientCheck> {
    const STEP: f64 = 1e-6;
    if net.config().dtype != DType::F64 {
        let dtype = net.config().dtype;
        return called_here(Err(Error::unsupported_dtype("gradient_check", dtype, "F64")));
    }
    let (gradients, _) = net.compute_gradient_and_score(batch)?;
    let mut found = GradientCheck { checked: 0, max_error: 0.0, worst: String::new() };
    for (name, gradient) in gradients {
        let var = net.find(&name)?;
        let (start, analytic) = (var.to_vec::<f64>()?, gradient.to_vec::<f64>()?);
        // The score has penalties, which are added to gradients later.
        let penalty = |moved: &[f64]| -> Result<f64> {
            let (param, _) =
                net.named().find(|(param, _)| param.name == name).ok_or_else(|| Error::msg("it was found"))?;
            param.regularization.score(&Tensor::from_slice(moved, moved.len(), var.device())?)
        };
        let stride = start.len().div_ceil(per_param.max(1)).max(1);
        for place in (0..start.len()).step_by(stride) {
            let score_at = |by: f64| {
                let mut moved = start.clone();
                moved[place] += by;
                var.set(&Tensor::from_slice(&moved, *var.shape(), var.device())?)?;
                Ok::<_, Error>(net.score_batch(batch, true)? - penalty(&moved)?)
            };
            let numeric = score_at(STEP).and_then(|above| Ok((above - score_at(-STEP)?) / (2.0 * STEP)));
            var.set(&Tensor::from_slice(&start, *var.shape(), var.device())?)?;
            let (numeric, analytic) = (numeric?, analytic[place]);
            let absolute = (numeric - analytic).abs();
            let relative = absolute / (numeric.abs() + analytic.abs()).max(f64::MIN_POSITIVE);
            found.checked += 1;
            if absolute > 1e-8 && relative > found.max_error {
                (found.max_error, found.worst) = (relative, format!("{name}[{place}]"));
            }
        }
    }
    Ok(found)
}
