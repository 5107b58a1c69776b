//! What training costs on top: steps of four networks in each workspace mode beside one written by hand, epochs with
//! several workers and with batches made ahead, requests that are answered together, evaluation. Bytes of workspaces are printed.
//!
//! ```text
//! cargo bench --bench train
//! ```

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use ndgc::nn::{Adam, Mlp, Module, Optimizer};
use ndgc::train::{
    Activation, ArrayDataSetIterator, AsyncDataSetIterator, Convolution2D, DataIterator, DataSet, Dense,
    ElementWiseVertex, Evaluation, IEvaluation, InferenceMode, InputType, LayerNormalization, Loss, Lstm, Network,
    NetworkConfig, OutputLayer, ParallelInference, ParallelWrapper, PoolingType, ProgressListener,
    RegressionEvaluation, Roc, SelfAttention, Subsampling, TrainingMode, Updater, WorkspaceMode,
};
use ndgc::{Device, Generator, NdManager, SpillPolicy, Tensor, Workspace, WorkspaceConfig};

const CPU: Device = Device::Cpu;
const ROWS: usize = 8000;

fn batch(features: &[usize], labels: &[usize]) -> DataSet {
    let x = Tensor::rand(-1f32, 1f32, features, &CPU).expect("memory");
    let (classes, steps) = (labels[1], labels.get(2).copied().unwrap_or(1));
    let hot = |i: usize| i / steps % classes == (i / steps / classes * 7 + i % steps) % classes;
    let y = (0..labels.iter().product()).map(|i| f32::from(u8::from(hot(i)))).collect();
    DataSet::new(x, Tensor::from_vec(y, labels, &CPU).expect("memory")).expect("as many rows")
}

fn dense(size: usize) -> Dense {
    Dense::new(size).activation(Activation::Relu)
}

fn mlp() -> NetworkConfig {
    let builder = NetworkConfig::builder().seed(1).input_type(InputType::feed_forward(784));
    builder.layer(dense(128)).layer(dense(64)).layer(OutputLayer::new(10, Loss::Mcxent))
}

/// A block of a transformer: attention and a dense layer, each normalised and added to what it was given.
fn block() -> NetworkConfig {
    let config = NetworkConfig::builder().add_input("x", InputType::recurrent(64));
    let add = || ElementWiseVertex::Add;
    config
        .add_layer("norm 1", LayerNormalization::new(), &["x"])
        .add_layer("attention", SelfAttention::new(64, 4), &["norm 1"])
        .add_vertex("sum 1", add(), &["x", "attention"])
        .add_layer("norm 2", LayerNormalization::new(), &["sum 1"])
        .add_layer("wide", dense(256), &["norm 2"])
        .add_layer("narrow", Dense::new(64).activation(Activation::Identity), &["wide"])
        .add_vertex("sum 2", add(), &["sum 1", "narrow"])
        .add_layer("out", OutputLayer::new(10, Loss::Mcxent), &["sum 2"])
        .set_outputs(&["out"])
}

/// The four networks that DL4J was measured with: MLP, deep and narrow, LeNet, LSTM; and a block of a transformer.
fn networks() -> [(&'static str, NetworkConfig, DataSet); 5] {
    let output = || OutputLayer::new(10, Loss::Mcxent);
    let deep = NetworkConfig::builder().input_type(InputType::feed_forward(64));
    let deep = (0..20).fold(deep, |config, _| config.layer(dense(64))).layer(output());
    let pool = || Subsampling::new(PoolingType::Max, (2, 2));
    let lenet = NetworkConfig::builder()
        .input_type(InputType::convolutional(1, 28, 28))
        .layer(Convolution2D::new(20, (5, 5)))
        .layer(pool())
        .layer(Convolution2D::new(50, (5, 5)))
        .layer(pool())
        .layer(dense(500))
        .layer(output());
    let lstm = NetworkConfig::builder().input_type(InputType::recurrent(50));
    let lstm = lstm.layer(Lstm::new(128)).layer(OutputLayer::new(50, Loss::Mcxent));
    [
        ("mlp", mlp(), batch(&[32, 784], &[32, 10])),
        ("deep", deep, batch(&[32, 64], &[32, 10])),
        ("lenet", lenet, batch(&[32, 1, 28, 28], &[32, 10])),
        ("lstm", lstm, batch(&[16, 50, 30], &[16, 50, 30])),
        ("block", block(), batch(&[16, 64, 32], &[16, 10, 32])),
    ]
}

fn fit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fit");
    group.bench_function("mlp by hand", |bench| {
        let manager = NdManager::new_base_manager(&CPU).expect("a manager");
        let model = Mlp::new(&[784, 128, 64, 10], &mut Generator::new(1), &manager).expect("memory");
        let mut adam = Adam::new(model.variables(), 1e-3).expect("memory");
        let data = batch(&[32, 784], &[32, 10]);
        let classes = data.labels.argmax(1).expect("labels");
        let config =
            WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).build().expect("no contradiction");
        bench.iter(|| {
            let _cycle = Workspace::enter("STEP", &config).expect("memory");
            let loss = model.forward(&data.features).and_then(|y| y.cross_entropy(&classes)).expect("memory");
            adam.backward_step(&loss).expect("a gradient");
            loss.to_scalar::<f32>().expect("a number")
        });
    });
    for (name, config, data) in networks() {
        for mode in [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::Enabled] {
            let config = config.clone().updater(Updater::adam(1e-3)).training_workspace_mode(mode);
            let mut network = config.build().expect("a network");
            group.bench_function(BenchmarkId::new(name, format!("{mode:?}")), |bench| {
                bench.iter(|| network.fit_batch(&data).expect("a step"));
            });
            let bytes = |stats: ndgc::WorkspaceStats| stats.size + stats.spilled + stats.pinned;
            let all: u64 = network.workspaces().iter().map(|workspace| bytes(workspace.stats())).sum();
            print!("fit/{name}/{mode:?}: workspaces of {all} B");
            let planned = network.workspaces().into_iter().find_map(|workspace| workspace.stats().plan);
            match planned {
                Some(plan) => println!(", a plan of {} B for {} B that live at once", plan.bytes, plan.alive),
                None => println!(),
            }
        }
    }
}

/// Batches that take as long to make as they are told: the thread that makes them is busy.
struct Slow {
    batches: ArrayDataSetIterator,
    each: Duration,
}

impl Iterator for Slow {
    type Item = ndgc::Result<DataSet>;

    fn next(&mut self) -> Option<Self::Item> {
        let begun = Instant::now();
        while begun.elapsed() < self.each {
            std::hint::spin_loop();
        }
        self.batches.next()
    }
}

impl DataIterator<DataSet> for Slow {
    fn reset(&mut self) -> ndgc::Result<()> {
        self.batches.reset()
    }
}

/// An epoch of 250 batches, each of which takes as long to make as its step; and the same with batches made ahead.
fn prefetched(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("producer as slow as the step");
    group.throughput(Throughput::Elements(ROWS as u64)).sample_size(20);
    let data = batch(&[ROWS, 784], &[ROWS, 10]);
    let batches = || ArrayDataSetIterator::new(data.clone(), 32).expect("batches");
    let (mut network, mut all) = (trained(), batches());
    network.fit(&mut all).expect("an epoch");
    let begun = Instant::now();
    network.fit(&mut all).expect("an epoch");
    let each = begun.elapsed() / 250;
    let slow = || Slow { batches: batches(), each };
    let (mut alone, mut ahead) = (slow(), AsyncDataSetIterator::with_prefetch(slow(), 4).expect("a thread"));
    group.bench_function("alone", |bench| bench.iter(|| network.fit(&mut alone).expect("an epoch")));
    group.bench_function("ahead", |bench| bench.iter(|| network.fit(&mut ahead).expect("an epoch")));
}

fn trained() -> Network {
    mlp().updater(Updater::adam(1e-3)).build().expect("a network")
}

/// An epoch of 250 batches, with one network and with workers.
fn epochs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("epoch");
    group.throughput(Throughput::Elements(ROWS as u64)).sample_size(40);
    let data = batch(&[ROWS, 784], &[ROWS, 10]);
    let batches = || ArrayDataSetIterator::new(data.clone(), 32).expect("batches");
    group.bench_function("alone", |bench| {
        let (mut network, mut batches) = (trained(), batches());
        bench.iter(|| network.fit(&mut batches).expect("an epoch"));
    });
    group.bench_function("alone, with a progress bar", |bench| {
        let (mut network, mut batches) = (trained(), batches());
        network.add_listener(ProgressListener::new(250));
        bench.iter(|| network.fit(&mut batches).expect("an epoch"));
    });
    for (mode, workers, frequency) in [
        (TrainingMode::Averaging, 1, 5),
        (TrainingMode::Averaging, 2, 5),
        (TrainingMode::Averaging, 2, 1),
        (TrainingMode::SharedGradients, 2, 1),
    ] {
        let builder = ParallelWrapper::builder(trained()).workers(workers).averaging_frequency(frequency);
        let (mut wrapper, mut batches) = (builder.training_mode(mode).build().expect("workers"), batches());
        group.bench_function(format!("{mode:?}, {workers} workers, every {frequency}"), |bench| {
            bench.iter(|| wrapper.fit(&mut batches).expect("an epoch"));
        });
    }
}

/// Requests of one row, by so many callers at once.
fn requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("requests");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    let x = Tensor::rand(0f32, 1., (1, 784), &CPU).expect("memory");
    for (mode, workers) in [(InferenceMode::InPlace, 1), (InferenceMode::Batched, 2), (InferenceMode::Sequential, 2)] {
        let builder = ParallelInference::builder(trained()).inference_mode(mode).workers(workers);
        let served = builder.batch_limit(64).build().expect("workers");
        for callers in [1, 8, 64] {
            group.bench_function(format!("{mode:?}, {callers} callers"), |bench| {
                bench.iter_custom(|iterations| answered(&served, &x, iterations, callers));
            });
        }
    }
}

/// The time of so many requests, shared by so many callers.
fn answered(served: &ParallelInference, x: &Tensor, requests: u64, callers: u64) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let own = requests / callers + u64::from(caller < requests % callers);
            scope.spawn(move || (0..own).for_each(|_| drop(served.output(x).expect("an answer"))));
        }
    });
    start.elapsed()
}

fn evaluation(criterion: &mut Criterion) {
    const COUNT: usize = 10_000;
    let mut group = criterion.benchmark_group("evaluation");
    group.throughput(Throughput::Elements(COUNT as u64));
    let classes: Vec<u32> = (0..COUNT as u32).map(|row| row * 7 % 10).collect();
    let labels = Tensor::from_vec(classes, COUNT, &CPU).expect("memory");
    let predictions = Tensor::rand(0f32, 1., (COUNT, 10), &CPU).expect("memory");
    group.bench_function("Evaluation, 10 classes", |bench| {
        let mut evaluation = Evaluation::new(10);
        bench.iter(|| evaluation.eval(&labels, &predictions, None).expect("rows"));
    });
    let halves: Vec<f32> = (0..COUNT).map(|row| (row % 2) as f32).collect();
    let labels = Tensor::from_vec(halves, (COUNT, 1), &CPU).expect("memory");
    let predictions = Tensor::rand(0f32, 1., (COUNT, 1), &CPU).expect("memory");
    group.bench_function("Roc, 100 steps", |bench| {
        let mut roc = Roc::new(100).expect("steps");
        bench.iter(|| roc.eval(&labels, &predictions, None).expect("rows"));
    });
}

/// Ten million rows, in batches of ten thousand; what the device has more after them is printed.
fn many_rows(criterion: &mut Criterion) {
    const COUNT: usize = 10_000;
    const BATCHES: usize = 1000;
    let mut group = criterion.benchmark_group("evaluation");
    group.throughput(Throughput::Elements((COUNT * BATCHES) as u64));
    // Few runs, each by itself.
    group.sample_size(10).sampling_mode(SamplingMode::Flat).measurement_time(Duration::from_secs(5));
    let rows = |columns: usize| Tensor::rand(0f32, 1., (COUNT, columns), &CPU).expect("memory");
    let classes = Tensor::from_vec((0..COUNT as u32).map(|row| row * 7 % 10).collect(), COUNT, &CPU).expect("memory");
    let halves = Tensor::from_vec((0..COUNT).map(|row| (row % 2) as f32).collect(), (COUNT, 1), &CPU).expect("memory");
    let kinds: [(&str, Box<dyn IEvaluation>, Tensor, Tensor); 3] = [
        ("Evaluation, 10 classes", Box::new(Evaluation::new(10)), classes, rows(10)),
        ("Roc, 100 steps", Box::new(Roc::new(100).expect("steps")), halves, rows(1)),
        ("RegressionEvaluation, 3 columns", Box::new(RegressionEvaluation::default()), rows(3), rows(3)),
    ];
    for (name, mut evaluation, labels, predictions) in kinds {
        let before = CPU.memory().active;
        group.bench_function(format!("{name}, 1e7 rows"), |bench| {
            bench.iter(|| {
                evaluation.reset();
                (0..BATCHES).for_each(|_| evaluation.eval(&labels, &predictions, None).expect("rows"));
            });
        });
        println!("evaluation/{name}, 1e7 rows: {} B more on the device", CPU.memory().active.saturating_sub(before));
    }
}

criterion_group!(benches, fit, epochs, prefetched, requests, evaluation, many_rows);
criterion_main!(benches);
