//! 300 random sequences of requests with the answers of ND4J's own workspaces (1.0.0-M2.1), replayed: equal, or a
//! difference of a kind that design.md names.
//!
//! `nd4j.txt` has for each case its configuration, and for each cycle the requests in units of 64 bytes (with `!` where one
//! was refused), what the workspace said before the cycle's end, and after it.

use std::collections::BTreeMap;

use ndgc::{
    AllocationPolicy, DType, Device, Error, LearningPolicy, ResetPolicy, SpillPolicy, Tensor, Workspace,
    WorkspaceConfig, WorkspaceStats, destroy_all_workspaces_for_current_thread, gc,
};

use crate::workspace::support::alone;

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
