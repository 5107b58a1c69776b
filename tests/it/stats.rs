//! Figures under names, scopes, and the collection that comes by itself.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ndgc::{
    AllocationPolicy, Budget, DType, Device, LearningPolicy, ResetPolicy, Tensor, Workspace, WorkspaceConfig,
    destroy_all_workspaces_for_current_thread, gc, memory,
};

use crate::common::{in_child, in_own_process, is_child, ran_apart};
use crate::it::support::{alone, base, both, live_bytes, switched};

/// PyTorch's names, each with the figure that it stands for, beside which it is not listed.
fn has_names_of_pytorch(stats: &memory::Stats) {
    let aliases = [
        ("active.all.allocated", "arrays.created"),
        ("active.all.current", "arrays.current"),
        ("active.all.freed", "arrays.closed"),
        ("active.all.peak", "arrays.peak"),
        ("active_bytes.all.allocated", "bytes.total"),
        ("active_bytes.all.current", "bytes.current"),
        ("active_bytes.all.peak", "bytes.peak"),
        ("allocated_bytes.all.allocated", "bytes.total"),
        ("allocated_bytes.all.current", "bytes.current"),
        ("allocated_bytes.all.peak", "bytes.peak"),
        ("allocation.all.allocated", "arrays.created"),
        ("allocation.all.current", "arrays.current"),
        ("allocation.all.freed", "arrays.closed"),
        ("allocation.all.peak", "arrays.peak"),
        ("num_alloc_retries", "requests.retried"),
        ("num_device_alloc", "pool.misses"),
        ("num_ooms", "requests.refused"),
        ("requested_bytes.all.allocated", "bytes.total"),
        ("requested_bytes.all.current", "bytes.current"),
        ("requested_bytes.all.peak", "bytes.peak"),
        ("reserved_bytes.all.allocated", "bytes.total_reserved"),
        ("reserved_bytes.all.current", "bytes.reserved"),
        ("reserved_bytes.all.peak", "bytes.peak_reserved"),
    ];
    for (alias, name) in aliases {
        assert!(stats.get(name).is_some(), "{name}");
        assert_eq!(stats.get(alias), stats.get(name), "{alias}");
        assert!(stats.iter().all(|(own, _)| own != alias), "{alias}");
    }
    assert_eq!((stats.get("active.small_pool.current"), stats.get("active.all")), (None, None), "not told here");
}

#[test]
fn the_figures_of_a_device_add_up_and_have_the_names_of_pytorch() {
    both(|device| {
        gc::collect();
        let manager = base(device);
        let before = memory::stats(device);
        let (x, y) = (manager.zeros(1000, DType::U8).unwrap(), manager.zeros(2000, DType::U8).unwrap());
        let view = y.narrow(0, 0, 10).unwrap();
        drop(x);
        gc::collect();
        let now = memory::stats(device);
        let more = |name: &str| now.get(name).unwrap() - before.get(name).unwrap();
        let kept = if gc::is_on() { 0 } else { 1000 };
        assert_eq!((more("bytes.current"), more("bytes.dead")), (2000 + kept, kept));
        assert_eq!((more("arrays.created"), more("arrays.current")), (3, 2 + kept / 1000));
        assert_eq!(now.get("bytes.reserved"), Some(now.get("bytes.used").unwrap() + now.get("bytes.cached").unwrap()));
        assert_eq!(more("bytes.total"), 3000);
        assert_eq!(now.get("bytes.pinned").unwrap() > 0, device.is_cuda(), "for copies, and what it reports");
        let slack = now.get("bytes.used").unwrap() - now.get("bytes.current").unwrap();
        assert!(slack < 1 << 20, "blocks are a little larger than what lies in them: {slack}");
        has_names_of_pytorch(&before);
        has_names_of_pytorch(&now);
        assert_eq!((now.get("nothing"), now.get("bytes.limit")), (None, None));
        let limit = device.set_limit(Some(device.memory().active + 1));
        assert!(manager.zeros(2, DType::U8).is_err());
        let refused = memory::stats(device);
        device.set_limit(limit);
        has_names_of_pytorch(&refused);
        for name in ["requests.refused", "requests.retried"] {
            assert_eq!(refused.get(name), now.get(name).map(|before| before + 1), "{name}");
        }
        assert!(refused.get("bytes.limit").is_some());
        let names: Vec<_> = now.iter().map(|(name, _)| name).collect();
        assert!(names.is_sorted() && names.len() == 32, "{names:?}");
        assert!(now.to_string().lines().count() == 32);
        drop((y, view));
    });
}

#[test]
fn the_peak_of_what_is_reserved_outlives_trims_and_scopes_until_it_is_reset() {
    both(|device| {
        gc::collect();
        device.clear_cache();
        device.reset_peak();
        let [reserved, peak] =
            ["bytes.reserved", "bytes.peak_reserved"].map(|name| move || memory::stats(device).get(name).unwrap());
        let before = peak();
        assert_eq!(before, reserved());
        let large = Tensor::zeros(24 << 20, DType::U8, device).unwrap();
        let most = peak();
        assert_eq!(most, reserved());
        assert!(most >= before + (24 << 20), "{before} and {most}");
        drop(large);
        gc::collect();
        assert!(device.clear_cache() >= 24 << 20);
        assert!(reserved() < most, "it went back");
        memory::scope("part", device, || {});
        memory::clear_scopes();
        assert_eq!((peak(), device.memory().peak_reserved), (most, most));
        device.reset_peak();
        assert_eq!(peak(), reserved());
    });
}

/// Reads some figures, by name.
fn read<const N: usize>(device: &Device, names: [&str; N]) -> [u64; N] {
    let stats = memory::stats(device);
    names.map(|name| stats.get(name).unwrap_or_else(|| panic!("{name}")))
}

#[test]
fn the_peaks_of_what_is_used_and_cached_are_exact_for_one_thread_until_they_are_reset() {
    if ran_apart() {
        return;
    }
    switched(true, |device| {
        let now = || read(device, ["bytes.used", "bytes.cached"]);
        let peaks = || read(device, ["bytes.peak_used", "bytes.peak_cached"]);
        let make = |bytes: usize| Tensor::zeros(bytes, DType::U8, device).unwrap();
        // Blocks that a thread keeps, those of segments, and large ones.
        for (bytes, count) in [(1000, 40), (1000, 400), (30_000, 100), (3 << 20, 5)] {
            gc::collect();
            device.clear_cache();
            device.reset_peak();
            let [used, cached] = now();
            assert_eq!(peaks(), [used, cached], "{bytes} B, {count} times: as of now");
            let held: Vec<_> = (0..count).map(|_| make(bytes)).collect();
            let [most_used, least_cached] = now();
            assert!(most_used >= used + (bytes * count) as u64, "{used} and {most_used}");
            drop(held);
            gc::collect();
            let [after, most_cached] = now();
            assert!(after == used && most_cached >= least_cached + (bytes * count) as u64, "{after}, {most_cached}");
            // Once more, of what waits: no more is used, and none of it waits meanwhile.
            let again: Vec<_> = (0..count / 2).map(|_| make(bytes)).collect();
            assert!(now()[1] < most_cached);
            drop(again);
            gc::collect();
            assert_eq!(peaks(), [most_used, most_cached], "{bytes} B, {count} times");
            assert_eq!((device.memory().peak_used, device.memory().peak_cached), (most_used, most_cached));
            memory::scope("part", device, || {});
            memory::clear_scopes();
            device.clear_cache();
            assert_eq!(peaks(), [most_used, most_cached], "{bytes} B, {count} times: it went back");
        }
        device.reset_peak();
        assert_eq!(peaks(), now());
    });
}

#[test]
fn a_peak_of_what_is_used_or_cached_that_nobody_looked_at_is_told_later() {
    if ran_apart() {
        return;
    }
    switched(true, |device| {
        let make = |bytes: usize| Tensor::zeros(bytes, DType::U8, device).unwrap();
        let figures = || read(device, ["bytes.used", "bytes.cached", "bytes.peak_used", "bytes.peak_cached"]);
        // From the second time on out of the thread's cache, where there is one, and back.
        let take = || {
            drop((0..20).map(|_| make(2048)).collect::<Vec<_>>());
            gc::collect();
        };
        (0..2).for_each(|_| take());
        device.reset_peak();
        let [used, cached, ..] = figures();
        take();
        // Less, and out of no such cache.
        let other = make(36 << 10);
        let [_, now, peak_used, peak_cached] = figures();
        assert_eq!((peak_used - used, peak_cached), (20 * 2048, cached.max(now)));
        drop(other);
        gc::collect();
        let large = make(1 << 20);
        let [_, cached, ..] = figures();
        drop(large);
        gc::collect();
        device.clear_cache();
        let after = figures();
        assert!(after[3] >= cached + (1 << 20) && after[1] < after[3], "{cached}, {after:?}");
    });
}

#[test]
fn totals_grow_by_each_block_that_is_handed_out_and_by_what_the_system_or_driver_gives() {
    if ran_apart() {
        return;
    }
    switched(true, |device| {
        let figures = || read(device, ["bytes.total_used", "bytes.total_reserved", "bytes.used", "bytes.reserved"]);
        let make = |bytes: usize| {
            drop(Tensor::zeros(bytes, DType::U8, device).unwrap());
            gc::collect();
        };
        gc::collect();
        device.clear_cache();
        let before = figures();
        let held = Tensor::zeros(24 << 20, DType::U8, device).unwrap();
        let [total_used, total_reserved, used, reserved] = figures();
        let size = used - before[2];
        assert!(size >= 24 << 20 && total_used - before[0] == size, "{size} of {total_used}");
        assert_eq!(total_reserved - before[1], reserved - before[3], "nothing went back");
        drop(held);
        gc::collect();
        (0..3).for_each(|_| make(24 << 20));
        assert_eq!(figures()[..2], [total_used + 3 * size, total_reserved], "of what was kept");
        device.clear_cache();
        let cleared = figures();
        make(24 << 20);
        let again = figures();
        assert_eq!(again[0], total_used + 4 * size);
        assert!(again[1] >= total_reserved + (24 << 20), "{} came again", again[1] - total_reserved);
        assert_eq!(again[1] - cleared[1], again[3] - cleared[3], "and was kept");
        // Blocks that a thread keeps have a size of their own.
        make(1000);
        let small = figures();
        (0..1000).for_each(|_| make(1000));
        let [total_used, total_reserved, ..] = figures();
        assert_eq!((total_used - small[0], total_reserved), (1024 * 1000, small[1]));
        let memory = device.memory();
        assert_eq!((memory.total_used, memory.total_reserved), (total_used, total_reserved));
        assert!(memory.total_reserved >= memory.peak_reserved && memory.total_used >= memory.peak_used);
    });
}

#[test]
fn with_several_threads_a_peak_is_off_by_what_their_caches_have() {
    const THREADS: u64 = 4;
    in_own_process("it::stats::with_several_threads_a_peak_is_off_by_what_their_caches_have", || {
        let device = &Device::Cpu;
        let wait = std::sync::Barrier::new(THREADS as usize);
        device.reset_peak();
        let [used, cached] = read(device, ["bytes.used", "bytes.cached"]);
        let work = || {
            let take = || -> Vec<Tensor> { (0..64).map(|_| Tensor::zeros(1024, DType::U8, device).unwrap()).collect() };
            (0..50).for_each(|_| drop(take()));
            wait.wait();
            let held = take();
            wait.wait();
            drop(held);
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        gc::collect();
        // What each holds, and its cache keeps of this size; as much again is dead and was not reaped yet.
        let each = 64 * 1024;
        let [peak_used, peak_cached] = read(device, ["bytes.peak_used", "bytes.peak_cached"]);
        assert!((each..=3 * THREADS * each).contains(&(peak_used - used)), "{peak_used} of {used}");
        // Some of it is in segments of 256 KiB.
        let most = 3 * THREADS * each + THREADS * (256 << 10);
        assert!(peak_cached - cached <= most, "{peak_cached} of {cached}");
        device.reset_peak();
        let now = read(device, ["bytes.used", "bytes.cached"]);
        assert_eq!(read(device, ["bytes.peak_used", "bytes.peak_cached"]), now);
    });
}

#[test]
fn the_most_arrays_are_exact_for_one_thread_until_they_are_reset() {
    if ran_apart() {
        return;
    }
    switched(true, |device| {
        gc::collect();
        device.reset_peak();
        let figures = || read(device, ["arrays.current", "arrays.peak"]);
        let [before, peak] = figures();
        assert_eq!(peak, before);
        let make = || Tensor::zeros(4, DType::U8, device).unwrap();
        for count in [1, 10, 1000, 30] {
            let held: Vec<_> = (0..count).map(|_| make()).collect();
            assert_eq!(figures()[0], before + count);
            drop(held);
            gc::collect();
        }
        for _ in 0..1000 {
            make().close();
        }
        memory::scope("part", device, || {});
        memory::clear_scopes();
        assert_eq!(figures(), [before, before + 1000]);
        device.reset_peak();
        assert_eq!(figures(), [before, before]);
        let (x, y) = (make(), make());
        x.close();
        drop(y);
        gc::collect();
        assert_eq!(figures(), [before, before + 2]);
    });
}

#[test]
fn the_most_arrays_of_several_threads_are_at_most_64_off_for_each_whoever_ends_them() {
    const TEST: &str = "it::stats::the_most_arrays_of_several_threads_are_at_most_64_off_for_each_whoever_ends_them";
    const THREADS: u64 = 4;
    in_own_process(TEST, || {
        let device = &Device::Cpu;
        device.reset_peak();
        let [before] = read(device, ["arrays.current"]);
        let make = || -> Vec<Tensor> { (0..300).map(|_| Tensor::zeros(4, DType::U8, device).unwrap()).collect() };
        for _ in 0..10 {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(make)).collect();
                let all: Vec<Vec<Tensor>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                // What others made ends here.
                all.iter().flatten().for_each(Tensor::close);
            });
        }
        gc::collect();
        let [now, peak] = read(device, ["arrays.current", "arrays.peak"]);
        assert_eq!(now, before);
        let most = before + THREADS * 300;
        assert!((most - 64 * THREADS..=most + 64 * THREADS).contains(&peak), "{peak} of {most}");
        device.reset_peak();
        assert_eq!(read(device, ["arrays.peak"]), [before]);
    });
}

#[test]
fn the_most_arrays_that_managers_keep_are_told_until_they_are_reset() {
    if ran_apart() {
        return;
    }
    switched(false, |device| {
        gc::collect_orphans();
        device.reset_peak();
        let figures = || read(device, ["arrays.kept", "arrays.peak_kept"]);
        let [before, peak] = figures();
        assert_eq!(peak, before);
        for count in [100, 3] {
            let manager = base(device);
            (0..count).for_each(|_| drop(manager.zeros(4, DType::U8).unwrap()));
            let key = manager.zeros(4, DType::U8).unwrap().key();
            let found = Tensor::from_registry(key).expect("its manager keeps it");
            assert_eq!(figures(), [before + count, before + 101], "one has a handle again");
            drop(found);
            manager.close().unwrap();
            assert_eq!(figures(), [before, before + 101]);
        }
        let manager = base(device);
        drop(manager.zeros(4, DType::U8).unwrap());
        device.reset_peak();
        assert_eq!((figures(), gc::collect_orphans()), ([before + 1; 2], 1));
        device.reset_peak();
        assert_eq!(figures(), [before, before]);
    });
}

#[test]
fn the_most_bytes_of_dead_arrays_that_were_found_are_told_until_they_are_reset() {
    if ran_apart() {
        return;
    }
    switched(false, |device| {
        gc::collect_orphans();
        device.reset_peak();
        let figures = || read(device, ["bytes.dead", "bytes.peak_dead"]);
        let manager = base(device);
        let drop_one = |bytes: usize| drop(manager.zeros(bytes, DType::U8).unwrap());
        assert_eq!(figures(), [0, 0]);
        drop_one(1000);
        assert_eq!(figures(), [1000, 1000]);
        drop_one(500);
        gc::collect_orphans();
        assert_eq!(figures(), [0, 1000], "nobody looked at 1,500");
        // The report of a refusal looks.
        drop_one(3000);
        let limit = device.set_limit(Some(device.memory().active + 1));
        assert!(manager.zeros(1 << 20, DType::U8).is_err());
        device.set_limit(limit);
        gc::collect_orphans();
        assert_eq!(figures(), [0, 3000]);
        // What was taken back for a request was dead.
        drop_one(5000);
        let on = gc::scoped(true);
        let limit = device.set_limit(Some(device.memory().active + 1));
        let granted = manager.zeros(4000, DType::U8);
        device.set_limit(limit);
        drop((on, granted.unwrap()));
        assert_eq!(figures(), [4000, 5000]);
        device.reset_peak();
        gc::collect_orphans();
        assert_eq!(figures(), [0, 0]);
    });
}

/// The figures of a workspace: bytes now, at most, in all, and beside the block; cycles.
fn of_workspace(device: &Device, name: &str) -> Option<[u64; 5]> {
    let stats = memory::stats(device);
    let figures = ["bytes.current", "bytes.peak", "bytes.total", "bytes.spilled", "cycles.total"];
    let found = figures.map(|figure| stats.get(&format!("workspace.{name}.{figure}")));
    assert!(found.iter().all(|value| value.is_some() == found[0].is_some()), "{stats}");
    found[0].map(|_| found.map(Option::unwrap))
}

/// A width of 65,536 is a panic of `format!`.
#[test]
fn figures_of_workspaces_are_written_however_long_a_name_is() {
    both(|device| {
        let name = "a".repeat(70_000);
        let made = || Tensor::zeros(4, DType::U8, device).map(drop);
        Workspace::cycle_on(device, &name, &WorkspaceConfig::default(), made).unwrap();
        assert!(memory::stats(device).to_string().lines().all(|line| line.len() > 70_000), "as wide as the longest");
        Workspace::find(&name).unwrap().destroy().unwrap();
    });
}

#[test]
fn the_figures_of_workspaces_are_those_of_their_names_on_all_threads() {
    both(|device| {
        let config = WorkspaceConfig::builder().initial_size(64 << 10).policy_learning(LearningPolicy::None);
        let config = config.policy_allocation(AllocationPolicy::Strict).build().unwrap();
        let before = memory::stats(device).iter().count();
        let cycle = |bytes: usize| {
            let made = || Tensor::zeros(bytes, DType::U8, device).map(drop);
            Workspace::cycle_on(device, "a.STEP", &config, made).unwrap();
        };
        cycle(100);
        let block = 64 << 10;
        assert_eq!(of_workspace(device, "a.STEP"), Some([block, block, block, 0, 1]));
        assert_eq!(memory::stats(device).iter().count(), before + 6);
        cycle(100 << 10);
        let [current, peak, total, spilled, cycles] = of_workspace(device, "a.STEP").unwrap();
        assert_eq!((current, cycles), (block, 2));
        assert_eq!((peak, total), (block + spilled, block + spilled));
        assert!((100 << 10..200 << 10).contains(&spilled), "{spilled}");
        let own = Workspace::find("a.STEP").unwrap().stats();
        assert_eq!((own.generation, own.size, own.system_allocations), (2, block, 2));
        // Another thread's of that name, which ends with the thread, and what it did stays.
        std::thread::scope(|scope| {
            let there = || {
                cycle(1);
                let together = of_workspace(device, "a.STEP").unwrap();
                assert_eq!((together[0], together[4]), (2 * block, 3));
            };
            scope.spawn(there).join().unwrap();
        });
        assert_eq!(of_workspace(device, "a.STEP").map(|found| (found[0], found[4])), Some((block, 3)));
        // Of another device it has nothing.
        assert_eq!(of_workspace(&Device::sim(Default::default()), "a.STEP"), None);
        destroy_all_workspaces_for_current_thread().unwrap();
        assert_eq!(of_workspace(device, "a.STEP"), None, "it is as if it had never been");
    });
}

#[test]
fn a_workspace_that_learns_does_not_spill_and_a_ring_that_is_leased_waits() {
    both(|device| {
        let run = |name: &str, config: &WorkspaceConfig| {
            let cycle = Workspace::enter_on(device, name, config).unwrap();
            let x = Tensor::zeros(1000, DType::U8, device).unwrap();
            (x, cycle)
        };
        for _ in 0..5 {
            drop(run("LEARNS", &WorkspaceConfig::default()));
        }
        let [current, .., spilled, cycles] = of_workspace(device, "LEARNS").unwrap();
        let learned = Workspace::find("LEARNS").unwrap().stats().size;
        assert_eq!((current, spilled, cycles), (learned, 0, 5));
        let ring = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(1.);
        let ring = ring.build().unwrap();
        drop(run("RING", &ring));
        let (x, cycle) = run("RING", &ring);
        let lease = cycle.lease().unwrap();
        cycle.leave();
        destroy_all_workspaces_for_current_thread().unwrap();
        let [current, .., cycles] = of_workspace(device, "RING").unwrap();
        assert!(current > 0 && cycles == 2, "what is leased is still there");
        drop((x, lease));
        gc::collect();
        assert_eq!(of_workspace(device, "RING"), None);
    });
}

#[test]
fn the_figures_of_a_manager_are_those_of_the_managers_below_it_and_its_own() {
    both(|device| {
        let manager = base(device);
        let children = [manager.new_sub_manager().unwrap(), manager.new_sub_manager().unwrap()];
        let get = |stats: &memory::Stats, name: &str| stats.get(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(manager.stats().iter().count(), 5, "without a budget what there is now");
        manager.set_budget(Budget::new().max_bytes(10_000)).unwrap();
        let own = manager.zeros(1000, DType::U8).unwrap();
        let kept: Vec<_> = children.iter().map(|child| child.zeros(2000, DType::U8).unwrap()).collect();
        let view = own.narrow(0, 0, 10).unwrap();
        drop(children[0].zeros(500, DType::U8).unwrap());
        assert!(manager.zeros(9000, DType::U8).is_err());
        // With the switch off it is kept.
        let dead = u64::from(!gc::is_on());
        let (all, below) = (manager.stats(), children.each_ref().map(|child| child.stats()));
        for name in ["arrays.current", "bytes.current", "arrays.dead", "bytes.dead", "managers.current"] {
            let of_own = [("arrays.current", 2), ("bytes.current", 1000), ("managers.current", 1)];
            let of_own = of_own.iter().find(|own| own.0 == name).map_or(0, |own| own.1);
            assert_eq!(get(&all, name), of_own + get(&below[0], name) + get(&below[1], name), "{name}");
        }
        assert_eq!((get(&all, "arrays.current"), get(&all, "bytes.current")), (4 + dead, 5000 + 500 * dead));
        assert_eq!((get(&all, "arrays.dead"), get(&all, "bytes.dead")), (dead, 500 * dead));
        assert_eq!((get(&all, "bytes.charged"), get(&all, "bytes.peak")), (5000 + 500 * dead, 5500));
        assert_eq!((get(&all, "bytes.total"), get(&all, "arrays.total"), get(&all, "arrays.peak")), (5500, 5, 5));
        assert_eq!((get(&all, "bytes.limit"), get(&all, "requests.refused")), (10_000, 1));
        assert_eq!(below[0].get("bytes.limit"), None, "its own it has none");
        drop((kept, own, view));
    });
}

#[test]
fn scopes_nest_and_say_what_their_parts_use_and_leave() {
    switched(true, |device| {
        memory::clear_scopes();
        let mut left = Vec::new();
        let peak = device.memory().peak;
        for round in 0..3 {
            memory::scope("epoch", device, || {
                let _x = Tensor::zeros(1000, DType::U8, device).unwrap();
                memory::scope("train", device, || {
                    let _y = Tensor::zeros(5000, DType::U8, device).unwrap();
                    left.push(Tensor::zeros(100, DType::U8, device).unwrap());
                });
                if round == 1 {
                    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        memory::scope("eval", device, || panic!("on purpose"));
                    }));
                    assert!(panicked.is_err());
                }
            });
        }
        let scopes = memory::scopes();
        let told: Vec<_> = scopes.iter().map(|at| (at.path.as_str(), at.runs, at.created, at.peak_bytes)).collect();
        assert_eq!(
            told,
            [("epoch", 3, 9, 6100), ("epoch/eval", 1, 0, 0), ("epoch/train", 3, 6, 5100)],
            "a part's peak is within that of what it is in"
        );
        assert_eq!((scopes[0].left_bytes, scopes[0].left_arrays, scopes[2].left_bytes), (300, 3, 300));
        assert!(scopes[0].to_string().starts_with("epoch: 3 runs in "), "{}", scopes[0]);
        assert!(device.memory().peak >= peak, "the peak of the process is what it was");
        drop(left);
        memory::clear_scopes();
        assert!(memory::scopes().is_empty());
    });
}

#[test]
fn a_peak_that_is_reset_in_a_scope_stays_so_and_the_scope_keeps_its_own() {
    switched(true, |device| {
        memory::clear_scopes();
        let make = |bytes: usize| {
            drop(Tensor::zeros(bytes, DType::U8, device).unwrap());
            gc::collect();
        };
        make(9_000_000);
        let start = live_bytes(device);
        memory::scope("outer", device, || {
            make(2_000_000);
            memory::scope("inner", device, || {
                make(3_000_000);
                device.reset_peak();
                make(1_000_000);
            });
        });
        let peaks: Vec<_> = memory::scopes().into_iter().map(|at| (at.path, at.peak_bytes)).collect();
        assert_eq!(peaks, [("outer".to_owned(), 3_000_000), ("outer/inner".to_owned(), 3_000_000)]);
        let peak = device.memory().peak - start;
        assert!(peak < 2_000_000, "{peak} bytes, as if it had never been reset");
        memory::clear_scopes();
    });
}

/// Waits until something is so, for at most a minute.
fn becomes(what: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !what() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    what()
}

#[test]
fn the_collector_takes_what_died_on_a_thread_that_rests_and_what_the_pool_keeps() {
    alone(|| {
        let _on = gc::scoped(true);
        assert!(!gc::is_periodic_gc_active(), "off at first");
        assert_eq!(gc::set_auto_gc_window(5), Duration::from_millis(100));
        assert_eq!(gc::auto_gc_window(), Duration::from_millis(5));
        let manager = base(&Device::Cpu);
        let (done, wait) = channel::<()>();
        let (said, heard) = channel();
        std::thread::scope(|scope| {
            let manager = &manager;
            scope.spawn(move || {
                let arrays: Vec<_> = (0..8).map(|_| manager.zeros(1 << 20, DType::U8).unwrap()).collect();
                drop(arrays);
                said.send(()).unwrap();
                let _ = wait.recv();
            });
            heard.recv().unwrap();
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!((gc::stats().queued, manager.array_count()), (8, 8), "nobody calls");
            assert!(!gc::toggle_periodic_gc(true) && gc::is_periodic_gc_active());
            assert!(gc::toggle_periodic_gc(true), "twice is once");
            assert!(becomes(|| manager.array_count() == 0));
            assert!(becomes(|| Device::Cpu.memory().cached < 1 << 20), "{:?}", Device::Cpu.memory());
            assert!(gc::since_last_gc().is_some());
            assert!(gc::toggle_periodic_gc(false) && !gc::is_periodic_gc_active());
            drop(done);
        });
        gc::set_auto_gc_window(100);
    });
}

#[test]
fn a_collector_whose_thread_cannot_begin_does_not_run() {
    const TEST: &str = "it::stats::a_collector_whose_thread_cannot_begin_does_not_run";
    // Stacks that no address space has.
    const STACK: (&str, &str) = ("RUST_MIN_STACK", "140737488355328");
    if is_child() {
        assert!(!gc::toggle_periodic_gc(true) && !gc::is_periodic_gc_active());
        assert!(!gc::toggle_periodic_gc(true), "it was off");
        return;
    }
    let said = String::from_utf8(in_child(TEST, &[STACK]).stderr).unwrap();
    assert!(said.contains("the periodic collection stays off"), "{said}");
}

#[test]
fn an_occasional_collection_comes_after_so_many_calls_and_an_invoked_one_at_once() {
    alone(|| {
        let _on = gc::scoped(true);
        let x = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        gc::set_auto_gc_window(1);
        gc::invoke_gc();
        let calls = |count: usize| (0..count).for_each(|_| drop(x.dtype_of_call()));
        std::thread::sleep(Duration::from_millis(20));
        calls(1000);
        assert!(gc::since_last_gc().unwrap() >= Duration::from_millis(20), "none by itself");
        assert_eq!(gc::set_occasional_gc_frequency(500), 0);
        assert_eq!(gc::occasional_gc_frequency(), 500);
        let begun = Instant::now();
        calls(1000);
        let (since, passed) = (gc::since_last_gc().unwrap(), begun.elapsed());
        // Its time is kept in milliseconds.
        assert!(since <= passed + Duration::from_millis(2), "by one of these calls: {since:?} ago, of {passed:?}");
        assert_eq!(gc::set_occasional_gc_frequency(0), 500);
        gc::set_auto_gc_window(100);
        drop(Tensor::zeros(1 << 20, DType::U8, &Device::Cpu).unwrap());
        assert!(gc::invoke_gc() >= 1 << 20, "what it gives back");
        assert_eq!(gc::stats().queued, 0);
    });
}

/// A call that does nothing else.
trait Call {
    fn dtype_of_call(&self) -> ndgc::Result<f32>;
}

impl Call for Tensor {
    fn dtype_of_call(&self) -> ndgc::Result<f32> {
        self.get(0)?.to_scalar::<f32>()
    }
}

/// What a drop of the user's asks of the collector, on its own thread.
struct Asks(std::sync::mpsc::Sender<(bool, bool)>);

impl AsRef<[u8]> for Asks {
    fn as_ref(&self) -> &[u8] {
        &[0; 16]
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.0.send((gc::is_periodic_gc_active(), gc::toggle_periodic_gc(false)));
    }
}

/// Has the collector drop an array over these bytes, of a thread that does nothing afterwards, while `body` runs.
fn dropped_by_the_collector(bytes: impl AsRef<[u8]> + Send + Sync + 'static, body: impl FnOnce()) {
    let _on = gc::scoped(true);
    let array = Tensor::from_shared(std::sync::Arc::new(bytes), 0..16, DType::U8, 16, &Device::Cpu).unwrap();
    let (end, ends) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            gc::collect();
            drop(array);
            let _ = ends.recv();
        });
        gc::toggle_periodic_gc(true);
        body();
        drop(end);
    });
}

#[test]
fn what_the_collector_drops_may_ask_for_it_and_end_it() {
    alone(|| {
        gc::set_auto_gc_window(1);
        for _ in 0..3 {
            let (said, heard) = channel();
            dropped_by_the_collector(Asks(said), || {
                assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok((true, true)));
            });
            assert!(!gc::is_periodic_gc_active() && !gc::toggle_periodic_gc(false));
        }
        gc::set_auto_gc_window(100);
    });
}

/// What a drop of the user's asks of the collector while somebody waits for its end.
struct Restarts(std::sync::mpsc::Sender<()>);

impl AsRef<[u8]> for Restarts {
    fn as_ref(&self) -> &[u8] {
        &[0; 16]
    }
}

impl Drop for Restarts {
    fn drop(&mut self) {
        let _ = self.0.send(());
        assert!(becomes(|| !gc::is_periodic_gc_active()));
        gc::toggle_periodic_gc(true);
    }
}

#[test]
fn a_collector_that_is_ended_ends_whatever_its_drops_ask_for() {
    // Broken by: a drop that starts it again, for whom it went on while its end was waited for.
    alone(|| {
        gc::set_auto_gc_window(1);
        let (said, heard) = channel();
        dropped_by_the_collector(Restarts(said), || {
            assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()));
            assert!(gc::toggle_periodic_gc(false));
        });
        assert!(!gc::is_periodic_gc_active());
        gc::set_auto_gc_window(100);
    });
}
