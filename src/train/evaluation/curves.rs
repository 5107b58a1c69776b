//! Curves over thresholds.

use super::plot;

/// Rates of true over false positives, point by point, as the threshold changes.
///
/// The lists are equally long. From 0 to 1 of both rates, or, of an evaluation with steps, the other way.
#[derive(Clone, Debug, PartialEq)]
pub struct RocCurve {
    /// What is at least as large as this is predicted to be positive.
    pub thresholds: Vec<f64>,
    /// Rate of false positives at each.
    pub false_positive_rates: Vec<f64>,
    /// Rate of true positives at each.
    pub true_positive_rates: Vec<f64>,
    /// The area under the curve.
    pub auc: f64,
}

impl RocCurve {
    /// The curve as a picture, in SVG: without points that would not be seen.
    pub fn to_svg(&self) -> String {
        let title = format!("ROC (area {:.4})", self.auc);
        let axes = ["false positive rate", "true positive rate"];
        plot::curve(&title, axes, &self.false_positive_rates, &self.true_positive_rates, Some([0., 1.]))
    }
}

/// Precision over recall, point by point, as the threshold rises. The lists are equally long.
#[derive(Clone, Debug, PartialEq)]
pub struct PrecisionRecallCurve {
    /// What is at least as large as this is predicted to be positive.
    pub thresholds: Vec<f64>,
    /// Precision at each; 1 where nothing is predicted to be positive.
    pub precisions: Vec<f64>,
    /// Recall at each.
    pub recalls: Vec<f64>,
    /// The area under the curve.
    pub auprc: f64,
}

impl PrecisionRecallCurve {
    /// The first point whose threshold is at least this, or the last one.
    pub fn point_at_threshold(&self, threshold: f64) -> usize {
        first(&self.thresholds, |x| x >= threshold)
    }

    /// The point of the lowest threshold with at least this precision, or the last one.
    pub fn point_at_precision(&self, precision: f64) -> usize {
        first(&self.precisions, |x| x >= precision)
    }

    /// The point of the highest threshold with at least this recall.
    pub fn point_at_recall(&self, recall: f64) -> usize {
        self.recalls.iter().rposition(|&x| x >= recall).unwrap_or(0)
    }

    /// The curve as a picture, in SVG: without points that would not be seen.
    pub fn to_svg(&self) -> String {
        let title = format!("Precision and recall (area {:.4})", self.auprc);
        plot::curve(&title, ["recall", "precision"], &self.recalls, &self.precisions, None)
    }
}

fn first(numbers: &[f64], is: impl Fn(f64) -> bool) -> usize {
    numbers.iter().position(|&x| is(x)).unwrap_or(numbers.len().saturating_sub(1))
}

/// A point: threshold, horizontal, vertical.
pub(super) type Point = [f64; 3];

/// Without points between two others on one horizontal or vertical line.
pub(super) fn without_redundant(points: &[Point]) -> Vec<Point> {
    let redundant = |i: usize| {
        i > 0 && i + 1 < points.len() && {
            let same = |axis: usize| points[i - 1][axis] == points[i][axis] && points[i][axis] == points[i + 1][axis];
            same(1) || same(2)
        }
    };
    (0..points.len()).filter(|&i| !redundant(i)).map(|i| points[i]).collect()
}

/// The area under straight lines from point to point.
pub(super) fn area(points: &[Point]) -> f64 {
    points.windows(2).map(|pair| (pair[1][1] - pair[0][1]).abs() * (pair[0][2] + pair[1][2]) / 2.).sum()
}
