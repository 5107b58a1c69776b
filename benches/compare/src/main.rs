//! Compares small operations of ndgc with candle, burn (its `flex` backend) and ndarray in one process.
//!
//! ```text
//! cargo run --release -- [--quick] [--rounds N] [--workloads a,b] [--clock wall|cpu] [--out FILE.md]
//! cargo run --release --no-default-features          # the rivals alone, candle as the baseline
//! cargo run --release --features mimalloc            # another allocator, for every contender
//! ```
//!
//! Each round runs every contender once, in rotated order, for about 50 ms; the ratios are medians over
//! rounds of figures taken in the same round. The baseline runs twice a round, and the column `control` is
//! its second run against its first: a ratio inside the spread of that column says nothing.
//!
//! # One thread
//! `main` sets `RAYON_NUM_THREADS` (candle, gemm) and `MATMUL_NUM_THREADS` (ndarray) to 1 before it touches
//! a library, and burn is built without `rayon`. On a shared machine pin the process to a core as well
//! (`taskset -c 1`) and take `--clock cpu`, which leaves out the time spent waiting for the core.
//!
//! # What shares a process
//! All contenders of a run share one heap and one build of the `gemm` crate. The heap: glibc gives memory
//! back to the kernel past a threshold that earlier large frees raise, and who holds the top of the heap
//! decides who pays page faults; read the table of faults beside the times, and run one workload a process
//! (`--workloads chain10_4096`) to see it alone. The kernels: cargo unites features, so with ndgc in the
//! build candle and burn get the AVX-512 kernels of gemm too, which their users have to ask for.

mod measure;
mod options;
mod report;
mod rivals;
mod work;

use std::process::ExitCode;

use options::Options;
use rivals::{Case, Rival};
use work::Work;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Largest difference between two contenders' values, times `max(1, |value|)`.
const TOLERANCE: f32 = 1e-4;

fn main() -> ExitCode {
    limit_to_one_thread();
    match Options::parse(std::env::args().skip(1)).and_then(|options| compare(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn limit_to_one_thread() {
    for name in ["RAYON_NUM_THREADS", "MATMUL_NUM_THREADS", "OMP_NUM_THREADS"] {
        // SAFETY: this is the first thing the process does; no other thread exists that could read the
        // environment at the same time.
        unsafe { std::env::set_var(name, "1") };
    }
}

fn compare(options: &Options) -> Result<(), String> {
    let rivals = rivals::all();
    let mut rows = Vec::new();
    for &work in &options.works {
        eprintln!("{}", work.name());
        let mut cases = prepare(&rivals, work)?;
        let rounds = measure::run(&mut cases, options);
        rows.push(report::Row::new(work, &rounds, options.clock));
    }
    let text = report::markdown(&rivals, &rows, options);
    print!("{text}");
    match &options.out {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}

/// The cases of all contenders, once their values agree with those of the first.
fn prepare(rivals: &[Rival], work: Work) -> Result<Vec<Case>, String> {
    let cases: Vec<Case> = rivals.iter().map(|rival| (rival.prepare)(work)).collect();
    for (rival, case) in rivals.iter().zip(&cases) {
        check_agreement(work, (rivals[0].name, &cases[0].sample), (rival.name, &case.sample))?;
    }
    Ok(cases)
}

fn check_agreement(work: Work, left: (&str, &[f32]), right: (&str, &[f32])) -> Result<(), String> {
    if left.1.len() != right.1.len() {
        let (n_left, n_right) = (left.1.len(), right.1.len());
        return Err(format!("{}: {} has {n_left} values, {} has {n_right}", work.name(), left.0, right.0));
    }
    let differs = |x: f32, y: f32| !((x - y).abs() <= TOLERANCE * x.abs().max(1.0));
    match left.1.iter().zip(right.1).position(|(&x, &y)| differs(x, y)) {
        None => Ok(()),
        Some(i) => {
            Err(format!("{}: value {i}: {} has {}, {} has {}", work.name(), left.0, left.1[i], right.0, right.1[i]))
        }
    }
}
