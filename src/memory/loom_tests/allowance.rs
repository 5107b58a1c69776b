//! What a thread keeps of a budget (`memory/allowance.rs`), against another one that is refused and takes it back.

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Tally;
use std::sync::atomic::Ordering::SeqCst;

use crate::base::sync::{AtomicU64, Ordering};
use crate::memory::{
    allowance::{Allowance, Settlement},
    hazard::heavy,
};

const NODE: u32 = 1;

/// A budget for so many arrays of a byte, and what its first thread keeps of it.
struct World {
    most: u64,
    charged: AtomicU64,
    kept: Allowance,
    alive: Tally,
    /// Written by both, so that both orders of what they do are explored.
    touched: AtomicU64,
}

impl World {
    /// With as many arrays as there may be, all of the first thread.
    fn full(most: u64) -> Arc<Self> {
        let kept = Allowance::new();
        kept.begin(NODE, 0, (64, 64));
        let (charged, touched) = (AtomicU64::new(most), AtomicU64::new(0));
        Arc::new(World { most, charged, kept, alive: Tally::new(most), touched })
    }

    fn is_made(&self) -> bool {
        assert!(self.alive.fetch_add(1, SeqCst) < self.most, "more than there may be");
        true
    }

    fn charge(&self) -> bool {
        let more = |charged: u64| (charged < self.most).then_some(charged + 1);
        // Relaxed: a number.
        self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() && self.is_made()
    }

    /// By the first thread.
    fn make(&self) -> bool {
        self.touched.store(1, Ordering::Relaxed);
        self.kept.draw(NODE, 0, 1, 1) && self.is_made() || self.charge()
    }

    /// By the first thread.
    fn free(&self) {
        self.alive.fetch_sub(1, SeqCst);
        self.touched.store(2, Ordering::Relaxed);
        if !self.kept.keep(NODE, 0, 1, 1) {
            self.charged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn credit(&self, kept: Settlement) {
        assert_eq!(kept.bytes, kept.arrays);
        self.charged.fetch_sub(kept.bytes.0, Ordering::Relaxed);
    }

    /// By another one.
    fn make_beside(&self) -> bool {
        if self.charge() {
            return true;
        }
        if self.kept.has_of() == Some(NODE) {
            self.touched.store(3, Ordering::Relaxed);
            self.kept.claim();
            heavy(2);
            self.kept.recall(|kept| self.credit(kept));
        }
        self.charge()
    }
}

/// Runs both; at the end as much is charged as there is.
fn run(most: u64, first: fn(&World) -> u64, second: fn(&World) -> u64) {
    let run = move || {
        let world = World::full(most);
        let beside = Arc::clone(&world);
        let second = loom::thread::spawn(move || second(&beside));
        let made = first(&world) + second.join().expect("it ends");
        world.kept.hand_over(|kept| world.credit(kept)).expect("nobody takes it");
        let charged = world.charged.load(Ordering::Relaxed);
        assert_eq!((charged, world.alive.load(SeqCst)), (made, made), "what is charged is what there is");
    };
    loom::model(run);
}

fn beside(world: &World) -> u64 {
    world.make_beside().into()
}

#[test]
fn what_is_kept_is_drawn_by_its_thread_or_taken_by_another_one() {
    let turn = |world: &World| {
        world.free();
        world.make().into()
    };
    run(1, turn, beside);
}

#[test]
fn a_thread_goes_on_while_what_it_keeps_is_taken() {
    let turns = |world: &World| {
        world.free();
        world.free();
        u64::from(world.make()) + u64::from(world.make())
    };
    run(2, turns, beside);
}

#[test]
fn what_is_kept_is_taken_once() {
    let twice = |world: &World| u64::from(world.make_beside()) + u64::from(world.make_beside());
    let free = |world: &World| {
        world.free();
        world.most - 1
    };
    run(1, free, twice);
    run(2, free, twice);
}

/// Whoever knows that something was freed is granted it: it is kept, or with its budget, or both.
#[test]
fn what_is_handed_over_is_found_with_its_node_before_it_is_gone() {
    let hands_over = |world: &World| {
        world.free();
        // Release: pairs with the Acquire below.
        world.touched.store(5, Ordering::Release);
        world.kept.hand_over(|kept| world.credit(kept));
        0
    };
    let asks = |world: &World| {
        // Acquire: pairs with the Release above.
        let knows = world.touched.load(Ordering::Acquire) == 5;
        let is_made = world.make_beside();
        assert!(is_made || !knows, "refused for nothing");
        is_made.into()
    };
    run(1, hands_over, asks);
}
