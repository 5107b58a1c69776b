//! Networks trained by several workers and asked by many callers, in every workspace mode.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ndgc::train::{
    Activation, ArrayDataSetIterator, AsyncDataSetIterator, BatchNormalization, DataSet, Dense, DropoutLayer,
    EarlyStopped, EarlyStopping, FnDataIterator, InferenceMode, InputType, Layer, LayerSettings, ListDataIterator,
    ListDataSetIterator, Loss, Lstm, ModuleLayer, MultiDataSet, Network, NetworkConfig, OutputLayer, ParallelInference,
    ParallelWrapper, Schedule, ScheduleKind, ScheduleType, Termination, ThreadCommunicator, TrainingListener,
    TrainingMode, Updater, WeightInit, WorkspaceMode,
};
use ndgc::{DType, Device, Error, Result, Tensor, gc, nn};

use crate::common::in_own_process;

use super::both::both;

const MODES: [WorkspaceMode; 4] =
    [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::Enabled];

fn network(updater: Updater, mode: WorkspaceMode) -> Network {
    NetworkConfig::builder()
        .seed(3)
        .data_type(DType::F64)
        .updater(updater)
        .training_workspace_mode(mode)
        .inference_workspace_mode(mode)
        .input_type(InputType::feed_forward(4))
        .layer(Dense::new(8).activation(Activation::Tanh))
        .layer(OutputLayer::new(2, Loss::Mcxent))
        .build()
        .unwrap()
}

/// Rows of two classes, told apart by the sum of their numbers.
fn examples(n: usize) -> DataSet {
    let x: Vec<f64> = (0..4 * n).map(|i| ((i * 37 + 11) % 23) as f64 / 11. - 1.).collect();
    let y: Vec<f64> = x.chunks(4).flat_map(|x| if x.iter().sum::<f64>() > 0. { [0., 1.] } else { [1., 0.] }).collect();
    let of = |all: Vec<f64>, columns| Tensor::from_vec(all, (n, columns), &Device::Cpu).unwrap();
    DataSet::new(of(x, 4), of(y, 2)).unwrap()
}

fn batches(n: usize, size: usize) -> ArrayDataSetIterator {
    ArrayDataSetIterator::new(examples(n), size).unwrap()
}

fn numbers(net: &Network) -> Vec<f64> {
    net.params().flat_map(|(_, var)| var.as_detached_tensor().to_vec::<f64>().unwrap()).collect()
}

#[test]
fn workers_that_share_gradients_train_as_one_network_with_large_batches() {
    both(|| {
        for mode in MODES {
            let mut alone = network(Updater::adam(0.01), mode);
            alone.fit_epochs(batches(60, 12), 3).unwrap();
            let wrapper = ParallelWrapper::builder(network(Updater::adam(0.01), mode)).workers(3);
            let mut wrapper =
                wrapper.training_mode(TrainingMode::SharedGradients).workspace_mode(mode).build().unwrap();
            for _ in 0..3 {
                wrapper.fit(batches(60, 4)).unwrap();
            }
            assert_eq!(wrapper.model().iteration(), alone.iteration());
            for (own, wanted) in numbers(&wrapper.model()).into_iter().zip(numbers(&alone)) {
                assert!((own - wanted).abs() < 1e-9, "{mode:?}: {own} and {wanted}");
            }
        }
    });
}

/// A gradient of f16 times the examples that it is of, and the sum of two parameters, may be beyond 65,504.
#[test]
fn halves_are_shared_and_averaged_by_way_of_larger_numbers() {
    both(|| {
        for dtype in [DType::F16, DType::BF16] {
            let of = |value: f64| Tensor::full(value, (256, 1), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let built = |start: f64| {
                let config = NetworkConfig::builder().data_type(dtype).weight_init(WeightInit::Constant(start));
                let config = config.updater(Updater::sgd(0.01)).input_type(InputType::feed_forward(1));
                config.layer(OutputLayer::new(1, Loss::Mse)).build().unwrap()
            };
            let all = |net: &Network| -> Vec<f64> {
                let values = |array: Tensor| array.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                net.params().flat_map(|(_, var)| values(var.as_detached_tensor())).collect()
            };
            let trained = |start: f64, mode: TrainingMode, batch: &DataSet| {
                let mut wrapper = ParallelWrapper::builder(built(start)).training_mode(mode).build().unwrap();
                wrapper.fit(ListDataSetIterator::new(vec![batch.clone(); 2])).unwrap();
                all(&wrapper.into_model().unwrap())
            };
            // The gradients are -400.
            let batch = DataSet::new(of(1.), of(200.)).unwrap();
            let mut alone = built(0.);
            alone.fit_batch(&batch).unwrap();
            for (own, wanted) in trained(0., TrainingMode::SharedGradients, &batch).into_iter().zip(all(&alone)) {
                assert!((own - wanted).abs() < 0.1 && (wanted - 4.).abs() < 0.5, "{dtype}: {own} and {wanted}");
            }
            let nothing = DataSet::new(of(0.), of(0.)).unwrap();
            assert_eq!(trained(40_000., TrainingMode::Averaging, &nothing), all(&built(40_000.)), "{dtype}");
        }
    });
}

/// A mean of three equal numbers may be another one.
#[test]
fn what_is_frozen_stays_whatever_workers_average() {
    both(|| {
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let frozen = Dense::new(50).with(LayerSettings::new().updater(Updater::NoOp));
            let config = NetworkConfig::builder().seed(3).input_type(InputType::feed_forward(4)).layer(frozen);
            let net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let of = |net: &Network, name: &str| net.param(name).unwrap().to_vec::<f32>().unwrap();
            let before = ["0_W", "1_W"].map(|name| of(&net, name));
            let mut wrapper = ParallelWrapper::builder(net).workers(3).training_mode(mode).build().unwrap();
            wrapper.fit(batches(36, 4)).unwrap();
            let net = wrapper.into_model().unwrap();
            assert_eq!(of(&net, "0_W"), before[0], "{mode:?}");
            assert_ne!(of(&net, "1_W"), before[1], "{mode:?}");
        }
    });
}

/// A module changes its own, whatever its updater is.
#[test]
fn running_means_of_a_frozen_module_are_averaged() {
    both(|| {
        let norm =
            ModuleLayer::new("norm", InputType::feed_forward(4), |vb| Ok(Box::new(nn::batch_norm(4, 1e-5, vb)?)));
        let config = NetworkConfig::builder().seed(3).input_type(InputType::feed_forward(4));
        let config = config.layer(norm.with(LayerSettings::new().updater(Updater::NoOp)));
        let net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
        let before = net.param("0_running_mean").unwrap().to_vec::<f32>().unwrap();
        let mut wrapper = ParallelWrapper::builder(net).workers(3).build().unwrap();
        wrapper.fit(batches(36, 4)).unwrap();
        let all = wrapper.replicas().unwrap();
        let of = |replica: &[(String, Tensor)]| {
            replica.iter().flat_map(|(_, array)| array.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        };
        assert!(all[1..].iter().all(|replica| of(replica) == of(&all[0])), "{all:?}");
        let mean = all[0].iter().find(|(name, _)| name == "0_running_mean").unwrap();
        assert_ne!(mean.1.to_vec::<f32>().unwrap(), before, "it moves");
    });
}

/// What happened, with the step and the epoch.
type Happened = (&'static str, u64, u64);

/// What happened, in turn.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<Happened>>>);

impl Told {
    fn note(&self, what: &'static str, net: &Network) -> Result<()> {
        self.0.lock().unwrap().push((what, net.iteration(), net.epoch()));
        Ok(())
    }
}

impl TrainingListener for Told {
    fn on_epoch_start(&mut self, net: &Network) -> Result<()> {
        self.note("start", net)
    }
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        assert!(net.score().is_finite());
        self.note("done", net)
    }
    fn on_epoch_end(&mut self, net: &Network) -> Result<()> {
        self.note("end", net)
    }
}

/// Epochs count, schedules look at them, and listeners are told, as by the network alone.
#[test]
fn epochs_of_a_wrapper_are_epochs_of_its_network() {
    both(|| {
        let halves = ScheduleKind::Step { decay: 0.5, step: 1 };
        let updater = Updater::sgd(Schedule::new(ScheduleType::Epoch, 0.2, halves));
        for (mode, workers) in [(TrainingMode::Averaging, 1), (TrainingMode::SharedGradients, 3)] {
            let (told, told_alone) = (Told::default(), Told::default());
            let mut alone = network(updater, WorkspaceMode::Enabled);
            alone.add_listener(told_alone.clone());
            alone.fit_epochs(batches(60, 4 * workers), 3).unwrap();
            let mut net = network(updater, WorkspaceMode::Enabled);
            net.add_listener(told.clone());
            let wrapper = ParallelWrapper::builder(net).workers(workers).training_mode(mode);
            let mut wrapper = wrapper.build().unwrap();
            (0..3).for_each(|_| wrapper.fit(batches(60, 4)).unwrap());
            let net = wrapper.into_model().unwrap();
            assert_eq!(net.epoch(), 3);
            assert_eq!(*told.0.lock().unwrap(), *told_alone.0.lock().unwrap());
            assert!((net.score() - alone.score()).abs() < 1e-9, "{} and {}", net.score(), alone.score());
            for (own, wanted) in numbers(&net).into_iter().zip(numbers(&alone)) {
                assert!((own - wanted).abs() < 1e-9, "{mode:?}: {own} and {wanted}");
            }
        }
    });
}

/// A step of one worker on a batch, and of two on the same one: what they drop is not the same.
#[test]
fn each_worker_drops_numbers_of_its_own() {
    both(|| {
        let trained = |workers: usize| {
            let config = NetworkConfig::builder().seed(3).data_type(DType::F64).updater(Updater::sgd(0.1));
            let config = config.input_type(InputType::feed_forward(4)).layer(DropoutLayer(0.5));
            let net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let mut wrapper = ParallelWrapper::builder(net).workers(workers).build().unwrap();
            wrapper.fit(ListDataSetIterator::new(vec![examples(8); workers])).unwrap();
            numbers(&wrapper.into_model().unwrap())
        };
        assert_ne!(trained(1), trained(2));
        assert_eq!(trained(2), trained(2));
    });
}

#[test]
fn series_in_segments_are_averaged_and_not_shared() {
    both(|| {
        let batch = || {
            let x = Tensor::ones((4, 3, 7), DType::F64, &Device::Cpu).unwrap();
            DataSet::new(x.clone(), x.narrow(1, 0, 2).unwrap()).unwrap()
        };
        let wrapper = |mode| {
            let config = NetworkConfig::builder().data_type(DType::F64).tbptt_length(3);
            let config = config.input_type(InputType::recurrent(3)).layer(Lstm::new(4));
            let net = config.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap();
            ParallelWrapper::builder(net).training_mode(mode).build().unwrap()
        };
        let two = || ListDataSetIterator::new(vec![batch(), batch()]);
        let mut averaged = wrapper(TrainingMode::Averaging);
        averaged.fit(two()).unwrap();
        // Each of the two workers made one step for each of its three segments.
        assert_eq!(averaged.model().iteration(), 3);
        let refused = wrapper(TrainingMode::SharedGradients).fit(two()).unwrap_err().to_string();
        assert!(refused.contains("7 steps are more than the 3 of tbptt_length"), "{refused}");
    });
}

#[test]
fn workers_that_are_averaged_learn_and_end_equal() {
    both(|| {
        for mode in MODES {
            let wrapper = ParallelWrapper::builder(network(Updater::adam(0.02), WorkspaceMode::Enabled));
            let wrapper = wrapper.prefetch_buffer(8).workers(2).averaging_frequency(5);
            let mut wrapper = wrapper.report_score_after_averaging(false).workspace_mode(mode).build().unwrap();
            let mut source = AsyncDataSetIterator::new(batches(240, 8).shuffled(1).unwrap()).unwrap();
            for _ in 0..20 {
                wrapper.fit(&mut source).unwrap();
            }
            let all = wrapper.replicas().unwrap();
            for ((name, a), (_, b)) in all[0].iter().zip(&all[1]) {
                assert_eq!(a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap(), "{name} of both replicas");
            }
            let net = wrapper.into_model().unwrap();
            assert!(net.evaluate(batches(240, 50)).unwrap().accuracy() > 0.95, "{mode:?}: it learned");
        }
    });
}

/// To the last bit.
#[track_caller]
fn assert_equal(wrapper: &ParallelWrapper<Network>) {
    let all = wrapper.replicas().unwrap();
    for ((name, own), (_, first)) in all[1..].iter().flat_map(|replica| replica.iter().zip(&all[0])) {
        assert_eq!(own.to_vec::<f64>().unwrap(), first.to_vec::<f64>().unwrap(), "{name}");
    }
}

/// P12.
#[test]
fn training_by_several_workers_stops_with_the_best_network() {
    both(|| {
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let wrapper = ParallelWrapper::builder(network(Updater::adam(0.02), WorkspaceMode::Enabled));
            let mut wrapper = wrapper.workers(3).training_mode(mode).build().unwrap();
            let (mut passes, mut best) = (0, Vec::new());
            let ended = EarlyStopping::max_epochs(9).patience(2).fit(&mut wrapper, batches(60, 4), |net| {
                passes += 1;
                if passes == 2 {
                    best = numbers(net);
                }
                Ok([5., 3., 4., 4.][passes - 1])
            });
            let ended = ended.unwrap();
            assert_eq!((ended.reason, ended.best_epoch, ended.best_score), (Termination::NoImprovement, 1, 3.));
            assert_eq!((numbers(&wrapper.model()), ended.scores.len()), (best, 4), "{mode:?}");
            assert_eq!(wrapper.model().epoch(), 2);
            wrapper.fit(batches(60, 4)).unwrap();
            assert_equal(&wrapper);
            assert_eq!(wrapper.model().epoch(), 3);
            // An error ends it with the best ones so far: there were none.
            let ended = EarlyStopping::max_epochs(9).fit(&mut wrapper, batches(60, 4), |_| Err(Error::msg("no score")));
            assert_eq!((ended.unwrap_err().to_string(), wrapper.model().epoch()), ("no score".to_owned(), 4));
        }
        // One worker is the network alone.
        let (all, stopping) = (examples(60), EarlyStopping::max_epochs(5).min_improvement(0.01));
        let mut alone = network(Updater::adam(0.02), WorkspaceMode::Enabled);
        let wanted = stopping.fit(&mut alone, batches(60, 4), |net| net.score_batch(&all, false)).unwrap();
        let wrapper = ParallelWrapper::builder(network(Updater::adam(0.02), WorkspaceMode::Enabled));
        let mut wrapper = wrapper.workers(1).build().unwrap();
        let ended = stopping.fit(&mut wrapper, batches(60, 4), |net| net.score_batch(&all, false)).unwrap();
        assert_eq!((ended.reason, ended.best_epoch), (wanted.reason, wanted.best_epoch));
        assert_eq!(ended.scores.len(), wanted.scores.len());
        assert!(ended.scores.iter().zip(&wanted.scores).all(|(own, wanted)| (own - wanted).abs() < 1e-9));
    });
}

/// P12: DL4J's conditions of iterations.
#[test]
fn a_pass_of_several_workers_breaks_off_and_leaves_them_equal() {
    both(|| {
        let all = examples(400);
        let lost = DataSet::new(all.rows(0, 4).unwrap().features, full_of_nan(4)).unwrap();
        let built = || {
            let config = NetworkConfig::builder().seed(3).data_type(DType::F64).updater(Updater::sgd(0.1));
            let config = config.input_type(InputType::feed_forward(4)).layer(Dense::new(5));
            config.layer(BatchNormalization::new()).layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap()
        };
        let start = numbers(&built());
        for (mode, frequency) in
            [(TrainingMode::Averaging, 1), (TrainingMode::Averaging, 3), (TrainingMode::SharedGradients, 1)]
        {
            // Batches of which one may make NaN of all; how many of them were taken.
            let run = |stopping: EarlyStopping, is_lost: bool| {
                let wrapper = ParallelWrapper::builder(built()).training_mode(mode).averaging_frequency(frequency);
                let (mut wrapper, mut taken) = (wrapper.build().unwrap(), 0);
                let source = FnDataIterator::new(|n| {
                    taken += 1;
                    let batch = || if is_lost && n == 10 { Ok(lost.clone()) } else { all.rows(4 * n, 4) };
                    (n < 100).then(batch).transpose()
                });
                let ended = stopping.each_iteration().fit(&mut wrapper, source, |_| Ok(1.)).unwrap();
                assert!(taken < 60, "{mode:?}, {frequency}: {taken} batches");
                assert_eq!((ended.scores.len(), wrapper.model().epoch()), (0, 0));
                (ended.reason, wrapper)
            };
            let stopping = || EarlyStopping::max_epochs(3);
            for (stopping, is_lost, reason) in [
                (stopping(), true, Termination::InvalidScore),
                (stopping().max_score(0.), false, Termination::MaxScore),
            ] {
                let (ended, mut wrapper) = run(stopping, is_lost);
                assert_eq!((ended, wrapper.model().iteration()), (reason, 0), "{mode:?}, {frequency}");
                assert_eq!(numbers(&wrapper.model()), start, "as before the pass");
                wrapper.fit(batches(60, 4)).unwrap();
                assert_equal(&wrapper);
                assert_eq!(wrapper.model().epoch(), 1);
            }
            // The time leaves them as they are: averaged, running means too.
            let (ended, wrapper) = run(stopping().max_time(Duration::ZERO), false);
            assert_eq!((ended, wrapper.model().iteration()), (Termination::MaxTime, frequency as u64), "{mode:?}");
            assert_equal(&wrapper);
            assert_ne!(numbers(&wrapper.model()), start);
        }
    });
}

fn full_of_nan(n: usize) -> Tensor {
    Tensor::full(f64::NAN, (n, 2), &Device::Cpu).unwrap()
}

/// What each of two ranks finds; a score below 0 is none.
fn ranks(stopping: fn(usize) -> EarlyStopping, scores: [[f64; 3]; 2]) -> [(Result<EarlyStopped>, Vec<f64>); 2] {
    let group = ThreadCommunicator::group(2).unwrap().into_iter().enumerate();
    let ranks = group.map(|(rank, own)| {
        thread::spawn(move || {
            let wrapper = ParallelWrapper::builder(network(Updater::adam(0.02), WorkspaceMode::Enabled));
            let mut wrapper = wrapper.communicator(Box::new(own)).build().unwrap();
            let batches = ArrayDataSetIterator::new(examples(48).rows(rank * 24, 24).unwrap(), 4).unwrap();
            let mut passes = 0;
            let ended = stopping(rank).fit(&mut wrapper, batches, |_| {
                passes += 1;
                Some(scores[rank][passes - 1]).filter(|&score| score >= 0.).ok_or_else(|| Error::msg("no score"))
            });
            (ended, numbers(&wrapper.into_model().unwrap()))
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let found: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    found.try_into().unwrap()
}

fn out_of_time(rank: usize) -> EarlyStopping {
    let stopping = EarlyStopping::max_epochs(3);
    if rank == 1 { stopping.max_time(Duration::ZERO) } else { stopping }
}

/// Ranks of which each decides for itself would wait for each other, or end with an error.
#[test]
fn ranks_stop_together() {
    both(|| {
        let stop = |stopping: fn(usize) -> EarlyStopping, scores: [[f64; 3]; 2], reason: Termination, means: &[f64]| {
            let [(first, own), (second, other)] = ranks(stopping, scores);
            let first = first.unwrap();
            assert_eq!((first.reason, first.scores.as_slice()), (reason, means));
            assert_eq!((second.unwrap(), other), (first, own));
        };
        let patient = |_: usize| EarlyStopping::max_epochs(3).patience(1);
        stop(patient, [[3., 2., 1.], [3., 4., 5.]], Termination::NoImprovement, &[3., 3.]);
        stop(out_of_time, [[3., 2., 1.], [1., 2., 3.]], Termination::MaxTime, &[2.]);
        stop(|rank| out_of_time(rank).each_iteration(), [[1.; 3]; 2], Termination::MaxTime, &[]);
        // One that finds no score is named by the other, which waits for it.
        let [(first, _), (second, _)] = ranks(|_| EarlyStopping::max_epochs(3), [[2., -1., 0.], [2., 1., 0.]]);
        assert_eq!(first.unwrap_err().to_string(), "no score");
        let error = second.unwrap_err().to_string();
        assert!(error.contains("rank 1 cannot go on: rank 0 failed: no score"), "{error}");
    });
}

/// A copy of the network runs the program's code: rank 0 panics in it.
#[test]
fn a_rank_that_panics_before_the_first_pass_is_named_by_the_others() {
    both(|| {
        let group = ThreadCommunicator::group(2).unwrap().into_iter().enumerate();
        let ranks = group.map(|(rank, own)| {
            thread::spawn(move || {
                let is_made = Mutex::new(false);
                let module = ModuleLayer::new("module", InputType::feed_forward(2), move |vb| {
                    let is_copy = std::mem::replace(&mut *is_made.lock().unwrap(), true);
                    assert!(!is_copy || rank == 1, "no copy");
                    Ok(Box::new(nn::linear(4, 2, vb)?))
                });
                let config = NetworkConfig::builder().input_type(InputType::feed_forward(4)).layer(module);
                let net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
                let mut wrapper = ParallelWrapper::builder(net).communicator(Box::new(own)).build().unwrap();
                EarlyStopping::max_epochs(2).fit(&mut wrapper, batches(24, 4), |_| Ok(1.))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let mut found = ranks.into_iter().map(thread::JoinHandle::join);
        assert!(found.next().unwrap().is_err());
        let error = found.next().unwrap().unwrap().unwrap_err().to_string();
        // Not that its thread ended: it may live, and keep its wrapper.
        assert!(error.contains("rank 1 cannot go on: rank 0 failed: the training was broken off"), "{error}");
    });
}

#[test]
fn networks_with_two_inputs_are_trained_too() {
    both(|| {
        let config = NetworkConfig::builder().seed(5).data_type(DType::F64).updater(Updater::sgd(0.1));
        let config = config.add_input("a", InputType::feed_forward(4)).add_input("b", InputType::feed_forward(4));
        let config = config.add_layer("hidden", Dense::new(6).activation(Activation::Tanh), &["a", "b"]);
        let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["hidden"]).set_outputs(&["out"]);
        let of = |n: usize| {
            let all = examples(n);
            let half = all.features.affine(0.5, 0.1).unwrap();
            MultiDataSet::new(vec![all.features, half], vec![all.labels]).unwrap()
        };
        let rows = |start: usize, len: usize| of(40).map(|array| array.narrow(0, start, len)).unwrap();
        let mut alone = config.clone().build().unwrap();
        alone.fit(ListDataIterator::new((0..4).map(|i| rows(10 * i, 10)).collect())).unwrap();
        let wrapper = ParallelWrapper::builder(config.build().unwrap()).training_mode(TrainingMode::SharedGradients);
        let mut wrapper = wrapper.build().unwrap();
        wrapper.fit(ListDataIterator::new((0..8).map(|i| rows(5 * i, 5)).collect())).unwrap();
        for (own, wanted) in numbers(&wrapper.model()).into_iter().zip(numbers(&alone)) {
            assert!((own - wanted).abs() < 1e-9, "{own} and {wanted}");
        }
    });
}

#[test]
fn bytes_of_workers_are_constant_over_epochs() {
    let test = "train::parallel_network::bytes_of_workers_are_constant_over_epochs";
    let body = || {
        gc::collect();
        let before = Device::Cpu.memory().active;
        let wrapper = ParallelWrapper::builder(network(Updater::adam(0.02), WorkspaceMode::Enabled));
        let mut wrapper = wrapper.workers(2).averaging_frequency(3).build().unwrap();
        let mut epoch = || {
            wrapper.fit(batches(60, 4)).unwrap();
            gc::collect();
            Device::Cpu.memory().active
        };
        // Workspaces that plan settle after some 16 steps by plan; another thread may disturb one later, which plans
        // anew. What grows with each epoch grows in each of these runs.
        (0..12).for_each(|_| assert!(epoch() > 0));
        let mut runs = (0..3).map(|_| (0..20).map(|_| epoch()).collect::<Vec<u64>>());
        assert!(runs.any(|run| run.iter().all(|&bytes| bytes <= run[0])), "bytes grow with the epochs");
        drop(wrapper);
        gc::collect();
        assert!(Device::Cpu.memory().active <= before, "all came back with the workers");
    };
    in_own_process(test, || both(body));
}

#[test]
fn many_callers_are_answered_as_by_the_network_alone() {
    both(|| {
        for mode in MODES {
            for inference in [InferenceMode::Sequential, InferenceMode::Batched, InferenceMode::InPlace] {
                let net = network(Updater::adam(0.01), mode);
                let all = examples(64);
                let wanted = net.output(&all.features).unwrap().to_vec2::<f64>().unwrap();
                let served = ParallelInference::builder(net).inference_mode(inference).workers(2).build().unwrap();
                thread::scope(|scope| {
                    for caller in 0..8 {
                        let (served, all, wanted) = (&served, &all, &wanted);
                        scope.spawn(move || {
                            for row in (caller..64).step_by(8) {
                                let input = all.features.narrow(0, row, 1).unwrap();
                                let got = served.output(&input).unwrap();
                                assert!(!got.is_attached());
                                for (own, wanted) in got.to_vec::<f64>().unwrap().into_iter().zip(&wanted[row]) {
                                    assert!((own - wanted).abs() < 1e-12, "{mode:?} {inference:?}");
                                }
                                assert!(served.output(&input.narrow(1, 0, 3).unwrap()).is_err());
                            }
                        });
                    }
                });
            }
        }
    });
}
