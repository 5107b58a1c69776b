//! Rings: their numbers through the public API, and that no handle ever shows data of another cycle.

use std::collections::VecDeque;

use ndgc::{CycleLease, DType, Device, Error, LearningPolicy, SpillPolicy, Tensor, Workspace};

use crate::workspace::rings::{
    MIB, assert_filled, assert_full, cycle, cycle_on, cycles, in_use, made, padded, ring, strict_ring,
};
use crate::workspace::support::{alone, el, filled};

#[test]
fn w31_a_ring_learns_over_time() {
    alone(|| {
        let config = ring(4).policy_learning(LearningPolicy::OverTime).cycles_before_initialization(5);
        let workspace = made("W31", config);
        for number in 1..=100 {
            let stats = cycle(&workspace, &[100]);
            let block = if number < 5 { 0 } else { padded(el(100)) };
            assert_eq!((stats.cycle_block, stats.size), (block, 5 * block), "cycle {number}");
        }
    });
}

#[test]
fn w32_a_ring_of_a_given_size_is_filled_cycle_by_cycle() {
    alone(|| {
        let workspace = made("W32", strict_ring().initial_size(100 * el(100)));
        let mut kept = Vec::new();
        for number in 1..=100 {
            let entered = workspace.activate().unwrap();
            kept.push(filled(f64::from(number), 100));
            entered.leave();
            assert_eq!(workspace.stats().offset, number as u64 * el(100));
        }
        (1..).zip(&kept).for_each(|(number, array)| assert_filled(array, f64::from(number)));
        // Round it goes: the hundred-and-first takes the place of the first, and of no other.
        let entered = workspace.activate().unwrap();
        let array = filled(101., 100);
        assert_eq!(entered.stats().offset, el(100));
        assert!(matches!(kept[0].to_vec::<f64>(), Err(Error::LeakedArray(_))));
        assert_filled(&kept[99], 100.);
        assert_filled(&array, 101.);
    });
}

/// Invariant I13 (design.md): also of cycles that ended long ago, as far as a ring remembers them.
#[test]
fn r1_an_array_that_is_being_read_is_not_written_over() {
    alone(|| {
        let workspace = made("READ", strict_ring().initial_size(8 * el(100)));
        let entered = workspace.activate().unwrap();
        let first = filled(7., 100);
        entered.leave();
        first
            .with_slice(|seen: &[f64]| {
                for number in 0..40 {
                    let _cycle = workspace.activate().unwrap();
                    assert_filled(&filled(f64::from(number), 100), f64::from(number));
                    assert_eq!(seen, [7.; 100], "cycle {number}");
                }
            })
            .unwrap();
    });
}

#[test]
fn w36_the_first_cycle_of_a_ring_stays_until_it_turned() {
    alone(|| {
        let workspace = made("W36", strict_ring().min_size(10 * MIB));
        let stats = cycle_on(&workspace, &[10_000]);
        assert_eq!((stats.size, stats.externals), (0, 1));
        let stats = workspace.stats();
        assert_eq!((stats.size, stats.offset, stats.externals), (10 * MIB, 0, 1));
        let blocks = (10 * MIB / padded(el(10_000))) as usize;
        cycles(&workspace, blocks, &[10_000]);
        assert_eq!(workspace.stats().externals, 1);
        cycles(&workspace, 1, &[10_000]);
        assert_eq!(workspace.stats().externals, 0);
    });
}

#[test]
fn w37_a_ring_grows_when_nothing_in_it_is_valid() {
    alone(|| {
        let (small, large) = (8 * 128 * 10, 8 * 128 * 20);
        let workspace = made("W37", ring(3).policy_spill(SpillPolicy::Reallocate));
        let block = padded(el(small as u64));
        let stats = cycle(&workspace, &[small]);
        assert_eq!((stats.cycle_block, stats.size, stats.offset), (block, 4 * block, 0));
        assert_eq!((stats.cycles, stats.step), (1, 0));
        let stats = cycle(&workspace, &[small]);
        assert_eq!((stats.offset, stats.cycles, stats.step), (block, 2, 0));
        let stats = cycle(&workspace, &[large]);
        assert_eq!((stats.offset, stats.pinned_requests, stats.step), (block, 1, 0));
        let stats = cycle(&workspace, &[small]);
        assert_eq!((stats.pinned_requests, stats.step), (2, 0));
        let stats = cycle(&workspace, &[small]);
        assert_eq!((stats.pinned_requests, stats.step), (3, 1));
        cycles(&workspace, 12, &[small]);
        let (stats, block) = (workspace.stats(), padded(el(large as u64)));
        assert_eq!((stats.step, stats.cycle_block), (4, block));
        assert_eq!((stats.size, stats.offset), (4 * block, 4 * block));
    });
}

#[test]
fn w41_the_second_cycle_of_a_ring_takes_one_block() {
    alone(|| {
        let workspace = made("W41", strict_ring().min_size(10 * MIB));
        let stats = cycle(&workspace, &[10]);
        assert_eq!((stats.size, stats.offset), (10 * MIB, 0));
        let stats = cycle(&workspace, &[10]);
        assert_eq!((stats.size, stats.offset), (10 * MIB, padded(el(10))));
    });
}

#[test]
fn w51_a_ring_pins_what_is_too_large() {
    alone(|| {
        let workspace = made("W51", ring(3));
        let block = padded(2 * el(500));
        let stats = cycle(&workspace, &[500, 500]);
        assert_eq!((stats.step, stats.spilled), (0, 2 * el(500)));
        assert_eq!((stats.cycle_block, stats.size), (block, 4 * block));
        let stats = cycle(&workspace, &[2000]);
        assert_eq!((stats.step, stats.spilled), (0, 2 * el(500)));
        assert_eq!((stats.pinned, stats.pinned_requests), (el(2000), 1));
        assert_eq!((stats.offset, stats.this_cycle), (0, 0));
        for round in 0..4 {
            for number in 1..=4 {
                assert_eq!(cycle(&workspace, &[500, 500]).offset, number * block);
            }
            assert_eq!(workspace.stats().pinned_requests, if round < 2 { 1 } else { 0 });
        }
        let outside = || {
            let stats = workspace.stats();
            (stats.spilled, stats.externals, stats.pinned, stats.pinned_requests)
        };
        assert_eq!(outside(), (0, 0, 0, 0));
        for _ in 0..100 {
            assert_eq!(cycle_on(&workspace, &[500, 500, 500]).this_cycle, 3 * el(500));
        }
        let stats = workspace.stats();
        assert!(
            (1..=12).contains(&stats.pinned_requests),
            "one each, and not more than three turns of them: {stats:?}"
        );
        assert_eq!((stats.spilled, stats.externals), (0, 0));
        cycles(&workspace, 100, &[500, 500]);
        assert_eq!(outside(), (0, 0, 0, 0));
        assert_eq!(workspace.stats().size, 4 * block);
    });
}

#[test]
fn w52_a_ring_grows_and_keeps_nothing_outside() {
    alone(|| {
        let workspace = made("W52", ring(3).policy_spill(SpillPolicy::Reallocate));
        assert_eq!(cycle(&workspace, &[500, 500]).size, 4 * padded(2 * el(500)));
        cycles(&workspace, 100, &[500, 500, 500]);
        let stats = workspace.stats();
        assert_eq!((stats.cycle_block, stats.size), (padded(3 * el(500)), 4 * padded(3 * el(500))));
        assert_eq!((stats.spilled, stats.externals, stats.pinned, stats.pinned_requests), (0, 0, 0, 0));
    });
}

/// A batch as of handwritten digits.
fn batch(number: usize) -> (Tensor, Tensor) {
    let part = |columns, offset: usize| Tensor::full((number + offset) as f32, (128, columns), &Device::Cpu).unwrap();
    (part(784, 0), part(10, 1))
}

fn is_batch((x, y): &(Tensor, Tensor), number: usize) -> bool {
    let all = |array: &Tensor, value: usize| array.to_vec::<f32>().unwrap().iter().all(|x| *x == value as f32);
    all(x, number) && all(y, number + 1)
}

#[test]
fn w60_a_ring_of_batches_keeps_its_last_ones() {
    alone(|| {
        const PREFETCH: usize = 24;
        let workspace = made("W60", ring(PREFETCH as u32 - 1));
        let mut last: VecDeque<(Tensor, Tensor)> = VecDeque::new();
        for number in 0..100 {
            let entered = workspace.activate().unwrap();
            last.push_back(batch(number));
            entered.leave();
            if last.len() > PREFETCH {
                last.pop_front();
            }
            // The oldest and the newest each time, all of them now and then.
            let first = number + 1 - last.len();
            let step = if number % 25 == 24 { 1 } else { last.len() };
            last.iter().enumerate().step_by(step).for_each(|(n, batch)| assert!(is_batch(batch, first + n)));
            assert!(is_batch(&last[last.len() - 1], number));
        }
        let stats = workspace.stats();
        assert_eq!((stats.externals, stats.pinned_requests), (0, 0), "{stats:?}");
    });
}

#[test]
fn r1_a_batch_that_was_kept_too_long_is_an_error_and_never_other_data() {
    alone(|| {
        for prefetch in [2, 4, 8] {
            for kept_in in [1, 2, 5] {
                let workspace = made(&format!("R1 {prefetch} {kept_in}"), ring(prefetch - 1));
                cycles(&workspace, kept_in, &[100, 10]);
                let entered = workspace.activate().unwrap();
                let kept = filled(-1., 100);
                entered.leave();
                let mut ended = None;
                for later in 1..=prefetch + 4 {
                    cycle(&workspace, &[100, 10]);
                    match kept.to_vec::<f64>() {
                        Ok(values) => {
                            assert_eq!(values, [-1.; 100]);
                            assert_eq!(ended, None, "what ended does not come back");
                        }
                        Err(Error::LeakedArray(leaked)) => {
                            assert!(leaked.workspace.starts_with("R1"));
                            ended.get_or_insert(later);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                assert_eq!(ended, Some(prefetch), "as many are whole as the ring has blocks");
                assert!(matches!(kept.add(&kept), Err(Error::LeakedArray(_))));
            }
        }
    });
}

/// Invariant I13 (design.md).
#[test]
fn r1_a_leased_batch_keeps_its_values_and_ends_after_its_lease() {
    alone(|| {
        let workspace = made("R1_LEASE", ring(3));
        cycles(&workspace, 2, &[100]);
        let entered = workspace.activate().unwrap();
        let (kept, lease) = (filled(-1., 100), entered.lease().unwrap());
        entered.leave();
        for _ in 0..4 + 4 {
            cycle(&workspace, &[100]);
            assert_filled(&kept, -1.);
        }
        drop(lease);
        cycles(&workspace, 8, &[100]);
        assert!(matches!(kept.to_vec::<f64>(), Err(Error::LeakedArray(_))));
    });
}

#[test]
fn r2_any_number_of_leased_batches_is_exact() {
    alone(|| {
        const RING: usize = 4;
        for held in 1..=3 * RING {
            let before = in_use(&Device::Cpu);
            let workspace = made(&format!("R2 {held}"), ring(RING as u32 - 1));
            let mut batches: VecDeque<(usize, Tensor, CycleLease)> = VecDeque::new();
            for number in 0..6 * RING {
                let entered = workspace.activate().unwrap();
                batches.push_back((number, filled(number as f64, 300), entered.lease().unwrap()));
                entered.leave();
                if batches.len() > held {
                    batches.pop_front();
                }
                batches.iter().for_each(|(number, array, _)| assert_filled(array, *number as f64));
            }
            let pinned = workspace.stats().pinned_requests;
            assert_eq!(pinned > 0, held >= RING, "{held} held of {RING}: {pinned} beside the ring");
            batches.clear();
            cycles(&workspace, 4 * RING, &[300]);
            let stats = workspace.stats();
            assert_eq!((stats.pinned, stats.pinned_requests, stats.spilled, stats.externals), (0, 0, 0, 0), "{held}");
            workspace.destroy().unwrap();
            assert_eq!(in_use(&Device::Cpu), before);
        }
    });
}

#[test]
fn r2_leased_batches_outlive_their_workspace_and_its_thread() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let (kept, lease, other) = std::thread::spawn(|| {
            let workspace = made("R2_THREAD", ring(3));
            let make = |value| {
                let entered = workspace.activate().unwrap();
                (filled(value, 100), entered.lease().unwrap())
            };
            let (other, _) = make(1.);
            let (kept, lease) = make(2.);
            let copy = workspace.clone();
            copy.destroy().unwrap();
            (kept, lease, other)
        })
        .join()
        .unwrap();
        assert_filled(&kept, 2.);
        assert!(matches!(other.to_vec::<f64>(), Err(Error::LeakedArray(_))));
        // A workspace made meanwhile gets none of its bytes.
        cycles(&made("R2_AFTER", ring(3)), 10, &[100]);
        assert_filled(&(&kept + 1.).unwrap(), 3.);
        drop(lease);
        assert!(matches!(kept.to_vec::<f64>(), Err(Error::LeakedArray(_))));
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

/// A ring of `el(100)` bytes, of which nothing is learned.
fn small_ring(id: &str, spill: SpillPolicy) -> Workspace {
    let config = strict_ring().policy_learning(LearningPolicy::None).initial_size(el(100));
    made(id, config.policy_spill(spill))
}

#[test]
fn r7_what_is_larger_than_a_ring_spills() {
    alone(|| {
        let workspace = small_ring("R7_SPILL", SpillPolicy::External);
        for _ in 0..20 {
            let stats = cycle_on(&workspace, &[1000, 50]);
            assert_eq!(stats.size, el(100));
            assert!((1..=6).contains(&stats.pinned_requests), "{stats:?}");
        }
    });
}

#[test]
fn r7_what_is_larger_than_a_ring_grows_it() {
    alone(|| {
        let workspace = small_ring("R7_GROW", SpillPolicy::Reallocate);
        cycles(&workspace, 20, &[1000]);
        assert_eq!(workspace.stats().size, padded(el(1000)));
        cycles(&workspace, 20, &[1000]);
        let stats = cycle_on(&workspace, &[1000]);
        assert_eq!((stats.offset, stats.pinned_requests), (el(1000), 0));
    });
}

#[test]
fn r7_what_is_larger_than_a_ring_fails() {
    alone(|| {
        let workspace = small_ring("R7_FAIL", SpillPolicy::Fail);
        for _ in 0..3 {
            let entered = workspace.activate().unwrap();
            let first = filled(1., 60);
            let before = entered.stats();
            let doubles = |n: usize| Tensor::zeros(n, DType::F64, &Device::Cpu);
            assert_full(doubles(60));
            assert_full(doubles(1000));
            assert_eq!(entered.stats(), before, "a refused request leaves nothing");
            let last = filled(2., 40);
            assert_filled(&first, 1.);
            assert_filled(&last, 2.);
        }
    });
}
