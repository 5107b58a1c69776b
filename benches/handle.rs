//! What a handle costs: resolve, clone, drop, create, and the full cycle of making a result and dropping an older one.
//!
//! Beside each, in the same run, its two baselines: `A_arc`, an `Arc` of the same metadata with no registry at all, and
//! `D_dashmap`, the design as DJL wrote it: `DashMap<Uuid, Arc<_>>` with a queue of dead keys that each call drains.
//!
//! ```text
//! cargo bench --bench handle
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::{DType, Device, Proxy, Tensor};

#[path = "baseline/mod.rs"]
mod baseline;

use baseline::{ArcArray, Djl};

/// Live arrays among which the benchmarks pick.
const LIVE: usize = 10_000;

fn arrays(n: usize) -> Vec<Proxy> {
    (0..n).map(|_| Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory")).collect()
}

/// A walk through `0..n` that does not repeat soon and that the prefetcher does not foresee.
fn next(at: usize, n: usize) -> usize {
    (at * 21 + 7_919) % n
}

fn resolve(c: &mut Criterion) {
    let mut group = c.benchmark_group("handle/resolve_two");
    for live in [100, LIVE, 1_000_000] {
        let ours = arrays(live);
        group.bench_function(BenchmarkId::new("ndgc", live), |b| {
            let mut at = 0;
            b.iter(|| {
                at = next(at, live);
                baseline::resolve_two(&ours[at], &ours[(at + 1) % live])
            });
        });
        drop(ours);
        let arcs: Vec<ArcArray> = (0..live).map(|_| ArcArray::new()).collect();
        group.bench_function(BenchmarkId::new("A_arc", live), |b| {
            let mut at = 0;
            b.iter(|| {
                at = next(at, live);
                (black_box(arcs[at].clone()), black_box(arcs[(at + 1) % live].clone()))
            });
        });
        drop(arcs);
        if live <= LIVE {
            let djl = Djl::new();
            let keys: Vec<_> = (0..live).map(|_| djl.create()).collect();
            group.bench_function(BenchmarkId::new("D_dashmap", live), |b| {
                let mut at = 0;
                b.iter(|| {
                    at = next(at, live);
                    (djl.resolve(&keys[at]), djl.resolve(&keys[(at + 1) % live]))
                });
            });
        }
    }
    group.finish();
}

fn clone_and_drop(c: &mut Criterion) {
    let mut group = c.benchmark_group("handle/clone_drop");
    let array = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory");
    group.bench_function("ndgc", |b| b.iter(|| black_box(array.clone())));
    let arc = ArcArray::new();
    group.bench_function("A_arc", |b| b.iter(|| black_box(arc.clone())));
    group.finish();
}

/// The last drop alone: arrays are made outside the timing.
fn last_drop(c: &mut Criterion) {
    let mut group = c.benchmark_group("handle/last_drop");
    const BATCH: u64 = 1024;
    let timed = |iterations: u64, make: &mut dyn FnMut() -> Box<dyn FnOnce()>| {
        let mut spent = Duration::ZERO;
        for _ in 0..iterations.div_ceil(BATCH) {
            let run = make();
            let begun = Instant::now();
            run();
            spent += begun.elapsed();
        }
        spent
    };
    group.bench_function("ndgc", |b| {
        b.iter_custom(|n| {
            timed(n, &mut || {
                ndgc::gc::collect();
                let all = arrays(BATCH as usize);
                Box::new(move || drop(all))
            })
        });
    });
    group.bench_function("A_arc", |b| {
        b.iter_custom(|n| {
            timed(n, &mut || {
                let all: Vec<ArcArray> = (0..BATCH).map(|_| ArcArray::new()).collect();
                Box::new(move || drop(all))
            })
        });
    });
    group.finish();
}

/// A small array made and ended: by its last drop, and by hand before that.
fn end(c: &mut Criterion) {
    let mut group = c.benchmark_group("handle/zeros_4");
    let make = || Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory");
    group.bench_function("dropped", |b| b.iter(|| drop(black_box(make()))));
    group.bench_function("closed_and_dropped", |b| b.iter(|| black_box(make()).close()));
    group.finish();
}

fn cycle(c: &mut Criterion) {
    // What is dead of the benchmarks before would be ended within this one.
    ndgc::gc::collect();
    let mut group = c.benchmark_group("handle/cycle");
    for threads in [1, 2] {
        group.bench_function(BenchmarkId::new("ndgc", threads), |b| {
            b.iter_custom(|n| baseline::on_threads(threads, n, || baseline::ndgc_cycle(LIVE)));
        });
        group.bench_function(BenchmarkId::new("A_arc", threads), |b| {
            b.iter_custom(|n| baseline::on_threads(threads, n, || baseline::arc_cycle(LIVE)));
        });
        let djl = Djl::new();
        group.bench_function(BenchmarkId::new("D_dashmap", threads), |b| {
            b.iter_custom(|n| baseline::on_threads(threads, n, || baseline::djl_cycle(&djl, LIVE)));
        });
    }
    group.finish();
}

/// One array resolved by all threads at once: nothing shared is written.
fn hot(c: &mut Criterion) {
    let mut group = c.benchmark_group("handle/hot_array");
    let array = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory");
    for threads in [1, 2] {
        group.bench_function(BenchmarkId::new("ndgc", threads), |b| {
            b.iter_custom(|n| {
                baseline::on_threads(threads, n, || {
                    let array = array.clone();
                    move || {
                        black_box(baseline::resolve(&array));
                    }
                })
            });
        });
    }
    group.finish();
}

/// An operation on four elements, result dropped: the whole road.
fn small_operation(c: &mut Criterion) {
    let mut group = c.benchmark_group("handle/add_4");
    let a = Tensor::ones(4, DType::F32, &Device::Cpu).expect("memory");
    let b = Tensor::ones(4, DType::F32, &Device::Cpu).expect("memory");
    group.bench_function("ndgc", |bench| bench.iter(|| black_box(a.add(&b).expect("sum"))));
    let manager = ndgc::NdManager::new_base_manager(&Device::Cpu).expect("manager");
    let (c1, c2) = (manager.ones(4, DType::F32).expect("ones"), manager.ones(4, DType::F32).expect("ones"));
    let on = ndgc::gc::scoped(true);
    group.bench_function("ndgc_managed_reclaiming", |bench| bench.iter(|| black_box(c1.add(&c2).expect("sum"))));
    drop(on);
    group.bench_function("A_vec", |bench| {
        let (x, y) = (black_box(vec![1f32; 4]), black_box(vec![1f32; 4]));
        bench.iter(|| x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<f32>>());
    });
    group.finish();
}

criterion_group!(benches, resolve, clone_and_drop, last_drop, end, cycle, hot, small_operation);
criterion_main!(benches);
