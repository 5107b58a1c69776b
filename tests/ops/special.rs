//! The error function and its relatives, angles, bits, padding, equations with dots, counts and draws.

use ndgc::{D, DType, Device, Error, PadMode, Result, Tensor, TensorExt};

use crate::ops::gradcheck::{Case, Run, check_all};
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, f64s, put, values};

/// Where formulas have no digits left; all else is compared with those (`of_one.rs`).
#[test]
fn the_error_function_and_its_relatives() {
    each(|device| {
        let points = [-3.2, -1., -0.4, -0.03, 0., 0.2, 0.7, 1.5, 2.9];
        let back = f64s(device, &points, points.len()).erf().unwrap().erfinv().unwrap();
        for (got, x) in values::<f64>(&back).iter().zip(points) {
            assert!((got - x).abs() < 1e-10 * (1. + x.abs()), "{x}: {got}");
        }
        let (far, small) = (f64s(device, &[10.], 1), 2.088_487_583_762_545e-45);
        assert!((values::<f64>(&far.erfc().unwrap())[0] / small - 1.).abs() < 1e-12);
    });
}

#[test]
fn angles_are_in_the_right_quarter() {
    each(|device| {
        let points = [0., -0., 1., -1., 2.5, f64::INFINITY, f64::NEG_INFINITY, 1e300];
        let pairs: Vec<(f64, f64)> = points.iter().flat_map(|&y| points.iter().map(move |&x| (y, x))).collect();
        let (y, x): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let got = f64s(device, &y, y.len()).atan2(&f64s(device, &x, x.len())).unwrap();
        let want = Host { dims: vec![y.len()], data: pairs.iter().map(|(y, x)| y.atan2(*x)).collect() };
        assert_same("atan2", &got, &want);
    });
}

macro_rules! bits_of {
    ($device:expr, $t:ty, $bits:expr) => {{
        let numbers: Vec<$t> = vec![0, 1, 2, 77, <$t>::MAX, <$t>::MIN, <$t>::MAX / 3];
        let pairs: Vec<($t, $t)> = numbers.iter().flat_map(|&x| numbers.iter().map(move |&y| (x, y))).collect();
        let (a, b): (Vec<$t>, Vec<$t>) = pairs.iter().copied().unzip();
        let (x, y) = (Tensor::new(&a[..], $device).unwrap(), Tensor::new(&b[..], $device).unwrap());
        let by = |got: Result<Tensor>, want: fn($t, $t) -> $t| {
            let want: Vec<$t> = pairs.iter().map(|&(x, y)| want(x, y)).collect();
            assert_eq!(got.unwrap().to_vec1::<$t>().unwrap(), want, "{}", stringify!($t));
        };
        by(x.bitwise_and(&y), |x, y| x & y);
        by(x.bitwise_or(&y), |x, y| x | y);
        by(x.bitwise_xor(&y), |x, y| x ^ y);
        by(x.bitwise_not(), |x, _| !x);
        by(x.bitwise_left_shift(&y), |x, y| if (0..$bits).contains(&i128::from(y)) { x << y } else { 0 });
        by(x.bitwise_right_shift(&y), |x, y| {
            if (0..$bits).contains(&i128::from(y)) {
                x >> y
            } else if i128::from(x) < 0 {
                !0
            } else {
                0
            }
        });
    }};
}

#[test]
fn bits_are_those_of_the_processor() {
    each(|device| {
        bits_of!(device, u8, 8);
        bits_of!(device, u32, 32);
        bits_of!(device, i64, 64);
        bits_of!(device, i16, 16);
        let truth = Tensor::new([true, false, true], device).unwrap();
        let other = Tensor::new([true, true, false], device).unwrap();
        assert_eq!(truth.bitwise_xor(&other).unwrap().to_vec1::<bool>().unwrap(), [false, true, true]);
        assert_eq!(truth.bitwise_not().unwrap().to_vec1::<bool>().unwrap(), [false, true, false]);
        assert!(matches!(error(truth.bitwise_left_shift(&other)), Error::UnsupportedDType { .. }));
        let floats = Tensor::zeros(3, DType::F32, device).unwrap();
        assert!(matches!(error(floats.bitwise_and(&floats)), Error::UnsupportedDType { .. }));
        let wide = Tensor::new([[1u8, 2, 4]], device).unwrap().bitwise_or(&Tensor::new([[8u8], [16]], device).unwrap());
        assert_eq!(wide.unwrap().to_vec2::<u8>().unwrap(), [[9, 10, 12], [17, 18, 20]]);
    });
}

/// The entry that stands at a place of a padded axis; `None` for the number.
fn source(mode: PadMode, place: isize, size: isize) -> Option<usize> {
    let at = match mode {
        PadMode::Replicate => place.clamp(0, size - 1),
        PadMode::Circular => place.rem_euclid(size),
        PadMode::Reflect if place < 0 => -place,
        PadMode::Reflect if place >= size => 2 * size - 2 - place,
        _ => place,
    };
    usize::try_from(at).ok().filter(|&at| at < size as usize)
}

fn padded<T: Native>(device: &Device) {
    let x = Host::<T>::sample(&[2, 4, 5], 3);
    let views = [put(&x, device), put(&x.permute(&[0, 2, 1]), device).transpose(1, 2).unwrap()];
    for mode in [PadMode::Constant(3.), PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        for pads in [vec![(1, 2), (3, 0)], vec![(0, 4)], vec![(0, 1), (2, 2), (0, 0)], vec![]] {
            if pads.len() == 3 && mode == PadMode::Reflect && pads[0].1 > 1 {
                continue;
            }
            let lead = 3 - pads.len();
            let pad = |axis: usize| axis.checked_sub(lead).map_or((0, 0), |i| pads[i]);
            let dims: Vec<usize> = (0..3).map(|axis| x.dims[axis] + pad(axis).0 + pad(axis).1).collect();
            let want = Host::from_fn(&dims, |at| {
                let from: Option<Vec<usize>> = (0..3)
                    .map(|axis| source(mode, at[axis] as isize - pad(axis).0 as isize, x.dims[axis] as isize))
                    .collect();
                from.map_or(T::from_f64(3.), |from| x.at(&from))
            });
            for view in &views {
                assert_same(&format!("{mode:?} {pads:?}"), &view.pad(&pads, mode).unwrap(), &want);
            }
        }
    }
}

#[test]
fn padding_is_what_its_mode_says() {
    each(|device| {
        padded::<f32>(device);
        padded::<u8>(device);
        let x = Tensor::zeros((2, 3), DType::F32, device).unwrap();
        assert!(matches!(error(x.pad(&[(1, 1); 3], PadMode::Reflect)), Error::Argument { .. }));
        assert!(matches!(error(x.pad(&[(3, 0)], PadMode::Reflect)), Error::Shape { .. }));
        assert!(matches!(error(x.pad(&[(4, 0)], PadMode::Circular)), Error::Shape { .. }));
        for mode in [PadMode::Constant(0.), PadMode::Circular, PadMode::Replicate] {
            assert!(matches!(error(x.pad(&[(usize::MAX, 1)], mode)), Error::SizeOverflow { .. }));
        }
        let none = Tensor::zeros((0, 3), DType::F32, device).unwrap();
        assert!(matches!(error(none.pad(&[(1, 0), (0, 0)], PadMode::Replicate)), Error::Shape { .. }));
        assert_eq!(none.pad(&[(1, 0), (0, 2)], PadMode::Constant(1.)).unwrap().dims(), [1, 5]);
    });
}

#[test]
fn dots_stand_for_the_other_axes() {
    each(|device| {
        let a = put(&Host::<f64>::tame(&[2, 3, 4, 5], 1), device);
        let b = put(&Host::<f64>::tame(&[3, 5, 2], 2), device);
        let one = put(&Host::<f64>::tame(&[2, 1, 5, 2], 3), device);
        let same = |equation: &str, operands: &[&Tensor], want: Result<Tensor>| {
            let (got, want) = (Tensor::einsum(equation, operands).unwrap(), want.unwrap());
            assert_eq!(got.dims(), want.dims(), "{equation}");
            let far = got.sub(&want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
            assert!(far < 1e-12, "{equation}");
        };
        same("...ij,...jk->...ik", &[&a, &b], a.broadcast_matmul(&b));
        same("...ij,...jk", &[&a, &one], a.broadcast_matmul(&one));
        same("...j->...", &[&a], a.sum(D::Minus1));
        same("i...->...i", &[&a], a.permute((1, 2, 3, 0)));
        same("...", &[&a], a.copy());
        same("...i->i", &[&a], a.sum((0, 1, 2)));
        same("ij...,j->i...", &[&a, &b.get(0).unwrap().get_on_dim(1, 0).unwrap().narrow(0, 0, 3).unwrap()], {
            let line = b.get(0).unwrap().get_on_dim(1, 0).unwrap().narrow(0, 0, 3).unwrap();
            a.broadcast_mul(&line.reshape((3, 1, 1)).unwrap()).unwrap().sum(1)
        });
        for wrong in ["...i...->i", "..i->i", "i->...i", "...ijklm->i"] {
            assert!(matches!(error(Tensor::einsum(wrong, &[&a])), Error::Argument { .. }), "{wrong}");
        }
    });
}

#[test]
fn counts_and_draws() {
    each(|device| {
        let x = Tensor::new([0f32, 0.1, 0.5, 0.5, 1., 1.1, -0.1, f32::NAN], device).unwrap();
        assert_eq!(x.histc(4, 0., 1.).unwrap().to_vec1::<f32>().unwrap(), [2., 0., 2., 1.]);
        let y = Tensor::new([[1f64, 2.], [3., 5.]], device).unwrap();
        assert_eq!(y.histc(2, 0., 0.).unwrap().to_vec1::<f64>().unwrap(), [2., 2.]);
        assert!(matches!(error(x.histc(0, 0., 1.)), Error::Argument { .. }));
        assert!(matches!(error(x.histc(3, 1., 0.)), Error::Argument { .. }));
        let weights = Tensor::new([[0f32, 1., 3.], [5., 0., 0.]], device).unwrap();
        let drawn = weights.multinomial(4000, true).unwrap().to_vec2::<i64>().unwrap();
        assert!(drawn[0].iter().all(|&i| i > 0) && drawn[1].iter().all(|&i| i == 0));
        let often = drawn[0].iter().filter(|&&i| i == 2).count();
        assert!((2800..3200).contains(&often), "{often} of 4000");
        let pairs = Tensor::ones((100, 3), DType::F64, device).unwrap().multinomial(3, false).unwrap();
        for mut row in pairs.to_vec2::<i64>().unwrap() {
            row.sort_unstable();
            assert_eq!(row, [0, 1, 2]);
        }
        assert!(matches!(error(weights.multinomial(4, false)), Error::Argument { .. }));
        // Rows that so many cannot be drawn from, and what is no weight.
        assert!(matches!(error(weights.multinomial(2, false)), Error::Argument { argument: "weights", .. }));
        for wrong in [0., -1., f32::NAN, f32::INFINITY] {
            let rows = Tensor::new([[0f32, 1., 3.], [wrong, 0., 0.]], device).unwrap();
            assert!(matches!(error(rows.multinomial(2, true)), Error::Argument { argument: "weights", .. }), "{wrong}");
            assert!(
                matches!(error(rows.multinomial(1, false)), Error::Argument { argument: "weights", .. }),
                "{wrong}"
            );
        }
        assert_eq!(weights.narrow(0, 0, 0).unwrap().multinomial(2, true).unwrap().dims(), [0, 2]);
        if !matches!(device, Device::Cpu) {
            // Nothing is read while a section is captured.
            let draw = || weights.multinomial(2, true);
            drop((draw().unwrap(), draw().unwrap()));
            let (graph, drawn) = device.capture(draw).unwrap();
            graph.replay().unwrap();
            assert_eq!(drawn.to_vec2::<i64>().unwrap()[1], [0, 0]);
        }
        let normal = Tensor::truncated_normal(1f32, 0.5, 5000, device).unwrap().to_vec1::<f32>().unwrap();
        assert!(normal.iter().all(|x| (x - 1.).abs() <= 1.0001));
        let mean = normal.iter().sum::<f32>() / 5000.;
        assert!((mean - 1.).abs() < 0.05, "{mean}");
    });
}

/// The cases of the gradient check.
pub(crate) fn gradients() -> Vec<Case> {
    let spread = |dims: &[usize], low: f64, high: f64| {
        let mut i = 0;
        Host::from_fn(dims, |_| {
            i += 1;
            low + (high - low) * ((i * 29 % 67) as f64 / 67.)
        })
    };
    let case = |name, inputs: Vec<Host<f64>>, run: Run| Case {
        name,
        how: "special",
        inputs,
        run,
        step: 1e-5,
        tolerance: 1e-6,
    };
    let cube = || spread(&[2, 3, 4], -2., 2.);
    vec![
        case("lgamma", vec![spread(&[2, 3], -0.9, -0.1)], |x| x[0].lgamma()),
        case("digamma", vec![spread(&[2, 3], 1., 2.)], |x| x[0].digamma()?.mul(&x[0].zeros_like()?)?.add(&x[0])),
        case("pad", vec![cube()], |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Constant(2.))?.sqr()),
        case("pad", vec![cube()], |x| x[0].pad(&[(2, 1), (1, 3)], PadMode::Reflect)?.sqr()),
        case("pad", vec![cube()], |x| x[0].pad(&[(2, 1), (1, 3)], PadMode::Circular)?.sqr()),
        case("pad", vec![cube()], |x| x[0].pad(&[(1, 4)], PadMode::Replicate)?.sqr()),
        case("einsum", vec![cube(), spread(&[4, 2], -1., 1.)], |x| Tensor::einsum("...ij,jk->...ik", &[&x[0], &x[1]])),
    ]
}

#[test]
fn gradients_match_differences() {
    check_all(gradients());
}
