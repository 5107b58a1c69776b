//! A ROC curve for each column: of one class against all others, or of outputs of their own.

use serde_json::{Value, json};

use ndgc::{Error, Result, Tensor};

use super::super::place::{called_here, of_call};

use super::interface::IEvaluation;
use super::json::JsonReader;
use super::roc::{Roc, note};
use super::rows::{Rows, room_for, same_columns};
use super::table::{decimals, label_width, line, name};

/// What both kinds are.
#[derive(Clone, Debug, PartialEq)]
struct Columns {
    steps: usize,
    names: Vec<String>,
    axis: i64,
    /// None as long as their number is unknown.
    columns: Vec<Roc>,
}

impl Columns {
    fn eval(&mut self, op: &'static str, rows: &Rows) -> Result<()> {
        same_columns(op, self.columns.len(), rows.columns())?;
        self.begin(op, rows.columns())?;
        rows.for_each(&mut |row| {
            for (column, roc) in self.columns.iter_mut().enumerate() {
                if row.counts[column] {
                    roc.add(row.labels[column] > 0.5, row.predictions[column]);
                }
            }
        });
        Ok(())
    }

    fn begin(&mut self, op: &'static str, columns: usize) -> Result<()> {
        if self.columns.is_empty() {
            let argument = if self.steps == 0 { "columns" } else { "threshold_steps" };
            room_for(op, argument, self.steps.max(1), columns)?;
            self.columns = vec![Roc::of_steps(self.steps); columns];
        }
        Ok(())
    }

    fn merge(&mut self, op: &'static str, other: &Self) -> Result<()> {
        if self.steps != other.steps {
            return Err(Error::invalid(op, format!("{} and {} steps do not add up", self.steps, other.steps)));
        }
        if other.columns.is_empty() {
            return Ok(());
        }
        same_columns(op, self.columns.len(), other.columns.len())?;
        self.begin(op, other.columns.len())?;
        self.columns.iter_mut().zip(&other.columns).try_for_each(|(own, more)| own.merge(more))
    }

    /// The mean of those that have an area.
    fn average(&self, area: impl Fn(&Roc) -> Option<f64>) -> Option<f64> {
        let areas: Vec<f64> = self.columns.iter().filter_map(area).collect();
        (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
    }

    fn table(&self, with_auprc: bool) -> String {
        let width = label_width(&self.names, 20);
        let mut out = String::new();
        let mut put = |label: String, areas: [String; 2], counts: [String; 2]| {
            let [auc, auprc] = areas;
            let [positives, negatives] = counts;
            let mut cells = vec![(label, width), (auc, 12)];
            cells.extend(with_auprc.then_some((auprc, 12)));
            cells.extend([(positives, 10), (negatives, 10)]);
            line(&mut out, &cells);
            out.push('\n');
        };
        put("Label".to_owned(), ["AUC", "AUPRC"].map(str::to_owned), ["# Pos", "# Neg"].map(str::to_owned));
        for (column, roc) in self.columns.iter().enumerate() {
            let areas = [decimals(roc.auc()), decimals(roc.auprc().filter(|_| with_auprc))];
            put(name(&self.names, column), areas, [roc.positives(), roc.negatives()].map(|n| n.to_string()));
        }
        out.pop();
        if self.columns.is_empty() {
            out.push_str("\n-- No Data --");
        }
        out
    }

    fn to_json(&self, kind: &str) -> String {
        json!({
            "type": kind,
            "threshold_steps": self.steps,
            "labels": self.names,
            "axis": self.axis,
            "columns": self.columns.iter().map(Roc::to_value).collect::<Vec<Value>>(),
            "metrics": { "average_auc": self.average(Roc::auc), "average_auprc": self.average(Roc::auprc) },
        })
        .to_string()
    }

    fn from_json(kind: &'static str, text: &str) -> Result<Self> {
        let json = JsonReader::new(kind, text)?;
        let columns = json.values("columns")?.into_iter().map(|column| Roc::read(&JsonReader::of("ROC", column)?));
        let columns = columns.collect::<Result<Vec<Roc>>>()?;
        let steps = Roc::read_steps(&json)?;
        if columns.iter().any(|roc| roc.threshold_steps() != steps) {
            return Err(json.refuse("the columns have other steps"));
        }
        Ok(Columns { steps, names: json.names("labels")?, axis: json.integer("axis")?, columns })
    }
}

macro_rules! of_columns {
    ($name:ident, $kind:literal) => {
        impl Default for $name {
            /// Exact.
            fn default() -> Self {
                $name { all: Columns { steps: 0, names: Vec::new(), axis: 1, columns: Vec::new() } }
            }
        }

        impl $name {
            /// With as many steps between thresholds from 0 to 1; exact for 0.
            ///
            /// # Errors
            /// As [`Roc::new`].
            #[track_caller]
            pub fn new(threshold_steps: usize) -> Result<Self> {
                let steps = Roc::new(threshold_steps)?.threshold_steps();
                Ok($name { all: Columns { steps, names: Vec::new(), axis: 1, columns: Vec::new() } })
            }

            /// Names of the columns, for texts.
            #[must_use]
            pub fn with_labels<S: Into<String>>(mut self, labels: impl IntoIterator<Item = S>) -> Self {
                self.all.names = labels.into_iter().map(Into::into).collect();
                self
            }

            /// The axis of the columns; negative ones count from the end.
            #[must_use]
            pub fn with_axis(mut self, axis: i64) -> Self {
                self.all.axis = axis;
                self
            }

            /// Number of columns; 0 before the first batch.
            pub fn num_columns(&self) -> usize {
                self.all.columns.len()
            }

            /// What was gathered of one column.
            pub fn column(&self, column: usize) -> Option<&Roc> {
                self.all.columns.get(column)
            }

            /// The area under the ROC curve of a column; None if only one class was seen there.
            pub fn auc(&self, column: usize) -> Option<f64> {
                self.column(column)?.auc()
            }

            /// The area under the curve of precision over recall of a column; None if it had no positive.
            pub fn auprc(&self, column: usize) -> Option<f64> {
                self.column(column)?.auprc()
            }

            /// The mean area under the ROC curves that have one.
            pub fn average_auc(&self) -> Option<f64> {
                self.all.average(Roc::auc)
            }

            /// The mean area under the curves of precision over recall that have one.
            pub fn average_auprc(&self) -> Option<f64> {
                self.all.average(Roc::auprc)
            }

            /// Adds what another one counted.
            ///
            /// # Errors
            /// [`Error::Invalid`] if it has other columns or steps.
            #[track_caller]
            pub fn merge(&mut self, other: &Self) -> Result<()> {
                called_here(self.all.merge($kind, &other.all))
            }

            /// What [`IEvaluation::to_json`] wrote.
            ///
            /// # Errors
            /// [`Error::Invalid`] for anything else.
            #[track_caller]
            pub fn from_json(text: &str) -> Result<Self> {
                Ok($name { all: called_here(Columns::from_json($kind, text))? })
            }
        }
    };
}

/// A [`Roc`] for each class against all others.
///
/// ```
/// # use ndgc::train::{IEvaluation, RocMultiClass};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[0u32, 1, 2], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[0.7f32, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.3, 0.5]], &Device::Cpu)?;
/// let mut roc = RocMultiClass::default();
/// roc.eval(&labels, &predictions, None)?;
/// assert_eq!(roc.average_auc(), Some(1.));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RocMultiClass {
    all: Columns,
}

of_columns!(RocMultiClass, "ROCMultiClass");

/// A [`Roc`] for each of several outputs that are yes or no; a mask may have a number for each of them.
///
/// ```
/// # use ndgc::train::{IEvaluation, RocBinary};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[[1f32, 0.], [0., 1.]], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[0.8f32, 0.7], [0.3, 0.6]], &Device::Cpu)?;
/// let mut roc = RocBinary::default();
/// roc.eval(&labels, &predictions, None)?;
/// assert_eq!((roc.auc(0), roc.auc(1)), (Some(1.), Some(0.)));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RocBinary {
    all: Columns,
}

of_columns!(RocBinary, "ROCBinary");

impl IEvaluation for RocMultiClass {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| {
            let op = "RocMultiClass::eval";
            let rows = Rows::new(op, self.all.axis, labels, predictions, mask)?;
            rows.whole_rows(op)?;
            self.all.eval(op, &rows)
        })
    }

    fn reset(&mut self) {
        self.all.columns.clear();
    }

    fn stats(&self) -> String {
        let mut out = self.all.table(false);
        if !self.all.columns.is_empty() {
            out.push_str(&format!("\nAverage AUC: {:<12}", decimals(self.average_auc())));
        }
        out + &note(self.all.steps)
    }

    fn to_json(&self) -> String {
        self.all.to_json("ROCMultiClass")
    }
}

impl IEvaluation for RocBinary {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| {
            let op = "RocBinary::eval";
            self.all.eval(op, &Rows::new(op, self.all.axis, labels, predictions, mask)?)
        })
    }

    fn reset(&mut self) {
        self.all.columns.clear();
    }

    fn stats(&self) -> String {
        self.all.table(true) + &note(self.all.steps)
    }

    fn to_json(&self) -> String {
        self.all.to_json("ROCBinary")
    }
}
