//! How weights begin.

use ndgc::{DType, Device, Generator, Result, Shape, Tensor, Var};

/// How a weight begins, from its connections: `fan_in` that come in, `fan_out` that go out. Names are DL4J's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum WeightInit {
    /// Normal, of variance `2 / (fan_in + fan_out)`: after Glorot.
    #[default]
    Xavier,
    /// Uniform, of the same variance.
    XavierUniform,
    /// Normal, of variance `2 / fan_in`: after He.
    Relu,
    /// Uniform, of the same variance.
    ReluUniform,
    /// Normal, of variance `1 / fan_in`: after LeCun.
    LecunNormal,
    /// Uniform, of the same variance.
    LecunUniform,
    /// Normal numbers of this deviation.
    Normal(f64),
    /// Uniform numbers between minus this and this.
    Uniform(f64),
    /// This number.
    Constant(f64),
}

impl WeightInit {
    /// A variable that begins so, owned by its handles; random numbers come from `random`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`]; [`ndgc::Error::UnsupportedDType`] if `dtype` is no float.
    pub fn var(
        self,
        shape: Shape,
        [fan_in, fan_out]: [usize; 2],
        dtype: DType,
        device: &Device,
        random: &mut Generator,
    ) -> Result<Var> {
        let [fan_in, fan_out] = [fan_in, fan_out].map(|fan| fan.max(1) as f64);
        let (variance, uniform) = match self {
            WeightInit::Xavier => (2.0 / (fan_in + fan_out), false),
            WeightInit::XavierUniform => (2.0 / (fan_in + fan_out), true),
            WeightInit::Relu => (2.0 / fan_in, false),
            WeightInit::ReluUniform => (2.0 / fan_in, true),
            WeightInit::LecunNormal => (1.0 / fan_in, false),
            WeightInit::LecunUniform => (1.0 / fan_in, true),
            WeightInit::Normal(deviation) => (deviation * deviation, false),
            WeightInit::Uniform(bound) => (bound * bound / 3.0, true),
            WeightInit::Constant(value) => {
                return Var::from_tensor(&Tensor::zeros(shape, dtype, device)?.affine(0.0, value)?);
            }
        };
        let drawn = match uniform {
            true => random.uniform(-(3.0 * variance).sqrt(), (3.0 * variance).sqrt(), shape, dtype, device)?,
            false => random.normal(0.0, variance.sqrt(), shape, dtype, device)?,
        };
        Var::from_tensor(&drawn)
    }
}
