//! From and to the arrays of the crate `ndarray`, with the feature of that name.

use ndarray::{Array, ArrayViewD, Dimension, IxDyn};

use crate::base::{
    call::Call,
    dtype::WithDType,
    error::{Error, Result},
};
use crate::memory::proxy::Proxy;
use crate::ops::call::{compose::composite_at, exec::once, place::Place};

/// # Exchange: with the crate `ndarray`
impl Proxy {
    /// An array of the elements of an `ndarray::Array`. One in row-major order gives its memory, as
    /// [`Proxy::from_vec`] takes it; another one is copied.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`]; as [`Proxy::from_vec`].
    #[track_caller]
    pub fn from_ndarray<T, D, P>(array: Array<T, D>, at: &P) -> Result<Self>
    where
        T: WithDType,
        D: Dimension,
        P: Place + ?Sized,
    {
        let call = Call::here("from_ndarray");
        let dims = array.shape().to_vec();
        let data = if array.is_standard_layout() {
            let count = array.len();
            let (mut all, first) = array.into_raw_vec_and_offset();
            let first = first.unwrap_or(0);
            if first > 0 {
                all.drain(..first);
            }
            all.truncate(count);
            all
        } else {
            array.iter().copied().collect()
        };
        composite_at(call, &at, &mut once(|| Proxy::from_vec(data, dims, at.device_of_place())))
    }

    /// Calls `f` with the elements of a contiguous array on the host, in place, as a view of the crate `ndarray`.
    ///
    /// # Errors
    /// As [`Proxy::with_slice`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::arange(0f64, 6., &Device::Cpu)?.reshape((2, 3))?;
    /// assert_eq!(a.as_ndarray_view(|v: ndarray::ArrayViewD<'_, f64>| v[[1, 2]])?, 5.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn as_ndarray_view<T: WithDType, R>(&self, f: impl FnOnce(ArrayViewD<'_, T>) -> R) -> Result<R> {
        let (call, dims) = (Call::here("as_ndarray_view"), IxDyn(self.dims()));
        self.with_slice(|all: &[T]| ArrayViewD::from_shape(dims, all).map(f))?
            .map_err(|error| Error::shape(call, self.dims(), format!("a shape that ndarray takes: {error}")))
    }
}
