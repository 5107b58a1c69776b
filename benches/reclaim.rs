//! What reclaiming costs: an empty queue, a batch, a million orphans, and the longest single call among them.
//!
//! ```text
//! cargo bench --bench reclaim
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ndgc::{DType, Device, NdManager, Proxy, Tensor, gc};

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

/// A million orphans: how long ordinary calls take until all are closed, and the longest of them (printed).
fn million(c: &mut Criterion) {
    let mut group = c.benchmark_group("reclaim/million_orphans");
    group.sample_size(10);
    let probe = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory");
    let mut longest: Vec<Duration> = Vec::new();
    group.bench_function("until_empty", |b| {
        b.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                gc::collect();
                drop(arrays(1_000_000));
                let (begun, mut worst) = (Instant::now(), Duration::ZERO);
                while gc::stats().queued > 0 {
                    let call = Instant::now();
                    black_box(probe.storage_bytes().expect("open"));
                    worst = worst.max(call.elapsed());
                }
                spent += begun.elapsed();
                longest.push(worst);
            }
            spent
        });
    });
    longest.sort();
    if let (Some(best), Some(worst)) = (longest.first(), longest.last()) {
        println!(
            "longest single call while a million orphans drain: best run {best:?}, median {:?}, worst {worst:?}",
            longest[longest.len() / 2]
        );
    }
    group.finish();
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

criterion_group!(benches, empty, drain, million, close_manager);
criterion_main!(benches);
