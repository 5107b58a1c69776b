//! What a thread keeps of a budget for its next arrays: nobody else is refused for it, and no figure shows it.

use std::sync::mpsc::channel;

use ndgc::{Budget, DType, Device, NdManager, Tensor, Var, gc, memory};

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
        let (house, tenant, other) = (base(&Device::Cpu), base(&Device::Cpu), base(&Device::Cpu));
        let below = |max: u64| {
            let guest = house.new_sub_manager().expect("it is open");
            guest.set_budget(Budget::new().max_bytes(max)).expect("it is open");
            guest
        };
        house.set_budget(Budget::new().max_bytes(128_000)).expect("it is open");
        let (guest, sibling) = (below(128_000), below(256_000));
        tenant.set_budget(Budget::new().max_arrays(192)).expect("it is open");
        let first = &|| {
            come_and_go(&tenant, 3, 10);
            come_and_go(&sibling, 8, 200);
            come_and_go(&sibling, 8, 200);
        };
        let second = &|| {
            come_and_go(&guest, 8, 200);
            come_and_go(&guest, 8, 200);
        };
        // A move asks once, and looks for nothing.
        let moved = zeros(&other, 128_000).expect("memory");
        beside_idle(first, || {
            moved.attach(&house).expect("as much as there may be");
            moved.close();
        });
        beside_idle(first, || {
            beside_idle(second, || {
                assert!(guest.can_fit(128_000), "what is kept of a budget above waits as well");
                assert_eq!(figures(&guest)[0], (0, 0), "they are closed");
            });
        });
        beside_idle(second, || {
            beside_idle(first, || {
                assert!(house.can_fit(128_000), "nobody waits for the threads that keep them");
                let _all = zeros(&guest, 128_000).expect("as much as there may be");
                assert!(zeros(&house, 1).is_err());
                let mut arrays: Vec<Tensor> = (0..191).map(|_| zeros(&tenant, 10).expect("room")).collect();
                arrays.push(arrays[0].narrow(0, 0, 5).expect("one of 192"));
                assert!(zeros(&tenant, 1).is_err());
                let view = arrays[0].narrow(0, 0, 5).expect_err("one more").to_string();
                assert!(view.contains("192"), "{view}");
            });
        });
    });
}

/// Of a tenant that has more than it may have nothing is kept, before or after its limit fell, nor of one below it.
#[test]
fn above_a_limit_nothing_is_granted_until_enough_is_gone() {
    alone(|| {
        let house = base(&Device::Cpu);
        let guest = house.new_sub_manager().expect("it is open");
        for manager in [&house, &guest] {
            manager.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
        }
        let mut arrays: Vec<Tensor> = (0..200).map(|_| zeros(&guest, 1000).expect("room")).collect();
        let close = |arrays: &mut Vec<Tensor>, count: usize| arrays.drain(..count).for_each(|array| array.close());
        house.set_budget(Budget::new().max_bytes(128_000)).expect("it is open");
        close(&mut arrays, 2);
        assert!(zeros(&guest, 1000).is_err() && !guest.can_fit(1000), "198 are there");
        close(&mut arrays, 71);
        arrays.push(zeros(&guest, 1000).expect("the 128th"));
        assert!(zeros(&guest, 1000).is_err());
        house.set_budget(Budget::new().max_arrays(64)).expect("it is open");
        close(&mut arrays, 2);
        assert!(zeros(&guest, 1000).is_err(), "126 are there");
        close(&mut arrays, 63);
        arrays.push(zeros(&guest, 1000).expect("the 64th"));
        assert!(zeros(&guest, 1000).is_err());
        // A budget that comes above what is there.
        let late = base(&Device::Cpu);
        let array = zeros(&late, 300).expect("memory");
        let view = array.narrow(0, 0, 10).expect("a view");
        late.set_budget(Budget::new().max_arrays(1)).expect("it is open");
        view.close();
        assert!(zeros(&late, 1).is_err());
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
fn what_fails_when_there_are_bytes_for_it_counts_no_array() {
    alone(|| {
        let house = base(&Device::Cpu);
        let guest = house.new_sub_manager().expect("it is open");
        guest.set_budget(Budget::new().max_bytes(1 << 20).max_arrays(1000)).expect("it is open");
        let (x, index) = (zeros(&guest, 8).expect("room"), guest.full(9u32, 3).expect("room"));
        come_and_go(&guest, 3, 100);
        for _ in 0..100 {
            let told = x.index_select(&index, 0).expect_err("there are 8").to_string();
            assert!(told.contains("index 9"), "{told}");
        }
        let there = x.index_select(&index.zeros_like().expect("room"), 0).expect("indices of the first");
        let now = || {
            gc::collect();
            figures(&guest)[0]
        };
        assert_eq!(now(), (8 + 12 + 12 + 3, 4));
        // Steps of a composed operation belong to their handles, and are charged to whom its result is.
        let floats = x.to_dtype(DType::F32).expect("room");
        let sum = floats.log_sum_exp(0).expect("room");
        assert_eq!(now(), (35 + 32 + 4, 6));
        drop((there, floats, sum));
    });
}

type Make<'a> = &'a dyn Fn() -> ndgc::Result<Tensor>;

/// Bytes for a call alone, or for a gradient, are no array, nor are those of a result that fails or is another's; and a
/// result is one array, though there was no block at hand, or a gradient keeps its bytes.
#[test]
fn what_is_counted_with_its_bytes_is_an_array_and_counted_once() {
    alone(|| {
        let guest = base(&Device::Cpu);
        guest.set_budget(Budget::new().max_bytes(1 << 20).max_arrays(1000)).expect("it is open");
        let (x, index) = (zeros(&guest, 8).expect("room"), guest.full(9u32, 3).expect("room"));
        let logits = Var::from_tensor(&guest.zeros((2, 4), DType::F32).expect("room")).expect("room");
        let (labels, mask) = (guest.full(1u32, 2).expect("room"), guest.full(1u8, 4).expect("room"));
        let nobodys = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory");
        let image = guest.zeros((1, 2, 8), DType::F32).expect("room");
        let kernel = guest.zeros((2, 2, 3), DType::F32).and_then(|kernel| kernel.transpose(0, 1)).expect("room");
        let picture = Var::from_tensor(&guest.zeros((1, 1, 4, 4), DType::F32).expect("room")).expect("room");
        let cases: [(&str, (u64, u64), Make<'_>); 7] = [
            ("of a size that the thread has no block of", (5000, 1), &|| zeros(&guest, 5000)),
            ("by an index that is none", (0, 0), &|| x.index_select(&index, 0)),
            ("whose result is kept for a gradient", (32, 1), &|| logits.softmax(1)),
            ("that keeps more than its result", (36, 1), &|| logits.cross_entropy(&labels)),
            ("that keeps where it found its result", (32, 1), &|| picture.max_pool2d(2)),
            ("whose result is no manager's", (0, 0), &|| mask.where_cond(&nobodys, &nobodys)),
            ("that copies an operand", (48, 1), &|| image.conv1d(&kernel, 0, 1, 1, 1)),
        ];
        let mut all = Vec::new();
        for (what, (bytes, arrays), make) in cases {
            gc::collect();
            let [before, _, (_, in_all)] = figures(&guest);
            come_and_go(&guest, 10, 1000);
            // So that the thread has blocks of these sizes in stock.
            (1..=5).for_each(|eighth| come_and_go(&guest, 4, 8 * eighth));
            all.extend(make());
            gc::collect();
            let [now, _, (_, total)] = figures(&guest);
            assert_eq!((now, total), ((before.0 + bytes, before.1 + arrays), in_all + 30 + arrays), "one {what}");
        }
        assert_eq!(all.len(), 6, "but for the index");
    });
}

#[test]
fn a_limit_that_falls_ends_what_was_kept_beyond_it() {
    alone(|| {
        let house = base(&Device::Cpu);
        let guest = house.new_sub_manager().expect("it is open");
        guest.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
        house.set_budget(Budget::new().max_bytes(1 << 20).max_arrays(1000)).expect("it is open");
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
        house.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
        come_and_go(&guest, 3, 100);
        let reserved = house.reserve(600).expect("room");
        let drawn = zeros(&guest, 100).expect("it is reserved");
        assert_eq!(house.budget_use().expect("a budget").reserved_bytes, 500, "not of what was kept");
        drop((reserved, drawn, stays));
    });
}

/// Whoever serves requests of one tenant makes and drops arrays at the speed of one without a budget: without a word to
/// anybody, and without an interrupt of others, but where one ends what another has left in its lane: the list is
/// nobody's then until a thread used it alone, 8 times as often each time.
#[test]
fn threads_within_one_budget_interrupt_nobody() {
    in_own_process("it::allowances::threads_within_one_budget_interrupt_nobody", three_threads);
}

fn three_threads() {
    let _on = gc::scoped(true);
    let house = base(&Device::Cpu);
    house.set_budget(Budget::new().max_bytes(1 << 22)).expect("it is open");
    let interrupts = || memory::stats(&Device::Cpu).get("threads.interrupts").expect("a figure");
    let before = interrupts();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10_000).for_each(|_| drop(zeros(&house, 100).expect("room"))));
        }
    });
    let of_lists = 4 * 5; // 8 + 64 + 512 + 4,096 uses of one between them
    assert!(interrupts() - before <= of_lists, "{}", interrupts() - before);
    gc::collect();
    let [now, peak, total] = figures(&house);
    assert_eq!((now, total), ((0, 0), (3_000_000, 30_000)));
    assert!(peak.0 >= 100 && peak.0 <= 300 + 3 * (64 << 10), "{peak:?}");
}
