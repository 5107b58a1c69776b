//! Devices: where bytes lie and kernels run.
//!
//! A backend knows bytes, streams and kernels; it knows no keys, no managers and no gradients. Work is
//! *submitted*: on the cpu it is done when the call returns, on other devices it may be done later, in the
//! order of its stream. Ordering between streams and the reuse of freed bytes are settled above the driver,
//! in `stream/`, for every such device alike.

mod blocks;
pub(crate) mod budget;
pub(crate) mod buffer;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod graph;
pub(crate) mod host;
pub(crate) mod sim;
pub(crate) mod spill;
pub(crate) mod stream;

pub(crate) use ndgc_kernels::{axiswise, cpu, kernel, shared, span, window};

use std::fmt;
use std::panic::Location;
use std::str::FromStr;

use crate::base::{
    call::Call,
    dtype::DType,
    env,
    error::{Error, Result},
    system,
};
use budget::MemoryStats;
#[cfg(feature = "cuda")]
use cuda::Cuda;
use graph::{Asynchronous, Graph};
use kernel::{Kernel, OwnedView, View};
use sim::{Sim, SimConfig};
use span::Span;
use window::{ConvOp, ConvSizes};

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
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// Where a [`Device`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceLocation {
    /// The host.
    Cpu,
    /// A CUDA device, by the driver's number.
    Cuda {
        /// The number.
        gpu_id: usize,
    },
    /// A simulated device, by the order in which they were made.
    Sim {
        /// The number.
        sim_id: u64,
    },
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Device::Cpu, Device::Cpu) => true,
            (Device::Sim(a), Device::Sim(b)) => a.is_same(b),
            #[cfg(feature = "cuda")]
            (Device::Cuda(a), Device::Cuda(b)) => a.is_same(b),
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
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => write!(f, "cuda:{}", cuda.ordinal()),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    /// As [`Device::from_env`] reads `NDGC_DEVICE`.
    ///
    /// ```
    /// # use ndgc::{Device, Error};
    /// assert!("cpu".parse::<Device>()?.is_cpu());
    /// assert!(matches!("gpu".parse::<Device>(), Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "cpu" => return Ok(Device::Cpu),
            "sim" => return Ok(Device::sim(SimConfig::default())),
            "best" => return Ok(Device::best()),
            #[cfg(feature = "cuda")]
            "cuda" => return Self::cuda(0),
            _ => {}
        }
        #[cfg(feature = "cuda")]
        if let Some(ordinal) = name.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()) {
            return Self::cuda(ordinal);
        }
        Err(Error::argument("Device::from_str", "name", name, "cpu, sim, cuda, cuda:<number> or best"))
    }
}

/// The libraries of devices that this process opened, with their versions, as a line for reports; nothing without any.
#[cfg(feature = "cuda")]
pub(crate) fn libraries() -> String {
    cuda::versions()
}

/// Nothing: this build opens none.
#[cfg(not(feature = "cuda"))]
pub(crate) fn libraries() -> String {
    String::new()
}

/// # Devices there are
impl Device {
    /// A new simulated device with memory and streams of its own.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::default());
    /// let x = Tensor::ones(3, DType::F32, &device)?; // submitted; it runs when somebody needs it
    /// assert_eq!(x.affine(2., 1.)?.to_vec1::<f32>()?, [3.; 3]);
    /// let mixed = x.add(&Tensor::ones(3, DType::F32, &Device::Cpu)?); // nothing is moved silently
    /// assert!(matches!(mixed, Err(Error::DeviceMismatch { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn sim(config: SimConfig) -> Self {
        Device::Sim(Sim::new(config))
    }

    /// The CUDA device with this number, as the driver counts. Opened by the first call.
    ///
    /// ```
    /// # use ndgc::{Device, Error};
    /// let missing = Device::cuda(1 << 20); // an error, and not another device
    /// assert!(matches!(missing, Err(Error::DeviceUnavailable { .. })));
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if there is no driver or no such device, with what was looked for and what was
    /// found; [`Error::Device`] if it cannot be opened.
    #[cfg(feature = "cuda")]
    #[track_caller]
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Cuda::new(ordinal).map(Device::Cuda)
    }

    /// Alias of [`Device::cuda`]: candle's name.
    ///
    /// # Errors
    /// As of [`Device::cuda`].
    #[cfg(feature = "cuda")]
    #[track_caller]
    pub fn new_cuda(ordinal: usize) -> Result<Self> {
        Self::cuda(ordinal)
    }

    /// The CUDA device with this number if there are CUDA devices at all, else the host; candle's name.
    ///
    /// # Errors
    /// As of [`Device::cuda`], if there are devices; [`Error::Forked`].
    #[cfg(feature = "cuda")]
    #[track_caller]
    pub fn cuda_if_available(ordinal: usize) -> Result<Self> {
        match cuda::probe_cuda() {
            Ok(_) | Err(Error::Forked { .. }) => Self::cuda(ordinal),
            Err(_) => Ok(Device::Cpu),
        }
    }

    /// Alias of [`Device::cuda`]: candle's name.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`]: this build has no feature `cuda`.
    #[cfg(not(feature = "cuda"))]
    #[track_caller]
    pub fn new_cuda(ordinal: usize) -> Result<Self> {
        let found = "this build has no feature `cuda`";
        Call::here("Device::new_cuda").named(Err(Error::device_unavailable(format!("cuda:{ordinal}"), found)))
    }

    /// The host: this build has no feature `cuda`. candle's name.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "cuda"))]
    pub fn cuda_if_available(_ordinal: usize) -> Result<Self> {
        Ok(Device::Cpu)
    }

    /// Alias of [`Device::new_cuda`]: candle's name.
    ///
    /// # Errors
    /// As [`Device::new_cuda`].
    #[track_caller]
    pub fn new_cuda_with_stream(ordinal: usize) -> Result<Self> {
        Self::new_cuda(ordinal)
    }

    /// candle's name for a device of Apple's, which ndgc does not have.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`], always.
    #[track_caller]
    pub fn new_metal(ordinal: usize) -> Result<Self> {
        let found = "ndgc computes on the host and on CUDA devices";
        Call::here("Device::new_metal").named(Err(Error::device_unavailable(format!("metal:{ordinal}"), found)))
    }

    /// The host, as there are no devices of Apple's; candle's name.
    ///
    /// # Errors
    /// None.
    pub fn metal_if_available(_ordinal: usize) -> Result<Self> {
        Ok(Device::Cpu)
    }

    /// The first CUDA device if there is one, else the host. Why it is the host is said once, on standard error.
    ///
    /// ```
    /// let device = ndgc::Device::best();
    /// # let _ = device;
    /// ```
    #[track_caller]
    pub fn best() -> Self {
        #[cfg(feature = "cuda")]
        match Self::cuda(0) {
            Ok(device) => return device,
            Err(error) => {
                static SAID: std::sync::Once = std::sync::Once::new();
                SAID.call_once(|| crate::base::say::say(format_args!("computing on the cpu: {error}")));
            }
        }
        Device::Cpu
    }

    /// The device that `NDGC_DEVICE` names: `cpu`, `sim`, `cuda`, `cuda:1`, or `best` for [`Device::best`]; the host if
    /// it is not set.
    ///
    /// # Errors
    /// [`Error::Environment`] if the name is not understood; those of [`Device::cuda`], as a missing
    /// device is an error, never a silent fallback.
    #[track_caller]
    pub fn from_env() -> Result<Self> {
        let Some(wish) = env::var("NDGC_DEVICE") else { return Ok(Device::Cpu) };
        Call::here("Device::from_env").named(wish.parse().map_err(|error| match error {
            Error::Argument { value, expected, .. } => Error::Environment { name: "NDGC_DEVICE", value, expected },
            other => other,
        }))
    }
}

/// # Which device it is
impl Device {
    /// Whether this is the host.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Device::Cpu)
    }

    /// Whether this is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        matches!(self.location(), DeviceLocation::Cuda { .. })
    }

    /// Whether this is a device of Apple's: never.
    pub fn is_metal(&self) -> bool {
        false
    }

    /// Whether products of bf16 are the device's own: not on the host, which computes them in f32.
    pub fn supports_bf16(&self) -> bool {
        self.is_cuda()
    }

    /// BF16 where the device [supports it](Device::supports_bf16), else F32.
    pub fn bf16_default_to_f32(&self) -> DType {
        if self.supports_bf16() { DType::BF16 } else { DType::F32 }
    }

    /// Alias of `==`: candle's name.
    pub fn same_device(&self, other: &Self) -> bool {
        self == other
    }

    /// Where it is, as a value that can be compared and kept.
    ///
    /// ```
    /// # use ndgc::{Device, DeviceLocation, SimConfig};
    /// assert_eq!(Device::Cpu.location(), DeviceLocation::Cpu);
    /// let device = Device::sim(SimConfig::default());
    /// assert!(device.location() == device.clone().location()); // a clone is the same device
    /// assert!(device.location() != Device::sim(SimConfig::default()).location());
    /// ```
    pub fn location(&self) -> DeviceLocation {
        match self {
            Device::Cpu => DeviceLocation::Cpu,
            Device::Sim(sim) => DeviceLocation::Sim { sim_id: sim.ordinal() },
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => DeviceLocation::Cuda { gpu_id: cuda.ordinal() },
        }
    }
}

/// # Work: waiting, capturing
impl Device {
    /// Waits until everything submitted is done.
    ///
    /// ```
    /// # use ndgc::{DType, Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::default());
    /// let Device::Sim(sim) = &device else { unreachable!() };
    /// let _x = Tensor::ones(3, DType::F32, &device)?;
    /// assert!(sim.pending() > 0);
    /// device.synchronize()?;
    /// assert_eq!(sim.pending(), 0);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first failure of the work waited for; [`Error::Forked`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        if system::is_forked_child() {
            return Err(Error::forked("synchronize"));
        }
        match self {
            Device::Cpu => Ok(()),
            Device::Sim(sim) => sim.synchronize(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.synchronize(),
        }
    }

    /// Waits as [`Device::synchronize`] does, where nobody can be told of a failure: the next waiting call tells of it.
    /// A forked child waits for nothing.
    pub(crate) fn wait_silently(&self) {
        if system::is_forked_child() {
            return;
        }
        match self {
            Device::Cpu => {}
            Device::Sim(sim) => sim.shared().wait_silently(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.shared().wait_silently(),
        }
    }

    /// Captures what `f` submits to this device on this thread, to be run again as a whole by [`Graph::replay`].
    ///
    /// `f` runs once, and its work is recorded instead of run: the arrays made in it have undefined contents until the
    /// first replay, and nothing in it may need them on the host. It takes memory from what the device keeps for
    /// reuse and asks for none, so run it once before, and again if its first run makes things that stay, such as an
    /// optimiser's state. Meanwhile other threads submit nothing to the device; they may close arrays.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let refused = Device::Cpu.capture(|| x.exp()); // the host has no graphs
    /// assert!(matches!(refused, Err(Error::Capture { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Capture`] for whatever a section cannot hold (memory that has to be asked for, memory of others, a
    ///   read, a copy of numbers from the host, a wait, another stream, another capture), with the place of the call,
    ///   also if `f` went on after it; and always on the host, which has no graphs.
    /// - Whatever `f` returns.
    /// - [`Error::Forked`].
    ///
    /// The device works as before after each of them.
    #[track_caller]
    pub fn capture<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<(Graph, R)> {
        let site = Location::caller();
        if system::is_forked_child() {
            return Err(Error::forked("capture"));
        }
        match self {
            Device::Cpu => Err(graph::refused_on_the_host(site)),
            Device::Sim(sim) => graph::capture(sim, site, f),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => graph::capture(cuda, site, f),
        }
    }
}

/// # Memory: what is in use, and its limit
///
/// A forked child has none, and sets nothing: somebody may have had a lock when it was forked, and has it for ever.
impl Device {
    /// Bytes in use and kept.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let before = Device::Cpu.memory();
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let _row = x.get(0)?; // of the same storage
    /// assert_eq!(Device::Cpu.memory().active - before.active, 24);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn memory(&self) -> MemoryStats {
        if system::is_forked_child() {
            return MemoryStats::default();
        }
        match self {
            Device::Cpu => host::pool::stats(),
            Device::Sim(sim) => sim.stats(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.stats(),
        }
    }

    /// Whether the bytes of a buffer of its pool are among the active ones.
    fn counts(&self, span: Span) -> bool {
        match self {
            Device::Cpu => true,
            Device::Sim(sim) => sim.shared().counts(span),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.shared().counts(span),
        }
    }

    /// Bytes of the largest block that is kept for reuse.
    pub(crate) fn largest_free(&self) -> u64 {
        if system::is_forked_child() {
            return 0;
        }
        match self {
            Device::Cpu => host::pool::largest_free(),
            Device::Sim(sim) => sim.largest_free(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.largest_free(),
        }
    }

    /// Takes the peak of live bytes as of now, and with `reserved` those of what is reserved, used and kept.
    pub(crate) fn restart_peak(&self, reserved: bool) {
        if system::is_forked_child() {
            return;
        }
        match self {
            Device::Cpu => host::pool::reset_peak(reserved),
            Device::Sim(sim) => sim.restart_peak(reserved),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.restart_peak(reserved),
        }
    }

    /// Takes a peak of live bytes that was before.
    pub(crate) fn raise_peak(&self, to: u64) {
        if system::is_forked_child() {
            return;
        }
        match self {
            Device::Cpu => host::pool::raise_peak(to),
            Device::Sim(sim) => sim.raise_peak(to),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.raise_peak(to),
        }
    }

    /// The most bytes that live arrays may take, or none. Returns the limit before.
    ///
    /// Without a call, `NDGC_MAX_BYTES` limits the host and each CUDA device: `800m`, `2g`, `50%` of the memory that
    /// there is, or `none`, as without it.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let before = Device::Cpu.set_limit(Some(1 << 20));
    /// let refused = Tensor::zeros(2 << 20, DType::U8, &Device::Cpu);
    /// assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    /// Device::Cpu.set_limit(before);
    /// ```
    pub fn set_limit(&self, bytes: Option<u64>) -> Option<u64> {
        if system::is_forked_child() {
            return None;
        }
        match self {
            Device::Cpu => host::pool::set_limit(bytes),
            Device::Sim(sim) => sim.set_limit(bytes),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.set_limit(bytes),
        }
    }

    /// The most bytes that the process may have resident when the host takes memory from the system, or that a device's
    /// pool may have from its driver, or none. Returns the limit before. What is kept for reuse goes back if there is
    /// more than a new limit, and before a request is refused; what programs allocate themselves, and kernels and
    /// libraries of a device, counts, and is not refused. Pages of files do not count: the system takes them back where
    /// it needs them.
    ///
    /// Without a call, `NDGC_MAX_PHYSICAL_BYTES`, read as that of [`Device::set_limit`]; without that, what the control
    /// group of the process may have, as in a container, if that is less than the machine has, and else none. For CUDA
    /// devices the variable alone. 0 is no byte.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let before = Device::Cpu.set_physical_limit(Some(1 << 20))?; // less than any process has
    /// let refused = Tensor::zeros(64 << 20, DType::U8, &Device::Cpu);
    /// assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    /// Device::Cpu.set_physical_limit(before)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[track_caller]
    pub fn set_physical_limit(&self, bytes: Option<u64>) -> Result<Option<u64>> {
        let call = Call::here("set_physical_limit");
        if system::is_forked_child() {
            return Err(Error::forked(call));
        }
        Ok(match self {
            Device::Cpu => host::pool::set_physical_limit(bytes),
            Device::Sim(sim) => sim.set_physical_limit(bytes),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.set_physical_limit(bytes),
        })
    }

    /// What the process has resident, or what was taken from the device's driver, and the limit on it. None without a
    /// limit, or where the system does not say.
    pub(crate) fn physical(&self) -> Option<(u64, u64)> {
        let (taken, most) = match self {
            Device::Cpu => {
                let most = host::pool::physical_limit()?;
                return system::resident_bytes().map(|resident| (resident, most));
            }
            Device::Sim(sim) => sim.physical(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.physical(),
        };
        most.map(|most| (taken, most))
    }

    /// Gives the bytes kept for reuse back to the system. Returns how many.
    pub(crate) fn trim(&self) -> u64 {
        match self {
            Device::Cpu => host::pool::trim(),
            Device::Sim(sim) => sim.trim(),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.trim(),
        }
    }

    /// Submits a kernel, to a device whose work is not done at once: the host's is the business of who launches
    /// (`ops/call/exec.rs`).
    pub(crate) fn submit(&self, kernel: &Kernel<View<'_>>) -> Result<()> {
        match self {
            Device::Cpu => Err(Error::msg("the host's kernels run where they are launched")),
            Device::Sim(sim) => sim.launch(&kernel.to_owned()),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.launch(&kernel.to_owned()),
        }
    }

    /// Elements of scratch memory that a convolution wants.
    pub(crate) fn conv_scratch(&self, op: ConvOp, sizes: &ConvSizes) -> usize {
        match self {
            Device::Cpu | Device::Sim(_) => cpu::conv::scratch(op, sizes),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::conv_scratch(op, sizes),
        }
    }

    /// Gives the bytes of the whole span of a view to `take`, part after part, after everything submitted that writes
    /// them. For devices other than the cpu, whose bytes are read in place.
    pub(crate) fn download(&self, src: &OwnedView, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        match self {
            Device::Cpu => Err(Error::msg("the host's bytes are read in place")),
            Device::Sim(sim) => sim.download(src, take),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.download(src, take),
        }
    }
}
