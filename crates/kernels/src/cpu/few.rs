//! A few dense numbers, computed on the spot: the way to rows, threads and vectors would cost more than they do.

use bytemuck::{Pod, bytes_of, pod_read_unaligned};

use crate::base::dtype::DType;
use crate::cpu::number::Number;
use crate::for_each_binary;
use crate::kernel::BinaryOp;

/// Elements up to which it is worth while, also on the path of kernels (`elementwise.rs`).
pub const FEW: usize = 16;

macro_rules! binary_functions {
    ([] $($(#[$doc:meta])* $name:ident [$($form:ident)*] $kind:ident
        { |$x:ident, $y:ident| $value:expr => $cuda:literal })*) => {
        fn of_type<T: Number + Pod>(op: BinaryOp, lhs: &[u8], rhs: &[u8], dst: &mut [u8]) {
            match op {
                $(BinaryOp::$name => each(lhs, rhs, dst, |$x: T, $y: T| $value),)*
            }
        }
    };
}
for_each_binary!(binary_functions);

/// Not in line, so that one with calls of functions does not cost the others room on the stack.
#[inline(never)]
fn each<T: Number + Pod>(a: &[u8], b: &[u8], d: &mut [u8], f: impl Fn(T, T) -> T) {
    let size = size_of::<T>();
    for ((d, a), b) in d.chunks_exact_mut(size).zip(a.chunks_exact(size)).zip(b.chunks_exact(size)) {
        d.copy_from_slice(bytes_of(&f(pod_read_unaligned(a), pod_read_unaligned(b))));
    }
}

/// A function of two operands whose elements, as many as the result's and of one dtype, follow each other in these
/// bytes. `false`, and nothing is written, for a dtype that does not compute as itself.
#[inline]
pub fn binary(op: BinaryOp, dtype: DType, lhs: &[u8], rhs: &[u8], dst: &mut [u8]) -> bool {
    let of_type = match dtype {
        DType::F32 => of_type::<f32>,
        DType::F64 => of_type::<f64>,
        DType::I32 => of_type::<i32>,
        DType::I64 => of_type::<i64>,
        DType::U8 => of_type::<u8>,
        DType::U32 => of_type::<u32>,
        DType::U64 => of_type::<u64>,
        _ => return false,
    };
    of_type(op, lhs, rhs, dst);
    true
}
