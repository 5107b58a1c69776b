//! What holds of every dtype: conversion between all pairs, creation, reading, refusals.

use ndgc::nn::optim::{AdamW, Optimizer, ParamsAdamW};
use ndgc::{DType, Device, Error, F8E4M3, Tensor, TensorExt, Var, WithDType, bf16, f16};

use crate::ops::support::{alone, devices, each, error, values};

/// Runs a macro with every dtype's name and Rust type.
macro_rules! with_all {
    ($body:ident $($rest:tt)*) => {
        $body!($($rest)* Bool bool, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64, F8E4M3 F8E4M3,
            F16 f16, BF16 bf16, F32 f32, F64 f64)
    };
}

/// Values at which conversions differ: ends of ranges, halves between neighbours, what is no number.
fn edges<T: WithDType>() -> Vec<T> {
    let bits = [0, 1, 2, 3, 7, 8, 15, 16, 24, 31, 32, 53, 62, 63];
    let whole = bits.iter().flat_map(|&bits| [(1i128 << bits) - 1, 1 << bits, (1 << bits) + 1]);
    let ties = [2049, 2051, 65_504, 65_519, 65_520, 65_535, (1 << 62) + (1 << 54), (1 << 62) + (1 << 54) + 1];
    let whole: Vec<i128> = whole.chain(ties).flat_map(|x| [x, -x]).collect();
    if !T::DTYPE.is_float() {
        let fits = |x: &&i128| T::from_i128(**x).to_i128() == **x;
        return whole.iter().filter(fits).map(|&x| T::from_i128(x)).collect();
    }
    let special =
        [f64::NAN, f64::INFINITY, f64::MAX, 1e300, 1e39, 3.4e38, 0.0, 0.1, 0.5, 1.5, 2.5, 254.99, 255.5, 127.5];
    let small = [1e-3, 6e-5, 6.1e-5, 5.97e-8, 5.96e-8, 2.98e-8, 2.981e-8, 1e-8, 1e-38, 1e-40, 1e-45, 7e-46, 5e-324];
    let ties = [1.0 + f64::EPSILON, 1.0 + 2f64.powi(-9), 1.0 + 2f64.powi(-11), 1.0 + 3.0 * 2f64.powi(-11)];
    let all = special.iter().chain(&small).chain(&ties).flat_map(|&x| [x, -x]);
    all.chain(whole.iter().map(|&x| x as f64)).map(T::from_f64).collect()
}

/// The bits of an element; one pattern for all NaN.
fn bits<T: WithDType>(x: T) -> (u64, i128) {
    match T::DTYPE.is_float() {
        true if x.to_f64().is_nan() => (1, 0),
        true => (x.to_f64().to_bits(), 0),
        false => (0, x.to_i128()),
    }
}

fn convert<S: WithDType, D: WithDType>(device: &Device) {
    let from = edges::<S>();
    let n = from.len();
    let source = Tensor::from_slice(&from, n, device).unwrap();
    let one = |x: S| if S::DTYPE.is_float() { D::from_f64(x.to_f64()) } else { D::from_i128(x.to_i128()) };
    let got = source.to_dtype(D::DTYPE).unwrap();
    assert_eq!(got.dtype(), D::DTYPE);
    for (&x, got) in from.iter().zip(values::<D>(&got)) {
        assert_eq!(bits(got), bits(one(x)), "{x:?} of {} as {}: {got:?}", S::DTYPE, D::DTYPE);
    }
    // Every other one, backwards, repeated: what a view of any layout gives.
    let twice = Tensor::stack(&[&source, &source], 1).unwrap().t().unwrap();
    let got = twice.narrow(0, 1, 1).unwrap().broadcast_as((3, n)).unwrap().to_dtype(D::DTYPE).unwrap();
    let want: Vec<_> = (0..3).flat_map(|_| from.iter().map(|&x| bits(one(x)))).collect();
    assert_eq!(values::<D>(&got).into_iter().map(bits).collect::<Vec<_>>(), want, "{} as {}", S::DTYPE, D::DTYPE);
}

#[test]
fn every_dtype_converts_to_every_other_at_the_edges_too() {
    macro_rules! pairs {
        ($device:ident; $($d:ident $t:ty),*) => {{
            fn from<S: WithDType>(device: &Device) {
                $(convert::<S, $t>(device);)*
            }
            $(from::<$t>($device);)*
        }};
    }
    each(|device| with_all!(pairs device;));
}

#[test]
fn conversions_of_primitive_types_are_those_of_rust() {
    macro_rules! pairs {
        ($device:expr; $($t:ty)*) => {{ $(one!($device, $t; u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);)* }};
    }
    macro_rules! one {
        ($device:expr, $from:ty; $($to:ty)*) => {{ $({
            let from = edges::<$from>();
            let got = Tensor::from_slice(&from, from.len(), $device).unwrap().to_dtype(<$to>::DTYPE).unwrap();
            #[allow(clippy::unnecessary_cast)]
            let want: Vec<_> = from.iter().map(|&x| bits(x as $to)).collect();
            assert_eq!(values::<$to>(&got).into_iter().map(bits).collect::<Vec<_>>(), want, "{} as {}", <$from>::DTYPE, <$to>::DTYPE);
        })* }};
    }
    alone(|| devices().iter().for_each(|device| pairs!(device; u8 u16 u32 u64 i8 i16 i32 i64 f32 f64)));
}

#[test]
fn halves_round_to_the_nearest_and_of_two_to_the_even_one() {
    let cases: [(f64, u16, u16); 16] = [
        (1.0, 0x3c00, 0x3f80),
        (-0.0, 0x8000, 0x8000),
        (65_504.0, 0x7bff, 0x4780),
        (65_519.999, 0x7bff, 0x4780),
        (65_520.0, 0x7c00, 0x4780),
        (f64::NEG_INFINITY, 0xfc00, 0xff80),
        (1.0 + 1.0 / 2048.0, 0x3c00, 0x3f80),
        (1.0 + 3.0 / 2048.0, 0x3c02, 0x3f80),
        (1.0 + 1.0 / 256.0, 0x3c04, 0x3f80),
        (1.0 + 3.0 / 256.0, 0x3c0c, 0x3f82),
        (2f64.powi(-24), 0x0001, 0x3380),
        (2f64.powi(-25), 0x0000, 0x3300),
        (2f64.powi(-25) * 1.001, 0x0001, 0x3300),
        (3.0 * 2f64.powi(-25), 0x0002, 0x33c0),
        (3.4e38, 0x7c00, 0x7f80),
        (1e-40, 0x0000, 0x0001),
    ];
    each(|device| {
        for dtype in [DType::F32, DType::F64] {
            let exact: Vec<_> =
                cases.iter().filter(|case| dtype == DType::F64 || f64::from(case.0 as f32) == case.0).collect();
            let from: Vec<f64> = exact.iter().map(|case| case.0).collect();
            let from = Tensor::from_vec(from, exact.len(), device).unwrap().to_dtype(dtype).unwrap();
            let got = values::<f16>(&from.to_dtype(DType::F16).unwrap());
            let brain = values::<bf16>(&from.to_dtype(DType::BF16).unwrap());
            for ((case, got), brain) in exact.iter().zip(got).zip(brain) {
                assert_eq!((got.to_bits(), brain.to_bits()), (case.1, case.2), "{} of {dtype}", case.0);
            }
        }
        let nan = Tensor::new([f32::NAN, -f32::NAN], device).unwrap();
        assert!(values::<f16>(&nan.to_dtype(DType::F16).unwrap()).iter().all(|x| x.is_nan()));
        assert!(values::<bf16>(&nan.to_dtype(DType::BF16).unwrap()).iter().all(|x| x.is_nan()));
    });
}

#[test]
fn floats_of_8_bits_round_to_the_nearest_and_stay_at_their_end() {
    let all: Vec<F8E4M3> = (0..=u8::MAX).map(F8E4M3::from_bits).collect();
    // What is halfway between neighbours, and what lies on either side of it.
    let mut between: Vec<f32> =
        all[..0x7e].iter().zip(&all[1..0x7f]).map(|(a, b)| (a.to_f32() + b.to_f32()) / 2.0).collect();
    between.extend([448.0, 463.9, 464.0, 464.1, 480.0, 1e9, f32::MAX, f32::INFINITY, 0.0, 1e-30, 1e-45]);
    let near: Vec<f32> = between.iter().flat_map(|&x| [x, x.next_up(), x.next_down()]).flat_map(|x| [x, -x]).collect();
    each(|device| {
        let x = Tensor::from_slice(&all, 256, device).unwrap();
        let same = |back: Tensor| {
            for (x, y) in all.iter().zip(values::<F8E4M3>(&back.to_dtype(DType::F8E4M3).unwrap())) {
                assert!(x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(), "{x:?} came back as {y:?}");
            }
        };
        for wide in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::F8E4M3] {
            same(x.to_dtype(wide).unwrap());
        }
        let bits = |x: &Tensor| values::<F8E4M3>(x).iter().map(F8E4M3::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&x.copy().unwrap()), (0..=u8::MAX).collect::<Vec<_>>());
        let got = Tensor::from_slice(&near, near.len(), device).unwrap().to_dtype(DType::F8E4M3).unwrap();
        for (x, got) in near.iter().zip(values::<F8E4M3>(&got)) {
            assert!(got.to_bits() == F8E4M3::from_f32(*x).to_bits() || x.is_nan() && got.is_nan(), "{x:e}: {got:?}");
        }
        let sum = x.add(&x).unwrap();
        for (x, got) in all.iter().zip(values::<F8E4M3>(&sum)) {
            let want = F8E4M3::from_f32(x.to_f32() + x.to_f32());
            assert!(got.to_bits() == want.to_bits() || x.is_nan() && got.is_nan(), "{x:?} twice: {got:?}");
        }
    });
}

fn made<T: WithDType + ndgc::NdLiteral<Elem = T>>(device: &Device)
where
    [T; 1]: ndgc::NdLiteral,
    [T; 2]: ndgc::NdLiteral,
    [[T; 2]; 2]: ndgc::NdLiteral,
{
    let (zero, one) = (T::default(), T::from_i128(1));
    let scalar = Tensor::new(one, device).unwrap();
    assert_eq!((scalar.dtype(), scalar.to_scalar::<T>().unwrap()), (T::DTYPE, one));
    assert_eq!(
        Tensor::new([[zero, one], [one, zero]], device).unwrap().to_vec2::<T>().unwrap(),
        [[zero, one], [one, zero]]
    );
    assert_eq!(values::<T>(&Tensor::full(one, 3, device).unwrap()), [one; 3]);
    assert_eq!(values::<T>(&Tensor::zeros(2, T::DTYPE, device).unwrap()), [zero; 2]);
    assert_eq!(values::<T>(&Tensor::ones(2, T::DTYPE, device).unwrap()), [one; 2]);
    assert_eq!(values::<T>(&Tensor::eye(2, T::DTYPE, device).unwrap()), [one, zero, zero, one]);
    let filled = scalar.zeros_like().unwrap().fill_(1.0).unwrap();
    assert!(filled.content_equals(&scalar).unwrap());
    assert_eq!(values::<T>(&scalar.full_like(0.0).unwrap()), [zero]);
    let bytes = vec![0; 2 * T::DTYPE.size_in_bytes()];
    assert_eq!(values::<T>(&Tensor::from_raw_buffer(&bytes, T::DTYPE, 2, device).unwrap()), [zero; 2]);
    let printed = Tensor::new([zero, one], device).unwrap().to_string();
    assert!(printed.contains(T::DTYPE.as_str()) && printed.starts_with('['), "{printed}");
    let joined = Tensor::cat(&[&filled.reshape(1).unwrap(), &Tensor::new([zero], device).unwrap()], 0).unwrap();
    assert_eq!(joined.flip(&[0]).unwrap().to_vec1::<T>().unwrap(), [zero, one]);
    assert_eq!(values::<u32>(&joined.argsort(0, false).unwrap()), [1, 0]);
    if device.is_cpu() {
        assert!(joined.with_slice(|slice: &[T]| slice == [one, zero]).unwrap());
    }
    assert_eq!(values::<T>(&joined.to_device(&Device::Cpu).unwrap()), [one, zero]);
}

#[test]
fn every_dtype_is_made_filled_joined_printed_and_read() {
    macro_rules! all {
        ($device:ident; $($d:ident $t:ty),*) => {{ $(made::<$t>($device);)* }};
    }
    each(|device| with_all!(all device;));
}

fn counted<T: WithDType>(device: &Device) {
    let number = |x: i128| T::from_i128(x);
    assert_eq!(values::<T>(&Tensor::arange(number(3), number(7), device).unwrap()), [3, 4, 5, 6].map(number));
    let step = Tensor::arange_step(number(1), number(8), number(3), device).unwrap();
    assert_eq!(values::<T>(&step), [1, 4, 7].map(number));
    let drawn = Tensor::rand(number(2), number(5), 200, device).unwrap();
    assert!(values::<T>(&drawn).iter().all(|&x| x >= number(2) && x < number(5)));
    let whole = values::<T>(&Tensor::randint(number(2), number(5), 200, device).unwrap());
    assert!([2, 3, 4].iter().all(|&x| whole.contains(&number(x))) && whole.iter().all(|&x| x < number(5)));
}

#[test]
fn every_dtype_of_numbers_counts_and_draws() {
    macro_rules! all {
        ($device:ident; $first:ident $none:ty, $($d:ident $t:ty),*) => {{ $(counted::<$t>($device);)* }};
    }
    each(|device| {
        with_all!(all device;);
        let end = u64::MAX;
        assert_eq!(values::<u64>(&Tensor::arange(end - 2, end, device).unwrap()), [end - 2, end - 1]);
        assert_eq!(values::<u64>(&Tensor::full(end, 2, device).unwrap()), [end; 2]);
        assert_eq!(values::<i64>(&Tensor::arange(i64::MAX - 1, i64::MAX, device).unwrap()), [i64::MAX - 1]);
        let high = values::<u64>(&Tensor::randint(end - 1, end, 9, device).unwrap());
        assert_eq!(high, [end - 1; 9]);
        for dtype in [DType::F8E4M3, DType::F16, DType::BF16] {
            let drawn = Tensor::zeros(2000, dtype, device).unwrap().randn_like(1.0, 2.0).unwrap();
            let mean = drawn.to_dtype(DType::F32).unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
            // More than six times the deviation of a mean of so many.
            assert!((mean - 1.0).abs() < 0.3 && drawn.dtype() == dtype, "{mean}");
            let inside = drawn.rand_like(1.0, 1.01).unwrap().to_dtype(DType::F64).unwrap();
            assert!(values::<f64>(&inside).iter().all(|&x| (1.0..1.01).contains(&x)));
        }
    });
}

type Run = fn(&Tensor) -> ndgc::Result<Tensor>;

#[test]
fn truth_values_choose_and_compare_but_refuse_arithmetic_by_name() {
    let refused: [(&str, Run); 20] = [
        ("neg", |x| x.neg()),
        ("abs", |x| x.abs()),
        ("sqr", |x| x.sqr()),
        ("relu", |x| x.relu()),
        ("sign_", |x| x.sign_()),
        ("affine", |x| x.affine(1., 0.)),
        ("affine_", |x| x.affine_(1., 0.)),
        ("clamp", |x| x.clamp(0., 1.)),
        ("add", |x| x.add(x)),
        ("sub", |x| x.sub(x)),
        ("mul", |x| x.mul(x)),
        ("div", |x| x.div(x)),
        ("pow", |x| x.pow(x)),
        ("add_", |x| x.add_(&x.copy()?)),
        ("sum", |x| x.sum(0)),
        ("sum_all", |x| x.sum_all()),
        ("mean", |x| x.mean(0)),
        ("matmul", |x| x.matmul(x)),
        ("exp", |x| x.exp()),
        ("index_add", |x| x.index_add(&Tensor::zeros(2, DType::U32, x.device())?, x, 0)),
    ];
    each(|device| {
        let x = Tensor::new([[true, false], [true, true]], device).unwrap();
        for (name, run) in refused {
            match error(run(&x)) {
                Error::UnsupportedDType { op, dtype: DType::Bool, .. } => assert_eq!(op, name),
                other => panic!("{name}: {other}"),
            }
        }
        assert!(matches!(error(Tensor::arange(false, true, device)), Error::UnsupportedDType { op: "arange", .. }));
        assert!(matches!(error(Tensor::rand(false, true, 2, device)), Error::UnsupportedDType { op: "rand", .. }));
        let y = x.t().unwrap();
        assert_eq!(values::<bool>(&x.maximum(&y).unwrap()), [true, true, true, true]);
        assert_eq!(values::<bool>(&x.minimum(&y).unwrap()), [true, false, false, true]);
        assert_eq!(values::<bool>(&x.min(1).unwrap()), [false, true]);
        assert_eq!(values::<bool>(&x.max_all().unwrap()), [true]);
        assert_eq!(values::<u32>(&x.argmin(1).unwrap()), [1, 0]);
        assert_eq!(values::<u8>(&x.eq(&y).unwrap()), [1, 0, 0, 1]);
        assert_eq!(values::<u8>(&x.gt(&y).unwrap()), [0, 0, 1, 0]);
        assert_eq!(values::<u8>(&x.logical_and(&y).unwrap()), [1, 0, 0, 1]);
        assert_eq!(values::<u8>(&x.logical_not().unwrap()), [0, 1, 0, 0]);
        assert_eq!(values::<u8>(&x.all(0).unwrap()), [1, 0]);
        assert_eq!(values::<bool>(&x.where_cond(&y, &x).unwrap()), [true, false, false, true]);
        let ids = Tensor::new([1u8, 0], device).unwrap();
        assert_eq!(values::<bool>(&x.index_select(&ids, 1).unwrap()), [false, true, true, true]);
        assert_eq!(values::<f32>(&x.to_dtype(DType::F32).unwrap()), [1., 0., 1., 1.]);
    });
}

#[test]
fn bytes_that_are_no_truth_values_are_refused() {
    each(|device| {
        let bad = Tensor::from_raw_buffer(&[0, 1, 2], DType::Bool, 3, device);
        assert!(matches!(error(bad), Error::Argument { op: "from_raw_buffer", .. }));
        let shared: std::sync::Arc<[u8]> = [0, 1, 255].into();
        let bad = Tensor::from_shared(shared.clone(), 0..3, DType::Bool, 3, device);
        assert!(matches!(error(bad), Error::Argument { op: "from_shared", .. }));
        let good = Tensor::from_shared(shared, 0..2, DType::Bool, 2, device).unwrap();
        assert_eq!(values::<bool>(&good), [false, true]);
    });
}

#[test]
fn halves_train_as_singles_do_to_their_accuracy() {
    each(|device| {
        for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            let points: Vec<f32> = (0..12).map(|i| (i * 7 % 5) as f32 / 2. - 1.).collect();
            let narrow = Tensor::from_vec(points, (4, 3), device).unwrap().to_dtype(dtype).unwrap();
            let wide = narrow.to_dtype(DType::F32).unwrap();
            let labels = Tensor::new([2i32, 0, 1, 1], device).unwrap();
            let near = |a: &Tensor, b: &Tensor, what: &str| {
                assert_eq!(a.dtype(), dtype, "{what}");
                assert!(a.to_dtype(DType::F32).unwrap().all_close(b, tolerance, tolerance).unwrap(), "{what}: {a} {b}");
            };
            near(&narrow.softmax(1).unwrap(), &wide.softmax(1).unwrap(), "softmax");
            near(&narrow.log_softmax(0).unwrap(), &wide.log_softmax(0).unwrap(), "log_softmax");
            let losses = [&narrow, &wide].map(|x| x.cross_entropy(&labels).unwrap());
            near(&losses[0], &losses[1], "cross_entropy");
            for velocity in [false, true] {
                let [param, grad, speed] = [0.5, 1., -0.25].map(|by| narrow.affine(by, 0.1).unwrap());
                let [wide_param, wide_grad, wide_speed] =
                    [&param, &grad, &speed].map(|x| x.to_dtype(DType::F32).unwrap());
                param.sgd_step_(&grad, velocity.then_some(&speed), 0.1, 0.9, 0.01).unwrap();
                wide_param.sgd_step_(&wide_grad, velocity.then_some(&wide_speed), 0.1, 0.9, 0.01).unwrap();
                near(&param, &wide_param, "sgd_step_");
                near(&speed, &wide_speed, "velocity");
            }
            let variable = Var::from_tensor(&narrow).unwrap();
            let loss = variable.as_tensor().cross_entropy(&labels).unwrap();
            let grads = loss.backward().unwrap();
            assert_eq!(grads.get(&variable).unwrap().dtype(), dtype);
            let mut adam =
                AdamW::new(vec![variable.clone()], ParamsAdamW { lr: 0.1, ..ParamsAdamW::default() }).unwrap();
            adam.step(&grads).unwrap();
            assert!(!variable.as_tensor().content_equals(&narrow).unwrap(), "a step changes the parameters");
        }
    });
}
