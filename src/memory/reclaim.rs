//! Draining the reclaim queue: a bounded piece of it at each call.
//!
//! Every operation on a proxy, every creation, every manager's close and `gc::collect` come through here. A call has so
//! many units of work for what died before it (`base/work.rs`): it reaps arrays of its own thread's lane and of the
//! common lane, and then ends steps of the gradient graph that wait; `collect`, and an allocation that failed, do all
//! there is.

use std::cell::Cell;

use crate::base::{sync::Ordering, work};
use crate::device::Device;
use crate::memory::{
    node,
    queue::{LANES, QUEUE},
    registry::{self, reap, slot},
    slot::{KEPT, OPEN, generation_of},
    threads::{self, Counts, ThreadContext, with_context},
    trace, window,
    workspace::retired,
};

/// Calls between two looks at the lanes of other threads.
const LOOK_EVERY: u32 = 64;

/// What every call does first.
#[inline]
pub(crate) fn on_call(context: &ThreadContext) {
    work::begin();
    context.first_place.set(context.used_places.get());
    let calls = context.calls.get() + 1;
    context.calls.set(calls);
    drain(context);
    // After its own: what is left of the call's work goes to others.
    if calls >= LOOK_EVERY {
        look_around(context);
    }
    if node::is_waiting() {
        node::end_waiting();
    }
}

/// Reaps arrays of this thread's lane and the common one, as far as the call has work left.
#[inline]
pub(crate) fn drain(context: &ThreadContext) {
    for lane in [context.record.lane, 0] {
        if !QUEUE.is_empty(lane) {
            drain_lane(context, lane);
        }
    }
}

/// Whether nothing waits that this thread would reap: then what has a count has a handle.
pub(crate) fn is_drained(context: &ThreadContext) -> bool {
    [context.record.lane, 0].into_iter().all(|lane| QUEUE.is_empty(lane))
}

/// Reaps everything that is queued when the call begins, on whatever lane. Returns how many.
pub(crate) fn drain_all(context: &ThreadContext) -> usize {
    let reaped = work::all(|| {
        // The common lane last: what an ending thread moves there from its own meanwhile is found.
        let reaped = (1..LANES).chain([0]).map(|lane| drain_lane(context, lane)).sum();
        node::end_waiting();
        // What was reaped may have held blocks of workspaces.
        retired::sweep();
        reaped
    });
    if reaped > 0 {
        trace::note_drained(reaped as u64);
    }
    reaped
}

fn drain_lane(context: &ThreadContext, lane: usize) -> usize {
    let mut reaped = 0;
    while work::left() > 0 {
        let is_within = context.reaping.get();
        if !is_within && let Some(index) = QUEUE.take_one(lane) {
            work::spend(work::ONE);
            // What it holds may be the program's, and call operations.
            let within = Reaping::begin(&context.reaping);
            reap(context, index, slot(index));
            drop(within);
            reaped += 1;
            continue;
        }
        // As a list, which nobody finds any more: else the end of each would be within that of the one before.
        let waits = if is_within { QUEUE.take_ring(lane, |index| &slot(index).core.link) } else { 0 };
        let mut list = TakenLane { lane, first: if waits == 0 { QUEUE.take(lane) } else { waits } };
        if list.first == 0 {
            break;
        }
        while list.first != 0 && work::spend(work::ONE) {
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

/// That a thread is ending an array that it took out of a ring, until this drops, also by a panic.
struct Reaping<'a>(&'a Cell<bool>);

impl<'a> Reaping<'a> {
    #[inline(always)]
    fn begin(is_within: &'a Cell<bool>) -> Self {
        is_within.set(true);
        Reaping(is_within)
    }
}

impl Drop for Reaping<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(false);
    }
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
            QUEUE.put_back(self.lane, self.first, |index| &slot(index).core.link);
        }
    }
}

/// Takes over lanes whose threads did nothing since the last look: idle ones, or ended without notice.
#[cold]
fn look_around(context: &ThreadContext) {
    context.calls.set(0);
    let mut pushes = context.last_pushes.get();
    for (lane, seen) in pushes.iter_mut().enumerate().skip(1) {
        let last = QUEUE.last_push(lane);
        let idle = last != 0 && last == *seen;
        *seen = last;
        if idle || (lane != context.record.lane && last == 0 && !QUEUE.is_empty(lane)) {
            drain_lane(context, lane);
        }
    }
    context.last_pushes.set(pushes);
    if window::frequency() > 0 {
        occasionally(context);
    }
}

/// Collects after so many calls of this thread, if the program wants that.
#[cold]
fn occasionally(context: &ThreadContext) {
    thread_local! {
        static CALLS: Cell<u32> = const { Cell::new(0) };
    }
    let calls = CALLS.get().saturating_add(LOOK_EVERY);
    let is_due = calls >= window::frequency() && window::has_passed();
    CALLS.set(if is_due { 0 } else { calls });
    if is_due {
        drain_all(context);
        window::note();
    }
}

/// Gives what a device keeps for reuse back to the system. Returns the bytes.
pub(crate) fn trim(device: &Device) -> u64 {
    let given = device.trim();
    if given > 0 {
        trace::event(trace::Kind::Trimmed, given, device);
    }
    given
}

/// Reaps everything, from outside this layer.
pub(crate) fn collect() -> usize {
    with_context(drain_all)
}

/// Reaps every array without a handle that its manager keeps, and everything that is queued. How many there were.
pub(crate) fn collect_kept() -> usize {
    let mut found = 0;
    // What goes down is read before what goes up.
    let unkept = threads::sum(|counts| &counts.kept.went);
    let any = threads::sum(|counts| &counts.kept.came) != unkept;
    for index in 0..if any { registry::extent() } else { 0 } {
        let cell = registry::slot(index);
        let state = cell.core.state();
        if state & (OPEN | KEPT) == OPEN | KEPT && cell.core.unkeep(generation_of(state)) {
            with_context(|context| {
                context.record.counts.count_unkept();
                // The kept count is this call's now: it goes the way of every last count.
                Counts::bump(&context.record.counts.queued, 1);
                registry::reap(context, index, cell);
            });
            found += 1;
        }
    }
    found + collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_within_the_end_of_an_array_leaves_rings_to_be_taken_one_by_one() {
        let is_within = Cell::new(false);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _within = Reaping::begin(&is_within);
            assert!(is_within.get());
            panic!("on purpose");
        }));
        assert!(ended.is_err() && !is_within.get());
    }
}
