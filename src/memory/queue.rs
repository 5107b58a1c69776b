//! The reclaim queue: slots whose last proxy is gone, linked through the slots themselves.
//!
//! A proxy may die on any thread, while unwinding, in a thread-local destructor or after `main`. So a push is
//! one compare-and-swap on the head of a list, and nothing else: no lock, no allocation, no call. A drain takes
//! a whole list with one exchange; since nothing is ever taken singly, there is no ABA problem. A slot is in
//! the queue at most once (`slot.rs`), so its link is free when it is pushed.
//!
//! # Lanes
//! The queue has lanes, one a thread (beyond 15 threads they share). A thread pushes to its own and drains its
//! own at each call; lane 0 belongs to everybody: threads that ended or never made an array push there, and
//! each call of any thread looks there too. A lane whose owner is idle is emptied by the others after two
//! looks (`reclaim.rs`). What a bounded drain leaves over goes into the `rest` of the lane.
//!
//! # Why not a channel
//! Its list grows in blocks of messages, so a drop under memory pressure would allocate.

use crate::base::sync::{AtomicU32, Ordering, wait_turn};

/// Lists of dead slots; 0 is common.
pub(crate) const LANES: usize = if cfg!(loom) { 2 } else { 16 };

/// One list: index + 1 of its first slot, 0 if it is empty.
#[derive(Debug)]
#[repr(align(128))]
struct Lane {
    head: AtomicU32,
    /// A list that a bounded drain took and did not finish.
    rest: AtomicU32,
}

/// All lanes.
#[derive(Debug)]
pub(crate) struct Queue {
    lanes: [Lane; LANES],
}

impl Queue {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Queue { lanes: [const { Lane { head: AtomicU32::new(0), rest: AtomicU32::new(0) } }; LANES] }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Queue { lanes: std::array::from_fn(|_| Lane { head: AtomicU32::new(0), rest: AtomicU32::new(0) }) }
    }

    /// Adds a slot. `link` is the slot's own link.
    #[inline]
    pub(crate) fn push(&self, lane: usize, index: u32, link: &AtomicU32) {
        let head = &self.lanes[lane].head;
        // Relaxed: a guess, which the exchange confirms; the link is published by that too.
        let mut first = head.load(Ordering::Relaxed);
        loop {
            link.store(first, Ordering::Relaxed);
            // Release: pairs with the Acquire in `take`; publishes the link and the uses before the drop. Those of
            // earlier pushes too: this exchange goes on with their release sequence.
            match head.compare_exchange_weak(first, index + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Whether a lane has nothing.
    #[inline]
    pub(crate) fn is_empty(&self, lane: usize) -> bool {
        // Relaxed: a hint; `take` decides.
        self.lanes[lane].head.load(Ordering::Relaxed) == 0 && self.lanes[lane].rest.load(Ordering::Relaxed) == 0
    }

    /// The head of a lane, to see whether it moves.
    pub(crate) fn head(&self, lane: usize) -> u32 {
        // Relaxed: a hint; `take` decides.
        self.lanes[lane].head.load(Ordering::Relaxed)
    }

    /// Takes a whole list: the rest of an earlier drain, else the lane. 0 if there is none.
    #[inline]
    pub(crate) fn take(&self, lane: usize) -> u32 {
        let Lane { head, rest } = &self.lanes[lane];
        for list in [rest, head] {
            // Relaxed: a look that spares most exchanges; the exchange decides.
            if list.load(Ordering::Relaxed) != 0 {
                // Acquire: pairs with the Release in `push` and `put_back`.
                let first = list.swap(0, Ordering::Acquire);
                if first != 0 {
                    return first;
                }
            }
        }
        0
    }

    /// Moves a lane's slots to another lane: at once, if that one has no rest. `link` gives the link of a slot.
    pub(crate) fn hand_over<'a>(&self, from: usize, to: usize, link: impl Fn(u32) -> &'a AtomicU32) {
        loop {
            let mut at = self.take(from);
            if at == 0 {
                break;
            }
            // Release: pairs with the Acquire in `take`; passes on what was taken.
            if self.lanes[to].rest.compare_exchange(0, at, Ordering::Release, Ordering::Relaxed).is_ok() {
                continue;
            }
            while at != 0 {
                let index = at - 1;
                // Relaxed: made visible by the Acquire in `take`.
                at = link(index).load(Ordering::Relaxed);
                self.push(to, index, link(index));
            }
        }
    }

    /// Puts back what a bounded drain took and did not finish, into the first lane from `lane` on that has room.
    pub(crate) fn put_back(&self, lane: usize, first: u32) {
        let mut turns = 0;
        loop {
            for i in 0..LANES {
                let rest = &self.lanes[(lane + i) % LANES].rest;
                // Release: pairs with the Acquire in `take`; passes on the links read from other lists. Relaxed before
                // it: a look that spares most exchanges.
                if rest.load(Ordering::Relaxed) == 0
                    && rest.compare_exchange(0, first, Ordering::Release, Ordering::Relaxed).is_ok()
                {
                    return;
                }
            }
            // Every lane holds a rest: as many drains are running as there are lanes, and one will take its own.
            wait_turn(&mut turns);
        }
    }
}
