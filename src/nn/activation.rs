//! Activations that a configuration names, and the ReLU with a learnt slope.

use crate::nn::{init::Init, module::Module, var_builder::VarBuilder};
use crate::{Error, Result, Tensor, TensorExt};

/// An activation by name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)] // the names say it
pub enum Activation {
    /// With the error function.
    #[default]
    Gelu,
    /// With a hyperbolic tangent.
    NewGelu,
    Relu,
    /// The square of a ReLU.
    Relu2,
    /// A ReLU that ends at 6.
    Relu6,
    Silu,
    Sigmoid,
    HardSigmoid,
    /// Halves the last axis.
    Swiglu,
    /// As `Silu`.
    Swish,
    Mish,
    HardSwish,
    Elu(f64),
    LeakyRelu(f64),
    /// As `NewGelu`.
    GeluPytorchTanh,
}

impl Module for Activation {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match *self {
            Activation::Gelu => x.gelu_erf(),
            Activation::NewGelu | Activation::GeluPytorchTanh => x.gelu(),
            Activation::Relu => x.relu(),
            Activation::Relu2 => x.compose("relu2", || x.relu()?.sqr()),
            Activation::Relu6 => x.compose("relu6", || x.relu()?.clamp_max(6.0)),
            Activation::Silu | Activation::Swish => x.silu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::HardSigmoid => x.hard_sigmoid(),
            Activation::HardSwish => x.hard_swish(),
            Activation::Swiglu => x.swiglu(),
            Activation::Mish => x.mish(),
            Activation::Elu(alpha) => x.elu(alpha),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
        }
    }
}

/// A ReLU whose slope below 0 is learnt: one for all, or one a channel (axis 1).
#[derive(Clone, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct PReLU {
    weight: Tensor,
    is_scalar: bool,
}

impl PReLU {
    /// Given slopes; `is_scalar` for one of all.
    pub fn new(weight: Tensor, is_scalar: bool) -> Self {
        PReLU { weight, is_scalar }
    }

    /// The slopes.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Whether it is one of all.
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }
}

impl Module for PReLU {
    /// # Errors
    /// [`Error::ShapeMismatch`] if there is another number of channels.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.compose("prelu", || {
            let dims = x.dims();
            let slopes = match (self.is_scalar, dims.len()) {
                (true, _) => self.weight.reshape(())?,
                (false, rank) if rank >= 2 && dims != self.weight.dims() => {
                    let (channels, slopes) = (dims[1], self.weight.elem_count());
                    if channels != slopes {
                        let why = format!("{channels} channels on axis 1, and {slopes} slopes");
                        return Err(Error::shape_mismatch("prelu", dims, self.weight.dims(), why));
                    }
                    self.weight.flatten_all()?
                }
                _ => self.weight.clone(),
            };
            x.prelu(&slopes)
        })
    }
}

/// A [`PReLU`] that begins with slopes of 1/4: one a channel, or one of all.
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn prelu(num_channels: Option<usize>, vb: VarBuilder) -> Result<PReLU> {
    let weight = vb.get_with_hints(num_channels.unwrap_or(1), "weight", Init::Const(0.25))?;
    Ok(PReLU::new(weight, num_channels.is_none()))
}
