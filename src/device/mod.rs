//! Devices: where bytes lie and kernels run.
//!
//! A backend knows bytes, streams and kernels; it knows no keys, no managers and no gradients. Work is
//! *submitted*: on the cpu it is done when the call returns, on other devices it may be done later, in the
//! order of its stream. Ordering between streams and the reuse of freed bytes are settled above the driver,
//! in `stream.rs`, for every such device alike.

pub(crate) mod budget;
pub(crate) mod buffer;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod kernel;
pub(crate) mod sim;
pub(crate) mod stream;

use std::fmt;

use crate::base::{
    env,
    error::{Error, Result},
};
use budget::{AllocError, MemoryStats};
use buffer::{Buffer, Span};
use kernel::{Kernel, View};
use sim::{Sim, SimConfig};

/// Where an array's bytes are and its operations run. Cheap to clone; equal if it is the same device.
///
/// An array is never moved silently: operands on different devices are an error.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Device {
    /// The host.
    #[default]
    Cpu,
    /// A simulated device: deferred, checked, and able to fail on request. For tests.
    Sim(Sim),
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Device::Cpu, Device::Cpu) => true,
            (Device::Sim(a), Device::Sim(b)) => a.is_same(b),
            _ => false,
        }
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Sim(sim) => write!(f, "sim:{}", sim.ordinal()),
        }
    }
}

impl Device {
    /// A new simulated device with memory and streams of its own.
    pub fn sim(config: SimConfig) -> Self {
        Device::Sim(Sim::new(config))
    }

    /// The device that `NDGC_DEVICE` names; the host if it is not set.
    ///
    /// # Errors
    /// [`Error::Environment`] if the name is not understood.
    pub fn from_env() -> Result<Self> {
        match env::var("NDGC_DEVICE").as_deref() {
            None | Some("cpu") => Ok(Device::Cpu),
            Some("sim") => Ok(Device::sim(SimConfig::default())),
            Some(other) => {
                Err(Error::Environment { name: "NDGC_DEVICE", value: other.to_owned(), expected: "cpu or sim" })
            }
        }
    }

    /// Whether this is the host.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Device::Cpu)
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// The first failure of the work waited for.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Sim(sim) => sim.synchronize(),
        }
    }

    /// Bytes in use and kept.
    pub fn memory(&self) -> MemoryStats {
        match self {
            Device::Cpu => cpu::pool::stats(),
            Device::Sim(sim) => sim.stats(),
        }
    }

    /// Takes the peak as of now.
    pub fn reset_peak(&self) {
        match self {
            Device::Cpu => cpu::pool::reset_peak(),
            Device::Sim(sim) => sim.reset_peak(),
        }
    }

    /// The most bytes that live arrays may take, or none. Returns the limit before.
    ///
    /// Without a call, `NDGC_MAX_BYTES` limits the host.
    pub fn set_limit(&self, bytes: Option<u64>) -> Option<u64> {
        match self {
            Device::Cpu => cpu::pool::set_limit(bytes),
            Device::Sim(sim) => sim.set_limit(bytes),
        }
    }

    /// Gives the bytes kept for reuse back to the system. Returns how many.
    pub fn clear_cache(&self) -> u64 {
        match self {
            Device::Cpu => cpu::pool::trim(),
            Device::Sim(sim) => sim.trim(),
        }
    }

    /// Bytes for an array: uninitialised, or zeroed.
    #[inline]
    pub(crate) fn alloc(&self, bytes: usize, zeroed: bool) -> std::result::Result<Buffer, AllocError> {
        match self {
            Device::Cpu => cpu::pool::alloc(bytes, zeroed),
            Device::Sim(sim) => sim.alloc(bytes, zeroed),
        }
    }

    /// Submits a kernel.
    ///
    /// # Safety
    /// The spans of all views belong to live buffers of this device, until this call returns; on the cpu
    /// nobody else writes the sources or touches the destinations meanwhile, and the contract of the kernel
    /// about overlap holds.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn launch(&self, kernel: &Kernel) -> Result<()> {
        match self {
            // SAFETY: the caller's promises are those that `run` asks for.
            Device::Cpu => unsafe { cpu::run(kernel) },
            Device::Sim(sim) => sim.launch(kernel),
        }
    }

    /// Fills a fresh buffer from host bytes.
    ///
    /// # Safety
    /// `dst` belongs to a live buffer of this device that nobody else uses; `bytes.len() == dst.bytes()`.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn upload(&self, dst: Span, bytes: &[u8]) -> Result<()> {
        match self {
            Device::Cpu => {
                // SAFETY: by the caller's promise `dst` is that many bytes of ours alone.
                unsafe { dst.ptr().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            Device::Sim(sim) => sim.upload(dst, bytes),
        }
    }

    /// Copies the whole span of a view to host memory, after everything submitted that writes it.
    /// For devices other than the cpu, whose bytes are read in place.
    pub(crate) fn download(&self, src: &View, out: &mut [u8]) -> Result<()> {
        match self {
            Device::Cpu => Err(Error::msg("the host's bytes are read in place")),
            Device::Sim(sim) => sim.download(src, out),
        }
    }
}
