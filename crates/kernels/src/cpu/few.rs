//! A few dense numbers, computed on the spot: the way to rows, threads and vectors would cost more than they do.

#![allow(clippy::needless_range_loop)] // as in `elementwise.rs`

use bytemuck::{Pod, bytes_of, cast_slice, cast_slice_mut, pod_read_unaligned};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::base::{dtype::DType, error::Result};
pub use crate::cpu::elementwise::FEW;
use crate::cpu::{
    elementwise::{Function, Operand, holds, map_floats, map_numbers},
    low_precision::{self, LowPrecision},
    number::Number,
    special,
    types::with_bits,
};
use crate::for_each_binary;
use crate::kernel::{BinaryOp, CmpOp, Map};

macro_rules! binary_functions {
    ([] $($(#[$doc:meta])* $name:ident [$($form:ident)*] $kind:ident
        { |$x:ident, $y:ident| $value:expr => $cuda:literal } $of_x:tt $of_y:tt)*) => {
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
fn each<T: Number + Pod>(a: &[u8], b: &[u8], d: &mut [u8], f: impl Fn(T, T) -> T + Copy) {
    for (d, a, b) in in_threes(a, b, d, size_of::<T>()) {
        put(d, f(pod_read_unaligned(a), pod_read_unaligned(b)));
    }
}

/// Elements of so many bytes of both operands and of the result. Apart, as [`put`], so that it is code once for all
/// functions.
#[inline]
fn in_threes<'a>(
    a: &'a [u8],
    b: &'a [u8],
    d: &'a mut [u8],
    size: usize,
) -> impl Iterator<Item = (&'a mut [u8], &'a [u8], &'a [u8])> {
    let threes = d.chunks_exact_mut(size).zip(a.chunks_exact(size)).zip(b.chunks_exact(size));
    threes.map(|((d, a), b)| (d, a, b))
}

#[inline]
fn put<T: Pod>(to: &mut [u8], x: T) {
    to.copy_from_slice(bytes_of(&x));
}

/// So many elements, which follow each other in these bytes, in the wider dtype that theirs computes in.
fn wide<N: LowPrecision>(bytes: &[u8], count: usize) -> [N::Compute; FEW] {
    let (mut own, mut wide) = ([N::zeroed(); FEW], [N::Compute::ZERO; FEW]);
    cast_slice_mut(&mut own[..count]).copy_from_slice(&bytes[..count * size_of::<N>()]);
    N::widen(&own[..count], &mut wide[..count]);
    wide
}

/// Of a dtype that computes in a wider one.
#[inline(never)]
fn widened<N: LowPrecision<Compute: Pod>>(op: BinaryOp, lhs: &[u8], rhs: &[u8], dst: &mut [u8]) {
    let count = dst.len() / size_of::<N>();
    let (a, b) = (wide::<N>(lhs, count), wide::<N>(rhs, count));
    let (mut d, mut result) = ([N::Compute::ZERO; FEW], [N::zeroed(); FEW]);
    of_type::<N::Compute>(op, cast_slice(&a[..count]), cast_slice(&b[..count]), cast_slice_mut(&mut d[..count]));
    N::narrow(&d[..count], &mut result[..count]);
    dst.copy_from_slice(cast_slice(&result[..count]));
}

/// A few elements of an operand, and where their images go.
struct Numbers<'a> {
    src: &'a [u8],
    dst: &'a mut [u8],
}

impl<T: Number + Pod> Operand<T> for Numbers<'_> {
    #[inline(always)]
    fn map(self, f: impl Function<T, Output = T>) {
        self.each(|x| f.of(x));
    }

    #[inline(always)]
    fn call(self, f: fn(T) -> T) {
        self.each(f);
    }
}

impl<'a> Numbers<'a> {
    #[inline(never)]
    fn each<T: Pod>(self, f: impl Fn(T) -> T + Copy) {
        let (src, dst) = self.elements::<T>();
        for i in 0..dst.len() {
            dst[i] = f(src[i]);
        }
    }

    /// As many of the operand as images.
    #[inline(always)]
    fn elements<T: Pod>(self) -> (&'a [T], &'a mut [T]) {
        let (src, dst) = (cast_slice::<u8, T>(self.src), cast_slice_mut::<u8, T>(self.dst));
        (&src[..dst.len()], dst)
    }
}

/// As [`map`], of a dtype that computes in a wider one, by `f` there.
fn mapped_wider<N: LowPrecision<Compute: Pod>>(
    map: Map,
    numbers: Numbers<'_>,
    f: fn(Map, Numbers<'_>) -> Result<()>,
) -> Result<()> {
    let count = numbers.dst.len() / size_of::<N>();
    let (wide, mut images, mut own) = (wide::<N>(numbers.src, count), [N::Compute::ZERO; FEW], [N::zeroed(); FEW]);
    let src = cast_slice(&wide[..count]);
    f(low_precision::rounded::<N>(map), Numbers { src, dst: cast_slice_mut(&mut images[..count]) })?;
    N::narrow(&images[..count], &mut own[..count]);
    numbers.dst.copy_from_slice(cast_slice(&own[..count]));
    Ok(())
}

/// By copies of elements as `T` is large.
#[inline(never)]
fn chosen<T>(on: &[bool; FEW], yes: &[u8], no: &[u8], dst: &mut [u8]) {
    for ((d, yes, no), &on) in in_threes(yes, no, dst, size_of::<T>()).zip(on) {
        d.copy_from_slice(if on { yes } else { no });
    }
}

/// The elements of `yes` where a mask, of truth values or integers, is not 0, else those of `no`. All follow each other
/// in these bytes: of each operand as many as of the result, at most [`FEW`].
pub fn select((mask, cond): (DType, &[u8]), dtype: DType, yes: &[u8], no: &[u8], dst: &mut [u8]) {
    let mut on = [false; FEW];
    // It is not 0 if one of its bytes is not.
    for (on, cond) in on.iter_mut().zip(cond.chunks_exact(mask.size_in_bytes())) {
        *on = cond.iter().any(|&byte| byte != 0);
    }
    with_bits!(dtype, T => chosen::<T>(&on, yes, no, dst));
}

/// A function of an operand whose elements, 1 to [`FEW`], as many as the result's and of its dtype, follow each
/// other in these bytes. `false`, and nothing is written, for dtypes that do not have it, and for casts.
pub fn map(map: Map, dtype: DType, src: &[u8], dst: &mut [u8]) -> bool {
    if let Map::Copy = map {
        dst.copy_from_slice(src);
        return true;
    }
    let numbers = Numbers { src, dst };
    let done = match dtype {
        DType::F32 => map_floats::<f32>(map, numbers),
        DType::F64 => map_floats::<f64>(map, numbers),
        DType::I32 => map_numbers::<i32>(map, numbers),
        DType::I64 => map_numbers::<i64>(map, numbers),
        DType::U8 => map_numbers::<u8>(map, numbers),
        DType::U32 => map_numbers::<u32>(map, numbers),
        DType::U64 => map_numbers::<u64>(map, numbers),
        DType::F16 => mapped_wider::<f16>(map, numbers, |map, numbers| map_floats::<f32>(map, numbers)),
        DType::BF16 => mapped_wider::<bf16>(map, numbers, |map, numbers| map_floats::<f32>(map, numbers)),
        DType::F8E4M3 => mapped_wider::<F8E4M3>(map, numbers, |map, numbers| map_floats::<f32>(map, numbers)),
        DType::I8 => mapped_wider::<i8>(map, numbers, |map, numbers| map_numbers::<i32>(map, numbers)),
        DType::I16 => mapped_wider::<i16>(map, numbers, |map, numbers| map_numbers::<i32>(map, numbers)),
        DType::U16 => mapped_wider::<u16>(map, numbers, |map, numbers| map_numbers::<i32>(map, numbers)),
        DType::Bool => return false,
    };
    done.is_ok()
}

/// A function of two operands whose elements, at most [`FEW`], as many as the result's and of one dtype, follow each
/// other in these bytes. `false`, and nothing is written, for truth values.
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
        DType::F16 => widened::<f16>,
        DType::BF16 => widened::<bf16>,
        DType::F8E4M3 => widened::<F8E4M3>,
        DType::I8 => widened::<i8>,
        DType::I16 => widened::<i16>,
        DType::U16 => widened::<u16>,
        _ => return false,
    };
    of_type(op, lhs, rhs, dst);
    true
}

/// Not in line: one loop for all comparisons of a dtype.
#[inline(never)]
fn holds_of_pair<T: Number>(op: CmpOp, x: T, y: T) -> bool {
    holds(op, x, y)
}

fn compared<T: Number>(op: CmpOp, lhs: &[u8], rhs: &[u8], dst: &mut [u8]) {
    let size = size_of::<T>();
    for ((d, a), b) in dst.iter_mut().zip(lhs.chunks_exact(size)).zip(rhs.chunks_exact(size)) {
        *d = u8::from(holds_of_pair::<T>(op, pod_read_unaligned(a), pod_read_unaligned(b)));
    }
}

/// As [`compared`], of a dtype that computes in a wider one.
fn compared_wider<N: LowPrecision<Compute: Pod>>(op: CmpOp, lhs: &[u8], rhs: &[u8], dst: &mut [u8]) {
    let count = dst.len();
    let (a, b) = (wide::<N>(lhs, count), wide::<N>(rhs, count));
    compared::<N::Compute>(op, cast_slice(&a[..count]), cast_slice(&b[..count]), dst);
}

/// A comparison of two operands whose elements, at most [`FEW`], of one dtype and as many as the result has bytes,
/// follow each other in these bytes. The result holds 0 or 1.
pub fn compare(op: CmpOp, dtype: DType, lhs: &[u8], rhs: &[u8], dst: &mut [u8]) {
    let of_type = match dtype {
        DType::F32 => compared::<f32>,
        DType::F64 => compared::<f64>,
        DType::I32 => compared::<i32>,
        DType::I64 => compared::<i64>,
        DType::U8 | DType::Bool => compared::<u8>,
        DType::U32 => compared::<u32>,
        DType::U64 => compared::<u64>,
        DType::F16 => compared_wider::<f16>,
        DType::BF16 => compared_wider::<bf16>,
        DType::F8E4M3 => compared_wider::<F8E4M3>,
        DType::I8 => compared_wider::<i8>,
        DType::I16 => compared_wider::<i16>,
        DType::U16 => compared_wider::<u16>,
    };
    of_type(op, lhs, rhs, dst);
}
