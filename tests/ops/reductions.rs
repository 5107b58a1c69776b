//! Reductions over axes: every dtype, every form, every set of axes; empty ones; NaN; long sums.

use ndgc::{D, DType, Device, Error, Result, Tensor};

use crate::ops::cases::{for_floats, for_numbers};
use crate::ops::reference::{Host, Native};
use crate::ops::support::{Operand, assert_same, each, error, f64s, forms, put, shapes, values};

/// A reduction: how it is called on axes (with the axes kept or not), and what it gives for one group.
struct Case<T> {
    name: &'static str,
    run: fn(&Tensor, &[usize], bool) -> Result<Tensor>,
    reference: fn(&[T]) -> T,
    of_nothing: bool,
}

fn sum<T: Native>(group: &[T]) -> T {
    if T::DTYPE.is_float() {
        return T::from_f64(group.iter().map(|x| x.to_f64()).sum());
    }
    group.iter().fold(T::from_f64(0.), |sum, &x| sum.plus(x))
}

fn mean<T: Native>(group: &[T]) -> T {
    T::from_f64(group.iter().map(|x| x.to_f64()).sum::<f64>() / group.len() as f64)
}

macro_rules! case {
    ($name:ident, $keepdim:ident, $reference:expr, $of_nothing:literal) => {
        Case {
            name: stringify!($name),
            run: |x, axes, keep| if keep { x.$keepdim(axes) } else { x.$name(axes) },
            reference: $reference,
            of_nothing: $of_nothing,
        }
    };
}

fn of_any<T: Native>() -> Vec<Case<T>> {
    vec![
        case!(sum, sum_keepdim, sum, true),
        case!(max, max_keepdim, |group| group[1..].iter().fold(group[0], |a, &b| a.larger(b)), false),
        case!(min, min_keepdim, |group| group[1..].iter().fold(group[0], |a, &b| a.smaller(b)), false),
    ]
}

fn run<T: Native>(case: &Case<T>, operand: &Operand<T>, axes: &[usize]) {
    let dims = &operand.host.dims;
    if !case.of_nothing && axes.iter().any(|&axis| dims[axis] == 0) {
        let found = error((case.run)(&operand.tensor, axes, false));
        assert!(matches!(found, Error::Shape { op, .. } if op == case.name), "{found}");
        return;
    }
    for keep in [false, true] {
        let what = format!("{} of {} {} over {axes:?}", case.name, T::DTYPE, operand.form);
        let got = (case.run)(&operand.tensor, axes, keep).unwrap();
        assert_same(&what, &got, &operand.host.reduce(axes, keep, case.reference));
    }
}

/// Every set of axes of a rank, in one order.
fn sets(rank: usize) -> Vec<Vec<usize>> {
    (0..1usize << rank).map(|bits| (0..rank).filter(|axis| bits >> axis & 1 == 1).collect()).collect()
}

/// Sums of floats lose digits where large numbers cancel, so the operands here hold moderate ones.
fn tame<T: Native>(operand: Operand<T>, device: &Device) -> Operand<T> {
    if !T::DTYPE.is_float() {
        return operand;
    }
    let host = Host::tame(&operand.host.dims, 3);
    // The same layout: what the operand's own bytes hold is replaced where it can be, else a copy stands in.
    let tensor = if operand.tensor.copy_(&put(&host, device)).is_ok() { operand.tensor } else { put(&host, device) };
    Operand { form: operand.form, tensor, host }
}

#[test]
fn sums_and_extremes_match_naive_loops_over_every_set_of_axes() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 1).into_iter().chain(shapes(device, 2)) {
            let rank = operand.host.dims.len();
            for axes in sets(rank) {
                of_any::<T>()[1..].iter().for_each(|case| run(case, &operand, &axes));
            }
            let operand = tame(operand, device);
            for axes in sets(rank) {
                run(&of_any()[0], &operand, &axes);
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn means_match_naive_loops_and_are_nan_of_nothing() {
    fn body<T: Native>(device: &Device) {
        let case: Case<T> = case!(mean, mean_keepdim, mean, true);
        for operand in forms::<T>(device, 1).into_iter().chain(shapes(device, 2)) {
            let operand = tame(operand, device);
            sets(operand.host.dims.len()).iter().for_each(|axes| run(&case, &operand, axes));
        }
    }
    each(|device| for_floats!(device, body));
}

#[test]
fn reductions_of_everything_give_scalars() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 4) {
            let operand = tame(operand, device);
            let (x, h) = (&operand.tensor, &operand.host);
            let all: Vec<usize> = (0..3).collect();
            let cases = of_any::<T>();
            let pairs = [(x.sum_all(), 0), (x.max_all(), 1), (x.min_all(), 2)];
            for (got, i) in pairs {
                assert_same(cases[i].name, &got.unwrap(), &h.reduce(&all, false, cases[i].reference));
            }
            if T::DTYPE.is_float() {
                assert_same("mean_all", &x.mean_all().unwrap(), &h.reduce(&all, false, mean));
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

/// The first index of the largest (or smallest); the first NaN wins.
fn first<T: Native>(group: &[T], largest: bool) -> u32 {
    let mut best = 0;
    for (i, &x) in group.iter().enumerate() {
        let (b, nan) = (group[best], |x: T| x.to_f64().is_nan());
        if !nan(b) && (nan(x) || if largest { x > b } else { x < b }) {
            best = i;
        }
    }
    best as u32
}

#[test]
fn arg_reductions_give_the_first_extreme_along_every_axis() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 5).into_iter().chain(shapes(device, 6)) {
            let (x, h) = (&operand.tensor, &operand.host);
            for axis in (0..h.dims.len()).filter(|&axis| h.dims[axis] > 0) {
                let want = |largest, keep| h.reduce(&[axis], keep, |group| first(group, largest));
                let what = format!("of {} {} along {axis}", T::DTYPE, operand.form);
                assert_same(&format!("argmax {what}"), &x.argmax(axis).unwrap(), &want(true, false));
                assert_same(&format!("argmin {what}"), &x.argmin(axis).unwrap(), &want(false, false));
                assert_same("argmax_keepdim", &x.argmax_keepdim(axis).unwrap(), &want(true, true));
                assert_same("argmin_keepdim", &x.argmin_keepdim(axis).unwrap(), &want(false, true));
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn axes_are_named_in_every_way_and_never_twice() {
    each(|device| {
        let a = f64s(device, &[1., 2., 3., 4., 5., 6.], (1, 2, 3));
        assert_eq!(values::<f64>(&a.sum(D::Minus1).unwrap()), [6., 15.]);
        assert_eq!(values::<f64>(&a.sum((0, 1)).unwrap()), [5., 7., 9.]);
        assert_eq!(values::<f64>(&a.sum([-1, 0]).unwrap()), [6., 15.]);
        assert_eq!(values::<f64>(&a.sum((0usize, 1, 2)).unwrap()), [21.]);
        assert_eq!(values::<f64>(&a.sum(&[0usize, 2][..]).unwrap()), [6., 15.]);
        assert!(matches!(error(a.sum(3)), Error::DimOutOfRange { op: "sum", dim: 3, .. }));
        assert!(matches!(error(a.mean((1, -2))), Error::DuplicateDim { op: "mean", dim: 1, .. }));
        assert!(matches!(error(a.argmax(-4)), Error::DimOutOfRange { op: "argmax", dim: -4, .. }));
        let empty = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        assert!(matches!(error(empty.argmax(1)), Error::Shape { op: "argmax", .. }));
        assert!(matches!(error(empty.max_all()), Error::Shape { op: "max_all", .. }));
        assert_eq!(empty.argmin(0).unwrap().dims(), [0]);
    });
}

#[test]
fn a_row_has_one_result_wherever_it_begins() {
    each(|device| {
        let n = 5000;
        let noise: Vec<f32> = (0..n + 70).map(|i| ((i * 7919 % 1013) as f32 - 500.) * 1.0e-3).collect();
        for dtype in [DType::F16, DType::F32, DType::F64, DType::I64] {
            let scaled: Vec<f32> = noise.iter().map(|x| if dtype.is_float() { *x } else { x * 1e3 }).collect();
            let all = Tensor::from_slice(&scaled, n + 70, device).unwrap().to_dtype(dtype).unwrap();
            for (begin, len) in (0..20).map(|begin| (begin, n)).chain([(33, 1023), (1, 1024), (5, 1087), (63, 2048)]) {
                let view = all.narrow(0, begin, len).unwrap();
                let moved = view.copy().unwrap();
                let runs: [fn(&Tensor) -> Result<Tensor>; 2] = [Tensor::sum_all, Tensor::max_all];
                for (name, run) in ["sum", "max"].into_iter().zip(runs) {
                    let [here, there] = [&view, &moved].map(|x| run(x).unwrap().to_dtype(DType::F64).unwrap());
                    let [here, there] = [here, there].map(|x| x.to_scalar::<f64>().unwrap());
                    assert_eq!(here.to_bits(), there.to_bits(), "{name} of {len} {dtype} from {begin} on");
                }
            }
        }
    });
}

#[test]
fn long_sums_of_floats_keep_their_accuracy_and_those_of_bytes_wrap() {
    each(|device| {
        let n = 1_000_000;
        let tenths = Tensor::full(0.1f32, n, device).unwrap();
        let sum = tenths.sum_all().unwrap().to_scalar::<f32>().unwrap();
        assert!((sum - 100_000.).abs() < 0.1, "{sum}");
        let mean = tenths.mean_all().unwrap().to_scalar::<f32>().unwrap();
        assert!((mean - 0.1).abs() < 1e-7, "{mean}");
        let columns = tenths.reshape((1000, 1000)).unwrap().t().unwrap().sum(0).unwrap();
        assert!(values::<f32>(&columns).iter().all(|s| (s - 100.).abs() < 1e-3));
        let bytes = Tensor::full(3u8, 100, device).unwrap();
        assert_eq!(bytes.sum_all().unwrap().to_scalar::<u8>().unwrap(), (300 % 256) as u8);
    });
}

#[test]
fn softmax_matches_naive_loops_along_every_axis_of_every_form() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 7).into_iter().chain(shapes(device, 8)) {
            let operand = tame(operand, device);
            let (x, h) = (&operand.tensor, &operand.host);
            for axis in 0..h.dims.len() {
                let top = h.reduce(&[axis], true, |g| g.iter().map(|x| x.to_f64()).sum::<f64>() / 9.);
                let total = h.reduce(&[axis], true, |g| g.iter().map(|x| x.to_f64().exp()).sum::<f64>());
                assert_eq!(top.dims, total.dims);
                let total = total.broadcast(&h.dims);
                let of = |f: fn(f64, f64) -> f64| Host {
                    dims: h.dims.clone(),
                    data: h.data.iter().zip(&total.data).map(|(x, &t)| T::from_f64(f(x.to_f64(), t))).collect(),
                };
                let what = format!("{} {} along {axis}", T::DTYPE, operand.form);
                assert_same(&format!("softmax of {what}"), &x.softmax(axis).unwrap(), &of(|x, t| x.exp() / t));
                assert_same(&format!("log_softmax of {what}"), &x.log_softmax(axis).unwrap(), &of(|x, t| x - t.ln()));
            }
        }
    }
    each(|device| for_floats!(device, body));
}

#[test]
fn softmax_is_stable_for_large_values_and_one_for_a_scalar() {
    each(|device| {
        let large = f64s(device, &[1000., 1000., -1000.], (1, 3));
        assert_eq!(values::<f64>(&large.softmax(1).unwrap()), [0.5, 0.5, 0.]);
        let log = values::<f64>(&large.log_softmax(1).unwrap());
        assert!((log[0] + 2f64.ln()).abs() < 1e-12 && (log[2] + 2000. + 2f64.ln()).abs() < 1e-9, "{log:?}");
        let scalar = Tensor::new(3f32, device).unwrap();
        for one in [scalar.softmax(0), scalar.softmax(-1)] {
            assert_eq!(one.unwrap().to_scalar::<f32>().unwrap(), 1.);
        }
        assert!(matches!(error(scalar.log_softmax(1)), Error::DimOutOfRange { op: "log_softmax", dim: 1, .. }));
        assert!(matches!(error(large.softmax(2)), Error::DimOutOfRange { op: "softmax", dim: 2, .. }));
    });
}

#[test]
fn cross_entropy_matches_its_definition_for_labels_of_every_index_type() {
    each(|device| {
        let (rows, classes) = (5, 4);
        let logits = Host::<f64>::tame(&[rows, classes], 1);
        let labels = [3u8, 0, 1, 1, 2];
        let want = logits
            .data
            .chunks(classes)
            .zip(labels)
            .map(|(row, label)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[usize::from(label)]);
        let want = want.sum::<f64>() / rows as f64;
        let x = put(&logits, device);
        let turned = put(&logits.permute(&[1, 0]), device).t().unwrap();
        let ids = Tensor::from_slice(&labels, rows, device).unwrap();
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let ids = ids.to_dtype(dtype).unwrap();
            for x in [&x, &turned] {
                let loss = x.cross_entropy(&ids).unwrap().to_scalar::<f64>().unwrap();
                assert!((loss - want).abs() < 1e-12, "{dtype}: {loss} is not {want}");
            }
        }
        let loss = x.to_dtype(DType::F32).unwrap().cross_entropy(&ids).unwrap().to_scalar::<f32>().unwrap();
        assert!((f64::from(loss) - want).abs() < 1e-6);
        let nll = ndgc::nn::loss::nll(&x.log_softmax(1).unwrap(), &ids).unwrap().to_scalar::<f64>().unwrap();
        assert!((nll - want).abs() < 1e-12);
        let mse = ndgc::nn::loss::mse(&x, &turned).unwrap().to_scalar::<f64>().unwrap();
        assert_eq!(mse, 0.);
    });
}
