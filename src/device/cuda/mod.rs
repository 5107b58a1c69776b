//! CUDA devices, through a driver that is loaded at run time: nothing is needed to build, and a machine without a
//! driver gets an error that says what was looked for.
//!
//! ```text
//! mod.rs        Cuda: the handle, the settings, the devices of this machine
//! raw.rs        the libraries, symbol by symbol
//! checked.rs    their calls, safe to make; all unsafe code is in these two
//! libraries.rs  where they lie
//! context.rs    context, streams, events, pinned memory
//! driver.rs     segments, launches, copies, captures, as `stream/` asks for them
//! staging.rs    pinned memory on the way to the device and back
//! launch.rs     a kernel of the runtime as a launch
//! conv.rs       a convolution as several
//! params.rs     what kernels get
//! kernels.rs    kernels by name, loaded once
//! compile.rs    from source to code, and the cache on disk
//! blas.rs       matrix products by cuBLAS
//! nccl.rs       sums over several devices by NCCL
//! kernels/      the sources
//! ```
//!
//! A device that was opened stays open until the process ends. So no destructor of ours calls the driver at exit.

mod blas;
mod checked;
mod compile;
mod context;
mod conv;
mod driver;
mod kernels;
mod launch;
mod libraries;
mod nccl;
mod params;
mod raw;
mod staging;

use std::ffi::c_int;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::base::{
    call::Call,
    env,
    error::{Error, Result},
    system, units,
};
use crate::device::{
    budget::MemoryStats,
    graph,
    stream::{self, AsyncDevice, DevicePlan, Driver, Rules, Segments},
};
use context::CudaContext;
pub(crate) use conv::scratch as conv_scratch;
use driver::CudaDriver;
#[cfg(feature = "bench")]
pub use kernels::compile_all;
pub use nccl::{NcclId, NcclRank, probe_nccl};

/// A CUDA device that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaInfo {
    /// Its number, as the driver counts.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

/// The CUDA devices of this machine.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if there is no driver or no device, with what was looked for and what was found;
/// [`Error::Forked`].
#[track_caller]
pub fn probe_cuda() -> Result<Vec<CudaInfo>> {
    let call = Call::here("probe_cuda");
    // The driver answers no forked child, and may wait for its parent's locks.
    if system::is_forked_child() {
        return Err(Error::forked(call));
    }
    const DRIVER: &str = "libcuda.so, libcuda.so.1, in the loader's folders; NVIDIA's driver has it";
    let missing = |found: String| Error::device_unavailable("cuda", found).at(call.site);
    let api = checked::driver().map_err(|found| missing(format!("{found} ({DRIVER})")))?;
    let failed = |failure: raw::Failure| {
        missing(format!("{} answered error {}: {}", failure.call, failure.code, failure.meaning()))
    };
    let count = api.init().and_then(|()| api.device_count()).map_err(failed)?;
    if count <= 0 {
        return Err(missing("the driver shows no device (CUDA_VISIBLE_DEVICES may hide some)".into()));
    }
    let info = |ordinal: c_int| {
        let device = api.device(ordinal)?;
        let (name, memory_bytes) = (api.device_name(device)?, api.device_memory(device)? as u64);
        Ok(CudaInfo { ordinal: ordinal as usize, name, memory_bytes })
    };
    (0..count).map(|ordinal| info(ordinal).map_err(failed)).collect()
}

/// The driver and the libraries that were opened, with their versions, as a line for reports; nothing if none was. None
/// is opened for it, and a forked child asks none.
pub(crate) fn versions() -> String {
    let mut text = String::new();
    // As in `probe_cuda`.
    if system::is_forked_child() {
        return text;
    }
    for (name, version) in checked::versions() {
        let lead = if text.is_empty() { "cuda: " } else { ", " };
        text += lead;
        match version {
            Ok(version) => text += &format!("{name} {version}"),
            Err(failure) => text += &format!("{name} unknown: {} answered error {}", failure.call, failure.code),
        }
    }
    if !text.is_empty() {
        text += "\n";
    }
    text
}

/// What a CUDA device is opened with.
#[doc(hidden)]
#[cfg_attr(not(feature = "bench"), allow(unreachable_pub))] // `bench` shows it
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaConfig {
    /// Streams, 1 to 8.
    pub streams: usize,
    /// As of [`SimConfig`](crate::SimConfig): what is left out shows that a checker notices.
    pub order_streams: bool,
    /// Likewise.
    pub order_reuse: bool,
}

impl Default for CudaConfig {
    fn default() -> Self {
        CudaConfig { streams: 4, order_streams: true, order_reuse: true }
    }
}

/// A CUDA device. Cheap to copy; two of the same ordinal are one device.
///
/// Arrays use it through [`Device::Cuda`](crate::Device::Cuda); the methods here are what only such devices have.
#[derive(Clone, Copy)]
pub struct Cuda(&'static CudaInner);

struct CudaInner {
    ordinal: usize,
    device: AsyncDevice<CudaDriver>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("ordinal", &self.0.ordinal).finish_non_exhaustive()
    }
}

/// The devices that were opened.
static OPEN: Mutex<Vec<&'static CudaInner>> = Mutex::new(Vec::new());

impl Cuda {
    /// The device with this number; opened by the first call, and the same one after that.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if there is no driver or no such device; [`Error::Device`] if it cannot be opened;
    /// [`Error::Forked`].
    #[track_caller]
    pub fn new(ordinal: usize) -> Result<Self> {
        Call::here("Cuda::new").named(Self::open(ordinal, None))
    }

    /// As [`Cuda::new`]; with a configuration, a further device of its own on the same hardware.
    pub(crate) fn open(ordinal: usize, config: Option<CudaConfig>) -> Result<Self> {
        if system::is_forked_child() {
            return Err(Error::forked("Cuda::new"));
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if config.is_none()
            && let Some(found) = open.iter().find(|inner| inner.ordinal == ordinal)
        {
            return Ok(Cuda(found));
        }
        let devices = probe_cuda()?;
        if ordinal >= devices.len() {
            let found = format!("the driver shows {} device(s), numbered from 0", devices.len());
            return Err(Error::device_unavailable(format!("cuda:{ordinal}"), found));
        }
        let total = devices[ordinal].memory_bytes;
        let made = make(ordinal, total, config.unwrap_or_default())?;
        let inner: &'static CudaInner = Box::leak(Box::new(made));
        if config.is_none() {
            open.push(inner);
        }
        Ok(Cuda(inner))
    }

    /// Its number, as the driver counts.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Whether both are one device.
    pub fn is_same(&self, other: &Cuda) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    /// Its compute capability times 10: 90 for 9.0.
    pub fn compute_capability(&self) -> u32 {
        self.context().arch
    }

    /// Runs `f` with this thread submitting to stream `n` (of 4), counted on from 0 beyond the last one. Without, a
    /// thread submits to stream 0. It holds for every device that has streams.
    pub fn on_stream<R>(&self, n: usize, f: impl FnOnce() -> R) -> R {
        stream::on_stream(n, f)
    }

    /// Bytes that are free and bytes in all, as the driver counts them for all programs together.
    ///
    /// # Errors
    /// [`Error::Device`] if the call fails; [`Error::Forked`].
    #[track_caller]
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let call = Call::here("memory_info");
        if system::is_forked_child() {
            return Err(Error::forked(call));
        }
        call.named(self.context().memory())
    }

    /// Bytes that kernels and libraries hold for their own use: scratch, and the workspaces of cuBLAS. 0 in a forked
    /// child.
    pub fn workspace_bytes(&self) -> u64 {
        // Another thread may have had the lock when it was forked.
        if system::is_forked_child() { 0 } else { self.0.device.driver().reserved() }
    }

    /// Whether f32 matrix products may round their operands to 10 bits of mantissa (TF32), which is several times
    /// faster. Off at first. Returns what it was.
    pub fn allow_tf32(&self, allow: bool) -> bool {
        // Relaxed: a setting of its own.
        self.0.device.driver().tf32.swap(allow, Ordering::Relaxed)
    }

    /// Whether `index_add` and `scatter_add` add in the order of the indices, so that sums of floats are the same bits
    /// in every run, as on the host. Off at first, since it is slower. Returns what it was.
    ///
    /// Sums of floats of 8 and 16 bits are rounded at each addition, in either order, where the host adds in f32: a
    /// million ones added to one f16 are 2,048 here.
    pub fn order_scattered_sums(&self, order: bool) -> bool {
        // Relaxed: a setting of its own.
        self.0.device.driver().ordered.swap(order, Ordering::Relaxed)
    }

    /// Joins a group of so many ranks by NCCL as the one with this number, with this device, which no other rank of it
    /// has. Waits until all have come.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number that is not below `ranks`; [`Error::DeviceUnavailable`] without the library;
    /// [`Error::Device`] if the group cannot be made; [`Error::Forked`].
    #[track_caller]
    pub fn join(&self, id: &NcclId, number: usize, ranks: usize) -> Result<NcclRank> {
        let call = Call::here("Cuda::join");
        if system::is_forked_child() {
            return Err(Error::forked(call));
        }
        call.named(NcclRank::join(id, number, ranks, &self.0.device))
    }

    /// Whether it joined a group as this rank.
    pub(crate) fn is_of(&self, rank: &NcclRank) -> bool {
        std::ptr::eq(&self.0.device, rank.device())
    }

    fn context(&self) -> &'static CudaContext {
        self.0.device.driver().context()
    }

    #[track_caller]
    pub(crate) fn synchronize(&self) -> Result<()> {
        let site = Location::caller();
        self.0.device.synchronize().map_err(|error| graph::blame(error, site))
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        // Relaxed: a number that is reported.
        MemoryStats { pinned: self.context().pinned.load(Ordering::Relaxed), ..self.0.device.stats() }
    }

    pub(crate) fn largest_free(&self) -> u64 {
        self.0.device.free_bytes().0
    }

    pub(crate) fn restart_peak(&self, reserved: bool) {
        self.0.device.reset_peak(reserved);
    }

    pub(crate) fn raise_peak(&self, to: u64) {
        self.0.device.raise_peak(to);
    }

    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Option<u64> {
        self.0.device.set_limit(bytes)
    }

    pub(crate) fn set_physical_limit(&self, bytes: Option<u64>) -> Option<u64> {
        self.0.device.set_physical_limit(bytes)
    }

    pub(crate) fn physical(&self) -> (u64, Option<u64>) {
        self.0.device.physical()
    }

    pub(crate) fn trim(&self) -> u64 {
        self.0.device.trim()
    }
}

impl graph::Asynchronous for Cuda {
    type Driver = CudaDriver;

    fn shared(&self) -> &AsyncDevice<CudaDriver> {
        &self.0.device
    }
}

/// Opens a device. `NDGC_MAX_PHYSICAL_BYTES` is the most that is taken from the driver, `NDGC_MAX_BYTES` the most that
/// live arrays may take; percentages are of the device's memory.
fn make(ordinal: usize, total: u64, config: CudaConfig) -> Result<CudaInner> {
    let api = checked::driver().map_err(Error::msg)?;
    let limit = |name| {
        let read = |value: String| {
            let bytes = units::parse_limit(&value, Some(total));
            let expected = "a size such as 4g, a percentage such as 80%, or none";
            bytes.ok_or(Error::Environment { name, value, expected })
        };
        env::var(name).map_or(Ok(None), read)
    };
    let (physical, of_arrays) = (limit("NDGC_MAX_PHYSICAL_BYTES")?, limit("NDGC_MAX_BYTES")?);
    let context = CudaContext::new(api, ordinal)?;
    let name = context.name.clone();
    let CudaConfig { streams, order_streams, order_reuse } = config;
    let driver = CudaDriver::new(context, streams)?;
    let rules = Rules { order_streams, order_reuse, ..Rules::ALL };
    let device = AsyncDevice::new(driver, DevicePlan { name, streams, rules, segments: Segments::Graded });
    device.set_limit(of_arrays);
    device.set_physical_limit(physical);
    Ok(CudaInner { ordinal, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_an_error_that_says_so() {
        match probe_cuda() {
            Ok(devices) => assert!(devices.iter().all(|device| device.memory_bytes > 0)),
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("cuda is not available: "), "{text}");
                let of_device = Cuda::new(0).map_err(|error| error.to_string()).err();
                let said = |text: &str| text.split(" (called at").next().map(str::to_owned);
                assert_eq!(of_device.and_then(|text| said(&text)), said(&text), "the same for a device");
            }
        }
    }
}
