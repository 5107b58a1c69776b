//! What a network is to be like.

use std::sync::Arc;

use ndgc::{DType, Device};

use super::layer::{InputType, LayerConfig};
use super::regularization::{GradientNormalization, Regularization};
use super::updater::Updater;
use super::vertex::{GraphVertex, MergeVertex};
use super::weight_init::WeightInit;
use super::workspaces::WorkspaceMode;

/// The settings of a [`Network`](super::Network), set one after the other; [`NetworkConfig::build`] makes the network.
/// Clones make networks that share nothing.
///
/// A sequence of layers:
///
/// ```
/// use ndgc::train::{Activation, Dense, InputType, Loss, NetworkConfig, OutputLayer, Updater, WorkspaceMode};
///
/// let net = NetworkConfig::builder()
///     .seed(42)
///     .updater(Updater::adam(1e-3))
///     .training_workspace_mode(WorkspaceMode::Separate)
///     .inference_workspace_mode(WorkspaceMode::Single)
///     .input_type(InputType::feed_forward(784))
///     .layer(Dense::new(128).activation(Activation::Relu))
///     .layer(OutputLayer::new(10, Loss::Mcxent))
///     .build()?;
/// assert_eq!(net.num_params(), 784 * 128 + 128 + 128 * 10 + 10);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// A graph, of layers and vertices by name:
///
/// ```
/// use ndgc::train::{Dense, InputType, Loss, MergeVertex, NetworkConfig, OutputLayer};
///
/// let net = NetworkConfig::builder()
///     .add_input("left", InputType::feed_forward(3))
///     .add_input("right", InputType::feed_forward(5))
///     .add_layer("hidden", Dense::new(4), &["left"])
///     .add_vertex("both", MergeVertex, &["hidden", "right"])
///     .add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["both"])
///     .set_outputs(&["out"])
///     .build()?;
/// assert!(net.param("out_W").is_some_and(|weight| weight.dims() == [9, 2]));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    pub(super) nodes: Vec<NodeConfig>,
    pub(super) inputs: Vec<(String, InputType)>,
    pub(super) outputs: Vec<String>,
    pub(super) seed: u64,
    pub(super) updater: Updater,
    pub(super) bias_updater: Option<Updater>,
    pub(super) weight_init: WeightInit,
    pub(super) regularization: Regularization,
    pub(super) bias_regularization: Regularization,
    pub(super) normalization: (GradientNormalization, f64),
    pub(super) dtype: DType,
    pub(super) device: Device,
    pub(super) training_mode: WorkspaceMode,
    pub(super) inference_mode: WorkspaceMode,
    pub(super) tbptt: Option<usize>,
    pub(super) validate: bool,
}

/// A layer or vertex of a configuration, and where its inputs come from.
#[derive(Clone, Debug)]
pub(super) struct NodeConfig {
    pub(super) name: String,
    pub(super) op: OpConfig,
    pub(super) inputs: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum OpConfig {
    Layer(Box<LayerConfig>),
    Vertex(Arc<dyn GraphVertex>),
}

/// The name of the input of a sequence.
const INPUT: &str = "input";

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            seed: 0,
            updater: Updater::sgd(0.1),
            bias_updater: None,
            weight_init: WeightInit::default(),
            regularization: Regularization::default(),
            bias_regularization: Regularization::default(),
            normalization: (GradientNormalization::None, 1.0),
            dtype: DType::F32,
            device: Device::Cpu,
            training_mode: WorkspaceMode::default(),
            inference_mode: WorkspaceMode::default(),
            tbptt: None,
            validate: false,
        }
    }
}

/// # For the whole network
impl NetworkConfig {
    /// Nothing set: gradient descent with a rate of 0.1, [`WeightInit::Xavier`], `f32` on the host, and
    /// [`WorkspaceMode::Enabled`].
    pub fn builder() -> Self {
        Self::default()
    }

    /// Where its random numbers begin: those of weights and of dropout.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    ///
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// let config = config.layer(OutputLayer::new(2, Loss::Mse));
    /// let weights = |seed| config.clone().seed(seed).build()?.param("0_W").unwrap().to_vec2::<f32>();
    /// assert_eq!(weights(1)?, weights(1)?);
    /// assert_ne!(weights(1)?, weights(2)?);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How parameters follow their gradients.
    pub fn updater(mut self, updater: Updater) -> Self {
        self.updater = updater;
        self
    }

    /// The same for biases alone.
    pub fn bias_updater(mut self, updater: Updater) -> Self {
        self.bias_updater = Some(updater);
        self
    }

    /// How weights begin.
    pub fn weight_init(mut self, init: WeightInit) -> Self {
        self.weight_init = init;
        self
    }

    /// A penalty on the sum of the magnitudes of weights.
    pub fn l1(mut self, l1: f64) -> Self {
        self.regularization.l1 = l1;
        self
    }

    /// A penalty on half of the sum of the squares of weights.
    ///
    /// ```
    /// use ndgc::train::{DataSet, InputType, Loss, NetworkConfig, OutputLayer, WeightInit};
    /// use ndgc::{Device, Tensor};
    ///
    /// let config = NetworkConfig::builder().weight_init(WeightInit::Constant(2.)).l2(0.5);
    /// let net = config.input_type(InputType::feed_forward(1)).layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let batch = DataSet::new(Tensor::new(&[[1f32]], &Device::Cpu)?, Tensor::new(&[[2f32]], &Device::Cpu)?)?;
    /// assert_eq!(net.score_batch(&batch, false)?, 1.); // the answer is right: 0.5 * 2^2 / 2 of the penalty
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn l2(mut self, l2: f64) -> Self {
        self.regularization.l2 = l2;
        self
    }

    /// What is taken off weights in each step beside the updater's step, times the learning rate if `apply_rate`.
    pub fn weight_decay(mut self, decay: f64, apply_rate: bool) -> Self {
        self.regularization.weight_decay = decay;
        self.regularization.apply_rate = apply_rate;
        self
    }

    /// Penalties on biases.
    pub fn bias_regularization(mut self, regularization: Regularization) -> Self {
        self.bias_regularization = regularization;
        self
    }

    /// How the gradients of each layer are kept small; the threshold, at least 0, is for those that clip.
    pub fn gradient_normalization(mut self, normalization: GradientNormalization, threshold: f64) -> Self {
        self.normalization = (normalization, threshold);
        self
    }

    /// Type of parameters and activations, a float.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let config = NetworkConfig::builder().data_type(DType::F64).input_type(InputType::feed_forward(3));
    /// let net = config.layer(OutputLayer::new(2, Loss::Mse)).build()?;
    /// let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?; // other floats are converted
    /// assert_eq!(net.output(&x)?.dtype(), DType::F64);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn data_type(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Where parameters and activations are.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// How training uses workspaces.
    pub fn training_workspace_mode(mut self, mode: WorkspaceMode) -> Self {
        self.training_mode = mode;
        self
    }

    /// How `output`, `score` and evaluations use workspaces. It may be another mode than that of training.
    pub fn inference_workspace_mode(mut self, mode: WorkspaceMode) -> Self {
        self.inference_mode = mode;
        self
    }

    /// Longer series are trained in segments of so many steps, at least 1, each a step of the updater; states go on
    /// from one to the next, gradients do not (truncated backpropagation through time).
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, Lstm, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let config = NetworkConfig::builder().tbptt_length(2).input_type(InputType::recurrent(1));
    /// let mut net = config.layer(Lstm::new(3)).layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let series = Tensor::ones((4, 1, 5), DType::F32, &Device::Cpu)?; // four of five steps
    /// net.fit_arrays(&series, &series)?;
    /// assert_eq!(net.iteration(), 3); // of 2, 2 and 1
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn tbptt_length(mut self, steps: usize) -> Self {
        self.tbptt = Some(steps);
        self
    }

    /// Whether a layer whose result lies in another workspace than that of activations is an error, instead of being
    /// copied there: for authors of layers.
    pub fn validate_workspaces(mut self, validate: bool) -> Self {
        self.validate = validate;
        self
    }
}

/// # Layers, in a sequence or a graph
impl NetworkConfig {
    /// What the first layer is given.
    pub fn input_type(mut self, input: InputType) -> Self {
        self.inputs = vec![(INPUT.to_owned(), input)];
        self
    }

    /// The next layer of a sequence. Its parameters are named by its number, as `0_W`.
    pub fn layer(mut self, layer: impl Into<LayerConfig>) -> Self {
        let before = self.nodes.last().map_or(INPUT, |node| &node.name).to_owned();
        let name = self.nodes.len().to_string();
        self.outputs = vec![name.clone()];
        self.nodes.push(NodeConfig { name, op: OpConfig::Layer(Box::new(layer.into())), inputs: vec![before] });
        self
    }

    /// An input of a graph, and what it is given. Arrays of a batch come in the order of these calls.
    pub fn add_input(mut self, name: &str, input: InputType) -> Self {
        self.inputs.push((name.to_owned(), input));
        self
    }

    /// A layer of a graph; of several inputs it is given all side by side, as a [`MergeVertex`](super::MergeVertex)
    /// has them. Its parameters are named by its name, as `hidden_W`.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    ///
    /// let net = NetworkConfig::builder()
    ///     .add_input("left", InputType::feed_forward(3))
    ///     .add_input("right", InputType::feed_forward(5))
    ///     .add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["left", "right"])
    ///     .set_outputs(&["out"])
    ///     .build()?;
    /// assert_eq!(net.param("out_W").unwrap().dims(), [3 + 5, 2]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn add_layer(mut self, name: &str, layer: impl Into<LayerConfig>, inputs: &[&str]) -> Self {
        let mut inputs: Vec<String> = inputs.iter().map(|&input| input.to_owned()).collect();
        if inputs.len() > 1 {
            let merge = format!("{name}-merge");
            self.nodes.push(NodeConfig {
                name: merge.clone(),
                op: OpConfig::Vertex(Arc::new(MergeVertex)),
                inputs: std::mem::take(&mut inputs),
            });
            inputs.push(merge);
        }
        self.nodes.push(NodeConfig { name: name.to_owned(), op: OpConfig::Layer(Box::new(layer.into())), inputs });
        self
    }

    /// A vertex of a graph.
    pub fn add_vertex(mut self, name: &str, vertex: impl GraphVertex + 'static, inputs: &[&str]) -> Self {
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        self.nodes.push(NodeConfig { name: name.to_owned(), op: OpConfig::Vertex(Arc::new(vertex)), inputs });
        self
    }

    /// The layers of a graph whose outputs are asked for, in the order of a batch's labels.
    pub fn set_outputs(mut self, outputs: &[&str]) -> Self {
        self.outputs = outputs.iter().map(|&output| output.to_owned()).collect();
        self
    }
}
