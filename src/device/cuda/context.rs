//! One device as the driver shows it: its context, streams, events and memory.
//!
//! # Invariants
//! - Contexts, streams and pools are never destroyed: they live as long as the process, so no destructor can run
//!   after the driver has gone. The driver cleans up at exit. Streams of a device that could not be opened go at once.
//! - Before a call a thread makes the device's context current, unless it was the last one that did so.
//! - After an error that breaks the context, [`CudaContext::check`] answers that first error for ever, and no call is
//!   made any more: [`CudaContext::alive`] comes first everywhere.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::error::{Error, Result};
use crate::device::{
    budget::AllocError,
    cpu::threads,
    cuda::{
        checked::{self, CudaApi, ExecGraph, HostBytes, INVALID_CONTEXT, INVALID_HANDLE, PoolHandle},
        raw::{Address, Answer, Failure},
    },
    stream::Granted,
};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

impl Failure {
    fn is_of_driver(&self) -> bool {
        !self.call.starts_with("cublas") && !self.call.starts_with("nccl")
    }

    /// Whether the context is of no use after this answer.
    fn is_sticky(&self) -> bool {
        // Deinitialised; uncorrectable memory, links and containment; a destroyed context; and what a kernel did:
        // illegal address, instruction, program counter, assertion, timeout.
        self.is_of_driver() && matches!(self.code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=721 | 999)
    }

    /// Whether there was no memory for what was asked.
    fn lacks_memory(&self) -> bool {
        match self.is_of_driver() {
            true => self.code == OUT_OF_MEMORY,
            false => self.call.starts_with("cublas") && matches!(self.code, 1 | 3),
        }
    }

    /// What the code means, for the codes that users meet.
    pub(super) fn meaning(&self) -> &'static str {
        if self.call.starts_with("nccl") {
            return match self.code {
                1 => "a call of the driver failed (NCCL_DEBUG=WARN says which)",
                2 => "a call of the system failed (NCCL_DEBUG=WARN says which)",
                4 => "an argument of a wrong value",
                5 => "not so: one device for several ranks, or other calls on other ranks",
                6 => "another rank, or the way to it, failed",
                _ => "see ncclResult_t in the library's documentation",
            };
        }
        if self.call.starts_with("nvrtc") {
            return match self.code {
                1 => "out of memory",
                5 => "an option that this version does not know",
                6 => "the source does not compile",
                7 => "no libnvrtc-builtins of its version beside it",
                11 => "an internal error",
                _ => "see nvrtcResult in the library's documentation",
            };
        }
        if !self.is_of_driver() {
            return match self.code {
                1 | 3 => "no memory for the library; free some arrays first",
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
            34 => "a toolkit's stand-in for the driver was loaded, from a folder named stubs",
            35 => "the driver is older than the program",
            46 => "the device is busy, or not for this process",
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
            802 => "the system is not ready (devices behind NVSwitch need the fabric manager)",
            803 => "the driver and its library are of different versions",
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

thread_local! {
    /// The context that this thread made current last.
    static CURRENT: Cell<Option<checked::ContextHandle>> = const { Cell::new(None) };
}

/// A device's context.
#[derive(Debug)]
pub(super) struct CudaContext {
    api: CudaApi,
    pub(super) name: String,
    raw: checked::ContextHandle,
    pool: Option<PoolHandle>,
    /// Compute capability times 10: 90 for 9.0.
    pub(super) arch: u32,
    pub(super) multiprocessors: u32,
    pub(super) driver_version: i32,
    dead: OnceLock<Failure>,
    /// Whether a call found no memory. Relaxed: launches write and read it under the device's lock; whoever sets it
    /// without costs one that fails a trim at most.
    pub(super) short: AtomicBool,
    /// Bytes of the host that are page-locked. Relaxed: a number that is reported.
    pub(super) pinned: AtomicU64,
}

impl CudaContext {
    /// Retains the primary context of a device that is there.
    pub(super) fn new(api: CudaApi, ordinal: usize) -> Result<Self> {
        let name = format!("cuda:{ordinal}");
        let opened = Self::open(api, ordinal, name.clone());
        opened.map_err(|failure| device_error(&name, failure, ""))
    }

    fn open(api: CudaApi, ordinal: usize, name: String) -> Answer<Self> {
        let device = api.device(ordinal as c_int)?;
        let attribute = |which| api.attribute(which, device);
        let arch = attribute(attribute::MAJOR)? * 10 + attribute(attribute::MINOR)?;
        let multiprocessors = attribute(attribute::MULTIPROCESSORS)?;
        let pools = attribute(attribute::MEMORY_POOLS)? != 0;
        let driver_version = api.version()?;
        let raw = api.retain(device)?;
        api.make_current(raw)?;
        CURRENT.set(Some(raw));
        let pool = if pools { Some(api.make_pool(ordinal)?) } else { None };
        let (arch, multiprocessors) = (arch as u32, multiprocessors.max(1) as u32);
        let (dead, short, pinned) = Default::default();
        Ok(CudaContext { api, name, raw, pool, arch, multiprocessors, driver_version, dead, short, pinned })
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
        if failure.lacks_memory() {
            // Relaxed: as the field says.
            self.short.store(true, Ordering::Relaxed);
        }
        device_error(&self.name, failure, "")
    }

    /// Makes a call of the driver, with the context current. If somebody else changed that behind our back, once more.
    #[inline]
    pub(super) fn call<T>(&self, mut call: impl FnMut(CudaApi) -> Answer<T>) -> Result<T> {
        let mut value = None;
        self.call_by(&mut |api| {
            value = Some(call(api)?);
            Ok(())
        })?;
        Ok(value.expect("a call that did not fail has answered"))
    }

    /// As [`CudaContext::call`], by reference.
    fn call_by(&self, call: &mut dyn FnMut(CudaApi) -> Answer) -> Result<()> {
        self.alive()?;
        if CURRENT.get() != Some(self.raw) {
            self.bind()?;
        }
        match call(self.api) {
            Err(Failure { code: INVALID_CONTEXT | INVALID_HANDLE, .. }) => {
                self.bind()?;
                self.check(call(self.api))
            }
            answer => self.check(answer),
        }
    }

    /// Makes the context current, whatever this thread knows: for calls that take the one that is, and would not notice
    /// that somebody else made another device's current.
    pub(super) fn make_current(&self) -> Result<()> {
        self.alive()?;
        self.bind()
    }

    #[cold]
    fn bind(&self) -> Result<()> {
        self.check(self.api.make_current(self.raw))?;
        CURRENT.set(Some(self.raw));
        Ok(())
    }

    /// Bytes of the device, in the order of a stream.
    pub(super) fn alloc(&self, bytes: usize, stream: &CudaStream) -> Granted<Address> {
        let ready = if self.pool.is_some() { self.alive() } else { self.make_current() };
        ready.map_err(AllocError::Failed)?;
        let mut exhausted = false;
        let address = self.call(|api| {
            let answer = match self.pool {
                Some(pool) => api.pool_alloc(bytes, pool, stream.raw),
                None => api.alloc(bytes),
            };
            exhausted = matches!(answer, Err(Failure { code: OUT_OF_MEMORY, .. }));
            answer
        });
        address.map_err(|error| if exhausted { AllocError::Exhausted } else { AllocError::Failed(error) })
    }

    /// Gives back what `alloc` gave.
    pub(super) fn free(&self, address: Address, stream: &CudaStream) -> Result<()> {
        self.call(|api| match self.pool {
            Some(_) => api.pool_free(address, stream.raw),
            None => api.free(address),
        })
    }

    /// Lets the driver give freed bytes back to the system.
    pub(super) fn trim(&self) -> Result<()> {
        self.pool.map_or(Ok(()), |pool| self.call(|api| api.trim(pool)))
    }

    /// Free and total bytes, as the driver counts them, for all programs together.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        self.make_current()?;
        self.call(|api| api.memory()).map(|(free, total)| (free as u64, total as u64))
    }

    pub(super) fn fill_zero(&self, address: Address, bytes: usize, stream: &CudaStream) -> Result<()> {
        self.call(|api| api.fill_zero(address, bytes, stream.raw))
    }
}

const LOST: &str = "; the device is lost to this process";

pub(super) fn device_error(device: &str, failure: Failure, tail: &str) -> Error {
    let message = format!("error {}: {}{tail}", failure.code, failure.meaning());
    Error::device(device, failure.call, message)
}

/// A stream of a context.
#[derive(Debug)]
pub(super) struct CudaStream {
    pub(super) raw: checked::StreamHandle,
}

impl CudaStream {
    /// So many streams, and as many events: all, or none.
    pub(super) fn make(context: &CudaContext, count: usize) -> Result<(Vec<Self>, Vec<CudaEvent>)> {
        let (streams, events) = context.call(|api| api.make_streams(count))?;
        let streams = streams.into_iter().map(|raw| CudaStream { raw }).collect();
        Ok((streams, events.into_iter().map(|raw| CudaEvent { raw }).collect()))
    }

    pub(super) fn synchronize(&self, context: &CudaContext) -> Result<()> {
        context.call(|api| api.synchronize(self.raw))
    }

    pub(super) fn wait(&self, context: &CudaContext, event: &CudaEvent) -> Result<()> {
        context.call(|api| api.wait(self.raw, event.raw))
    }

    /// Begins to record what is submitted to the stream instead of running it.
    pub(super) fn begin_capture(&self, context: &CudaContext) -> Result<()> {
        context.call(|api| api.begin_capture(self.raw))
    }

    /// Ends that, and makes what was recorded ready to run.
    pub(super) fn end_capture(&self, context: &CudaContext) -> Result<CapturedGraph> {
        let end = || context.call(|api| api.end_capture(self.raw));
        // Whatever happened, the stream must not stay as it is.
        let recorded = end().inspect_err(|_| drop(end()))?;
        let section = context.call(|api| api.instantiate(&recorded));
        let mut recorded = Some(recorded);
        let _ = context.call(|api| api.destroy_recorded(&mut recorded));
        section.map(CapturedGraph)
    }
}

/// A captured section. Ended by [`CapturedGraph::destroy`]; without, it stays until the process ends.
#[derive(Debug)]
pub(super) struct CapturedGraph(ExecGraph);

impl CapturedGraph {
    pub(super) fn launch(&self, context: &CudaContext, stream: &CudaStream) -> Result<()> {
        context.call(|api| api.replay(&self.0, stream.raw))
    }

    /// The driver keeps what still runs until it is done.
    pub(super) fn destroy(self, context: &CudaContext) {
        let mut section = Some(self.0);
        let _ = context.call(|api| api.destroy_section(&mut section));
    }
}

/// An event. It is recorded again and again.
#[derive(Debug)]
pub(super) struct CudaEvent {
    raw: checked::EventHandle,
}

impl CudaEvent {
    pub(super) fn record(&self, context: &CudaContext, stream: &CudaStream) -> Result<()> {
        context.call(|api| api.record(self.raw, stream.raw))
    }
}

/// Host memory that the device reaches: copies from and to it run while the host goes on.
///
/// It stays until the process ends, or until [`PinnedMemory::free`].
#[derive(Debug)]
pub(super) struct PinnedMemory(HostBytes);

impl PinnedMemory {
    pub(super) fn new(context: &CudaContext, bytes: usize) -> Result<Self> {
        let bytes = context.call(|api| HostBytes::new(api, bytes))?;
        // Relaxed: as the number says.
        context.pinned.fetch_add(bytes.bytes() as u64, Ordering::Relaxed);
        Ok(PinnedMemory(bytes))
    }

    /// Its address for kernels.
    pub(super) fn address(&self) -> Address {
        self.0.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Gives the memory back. No copy uses it any more.
    pub(super) fn free(self, context: &CudaContext) {
        // Relaxed: as the number says.
        context.pinned.fetch_sub(self.0.bytes() as u64, Ordering::Relaxed);
        let mut bytes = Some(self.0);
        let _ = context.call(|api| HostBytes::free(&mut bytes, api));
    }

    /// Submits a copy of host bytes to the device by way of `at` in here. No copy that was submitted before uses that
    /// part any more.
    pub(super) fn send(
        &mut self,
        context: &CudaContext,
        stream: &CudaStream,
        at: usize,
        bytes: &[u8],
        dst: Address,
    ) -> Result<()> {
        threads::copy(self.0.writable(at, bytes.len()), bytes);
        context.call(|api| self.0.send(api, at, bytes.len(), dst, stream.raw))
    }

    /// Submits a copy from the device into the beginning of this memory.
    pub(super) fn receive(
        &mut self,
        context: &CudaContext,
        stream: &CudaStream,
        src: Address,
        bytes: usize,
    ) -> Result<()> {
        context.call(|api| self.0.receive(api, src, bytes, stream.raw))
    }

    /// The beginning of this memory. Copies into it are done.
    pub(super) fn readable(&mut self, bytes: usize) -> &[u8] {
        self.0.readable(bytes)
    }

    /// A word that kernels write too.
    pub(super) fn word(&self, index: usize) -> &std::sync::atomic::AtomicU32 {
        self.0.word(index)
    }
}
