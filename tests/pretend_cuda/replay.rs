//! Captured sections as CUDA graphs. What every device promises of them is tested on the simulated one (tests/device);
//! here, that the driver is asked for the right things.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ndgc::{
    DType, Device, Error, Generator, GradStore, Result, Tensor,
    nn::{Adam, Mlp, Module, Optimizer, StepRule},
};

use crate::common::cuda::Pretend;
use crate::pretend_cuda::{on_cuda, pretending};

/// A training step with random noise on its input.
struct Training {
    mlp: Mlp,
    adam: Adam,
    noise: Generator,
    x: Tensor,
    labels: Tensor,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let mut random = Generator::new(5);
        let mlp = Mlp::new(&[8, 16, 4], &mut random, device)?;
        let adam = Adam::new(mlp.variables(), 0.05)?;
        let x = random.uniform(-1., 1., (12, 8), DType::F32, device)?;
        let labels = Tensor::from_slice(&(0..12u32).map(|i| i % 4).collect::<Vec<_>>(), 12, device)?;
        Ok(Training { mlp, adam, noise: Generator::new(9), x, labels })
    }

    fn step(&mut self) -> Result<Tensor> {
        let noisy = (&self.x + self.noise.normal(0., 0.01, (12, 8), DType::F32, self.x.device())?)?;
        let loss = ndgc::nn::loss::cross_entropy(&self.mlp.forward(&noisy)?, &self.labels)?;
        let grads: GradStore = loss.backward()?;
        self.adam.step(&grads)?;
        Ok(loss)
    }
}

#[test]
fn a_captured_training_step_is_one_call_and_goes_on_like_an_eager_one() {
    on_cuda(|device, _| {
        let calls = || Pretend::get().map_or(0, |pretend| pretend.calls(None));
        let mut training = Training::new(device).unwrap();
        let first = training.step().unwrap().to_scalar::<f32>().unwrap();
        let (graph, loss) = device.capture(|| training.step()).unwrap();
        let mut losses = Vec::new();
        for _ in 0..30 {
            let before = calls();
            graph.replay().unwrap();
            assert!(calls() - before <= 1, "one call a replay");
            losses.push(loss.to_scalar::<f32>().unwrap());
        }
        assert!(losses.windows(2).all(|pair| pair[0] != pair[1]), "each replay is another step: {losses:?}");
        assert!(losses[29] < first * 0.5, "it learns: {first}, then {losses:?}");
        // The host's own numbers stood still: eager steps go on from where the graph has brought the weights.
        let after = training.step().unwrap().to_scalar::<f32>().unwrap();
        assert!((after - losses[29]).abs() < 0.2, "{after} after {losses:?}");
    });
}

#[test]
fn the_first_replays_of_a_step_without_noise_give_the_eager_numbers() {
    on_cuda(|device, _| {
        let losses = |replayed: bool| {
            let mut training = Training::new(device).unwrap();
            // The same noise in every step: none.
            let mut step = || -> Result<Tensor> {
                let loss = ndgc::nn::loss::cross_entropy(&training.mlp.forward(&training.x)?, &training.labels)?;
                training.adam.step(&loss.backward()?)?;
                Ok(loss)
            };
            let mut losses = vec![step().unwrap().to_scalar::<f32>().unwrap()];
            if replayed {
                let (graph, loss) = device.capture(&mut step).unwrap();
                for _ in 0..10 {
                    graph.replay().unwrap();
                    losses.push(loss.to_scalar::<f32>().unwrap());
                }
            } else {
                losses.extend((0..10).map(|_| step().unwrap().to_scalar::<f32>().unwrap()));
            }
            losses
        };
        assert_eq!(losses(true), losses(false));
    });
}

#[test]
fn replays_are_the_next_steps_of_rules_that_count() {
    let (beta1, beta2, epsilon) = (0.8, 0.95, 1e-3);
    let moments = [StepRule::AmsGrad { beta1, beta2, epsilon }, StepRule::Nadam { beta1, beta2, epsilon }];
    on_cuda(|device, _| {
        for rule in moments.into_iter().chain([StepRule::AdaMax { beta1, beta2 }]) {
            let after = |replayed: bool| {
                let x = Tensor::new([1f64, -2., 3.], device).unwrap();
                let grad = x.ones_like().unwrap();
                let kept: Vec<Tensor> = (0..rule.kept()).map(|_| x.zeros_like().unwrap()).collect();
                if replayed {
                    let (graph, ()) = device.capture(|| x.optimizer_step_(&grad, &kept, rule, 0.1, 1)).unwrap();
                    (0..5).for_each(|_| graph.replay().unwrap());
                } else {
                    (1..=5).for_each(|t| x.optimizer_step_(&grad, &kept, rule, 0.1, t).unwrap());
                }
                x.to_vec1::<f64>().unwrap()
            };
            let (eager, replayed) = (after(false), after(true)); // first uses come before captures
            assert!(
                replayed.iter().zip(&eager).all(|(a, b)| (a - b).abs() < 1e-12),
                "{rule:?}: {replayed:?}, {eager:?}"
            );
        }
    });
}

#[test]
fn what_a_capture_refuses_names_its_line() {
    on_cuda(|device, _| {
        let x = Tensor::full(1f32, 3000, device).unwrap();
        let warm = x.affine(2., 0.).unwrap();
        drop(warm);
        let here = file!();
        let line = std::cell::Cell::new(0);
        let refused = |section: &dyn Fn() -> Result<Tensor>| {
            let error = device.capture(section).map(|_| ()).unwrap_err();
            let Error::Capture { site: Some(site), .. } = &error else { panic!("{error:?}") };
            assert_eq!((site.file(), site.line()), (here, line.get()), "{error}");
            // The device works as before.
            assert_eq!(x.affine(2., 0.).unwrap().to_vec::<f32>().unwrap()[0], 2.);
        };
        refused(&|| {
            line.set(line!() + 1);
            Tensor::zeros(200 << 20, DType::U8, device)
        });
        refused(&|| {
            line.set(line!() + 1);
            x.to_vec::<f32>()?;
            Ok(x.clone())
        });
        refused(&|| {
            line.set(line!() + 1);
            device.synchronize()?;
            Ok(x.clone())
        });
        refused(&|| {
            line.set(line!() + 1);
            x.to_dtype(DType::U8)?.to_dtype(DType::I64)?.sum_all()
        });
    });
}

#[test]
fn a_replay_from_another_stream_leaves_the_memory_of_kernels_alone() {
    on_cuda(|device, cuda| {
        // A sum over so many elements is shared by blocks, which meet in memory that the stream's launches have in
        // turn.
        let x = Tensor::full(1f32, 200_000, device).unwrap();
        drop(x.sum_all().unwrap());
        let (graph, sum) = device.capture(|| x.sum_all()).unwrap();
        let others: Vec<_> = (0..5)
            .map(|_| {
                cuda.on_stream(1, || graph.replay()).unwrap();
                x.sum_all().unwrap()
            })
            .collect();
        for sum in others.iter().chain([&sum]) {
            assert_eq!(sum.to_scalar::<f32>().unwrap(), 200_000.);
        }
    });
}

#[test]
fn a_section_that_hides_a_refusal_has_no_graph() {
    on_cuda(|device, _| {
        let x = Tensor::full(1f32, 3000, device).unwrap();
        drop(x.affine(2., 0.).unwrap());
        let outcome = device.capture(|| {
            // Never used before, so it would have to be compiled.
            let refused = x.to_dtype(DType::U32).and_then(|x| x.to_dtype(DType::U8)).and_then(|x| x.max(0));
            assert!(matches!(refused, Err(Error::Capture { .. })), "{refused:?}");
            x.affine(3., 0.)
        });
        assert!(matches!(outcome, Err(Error::Capture { .. })), "{outcome:?}");
        assert_eq!(x.affine(2., 0.).unwrap().to_vec::<f32>().unwrap()[0], 2.);
    });
}

#[test]
fn a_graph_keeps_its_memory_and_gives_it_back() {
    on_cuda(|device, _| {
        let x = Tensor::full(1f32, 1000, device).unwrap();
        let section = || x.affine(2., 1.)?.affine(3., 0.);
        drop(section().unwrap());
        let (graph, y) = device.capture(section).unwrap();
        drop(y);
        ndgc::gc::collect();
        // Others take the same sizes, and the graph writes its own.
        let others: Vec<_> = (0..8).map(|i| Tensor::full(i as f32, 1000, device).unwrap()).collect();
        graph.replay().unwrap();
        for (i, other) in others.iter().enumerate() {
            assert!(other.to_vec::<f32>().unwrap().iter().all(|&value| value == i as f32));
        }
        let pinned = device.memory().captured;
        assert!(pinned > 0);
        drop(graph);
        device.synchronize().unwrap();
        assert!(device.memory().captured < pinned);
    });
}

#[test]
fn a_driver_that_fails_in_a_capture_leaves_the_stream_usable() {
    pretending(|pretend, device, _| {
        let x = Tensor::full(1f32, 100, device).unwrap();
        let section = || x.affine(2., 1.)?.exp();
        drop(section().unwrap());
        for call in ["cuStreamBeginCapture_v2", "cuLaunchKernel", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
            pretend.fail(Some(call), 1, 801);
            let error = device.capture(section).unwrap_err().to_string();
            assert!(error.contains(call) && error.contains("801"), "{call}: {error}");
            pretend.fail_off();
            assert_eq!(x.affine(2., 1.).unwrap().to_vec::<f32>().unwrap(), [3.; 100], "after {call}");
            let (graph, y) = device.capture(section).unwrap();
            graph.replay().unwrap();
            assert!((y.to_vec::<f32>().unwrap()[0] - 3f32.exp()).abs() < 1e-4);
        }
    });
}

#[test]
fn no_replay_comes_between_the_parts_of_a_read() {
    // Broken by: parts of a large copy that are submitted behind a replay of another thread.
    on_cuda(|device, _| {
        // 12 MiB, in parts of 4.
        let x = Tensor::zeros(3 << 20, DType::F32, device).unwrap();
        x.affine_(1., 1.).unwrap();
        let (graph, _) = device.capture(|| x.affine_(1., 1.)).unwrap();
        let done = AtomicBool::new(false);
        let whole = thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    graph.replay().unwrap();
                    // So that the reader has the lock too.
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let read = || x.to_vec::<f32>().is_ok_and(|all| all.iter().all(|number| *number == all[0]));
            let whole = (0..6).all(|_| read());
            done.store(true, Ordering::Relaxed);
            whole
        });
        assert!(whole, "numbers from before a replay and from behind it");
    });
}

#[test]
fn reads_that_always_overlap_do_not_hold_a_replay_back() {
    // Broken by: a replay that waits until nobody reads, while others may begin to.
    const READERS: usize = 4;
    const MOST_READS: usize = 60;
    on_cuda(|device, _| {
        // 12 MiB, in parts of 4.
        let x = Tensor::zeros(3 << 20, DType::F32, device).unwrap();
        x.affine_(1., 1.).unwrap();
        let (graph, _) = device.capture(|| x.affine_(1., 1.)).unwrap();
        let (begun, ended, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let ended_before = thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    for read in 0..MOST_READS {
                        if x.to_vec::<f32>().is_err() || done.load(Ordering::Relaxed) {
                            break;
                        }
                        begun.fetch_add(usize::from(read == 0), Ordering::Relaxed);
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }
            while begun.load(Ordering::Relaxed) + ended.load(Ordering::Relaxed) < READERS {
                thread::yield_now();
            }
            let replayed = (0..3).try_for_each(|_| graph.replay());
            let ended_before = ended.load(Ordering::Relaxed);
            done.store(true, Ordering::Relaxed);
            replayed.map(|()| ended_before)
        });
        assert_eq!(ended_before.unwrap(), 0, "readers that were through before the replays came");
        assert_eq!(x.to_vec::<f32>().unwrap()[0], 4., "once, and by three replays");
    });
}

#[test]
fn graphs_that_count_nothing_may_be_more_than_there_are_counters() {
    // Broken by: a counter of replays for each graph, of which a device has 1,024.
    on_cuda(|device, _| {
        let x = Tensor::zeros(4, DType::F32, device).unwrap();
        x.affine_(1., 1.).unwrap();
        let graphs: Vec<_> = (0..1100).map(|_| device.capture(|| x.affine_(1., 1.)).unwrap().0).collect();
        graphs.iter().for_each(|graph| graph.replay().unwrap());
        assert_eq!(x.to_vec::<f32>().unwrap(), [1101.; 4]);
    });
}
