//! The calls of the CUDA libraries that are made here, each as a function that is safe to call: what `raw.rs` looks up,
//! with the promises that its documentation wants.
//!
//! - A handle is made here by the call that returns it, and nowhere else. Those of contexts, pools, streams, events,
//!   modules and functions are copied freely and never destroyed, but for streams and events that nobody got; the
//!   others are taken from their place by what ends them.
//! - What a call writes goes to locals of the type that it names; lists are as long as it was told.
//! - Addresses of the device are numbers. A wrong one is an error of the driver, not undefined behaviour of this
//!   process; memory of the host that the device reaches is [`HostBytes`] alone.
//!
//! The unsafe code, all of those calls, rests on these three.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use cudarc::driver::sys::{CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED, CUmemLocationType};

use crate::device::cuda::raw::{
    self, Address, Answer, BlasHandle, CUmemPoolProps, Failure, Program, RawContext, RawDevice, RawEvent, RawFunction,
    RawGraph, RawGraphExec, RawId, RawModule, RawPool, RawRank, RawStream,
};

/// `CUmemPool_attribute`: the bytes that a pool keeps across synchronisations.
const RELEASE_THRESHOLD: c_int = 4;
/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream, which is never used here.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: c_uint = 3;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads' calls do not disturb a capture.
const THREAD_LOCAL: c_uint = 1;
/// `CUDA_ERROR_INVALID_CONTEXT`: no context is current, or another one is.
pub(super) const INVALID_CONTEXT: u32 = 201;
/// `CUDA_ERROR_INVALID_HANDLE`: what is named belongs to another context than the one that is current.
pub(super) const INVALID_HANDLE: u32 = 400;
/// At least the bytes of the largest struct that a kernel takes.
pub(super) const PARAMS_MAX: usize = 1024;

/// A handle that a library gave.
pub(super) struct Handle<T>(T);

// SAFETY: a word by which the driver finds what is its own; it accepts those of this list on every thread, and makes
// sure itself of what must not happen at the same time. Handles of cuBLAS and NVRTC are not among them.
unsafe impl<T: Shareable> Send for Handle<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Shareable> Sync for Handle<T> {}

impl<T: Copy> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> Copy for Handle<T> {}

impl<T: PartialEq> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Handles that the driver accepts on every thread.
pub(super) trait Shareable {}
impl Shareable for RawContext {}
impl Shareable for RawPool {}
impl Shareable for RawStream {}
impl Shareable for RawEvent {}
impl Shareable for RawModule {}
impl Shareable for RawFunction {}
impl Shareable for RawGraphExec {}

pub(super) type ContextHandle = Handle<RawContext>;
pub(super) type PoolHandle = Handle<RawPool>;
pub(super) type StreamHandle = Handle<RawStream>;
pub(super) type EventHandle = Handle<RawEvent>;
pub(super) type ModuleHandle = Handle<RawModule>;
pub(super) type FunctionHandle = Handle<RawFunction>;

/// What was recorded, until it is ready to run. Ended by [`CudaApi::instantiate`].
#[derive(Debug)]
pub(super) struct Recorded(RawGraph);

/// A captured section. Ended by [`CudaApi::destroy_section`]; without, it stays until the process ends.
#[derive(Debug)]
pub(super) struct ExecGraph(Handle<RawGraphExec>);

/// A number that a call writes.
fn number<T: Default>(call: impl FnOnce(*mut T) -> Answer) -> Answer<T> {
    let mut value = T::default();
    call(&mut value)?;
    Ok(value)
}

/// A handle that a call writes.
fn handle<T>(call: impl FnOnce(*mut *mut T) -> Answer) -> Answer<*mut T> {
    let mut value = ptr::null_mut();
    call(&mut value)?;
    Ok(value)
}

/// Ends what is in a place. It stays there if the call did nothing, since another context was current.
fn end<T>(place: &mut Option<T>, call: impl FnOnce(&T) -> Answer) -> Answer {
    let Some(ended) = place.take() else { return Ok(()) };
    let answer = call(&ended);
    if matches!(answer, Err(Failure { code: INVALID_CONTEXT, .. })) {
        *place = Some(ended);
    }
    answer
}

/// The driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct CudaApi(&'static raw::Cuda);

/// The driver, opened once; or what is missing.
pub(super) fn driver() -> Result<CudaApi, &'static str> {
    raw::driver().map(CudaApi)
}

/// Calls of the driver that take numbers and handles only, and those whose one result is a number or a handle: nothing
/// else can be wrong with their arguments.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $made:ty)? = $wrap:expr, |$api:ident $(, $out:ident)?| $call:expr;)*) => {
        impl CudaApi {
            $(
                $(#[$doc])*
                pub(super) fn $name(self, $($arg: $type),*) -> Answer$(<$made>)? {
                    let $api = self.0;
                    // SAFETY: handles are live, and results go to locals, as the head of this file says; the rest are
                    // numbers, of which the driver refuses wrong ones.
                    $wrap(|$($out)?| unsafe { $call })
                }
            )*
        }
    };
}

/// No result.
fn nothing(call: impl FnOnce() -> Answer) -> Answer {
    call()
}

/// A handle of the driver.
fn made<T>(call: impl FnOnce(*mut *mut T) -> Answer) -> Answer<Handle<*mut T>> {
    handle(call).map(Handle)
}

plain! {
    /// Comes before all other calls.
    init() = nothing, |api| api.init(0);
    device_count() -> c_int = number, |api, out| api.device_count(out);
    device(ordinal: c_int) -> RawDevice = number, |api, out| api.device_get(out, ordinal);
    device_memory(device: RawDevice) -> usize = number, |api, out| api.device_memory(out, device);
    attribute(which: c_int, device: RawDevice) -> c_int = number, |api, out| api.device_attribute(out, which, device);
    version() -> c_int = number, |api, out| api.driver_version(out);
    /// The primary context of a device; it is never released.
    retain(device: RawDevice) -> ContextHandle = made, |api, out| api.context_retain(out, device);
    make_current(context: ContextHandle) = nothing, |api| api.context_set(context.0);
    trim(pool: PoolHandle) = nothing, |api| api.pool_trim(pool.0, 0);
    /// Bytes of the device of the current context.
    alloc(bytes: usize) -> Address = number, |api, out| api.alloc(out, bytes);
    free(address: Address) = nothing, |api| api.free(address);
    /// Bytes of a pool, in the order of a stream.
    pool_alloc(bytes: usize, pool: PoolHandle, stream: StreamHandle) -> Address = number, |api, out|
        api.pool_alloc(out, bytes, pool.0, stream.0);
    pool_free(address: Address, stream: StreamHandle) = nothing, |api| api.pool_free(address, stream.0);
    fill_zero(address: Address, bytes: usize, stream: StreamHandle) = nothing, |api| api.set_bytes(address, 0, bytes, stream.0);
    make_stream() -> StreamHandle = made, |api, out| api.stream_create(out, NON_BLOCKING);
    synchronize(stream: StreamHandle) = nothing, |api| api.stream_synchronize(stream.0);
    wait(stream: StreamHandle, event: EventHandle) = nothing, |api| api.stream_wait(stream.0, event.0, 0);
    make_event() -> EventHandle = made, |api, out| api.event_create(out, NO_TIMING);
    record(event: EventHandle, stream: StreamHandle) = nothing, |api| api.event_record(event.0, stream.0);
    begin_capture(stream: StreamHandle) = nothing, |api| api.capture_begin(stream.0, THREAD_LOCAL);
    replay(section: &ExecGraph, stream: StreamHandle) = nothing, |api| api.graph_launch(section.0.0, stream.0);
}

impl CudaApi {
    /// What the driver calls a device.
    pub(super) fn device_name(self, device: RawDevice) -> Answer<String> {
        let mut name = [0u8; 128];
        // SAFETY: the name is written to a local, and is at most as long as the call is told.
        unsafe {
            self.0.device_name(name.as_mut_ptr().cast(), name.len() as c_int - 1, device)?;
        }
        Ok(text_of(&name))
    }

    /// Free and total bytes of the device of the current context.
    pub(super) fn memory(self) -> Answer<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live locals.
        unsafe {
            self.0.memory_info(&mut free, &mut total)?;
        }
        Ok((free, total))
    }

    /// A pool of our own that keeps what is freed, so that waiting for the device gives nothing back to the system. It
    /// has no limit: what is asked of it has one (`stream/mod.rs`).
    pub(super) fn make_pool(self, ordinal: usize) -> Answer<PoolHandle> {
        let mut keep = u64::MAX;
        // SAFETY: the struct is plain numbers, pointers and enums that have 0; the fields set say what is wanted, and
        // the attribute's value is 64 bits, as its documentation says.
        unsafe {
            let mut properties: CUmemPoolProps = std::mem::zeroed();
            properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            properties.location.id = ordinal as c_int;
            let pool = handle(|out| self.0.pool_create(out, &properties))?;
            self.0.pool_set(pool, RELEASE_THRESHOLD, (&raw mut keep).cast())?;
            Ok(Handle(pool))
        }
    }

    /// So many streams, and as many events. If one of them cannot be made, none is left with the driver.
    pub(super) fn make_streams(self, count: usize) -> Answer<(Vec<StreamHandle>, Vec<EventHandle>)> {
        let (mut streams, mut events) = (Vec::new(), Vec::new());
        let mut make = || -> Answer {
            for _ in 0..count {
                streams.push(self.make_stream()?);
                events.push(self.make_event()?);
            }
            Ok(())
        };
        let made = make();
        if made.is_err() {
            // SAFETY: they were made above, and nobody else has the handles, which are not used again.
            unsafe {
                for event in &events {
                    let _ = self.0.event_destroy(event.0);
                }
                for stream in &streams {
                    let _ = self.0.stream_destroy(stream.0);
                }
            }
        }
        made.map(|()| (streams, events))
    }

    /// Ends a capture.
    pub(super) fn end_capture(self, stream: StreamHandle) -> Answer<Recorded> {
        // SAFETY: the stream is never destroyed, and the handle is written to a local.
        handle(|out| unsafe { self.0.capture_end(stream.0, out) }).map(Recorded)
    }

    /// Makes what was recorded ready to run.
    pub(super) fn instantiate(self, recorded: &Recorded) -> Answer<ExecGraph> {
        // SAFETY: the graph was not destroyed: that takes it from its place. The handle is written to a local.
        handle(|out| unsafe { self.0.graph_instantiate(out, recorded.0, 0) }).map(|raw| ExecGraph(Handle(raw)))
    }

    /// Ends what was recorded; what was made of it stands on its own.
    pub(super) fn destroy_recorded(self, recorded: &mut Option<Recorded>) -> Answer {
        // SAFETY: taken from its place, so this is its last use.
        end(recorded, |recorded| unsafe { self.0.graph_destroy(recorded.0) })
    }

    /// Ends a section. The driver keeps what still runs until it is done.
    pub(super) fn destroy_section(self, section: &mut Option<ExecGraph>) -> Answer {
        // SAFETY: taken from its place, so this is its last use.
        end(section, |section| unsafe { self.0.graph_exec_destroy(section.0.0) })
    }

    /// Code for the device of the current context.
    pub(super) fn load(self, image: &CodeImage) -> Answer<ModuleHandle> {
        // SAFETY: the image is code that the compiler made, with a zero behind it, and lives through the call.
        handle(|out| unsafe { self.0.module_load(out, image.0.as_ptr().cast()) }).map(Handle)
    }

    /// A kernel of a module.
    pub(super) fn function(self, module: ModuleHandle, name: &CStr) -> Answer<FunctionHandle> {
        // SAFETY: a module is never unloaded, the name ends in a zero, and the handle is written to a local.
        handle(|out| unsafe { self.0.module_function(out, module.0, name.as_ptr()) }).map(Handle)
    }

    /// Submits a kernel that takes one struct by value. What it does with addresses is the device's business.
    pub(super) fn launch<P: Copy>(
        self,
        function: FunctionHandle,
        [blocks, threads]: [u32; 2],
        stream: StreamHandle,
        params: &P,
    ) -> Answer {
        #[repr(C)]
        struct Padded<P>(P, [u64; PARAMS_MAX / 8]);
        let mut padded = Padded(*params, [0; PARAMS_MAX / 8]);
        let mut list = [(&raw mut padded).cast::<c_void>()];
        // SAFETY: function and stream are live for ever; the driver copies what the kernel takes during the call. Every
        // kernel takes one struct of `kernels/prelude.cu`, of at most `PARAMS_MAX` bytes (`params.rs` looks), and so
        // many can be read from here whichever struct `P` is.
        unsafe {
            self.0.launch(function.0, blocks, 1, 1, threads, 1, 1, 0, stream.0, list.as_mut_ptr(), ptr::null_mut())
        }
    }
}

/// Code for a device: what the compiler made, now or when the cache kept it.
#[derive(Debug)]
pub(super) struct CodeImage(Vec<u8>);

impl CodeImage {
    /// Code that was kept. Who kept it has looked whether it is what it was (`compile.rs`).
    pub(super) fn kept(mut code: Vec<u8>) -> Self {
        // Code in text form is read up to its zero.
        code.push(0);
        CodeImage(code)
    }

    pub(super) fn code(&self) -> &[u8] {
        &self.0[..self.0.len() - 1]
    }
}

/// Host memory that the device reaches: copies from and to it run while the host goes on.
///
/// Its bytes are initialised from the start. It stays until the process ends, or until [`HostBytes::free`].
#[derive(Debug)]
pub(super) struct HostBytes {
    ptr: NonNull<u8>,
    bytes: usize,
    /// Its address for kernels.
    pub(super) address: Address,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for HostBytes {}
// SAFETY: shared references read numbers and atomics only; bytes are reached by `&mut self`, and by the device.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    pub(super) fn new(api: CudaApi, bytes: usize) -> Answer<Self> {
        // SAFETY: both results are written to locals; the bytes are ours alone, so many, and written at once, or given
        // back before anybody has seen them.
        unsafe {
            let given = handle::<c_void>(|out| api.0.host_alloc(out, bytes, PORTABLE_AND_MAPPED))?;
            let none = Failure { call: "cuMemHostAlloc", code: 0 };
            let ptr = NonNull::new(given.cast::<u8>()).ok_or(none)?;
            let address = number(|out| api.0.host_address(out, given, 0)).inspect_err(|_| {
                let _ = api.0.host_free(given);
            })?;
            ptr.as_ptr().write_bytes(0, bytes);
            Ok(HostBytes { ptr, bytes, address })
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the memory back. The caller has waited for the copies that use it.
    pub(super) fn free(bytes: &mut Option<Self>, api: CudaApi) -> Answer {
        // SAFETY: taken from its place, so this is the last use by the host; a wait was the device's.
        end(bytes, |bytes| unsafe { api.0.host_free(bytes.ptr.as_ptr().cast()) })
    }

    /// A part to write to, which no copy that was submitted before uses any more.
    pub(super) fn writable(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        let part = self.part(at, bytes);
        touched(part, bytes, true);
        // SAFETY: `part` is that many initialised bytes of ours, for as long as this borrow. The device does not use
        // them: `staging.rs` waits for the stream of the last copy before a chunk is filled again.
        unsafe { std::slice::from_raw_parts_mut(part, bytes) }
    }

    /// Submits a copy of a part to the device.
    pub(super) fn send(&self, api: CudaApi, at: usize, bytes: usize, dst: Address, stream: StreamHandle) -> Answer {
        let part = self.part(at, bytes);
        // SAFETY: `part` is that many initialised bytes of ours, which nobody writes before the copy is done.
        unsafe { api.0.copy_to_device(dst, part.cast(), bytes, stream.0) }
    }

    /// Submits a copy from the device into the beginning of this memory.
    pub(super) fn receive(&mut self, api: CudaApi, src: Address, bytes: usize, stream: StreamHandle) -> Answer {
        let part = self.part(0, bytes);
        // SAFETY: `part` is that many bytes of ours, which nobody reads before the copy is done.
        unsafe { api.0.copy_to_host(part.cast(), src, bytes, stream.0) }
    }

    /// The beginning of this memory. Copies into it are done.
    pub(super) fn readable(&mut self, bytes: usize) -> &[u8] {
        let part = self.part(0, bytes);
        touched(part, bytes, false);
        // SAFETY: `part` is that many initialised bytes of ours, for as long as this borrow, and the caller waited for
        // the copies into them.
        unsafe { std::slice::from_raw_parts(part, bytes) }
    }

    /// A word that kernels write too.
    pub(super) fn word(&self, index: usize) -> &AtomicU32 {
        assert!(4 * index + 4 <= self.bytes, "a word of this memory");
        // SAFETY: inside, aligned (the driver gives whole pages), initialised, and reached as atomics only.
        unsafe { self.ptr.cast().add(index).as_ref() }
    }

    fn part(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "a part of this memory");
        self.ptr.as_ptr().wrapping_add(at)
    }
}

/// Tells the pretend driver that the host touches pinned bytes.
fn touched(part: *const u8, bytes: usize, writes: bool) {
    if let Some(hook) = raw::hooks().host_access {
        // SAFETY: the hook notes an address; it is our own test code.
        unsafe {
            hook(part.cast(), bytes as u64, c_int::from(writes));
        }
    }
}

/// Tells the pretend driver who has a block: somebody, or the pool.
pub(super) fn report_block(address: Address, bytes: usize, is_handed_out: bool) {
    if let Some(hook) = raw::hooks().block {
        // SAFETY: the hook notes an address; it is our own test code.
        unsafe {
            hook(address, bytes as u64, c_int::from(is_handed_out));
        }
    }
}

/// The kernel compiler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nvrtc(&'static raw::Nvrtc);

/// The compiler, opened once; or what is missing.
pub(super) fn compiler() -> Result<Nvrtc, &'static str> {
    raw::compiler().map(Nvrtc)
}

/// What the compiler made of a source, and what it said.
pub(super) struct CompilerOutput {
    pub(super) image: Answer<CodeImage>,
    pub(super) log: String,
}

impl Nvrtc {
    pub(super) fn version(self) -> Answer<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are live locals.
        unsafe {
            self.0.version(&mut major, &mut minor)?;
        }
        Ok((major, minor))
    }

    /// The architectures that it makes code for.
    pub(super) fn architectures(self) -> Answer<Vec<c_int>> {
        // SAFETY: the count is written to a local, then as many numbers to a list of that length.
        unsafe {
            let count = number(|out| self.0.arch_count(out))?;
            let mut list = vec![0; count as usize];
            self.0.archs(list.as_mut_ptr())?;
            Ok(list)
        }
    }

    /// Compiles a source: to code for the one architecture that the options name (`exact`), or to portable code.
    pub(super) fn compile(
        self,
        source: &CStr,
        name: &CStr,
        options: &[CString],
        exact: bool,
    ) -> Answer<CompilerOutput> {
        let api = self.0;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: the texts end in zeros and outlive the calls; there are no headers; the handle is written to a local,
        // and live until `destroy`, its last use.
        unsafe {
            api.create(&mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())?;
            let compiled = api.compile(program, pointers.len() as c_int, pointers.as_ptr());
            let log = fetch(|out| api.log_size(program, out), |out| api.log(program, out));
            let code = compiled.and_then(|()| match exact {
                true => fetch(|out| api.cubin_size(program, out), |out| api.cubin(program, out)),
                false => fetch(|out| api.ptx_size(program, out), |out| api.ptx(program, out)),
            });
            let _ = api.destroy(&mut program);
            Ok(CompilerOutput {
                image: code.map(CodeImage::kept),
                log: log.map(|log| text_of(&log)).unwrap_or_default(),
            })
        }
    }
}

/// Bytes whose number one call tells and another one writes.
fn fetch(size: impl FnOnce(*mut usize) -> Answer, bytes: impl FnOnce(*mut c_char) -> Answer) -> Answer<Vec<u8>> {
    let mut list = vec![0u8; number(size)?];
    bytes(list.as_mut_ptr().cast())?;
    Ok(list)
}

/// The text before the first zero.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A handle of the library for products, for one stream. One that works is never destroyed: the library could be gone
/// by then.
#[derive(Debug)]
pub(super) struct Blas {
    api: &'static raw::Blas,
    raw: BlasHandle,
}

// SAFETY: the library wants a handle to be used by one thread at a time, on whichever thread: calls take it
// exclusively.
unsafe impl Send for Blas {}

/// A product of matrices as the library takes it, by columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    /// Rows, columns, and the inner axis.
    pub(super) sizes: [c_int; 3],
    /// Both sides.
    pub(super) sides: [GemmSide; 2],
    pub(super) dst: Address,
    pub(super) dst_step: i64,
    pub(super) batch: c_int,
    /// `cudaDataType` and `cublasComputeType_t`.
    pub(super) kind: c_int,
    pub(super) compute: c_int,
    /// Whether factors are f64, and not f32.
    pub(super) is_wide: bool,
}

/// A side of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmSide {
    pub(super) address: Address,
    /// 0 as it lies or 1 transposed, and the step between its columns.
    pub(super) lies: (c_int, c_int),
    /// From one matrix to the next.
    pub(super) step: i64,
}

/// `cublasGemmAlgo_t`.
const GEMM_DEFAULT: c_int = -1;

/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`: parts of a sum of halves are added in f32 too, where the library
/// splits it, and are not halves in between.
const WHOLE_SUMS: c_int = 16;

impl Blas {
    /// A handle that submits to `stream`, on the context that is current, and works in bytes of the device that are
    /// never freed.
    pub(super) fn new(stream: StreamHandle, workspace: Address, bytes: usize) -> Result<Answer<Self>, &'static str> {
        let api = raw::blas()?;
        // SAFETY: the handle is written to a local; the stream is never destroyed; what is destroyed is not used again.
        Ok(unsafe {
            handle(|out| api.create(out)).and_then(|raw| {
                let set = api.set_stream(raw, stream.0).and_then(|()| api.set_workspace(raw, workspace, bytes));
                let set = set.and_then(|()| api.set_math(raw, WHOLE_SUMS));
                if set.is_err() {
                    let _ = api.destroy(raw);
                }
                set.map(|()| Blas { api, raw })
            })
        })
    }

    /// Submits a product.
    pub(super) fn multiply(&mut self, call: &Gemm) -> Answer {
        // As long as the library may read, whichever type it computes in.
        let (wide, narrow) = ([1f64, 0.0], [1f32, 0.0, 0.0, 0.0]);
        let [one, zero]: [*const c_void; 2] = match call.is_wide {
            true => [wide[..].as_ptr().cast(), wide[1..].as_ptr().cast()],
            false => [narrow[..].as_ptr().cast(), narrow[1..].as_ptr().cast()],
        };
        let ([m, n, k], [a, b]) = (call.sizes, call.sides);
        // SAFETY: the handle is live and used by this thread alone; the factors are live locals of at least 8 bytes;
        // addresses are the device's, and a wrong one is an error of the device.
        unsafe {
            self.api.gemm(
                self.raw,
                a.lies.0,
                b.lies.0,
                m,
                n,
                k,
                one,
                a.address,
                call.kind,
                a.lies.1,
                a.step,
                b.address,
                call.kind,
                b.lies.1,
                b.step,
                zero,
                call.dst,
                call.kind,
                m,
                call.dst_step,
                call.batch,
                call.compute,
                GEMM_DEFAULT,
            )
        }
    }
}

/// What the ranks of a group have in common: 128 bytes.
pub(super) type RankId = [u8; 128];

/// A rank of a group of devices that add up together.
#[derive(Debug)]
pub(super) struct Rank {
    api: &'static raw::Nccl,
    raw: RawRank,
}

// SAFETY: the library wants a rank to be used by one thread at a time, on whichever thread, and this is not `Sync`.
unsafe impl Send for Rank {}

/// `ncclSum`.
const SUM: c_int = 0;

impl Rank {
    /// The version of the library.
    pub(super) fn version() -> Result<Answer<c_int>, &'static str> {
        let api = raw::sums()?;
        // SAFETY: the number is written to a local.
        Ok(number(|out| unsafe { api.version(out) }))
    }

    /// What a new group has in common.
    pub(super) fn id() -> Result<Answer<RankId>, &'static str> {
        let api = raw::sums()?;
        let mut id = RawId { internal: [0; 128] };
        // SAFETY: the bytes are written to a local.
        let made = unsafe { api.id(&mut id) };
        Ok(made.map(|()| id.internal.map(|byte| byte as u8)))
    }

    /// One rank of a group, of the context that is current. Waits for all.
    pub(super) fn join(id: &RankId, rank: c_int, ranks: c_int) -> Result<Answer<Self>, &'static str> {
        let api = raw::sums()?;
        let id = RawId { internal: id.map(|byte| byte as c_char) };
        // SAFETY: the handle is written to a local; `abort` is its only end.
        Ok(handle(|out| unsafe { api.join(out, ranks, id, rank) }).map(|raw| Rank { api, raw }))
    }

    /// What went wrong since the last call, here or on another rank: 0 for nothing.
    pub(super) fn fault(&self) -> Answer<c_int> {
        // SAFETY: the handle is live, and used by this thread alone; the number is written to a local.
        number(|out| unsafe { self.api.fault(self.raw, out) })
    }

    /// Submits a sum over all ranks, in place: `count` numbers of a `ncclDataType_t`.
    pub(super) fn add_up(&self, address: Address, count: usize, dtype: c_int, stream: StreamHandle) -> Answer {
        // SAFETY: the handle is live, and used by this thread alone; the stream is never destroyed; the address is the
        // device's, and a wrong one is an error of the device.
        unsafe { self.api.all_reduce(address, address, count, dtype, SUM, self.raw, stream.0) }
    }

    /// Ends a rank, and what it still does.
    pub(super) fn abort(rank: &mut Option<Self>) -> Answer {
        // SAFETY: taken from its place, so this is its last use.
        end(rank, |rank| unsafe { rank.api.abort(rank.raw) })
    }
}

/// The libraries that were opened, with their versions: the driver, the compiler, those for products and for sums. None
/// is opened for it.
pub(super) fn versions() -> Vec<(&'static str, Answer<String>)> {
    let mut found = Vec::new();
    if let Some(api) = raw::Cuda::opened() {
        let version = CudaApi(api).version();
        found.push(("driver", version.map(|number| format!("{}.{}", number / 1000, number % 1000 / 10))));
    }
    if let Some(api) = raw::Nvrtc::opened() {
        found.push(("NVRTC", Nvrtc(api).version().map(|(major, minor)| format!("{major}.{minor}"))));
    }
    if let Some(api) = raw::Blas::opened() {
        // By `libraryPropertyType`: the major version, the minor one, the patch.
        // SAFETY: the number is written to a local.
        let part = |which: c_int| number(|out| unsafe { api.property(which, out) });
        found.push(("cuBLAS", part(0).and_then(|major| Ok(format!("{major}.{}.{}", part(1)?, part(2)?)))));
    }
    if let Some(api) = raw::Nccl::opened() {
        // SAFETY: the number is written to a local.
        let version = number(|out| unsafe { api.version(out) });
        let parts = |number: c_int| format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100);
        found.push(("NCCL", version.map(parts)));
    }
    found
}
