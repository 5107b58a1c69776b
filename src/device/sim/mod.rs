//! A simulated device: asynchronous, checked, and able to fail on request.
//!
//! It runs the host's kernels on host memory, but as late and in as free an order as its streams allow, so a
//! program that is right on it does not depend on work being done when a call returns. Streams, events and
//! the reuse of bytes are those of every asynchronous device (`stream/mod.rs`); below them the simulation sees
//! each driver call.
//!
//! ```text
//! mod.rs      Sim: the handle, the configuration, the counts
//! driver.rs   counts calls, fails one on request, shows them to the checker, queues their work
//! queue.rs    work that waits, and the draw of what runs next
//! places.rs   what lies at addresses
//! check.rs    accesses: ordered? of live blocks? of bytes that were written?
//! shadow.rs   what the checker knows of one block
//! memory.rs   the bytes, of which kernels get copies
//! ```
//!
//! # Invariants
//! - Nothing that the checker objects to is undefined here: it is recorded, and at worst a value is wrong.
//! - One seed, one order: a program on one thread runs the same way each time.

mod check;
mod driver;
mod memory;
mod places;
mod queue;
mod shadow;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::base::{
    error::{Error, Result},
    sync::{AtomicU64, Ordering},
    system,
};
use crate::device::{
    budget::{AllocError, MemoryStats},
    graph::{Asynchronous, blame},
    span::Span,
    stream::{self, AsyncDevice, DevicePlan, Granted, MAX_STREAMS, Rules, Segments},
};
pub use check::Violation;
pub use driver::SimCalls;
use driver::SimDriver;
pub use shadow::Use;

/// What a simulated device is like.
///
/// ```
/// # use ndgc::{Device, SimConfig};
/// let device = Device::sim(SimConfig { streams: 2, seed: 7, ..SimConfig::default() });
/// # assert!(!device.is_cpu());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Streams, 1 to 8; other numbers count as the nearest of these. 4 if not said.
    pub streams: usize,
    /// Bytes of the device. 1 GiB if not said.
    pub memory_bytes: u64,
    /// Bytes asked of the driver at once, rounded up to a multiple of 256, to be divided into blocks. 0, if not said:
    /// each block is asked for alone, so that the checker names it.
    pub segment_bytes: usize,
    /// Draws the order in which streams run.
    pub seed: u64,
    /// Whether operations on different streams wait for each other. Without, no stream ever waits, and
    /// [`Sim::violations`] shows what that breaks.
    pub order_streams: bool,
    /// Whether the next owner of a block waits for the uses by the former one.
    pub order_reuse: bool,
    /// Whether what a captured section uses stays with it.
    pub pin_graphs: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            streams: 4,
            memory_bytes: 1 << 30,
            segment_bytes: 0,
            seed: 0,
            order_streams: true,
            order_reuse: true,
            pin_graphs: true,
        }
    }
}

impl Asynchronous for Sim {
    type Driver = SimDriver;

    fn shared(&self) -> &AsyncDevice<SimDriver> {
        &self.0.device
    }
}

/// A simulated device. Cheap to clone; it lives as long as any array on it.
///
/// Arrays use it through [`Device::Sim`](crate::Device::Sim); the methods here are what a test asks it. In a forked
/// child they say nothing, and do nothing.
#[derive(Clone)]
pub struct Sim(Arc<SimInner>);

struct SimInner {
    ordinal: u64,
    device: AsyncDevice<SimDriver>,
    /// Requests for bytes until one is refused, counting that one; 0 for never.
    refuse_in: AtomicU64,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("ordinal", &self.0.ordinal).finish_non_exhaustive()
    }
}

impl Sim {
    /// A new device with memory and streams of its own.
    pub fn new(config: SimConfig) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: nothing but the number itself is read.
        let ordinal = COUNT.fetch_add(1, Ordering::Relaxed);
        let streams = config.streams.clamp(1, MAX_STREAMS);
        let name = format!("sim:{ordinal}");
        let driver = SimDriver::new(name.clone(), config.memory_bytes, streams, config.seed);
        let SimConfig { order_streams, order_reuse, pin_graphs, .. } = config;
        let rules = Rules { order_streams, order_reuse, pin_graphs };
        let segments = if config.segment_bytes == 0 { Segments::Each } else { Segments::Of(config.segment_bytes) };
        let device = AsyncDevice::new(driver, DevicePlan { name, streams, rules, segments });
        Sim(Arc::new(SimInner { ordinal, device, refuse_in: AtomicU64::new(0) }))
    }

    /// The how-manieth simulated device of the process it is, from 0.
    pub fn ordinal(&self) -> u64 {
        self.0.ordinal
    }

    /// Whether both are one device.
    pub fn is_same(&self, other: &Sim) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What the checker objected to so far: the first 4096 findings, in order of submission.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Sim, SimConfig, Tensor, Violation};
    /// let sim = Sim::new(SimConfig { order_streams: false, ..SimConfig::default() }); // nobody waits
    /// let x = Tensor::ones(3, DType::F32, &Device::Sim(sim.clone()))?;
    /// let _y = sim.on_stream(1, || x.exp())?;
    /// assert!(sim.violations().iter().any(|found| matches!(found, Violation::Unordered { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn violations(&self) -> Vec<Violation> {
        unforked(|| self.0.device.driver().lock().checker.violations().to_vec())
    }

    /// Driver calls made so far.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Sim, SimConfig, Tensor};
    /// let sim = Sim::new(SimConfig::default());
    /// let x = Tensor::ones(3, DType::F32, &Device::Sim(sim.clone()))?;
    /// let before = sim.calls().launches;
    /// x.exp()?;
    /// assert_eq!(sim.calls().launches - before, 1);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn calls(&self) -> SimCalls {
        unforked(|| self.0.device.driver().lock().calls)
    }

    /// Kernels and uploads that were submitted and have not run.
    pub fn pending(&self) -> usize {
        unforked(|| self.0.device.driver().lock().pending())
    }

    /// Lets the `n`-th driver call from now, counted from 1, fail with [`Error::Device`]; `None` takes that
    /// back. The failed call has no effect, and those after it work again.
    ///
    /// [`Error::Device`]: crate::Error::Device
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Sim, SimConfig, Tensor};
    /// let sim = Sim::new(SimConfig::default());
    /// let device = Device::Sim(sim.clone());
    /// sim.fail_call(Some(1));
    /// assert!(matches!(Tensor::ones(3, DType::F32, &device), Err(Error::Device { .. })));
    /// assert_eq!(Tensor::ones(3, DType::F32, &device)?.to_vec1::<f32>()?, [1.; 3]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn fail_call(&self, n: Option<u64>) {
        unforked(|| self.0.device.driver().lock().fail_in = n);
    }

    /// Refuses the `n`-th request for bytes from now, counted from 1, as if memory were exhausted, even if
    /// bytes are kept that would serve it; `None` takes that back. Empty requests do not count.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Sim, SimConfig, Tensor};
    /// let sim = Sim::new(SimConfig::default());
    /// sim.refuse_allocation(Some(1));
    /// let x = Tensor::ones(3, DType::F32, &Device::Sim(sim.clone()))?; // it looked for memory, and asked again
    /// assert_eq!(x.to_vec1::<f32>()?, [1.; 3]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn refuse_allocation(&self, n: Option<u64>) {
        // Relaxed, here and in `refuses`: one number, which nothing else is read by.
        self.0.refuse_in.store(n.map_or(0, |n| n.max(1)), Ordering::Relaxed);
    }

    fn refuses(&self) -> bool {
        let count = |left: u64| left.checked_sub(1);
        // Relaxed: as in `refuse_allocation`.
        self.0.refuse_in.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(1)
    }

    /// Runs `f` with this thread submitting to stream `n`, counted on from 0 beyond the last one. Without, a
    /// thread submits to stream 0. It holds for every device that has streams.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Sim, SimConfig, Tensor};
    /// let sim = Sim::new(SimConfig::default());
    /// let x = Tensor::ones(3, DType::F32, &Device::Sim(sim.clone()))?;
    /// let y = sim.on_stream(1, || x.affine(2., 0.))?; // waits for what stream 0 makes
    /// assert_eq!(y.to_vec1::<f32>()?, [2.; 3]);
    /// assert_eq!(sim.violations(), []);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn on_stream<R>(&self, n: usize, f: impl FnOnce() -> R) -> R {
        stream::on_stream(n, f)
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// A failed driver call; else the first failure of a kernel that ran since the last report, for example
    /// an index out of range. Whatever waits first reports it, once: this, or the read of an array.
    /// [`Error::Forked`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let site = Location::caller();
        if system::is_forked_child() {
            return Err(Error::forked("synchronize"));
        }
        self.0.device.synchronize().map_err(|error| blame(error, site))
    }

    /// Bytes in use and kept.
    pub fn stats(&self) -> MemoryStats {
        unforked(|| self.0.device.stats())
    }

    pub(crate) fn largest_free(&self) -> u64 {
        self.0.device.free_bytes().0
    }

    /// Takes the peaks as of now.
    pub fn reset_peak(&self) {
        unforked(|| self.restart_peak(true));
    }

    pub(crate) fn restart_peak(&self, reserved: bool) {
        self.0.device.reset_peak(reserved);
    }

    pub(crate) fn raise_peak(&self, to: u64) {
        self.0.device.raise_peak(to);
    }

    /// The most bytes that live arrays may take, or none. Returns the limit before.
    pub fn set_limit(&self, bytes: Option<u64>) -> Option<u64> {
        unforked(|| self.0.device.set_limit(bytes))
    }

    pub(crate) fn set_physical_limit(&self, bytes: Option<u64>) -> Option<u64> {
        self.0.device.set_physical_limit(bytes)
    }

    pub(crate) fn physical(&self) -> (u64, Option<u64>) {
        self.0.device.physical()
    }

    /// Waits for everything submitted and gives back the bytes kept for reuse. Returns how many. A driver
    /// call that fails on the way ends it early, and is the answer of the next call that waits.
    pub fn trim(&self) -> u64 {
        unforked(|| self.0.device.trim())
    }

    /// Bytes for an array: uninitialised, or zeroed, which is a kernel; and the size of their block.
    pub(crate) fn alloc(&self, bytes: usize, zeroed: bool) -> Granted<(Span, usize)> {
        if bytes > 0 && self.refuses() {
            return Err(AllocError::Exhausted);
        }
        self.reserve(bytes, zeroed)
    }
}

/// What `f` says, or nothing: in a forked child somebody may have had a lock when it was forked, and has it for ever.
fn unforked<R: Default>(f: impl FnOnce() -> R) -> R {
    if system::is_forked_child() { R::default() } else { f() }
}

#[cfg(test)]
mod tests;
