//! Operands that may be numbers: the same as arrays of them.

use ndgc::{CmpOp, DType, Error, Tensor, Var};

use crate::ops::reference::{Host, Native};
use crate::ops::support::{assert_same, each, error, f64s, forms, values};

#[test]
fn a_number_stands_for_an_array_of_it() {
    fn body<T: Native>(device: &ndgc::Device) {
        for operand in forms::<T>(device, 1) {
            let (x, what) = (&operand.tensor, operand.form);
            let full = x.full_like(T::from_f64(2.).to_f64()).unwrap();
            let two = T::from_f64(2.);
            let pairs = [
                (x.maximum(two), x.maximum(&full)),
                (x.minimum(2f64), x.minimum(&full)),
                (x.eq(two), x.eq(&full)),
                (x.ne(2u8), x.ne(&full)),
                (x.lt(2i64), x.lt(&full)),
                (x.le(2f32), x.le(&full)),
                (x.gt(two), x.gt(&full)),
                (x.ge(two), x.ge(&full)),
                (x.cmp(two, CmpOp::Lt), x.cmp(&full, CmpOp::Lt)),
                (x.clamp(&full, 3.), x.clamp(2., 3.)),
                (x.clamp(1., &full), x.clamp(T::from_f64(1.), two)),
            ];
            for (i, (got, want)) in pairs.into_iter().enumerate() {
                let (got, want) = (got.unwrap(), want.unwrap());
                let bits = |x: &Tensor| {
                    values::<f64>(&x.to_dtype(DType::F64).unwrap()).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(bits(&got), bits(&want), "{i} of {what} {}", T::DTYPE);
            }
        }
    }
    each(|device| {
        body::<u8>(device);
        body::<i64>(device);
        body::<f32>(device);
    });
}

#[test]
fn numbers_are_exact_and_refused_where_arrays_would_be() {
    each(|device| {
        let big = (1i64 << 53) + 1;
        let x = Tensor::new([big - 1, big, big + 1], device).unwrap();
        assert_eq!(values::<u8>(&x.eq(big).unwrap()), [0, 1, 0], "no detour over doubles");
        assert_eq!(values::<i64>(&x.clamp(big, i64::MAX).unwrap()), [big, big, big + 1]);
        assert_eq!(values::<u8>(&x.gt(1.9).unwrap()), [1, 1, 1]);
        let x = f64s(device, &[1., 5.], 2);
        assert!(matches!(error(x.clamp(3., 2.)), Error::Argument { op: "clamp", .. }));
        assert!(matches!(error(x.clamp(f64::NAN, 2.)), Error::Argument { op: "clamp", .. }));
        assert!(matches!(error(x.clamp(&f64s(device, &[1.], 1), 2.)), Error::ShapeMismatch { op: "clamp", .. }));
        assert!(matches!(error(x.eq(&f64s(device, &[1.], 1))), Error::ShapeMismatch { op: "eq", .. }));
        let low = Var::from_vec(vec![2f64, 2.], 2, device).unwrap();
        let cut = x.clamp(&low, 4.).unwrap();
        assert_same("cut", &cut, &Host { dims: vec![2], data: vec![2., 4.] });
        let grads = cut.sum_all().unwrap().backward().unwrap();
        assert_eq!(values::<f64>(grads.get(&low).unwrap()), [1., 0.]);
        let manager = ndgc::NdManager::new_base_manager(device).unwrap();
        let a = manager.ones(3, DType::F64).unwrap();
        let larger = a.maximum(2.).unwrap();
        assert_eq!((manager.array_count(), values::<f64>(&larger)), (2, vec![2.; 3]), "the number itself is gone");
        manager.close().unwrap();
    });
}

/// Broken by: a conversion that wraps, so that i64::MAX was -1 of i32.
#[test]
fn numbers_beyond_an_integer_dtype_end_with_it() {
    each(|device| {
        let x = Tensor::new([-5i32, 7], device).unwrap();
        assert_eq!(values::<i32>(&x.clamp(0i64, i64::MAX).unwrap()), [0, 7]);
        assert_eq!(values::<i32>(&x.clamp(i64::MIN, 1u64 << 60).unwrap()), [-5, 7]);
        assert_eq!(values::<i32>(&x.clamp(u64::MAX, u64::MAX).unwrap()), [i32::MAX; 2]);
        let large = Tensor::new([3u64, u64::MAX], device).unwrap();
        assert_eq!(values::<u64>(&large.clamp(i64::MIN, 5i64).unwrap()), [3, 5]);
        assert_eq!(values::<u64>(&large.clamp(5i64, u64::MAX).unwrap()), [5, u64::MAX]);
        let (bytes, low) = (Tensor::new([4u8, 200], device).unwrap(), Tensor::new([9u8, 0], device).unwrap());
        assert_eq!(values::<u8>(&bytes.clamp(&low, 300i64).unwrap()), [9, 200]);
        assert_eq!(values::<u8>(&bytes.clamp(-300i64, &low).unwrap()), [4, 0]);
        let single = Tensor::new([-1f32, 9e18], device).unwrap();
        assert_eq!(values::<f32>(&single.clamp(0.5, i64::MAX).unwrap()), [0.5, 9e18]);
        for (min, max) in [(i64::MAX, 0), (i64::MAX, i64::MAX - 1)] {
            assert!(matches!(error(x.clamp(min, max)), Error::Argument { op: "clamp", .. }));
        }
        assert!(matches!(error(x.clamp(f64::NAN, i64::MAX)), Error::Argument { op: "clamp", .. }));
    });
}

/// Broken by: a number that stands beside an array as an array of it, whose equals share the gradient, or that is NaN.
#[test]
fn a_number_beside_an_array_clamps_as_beside_a_number() {
    each(|device| {
        let x = Var::from_vec(vec![0f64, 1., 3.], 3, device).unwrap();
        let (low, high) = (f64s(device, &[-9.; 3], 3), f64s(device, &[9.; 3], 3));
        for cut in [x.clamp(0., &high), x.clamp(&low, 3.), x.clamp(0., 3.)] {
            let grads = cut.unwrap().sum_all().unwrap().backward().unwrap();
            assert_eq!(values::<f64>(grads.get(&x).unwrap()), [1.; 3]);
        }
        let whole = Tensor::new([1i32, 2, 3], device).unwrap();
        for refused in [x.clamp(f64::NAN, &high), x.clamp(&low, f64::NAN), whole.clamp(&whole, f64::NAN)] {
            assert!(matches!(error(refused), Error::Argument { op: "clamp", .. }));
        }
    });
}
