//! Operators that use their operands up, operators that change one, and expressions in `t!`: the same numbers as the
//! methods, in fewer bytes, and never in bytes that somebody can still see.

use std::sync::Arc;

use ndgc::{DType, Device, Error, NdManager, Result, Tensor, Var, gc, no_grad, t};

use crate::ops::reference::Host;
use crate::ops::support::{active, each, error, f64s, put, values};

/// Elements of a large array, beside which roundings of the peak are small.
const LARGE: usize = 1 << 18;
const BYTES: u64 = 8 * LARGE as u64;

/// Whole buffers that the peak rose by.
fn buffers(device: &Device, f: impl FnOnce() -> Result<Tensor>) -> (u64, Tensor) {
    let before = active(device);
    device.reset_peak();
    let result = f().unwrap();
    let peak = device.memory().peak;
    ((peak - before + BYTES / 2) / BYTES, result)
}

#[test]
fn an_expression_of_temporaries_needs_one_buffer() {
    each(|device| {
        let of = |x: f64| Tensor::full(x, LARGE, device).unwrap();
        let (a, b, c) = (of(3.), of(4.), of(5.));
        let check = |what: &str, want: u64, value: f64, f: &dyn Fn() -> Result<Tensor>| {
            let (count, result) = buffers(device, f);
            assert_eq!(count, want, "buffers of {what}");
            let all = values::<f64>(&result);
            assert!(all.len() == LARGE && all.iter().all(|&x| x == value), "{what} is {}", all[0]);
            drop(result);
        };
        check("(a * b)? + c", 1, 17., &|| (&a * &b)? + &c);
        check("without ?", 1, 17., &|| (&a * &b) + &c);
        check("a temporary on the right", 1, 17., &|| &c + (&a * &b)?);
        check("both given, none kept", 2, 32., &|| (&a * &b)? + (&b * &c));
        check("a difference from the right", 2, -7., &|| &c - (&a * &b)?);
        check("numbers", 1, 2., &|| (-((((&a * 2.)? + 4.)? - 6.)? / 2.)?)? + 4.);
        check("t!", 1, -19., &|| t!(-((a * b) + c) - 2));
        check("t! with functions", 1, 4., &|| t!((a * b + b).sqrt()));
        check("two products", 2, 5., &|| t!((a * a + b * b).sqrt()));
        check("the same by methods", 2, 17., &|| a.mul(&b)?.add(&c));
        assert_eq!((values::<f64>(&a)[0], values::<f64>(&b)[0], values::<f64>(&c)[0]), (3., 4., 5.));
    });
}

#[test]
fn a_managers_temporaries_are_used_up_only_if_the_switch_would_end_them() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = manager.ones(LARGE, DType::F64).unwrap();
        let (count, result) = buffers(device, || (&a + &a)? * 3.);
        assert_eq!(values::<f64>(&result)[7], 6.);
        assert_eq!(result.manager().unwrap().uuid(), manager.uuid());
        let expected = if gc::is_on() { (1, 2) } else { (2, 3) };
        assert_eq!((count, manager.array_count()), expected, "switched off, the manager keeps its arrays");
        let free = Tensor::ones(LARGE, DType::F64, device).unwrap();
        let sum = (&a + (&free * 2.)).unwrap();
        assert_eq!(sum.manager().unwrap().uuid(), manager.uuid(), "bytes of a temporary, owner of the first operand");
        manager.close().unwrap();
        assert!(!sum.is_open());
        assert_eq!(values::<f64>(&free)[0], 1.);
    });
}

#[test]
fn bytes_that_somebody_else_has_are_left_alone() {
    each(|device| {
        // Large enough that its bytes are worth a look.
        const N: usize = 1000;
        let rows = |numbers: [f64; 3]| {
            f64s(device, &numbers, (3, 1)).broadcast_as((3, N)).unwrap().flatten_all().unwrap().copy().unwrap()
        };
        let all = |numbers: [f64; 3]| numbers.into_iter().flat_map(|x| [x; N]).collect::<Vec<f64>>();
        let (ones, b) = (|| rows([1.; 3]), rows([10., 20., 30.]));
        let sum = |a: Tensor| values::<f64>(&(a + &b).unwrap());
        let a = ones();
        assert_eq!(sum(a.clone()), all([11., 21., 31.]));
        assert_eq!(values::<f64>(&a), all([1.; 3]), "another handle");
        let view = a.narrow(0, N, N).unwrap();
        assert_eq!(sum(a), all([11., 21., 31.]));
        assert_eq!(values::<f64>(&view), [1.; N], "a view");
        let flipped = rows([1., 2., 3.]).flip(&[0]).unwrap();
        assert_eq!(sum(flipped), all([13., 22., 31.]), "not in row-major order");
        let part = Tensor::cat(&[&rows([1., 2., 3.]), &rows([4.; 3])], 0).unwrap().narrow(0, N, 3 * N).unwrap();
        assert_eq!(sum(part), all([12., 23., 34.]), "a part of a larger buffer");
        let wide = f64s(device, &[2.], 1).broadcast_as(3 * N).unwrap();
        assert_eq!(sum(wide), all([12., 22., 32.]), "a repeated element");
        let a = Tensor::ones(3000, DType::F64, device).unwrap();
        let (key, b) = (a.key(), a.copy().unwrap());
        let result = (a + &b).unwrap();
        assert!(Tensor::from_registry(key).is_none() && result.key() != key, "the result is an array of its own");
        let empty = Tensor::zeros((0, 3), DType::F64, device).unwrap();
        assert_eq!((empty + &Tensor::zeros((0, 3), DType::F64, device).unwrap()).unwrap().dims(), [0, 3]);
        assert!(matches!(error(ones() + f64s(device, &[1., 2.], 2)), Error::ShapeMismatch { op: "add", .. }));
        assert!(matches!(
            error(ones() * Tensor::ones(3 * N, DType::F32, device).unwrap()),
            Error::DTypeMismatch { .. }
        ));
        assert!(error(ones() + Err(Error::msg("before"))).to_string().contains("before"));
    });
}

#[test]
fn foreign_bytes_given_by_value_are_read_and_never_written() {
    each(|device| {
        let bytes: Arc<Vec<u8>> = Arc::new(2f64.to_ne_bytes().repeat(LARGE));
        let foreign = || Tensor::from_shared(Arc::clone(&bytes), 0..8 * LARGE, DType::F64, LARGE, device).unwrap();
        let one = Tensor::ones(LARGE, DType::F64, device).unwrap();
        let made = [
            (foreign() + &one, 3.),
            (&one - foreign(), -1.),
            (foreign() * 4., 8.),
            (-foreign(), -2.),
            (foreign() + foreign(), 4.),
            (t!(foreign().sqr()), 4.),
        ];
        for (made, expected) in made {
            assert!(values::<f64>(&made.unwrap()).iter().all(|&value| value == expected), "{expected}");
        }
        gc::collect();
        assert_eq!(Arc::strong_count(&bytes), 1, "nobody needs them any more");
        assert!(bytes.chunks(8).all(|value| value == 2f64.to_ne_bytes()));
    });
}

#[test]
fn gradients_are_those_of_operands_that_were_not_used_up() {
    each(|device| {
        // Large enough to be used up.
        let var = |pair: [f64; 2]| Var::from_vec(pair.repeat(1200), 2400, device).unwrap();
        let (x, y) = (var([0.5, -1.5]), var([2., 3.]));
        let plain = || {
            let product = x.mul(&y)?.exp()?;
            product.mul(&product.add(&x)?)?.affine(2., 1.)?.sub(&y)?.neg()?.sum_all()
        };
        let reusing = || {
            let product = t!(((x * y).exp()))?;
            let sum = (&product + &*x)?;
            (-((((&product * sum)? * 2.)? + 1.)? - &*y)?)?.sum_all()
        };
        let (one, two) = (plain().unwrap(), reusing().unwrap());
        assert_eq!(values::<f64>(&one), values::<f64>(&two));
        let (one, two) = (one.backward().unwrap(), two.backward().unwrap());
        for var in [&x, &y] {
            assert_eq!(values::<f64>(one.get(var).unwrap()), values::<f64>(two.get(var).unwrap()));
        }
        let untracked = no_grad(|| t!((x * y).exp() * 2.0 - y)).unwrap();
        assert!(!untracked.track_op());
        assert_eq!(values::<f64>(&x), [0.5, -1.5].repeat(1200), "variables are never written");
    });
}

#[test]
fn every_pair_of_operands_gives_what_the_method_gives() {
    fn pairs<T: crate::ops::reference::Native>(device: &Device) {
        let (h, g) = (
            Host::<T>::tame(&[2, 2400], 1),
            Host::<T>::tame(&[2, 2400], 2).map(|x| if x == T::from_f64(0.) { T::from_f64(1.) } else { x }),
        );
        let (a, b) = (|| put(&h, device), || put(&g, device));
        let same = |what: &str, got: Result<Tensor>, want: Result<Tensor>| {
            assert_eq!(values::<T>(&got.unwrap()), values::<T>(&want.unwrap()), "{what} of {}", T::DTYPE);
        };
        macro_rules! all {
            ($op:tt, $method:ident) => {
                let want = || a().$method(&b());
                same(stringify!($op), &a() $op &b(), want());
                same(stringify!($op), &a() $op b(), want());
                same(stringify!($op), a() $op &b(), want());
                same(stringify!($op), a() $op b(), want());
                same(stringify!($op), &a() $op Ok(b()), want());
                same(stringify!($op), a() $op Ok(b()), want());
                same(stringify!($op), Ok(a()) $op &b(), want());
                same(stringify!($op), Ok(a()) $op b(), want());
                let two = || Tensor::full(T::from_f64(2.), (2, 2400), device).unwrap();
                let right = || a().$method(&two());
                same(stringify!($op 2), &a() $op 2., right());
                same(stringify!($op 2), a() $op 2., right());
                let left = || two().$method(&b());
                same(stringify!(2 $op), 2. $op &b(), left());
                same(stringify!(2 $op), 2. $op b(), left());
                let mut changed = a();
                changed = changed.copy().unwrap();
                let kept = changed.clone();
                all!(@assign $op, changed, &b());
                same(stringify!($op =), Ok(changed.clone()), want());
                assert!(changed.is_same(&kept), "the same array");
            };
            (@assign +, $a:ident, $b:expr) => { $a += $b; };
            (@assign -, $a:ident, $b:expr) => { $a -= $b; };
            (@assign *, $a:ident, $b:expr) => { $a *= $b; };
            (@assign /, $a:ident, $b:expr) => { $a /= $b; };
        }
        all!(+, add);
        all!(-, sub);
        all!(*, mul);
        all!(/, div);
    }
    each(|device| {
        pairs::<f32>(device);
        pairs::<f64>(device);
        pairs::<i64>(device);
    });
}

#[test]
fn a_change_by_an_operator_that_fails_is_told_at_the_next_use() {
    each(|device| {
        let mut a = f64s(device, &[1., 2.], 2);
        let view = a.clone();
        a += &f64s(device, &[1., 1.], 2);
        a *= 2.;
        a -= f64s(device, &[1.], 1);
        a /= f64s(device, &[1., 3.], 2).affine(1., 0.);
        assert_eq!(values::<f64>(&view), [3., 5. / 3.]);
        a += &f64s(device, &[1., 2., 3.], 3);
        assert_eq!(values::<f64>(&view), [3., 5. / 3.], "the array is as it was");
        let said = error(a.add(&a));
        assert!(matches!(said, Error::StaleArray(_)), "{said:?}");
        assert!(said.to_string().contains("reuse.rs:") && said.to_string().contains("lhs: [2], rhs: [3]"), "{said}");
        let mut ints = Tensor::new([7i64, -7], device).unwrap();
        ints /= 2.;
        ints += 1.;
        assert_eq!(values::<i64>(&ints), [4, -2]);
        ints /= -0.5;
        assert_eq!(values::<i64>(&ints), [-8, 4], "by what would become 0");
    });
}

#[test]
fn expressions_read_names_fields_calls_and_numbers() {
    struct Layer {
        weights: (Tensor, Vec<Tensor>),
        rate: f32,
    }
    impl Layer {
        fn step(&self, x: &Tensor) -> Result<Tensor> {
            t!(self.weights.0 * x + self.weights.1[1] / self.rate)
        }
    }
    fn twice(x: &Tensor) -> Result<Tensor> {
        x * 2.
    }
    each(|device| {
        let of = |x: f64| Tensor::new(x, device).unwrap();
        let number = |x: Result<Tensor>| x.unwrap().to_scalar::<f64>().unwrap();
        let (x, y) = (of(3.), &of(5.));
        let (scale, count) = (0.5f64, 4usize);
        assert_eq!(number(t!(x)), 3.);
        assert_eq!(number(t!(-x)), -3.);
        assert_eq!(number(t!(x - y - 1)), -3.);
        assert_eq!(number(t!(x - (y - 1))), -1.);
        assert_eq!(number(t!(2 + 3 * x)), 11.);
        assert_eq!(number(t!((2.0 + 3.0) * x)), 15.);
        assert_eq!(number(t!(1 - x * -2)), 7.);
        assert_eq!(number(t!(30 / x / y)), 2.);
        assert_eq!(number(t!(scale * x + count)), 5.5);
        assert_eq!(number(t!(&x + &y)), 8.);
        assert_eq!(number(t!(x.maximum(y) * x.sqr().neg().abs())), 45.);
        assert_eq!(number(t!((x + y).powi(2) - twice(&x)? + twice(y))), 68.);
        assert_eq!(number(t!(Tensor::ones_like(&x) + x)), 4.);
        let layer = Layer { weights: (of(2.), vec![of(0.), of(8.)]), rate: 4. };
        assert_eq!(number(layer.step(&x)), 8.);
        let pair = f64s(device, &[1., 2.], 2);
        assert!(matches!(error(t!(x + pair * 2)), Error::ShapeMismatch { op: "add", .. }));
        assert!(matches!(error(t!((x + pair).exp() * 2 - y)), Error::ShapeMismatch { op: "add", .. }));
        assert!(matches!(error(t!(1 + 2)), Error::Argument { op: "t!", .. }));
        assert!(matches!(error(t!(scale.exp() + x)), Error::Argument { op: "t!", .. }));
        let ints = Tensor::new([4i64, 9], device).unwrap();
        assert_eq!(values::<i64>(&t!((ints + ints) / 3 - 1).unwrap()), [1, 5]);
        assert!(matches!(error(t!((ints + ints).exp())), Error::UnsupportedDType { op: "exp", .. }));
    });
}

#[test]
fn a_captured_section_uses_nothing_up() {
    crate::ops::support::alone(|| {
        for device in crate::ops::support::devices().into_iter().filter(|device| !matches!(device, Device::Cpu)) {
            let x = f64s(&device, &[1., 2.], 2);
            let before = std::cell::Cell::new(Some(f64s(&device, &[10., 20.], 2)));
            let section = || match before.take() {
                Some(given) => (given + &x)? * 2.,
                None => (f64s(&device, &[0., 0.], 2) + &x)? * 2.,
            };
            let warm = f64s(&device, &[1., 1.], 2);
            ((&warm + &x).unwrap() * 2.).unwrap();
            ((warm + &x).unwrap() * 2.).unwrap();
            gc::collect();
            let (graph, result) = device.capture(section).unwrap();
            for _ in 0..3 {
                graph.replay().unwrap();
                assert_eq!(values::<f64>(&result), [22., 44.], "each replay is the same");
            }
            drop((graph, result, x));
            gc::collect();
            crate::ops::support::check(&device);
        }
    });
}
