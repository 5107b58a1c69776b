//! The reclaim queue: slots whose last proxy is gone, linked through the slots themselves.
//!
//! A proxy may die on any thread, while unwinding, in a thread-local destructor or after `main`. So a push is
//! one compare-and-swap on the head of a list (R. K. Treiber's stack, IBM RJ 5118, 1986), or less, and nothing else: no
//! lock, no allocation, no call. A drain takes a whole list with one exchange; since nothing is ever taken from it
//! singly, there is no ABA problem. A slot is in the queue at most once (`slot.rs`), so its link is free when it is
//! pushed.
//!
//! # Lanes
//! The queue has lanes, one a thread (beyond 15 threads they share). A thread pushes to its own and drains its
//! own at each call; lane 0 belongs to everybody: threads that ended or never made an array push there, and
//! each call of any thread looks there too. A lane whose owner is idle is emptied by the others after two
//! looks (`reclaim.rs`). What a bounded drain leaves over goes into the `rest` of the lane.
//!
//! # Rings
//! A lane that one thread record has to itself has a ring beside its list, which only that record's thread fills: a
//! push is two stores, and whoever takes, on whatever thread, moves a count by one exchange. What does not fit goes
//! into the list, and so does what a thread without such a lane drops.
//!
//! # Why not a channel
//! Its list grows in blocks of messages, so a drop under memory pressure would allocate.

use crate::base::sync::{AtomicU32, AtomicU64, Ordering};

/// Lists of dead slots; 0 is common.
pub(crate) const LANES: usize = if cfg!(loom) { 2 } else { 16 };

/// Slots that a ring holds.
const RING: usize = if cfg!(loom) { 2 } else { 64 };

/// The slots that a thread dropped last, of whose record it is.
#[derive(Debug)]
pub(crate) struct Ring {
    /// How many were put in, and how many taken out.
    put: AtomicU64,
    taken: AtomicU64,
    /// Indices; those between the two counts wait.
    slots: [AtomicU32; RING],
}

/// One list: index + 1 of its first slot, 0 if it is empty; and a ring.
#[derive(Debug)]
#[repr(align(128))]
struct Lane {
    head: AtomicU32,
    /// A list that a bounded drain took and did not finish.
    rest: AtomicU32,
    ring: Ring,
}

impl Ring {
    /// Adds a slot. By the thread of the ring's record alone. `false` if it is full.
    #[inline]
    pub(crate) fn put(&self, index: u32) -> bool {
        // Relaxed: written by the thread of one record, which passes from thread to thread by a lock.
        let put = self.put.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `take`: what is written over was read before.
        if put.wrapping_sub(self.taken.load(Ordering::Acquire)) >= RING as u64 {
            return false;
        }
        self.slots[put as usize % RING].store(index, Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`; publishes the index and the uses before the drop.
        self.put.store(put + 1, Ordering::Release);
        true
    }

    /// Takes the slot that waits longest, by any thread.
    #[inline]
    fn take(&self) -> Option<u32> {
        // Relaxed: a guess, which the exchange confirms.
        let mut taken = self.taken.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `put`.
        while taken < self.put.load(Ordering::Acquire) {
            let index = self.slots[taken as usize % RING].load(Ordering::Relaxed);
            // Release: pairs with the Acquire in `put`, which writes over the index that was read. It was the right one
            // if nobody took it meanwhile: until then it is not written over.
            match self.taken.compare_exchange_weak(taken, taken + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(index),
                Err(now) => taken = now,
            }
        }
        None
    }

    /// Whether nothing waits.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        // Relaxed: a hint; `take` decides.
        self.taken.load(Ordering::Relaxed) >= self.put.load(Ordering::Relaxed)
    }
}

impl Lane {
    #[cfg(not(loom))]
    const fn new() -> Self {
        let slots = [const { AtomicU32::new(0) }; RING];
        let ring = Ring { put: AtomicU64::new(0), taken: AtomicU64::new(0), slots };
        Lane { head: AtomicU32::new(0), rest: AtomicU32::new(0), ring }
    }

    #[cfg(loom)]
    fn new() -> Self {
        let slots = std::array::from_fn(|_| AtomicU32::new(0));
        let ring = Ring { put: AtomicU64::new(0), taken: AtomicU64::new(0), slots };
        Lane { head: AtomicU32::new(0), rest: AtomicU32::new(0), ring }
    }
}

/// All lanes.
#[derive(Debug)]
pub(crate) struct Queue {
    lanes: [Lane; LANES],
}

impl Queue {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Queue { lanes: [const { Lane::new() }; LANES] }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Queue { lanes: std::array::from_fn(|_| Lane::new()) }
    }

    /// The ring of a lane, for the thread record that has the lane to itself.
    pub(crate) fn ring(&self, lane: usize) -> &Ring {
        &self.lanes[lane].ring
    }

    /// Takes the slot that waits longest in a lane's ring.
    #[inline]
    pub(crate) fn take_one(&self, lane: usize) -> Option<u32> {
        self.lanes[lane].ring.take()
    }

    /// Takes what waits in a lane's ring as a list, 0 if that is nothing. `link` gives the link of a slot.
    #[cfg(not(loom))]
    #[cold]
    pub(crate) fn take_ring<'a>(&self, lane: usize, link: impl Fn(u32) -> &'a AtomicU32) -> u32 {
        let mut first = 0;
        // Its thread may go on filling it.
        for _ in 0..RING {
            let Some(index) = self.take_one(lane) else { break };
            // Relaxed: read on this thread, or published by the Release in `put_back`.
            link(index).store(first, Ordering::Relaxed);
            first = index + 1;
        }
        first
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
        let Lane { head, rest, ring } = &self.lanes[lane];
        // Relaxed: a hint; `take` decides. No record has the common lane to itself.
        head.load(Ordering::Relaxed) == 0 && rest.load(Ordering::Relaxed) == 0 && (lane == 0 || ring.is_empty())
    }

    /// What each push to a lane changes, to see whether it moves; 0 if nothing was pushed that waits.
    pub(crate) fn last_push(&self, lane: usize) -> u64 {
        let Lane { head, ring, .. } = &self.lanes[lane];
        // Relaxed: a hint, as in `is_empty`.
        let (head, put) = (head.load(Ordering::Relaxed), ring.put.load(Ordering::Relaxed));
        if head == 0 && ring.is_empty() { 0 } else { put << 32 | u64::from(head) }
    }

    /// Takes a whole list: the rest of an earlier drain, else the lane. 0 if there is none.
    #[inline]
    pub(crate) fn take(&self, lane: usize) -> u32 {
        let Lane { head, rest, .. } = &self.lanes[lane];
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
        while let Some(index) = self.take_one(from) {
            self.push(to, index, link(index));
        }
        loop {
            let at = self.take(from);
            if at == 0 {
                break;
            }
            // Release: pairs with the Acquire in `take`; passes on what was taken.
            if self.lanes[to].rest.compare_exchange(0, at, Ordering::Release, Ordering::Relaxed).is_ok() {
                continue;
            }
            self.push_each(to, at, &link);
        }
    }

    /// Puts back what a bounded drain took and did not finish: whole, into the first lane from `lane` on that has room,
    /// else slot by slot. `link` gives the link of a slot.
    pub(crate) fn put_back<'a>(&self, lane: usize, first: u32, link: impl Fn(u32) -> &'a AtomicU32) {
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
        // Every lane has a rest, and nobody need come for one of them soon.
        self.push_each(lane, first, &link);
    }

    /// Pushes the slots of a list that was taken.
    #[cold]
    fn push_each<'a>(&self, lane: usize, first: u32, link: &dyn Fn(u32) -> &'a AtomicU32) {
        let mut at = first;
        while at != 0 {
            let index = at - 1;
            // Relaxed: made visible by the Acquire in `take`.
            at = link(index).load(Ordering::Relaxed);
            self.push(lane, index, link(index));
        }
    }
}

/// Slots whose last handle was dropped, until they are drained (`reclaim.rs`).
#[cfg(not(loom))]
pub(crate) static QUEUE: Queue = Queue::new();

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, mpsc::channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_no_lane_has_room_for_is_put_back_all_the_same() {
        const SLOTS: u32 = LANES as u32 + 3;
        let all = Arc::new((Queue::new(), [const { AtomicU32::new(0) }; SLOTS as usize]));
        let (ends, has_ended) = channel();
        let own = Arc::clone(&all);
        // A thread of its own: broken, this does not end.
        std::thread::spawn(move || {
            let (queue, links) = &*own;
            let link = |index: u32| &links[index as usize];
            (0..SLOTS - 3).for_each(|index| queue.put_back(0, index + 1, link));
            // The last three as one list.
            link(SLOTS - 3).store(SLOTS - 1, Ordering::Relaxed);
            link(SLOTS - 2).store(SLOTS, Ordering::Relaxed);
            queue.put_back(3, SLOTS - 2, link);
            let _ = ends.send(());
        });
        has_ended.recv_timeout(Duration::from_secs(60)).expect("there is room for each slot");
        let ((queue, links), mut found) = (&*all, Vec::new());
        for lane in 0..LANES {
            while !queue.is_empty(lane) {
                let mut at = queue.take(lane);
                while at != 0 {
                    found.push(at - 1);
                    at = links[at as usize - 1].load(Ordering::Relaxed);
                }
            }
        }
        found.sort_unstable();
        assert_eq!(found, (0..SLOTS).collect::<Vec<_>>());
    }
}
