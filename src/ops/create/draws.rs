//! More random numbers, all from the common stream ([`Device::set_seed`](crate::Device::set_seed)).

use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::Result,
    shape::Shape,
};
use crate::device::graph::is_capturing;
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, composite_at, wrong_shape},
        place::Place,
    },
    create::random::rounded,
};

/// # Making arrays: at random, by other laws
impl Proxy {
    /// Uniform random numbers in `[low, high)` with the shape, dtype, device and owner of this array.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let x = Tensor::zeros(100, DType::F64, &Device::Cpu)?;
    /// let noise = x.rand_like(-1., 1.)?.to_vec1::<f64>()?;
    /// assert!(noise.iter().all(|x| (-1.0..1.0).contains(x)));
    /// let whole = Tensor::zeros(100, DType::U32, &Device::Cpu)?;
    /// assert!(matches!(whole.rand_like(0., 9.), Err(Error::UnsupportedDType { .. }))); // randint draws those
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::rand`].
    #[track_caller]
    pub fn rand_like(&self, low: f64, high: f64) -> Result<Proxy> {
        let op = "rand_like";
        composite(Call::here(op), self, &mut || {
            let (shape, device) = (*self.shape(), self.device());
            let dtype = check::float(op, self.dtype())?;
            Proxy::rand_as((rounded(low, dtype), rounded(high, dtype)), shape, dtype, device)
        })
    }

    /// Normal random numbers with the shape, dtype, device and owner of this array.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::randn`].
    #[track_caller]
    pub fn randn_like(&self, mean: f64, std: f64) -> Result<Proxy> {
        let op = "randn_like";
        composite(Call::here(op), self, &mut || {
            let (shape, device) = (*self.shape(), self.device());
            let dtype = check::float(op, self.dtype())?;
            Proxy::randn_as((rounded(mean, dtype), rounded(std, dtype)), shape, dtype, device)
        })
    }

    /// Random whole numbers from `low` to but without `high`, each as likely as the others.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let dice = Tensor::randint(1u32, 7, 100, &Device::Cpu)?;
    /// assert!(dice.to_vec1::<u32>()?.iter().all(|eyes| (1..=6).contains(eyes)));
    /// assert!(matches!(Tensor::randint(7u32, 7, 100, &Device::Cpu), Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if `low` is not below `high`, or there are more than 2^32 numbers
    /// between them; as [`Proxy::zeros`].
    #[doc(alias = "randomInteger")]
    #[track_caller]
    pub fn randint<T: WithDType, S: Into<Shape>, P: Place + ?Sized>(
        low: T,
        high: T,
        shape: S,
        at: &P,
    ) -> Result<Proxy> {
        let (call, shape) = (Call::here("randint"), shape.into());
        let (low, high) = (low.to_i128(), high.to_i128());
        let range = high.saturating_sub(low);
        if !(1..=1i128 << 32).contains(&range) {
            return argument(call, "range", format!("{low}..{high}"), "1 to 2^32 numbers, in ascending order");
        }
        composite_at(call, &at, &mut || {
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
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let mut order = Tensor::randperm(5, &Device::Cpu)?.to_vec1::<i64>()?;
    /// order.sort();
    /// assert_eq!(order, [0, 1, 2, 3, 4]); // each once
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for 2^32 numbers or more; as [`Proxy::zeros`].
    #[track_caller]
    pub fn randperm<P: Place + ?Sized>(n: usize, at: &P) -> Result<Proxy> {
        let op = "randperm";
        composite_at(Call::here(op), &at, &mut || {
            Proxy::rand(0f64, 1f64, n, at.device_of_place())?.ext_argsort(0, false)?.to_dtype(DType::I64)
        })
    }

    /// For each element, a probability, 1 as often as it says, else 0: the same dtype. Floats; no gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let chances = Tensor::new(&[0f32, 1., 0.5], &Device::Cpu)?;
    /// let drawn = chances.bernoulli()?.to_vec1::<f32>()?;
    /// assert_eq!(drawn[..2], [0., 1.]); // never, and always
    /// assert!(drawn[2] == 0. || drawn[2] == 1.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::rand`].
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Proxy> {
        let op = "bernoulli";
        composite(Call::here(op), self, &mut || {
            let dtype = check::float(op, self.dtype())?;
            // Halves are compared as singles: a draw rounded to theirs is as large as a chance too often.
            let chances = self.aside()?.to_dtype(if dtype == DType::F64 { dtype } else { DType::F32 })?;
            chances.rand_like(0.0, 1.0)?.lt(&chances)?.to_dtype(dtype)
        })
    }

    /// Indices drawn from rows of weights, `[.., n]` to `[.., count]`: i64. Each weight is at least 0 and counts
    /// against the sum of its row; without `replacement` no index comes twice. No gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let weights = Tensor::new(&[0f32, 3., 0.], &Device::Cpu)?;
    /// assert_eq!(weights.multinomial(4, true)?.to_vec1::<i64>()?, [1; 4]);
    /// let refused = weights.multinomial(2, false); // one index alone can be drawn
    /// assert!(matches!(refused, Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for no weights, for more draws than weights without replacement, and
    /// for a row with a weight that is negative, infinite or no number, or with too few above 0 (a section that is
    /// being captured does not look);
    /// [`Error::Shape`](crate::Error::Shape) for a scalar; [`Error::UnsupportedDType`](crate::Error::UnsupportedDType)
    /// for integers; as [`Proxy::rand`].
    #[track_caller]
    pub fn multinomial(&self, count: usize, replacement: bool) -> Result<Proxy> {
        let op = "multinomial";
        composite(Call::here(op), self, &mut || {
            check::float(op, self.dtype())?;
            let shape = *self.shape();
            let Some(last) = shape.rank().checked_sub(1) else {
                return wrong_shape(op, self, "at least one axis of weights");
            };
            let n = shape.dims()[last];
            if n == 0 || count > n && !replacement {
                return argument(op, "count", count, "at most the weights there are");
            }
            let weights = self.aside()?.to_dtype(DType::F64)?;
            if shape.elem_count() > 0 && !is_capturing() {
                let finite = weights.ge(0.0)?.mul(&weights.lt(f64::INFINITY)?)?.min_all()?.to_scalar::<u8>()?;
                let possible = weights.gt(0.0)?.to_dtype(DType::I64)?.sum(last)?.min_all()?.to_scalar::<i64>()?;
                let needed = if replacement { count.min(1) } else { count };
                if finite == 0 || possible < needed as i64 {
                    let expected = "finite, at least 0, and in each row above 0 for as many as are drawn";
                    return argument(op, "weights", "a row that nothing can be drawn from", expected);
                }
            }
            if !replacement {
                // The first of independent clocks that run as fast as the weights say. A draw of 0, one of 2^53, gives
                // half of the least time that others give: by a time of -0 its weight would come last.
                let clocks = weights.rand_like(0.0, 1.0)?.affine(-1.0, 1.0)?.log()?.neg()?;
                let clocks = clocks.clamp(f64::EPSILON / 4.0, f64::INFINITY)?;
                return weights.div(&clocks)?.ext_topk(count, last)?.1.to_dtype(DType::I64);
            }
            let sums = weights.cumsum(last)?;
            let total = sums.narrow(last, n - 1, 1)?;
            let drawn = Proxy::rand(0f64, 1f64, shape.with_dim(last, count), self.device())?.broadcast_mul(&total)?;
            let passed = sums.unsqueeze(last)?.broadcast_le(&drawn.unsqueeze(last + 1)?)?;
            passed.to_dtype(DType::I64)?.sum(last + 1)?.clamp(0.0, (n - 1) as f64)
        })
    }

    /// Normal random numbers that lie within two deviations of the mean; others are as if they were drawn again.
    ///
    /// # Errors
    /// As [`Proxy::randn`].
    #[track_caller]
    pub fn truncated_normal<T: WithDType, S: Into<Shape>, P: Place + ?Sized>(
        mean: T,
        std: T,
        shape: S,
        at: &P,
    ) -> Result<Proxy> {
        let (op, shape, root) = ("truncated_normal", shape.into(), std::f64::consts::SQRT_2);
        composite_at(Call::here(op), &at, &mut || {
            check::float(op, T::DTYPE)?;
            let end = ndgc_kernels::cpu::erf(root);
            let drawn = Proxy::rand(-end, end, shape, at.device_of_place())?.erfinv()?;
            drawn.affine(root * std.to_f64(), mean.to_f64())?.to_dtype(T::DTYPE)
        })
    }
}
