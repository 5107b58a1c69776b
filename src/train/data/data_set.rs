//! Batches: features, labels, and masks that say which of them count.

use std::sync::Arc;

use ndgc::{CycleLease, Error, Result, Tensor};

use super::super::place::{called_here, of_call};

/// A batch for networks with one input and one output: examples along the first axis of each array.
///
/// A mask has one number for an example (`[n]` or `[n, 1]`), for a step of a series (`[n, t]`), or for each number of
/// what it masks; what has 0 there does not count, and may be anything: features of floats are 0 to a network there.
///
/// Examples may have ids, which the caller chooses ([`DataSet::with_example_ids`]): they go where their examples go.
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
    pub(super) ids: Option<Arc<[u64]>>,
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
            Ok(DataSet { features, labels, features_mask, labels_mask, ids: None, lease: None })
        })
    }

    /// The batch with an id for each example, in their order: DL4J's `setExampleMetaData`. An id means what the caller
    /// wants it to, such as a row of a table, a line of a file, or a place in a list of names. It stays with its
    /// example in parts, merged batches, iterators, shuffled or made ahead, and in what was detached or migrated;
    /// an [`Evaluation`](crate::train::Evaluation) says by it which examples were taken for what.
    ///
    /// ```
    /// # use ndgc::train::DataSet;
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((4, 3), DType::F32, &Device::Cpu)?;
    /// let batch = DataSet::new(x.clone(), x)?.with_example_ids([70, 71, 72, 80])?;
    /// assert_eq!(batch.rows(2, 2)?.example_ids(), Some(&[72, 80][..]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are not as many ids as examples.
    #[track_caller]
    pub fn with_example_ids(mut self, ids: impl IntoIterator<Item = u64>) -> Result<Self> {
        self.ids = called_here(ids_of(ids, self.num_examples()))?;
        Ok(self)
    }

    /// The ids of the examples, if they have any: those of [`DataSet::with_example_ids`].
    pub fn example_ids(&self) -> Option<&[u64]> {
        self.ids.as_deref()
    }

    /// The ids, which whoever exchanged the features may have left behind.
    pub(super) fn fitting_ids(&self) -> Result<Option<&[u64]>> {
        let ids = self.example_ids();
        ids.map_or(Ok(()), |ids| check_ids(ids.len(), self.num_examples()))?;
        Ok(ids)
    }

    /// Examples in it: the size of the first axis.
    pub fn num_examples(&self) -> usize {
        examples(&self.features)
    }

    /// The examples `start..start + len`, as views.
    ///
    /// # Errors
    /// [`Error::Narrow`] if there are not so many; [`Error::Invalid`] if the features were exchanged for some of
    /// another number of examples than there are ids.
    #[track_caller]
    pub fn rows(&self, start: usize, len: usize) -> Result<Self> {
        of_call(|| {
            let mut some = self.map(|array| array.narrow(0, start, len))?;
            some.ids = part_of_ids(self.fitting_ids()?, start, len);
            Ok(some)
        })
    }

    /// Splits off the examples after the first `n`, as views: those to train on, and those to test with.
    ///
    /// ```
    /// # use ndgc::train::DataSet;
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0f32, 5., &Device::Cpu)?;
    /// let (train, test) = DataSet::new(x.clone(), x)?.split_test_and_train(3)?;
    /// assert_eq!(train.features.to_vec1::<f32>()?, [0., 1., 2.]);
    /// assert_eq!(test.labels.to_vec1::<f32>()?, [3., 4.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`DataSet::rows`].
    #[track_caller]
    pub fn split_test_and_train(&self, n: usize) -> Result<(Self, Self)> {
        Ok((self.rows(0, n)?, self.rows(n, self.num_examples().saturating_sub(n))?))
    }

    /// One batch with the examples of all, in order. Masks have to be there for all or for none, and so have ids.
    ///
    /// ```
    /// # use ndgc::train::DataSet;
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::new(&[[1f32], [2.]], &Device::Cpu)?;
    /// let plain = DataSet::new(x.clone(), x.clone())?;
    /// let all = DataSet::merge(&[plain.clone(), plain.rows(1, 1)?])?;
    /// assert_eq!(all.features.to_vec2::<f32>()?, [[1.], [2.], [2.]]);
    /// let masked = DataSet::with_masks(x.clone(), x.clone(), None, Some(x))?;
    /// assert!(matches!(DataSet::merge(&[plain, masked]), Err(Error::Invalid { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for no batches, or if only some have a mask or ids; as [`Tensor::cat`].
    #[track_caller]
    pub fn merge(batches: &[Self]) -> Result<Self> {
        of_call(|| {
            let (op, n) = ("DataSet::merge", batches.len());
            Ok(DataSet {
                features: join(op, n, &|i| Some(&batches[i].features))?.ok_or_else(nothing)?,
                labels: join(op, n, &|i| Some(&batches[i].labels))?.ok_or_else(nothing)?,
                features_mask: join(op, n, &|i| batches[i].features_mask.as_ref())?,
                labels_mask: join(op, n, &|i| batches[i].labels_mask.as_ref())?,
                ids: join_ids(op, n, &|i| batches[i].fitting_ids())?,
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

    /// The batch with `f` of each of its arrays. It has the same ids, or none if `f` leaves another number of examples;
    /// if it changes their order, give them theirs by [`DataSet::with_example_ids`].
    ///
    /// # Errors
    /// What `f` refuses.
    pub fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.mapped(&f)
    }

    /// Features, and labels.
    pub(super) fn parts_mut(&mut self) -> [&mut [Tensor]; 2] {
        [std::slice::from_mut(&mut self.features), std::slice::from_mut(&mut self.labels)]
    }

    fn mapped(&self, f: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let features = f(&self.features)?;
        let has_as_many = examples(&features) == self.num_examples();
        Ok(DataSet {
            features,
            labels: f(&self.labels)?,
            features_mask: self.features_mask.as_ref().map(f).transpose()?,
            labels_mask: self.labels_mask.as_ref().map(f).transpose()?,
            ids: self.ids.clone().filter(|_| has_as_many),
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
    pub(super) ids: Option<Arc<[u64]>>,
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
            Ok(MultiDataSet { features, labels, features_masks, labels_masks, ids: None, lease: None })
        })
    }

    /// The batch with an id for each example: as [`DataSet::with_example_ids`].
    ///
    /// # Errors
    /// As [`DataSet::with_example_ids`].
    #[track_caller]
    pub fn with_example_ids(mut self, ids: impl IntoIterator<Item = u64>) -> Result<Self> {
        self.ids = called_here(ids_of(ids, self.num_examples()))?;
        Ok(self)
    }

    /// The ids of the examples, if they have any.
    pub fn example_ids(&self) -> Option<&[u64]> {
        self.ids.as_deref()
    }

    /// The ids, which whoever exchanged the features may have left behind.
    pub(super) fn fitting_ids(&self) -> Result<Option<&[u64]>> {
        let ids = self.example_ids();
        ids.map_or(Ok(()), |ids| check_ids(ids.len(), self.num_examples()))?;
        Ok(ids)
    }

    /// Examples in it: the size of the first axis.
    pub fn num_examples(&self) -> usize {
        self.features.first().map_or(0, examples)
    }

    /// The examples `start..start + len` of each array and mask, as views: as [`DataSet::rows`].
    ///
    /// ```
    /// # use ndgc::train::MultiDataSet;
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0f32, 5., &Device::Cpu)?;
    /// let all = MultiDataSet::new(vec![x.clone(), x.neg()?], vec![x])?;
    /// let some = all.rows(1, 2)?;
    /// assert_eq!(some.features[1].to_vec1::<f32>()?, [-1., -2.]);
    /// assert_eq!(some.labels[0].to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`DataSet::rows`].
    #[track_caller]
    pub fn rows(&self, start: usize, len: usize) -> Result<Self> {
        of_call(|| {
            let mut some = self.map(|array| array.narrow(0, start, len))?;
            some.ids = part_of_ids(self.fitting_ids()?, start, len);
            Ok(some)
        })
    }

    /// Splits off the examples after the first `n`, as views: as [`DataSet::split_test_and_train`].
    ///
    /// # Errors
    /// As [`DataSet::rows`].
    #[track_caller]
    pub fn split_test_and_train(&self, n: usize) -> Result<(Self, Self)> {
        Ok((self.rows(0, n)?, self.rows(n, self.num_examples().saturating_sub(n))?))
    }

    /// One batch with the examples of all, in order. A mask of an input or an output has to be there for all batches or
    /// for none, and so have ids.
    ///
    /// ```
    /// # use ndgc::train::MultiDataSet;
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::new(&[[1f32], [2.]], &Device::Cpu)?;
    /// let batch = MultiDataSet::new(vec![x.clone(), x.neg()?], vec![x.clone()])?;
    /// let all = MultiDataSet::merge(&[batch.clone(), batch.rows(1, 1)?])?;
    /// assert_eq!(all.features[1].to_vec2::<f32>()?, [[-1.], [-2.], [-2.]]);
    /// let other = MultiDataSet::new(vec![x.clone()], vec![x])?;
    /// assert!(matches!(MultiDataSet::merge(&[batch, other]), Err(Error::Invalid { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for no batches, for batches of other numbers of inputs or outputs, or if only some have a
    /// mask or ids; as [`Tensor::cat`].
    #[track_caller]
    pub fn merge(batches: &[Self]) -> Result<Self> {
        of_call(|| {
            let (op, n) = ("MultiDataSet::merge", batches.len());
            let first = batches.first().filter(|first| !first.features.is_empty()).ok_or_else(nothing)?;
            let [inputs, outputs] = [first.features.len(), first.labels.len()];
            let differs = |batch: &&Self| [batch.features.len(), batch.labels.len()] != [inputs, outputs];
            if let Some(other) = batches.iter().find(differs) {
                let [has, of] = [other.features.len(), other.labels.len()];
                let why =
                    format!("{has} inputs and {of} outputs of a batch, where the first has {inputs} and {outputs}");
                return Err(Error::invalid(op, why));
            }
            let (mut features, mut features_masks) = (Vec::with_capacity(inputs), Vec::with_capacity(inputs));
            for at in 0..inputs {
                features.extend(join(op, n, &|i| batches[i].features.get(at))?);
                features_masks.push(join(op, n, &|i| mask_at(&batches[i].features_masks, at))?);
            }
            let (mut labels, mut labels_masks) = (Vec::with_capacity(outputs), Vec::with_capacity(outputs));
            for at in 0..outputs {
                labels.extend(join(op, n, &|i| batches[i].labels.get(at))?);
                labels_masks.push(join(op, n, &|i| mask_at(&batches[i].labels_masks, at))?);
            }
            let ids = join_ids(op, n, &|i| batches[i].fitting_ids())?;
            Ok(MultiDataSet { features, labels, features_masks, labels_masks, ids, lease: None })
        })
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

    /// The batch with `f` of each of its arrays; its ids are as of [`DataSet::map`].
    ///
    /// # Errors
    /// What `f` refuses.
    pub fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.mapped(&f)
    }

    /// Features, and labels.
    pub(super) fn parts_mut(&mut self) -> [&mut [Tensor]; 2] {
        [&mut self.features, &mut self.labels]
    }

    fn mapped(&self, f: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let each = |arrays: &[Tensor]| arrays.iter().map(f).collect::<Result<Vec<_>>>();
        let masks = |masks: &[Option<Tensor>]| {
            masks.iter().map(|mask| mask.as_ref().map(f).transpose()).collect::<Result<Vec<_>>>()
        };
        let features = each(&self.features)?;
        let has_as_many = features.first().map_or(0, examples) == self.num_examples();
        Ok(MultiDataSet {
            features,
            labels: each(&self.labels)?,
            features_masks: masks(&self.features_masks)?,
            labels_masks: masks(&self.labels_masks)?,
            ids: self.ids.clone().filter(|_| has_as_many),
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
            ids: batch.ids,
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

/// Ids for so many examples.
fn ids_of(ids: impl IntoIterator<Item = u64>, examples: usize) -> Result<Option<Arc<[u64]>>> {
    let ids: Arc<[u64]> = ids.into_iter().collect();
    check_ids(ids.len(), examples)?;
    Ok(Some(ids))
}

fn check_ids(ids: usize, examples: usize) -> Result<()> {
    if ids == examples {
        return Ok(());
    }
    Err(Error::invalid("DataSet", format!("{ids} ids for {examples} examples; give one for each")))
}

/// The ids of the examples `start..start + len`.
fn part_of_ids(ids: Option<&[u64]>, start: usize, len: usize) -> Option<Arc<[u64]>> {
    ids?.get(start..start.saturating_add(len)).map(Arc::from)
}

/// The mask of an input or an output, from a list that may be empty.
pub(super) fn mask_at(masks: &[Option<Tensor>], at: usize) -> Option<&Tensor> {
    masks.get(at)?.as_ref()
}

/// The ids of so many batches one after the other; None if there are none.
fn join_ids<'a>(
    op: &'static str,
    batches: usize,
    of: &dyn Fn(usize) -> Result<Option<&'a [u64]>>,
) -> Result<Option<Arc<[u64]>>> {
    let mut some: Vec<&[u64]> = Vec::new();
    for i in 0..batches {
        some.extend(of(i)?);
    }
    match some.len() {
        0 => Ok(None),
        n if n == batches => Ok(Some(some.concat().into())),
        n => {
            let why = format!("{n} of {batches} batches have ids of their examples; give them to all or to none");
            Err(Error::invalid(op, why))
        }
    }
}

fn nothing() -> Error {
    Error::invalid("DataSet", "a batch without features; give at least one array")
}

/// An array of each of so many batches, one after the other; None if there are none.
fn join<'a>(op: &'static str, batches: usize, of: &dyn Fn(usize) -> Option<&'a Tensor>) -> Result<Option<Tensor>> {
    let mut some: Vec<&Tensor> = Vec::new();
    for i in 0..batches {
        some.extend(of(i));
    }
    match some.len() {
        0 => Ok(None),
        n if n == batches => Tensor::cat(&some, 0).map(Some),
        n => Err(Error::invalid(op, format!("{n} of {batches} batches have a mask; give one to all or to none"))),
    }
}
