//! One device as the driver shows it: its context, streams, events and memory, each as a type that is safe to use.
//!
//! # Invariants
//! - Contexts, streams and pools are never destroyed: they live as long as the process, so no destructor can run
//!   after the driver has gone. The driver cleans up at exit.
//! - Before a call a thread makes the device's context current, unless it was the last one that did so.
//! - After an error that breaks the context, [`Context::check`] answers that first error for ever, and no call is made
//!   any more: [`Context::alive`] comes first everywhere.
//! - Addresses of the device are numbers here. A wrong one is an error of the driver, not undefined behaviour of this
//!   process; memory of the host is reached through [`Pinned`] alone.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use crate::base::error::{Error, Result};
use crate::device::{
    budget::AllocError,
    cuda::raw::{self, Address, Answer, Cuda, Failure, RawContext, RawEvent, RawGraphExec, RawPool, RawStream},
    stream::Granted,
};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_INVALID_CONTEXT`: no context is current, or another one is.
const INVALID_CONTEXT: u32 = 201;

impl Failure {
    fn is_of_driver(&self) -> bool {
        !self.call.starts_with("cublas")
    }

    /// Whether the context is of no use after this answer.
    fn is_sticky(&self) -> bool {
        // Deinitialised; uncorrectable memory, links and containment; a destroyed context; and what a kernel did:
        // illegal address, instruction, program counter, assertion, timeout.
        self.is_of_driver() && matches!(self.code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=721 | 999)
    }

    /// What the code means, for the codes that users meet.
    pub(super) fn meaning(&self) -> &'static str {
        if !self.is_of_driver() {
            return match self.code {
                1 | 3 => "no memory for the library",
                7 => "invalid value",
                8 => "the device is too old for the library",
                13 => "the product could not be started",
                _ => "see cublasStatus_t in the library's documentation",
            };
        }
        match self.code {
            1 => "invalid value",
            2 => "out of memory",
            3 => "the driver is not initialised (a forked child cannot use it)",
            4 => "the driver is shutting down",
            35 => "the driver is older than the program",
            100 => "no device",
            101 => "no such device",
            200 | 209 => "a kernel does not fit the device",
            201 => "no context, or that of another device",
            214 => "an uncorrectable memory error",
            218 | 222 => "a kernel was compiled for another driver",
            400 => "invalid handle",
            700 => "a kernel reached an illegal address",
            702 => "a kernel ran too long",
            710 => "an assertion in a kernel failed",
            719 => "a kernel failed",
            800 => "not permitted",
            801 => "not supported",
            900..=908 => "not allowed while a section is being captured",
            _ => "see CUresult in the driver's documentation",
        }
    }
}

/// Attributes of a device, as `CUdevice_attribute` counts them.
mod attribute {
    pub(super) const MULTIPROCESSORS: i32 = 16;
    pub(super) const MAJOR: i32 = 75;
    pub(super) const MINOR: i32 = 76;
    pub(super) const MEMORY_POOLS: i32 = 115;
}

/// `CUmemPool_attribute`: the bytes that a pool keeps across synchronisations.
const RELEASE_THRESHOLD: i32 = 4;
/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream, which is never used here.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 3;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads' calls do not disturb a capture.
const THREAD_LOCAL: u32 = 1;

thread_local! {
    /// The context that this thread made current last.
    static CURRENT: Cell<RawContext> = const { Cell::new(ptr::null_mut()) };
}

/// A device's context.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) api: &'static Cuda,
    pub(super) name: String,
    raw: RawContext,
    pool: Option<RawPool>,
    /// Compute capability times 10: 90 for 9.0.
    pub(super) arch: u32,
    pub(super) multiprocessors: u32,
    pub(super) driver_version: i32,
    dead: OnceLock<Failure>,
}

// SAFETY: contexts and pools are handles that the driver accepts on every thread, and they are never destroyed.
#[allow(unsafe_code)]
unsafe impl Send for Context {}
// SAFETY: as for `Send`; the driver serialises what it must.
#[allow(unsafe_code)]
unsafe impl Sync for Context {}

/// A number that a call writes.
pub(super) fn number<T: Default>(call: impl FnOnce(*mut T) -> Answer) -> Answer<T> {
    let mut value = T::default();
    call(&mut value)?;
    Ok(value)
}

/// A handle that a call writes.
pub(super) fn handle<T>(call: impl FnOnce(*mut *mut T) -> Answer) -> Answer<*mut T> {
    let mut value = ptr::null_mut();
    call(&mut value)?;
    Ok(value)
}

impl Context {
    /// Retains the primary context of a device that is there. `most`: bytes that the driver may give, if limited.
    pub(super) fn new(api: &'static Cuda, ordinal: usize, most: Option<u64>) -> Result<Self> {
        let name = format!("cuda:{ordinal}");
        let opened = Self::open(api, ordinal, most, name.clone());
        opened.map_err(|failure| device_error(&name, failure, ""))
    }

    fn open(api: &'static Cuda, ordinal: usize, most: Option<u64>, name: String) -> Answer<Self> {
        // SAFETY: `number` and `handle` pass pointers to live locals of the right type; the device is one that the driver
        // counted.
        #[allow(unsafe_code)]
        unsafe {
            let device = number(|out| api.device_get(out, ordinal as c_int))?;
            let attribute = |which| number(|out| api.device_attribute(out, which, device));
            let arch = attribute(attribute::MAJOR)? * 10 + attribute(attribute::MINOR)?;
            let multiprocessors = attribute(attribute::MULTIPROCESSORS)?;
            let pools = attribute(attribute::MEMORY_POOLS)? != 0;
            let driver_version = number(|out| api.driver_version(out))?;
            let raw = handle(|out| api.context_retain(out, device))?;
            api.context_set(raw)?;
            CURRENT.set(raw);
            let pool = if pools { Some(make_pool(api, ordinal, most)?) } else { None };
            let (arch, multiprocessors) = (arch as u32, multiprocessors.max(1) as u32);
            Ok(Context { api, name, raw, pool, arch, multiprocessors, driver_version, dead: OnceLock::new() })
        }
    }

    /// The first error of a device that was lost.
    #[inline]
    pub(super) fn alive(&self) -> Result<()> {
        match self.dead.get() {
            None => Ok(()),
            Some(failure) => Err(device_error(&self.name, *failure, LOST)),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.dead.get().is_some()
    }

    /// An answer as a result. An answer that breaks the device is noted.
    #[inline]
    pub(super) fn check<T>(&self, answer: Answer<T>) -> Result<T> {
        match answer {
            Ok(value) => Ok(value),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    #[cold]
    fn failed(&self, failure: Failure) -> Error {
        if failure.is_sticky() {
            return device_error(&self.name, *self.dead.get_or_init(|| failure), LOST);
        }
        device_error(&self.name, failure, "")
    }

    /// Makes a call of the driver, with the context current. If somebody else changed that behind our back, once more.
    #[inline]
    pub(super) fn call<T>(&self, mut call: impl FnMut(&Cuda) -> Answer<T>) -> Result<T> {
        self.alive()?;
        if CURRENT.get() != self.raw {
            self.bind()?;
        }
        match call(self.api) {
            Err(Failure { code: INVALID_CONTEXT, .. }) => {
                self.bind()?;
                self.check(call(self.api))
            }
            answer => self.check(answer),
        }
    }

    #[cold]
    fn bind(&self) -> Result<()> {
        // SAFETY: the context was retained and is never released.
        #[allow(unsafe_code)]
        self.check(unsafe { self.api.context_set(self.raw) })?;
        CURRENT.set(self.raw);
        Ok(())
    }

    /// Bytes of the device, in the order of a stream.
    pub(super) fn alloc(&self, bytes: usize, stream: &Stream) -> Granted<Address> {
        self.alive().map_err(AllocError::Failed)?;
        let mut exhausted = false;
        let address = self.call(|api| {
            // SAFETY: pool and stream are this context's, never destroyed; the address is written to a local.
            #[allow(unsafe_code)]
            let answer = number(|out| unsafe {
                match self.pool {
                    Some(pool) => api.pool_alloc(out, bytes, pool, stream.raw),
                    None => api.alloc(out, bytes),
                }
            });
            exhausted = matches!(answer, Err(Failure { code: OUT_OF_MEMORY, .. }));
            answer
        });
        address.map_err(|error| if exhausted { AllocError::Exhausted } else { AllocError::Failed(error) })
    }

    /// Gives back what `alloc` gave.
    pub(super) fn free(&self, address: Address, stream: &Stream) -> Result<()> {
        // SAFETY: as in `alloc`; a wrong address is an error of the driver.
        #[allow(unsafe_code)]
        self.call(|api| unsafe {
            match self.pool {
                Some(_) => api.pool_free(address, stream.raw),
                None => api.free(address),
            }
        })
    }

    /// Lets the driver give freed bytes back to the system.
    pub(super) fn trim(&self) -> Result<()> {
        // SAFETY: the pool is this context's and never destroyed.
        #[allow(unsafe_code)]
        self.pool.map_or(Ok(()), |pool| self.call(|api| unsafe { api.pool_trim(pool, 0) }))
    }

    /// Free and total bytes, as the driver counts them, for all programs together.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live locals.
        #[allow(unsafe_code)]
        self.call(|api| unsafe { api.memory_info(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    pub(super) fn fill_zero(&self, address: Address, bytes: usize, stream: &Stream) -> Result<()> {
        // SAFETY: a stream of this context; a wrong address is an error of the driver.
        #[allow(unsafe_code)]
        self.call(|api| unsafe { api.set_bytes(address, 0, bytes, stream.raw) })
    }
}

const LOST: &str = "; the device is lost to this process";

pub(super) fn device_error(device: &str, failure: Failure, tail: &str) -> Error {
    let message = format!("error {}: {}{tail}", failure.code, failure.meaning());
    Error::Device { device: device.to_owned(), call: failure.call, message }
}

/// A pool of our own that keeps what is freed, so that waiting for the device gives nothing back to the system.
///
/// # Safety
/// The device's context is current.
#[allow(unsafe_code)]
unsafe fn make_pool(api: &Cuda, ordinal: usize, most: Option<u64>) -> Answer<RawPool> {
    use cudarc::driver::sys::{CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED, CUmemLocationType};
    // SAFETY: the struct is plain numbers, pointers and enums that have 0; the fields set say what is wanted, and the
    // attribute's value is 64 bits, as its documentation says.
    unsafe {
        let mut properties: raw::CUmemPoolProps = std::mem::zeroed();
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = ordinal as c_int;
        properties.maxSize = most.map_or(0, |most| most as usize);
        let pool = handle(|out| api.pool_create(out, &properties))?;
        let mut keep = u64::MAX;
        api.pool_set(pool, RELEASE_THRESHOLD, (&raw mut keep).cast())?;
        Ok(pool)
    }
}

/// A stream of a context.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) raw: RawStream,
}

// SAFETY: a stream is a handle that the driver accepts on every thread, and it is never destroyed.
#[allow(unsafe_code)]
unsafe impl Send for Stream {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(context: &Context) -> Result<Self> {
        // SAFETY: the handle is written to a local.
        #[allow(unsafe_code)]
        let raw = context.call(|api| handle(|out| unsafe { api.stream_create(out, NON_BLOCKING) }))?;
        Ok(Stream { raw })
    }

    pub(super) fn synchronize(&self, context: &Context) -> Result<()> {
        // SAFETY: a stream is never destroyed.
        #[allow(unsafe_code)]
        context.call(|api| unsafe { api.stream_synchronize(self.raw) })
    }

    pub(super) fn wait(&self, context: &Context, event: &Event) -> Result<()> {
        // SAFETY: the stream is never destroyed, and the event lives as long as it is borrowed.
        #[allow(unsafe_code)]
        context.call(|api| unsafe { api.stream_wait(self.raw, event.raw, 0) })
    }

    /// Begins to record what is submitted to the stream instead of running it.
    pub(super) fn begin_capture(&self, context: &Context) -> Result<()> {
        // SAFETY: a stream is never destroyed.
        #[allow(unsafe_code)]
        context.call(|api| unsafe { api.capture_begin(self.raw, THREAD_LOCAL) })
    }

    /// Ends that, and makes what was recorded ready to run.
    pub(super) fn end_capture(&self, context: &Context) -> Result<Graph> {
        // SAFETY: the stream is never destroyed; the graph that the first call writes is destroyed here once, after
        // what was made of it stands on its own.
        #[allow(unsafe_code)]
        unsafe {
            let end = || context.call(|api| handle(|out| api.capture_end(self.raw, out)));
            // Whatever happened, the stream must not stay as it is.
            let graph = end().inspect_err(|_| drop(end()))?;
            let exec = context.call(|api| handle(|out| api.graph_instantiate(out, graph, 0)));
            let _ = context.call(|api| api.graph_destroy(graph));
            Ok(Graph { raw: exec? })
        }
    }
}

/// A captured section. Ended by [`Graph::destroy`]; without, it stays until the process ends.
#[derive(Debug)]
pub(super) struct Graph {
    raw: RawGraphExec,
}

// SAFETY: a handle that the driver accepts on every thread; it is launched and destroyed under the device's lock.
#[allow(unsafe_code)]
unsafe impl Send for Graph {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for Graph {}

impl Graph {
    pub(super) fn launch(&self, context: &Context, stream: &Stream) -> Result<()> {
        // SAFETY: the graph was not destroyed: that takes it by value.
        #[allow(unsafe_code)]
        context.call(|api| unsafe { api.graph_launch(self.raw, stream.raw) })
    }

    /// The driver keeps what still runs until it is done.
    pub(super) fn destroy(self, context: &Context) {
        // SAFETY: taken by value, so this is the last use.
        #[allow(unsafe_code)]
        let _ = context.call(|api| unsafe { api.graph_exec_destroy(self.raw) });
    }
}

/// An event. It is recorded again and again.
#[derive(Debug)]
pub(super) struct Event {
    raw: RawEvent,
}

// SAFETY: a handle that the driver accepts on every thread.
#[allow(unsafe_code)]
unsafe impl Send for Event {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &Context) -> Result<Self> {
        // SAFETY: the handle is written to a local.
        #[allow(unsafe_code)]
        let raw = context.call(|api| handle(|out| unsafe { api.event_create(out, NO_TIMING) }))?;
        Ok(Event { raw })
    }

    pub(super) fn record(&self, context: &Context, stream: &Stream) -> Result<()> {
        // SAFETY: event and stream are live.
        #[allow(unsafe_code)]
        context.call(|api| unsafe { api.event_record(self.raw, stream.raw) })
    }
}

/// Host memory that the device reaches: copies from and to it run while the host goes on.
///
/// Its bytes are initialised from the start. It stays until the process ends, or until [`Pinned::free`].
#[derive(Debug)]
pub(super) struct Pinned {
    ptr: NonNull<u8>,
    bytes: usize,
    /// Its address for kernels.
    pub(super) address: Address,
}

// SAFETY: plain memory with one owner.
#[allow(unsafe_code)]
unsafe impl Send for Pinned {}
// SAFETY: shared references read numbers only; bytes are reached by `&mut self`, and by the device.
#[allow(unsafe_code)]
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self> {
        // SAFETY: both results are written to locals; the bytes are ours alone, so many, and written at once.
        #[allow(unsafe_code)]
        unsafe {
            let ptr = context.call(|api| handle::<c_void>(|out| api.host_alloc(out, bytes, PORTABLE_AND_MAPPED)))?;
            let address = context.call(|api| number(|out| api.host_address(out, ptr, 0)))?;
            let ptr = NonNull::new(ptr.cast::<u8>()).ok_or_else(|| Error::msg("cuMemHostAlloc gave no memory"))?;
            ptr.as_ptr().write_bytes(0, bytes);
            Ok(Pinned { ptr, bytes, address })
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the memory back. No copy uses it any more.
    pub(super) fn free(self, context: &Context) {
        // SAFETY: taken by value, so this is the last use by the host; the caller waited for the device's.
        #[allow(unsafe_code)]
        let _ = context.call(|api| unsafe { api.host_free(self.ptr.as_ptr().cast()) });
    }

    /// Submits a copy of host bytes to the device by way of `at` in here. No copy that was submitted before uses that
    /// part any more.
    pub(super) fn send(
        &mut self,
        context: &Context,
        stream: &Stream,
        at: usize,
        bytes: &[u8],
        dst: Address,
    ) -> Result<()> {
        let part = self.part(at, bytes.len());
        touched(part, bytes.len(), true);
        // SAFETY: `part` is that many bytes of ours, which the device does not use (the caller's promise, kept by
        // `staging.rs`, which waits for the event of the last copy), and `bytes` are the caller's.
        #[allow(unsafe_code)]
        unsafe {
            part.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            context.call(|api| api.copy_to_device(dst, part.cast(), bytes.len(), stream.raw))
        }
    }

    /// Submits a copy from the device into the beginning of this memory.
    pub(super) fn receive(&mut self, context: &Context, stream: &Stream, src: Address, bytes: usize) -> Result<()> {
        let part = self.part(0, bytes);
        // SAFETY: `part` is that many bytes of ours, which nobody reads before the copy is done.
        #[allow(unsafe_code)]
        context.call(|api| unsafe { api.copy_to_host(part.cast(), src, bytes, stream.raw) })
    }

    /// Reads the beginning of this memory. Copies into it are done.
    pub(super) fn read(&mut self, out: &mut [u8]) {
        let part = self.part(0, out.len());
        touched(part, out.len(), false);
        // SAFETY: `part` is that many initialised bytes of ours, and the caller waited for the copies into them.
        #[allow(unsafe_code)]
        unsafe {
            out.as_mut_ptr().copy_from_nonoverlapping(part, out.len());
        }
    }

    /// A word that kernels write too.
    pub(super) fn word(&self, index: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(4 * index + 4 <= self.bytes, "a word of this memory");
        // SAFETY: inside, aligned (the driver gives whole pages), initialised, and reached as atomics only.
        #[allow(unsafe_code)]
        unsafe {
            self.ptr.cast().add(index).as_ref()
        }
    }

    fn part(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "a part of this memory");
        // SAFETY: inside the allocation, by the line above.
        #[allow(unsafe_code)]
        unsafe {
            self.ptr.as_ptr().add(at)
        }
    }
}

/// Tells the pretend driver that the host touches pinned bytes.
fn touched(part: *const u8, bytes: usize, writes: bool) {
    if let Some(hook) = raw::hooks().host_access {
        // SAFETY: the hook notes an address; it is our own test code.
        #[allow(unsafe_code)]
        unsafe {
            hook(part.cast(), bytes as u64, c_int::from(writes));
        }
    }
}
