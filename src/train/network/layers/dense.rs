//! Layers of one weight, and what has none.

use std::any::Any;

use ndgc::{DType, Error, Result, Tensor, TensorExt, is_grad_enabled};

use super::super::activation::Activation;
use super::super::json::json_struct;
use super::super::layer::{InputType, Layer, Param, Pass, SHARE, is_share};
use super::super::loss::{Loss, indices, mask_beside};

/// `x W + b`, and an activation. `W` is `[in, out]`.
///
/// Of images all numbers are taken together; of series each step alone.
///
/// ```
/// use ndgc::train::{Activation, Dense};
///
/// let layer = Dense::new(128).activation(Activation::Relu);
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
pub struct Dense {
    n_out: usize,
    activation: Activation,
    has_bias: bool,
    bias_init: f64,
}

impl Dense {
    /// With so many outputs, no activation, and biases of 0.
    pub fn new(n_out: usize) -> Self {
        Dense { n_out, activation: Activation::Identity, has_bias: true, bias_init: 0.0 }
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

    /// With biases that begin so.
    pub fn bias_init(mut self, value: f64) -> Self {
        self.bias_init = value;
        self
    }

    /// `x W + b`.
    fn pre_output(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (weight, bias) = (pass.param(0)?, self.has_bias.then(|| pass.param(1)).transpose()?);
        let rows = |x: &Tensor| match bias {
            // One array instead of two; but its gradient would come as that of a turned weight.
            Some(bias) if !is_grad_enabled() => x.linear(&weight.t()?, Some(bias)),
            Some(bias) => x.addmm(bias, weight),
            None => x.matmul(weight),
        };
        match *x.dims() {
            [_, _] => rows(x),
            [n, size, steps] => x.compose("dense", || {
                let flat = x.permute((0, 2, 1))?.reshape((n * steps, size))?;
                rows(&flat)?.reshape((n, steps, self.n_out))?.permute((0, 2, 1))?.contiguous()
            }),
            _ => rows(&x.flatten_from(1)?),
        }
    }
}

impl Layer for Dense {
    fn kind(&self) -> &str {
        "Dense"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(match input {
            InputType::Recurrent { .. } => InputType::recurrent(self.n_out),
            _ => InputType::feed_forward(self.n_out),
        })
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let (n_in, n_out) = (input.size(), self.n_out);
        let weight = Param::weight("W", (n_in, n_out), [n_in, n_out]);
        let bias = self.has_bias.then(|| Param::bias("b", n_out, self.bias_init));
        Ok(std::iter::once(weight).chain(bias).collect())
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.activated(self.activation, || self.pre_output(x, pass))
    }
}

/// A [`Dense`] layer that ends a network, with a loss; of series for each step (DL4J's `RnnOutputLayer`).
///
/// ```
/// use ndgc::train::{Activation, Loss, OutputLayer};
///
/// let classes = OutputLayer::new(10, Loss::Mcxent); // with a softmax
/// let numbers = OutputLayer::new(2, Loss::Mse).activation(Activation::Tanh);
/// # let _ = (classes, numbers);
/// ```
#[derive(Clone, Debug)]
pub struct OutputLayer {
    dense: Dense,
    loss: Loss,
}

/// DL4J's name of an [`OutputLayer`] after a recurrent layer.
pub type RnnOutputLayer = OutputLayer;

impl OutputLayer {
    /// With so many outputs, and the activation that belongs to the loss: a softmax for classes, a sigmoid for
    /// [`Loss::Xent`], else none.
    pub fn new(n_out: usize, loss: Loss) -> Self {
        OutputLayer { dense: Dense::new(n_out).activation(usual(loss)), loss }
    }

    /// With another activation.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.dense.activation = activation;
        self
    }

    /// With biases, or without.
    pub fn has_bias(mut self, has_bias: bool) -> Self {
        self.dense.has_bias = has_bias;
        self
    }
}

/// The activation that belongs to a loss.
fn usual(loss: Loss) -> Activation {
    match loss {
        Loss::Mcxent | Loss::SparseMcxent | Loss::NegativeLogLikelihood | Loss::KlDivergence => Activation::Softmax,
        Loss::Xent => Activation::Sigmoid,
        _ => Activation::Identity,
    }
}

/// The output, 0 where a mask says that a step does not count.
fn masked(y: Tensor, pass: &Pass<'_>) -> Result<Tensor> {
    match pass.mask() {
        Some(mask) if y.rank() == 3 => pass.result(|| y.broadcast_mul(&mask_beside(mask, &y)?)),
        _ => Ok(y),
    }
}

impl Layer for OutputLayer {
    fn kind(&self) -> &str {
        "OutputLayer"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        self.dense.output_type(input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        self.dense.params(input)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        masked(self.dense.activate(x, pass)?, pass)
    }

    fn scores(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        self.loss.scores(&self.dense.pre_output(x, pass)?, self.dense.activation, labels, mask).map(Some)
    }

    fn score(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        self.loss.score(&self.dense.pre_output(x, pass)?, self.dense.activation, labels, mask).map(Some)
    }

    fn loss(&self) -> Option<Loss> {
        Some(self.loss)
    }
}

/// Ends a network with a loss of what comes in, and has no weights.
#[derive(Clone, Debug)]
pub struct LossLayer {
    loss: Loss,
    activation: Activation,
}

impl LossLayer {
    /// With the activation that belongs to the loss, as of [`OutputLayer::new`].
    pub fn new(loss: Loss) -> Self {
        LossLayer { loss, activation: usual(loss) }
    }

    /// With another activation.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }
}

impl Layer for LossLayer {
    fn kind(&self) -> &str {
        "LossLayer"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        masked(pass.result(|| self.activation.forward(x))?, pass)
    }

    fn scores(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, _pass: &Pass<'_>) -> Result<Option<Tensor>> {
        self.loss.scores(x, self.activation, labels, mask).map(Some)
    }

    fn score(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, _pass: &Pass<'_>) -> Result<Option<Tensor>> {
        self.loss.score(x, self.activation, labels, mask).map(Some)
    }

    fn loss(&self) -> Option<Loss> {
        Some(self.loss)
    }
}

/// The activation of a layer that ends a network, if what comes out are no probabilities: as DL4J tells it, and of
/// GELU and Mish too. A [`LossLayer`] without an activation may be given probabilities.
pub(crate) fn beyond_probabilities(layer: &dyn Layer) -> Option<Activation> {
    use Activation::{HardSigmoid, LogSoftmax, RectifiedTanh, Sigmoid, Softmax};
    let layer: &dyn Any = layer;
    let of_loss = || layer.downcast_ref::<LossLayer>().map(|layer| layer.activation);
    let found = match layer.downcast_ref::<OutputLayer>() {
        Some(layer) => Some(layer.dense.activation),
        None => of_loss().filter(|activation| *activation != Activation::Identity),
    };
    // Logarithms of probabilities have their order.
    found.filter(|activation| !matches!(activation, HardSigmoid | LogSoftmax | RectifiedTanh | Sigmoid | Softmax))
}

/// An activation as a layer.
#[derive(Clone, Debug)]
pub struct ActivationLayer(pub Activation);

impl Layer for ActivationLayer {
    fn kind(&self) -> &str {
        "Activation"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.result(|| self.0.forward(x))
    }
}

/// Sets this share of the numbers to 0 in training, and divides the others by the share that stays; the numbers of a
/// step are those of the network's seed, so that a training that was stopped goes on as if it had not been.
#[derive(Clone, Debug)]
pub struct DropoutLayer(pub f64);

impl Layer for DropoutLayer {
    fn kind(&self) -> &str {
        "Dropout"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        match is_share(self.0) {
            true => Ok(input),
            false => Err(Error::argument("dropout", "share", self.0, SHARE)),
        }
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.result(|| pass.drop_out(x, self.0))
    }
}

/// A learnt row for each number: `[n]` or `[n, 1]` to `[n, size]`; of series `[n, t]` or `[n, 1, t]` to `[n, size, t]`.
/// `W` is `[vocabulary, size]`. Numbers may be of any type; floats that are not whole, or below 0, are refused unless a
/// mask leaves them out, for which the host reads them: integers cost nothing.
///
/// ```
/// use ndgc::train::{Embedding, InputType, Loss, NetworkConfig, OutputLayer};
/// use ndgc::{Device, Tensor};
///
/// let config = NetworkConfig::builder().input_type(InputType::feed_forward(1)).layer(Embedding::new(100, 8));
/// let net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build()?;
/// assert_eq!(net.param("0_W").unwrap().dims(), [100, 8]);
/// let words = Tensor::new(&[[7u32], [99], [7]], &Device::Cpu)?;
/// assert_eq!(net.output(&words)?.dims(), [3, 2]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    vocabulary: usize,
    size: usize,
    series: bool,
}

impl Embedding {
    /// For numbers below `vocabulary`, one an example.
    pub fn new(vocabulary: usize, size: usize) -> Self {
        Embedding { vocabulary, size, series: false }
    }

    /// For numbers below `vocabulary`, one a step: DL4J's `EmbeddingSequenceLayer`.
    pub fn sequence(vocabulary: usize, size: usize) -> Self {
        Embedding { vocabulary, size, series: true }
    }

    /// The numbers as indices; where the mask has 0, whatever is there, that of the first row.
    fn rows(x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        match pass.mask() {
            // An axis of 1 more or less makes no difference.
            Some(mask) if mask.elem_count() != x.elem_count() || mask.dims().first() != x.dims().first() => {
                let why = "the mask of an embedding has a number for each of its input: [n], or [n, t] of a series";
                Err(Error::shape_mismatch("mask", x.dims(), mask.dims(), why))
            }
            // No u32 is below 0.
            Some(mask) if x.dtype() != DType::U32 => {
                let left_out = mask.to_dtype(DType::F32)?.eq(0f64)?.reshape(x.dims())?;
                indices("embedding", &x.masked_fill(&left_out, 0.0)?)
            }
            _ => indices("embedding", x),
        }
    }
}

impl Layer for Embedding {
    fn kind(&self) -> &str {
        "Embedding"
    }

    fn output_type(&self, _input: InputType) -> Result<InputType> {
        Ok(if self.series { InputType::recurrent(self.size) } else { InputType::feed_forward(self.size) })
    }

    fn takes_indices(&self) -> bool {
        true
    }

    fn params(&self, _input: InputType) -> Result<Vec<Param>> {
        Ok(vec![Param::weight("W", (self.vocabulary, self.size), [self.vocabulary, self.size])])
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let ids = Self::rows(x, pass)?;
        let weight = pass.param(0)?;
        match *x.dims() {
            [n] | [n, 1] if !self.series => pass.result(|| weight.embedding(&ids.reshape(n)?)),
            [n, steps] | [n, 1, steps] if self.series => {
                let rows = weight.embedding(&ids.reshape(n * steps)?)?;
                pass.result(|| rows.reshape((n, steps, self.size))?.permute((0, 2, 1))?.contiguous())
            }
            ref dims => Err(Error::shape("embedding", dims, "[n] or [n, 1]; of series [n, t] or [n, 1, t]")),
        }
    }
}

json_struct!(Dense { n_out, activation, has_bias, bias_init });
json_struct!(OutputLayer { dense, loss });
json_struct!(LossLayer { loss, activation });
json_struct!(Embedding { vocabulary, size, series });
