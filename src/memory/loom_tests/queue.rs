//! The queue alone: what is pushed comes out once, with what its pusher did before; also when a thread leaves.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Tally;
use std::sync::atomic::Ordering::SeqCst;

use crate::base::sync::{AtomicU32, Ordering, UnsafeCell};
use crate::memory::queue::{LANES, Queue};

/// A queue over a few slots; `bytes` stands for what a thread did with a slot before it dropped it.
struct Slots {
    queue: Queue,
    links: Vec<AtomicU32>,
    bytes: Vec<UnsafeCell<u32>>,
    out: Vec<Tally>,
}

// SAFETY: `bytes` are for loom to judge.
#[allow(unsafe_code)]
unsafe impl Sync for Slots {}

impl Slots {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Slots {
            queue: Queue::new(),
            links: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            bytes: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
            out: (0..slots).map(|_| Tally::new(0)).collect(),
        })
    }

    fn push(&self, lane: usize, index: u32) {
        // SAFETY: for loom to judge.
        #[allow(unsafe_code)]
        self.bytes[index as usize].with_mut(|bytes| unsafe { *bytes += 1 });
        self.queue.push(lane, index, &self.links[index as usize]);
    }

    /// As [`Slots::push`], by the thread that has the lane to itself.
    fn push_own(&self, lane: usize, index: u32) {
        // SAFETY: for loom to judge.
        #[allow(unsafe_code)]
        self.bytes[index as usize].with_mut(|bytes| unsafe { *bytes += 1 });
        if !self.queue.ring(lane).put(index) {
            self.queue.push(lane, index, &self.links[index as usize]);
        }
    }

    fn take_out(&self, index: u32) {
        // SAFETY: for loom to judge.
        #[allow(unsafe_code)]
        self.bytes[index as usize].with_mut(|bytes| unsafe { *bytes += 1 });
        self.out[index as usize].fetch_add(1, SeqCst);
    }

    fn next(&self, index: u32) -> u32 {
        self.links[index as usize].load(Ordering::Relaxed)
    }

    /// `reclaim::drain_lane`: up to `most`, the rest goes back.
    fn drain(&self, lane: usize, most: usize) {
        let mut reaped = 0;
        while reaped < most {
            if let Some(index) = self.queue.take_one(lane) {
                self.take_out(index);
                reaped += 1;
                continue;
            }
            let mut first = self.queue.take(lane);
            if first == 0 {
                break;
            }
            while first != 0 && reaped < most {
                let index = first - 1;
                first = self.next(index);
                self.take_out(index);
                reaped += 1;
            }
            if first != 0 {
                self.queue.put_back(lane, first, |index| &self.links[index as usize]);
            }
        }
    }

    /// `registry::flush`: a thread's lane goes to the common one.
    fn flush(&self, lane: usize) {
        self.queue.hand_over(lane, 0, |index| &self.links[index as usize]);
    }

    fn settle(&self) {
        (0..LANES).for_each(|lane| self.drain(lane, usize::MAX));
        assert!((0..LANES).all(|lane| self.queue.is_empty(lane)));
        assert!(self.out.iter().all(|out| out.load(SeqCst) == 1), "each comes out once: {:?}", self.out);
    }
}

fn run(slots: usize, before: fn(&Slots), others: &[fn(&Slots)], first: fn(&Slots)) {
    let others = others.to_vec();
    loom::model(move || {
        let slots = Slots::new(slots);
        before(&slots);
        let threads: Vec<_> = others
            .iter()
            .map(|&other| {
                let slots = Arc::clone(&slots);
                loom::thread::spawn(move || other(&slots))
            })
            .collect();
        first(&slots);
        threads.into_iter().for_each(|thread| thread.join().expect("no model thread panics"));
        slots.settle();
    });
}

#[test]
fn two_pushers_and_a_drain_lose_nothing() {
    let drain = |slots: &Slots| slots.drain(1, usize::MAX);
    run(2, |_| (), &[|slots| slots.push(1, 1), drain], |slots| slots.push(1, 0));
}

#[test]
fn two_drains_share_what_was_pushed() {
    let drain = |slots: &Slots| slots.drain(0, usize::MAX);
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push(0, i));
    run(3, fill, &[drain, |slots| slots.push(0, 2)], drain);
}

#[test]
fn what_a_bounded_drain_puts_back_is_found_beside_pushes_and_takes() {
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push(1, i));
    run(3, fill, &[|slots| slots.push(1, 2)], |slots| slots.drain(1, 1));
    run(3, fill, &[|slots| slots.push(1, 2), |slots| slots.drain(1, usize::MAX)], |slots| slots.drain(1, 1));
}

#[test]
fn what_is_put_back_brings_its_pushers_uses_along() {
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push(1, i));
    run(2, |_| (), &[fill, |slots| slots.drain(1, 1)], |slots| slots.drain(1, usize::MAX));
}

#[test]
fn two_rests_of_one_lane_are_kept_apart() {
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push(0, i));
    let more = |slots: &Slots| {
        (2..4).for_each(|i| slots.push(0, i));
        slots.drain(0, 1);
    };
    run(4, fill, &[|slots| slots.drain(0, 1)], more);
}

#[test]
fn two_bounded_drains_find_room_for_both_rests() {
    let fill = |slots: &Slots| {
        (0..2).for_each(|i| slots.push(0, i));
        (2..4).for_each(|i| slots.push(1, i));
    };
    run(4, fill, &[|slots| slots.drain(1, 1)], |slots| slots.drain(0, 1));
}

#[test]
fn a_thread_that_leaves_gives_its_lane_to_whoever_drains_the_common_one() {
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push(1, i));
    let drain = |slots: &Slots| slots.drain(0, usize::MAX);
    run(2, fill, &[drain], |slots| slots.flush(1));
    run(3, fill, &[drain, |slots| slots.push(0, 2)], |slots| slots.flush(1));
    // The common lane has a rest already.
    let rest = |slots: &Slots| {
        (0..2).for_each(|i| slots.push(0, i));
        slots.drain(0, 1);
        slots.push(1, 2);
    };
    run(3, rest, &[drain], |slots| slots.flush(1));
}

#[test]
fn a_thread_leaves_while_another_one_takes_over_its_idle_lane() {
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push(1, i));
    run(2, fill, &[|slots| slots.drain(1, 1)], |slots| slots.flush(1));
}

#[test]
fn a_ring_is_filled_by_one_thread_and_emptied_by_all() {
    let drain = |slots: &Slots| slots.drain(1, usize::MAX);
    run(2, |_| (), &[drain, drain], |slots| (0..2).for_each(|i| slots.push_own(1, i)));
    // The ring holds two: a place is used again, or the list takes what does not fit.
    run(3, |slots| slots.push_own(1, 0), &[drain], |slots| (1..3).for_each(|i| slots.push_own(1, i)));
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push_own(1, i));
    run(3, fill, &[|slots| slots.drain(1, 1), drain], |slots| slots.push_own(1, 2));
}

#[test]
fn a_thread_leaves_with_slots_in_its_ring() {
    let fill = |slots: &Slots| (0..2).for_each(|i| slots.push_own(1, i));
    run(2, fill, &[|slots| slots.drain(1, usize::MAX)], |slots| slots.flush(1));
    run(
        2,
        |_| (),
        &[|slots| slots.drain(0, usize::MAX)],
        |slots| {
            (0..2).for_each(|i| slots.push_own(1, i));
            slots.flush(1);
        },
    );
}
