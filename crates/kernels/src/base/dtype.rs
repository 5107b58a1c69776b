//! Element types: the run-time `DType` and the sealed trait that ties Rust types to it.

use std::fmt;

use float8::F8E4M3;
use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// A truth value, a byte of 0 or 1: logic and comparison, no arithmetic.
    Bool,
    /// Unsigned 8-bit integer; also the result of comparisons (0 or 1).
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer; also the result of `argmax`.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// A float of 8 bits, `F8_E4M3` in files: 4 bits of precision, at most 448, no infinity. What is larger becomes
    /// 448.
    F8E4M3,
    /// IEEE 754 half precision: 11 bits of precision, at most 65,504.
    F16,
    /// The upper half of a single: 8 bits of precision, the range of `F32`.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

/// Dtype, Rust type, name and bytes of each, in the order of the enum.
macro_rules! for_each_dtype {
    ($list:ident) => {
        $list! {
            Bool bool "bool" 1; U8 u8 "u8" 1; U16 u16 "u16" 2; U32 u32 "u32" 4; U64 u64 "u64" 8;
            I8 i8 "i8" 1; I16 i16 "i16" 2; I32 i32 "i32" 4; I64 i64 "i64" 8;
            F8E4M3 F8E4M3 "f8e4m3" 1; F16 f16 "f16" 2; BF16 bf16 "bf16" 2; F32 f32 "f32" 4; F64 f64 "f64" 8;
        }
    };
}

macro_rules! facts {
    ($($d:ident $t:ident $name:literal $bytes:literal;)*) => {
        /// Every dtype, in order of its kind and size.
        pub const ALL: [DType; 14] = [$(DType::$d),*];

        /// Bytes of one element.
        pub const fn size_in_bytes(self) -> usize {
            match self { $(DType::$d => $bytes),* }
        }

        /// Its name as printed: `f32`.
        pub const fn as_str(self) -> &'static str {
            match self { $(DType::$d => $name),* }
        }
    };
}

impl DType {
    for_each_dtype!(facts);

    /// The floating-point types by name, for error texts.
    #[doc(hidden)]
    pub const FLOATS: &str = "f8e4m3, f16, bf16, f32, f64";

    /// Whether it is a floating-point type, for which alone gradients exist.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether it is an integer type; `Bool` is none.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }

    /// Whether its numbers may be negative.
    pub const fn is_signed(self) -> bool {
        self.is_float() || matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
    macro_rules! seal {
        ($($d:ident $t:ident $name:literal $bytes:literal;)*) => {
            $(impl Sealed for $t {})*
        };
    }
    use super::{F8E4M3, bf16, f16};
    for_each_dtype!(seal);
}

/// A Rust type that can be an element of a tensor. Sealed: the list is that of [`DType`].
///
/// # Conversions
/// Those of Rust's `as`, also in `Tensor::to_dtype`, each in one step:
/// - a float becomes an integer by cutting towards zero; outside the range the nearest end, and NaN 0;
/// - an integer becomes a narrower one by its lower bits (it wraps);
/// - anything becomes a float by rounding to the nearest, of two to the even one, and beyond the range to an infinity;
///   `F8E4M3` has none, and stays at its end;
/// - anything becomes `bool` by asking whether it is not 0, so NaN is true; `bool` becomes 0 or 1.
pub trait WithDType:
    sealed::Sealed + Copy + Default + PartialOrd + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// The dtype of this type.
    const DTYPE: DType;
    /// From a double, as `as` converts.
    fn from_f64(value: f64) -> Self;
    /// To a double, as `as` converts.
    fn to_f64(self) -> f64;
    /// From an integer, as `as` converts.
    fn from_i128(value: i128) -> Self;
    /// To an integer, as `as` converts: exact for every integer type.
    fn to_i128(self) -> i128;
    /// To an integer, as `as` converts.
    #[inline(always)]
    fn to_i64(self) -> i64 {
        if Self::DTYPE.is_float() { self.to_f64() as i64 } else { self.to_i128() as i64 }
    }
    /// Elements as their bytes.
    #[doc(hidden)]
    fn bytes_of(elements: &[Self]) -> &[u8];
    /// Elements as bytes that may be any; none of a type that not all bytes are values of.
    #[doc(hidden)]
    fn any_bytes_of(elements: &mut [Self]) -> Option<&mut [u8]>;
    /// Bytes as elements, if they lie as those do and are values of the type.
    #[doc(hidden)]
    fn of_bytes(bytes: &[u8]) -> Option<&[Self]>;
}

/// A Rust type of floats, for programs that are generic over these alone.
pub trait FloatDType: WithDType {}

/// A Rust type of integers, for programs that are generic over these alone.
pub trait IntDType: WithDType + Eq + Ord {
    /// Whether it is not 0.
    #[inline(always)]
    fn is_true(&self) -> bool {
        *self != Self::default()
    }

    /// As an index: as `as` converts.
    #[inline(always)]
    fn as_usize(&self) -> usize {
        self.to_i128() as usize
    }
}

macro_rules! kinds {
    ($($kind:ident: $($t:ident)*;)*) => {
        $($(impl $kind for $t {})*)*
    };
}
kinds! {
    FloatDType: F8E4M3 f16 bf16 f32 f64;
    IntDType: u8 u16 u32 u64 i8 i16 i32 i64;
}

/// How a type without a bit pattern that is no value becomes bytes, and back.
macro_rules! any_bytes {
    () => {
        #[inline(always)]
        fn bytes_of(elements: &[Self]) -> &[u8] {
            bytemuck::cast_slice(elements)
        }
        #[inline(always)]
        fn any_bytes_of(elements: &mut [Self]) -> Option<&mut [u8]> {
            Some(bytemuck::cast_slice_mut(elements))
        }
        #[inline(always)]
        fn of_bytes(bytes: &[u8]) -> Option<&[Self]> {
            // No bytes may lie anywhere.
            if bytes.is_empty() { Some(&[]) } else { bytemuck::try_cast_slice(bytes).ok() }
        }
    };
}

macro_rules! with_dtype {
    ($($t:ty, $d:ident;)*) => {$(
        impl WithDType for $t {
            const DTYPE: DType = DType::$d;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_i128(value: i128) -> Self {
                value as $t
            }
            #[inline(always)]
            fn to_i128(self) -> i128 {
                self as i128
            }
            any_bytes!();
        }
    )*};
}
with_dtype! {
    u8, U8; u16, U16; u32, U32; u64, U64;
    i8, I8; i16, I16; i32, I32; i64, I64;
    f32, F32; f64, F64;
}

impl WithDType for bool {
    const DTYPE: DType = DType::Bool;
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value != 0.0
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    #[inline(always)]
    fn from_i128(value: i128) -> Self {
        value != 0
    }
    #[inline(always)]
    fn to_i128(self) -> i128 {
        i128::from(self)
    }
    fn bytes_of(elements: &[Self]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }
    fn any_bytes_of(_: &mut [Self]) -> Option<&mut [u8]> {
        None
    }
    fn of_bytes(bytes: &[u8]) -> Option<&[Self]> {
        bytemuck::checked::try_cast_slice(bytes).ok()
    }
}

/// A double as a single whose last bit says whether anything was cut off: rounded once more to 22 bits or fewer, it is
/// as if the double had been rounded directly.
#[inline(always)]
pub fn f64_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() {
        return near;
    }
    // Cut towards zero; beyond the largest single that is the largest one.
    let cut = if back.abs() > value.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(cut | 1)
}

/// As [`f64_to_odd`], from an integer.
#[inline(always)]
pub fn integer_to_odd(value: i128) -> f32 {
    let size = value.unsigned_abs();
    let shift = (104u32).saturating_sub(size.leading_zeros());
    let kept = size >> shift;
    let odd = kept | u128::from(kept << shift != size);
    // 24 bits are exact, and so is the power of two; the exponent ends at 127, as that of a single does.
    let size = odd as f32 * f32::from_bits((shift + 127) << 23);
    if value < 0 { -size } else { size }
}

macro_rules! halves {
    ($($t:ty, $d:ident;)*) => {$(
        impl WithDType for $t {
            const DTYPE: DType = DType::$d;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                <$t>::from_f32(f64_to_odd(value))
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self.to_f32())
            }
            #[inline(always)]
            fn from_i128(value: i128) -> Self {
                <$t>::from_f32(integer_to_odd(value))
            }
            #[inline(always)]
            fn to_i128(self) -> i128 {
                self.to_f32() as i128
            }
            any_bytes!();
        }
    )*};
}
halves! { f16, F16; bf16, BF16; }

impl WithDType for F8E4M3 {
    const DTYPE: DType = DType::F8E4M3;
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        f8_of_single(f64_to_odd(value))
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(f8_to_single(self))
    }
    #[inline(always)]
    fn from_i128(value: i128) -> Self {
        f8_of_single(integer_to_odd(value))
    }
    #[inline(always)]
    fn to_i128(self) -> i128 {
        f8_to_single(self) as i128
    }
    any_bytes!();
}

/// A single as a float of 8 bits, without a branch: rounded as the type's own crate does by way of a double.
#[inline(always)]
pub fn f8_of_single(value: f32) -> F8E4M3 {
    let (sign, size) = (value.to_bits() >> 24 & 0x80, value.to_bits() & 0x7fff_ffff);
    // At and above 2^-6 three bits of the fraction stay, and the exponent is 120 lower.
    let normal = (size + 0x7_ffff + (size >> 20 & 1)) >> 20;
    let normal = normal.wrapping_sub(120 << 3);
    // Below, the addition rounds to a multiple of 2^-9.
    let small = (f32::from_bits(size) + 16_384.0).to_bits().wrapping_sub(16_384f32.to_bits());
    let within = if size < 0x3c80_0000 { small } else { normal };
    // Above 464, which is as near to 448 as to what would be 480.
    let held = if size > 0x43e8_0000 { 0x7e } else { within };
    let bits = if size > 0x7f80_0000 { 0x7f } else { held };
    F8E4M3::from_bits((sign | bits) as u8)
}

/// A float of 8 bits as a single, without a branch.
#[inline(always)]
pub fn f8_to_single(value: F8E4M3) -> f32 {
    let (sign, size) = (u32::from(value.to_bits() & 0x80) << 24, u32::from(value.to_bits() & 0x7f));
    // As the lowest bits of the exponent and the highest of the fraction; 2^120 makes up for the rest.
    let held = f32::from_bits(size << 20) * f32::from_bits((120 + 127) << 23);
    let bits = if size == 0x7f { 0x7fc0_0000 } else { held.to_bits() };
    f32::from_bits(sign | bits)
}

#[doc(hidden)]
#[macro_export]
/// Runs a block with the type alias `$t` standing for the Rust type of a [`DType`].
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body;
            Bool bool; U8 u8; U16 u16; U32 u32; U64 u64; I8 i8; I16 i16; I32 i32; I64 i64;
            F8E4M3 float8::F8E4M3; F16 half::f16; BF16 half::bf16; F32 f32; F64 f64;)
    };
    ($dtype:expr, $t:ident => $body:expr; $($d:ident $type:ty;)*) => {
        match $dtype {
            $($crate::base::dtype::DType::$d => {
                type $t = $type;
                $body
            })*
        }
    };
}
pub use crate::with_type;

#[doc(hidden)]
#[macro_export]
/// As [`with_type!`], with the unsigned integer of the size of the type: for what only moves elements.
macro_rules! with_bits {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_bits!($dtype.size_in_bytes(), $t => $body; 1 u8; 2 u16; 4 u32; _ u64;)
    };
    ($size:expr, $t:ident => $body:expr; $($bytes:tt $type:ty;)*) => {
        match $size {
            $($bytes => {
                type $t = $type;
                $body
            })*
        }
    };
}
pub use crate::with_bits;
