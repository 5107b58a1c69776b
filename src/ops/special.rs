//! The error function and its relatives, and the angle of two coordinates.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::panic::Location;

use crate::array::autograd::Saved;
use crate::base::error::{Result, Site};
use crate::device::kernel::{BinaryOp, Map, UnaryOp};
use crate::memory::proxy::Proxy;
use crate::ops::{binary::binary, check, exec::map1, unary::one};

/// A function of floats in one pass, and its slope from the operand.
fn special(
    x: &Proxy,
    op: UnaryOp,
    (name, site): (&'static str, Site),
    slope: fn(&Proxy) -> Result<Proxy>,
) -> Result<Proxy> {
    map1(
        name,
        site,
        x,
        |dtype| check::float(name, dtype),
        Map::Unary(op),
        |a, _| {
            let saved = Saved::of(a, name, site);
            move |grad: &Proxy, _: [bool; 3]| Ok(one(grad.mul(&slope(&saved.get()?)?)?))
        },
    )
}

/// `2 / sqrt(pi) e^(-x^2)`.
fn bell(x: &Proxy) -> Result<Proxy> {
    x.sqr()?.neg()?.exp()?.affine(FRAC_2_SQRT_PI, 0.0)
}

/// `P(N < x) + x p(x)`.
fn gelu_slope(x: &Proxy) -> Result<Proxy> {
    let scaled = x.affine(FRAC_1_SQRT_2, 0.0)?;
    let density = bell(&scaled)?.affine(0.5 * FRAC_1_SQRT_2, 0.0)?;
    scaled.erf()?.affine(0.5, 0.5)?.add(&x.mul(&density)?)
}

macro_rules! specials {
    ($($(#[$doc:meta])* $name:ident, $op:ident, |$x:ident| $slope:expr;)*) => {
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element, of floats, with a gradient; the result has the shape and owner of this array.
                ///
                /// # Errors
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers;
                /// [`Error::StaleArray`](crate::Error::StaleArray), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
                #[track_caller]
                pub fn $name(&self) -> Result<Proxy> {
                    let at = (stringify!($name), Location::caller());
                    special(self, UnaryOp::$op, at, |$x| $slope)
                }
            )*
        }
    };
}

specials! {
    /// The error function: `2 / sqrt(pi)` times the integral of `e^(-t^2)` from 0 to x.
    erf, Erf, |x| bell(x);
    /// The Gaussian error linear unit: `x P(N < x)` of a standard normal N.
    gelu_erf, GeluErf, |x| gelu_slope(x);
    /// The inverse of the error function; NaN outside `[-1, 1]`, infinite at the ends.
    erfinv, ErfInv, |y| bell(&y.erfinv()?)?.recip();
    /// The logarithm of the absolute value of the gamma function.
    gammaln, LnGamma, |x| x.digamma();
    /// The logarithm of the absolute value of the gamma function, as [`Proxy::gammaln`].
    lgamma, LnGamma, |x| x.digamma();
}

impl Proxy {
    /// The slope of [`Proxy::gammaln`]; NaN at 0 and at negative whole numbers. Floats; no gradient.
    ///
    /// # Errors
    /// As [`Proxy::gammaln`].
    #[track_caller]
    pub fn digamma(&self) -> Result<Proxy> {
        let (name, site) = ("digamma", Location::caller());
        crate::ops::compose::whole(name, site, self, || {
            crate::array::autograd::no_grad(|| special(self, UnaryOp::Digamma, (name, site), |x| x.zeros_like()))
        })
    }

    /// The angle in `[-pi, pi]` of the point `(x, y)`, where this array is y: of floats of one shape and dtype, with a
    /// gradient. The result belongs to the owner of this array.
    ///
    /// # Errors
    /// As [`Proxy::add`]; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let y = Tensor::new(&[1f64, -1., 0.], &Device::Cpu)?;
    /// let x = Tensor::new(&[0f64, 0., -1.], &Device::Cpu)?;
    /// let half = std::f64::consts::FRAC_PI_2;
    /// assert_eq!(y.atan2(&x)?.to_vec1::<f64>()?, [half, -half, 2. * half]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn atan2(&self, x: &Proxy) -> Result<Proxy> {
        let (name, site) = ("atan2", Location::caller());
        check::float(name, self.dtype())?;
        binary(self, x, BinaryOp::Atan2, name, false, site)
    }
}
