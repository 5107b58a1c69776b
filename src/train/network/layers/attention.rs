//! Attention of a series to itself.

use ndgc::{DType, Result, Tensor};

use super::super::json::json_struct;
use super::super::layer::{InputType, Layer, Param, Pass, wrong_input};
use super::recurrent::mask_of_steps;

/// Dot-product attention with several heads: `[n, in, t]` to `[n, out, t]`. Weights are `Wq`, `Wk`, `Wv`
/// (`[in, heads * size]`) and `Wo` (`[heads * size, out]`). Steps that a mask leaves out are not looked at.
#[derive(Clone, Debug)]
pub struct SelfAttention {
    n_out: usize,
    heads: usize,
    causal: bool,
}

impl SelfAttention {
    /// With so many outputs, divided among so many heads.
    pub fn new(n_out: usize, heads: usize) -> Self {
        SelfAttention { n_out, heads, causal: false }
    }

    /// Whether a step sees earlier ones and itself alone.
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }
}

impl Layer for SelfAttention {
    fn kind(&self) -> &str {
        "SelfAttention"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        match input {
            InputType::Recurrent { .. } if self.heads > 0 && self.n_out.is_multiple_of(self.heads) => {
                Ok(InputType::recurrent(self.n_out))
            }
            _ => wrong_input("self_attention", input, "a series, and outputs that the heads divide"),
        }
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        let (size, n_out) = (input.size(), self.n_out);
        let weight = |name: &str, rows: usize| Param::weight(name, (rows, n_out), [rows, n_out]);
        Ok(vec![weight("Wq", size), weight("Wk", size), weight("Wv", size), weight("Wo", n_out)])
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (n, size, steps) = x.dims3()?;
        // Without heads, which output_type() refuses, no shape fits.
        let width = self.n_out.checked_div(self.heads).unwrap_or(0);
        let rows = x.permute((0, 2, 1))?.reshape((n * steps, size))?;
        let part = |place: usize| {
            let all = rows.matmul(pass.param(place)?)?;
            all.reshape((n, steps, self.heads, width))?.permute((0, 2, 1, 3))?.contiguous()
        };
        let mask = match mask_of_steps(x, pass)? {
            // Added to the scores: 0 where a step counts, and far below where it does not; but a number, since a
            // softmax makes NaN of infinities alone.
            Some(mask) => {
                let far = if x.dtype() == DType::F16 { 3e4 } else { 1e9 };
                Some(mask.affine(far, -far)?.reshape((n, 1, 1, steps))?)
            }
            None => None,
        };
        let scale = 1.0 / (width as f64).sqrt();
        let y = part(0)?.sdpa(&part(1)?, &part(2)?, mask.as_ref(), self.causal, scale, 1.0)?;
        let rows = y.permute((0, 2, 1, 3))?.reshape((n * steps, self.n_out))?.matmul(pass.param(3)?)?;
        pass.result(|| rows.reshape((n, steps, self.n_out))?.permute((0, 2, 1))?.contiguous())
    }
}

json_struct!(SelfAttention { n_out, heads, causal });
