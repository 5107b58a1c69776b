//! Numbers brought to a range or a spread that networks learn from best, and back.

use std::fs;
use std::path::Path;

use ndgc::{DType, Error, Result, Tensor};
use serde_json::{Value, json};

use super::super::durable::replace;
use super::super::place::{called_here, of_call};
use super::super::shared::one_each;
use super::data_set::mask_at;
use super::examples::Examples;
use super::iterator::DataIterator;
use super::numbers::numbers;
use super::prefetched::Leased;

/// The largest summand, in sizes of a result, beside which singles keep six digits of it.
const NEAR: f64 = 16.;

/// Normalises features, and labels if they are to be, column by column: `x * scale + shift`.
///
/// Columns are axis 1: of `[n, c, t]` and `[n, c, h, w]`, all steps or points are of one column. What a mask leaves out
/// does not count. The result is in f32, of f64 in f64; columns far from 0 are computed in f64.
///
/// Each input and output of a [`MultiDataSet`](super::MultiDataSet) has columns and a mask of its own: ND4J's
/// `MultiNormalizerStandardize`, `MultiNormalizerMinMaxScaler` and `ImageMultiPreProcessingScaler`.
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
    /// The inputs that it is for; all where none are named.
    inputs: Option<Vec<usize>>,
    /// Of each input, but for those that stay as they are, once it looked at some; of images one for all of them.
    features: Vec<Option<Affine>>,
    /// Of each output.
    labels: Vec<Option<Affine>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum NormalizerKind {
    Standardize,
    MinMax(f64, f64),
    Image,
}

/// What a batch has arrays of.
type Side = &'static str;

const INPUT: Side = "input";
const OUTPUT: Side = "output";

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
        let features = vec![Some(Affine { scale: vec![(max - min) / max_pixel], shift: vec![min] })];
        Normalizer { features, ..Self::of(NormalizerKind::Image) }
    }

    fn of(kind: NormalizerKind) -> Self {
        Normalizer { kind, with_labels: false, inputs: None, features: Vec::new(), labels: Vec::new() }
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

    /// Normalises these inputs alone, counted from 0, and leaves the others as they are, such as numbers of rows for an
    /// [`Embedding`](crate::train::Embedding).
    ///
    /// ```
    /// # use ndgc::train::{ArrayMultiDataSetIterator, MultiDataSet, Normalizer};
    /// # use ndgc::{Device, Tensor};
    /// let words = Tensor::new(&[[3u32, 9], [4, 1]], &Device::Cpu)?;
    /// let sizes = Tensor::new(&[[10f64], [30.]], &Device::Cpu)?;
    /// let batch = MultiDataSet::new(vec![words, sizes.clone()], vec![sizes])?;
    /// let mut normalizer = Normalizer::min_max(0., 1.).only_inputs([1]);
    /// normalizer.fit(&mut ArrayMultiDataSetIterator::new(batch.clone(), 2)?)?;
    /// let made = normalizer.transform(&batch)?;
    /// assert_eq!(made.features[0].to_vec2::<u32>()?, [[3, 9], [4, 1]]);
    /// assert_eq!(made.features[1].to_vec2::<f64>()?, [[0.], [1.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn only_inputs(mut self, inputs: impl IntoIterator<Item = usize>) -> Self {
        self.inputs = Some(inputs.into_iter().collect());
        self
    }

    /// Looks at all batches, and resets the iterator before and after.
    ///
    /// # Errors
    /// What the iterator refuses; [`Error::Invalid`] if there is no number, if batches have different columns, or
    /// different numbers of inputs or outputs, or no input that is named, or if NaN would come out, as of infinite
    /// features, or if there is no memory for the columns; [`Error::ShapeMismatch`] for a mask that does not fit.
    /// Nothing is changed then.
    #[track_caller]
    pub fn fit<B: Examples, I: DataIterator<B> + ?Sized>(&mut self, batches: &mut I) -> Result<()> {
        of_call(|| {
            if self.kind == NormalizerKind::Image {
                return Ok(());
            }
            let mut known = [Vec::new(), Vec::new()];
            batches.reset()?;
            for batch in &mut *batches {
                self.look_at(&mut known, &batch?)?;
            }
            batches.reset()?;
            self.learn(&known)
        })
    }

    /// Adds a batch to what is known of the columns of its features and labels.
    fn look_at(&self, known: &mut [Vec<Vec<Spread>>; 2], batch: &dyn Examples) -> Result<()> {
        let [features, labels] = known;
        self.check_inputs(batch.features().len())?;
        look_at_each(features, (batch.features(), batch.features_masks()), &|input| self.is_for(input))?;
        if self.with_labels {
            look_at_each(labels, (batch.labels(), batch.labels_masks()), &|_| true)?;
        }
        Ok(())
    }

    /// Takes what follows from the columns.
    fn learn(&mut self, [features, labels]: &[Vec<Vec<Spread>>; 2]) -> Result<()> {
        let features = self.affines(features, &|input| self.is_for(input))?;
        self.labels = if self.with_labels { self.affines(labels, &|_| true)? } else { Vec::new() };
        self.features = features;
        Ok(())
    }

    /// Whether it normalises an input.
    fn is_for(&self, input: usize) -> bool {
        self.inputs.as_ref().is_none_or(|inputs| inputs.contains(&input))
    }

    /// Whether the inputs that are named are there.
    fn check_inputs(&self, inputs: usize) -> Result<()> {
        let named = self.inputs.iter().flatten().find(|&&input| input >= inputs);
        named.map_or(Ok(()), |input| Err(no_array("input", *input, inputs)))
    }

    /// Of each array that is wanted.
    fn affines(&self, arrays: &[Vec<Spread>], wanted: &dyn Fn(usize) -> bool) -> Result<Vec<Option<Affine>>> {
        let mut all = Vec::with_capacity(arrays.len());
        for (at, columns) in arrays.iter().enumerate() {
            all.push(if wanted(at) { Some(self.affine(columns)?) } else { None });
        }
        if all.is_empty() { Err(no_number()) } else { Ok(all) }
    }

    fn affine(&self, columns: &[Spread]) -> Result<Affine> {
        if columns.is_empty() || columns.iter().any(|column| column.count == 0.) {
            return Err(no_number());
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
    /// [`Error::Invalid`] before [`Normalizer::fit`], for a range of one number, or for other numbers of inputs or
    /// outputs than those looked at; [`Error::Shape`] for other columns.
    #[track_caller]
    pub fn transform<B: Leased>(&self, batch: &B) -> Result<B> {
        let mut made = batch.clone();
        called_here(self.change(made.arrays_mut(), false))?;
        Ok(made)
    }

    /// A batch as it was before.
    ///
    /// # Errors
    /// As [`Normalizer::transform`].
    #[track_caller]
    pub fn revert<B: Leased>(&self, batch: &B) -> Result<B> {
        let mut made = batch.clone();
        called_here(self.change(made.arrays_mut(), true))?;
        Ok(made)
    }

    /// Features, normalised: those of the only input.
    ///
    /// # Errors
    /// As [`Normalizer::transform`]; [`Error::Invalid`] if it looked at several inputs, or is for another one alone.
    #[track_caller]
    pub fn transform_features(&self, features: &Tensor) -> Result<Tensor> {
        called_here(self.change_only(INPUT, features, false))
    }

    /// Features as they were before: those of the only input.
    ///
    /// # Errors
    /// As [`Normalizer::transform_features`].
    #[track_caller]
    pub fn revert_features(&self, features: &Tensor) -> Result<Tensor> {
        called_here(self.change_only(INPUT, features, true))
    }

    /// Labels, or what a network predicts, as they were before, of the only output; themselves if labels are not
    /// normalised.
    ///
    /// # Errors
    /// As [`Normalizer::transform`]; [`Error::Invalid`] if it looked at several outputs.
    #[track_caller]
    pub fn revert_labels(&self, labels: &Tensor) -> Result<Tensor> {
        called_here(self.change_only(OUTPUT, labels, true))
    }

    /// Features of one of several inputs, normalised.
    ///
    /// # Errors
    /// As [`Normalizer::transform`]; [`Error::Invalid`] if it looked at no such input.
    #[track_caller]
    pub fn transform_features_of(&self, input: usize, features: &Tensor) -> Result<Tensor> {
        called_here(self.change_one(INPUT, input, features, false))
    }

    /// Features of one of several inputs, as they were before.
    ///
    /// # Errors
    /// As [`Normalizer::transform_features_of`].
    #[track_caller]
    pub fn revert_features_of(&self, input: usize, features: &Tensor) -> Result<Tensor> {
        called_here(self.change_one(INPUT, input, features, true))
    }

    /// Labels of one of several outputs, or what a network predicts there, as they were before; themselves if labels
    /// are not normalised.
    ///
    /// ```
    /// # use ndgc::train::{ArrayMultiDataSetIterator, MultiDataSet, Normalizer};
    /// # use ndgc::{Device, Tensor};
    /// let of = |numbers: [f64; 2]| Tensor::from_slice(&numbers, (2, 1), &Device::Cpu);
    /// let batch = MultiDataSet::new(vec![of([0., 1.])?], vec![of([100., 228.])?, of([5., 7.])?])?;
    /// let mut normalizer = Normalizer::min_max(0., 1.).with_labels();
    /// normalizer.fit(&mut ArrayMultiDataSetIterator::new(batch.clone(), 2)?)?;
    /// let predicted = of([0.5, 1.])?; // what a network says at its second output
    /// assert_eq!(normalizer.revert_labels_of(1, &predicted)?.to_vec2::<f64>()?, [[6.], [7.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Normalizer::transform`]; [`Error::Invalid`] if it looked at no such output.
    #[track_caller]
    pub fn revert_labels_of(&self, output: usize, labels: &Tensor) -> Result<Tensor> {
        called_here(self.change_one(OUTPUT, output, labels, true))
    }

    /// Whether arrays of this side stay as they are.
    fn leaves(&self, side: Side) -> bool {
        side == OUTPUT && (!self.with_labels || self.kind == NormalizerKind::Image)
    }

    /// What it knows of this side, an entry for each of its arrays; of images one for all.
    fn known(&self, side: Side) -> &[Option<Affine>] {
        if side == INPUT { &self.features } else { &self.labels }
    }

    /// Normalises the arrays of a batch, or brings them back.
    fn change(&self, sides: [&mut [Tensor]; 2], back: bool) -> Result<()> {
        self.check_inputs(sides[0].len())?;
        for (side, arrays) in [INPUT, OUTPUT].into_iter().zip(sides) {
            if self.leaves(side) {
                continue;
            }
            let known = self.known(side).len();
            if self.kind != NormalizerKind::Image && known != 0 && known != arrays.len() {
                let why = format!("{} {side}s, and it looked at {known}", arrays.len());
                return Err(Error::invalid("Normalizer", why));
            }
            for (at, array) in arrays.iter_mut().enumerate() {
                *array = self.change_one(side, at, array, back)?;
            }
        }
        Ok(())
    }

    /// As [`Normalizer::change_one`], of the only array of this side.
    fn change_only(&self, side: Side, array: &Tensor, back: bool) -> Result<Tensor> {
        let known = self.known(side).len();
        if known > 1 && !self.leaves(side) {
            let by = match (side, back) {
                (INPUT, false) => "transform_features_of",
                (INPUT, true) => "revert_features_of",
                _ => "revert_labels_of",
            };
            let why = format!("it looked at {known} {side}s; say of which, as by {by}()");
            return Err(Error::invalid("Normalizer", why));
        }
        if side == INPUT {
            self.check_inputs(1)?;
        }
        self.change_one(side, 0, array, back)
    }

    /// An array, normalised or brought back.
    fn change_one(&self, side: Side, at: usize, array: &Tensor, back: bool) -> Result<Tensor> {
        if self.leaves(side) || side == INPUT && !self.is_for(at) {
            return Ok(array.clone());
        }
        let known = self.known(side);
        let place = if self.kind == NormalizerKind::Image { 0 } else { at };
        let affine = match known.get(place) {
            Some(Some(affine)) => affine,
            None if !known.is_empty() => return Err(no_array(side, at, known.len())),
            _ => return Err(Error::invalid("Normalizer", "it looked at nothing yet; call fit() first")),
        };
        if back { apply(self.kind, &affine.inverse(), array) } else { apply(self.kind, affine, array) }
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
        let each = |all: &[Option<Affine>]| -> Value {
            let of = |affine: &Affine| json!({ "scale": exact(&affine.scale), "shift": exact(&affine.shift) });
            all.iter().map(|affine| affine.as_ref().map_or(Value::Null, of)).collect()
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
            "inputs": self.inputs,
            "features": each(&self.features),
            "labels": each(&self.labels),
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
            (!scale.is_empty() && scale.len() == shift.len()).then_some(Some(Affine { scale, shift }))
        };
        let each = |value: &Value| -> Option<Vec<Option<Affine>>> { value.as_array()?.iter().map(affine).collect() };
        let index = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let inputs = match value.get("inputs")? {
            Value::Null => None,
            named => Some(named.as_array()?.iter().map(index).collect::<Option<Vec<usize>>>()?),
        };
        let kind = match (value.get("kind")?.as_str()?, &exact(value.get("range")?)?[..]) {
            ("standardize", []) => NormalizerKind::Standardize,
            ("min_max", &[min, max]) => NormalizerKind::MinMax(min, max),
            ("image", []) => NormalizerKind::Image,
            _ => return None,
        };
        let (features, labels) = (each(value.get("features")?)?, each(value.get("labels")?)?);
        if kind == NormalizerKind::Image && !matches!(features[..], [Some(_)]) {
            return None;
        }
        Some(Normalizer { kind, with_labels: value.get("with_labels")?.as_bool()?, inputs, features, labels })
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

fn no_number() -> Error {
    Error::invalid("Normalizer::fit", "there was no number of a column; give it batches to look at")
}

fn no_array(side: Side, at: usize, count: usize) -> Error {
    Error::invalid("Normalizer", format!("there is no {side} {at}; there are {count}, counted from 0"))
}

fn apply(kind: NormalizerKind, affine: &Affine, array: &Tensor) -> Result<Tensor> {
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

/// Adds the arrays of a batch that are wanted to what is known of the columns of each.
fn look_at_each(
    known: &mut Vec<Vec<Spread>>,
    (arrays, masks): (&[Tensor], &[Option<Tensor>]),
    wanted: &dyn Fn(usize) -> bool,
) -> Result<()> {
    if arrays.is_empty() {
        return Err(no_number());
    }
    if known.is_empty() {
        known.resize(arrays.len(), Vec::new());
    }
    if known.len() != arrays.len() {
        let why = format!("{} arrays of a batch, where there were {}", arrays.len(), known.len());
        return Err(Error::invalid("Normalizer::fit", why));
    }
    for (at, (columns, array)) in known.iter_mut().zip(arrays).enumerate() {
        if wanted(at) {
            look(columns, array, mask_at(masks, at))?;
        }
    }
    Ok(())
}

/// Adds the numbers of an array to what is known of its columns.
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

impl<I: Iterator> NormalizingIterator<I> {
    /// With a normaliser that has looked at what it has to.
    pub fn new(batches: I, normalizer: Normalizer) -> Self {
        NormalizingIterator { batches, normalizer }
    }
}

impl<T: Leased, I: Iterator<Item = Result<T>>> Iterator for NormalizingIterator<I> {
    type Item = Result<T>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<T>> {
        Some(called_here(self.batches.next()?.and_then(|batch| self.normalizer.transform(&batch))))
    }
}

impl<T: Leased, I: DataIterator<T>> DataIterator<T> for NormalizingIterator<I> {
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
