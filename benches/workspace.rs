//! What a workspace costs: bytes, arrays, cycles, and the check for leaked arrays.
//!
//! Bytes alone stand beside `bumpalo`'s and beside the pool's; a whole array (key, metadata, storage, bytes) beside one
//! of the pool. Arrays are dropped outside of the timing unless a name says otherwise.
//!
//! ```text
//! cargo bench --bench workspace
//! ```

use std::alloc::Layout;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::{DType, Device, LearningPolicy, Proxy, Tensor, Workspace, WorkspaceConfig, bench};

/// Requests in a cycle.
const BATCH: usize = 1000;
/// Arrays kept at a time: as many as a training step has, and a thread has stock for.
const KEPT: usize = 200;
/// Live arrays when a cycle ends.
const MANY: usize = 10_000;

fn config(bytes: u64) -> WorkspaceConfig {
    WorkspaceConfig::builder().initial_size(bytes).shrink_after(None).build().expect("no contradiction")
}

fn enter(id: &str, config: &WorkspaceConfig) -> ndgc::WorkspaceCycle {
    Workspace::enter(id, config).expect("memory")
}

/// What `iterations` steps cost if each takes as long as in the median batch: `batch` runs `steps` of them and says how
/// long. So what else runs on the machine counts for little.
fn batches(iterations: u64, steps: usize, mut batch: impl FnMut() -> Duration) -> Duration {
    let mut spent: Vec<Duration> = (0..iterations.div_ceil(steps as u64)).map(|_| batch()).collect();
    spent.sort();
    spent[spent.len() / 2].mul_f64(iterations as f64 / steps as f64)
}

/// A batch of `BATCH` steps.
fn timed(mut step: impl FnMut()) -> Duration {
    let begun = Instant::now();
    (0..BATCH).for_each(|_| step());
    begun.elapsed()
}

fn bytes(c: &mut Criterion) {
    let mut group = c.benchmark_group("workspace/bytes");
    for size in [16, 1024] {
        let config = config((BATCH * size.max(64)) as u64);
        let id = format!("BYTES {size}");
        group.bench_function(BenchmarkId::new("ndgc", size), |b| {
            b.iter_custom(|n| {
                batches(n, BATCH, || {
                    let _cycle = enter(&id, &config);
                    timed(|| assert_ne!(bench::take_bytes(black_box(size)), 0))
                })
            });
        });
        let mut bump = bumpalo::Bump::with_capacity(2 * BATCH * size.max(64));
        group.bench_function(BenchmarkId::new("bumpalo", size), |b| {
            b.iter_custom(|n| {
                batches(n, BATCH, || {
                    bump.reset();
                    timed(|| {
                        let layout = Layout::from_size_align(black_box(size), 64).expect("a layout");
                        black_box(bump.alloc_layout(layout));
                    })
                })
            });
        });
    }
    group.finish();
}

/// Makes `KEPT` arrays, and drops them afterwards.
fn made(arrays: &mut Vec<Proxy>, mut make: impl FnMut() -> Proxy) -> Duration {
    let begun = Instant::now();
    (0..KEPT).for_each(|_| arrays.push(make()));
    let spent = begun.elapsed();
    arrays.clear();
    ndgc::gc::collect();
    spent
}

fn array(c: &mut Criterion) {
    let mut group = c.benchmark_group("workspace/array");
    let config = config((BATCH * 64) as u64);
    let mut arrays = Vec::with_capacity(KEPT);
    let like = bench::Unset::new(4);
    let mut unset = || black_box(&like).make();
    let mut zeros = || Tensor::zeros(black_box(4), DType::F32, &Device::Cpu).expect("memory");
    group.bench_function("ndgc", |b| {
        b.iter_custom(|n| {
            batches(n, KEPT, || {
                let _cycle = enter("ARRAY", &config);
                made(&mut arrays, &mut unset)
            })
        });
    });
    group.bench_function("pool", |b| b.iter_custom(|n| batches(n, KEPT, || made(&mut arrays, &mut unset))));
    group.bench_function("ndgc_zeros", |b| {
        b.iter_custom(|n| {
            batches(n, KEPT, || {
                let _cycle = enter("ARRAY", &config);
                made(&mut arrays, &mut zeros)
            })
        });
    });
    group.bench_function("pool_zeros", |b| b.iter_custom(|n| batches(n, KEPT, || made(&mut arrays, &mut zeros))));
    // Made, dropped, and its slot taken back by the next one.
    group.bench_function("ndgc_dropped", |b| {
        b.iter_custom(|n| {
            batches(n, BATCH, || {
                let _cycle = enter("ARRAY", &config);
                timed(|| drop(black_box(unset())))
            })
        });
    });
    group.bench_function("pool_dropped", |b| {
        b.iter_custom(|n| batches(n, BATCH, || timed(|| drop(black_box(unset())))))
    });
    group.finish();
}

fn cycles(c: &mut Criterion) {
    let mut group = c.benchmark_group("workspace/cycle");
    let config = config((MANY * 64) as u64);
    let workspace = Workspace::for_current_thread("CYCLE", &config).expect("memory");
    let mut plain = |name: &str, mut step: &mut dyn FnMut()| {
        group.bench_function(name, |b| b.iter_custom(|n| batches(n, BATCH, || timed(&mut step))));
    };
    plain("empty", &mut || workspace.activate().expect("open").leave());
    plain("empty_by_name", &mut || enter("CYCLE", &config).leave());
    {
        let _outer = workspace.activate().expect("open");
        let _inner = enter("INNER", &config);
        plain("nested", &mut || workspace.activate().expect("open").leave());
    }
    let like = bench::Unset::new(4);
    for live in [10, MANY] {
        let mut arrays = Vec::with_capacity(live);
        let fill = |arrays: &mut Vec<Proxy>| arrays.extend((0..live).map(|_| like.make()));
        group.bench_function(BenchmarkId::new("end", live), |b| {
            b.iter_custom(|n| {
                batches(n, 1, || {
                    ndgc::gc::collect();
                    let cycle = workspace.activate().expect("open");
                    fill(&mut arrays);
                    let begun = Instant::now();
                    cycle.leave();
                    let spent = begun.elapsed();
                    arrays.clear();
                    spent
                })
            });
        });
        group.bench_function(BenchmarkId::new("drops_and_end", live), |b| {
            b.iter_custom(|n| {
                batches(n, 1, || {
                    ndgc::gc::collect();
                    let cycle = workspace.activate().expect("open");
                    fill(&mut arrays);
                    let begun = Instant::now();
                    arrays.clear();
                    cycle.leave();
                    begun.elapsed()
                })
            });
        });
    }
    group.finish();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// An operation on four elements: the check for leaked arrays, and the whole.
fn small_operation(c: &mut Criterion) {
    let mut group = c.benchmark_group("workspace/add_4");
    let config = config(1 << 20);
    let ones = || Tensor::ones(4, DType::F32, &Device::Cpu).expect("memory");
    let (a, b) = (ones(), ones());
    let outer = enter("OPERANDS", &config);
    let (x, y) = (ones(), ones());
    let add = |a: &Proxy, b: &Proxy| drop(black_box(a.add(b).expect("open")));
    {
        // The results are the pool's in both cases: only the operands differ, and with them the check.
        let _out = Workspace::scope_out();
        for (name, a, b) in [("detached", &a, &b), ("operands_of_a_workspace", &x, &y)] {
            group.bench_function(name, |bench| bench.iter_custom(|n| batches(n, BATCH, || timed(|| add(a, b)))));
        }
        checked("add of 4 elements", || add(&a, &b), || add(&x, &y));
        let resolve = |a: &Proxy, b: &Proxy| {
            black_box(bench::resolve_two(a, b));
        };
        checked("resolve two", || resolve(&a, &b), || resolve(&x, &y));
    }
    group.bench_function("all_in_a_workspace", |bench| {
        bench.iter_custom(|n| {
            batches(n, BATCH, || {
                let _cycle = enter("RESULTS", &config);
                timed(|| add(&x, &y))
            })
        });
    });
    let plans = planned();
    group.bench_function("all_in_a_planned_workspace", |bench| {
        bench.iter_custom(|n| {
            batches(n, BATCH, || {
                let _cycle = enter("PLANNED", &plans);
                timed(|| add(&x, &y))
            })
        });
    });
    outer.leave();
    group.finish();
}

fn planned() -> WorkspaceConfig {
    WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned).build().expect("no contradiction")
}

/// The end of a cycle from which a plan is made, of so many arrays of mixed sizes, each tenth of which is kept.
fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("workspace/plan");
    for count in [100, 1000, 8000] {
        group.bench_function(BenchmarkId::new("made", count), |bench| {
            bench.iter_custom(|n| {
                let once = || {
                    let workspace = Workspace::for_current_thread("PLAN", &planned()).expect("memory");
                    let cycle = workspace.activate().expect("memory");
                    let make =
                        |i: usize| Tensor::empty(64 + i * 7919 % 4096, DType::F32, &Device::Cpu).expect("memory");
                    let kept: Vec<Proxy> =
                        (0..count).map(make).enumerate().filter_map(|(i, x)| (i % 10 == 0).then_some(x)).collect();
                    let begun = Instant::now();
                    cycle.leave();
                    let spent = begun.elapsed();
                    drop(kept);
                    workspace.destroy().expect("it is closed");
                    spent
                };
                (0..n).map(|_| once()).sum()
            });
        });
    }
    group.finish();
}

/// Prints what `attached` costs beside `detached`, in interleaved rounds of the same length.
fn checked(what: &str, detached: impl Fn(), attached: impl Fn()) {
    let (mut ratios, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..4000 {
        let [first, with, second] = [timed(&detached), timed(&attached), timed(&detached)].map(|t| t.as_secs_f64());
        ratios.push(2. * with / (first + second));
        plain.push(first / BATCH as f64);
    }
    let (ratio, plain) = (median(ratios), median(plain));
    println!(
        "{what}: arrays of a workspace to detached ones {ratio:.4}, {:+.2} ns of {:.1} (median of 4000 rounds)",
        (ratio - 1.) * plain * 1e9,
        plain * 1e9
    );
}

criterion_group!(benches, bytes, array, cycles, small_operation, plan);
criterion_main!(benches);
