//! What each operation of the table (`crates/kernels/src/operations.rs`) should give: the one row of its tests, of
//! which those of the kernels here are made, and those of `ndgc` (`tests/ops/of_one.rs`, `tests/ops/of_two.rs`).
//!
//! `Op [low, high], formula;`, of two operands with a range of each. The formula is of f64, by other means than the
//! kernels' where std has no function for it, and right for infinities and NaN. From `low` to `high` gradients are
//! compared with differences. Without a row for each operation the tests do not compile.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use ndgc_kernels::kernel::{BinaryOp, UnaryOp};

type Range = [f64; 2];

pub(crate) struct Formula {
    pub(crate) range: Range,
    pub(crate) value: fn(f64) -> f64,
}

#[allow(dead_code)] // gradients of two operands are none of the kernels'
pub(crate) struct FormulaOfTwo {
    pub(crate) ranges: [Range; 2],
    pub(crate) value: fn(f64, f64) -> f64,
}

macro_rules! formulas {
    ($($op:ident $range:expr, $value:expr;)*) => {
        pub(crate) fn formula(op: UnaryOp) -> Formula {
            match op {
                $(UnaryOp::$op => Formula { range: $range, value: $value }),*
            }
        }
    };
}

macro_rules! formulas_of_two {
    ($($op:ident $left:expr, $right:expr, $value:expr;)*) => {
        pub(crate) fn formula_of_two(op: BinaryOp) -> FormulaOfTwo {
            match op {
                $(BinaryOp::$op => FormulaOfTwo { ranges: [$left, $right], value: $value }),*
            }
        }
    };
}

const ANY: Range = [-2.3, 2.4];
const INNER: Range = [-0.95, 0.93];
const POSITIVE: Range = [0.2, 4.0];
const LARGE: Range = [0.3, 2.0];
const WIDE: Range = [-5.0, 5.0];

formulas! {
    Neg ANY, |x| -x;
    Abs ANY, f64::abs;
    Sign ANY, |x| if x == 0.0 { x } else { x.signum() };
    Sqr ANY, |x| x * x;
    Relu ANY, |x| if x <= 0.0 { 0.0 } else { x };
    Exp ANY, f64::exp;
    Exp2 ANY, f64::exp2;
    Log POSITIVE, f64::ln;
    Sqrt POSITIVE, f64::sqrt;
    Cbrt ANY, f64::cbrt;
    Rsqrt POSITIVE, |x| 1.0 / x.sqrt();
    Recip ANY, |x| 1.0 / x;
    Tanh ANY, f64::tanh;
    Sigmoid ANY, |x| 1.0 / (1.0 + (-x).exp());
    Frac ANY, f64::fract;
    Silu ANY, |x| x / (1.0 + (-x).exp());
    Gelu ANY, |x| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    HardSigmoid WIDE, |x| ((x + 3.0) / 6.0).clamp(0.0, 1.0);
    HardSwish WIDE, |x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0);
    Softsign ANY, |x| x / (1.0 + x.abs());
    Floor ANY, f64::floor;
    Ceil ANY, f64::ceil;
    Round ANY, f64::round;
    RoundTiesEven ANY, f64::round_ties_even;
    Trunc ANY, f64::trunc;
    Expm1 ANY, f64::exp_m1;
    Log1p INNER, f64::ln_1p;
    Log2 POSITIVE, f64::log2;
    Log10 POSITIVE, f64::log10;
    Sin ANY, f64::sin;
    Cos ANY, f64::cos;
    Tan INNER, f64::tan;
    Asin INNER, f64::asin;
    Acos INNER, f64::acos;
    Atan ANY, f64::atan;
    Sinh ANY, f64::sinh;
    Cosh ANY, f64::cosh;
    Asinh ANY, f64::asinh;
    Acosh [1.0, 9.0], f64::acosh;
    Atanh INNER, f64::atanh;
    Softplus ANY, softplus;
    LogSigmoid ANY, |x| -softplus(-x);
    Logit [0.2, 0.8], |x| x.ln() - (1.0 - x).ln();
    Mish ANY, |x| x * softplus(x).tanh();
    Erf ANY, erf;
    Erfc ANY, |x| 1.0 - erf(x);
    GeluErf ANY, |x| x.max(f64::MIN) * (0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)));
    ErfInv [-0.9, 0.9], erf_inv;
    LnGamma [0.2, 5.0], ln_gamma;
    Digamma [-0.9, 1.0], digamma;
}

formulas_of_two! {
    Add ANY, ANY, |x, y| x + y;
    Sub ANY, ANY, |x, y| x - y;
    Mul ANY, ANY, |x, y| x * y;
    Div ANY, LARGE, |x, y| x / y;
    Fmod ANY, LARGE, |x, y| x % y;
    Rem ANY, LARGE, |x, y| x % y + if is_below(x, y) { y } else { 0.0 };
    FloorDiv ANY, LARGE, floor_div;
    Maximum ANY, ANY, |x, y| if x >= y || x.is_nan() { x } else { y };
    Minimum ANY, ANY, |x, y| if x <= y || x.is_nan() { x } else { y };
    Pow LARGE, ANY, f64::powf;
    Atan2 ANY, LARGE, f64::atan2;
    Hypot ANY, ANY, f64::hypot;
    Copysign ANY, ANY, f64::copysign;
    LogAddExp ANY, ANY, log_add_exp;
    Xlogy ANY, LARGE, |x, y| if x == 0.0 && !y.is_nan() { 0.0 } else { x * y.ln() };
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// By the series of `e^(x^2) erf(x)`, none of whose terms is negative.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut factor) = (x.abs(), 0f64, 1f64);
    while term > sum * 1e-17 {
        sum += term;
        factor += 2.0;
        term *= 2.0 * x * x / factor;
    }
    (FRAC_2_SQRT_PI * (-x * x).exp() * sum).copysign(x)
}

/// By Newton's steps, which come nearer from 0 on and never go too far, since the slope of `erf` falls.
fn erf_inv(x: f64) -> f64 {
    if x.abs() >= 1.0 {
        return if x.abs() == 1.0 { x * f64::INFINITY } else { f64::NAN };
    }
    (0..20).fold(0.0, |y: f64, _| y + (x - erf(y)) * (y * y).exp() / FRAC_2_SQRT_PI)
}

/// By Stirling's series where that is exact, 20 and above; and by reflection.
fn ln_gamma(x: f64) -> f64 {
    if x <= 0.0 {
        let sine = (PI * (x - x.round())).sin().abs();
        return if x == x.floor() { f64::INFINITY } else { (PI / sine).ln() - ln_gamma(1.0 - x) };
    }
    let (mut up, mut product) = (x, 1f64);
    while up < 20.0 {
        product *= up;
        up += 1.0;
    }
    let square = 1.0 / (up * up);
    let series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / up;
    (up - 0.5) * (up.ln() - 1.0) - 0.5 + 0.5 * (2.0 * PI).ln() + series - product.ln()
}

/// The slope of that.
fn digamma(x: f64) -> f64 {
    if x <= 0.0 {
        let tangent = (PI * (x - x.round())).tan();
        return if x == x.floor() { f64::NAN } else { digamma(1.0 - x) - PI / tangent };
    }
    let (mut up, mut sum) = (x, 0f64);
    while up < 20.0 {
        sum -= 1.0 / up;
        up += 1.0;
    }
    let square = 1.0 / (up * up);
    let series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0 - square / 240.0)));
    sum + up.ln() - 0.5 / up - series
}

/// Whether the quotient lies below the one cut towards zero when it is rounded down.
fn is_below(x: f64, y: f64) -> bool {
    x % y != 0.0 && (x < 0.0) != (y < 0.0)
}

fn floor_div(x: f64, y: f64) -> f64 {
    let below = f64::from(u8::from(is_below(x, y)));
    if y == 0.0 { x / y } else { ((x - x % y) / y).round() - below }
}

fn log_add_exp(x: f64, y: f64) -> f64 {
    let most = x.max(y);
    match most.is_infinite() {
        true if !x.is_nan() && !y.is_nan() => most,
        _ => most + ((x - most).exp() + (y - most).exp()).ln(),
    }
}
