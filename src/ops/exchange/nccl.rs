//! Sums over several devices, in place.

use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::device::{Device, cuda::NcclRank};
use crate::memory::{
    proxy::Proxy,
    registry::{ArrayRef, Pinned},
};
use crate::ops::call::{exec::device, inplace::into};

impl NcclRank {
    /// Sets an array of this rank's device to the sum of all ranks' arrays, which have as many numbers of one dtype and
    /// come in the same order. Returns when the sum is submitted; whoever reads the array waits for it.
    ///
    /// All ranks get the same bits. Numbers are added in their dtype, in an order that the library chooses.
    ///
    /// # Errors
    /// [`Error::RequiresContiguous`]; [`Error::UnsupportedDType`] for other than f16, bf16, f32 and f64;
    /// [`Error::DeviceMismatch`] for an array of another device; [`Error::Device`] if the library cannot, here or on
    /// another rank; [`Error::Invalid`] after [`NcclRank::abort`]; as [`Proxy::add_`].
    #[track_caller]
    pub fn all_reduce(&self, array: &Proxy) -> Result<()> {
        let call = Call::here("all_reduce");
        let fits = |own: &ArrayRef<'_>, []: &[Pinned<'_>; 0]| {
            if !own.layout.is_contiguous() {
                return Err(Error::RequiresContiguous { op: call.op, site: Some(call.site) });
            }
            match device(own) {
                Device::Cuda(cuda) if cuda.is_of(self) => Ok(()),
                other => Err(Error::device_mismatch(call, format!("{self:?}"), other)),
            }
        };
        into(call, array, [], &fits, &|_, numbers, []| self.add_up(call.op, numbers))
    }
}
