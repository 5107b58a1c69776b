//! Normalisation over the last axis.

use crate::nn::{init, module::Module, var_builder::VarBuilder};
use crate::{Result, Tensor};

/// What a [`LayerNorm`] does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// Whether the mean is taken off first.
    pub remove_mean: bool,
    /// Whether there is a bias.
    pub affine: bool,
}

impl Default for LayerNormConfig {
    fn default() -> Self {
        LayerNormConfig { eps: 1e-5, remove_mean: true, affine: true }
    }
}

impl From<f64> for LayerNormConfig {
    fn from(eps: f64) -> Self {
        LayerNormConfig { eps, ..Self::default() }
    }
}

/// `(x - mean) / √(variance + eps) * weight + bias` over the last axis, without mean or bias if so configured.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    /// With given scale and shift.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        LayerNorm { weight, bias: Some(bias), remove_mean: true, eps }
    }

    /// Without a shift.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        LayerNorm { weight, bias: None, remove_mean: true, eps }
    }

    /// By the root of the mean square.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        LayerNorm { weight, bias: None, remove_mean: false, eps }
    }

    /// The scale.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The shift.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Added to the variance.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Whether the mean is taken off first.
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) if self.remove_mean => x.layer_norm(&self.weight, bias, self.eps),
            // In one pass too: the mean of halves, rounded, may be far from theirs.
            None if self.remove_mean => {
                x.compose("layer_norm", || x.layer_norm(&self.weight, &self.weight.zeros_like()?, self.eps))
            }
            bias => x.compose("layer_norm", || {
                let y = x.rms_norm(&self.weight, self.eps)?;
                bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
            }),
        }
    }
}

/// A [`LayerNorm`] of ones and zeros, or out of a file (`weight` or `gamma`, `bias` or `beta`).
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
///
/// ```
/// # use ndgc::{nn, nn::Module, DType, Device, Tensor};
/// let weights = nn::VarMap::new();
/// let vb = nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let norm = nn::layer_norm(2, 1e-5, vb)?; // a number is epsilon; a LayerNormConfig says all
/// let y = norm.forward(&Tensor::new(&[[1f32, 3.], [10., 30.]], &Device::Cpu)?)?.to_vec2::<f32>()?;
/// assert!(y.iter().all(|row| (row[0] + 1.).abs() < 1e-3 && (row[1] - 1.).abs() < 1e-3));
/// assert_eq!(weights.all_vars().len(), 2); // scale and shift
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn layer_norm<C: Into<LayerNormConfig>>(size: usize, config: C, vb: VarBuilder) -> Result<LayerNorm> {
    let LayerNormConfig { eps, remove_mean, affine } = config.into();
    let name = |new, old| if !vb.contains_tensor(new) && vb.contains_tensor(old) { old } else { new };
    let weight = vb.get_with_hints(size, name("weight", "gamma"), init::ONE)?;
    let bias = if affine { Some(vb.get_with_hints(size, name("bias", "beta"), init::ZERO)?) } else { None };
    Ok(LayerNorm { weight, bias, remove_mean, eps })
}

/// As [`layer_norm()`] without a shift.
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    layer_norm(size, LayerNormConfig { eps, remove_mean: true, affine: false }, vb)
}

/// `x / √(mean of squares + eps) * weight` over the last axis.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// With a given scale.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        RmsNorm(LayerNorm::rms_norm(weight, eps))
    }

    /// As a [`LayerNorm`].
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The scale.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// Added to the mean of squares.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// As [`Module::forward`], which has a gradient too.
    ///
    /// # Errors
    /// As [`Tensor::rms_norm`].
    #[track_caller]
    pub fn forward_diff(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.rms_norm(self.weight(), self.eps())
    }
}

/// An [`RmsNorm`] of ones, or out of a file.
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    layer_norm(size, LayerNormConfig { eps, remove_mean: false, affine: false }, vb).map(RmsNorm)
}
