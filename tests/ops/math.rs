//! Rounding, whole powers and fused arithmetic; and the functions of the table that std has, to the last places.

use ndgc::{DType, Device, Error, Result, Tensor, TensorExt, Var, bf16, f16};

use crate::ops::cases::for_types;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, f64s, forms, put, shapes, values};

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

/// What is added is a number of the dtype; the product and the quotient that it is a part of are not.
#[test]
fn fused_arithmetic_of_halves_is_rounded_once() {
    each(|device| {
        let of = |x: f32| Tensor::new([x], device).unwrap().to_dtype(DType::F16).unwrap();
        let number = |x: Tensor| values::<f32>(&x.to_dtype(DType::F32).unwrap());
        assert_eq!(number(of(1.).addcmul(&of(512.), &of(512.), 0.0625).unwrap()), [16_384.]);
        assert_eq!(number(of(1.).addcdiv(&of(512.), &of(1. / 512.), 0.0625).unwrap()), [16_384.]);
        let single = Tensor::new([1f32], device).unwrap();
        assert!(matches!(error(of(1.).addcmul(&single, &single, 1.)), Error::DTypeMismatch { op: "addcmul", .. }));
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

/// Broken by: a sum of two rounded parts, which between equal numbers is another one.
#[test]
fn what_lies_between_two_numbers_is_that_of_pytorch_to_the_last_bit() {
    each(|device| {
        let a: Vec<f32> = (1..1000).map(|i| i as f32 / 7.).collect();
        let b: Vec<f32> = a.iter().map(|a| 100. - a * 0.3).collect();
        let [x, y] = [&a, &b].map(|all| Tensor::from_slice(all, 999, device).unwrap());
        for weight in [0f64, 0.125, 0.3, 0.5, 0.75, 0.9, 1., -0.3, -0.7, 1.6] {
            let single = weight as f32;
            let near = |(a, b): (&f32, &f32)| match single.abs() < 0.5 {
                true => a + single * (b - a),
                false => b - (b - a) * (1. - single),
            };
            let want: Vec<f32> = a.iter().zip(&b).map(near).collect();
            assert_eq!(values::<f32>(&x.lerp(&y, weight).unwrap()), want, "{weight}");
            for dtype in [DType::F16, DType::BF16, DType::F64] {
                let same = x.to_dtype(dtype).unwrap();
                let all = [same.lerp(&same, weight), same.copy()];
                let [found, want] = all.map(|x| values::<f32>(&x.unwrap().to_dtype(DType::F32).unwrap()));
                assert_eq!(found, want, "{dtype:?}, {weight}");
            }
        }
        let half = x.to_dtype(DType::F16).unwrap();
        assert!(matches!(error(half.lerp(&x, 0.5)), Error::DTypeMismatch { op: "lerp", .. }));
        let (x, y) = (f64s(device, &[0., f64::INFINITY], 2), f64s(device, &[f64::INFINITY, 0.], 2));
        for (weight, place) in [(0.25, 0), (0.75, 1)] {
            let between = values::<f64>(&x.lerp(&y, weight).unwrap());
            assert!(between[place] == f64::INFINITY && between[1 - place].is_nan(), "{between:?}");
        }
        let x = Var::from_vec(vec![1f64, 3.], 2, device).unwrap();
        for weight in [0.25, 0.75] {
            let grads = x.lerp(&x.sqr().unwrap(), weight).unwrap().sum_all().unwrap().backward().unwrap();
            let want = [1., 3.].map(|x| 1. - weight + weight * 2. * x);
            assert_eq!(values::<f64>(grads.get(&x).unwrap()), want);
            // A share of an infinite gradient is infinite.
            let y = Var::from_vec(vec![2f64, 2.], 2, device).unwrap();
            let steep = x.lerp(&y, weight).unwrap().affine(f64::INFINITY, 0.).unwrap();
            let grads = steep.sum_all().unwrap().backward().unwrap();
            for var in [&x, &y] {
                assert_eq!(values::<f64>(grads.get(var).unwrap()), [f64::INFINITY; 2]);
            }
        }
    });
}

/// A function of the table, those of std for both types, and by how many units in the last place f32 and f64 may differ
/// on the host.
type OfStd = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f32) -> f32, fn(f64) -> f64, [u64; 2]);

macro_rules! of_std {
    ($($name:ident $std:ident $bound:literal;)*) => {
        [$((stringify!($name), |x| x.$name(), |x| x.$std(), |x| x.$std(), [$bound, 0])),*]
    };
}

const OF_STD: [OfStd; 23] = of_std! {
    abs abs 0;
    recip recip 0;
    sqrt sqrt 0;
    floor floor 0;
    ceil ceil 0;
    round round 0;
    trunc trunc 0;
    frac fract 0;
    log2 log2 0;
    log10 log10 0;
    sin sin 0;
    cos cos 0;
    tan tan 0;
    asin asin 0;
    acos acos 0;
    atan atan 0;
    sinh sinh 0;
    cosh cosh 0;
    atanh atanh 0;
    // Vectors of f32 have their own.
    exp exp 2;
    log ln 2;
    ln ln 2;
    tanh tanh 2;
};

/// Where std is infinite in the upper half of the range, or loses digits near 1; and what singles have vectors of.
const BESIDE_STD: [OfStd; 4] = [
    ("expm1", |x| x.expm1(), f32::exp_m1, f64::exp_m1, [2, 0]),
    ("log1p", |x| x.log1p(), f32::ln_1p, f64::ln_1p, [2, 0]),
    ("asinh", |x| x.asinh(), |x| asinh(x.into()) as f32, asinh, [2, 2]),
    ("acosh", |x| x.acosh(), |x| acosh(x.into()) as f32, acosh, [2, 2]),
];

fn asinh(x: f64) -> f64 {
    if x.abs() < 1e100 { x.asinh() } else { (x.abs().ln() + std::f64::consts::LN_2).copysign(x) }
}

fn acosh(x: f64) -> f64 {
    let t = if x < 1. { f64::NAN } else { x - 1. };
    if t.is_nan() || x < 1e8 { (t + (t * (x + 1.)).sqrt()).ln_1p() } else { x.ln() + std::f64::consts::LN_2 }
}

/// Numbers of every size: special ones, neighbours of halves and of the ends of domains, and a grid.
macro_rules! grid {
    ($t:ty) => {{
        let mut all: Vec<$t> = vec![
            0.0,
            1e-40,
            <$t>::MIN_POSITIVE,
            <$t>::EPSILON,
            1.0 - <$t>::EPSILON,
            1.0,
            1.0 + <$t>::EPSILON,
            0.5 - <$t>::EPSILON / 4.0,
            0.5,
            1.5,
            2.5,
            8_388_607.5,
            8_388_609.0,
            ((1u64 << 52) as f64 - 0.5) as _,
            1e17,
            1e30,
            <$t>::MAX,
            <$t>::INFINITY,
        ];
        all.extend((1..=400).map(|i| i as $t * 0.043));
        let negative: Vec<$t> = all.iter().map(|x| -x).collect();
        all.extend(negative);
        all.push(<$t>::NAN);
        all
    }};
}

/// Whether numbers given as their bits are at most so many numbers of their type apart.
fn near(got: u64, want: u64, sign: u64, bound: u64) -> bool {
    got.abs_diff(want) <= bound || (got | want) == sign && bound > 0
}

#[test]
fn functions_of_the_table_are_those_of_std() {
    each(|device| {
        let is_host = matches!(device, Device::Cpu | Device::Sim(_));
        let (singles, doubles) = (grid!(f32), grid!(f64));
        let (x, y) = (Tensor::new(&singles[..], device).unwrap(), Tensor::new(&doubles[..], device).unwrap());
        // Another library's functions; std itself is off by up to 8 where it has formulas of its own (atanh).
        let other = if is_host { 0 } else { 16 };
        for (name, run, single, double, bounds) in OF_STD.into_iter().chain(BESIDE_STD) {
            // The last rows of few elements are computed without vectors.
            for at in [0..singles.len(), 400..411] {
                let part = x.narrow(0, at.start, at.len()).and_then(|x| run(&x)).unwrap();
                for (got, &x) in values::<f32>(&part).into_iter().zip(&singles[at]) {
                    let want = single(x);
                    let same = near(got.to_bits().into(), want.to_bits().into(), 1 << 31, bounds[0] + other);
                    assert!(same || (got.is_nan() && want.is_nan()), "{name} of {x:e}: {got:e}, not {want:e}");
                }
            }
            for (got, &x) in values::<f64>(&run(&y).unwrap()).into_iter().zip(&doubles) {
                let want = double(x);
                let same = near(got.to_bits(), want.to_bits(), 1 << 63, bounds[1] + other);
                assert!(same || (got.is_nan() && want.is_nan()), "{name} of {x:e}: {got:e}, not {want:e}");
            }
            if is_host && bounds[0] == 0 {
                halves(name, run, single, &singles, device);
            }
        }
    });
}

/// Halves compute in f32, and are rounded once.
fn halves(name: &str, run: fn(&Tensor) -> Result<Tensor>, single: fn(f32) -> f32, grid: &[f32], device: &Device) {
    let x: Vec<f16> = grid.iter().map(|&x| f16::from_f32(x)).collect();
    let want = x.iter().map(|x| f16::from_f32(single(x.to_f32())));
    for ((got, want), x) in values::<f16>(&run(&Tensor::new(&x[..], device).unwrap()).unwrap()).iter().zip(want).zip(&x)
    {
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{name} of {x}: {got}, not {want}");
    }
    let x: Vec<bf16> = grid.iter().map(|&x| bf16::from_f32(x)).collect();
    let want = x.iter().map(|x| bf16::from_f32(single(x.to_f32())));
    for ((got, want), x) in
        values::<bf16>(&run(&Tensor::new(&x[..], device).unwrap()).unwrap()).iter().zip(want).zip(&x)
    {
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{name} of {x}: {got}, not {want}");
    }
}
