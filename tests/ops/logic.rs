//! Questions about elements, masks, and divisions with a remainder.

use ndgc::{DType, Device, Error, Tensor, TensorExt};

use crate::ops::cases::for_types;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, forms, put, shapes, values};

#[test]
fn questions_and_logic_match_loops_on_every_form() {
    fn body<T: Native>(device: &Device) {
        let (one, two) = (forms::<T>(device, 1), forms::<T>(device, 2));
        for (a, b) in one.iter().zip(two.iter().rev()).chain(shapes(device, 3).iter().zip(&shapes(device, 4))) {
            let mask = |f: &dyn Fn(f64) -> bool| a.host.map(|x| u8::from(f(x.to_f64())));
            assert_same("is_nan", &a.tensor.is_nan().unwrap(), &mask(&f64::is_nan));
            assert_same("is_inf", &a.tensor.is_inf().unwrap(), &mask(&f64::is_infinite));
            assert_same("is_finite", &a.tensor.is_finite().unwrap(), &mask(&f64::is_finite));
            assert_same("logical_not", &a.tensor.logical_not().unwrap(), &mask(&|x| x == 0.));
            let on = |x: T| x.to_f64() != 0.;
            let pairs = |f: fn(bool, bool) -> bool| Host {
                dims: a.host.dims.clone(),
                data: a.host.data.iter().zip(&b.host.data).map(|(&x, &y)| u8::from(f(on(x), on(y)))).collect(),
            };
            assert_same("and", &a.tensor.logical_and(&b.tensor).unwrap(), &pairs(|x, y| x && y));
            assert_same("or", &a.tensor.logical_or(&b.tensor).unwrap(), &pairs(|x, y| x || y));
            assert_same("xor", &a.tensor.logical_xor(&b.tensor).unwrap(), &pairs(|x, y| x != y));
        }
    }
    each(|device| for_types!(device, body, u8, u32, i64, f32, f64));
}

/// Rounded down, and the rest of that.
fn floored(x: i64, y: i64) -> (i64, i64) {
    let (q, r) = (x.wrapping_div(y), x.wrapping_rem(y));
    if r != 0 && (r < 0) != (y < 0) { (q - 1, r + y) } else { (q, r) }
}

#[test]
fn divisions_of_integers_are_exact() {
    each(|device| {
        let (mut x, mut y) = (vec![i64::MIN, i64::MAX, 7], vec![-1, i64::MIN, 0]);
        for a in -5..=5 {
            for b in (-3..=3).filter(|&b| b != 0) {
                x.push(a);
                y.push(b);
            }
        }
        let (a, b) = (Tensor::new(&x, device).unwrap(), Tensor::new(&y, device).unwrap());
        let want = |by_zero: i64, f: fn(i64, i64) -> i64| -> Vec<i64> {
            x.iter().zip(&y).map(|(&x, &y)| if y == 0 { by_zero } else { f(x, y) }).collect()
        };
        assert_eq!(values::<i64>(&a.fmod(&b).unwrap()), want(7, i64::wrapping_rem));
        assert_eq!(values::<i64>(&a.rem(&b).unwrap()), want(7, |x, y| floored(x, y).1));
        assert_eq!(values::<i64>(&a.floor_div(&b).unwrap()), want(0, |x, y| floored(x, y).0));
        let (a, b) = (Tensor::new([200u8, 7], device).unwrap(), Tensor::new([7u8, 200], device).unwrap());
        assert_eq!(values::<u8>(&a.rem(&b).unwrap()), [4, 7]);
    });
}

#[test]
fn divisions_of_floats_are_exact_for_large_quotients() {
    each(|device| {
        let x = [5.5, -5.5, 5.5, -5.5, 1e300, 0.3, 1., f64::INFINITY, 3., -1e-20];
        let y = [2., 2., -2., -2., 0.7, 0.1, 0., 2., f64::INFINITY, 3.];
        let (a, b) = (Tensor::new(x, device).unwrap(), Tensor::new(y, device).unwrap());
        let close = |got: Vec<f64>, want: Vec<f64>| {
            assert!(got.iter().zip(&want).all(|(g, w)| g == w || g.is_nan() && w.is_nan()), "{got:?}, not {want:?}");
        };
        let pairs = || x.iter().zip(&y);
        close(values(&a.fmod(&b).unwrap()), pairs().map(|(x, y)| x % y).collect());
        let rem = |x: f64, y: f64| if x % y != 0. && (x % y < 0.) != (y < 0.) { x % y + y } else { x % y };
        close(values(&a.rem(&b).unwrap()), pairs().map(|(&x, &y)| rem(x, y)).collect());
        let small = values::<f64>(&a.floor_div(&b).unwrap());
        close(small[..4].to_vec(), vec![2., -3., -3., 2.]);
        assert_eq!((small[5], small[6], small[7], small[9]), (2., f64::INFINITY, f64::INFINITY, -1.));
        let empty = Tensor::zeros((0, 2), DType::F64, device).unwrap();
        assert_eq!(empty.rem(&empty).unwrap().dims(), [0, 2]);
        assert!(matches!(error(a.rem(&empty)), Error::ShapeMismatch { op: "rem", .. }));
        assert!(matches!(error(a.fmod(&a.to_dtype(DType::F32).unwrap())), Error::DTypeMismatch { op: "fmod", .. }));
    });
}

#[test]
fn masks_fill_and_select() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 7).iter().chain(&shapes(device, 8)) {
            let count = operand.host.data.len();
            let mask =
                Host { dims: operand.host.dims.clone(), data: (0..count).map(|i| u8::from(i % 3 == 1)).collect() };
            let on = put(&mask, device);
            let five = T::from_f64(5.);
            let filled = (0..count).map(|i| if i % 3 == 1 { five } else { operand.host.data[i] }).collect();
            let filled = Host { dims: mask.dims.clone(), data: filled };
            assert_same("masked_fill", &operand.tensor.masked_fill(&on, 5.).unwrap(), &filled);
            let data: Vec<T> = (0..count).filter(|i| i % 3 == 1).map(|i| operand.host.data[i]).collect();
            let chosen = Host { dims: vec![data.len()], data };
            assert_same("masked_select", &operand.tensor.masked_select(&on).unwrap(), &chosen);
        }
    }
    each(|device| {
        for_types!(device, body, u8, u32, i64, f32, f64);
        let x = Tensor::new([[1f32, 2.], [3., 4.]], device).unwrap();
        let row = Tensor::new([0u32, 9], device).unwrap();
        assert_eq!(values::<f32>(&x.masked_select(&row).unwrap()), [2., 4.]);
        assert_eq!(values::<f32>(&x.masked_fill(&row, 0.).unwrap()), [1., 0., 3., 0.]);
        assert!(matches!(error(x.masked_fill(&x, 0.)), Error::UnsupportedDType { op: "masked_fill", .. }));
        let long = Tensor::zeros(3, DType::U8, device).unwrap();
        assert!(matches!(error(x.masked_select(&long)), Error::ShapeMismatch { op: "masked_select", .. }));
    });
}
