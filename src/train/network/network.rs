//! A network: its nodes in the order in which they are computed, their parameters, and its workspaces.

use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndgc::{
    AllocationPolicy, DType, Error, Generator, LearningPolicy, NdManager, ResetPolicy, Result, SpillPolicy, Tensor,
    Var, Workspace, WorkspaceConfig, called_at, no_grad,
};

use super::super::place::called_here;
use super::config::{NetworkConfig, OpConfig};
use super::layer::{InputType, Layer, LayerSettings, Param, ParamKind, SHARE, Start, is_share};
use super::regularization::{GradientNormalization, Regularization};
use super::settings;
use super::updater::Updater;
use super::vertex::GraphVertex;
use super::weight_init::WeightInit;
use super::workspaces::{ArrayType, LayerWorkspaceMgr, LayerWorkspaceMgrBuilder, NetworkId, WORKSPACES, WorkspaceMode};

/// Layers, their parameters, and what trains them.
///
/// Made by [`NetworkConfig::build`]. Parameters are owned by the network; what [`Network::output`] and its kin return
/// is owned by its handles, and needs nothing of the network. Memory for what a step makes is used again by the next
/// step (see [`WorkspaceMode`]), so that after the first steps nothing is asked of the system; a network that is
/// dropped gives it back, if that happens on the thread that used it; the threads of a
/// [`ParallelInference`](crate::train::ParallelInference) do so when it has another model.
///
/// ```
/// use ndgc::train::{Activation, DataSet, Dense, InputType, Loss, NetworkConfig, OutputLayer, Updater};
/// use ndgc::{Device, Tensor};
///
/// let mut net = NetworkConfig::builder()
///     .seed(1)
///     .updater(Updater::adam(0.1))
///     .input_type(InputType::feed_forward(2))
///     .layer(Dense::new(8).activation(Activation::Tanh))
///     .layer(OutputLayer::new(2, Loss::Mcxent))
///     .build()?;
/// let xor = DataSet::new(
///     Tensor::new(&[[0f32, 0.], [0., 1.], [1., 0.], [1., 1.]], &Device::Cpu)?,
///     Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.], [1., 0.]], &Device::Cpu)?,
/// )?;
/// for _ in 0..100 {
///     net.fit_batch(&xor)?;
/// }
/// assert_eq!(net.output(&xor.features)?.argmax(1)?.to_vec1::<u32>()?, [0, 1, 1, 0]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Debug)]
pub struct Network {
    pub(super) config: NetworkConfig,
    pub(super) nodes: Vec<Node>,
    /// The nodes whose results are asked for.
    pub(super) outputs: Vec<usize>,
    /// Inputs whose masks meet in what a node makes, and whether that is a series.
    pub(super) meeting: Vec<(Vec<usize>, bool)>,
    /// Whether each node has the one before as its only input.
    pub(super) is_chain: bool,
    pub(super) training: LayerWorkspaceMgr,
    /// As `training`, for results that are computed again: they go into the layer's room.
    pub(super) again: LayerWorkspaceMgr,
    pub(super) inference: LayerWorkspaceMgr,
    /// Ends the names of its workspaces, so that no other network's are meant.
    pub(super) id: NetworkId,
    /// Whose budgets it counts within.
    pub(super) payer: Option<NdManager>,
    pub(super) iteration: u64,
    pub(super) epoch: u64,
    pub(super) score: f64,
    /// Which of several replicas it is: each draws numbers of its own.
    pub(super) rank: u64,
    /// Held by who asks for gradients of a network that threads share.
    pub(super) turn: Mutex<()>,
    /// Behind a lock, so that threads may share the network for its outputs; only those who have it alone use them.
    pub(super) listeners: Mutex<Vec<Box<dyn TrainingListener>>>,
}

/// A layer or a vertex in its place.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) op: Op,
    pub(super) inputs: Vec<Source>,
    /// The inputs of the network whose masks say what of its result is there; none if all is.
    pub(super) masked_by: Vec<usize>,
    pub(super) output: InputType,
    pub(super) vars: Vec<Var>,
    pub(super) params: Vec<ParamInfo>,
    pub(super) normalization: (GradientNormalization, f64),
    pub(super) dropout: f64,
    /// Whether gradients are wanted of what it computes: it, or what is before it, has parameters.
    pub(super) wants_grad: bool,
    /// Whether its result is needed for the scores: an output that no other node uses is not.
    pub(super) feeds_others: bool,
    /// What a recurrent layer leaves for the next pass.
    pub(super) memory: Mutex<Vec<Tensor>>,
    /// What a layer with its own backward pass keeps of the way forward.
    pub(super) cache: Mutex<Vec<Tensor>>,
}

#[derive(Debug)]
pub(super) enum Op {
    Layer(Arc<dyn Layer>),
    Vertex(Arc<dyn GraphVertex>),
}

/// Where an input of a node comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Input(usize),
    Node(usize),
}

/// What is known of a parameter beside its numbers.
#[derive(Debug)]
pub(super) struct ParamInfo {
    /// With the node's name, as `0_W`.
    pub(super) name: String,
    pub(super) kind: ParamKind,
    pub(super) updater: Updater,
    pub(super) regularization: Regularization,
    /// Whether it is a module's own, which may change it itself, as running means.
    pub(super) is_given: bool,
    /// What the updater keeps; made by the first step. Behind a lock, since steps change it while the network is lent.
    state: Mutex<Vec<Tensor>>,
}

impl ParamInfo {
    /// Makes what the updater keeps, if it is not there yet, with names for dumps and reports.
    pub(super) fn begin_state(&self, var: &Var, network: &Network) -> Result<()> {
        let mut state = self.state();
        if state.len() != self.updater.state().len() {
            // It outlives the step.
            let _out = Workspace::scope_out();
            let start = self.updater.state_start();
            let begin = || no_grad(|| Tensor::zeros(*var.shape(), var.dtype(), var.device())?.affine(0.0, start));
            let named = |name: String| -> Result<Tensor> {
                let array = begin()?;
                array.set_name(&format!("network#{} updater.{name}", network.id))?;
                network.payer.iter().try_for_each(|payer| array.attach(payer))?;
                Ok(array)
            };
            *state = self.state_names().map(named).collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// The names of what the updater keeps, as `0_W/M`.
    pub(super) fn state_names(&self) -> impl Iterator<Item = String> {
        self.updater.state().iter().map(|name| format!("{}/{name}", self.name))
    }

    /// What the updater keeps, if it has begun.
    pub(super) fn state(&self) -> MutexGuard<'_, Vec<Tensor>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Op {
    pub(super) fn kind(&self) -> &str {
        match self {
            Op::Layer(layer) => layer.kind(),
            Op::Vertex(vertex) => vertex.kind(),
        }
    }

    pub(super) fn layer(&self) -> Option<&dyn Layer> {
        match self {
            Op::Layer(layer) => Some(&**layer),
            Op::Vertex(_) => None,
        }
    }
}

fn wrong(argument: &'static str, value: &str, expected: &'static str) -> Error {
    Error::argument("network", argument, value, expected)
}

impl NetworkConfig {
    /// The network, with parameters as they begin.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, Lstm, NetworkConfig, OutputLayer};
    ///
    /// let config = NetworkConfig::builder().layer(Lstm::new(4)).layer(OutputLayer::new(2, Loss::Mse));
    /// let net = config.clone().input_type(InputType::recurrent(3)).build()?;
    /// assert_eq!(net.iteration(), 0);
    /// // An LSTM takes series, not rows; the error names the layer.
    /// let error = config.input_type(InputType::feed_forward(3)).build().unwrap_err();
    /// assert!(error.to_string().contains("layer 0 (LSTM)"), "{error}");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a name that is missing or there twice, or is that of what an updater keeps (`0_W/M`), a
    /// graph that is not one, a layer whose input does not fit, a share of dropout that is none, segments of no step,
    /// or a number of an updater, a penalty, a threshold of gradients or a normalisation by which no step could be
    /// made, such as a learning rate below 0 or NaN; as [`Tensor::zeros`].
    #[track_caller]
    pub fn build(self) -> Result<Network> {
        Network::new(self)
    }
}

/// # Making one
impl Network {
    /// The network of a configuration, with parameters as they begin.
    ///
    /// # Errors
    /// As [`NetworkConfig::build`].
    #[track_caller]
    pub fn new(config: NetworkConfig) -> Result<Self> {
        called_at(Location::caller(), || Self::assemble(config, None))
    }

    /// The same, with parameters that begin as arrays of their names, if there are any: then nothing is made that is
    /// larger than they are.
    pub(super) fn assemble(config: NetworkConfig, given: Option<&HashMap<String, Tensor>>) -> Result<Self> {
        // A network outlives the cycle in which it is made.
        let _out = Workspace::scope_out();
        let mut random = Generator::new(config.seed);
        let mut nodes = nodes_of(&config, &mut |param, name, init| {
            let var = match given {
                Some(given) => as_given(param, name, given, config.dtype),
                None => param.var(init, config.dtype, &config.device, &mut random),
            };
            var.map(Some)
        })?;
        let find = |name: &String| nodes.iter().position(|node| node.name == *name);
        let missing = |name: &String| wrong("set_outputs", name, "the name of a layer or vertex");
        let outputs = config.outputs.iter().map(|name| find(name).ok_or_else(|| missing(name)));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        if let Some(at) = (0..outputs.len()).find(|&at| outputs[..at].contains(&outputs[at])) {
            return Err(wrong("set_outputs", &config.outputs[at], "each layer once"));
        }
        if outputs.is_empty() {
            return Err(wrong("set_outputs", "none", "at least one layer"));
        }
        let is_chain = nodes
            .iter()
            .enumerate()
            .all(|(i, node)| node.inputs == [i.checked_sub(1).map_or(Source::Input(0), Source::Node)])
            && outputs == [nodes.len() - 1];
        for &output in &outputs {
            nodes[output].feeds_others = nodes.iter().any(|node| node.inputs.contains(&Source::Node(output)));
        }
        let none = LayerWorkspaceMgr::no_workspaces();
        let mut network = Network {
            config,
            nodes,
            outputs,
            meeting: Vec::new(),
            is_chain,
            training: none.clone(),
            again: none.clone(),
            inference: none,
            id: NetworkId::new(),
            payer: None,
            iteration: 0,
            epoch: 0,
            score: f64::NAN,
            rank: 0,
            turn: Mutex::default(),
            listeners: Mutex::default(),
        };
        network.find_masks();
        network.place()?;
        network.name_params()?;
        Ok(network)
    }

    /// Names the parameters, for dumps and reports, by the number that its workspaces have; not those of a module that
    /// named its own.
    fn name_params(&self) -> Result<()> {
        for (param, var) in self.named().filter(|(_, var)| var.name().is_none()) {
            var.set_name(&format!("network#{} parameters.{}", self.id, param.name))?;
        }
        Ok(())
    }

    /// Says which workspace takes what.
    fn place(&mut self) -> Result<()> {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX / 2).max(1);
        let grows = || WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate);
        let step = grows().overallocation_limit(0.05).build()?;
        let over_time = |cycles| grows().policy_learning(LearningPolicy::OverTime).cycles_before_initialization(cycles);
        let room = over_time(3 * nodes).overallocation_limit(0.02).build()?;
        // Two blocks: what a layer makes lives until the layer after the next one begins.
        let turns = over_time(nodes).policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(1.0);
        let turns = turns.policy_allocation(AllocationPolicy::Overallocate).build()?;
        let [all, act, working, rnn, planning, _] = WORKSPACES.map(|name| format!("{name}#{}", self.id));
        let begun = self.placing();
        let new = || begun.clone();
        let loops = |mgr: LayerWorkspaceMgrBuilder| {
            mgr.with(ArrayType::RnnFfLoopWorkingMem, &rnn, &step).with(ArrayType::RnnBpLoopWorkingMem, &rnn, &step)
        };
        let one = |name: &str, config| loops(new().default_workspace(name, config)).build();
        let single = || one(&all, &step);
        let plans = WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned).build()?;
        let planned = || one(&planning, &plans);
        let apart = || {
            let mgr = loops(new().default_workspace(&working, &room)).with(ArrayType::Input, &all, &step);
            mgr.with(ArrayType::Activations, &all, &step).with(ArrayType::FfCache, &all, &step)
        };
        // In a graph, what a node makes may be wanted much later.
        let (alternating, config) = if self.is_chain { (&act, &turns) } else { (&all, &step) };
        self.training = match self.config.training_mode {
            WorkspaceMode::None => new().default_no_workspace().build(),
            WorkspaceMode::Single => single(),
            WorkspaceMode::Enabled => planned(),
            WorkspaceMode::Separate => apart().with(ArrayType::ActivationGrad, alternating, config).build(),
        };
        self.again = self.training.clone();
        if self.training.workspace_name(ArrayType::BpWorkingMem) == Some(&working) {
            self.again.set_workspace(ArrayType::Activations, &working, &room)?;
        }
        self.inference = match self.config.inference_mode {
            WorkspaceMode::None => new().default_no_workspace().build(),
            WorkspaceMode::Single => single(),
            WorkspaceMode::Enabled => planned(),
            WorkspaceMode::Separate => apart().with(ArrayType::Activations, alternating, config).build(),
        };
        Ok(())
    }
}

/// Refuses two arrays of one name, of which a checkpoint would have one: parameters, as `1_W` of the node `node` and
/// `W` of `node_1`, and what updaters keep of them, as `W/M` beside `W`.
fn each_name_once(nodes: &[Node]) -> Result<()> {
    let mut known = HashSet::new();
    let params = || nodes.iter().flat_map(|node| &node.params);
    if let Some(twice) = params().map(|param| &param.name).find(|name| !known.insert(name.as_str())) {
        return Err(wrong("parameter", twice, "a name that no other layer's parameter has; rename one layer"));
    }
    for param in params() {
        if let Some(kept) = param.state_names().into_iter().find(|name| known.contains(name.as_str())) {
            return Err(wrong("parameter", &kept, "a name that nothing has that an updater keeps; rename it"));
        }
    }
    Ok(())
}

/// The places of the nodes, each after those that it needs.
fn order(config: &NetworkConfig) -> Result<Vec<usize>> {
    let mut known: Vec<&str> = config.inputs.iter().map(|(name, _)| name.as_str()).collect();
    if let Some(at) = (0..known.len()).find(|&at| known[..at].contains(&known[at])) {
        return Err(wrong("add_input", known[at], "a name that nothing else has"));
    }
    let mut left: Vec<usize> = (0..config.nodes.len()).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let ready = |&place: &usize| config.nodes[place].inputs.iter().all(|input| known.contains(&input.as_str()));
        let Some(at) = left.iter().position(ready) else {
            let name = &config.nodes[left[0]].name;
            return Err(wrong("inputs", name, "names of inputs, layers and vertices, without a circle"));
        };
        let place = left.remove(at);
        let node = &config.nodes[place];
        if known.contains(&node.name.as_str()) || node.inputs.is_empty() {
            return Err(wrong("name", &node.name, "a name that nothing else has, and at least one input"));
        }
        if matches!(node.op, OpConfig::Layer(_)) && node.inputs.len() > 1 {
            return Err(wrong("inputs", &node.name, "one input of a layer; a vertex joins several before it"));
        }
        known.push(&node.name);
        order.push(place);
    }
    Ok(order)
}

/// What makes the variable of a parameter, from its name and how weights begin; none where nothing is to be computed.
type Begin<'b> = dyn FnMut(&Param, &str, WeightInit) -> Result<Option<Var>> + 'b;

/// The nodes of a configuration in the order of computation, with their parameters.
pub(super) fn nodes_of(config: &NetworkConfig, begin: &mut Begin<'_>) -> Result<Vec<Node>> {
    settings::check(config)?;
    if config.inputs.is_empty() {
        return Err(wrong("input_type", "none", "what the first layer is given: .input_type(..) or .add_input(..)"));
    }
    let mut nodes: Vec<Node> = Vec::with_capacity(config.nodes.len());
    for place in order(config)? {
        let node = node(config, place, &nodes, begin)?;
        nodes.push(node);
    }
    each_name_once(&nodes)?;
    Ok(nodes)
}

/// A parameter that begins as the array of its name.
fn as_given(param: &Param, name: &str, given: &HashMap<String, Tensor>, dtype: DType) -> Result<Var> {
    let array = given.get(name).ok_or_else(|| Error::no_tensor(name, None, given.keys()))?;
    if array.dims() != param.shape.dims() {
        let why = format!("the parameter {name} has another shape");
        return Err(Error::shape_mismatch("load", param.shape.dims(), array.dims(), why));
    }
    Var::from_tensor(&array.to_dtype(dtype)?)
}

/// A node with its parameters.
fn node(config: &NetworkConfig, place: usize, before: &[Node], begin: &mut Begin<'_>) -> Result<Node> {
    let given = &config.nodes[place];
    let source = |name: &String| {
        let node = before.iter().position(|node| node.name == *name).map(Source::Node);
        node.or_else(|| config.inputs.iter().position(|(input, _)| input == name).map(Source::Input))
    };
    let inputs: Vec<Source> = given.inputs.iter().filter_map(source).collect();
    let types: Vec<InputType> = inputs
        .iter()
        .map(|&input| match input {
            Source::Input(i) => config.inputs[i].1,
            Source::Node(i) => before[i].output,
        })
        .collect();
    let (op, settings, output, params) = match &given.op {
        OpConfig::Vertex(vertex) => {
            (Op::Vertex(Arc::clone(vertex)), &LayerSettings::default(), vertex.output_type(&types)?, Vec::new())
        }
        OpConfig::Layer(layer) => {
            let own = layer.layer.instance(config.dtype, &config.device)?;
            let settings = &layer.settings;
            let layer = own.unwrap_or_else(|| Arc::clone(&layer.layer));
            let in_layer = |error: Error| error.context(format!("layer {} ({})", given.name, layer.kind()));
            let output = layer.output_type(types[0]).map_err(in_layer)?;
            let params = layer.params(types[0]).map_err(in_layer)?;
            (Op::Layer(layer), settings, output, params)
        }
    };
    let dropout = settings.dropout.unwrap_or(0.0);
    if !is_share(dropout) {
        let value = format!("{dropout} in layer {} ({})", given.name, op.kind());
        return Err(wrong("dropout", &value, SHARE));
    }
    if dropout > 0.0 && op.layer().is_some_and(Layer::takes_indices) {
        let value = format!("{dropout} in layer {} ({})", given.name, op.kind());
        return Err(wrong("dropout", &value, "0 in a layer of numbers of rows; another layer may drop its output"));
    }
    let init = settings.weight_init.unwrap_or(config.weight_init);
    let params: Vec<(ParamInfo, Param)> =
        params.into_iter().map(|param| (info(config, settings, &given.name, &param), param)).collect();
    if let Some((info, param)) = params.iter().find(|(_, param)| param.shape.dims().contains(&0)) {
        let value = format!("{} of shape {:?}", info.name, param.shape.dims());
        return Err(wrong("parameter", &value, "one with elements: a layer has inputs and outputs"));
    }
    let mut vars = Vec::with_capacity(params.len());
    for (info, param) in &params {
        vars.extend(begin(param, &info.name, init)?);
    }
    let trained = params.iter().any(|(_, param)| param.kind != ParamKind::State);
    let behind = inputs.iter().any(|&input| matches!(input, Source::Node(i) if before[i].wants_grad));
    Ok(Node {
        op,
        output,
        vars,
        params: params.into_iter().map(|(info, _)| info).collect(),
        name: given.name.clone(),
        normalization: settings.normalization.unwrap_or(config.normalization),
        dropout,
        wants_grad: trained || behind,
        feeds_others: true,
        memory: Mutex::default(),
        cache: Mutex::default(),
        inputs,
        masked_by: Vec::new(),
    })
}

fn info(config: &NetworkConfig, settings: &LayerSettings, node: &str, param: &Param) -> ParamInfo {
    let updater = settings.updater.unwrap_or(config.updater);
    let of_biases = settings.bias_updater.or(settings.updater).or(config.bias_updater).unwrap_or(config.updater);
    ParamInfo {
        name: format!("{node}_{}", param.name),
        kind: param.kind,
        updater: match param.kind {
            ParamKind::Weight | ParamKind::Gain => updater,
            ParamKind::Bias => of_biases,
            ParamKind::State => Updater::NoOp,
        },
        regularization: match param.kind {
            ParamKind::Weight => settings.regularization.unwrap_or(config.regularization),
            ParamKind::Bias => settings.bias_regularization.unwrap_or(config.bias_regularization),
            ParamKind::Gain | ParamKind::State => Regularization::default(),
        },
        is_given: matches!(param.start, Start::Given(_)),
        state: Mutex::default(),
    }
}

/// # Settings, and counts
impl Network {
    /// How training uses workspaces.
    pub fn training_workspace_mode(&self) -> WorkspaceMode {
        self.config.training_mode
    }

    /// How inference uses workspaces.
    pub fn inference_workspace_mode(&self) -> WorkspaceMode {
        self.config.inference_mode
    }

    /// Sets both modes, from the next call on.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer, WorkspaceMode};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(OutputLayer::new(2, Loss::Mse));
    /// let mut net = net.build()?;
    /// let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?;
    /// let before = net.output(&x)?.to_vec2::<f32>()?;
    /// net.set_workspace_modes(WorkspaceMode::Separate, WorkspaceMode::None)?;
    /// assert_eq!(net.output(&x)?.to_vec2::<f32>()?, before); // the numbers are the same in each mode
    /// assert!(net.workspaces().is_empty());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if a workspace of the network is open.
    #[track_caller]
    pub fn set_workspace_modes(&mut self, training: WorkspaceMode, inference: WorkspaceMode) -> Result<()> {
        self.release_workspaces()?;
        (self.config.training_mode, self.config.inference_mode) = (training, inference);
        called_here(self.place())
    }

    /// The places of arrays in a step of training.
    pub fn training_workspaces(&self) -> &LayerWorkspaceMgr {
        &self.training
    }

    /// The places of arrays in inference.
    pub fn inference_workspaces(&self) -> &LayerWorkspaceMgr {
        &self.inference
    }

    /// The workspaces of the network that this thread has.
    pub fn workspaces(&self) -> Vec<Workspace> {
        Workspace::all_for_current_thread().into_iter().filter(|space| self.id.has(space.id())).collect()
    }

    /// Gives the memory of the network's workspaces on this thread back. The next call makes them again.
    ///
    /// # Errors
    /// [`Error::Workspace`] if one is open.
    #[track_caller]
    pub fn release_workspaces(&self) -> Result<()> {
        called_here(self.workspaces().iter().try_for_each(Workspace::destroy))
    }

    /// Has it count within the budgets of a manager: parameters, and what updaters keep, become arrays of that manager,
    /// and the workspaces of each thread that computes with it are [charged](Workspace::charge_to) to it. So do those
    /// of its replicas, a wrapper's workers among them. A manager without a budget of its own gets one, without limits.
    /// What else it makes belongs to its handles and is not counted: outputs, what recurrent layers keep between
    /// calls, and all of a step with [`WorkspaceMode::None`](super::WorkspaceMode::None). The network keeps a handle of
    /// the manager; when that is closed, the parameters are.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{Budget, DType, Device, NdManager, Tensor};
    ///
    /// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
    /// tenant.set_budget(Budget::new().max_bytes(16 << 20))?;
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// let mut net = config.layer(OutputLayer::new(2, Loss::Mse)).build()?;
    /// net.charge_to(&tenant)?;
    /// let of = |columns| Tensor::ones((8, columns), DType::F32, &Device::Cpu);
    /// net.fit_arrays(&of(3)?, &of(2)?)?;
    /// let of_params = 4 * (3 * 2 + 2);
    /// assert!(tenant.budget_use().is_some_and(|found| found.arrays == 2 && found.bytes > of_params));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for the system manager; as [`Tensor::attach`], and then it counts where it did.
    #[track_caller]
    pub fn charge_to(&mut self, manager: &NdManager) -> Result<()> {
        called_at(Location::caller(), || {
            if manager.is_system() {
                return Err(Error::invalid("charge_to", "the system manager has no budget; give a manager below it"));
            }
            let params = self.params().map(|(_, var)| var.as_tensor().clone());
            let arrays: Vec<Tensor> = params.chain(self.known_state().into_iter().map(|(_, array)| array)).collect();
            let owners = arrays.iter().map(|array| array.manager()).collect::<Result<Vec<_>>>()?;
            for (at, array) in arrays.iter().enumerate() {
                if let Err(error) = array.attach(manager) {
                    for (array, owner) in arrays[..at].iter().zip(&owners) {
                        // It stays only where another thread took its room meanwhile.
                        let _ = array.attach(owner);
                    }
                    return Err(error);
                }
            }
            self.payer = Some(manager.clone());
            self.place()
        })
    }

    /// Begins to say which workspace takes what.
    pub(super) fn placing(&self) -> LayerWorkspaceMgrBuilder {
        LayerWorkspaceMgr::builder().device(&self.config.device).charged_to(self.payer.as_ref())
    }

    /// The settings that it was made with.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Steps of the updater so far.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Sets the number of steps so far, which schedules and updaters look at.
    pub fn set_iteration(&mut self, iteration: u64) {
        self.iteration = iteration;
    }

    /// Passes over the data so far.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets the number of passes so far, which schedules look at.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Which of the replicas that train together it is, from 0, as it is alone: each draws random numbers of its own.
    pub(crate) fn set_rank(&mut self, rank: u64) {
        self.rank = rank;
    }

    /// The score of the last batch, before its step; NaN before the first one.
    ///
    /// ```
    /// use ndgc::train::{DataSet, InputType, Loss, NetworkConfig, OutputLayer, WeightInit};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().weight_init(WeightInit::Constant(0.)).input_type(InputType::feed_forward(3));
    /// let mut net = net.layer(OutputLayer::new(2, Loss::Mse)).build()?;
    /// let ones = |columns| Tensor::ones((4, columns), DType::F32, &Device::Cpu);
    /// let batch = DataSet::new(ones(3)?, ones(2)?)?;
    /// assert!(net.score().is_nan());
    /// assert_eq!(net.fit_batch(&batch)?, 1.); // it answered 0 where it should say 1
    /// assert_eq!(net.score(), 1.); // what the step made of it is another question:
    /// assert!(net.score_batch(&batch, false)? < 1.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn score(&self) -> f64 {
        self.score
    }

    /// Calls a listener from now on, after those that are there.
    ///
    /// ```
    /// # use ndgc::train::{InputType, Loss, Network, NetworkConfig, OutputLayer, TrainingListener};
    /// # use ndgc::{DType, Device, Tensor};
    /// use std::sync::mpsc::{Sender, channel};
    ///
    /// #[derive(Debug)]
    /// struct Steps(Sender<u64>);
    ///
    /// impl TrainingListener for Steps {
    ///     fn iteration_done(&mut self, net: &Network) -> ndgc::Result<()> {
    ///         self.0.send(net.iteration()).map_err(ndgc::Error::msg) // an error ends the training
    ///     }
    /// }
    /// # let net = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// # let mut net = net.layer(OutputLayer::new(3, Loss::Mse)).build()?;
    /// # let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?;
    /// let (sender, steps) = channel();
    /// net.add_listener(Steps(sender));
    /// net.fit_arrays(&x, &x)?;
    /// assert_eq!(steps.recv(), Ok(1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn add_listener(&mut self, listener: impl TrainingListener + 'static) {
        self.listeners_mut().push(Box::new(listener));
    }

    /// Takes all listeners away.
    pub fn take_listeners(&mut self) -> Vec<Box<dyn TrainingListener>> {
        std::mem::take(self.listeners_mut())
    }

    pub(super) fn listeners_mut(&mut self) -> &mut Vec<Box<dyn TrainingListener>> {
        self.listeners.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Is told how training goes. Called outside of all workspaces of the network, so it may use the network: ask for
/// outputs, evaluate, save a checkpoint. Between the segments of a series ([`NetworkConfig::tbptt_length`]) the state
/// of recurrent layers is set aside: [`Network::rnn_time_step`] begins anew. Its errors end `fit`.
///
/// ```
/// use ndgc::train::{Network, TrainingListener};
///
/// /// Keeps the scores.
/// #[derive(Debug, Default)]
/// struct Scores(Vec<f64>);
///
/// impl TrainingListener for Scores {
///     fn iteration_done(&mut self, net: &Network) -> ndgc::Result<()> {
///         self.0.push(net.score());
///         Ok(())
///     }
/// }
/// ```
pub trait TrainingListener: std::fmt::Debug + Send {
    /// A pass over the data begins.
    ///
    /// # Errors
    /// What should end the training.
    fn on_epoch_start(&mut self, net: &Network) -> Result<()> {
        let _ = net;
        Ok(())
    }

    /// A step was made: [`Network::iteration`] counts it, [`Network::score`] is the score before it.
    ///
    /// # Errors
    /// What should end the training.
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        let _ = net;
        Ok(())
    }

    /// A pass over the data ended: [`Network::epoch`] counts it.
    ///
    /// # Errors
    /// What should end the training.
    fn on_epoch_end(&mut self, net: &Network) -> Result<()> {
        let _ = net;
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What is open stays; it ends with the thread.
        let _ = self.release_workspaces();
    }
}
