//! Arithmetic of elements, one trait per kind of dtype.
//!
//! Integers wrap. A division by 0 gives 0, also that of a negative power, so that no value an array can hold makes a
//! kernel panic. Floats follow IEEE 754 without contraction: a sum gives the same bits in a short loop and in a
//! vectorised one.

use crate::cpu::{math, operand::Element, special};

/// An element of any dtype.
pub(super) trait Number: Element {
    const ZERO: Self;
    const ONE: Self;
    /// What every other value is at least.
    const LOWEST: Self;
    /// What every other value is at most.
    const HIGHEST: Self;

    fn add(self, rhs: Self) -> Self;
    fn sub(self, rhs: Self) -> Self;
    fn mul(self, rhs: Self) -> Self;
    fn div(self, rhs: Self) -> Self;
    fn power(self, rhs: Self) -> Self;
    /// The rest of a division whose quotient is cut towards zero: exact. Of integers by 0 it is the number itself.
    fn fmod(self, rhs: Self) -> Self;
    /// The quotient rounded down; 0 of integers by 0.
    fn floor_div(self, rhs: Self) -> Self;
    fn negated(self) -> Self;
    fn magnitude(self) -> Self;
    /// -1, 0 or 1; NaN of NaN.
    fn sign(self) -> Self;
    /// From a count, as `as` converts.
    fn from_count(count: usize) -> Self;

    #[inline(always)]
    #[allow(clippy::eq_op)] // what differs from itself is NaN; the types share no other test for it
    fn is_nan(self) -> bool {
        self != self
    }

    /// The rest of a division whose quotient is rounded down.
    #[inline(always)]
    fn rem(self, rhs: Self) -> Self {
        let rest = self.fmod(rhs);
        if is_rounded_up(rest, rhs) { rest.add(rhs) } else { rest }
    }

    /// The angle of the point `(x, self)`; 0 of integers, which have none.
    #[inline(always)]
    fn angle(self, _x: Self) -> Self {
        Self::ZERO
    }

    /// The larger one; NaN if either is.
    #[inline(always)]
    fn max_or_nan(self, rhs: Self) -> Self {
        if self > rhs || self.is_nan() { self } else { rhs }
    }

    /// The smaller one; NaN if either is.
    #[inline(always)]
    fn min_or_nan(self, rhs: Self) -> Self {
        if self < rhs || self.is_nan() { self } else { rhs }
    }

    /// A function of two doubles, rounded.
    #[inline(always)]
    fn through_both(self, rhs: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self::from_f64(f(self.to_f64(), rhs.to_f64()))
    }

    #[inline(always)]
    fn squared(self) -> Self {
        self.mul(self)
    }

    /// Itself if positive, else 0; NaN of NaN.
    #[inline(always)]
    fn rectified(self) -> Self {
        if self <= Self::ZERO { Self::ZERO } else { self }
    }

    #[inline(always)]
    fn clamped(self, min: Self, max: Self) -> Self {
        let raised = if self < min { min } else { self };
        if raised > max { max } else { raised }
    }
}

/// Whether a quotient that is cut towards zero is above the one that is rounded down, from the rest it leaves.
#[inline(always)]
fn is_rounded_up<T: Number>(rest: T, divisor: T) -> bool {
    rest != T::ZERO && (rest < T::ZERO) != (divisor < T::ZERO)
}

/// The quotient of floats rounded down, from the exact rest; in doubles, so that one of singles is whole before it is
/// rounded.
#[inline(always)]
fn floored_quotient<T: Number>(x: T, divisor: T, rest: T) -> T {
    let lower = is_rounded_up(rest, divisor);
    let (x, divisor, rest) = (x.to_f64(), divisor.to_f64(), rest.to_f64());
    let plain = x / divisor;
    if divisor == 0.0 || x.is_infinite() {
        return T::from_f64(plain.floor());
    }
    let quotient = ((x - rest) / divisor).round();
    T::from_f64(match lower {
        true => quotient - 1.0,
        // A 0 has the sign of what was rounded.
        false if quotient == 0.0 => 0f64.copysign(plain),
        false => quotient,
    })
}

/// `base ^ exponent` in wrapping arithmetic, by squaring.
#[inline(always)]
fn wrapping_power<T: Copy>(one: T, mut base: T, mut exponent: u64, times: impl Fn(T, T) -> T) -> T {
    let mut result = one;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = times(result, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    result
}

macro_rules! integer {
    ($t:ty, |$x:ident| $magnitude:expr, $sign:expr, $exponent:expr) => {
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;

            #[inline(always)]
            fn add(self, rhs: Self) -> Self {
                self.wrapping_add(rhs)
            }
            #[inline(always)]
            fn sub(self, rhs: Self) -> Self {
                self.wrapping_sub(rhs)
            }
            #[inline(always)]
            fn mul(self, rhs: Self) -> Self {
                self.wrapping_mul(rhs)
            }
            #[inline(always)]
            fn div(self, rhs: Self) -> Self {
                if rhs == 0 { 0 } else { self.wrapping_div(rhs) }
            }
            #[inline(always)]
            fn power(self, rhs: Self) -> Self {
                let $x = rhs;
                // 1 over a number of any other size is cut to 0.
                let base = if rhs < Self::ZERO && self.magnitude() != 1 { 0 } else { self };
                wrapping_power(1, base, $exponent, <$t>::wrapping_mul)
            }
            #[inline(always)]
            fn fmod(self, rhs: Self) -> Self {
                if rhs == 0 { self } else { self.wrapping_rem(rhs) }
            }
            #[inline(always)]
            fn floor_div(self, rhs: Self) -> Self {
                let lower = rhs != 0 && is_rounded_up(self.fmod(rhs), rhs);
                self.div(rhs).wrapping_sub(Self::from(lower))
            }
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                let $x = self;
                $magnitude
            }
            #[inline(always)]
            fn sign(self) -> Self {
                let $x = self;
                $sign
            }
            #[inline(always)]
            fn from_count(count: usize) -> Self {
                count as $t
            }
        }
    };
}
integer!(u8, |x| x, u8::from(x > 0), u64::from(x));
integer!(u32, |x| x, u32::from(x > 0), u64::from(x));
integer!(u64, |x| x, u64::from(x > 0), x);
integer!(i32, |x| x.wrapping_abs(), x.signum(), u64::from(x.unsigned_abs()));
integer!(i64, |x| x.wrapping_abs(), x.signum(), x.unsigned_abs());
// As bits of any dtype of their size, and for sums of the signed ones.
integer!(u16, |x| x, u16::from(x > 0), u64::from(x));

macro_rules! float_number {
    ($t:ty) => {
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;

            #[inline(always)]
            fn add(self, rhs: Self) -> Self {
                self + rhs
            }
            #[inline(always)]
            fn sub(self, rhs: Self) -> Self {
                self - rhs
            }
            #[inline(always)]
            fn mul(self, rhs: Self) -> Self {
                self * rhs
            }
            #[inline(always)]
            fn div(self, rhs: Self) -> Self {
                self / rhs
            }
            #[inline(always)]
            fn power(self, rhs: Self) -> Self {
                self.powf(rhs)
            }
            #[inline(always)]
            fn fmod(self, rhs: Self) -> Self {
                self % rhs
            }
            #[inline(always)]
            fn floor_div(self, rhs: Self) -> Self {
                floored_quotient(self, rhs, self % rhs)
            }
            #[inline(always)]
            fn angle(self, x: Self) -> Self {
                self.atan2(x)
            }
            #[inline(always)]
            fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn sign(self) -> Self {
                let one = if self < 0.0 { -1.0 } else { 1.0 };
                let sign = if self == 0.0 { 0.0 } else { one };
                if self.is_nan() { self } else { sign }
            }
            #[inline(always)]
            fn from_count(count: usize) -> Self {
                count as $t
            }
        }
    };
}
float_number!(f32);
float_number!(f64);

/// The factors of the Gaussian error linear unit in its tanh form: `sqrt(2 / pi)`, and `0.044715` times that.
const GELU: [f64; 2] = [0.797_884_560_802_865_4, 0.035_677_408_136_300_125];

/// An element of a floating-point dtype.
pub(super) trait Float: Number {
    fn exp(self) -> Self;
    fn exp_m1(self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn gelu_erf(self) -> Self;
    fn gelu_erf_slope(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;
    /// `log(1 + e^x)`.
    fn softplus(self) -> Self;
    fn gelu(self) -> Self;
    fn gelu_slope(self) -> Self;
    fn silu_slope(self) -> Self;
    /// `x tanh(log(1 + e^x))`.
    fn mish(self) -> Self;
    fn mish_slope(self) -> Self;
    /// 0 for a subnormal number, with which the processor computes by microcode: what is multiplied again and again by
    /// less than 1 becomes one, and stays one.
    fn flushed(self) -> Self;

    /// A function of doubles, rounded.
    #[inline(always)]
    fn through(self, f: impl Fn(f64) -> f64) -> Self {
        Self::from_f64(f(self.to_f64()))
    }

    #[inline(always)]
    fn recip(self) -> Self {
        Self::ONE.div(self)
    }
}

macro_rules! float {
    ($t:ty; $($name:ident $function:path;)*) => {
        impl Float for $t {
            $(
                #[inline(always)]
                fn $name(self) -> Self {
                    $function(self)
                }
            )*

            // From `e^-|x|`, which cannot overflow.
            #[inline(always)]
            fn sigmoid(self) -> Self {
                let small = Float::exp(-self.abs());
                (if self < 0.0 { small } else { 1.0 }) / (1.0 + small)
            }

            #[inline(always)]
            fn softplus(self) -> Self {
                let positive = if self > 0.0 { self } else { 0.0 };
                positive + Float::ln_1p(Float::exp(-self.abs()))
            }

            #[inline(always)]
            fn gelu(self) -> Self {
                let [a, b] = GELU.map(|factor| factor as $t);
                self * (0.5 + 0.5 * Float::tanh(self * (a + b * (self * self))))
            }

            #[inline(always)]
            fn gelu_slope(self) -> Self {
                let [a, b] = GELU.map(|factor| factor as $t);
                let square = self * self;
                let t = Float::tanh(self * (a + b * square));
                0.5 * (1.0 + t) + 0.5 * self * (1.0 - t * t) * (a + 3.0 * b * square)
            }

            #[inline(always)]
            fn silu_slope(self) -> Self {
                let y = self.sigmoid();
                y * (1.0 + self * (1.0 - y))
            }

            // With `e = e^x` the hyperbolic tangent is `n / (n + 2)` of `n = e (e + 2)`: no logarithm, and nothing
            // cancels. From 40 on it is 1.
            #[inline(always)]
            fn mish(self) -> Self {
                let e = Float::exp(if self > 40.0 { 40.0 } else { self });
                let n = e * (e + 2.0);
                self * (n / (n + 2.0))
            }

            #[inline(always)]
            fn mish_slope(self) -> Self {
                let x = if self > 40.0 { 40.0 } else { self };
                let e = Float::exp(x);
                let n = e * (e + 2.0);
                (n + 4.0 * x * (e * (1.0 + e) / (n + 2.0))) / (n + 2.0)
            }

            #[inline(always)]
            fn flushed(self) -> Self {
                if self.abs() < <$t>::MIN_POSITIVE { 0.0 } else { self }
            }
        }
    };
}
float! {
    f32; exp math::exp; exp_m1 math::exp_m1; ln math::ln; ln_1p math::ln_1p; sqrt f32::sqrt; tanh math::tanh;
    erf math::erf; gelu_erf math::gelu_erf; gelu_erf_slope math::gelu_erf_slope;
}
float! {
    f64; exp f64::exp; exp_m1 f64::exp_m1; ln f64::ln; ln_1p f64::ln_1p; sqrt f64::sqrt; tanh f64::tanh;
    erf special::erf; gelu_erf special::gelu_erf; gelu_erf_slope special::gelu_erf_slope;
}

/// Conversion of elements, as `as` converts: directly, not by way of a double.
pub(super) trait Convert<D> {
    fn convert(self) -> D;
}

macro_rules! convert {
    ($($from:ty => $($to:ty)+;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            #[allow(clippy::unnecessary_cast)] // each type is converted to itself too
            fn convert(self) -> $to {
                self as $to
            }
        }
    )+)*};
}
convert! {
    u8 => u8 u32 i64 f32 f64;
    u32 => u8 u32 i64 f32 f64;
    i64 => u8 u32 i64 f32 f64;
    f32 => u8 u32 i64 f32 f64;
    f64 => u8 u32 i64 f32 f64;
}

/// An element that can be an index: u8, u32 or i64.
pub(super) trait IndexElement: Number + Convert<i64> {
    /// The index that names no place, unless the axis has it: it reads 0 and writes nothing.
    const NOWHERE: i64;
}
impl IndexElement for u8 {
    const NOWHERE: i64 = u8::MAX as i64;
}
impl IndexElement for u32 {
    const NOWHERE: i64 = u32::MAX as i64;
}
impl IndexElement for i64 {
    const NOWHERE: i64 = i64::MAX;
}
