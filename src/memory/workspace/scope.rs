//! Scopes: which cycles of a workspace are still valid, for any thread that asks.
//!
//! A cycle has a stamp, one more than the one before. An array of a workspace carries its scope and its stamp, and is
//! valid while the stamp is not below the scope's `oldest`. So all arrays of a cycle end by one store, and an array
//! says by one comparison whether it ended.
//!
//! # Use against the end
//! A reader announces the array in its hazard record and then looks at `oldest`; whoever ends a cycle stores `oldest`,
//! issues the heavy barrier and then looks at all records (`hazard.rs`). So either the reader finds the cycle ended, or
//! the arena finds the reader, and leaves the bytes alone.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use dashmap::DashMap;

use crate::base::{
    leak::WorkspaceState,
    sync::{AtomicU32, AtomicU64, Ordering},
};
use crate::memory::{
    cycle::Oldest,
    hazard::USER,
    registry::{slot, storage_of},
    slab::slab,
    slot::CYCLE,
    storage,
    threads::{self, ThreadRecord},
};

/// A scope as arrays refer to it. Lives in a slab and is used again; its stamps go on.
#[derive(Debug)]
struct ScopeCell {
    oldest: Oldest,
    /// The stamp of the newest cycle.
    last: AtomicU64,
    /// What the workspace does, as the number of a `WorkspaceState`; for texts.
    state: AtomicU32,
}

slab!(CELLS: ScopeCell = ScopeCell { oldest: Oldest::new(), last: AtomicU64::new(0), state: AtomicU32::new(0) });

/// Free cells, used again in the order in which they came back, so that texts about arrays of destroyed workspaces stay
/// true for long.
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// What texts say of a scope.
#[derive(Clone)]
struct ScopeInfo {
    name: Arc<str>,
    /// The stamp before its first cycle.
    first: u64,
    is_ring: bool,
    thread: (ThreadId, Option<String>),
}

static ABOUT: LazyLock<DashMap<u32, ScopeInfo>> = LazyLock::new(DashMap::new);

/// A scope of a workspace: its cycles follow each other.
#[derive(Debug)]
pub(crate) struct CycleScope {
    index: u32,
}

/// A cycle: its scope, and its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CycleId {
    pub(crate) scope: u32,
    pub(crate) stamp: u64,
}

impl CycleScope {
    /// A scope with a name. `None`: 2^28 are in use.
    pub(crate) fn new(name: Arc<str>, is_ring: bool) -> Option<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() && !CELLS.refill(&mut free) {
            return None;
        }
        let index = free.remove(0);
        drop(free);
        let scope = CycleScope { index };
        // Relaxed: the cell belongs to this thread.
        let (first, thread) = (scope.cell().last.load(Ordering::Relaxed), thread::current());
        ABOUT
            .insert(index, ScopeInfo { name, first, is_ring, thread: (thread.id(), thread.name().map(str::to_owned)) });
        scope.set_state(WorkspaceState::Closed);
        Some(scope)
    }

    fn cell(&self) -> &'static ScopeCell {
        CELLS.get(self.index)
    }

    /// Begins a cycle. `keep`: those before stay valid (a ring).
    #[inline]
    pub(crate) fn begin(&self, keep: bool) -> CycleId {
        let cell = self.cell();
        // Relaxed: only the workspace's thread changes it.
        let stamp = cell.last.load(Ordering::Relaxed) + 1;
        cell.last.store(stamp, Ordering::Relaxed);
        if !keep {
            self.end_before(stamp);
        }
        self.set_state(WorkspaceState::Open);
        CycleId { scope: self.index, stamp }
    }

    /// Ends all cycles with a stamp below this one.
    #[inline]
    pub(crate) fn end_before(&self, stamp: u64) {
        self.cell().oldest.end_before(stamp);
    }

    /// Ends all its cycles.
    #[inline]
    pub(crate) fn end_all(&self) {
        self.end_before(self.last() + 1);
    }

    pub(crate) fn last(&self) -> u64 {
        // Relaxed: only the workspace's thread changes it, and whoever else has the scope was given it by that.
        self.cell().last.load(Ordering::Relaxed)
    }

    pub(crate) fn set_state(&self, state: WorkspaceState) {
        // Relaxed: for errors and reports.
        self.cell().state.store(state as u32, Ordering::Relaxed);
    }

    /// The number by which arrays refer to it.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

/// Whether this thread, or if `by_others` any, is using an array that lies in a block and is of such a cycle, which the caller
/// ended. For others it issues the heavy barrier.
///
/// What a slot says holds for whoever found its array valid: it was written before, and stays while the array is
/// announced. An announcement that finds it ended is withdrawn, whatever is answered for it.
pub(crate) fn is_read(block: u32, ended: impl Fn(CycleId) -> bool, by_others: bool) -> bool {
    let reads = |place: u32| {
        let index = (place & !USER) - 1;
        let array = slot(index);
        array.core.state() & CYCLE != 0
            && storage_of(index).is_some_and(|storage| storage::block_of(storage) == block)
            && ended(array.cycle_id())
    };
    let mut read = false;
    let mut look = |record: &ThreadRecord| read |= record.hazards.places().any(|(_, place)| reads(place));
    if by_others {
        threads::barrier();
        threads::for_each_record(look);
    } else {
        threads::with_context(|context| look(context.record));
    }
    read
}

impl Drop for CycleScope {
    fn drop(&mut self) {
        self.end_all();
        self.set_state(WorkspaceState::Destroyed);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// The stamp below which arrays of a scope have ended.
#[inline]
pub(crate) fn oldest(scope: u32) -> &'static Oldest {
    &CELLS.get(scope).oldest
}

/// What is known of a cycle.
pub(crate) struct CycleInfo {
    /// The workspace's name.
    pub(crate) workspace: String,
    /// Which of its cycles it is, and which is the last one.
    pub(crate) cycle: u64,
    pub(crate) now: u64,
    pub(crate) state: WorkspaceState,
    /// Whether its cycles are those of a ring.
    pub(crate) is_ring: bool,
    /// The thread whose workspace it is, if it is another one.
    pub(crate) thread: Option<String>,
}

/// What is known of a cycle.
pub(crate) fn about(cycle: CycleId) -> CycleInfo {
    let cell = CELLS.get(cycle.scope);
    let known = ABOUT.get(&cycle.scope).map(|about| about.clone()).filter(|about| cycle.stamp > about.first);
    let Some(ScopeInfo { name, first, is_ring, thread: (id, thread) }) = known else {
        let (workspace, state) = ("a workspace destroyed long ago".into(), WorkspaceState::Destroyed);
        return CycleInfo { workspace, cycle: cycle.stamp, now: cycle.stamp, state, is_ring: false, thread: None };
    };
    // Relaxed, here and below: for errors and reports.
    let state = [WorkspaceState::Open, WorkspaceState::Closed]
        .into_iter()
        .find(|state| *state as u32 == cell.state.load(Ordering::Relaxed))
        .unwrap_or(WorkspaceState::Destroyed);
    let thread = (id != thread::current().id()).then(|| thread.unwrap_or_else(|| format!("{id:?}")));
    let (cycle, now) = (cycle.stamp - first, cell.last.load(Ordering::Relaxed) - first);
    CycleInfo { workspace: name.to_string(), cycle, now, state, is_ring, thread }
}
