//! Changes in place: every view sees them, a failed one changes nothing, and operands that share bytes are right.

use std::sync::atomic::{AtomicBool, Ordering};

use ndgc::{DType, Device, Error, NdManager, Result, Tensor, Var, no_grad};

use crate::ops::cases::for_numbers;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{alone, assert_same, each, error, f64s, forms, put, values};

type Assign = fn(&Tensor, &Tensor) -> Result<Tensor>;
type Change = fn(&Tensor) -> Result<Tensor>;
/// A name, the change, and what it does to one element and another.
type Assignment<T> = (&'static str, Assign, fn(T, T) -> T);

fn assignments<T: Native>() -> [Assignment<T>; 7] {
    [
        ("add_", Tensor::add_, T::plus),
        ("sub_", Tensor::sub_, T::minus),
        ("mul_", Tensor::mul_, T::times),
        ("div_", Tensor::div_, T::over),
        ("maximum_", Tensor::maximum_, T::larger),
        ("minimum_", Tensor::minimum_, T::smaller),
        ("pow_", Tensor::pow_, T::power),
    ]
}

fn zip<T: Native>(a: &Host<T>, b: &Host<T>, f: fn(T, T) -> T) -> Host<T> {
    let b = b.broadcast(&a.dims);
    Host { dims: a.dims.clone(), data: a.data.iter().zip(&b.data).map(|(&x, &y)| f(x, y)).collect() }
}

#[test]
fn assignments_match_naive_loops_on_every_form_and_broadcast_the_right_side() {
    if crate::common::ran_apart() {
        return;
    }
    fn body<T: Native>(device: &Device) {
        let rows = Host::<T>::sample(&[3, 1], 8);
        let rows = (put(&rows, device), rows);
        for (name, assign, f) in assignments::<T>() {
            for a in forms::<T>(device, 1).into_iter().filter(|a| !a.form.starts_with("broadcast")) {
                let mut now = a.host.clone();
                for b in forms::<T>(device, 2) {
                    let same = assign(&a.tensor, &b.tensor).unwrap();
                    assert!(same.is_same(&a.tensor), "{name} returns this array");
                    now = zip(&now, &b.host, f);
                    assert_same(&format!("{name} of {} and {}", a.form, b.form), &a.tensor, &now);
                    assert_same("the right side", &b.tensor, &b.host);
                }
                assign(&a.tensor, &rows.0).unwrap();
                assert_same(&format!("{name} of rows"), &a.tensor, &zip(&now, &rows.1, f));
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn functions_in_place_give_what_their_other_form_gives() {
    let any: [(&str, Change, Change); 5] = [
        ("neg_", Tensor::neg_, Tensor::neg),
        ("abs_", Tensor::abs_, Tensor::abs),
        ("sign_", Tensor::sign_, Tensor::sign),
        ("sqr_", Tensor::sqr_, Tensor::sqr),
        ("relu_", Tensor::relu_, Tensor::relu),
    ];
    let floats: [(&str, Change, Change); 5] = [
        ("exp_", Tensor::exp_, Tensor::exp),
        ("log_", Tensor::log_, Tensor::log),
        ("sqrt_", Tensor::sqrt_, Tensor::sqrt),
        ("tanh_", Tensor::tanh_, Tensor::tanh),
        ("sigmoid_", Tensor::sigmoid_, Tensor::sigmoid),
    ];
    let numbers: [(&str, Change, Change); 3] = [
        ("affine_", |x| x.affine_(2., 1.), |x| x.affine(2., 1.)),
        ("fill_", |x| x.fill_(3.), |x| x.full_like(3.)),
        ("zero_", |x| x.zero_(), |x| x.zeros_like()),
    ];
    fn body<T: Native>(device: &Device, cases: &[(&str, Change, Change)]) {
        for (name, change, function) in cases {
            for a in forms::<T>(device, 3).into_iter().filter(|a| !a.form.starts_with("broadcast")) {
                let want = function(&a.tensor).unwrap();
                let want = Host { dims: a.host.dims.clone(), data: values::<T>(&want) };
                assert!(change(&a.tensor).unwrap().is_same(&a.tensor));
                assert_same(&format!("{name} of {} {}", T::DTYPE, a.form), &a.tensor, &want);
            }
        }
    }
    each(|device| {
        for cases in [&any[..], &numbers] {
            body::<u8>(device, cases);
            body::<i64>(device, cases);
            body::<f32>(device, cases);
        }
        body::<f32>(device, &floats);
        body::<f64>(device, &floats);
    });
}

#[test]
fn every_view_sees_a_change_and_nothing_beside_a_narrowed_part_changes() {
    each(|device| {
        let a = f64s(device, &[1., 2., 3., 4., 5., 6.], (2, 3));
        let (t, row, kept) = (a.t().unwrap(), a.get(1).unwrap(), a.detach());
        a.narrow(1, 1, 1).unwrap().affine_(10., 0.).unwrap();
        assert_eq!(values::<f64>(&a), [1., 20., 3., 4., 50., 6.]);
        assert_eq!(values::<f64>(&t), [1., 4., 20., 50., 3., 6.]);
        assert_eq!(values::<f64>(&row), [4., 50., 6.]);
        assert_eq!(values::<f64>(&kept), values::<f64>(&a));
        t.add_(&f64s(device, &[100., 200.], 2)).unwrap();
        assert_eq!(values::<f64>(&a), [101., 120., 103., 204., 250., 206.]);
        a.copy_(&f64s(device, &[0.; 6], (2, 3))).unwrap();
        assert_eq!(values::<f64>(&row), [0.; 3]);
    });
}

#[test]
fn operands_that_share_bytes_with_the_target_are_read_before_it_changes() {
    each(|device| {
        let square = || f64s(device, &[1., 2., 3., 4., 5., 6., 7., 8., 9.], (3, 3));
        let a = square();
        a.add_(&a).unwrap();
        assert_eq!(values::<f64>(&a), [2., 4., 6., 8., 10., 12., 14., 16., 18.]);
        let a = square();
        a.add_(&a.t().unwrap()).unwrap();
        assert_eq!(values::<f64>(&a), [2., 6., 10., 6., 10., 14., 10., 14., 18.]);
        let a = square();
        a.mul_(&a.get(1).unwrap()).unwrap();
        assert_eq!(values::<f64>(&a), [4., 10., 18., 16., 25., 36., 28., 40., 54.]);
        let line = Tensor::arange(0f64, 6., device).unwrap();
        line.narrow(0, 1, 5).unwrap().copy_(&line.narrow(0, 0, 5).unwrap()).unwrap();
        assert_eq!(values::<f64>(&line), [0., 0., 1., 2., 3., 4.], "a shift to the right");
        let line = Tensor::arange(0f64, 6., device).unwrap();
        line.narrow(0, 0, 5).unwrap().add_(&line.narrow(0, 1, 5).unwrap()).unwrap();
        assert_eq!(values::<f64>(&line), [1., 3., 5., 7., 9., 5.]);
        let line = Tensor::arange(0f64, 4., device).unwrap();
        line.sub_(&line.get(3).unwrap()).unwrap();
        assert_eq!(values::<f64>(&line), [-3., -2., -1., 0.], "the last element as it was");
    });
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    each(|device| {
        let a = f64s(device, &[1., 2., 3., 4.], (2, 2));
        let three = f64s(device, &[1., 2., 3.], 3);
        let single = Tensor::ones((2, 2), DType::F32, device).unwrap();
        let elsewhere = Tensor::ones((2, 2), DType::F64, &Device::sim(Default::default())).unwrap();
        let found = error(a.add_(&three));
        assert!(
            matches!(&found, Error::ShapeMismatch { op: "add_", lhs, rhs, .. } if *lhs == [2, 2] && *rhs == [3]),
            "{found}"
        );
        let found = error(a.get(0).unwrap().mul_(&a));
        assert!(matches!(found, Error::ShapeMismatch { op: "mul_", .. }), "the left side is not broadcast: {found}");
        let found = error(a.sub_(&single));
        assert!(matches!(found, Error::DTypeMismatch { op: "sub_", lhs: DType::F64, rhs: DType::F32, .. }), "{found}");
        assert!(matches!(error(a.div_(&elsewhere)), Error::DeviceMismatch { op: "div_", .. }));
        assert!(matches!(error(a.copy_(&elsewhere)), Error::DeviceMismatch { op: "copy_", .. }));
        assert!(matches!(error(a.copy_(&three)), Error::ShapeMismatch { op: "copy_", .. }));
        assert!(matches!(error(a.copy_(&single)), Error::DTypeMismatch { op: "copy_", .. }));
        let wide = three.broadcast_as((2, 3)).unwrap();
        assert!(matches!(error(wide.add_(&wide)), Error::Overlap { op: "add_", .. }));
        assert!(matches!(error(wide.zero_()), Error::Overlap { op: "zero_", .. }));
        three.close();
        assert!(matches!(error(three.exp_()), Error::StaleArray(_)));
        assert!(matches!(error(a.add_(&three)), Error::StaleArray(_)));
        assert_eq!(values::<f64>(&a), [1., 2., 3., 4.]);
        assert_eq!(values::<f64>(&wide), [1., 2., 3., 1., 2., 3.]);
    });
}

#[test]
fn a_variable_and_what_depends_on_it_change_in_place_only_without_gradients() {
    each(|device| {
        let w = Var::from_vec(vec![1f64, 2.], 2, device).unwrap();
        let y = w.sqr().unwrap();
        let rhs = f64s(device, &[1., 1.], 2);
        assert!(matches!(error(w.add_(&rhs)), Error::Tracked { op: "add_", .. }));
        assert!(matches!(error(y.mul_(&rhs)), Error::Tracked { op: "mul_", .. }));
        assert!(matches!(error(w.narrow(0, 0, 1).unwrap().zero_()), Error::Tracked { op: "zero_", .. }));
        assert_eq!((values::<f64>(&w), values::<f64>(&y)), (vec![1., 2.], vec![1., 4.]));
        no_grad(|| w.add_(&rhs)).unwrap();
        w.as_detached_tensor().mul_(&rhs).unwrap();
        assert_eq!(values::<f64>(&w), [2., 3.]);
        w.set(&rhs).unwrap();
        assert_eq!(values::<f64>(&w), [1., 1.]);
        assert!(matches!(error(w.set(&f64s(device, &[1.], 1))), Error::ShapeMismatch { op: "copy_", .. }));
        // An ordinary array takes the values of a variable; the gradient does not follow.
        rhs.add_(&w).unwrap();
        assert!(!rhs.track_op());
    });
}

#[test]
fn bytes_that_are_being_read_on_this_thread_are_not_changed() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let a = Tensor::arange(0f32, 4., device).unwrap();
        let found = a.with_slice(|slice: &[f32]| {
            let found = error(a.affine_(2., 0.));
            assert_eq!(slice, [0., 1., 2., 3.]);
            found
        });
        assert!(matches!(found.unwrap(), Error::InUse { op: "affine_", .. }));
        a.affine_(2., 0.).unwrap();
        assert_eq!(values::<f32>(&a), [0., 2., 4., 6.]);
    });
}

#[test]
fn intern_gives_all_handles_the_content_of_another() {
    each(|device| {
        let a = f64s(device, &[1., 2.], 2);
        let handle = a.clone();
        let b = Tensor::ones((3, 1), DType::F32, device).unwrap();
        let old = b.clone();
        a.intern(b).unwrap();
        assert!(old.is_released());
        assert_eq!(values::<f32>(&handle), [1.; 3]);
        assert_eq!(handle.dims(), [3, 1]);
        a.intern(handle).unwrap();
        assert!(a.is_open(), "itself");
    });
}

/// Invariant I7 (design.md): nobody reads what is half written.
#[test]
fn a_reader_sees_all_of_a_change_or_nothing() {
    alone(|| {
        let x = Tensor::zeros(1 << 18, DType::F32, &Device::Cpu).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                for value in (0..100).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    x.fill_(f64::from(value)).unwrap();
                }
            });
            let read = || {
                let copy = x.affine(1., 0.).unwrap();
                let all = values::<f32>(&copy);
                all.iter().find(|value| **value != all[0]).map(|other| (all[0], *other))
            };
            let torn = (0..150).find_map(|_| read());
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            assert_eq!(torn, None);
        });
    });
}

#[test]
fn an_exchanged_array_is_in_the_way_of_writers_of_the_bytes_that_it_has_now() {
    each(|device| {
        let (a, b) = (f64s(device, &[1., 2.], 2), f64s(device, &[3., 4.], 2));
        let (old, new) = (a.reshape(2).unwrap(), b.reshape(2).unwrap());
        a.intern(b).unwrap();
        // Elements are read on the host.
        if device.is_cpu() {
            a.with_slice(|seen: &[f64]| {
                assert!(matches!(error(new.fill_(0.)), Error::InUse { op: "fill_", .. }));
                old.fill_(0.).unwrap();
                assert_eq!(seen, [3., 4.]);
            })
            .unwrap();
        }
        new.fill_(9.).unwrap();
        assert_eq!(values::<f64>(&a), [9.; 2]);
    });
}

#[test]
fn an_array_of_a_capped_manager_stays_there_through_an_exchange() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = manager.ones(2, DType::F64).unwrap();
        manager.cap().unwrap();
        a.intern(f64s(device, &[5., 6.], 2)).unwrap();
        assert_eq!((values::<f64>(&a), manager.array_count()), (vec![5., 6.], 1));
    });
}

#[test]
fn empty_and_scalar_arrays_change_in_place_too() {
    each(|device| {
        let empty = Tensor::zeros((0, 3), DType::F64, device).unwrap();
        empty.add_(&f64s(device, &[1., 2., 3.], 3)).unwrap();
        empty.exp_().unwrap();
        empty.fill_(1.).unwrap();
        assert_eq!(empty.dims(), [0, 3]);
        let scalar = f64s(device, &[2.], ());
        scalar.mul_(&scalar).unwrap().affine_(1., 1.).unwrap();
        assert_eq!(scalar.to_scalar::<f64>().unwrap(), 5.);
    });
}
