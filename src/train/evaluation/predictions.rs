//! Which examples were taken for what.

use serde_json::{Value, json};

use super::json::list;

/// What was predicted for an example with an id, or for one of its steps or points: DL4J's `Prediction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prediction {
    /// The class that it is of.
    pub actual: usize,
    /// The class that was predicted.
    pub predicted: usize,
    /// The id of the example, as its batch has it ([`DataSet::example_ids`](crate::train::DataSet::example_ids)).
    pub example_id: u64,
}

/// Predictions in the order in which they came, which makes no difference.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictions(pub(super) Vec<Prediction>);

impl PartialEq for Predictions {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.sorted(&|_| true) == other.sorted(&|_| true)
    }
}

impl Predictions {
    /// Those that are wanted, by classes and ids.
    pub(super) fn sorted(&self, wanted: &dyn Fn(&Prediction) -> bool) -> Vec<Prediction> {
        let mut all: Vec<Prediction> = self.0.iter().copied().filter(wanted).collect();
        all.sort_unstable();
        all
    }

    /// As JSON: a list of three numbers for each.
    pub(super) fn write(&self) -> Value {
        self.sorted(&|_| true).iter().map(|one| json!([one.actual, one.predicted, one.example_id])).collect()
    }

    /// What [`Predictions::write`] wrote.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let class = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let one = |value: &Value| match value.as_array()?.as_slice() {
            [actual, predicted, id] => {
                Some(Prediction { actual: class(actual)?, predicted: class(predicted)?, example_id: id.as_u64()? })
            }
            _ => None,
        };
        list(value, one).map(Predictions)
    }

    /// Whether each can be one of the rows of a confusion matrix.
    pub(super) fn are_among(&self, matrix: &[u64], classes: usize) -> bool {
        let mut rest = matrix.to_vec();
        self.0.iter().all(|one| {
            let is_class = one.actual < classes && one.predicted < classes;
            let cell = if is_class { rest.get_mut(one.actual * classes + one.predicted) } else { None };
            cell.is_some_and(|cell| {
                let is_any = *cell > 0;
                *cell = cell.saturating_sub(1);
                is_any
            })
        })
    }
}
