//! Functions composed of kernels against those of std, on every form of operand and at the ends of their ranges.

use ndgc::{Device, Error, Result, Tensor};

use crate::ops::cases::for_types;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, forms, put, shapes, values};

struct Case {
    name: &'static str,
    run: fn(&Tensor) -> Result<Tensor>,
    reference: fn(f64) -> f64,
}

macro_rules! cases {
    ($($name:ident, $reference:expr;)*) => {
        vec![$(Case { name: stringify!($name), run: |x| x.$name(), reference: $reference }),*]
    };
}

fn functions() -> Vec<Case> {
    cases! {
        expm1, f64::exp_m1;
        log1p, f64::ln_1p;
        log2, f64::log2;
        log10, f64::log10;
        ln, f64::ln;
        square, |x| x * x;
        rsqrt, |x| 1. / x.sqrt();
        tan, f64::tan;
        asin, f64::asin;
        acos, f64::acos;
        atan, f64::atan;
        sinh, f64::sinh;
        cosh, f64::cosh;
        asinh, f64::asinh;
        acosh, f64::acosh;
        atanh, f64::atanh;
        softplus, |x| x.max(0.) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0. };
        frac, f64::fract;
        floor, f64::floor;
        ceil, f64::ceil;
        round, f64::round;
        trunc, f64::trunc;
    }
}

/// Numbers at which formulas break.
const EDGES: [f64; 27] = [
    0.,
    -0.,
    1e-30,
    -1e-30,
    1e-8,
    -1e-8,
    1e-4,
    0.1,
    -0.1,
    0.499,
    0.5,
    -0.5,
    0.75,
    0.999,
    1.,
    -1.,
    1.5,
    -1.5,
    2.5,
    -2.5,
    20.,
    -20.,
    4.2e6,
    1e9,
    -1e9,
    1e17,
    f64::INFINITY,
];

fn same<T: Native>(case: &Case, form: &str, x: &Tensor, host: &Host<T>) {
    let want = host.map(|x| T::from_f64((case.reference)(x.to_f64())));
    assert_same(&format!("{} of {} {form}", case.name, T::DTYPE), &(case.run)(x).unwrap(), &want);
}

#[test]
fn composed_functions_match_std_on_every_form() {
    fn body<T: Native>(device: &Device) {
        for case in functions() {
            for operand in forms::<T>(device, 5).iter().chain(&shapes(device, 6)) {
                same(&case, operand.form, &operand.tensor, &operand.host);
            }
        }
    }
    each(|device| for_types!(device, body, f32, f64));
}

#[test]
fn composed_functions_match_std_at_the_ends_of_their_ranges() {
    fn body<T: Native>(device: &Device) {
        let mut data: Vec<T> = EDGES.iter().map(|&x| T::from_f64(x)).collect();
        data.extend([T::from_f64(f64::NEG_INFINITY), T::from_f64(f64::NAN)]);
        let host = Host { dims: vec![data.len()], data };
        for case in functions() {
            // The sine of huge numbers is the device's own.
            let host =
                if case.name == "tan" { Host { dims: vec![22], data: host.data[..22].to_vec() } } else { host.clone() };
            same(&case, "edges", &put(&host, device), &host);
        }
    }
    each(|device| for_types!(device, body, f32, f64));
}

#[test]
fn small_numbers_keep_their_digits() {
    each(|device| {
        let x = Tensor::new([1e-12, -1e-12, 3e-5], device).unwrap();
        for case in functions()
            .iter()
            .filter(|case| ["expm1", "log1p", "asin", "atan", "sinh", "asinh", "atanh", "tan"].contains(&case.name))
        {
            for (got, x) in values::<f64>(&(case.run)(&x).unwrap()).iter().zip(values::<f64>(&x)) {
                let want = (case.reference)(x);
                assert!((got / want - 1.).abs() < 2e-15, "{} of {x}: {got}, not {want}", case.name);
            }
        }
    });
}

#[test]
fn rounding_keeps_the_sign_of_zero_and_leaves_integers_alone() {
    each(|device| {
        let x = Tensor::new([-0.2f32, -0.0, 0.2], device).unwrap();
        for (name, rounded) in [("trunc", x.trunc()), ("ceil", x.ceil()), ("round", x.round())] {
            let signs: Vec<bool> = values::<f32>(&rounded.unwrap()).iter().map(|x| x.is_sign_negative()).collect();
            assert_eq!(signs, [true, true, false], "{name}");
        }
        let ids = Tensor::new([3i64, -4], device).unwrap();
        assert!(ids.floor().unwrap().is_same(&ids));
        assert!(matches!(error(ids.expm1()), Error::UnsupportedDType { op: "expm1", .. }));
        let x = Tensor::new([1.2345f64, -1250.], device).unwrap();
        assert_eq!(values::<f64>(&x.round_to(2).unwrap()), [1.23, -1250.]);
        assert_eq!(values::<f64>(&x.round_to(-2).unwrap()), [0., -1300.]);
    });
}

#[test]
fn whole_powers_are_right_for_every_dtype() {
    fn body<T: Native>(device: &Device) {
        let host = Host::<T>::tame(&[3, 4], 9);
        for power in [0, 1, 2, 3, 7] {
            let want = host.map(|x| (0..power).fold(T::from_f64(1.), |product, _| product.times(x)));
            assert_same("powi", &put(&host, device).powi(power).unwrap(), &want);
        }
    }
    each(|device| {
        for_types!(device, body, u8, u32, i64, f32, f64);
        let x = Tensor::new([3u8, 2], device).unwrap();
        let long = (0..300).fold(1u8, |product, _| product.wrapping_mul(3));
        assert_eq!(values::<u8>(&x.powi(300).unwrap()), [long, 0]);
        assert!(matches!(error(x.powi(-1)), Error::Argument { op: "powi", .. }));
    });
}

#[test]
fn clamps_and_fused_arithmetic_match_loops() {
    fn body<T: Native>(device: &Device) {
        for operand in forms::<T>(device, 11).iter().chain(&shapes(device, 12)) {
            let x = &operand.tensor;
            let two = T::from_f64(2.);
            assert_same("clamp_min", &x.clamp_min(2.).unwrap(), &operand.host.map(|x| x.larger(two)));
            assert_same("clamp_max", &x.clamp_max(2.).unwrap(), &operand.host.map(|x| x.smaller(two)));
        }
        let [a, b, c] = [1, 2, 3].map(|seed| Host::<T>::tame(&[2, 3], seed));
        let [x, y, z] = [&a, &b, &c].map(|host| put(host, device));
        let with = |f: fn(T, T, T) -> T| Host {
            dims: vec![2, 3],
            data: (0..6).map(|i| f(a.data[i], b.data[i], c.data[i])).collect(),
        };
        assert_same(
            "addcmul",
            &x.addcmul(&y, &z, 2.).unwrap(),
            &with(|a, b, c| a.plus(b.times(c).times(T::from_f64(2.)))),
        );
        assert_same(
            "addcdiv",
            &x.addcdiv(&y, &z, 2.).unwrap(),
            &with(|a, b, c| a.plus(b.over(c).times(T::from_f64(2.)))),
        );
    }
    each(|device| {
        for_types!(device, body, u8, u32, i64, f32, f64);
        let (a, b) = (Tensor::new([1f32, -3.], device).unwrap(), Tensor::new([f32::MAX, 5.], device).unwrap());
        assert_eq!(values::<f32>(&a.lerp(&b, 0.).unwrap())[1], -3.);
        assert_eq!(values::<f32>(&a.lerp(&b, 1.).unwrap()), [f32::MAX, 5.]);
        assert!(matches!(error(a.clamp_min(f64::NAN)), Error::Argument { op: "clamp_min", .. }));
    });
}
