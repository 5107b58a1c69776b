//! The error function and its relatives, and other functions that std has not, in f64.

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
    // The density is 0 from here on; an infinity times it would be NaN.
    let near = x.clamp(-40.0, 40.0);
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2) + near * (-0.5 * near * near).exp() * (0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI)
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

/// From the nearest whole number: exact, as the distance from the one below is not for small negative numbers.
fn from_whole(x: f64) -> f64 {
    x - x.round_ties_even()
}

/// The slope of `log |gamma(x)|`; NaN at 0 and at negative whole numbers.
pub(super) fn digamma(x: f64) -> f64 {
    if x <= 0.0 {
        let whole = x == x.floor();
        return if whole { f64::NAN } else { digamma(1.0 - x) - PI / (PI * from_whole(x)).tan() };
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
        let sine = (PI * from_whole(x)).sin();
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

/// `log(e^x + e^y)`.
pub(super) fn log_add_exp(x: f64, y: f64) -> f64 {
    // Equal ones may be infinite, and have no difference then.
    let apart = if x == y { 0.0 } else { x - y };
    x.max(y) + (-apart.abs()).exp().ln_1p()
}

/// `x log(y)`; 0 where x is, unless y is NaN.
pub(super) fn x_log_y(x: f64, y: f64) -> f64 {
    if x == 0.0 && !y.is_nan() { 0.0 } else { x * y.ln() }
}
