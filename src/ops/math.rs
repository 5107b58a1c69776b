//! Functions of one operand that are composed of kernels: logarithms, trigonometry, rounding.
//!
//! Each states a formula that is sound over the whole range of its dtype, NaN and infinities included, and a
//! derivative of its own. Floats only, but for rounding and `powi`, which are closed over integers.

use std::f64::consts::{FRAC_PI_2, LN_2, LN_10};
use std::panic::Location;

use crate::base::error::{Result, Site};
use crate::memory::proxy::Proxy;
use crate::ops::{
    check,
    compose::{argument, number, whole, wide},
};

/// A step of a formula.
type Step = Result<Proxy>;

/// Where the second form of a formula begins: there sums of squares are the larger square to full accuracy, and far
/// from overflow still.
const LARGE: f64 = 1e8;

/// `x < limit`, as a mask.
fn below(x: &Proxy, limit: f64, site: Site) -> Step {
    x.broadcast_lt(&number(x, limit, site)?)
}

/// `u = e^x; (u - 1) x / log u` for small x: the errors of `u` in both factors cancel.
fn expm1(x: &Proxy, site: Site) -> Step {
    let u = x.exp()?;
    let direct = u.affine(1.0, -1.0)?;
    let small = direct.mul(x)?.div(&u.log()?)?;
    let same = u.broadcast_eq(&number(x, 1.0, site)?)?.where_cond(x, &small)?;
    below(&x.abs()?, 0.5, site)?.where_cond(&same, &direct)
}

/// `u = 1 + x; log(u) x / (u - 1)` for small x, as [`expm1`].
fn log1p(x: &Proxy, site: Site) -> Step {
    let u = x.affine(1.0, 1.0)?;
    let direct = u.log()?;
    let small = direct.mul(x)?.div(&u.affine(1.0, -1.0)?)?;
    let same = u.broadcast_eq(&number(x, 1.0, site)?)?.where_cond(x, &small)?;
    below(&x.abs()?, 0.5, site)?.where_cond(&same, &direct)
}

/// Coefficients of a polynomial for `atan(t) / t` in `t^2` on `[-1, 1]`, to about 1e-5.
const ATAN: [f64; 5] = [0.020_835_1, -0.085_133, 0.180_141, -0.330_299_5, 0.999_866];

/// A rough angle from a polynomial, and one step that triples its digits:
/// `sin(atan t - a) = (t cos a - sin a) / sqrt(1 + t^2)`.
fn atan(x: &Proxy, site: Site) -> Step {
    let inside = x.abs()?.broadcast_le(&number(x, 1.0, site)?)?;
    let outside = x.abs()?.broadcast_gt(&number(x, 1.0, site)?)?;
    let t = outside.where_cond(&x.recip()?, x)?;
    let square = t.sqr()?;
    let mut poly = wide(x, ATAN[0], site)?;
    for coefficient in &ATAN[1..] {
        poly = poly.mul(&square)?.affine(1.0, *coefficient)?;
    }
    let rough = poly.mul(&t)?;
    let miss = t.mul(&rough.cos()?)?.sub(&rough.sin()?)?.div(&square.affine(1.0, 1.0)?.sqrt()?)?;
    let angle = rough.add(&miss)?;
    inside.where_cond(&angle, &x.sign()?.affine(FRAC_PI_2, 0.0)?.sub(&angle)?)
}

/// `sqrt(1 - x^2)` without loss near 1.
fn other_leg(x: &Proxy) -> Step {
    x.affine(-1.0, 1.0)?.mul(&x.affine(1.0, 1.0)?)?.sqrt()
}

fn acos(x: &Proxy, site: Site) -> Step {
    let half = x.affine(-1.0, 1.0)?.div(&x.affine(1.0, 1.0)?)?.sqrt()?;
    atan(&half, site)?.affine(2.0, 0.0)
}

/// `e^|x| / 2` and `e^-|x| / 2`; the first from two halves, since it overflows later than `e^|x|`.
fn halves(x: &Proxy) -> Result<(Proxy, Proxy)> {
    let a = x.abs()?;
    let root = a.affine(0.5, 0.0)?.exp()?;
    Ok((root.affine(0.5, 0.0)?.mul(&root)?, a.neg()?.exp()?.affine(0.5, 0.0)?))
}

fn cosh(x: &Proxy) -> Step {
    let (grows, shrinks) = halves(x)?;
    grows.add(&shrinks)
}

fn sinh(x: &Proxy, site: Site) -> Step {
    let (grows, shrinks) = halves(x)?;
    let large = grows.sub(&shrinks)?.mul(&x.sign()?)?;
    let e = expm1(x, site)?;
    let small = e.add(&e.div(&e.affine(1.0, 1.0)?)?)?.affine(0.5, 0.0)?;
    below(&x.abs()?, 1.0, site)?.where_cond(&small, &large)
}

fn asinh(x: &Proxy, site: Site) -> Step {
    let a = x.abs()?;
    let square = a.sqr()?;
    let excess = square.div(&square.affine(1.0, 1.0)?.sqrt()?.affine(1.0, 1.0)?)?;
    let small = log1p(&a.add(&excess)?, site)?;
    let large = a.log()?.affine(1.0, LN_2)?;
    below(&a, LARGE, site)?.where_cond(&small, &large)?.mul(&x.sign()?)
}

fn asinh_slope(x: &Proxy, site: Site) -> Step {
    let a = x.abs()?;
    let small = a.sqr()?.affine(1.0, 1.0)?.sqrt()?.recip()?;
    below(&a, LARGE, site)?.where_cond(&small, &a.recip()?)
}

fn acosh(x: &Proxy, site: Site) -> Step {
    let t = x.affine(1.0, -1.0)?;
    let small = log1p(&t.add(&t.sqr()?.add(&t.affine(2.0, 0.0)?)?.sqrt()?)?, site)?;
    let large = x.log()?.affine(1.0, LN_2)?;
    let value = below(x, LARGE, site)?.where_cond(&small, &large)?;
    below(x, 1.0, site)?.where_cond(&wide(x, f64::NAN, site)?, &value)
}

fn atanh(x: &Proxy, site: Site) -> Step {
    let a = x.abs()?;
    let value = log1p(&a.affine(2.0, 0.0)?.div(&a.affine(-1.0, 1.0)?)?, site)?;
    value.affine(0.5, 0.0)?.mul(&x.sign()?)
}

/// Beyond 2^53 a float is whole already; below, an i64 holds its whole part. A zero keeps the sign of x.
fn trunc(x: &Proxy, site: Site) -> Step {
    let dtype = x.dtype();
    let whole = x.to_dtype(crate::DType::I64)?.to_dtype(dtype)?;
    let zero = whole.broadcast_eq(&number(x, 0.0, site)?)?;
    let small = below(&x.abs()?, 9_007_199_254_740_992.0, site)?;
    let signed = zero.where_cond(&x.affine(0.0, -0.0)?, &whole)?;
    small.where_cond(&signed, x)
}

fn floor(x: &Proxy, site: Site) -> Step {
    let t = trunc(x, site)?;
    t.sub(&t.gt(x)?.to_dtype(x.dtype())?)
}

/// Half away from zero. What is cut off is exact, so the half is seen exactly.
fn round(x: &Proxy, site: Site) -> Step {
    let t = trunc(x, site)?;
    let far = x.sub(&t)?.abs()?.broadcast_ge(&number(x, 0.5, site)?)?.to_dtype(x.dtype())?;
    let stepped = t.add(&far.mul(&x.sign()?)?)?;
    // Adding 0 would take the sign from a zero.
    t.eq(&stepped)?.where_cond(&t, &stepped)
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident, |$x:ident, $site:ident| $value:expr, $slope:expr;)*) => {
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element, f32 and f64, with a gradient; the result has the shape and owner of this array.
                ///
                /// # Errors
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers;
                /// [`Error::StaleArray`](crate::Error::StaleArray), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
                #[track_caller]
                pub fn $name(&self) -> Result<Proxy> {
                    let $site = Location::caller();
                    self.by_slope(stringify!($name), $site, |$x| $value, move |$x| $slope)
                }
            )*
        }
    };
}

functions! {
    /// `e^x - 1`, accurate near 0.
    expm1, |x, site| expm1(x, site), x.exp();
    /// `log(1 + x)`, accurate near 0.
    log1p, |x, site| log1p(x, site), x.affine(1.0, 1.0)?.recip();
    /// The logarithm to base 2.
    log2, |x, site| x.log()?.affine(1.0 / LN_2, 0.0), x.affine(LN_2, 0.0)?.recip();
    /// The logarithm to base 10.
    log10, |x, site| x.log()?.affine(1.0 / LN_10, 0.0), x.affine(LN_10, 0.0)?.recip();
    /// `1 / sqrt(x)`.
    rsqrt, |x, site| x.sqrt()?.recip(), x.sqrt()?.mul(x)?.recip()?.affine(-0.5, 0.0);
    /// The tangent.
    tan, |x, site| x.sin()?.div(&x.cos()?), x.cos()?.sqr()?.recip();
    /// The angle in `[-pi/2, pi/2]` whose sine is x; NaN outside `[-1, 1]`.
    asin, |x, site| atan(&x.div(&other_leg(x)?)?, site), other_leg(x)?.recip();
    /// The angle in `[0, pi]` whose cosine is x; NaN outside `[-1, 1]`.
    acos, |x, site| acos(x, site), other_leg(x)?.recip()?.neg();
    /// The angle in `[-pi/2, pi/2]` whose tangent is x.
    atan, |x, site| atan(x, site), x.sqr()?.affine(1.0, 1.0)?.recip();
    /// The hyperbolic sine, accurate near 0.
    sinh, |x, site| sinh(x, site), cosh(x);
    /// The hyperbolic cosine.
    cosh, |x, site| cosh(x), sinh(x, site);
    /// The inverse of the hyperbolic sine, accurate near 0 and for large x.
    asinh, |x, site| asinh(x, site), asinh_slope(x, site);
    /// The inverse of the hyperbolic cosine, at least 0; NaN below 1.
    acosh, |x, site| acosh(x, site), x.affine(1.0, -1.0)?.sqrt()?.mul(&x.affine(1.0, 1.0)?.sqrt()?)?.recip();
    /// The inverse of the hyperbolic tangent, accurate near 0; NaN outside `[-1, 1]`.
    atanh, |x, site| atanh(x, site), x.affine(-1.0, 1.0)?.mul(&x.affine(1.0, 1.0)?)?.recip();
    /// `log(1 + e^x)`, for any x.
    softplus, |x, site| x.relu()?.add(&log1p(&x.abs()?.neg()?.exp()?, site)?), x.sigmoid();
    /// `x` without its whole part, with the sign of `x`.
    frac, |x, site| x.sub(&trunc(x, site)?), x.ones_like();
}

macro_rules! roundings {
    ($($(#[$doc:meta])* $name:ident, |$x:ident, $site:ident| $value:expr;)*) => {
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element, of any dtype (integers are whole: the same array); its gradient is 0.
                ///
                /// # Errors
                /// [`Error::StaleArray`](crate::Error::StaleArray), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
                #[track_caller]
                pub fn $name(&self) -> Result<Proxy> {
                    let $site = Location::caller();
                    if !self.dtype().is_float() {
                        return check::same(stringify!($name), self);
                    }
                    self.by_slope(stringify!($name), $site, |$x| $value, |x| x.zeros_like())
                }
            )*
        }
    };
}

roundings! {
    /// The largest whole number that is at most `x`.
    floor, |x, site| floor(x, site);
    /// The smallest whole number that is at least `x`.
    ceil, |x, site| floor(&x.neg()?, site)?.neg();
    /// The nearest whole number, a half away from zero.
    round, |x, site| round(x, site);
    /// `x` with what is behind the point cut off.
    trunc, |x, site| trunc(x, site);
}

impl Proxy {
    /// The nearest number with so many decimals; negative ones round to tens, hundreds, .. Its gradient is 0.
    ///
    /// # Errors
    /// As [`Proxy::round`].
    #[track_caller]
    pub fn round_to(&self, decimals: i32) -> Result<Proxy> {
        let scale = 10f64.powi(decimals);
        whole("round_to", Location::caller(), self, || {
            if !self.dtype().is_float() && decimals >= 0 {
                return check::same("round_to", self);
            }
            self.affine(scale, 0.0)?.round()?.affine(1.0 / scale, 0.0)
        })
    }

    /// `x ^ exponent` with a whole number as exponent, of any dtype; integers wrap. With a gradient.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for a negative exponent of integers; as [`Proxy::exp`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::new(&[-2f32, 3.], &Device::Cpu)?;
    /// assert_eq!(a.powi(3)?.to_vec1::<f32>()?, [-8., 27.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn powi(&self, exponent: i32) -> Result<Proxy> {
        let (op, site) = ("powi", Location::caller());
        whole(op, site, self, || {
            if self.dtype().is_float() {
                return self.powf(f64::from(exponent));
            }
            if exponent < 0 {
                return argument(op, "exponent", exponent, "0 or more for integers");
            }
            if self.dtype() == crate::DType::U8 && exponent > i32::from(u8::MAX) {
                // u8 cannot hold the exponent, but every power in u8 has a period that divides 64 from 8 on.
                return self.broadcast_pow(&number(self, f64::from(exponent % 64 + 64), site)?);
            }
            self.broadcast_pow(&number(self, f64::from(exponent), site)?)
        })
    }

    /// The natural logarithm, as [`Proxy::log`].
    ///
    /// # Errors
    /// As [`Proxy::log`].
    #[track_caller]
    pub fn ln(&self) -> Result<Proxy> {
        self.log()
    }

    /// `x * x`, as [`Proxy::sqr`].
    ///
    /// # Errors
    /// As [`Proxy::sqr`].
    #[track_caller]
    pub fn square(&self) -> Result<Proxy> {
        self.sqr()
    }

    /// The larger of `x` and a number; NaN stays NaN. The gradient is 0 where it was cut.
    ///
    /// # Errors
    /// As [`Proxy::clamp`].
    #[track_caller]
    pub fn clamp_min(&self, min: f64) -> Result<Proxy> {
        whole("clamp_min", Location::caller(), self, || self.clamp(min, f64::INFINITY))
    }

    /// The smaller of `x` and a number; NaN stays NaN. The gradient is 0 where it was cut.
    ///
    /// # Errors
    /// As [`Proxy::clamp`].
    #[track_caller]
    pub fn clamp_max(&self, max: f64) -> Result<Proxy> {
        whole("clamp_max", Location::caller(), self, || self.clamp(f64::NEG_INFINITY, max))
    }

    /// `self + value * a * b`, of equal shapes and dtypes, with gradients.
    ///
    /// # Errors
    /// As [`Proxy::add`].
    #[track_caller]
    pub fn addcmul(&self, a: &Proxy, b: &Proxy, value: f64) -> Result<Proxy> {
        whole("addcmul", Location::caller(), self, || self.add(&a.mul(b)?.affine(value, 0.0)?))
    }

    /// `self + value * a / b`, of equal shapes and dtypes, with gradients.
    ///
    /// # Errors
    /// As [`Proxy::add`].
    #[track_caller]
    pub fn addcdiv(&self, a: &Proxy, b: &Proxy, value: f64) -> Result<Proxy> {
        whole("addcdiv", Location::caller(), self, || self.add(&a.div(b)?.affine(value, 0.0)?))
    }

    /// `self + weight * (end - self)`, of equal shapes; floats, with gradients. Exact at weights 0 and 1.
    ///
    /// # Errors
    /// As [`Proxy::add`]; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers.
    #[track_caller]
    pub fn lerp(&self, end: &Proxy, weight: f64) -> Result<Proxy> {
        whole("lerp", Location::caller(), self, || {
            crate::ops::check::float("lerp", self.dtype())?;
            self.affine(1.0 - weight, 0.0)?.add(&end.affine(weight, 0.0)?)
        })
    }
}
