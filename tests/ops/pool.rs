//! Pooling and images of other sizes against naive loops; refusals; gradients by central differences.

use ndgc::{DType, Device, Error, Tensor};

use crate::ops::gradcheck::{Case, Run, check_all};
use crate::ops::reference::{Host, Native};
use crate::ops::support::{Operand, alone, assert_same, each, error, put};

/// `[batch, channels, height, width]` in several layouts.
fn images<T: Native>(device: &Device, dims: [usize; 4]) -> Vec<Operand<T>> {
    let [b, c, h, w] = dims;
    let plain = Host::<T>::sample(&dims, 7);
    let turned = Host::<T>::sample(&[b, h, w, c], 8);
    let one = Host::<T>::tame(&[1, c, 1, w], 9);
    vec![
        Operand { form: "plain", tensor: put(&plain, device), host: plain },
        Operand {
            form: "channels last",
            tensor: put(&turned, device).permute((0, 3, 1, 2)).unwrap(),
            host: turned.permute(&[0, 3, 1, 2]),
        },
        Operand {
            form: "broadcast",
            tensor: put(&one, device).broadcast_as(dims.as_slice()).unwrap(),
            host: one.broadcast(&dims),
        },
    ]
}

/// What covers each place: `[start, end)` of an axis.
type Span = fn(usize, usize, usize, usize, usize) -> (usize, usize);

fn slide(place: usize, _len: usize, _out: usize, size: usize, stride: usize) -> (usize, usize) {
    (place * stride, place * stride + size)
}

fn divide(place: usize, len: usize, out: usize, _: usize, _: usize) -> (usize, usize) {
    (place * len / out, ((place + 1) * len).div_ceil(out))
}

/// What `f` makes of the elements of each window, with their places in the channel.
fn windows<T: Native, R: Copy>(
    x: &Host<T>,
    out: [usize; 2],
    size: [usize; 2],
    stride: [usize; 2],
    span: Span,
    f: impl Fn(&[(T, usize)]) -> R,
) -> Host<R> {
    Host::from_fn(&[x.dims[0], x.dims[1], out[0], out[1]], |at| {
        let (top, bottom) = span(at[2], x.dims[2], out[0], size[0], stride[0]);
        let (left, right) = span(at[3], x.dims[3], out[1], size[1], stride[1]);
        let cells = (top..bottom).flat_map(|h| (left..right).map(move |w| (h, w)));
        f(&cells.map(|(h, w)| (x.at(&[at[0], at[1], h, w]), h * x.dims[3] + w)).collect::<Vec<_>>())
    })
}

fn largest<T: Native>(cells: &[(T, usize)]) -> (T, usize) {
    let nan = cells.iter().find(|(x, _)| x.to_f64().is_nan());
    nan.copied().unwrap_or_else(|| cells.iter().skip(1).fold(cells[0], |best, &x| if x.0 > best.0 { x } else { best }))
}

fn mean<T: Native>(cells: &[(T, usize)]) -> T {
    T::from_f64(cells.iter().map(|(x, _)| x.to_f64()).sum::<f64>() / cells.len() as f64)
}

const WINDOWS: [([usize; 2], [usize; 2]); 5] =
    [([2, 2], [2, 2]), ([3, 2], [1, 2]), ([1, 1], [2, 3]), ([5, 7], [1, 1]), ([2, 3], [9, 1])];

fn maxima<T: Native>(device: &Device) {
    for (size, stride) in WINDOWS {
        for x in images::<T>(device, [2, 3, 5, 7]) {
            let out = [(5 - size[0]) / stride[0] + 1, (7 - size[1]) / stride[1] + 1];
            let want = windows(&x.host, out, size, stride, slide, largest);
            let (k, s) = ((size[0], size[1]), (stride[0], stride[1]));
            let what = format!("{} {size:?} {stride:?}", x.form);
            assert_same(&what, &x.tensor.max_pool2d_with_stride(k, s).unwrap(), &want.map(|(x, _)| x));
            let (values, ids) = x.tensor.max_pool2d_with_indices(k, s).unwrap();
            assert_same(&what, &values, &want.map(|(x, _)| x));
            assert_same(&what, &ids, &want.map(|(_, place)| place as u32));
        }
    }
}

fn means<T: Native>(device: &Device) {
    for x in images::<T>(device, [2, 3, 5, 7]) {
        for (size, stride) in WINDOWS {
            let out = [(5 - size[0]) / stride[0] + 1, (7 - size[1]) / stride[1] + 1];
            let want = windows(&x.host, out, size, stride, slide, mean);
            let got = x.tensor.avg_pool2d_with_stride((size[0], size[1]), (stride[0], stride[1])).unwrap();
            assert_same(&format!("{} {size:?} {stride:?}", x.form), &got, &want);
        }
        for out in [[1, 1], [2, 3], [5, 7], [3, 9], [0, 2]] {
            let want = windows(&x.host, out, [0; 2], [0; 2], divide, mean);
            let got = x.tensor.adaptive_avg_pool2d((out[0], out[1])).unwrap();
            assert_same(&format!("{} to {out:?}", x.form), &got, &want);
        }
    }
}

#[test]
fn pools_are_extremes_and_means_of_windows() {
    each(|device| {
        maxima::<f32>(device);
        maxima::<f64>(device);
        maxima::<i64>(device);
        maxima::<u8>(device);
        means::<f32>(device);
        means::<f64>(device);
    });
}

#[test]
fn pools_of_one_axis_and_of_nothing() {
    each(|device| {
        let x = Host::<f32>::tame(&[2, 3, 8], 1);
        let (line, image) = (put(&x, device), put(&x, device).unsqueeze(2).unwrap());
        let same = |a: Tensor, b: Tensor| assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
        same(line.max_pool1d(3).unwrap(), image.max_pool2d((1, 3)).unwrap());
        same(line.avg_pool1d(2).unwrap(), image.avg_pool2d((1, 2)).unwrap());
        same(line.max_pool1d_with_stride(3, 2).unwrap(), image.max_pool2d_with_stride((1, 3), (1, 2)).unwrap());
        same(line.avg_pool1d_with_stride(4, 1).unwrap(), image.avg_pool2d_with_stride((1, 4), 1).unwrap());
        same(line.adaptive_avg_pool1d(3).unwrap(), image.adaptive_avg_pool2d((1, 3)).unwrap());
        let none = Tensor::zeros((0, 3, 4, 4), DType::F32, device).unwrap();
        assert_eq!(none.max_pool2d(2).unwrap().dims(), [0, 3, 2, 2]);
        assert_eq!(none.avg_pool2d(3).unwrap().dims(), [0, 3, 1, 1]);
        assert_eq!(none.upsample_bilinear2d(3, 9, false).unwrap().dims(), [0, 3, 3, 9]);
        assert_eq!(none.upsample_nearest2d(0, 9).unwrap().dims(), [0, 3, 0, 9]);
    });
}

fn nearest<T: Native>(device: &Device) {
    for x in images::<T>(device, [2, 3, 5, 7]) {
        for [h, w] in [[5, 7], [10, 14], [3, 2], [8, 1], [1, 20]] {
            let want = Host::from_fn(&[2, 3, h, w], |at| x.host.at(&[at[0], at[1], at[2] * 5 / h, at[3] * 7 / w]));
            let what = format!("{} to {h} {w}", x.form);
            assert_same(&what, &x.tensor.upsample_nearest2d(h, w).unwrap(), &want);
            assert_same(&what, &x.tensor.interpolate2d(h, w).unwrap(), &want);
        }
        let line = x.tensor.get_on_dim(2, 1).unwrap();
        let want = Host::from_fn(&[2, 3, 9], |at| x.host.at(&[at[0], at[1], 1, at[2] * 7 / 9]));
        assert_same(x.form, &line.upsample_nearest1d(9).unwrap(), &want);
        assert_same(x.form, &line.interpolate1d(9).unwrap(), &want);
    }
}

/// Weights of the elements of an axis at a place.
fn weights(place: usize, len: usize, scale: f64, align: bool) -> Vec<f64> {
    let at = if align { place as f64 * scale } else { ((place as f64 + 0.5) * scale - 0.5).max(0.) };
    let first = (at.floor() as usize).min(len - 1);
    let part = (at - first as f64).clamp(0., 1.);
    let mut weights = vec![0.; len];
    weights[first] += 1. - part;
    weights[(first + 1).min(len - 1)] += part;
    weights
}

fn bilinear(x: &Host<f64>, [h, w]: [usize; 2], scales: [f64; 2], align: bool) -> Host<f64> {
    Host::from_fn(&[x.dims[0], x.dims[1], h, w], |at| {
        let down = weights(at[2], x.dims[2], scales[0], align);
        let across = weights(at[3], x.dims[3], scales[1], align);
        let cells =
            down.iter().enumerate().flat_map(|(i, a)| across.iter().enumerate().map(move |(j, b)| (i, j, a * b)));
        cells.filter(|&(.., by)| by != 0.).map(|(i, j, by)| by * x.at(&[at[0], at[1], i, j])).sum()
    })
}

#[test]
fn images_get_other_sizes() {
    each(|device| {
        nearest::<f32>(device);
        nearest::<u32>(device);
        let x = Host::<f64>::tame(&[2, 2, 4, 5], 3);
        let a = put(&x, device);
        for out in [[4, 5], [8, 10], [3, 2], [7, 1], [1, 9]] {
            let scales = [4. / out[0] as f64, 5. / out[1] as f64];
            let got = a.upsample_bilinear2d(out[0], out[1], false).unwrap();
            assert_same(&format!("{out:?}"), &got, &bilinear(&x, out, scales, false));
            let ends = |len: f64, out: usize| if out > 1 { (len - 1.) / (out - 1) as f64 } else { 0. };
            let got = a.upsample_bilinear2d(out[0], out[1], true).unwrap();
            assert_same(&format!("{out:?}"), &got, &bilinear(&x, out, [ends(4., out[0]), ends(5., out[1])], true));
        }
        let got = a.upsample_bilinear2d_with_scale(1.7, 0.5, false).unwrap();
        assert_same("by scale", &got, &bilinear(&x, [6, 2], [1. / 1.7, 2.], false));
        let got = a.upsample_bilinear2d_with_scale(1.2, 1.1, false).unwrap();
        assert_same("by scales that leave the size", &got, &x);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    each(|device| {
        let x = Tensor::zeros((2, 3, 5, 5), DType::F32, device).unwrap();
        for n in [0, usize::MAX] {
            assert!(matches!(error(x.max_pool2d(n)), Error::Argument { .. } | Error::Shape { .. }), "{n}");
            assert!(matches!(error(x.avg_pool2d((1, n))), Error::Argument { .. } | Error::Shape { .. }), "{n}");
        }
        assert!(matches!(error(x.max_pool2d_with_stride(2, 0)), Error::Argument { argument: "stride", .. }));
        assert_eq!(x.max_pool2d_with_stride(2, usize::MAX).unwrap().dims(), [2, 3, 1, 1]);
        assert!(matches!(error(x.max_pool2d(6)), Error::Shape { op: "max_pool2d", .. }));
        assert!(matches!(error(x.max_pool1d(2)), Error::Shape { op: "max_pool1d", .. }));
        let none = Tensor::zeros((2, 3, 0, 5), DType::F32, device).unwrap();
        assert!(matches!(error(none.adaptive_avg_pool2d(2)), Error::Shape { .. }));
        assert!(matches!(error(none.upsample_nearest2d(2, 2)), Error::Shape { .. }));
        assert!(matches!(error(x.upsample_nearest1d(2)), Error::Shape { .. }));
        assert!(matches!(error(x.upsample_nearest2d(usize::MAX, 2)), Error::SizeOverflow { .. }));
        assert!(matches!(error(x.adaptive_avg_pool2d(usize::MAX)), Error::SizeOverflow { .. }));
        for scale in [0., -1., f64::NAN, f64::INFINITY, 1e300] {
            assert!(matches!(error(x.upsample_bilinear2d_with_scale(scale, 1., true)), Error::Argument { .. }));
        }
        let whole = x.to_dtype(DType::I64).unwrap();
        assert!(matches!(error(whole.avg_pool2d(2)), Error::UnsupportedDType { .. }));
        assert!(matches!(error(whole.upsample_bilinear2d(2, 2, false)), Error::UnsupportedDType { .. }));
    });
}

#[test]
fn large_images_go_to_several_threads_with_the_same_result() {
    alone(|| {
        let x = Host::<f32>::tame(&[3, 4, 160, 160], 5);
        let a = put(&x, &Device::Cpu);
        let want = windows(&x, [158, 158], [3, 3], [1, 1], slide, largest);
        let (values, ids) = a.max_pool2d_with_indices(3, 1).unwrap();
        assert_same("values", &values, &want.map(|(x, _)| x));
        assert_same("places", &ids, &want.map(|(_, place)| place as u32));
    });
}

/// Numbers of which no two are near each other.
fn distinct(dims: &[usize]) -> Host<f64> {
    let mut i = 0;
    Host::from_fn(dims, |_| {
        i += 1;
        (i * 29 % 127) as f64 / 10. - 3.
    })
}

/// The cases of the gradient check.
pub(crate) fn gradients() -> Vec<Case> {
    let case = |name, dims: &[usize], run: Run| Case {
        name,
        how: "a window",
        inputs: vec![distinct(dims)],
        run,
        step: 1e-5,
        tolerance: 1e-6,
    };
    let image = [2, 2, 4, 5];
    vec![
        case("max_pool2d", &image, |x| x[0].max_pool2d(2)),
        case("max_pool2d_with_stride", &image, |x| x[0].max_pool2d_with_stride((3, 2), 1)),
        case("max_pool2d_with_indices", &image, |x| Ok(x[0].max_pool2d_with_indices(2, (1, 2))?.0)),
        case("avg_pool2d", &image, |x| x[0].avg_pool2d((2, 3))),
        case("avg_pool2d_with_stride", &image, |x| x[0].avg_pool2d_with_stride(3, (1, 2))),
        case("adaptive_avg_pool2d", &image, |x| x[0].adaptive_avg_pool2d((3, 2))),
        case("max_pool1d", &[2, 2, 7], |x| x[0].max_pool1d(2)),
        case("max_pool1d_with_stride", &[2, 2, 7], |x| x[0].max_pool1d_with_stride(3, 2)),
        case("avg_pool1d", &[2, 2, 7], |x| x[0].avg_pool1d(3)),
        case("avg_pool1d_with_stride", &[2, 2, 7], |x| x[0].avg_pool1d_with_stride(3, 1)),
        case("adaptive_avg_pool1d", &[2, 2, 7], |x| x[0].adaptive_avg_pool1d(3)),
        case("interpolate1d", &[2, 2, 5], |x| x[0].interpolate1d(7)?.sqr()),
        case("upsample_nearest1d", &[2, 2, 5], |x| x[0].upsample_nearest1d(3)?.sqr()),
        case("interpolate2d", &image, |x| x[0].interpolate2d(3, 9)?.sqr()),
        case("upsample_nearest2d", &image, |x| x[0].upsample_nearest2d(8, 10)?.sqr()),
        case("upsample_bilinear2d", &image, |x| x[0].upsample_bilinear2d(7, 3, false)?.sqr()),
        case("upsample_bilinear2d", &image, |x| x[0].upsample_bilinear2d(9, 8, true)?.sqr()),
        case("upsample_bilinear2d_with_scale", &image, |x| x[0].upsample_bilinear2d_with_scale(1.7, 2.3, false)?.sqr()),
    ]
}

#[test]
fn gradients_match_differences() {
    check_all(gradients());
}
