//! The matrix product and the dense layer: strided, transposed, batched, broadcast, empty.

use ndgc::{DType, Device, Error, Tensor};

use crate::common::text_of;
use crate::ops::cases::for_numbers;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, put, values};

/// A host array in several layouts: plain, transposed in memory, as a part of a larger one.
fn layouts<T: Native>(host: &Host<T>, device: &Device) -> Vec<(&'static str, Tensor)> {
    let rank = host.dims.len();
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(rank - 2, rank - 1);
    let turned = put(&host.permute(&swap), device).t().unwrap();
    let mut wide = host.clone();
    for axis in rank - 2..rank {
        let edge = Host::tame(&wide.narrow(axis, 0, 0).dims.iter().map(|&d| d.max(2)).collect::<Vec<_>>(), 99);
        let mut dims = wide.dims.clone();
        dims[axis] = 2;
        let edge = Host { data: (0..dims.iter().product()).map(|i| edge.data[i % edge.data.len()]).collect(), dims };
        wide = Host::cat(&[&edge, &wide, &edge], axis);
    }
    let (rows, columns) = (host.dims[rank - 2], host.dims[rank - 1]);
    let part = put(&wide, device).narrow(rank - 2, 2, rows).unwrap().narrow(rank - 1, 2, columns).unwrap();
    vec![("plain", put(host, device)), ("transposed", turned), ("narrowed", part)]
}

fn check<T: Native>(device: &Device, left: &[usize], right: &[usize]) {
    let (a, b) = (Host::<T>::tame(left, 1), Host::<T>::tame(right, 2));
    let want = a.matmul(&b);
    let rank = |dims: &[usize]| dims.len() - 2;
    let strict = left[..rank(left)] == right[..rank(right)];
    for (form, x) in layouts(&a, device) {
        for (other, y) in layouts(&b, device) {
            let what = format!("{left:?} {form} x {right:?} {other} of {}", T::DTYPE);
            assert_same(&what, &x.broadcast_matmul(&y).unwrap(), &want);
            if strict {
                assert_same(&what, &x.matmul(&y).unwrap(), &want);
            }
        }
    }
}

fn shapes<T: Native>(device: &Device) {
    let pairs: [(&[usize], &[usize]); 18] = [
        (&[2, 3], &[3, 4]),
        (&[1, 1], &[1, 1]),
        (&[1, 5], &[5, 1]),
        (&[5, 1], &[1, 5]),
        (&[1, 7], &[7, 9]),
        (&[9, 7], &[7, 1]),
        (&[33, 17], &[17, 35]),
        (&[3, 2, 4], &[3, 4, 5]),
        (&[2, 3, 2, 4], &[2, 3, 4, 1]),
        (&[3, 2, 4], &[4, 5]),
        (&[2, 4], &[3, 4, 5]),
        (&[1, 2, 4], &[3, 4, 5]),
        (&[2, 1, 2, 3], &[4, 3, 2]),
        (&[2, 0], &[0, 3]),
        (&[0, 3], &[3, 2]),
        (&[2, 3], &[3, 0]),
        (&[2, 2, 0], &[2, 0, 3]),
        (&[0, 2, 3], &[0, 3, 2]),
    ];
    for (left, right) in pairs {
        check::<T>(device, left, right);
    }
}

#[test]
fn products_match_naive_loops_for_every_layout_and_shape() {
    each(|device| {
        for_numbers!(device, shapes);
    });
}

#[test]
fn a_product_large_enough_for_several_threads_matches_naive_loops() {
    if crate::common::ran_apart() {
        return;
    }
    each(|device| {
        let (a, b) = (Host::<f32>::tame(&[150, 130], 1), Host::<f32>::tame(&[130, 170], 2));
        let got = put(&a, device).matmul(&put(&b.permute(&[1, 0]), device).t().unwrap()).unwrap();
        let want = a.matmul(&b);
        let far = values::<f32>(&got).iter().zip(&want.data).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max);
        assert!(far < 1e-4, "an element is {far} off");
    });
}

#[test]
fn a_product_without_inner_elements_is_zero_whatever_was_there_before() {
    each(|device| {
        // Bytes for the result that held something else.
        drop(Tensor::full(7f32, (4, 4), device).unwrap());
        let a = Tensor::zeros((4, 0), DType::F32, device).unwrap();
        let b = Tensor::zeros((0, 4), DType::F32, device).unwrap();
        assert_eq!(values::<f32>(&a.matmul(&b).unwrap()), [0.; 16]);
        let bias = Tensor::ones(4, DType::F32, device).unwrap();
        let layer = a.linear(&Tensor::zeros((4, 0), DType::F32, device).unwrap(), Some(&bias)).unwrap();
        assert_eq!(values::<f32>(&layer), [1.; 16]);
    });
}

#[test]
fn values_that_are_no_numbers_go_through_a_product() {
    each(|device| {
        let a = Tensor::new([[f64::NAN, 0.], [f64::INFINITY, 1.]], device).unwrap();
        let b = Tensor::new([[1f64, 0.], [0., 1.]], device).unwrap();
        let got = values::<f64>(&a.matmul(&b).unwrap());
        assert!(got[0].is_nan() && got[1].is_nan() && got[2] == f64::INFINITY && got[3].is_nan(), "{got:?}");
    });
}

fn dense<T: Native>(x: &Host<T>, w: &Host<T>, b: Option<&Host<T>>) -> Host<T> {
    let mut y = x.matmul(&w.permute(&[1, 0]));
    if let Some(b) = b {
        let n = b.data.len();
        y.data.iter_mut().enumerate().for_each(|(i, y)| *y = y.plus(b.data[i % n]));
    }
    y
}

#[test]
fn a_dense_layer_matches_its_parts_for_every_rank_and_layout() {
    fn body<T: Native>(device: &Device) {
        let w = Host::<T>::tame(&[3, 5], 2);
        let b = Host::<T>::tame(&[3], 3);
        for dims in [&[4, 5][..], &[0, 5], &[2, 4, 5], &[2, 1, 3, 5], &[2, 0, 5]] {
            let x = Host::<T>::tame(dims, 1);
            for (form, tx) in layouts(&x, device) {
                for (other, tw) in layouts(&w, device) {
                    let what = format!("linear of {dims:?} {form} with weights {other}");
                    assert_same(&what, &tx.linear(&tw, None).unwrap(), &dense(&x, &w, None));
                    let got = tx.linear(&tw, Some(&put(&b, device))).unwrap();
                    assert_same(&what, &got, &dense(&x, &w, Some(&b)));
                }
            }
        }
        // A bias in strides.
        let (wide, x) = (Host::<T>::tame(&[3, 2], 4), Host::<T>::tame(&[4, 5], 1));
        let bias = put(&wide, device).get_on_dim(1, 1).unwrap();
        let got = put(&x, device).linear(&put(&w, device), Some(&bias)).unwrap();
        assert_same("linear with a strided bias", &got, &dense(&x, &w, Some(&wide.get(1, 1))));
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn a_dense_layer_without_inputs_gives_its_bias_for_every_rank() {
    each(|device| {
        let weight = Tensor::zeros((4, 0), DType::F32, device).unwrap();
        let bias = Tensor::ones(4, DType::F32, device).unwrap();
        let x = Tensor::zeros((2, 3, 0), DType::F32, device).unwrap();
        let y = x.linear(&weight, Some(&bias)).unwrap();
        assert_eq!(y.dims(), [2, 3, 4]);
        assert_eq!(values::<f32>(&y), [1.; 24]);
    });
}

#[test]
fn products_of_what_does_not_fit_name_both_sides() {
    each(|device| {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device).unwrap();
        let found = error(of(&[2, 3]).matmul(&of(&[4, 3])));
        assert_eq!(
            text_of(&found),
            "shape mismatch in matmul, lhs: [2, 3], rhs: [4, 3]: inner axes differ (3 != 4); transpose the right side or \
             pass one with 3 rows"
        );
        assert!(matches!(error(of(&[3]).matmul(&of(&[3, 1]))), Error::Shape { op: "matmul", .. }));
        let found = error(of(&[2, 2, 3]).matmul(&of(&[3, 3, 1])));
        assert!(found.to_string().contains("leading axes differ"), "{found}");
        let found = error(of(&[2, 2, 3]).broadcast_matmul(&of(&[3, 3, 1])));
        assert!(matches!(found, Error::ShapeMismatch { op: "broadcast_matmul", .. }), "{found}");
        assert!(matches!(error(of(&[2, 3]).linear(&of(&[4, 2]), None)), Error::ShapeMismatch { op: "linear", .. }));
        let found = error(of(&[2, 3]).linear(&of(&[4, 3]), Some(&of(&[3]))));
        assert!(matches!(found, Error::ShapeMismatch { op: "linear", .. }), "{found}");
        assert!(matches!(error(of(&[3]).linear(&of(&[4, 3]), None)), Error::Shape { op: "linear", .. }));
    });
}
