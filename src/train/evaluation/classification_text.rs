//! The text of an evaluation, in DL4J's lines.

use std::fmt::Write;

use super::classification::Evaluation;
use super::counts::Metric;

/// Classes above which the matrix is left out unless it is asked for.
const MATRIX_CLASSES: usize = 20;

/// # Text
impl Evaluation {
    /// As [`IEvaluation::stats`](super::IEvaluation::stats), with or without warnings about classes that were left out
    /// of a mean; `matrix` says whether the confusion matrix is there, None that it is up to 20 classes.
    pub fn stats_with(&self, warnings: bool, matrix: Option<bool>) -> String {
        if self.rows() == 0 {
            return "Evaluation: No data available (no evaluation has been performed)".to_owned();
        }
        let mut out = String::from("\n\n========================Evaluation Metrics========================\n");
        self.figures(&mut out);
        self.settings(&mut out);
        out.push('\n');
        if warnings && self.reports_mean() {
            self.warnings(&mut out);
        }
        out.push('\n');
        match matrix {
            Some(false) => {}
            None if self.classes > MATRIX_CLASSES => {
                let _ = write!(
                    out,
                    "Note: Confusion matrix not generated due to space requirements for {} classes.\n\
                     Use stats_with(true, Some(true)) to generate anyway",
                    self.classes
                );
            }
            _ => self.matrix_text(&mut out),
        }
        out
    }

    /// The confusion matrix alone.
    pub fn confusion_to_string(&self) -> String {
        let mut out = String::new();
        self.matrix_text(&mut out);
        out
    }

    fn reports_mean(&self) -> bool {
        self.classes != 2 || self.positive_class.is_none()
    }

    /// Classes for which a figure is 0/0.
    pub fn excluded(&self, metric: Metric) -> Vec<usize> {
        let all = self.all_counts();
        (0..self.classes).filter(|&class| !all[class].is_defined(metric)).collect()
    }

    fn figures(&self, out: &mut String) {
        let _ = writeln!(out, " # of classes:    {}", self.classes);
        let _ = writeln!(out, " Accuracy:        {:.4}", self.accuracy());
        if self.top_n > 1 {
            let name = format!("Top {} Accuracy:", self.top_n);
            let _ = writeln!(out, " {name:<16} {:.4}", self.top_n_accuracy());
        }
        let lines = [("Precision:", Metric::Precision), ("Recall:", Metric::Recall), ("F1 Score:", Metric::F1)];
        for (name, metric) in lines {
            let _ = write!(out, " {name:<16} {:.4}", self.score(metric));
            let excluded = if self.classes > 2 { self.excluded(metric).len() } else { 0 };
            if excluded > 0 {
                let _ = write!(out, "\t({excluded} class{} excluded from average)", plural(excluded).0);
            }
            out.push('\n');
        }
    }

    fn settings(&self, out: &mut String) {
        out.push_str("Precision, recall & F1: ");
        let _ = match self.positive_class {
            Some(class) if self.classes == 2 => {
                writeln!(out, "reported for positive class (class {class} - \"{}\") only", self.label(class))
            }
            _ => writeln!(out, "macro-averaged (equally weighted avg. of {} classes)", self.classes),
        };
        if let Some(threshold) = self.threshold {
            let _ = writeln!(out, "Binary decision threshold: {threshold:?}");
        }
        if let Some(costs) = &self.costs {
            let _ = writeln!(out, "Cost array: {costs:?}");
        }
    }

    fn warnings(&self, out: &mut String) {
        let kinds = [
            (Metric::Precision, "precision", "never predicted by the model"),
            (Metric::Recall, "recall", "never there in the labels"),
        ];
        for (metric, name, what) in kinds {
            let excluded = self.excluded(metric);
            if excluded.is_empty() {
                continue;
            }
            let (es, was) = plural(excluded.len());
            let n = excluded.len();
            let _ = writeln!(out, "Warning: {n} class{es} {was} {what} and {was} excluded from average {name}");
            let _ = writeln!(out, "Classes excluded from average {name}: {excluded:?}");
        }
    }

    fn matrix_text(&self, out: &mut String) {
        let classes = 0..self.classes;
        let mut largest = 0;
        for actual in classes.clone() {
            for predicted in classes.clone() {
                largest = self.confusion(actual, predicted).max(largest);
            }
        }
        // A space before the digits: they do not touch at powers of ten.
        let width = largest.max(self.classes.saturating_sub(1) as u64).to_string().len() + 1;
        out.push_str("=========================Confusion Matrix=========================\n");
        for class in classes.clone() {
            let _ = write!(out, "{class:>width$}");
        }
        let _ = writeln!(out, "\n{}", "-".repeat(width * self.classes + 1));
        for actual in classes.clone() {
            for predicted in classes.clone() {
                let _ = write!(out, "{:>width$}", self.confusion(actual, predicted));
            }
            let _ = writeln!(out, " | {actual} = {}", self.label(actual));
        }
        out.push_str("\nConfusion matrix format: Actual (rowClass) predicted as (columnClass) N times\n");
        out.push_str("==================================================================");
    }
}

fn plural(n: usize) -> (&'static str, &'static str) {
    if n == 1 { ("", "was") } else { ("es", "were") }
}
