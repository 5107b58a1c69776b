//! Learning rates that change as training goes on.

use super::json::json_struct;

/// What a schedule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleType {
    /// Steps of the updater.
    #[default]
    Iteration,
    /// Passes over the data.
    Epoch,
}

/// How a value follows from the count `i` of iterations or epochs. Formulas are DL4J's (`org.nd4j.linalg.schedule`).
///
/// ```
/// use ndgc::train::{Schedule, ScheduleKind, ScheduleType};
///
/// let halves = Schedule::new(ScheduleType::Iteration, 0.2, ScheduleKind::Step { decay: 0.5, step: 10 });
/// assert_eq!([0, 9, 10, 25].map(|i| halves.value_at(i, 0)), [0.2, 0.2, 0.1, 0.05]);
/// assert_eq!(Schedule::from(0.1).value_at(1000, 3), 0.1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    pub(super) initial: f64,
    counts: ScheduleType,
    pub(super) kind: ScheduleKind,
}

/// The form of a [`Schedule`]; `initial` is its first value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScheduleKind {
    /// `initial`, always.
    Fixed,
    /// `initial * decay^floor(i / step)`.
    Step {
        /// The factor.
        decay: f64,
        /// Counts between two changes.
        step: u64,
    },
    /// `initial * gamma^i`.
    Exponential {
        /// The factor.
        gamma: f64,
    },
    /// `initial * (1 - i / max)^power`, and 0 from `max` on.
    Poly {
        /// The exponent.
        power: f64,
        /// The count at which it is 0.
        max: u64,
    },
    /// `initial / (1 + gamma i)^power`.
    Inverse {
        /// How fast it falls.
        gamma: f64,
        /// The exponent.
        power: f64,
    },
    /// `initial / (1 + e^(-gamma (i - step)))`, as DL4J has it: it rises for a positive gamma.
    Sigmoid {
        /// How steep it is.
        gamma: f64,
        /// The count at which it is half.
        step: u64,
    },
    /// From `initial` up to `max` and back, then `initial * decay^k` for the last `annealing` counts; then again. Where
    /// the way up and back has an odd number of counts, its last one is `initial`; DL4J's divides that by `decay`.
    Cycle {
        /// The highest value.
        max: f64,
        /// Counts of a cycle.
        length: u64,
        /// Counts at its end that anneal.
        annealing: u64,
        /// The factor of those.
        decay: f64,
    },
    /// Straight from 0 up to `initial` in so many counts, then constant: a warm-up.
    Ramp {
        /// Counts of the way up.
        length: u64,
    },
}

impl Schedule {
    /// A schedule of this form.
    pub fn new(counts: ScheduleType, initial: f64, kind: ScheduleKind) -> Self {
        Schedule { initial, counts, kind }
    }

    /// The value at an iteration and an epoch, both counted from 0.
    pub fn value_at(&self, iteration: u64, epoch: u64) -> f64 {
        let initial = self.initial;
        let count = match self.counts {
            ScheduleType::Iteration => iteration,
            ScheduleType::Epoch => epoch,
        };
        let i = count as f64;
        match self.kind {
            ScheduleKind::Fixed => initial,
            ScheduleKind::Step { decay, step } => initial * decay.powf((count / step.max(1)) as f64),
            ScheduleKind::Exponential { gamma } => initial * gamma.powf(i),
            ScheduleKind::Poly { power, max } => initial * (1.0 - i / max.max(1) as f64).max(0.0).powf(power),
            ScheduleKind::Inverse { gamma, power } => initial / (1.0 + gamma * i).powf(power),
            ScheduleKind::Sigmoid { gamma, step } => initial / (1.0 + (-gamma * (i - step as f64)).exp()),
            ScheduleKind::Cycle { max, length, annealing, decay } => {
                let place = count % length.max(1);
                let half = length.saturating_sub(annealing) / 2;
                let increment = (max - initial) / half.max(1) as f64;
                if place < half {
                    initial + increment * place as f64
                } else if place < 2 * half {
                    max - increment * (place - half) as f64
                } else {
                    initial * decay.powf((annealing as f64 - (length - place) as f64).max(0.0))
                }
            }
            ScheduleKind::Ramp { length } => initial * ((i + 1.0) / length.max(1) as f64).min(1.0),
        }
    }
}

impl From<f64> for Schedule {
    /// Always this value.
    fn from(value: f64) -> Self {
        Schedule::new(ScheduleType::Iteration, value, ScheduleKind::Fixed)
    }
}

json_struct!(Schedule { initial, counts, kind });
