//! Steps of four networks in each workspace mode beside candle, and requests of one row by several callers beside candle
//! behind the same server: a queue (`requests`), or HTTP (`http`). Times in turns; what a step holds is what its heap
//! requests are in candle, and what its workspaces have in ndgc.
//!
//! ```text
//! RAYON_NUM_THREADS=1 NDGC_THREADS=1 taskset -c 1 cargo run --release --bin training -- steps
//! RAYON_NUM_THREADS=1 NDGC_THREADS=1 cargo run --release --bin training -- requests
//! RAYON_NUM_THREADS=1 NDGC_THREADS=1 cargo run --release --bin training -- http
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::memory;
use ndgc::train::{
    Activation, Convolution2D, DataSet, Dense, InferenceMode, InputType, Loss, Lstm, Network, NetworkConfig,
    OutputLayer, ParallelInference, PoolingType, Subsampling, Updater, WorkspaceMode,
};

#[path = "../http.rs"]
mod http;
#[path = "../live.rs"]
mod live;

use http::Http;

#[global_allocator]
static ALLOCATOR: live::Live = live::Live;

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The same numbers for both: between -1 and 1.
fn numbers(count: usize) -> Vec<f32> {
    let mixed = |i: usize| (i as u32).wrapping_add(1).wrapping_mul(2_654_435_761);
    (0..count).map(|i| ((mixed(i) ^ mixed(i) >> 15) >> 8) as f32 / (1 << 23) as f32 - 1.).collect()
}

const NETWORKS: [&str; 4] = ["mlp", "deep", "lenet", "lstm"];
/// Rows, and what each of them is, beside the classes.
const SHAPES: [(&[usize], usize); 4] = [(&[32, 784], 10), (&[32, 64], 10), (&[32, 1, 28, 28], 10), (&[16, 50, 30], 50)];

fn classes(which: usize) -> Vec<u32> {
    let (shape, classes) = SHAPES[which];
    let steps = if which == 3 { shape[2] } else { 1 };
    (0..shape[0] * steps).map(|i| (i * 7 % classes) as u32).collect()
}

mod ours {
    use super::*;
    use ndgc::{Device, Tensor};

    pub(crate) fn config(which: usize) -> NetworkConfig {
        let dense = |size| Dense::new(size).activation(Activation::Relu);
        let output = || OutputLayer::new(SHAPES[which].1, Loss::Mcxent);
        let pool = || Subsampling::new(PoolingType::Max, (2, 2));
        let builder = NetworkConfig::builder().seed(1).updater(Updater::adam(1e-3));
        match which {
            0 => builder.input_type(InputType::feed_forward(784)).layer(dense(128)).layer(dense(64)).layer(output()),
            1 => {
                let builder = builder.input_type(InputType::feed_forward(64));
                (0..20).fold(builder, |config, _| config.layer(dense(64))).layer(output())
            }
            2 => {
                let builder = builder.input_type(InputType::convolutional(1, 28, 28));
                let plain = |out| Convolution2D::new(out, (5, 5));
                let builder = builder.layer(plain(20)).layer(pool()).layer(plain(50)).layer(pool());
                builder.layer(dense(500)).layer(output())
            }
            _ => builder.input_type(InputType::recurrent(50)).layer(Lstm::new(128)).layer(output()),
        }
    }

    pub(crate) fn data(which: usize) -> Answer<DataSet> {
        let (shape, classes) = SHAPES[which];
        let x = Tensor::from_vec(numbers(shape.iter().product()), shape, &Device::Cpu)?;
        let hot = super::classes(which);
        let steps = if which == 3 { shape[2] } else { 1 };
        let mut y = vec![0f32; hot.len() * classes];
        for (i, class) in hot.iter().enumerate() {
            y[(i / steps * classes + *class as usize) * steps + i % steps] = 1.;
        }
        let labels: &[usize] = if which == 3 { &[shape[0], classes, steps] } else { &[shape[0], classes] };
        Ok(DataSet::new(x, Tensor::from_vec(y, labels, &Device::Cpu)?)?)
    }

    /// The most bytes that a step has beyond those before it.
    fn most(network: &mut Network, data: &DataSet) -> Answer<u64> {
        memory::clear_scopes();
        memory::scope("step", &Device::Cpu, || network.fit_batch(data))?;
        Ok(memory::scopes()[0].peak_bytes)
    }

    /// A network before its first step.
    pub(crate) fn fresh(which: usize, mode: WorkspaceMode) -> Answer<(Network, DataSet)> {
        Ok((config(which).training_workspace_mode(mode).build()?, data(which)?))
    }

    /// The bytes of a first step.
    pub(crate) fn first(which: usize, mode: WorkspaceMode) -> Answer<u64> {
        let (mut network, data) = fresh(which, mode)?;
        most(&mut network, &data)
    }

    /// A network that is settled, and the bytes of its workspaces and of a step beside them.
    pub(crate) fn settled(which: usize, mode: WorkspaceMode) -> Answer<(Network, DataSet, u64)> {
        let (mut network, data) = fresh(which, mode)?;
        for _ in 0..20 {
            network.fit_batch(&data)?;
        }
        let bytes = |stats: ndgc::WorkspaceStats| stats.size + stats.spilled + stats.pinned;
        let own: u64 = network.workspaces().iter().map(|workspace| bytes(workspace.stats())).sum();
        let beside = most(&mut network, &data)?;
        Ok((network, data, own + beside))
    }
}

mod theirs {
    use super::*;
    use candle_core::{DType, Device, Tensor};
    use candle_nn::{
        AdamW, Conv2d, LSTM, Linear, Module, Optimizer, ParamsAdamW, RNN, VarBuilder, VarMap, conv2d, linear, lstm,
    };

    pub(crate) struct Model {
        convolutions: Vec<Conv2d>,
        recurrent: Option<LSTM>,
        dense: Vec<Linear>,
    }

    impl Model {
        pub(crate) fn new(which: usize, map: &VarMap) -> Answer<Self> {
            let vb = VarBuilder::from_varmap(map, DType::F32, &Device::Cpu);
            let sizes: Vec<usize> = match which {
                0 => vec![784, 128, 64, 10],
                1 => [vec![64; 21], vec![10]].concat(),
                2 => vec![800, 500, 10],
                _ => vec![128, 50],
            };
            let dense = |i: usize| linear(sizes[i], sizes[i + 1], vb.pp(format!("dense{i}")));
            let dense = (0..sizes.len() - 1).map(dense).collect::<Result<_, _>>()?;
            let convolution = |(i, [from, to]): (usize, [usize; 2])| {
                conv2d(from, to, 5, Default::default(), vb.pp(format!("conv{i}")))
            };
            let channels: &[[usize; 2]] = if which == 2 { &[[1, 20], [20, 50]] } else { &[] };
            let convolutions = channels.iter().copied().enumerate().map(convolution).collect::<Result<_, _>>()?;
            let recurrent = if which == 3 { Some(lstm(50, 128, Default::default(), vb.pp("lstm"))?) } else { None };
            Ok(Model { convolutions, recurrent, dense })
        }

        pub(crate) fn forward(&self, x: &Tensor) -> Answer<Tensor> {
            let mut y = x.clone();
            for convolution in &self.convolutions {
                y = convolution.forward(&y)?.max_pool2d(2)?;
            }
            if !self.convolutions.is_empty() {
                y = y.flatten_from(1)?;
            }
            if let Some(recurrent) = &self.recurrent {
                y = recurrent.states_to_tensor(&recurrent.seq(&y)?)?.flatten(0, 1)?;
            }
            for (i, dense) in self.dense.iter().enumerate() {
                y = dense.forward(&y)?;
                if i + 1 < self.dense.len() {
                    y = y.relu()?;
                }
            }
            Ok(y)
        }
    }

    /// A step, to be repeated.
    pub(crate) fn step(which: usize) -> Answer<impl FnMut() -> Answer<f32>> {
        let map = VarMap::new();
        let model = Model::new(which, &map)?;
        let (shape, _) = SHAPES[which];
        let mut x = Tensor::from_vec(numbers(shape.iter().product()), shape, &Device::Cpu)?;
        if which == 3 {
            x = x.transpose(1, 2)?.contiguous()?;
        }
        let classes = classes(which);
        let count = classes.len();
        let y = Tensor::from_vec(classes, count, &Device::Cpu)?;
        let params = ParamsAdamW { lr: 1e-3, weight_decay: 0., ..Default::default() };
        let mut adam = AdamW::new(map.all_vars(), params)?;
        Ok(move || {
            let loss = candle_nn::loss::cross_entropy(&model.forward(&x)?, &y)?;
            adam.backward_step(&loss)?;
            Ok(loss.to_scalar::<f32>()?)
        })
    }
}

fn seconds(f: &mut dyn FnMut() -> Answer<()>, times: u32) -> Answer<f64> {
    let start = Instant::now();
    for _ in 0..times {
        f()?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(times))
}

const MODES: [WorkspaceMode; 4] =
    [WorkspaceMode::Enabled, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::None];

/// The median and the least, as a cell of a table.
fn cell(taken: &mut [f64]) -> String {
    taken.sort_by(f64::total_cmp);
    format!("{:.0} ({:.0})", taken[taken.len() / 2], taken[0])
}

/// First steps of a network: the median and the best of nine models that were just made, and the most bytes of one.
fn firsts(which: usize) -> Answer<()> {
    let mut taken = vec![Vec::new(); 1 + MODES.len()];
    for _ in 0..9 {
        let mut theirs = theirs::step(which)?;
        taken[0].push(seconds(&mut || theirs().map(drop), 1)? * 1e6);
        for (mode, taken) in MODES.into_iter().zip(&mut taken[1..]) {
            let (mut network, data) = ours::fresh(which, mode)?;
            taken.push(seconds(&mut || Ok(network.fit_batch(&data).map(drop)?), 1)? * 1e6);
        }
    }
    let mut theirs = theirs::step(which)?;
    let (made, most) = live::most(&mut theirs);
    made?;
    let ours = MODES.map(|mode| ours::first(which, mode)).into_iter().collect::<Answer<Vec<u64>>>()?;
    let bytes = [vec![most as u64], ours].concat().iter().map(u64::to_string).collect::<Vec<_>>();
    let name = NETWORKS[which];
    println!("| {name}, first step | {} |", taken.iter_mut().map(|all| cell(all)).collect::<Vec<_>>().join(" | "));
    println!("| {name}, first step, bytes | {} |", bytes.join(" | "));
    Ok(())
}

/// Steps of each network: the median and the best of rounds in which all take their turn.
fn steps() -> Answer<()> {
    const ROUNDS: usize = 31;
    println!("| step, us: median (best) | candle | Enabled | Single | Separate | None |\n|---|---|---|---|---|---|");
    for (which, name) in NETWORKS.iter().enumerate() {
        let mut theirs = theirs::step(which)?;
        (0..20).try_for_each(|_| theirs().map(drop))?;
        let (made, most) = live::most(&mut theirs);
        made?;
        let mut bytes = vec![most as u64];
        let mut all: Vec<Box<dyn FnMut() -> Answer<()>>> = vec![Box::new(move || theirs().map(drop))];
        for mode in MODES {
            let (mut network, data, own) = ours::settled(which, mode)?;
            bytes.push(own);
            all.push(Box::new(move || Ok(network.fit_batch(&data).map(drop)?)));
        }
        let times = if which < 2 { 60 } else { 4 };
        let mut taken = vec![Vec::new(); all.len()];
        for round in 0..ROUNDS {
            for i in 0..all.len() {
                let i = (i + round) % all.len();
                taken[i].push(seconds(&mut *all[i], times)? * 1e6);
            }
        }
        println!("| {name} | {} |", taken.iter_mut().map(|all| cell(all)).collect::<Vec<_>>().join(" | "));
        let bytes: Vec<String> = bytes.iter().map(u64::to_string).collect();
        println!("| {name}, bytes | {} |", bytes.join(" | "));
        firsts(which)?;
    }
    Ok(())
}

/// What answers a batch of rows.
trait Model: Send + Sync + 'static {
    type Rows: Clone + Send + 'static;
    fn forward(&self, rows: &Self::Rows) -> Answer<Self::Rows>;
    fn cat(rows: &[Self::Rows]) -> Answer<Self::Rows>;
    fn row(rows: &Self::Rows, at: usize) -> Answer<Self::Rows>;
}

impl Model for theirs::Model {
    type Rows = candle_core::Tensor;

    fn forward(&self, rows: &Self::Rows) -> Answer<Self::Rows> {
        Ok(candle_nn::ops::softmax(&theirs::Model::forward(self, rows)?, 1)?)
    }

    fn cat(rows: &[Self::Rows]) -> Answer<Self::Rows> {
        Ok(candle_core::Tensor::cat(rows, 0)?)
    }

    fn row(rows: &Self::Rows, at: usize) -> Answer<Self::Rows> {
        Ok(rows.narrow(0, at, 1)?)
    }
}

/// A network as a server's workers share it.
struct Shared(ParallelInference);

impl Model for Shared {
    type Rows = ndgc::Tensor;

    fn forward(&self, rows: &Self::Rows) -> Answer<Self::Rows> {
        Ok(self.0.output(rows)?)
    }

    fn cat(rows: &[Self::Rows]) -> Answer<Self::Rows> {
        Ok(ndgc::Tensor::cat(rows, 0)?)
    }

    fn row(rows: &Self::Rows, at: usize) -> Answer<Self::Rows> {
        Ok(rows.narrow(0, at, 1)?)
    }
}

type Waiting<T> = VecDeque<(T, SyncSender<T>)>;

/// The same simple server for both: rows wait in a queue, and a worker takes up to 64 of them.
struct Server<M: Model> {
    queue: Arc<(Mutex<Waiting<M::Rows>>, Condvar, AtomicBool)>,
    workers: Vec<thread::JoinHandle<()>>,
}

impl<M: Model> Server<M> {
    fn start(model: M, workers: usize) -> Self {
        let queue: Arc<(Mutex<Waiting<M::Rows>>, Condvar, AtomicBool)> = Arc::default();
        let model = Arc::new(model);
        let start = |_| {
            let (queue, model) = (Arc::clone(&queue), Arc::clone(&model));
            thread::spawn(move || while Self::answer(&queue, &model).is_some() {})
        };
        let workers = (0..workers).map(start).collect();
        Server { queue, workers }
    }

    fn answer(queue: &(Mutex<Waiting<M::Rows>>, Condvar, AtomicBool), model: &M) -> Option<()> {
        let (rows, back): (Vec<_>, Vec<_>) = {
            let mut waiting = queue.0.lock().expect("no panic");
            while waiting.is_empty() {
                if queue.2.load(Relaxed) {
                    return None;
                }
                waiting = queue.1.wait(waiting).expect("no panic");
            }
            let some = waiting.len().min(64);
            waiting.drain(..some).unzip()
        };
        let answers = model.forward(&M::cat(&rows).expect("rows")).expect("answers");
        for (at, back) in back.into_iter().enumerate() {
            back.send(M::row(&answers, at).expect("a row")).expect("a caller");
        }
        Some(())
    }

    fn output(&self, row: &M::Rows) -> M::Rows {
        let (back, answer) = sync_channel(1);
        self.queue.0.lock().expect("no panic").push_back((row.clone(), back));
        self.queue.1.notify_one();
        answer.recv().expect("an answer")
    }
}

impl<M: Model> Drop for Server<M> {
    fn drop(&mut self) {
        self.queue.2.store(true, Relaxed);
        self.queue.1.notify_all();
        for worker in self.workers.drain(..) {
            worker.join().expect("no panic");
        }
    }
}

/// Requests a second, and the median and the 99th of 100 latencies in microseconds.
fn load(callers: usize, request: &(dyn Fn() + Sync)) -> [f64; 3] {
    const TIME: Duration = Duration::from_millis(700);
    let start = Instant::now();
    let mut all: Vec<u32> = thread::scope(|scope| {
        let own = |_| {
            scope.spawn(|| {
                let mut own = Vec::new();
                while start.elapsed() < TIME {
                    let begun = Instant::now();
                    request();
                    own.push(begun.elapsed().as_nanos() as u32);
                }
                own
            })
        };
        let callers: Vec<_> = (0..callers).map(own).collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect()
    });
    let rate = all.len() as f64 / start.elapsed().as_secs_f64();
    all.sort_unstable();
    let part = |of: usize| f64::from(all[all.len() * of / 100]) / 1e3;
    [rate, part(50), part(99)]
}

/// A network that answers callers.
fn served(mode: InferenceMode) -> Answer<ParallelInference> {
    let builder = ParallelInference::builder(ours::config(0).build()?).inference_mode(mode).workers(2);
    Ok(builder.batch_limit(64).build()?)
}

/// One network, and what callers ask for.
fn requests() -> Answer<()> {
    let (x, y) = (
        ndgc::Tensor::from_vec(numbers(784), (1, 784), &ndgc::Device::Cpu)?,
        candle_core::Tensor::from_vec(numbers(784), (1, 784), &candle_core::Device::Cpu)?,
    );
    let (in_place, batched) = (served(InferenceMode::InPlace)?, served(InferenceMode::Batched)?);
    let server = Server::start(Shared(served(InferenceMode::InPlace)?), 2);
    let map = candle_nn::VarMap::new();
    let model = theirs::Model::new(0, &map)?;
    let their_server = Server::start(theirs::Model::new(0, &map)?, 2);
    table(&[
        ("ndgc, `InPlace`", &|| drop(in_place.output(&x).expect("an answer"))),
        ("candle on the caller's thread", &|| drop(Model::forward(&model, &y).expect("an answer"))),
        ("ndgc, `Batched`, 2 workers", &|| drop(batched.output(&x).expect("an answer"))),
        ("ndgc behind the simple server", &|| drop(server.output(&x))),
        ("candle behind the simple server", &|| drop(their_server.output(&y))),
    ])
}

/// The same behind HTTP: one server for all, with a thread for each connection.
fn http() -> Answer<()> {
    let ours = |mode| {
        let model = served(mode)?;
        let answer = move |row| {
            let row = ndgc::Tensor::from_vec(row, (1, 784), &ndgc::Device::Cpu)?;
            model.output(&row)?.flatten_all()?.to_vec1::<f32>()
        };
        Answer::Ok(Http::start(Arc::new(move |row| answer(row).expect("an answer"))))
    };
    let theirs = |answer: Box<dyn Fn(&candle_core::Tensor) -> candle_core::Tensor + Send + Sync>| {
        let answer = move |row| {
            let row = candle_core::Tensor::from_vec(row, (1, 784), &candle_core::Device::Cpu)?;
            answer(&row).flatten_all()?.to_vec1::<f32>()
        };
        Http::start(Arc::new(move |row| answer(row).expect("an answer")))
    };
    let (in_place, batched) = (ours(InferenceMode::InPlace)?, ours(InferenceMode::Batched)?);
    let map = candle_nn::VarMap::new();
    let model = theirs::Model::new(0, &map)?;
    let at_once = theirs(Box::new(move |row| Model::forward(&model, row).expect("an answer")));
    let server = Server::start(theirs::Model::new(0, &map)?, 2);
    let queued = theirs(Box::new(move |row| server.output(row)));
    let row = numbers(784);
    let ask = |http: &Http| assert_eq!(http.ask(&row).len(), 10);
    table(&[
        ("ndgc, `InPlace`, behind HTTP", &|| ask(&in_place)),
        ("candle on the server's threads", &|| ask(&at_once)),
        ("ndgc, `Batched`, 2 workers, behind HTTP", &|| ask(&batched)),
        ("candle behind HTTP and the simple server", &|| ask(&queued)),
    ])
}

/// What each reaches with so many callers: of rounds in which all take their turn, the one in the middle.
fn table(all: &[(&str, &(dyn Fn() + Sync))]) -> Answer<()> {
    const ROUNDS: usize = 5;
    println!("| requests a second; us: median, 99 of 100 | 1 caller | 8 callers | 64 callers |\n|---|---|---|---|");
    let mut found = vec![vec![Vec::new(); 3]; all.len()];
    for round in 0..ROUNDS {
        for (at, callers) in [1, 8, 64].into_iter().enumerate() {
            for i in 0..all.len() {
                let which = (i + round) % all.len();
                found[which][at].push(load(callers, all[which].1));
            }
        }
    }
    for ((name, _), found) in all.iter().zip(found) {
        let cell = |mut rounds: Vec<[f64; 3]>| {
            rounds.sort_by(|a, b| a[0].total_cmp(&b[0]));
            let [rate, half, most] = rounds[ROUNDS / 2];
            format!("{rate:.0}; {half:.0}, {most:.0}")
        };
        println!("| {name} | {} |", found.into_iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}

fn main() -> Answer<()> {
    match std::env::args().nth(1).as_deref() {
        Some("steps") => steps(),
        Some("requests") => requests(),
        Some("http") => http(),
        _ => Err("steps, requests or http".into()),
    }
}
