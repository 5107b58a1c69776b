//! What an audit of what is around networks found: data, workers, evaluations, checkpoints.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::train::{
    Activation, ArrayDataSetIterator, AsyncDataSetIterator, BatchNormalization, BinaryCounts, Communicator,
    CsvDataSetIterator, CsvLabels, DataSet, Dense, Evaluation, EvaluationBinary, EvaluationCalibration, GraphVertex,
    IEvaluation, InputType, Layer, ListDataSetIterator, Loss, Model, Network, NetworkConfig, Normalizer, OutputLayer,
    ParallelInference, ParallelWrapper, Pass, RegressionEvaluation, RocBinary, RocMultiClass, SubsetVertex,
    ThreadCommunicator, TrainingMode, Updater, WorkspaceMode,
};
use ndgc::{DType, Device, Error, Result, Tensor, gc};
use serde_json::{Value, json};

use super::both::both;
use super::network_failure::Limit;
use super::parallel_inference::{quietly, rows};

/// A folder that goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ndgc-audited-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn network(updater: Updater) -> Network {
    let config = NetworkConfig::builder().data_type(DType::F64).seed(3).updater(updater);
    let config = config.input_type(InputType::feed_forward(30)).layer(Dense::new(40).activation(Activation::Tanh));
    config.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap()
}

fn examples(n: usize) -> DataSet {
    DataSet::new(rows(n, 30, 0.5), rows(n, 2, 1.)).unwrap()
}

fn params(net: &Network) -> Vec<f64> {
    net.params().flat_map(|(_, var)| var.as_detached_tensor().to_vec::<f64>().unwrap()).collect()
}

#[test]
fn more_classes_than_there_is_memory_for_are_an_error() {
    both(|| {
        let folder = Folder::new();
        let path = folder.0.join("rows.csv");
        fs::write(&path, "0.5,1\n2.5,0\n").unwrap();
        for classes in [usize::MAX, usize::MAX / 2] {
            let mut batches = CsvDataSetIterator::new(&path, CsvLabels::Class { column: 1, classes }, 2).unwrap();
            let error = batches.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::File { .. }) && error.to_string().contains("line 1"), "{error}");
        }
        let mut batches = CsvDataSetIterator::new(&path, CsvLabels::Class { column: 1, classes: 3 }, 2).unwrap();
        let labels = batches.next().unwrap().unwrap().labels.to_vec2::<f32>().unwrap();
        assert_eq!(labels, [[0., 1., 0.], [1., 0., 0.]]);
    });
}

#[test]
fn more_numbers_than_there_is_memory_for_are_an_error() {
    both(|| {
        let zeros = |rows: usize, columns: usize| Tensor::zeros((rows, columns), DType::U8, &Device::Cpu).unwrap();
        let none = zeros(0, 1 << 58);
        let mut batches = ListDataSetIterator::new(vec![DataSet::new(none.clone(), none).unwrap()]);
        let repeated = zeros(1, 1).broadcast_as((2, 1usize << 60)).unwrap();
        let classes = Tensor::new([0u32, 1], &Device::Cpu).unwrap();
        let refused = [
            Normalizer::standardize().fit(&mut batches),
            RocMultiClass::default().eval(&classes, &repeated, None),
            RocMultiClass::default().eval(&repeated, &repeated, None),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("no memory"), "{error}");
        }
        // Rows without columns take none, and are nothing to look at.
        let (mut evaluation, empty) = (Evaluation::default(), zeros(1 << 62, 0));
        evaluation.eval(&empty, &empty, None).unwrap();
        assert_eq!(evaluation.rows(), 0);
    });
}

#[test]
fn a_normaliser_of_one_column_is_not_one_of_others() {
    both(|| {
        let x = Tensor::new([[1f64], [3.]], &Device::Cpu).unwrap();
        let mut normalizer = Normalizer::standardize();
        normalizer.fit(&mut ListDataSetIterator::new(vec![DataSet::new(x.clone(), x.clone()).unwrap()])).unwrap();
        assert_eq!(normalizer.transform_features(&x).unwrap().to_vec::<f64>().unwrap(), [-1., 1.]);
        let list = x.flatten_all().unwrap();
        assert_eq!(normalizer.transform_features(&list).unwrap().to_vec::<f64>().unwrap(), [-1., 1.]);
        let wider = rows(2, 3, 1.);
        for refused in [normalizer.transform_features(&wider), normalizer.revert_features(&wider)] {
            assert!(matches!(refused, Err(Error::Shape { .. })));
        }
        assert!(Normalizer::image(0., 1., 255.).transform_features(&wider).is_ok(), "it is of any number of columns");
    });
}

#[test]
fn settings_of_any_size_are_errors() {
    both(|| {
        for most in [usize::MAX, 1 << 40, (1 << 16) + 1] {
            let made = AsyncDataSetIterator::with_prefetch(ListDataSetIterator::new(vec![examples(2)]), most);
            assert!(matches!(made, Err(Error::Invalid { .. })), "{most} batches made ahead");
            let wrapper = ParallelWrapper::builder(network(Updater::sgd(0.1))).prefetch_buffer(most).build();
            assert!(matches!(wrapper, Err(Error::Argument { argument: "prefetch_buffer", .. })), "{most}");
            let wrapper = ParallelWrapper::builder(network(Updater::sgd(0.1))).workers(most).build();
            assert!(matches!(wrapper, Err(Error::Argument { argument: "workers", .. })), "{most}");
            let inference = ParallelInference::builder(|x: &Tensor| x.affine(2., 0.)).workers(most).build();
            assert!(matches!(inference, Err(Error::Argument { argument: "workers", .. })), "{most}");
            assert!(matches!(ThreadCommunicator::group(most), Err(Error::Argument { argument: "size", .. })), "{most}");
        }
    });
}

#[test]
fn an_epoch_that_cannot_begin_is_none() {
    both(|| {
        let x = Tensor::arange(0f64, 1000., &Device::Cpu).unwrap().reshape((1000, 1)).unwrap();
        let batches = || ArrayDataSetIterator::new(DataSet::new(x.clone(), x.clone()).unwrap(), 300).unwrap();
        let next = |batches: &mut ArrayDataSetIterator| {
            let batch = batches.next().unwrap().unwrap();
            batch.features.to_vec::<f64>().unwrap()
        };
        let mut whole = batches().shuffled(7).unwrap();
        let wanted = [next(&mut whole), next(&mut whole)];
        let mut broken = batches().shuffled(7).unwrap();
        assert_eq!(next(&mut broken), wanted[0]);
        gc::collect();
        let limit = Limit::set(Device::Cpu.memory().active);
        broken.set_epoch(5).unwrap_err();
        drop(limit);
        assert_eq!((broken.epoch(), next(&mut broken)), (0, wanted[1].clone()));
    });
}

/// The mean of no gradients is no NaN.
#[test]
fn a_round_without_examples_leaves_parameters_alone() {
    both(|| {
        for mode in [TrainingMode::SharedGradients, TrainingMode::Averaging] {
            for workers in [1, 2] {
                let net = network(Updater::sgd(0.1));
                let before = params(&net);
                let wrapper = ParallelWrapper::builder(net).workers(workers).training_mode(mode);
                let mut wrapper = wrapper.build().unwrap();
                let _ = wrapper.fit(ListDataSetIterator::new(vec![examples(0); workers]));
                assert_eq!(params(&wrapper.into_model().unwrap()), before, "{mode:?}, {workers} workers");
            }
        }
        // Nor is there a step, in which what an updater keeps or a penalty would move them.
        for (workers, l2) in [(1, 0.), (2, 0.), (1, 0.1), (2, 0.1)] {
            let config = NetworkConfig::builder().data_type(DType::F64).updater(Updater::adam(0.1)).l2(l2);
            let config = config.input_type(InputType::feed_forward(30)).layer(OutputLayer::new(2, Loss::Mse));
            let wrapper = ParallelWrapper::builder(config.build().unwrap()).workers(workers);
            let mut wrapper = wrapper.training_mode(TrainingMode::SharedGradients).build().unwrap();
            wrapper.fit(ListDataSetIterator::new(vec![examples(4); workers])).unwrap();
            let found = |wrapper: &ParallelWrapper<Network>| {
                let net = wrapper.model();
                (params(&net), net.iteration(), net.score(), wrapper.score())
            };
            let before = found(&wrapper);
            let _ = wrapper.fit(ListDataSetIterator::new(vec![examples(0); workers]));
            assert_eq!(found(&wrapper), before, "{workers} workers, l2 {l2}");
        }
    });
}

/// A model that panics when it goes, and waits for a word before it answers.
struct Last(Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>);

impl Model for Last {
    fn output(&self, input: &Tensor) -> Result<Tensor> {
        self.1.send(()).unwrap();
        self.0.lock().unwrap().recv().unwrap();
        input.affine(3., 0.)
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        std::panic::panic_any(Carried);
    }
}

/// What a panic may carry.
struct Carried;

impl Drop for Carried {
    fn drop(&mut self) {
        panic!("no luck");
    }
}

/// The answer, which somebody gives.
fn asked(inference: &Arc<ParallelInference>, value: f64) -> Result<Vec<f64>> {
    let (tell, told) = mpsc::channel();
    let inference = Arc::clone(inference);
    let caller = thread::spawn(move || tell.send(inference.output(&rows(1, 1, value)).and_then(|y| y.to_vec::<f64>())));
    let answer = told.recv_timeout(Duration::from_secs(20)).unwrap();
    caller.join().unwrap().unwrap();
    answer
}

#[test]
fn a_model_that_panics_when_it_goes_takes_no_worker_with_it() {
    quietly(|| {
        both(|| {
            let ((go, goes), (begun, begins)) = (mpsc::channel(), mpsc::channel());
            let inference = ParallelInference::builder(Last(Mutex::new(goes), begun)).workers(1).build().unwrap();
            let inference = Arc::new(inference);
            let first = thread::spawn({
                let inference = Arc::clone(&inference);
                move || inference.output(&rows(1, 1, 1.)).unwrap().to_vec::<f64>().unwrap()
            });
            begins.recv().unwrap();
            // The worker has the last handle of the model that was there.
            inference.update_model(|x: &Tensor| {
                if x.to_vec::<f64>()?.contains(&13.) {
                    std::panic::panic_any(Carried);
                }
                x.affine(2., 0.)
            });
            go.send(()).unwrap();
            assert_eq!(first.join().unwrap(), [3.]);
            assert_eq!(asked(&inference, 5.).unwrap(), [10.]);
            let error = asked(&inference, 13.).unwrap_err().to_string();
            assert!(error.contains("panicked"), "{error}");
            assert_eq!(asked(&inference, 6.).unwrap(), [12.]);
        });
    });
}

/// Each figure of 2,000 classes was a look at eight thousand million counters.
#[test]
fn figures_of_many_classes_are_there_at_once() {
    both(|| {
        let classes = 2000;
        let likely = [1usize, 7, 7, 1999];
        let mut scores = vec![0f32; likely.len() * classes];
        likely.iter().enumerate().for_each(|(row, class)| scores[row * classes + class] = 1.);
        let predictions = Tensor::from_vec(scores, (likely.len(), classes), &Device::Cpu).unwrap();
        let labels = Tensor::new([1u32, 7, 8, 1999], &Device::Cpu).unwrap();
        let mut evaluation = Evaluation::new(classes);
        evaluation.eval(&labels, &predictions, None).unwrap();
        let begun = Instant::now();
        assert!(evaluation.stats().contains("# of classes:    2000"));
        // Of classes 1, 7 and 1999; the recall is of 8 too.
        assert!((evaluation.precision() - 2.5 / 3.).abs() < 1e-12 && evaluation.recall() == 0.75);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let one = evaluation.counts(7);
        assert_eq!((one.true_positives, one.false_positives, one.false_negatives, one.true_negatives), (1, 1, 0, 2));
    });
}

#[test]
fn one_column_is_two_classes_also_of_the_most_likely() {
    both(|| {
        let labels = Tensor::new([[1f64], [0.], [1.], [0.]], &Device::Cpu).unwrap();
        let predictions = Tensor::new([[0.2f64], [0.3], [0.8], [0.9]], &Device::Cpu).unwrap();
        let mut evaluation = Evaluation::default().with_top_n(2);
        evaluation.eval(&labels, &predictions, None).unwrap();
        assert_eq!((evaluation.accuracy(), evaluation.top_n_accuracy()), (0.5, 1.));
    });
}

/// A file that says that other files are its arrays.
#[test]
fn a_checkpoint_deletes_nothing_but_arrays() {
    both(|| {
        let folder = Folder::new();
        let (net, path) = (network(Updater::sgd(0.1)), folder.0.join("model"));
        let mine = ["notes.txt", "notes.safetensors"];
        mine.iter().for_each(|name| fs::write(folder.0.join(name), "mine").unwrap());
        for other in ["notes.txt", "notes.safetensors", "model.json"] {
            net.save(&path).unwrap();
            let index = folder.0.join("model.json");
            let mut value: Value = serde_json::from_str(&fs::read_to_string(&index).unwrap()).unwrap();
            value["arrays"] = json!(other);
            fs::write(&index, value.to_string()).unwrap();
            net.save(&path).unwrap();
            assert_eq!(params(&Network::load(&path, &Device::Cpu).unwrap()), params(&net), "after {other}");
            mine.iter().for_each(|name| assert_eq!(fs::read_to_string(folder.0.join(name)).unwrap(), "mine"));
        }
    });
}

/// Broken by: one name of arrays for all checkpoints whose own is no text.
#[cfg(target_os = "linux")]
#[test]
fn checkpoints_whose_names_are_no_text_have_arrays_of_their_own() {
    use std::os::unix::ffi::OsStrExt;

    both(|| {
        let folder = Folder::new();
        let path = |name: &[u8]| folder.0.join(std::ffi::OsStr::from_bytes(name));
        let (one, mut other) = (network(Updater::sgd(0.1)), network(Updater::sgd(0.1)));
        other.fit_batch(&examples(4)).unwrap();
        other.set_iteration(one.iteration());
        one.save(path(b"run\xfe")).unwrap();
        other.save(path(b"run\xff")).unwrap();
        assert_ne!(params(&one), params(&other));
        for (net, name) in [(&one, b"run\xfe"), (&other, b"run\xff")] {
            assert_eq!(params(&Network::load(path(name), &Device::Cpu).unwrap()), params(net));
        }
    });
}

#[test]
fn a_checkpoint_that_there_is_no_memory_for_changes_nothing() {
    both(|| {
        let folder = Folder::new();
        let path = folder.0.join("model");
        let mut net = network(Updater::adam(0.01));
        net.fit_batch(&examples(4)).unwrap();
        net.save(&path).unwrap();
        let (mut failed, mut more) = (0, 0);
        loop {
            let mut other = network(Updater::adam(0.01));
            let before = params(&other);
            gc::collect();
            let limit = Limit::set(Device::Cpu.memory().active + more);
            let result = other.restore(&path);
            drop(limit);
            if result.is_ok() {
                assert_eq!(params(&other), params(&net));
                break;
            }
            assert_eq!((params(&other), other.iteration()), (before, 0), "with {more} more");
            failed += 1;
            more += 1 + more / 8;
        }
        assert!(failed > 5, "{failed}");
    });
}

/// Broken by: sums of what some ranks have, each by its own share of the arrays.
#[test]
fn ranks_that_bring_different_things_all_hear_so() {
    both(|| {
        let of = |count: usize, dtype| Tensor::ones(count, dtype, &Device::Cpu).unwrap();
        let own = || vec![of(8, DType::F32), of(9, DType::F32)];
        let cases = [
            (vec![of(7, DType::F32), of(9, DType::F32)], 1.),
            (vec![of(8, DType::F32)], 1.),
            (vec![of(8, DType::F32), of(9, DType::F64)], 1.),
            (own(), 0.5),
        ];
        for other in cases {
            let (tell, told) = mpsc::channel();
            let ranks = ThreadCommunicator::group(2).unwrap().into_iter().zip([(own(), 1.), other]);
            let ranks = ranks.map(|(mut group, (arrays, scale))| {
                let tell = tell.clone();
                thread::spawn(move || tell.send(group.all_reduce(&arrays, scale)).unwrap())
            });
            let ranks: Vec<_> = ranks.collect();
            for _ in 0..2 {
                let error = told.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err();
                let says = error.to_string();
                assert!(matches!(error, Error::Invalid { .. }) && says.contains("different sizes"), "{says}");
            }
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        }
    });
}

/// Panics while it is armed, with something that panics again.
#[derive(Debug)]
struct Mine(Arc<AtomicBool>);

impl Layer for Mine {
    fn kind(&self) -> &str {
        "Mine"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        if self.0.load(SeqCst) {
            std::panic::panic_any(Carried);
        }
        pass.result(|| x.copy())
    }
}

#[test]
fn a_panic_that_panics_again_takes_no_worker_with_it() {
    quietly(|| {
        both(|| {
            let armed = Arc::new(AtomicBool::new(true));
            let config = NetworkConfig::builder().data_type(DType::F64).input_type(InputType::feed_forward(30));
            let config = config.layer(Mine(Arc::clone(&armed))).layer(OutputLayer::new(2, Loss::Mse));
            let mut wrapper = ParallelWrapper::builder(config.build().unwrap()).workers(2).build().unwrap();
            let batches = || ListDataSetIterator::new(vec![examples(4); 4]);
            let error = wrapper.fit(batches()).unwrap_err().to_string();
            assert!(error.contains("panicked"), "{error}");
            armed.store(false, SeqCst);
            wrapper.fit(batches()).unwrap();
        });
    });
}

#[test]
fn a_normaliser_that_would_make_nan_is_refused() {
    both(|| {
        let columns = |all: [f64; 3]| Tensor::from_slice(&all, (3, 1), &Device::Cpu).unwrap();
        let fit = |mut normalizer: Normalizer, all: [f64; 3]| {
            let batch = DataSet::new(columns(all), columns(all)).unwrap();
            normalizer.fit(&mut ListDataSetIterator::new(vec![batch]))
        };
        fit(Normalizer::min_max(0., 1.), [1., 2., 3.]).unwrap();
        for (normalizer, all) in [
            (Normalizer::min_max(2., 2.), [1., 2., 3.]),
            (Normalizer::min_max(0., 1.), [1., f64::INFINITY, 3.]),
            (Normalizer::min_max(0., 1.), [f64::NAN; 3]),
            (Normalizer::standardize(), [1., f64::NAN, 3.]),
            (Normalizer::standardize(), [1., f64::INFINITY, 3.]),
        ] {
            let what = format!("{normalizer:?} of {all:?}");
            assert!(matches!(fit(normalizer, all), Err(Error::Invalid { .. })), "{what}");
        }
        for image in [Normalizer::image(0., 1., 0.), Normalizer::image(2., 2., 255.)] {
            let x = columns([1., 2., 3.]);
            for refused in [image.transform_features(&x), image.revert_features(&x)] {
                assert!(matches!(refused, Err(Error::Invalid { .. })), "{image:?}: {refused:?}");
            }
        }
    });
}

#[cfg(unix)]
#[test]
fn what_is_saved_to_a_link_is_where_that_leads() {
    use std::os::unix::fs::symlink;

    both(|| {
        let folder = Folder::new();
        let (there, normalizer) = (folder.0.join("there"), Normalizer::image(0., 1., 255.));
        fs::create_dir(&there).unwrap();
        let (link, file) = (folder.0.join("link.json"), there.join("normalizer.json"));
        symlink(&file, &link).unwrap();
        // It leads to nothing, and to a file.
        for _ in 0..2 {
            normalizer.save(&link).unwrap();
            assert!(link.is_symlink());
            assert_eq!(Normalizer::load(&file).unwrap(), normalizer);
        }
        // To a link to nothing, each beside what it names.
        let (link, next, file) = (folder.0.join("chain.json"), there.join("next.json"), there.join("far.json"));
        symlink("there/next.json", &link).unwrap();
        symlink("far.json", &next).unwrap();
        for _ in 0..2 {
            normalizer.save(&link).unwrap();
            assert!(link.is_symlink() && next.is_symlink());
            assert_eq!(Normalizer::load(&file).unwrap(), normalizer);
        }
        // To itself by another one.
        let (link, next) = (folder.0.join("here.json"), folder.0.join("back.json"));
        symlink("back.json", &link).unwrap();
        symlink("here.json", &next).unwrap();
        assert!(normalizer.save(&link).unwrap_err().to_string().contains("a link to itself"));
        assert!(link.is_symlink() && next.is_symlink());
        // What is no file stays what it is.
        let pipe = folder.0.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(normalizer.save(&pipe).unwrap_err().to_string().contains("not a regular file"));
            assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
        }
        let (net, link) = (network(Updater::sgd(0.1)), folder.0.join("model.json"));
        symlink("there/run.json", &link).unwrap();
        for _ in 0..2 {
            net.save(folder.0.join("model")).unwrap();
            assert!(link.is_symlink());
            for path in [folder.0.join("model"), there.join("run")] {
                assert_eq!(params(&Network::load(path, &Device::Cpu).unwrap()), params(&net));
            }
        }
    });
}

/// Broken by: the batch of another worker, which a worker without one is given for its gradient's shapes.
#[test]
fn who_has_no_batch_learns_no_running_means() {
    both(|| {
        for mode in [WorkspaceMode::Enabled, WorkspaceMode::Separate] {
            let config = NetworkConfig::builder().data_type(DType::F64).training_workspace_mode(mode);
            let config = config.input_type(InputType::feed_forward(30)).layer(BatchNormalization::new());
            let net = config.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap();
            let wrapper = ParallelWrapper::builder(net).workers(2).training_mode(TrainingMode::SharedGradients);
            let mut wrapper = wrapper.build().unwrap();
            let batches = [1., 2., 4.].map(|mean| DataSet::new(rows(4, 30, mean), rows(4, 2, 1.)).unwrap());
            wrapper.fit(ListDataSetIterator::new(batches.to_vec())).unwrap();
            let net = wrapper.into_model().unwrap();
            let means = net.param("0_mean").unwrap().as_detached_tensor().to_vec::<f64>().unwrap();
            // One had the first and the last batch, the other one the second.
            let wanted = (0.9 * 0.1 + 0.1 * 4. + 0.1 * 2.) / 2.;
            assert!(means.iter().all(|mean| (mean - wanted).abs() < 1e-12), "{mode:?}: {means:?}, not {wanted}");
        }
    });
}

#[test]
fn more_counters_than_there_is_memory_for_are_an_error() {
    both(|| {
        let labels = Tensor::new([3u32], &Device::Cpu).unwrap();
        let scores = |columns: usize| rows(1, columns, 1. / columns as f64);
        let mut roc = RocMultiClass::new(1 << 24).unwrap();
        let error = roc.eval(&labels, &scores(40), None).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "threshold_steps", .. }), "{error}");
        assert_eq!(roc.num_columns(), 0);
        let mut calibration = EvaluationCalibration::new(1 << 20, 1 << 20).unwrap();
        let error = calibration.eval(&labels, &scores(200), None).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "bins", .. }), "{error}");
        RocMultiClass::new(100).unwrap().eval(&labels, &scores(200), None).unwrap();
    });
}

#[test]
fn arrays_without_elements_ask_for_no_memory_for_their_columns_and_rows() {
    both(|| {
        let wide = Tensor::zeros((0, 1 << 50), DType::F32, &Device::Cpu).unwrap();
        let (mut binary, mut regression) = (EvaluationBinary::default(), RegressionEvaluation::default());
        let (mut roc, mut of_classes) = (RocBinary::default(), RocMultiClass::default());
        let all: [&mut dyn IEvaluation; 4] = [&mut binary, &mut regression, &mut roc, &mut of_classes];
        for one in all {
            let error = one.eval(&wide, &wide, None).unwrap_err();
            assert!(matches!(error, Error::Argument { argument: "columns", .. }), "{error}");
        }
        let columns = [roc.num_columns(), of_classes.num_columns(), regression.num_columns(), binary.num_outputs()];
        assert_eq!(columns, [0; 4]);
        let long = Tensor::zeros((1 << 59, 0), DType::F32, &Device::Cpu).unwrap();
        let batches = ArrayDataSetIterator::new(DataSet::new(long.clone(), long).unwrap(), 8).unwrap();
        assert!(matches!(batches.with_example_ids().unwrap_err(), Error::Invalid { .. }));
    });
}

#[test]
fn answers_beyond_what_can_be_counted_are_the_most() {
    let mut counts = BinaryCounts { true_positives: u64::MAX, false_negatives: 1, ..BinaryCounts::default() };
    counts.add(true, true);
    assert_eq!((counts.true_positives, counts.total()), (u64::MAX, u64::MAX));
    assert_eq!([counts, counts].into_iter().sum::<BinaryCounts>().true_positives, u64::MAX);
}

#[test]
fn a_subset_that_ends_before_it_begins_is_refused_also_without_a_network() {
    both(|| {
        let x = rows(2, 3, 0.5);
        for (from, to) in [(2, 1), (0, usize::MAX), (usize::MAX, 0)] {
            assert!(matches!(SubsetVertex { from, to }.forward(&[&x]), Err(Error::Argument { argument: "range", .. })));
        }
        assert!(matches!(SubsetVertex { from: 2, to: 3 }.forward(&[&x]), Err(Error::Narrow { .. })));
        assert_eq!(SubsetVertex { from: 1, to: 2 }.forward(&[&x]).unwrap().dims(), [2, 2]);
    });
}
