//! Panics wherever user code runs between operations, and drops where little works any more: nothing is lost, and the
//! library is usable after.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::{DType, Device, NdManager, Proxy, SimConfig, Var, gc, is_grad_enabled, no_grad, node_count};

use crate::common::{Turn, turn};

/// The registry and its counts are the process's: one test at a time. At the end everything is as it was.
struct Alone {
    live: u64,
    active: u64,
    nodes: u64,
    _turn: Turn,
}

fn alone() -> Alone {
    let turn = turn();
    gc::off();
    gc::collect();
    Alone { live: gc::stats().live, active: Device::Cpu.memory().active, nodes: node_count(), _turn: turn }
}

impl Alone {
    fn nothing_is_left(&self) {
        gc::collect();
        let stats = gc::stats();
        assert_eq!((stats.live, stats.queued), (self.live, 0));
        assert_eq!(Device::Cpu.memory().active, self.active);
        assert_eq!(node_count(), self.nodes);
    }
}

fn array() -> Proxy {
    Proxy::from_slice(&[1f32, 2., 3., 4.], (2, 2), &Device::Cpu).unwrap()
}

/// Runs something that panics with "stop".
fn stopped<R>(f: impl FnOnce() -> R) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else { panic!("it should have panicked") };
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"stop"), "a panic of the library's own");
}

fn stop() -> ! {
    std::panic::panic_any("stop")
}

/// A step of training, with a call of `between` after each operation.
fn step(at: &NdManager, mut between: impl FnMut()) -> Result<(), ndgc::Error> {
    let w = Var::from_vec(vec![0.5f32, -0.5, 1., 2.], (2, 2), at)?;
    between();
    let x = Proxy::from_slice(&[1f32, 2., 3., 4.], (2, 2), at)?;
    between();
    let hidden = x.matmul(&w)?;
    between();
    let hidden = hidden.relu()?.reshape((4, 1))?;
    between();
    let loss = hidden.sqr()?.sum_all()?;
    between();
    let grads = loss.backward()?;
    between();
    let grad = grads.get(&w).cloned();
    no_grad(|| {
        between();
        w.sub_(&grad.ok_or(ndgc::Error::NoGradient { op: "backward", array: "w".into(), site: None })?).map(drop)
    })?;
    between();
    let sub = at.new_sub_manager()?;
    x.temp_attach(&sub)?;
    between();
    sub.close()?;
    between();
    x.close();
    between();
    Ok(())
}

#[test]
fn a_panic_between_any_two_operations_loses_nothing() {
    for on in [false, true] {
        let alone = alone();
        let _switch = gc::scoped(on);
        let mut boundaries = 0;
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        step(&manager, || boundaries += 1).unwrap();
        drop(manager);
        assert!(boundaries >= 10);
        for n in 1..=boundaries {
            let mut left = n;
            stopped(|| {
                let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
                step(&manager, || {
                    left -= 1;
                    if left == 0 {
                        stop();
                    }
                })
            });
            assert!(is_grad_enabled());
            alone.nothing_is_left();
        }
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        step(&manager, || ()).unwrap();
        drop(manager);
        alone.nothing_is_left();
    }
}

#[test]
fn a_panic_in_with_slice_lets_go_of_the_array() {
    let alone = alone();
    let a = array();
    // More often than a thread has places, so that none stays taken.
    for _ in 0..40 {
        stopped(|| a.with_slice(|_: &[f32]| stop()));
    }
    a.affine_(2., 0.).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), [2., 4., 6., 8.]);
    drop(a);
    alone.nothing_is_left();
}

#[test]
fn a_panic_in_with_slice_finishes_the_close_of_its_array() {
    let alone = alone();
    let a = array();
    stopped(|| {
        a.with_slice(|values: &[f32]| {
            a.close();
            assert_eq!(values, [1., 2., 3., 4.], "the bytes stay while the closure runs");
            stop()
        })
    });
    assert!(!a.is_open());
    assert_eq!(Device::Cpu.memory().active, alone.active, "the unwinding reader gave the bytes back");
    drop(a);
    alone.nothing_is_left();
}

#[test]
fn a_panic_in_nested_closures_restores_everything() {
    let alone = alone();
    let (a, b) = (array(), array());
    stopped(|| no_grad(|| a.with_slice(|_: &[f32]| b.with_slice(|_: &[f32]| stop()))));
    assert!(is_grad_enabled());
    a.add_(&b).unwrap();
    drop((a, b));
    alone.nothing_is_left();
}

#[test]
fn a_panic_in_on_stream_restores_the_stream() {
    let _alone = alone();
    let device = Device::sim(SimConfig::default());
    let Device::Sim(sim) = &device else { unreachable!("it was just made") };
    let a = Proxy::from_slice(&[1f32; 4], 4, &device).unwrap();
    stopped(|| {
        sim.on_stream(3, || {
            let _b = a.add(&a).unwrap();
            stop()
        })
    });
    let written_on_0 = sim.on_stream(0, || Proxy::from_slice(&[1f32; 1000], 1000, &device).unwrap());
    let waits = sim.calls().waits;
    drop(written_on_0.affine(2., 0.).unwrap());
    assert_eq!(sim.calls().waits, waits, "it is stream 0 again: another one would have to wait");
    drop(written_on_0);
    drop(a);
    gc::collect();
    assert_eq!(device.memory().active, 0);
    assert_eq!(sim.violations(), []);
}

/// Uses the library in its destructor, as a value of the user's might.
struct Busy(Proxy, Option<NdManager>);

impl Drop for Busy {
    fn drop(&mut self) {
        // In a thread-local destructor any of these may be the first or the last call of its thread.
        let sum = self.0.add(&self.0).unwrap();
        assert_eq!(sum.dims(), [2, 2]);
        drop(sum.clone());
        self.0.close();
        if let Some(manager) = self.1.take() {
            let own = manager.zeros(3, DType::F32).unwrap();
            manager.close().unwrap();
            assert!(!own.is_open());
        }
    }
}

#[test]
fn destructors_that_compute_work_while_unwinding() {
    let alone = alone();
    stopped(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let _busy = Busy(array(), Some(manager.new_sub_manager().unwrap()));
        let _other = Busy(manager.from_slice(&[1f32; 4], (2, 2)).unwrap(), None);
        stop()
    });
    alone.nothing_is_left();
}

#[test]
fn a_thread_that_panics_leaves_nothing() {
    let alone = alone();
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let shared = array();
    for _ in 0..20 {
        let (manager, shared) = (manager.clone(), shared.clone());
        let thread = std::thread::spawn(move || {
            let _own = manager.new_sub_manager().unwrap();
            let _sum = shared.add(&shared).unwrap();
            shared.with_slice(|_: &[f32]| stop()).unwrap()
        });
        assert!(thread.join().is_err());
    }
    shared.affine_(1., 1.).unwrap();
    drop((manager, shared));
    alone.nothing_is_left();
}

thread_local! {
    static FIRST: RefCell<Option<Busy>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<Busy>> = const { RefCell::new(None) };
}

fn busy() -> Option<Busy> {
    Some(Busy(array(), Some(NdManager::new_base_manager(&Device::Cpu).unwrap())))
}

#[test]
fn thread_local_destructors_may_use_and_drop_arrays() {
    let alone = alone();
    for before_the_runtime in [false, true] {
        for _ in 0..10 {
            let thread = std::thread::spawn(move || {
                if before_the_runtime {
                    // Registers this destructor first, so that it runs after the library's own.
                    FIRST.with_borrow_mut(|place| assert!(place.is_none()));
                }
                FIRST.set(busy());
                LATE.set(busy());
            });
            thread.join().unwrap();
        }
    }
    alone.nothing_is_left();
}

#[test]
fn a_handle_may_only_be_dropped_on_a_thread() {
    let alone = alone();
    let a = array();
    std::thread::spawn(move || drop(a)).join().unwrap();
    let stats = gc::stats();
    assert_eq!((stats.live, stats.queued), (alone.live + 1, 1), "that thread has no part in the runtime");
    drop(array());
    alone.nothing_is_left();
}
