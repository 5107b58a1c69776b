//! Evaluation: what all kinds have in common. Merging, JSON, masks, shapes, dtypes, and no array made. What ND4J's
//! tests assert (E4 to E27 of `numbered.rs`) where its answers in `evaluation.rs` do not show it.

use ndgc::train::{
    Evaluation, EvaluationBinary, EvaluationCalibration, IEvaluation, PrecisionRecallCurve, RegressionEvaluation,
    RegressionMetric, Roc, RocBinary, RocCurve, RocMultiClass,
};
use ndgc::{DType, Device, Error, Result, SimConfig, Tensor};
use serde_json::Value;

use super::both::both;
use super::evaluation::same_text;
use super::network_layers::{numbers, one_hot};
use super::numbered::{near, of};
use crate::common::{Dice, assert_names_its_line};

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
    for label in DType::ALL {
        for prediction in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8E4M3] {
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

/// As many numbers are not enough: those of `[t, n]` came out at other steps.
fn masks_of_other_shapes<K: Kind>(_: ()) {
    let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
    let (rows, series) = (one_hot(&[6, 3]).to_dtype(DType::F32).unwrap(), one_hot(&[4, 3, 5]));
    let images = series.reshape((4, 3, 5, 1)).unwrap();
    let turned = series.permute((0, 2, 1)).unwrap();
    for dims in [&[6usize][..], &[6, 1]] {
        K::fresh().eval(&rows, &rows, Some(&of(dims))).unwrap();
    }
    for dims in [&[4usize, 5][..], &[4, 1, 5], &[4], &[4, 1], &[4, 1, 1]] {
        K::fresh().eval(&series, &series, Some(&of(dims))).unwrap();
    }
    for dims in [&[4usize, 5, 1][..], &[4, 1, 5, 1], &[4], &[4, 1], &[4, 1, 1, 1]] {
        K::fresh().eval(&images, &images, Some(&of(dims))).unwrap();
    }
    let wrong: [(&Tensor, &[&[usize]]); 3] = [
        (&rows, &[&[1, 6], &[2, 3], &[3, 6], &[18], &[5]]),
        (&series, &[&[5, 4], &[20], &[20, 1], &[1, 4], &[2, 2], &[5, 1, 4], &[4, 5, 3], &[60], &[5]]),
        (&turned, &[&[4, 5], &[4, 1, 5], &[4, 3, 5]]),
    ];
    for (array, shapes) in wrong {
        for dims in shapes {
            let mut one = K::fresh();
            let before = one.to_json();
            let error = one.eval(array, array, Some(&of(dims))).unwrap_err();
            assert!(matches!(error, Error::ShapeMismatch { .. }), "{dims:?} of {:?}: {error}", array.dims());
            assert_names_its_line(&error);
            assert_eq!(one.to_json(), before, "nothing was counted");
        }
    }
}

#[test]
fn a_mask_of_another_shape_is_refused_however_many_numbers_it_has() {
    both(|| each_kind!(masks_of_other_shapes(())));
}

#[test]
fn pictures_are_whole_svg() {
    both(|| {
        let (labels, predictions, _) = batches(&mut Dice(2)).remove(0);
        let mut one = Evaluation::default().with_labels(["a<b\u{1}", "\"c\"\u{ffff}", "d&e\u{fffe}"]);
        one.eval(&labels, &predictions, None).unwrap();
        let mut roc = Roc::default();
        let of = |all: &[f64]| Tensor::from_slice(all, all.len(), &Device::Cpu).unwrap();
        roc.eval(&of(&[1., 0., 1.]), &of(&[0.9, 0.5, 0.3]), None).unwrap();
        let (curve, pr) = (roc.roc_curve().unwrap(), roc.precision_recall_curve().unwrap());
        for picture in [one.confusion_svg(), curve.to_svg(), pr.to_svg()] {
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
            assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
            assert!(!picture.contains("a<b") && !picture.contains("NaN"));
            assert!(!picture.contains(['\u{1}', '\u{fffe}', '\u{ffff}']), "XML has no such characters");
        }
    });
}

/// The points of the line of a picture.
fn line_of(picture: &str) -> Vec<[f64; 2]> {
    let (_, line) = picture.split_once("<polyline points=\"").unwrap();
    let numbers = line.split_once('"').unwrap().0.split([' ', ',']).map(|number| number.parse().unwrap());
    numbers.collect::<Vec<f64>>().chunks(2).map(|point| [point[0], point[1]]).collect()
}

/// Broken by: a number of points without end, each of them in the picture.
#[test]
fn pictures_of_curves_have_the_points_that_are_seen() {
    both(|| {
        let n = 1_000_000;
        let part = |i: usize| i as f64 / n as f64;
        let thresholds = vec![0.; n + 1];
        // Up, to the right and up again, with a corner each; and one that falls to 0 for a single point.
        let false_positive_rates = (0..=n).map(|i| (part(i) * 3. - 1.).clamp(0., 1.) * 0.4).chain([1.]).collect();
        let true_positive_rates = (0..=n).map(|i| (part(i) * 2.).min(1.) * 0.7).chain([1.]).collect();
        let roc = RocCurve { thresholds: vec![0.; n + 2], false_positive_rates, true_positive_rates, auc: 0.5 };
        let precisions = (0..=n).map(|i| if i == n / 3 { 0. } else { 0.5 + 0.4 * part(i) }).collect();
        let pr = PrecisionRecallCurve { thresholds, precisions, recalls: (0..=n).map(part).collect(), auprc: 0.5 };
        let at = |x: f64, y: f64| [60. + 360. * x, 40. + 360. * (1. - y)];
        let of_roc = [at(0., 0.), at(0., 0.7 * 2. / 3.), at(0.2, 0.7), at(0.4, 0.7), at(1., 1.)];
        let of_pr = [at(0., 0.5), at(1. / 3., 0.), at(1., 0.9)];
        for (picture, points) in [(roc.to_svg(), &of_roc[..]), (pr.to_svg(), &of_pr[..])] {
            assert!(picture.len() < 200_000, "{} bytes", picture.len());
            let line = line_of(&picture);
            for point in points {
                let near = |[x, y]: &[f64; 2]| (x - point[0]).abs() < 0.26 && (y - point[1]).abs() < 0.51;
                assert!(line.iter().any(near), "{point:?}");
            }
            let near = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).abs() < 0.01 && (a[1] - b[1]).abs() < 0.01;
            assert!(near(line[0], points[0]) && near(line[line.len() - 1], points[points.len() - 1]));
        }
        // Of few points each is there.
        let thirds = || vec![0., 1. / 3., 2. / 3., 1.];
        let few = PrecisionRecallCurve { thresholds: thirds(), precisions: thirds(), recalls: thirds(), auprc: 0.5 };
        assert_eq!(line_of(&few.to_svg()), [[60., 400.], [180., 280.], [300., 160.], [420., 40.]]);
        // A point without a place is left out, and nothing else for it.
        let recalls = vec![f64::NAN, 0., 0.2, 0.4, 0.5, 0.6, 1.];
        let precisions = vec![0., 0., 0.2, 0.4, f64::NAN, 0.6, 1.];
        let lost = PrecisionRecallCurve { thresholds: recalls.clone(), precisions, recalls, auprc: 0.5 };
        let want = [[60., 400.], [132., 328.], [204., 256.], [276., 184.], [420., 40.]];
        assert_eq!(line_of(&lost.to_svg()), want);
    });
}

/// Numbers from 0 to 1 that look random, no two of them equal.
fn scores(dice: &mut Dice, n: usize) -> Vec<f64> {
    (0..n).map(|i| (dice.below(1000) as f64 + i as f64 / n as f64) / 1001.).collect()
}

#[test]
fn e4_who_always_says_one_class_has_no_perfect_recall() {
    both(|| {
        let mut one = Evaluation::default();
        one.eval(&one_hot(&[9, 3]), &of(&[0.1, 0.8, 0.1].repeat(9), &[9, 3]), None).unwrap();
        assert!((one.recall() - 1. / 3.).abs() < 1e-15 && one.counts(1).true_positives == 3, "{}", one.stats());
    });
}

#[test]
fn e6_one_column_counts_the_same_after_each_reset() {
    both(|| {
        let mut one = Evaluation::default();
        for _ in 0..3 {
            one.eval(&of(&[1., 1., 0., 0.], &[4, 1]), &of(&[0.9, 0.8, 0.3, 0.6], &[4, 1]), None).unwrap();
            assert_eq!((one.rows(), one.accuracy(), one.num_classes()), (4, 0.75, 2));
            one.reset();
            assert_eq!(one.rows(), 0);
        }
    });
}

#[test]
fn e13_the_positive_class_of_two_may_be_either_or_none() {
    both(|| {
        // Seven found, five missed, three rightly not, one wrongly.
        let rows = [(1., 0.9, 7), (1., 0.2, 5), (0., 0.1, 3), (0., 0.7, 1)];
        let rows: Vec<(f64, f64)> = rows.iter().flat_map(|&(label, p, times)| vec![(label, p); times]).collect();
        let [one, two] = [1, 2].map(|columns| {
            let cells = |p: f64| [1. - p, p][2 - columns..].to_vec();
            let labels: Vec<f64> = rows.iter().flat_map(|row| cells(row.0)).collect();
            let predictions: Vec<f64> = rows.iter().flat_map(|row| cells(row.1)).collect();
            [labels, predictions].map(|all| of(&all, &[16, columns]))
        });
        let (second, first): ([f64; 2], [f64; 2]) = ([7. / 8., 7. / 12.], [3. / 8., 3. / 4.]);
        let mean = [(first[0] + second[0]) / 2., (first[1] + second[1]) / 2.];
        for [labels, predictions] in [one, two] {
            for (positive, wanted) in [(Some(1), second), (Some(0), first), (None, mean)] {
                let mut ours = Evaluation::default().with_positive_class(positive);
                ours.eval(&labels, &predictions, None).unwrap();
                assert!(near(&[ours.precision(), ours.recall()], &wanted), "{positive:?}: {}", ours.stats());
            }
        }
    });
}

#[test]
fn e15_the_columns_of_images_may_be_on_any_axis() {
    both(|| {
        let mut dice = Dice(15);
        for columns in [4, 1] {
            let dims = [2, columns, 3, 5];
            let labels = match columns {
                1 => of(&(0..30).map(|i| f64::from(i % 3 == 0)).collect::<Vec<_>>(), &dims),
                _ => one_hot(&[30, columns]).reshape((2, 3, 5, columns)).unwrap().permute((0, 3, 1, 2)).unwrap(),
            };
            let predictions = of(&scores(&mut dice, 30 * columns), &dims);
            let text = |axis: i64, labels: &Tensor, predictions: &Tensor| {
                let mut one = Evaluation::default().with_axis(axis);
                one.eval(labels, predictions, None).unwrap();
                (one.rows(), one.stats())
            };
            let wanted = text(1, &labels, &predictions);
            assert_eq!(wanted.0, 30);
            for (axis, order) in [(2, (0, 2, 1, 3)), (3, (0, 2, 3, 1)), (-1, (0, 2, 3, 1))] {
                let [labels, predictions] = [&labels, &predictions].map(|array| array.permute(order).unwrap());
                assert_eq!(text(axis, &labels, &predictions), wanted, "{columns} columns on axis {axis}");
            }
        }
    });
}

#[test]
fn e16_the_text_of_two_classes_is_the_same_after_a_reset() {
    both(|| {
        let mut one = Evaluation::default().with_labels(["no", "yes"]);
        let mut text = || {
            one.reset();
            let labels = of(&[1., 1., 1., 1., 1., 0., 0.], &[7, 1]);
            one.eval(&labels, &of(&[0.9, 0.8, 0.7, 0.2, 0.1, 0.6, 0.3], &[7, 1]), None).unwrap();
            one.stats()
        };
        let first = text();
        for line in [" Precision:       0.7500\n", " Recall:          0.6000\n", " F1 Score:        0.6667\n"] {
            assert!(first.contains(line), "{first}");
        }
        assert_eq!(text(), first);
    });
}

#[test]
fn e17_thresholds_and_costs_decide_what_is_predicted() {
    both(|| {
        let mut dice = Dice(17);
        let matrix = |mut one: Evaluation, labels: &Tensor, predictions: &Tensor| {
            one.eval(labels, predictions, None).unwrap();
            let n = one.num_classes();
            (0..n * n).map(|place| one.confusion(place / n, place % n)).collect::<Vec<u64>>()
        };
        let (p, labels) = (scores(&mut dice, 40), of(&(0..40).map(|i| f64::from(i % 2)).collect::<Vec<_>>(), &[40, 1]));
        let (half, column) = (p.iter().map(|p| p / 2.).collect::<Vec<_>>(), of(&p, &[40, 1]));
        let plain = matrix(Evaluation::default(), &labels, &column);
        assert_eq!(matrix(Evaluation::default().with_binary_decision_threshold(0.5), &labels, &column), plain);
        let quarter = Evaluation::default().with_binary_decision_threshold(0.25);
        assert_eq!(matrix(quarter, &labels, &of(&half, &[40, 1])), plain, "as of doubled probabilities");
        let pairs = of(&p.iter().flat_map(|&p| [1. - p, p]).collect::<Vec<_>>(), &[40, 2]);
        let classes = labels.reshape(40).unwrap();
        assert_eq!(matrix(Evaluation::default(), &classes, &pairs), plain, "as of two columns");
        assert_eq!(matrix(Evaluation::default().with_cost_array([2., 2.]), &classes, &pairs), plain);

        let rows = of(&[0.3, 0.6, 0.1, 0.1, 0.35, 0.55, 0.05, 0.1, 0.85], &[3, 3]);
        let right = |one: Evaluation| matrix(one, &of(&[0., 1., 2.], &[3]), &rows).iter().step_by(4).sum::<u64>();
        assert_eq!((right(Evaluation::default()), right(Evaluation::default().with_cost_array([5., 2., 1.]))), (1, 3));
    });
}

/// `new Evaluation(outputNum)` of one output, its costs, and a positive class that is none.
#[test]
fn one_column_is_two_classes_for_each_setting() {
    both(|| {
        let (p, labels) = ([0.1, 0.3, 0.6, 0.9], of(&[0., 1., 0., 1.], &[4, 1]));
        let pairs = of(&p.iter().flat_map(|&p| [1. - p, p]).collect::<Vec<_>>(), &[4, 2]);
        let (column, classes) = (of(&p, &[4, 1]), labels.reshape(4).unwrap());
        let looked = |mut one: Evaluation| {
            let mut two = one.clone();
            one.eval(&labels, &column, None).unwrap();
            two.eval(&classes, &pairs, None).unwrap();
            assert_eq!(one.stats(), two.stats());
            one.accuracy()
        };
        assert_eq!(looked(Evaluation::new(1)), 0.5);
        assert_eq!(looked(Evaluation::new(1).with_cost_array([1., 1.])), 0.5);
        assert_eq!(looked(Evaluation::new(2).with_cost_array([1., 3.])), 0.75, "0.9 of class 1 to 0.7 of class 0");
        let error = Evaluation::new(2).with_positive_class(Some(2)).eval(&labels, &column, None).unwrap_err();
        assert!(error.to_string().contains("2 is none of two classes"), "{error}");
        assert_names_its_line(&error);
    });
}

#[test]
fn e18_a_curve_of_ten_steps_has_eleven_points() {
    both(|| {
        let (p, labels): (Vec<f64>, Vec<f64>) = (0..10).map(|i| (i as f64 / 10. + 0.05, f64::from(i > 4))).unzip();
        let mut roc = Roc::new(10).unwrap();
        for _ in 0..2 {
            roc.reset();
            roc.eval(&of(&labels, &[10]), &of(&p, &[10]), None).unwrap();
            let curve = roc.roc_curve().unwrap();
            assert_eq!(curve.thresholds, [0., 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.]);
            assert_eq!(curve.false_positive_rates, [1., 0.8, 0.6, 0.4, 0.2, 0., 0., 0., 0., 0., 0.]);
            assert_eq!(curve.true_positive_rates, [1., 1., 1., 1., 1., 1., 0.8, 0.6, 0.4, 0.2, 0.]);
            assert_eq!((curve.auc, roc.counts_at_threshold(0.3).false_positives), (1., 2));
        }
        // One class of three is as that class and the rest.
        let (labels, p) = (one_hot(&[12, 3]), of(&scores(&mut Dice(18), 36), &[12, 3]));
        let (mut all, mut last) = (RocMultiClass::default(), Roc::default());
        all.eval(&labels, &p, None).unwrap();
        last.eval(&labels.narrow(1, 2, 1).unwrap(), &p.narrow(1, 2, 1).unwrap(), None).unwrap();
        assert_eq!(all.column(2).unwrap().roc_curve(), last.roc_curve());
    });
}

#[test]
fn e19_parts_of_a_curve_are_the_whole() {
    both(|| {
        for steps in [0, 20] {
            let (mut dice, mut whole) = (Dice(19), Roc::new(steps).unwrap());
            let mut parts: Vec<Roc> = (0..3).map(|_| Roc::new(steps).unwrap()).collect();
            for batch in 0..30 {
                let (labels, p) = (of(&[0., 1., f64::from(batch % 2)], &[3]), of(&scores(&mut dice, 3), &[3]));
                whole.eval(&labels, &p, None).unwrap();
                parts[batch as usize % 3].eval(&labels, &p, None).unwrap();
            }
            // Curves that were asked for before are not those of the sum.
            assert!(parts.iter().all(|part| part.roc_curve().is_some() && part.precision_recall_curve().is_some()));
            let mut sum = Roc::new(steps).unwrap();
            parts.iter().rev().for_each(|part| sum.merge(part).unwrap());
            assert_eq!((sum.roc_curve(), sum.auprc()), (whole.roc_curve(), whole.auprc()), "{steps} steps");
        }
    });
}

#[test]
fn e25_a_mask_for_each_output_is_of_that_output_alone() {
    both(|| {
        let (mut dice, n) = (Dice(25), 20);
        let labels: Vec<f64> = (0..3 * n).map(|_| dice.below(2) as f64).collect();
        let (p, mask) = (scores(&mut dice, 3 * n), (0..3 * n).map(|_| dice.below(3).min(1) as f64).collect::<Vec<_>>());
        let mut all = RocBinary::default();
        let [labels_array, p_array, mask_array] = [&labels, &p, &mask].map(|all| of(all, &[n, 3]));
        all.eval(&labels_array, &p_array, Some(&mask_array)).unwrap();
        for column in 0..3 {
            let counts = || (column..3 * n).step_by(3).filter(|&at| mask[at] != 0.);
            let some = |all: &[f64]| of(&counts().map(|at| all[at]).collect::<Vec<_>>(), &[counts().count()]);
            let mut alone = Roc::default();
            alone.eval(&some(&labels), &some(&p), None).unwrap();
            assert!(alone.positives() > 0 && alone.negatives() > 0);
            let found = all.column(column).unwrap();
            assert_eq!((found.positives(), found.roc_curve()), (alone.positives(), alone.roc_curve()), "{column}");
        }
    });
}

#[test]
fn e26_each_output_is_an_evaluation_of_its_own_column() {
    both(|| {
        let mut dice = Dice(26);
        let labels = of(&(0..60).map(|_| dice.below(2) as f64).collect::<Vec<_>>(), &[20, 3]);
        let p = of(&scores(&mut dice, 60), &[20, 3]);
        let mut all = EvaluationBinary::default();
        all.eval(&labels, &p, None).unwrap();
        for output in 0..3 {
            let [labels, p] = [&labels, &p].map(|array| array.narrow(1, output, 1).unwrap());
            let mut alone = Evaluation::default();
            alone.eval(&labels, &p, None).unwrap();
            assert_eq!(all.counts(output), alone.counts(1), "output {output}");
        }
    });
}

#[test]
fn e27_perfect_predictions_have_no_error() {
    both(|| {
        let (mut one, labels) = (RegressionEvaluation::default(), numbers(&[7, 3]));
        one.eval(&labels, &labels.copy().unwrap(), None).unwrap();
        let metrics = [
            (RegressionMetric::Mse, 0.),
            (RegressionMetric::Mae, 0.),
            (RegressionMetric::Rmse, 0.),
            (RegressionMetric::Rse, 0.),
            (RegressionMetric::PearsonCorrelation, 1.),
            (RegressionMetric::RSquared, 1.),
        ];
        for (metric, wanted) in metrics {
            assert!((0..3).all(|column| near(&[one.score(metric, column).unwrap()], &[wanted])), "{metric:?}");
        }
    });
}
