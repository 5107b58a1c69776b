//! Element types: the run-time `DType` and the sealed trait that ties Rust types to it.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// Unsigned 8-bit integer; also the result of comparisons (0 or 1).
    U8,
    /// Unsigned 32-bit integer; also the result of `argmax`.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl DType {
    /// Every dtype, in order of its size and kind.
    pub const ALL: [DType; 5] = [DType::U8, DType::U32, DType::I64, DType::F32, DType::F64];

    /// Bytes of one element.
    pub const fn size_in_bytes(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::U32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether it is a floating-point type, for which alone gradients exist.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64)
    }

    /// Its name as printed: `f32`.
    pub const fn as_str(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u32 {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A Rust type that can be an element of a tensor. Sealed: the list is that of [`DType`].
///
/// Conversions are Rust's `as`: floats to integers truncate towards zero and saturate, NaN becomes 0.
pub trait WithDType:
    sealed::Sealed + Copy + Default + PartialOrd + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// The dtype of this type.
    const DTYPE: DType;
    /// From a double, as `as` converts.
    fn from_f64(value: f64) -> Self;
    /// To a double, as `as` converts.
    fn to_f64(self) -> f64;
    /// To an integer, as `as` converts.
    fn to_i64(self) -> i64;
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
            fn to_i64(self) -> i64 {
                self as i64
            }
        }
    )*};
}
with_dtype! { u8, U8; u32, U32; i64, I64; f32, F32; f64, F64; }

/// Runs a block with the type alias `$t` standing for the Rust type of a [`DType`].
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::base::dtype::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::base::dtype::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::base::dtype::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::base::dtype::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::base::dtype::DType::F64 => {
                type $t = f64;
                $body
            }
        }
    };
}
pub(crate) use with_type;
