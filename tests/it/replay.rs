//! Recorded requests asked of other pools: figures counted by hand, the corpus of `tests/traces`, and loops that come
//! to rest.

use std::io::ErrorKind;

use ndgc::memory::{self, HostPool, Recording, ReplayPool, Replayed, Segments, TraceMode};
use ndgc::{DType, Device, Tensor, gc};

use crate::it::support::alone;

const MIB: u64 = 1 << 20;
const NO_END: u64 = u64::MAX;

fn host() -> ReplayPool {
    ReplayPool::Host(HostPool::default())
}

fn read(text: &str) -> Recording {
    Recording::read(text.as_bytes()).unwrap()
}

#[test]
fn figures_are_those_counted_by_hand() {
    // A segment of 4 MiB: 1, 1 and 2 MiB; then 1 MiB is free at its begin and 2 at its end, and 3 fit nowhere.
    let recording = read("+ 1 1048576\n+ 2 1048576\n+ 3 2097152\n- 1\n- 3\n+ 4 3145728\n- 4\n- 2\n");
    let replayed = recording.replay(ReplayPool::Device(Segments::Of(4 << 20), NO_END), 1);
    assert_eq!((replayed.requests, replayed.hits(), replayed.misses, replayed.refused), (4, 2, 2, 0));
    assert_eq!((replayed.peak_live, replayed.peak_reserved), (4 * MIB, 8 * MIB));
    assert_eq!((replayed.live, replayed.reserved), (0, 8 * MIB));
    // At the peak: 1 and 2 MiB of the first segment, and what the second has beyond 3.
    assert_eq!((replayed.free, replayed.largest_free), (4 * MIB, 2 * MIB));
    assert_eq!((replayed.overhead(), replayed.fragmentation()), (2., 0.5));
    // A device of 4 MiB has no second segment.
    let small = recording.replay(ReplayPool::Device(Segments::Of(4 << 20), 4 * MIB), 1);
    assert_eq!((small.hits(), small.misses, small.refused, small.peak_reserved), (2, 1, 1, 4 * MIB));
    let system = recording.replay(ReplayPool::System, 2);
    assert_eq!((system.hits(), system.misses, system.peak_reserved, system.reserved), (0, 8, 4 * MIB, 0));
    assert_eq!(recording.replay(host(), 0), Replayed::default());
}

#[test]
fn what_goes_on_at_the_end_of_a_round_ends_before_the_next_and_nothing_asks_no_pool() {
    let recording = read("# two go on\n+ 7 5000\n+ 8 0\n\n");
    let replayed = recording.replay(ReplayPool::System, 3);
    assert_eq!((replayed.requests, replayed.misses, replayed.live, replayed.peak_live), (6, 3, 5000, 5000));
    assert_eq!((replayed.reserved, replayed.peak_reserved, replayed.fragmentation()), (8192, 8192, 0.));
}

#[test]
fn texts_and_logs_of_rmm_are_read_and_errors_name_their_line() {
    let text = "+ 10 100\n+ 11 200\n- 10\n+ 12 300\n- 12\n";
    let recording = read(text);
    let mut written = Vec::new();
    recording.write(&mut written).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), "+ 0 100\n+ 1 200\n- 0\n+ 0 300\n- 0\n");
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00,allocate,0x7f10,100,0x0\n\
               1,10:00:01,allocate,0x7f20,200,0x0\n1,10:00:01,allocate failure,0x0,999,0x0\n\
               2,10:00:02,allocate,0x0,0,0x0\n2,10:00:02,free,0x7f10,100,0x0\n\
               1,10:00:03,allocate,0x7f10,300,0x0\n1,10:00:04,free,0x7f10,300,0x0\n";
    assert_eq!(read(log), recording);
    for (wrong, line) in [
        ("+ 1 10\n+ 1 10\n", "line 2: 1 has bytes already"),
        ("+ 1 10\n- 2\n", "line 2: 2 has no bytes"),
        ("+ 1\n", "line 1: \"+ 1\" is neither `+ NUMBER BYTES` nor `- NUMBER`"),
        ("Action,Pointer,Size\nfree,0x1,8\n", "line 2: 1 has no bytes"),
        ("Action,Pointer,Size\nallocate,0x1\n", "line 2: \"allocate,0x1\" has too few fields"),
        ("Action,Pointer,Size\nmove,0x1,8\n", "line 2: \"move,0x1,8\" has no action that is known"),
    ] {
        let error = Recording::read(wrong.as_bytes()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidData, line));
    }
}

#[test]
fn a_recorded_run_asks_for_what_the_run_asked_for() {
    alone(|| {
        let _on = gc::scoped(true);
        memory::clear_trace();
        memory::set_trace(TraceMode::Full);
        for length in [100, 20_000, 3_000_000] {
            let x = Tensor::zeros(length, DType::U8, &Device::Cpu).unwrap();
            drop(x);
            gc::collect();
        }
        memory::set_trace(TraceMode::Off);
        let timeline = memory::timeline();
        let recording = timeline.recording();
        assert_eq!(recording, read("+ 1 100\n- 1\n+ 1 20000\n- 1\n+ 1 3000000\n- 1\n"));
        assert_eq!(recording.replay(ReplayPool::System, 1).peak_live, timeline.peak());
    });
}

/// What is replayed in the tests below: a training of ndgc's own, and three loops that were drawn.
const CORPUS: [(&str, &str); 4] = [
    ("training", include_str!("../traces/training.trace")),
    ("size mix", include_str!("../traces/size_mix.trace")),
    ("growing", include_str!("../traces/growing.trace")),
    ("random", include_str!("../traces/random.trace")),
];

fn pools() -> [(&'static str, ReplayPool); 5] {
    let nothing = HostPool { kept_eighths: 0, kept_bytes: 0, ..HostPool::default() };
    [
        ("host", host()),
        ("host that keeps nothing", ReplayPool::Host(nothing)),
        ("device", ReplayPool::Device(Segments::Graded, NO_END)),
        ("each for itself", ReplayPool::Device(Segments::Each, NO_END)),
        ("64 MiB", ReplayPool::Device(Segments::Of(64 << 20), NO_END)),
    ]
}

#[test]
fn the_corpus_gives_the_figures_that_are_written_here() {
    let mut found = String::new();
    for (name, text) in CORPUS {
        let recording = read(text);
        for (pool, plan) in pools() {
            found += &format!("{name}, {pool}: {}\n", recording.replay(plan, 2));
        }
    }
    assert_eq!(found, include_str!("../traces/expected.txt"));
}

/// Bytes that a round asks for.
fn volume(text: &str) -> u64 {
    let requests = text.lines().filter_map(|line| line.strip_prefix("+ ")?.split_once(' '));
    requests.map(|(_, bytes)| bytes.parse::<u64>().expect("a number")).sum()
}

/// W4 of design.md, "Budgets".
#[test]
fn of_blocks_of_all_sizes_an_eighth_more_is_reserved_than_lives() {
    let replayed = read(include_str!("../traces/size_mix.trace")).replay(host(), 10);
    assert!(replayed.overhead() <= 1.15, "{replayed}");
}

#[test]
fn a_loop_that_repeats_reserves_after_a_thousand_more_rounds_what_it_did_and_asks_for_nothing() {
    if crate::common::ran_apart() {
        return;
    }
    for (name, text) in CORPUS {
        let recording = read(text);
        // So that the longest of them takes no longer than the others.
        let more = if recording.requests() > 5000 { 100 } else { 1000 };
        // What keeps nothing never comes to rest: it gives back and asks again.
        for (pool, plan) in pools().into_iter().filter(|(pool, _)| *pool != "host that keeps nothing") {
            let (settled, later) = (recording.replay(plan, 10), recording.replay(plan, 10 + more));
            if (name, pool) == ("size mix", "host") {
                // It is random, and its peak comes once in 7,064 cycles: what the pool keeps is bounded, and a little of what
                // it does not keep comes again.
                let peak = later.peak_live;
                assert!(later.peak_reserved <= peak + peak / 8 * 3 + 32 * MIB, "{}", later.peak_reserved);
                assert_eq!((settled.reserved, settled.peak_reserved), (later.reserved, later.peak_reserved), "{name}");
                let (misses, requests) = (later.misses - settled.misses, later.requests - settled.requests);
                assert!(misses * 200 < requests, "{misses} of {requests}");
                let fresh = (later.fresh - settled.fresh) / more as u64;
                assert!(fresh < volume(text) / 64, "{fresh} bytes a round");
                continue;
            }
            let told = |figures: Replayed| (figures.reserved, figures.peak_reserved, figures.misses, figures.fresh);
            assert_eq!(told(settled), told(later), "{name}, {pool}");
        }
    }
}
