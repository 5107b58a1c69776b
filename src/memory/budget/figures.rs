//! What programs say and see of a budget: its limits, and what is charged to it.

/// What a manager and those below it may have, or a [`Workspace`](crate::Workspace). Of each number none at first.
///
/// ```
/// # use ndgc::{Budget, DType, Device, Error, NdManager};
/// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
/// tenant.set_budget(Budget::new().max_bytes(1 << 20).soft_bytes(1 << 19).max_arrays(1000))?;
/// let request = tenant.new_sub_manager()?; // within the same budget
/// let _x = request.zeros((256, 512), DType::F32)?; // 512 KiB
/// assert!(tenant.can_fit(1 << 19) && !tenant.can_fit((1 << 19) + 1));
/// let refused = request.zeros((512, 512), DType::F32);
/// assert!(matches!(refused, Err(Error::OutOfMemory(_))));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// The most bytes. A request that would pass it is an error.
    pub max_bytes: Option<u64>,
    /// Bytes above which dead arrays are closed and caches asked for theirs, by the call that passes them. No error.
    pub soft_bytes: Option<u64>,
    /// The most arrays, views among them; of a workspace those that get bytes in one cycle.
    pub max_arrays: Option<u64>,
    /// As [`Budget::soft_bytes`], of arrays: looked at when one takes bytes, or is moved here. Of a workspace each
    /// cycle that had more is counted when it ends ([`BudgetUse::soft_passed`]), and nobody is asked: what a cycle
    /// made counts until then, whatever is closed.
    pub soft_arrays: Option<u64>,
}

impl Budget {
    /// Without limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a limit on bytes.
    #[must_use]
    pub fn max_bytes(self, bytes: u64) -> Self {
        Budget { max_bytes: Some(bytes), ..self }
    }

    /// With a number of bytes above which memory is looked for.
    #[must_use]
    pub fn soft_bytes(self, bytes: u64) -> Self {
        Budget { soft_bytes: Some(bytes), ..self }
    }

    /// With a limit on arrays.
    #[must_use]
    pub fn max_arrays(self, arrays: u64) -> Self {
        Budget { max_arrays: Some(arrays), ..self }
    }

    /// With a number of arrays above which memory is looked for.
    #[must_use]
    pub fn soft_arrays(self, arrays: u64) -> Self {
        Budget { soft_arrays: Some(arrays), ..self }
    }
}

/// What a manager with a budget, and those below it, have; or a workspace with one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetUse {
    /// Bytes charged, what is reserved among them.
    pub bytes: u64,
    /// The most that it was; of several threads with what each keeps for its next arrays, 64 KiB at most.
    pub peak_bytes: u64,
    /// All bytes that were charged.
    pub total_bytes: u64,
    /// Bytes that a [`Reservation`](crate::Reservation) keeps free.
    pub reserved_bytes: u64,
    /// Arrays; of a workspace those of the running cycle.
    pub arrays: u64,
    /// The most that there were, of several threads with 64 at most that each keeps; of a workspace in one cycle.
    pub peak_arrays: u64,
    /// All arrays that were counted; of a workspace none.
    pub total_arrays: u64,
    /// Requests that this budget refused.
    pub refused: u64,
    /// How often a soft limit was passed; that on arrays of a workspace by each cycle that ended with more.
    pub soft_passed: u64,
}
