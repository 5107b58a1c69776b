//! The error function and its relatives, in f64.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

pub(super) fn erf(x: f64) -> f64 {
    libm::erf(x)
}

/// `x P(N < x)`; by the complement, which does not cancel for negative x.
pub(super) fn gelu_erf(x: f64) -> f64 {
    let share = 0.5 * libm::erfc(-x * FRAC_1_SQRT_2);
    if x == f64::NEG_INFINITY { -0.0 } else { x * share }
}

/// `P(N < x) + x p(x)`.
pub(super) fn gelu_erf_slope(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2) + x * (-0.5 * x * x).exp() * (0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI)
}

/// That of std loses half of its digits near 1, and overflows; that of `libm` is wrong below 1.
pub(super) fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

/// From a rough value, by steps that triple its digits. Near the ends by the complement, where `1 - |y|` is exact.
pub(super) fn erf_inv(y: f64) -> f64 {
    let size = y.abs();
    if size >= 1.0 || y.is_nan() {
        return if size == 1.0 { y * f64::INFINITY } else { f64::NAN };
    }
    let log = (-size * size).ln_1p();
    let t = 2.0 / (PI * 0.147) + 0.5 * log;
    let mut x = if size < 0.1 { size / FRAC_2_SQRT_PI } else { ((t * t - log / 0.147).sqrt() - t).sqrt() };
    for _ in 0..3 {
        let miss = if size < 0.5 { libm::erf(x) - size } else { (1.0 - size) - libm::erfc(x) };
        let step = miss / (FRAC_2_SQRT_PI * (-x * x).exp());
        x -= step / (1.0 + x * step);
    }
    x.copysign(y)
}

/// `log |gamma(x)|`.
pub(super) fn ln_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// The slope of `log |gamma(x)|`; NaN at 0 and at negative whole numbers.
pub(super) fn digamma(x: f64) -> f64 {
    if x <= 0.0 {
        let whole = x == x.floor();
        return if whole { f64::NAN } else { digamma(1.0 - x) - PI / (PI * (x - x.floor())).tan() };
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let tail = [-1.0 / 12.0, 1.0 / 120.0, -1.0 / 252.0, 1.0 / 240.0, -1.0 / 132.0, 691.0 / 32760.0];
    let series = tail.iter().rev().fold(0.0, |series, c| (series + c) * square);
    sum + x.ln() - 0.5 / x + series
}

/// The slope of [`digamma`]; NaN at 0 and at negative whole numbers.
pub(super) fn trigamma(x: f64) -> f64 {
    if x <= 0.0 {
        let sine = (PI * (x - x.floor())).sin();
        return if x == x.floor() { f64::NAN } else { PI * PI / (sine * sine) - trigamma(1.0 - x) };
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let tail = [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0];
    let series = tail.iter().rev().fold(0.0, |series, c| (series + c) * square);
    sum + 1.0 / x + 0.5 * square + series / x
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let harmonic: f64 = (1..30).map(|k| 1.0 / f64::from(k)).sum();
        near(digamma(30.0), harmonic - 0.577_215_664_901_532_9);
        assert!(digamma(0.0).is_nan() && digamma(-3.0).is_nan());
        near(trigamma(1.0), PI * PI / 6.0);
        near(trigamma(0.5), PI * PI / 2.0);
        near(trigamma(-0.5), PI * PI / 2.0 + 4.0);
        near(trigamma(30.0), PI * PI / 6.0 - (1..30).map(|k| 1.0 / f64::from(k * k)).sum::<f64>());
        assert!(trigamma(0.0).is_nan() && trigamma(-3.0).is_nan());
        near(gelu_erf_slope(0.0), 0.5);
        near(gelu_erf_slope(1.0), 1.083_315_470_587_685_6);
    }
}
