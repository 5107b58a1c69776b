//! Receiver operating characteristic of one score.

use std::cmp::Ordering;

use serde_json::{Value, json};

use ndgc::{Error, Result, Tensor};

use super::super::place::{called_here, of_call};

use super::counts::BinaryCounts;
use super::curves::{Point, PrecisionRecallCurve, RocCurve, area, without_redundant};
use super::interface::IEvaluation;
use super::json::{JsonReader, count, counts, exact, list, number};
use super::rows::Rows;

const STEPS_MAX: usize = 1 << 24;

/// How well a score tells two classes apart, whatever the threshold: curves of ROC, of precision and recall, and the
/// areas under them.
///
/// Exact, it keeps each score (8 bytes a row), and equal scores are one point of the curve, so that the area is the
/// probability that a positive has the larger score, where ties count half. With steps, it keeps two counters for each.
/// Exact curves begin at the threshold 1 and end at 0, as ND4J's do; where scores are beyond those, at infinity and at
/// the least.
///
/// Labels are one column, or two, of which the second is looked at. For more there is
/// [`RocMultiClass`](super::RocMultiClass).
///
/// ```
/// # use ndgc::train::{IEvaluation, Roc};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[1f32, 1., 0., 0.], &Device::Cpu)?;
/// let scores = Tensor::new(&[0.9f32, 0.4, 0.4, 0.1], &Device::Cpu)?;
/// let mut roc = Roc::default();
/// roc.eval(&labels, &scores, None)?;
/// assert_eq!(roc.auc(), Some(0.875)); // three and a half of four pairs
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Roc {
    steps: usize,
    remove_redundant: bool,
    axis: i64,
    positives: Scores,
    negatives: Scores,
}

/// The scores of one class.
#[derive(Clone, Debug, PartialEq)]
enum Scores {
    Exact(Vec<f64>),
    /// How many have their largest threshold at each place; those below 0 are counted in the second.
    Binned(Vec<u64>, u64),
}

impl Scores {
    fn new(steps: usize) -> Self {
        if steps == 0 { Scores::Exact(Vec::new()) } else { Scores::Binned(vec![0; steps + 1], 0) }
    }

    fn count(&self) -> u64 {
        match self {
            Scores::Exact(all) => all.len() as u64,
            Scores::Binned(bins, below) => bins.iter().sum::<u64>() + below,
        }
    }

    fn add(&mut self, score: f64) {
        match self {
            Scores::Exact(all) => all.push(score),
            Scores::Binned(bins, below) => {
                let steps = bins.len() - 1;
                // The product may be off by one place.
                let near = (score * steps as f64).clamp(0., steps as f64) as usize;
                let from = near.saturating_sub(1);
                let upto = (near + 1).min(steps);
                match (from..=upto).rev().find(|&i| threshold(i, steps) <= score) {
                    Some(place) => bins[place] += 1,
                    None => *below += 1,
                }
            }
        }
    }

    fn merge(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Scores::Exact(own), Scores::Exact(more)) => own.extend(more),
            (Scores::Binned(own, below), Scores::Binned(more, more_below)) if own.len() == more.len() => {
                own.iter_mut().zip(more).for_each(|(own, more)| *own += more);
                *below += more_below;
            }
            _ => return false,
        }
        true
    }

    /// How many are at least that.
    fn at_least(&self, limit: f64) -> u64 {
        match self {
            Scores::Exact(all) => all.iter().filter(|&&score| score >= limit).count() as u64,
            Scores::Binned(bins, _) => {
                let steps = bins.len() - 1;
                (0..bins.len()).filter(|&i| threshold(i, steps) >= limit).map(|i| bins[i]).sum()
            }
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Scores::Exact(all) => exact(all),
            Scores::Binned(bins, below) => json!({ "bins": bins, "below": below }),
        }
    }

    fn from_json(value: &Value, steps: usize) -> Option<Self> {
        if steps == 0 {
            // NaN is equal to no threshold: no cut would take it.
            return list(value, |score| number(score).filter(|score| !score.is_nan())).map(Scores::Exact);
        }
        let bins = counts(value.get("bins")?)?;
        (bins.len() == steps + 1).then_some(Scores::Binned(bins, count(value.get("below")?)?))
    }
}

fn threshold(place: usize, steps: usize) -> f64 {
    place as f64 / steps as f64
}

/// Rows at least as large as a threshold: positives and negatives.
#[derive(Clone, Copy)]
struct ThresholdCounts {
    threshold: f64,
    tp: u64,
    fp: u64,
}

impl Default for Roc {
    /// Exact.
    fn default() -> Self {
        Self::of_steps(0)
    }
}

impl Roc {
    /// With as many steps between thresholds from 0 to 1; exact for 0.
    ///
    /// ND4J's guide has `new ROC(outputNum)`, where the number is that of the steps, not of classes: two steps tell
    /// little. Give 0, whatever the number of outputs.
    ///
    /// # Errors
    /// [`Error::Argument`] for more than 16,777,216 steps.
    #[track_caller]
    pub fn new(threshold_steps: usize) -> Result<Self> {
        if threshold_steps > STEPS_MAX {
            let (value, expected) = (threshold_steps.to_string(), "at most 16777216; 0 is exact");
            return called_here(Err(Error::argument("Roc::new", "threshold_steps", value, expected)));
        }
        Ok(Self::of_steps(threshold_steps))
    }

    pub(super) fn of_steps(steps: usize) -> Self {
        let (positives, negatives) = (Scores::new(steps), Scores::new(steps));
        Roc { steps, remove_redundant: true, axis: 1, positives, negatives }
    }

    /// Whether exact curves are without points between two others on a horizontal or vertical line, as they are at
    /// first.
    #[must_use]
    pub fn with_remove_redundant_points(mut self, remove: bool) -> Self {
        self.remove_redundant = remove;
        self
    }

    /// The axis of the two columns; negative ones count from the end.
    #[must_use]
    pub fn with_axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Steps between thresholds; 0 if it is exact.
    pub fn threshold_steps(&self) -> usize {
        self.steps
    }

    /// Rows that are positive.
    pub fn positives(&self) -> u64 {
        self.positives.count()
    }

    /// Rows that are not.
    pub fn negatives(&self) -> u64 {
        self.negatives.count()
    }

    pub(super) fn add(&mut self, is_positive: bool, score: f64) {
        if is_positive { self.positives.add(score) } else { self.negatives.add(score) }
    }

    /// Right and wrong answers if what is at least as large as this is predicted to be positive; with steps, at the
    /// next threshold that is not below it.
    ///
    /// ```
    /// # use ndgc::train::{IEvaluation, Roc};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[1f32, 1., 0., 0.], &Device::Cpu)?;
    /// let scores = Tensor::new(&[0.9f32, 0.4, 0.4, 0.1], &Device::Cpu)?;
    /// let mut roc = Roc::default();
    /// roc.eval(&labels, &scores, None)?;
    /// let counts = roc.counts_at_threshold(0.5);
    /// assert_eq!((counts.true_positives, counts.false_negatives), (1, 1));
    /// assert_eq!((counts.true_negatives, counts.false_positives), (2, 0));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn counts_at_threshold(&self, threshold: f64) -> BinaryCounts {
        let (tp, fp) = (self.positives.at_least(threshold), self.negatives.at_least(threshold));
        BinaryCounts {
            true_positives: tp,
            false_positives: fp,
            true_negatives: self.negatives() - fp,
            false_negatives: self.positives() - tp,
        }
    }

    /// The area under the ROC curve; None if only one class was seen.
    pub fn auc(&self) -> Option<f64> {
        let (positives, negatives) = (self.positives(), self.negatives());
        if positives == 0 || negatives == 0 {
            return None;
        }
        // In whole numbers: twice the pairs in the right order, where ties count half.
        let mut twice = 0u128;
        let mut last = (0, 0);
        for cut in self.cuts().chain([ThresholdCounts { threshold: 0., tp: positives, fp: negatives }]) {
            twice += u128::from(cut.fp - last.1) * u128::from(cut.tp + last.0);
            last = (cut.tp, cut.fp);
        }
        Some(twice as f64 / (2. * positives as f64 * negatives as f64))
    }

    /// The area under the curve of precision over recall; None if there was no positive.
    pub fn auprc(&self) -> Option<f64> {
        Some(self.precision_recall_curve()?.auprc)
    }

    /// The ROC curve; None if only one class was seen.
    ///
    /// ```
    /// # use ndgc::train::{IEvaluation, Roc};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[1f64, 1., 0., 0.], &Device::Cpu)?;
    /// let scores = Tensor::new(&[0.9f64, 0.4, 0.4, 0.1], &Device::Cpu)?;
    /// let mut roc = Roc::default().with_remove_redundant_points(false);
    /// roc.eval(&labels, &scores, None)?;
    /// let curve = roc.roc_curve().unwrap();
    /// assert_eq!(curve.thresholds, [1., 0.9, 0.4, 0.1, 0.]);
    /// assert_eq!(curve.true_positive_rates, [0., 0.5, 1., 1., 1.]);
    /// assert_eq!(curve.false_positive_rates, [0., 0., 0.5, 1., 1.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn roc_curve(&self) -> Option<RocCurve> {
        let auc = self.auc()?;
        let (p, n) = (self.positives() as f64, self.negatives() as f64);
        let mut points: Vec<Point> =
            self.cuts().map(|cut| [cut.threshold, cut.fp as f64 / n, cut.tp as f64 / p]).collect();
        if self.steps == 0 {
            points.insert(0, [above(&points), 0., 0.]);
            if points.last().is_some_and(|last| last[0] > 0.) {
                points.push([0., 1., 1.]);
            }
            if self.remove_redundant {
                points = without_redundant(&points);
            }
        } else {
            points.reverse();
        }
        let column = |axis: usize| points.iter().map(|point| point[axis]).collect();
        Some(RocCurve { thresholds: column(0), false_positive_rates: column(1), true_positive_rates: column(2), auc })
    }

    /// The curve of precision over recall; None if there was no positive.
    pub fn precision_recall_curve(&self) -> Option<PrecisionRecallCurve> {
        let (positives, negatives) = (self.positives(), self.negatives());
        if positives == 0 {
            return None;
        }
        let point = |cut: ThresholdCounts| -> Point {
            let predicted = cut.tp + cut.fp;
            let precision = if predicted == 0 { 1. } else { cut.tp as f64 / predicted as f64 };
            [cut.threshold, cut.tp as f64 / positives as f64, precision]
        };
        let mut points: Vec<Point> = self.cuts().map(point).collect();
        if self.steps == 0 {
            points.insert(0, [above(&points), 0., 1.]);
            if points.last().is_some_and(|last| last[0] > 0.) {
                points.push(point(ThresholdCounts { threshold: 0., tp: positives, fp: negatives }));
            }
        }
        points.reverse();
        let auprc = area(&points);
        if self.steps == 0 && self.remove_redundant {
            points = without_redundant(&points);
        }
        let column = |axis: usize| points.iter().map(|point| point[axis]).collect();
        Some(PrecisionRecallCurve { thresholds: column(0), recalls: column(1), precisions: column(2), auprc })
    }

    /// Adds what another one counted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has other steps.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.steps != other.steps {
            let (a, b) = (self.steps, other.steps);
            let why = format!("{a} and {b} steps do not add up; 0 is exact");
            return called_here(Err(Error::invalid("Roc", why)));
        }
        self.positives.merge(&other.positives);
        self.negatives.merge(&other.negatives);
        Ok(())
    }

    /// What [`IEvaluation::to_json`] wrote.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        of_call(|| Self::read(&JsonReader::new("ROC", text)?))
    }

    pub(super) fn read(json: &JsonReader) -> Result<Self> {
        let steps = Self::read_steps(json)?;
        Ok(Roc {
            steps,
            remove_redundant: json.flag("remove_redundant_points")?,
            axis: json.integer("axis")?,
            positives: json.get("positives", |value| Scores::from_json(value, steps))?,
            negatives: json.get("negatives", |value| Scores::from_json(value, steps))?,
        })
    }

    /// As many steps as [`Roc::new`] takes.
    pub(super) fn read_steps(json: &JsonReader) -> Result<usize> {
        json.size_upto("threshold_steps", STEPS_MAX)
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "type": "ROC",
            "threshold_steps": self.steps,
            "remove_redundant_points": self.remove_redundant,
            "axis": self.axis,
            "positives": self.positives.to_json(),
            "negatives": self.negatives.to_json(),
            "metrics": { "auc": self.auc(), "auprc": self.auprc() },
        })
    }

    /// From the highest threshold down; equal scores are one.
    fn cuts(&self) -> Box<dyn Iterator<Item = ThresholdCounts> + '_> {
        match (&self.positives, &self.negatives) {
            (Scores::Binned(positives, _), Scores::Binned(negatives, _)) => {
                let (mut tp, mut fp) = (0, 0);
                Box::new((0..positives.len()).rev().map(move |place| {
                    tp += positives[place];
                    fp += negatives[place];
                    // As in exact curves, and as of ND4J: nothing is above 1.
                    let (tp, fp) = if place == self.steps { (0, 0) } else { (tp, fp) };
                    ThresholdCounts { threshold: threshold(place, self.steps), tp, fp }
                }))
            }
            (Scores::Exact(positives), Scores::Exact(negatives)) => {
                let (positives, negatives) = (falling(positives), falling(negatives));
                let (mut tp, mut fp) = (0, 0);
                Box::new(std::iter::from_fn(move || {
                    let next = |all: &[f64], from: usize| all.get(from).copied().unwrap_or(f64::NEG_INFINITY);
                    if tp == positives.len() && fp == negatives.len() {
                        return None;
                    }
                    let threshold = next(&positives, tp).max(next(&negatives, fp));
                    tp += positives[tp..].iter().take_while(|score| **score == threshold).count();
                    fp += negatives[fp..].iter().take_while(|score| **score == threshold).count();
                    Some(ThresholdCounts { threshold, tp: tp as u64, fp: fp as u64 })
                }))
            }
            _ => Box::new(std::iter::empty()),
        }
    }
}

/// The threshold of a curve's point at which nothing is predicted to be positive: 1, unless a score is larger.
fn above(points: &[Point]) -> f64 {
    if points.first().is_some_and(|first| first[0] > 1.) { f64::INFINITY } else { 1. }
}

fn falling(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(|a, b| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    sorted
}

/// The line that says that figures are not exact.
pub(super) fn note(steps: usize) -> String {
    if steps == 0 {
        return String::new();
    }
    format!(
        "\n[Note: Thresholded AUC/AUPRC calculation used with {steps} steps; accuracy may be reduced compared to exact \
         mode]"
    )
}

impl IEvaluation for Roc {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| {
            let op = "Roc::eval";
            let rows = Rows::new(op, self.axis, labels, predictions, mask)?;
            if rows.columns() > 2 {
                return Err(Error::shape(
                    op,
                    predictions.dims(),
                    "one column, or two; RocMultiClass is for one class against all others, RocBinary for \
                           outputs of their own",
                ));
            }
            rows.whole_rows(op)?;
            let column = rows.columns().saturating_sub(1);
            rows.for_each(&mut |row| self.add(row.labels[column] > 0.5, row.predictions[column]));
            Ok(())
        })
    }

    fn reset(&mut self) {
        self.positives = Scores::new(self.steps);
        self.negatives = Scores::new(self.steps);
    }

    fn stats(&self) -> String {
        if self.positives() + self.negatives() == 0 {
            return "ROC: No data available (no data has been performed)".to_owned();
        }
        let text = |number: Option<f64>| number.map_or_else(|| "undefined".to_owned(), |number| format!("{number:?}"));
        format!(
            "AUC (Area under ROC Curve):                {}\nAUPRC (Area under Precision/Recall Curve): {}{}",
            text(self.auc()),
            text(self.auprc()),
            note(self.steps)
        )
    }

    fn to_json(&self) -> String {
        self.to_value().to_string()
    }
}
