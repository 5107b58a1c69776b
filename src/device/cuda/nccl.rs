//! Sums over several devices by NCCL, which is found when it is asked for.
//!
//! A rank is a device in a group: of this process, of others, on other machines. Its sums run on the device's streams,
//! between the other work that uses the same bytes; the array's side of them is `ops/exchange/nccl.rs`.

use std::ffi::c_int;
use std::fmt;

use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
    system,
};
use crate::device::{
    cuda::{
        checked::{Rank, RankId},
        context::CudaContext,
        driver::CudaDriver,
        params,
        raw::{Answer, Failure},
    },
    kernel::{OwnedView, View},
    stream::AsyncDevice,
};

/// The version of NCCL that is installed: 22005 for 2.20.5.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if there is none, with what was looked for.
#[track_caller]
pub fn probe_nccl() -> Result<u32> {
    Call::here("probe_nccl").named(answered(Rank::version())).map(|version| version as u32)
}

/// What a call of the library answered, which may be missing.
fn answered<T>(answer: std::result::Result<Answer<T>, &'static str>) -> Result<T> {
    const DEVICE: &str = "nccl";
    let answer = answer.map_err(|found| {
        Error::device_unavailable(DEVICE, format!("{found} (libnccl.so.2, libnccl.so, in the loader's folders)"))
    });
    answer?.map_err(|failure| {
        Error::device(DEVICE, failure.call, format!("error {}: {}", failure.code, failure.meaning()))
    })
}

/// What the ranks of a group have in common: made by one of them, and brought to the others by any means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclId(RankId);

impl NcclId {
    /// That of a new group.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] without the library; [`Error::Device`] if it cannot; [`Error::Forked`].
    #[track_caller]
    pub fn new() -> Result<Self> {
        let call = Call::here("NcclId::new");
        // The first call of the library makes calls of the driver.
        if system::is_forked_child() {
            return Err(Error::forked(call));
        }
        call.named(answered(Rank::id())).map(NcclId)
    }

    /// It as bytes.
    pub fn to_bytes(self) -> [u8; 128] {
        self.0
    }

    /// What [`NcclId::to_bytes`] gave.
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        NcclId(bytes)
    }
}

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclId")
    }
}

/// A device as one of a group that adds up together, by NCCL: from [`Cuda::join`](crate::Cuda::join).
///
/// [`NcclRank::all_reduce`] is all there is. It says nothing to the other ranks when it fails, and a rank that does not
/// come lets the others wait for ever, on their devices:
/// [`train::NcclCommunicator`](crate::train::NcclCommunicator) is made of this and sees to it.
///
/// Its drop waits until the device has done what was submitted, and then leaves the group.
///
/// ```no_run
/// use ndgc::{Cuda, Device, NcclId, Tensor};
///
/// let id = NcclId::new()?;
/// let ranks = [0, 1].map(|number| {
///     std::thread::spawn(move || {
///         let cuda = Cuda::new(number)?;
///         let rank = cuda.join(&id, number, 2)?;
///         let own = Tensor::full(number as f32 + 1., 4, &Device::Cuda(cuda))?;
///         rank.all_reduce(&own)?;
///         own.to_vec1::<f32>()
///     })
/// });
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap()?, [3.; 4]);
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct NcclRank {
    /// None after [`NcclRank::abort`].
    rank: Option<Rank>,
    number: usize,
    ranks: usize,
    device: &'static AsyncDevice<CudaDriver>,
}

impl NcclRank {
    /// As `Cuda::join` has it.
    pub(super) fn join(
        id: &NcclId,
        number: usize,
        ranks: usize,
        device: &'static AsyncDevice<CudaDriver>,
    ) -> Result<Self> {
        let counts = [number, ranks].map(|count| c_int::try_from(count).ok());
        let ([Some(own), Some(all)], true) = (counts, number < ranks) else {
            let (op, argument, expected) = ("Cuda::join", "number", "a rank below their number");
            return Err(Error::argument(op, argument, format!("{number} of {ranks}"), expected));
        };
        // The library takes the context that is current.
        device.driver().context().make_current()?;
        let rank = Some(answered(Rank::join(&id.0, own, all))?);
        Ok(NcclRank { rank, number, ranks, device })
    }

    /// Which rank this is: `0..ranks`.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Leaves the group at once: sums that still run here end without a result. Other ranks wait in theirs until they
    /// do the same. A forked child leaves nothing: the rank is its parent's.
    pub fn abort(&mut self) {
        let mut rank = self.rank.take();
        if system::is_forked_child() {
            return;
        }
        // It is of no use whatever the answer is.
        let _ = self.context().call(|_| Rank::abort(&mut rank));
    }

    /// Submits the sum over all ranks, in the place of this rank's numbers: contiguous ones, of one of four types.
    pub(crate) fn add_up(&self, op: &'static str, numbers: View<'_>) -> Result<()> {
        let gone = || Error::invalid(op, "this rank left its group; join one anew");
        let rank = self.rank.as_ref().ok_or_else(gone)?;
        let dtype = nccl_type(numbers.dtype());
        let dtype = dtype.ok_or_else(|| Error::unsupported_dtype(op, numbers.dtype(), "f16, bf16, f32 and f64"))?;
        let context = self.context();
        match context.check(rank.fault())? {
            0 => {}
            fault => return context.check(Err(Failure { call: "ncclAllReduce", code: fault as u32 })),
        }
        let numbers = OwnedView::from(&numbers);
        let (address, count) = (params::address(&numbers), numbers.layout().shape().elem_count());
        let add_up = |stream| self.device.driver().add_up(rank, address, count, dtype, stream);
        self.device.change(numbers.span(), add_up)
    }

    /// The device that it was joined with.
    pub(super) fn device(&self) -> &'static AsyncDevice<CudaDriver> {
        self.device
    }

    fn context(&self) -> &'static CudaContext {
        self.device.driver().context()
    }
}

/// `ncclDataType_t`.
fn nccl_type(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::F16 => Some(6),
        DType::F32 => Some(7),
        DType::F64 => Some(8),
        DType::BF16 => Some(9),
        _ => None,
    }
}

impl fmt::Debug for NcclRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclRank({} of {}, {})", self.number, self.ranks, self.context().name)
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        // A forked child leaves what is its parent's as it is.
        if self.rank.is_some() && !system::is_forked_child() {
            // What failed is the answer of the next waiting call, here too.
            self.device.wait_silently();
            self.abort();
        }
    }
}
