//! The error function and its relatives in f64, where their values are known.

use std::f64::consts::PI;

use ndgc_kernels::base::dtype::WithDType;
use ndgc_kernels::kernel::UnaryOp;

use super::functions::{slope, value};

pub(super) fn erf<T: WithDType>(x: T) -> T {
    value(UnaryOp::Erf, x)
}

pub(super) fn gelu_erf<T: WithDType>(x: T) -> T {
    value(UnaryOp::GeluErf, x)
}

pub(super) fn gelu_erf_slope<T: WithDType>(x: T) -> T {
    slope(UnaryOp::GeluErf, x)
}

fn erf_inv(y: f64) -> f64 {
    value(UnaryOp::ErfInv, y)
}

fn ln_gamma(x: f64) -> f64 {
    value(UnaryOp::LnGamma, x)
}

fn digamma(x: f64) -> f64 {
    value(UnaryOp::Digamma, x)
}

fn trigamma(x: f64) -> f64 {
    slope(UnaryOp::Digamma, x)
}

#[test]
fn the_inverse_goes_back() {
    for y in [0.0, 1e-300, 1e-9, 0.05, 0.3, 0.5, 0.9, 0.999, 1.0 - 1e-12, -0.7] {
        let back = erf(erf_inv(y));
        assert!((back - y).abs() <= 4.0 * f64::EPSILON * f64::abs(y).max(f64::MIN_POSITIVE), "{y} {back}");
    }
    assert_eq!((erf_inv(1.0), erf_inv(-1.0)), (f64::INFINITY, f64::NEG_INFINITY));
    assert!(erf_inv(1.1).is_nan() && erf_inv(f64::NAN).is_nan());
    assert_eq!(erf_inv(-0.0).to_bits(), (-0.0f64).to_bits());
}

#[test]
fn known_values() {
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-13 * (1.0 + want.abs()), "{got} {want}");
    near(erf(0.5), 0.520_499_877_813_046_5);
    near(gelu_erf(1.0), 0.841_344_746_068_542_9);
    near(gelu_erf(-30.0), 0.0);
    assert_eq!((gelu_erf(f64::NEG_INFINITY), gelu_erf(f64::INFINITY)), (0.0, f64::INFINITY));
    near(ln_gamma(0.5), 0.572_364_942_924_700_1);
    near(ln_gamma(10.0), 12.801_827_480_081_469);
    near(digamma(1.0), -0.577_215_664_901_532_9);
    near(digamma(0.5), -1.963_510_026_021_423_5);
    near(digamma(-1.5), 0.703_156_640_645_243_2);
    near(digamma(-1e-8), 1e8 - 0.577_215_664_901_532_9);
    near(digamma(-1e-30), 1e30);
    let harmonic: f64 = (1..30).map(|k| 1.0 / f64::from(k)).sum();
    near(digamma(30.0), harmonic - 0.577_215_664_901_532_9);
    assert!(digamma(0.0).is_nan() && digamma(-3.0).is_nan());
    near(trigamma(1.0), PI * PI / 6.0);
    near(trigamma(0.5), PI * PI / 2.0);
    near(trigamma(-0.5), PI * PI / 2.0 + 4.0);
    near(trigamma(-1e-8), 1e16);
    near(trigamma(30.0), PI * PI / 6.0 - (1..30).map(|k| 1.0 / f64::from(k * k)).sum::<f64>());
    assert!(trigamma(0.0).is_nan() && trigamma(-3.0).is_nan());
    near(gelu_erf_slope(0.0), 0.5);
    near(gelu_erf_slope(1.0), 1.083_315_470_587_685_6);
    assert_eq!((gelu_erf_slope(f64::INFINITY), gelu_erf_slope(f64::NEG_INFINITY)), (1.0, 0.0));
    assert!(gelu_erf_slope(f64::NAN).is_nan());
}
