//! How good predictions are: counts, curves and errors, gathered batch by batch.
//!
//! Each kind is an [`IEvaluation`]: it is given labels and predictions with [`IEvaluation::eval`], and says what it
//! found as numbers, as the text of DL4J ([`IEvaluation::stats`]) and as JSON. It reads the arrays where they lie and
//! makes none; what it keeps is counters, and for exact curves a number for each row.
//!
//! What is gathered in parts can be put together in any order with `merge`.
//!
//! # Rows and columns
//! Arrays are `[n, c]`, or `[n, c, t]` and `[n, c, h, w]`, whose steps or points are a row each; `with_axis` says
//! where the columns are if that is not axis 1 (-1 for the last). `[n]` has one column. Labels have the shape of the
//! predictions; integers without the axis of the columns are indices of classes.
//!
//! A mask has a number for a row, for an example, or, where outputs are looked at one by one, for each output. What has
//! 0 there is left out.

mod binary;
mod calibration;
mod classification;
mod classification_text;
mod counts;
mod curves;
mod json;
mod plot;
mod regression;
mod roc;
mod roc_columns;
mod rows;
mod table;

pub use binary::EvaluationBinary;
pub use calibration::{EvaluationCalibration, Histogram, ReliabilityDiagram};
pub use classification::Evaluation;
pub use counts::{Averaging, BinaryCounts, Metric};
pub use curves::{PrecisionRecallCurve, RocCurve};
pub use regression::{RegressionEvaluation, RegressionMetric};
pub use roc::Roc;
pub use roc_columns::{RocBinary, RocMultiClass};

use ndgc::{Result, Tensor};

/// What gathers how good predictions are. The name is ND4J's.
///
/// ```
/// # use ndgc::train::{Evaluation, IEvaluation, Roc};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.]], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[0.9f32, 0.1], [0.2, 0.8], [0.6, 0.4]], &Device::Cpu)?;
/// let (mut evaluation, mut roc) = (Evaluation::new(2), Roc::default());
/// for one in [&mut evaluation as &mut dyn IEvaluation, &mut roc] {
///     one.eval(&labels, &predictions, None)?;
/// }
/// assert_eq!((evaluation.rows(), roc.auc()), (3, Some(1.)));
/// assert!(evaluation.stats().contains(" Accuracy:        0.6667\n"));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub trait IEvaluation {
    /// Looks at a batch. Nothing is counted of one that is refused.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](ndgc::Error::ShapeMismatch) if labels, predictions and mask do not fit each other, or
    /// the batches before; [`Error::Msg`](ndgc::Error::Msg) for NaN where it counts; as [`Tensor::to_vec`].
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()>;

    /// Forgets what was counted, and keeps the settings.
    fn reset(&mut self);

    /// What was found, as a text for people: DL4J's lines.
    fn stats(&self) -> String;

    /// Settings, counters and figures as JSON, from which `from_json` makes it again.
    fn to_json(&self) -> String;
}
