//! Other dtypes, other devices.

use crate::array::autograd::{is_grad_enabled, no_grad};
use crate::base::{
    call::Call,
    dtype::{DType, with_bits},
    error::Result,
};
use crate::device::{Device, kernel::Map};
use crate::memory::{owner::Owner, proxy::Proxy, registry::Parts};
use crate::ops::{
    call::{
        check,
        exec::{adopt_parts, enter, map1, named, pin, record},
    },
    create::values::of_values,
    elementwise::unary::one,
};

/// # Other dtypes and devices
impl Proxy {
    /// The elements converted to another type: a handle of the same array if it has that type already.
    ///
    /// Rust's `as`: floats to integers truncate towards zero and saturate, NaN becomes 0.
    ///
    /// # Errors
    /// [`Error::StaleArray`](crate::Error::StaleArray); [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[doc(alias("astype", "cast", "toType"))]
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Proxy> {
        let call = Call::here("to_dtype");
        let from = self.dtype();
        if from == dtype {
            return check::same(call, self);
        }
        let cast = || {
            map1(
                call,
                self,
                |_| Ok(dtype),
                Map::Cast,
                |a, _| {
                    let from = a.dtype;
                    move |grad: &Proxy, _| Ok(one(grad.to_dtype(from)?))
                },
            )
        };
        if from.is_float() && dtype.is_float() { cast() } else { no_grad(cast) }
    }

    /// The array on another device: a handle of the same array if it is there already. Waits for the source
    /// device. The copy belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::StaleArray`](crate::Error::StaleArray); [`Error::OutOfMemory`](crate::Error::OutOfMemory); the
    /// first failure of the source device's work.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Proxy> {
        let call = Call::here("to_device");
        let from = self.with_pinned(call, |array| array.storage.buffer().device().clone())?;
        if from == *device {
            return Ok(self.clone());
        }
        let (dtype, shape) = (self.dtype(), *self.shape());
        // Not in a closure, which would be the caller that the copy names.
        let make = Call::here("from_vec");
        let copy = with_bits!(dtype, B => match self.bits::<B>("to_vec", dtype) {
            Ok((_, all)) => of_values(make, all, (shape, dtype), device),
            Err(error) => Err(error),
        });
        let copy = named(call.site, copy)?;
        if !copy.is_attached() && matches!(self.owner(call)?, Owner::Manager(_)) {
            copy.attach(&self.manager()?)?;
        }
        if !self.track_op() || !is_grad_enabled() {
            return Ok(copy);
        }
        let made = enter(call, |context| {
            let pins = pin(context, call.op, [self, &copy])?;
            let [a, c] = pins.arrays();
            check::seen(call, self, &shape, a.layout)?;
            check::same_dtype(call, &a, &c)?;
            let node = record(&[&a], || move |grad: &Proxy, _| Ok(one(grad.to_device(&from)?)));
            let parts = Parts { dtype: c.dtype, layout: c.layout, storage: c.storage.clone(), node };
            adopt_parts(call, context, parts, &copy)
        });
        // Also where it was refused: with the switch off its manager would keep it.
        copy.close();
        made
    }
}
