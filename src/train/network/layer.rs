//! What a layer is, and what it is told in a pass.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ndgc::{DType, Device, Error, Generator, Result, Shape, Tensor, Var, Workspace};

use super::super::place::called_here;
use super::super::shared::same_bytes;
use super::activation::Activation;
use super::loss::{Loss, mean_of};
use super::regularization::{GradientNormalization, Regularization};
use super::scratch::List;
use super::updater::Updater;
use super::weight_init::WeightInit;
use super::workspaces::{ArrayType, Entered, LayerWorkspaceMgr};

/// The form of what a layer is given, without the axis of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputType {
    /// `[n, size]`; images come flattened.
    FeedForward {
        /// Numbers of an example.
        size: usize,
    },
    /// A series: `[n, size, steps]`, for any number of steps.
    Recurrent {
        /// Numbers of a step.
        size: usize,
    },
    /// Images: `[n, channels, height, width]`, or `[n, height, width]` if there is one channel, or flattened.
    Convolutional {
        /// Channels.
        channels: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
}

impl InputType {
    /// `[n, size]`.
    pub fn feed_forward(size: usize) -> Self {
        InputType::FeedForward { size }
    }

    /// `[n, size, steps]`.
    pub fn recurrent(size: usize) -> Self {
        InputType::Recurrent { size }
    }

    /// `[n, channels, height, width]`.
    pub fn convolutional(channels: usize, height: usize, width: usize) -> Self {
        InputType::Convolutional { channels, height, width }
    }

    /// Numbers of an example, or of a step of a series.
    pub fn size(&self) -> usize {
        match *self {
            InputType::FeedForward { size } | InputType::Recurrent { size } => size,
            InputType::Convolutional { channels, height, width } => {
                channels.saturating_mul(height).saturating_mul(width)
            }
        }
    }

    /// The size of axis 1: what is normalised together.
    pub fn features(&self) -> usize {
        match *self {
            InputType::Convolutional { channels, .. } => channels,
            _ => self.size(),
        }
    }

    /// The shape of this form for images that come in another one, with the same numbers: `[n, h, w]` or `[n, size]`
    /// for `[n, 1, h, w]`, and images for `[n, size]`. None where nothing is to be done.
    pub(super) fn other_shape(&self, dims: &[usize]) -> Option<Shape> {
        let (&n, rest) = dims.split_first()?;
        let fits = |rank: usize| rest.len() != rank && rest.iter().product::<usize>() == self.size();
        match *self {
            InputType::FeedForward { size } if rest.len() > 1 && fits(1) => Some((n, size).into()),
            InputType::Convolutional { channels, height, width } if fits(3) => {
                Some((n, channels, height, width).into())
            }
            _ => None,
        }
    }

    /// Numbers along axis 1 of another size.
    pub(super) fn with_features(self, features: usize) -> Self {
        match self {
            InputType::FeedForward { .. } => InputType::FeedForward { size: features },
            InputType::Recurrent { .. } => InputType::Recurrent { size: features },
            InputType::Convolutional { height, width, .. } => {
                InputType::Convolutional { channels: features, height, width }
            }
        }
    }
}

impl fmt::Display for InputType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputType::FeedForward { size } => write!(f, "[n, {size}]"),
            InputType::Recurrent { size } => write!(f, "[n, {size}, t]"),
            InputType::Convolutional { channels, height, width } => write!(f, "[n, {channels}, {height}, {width}]"),
        }
    }
}

/// How a parameter begins.
#[derive(Clone, Debug)]
pub enum Start {
    /// As the network's or the layer's [`WeightInit`] says, for so many connections in and out.
    Weights([usize; 2]),
    /// As one number.
    Constant(f64),
    /// As these numbers, in row-major order.
    Values(Vec<f64>),
    /// As these numbers, each for as many places in a row as the others: a bias of several gates.
    Parts(Vec<f64>),
    /// It is there: a module's own variable.
    Given(Var),
}

/// What becomes of a parameter in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// It is trained and penalised.
    Weight,
    /// It is trained; penalties, and the updater if it is so wanted, are of their own.
    Bias,
    /// It is trained as a weight, and never penalised: gains, and what a batch is shifted by.
    Gain,
    /// The layer changes it itself, as running means do: it has no gradient.
    State,
}

/// A parameter of a layer.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its name in the layer, as `W`.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// How it begins.
    pub start: Start,
    /// What becomes of it.
    pub kind: ParamKind,
}

impl Param {
    /// A weight that the network's initialisation fills.
    pub fn weight<S: Into<Shape>>(name: &str, shape: S, fans: [usize; 2]) -> Self {
        Param { name: name.to_owned(), shape: shape.into(), start: Start::Weights(fans), kind: ParamKind::Weight }
    }

    /// A bias that begins as a number.
    pub fn bias<S: Into<Shape>>(name: &str, shape: S, value: f64) -> Self {
        Param { name: name.to_owned(), shape: shape.into(), start: Start::Constant(value), kind: ParamKind::Bias }
    }

    /// A gain that begins as a number.
    pub fn gain<S: Into<Shape>>(name: &str, shape: S, value: f64) -> Self {
        Param { name: name.to_owned(), shape: shape.into(), start: Start::Constant(value), kind: ParamKind::Gain }
    }

    /// A state that begins as a number.
    pub fn state<S: Into<Shape>>(name: &str, shape: S, value: f64) -> Self {
        Param { name: name.to_owned(), shape: shape.into(), start: Start::Constant(value), kind: ParamKind::State }
    }

    /// The variable that begins so.
    pub(super) fn var(&self, init: WeightInit, dtype: DType, device: &Device, random: &mut Generator) -> Result<Var> {
        match &self.start {
            Start::Weights(fans) => init.var(self.shape, *fans, dtype, device, random),
            Start::Constant(value) => WeightInit::Constant(*value).var(self.shape, [1, 1], dtype, device, random),
            Start::Values(values) => {
                Var::from_tensor(&Tensor::from_slice(values, self.shape, device)?.to_dtype(dtype)?)
            }
            Start::Parts(values) => {
                let part = self.shape.elem_count() / values.len().max(1);
                let parts =
                    values.iter().map(|value| Tensor::full(*value, part, device)).collect::<Result<Vec<_>>>()?;
                Var::from_tensor(&Tensor::cat(&parts, 0)?.reshape(self.shape)?.to_dtype(dtype)?)
            }
            Start::Given(var) => Ok(var.clone()),
        }
    }
}

/// What a layer is told in a pass: its parameters, whether this is training, masks, and where arrays go.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    pub(super) params: &'a [Var],
    pub(super) training: bool,
    /// Whether the layer computes again what it did before.
    pub(super) again: bool,
    pub(super) mask: Option<&'a Tensor>,
    pub(super) mgr: &'a LayerWorkspaceMgr,
    /// Number of the stream of random numbers: of the seed, the layer and the step.
    pub(super) stream: u64,
    /// What a recurrent layer had after the last pass, and leaves for the next one.
    pub(super) memory: Option<&'a Mutex<Vec<Tensor>>>,
    /// What a layer with its own backward pass keeps of the way forward, if there is room for it.
    pub(super) cache: Option<&'a Mutex<Vec<Tensor>>>,
    /// Whether the gradient of the input is wanted.
    pub(super) wants_epsilon: bool,
}

impl<'a> Pass<'a> {
    /// For a layer that is used alone: with these parameters, in the order of [`Layer::params`].
    pub fn alone(params: &'a [Var], training: bool, mgr: &'a LayerWorkspaceMgr) -> Self {
        let (again, stream, wants_epsilon) = (false, 0, true);
        Pass { params, training, again, mask: None, mgr, stream, memory: None, cache: None, wants_epsilon }
    }

    /// The same, with a mask of the features.
    pub fn with_mask(mut self, mask: Option<&'a Tensor>) -> Self {
        self.mask = mask;
        self
    }

    /// The same, with other random numbers: for dropout of the layer's input.
    pub(super) fn of_input(self) -> Self {
        Pass { stream: !self.stream, ..self }
    }

    /// The layer's parameters, in the order of [`Layer::params`].
    pub fn params(&self) -> &'a [Var] {
        self.params
    }

    /// A parameter by its place.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are not so many.
    #[track_caller]
    pub fn param(&self, place: usize) -> Result<&'a Var> {
        let wrong = || Error::argument("param", "place", place, "below the number of the layer's parameters");
        called_here(self.params.get(place).ok_or_else(wrong))
    }

    /// Whether this is a step of training.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Which steps of the series count, `[n, t]`, or which examples, `[n]` or `[n, 1]`.
    pub fn mask(&self) -> Option<&'a Tensor> {
        self.mask
    }

    /// Where arrays go.
    pub fn workspaces(&self) -> &'a LayerWorkspaceMgr {
        self.mgr
    }

    /// Whether [`Backprop::epsilon`] is wanted: not of a layer that nothing before it has parameters of.
    pub fn wants_epsilon(&self) -> bool {
        self.wants_epsilon
    }

    /// Saves arrays of the way forward for [`Layer::backprop_gradient`], made by `f` in the workspace of
    /// [`ArrayType::FfCache`]. Nothing is made where memory is to be saved, and outside of training.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn save_for_backprop<A: IntoIterator<Item = Tensor>>(&self, f: impl FnOnce() -> Result<A>) -> Result<()> {
        let Some(cache) = self.cache.filter(|_| self.training) else { return Ok(()) };
        if self.again {
            // What a step that failed has left is not of this one.
            cache.lock().unwrap_or_else(PoisonError::into_inner).clear();
            return Ok(());
        }
        let _place = self.mgr.borrow(ArrayType::FfCache)?;
        let arrays = f()?;
        let mut kept = cache.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
        kept.extend(arrays);
        Ok(())
    }

    /// Has what is made next where [`Pass::save_for_backprop`] would put it, to be saved without a copy. None where
    /// that saves nothing.
    pub(super) fn saved_place(&self) -> Result<Option<Entered>> {
        match self.training && !self.again && self.cache.is_some() {
            true => self.mgr.borrow(ArrayType::FfCache).map(Some),
            false => Ok(None),
        }
    }

    /// What [`Pass::save_for_backprop`] saved in this step; none if it was not so many arrays.
    pub fn take_kept<const N: usize>(&self) -> Option<[Tensor; N]> {
        let mut kept = self.cache?.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = (kept.len() == N).then(|| std::array::from_fn(|place| kept[place].clone()));
        kept.clear();
        taken
    }

    /// Makes the layer's result where activations belong; what is made outside of `f` goes to the layer's working
    /// memory.
    ///
    /// # Errors
    /// Those of `f`; as [`LayerWorkspaceMgr::notify_scope_borrowed`].
    pub fn result(&self, f: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let _place = self.mgr.borrow(ArrayType::Activations)?;
        f()
    }

    /// The activation of what `z` makes, as [`Pass::result`].
    ///
    /// # Errors
    /// As [`Pass::result`].
    pub fn activated(&self, activation: Activation, z: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        if activation == Activation::Identity {
            return self.result(z);
        }
        let z = z()?;
        self.result(|| activation.forward(&z))
    }

    /// Sets a parameter of kind [`ParamKind::State`] to what `f` makes: once a step of training, and never otherwise.
    ///
    /// # Errors
    /// Those of `f`; as [`Var::set`].
    #[track_caller]
    pub fn update_state(&self, place: usize, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
        if !self.training || self.again {
            return Ok(());
        }
        let state = self.param(place)?;
        state.set(&f(&same_bytes(state)?)?)
    }

    /// Random numbers that are the same whenever this layer asks in this step, on any machine.
    pub fn random(&self) -> Generator {
        Generator::new(self.stream)
    }

    /// `x` with this share of its numbers set to 0 and the others divided by the share that stays; `x` itself outside
    /// of training. The numbers are those of [`Pass::random`].
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn drop_out(&self, x: &Tensor, share: f64) -> Result<Tensor> {
        if !self.training || share == 0.0 {
            return Ok(x.clone());
        }
        // Halves have so few numbers that another share would be dropped.
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let drawn = self.random().uniform(0.0, 1.0, *x.shape(), dtype, x.device())?;
        let kept = drawn.ge(share)?.to_dtype(x.dtype())?;
        x.compose("dropout", || x.mul(&kept.affine(1.0 / (1.0 - share), 0.0)?))
    }

    /// What the layer left in the last pass; empty at the start, and where passes do not follow one another.
    pub fn memory(&self) -> Vec<Tensor> {
        self.memory.map(|memory| memory.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap_or_default()
    }

    /// Leaves arrays for the next pass, detached. Nothing happens where passes do not follow one another.
    ///
    /// # Errors
    /// As [`Tensor::try_detach`].
    pub fn remember(&self, arrays: &[&Tensor]) -> Result<()> {
        let Some(memory) = self.memory.filter(|_| !self.again) else { return Ok(()) };
        let _out = Workspace::scope_out();
        let kept = arrays.iter().map(|array| array.try_detach()).collect::<Result<Vec<_>>>()?;
        *memory.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        Ok(())
    }
}

/// The gradients that a layer with a backward pass of its own gives.
#[derive(Debug)]
pub struct Backprop {
    /// Of the input, in the workspace of [`ArrayType::ActivationGrad`]; none if [`Pass::wants_epsilon`] says so.
    pub epsilon: Option<Tensor>,
    /// Of the parameters, in the order of [`Layer::params`]; none for those that have none.
    pub gradients: List<Option<Tensor>>,
}

/// A layer: what it needs, and what it computes. It holds no numbers; those are the network's.
///
/// A layer of one's own has [`Layer::activate`] alone, and is derived by autograd:
///
/// ```
/// use ndgc::train::{InputType, Layer, NetworkConfig, Param, Pass, Updater, OutputLayer, Loss};
/// use ndgc::{Result, Tensor};
///
/// /// Each feature times a learnt number.
/// #[derive(Debug)]
/// struct Scale;
///
/// impl Layer for Scale {
///     fn kind(&self) -> &str {
///         "Scale"
///     }
///     fn output_type(&self, input: InputType) -> Result<InputType> {
///         Ok(input)
///     }
///     fn params(&self, input: InputType) -> Result<Vec<Param>> {
///         Ok(vec![Param::gain("s", input.size(), 1.)])
///     }
///     fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
///         pass.result(|| x.broadcast_mul(pass.param(0)?))
///     }
/// }
///
/// let net = NetworkConfig::builder()
///     .updater(Updater::sgd(0.1))
///     .input_type(InputType::feed_forward(4))
///     .layer(Scale)
///     .layer(OutputLayer::new(2, Loss::Mse))
///     .build()?;
/// assert_eq!(net.num_params(), 4 + 4 * 2 + 2);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub trait Layer: Any + fmt::Debug + Send + Sync {
    /// Its name in tables.
    fn kind(&self) -> &str;

    /// What comes out for what goes in.
    ///
    /// # Errors
    /// [`Error::Argument`] for an input that it cannot have.
    fn output_type(&self, input: InputType) -> Result<InputType>;

    /// Its parameters for an input; none by default.
    ///
    /// # Errors
    /// As [`Layer::output_type`].
    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let _ = input;
        Ok(Vec::new())
    }

    /// The output for an input: an array in the workspace of [`ArrayType::Activations`] ([`Pass::result`]); elsewhere
    /// made ones are copied there.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor>;

    /// The gradients of input and parameters from that of the output, `epsilon`. `None`, the default: by autograd.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn backprop_gradient(&self, x: &Tensor, epsilon: &Tensor, pass: &Pass<'_>) -> Result<Option<Backprop>> {
        let _ = (x, epsilon, pass);
        Ok(None)
    }

    /// Whether [`Layer::backprop_gradient`] gives gradients.
    fn has_own_backprop(&self) -> bool {
        false
    }

    /// The scores of examples, `[n]`, of a layer that ends a network; `None`, the default, for others.
    ///
    /// # Errors
    /// As [`Loss::scores`].
    fn scores(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let _ = (x, labels, mask, pass);
        Ok(None)
    }

    /// The mean of [`Layer::scores`], which training follows; a layer that has it at less cost says how.
    ///
    /// # Errors
    /// As [`Layer::scores`].
    fn score(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        self.scores(x, labels, mask, pass)?.map(|scores| mean_of(&scores)).transpose()
    }

    /// The loss of a layer that ends a network.
    fn loss(&self) -> Option<Loss> {
        None
    }

    /// Whether the output for a series has no steps any more that its mask could be for. A mask of other inputs, which
    /// is of examples, holds for the output too.
    fn ends_mask(&self) -> bool {
        false
    }

    /// Whether the input is numbers of rows, as of an embedding: a network gives them as they come, and does not make
    /// them of its own type of floats.
    fn takes_indices(&self) -> bool {
        false
    }

    /// A layer for one network alone, if this one holds more than settings.
    ///
    /// # Errors
    /// Those of what is made.
    fn instance(&self, dtype: DType, device: &Device) -> Result<Option<Arc<dyn Layer>>> {
        let _ = (dtype, device);
        Ok(None)
    }

    /// The layer with settings of its own.
    fn with(self, settings: LayerSettings) -> LayerConfig
    where
        Self: Sized + 'static,
    {
        LayerConfig { layer: Arc::new(self), settings }
    }
}

/// What one layer has instead of what the network says; each is the network's until it is set.
///
/// ```
/// use ndgc::train::{Dense, InputType, Layer, LayerSettings, Loss, NetworkConfig, OutputLayer, Updater};
/// use ndgc::{DType, Device, Tensor};
///
/// let frozen = Dense::new(4).with(LayerSettings::new().updater(Updater::NoOp));
/// let config = NetworkConfig::builder().updater(Updater::adam(0.1)).input_type(InputType::feed_forward(3));
/// let mut net = config.layer(frozen).layer(OutputLayer::new(3, Loss::Mse)).build()?;
/// let before = net.param("0_W").unwrap().to_vec2::<f32>()?;
/// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
/// net.fit_arrays(&x, &x)?;
/// assert_eq!(net.param("0_W").unwrap().to_vec2::<f32>()?, before);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LayerSettings {
    pub(super) updater: Option<Updater>,
    pub(super) bias_updater: Option<Updater>,
    pub(super) weight_init: Option<WeightInit>,
    pub(super) regularization: Option<Regularization>,
    pub(super) bias_regularization: Option<Regularization>,
    pub(super) normalization: Option<(GradientNormalization, f64)>,
    pub(super) dropout: Option<f64>,
}

impl LayerSettings {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// How its parameters follow their gradients; [`Updater::NoOp`] freezes them.
    pub fn updater(mut self, updater: Updater) -> Self {
        self.updater = Some(updater);
        self
    }

    /// The same for biases alone.
    pub fn bias_updater(mut self, updater: Updater) -> Self {
        self.bias_updater = Some(updater);
        self
    }

    /// How its weights begin.
    pub fn weight_init(mut self, init: WeightInit) -> Self {
        self.weight_init = Some(init);
        self
    }

    /// Penalties on its weights.
    pub fn regularization(mut self, regularization: Regularization) -> Self {
        self.regularization = Some(regularization);
        self
    }

    /// Penalties on its biases.
    pub fn bias_regularization(mut self, regularization: Regularization) -> Self {
        self.bias_regularization = Some(regularization);
        self
    }

    /// How its gradients are kept small.
    pub fn gradient_normalization(mut self, normalization: GradientNormalization, threshold: f64) -> Self {
        self.normalization = Some((normalization, threshold));
        self
    }

    /// The share of its input that is set to 0 in training, of 0 to below 1, and 0 where that is numbers of rows, as of
    /// an [`Embedding`](super::Embedding). DL4J's number is the share that stays.
    pub fn dropout(mut self, share: f64) -> Self {
        self.dropout = Some(share);
        self
    }
}

/// A layer with its settings.
#[derive(Clone, Debug)]
pub struct LayerConfig {
    pub(super) layer: Arc<dyn Layer>,
    pub(super) settings: LayerSettings,
}

impl<L: Layer + 'static> From<L> for LayerConfig {
    fn from(layer: L) -> Self {
        layer.with(LayerSettings::default())
    }
}

/// What a share of dropout is.
pub(super) const SHARE: &str = "at least 0 and less than 1";

/// Whether a number is a share of dropout.
pub(super) fn is_share(number: f64) -> bool {
    (0.0..1.0).contains(&number)
}

/// An error for an input that a layer cannot have.
pub(super) fn wrong_input<T>(layer: &'static str, input: InputType, expected: &'static str) -> Result<T> {
    Err(Error::argument(layer, "input", input, expected))
}
