//! Steps against their formulas, also on pieces for several threads.

use crate::base::dtype::DType;
use crate::cpu::{
    tests::{Array, Draw, FLOATS, assert_close, run, tolerance},
    threads,
};
use crate::kernel::{AdamHyper, Kernel};

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
                let velocity = with_velocity.then(|| state.view());
                let (p, g) = (param.view(), grad.view());
                run(&Kernel::SgdStep { param: p, grad: g, velocity, rate, momentum, decay }).expect("floats");
                assert_close(&param.values(), &expected.0, tolerance(dtype), "parameters");
                assert_close(&state.values(), &expected.1, tolerance(dtype), "velocity");
            }
        }
    }
}

#[test]
fn adam_steps_match_their_formula() {
    let mut draw = Draw::new(52);
    let hyper = AdamHyper {
        rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        decay: 0.1,
        fix1: 1.0 - 0.81,
        fix2: 1.0 - 0.9801,
        step: 2,
    };
    for dtype in FLOATS {
        for n in sizes() {
            let [mut param, mut grad, mut m] = std::array::from_fn(|_| random(&mut draw, dtype, n));
            let mut v = random(&mut draw, dtype, n).map(f64::abs);
            let (mut ps, mut ms, mut vs) = (param.values(), m.values(), v.values());
            for (((p, g), m), v) in ps.iter_mut().zip(grad.values()).zip(&mut ms).zip(&mut vs) {
                *m = hyper.beta1 * *m + (1.0 - hyper.beta1) * g;
                *v = hyper.beta2 * *v + (1.0 - hyper.beta2) * g * g;
                let step = *m / hyper.fix1 / ((*v / hyper.fix2).sqrt() + hyper.eps);
                *p -= hyper.rate * (step + hyper.decay * *p);
            }
            let (param_view, grad_view) = (param.view(), grad.view());
            let (m_view, v_view) = (m.view(), v.view());
            let kernel = Kernel::AdamStep { param: param_view, grad: grad_view, m: m_view, v: v_view, hyper };
            run(&kernel).expect("floats");
            assert_close(&param.values(), &ps, 10.0 * tolerance(dtype), "parameters");
            assert_close(&m.values(), &ms, tolerance(dtype), "first moment");
            assert_close(&v.values(), &vs, tolerance(dtype), "second moment");
        }
    }
}

#[test]
fn state_that_becomes_subnormal_is_zero() {
    let hyper =
        AdamHyper { rate: 0.01, beta1: 0.9, beta2: 0.9, eps: 1e-8, decay: 0.0, fix1: 1.0, fix2: 1.0, step: 1000 };
    for (dtype, least) in [(DType::F32, f64::from(f32::MIN_POSITIVE)), (DType::F64, f64::MIN_POSITIVE)] {
        let of = |values: &[f64]| Array::of(dtype, &[3], values);
        let mut param = of(&[1.0, 2.0, 3.0]);
        let [mut zeros, mut slopes] = [of(&[0.0; 3]), of(&[0.0, 0.0, f64::NAN])];
        let [mut m, mut v, mut velocity] = std::array::from_fn(|_| of(&[least, 2.0 * least, 1.0]));
        let (p, grad, m_view, v_view) = (param.view(), slopes.view(), m.view(), v.view());
        run(&Kernel::AdamStep { param: p, grad, m: m_view, v: v_view, hyper }).expect("floats");
        let (param, grad, state) = (param.view(), zeros.view(), Some(velocity.view()));
        let kernel = Kernel::SgdStep { param, grad, velocity: state, rate: 0.1, momentum: 0.9, decay: 0.0 };
        run(&kernel).expect("floats");
        for state in [m.values(), v.values(), velocity.values()] {
            assert!(state[0] == 0.0 && state[1] > least && state[2] != 0.0, "{dtype:?}: {state:?}");
        }
    }
}
