//! Numbers brought to a range or a spread that networks learn from best, and back.

use std::fs;
use std::path::Path;

use ndgc::{DType, Error, Result, Tensor};
use serde_json::{Value, json};

use super::super::durable::replace;
use super::super::place::{called_here, of_call};
use super::super::shared::one_each;
use super::data_set::DataSet;
use super::iterator::DataIterator;
use super::numbers::numbers;

/// The largest summand, in sizes of a result, beside which singles keep six digits of it.
const NEAR: f64 = 16.;

/// Normalises features, and labels if they are to be, column by column: `x * scale + shift`.
///
/// Columns are axis 1: of `[n, c, t]` and `[n, c, h, w]`, all steps or points are of one column. What a mask leaves out
/// does not count. The result is in f32, of f64 in f64; columns far from 0 are computed in f64.
///
/// ```
/// # use ndgc::train::{ArrayDataSetIterator, DataSet, Normalizer};
/// # use ndgc::{Device, Tensor};
/// let x = Tensor::new(&[[1f64, 10.], [3., 30.]], &Device::Cpu)?;
/// let mut batches = ArrayDataSetIterator::new(DataSet::new(x.clone(), x)?, 1)?;
/// let mut normalizer = Normalizer::standardize();
/// normalizer.fit(&mut batches)?;
/// let batch = normalizer.transform(&batches.next().unwrap()?)?;
/// assert_eq!(batch.features.to_vec2::<f64>()?, [[-1., -1.]]);
/// assert_eq!(normalizer.revert_features(&batch.features)?.to_vec2::<f64>()?, [[1., 10.]]);
///
/// let path = std::env::temp_dir().join(format!("ndgc-{}.json", std::process::id()));
/// normalizer.save(&path)?; // or in a network's checkpoint: `Network::add_normalizer_to_model`
/// assert_eq!(Normalizer::load(&path)?, normalizer);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Normalizer {
    kind: NormalizerKind,
    with_labels: bool,
    features: Option<Affine>,
    labels: Option<Affine>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum NormalizerKind {
    Standardize,
    MinMax(f64, f64),
    Image,
}

/// A factor and a summand for each column; one of both for all of them.
#[derive(Clone, Debug, PartialEq)]
struct Affine {
    scale: Vec<f64>,
    shift: Vec<f64>,
}

/// What is known of a column while it is looked at.
#[derive(Clone, Copy)]
struct Spread {
    count: f64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Normalizer {
    /// To a mean of 0 and a standard deviation of 1: ND4J's `NormalizerStandardize`. A column that does not vary only
    /// gets the mean of 0.
    pub fn standardize() -> Self {
        Self::of(NormalizerKind::Standardize)
    }

    /// To this range, which what was looked at fills: ND4J's `NormalizerMinMaxScaler`. A column that does not vary gets
    /// its lower end. [`Normalizer::fit`] refuses a range of one number.
    ///
    /// ```
    /// # use ndgc::train::{ArrayDataSetIterator, DataSet, Normalizer};
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[0f64, 3.], [4., 3.], [8., 3.]], &Device::Cpu)?;
    /// let mut normalizer = Normalizer::min_max(-1., 1.);
    /// normalizer.fit(&mut ArrayDataSetIterator::new(DataSet::new(x.clone(), x.clone())?, 2)?)?;
    /// let y = normalizer.transform_features(&x)?;
    /// assert_eq!(y.to_vec2::<f64>()?, [[-1., -1.], [0., -1.], [1., -1.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn min_max(min: f64, max: f64) -> Self {
        Self::of(NormalizerKind::MinMax(min, max))
    }

    /// From `0..=max_pixel`, such as 255, to this range; nothing is to be looked at: ND4J's
    /// `ImagePreProcessingScaler`. [`Normalizer::transform`] refuses a range of one number.
    pub fn image(min: f64, max: f64, max_pixel: f64) -> Self {
        let features = Some(Affine { scale: vec![(max - min) / max_pixel], shift: vec![min] });
        Normalizer { features, ..Self::of(NormalizerKind::Image) }
    }

    fn of(kind: NormalizerKind) -> Self {
        Normalizer { kind, with_labels: false, features: None, labels: None }
    }

    /// Normalises labels too: for networks that predict numbers.
    ///
    /// ```
    /// # use ndgc::train::{ArrayDataSetIterator, DataSet, Normalizer};
    /// # use ndgc::{Device, Tensor};
    /// let prices = Tensor::new(&[[100f64], [228.]], &Device::Cpu)?;
    /// let batch = DataSet::new(Tensor::new(&[[0f64], [1.]], &Device::Cpu)?, prices)?;
    /// let mut normalizer = Normalizer::min_max(0., 1.).with_labels();
    /// normalizer.fit(&mut ArrayDataSetIterator::new(batch.clone(), 2)?)?;
    /// assert_eq!(normalizer.transform(&batch)?.labels.to_vec2::<f64>()?, [[0.], [1.]]);
    /// let predicted = Tensor::new(&[[0.5f64]], &Device::Cpu)?; // what a network says
    /// let price = normalizer.revert_labels(&predicted)?.to_vec2::<f64>()?[0][0];
    /// assert!((price - 164.).abs() < 1e-9);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn with_labels(mut self) -> Self {
        self.with_labels = true;
        self
    }

    /// Looks at all batches, and resets the iterator before and after.
    ///
    /// # Errors
    /// What the iterator refuses; [`Error::Invalid`] if there is no number, if batches have different columns, or if
    /// NaN would come out, as of infinite features, or if there is no memory for the columns; [`Error::ShapeMismatch`]
    /// for a mask that does not fit. Nothing is changed then.
    #[track_caller]
    pub fn fit<I: DataIterator<DataSet> + ?Sized>(&mut self, batches: &mut I) -> Result<()> {
        of_call(|| {
            if self.kind == NormalizerKind::Image {
                return Ok(());
            }
            let (mut features, mut labels) = (Vec::new(), Vec::new());
            batches.reset()?;
            for batch in &mut *batches {
                let batch = batch?;
                look(&mut features, &batch.features, batch.features_mask.as_ref())?;
                if self.with_labels {
                    look(&mut labels, &batch.labels, batch.labels_mask.as_ref())?;
                }
            }
            batches.reset()?;
            let features = self.affine(&features)?;
            self.labels = if self.with_labels { Some(self.affine(&labels)?) } else { None };
            self.features = Some(features);
            Ok(())
        })
    }

    fn affine(&self, columns: &[Spread]) -> Result<Affine> {
        if columns.is_empty() || columns.iter().any(|column| column.count == 0.) {
            return Err(Error::invalid(
                "Normalizer::fit",
                "there was no number of a column; give it batches to look at",
            ));
        }
        // The least and the largest do not tell of a NaN; the mean does.
        if columns.iter().any(|column| column.mean.is_nan()) {
            return Err(nan("Normalizer::fit"));
        }
        let of = |column: &Spread| match self.kind {
            NormalizerKind::Standardize => {
                let deviation = (column.squares / column.count).sqrt();
                let scale = if deviation > 0. { 1. / deviation } else { 1. };
                (scale, -column.mean * scale)
            }
            NormalizerKind::MinMax(min, max) => {
                let range = column.max - column.min;
                let scale = if range > 0. { (max - min) / range } else { 1. };
                (scale, min - column.min * scale)
            }
            NormalizerKind::Image => (1., 0.),
        };
        let (scale, shift) = columns.iter().map(of).unzip();
        let affine = Affine { scale, shift };
        affine.check("Normalizer::fit")?;
        Ok(affine)
    }

    /// The batch with its features, and labels if so asked, normalised; in the current workspace.
    ///
    /// # Errors
    /// [`Error::Invalid`] before [`Normalizer::fit`], or for a range of one number; [`Error::Shape`] for other columns
    /// than those looked at.
    #[track_caller]
    pub fn transform(&self, batch: &DataSet) -> Result<DataSet> {
        let mut made = batch.clone();
        made.features = self.transform_features(&batch.features)?;
        if self.with_labels && self.kind != NormalizerKind::Image {
            made.labels = called_here(apply(self.kind, self.labels.as_ref(), &batch.labels))?;
        }
        Ok(made)
    }

    /// Features, normalised.
    ///
    /// # Errors
    /// As [`Normalizer::transform`].
    #[track_caller]
    pub fn transform_features(&self, features: &Tensor) -> Result<Tensor> {
        called_here(apply(self.kind, self.features.as_ref(), features))
    }

    /// Features as they were before.
    ///
    /// # Errors
    /// As [`Normalizer::transform`].
    #[track_caller]
    pub fn revert_features(&self, features: &Tensor) -> Result<Tensor> {
        called_here(apply(self.kind, self.features.as_ref().map(Affine::inverse).as_ref(), features))
    }

    /// Labels, or what a network predicts, as they were before; themselves if labels are not normalised.
    ///
    /// # Errors
    /// As [`Normalizer::transform`].
    #[track_caller]
    pub fn revert_labels(&self, labels: &Tensor) -> Result<Tensor> {
        if !self.with_labels || self.kind == NormalizerKind::Image {
            return Ok(labels.clone());
        }
        called_here(apply(self.kind, self.labels.as_ref().map(Affine::inverse).as_ref(), labels))
    }

    /// Writes it to a file, as JSON; what was there stays whole until that is on the disk.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        called_here(replace(path.as_ref(), self.to_json().as_bytes()))
    }

    /// Reads what [`Normalizer::save`] wrote.
    ///
    /// # Errors
    /// [`Error::File`]; as [`Normalizer::from_json`].
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        of_call(|| {
            let path = path.as_ref();
            let text = fs::read_to_string(path).map_err(|error| file(path, &error))?;
            Self::from_json(&text).map_err(|error| error.with_path(path))
        })
    }

    /// It as JSON.
    pub fn to_json(&self) -> String {
        self.write().to_string()
    }

    pub(crate) fn write(&self) -> Value {
        // Doubles as text of Rust: they are read back to the last bit by any reader.
        let exact = |all: &Vec<f64>| all.iter().map(|x| format!("{x:?}")).collect::<Vec<_>>();
        let affine = |affine: &Option<Affine>| {
            affine.as_ref().map(|affine| json!({ "scale": exact(&affine.scale), "shift": exact(&affine.shift) }))
        };
        let (kind, range) = match self.kind {
            NormalizerKind::Standardize => ("standardize", Vec::new()),
            NormalizerKind::MinMax(min, max) => ("min_max", vec![min, max]),
            NormalizerKind::Image => ("image", Vec::new()),
        };
        json!({
            "type": "Normalizer",
            "kind": kind,
            "range": exact(&range),
            "with_labels": self.with_labels,
            "features": affine(&self.features),
            "labels": affine(&self.labels),
        })
    }

    /// What [`Normalizer::to_json`] wrote.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        of_call(|| {
            let value: Value = serde_json::from_str(text)
                .map_err(|error| Error::invalid("Normalizer", format!("not JSON: {error}")))?;
            Self::read(&value).ok_or_else(|| Error::invalid("Normalizer", "this is not JSON of a normaliser"))
        })
    }

    pub(crate) fn read(value: &Value) -> Option<Self> {
        let exact = |value: &Value| -> Option<Vec<f64>> {
            value.as_array()?.iter().map(|x| x.as_str()?.parse().ok()).collect()
        };
        let affine = |value: &Value| -> Option<Option<Affine>> {
            if value.is_null() {
                return Some(None);
            }
            let (scale, shift) = (exact(value.get("scale")?)?, exact(value.get("shift")?)?);
            (scale.len() == shift.len()).then_some(Some(Affine { scale, shift }))
        };
        let kind = match (value.get("kind")?.as_str()?, &exact(value.get("range")?)?[..]) {
            ("standardize", []) => NormalizerKind::Standardize,
            ("min_max", &[min, max]) => NormalizerKind::MinMax(min, max),
            ("image", []) => NormalizerKind::Image,
            _ => return None,
        };
        Some(Normalizer {
            kind,
            with_labels: value.get("with_labels")?.as_bool()?,
            features: affine(value.get("features")?)?,
            labels: affine(value.get("labels")?)?,
        })
    }
}

impl Affine {
    /// Whether there is a way there and back.
    fn check(&self, op: &'static str) -> Result<()> {
        let mut columns = self.scale.iter().zip(&self.shift);
        match columns.all(|(scale, shift)| scale.is_finite() && *scale != 0. && shift.is_finite()) {
            true => Ok(()),
            false => Err(nan(op)),
        }
    }

    fn inverse(&self) -> Affine {
        let shift = self.scale.iter().zip(&self.shift).map(|(scale, shift)| -shift / scale).collect();
        Affine { scale: self.scale.iter().map(|scale| 1. / scale).collect(), shift }
    }
}

fn nan(op: &'static str) -> Error {
    let why = "NaN would come out: the range is of one number, or a column holds NaN, infinity or too large numbers";
    Error::invalid(op, why)
}

fn apply(kind: NormalizerKind, affine: Option<&Affine>, array: &Tensor) -> Result<Tensor> {
    let affine = affine.ok_or_else(|| Error::invalid("Normalizer", "it looked at nothing yet; call fit() first"))?;
    affine.check("Normalizer")?;
    let dtype = if array.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    // Of numbers far from 0, beside how they differ, singles would keep no digit that differs.
    let size = if let NormalizerKind::MinMax(low, high) = kind { high - low } else { 1. };
    let is_far = affine.shift.iter().any(|shift| shift.abs() > NEAR * size.abs());
    let wide = if is_far { DType::F64 } else { dtype };
    let array = array.to_dtype(wide)?;
    let columns = affine.scale.len();
    if kind != NormalizerKind::Image && array.dims().get(1).copied().unwrap_or(1) != columns {
        let found = array.dims();
        return Err(Error::shape("Normalizer", found, format!("{columns} columns on axis 1")));
    }
    if let ([scale], [shift]) = (&affine.scale[..], &affine.shift[..]) {
        return array.affine(*scale, *shift)?.to_dtype(dtype);
    }
    let shape: Vec<usize> = (0..array.rank()).map(|axis| if axis == 1 { columns } else { 1 }).collect();
    let row = |all: &[f64]| Tensor::from_slice(all, &shape[..], array.device())?.to_dtype(wide);
    array.broadcast_mul(&row(&affine.scale)?)?.broadcast_add(&row(&affine.shift)?)?.to_dtype(dtype)
}

/// Adds the numbers of a batch to what is known of the columns.
fn look(columns: &mut Vec<Spread>, array: &Tensor, mask: Option<&Tensor>) -> Result<()> {
    let op = "Normalizer::fit";
    let dims = array.dims();
    let (n, c) = (dims.first().copied().unwrap_or(1), dims.get(1).copied().unwrap_or(1));
    let inner: usize = dims.iter().skip(2).product();
    if columns.is_empty() {
        // Arrays without elements take no memory: they may have any number of columns.
        columns.try_reserve_exact(c).map_err(|_| Error::invalid(op, format!("no memory for {c} columns")))?;
        columns.resize(c, Spread { count: 0., mean: 0., squares: 0., min: f64::INFINITY, max: f64::NEG_INFINITY });
    }
    if columns.len() != c {
        return Err(Error::invalid(op, format!("{c} columns, where there were {}", columns.len())));
    }
    if let Some(mask) = mask.filter(|mask| !fits(mask.dims(), dims)) {
        let why = "a mask has a number for each example ([n] or [n, 1]), for each of its steps or points ([n, t] or \
                   [n, 1, t]), or for each number";
        return Err(Error::shape_mismatch(op, dims, mask.dims(), why));
    }
    let mask = mask.map(|mask| numbers(op, mask)).transpose()?;
    let counts = |row: usize, step: usize, at: usize| match &mask {
        Some(mask) if mask.len() == n * c * inner => mask[at] != 0.,
        Some(mask) if mask.len() == n * inner => mask[row * inner + step] != 0.,
        Some(mask) => mask[row] != 0.,
        None => true,
    };
    for (at, &x) in numbers(op, array)?.iter().enumerate() {
        let (row, column, step) = (at / (c * inner), at / inner % c, at % inner);
        if !counts(row, step, at) {
            continue;
        }
        let known = &mut columns[column];
        known.count += 1.;
        let before = x - known.mean;
        known.mean += before / known.count;
        known.squares += before * (x - known.mean);
        known.min = known.min.min(x);
        known.max = known.max.max(x);
    }
    Ok(())
}

/// Whether a mask is of all numbers, of steps or points, or of examples.
fn fits(mask: &[usize], dims: &[usize]) -> bool {
    let of_examples = mask.first() == dims.first() && mask.iter().skip(1).all(|&size| size == 1);
    mask == dims || one_each(mask, dims, 1) || of_examples
}

fn file(path: &Path, error: &std::io::Error) -> Error {
    Error::file(Some(path), None, error.to_string())
}

/// The batches of an iterator, normalised: they are made where the iterator's are, so also ahead.
///
/// ```
/// # use ndgc::train::{ArrayDataSetIterator, DataSet, Normalizer, NormalizingIterator};
/// # use ndgc::{Device, Tensor};
/// let pixels = Tensor::new(&[[0u8, 255], [255, 0]], &Device::Cpu)?;
/// let all = DataSet::new(pixels.clone(), pixels)?;
/// let batches = NormalizingIterator::new(ArrayDataSetIterator::new(all, 2)?, Normalizer::image(0., 1., 255.));
/// for batch in batches {
///     assert_eq!(batch?.features.to_vec2::<f32>()?, [[0., 1.], [1., 0.]]);
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NormalizingIterator<I> {
    batches: I,
    normalizer: Normalizer,
}

impl<I: DataIterator<DataSet>> NormalizingIterator<I> {
    /// With a normaliser that has looked at what it has to.
    pub fn new(batches: I, normalizer: Normalizer) -> Self {
        NormalizingIterator { batches, normalizer }
    }
}

impl<I: DataIterator<DataSet>> Iterator for NormalizingIterator<I> {
    type Item = Result<DataSet>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<DataSet>> {
        Some(called_here(self.batches.next()?.and_then(|batch| self.normalizer.transform(&batch))))
    }
}

impl<I: DataIterator<DataSet>> DataIterator<DataSet> for NormalizingIterator<I> {
    fn reset(&mut self) -> Result<()> {
        self.batches.reset()
    }

    fn batch(&self) -> Option<usize> {
        self.batches.batch()
    }

    fn async_supported(&self) -> bool {
        self.batches.async_supported()
    }
}
