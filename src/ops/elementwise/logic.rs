//! Questions about elements, logic of masks, and division with a remainder.
//!
//! A mask holds 0 or 1 in u8, as comparisons give; anything that is not 0 counts as true where a mask is taken.

use std::panic::Location;

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result, Site},
};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    check,
    compose::{composite, number, number_like},
};

/// 1 where an element is not 0.
pub(crate) fn truth(x: &Proxy, site: Site) -> Result<Proxy> {
    x.broadcast_ne(&number(x, 0.0, site)?)
}

/// Logic of two masks of one shape, of any dtypes.
fn logic(call: Call, a: &Proxy, b: &Proxy, f: fn(&Proxy, &Proxy) -> Result<Proxy>) -> Result<Proxy> {
    composite(call, a, &mut || {
        check::same_shape(call, a.shape(), b.shape(), "the operation wants equal shapes")?;
        f(&truth(a, call.site)?, &truth(b, call.site)?)
    })
}

/// How a division with a remainder goes.
#[derive(Clone, Copy)]
struct Division {
    op: &'static str,
    /// Of integers, from the quotient cut towards zero, the remainder to it, and where the quotient of a floor is one
    /// less.
    integers: fn(&Proxy, &Proxy, [Proxy; 3]) -> Result<Proxy>,
    floats: fn(f64, f64) -> f64,
    /// The quotient that the gradient of the right side is the negative of; `None` for a flat result.
    quotient: Option<fn(f64, f64) -> f64>,
}

fn divide(a: &Proxy, b: &Proxy, how: Division, site: Site) -> Result<Proxy> {
    let call = Call { op: how.op, site };
    composite(call, a, &mut || {
        let (shape, dtype) = (*a.shape(), a.dtype());
        check::same_shape(call, &shape, b.shape(), "the operation wants equal shapes")?;
        if dtype != b.dtype() {
            return Err(Error::dtype_mismatch(call, dtype, b.dtype()));
        }
        if !dtype.is_float() {
            return of_integers(a, b, how, call.site);
        }
        let values = no_grad(|| on_host(a, b, call.op, how.floats))?;
        values.with_gradient(call, [a, b], true, move |grad, operands, needs| {
            let flat = || grad.zeros_like();
            let left = || if how.quotient.is_some() { Ok(grad.clone()) } else { flat() };
            let right = || match how.quotient {
                Some(quotient) => grad.mul(&on_host(&operands[0], &operands[1], call.op, quotient)?)?.neg(),
                None => flat(),
            };
            let left = if needs[0] { Some(left()?) } else { None };
            Ok([left, if needs[1] { Some(right()?) } else { None }, None])
        })
    })
}

fn of_integers(a: &Proxy, b: &Proxy, how: Division, site: Site) -> Result<Proxy> {
    let quotient = a.div(b)?;
    let rest = a.sub(&quotient.mul(b)?)?;
    let zero = number(a, 0.0, site)?;
    // A division by 0 gives 0 with the whole number as rest; that is no reason to round further.
    let signs = a.broadcast_lt(&zero)?.ne(&b.broadcast_lt(&zero)?)?;
    let less = signs.mul(&truth(&rest, site)?)?.mul(&truth(b, site)?)?.to_dtype(a.dtype())?;
    (how.integers)(a, b, [quotient, rest, less])
}

/// Pair by pair in doubles on the host: no formula of kernels is exact for large quotients.
fn on_host(a: &Proxy, b: &Proxy, op: &'static str, f: fn(f64, f64) -> f64) -> Result<Proxy> {
    let (shape, dtype, device) = (*a.shape(), a.dtype(), a.device());
    if device != b.device() {
        return Err(Error::device_mismatch(op, device, b.device()));
    }
    let mut values = a.to_dtype(DType::F64)?.to_vec::<f64>()?;
    for (x, y) in values.iter_mut().zip(b.to_dtype(DType::F64)?.to_vec::<f64>()?) {
        *x = f(*x, y);
    }
    Proxy::from_vec(values, shape, &device)?.to_dtype(dtype)
}

fn has_infinity(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F8E4M3
}

fn floats_rem(x: f64, y: f64) -> f64 {
    let r = x % y;
    if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
}

/// From the exact remainder, so that the quotient is whole before it is rounded.
fn floats_floor_div(x: f64, y: f64) -> f64 {
    if y == 0.0 || x.is_infinite() {
        return (x / y).floor();
    }
    let r = x % y;
    let q = ((x - r) / y).round();
    match r != 0.0 && (r < 0.0) != (y < 0.0) {
        true => q - 1.0,
        // A 0 has the sign of what was rounded.
        false if q == 0.0 => 0f64.copysign(x / y),
        false => q,
    }
}

fn floats_trunc_div(x: f64, y: f64) -> f64 {
    ((x - x % y) / y).round()
}

/// # Element by element: logic, divisions, masks
impl Proxy {
    #[track_caller]
    pub(crate) fn ext_is_nan(&self) -> Result<Proxy> {
        composite(Call::here("is_nan"), self, &mut || self.ne(self))
    }

    #[track_caller]
    pub(crate) fn ext_is_inf(&self) -> Result<Proxy> {
        let call = Call::here("is_inf");
        composite(call, self, &mut || match has_infinity(self.dtype()) {
            true => no_grad(|| self.abs())?.broadcast_eq(&number(self, f64::INFINITY, call.site)?),
            false => self.lt(self),
        })
    }

    #[track_caller]
    pub(crate) fn ext_is_finite(&self) -> Result<Proxy> {
        let call = Call::here("is_finite");
        composite(call, self, &mut || match has_infinity(self.dtype()) {
            true => no_grad(|| self.abs())?.broadcast_lt(&number(self, f64::INFINITY, call.site)?),
            false => self.eq(self),
        })
    }

    #[track_caller]
    pub(crate) fn ext_logical_not(&self) -> Result<Proxy> {
        let call = Call::here("logical_not");
        composite(call, self, &mut || self.broadcast_eq(&number(self, 0.0, call.site)?))
    }

    #[track_caller]
    pub(crate) fn ext_logical_and(&self, rhs: &Proxy) -> Result<Proxy> {
        logic(Call::here("logical_and"), self, rhs, Proxy::mul)
    }

    #[track_caller]
    pub(crate) fn ext_logical_or(&self, rhs: &Proxy) -> Result<Proxy> {
        logic(Call::here("logical_or"), self, rhs, |a, b| a.maximum(b))
    }

    #[track_caller]
    pub(crate) fn ext_logical_xor(&self, rhs: &Proxy) -> Result<Proxy> {
        logic(Call::here("logical_xor"), self, rhs, |a, b| a.ne(b))
    }

    /// The rest of a division whose quotient is cut towards zero: it has the sign of this array, as `%` in Rust.
    ///
    /// Any dtype but bool, equal shapes; for integers the rest of a division by 0 is the number itself. Exact; floats
    /// go through the host. Gradients: 1, and minus the quotient.
    ///
    /// # Errors
    /// As [`Proxy::div`].
    #[track_caller]
    pub fn fmod(&self, rhs: &Proxy) -> Result<Proxy> {
        let how = Division {
            op: "fmod",
            integers: |_, _, [_, rest, _]| Ok(rest),
            floats: |x, y| x % y,
            quotient: Some(floats_trunc_div),
        };
        divide(self, rhs, how, Location::caller())
    }

    /// The rest of a division whose quotient is rounded down: it has the sign of `rhs`, as `%` in Python.
    ///
    /// Otherwise as [`Proxy::fmod`].
    ///
    /// # Errors
    /// As [`Proxy::div`].
    #[track_caller]
    pub fn rem(&self, rhs: &Proxy) -> Result<Proxy> {
        let how = Division {
            op: "rem",
            integers: |_, b, [_, rest, less]| rest.add(&less.mul(b)?),
            floats: floats_rem,
            quotient: Some(floats_floor_div),
        };
        divide(self, rhs, how, Location::caller())
    }

    /// The quotient rounded down to a whole number. Any dtype but bool, equal shapes; integer division by 0 gives 0.
    /// Floats go through the host. Its gradients are 0.
    ///
    /// # Errors
    /// As [`Proxy::div`].
    #[track_caller]
    pub fn floor_div(&self, rhs: &Proxy) -> Result<Proxy> {
        let how = Division {
            op: "floor_div",
            integers: |_, _, [quotient, _, less]| quotient.sub(&less),
            floats: floats_floor_div,
            quotient: None,
        };
        divide(self, rhs, how, Location::caller())
    }

    #[track_caller]
    pub(crate) fn ext_masked_fill(&self, mask: &Proxy, value: f64) -> Result<Proxy> {
        let call = Call::here("masked_fill");
        composite(call, self, &mut || {
            mask.broadcast_as(*self.shape())?.where_cond(&number_like(self, value, call.site)?, self)
        })
    }

    #[track_caller]
    pub(crate) fn ext_masked_select(&self, mask: &Proxy) -> Result<Proxy> {
        let op = "masked_select";
        composite(Call::here(op), self, &mut || {
            let mask = mask.broadcast_as(*self.shape())?;
            if mask.dtype().is_float() {
                return Err(Error::unsupported_dtype(op, mask.dtype(), "bool and integers"));
            }
            let (device, of_mask) = (self.device(), mask.device());
            if device != of_mask {
                return Err(Error::device_mismatch(op, device, of_mask));
            }
            let on = mask.to_dtype(DType::I64)?.to_vec::<i64>()?;
            let ids: Vec<i64> = (0i64..).zip(on).filter(|&(_, on)| on != 0).map(|(i, _)| i).collect();
            let ids = Proxy::from_slice(&ids, ids.len(), &device)?;
            self.flatten_all()?.index_select(&ids, 0)
        })
    }
}
