//! Steps against their formulas, also on pieces for several threads.

use ndgc_kernels::base::dtype::DType;
use ndgc_kernels::cpu::threads;
use ndgc_kernels::kernel::{Kernel, OwnedView, StepRule};

use super::arrays::{Array, Draw, FLOATS, assert_close, run, tolerance};

/// A step of these operands.
fn step(rule: StepRule, rate: f64, step: u64, [param, grad]: [OwnedView; 2], kept: &[OwnedView]) -> Kernel {
    let [kept1, kept2, kept3] = std::array::from_fn(|i| kept.get(i).copied());
    Kernel::OptimizerStep { param, grad, kept1, kept2, kept3, rule, rate, step }
}

fn sizes() -> [usize; 4] {
    [0, 5, 1000, threads::ELEMENTS_MIN + 77]
}

fn random(draw: &mut Draw, dtype: DType, n: usize) -> Array {
    let values: Vec<f64> = (0..n.min(1000)).map(|_| draw.value(dtype)).collect();
    Array::of(dtype, &[n], &values)
}

#[test]
fn sgd_steps_match_their_formula() {
    let mut draw = Draw::new(51);
    let (rate, momentum, decay) = (0.1, 0.9, 0.01);
    for dtype in FLOATS {
        for n in sizes() {
            for with_velocity in [false, true] {
                let [mut param, mut grad, mut state] = std::array::from_fn(|_| random(&mut draw, dtype, n));
                let mut expected = (param.values(), state.values());
                for ((p, g), v) in expected.0.iter_mut().zip(grad.values()).zip(&mut expected.1) {
                    let slope = g + decay * *p;
                    *v = if with_velocity { momentum * *v + slope } else { *v };
                    *p -= rate * if with_velocity { *v } else { slope };
                }
                let velocity = [state.view()];
                let kept = &velocity[..usize::from(with_velocity)];
                let rule = StepRule::Sgd { momentum, decay };
                run(&step(rule, rate, 1, [param.view(), grad.view()], kept)).expect("floats");
                assert_close(&param.values(), &expected.0, tolerance(dtype), "parameters");
                assert_close(&state.values(), &expected.1, tolerance(dtype), "velocity");
            }
        }
    }
}

#[test]
fn adam_steps_match_their_formula() {
    let mut draw = Draw::new(52);
    let (rate, beta1, beta2, epsilon, decay) = (0.01, 0.9, 0.99, 1e-8, 0.1);
    let (fix1, fix2) = (1.0 - 0.81, 1.0 - 0.9801);
    for dtype in FLOATS {
        for n in sizes() {
            let [mut param, mut grad, mut m] = std::array::from_fn(|_| random(&mut draw, dtype, n));
            let mut v = random(&mut draw, dtype, n).map(f64::abs);
            let (mut ps, mut ms, mut vs) = (param.values(), m.values(), v.values());
            for (((p, g), m), v) in ps.iter_mut().zip(grad.values()).zip(&mut ms).zip(&mut vs) {
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let step = *m / fix1 / ((*v / fix2).sqrt() + epsilon);
                *p -= rate * (step + decay * *p);
            }
            let rule = StepRule::Adam { beta1, beta2, epsilon, decay };
            run(&step(rule, rate, 2, [param.view(), grad.view()], &[m.view(), v.view()])).expect("floats");
            assert_close(&param.values(), &ps, 10.0 * tolerance(dtype), "parameters");
            assert_close(&m.values(), &ms, tolerance(dtype), "first moment");
            assert_close(&v.values(), &vs, tolerance(dtype), "second moment");
        }
    }
}

/// Each of the other rules, in words of its own: what becomes of a parameter and of what is kept for it.
fn in_scalars(rule: StepRule, rate: f64, t: i32, g: f64, x: f64, kept: [f64; 3]) -> (f64, [f64; 3]) {
    let [a, b, c] = kept;
    let mean = |old: f64, beta: f64, new: f64| old * beta + new * (1.0 - beta);
    match rule {
        StepRule::Nesterov { momentum } => {
            let v = momentum * a - rate * g;
            (x + v + momentum * (v - a), [v, b, c])
        }
        StepRule::AmsGrad { beta1, beta2, epsilon } => {
            let (m, v) = (mean(a, beta1, g), mean(b, beta2, g * g));
            let (h, fix) = (c.max(v), (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t)));
            (x - rate * fix * m / (h.sqrt() + epsilon), [m, v, h])
        }
        StepRule::Nadam { beta1, beta2, epsilon } => {
            let (m, v) = (mean(a, beta1, g), mean(b, beta2, g * g));
            let ahead = beta1 * m / (1.0 - beta1.powi(t + 1)) + (1.0 - beta1) * g / (1.0 - beta1.powi(t));
            (x - rate * ahead / ((v / (1.0 - beta2.powi(t))).sqrt() + epsilon), [m, v, c])
        }
        StepRule::AdaMax { beta1, beta2 } => {
            let (m, u) = (mean(a, beta1, g), (beta2 * b).max(g.abs()));
            (x - rate / (1.0 - beta1.powi(t)) * m / (u + 1e-32), [m, u, c])
        }
        StepRule::RmsProp { decay, epsilon } => {
            let s = mean(a, decay, g * g);
            (x - rate * g / (s.sqrt() + epsilon), [s, b, c])
        }
        StepRule::AdaGrad { epsilon } => {
            let s = a + g * g;
            (x - rate * g / (s.sqrt() + epsilon), [s, b, c])
        }
        StepRule::AdaDelta { rho, epsilon } => {
            let s = mean(a, rho, g * g);
            let d = g * (b + epsilon).sqrt() / (s + epsilon).sqrt();
            (x - rate * d, [s, mean(b, rho, d * d), c])
        }
        StepRule::Sgd { .. } | StepRule::Adam { .. } => unreachable!("tested above"),
    }
}

#[test]
fn steps_of_the_other_rules_match_their_formulas() {
    let mut draw = Draw::new(53);
    let (beta1, beta2, epsilon, t) = (0.75, 0.9375, 0.125, 3);
    let rules = [
        StepRule::Nesterov { momentum: 0.75 },
        StepRule::AmsGrad { beta1, beta2, epsilon },
        StepRule::Nadam { beta1, beta2, epsilon },
        StepRule::AdaMax { beta1, beta2 },
        StepRule::RmsProp { decay: beta2, epsilon },
        StepRule::AdaGrad { epsilon },
        StepRule::AdaDelta { rho: beta2, epsilon },
    ];
    for dtype in FLOATS {
        for n in sizes() {
            for rule in rules {
                let [mut param, mut grad, mut first] = std::array::from_fn(|_| random(&mut draw, dtype, n));
                let mut others: [Array; 2] = std::array::from_fn(|_| random(&mut draw, dtype, n).map(f64::abs));
                if !matches!(rule, StepRule::Nesterov { .. } | StepRule::Nadam { .. } | StepRule::AmsGrad { .. }) {
                    first = first.map(f64::abs);
                }
                let olds = [&first, &others[0], &others[1]].map(Array::values);
                let (mut params, mut kept) = (param.values(), olds.clone());
                for (i, (x, g)) in params.iter_mut().zip(grad.values()).enumerate() {
                    let (new, states) = in_scalars(rule, 0.25, t, g, *x, olds.each_ref().map(|old| old[i]));
                    *x = new;
                    kept.iter_mut().zip(states).for_each(|(kept, state)| kept[i] = state);
                }
                let [second, third] = &mut others;
                let views = [first.view(), second.view(), third.view()];
                let kernel = step(rule, 0.25, t as u64, [param.view(), grad.view()], &views[..rule.kept()]);
                run(&kernel).expect("floats");
                assert_close(&param.values(), &params, 10.0 * tolerance(dtype), &format!("{rule:?}"));
                for (got, want) in [&first, &others[0], &others[1]].into_iter().zip(&kept) {
                    assert_close(&got.values(), want, tolerance(dtype), &format!("what {rule:?} keeps"));
                }
            }
        }
    }
}

#[test]
fn a_step_wants_the_arrays_that_its_rule_keeps() {
    let [mut param, mut grad, mut kept] = std::array::from_fn(|_| Array::of(DType::F32, &[1], &[1.0]));
    let (operands, kept) = ([param.view(), grad.view()], kept.view());
    for (rule, count) in [(StepRule::AdaGrad { epsilon: 1.0 }, 0), (StepRule::Sgd { momentum: 0.0, decay: 0.0 }, 2)] {
        assert!(run(&step(rule, 1.0, 1, operands, &[kept, kept][..count])).is_err());
    }
    assert_eq!(param.values(), [1.0]);
}

/// In each dtype: some go through a step in blocks, and an array that ends early has a block less.
#[test]
fn a_step_wants_arrays_of_one_length() {
    let rule = StepRule::AdaGrad { epsilon: 1.0 };
    for dtype in FLOATS {
        for lengths in [[300, 300, 299], [300, 299, 300], [299, 300, 300]] {
            let [mut param, mut grad, mut kept] = lengths.map(|n| Array::of(dtype, &[n], &[1.0]));
            let olds = (param.values(), kept.values());
            let operands = [param.view(), grad.view()];
            assert!(run(&step(rule, 1.0, 1, operands, &[kept.view()])).is_err(), "{dtype:?} {lengths:?}");
            assert_eq!((param.values(), kept.values()), olds, "{dtype:?} {lengths:?}");
        }
    }
}

#[test]
fn state_that_becomes_subnormal_is_zero() {
    let adam = StepRule::Adam { beta1: 0.9, beta2: 0.9, epsilon: 1e-8, decay: 0.0 };
    let sgd = StepRule::Sgd { momentum: 0.9, decay: 0.0 };
    for (dtype, least) in [(DType::F32, f64::from(f32::MIN_POSITIVE)), (DType::F64, f64::MIN_POSITIVE)] {
        let of = |values: &[f64]| Array::of(dtype, &[3], values);
        let mut param = of(&[1.0, 2.0, 3.0]);
        let [mut zeros, mut slopes] = [of(&[0.0; 3]), of(&[0.0, 0.0, f64::NAN])];
        let [mut m, mut v, mut velocity] = std::array::from_fn(|_| of(&[least, 2.0 * least, 1.0]));
        run(&step(adam, 0.01, 1000, [param.view(), slopes.view()], &[m.view(), v.view()])).expect("floats");
        run(&step(sgd, 0.1, 1, [param.view(), zeros.view()], &[velocity.view()])).expect("floats");
        for state in [m.values(), v.values(), velocity.values()] {
            assert!(state[0] == 0.0 && state[1] > least && state[2] != 0.0, "{dtype:?}: {state:?}");
        }
    }
}
