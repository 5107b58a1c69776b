//! Interleaved timing: every contender once a round, in rotated order, with the baseline in it twice.
//!
//! A round is short against the drifts of a shared machine (clock, neighbours), so figures of the same
//! round are compared with each other before anything is averaged. Each round has new worker processes: how
//! one process happens to lie in memory can shift its time in every round it takes part in.

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
    /// Requests to the heap.
    pub requests: f64,
}

impl Slot {
    fn new(cost: Cost, n_iterations: u64, clock: Clock) -> Slot {
        let per_iteration = |total: f64| total / n_iterations as f64;
        Slot {
            time: per_iteration(cost.time(clock).as_nanos() as f64),
            on_core: cost.cpu.as_secs_f64() / cost.wall.as_secs_f64(),
            faults: per_iteration(cost.n_faults as f64),
            requests: per_iteration(cost.n_requests as f64),
        }
    }
}

/// A worker warms up for this fraction of its slot.
const WARM_UP: u64 = 5;

/// One round: a slot a worker, in the order of the workers.
pub type Round = Vec<Slot>;

/// Times the workers that `start` makes, new ones for each of `options.n_rounds` rounds.
pub fn run(start: impl Fn() -> io::Result<Vec<Worker>>, options: &Options) -> io::Result<Vec<Round>> {
    let calibrated = |worker: &mut Worker| calibrate(worker, options.slot);
    let counts: Vec<u64> = start()?.iter_mut().map(calibrated).collect::<io::Result<_>>()?;
    (0..options.n_rounds).map(|i| round(start()?, &counts, i, options.clock)).collect()
}

fn round(mut workers: Vec<Worker>, counts: &[u64], round_idx: usize, clock: Clock) -> io::Result<Round> {
    for (worker, count) in workers.iter_mut().zip(counts) {
        worker.run(count.div_ceil(WARM_UP))?;
    }
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

/// Iterations that take about `slot`, from a run that is long enough to extrapolate.
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
