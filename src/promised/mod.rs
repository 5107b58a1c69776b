//! Memory that is what users promise: by address ([`Proxy::from_blob`]), in the structures of DLPack
//! ([`DlPack::from_raw`]), and in files that are mapped. A layer above `nn`, since networks' files and workspaces are
//! mapped too.
//!
//! An exported array is a [`DlPack`]: a C structure that says where the elements lie, with a function that gives them
//! back. ndgc's end keeps the storage, as a view would; the other's end is a keeper of foreign memory. So the bytes are
//! freed once, by whichever side ends last, on whatever thread.
//!
//! The unsafe code rests on these promises: it follows addresses of others, and maps files that nobody changes. What
//! ndgc exports is a box of its own, which its deleter ends once.

#![allow(unsafe_code)]

pub(crate) mod dlpack;

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::Mmap;

use crate::base::{
    call::Call,
    contain::drop_contained,
    dtype::{DType, WithDType},
    error::{Error, Result},
    layout::Layout,
    shape::{MAX_RANK, Shape},
};
use crate::device::{
    Device,
    buffer::{Buffer, Foreign, Span},
    host::mapped::MappedBytes,
};
use crate::io::safetensors::MmapedSafetensors;
use crate::memory::{proxy::Proxy, storage::Storage, switch, workspace::config::WorkspaceConfigBuilder};
use crate::nn::VarBuilder;
use crate::ops::{
    call::{
        compose::argument,
        exec::{device, enter, pin, place},
        place::Place,
    },
    exchange::foreign::{adopt, is_aligned},
};
use crate::quantized::gguf_file::MmapedContent;
use dlpack::{
    DLManagedTensor, DLManagedTensorVersioned, DLTensor, READ_ONLY, VERSION, code_of, dtype_of, place_of, reaches,
};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::DLManagedTensor {}
    impl Sealed for super::DLManagedTensorVersioned {}
}

/// One of the two forms of a managed array. Sealed.
pub trait Managed: sealed::Sealed + Sized + 'static {
    #[doc(hidden)]
    fn new(tensor: DLTensor, context: *mut c_void, read_only: bool) -> Self;
    #[doc(hidden)]
    fn tensor(&self) -> &DLTensor;
    #[doc(hidden)]
    fn context(&self) -> *mut c_void;
    /// Whether nobody may write; `None`: this form cannot say so.
    #[doc(hidden)]
    fn read_only(&self) -> Option<bool>;
    /// The version, if it is not ours.
    #[doc(hidden)]
    fn other_version(&self) -> Option<u32>;
    #[doc(hidden)]
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
    /// The deleter of what ndgc exports: the same address each time, by which it knows its own.
    #[doc(hidden)]
    fn own_deleter() -> unsafe extern "C" fn(*mut Self);
}

/// What ends an export.
///
/// # Safety
/// `managed` is what `export` gave out, and nobody uses it from here on.
unsafe extern "C" fn give_back(managed: *mut DLManagedTensor) {
    // A forked child frees nothing: another thread may have had a lock when it was forked.
    if switch::forked() {
        return;
    }
    // SAFETY: a deleter is called once, with what it came with: the box that `export` made.
    unsafe { drop(Box::from_raw((*managed).manager_ctx.cast::<Export<DLManagedTensor>>())) }
}

/// As [`give_back`].
///
/// # Safety
/// As that of [`give_back`].
unsafe extern "C" fn give_back_versioned(managed: *mut DLManagedTensorVersioned) {
    // As in `give_back`.
    if switch::forked() {
        return;
    }
    // SAFETY: as in `give_back`.
    unsafe { drop(Box::from_raw((*managed).manager_ctx.cast::<Export<DLManagedTensorVersioned>>())) }
}

// A function may have several addresses; a static has one value.
static GIVE_BACK: unsafe extern "C" fn(*mut DLManagedTensor) = give_back;
static GIVE_BACK_VERSIONED: unsafe extern "C" fn(*mut DLManagedTensorVersioned) = give_back_versioned;

impl Managed for DLManagedTensor {
    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, _read_only: bool) -> Self {
        DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(GIVE_BACK) }
    }

    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }

    fn read_only(&self) -> Option<bool> {
        None
    }

    fn other_version(&self) -> Option<u32> {
        None
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }

    fn own_deleter() -> unsafe extern "C" fn(*mut Self) {
        GIVE_BACK
    }
}

impl Managed for DLManagedTensorVersioned {
    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, read_only: bool) -> Self {
        let flags = if read_only { READ_ONLY } else { 0 };
        let deleter = Some(GIVE_BACK_VERSIONED);
        DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter, flags, dl_tensor }
    }

    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }

    fn read_only(&self) -> Option<bool> {
        Some(self.flags & READ_ONLY != 0)
    }

    fn other_version(&self) -> Option<u32> {
        (self.version.major != VERSION.major).then_some(self.version.major)
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }

    fn own_deleter() -> unsafe extern "C" fn(*mut Self) {
        GIVE_BACK_VERSIONED
    }
}

/// What an export keeps: the storage, as a view does, and what the structure points to.
struct Export<M> {
    dims: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
    dtype: DType,
    layout: Layout,
    storage: Storage,
    managed: Option<M>,
}

/// An array on its way between libraries. Gives it back when dropped.
pub struct DlPack<M: Managed = DLManagedTensorVersioned>(NonNull<M>);

// SAFETY: the structure is this value's alone; what `from_raw` promises allows the deleter on any thread, and ours is.
unsafe impl<M: Managed> Send for DlPack<M> {}
// SAFETY: a shared pack is only looked at.
unsafe impl<M: Managed> Sync for DlPack<M> {}

impl<M: Managed> fmt::Debug for DlPack<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DlPack").field(self.managed().tensor()).finish()
    }
}

impl<M: Managed> DlPack<M> {
    /// Takes over what another library exported.
    ///
    /// # Safety
    /// - `raw` points to a managed array of this form, whose fields say what is there, that nobody else takes over.
    /// - Until its deleter is called, all bytes from its lowest to its highest element are memory of the device, and on
    ///   the host initialised: those between the elements of a strided array too, whatever they hold. An element that
    ///   is a `bool` is 0 or 1.
    /// - Until then nobody else writes to the elements; unless it says that it is read-only, nobody else reads them
    ///   while ndgc changes them. Of the bytes between them, which ndgc does not change, the same holds while an
    ///   operation on the array runs.
    /// - The deleter may be called on any thread.
    /// - On another device than the host, what was submitted to fill the elements has ended, and ndgc's work on them is
    ///   submitted to one stream only.
    pub unsafe fn from_raw(raw: NonNull<M>) -> Self {
        DlPack(raw)
    }

    /// Hands it to another library, which calls its deleter once.
    pub fn into_raw(self) -> NonNull<M> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// The structure.
    pub fn managed(&self) -> &M {
        // SAFETY: by the promise of `from_raw`, or as `export` made it, it is there until the deleter is called.
        unsafe { self.0.as_ref() }
    }
}

impl<M: Managed> Drop for DlPack<M> {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter() {
            // SAFETY: this value is the array's only owner; nothing of it is used after this.
            unsafe {
                deleter(self.0.as_ptr());
            }
        }
    }
}

fn export<M: Managed>(call: Call, array: &Proxy) -> Result<DlPack<M>> {
    enter(call, |context| {
        let pins = pin(context, call.op, [array])?;
        let [a] = pins.arrays();
        let there = place_of(call.op, device(&a))?;
        device(&a).synchronize()?;
        let (layout, dtype) = (*a.layout, a.dtype);
        let read_only = a.storage.buffer().is_read_only();
        let data = a.storage.buffer().span().ptr().as_ptr();
        let mut export = Box::new(Export::<M> {
            dims: [0; MAX_RANK],
            strides: [0; MAX_RANK],
            dtype,
            layout,
            storage: a.storage.clone(),
            managed: None,
        });
        for (to, &dim) in export.dims.iter_mut().zip(layout.dims()) {
            *to = dim as i64;
        }
        for (to, &stride) in export.strides.iter_mut().zip(layout.strides()) {
            *to = stride as i64;
        }
        let is_empty = layout.shape().elem_count() == 0;
        let first = if is_empty { 0 } else { layout.offset() * dtype.size_in_bytes() };
        let raw = Box::into_raw(export);
        // SAFETY: the box that was just made; the structure's pointers lead into it, and `give_back` ends both.
        let managed = unsafe {
            let tensor = DLTensor {
                data: if is_empty { std::ptr::null_mut() } else { data.wrapping_add(first).cast() },
                device: there,
                ndim: layout.shape().rank() as i32,
                dtype: code_of(dtype),
                shape: (&raw mut (*raw).dims).cast(),
                strides: (&raw mut (*raw).strides).cast(),
                byte_offset: 0,
            };
            (&raw mut (*raw).managed).write(Some(M::new(tensor, raw.cast(), read_only)));
            NonNull::from((*raw).managed.as_mut().expect("just written"))
        };
        let pack = DlPack(managed);
        if read_only && pack.managed().read_only().is_none() {
            return Err(Error::ReadOnly { op: call.op, array: array.key().to_string(), site: Some(call.site) });
        }
        Ok(pack)
    })
}

/// The shape, the strides if it has some, and the dtype that a structure names.
fn read<M: Managed>(op: &'static str, pack: &DlPack<M>) -> Result<(Shape, Option<[isize; MAX_RANK]>, DType)> {
    let tensor = pack.managed().tensor();
    let rank = usize::try_from(tensor.ndim).unwrap_or(usize::MAX);
    if rank > MAX_RANK {
        return Err(Error::rank_too_large(op, rank));
    }
    let list = |at: *mut i64| {
        let mut all = [0i64; MAX_RANK];
        if rank > 0 && !at.is_null() {
            // SAFETY: the structure says what is there, by the promise of `from_raw`, or since `export` made it: `ndim`
            // numbers at each of its lists.
            all[..rank].copy_from_slice(unsafe { std::slice::from_raw_parts(at, rank) });
        }
        all
    };
    let (sizes, steps) = (list(tensor.shape), list(tensor.strides));
    let mut dims = [0; MAX_RANK];
    for (to, &size) in dims.iter_mut().zip(&sizes[..rank]) {
        let Ok(size) = usize::try_from(size) else {
            return argument(op, "shape", format!("{:?}", &sizes[..rank]), "sizes from 0");
        };
        *to = size;
    }
    let Some(dtype) = dtype_of(tensor.dtype) else {
        return argument(op, "dtype", format!("{:?}", tensor.dtype), "a dtype of ndgc, of one lane");
    };
    let strides = (!tensor.strides.is_null()).then(|| steps.map(|step| step as isize));
    Ok((Shape::from(&dims[..rank]), strides, dtype))
}

/// # Exchange: with other libraries, by DLPack
impl Proxy {
    /// The array for another library, without a copy: views of it, and it itself, share the bytes with what that
    /// library makes of it. They stay until the pack, or who took it over, gives them back, also if the array is
    /// closed.
    ///
    /// Gradients do not follow. Waits for the device. Whoever takes the pack over by [`DlPack::into_raw`] sees to it
    /// that nobody reads the bytes while somebody writes to them; ndgc asks nobody outside.
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::Argument`] for a simulated device.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((2, 3))?;
    /// let b = Tensor::from_dlpack(a.t()?.to_dlpack()?, &Device::Cpu)?;
    /// a.zero_()?;
    /// assert_eq!(b.to_vec2::<f32>()?, [[0., 0.], [0., 0.], [0., 0.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn to_dlpack(&self) -> Result<DlPack> {
        export(Call::here("to_dlpack"), self)
    }

    /// As [`Proxy::to_dlpack`], in the form without a version.
    ///
    /// # Errors
    /// As [`Proxy::to_dlpack`]; [`Error::ReadOnly`] for memory that was lent for reading, which this form cannot say.
    #[track_caller]
    pub fn to_dlpack_unversioned(&self) -> Result<DlPack<DLManagedTensor>> {
        export(Call::here("to_dlpack_unversioned"), self)
    }

    /// An array of another library's, without a copy, where it is: `at` names that device, or a manager on it. It is
    /// given back when the last array, view or saved value of it has gone, on the thread that closes that; or at once
    /// if this fails. What ndgc exported itself comes back as a view of the array that it was.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if it is elsewhere; [`Error::Argument`] for another version of DLPack, a dtype that
    /// there is not, a negative size, or an address that is not aligned for the dtype; [`Error::RankTooLarge`],
    /// [`Error::SizeOverflow`]; [`Error::ManagerClosed`], [`Error::ManagerCapped`].
    #[track_caller]
    pub fn from_dlpack<M: Managed, P: Place + ?Sized>(pack: DlPack<M>, at: &P) -> Result<Self> {
        let call = Call::here("from_dlpack");
        let managed = pack.managed();
        if let Some(major) = managed.other_version() {
            return argument(call, "version", major, "version 1 of DLPack");
        }
        let tensor = managed.tensor();
        let here = at.device_of_place();
        if !reaches(here, tensor.device) {
            let there = format!("device {} of DLPack's type {}", tensor.device.device_id, tensor.device.device_type);
            return Err(Error::device_mismatch(call, there, here));
        }
        let own = M::own_deleter();
        if managed.deleter().is_some_and(|deleter| std::ptr::fn_addr_eq(deleter, own)) {
            // SAFETY: only `export` uses this deleter, with its own box as the context; `pack` keeps it.
            let export = unsafe { &*managed.context().cast::<Export<M>>() };
            let Export { dtype, layout, storage, .. } = export;
            return enter(call, |context| place(call, context, (*dtype, layout), storage.clone(), (&at, &at.owner())));
        }
        let (shape, strides, dtype) = call.named(read(call.op, &pack))?;
        let offset = usize::try_from(tensor.byte_offset).unwrap_or(usize::MAX);
        let ptr =
            if tensor.data.is_null() { std::ptr::null_mut() } else { tensor.data.cast::<u8>().wrapping_add(offset) };
        let read_only = managed.read_only() == Some(true);
        let strides = strides.as_ref().map(|strides| &strides[..shape.rank()]);
        let blob = Blob { ptr, shape, strides, dtype };
        // SAFETY: what `from_raw` promises is what is asked here, with the pack as the keeper.
        unsafe { of_memory(call, blob, Box::new(Foreign { read_only, counted: false, active: 0, keeper: pack }), &at) }
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

/// # Exchange: memory by address
impl Proxy {
    /// An array of memory at `ptr`, without a copy: its first element (index 0 on each axis) lies there, and `strides`
    /// counts elements, also backwards; `None` is row-major. The array may be changed in place. `device` is where the
    /// memory is, and what becomes of the array's owner is as of [`Proxy::zeros`].
    ///
    /// `deleter` is called once: when the last array, view or saved value has gone, on the thread that closes it; or at
    /// once if this call fails. On other devices than the host what was submitted ends before.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let mut numbers = vec![1f32, 2., 3.];
    /// let first = numbers.as_mut_ptr();
    /// // SAFETY: the vector is the deleter's, and is used by nobody else until that is called.
    /// let x = unsafe { Tensor::from_blob(first, 3, None, &Device::Cpu, move || drop(numbers))? };
    /// x.affine_(2., 0.)?; // in the vector's memory
    /// assert_eq!(x.to_vec1::<f32>()?, [2., 4., 6.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if `ptr` is null or not aligned for the dtype, or there is not a stride for each axis; for a
    /// simulated device, which has no addresses; [`Error::SizeOverflow`]; as [`Proxy::zeros`].
    ///
    /// # Safety
    /// - Until `deleter` is called, all bytes from the lowest to the highest element that shape and strides reach are
    ///   memory of the device, and on the host initialised: those between the elements too, such as the other columns
    ///   where the array is one column of a matrix. What they hold does not matter; an element that is a `bool` is 0 or
    ///   1.
    /// - Until then nobody else writes to the elements, and nobody else reads them while the array is changed in place.
    ///   Of the bytes between them, which ndgc does not change, the same holds while an operation on the array runs.
    /// - On another device than the host, what was submitted to fill them has ended, and work on the array is submitted
    ///   to one stream only: foreign memory has no place in the order between streams.
    #[track_caller]
    pub unsafe fn from_blob<T: WithDType, S: Into<Shape>, P: Place + ?Sized>(
        ptr: *mut T,
        shape: S,
        strides: Option<&[isize]>,
        at: &P,
        deleter: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let keeper = Deleter(Mutex::new(Some(deleter)));
        let foreign = Box::new(Foreign { read_only: false, counted: false, active: 0, keeper });
        let blob = Blob { ptr: ptr.cast(), shape: shape.into(), strides, dtype: T::DTYPE };
        // SAFETY: the caller's promises.
        unsafe { of_memory(Call::here("from_blob"), blob, foreign, &at) }
    }
}

/// Where an array lies in memory that is not ours.
struct Blob<'a> {
    /// Its first element.
    ptr: *mut u8,
    shape: Shape,
    strides: Option<&'a [isize]>,
    dtype: DType,
}

/// An array of memory that `foreign` keeps.
///
/// # Safety
/// As of [`Proxy::from_blob`], for a keeper in the place of its deleter.
unsafe fn of_memory(call: Call, blob: Blob<'_>, foreign: Box<Foreign>, at: &dyn Place) -> Result<Proxy> {
    let (device, dtype) = (at.device_of_place(), blob.dtype);
    let (start, bytes, layout) = match found(call, blob, device) {
        Ok(found) => found,
        Err(error) => {
            drop_contained(foreign);
            return Err(error);
        }
    };
    // SAFETY: by the caller's promise all bytes from the lowest place that the layout reaches to the highest, those
    // between the elements too, are initialised memory of the device that stays until the keeper is dropped; the
    // address was found to be aligned.
    let buffer = unsafe { Buffer::foreign(Span::new(start, bytes), device.clone(), foreign) };
    adopt(call, buffer, (layout, dtype), at)
}

/// The lowest place that an array in such memory reaches, the bytes from there to the end of the highest, and its
/// layout.
fn found(call: Call, blob: Blob<'_>, device: &Device) -> Result<(NonNull<u8>, usize, Layout)> {
    let Blob { ptr, shape, strides, dtype } = blob;
    if matches!(device, Device::Sim(_)) {
        return argument(call, "device", device, "the host or a CUDA device: a simulated one has no addresses");
    }
    let size = dtype.size_in_bytes();
    shape.check(call, size)?;
    let (layout, places) = match strides {
        None => (Layout::contiguous(shape), shape.elem_count()),
        Some(strides) if strides.len() != shape.rank() => {
            return argument(call, "strides", format!("{strides:?}"), "a stride for each axis");
        }
        Some(strides) => {
            let counted = Layout::strided(shape, strides)
                .filter(|(_, places)| places.checked_mul(size).is_some_and(|bytes| isize::try_from(bytes).is_ok()));
            let overflow = || Error::size_overflow(call, shape.dims(), size);
            counted.ok_or_else(overflow)?
        }
    };
    let first = match NonNull::new(ptr) {
        _ if places == 0 => NonNull::<u64>::dangling().cast(),
        Some(first) if is_aligned(first, dtype) => first,
        _ => return argument(call, "ptr", format!("{ptr:?}"), "an address that is aligned for the dtype"),
    };
    let lowest = first.as_ptr().wrapping_sub(layout.offset() * size);
    let Some(start) = NonNull::new(lowest) else {
        return argument(call, "strides", format!("{strides:?}"), "places behind the beginning of memory");
    };
    Ok((start, places * size, layout))
}

impl MmapedSafetensors {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`].
    ///
    /// # Safety
    /// As [`MmapedSafetensors::multi`].
    #[track_caller]
    pub unsafe fn new<P: AsRef<Path>>(path: P) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::multi(&[path]) }
    }

    /// Maps several files and reads their headers.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor, safetensors::MmapedSafetensors};
    /// let path = std::env::temp_dir().join(format!("ndgc-mapped-{}.safetensors", std::process::id()));
    /// Tensor::new(&[1f32, 2.], &Device::Cpu)?.save_safetensors("w", &path)?;
    /// // SAFETY: nobody else knows of the file.
    /// let weights = unsafe { MmapedSafetensors::multi(&[&path])? };
    /// let w = weights.load("w", &Device::Cpu)?; // the file's own bytes: nothing is copied
    /// assert_eq!(w.to_vec1::<f32>()?, [1., 2.]);
    /// assert!(matches!(w.affine_(2., 0.), Err(Error::ReadOnly { .. })));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`].
    ///
    /// # Safety
    /// Nobody changes the files while an array of them lives: what is read would change under the reader. A file that
    /// is cut short ends the process with SIGBUS when bytes behind its new end are read.
    #[track_caller]
    pub unsafe fn multi<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        let mut all = Vec::with_capacity(paths.len());
        for path in paths {
            let path = path.as_ref();
            // SAFETY: the caller's promise.
            let mapping = unsafe { map(path)? };
            all.push((path, mapping));
        }
        Self::of(all)
    }
}

/// Maps a file.
///
/// # Safety
/// As [`MmapedSafetensors::multi`].
#[track_caller]
unsafe fn map(path: &Path) -> Result<Arc<dyn AsRef<[u8]> + Send + Sync>> {
    let site = Location::caller();
    let fail = |error: std::io::Error| Error::file(Some(path), None, format!("cannot be mapped: {error}")).at(site);
    let special = || fail(std::io::Error::other("it is not a regular file"));
    // Before it is opened: a pipe without a writer is waited for.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(special());
    }
    let file = File::open(path).map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(special());
    }
    // SAFETY: the bytes are those of the file until the mapping is dropped, since nobody changes it by the caller's
    // promise.
    let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
    let counted = MappedBytes::new(map.len());
    Ok(Arc::new(MappedFile { map, _counted: counted }))
}

/// A mapping, whose bytes are counted.
struct MappedFile {
    map: Mmap,
    _counted: MappedBytes,
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl MmapedContent {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`].
    ///
    /// # Safety
    /// As [`MmapedSafetensors::multi`].
    #[track_caller]
    pub unsafe fn new<P: AsRef<Path>>(path: P) -> Result<Self> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { map(path.as_ref())? };
        Self::of(path.as_ref(), bytes)
    }
}

impl VarBuilder<'_> {
    /// Mapped files of safetensors: weights of their dtype on the host are the files' own bytes.
    ///
    /// # Errors
    /// As [`MmapedSafetensors::multi`].
    ///
    /// # Safety
    /// As [`MmapedSafetensors::multi`].
    #[track_caller]
    pub unsafe fn from_mmaped_safetensors<P: AsRef<Path>>(paths: &[P], dtype: DType, dev: &Device) -> Result<Self> {
        // SAFETY: the caller's promise.
        let tensors = unsafe { MmapedSafetensors::multi(paths)? };
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }
}

impl WorkspaceConfigBuilder {
    /// The file of a mapped workspace. It is made if it is not there, is as long as it is or as `initial_size`,
    /// whichever is more, and stays; without a path, the file is a temporary one, which nobody else can open.
    ///
    /// ```
    /// # use ndgc::{DType, Device, LocationPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let path = std::env::temp_dir().join(format!("ndgc-workspace-{}", std::process::id()));
    /// let builder = WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap).initial_size(4096);
    /// // SAFETY: nobody else knows of the file.
    /// let config = unsafe { builder.temp_file_path(&path) }.build()?;
    /// Workspace::cycle("FILE", &config, || Tensor::ones(3, DType::F32, &Device::Cpu).map(drop))?;
    /// let found = Workspace::cycle("FILE", &config, || Tensor::empty(3, DType::F32, &Device::Cpu)?.to_vec1::<f32>())?;
    /// assert_eq!(found, [1.; 3]); // what the file has there
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Safety
    /// While a workspace of these settings lives, nobody else writes to the file or shortens it: no other process, and
    /// no other handle of this one. Arrays would change under their readers, and an access behind a new end ends the
    /// process with SIGBUS. Workspaces keep each other out by a lock, but that is advisory: programs that do not ask
    /// for it are not kept out.
    pub unsafe fn temp_file_path(self, path: impl Into<PathBuf>) -> Self {
        self.with_file(path.into())
    }
}
