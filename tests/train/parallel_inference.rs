//! One model and many callers: requests that fail, panic and wait, models that are replaced.

use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, Mutex, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::train::{InferenceMode, Model, ParallelInference};
use ndgc::{Device, Error, Result, Tensor, Workspace, WorkspaceConfig};

use super::both::both;
use crate::common::system::until_they_wait;

const MODES: [InferenceMode; 3] = [InferenceMode::Sequential, InferenceMode::Batched, InferenceMode::InPlace];

/// Says nothing of the panics that are wanted.
pub(crate) fn quietly(body: impl Fn()) {
    let wanted =
        |text: &str| ["thirteen", "no luck", "no batch", "out of bounds"].iter().any(|wanted| text.contains(wanted));
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.to_string();
        if !wanted(&text) {
            eprintln!("{text}");
        }
    }));
    let done = catch_unwind(AssertUnwindSafe(body));
    let _ = std::panic::take_hook();
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn rows(rows: usize, columns: usize, value: f64) -> Tensor {
    Tensor::full(value, (rows, columns), &Device::Cpu).unwrap()
}

/// Twice the input; panics at 13, and refuses what is 4 wide.
fn double(x: &Tensor) -> Result<Tensor> {
    let all = x.contiguous()?.to_vec::<f64>()?;
    assert!(!all.contains(&13.), "thirteen");
    if x.dims().last() == Some(&4) {
        return Err(Error::msg("four columns"));
    }
    x.affine(2., 0.)
}

#[test]
fn every_mode_answers_as_the_model_alone_and_the_bad_fail_alone() {
    quietly(|| {
        both(|| {
            for mode in MODES {
                for workers in [1, 2] {
                    let inference = ParallelInference::builder(double).inference_mode(mode).workers(workers);
                    let inference = inference.batch_limit(20).queue_limit(4).build().unwrap();
                    thread::scope(|scope| {
                        for caller in 0..10 {
                            let inference = &inference;
                            scope.spawn(move || {
                                for n in 0..30 {
                                    let (count, wide) = (1 + (caller + n) % 3, 2 + (caller * n) % 2);
                                    let value = (caller * 100 + n + 20) as f64;
                                    let got = inference.output(&rows(count, wide, value)).unwrap();
                                    assert_eq!(got.dims(), [count, wide]);
                                    assert!(got.to_vec::<f64>().unwrap().iter().all(|&x| x == 2. * value));
                                    let refused = inference.output(&rows(count, 4, value)).unwrap_err().to_string();
                                    assert!(refused.contains("four columns"), "{refused}");
                                    let panicked = inference.output(&rows(1, wide, 13.)).unwrap_err().to_string();
                                    assert!(panicked.contains("thirteen"), "{panicked}");
                                }
                            });
                        }
                    });
                    let served = inference.served();
                    match mode {
                        InferenceMode::InPlace => assert!(served.is_empty()),
                        _ => assert_eq!(served.iter().sum::<u64>(), 900, "{served:?}"),
                    }
                }
            }
        });
    });
}

/// Two outputs: the first input under its mask, and the sum of the second's columns.
struct Two;

impl Model for Two {
    fn output(&self, _input: &Tensor) -> Result<Tensor> {
        Err(Error::msg("two inputs"))
    }

    fn outputs(&self, inputs: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        let masked = match masks.first().and_then(Option::as_ref) {
            Some(mask) => inputs[0].mul(mask)?,
            None => inputs[0].clone(),
        };
        Ok(vec![masked, inputs[1].sum(1)?])
    }
}

#[test]
fn several_inputs_outputs_and_masks_are_put_together_too() {
    quietly(|| {
        both(|| {
            for mode in MODES {
                let inference = ParallelInference::builder(Two).inference_mode(mode).workers(2).build().unwrap();
                thread::scope(|scope| {
                    for caller in 0..6 {
                        let inference = &inference;
                        scope.spawn(move || {
                            for n in 0..40 {
                                let (count, value) = (1 + n % 3, (caller * 100 + n) as f64);
                                let inputs = [rows(count, 2, value), rows(count, 3 + n % 2, 1.)];
                                let mask = (caller % 2 == 0).then(|| rows(count, 2, 0.5));
                                let masks = if caller % 3 == 0 { vec![] } else { vec![mask.clone(), None] };
                                let got = inference.outputs(&inputs, &masks).unwrap();
                                let wanted = if caller % 3 != 0 && mask.is_some() { value / 2. } else { value };
                                assert_eq!(got[0].to_vec::<f64>().unwrap(), vec![wanted; 2 * count]);
                                assert_eq!(got[1].to_vec::<f64>().unwrap(), vec![(3 + n % 2) as f64; count]);
                            }
                        });
                    }
                });
                let error = inference.output(&rows(1, 2, 1.)).unwrap_err().to_string();
                assert!(error.contains("panicked"), "{error}");
            }
            let one = ParallelInference::builder(double).build().unwrap();
            let error = one.outputs(&[rows(1, 2, 1.), rows(1, 2, 1.)], &[]).unwrap_err().to_string();
            assert!(error.contains("one input"), "{error}");
            assert!(one.outputs(&[], &[]).is_err());
        })
    });
}

#[test]
fn answers_are_the_callers_and_end_with_no_workspace() {
    both(|| {
        for mode in MODES {
            let inference = ParallelInference::builder(double).inference_mode(mode).build().unwrap();
            let mut kept = Vec::new();
            for n in 0..3 {
                let _cycle = Workspace::enter("ANSWERS", &WorkspaceConfig::default()).unwrap();
                let answer = inference.output(&rows(2, 3, f64::from(n))).unwrap();
                assert!(!answer.is_attached());
                kept.push(answer);
            }
            for (n, answer) in kept.iter().enumerate() {
                assert!(answer.to_vec::<f64>().unwrap().iter().all(|&x| x == 2. * n as f64));
            }
        }
    });
}

/// The name of the threads that ask.
const ASKS: &str = "ndgc-asks";

/// Ten requests of 3 rows that wait while the model is busy, and the rows of the runs that answer them.
fn runs_of(mode: InferenceMode, limit: usize) -> Vec<usize> {
    let (runs, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Barrier::new(2)));
    let (notes, gate, first) = (Arc::clone(&runs), Arc::clone(&go), AtomicBool::new(true));
    let (begun, begins) = mpsc::channel();
    let model = move |x: &Tensor| {
        if first.swap(false, SeqCst) {
            begun.send(()).unwrap();
            gate.wait();
        }
        notes.lock().unwrap().push(x.dims()[0]);
        x.affine(2., 0.)
    };
    let inference = ParallelInference::builder(model).inference_mode(mode).batch_limit(limit).build().unwrap();
    thread::scope(|scope| {
        for n in 0..11 {
            let inference = &inference;
            let asks = move || {
                let got = inference.output(&rows(3, 2, f64::from(n))).unwrap().to_vec::<f64>().unwrap();
                assert_eq!(got, [2. * f64::from(n); 6]);
            };
            thread::Builder::new().name(ASKS.to_owned()).spawn_scoped(scope, asks).unwrap();
        }
        // The worker has no lock of the queue then, so that who waits does so for an answer.
        begins.recv().unwrap();
        until_they_wait(ASKS, 11);
        go.wait();
    });
    runs.lock().unwrap()[1..].to_vec()
}

#[test]
fn what_waits_is_answered_together_up_to_the_limit_of_rows() {
    both(|| {
        assert_eq!(runs_of(InferenceMode::Sequential, 32), [3; 10]);
        // The worker may have begun with one alone, or with what had come by then.
        let together = runs_of(InferenceMode::Batched, 8);
        assert!(together.iter().all(|&rows| rows <= 8) && together.len() <= 6, "{together:?}");
        let all = runs_of(InferenceMode::Batched, 1000);
        assert!(all.len() <= 2, "{all:?}");
        assert!(runs_of(InferenceMode::Batched, 1).iter().all(|&rows| rows == 3), "one request may have more");
    });
}

#[test]
fn a_request_waits_for_others_no_longer_than_it_may() {
    both(|| {
        let runs = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&runs);
        let model = move |x: &Tensor| {
            own.lock().unwrap().push(x.dims()[0]);
            x.affine(2., 0.)
        };
        let latency = Duration::from_millis(150);
        let inference = ParallelInference::builder(model.clone()).workers(2).batch_limit(4).max_latency(latency);
        let inference = inference.build().unwrap();
        let begin = Instant::now();
        inference.output(&rows(1, 2, 1.)).unwrap();
        let alone = begin.elapsed();
        assert!(alone >= latency && alone < latency * 400, "{alone:?}");
        // So long that the four come meanwhile, on whatever machine.
        let latency = Duration::from_secs(600);
        let inference = ParallelInference::builder(model).workers(2).batch_limit(4).max_latency(latency);
        let inference = inference.build().unwrap();
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| inference.output(&rows(1, 2, 1.)).unwrap());
            }
        });
        assert!(begin.elapsed() < latency, "a full batch does not wait");
        assert_eq!(*runs.lock().unwrap(), [1, 4]);
    });
}

/// Broken by: a worker that waits for what fits its batch, and leaves waiting what does not.
#[test]
fn a_batch_that_waits_holds_up_no_full_one_and_no_full_queue() {
    both(|| {
        // Two requests of another width are a batch, and one takes the only place, which no other can have then.
        for (limit, places, others, answered) in [(2, 64, 2, 3), (32, 1, 1, 1)] {
            let latency = Duration::from_secs(600);
            let inference = ParallelInference::builder(double).batch_limit(limit).queue_limit(places);
            let inference = inference.max_latency(latency).build().unwrap();
            let (tell, told) = mpsc::channel();
            let mut got: Vec<usize> = thread::scope(|scope| {
                for n in 0..=others {
                    let (inference, tell) = (&inference, tell.clone());
                    let asks = move || {
                        let answer = inference.output(&rows(1, if n == 0 { 2 } else { 3 }, 1.));
                        // What a shutdown left alone tells nobody.
                        let _ = answer.map(|_| tell.send(n));
                    };
                    thread::Builder::new().name(ASKS.to_owned()).spawn_scoped(scope, asks).unwrap();
                    if n == 0 {
                        until_they_wait(ASKS, 1);
                    }
                }
                let got = (0..answered).map_while(|_| told.recv_timeout(Duration::from_secs(60)).ok()).collect();
                inference.shutdown();
                got
            });
            got.sort_unstable();
            assert_eq!(got, (0..answered).collect::<Vec<_>>(), "of {limit} rows and {places} places");
        }
    });
}

#[test]
fn another_model_answers_from_its_update_on() {
    both(|| {
        for mode in MODES {
            // Each run adds its own number, so that rows of one batch would show two models.
            let model = |version: f64| {
                move |x: &Tensor| {
                    thread::yield_now();
                    x.affine(0., version)
                }
            };
            let inference = ParallelInference::builder(model(0.)).inference_mode(mode).workers(2).build().unwrap();
            let newest = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let before = newest.load(SeqCst);
                            let all = inference.output(&rows(5, 2, 0.)).unwrap().to_vec::<f64>().unwrap();
                            let kinds: HashSet<u64> = all.iter().map(|&x| x as u64).collect();
                            assert_eq!(kinds.len(), 1, "one model for a request");
                            assert!(all[0] >= before as f64, "an older model after an update");
                        }
                    });
                }
                for version in 1..50 {
                    inference.update_model(model(f64::from(version)));
                    newest.store(version as usize, SeqCst);
                    thread::yield_now();
                }
            });
        }
    });
}

/// Threads of this process of that name, and their time on the processor, in ticks of 10 ms; tests begin and end
/// others.
pub(crate) fn named(name: &str) -> (usize, u64) {
    let (mut count, mut ticks) = (0, 0);
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        if head.contains(name) {
            let fields: Vec<u64> =
                rest.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap()).collect();
            (count, ticks) = (count + 1, ticks + fields.iter().sum::<u64>());
        }
    }
    (count, ticks)
}

#[cfg(target_os = "linux")]
#[test]
fn idle_workers_cost_nothing() {
    both(|| {
        let inference = ParallelInference::builder(double).workers(8).max_latency(Duration::from_micros(1));
        let inference = inference.build().unwrap();
        inference.output(&rows(1, 2, 1.)).unwrap();
        while named("ndgc-inference").0 < 8 {
            thread::yield_now();
        }
        let before = named("ndgc-inference");
        thread::sleep(Duration::from_millis(400));
        assert!(named("ndgc-inference").1 <= before.1 + 1, "workers that wait do not run");
    });
}

#[test]
fn requests_that_come_while_a_worker_looks_are_answered_side_by_side() {
    // Broken by: a worker that looks, takes the first of two, and leaves nobody awake for the second.
    both(|| {
        for (mode, limit) in [(InferenceMode::Sequential, 32), (InferenceMode::Batched, 1)] {
            let inside = Arc::new((Mutex::new(0u32), Condvar::new()));
            let of_model = Arc::clone(&inside);
            let model = move |x: &Tensor| {
                let (count, changed) = &*of_model;
                let mut count = count.lock().unwrap();
                *count += 1;
                changed.notify_all();
                // Each waits for the other one of its pair.
                let (pair, wait) = (count.next_multiple_of(2), Duration::from_secs(20));
                let (count, late) = changed.wait_timeout_while(count, wait, |count| *count < pair).unwrap();
                assert!(!late.timed_out(), "thirteen: alone for long");
                drop(count);
                x.affine(2., 0.)
            };
            let inference = ParallelInference::builder(model).inference_mode(mode).batch_limit(limit).workers(2);
            let inference = inference.build().unwrap();
            let ask = || (0..300).for_each(|_| drop(inference.output(&rows(1, 2, 1.)).unwrap()));
            thread::scope(|scope| [scope.spawn(ask), scope.spawn(ask)].map(|asks| asks.join().unwrap()));
        }
    });
}

#[test]
fn a_shutdown_fails_what_waits_and_what_comes() {
    both(|| {
        let (started, starts) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let model = move |x: &Tensor| {
            started.send(()).unwrap();
            let _ = gone.lock().unwrap().recv();
            x.affine(2., 0.)
        };
        let inference = ParallelInference::builder(model).queue_limit(2).build().unwrap();
        thread::scope(|scope| {
            let running = scope.spawn(|| inference.output(&rows(1, 2, 1.)));
            starts.recv().unwrap();
            let waiting: Vec<_> = (0..5).map(|_| scope.spawn(|| inference.output(&rows(1, 2, 1.)))).collect();
            thread::sleep(Duration::from_millis(20));
            let ends = scope.spawn(|| inference.shutdown());
            for one in waiting {
                let error = one.join().unwrap().unwrap_err().to_string();
                assert!(error.contains("was shut down"), "{error}");
            }
            drop(go);
            assert!(running.join().unwrap().is_ok(), "what was being answered is answered");
            ends.join().unwrap();
        });
        assert!(inference.output(&rows(1, 2, 1.)).is_err());
    });
}

#[test]
fn settings_that_cannot_be_are_refused() {
    both(|| {
        let builder = || ParallelInference::builder(double);
        for wrong in [builder().workers(0), builder().batch_limit(0), builder().queue_limit(0)] {
            assert!(matches!(wrong.build(), Err(Error::Argument { .. })));
        }
    });
}

/// A model that ends who asks it: with its first answer, or as it ends itself, behind its last.
struct Ends {
    at_once: bool,
    asks: Arc<Mutex<Weak<ParallelInference>>>,
    /// Kept until nobody else has it.
    kept: Mutex<Option<Arc<ParallelInference>>>,
    let_go: Mutex<mpsc::Receiver<()>>,
    ended: mpsc::Sender<bool>,
}

impl Model for Ends {
    fn output(&self, input: &Tensor) -> Result<Tensor> {
        let asks = self.asks.lock().unwrap().upgrade().unwrap();
        if self.at_once {
            asks.shutdown();
        } else {
            asks.update_model(double);
            *self.kept.lock().unwrap() = Some(asks);
        }
        double(input)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let Some(kept) = self.kept.lock().unwrap().take() else { return };
        self.let_go.lock().unwrap().recv().unwrap();
        let last = Arc::into_inner(kept);
        let is_last = last.is_some();
        let done = catch_unwind(AssertUnwindSafe(|| drop(last)));
        self.ended.send(is_last && done.is_ok()).unwrap();
    }
}

/// Broken by: a worker that waits for the end of its own thread.
#[test]
fn a_model_may_end_who_asks_it() {
    both(|| {
        for at_once in [true, false] {
            let (go, let_go) = mpsc::channel();
            let (ended, ends) = mpsc::channel();
            let asks = Arc::new(Mutex::new(Weak::new()));
            let (kept, let_go) = (Mutex::new(None), Mutex::new(let_go));
            let model = Ends { at_once, asks: Arc::clone(&asks), kept, let_go, ended };
            let inference = Arc::new(ParallelInference::builder(model).workers(2).build().unwrap());
            *asks.lock().unwrap() = Arc::downgrade(&inference);
            assert_eq!(inference.output(&rows(1, 2, 1.)).unwrap().to_vec::<f64>().unwrap(), [2.; 2]);
            assert_eq!(inference.output(&rows(1, 2, 1.)).is_err(), at_once);
            drop(inference);
            if !at_once {
                go.send(()).unwrap();
                assert!(ends.recv_timeout(Duration::from_secs(60)).unwrap(), "the last drop, without a panic");
            }
        }
    });
}

/// Broken by: a lock that is held while workers are waited for, and that one of them asks for.
#[test]
fn a_model_may_end_who_asks_it_while_another_thread_does() {
    both(|| {
        let asks = Arc::new(Mutex::new(Weak::<ParallelInference>::new()));
        let (own, (begun, begins)) = (Arc::clone(&asks), mpsc::channel());
        let model = move |x: &Tensor| {
            let asks = own.lock().unwrap().upgrade().unwrap();
            begun.send(()).unwrap();
            until_they_wait(ASKS, 1);
            asks.shutdown();
            double(x)
        };
        let inference = Arc::new(ParallelInference::builder(model).build().unwrap());
        *asks.lock().unwrap() = Arc::downgrade(&inference);
        thread::scope(|scope| {
            let answer = scope.spawn(|| inference.output(&rows(1, 2, 1.)));
            begins.recv().unwrap();
            let ends = || inference.shutdown();
            thread::Builder::new().name(ASKS.to_owned()).spawn_scoped(scope, ends).unwrap();
            assert!(answer.join().unwrap().is_ok(), "what was being answered is answered");
        });
    });
}
