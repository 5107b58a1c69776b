//! Convolution and pooling.

use ndgc::{Result, Tensor, TensorExt};

use super::super::super::shared::upcast_half;
use super::super::activation::Activation;
use super::super::json::json_struct;
use super::super::layer::{InputType, Layer, Param, Pass, wrong_input};
use super::recurrent::mask_of_steps;

/// Moves a kernel over images, `[n, in, h, w]` to `[n, out, h', w']`, and has an activation. `W` is `[out, in, kh,
/// kw]`.
///
/// ```
/// use ndgc::train::{Convolution2D, InputType, Loss, NetworkConfig, OutputLayer, PoolingType, Subsampling};
///
/// let net = NetworkConfig::builder()
///     .input_type(InputType::convolutional(1, 28, 28)) // channels, rows, columns
///     .layer(Convolution2D::new(8, (5, 5))) // 24 rows and columns are left
///     .layer(Subsampling::new(PoolingType::Max, (2, 2))) // and half of them
///     .layer(OutputLayer::new(10, Loss::Mcxent))
///     .build()?;
/// assert_eq!(net.param("0_W").unwrap().dims(), [8, 1, 5, 5]);
/// assert_eq!(net.param("2_W").unwrap().dims(), [8 * 12 * 12, 10]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Convolution2D {
    n_out: usize,
    kernel: (usize, usize),
    stride: usize,
    padding: usize,
    dilation: usize,
    activation: Activation,
    has_bias: bool,
}

impl Convolution2D {
    /// With so many channels out, a kernel of so many rows and columns, steps of 1, no padding and no activation.
    pub fn new(n_out: usize, kernel: (usize, usize)) -> Self {
        let activation = Activation::Identity;
        Convolution2D { n_out, kernel, stride: 1, padding: 0, dilation: 1, activation, has_bias: true }
    }

    /// Pixels from one place to the next.
    pub fn stride(mut self, stride: usize) -> Self {
        self.stride = stride;
        self
    }

    /// Zeros around the image.
    pub fn padding(mut self, padding: usize) -> Self {
        self.padding = padding;
        self
    }

    /// Pixels from one number of the kernel to the next.
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.dilation = dilation;
        self
    }

    /// With an activation.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// With biases, or without.
    pub fn has_bias(mut self, has_bias: bool) -> Self {
        self.has_bias = has_bias;
        self
    }
}

/// Places of a window of `kernel` numbers along an axis.
fn places(size: usize, kernel: usize, stride: usize, padding: usize) -> Option<usize> {
    let padded = padding.checked_mul(2)?.checked_add(size)?;
    padded.checked_sub(kernel).filter(|_| stride > 0 && kernel > 0).map(|room| room / stride + 1)
}

impl Layer for Convolution2D {
    fn kind(&self) -> &str {
        "Convolution2D"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        let expected = "images at least as large as the kernel; give input_type(InputType::convolutional(..))";
        let InputType::Convolutional { height, width, .. } = input else {
            return wrong_input("convolution", input, expected);
        };
        let dilated = |kernel: usize| self.dilation.saturating_mul(kernel.saturating_sub(1)).saturating_add(1);
        let rows = places(height, dilated(self.kernel.0), self.stride, self.padding);
        let columns = places(width, dilated(self.kernel.1), self.stride, self.padding);
        match (rows, columns) {
            (Some(rows), Some(columns)) => Ok(InputType::convolutional(self.n_out, rows, columns)),
            _ => wrong_input("convolution", input, expected),
        }
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let (n_in, (h, w)) = (input.features(), self.kernel);
        let weight = Param::weight(
            "W",
            (self.n_out, n_in, h, w),
            [n_in.saturating_mul(h).saturating_mul(w), self.n_out.saturating_mul(h).saturating_mul(w)],
        );
        let bias = self.has_bias.then(|| Param::bias("b", self.n_out, 0.0));
        Ok(std::iter::once(weight).chain(bias).collect())
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let convolve = || x.conv2d(pass.param(0)?, self.padding, self.stride, self.dilation, 1);
        if !self.has_bias {
            return pass.activated(self.activation, convolve);
        }
        let (y, bias) = (convolve()?, pass.param(1)?.reshape((1, self.n_out, 1, 1))?);
        pass.activated(self.activation, || y.broadcast_add(&bias))
    }
}

/// What pooling makes of the numbers of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PoolingType {
    /// The largest.
    #[default]
    Max,
    /// Their mean.
    Avg,
    /// Their sum.
    Sum,
    /// The root of order p of the sum of the p-th powers of their magnitudes.
    PNorm(f64),
}

impl PoolingType {
    /// From a mean of windows of `count` numbers. Not for the largest.
    fn of_means(self, x: &Tensor, count: f64, mean: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            PoolingType::Max | PoolingType::Avg => mean(x),
            PoolingType::Sum => mean(x)?.affine(count, 0.0),
            PoolingType::PNorm(p) => {
                // Powers of halves may be none of theirs.
                let powers = upcast_half(x)?.abs()?.powf(p)?;
                root(&mean(&powers)?.affine(count, 0.0)?, p)?.to_dtype(x.dtype())
            }
        }
    }
}

/// The root of order `p` of sums of powers. Of 0 it is 0, and so is its gradient: the slope there is infinite, and NaN
/// times that of the powers, which is 0.
fn root(sums: &Tensor, p: f64) -> Result<Tensor> {
    let nothing = sums.eq(0f64)?;
    sums.masked_fill(&nothing, 1.0)?.powf(1.0 / p)?.masked_fill(&nothing, 0.0)
}

/// Makes images smaller, window by window.
#[derive(Clone, Debug)]
pub struct Subsampling {
    pooling: PoolingType,
    kernel: (usize, usize),
    stride: (usize, usize),
}

impl Subsampling {
    /// With windows of this size that lie side by side.
    pub fn new(pooling: PoolingType, kernel: (usize, usize)) -> Self {
        Subsampling { pooling, kernel, stride: kernel }
    }

    /// Pixels from one window to the next, down and to the right.
    pub fn stride(mut self, stride: (usize, usize)) -> Self {
        self.stride = stride;
        self
    }
}

impl Layer for Subsampling {
    fn kind(&self) -> &str {
        "Subsampling"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        let expected = "images at least as large as the window";
        let InputType::Convolutional { channels, height, width } = input else {
            return wrong_input("subsampling", input, expected);
        };
        let rows = places(height, self.kernel.0, self.stride.0, 0);
        match (rows, places(width, self.kernel.1, self.stride.1, 0)) {
            (Some(rows), Some(columns)) => Ok(InputType::convolutional(channels, rows, columns)),
            _ => wrong_input("subsampling", input, expected),
        }
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (kernel, stride) = (self.kernel, self.stride);
        pass.result(|| match self.pooling {
            PoolingType::Max => x.max_pool2d_with_stride(kernel, stride),
            other => x.compose("pooling", || {
                other.of_means(x, kernel.0 as f64 * kernel.1 as f64, |x| x.avg_pool2d_with_stride(kernel, stride))
            }),
        })
    }
}

/// Takes all steps of a series, or all pixels of a channel, together: `[n, size, t]` or `[n, channels, h, w]` to
/// `[n, size]`. Steps that a mask leaves out do not count; where it leaves out all, there is 0.
#[derive(Clone, Debug)]
pub struct GlobalPooling(pub PoolingType);

impl Layer for GlobalPooling {
    fn kind(&self) -> &str {
        "GlobalPooling"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        match input {
            InputType::FeedForward { .. } => wrong_input("global_pooling", input, "a series or images"),
            other => Ok(InputType::feed_forward(other.features())),
        }
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let flat = x.flatten_from(2)?;
        // Of images a mask says which count, and not what of them.
        let mask = if x.rank() == 3 { mask_of_steps(x, pass)? } else { None };
        let Some(mask) = mask else {
            let count = flat.dim(2)? as f64;
            return pass.result(|| match self.0 {
                PoolingType::Max => flat.max(2),
                other => x.compose("global_pooling", || other.of_means(&flat, count, |x| x.mean(2))),
            });
        };
        let mask = mask.unsqueeze(1)?;
        pass.result(|| {
            x.compose("global_pooling", || match self.0 {
                PoolingType::Max => {
                    let left_out = mask.eq(0f64)?;
                    let largest = x.masked_fill(&left_out, f64::NEG_INFINITY)?.max(2)?;
                    largest.masked_fill(&left_out.min(2)?, 0.0)
                }
                PoolingType::Avg => {
                    // Sums of halves, and counts, may be none of theirs.
                    let (numbers, mask) = (upcast_half(x)?, upcast_half(&mask)?);
                    let count = mask.sum(2)?.clamp(1.0, f64::INFINITY)?;
                    numbers.broadcast_mul(&mask)?.sum(2)?.broadcast_div(&count)?.to_dtype(x.dtype())
                }
                PoolingType::Sum => x.broadcast_mul(&mask)?.sum(2),
                PoolingType::PNorm(p) => {
                    let powers = upcast_half(x)?.abs()?.powf(p)?.broadcast_mul(&upcast_half(&mask)?)?;
                    root(&powers.sum(2)?, p)?.to_dtype(x.dtype())
                }
            })
        })
    }

    fn ends_mask(&self) -> bool {
        true
    }
}

json_struct!(Convolution2D { n_out, kernel, stride, padding, dilation, activation, has_bias });
json_struct!(Subsampling { pooling, kernel, stride });
