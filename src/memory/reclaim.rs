//! Draining the reclaim queue: a bounded batch at each call.
//!
//! Every operation on a proxy, every creation, every manager's close and `gc::collect` come through here. A
//! call reaps at most [`BATCH`] arrays of its own thread's lane and of the common lane; `collect`, and an
//! allocation that failed, reap everything.

use crate::base::sync::Ordering;
use crate::device::Device;
use crate::memory::{
    queue::LANES,
    registry::{QUEUE, reap, slot},
    switch,
    threads::{ThreadContext, with_context},
    workspace::retired,
};

/// Arrays that one ordinary call reaps at most. The bound keeps the longest stall under 100 microseconds, and is
/// above the orphans of an ordinary training step (design.md, "Budgets").
pub(crate) const BATCH: usize = 256;

/// Calls between two looks at the lanes of other threads.
const LOOK_EVERY: u32 = 64;

/// What every call does first.
#[inline]
pub(crate) fn on_call(context: &ThreadContext) {
    let calls = context.calls.get() + 1;
    context.calls.set(calls);
    if calls >= LOOK_EVERY {
        look_around(context);
    }
    if !QUEUE.is_empty(context.record.lane) || !QUEUE.is_empty(0) {
        drain(context, BATCH);
    }
}

/// Reaps up to `most` arrays of this thread's lane and the common one. Returns how many.
pub(crate) fn drain(context: &ThreadContext, most: usize) -> usize {
    let own = drain_lane(context, context.record.lane, most);
    own + drain_lane(context, 0, most - own)
}

/// Reaps everything that is queued when the call begins, on whatever lane. Returns how many.
pub(crate) fn drain_all(context: &ThreadContext) -> usize {
    let mut reaped = 0;
    // The common lane last: what an ending thread moves there from its own meanwhile is found.
    for lane in (1..LANES).chain([0]) {
        reaped += drain_lane(context, lane, usize::MAX);
    }
    // What was reaped may have held blocks of workspaces.
    retired::sweep();
    reaped
}

fn drain_lane(context: &ThreadContext, lane: usize, most: usize) -> usize {
    let mut reaped = 0;
    while reaped < most {
        let mut list = TakenLane { lane, first: QUEUE.take(lane) };
        if list.first == 0 {
            break;
        }
        while list.first != 0 && reaped < most {
            let index = list.first - 1;
            // Relaxed: made visible by the Acquire in `take`.
            let cell = slot(index);
            list.first = cell.core.link.load(Ordering::Relaxed);
            reap(context, index, cell);
            reaped += 1;
        }
    }
    reaped
}

/// A list taken from a lane; what is left of it goes back, also if freeing something panicked.
struct TakenLane {
    lane: usize,
    first: u32,
}

impl Drop for TakenLane {
    #[inline]
    fn drop(&mut self) {
        if self.first != 0 {
            QUEUE.put_back(self.lane, self.first);
        }
    }
}

/// Takes over lanes whose threads did nothing since the last look: idle ones, or ended without notice.
#[cold]
fn look_around(context: &ThreadContext) {
    context.calls.set(0);
    let mut heads = context.heads.get();
    for (lane, seen) in heads.iter_mut().enumerate().skip(1) {
        let head = QUEUE.head(lane);
        let idle = head != 0 && head == *seen;
        *seen = head;
        if idle || (lane != context.record.lane && head == 0 && !QUEUE.is_empty(lane)) {
            drain_lane(context, lane, BATCH);
        }
    }
    context.heads.set(heads);
}

impl Device {
    /// Gives the bytes kept for reuse back to the system, those of dropped arrays that wait to be reclaimed among them.
    /// Returns how many; 0 in a forked child. What other threads keep for their small arrays comes with their ends.
    pub fn clear_cache(&self) -> u64 {
        if switch::check("clear_cache").is_err() {
            return 0;
        }
        collect();
        self.trim()
    }
}

/// Reaps everything, from outside this layer.
pub(crate) fn collect() -> usize {
    with_context(drain_all)
}
