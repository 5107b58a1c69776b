//! Which class was predicted for which: the confusion matrix, and figures made of it.

use serde_json::json;

use ndgc::{Error, Result, Tensor};

use super::super::place::of_call;

use super::counts::{Averaging, BinaryCounts, Metric, average};
use super::interface::IEvaluation;
use super::json::{JsonReader, exact, list, number};
use super::plot;
use super::predictions::{Prediction, Predictions};
use super::rows::{Row, Rows, argmax, same_columns};
use super::table;

/// The most classes: their confusion matrix has the square of that.
const CLASSES_MAX: usize = 1 << 15;

/// Classification: the class with the largest number is predicted, that of the largest label is right.
///
/// One column is two classes, of which the second is predicted above 0.5. Of two classes, precision, recall and F1 are
/// those of the second, unless [`Evaluation::with_positive_class`] says something else; of more, the mean over the
/// classes.
///
/// ```
/// # use ndgc::train::{Averaging, Evaluation, IEvaluation, Metric};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[0u32, 1, 2, 2], &Device::Cpu)?; // or [n, c] with a 1 in each row
/// let rows = [[0.8f32, 0.1, 0.1], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7], [0.5, 0.1, 0.4]];
/// let predictions = Tensor::new(&rows, &Device::Cpu)?;
/// let mut evaluation = Evaluation::new(3).with_labels(["cat", "dog", "emu"]);
/// evaluation.eval(&labels, &predictions, None)?;
/// assert_eq!(evaluation.accuracy(), 0.75);
/// assert_eq!(evaluation.confusion(2, 0), 1); // an emu that was taken for a cat
/// assert_eq!(evaluation.score_of(Metric::Recall, 2), 0.5);
/// assert_eq!(evaluation.score_averaged(Metric::F1, Averaging::Micro), 0.75);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    pub(super) labels: Vec<String>,
    /// The number that was asked for; 0 for that of the first batch.
    wanted: usize,
    pub(super) top_n: usize,
    pub(super) positive_class: Option<usize>,
    pub(super) threshold: Option<f64>,
    pub(super) costs: Option<Vec<f64>>,
    axis: i64,
    /// 0 as long as nothing is known of them.
    pub(super) classes: usize,
    /// Rows of class `actual` for which `predicted` was predicted, at `actual * classes + predicted`.
    matrix: Vec<u64>,
    top_n_correct: u64,
    /// Those of examples with ids.
    predictions: Predictions,
}

impl Default for Evaluation {
    /// Of as many classes as the first batch has.
    fn default() -> Self {
        Evaluation {
            labels: Vec::new(),
            wanted: 0,
            top_n: 1,
            positive_class: Some(1),
            threshold: None,
            costs: None,
            axis: 1,
            classes: 0,
            matrix: Vec::new(),
            top_n_correct: 0,
            predictions: Predictions::default(),
        }
    }
}

/// # Settings
impl Evaluation {
    /// Of this many classes; 0 for as many as the first batch has. 1 is the number of outputs of a network that tells
    /// two classes apart by one: they are two.
    pub fn new(classes: usize) -> Self {
        let wanted = if classes == 1 { 2 } else { classes };
        Evaluation { wanted, ..Self::default() }
    }

    /// Names of the classes, for texts.
    #[must_use]
    pub fn with_labels<S: Into<String>>(mut self, labels: impl IntoIterator<Item = S>) -> Self {
        self.labels = labels.into_iter().map(Into::into).collect();
        self
    }

    /// Counts also the rows whose class is among the `n` most likely.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.5f32, 0.3, 0.2], [0.5, 0.3, 0.2]], &Device::Cpu)?;
    /// let mut evaluation = Evaluation::new(3).with_top_n(2);
    /// evaluation.eval(&labels, &predictions, None)?;
    /// assert_eq!(evaluation.accuracy(), 0.); // class 0 was predicted twice
    /// assert_eq!(evaluation.top_n_accuracy(), 0.5); // but class 1 was the second choice
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn with_top_n(mut self, n: usize) -> Self {
        self.top_n = n.max(1);
        self
    }

    /// Of two classes, the one that precision, recall and F1 are of, 0 or 1; None for the mean over both.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[1u32, 1, 0, 0], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.1f32, 0.9], [0.8, 0.2], [0.9, 0.1], [0.7, 0.3]], &Device::Cpu)?;
    /// let recall = |mut evaluation: Evaluation| {
    ///     evaluation.eval(&labels, &predictions, None)?;
    ///     Ok::<f64, ndgc::Error>(evaluation.recall())
    /// };
    /// assert_eq!(recall(Evaluation::new(2))?, 0.5); // of class 1
    /// assert_eq!(recall(Evaluation::new(2).with_positive_class(Some(0)))?, 1.);
    /// assert_eq!(recall(Evaluation::new(2).with_positive_class(None))?, 0.75);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn with_positive_class(mut self, class: Option<usize>) -> Self {
        self.positive_class = class;
        self
    }

    /// Of two classes, the second is predicted above this probability.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[1u32, 0], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.6f32, 0.4], [0.9, 0.1]], &Device::Cpu)?;
    /// let mut evaluation = Evaluation::new(2).with_binary_decision_threshold(0.3);
    /// evaluation.eval(&labels, &predictions, None)?;
    /// assert_eq!(evaluation.accuracy(), 1.); // 0.4 is enough
    /// let three = Tensor::new(&[[0.5f32, 0.3, 0.2]], &Device::Cpu)?;
    /// let mut evaluation = Evaluation::default().with_binary_decision_threshold(0.3);
    /// assert!(evaluation.eval(&three, &three, None).is_err()); // it decides between two classes
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn with_binary_decision_threshold(mut self, threshold: f64) -> Self {
        self.threshold = Some(threshold);
        self
    }

    /// What is multiplied with the probabilities before the largest is looked for: one for each class. One column has
    /// the probability of the second; that of the first is the rest.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let label = Tensor::new(&[1u32], &Device::Cpu)?;
    /// let prediction = Tensor::new(&[[0.6f32, 0.4]], &Device::Cpu)?;
    /// let mut evaluation = Evaluation::new(2).with_cost_array([1., 2.]);
    /// evaluation.eval(&label, &prediction, None)?;
    /// assert_eq!(evaluation.confusion(1, 1), 1); // 0.8 of class 1 is more than 0.6 of class 0
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn with_cost_array(mut self, costs: impl Into<Vec<f64>>) -> Self {
        self.costs = Some(costs.into());
        self
    }

    /// The axis of the classes; negative ones count from the end.
    #[must_use]
    pub fn with_axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }
}

/// # Counts and figures
impl Evaluation {
    /// Rows that were counted.
    pub fn rows(&self) -> u64 {
        self.matrix.iter().sum()
    }

    /// Number of classes; 0 as long as none is known.
    pub fn num_classes(&self) -> usize {
        self.classes
    }

    /// Rows of class `actual` for which `predicted` was predicted.
    pub fn confusion(&self, actual: usize, predicted: usize) -> u64 {
        let inside = actual < self.classes && predicted < self.classes;
        if inside { self.matrix[actual * self.classes + predicted] } else { 0 }
    }

    /// Right and wrong answers for one class against all others.
    pub fn counts(&self, class: usize) -> BinaryCounts {
        let true_positives = self.confusion(class, class);
        let actual: u64 = (0..self.classes).map(|other| self.confusion(class, other)).sum();
        let predicted: u64 = (0..self.classes).map(|other| self.confusion(other, class)).sum();
        one_against_all(true_positives, [actual, predicted], self.rows())
    }

    /// Those of all classes, by one look at each number of the matrix.
    pub(super) fn all_counts(&self) -> Vec<BinaryCounts> {
        let (mut actual, mut predicted) = (vec![0u64; self.classes], vec![0u64; self.classes]);
        for (class, row) in self.matrix.chunks_exact(self.classes.max(1)).enumerate() {
            actual[class] = row.iter().sum::<u64>();
            predicted.iter_mut().zip(row).for_each(|(predicted, count)| *predicted += count);
        }
        let rows: u64 = actual.iter().sum();
        let of = |class| one_against_all(self.confusion(class, class), [actual[class], predicted[class]], rows);
        (0..self.classes).map(of).collect()
    }

    /// The figure of one class.
    pub fn score_of(&self, metric: Metric, class: usize) -> f64 {
        self.counts(class).score(metric)
    }

    /// The figure of all classes together.
    pub fn score_averaged(&self, metric: Metric, averaging: Averaging) -> f64 {
        match metric {
            Metric::Accuracy => self.accuracy(),
            metric => average(&self.all_counts(), metric, averaging),
        }
    }

    /// The figure as [`Evaluation::stats`] reports it: of the positive class where there are two classes, else the mean
    /// over the classes.
    pub fn score(&self, metric: Metric) -> f64 {
        match self.positive_class {
            Some(class) if self.classes == 2 && metric != Metric::Accuracy => self.score_of(metric, class),
            _ => self.score_averaged(metric, Averaging::Macro),
        }
    }

    /// Of all rows, the share that was predicted right; 0 without rows.
    pub fn accuracy(&self) -> f64 {
        let right: u64 = (0..self.classes).map(|class| self.confusion(class, class)).sum();
        right as f64 / self.rows().max(1) as f64
    }

    /// Of all rows, the share whose class was among the `n` most likely ([`Evaluation::with_top_n`]).
    pub fn top_n_accuracy(&self) -> f64 {
        self.top_n_correct as f64 / self.rows().max(1) as f64
    }

    /// [`Evaluation::score`] of [`Metric::Precision`].
    pub fn precision(&self) -> f64 {
        self.score(Metric::Precision)
    }

    /// [`Evaluation::score`] of [`Metric::Recall`].
    pub fn recall(&self) -> f64 {
        self.score(Metric::Recall)
    }

    /// [`Evaluation::score`] of [`Metric::F1`].
    pub fn f1(&self) -> f64 {
        self.score(Metric::F1)
    }

    /// The mean of the rates of false positives and false negatives, over all classes.
    pub fn false_alarm_rate(&self) -> f64 {
        let rate = |metric| self.score_averaged(metric, Averaging::Macro);
        (rate(Metric::FalsePositiveRate) + rate(Metric::FalseNegativeRate)) / 2.
    }

    /// The name of a class, or its number.
    pub fn label(&self, class: usize) -> String {
        table::name(&self.labels, class)
    }

    /// The confusion matrix as a picture, in SVG.
    pub fn confusion_svg(&self) -> String {
        let names = table::names(&self.labels, self.classes);
        plot::matrix("Confusion matrix", &names, &|actual, predicted| self.confusion(actual, predicted))
    }

    /// The confusion matrix as lines of numbers between commas, with a line and a column of names.
    pub fn confusion_csv(&self) -> String {
        let quoted = |class| format!("\"{}\"", self.label(class).replace('"', "\"\""));
        let head: Vec<String> = (0..self.classes).map(quoted).collect();
        let mut text = format!("actual,{}\n", head.join(","));
        for actual in 0..self.classes {
            let counts = (0..self.classes).map(|predicted| self.confusion(actual, predicted).to_string());
            text += &format!("{},{}\n", quoted(actual), counts.collect::<Vec<_>>().join(","));
        }
        text
    }
}

/// # Which examples
///
/// Of those that came with ids ([`DataSet::with_example_ids`](crate::train::DataSet::with_example_ids)), each that
/// counted, and each of its steps that did, is kept (24 bytes each): of the others there is nothing here. All are in
/// the order of their classes and ids, however the parts of an evaluation were merged.
impl Evaluation {
    /// Those that were taken for a class that they are not of: DL4J's `getPredictionErrors`.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation, Prediction};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[0u32, 1, 1], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.9f32, 0.1], [0.2, 0.8], [0.6, 0.4]], &Device::Cpu)?;
    /// let files = ["cat.png", "dog.png", "fox.png"];
    /// let mut evaluation = Evaluation::new(2);
    /// evaluation.eval_with_ids(&labels, &predictions, None, &[0, 1, 2])?;
    /// let wrong = evaluation.prediction_errors();
    /// assert_eq!(wrong, [Prediction { actual: 1, predicted: 0, example_id: 2 }]);
    /// assert_eq!(files[wrong[0].example_id as usize], "fox.png");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn prediction_errors(&self) -> Vec<Prediction> {
        self.predictions.sorted(&|one| one.actual != one.predicted)
    }

    /// Those of class `actual`, whatever was predicted.
    pub fn predictions_by_actual_class(&self, actual: usize) -> Vec<Prediction> {
        self.predictions.sorted(&|one| one.actual == actual)
    }

    /// Those that were taken for `predicted`, whatever they are.
    pub fn predictions_by_predicted_class(&self, predicted: usize) -> Vec<Prediction> {
        self.predictions.sorted(&|one| one.predicted == predicted)
    }

    /// Those of class `actual` that were taken for `predicted`: if all rows had ids, as many as
    /// [`Evaluation::confusion`] says.
    pub fn predictions(&self, actual: usize, predicted: usize) -> Vec<Prediction> {
        self.predictions.sorted(&|one| (one.actual, one.predicted) == (actual, predicted))
    }
}

/// # Putting together
impl Evaluation {
    /// Adds what another one counted. Of one that has counted nothing, only the classes it was asked for are looked at.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[0u32, 1], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.9f32, 0.1], [0.6, 0.4]], &Device::Cpu)?;
    /// let (mut one, mut other) = (Evaluation::new(2), Evaluation::new(2));
    /// one.eval(&labels, &predictions, None)?; // as another thread or process does
    /// other.eval(&labels, &predictions, None)?;
    /// one.merge(&other)?;
    /// assert_eq!((one.rows(), one.accuracy()), (4, 0.5));
    /// assert!(one.merge(&Evaluation::new(3)).is_err()); // which was asked for other classes
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has other classes, or was asked for others; if it counts another number of most likely
    /// ones.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        of_call(|| {
            let classes = if other.classes > 0 { other.classes } else { other.wanted };
            if classes > 0 {
                self.fits(classes)?;
            }
            if other.classes == 0 {
                return Ok(());
            }
            if self.top_n != other.top_n {
                return Err(Error::invalid(
                    "Evaluation",
                    format!("top {} and top {} do not add up", self.top_n, other.top_n),
                ));
            }
            self.begin(other.classes);
            for (own, more) in self.matrix.iter_mut().zip(&other.matrix) {
                *own += more;
            }
            self.top_n_correct += other.top_n_correct;
            self.predictions.0.extend(&other.predictions.0);
            Ok(())
        })
    }

    /// What [`IEvaluation::to_json`] wrote.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[0u32, 1], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.9f32, 0.1], [0.6, 0.4]], &Device::Cpu)?;
    /// let mut evaluation = Evaluation::new(2);
    /// evaluation.eval(&labels, &predictions, None)?;
    /// let mut read = Evaluation::from_json(&evaluation.to_json())?;
    /// assert_eq!(read, evaluation);
    /// read.eval(&labels, &predictions, None)?; // it goes on counting
    /// assert_eq!(read.rows(), 4);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        of_call(|| {
            let json = JsonReader::new("Evaluation", text)?;
            let read = Evaluation {
                labels: json.names("labels")?,
                wanted: json.size("wanted_classes")?,
                top_n: json.size("top_n")?,
                positive_class: json.option("positive_class", |class| class.as_u64().map(|class| class as usize))?,
                threshold: json.option("binary_decision_threshold", number)?,
                costs: json.option("cost_array", |costs| list(costs, number))?,
                axis: json.integer("axis")?,
                classes: json.size("classes")?,
                matrix: json.counts("confusion")?,
                top_n_correct: json.count("top_n_correct")?,
                predictions: json.if_there("predictions", Predictions::read)?.unwrap_or_default(),
            };
            if read.classes.checked_mul(read.classes) != Some(read.matrix.len()) {
                return Err(json.refuse("`confusion` is not a matrix of `classes`"));
            }
            if read.wanted != 0 && read.classes != 0 && read.classes != read.wanted {
                return Err(json.refuse("`classes` are not those of `wanted_classes`"));
            }
            if read.top_n_correct > read.rows() {
                return Err(json.refuse("`top_n_correct` is more than the rows of `confusion`"));
            }
            if !read.predictions.are_among(&read.matrix, read.classes) {
                return Err(json.refuse("`predictions` are not among the rows of `confusion`"));
            }
            Ok(read)
        })
    }

    /// Whether batches of so many classes can be counted, with these settings.
    fn fits(&self, classes: usize) -> Result<()> {
        let op = "Evaluation";
        same_columns(op, if self.classes > 0 { self.classes } else { self.wanted }, classes)?;
        if classes > CLASSES_MAX {
            return Err(Error::invalid(
                op,
                format!("{classes} classes; at most {CLASSES_MAX} have a confusion matrix"),
            ));
        }
        if self.threshold.is_some() && classes != 2 {
            return Err(Error::invalid(op, format!("a threshold decides between two classes, and here are {classes}")));
        }
        if let Some(class) = self.positive_class.filter(|class| classes == 2 && *class > 1) {
            return Err(Error::invalid(op, format!("{class} is none of two classes; the positive one is 0 or 1")));
        }
        match &self.costs {
            Some(costs) if costs.len() != classes => {
                Err(Error::invalid(op, format!("{} costs for {classes} classes; give one for each", costs.len())))
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, classes: usize) {
        if self.classes == 0 {
            self.classes = classes;
            self.matrix = vec![0; classes * classes];
        }
    }

    /// Looks at a batch; with ids, its predictions are kept.
    fn look(
        &mut self,
        labels: &Tensor,
        predictions: &Tensor,
        mask: Option<&Tensor>,
        ids: Option<&[u64]>,
    ) -> Result<()> {
        let op = "Evaluation::eval";
        let rows = Rows::new(op, self.axis, labels, predictions, mask)?;
        rows.whole_rows(op)?;
        let classes = rows.columns().max(2);
        self.fits(classes)?;
        let ids = match ids {
            Some(ids) => Some((ids, rows.of_each(op, ids)?)),
            None => None,
        };
        self.begin(classes);
        rows.for_each(&mut |row| {
            let (actual, predicted) = self.count(&row);
            if let Some((ids, rows_of_each)) = ids {
                let example_id = ids[row.at / rows_of_each];
                self.predictions.0.push(Prediction { actual, predicted, example_id });
            }
        });
        Ok(())
    }

    /// Counts a row. Its class, and what was predicted.
    fn count(&mut self, row: &Row<'_>) -> (usize, usize) {
        let (actual, predicted) = if let ([label], [prediction]) = (row.labels, row.predictions) {
            let is_second = match (self.threshold, self.costs.as_deref()) {
                (None, Some(&[first, second])) => prediction * second > (1. - prediction) * first,
                (threshold, _) => *prediction > threshold.unwrap_or(0.5),
            };
            (usize::from(*label > 0.5), usize::from(is_second))
        } else {
            let predicted = match (self.threshold, &self.costs) {
                (Some(threshold), _) => usize::from(row.predictions[1] > threshold),
                (None, Some(costs)) => argmax(row.predictions.iter().zip(costs).map(|(p, cost)| p * cost)),
                (None, None) => argmax(row.predictions.iter().copied()),
            };
            (argmax(row.labels.iter().copied()), predicted)
        };
        self.matrix[actual * self.classes + predicted] += 1;
        let among = match row.predictions.get(actual) {
            // One column is two classes, both of which are among the two most likely.
            _ if self.top_n >= self.classes => true,
            Some(own) if self.top_n > 1 => row.predictions.iter().filter(|p| *p > own).count() < self.top_n,
            _ => actual == predicted,
        };
        self.top_n_correct += u64::from(among);
        (actual, predicted)
    }
}

/// The counts of a class: of so many rows those that are of it, and those that it was predicted for.
fn one_against_all(true_positives: u64, [actual, predicted]: [u64; 2], rows: u64) -> BinaryCounts {
    BinaryCounts {
        true_positives,
        false_positives: predicted - true_positives,
        false_negatives: actual - true_positives,
        true_negatives: rows + true_positives - actual - predicted,
    }
}

impl IEvaluation for Evaluation {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| self.look(labels, predictions, mask, None))
    }

    #[track_caller]
    fn eval_with_ids(
        &mut self,
        labels: &Tensor,
        predictions: &Tensor,
        mask: Option<&Tensor>,
        example_ids: &[u64],
    ) -> Result<()> {
        of_call(|| self.look(labels, predictions, mask, Some(example_ids)))
    }

    fn reset(&mut self) {
        self.classes = 0;
        self.matrix = Vec::new();
        self.top_n_correct = 0;
        self.predictions = Predictions::default();
    }

    fn stats(&self) -> String {
        self.stats_with(true, None)
    }

    fn to_json(&self) -> String {
        let mut json = json!({
            "type": "Evaluation",
            "labels": self.labels,
            "wanted_classes": self.wanted,
            "top_n": self.top_n,
            "positive_class": self.positive_class,
            "binary_decision_threshold": self.threshold.map(|threshold| format!("{threshold:?}")),
            "cost_array": self.costs.as_deref().map(exact),
            "axis": self.axis,
            "classes": self.classes,
            "confusion": self.matrix,
            "top_n_correct": self.top_n_correct,
            "metrics": {
                "accuracy": self.accuracy(),
                "top_n_accuracy": self.top_n_accuracy(),
                "precision": self.precision(),
                "recall": self.recall(),
                "f1": self.f1(),
            },
        });
        if !self.predictions.0.is_empty() {
            json["predictions"] = self.predictions.write();
        }
        json.to_string()
    }
}
