//! What limits and sight cost: an array made and dropped under budgets, what is counted of it, an operation that is
//! noted, a timeline written.
//!
//! ```text
//! cargo bench --bench memory
//! ```

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::memory::{self, TraceMode};
use ndgc::{Budget, DType, Device, NdManager, Tensor, gc};

/// An array of a manager below five others, of which so many have a budget.
fn budgets(criterion: &mut Criterion) {
    let _on = gc::scoped(true);
    let mut group = criterion.benchmark_group("budget");
    for count in [0, 1, 2, 5] {
        let mut managers = vec![NdManager::new_base_manager(&Device::Cpu).expect("a manager")];
        for depth in 0..5 {
            managers.push(managers[depth].new_sub_manager().expect("a manager"));
        }
        for manager in managers.iter().rev().take(count) {
            manager.set_budget(Budget::new().max_bytes(1 << 30)).expect("an open manager");
        }
        let last = &managers[5];
        group.bench_function(BenchmarkId::new("made and dropped", count), |bench| {
            bench.iter(|| black_box(Tensor::empty(4, DType::F32, last).expect("memory")));
        });
        group.bench_function(BenchmarkId::new("can_fit", count), |bench| bench.iter(|| last.can_fit(black_box(1000))));
    }
    let tenant = NdManager::new_base_manager(&Device::Cpu).expect("a manager");
    tenant.set_budget(Budget::new().max_bytes(1000)).expect("an open manager");
    group.bench_function("refused", |bench| {
        bench.iter(|| Tensor::zeros(2000, DType::U8, &tenant).expect_err("beyond the budget"));
    });
}

/// What is always counted, and what it takes to read it.
fn stats(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stats");
    group.bench_function("bytes taken and given back", |bench| bench.iter(|| ndgc::bench::count_bytes(black_box(64))));
    group.bench_function("Device::memory", |bench| bench.iter(|| Device::Cpu.memory()));
    for live in [100, 10_000] {
        let _kept: Vec<Tensor> =
            (0..live).map(|_| Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory")).collect();
        group.bench_function(BenchmarkId::new("memory::stats", live), |bench| {
            bench.iter(|| memory::stats(&Device::Cpu));
        });
    }
}

fn trace(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trace");
    let a = Tensor::ones(4, DType::F32, &Device::Cpu).expect("memory");
    for mode in [TraceMode::Off, TraceMode::Sampled, TraceMode::Full] {
        memory::set_trace(mode);
        group.bench_function(BenchmarkId::new("add of 4", format!("{mode:?}")), |bench| {
            bench.iter(|| black_box((&a + &a).expect("memory")));
        });
    }
    // A million records: half a million arrays, of which a hundred are alive at a time.
    memory::clear_trace();
    let bytes = memory::set_trace_bytes(1 << 30);
    memory::set_trace(TraceMode::Full);
    let mut kept = VecDeque::new();
    for count in 0..500_000 {
        kept.push_back((&a + &a).expect("memory"));
        if count >= 100 {
            kept.pop_front();
        }
    }
    memory::set_trace(TraceMode::Off);
    group.sample_size(10);
    group.bench_function("timeline of a million records", |bench| bench.iter(memory::timeline));
    let timeline = memory::timeline();
    group.bench_function("its page", |bench| bench.iter(|| timeline.to_html("a run").len()));
    group.bench_function("its folded stacks", |bench| bench.iter(|| timeline.to_folded().len()));
    group.bench_function("its requests", |bench| bench.iter(|| timeline.recording().requests()));
    group.bench_function("its snapshot", |bench| {
        bench.iter(|| timeline.write_pytorch_snapshot(&mut std::io::sink()).expect("no file"));
    });
    group.bench_function("its trace events", |bench| {
        bench.iter(|| timeline.write_chrome_json(&mut std::io::sink()).expect("no file"));
    });
    memory::set_trace_bytes(bytes);
    memory::clear_trace();
}

criterion_group!(benches, budgets, stats, trace);
criterion_main!(benches);
