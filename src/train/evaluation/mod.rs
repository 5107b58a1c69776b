//! How good predictions are: counts, curves and errors, gathered batch by batch.
//!
//! Each kind is an [`IEvaluation`]: it is given labels and predictions with [`IEvaluation::eval`], and says what it
//! found as numbers, as the text of DL4J ([`IEvaluation::stats`]) and as JSON. It reads the arrays where they lie and
//! makes none; what it keeps is counters, and for exact curves a number for each row.
//!
//! What is gathered in parts can be put together in any order with `merge`. An [`Evaluation`] of examples with ids also
//! says which of them were taken for what ([`Evaluation::prediction_errors`]).
//!
//! # Rows and columns
//! Arrays are `[n, c]`, or `[n, c, t]` and `[n, c, h, w]`, whose steps or points are a row each; `with_axis` says
//! where the columns are if that is not axis 1 (-1 for the last). `[n]` has one column. Labels have the shape of the
//! predictions; numbers of any type without the axis of the columns, or with 1 there, are indices of classes, but for
//! [`RegressionEvaluation`].
//!
//! A mask has a number for a row (`[n]` or `[n, 1]`, of series `[n, t]` or `[n, 1, t]`), for an example (`[n]` or
//! `[n, 1]`), or, where outputs are looked at one by one, for each output (the shape of the predictions). What has 0
//! there is left out, whatever it is.

mod binary;
mod calibration;
mod classification;
mod classification_text;
mod counts;
mod curves;
mod interface;
mod json;
mod plot;
mod predictions;
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
pub use interface::IEvaluation;
pub use predictions::Prediction;
pub use regression::{RegressionEvaluation, RegressionMetric};
pub use roc::Roc;
pub use roc_columns::{RocBinary, RocMultiClass};
