//! Errors of predicted numbers, column by column.

use serde_json::{Value, json};

use ndgc::{Error, Result, Tensor};

use super::super::place::of_call;

use super::interface::IEvaluation;
use super::json::{JsonReader, count, exact, list, number};
use super::rows::{Rows, room_for, same_columns};
use super::table::{line, scientific};

/// The most digits after the point in texts: no double has more.
const DIGITS_MAX: usize = 1100;

/// A figure of a [`RegressionEvaluation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegressionMetric {
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    Mae,
    /// The root of the mean squared error.
    Rmse,
    /// Squared errors relative to those of always predicting the mean label: 1 - R².
    Rse,
    /// Pearson's correlation of labels and predictions.
    PearsonCorrelation,
    /// The coefficient of determination; where all labels are equal, 1 for right predictions and 0 for others.
    RSquared,
}

impl RegressionMetric {
    const ALL: [Self; 6] = [Self::Mse, Self::Mae, Self::Rmse, Self::Rse, Self::PearsonCorrelation, Self::RSquared];

    fn name(self) -> &'static str {
        match self {
            Self::Mse => "MSE",
            Self::Mae => "MAE",
            Self::Rmse => "RMSE",
            Self::Rse => "RSE",
            Self::PearsonCorrelation => "PC",
            Self::RSquared => "R^2",
        }
    }
}

/// How far predicted numbers are from the labels, column by column. A mask may have a number for each.
///
/// What is kept are means and sums of deviations from them, so that numbers far from 0 lose no digits.
///
/// ```
/// # use ndgc::train::{IEvaluation, RegressionEvaluation, RegressionMetric};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[[1f64], [2.], [3.]], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[1f64], [2.], [4.]], &Device::Cpu)?;
/// let mut evaluation = RegressionEvaluation::default();
/// evaluation.eval(&labels, &predictions, None)?;
/// assert_eq!(evaluation.score(RegressionMetric::Mae, 0), Some(1. / 3.));
/// assert_eq!(evaluation.score(RegressionMetric::RSquared, 0), Some(0.5));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RegressionEvaluation {
    labels: Vec<String>,
    precision: usize,
    axis: i64,
    columns: Vec<Column>,
}

/// What is known of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Column {
    count: u64,
    absolute: f64,
    squared: f64,
    mean_label: f64,
    mean_prediction: f64,
    /// Sums of products of deviations from the means.
    labels: f64,
    predictions: f64,
    both: f64,
}

impl Column {
    fn of(label: f64, prediction: f64) -> Self {
        let error = prediction - label;
        Column {
            count: 1,
            absolute: error.abs(),
            squared: error * error,
            mean_label: label,
            mean_prediction: prediction,
            ..Column::default()
        }
    }

    /// Of two parts together (Chan, Golub, LeVeque 1979).
    fn merged(self, other: Self) -> Self {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let (n, m) = (self.count as f64, other.count as f64);
        let (dl, dp) = (other.mean_label - self.mean_label, other.mean_prediction - self.mean_prediction);
        let (share, weight) = (m / (n + m), n * m / (n + m));
        Column {
            count: self.count + other.count,
            absolute: self.absolute + other.absolute,
            squared: self.squared + other.squared,
            mean_label: self.mean_label + dl * share,
            mean_prediction: self.mean_prediction + dp * share,
            labels: self.labels + other.labels + dl * dl * weight,
            predictions: self.predictions + other.predictions + dp * dp * weight,
            both: self.both + other.both + dl * dp * weight,
        }
    }

    fn score(&self, metric: RegressionMetric) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let n = self.count as f64;
        match metric {
            RegressionMetric::Mse => Some(self.squared / n),
            RegressionMetric::Mae => Some(self.absolute / n),
            RegressionMetric::Rmse => Some((self.squared / n).sqrt()),
            RegressionMetric::Rse if self.labels == 0. => Some(if self.squared == 0. { 0. } else { 1. }),
            RegressionMetric::Rse => Some(self.squared / self.labels),
            RegressionMetric::RSquared => self.score(RegressionMetric::Rse).map(|rse| 1. - rse),
            RegressionMetric::PearsonCorrelation => {
                let spread = self.labels.sqrt() * self.predictions.sqrt();
                (spread > 0.).then(|| (self.both / spread).clamp(-1., 1.))
            }
        }
    }

    fn to_json(self) -> Value {
        let means = [self.mean_label, self.mean_prediction];
        let sums = [self.absolute, self.squared, self.labels, self.predictions, self.both];
        json!({ "count": self.count, "means": exact(&means), "sums": exact(&sums) })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let numbers = |key: &str| list(value.get(key)?, number);
        let &[mean_label, mean_prediction] = &numbers("means")?[..] else { return None };
        let &[absolute, squared, labels, predictions, both] = &numbers("sums")?[..] else { return None };
        let count = count(value.get("count")?)?;
        Some(Column { count, absolute, squared, mean_label, mean_prediction, labels, predictions, both })
    }
}

impl Default for RegressionEvaluation {
    fn default() -> Self {
        RegressionEvaluation { labels: Vec::new(), precision: 5, axis: 1, columns: Vec::new() }
    }
}

impl RegressionEvaluation {
    /// Names of the columns, for texts.
    #[must_use]
    pub fn with_labels<S: Into<String>>(mut self, labels: impl IntoIterator<Item = S>) -> Self {
        self.labels = labels.into_iter().map(Into::into).collect();
        self
    }

    /// Digits after the point in texts; 5 unless this says something else, and 1100 at most.
    #[must_use]
    pub fn with_precision(mut self, digits: usize) -> Self {
        self.precision = digits.min(DIGITS_MAX);
        self
    }

    /// The axis of the columns; negative ones count from the end.
    #[must_use]
    pub fn with_axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Number of columns; 0 before the first batch.
    pub fn num_columns(&self) -> usize {
        self.columns.len()
    }

    /// Numbers of a column that were counted.
    pub fn count(&self, column: usize) -> u64 {
        self.columns.get(column).map_or(0, |column| column.count)
    }

    /// A figure of a column; None if nothing was counted there, or for the correlation of what does not vary.
    pub fn score(&self, metric: RegressionMetric, column: usize) -> Option<f64> {
        self.columns.get(column)?.score(metric)
    }

    /// The mean of a figure over the columns that have it.
    ///
    /// ```
    /// # use ndgc::train::{IEvaluation, RegressionEvaluation, RegressionMetric};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[[0f64, 0.], [0., 0.]], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[1f64, 3.], [-1., 3.]], &Device::Cpu)?;
    /// let mut evaluation = RegressionEvaluation::default().with_labels(["x", "y"]);
    /// evaluation.eval(&labels, &predictions, None)?;
    /// assert_eq!(evaluation.score(RegressionMetric::Mse, 1), Some(9.));
    /// assert_eq!(evaluation.average(RegressionMetric::Mse), Some(5.));
    /// assert_eq!(evaluation.average(RegressionMetric::PearsonCorrelation), None); // no label varies
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn average(&self, metric: RegressionMetric) -> Option<f64> {
        let mut all = Vec::new();
        for column in &self.columns {
            if let Some(score) = column.score(metric) {
                all.push(score);
            }
        }
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// Adds what another one counted.
    ///
    /// # Errors
    /// [`Error::Invalid`](ndgc::Error::Invalid) if it has other columns.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        of_call(|| {
            if other.columns.is_empty() {
                return Ok(());
            }
            same_columns("RegressionEvaluation", self.columns.len(), other.columns.len())?;
            self.begin("RegressionEvaluation", other.columns.len())?;
            for (own, more) in self.columns.iter_mut().zip(&other.columns) {
                *own = own.merged(*more);
            }
            Ok(())
        })
    }

    /// What [`IEvaluation::to_json`] wrote.
    ///
    /// # Errors
    /// [`Error::Invalid`](ndgc::Error::Invalid) for anything else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        of_call(|| {
            let json = JsonReader::new("RegressionEvaluation", text)?;
            Ok(RegressionEvaluation {
                labels: json.names("labels")?,
                precision: json.size_upto("precision", DIGITS_MAX)?,
                axis: json.integer("axis")?,
                columns: json.get("columns", |value| list(value, Column::from_json))?,
            })
        })
    }

    fn begin(&mut self, op: &'static str, columns: usize) -> Result<()> {
        if self.columns.is_empty() {
            room_for(op, "columns", 1, columns)?;
            self.columns = vec![Column::default(); columns];
        }
        Ok(())
    }
}

impl IEvaluation for RegressionEvaluation {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| {
            let op = "RegressionEvaluation::eval";
            if labels.dims() != predictions.dims() {
                // Whole numbers would be taken for classes.
                let why = "the labels must have the shape of the predictions";
                return Err(Error::shape_mismatch(op, labels.dims(), predictions.dims(), why));
            }
            let rows = Rows::new(op, self.axis, labels, predictions, mask)?;
            same_columns(op, self.columns.len(), rows.columns())?;
            self.begin(op, rows.columns())?;
            rows.for_each(&mut |row| {
                for (column, known) in self.columns.iter_mut().enumerate() {
                    if row.counts[column] {
                        *known = known.merged(Column::of(row.labels[column], row.predictions[column]));
                    }
                }
            });
            Ok(())
        })
    }

    fn reset(&mut self) {
        self.columns.clear();
    }

    fn stats(&self) -> String {
        if self.columns.is_empty() {
            return "RegressionEvaluation: No Data".to_owned();
        }
        let name = |column: usize| self.labels.get(column).cloned().unwrap_or_else(|| format!("col_{column}"));
        let names: Vec<String> = (0..self.columns.len()).map(name).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) + 5;
        let cell = self.precision + 10;
        let mut out = String::new();
        let mut put = |label: &str, cells: [String; 6]| {
            let cells: Vec<(String, usize)> =
                [(label.to_owned(), width)].into_iter().chain(cells.map(|text| (text, cell))).collect();
            line(&mut out, &cells);
            out.push('\n');
        };
        put("Column", RegressionMetric::ALL.map(|metric| metric.name().to_owned()));
        for (name, column) in names.iter().zip(&self.columns) {
            let text = |score: Option<f64>| score.map(|score| scientific(score, self.precision));
            put(name, RegressionMetric::ALL.map(|m| text(column.score(m)).unwrap_or_else(|| "undefined".to_owned())));
        }
        out
    }

    fn to_json(&self) -> String {
        let mut metrics = serde_json::Map::new();
        for metric in RegressionMetric::ALL {
            metrics.insert(format!("average_{}", metric.name()), json!(self.average(metric)));
        }
        json!({
            "type": "RegressionEvaluation",
            "labels": self.labels,
            "precision": self.precision,
            "axis": self.axis,
            "columns": self.columns.iter().map(|column| column.to_json()).collect::<Vec<_>>(),
            "metrics": metrics,
        })
        .to_string()
    }
}
