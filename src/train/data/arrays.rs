//! Batches from what is in memory: lists, arrays and functions.

use std::fmt;
use std::sync::Arc;

use ndgc::{Error, Generator, Result, Tensor, Workspace};

use super::super::place::called_here;

use super::data_set::{DataSet, MultiDataSet};
use super::iterator::DataIterator;
use super::prefetched::Leased;

/// The batches of a list, in order: ND4J's `ExistingDataSetIterator`.
///
/// ```
/// # use ndgc::train::{DataSet, ListDataSetIterator};
/// # use ndgc::{DType, Device, Tensor};
/// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
/// let batches = ListDataSetIterator::new(vec![DataSet::new(x.clone(), x.clone())?, DataSet::new(x.clone(), x)?]);
/// assert_eq!(batches.count(), 2);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ListDataIterator<T> {
    batches: Vec<T>,
    next: usize,
}

/// A [`ListDataIterator`] of [`DataSet`]s.
pub type ListDataSetIterator = ListDataIterator<DataSet>;

impl<T> ListDataIterator<T> {
    /// Over these batches.
    pub fn new(batches: Vec<T>) -> Self {
        ListDataIterator { batches, next: 0 }
    }
}

impl<T: Clone> Iterator for ListDataIterator<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let batch = self.batches.get(self.next)?.clone();
        self.next += 1;
        Some(Ok(batch))
    }
}

impl<T: Clone> DataIterator<T> for ListDataIterator<T> {
    fn reset(&mut self) -> Result<()> {
        self.next = 0;
        Ok(())
    }
}

/// The batches that a function makes: it is called with 0, 1, 2 and so on until it returns None, and from 0 again after
/// a reset.
///
/// ```
/// # use ndgc::train::{DataSet, FnDataIterator};
/// # use ndgc::{Device, Tensor};
/// let batches = FnDataIterator::new(|n| {
///     let x = Tensor::full(n as f32, (4, 3), &Device::Cpu)?;
///     Ok((n < 10).then_some(DataSet::new(x.clone(), x)?))
/// });
/// assert_eq!(batches.count(), 10);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct FnDataIterator<F> {
    producer: F,
    next: usize,
}

impl<F> fmt::Debug for FnDataIterator<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnDataIterator").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<T, F: FnMut(usize) -> Result<Option<T>>> FnDataIterator<F> {
    /// Over what `producer` makes.
    pub fn new(producer: F) -> Self {
        FnDataIterator { producer, next: 0 }
    }
}

impl<T, F: FnMut(usize) -> Result<Option<T>>> Iterator for FnDataIterator<F> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let made = (self.producer)(self.next).transpose();
        self.next += usize::from(made.is_some());
        made
    }
}

impl<T, F: FnMut(usize) -> Result<Option<T>>> DataIterator<T> for FnDataIterator<F> {
    fn reset(&mut self) -> Result<()> {
        self.next = 0;
        Ok(())
    }
}

/// Batches out of arrays that hold all examples: ND4J's `INDArrayDataSetIterator`.
///
/// In order, a batch is views of the arrays, and nothing is copied. Shuffled, it is made of copies, in the current
/// workspace. The last batch may have fewer examples.
///
/// ```
/// # use ndgc::train::{ArrayDataSetIterator, DataIterator, DataSet};
/// # use ndgc::{DType, Device, Tensor};
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?.reshape((10, 1))?;
/// let mut batches = ArrayDataSetIterator::new(DataSet::new(x.clone(), x)?, 4)?.shuffled(7)?;
/// let rows = |batches: &mut ArrayDataSetIterator| -> ndgc::Result<Vec<f32>> {
///     let mut all = Vec::new();
///     for batch in batches {
///         all.extend(batch?.features.to_vec::<f32>()?);
///     }
///     Ok(all)
/// };
/// let first = rows(&mut batches)?;
/// batches.reset()?; // the next epoch has an order of its own
/// assert_ne!(rows(&mut batches)?, first);
/// batches.set_epoch(0)?; // and each can be had again
/// assert_eq!(rows(&mut batches)?, first);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// Those of several inputs and outputs go together:
///
/// ```
/// # use ndgc::train::{ArrayMultiDataSetIterator, MultiDataSet};
/// # use ndgc::{Device, Tensor};
/// let x = Tensor::arange(0f32, 6., &Device::Cpu)?;
/// let all = MultiDataSet::new(vec![x.clone(), x.neg()?], vec![x])?;
/// for batch in ArrayMultiDataSetIterator::new(all, 4)?.shuffled(7)? {
///     let batch = batch?;
///     assert_eq!(batch.features[1].neg()?.to_vec1::<f32>()?, batch.labels[0].to_vec1::<f32>()?);
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ArrayDataIterator<T> {
    all: T,
    batch: usize,
    /// First example of the next batch.
    start: usize,
    seed: Option<u64>,
    epoch: u64,
    /// The examples in the order of this epoch, if that is not their own.
    order: Option<Tensor>,
    /// Their ids in that order, if they have any.
    ids: Option<Vec<u64>>,
}

/// An [`ArrayDataIterator`] of [`DataSet`]s.
pub type ArrayDataSetIterator = ArrayDataIterator<DataSet>;

/// An [`ArrayDataIterator`] of [`MultiDataSet`]s.
pub type ArrayMultiDataSetIterator = ArrayDataIterator<MultiDataSet>;

impl<T: Leased> ArrayDataIterator<T> {
    /// Batches of `batch` examples of `all`.
    ///
    /// # Errors
    /// [`Error::Argument`] for batches of no example.
    #[track_caller]
    pub fn new(all: T, batch: usize) -> Result<Self> {
        called_here(check_batch(batch))?;
        Ok(ArrayDataIterator { all, batch, start: 0, seed: None, epoch: 0, order: None, ids: None })
    }

    /// Gives each example its row in the arrays, from 0, as its id ([`DataSet::example_ids`]), however they are
    /// shuffled. Ids of the caller's own come with the arrays that the iterator is made of.
    ///
    /// ```
    /// # use ndgc::train::{ArrayDataSetIterator, DataSet};
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0f32, 6., &Device::Cpu)?;
    /// let all = DataSet::new(x.clone(), x)?;
    /// for batch in ArrayDataSetIterator::new(all, 4)?.shuffled(7)?.with_example_ids()? {
    ///     let batch = batch?; // each example has its row as its id, wherever it lies now
    ///     let rows: Vec<f32> = batch.example_ids().unwrap().iter().map(|&id| id as f32).collect();
    ///     assert_eq!(batch.features.to_vec1::<f32>()?, rows);
    /// }
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Generator::permutation`]; [`Error::Invalid`] if there is no memory for the ids.
    #[track_caller]
    pub fn with_example_ids(mut self) -> Result<Self> {
        self.all.set_ids(called_here(rows_as_ids(self.num_examples()))?);
        called_here(self.begin(self.epoch))?;
        Ok(self)
    }

    /// Shuffles: each epoch has an order of its own, which seed and epoch decide.
    ///
    /// # Errors
    /// As [`Generator::permutation`].
    #[track_caller]
    pub fn shuffled(mut self, seed: u64) -> Result<Self> {
        self.seed = Some(seed);
        called_here(self.begin(self.epoch))?;
        Ok(self)
    }

    /// The epochs that came before this one: each reset is one more.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins with this epoch, so that training that goes on later sees what it would have seen.
    ///
    /// # Errors
    /// As [`Generator::permutation`]; nothing is changed then.
    #[track_caller]
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        called_here(self.begin(epoch))
    }

    /// Number of all examples.
    pub fn num_examples(&self) -> usize {
        self.all.count()
    }

    fn begin(&mut self, epoch: u64) -> Result<()> {
        if let (Some(seed), Some(first)) = (self.seed, self.all.features().first()) {
            // The order outlives the cycle in which the epoch begins.
            let _out = Workspace::scope_out();
            let order = permutation(seed, epoch, self.num_examples())?;
            let ids = self.all.each_id()?;
            let ids = ids.map(|ids| order.iter().map(|&i| ids[i as usize]).collect::<Vec<u64>>());
            self.order = Some(Tensor::from_vec(order, self.num_examples(), first.device())?);
            self.ids = ids;
        }
        (self.epoch, self.start) = (epoch, 0);
        Ok(())
    }

    fn make(&self, len: usize) -> Result<T> {
        match &self.order {
            None => self.all.part(self.start, len),
            Some(order) => {
                let ids = self.ids.as_ref().map(|ids| Arc::from(&ids[self.start..self.start + len]));
                self.all.picked(&order.narrow(0, self.start, len)?, ids)
            }
        }
    }
}

impl<T: Leased> Iterator for ArrayDataIterator<T> {
    type Item = Result<T>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<T>> {
        let len = self.batch.min(self.num_examples().saturating_sub(self.start));
        if len == 0 {
            return None;
        }
        let made = called_here(self.make(len));
        self.start += len;
        Some(made)
    }
}

impl<T: Leased> DataIterator<T> for ArrayDataIterator<T> {
    fn reset(&mut self) -> Result<()> {
        self.set_epoch(self.epoch.wrapping_add(1))
    }

    fn batch(&self) -> Option<usize> {
        Some(self.batch)
    }
}

/// The order of the examples in an epoch.
pub(super) fn permutation(seed: u64, epoch: u64, n: usize) -> Result<Vec<i64>> {
    // Epochs that follow each other begin far apart: an odd constant with its bits spread evenly.
    let seed = seed.wrapping_add(epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Ok(Generator::new(seed).permutation(n)?.into_iter().map(|i| i as i64).collect())
}

pub(super) fn check_batch(batch: usize) -> Result<()> {
    if batch == 0 {
        let (argument, expected) = ("batch", "at least 1");
        return Err(Error::argument("DataSetIterator", argument, batch, expected));
    }
    Ok(())
}

/// The rows of that many examples, as ids. Of arrays that repeat, or have no elements, there may be any number.
fn rows_as_ids(examples: usize) -> Result<Arc<[u64]>> {
    let mut ids = Vec::new();
    let full = |_| Error::invalid("with_example_ids", format!("no memory for the ids of {examples} examples"));
    ids.try_reserve_exact(examples).map_err(full)?;
    ids.extend(0..examples as u64);
    Ok(ids.into())
}
