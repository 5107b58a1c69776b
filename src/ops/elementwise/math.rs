//! Functions that are made of others, or are others under the name that users of candle or of DJL know.

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result, Site},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, in_single, number, single},
    },
    elementwise::unary::one,
};

/// Singles or doubles rounded to so many decimals. What is whole in that unit already, or too large for it, stays.
fn rounded(x: &Proxy, decimals: i32, site: Site) -> Result<Proxy> {
    let (digits, most) = if x.dtype() == DType::F64 { (52, 308) } else { (23, 38) };
    if decimals > most {
        return x.copy();
    }
    if decimals < -most {
        return x.ext_is_finite()?.where_cond(&x.zeros_like()?, x);
    }
    let scale = number(x, 10f64.powi(decimals.abs()), site)?;
    let scaled = if decimals < 0 { x.broadcast_div(&scale)? } else { x.broadcast_mul(&scale)? };
    let nearest = scaled.round()?;
    let nearest = if decimals < 0 { nearest.broadcast_mul(&scale)? } else { nearest.broadcast_div(&scale)? };
    let is_whole = scaled.abs()?.broadcast_ge(&number(x, 2f64.powi(digits), site)?)?;
    is_whole.where_cond(x, &nearest)
}

/// Integers rounded to a multiple of a power of ten; 0 if their dtype does not hold that.
fn rounded_integers(call: Call, x: &Proxy, exponent: u32) -> Result<Proxy> {
    let dtype = check::number(call, x.dtype())?;
    let bits = 8 * dtype.size_in_bytes() - usize::from(dtype.is_signed());
    let Some(unit) = 10u128.checked_pow(exponent).filter(|unit| unit >> bits == 0) else {
        return x.zeros_like();
    };
    // Exact as doubles: at most 10^19.
    let half = number(x, (unit / 2) as f64, call.site)?;
    let unit = number(x, unit as f64, call.site)?;
    let cut = x.broadcast_div(&unit)?.broadcast_mul(&unit)?;
    // What was cut off has the sign of the number; from a half on it counts as a unit.
    let units = x.sub(&cut)?.broadcast_div(&half)?;
    cut.add(&units.broadcast_mul(&unit)?)
}

/// `x + value * f(a, b)`, of halves in single precision: what `f` gives may be no half.
fn added(call: Call, [x, a, b]: [&Proxy; 3], value: f64, f: impl Fn(&Proxy, &Proxy) -> Result<Proxy>) -> Result<Proxy> {
    if let Some(other) = [a, b].into_iter().find(|other| other.dtype() != x.dtype()) {
        return Err(Error::dtype_mismatch(call, x.dtype(), other.dtype()));
    }
    in_single(x, |x| x.add(&f(&single(a)?, &single(b)?)?.affine(value, 0.0)?))
}

/// # Element by element: more functions
impl Proxy {
    /// The nearest number with so many decimals, a half away from zero; negative ones round to tens, hundreds, .. Of
    /// integers 0 if their dtype does not hold that power of ten; they wrap. Its gradient is 0.
    ///
    /// # Errors
    /// As [`Proxy::round`]; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for truth values with negative
    /// decimals.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::new(&[1.125f64, 1250.], &Device::Cpu)?;
    /// assert_eq!(a.round_to(1)?.to_vec1::<f64>()?, [1.1, 1250.]);
    /// assert_eq!(a.round_to(-2)?.to_vec1::<f64>()?, [0., 1300.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn round_to(&self, decimals: i32) -> Result<Proxy> {
        let call = Call::here("round_to");
        composite(call, self, &mut || {
            if self.dtype().is_float() {
                let values = no_grad(|| in_single(self, |x| rounded(x, decimals, call.site)))?;
                return values.with_gradient(call, [self], false, |grad, _, _| Ok(one(grad.zeros_like()?)));
            }
            match decimals {
                0.. => check::same(call, self),
                _ => rounded_integers(call, self, decimals.unsigned_abs()),
            }
        })
    }

    /// `x ^ exponent` with a whole number as exponent, of any dtype but bool; integers wrap. With a gradient.
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
            // A dtype of 8 or 16 bits does not hold every exponent. From that many on powers have a period, which
            // divides this one; of 32 bits it changes nothing.
            let period = 1i32 << ((8 * self.dtype().size_in_bytes()).min(32) - 2);
            let exponent = if exponent < period { exponent } else { exponent % period + period };
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
        let call = Call::here("addcmul");
        composite(call, self, &mut || added(call, [self, a, b], value, |a, b| a.mul(b)))
    }

    /// `self + value * a / b`, of equal shapes and dtypes, with gradients.
    ///
    /// # Errors
    /// As [`Proxy::add`].
    #[track_caller]
    pub fn addcdiv(&self, a: &Proxy, b: &Proxy, value: f64) -> Result<Proxy> {
        let call = Call::here("addcdiv");
        composite(call, self, &mut || added(call, [self, a, b], value, |a, b| a.div(b)))
    }

    #[track_caller]
    pub(crate) fn ext_lerp(&self, end: &Proxy, weight: f64) -> Result<Proxy> {
        let call = Call::here("lerp");
        composite(call, self, &mut || {
            check::float(call, self.dtype())?;
            if end.dtype() != self.dtype() {
                return Err(Error::dtype_mismatch(call, self.dtype(), end.dtype()));
            }
            let from = |x: &Proxy| {
                let end = single(end)?;
                let away = x.sub(&end)?;
                // Of singles PyTorch has the weight, and what is left to 1, in f32.
                let weight = if x.dtype() == DType::F64 { weight } else { f64::from(weight as f32) };
                // From the nearer one: the ends are exact, and so is what lies between two that are equal.
                match weight.abs() < 0.5 {
                    true => x.sub(&away.affine(weight, 0.0)?),
                    false => end.add(&away.affine(1.0 - weight, 0.0)?),
                }
            };
            let values = no_grad(|| in_single(self, from))?;
            // By one product each: a difference of two is NaN for an infinite gradient.
            values.with_gradient(call, [self, end], false, move |grad, _, needs| {
                let of_self = if needs[0] { Some(grad.affine(1.0 - weight, 0.0)?) } else { None };
                let of_end = if needs[1] { Some(grad.affine(weight, 0.0)?) } else { None };
                Ok([of_self, of_end, None])
            })
        })
    }
}
