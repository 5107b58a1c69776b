//! Convolutions, transposed ones and columns against naive loops, over many shapes; refusals; gradients by central
//! differences.

use ndgc::{DType, Device, Error, Result, Tensor, Var};

use crate::ops::gradcheck::{Case, Run, check_all};
use crate::ops::reference::{Host, Native, indices};
use crate::ops::support::{alone, assert_same, each, error, put, values};

/// A convolution: shapes of image and kernels, and the numbers.
#[derive(Clone, Debug)]
struct Setting {
    image: Vec<usize>,
    kernels: Vec<usize>,
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

fn setting(image: &[usize], kernels: &[usize], [padding, stride, dilation, groups]: [usize; 4]) -> Setting {
    Setting { image: image.to_vec(), kernels: kernels.to_vec(), padding, stride, dilation, groups }
}

fn settings() -> Vec<Setting> {
    vec![
        setting(&[2, 3, 7], &[4, 3, 3], [0, 1, 1, 1]),
        setting(&[1, 4, 9], &[6, 2, 2], [3, 2, 2, 2]),
        setting(&[2, 4, 5], &[4, 1, 3], [1, 1, 1, 4]),
        setting(&[3, 2, 6], &[5, 2, 1], [0, 1, 1, 1]),
        setting(&[2, 3, 6, 7], &[4, 3, 3, 3], [1, 1, 1, 1]),
        setting(&[2, 3, 6, 7], &[4, 3, 3, 2], [2, 2, 1, 1]),
        setting(&[1, 4, 8, 5], &[6, 2, 2, 3], [1, 1, 2, 2]),
        setting(&[2, 4, 5, 5], &[8, 1, 3, 3], [1, 2, 1, 4]),
        setting(&[2, 3, 4, 4], &[30, 1, 2, 2], [0, 1, 1, 3]),
        setting(&[2, 5, 4, 3], &[3, 5, 1, 1], [0, 1, 1, 1]),
        setting(&[1, 5, 5, 4], &[3, 5, 1, 1], [1, 2, 1, 1]),
        setting(&[1, 1, 1, 1], &[1, 1, 3, 3], [1, 1, 1, 1]),
        setting(&[1, 2, 3, 3], &[2, 2, 3, 3], [4, 3, 1, 1]),
        setting(&[1, 2, 4, 5, 3], &[3, 2, 2, 3, 2], [1, 2, 1, 1]),
        setting(&[2, 2, 3, 4, 4], &[2, 1, 2, 2, 2], [0, 1, 2, 2]),
        setting(&[0, 3, 6, 7], &[4, 3, 3, 3], [1, 1, 1, 1]),
        setting(&[2, 0, 6, 7], &[4, 0, 3, 3], [1, 1, 1, 1]),
        setting(&[2, 3, 6, 7], &[0, 3, 3, 3], [1, 1, 1, 1]),
        setting(&[2, 3, 0, 7], &[2, 3, 3, 3], [2, 1, 1, 1]),
    ]
}

fn out_dims(s: &Setting) -> Vec<usize> {
    let mut dims = vec![s.image[0], s.kernels[0]];
    for (&len, &size) in s.image[2..].iter().zip(&s.kernels[2..]) {
        dims.push((len + 2 * s.padding - s.dilation * (size - 1) - 1) / s.stride + 1);
    }
    dims
}

/// Every product of the sum: calls `f(index in the image, in the kernels, in the result)`.
fn products(s: &Setting, out: &[usize], mut f: impl FnMut(&[usize], &[usize], &[usize])) {
    let (channels, filters) = (s.kernels[1], s.kernels[0] / s.groups);
    let taps = indices(&s.kernels[2..]);
    for to in indices(out) {
        for channel in 0..channels {
            for tap in &taps {
                let at = |axis: usize| to[axis + 2] * s.stride + tap[axis] * s.dilation;
                let inside = (0..tap.len()).all(|axis| at(axis).wrapping_sub(s.padding) < s.image[axis + 2]);
                if inside {
                    let mut image = vec![to[0], to[1] / filters * channels + channel];
                    image.extend((0..tap.len()).map(|axis| at(axis) - s.padding));
                    let kernel = [&[to[1], channel], tap.as_slice()].concat();
                    f(&image, &kernel, &to);
                }
            }
        }
    }
}

fn flat(index: &[usize], dims: &[usize]) -> usize {
    index.iter().zip(dims).fold(0, |flat, (&i, &dim)| flat * dim + i)
}

fn call(s: &Setting, x: &Tensor, k: &Tensor) -> Result<Tensor> {
    match s.image.len() {
        3 => x.conv1d(k, s.padding, s.stride, s.dilation, s.groups),
        4 => x.conv2d(k, s.padding, s.stride, s.dilation, s.groups),
        _ => x.conv3d(k, s.padding, s.stride, s.dilation, s.groups),
    }
}

fn whole_numbers<T: Native>(dims: &[usize], seed: usize) -> Host<T> {
    let mut i = seed;
    // Small whole numbers: sums are exact in any order.
    Host::from_fn(dims, |_| {
        i += 1;
        T::from_f64((i * 31 % 17) as f64 - 8.)
    })
}

fn forward<T: Native>(device: &Device, s: &Setting) {
    let (x, k) = (whole_numbers::<T>(&s.image, 1), whole_numbers::<T>(&s.kernels, 5));
    let dims = out_dims(s);
    let mut sums = vec![0.; dims.iter().product()];
    products(s, &dims, |image, kernel, out| {
        sums[flat(out, &dims)] += x.at(image).to_f64() * k.at(kernel).to_f64();
    });
    let want = Host { dims: dims.clone(), data: sums.into_iter().map(T::from_f64).collect() };
    let (a, b) = (put(&x, device), put(&k, device));
    assert_same(&format!("{s:?}"), &call(s, &a, &b).unwrap(), &want);
    // The same from views in another order.
    let last = s.image.len() - 1;
    let turned = |t: &Tensor| t.transpose(1, last).and_then(|t| t.contiguous()).and_then(|t| t.transpose(1, last));
    assert_same(&format!("views, {s:?}"), &call(s, &turned(&a).unwrap(), &turned(&b).unwrap()).unwrap(), &want);
}

#[test]
fn convolutions_are_the_sums_that_they_say() {
    each(|device| {
        for s in &settings() {
            forward::<f32>(device, s);
            forward::<f64>(device, s);
        }
    });
}

/// Gradients of both operands, for a gradient of whole numbers.
fn backward(device: &Device, s: &Setting) {
    let (x, k) = (whole_numbers::<f64>(&s.image, 1), whole_numbers::<f64>(&s.kernels, 5));
    let dims = out_dims(s);
    let g = whole_numbers::<f64>(&dims, 3);
    let (mut dx, mut dk) = (vec![0.; x.data.len()], vec![0.; k.data.len()]);
    products(s, &dims, |image, kernel, out| {
        dx[flat(image, &s.image)] += g.at(out) * k.at(kernel);
        dk[flat(kernel, &s.kernels)] += g.at(out) * x.at(image);
    });
    let a = Var::from_tensor(&put(&x, device)).unwrap();
    let b = Var::from_tensor(&put(&k, device)).unwrap();
    let out = call(s, a.as_tensor(), b.as_tensor()).unwrap();
    let grads = out.mul(&put(&g, device)).unwrap().sum_all().unwrap().backward().unwrap();
    assert_same(&format!("image, {s:?}"), grads.get(&a).unwrap(), &Host { dims: s.image.clone(), data: dx.clone() });
    assert_same(&format!("kernels, {s:?}"), grads.get(&b).unwrap(), &Host { dims: s.kernels.clone(), data: dk });
    transposed(device, s, &g, &k, &Host { dims: s.image.clone(), data: dx });
}

/// The transposed convolution of the gradient is the gradient of the image.
fn transposed(device: &Device, s: &Setting, g: &Host<f64>, k: &Host<f64>, want: &Host<f64>) {
    let fits = |axis: usize| {
        let least = (g.dims[axis] - 1) * s.stride + s.dilation * (k.dims[axis] - 1) + 1;
        (s.image[axis] + 2 * s.padding).checked_sub(least)
    };
    if g.data.is_empty() || want.data.is_empty() || s.image.len() == 5 || s.image.len() == 4 && s.groups > 1 {
        return;
    }
    let extra: Vec<usize> = (2..s.image.len()).map(|axis| fits(axis).unwrap()).collect();
    if extra.iter().any(|&e| e != extra[0]) {
        return;
    }
    let (a, b) = (put(g, device), put(k, device));
    let out = match s.image.len() {
        3 => a.conv_transpose1d(&b, s.padding, extra[0], s.stride, s.dilation, s.groups),
        _ => a.conv_transpose2d(&b, s.padding, extra[0], s.stride, s.dilation),
    };
    assert_same(&format!("transposed, {s:?}"), &out.unwrap(), want);
}

#[test]
fn gradients_are_the_transposed_sums() {
    each(|device| {
        settings().iter().for_each(|s| backward(device, s));
    });
}

/// Result, gradient of the image, gradient of the kernels of a 3 x 3 window with padding 1, by plain loops.
fn plainly(x: &Host<f64>, k: &Host<f64>, g: &Host<f64>) -> [Vec<f64>; 3] {
    let &[batch, channels, height, width] = x.dims.as_slice() else { panic!("four axes") };
    let filters = k.dims[0];
    let [mut y, mut dx, mut dk] = [g.data.len(), x.data.len(), k.data.len()].map(|len| vec![0.; len]);
    for (b, m, c) in (0..batch).flat_map(|b| (0..filters).flat_map(move |m| (0..channels).map(move |c| (b, m, c)))) {
        for tap in 0..9 {
            let kernel = (m * channels + c) * 9 + tap;
            for h in 0..height {
                let Some(from) = (h + tap / 3).checked_sub(1).filter(|&from| from < height) else { continue };
                for w in 0..width {
                    let Some(at) = (w + tap % 3).checked_sub(1).filter(|&at| at < width) else { continue };
                    let image = ((b * channels + c) * height + from) * width + at;
                    let to = ((b * filters + m) * height + h) * width + w;
                    y[to] += x.data[image] * k.data[kernel];
                    dx[image] += g.data[to] * k.data[kernel];
                    dk[kernel] += g.data[to] * x.data[image];
                }
            }
        }
    }
    [y, dx, dk]
}

/// Columns in several blocks, and work for several threads: images side by side, or one after the other.
#[test]
fn large_ones_are_the_same_sums() {
    if crate::common::ran_apart() {
        return;
    }
    for (image, filters) in [([3, 40, 30, 30], 10), ([1, 240, 12, 12], 28), ([1, 2, 300, 301], 5)] {
        let weights = [filters, image[1], 3, 3];
        let (x, k) = (whole_numbers::<f64>(&image, 1), whole_numbers::<f64>(&weights, 5));
        let g = whole_numbers::<f64>(&[image[0], filters, image[2], image[3]], 3);
        let [y, dx, dk] = plainly(&x, &k, &g);
        alone(|| {
            let device = Device::Cpu;
            let a = Var::from_tensor(&put(&x, &device)).unwrap();
            let b = Var::from_tensor(&put(&k, &device)).unwrap();
            let out = a.as_tensor().conv2d(b.as_tensor(), 1, 1, 1, 1).unwrap();
            assert!(values::<f64>(&out) == y, "the result of {image:?}");
            let grads = out.mul(&put(&g, &device)).unwrap().sum_all().unwrap().backward().unwrap();
            assert!(values::<f64>(grads.get(&a).unwrap()) == dx, "the image's gradient of {image:?}");
            assert!(values::<f64>(grads.get(&b).unwrap()) == dk, "the kernels' gradient of {image:?}");
        });
    }
}

#[test]
fn columns_are_what_the_window_sees_and_fold_adds_them_back() {
    each(|device| {
        for (dims, h, w, [padding, stride, dilation]) in [
            (vec![2, 3, 5, 6], 2, 3, [1, 1, 1]),
            (vec![1, 2, 7, 4], 3, 1, [0, 2, 1]),
            (vec![2, 1, 6, 6], 2, 2, [2, 3, 2]),
            (vec![0, 2, 4, 4], 2, 2, [0, 1, 1]),
        ] {
            columns::<f32>(device, &dims, [h, w], [padding, stride, dilation]);
            columns::<i64>(device, &dims, [h, w], [padding, stride, dilation]);
        }
    });
}

fn columns<T: Native>(device: &Device, dims: &[usize], [h, w]: [usize; 2], [padding, stride, dilation]: [usize; 3]) {
    let x = whole_numbers::<T>(dims, 2);
    // One channel of one image each: the taps are then those of a kernel for one channel.
    let s = Setting { image: dims.to_vec(), kernels: vec![1, dims[1], h, w], padding, stride, dilation, groups: 1 };
    let out = out_dims(&s);
    let shape = [dims[0], dims[1] * h * w, out[2] * out[3]];
    let mut seen = vec![T::from_f64(0.); shape.iter().product()];
    let mut back = vec![T::from_f64(0.); x.data.len()];
    products(&s, &out, |image, kernel, to| {
        let row = flat(&kernel[1..], &s.kernels[1..]);
        seen[flat(&[to[0], row, to[2] * out[3] + to[3]], &shape)] = x.at(image);
        let at = flat(image, dims);
        back[at] = back[at].plus(x.at(image));
    });
    let a = put(&x, device);
    let what = format!("{dims:?} {h} {w} {padding} {stride} {dilation}");
    let got = a.im2col((h, w), padding, stride, dilation).unwrap();
    assert_same(&what, &got, &Host { dims: shape.to_vec(), data: seen });
    let turned = got.t().and_then(|t| t.contiguous()).and_then(|t| t.t()).unwrap();
    for columns in [got, turned] {
        let folded = columns.fold((dims[2], dims[3]), (h, w), padding, stride, dilation).unwrap();
        assert_same(&what, &folded, &Host { dims: dims.to_vec(), data: back.clone() });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    each(|device| {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device).unwrap();
        let (x, k) = (zeros(&[2, 3, 5, 5]), zeros(&[4, 3, 3, 3]));
        for (what, numbers) in [("stride", [0, 0, 1, 1]), ("dilation", [0, 1, 0, 1]), ("groups", [0, 1, 1, 0])] {
            let [padding, stride, dilation, groups] = numbers;
            match error(x.conv2d(&k, padding, stride, dilation, groups)) {
                Error::Argument { op: "conv2d", argument, .. } => assert_eq!(argument, what),
                other => panic!("{other}"),
            }
        }
        let shapes = |e: Error| matches!(e, Error::Shape { op: "conv2d", .. });
        assert!(shapes(error(x.get(0).unwrap().conv2d(&k, 0, 1, 1, 1))));
        assert!(shapes(error(x.conv2d(&zeros(&[4, 3, 3]), 0, 1, 1, 1))));
        assert!(shapes(error(x.conv2d(&zeros(&[4, 3, 0, 3]), 0, 1, 1, 1))));
        let unfit = |e: Error| matches!(e, Error::ShapeMismatch { .. });
        assert!(unfit(error(x.conv2d(&zeros(&[4, 2, 3, 3]), 0, 1, 1, 1))));
        assert!(unfit(error(zeros(&[2, 6, 5, 5]).conv2d(&k, 0, 1, 1, 2).and_then(|_| x.conv2d(&k, 0, 1, 1, 2)))));
        assert!(unfit(error(zeros(&[2, 9, 5, 5]).conv2d(&k, 0, 1, 1, 3))));
        assert!(unfit(error(x.conv2d(&zeros(&[4, 3, 6, 6]), 0, 1, 1, 1))));
        assert!(unfit(error(x.conv2d(&k, 0, 1, 3, 1))));
        assert!(unfit(error(x.conv_transpose2d(&k, 0, 0, 1, 1))));
        assert!(unfit(error(zeros(&[2, 4, 1, 1]).conv_transpose2d(&k, 2, 0, 1, 1))));
        assert!(unfit(error(zeros(&[2, 4, 0, 1]).conv_transpose2d(&k, 0, 0, 1, 1))));
        let ids = Tensor::zeros((4, 3, 3, 3), DType::I64, device).unwrap();
        assert!(matches!(error(x.conv2d(&ids, 0, 1, 1, 1)), Error::DTypeMismatch { .. }));
        let whole = x.to_dtype(DType::I64).unwrap();
        assert!(matches!(error(whole.conv2d(&ids, 0, 1, 1, 1)), Error::UnsupportedDType { .. }));
    });
}

#[test]
fn sizes_near_the_limits_are_errors() {
    alone(|| {
        let device = Device::Cpu;
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &device).unwrap();
        let (x, k) = (zeros(&[1, 1, 4, 4]), zeros(&[1, 1, 2, 2]));
        let huge = [usize::MAX, usize::MAX / 2, isize::MAX as usize, isize::MAX as usize / 2, 1 << 40];
        for n in huge {
            assert!(x.conv2d(&k, n, 1, 1, 1).is_err(), "padding {n}");
            assert!(x.conv2d(&k, 0, 1, n, 1).is_err(), "dilation {n}");
            assert!(x.conv2d(&k, 0, 1, 1, n).is_err(), "groups {n}");
            assert!(x.conv_transpose2d(&k, n, 0, 1, 1).is_err(), "padding {n}");
            assert!(x.conv_transpose2d(&k, 0, n, 1, 1).is_err(), "output padding {n}");
            assert!(x.conv_transpose2d(&k, 0, 0, n, 1).is_err(), "stride {n}");
            assert!(x.conv_transpose2d(&k, 0, 0, 1, n).is_err(), "dilation {n}");
            assert!(x.im2col(n, 0, 1, 1).is_err(), "kernel {n}");
            assert!(x.im2col(2, n, 1, 1).is_err(), "padding {n}");
            assert!(x.fold(n, 2, 0, 1, 1).is_err() && x.get(0).unwrap().fold(n, 2, 0, 1, 1).is_err(), "size {n}");
            assert_eq!(x.conv2d(&k, 0, n, 1, 1).unwrap().dims(), [1, 1, 1, 1], "stride {n}");
        }
        let empty = zeros(&[0, 1, 4, 4]);
        assert!(empty.conv2d(&k, 1 << 40, 1, 1, 1).is_err(), "an empty array of too many places");
    });
}

#[test]
fn room_for_columns_does_not_grow_with_the_batch() {
    alone(|| {
        let device = Device::Cpu;
        let k = Tensor::ones((16, 16, 3, 3), DType::F32, &device).unwrap();
        let peak = |batch: usize| {
            let x = Tensor::ones((batch, 16, 48, 48), DType::F32, &device).unwrap();
            let before = device.memory().active;
            device.reset_peak();
            let out = x.conv2d(&k, 1, 1, 1, 1).unwrap();
            device.memory().peak - before - out.storage_bytes().unwrap() as u64
        };
        let (few, many) = (peak(8), peak(32));
        // A block of 1 MiB for each thread.
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        assert!(many <= few && few <= (threads + 1) << 20, "{few} and {many} bytes beside the result");
    });
}

/// Numbers between -1 and 1, all different.
fn spread(dims: &[usize], seed: usize) -> Host<f64> {
    let mut i = seed;
    Host::from_fn(dims, |_| {
        i += 1;
        (i * 37 % 101) as f64 / 50. - 1.
    })
}

fn case(name: &'static str, inputs: Vec<Host<f64>>, run: Run) -> Case {
    Case { name, how: "convolution", inputs, run, step: 1e-4, tolerance: 1e-6 }
}

#[test]
fn gradients_match_differences() {
    check_all(gradients());
}

/// The cases of the gradient check.
pub(crate) fn gradients() -> Vec<Case> {
    let s = spread;
    vec![
        case("conv1d", vec![s(&[2, 4, 6], 1), s(&[4, 2, 3], 4)], |x| x[0].conv1d(&x[1], 1, 2, 1, 2)),
        case("conv2d", vec![s(&[2, 2, 4, 5], 1), s(&[3, 2, 2, 3], 4)], |x| x[0].conv2d(&x[1], 1, 1, 2, 1)),
        case("conv2d", vec![s(&[1, 2, 4, 4], 1), s(&[4, 1, 3, 3], 4)], |x| x[0].conv2d(&x[1], 1, 2, 1, 2)),
        case("conv3d", vec![s(&[1, 2, 3, 3, 2], 1), s(&[2, 2, 2, 2, 1], 4)], |x| x[0].conv3d(&x[1], 1, 2, 1, 1)),
        case("conv_transpose1d", vec![s(&[2, 4, 3], 1), s(&[4, 2, 3], 4)], |x| {
            x[0].conv_transpose1d(&x[1], 1, 1, 2, 1, 2)
        }),
        case("conv_transpose2d", vec![s(&[1, 3, 2, 3], 1), s(&[3, 2, 2, 2], 4)], |x| {
            x[0].conv_transpose2d(&x[1], 1, 1, 2, 2)
        }),
        case("conv_transpose2d", vec![s(&[1, 2, 2, 3], 1), s(&[2, 3, 1, 1], 4)], |x| {
            x[0].conv_transpose2d(&x[1], 0, 1, 1, 1)
        }),
        case("im2col", vec![s(&[1, 2, 4, 3], 1)], |x| x[0].im2col((2, 1), 1, 2, 1)?.sqr()),
        case("fold", vec![s(&[1, 4, 6], 1)], |x| x[0].fold((3, 4), 2, 0, 1, 1)?.sqr()),
    ]
}

#[test]
fn only_the_gradients_that_are_wanted_are_computed() {
    each(|device| {
        let x = put(&spread(&[2, 2, 4, 4], 1), device);
        let k = Var::from_tensor(&put(&spread(&[3, 2, 3, 3], 2), device)).unwrap();
        let grads = x.conv2d(k.as_tensor(), 1, 1, 1, 1).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&k).unwrap().dims(), [3, 2, 3, 3]);
        assert!(values::<f64>(grads.get(&k).unwrap()).iter().all(|g| g.is_finite()));
    });
}
