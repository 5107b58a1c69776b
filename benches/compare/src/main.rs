//! Compares operations of ndgc with candle, burn (its `flex` backend), ndarray and hand-written loops in one run.
//!
//! ```text
//! cargo run --release -- [--quick] [--rounds N] [--workloads a,b] [--clock wall|cpu] [--threads N] [--out FILE.md]
//! cargo run --release --no-default-features --features rivals  # the rivals alone, candle as the baseline
//! cargo run --release --features mimalloc            # another allocator, for every contender
//! ```
//!
//! Each round runs every contender once, in rotated order, for about 50 ms; the ratios are medians over
//! rounds of figures taken in the same round. The first contender is the baseline and takes part twice:
//! the column `control` is the second against the first, and a ratio inside its spread says nothing.
//!
//! # One process each
//! Each contender is a worker process with its own heap, a new one each round, started with `RAYON_NUM_THREADS`
//! (candle, gemm) and `NDGC_THREADS` as `--threads` says, else 1; ndarray, burn and the floor have one thread always.
//! One worker runs at a time. On a shared machine pin all of them to a core (`taskset -c 1`) and take `--clock cpu`,
//! which leaves out the time spent waiting for the core.
//!
//! # One build
//! Cargo unites features: with ndgc in the build candle and burn get the AVX-512 kernels of the `gemm` crate
//! too, which their users have to ask for. The report says which kernels were in.

mod counting;
mod measure;
mod options;
mod report;
mod rivals;
mod work;
mod worker;

use std::io;
use std::process::ExitCode;

use options::Options;
use rivals::Rival;
use work::Work;
use worker::Worker;

#[cfg(not(feature = "mimalloc"))]
#[global_allocator]
static ALLOCATOR: counting::Counting<std::alloc::System> = counting::Counting(std::alloc::System);

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: counting::Counting<mimalloc::MiMalloc> = counting::Counting(mimalloc::MiMalloc);

/// Largest difference between two contenders' values, times `max(1, |value|)`. Sums of 4,096 numbers around 0 differ by
/// what their order loses.
fn tolerance(work: Work) -> f32 {
    if matches!(work, Work::Sum(..) | Work::Cycle | Work::CycleOfHandles) { 1e-3 } else { 1e-4 }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [flag, rival, work] if flag == worker::FLAG => worker::serve(rival, work),
        _ => Options::parse(args.into_iter()).and_then(|options| compare(&options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<(), String> {
    let rivals = rivals::all();
    let mut rows = Vec::new();
    for &work in &options.works {
        eprintln!("{}", work.name());
        let rounds = measure::run(|| start(&rivals, work, options.n_threads), options)
            .map_err(|e| format!("{}: {e}", work.name()))?;
        rows.push(report::Row::new(work, &rounds));
    }
    let text = report::markdown(&rivals, &rows, options);
    print!("{text}");
    match &options.out {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}

/// A worker for each contender and one more for the baseline, all with the same values for the workload.
fn start(rivals: &[Rival], work: Work, n_threads: usize) -> io::Result<Vec<Worker>> {
    let mut workers: Vec<Worker> = Vec::new();
    for rival in rivals.iter().chain(&rivals[..1]) {
        let worker = Worker::start(rival.name, work, n_threads)?;
        let baseline = workers.first().unwrap_or(&worker);
        check_agreement(&baseline.sample, &worker.sample, tolerance(work))
            .map_err(|difference| io::Error::other(format!("{}: {difference}", rival.name)))?;
        workers.push(worker);
    }
    Ok(workers)
}

fn check_agreement(expected: &[f32], values: &[f32], tolerance: f32) -> Result<(), String> {
    if expected.len() != values.len() {
        return Err(format!("{} values, the baseline has {}", values.len(), expected.len()));
    }
    // False for NaN, so values that are not numbers never agree.
    let agree = |x: f32, y: f32| (x - y).abs() <= tolerance * x.abs().max(1.0);
    match expected.iter().zip(values).position(|(&x, &y)| !agree(x, y)) {
        None => Ok(()),
        Some(i) => Err(format!("value {i} is {}, the baseline has {}", values[i], expected[i])),
    }
}
