//! Functions that are made of others, or are others under the name that users of candle or of DJL know.

use crate::base::{call::Call, error::Result};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    check,
    compose::{argument, composite, number},
};

/// # Element by element: more functions
impl Proxy {
    /// The nearest number with so many decimals; negative ones round to tens, hundreds, .. Its gradient is 0.
    ///
    /// # Errors
    /// As [`Proxy::round`].
    #[track_caller]
    pub fn round_to(&self, decimals: i32) -> Result<Proxy> {
        let scale = 10f64.powi(decimals);
        composite(Call::here("round_to"), self, &mut || {
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
        let call = Call::here("powi");
        composite(call, self, &mut || {
            if self.dtype().is_float() {
                return self.powf(f64::from(exponent));
            }
            if exponent < 0 {
                return argument(call, "exponent", exponent, "0 or more for integers");
            }
            if self.dtype() == crate::DType::U8 && exponent > i32::from(u8::MAX) {
                // u8 cannot hold the exponent, but every power in u8 has a period that divides 64 from 8 on.
                return self.broadcast_pow(&number(self, f64::from(exponent % 64 + 64), call.site)?);
            }
            self.broadcast_pow(&number(self, f64::from(exponent), call.site)?)
        })
    }

    /// Alias of [`Proxy::log`]: Rust's name.
    ///
    /// # Errors
    /// As [`Proxy::log`].
    #[track_caller]
    pub fn ln(&self) -> Result<Proxy> {
        self.log()
    }

    /// Alias of [`Proxy::sqr`]: DJL's and PyTorch's name.
    ///
    /// # Errors
    /// As [`Proxy::sqr`].
    #[track_caller]
    pub fn square(&self) -> Result<Proxy> {
        self.sqr()
    }

    /// Alias of [`Proxy::gammaln`]: PyTorch's name.
    ///
    /// # Errors
    /// As [`Proxy::gammaln`].
    #[track_caller]
    pub fn lgamma(&self) -> Result<Proxy> {
        self.gammaln()
    }

    #[track_caller]
    pub(crate) fn ext_clamp_min(&self, min: f64) -> Result<Proxy> {
        composite(Call::here("clamp_min"), self, &mut || self.clamp(min, f64::INFINITY))
    }

    #[track_caller]
    pub(crate) fn ext_clamp_max(&self, max: f64) -> Result<Proxy> {
        composite(Call::here("clamp_max"), self, &mut || self.clamp(f64::NEG_INFINITY, max))
    }

    /// `self + value * a * b`, of equal shapes and dtypes, with gradients.
    ///
    /// # Errors
    /// As [`Proxy::add`].
    #[track_caller]
    pub fn addcmul(&self, a: &Proxy, b: &Proxy, value: f64) -> Result<Proxy> {
        composite(Call::here("addcmul"), self, &mut || self.add(&a.mul(b)?.affine(value, 0.0)?))
    }

    /// `self + value * a / b`, of equal shapes and dtypes, with gradients.
    ///
    /// # Errors
    /// As [`Proxy::add`].
    #[track_caller]
    pub fn addcdiv(&self, a: &Proxy, b: &Proxy, value: f64) -> Result<Proxy> {
        composite(Call::here("addcdiv"), self, &mut || self.add(&a.div(b)?.affine(value, 0.0)?))
    }

    #[track_caller]
    pub(crate) fn ext_lerp(&self, end: &Proxy, weight: f64) -> Result<Proxy> {
        composite(Call::here("lerp"), self, &mut || {
            check::float("lerp", self.dtype())?;
            self.affine(1.0 - weight, 0.0)?.add(&end.affine(weight, 0.0)?)
        })
    }
}
