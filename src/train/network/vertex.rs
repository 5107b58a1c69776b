//! Vertices of graphs that are no layers: they join, split and change arrays.

use std::any::Any;
use std::fmt;

use ndgc::{Error, Result, Tensor};

use super::super::shared::upcast_half;
use super::layer::InputType;

/// What a vertex of a graph computes from its inputs. It has no parameters.
pub trait GraphVertex: Any + fmt::Debug + Send + Sync {
    /// Its name in tables.
    fn kind(&self) -> &str;

    /// What comes out for what goes in.
    ///
    /// # Errors
    /// [`Error::Argument`] for inputs that it cannot have.
    fn output_type(&self, inputs: &[InputType]) -> Result<InputType>;

    /// The output for inputs.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor>;
}

/// The first of the inputs.
fn first<'t, T>(kind: &'static str, inputs: &'t [T]) -> Result<&'t T> {
    let wrong = || Error::argument(kind, "inputs", "none", "at least one");
    inputs.first().ok_or_else(wrong)
}

/// Its inputs side by side, along axis 1.
#[derive(Clone, Debug, Default)]
pub struct MergeVertex;

impl GraphVertex for MergeVertex {
    fn kind(&self) -> &str {
        "Merge"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        let sum = inputs.iter().map(InputType::features).fold(0, usize::saturating_add);
        Ok(first("merge", inputs)?.with_features(sum))
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        Tensor::cat(inputs, 1)
    }
}

/// Its inputs, number by number. All have one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementWiseVertex {
    /// Their sum.
    Add,
    /// The first minus the second.
    Subtract,
    /// Their product.
    Product,
    /// Their mean.
    Average,
    /// The largest.
    Max,
}

impl GraphVertex for ElementWiseVertex {
    fn kind(&self) -> &str {
        "ElementWise"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        let first = *first("elementwise", inputs)?;
        if inputs.iter().any(|input| *input != first) || (*self == Self::Subtract && inputs.len() != 2) {
            let value = inputs.iter().map(InputType::to_string).collect::<Vec<_>>().join(", ");
            let expected = "inputs of one shape; two of them for a difference";
            return Err(Error::argument("elementwise", "inputs", value, expected));
        }
        Ok(first)
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let start = *first("elementwise", inputs)?;
        // Which a mean by f32 would hide.
        if let Some(other) = inputs.iter().find(|input| input.dtype() != start.dtype()) {
            return Err(Error::dtype_mismatch("elementwise", start.dtype(), other.dtype()));
        }
        // A mean of halves by f32, since their sum may be no number of theirs.
        let wide = |x: &Tensor| if *self == Self::Average { upcast_half(x) } else { Ok(x.clone()) };
        let join = |sum: Tensor, next: &&Tensor| match self {
            Self::Add => sum.add(next),
            Self::Average => sum.add(&wide(next)?),
            Self::Subtract => sum.sub(next),
            Self::Product => sum.mul(next),
            Self::Max => sum.maximum(*next),
        };
        let all = inputs[1..].iter().try_fold(wide(start)?, join)?;
        match self {
            Self::Average => all.affine(1.0 / inputs.len() as f64, 0.0)?.to_dtype(start.dtype()),
            _ => Ok(all),
        }
    }
}

/// A part of its input: the numbers `from..=to` along axis 1, both counted from 0.
#[derive(Clone, Debug)]
pub struct SubsetVertex {
    /// The first one.
    pub from: usize,
    /// The last one.
    pub to: usize,
}

impl SubsetVertex {
    /// Numbers from the first to the last, if they come in that order.
    fn count(&self) -> Option<usize> {
        self.to.checked_sub(self.from)?.checked_add(1)
    }

    fn wrong(&self) -> Error {
        Error::argument("subset", "range", format!("{}..={}", self.from, self.to), "within axis 1")
    }
}

impl GraphVertex for SubsetVertex {
    fn kind(&self) -> &str {
        "Subset"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        let input = *first("subset", inputs)?;
        let count = self.count().filter(|_| self.to < input.features()).ok_or_else(|| self.wrong())?;
        Ok(input.with_features(count))
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let count = self.count().ok_or_else(|| self.wrong())?;
        first("subset", inputs)?.narrow(1, self.from, count)?.contiguous()
    }
}

/// `scale x + shift`.
#[derive(Clone, Debug)]
pub struct ScaleVertex {
    /// The factor.
    pub scale: f64,
    /// What is added.
    pub shift: f64,
}

impl GraphVertex for ScaleVertex {
    fn kind(&self) -> &str {
        "Scale"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        first("scale", inputs).copied()
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        first("scale", inputs)?.affine(self.scale, self.shift)
    }
}

/// Each example divided by the length of its numbers.
#[derive(Clone, Debug, Default)]
pub struct L2NormalizeVertex;

impl GraphVertex for L2NormalizeVertex {
    fn kind(&self) -> &str {
        "L2Normalize"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        first("l2_normalize", inputs).copied()
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = *first("l2_normalize", inputs)?;
        x.compose("l2_normalize", || {
            // Of halves in f32: f16 has neither the square of 300 nor 1e-16.
            let numbers = upcast_half(x)?;
            let squares = numbers.flatten_from(1)?.sqr()?.sum_keepdim(1)?;
            let root = squares.affine(1.0, 1e-16)?.sqrt()?;
            let mut dims = vec![1; x.rank()];
            dims[0] = x.dim(0)?;
            numbers.broadcast_div(&root.reshape(dims)?)?.to_dtype(x.dtype())
        })
    }
}

/// A row for each example, repeated for each step of the second input: `[n, size]` and `[n, any, t]` to `[n, size, t]`.
#[derive(Clone, Debug, Default)]
pub struct DuplicateToTimeSeriesVertex;

impl GraphVertex for DuplicateToTimeSeriesVertex {
    fn kind(&self) -> &str {
        "DuplicateToTimeSeries"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        Ok(InputType::recurrent(first("duplicate_to_time_series", inputs)?.size()))
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let &[row, series] = inputs else {
            let value = inputs.len().to_string();
            let (op, expected) = ("duplicate_to_time_series", "2: rows, and a series");
            return Err(Error::argument(op, "inputs", value, expected));
        };
        let (n, size) = row.dims2()?;
        row.unsqueeze(2)?.broadcast_as((n, size, series.dim(2)?))?.contiguous()
    }
}
