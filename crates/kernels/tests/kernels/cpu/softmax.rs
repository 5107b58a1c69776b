//! Softmax and cross entropy against their definitions in f64.

use ndgc_kernels::base::{dtype::DType, error::Error};
use ndgc_kernels::kernel::Kernel;

use super::arrays::{Array, Draw, FLOATS, assert_close, run, tolerance, wrapped};

const MATRICES: [&[usize]; 8] = [&[0, 3], &[3, 0], &[1, 1], &[4, 10], &[300, 3], &[3, 300], &[2, 1500], &[33, 40]];

fn plain(row: &[f64], log: bool) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    row.iter().map(|x| if log { x - max - sum.ln() } else { (x - max).exp() / sum }).collect()
}

fn rows(array: &Array) -> Vec<Vec<f64>> {
    match array.dims()[1] {
        0 => vec![],
        columns => array.values().chunks(columns).map(<[f64]>::to_vec).collect(),
    }
}

#[test]
fn softmax_and_its_gradient_match_their_definitions_on_any_layout() {
    let mut draw = Draw::new(21);
    for dtype in FLOATS {
        for dims in MATRICES {
            for log in [false, true] {
                let mut src = Array::random(&mut draw, dtype, dims);
                let mut out = Array::new(dtype, dims);
                run(&Kernel::Softmax { src: src.view(), dst: out.view(), log }).expect("floats");
                let expected: Vec<f64> = rows(&src).iter().flat_map(|row| plain(row, log)).collect();
                assert_close(&out.values(), &expected, tolerance(dtype), &format!("{dtype} {dims:?} log {log}"));

                let mut grad = Array::random(&mut draw, dtype, dims);
                let mut dst = Array::new(dtype, dims);
                let kernel = Kernel::SoftmaxGrad { out: out.view(), grad: grad.view(), dst: dst.view(), log };
                run(&kernel).expect("floats");
                let formula = |(y, g): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
                    let dot: f64 = y.iter().zip(g).map(|(y, g)| if log { *g } else { y * g }).sum();
                    y.iter().zip(g).map(|(y, g)| if log { g - y.exp() * dot } else { y * (g - dot) }).collect()
                };
                let expected: Vec<f64> = rows(&out).iter().zip(&rows(&grad)).flat_map(formula).collect();
                assert_close(&dst.values(), &expected, 4.0 * tolerance(dtype), &format!("gradient {dtype} {dims:?}"));
            }
        }
    }
}

#[test]
fn softmax_is_stable_for_large_and_infinite_elements() {
    for dtype in FLOATS {
        let values = [1e4, -1e4, f64::NEG_INFINITY, 1e4];
        let mut src = Array::of(dtype, &[1, 4], &values);
        let mut dst = Array::new(dtype, &[1, 4]);
        run(&Kernel::Softmax { src: src.view(), dst: dst.view(), log: false }).expect("floats");
        assert_eq!(dst.values(), [0.5, 0.0, 0.0, 0.5]);
        run(&Kernel::Softmax { src: src.view(), dst: dst.view(), log: true }).expect("floats");
        let half = 0.5f64.ln();
        // As far as the dtype reaches: one of 8 bits ends at 448.
        let (far, end) = (src.values()[0], wrapped(dtype, f64::NEG_INFINITY));
        let low = wrapped(dtype, -2.0 * far + half);
        assert_close(&dst.values(), &[half, low, end, half], tolerance(dtype), "log");
        let mut label = Array::of(DType::U32, &[1], &[1.0]);
        let mut loss = Array::new(dtype, &[]);
        let (logits, labels, probs) = (src.view(), label.view(), dst.view());
        run(&Kernel::CrossEntropy { logits, labels, probs, loss: loss.view() }).expect("a class");
        assert_close(&loss.values(), &[-low], tolerance(dtype), "loss");
    }
}

#[test]
fn cross_entropy_and_its_gradient_match_their_definitions() {
    let mut draw = Draw::new(22);
    for dtype in FLOATS {
        for of in [DType::U8, DType::U32, DType::I64] {
            for dims in [[1, 1], [4, 10], [300, 3], [3, 1500]] {
                let classes = dims[1].min(200) as f64;
                let mut logits = Array::random(&mut draw, dtype, &dims);
                let mut labels = Array::random(&mut draw, of, &dims[..1]).map(|x| x % classes);
                let (mut probs, mut loss) = (Array::new(dtype, &dims), Array::new(dtype, &[]));
                let (x, l) = (logits.view(), labels.view());
                run(&Kernel::CrossEntropy { logits: x, labels: l, probs: probs.view(), loss: loss.view() })
                    .expect("ok");
                let pairs: Vec<_> = rows(&logits).into_iter().zip(labels.values()).collect();
                let expected: Vec<f64> = pairs.iter().flat_map(|(row, _)| plain(row, false)).collect();
                assert_close(&probs.values(), &expected, tolerance(dtype), "probabilities");
                let losses = pairs.iter().map(|(row, label)| -plain(row, true)[*label as usize]);
                let mean = losses.sum::<f64>() / dims[0] as f64;
                assert_close(&loss.values(), &[mean], tolerance(dtype), "loss");

                let (mut grad, mut dst) = (Array::of(dtype, &[], &[3.0]), Array::new(dtype, &dims));
                let (probs, grad) = (probs.view(), grad.view());
                run(&Kernel::CrossEntropyGrad { probs, labels: l, grad, dst: dst.view() }).expect("ok");
                let onehot = |i: usize| f64::from(u8::from(pairs[i / dims[1]].1 as usize == i % dims[1]));
                let slope = |(i, p): (usize, &f64)| (p - onehot(i)) * 3.0 / dims[0] as f64;
                let expected: Vec<f64> = expected.iter().enumerate().map(slope).collect();
                assert_close(&dst.values(), &expected, tolerance(dtype), "gradient");
            }
        }
    }
}

#[test]
fn a_label_that_is_no_class_is_an_error_and_nothing_is_written() {
    for label in [3.0, -1.0] {
        let mut logits = Array::of(DType::F32, &[2, 3], &[1.0]);
        let mut labels = Array::of(DType::I64, &[2], &[0.0, label]);
        let (mut probs, mut loss) = (Array::new(DType::F32, &[2, 3]), Array::new(DType::F32, &[]));
        let (logits, labels) = (logits.view(), labels.view());
        let result = run(&Kernel::CrossEntropy { logits, labels, probs: probs.view(), loss: loss.view() });
        assert!(matches!(result, Err(Error::IndexOutOfRange { index, dim: 3, .. }) if index == label as i64));
        assert_eq!((probs.values(), loss.values()), (vec![77.0; 6], vec![77.0]));
    }
}
