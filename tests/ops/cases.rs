//! One table of the operations that work element by element, run on every form of operand, every dtype that they
//! take, both devices and both positions of the switch; and those that refuse a dtype.

use ndgc::{CmpOp, DType, Device, Error, Result, Tensor};

use crate::ops::of_one;
use crate::ops::reference::{Host, Native, wider};
use crate::ops::support::{Operand, assert_same, bits, each, each_case, error, forms, put, shapes, values};

type Run = fn(&[&Tensor]) -> Result<Tensor>;

/// An operation: how it is called, and what it gives for one element of each operand.
struct Case<T, R> {
    name: &'static str,
    inputs: usize,
    run: Run,
    reference: fn(&[T]) -> R,
}

macro_rules! cases {
    ($($name:literal, $inputs:literal, |$x:ident| $run:expr, |$v:ident| $reference:expr;)*) => {
        vec![$(Case { name: $name, inputs: $inputs, run: |$x| $run, reference: |$v| $reference }),*]
    };
}

/// A number as the dtype holds it.
fn n<T: Native>(value: f64) -> T {
    T::from_f64(value)
}

/// A function of doubles, rounded to the dtype.
fn by<T: Native>(x: T, f: impl Fn(f64) -> f64) -> T {
    T::from_f64(f(x.to_f64()))
}

fn clamp<T: Native>(x: T, min: f64, max: f64) -> T {
    let raised = if x < n(min) { n(min) } else { x };
    if raised > n(max) { n(max) } else { raised }
}

/// Operations of every dtype.
fn of_any<T: Native>() -> Vec<Case<T, T>> {
    cases! {
        "neg", 1, |x| x[0].neg(), |v| v[0].negative();
        "neg operator", 1, |x| -x[0], |v| v[0].negative();
        "abs", 1, |x| x[0].abs(), |v| v[0].absolute();
        "sign", 1, |x| x[0].sign(), |v| v[0].sign();
        "sqr", 1, |x| x[0].sqr(), |v| v[0].times(v[0]);
        "relu", 1, |x| x[0].relu(), |v| if v[0] <= n(0.) { n(0.) } else { v[0] };
        "affine", 1, |x| x[0].affine(3., 2.), |v| v[0].times(n(3.)).plus(n(2.));
        "affine by 0", 1, |x| x[0].affine(0., 7.), |v| v[0].times(n(0.)).plus(n(7.));
        "clamp", 1, |x| x[0].clamp(0.5, 2.), |v| clamp(v[0], 0.5, 2.);
        "clamp to infinity", 1, |x| x[0].clamp(1., f64::INFINITY), |v| clamp(v[0], 1., f64::INFINITY);
        "duplicate", 1, |x| x[0].duplicate(), |v| v[0];
        "copy", 1, |x| x[0].copy(), |v| v[0];
        "contiguous", 1, |x| x[0].contiguous(), |v| v[0];
        "zeros_like", 1, |x| x[0].zeros_like(), |_v| n(0.);
        "ones_like", 1, |x| x[0].ones_like(), |_v| n(1.);
        "full_like", 1, |x| x[0].full_like(7.), |_v| n(7.);
        "x + number", 1, |x| x[0] + 2., |v| v[0].plus(n(2.));
        "x * number", 1, |x| x[0] * 2., |v| v[0].times(n(2.));
        "number + x", 1, |x| 2. + x[0], |v| v[0].plus(n(2.));
        "number * x", 1, |x| 2. * x[0], |v| v[0].times(n(2.));
        "add", 2, |x| x[0].add(x[1]), |v| v[0].plus(v[1]);
        "+", 2, |x| x[0] + x[1], |v| v[0].plus(v[1]);
        "sub", 2, |x| x[0].sub(x[1]), |v| v[0].minus(v[1]);
        "-", 2, |x| x[0] - x[1].clone(), |v| v[0].minus(v[1]);
        "mul", 2, |x| x[0].mul(x[1]), |v| v[0].times(v[1]);
        "*", 2, |x| x[0].clone() * x[1], |v| v[0].times(v[1]);
        "div", 2, |x| x[0].div(x[1]), |v| v[0].over(v[1]);
        "/", 2, |x| x[0].clone() / x[1].copy(), |v| v[0].over(v[1]);
        "maximum", 2, |x| x[0].maximum(x[1]), |v| v[0].larger(v[1]);
        "minimum", 2, |x| x[0].minimum(x[1]), |v| v[0].smaller(v[1]);
        "pow", 2, |x| x[0].pow(x[1]), |v| v[0].power(v[1]);
    }
}

/// Operations of floats and numbers; those of the table have formulas (`of_one.rs`).
fn of_floats<T: Native>() -> Vec<Case<T, T>> {
    cases! {
        "powf", 1, |x| x[0].powf(1.7), |v| by(v[0], |x| x.powf(1.7));
        "powf 2", 1, |x| x[0].powf(2.), |v| by(v[0], |x| x * x);
        "powf -1", 1, |x| x[0].powf(-1.), |v| n::<T>(1.).over(v[0]);
        "powf 0", 1, |x| x[0].powf(0.), |_v| n(1.);
        "x - number", 1, |x| x[0] - 2., |v| v[0].minus(n(2.));
        "x / number", 1, |x| x[0] / 2., |v| v[0].over(n(2.));
        "number - x", 1, |x| 2. - x[0], |v| n::<T>(2.).minus(v[0]);
        "number / x", 1, |x| 2. / x[0], |v| n::<T>(2.).over(v[0]);
    }
}

/// Comparisons: of every dtype, to u8.
fn comparisons<T: Native>() -> Vec<Case<T, u8>> {
    cases! {
        "eq", 2, |x| x[0].eq(x[1]), |v| u8::from(v[0] == v[1]);
        "ne", 2, |x| x[0].ne(x[1]), |v| u8::from(v[0] != v[1]);
        "lt", 2, |x| x[0].lt(x[1]), |v| u8::from(v[0] < v[1]);
        "le", 2, |x| x[0].le(x[1]), |v| u8::from(v[0] <= v[1]);
        "gt", 2, |x| x[0].gt(x[1]), |v| u8::from(v[0] > v[1]);
        "ge", 2, |x| x[0].ge(x[1]), |v| u8::from(v[0] >= v[1]);
        "cmp", 2, |x| x[0].cmp(x[1], CmpOp::Lt), |v| u8::from(v[0] < v[1]);
    }
}

/// The broadcasting forms.
fn broadcasting<T: Native>() -> Vec<Case<T, T>> {
    cases! {
        "broadcast_add", 2, |x| x[0].broadcast_add(x[1]), |v| v[0].plus(v[1]);
        "broadcast_sub", 2, |x| x[0].broadcast_sub(x[1]), |v| v[0].minus(v[1]);
        "broadcast_mul", 2, |x| x[0].broadcast_mul(x[1]), |v| v[0].times(v[1]);
        "broadcast_div", 2, |x| x[0].broadcast_div(x[1]), |v| v[0].over(v[1]);
        "broadcast_maximum", 2, |x| x[0].broadcast_maximum(x[1]), |v| v[0].larger(v[1]);
        "broadcast_minimum", 2, |x| x[0].broadcast_minimum(x[1]), |v| v[0].smaller(v[1]);
        "broadcast_pow", 2, |x| x[0].broadcast_pow(x[1]), |v| v[0].power(v[1]);
    }
}

/// The broadcasting comparisons.
fn broadcasting_comparisons<T: Native>() -> Vec<Case<T, u8>> {
    cases! {
        "broadcast_eq", 2, |x| x[0].broadcast_eq(x[1]), |v| u8::from(v[0] == v[1]);
        "broadcast_ne", 2, |x| x[0].broadcast_ne(x[1]), |v| u8::from(v[0] != v[1]);
        "broadcast_lt", 2, |x| x[0].broadcast_lt(x[1]), |v| u8::from(v[0] < v[1]);
        "broadcast_le", 2, |x| x[0].broadcast_le(x[1]), |v| u8::from(v[0] <= v[1]);
        "broadcast_gt", 2, |x| x[0].broadcast_gt(x[1]), |v| u8::from(v[0] > v[1]);
        "broadcast_ge", 2, |x| x[0].broadcast_ge(x[1]), |v| u8::from(v[0] >= v[1]);
    }
}

/// A case on one choice of operands.
fn run<T: Native, R: Native>(case: &Case<T, R>, operands: &[&Operand<T>]) {
    let tensors: Vec<&Tensor> = operands.iter().map(|operand| &operand.tensor).collect();
    let dims = operands.iter().fold(Vec::new(), |dims, operand| wider(&dims, &operand.host.dims));
    let hosts: Vec<Host<T>> = operands.iter().map(|operand| operand.host.broadcast(&dims)).collect();
    let count = dims.iter().product();
    let data = (0..count).map(|i| (case.reference)(&hosts.iter().map(|host| host.data[i]).collect::<Vec<_>>()));
    let want = Host { data: data.collect(), dims };
    let forms: Vec<&str> = operands.iter().map(|operand| operand.form).collect();
    let what = format!("{} of {} {}", case.name, T::DTYPE, forms.join(" and "));
    let got = (case.run)(&tensors).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_same(&what, &got, &want);
}

/// Cases on every form, two operands in every pair of forms.
fn on_every_form<T: Native, R: Native>(device: &Device, cases: &[Case<T, R>]) {
    for (one, two) in [(forms(device, 1), forms(device, 2)), (shapes(device, 3), shapes(device, 4))] {
        for case in cases {
            for a in &one {
                match case.inputs {
                    1 => run(case, &[a]),
                    _ => two.iter().filter(|b| b.host.dims == a.host.dims).for_each(|b| run(case, &[a, b])),
                }
            }
        }
    }
}

/// Runs a generic body for each dtype in the list.
macro_rules! for_types {
    ($device:expr, $body:ident, $($t:ty),*) => {{ $($body::<$t>($device);)* }};
}
pub(crate) use for_types;

/// Runs a generic body for each dtype that computes.
macro_rules! for_numbers {
    ($device:expr, $body:ident) => {
        $crate::ops::cases::for_types!(
            $device,
            $body,
            u8,
            u16,
            u32,
            u64,
            i8,
            i16,
            i32,
            i64,
            ndgc::F8E4M3,
            ndgc::f16,
            ndgc::bf16,
            f32,
            f64
        )
    };
}
pub(crate) use for_numbers;

/// Runs a generic body for each dtype of floats.
macro_rules! for_floats {
    ($device:expr, $body:ident) => {
        $crate::ops::cases::for_types!($device, $body, ndgc::F8E4M3, ndgc::f16, ndgc::bf16, f32, f64)
    };
}
pub(crate) use for_floats;

#[test]
fn elementwise_operations_of_every_dtype_match_naive_loops_on_every_form() {
    if crate::common::ran_apart() {
        return;
    }
    fn body<T: Native>(device: &Device) {
        on_every_form::<T, T>(device, &of_any());
        on_every_form::<T, u8>(device, &comparisons());
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn operations_of_floats_match_naive_loops_on_every_form() {
    fn body<T: Native>(device: &Device) {
        on_every_form::<T, T>(device, &of_floats());
    }
    each(|device| for_floats!(device, body));
}

#[test]
fn broadcasting_forms_match_naive_loops_for_every_pair_of_shapes() {
    fn body<T: Native>(device: &Device) {
        let pairs: [(&[usize], &[usize]); 9] = [
            (&[2, 3], &[2, 3]),
            (&[2, 3], &[3]),
            (&[3], &[2, 3]),
            (&[2, 1, 4], &[3, 1]),
            (&[], &[2, 3]),
            (&[5, 1], &[]),
            (&[1], &[4]),
            (&[0, 3], &[1, 3]),
            (&[2, 1], &[2, 0]),
        ];
        for (a, b) in pairs {
            let operand = |dims: &[usize], seed| {
                let host = Host::sample(dims, seed);
                Operand { form: "plain", tensor: put(&host, device), host }
            };
            let (a, b) = (operand(a, 5), operand(b, 6));
            broadcasting::<T>().iter().for_each(|case| run(case, &[&a, &b]));
            broadcasting_comparisons::<T>().iter().for_each(|case| run(case, &[&a, &b]));
            // Transposed on one side.
            if a.host.dims.len() == 2 {
                let t = Operand {
                    form: "transposed",
                    tensor: a.tensor.t().unwrap().contiguous().unwrap().t().unwrap(),
                    host: a.host.clone(),
                };
                broadcasting::<T>().iter().for_each(|case| run(case, &[&t, &b]));
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn arrays_large_enough_for_several_threads_match_naive_loops() {
    if crate::common::ran_apart() {
        return;
    }
    each(|device| {
        let of = |seed| {
            let host = Host::<f32>::sample(&[3, 100_003], seed);
            Operand { form: "large", tensor: put(&host, device), host }
        };
        let (a, b) = (of(7), of(8));
        let wanted = ["add", "mul", "maximum", "neg", "affine", "relu"];
        of_any().iter().filter(|case| wanted.contains(&case.name)).for_each(|case| run(case, &[&a, &b][..case.inputs]));
        let wanted = ["exp", "tanh", "sqrt"];
        of_one::functions().filter(|(name, ..)| wanted.contains(name)).for_each(|function| of_one::check(function, &a));
        run(&comparisons()[2], &[&a, &b]);
    });
}

/// Zeros of both signs, what is no number, infinities, and numbers, far more than are computed on the spot. Two of
/// them with different steps have each pair.
fn special(device: &Device, dtype: DType, step: usize) -> Tensor {
    let numbers = [0., -0., f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1., -1.5, 3.];
    let all: Vec<f64> = (0..64).map(|i| numbers[(step * i + i / 8) % 8]).collect();
    Tensor::from_vec(all, 64, device).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn few_elements_compare_as_they_do_among_many() {
    each_case(&[false], |device| {
        for dtype in DType::ALL {
            let (a, b) = (special(device, dtype, 1), special(device, dtype, 2));
            // In strides, by the kernel.
            let columns = |x: &Tensor| x.reshape((64, 1)).unwrap().repeat((1, 2)).unwrap();
            let (in_a, in_b) = (columns(&a), columns(&b));
            for op in [CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge] {
                let want = values::<u8>(&a.cmp(&b, op).unwrap());
                let of_first = values::<u8>(&a.cmp(&a.get(0).unwrap().broadcast_as(64).unwrap(), op).unwrap());
                for (first, count) in (1..=17).map(|count| (3 * (count - 1) % 47, count)) {
                    let same = |x: Tensor, y: Tensor, want: &[u8]| {
                        let got = x.cmp(&y, op).unwrap();
                        let what = format!("{op:?} of {count} {dtype} from {first} on");
                        assert_eq!(got.dims(), [count], "{what}");
                        assert_eq!(values::<u8>(&got), want[first..][..count], "{what}");
                    };
                    let part = |x: &Tensor| x.narrow(0, first, count).unwrap();
                    let column = |x: &Tensor| part(x).narrow(1, 1, 1).unwrap().squeeze(1).unwrap();
                    same(part(&a), part(&b), &want);
                    same(column(&in_a), part(&b), &want);
                    same(part(&a), column(&in_b), &want);
                    same(part(&a), a.get(0).unwrap().broadcast_as(count).unwrap(), &of_first);
                }
            }
        }
    });
}

#[test]
fn few_elements_compare_with_ones_that_repeat() {
    each(|device| {
        let a = Tensor::new([[1f32, 2., f32::NAN], [-0., 0., 5.]], device).unwrap();
        let row = Tensor::new([1f32, 0., 5.], device).unwrap();
        assert_eq!(values::<u8>(&a.broadcast_ge(&row).unwrap()), [1, 1, 0, 0, 1, 1]);
        assert_eq!(values::<u8>(&row.broadcast_lt(&a).unwrap()), [0, 1, 0, 0, 0, 0]);
        assert_eq!(a.broadcast_eq(&row).unwrap().dims(), [2, 3]);
        assert_eq!(values::<u8>(&a.eq(0.).unwrap()), [0, 0, 0, 1, 1, 0]);
        assert!(matches!(error(a.eq(&row)), Error::ShapeMismatch { op: "eq", .. }));
        assert!(matches!(error(a.lt(&a.to_dtype(DType::F64).unwrap())), Error::DTypeMismatch { op: "lt", .. }));
        let manager = ndgc::NdManager::new_base_manager(device).unwrap();
        let owned = manager.ones(3, DType::F32).unwrap();
        assert_eq!(owned.gt(&row).unwrap().manager().unwrap().uuid(), manager.uuid());
        assert_ne!(row.gt(&owned).unwrap().manager().unwrap().uuid(), manager.uuid());
        manager.close().unwrap();
    });
}

#[test]
fn where_cond_chooses_by_masks_of_every_index_type_and_every_form() {
    fn body<T: Native>(device: &Device) {
        let (yes, no) = (forms::<T>(device, 9), forms::<T>(device, 10));
        let mask = Host::<u8>::from_fn(&[2, 3, 4], |i| (i.iter().sum::<usize>() % 3) as u8);
        let masks = [DType::Bool, DType::U8, DType::U32, DType::I64].map(|d| put(&mask, device).to_dtype(d).unwrap());
        let turned = put(&mask.permute(&[2, 0, 1]), device).permute((1, 2, 0)).unwrap();
        for condition in masks.iter().chain([&turned]) {
            for (y, n) in yes.iter().zip(no.iter().rev()) {
                let got = condition.where_cond(&y.tensor, &n.tensor).unwrap();
                let data = (0..24).map(|i| if mask.data[i] != 0 { y.host.data[i] } else { n.host.data[i] });
                let want = Host { dims: vec![2, 3, 4], data: data.collect() };
                assert_same(&format!("where_cond of {} and {}", y.form, n.form), &got, &want);
            }
        }
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn where_cond_chooses_few_elements_as_it_does_among_many() {
    each_case(&[false], |device| {
        // Of some only one byte is not 0.
        let masks: Vec<i64> = (0..64).map(|i| [0, 1, 0, 1 << 40, 256, 0, -1][i % 7]).collect();
        let masks = Tensor::from_vec(masks, 64, device).unwrap();
        let in_strides = |x: &Tensor| x.flip(&[0]).unwrap().copy().unwrap().flip(&[0]).unwrap();
        for dtype in DType::ALL {
            let (yes, no) = (special(device, dtype, 1), special(device, dtype, 2));
            let (by_yes, by_no) = (in_strides(&yes), in_strides(&no));
            for of in [DType::Bool, DType::U8, DType::U32, DType::I64, DType::I16] {
                let mask = masks.to_dtype(of).unwrap();
                let by_mask = in_strides(&mask);
                let want = bits(&mask.where_cond(&yes, &no).unwrap());
                for (first, count) in (1..=17).map(|count| (3 * (count - 1) % 47, count)) {
                    let chosen = |mask: &Tensor, yes: &Tensor, no: &Tensor| {
                        let [mask, yes, no] = [mask, yes, no].map(|x| x.narrow(0, first, count).unwrap());
                        let got = mask.where_cond(&yes, &no).unwrap();
                        let what = format!("{count} {dtype} from {first} on by {of}");
                        assert_eq!((got.dtype(), got.dims()), (dtype, &[count][..]), "{what}");
                        assert_eq!(bits(&got), want[first..][..count], "{what}");
                    };
                    chosen(&mask, &yes, &no);
                    chosen(&by_mask, &yes, &no);
                    chosen(&mask, &by_yes, &no);
                    chosen(&mask, &yes, &by_no);
                }
            }
        }
    });
}

#[test]
fn where_cond_of_few_elements_belongs_to_the_owner_of_what_it_chooses_from() {
    each(|device| {
        let manager = ndgc::NdManager::new_base_manager(device).unwrap();
        let (mask, no) = (Tensor::new([1u8, 0], device).unwrap(), Tensor::new([3f32, 4.], device).unwrap());
        let yes = manager.ones(2, DType::F32).unwrap();
        let got = mask.where_cond(&yes, &no).unwrap();
        assert_eq!((values::<f32>(&got), got.manager().unwrap().uuid()), (vec![1., 4.], manager.uuid()));
        assert_ne!(mask.where_cond(&no, &yes).unwrap().manager().unwrap().uuid(), manager.uuid());
        manager.close().unwrap();
    });
}

#[test]
fn operations_of_floats_refuse_integers_by_name_and_make_nothing() {
    let refused: [(&str, Run); 13] = [
        ("exp", |x| x[0].exp()),
        ("log", |x| x[0].log()),
        ("sqrt", |x| x[0].sqrt()),
        ("recip", |x| x[0].recip()),
        ("tanh", |x| x[0].tanh()),
        ("sigmoid", |x| x[0].sigmoid()),
        ("sin", |x| x[0].sin()),
        ("cos", |x| x[0].cos()),
        ("powf", |x| x[0].powf(2.)),
        ("mean", |x| x[0].mean(0)),
        ("mean_all", |x| x[0].mean_all()),
        ("softmax", |x| x[0].softmax(1)),
        ("log_softmax", |x| x[0].log_softmax(0)),
    ];
    each(|device| {
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
            let a = Tensor::ones((3, 3), dtype, device).unwrap();
            let before = crate::ops::support::active(device);
            for (name, run) in refused {
                match error(run(&[&a])) {
                    Error::UnsupportedDType { op, dtype: found, .. } => assert_eq!((op, found), (name, dtype)),
                    other => panic!("{name} of {dtype}: {other}"),
                }
                assert_eq!(crate::ops::support::active(device), before, "{name} allocated");
            }
            for (name, run) in [("exp_", (|x| x.exp_()) as fn(&Tensor) -> _), ("sigmoid_", |x| x.sigmoid_())] {
                assert!(matches!(error(run(&a)), Error::UnsupportedDType { op, .. } if op == name));
            }
        }
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let mask = Tensor::ones((3, 3), dtype, device).unwrap();
            let found = error(mask.where_cond(&mask, &mask));
            assert!(matches!(found, Error::UnsupportedDType { op: "where_cond", .. }), "{found}");
        }
    });
}

#[test]
fn whole_arrays_compare_by_content_or_within_a_tolerance() {
    each(|device| {
        let a = Tensor::new([[1f32, 2.], [3., 4.]], device).unwrap();
        let turned = Tensor::new([[1f32, 3.], [2., 4.]], device).unwrap().t().unwrap();
        assert!(a.content_equals(&turned).unwrap() && a.content_equals(&a).unwrap());
        assert!(!a.content_equals(&a.affine(1., 1e-3).unwrap()).unwrap());
        assert!(!a.content_equals(&a.reshape(4).unwrap()).unwrap(), "another shape");
        assert!(!a.content_equals(&a.to_dtype(DType::F64).unwrap()).unwrap(), "another dtype");
        let odd = Tensor::new([f32::NAN, f32::INFINITY], device).unwrap();
        assert!(!odd.content_equals(&odd).unwrap(), "NaN is not itself");
        assert!(odd.all_close(&odd, 0., 0.).unwrap(), "but as close as can be");
        assert!(!odd.all_close(&odd.neg().unwrap(), 1., 1.).unwrap(), "the infinities are apart");
        assert!(a.all_close(&a.affine(1., 1e-3).unwrap(), 0., 2e-3).unwrap());
        assert!(a.all_close(&a.affine(1.001, 0.).unwrap(), 2e-3, 0.).unwrap());
        assert!(!a.all_close(&a.affine(1.01, 0.).unwrap(), 1e-3, 1e-3).unwrap());
        assert!(matches!(error(a.all_close(&odd, 1., 1.)), Error::ShapeMismatch { op: "all_close", .. }));
        let empty = Tensor::zeros((0, 2), DType::F32, device).unwrap();
        assert!(empty.content_equals(&empty).unwrap() && empty.all_close(&empty, 0., 0.).unwrap());
        // Integers that f64 does not tell apart.
        let whole = |all: [i64; 2]| Tensor::new(all, device).unwrap();
        let far = whole([i64::MAX, -(1 << 53) - 1]);
        assert!(far.all_close(&far, 0., 0.).unwrap());
        for near in [[i64::MAX - 1, -(1 << 53) - 1], [i64::MAX, -(1 << 53)]].map(whole) {
            assert!(!far.all_close(&near, 0., 0.5).unwrap() && far.all_close(&near, 0., 1.).unwrap());
        }
        let largest = Tensor::new([u64::MAX, u64::MAX - 1], device).unwrap();
        assert!(!largest.all_close(&Tensor::new([u64::MAX; 2], device).unwrap(), 0., 0.).unwrap());
        assert!(!largest.all_close(&whole([-1, -2]), 0., 1.).unwrap() && largest.all_close(&far, 2., 0.).is_ok());
    });
}

#[test]
fn the_functions_of_nn_are_those_of_the_arrays() {
    use ndgc::nn::{Linear, Mlp, Module, ops};
    each(|device| {
        let x = put(&Host::<f32>::tame(&[3, 4], 1), device);
        let pairs = [
            (ops::softmax(&x, 0), x.softmax(0)),
            (ops::softmax_last_dim(&x), x.softmax(1)),
            (ops::log_softmax(&x, -1), x.log_softmax(1)),
            (ops::sigmoid(&x), x.sigmoid()),
        ];
        for (got, want) in pairs {
            assert!(got.unwrap().content_equals(&want.unwrap()).unwrap());
        }
        let mut random = ndgc::Generator::new(1);
        let model = Mlp::new(&[4, 5, 2], &mut random, device).unwrap();
        let v = model.variables();
        let hidden =
            Linear::new(v[0].as_tensor().clone(), Some(v[1].as_tensor().clone())).forward(&x).unwrap().relu().unwrap();
        let want = Linear::new(v[2].as_tensor().clone(), Some(v[3].as_tensor().clone())).forward(&hidden).unwrap();
        assert!(model.forward(&x).unwrap().content_equals(&want).unwrap());
        let bound = v[0].abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(bound > 0.2 && bound <= 0.5, "weights lie within 1 / sqrt(4), {bound}");
        for sizes in [&[4][..], &[4, 0]] {
            assert!(matches!(error(Mlp::new(sizes, &mut random, device)), Error::Argument { .. }));
        }
    });
}

#[test]
fn arrays_read_as_nested_vectors_of_their_rank() {
    each(|device| {
        let a = Tensor::arange(0u32, 8, device).unwrap().reshape((2, 2, 2)).unwrap();
        assert_eq!(a.to_vec3::<u32>().unwrap(), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]);
        assert_eq!(a.get(1).unwrap().t().unwrap().to_vec2::<u32>().unwrap(), [[4, 6], [5, 7]]);
        assert_eq!(a.get_on_dim(2, 1).unwrap().get(0).unwrap().to_vec1::<u32>().unwrap(), [1, 3]);
        assert_eq!(a.max_all().unwrap().to_vec0::<u32>().unwrap(), 7);
        assert_eq!((a.dims3().unwrap(), a.rank(), a.elem_count()), ((2, 2, 2), 3, 8));
        assert_eq!((a.dim(-1).unwrap(), a.stride()), (2, &[4, 2, 1][..]));
        assert!(matches!(error(a.dims2()), Error::Shape { op: "dims2", .. }));
        assert!(matches!(error(a.to_vec1::<u32>()), Error::Shape { op: "dims1", .. }));
        let empty = Tensor::zeros((2, 0), DType::F32, device).unwrap();
        assert_eq!(empty.to_vec2::<f32>().unwrap(), [[0f32; 0]; 2]);
    });
}
