//! Validity: which cycles of a workspace go on, for any thread that asks. Nothing else keeps it: who ends cycles tells
//! the scope, and asks it.
//!
//! A cycle has a stamp, one more than the one before. An array of a workspace carries its scope and its stamp, and is
//! valid while the stamp is not below the scope's `oldest`. So all arrays of a cycle end by one store, and an array
//! says by one comparison whether it ended.
//!
//! # Use against the end
//! A reader announces the array in its hazard record and then looks at `oldest`; whoever ends a cycle stores `oldest`,
//! issues the heavy barrier and then looks at all records (`hazard.rs`). So either the reader finds the cycle ended, or
//! the arena finds the reader, and leaves the bytes alone.
//!
//! # Leases
//! A leased cycle of a ring is not ended, and nor are those after it, which came later to their bytes ([`Leases`]).

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use dashmap::DashMap;

use crate::base::{
    leak::WorkspaceState,
    sync::{AtomicU32, AtomicU64, Ordering},
};
use crate::memory::{cycle::Oldest, slab::slab, switch};

/// A scope as arrays refer to it. Lives in a slab and is used again; its stamps go on.
#[derive(Debug)]
struct ScopeCell {
    oldest: Oldest,
    /// The stamp of the newest cycle.
    last: AtomicU64,
    /// Which of the entries of its thread that began with.
    entry: AtomicU64,
    /// What the workspace does, as the number of a `WorkspaceState`; for texts.
    state: AtomicU32,
}

slab!(CELLS: ScopeCell = ScopeCell {
    oldest: Oldest::new(),
    last: AtomicU64::new(0),
    entry: AtomicU64::new(0),
    state: AtomicU32::new(0),
});

/// Free cells, used again in the order in which they came back, so that texts about arrays of destroyed workspaces stay
/// true for long.
static FREE: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

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
    /// A whole word, so that a copy is not wider than what was written.
    scope: u64,
    pub(crate) stamp: u64,
}

impl CycleId {
    #[inline(always)]
    pub(crate) fn new(scope: u32, stamp: u64) -> Self {
        CycleId { scope: scope.into(), stamp }
    }

    #[inline(always)]
    pub(crate) fn scope(self) -> u32 {
        self.scope as u32
    }
}

impl CycleScope {
    /// A scope with a name. `None`: 2^28 are in use.
    pub(crate) fn new(name: Arc<str>, is_ring: bool) -> Option<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() {
            CELLS.refill(&mut *free);
        }
        let index = free.pop_front()?;
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

    /// Begins a cycle with this entry of the thread. Those before have ended, or go on, as a ring's do.
    #[inline]
    pub(crate) fn begin(&self, entry: u64) -> CycleId {
        let cell = self.cell();
        // Relaxed: only the workspace's thread changes it.
        let stamp = cell.last.load(Ordering::Relaxed) + 1;
        cell.last.store(stamp, Ordering::Relaxed);
        // Relaxed: as above, and nobody else asks.
        cell.entry.store(entry, Ordering::Relaxed);
        self.set_state(WorkspaceState::Open);
        CycleId::new(self.index, stamp)
    }

    /// Ends the cycle with this stamp and all before it, if it goes on.
    pub(crate) fn end_through(&self, stamp: u64) {
        if self.is_live(stamp) {
            self.cell().oldest.end_before(stamp + 1);
        }
    }

    /// Ends all its cycles.
    #[inline]
    pub(crate) fn end_all(&self) {
        self.cell().oldest.end_before(self.last() + 1);
    }

    /// Whether a cycle of it goes on.
    pub(crate) fn is_live(&self, stamp: u64) -> bool {
        self.cell().oldest.is_live(stamp)
    }

    /// The stamp of the newest cycle.
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

impl Drop for CycleScope {
    fn drop(&mut self) {
        if switch::forked() {
            return;
        }
        self.end_all();
        self.set_state(WorkspaceState::Destroyed);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.index);
    }
}

/// Which cycles of a ring are leased, by their stamps: a token that nobody else has is free for the next lease.
#[derive(Debug, Default)]
pub(crate) struct Leases(Vec<(u64, Arc<()>)>);

impl Leases {
    /// Leases a cycle, for as long as somebody has what this returns.
    pub(crate) fn lease(&mut self, stamp: u64) -> Arc<()> {
        let all = &mut self.0;
        let known = all.iter().position(|(of, token)| *of == stamp && Arc::strong_count(token) > 1);
        let place = known.or_else(|| all.iter().position(|(_, token)| Arc::strong_count(token) == 1));
        let place = place.unwrap_or_else(|| {
            all.push((stamp, Arc::new(())));
            all.len() - 1
        });
        all[place].0 = stamp;
        Arc::clone(&all[place].1)
    }

    /// The oldest one.
    pub(crate) fn first(&self) -> Option<u64> {
        // One that is gone does not come back; who dropped it has let go of the arrays, or finds them ended.
        self.0.iter().filter(|(_, token)| Arc::strong_count(token) > 1).map(|(stamp, _)| *stamp).min()
    }

    /// Whether a cycle up to this stamp is leased.
    pub(crate) fn any_through(&self, stamp: u64) -> bool {
        self.first().is_some_and(|first| first <= stamp)
    }
}

/// The stamp below which arrays of a scope have ended.
#[inline]
pub(crate) fn oldest(scope: u32) -> &'static Oldest {
    &CELLS.get(scope).oldest
}

/// The entry of the calling thread that the newest cycle of a scope of its own began with: larger for a later one.
pub(crate) fn entry_of(scope: u32) -> u64 {
    // Relaxed: written by this thread.
    CELLS.get(scope).entry.load(Ordering::Relaxed)
}

/// Whether no one ended a cycle.
pub(crate) fn goes_on(cycle: CycleId) -> bool {
    oldest(cycle.scope()).is_live(cycle.stamp)
}

/// Whether a cycle of the calling thread goes on, and is the newest of its scope. One of a ring goes on after it was
/// left, until its bytes are wanted.
pub(crate) fn is_newest(cycle: CycleId) -> bool {
    // Relaxed: written by this thread.
    goes_on(cycle) && CELLS.get(cycle.scope()).last.load(Ordering::Relaxed) == cycle.stamp
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
    let cell = CELLS.get(cycle.scope());
    let known = ABOUT.get(&cycle.scope()).map(|about| about.clone()).filter(|about| cycle.stamp > about.first);
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
