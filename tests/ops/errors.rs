//! What does not fit is refused by name, with both sides, before anything is allocated.

use ndgc::{DType, Device, Error, Result, SimConfig, Tensor, gc};

use crate::common::text_of;
use crate::ops::support::{active, alone, check, each, error};

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Every operation of two arrays that wants one dtype and one device.
const BINARY: &[(&str, Binary)] = &[
    ("add", |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b)),
    ("div", |a, b| a.div(b)),
    ("maximum", |a, b| a.maximum(b)),
    ("minimum", |a, b| a.minimum(b)),
    ("pow", |a, b| a.pow(b)),
    ("broadcast_add", |a, b| a.broadcast_add(b)),
    ("broadcast_sub", |a, b| a.broadcast_sub(b)),
    ("broadcast_mul", |a, b| a.broadcast_mul(b)),
    ("broadcast_div", |a, b| a.broadcast_div(b)),
    ("broadcast_maximum", |a, b| a.broadcast_maximum(b)),
    ("broadcast_minimum", |a, b| a.broadcast_minimum(b)),
    ("broadcast_pow", |a, b| a.broadcast_pow(b)),
    ("eq", |a, b| a.eq(b)),
    ("ne", |a, b| a.ne(b)),
    ("lt", |a, b| a.lt(b)),
    ("le", |a, b| a.le(b)),
    ("gt", |a, b| a.gt(b)),
    ("ge", |a, b| a.ge(b)),
    ("broadcast_eq", |a, b| a.broadcast_eq(b)),
    ("broadcast_ne", |a, b| a.broadcast_ne(b)),
    ("broadcast_lt", |a, b| a.broadcast_lt(b)),
    ("broadcast_le", |a, b| a.broadcast_le(b)),
    ("broadcast_gt", |a, b| a.broadcast_gt(b)),
    ("broadcast_ge", |a, b| a.broadcast_ge(b)),
    ("cmp", |a, b| a.cmp(b, ndgc::CmpOp::Eq)),
    ("matmul", |a, b| a.matmul(b)),
    ("broadcast_matmul", |a, b| a.broadcast_matmul(b)),
    ("linear", |a, b| a.linear(b, None)),
    ("where_cond", |a, b| mask(a).where_cond(a, b)),
    ("cat", |a, b| Tensor::cat(&[a, b], 0)),
    ("stack", |a, b| Tensor::stack(&[a, b], 0)),
    ("add_", |a, b| a.add_(b)),
    ("pow_", |a, b| a.pow_(b)),
    ("copy_", |a, b| a.copy_(b).map(|()| a.clone())),
    ("sgd_step_", |a, b| a.sgd_step_(b, None, 0.1, 0., 0.).map(|()| a.clone())),
    ("adam_step_", |a, b| a.adam_step_(b, &a.copy()?, &a.copy()?, 1, &Default::default()).map(|()| a.clone())),
    ("optimizer_step_", |a, b| {
        let rule = ndgc::nn::StepRule::AdaGrad { epsilon: 0.1 };
        a.optimizer_step_(b, &[a.copy()?], rule, 0.1, 1).map(|()| a.clone())
    }),
];

fn mask(like: &Tensor) -> Tensor {
    Tensor::ones(*like.shape(), DType::U8, like.device()).unwrap()
}

fn ones(dims: &[usize], dtype: DType, device: &Device) -> Tensor {
    Tensor::ones(dims, dtype, device).unwrap()
}

/// Bytes and arrays; what an operation made on the way is gone.
fn books(device: &Device) -> (u64, u64) {
    (active(device), gc::stats().live)
}

#[test]
fn operands_of_two_dtypes_are_refused_with_both_names() {
    each(|device| {
        let (a, b) = (ones(&[2, 2], DType::F32, device), ones(&[2, 2], DType::F64, device));
        let before = books(device);
        for &(name, run) in BINARY {
            match error(run(&a, &b)) {
                Error::DTypeMismatch { op, lhs, rhs, .. } => {
                    assert_eq!(op, name);
                    assert!(
                        lhs != rhs && [lhs, rhs].contains(&DType::F32) && [lhs, rhs].contains(&DType::F64),
                        "{name}"
                    );
                }
                other => panic!("{name}: {other}"),
            }
            assert_eq!(books(device), before, "{name} left something");
        }
    });
}

#[test]
fn operands_on_two_devices_are_refused_with_both_names_and_nothing_is_moved() {
    alone(|| {
        let (sim, other) = (Device::sim(SimConfig::default()), Device::sim(SimConfig::default()));
        for (left, right) in [(&Device::Cpu, &sim), (&sim, &Device::Cpu), (&sim, &other)] {
            let (a, b) = (ones(&[2, 2], DType::F32, left), ones(&[2, 2], DType::F32, right));
            let before = (books(left), books(right));
            for &(name, run) in BINARY {
                match error(run(&a, &b)) {
                    Error::DeviceMismatch { op, lhs, rhs, .. } => {
                        assert_eq!(op, name);
                        let both = [left.to_string(), right.to_string()];
                        assert!(lhs != rhs && both.contains(&lhs) && both.contains(&rhs), "{name}: {lhs} and {rhs}");
                    }
                    found => panic!("{name}: {found}"),
                }
                assert_eq!((books(left), books(right)), before, "{name} left something");
            }
        }
        check(&sim);
        check(&other);
    });
}

#[test]
fn three_operands_on_two_devices_are_refused() {
    alone(|| {
        let sim = Device::sim(SimConfig::default());
        let (a, far) = (ones(&[2, 2], DType::F32, &Device::Cpu), ones(&[2, 2], DType::F32, &sim));
        let ids = Tensor::zeros(2, DType::U32, &sim).unwrap();
        let table = Tensor::zeros((2, 2), DType::U32, &sim).unwrap();
        let near = ids.to_device(&Device::Cpu).unwrap();
        let bias = Tensor::ones(2, DType::F32, &sim).unwrap();
        let cases = [
            ("where_cond", mask(&far).where_cond(&a, &a)),
            ("index_select", a.index_select(&ids, 0)),
            ("gather", a.gather(&table, 0)),
            ("index_add", a.index_add(&ids, &a, 0)),
            ("index_add", a.index_add(&near, &far, 0)),
            ("scatter_add", a.scatter_add(&table, &a, 0)),
            ("cross_entropy", a.cross_entropy(&ids)),
            ("linear", a.linear(&a, Some(&bias))),
        ];
        for (name, result) in cases {
            match error(result) {
                Error::DeviceMismatch { op, .. } => assert_eq!(op, name),
                found => panic!("{name}: {found}"),
            }
        }
        check(&sim);
    });
}

#[test]
fn shapes_that_differ_are_refused_with_both_sides() {
    each(|device| {
        let (a, b) = (ones(&[2, 3], DType::F32, device), ones(&[2, 4], DType::F32, device));
        let before = books(device);
        for &(name, run) in BINARY.iter().filter(|(name, _)| *name != "cat") {
            match error(run(&a, &b)) {
                Error::ShapeMismatch { op, lhs, rhs, why, .. } => {
                    assert_eq!(op, name);
                    assert!(lhs != rhs && !why.is_empty(), "{name}: {lhs:?} and {rhs:?}: {why}");
                }
                found => panic!("{name}: {found}"),
            }
            assert_eq!(books(device), before, "{name} left something");
        }
        assert!(matches!(error(Tensor::cat(&[&a, &b], 0)), Error::ShapeMismatch { op: "cat", .. }));
        let row = ones(&[1, 3], DType::F32, device);
        let found = error(a.add(&row));
        assert!(found.to_string().contains("broadcast_"), "the strict form names the other: {found}");
        let texts = [
            (a.broadcast_as((2, 4)), "[2, 4]: axis 1 of size 3 cannot be repeated to 4"),
            (a.broadcast_as(3), "[3]: the target has fewer axes"),
        ];
        for (result, why) in texts {
            let wanted = format!("shape mismatch in broadcast_as, lhs: [2, 3], rhs: {why}");
            assert_eq!(text_of(&error(result)), wanted);
        }
        let wanted = "reshape: shape is [-1, -1]; it must be sizes, and at most one -1 or () that is computed";
        assert_eq!(text_of(&error(a.reshape([-1i64, -1]))), wanted);
    });
}

#[test]
fn closed_operands_are_refused_on_either_side() {
    each(|device| {
        for &(name, run) in BINARY {
            for side in 0..2 {
                let both = [ones(&[2, 2], DType::F32, device), ones(&[2, 2], DType::F32, device)];
                let named = &both[side];
                named.set_name("gone").unwrap();
                if name == "where_cond" && side == 0 {
                    continue; // the mask is made of it
                }
                named.close();
                match error(run(&both[0], &both[1])) {
                    Error::StaleArray(stale) => assert!(stale.array.contains("gone"), "{name}: {}", stale.array),
                    found => panic!("{name}: {found}"),
                }
            }
        }
    });
}

#[test]
fn creation_that_cannot_be_is_refused() {
    each(|device| {
        let before = books(device);
        let found = error(Tensor::from_slice(&[1f32, 2.], 3, device));
        assert!(matches!(found, Error::ElementCount { op: "from_slice", given: 2, .. }), "{found}");
        assert!(matches!(
            error(Tensor::zeros([1; 7], DType::F32, device)),
            Error::RankTooLarge { op: "zeros", rank: 7, .. }
        ));
        let found = error(Tensor::ones((usize::MAX, 2), DType::F32, device));
        assert!(matches!(found, Error::SizeOverflow { op: "ones", .. }), "{found}");
        for (start, end, step) in [(0., 1., 0.), (0., 1., f64::NAN), (0., f64::INFINITY, 1.)] {
            let found = error(Tensor::arange_step(start, end, step, device));
            assert!(matches!(found, Error::Argument { op: "arange_step", argument: "step", .. }), "{found}");
        }
        let a = ones(&[2], DType::F32, device);
        assert!(matches!(error(a.clamp(1., 0.)), Error::Argument { op: "clamp", .. }));
        assert!(matches!(error(a.clamp(f64::NAN, 0.)), Error::Argument { op: "clamp", .. }));
        assert!(matches!(error(a.to_vec::<f64>()), Error::DTypeMismatch { op: "to_vec", .. }));
        assert!(matches!(error(a.to_scalar::<f32>()), Error::Shape { op: "to_scalar", .. }));
        assert!(matches!(error(a.to_vec2::<f32>()), Error::Shape { op: "dims2", .. }));
        assert!(matches!(error(a.t()), Error::DimOutOfRange { op: "transpose", .. }));
        drop(a);
        assert_eq!(books(device), before);
    });
}

#[test]
fn arange_and_full_are_exact_for_integers_that_a_double_cannot_hold() {
    each(|device| {
        let large = (1i64 << 53) + 1;
        assert_eq!(Tensor::full(large, 2, device).unwrap().to_vec::<i64>().unwrap(), [large; 2]);
        assert_eq!(Tensor::arange_step(7u8, 0, 2, device).unwrap().to_vec::<u8>().unwrap(), [0u8; 0]);
        assert_eq!(Tensor::arange_step(-3i64, 4, 3, device).unwrap().to_vec::<i64>().unwrap(), [-3, 0, 3]);
        assert_eq!(Tensor::arange_step(3f32, 0., -1.5, device).unwrap().to_vec::<f32>().unwrap(), [3., 1.5]);
        let got = Tensor::arange(large, large + 3, device).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(got, [large, large + 1, large + 2]);
    });
}

#[test]
fn arithmetic_of_integers_with_numbers_is_that_of_the_integers() {
    each(|device| {
        let a = Tensor::new([10u8, 200], device).unwrap();
        assert_eq!((&a - 3.).unwrap().to_vec::<u8>().unwrap(), [7, 197]);
        let b = Tensor::new([10i64, -7], device).unwrap();
        assert_eq!((&b / 2.).unwrap().to_vec::<i64>().unwrap(), [5, -3]);
        assert_eq!((3. - &b).unwrap().to_vec::<i64>().unwrap(), [-7, 10]);
        // Numbers that would become 0.
        assert_eq!((&b / 0.5).unwrap().to_vec::<i64>().unwrap(), [20, -14]);
        assert_eq!((b.copy().unwrap() / -0.25).unwrap().to_vec::<i64>().unwrap(), [-40, 28]);
        assert_eq!((&b * 0.5).unwrap().to_vec::<i64>().unwrap(), [0, 0]);
        assert_eq!((&b / 0.).unwrap().to_vec::<i64>().unwrap(), [0, 0]);
        assert_eq!((0.5 / &b).unwrap().to_vec::<i64>().unwrap(), [0, 0]);
    });
}
