//! Whether predicted probabilities are what they say.

use serde_json::{Value, json};

use ndgc::{Error, Result, Tensor};

use super::super::place::{called_here, of_call};

use super::interface::IEvaluation;
use super::json::{JsonReader, count, counts, exact, list, number};
use super::plot;
use super::rows::{Row, Rows, argmax, room_for, same_columns};

const BINS_MAX: usize = 1 << 20;

/// Of rows that were predicted with a probability of about p, how many were of the class: a calibrated network has
/// about p.
#[derive(Clone, Debug, PartialEq)]
pub struct ReliabilityDiagram {
    /// Mean probability predicted in each bin that is not empty.
    pub mean_predicted: Vec<f64>,
    /// Share of the rows of the bin that are of the class.
    pub fraction_positive: Vec<f64>,
}

impl ReliabilityDiagram {
    /// The diagram as a picture, in SVG.
    pub fn to_svg(&self) -> String {
        let axes = ["mean predicted probability", "fraction of positives"];
        plot::curve("Reliability", axes, &self.mean_predicted, &self.fraction_positive, Some([0., 1.]))
    }
}

/// Counts of numbers from 0 to 1 in bins of equal width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The count of each bin.
    pub counts: Vec<u64>,
}

/// Reliability of probabilities, and how they and their errors are distributed. A mask may have a number for each.
///
/// ```
/// # use ndgc::train::{EvaluationCalibration, IEvaluation};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[1u32, 0, 1], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[0.25f64, 0.75], [0.5, 0.5], [0.25, 0.75]], &Device::Cpu)?;
/// let mut evaluation = EvaluationCalibration::new(4, 4)?;
/// evaluation.eval(&labels, &predictions, None)?;
/// let diagram = evaluation.reliability_diagram(1).unwrap();
/// assert_eq!(diagram.mean_predicted, [0.5, 0.75]);
/// assert_eq!(diagram.fraction_positive, [0., 1.]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationCalibration {
    reliability_bins: usize,
    histogram_bins: usize,
    axis: i64,
    classes: Vec<Class>,
    all: Histograms,
}

/// What is known of a class.
#[derive(Clone, Debug, PartialEq)]
struct Class {
    labels: u64,
    predictions: u64,
    /// Of each bin: rows, those that are of the class, and the sum of the probabilities.
    rows: Vec<u64>,
    positives: Vec<u64>,
    sums: Vec<f64>,
    /// Of the rows of the class.
    own: Histograms,
}

#[derive(Clone, Debug, PartialEq)]
struct Histograms {
    residuals: Vec<u64>,
    probabilities: Vec<u64>,
}

impl Histograms {
    fn new(bins: usize) -> Self {
        Histograms { residuals: vec![0; bins], probabilities: vec![0; bins] }
    }

    fn add(&mut self, label: f64, probability: f64) {
        let bins = self.residuals.len();
        self.residuals[bin((label - probability).abs(), bins)] += 1;
        self.probabilities[bin(probability, bins)] += 1;
    }

    fn merge(&mut self, other: &Self) {
        add_all(&mut self.residuals, &other.residuals);
        add_all(&mut self.probabilities, &other.probabilities);
    }
}

/// The bin of a number from 0 to 1; what is outside is in the first or the last.
fn bin(number: f64, bins: usize) -> usize {
    ((number * bins as f64) as usize).min(bins - 1)
}

fn add_all(own: &mut [u64], more: &[u64]) {
    own.iter_mut().zip(more).for_each(|(own, more)| *own += more);
}

impl Default for EvaluationCalibration {
    /// 10 bins for reliability, 50 for histograms.
    fn default() -> Self {
        Self::of_bins(10, 50)
    }
}

impl EvaluationCalibration {
    /// With so many bins in the diagrams of reliability, and in the histograms.
    ///
    /// # Errors
    /// [`Error::Argument`] for no bins, or more than 1,048,576.
    #[track_caller]
    pub fn new(reliability_bins: usize, histogram_bins: usize) -> Result<Self> {
        for (argument, bins) in [("reliability_bins", reliability_bins), ("histogram_bins", histogram_bins)] {
            if bins == 0 || bins > BINS_MAX {
                let (op, value, expected) = ("EvaluationCalibration::new", bins.to_string(), "1 to 1048576");
                return called_here(Err(Error::argument(op, argument, value, expected)));
            }
        }
        Ok(Self::of_bins(reliability_bins, histogram_bins))
    }

    fn of_bins(reliability_bins: usize, histogram_bins: usize) -> Self {
        let all = Histograms::new(histogram_bins);
        EvaluationCalibration { reliability_bins, histogram_bins, axis: 1, classes: Vec::new(), all }
    }

    /// The axis of the classes; negative ones count from the end.
    #[must_use]
    pub fn with_axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Number of classes; 0 before the first batch.
    pub fn num_classes(&self) -> usize {
        self.classes.len()
    }

    /// Rows of each class.
    pub fn label_counts(&self) -> Vec<u64> {
        self.classes.iter().map(|class| class.labels).collect()
    }

    /// Rows for which each class was the most likely.
    pub fn prediction_counts(&self) -> Vec<u64> {
        self.classes.iter().map(|class| class.predictions).collect()
    }

    /// The diagram of a class.
    pub fn reliability_diagram(&self, class: usize) -> Option<ReliabilityDiagram> {
        let class = self.classes.get(class)?;
        let filled: Vec<usize> = (0..self.reliability_bins).filter(|&bin| class.rows[bin] > 0).collect();
        Some(ReliabilityDiagram {
            mean_predicted: filled.iter().map(|&bin| class.sums[bin] / class.rows[bin] as f64).collect(),
            fraction_positive: filled.iter().map(|&bin| class.positives[bin] as f64 / class.rows[bin] as f64).collect(),
        })
    }

    /// How far probabilities are from the labels, of all classes or of the rows of one, for that class.
    ///
    /// ```
    /// # use ndgc::train::{EvaluationCalibration, IEvaluation};
    /// # use ndgc::{Device, Tensor};
    /// let labels = Tensor::new(&[1u32, 0, 1], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.25f64, 0.75], [0.5, 0.5], [0.25, 0.75]], &Device::Cpu)?;
    /// let mut evaluation = EvaluationCalibration::new(10, 4)?;
    /// evaluation.eval(&labels, &predictions, None)?;
    /// assert_eq!(evaluation.residuals(None).unwrap().counts, [0, 4, 2, 0]); // four of 0.25, two of 0.5
    /// assert_eq!(evaluation.residuals(Some(0)).unwrap().counts, [0, 0, 1, 0]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn residuals(&self, class: Option<usize>) -> Option<Histogram> {
        self.histograms(class).map(|all| Histogram { counts: all.residuals.clone() })
    }

    /// Predicted probabilities, of all classes or of the rows of one, for that class.
    pub fn probabilities(&self, class: Option<usize>) -> Option<Histogram> {
        self.histograms(class).map(|all| Histogram { counts: all.probabilities.clone() })
    }

    fn histograms(&self, class: Option<usize>) -> Option<&Histograms> {
        class.map_or(Some(&self.all), |class| self.classes.get(class).map(|class| &class.own))
    }

    /// Adds what another one counted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has other classes or bins.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        of_call(|| {
            let bins = |one: &Self| (one.reliability_bins, one.histogram_bins);
            if bins(self) != bins(other) {
                return Err(Error::invalid("EvaluationCalibration", "other bins do not add up"));
            }
            if other.classes.is_empty() {
                return Ok(());
            }
            same_columns("EvaluationCalibration", self.classes.len(), other.classes.len())?;
            self.begin("EvaluationCalibration", other.classes.len())?;
            self.all.merge(&other.all);
            for (own, more) in self.classes.iter_mut().zip(&other.classes) {
                own.labels += more.labels;
                own.predictions += more.predictions;
                add_all(&mut own.rows, &more.rows);
                add_all(&mut own.positives, &more.positives);
                own.sums.iter_mut().zip(&more.sums).for_each(|(own, more)| *own += more);
                own.own.merge(&more.own);
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
            let json = JsonReader::new("EvaluationCalibration", text)?;
            let mut read = Self::new(json.size("reliability_bins")?, json.size("histogram_bins")?)?;
            read.axis = json.integer("axis")?;
            read.all.residuals = json.counts("residuals")?;
            read.all.probabilities = json.counts("probabilities")?;
            read.classes = json.get("classes", |classes| list(classes, Class::from_json))?;
            let whole =
                |all: &Histograms| [&all.residuals, &all.probabilities].map(Vec::len) == [read.histogram_bins; 2];
            let class = |class: &Class| {
                let bins = [class.rows.len(), class.positives.len(), class.sums.len()];
                bins == [read.reliability_bins; 3] && whole(&class.own)
            };
            if !whole(&read.all) || !read.classes.iter().all(class) {
                return Err(json.refuse("there are not as many counters as bins"));
            }
            Ok(read)
        })
    }

    fn begin(&mut self, op: &'static str, classes: usize) -> Result<()> {
        if self.classes.is_empty() {
            let bins = self.reliability_bins;
            room_for(op, "bins", bins + self.histogram_bins, classes)?;
            let class = || Class {
                labels: 0,
                predictions: 0,
                rows: vec![0; bins],
                positives: vec![0; bins],
                sums: vec![0.; bins],
                own: Histograms::new(self.histogram_bins),
            };
            self.classes = (0..classes).map(|_| class()).collect();
        }
        Ok(())
    }

    fn count(&mut self, row: &Row<'_>) {
        for (class, known) in self.classes.iter_mut().enumerate() {
            if !row.counts[class] {
                continue;
            }
            let (label, probability) = (row.labels[class], row.predictions[class]);
            let bin = bin(probability, self.reliability_bins);
            known.rows[bin] += 1;
            known.sums[bin] += probability;
            if label > 0.5 {
                known.labels += 1;
                known.positives[bin] += 1;
                known.own.add(label, probability);
            }
            self.all.add(label, probability);
        }
        let likely = argmax(row.predictions.iter().copied());
        self.classes[likely].predictions += u64::from(row.counts[likely]);
    }
}

impl Class {
    fn to_json(&self) -> Value {
        json!({
            "labels": self.labels,
            "predictions": self.predictions,
            "rows": self.rows,
            "positives": self.positives,
            "sums": exact(&self.sums),
            "residuals": self.own.residuals,
            "probabilities": self.own.probabilities,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let counts = |key: &str| counts(value.get(key)?);
        Some(Class {
            labels: count(value.get("labels")?)?,
            predictions: count(value.get("predictions")?)?,
            rows: counts("rows")?,
            positives: counts("positives")?,
            sums: list(value.get("sums")?, number)?,
            own: Histograms { residuals: counts("residuals")?, probabilities: counts("probabilities")? },
        })
    }
}

impl IEvaluation for EvaluationCalibration {
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        of_call(|| {
            let op = "EvaluationCalibration::eval";
            let rows = Rows::new(op, self.axis, labels, predictions, mask)?;
            same_columns(op, self.classes.len(), rows.columns())?;
            self.begin(op, rows.columns())?;
            rows.for_each(&mut |row| self.count(&row));
            Ok(())
        })
    }

    fn reset(&mut self) {
        *self = Self::of_bins(self.reliability_bins, self.histogram_bins).with_axis(self.axis);
    }

    fn stats(&self) -> String {
        format!("EvaluationCalibration(nBins={})", self.reliability_bins)
    }

    fn to_json(&self) -> String {
        json!({
            "type": "EvaluationCalibration",
            "reliability_bins": self.reliability_bins,
            "histogram_bins": self.histogram_bins,
            "axis": self.axis,
            "residuals": self.all.residuals,
            "probabilities": self.all.probabilities,
            "classes": self.classes.iter().map(Class::to_json).collect::<Vec<_>>(),
        })
        .to_string()
    }
}
