//! How variables begin.

use crate::{DType, Device, Result, Shape, Tensor, Var};

/// Which connections a weight's scale follows.
#[derive(Clone, Copy, Debug)]
pub enum FanInOut {
    /// Those that come in: axis 1 and what lies behind axis 1.
    FanIn,
    /// Those that go out: axis 0.
    FanOut,
}

impl FanInOut {
    /// The number of connections of weights of a shape; the largest number, if they are more.
    pub fn for_shape(&self, shape: &Shape) -> usize {
        let apart = match self {
            FanInOut::FanIn => 0,
            FanInOut::FanOut => 1,
        };
        let counted = shape.dims().iter().enumerate().filter(|&(axis, _)| axis != apart);
        counted.fold(1usize, |connections, (_, &dim)| connections.saturating_mul(dim))
    }
}

/// How numbers are drawn.
#[derive(Clone, Copy, Debug)]
pub enum NormalOrUniform {
    /// Normal.
    Normal,
    /// Uniform.
    Uniform,
}

/// What follows a layer, for the scale of its weights.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's names
pub enum NonLinearity {
    /// A ReLU: √2.
    ReLU,
    /// Nothing: 1.
    Linear,
    /// A sigmoid: 1.
    Sigmoid,
    /// A hyperbolic tangent: 5/3.
    Tanh,
    /// A SELU: 3/4.
    SELU,
    /// A gain of one's own.
    ExplicitGain(f64),
}

impl NonLinearity {
    /// The gain.
    pub fn gain(&self) -> f64 {
        match *self {
            NonLinearity::ReLU => std::f64::consts::SQRT_2,
            NonLinearity::Linear | NonLinearity::Sigmoid => 1.0,
            NonLinearity::Tanh => 5.0 / 3.0,
            NonLinearity::SELU => 0.75,
            NonLinearity::ExplicitGain(gain) => gain,
        }
    }
}

/// How a variable begins.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    /// One value.
    Const(f64),
    /// Normal numbers.
    Randn {
        /// Their mean.
        mean: f64,
        /// Their standard deviation.
        stdev: f64,
    },
    /// Uniform numbers.
    Uniform {
        /// The lowest.
        lo: f64,
        /// The bound above.
        up: f64,
    },
    /// After He: a standard deviation of `gain / √fan`.
    Kaiming {
        /// How they are drawn.
        dist: NormalOrUniform,
        /// The connections counted.
        fan: FanInOut,
        /// What follows.
        non_linearity: NonLinearity,
    },
}

/// Zeros.
pub const ZERO: Init = Init::Const(0.0);
/// Ones.
pub const ONE: Init = Init::Const(1.0);
/// Uniform after He, for incoming connections and a ReLU.
pub const DEFAULT_KAIMING_UNIFORM: Init =
    Init::Kaiming { dist: NormalOrUniform::Uniform, fan: FanInOut::FanIn, non_linearity: NonLinearity::ReLU };
/// Normal after He, for incoming connections and a ReLU.
pub const DEFAULT_KAIMING_NORMAL: Init =
    Init::Kaiming { dist: NormalOrUniform::Normal, fan: FanInOut::FanIn, non_linearity: NonLinearity::ReLU };

impl Init {
    /// Uniform between `-bound` and `bound`; zeros for a bound that is infinite, which is that of no connections.
    pub(super) fn within(bound: f64) -> Self {
        if bound.is_infinite() { ZERO } else { Init::Uniform { lo: -bound, up: bound } }
    }

    /// A variable that begins so, owned by its handles. Random numbers come from the common stream.
    ///
    /// # Errors
    /// As [`Tensor::zeros`]; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) if `dtype` is no float.
    #[track_caller]
    pub fn var<S: Into<Shape>>(&self, shape: S, dtype: DType, device: &Device) -> Result<Var> {
        let shape = shape.into();
        match *self {
            Init::Const(value) if value.to_bits() == 0 => Var::zeros(shape, dtype, device),
            Init::Const(value) => Var::from_tensor(&Tensor::zeros(shape, dtype, device)?.fill_(value)?),
            Init::Randn { mean, stdev } => Var::randn_f64(mean, stdev, shape, dtype, device),
            Init::Uniform { lo, up } => Var::rand_f64(lo, up, shape, dtype, device),
            Init::Kaiming { dist, fan, non_linearity } => {
                let std = non_linearity.gain() / (fan.for_shape(&shape).max(1) as f64).sqrt();
                match dist {
                    NormalOrUniform::Normal => Var::randn_f64(0.0, std, shape, dtype, device),
                    NormalOrUniform::Uniform => {
                        let bound = 3f64.sqrt() * std;
                        Var::rand_f64(-bound, bound, shape, dtype, device)
                    }
                }
            }
        }
    }
}

impl Default for Init {
    fn default() -> Self {
        ZERO
    }
}
