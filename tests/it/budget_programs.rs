//! Random programs of budgets, moves and closes: on one thread against an exact model, on several against what their
//! arrays add up to.

mod ledger;
mod model;
mod together;

use crate::common::Dice;
use crate::it::support::{alone, both};
use ndgc::{Device, gc};

/// Invariant I14 (design.md). Every refusal is one that the model predicts, of this budget and with these figures; and
/// what it does not predict is granted.
#[test]
fn random_programs_agree_with_a_model_and_nothing_is_refused_that_fits() {
    both(|device| {
        let mut answered = [0; 2];
        for seed in 1..=10 {
            let (mut model, mut dice) = (model::Model::new(device, seed), Dice(seed * 0x9E37_79B9));
            (0..300).for_each(|_| model.step(&mut dice));
            answered = [answered[0] + model.answered[0], answered[1] + model.answered[1]];
            model.end();
        }
        assert!(answered[0] > 500 && answered[1] > 200, "granted and refused: {answered:?}");
    });
}

/// Four threads and somebody who looks on. After each round, in which arrays of those before live on, the figures are
/// exactly what the threads have; in the end nothing.
#[test]
fn several_threads_never_pass_a_hard_limit_and_nothing_is_left_charged() {
    for on in [false, true] {
        alone(|| {
            let _switch = gc::scoped(on);
            gc::collect();
            let before = Device::Cpu.memory().active;
            let [granted, refused] = together::run(&Device::Cpu);
            assert!(granted > 2_000 && refused > 200, "granted {granted}, refused {refused}");
            gc::collect();
            assert_eq!(Device::Cpu.memory().active, before);
        });
    }
}
