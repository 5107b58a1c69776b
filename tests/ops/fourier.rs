//! `ndgc::fft` against sums of sines and cosines, its inverses, and gradients against differences.

use std::f64::consts::TAU;

use ndgc::fft::{Complex, fft, fft2, hann_window, ifft, ifft2, irfft, rfft, stft};
use ndgc::{D, DType, Error, Result, Tensor, Var};

use crate::ops::gradcheck::{Case, check_all};
use crate::ops::reference::Host;
use crate::ops::support::{each, error, put, values};

/// The transform of a line by its definition: `n` numbers, zeros behind those that are there.
fn naive(re: &[f64], im: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let at = |line: &[f64], i: usize| line.get(i).copied().unwrap_or(0.);
    let bin = |k: usize| {
        (0..n).fold((0., 0.), |(a, b), i| {
            let (sin, cos) = (-TAU * (i * k % n) as f64 / n as f64).sin_cos();
            (a + at(re, i) * cos - at(im, i) * sin, b + at(re, i) * sin + at(im, i) * cos)
        })
    };
    (0..n).map(bin).unzip()
}

fn near(got: &Tensor, want: &[f64]) {
    let got = values::<f64>(&got.to_dtype(DType::F64).unwrap());
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-4 * (1. + w.abs())), "{got:?}\n{want:?}");
}

fn pair(device: &ndgc::Device, dims: &[usize]) -> (Complex, Host<f64>, Host<f64>) {
    let (re, im) = (Host::<f64>::tame(dims, 1), Host::<f64>::tame(dims, 2));
    (Complex::new(put(&re, device), put(&im, device)).unwrap(), re, im)
}

#[test]
fn transforms_of_every_length_match_their_definition() {
    each(|device| {
        for size in [1, 2, 5, 8, 12] {
            let (x, re, im) = pair(device, &[3, size]);
            for n in [None, Some(1), Some(4), Some(7), Some(13)] {
                let length = n.unwrap_or(size);
                let y = fft(&x, n, 1).unwrap();
                let half = rfft(&x.re.to_dtype(DType::F32).unwrap(), n, D::Minus1).unwrap();
                assert_eq!((y.re.dims(), half.im.dims()), (&[3, length][..], &[3, length / 2 + 1][..]));
                assert_eq!(half.re.dtype(), DType::F32);
                for row in 0..3 {
                    let line = row * size..row * size + size.min(length);
                    let want = naive(&re.data[line.clone()], &im.data[line.clone()], length);
                    near(&y.re.get(row).unwrap(), &want.0);
                    near(&y.im.get(row).unwrap(), &want.1);
                    let want = naive(&re.data[line], &[], length);
                    near(&half.re.get(row).unwrap(), &want.0[..length / 2 + 1]);
                    near(&half.im.get(row).unwrap(), &want.1[..length / 2 + 1]);
                }
                near(&ifft(&y, None, 1).unwrap().re, &values::<f64>(&cut(&x.re, length)));
                near(&irfft(&half, Some(length), 1).unwrap(), &values::<f64>(&cut(&x.re, length)));
            }
        }
    });
}

/// `[3, size]` cut or filled with zeros to `[3, n]`.
fn cut(x: &Tensor, n: usize) -> Tensor {
    let size = x.dims()[1];
    x.narrow(1, 0, size.min(n)).unwrap().pad_with_zeros(1, 0, n.saturating_sub(size)).unwrap()
}

#[test]
fn transforms_along_other_axes_and_two_at_once_are_undone() {
    each(|device| {
        let (x, re, im) = pair(device, &[4, 3, 5]);
        let along = fft(&x, None, 0).unwrap();
        let turned = |part: &Tensor| part.transpose(0, 2).unwrap();
        let other = fft(&Complex::new(turned(&x.re), turned(&x.im)).unwrap(), None, 2).unwrap();
        near(&along.re, &values::<f64>(&turned(&other.re)));
        let both = fft2(&x, None).unwrap();
        let back = ifft2(&both, None).unwrap();
        near(&back.re, &re.data);
        near(&back.im, &im.data);
        assert_eq!(fft2(&x, Some([2, 8])).unwrap().re.dims(), [4, 2, 8]);
        let none = Complex::from_real(&Tensor::zeros((0, 4), DType::F32, device).unwrap()).unwrap();
        assert_eq!(fft(&none, None, 1).unwrap().re.dims(), [0, 4]);
        // |x|^2, x conj(x), and the sum of both parts' squares.
        let squares = x.mul(&x.conj().unwrap()).unwrap();
        near(&squares.re, &values::<f64>(&x.abs().unwrap().sqr().unwrap()));
        near(&squares.im, &[0.; 60]);
        near(&x.add(&x).unwrap().sub(&x).unwrap().im, &im.data);
    });
}

#[test]
fn windows_of_a_signal_are_transformed_each() {
    each(|device| {
        let host = Host::<f64>::tame(&[2, 20], 3);
        let x = put(&host, device);
        let window = hann_window(8, DType::F64, device).unwrap();
        let y = stft(&x, &window, 3, false).unwrap();
        assert_eq!(y.re.dims(), [2, 5, 5]);
        let weights = values::<f64>(&window);
        let line: Vec<f64> = (0..8).map(|i| host.data[20 + 6 + i] * weights[i]).collect();
        let want = naive(&line, &[], 8);
        near(&y.re.get(1).unwrap().get_on_dim(1, 2).unwrap(), &want.0[..5]);
        near(&y.im.get(1).unwrap().get_on_dim(1, 2).unwrap(), &want.1[..5]);
        let centered = stft(&x, &window, 4, true).unwrap();
        assert_eq!(centered.re.dims(), [2, 5, 6]);
        let line: Vec<f64> =
            [4usize, 3, 2, 1, 0, 1, 2, 3].iter().zip(&weights).map(|(&i, w)| host.data[i] * w).collect();
        near(&centered.re.get(0).unwrap().get_on_dim(1, 0).unwrap(), &naive(&line, &[], 8).0[..5]);
    });
}

#[test]
fn gradients_of_transforms_match_differences() {
    let case = |name, dims: &[&[usize]], run: fn(&[Tensor]) -> Result<Tensor>| {
        let inputs = dims.iter().enumerate().map(|(i, dims)| Host::<f64>::tame(dims, i as u64 + 1)).collect();
        Case { name, how: "a pair", inputs, run, step: 1e-4, tolerance: 1e-6 }
    };
    // Both parts of the result, one behind the other.
    fn parts(x: Complex) -> Result<Tensor> {
        Tensor::cat(&[&x.re, &x.im], 0)
    }
    fn of(x: &[Tensor]) -> Complex {
        Complex::new(x[0].clone(), x[1].clone()).unwrap()
    }
    let both: &[&[usize]] = &[&[2, 5], &[2, 5]];
    check_all(vec![
        case("fft", both, |x| parts(fft(&of(x), None, 1)?)),
        case("fft", both, |x| parts(fft(&of(x), Some(3), 1)?)),
        case("fft", both, |x| parts(fft(&of(x), Some(8), 0)?)),
        case("ifft", both, |x| parts(ifft(&of(x), Some(7), 1)?)),
        case("rfft", &[&[2, 6]], |x| parts(rfft(&x[0], None, 1)?)),
        case("rfft", &[&[2, 6]], |x| parts(rfft(&x[0], Some(5), 1)?)),
        case("irfft", both, |x| irfft(&of(x), None, 1)),
        case("irfft", both, |x| irfft(&of(x), Some(5), 1)),
        case("irfft", both, |x| irfft(&of(x), Some(12), 1)),
        case("fft2", both, |x| parts(fft2(&of(x), None)?)),
        case("stft", &[&[2, 9], &[4]], |x| parts(stft(&x[0], &x[1], 2, true)?)),
    ]);
}

/// A bin stands for two, and twice its number may be more than the largest half.
#[test]
fn spectra_of_large_halves_are_undone() {
    each(|device| {
        let of = |data: [f32; 3]| Tensor::new(data, device).unwrap().to_dtype(DType::F16).unwrap();
        let half = Complex::new(of([0., 40_000., 0.]), of([0.; 3])).unwrap();
        let line = irfft(&half, None, 0).unwrap();
        assert_eq!(line.dtype(), DType::F16);
        near(&line, &[20_000., 0., -20_000., 0.]);
    });
}

#[test]
fn what_cannot_be_transformed_is_refused() {
    each(|device| {
        let (x, _, _) = pair(device, &[3, 4]);
        assert!(matches!(error(fft(&x, None, 2)), Error::DimOutOfRange { op: "fft", .. }));
        assert!(matches!(error(fft(&x, Some(0), 1)), Error::Argument { op: "fft", .. }));
        assert!(matches!(error(ifft(&x, Some(usize::MAX), 1)), Error::SizeOverflow { op: "ifft", .. }));
        let integers = Tensor::ones(4, DType::I64, device).unwrap();
        assert!(matches!(error(rfft(&integers, None, 0)), Error::UnsupportedDType { op: "rfft", .. }));
        assert!(Complex::new(x.re.clone(), x.im.t().unwrap()).is_err());
        let single = x.im.to_dtype(DType::F32).unwrap();
        assert!(matches!(error(Complex::new(x.re.clone(), single)), Error::DTypeMismatch { .. }));
        let one = x.re.narrow(1, 0, 1).unwrap();
        assert!(matches!(error(irfft(&Complex::from_real(&one).unwrap(), None, 1)), Error::Argument { .. }));
        let window = hann_window(8, DType::F64, device).unwrap();
        assert!(matches!(error(stft(&x.re, &window, 1, false)), Error::Shape { op: "stft", .. }));
        assert!(matches!(error(stft(&x.re, &window, 1, true)), Error::Shape { op: "stft", .. }));
        assert!(matches!(error(stft(&x.re, &window, 0, false)), Error::Argument { op: "stft", .. }));
        assert!(matches!(error(stft(&x.re, &x.re, 1, false)), Error::Shape { op: "stft", .. }));
    });
}

#[test]
fn a_distance_of_zero_has_a_gradient_of_zero() {
    each(|device| {
        let of = |data: &[f64]| Var::from_vec(data.to_vec(), data.len(), device).unwrap();
        let (re, im) = (of(&[0., 3., 0.]), of(&[0., 4., -2.]));
        let x = Complex::new(re.as_tensor().clone(), im.as_tensor().clone()).unwrap();
        let y = x.abs().unwrap();
        assert_eq!(values::<f64>(&y), [0., 5., 2.]);
        let grads = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(values::<f64>(grads.get(&re).unwrap()), [0., 0.6, 0.]);
        assert_eq!(values::<f64>(grads.get(&im).unwrap()), [0., 0.8, -1.]);
    });
}

/// The squares of both would be infinite, or 0.
#[test]
fn distances_of_large_and_of_small_numbers_are_what_they_are() {
    each(|device| {
        for size in [1e30f32, 1e-30] {
            let of = |part: f32| Var::new([part * size], device).unwrap();
            let (re, im) = (of(3.), of(-4.));
            let y = Complex::new(re.as_tensor().clone(), im.as_tensor().clone()).unwrap().abs().unwrap();
            let near = |got: f32, want: f32| assert!((got / want - 1.).abs() < 1e-5, "{got}, not {want}");
            near(values::<f32>(&y)[0], 5. * size);
            let grads = y.sum_all().unwrap().backward().unwrap();
            near(values::<f32>(grads.get(&re).unwrap())[0], 0.6);
            near(values::<f32>(grads.get(&im).unwrap())[0], -0.8);
        }
    });
}

#[test]
fn lists_that_no_machine_has_room_for_are_refused() {
    each(|device| {
        let far = 1usize << 45;
        assert!(matches!(error(hann_window(far, DType::F32, device)), Error::OutOfMemory(_)));
        let wide = Tensor::ones(1, DType::F32, device).and_then(|one| one.broadcast_as(far)).unwrap();
        let wide = Complex::new(wide.clone(), wide).unwrap();
        assert!(matches!(error(irfft(&wide, None, 0)), Error::OutOfMemory(_)));
    });
}
