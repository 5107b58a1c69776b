//! Budgets of workspaces: the block, what lies beside it and what waits to be free, within one limit, whatever cycles
//! ask for; a soft limit; a limit on arrays.

use std::sync::{Arc, Mutex, mpsc};

use ndgc::{
    Budget, CycleLease, DType, Device, Error, LearningPolicy, NdManager, OutOfMemoryClass, Result, SpillPolicy, Tensor,
    Workspace, WorkspaceConfigBuilder, memory,
};

use crate::common::{in_own_process, text_of};
use crate::workspace::rings::{in_use, made, ring, strict, strict_ring};
use crate::workspace::support::{alone, el, filled, sum};

/// Zeros of the host of so many bytes.
fn bytes(count: u64) -> Result<Tensor> {
    Tensor::zeros(count as usize, DType::U8, &Device::Cpu)
}

/// A workspace with a limit on bytes.
fn limited(id: &str, config: WorkspaceConfigBuilder, max: u64) -> Workspace {
    let workspace = made(id, config);
    assert_eq!(workspace.set_budget(Budget::new().max_bytes(max)).unwrap(), Budget::new());
    workspace
}

/// Bytes that are charged.
fn used(workspace: &Workspace) -> u64 {
    workspace.budget_use().unwrap().bytes
}

/// Whose budget refused: what it had of how much, and whether that is arrays.
#[track_caller]
fn refusal<T>(result: Result<T>) -> (String, u64, u64, bool) {
    match result.map(drop) {
        Err(Error::OutOfMemory(oom)) => match oom.class {
            OutOfMemoryClass::OverBudget { manager, used, max, is_arrays } => (manager, used, max, is_arrays),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Keeps the bytes of an array from being used again: as another thread does that reads them.
struct Reader {
    ends: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<f64>,
}

impl Reader {
    fn of(array: &Tensor) -> Self {
        let ((reads, wait_reads), (ends, wait_ends)) = (mpsc::channel(), mpsc::channel());
        let array = array.clone();
        let thread = std::thread::spawn(move || {
            let read = array.with_slice(|slice: &[f64]| {
                reads.send(()).unwrap();
                wait_ends.recv().unwrap();
                slice.iter().sum()
            });
            read.unwrap()
        });
        wait_reads.recv().unwrap();
        Reader { ends, thread }
    }

    fn end(self) -> f64 {
        self.ends.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

#[test]
fn the_block_and_what_spills_beside_it_share_one_limit() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let workspace = limited("B", strict().initial_size(4096), 10_000);
        assert_eq!((workspace.budget(), used(&workspace)), (Budget::new().max_bytes(10_000), 4096));
        let cycle = workspace.activate().unwrap();
        let (first, second) = (bytes(4096).unwrap(), bytes(5000).unwrap());
        assert_eq!(used(&workspace), 4096 + 5056, "of what spills no more than is needed");
        let stats = workspace.stats();
        assert_eq!(refusal(bytes(1000)), ("workspace [B]".to_owned(), 9152, 10_000, false));
        assert_eq!(refusal(second.affine(1., 1.)), ("workspace [B]".to_owned(), 9152, 10_000, false));
        assert_eq!(refusal(bytes(20_000)), ("workspace [B]".to_owned(), 9152, 10_000, false), "more than there can be");
        let Err(Error::OutOfMemory(oom)) = bytes(1000) else { panic!("there is room") };
        assert_eq!(oom.largest, [("workspace [B]".to_owned(), 2, 9152)], "its blocks");
        let lines: Vec<_> = oom.lines.iter().map(|&(_, arrays, bytes)| (arrays, bytes)).collect();
        assert_eq!(lines, [(2, 9096)]);
        assert_eq!((workspace.stats(), used(&workspace)), (stats, 9152));
        let third = bytes(800).unwrap();
        assert_eq!((used(&workspace), in_use(&Device::Cpu) - before), (9984, 9984));
        assert!([&first, &second, &third].iter().all(|x| x.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 0)));
        let outside = Workspace::scope_out();
        let _free = bytes(1 << 20).unwrap();
        drop(outside);
        cycle.leave();
        let found = workspace.budget_use().unwrap();
        assert_eq!((found.bytes, found.peak_bytes, found.refused), (4096, 9984, 4));
        assert_eq!(memory::stats(&Device::Cpu).get("workspace.B.requests.refused"), Some(4));
        assert_eq!((found.arrays, found.peak_arrays), (0, 3));
        assert_eq!(workspace.set_budget(Budget::new()).unwrap(), Budget::new().max_bytes(10_000));
        let _cycle = workspace.activate().unwrap();
        let limit = Device::Cpu.set_limit(Some(in_use(&Device::Cpu) + 100));
        let refused = bytes(20_000);
        Device::Cpu.set_limit(limit);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        assert_eq!(used(&workspace), 4096, "what the device refuses is not charged");
        bytes(1 << 20).unwrap();
    });
}

#[test]
fn a_refusal_names_the_workspace_and_what_to_do() {
    alone(|| {
        let workspace = limited("STEP", strict().initial_size(4096), 6000);
        let _cycle = workspace.activate().unwrap();
        let text = text_of(&bytes(8000).unwrap_err());
        let (start, rest) = text.split_once("; threadId: ").unwrap();
        assert_eq!(start, "Can't allocate [HOST] memory: 8000");
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let (what, device) = rest.split_once(": ").unwrap();
        assert_eq!(
            what,
            "; zeros wants 7.81 KiB on cpu, over the budget of `workspace [STEP]`, which has 4.00 KiB of 5.86 KiB"
        );
        assert!(device.contains("; tried: drain 0 B"), "{device}");
        assert!(device.ends_with("; raise its budget, make less in a cycle, or use smaller batches"), "{device}");
    });
}

#[test]
fn a_block_never_grows_beyond_the_limit_and_grows_as_far_as_is_needed() {
    alone(|| {
        let double = || {
            let config = strict().policy_allocation(ndgc::AllocationPolicy::Overallocate).overallocation_limit(1.);
            config.policy_spill(SpillPolicy::Reallocate)
        };
        let workspace = limited("GROWS", double(), 10_000);
        let run = |sizes: &[u64]| {
            let _cycle = workspace.activate().unwrap();
            sizes.iter().for_each(|&size| drop(bytes(size).unwrap()));
        };
        run(&[3200]);
        assert_eq!((workspace.stats().size, used(&workspace)), (6400, 6400), "with the slack that it is to have");
        run(&[6400, 3200]);
        assert_eq!((workspace.stats().size, used(&workspace)), (9600, 9600), "without it");
        assert_eq!(workspace.stats().system_allocations, 4, "no block went for one that was refused");
        workspace.set_budget(Budget::new().max_bytes(5000)).unwrap();
        run(&[9600]);
        assert_eq!((workspace.stats().size, used(&workspace)), (9600, 9600), "what it has stays");
        let cycle = workspace.activate().unwrap();
        bytes(9600).unwrap();
        assert_eq!(refusal(bytes(1)), ("workspace [GROWS]".to_owned(), 9600, 5000, false));
        cycle.leave();
        let small = made("SMALL", double().policy_learning(LearningPolicy::OverTime));
        Workspace::cycle("SMALL", small.configuration(), || bytes(6400).map(drop)).unwrap();
        small.set_budget(Budget::new().max_bytes(6000)).unwrap();
        assert_eq!(refusal(small.initialize()), ("workspace [SMALL]".to_owned(), 0, 6000, false));
        assert_eq!((small.stats().size, used(&small)), (0, 0));
        small.set_budget(Budget::new().max_bytes(8000)).unwrap();
        small.initialize().unwrap();
        assert_eq!((small.stats().size, used(&small)), (6400, 6400));
    });
}

#[test]
fn what_waits_for_a_reader_on_another_thread_stays_charged_until_it_is_free() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let size = el(1000);
        let workspace = made("WAITS", strict().initial_size(size));
        let cycle = workspace.activate().unwrap();
        let reader = Reader::of(&filled(7., 1000));
        cycle.leave();
        // The block waits, and there is another one: both are charged to the first budget.
        let cycle = workspace.activate().unwrap();
        assert_eq!(workspace.stats().renewals, 1);
        workspace.set_budget(Budget::new().max_bytes(2 * size + 64)).unwrap();
        assert_eq!((used(&workspace), in_use(&Device::Cpu) - before), (2 * size, 2 * size));
        assert_eq!(sum(&filled(1., 1000)), 1000.);
        assert_eq!(refusal(bytes(65)), ("workspace [WAITS]".to_owned(), 2 * size, 2 * size + 64, false));
        let second = Reader::of(&filled(8., 8));
        cycle.leave();
        assert_eq!(reader.end(), 7000.);
        // What the first one had is free for the request that needs it: no call is made in between.
        let cycle = workspace.activate().unwrap();
        assert_eq!((workspace.stats().size, used(&workspace)), (size, size + 64));
        cycle.leave();
        assert_eq!(second.end(), 64.);
        // Two blocks would be too much: everything lies beside, and what has no room there is refused.
        workspace.set_budget(Budget::new().max_bytes(size + 128)).unwrap();
        let cycle = workspace.activate().unwrap();
        let reader = Reader::of(&filled(9., 1000));
        cycle.leave();
        let cycle = workspace.activate().unwrap();
        assert_eq!((workspace.stats().size, used(&workspace)), (0, size));
        bytes(128).unwrap();
        assert_eq!(refusal(bytes(1)), ("workspace [WAITS]".to_owned(), size + 128, size + 128, false));
        assert_eq!(reader.end(), 9000.);
        let over = filled(-1., 1000);
        assert_eq!((sum(&over), used(&workspace)), (-1000., 128 + size));
        cycle.leave();
        workspace.activate().unwrap().leave();
        assert_eq!((workspace.stats().size, used(&workspace)), (size + 128, size + 128), "it has a block again");
        workspace.destroy().unwrap();
        assert_eq!((used(&workspace), in_use(&Device::Cpu)), (0, before));
        assert!(matches!(workspace.set_budget(Budget::new()), Err(Error::Workspace { .. })));
    });
}

#[test]
fn what_leases_of_a_ring_keep_is_charged_until_another_thread_drops_them() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let (sender, leased) = mpsc::channel::<(CycleLease, Tensor)>();
        let (dropped, wait_dropped) = mpsc::channel::<()>();
        let (go_on, wait_go_on) = mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let kept: Vec<(CycleLease, Tensor)> = leased.iter().collect();
            wait_go_on.recv().unwrap();
            let values = kept.iter().map(|(_, array)| sum(array)).collect::<Vec<f64>>();
            drop(kept);
            dropped.send(()).unwrap();
            values
        });
        let workspace = limited("RING", strict_ring().initial_size(el(100)), 3 * el(100));
        for value in 1..=3 {
            let cycle = workspace.activate().unwrap();
            let array = filled(f64::from(value), 100);
            sender.send((cycle.lease().unwrap(), array)).unwrap();
            assert_eq!(used(&workspace), value as u64 * el(100), "the ring, then beside it");
        }
        let cycle = workspace.activate().unwrap();
        assert_eq!(refusal(bytes(1)), ("workspace [RING]".to_owned(), 3 * el(100), 3 * el(100), false));
        cycle.leave();
        workspace.destroy().unwrap();
        assert_eq!((used(&workspace), in_use(&Device::Cpu) - before), (3 * el(100), 3 * el(100)));
        drop(sender);
        go_on.send(()).unwrap();
        wait_dropped.recv().unwrap();
        assert_eq!(holder.join().unwrap(), [100., 200., 300.]);
        assert_eq!((used(&workspace), in_use(&Device::Cpu)), (0, before));
    });
}

#[test]
fn a_thread_that_ends_leaves_nothing_charged_but_what_is_leased() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        // More threads than one after the other, so that budgets are used again.
        for _ in 0..50 {
            let lease = std::thread::spawn(|| {
                let workspace = limited("GONE", ring(2).initial_size(4096), 1 << 20);
                let _cycle = workspace.activate().unwrap();
                assert_eq!(used(&workspace), 3 * 4096, "a fresh budget");
                let _x = filled(1., 100);
                workspace.lease().unwrap()
            });
            let lease = lease.join().unwrap();
            assert_eq!(in_use(&Device::Cpu) - before, 3 * 4096);
            drop(lease);
            assert_eq!(in_use(&Device::Cpu), before);
        }
    });
}

#[test]
fn planned_and_nested_ones_hold_their_limits() {
    alone(|| {
        let chain = |n: usize| {
            let first = Tensor::full(1., n, &Device::Cpu)?;
            (0..50).try_fold(first, |x, _| x.affine(1., 1.))?.sum_all()?.to_scalar::<f64>()
        };
        let config = strict().policy_learning(LearningPolicy::Planned);
        let planned = limited("PLANNED", config, 60 * el(100));
        for _ in 0..20 {
            let _cycle = planned.activate().unwrap();
            assert_eq!(chain(100).unwrap(), 5100.);
            assert!(used(&planned) <= 60 * el(100));
        }
        let plan = planned.stats();
        assert!(plan.size < 10 * el(100) && used(&planned) == plan.size, "{plan:?}");
        let cycle = planned.activate().unwrap();
        assert_eq!(refusal(chain(10_000).map(drop)).0, "workspace [PLANNED]");
        assert_eq!(chain(100).unwrap(), 5100., "what fits is as before");
        cycle.leave();
        let outer = limited("OUTER", strict().initial_size(2048), 4096);
        let inner = limited("INNER", strict().initial_size(1024), 2048);
        let _first = outer.activate().unwrap();
        let kept = bytes(1024).unwrap();
        {
            let _second = inner.activate().unwrap();
            let x = bytes(1024).unwrap();
            assert_eq!(refusal(bytes(1025)).0, "workspace [INNER]", "of the innermost");
            let _again = outer.activate().unwrap();
            let (_fills, _spills) = (bytes(1024).unwrap(), bytes(2048).unwrap());
            assert_eq!(refusal(bytes(1)), ("workspace [OUTER]".to_owned(), 4096, 4096, false));
            assert_eq!(refusal(x.leverage_to("OUTER")).0, "workspace [OUTER]");
            assert!(x.is_open() && kept.is_open());
        }
        // Nested entries use the block again, and not what spilled.
        assert_eq!((used(&outer), used(&inner)), (4096, 1024));
        assert_eq!(bytes(1024).unwrap().dims(), [1024]);
    });
}

#[test]
fn a_soft_limit_asks_the_programs_caches_and_refuses_nothing() {
    alone(|| {
        let asked = Arc::new(Mutex::new(Vec::<(u64, Option<String>)>::new()));
        let noted = Arc::clone(&asked);
        let _cache = memory::on_pressure("cache", 0, move |why| {
            noted.lock().unwrap().push((why.wanted, why.manager.clone()));
        });
        let soft = || Some("workspace [SOFT]".to_owned());
        let all = || std::mem::take(&mut *asked.lock().unwrap());
        let workspace = made("SOFT", strict().initial_size(4096).policy_spill(SpillPolicy::Reallocate));
        workspace.set_budget(Budget::new().soft_bytes(5000).max_bytes(1 << 20)).unwrap();
        let run = |sizes: &[u64]| {
            let _cycle = workspace.activate().unwrap();
            sizes.iter().for_each(|&size| drop(bytes(size).unwrap()));
        };
        run(&[4096, 500]);
        assert_eq!((all(), workspace.stats().size), (vec![(500, soft())], 4096 + 512), "what spilled passed it");
        let cycle = workspace.activate().unwrap();
        bytes(4000).unwrap();
        bytes(3000).unwrap();
        let passed = workspace.budget_use().unwrap().soft_passed;
        assert_eq!(all(), [(3000, soft())], "once, by what passed it");
        bytes(200_000).unwrap();
        assert_eq!((all(), workspace.budget_use().unwrap().soft_passed), (vec![], passed), "it is above");
        cycle.leave();
        let grown = workspace.stats().size;
        assert!(grown > 200_000, "{grown}");
        assert_eq!(all(), [(grown, soft())], "what was beside went, and the block grew beyond");
        run(&[200_000]);
        assert!(all().is_empty());
        // A hard limit tells whose it is, and takes what a cache gives.
        let hard = limited("HARD", strict().initial_size(64), 64);
        let _cycle = hard.activate().unwrap();
        assert_eq!(refusal(bytes(65)).0, "workspace [HARD]");
        assert_eq!(all(), [(65, Some("workspace [HARD]".to_owned()))]);
        hard.set_budget(Budget::new().max_arrays(0)).unwrap();
        assert!(refusal(bytes(1)).3 && all().is_empty(), "no cache can help");
    });
}

#[test]
fn arrays_of_a_cycle_are_counted() {
    alone(|| {
        let workspace = made("COUNTED", strict().initial_size(4096));
        workspace.set_budget(Budget::new().max_arrays(3)).unwrap();
        for _ in 0..3 {
            let cycle = workspace.activate().unwrap();
            let x = Tensor::ones(8, DType::F64, &Device::Cpu).unwrap();
            let y = x.affine(2., 0.).unwrap();
            let _view = y.narrow(0, 1, 2).unwrap();
            let stats = {
                let other = made("OTHER", strict());
                let _other = other.activate().unwrap();
                let _free: Vec<Tensor> = (0..10).map(|_| bytes(10).unwrap()).collect();
                let _nested = workspace.activate().unwrap();
                bytes(1).unwrap();
                let stats = workspace.stats();
                assert_eq!(refusal(x.exp()), ("workspace [COUNTED]".to_owned(), 3, 3, true));
                assert_eq!(workspace.stats(), stats);
                stats
            };
            assert_eq!((stats.arrays, refusal(y.exp()).3), (3, true));
            assert_eq!(workspace.budget_use().unwrap().arrays, 3);
            cycle.leave();
        }
        let found = workspace.budget_use().unwrap();
        assert_eq!((found.arrays, found.peak_arrays, found.refused, found.bytes), (0, 3, 6, 4096));
        workspace.set_budget(Budget::new()).unwrap();
        let _cycle = workspace.activate().unwrap();
        (0..10).for_each(|_| drop(bytes(1).unwrap()));
        assert_eq!(workspace.budget_use().unwrap().arrays, 10);
    });
}

#[test]
fn cycles_that_had_more_arrays_than_the_soft_limit_are_counted() {
    alone(|| {
        let asked = Arc::new(Mutex::new(0));
        let noted = Arc::clone(&asked);
        let _cache = memory::on_pressure("cache", 0, move |_| *noted.lock().unwrap() += 1);
        let workspace = made("SOFTLY", strict().initial_size(4096));
        workspace.set_budget(Budget::new().soft_arrays(2)).unwrap();
        for (arrays, passed) in [(2, 0), (3, 1), (0, 1), (5, 2)] {
            let cycle = workspace.activate().unwrap();
            (0..arrays).for_each(|_| drop(bytes(1).unwrap()));
            cycle.leave();
            let found = workspace.budget_use().unwrap();
            assert_eq!((found.soft_passed, found.refused), (passed, 0), "{arrays}");
        }
        assert_eq!(workspace.set_budget(Budget::new()).unwrap(), Budget::new().soft_arrays(2));
        let cycle = workspace.activate().unwrap();
        (0..5).for_each(|_| drop(bytes(1).unwrap()));
        cycle.leave();
        assert_eq!((workspace.budget_use().unwrap().soft_passed, *asked.lock().unwrap()), (2, 0));
    });
}

#[test]
fn a_workspace_above_a_soft_limit_on_bytes_asks_nobody_for_arrays() {
    alone(|| {
        for (of_server, of_workspace) in [(1, u64::MAX), (u64::MAX, 0)] {
            let server = NdManager::new_base_manager(&Device::Cpu).unwrap();
            // 64 KiB are taken at a time for what the block has no room for.
            server.set_budget(Budget::new().soft_bytes(70_000).soft_arrays(of_server)).unwrap();
            let _weights = server.zeros(100, DType::U8).unwrap();
            let held = Arc::new(Mutex::new(Some(server.zeros(8000, DType::U8).unwrap())));
            let asked = Arc::new(Mutex::new(0));
            let (own, noted) = (Arc::clone(&held), Arc::clone(&asked));
            let _first = memory::on_pressure("first", 0, move |_| {
                if let Some(array) = own.lock().unwrap().take() {
                    array.close();
                }
            });
            let _second = memory::on_pressure("second", 1, move |_| *noted.lock().unwrap() += 1);
            let workspace = made("BYTES", strict().initial_size(1024));
            workspace.set_budget(Budget::new().soft_arrays(of_workspace)).unwrap();
            workspace.charge_to(&server).unwrap();
            let cycle = workspace.activate().unwrap();
            let _block = bytes(1024).unwrap();
            assert!(held.lock().unwrap().is_some());
            let _beside = bytes(2000).unwrap();
            assert!(held.lock().unwrap().is_none());
            assert_eq!(*asked.lock().unwrap(), 0, "the bytes are below their limit again");
            cycle.leave();
            workspace.destroy().unwrap();
        }
    });
}

/// A number of a cheap sequence.
fn draw(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// The model: what is charged is what the workspace has of the device; it is never above the limit, and what is refused
/// would have passed it. Invariant I14 (design.md).
#[test]
fn random_cycles_never_pass_the_limit_and_nothing_is_refused_that_fits() {
    let kinds: [fn() -> WorkspaceConfigBuilder; 6] = [
        strict,
        || strict().initial_size(20_000).policy_spill(SpillPolicy::Reallocate),
        || ring(2).policy_spill(SpillPolicy::Reallocate),
        || strict_ring().initial_size(9000),
        || strict().policy_learning(LearningPolicy::Planned),
        || ring(1).shrink_after(3),
    ];
    // A refusal looks at each slot that the process ever used.
    let test = "workspace::budgets::random_cycles_never_pass_the_limit_and_nothing_is_refused_that_fits";
    in_own_process(test, || alone(|| random_cycles(&kinds)));
}

fn random_cycles(kinds: &[fn() -> WorkspaceConfigBuilder]) {
    let (mut refusals, mut grants) = (0, 0);
    for seed in 0..60u64 {
        let before = in_use(&Device::Cpu);
        let mut state = (seed + 1) * 0x9E37_79B9;
        let max = 30_000 + draw(&mut state, 200_000);
        let workspace = limited(&format!("RANDOM {seed}"), kinds[seed as usize % kinds.len()](), max);
        let check = || {
            let charged = used(&workspace);
            assert!(charged <= max, "{seed}: {charged} of {max}");
            assert_eq!(in_use(&Device::Cpu) - before, charged, "{seed}");
        };
        let mut leases = Vec::new();
        for _ in 0..40 {
            let cycle = workspace.activate().unwrap();
            check();
            let mut arrays = Vec::new();
            for _ in 0..draw(&mut state, 12) {
                let most = [500, 30_000][draw(&mut state, 2) as usize];
                let size = 1 + draw(&mut state, most);
                match bytes(size) {
                    Ok(array) => arrays.push(array),
                    Err(Error::OutOfMemory(oom)) => {
                        assert!(matches!(oom.class, OutOfMemoryClass::OverBudget { .. }), "{oom:?}");
                        let charged = used(&workspace);
                        assert!(charged + size.next_multiple_of(64) > max, "{seed}: {size} at {charged} of {max}");
                        let rest = (max - charged) / 64 * 64;
                        if rest > 0 && draw(&mut state, 2) == 0 {
                            arrays.push(bytes(rest).unwrap());
                        }
                        refusals += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
                grants += arrays.len();
                check();
                if draw(&mut state, 3) == 0 && !arrays.is_empty() {
                    arrays.swap_remove(draw(&mut state, arrays.len() as u64) as usize);
                }
            }
            match draw(&mut state, 8) {
                0 | 1 => leases.extend(cycle.lease().ok()),
                2 => leases.clear(),
                _ => {}
            }
            cycle.leave();
            check();
            if draw(&mut state, 10) == 0 {
                let _ = (workspace.trim().unwrap(), workspace.initialize());
                check();
            }
        }
        workspace.destroy().unwrap();
        check();
        drop(leases);
        assert_eq!((used(&workspace), in_use(&Device::Cpu)), (0, before), "{seed}");
    }
    assert!(refusals > 100 && grants > 1000, "{refusals}, {grants}");
}

/// A manager with a name and a limit on bytes.
fn tenant(name: &str, above: &NdManager, max: u64) -> NdManager {
    let manager = above.new_sub_manager().unwrap();
    manager.set_name(name);
    manager.set_budget(Budget::new().max_bytes(max)).unwrap();
    manager
}

/// Bytes that are charged to a manager's budget, and the most that were.
fn has(manager: &NdManager) -> (u64, u64) {
    let used = manager.budget_use().unwrap();
    (used.bytes, used.peak_bytes)
}

#[test]
fn what_a_workspace_has_counts_with_the_manager_that_it_is_charged_to() {
    alone(|| {
        let server = NdManager::new_base_manager(&Device::Cpu).unwrap();
        server.set_budget(Budget::new()).unwrap();
        let (one, other) = (tenant("one", &server, 20_000), tenant("other", &server, 1 << 20));
        let weights = one.zeros(8000, DType::U8).unwrap();
        let workspace = made("PAYS", strict().initial_size(4096));
        workspace.charge_to(&one).unwrap();
        assert_eq!((has(&one), has(&server), used(&workspace)), ((12_096, 12_096), (12_096, 12_096), 4096));
        let cycle = workspace.activate().unwrap();
        let _block = bytes(4096).unwrap();
        let spilled = bytes(5000).unwrap();
        assert_eq!((has(&one).0, used(&workspace)), (8000 + 9152, 9152));
        assert_eq!(refusal(bytes(3000)), ("one".to_owned(), 17_152, 20_000, false));
        let Err(Error::OutOfMemory(oom)) = bytes(3000) else { panic!("there is room") };
        assert_eq!(oom.largest, [("workspace [PAYS]".to_owned(), 2, 9152), ("one".to_owned(), 1, 8000)]);
        let outside = Workspace::scope_out();
        assert_eq!(refusal(one.zeros(3000, DType::U8)), ("one".to_owned(), 17_152, 20_000, false));
        assert_eq!((has(&one), has(&server)), ((17_152, 17_152), (17_152, 17_152)), "and nothing more");
        other.zeros(1 << 19, DType::U8).unwrap().close();
        drop(outside);
        // What is gone from one of them is there for the other.
        weights.close();
        let _room = bytes(3000).unwrap();
        assert_eq!((has(&one).0, used(&workspace)), (12_160, 12_160));
        // Reserved bytes are for workspaces too.
        let room = one.reserve(7000).unwrap();
        assert!(one.reserve(1000).is_err());
        let _drawn = bytes(6000).unwrap();
        assert_eq!(has(&one).0, 19_160);
        drop((room, spilled));
        cycle.leave();
        assert_eq!((has(&one).0, used(&workspace)), (4096, 4096));
        // To another one: what there is goes along, and no byte counts twice above both.
        workspace.set_budget(Budget::new().max_bytes(8192)).unwrap();
        workspace.charge_to(&other).unwrap();
        assert_eq!((has(&one).0, has(&other).0, has(&server).0), (0, 4096, 4096));
        let cycle = workspace.activate().unwrap();
        let _block = bytes(4096).unwrap();
        assert_eq!(refusal(bytes(5000)), ("workspace [PAYS]".to_owned(), 4096, 8192, false), "its own stays");
        // A closed manager's budget, and those above, have what lives.
        other.close().unwrap();
        let _beside = bytes(1000).unwrap();
        assert_eq!(has(&server).0, 4096 + 1024);
        cycle.leave();
        workspace.destroy().unwrap();
        assert_eq!(has(&server).0, 0);
    });
}

#[test]
fn a_block_is_made_of_what_is_reserved() {
    alone(|| {
        let base = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let tenant = tenant("tenant", &base, 10_000);
        let workspace = made("DRAWS", strict().policy_learning(LearningPolicy::OverTime));
        workspace.charge_to(&tenant).unwrap();
        let cycle = workspace.activate().unwrap();
        drop(bytes(4096).unwrap());
        cycle.leave();
        let room = tenant.reserve(10_000).unwrap();
        workspace.initialize().unwrap();
        assert_eq!((workspace.stats().size, used(&workspace)), (4096, 4096));
        assert_eq!((has(&tenant).0, tenant.budget_use().unwrap().reserved_bytes), (10_000, 10_000 - 4096));
        drop(room);
    });
}

#[test]
fn a_workspace_says_what_fits_and_keeps_room_for_its_blocks() {
    alone(|| {
        let workspace = limited("ROOM", strict().initial_size(4096), 10_000);
        assert!(workspace.can_fit(5904) && !workspace.can_fit(5905));
        let room = workspace.reserve(5000).unwrap();
        let found = workspace.budget_use().unwrap();
        assert_eq!((room.bytes(), found.bytes, found.reserved_bytes), (5000, 9096, 5000));
        assert!(workspace.can_fit(5904) && !workspace.can_fit(5905), "of what is reserved it takes its part");
        assert_eq!(refusal(workspace.reserve(905)), ("workspace [ROOM]".to_owned(), 9096, 10_000, false));
        let cycle = workspace.activate().unwrap();
        let _block = bytes(4096).unwrap();
        let _drawn = bytes(4992).unwrap();
        let found = workspace.budget_use().unwrap();
        assert_eq!((found.bytes, found.reserved_bytes), (9096, 8), "out of it");
        drop(room);
        assert_eq!(used(&workspace), 4096 + 4992);
        cycle.leave();
        assert_eq!(used(&workspace), 4096);
        // Those above are asked, too. What is reserved stays where it was.
        let server = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let one = tenant("one", &server, 6000);
        let former = workspace.reserve(1000).unwrap();
        workspace.charge_to(&one).unwrap();
        assert_eq!((used(&workspace), has(&one).0), (4096, 4096));
        drop(former);
        let room = workspace.reserve(1000).unwrap();
        assert_eq!((used(&workspace), has(&one).0), (5096, 5096));
        assert!(workspace.can_fit(1904) && !workspace.can_fit(1905));
        assert_eq!(refusal(workspace.reserve(905)), ("one".to_owned(), 5096, 6000, false));
        workspace.set_budget(Budget::new().max_arrays(1)).unwrap();
        let cycle = workspace.activate().unwrap();
        assert!(workspace.can_fit(0));
        bytes(1).unwrap();
        assert!(!workspace.can_fit(0), "its cycle has as many arrays as it may have");
        cycle.leave();
        workspace.destroy().unwrap();
        assert!(!workspace.can_fit(0));
        assert!(matches!(workspace.reserve(1), Err(Error::Workspace { .. })));
        assert_eq!((used(&workspace), has(&one).0), (1000, 1000));
        drop(room);
        assert_eq!((used(&workspace), has(&one).0), (0, 0));
        let free = made("FREE", strict());
        assert!(free.can_fit(u64::MAX) && free.reserve(u64::MAX).is_ok(), "without a budget");
    });
}

#[test]
fn charging_a_workspace_to_who_cannot_pay_is_refused() {
    alone(|| {
        let workspace = made("POOR", strict().initial_size(4096));
        let base = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let closed = base.new_sub_manager().unwrap();
        closed.close().unwrap();
        assert!(matches!(workspace.charge_to(&closed), Err(Error::ManagerClosed { .. })));
        let system = NdManager::system(&Device::Cpu);
        assert!(matches!(workspace.charge_to(&system), Err(Error::SystemManager { .. })));
        assert_eq!(workspace.budget_use(), None, "as it was");
        // One without a budget gets one, that says how much there is.
        workspace.charge_to(&base).unwrap();
        assert_eq!((base.budget(), has(&base).0), (Budget::new(), 4096));
        // Once more changes nothing; after a first budget above it is found.
        workspace.charge_to(&base).unwrap();
        assert_eq!((has(&base), base.budget_use().unwrap().total_bytes), ((4096, 4096), 4096));
        let below = base.new_sub_manager().unwrap();
        let lowest = below.new_sub_manager().unwrap();
        workspace.charge_to(&lowest).unwrap();
        below.set_budget(Budget::new().max_bytes(5000)).unwrap();
        let cycle = workspace.activate().unwrap();
        let _block = bytes(4096).unwrap();
        assert_eq!(has(&below).0, 0, "not yet");
        workspace.charge_to(&lowest).unwrap();
        assert_eq!((has(&lowest).0, has(&below).0, has(&base).0), (4096, 4096, 4096));
        below.set_name("below");
        assert_eq!(refusal(bytes(4096)), ("below".to_owned(), 4096, 5000, false));
        cycle.leave();
        // What it has is charged, also if that is more.
        let small = tenant("small", &base, 1000);
        workspace.charge_to(&small).unwrap();
        assert_eq!((has(&small).0, has(&base).0), (4096, 4096));
        workspace.destroy().unwrap();
        assert!(matches!(workspace.charge_to(&base), Err(Error::Workspace { .. })));
        assert_eq!((has(&small).0, has(&base).0), (0, 0));
    });
}
