//! Functions of numbers, asked of the kernels: as contiguous arrays, to the last bit.

use ndgc_kernels::base::dtype::WithDType;
use ndgc_kernels::kernel::{BinaryOp, Kept, Kernel, Map, UnaryOp};

use super::arrays::{Array, run};

/// The images of numbers.
pub(super) fn mapped<T: WithDType>(map: Map, x: &[T]) -> Vec<T> {
    let (mut src, mut dst) = (Array::line(x), Array::new(T::DTYPE, &[x.len()]));
    run(&Kernel::Map { map, src: src.view(), dst: dst.view() }).expect("supported");
    dst.typed()
}

/// A number in another dtype.
pub(super) fn cast<S: WithDType, D: WithDType>(x: S) -> D {
    let (mut src, mut dst) = (Array::line(&[x]), Array::new(D::DTYPE, &[1]));
    run(&Kernel::Map { map: Map::Cast, src: src.view(), dst: dst.view() }).expect("any dtype");
    dst.typed()[0]
}

/// The values of a function.
pub(super) fn values<T: WithDType>(op: UnaryOp, x: &[T]) -> Vec<T> {
    mapped(Map::Unary(op), x)
}

/// The value of a function.
pub(super) fn value<T: WithDType>(op: UnaryOp, x: T) -> T {
    values(op, &[x])[0]
}

/// The slopes of a function whose gradient is computed from its operand.
pub(super) fn slopes<T: WithDType>(op: UnaryOp, x: &[T]) -> Vec<T> {
    assert_eq!(op.kept(), Kept::Input, "{op:?}");
    let (mut saved, mut grad) = (Array::line(x), Array::of(T::DTYPE, &[x.len()], &[1.0]));
    let mut dst = Array::new(T::DTYPE, &[x.len()]);
    run(&Kernel::UnaryGrad { op, saved: saved.view(), grad: grad.view(), dst: dst.view() }).expect("floats");
    dst.typed()
}

/// The slope of a function.
pub(super) fn slope<T: WithDType>(op: UnaryOp, x: T) -> T {
    slopes(op, &[x])[0]
}

/// The value of a function of two numbers.
pub(super) fn of_two<T: WithDType>(op: BinaryOp, x: T, y: T) -> T {
    let (mut lhs, mut rhs, mut dst) = (Array::line(&[x]), Array::line(&[y]), Array::new(T::DTYPE, &[1]));
    run(&Kernel::Binary { op, lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() }).expect("supported");
    dst.typed()[0]
}
