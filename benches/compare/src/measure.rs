//! Interleaved timing: every contender once a round, in rotated order, with the baseline run twice.
//!
//! A round is short against the drifts of a shared machine (clock, neighbours), so figures of the same
//! round are compared with each other before anything is averaged.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use crate::options::{Clock, Options};
use crate::rivals::Case;

/// What one contender's turn cost, per iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Nanoseconds elapsed.
    pub wall: f64,
    /// Nanoseconds of CPU time, user and kernel, all threads of the process.
    pub cpu: f64,
    /// Page faults that needed no disk.
    pub faults: f64,
}

impl Slot {
    pub fn time(&self, clock: Clock) -> f64 {
        match clock {
            Clock::Wall => self.wall,
            Clock::Cpu => self.cpu,
        }
    }
}

/// One round: a slot a contender in their fixed order, then the second slot of the baseline.
#[derive(Debug)]
pub struct Round {
    pub slots: Vec<Slot>,
    pub control: Slot,
}

/// Times all cases for `options.n_rounds` rounds; the first case is the baseline.
pub fn run(cases: &mut [Case], options: &Options) -> Vec<Round> {
    let iterations: Vec<u64> = cases.iter_mut().map(|case| calibrate(case, options.slot)).collect();
    (0..options.n_rounds).map(|i| round(cases, &iterations, i)).collect()
}

fn round(cases: &mut [Case], iterations: &[u64], round_idx: usize) -> Round {
    let n_turns = cases.len() + 1;
    let mut slots = vec![Slot::default(); n_turns];
    for turn in order(n_turns, round_idx) {
        // The turn past the last contender is the baseline's second.
        let case_idx = turn % cases.len();
        slots[turn] = slot(&mut cases[case_idx], iterations[case_idx]);
    }
    let control = slots[cases.len()];
    slots.truncate(cases.len());
    Round { slots, control }
}

/// Turns of a round: they start one later each round and go backwards in every second one, so that no
/// contender always follows the same other.
fn order(n_turns: usize, round_idx: usize) -> impl Iterator<Item = usize> {
    (0..n_turns).map(move |i| {
        let turn = (i + round_idx) % n_turns;
        if round_idx % 2 == 0 { turn } else { n_turns - 1 - turn }
    })
}

/// Iterations that take about `slot`. Doubling until the run is long enough to extrapolate warms up too.
fn calibrate(case: &mut Case, slot: Duration) -> u64 {
    let mut iterations = 1;
    loop {
        let start = Instant::now();
        (case.run)(iterations);
        let elapsed = start.elapsed();
        if elapsed * 5 >= slot {
            let scale = slot.as_secs_f64() / elapsed.as_secs_f64();
            return ((iterations as f64 * scale) as u64).max(1);
        }
        iterations *= 2;
    }
}

fn slot(case: &mut Case, iterations: u64) -> Slot {
    let before = usage();
    let start = Instant::now();
    (case.run)(iterations);
    let wall = start.elapsed();
    let after = usage();
    let per_iteration = |total: f64| total / iterations as f64;
    Slot {
        wall: per_iteration(wall.as_nanos() as f64),
        cpu: per_iteration((after.cpu - before.cpu).as_nanos() as f64),
        faults: per_iteration((after.faults - before.faults) as f64),
    }
}

/// Totals of this process so far.
struct Usage {
    cpu: Duration,
    faults: i64,
}

fn usage() -> Usage {
    let mut raw = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `raw` is large enough for the struct that the call fills in.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr()) };
    assert_eq!(status, 0, "getrusage(RUSAGE_SELF) fails only for a bad pointer");
    // SAFETY: the call succeeded, so it filled the struct.
    let raw = unsafe { raw.assume_init() };
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Usage { cpu: duration(raw.ru_utime) + duration(raw.ru_stime), faults: raw.ru_minflt }
}
