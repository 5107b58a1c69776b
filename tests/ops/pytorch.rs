//! Functions that users of PyTorch look for and that are made of others: their values, at edges too, and what they
//! refuse. Their gradients between edges are in `gradcheck_more.rs`.

use ndgc::{DType, Device, Error, Tensor, TensorExt, Var};

use crate::ops::support::{each, error, f64s, values};

/// The values, and the gradient of their sum.
fn both(device: &Device, data: &[f64], f: impl Fn(&Tensor) -> ndgc::Result<Tensor>) -> [Vec<f64>; 2] {
    let x = Var::from_vec(data.to_vec(), data.len(), device).unwrap();
    let y = f(&x).unwrap();
    let grads = y.sum_all().unwrap().backward().unwrap();
    [values::<f64>(&y), values::<f64>(grads.get(&x).unwrap())]
}

#[test]
fn what_is_no_number_is_replaced_and_passes_no_gradient() {
    each(|device| {
        let data = [1., f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let [y, slope] = both(device, &data, |x| x.nan_to_num(0.5, Some(9.), Some(-9.)));
        assert_eq!((y, slope), (vec![1., 0.5, 9., -9.], vec![1., 0., 0., 0.]));
        let half = f64s(device, &data, 4).to_dtype(DType::BF16).unwrap().nan_to_num(0.5, Some(9.), Some(-9.)).unwrap();
        assert_eq!(values::<f32>(&half.to_dtype(DType::F32).unwrap()), [1., 0.5, 9., -9.]);
        let largest = [65504., f64::from(half::bf16::MAX), f32::MAX.into(), f64::MAX];
        for (dtype, largest) in [DType::F16, DType::BF16, DType::F32, DType::F64].into_iter().zip(largest) {
            let replaced = f64s(device, &data, 4).to_dtype(dtype).unwrap().nan_to_num(0., None, None).unwrap();
            assert_eq!(values::<f64>(&replaced.to_dtype(DType::F64).unwrap()), [1., 0., largest, -largest]);
        }
        let ids = Tensor::new([3i64, -4], device).unwrap();
        assert!(ids.nan_to_num(0., Some(1.), Some(-1.)).unwrap().is_same(&ids));
    });
}

#[test]
fn shrinking_is_towards_zero_with_a_slope_of_zero_up_to_the_edge() {
    each(|device| {
        let data = [-2., -0.5, 0.25, 0.5, 1.25, f64::INFINITY];
        let slopes = vec![1., 0., 0., 0., 1., 1.];
        let soft = both(device, &data, |x| x.softshrink(0.5));
        assert_eq!(soft, [vec![-1.5, 0., 0., 0., 0.75, f64::INFINITY], slopes.clone()]);
        let hard = both(device, &data, |x| x.hardshrink(0.5));
        assert_eq!(hard, [vec![-2., 0., 0., 0., 1.25, f64::INFINITY], slopes]);
        // An infinite gradient is passed or is not: no product of it with 0 is taken, and no difference.
        let steep = |x: ndgc::Result<Tensor>| x?.affine(f64::INFINITY, 0.);
        for [_, slope] in
            [both(device, &data, |x| steep(x.softshrink(0.5))), both(device, &data, |x| steep(x.hardshrink(0.5)))]
        {
            assert_eq!(slope, [f64::INFINITY, 0., 0., 0., f64::INFINITY, f64::INFINITY]);
        }
        let lost = f64s(device, &[f64::NAN], 1);
        for y in [lost.softshrink(0.5), lost.hardshrink(0.5)] {
            assert!(values::<f64>(&y.unwrap())[0].is_nan());
        }
        for lambda in [-1., f64::NAN, f64::INFINITY] {
            assert!(matches!(error(lost.softshrink(lambda)), Error::Argument { op: "softshrink", .. }));
        }
        let ids = Tensor::new([3i64, -4], device).unwrap();
        assert!(matches!(error(ids.softshrink(0.5)), Error::UnsupportedDType { op: "softshrink", .. }));
        assert!(matches!(error(ids.hardshrink(0.5)), Error::UnsupportedDType { op: "hardshrink", .. }));
    });
}

#[test]
fn celu_is_smooth_whatever_its_bound() {
    each(|device| {
        let [y, slope] = both(device, &[-1., 0., 3., f64::INFINITY, f64::NEG_INFINITY], |x| x.celu(2.));
        assert!((y[0] - 2. * (-0.5f64).exp_m1()).abs() < 1e-12 && (slope[0] - (-0.5f64).exp()).abs() < 1e-12);
        assert_eq!((&y[1..], &slope[1..]), (&[0., 3., f64::INFINITY, -2.][..], &[1., 1., 1., 0.][..]));
        let x = f64s(device, &[1.], 1);
        for alpha in [0., f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-310] {
            assert!(matches!(error(x.celu(alpha)), Error::Argument { op: "celu", .. }), "{alpha}");
        }
        let single = x.to_dtype(DType::F32).unwrap();
        for alpha in [1e39, 1e-39] {
            assert!(matches!(error(single.celu(alpha)), Error::Argument { op: "celu", .. }), "{alpha}");
            assert_eq!(values::<f64>(&x.celu(alpha).unwrap()), [1.]);
        }
    });
}

#[test]
fn glu_gates_one_half_of_an_axis_by_the_other() {
    each(|device| {
        let x = f64s(device, &[1., 2., 3., 4., 0., 0., 0., 0.], (2, 4));
        assert_eq!(values::<f64>(&x.glu(0).unwrap()), [0.5, 1., 1.5, 2.]);
        let gate = |x: f64| 1. / (1. + (-x).exp());
        for (found, want) in values::<f64>(&x.glu(1).unwrap()).into_iter().zip([gate(3.), 2. * gate(4.), 0., 0.]) {
            assert!((found - want).abs() < 1e-12, "{found} and {want}");
        }
        // Of halves rounded once, as in PyTorch.
        let halves: Vec<f64> = (0..512).map(|i| f64::from(i) / 64. - 4.).collect();
        let halves = f64s(device, &halves, (2, 256)).to_dtype(DType::BF16).unwrap();
        let single = halves.to_dtype(DType::F32).unwrap().glu(1).unwrap().to_dtype(DType::BF16).unwrap();
        let found = [halves.glu(1).unwrap(), single].map(|x| values::<f32>(&x.to_dtype(DType::F32).unwrap()));
        assert_eq!(found[0], found[1]);
        assert!(matches!(error(x.narrow(1, 0, 3).unwrap().glu(1)), Error::Shape { op: "glu", .. }));
        assert!(matches!(error(x.glu(2)), Error::DimOutOfRange { op: "glu", .. }));
    });
}

#[test]
fn sums_and_means_of_what_is_there() {
    each(|device| {
        let x = Var::from_tensor(&f64s(device, &[1., f64::NAN, 5., f64::NAN, f64::NAN, f64::NAN], (2, 3))).unwrap();
        assert_eq!(values::<f64>(&x.nansum(1).unwrap()), [6., 0.]);
        assert_eq!(values::<f64>(&x.nansum((0, 1)).unwrap()), [6.]);
        let mean = x.nanmean(1).unwrap();
        let found = values::<f64>(&mean);
        assert!(found[0] == 3. && found[1].is_nan());
        let grads = mean.sum_all().unwrap().backward().unwrap();
        assert_eq!(values::<f64>(grads.get(&x).unwrap()), [0.5, 0., 0.5, 0., 0., 0.]);
        // The count of f16 may be none of its numbers.
        let ones = Tensor::ones(70_000, DType::F16, device).unwrap();
        assert_eq!(values::<f32>(&ones.nanmean(0).unwrap().to_dtype(DType::F32).unwrap()), [1.]);
        let ids = Tensor::new([3i64, -4], device).unwrap();
        assert_eq!(values::<i64>(&ids.nansum(0).unwrap()), [-1]);
        assert!(matches!(error(ids.nanmean(0)), Error::UnsupportedDType { op: "nanmean", .. }));
    });
}

#[test]
fn entries_are_repeated_one_by_one() {
    each(|device| {
        let x = Tensor::new([[1u8, 2], [3, 4]], device).unwrap();
        assert_eq!(values::<u8>(&x.repeat_interleave(2, 0).unwrap()), [1, 2, 1, 2, 3, 4, 3, 4]);
        assert_eq!(values::<u8>(&x.repeat_interleave(2, 1).unwrap()), [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(values::<u8>(&x.t().unwrap().repeat_interleave(2, 1).unwrap()), [1, 1, 3, 3, 2, 2, 4, 4]);
        assert_eq!(values::<u8>(&x.repeat_interleave(1, 1).unwrap()), [1, 2, 3, 4]);
        assert!(matches!(error(x.repeat_interleave(usize::MAX, 0)), Error::SizeOverflow { .. }));
        assert!(matches!(error(x.repeat_interleave(2, 2)), Error::DimOutOfRange { op: "repeat_interleave", .. }));
    });
}
