//! Batches: features, labels, and masks that say which of them count.

use std::sync::Arc;

use ndgc::{CycleLease, Error, Result, Tensor};

use super::super::place::{called_here, of_call};

/// A batch for networks with one input and one output: examples along the first axis of each array.
///
/// A mask has one number for an example (`[n]` or `[n, 1]`), for a step of a series (`[n, t]`), or for each number of
/// what it masks; what has 0 there does not count.
///
/// Clones share the arrays. A batch that was made ahead holds the part of a ring that its arrays lie in: they are valid
/// as long as the batch or a clone of it lives. Use [`DataSet::detach`] to keep the arrays themselves.
///
/// ```
/// # use ndgc::train::DataSet;
/// # use ndgc::{DType, Device, Tensor};
/// let batch = DataSet::new(
///     Tensor::zeros((8, 784), DType::F32, &Device::Cpu)?,
///     Tensor::zeros((8, 10), DType::F32, &Device::Cpu)?,
/// )?;
/// assert_eq!(batch.num_examples(), 8);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DataSet {
    /// What the network is given.
    pub features: Tensor,
    /// What it should answer.
    pub labels: Tensor,
    /// Which features count.
    pub features_mask: Option<Tensor>,
    /// Which labels count.
    pub labels_mask: Option<Tensor>,
    pub(super) lease: Option<Arc<CycleLease>>,
}

impl DataSet {
    /// A batch without masks.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if there are not as many labels as features.
    #[track_caller]
    pub fn new(features: Tensor, labels: Tensor) -> Result<Self> {
        Self::with_masks(features, labels, None, None)
    }

    /// A batch with masks.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the arrays are not of as many examples.
    #[track_caller]
    pub fn with_masks(
        features: Tensor,
        labels: Tensor,
        features_mask: Option<Tensor>,
        labels_mask: Option<Tensor>,
    ) -> Result<Self> {
        of_call(|| {
            for other in [Some(&labels), features_mask.as_ref(), labels_mask.as_ref()].into_iter().flatten() {
                same_examples(&features, other)?;
            }
            Ok(DataSet { features, labels, features_mask, labels_mask, lease: None })
        })
    }

    /// Examples in it: the size of the first axis.
    pub fn num_examples(&self) -> usize {
        examples(&self.features)
    }

    /// The examples `start..start + len`, as views.
    ///
    /// # Errors
    /// [`Error::Narrow`] if there are not so many.
    #[track_caller]
    pub fn rows(&self, start: usize, len: usize) -> Result<Self> {
        called_here(self.map(|array| array.narrow(0, start, len)))
    }

    /// Splits off the examples after the first `n`, as views: those to train on, and those to test with.
    ///
    /// # Errors
    /// As [`DataSet::rows`].
    #[track_caller]
    pub fn split_test_and_train(&self, n: usize) -> Result<(Self, Self)> {
        Ok((self.rows(0, n)?, self.rows(n, self.num_examples().saturating_sub(n))?))
    }

    /// One batch with the examples of all, in order. Masks have to be there for all or for none.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no batches, or if only some have a mask; as [`Tensor::cat`].
    #[track_caller]
    pub fn merge(batches: &[Self]) -> Result<Self> {
        of_call(|| {
            Ok(DataSet {
                features: join(batches.iter().map(|batch| Some(&batch.features)))?.ok_or_else(nothing)?,
                labels: join(batches.iter().map(|batch| Some(&batch.labels)))?.ok_or_else(nothing)?,
                features_mask: join(batches.iter().map(|batch| batch.features_mask.as_ref()))?,
                labels_mask: join(batches.iter().map(|batch| batch.labels_mask.as_ref()))?,
                lease: None,
            })
        })
    }

    /// A batch of its own, which no workspace's end and no ring reaches: ND4J's `DataSet.detach()`.
    ///
    /// # Errors
    /// As [`Tensor::try_detach`].
    #[track_caller]
    pub fn detach(&self) -> Result<Self> {
        Ok(DataSet { lease: None, ..called_here(self.map(Tensor::try_detach))? })
    }

    /// A batch in the current workspace, or one of its own where none is open: ND4J's `DataSet.migrate()`.
    ///
    /// # Errors
    /// As [`Tensor::migrate`].
    #[track_caller]
    pub fn migrate(&self) -> Result<Self> {
        Ok(DataSet { lease: None, ..called_here(self.map(|array| array.migrate(true)))? })
    }

    /// The batch with `f` of each of its arrays.
    ///
    /// # Errors
    /// What `f` refuses.
    pub fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(DataSet {
            features: f(&self.features)?,
            labels: f(&self.labels)?,
            features_mask: self.features_mask.as_ref().map(&f).transpose()?,
            labels_mask: self.labels_mask.as_ref().map(&f).transpose()?,
            lease: self.lease.clone(),
        })
    }
}

/// A batch for networks with several inputs or outputs: as a [`DataSet`], with lists of arrays.
///
/// ```
/// # use ndgc::train::MultiDataSet;
/// # use ndgc::{DType, Device, Tensor};
/// let image = Tensor::zeros((4, 64), DType::F32, &Device::Cpu)?;
/// let text = Tensor::zeros((4, 9), DType::F32, &Device::Cpu)?;
/// let label = Tensor::zeros((4, 2), DType::F32, &Device::Cpu)?;
/// let batch = MultiDataSet::new(vec![image, text], vec![label])?;
/// assert_eq!(batch.num_examples(), 4);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiDataSet {
    /// What each input of the network is given.
    pub features: Vec<Tensor>,
    /// What each output should answer.
    pub labels: Vec<Tensor>,
    /// Which features count: one for each input, or an empty list.
    pub features_masks: Vec<Option<Tensor>>,
    /// Which labels count: one for each output, or an empty list.
    pub labels_masks: Vec<Option<Tensor>>,
    pub(super) lease: Option<Arc<CycleLease>>,
}

impl MultiDataSet {
    /// A batch without masks.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the arrays are not of as many examples; [`Error::Invalid`] without features.
    #[track_caller]
    pub fn new(features: Vec<Tensor>, labels: Vec<Tensor>) -> Result<Self> {
        Self::with_masks(features, labels, Vec::new(), Vec::new())
    }

    /// A batch with masks: a list is empty, or as long as that of the arrays.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the arrays are not of as many examples; [`Error::Invalid`] without features, or for
    /// a list of another length.
    #[track_caller]
    pub fn with_masks(
        features: Vec<Tensor>,
        labels: Vec<Tensor>,
        features_masks: Vec<Option<Tensor>>,
        labels_masks: Vec<Option<Tensor>>,
    ) -> Result<Self> {
        of_call(|| {
            let first = features.first().ok_or_else(nothing)?;
            for (masks, arrays) in [(&features_masks, &features), (&labels_masks, &labels)] {
                if !masks.is_empty() && masks.len() != arrays.len() {
                    return Err(Error::invalid(
                        "MultiDataSet",
                        format!(
                            "{} masks for {} arrays; give one for each, with None where there is none, or no list",
                            masks.len(),
                            arrays.len()
                        ),
                    ));
                }
            }
            let masks = features_masks.iter().chain(&labels_masks).flatten();
            for other in features.iter().chain(&labels).chain(masks) {
                same_examples(first, other)?;
            }
            Ok(MultiDataSet { features, labels, features_masks, labels_masks, lease: None })
        })
    }

    /// Examples in it: the size of the first axis.
    pub fn num_examples(&self) -> usize {
        self.features.first().map_or(0, examples)
    }

    /// A batch of its own: as [`DataSet::detach`].
    ///
    /// # Errors
    /// As [`Tensor::try_detach`].
    #[track_caller]
    pub fn detach(&self) -> Result<Self> {
        Ok(MultiDataSet { lease: None, ..called_here(self.map(Tensor::try_detach))? })
    }

    /// A batch in the current workspace: as [`DataSet::migrate`].
    ///
    /// # Errors
    /// As [`Tensor::migrate`].
    #[track_caller]
    pub fn migrate(&self) -> Result<Self> {
        Ok(MultiDataSet { lease: None, ..called_here(self.map(|array| array.migrate(true)))? })
    }

    /// The batch with `f` of each of its arrays.
    ///
    /// # Errors
    /// What `f` refuses.
    pub fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let each = |arrays: &[Tensor]| arrays.iter().map(&f).collect::<Result<Vec<_>>>();
        let masks = |masks: &[Option<Tensor>]| {
            masks.iter().map(|mask| mask.as_ref().map(&f).transpose()).collect::<Result<Vec<_>>>()
        };
        Ok(MultiDataSet {
            features: each(&self.features)?,
            labels: each(&self.labels)?,
            features_masks: masks(&self.features_masks)?,
            labels_masks: masks(&self.labels_masks)?,
            lease: self.lease.clone(),
        })
    }
}

impl From<DataSet> for MultiDataSet {
    fn from(batch: DataSet) -> Self {
        MultiDataSet {
            features: vec![batch.features],
            labels: vec![batch.labels],
            features_masks: vec![batch.features_mask],
            labels_masks: vec![batch.labels_mask],
            lease: batch.lease,
        }
    }
}

fn examples(array: &Tensor) -> usize {
    array.dims().first().copied().unwrap_or(1)
}

fn same_examples(features: &Tensor, other: &Tensor) -> Result<()> {
    if examples(features) == examples(other) {
        return Ok(());
    }
    let why = "the first axis counts the examples and is the same for features, labels and masks";
    Err(Error::shape_mismatch("DataSet", features.dims(), other.dims(), why))
}

fn nothing() -> Error {
    Error::invalid("DataSet", "a batch without features; give at least one array")
}

/// The arrays one after the other; None if there are none.
fn join<'a>(arrays: impl Iterator<Item = Option<&'a Tensor>>) -> Result<Option<Tensor>> {
    let all: Vec<Option<&Tensor>> = arrays.collect();
    let some: Vec<&Tensor> = all.iter().flatten().copied().collect();
    match some.len() {
        0 => Ok(None),
        n if n == all.len() => Tensor::cat(&some, 0).map(Some),
        n => Err(Error::invalid(
            "DataSet::merge",
            format!("{n} of {} batches have a mask; give one to all or to none", all.len()),
        )),
    }
}
