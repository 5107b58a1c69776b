//! Operands that may be an array or a number.

use crate::base::{call::Call, dtype::WithDType, error::Result};
use crate::memory::proxy::Proxy;
use crate::ops::{call::compose::composite, grad::var::Var};

/// An array, or a number that stands for an array of it. A number takes the dtype of the other side, as `to_dtype`
/// converts.
pub trait TensorOrScalar {
    /// The array, if it is one.
    fn tensor(&self) -> Option<&Proxy>;

    /// The number, if it is one that a double holds exactly.
    fn number(&self) -> Option<f64>;

    /// The number as an array with dtype, device and shape of another, of one element of memory; an array is itself.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::StaleArray`](crate::Error::StaleArray).
    fn beside(&self, other: &Proxy) -> Result<Proxy>;
}

impl TensorOrScalar for &Proxy {
    fn tensor(&self) -> Option<&Proxy> {
        Some(self)
    }

    fn number(&self) -> Option<f64> {
        None
    }

    fn beside(&self, _other: &Proxy) -> Result<Proxy> {
        Ok((*self).clone())
    }
}

impl TensorOrScalar for &Var {
    fn tensor(&self) -> Option<&Proxy> {
        Some(self.as_tensor())
    }

    fn number(&self) -> Option<f64> {
        None
    }

    fn beside(&self, _other: &Proxy) -> Result<Proxy> {
        Ok(self.as_tensor().clone())
    }
}

impl<T: WithDType> TensorOrScalar for T {
    fn tensor(&self) -> Option<&Proxy> {
        None
    }

    fn number(&self) -> Option<f64> {
        let number = self.to_f64();
        let same = T::from_f64(number) == *self && number.abs() < (1u64 << 53) as f64;
        (same || T::DTYPE.is_float()).then_some(number)
    }

    fn beside(&self, other: &Proxy) -> Result<Proxy> {
        Proxy::from_slice(&[*self], (), other.device())?.to_dtype(other.dtype())?.broadcast_as(other.shape())
    }
}

/// An operation of an array and another operand.
pub(crate) fn with_operand(
    call: Call,
    x: &Proxy,
    rhs: &impl TensorOrScalar,
    f: impl FnOnce(&Proxy, &Proxy) -> Result<Proxy>,
) -> Result<Proxy> {
    match rhs.tensor() {
        Some(rhs) => f(x, rhs),
        None => composite(call, x, || f(x, &rhs.beside(x)?)),
    }
}
