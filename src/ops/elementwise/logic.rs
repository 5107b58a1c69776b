//! Questions about elements, and logic of masks.
//!
//! A mask holds 0 or 1 in u8, as comparisons give; anything that is not 0 counts as true where a mask is taken.

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

fn has_infinity(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F8E4M3
}

/// # Element by element: logic, masks
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

    #[track_caller]
    pub(crate) fn ext_masked_fill(&self, mask: &Proxy, value: f64) -> Result<Proxy> {
        let call = Call::here("masked_fill");
        composite(call, self, &mut || {
            mask.broadcast_as(*self.shape())?.where_cond(&number_like(self, value, call.site)?, self)
        })
    }

    #[track_caller]
    pub(crate) fn ext_nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Proxy> {
        let call = Call::here("nan_to_num");
        composite(call, self, &mut || {
            if !self.dtype().is_float() {
                return check::same(call, self);
            }
            let mut out = self.ext_masked_fill(&self.ext_is_nan()?, nan)?;
            if has_infinity(self.dtype()) {
                let largest = match self.dtype() {
                    DType::F16 => half::f16::MAX.into(),
                    DType::BF16 => half::bf16::MAX.into(),
                    DType::F32 => f32::MAX.into(),
                    _ => f64::MAX,
                };
                for (sign, value) in [(1., posinf), (-1., neginf)] {
                    let value = value.unwrap_or(sign * largest);
                    out = out.ext_masked_fill(&self.eq(sign * f64::INFINITY)?, value)?;
                }
            }
            Ok(out)
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
