//! What a workspace has done: counters, as data and as ND4J's table.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{error::Site, units::Bytes};
use crate::device::{Device, buffer::Span};
use crate::memory::{switch, workspace::planning::PlanStats};

/// Arrays with a recorded gradient that had handles when their cycle ended: how many, and where the last one was made.
pub(crate) type KeptGraphs = (u64, Option<Site>);

/// Those of the workspaces that live, for reports: those of several threads with one name, and device, are one here.
static KEPT: Mutex<Vec<(Arc<str>, Device, KeptGraphs)>> = Mutex::new(Vec::new());

/// An array of this workspace had a handle when its cycle ended.
pub(crate) fn note_kept(workspace: &Arc<str>, device: &Device, created: Option<Site>) {
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter_mut().find(|(name, at, _)| name == workspace && at == device) {
        Some((_, _, kept)) => *kept = (kept.0 + 1, created),
        None => all.push((Arc::clone(workspace), device.clone(), (1, created))),
    }
}

/// The workspace that noted so many ended.
pub(crate) fn forget_kept(workspace: &Arc<str>, device: &Device, count: u64) {
    if count == 0 {
        return;
    }
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, at, kept) in &mut *all {
        if name == workspace && at == device {
            kept.0 -= count;
        }
    }
    all.retain(|(.., kept)| kept.0 > 0);
}

/// Those of a workspace. None in a forked child.
pub(crate) fn kept_graphs(workspace: &str, device: &Device) -> KeptGraphs {
    if switch::forked() {
        return (0, None);
    }
    let all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|(name, at, _)| **name == *workspace && at == device).map_or((0, None), |&(.., kept)| kept)
}

/// What the arena counts beside its plan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Requests to the device or the file system for memory.
    pub(crate) system_allocations: u64,
    /// Blocks taken because the one before was still in use.
    pub(crate) renewals: u64,
    pub(crate) kept_graphs: KeptGraphs,
    /// Arrays of this cycle.
    pub(crate) arrays: u64,
    /// Cycles in a row, up to the last one, whose requests got the addresses of the cycle before.
    pub(crate) same_addresses: u64,
    trace: u64,
    last_trace: Option<u64>,
}

impl Tally {
    pub(crate) fn begin(&mut self) {
        (self.arrays, self.trace) = (0, 0);
    }

    /// Bytes were handed out.
    #[inline(always)]
    pub(crate) fn note(&mut self, span: Span) {
        self.arrays += 1;
        let value = span.ptr().addr().get() as u64 ^ (span.bytes() as u64).rotate_left(32);
        self.trace = (self.trace.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    pub(crate) fn end(&mut self) {
        self.same_addresses = if self.last_trace == Some(self.trace) { self.same_addresses + 1 } else { 0 };
        self.last_trace = Some(self.trace);
    }
}

/// What a workspace is and has done. Bytes of requests are as it rounds them: multiples of 64 on the host, of 256 on
/// devices; sizes are as they were configured or learned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkspaceStats {
    /// Its name.
    pub id: String,
    /// The device whose arrays it takes.
    pub device: String,
    /// Where the bytes lie, in words: `ram`, which is the device's own memory, or `mapped file`; of host-only arrays
    /// `ram (host-only)` on the host, and `ram of the host (host-only)` for those of another device.
    pub location: &'static str,
    /// Whether a cycle runs.
    pub open: bool,
    /// Bytes of the block; 0 while it learns.
    pub size: u64,
    /// Bytes of the block in use, counted from its start.
    pub offset: u64,
    /// Of a circular workspace: bytes of the block that one cycle has, once that is known; else 0.
    pub cycle_block: u64,
    /// Bytes asked for in the running cycle, wherever they lie.
    pub this_cycle: u64,
    /// Bytes asked for in the last cycle that ended.
    pub last_cycle: u64,
    /// The most bytes asked for in a cycle.
    pub max_cycle: u64,
    /// Arrays whose bytes were taken in the running cycle, or in the last one.
    pub arrays: u64,
    /// Bytes beside the block that are kept now: requests that did not fit.
    pub spilled: u64,
    /// Requests that have them.
    pub externals: u64,
    /// Of a circular workspace: bytes beside the block that later cycles may still read.
    pub pinned: u64,
    /// Requests that have them.
    pub pinned_requests: u64,
    /// Cycles that ended.
    pub cycles: u64,
    /// Cycles that began.
    pub generation: u64,
    /// Of a circular workspace: full turns.
    pub step: u64,
    /// Requests to the device or the file system for memory since it was made: for blocks, and beside them.
    pub system_allocations: u64,
    /// Blocks that were taken because bytes of the one before were still in use when their next cycle began.
    pub renewals: u64,
    /// References that hold its blocks now, also beyond the cycles of their bytes: exports, and arrays that were made
    /// of these. A block that is held when its next cycle begins waits for them, beside a fresh one; that is a renewal.
    /// Counted when it is asked for; a mapped file's are not.
    pub holders: u64,
    /// Arrays with a recorded gradient that somebody still had a handle of when their cycle ended, as in
    /// `losses.push(loss)`. Their graphs ended then; keep a loss by its number or by `detach()`.
    pub kept_graphs: u64,
    /// Where the last of them was made.
    pub kept_graph_at: Option<Site>,
    /// Cycles in a row, up to the last one, in which each request got the address of the same request of the cycle
    /// before: what a device needs to run a captured cycle again.
    pub same_addresses: u64,
    /// Of a workspace of [`LearningPolicy::Planned`](crate::LearningPolicy::Planned): what it has planned.
    pub plan: Option<PlanStats>,
}

impl fmt::Display for WorkspaceStats {
    /// A line of ND4J's table: allocated, spilled and pinned, readable and in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [size, spilled, pinned] = [self.size, self.spilled, self.pinned].map(|bytes| Bytes(bytes).to_string());
        write!(
            f,
            "{:<26} {size:>8} / {spilled:>8} / {pinned:>8} ({:>11} / {:>11} / {:>11})",
            self.id, self.size, self.spilled, self.pinned
        )
    }
}

/// ND4J's table of several workspaces.
pub(crate) fn table(all: &[WorkspaceStats]) -> String {
    let mut text = format!("Workspace statistics: {}\n", "-".repeat(33));
    text += &format!("Number of workspaces in current thread: {}\n", all.len());
    text += "Workspace name: Allocated / external (spilled) / external (pinned)\n";
    for stats in all {
        text += &format!("{stats}\n");
    }
    text
}
