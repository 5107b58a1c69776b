//! Arrays in memory that ndgc did not allocate: a vector's, a mapped file's, another library's.
//!
//! A *keeper* keeps such memory. It lives in the array's storage, which views, saved values and running operations
//! share, and is dropped with the last of them: on whatever thread closes that, once, and by no lock of ours.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::{Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    Device,
    buffer::{Buffer, Foreign, Span},
    host::pool,
};
use crate::memory::{proxy::Proxy, registry::Parts, storage::Storage, workspace};
use crate::ops::call::{
    compose::argument,
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
pub(crate) fn of_bytes<K, P>(
    call: Call,
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
        return Err(Error::Argument { op: call.op, argument: "range", value, expected: "a range inside the bytes" });
    };
    if shape.check(call.op, dtype.size_in_bytes())? * dtype.size_in_bytes() != bytes.len() {
        let given = bytes.len() / dtype.size_in_bytes();
        return Err(Error::ElementCount { op: call.op, given, shape: shape.dims().to_vec() });
    }
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        let (argument, value) = ("truth values", "another byte".to_owned());
        return Err(Error::Argument { op: call.op, argument, value, expected: "bytes of 0 and 1" });
    }
    let start = NonNull::from(bytes).cast::<u8>();
    if !at.device_of_place().is_cpu() || !is_aligned(start, dtype) {
        return make(call, shape, dtype, at, false, |out| {
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
    adopt(call, buffer, (Layout::contiguous(shape), dtype), at)
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
    /// [`Error::Argument`] if the range leaves the bytes, or truth values are not 0 or 1; [`Error::ElementCount`] if the
    /// shape needs another number of them; as [`Proxy::zeros`].
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
        of_bytes(Call::here("from_shared"), keeper, range, (shape.into(), dtype), at)
    }
}

/// What a user gave to be called at the end.
struct Deleter<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Drop for Deleter<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            f();
        }
    }
}

impl Proxy {
    /// An array of memory at `ptr`, without a copy: its first element (index 0 on each axis) lies there, and `strides`
    /// counts elements, also backwards; `None` is row-major. The array may be changed in place. `device` is where the
    /// memory is, and what becomes of the array's owner is as of [`Proxy::zeros`].
    ///
    /// `deleter` is called once: when the last array, view or saved value has gone, on the thread that closes it; or at
    /// once if this call fails. On other devices than the host what was submitted ends before.
    ///
    /// # Errors
    /// [`Error::Argument`] if `ptr` is null or not aligned for the dtype, or there is not a stride for each axis; for a
    /// simulated device, which has no addresses; [`Error::SizeOverflow`]; as [`Proxy::zeros`].
    ///
    /// # Safety
    /// - Until `deleter` is called, all bytes that shape and strides reach are memory of the device, and on the host
    ///   initialised (a `bool` is 0 or 1).
    /// - Until then nobody else writes to them, and nobody else reads them while the array is changed in place.
    /// - On another device than the host, what was submitted to fill them has ended, and work on the array is submitted
    ///   to one stream only: foreign memory has no place in the order between streams.
    #[track_caller]
    #[allow(unsafe_code)]
    pub unsafe fn from_blob<T: WithDType, S: Into<Shape>, P: Place + ?Sized>(
        ptr: *mut T,
        shape: S,
        strides: Option<&[isize]>,
        at: &P,
        deleter: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let foreign = Box::new(Foreign { read_only: false, keeper: Deleter(Mutex::new(Some(deleter))) });
        let blob = Blob { ptr: ptr.cast(), shape: shape.into(), strides, dtype: T::DTYPE };
        // SAFETY: the caller's promises.
        unsafe { of_memory(Call::here("from_blob"), blob, foreign, at) }
    }
}

/// Where an array lies in memory that is not ours.
pub(crate) struct Blob<'a> {
    /// Its first element.
    pub(crate) ptr: *mut u8,
    pub(crate) shape: Shape,
    pub(crate) strides: Option<&'a [isize]>,
    pub(crate) dtype: DType,
}

/// An array of memory that `foreign` keeps.
///
/// # Safety
/// As of [`Proxy::from_blob`], for a keeper in the place of its deleter.
#[allow(unsafe_code)]
pub(crate) unsafe fn of_memory<P: Place + ?Sized>(
    call: Call,
    blob: Blob<'_>,
    foreign: Box<Foreign>,
    at: &P,
) -> Result<Proxy> {
    let Blob { ptr, shape, strides, dtype } = blob;
    let device = at.device_of_place();
    if matches!(device, Device::Sim(_)) {
        return argument(call.op, "device", device, "the host or a CUDA device: a simulated one has no addresses");
    }
    let size = dtype.size_in_bytes();
    shape.check(call.op, size)?;
    let (layout, places) = match strides {
        None => (Layout::contiguous(shape), shape.elem_count()),
        Some(strides) if strides.len() != shape.rank() => {
            return argument(call.op, "strides", format!("{strides:?}"), "a stride for each axis");
        }
        Some(strides) => {
            let counted = Layout::strided(shape, strides)
                .filter(|(_, places)| places.checked_mul(size).is_some_and(|bytes| isize::try_from(bytes).is_ok()));
            let over = || Error::SizeOverflow { op: call.op, shape: shape.dims().to_vec(), elem_bytes: size };
            counted.ok_or_else(over)?
        }
    };
    let first = match NonNull::new(ptr) {
        _ if places == 0 => NonNull::<u64>::dangling().cast(),
        Some(first) if is_aligned(first, dtype) => first,
        _ => return argument(call.op, "ptr", format!("{ptr:?}"), "an address that is aligned for the dtype"),
    };
    let lowest = first.as_ptr().wrapping_sub(layout.offset() * size);
    let Some(start) = NonNull::new(lowest) else {
        return argument(call.op, "strides", format!("{strides:?}"), "places behind the beginning of memory");
    };
    // SAFETY: by the caller's promise every place that the layout reaches, from the lowest to the highest, is memory of
    // the device that stays until the keeper is dropped; the address was found to be aligned.
    let buffer = unsafe { Buffer::foreign(Span::new(start, places * size), device.clone(), foreign) };
    adopt(call, buffer, (layout, dtype), at)
}

pub(crate) fn is_aligned(start: NonNull<u8>, dtype: DType) -> bool {
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
    call: Call,
    data: Vec<T>,
    shape: Shape,
    at: &P,
) -> std::result::Result<Result<Proxy>, Vec<T>> {
    let (bytes, held) = (size_of_val(data.as_slice()), data.capacity() * size_of::<T>());
    let fits = shape.check(call.op, size_of::<T>()).is_ok_and(|count| count == data.len());
    if bytes < TAKE_BYTES_MIN || !fits || !at.device_of_place().is_cpu() || workspace::is_open() || !pool::count(held) {
        return Err(data);
    }
    let mut foreign = Box::new(Foreign { read_only: false, keeper: Taken { data, bytes: held } });
    let start = NonNull::from(foreign.keeper.data.as_mut_slice()).cast();
    // SAFETY: the vector's memory, initialised and aligned for its elements, which lies outside the box; nobody touches
    // the vector until it is dropped there.
    #[allow(unsafe_code)]
    let buffer = unsafe { Buffer::foreign(Span::new(start, bytes), Device::Cpu, foreign) };
    Ok(adopt(call, buffer, (Layout::contiguous(shape), T::DTYPE), at))
}

/// Makes an array of a buffer that the caller filled.
pub(crate) fn adopt<P: Place + ?Sized>(
    call: Call,
    buffer: Buffer,
    (layout, dtype): (Layout, DType),
    at: &P,
) -> Result<Proxy> {
    enter(call, |local| {
        let storage = Storage::new(local, call.op, buffer)?;
        place(call, local, Parts { dtype, layout: &layout, storage, node: None }, &at)
    })
}
