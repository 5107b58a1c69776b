//! Section 1.8: the fifteen defects of DJL's proxies. Each test fails on that design.

use std::collections::HashMap;
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use ndgc::{DType, Device, Error, Generator, NdManager, Result, SimConfig, Tensor, Var, gc};

use crate::it::support::{
    Operation, alone, base, block, both, devices, live_bytes, matrix, owned_by, switched, text, values, vector,
};

/// The operations that change an array and return its handle: DJL's ten that return `this`, as far as there are
/// remainders and powers here, and the conversions that change nothing.
pub(crate) const SELF_RETURNING: &[Operation] = &[
    ("add_", |a, one| a.add_(one)),
    ("sub_", |a, one| a.sub_(one)),
    ("mul_", |a, one| a.mul_(one)),
    ("div_", |a, one| a.div_(one)),
    ("pow_", |a, one| a.pow_(one)),
    ("maximum_", |a, one| a.maximum_(one)),
    ("neg_", |a, _| a.neg_()),
    ("sign_", |a, _| a.sign_()),
    ("affine_", |a, _| a.affine_(1., 1.)),
    ("to_dtype", |a, _| a.to_dtype(DType::F32)),
    ("to_device", |a, _| a.to_device(a.device())),
];

#[test]
fn defect01_operations_that_return_their_receiver_return_a_handle_that_keeps_it() {
    // DJL handed out the raw array: `a = a.addi(1)` dropped the proxy, and the array in use was closed.
    both(|device| {
        for (name, operation) in SELF_RETURNING {
            let manager = base(device);
            let one = manager.ones(3, DType::F32).unwrap();
            let mut a = vector(&manager);
            let key = a.key();
            for _ in 0..10 {
                a = operation(&a, &one).unwrap();
                gc::collect();
                assert!(a.is_open() && a.key() == key, "{name}");
            }
            assert_eq!((a.handle_count(), manager.array_count()), (1, 2), "{name}");
        }
        let manager = base(device);
        let mut a = vector(&manager);
        for _ in 0..10 {
            a = a.affine_(1., 1.).unwrap();
        }
        assert_eq!(values(&a), [11., 12., 13.]);
    });
}

#[test]
fn defect02_results_fit_wherever_arrays_fit() {
    // DJL stored proxies into an array of the raw type: `ArrayStoreException`. There is one type here.
    both(|device| {
        let manager = base(device);
        let a = vector(&manager);
        let mut slots: [Option<Tensor>; 3] = [const { None }; 3];
        slots[0] = Some(a.exp().unwrap());
        slots[1] = Some(a.add_(&a.zeros_like().unwrap()).unwrap());
        slots[2] = Tensor::from_registry(a.key());
        let listed: Vec<Tensor> = manager.managed_arrays();
        let stacked = Tensor::stack(&listed, 0).unwrap();
        assert_eq!(stacked.dims(), [listed.len(), 3]);
        assert!(slots.iter().flatten().all(Tensor::is_open));
    });
}

#[test]
fn defect03_errors_keep_their_type_and_text_in_both_positions_of_the_switch() {
    // DJL wrapped every failure in a `GCRuntimeException` as soon as the switch was on.
    let fail = |device: &Device| {
        let (manager, closed, capped) = (base(device), base(device), base(device));
        let (a, gone, of_capped) = (matrix(&manager), vector(&manager), vector(&capped));
        gone.close();
        closed.close().unwrap();
        capped.cap().unwrap();
        let failures = [
            text(a.add(&vector(&manager))),
            text(a.add(&a.to_dtype(DType::F64).unwrap())),
            text(a.sum(2)),
            text(a.reshape(5)),
            text(a.get(7)),
            text(a.narrow(0, 1, 2)),
            text(manager.from_slice(&[1f32], 2)),
            text(a.to_dtype(DType::U8).unwrap().exp()),
            text(gone.exp()),
            text(gone.storage_bytes()),
            text(closed.zeros(1, DType::F32)),
            text(a.attach(&closed)),
            text(of_capped.exp()),
            text(a.temp_attach(&NdManager::system(device))),
            text(a.backward()),
        ];
        assert!(failures.iter().all(|failure| failure != "no error"), "{failures:#?}");
        failures
    };
    alone(|| {
        for device in devices() {
            let [off, on] = [false, true].map(|on| {
                let _switch = gc::scoped(on);
                fail(&device)
            });
            assert_eq!(off, on, "on {device}");
        }
    });
}

#[test]
fn defect04_arrays_are_used_and_dropped_on_threads_that_did_not_make_them() {
    // DJL's handler carried its creator's unsynchronised map.
    both(|device| {
        let manager = base(device);
        let shared = vector(&manager);
        thread::scope(|threads| {
            let (send, receive) = mpsc::channel::<Tensor>();
            threads.spawn(move || {
                for array in receive {
                    assert_eq!(values(&array), [2., 4., 6.]);
                    drop(array);
                }
            });
            for _ in 0..3 {
                let (send, shared) = (send.clone(), shared.clone());
                threads.spawn(move || {
                    for _ in 0..200 {
                        let clone = shared.clone();
                        send.send(clone.add(&shared).unwrap()).unwrap();
                    }
                });
            }
            drop(send);
        });
        gc::collect();
        let expected = if gc::is_on() { 1 } else { 601 };
        assert_eq!((manager.array_count(), shared.handle_count()), (expected, 1));
    });
}

#[test]
fn defect05_what_a_finished_thread_left_is_reclaimed_by_the_next_call_of_any_thread() {
    // In DJL it sat in a map that nobody polled.
    switched(true, |device| {
        let manager = base(device);
        // At most 256 a call.
        for (count, calls) in [(100, 1), (256, 1), (1000, 4)] {
            let manager_there = manager.clone();
            // Joined: a scope alone does not wait for the end of the thread, in which it hands over its orphans.
            thread::spawn(move || drop(Vec::from_iter((0..count).map(|_| block(&manager_there))))).join().unwrap();
            (0..calls).for_each(|_| drop(manager.new_sub_manager().unwrap()));
            assert_eq!(manager.array_count(), 0);
        }
    });
}

#[test]
fn defect06_what_an_idle_thread_dropped_is_reclaimed_by_the_others() {
    // In DJL neither the others nor `gc()` could.
    switched(true, |device| {
        let manager = base(device);
        let other = vector(&base(device)).detach();
        // More than its ring holds, and fewer.
        for (count, by_hand) in [(100, false), (100, true), (30, false)] {
            let (dropped, done) = (Barrier::new(2), Barrier::new(2));
            thread::scope(|threads| {
                threads.spawn(|| {
                    drop(Vec::from_iter((0..count).map(|_| block(&manager))));
                    dropped.wait();
                    done.wait();
                });
                dropped.wait();
                let mut calls = 0;
                if by_hand {
                    gc::collect();
                }
                while manager.array_count() > 0 && calls < 1000 {
                    other.storage_bytes().unwrap();
                    calls += 1;
                }
                done.wait();
                // A thread looks at the lanes of the others at every 64th call, and empties one that did not move
                // between two looks.
                assert!(calls <= if by_hand { 0 } else { 128 }, "{calls} calls were needed");
            });
        }
    });
}

#[test]
fn defect07_bytes_come_back_with_the_next_call_and_under_the_devices_pressure() {
    // DJL's came back when the Java heap was short, however short the device was.
    switched(true, |device| {
        let manager = base(device);
        let before = live_bytes(device);
        for _ in 0..10 {
            drop(manager.zeros(1 << 18, DType::F32).unwrap());
            assert_eq!(device.memory().active, before + (1 << 20));
            manager.new_sub_manager().unwrap();
            assert_eq!(device.memory().active, before);
        }
        // More dead arrays than one call reclaims; only a look at all of them makes room for the last request.
        let limit = device.set_limit(Some(before + (600 << 12)));
        drop(Vec::from_iter((0..600).map(|_| manager.zeros(1 << 10, DType::F32).unwrap())));
        let large = manager.zeros(600 << 10, DType::F32);
        device.set_limit(limit);
        assert_eq!(large.unwrap().storage_bytes().unwrap(), 600 << 12);
    });
}

#[test]
fn defect07_the_limit_counts_to_the_byte_what_other_threads_took_and_gave_back() {
    // The host's counts are kept by thread. Broken by: a limit that is compared with the settled part alone.
    switched(true, |device| {
        const SHARE: usize = 60 << 10;
        let manager = base(device);
        let (freed_there, made_there) = (manager.zeros(SHARE, DType::U8).unwrap(), Barrier::new(2));
        let (freed, done) = (Barrier::new(2), Barrier::new(2));
        let before = live_bytes(device);
        let ask = |room: u64, bytes: usize| {
            let limit = device.set_limit(Some(device.memory().active + room));
            let made = manager.zeros(bytes, DType::U8);
            device.set_limit(limit);
            made.is_ok_and(|array| array.is_open())
        };
        thread::scope(|threads| {
            threads.spawn(|| {
                drop(freed_there);
                gc::collect();
                freed.wait();
                done.wait();
                let _made = manager.zeros(SHARE, DType::U8).unwrap();
                made_there.wait();
                done.wait();
            });
            freed.wait();
            assert_eq!(device.memory().active, before - SHARE as u64);
            let after_free = ask(4096, 4096);
            gc::collect();
            done.wait();
            made_there.wait();
            let after_making = ask(4096, 8192);
            done.wait();
            assert!(after_free, "there was room, as another thread had given bytes back");
            assert!(!after_making, "there was none, as another thread had taken bytes");
        });
    });
}

#[test]
fn defect08_copies_between_devices_leave_no_empty_managers() {
    // Each made a sub-manager of the source's manager in DJL, which nobody closed.
    both(|device| {
        let manager = base(device);
        let array = vector(&manager);
        let other = Device::sim(SimConfig::default());
        for _ in 0..100 {
            let there = array.to_device(&other).unwrap();
            let back = there.to_device(device).unwrap();
            assert!(owned_by(&there, &manager) && owned_by(&back, &manager));
        }
        assert_eq!(manager.manager_count(), 0);
        assert_eq!(NdManager::system(&other).manager_count(), 0);
    });
}

/// Invariant I4 (design.md).
#[test]
fn defect09_operands_keep_their_bytes_while_an_operation_runs_whoever_closes_them() {
    // DJL fetched the handles one after the other and drained in between, so the first could be freed.
    both(|device| {
        let manager = base(device);
        let b = vector(&manager);
        for _ in 0..200 {
            let a = vector(&manager);
            let start = Barrier::new(2);
            thread::scope(|threads| {
                threads.spawn(|| {
                    start.wait();
                    a.close();
                });
                start.wait();
                for _ in 0..4 {
                    match a.add(&b) {
                        Ok(sum) => assert_eq!(values(&sum), [2., 4., 6.]),
                        Err(error) => assert!(matches!(error, Error::StaleArray(_)), "{error}"),
                    }
                }
            });
            assert!(a.is_released());
        }
    });
}

/// Invariant I4 (design.md).
#[test]
fn defect09_the_reader_that_lets_go_last_ends_what_was_closed_meanwhile() {
    switched(false, |device| {
        if !device.is_cpu() {
            return;
        }
        let manager = base(device);
        let before = device.memory().active;
        let a = manager.ones(1 << 16, DType::F32).unwrap();
        let all = a.with_slice(|slice: &[f32]| {
            thread::scope(|threads| threads.spawn(|| a.close()).join()).unwrap();
            assert!(!a.is_open() && device.memory().active > before, "its bytes stay for the reader");
            slice.iter().sum::<f32>()
        });
        assert_eq!((all.unwrap(), device.memory().active), (65536., before));
    });
}

/// Invariant I4 (design.md), of a thread that closes what it reads.
#[test]
fn defect09_a_close_under_a_read_of_its_own_thread_leaves_the_bytes_to_it() {
    switched(true, |device| {
        if !device.is_cpu() {
            return;
        }
        let before = device.memory().active;
        let a = Tensor::ones(1 << 16, DType::F32, device).unwrap();
        let all = a.with_slice(|slice: &[f32]| {
            a.close();
            assert!(!a.is_open() && device.memory().active > before, "its bytes stay for the reader");
            slice.iter().sum::<f32>()
        });
        assert_eq!((all.unwrap(), device.memory().active), (65536., before));
    });
}

/// Invariant I4 (design.md), of each operand: its bytes would soon be another array's.
#[test]
fn defect09_no_operand_is_freed_under_a_long_operation() {
    const N: usize = 1 << 20;
    switched(true, |device| {
        for round in 0..if device.is_cpu() { 60 } else { 6 } {
            let of = |value: f32| Tensor::full(value, N, device).unwrap();
            let operands = [of(1.), of(2.), of(3.)];
            let closed = &operands[round % 3];
            let start = Barrier::new(2);
            thread::scope(|threads| {
                threads.spawn(|| {
                    start.wait();
                    thread::sleep(Duration::from_micros(50 * (round as u64 % 7)));
                    closed.close();
                    gc::collect();
                    // Takes the place that fell free.
                    drop(of(-100.));
                });
                start.wait();
                let [a, b, c] = &operands;
                for made in [a.add(b), b.add(c), a.sub(c)] {
                    let Ok(made) = made else { continue };
                    let all = values(&made);
                    assert!(all.iter().all(|value| *value == all[0] && *value > -10.), "round {round}");
                }
            });
        }
    });
}

#[test]
fn defect10_the_switch_goes_off_again_is_seen_by_every_thread_and_acts_on_older_arrays() {
    // DJL had no `off`, a flag without visibility, and arrays that kept the world they were made in.
    switched(false, |device| {
        let manager = base(device);
        let (older, newer);
        older = block(&manager);
        gc::on();
        newer = block(&manager);
        assert!(thread::spawn(gc::is_on).join().unwrap());
        drop(older);
        gc::collect();
        assert_eq!(manager.array_count(), 1, "made while it was off, dropped while it was on");
        thread::spawn(gc::off).join().unwrap();
        assert!(!gc::is_on());
        drop(newer);
        gc::collect();
        assert_eq!(manager.array_count(), 1, "made while it was on, dropped while it was off");
        gc::on();
        gc::collect();
        assert_eq!(manager.array_count(), 1, "an orphan of then is its manager's");
        gc::collect_orphans();
        assert_eq!(manager.array_count(), 0, "until somebody looks for it");
        gc::off();
    });
}

#[test]
fn defect11_comparing_and_hashing_reclaim_nothing_and_printing_never_fails() {
    // They went through DJL's proxy: they drained, and could throw in a logger.
    switched(true, |device| {
        let manager = base(device);
        let (open, closed) = (vector(&manager), vector(&manager));
        closed.close();
        drop([block(&manager), block(&manager)]);
        let waiting = gc::stats().queued;
        let names: HashMap<_, _> = [(open.key(), "open"), (closed.key(), "closed")].into();
        assert_eq!((names[&open.key()], names[&closed.clone().key()]), ("open", "closed"));
        assert!(!open.is_same(&closed) && open.uuid() != closed.uuid() && closed.name().is_none());
        assert_eq!(gc::stats().queued, waiting, "none of this reclaimed anything");
        // Printing reads metadata, so it may reclaim; it cannot fail.
        assert!(format!("{closed} {closed:?}").ends_with("closed)"));
        assert!(format!("{open:?}").contains("; f32") && format!("{open:#?}").contains("f32 [3]"));
    });
}

#[test]
fn defect12_arrays_that_a_manager_lists_stay_alive_while_they_are_listed() {
    // DJL's walk over all arrays met ones that the reaper was closing, and swallowed the exception.
    switched(true, |device| {
        let manager = base(device);
        let kept = vector(&manager);
        thread::scope(|threads| {
            let busy = threads.spawn(|| (0..2000).for_each(|_| drop(block(&manager))));
            while !busy.is_finished() {
                let listed = manager.managed_arrays();
                assert!(listed.iter().any(|array| array.is_same(&kept)));
                listed.iter().for_each(|array| assert!(array.is_open(), "{array:?}"));
            }
        });
    });
}

#[test]
fn defect13_every_way_to_make_an_array_attaches_it_once() {
    // DJL's string tensors were wrapped and never attached. Broken by: a creation that leaves a helper, too.
    type Creation = fn(&NdManager) -> Result<Tensor>;
    let creations: &[(&str, Creation)] = &[
        ("zeros", |m| m.zeros(3, DType::F32)),
        ("ones", |m| m.ones(3, DType::I64)),
        ("full", |m| m.full(2f32, 3)),
        ("full of i64", |m| m.full(i64::MAX, 3)),
        ("create", |m| m.create([[1u8, 2], [3, 4]])),
        ("from_slice", |m| m.from_slice(&[1f64], 1)),
        ("from_vec", |m| m.from_vec(vec![1u32], 1)),
        ("arange", |m| m.arange(0i64, 5)),
        ("rand", |m| m.rand(0f32, 1., 3)),
        ("randn", |m| m.randn(0f32, 1., 3)),
        ("Generator", |m| Generator::new(1).uniform(0., 1., 3, DType::F64, m)),
        ("Var::zeros", |m| Ok(Var::zeros(3, DType::F32, m)?.as_tensor().clone())),
        ("Var::from_vec", |m| Ok(Var::from_vec(vec![1f32], 1, m)?.as_tensor().clone())),
        ("Var::randn", |m| Ok(Var::randn(0f32, 1., 3, m)?.as_tensor().clone())),
    ];
    both(|device| {
        let mut wrong = Vec::new();
        for (name, creation) in creations {
            let manager = base(device);
            let array = creation(&manager).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(owned_by(&array, &manager), "{name}");
            gc::collect();
            if manager.array_count() != 1 {
                wrong.push((*name, manager.array_count()));
            }
        }
        assert!(wrong.is_empty(), "arrays in the manager after one was made: {wrong:?}");
    });
}

#[test]
fn defect14_the_bookkeeping_itself_does_not_grow() {
    // The first version of DJL's proxies kept its list of wrappers for ever.
    switched(true, |device| {
        let (lender, borrower) = (base(device), base(device));
        let slot = |array: &Tensor| array.key().as_ffi() as u32;
        let mut largest = 0;
        for i in 0..20_000 {
            let array = block(&lender);
            assert_eq!(array.name(), None, "the name of the slot's former array is gone");
            array.set_name("x").unwrap();
            array.temp_attach(&borrower).unwrap();
            if i < 1000 {
                largest = largest.max(slot(&array));
            }
            assert!(slot(&array) <= largest, "slots are used again, as from the first thousand on");
        }
        gc::collect();
        assert_eq!((lender.array_count(), borrower.array_count()), (0, 0));
    });
}

#[test]
fn defect15_every_behaviour_has_a_test_that_bears_its_number() {
    // DJL had no automated test of all this.
    let sources = [
        include_str!("hierarchy.rs"),
        include_str!("cap.rs"),
        include_str!("attachment.rs"),
        include_str!("lending.rs"),
        include_str!("closing.rs"),
        include_str!("scopes.rs"),
        include_str!("reclaim.rs"),
        include_str!("flat.rs"),
        include_str!("defects.rs"),
        include_str!("better.rs"),
        include_str!("threads.rs"),
    ]
    .concat();
    let area = |letter: &str, numbers: std::ops::RangeInclusive<u32>| {
        numbers.map(|n| format!("\nfn {letter}{n:02}_")).collect::<Vec<_>>()
    };
    let points = [1, 2, 3, 4, 5, 7, 10, 11, 12, 13, 15, 16, 17];
    let expected = [
        area("a", 1..=14),
        area("b", 15..=19),
        area("c", 20..=32),
        area("d", 33..=42),
        area("e", 43..=49),
        area("f", 50..=58),
        area("defect", 1..=15),
        points.iter().map(|n| format!("\nfn point{n:02}_")).collect(),
    ];
    let missing: Vec<_> = expected.concat().into_iter().filter(|name| !sources.contains(name)).collect();
    assert!(missing.is_empty(), "without a test: {missing:?}");
}
