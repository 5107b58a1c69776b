//! Activations by name, with DL4J's formulas.

use ndgc::{Result, Tensor};

/// What a layer does to each number, or ([`Activation::Softmax`]) to the numbers along axis 1.
///
/// Formulas and constants are DL4J's (`org.nd4j.linalg.activations.Activation`). Note [`Activation::HardSigmoid`],
/// whose slope is 1/5, and [`Activation::Gelu`], which is the sigmoid approximation; the one with the error function
/// is [`Activation::GeluErf`].
///
/// ```
/// use ndgc::train::Activation;
/// use ndgc::{Device, Tensor};
///
/// let x = Tensor::new(&[[-1f64, 0., 2.]], &Device::Cpu)?;
/// assert_eq!(Activation::Relu.forward(&x)?.to_vec2::<f64>()?, [[0., 0., 2.]]);
/// assert_eq!(Activation::HardTanh.forward(&x)?.to_vec2::<f64>()?, [[-1., 0., 1.]]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `x`.
    #[default]
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` above 0, `slope x` below; DL4J's slope is 0.01.
    LeakyRelu(f64),
    /// `x` above 0, `alpha (e^x - 1)` below; DL4J's alpha is 1.
    Elu(f64),
    /// The self-normalising ELU.
    Selu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `0.2 x + 0.5`, within 0 and 1.
    HardSigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x`, within -1 and 1.
    HardTanh,
    /// A rational approximation of `1.7159 tanh(2 x / 3)`.
    RationalTanh,
    /// `max(tanh(x), 0)`.
    RectifiedTanh,
    /// `e^x` divided by their sum along axis 1.
    Softmax,
    /// The logarithm of the softmax along axis 1.
    LogSoftmax,
    /// `log(1 + e^x)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x sigmoid(x)`; also called SiLU.
    Swish,
    /// `x sigmoid(1.702 x)`.
    Gelu,
    /// `x Phi(x)`, with the error function.
    GeluErf,
    /// `x tanh(softplus(x))`.
    Mish,
    /// `x^3`.
    Cube,
}

impl Activation {
    /// The activation of an array; it has the array's shape. The result belongs to the owner of `x`, or lives in the
    /// current workspace. Gradients flow through it.
    ///
    /// # Errors
    /// As [`Tensor::exp`]; [`ndgc::Error::DimOutOfRange`] for a softmax of fewer than two axes.
    #[track_caller]
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Identity => Ok(x.clone()),
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.clamp(0.0, 6.0),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu(alpha) => x.elu(alpha),
            Activation::Selu => x.selu(1.673_263_242_354_377_2, 1.050_700_987_355_480_5),
            Activation::Sigmoid => x.sigmoid(),
            Activation::HardSigmoid => x.compose("hard_sigmoid", || x.affine(0.2, 0.5)?.clamp(0.0, 1.0)),
            Activation::Tanh => x.tanh(),
            Activation::HardTanh => x.clamp(-1.0, 1.0),
            Activation::RationalTanh => rational_tanh(x),
            Activation::RectifiedTanh => x.compose("rectified_tanh", || x.tanh()?.relu()),
            Activation::Softmax => x.softmax(1),
            Activation::LogSoftmax => x.log_softmax(1),
            Activation::Softplus => x.softplus(),
            Activation::Softsign => x.softsign(),
            Activation::Swish => x.silu(),
            Activation::Gelu => x.compose("gelu", || x.affine(1.702, 0.0)?.sigmoid()?.mul(x)),
            Activation::GeluErf => x.gelu_erf(),
            Activation::Mish => x.mish(),
            Activation::Cube => x.compose("cube", || x.sqr()?.mul(x)),
        }
    }
}

/// `1.7159 sign(y) (1 - 1 / (1 + |y| + y^2 + 1.41645 y^4))` with `y = 2 x / 3`.
fn rational_tanh(x: &Tensor) -> Result<Tensor> {
    x.compose("rational_tanh", || {
        let y = x.affine(2.0 / 3.0, 0.0)?;
        let square = y.sqr()?;
        // That of 0 is 1: by a sign of 0 the slope there, where the function is steepest, would be 0.
        let sign = y.ge(0f64)?.to_dtype(y.dtype())?.affine(2.0, -1.0)?;
        let sum = square.sqr()?.affine(1.41645, 1.0)?.add(&square)?.add(&y.mul(&sign)?)?;
        sign.mul(&sum.recip()?.affine(-1.7159, 1.7159)?)
    })
}
