//! Recurrent networks: one layer, `[batch, time, features]`.

use crate::base::{call::Call, heap};
use crate::nn::{
    init::{self, Init},
    var_builder::VarBuilder,
};
use crate::{DType, Device, Result, Tensor};

/// A network with a state that each step replaces.
#[allow(clippy::upper_case_acronyms)] // candle's name
pub trait RNN {
    /// What a step hands to the next.
    type State: Clone;

    /// The state before the first step, for a batch of this size.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn zero_state(&self, batch_dim: usize) -> Result<Self::State>;

    /// One step with an input `[batch, features]`.
    ///
    /// # Errors
    /// As the operations inside.
    fn step(&self, input: &Tensor, state: &Self::State) -> Result<Self::State>;

    /// The states after each step of `[batch, time, features]`.
    ///
    /// # Errors
    /// As [`RNN::step`].
    #[track_caller]
    fn seq(&self, input: &Tensor) -> Result<Vec<Self::State>> {
        self.seq_init(input, &self.zero_state(input.dim(0)?)?)
    }

    /// As [`RNN::seq`], from a given state.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is no room for so many states; as [`RNN::step`].
    #[track_caller]
    fn seq_init(&self, input: &Tensor, init_state: &Self::State) -> Result<Vec<Self::State>> {
        let call = Call::here("seq");
        let (_, time, _) = input.dims3()?;
        let mut states: Vec<Self::State> = call.named(heap::room(call.op, time))?;
        for t in 0..time {
            let next = self.step(
                &input.compose("seq", || input.get_on_dim(1, t)?.contiguous())?,
                states.last().unwrap_or(init_state),
            )?;
            states.push(next);
        }
        Ok(states)
    }

    /// The outputs of states, as one array.
    ///
    /// # Errors
    /// As [`Tensor::stack`].
    fn states_to_tensor(&self, states: &[Self::State]) -> Result<Tensor>;
}

/// `x wᵀ + b` for what comes in and what was there: the two halves of every gate.
#[derive(Clone, Debug)]
struct Gates {
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Option<Tensor>,
    b_hh: Option<Tensor>,
    hidden_dim: usize,
    device: Device,
    dtype: DType,
}

/// A bias, if there is one.
#[track_caller]
fn bias(vb: &VarBuilder, rows: usize, name: &str, init: Option<Init>) -> Result<Option<Tensor>> {
    match init {
        Some(init) => Ok(Some(vb.get_with_hints(rows, name, init)?)),
        None => Ok(None),
    }
}

impl Gates {
    /// `count` gates of weights `[count * hidden, in]` and `[count * hidden, hidden]`, named with an ending.
    #[track_caller]
    fn new(
        [in_dim, hidden_dim, count]: [usize; 3],
        [w_ih, w_hh]: [Init; 2],
        [b_ih, b_hh]: [Option<Init>; 2],
        ending: &str,
        vb: &VarBuilder,
    ) -> Result<Self> {
        // More rows than there are numbers are refused with their shape.
        let rows = count.saturating_mul(hidden_dim);
        Ok(Gates {
            w_ih: vb.get_with_hints((rows, in_dim), &format!("weight_ih_{ending}"), w_ih)?,
            w_hh: vb.get_with_hints((rows, hidden_dim), &format!("weight_hh_{ending}"), w_hh)?,
            b_ih: bias(vb, rows, &format!("bias_ih_{ending}"), b_ih)?,
            b_hh: bias(vb, rows, &format!("bias_hh_{ending}"), b_hh)?,
            hidden_dim,
            device: vb.device().clone(),
            dtype: vb.dtype(),
        })
    }

    #[track_caller]
    fn halves(&self, input: &Tensor, h: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((input.linear(&self.w_ih, self.b_ih.as_ref())?, h.linear(&self.w_hh, self.b_hh.as_ref())?))
    }

    /// One of the gates that lie side by side.
    #[track_caller]
    fn part(&self, gates: &Tensor, place: usize) -> Result<Tensor> {
        gates.narrow(1, place * self.hidden_dim, self.hidden_dim)
    }

    #[track_caller]
    fn zeros(&self, batch: usize) -> Result<Tensor> {
        Tensor::zeros((batch, self.hidden_dim), self.dtype, &self.device)
    }
}

/// What a step of an [`LSTM`] hands on.
#[derive(Clone, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct LSTMState {
    /// The output.
    pub h: Tensor,
    /// The memory.
    pub c: Tensor,
}

impl LSTMState {
    /// A given state.
    pub fn new(h: Tensor, c: Tensor) -> Self {
        LSTMState { h, c }
    }

    /// The output.
    pub fn h(&self) -> &Tensor {
        &self.h
    }

    /// The memory.
    pub fn c(&self) -> &Tensor {
        &self.c
    }
}

/// Which weights of a file in PyTorch's naming are meant.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// Those without an ending.
    Forward,
    /// Those that end in `_reverse`.
    Backward,
}

/// How an [`LSTM`] begins.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct LSTMConfig {
    /// Weights of the input.
    pub w_ih_init: Init,
    /// Weights of the state.
    pub w_hh_init: Init,
    /// Biases of the input, if there are any.
    pub b_ih_init: Option<Init>,
    /// Biases of the state, if there are any.
    pub b_hh_init: Option<Init>,
    /// The number in the weights' names.
    pub layer_idx: usize,
    /// The ending of the weights' names.
    pub direction: Direction,
}

impl Default for LSTMConfig {
    fn default() -> Self {
        LSTMConfig { b_ih_init: Some(init::ZERO), b_hh_init: Some(init::ZERO), ..Self::default_no_bias() }
    }
}

impl LSTMConfig {
    /// Without biases.
    pub fn default_no_bias() -> Self {
        let weights = init::DEFAULT_KAIMING_UNIFORM;
        LSTMConfig {
            w_ih_init: weights,
            w_hh_init: weights,
            b_ih_init: None,
            b_hh_init: None,
            layer_idx: 0,
            direction: Direction::Forward,
        }
    }
}

/// Long short-term memory; gates in PyTorch's order: input, forget, cell, output.
#[derive(Clone, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct LSTM {
    gates: Gates,
    config: LSTMConfig,
}

impl LSTM {
    /// With weights out of `vb`, in PyTorch's names.
    ///
    /// # Errors
    /// As [`VarBuilder::get_with_hints`].
    #[track_caller]
    pub fn new(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<Self> {
        let LSTMConfig { w_ih_init, w_hh_init, b_ih_init, b_hh_init, layer_idx, direction } = config;
        let reverse = if matches!(direction, Direction::Backward) { "_reverse" } else { "" };
        let ending = format!("l{layer_idx}{reverse}");
        let (weights, biases) = ([w_ih_init, w_hh_init], [b_ih_init, b_hh_init]);
        Ok(LSTM { gates: Gates::new([in_dim, hidden_dim, 4], weights, biases, &ending, &vb)?, config })
    }

    /// How it began.
    pub fn config(&self) -> &LSTMConfig {
        &self.config
    }
}

/// As [`LSTM::new`].
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
///
/// ```
/// # use ndgc::{nn, nn::RNN, DType, Device, Tensor};
/// let weights = nn::VarMap::new();
/// let vb = nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let lstm = nn::lstm(3, 4, nn::LSTMConfig::default(), vb)?;
/// let states = lstm.seq(&Tensor::ones((2, 5, 3), DType::F32, &Device::Cpu)?)?; // [batch, time, features]
/// assert_eq!((states.len(), states[4].h().dims()), (5, &[2, 4][..]));
/// assert_eq!(lstm.states_to_tensor(&states)?.dims(), [2, 5, 4]);
/// assert!(weights.data().lock().unwrap().contains_key("weight_ih_l0")); // PyTorch's names
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn lstm(in_dim: usize, hidden_dim: usize, config: LSTMConfig, vb: VarBuilder) -> Result<LSTM> {
    LSTM::new(in_dim, hidden_dim, config, vb)
}

impl RNN for LSTM {
    type State = LSTMState;

    #[track_caller]
    fn zero_state(&self, batch_dim: usize) -> Result<LSTMState> {
        let zeros = self.gates.zeros(batch_dim)?;
        Ok(LSTMState { h: zeros.clone(), c: zeros })
    }

    /// The state belongs to the owner of the input.
    #[track_caller]
    fn step(&self, input: &Tensor, state: &LSTMState) -> Result<LSTMState> {
        let [h, c] = input.compose_all("lstm", || {
            let (x, h) = self.gates.halves(input, &state.h)?;
            let gates = x.add(&h)?;
            let gate = |place| self.gates.part(&gates, place);
            let kept = gate(1)?.sigmoid()?.mul(&state.c)?;
            let c = kept.add(&gate(0)?.sigmoid()?.mul(&gate(2)?.tanh()?)?)?;
            Ok([gate(3)?.sigmoid()?.mul(&c.tanh()?)?, c])
        })?;
        Ok(LSTMState { h, c })
    }

    /// `[batch, time, hidden]`.
    #[track_caller]
    fn states_to_tensor(&self, states: &[LSTMState]) -> Result<Tensor> {
        let outputs: Vec<&Tensor> = states.iter().map(LSTMState::h).collect();
        Tensor::stack(&outputs, 1)
    }
}

/// What a step of a [`GRU`] hands on.
#[derive(Clone, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct GRUState {
    /// The output.
    pub h: Tensor,
}

impl GRUState {
    /// The output.
    pub fn h(&self) -> &Tensor {
        &self.h
    }
}

/// How a [`GRU`] begins.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct GRUConfig {
    /// Weights of the input.
    pub w_ih_init: Init,
    /// Weights of the state.
    pub w_hh_init: Init,
    /// Biases of the input, if there are any.
    pub b_ih_init: Option<Init>,
    /// Biases of the state, if there are any.
    pub b_hh_init: Option<Init>,
}

impl Default for GRUConfig {
    fn default() -> Self {
        GRUConfig { b_ih_init: Some(init::ZERO), b_hh_init: Some(init::ZERO), ..Self::default_no_bias() }
    }
}

impl GRUConfig {
    /// Without biases.
    pub fn default_no_bias() -> Self {
        let weights = init::DEFAULT_KAIMING_UNIFORM;
        GRUConfig { w_ih_init: weights, w_hh_init: weights, b_ih_init: None, b_hh_init: None }
    }
}

/// A gated recurrent unit; gates in PyTorch's order: reset, update, new.
#[derive(Clone, Debug)]
#[allow(clippy::upper_case_acronyms)] // candle's name
pub struct GRU {
    gates: Gates,
    config: GRUConfig,
}

impl GRU {
    /// With weights out of `vb`, in PyTorch's names.
    ///
    /// # Errors
    /// As [`VarBuilder::get_with_hints`].
    #[track_caller]
    pub fn new(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<Self> {
        let (weights, biases) = ([config.w_ih_init, config.w_hh_init], [config.b_ih_init, config.b_hh_init]);
        Ok(GRU { gates: Gates::new([in_dim, hidden_dim, 3], weights, biases, "l0", &vb)?, config })
    }

    /// How it began.
    pub fn config(&self) -> &GRUConfig {
        &self.config
    }
}

/// As [`GRU::new`].
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
///
/// ```
/// # use ndgc::{nn, nn::RNN, DType, Device, Tensor};
/// let vb = nn::VarBuilder::from_varmap(&nn::VarMap::new(), DType::F32, &Device::Cpu);
/// let gru = nn::gru(3, 4, nn::GRUConfig::default(), vb)?;
/// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
/// let first = gru.step(&x, &gru.zero_state(2)?)?; // step by step
/// let second = gru.step(&x, &first)?;
/// assert_eq!(second.h().dims(), [2, 4]);
/// assert_eq!(gru.states_to_tensor(&[first, second])?.dims(), [2, 2 * 4]); // side by side, as in candle
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn gru(in_dim: usize, hidden_dim: usize, config: GRUConfig, vb: VarBuilder) -> Result<GRU> {
    GRU::new(in_dim, hidden_dim, config, vb)
}

impl RNN for GRU {
    type State = GRUState;

    #[track_caller]
    fn zero_state(&self, batch_dim: usize) -> Result<GRUState> {
        Ok(GRUState { h: self.gates.zeros(batch_dim)? })
    }

    /// The state belongs to the owner of the input.
    #[track_caller]
    fn step(&self, input: &Tensor, state: &GRUState) -> Result<GRUState> {
        let h = input.compose("gru", || {
            let (x, h) = self.gates.halves(input, &state.h)?;
            let gate = |half: &Tensor, place| self.gates.part(half, place);
            let reset = gate(&x, 0)?.add(&gate(&h, 0)?)?.sigmoid()?;
            let update = gate(&x, 1)?.add(&gate(&h, 1)?)?.sigmoid()?;
            let new = gate(&x, 2)?.add(&reset.mul(&gate(&h, 2)?)?)?.tanh()?;
            // (1 - update) * new + update * h
            update.mul(&state.h.sub(&new)?)?.add(&new)
        })?;
        Ok(GRUState { h })
    }

    /// `[batch, time * hidden]`, as candle has it.
    #[track_caller]
    fn states_to_tensor(&self, states: &[GRUState]) -> Result<Tensor> {
        let outputs: Vec<&Tensor> = states.iter().map(GRUState::h).collect();
        Tensor::cat(&outputs, 1)
    }
}
