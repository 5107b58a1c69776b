//! Functions of f32 against those of f64: how many units in the last place they miss by, and their ends.

use ndgc_kernels::cpu::sin_cos_turns;
use ndgc_kernels::kernel::UnaryOp;

use super::functions::{slopes, value, values};
use super::special::{erf, gelu_erf, gelu_erf_slope};

fn exp(x: f32) -> f32 {
    value(UnaryOp::Exp, x)
}

fn exp_m1(x: f32) -> f32 {
    value(UnaryOp::Expm1, x)
}

fn ln(x: f32) -> f32 {
    value(UnaryOp::Log, x)
}

fn ln_1p(x: f32) -> f32 {
    value(UnaryOp::Log1p, x)
}

fn tanh(x: f32) -> f32 {
    value(UnaryOp::Tanh, x)
}

/// Units in the last place of `exact` by which `found` differs.
fn ulps(found: f32, exact: f64) -> f64 {
    let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(found) - exact).abs() / (exponent - 23.0).exp2()
}

/// By how much the numbers of a function, computed together, miss the exact ones at most.
fn worst_of(from: f32, to: f32, f: impl Fn(&[f32]) -> Vec<f32>, exact: impl Fn(f64) -> f64) -> f64 {
    let points = 20_000;
    let at = |i: i32| from + (to - from) * (i as f32 / points as f32);
    let x: Vec<f32> = (0..=points).map(at).collect();
    let found = f(&x);
    assert_eq!(found.len(), x.len());
    found.into_iter().zip(x).map(|(found, x)| ulps(found, exact(f64::from(x)))).fold(0.0, f64::max)
}

fn worst(from: f32, to: f32, op: UnaryOp, exact: impl Fn(f64) -> f64) -> f64 {
    worst_of(from, to, |x| values(op, x), exact)
}

#[test]
fn exp_is_accurate_and_right_at_its_ends() {
    assert!(worst(-87.0, 88.7, UnaryOp::Exp, f64::exp) < 1.5);
    assert!(worst(-1.0, 1.0, UnaryOp::Exp, f64::exp) < 1.5);
    assert!(worst(-104.0, -87.0, UnaryOp::Exp, f64::exp) < 1.5, "denormal results");
    assert_eq!((exp(0.0), exp(-0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (1.0, 1.0, 0.0, f32::INFINITY));
    assert_eq!((exp(-200.0), exp(89.0), exp(1e30), exp(-1e30)), (0.0, f32::INFINITY, f32::INFINITY, 0.0));
    assert!(exp(f32::NAN).is_nan() && exp(88.72).is_finite());
}

#[test]
fn ln_is_accurate_and_right_at_its_ends() {
    assert!(worst(0.5, 2.0, UnaryOp::Log, f64::ln) < 2.0);
    assert!(worst(1e-3, 1e3, UnaryOp::Log, f64::ln) < 2.0);
    assert!(worst(1e30, 3e38, UnaryOp::Log, f64::ln) < 2.0);
    assert!(worst(1e-44, 1e-38, UnaryOp::Log, f64::ln) < 2.0, "denormal arguments");
    assert_eq!((ln(1.0), ln(0.0), ln(-0.0)), (0.0, f32::NEG_INFINITY, f32::NEG_INFINITY));
    assert_eq!(ln(f32::INFINITY), f32::INFINITY);
    assert!(ln(-1.0).is_nan() && ln(f32::NAN).is_nan() && ln(f32::NEG_INFINITY).is_nan());
}

#[test]
fn exp_m1_and_ln_1p_are_accurate_near_0_and_right_at_their_ends() {
    for reach in [1e-30, 1e-6, 1e-3, 0.1, 1.0, 5.0, 20.0, 88.7] {
        let found = worst(-reach, reach, UnaryOp::Expm1, f64::exp_m1);
        assert!(found < 2.5, "{reach}: {found}");
    }
    for (from, to) in [(-1e-30, 1e-30), (-1e-6, 1e-6), (-1e-3, 1e-3), (-0.5, 1.0), (-0.999, 0.0), (1.0, 1e3)] {
        let found = worst(from, to, UnaryOp::Log1p, f64::ln_1p);
        assert!(found < 2.5, "{from} to {to}: {found}");
    }
    assert!(worst(1e30, 3e38, UnaryOp::Log1p, f64::ln_1p) < 2.5);
    let infinite = f32::INFINITY;
    assert_eq!((exp_m1(infinite), exp_m1(-infinite), exp_m1(89.0), exp_m1(-1e30)), (infinite, -1.0, infinite, -1.0));
    assert_eq!((ln_1p(-1.0), ln_1p(infinite)), (-infinite, infinite));
    assert!(ln_1p(-1.1).is_nan() && ln_1p(-infinite).is_nan() && ln_1p(f32::NAN).is_nan());
    assert!(exp_m1(f32::NAN).is_nan());
    for zero in [0.0f32, -0.0] {
        assert_eq!((exp_m1(zero).to_bits(), ln_1p(zero).to_bits()), (zero.to_bits(), zero.to_bits()));
    }
    assert_eq!((exp_m1(1e-40), ln_1p(1e-40)), (1e-40, 1e-40));
}

#[test]
fn tanh_is_accurate_and_saturates() {
    assert!(worst(-12.0, 12.0, UnaryOp::Tanh, f64::tanh) < 2.0);
    assert!(worst(-1e-3, 1e-3, UnaryOp::Tanh, f64::tanh) < 2.0);
    assert_eq!((tanh(0.0), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(-1e9)), (0.0, 1.0, -1.0, -1.0));
    assert!(tanh(f32::NAN).is_nan());
}

#[test]
fn error_functions_are_accurate_also_where_they_are_small() {
    assert!(worst(-5.0, 5.0, UnaryOp::Erf, erf) < 2.0);
    assert!(worst(-1e-3, 1e-3, UnaryOp::Erf, erf) < 2.0);
    assert!(worst(-13.0, 13.0, UnaryOp::GeluErf, gelu_erf) < 8.0);
    assert!(worst(-14.5, -13.0, UnaryOp::GeluErf, gelu_erf) < 16.0, "of a tail that is denormal");
    assert!(worst_of(-0.5, 5.0, |x| slopes(UnaryOp::GeluErf, x), gelu_erf_slope) < 8.0);
    let miss = |x: f32| (f64::from(gelu_erf_slope(x)) - gelu_erf_slope(f64::from(x))).abs();
    assert!((-20_000..0).map(|i| miss(i as f32 * 1e-3)).fold(0.0, f64::max) < 2e-7);
    let infinite = f32::INFINITY;
    assert_eq!((erf(infinite), erf(-infinite), erf(0.0f32), erf(-0.0f32).to_bits()), (1.0, -1.0, 0.0, 1 << 31));
    assert_eq!((gelu_erf(infinite), gelu_erf(-infinite), gelu_erf(0.0f32)), (infinite, 0.0, 0.0));
    assert_eq!((gelu_erf_slope(infinite), gelu_erf_slope(-infinite)), (1.0, 0.0));
    assert!(erf(f32::NAN).is_nan() && gelu_erf(f32::NAN).is_nan() && gelu_erf_slope(f32::NAN).is_nan());
}

#[test]
fn turns_cover_the_circle() {
    for i in 0..4096 {
        let t = i as f32 / 4096.0;
        let (sin, cos) = sin_cos_turns(t);
        let (exact_sin, exact_cos) = (f64::from(t) * std::f64::consts::TAU).sin_cos();
        assert!((f64::from(sin) - exact_sin).abs() < 2e-7 && (f64::from(cos) - exact_cos).abs() < 2e-7, "{t}");
    }
    assert_eq!((sin_cos_turns(0.0), sin_cos_turns(0.25).1), ((0.0, 1.0), 0.0));
}
