//! Losses, with DL4J's formulas.

use ndgc::{DType, Error, Result, Tensor, TensorExt};

use super::super::shared::upcast_half;
use super::activation::Activation;

/// Where doubles begin to have gaps.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// How far an output layer's answers are from the labels.
///
/// Each is a sum over the outputs of an example (and over the steps of a series); the score of a batch is the mean over
/// its examples. Names and formulas are DL4J's (`LossFunctions.LossFunction`).
///
/// ```
/// use ndgc::train::{Activation, Loss};
/// use ndgc::{Device, Tensor};
///
/// let (z, labels) = (Tensor::new(&[[3f64, 1.]], &Device::Cpu)?, Tensor::new(&[[1f64, 0.]], &Device::Cpu)?);
/// let scores = Loss::Mse.scores(&z, Activation::Identity, &labels, None)?;
/// assert_eq!(scores.to_vec1::<f64>()?, [2.5]); // (2^2 + 1^2) / 2
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// Cross entropy of classes: `-sum(labels log p)`, for labels that are probabilities (one-hot rows). The answers of
    /// [`Activation::LogSoftmax`] are taken for `log p`.
    #[default]
    Mcxent,
    /// The same, for labels that are numbers of classes: `[n]` or `[n, 1]`, of series `[n, t]` or `[n, 1, t]`.
    SparseMcxent,
    /// DL4J's other name of [`Loss::Mcxent`].
    NegativeLogLikelihood,
    /// Cross entropy of independent yes-or-no outputs.
    Xent,
    /// Squared differences, divided by the number of outputs.
    Mse,
    /// Squared differences.
    L2,
    /// Absolute differences.
    L1,
    /// Absolute differences, divided by the number of outputs.
    MeanAbsoluteError,
    /// Absolute differences as a percentage of the labels, divided by the number of outputs.
    MeanAbsolutePercentageError,
    /// Squared differences of `log(1 + x)`, divided by the number of outputs.
    MeanSquaredLogarithmicError,
    /// `sum(labels log(labels / p))`.
    KlDivergence,
    /// `max(0, 1 - labels y)`, for labels of -1 and 1.
    Hinge,
    /// The square of [`Loss::Hinge`].
    SquaredHinge,
    /// `y - labels log y`.
    Poisson,
    /// Minus the cosine of the angle between answer and label.
    CosineProximity,
    /// `d^2 / 2` where the difference is at most `delta`, else `delta (|d| - delta / 2)`.
    Huber(f64),
}

impl Loss {
    /// The score of each example, `[n]`: from the outputs before their activation (`[n, k]`, of series `[n, k, t]`),
    /// the activation, the labels, and a mask in which 0 means that it does not count (`[n]`, `[n, 1]`, `[n, t]`, or
    /// the shape of the labels, but of the cosine, which is of all outputs together). Labels that do not count may be
    /// anything. Gradients flow back to `z`. The result belongs to the owner of `z`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if labels or mask do not fit; [`Error::IndexOutOfRange`] and [`Error::Argument`] for
    /// numbers that are no classes.
    #[track_caller]
    pub fn scores(self, z: &Tensor, activation: Activation, labels: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        z.compose("loss", || self.in_single(z, activation, labels, mask)?.to_dtype(z.dtype()))
    }

    /// The mean of [`Loss::scores`], which training follows. Of classes by number it is one operation.
    ///
    /// # Errors
    /// As [`Loss::scores`].
    #[track_caller]
    pub fn score(self, z: &Tensor, activation: Activation, labels: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let are_rows = z.rank() == 2 && labels.rank() == 1 && z.elem_count() > 0 && labels.dtype().is_int();
        if (self, activation) == (Loss::SparseMcxent, Activation::Softmax) && mask.is_none() && are_rows {
            return z.compose("loss", || z.cross_entropy(labels));
        }
        z.compose("loss", || mean_of(&self.in_single(z, activation, labels, mask)?)?.to_dtype(z.dtype()))
    }

    /// The scores of examples, of halves as singles: f16 has no 1e-10 and no 1 - 1e-5, by which formulas keep away from
    /// the logarithm of 0.
    fn in_single(self, z: &Tensor, activation: Activation, labels: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let z = &upcast_half(z)?;
        let labels = self.labels_beside(labels, z)?;
        let elements = match mask {
            None => self.elements(z, activation, &labels)?,
            Some(mask) => {
                let mask = mask_beside(mask, z)?;
                let (z, labels) = self.filled(z, activation, &labels, &mask)?;
                self.elements(&z, activation, &labels)?.broadcast_mul(&mask)?
            }
        };
        if elements.rank() == 1 { Ok(elements) } else { elements.flatten_from(1)?.sum(1) }
    }

    /// The labels with the axes of the outputs, if they fit: those that are classes have one number for each row.
    fn labels_beside(self, labels: &Tensor, z: &Tensor) -> Result<Tensor> {
        let refused = |why: &str| Error::shape_mismatch("loss", z.dims(), labels.dims(), why);
        if self != Loss::SparseMcxent {
            return match z.dims() == labels.dims() {
                true => labels.to_dtype(z.dtype()),
                false => Err(refused("the labels must have the shape of the output")),
            };
        }
        let classes = if labels.rank() == z.rank() { labels.clone() } else { labels.unsqueeze(1)? };
        let mut sizes = classes.dims().iter().zip(z.dims()).enumerate();
        let fit =
            classes.rank() == z.rank() && sizes.all(|(axis, (&own, &of_z))| own == if axis == 1 { 1 } else { of_z });
        match fit {
            true => Ok(classes),
            false => Err(refused("there must be one class for each row: [n] or [n, 1], of series [n, t] or [n, 1, t]")),
        }
    }

    /// Outputs and labels, filled where the mask has 0: whatever is there, a formula may make NaN of it, and 0 times
    /// that, or times its slope, is no 0. Every formula makes a number of ones.
    fn filled(self, z: &Tensor, activation: Activation, labels: &Tensor, mask: &Tensor) -> Result<(Tensor, Tensor)> {
        let of_outputs = mask.dim(1)? > 1;
        if of_outputs && self == Loss::CosineProximity {
            let why = "the cosine is of all outputs together; give a mask of one number for each row";
            return Err(Error::shape_mismatch("loss", z.dims(), mask.dims(), why));
        }
        let left_out = mask.eq(0f64)?;
        // A softmax makes what counts of all outputs of a row, also of those that do not.
        let together = of_outputs && matches!(activation, Activation::Softmax | Activation::LogSoftmax);
        let z = if together { z.clone() } else { z.masked_fill(&left_out, 1.0)? };
        let label = if self == Loss::SparseMcxent { 0.0 } else { 1.0 };
        Ok((z, labels.masked_fill(&left_out, label)?))
    }

    /// The score of each output, of labels that fit: as large as they are, or with one output where the loss is of all
    /// together.
    fn elements(self, z: &Tensor, activation: Activation, labels: &Tensor) -> Result<Tensor> {
        if self == Loss::SparseMcxent {
            return log_of(z, activation)?.contiguous()?.gather(&indices("loss", labels)?, 1)?.neg();
        }
        let y = || activation.forward(z);
        let difference = || y()?.sub(labels);
        let per_output = 1.0 / z.dim(1)? as f64;
        match self {
            Loss::Mcxent | Loss::NegativeLogLikelihood | Loss::SparseMcxent => {
                log_of(z, activation)?.mul(labels)?.neg()
            }
            Loss::Xent if activation == Activation::Sigmoid => z.softplus()?.sub(&z.mul(labels)?),
            Loss::Xent => {
                let p = y()?.clamp(1e-5, 1.0 - 1e-5)?;
                let no = p.affine(-1.0, 1.0)?.log()?.mul(&labels.affine(-1.0, 1.0)?)?;
                p.log()?.mul(labels)?.add(&no)?.neg()
            }
            Loss::Mse => difference()?.sqr()?.affine(per_output, 0.0),
            Loss::L2 => difference()?.sqr(),
            Loss::L1 => difference()?.abs(),
            Loss::MeanAbsoluteError => difference()?.abs()?.affine(per_output, 0.0),
            Loss::MeanAbsolutePercentageError => difference()?.div(labels)?.abs()?.affine(100.0 * per_output, 0.0),
            Loss::MeanSquaredLogarithmicError => y()?.log1p()?.sub(&labels.log1p()?)?.sqr()?.affine(per_output, 0.0),
            Loss::KlDivergence => {
                let [p, labels] = [y()?, labels.clone()].map(|array| array.clamp(1e-5, 1.0));
                let (p, labels) = (p?, labels?);
                labels.div(&p)?.log()?.mul(&labels)
            }
            Loss::Hinge => y()?.mul(labels)?.affine(-1.0, 1.0)?.relu(),
            Loss::SquaredHinge => y()?.mul(labels)?.affine(-1.0, 1.0)?.relu()?.sqr(),
            Loss::Poisson => {
                let y = y()?;
                y.sub(&y.log()?.mul(labels)?)
            }
            Loss::CosineProximity => cosine(&y()?, labels),
            Loss::Huber(delta) => {
                let size = difference()?.abs()?;
                let near = size.clamp(0.0, delta)?;
                // `near (size - near / 2)` is d^2 / 2 where near = size, else delta (size - delta / 2).
                near.mul(&size.sub(&near.affine(0.5, 0.0)?)?)
            }
        }
    }
}

/// The mean of the scores of examples; of halves by f32, since their sum may be no number of theirs.
pub(super) fn mean_of(scores: &Tensor) -> Result<Tensor> {
    let mean = |scores: &Tensor| scores.sum_all()?.affine(1.0 / scores.elem_count().max(1) as f64, 0.0);
    match scores.dtype() {
        dtype @ (DType::F16 | DType::BF16) => mean(&scores.to_dtype(DType::F32)?)?.to_dtype(dtype),
        _ => mean(scores),
    }
}

/// Numbers of classes, or of rows, as indices, whatever type they have.
pub(super) fn indices(op: &'static str, given: &Tensor) -> Result<Tensor> {
    let dtype = given.dtype();
    if matches!(dtype, DType::U32 | DType::I64) {
        return given.contiguous();
    }
    if dtype.is_float() {
        // A cast would make 0 of NaN and of what is below it, and 2 of 2.7.
        let all = given.to_dtype(DType::F64)?.to_vec::<f64>()?;
        let is_whole = |number: f64| number.fract() == 0.0 && (0.0..WHOLE_MAX).contains(&number);
        if let Some(place) = all.iter().position(|&number| !is_whole(number)) {
            let found = format!("{} at place {place}", all[place]);
            let expected = "a whole number from 0; mask what does not count, and round fractions first";
            return Err(Error::argument(op, "index", found, expected));
        }
    }
    given.to_dtype(DType::I64)?.contiguous()
}

/// The logarithm of an activation; of a softmax without overflow, also where the answer is that logarithm already, and
/// of others as DL4J has it, away from 0.
fn log_of(z: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Softmax | Activation::LogSoftmax => z.log_softmax(1),
        other => other.forward(z)?.clamp(1e-10, f64::INFINITY)?.log(),
    }
}

/// `-y.labels / (|y| |labels|)` along axis 1, which becomes 1. The gradient of zeros is a number: that of their length
/// is 0.
fn cosine(y: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let length = |array: &Tensor| array.norm_dim(2.0, 1)?.unsqueeze(1)?.clamp(1e-8, f64::INFINITY);
    y.mul(labels)?.sum_keepdim(1)?.div(&length(y)?.mul(&length(labels)?)?)?.neg()
}

/// A mask with the axes of the scores that it masks.
pub(super) fn mask_beside(mask: &Tensor, elements: &Tensor) -> Result<Tensor> {
    let mask = mask.to_dtype(elements.dtype())?;
    match (mask.rank(), elements.rank()) {
        (m, e) if m == e => Ok(mask),
        (2, 3) => mask.unsqueeze(1),
        (2, 4) if mask.dim(1)? == 1 => mask.reshape((mask.dim(0)?, 1, 1, 1)),
        (1, e @ 1..=4) => mask.reshape(&[mask.dim(0)?, 1, 1, 1][..e]),
        _ => {
            let why = "a mask is [n], [n, 1], [n, steps] or of the shape of what it masks";
            Err(Error::shape_mismatch("mask", mask.dims(), elements.dims(), why))
        }
    }
}
