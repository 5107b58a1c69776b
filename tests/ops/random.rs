//! Random numbers: one stream for a seed, wherever and in whatever parts it is drawn; its distribution; its bounds.

use std::panic::{self, AssertUnwindSafe, catch_unwind};

use ndgc::{DType, Device, Error, Generator, NdManager, Tensor};

use crate::ops::support::{alone, check, devices, each, error, values};

const FLOATS: [DType; 2] = [DType::F32, DType::F64];

/// The numbers as doubles.
fn doubles(array: &Tensor) -> Vec<f64> {
    values(&array.to_dtype(DType::F64).unwrap())
}

#[test]
fn one_seed_gives_the_same_numbers_on_every_device() {
    alone(|| {
        for dtype in FLOATS {
            for n in [1, 3, 4, 63, 1001, 300_001] {
                let draw = |device: &Device| {
                    let mut random = Generator::new(42);
                    let drawn = [
                        random.uniform(-1., 2., n, dtype, device).unwrap(),
                        random.normal(0.5, 2., n, dtype, device).unwrap(),
                    ];
                    check(device);
                    drawn.map(|array| doubles(&array))
                };
                let [host, others @ ..] = &devices().iter().map(draw).collect::<Vec<_>>()[..] else { unreachable!() };
                for other in others {
                    assert!(host[0] == other[0], "{n} uniform numbers of {dtype}");
                    // The same words; but logarithm and sine are each device's own.
                    let allowed = if dtype == DType::F32 { 4e-6 } else { 1e-12 };
                    let furthest = host[1].iter().zip(&other[1]).map(|(a, b)| (a - b).abs()).fold(0., f64::max);
                    assert!(furthest < allowed, "{n} normal numbers of {dtype}: {furthest}");
                }
            }
        }
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let draw = |device: &Device| doubles(&Generator::new(1).uniform(0., 100., 999, dtype, device).unwrap());
            let drawn: Vec<_> = devices().iter().map(draw).collect();
            let cpu = &drawn[0];
            assert!(drawn.iter().all(|other| other == cpu), "{dtype}");
            assert!(cpu.iter().all(|&x| (0. ..100.).contains(&x)) && cpu.iter().any(|&x| x > 90.), "{dtype}");
        }
    });
}

#[test]
fn a_stream_drawn_in_parts_is_the_stream_drawn_at_once() {
    each(|device| {
        for dtype in FLOATS {
            let whole = doubles(&Generator::new(9).uniform(0., 1., 200_000, dtype, device).unwrap());
            let normal = doubles(&Generator::new(9).normal(0., 1., 200_000, dtype, device).unwrap());
            for parts in [&[100_000, 100_000][..], &[4, 8, 199_988], &[199_996, 4]] {
                let (mut a, mut b) = (Generator::new(9), Generator::new(9));
                let mut got = (Vec::new(), Vec::new());
                for &n in parts {
                    got.0.extend(doubles(&a.uniform(0., 1., (n / 4, 4), dtype, device).unwrap()));
                    got.1.extend(doubles(&b.normal(0., 1., n, dtype, device).unwrap()));
                }
                assert!(got.0 == whole, "uniform {dtype} in {parts:?}");
                assert!(got.1 == normal, "normal {dtype} in {parts:?}");
            }
            // A part that is no multiple of four takes the rest of its block with it.
            let mut random = Generator::new(9);
            let first = doubles(&random.uniform(0., 1., 5, dtype, device).unwrap());
            let second = doubles(&random.uniform(0., 1., 5, dtype, device).unwrap());
            assert!(first == whole[..5] && second == whole[8..13], "{dtype}");
        }
    });
}

#[test]
fn different_seeds_and_different_places_of_a_stream_give_different_numbers() {
    alone(|| {
        let draw = |seed| values::<f32>(&Generator::new(seed).uniform(0., 1., 64, DType::F32, &Device::Cpu).unwrap());
        let all = [draw(0), draw(1), draw(u64::MAX), draw(1 << 32)];
        for i in 0..4 {
            assert!((0..i).all(|j| all[i] != all[j]));
        }
        let mut random = Generator::new(0);
        let parts = [0, 1].map(|_| values::<f32>(&random.uniform(0., 1., 64, DType::F32, &Device::Cpu).unwrap()));
        assert!(parts[0] != parts[1]);
    });
}

#[test]
fn the_common_stream_begins_anew_with_set_seed_and_is_one_for_all_devices() {
    alone(|| {
        let [cpu, sim, ..] = &devices()[..] else { unreachable!("there are two at least") };
        cpu.set_seed(3).unwrap();
        let first = values::<f32>(&Tensor::rand(0f32, 1., 10, cpu).unwrap());
        let second = values::<f64>(&Tensor::randn(0f64, 1., 10, sim).unwrap());
        sim.set_seed(3).unwrap();
        let manager = NdManager::new_base_manager(sim).unwrap();
        assert_eq!(values::<f32>(&manager.rand(0f32, 1., 10).unwrap()), first);
        assert_eq!(values::<f64>(&Tensor::randn(0f64, 1., 10, cpu).unwrap()), second);
        manager.close().unwrap();
        check(sim);
    });
}

/// Also behind a function that panics.
#[test]
fn a_stream_takes_the_place_of_the_common_one_while_a_function_runs() {
    each(|device| {
        let draw = || doubles(&Tensor::rand(0f32, 1., 5, device).unwrap());
        device.set_seed(3).unwrap();
        let [first, second] = [draw(), draw()];
        device.set_seed(3).unwrap();
        let mut own = Generator::new(4);
        let one = own.scope(|| Generator::new(5).scope(draw));
        let other = own.scope(draw);
        let panicked = catch_unwind(AssertUnwindSafe(|| own.scope::<()>(|| panic::resume_unwind(Box::new(())))));
        assert!(panicked.is_err());
        assert_eq!([draw(), draw()], [first, second], "the common one stayed");
        let of = |seed: u64| doubles(&Generator::new(seed).uniform(0., 1., 5, DType::F32, device).unwrap());
        assert_eq!((one, other), (of(5), of(4)));
        let next = own.scope(draw);
        assert_ne!(next, of(4), "it went on");
    });
}

/// Mean, variance, and the fourth moment over the squared variance.
fn moments(x: &[f64]) -> [f64; 3] {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let central = |p: i32| x.iter().map(|x| (x - mean).powi(p)).sum::<f64>() / n;
    [mean, central(2), central(4) / central(2).powi(2)]
}

#[test]
fn moments_are_those_of_the_distributions() {
    each(|device| {
        let n = 400_000;
        for dtype in FLOATS {
            let mut random = Generator::new(7);
            let [mean, variance, kurtosis] = moments(&doubles(&random.uniform(-1., 3., n, dtype, device).unwrap()));
            assert!((mean - 1.).abs() < 0.01 && (variance - 16. / 12.).abs() < 0.01, "{dtype}: {mean} {variance}");
            assert!((kurtosis - 1.8).abs() < 0.02, "{dtype}: {kurtosis}");
            let normal = doubles(&random.normal(2., 3., n, dtype, device).unwrap());
            let [mean, variance, kurtosis] = moments(&normal);
            assert!((mean - 2.).abs() < 0.03 && (variance - 9.).abs() < 0.1, "{dtype}: {mean} {variance}");
            assert!((kurtosis - 3.).abs() < 0.06, "{dtype}: {kurtosis}");
            let neighbours = normal.windows(2).map(|w| (w[0] - 2.) * (w[1] - 2.)).sum::<f64>() / n as f64;
            assert!(neighbours.abs() < 0.06, "{dtype}: neighbours are independent, {neighbours}");
            assert!(normal.iter().all(|x| x.is_finite()));
        }
    });
}

#[test]
fn uniform_numbers_stay_below_the_upper_bound() {
    each(|device| {
        for dtype in FLOATS {
            for (low, high) in [(0., 1.), (1., 1. + 1e-6), (-1e30, 1e30), (-f64::from(f32::MAX), f64::from(f32::MAX))] {
                let drawn = doubles(&Generator::new(5).uniform(low, high, 100_000, dtype, device).unwrap());
                // The bounds as the dtype holds them.
                let held = |x: f64| if dtype == DType::F32 { f64::from(x as f32) } else { x };
                assert!(drawn.iter().all(|&x| held(low) <= x && x < held(high)), "{dtype} in {low}..{high}");
            }
            let one = doubles(&Generator::new(5).uniform(2., 2., 9, dtype, device).unwrap());
            assert_eq!(one, [2.; 9], "an empty range gives its bound");
        }
        assert_eq!(doubles(&Generator::new(5).normal(4., 0., 9, DType::F32, device).unwrap()), [4.; 9]);
        assert_eq!(Generator::new(5).uniform(0., 1., (0, 3), DType::F32, device).unwrap().dims(), [0, 3]);
    });
}

#[test]
fn parameters_out_of_range_are_errors_and_draw_nothing() {
    each(|device| {
        let mut random = Generator::new(1);
        let before = format!("{random:?}");
        for (low, high) in [(f64::NAN, 1.), (0., f64::INFINITY), (1., 0.)] {
            assert!(matches!(
                error(random.uniform(low, high, 3, DType::F32, device)),
                Error::Argument { op: "rand", .. }
            ));
        }
        for (mean, std) in [(0., -1.), (f64::NAN, 1.), (0., f64::INFINITY)] {
            assert!(matches!(
                error(random.normal(mean, std, 3, DType::F32, device)),
                Error::Argument { op: "randn", .. }
            ));
        }
        assert!(matches!(
            error(random.normal(0., 1., 3, DType::I64, device)),
            Error::UnsupportedDType { op: "randn", .. }
        ));
        assert!(matches!(error(random.uniform(0., 1., [1; 7], DType::F32, device)), Error::RankTooLarge { .. }));
        assert_eq!(format!("{random:?}"), before);
    });
}

/// Finite as doubles, and infinite as numbers of the dtype.
#[test]
fn parameters_that_the_dtype_does_not_have_are_errors() {
    each(|device| {
        let mut random = Generator::new(5);
        for (dtype, far) in [(DType::F16, 1e5), (DType::BF16, 1e39), (DType::F32, 1e39)] {
            for drawn in [random.uniform(0., far, 3, dtype, device), random.normal(0., far, 3, dtype, device)] {
                let found = error(drawn);
                assert!(matches!(found, Error::Argument { argument: "second parameter", .. }), "{dtype}: {found}");
                assert!(found.to_string().contains(&far.to_string()), "the number that was given: {found}");
            }
            assert!(random.uniform(0., 6e4, 3, dtype, device).is_ok(), "{dtype}");
        }
    });
}

#[test]
fn a_permutation_has_every_number_once_and_repeats_with_its_seed() {
    alone(|| {
        for n in [0, 1, 2, 1000] {
            let order = Generator::new(3).permutation(n).unwrap();
            assert_eq!(order, Generator::new(3).permutation(n).unwrap());
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
        }
        // Each of the six orders of three comes up about as often.
        let mut random = Generator::new(8);
        let mut counts = std::collections::HashMap::new();
        (0..6000).for_each(|_| *counts.entry(random.permutation(3).unwrap()).or_insert(0) += 1);
        assert!(counts.len() == 6 && counts.values().all(|c| (850..1150).contains(c)), "{counts:?}");
    });
}
