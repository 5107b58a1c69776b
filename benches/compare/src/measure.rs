//! Interleaved timing: every contender once a round, in rotated order, with the baseline in it twice.
//!
//! A round is short against the drifts of a shared machine (clock, neighbours), so figures of the same
//! round are compared with each other before anything is averaged.

use std::io;
use std::time::Duration;

use crate::options::{Clock, Options};
use crate::worker::{Cost, Worker};

/// What one contender's turn cost, per iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Nanoseconds by the clock that was asked for.
    pub time: f64,
    /// CPU time over elapsed time.
    pub on_core: f64,
    /// Page faults that needed no disk.
    pub faults: f64,
}

impl Slot {
    fn new(cost: Cost, n_iterations: u64, clock: Clock) -> Slot {
        let per_iteration = |total: f64| total / n_iterations as f64;
        Slot {
            time: per_iteration(cost.time(clock).as_nanos() as f64),
            on_core: cost.cpu.as_secs_f64() / cost.wall.as_secs_f64(),
            faults: per_iteration(cost.n_faults as f64),
        }
    }
}

/// One round: a slot a worker, in the order of the workers.
pub type Round = Vec<Slot>;

/// Times all workers for `options.n_rounds` rounds.
pub fn run(workers: &mut [Worker], options: &Options) -> io::Result<Vec<Round>> {
    let counts: Vec<u64> = workers.iter_mut().map(|w| calibrate(w, options.slot)).collect::<io::Result<_>>()?;
    (0..options.n_rounds).map(|i| round(workers, &counts, i, options.clock)).collect()
}

fn round(workers: &mut [Worker], counts: &[u64], round_idx: usize, clock: Clock) -> io::Result<Round> {
    let mut slots = vec![Slot::default(); workers.len()];
    for turn in order(workers.len(), round_idx) {
        slots[turn] = Slot::new(workers[turn].run(counts[turn])?, counts[turn], clock);
    }
    Ok(slots)
}

/// Turns of a round: they start one later each round and go backwards in every second one, so that no
/// contender always follows the same other.
fn order(n_turns: usize, round_idx: usize) -> impl Iterator<Item = usize> {
    (0..n_turns).map(move |i| {
        let turn = (i + round_idx) % n_turns;
        if round_idx.is_multiple_of(2) { turn } else { n_turns - 1 - turn }
    })
}

/// Iterations that take about `slot`. Doubling until a run is long enough to extrapolate warms up too.
fn calibrate(worker: &mut Worker, slot: Duration) -> io::Result<u64> {
    let mut n_iterations = 1;
    loop {
        let elapsed = worker.run(n_iterations)?.wall;
        if elapsed * 5 >= slot {
            let scale = slot.as_secs_f64() / elapsed.as_secs_f64();
            return Ok(((n_iterations as f64 * scale) as u64).max(1));
        }
        n_iterations *= 2;
    }
}
