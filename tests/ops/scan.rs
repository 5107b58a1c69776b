//! Running products and extremes, and rows made even, against naive loops; gradients by central differences.

use ndgc::{D, DType, Device, Error, Tensor, TensorExt, Var};

use crate::ops::gradcheck::{Case, Run, check_all};
use crate::ops::reference::{Host, Native, indices};
use crate::ops::support::{Operand, alone, assert_same, each, error, f64s, forms, put, shapes, values};

/// What `f` makes of each element and what it made of the one before it, along an axis.
fn running<T: Native, A: Copy>(
    x: &Host<T>,
    axis: usize,
    first: impl Fn(T) -> A,
    next: impl Fn(A, T, usize) -> A,
) -> Host<A> {
    let mut made: Vec<(Vec<usize>, A)> = Vec::new();
    for index in indices(&x.dims) {
        let value = x.at(&index);
        let mut before = index.clone();
        let kept = match index[axis].checked_sub(1) {
            None => first(value),
            Some(at) => {
                before[axis] = at;
                let (_, kept) = made.iter().rev().find(|(at, _)| *at == before).unwrap();
                next(*kept, value, index[axis])
            }
        };
        made.push((index, kept));
    }
    Host { dims: x.dims.clone(), data: made.into_iter().map(|(_, kept)| kept).collect() }
}

/// Whether `x` is a new extreme.
fn beats<T: Native>(x: T, best: T, largest: bool) -> bool {
    let (x, best) = (x.to_f64(), best.to_f64());
    x.is_nan() && !best.is_nan() || if largest { x > best } else { x < best }
}

fn scans<T: Native>(device: &Device) {
    let all: Vec<Operand<T>> = forms(device, 31).into_iter().chain(shapes(device, 32)).collect();
    for Operand { form, tensor, host } in all {
        for axis in 0..host.dims.len() {
            let what = format!("{form} along {axis}");
            for largest in [true, false] {
                let take =
                    |best: (T, u32), x: T, at: usize| if beats(x, best.0, largest) { (x, at as u32) } else { best };
                let want = running(&host, axis, |x| (x, 0), take);
                let (values, ids) = if largest { tensor.cummax(axis) } else { tensor.cummin(axis) }.unwrap();
                assert_same(&what, &values, &want.map(|(x, _)| x));
                assert_same(&what, &ids, &want.map(|(_, at)| at));
            }
        }
    }
    let small = Host::<T>::from_fn(&[3, 5, 2], {
        let mut i = 0;
        move |_| {
            i += 1;
            T::from_f64([1., 2., 3., 1., 0., 2.][i * 5 % 6])
        }
    });
    for axis in 0..3 {
        let want = running(&small, axis, |x| x, |kept, x, _| kept.times(x));
        assert_same(&format!("products along {axis}"), &put(&small, device).cumprod(axis).unwrap(), &want);
    }
}

#[test]
fn running_products_and_extremes_are_those_of_all_before() {
    each(|device| {
        scans::<u8>(device);
        scans::<i64>(device);
        scans::<f32>(device);
        scans::<f64>(device);
        let x = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        assert_eq!(x.cumprod(1).unwrap().dims(), [2, 0]);
        assert_eq!(x.cummax(0).unwrap().1.dims(), [2, 0]);
        assert!(matches!(error(x.cumprod(2)), Error::DimOutOfRange { op: "cumprod", .. }));
        assert!(matches!(error(x.cummin(2)), Error::DimOutOfRange { op: "cummin", .. }));
        assert!(matches!(error(x.sum_all().unwrap().cumsum(0)), Error::DimOutOfRange { op: "cumsum", .. }));
    });
}

/// Broken by: one shift for a whole line, below which a number is lost; and differences of infinities.
#[test]
fn running_logs_of_sums_hold_for_numbers_of_any_size() {
    each(|device| {
        let low = f64::NEG_INFINITY;
        let (high, more) = (f64::INFINITY, 1000. + 2f64.ln());
        let rows = [low, low, 0., -2000., 1000., 1000., -1000., -5000., low, high, high, 1., low, f64::NAN, 1., high];
        let want =
            [low, low, 0., 0., 1000., more, more, more, low, high, high, high, low, f64::NAN, f64::NAN, f64::NAN];
        let x = Var::from_tensor(&f64s(device, &rows, (4, 4))).unwrap();
        let y = x.logcumsumexp(1).unwrap();
        for (found, want) in values::<f64>(&y).into_iter().zip(want) {
            assert!(
                found == want || (found - want).abs() < 1e-12 || found.is_nan() && want.is_nan(),
                "{found}, {want}"
            );
        }
        let weights = f64s(device, &[1., -2., 3., -4.], 4);
        let loss = y.narrow(0, 0, 2).unwrap().broadcast_mul(&weights).unwrap().sum_all().unwrap();
        let slopes = values::<f64>(loss.backward().unwrap().get(&x).unwrap());
        // The first row of the weights of what is there, the second one of halves of what came later.
        for (found, want) in slopes.into_iter().zip([0., 0., -1., 0., 1. - 1.5, -1.5, 0., 0.]) {
            assert!((found - want).abs() < 1e-9, "{found}, not {want}");
        }
        let long = Tensor::zeros((2, 1000), DType::F32, device).unwrap().logcumsumexp(1).unwrap();
        for (i, found) in values::<f32>(&long).into_iter().enumerate() {
            let want = ((i % 1000 + 1) as f32).ln();
            assert!((found - want).abs() <= want * 1e-6, "{found}, not {want}");
        }
        for dtype in [DType::F16, DType::BF16, DType::F8E4M3] {
            let x = put(&Host::<f32>::tame(&[4, 6], 3), device).to_dtype(dtype).unwrap();
            let single = x.to_dtype(DType::F32).unwrap().logcumsumexp(0).unwrap().to_dtype(dtype).unwrap();
            let found = [x.logcumsumexp(0).unwrap(), single].map(|y| values::<f32>(&y.to_dtype(DType::F32).unwrap()));
            assert_eq!(found[0], found[1], "{dtype}");
        }
        let ids = Tensor::new([1i64, 2], device).unwrap();
        assert!(matches!(error(ids.logcumsumexp(0)), Error::UnsupportedDType { op: "logcumsumexp", .. }));
        assert!(matches!(error(x.logcumsumexp(2)), Error::DimOutOfRange { op: "logcumsumexp", .. }));
    });
}

#[test]
fn long_sums_of_small_numbers_keep_their_digits() {
    each(|device| {
        let n = 100_000;
        let x = Tensor::full(0.1f32, n, device).unwrap();
        let sums = x.cumsum(0).unwrap().to_vec1::<f32>().unwrap();
        let far = (sums[n - 1] - n as f32 * 0.1).abs();
        assert!(far < 0.01, "off by {far}");
    });
}

#[test]
fn a_running_sum_takes_the_bytes_of_its_result_alone() {
    alone(|| {
        let device = Device::Cpu;
        let x = Tensor::ones((64, 1024), DType::F32, &device).unwrap();
        let before = device.memory().active;
        device.reset_peak();
        let sums = x.cumsum(D::Minus1).unwrap();
        let more = device.memory().peak - before;
        assert!(more < 2 * sums.storage_bytes().unwrap() as u64, "{more} bytes");
    });
}

/// Rows of several lengths, also such that go to several threads, by the definition in f64.
#[test]
fn rows_are_made_even_by_their_definition() {
    each(|device| {
        for (rows, columns) in [(1, 1), (3, 7), (5, 64), (2, 1000), (600, 500)] {
            if rows > 100 && *device != Device::Cpu {
                continue;
            }
            let x = Host::<f32>::tame(&[rows, columns], 11);
            let (scale, shift) = (Host::<f32>::tame(&[columns], 12), Host::<f32>::tame(&[columns], 13));
            let row = |r: usize| x.data[r * columns..(r + 1) * columns].iter().map(|&x| f64::from(x));
            let even = |centred: bool| {
                let mut data = Vec::new();
                for r in 0..rows {
                    let mean = if centred { row(r).sum::<f64>() / columns as f64 } else { 0. };
                    let square = row(r).map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64;
                    let made =
                        row(r).zip(&scale.data).map(|(x, &s)| (x - mean) / (square + 1e-3).sqrt() * f64::from(s));
                    data.extend(made.zip(&shift.data).map(|(y, &s)| if centred { y + f64::from(s) } else { y } as f32));
                }
                Host { dims: vec![rows, columns], data }
            };
            let (s, h) = (put(&scale, device), put(&shift, device));
            let plain = put(&x, device);
            let turned = plain.t().unwrap().contiguous().unwrap().t().unwrap();
            for x in [plain, turned] {
                close(&x.layer_norm(&s, &h, 1e-3).unwrap(), &even(true));
                close(&x.rms_norm(&s, 1e-3).unwrap(), &even(false));
            }
            let every_other = Tensor::stack(&[&s, &h], 1).unwrap().get_on_dim(1, 0).unwrap();
            close(&put(&x, device).rms_norm(&every_other, 1e-3).unwrap(), &even(false));
        }
    });
}

fn close(got: &Tensor, want: &Host<f32>) {
    let far = got
        .flatten_all()
        .unwrap()
        .to_vec1::<f32>()
        .unwrap()
        .iter()
        .zip(&want.data)
        .fold(0f32, |far, (g, w)| far.max((g - w).abs()));
    assert!(far < 1e-4, "{:?} is off by {far}", want.dims);
}

/// The cases of the gradient check.
pub(crate) fn gradients() -> Vec<Case> {
    let spread = |dims: &[usize]| {
        let mut i = 0;
        Host::from_fn(dims, |_| {
            i += 1;
            (i * 29 % 67) as f64 / 30. - 1.1
        })
    };
    let with_zeros = |dims: &[usize]| {
        let mut host = spread(dims);
        host.data.iter_mut().step_by(4).for_each(|x| *x = 0.);
        host
    };
    let case = |name, inputs: Vec<Host<f64>>, run: Run| Case {
        name,
        how: "along an axis",
        inputs,
        run,
        step: 1e-5,
        tolerance: 1e-6,
    };
    vec![
        case("cumsum", vec![spread(&[2, 5, 3])], |x| x[0].cumsum(1)?.sqr()),
        case("cumprod", vec![spread(&[2, 5, 3])], |x| x[0].cumprod(1)),
        case("logcumsumexp", vec![spread(&[2, 5, 3])], |x| x[0].logcumsumexp(1)?.sqr()),
        case("cumprod", vec![with_zeros(&[3, 7])], |x| x[0].cumprod(D::Minus1)),
        case("cummax", vec![spread(&[2, 5, 3])], |x| x[0].cummax(1)?.0.sqr()),
        case("cummin", vec![spread(&[2, 5, 3])], |x| x[0].cummin(2)?.0.sqr()),
        case("layer_norm", vec![spread(&[2, 3, 5]), spread(&[5]), spread(&[5])], |x| {
            x[0].layer_norm(&x[1], &x[2], 1e-2)
        }),
        case("layer_norm", vec![spread(&[5, 4]), spread(&[5]), spread(&[5])], |x| {
            x[0].t()?.layer_norm(&x[1], &x[2], 1e-2)?.sqr()
        }),
        case("rms_norm", vec![spread(&[4, 5]), spread(&[5])], |x| x[0].rms_norm(&x[1], 1e-2)?.sqr()),
        case("group_norm", vec![spread(&[2, 4, 3]), spread(&[4]), spread(&[4])], |x| {
            x[0].group_norm(2, &x[1], &x[2], 1e-2)?.sqr()
        }),
    ]
}

#[test]
fn gradients_match_differences() {
    check_all(gradients());
}

/// What is computed in a wider dtype and rounded is near what that one gives.
#[test]
fn halves_and_small_integers_scan_and_norm_as_the_wider_dtypes_do() {
    each(|device| {
        let x = put(&Host::<f32>::tame(&[4, 6], 3), device);
        let small = x.to_dtype(DType::I8).unwrap();
        let wide = small.to_dtype(DType::I64).unwrap();
        let exactly = |got: Tensor, want: Tensor| {
            let [got, want] = [got, want].map(|array| array.to_dtype(DType::I64).unwrap());
            assert_eq!(values::<i64>(&got), values::<i64>(&want));
        };
        exactly(small.cumsum(1).unwrap(), wide.cumsum(1).unwrap());
        exactly(small.cummin(0).unwrap().0, wide.cummin(0).unwrap().0);
        exactly(small.cummin(0).unwrap().1, wide.cummin(0).unwrap().1);
        // Computed in f32 and rounded once: half of the distance of neighbours, and what the order of a sum makes.
        for (dtype, spacing) in [(DType::F16, 1. / 1024.), (DType::BF16, 1. / 128.)] {
            let half = x.to_dtype(dtype).unwrap();
            let x = half.to_dtype(DType::F32).unwrap();
            let rounded = |got: Tensor, want: Tensor| {
                assert_eq!(got.dtype(), dtype);
                let got = values::<f32>(&got.to_dtype(DType::F32).unwrap());
                for (got, want) in got.into_iter().zip(values::<f32>(&want)) {
                    assert!((got - want).abs() <= spacing / 2. * want.abs() + 1e-5, "{dtype}: {got}, not {want}");
                }
            };
            rounded(half.cumsum(1).unwrap(), x.cumsum(1).unwrap());
            rounded(half.cummax(1).unwrap().0, x.cummax(1).unwrap().0);
            let (own, scale) = (half.get(1).unwrap(), x.get(1).unwrap());
            rounded(half.layer_norm(&own, &own, 1e-2).unwrap(), x.layer_norm(&scale, &scale, 1e-2).unwrap());
            let (images, kernels) = (half.reshape((1, 2, 3, 4)).unwrap(), half.reshape((3, 2, 2, 2)).unwrap());
            let want = x.reshape((1, 2, 3, 4)).unwrap().conv2d(&x.reshape((3, 2, 2, 2)).unwrap(), 1, 1, 1, 1).unwrap();
            rounded(images.conv2d(&kernels, 1, 1, 1, 1).unwrap(), want);
        }
        let truth = x.to_dtype(DType::Bool).unwrap();
        assert!(matches!(error(truth.cumsum(0)), Error::UnsupportedDType { op: "cumsum", .. }));
        assert!(matches!(error(truth.cumprod(0)), Error::UnsupportedDType { op: "cumprod", .. }));
        assert_eq!(truth.cummax(0).unwrap().0.dtype(), DType::Bool);
    });
}
