//! Sizes that are learned, grown and given up, in the numbers of `stats()`; what is made meanwhile keeps its values.

use ndgc::{Device, LearningPolicy, SimConfig, SpillPolicy, Tensor, Workspace, WorkspaceConfig};

use crate::workspace::rings::{cycle, cycle_on, cycles, in_use, made, over_time, ring, strict};
use crate::workspace::support::{alone, el};

#[test]
fn w38_reallocate_grows_to_a_larger_cycle() {
    alone(|| {
        let workspace = made("W38", over_time(0).policy_spill(SpillPolicy::Reallocate));
        assert_eq!(cycle(&workspace, &[100]).size, 0);
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, el(100));
        assert_eq!(cycle(&workspace, &[1000]).max_cycle, el(1000));
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, el(1000));
        let stats = cycle_on(&workspace, &[500]);
        assert_eq!((stats.offset, stats.externals), (el(500), 0));
    });
}

#[test]
fn w39_reallocate_grows_after_the_cycles_to_learn_from() {
    alone(|| {
        let workspace = made("W39", over_time(3).policy_spill(SpillPolicy::Reallocate));
        for count in 1..=10 {
            let size = cycle(&workspace, &[100 * count]).size;
            assert_eq!(size, if count < 3 { 0 } else { el(100 * count as u64) });
        }
    });
}

#[test]
fn w40_a_few_smaller_cycles_do_not_shrink_it_and_trim_does() {
    alone(|| {
        let config = WorkspaceConfig::builder()
            .overallocation_limit(0.)
            .policy_learning(LearningPolicy::OverTime)
            .policy_spill(SpillPolicy::Reallocate);
        let workspace = made("W40", config);
        for count in 1..=10 {
            cycle(&workspace, &[100 * count]);
            if count == 3 {
                workspace.initialize().unwrap();
                assert_eq!(workspace.stats().size, el(300));
            }
        }
        (1..=10).rev().for_each(|count| drop(cycle(&workspace, &[100 * count])));
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, el(1000));
        let before = in_use(&Device::Cpu);
        assert_eq!(workspace.trim().unwrap(), el(1000) - el(400), "the last four needed 400 and less");
        assert_eq!(workspace.stats().size, el(400));
        assert!(in_use(&Device::Cpu) < before, "the host has the bytes back");
        assert_eq!(cycle_on(&workspace, &[400]).externals, 0);
        assert!(workspace.activate().unwrap().trim().is_err(), "not while it is open");
    });
}

#[test]
fn w45_external_does_not_grow() {
    alone(|| {
        let workspace = made("W45", over_time(0));
        cycle(&workspace, &[100]);
        workspace.initialize().unwrap();
        assert_eq!(cycle_on(&workspace, &[1000]).spilled, el(1000));
        assert_eq!((workspace.stats().size, workspace.stats().spilled), (el(100), 0));
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, el(100));
    });
}

#[test]
fn w46_only_the_first_cycles_are_learned_from() {
    alone(|| {
        let workspace = made("W46", over_time(3));
        (1..10).for_each(|count| drop(cycle(&workspace, &[100 * count])));
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, el(300));
    });
}

/// Growths of a block of one array to 1000 times its size, if each adds three tenths.
const GROWTHS_MAX: u64 = 27;

#[test]
fn r8_slow_growth_makes_few_blocks() {
    alone(|| {
        for (name, config) in [("R8_SLOW", WorkspaceConfig::builder()), ("R8_RING", ring(3))] {
            let workspace = made(name, config.policy_spill(SpillPolicy::Reallocate));
            let mut sizes = Vec::new();
            for count in 1..=1000 {
                sizes.push(cycle(&workspace, &[8 * count]).size);
            }
            sizes.dedup();
            assert!(sizes.len() as u64 <= GROWTHS_MAX + 1, "{name}: {} sizes", sizes.len());
            assert!(sizes.is_sorted());
            let requests = workspace.stats().system_allocations;
            // A ring pins whatever is made until it may grow, for 3 turns of 4 cycles and the one that began it.
            let beside = if name == "R8_RING" { 13 } else { 1 };
            assert!(requests <= (GROWTHS_MAX + 1) * (1 + beside) + beside, "{name}: {requests} requests for memory");
        }
    });
}

#[test]
fn r8_the_maximum_is_met_to_the_byte() {
    alone(|| {
        let max = el(1000) + 7;
        for (name, config) in [("R8_STRICT", strict()), ("R8_OVER", WorkspaceConfig::builder())] {
            let workspace = made(name, config.max_size(max).policy_spill(SpillPolicy::Reallocate));
            cycle(&workspace, &[100]);
            assert_eq!(cycle(&workspace, &[1000, 1000]).size, max, "the need was twice the maximum");
            let requests = workspace.stats().system_allocations;
            for _ in 0..3 {
                let stats = cycle_on(&workspace, &[1000, 1000]);
                assert_eq!((stats.size, stats.offset, stats.spilled), (max, el(1000), el(1000)));
            }
            assert_eq!(workspace.stats().system_allocations, requests + 3, "one spill each");
        }
    });
}

#[test]
fn r8_smaller_cycles_shrink_it() {
    alone(|| {
        let workspace = made("R8_SHRINK", WorkspaceConfig::builder().shrink_after(10));
        let large = cycle(&workspace, &[100_000]).size;
        let before = in_use(&Device::Cpu);
        cycles(&workspace, 9, &[104]);
        assert_eq!(workspace.stats().size, large);
        cycle(&workspace, &[96]);
        let small = workspace.stats().size;
        assert_eq!(small, (el(104) as f64 * 1.3) as u64);
        assert!(in_use(&Device::Cpu) <= before - (large - small) + 4096);
        assert_eq!(cycle_on(&workspace, &[104]).externals, 0);
    });
}

#[test]
fn r8_a_ring_shrinks_when_nothing_in_it_is_valid() {
    alone(|| {
        let workspace = made("R8_RING_SHRINK", ring(3).shrink_after(10));
        let large = cycle(&workspace, &[1000]).size;
        cycles(&workspace, 10, &[104]);
        assert_eq!(workspace.stats().size, large, "its cycles are valid still");
        cycles(&workspace, 12, &[104]);
        assert_eq!(workspace.stats().size, 4 * crate::workspace::rings::padded(el(104)));
        cycles(&workspace, 50, &[104]);
        assert_eq!(workspace.stats().pinned_requests, 0);
    });
}

#[test]
fn r9_the_first_cycle_of_many_arrays_asks_for_memory_a_few_times() {
    alone(|| {
        for device in [Device::Cpu, Device::sim(SimConfig::default())] {
            let config = WorkspaceConfig::default();
            let name = format!("R9 {device}");
            let workspace = Workspace::for_current_thread_on(&device, &name, &config).unwrap();
            let sizes: Vec<usize> = (0..1000).map(|n| 1 + n * 37 % 200).collect();
            let stats = cycle(&workspace, &sizes);
            assert!(stats.system_allocations <= 12, "{device}: {stats:?}");
            cycles(&workspace, 10, &sizes);
            let stats = workspace.stats();
            assert_eq!(stats.arrays, 1000);
            assert!(stats.system_allocations <= 12, "{device}: {stats:?}");
            assert_eq!((stats.externals, stats.renewals), (0, 0));
            assert_eq!(stats.same_addresses, 9, "the first in the block, and nine like it");
            crate::common::check(&device);
        }
    });
}

#[test]
fn growth_on_a_device_keeps_what_is_in_use() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let before = in_use(&device);
        let config = WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).build().unwrap();
        let workspace = Workspace::for_current_thread_on(&device, "DEVICE", &config).unwrap();
        let mut sums = Vec::new();
        for count in 1..=20 {
            let _cycle = workspace.activate().unwrap();
            let array = Tensor::full(f64::from(count), 500 * count as usize, &device).unwrap();
            // Not waited for: the block grows while the work that reads it is under way.
            sums.push((f64::from(500 * count * count), array.sum_all().unwrap().detach()));
        }
        sums.iter().for_each(|(expected, sum)| assert_eq!(sum.to_scalar::<f64>().unwrap(), *expected));
        let need = (8 * 500 * 20u64).next_multiple_of(256) + 256;
        assert!(workspace.stats().size >= need, "{:?}", workspace.stats());
        drop(sums);
        workspace.destroy().unwrap();
        assert_eq!(in_use(&device), before);
        crate::common::check(&device);
    });
}
