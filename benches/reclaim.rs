//! What reclaiming costs: an empty queue, a batch, a million orphans, and the longest single call among them.
//!
//! ```text
//! cargo bench --bench reclaim
//! ```

use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ndgc::{DType, Device, NdManager, Proxy, Tensor, Var, gc, graph_report};

fn arrays(n: usize) -> Vec<Proxy> {
    (0..n).map(|_| Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory")).collect()
}

/// The look at an empty queue that every call makes.
fn empty(c: &mut Criterion) {
    let mut group = c.benchmark_group("reclaim/empty_queue");
    gc::collect();
    group.bench_function("1000_looks", |b| b.iter(|| ndgc::bench::look_at_queue(1000)));
    group.finish();
}

/// Draining, an array.
fn drain(c: &mut Criterion) {
    let mut group = c.benchmark_group("reclaim/drain_per_array");
    for n in [256usize, 10_000] {
        group.bench_function(format!("{n}"), |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations.div_ceil(n as u64) {
                    gc::collect();
                    drop(arrays(n));
                    let begun = Instant::now();
                    black_box(gc::collect());
                    spent += begun.elapsed();
                }
                spent
            });
        });
    }
    group.finish();
}

/// How often the system took this thread from its core.
fn switches() -> i64 {
    // SAFETY: writes a `rusage` that is ours; all zeros is one.
    #[allow(unsafe_code)]
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_nivcsw + usage.ru_nvcsw
    }
}

/// The longest of several calls, those left out in which the thread was switched.
#[derive(Default)]
struct Longest {
    best: Duration,
    left_out: u32,
}

impl Longest {
    fn time(&mut self, call: impl FnOnce()) {
        let before = switches();
        let begun = Instant::now();
        call();
        let spent = begun.elapsed();
        if switches() == before {
            self.best = self.best.max(spent);
        } else {
            self.left_out += 1;
        }
    }
}

/// How long ordinary calls take until `left` says that nothing is left of what `make` left behind, and the longest of
/// them.
fn longest_call(c: &mut Criterion, name: &str, mut make: impl FnMut(), left: impl Fn() -> bool, call: impl Fn()) {
    let mut group = c.benchmark_group(format!("reclaim/{name}"));
    group.sample_size(10);
    let mut runs: Vec<Longest> = Vec::new();
    group.bench_function("until_done", |b| {
        b.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                gc::collect();
                make();
                let mut longest = Longest::default();
                let begun = Instant::now();
                while left() {
                    longest.time(&call);
                }
                spent += begun.elapsed();
                runs.push(longest);
            }
            spent
        });
    });
    runs.sort_by_key(|run| run.best);
    if let [first, .., last] = &runs[..] {
        let (median, left_out) = (runs[runs.len() / 2].best, runs.iter().map(|run| run.left_out).sum::<u32>());
        let (best, worst) = (first.best, last.best);
        println!(
            "{name}: longest call: best run {best:?}, median {median:?}, worst {worst:?}; left out: {left_out} of {} runs",
            runs.len()
        );
    }
    group.finish();
}

/// What died is ended a piece at each call: a million orphans, a graph of a million steps, and pages of a peak that is
/// over.
fn longest_calls(c: &mut Criterion) {
    let probe = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory");
    let look = || {
        black_box(probe.storage_bytes().expect("open"));
    };
    longest_call(c, "million_orphans", || drop(arrays(1_000_000)), || gc::stats().queued > 0, look);

    let x = Var::from_vec(vec![1f32; 4], 4, &Device::Cpu).expect("memory");
    let own = graph_report().nodes;
    let chain = || {
        let mut sum = x.affine(1., 0.).expect("memory");
        for _ in 1..1_000_000 {
            sum = sum.affine(1., 1.).expect("memory");
        }
    };
    longest_call(c, "million_steps", chain, || graph_report().nodes > own, look);

    let peak = || drop((0..64).map(|_| Tensor::zeros(1 << 20, DType::F32, &Device::Cpu)).collect::<Vec<_>>());
    // Longer than the memory of the peak lasts.
    let calls = Cell::new(0u32);
    let large = || drop(Tensor::empty(1 << 18, DType::F32, &Device::Cpu).expect("memory"));
    let going = || {
        calls.set((calls.get() + 1) % 8192);
        calls.get() != 0
    };
    longest_call(c, "peak_that_is_over", peak, going, large);
}

/// Closing a manager with 10,000 arrays, an array.
fn close_manager(c: &mut Criterion) {
    let mut group = c.benchmark_group("reclaim/close_manager_per_array");
    const N: u64 = 10_000;
    group.bench_function("10000", |b| {
        b.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations.div_ceil(N) {
                let manager = NdManager::new_base_manager(&Device::Cpu).expect("manager");
                let held: Vec<Proxy> = (0..N).map(|_| manager.zeros(4, DType::F32).expect("memory")).collect();
                let begun = Instant::now();
                manager.close().expect("open");
                spent += begun.elapsed();
                drop(held);
                gc::collect();
            }
            spent
        });
    });
    group.finish();
}

criterion_group!(benches, empty, drain, longest_calls, close_manager);
criterion_main!(benches);
