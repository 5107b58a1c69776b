//! Arrays in memory that ndgc did not allocate: a vector's, a mapped file's. `promised/mod.rs` has those of others'
//! addresses.
//!
//! A *keeper* keeps such memory. It lives in the array's storage, which views, saved values and running operations
//! share, and is dropped with the last of them: on whatever thread closes that, once, and by no lock of ours.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::{
    call::Call,
    contain::drop_contained,
    dtype::{DType, WithDType},
    error::{Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::{buffer::Buffer, host::pool};
use crate::memory::{
    proxy::Proxy,
    storage::Storage,
    workspace::{self, planning::UNPLANNED},
};
use crate::ops::call::{
    exec::{enter, place},
    make::make,
    place::Place,
};

/// An array of bytes that lie in somebody's memory, in row-major order. Read-only, and without a copy, if it is made
/// on the host and the bytes are aligned for the dtype; else a copy, which may be changed.
///
/// `range` is in bytes.
///
/// # Errors
/// [`Error::Argument`] if the range leaves the bytes, or truth values are not 0 or 1; [`Error::ElementCount`] if the
/// shape needs another number of them; as [`Proxy::zeros`].
pub(crate) fn of_bytes<K: AsRef<[u8]> + Send + Sync + ?Sized + 'static>(
    call: Call,
    keeper: Arc<K>,
    range: Range<usize>,
    (shape, dtype): (Shape, DType),
    at: &dyn Place,
) -> Result<Proxy> {
    let made = of_kept(call, &keeper, &range, (shape, dtype), at);
    // The last of them, if this is a copy or was refused.
    drop_contained(keeper);
    made
}

fn of_kept<K: AsRef<[u8]> + Send + Sync + ?Sized + 'static>(
    call: Call,
    keeper: &Arc<K>,
    range: &Range<usize>,
    (shape, dtype): (Shape, DType),
    at: &dyn Place,
) -> Result<Proxy> {
    if at.device_of_place().is_cpu() {
        let buffer = Buffer::shared(Arc::clone(keeper), |all| part_of(call, all, range, (&shape, dtype)))?;
        if is_aligned(buffer.span().ptr(), dtype) {
            return adopt(call, buffer, (Layout::contiguous(shape), dtype), at);
        }
    }
    let bytes = part_of(call, (**keeper).as_ref(), range, (&shape, dtype))?;
    make(call, shape, dtype, at, false, &mut |out| out.buffer().upload(bytes))
}

/// The bytes of an array in somebody's.
fn part_of<'a>(call: Call, all: &'a [u8], range: &Range<usize>, (shape, dtype): (&Shape, DType)) -> Result<&'a [u8]> {
    let Some(bytes) = all.get(range.clone()) else {
        return Err(Error::argument(call, "range", format!("{range:?}"), "a range inside the bytes"));
    };
    if shape.check(call, dtype.size_in_bytes())? * dtype.size_in_bytes() != bytes.len() {
        let given = bytes.len() / dtype.size_in_bytes();
        return Err(Error::element_count(call, given, shape.dims()));
    }
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        let (argument, value) = ("truth values", "another byte".to_owned());
        return Err(Error::argument(call, argument, value, "bytes of 0 and 1"));
    }
    Ok(bytes)
}

/// # Exchange: memory of others
impl Proxy {
    /// An array of bytes that `keeper` holds, in row-major order and the machine's byte order: of a mapped file, of a
    /// slice. `range` is the array's part of them; several arrays may share one keeper.
    ///
    /// On the host there is no copy if the bytes are aligned for the dtype. The array then cannot be changed in place
    /// ([`Error::ReadOnly`]), its bytes are not counted with the device's, and the keeper is let go when the last
    /// array, view or saved value of it has gone. Otherwise the array is a copy like any other.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range leaves the bytes, or truth values are not 0 or 1; [`Error::ElementCount`] if
    /// the shape needs another number of them; as [`Proxy::zeros`].
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
        of_bytes(Call::here("from_shared"), keeper, range, (shape.into(), dtype), &at)
    }
}

pub(crate) fn is_aligned(start: NonNull<u8>, dtype: DType) -> bool {
    start.addr().get().is_multiple_of(dtype.size_in_bytes())
}

/// Bytes of a vector that an array has, counted with those of the host.
struct CountedBytes(usize);

impl Drop for CountedBytes {
    fn drop(&mut self) {
        pool::discount(self.0);
    }
}

/// Vectors below that are copied: it costs less than giving their memory back later.
const TAKE_BYTES_MIN: usize = 4096;

/// Makes an array of the memory of a vector of elements, or of unsigned integers of their size; the vector comes back
/// if it is better copied: because it is small, goes to another device, or a limit does not admit it.
pub(crate) fn of_vec<T: WithDType>(
    call: Call,
    data: Vec<T>,
    (shape, dtype): (Shape, DType),
    at: &dyn Place,
) -> std::result::Result<Result<Proxy>, Vec<T>> {
    let (bytes, held) = (size_of_val(data.as_slice()), data.capacity() * size_of::<T>());
    let fits = shape.check(call, size_of::<T>()).is_ok_and(|count| count == data.len());
    if bytes < TAKE_BYTES_MIN || !fits || !at.device_of_place().is_cpu() || workspace::is_open() || !pool::count(held) {
        return Err(data);
    }
    let buffer = Buffer::of_vec(data, CountedBytes(held));
    Ok(adopt(call, buffer, (Layout::contiguous(shape), dtype), at))
}

/// Makes an array of a buffer that the caller filled.
pub(crate) fn adopt(call: Call, buffer: Buffer, (layout, dtype): (Layout, DType), at: &dyn Place) -> Result<Proxy> {
    enter(call, |context| {
        let storage = Storage::new(context, call.op, buffer, UNPLANNED)?;
        place(call, context, (dtype, &layout), storage, (at, &at.owner()))
    })
}
