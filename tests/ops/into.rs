//! Results written to an array that is there, and changes in place: the same numbers as the methods, also where the
//! target is a view or an operand, and nothing changed where there is an error.

use ndgc::{DType, Device, Error, NdManager, Result, Tensor, Var};

use crate::ops::reference::{Host, Native};
use crate::ops::support::{Operand, bits, each, error, f64s, forms, values};

/// A method of an array and another one, its form that writes to an array, its form in place if there is one.
struct Forms {
    name: &'static str,
    method: fn(&Tensor, &Tensor) -> Result<Tensor>,
    into: fn(&Tensor, &Tensor, &Tensor) -> Result<()>,
    place: Option<fn(&Tensor, &Tensor) -> Result<Tensor>>,
}

macro_rules! table {
    ($($method:ident($($arg:expr),*), $into:ident $(, $place:ident)?; |$y:ident|)*) => {
        vec![$(Forms {
            name: stringify!($method),
            method: |x, $y| { let _ = $y; x.$method($($arg),*) },
            into: |x, $y, out| { let _ = $y; x.$into($($arg,)* out) },
            place: table!(@place $y [$($arg),*] $($place)?),
        }),*]
    };
    (@place $y:ident [$($arg:expr),*]) => { None };
    (@place $y:ident [$($arg:expr),*] $place:ident) => { Some(|x, $y| { let _ = $y; x.$place($($arg),*) }) };
}

/// The functions of one operand of the table of operations: those of all numbers, or the others.
macro_rules! of_one {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $place:ident $into:ident] $kind:ident $value:tt $gradient:tt)*) => {
        fn of_one(numbers: bool) -> Vec<Forms> {
            let all = [$((stringify!($kind), table! { $name(), $into, $place; |y| })),*];
            all.into_iter().filter(|(kind, _)| (*kind == "number") == numbers).flat_map(|(_, forms)| forms).collect()
        }
    };
}
ndgc_kernels::for_each_unary!(of_one);

/// Those of two operands: of floats alone, or the others.
macro_rules! of_two {
    ([] $($(#[$doc:meta])* $op:ident
        [$name:ident $wide:ident $place:ident $into:ident $wide_into:ident]
        $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        fn of_two(floats: bool) -> Vec<Forms> {
            let all = [$((
                stringify!($kind),
                table! {
                    $name(y), $into, $place; |y|
                    $wide(y), $wide_into; |y|
                },
            )),*];
            all.into_iter().filter(|(kind, _)| (*kind == "float") == floats).flat_map(|(_, forms)| forms).collect()
        }
    };
}
ndgc_kernels::for_each_binary!(of_two);

/// For every dtype of the tests.
fn numbers() -> Vec<Forms> {
    let mut all = table! {
        affine(2., 1.), affine_into, affine_; |y|
        clamp(0., 2.), clamp_into, clamp_; |y|
    };
    all.extend(of_one(true));
    all.extend(of_two(false));
    all
}

fn comparisons() -> Vec<Forms> {
    table! {
        eq(y), eq_into; |y|
        ne(y), ne_into; |y|
        lt(y), lt_into; |y|
        le(y), le_into; |y|
        gt(y), gt_into; |y|
        ge(y), ge_into; |y|
    }
}

fn floats() -> Vec<Forms> {
    let mut all = table! { powf(1.5), powf_into, powf_; |y| };
    all.extend(of_one(false));
    all.extend(of_two(true));
    all
}

fn integers() -> Vec<Forms> {
    table! {
        bitwise_and(y), bitwise_and_into; |y|
        bitwise_or(y), bitwise_or_into; |y|
        bitwise_xor(y), bitwise_xor_into; |y|
        bitwise_not(), bitwise_not_into; |y|
        bitwise_left_shift(y), bitwise_left_shift_into; |y|
        bitwise_right_shift(y), bitwise_right_shift_into; |y|
    }
}

fn check<T: Native>(device: &Device, forms: &[Forms], x: &Operand<T>, y: &Operand<T>) {
    for case in forms {
        let what = format!("{} of {} {} and {}", case.name, T::DTYPE, x.form, y.form);
        let want = (case.method)(&x.tensor, &y.tensor).unwrap_or_else(|e| panic!("{what}: {e}"));
        let before = (bits(&x.tensor), bits(&y.tensor));
        let plain = Tensor::zeros(want.shape(), want.dtype(), device).unwrap();
        let turned = Tensor::zeros((4, 3, 2), want.dtype(), device).unwrap().permute((2, 1, 0)).unwrap();
        for (out, to) in [(&plain, "a plain array"), (&turned, "a transposed one")] {
            (case.into)(&x.tensor, &y.tensor, out).unwrap_or_else(|e| panic!("{what} into {to}: {e}"));
            assert_eq!(bits(out), bits(&want), "{what} into {to}");
        }
        assert_eq!((bits(&x.tensor), bits(&y.tensor)), before, "{what} leaves its operands");
        if let Some(place) = case.place.filter(|_| !x.form.starts_with("broadcast")) {
            let own = Tensor::zeros((4, 3, 2), T::DTYPE, device).unwrap().permute((2, 1, 0)).unwrap();
            own.copy_(&x.tensor).unwrap();
            let same = place(&own, &y.tensor).unwrap_or_else(|e| panic!("{what} in place: {e}"));
            assert!(same.is_same(&own), "{what} returns the array");
            assert_eq!(bits(&own), bits(&want), "{what} in place");
        }
        if want.dtype() == T::DTYPE {
            let own = x.tensor.copy().unwrap();
            (case.into)(&own, &y.tensor, &own).unwrap();
            assert_eq!(bits(&own), bits(&want), "{what} into its own operand");
        }
    }
}

#[test]
fn both_forms_give_what_the_method_gives() {
    fn body<T: Native>(device: &Device, tables: &[Vec<Forms>]) {
        let (all, others) = (forms::<T>(device, 1), forms::<T>(device, 2));
        // Each form on one side, beside another one on the other.
        for (i, x) in all.iter().enumerate() {
            let y = &others[(i + 3) % others.len()];
            tables.iter().for_each(|table| check(device, table, x, y));
        }
    }
    each(|device| {
        body::<i64>(device, &[numbers(), comparisons(), integers()]);
        body::<f32>(device, &[numbers(), comparisons(), floats()]);
    });
}

#[test]
fn what_is_computed_beside_an_array_is_copied_to_it() {
    each(|device| {
        for (x, y) in forms::<i64>(device, 1).iter().zip(forms::<i64>(device, 2)) {
            let own = Tensor::zeros((4, 3, 2), DType::I64, device).unwrap().permute((2, 1, 0)).unwrap();
            own.copy_(&x.tensor).unwrap();
            let want = own.clamp(&y.tensor, &y.tensor).unwrap();
            let same = own.clamp_(&y.tensor, &y.tensor).unwrap();
            assert!(same.is_same(&own), "{}", x.form);
            assert_eq!(bits(&own), bits(&want), "{}", x.form);
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    each(|device| {
        let (x, y) = (f64s(device, &[1., 2., 3.], 3), f64s(device, &[4., 5., 6.], 3));
        let out = f64s(device, &[7., 8., 9.], 3);
        let short = f64s(device, &[7., 8.], 2);
        let small = Tensor::zeros(3, DType::F32, device).unwrap();
        assert!(matches!(error(x.add_into(&y, &short)), Error::ShapeMismatch { op: "add_into", .. }));
        assert!(matches!(error(x.add_into(&short, &out)), Error::ShapeMismatch { op: "add_into", .. }));
        assert!(matches!(error(x.add_into(&y, &small)), Error::DTypeMismatch { op: "add_into", .. }));
        assert!(matches!(error(x.eq_into(&y, &out)), Error::DTypeMismatch { op: "eq_into", .. }));
        assert!(matches!(error(x.exp_into(&short)), Error::ShapeMismatch { op: "exp_into", .. }));
        assert!(matches!(error(x.floor_into(&short)), Error::ShapeMismatch { op: "floor_into", .. }));
        let ints = Tensor::new([1i64, 2], device).unwrap();
        assert!(matches!(error(ints.exp_into(&ints)), Error::UnsupportedDType { op: "exp_into", .. }));
        let wide = f64s(device, &[1.], 1).broadcast_as(3).unwrap();
        assert!(matches!(error(x.add_into(&y, &wide)), Error::Overlap { op: "add_into", .. }));
        assert!(matches!(error(x.floor_into(&wide)), Error::Overlap { op: "floor_into", .. }));
        let w = Var::from_vec(vec![1f64, 2., 3.], 3, device).unwrap();
        assert!(matches!(error(x.add_into(&y, &w)), Error::Tracked { op: "add_into", .. }));
        assert!(matches!(error(w.floor_()), Error::Tracked { op: "floor_", .. }));
        assert!(matches!(error(w.swap_(&out)), Error::Tracked { op: "swap_", .. }));
        assert!(matches!(error(out.swap_(&w)), Error::Tracked { op: "swap_", .. }));
        assert!(matches!(error(out.replace(&short)), Error::ShapeMismatch { op: "replace", .. }));
        assert_eq!((values::<f64>(&out), values::<f64>(&w)), (vec![7., 8., 9.], vec![1., 2., 3.]));
        w.mul_into(&x, &out).unwrap();
        assert!(!out.track_op(), "no gradient is recorded");
        assert_eq!(values::<f64>(&out), [1., 4., 9.]);
    });
}

#[test]
fn a_saved_value_that_is_overwritten_is_told_in_backward() {
    each(|device| {
        let changes: [fn(&Tensor) -> Result<()>; 8] = [
            |y| y.floor_().map(drop),
            |y| y.exp_into(y),
            |y| y.const_set(1f64.into()),
            |y| y.swap_(&y.ones_like()?),
            |y| y.replace(&y.ones_like()?).map(drop),
            |y| y.uniform_(0., 1.).map(drop),
            |y| y.slice_assign_(ndgc::s![0], &Tensor::new(5f64, y.device())?),
            |y| y.index_put_(&Tensor::new([[0u32]], y.device())?, &Tensor::new(5f64, y.device())?, true),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let x = Var::from_vec(vec![1f64, 2.], 2, device).unwrap();
            let y = x.exp().unwrap();
            change(&y.detach()).unwrap();
            let said = error(y.sum_all().unwrap().backward());
            assert!(matches!(said, Error::ChangedSinceSaved { op: "exp", .. }), "{i}: {said:?}");
        }
    });
}

#[test]
fn arrays_are_filled_exchanged_and_drawn_in_place() {
    each(|device| {
        let a = Tensor::new([1i64, 2, 3], device).unwrap();
        let view = a.narrow(0, 1, 2).unwrap();
        view.const_set(((1i64 << 60) + 1).into()).unwrap();
        assert_eq!(values::<i64>(&a), [1, (1 << 60) + 1, (1 << 60) + 1]);
        view.one_set().unwrap();
        a.narrow(0, 0, 1).unwrap().zero_set().unwrap();
        assert_eq!(values::<i64>(&a), [0, 1, 1]);
        let b = Tensor::new([7i64, 8, 9], device).unwrap();
        a.swap_(&b.flip(&[0]).unwrap()).unwrap();
        assert_eq!((values::<i64>(&a), values::<i64>(&b)), (vec![9, 8, 7], vec![1, 1, 0]));
        a.swap_(&a).unwrap();
        assert_eq!(values::<i64>(&a), [9, 8, 7]);
        assert_eq!(values::<i64>(&a.replace(&b).unwrap()), [9, 8, 7]);
        assert_eq!(values::<i64>(&view), [1, 0]);
        let manager = NdManager::new_base_manager(device).unwrap();
        let x = manager.zeros((8, 8), DType::F32).unwrap();
        x.uniform_(2., 3.).unwrap().normal_(0., 1.).unwrap();
        x.t().unwrap().uniform_(2., 3.).unwrap();
        assert!(values::<f32>(&x).iter().all(|x| (2. ..3.).contains(x)));
        x.floor_().unwrap();
        assert_eq!(values::<f32>(&x), [2.; 64]);
        gone(&manager, &x);
        assert_eq!(x.can_mut().unwrap(), ndgc::gc::is_on(), "the manager kept views of it");
        manager.close().unwrap();
    });
}

/// What was computed on the way is not left with the manager of the target.
fn gone(manager: &NdManager, x: &Tensor) {
    let before = manager.array_count();
    x.floor_into(x).unwrap();
    x.add_into(x, &x.t().unwrap().t().unwrap()).unwrap();
    let views = if ndgc::gc::is_on() { 0 } else { 2 };
    ndgc::gc::collect();
    assert_eq!(manager.array_count(), before + views, "views of the test's own alone");
}

#[test]
fn points_are_replaced_or_added_to() {
    each(|device| {
        let host = Host { dims: vec![2, 3, 2], data: (0..12).map(f64::from).collect() };
        let a = crate::ops::support::put(&host, device);
        let points = Tensor::new([[0u8, 1], [1, 2], [0, 1]], device).unwrap();
        let src = f64s(device, &[1., 2., 3., 4., 5., 6.], (3, 2));
        a.index_put_(&points, &src, true).unwrap();
        assert_eq!(values::<f64>(&a), [0., 1., 8., 11., 4., 5., 6., 7., 8., 9., 13., 15.]);
        a.t().unwrap().transpose(1, 2).unwrap().index_put_(&points, &src, false).unwrap();
        assert_eq!(values::<f64>(&a), [0., 1., 5., 6., 4., 5., 6., 7., 8., 9., 3., 4.], "the last one wins");
        a.index_put_(&points, &Tensor::new(0f64, device).unwrap(), false).unwrap();
        assert_eq!(values::<f64>(&a.gather_nd(&points).unwrap()), [0.; 6]);
        let far = Tensor::new([[0u32, 3]], device).unwrap();
        let one = Tensor::new(1f64, device).unwrap();
        assert!(matches!(error(a.index_put_(&far, &one, false)), Error::IndexOutOfRange { op: "index_put_", .. }));
        assert!(matches!(error(a.index_put_(&points, &f64s(device, &[1.; 3], 3), true)), Error::ShapeMismatch { .. }));
    });
}
