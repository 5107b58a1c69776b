//! What a thread keeps of a budget for its next arrays: nobody else is refused for it, and no figure shows it.

use std::sync::mpsc::channel;

use ndgc::{Budget, DType, Device, NdManager, Tensor, gc, memory};

use crate::common::in_own_process;
use crate::it::support::{alone, base};

fn zeros(manager: &NdManager, bytes: usize) -> ndgc::Result<Tensor> {
    manager.zeros(bytes, DType::U8)
}

/// Bytes and arrays: now, at most, and in all.
fn figures(manager: &NdManager) -> [(u64, u64); 3] {
    let found = manager.budget_use().expect("a budget");
    let [now, peak] = [(found.bytes, found.arrays), (found.peak_bytes, found.peak_arrays)];
    [now, peak, (found.total_bytes, found.total_arrays)]
}

/// Runs `first` on a thread that goes on, as one that waits for requests does, until `then` is done.
fn beside_idle<R>(first: impl FnOnce() + Send, then: impl FnOnce() -> R) -> R {
    let ((ready, is_ready), (done, is_done)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            first();
            ready.send(()).expect("it is waited for");
            let _ = is_done.recv();
        });
        is_ready.recv().expect("it does not panic");
        let result = then();
        drop(done);
        result
    })
}

/// Makes so many arrays and closes them.
fn come_and_go(manager: &NdManager, count: usize, bytes: usize) {
    let all: Vec<Tensor> = (0..count).map(|_| zeros(manager, bytes).expect("room")).collect();
    all.iter().for_each(Tensor::close);
}

#[test]
fn what_an_idle_thread_keeps_refuses_nobody() {
    alone(|| {
        let (house, tenant) = (base(&Device::Cpu), base(&Device::Cpu));
        house.set_budget(Budget::new().max_bytes(1000)).expect("it is open");
        let guest = house.new_sub_manager().expect("it is open");
        guest.set_budget(Budget::new().max_bytes(1000)).expect("it is open");
        tenant.set_budget(Budget::new().max_arrays(3)).expect("it is open");
        let first = &|| {
            come_and_go(&tenant, 3, 10);
            come_and_go(&guest, 5, 200);
            come_and_go(&guest, 5, 200);
        };
        // A move asks once, and looks for nothing.
        let other = base(&Device::Cpu);
        let moved = zeros(&other, 1000).expect("memory");
        beside_idle(first, || {
            moved.attach(&house).expect("as much as there may be");
            moved.close();
        });
        beside_idle(first, || {
            assert_eq!(figures(&guest)[0], (0, 0), "they are closed");
            assert!(house.can_fit(1000), "and nobody waits for the thread that keeps them");
            let _all = zeros(&house, 1000).expect("as much as there may be");
            assert!(zeros(&house, 1).is_err());
            let arrays = [10, 20, 30].map(|bytes| zeros(&tenant, bytes).expect("one of three"));
            assert!(zeros(&tenant, 1).is_err());
            let view = arrays[0].narrow(0, 0, 5).expect_err("a fourth").to_string();
            assert!(view.contains('3'), "{view}");
        });
        // The other way round: a view asks first.
        let lone = base(&Device::Cpu);
        lone.set_budget(Budget::new().max_arrays(2)).expect("it is open");
        beside_idle(
            || come_and_go(&lone, 2, 8),
            || {
                let one = zeros(&lone, 8).expect("one of two");
                one.narrow(0, 0, 4).expect("the other one");
            },
        );
    });
}

#[test]
fn figures_have_what_was_kept_and_drawn_again() {
    alone(|| {
        let house = base(&Device::Cpu);
        house.set_budget(Budget::new()).expect("it is open");
        let guest = house.new_sub_manager().expect("it is open");
        guest.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
        for _ in 0..500 {
            come_and_go(&guest, 2, 100);
        }
        for of in [&guest, &house] {
            assert_eq!(figures(of), [(0, 0), (200, 2), (100_000, 1000)]);
        }
        // More than a thread keeps, of bytes and of arrays.
        come_and_go(&guest, 100, 1000);
        come_and_go(&guest, 2, 1 << 18);
        let kept = zeros(&guest, 10).expect("room");
        let total = 100_000 + 100_000 + (1 << 19) + 10;
        for of in [&guest, &house] {
            assert_eq!(figures(of), [(10, 1), (1 << 19, 100), (total, 1103)]);
        }
        drop(kept);
    });
}

#[test]
fn a_limit_that_falls_ends_what_was_kept_beyond_it() {
    alone(|| {
        let house = base(&Device::Cpu);
        let guest = house.new_sub_manager().expect("it is open");
        guest.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
        house.set_budget(Budget::new().max_bytes(1000).max_arrays(10)).expect("it is open");
        let stays = zeros(&guest, 400).expect("room");
        come_and_go(&guest, 5, 100);
        // Of the budget above, which the thread does not keep anything of itself.
        house.set_budget(Budget::new().max_bytes(450)).expect("it is open");
        assert!(zeros(&guest, 100).is_err(), "400 are there");
        house.set_budget(Budget::new().max_arrays(1)).expect("it is open");
        assert!(zeros(&guest, 10).is_err(), "one is there");
        house.set_budget(Budget::new().soft_bytes(450)).expect("it is open");
        come_and_go(&guest, 3, 100);
        come_and_go(&guest, 3, 100);
        assert_eq!(house.budget_use().expect("a budget").soft_passed, 2, "each time the first of three passes it");
        house.set_budget(Budget::new().max_bytes(1000)).expect("it is open");
        come_and_go(&guest, 3, 100);
        let reserved = house.reserve(600).expect("room");
        let drawn = zeros(&guest, 100).expect("it is reserved");
        assert_eq!(house.budget_use().expect("a budget").reserved_bytes, 500, "not of what was kept");
        drop((reserved, drawn, stays));
    });
}

/// Whoever serves requests of one tenant makes and drops arrays at the speed of one without a budget: without a word to
/// anybody, and without an interrupt of others.
#[test]
fn threads_within_one_budget_interrupt_nobody() {
    in_own_process("it::allowances::threads_within_one_budget_interrupt_nobody", three_threads);
}

fn three_threads() {
    let _on = gc::scoped(true);
    let house = base(&Device::Cpu);
    house.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
    let interrupts = || memory::stats(&Device::Cpu).get("threads.interrupts").expect("a figure");
    let before = interrupts();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10_000).for_each(|_| drop(zeros(&house, 100).expect("room"))));
        }
    });
    assert_eq!(interrupts(), before);
    gc::collect();
    let [now, peak, total] = figures(&house);
    assert_eq!((now, total), ((0, 0), (3_000_000, 30_000)));
    assert!(peak.0 >= 100 && peak.0 <= 300 + 3 * (64 << 10), "{peak:?}");
}
