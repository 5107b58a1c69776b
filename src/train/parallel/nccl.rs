//! What joins GPUs: sums by NCCL, between the devices.

use std::fmt;

use ndgc::{DType, Device, Error, NcclId, NcclRank, Result, Tensor, no_grad, probe_nccl};

use super::super::place::called_here;
use super::communicator::{Communicator, DIFFERENT, OP, cannot_go_on, fingerprint};

/// The [`Communicator`] of NVIDIA GPUs, by NCCL: numbers go from device to device, over NVLink, PCIe or the network,
/// and never by way of the host.
///
/// Ranks agree by another communicator, of threads or of processes: on the group itself, and before each sum on whether
/// all of them come, with arrays of equal sizes. So a rank that fails is heard as that one has it, and does not leave
/// the others waiting on their devices.
///
/// ```no_run
/// # use ndgc::train::{ArrayDataSetIterator, DataSet, InputType, Loss, NcclCommunicator, NetworkConfig, OutputLayer};
/// # use ndgc::train::{ParallelWrapper, ThreadCommunicator, TrainingMode};
/// # use ndgc::{DType, Device, Tensor};
/// // Two GPUs of this process, a thread each. With `MpiCommunicator` it is a process each, on as many machines.
/// let ranks = ThreadCommunicator::group(2)?.into_iter().enumerate().map(|(rank, group)| {
///     std::thread::spawn(move || {
///         let device = Device::cuda(rank)?;
///         let gpus = NcclCommunicator::new(Box::new(group), &device)?;
///         let config = NetworkConfig::builder().device(&device).input_type(InputType::feed_forward(3));
///         let network = config.layer(OutputLayer::new(2, Loss::Mse)).build()?;
///         let mut wrapper = ParallelWrapper::builder(network)
///             .training_mode(TrainingMode::SharedGradients)
///             .communicator(Box::new(gpus))
///             .build()?;
///         # let x = Tensor::ones((64, 3), DType::F32, &device)?;
///         # let my_part = DataSet::new(x.clone(), x.narrow(1, 0, 2)?)?;
///         wrapper.fit(ArrayDataSetIterator::new(my_part, 8)?) // each rank its own, as many batches on all
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     rank.join().unwrap()?;
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct NcclCommunicator {
    control: Box<dyn Communicator>,
    rank: NcclRank,
    device: Device,
    /// Why no sum follows.
    ended: Option<String>,
}

/// What NCCL is given: the numbers of all arrays of one dtype, behind each other.
struct Bucket {
    numbers: Tensor,
    /// The places of the arrays.
    of: Vec<usize>,
}

/// Numbers that say a hash of 64 bits, each of which an f64 holds.
fn words(hash: u64) -> [f64; 2] {
    [(hash >> 32) as f64, (hash & u64::from(u32::MAX)) as f64]
}

impl NcclCommunicator {
    /// Joins the ranks of `control`, each with a device of its own. All ranks call this; it waits until they have.
    ///
    /// # Errors
    /// [`Error::Argument`] for a device that is not CUDA's; [`Error::DeviceUnavailable`] without NCCL;
    /// [`Error::Device`] if the library refuses, as it does for a device that two ranks have; [`Error::Invalid`] if
    /// another rank has one of these, or another version.
    #[track_caller]
    pub fn new(mut control: Box<dyn Communicator>, device: &Device) -> Result<Self> {
        let made = Self::join(control.as_mut(), device);
        if let Err(error) = &made {
            control.abort(&error.to_string());
        }
        Ok(NcclCommunicator { control, rank: called_here(made)?, device: device.clone(), ended: None })
    }

    fn join(control: &mut dyn Communicator, device: &Device) -> Result<NcclRank> {
        let (rank, ranks) = (control.rank(), control.size());
        let Device::Cuda(cuda) = device else {
            let (op, value) = ("NcclCommunicator::new", device.to_string());
            return Err(Error::argument(op, "device", value, "a CUDA device"));
        };
        // Whoever cannot come says so here: nobody waits for it in the library.
        let version = f64::from(probe_nccl()?);
        let id = if rank == 0 { Some(NcclId::new()?) } else { None };
        let own = id.map_or([0; 128], NcclId::to_bytes).map(f64::from);
        let all = said(control, &[&[version][..], &own].concat())?;
        if all.iter().any(|other| other[0] != version) {
            return Err(Error::invalid("NcclCommunicator", "the ranks have different versions of NCCL"));
        }
        let bytes = std::array::from_fn(|i| all[0][i + 1] as u8);
        let joined = cuda.join(&NcclId::from_bytes(bytes), rank, ranks)?;
        // Nobody begins before all have come.
        said(control, &[])?;
        Ok(joined)
    }

    /// Puts the numbers of all arrays, times the factor, behind each other.
    fn gather(&self, arrays: &[Tensor], scale: f64) -> Result<Vec<Bucket>> {
        let op = "NcclCommunicator::all_reduce";
        for array in arrays {
            let dtype = array.dtype();
            if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
                return Err(Error::unsupported_dtype(op, dtype, "f16, bf16, f32 and f64"));
            }
            if array.device() != &self.device {
                let (lhs, rhs) = (self.device.to_string(), array.device().to_string());
                return Err(Error::device_mismatch(op, lhs, rhs));
            }
        }
        let mut buckets = Vec::new();
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let is_of = |place: &usize| arrays[*place].dtype() == dtype && arrays[*place].elem_count() > 0;
            let of: Vec<usize> = (0..arrays.len()).filter(is_of).collect();
            if of.is_empty() {
                continue;
            }
            let flat = of.iter().map(|&place| arrays[place].flatten_all()).collect::<Result<Vec<_>>>()?;
            let numbers = Tensor::cat(&flat, 0)?;
            if scale != 1. {
                numbers.affine_(scale, 0.)?;
            }
            buckets.push(Bucket { numbers, of });
        }
        Ok(buckets)
    }

    /// Tells the others what this rank brings, for the device and for the host, and hears whether all bring the same.
    fn agree(&mut self, brought: [u64; 2]) -> Result<()> {
        let own = brought.map(words).concat();
        let all = said(self.control.as_mut(), &own)?;
        match all.iter().all(|other| *other == own) {
            true => Ok(()),
            false => Err(cannot_go_on(self.rank(), DIFFERENT)),
        }
    }

    fn add_up(&self, arrays: &[Tensor], buckets: &[Bucket]) -> Result<()> {
        for Bucket { numbers, of } in buckets {
            self.rank.all_reduce(numbers)?;
            let mut at = 0;
            for array in of.iter().map(|&place| &arrays[place]) {
                let count = array.elem_count();
                array.copy_(&numbers.narrow(0, at, count)?.reshape(array.dims())?)?;
                at += count;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclCommunicator(rank {} of {}, {})", self.rank(), self.size(), self.device)
    }
}

impl Communicator for NcclCommunicator {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn size(&self) -> usize {
        self.control.size()
    }

    /// As [`Communicator::all_reduce`] has it. The factor is applied before, and numbers are added in their dtype. It
    /// takes room for them once more while it runs. Returns when the sums are submitted. Arrays of the host are added
    /// up by the other communicator.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for other than f16, bf16, f32 and f64; [`Error::DeviceMismatch`] for an array of a
    /// third device; [`Error::Invalid`] if a rank aborted or is gone, or if the ranks bring different things.
    fn all_reduce(&mut self, arrays: &[Tensor], scale: f64) -> Result<()> {
        if let Some(why) = &self.ended {
            return Err(Error::invalid(OP, why));
        }
        let summed = no_grad(|| {
            let (on_host, arrays): (Vec<_>, Vec<_>) = arrays.iter().cloned().partition(|array| array.device().is_cpu());
            let buckets = self.gather(&arrays, scale)?;
            self.agree([fingerprint(&arrays, scale), fingerprint(&on_host, scale)])?;
            self.add_up(&arrays, &buckets)?;
            if on_host.is_empty() { Ok(()) } else { self.control.all_reduce(&on_host, scale) }
        });
        if let Err(error) = &summed {
            self.abort(&error.to_string());
        }
        summed
    }

    fn end(&mut self) -> Result<()> {
        if let Some(why) = &self.ended {
            return Err(Error::invalid(OP, why));
        }
        let ended = self.control.end();
        if let Err(error) = &ended {
            self.abort(&error.to_string());
        }
        ended
    }

    fn abort(&mut self, why: &str) {
        if self.ended.is_none() {
            self.ended = Some(why.to_owned());
            self.control.abort(why);
            // What runs here must not wait for ranks that do not come.
            self.rank.abort();
        }
    }
}

/// What each rank says: as many numbers.
fn said(control: &mut dyn Communicator, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let (rank, ranks, count) = (control.rank(), control.size(), own.len());
    let mut all = vec![0.; ranks * count];
    all[rank * count..][..count].copy_from_slice(own);
    let all = Tensor::from_vec(all, ranks * count, &Device::Cpu)?;
    control.all_reduce(std::slice::from_ref(&all), 1.)?;
    let all = all.to_vec::<f64>()?;
    Ok((0..ranks).map(|rank| all[rank * count..][..count].to_vec()).collect())
}
