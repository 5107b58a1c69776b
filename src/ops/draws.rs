//! More random numbers, all from the common stream ([`Device::set_seed`](crate::Device::set_seed)).

use std::panic::Location;

use crate::base::{
    dtype::{DType, WithDType, with_type},
    error::Result,
    shape::Shape,
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    check,
    compose::{argument, whole, whole_at},
    create::Place,
};

impl Proxy {
    /// Uniform random numbers in `[low, high)` with the shape, dtype, device and owner of this array.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::rand`].
    #[track_caller]
    pub fn rand_like(&self, low: f64, high: f64) -> Result<Proxy> {
        let op = "rand_like";
        whole(op, Location::caller(), self, || {
            let (shape, device) = (*self.shape(), self.device());
            with_type!(check::float(op, self.dtype())?, T => {
                Proxy::rand(T::from_f64(low), T::from_f64(high), shape, device)
            })
        })
    }

    /// Normal random numbers with the shape, dtype, device and owner of this array.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::randn`].
    #[track_caller]
    pub fn randn_like(&self, mean: f64, std: f64) -> Result<Proxy> {
        let op = "randn_like";
        whole(op, Location::caller(), self, || {
            let (shape, device) = (*self.shape(), self.device());
            with_type!(check::float(op, self.dtype())?, T => {
                Proxy::randn(T::from_f64(mean), T::from_f64(std), shape, device)
            })
        })
    }

    /// Random whole numbers from `low` to but without `high`, each as likely as the others.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if `low` is not below `high`, or there are more than 2^32 numbers
    /// between them; as [`Proxy::zeros`].
    #[track_caller]
    pub fn randint<T: WithDType, S: Into<Shape>, P: Place + ?Sized>(
        low: T,
        high: T,
        shape: S,
        at: &P,
    ) -> Result<Proxy> {
        let (op, shape) = ("randint", shape.into());
        let (low, high) = (low.to_i128(), high.to_i128());
        let range = high.saturating_sub(low);
        if !(1..=1i128 << 32).contains(&range) {
            return argument(op, "range", format!("{low}..{high}"), "1 to 2^32 numbers, in ascending order");
        }
        let site = Location::caller();
        whole_at(op, site, at, || {
            // Scaled down from `[0, 1)`: the product may round up to the end, which is no number of the range.
            let drawn = Proxy::rand(0f64, 1f64, shape, at.device_of_place())?;
            let steps = drawn.affine(range as f64, 0.0)?.clamp(0.0, (range - 1) as f64)?.to_dtype(DType::I64)?;
            // A sum that wraps ends where it should once it is converted.
            let start = Proxy::from_slice(&[low as i64], (), at.device_of_place())?;
            steps.broadcast_add(&start)?.to_dtype(T::DTYPE)
        })
    }

    /// The numbers from 0 to but without `n` in a random order: i64.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for 2^32 numbers or more; as [`Proxy::zeros`].
    #[track_caller]
    pub fn randperm<P: Place + ?Sized>(n: usize, at: &P) -> Result<Proxy> {
        let op = "randperm";
        whole_at(op, Location::caller(), at, || {
            Proxy::rand(0f64, 1f64, n, at.device_of_place())?.argsort(0, false)?.to_dtype(DType::I64)
        })
    }

    /// For each element, a probability, 1 as often as it says, else 0: the same dtype. Floats; no gradient.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::rand`].
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Proxy> {
        let op = "bernoulli";
        whole(op, Location::caller(), self, || self.rand_like(0.0, 1.0)?.lt(self)?.to_dtype(self.dtype()))
    }
}
