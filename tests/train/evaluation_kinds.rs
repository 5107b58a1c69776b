//! Evaluation: what all kinds have in common. Merging, JSON, masks, shapes, dtypes, and no array made.

use ndgc::train::{
    Evaluation, EvaluationBinary, EvaluationCalibration, IEvaluation, RegressionEvaluation, Roc, RocBinary,
    RocMultiClass,
};
use ndgc::{DType, Device, Error, Result, SimConfig, Tensor};
use serde_json::Value;

use super::both::both;
use super::evaluation::same_text;
use crate::common::Dice;

/// One of each kind, and what it needs to be merged and read back.
trait Kind: IEvaluation + Sized {
    fn fresh() -> Self;
    fn add(&mut self, other: &Self) -> Result<()>;
    fn read(text: &str) -> Result<Self>;
}

macro_rules! kinds {
    ($($kind:ty => $fresh:expr;)*) => {
        $(impl Kind for $kind {
            fn fresh() -> Self {
                $fresh
            }
            fn add(&mut self, other: &Self) -> Result<()> {
                self.merge(other)
            }
            fn read(text: &str) -> Result<Self> {
                <$kind>::from_json(text)
            }
        })*

        /// Calls a function with each kind.
        macro_rules! each_kind {
            ($function:ident($arguments:expr)) => {
                { $($function::<$kind>($arguments);)* }
            };
        }
    };
}

kinds! {
    Evaluation => Evaluation::default().with_top_n(2);
    RocMultiClass => RocMultiClass::default();
    RocBinary => RocBinary::new(20).unwrap();
    EvaluationBinary => EvaluationBinary::default().with_roc(0).unwrap();
    RegressionEvaluation => RegressionEvaluation::default();
    EvaluationCalibration => EvaluationCalibration::default();
}

/// Batches of `[n, 3]` with ties, a third of them masked.
fn batches(dice: &mut Dice) -> Vec<(Tensor, Tensor, Tensor)> {
    let batch = |dice: &mut Dice| {
        let n = 1 + dice.below(6);
        let mut labels = vec![0f64; n * 3];
        (0..n).for_each(|row| labels[row * 3 + dice.below(3)] = 1.);
        let predictions: Vec<f64> = (0..n * 3).map(|_| dice.below(12) as f64 / 12.).collect();
        let mask: Vec<f64> = (0..n).map(|_| f64::from(dice.below(3) > 0)).collect();
        let of = |all: Vec<f64>, shape: (usize, usize)| Tensor::from_vec(all, shape, &Device::Cpu).unwrap();
        (of(labels, (n, 3)), of(predictions, (n, 3)), of(mask, (n, 1)))
    };
    (0..8).map(|_| batch(dice)).collect()
}

fn merges<K: Kind>(dice: &mut Dice) {
    let all = batches(dice);
    let mut whole = K::fresh();
    for (labels, predictions, mask) in &all {
        whole.eval(labels, predictions, Some(mask)).unwrap();
    }
    // Parts, some of them empty, in an order that the dice decide.
    let mut parts: Vec<K> = (0..4).map(|_| K::fresh()).collect();
    for (labels, predictions, mask) in &all {
        parts[dice.below(3)].eval(labels, predictions, Some(mask)).unwrap();
    }
    while parts.len() > 1 {
        let part = parts.swap_remove(dice.below(parts.len()));
        let into = dice.below(parts.len());
        parts[into].add(&part).unwrap();
    }
    // The last digit of a text may be a rounded half.
    let figures = |one: &K| {
        let all: Value = serde_json::from_str(&one.to_json()).unwrap();
        all["metrics"].to_string().replace([':', ',', '{', '}'], " ")
    };
    same_text(&figures(&parts[0]), &figures(&whole));
    assert_eq!(parts[0].stats().len(), whole.stats().len());
    let read = K::read(&whole.to_json()).unwrap();
    assert_eq!((read.stats(), read.to_json()), (whole.stats(), whole.to_json()));
    whole.reset();
    assert_eq!(whole.stats(), K::fresh().stats());
    assert!(K::read("{}").is_err() && K::read("[").is_err() && K::read("{\"type\": \"Other\"}").is_err());
}

#[test]
fn parts_merged_in_any_order_are_the_whole_and_json_is_read_back() {
    both(|| {
        for seed in 1..40 {
            each_kind!(merges(&mut Dice(seed)));
        }
    });
}

#[test]
fn what_was_cut_in_json_is_an_error() {
    both(|| {
        let (labels, predictions, _) = batches(&mut Dice(5)).remove(0);
        let mut ours = EvaluationBinary::default().with_roc(10).unwrap();
        ours.eval(&labels, &predictions, None).unwrap();
        let text = ours.to_json();
        for end in 0..text.len() {
            assert!(EvaluationBinary::from_json(&text[..end]).is_err());
        }
    });
}

fn empty<K: Kind>(_: ()) {
    let mut one = K::fresh();
    assert!(!one.stats().contains("NaN"), "{}", one.stats());
    let read = K::read(&one.to_json()).unwrap();
    assert_eq!(read.stats(), one.stats());
    one.add(&K::fresh()).unwrap();
    // A batch of which nothing counts.
    let (labels, predictions, mask) = batches(&mut Dice(3)).remove(0);
    one.eval(&labels, &predictions, Some(&mask.zeros_like().unwrap())).unwrap();
    assert!(!one.stats().contains("NaN"), "{}", one.stats());
    one.eval(&labels, &predictions, None).unwrap();
    let mut alone = K::fresh();
    alone.eval(&labels, &predictions, None).unwrap();
    assert_eq!(one.stats(), alone.stats(), "a batch of which nothing counts changes nothing");
}

#[test]
fn empty_ones_and_batches_of_which_nothing_counts_do_no_harm() {
    both(|| each_kind!(empty(())));
}

fn every_dtype<K: Kind>(_: ()) {
    let labels = Tensor::new([[1f64, 0., 0.], [0., 1., 0.], [0., 1., 0.]], &Device::Cpu).unwrap();
    let predictions = Tensor::new([[0.5f64, 0.25, 0.25], [0.125, 0.75, 0.125], [0.5, 0.375, 0.125]], &Device::Cpu);
    let predictions = predictions.unwrap();
    let text = |labels: &Tensor, predictions: &Tensor| {
        let mut one = K::fresh();
        one.eval(labels, predictions, None).unwrap();
        one.stats()
    };
    let wanted = text(&labels, &predictions);
    for label in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::U8, DType::I64, DType::U32, DType::I32] {
        for prediction in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let (labels, predictions) = (labels.to_dtype(label).unwrap(), predictions.to_dtype(prediction).unwrap());
            assert_eq!(text(&labels, &predictions), wanted, "{label} and {prediction}");
        }
    }
    let sim = Device::sim(SimConfig::default());
    let there = |array: &Tensor| array.to_device(&sim).unwrap();
    assert_eq!(text(&there(&labels), &there(&predictions)), wanted, "arrays of a device");
    let turned = |array: &Tensor| array.t().unwrap().contiguous().unwrap().t().unwrap();
    assert_eq!(text(&turned(&labels), &turned(&predictions)), wanted, "arrays that do not lie in order");
}

#[test]
fn every_dtype_layout_and_device_gives_the_same_text() {
    both(|| each_kind!(every_dtype(())));
}

fn steps_are_rows<K: Kind>(dice: &mut Dice) {
    let of = |all: Vec<f64>, shape: &[usize]| Tensor::from_vec(all, shape, &Device::Cpu).unwrap();
    let (n, t) = (4, 5);
    let mut labels = vec![0f64; n * t * 3];
    (0..n * t).for_each(|row| labels[row * 3 + dice.below(3)] = 1.);
    let labels = of(labels, &[n, t, 3]);
    let predictions = of((0..n * t * 3).map(|_| dice.below(100) as f64 / 100.).collect(), &[n, t, 3]);
    let mask = of((0..n * t).map(|_| dice.below(2) as f64).collect(), &[n, t]);
    let mut flat = K::fresh();
    let rows = |array: &Tensor| array.reshape((n * t, 3)).unwrap();
    flat.eval(&rows(&labels), &rows(&predictions), Some(&mask.reshape((n * t, 1)).unwrap())).unwrap();
    let mut series = K::fresh();
    let turned = |array: &Tensor| array.transpose(1, 2).unwrap();
    series.eval(&turned(&labels), &turned(&predictions), Some(&mask)).unwrap();
    assert_eq!(series.stats(), flat.stats(), "[n, c, t]");
    let mut images = K::fresh();
    let image = |array: &Tensor| turned(array).contiguous().unwrap().reshape((n, 3, t, 1)).unwrap();
    images.eval(&image(&labels), &image(&predictions), Some(&mask.reshape((n, 1, t, 1)).unwrap())).unwrap();
    assert_eq!(images.stats(), flat.stats(), "[n, c, h, w]");
}

#[test]
fn steps_of_series_and_points_of_images_are_rows() {
    both(|| {
        each_kind!(steps_are_rows(&mut Dice(9)));
        let labels = Tensor::new([[0u32, 1], [1, 1]], &Device::Cpu).unwrap();
        let predictions = Tensor::new([[[0.9f32, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.3, 0.7]]], &Device::Cpu).unwrap();
        let mut last = Evaluation::default().with_axis(-1);
        last.eval(&labels, &predictions, None).unwrap();
        assert_eq!((last.rows(), last.accuracy()), (4, 0.75), "indices of classes, which are on the last axis");
    });
}

fn allocates_nothing<K: Kind>(_: ()) {
    let all = batches(&mut Dice(11));
    let mut one = K::fresh();
    let asked = || {
        let memory = Device::Cpu.memory();
        (memory.hits + memory.misses, memory.active)
    };
    let before = asked();
    for (labels, predictions, mask) in &all {
        one.eval(labels, predictions, Some(mask)).unwrap();
    }
    assert_eq!(asked(), before, "no array was asked for");
}

#[test]
fn no_array_is_made_while_evaluating() {
    both(|| each_kind!(allocates_nothing(())));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_counted() {
    both(|| {
        let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let mut one = Evaluation::new(3);
        let refused = |result: Result<()>| result.unwrap_err().to_string();
        one.eval(&of(&[2, 3]), &of(&[2, 3]), None).unwrap();
        assert!(refused(one.eval(&of(&[2, 4]), &of(&[2, 4]), None)).contains("4 columns, where there were 3"));
        assert!(matches!(one.eval(&of(&[3, 3]), &of(&[2, 3]), None), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(one.eval(&of(&[2, 3]), &of(&[2, 3]), Some(&of(&[5]))), Err(Error::ShapeMismatch { .. })));
        assert!(refused(one.eval(&of(&[2, 3]), &of(&[2, 3]), Some(&of(&[2, 3])))).contains("a mask for each output"));
        let ids = Tensor::new([0u32, 3], &Device::Cpu).unwrap();
        assert!(matches!(one.eval(&ids, &of(&[2, 3]), None), Err(Error::IndexOutOfRange { .. })));
        let nan = Tensor::new([[0f32, 1., 0.], [f32::NAN, 0., 1.]], &Device::Cpu).unwrap();
        assert!(refused(one.eval(&of(&[2, 3]), &nan, None)).contains("NaN"));
        assert_eq!(one.rows(), 2, "nothing of these was counted");
        let mask = Tensor::new([1f32, 0.], &Device::Cpu).unwrap();
        one.eval(&of(&[2, 3]), &nan, Some(&mask)).unwrap();
        assert_eq!(one.rows(), 3, "NaN that does not count is none");
        let error = Roc::default().eval(&of(&[2, 3]), &of(&[2, 3]), None).unwrap_err().to_string();
        assert!(error.contains("RocMultiClass"), "{error}");
        assert!(Roc::new(usize::MAX).is_err() && EvaluationCalibration::new(0, 5).is_err());
    });
}

#[test]
fn pictures_are_whole_svg() {
    both(|| {
        let (labels, predictions, _) = batches(&mut Dice(2)).remove(0);
        let mut one = Evaluation::default().with_labels(["a<b", "\"c\"", "d&e"]);
        one.eval(&labels, &predictions, None).unwrap();
        let mut roc = Roc::default();
        let of = |all: &[f64]| Tensor::from_slice(all, all.len(), &Device::Cpu).unwrap();
        roc.eval(&of(&[1., 0., 1.]), &of(&[0.9, 0.5, 0.3]), None).unwrap();
        let (curve, pr) = (roc.roc_curve().unwrap(), roc.precision_recall_curve().unwrap());
        for picture in [one.confusion_svg(), curve.to_svg(), pr.to_svg()] {
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
            assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
            assert!(!picture.contains("a<b") && !picture.contains("NaN"));
        }
    });
}
