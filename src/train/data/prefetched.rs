//! Batches made ahead by a thread of their own, in the blocks of a ring.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndgc::nn::Prefetch;
use ndgc::{Device, Error, ResetPolicy, Result, SpillPolicy, Workspace, WorkspaceConfig};

use super::super::place::{called_here, of_call};

use super::data_set::{DataSet, MultiDataSet};
use super::examples::Examples;
use super::iterator::DataIterator;
use super::lease::Held;

/// Batches that wait, unless the user says how many: ND4J's number.
const PREFETCH: usize = 8;

/// A batch that can hold the part of a ring that its arrays lie in: [`DataSet`] and [`MultiDataSet`].
pub trait Leased: Held + Examples + Clone + Send + 'static {}

impl Leased for DataSet {}
impl Leased for MultiDataSet {}

/// Another iterator's batches, made ahead by a thread of their own.
///
/// They come in order. An error of the iterator, or its panic, comes after all batches before it; then there is nothing
/// until [`DataIterator::reset`], which begins again after an error too. A drop ends the thread, also while it waits.
///
/// Arrays lie in a ring of workspaces with a block for each batch that waits, the one in use, the one that is being
/// made and the one that waits for its place. The first batch decides how large the blocks are; larger ones make
/// them grow. A [`DataSet`] holds its block, so its arrays are valid as long as it lives, and need no copy; what is
/// kept for long is [`DataSet::detach`]ed. ND4J's `AsyncDataSetIterator` writes on over what is in use.
///
/// ```
/// # use ndgc::train::{AsyncDataSetIterator, DataIterator, DataSet, FnDataIterator};
/// # use ndgc::{Device, Tensor};
/// let source = FnDataIterator::new(|n| {
///     let x = Tensor::full(n as f32, (32, 10), &Device::Cpu)?;
///     Ok((n < 100).then_some(DataSet::new(x.clone(), x)?))
/// });
/// let mut batches = AsyncDataSetIterator::with_prefetch(source, 4)?;
/// for epoch in 0..2 {
///     for (n, batch) in (&mut batches).enumerate() {
///         assert_eq!(batch?.features.mean_all()?.to_scalar::<f32>()?, n as f32);
///     }
///     batches.reset()?;
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct AsyncDataIterator<T: Leased> {
    /// None after a reset that failed.
    batches: Option<Prefetch<T>>,
    /// Used by the thread while there is one.
    source: Arc<Mutex<dyn DataIterator<T> + Send>>,
    device: Device,
    ring: WorkspaceConfig,
    prefetch: usize,
    batch: Option<usize>,
}

/// [`AsyncDataIterator`] of [`DataSet`]s.
pub type AsyncDataSetIterator = AsyncDataIterator<DataSet>;

/// [`AsyncDataIterator`] of [`MultiDataSet`]s.
pub type AsyncMultiDataSetIterator = AsyncDataIterator<MultiDataSet>;

impl<T: Leased> fmt::Debug for AsyncDataIterator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncDataIterator").field(&self.batches).finish()
    }
}

impl<T: Leased> AsyncDataIterator<T> {
    /// With 8 batches that may wait, on the host.
    ///
    /// # Errors
    /// As [`AsyncDataIterator::with_prefetch`].
    #[track_caller]
    pub fn new<I: DataIterator<T> + Send + 'static>(source: I) -> Result<Self> {
        Self::with_prefetch(source, PREFETCH)
    }

    /// With so many batches that may wait, on the host.
    ///
    /// # Errors
    /// [`Error::Argument`] for a source that is shielded; [`Error::Invalid`] for more than 65,536 batches, or if there
    /// is no thread to be had.
    #[track_caller]
    pub fn with_prefetch<I: DataIterator<T> + Send + 'static>(source: I, prefetch: usize) -> Result<Self> {
        Self::on_device(&Device::Cpu, source, prefetch)
    }

    /// As [`AsyncDataIterator::with_prefetch`], where the ring is for arrays of a device.
    ///
    /// # Errors
    /// As [`AsyncDataIterator::with_prefetch`].
    #[track_caller]
    pub fn on_device<I: DataIterator<T> + Send + 'static>(device: &Device, source: I, prefetch: usize) -> Result<Self> {
        of_call(|| {
            if !source.async_supported() {
                return Err(Error::argument(
                    "AsyncDataSetIterator",
                    "source",
                    "one that is shielded",
                    "one whose batches may be made ahead",
                ));
            }
            let ring = WorkspaceConfig::builder()
                .policy_reset(ResetPolicy::EndOfBufferReached)
                .policy_spill(SpillPolicy::Reallocate)
                .overallocation_limit(prefetch as f64 + 2.)
                .build()?;
            let batch = source.batch();
            let source = Arc::new(Mutex::new(source));
            let mut made = AsyncDataIterator { batches: None, source, device: device.clone(), ring, prefetch, batch };
            made.start(true)?;
            Ok(made)
        })
    }

    /// Starts the thread. In the first pass, a source that was used up before it was handed over is reset.
    fn start(&mut self, is_first: bool) -> Result<()> {
        let source = Arc::clone(&self.source);
        let producer = move |element| {
            let mut source = lock(&source);
            let mut next = source.next();
            if next.is_none() && element == 0 && is_first {
                {
                    // What the source keeps over epochs is not the ring's.
                    let _out = Workspace::scope_out();
                    source.reset()?;
                }
                next = source.next();
            }
            next.transpose()?.map(Held::moved).transpose()
        };
        self.batches = Some(Prefetch::new_on(&self.device, &self.ring, self.prefetch, producer)?);
        Ok(())
    }
}

impl<T: Leased> Iterator for AsyncDataIterator<T> {
    type Item = Result<T>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<T>> {
        let next = self.batches.as_mut()?.next()?;
        Some(called_here(next).map(|batch| {
            let (mut batch, lease) = batch.into_parts();
            if let Some(lease) = lease {
                batch.hold(lease);
            }
            batch
        }))
    }
}

impl<T: Leased> DataIterator<T> for AsyncDataIterator<T> {
    #[track_caller]
    fn reset(&mut self) -> Result<()> {
        of_call(|| {
            // The thread ends first: how far it had come makes no difference to the source, whose next order may depend
            // on how often it was reset.
            self.batches = None;
            {
                // What the source keeps over epochs is not the caller's workspace's.
                let _out = Workspace::scope_out();
                lock(&self.source).reset()?;
            }
            self.start(false)
        })
    }

    fn batch(&self) -> Option<usize> {
        self.batch
    }
}

fn lock<T: ?Sized>(source: &Mutex<T>) -> MutexGuard<'_, T> {
    // A source that panicked goes on as the panic left it.
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An iterator whose batches nobody makes ahead, for finding faults: [`AsyncDataIterator`] refuses it.
///
/// ```
/// # use ndgc::train::{AsyncShieldDataSetIterator, DataIterator, DataSet, ListDataSetIterator};
/// let shield = AsyncShieldDataSetIterator::new(ListDataSetIterator::new(Vec::<DataSet>::new()));
/// assert!(!shield.async_supported());
/// ```
#[derive(Clone, Debug)]
pub struct AsyncShieldDataSetIterator<I> {
    source: I,
}

/// [`AsyncShieldDataSetIterator`] under ND4J's name for several inputs.
pub type AsyncShieldMultiDataSetIterator<I> = AsyncShieldDataSetIterator<I>;

impl<I> AsyncShieldDataSetIterator<I> {
    /// Around this iterator.
    pub fn new(source: I) -> Self {
        AsyncShieldDataSetIterator { source }
    }
}

impl<I: Iterator> Iterator for AsyncShieldDataSetIterator<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.source.next()
    }
}

impl<T, I: DataIterator<T>> DataIterator<T> for AsyncShieldDataSetIterator<I> {
    fn reset(&mut self) -> Result<()> {
        self.source.reset()
    }

    fn batch(&self) -> Option<usize> {
        self.source.batch()
    }

    fn async_supported(&self) -> bool {
        false
    }
}
