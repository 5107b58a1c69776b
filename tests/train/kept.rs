//! What is kept, and what is not: checkpoints and normalisers in files, what updaters keep, workspaces of models that
//! are gone.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ndgc::train::{
    Activation, DataSet, Dense, DropoutLayer, EarlyStopping, Embedding, FnDataIterator, InferenceMode, InputType,
    Layer, LayerSettings, ListDataSetIterator, Loss, Network, NetworkConfig, Normalizer, OutputLayer,
    ParallelInference, Termination, Updater, WorkspaceMode,
};
use ndgc::{DType, Device, Error, Tensor, memory};
use serde_json::{Value, json};

use super::both::both;
use super::network_layers::{numbers, one_hot};
use super::network_training::Folder;
use crate::common::{alone, assert_names_its_line, in_own_process};

fn network(seed: u64) -> Network {
    NetworkConfig::builder()
        .seed(seed)
        .data_type(DType::F64)
        .updater(Updater::adam(0.01))
        .inference_workspace_mode(WorkspaceMode::Single)
        .input_type(InputType::feed_forward(4))
        .layer(Dense::new(6).activation(Activation::Tanh))
        .layer(OutputLayer::new(3, Loss::Mcxent))
        .build()
        .unwrap()
}

fn batch() -> DataSet {
    DataSet::new(numbers(&[8, 4]), one_hot(&[8, 3])).unwrap()
}

fn params(net: &Network) -> Vec<f64> {
    net.params().flat_map(|(_, var)| var.as_detached_tensor().to_vec::<f64>().unwrap()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn checkpoints_keep_the_dots_of_their_names() {
    both(|| {
        let folder = Folder::new("dots");
        let nets = [1, 2].map(network);
        for (net, name) in nets.iter().zip(["run.1", "run.2"]) {
            net.save(folder.0.join(name)).unwrap();
        }
        let all = ["run.1-0.safetensors", "run.1.json", "run.2-0.safetensors", "run.2.json"];
        assert_eq!(names(&folder.0), all);
        for (net, name) in nets.iter().zip(["run.1", "run.2"]) {
            for name in [name.to_owned(), format!("{name}.json")] {
                let path = folder.0.join(name);
                let mut restored = network(3);
                restored.restore(&path).unwrap();
                assert_eq!(params(&restored), params(net));
                assert_eq!(params(&Network::load(&path, &Device::Cpu).unwrap()), params(net));
            }
        }
        // A name that has an ending of either file keeps to it.
        let folder = Folder::new("endings");
        nets[0].save(folder.0.join("model.json")).unwrap();
        for name in ["model", "model.json", "model.safetensors"] {
            assert_eq!(params(&Network::load(folder.0.join(name), &Device::Cpu).unwrap()), params(&nets[0]));
        }
        nets[1].save(folder.0.join("model.safetensors")).unwrap();
        assert_eq!(names(&folder.0), ["model-0b.safetensors", "model.json"]);
    });
}

#[cfg(unix)]
#[test]
fn a_link_to_a_checkpoint_stays_one() {
    both(|| {
        let folder = Folder::new("links");
        let [real, other] = ["real", "other"].map(|name| folder.0.join(name));
        [&real, &other].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        network(1).save(real.join("model")).unwrap();
        std::os::unix::fs::symlink(real.join("model.json"), other.join("model.json")).unwrap();
        let net = network(2);
        net.save(other.join("model")).unwrap();
        assert!(other.join("model.json").is_symlink());
        assert_eq!(names(&other), ["model.json"]);
        for folder in [real, other] {
            assert_eq!(params(&Network::load(folder.join("model"), &Device::Cpu).unwrap()), params(&net));
        }
    });
}

#[test]
fn a_file_that_cannot_take_its_name_leaves_nothing_beside() {
    both(|| {
        let folder = Folder::new("refused");
        let normalizer = Normalizer::image(0., 1., 255.);
        std::fs::create_dir(folder.0.join("taken")).unwrap();
        let error = normalizer.save(folder.0.join("taken")).unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
        assert_names_its_line(&error);
        assert_eq!(names(&folder.0), ["taken"]);

        let path = folder.0.join("normaliser.json");
        normalizer.save(&path).unwrap();
        normalizer.save(folder.0.join("normaliser.json/below")).unwrap_err();
        assert_eq!(Normalizer::load(&path).unwrap(), normalizer);
        assert_eq!(names(&folder.0), ["normaliser.json", "taken"]);
    });
}

/// In a container that begins again, processes have the numbers that they had before.
#[test]
fn what_a_killed_process_of_the_same_number_left_is_in_nobodys_way() {
    let test = "train::kept::what_a_killed_process_of_the_same_number_left_is_in_nobodys_way";
    let body = || {
        let folder = Folder::new("killed");
        for n in 0..20 {
            let part = format!(".model-0.safetensors.{}-{n}.part", std::process::id());
            std::fs::write(folder.0.join(part), b"half of").unwrap();
        }
        let net = network(1);
        net.save(folder.0.join("model")).unwrap();
        assert_eq!(params(&Network::load(folder.0.join("model"), &Device::Cpu).unwrap()), params(&net));
    };
    in_own_process(test, || alone(body));
}

#[test]
fn a_training_that_diverged_at_once_begins_again() {
    both(|| {
        let (mut net, mut fresh) = (network(1), network(1));
        let lost = DataSet::new(batch().features.affine(f64::NAN, 0.).unwrap(), batch().labels).unwrap();
        let stopping = EarlyStopping::max_epochs(3);
        let ended = stopping.fit(&mut net, ListDataSetIterator::new(vec![lost]), |net| Ok(net.score())).unwrap();
        assert_eq!((ended.reason, net.iteration()), (Termination::InvalidScore, 0));
        for net in [&mut net, &mut fresh] {
            net.fit_batch(&batch()).unwrap();
        }
        assert_eq!(params(&net), params(&fresh), "moments are those of a first step");
        // What the other has is taken.
        let mut other = network(2);
        other.follow(&net).unwrap();
        for net in [&mut net, &mut other] {
            net.fit_batch(&batch()).unwrap();
        }
        assert_eq!(params(&net), params(&other));
    });
}

#[test]
fn a_share_of_dropout_that_is_none_is_refused_with_its_layer() {
    both(|| {
        let build = |share: f64| {
            let config = NetworkConfig::builder().input_type(InputType::feed_forward(4)).layer(Dense::new(3));
            let settings = LayerSettings::new().dropout(share);
            config.layer(OutputLayer::new(2, Loss::Mse).with(settings)).build()
        };
        for share in [0., 0.5, 1. - f64::EPSILON] {
            build(share).unwrap();
        }
        for share in [1., 1.5, -0.1, f64::NAN, f64::INFINITY] {
            let error = build(share).unwrap_err();
            assert!(matches!(error, Error::Argument { argument: "dropout", .. }), "{error}");
            assert!(error.to_string().contains(&format!("dropout is {share} in layer 1 (")), "{error}");
            assert_names_its_line(&error);
            let alone = NetworkConfig::builder().input_type(InputType::feed_forward(4)).layer(DropoutLayer(share));
            let text = alone.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap_err().to_string();
            assert!(text.contains(&format!("share is {share}; it must be at least 0 and less than 1")), "{text}");
        }
        // Numbers of rows would be others, or none.
        let words = NetworkConfig::builder().input_type(InputType::feed_forward(1));
        let words = words.layer(Embedding::new(100, 3).with(LayerSettings::new().dropout(0.5)));
        let error = words.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "dropout", .. }), "{error}");
        assert_names_its_line(&error);
    });
}

/// Bytes of workspaces, on all threads.
fn workspace_bytes() -> u64 {
    memory::stats(&Device::Cpu).get("bytes.workspaces").unwrap()
}

#[test]
fn models_that_are_replaced_leave_no_workspaces_behind() {
    both(|| {
        for mode in [InferenceMode::Sequential, InferenceMode::Batched, InferenceMode::InPlace] {
            let before = workspace_bytes();
            let served = ParallelInference::builder(network(0)).inference_mode(mode).build().unwrap();
            let ((go, gone), (done, dones)) = (mpsc::channel(), mpsc::channel());
            thread::scope(|scope| {
                let (served, go) = (&served, go);
                // Another thread than the one that replaces models, and lets go of them.
                scope.spawn(move || {
                    for () in gone {
                        (0..4).for_each(|_| drop(served.output(&numbers(&[16, 4])).unwrap()));
                        done.send(()).unwrap();
                    }
                });
                let ask = || {
                    go.send(()).unwrap();
                    dones.recv().unwrap();
                    workspace_bytes() - before
                };
                let one = ask();
                assert!(one > 0);
                for update in 1..=20 {
                    served.update_model(network(update));
                    assert_eq!(ask(), one, "{mode:?}, update {update}");
                }
                // A model that is no network.
                served.update_model(|x: &Tensor| x.affine(2., 0.));
                assert_eq!(ask(), 0, "{mode:?}");
            });
        }
    });
}

#[test]
fn workers_without_requests_keep_no_workspaces_of_a_model_that_was_replaced() {
    both(|| {
        let before = workspace_bytes();
        let served = ParallelInference::builder(network(0)).inference_mode(InferenceMode::Sequential).workers(3);
        let served = served.build().unwrap();
        let (x, begin) = (numbers(&[2, 4]), Instant::now());
        let in_time = || assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", served.served());
        while served.served().contains(&0) {
            in_time();
            thread::scope(|scope| {
                (0..6).for_each(|_| drop(scope.spawn(|| (0..20).for_each(|_| drop(served.output(&x).unwrap())))));
            });
        }
        assert!(workspace_bytes() > before);
        served.update_model(network(1));
        while workspace_bytes() > before {
            in_time();
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_mask_that_does_not_fit_is_refused_and_changes_no_normaliser() {
    both(|| {
        let of = |features_mask: Option<Tensor>, labels_mask: Option<Tensor>| {
            let all = DataSet::with_masks(numbers(&[4, 3, 5]), numbers(&[4, 2]), features_mask, labels_mask);
            ListDataSetIterator::new(vec![all.unwrap()])
        };
        let mask = |dims: &[usize]| Some(Tensor::ones(dims, DType::F64, &Device::Cpu).unwrap());
        let mut normalizer = Normalizer::standardize().with_labels();
        for dims in [&[4, 3, 5][..], &[4, 5], &[4, 1, 5], &[4, 1], &[4], &[4, 1, 1]] {
            normalizer.fit(&mut of(mask(dims), mask(&[4, 2]))).unwrap();
        }
        let before = normalizer.clone();
        let features: [&[usize]; 7] = [&[4, 4], &[4, 3], &[4, 3, 1], &[4, 5, 3], &[4, 15], &[4, 5, 1], &[4, 1, 1, 5]];
        let wrong = features.map(|dims| of(mask(dims), None)).into_iter().chain([of(None, mask(&[4, 5]))]);
        for mut batches in wrong {
            let error = normalizer.fit(&mut batches).unwrap_err();
            assert!(matches!(error, Error::ShapeMismatch { op: "Normalizer::fit", .. }), "{error}");
            assert_names_its_line(&error);
            assert_eq!(normalizer, before);
        }
    });
}

/// Looked at numbers that are no short decimals.
fn looked() -> Normalizer {
    let x = numbers(&[7, 3]).affine(1. / 3., 0.1).unwrap();
    let mut normalizer = Normalizer::standardize().with_labels();
    normalizer.fit(&mut ListDataSetIterator::new(vec![DataSet::new(x.clone(), x).unwrap()])).unwrap();
    normalizer
}

#[test]
fn a_checkpoint_carries_a_normaliser() {
    both(|| {
        let folder = Folder::new("normaliser");
        let path = folder.0.join("model");
        let error = Network::add_normalizer_to_model(&path, &looked()).unwrap_err();
        assert!(matches!(error, Error::File { .. }) && error.to_string().contains("model.json"), "{error}");
        assert_names_its_line(&error);
        let mut net = network(1);
        net.fit_batch(&batch()).unwrap();
        net.save(&path).unwrap();
        let files = names(&folder.0);
        let found = || Network::restore_normalizer_from_file(&path).unwrap();
        assert_eq!(found(), None, "as of one that was written before there were any");
        Network::add_normalizer_to_model(&path, &looked()).unwrap();
        assert_eq!(found().unwrap().to_json(), looked().to_json(), "to the last bit");
        assert_eq!(names(&folder.0), files);

        // The network is what it was, and goes on.
        let mut loaded = Network::load(&path, &Device::Cpu).unwrap();
        let mut restored = network(2);
        restored.restore(&path).unwrap();
        let scores = [&mut net, &mut loaded, &mut restored].map(|net| {
            assert_eq!(net.iteration(), 1);
            (net.score().to_bits(), [(); 3].map(|()| net.fit_batch(&batch()).unwrap().to_bits()))
        });
        assert_eq!(scores, [scores[0]; 3]);

        let other = Normalizer::image(-1., 1., 255.);
        Network::add_normalizer_to_model(&path, &other).unwrap();
        assert_eq!(found(), Some(other), "in place of the one before");
        net.save(&path).unwrap();
        assert_eq!(found(), None, "a checkpoint that is written anew has none");
    });
}

#[test]
fn what_is_no_normaliser_in_a_checkpoint_is_refused() {
    both(|| {
        let folder = Folder::new("no-normaliser");
        let (path, index) = (folder.0.join("model"), folder.0.join("model.json"));
        network(1).save(&path).unwrap();
        Network::add_normalizer_to_model(&path, &looked()).unwrap();
        let good: Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
        let mut cut = good["normalizer"].clone();
        cut["features"][0]["scale"].as_array_mut().unwrap().pop();
        let wrong = [json!(1), json!("x"), json!([]), json!({}), json!({ "kind": "image" }), cut];
        for wrong in wrong {
            let mut damaged = good.clone();
            damaged["normalizer"] = wrong;
            std::fs::write(&index, damaged.to_string()).unwrap();
            let error = Network::restore_normalizer_from_file(&path).unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
            assert!(error.to_string().contains(&format!("{}: its `normalizer`", index.display())), "{error}");
            assert_names_its_line(&error);
            Network::load(&path, &Device::Cpu).unwrap();
        }
    });
}

#[test]
fn a_training_that_breaks_off_leaves_the_best_network() {
    both(|| {
        let batches = || ListDataSetIterator::new(vec![batch()]);
        let (mut net, mut calls, mut best) = (network(1), 0, Vec::new());
        let ended = EarlyStopping::max_epochs(9).fit(&mut net, batches(), |net| {
            calls += 1;
            match calls {
                2 => best = params(net),
                4 => return Err(Error::msg("no score")),
                _ => {}
            }
            Ok([3., 1., 2.][calls - 1])
        });
        assert!(ended.unwrap_err().to_string().contains("no score"));
        assert_eq!((params(&net), net.epoch()), (best, 2));
        // Where there is none it is as it was left.
        let mut net = network(1);
        let ended = EarlyStopping::max_epochs(9).fit(&mut net, batches(), |_| Err(Error::msg("no score")));
        assert!(ended.is_err() && net.epoch() == 1);
    });
}

/// P12: DL4J's conditions of iterations.
#[test]
fn training_stops_in_the_middle_of_a_pass_with_the_best_network() {
    both(|| {
        let of = |factor: f64| {
            let DataSet { features, labels, .. } = batch();
            DataSet::new(features, labels.affine(factor, 0.).unwrap()).unwrap()
        };
        // Batches of three passes of three; from the second of the last pass on, what they are in `after`.
        let run = |stopping: EarlyStopping, after: &DataSet, waits: Duration| {
            let (mut net, mut made, mut best, mut passes) = (network(1), 0, Vec::new(), 0.);
            let batches = FnDataIterator::new(|n| {
                made += usize::from(n < 3);
                let late = made > 7;
                thread::sleep(if late { waits } else { Duration::ZERO });
                Ok((n < 3).then(|| if late { after.clone() } else { batch() }))
            });
            let ended = stopping.each_iteration().fit(&mut net, batches, |net| {
                (best, passes) = (params(net), passes + 1.);
                Ok(5. - passes)
            });
            let ended = ended.unwrap();
            assert_eq!(made, 8, "{ended:?}: the pass breaks off after its second step");
            assert_eq!((ended.best_epoch, ended.best_score, ended.scores.as_slice()), (1, 3., &[4., 3.][..]));
            assert_eq!((params(&net), net.epoch(), net.iteration()), (best, 2, 6));
            ended.reason
        };
        let stopping = || EarlyStopping::max_epochs(3);
        assert_eq!(run(stopping(), &of(f64::NAN), Duration::ZERO), Termination::InvalidScore);
        assert_eq!(run(stopping().max_score(100.), &of(1e4), Duration::ZERO), Termination::MaxScore);
        let long = Duration::from_secs(1);
        assert_eq!(run(stopping().max_time(long), &batch(), long), Termination::MaxTime);

        // In the first pass there is no score: time leaves the network as it is, a score that ends it as it was.
        let (mut net, start) = (network(1), params(&network(1)));
        let list = || ListDataSetIterator::new(vec![batch(), batch(), batch()]);
        let ended = stopping().max_time(Duration::ZERO).each_iteration().fit(&mut net, list(), |_| Ok(0.)).unwrap();
        assert_eq!((ended.reason, ended.best_score, net.iteration()), (Termination::MaxTime, f64::INFINITY, 1));
        assert_ne!(params(&net), start);
        let ended = stopping().max_score(0.).each_iteration().fit(&mut net, list(), |_| Ok(0.)).unwrap();
        assert_eq!((ended.reason, ended.scores.len(), net.iteration()), (Termination::MaxScore, 0, 1));

        // Who did not ask for it is asked after the pass alone; a batch without examples is no step, and has no score.
        let lost = vec![batch(), of(f64::NAN), batch()];
        let ended = stopping().fit(&mut network(1), ListDataSetIterator::new(lost), |_| Ok(1.)).unwrap();
        assert_eq!((ended.reason, ended.scores.len()), (Termination::MaxEpochs, 3));
        let none = vec![batch().rows(0, 0).unwrap(), batch()];
        let ended = stopping().each_iteration().fit(&mut network(1), ListDataSetIterator::new(none), |_| Ok(1.));
        assert_eq!(ended.unwrap().reason, Termination::MaxEpochs);
    });
}
