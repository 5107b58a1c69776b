//! Transcendental functions of f32 that the compiler can vectorise: no branch, no call, no table.
//!
//! Each reduces its argument to a short interval and evaluates a polynomial there (coefficients interpolate the
//! function at Chebyshev points). Errors are at most 2 units in the last place of the result (of the Gaussian error
//! linear unit 8), which the tests measure against f64. No fused multiply-add is used: where the processor has none it
//! would be a call, and results would differ between machines.

/// Adding and taking away this rounds to the nearest integer: 1.5 * 2^23.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has 9 bits, so that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// The polynomial with these coefficients, lowest degree first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum * x + coefficients[i];
    }
    sum
}

/// `2^k` for `-127 < k < 128`.
#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// A whole number k and `e^r - 1`, so that `e^x` is `e^r 2^k`; as of -105 or 89 for x beyond them.
#[inline(always)]
fn exp_parts(x: f32) -> (i32, f32) {
    const P: [f32; 5] = [0.5, 1.666_657_7e-1, 4.166_655_5e-2, 8.363_173e-3, 1.392_617_6e-3];
    let x = x.clamp(-105.0, 89.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let k = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    (k, r * r * polynomial(r, P) + r)
}

/// `x 2^k`, in two steps, since 2^k alone leaves the range of exponents at both ends.
#[inline(always)]
fn scaled(x: f32, k: i32) -> f32 {
    let half = k >> 1;
    x * power_of_two(half) * power_of_two(k.wrapping_sub(half))
}

/// `e^x`: exactly 1 at 0, 0 below -104, infinite above 88.73.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (k, part) = exp_parts(x);
    scaled(part + 1.0, k)
}

/// `e^x - 1`, accurate near 0: infinite above 88.73.
#[inline(always)]
pub(super) fn exp_m1(x: f32) -> f32 {
    let (k, part) = exp_parts(x);
    let scale = power_of_two(k.max(-126));
    let near = part * scale + (scale - 1.0);
    // Beyond, 1 is less than the last place.
    let value = if k > 64 { scaled(part + 1.0, k) } else { near };
    if x == 0.0 { x } else { value }
}

/// The natural logarithm: -inf at 0, NaN below.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    const P: [f32; 9] = [
        3.333_333e-1,
        -2.499_999_7e-1,
        2.000_071_6e-1,
        -1.666_780_2e-1,
        1.424_905_8e-1,
        -1.242_568_7e-1,
        1.168_542e-1,
        -1.147_973_4e-1,
        6.971_611e-2,
    ];
    let tiny = x < f32::MIN_POSITIVE;
    let normal = if tiny { x * 16_777_216.0 } else { x };
    // The mantissa is brought to sqrt(1/2) .. sqrt(2).
    let bits = normal.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (bits as i32) >> 23;
    let mantissa = f32::from_bits((bits & 0x007f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()));
    let n = exponent as f32 - if tiny { 24.0 } else { 0.0 };
    let f = mantissa - 1.0;
    let square = f * f;
    let tail = square * f * polynomial(f, P) + n * LN_2_LOW - 0.5 * square;
    let value = (f + tail) + n * LN_2_HIGH;
    let value = if x == f32::INFINITY { x } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    if x < 0.0 || x.is_nan() { f32::NAN } else { value }
}

/// `log(1 + x)`, accurate near 0: -inf at -1, NaN below.
#[inline(always)]
pub(super) fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // What the sum lost: exact, since the larger of the two is taken from it.
    let lost = if x > 1.0 { 1.0 - (sum - x) } else { x - (sum - 1.0) };
    let value = ln(sum) + if sum > 0.0 && sum < f32::INFINITY { lost / sum } else { 0.0 };
    if x == 0.0 { x } else { value }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    const P: [f32; 5] = [-3.333_333e-1, 1.333_277e-1, -5.385_091e-2, 2.099_718e-2, -6.096_714e-3];
    let size = x.abs();
    let square = x * x;
    let small = x + x * square * polynomial(square, P);
    let large = (1.0 - 2.0 / (exp(2.0 * size) + 1.0)).copysign(x);
    if size < 0.625 { small } else { large }
}

/// `P(N > x)` of a standard normal N for `x >= 0`, and `e^(-x^2 / 2)`.
#[inline(always)]
fn normal_tail(x: f32) -> (f32, f32) {
    // Of `P(N > x) e^(x^2 / 2) (x + 4)`, over `(x - 4) / (x + 4)`.
    const P: [f32; 10] = [
        7.552_851_4e-1,
        -6.078_966e-1,
        3.871_366_8e-1,
        -1.865_230_7e-1,
        6.040_641_8e-2,
        -7.526_833e-3,
        -3.523_052e-3,
        1.568_784_8e-3,
        1.935_910_7e-4,
        -1.235_153_6e-4,
    ];
    let x = x.min(20.0);
    // The square in two parts: that of the upper 12 bits is exact, and the rest is small.
    let upper = f32::from_bits(x.to_bits() & 0xffff_f000);
    let rest = -0.5 * (x - upper) * (x + upper);
    let bell = exp(-0.5 * upper * upper) * (1.0 + rest * (1.0 + rest * (0.5 + rest * 1.666_666_7e-1)));
    let inverse = 1.0 / (x + 4.0);
    (bell * inverse * polynomial((x - 4.0) * inverse, P), bell)
}

/// The error function.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    const P: [f32; 7] =
        [1.283_791_7e-1, -3.761_262_7e-1, 1.128_359_5e-1, -2.685_421_2e-2, 5.189_087e-3, -8.016_864e-4, 7.875_875e-5];
    let small = x + x * polynomial(x * x, P);
    let large = (1.0 - 2.0 * normal_tail(x.abs() * std::f32::consts::SQRT_2).0).copysign(x);
    if x.abs() < 1.0 || x.is_nan() { small } else { large }
}

/// `x P(N < x)` of a standard normal N. Small results for negative x are as exact as others.
#[inline(always)]
pub(super) fn gelu_erf(x: f32) -> f32 {
    let tail = normal_tail(x.abs()).0;
    // Below -20 the share is 0.
    let times = if x < -20.0 { -20.0 } else { x };
    times * if x < 0.0 { tail } else { 1.0 - tail }
}

/// `P(N < x) + x p(x)`.
#[inline(always)]
pub(super) fn gelu_erf_slope(x: f32) -> f32 {
    const DENSITY: f32 = 0.398_942_3;
    let (tail, bell) = normal_tail(x.abs());
    (if x < 0.0 { tail } else { 1.0 - tail }) + x.clamp(-20.0, 20.0) * (DENSITY * bell)
}

/// Sine and cosine of `t` whole turns, `0 <= t < 1`.
#[inline(always)]
pub fn sin_cos_turns(t: f32) -> (f32, f32) {
    const SIN: [f32; 5] = [1.570_796_4, -6.459_641e-1, 7.969_258e-2, -4.681_266e-3, 1.582_063e-4];
    const COS: [f32; 5] = [1.0, -1.233_700_6, 2.536_692e-1, -2.086_006_9e-2, 9.036_281e-4];
    let quarters = t * 4.0;
    let shifted = quarters + ROUND;
    let quadrant = shifted.to_bits();
    let r = quarters - (shifted - ROUND);
    let square = r * r;
    let (sin, cos) = (r * polynomial(square, SIN), polynomial(square, COS));
    let swapped = quadrant & 1 == 1;
    let (s, c) = if swapped { (cos, sin) } else { (sin, cos) };
    let flip = |value: f32, negative: bool| if negative { -value } else { value };
    (flip(s, quadrant & 2 == 2), flip(c, quadrant.wrapping_add(1) & 2 == 2))
}
