//! Batch and layer normalisation.

use std::f64::consts::LN_10;

use ndgc::{Error, Result, Shape, Tensor, no_grad};

use super::super::super::shared::{same_bytes, upcast_half};
use super::super::json::json_struct;
use super::super::layer::{InputType, Layer, Param, Pass};

/// Rows, series or images.
fn check_rank(op: &'static str, x: &Tensor) -> Result<()> {
    match x.rank() {
        2..=4 => Ok(()),
        _ => Err(Error::shape(op, x.dims(), "[n, size], a series or images")),
    }
}

/// Refuses what would be added to variances and leave no root of them.
fn check_epsilon(op: &'static str, epsilon: f64) -> Result<()> {
    match epsilon.is_finite() && epsilon >= 0.0 {
        true => Ok(()),
        false => Err(Error::argument(op, "epsilon", epsilon, "finite, and at least 0")),
    }
}

/// Shifts and scales each feature (axis 1) so that a batch has mean 0 and variance 1, then by `gamma` and `beta`, which
/// are learnt and never penalised. Outside of training by running means of both, which are kept as DL4J keeps them:
/// `mean` and `log10stdev`.
#[derive(Clone, Debug)]
pub struct BatchNormalization {
    decay: f64,
    epsilon: f64,
}

impl BatchNormalization {
    /// With DL4J's decay of 0.9 and epsilon of 1e-5.
    pub fn new() -> Self {
        BatchNormalization { decay: 0.9, epsilon: 1e-5 }
    }

    /// Share of the running means that a step leaves, from 0 to 1: a network with another is not built.
    pub fn decay(mut self, decay: f64) -> Self {
        self.decay = decay;
        self
    }

    /// Added to the variance; at least 0, or the network is not built.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// A step of the running means, `mean` and `log10stdev`, towards those of a batch, which of halves are in f32. Both
    /// are made before the first is set; the second is set back if somebody is reading the first.
    fn follow(&self, mean: &Tensor, variance: &Tensor, pass: &Pass<'_>) -> Result<()> {
        let (keep, features) = (self.decay, mean.elem_count());
        let share = |batch: &Tensor| batch.reshape(features)?.affine(1.0 - keep, 0.0);
        let mut before = None;
        let followed = pass.update_state(2, |running| {
            let moved = upcast_half(running)?.affine(keep, 0.0)?.add(&share(mean)?)?.to_dtype(running.dtype())?;
            let mut old = None;
            pass.update_state(3, |log| {
                old = Some(log.copy()?);
                let running = upcast_half(log)?.affine(2.0 * LN_10, 0.0)?.exp()?;
                let running = running.affine(keep, 0.0)?.add(&share(variance)?)?;
                running.log()?.affine(0.5 / LN_10, 0.0)?.to_dtype(log.dtype())
            })?;
            before = old;
            Ok(moved)
        });
        if let (Err(_), Some(old)) = (&followed, before) {
            pass.update_state(3, |_| Ok(old))?;
        }
        followed
    }
}

impl Default for BatchNormalization {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer for BatchNormalization {
    fn kind(&self) -> &str {
        "BatchNormalization"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        if !(0.0..=1.0).contains(&self.decay) {
            return Err(Error::argument("batch_normalization", "decay", self.decay, "at least 0 and at most 1"));
        }
        check_epsilon("batch_normalization", self.epsilon)?;
        Ok(input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let size = input.features();
        Ok(vec![
            Param::gain("gamma", size, 1.0),
            Param::gain("beta", size, 0.0),
            Param::state("mean", size, 0.0),
            Param::state("log10stdev", size, 0.0),
        ])
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        check_rank("batch_normalization", x)?;
        let (gamma, beta) = (pass.param(0)?, pass.param(1)?);
        let by_feature = Shape::from(&[1, gamma.elem_count(), 1, 1][..x.rank()]);
        let axes = &[0, 2, 3][..x.rank() - 1];
        let scaled = |x: Tensor| -> Result<Tensor> {
            let x = x.broadcast_mul(&gamma.reshape(by_feature)?)?;
            pass.result(|| x.broadcast_add(&beta.reshape(by_feature)?))
        };
        // The squares of halves may be none of theirs, and their mean, rounded, is far from it.
        let all = upcast_half(x)?;
        if !pass.is_training() {
            let mean = upcast_half(&same_bytes(pass.param(2)?)?)?.reshape(by_feature)?;
            let variance = upcast_half(&same_bytes(pass.param(3)?)?)?.affine(2.0 * LN_10, 0.0)?.exp()?;
            let root = variance.affine(1.0, self.epsilon)?.sqrt()?.reshape(by_feature)?;
            return scaled(all.broadcast_sub(&mean)?.broadcast_div(&root)?.to_dtype(x.dtype())?);
        }
        let mean = all.mean_keepdim(axes)?;
        let centred = all.broadcast_sub(&mean)?;
        let variance = centred.sqr()?.mean_keepdim(axes)?;
        if x.elem_count() > 0 {
            // Those of nothing are NaN, for good.
            no_grad(|| self.follow(&mean, &variance, pass))?;
        }
        scaled(centred.broadcast_div(&variance.affine(1.0, self.epsilon)?.sqrt()?)?.to_dtype(x.dtype())?)
    }
}

/// Shifts and scales the features of each example (of a series: of each step) so that they have mean 0 and variance 1,
/// then by a gain `g` and a bias `b`, which are learnt.
#[derive(Clone, Debug)]
pub struct LayerNormalization {
    epsilon: f64,
}

impl LayerNormalization {
    /// With an epsilon of 1e-5.
    pub fn new() -> Self {
        LayerNormalization { epsilon: 1e-5 }
    }

    /// Added to the variance; at least 0, or the network is not built.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }
}

impl Default for LayerNormalization {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer for LayerNormalization {
    fn kind(&self) -> &str {
        "LayerNormalization"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        check_epsilon("layer_normalization", self.epsilon)?;
        Ok(input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let size = input.features();
        Ok(vec![Param::gain("g", size, 1.0), Param::bias("b", size, 0.0)])
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        check_rank("layer_normalization", x)?;
        let (gain, bias) = (pass.param(0)?, pass.param(1)?);
        pass.result(|| match x.rank() {
            2 => x.layer_norm(gain, bias, self.epsilon),
            _ => x.compose("layer_norm", || {
                x.transpose(1, x.rank() - 1)?
                    .contiguous()?
                    .layer_norm(gain, bias, self.epsilon)?
                    .transpose(1, x.rank() - 1)?
                    .contiguous()
            }),
        })
    }
}

json_struct!(BatchNormalization { decay, epsilon });
json_struct!(LayerNormalization { epsilon });
