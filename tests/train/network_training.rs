//! Training as a whole: epochs, resuming, stopping, series in segments, replicas, evaluations, errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ndgc::train::{
    Activation, AsyncDataSetIterator, BatchNormalization, CheckpointListener, DataIterator, DataSet, Dense,
    DropoutLayer, EarlyStopping, Embedding, Evaluation, Gru, IEvaluation, InputType, LastTimeStep, Layer, LayerConfig,
    LayerSettings, ListDataIterator, ListDataSetIterator, Loss, Lstm, ModuleLayer, Moments, MultiDataSet, Network,
    NetworkConfig, NetworkMemoryReport, OutputLayer, Schedule, ScheduleKind, ScheduleType, SimpleRnn, Termination,
    TrainingListener, Updater, WorkspaceMode,
};
use ndgc::{DType, Device, Error, Result, Tensor, Var, nn};

use super::both::both;
use super::network_layers::{MODES, numbers, one_hot};
use crate::common::assert_names_its_line;

/// A folder that ends with the test.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ndgc-network-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// With everything that a step depends on: dropout, running means, moments, a schedule.
fn config() -> NetworkConfig {
    let rate = Schedule::new(ScheduleType::Iteration, 0.02, ScheduleKind::Exponential { gamma: 0.9 });
    NetworkConfig::builder()
        .seed(7)
        .updater(Updater::adam(rate))
        .l2(1e-3)
        .input_type(InputType::feed_forward(4))
        .layer(Dense::new(6).activation(Activation::Tanh))
        .layer(BatchNormalization::new())
        .layer(DropoutLayer(0.3))
        .layer(OutputLayer::new(3, Loss::Mcxent))
}

fn batches() -> Vec<DataSet> {
    let (x, y) = (numbers(&[12, 4]).to_dtype(DType::F32).unwrap(), one_hot(&[12, 3]).to_dtype(DType::F32).unwrap());
    let all = DataSet::new(x, y).unwrap();
    (0..3).map(|i| all.rows(4 * i, 4).unwrap()).collect()
}

/// Keeps the scores.
#[derive(Clone, Debug, Default)]
struct Scores(Arc<Mutex<Vec<u64>>>);

impl TrainingListener for Scores {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        self.0.lock().unwrap().push(net.score().to_bits());
        Ok(())
    }
}

fn scores_of(net: &mut Network, epochs: usize) -> Vec<u64> {
    let scores = Scores::default();
    net.add_listener(scores.clone());
    net.fit_epochs(ListDataSetIterator::new(batches()), epochs).unwrap();
    net.take_listeners();
    scores.0.lock().unwrap().clone()
}

#[test]
fn a_training_that_was_stopped_goes_on_to_the_last_digit() {
    both(|| {
        let folder = Folder::new("resume");
        for mode in MODES {
            let config = config().training_workspace_mode(mode);
            let whole = scores_of(&mut config.clone().build().unwrap(), 6);
            let mut first = config.clone().build().unwrap();
            let mut parts = scores_of(&mut first, 2);
            first.save(folder.0.join("model")).unwrap();
            drop(first);
            let mut second = config.seed(7).build().unwrap();
            second.restore(folder.0.join("model")).unwrap();
            assert_eq!((second.iteration(), second.epoch()), (6, 2));
            parts.extend(scores_of(&mut second, 4));
            assert_eq!(parts, whole, "{mode:?}");
        }
    });
}

#[test]
fn a_checkpoint_is_whole_whatever_comes_between() {
    both(|| {
        let (folder, batch) = (Folder::new("whole"), &batches()[0]);
        let path = folder.0.join("model");
        let mut net = config().build().unwrap();
        net.add_listener(CheckpointListener::new(&path).every(2));
        for _ in 0..5 {
            net.fit_batch(batch).unwrap();
        }
        assert_eq!(folder.files(), ["model-4.safetensors", "model.json"], "the ones before are gone");
        net.take_listeners();
        let read = || {
            let mut net = config().build().unwrap();
            net.restore(&path).map(|()| (net.iteration(), net.param("0_W").unwrap().to_vec::<f32>().unwrap()))
        };
        let saved = read().unwrap();
        // The arrays of the next one are there, and the program ends before the JSON is.
        std::fs::write(folder.0.join("model-5.safetensors"), b"half of").unwrap();
        std::fs::write(folder.0.join("model.json.77"), b"{\"for").unwrap();
        assert_eq!(read().unwrap(), saved);
        // Twice at one step: what the JSON names is not written over.
        let mut again = config().build().unwrap();
        again.restore(&path).unwrap();
        again.save(&path).unwrap();
        assert_eq!(read().unwrap(), saved);
        assert!(folder.files().contains(&"model-4b.safetensors".to_owned()));

        // A file that is damaged or of something else is refused, and changes nothing.
        let before = again.param("0_W").unwrap().to_vec::<f32>().unwrap();
        std::fs::write(folder.0.join("model-4b.safetensors"), b"damaged").unwrap();
        assert!(matches!(again.restore(&path), Err(Error::File { .. })));
        std::fs::write(folder.0.join("model.json"), b"{}").unwrap();
        assert!(again.restore(&path).unwrap_err().to_string().contains("format"));
        assert!(again.restore(folder.0.join("nothing")).is_err());
        let other =
            NetworkConfig::builder().input_type(InputType::feed_forward(4)).layer(OutputLayer::new(3, Loss::Mse));
        let other = other.build().unwrap();
        other.save(&path).unwrap();
        assert!(again.restore(&path).unwrap_err().to_string().contains("OutputLayer"));
        // With other updaters: their arrays are not the network's.
        let mut momentum = config().updater(Updater::nesterovs(0.1, 0.9)).build().unwrap();
        momentum.fit_batch(batch).unwrap();
        momentum.save(&path).unwrap();
        let error = again.restore(&path).unwrap_err().to_string();
        assert!(error.contains("the network's keep 12; build the network with the updaters"), "{error}");
        let mut running = config().updater(Updater::rms_prop(0.1)).build().unwrap();
        running.fit_batch(batch).unwrap();
        running.save(&path).unwrap();
        let error = again.restore(&path).unwrap_err().to_string();
        assert!(error.contains("nothing that the network's updaters keep"), "{error}");
        assert!(error.contains("Network::load() it, and give its params() to set_params()"), "{error}");
        let values = |net: &Network| net.param("0_W").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(values(&again), before);
        // As the error says.
        let saved = Network::load(&path, &Device::Cpu).unwrap();
        again.set_params(saved.params().map(|(name, var)| (name, var.as_tensor()))).unwrap();
        assert_eq!(values(&again), values(&running));
        assert!(again.fit_batch(batch).unwrap().is_finite(), "with its own updater");
    });
}

#[test]
fn training_stops_when_it_does_not_help() {
    both(|| {
        let mut net = config().build().unwrap();
        let mut calls = 0;
        // Scores 5, 4, 3, 9, 9, ...
        let score = |net: &Network| {
            calls += 1;
            assert_eq!(net.epoch(), calls);
            Ok(if calls <= 3 { 6. - calls as f64 } else { 9. })
        };
        let stopping = EarlyStopping::max_epochs(50).patience(4);
        let ended = stopping.fit(&mut net, ListDataSetIterator::new(batches()), score).unwrap();
        assert_eq!((ended.reason, ended.best_epoch, ended.best_score), (Termination::NoImprovement, 2, 3.));
        assert_eq!((ended.scores.len(), net.epoch()), (7, 3), "four passes did not help; the network is the best one");
        let nan =
            EarlyStopping::max_epochs(5).fit(&mut net, ListDataSetIterator::new(batches()), |_| Ok(f64::NAN)).unwrap();
        assert_eq!((nan.reason, nan.scores.len()), (Termination::InvalidScore, 1));
        let short = EarlyStopping::max_epochs(5).max_time(std::time::Duration::ZERO);
        let ended = short.fit(&mut net, ListDataSetIterator::new(batches()), |net| Ok(net.score())).unwrap();
        assert_eq!(ended.reason, Termination::MaxTime);
        for (score, reason, passes) in [(2.5, Termination::MaxScore, 1), (2., Termination::MaxEpochs, 3)] {
            let bounded = EarlyStopping::max_epochs(3).max_score(2.);
            let ended = bounded.fit(&mut net, ListDataSetIterator::new(batches()), |_| Ok(score)).unwrap();
            assert_eq!((ended.reason, ended.scores.len()), (reason, passes), "a score of {score}");
        }
        let mut scores = [3., 2.5, 2.2, 1.].into_iter();
        let good = EarlyStopping::max_epochs(9).min_improvement(1.).target_score(2.2);
        let ended = good.fit(&mut net, ListDataSetIterator::new(batches()), |_| Ok(scores.next().unwrap())).unwrap();
        assert_eq!((ended.reason, ended.best_epoch, ended.best_score), (Termination::TargetScore, 2, 2.2));
        for by in [f64::NAN, f64::INFINITY] {
            let never = EarlyStopping::max_epochs(5).min_improvement(by);
            let error = never.fit(&mut net, ListDataSetIterator::new(batches()), |net| Ok(net.score())).unwrap_err();
            assert!(matches!(error, Error::Argument { argument: "min_improvement", .. }), "{error}");
        }
    });
}

/// N4, N5: a series in pieces is the series; its training is a step a segment.
#[test]
fn a_series_may_come_in_pieces() {
    both(|| {
        for mode in MODES {
            let config = NetworkConfig::builder().data_type(DType::F64).training_workspace_mode(mode);
            let config = config.inference_workspace_mode(mode).updater(Updater::sgd(0.1)).tbptt_length(5);
            let config = config.input_type(InputType::recurrent(3)).layer(Lstm::new(4)).layer(Gru::new(4));
            let mut net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let x = numbers(&[2, 3, 20]);
            let whole = net.output(&x).unwrap().to_vec3::<f64>().unwrap();
            for (step, x) in (0..20).map(|step| (step, x.get_on_dim(2, step).unwrap())) {
                let y = net.rnn_time_step(&x).unwrap().to_vec2::<f64>().unwrap();
                let same = (0..2).all(|n| (0..2).all(|k| (y[n][k] - whole[n][k][step]).abs() < 1e-14));
                assert!(same, "{mode:?}, step {step}");
            }
            net.rnn_clear_previous_state();
            let half = net.rnn_time_step(&x.narrow(2, 0, 10).unwrap()).unwrap();
            assert!((half.to_vec3::<f64>().unwrap()[1][0][9] - whole[1][0][9]).abs() < 1e-14);
            net.rnn_clear_previous_state();
            let batch = DataSet::new(x, one_hot(&[2, 2, 20])).unwrap();
            for fit in 1..=3 {
                net.fit_batch(&batch).unwrap();
                assert_eq!(net.iteration(), 4 * fit, "four segments of five steps");
            }
        }
    });
}

#[test]
fn replicas_share_nothing_and_gradients_travel() {
    both(|| {
        let all = batches();
        let config = || {
            let config =
                NetworkConfig::builder().seed(1).updater(Updater::adam(0.01)).input_type(InputType::feed_forward(4));
            config.layer(Dense::new(5).activation(Activation::Tanh)).layer(OutputLayer::new(3, Loss::Mcxent))
        };
        let mut net = config().build().unwrap();
        net.fit_batch(&all[0]).unwrap();
        let mut replica = net.replica().unwrap();
        let before = net.param("0_W").unwrap().to_vec::<f32>().unwrap();
        // On another thread, with gradients computed there and applied here.
        let (gradients, expected) = std::thread::scope(|scope| {
            let work = || {
                let (gradients, score) = replica.compute_gradient_and_score(&all[1]).unwrap();
                assert_eq!(replica.fit_batch(&all[1]).unwrap().to_bits(), score.to_bits());
                (gradients, replica.param("0_W").unwrap().to_vec::<f32>().unwrap())
            };
            scope.spawn(work).join().unwrap()
        });
        assert_eq!(net.param("0_W").unwrap().to_vec::<f32>().unwrap(), before);
        net.apply_gradients(&gradients).unwrap();
        assert_eq!(net.param("0_W").unwrap().to_vec::<f32>().unwrap(), expected, "as the replica's own step");
        assert_eq!(net.iteration(), 2);
        let names: Vec<String> = net.updater_state().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[..3], ["0_W/M", "0_W/V", "0_b/M"]);
        let unknown = vec![("9_W".to_owned(), gradients[0].1.clone())];
        assert!(matches!(net.apply_gradients(&unknown), Err(Error::CannotFindTensor { .. })));
    });
}

/// Threads may share a network for its outputs.
#[test]
fn a_network_answers_several_threads() {
    both(|| {
        for mode in MODES {
            let net = config().inference_workspace_mode(mode).build().unwrap();
            let _: &(dyn Send + Sync) = &net;
            let all = batches();
            let expected: Vec<Vec<f32>> =
                all.iter().map(|batch| net.output(&batch.features).unwrap().to_vec::<f32>().unwrap()).collect();
            std::thread::scope(|scope| {
                for (batch, expected) in all.iter().zip(&expected) {
                    let net = &net;
                    scope.spawn(move || {
                        for _ in 0..20 {
                            assert_eq!(net.output(&batch.features).unwrap().to_vec::<f32>().unwrap(), *expected);
                        }
                        net.release_workspaces().unwrap();
                    });
                }
            });
        }
    });
}

#[test]
fn memory_is_reported_by_layer() {
    both(|| {
        let mut net = config().build().unwrap();
        net.fit_batch(&batches()[0]).unwrap();
        let text = net.memory_report().unwrap();
        for part in ["0 (Dense)", "1 (BatchNormalization)", "WS_ALL_LAYERS_PLANNED#", "device cpu"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
}

/// N14.
#[test]
fn memory_is_reported_before_there_is_a_network() {
    both(|| {
        let module = ModuleLayer::new("module", InputType::feed_forward(8), |vb| Ok(Box::new(nn::linear(6, 8, vb)?)));
        let of = InputType::feed_forward(4);
        let graph = NetworkConfig::builder().data_type(DType::F64).updater(Updater::nesterovs(0.1, 0.9));
        let graph = graph.add_input("a", of).add_input("b", of).add_layer("hidden", Dense::new(6), &["a", "b"]);
        let frozen = Dense::new(5).with(LayerSettings::new().updater(Updater::NoOp));
        let graph = graph.add_layer("module", module, &["hidden"]).add_layer("frozen", frozen, &["module"]);
        let graph = graph.add_layer("out", OutputLayer::new(3, Loss::Mcxent), &["frozen"]).set_outputs(&["out"]);
        let alone = batches()[0].clone();
        let wide = alone.map(|array| array.to_dtype(DType::F64)).unwrap();
        let pair = MultiDataSet::new(vec![wide.features; 2], vec![wide.labels]).unwrap();
        for (config, batch, bytes) in [
            // Adam keeps two of each, and nothing of running means.
            (config(), alone.into(), [4 * (30 + 24 + 21), 4 * 2 * (30 + 12 + 21), 4 * (6 + 6 + 6 + 3)]),
            (graph, pair, [8 * (54 + 56 + 45 + 18), 8 * (54 + 56 + 18), 8 * (8 + 6 + 8 + 5 + 3)]),
        ] {
            let report = config.memory_report().unwrap();
            assert_eq!(
                [report.parameter_bytes(), report.updater_bytes(), report.activation_bytes(1)],
                bytes,
                "{report}"
            );
            assert_eq!(report.activation_bytes(100), 100 * bytes[2]);
            assert_eq!(NetworkMemoryReport::from_json(&report.to_json()).unwrap(), report);
            // It is what the network then has.
            let mut net = config.build().unwrap();
            net.fit_batch(&batch).unwrap();
            let text = net.memory_report().unwrap();
            assert!(text.starts_with(&report.to_string()), "{report}\n{text}");
        }
        // The common stream stays where it is.
        let drawn = |asks: bool| {
            Device::Cpu.set_seed(5).unwrap();
            let module = ModuleLayer::new("m", of, |vb| Ok(Box::new(nn::linear(4, 4, vb)?)));
            let config = NetworkConfig::builder().input_type(of).layer(module);
            if asks {
                config.memory_report().unwrap();
            }
            Tensor::rand(0f32, 1., 4, &Device::Cpu).unwrap().to_vec::<f32>().unwrap()
        };
        assert_eq!(drawn(true), drawn(false));
    });
}

#[test]
fn a_report_of_memory_says_what_cannot_be_and_has_no_end_of_sizes() {
    both(|| {
        let of = InputType::feed_forward(4);
        let error = NetworkConfig::builder().input_type(of).layer(Lstm::new(3)).memory_report().unwrap_err();
        assert!(error.to_string().contains("layer 0 (LSTM)"), "{error}");
        assert_names_its_line(&error);
        let large = NetworkConfig::builder().input_type(of).layer(Dense::new(1 << 62));
        let large = large.layer(OutputLayer::new(1 << 40, Loss::Mse)).memory_report().unwrap();
        assert_eq!((large.parameter_bytes(), large.activation_bytes(9)), (usize::MAX, usize::MAX));
        let error = NetworkMemoryReport::from_json("{\"layers\":[{\"name\":1}]}").unwrap_err();
        assert!(matches!(error, Error::File { .. }) && error.to_string().contains("`layers.0.name` is 1"), "{error}");
        assert_names_its_line(&error);
    });
}

#[test]
fn frozen_layers_stay_and_state_is_saved_by_name() {
    both(|| {
        let config = NetworkConfig::builder().input_type(InputType::feed_forward(4));
        let frozen = Dense::new(5).with(LayerSettings::new().updater(Updater::NoOp));
        let mut net = config.layer(frozen).layer(OutputLayer::new(3, Loss::Mcxent)).build().unwrap();
        let values = |net: &Network, name: &str| net.param(name).unwrap().to_vec::<f32>().unwrap();
        let before = ["0_W", "0_b", "1_W"].map(|name| values(&net, name));
        net.fit_batch(&batches()[0]).unwrap();
        let after = ["0_W", "0_b", "1_W"].map(|name| values(&net, name));
        assert!(before[..2] == after[..2] && before[2] != after[2]);
        assert!(net.summary().contains("Trainable: 18\nFrozen: 25"), "{}", net.summary());
    });
}

/// Holds the weights of the first layer within bounds after each step, as a constraint of DL4J does.
#[derive(Debug)]
struct Bounded;

impl TrainingListener for Bounded {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        let weights = net.param("0_W").expect("a dense layer").as_detached_tensor();
        net.set_param("0_W", &weights.clamp(-0.1, 0.1)?)
    }
}

#[test]
fn weights_are_bounded_by_a_listener_and_carried_over_by_their_names() {
    both(|| {
        let weights = |net: &Network| net.param("0_W").unwrap().to_vec::<f32>().unwrap();
        let mut net = config().build().unwrap();
        assert!(weights(&net).iter().any(|w| w.abs() > 0.1));
        net.add_listener(Bounded);
        net.fit(ListDataSetIterator::new(batches())).unwrap();
        assert!(weights(&net).iter().all(|w| w.abs() <= 0.1));
        let other = config().seed(8).build().unwrap();
        let first = net.params().filter(|(name, _)| name.starts_with("0_"));
        other.set_params(first.map(|(name, var)| (name, var.as_tensor()))).unwrap();
        assert_eq!(weights(&other), weights(&net));
        assert_ne!(
            other.param("3_W").unwrap().to_vec::<f32>().unwrap(),
            net.param("3_W").unwrap().to_vec::<f32>().unwrap()
        );
    });
}

#[test]
fn evaluations_see_every_batch_once() {
    both(|| {
        for mode in MODES {
            let mut net = config().inference_workspace_mode(mode).build().unwrap();
            net.fit_epochs(ListDataSetIterator::new(batches()), 3).unwrap();
            let mut found = Evaluation::new(3);
            net.do_evaluation(ListDataSetIterator::new(batches()), &mut [&mut found as &mut dyn IEvaluation]).unwrap();
            let all = DataSet::merge(&batches()).unwrap();
            let mut expected = Evaluation::new(3);
            expected.eval(&all.labels, &net.output(&all.features).unwrap(), None).unwrap();
            assert_eq!(found.stats(), expected.stats(), "{mode:?}");
            assert_eq!(net.evaluate(ListDataSetIterator::new(batches())).unwrap().stats(), expected.stats());
        }
    });
}

/// Gives two batches, then an error.
struct Failing(usize);

impl Iterator for Failing {
    type Item = Result<DataSet>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0 += 1;
        Some(if self.0 == 3 { Err(Error::msg("the third batch is bad")) } else { Ok(batches()[0].clone()) })
    }
}

impl DataIterator<DataSet> for Failing {
    fn reset(&mut self) -> Result<()> {
        self.0 = 0;
        Ok(())
    }
}

/// Refuses the second step.
#[derive(Debug)]
struct Refuses;

impl TrainingListener for Refuses {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        if net.iteration() == 2 { Err(Error::msg("enough")) } else { Ok(()) }
    }
}

#[test]
fn an_error_ends_fit_and_the_network_goes_on() {
    both(|| {
        for mode in MODES {
            let mut net = config().training_workspace_mode(mode).build().unwrap();
            assert!(net.fit(Failing(0)).unwrap_err().to_string().contains("the third batch is bad"));
            assert_eq!((net.iteration(), net.epoch()), (2, 0));
            assert!(net.workspaces().iter().all(|space| !space.is_open()));
            let mut net = config().training_workspace_mode(mode).build().unwrap();
            net.add_listener(Refuses);
            assert!(net.fit(ListDataSetIterator::new(batches())).unwrap_err().to_string().contains("enough"));
            assert_eq!(net.take_listeners().len(), 1, "the listener is there");
            net.fit(ListDataSetIterator::new(batches())).unwrap();
            let wrong = Tensor::ones((4, 9), DType::F32, &Device::Cpu).unwrap();
            assert!(net.fit_arrays(&wrong, &batches()[0].labels).is_err());
            assert!(net.fit_batch(&batches()[0]).unwrap().is_finite());
        }
    });
}

/// Penalties, normalisation and updaters are the same however the gradients were found.
#[test]
fn modes_may_change_in_the_middle_of_training() {
    both(|| {
        let run = |modes: &[WorkspaceMode]| {
            let mut net = config().build().unwrap();
            let mut scores = Vec::new();
            for mode in modes {
                net.set_workspace_modes(*mode, *mode).unwrap();
                scores.extend(batches().iter().map(|batch| net.fit_batch(batch).unwrap().to_bits()));
            }
            scores
        };
        assert_eq!(run(&MODES), run(&[WorkspaceMode::Enabled; 4]));
    });
}

/// Batches that another thread makes ahead lie in its ring, and train as those that are there.
#[test]
fn batches_may_be_made_ahead() {
    both(|| {
        for mode in MODES {
            let scores = |ahead: bool| {
                let mut net = config().training_workspace_mode(mode).build().unwrap();
                let scores = Scores::default();
                net.add_listener(scores.clone());
                let plain = ListDataSetIterator::new(batches());
                match ahead {
                    true => net.fit_epochs(AsyncDataSetIterator::new(plain).unwrap(), 3).unwrap(),
                    false => net.fit_epochs(plain, 3).unwrap(),
                }
                net.take_listeners();
                let found =
                    net.evaluate(AsyncDataSetIterator::new(ListDataSetIterator::new(batches())).unwrap()).unwrap();
                (scores.0.lock().unwrap().clone(), found.stats())
            };
            assert_eq!(scores(true), scores(false), "{mode:?}");
        }
    });
}

/// N8: a graph with an embedding, an LSTM and its last step, over an iterator of batches with several inputs.
#[test]
fn a_graph_trains_over_an_iterator() {
    both(|| {
        for mode in MODES {
            let config = NetworkConfig::builder().seed(4).updater(Updater::adam(0.05)).training_workspace_mode(mode);
            let mut net = config
                .inference_workspace_mode(mode)
                .add_input("words", InputType::recurrent(1))
                .add_input("row", InputType::feed_forward(3))
                .add_layer("embedding", Embedding::sequence(7, 4), &["words"])
                .add_layer("lstm", Lstm::new(5), &["embedding"])
                .add_layer("last", LastTimeStep, &["lstm"])
                .add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["last", "row"])
                .set_outputs(&["out"])
                .build()
                .unwrap();
            let words =
                Tensor::from_vec((0..24).map(|i| i * 5 % 7).collect::<Vec<u32>>(), (4, 6), &Device::Cpu).unwrap();
            let features = vec![words, numbers(&[4, 3]).to_dtype(DType::F32).unwrap()];
            let batch = MultiDataSet::new(features, vec![one_hot(&[4, 2])]).unwrap();
            let first = net.score_batch(&batch, false).unwrap();
            net.fit_epochs(ListDataIterator::new(vec![batch.clone(); 5]), 6).unwrap();
            assert!(net.score_batch(&batch, false).unwrap() < first / 2., "{mode:?}");
            assert_eq!((net.iteration(), net.epoch()), (30, 6));
            assert_eq!(net.outputs(&batch.features, &[]).unwrap()[0].dims(), [4, 2]);
        }
    });
}

/// Numbers below the normal ones cost many times as much; rounded, they never become 0 by themselves.
#[test]
fn moments_that_no_gradient_reaches_any_more_end_at_zero() {
    both(|| {
        let moments = Moments::new(0.01);
        let adam_w = Updater::AdamW { moments, decay: 0. };
        // What the first step leaves, and after how many others without a gradient it is below the normal numbers.
        let cases = [
            (Updater::Adam(moments), 0.1f32, 900),
            (adam_w, 0.1, 900),
            (Updater::AmsGrad(moments), 0.1, 900),
            (Updater::Nadam(moments), 0.1, 900),
            (Updater::AdaMax(moments), 0.1, 900),
            (Updater::nesterovs(0.01, 0.9), -0.01, 900),
            (Updater::rms_prop(0.01), 0.05, 1700),
            (Updater::AdaDelta { rho: 0.95, epsilon: 1e-6 }, 0.05, 1700),
        ];
        for (updater, first, steps) in cases {
            let of = |value: f32| Tensor::full(value, 8, &Device::Cpu).unwrap();
            let param = Var::from_tensor(&of(1.)).unwrap();
            let state: Vec<Tensor> = updater.state().iter().map(|_| of(0.)).collect();
            updater.step(&param, &of(1.), &state, 0.01, 1).unwrap();
            assert_eq!(state[0].to_vec::<f32>().unwrap(), [first; 8], "{updater:?}");
            for t in 2..steps {
                updater.step(&param, &of(0.), &state, 0.01, t).unwrap();
            }
            assert_eq!(state[0].to_vec::<f32>().unwrap(), [0.; 8], "{updater:?}");
            assert!(param.as_detached_tensor().to_vec::<f32>().unwrap().iter().all(|x| x.is_normal()), "{updater:?}");
        }
    });
}

/// N5: numbers `[n, t]` are a series too, and a row that happens to be as long is none.
#[test]
fn series_of_numbers_are_cut_and_rows_are_not() {
    both(|| {
        let config = NetworkConfig::builder().seed(4).data_type(DType::F64).updater(Updater::sgd(0.1)).tbptt_length(5);
        let config = config.add_input("words", InputType::recurrent(1)).add_input("row", InputType::feed_forward(12));
        let config = config.add_layer("embedding", Embedding::sequence(7, 4), &["words"]);
        let config = config.add_layer("lstm", Lstm::new(5), &["embedding"]);
        let config = config.add_layer("last", LastTimeStep, &["lstm"]);
        let config = config.add_layer("steps", OutputLayer::new(2, Loss::Mcxent), &["lstm"]);
        let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["last", "row"]);
        let config = config.set_outputs(&["steps", "out"]);
        let ids = Tensor::from_vec((0..24u32).map(|i| i * 5 % 7).collect::<Vec<_>>(), (2, 12), &Device::Cpu).unwrap();
        let column = ids.reshape((2, 1, 12)).unwrap();
        let mut trained = Vec::new();
        for ids in [ids, column] {
            let mut net = config.clone().build().unwrap();
            let labels = vec![one_hot(&[2, 2, 12]), one_hot(&[2, 2])];
            net.fit_batch(&MultiDataSet::new(vec![ids, numbers(&[2, 12])], labels).unwrap()).unwrap();
            assert_eq!(net.iteration(), 3, "segments of five, five and two steps");
            trained.push(net.param("lstm_W").unwrap().as_detached_tensor().to_vec::<f64>().unwrap());
        }
        assert_eq!(trained[0], trained[1]);
    });
}

#[test]
fn a_series_that_ends_early_leaves_nothing_for_the_next_one() {
    both(|| {
        let config = NetworkConfig::builder().data_type(DType::F64).tbptt_length(4).updater(Updater::sgd(0.));
        let config = config.input_type(InputType::recurrent(3)).layer(Lstm::new(4));
        let mut net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
        net.add_listener(Refuses);
        let x = numbers(&[2, 3, 12]);
        net.fit_batch(&DataSet::new(x.clone(), one_hot(&[2, 2, 12])).unwrap()).unwrap_err();
        assert_eq!(net.iteration(), 2, "it ended after the second segment");
        let begun = net.rnn_time_step(&x).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(begun, net.output(&x).unwrap().to_vec::<f64>().unwrap());
    });
}

/// Other examples do not go on with what these left.
#[test]
fn a_series_goes_on_with_as_many_examples() {
    both(|| {
        for layer in [LayerConfig::from(Lstm::new(4)), Gru::new(4).into(), SimpleRnn::new(4).into()] {
            let config = NetworkConfig::builder().data_type(DType::F64).input_type(InputType::recurrent(3));
            let net = config.layer(layer).layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let (two, three) = (numbers(&[2, 3, 4]), numbers(&[3, 3, 4]));
            let whole = net.output(&two).unwrap();
            net.rnn_time_step(&two.narrow(2, 0, 3).unwrap()).unwrap();
            let error = net.rnn_time_step(&three).unwrap_err();
            assert!(error.to_string().contains("rnn_clear_previous_state() begins the next one"), "{error}");
            let last = net.rnn_time_step(&two.get_on_dim(2, 3).unwrap()).unwrap().to_vec2::<f64>().unwrap();
            let wanted = whole.get_on_dim(2, 3).unwrap().to_vec2::<f64>().unwrap();
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-14;
            assert!(last.concat().iter().zip(&wanted.concat()).all(near), "the series went on");
            net.rnn_clear_previous_state();
            let begun = net.rnn_time_step(&three).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(begun, net.output(&three).unwrap().to_vec::<f64>().unwrap());
        }
    });
}

/// Asks step by step, as for a sample of text, after each step of training; or panics after the second one.
#[derive(Debug)]
struct Asks {
    series: Tensor,
    panics: bool,
}

impl TrainingListener for Asks {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        assert!(!self.panics || net.iteration() < 2, "enough");
        let wanted = net.output(&self.series)?.to_vec::<f64>()?;
        for _ in 0..2 {
            assert_eq!(net.rnn_time_step(&self.series)?.to_vec::<f64>()?, wanted, "a series of its own");
            net.rnn_clear_previous_state();
        }
        net.rnn_time_step(&self.series).map(drop)
    }
}

#[test]
fn a_listener_that_asks_step_by_step_leaves_a_series_in_segments_alone() {
    both(|| {
        for mode in MODES {
            let config = NetworkConfig::builder().data_type(DType::F64).training_workspace_mode(mode).tbptt_length(4);
            let config = config.updater(Updater::sgd(0.5)).input_type(InputType::recurrent(3));
            let config = config.layer(Lstm::new(4)).layer(Gru::new(3)).layer(OutputLayer::new(2, Loss::Mcxent));
            let (x, asked) = (numbers(&[2, 3, 10]), numbers(&[1, 3, 2]));
            let batch = DataSet::new(x.clone(), one_hot(&[2, 2, 10])).unwrap();
            let mut alone = config.clone().build().unwrap();
            alone.fit_batch(&batch).unwrap();
            let mut heard = config.clone().build().unwrap();
            heard.add_listener(Asks { series: asked.clone(), panics: false });
            heard.fit_batch(&batch).unwrap();
            let all = |net: &Network| -> Vec<f64> {
                net.params().flat_map(|(_, var)| var.as_detached_tensor().to_vec::<f64>().unwrap()).collect()
            };
            assert_eq!(all(&heard), all(&alone), "{mode:?}");

            let mut broken = config.build().unwrap();
            broken.add_listener(Asks { series: asked, panics: true });
            assert!(catch_unwind(AssertUnwindSafe(|| broken.fit_batch(&batch))).is_err());
            let begun = broken.rnn_time_step(&x).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(begun, broken.output(&x).unwrap().to_vec::<f64>().unwrap(), "{mode:?}: it left nothing");
        }
    });
}

/// What a layer keeps of one thread's way forward is not taken by another's way back.
#[test]
fn gradients_asked_for_by_several_threads_are_those_of_one() {
    both(|| {
        for mode in MODES {
            let config = NetworkConfig::builder().seed(2).data_type(DType::F64).training_workspace_mode(mode);
            let config = config.input_type(InputType::recurrent(3)).layer(Lstm::new(6));
            let net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let found = |scale: f64| {
                let x = numbers(&[2, 3, 5]).affine(scale, 0.).unwrap();
                let (all, _) = net.compute_gradient_and_score(&DataSet::new(x, one_hot(&[2, 2, 5])).unwrap()).unwrap();
                all.iter().flat_map(|(_, grad)| grad.to_vec::<f64>().unwrap()).collect::<Vec<f64>>()
            };
            let wanted = [found(1.), found(-2.)];
            std::thread::scope(|scope| {
                for (scale, wanted) in [1., -2.].into_iter().zip(&wanted) {
                    scope.spawn(move || (0..60).for_each(|_| assert_eq!(found(scale), *wanted, "{mode:?}")));
                }
            });
        }
    });
}

#[test]
fn gradients_by_name_come_in_any_order_and_are_a_step_that_listeners_see() {
    both(|| {
        let scores = Scores::default();
        let mut net = config().build().unwrap();
        net.add_listener(scores.clone());
        let (mut gradients, _) = net.compute_gradient_and_score(&batches()[0]).unwrap();
        let mut other = net.replica().unwrap();
        net.apply_gradients(&gradients).unwrap();
        gradients.reverse();
        other.apply_gradients(&gradients).unwrap();
        let all = |net: &Network| -> Vec<f32> {
            net.params().flat_map(|(_, var)| var.as_detached_tensor().to_vec::<f32>().unwrap()).collect()
        };
        assert_eq!(all(&net), all(&other));
        assert_eq!((net.iteration(), scores.0.lock().unwrap().len()), (1, 1));
        gradients[0].0 = "9_W".to_owned();
        assert!(matches!(net.apply_gradients(&gradients), Err(Error::CannotFindTensor { .. })));
        assert_eq!(net.iteration(), 1);
    });
}
