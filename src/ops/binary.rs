//! Arithmetic of two operands: strict, broadcasting, with numbers, and as operators.

use std::panic::Location;

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    error::{Error, Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::kernel::{BinaryOp, Kernel};
use crate::memory::{proxy::Proxy, registry::Payload};
use crate::ops::{
    check,
    exec::{adopt, call, composed, device, fresh, launch, pin, record, view_as},
    inplace::filled_beside,
};

/// The layouts of two operands over their common shape.
#[inline]
pub(crate) fn align(op: &'static str, a: &Payload, b: &Payload, broadcast: bool) -> Result<(Shape, Layout, Layout)> {
    let (left, right) = (a.layout.shape(), b.layout.shape());
    if left == right {
        return Ok((*left, a.layout, b.layout));
    }
    if !broadcast {
        let hint = "the operation wants equal shapes; use the broadcast_ form to repeat axes of size 1";
        return Err(Error::shapes(op, left, right, hint.into()));
    }
    let shape = left.broadcast(right, op)?;
    shape.check(op, a.dtype.size_in_bytes())?;
    Ok((shape, a.layout.broadcast_to(&shape, op)?, b.layout.broadcast_to(&shape, op)?))
}

#[inline]
fn binary(a: &Proxy, b: &Proxy, op: BinaryOp, name: &'static str, broadcast: bool, site: Site) -> Result<Proxy> {
    call(name, site, |local| {
        let pins = pin(local, name, [a, b])?;
        let [x, y] = pins.arrays();
        check::same_device(name, &x, &y)?;
        check::same_dtype(name, &x, &y)?;
        let (shape, left, right) = align(name, &x, &y, broadcast)?;
        let out = fresh(local, name, device(&x), x.dtype, &shape, false)?;
        let kernel = Kernel::Binary { op, lhs: view_as(&x, left), rhs: view_as(&y, right), dst: out.view() };
        launch(device(&x), &kernel)?;
        let node = record([&x, &y], || gradient(op, &x, &y, name, site));
        adopt(local, name, out, a, node, site)
    })
}

/// The gradients of both operands, each summed back to its operand's shape.
fn gradient(
    op: BinaryOp,
    x: &Payload,
    y: &Payload,
    name: &'static str,
    site: Site,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static {
    let shapes = [*x.layout.shape(), *y.layout.shape()];
    let needs_values = !matches!(op, BinaryOp::Add | BinaryOp::Sub);
    let saved = needs_values.then(|| [Saved::of(x, name, site), Saved::of(y, name, site)]);
    move |grad, needs| {
        let mut grads = [None, None, None];
        for side in 0..2 {
            if needs[side] {
                let whole = part(op, side, grad, saved.as_ref())?;
                grads[side] = Some(whole.sum_to(&shapes[side])?);
            }
        }
        Ok(grads)
    }
}

/// The gradient of one operand in the shape of the result.
fn part(op: BinaryOp, side: usize, grad: &Proxy, saved: Option<&[Saved; 2]>) -> Result<Proxy> {
    let value = |i: usize| match saved {
        Some(saved) => saved[i].get(),
        None => Err(Error::msg("the gradient keeps no values")),
    };
    Ok(match (op, side) {
        (BinaryOp::Add, _) | (BinaryOp::Sub, 0) => grad.clone(),
        (BinaryOp::Sub, _) => grad.neg()?,
        (BinaryOp::Mul, side) => grad.broadcast_mul(&value(1 - side)?)?,
        (BinaryOp::Div, 0) => grad.broadcast_div(&value(1)?)?,
        (BinaryOp::Div, _) => {
            let (x, y) = (value(0)?, value(1)?);
            grad.broadcast_mul(&x)?.broadcast_div(&y.sqr()?)?.neg()?
        }
        (BinaryOp::Maximum | BinaryOp::Minimum, side) => {
            let (x, y) = (value(0)?, value(1)?);
            let larger = (op == BinaryOp::Maximum) == (side == 0);
            let wins = if larger { x.broadcast_gt(&y)? } else { x.broadcast_lt(&y)? };
            // Where both are equal the gradient is shared.
            let share = wins.to_dtype(grad.dtype())?;
            let ties = x.broadcast_eq(&y)?.to_dtype(grad.dtype())?.affine(0.5, 0.0)?;
            grad.mul(&share.add(&ties)?)?
        }
        (BinaryOp::Pow, 0) => {
            let (x, y) = (value(0)?, value(1)?);
            let slope = x.broadcast_pow(&y.affine(1.0, -1.0)?)?.broadcast_mul(&y)?;
            // A power of 0 is 1 everywhere, also where the formula has 0 * infinity.
            let flat = y.eq(&y.zeros_like()?)?.broadcast_as(*slope.shape())?;
            grad.mul(&flat.where_cond(&slope.zeros_like()?, &slope)?)?
        }
        (BinaryOp::Pow, _) => {
            let (x, y) = (value(0)?, value(1)?);
            let slope = x.broadcast_pow(&y)?.broadcast_mul(&x.log()?)?;
            // At 0 the formula has 0 * infinity; the limit is 0.
            let flat = x.eq(&x.zeros_like()?)?.broadcast_as(*slope.shape())?;
            grad.mul(&flat.where_cond(&slope.zeros_like()?, &slope)?)?
        }
    })
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident, $broadcast:ident, $op:ident;)*) => {
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element, of equal shapes and dtypes; the result belongs to the owner of this array.
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`],
                /// [`Error::StaleArray`], [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name(&self, rhs: &Proxy) -> Result<Proxy> {
                    binary(self, rhs, BinaryOp::$op, stringify!($name), false, Location::caller())
                }

                $(#[$doc])*
                ///
                /// As the form without `broadcast_`, after repeating axes of size 1 and adding leading axes to
                /// either side.
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`] if that does not make them equal; else as the strict form.
                #[track_caller]
                pub fn $broadcast(&self, rhs: &Proxy) -> Result<Proxy> {
                    binary(self, rhs, BinaryOp::$op, stringify!($broadcast), true, Location::caller())
                }
            )*
        }
    };
}

binary_methods! {
    /// `x + y`. Integers wrap.
    add, broadcast_add, Add;
    /// `x - y`. Integers wrap.
    sub, broadcast_sub, Sub;
    /// `x * y`. Integers wrap.
    mul, broadcast_mul, Mul;
    /// `x / y`. Integer division by 0 gives 0.
    div, broadcast_div, Div;
    /// The larger; NaN if either is.
    maximum, broadcast_maximum, Maximum;
    /// The smaller; NaN if either is.
    minimum, broadcast_minimum, Minimum;
    /// `x ^ y`; a negative base is right for whole exponents.
    pow, broadcast_pow, Pow;
}

macro_rules! operators {
    ($($trait:ident, $method:ident, |$x:ident, $n:ident| $scalar:expr;)*) => {$(
        impl std::ops::$trait<&Proxy> for &Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: &Proxy) -> Result<Proxy> {
                Proxy::$method(self, rhs)
            }
        }
        impl std::ops::$trait<Proxy> for &Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: Proxy) -> Result<Proxy> {
                Proxy::$method(self, &rhs)
            }
        }
        impl std::ops::$trait<&Proxy> for Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: &Proxy) -> Result<Proxy> {
                Proxy::$method(&self, rhs)
            }
        }
        impl std::ops::$trait<Proxy> for Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: Proxy) -> Result<Proxy> {
                Proxy::$method(&self, &rhs)
            }
        }
        impl std::ops::$trait<Result<Proxy>> for &Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: Result<Proxy>) -> Result<Proxy> {
                Proxy::$method(self, &rhs?)
            }
        }
        impl std::ops::$trait<Result<Proxy>> for Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: Result<Proxy>) -> Result<Proxy> {
                Proxy::$method(&self, &rhs?)
            }
        }
        impl std::ops::$trait<f64> for &Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: f64) -> Result<Proxy> {
                let ($x, $n) = (self, rhs);
                $scalar
            }
        }
        impl std::ops::$trait<f64> for Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: f64) -> Result<Proxy> {
                let ($x, $n) = (&self, rhs);
                $scalar
            }
        }
    )*};
}

operators! {
    Add, add, |x, n| with_number(x, BinaryOp::Add, n, false, Location::caller(), || x.affine(1.0, n));
    Sub, sub, |x, n| with_number(x, BinaryOp::Sub, n, false, Location::caller(), || x.affine(1.0, -n));
    Mul, mul, |x, n| with_number(x, BinaryOp::Mul, n, false, Location::caller(), || x.affine(n, 0.0));
    Div, div, |x, n| with_number(x, BinaryOp::Div, n, false, Location::caller(), || x.affine(1.0 / n, 0.0));
}

/// Arithmetic with a number: `floats` for floats; for integers that of the integers, with the number converted.
fn with_number(
    x: &Proxy,
    op: BinaryOp,
    number: f64,
    number_first: bool,
    site: Site,
    floats: impl FnOnce() -> Result<Proxy>,
) -> Result<Proxy> {
    if x.dtype().is_float() {
        return composed("arithmetic", site, x, floats);
    }
    composed("arithmetic", site, x, || {
        let number = filled_beside(x, "arithmetic", &Shape::SCALAR, number, site)?;
        let (a, b) = if number_first { (&number, x) } else { (x, &number) };
        binary(a, b, op, "arithmetic", true, site)
    })
}

macro_rules! number_on_the_left {
    ($($trait:ident, $method:ident, |$n:ident, $x:ident| $body:expr;)*) => {$(
        impl std::ops::$trait<&Proxy> for f64 {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: &Proxy) -> Result<Proxy> {
                let ($n, $x) = (self, rhs);
                $body
            }
        }
        impl std::ops::$trait<Proxy> for f64 {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: Proxy) -> Result<Proxy> {
                let ($n, $x) = (self, &rhs);
                $body
            }
        }
    )*};
}

number_on_the_left! {
    Add, add, |n, x| with_number(x, BinaryOp::Add, n, true, Location::caller(), || x.affine(1.0, n));
    Sub, sub, |n, x| with_number(x, BinaryOp::Sub, n, true, Location::caller(), || x.affine(-1.0, n));
    Mul, mul, |n, x| with_number(x, BinaryOp::Mul, n, true, Location::caller(), || x.affine(n, 0.0));
    Div, div, |n, x| with_number(x, BinaryOp::Div, n, true, Location::caller(), || x.recip()?.affine(n, 0.0));
}

impl std::ops::Neg for &Proxy {
    type Output = Result<Proxy>;
    #[track_caller]
    fn neg(self) -> Result<Proxy> {
        Proxy::neg(self)
    }
}
