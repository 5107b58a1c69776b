//! A list of a manager that one thread has to itself (`BiasedLock`), against another one that takes it.

use std::sync::Arc;

use crate::base::sync::{BiasedLock, Inside, Ordering, fence};
use crate::memory::hazard::heavy;

/// A list of so many arrays, and the marks of two threads.
struct List {
    count: BiasedLock<u32>,
    marks: [&'static Inside; 2],
}

/// Barriers of a thread that makes arrays or takes them out.
type Barriers = (fn(), fn());
const BARRIERS: Barriers = (light, interrupt);

fn light() {
    // SeqCst: pairs with the fence in `heavy`.
    fence(Ordering::SeqCst);
}

fn interrupt() {
    heavy(2);
}

fn nothing() {}

impl List {
    /// By the thread with this number, which may have the list to itself.
    fn add(&self, me: usize, (light, heavy): Barriers) {
        self.count.with_own(Some(self.marks[me]), light, heavy, |count| *count += 1);
    }

    fn look(&self, me: Option<usize>, heavy: fn()) -> u32 {
        self.count.with(me.map(|me| self.marks[me]), heavy, |count| *count)
    }
}

/// Runs both, the first with the list to itself when the second begins; the arrays at the end, and what `second` found.
fn run(first: fn(&List), second: fn(&List) -> u32, check: fn(u32, u32)) {
    let run = move || {
        let mark = || -> &'static Inside { Box::leak(Box::new(Inside::new())) };
        let list = Arc::new(List { count: BiasedLock::new(0), marks: [mark(), mark()] });
        list.add(0, BARRIERS);
        let beside = Arc::clone(&list);
        let other = loom::thread::spawn(move || second(&beside));
        first(&list);
        let found = other.join().expect("it ends");
        check(list.look(None, interrupt), found);
    };
    loom::model(run);
}

fn add(list: &List) {
    list.add(0, BARRIERS);
}

fn add_twice(list: &List) {
    add(list);
    add(list);
}

#[test]
fn who_looks_at_a_list_waits_for_the_thread_that_has_it() {
    let looks = |list: &List| list.look(Some(1), interrupt);
    run(add_twice, looks, |count, found| assert!(count == 3 && (1..=3).contains(&found)));
    let looks_without_a_mark = |list: &List| list.look(None, interrupt);
    run(add_twice, looks_without_a_mark, |count, found| assert!(count == 3 && (1..=3).contains(&found)));
}

#[test]
fn two_threads_have_a_list_in_turns() {
    let adds = |list: &List| {
        list.add(1, BARRIERS);
        list.add(1, BARRIERS);
        0
    };
    run(add_twice, adds, |count, _| assert_eq!(count, 5));
}

#[test]
fn a_list_that_begins_anew_is_whose_it_was_or_nobodys() {
    let restarts = |list: &List| {
        list.count.restart(Some(list.marks[1]), interrupt, 10);
        0
    };
    run(add_twice, restarts, |count, _| assert!((10..=12).contains(&count)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn who_takes_a_list_without_the_heavy_barrier_meets_its_thread() {
    run(add, |list| list.look(Some(1), nothing), |_, _| ());
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_thread_that_enters_without_the_light_barrier_meets_who_takes_its_list() {
    run(|list| list.add(0, (nothing, interrupt)), |list| list.look(Some(1), interrupt), |_, _| ());
}
