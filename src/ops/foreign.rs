//! Arrays in memory that ndgc did not allocate: a vector's, a mapped file's, another library's.
//!
//! A *keeper* keeps such memory. It lives in the array's storage, which views, saved values and running operations
//! share, and is dropped with the last of them: on whatever thread closes that, once, and by no lock of ours.

use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::{
    dtype::{DType, WithDType},
    error::{Error, Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    Device,
    buffer::{Buffer, Foreign, Span},
    cpu::pool,
};
use crate::memory::{proxy::Proxy, registry::Payload, storage::Storage};
use crate::ops::{
    create::{Place, make},
    exec::{call, place},
};

/// An array of bytes that lie in somebody's memory, in row-major order. Read-only, and without a copy, if it is made
/// on the host and the bytes are aligned for the dtype; else a copy, which may be changed.
///
/// `range` is in bytes.
///
/// # Errors
/// [`Error::Argument`] if the range leaves the bytes; [`Error::ElementCount`] if the shape needs another number of
/// them; as [`Proxy::zeros`].
pub(crate) fn of_bytes<K, P>(
    op: &'static str,
    site: Site,
    keeper: Arc<K>,
    range: Range<usize>,
    (shape, dtype): (Shape, DType),
    at: &P,
) -> Result<Proxy>
where
    K: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
    P: Place + ?Sized,
{
    let all = (*keeper).as_ref();
    let Some(bytes) = all.get(range.clone()) else {
        let value = format!("{range:?}");
        return Err(Error::Argument { op, argument: "range", value, expected: "a range inside the bytes" });
    };
    if shape.check(op, dtype.size_in_bytes())? * dtype.size_in_bytes() != bytes.len() {
        let given = bytes.len() / dtype.size_in_bytes();
        return Err(Error::ElementCount { op, given, shape: shape.dims().to_vec() });
    }
    let start = NonNull::from(bytes).cast::<u8>();
    if !at.device_of_place().is_cpu() || !is_aligned(start, dtype) {
        return make(op, site, shape, dtype, at, false, |out| {
            let buffer = out.storage.buffer();
            // SAFETY: the storage is fresh, so nobody else uses it, and the number of bytes is that of the shape.
            #[allow(unsafe_code)]
            unsafe {
                buffer.device().upload(buffer.span(), bytes)
            }
        });
    }
    let span = Span::new(start, bytes.len());
    // SAFETY: `as_ref` borrowed the bytes from what the `Arc` points to, which neither moves nor changes while there is
    // an `Arc`: so the borrow could last until the buffer drops this one.
    #[allow(unsafe_code)]
    let buffer = unsafe { Buffer::foreign(span, Device::Cpu, Box::new(Foreign { read_only: true, keeper })) };
    adopt(op, site, buffer, (Layout::contiguous(shape), dtype), at)
}

impl Proxy {
    /// An array of bytes that `keeper` holds, in row-major order and the machine's byte order: of a mapped file, of a
    /// slice. `range` is the array's part of them; several arrays may share one keeper.
    ///
    /// On the host there is no copy if the bytes are aligned for the dtype. The array then cannot be changed in place
    /// ([`Error::ReadOnly`]), its bytes are not counted with the device's, and the keeper is let go when the last
    /// array, view or saved value of it has gone. Otherwise the array is a copy like any other.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range leaves the bytes; [`Error::ElementCount`] if the shape needs another number of
    /// them; as [`Proxy::zeros`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let file: std::sync::Arc<[u8]> = [1, 2, 3, 4, 5].into();
    /// let a = Tensor::from_shared(file, 1..5, DType::U8, (2, 2), &Device::Cpu)?;
    /// assert_eq!(a.to_vec2::<u8>()?, [[2, 3], [4, 5]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn from_shared<K, S, P>(keeper: Arc<K>, range: Range<usize>, dtype: DType, shape: S, at: &P) -> Result<Self>
    where
        K: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
        S: Into<Shape>,
        P: Place + ?Sized,
    {
        of_bytes("from_shared", Location::caller(), keeper, range, (shape.into(), dtype), at)
    }
}

fn is_aligned(start: NonNull<u8>, dtype: DType) -> bool {
    start.addr().get().is_multiple_of(dtype.size_in_bytes())
}

/// A vector whose memory an array has, counted with the bytes of the host.
struct Taken<T> {
    data: Vec<T>,
    bytes: usize,
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        pool::discount(self.bytes);
    }
}

/// Vectors below that are copied: it costs less than giving their memory back later.
const TAKE_BYTES_MIN: usize = 4096;

/// Makes an array of the memory of a vector; the vector comes back if it is better copied: because it is small, goes to
/// another device, or a limit does not admit it.
pub(crate) fn of_vec<T: WithDType, P: Place + ?Sized>(
    op: &'static str,
    site: Site,
    data: Vec<T>,
    shape: Shape,
    at: &P,
) -> std::result::Result<Result<Proxy>, Vec<T>> {
    let (bytes, held) = (size_of_val(data.as_slice()), data.capacity() * size_of::<T>());
    let fits = shape.check(op, size_of::<T>()).is_ok_and(|count| count == data.len());
    if bytes < TAKE_BYTES_MIN || !fits || !at.device_of_place().is_cpu() || !pool::count(held) {
        return Err(data);
    }
    let mut foreign = Box::new(Foreign { read_only: false, keeper: Taken { data, bytes: held } });
    let start = NonNull::from(foreign.keeper.data.as_mut_slice()).cast();
    // SAFETY: the vector's memory, initialised and aligned for its elements, which lies outside the box; nobody touches
    // the vector until it is dropped there.
    #[allow(unsafe_code)]
    let buffer = unsafe { Buffer::foreign(Span::new(start, bytes), Device::Cpu, foreign) };
    Ok(adopt(op, site, buffer, (Layout::contiguous(shape), T::DTYPE), at))
}

/// Makes an array of a buffer that the caller filled.
fn adopt<P: Place + ?Sized>(
    op: &'static str,
    site: Site,
    buffer: Buffer,
    (layout, dtype): (Layout, DType),
    at: &P,
) -> Result<Proxy> {
    call(op, site, |local| {
        let storage = Storage::new(local, op, buffer)?;
        place(local, op, Payload { dtype, layout, storage, node: None }, at, site)
    })
}
