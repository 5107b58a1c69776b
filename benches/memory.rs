//! What limits and sight cost: an array made and dropped under budgets and limits, a request that a step of the ladder
//! saves, collections that come by themselves, what is counted of an array, an operation that is noted, a timeline
//! written.
//!
//! ```text
//! cargo bench --bench memory
//! ```

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::memory::{self, TraceMode};
use ndgc::{Budget, DType, Device, NdManager, SimConfig, Tensor, gc};

const MIB: u64 = 1 << 20;

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
    for (name, is_shared) in [("none", false), ("one for both", true)] {
        let house = NdManager::new_base_manager(&Device::Cpu).expect("a manager");
        if is_shared {
            house.set_budget(Budget::new().max_bytes(1 << 30)).expect("an open manager");
        }
        group.bench_function(BenchmarkId::new("by each of two threads", name), |bench| {
            bench.iter_custom(|iterations| two_threads(&house, iterations));
        });
    }
    let tenant = NdManager::new_base_manager(&Device::Cpu).expect("a manager");
    tenant.set_budget(Budget::new().max_bytes(1000)).expect("an open manager");
    group.bench_function("refused", |bench| {
        bench.iter(|| Tensor::zeros(2000, DType::U8, &tenant).expect_err("beyond the budget"));
    });
}

/// The time of two threads that make and drop so many arrays each, of managers of their own within one.
fn two_threads(house: &NdManager, iterations: u64) -> Duration {
    let ready = Barrier::new(3);
    std::thread::scope(|scope| {
        let make = || {
            let own = house.new_sub_manager().expect("an open manager");
            ready.wait();
            for _ in 0..iterations {
                black_box(Tensor::empty(4, DType::F32, &own).expect("memory"));
            }
        };
        let (one, other) = (scope.spawn(make), scope.spawn(make));
        ready.wait();
        let begun = Instant::now();
        one.join().and(other.join()).expect("no panic");
        begun.elapsed()
    })
}

fn zeros(bytes: usize) -> Tensor {
    Tensor::zeros(bytes, DType::U8, &Device::Cpu).expect("memory")
}

/// An array of a device without a limit, with one that is far, and with one that is near.
fn limits(criterion: &mut Criterion) {
    let _on = gc::scoped(true);
    let mut group = criterion.benchmark_group("limit");
    for (name, room) in [("none", None), ("far", Some(1 << 30)), ("near", Some(1 << 10))] {
        let room = room.map(|room: u64| Device::Cpu.memory().active + room);
        let before = Device::Cpu.set_limit(room);
        group.bench_function(BenchmarkId::new("made and dropped", name), |bench| bench.iter(|| black_box(zeros(16))));
        Device::Cpu.set_limit(before);
    }
}

/// A request of 2 MiB, where there is room for 3.
fn large() -> Tensor {
    zeros(2 << 20)
}

/// Requests that a step of the ladder saves, by what `ready` makes before each, untimed: the time of the step with
/// those before it, which find nothing.
fn saved(
    group: &mut BenchmarkGroup<'_, WallTime>,
    step: &str,
    mut ready: impl FnMut(),
    mut request: impl FnMut() -> Tensor,
) {
    let retried = || memory::stats(&Device::Cpu).get("requests.retried").expect("it is always there");
    let (mut runs, before) = (0, retried());
    group.bench_function(step, |bench| {
        bench.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                ready();
                let begun = Instant::now();
                let found = request();
                spent += begun.elapsed();
                drop(found);
                gc::collect();
            }
            runs += iterations;
            spent
        });
    });
    // One in many may find room at once: of others' dead arrays a call takes some by itself now and then.
    let saved = retried() - before;
    assert!(saved >= runs / 10 * 9, "{step}: {saved} of {runs} requests needed a step");
}

/// Dead arrays of a thread that waits.
fn saved_by_drain(group: &mut BenchmarkGroup<'_, WallTime>) {
    let (ask, asked) = channel();
    let (say, said) = channel();
    let other = std::thread::spawn(move || {
        for () in asked {
            drop(large());
            say.send(()).expect("it is waited for");
        }
    });
    let ready = || {
        ask.send(()).expect("the thread waits");
        said.recv().expect("it answers");
    };
    saved(group, "drain", ready, large);
    drop(ask);
    other.join().expect("no panic");
}

/// Bytes that the process has resident.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim_end_matches("kB").trim().parse::<u64>().expect("Linux says it") << 10
}

/// Some 4 MiB in blocks of small arrays that this thread keeps, where the process may have no more resident.
fn saved_by_trim(group: &mut BenchmarkGroup<'_, WallTime>) {
    let limit = |bytes: Option<u64>| Device::Cpu.set_physical_limit(bytes).expect("it is the host");
    let ready = || {
        limit(None);
        Device::Cpu.clear_cache();
        // Of each size above 2 KiB as many as are kept: 128 KiB.
        let sizes = (8..12u32).flat_map(|log| (9..17usize).map(move |eighths| eighths << log));
        let made: Vec<Tensor> = sizes.flat_map(|size| (0..(128 << 10) / size).map(move |_| zeros(size))).collect();
        drop(made);
        gc::collect();
        limit(Some(resident() + MIB / 2));
    };
    saved(group, "trim", ready, large);
    limit(None);
}

/// An array that a manager keeps, since it fell while the switch was off.
fn saved_by_orphans(group: &mut BenchmarkGroup<'_, WallTime>) {
    let manager = NdManager::new_base_manager(&Device::Cpu).expect("a manager");
    let _on = gc::scoped(true);
    let make = || manager.zeros(2 << 20, DType::U8).expect("memory");
    let ready = || {
        let _off = gc::scoped(false);
        drop(make());
    };
    saved(group, "collect_orphans", ready, make);
}

/// A cache of the program's.
fn saved_by_reclaimer(group: &mut BenchmarkGroup<'_, WallTime>) {
    let cache: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let own = Arc::clone(&cache);
    let _reclaimer = memory::on_pressure("cache", 0, move |_| own.lock().expect("no panic").clear());
    let ready = || {
        let made = large();
        cache.lock().expect("no panic").push(made);
    };
    saved(group, "reclaimer", ready, large);
}

/// A file for an array of the host's, on the disk that is built on; memory of the host for one of a simulated device's,
/// whose driver takes no time.
fn saved_by_spill(group: &mut BenchmarkGroup<'_, WallTime>) {
    memory::set_spill(Some(Path::new(env!("CARGO_TARGET_TMPDIR")))).expect("a folder");
    let held = large();
    saved(group, "spill to a file", || (), large);
    memory::set_spill(None).expect("no folder");
    drop(held);
    let device = Device::sim(SimConfig { memory_bytes: 3 * MIB, ..SimConfig::default() });
    let make = || Tensor::zeros(2 << 20, DType::U8, &device).expect("memory");
    let room = memory::set_device_spill(Some(16 * MIB));
    let _held = make();
    // What it had goes back when nothing that was submitted uses it.
    let ready = || device.synchronize().expect("it waits");
    saved(group, "spill of a device", ready, make);
    memory::set_device_spill(room);
}

fn ladder(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ladder");
    saved_by_trim(&mut group);
    gc::collect();
    let before = Device::Cpu.set_limit(Some(Device::Cpu.memory().active + 3 * MIB));
    saved_by_drain(&mut group);
    saved_by_orphans(&mut group);
    saved_by_reclaimer(&mut group);
    saved_by_spill(&mut group);
    Device::Cpu.set_limit(before);
}

fn add_of_4(group: &mut BenchmarkGroup<'_, WallTime>, setting: &str) {
    let a = Tensor::ones(4, DType::F32, &Device::Cpu).expect("memory");
    group.bench_function(BenchmarkId::new("add of 4", setting), |bench| {
        bench.iter(|| black_box((&a + &a).expect("memory")));
    });
}

/// What collections that come by themselves cost a thread that works, and what one takes.
fn gc_window(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gc_window");
    let before = gc::auto_gc_window();
    add_of_4(&mut group, "periodic off");
    for window in [100, 1] {
        gc::set_auto_gc_window(window);
        gc::toggle_periodic_gc(true);
        add_of_4(&mut group, &format!("periodic, window {window} ms"));
        gc::toggle_periodic_gc(false);
    }
    // The window is 1 ms still: no shorter one, so that the number of calls decides.
    for calls in [0, 64, 1000] {
        gc::set_occasional_gc_frequency(calls);
        add_of_4(&mut group, &format!("occasional, frequency {calls}"));
    }
    gc::set_occasional_gc_frequency(0);
    gc::set_auto_gc_window(before.as_millis() as u64);
    for dead in [0, 1000] {
        group.bench_function(BenchmarkId::new("invoke_gc, dead arrays", dead), |bench| {
            bench.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    drop((0..dead).map(|_| zeros(16)).collect::<Vec<_>>());
                    let begun = Instant::now();
                    black_box(gc::invoke_gc());
                    spent += begun.elapsed();
                }
                spent
            });
        });
    }
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

criterion_group!(benches, budgets, limits, ladder, gc_window, stats, trace);
criterion_main!(benches);
