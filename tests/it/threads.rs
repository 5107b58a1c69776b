//! Section 9 points 5 and 11: threads, and closing against attaching.

use std::cell::RefCell;
use std::panic::catch_unwind;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use ndgc::{DType, Device, Error, NdManager, Result, Tensor, Var, gc, memory};

use crate::it::support::{alone, base, block, both, owned_by, switched, values, vector};

const ROUNDS: usize = if cfg!(miri) { 5 } else { 400 };

#[test]
fn point05_handles_and_managers_go_to_any_thread() {
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Tensor>();
    goes_anywhere::<NdManager>();
    goes_anywhere::<Var>();
    goes_anywhere::<ndgc::Error>();
}

#[test]
fn point05_made_on_one_thread_used_on_a_second_and_dropped_on_a_third() {
    both(|device| {
        let manager = base(device);
        let bystander = vector(&manager);
        let there = manager.clone();
        let made = thread::spawn(move || vector(&there)).join().unwrap();
        let (made, double) = thread::spawn(move || {
            let double = made.add(&made).unwrap();
            (made, double)
        })
        .join()
        .unwrap();
        thread::spawn(move || drop(made)).join().unwrap();
        assert_eq!(values(&double), [2., 4., 6.]);
        assert_eq!(values(&bystander), [1., 2., 3.], "nobody else's array was freed");
        gc::collect();
        assert_eq!(manager.array_count(), if gc::is_on() { 2 } else { 3 });
    });
}

/// The thread that made an array ends it, or writes into it, without a look at others unless they said that they use it
/// (`ArraySlot::is_looked_for`, `Storage::ask`). Invariants I4 and I7 (design.md).
#[test]
fn the_maker_of_an_array_finds_another_thread_that_reads_it() {
    const N: usize = 1 << 16;
    switched(true, |device| {
        if !device.is_cpu() {
            return;
        }
        for round in 0..4 {
            let array = Tensor::full(7f32, N, device).unwrap();
            // Used before, by the other one as well: what it said then still holds.
            if round % 2 == 1 {
                thread::scope(|scope| scope.spawn(|| assert_eq!(values(&array)[0], 7.)).join().unwrap());
                array.affine_(1., 0.).unwrap();
            }
            let read = &array;
            thread::scope(|scope| {
                // In here, so that a failure lets the reader go.
                let (reading, wait_reading) = mpsc::channel::<()>();
                let (go_on, wait_go_on) = mpsc::channel::<()>();
                let reader = scope.spawn(move || {
                    read.with_slice(|slice: &[f32]| {
                        reading.send(()).unwrap();
                        wait_go_on.recv().unwrap();
                        slice.iter().all(|value| *value == 7.)
                    })
                });
                wait_reading.recv().unwrap();
                let refused = array.fill_(-1.).unwrap_err();
                assert!(matches!(refused, Error::InUse { by: "a closure on another thread", .. }), "{refused}");
                let before = device.memory().active;
                if round >= 2 {
                    array.close();
                    assert_eq!(device.memory().active, before, "its reader keeps the bytes");
                    // Would take the place that fell free.
                    drop(Tensor::full(-1f32, N, device).unwrap());
                }
                go_on.send(()).unwrap();
                assert!(reader.join().unwrap().unwrap(), "round {round}");
            });
            assert_eq!(array.is_open(), round < 2);
        }
    });
}

#[test]
fn an_array_is_closed_by_another_thread_than_its_maker_which_reads_it() {
    switched(true, |device| {
        if !device.is_cpu() {
            return;
        }
        let array = Tensor::full(7f32, 1 << 16, device).unwrap();
        let before = device.memory().active;
        let all = array.with_slice(|slice: &[f32]| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    array.close();
                    assert_eq!(device.memory().active, before, "its reader keeps the bytes");
                    drop(Tensor::full(-1f32, 1 << 16, device).unwrap());
                });
            });
            slice.iter().all(|value| *value == 7.)
        });
        assert!(all.unwrap());
        gc::collect();
        assert!(device.memory().active < before);
    });
}

#[test]
fn variables_that_another_thread_reads_stay_shared_through_a_step_that_is_refused() {
    use ndgc::nn::{Optimizer, SGD};
    alone(|| {
        let device = ndgc::Device::Cpu;
        let variables = [1f32, 2.].map(|value| Var::from_vec(vec![value; 1 << 10], 1 << 10, &device).unwrap());
        let loss = variables[0].mul(&variables[1]).unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        let mut sgd = SGD::new(variables.to_vec(), 0.5).unwrap();
        thread::scope(|scope| {
            let (reading, wait_reading) = mpsc::channel::<()>();
            let (go_on, wait_go_on) = mpsc::channel::<()>();
            let variables = &variables;
            let reader = scope.spawn(move || {
                drop(variables[0].to_vec1::<f32>().unwrap());
                variables[1].with_slice(|slice: &[f32]| {
                    reading.send(()).unwrap();
                    wait_go_on.recv().unwrap();
                    slice.iter().all(|value| *value == 2.)
                })
            });
            wait_reading.recv().unwrap();
            for _ in 0..2 {
                assert!(matches!(sgd.step(&grads), Err(Error::InUse { .. })), "the second variable is in use");
            }
            go_on.send(()).unwrap();
            assert!(reader.join().unwrap().unwrap());
        });
        sgd.step(&grads).unwrap();
        assert_eq!(variables[1].to_vec1::<f32>().unwrap()[0], 1.5, "with the gradient of then");
    });
}

#[test]
fn point05_handles_of_one_array_that_fall_on_many_threads_free_it_once() {
    both(|device| {
        for _ in 0..ROUNDS / 4 {
            let array = Tensor::ones(4, DType::F32, device).unwrap();
            let closed = gc::stats().closed;
            let start = Arc::new(Barrier::new(4));
            let drops = (0..4).map(|_| (array.clone(), Arc::clone(&start)));
            let threads: Vec<_> = drops
                .map(|(handle, start)| {
                    thread::spawn(move || {
                        start.wait();
                        drop(handle);
                    })
                })
                .collect();
            drop(array);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            gc::collect();
            assert_eq!(gc::stats().closed - closed, 1);
        }
    });
}

#[test]
fn point05_a_soak_of_64_threads_ends_with_no_array() {
    switched(true, |device| {
        let before = gc::stats();
        let manager = base(device);
        let shared = vector(&manager);
        let (send, receive) = mpsc::sync_channel::<Tensor>(64);
        let reader = thread::spawn(move || receive.iter().for_each(drop));
        let threads: Vec<_> = (0..64)
            .map(|thread_index| {
                let (manager, shared, send) = (manager.clone(), shared.clone(), send.clone());
                thread::spawn(move || {
                    for i in 0..50 {
                        let sum = block(&manager).narrow(0, 0, 3).unwrap().add(&shared).unwrap();
                        assert_eq!(values(&sum), [1., 2., 3.]);
                        match (thread_index + i) % 4 {
                            0 => send.send(sum).unwrap(),
                            1 => sum.close(),
                            2 => drop(sum.detach()),
                            _ => drop(sum),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(send);
        reader.join().unwrap();
        drop(shared);
        gc::collect();
        assert_eq!(manager.array_count(), 0);
        let after = gc::stats();
        assert_eq!((after.live, after.queued), (before.live, before.queued));
    });
}

/// Runs both at the same moment.
fn together<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    let start = Barrier::new(2);
    thread::scope(|threads| {
        let a = threads.spawn(|| {
            start.wait();
            a()
        });
        start.wait();
        let b = b();
        (a.join().unwrap(), b)
    })
}

#[test]
fn point11_an_attach_comes_before_the_close_or_fails_and_leaves_no_orphan() {
    // In DJL a thread past the `closed` check put its array into a manager that had closed: nobody ended it.
    both(|device| {
        let home = base(device);
        let mut refused = 0;
        for _ in 0..ROUNDS {
            let (array, target) = (block(&home), base(device));
            match together(|| array.attach(&target), || target.close().unwrap()).0 {
                Ok(()) => assert!(array.is_released(), "it was attached first, and closed with the manager"),
                Err(error) => {
                    assert!(matches!(error, Error::ManagerClosed { op: "attach", .. }), "{error}");
                    assert!(owned_by(&array, &home), "it stayed where it was");
                    refused += 1;
                }
            }
            assert_eq!(target.array_count(), 0);
            array.close();
        }
        println!("{refused} of {ROUNDS} came too late");
        assert_eq!(home.array_count(), 0);
    });
}

#[test]
fn point11_a_creation_comes_before_the_close_or_fails_and_leaves_no_orphan() {
    both(|device| {
        for _ in 0..ROUNDS {
            let before = gc::stats().live;
            let target = base(device);
            let make = || (0..4).map(|_| target.zeros(4, DType::F32)).collect::<Vec<_>>();
            for made in together(make, || target.close().unwrap()).0 {
                match made {
                    Ok(array) => assert!(array.is_released()),
                    Err(error) => assert!(matches!(error, Error::ManagerClosed { op: "zeros", .. }), "{error}"),
                }
            }
            gc::collect();
            assert_eq!((gc::stats().live, target.array_count()), (before, 0));
        }
    });
}

#[test]
fn point11_an_array_that_leaves_a_closing_manager_is_moved_or_closed() {
    both(|device| {
        let home = base(device);
        for _ in 0..ROUNDS {
            let leaving = base(device);
            let array = vector(&leaving);
            match together(|| array.attach(&home), || leaving.close().unwrap()).0 {
                Ok(()) => assert!(owned_by(&array, &home) && values(&array) == [1., 2., 3.]),
                Err(error) => assert!(array.is_released() && matches!(error, Error::StaleArray(_)), "{error}"),
            }
            array.close();
        }
        assert_eq!(home.array_count(), 0);
    });
}

#[test]
fn point11_an_array_lent_to_a_closing_manager_is_with_its_lender_afterwards() {
    both(|device| {
        let lender = base(device);
        for _ in 0..ROUNDS {
            let (array, borrower) = (block(&lender), base(device));
            let lent = together(|| array.temp_attach(&borrower), || borrower.close().unwrap()).0;
            assert!(matches!(lent, Ok(()) | Err(Error::ManagerClosed { .. })), "{lent:?}");
            assert!(owned_by(&array, &lender));
            array.close();
        }
        assert_eq!(lender.array_count(), 0);
    });
}

#[test]
fn point11_a_sub_manager_made_while_its_parent_closes_is_closed_or_refused() {
    both(|device| {
        for _ in 0..ROUNDS {
            let parent = base(device);
            let make = || parent.new_sub_manager().map(|sub| (sub.zeros(4, DType::F32), sub));
            match together(make, || parent.close().unwrap()).0 {
                Ok((array, sub)) => {
                    assert!(!sub.is_open() && sub.array_count() == 0);
                    assert!(array.is_err() || array.is_ok_and(|array| array.is_released()));
                }
                Err(error) => assert!(matches!(error, Error::ManagerClosed { op: "new_sub_manager", .. }), "{error}"),
            }
        }
    });
}

#[test]
fn point11_of_two_closers_one_closes_and_both_return() {
    both(|device| {
        for _ in 0..ROUNDS {
            let closed = gc::stats().closed;
            let manager = base(device);
            let arrays = [block(&manager), block(&manager)];
            together(|| manager.close().unwrap(), || arrays[0].close());
            assert!(arrays.iter().all(Tensor::is_released));
            assert_eq!(gc::stats().closed - closed, 2);
        }
    });
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Computes when its thread ends, and says whether it could.
struct Last(mpsc::Sender<bool>);

impl Drop for Last {
    fn drop(&mut self) {
        let computed = catch_unwind(|| compute().is_ok());
        let _ = self.0.send(computed.is_ok_and(|computed| computed));
    }
}

/// What a thread keeps something for: room of a product, the path of a scope.
fn compute() -> Result<()> {
    let [x, y] = [(200, 64), (64, 65)].map(|shape| Tensor::ones(shape, DType::F32, &Device::Cpu));
    let (x, y) = (x?, y?);
    let product = memory::scope("last", &Device::Cpu, || x.matmul(&y))?;
    assert_eq!(product.sum_all()?.to_scalar::<f32>()?, 200. * 65. * 64.);
    Ok(())
}

#[test]
fn a_thread_computes_up_to_its_last_destructor() {
    // Broken by: what a thread keeps, asked for when it was gone. A panic there ends the process.
    alone(|| {
        let (told, computed) = mpsc::channel();
        let ends = thread::spawn(move || {
            // First, so that it goes after all that the library keeps.
            LAST.set(Some(Last(told)));
            compute().unwrap();
        });
        ends.join().unwrap();
        assert!(computed.recv().unwrap());
        assert!(memory::scopes().iter().any(|scope| scope.path == "last" && scope.runs == 2));
        memory::clear_scopes();
    });
}
