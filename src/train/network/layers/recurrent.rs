//! Recurrent layers: `[n, in, t]` to `[n, out, t]`.
//!
//! Letters: n batch, t time, h hidden numbers.

use ndgc::{Error, Result, Tensor, is_grad_enabled, no_grad};

use super::super::super::shared::same_bytes;
use super::super::activation::Activation;
use super::super::json::json_struct;
use super::super::layer::{Backprop, InputType, Layer, Param, Pass, Start, wrong_input};
use super::super::scratch::List;
use super::super::workspaces::ArrayType;

/// A step: from what the input gives (`[n, gates * h]`), whether that is the step's own to write to, and the states
/// before, the states after; the first is the output.
type Step<'s, const N: usize> = dyn Fn(&Tensor, bool, [&Tensor; N]) -> Result<[Tensor; N]> + 's;

/// Each state of all steps, with those before the first one.
type States<const N: usize> = [List<Tensor>; N];

/// Runs a recurrent layer over the steps of `x`, with states of `hidden` numbers, which begin as 0 or as the last pass
/// left them. Where a mask has 0, the states become 0, as in DL4J. `by_hand`: the layer has a way back of its own,
/// which has what steps wrote to what the input gave, `[t, n, gates * h]`.
fn run<const N: usize>(
    x: &Tensor,
    pass: &Pass<'_>,
    hidden: usize,
    by_hand: bool,
    step: &Step<'_, N>,
) -> Result<(States<N>, Option<Tensor>)> {
    let (n, size, steps) = x.dims3()?;
    let (weight, bias) = (pass.param(0)?, pass.param(2)?);
    let rows = x.permute((2, 0, 1))?.contiguous()?;
    // One product for all steps; but where autograd goes back, the gradient of a part of it would be as large as the
    // whole, for each step. Then each mode goes step by step, so that all round in the same way.
    let all = match is_grad_enabled() || (pass.is_training() && !by_hand) {
        true => None,
        false => {
            let rows = rows.reshape((steps * n, size))?;
            let _place = if by_hand { pass.saved_place()? } else { None };
            let all = rows.linear(&weight.t()?, Some(bias))?;
            Some(all.reshape((steps, n, weight.dim(1)?))?)
        }
    };
    let mask = mask_of_steps(x, pass)?;
    let first = pass.memory();
    if let Some(state) = first.iter().find(|state| state.dims() != [n, hidden]) {
        let why = "the series before was of another number of examples; rnn_clear_previous_state() begins the next one";
        return Err(Error::shape_mismatch("rnn_time_step", state.dims(), &[n, hidden], why));
    }
    let zeros = if first.len() != N { Some(Tensor::zeros((n, hidden), x.dtype(), x.device())?) } else { None };
    let first = |place: usize| zeros.as_ref().unwrap_or_else(|| &first[place]).clone();
    let mut states: States<N> = std::array::from_fn(|place| [first(place)].into_iter().collect());
    for t in 0..steps {
        // What a step needs is used again by the next one, unless it is needed for gradients.
        let room = match is_grad_enabled() {
            true => None,
            false => Some(pass.workspaces().enter(ArrayType::RnnFfLoopWorkingMem)?),
        };
        let given = match &all {
            Some(all) => all.get(t)?,
            None => rows.get(t)?.addmm(bias, weight)?,
        };
        let mut next = step(&given, all.is_some(), std::array::from_fn(|place| &states[place][t]))?;
        if let Some(mask) = &mask {
            let column = mask.narrow(1, t, 1)?;
            next.iter_mut().try_for_each(|state| state.broadcast_mul(&column).map(|kept| *state = kept))?;
        }
        for (all, state) in states.iter_mut().zip(next) {
            all.push(match room {
                Some(_) => pass.workspaces().leverage_to(ArrayType::FfWorkingMem, &state)?,
                None => state,
            });
        }
    }
    pass.remember(&std::array::from_fn::<_, N, _>(|place| &states[place][steps]))?;
    Ok((states, all))
}

/// The mask of a series `[n, size, t]`, which has a number for each of its steps.
pub(super) fn mask_of_steps(x: &Tensor, pass: &Pass<'_>) -> Result<Option<Tensor>> {
    let Some(mask) = pass.mask() else { return Ok(None) };
    let (n, _, steps) = x.dims3()?;
    if mask.dims() != [n, steps] {
        let why = "the mask of a series has a number for each step: [n, t]";
        return Err(Error::shape_mismatch("mask", x.dims(), mask.dims(), why));
    }
    mask.to_dtype(x.dtype()).map(Some)
}

/// The outputs of a run: `[n, h, t]`.
fn outputs<const N: usize>(states: &States<N>, pass: &Pass<'_>) -> Result<Tensor> {
    pass.result(|| Tensor::stack(&states[0][1..], 2))
}

fn series(layer: &'static str, n_out: usize, input: InputType) -> Result<InputType> {
    match input {
        InputType::Recurrent { .. } => Ok(InputType::recurrent(n_out)),
        _ => wrong_input(layer, input, "a series; give input_type(InputType::recurrent(..))"),
    }
}

/// `W` of the input, `RW` of the state and `b`, for as many gates as there are biases.
fn gates(input: InputType, hidden: usize, bias: &[f64]) -> Vec<Param> {
    // More than there are numbers are refused with their shape.
    let (size, wide) = (input.size(), hidden.saturating_mul(bias.len()));
    let bias = Param { start: Start::Parts(bias.to_vec()), ..Param::bias("b", wide, 0.0) };
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
        Ok(gates(input, self.hidden, &[0.0, self.forget_bias, 0.0, 0.0]))
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (states, gates) = self.states(x, pass)?;
        if let Some(gates) = gates {
            pass.save_for_backprop(|| kept(&states, gates))?;
        }
        outputs(&states, pass)
    }

    fn has_own_backprop(&self) -> bool {
        matches!(self.activation, Activation::Tanh | Activation::Sigmoid)
    }

    /// Through all steps, the last one first. What a step needs is used again by the next one.
    fn backprop_gradient(&self, x: &Tensor, epsilon: &Tensor, pass: &Pass<'_>) -> Result<Option<Backprop>> {
        let ((n, size, steps), hidden) = (x.dims3()?, self.hidden);
        let [h, c, gates] = match pass.take_kept() {
            Some(kept) => kept,
            None => no_grad(|| match self.states(x, pass)? {
                (states, Some(gates)) => kept(&states, gates),
                _ => Err(Error::invalid("lstm", "a way back needs steps that autograd does not follow")),
            })?,
        };
        // Each step multiplies with the columns of the state's weights.
        let (weight, across) = (same_bytes(pass.param(0)?)?, same_bytes(pass.param(1)?)?.t()?.contiguous()?);
        let rows = x.permute((2, 0, 1))?.reshape((steps * n, size))?;
        let before = h.narrow(0, 0, steps)?.reshape((steps * n, hidden))?;
        let mask = mask_of_steps(x, pass)?;
        let zeros = || Tensor::zeros((n, hidden), x.dtype(), x.device());
        let (dh, dc) = (zeros()?, zeros()?);
        for t in (0..steps).rev() {
            let _room = pass.workspaces().enter(ArrayType::RnnBpLoopWorkingMem)?;
            dh.add_(&epsilon.get_on_dim(2, t)?)?;
            if let Some(mask) = &mask {
                let column = mask.narrow(1, t, 1)?;
                dh.copy_(&dh.broadcast_mul(&column)?)?;
                dc.copy_(&dc.broadcast_mul(&column)?)?;
            }
            // The gates' gradients take the place of the gates.
            let gates = gates.get(t)?;
            self.step_back(&gates, [&c.get(t)?, &c.get(t + 1)?], [&dh, &dc])?;
            dh.copy_(&gates.matmul(&across)?)?;
        }
        let dz = gates.reshape((steps * n, 4 * hidden))?;
        let epsilon = match pass.wants_epsilon() {
            true => {
                let dx = dz.matmul(&weight.t()?)?.reshape((steps, n, size))?;
                let _place = pass.workspaces().borrow(ArrayType::ActivationGrad)?;
                Some(dx.permute((1, 2, 0))?.force_contiguous()?)
            }
            false => None,
        };
        let gradients = [Some(rows.t()?.matmul(&dz)?), Some(before.t()?.matmul(&dz)?), Some(dz.sum(0)?)];
        Ok(Some(Backprop { epsilon, gradients: gradients.into_iter().collect() }))
    }
}

/// Output and memory of all steps, each `[t + 1, n, h]`, and the gates, `[t, n, 4 h]`.
fn kept([h, c]: &States<2>, gates: Tensor) -> Result<[Tensor; 3]> {
    Ok([Tensor::stack(h, 0)?, Tensor::stack(c, 0)?, gates])
}

impl Lstm {
    /// Output and memory of all steps, and their gates behind the activations, where each step had a place for them.
    fn states(&self, x: &Tensor, pass: &Pass<'_>) -> Result<(States<2>, Option<Tensor>)> {
        let (hidden, weight) = (self.hidden, pass.param(1)?);
        run(x, pass, hidden, self.has_own_backprop(), &|x, own, [h, c]| {
            let product = h.matmul(weight)?;
            let z = if own { x.add_(&product)? } else { product.add(x)? };
            let gate = |place: usize, gates: usize| z.narrow(1, place * hidden, gates * hidden);
            let (block, others) = (gate(0, 1)?, gate(1, 3)?);
            let (a, fog) = match own {
                true => (self.activated(&block)?, others.sigmoid_()?),
                false => (self.activation.forward(&block)?, others.sigmoid()?),
            };
            let part = |place: usize| fog.narrow(1, place * hidden, hidden);
            let c = part(0)?.mul(c)?.add(&part(2)?.mul(&a)?)?;
            Ok([part(1)?.mul(&self.activation.forward(&c)?)?, c])
        })
    }

    /// The block input, which `z` becomes where there is a way back that asks for it.
    fn activated(&self, z: &Tensor) -> Result<Tensor> {
        match self.activation {
            Activation::Tanh => z.tanh_(),
            Activation::Sigmoid => z.sigmoid_(),
            other => other.forward(z),
        }
    }

    /// From the gradients of the output and of the memory, those of the gates before their activations, in the place of
    /// the gates, `[n, 4 h]`; the second becomes the gradient of the memory before.
    fn step_back(&self, gates: &Tensor, [before, c]: [&Tensor; 2], [dh, dc]: [&Tensor; 2]) -> Result<()> {
        let gate = |place: usize| gates.narrow(1, place * self.hidden, self.hidden);
        let (a, f, o, g) = (gate(0)?, gate(1)?, gate(2)?, gate(3)?);
        let y = self.activation.forward(c)?;
        let slope = |y: &Tensor| match self.activation {
            Activation::Tanh => y.sqr()?.affine(-1.0, 1.0),
            _ => y.mul(&y.affine(-1.0, 1.0)?),
        };
        let of_sigmoid = |y: &Tensor| y.mul(&y.affine(-1.0, 1.0)?);
        dc.add_(&dh.mul(&o)?.mul(&slope(&y)?)?)?;
        let da = dc.mul(&g)?.mul(&slope(&a)?)?;
        let df = dc.mul(before)?.mul(&of_sigmoid(&f)?)?;
        let d_o = dh.mul(&y)?.mul(&of_sigmoid(&o)?)?;
        let dg = dc.mul(&a)?.mul(&of_sigmoid(&g)?)?;
        dc.mul_(&f)?;
        a.copy_(&da)?;
        f.copy_(&df)?;
        o.copy_(&d_o)?;
        g.copy_(&dg)?;
        Ok(())
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
        let mut params = gates(input, self.hidden, &[0.0; 3]);
        params.push(Param::bias("Rb", self.hidden.saturating_mul(3), 0.0));
        Ok(params)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (hidden, weight, bias) = (self.hidden, pass.param(1)?, pass.param(3)?);
        let (states, _) = run(x, pass, hidden, false, &|x, _, [h]| {
            let z = h.addmm(bias, weight)?;
            let gate = |half: &Tensor, place: usize| half.narrow(1, place * hidden, hidden);
            let reset = gate(x, 0)?.add(&gate(&z, 0)?)?.sigmoid()?;
            let update = gate(x, 1)?.add(&gate(&z, 1)?)?.sigmoid()?;
            let new = gate(x, 2)?.add(&reset.mul(&gate(&z, 2)?)?)?.tanh()?;
            Ok([update.mul(&h.sub(&new)?)?.add(&new)?])
        })?;
        outputs(&states, pass)
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
        Ok(gates(input, self.hidden, &[0.0]))
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let weight = pass.param(1)?;
        let step =
            |x: &Tensor, _: bool, [h]: [&Tensor; 1]| Ok([self.activation.forward(&h.matmul(weight)?.add(x)?)?]);
        let (states, _) = run(x, pass, self.hidden, false, &step)?;
        outputs(&states, pass)
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
        let last = x.dims3()?.2.saturating_sub(1);
        let Some(mask) = mask_of_steps(x, pass)? else {
            return pass.result(|| x.compose("last_time_step", || x.get_on_dim(2, last)?.contiguous()));
        };
        // Counted from the end, the last step that counts is the first one.
        let counted = mask.flip(&[1])?.cumsum(1)?.flip(&[1])?;
        let last = counted.eq(1.0)?.to_dtype(x.dtype())?.mul(&mask)?.unsqueeze(1)?;
        pass.result(|| x.compose("last_time_step", || x.broadcast_mul(&last)?.sum(2)))
    }

    fn ends_mask(&self) -> bool {
        true
    }
}

json_struct!(Lstm { hidden, activation, forget_bias });
json_struct!(Gru { hidden });
json_struct!(SimpleRnn { hidden, activation });
