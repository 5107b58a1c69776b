//! Conversions between all dtypes.
//!
//! Among u8, u32, i64, f32 and f64, and between floats of low precision and f32, each pair has its own vector loop. The
//! other pairs go block by block through 64 bits that hold every value of the source exactly: one load for each dtype
//! and three stores, in place of a loop for each of 196 pairs. An operand is seen as unsigned integers of its size
//! there.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::base::dtype::{DType, WithDType, with_type};
use crate::cpu::{
    bits::Bits,
    elementwise,
    low_precision::{BLOCK, blocks},
    operand::{In, Out},
};

/// What the 64 bits between hold.
#[derive(Clone, Copy)]
enum Middle {
    /// i64, for all integers but u64, and for truth values.
    Signed,
    Unsigned,
    /// f64.
    Float,
}

fn middle(source: DType) -> Middle {
    match source {
        DType::U64 => Middle::Unsigned,
        dtype if dtype.is_float() => Middle::Float,
        _ => Middle::Signed,
    }
}

/// An element as its bits, and from integers of 64 bits as `as` converts.
trait SeenAsBits: WithDType {
    fn of_bits(bits: u64) -> Self;
    fn into_bits(self) -> u64;
    fn of_signed(value: i64) -> Self {
        Self::from_i128(value.into())
    }
    fn of_unsigned(value: u64) -> Self {
        Self::from_i128(value.into())
    }
}

macro_rules! seen_as_bits {
    ($($t:ty, |$b:ident| $of:expr, |$x:ident| $into:expr $(, $direct:ty)?;)*) => {$(
        impl SeenAsBits for $t {
            #[inline(always)]
            fn of_bits($b: u64) -> Self {
                $of
            }
            #[inline(always)]
            fn into_bits(self) -> u64 {
                let $x = self;
                $into
            }
            $(
                #[inline(always)]
                fn of_signed(value: i64) -> Self {
                    value as $direct
                }
                #[inline(always)]
                fn of_unsigned(value: u64) -> Self {
                    value as $direct
                }
            )?
        }
    )*};
}
seen_as_bits! {
    bool, |b| b != 0, |x| u64::from(x);
    u8, |b| b as u8, |x| x.into(), u8;
    u16, |b| b as u16, |x| x.into(), u16;
    u32, |b| b as u32, |x| x.into(), u32;
    u64, |b| b, |x| x, u64;
    i8, |b| b as i8, |x| u64::from(x as u8), i8;
    i16, |b| b as i16, |x| u64::from(x as u16), i16;
    i32, |b| b as i32, |x| u64::from(x as u32), i32;
    i64, |b| b as i64, |x| x as u64, i64;
    F8E4M3, |b| F8E4M3::from_bits(b as u8), |x| x.to_bits().into();
    f16, |b| f16::from_bits(b as u16), |x| x.to_bits().into();
    bf16, |b| bf16::from_bits(b as u16), |x| x.to_bits().into();
    f32, |b| f32::from_bits(b as u32), |x| x.to_bits().into(), f32;
    f64, |b| f64::from_bits(b), |x| x.to_bits(), f64;
}

/// Bits of elements become what the middle holds.
fn load<S: SeenAsBits>(bits: &mut [u64]) {
    for bits in bits {
        let value = S::of_bits(*bits);
        *bits = if S::DTYPE.is_float() { value.to_f64().to_bits() } else { value.to_i128() as u64 };
    }
}

/// What the middle holds becomes bits of elements.
fn store<D: SeenAsBits>(middle: Middle, bits: &mut [u64]) {
    match middle {
        Middle::Signed => {
            for bits in bits {
                *bits = D::of_signed(*bits as i64).into_bits();
            }
        }
        Middle::Unsigned => {
            for bits in bits {
                *bits = D::of_unsigned(*bits).into_bits();
            }
        }
        Middle::Float => {
            for bits in bits {
                *bits = D::from_f64(f64::from_bits(*bits)).into_bits();
            }
        }
    }
}

/// A number as the bits of an element.
pub(super) fn bits_of(dtype: DType, value: f64) -> u64 {
    with_type!(dtype, T => T::from_f64(value).into_bits())
}

fn widen<S: Bits>(from: &[S], to: &mut [u64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.widen();
    }
}

fn cut<D: Bits>(from: &[u64], to: &mut [D]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = D::cut(from);
    }
}

/// `dst = src`, whose elements are bits of `from` and `to`.
pub(super) fn by_blocks<S: Bits, D: Bits>(from: DType, src: In<'_, S>, to: DType, dst: Out<'_, D>) {
    let load = with_type!(from, T => load::<T> as fn(&mut [u64]));
    let store = with_type!(to, T => store::<T> as fn(Middle, &mut [u64]));
    let middle = middle(from);
    let row = |a: &[S], d: &mut [D]| {
        let mut between = [0; BLOCK];
        for part in blocks(d.len()) {
            let between = &mut between[..part.len()];
            widen(&a[part.clone()], between);
            load(between);
            store(middle, between);
            cut(between, &mut d[part]);
        }
    };
    elementwise::rows_to(src, dst, &row);
}
