//! Recurrent layers: `[n, in, t]` to `[n, out, t]`.
//!
//! Letters: n batch, t time, h hidden numbers.

use ndgc::{Result, Tensor, is_grad_enabled};

use super::super::activation::Activation;
use super::super::layer::{InputType, Layer, Param, Pass, Start, unfit};
use super::super::workspaces::ArrayType;

/// A step: from what the input gives (`[n, gates * h]`) and the states before, the states after; the first is the
/// output.
type Step<'s> = dyn Fn(&Tensor, &[Tensor]) -> Result<Vec<Tensor>> + 's;

/// Runs a recurrent layer over the steps of `x`, with `count` states of `hidden` numbers, which begin as 0 or as the
/// last pass left them. Where a mask has 0, the states become 0, as in DL4J.
fn run(x: &Tensor, pass: &Pass<'_>, hidden: usize, count: usize, step: &Step<'_>) -> Result<Tensor> {
    let (n, size, steps) = x.dims3()?;
    let (weight, bias) = (pass.param(0)?, pass.param(2)?);
    let all = x.permute((2, 0, 1))?.reshape((steps * n, size))?.addmm(bias, weight)?;
    let all = all.reshape((steps, n, weight.dim(1)?))?;
    let mask = pass.mask().map(|mask| mask.to_dtype(x.dtype())).transpose()?;
    let mut states = pass.memory();
    if states.len() != count || states.iter().any(|state| state.dims() != [n, hidden]) {
        states = vec![Tensor::zeros((n, hidden), x.dtype(), x.device())?; count];
    }
    let mut outputs = Vec::with_capacity(steps);
    for t in 0..steps {
        // What a step needs is used again by the next one, unless it is needed for gradients.
        let room =
            if is_grad_enabled() { None } else { Some(pass.workspaces().enter(ArrayType::RnnFfLoopWorkingMem)?) };
        let mut next = step(&all.get(t)?, &states)?;
        if let Some(mask) = &mask {
            let column = mask.narrow(1, t, 1)?;
            next = next.iter().map(|state| state.broadcast_mul(&column)).collect::<Result<_>>()?;
        }
        if room.is_some() {
            let keep = |state: &Tensor| pass.workspaces().leverage_to(ArrayType::FfWorkingMem, state);
            next = next.iter().map(keep).collect::<Result<_>>()?;
        }
        drop(room);
        states = next;
        outputs.push(states[0].clone());
    }
    pass.remember(&states.iter().collect::<Vec<_>>())?;
    pass.result(|| Tensor::stack(&outputs, 2))
}

fn series(layer: &'static str, n_out: usize, input: InputType) -> Result<InputType> {
    match input {
        InputType::Recurrent { .. } => Ok(InputType::recurrent(n_out)),
        _ => unfit(layer, input, "a series; give input_type(InputType::recurrent(..))"),
    }
}

/// `W` of the input, `RW` of the state and `b`, for so many gates.
fn gates(input: InputType, hidden: usize, gates: usize, bias: Vec<f64>) -> Vec<Param> {
    let (size, wide) = (input.size(), gates * hidden);
    let bias = Param { start: Start::Values(bias), ..Param::bias("b", wide, 0.0) };
    vec![Param::weight("W", (size, wide), [size, hidden]), Param::weight("RW", (hidden, wide), [hidden, hidden]), bias]
}

/// Long short-term memory without peepholes. Gates lie as in DL4J: block input, forget, output, input; `W` is
/// `[in, 4 h]`, `RW` `[h, 4 h]`, `b` `[4 h]`.
///
/// ```
/// use ndgc::train::Lstm;
///
/// let layer = Lstm::new(128); // tanh, forget bias 1
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
pub struct Lstm {
    hidden: usize,
    activation: Activation,
    forget_bias: f64,
}

impl Lstm {
    /// With so many outputs, a tanh, and a forget gate whose bias begins as 1.
    pub fn new(n_out: usize) -> Self {
        Lstm { hidden: n_out, activation: Activation::Tanh, forget_bias: 1.0 }
    }

    /// What the block input and the memory go through.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// What the bias of the forget gate begins as.
    pub fn forget_gate_bias_init(mut self, value: f64) -> Self {
        self.forget_bias = value;
        self
    }
}

impl Layer for Lstm {
    fn kind(&self) -> &str {
        "LSTM"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        series("lstm", self.hidden, input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let hidden = self.hidden;
        let forget = hidden..2 * hidden;
        let bias = (0..4 * hidden).map(|i| if forget.contains(&i) { self.forget_bias } else { 0.0 }).collect();
        Ok(gates(input, hidden, 4, bias))
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (hidden, weight) = (self.hidden, pass.param(1)?);
        run(x, pass, hidden, 2, &|x, states| {
            let z = states[0].matmul(weight)?.add(x)?;
            let gate = |place: usize| z.narrow(1, place * hidden, hidden);
            let kept = gate(1)?.sigmoid()?.mul(&states[1])?;
            let c = kept.add(&gate(3)?.sigmoid()?.mul(&self.activation.forward(&gate(0)?)?)?)?;
            Ok(vec![gate(2)?.sigmoid()?.mul(&self.activation.forward(&c)?)?, c])
        })
    }
}

/// A gated recurrent unit. Gates lie as in PyTorch: reset, update, new; `W` is `[in, 3 h]`, `RW` `[h, 3 h]`, `b`
/// `[3 h]`, and `Rb` `[3 h]` the bias of the state's half.
#[derive(Clone, Debug)]
pub struct Gru {
    hidden: usize,
}

impl Gru {
    /// With so many outputs.
    pub fn new(n_out: usize) -> Self {
        Gru { hidden: n_out }
    }
}

impl Layer for Gru {
    fn kind(&self) -> &str {
        "GRU"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        series("gru", self.hidden, input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let mut params = gates(input, self.hidden, 3, vec![0.0; 3 * self.hidden]);
        params.push(Param::bias("Rb", 3 * self.hidden, 0.0));
        Ok(params)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (hidden, weight, bias) = (self.hidden, pass.param(1)?, pass.param(3)?);
        run(x, pass, hidden, 1, &|x, states| {
            let h = &states[0];
            let z = h.addmm(bias, weight)?;
            let gate = |half: &Tensor, place: usize| half.narrow(1, place * hidden, hidden);
            let reset = gate(x, 0)?.add(&gate(&z, 0)?)?.sigmoid()?;
            let update = gate(x, 1)?.add(&gate(&z, 1)?)?.sigmoid()?;
            let new = gate(x, 2)?.add(&reset.mul(&gate(&z, 2)?)?)?.tanh()?;
            Ok(vec![update.mul(&h.sub(&new)?)?.add(&new)?])
        })
    }
}

/// `activation(x W + h RW + b)`.
#[derive(Clone, Debug)]
pub struct SimpleRnn {
    hidden: usize,
    activation: Activation,
}

impl SimpleRnn {
    /// With so many outputs, and a tanh.
    pub fn new(n_out: usize) -> Self {
        SimpleRnn { hidden: n_out, activation: Activation::Tanh }
    }

    /// With another activation.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }
}

impl Layer for SimpleRnn {
    fn kind(&self) -> &str {
        "SimpleRnn"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        series("simple_rnn", self.hidden, input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        Ok(gates(input, self.hidden, 1, vec![0.0; self.hidden]))
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let weight = pass.param(1)?;
        run(x, pass, self.hidden, 1, &|x, states| {
            Ok(vec![self.activation.forward(&states[0].matmul(weight)?.add(x)?)?])
        })
    }
}

/// The last step of a series that counts: `[n, size, t]` to `[n, size]`.
#[derive(Clone, Debug, Default)]
pub struct LastTimeStep;

impl Layer for LastTimeStep {
    fn kind(&self) -> &str {
        "LastTimeStep"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        series("last_time_step", 0, input)?;
        Ok(InputType::feed_forward(input.size()))
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (_, _, steps) = x.dims3()?;
        let Some(mask) = pass.mask() else {
            return pass.result(|| x.compose("last_time_step", || x.get_on_dim(2, steps - 1)?.contiguous()));
        };
        let mask = mask.to_dtype(x.dtype())?;
        // Counted from the end, the last step that counts is the first one.
        let counted = mask.flip(&[1])?.cumsum(1)?.flip(&[1])?;
        let last = counted.eq(1.0)?.to_dtype(x.dtype())?.mul(&mask)?.unsqueeze(1)?;
        pass.result(|| x.compose("last_time_step", || x.broadcast_mul(&last)?.sum(2)))
    }

    fn ends_mask(&self) -> bool {
        true
    }
}
