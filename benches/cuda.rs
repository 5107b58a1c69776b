//! What work on a CUDA device costs: the host's side of small operations, the pool, copies, the rates of large kernels,
//! and the training step of the epoch loop, eager and as one graph. Without a device it says why and ends well.
//!
//! ```text
//! cargo bench --bench cuda
//! NDGC_BENCH_JSON=$PWD/cuda.json cargo bench --bench cuda
//! ```
//!
//! `NDGC_BENCH_JSON` names a file for the medians, one object a line, written anew after each figure, so that a run
//! that is ended early leaves what it had. `.ci/gpu_torch.py` measures the same under the same names with PyTorch: a
//! name is never given to another thing. `NDGC_BENCH_SHORT=1` goes through everything with small arrays and few rounds,
//! and its figures mean nothing; it is for devices that pretend.
//!
//! Host times are those of submitting: the device catches up outside the timing, before its queue is full. All others
//! are times until the device is done.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode};
use ndgc::bench::DevicePool;
use ndgc::nn::{Adam, Mlp, Module, Optimizer};
use ndgc::{Cuda, DType, Device, Generator, Result, Tensor, gc, no_grad, probe_cuda};

/// Launches that are submitted before the device may catch up: less than a driver's queue takes without a wait.
const QUEUE: usize = 400;
/// Images of an epoch.
const IMAGES: usize = 60_000;
const PIXELS: usize = 784;
const LAYERS: [usize; 4] = [PIXELS, 128, 64, 10];
/// Sizes of the pool's blocks, in bytes: from a scalar to a layer's activations.
const BLOCKS: [usize; 6] = [4, 40, 512, 1200, 4000, 12_288];

fn main() {
    let devices = match probe_cuda() {
        Ok(devices) => devices,
        Err(error) => return println!("nothing to measure: {error}"),
    };
    let device = Device::cuda(0).expect("a device that the driver shows can be opened");
    let Device::Cuda(cuda) = device else { return };
    println!("{} ({} MiB)", devices[0].name, devices[0].memory_bytes >> 20);
    let short = std::env::var_os("NDGC_BENCH_SHORT").is_some_and(|value| value == "1");
    let json = std::env::var_os("NDGC_BENCH_JSON").map(PathBuf::from);
    let mut bench = Bench { criterion: criterion(short), device, cuda, short, json, lines: Vec::new() };
    let parts = [small_operations, pool, last_drop, copies, bandwidth, products, training];
    for part in parts {
        part(&mut bench);
        gc::collect();
        bench.device.clear_cache();
    }
    bench.criterion.final_summary();
}

/// The fewest samples that criterion takes are enough for a median on an idle machine.
const SAMPLES: usize = 10;

fn criterion(short: bool) -> Criterion {
    let [warm_up, measurement] = if short { [1, 10] } else { [300, 1500] }.map(Duration::from_millis);
    Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(warm_up)
        .measurement_time(measurement)
        .nresamples(2000)
        .configure_from_args()
}

/// What a median is told in.
#[derive(Clone, Copy)]
enum Unit {
    Nanoseconds,
    /// So many bytes in each run.
    Bytes(usize),
    /// So many operations in each run.
    Operations(f64),
}

struct Bench {
    criterion: Criterion,
    device: Device,
    cuda: Cuda,
    short: bool,
    json: Option<PathBuf>,
    lines: Vec<String>,
}

impl Bench {
    /// The full size, or the small one of a short run.
    fn size(&self, full: usize, short: usize) -> usize {
        if self.short { short } else { full }
    }

    /// Measures `run`, which is given how often, and answers how long that took. `name` has the form `group/what`.
    fn measure(&mut self, name: &str, unit: Unit, mut run: impl FnMut(u64) -> Duration) {
        let (group, what) = name.split_once('/').expect("a group and what it is");
        let mut seen = Vec::new();
        let mut group = self.criterion.benchmark_group(group);
        // Each sample the same number of runs, so that samples can be compared.
        group.sampling_mode(SamplingMode::Flat).bench_function(what, |b| {
            b.iter_custom(|n| {
                let spent = run(n);
                seen.push(spent.as_nanos() as f64 / n as f64);
                spent
            });
        });
        group.finish();
        // Criterion warms up first.
        seen.drain(..seen.len().saturating_sub(SAMPLES));
        if !seen.is_empty() {
            seen.sort_by(f64::total_cmp);
            self.note(name, unit, seen[seen.len() / 2]);
        }
    }

    fn note(&mut self, name: &str, unit: Unit, median: f64) {
        let (value, unit) = match unit {
            Unit::Nanoseconds => (median, "ns"),
            // 1 byte in a nanosecond is 1 GB in a second.
            Unit::Bytes(bytes) => (bytes as f64 / median, "GB/s"),
            Unit::Operations(operations) => (operations / median / 1e3, "TFLOP/s"),
        };
        let figures = format!("\"median_ns\": {median:.1}, \"value\": {value:.3}, \"unit\": \"{unit}\"");
        self.lines.push(format!("{{\"name\": \"{name}\", {figures}}}"));
        if let Some(path) = &self.json {
            let text = format!("[\n{}\n]\n", self.lines.join(",\n"));
            fs::write(path, text).expect("NDGC_BENCH_JSON names a file that can be written");
        }
    }

    /// Host time of submitting `run`, which makes so many launches.
    fn host<R>(&mut self, name: &str, launches: usize, mut run: impl FnMut() -> Result<R>) {
        let device = self.device.clone();
        let batch = (QUEUE / launches).max(1) as u64;
        self.measure(name, Unit::Nanoseconds, |n| {
            let mut spent = Duration::ZERO;
            let mut left = n;
            while left > 0 {
                let now = left.min(batch);
                let begun = Instant::now();
                for _ in 0..now {
                    black_box(run().expect("submitted"));
                }
                spent += begun.elapsed();
                device.synchronize().expect("done");
                left -= now;
            }
            spent
        });
    }

    /// Time of `run` until the device is done, many after one another.
    fn device<R>(&mut self, name: &str, unit: Unit, mut run: impl FnMut() -> Result<R>) {
        let device = self.device.clone();
        self.measure(name, unit, |n| {
            let begun = Instant::now();
            for _ in 0..n {
                black_box(run().expect("submitted"));
            }
            device.synchronize().expect("done");
            begun.elapsed()
        });
    }

    fn numbers(&self, rows: usize, columns: usize) -> Tensor {
        Generator::new(1).uniform(-1.0, 1.0, (rows, columns), DType::F32, &self.device).expect("memory")
    }
}

fn small_operations(bench: &mut Bench) {
    let [a, b] = [1f32, 2.0].map(|x| Tensor::full(x, 4, &bench.device).expect("memory"));
    bench.host("host/add_4", 1, || a.add(&b));
    bench.host("host/chain_of_10", 10, || {
        let mut x = a.add(&b)?;
        for _ in 0..3 {
            x = x.mul(&b)?.exp()?.affine(0.5, 1.0)?;
        }
        Ok(x)
    });
    let [m, n] = [bench.numbers(64, 64), bench.numbers(64, 64)];
    bench.host("host/matmul_64", 1, || m.matmul(&n));
    bench.host("host/softmax_64", 1, || m.softmax(1));
}

/// A block given back and one taken, among others that live.
fn pool(bench: &mut Bench) {
    for live in [100, 10_000, 100_000] {
        if bench.short && live > 10_000 {
            continue;
        }
        let mut pool = DevicePool::new(&bench.device);
        (0..live).for_each(|i| pool.fill(BLOCKS[i % BLOCKS.len()]));
        let mut at = 0;
        bench.measure(&format!("pool/alloc_free_{live}"), Unit::Nanoseconds, |n| {
            let begun = Instant::now();
            for _ in 0..n {
                // An order that neither repeats soon nor is foreseen by the prefetcher.
                at = (at * 21 + 7_919) % live;
                pool.replace(at, BLOCKS[at % BLOCKS.len()]);
            }
            begun.elapsed()
        });
    }
}

/// The last drop of an array alone; the same on the host, to compare.
fn last_drop(bench: &mut Bench) {
    const BATCH: usize = 256;
    for (name, device) in [("drop/cuda", bench.device.clone()), ("drop/cpu", Device::Cpu)] {
        bench.measure(name, Unit::Nanoseconds, |n| {
            let mut spent = Duration::ZERO;
            let mut left = n as usize;
            while left > 0 {
                let now = left.min(BATCH);
                gc::collect();
                let all: Vec<_> = (0..now).map(|_| Tensor::zeros(4, DType::F32, &device).expect("memory")).collect();
                device.synchronize().expect("done");
                let begun = Instant::now();
                drop(all);
                spent += begun.elapsed();
                left -= now;
            }
            spent
        });
    }
}

/// From pageable memory to the device, and into a new vector: what users write.
fn copies(bench: &mut Bench) {
    for (name, kib) in [("1KiB", 1), ("64KiB", 64), ("1MiB", 1 << 10), ("16MiB", 16 << 10), ("256MiB", 256 << 10)] {
        let count = bench.size(kib, kib.min(1 << 10)) << 8;
        let data: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let device = bench.device.clone();
        bench.measure(&format!("upload/{name}"), Unit::Bytes(count * 4), |n| {
            let begun = Instant::now();
            for _ in 0..n {
                black_box(Tensor::from_slice(&data, count, &device).expect("memory"));
                device.synchronize().expect("done");
            }
            begun.elapsed()
        });
        let array = Tensor::from_slice(&data, count, &device).expect("memory");
        bench.device(&format!("download/{name}"), Unit::Bytes(count * 4), || array.to_vec::<f32>());
    }
}

/// Kernels that do little for each of the bytes of 1 GiB; bytes read and bytes written are counted.
fn bandwidth(bench: &mut Bench) {
    let bytes = bench.size(1 << 30, 1 << 16);
    let (free, _) = bench.cuda.memory_info().expect("the driver says what is free");
    if free < 4 * bytes as u64 {
        return println!("the device has too little free memory for arrays of 1 GiB: {} MiB", free >> 20);
    }
    let a = bench.numbers(bytes / 4096, 1024);
    bench.device("bandwidth/affine_1GiB", Unit::Bytes(2 * bytes), || a.affine(1.5, 0.5));
    bench.device("bandwidth/copy_1GiB", Unit::Bytes(2 * bytes), || a.copy());
    let b = a.affine(0.5, 0.0).expect("memory");
    bench.device("bandwidth/add_1GiB", Unit::Bytes(3 * bytes), || a.add(&b));
    bench.device("bandwidth/sum_1GiB", Unit::Bytes(bytes), || a.sum_all());
    bench.device("bandwidth/sum_rows_1GiB", Unit::Bytes(bytes), || a.sum(1));
    bench.device("bandwidth/sum_columns_1GiB", Unit::Bytes(bytes), || a.sum(0));
    bench.device("bandwidth/softmax_1GiB", Unit::Bytes(2 * bytes), || a.softmax(1));
    let turned = a.t().expect("a matrix");
    bench.device("bandwidth/transposed_1GiB", Unit::Bytes(2 * bytes), || turned.contiguous());
}

/// Products of random matrices; zeros would be faster than any real data.
fn products(bench: &mut Bench) {
    let size = bench.size(8192, 64);
    let [a, b] = [bench.numbers(size, size), bench.numbers(size, size)];
    let unit = Unit::Operations(2.0 * (size as f64).powi(3));
    for (name, tf32) in [("matmul/f32_8192", false), ("matmul/tf32_8192", true)] {
        let before = bench.cuda.allow_tf32(tf32);
        bench.device(name, unit, || a.matmul(&b));
        bench.cuda.allow_tf32(before);
    }
}

struct Training {
    model: Mlp,
    optimizer: Adam,
    images: Tensor,
    labels: Tensor,
    /// The batch of a captured step.
    x: Tensor,
    y: Tensor,
    batch: usize,
}

impl Training {
    fn new(device: &Device, images: usize, batch: usize) -> Result<Self> {
        let mut random = Generator::new(7);
        let model = Mlp::new(&LAYERS, &mut random, device)?;
        let optimizer = Adam::new(model.variables(), 1e-3)?;
        let pixels = random.uniform(0.0, 1.0, (images, PIXELS), DType::F32, device)?;
        let labels = Tensor::from_vec((0..images as u32).map(|i| i % 10).collect(), images, device)?;
        let (x, y) = (pixels.narrow(0, 0, batch)?.copy()?, labels.narrow(0, 0, batch)?.copy()?);
        Ok(Training { model, optimizer, images: pixels, labels, x, y, batch })
    }

    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let loss = self.model.forward(x)?.cross_entropy(y)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss)
    }

    fn step_again(&mut self) -> Result<Tensor> {
        let (x, y) = (self.x.clone(), self.y.clone());
        self.step(&x, &y)
    }

    /// Runs `step` with the images and labels of each full batch.
    fn epoch(&mut self, mut step: impl FnMut(&mut Self, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
        for i in 0..self.labels.dims1()? / self.batch {
            let x = self.images.narrow(0, i * self.batch, self.batch)?;
            let y = self.labels.narrow(0, i * self.batch, self.batch)?;
            step(self, &x, &y)?;
        }
        Ok(())
    }
}

fn training(bench: &mut Bench) {
    for batch in [32, 1024] {
        if bench.short && batch > 32 {
            continue;
        }
        let images = bench.size(IMAGES, 2 * batch);
        let mut training = Training::new(&bench.device, images, batch).expect("memory");
        let name = |what: &str| format!("mlp_{batch}/{what}");
        bench.host(&name("step_host"), 60, || training.step_again());
        bench.device(&name("step"), Unit::Nanoseconds, || training.step_again());
        bench.device(&name("epoch"), Unit::Nanoseconds, || training.epoch(|t, x, y| t.step(x, y).map(drop)));
        gc::collect();
        let device = bench.device.clone();
        let (graph, _loss) = device.capture(|| training.step_again()).expect("a step that ran before");
        bench.host(&name("replay_host"), 60, || graph.replay());
        bench.device(&name("replay"), Unit::Nanoseconds, || graph.replay());
        bench.device(&name("epoch_replay"), Unit::Nanoseconds, || {
            no_grad(|| {
                training.epoch(|t, x, y| {
                    t.x.copy_(x)?;
                    t.y.copy_(y)?;
                    graph.replay()
                })
            })
        });
    }
}
