//! Iterators over batches that can begin again.

use ndgc::Result;

use super::data_set::{DataSet, MultiDataSet};

/// An iterator of batches that can begin again: the source of epochs.
///
/// An error is an element: those that come after one are the iterator's own affair, and [`DataIterator::reset`] clears
/// it.
///
/// ```
/// # use ndgc::train::{DataIterator, DataSet, ListDataSetIterator};
/// # use ndgc::{DType, Device, Tensor};
/// # let ones = |columns| Tensor::ones((2, columns), DType::F32, &Device::Cpu);
/// # let batch = || DataSet::new(ones(3)?, ones(1)?);
/// let mut batches = ListDataSetIterator::new(vec![batch()?, batch()?]);
/// for epoch in 0..3 {
///     let mut rows = 0;
///     for batch in &mut batches {
///         rows += batch?.num_examples();
///     }
///     assert_eq!(rows, 4);
///     batches.reset()?;
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
pub trait DataIterator<T>: Iterator<Item = Result<T>> {
    /// Begins again with the first batch, at the end, after an error, and in between.
    ///
    /// # Errors
    /// What the source refuses.
    #[track_caller]
    fn reset(&mut self) -> Result<()>;

    /// Examples of a batch; the last one may have fewer. None if nothing is known about that.
    fn batch(&self) -> Option<usize> {
        None
    }

    /// Whether batches may be made ahead by another thread: an [`AsyncDataSetIterator`](super::AsyncDataSetIterator)
    /// asks.
    fn async_supported(&self) -> bool {
        true
    }
}

impl<T, I: DataIterator<T> + ?Sized> DataIterator<T> for &mut I {
    fn reset(&mut self) -> Result<()> {
        (**self).reset()
    }

    fn batch(&self) -> Option<usize> {
        (**self).batch()
    }

    fn async_supported(&self) -> bool {
        (**self).async_supported()
    }
}

impl<T, I: DataIterator<T> + ?Sized> DataIterator<T> for Box<I> {
    fn reset(&mut self) -> Result<()> {
        (**self).reset()
    }

    fn batch(&self) -> Option<usize> {
        (**self).batch()
    }

    fn async_supported(&self) -> bool {
        (**self).async_supported()
    }
}

/// A [`DataIterator`] of [`DataSet`]s: ND4J's name. Nothing is to be implemented for it.
pub trait DataSetIterator: DataIterator<DataSet> {}

impl<I: DataIterator<DataSet> + ?Sized> DataSetIterator for I {}

/// A [`DataIterator`] of [`MultiDataSet`]s: ND4J's name. Nothing is to be implemented for it.
pub trait MultiDataSetIterator: DataIterator<MultiDataSet> {}

impl<I: DataIterator<MultiDataSet> + ?Sized> MultiDataSetIterator for I {}
