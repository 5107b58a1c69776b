//! Section 9: what is strictly better than DJL. Points 2 and 3 are in `flat.rs`, 5 and 11 in `threads.rs`, 15 in
//! `lending.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use ndgc::{Closer, DType, Device, Error, NdManager, Result, SimConfig, StaleArray, Tensor, Var, gc, graph_report};

use crate::it::defects::SELF_RETURNING;
use crate::it::support::{alone, base, block, both, live_bytes, matrix, owned_by, switched, values, vector};

/// Arrays that one call reclaims at most: the bound that design.md states.
const BATCH: usize = 256;

#[test]
fn point01_after_any_call_at_most_what_exceeds_a_batch_is_left_dead() {
    // Broken by: a call that drains nothing, or a queue that loses what a bounded drain leaves over.
    switched(true, |device| {
        let (manager, elsewhere) = (base(device), base(device));
        let other = vector(&elsewhere);
        for orphans in [1, BATCH, BATCH + 1, 10_000] {
            drop(Vec::from_iter((0..orphans).map(|_| block(&manager))));
            // What making the later ones reclaimed of the earlier round: nothing, as none had fallen yet.
            assert_eq!(manager.array_count(), orphans);
            for call in 1..=orphans.div_ceil(BATCH) {
                other.storage_bytes().unwrap();
                assert_eq!(manager.array_count(), orphans.saturating_sub(call * BATCH), "after call {call}");
            }
        }
    });
}

#[test]
fn point01_a_long_graph_ends_a_piece_at_each_call() {
    // Broken by: a chain that ends with its last array, whatever its length; or one that nobody ends.
    const LENGTH: usize = 10 * BATCH;
    switched(true, |device| {
        let other = vector(&base(device));
        let x = Var::from_vec(vec![1f32; 2], 2, device).unwrap();
        let own = graph_report().nodes;
        let mut sum = x.affine(1., 0.).unwrap();
        for _ in 1..LENGTH {
            sum = sum.affine(1., 1.).unwrap();
        }
        assert_eq!(graph_report().nodes, own + LENGTH as u64);
        drop(sum);
        let mut before = graph_report().nodes;
        let mut calls = 0;
        while graph_report().nodes > own {
            let _ = other.storage_bytes();
            let now = graph_report().nodes;
            assert!(now < before && before - now <= BATCH as u64, "{before} to {now} in call {calls}");
            (before, calls) = (now, calls + 1);
        }
        assert!(calls >= LENGTH / BATCH);
        drop(x);
        gc::collect();
    });
}

#[test]
fn point01_each_thread_is_rid_of_its_own_dead_arrays_at_its_next_call() {
    const THREADS: usize = 4;
    switched(true, |device| {
        let manager = base(device);
        let (dropped, called) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
        thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    let own = Tensor::zeros(1, DType::F32, device).unwrap();
                    drop(Vec::from_iter((0..BATCH).map(|_| block(&manager))));
                    dropped.wait();
                    own.storage_bytes().unwrap();
                    called.wait();
                });
            }
            dropped.wait();
            called.wait();
            // All are alive; the bound for T threads is what each dropped since its last call.
            assert_eq!(manager.array_count(), 0);
        });
    });
}

#[test]
fn point04_overwriting_a_variable_by_its_changed_self_a_million_times_keeps_it() {
    if crate::common::ran_apart() {
        return;
    }
    switched(true, |device| {
        for (name, operation) in SELF_RETURNING {
            let count = if device.is_cpu() { 1_000_000 } else { 20_000 };
            let manager = base(device);
            let one = manager.ones(3, DType::F32).unwrap();
            let mut a = vector(&manager);
            let key = a.key();
            for _ in 0..count {
                a = operation(&a, &one).unwrap();
            }
            assert!(a.key() == key && a.handle_count() == 1, "{name}");
            assert_eq!(manager.array_count(), 2, "{name}");
            if *name == "affine_" {
                let count = count as f32;
                assert_eq!(values(&a), [1. + count, 2. + count, 3. + count]);
            }
        }
    });
}

#[test]
fn point07_the_switch_has_on_off_and_a_scoped_form_that_ends_with_its_guard() {
    alone(|| {
        assert!(!gc::is_on());
        {
            let _on = gc::scoped(true);
            assert!(gc::is_on());
            {
                let _off = gc::scoped(false);
                assert!(!gc::is_on());
            }
            assert!(gc::is_on());
            let panicked = catch_unwind(|| {
                let _off = gc::scoped(false);
                panic!("on purpose");
            });
            assert!(panicked.is_err() && gc::is_on(), "a panic puts it back, too");
        }
        assert!(!gc::is_on());
        gc::on();
        gc::on();
        assert!(gc::is_on());
        gc::off();
        assert!(!gc::is_on());
    });
}

#[test]
fn point07_arrays_older_than_a_change_follow_the_switch_as_it_stands_when_they_fall() {
    switched(false, |device| {
        let manager = base(device);
        let [fell_off, fell_on] = [block(&manager), block(&manager)];
        let handle_owned = Tensor::zeros(16, DType::F32, device).unwrap();
        drop(fell_off);
        let bytes = device.memory().active;
        drop(handle_owned);
        gc::collect();
        assert_eq!(device.memory().active, bytes - 64, "what handles own ends with them in both positions");
        {
            let _on = gc::scoped(true);
            drop(fell_on);
            gc::collect();
            assert_eq!(manager.array_count(), 1);
        }
        let [kept] = <[Tensor; 1]>::try_from(manager.managed_arrays()).unwrap();
        assert!(kept.is_open() && kept.handle_count() == 1, "an orphan can be taken up again");
        assert_eq!(gc::collect_orphans(), 0, "then it is none");
        drop(kept);
        assert_eq!(gc::collect_orphans(), 1);
        assert_eq!(manager.array_count(), 0);
    });
}

#[test]
fn point10_a_refused_creation_or_attach_leaves_bytes_and_owners_as_they_were() {
    // DJL leaked the native handle of an array that its manager refused, and orphaned one that `attach` refused.
    both(|device| {
        let (home, closed, capped) = (base(device), base(device), base(device));
        let array = vector(&home);
        closed.close().unwrap();
        capped.cap().unwrap();
        let before = (live_bytes(device), gc::stats().live);
        for refusing in [&closed, &capped] {
            for _ in 0..100 {
                assert!(refusing.zeros(1 << 16, DType::F32).is_err());
                assert!(refusing.from_vec(vec![1f32; 100], 100).is_err());
                assert!(array.get_in(refusing, 0).is_err());
                assert!(array.attach(refusing).is_err() && owned_by(&array, &home));
                assert!(Var::zeros(4, DType::F32, refusing).is_err());
            }
        }
        assert!(array.temp_attach(&closed).is_err() && owned_by(&array, &home));
        assert_eq!((live_bytes(device), gc::stats().live), before);
        assert_eq!(home.array_count(), 1);
    });
}

#[test]
fn point10_a_refused_attach_leaves_the_lending_of_the_array_as_it_was() {
    both(|device| {
        let (lender, borrower, closed) = (base(device), base(device), base(device));
        let array = vector(&lender);
        array.temp_attach(&borrower).unwrap();
        closed.close().unwrap();
        assert!(array.attach(&closed).is_err() && array.temp_attach(&closed).is_err());
        assert!(owned_by(&array, &borrower));
        borrower.close().unwrap();
        assert!(owned_by(&array, &lender), "it still goes home");
    });
}

#[test]
fn point12_a_hundred_thousand_copies_between_devices_leave_no_manager_and_no_array() {
    switched(true, |device| {
        let manager = base(device);
        let array = vector(&manager);
        let other = Device::sim(SimConfig::default());
        let system = NdManager::system(&other);
        for _ in 0..50_000 {
            let there = array.to_device(&other).unwrap();
            let _back = there.to_device(device).unwrap();
        }
        gc::collect();
        assert_eq!((manager.manager_count(), system.manager_count(), manager.array_count()), (0, 0, 1));
        assert_eq!(other.memory().active, 0);
    });
}

#[test]
fn point13_results_of_detached_arrays_end_with_their_handles() {
    // Since DJL 0.20 they belonged to the system manager, for ever.
    both(|device| {
        let manager = base(device);
        let detached = vector(&manager).detach();
        let before = (live_bytes(device), NdManager::system(device).managed_arrays().len());
        for _ in 0..100 {
            let result = detached.exp().unwrap().add(&detached).unwrap();
            assert!(result.is_detached().unwrap());
        }
        assert_eq!((live_bytes(device), NdManager::system(device).managed_arrays().len()), before);
        let made_without = Tensor::ones(3, DType::F32, device).unwrap();
        assert!(made_without.is_detached().unwrap() && detached.sum_all().unwrap().is_detached().unwrap());
    });
}

#[test]
fn point13_a_gradient_is_its_variables_own_and_ends_with_its_handle() {
    both(|device| {
        let manager = base(device);
        let (a, b) = (Var::ones(3, DType::F32, &manager).unwrap(), Var::ones(3, DType::F32, &manager).unwrap());
        let before = live_bytes(device);
        let sum = a.add(&b).unwrap();
        let grads = sum.backward().unwrap();
        sum.close();
        let [of_a, of_b] = [grads.get(&a).unwrap(), grads.get(&b).unwrap()];
        assert!(!of_a.is_same(of_b) && of_a.is_detached().unwrap());
        of_a.zero_().unwrap();
        assert_eq!(values(of_b), [1.; 3], "changing one gradient changes no other");
        drop(grads);
        assert_eq!(live_bytes(device), before);
    });
}

/// What a stale array's error knows.
fn stale<T: std::fmt::Debug>(result: Result<T>) -> StaleArray {
    match result {
        Err(Error::StaleArray(stale)) => *stale,
        other => panic!("expected a stale array, not {other:?}"),
    }
}

#[test]
fn point16_the_error_of_a_closed_array_names_it_its_making_its_closer_and_its_closing() {
    both(|device| {
        let (root, other) = (base(device), base(device));
        let sub = root.new_sub_manager().unwrap();
        let made_line = line!() + 1;
        let by_user = other.zeros(3, DType::F32).unwrap();
        by_user.set_name("weights").unwrap();
        let [by_manager, by_ancestor] = [block(&root), block(&sub)];
        let by_drop = block(&base(device));
        let user_line = line!() + 1;
        by_user.close();
        let close_line = line!() + 1;
        root.close().unwrap();

        let error = stale(by_user.exp());
        assert_eq!((error.op, error.array), ("exp", format!("`weights` ({})", by_user.key())));
        assert_eq!(error.created.map(|site| (site.file(), site.line())), Some((file!(), made_line)));
        assert_eq!(error.closed.map(|site| (site.file(), site.line())), Some((file!(), user_line)));
        let closers = [&by_user, &by_manager, &by_ancestor, &by_drop].map(|array| {
            let StaleArray { closed_by, closed, .. } = stale(array.storage_bytes());
            (closed_by, closed.map(|site| site.line()))
        });
        assert_eq!(
            closers,
            [
                (Closer::User, Some(user_line)),
                (Closer::Manager, Some(close_line)),
                (Closer::Ancestor, Some(close_line)),
                (Closer::ManagerDrop, None),
            ]
        );
        // No handle meets an array that the reaper closed: it ends because none is left.
    });
}

#[test]
fn point16_a_closed_array_answers_alike_whether_or_not_it_was_asked_before() {
    // DJL cached lazily: the shape answered after the close if it had been asked before. What an array is, its handle
    // knows for good; what it has, it has until it is closed.
    both(|device| {
        let manager = base(device);
        let (asked, new) = (matrix(&manager), matrix(&manager));
        let ask = |array: &Tensor| {
            assert_eq!((array.dims(), array.shape().rank(), array.dtype()), (&[2, 2][..], 2, DType::F32));
            assert_eq!((array.device(), array.elem_count(), array.layout().offset()), (device, 4, 0));
            assert!(array.is_contiguous());
            let failed = [array.manager().is_err(), array.is_detached().is_err(), array.storage_bytes().is_err()];
            failed.iter().filter(|&&failed| failed).count()
        };
        assert_eq!(ask(&asked), 0);
        manager.close().unwrap();
        assert_eq!((ask(&asked), ask(&new)), (3, 3));
    });
}

#[test]
fn point17_counts_and_bytes_are_told_per_manager_and_per_device() {
    both(|device| {
        let manager = base(device);
        manager.set_name("model");
        let sub = manager.child("batch").unwrap();
        let other = Device::sim(SimConfig::default());
        let active = live_bytes(device);
        let a = manager.zeros((4, 4), DType::F32).unwrap();
        let _view = a.t().unwrap();
        let _b = sub.zeros(10, DType::F64).unwrap();
        let _elsewhere = manager.new_sub_manager_on(&other).unwrap().zeros(1, DType::U8).unwrap().detach();
        let report = manager.report();
        assert_eq!((report.name.as_str(), report.uuid), ("model", manager.uuid()));
        assert_eq!((&report.device, report.created.file()), (&device.to_string(), "tests/it/support.rs"));
        assert_eq!((report.arrays.len(), report.managers.len()), (2, 1));
        assert_eq!((report.own_bytes(), report.managers[0].own_bytes()), (64, 80), "a storage counts once");
        assert_eq!((report.total_bytes(), report.total_arrays()), (144, 3));
        assert_eq!(report.arrays.iter().filter(|array| array.shares_storage).count(), 1);
        assert_eq!(device.memory().active, active + 144);
        assert_eq!(other.memory().active, 1);
        let of_device = NdManager::system(device).report();
        assert!(of_device.managers.iter().any(|found| found.uuid == manager.uuid()));
        assert!(gc::handle_owned() >= 1);
        sub.close().unwrap();
        assert_eq!(manager.report().total_bytes(), 64);
    });
}

#[test]
fn point17_live_pending_and_cached_are_told_apart() {
    // DJL #1914: memory that the allocator keeps looks like a leak.
    switched(true, |device| {
        let manager = base(device);
        let before = (gc::stats(), live_bytes(device));
        let array = manager.zeros(1 << 20, DType::F32).unwrap();
        drop(array.clone());
        assert_eq!((gc::stats().queued, device.memory().active), (before.0.queued, before.1 + (4 << 20)));
        drop(array);
        let pending = gc::stats();
        assert_eq!((pending.live, pending.queued), (before.0.live + 1, before.0.queued + 1));
        assert!(manager.report().arrays.is_empty(), "a report closes what is dead and lists the living");
        gc::collect();
        let memory = device.memory();
        assert_eq!((memory.active, gc::stats().dead()), (before.1, before.0.dead()));
        assert!(memory.cached >= 4 << 20, "kept for reuse: {}", memory.cached);
        assert!(device.clear_cache() >= 4 << 20);
        assert_eq!(device.memory().active, before.1);
    });
}

#[test]
fn point17_an_orphan_that_the_switched_off_runtime_keeps_is_listed_without_handles() {
    switched(false, |device| {
        let manager = base(device);
        let held = block(&manager);
        let orphan = manager.zeros(4, DType::F64).unwrap();
        let kept = gc::stats().kept;
        drop(orphan);
        assert_eq!(gc::stats().kept, kept + 1);
        let mut listed: Vec<_> = manager.report().arrays.iter().map(|array| (array.dtype, array.handles)).collect();
        listed.sort_unstable();
        assert_eq!(listed, [(DType::F32, 1), (DType::F64, 0)]);
        assert!(manager.debug_dump().contains("0 handles") && held.is_open());
        assert_eq!(gc::stats().kept, kept + 1, "reporting it revives nothing");
    });
}

#[test]
fn point17_the_leak_check_for_users_tests_passes_clean_code_and_names_the_owner_of_a_leak() {
    both(|device| {
        gc::assert_no_growth(device, || {
            let scope = base(device);
            vector(&scope).exp().unwrap()
        });
        let manager = base(device);
        manager.set_name("hoarder");
        let mut kept = Vec::new();
        let leak = AssertUnwindSafe(|| gc::assert_no_growth(device, || kept.push(block(&manager))));
        let message = *catch_unwind(leak).unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("NDManager(hoarder)") && message.contains("tests/it/"), "{message}");
    });
}
