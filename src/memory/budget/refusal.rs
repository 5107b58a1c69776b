//! Who refused, and what.

use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{call::Call, error::Error};
use crate::device::budget::AllocError;

/// The workspaces whose nodes these are, by the nodes' numbers.
pub(super) static WORKSPACES: Mutex<Vec<(u32, Arc<str>)>> = Mutex::new(Vec::new());

/// Which budget refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverBudget {
    pub(crate) node: u32,
    /// The key of its manager, as a number; 0 if it is a workspace's.
    pub(crate) manager: u64,
    /// What it has, and may have: arrays if the request was for one, else bytes.
    pub(crate) used: u64,
    pub(crate) max: u64,
    /// What was asked for.
    pub(crate) asked: u64,
    pub(crate) is_arrays: bool,
}

impl OverBudget {
    /// The workspace whose budget it is, if it is one's.
    pub(crate) fn workspace(&self) -> Option<Arc<str>> {
        let all = WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(number, _)| *number == self.node).map(|(_, name)| Arc::clone(name))
    }
}

/// Why there are no bytes.
#[derive(Debug)]
pub(crate) enum NoBytes {
    /// A budget has no room.
    Budget(OverBudget),
    /// The device has none.
    Exhausted,
    /// Nothing helps.
    Failed(Error),
}

impl NoBytes {
    pub(crate) fn is_budget(&self) -> bool {
        matches!(self, NoBytes::Budget(_))
    }

    /// Whether another try is no use. What a cycle has made counts until it ends, whatever is closed.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, NoBytes::Failed(_) | NoBytes::Budget(OverBudget { manager: 0, is_arrays: true, .. }))
    }
}

impl From<AllocError> for NoBytes {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::Exhausted => NoBytes::Exhausted,
            AllocError::Failed(error) => NoBytes::Failed(error),
        }
    }
}

/// There are as many budgets as there can be.
pub(crate) fn too_many(call: Call) -> Error {
    Error::argument(call, "number of budgets", "2^28", "less; close some managers or destroy some workspaces first")
}
