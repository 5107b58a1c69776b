//! Functions of one or two operands, element by element, with the types of their dtypes.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::cpu::{
    cast as casting,
    elementwise::{self, Binary, Unary},
    low_precision,
    number::Convert,
    operand::{Dst, Element, In, Out, Src},
    types::{open, with_bits, with_number},
};
use crate::kernel::{BinaryOp, Domain, Map};

/// Whether the result of two truth values is one of them, and computed as that of bytes. An error if only floats have
/// the function, and these are none.
fn is_choice(op: BinaryOp, dtype: DType) -> Result<bool> {
    match op.domain() {
        Domain::Float if !dtype.is_float() => Err(Error::unsupported_dtype("binary", dtype, DType::FLOATS)),
        domain => Ok(domain == Domain::Any && dtype == DType::Bool),
    }
}

pub(super) fn binary(op: BinaryOp, lhs: Src, rhs: Src, dst: Dst) -> Result<()> {
    if is_choice(op, dst.dtype())? {
        open!(u8; lhs rhs; dst);
        elementwise::binary(op, Binary::To(lhs, rhs, dst));
        return Ok(());
    }
    with_number!("binary", dst.dtype(), T => {
        open!(T; lhs rhs; dst);
        elementwise::binary(op, Binary::To(lhs, rhs, dst));
    }, N => {
        open!(N; lhs rhs; dst);
        low_precision::binary(op, Binary::To(lhs, rhs, dst));
    });
    Ok(())
}

pub(super) fn binary_assign(op: BinaryOp, dst: Dst, rhs: Src) -> Result<()> {
    if is_choice(op, dst.dtype())? {
        open!(u8; rhs; dst);
        elementwise::binary(op, Binary::InPlace(rhs, dst));
        return Ok(());
    }
    with_number!("binary", dst.dtype(), T => {
        open!(T; rhs; dst);
        elementwise::binary(op, Binary::InPlace(rhs, dst));
    }, N => {
        open!(N; rhs; dst);
        low_precision::binary(op, Binary::InPlace(rhs, dst));
    });
    Ok(())
}

pub(super) fn copy(src: Src, dst: Dst) -> Result<()> {
    with_bits!(dst.dtype(), T => {
        open!(T; src; dst);
        elementwise::copy(src, dst);
    });
    Ok(())
}

/// Common pairs by loops of their own.
macro_rules! casts {
    ($src:ident, $dst:ident; $($from:ident $s:ty => $($to:ident $d:ty),*;)*) => {
        match ($src.dtype(), $dst.dtype()) {
            $($((DType::$from, DType::$to) => {
                open!($s; $src;);
                open!($d; ; $dst);
                elementwise::map($src, $dst, <$s as Convert<$d>>::convert);
            })*)*
            (DType::F8E4M3, DType::F32) => {
                open!(F8E4M3; $src;);
                open!(f32; ; $dst);
                low_precision::widen_all($src, $dst);
            }
            (DType::F32, DType::F8E4M3) => {
                open!(f32; $src;);
                open!(F8E4M3; ; $dst);
                low_precision::narrow_all($src, $dst);
            }
            (DType::F16, DType::F32) => {
                open!(f16; $src;);
                open!(f32; ; $dst);
                low_precision::widen_all($src, $dst);
            }
            (DType::BF16, DType::F32) => {
                open!(bf16; $src;);
                open!(f32; ; $dst);
                low_precision::widen_all($src, $dst);
            }
            (DType::F32, DType::F16) => {
                open!(f32; $src;);
                open!(f16; ; $dst);
                low_precision::narrow_all($src, $dst);
            }
            (DType::F32, DType::BF16) => {
                open!(f32; $src;);
                open!(bf16; ; $dst);
                low_precision::narrow_all($src, $dst);
            }
            (from, to) => with_bits!(from, S => {
                open!(S; $src;);
                with_bits!(to, D => {
                    open!(D; ; $dst);
                    casting::by_blocks(from, $src, to, $dst);
                });
            }),
        }
    };
}

pub(super) fn cast(src: Src, dst: Dst) -> Result<()> {
    casts! { src, dst;
        U8 u8 => U32 u32, I64 i64, F32 f32, F64 f64;
        U32 u32 => U8 u8, I64 i64, F32 f32, F64 f64;
        I64 i64 => U8 u8, U32 u32, F32 f32, F64 f64;
        F32 f32 => U8 u8, U32 u32, I64 i64, F64 f64;
        F64 f64 => U8 u8, U32 u32, I64 i64, F32 f32;
    }
    Ok(())
}

/// In place if there is no source.
fn operand<'a, T: Element>(src: Option<Src<'a>>, dst: Dst<'a>) -> Unary<'a, T> {
    match src {
        Some(src) => {
            open!(T; src; dst);
            Unary::To(src, dst)
        }
        None => {
            open!(T; ; dst);
            Unary::InPlace(dst)
        }
    }
}

/// Maps but copies and casts.
pub(super) fn map(map: Map, src: Option<Src>, dst: Dst) -> Result<()> {
    match dst.dtype() {
        DType::F32 => elementwise::map_floats::<f32>(map, operand(src, dst))?,
        DType::F64 => elementwise::map_floats::<f64>(map, operand(src, dst))?,
        DType::F8E4M3 => low_precision::map_floats::<F8E4M3>(map, operand(src, dst)),
        DType::F16 => low_precision::map_floats::<f16>(map, operand(src, dst)),
        DType::BF16 => low_precision::map_floats::<bf16>(map, operand(src, dst)),
        dtype => with_number!(@ "map", dtype,
            T => elementwise::map_numbers::<T>(map, operand(src, dst))?,
            N => low_precision::map_numbers::<N>(map, operand(src, dst))?;
            U8 u8, U32 u32, U64 u64, I32 i32, I64 i64; U16 u16, I8 i8, I16 i16),
    }
    Ok(())
}
