//! Right and wrong answers of one class, and the figures made of them.

use std::iter::Sum;

/// Answers for one class or output: of examples that are of the class, and of those that are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinaryCounts {
    /// Of the class, and predicted so.
    pub true_positives: u64,
    /// Not of the class, but predicted so.
    pub false_positives: u64,
    /// Not of the class, and not predicted so.
    pub true_negatives: u64,
    /// Of the class, but not predicted so.
    pub false_negatives: u64,
}

/// A figure made of [`BinaryCounts`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// The share of right answers.
    Accuracy,
    /// Of what was predicted to be of the class, the share that is.
    Precision,
    /// Of what is of the class, the share that was predicted to be.
    Recall,
    /// The harmonic mean of precision and recall.
    F1,
    /// As F1, where recall is this many times as important.
    FBeta(f64),
    /// The geometric mean of precision and recall.
    GMeasure,
    /// Matthews' correlation coefficient, from -1 to 1.
    Mcc,
    /// Of what is not of the class, the share that was predicted to be.
    FalsePositiveRate,
    /// Of what is of the class, the share that was not predicted to be.
    FalseNegativeRate,
}

/// How the figures of classes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Averaging {
    /// The mean over the classes; those without a figure (0/0) are left out.
    Macro,
    /// The figure of the classes' counts together.
    Micro,
}

impl BinaryCounts {
    /// Notes one answer.
    pub fn add(&mut self, is: bool, predicted: bool) {
        let count = match (is, predicted) {
            (true, true) => &mut self.true_positives,
            (false, true) => &mut self.false_positives,
            (false, false) => &mut self.true_negatives,
            (true, false) => &mut self.false_negatives,
        };
        *count = count.saturating_add(1);
    }

    /// All answers; of more than can be counted the largest number.
    pub fn total(&self) -> u64 {
        let others = [self.false_positives, self.true_negatives, self.false_negatives];
        others.into_iter().fold(self.true_positives, u64::saturating_add)
    }

    /// The figure; 0 where it is 0/0.
    pub fn score(&self, metric: Metric) -> f64 {
        let (part, whole) = self.ratio(metric);
        if whole == 0. { 0. } else { part / whole }
    }

    /// Whether the figure is something else than 0/0.
    pub fn is_defined(&self, metric: Metric) -> bool {
        self.ratio(metric).1 != 0.
    }

    fn ratio(&self, metric: Metric) -> (f64, f64) {
        let [tp, fp] = [self.true_positives as f64, self.false_positives as f64];
        let [tn, fn_] = [self.true_negatives as f64, self.false_negatives as f64];
        match metric {
            Metric::Accuracy => (tp + tn, tp + fp + tn + fn_),
            Metric::Precision => (tp, tp + fp),
            Metric::Recall => (tp, tp + fn_),
            Metric::F1 => (2. * tp, 2. * tp + fp + fn_),
            Metric::FBeta(beta) => {
                let b = beta * beta;
                ((1. + b) * tp, (1. + b) * tp + b * fn_ + fp)
            }
            // The root of precision times recall: 0 is a figure too.
            Metric::GMeasure => (tp, ((tp + fp) * (tp + fn_)).sqrt()),
            Metric::Mcc => {
                // The root of each, since products of four counts can exceed a double's whole numbers by far.
                let roots = (tp + fp).sqrt() * (tp + fn_).sqrt() * (tn + fp).sqrt() * (tn + fn_).sqrt();
                (tp * tn - fp * fn_, roots)
            }
            Metric::FalsePositiveRate => (fp, fp + tn),
            Metric::FalseNegativeRate => (fn_, fn_ + tp),
        }
    }
}

impl Sum for BinaryCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| BinaryCounts {
            true_positives: a.true_positives.saturating_add(b.true_positives),
            false_positives: a.false_positives.saturating_add(b.false_positives),
            true_negatives: a.true_negatives.saturating_add(b.true_negatives),
            false_negatives: a.false_negatives.saturating_add(b.false_negatives),
        })
    }
}

/// One figure for all classes.
pub(super) fn average(classes: &[BinaryCounts], metric: Metric, averaging: Averaging) -> f64 {
    match averaging {
        Averaging::Micro => classes.iter().copied().sum::<BinaryCounts>().score(metric),
        Averaging::Macro => {
            // A mean of roots, rates and correlations has all classes; ND4J leaves out 0/0 of precision and recall, and
            // says how many.
            let leaves_out = matches!(metric, Metric::Precision | Metric::Recall | Metric::F1 | Metric::FBeta(_));
            let those = || classes.iter().filter(|class| !leaves_out || class.is_defined(metric));
            match those().count() {
                0 => 0.,
                n => those().map(|class| class.score(metric)).sum::<f64>() / n as f64,
            }
        }
    }
}
