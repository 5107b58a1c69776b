//! What ND4J's own workspaces (1.0.0-M2.1) answer, beside what these do.
//!
//! First 300 random sequences of requests, replayed: equal, or a difference of a kind that design.md names. Then where
//! ND4J hands out data of others or hides an error: here it is right data, or a typed error. `docs/nd4j.md` lists both.
//!
//! `nd4j.txt` has for each case its configuration, and for each cycle the requests in units of 64 bytes (with `!` where
//! one was refused), what the workspace said before the cycle's end, and after it.

use std::collections::BTreeMap;

use ndgc::{
    AllocationPolicy, DType, Device, Error, IndexOp, LearningPolicy, ResetPolicy, SpillPolicy, Tensor, Workspace,
    WorkspaceConfig, WorkspaceStats, destroy_all_workspaces_for_current_thread, gc,
};

use crate::workspace::rings::{assert_filled, assert_full, made, ring, strict_ring};
use crate::workspace::support::{alone, basic, el, filled, leak, loop_first, refusal, sum, values};

const CASES: &str = include_str!("nd4j.txt");

/// The numbers and words of `key=value key=value`.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace().filter_map(|field| field.split_once('=')).collect()
}

fn number(fields: &BTreeMap<&str, &str>, key: &str) -> u64 {
    fields[key].parse().unwrap()
}

fn config(of: &BTreeMap<&str, &str>) -> Result<WorkspaceConfig, Error> {
    let allocation = match of["alloc"] {
        "STRICT" => AllocationPolicy::Strict,
        _ => AllocationPolicy::Overallocate,
    };
    let spill = match of["spill"] {
        "EXTERNAL" => SpillPolicy::External,
        "REALLOCATE" => SpillPolicy::Reallocate,
        _ => SpillPolicy::Fail,
    };
    let learning = match of["learn"] {
        "FIRST_LOOP" => LearningPolicy::FirstLoop,
        "OVER_TIME" => LearningPolicy::OverTime,
        _ => LearningPolicy::None,
    };
    let reset = match of["reset"] {
        "BLOCK_LEFT" => ResetPolicy::BlockLeft,
        _ => ResetPolicy::EndOfBufferReached,
    };
    WorkspaceConfig::builder()
        .policy_allocation(allocation)
        .policy_spill(spill)
        .policy_learning(learning)
        .policy_reset(reset)
        .initial_size(number(of, "initial"))
        .min_size(number(of, "min"))
        .max_size(number(of, "max"))
        .overallocation_limit(of["over"].parse().unwrap())
        .cycles_before_initialization(number(of, "cycles") as u32)
        .build()
}

/// What both say of a workspace, under ND4J's names.
fn said(stats: &WorkspaceStats, keys: &[&str]) -> Vec<u64> {
    let of = |key: &&str| match *key {
        "offset" => stats.offset,
        "spilled" => stats.spilled,
        "this" => stats.this_cycle,
        "size" => stats.size,
        "pinned" => stats.pinned,
        "last" => stats.last_cycle,
        "max" => stats.max_cycle,
        other => panic!("{other}"),
    };
    keys.iter().map(of).collect()
}

const DURING: [&str; 3] = ["offset", "spilled", "this"];
const AFTER: [&str; 5] = ["size", "spilled", "pinned", "last", "max"];

/// The first difference of a case, as text; `None` if there is none.
fn replay(config: Result<WorkspaceConfig, Error>, lines: &[&str]) -> Option<String> {
    let refused_there = lines.iter().any(|line| line.trim().starts_with("refused"));
    let config = match config {
        Ok(config) if !refused_there => config,
        Ok(_) => return Some("ND4J refuses the configuration".into()),
        Err(_) if refused_there => return None,
        Err(error) => return Some(format!("refused: {error}")),
    };
    for (cycle, line) in lines.iter().enumerate() {
        let parts: Vec<&str> = line.split('|').collect();
        let [requests, during, after] = parts[..] else { panic!("{line}") };
        let entered = Workspace::enter("REPLAY", &config).unwrap();
        for (i, request) in requests.trim().split(',').enumerate() {
            let (units, refused) = request.strip_suffix('!').map_or((request, false), |units| (units, true));
            let made = Tensor::empty(units.parse::<usize>().unwrap() * 16, DType::F32, &Device::Cpu);
            if made.is_err() != refused {
                return Some(format!("cycle {cycle}, request {i}: {request} is {:?}", made.map(drop)));
            }
        }
        let workspace = entered.workspace();
        let differs = |when: &str, keys: &[&str], want: &str| {
            let (ours, want) = (said(&workspace.stats(), keys), fields(want));
            let want: Vec<u64> = keys.iter().map(|key| number(&want, key)).collect();
            (ours != want).then(|| format!("{when} cycle {cycle}, {keys:?}: {ours:?}, there {want:?}"))
        };
        let inside = differs("in", &DURING, during);
        entered.leave();
        if let Some(difference) = inside.or_else(|| differs("after", &AFTER, after)) {
            return Some(difference);
        }
    }
    None
}

/// Which kind of difference a configuration allows, as design.md names them: what its policies have to do with it.
fn kind(of: &BTreeMap<&str, &str>, difference: &str) -> char {
    if difference.starts_with("refused") {
        'd'
    } else if of["reset"] == "ENDOFBUFFER_REACHED" {
        'e'
    } else if of["spill"] == "FAIL" {
        'f'
    } else if of["learn"] == "NONE" && of["spill"] == "REALLOCATE" {
        'b'
    } else if of["learn"] == "NONE" {
        'g'
    } else if of["min"] != "0" {
        'c'
    } else if of["spill"] == "REALLOCATE" && of["alloc"] == "OVERALLOCATE" {
        'a'
    } else if of["max"] != "0" {
        'h'
    } else {
        '?'
    }
}

#[test]
fn nd4js_own_answers_are_ours_or_differ_in_a_way_that_has_a_name() {
    alone(|| {
        let _off = gc::scoped(false);
        let (mut equal, mut kinds, mut unnamed) = (0, BTreeMap::<char, usize>::new(), Vec::new());
        for case in CASES.split("case ").filter(|case| !case.trim().is_empty()) {
            let mut lines = case.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
            let head = lines.next().unwrap();
            let (of, lines): (_, Vec<&str>) = (fields(head), lines.collect());
            match replay(config(&of), &lines) {
                None => equal += 1,
                Some(difference) => {
                    let kind = kind(&of, &difference);
                    *kinds.entry(kind).or_default() += 1;
                    if kind == '?' {
                        unnamed.push(format!("case {head}\n  {difference}"));
                    }
                }
            }
            destroy_all_workspaces_for_current_thread().unwrap();
        }
        assert!(unnamed.is_empty(), "{}", unnamed.join("\n"));
        let kinds: String = kinds.iter().map(|(kind, count)| format!(" {kind} {count}")).collect();
        assert_eq!(format!("{equal} equal;{kinds}"), "156 equal; a 2 b 6 c 1 d 46 e 65 f 18 g 6");
    });
}

/// Four doubles of a cycle of [LEAK] that ended, in whose place its next cycle has 9.0.
fn overwritten(body: impl FnOnce(&Tensor)) {
    let config = basic().build().unwrap();
    let old = Workspace::cycle("LEAK", &config, || Ok::<_, Error>(filled(1., 4))).unwrap();
    let cycle = Workspace::enter("LEAK", &config).unwrap();
    let young = filled(9., 4);
    assert_eq!((cycle.stats().offset, cycle.stats().renewals), (el(4), 0), "the same bytes");
    body(&old);
    assert_eq!(values(&young), [9.; 4]);
}

/// Reads that are no operations.
fn reads(x: &Tensor) -> Vec<String> {
    let number = x.i(0).and_then(|first| first.to_scalar::<f64>());
    let read = leak(x.with_slice(|all: &[f64]| all[0]));
    vec![leak(number), leak(x.get_index("0", &[])), leak(x.to_vec::<f64>()), read, x.to_string()]
}

/// ND4J checks a leaked array in operations only: `getFloat` and `toString` gave 9.0, the next cycle's data, for an
/// array of ones.
#[test]
fn nd4j_reads_the_next_cycles_data_through_a_leaked_array_and_here_every_read_is_an_error() {
    alone(|| {
        overwritten(|old| {
            for text in reads(old) {
                assert!(text.contains("argument uses leaked workspace pointer from workspace [LEAK]"), "{text}");
                assert!(text.contains("in cycle 1, ended with its cycle; the workspace is in cycle 2"), "{text}");
            }
        });
    });
}

/// In ND4J any read of a leaked array on another thread gave the next cycle's data as well.
#[test]
fn nd4j_reads_the_next_cycles_data_on_another_thread_and_here_that_is_an_error_too() {
    alone(|| {
        overwritten(|old| {
            for text in std::thread::scope(|scope| scope.spawn(|| reads(old)).join().unwrap()) {
                assert!(text.contains("leaked workspace pointer from workspace [LEAK]"), "{text}");
                assert!(text.contains("The workspace is one of thread"), "{text}");
            }
        });
    });
}

/// After `destroyAllWorkspacesForCurrentThread` a live array of ND4J's reads 0.0.
#[test]
fn nd4j_reads_0_from_an_array_of_a_destroyed_workspace_and_here_an_open_one_is_not_destroyed() {
    alone(|| {
        let cycle = Workspace::enter("ALIVE", &basic().build().unwrap()).unwrap();
        let array = filled(1., 10);
        let text = refusal(destroy_all_workspaces_for_current_thread());
        assert_eq!(text, "destroy_all_workspaces_for_current_thread: workspace [ALIVE]: it is open; leave it first");
        assert_eq!((array.is_in_scope(), sum(&array)), (true, 10.), "nothing happened to it");
        cycle.leave();
        destroy_all_workspaces_for_current_thread().unwrap();
        assert!(leak(array.to_vec::<f64>()).contains("the workspace was destroyed after cycle 1"));
        assert!(array.to_string().contains("the workspace was destroyed after cycle 1"));
    });
}

/// A circular workspace of ND4J's overwrites silently: an array of zeros from its first cycle read 36.0 after 40
/// cycles.
#[test]
fn nd4j_writes_over_a_ring_and_here_an_array_of_its_first_cycle_is_right_or_an_error() {
    alone(|| {
        for config in [ring(3), strict_ring().initial_size(4 * el(100)).policy_learning(LearningPolicy::None)] {
            let workspace = made("RING", config);
            let mut first: Option<Tensor> = None;
            let mut right = 0;
            for number in 0..40 {
                let entered = workspace.activate().unwrap();
                let array = filled(f64::from(number), 100);
                entered.leave();
                assert_filled(&array, f64::from(number));
                match first.get_or_insert(array).to_vec::<f64>() {
                    Ok(all) => {
                        assert_eq!((all, right), (vec![0.; 100], number), "what ended does not come back");
                        right += 1;
                    }
                    Err(Error::LeakedArray(leaked)) => assert!(leaked.is_ring && leaked.cycle == 1),
                    Err(other) => panic!("{other}"),
                }
            }
            assert!((4..40).contains(&right), "{right} cycles");
            workspace.destroy().unwrap();
        }
    });
}

/// A cycle that needs more than the ring overwrites its own arrays in ND4J.
#[test]
fn nd4j_writes_over_a_ring_inside_one_cycle_and_here_all_its_arrays_are_right() {
    alone(|| {
        for spill in [SpillPolicy::External, SpillPolicy::Reallocate] {
            let config = strict_ring().initial_size(2 * el(100)).policy_learning(LearningPolicy::None);
            let workspace = made("RING", config.policy_spill(spill));
            for _ in 0..3 {
                let entered = workspace.activate().unwrap();
                let arrays: Vec<Tensor> = (0..40).map(|number| filled(f64::from(number), 100)).collect();
                (0..).zip(&arrays).for_each(|(number, array)| assert_filled(array, f64::from(number)));
                entered.leave();
                (0..).zip(&arrays).for_each(|(number, array)| assert_filled(array, f64::from(number)));
            }
            workspace.destroy().unwrap();
        }
        // What may not spill is refused, and takes nothing from what is there.
        let config = strict_ring().initial_size(2 * el(100)).policy_learning(LearningPolicy::None);
        let workspace = made("FULL", config.policy_spill(SpillPolicy::Fail));
        let _entered = workspace.activate().unwrap();
        let [first, second] = [filled(1., 100), filled(2., 100)];
        assert_full(Tensor::zeros(100, DType::F64, &Device::Cpu));
        assert_filled(&first, 1.);
        assert_filled(&second, 2.);
    });
}

/// `leverageTo` of a workspace that ND4J does not know leaves the array attached, without a word.
#[test]
fn nd4j_ignores_an_unknown_target_and_here_leverage_to_says_so() {
    alone(|| {
        let config = basic().build().unwrap();
        let inner = Workspace::enter("INNER", &config).unwrap();
        let array = filled(1., 10);
        let text = refusal(array.leverage_to("EXTERNAL"));
        assert_eq!(
            text,
            "leverage_to: workspace [EXTERNAL]: no workspace of this name is open on this thread; open are [\"INNER\"]"
        );
        // One that is there and closed has no cycle that the copy could live in.
        let closed = Workspace::for_current_thread("CLOSED", &config).unwrap();
        assert!(refusal(array.leverage_to(closed.id())).contains("no workspace of this name is open"));
        assert_eq!(sum(&array), 10., "the array is what it was");
        let detached = array.leverage_or_detach("EXTERNAL").unwrap();
        inner.leave();
        leak(array.to_vec::<f64>());
        assert_eq!((detached.is_attached(), sum(&detached)), (false, 10.));
    });
}

/// With `SpillPolicy.FAIL` every request fails in ND4J until there is a size, some of them by overflowing the stack, so
/// that nothing is ever learned.
#[test]
fn nd4j_refuses_everything_while_it_learns_under_fail_and_here_it_learns_and_refuses_then() {
    alone(|| {
        let first = loop_first().policy_spill(SpillPolicy::Fail);
        let over_time = first.clone().policy_learning(LearningPolicy::OverTime).cycles_before_initialization(3);
        for (cycles, config) in [(1, first), (3, over_time)] {
            let workspace = made("FAIL", config);
            for _ in 0..cycles {
                let entered = workspace.activate().unwrap();
                let arrays = [filled(1., 100), filled(2., 50)];
                assert_eq!((entered.stats().size, sum(&arrays[0]), sum(&arrays[1])), (0, 100., 100.));
            }
            assert_eq!(workspace.stats().size, el(100) + el(50), "after {cycles} cycles");
            let _entered = workspace.activate().unwrap();
            let arrays = [filled(3., 100), filled(4., 50)];
            assert_full(Tensor::zeros(1, DType::F64, &Device::Cpu));
            assert_eq!((sum(&arrays[0]), sum(&arrays[1])), (300., 200.));
            drop(_entered);
            workspace.destroy().unwrap();
        }
    });
}

/// With `LearningPolicy.NONE` ND4J's counters of spilled bytes never fall.
#[test]
fn nd4j_counts_spilled_bytes_for_ever_and_here_they_are_those_that_are_kept() {
    alone(|| {
        let workspace = made("COUNTED", loop_first().policy_learning(LearningPolicy::None).initial_size(el(100)));
        for _ in 0..5 {
            let entered = workspace.activate().unwrap();
            let _arrays = [filled(1., 100), filled(2., 200)];
            assert_eq!((entered.stats().spilled, entered.stats().externals), (el(200), 1));
            entered.leave();
            assert_eq!((workspace.stats().spilled, workspace.stats().externals), (0, 0));
        }
    });
}
