//! Outputs that are each yes or no.

use serde_json::{Value, json};

use ndgc::{Error, Result, Tensor};

use super::super::place::of_call;

use super::counts::{BinaryCounts, Metric};
use super::interface::IEvaluation;
use super::json::{JsonReader, counts, exact, list, number};
use super::roc_columns::RocBinary;
use super::rows::{Rows, room_for, same_columns};
use super::table::{decimals, label_width, line, name};

/// Several outputs that are yes or no, each looked at by itself; yes is predicted above 0.5, or above a threshold of
/// its own. A mask may have a number for each output.
///
/// ```
/// # use ndgc::train::{EvaluationBinary, IEvaluation, Metric};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[[1f32, 0.], [1., 1.]], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[0.8f32, 0.7], [0.3, 0.6]], &Device::Cpu)?;
/// let mut evaluation = EvaluationBinary::default();
/// evaluation.eval(&labels, &predictions, None)?;
/// assert_eq!(evaluation.counts(0).false_negatives, 1);
/// assert_eq!(evaluation.score_of(Metric::Recall, 1), 1.);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationBinary {
    labels: Vec<String>,
    thresholds: Option<Vec<f64>>,
    axis: Option<i64>,
    counts: Vec<BinaryCounts>,
    roc: Option<RocBinary>,
}

impl EvaluationBinary {
    /// Names of the outputs, for texts.
    #[must_use]
    pub fn with_labels<S: Into<String>>(mut self, labels: impl IntoIterator<Item = S>) -> Self {
        self.labels = labels.into_iter().map(Into::into).collect();
        self
    }

    /// What yes is predicted above: one for each output.
    ///
    /// ```
    /// # use ndgc::train::{EvaluationBinary, IEvaluation, Metric};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[[1f32, 0.], [1., 0.]], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.4f32, 0.6], [0.3, 0.1]], &Device::Cpu)?;
    /// let mut evaluation = EvaluationBinary::default().with_decision_thresholds([0.25, 0.75]);
    /// evaluation.eval(&labels, &predictions, None)?;
    /// assert_eq!(evaluation.average(Metric::Accuracy), 1.);
    /// let one = Tensor::new(&[[1f32], [0.]], &Device::Cpu)?;
    /// let mut evaluation = EvaluationBinary::default().with_decision_thresholds([0.25, 0.75]);
    /// assert!(evaluation.eval(&one, &one, None).is_err()); // one output, and two thresholds
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn with_decision_thresholds(mut self, thresholds: impl Into<Vec<f64>>) -> Self {
        self.thresholds = Some(thresholds.into());
        self
    }

    /// Gathers ROC curves too, with as many steps; exact for 0.
    ///
    /// # Errors
    /// As [`Roc::new`](super::Roc::new).
    #[track_caller]
    pub fn with_roc(mut self, threshold_steps: usize) -> Result<Self> {
        self.roc = Some(RocBinary::new(threshold_steps)?.with_axis(self.axis()));
        Ok(self)
    }

    /// The axis of the outputs; negative ones count from the end.
    #[must_use]
    pub fn with_axis(mut self, axis: i64) -> Self {
        self.axis = Some(axis);
        self.roc = self.roc.map(|roc| roc.with_axis(axis));
        self
    }

    fn axis(&self) -> i64 {
        self.axis.unwrap_or(1)
    }

    /// Number of outputs; 0 before the first batch.
    pub fn num_outputs(&self) -> usize {
        self.counts.len()
    }

    /// Right and wrong answers of an output.
    pub fn counts(&self, output: usize) -> BinaryCounts {
        self.counts.get(output).copied().unwrap_or_default()
    }

    /// The figure of an output.
    pub fn score_of(&self, metric: Metric, output: usize) -> f64 {
        self.counts(output).score(metric)
    }

    /// The mean of a figure over the outputs; 0 without outputs.
    pub fn average(&self, metric: Metric) -> f64 {
        self.counts.iter().map(|counts| counts.score(metric)).sum::<f64>() / self.counts.len().max(1) as f64
    }

    /// The ROC curves, if they are gathered.
    pub fn roc(&self) -> Option<&RocBinary> {
        self.roc.as_ref()
    }

    /// Adds what another one counted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has other outputs, or ROC curves where this one has none.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        of_call(|| {
            let op = "EvaluationBinary";
            if self.roc.is_some() != other.roc.is_some() {
                return Err(Error::invalid(op, "only one of both has ROC curves"));
            }
            if other.counts.is_empty() {
                return Ok(());
            }
            same_columns(op, self.counts.len(), other.counts.len())?;
            if let (Some(own), Some(more)) = (&mut self.roc, &other.roc) {
                own.merge(more)?;
            }
            self.begin(op, other.counts.len())?;
            for (own, more) in self.counts.iter_mut().zip(&other.counts) {
                *own = [*own, *more].into_iter().sum();
            }
            Ok(())
        })
    }

    /// What [`IEvaluation::to_json`] wrote.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        of_call(|| {
            let json = JsonReader::new("EvaluationBinary", text)?;
            let output = |value: &Value| match counts(value)?[..] {
                [true_positives, false_positives, true_negatives, false_negatives] => {
                    Some(BinaryCounts { true_positives, false_positives, true_negatives, false_negatives })
                }
                _ => None,
            };
            let roc = json.option("roc", |value| Some(value.to_string()))?;
            let read = EvaluationBinary {
                labels: json.names("labels")?,
                thresholds: json.option("decision_thresholds", |value| list(value, number))?,
                axis: json.option("axis", Value::as_i64)?,
                counts: json.get("tp_fp_tn_fn", |value| list(value, output))?,
                roc: roc.map(|text| RocBinary::from_json(&text)).transpose()?,
            };
            let curves = read.roc.as_ref().map_or(0, RocBinary::num_columns);
            if curves > 0 && curves != read.counts.len() {
                return Err(json.refuse("there are not as many columns in `roc` as outputs in `tp_fp_tn_fn`"));
            }
            Ok(read)
        })
    }

    fn begin(&mut self, op: &'static str, outputs: usize) -> Result<()> {
        if self.counts.is_empty() {
            room_for(op, "columns", 1, outputs)?;
            self.counts = vec![BinaryCounts::default(); outputs];
        }
        Ok(())
    }
}

impl IEvaluation for EvaluationBinary {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| {
            let op = "EvaluationBinary::eval";
            let rows = Rows::new(op, self.axis(), labels, predictions, mask)?;
            same_columns(op, self.counts.len(), rows.columns())?;
            if let Some(thresholds) = &self.thresholds
                && thresholds.len() != rows.columns()
            {
                let (n, columns) = (thresholds.len(), rows.columns());
                return Err(Error::invalid(op, format!("{n} thresholds for {columns} outputs; give one for each")));
            }
            if let Some(roc) = &mut self.roc {
                roc.eval(labels, predictions, mask)?;
            }
            self.begin(op, rows.columns())?;
            let threshold = |output: usize| self.thresholds.as_ref().map_or(0.5, |all| all[output]);
            rows.for_each(&mut |row| {
                for (output, counts) in self.counts.iter_mut().enumerate() {
                    if row.counts[output] {
                        counts.add(row.labels[output] > 0.5, row.predictions[output] > threshold(output));
                    }
                }
            });
            Ok(())
        })
    }

    fn reset(&mut self) {
        self.counts.clear();
        if let Some(roc) = &mut self.roc {
            roc.reset();
        }
    }

    fn stats(&self) -> String {
        let width = label_width(&self.labels, 20);
        let mut out = String::new();
        let mut put = |label: String, figures: [String; 4], counts: [String; 5], auc: Option<String>| {
            let mut cells = vec![(label, width)];
            cells.extend(figures.map(|figure| (figure, 12)));
            cells.extend(counts.into_iter().zip([8, 7, 7, 7, 7]));
            cells.extend(auc.map(|auc| (auc, 12)));
            line(&mut out, &cells);
            out.push('\n');
        };
        let heads = (["Accuracy", "F1", "Precision", "Recall"], ["Total", "TP", "TN", "FP", "FN"]);
        let auc = |text: &dyn Fn(&RocBinary) -> String| self.roc.as_ref().map(text);
        put("Label".to_owned(), heads.0.map(str::to_owned), heads.1.map(str::to_owned), auc(&|_| "AUC".to_owned()));
        for (output, counts) in self.counts.iter().enumerate() {
            let figures = [Metric::Accuracy, Metric::F1, Metric::Precision, Metric::Recall];
            let numbers = [
                counts.total(),
                counts.true_positives,
                counts.true_negatives,
                counts.false_positives,
                counts.false_negatives,
            ];
            put(
                name(&self.labels, output),
                figures.map(|metric| decimals(Some(counts.score(metric)))),
                numbers.map(|n| n.to_string()),
                auc(&|roc| decimals(roc.auc(output))),
            );
        }
        out.pop();
        if self.counts.is_empty() {
            out.push_str("\n-- No Data --");
        }
        if let Some(thresholds) = &self.thresholds {
            out.push_str(&format!("\nPer-output decision thresholds: {thresholds:?}"));
        }
        out
    }

    fn to_json(&self) -> String {
        let counts = |c: &BinaryCounts| [c.true_positives, c.false_positives, c.true_negatives, c.false_negatives];
        let roc = self.roc.as_ref().and_then(|roc| serde_json::from_str::<Value>(&roc.to_json()).ok());
        json!({
            "type": "EvaluationBinary",
            "labels": self.labels,
            "decision_thresholds": self.thresholds.as_deref().map(exact),
            "axis": self.axis,
            "tp_fp_tn_fn": self.counts.iter().map(counts).collect::<Vec<_>>(),
            "roc": roc,
            "metrics": {
                "average_accuracy": self.average(Metric::Accuracy),
                "average_f1": self.average(Metric::F1),
            },
        })
        .to_string()
    }
}
