//! Batches made ahead: their order, how errors and panics travel, who waits for whom, and that all memory comes back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fmt, thread};

use ndgc::nn::{Batch, Prefetch};
use ndgc::{Device, Error, Result, SimConfig, SpillPolicy, Tensor, Workspace, WorkspaceConfig, WorkspaceStats};

use crate::workspace::rings::{MIB, assert_filled, in_use, padded, ring, strict_ring};
use crate::workspace::support::{alone, el, filled};

fn config(more: u32) -> WorkspaceConfig {
    ring(more).build().unwrap()
}

/// An element: its number, twice.
fn element(number: usize) -> Result<Option<(Tensor, Tensor)>> {
    let part = |len: usize| Tensor::full(number as f64, len, &Device::Cpu);
    Ok(Some((part(300)?, part(7)?)))
}

fn assert_element(batch: &Batch<(Tensor, Tensor)>, number: usize) {
    assert_filled(&batch.0, number as f64);
    assert_filled(&batch.1, number as f64);
}

/// As many elements, and then the end.
fn first(count: usize) -> impl FnMut(usize) -> Result<Option<(Tensor, Tensor)>> {
    move |number| if number < count { element(number) } else { Ok(None) }
}

fn refused<T: fmt::Debug>(next: Option<Result<T>>) -> Error {
    match next {
        Some(Err(error)) => error,
        other => panic!("an error was to come, not {other:?}"),
    }
}

#[test]
fn r3_elements_come_in_order_and_then_the_end() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        for depth in [0, 1, 3, 100] {
            let mut batches = Prefetch::new(&config(3), depth, first(20)).unwrap();
            for number in 0..20 {
                assert_element(&batches.next().unwrap().unwrap(), number);
            }
            assert!(batches.next().is_none() && batches.next().is_none());
        }
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

/// How a producer ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Error,
    Panic,
    NoMemory,
    Full,
}

impl End {
    fn produce(self) -> Result<Option<(Tensor, Tensor)>> {
        match self {
            End::Error => Err(Error::msg("the data is spoilt")),
            End::Panic => panic!("element lost"),
            End::NoMemory => {
                Tensor::zeros(usize::MAX >> 5, ndgc::DType::F64, &Device::Cpu).map(|x| Some((x.clone(), x)))
            }
            End::Full => Tensor::zeros(100_000, ndgc::DType::F64, &Device::Cpu).map(|x| Some((x.clone(), x))),
        }
    }

    fn config(self) -> WorkspaceConfig {
        match self {
            End::Full => strict_ring().initial_size(MIB / 8).policy_spill(SpillPolicy::Fail).build().unwrap(),
            _ => config(3),
        }
    }

    fn is(self, error: &Error) -> bool {
        match self {
            End::Error => error.to_string().contains("the data is spoilt"),
            End::Panic => matches!(error, Error::Msg(_)) && error.to_string().contains("panicked: element lost"),
            End::NoMemory => matches!(error, Error::OutOfMemory(_)),
            End::Full => matches!(error, Error::WorkspaceFull(_)),
        }
    }
}

#[test]
fn r3_errors_and_panics_come_after_what_was_made_before() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        for end in [End::Error, End::Panic, End::NoMemory, End::Full] {
            for good in [0, 1, 6] {
                // Once only, so that a second turn shows what a reset brings.
                let ends = Arc::new(AtomicUsize::new(1));
                let left = ends.clone();
                let producer = move |number| {
                    if number == good && left.swap(0, SeqCst) == 1 { end.produce() } else { first(good + 2)(number) }
                };
                let mut batches = Prefetch::new(&end.config(), 2, producer).unwrap();
                for number in 0..good {
                    assert_element(&batches.next().unwrap().unwrap(), number);
                }
                let error = refused(batches.next());
                assert!(end.is(&error), "{end:?} after {good}: {error}");
                assert!(batches.next().is_none() && batches.next().is_none());
                batches.reset().unwrap();
                for number in 0..good + 2 {
                    assert_element(&batches.next().unwrap().unwrap(), number);
                }
                assert!(batches.next().is_none());
            }
        }
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn r3_a_ring_that_cannot_be_made_is_the_first_element() {
    alone(|| {
        let sim = SimConfig { memory_bytes: MIB, ..SimConfig::default() };
        let device = Device::sim(sim);
        let config = strict_ring().initial_size(2 * MIB).build().unwrap();
        let mut batches = Prefetch::new_on(&device, &config, 2, first(3)).unwrap();
        assert!(matches!(refused(batches.next()), Error::OutOfMemory(_)));
        assert!(batches.next().is_none());
    });
}

#[test]
fn settings_that_cannot_work_are_refused() {
    alone(|| {
        let wrong = Prefetch::new(&WorkspaceConfig::default(), 2, first(3)).map(drop);
        assert!(matches!(wrong, Err(Error::WorkspaceConfig { setting: "policy_reset", .. })), "{wrong:?}");
        assert!(Prefetch::new(&config(3), usize::MAX, first(3)).is_err());
    });
}

#[test]
fn r3_a_drop_ends_a_thread_that_waits_for_a_place() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        for depth in [0, 1, 4] {
            for taken in [0, 3] {
                let made = Arc::new(AtomicUsize::new(0));
                let count = made.clone();
                let producer = move |number| {
                    count.fetch_add(1, SeqCst);
                    element(number)
                };
                let mut batches = Prefetch::new(&config(3), depth, producer).unwrap();
                (0..taken).for_each(|number| assert_element(&batches.next().unwrap().unwrap(), number));
                // It has no place for the last of these, and waits.
                while made.load(SeqCst) < taken + depth + 1 {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_millis(2));
                let (done, wait) = mpsc::channel();
                let dropper = thread::spawn(move || {
                    drop(batches);
                    done.send(()).unwrap();
                });
                wait.recv_timeout(Duration::from_secs(20)).expect("the drop returns");
                dropper.join().unwrap();
                assert_eq!(Arc::strong_count(&made), 1, "the producer is gone, and its thread");
                assert_eq!(made.load(SeqCst), taken + depth + 1);
            }
        }
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn reset_begins_again_at_any_point() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let mut batches = Prefetch::new(&config(3), 2, first(10)).unwrap();
        let mut kept = Vec::new();
        for taken in [0, 1, 5, 10] {
            for number in 0..taken {
                kept.push((number, batches.next().unwrap().unwrap()));
            }
            batches.reset().unwrap();
            kept.iter().for_each(|(number, batch)| assert_element(batch, *number));
        }
        assert_eq!(batches.by_ref().map(Result::unwrap).count(), 10);
        drop(batches);
        kept.iter().for_each(|(number, batch)| assert_element(batch, *number));
        drop(kept);
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn r2_batches_that_are_held_are_exact_however_many() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        const DEPTH: usize = 4;
        for held in [1, DEPTH, 3 * DEPTH] {
            let mut batches = Prefetch::new(&config(DEPTH as u32 - 1), DEPTH, first(60)).unwrap();
            let mut window: Vec<(usize, Batch<(Tensor, Tensor)>)> = Vec::new();
            for number in 0..60 {
                window.push((number, batches.next().unwrap().unwrap()));
                if window.len() > held {
                    window.remove(number % window.len());
                }
                window.iter().for_each(|(number, batch)| assert_element(batch, *number));
            }
            assert!(batches.next().is_none());
            drop(batches);
            window.iter().for_each(|(number, batch)| assert_element(batch, *number));
            // What is computed of them belongs to this thread.
            let sum = (&window[0].1.0 + 1.).unwrap();
            let (number, value) = (window[0].0, window.remove(0).1.into_parts().0);
            drop(window);
            assert!(matches!(value.0.to_vec::<f64>(), Err(Error::LeakedArray(_))));
            assert_filled(&sum, number as f64 + 1.);
        }
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn r2_all_elements_may_be_kept() {
    alone(|| {
        let all: Result<Vec<Batch<(Tensor, Tensor)>>> = Prefetch::new(&config(3), 2, first(50)).unwrap().collect();
        let all = all.unwrap();
        all.iter().enumerate().for_each(|(number, batch)| assert_element(batch, number));
        // From several threads, which end them.
        let threads =
            all.into_iter().enumerate().map(|(number, batch)| thread::spawn(move || assert_element(&batch, number)));
        threads.for_each(|thread| thread.join().unwrap());
        assert_filled(&filled(1., 10), 1.);
    });
}

#[test]
fn batches_of_a_device() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let before = in_use(&device);
        let on = device.clone();
        let producer = move |number: usize| {
            if number < 12 { Tensor::full(number as f64, 500, &on).map(Some) } else { Ok(None) }
        };
        let batches = Prefetch::new_on(&device, &config(3), 2, producer).unwrap();
        let kept: Vec<Batch<Tensor>> = batches.map(Result::unwrap).collect();
        kept.iter().enumerate().for_each(|(number, batch)| assert_filled(batch, number as f64));
        drop(kept);
        assert_eq!(in_use(&device), before);
        crate::common::check(&device);
    });
}

/// Elements with the numbers of their workspace.
fn told(sizes: fn(usize) -> usize) -> impl FnMut(usize) -> Result<Option<(Tensor, WorkspaceStats)>> {
    move |number| {
        let array = Tensor::full(number as f64, sizes(number), &Device::Cpu)?;
        Ok(Workspace::current().map(|workspace| (array, workspace.stats())))
    }
}

#[test]
fn a_ring_that_is_always_leased_settles() {
    alone(|| {
        let mut batches = Prefetch::new(&config(7), 2, told(|_| 300)).unwrap();
        let mut held = None;
        let mut requests = 0;
        for number in 0..100 {
            let batch = batches.next().unwrap().unwrap();
            assert_filled(&batch.0, number as f64);
            // A lease is out at every moment, since this one is let go after the next one came.
            let stats = batch.1.clone();
            held.replace(batch);
            match number {
                0..20 => requests = stats.system_allocations,
                _ => {
                    assert_eq!((stats.system_allocations, stats.pinned_requests), (requests, 0), "{number}: {stats:?}")
                }
            }
        }
        assert!(requests <= 3, "one beside, one for the ring: {requests}");
    });
}

#[test]
fn a_ring_that_is_always_leased_grows() {
    alone(|| {
        let config = ring(7).policy_spill(SpillPolicy::Reallocate).build().unwrap();
        let sizes = |number| if number < 50 { 300 } else { 3000 };
        let mut batches = Prefetch::new(&config, 2, told(sizes)).unwrap();
        let mut held = VecDeque::new();
        for number in 0..200 {
            held.push_back((number, batches.next().unwrap().unwrap()));
            if held.len() > 3 {
                held.pop_front();
            }
            held.iter().for_each(|(number, batch)| assert_filled(&batch.0, *number as f64));
        }
        let (_, last) = held.pop_back().unwrap();
        assert_eq!((last.1.size, last.1.pinned_requests), (8 * padded(el(3000)), 0), "{:?}", last.1);
    });
}
