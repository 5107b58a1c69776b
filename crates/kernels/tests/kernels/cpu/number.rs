//! Arithmetic of elements where other code would fail or differ: at the ends of integers, by 0, and of NaN.

use ndgc_kernels::base::{
    dtype::{DType, WithDType},
    error::Error,
};
use ndgc_kernels::kernel::{BinaryOp, Kernel, Map, UnaryOp};

use super::arrays::{Array, run};
use super::functions::{cast, mapped, of_two, value};

macro_rules! functions_of_two {
    ($($name:ident $op:ident;)*) => {$(
        fn $name<T: WithDType>(x: T, y: T) -> T {
            of_two(BinaryOp::$op, x, y)
        }
    )*};
}
functions_of_two! {
    add Add; sub Sub; mul Mul; div Div; power Pow; fmod Fmod; rem Rem; floor_div FloorDiv;
    max_or_nan Maximum; min_or_nan Minimum;
}

fn negated<T: WithDType>(x: T) -> T {
    value(UnaryOp::Neg, x)
}

fn magnitude<T: WithDType>(x: T) -> T {
    value(UnaryOp::Abs, x)
}

fn sign<T: WithDType>(x: T) -> T {
    value(UnaryOp::Sign, x)
}

#[test]
fn integers_wrap_and_never_panic() {
    assert_eq!((add(250u8, 10), sub(3u32, 5), mul(i64::MAX, 2)), (4, u32::MAX - 1, -2));
    assert_eq!((div(7i64, 0), div(i64::MIN, -1), div(0u8, 0), div(-7i64, 2)), (0, i64::MIN, 0, -3));
    assert_eq!((negated(i64::MIN), magnitude(i64::MIN), negated(1u8)), (i64::MIN, i64::MIN, 255));
    assert_eq!((power(3i64, 4), power(3i64, -4), power(0i64, 0), power(2u8, 9)), (81, 0, 1, 0));
    assert_eq!((power(1i64, -4), power(-1i32, -3), power(-1i32, -4), power(0i32, -1)), (1, -1, 1, 0));
    assert_eq!((power(-1i64, i64::MIN), power(i64::MIN, -1), power(-2i32, i32::MIN)), (1, 0, 0));
    assert_eq!((power(i64::MAX, 2), power(-1i64, i64::MAX), power(2i64, 64)), (1, -1, 0));
    assert_eq!((sign(3u8), sign(0u32), sign(-9i64)), (1, 0, -1));
    assert_eq!((fmod(-7i64, 2), rem(-7i64, 2), floor_div(-7i64, 2)), (-1, 1, -4));
    assert_eq!((fmod(-7i32, 0), rem(-7i32, 0), floor_div(-7i32, 0)), (-7, -7, 0));
    assert_eq!((fmod(i64::MIN, -1), rem(i64::MIN, -1), floor_div(i64::MIN, -1)), (0, 0, i64::MIN));
    assert_eq!((fmod(200u8, 7), rem(200u8, 7), floor_div(200u8, 7)), (4, 4, 28));
}

#[test]
fn extremes_and_signs_keep_nan() {
    let nan = f32::NAN;
    assert!(max_or_nan(nan, 1.0).is_nan() && max_or_nan(1f32, nan).is_nan());
    assert!(min_or_nan(nan, 1.0).is_nan() && min_or_nan(1f32, nan).is_nan());
    assert!(sign(nan).is_nan() && value(UnaryOp::Relu, nan).is_nan());
    assert!(mapped(Map::Clamp { min: 0.0, max: 1.0 }, &[nan])[0].is_nan());
    assert_eq!((max_or_nan(2f64, 3.0), min_or_nan(2f64, 3.0), sign(-0f64), sign(-3f32)), (3.0, 2.0, 0.0, -1.0));
}

#[test]
fn conversions_are_direct() {
    let large = i64::MAX - 1;
    assert_eq!(cast::<i64, i64>(large), large, "a double would lose the last bits");
    let (mut src, mut ids, mut dst) = (Array::line(&[0u8]), Array::line(&[large]), Array::new(DType::U8, &[1]));
    let result = run(&Kernel::IndexSelect { src: src.view(), ids: ids.view(), axis: 0, dst: dst.view() });
    assert!(matches!(result, Err(Error::IndexOutOfRange { index, .. }) if index == large), "{result:?}");
    assert_eq!((cast::<f32, u8>(-1.5), cast::<f64, u8>(300.0)), (0, 255));
    assert_eq!((cast::<f32, i64>(f32::NAN), cast::<i64, u8>(513)), (0, 1));
}
