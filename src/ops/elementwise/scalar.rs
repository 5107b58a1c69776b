//! Operands that may be an array or a number, and numbers of any dtype.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::base::{
    call::Call,
    dtype::{DType, WithDType, with_type},
    error::Result,
};
use crate::memory::proxy::Proxy;
use crate::ops::{call::compose::composite, grad::var::Var};

/// An array, or a number that stands for an array of it. A number takes the dtype of the other side, as `to_dtype`
/// converts.
pub trait TensorOrScalar {
    /// The array, if it is one.
    fn tensor(&self) -> Option<&Proxy>;

    /// The number, if it is one that a double holds exactly.
    fn number(&self) -> Option<f64>;

    /// The number as an array with dtype, device and shape of another, of one element of memory; an array is itself.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::StaleArray`](crate::Error::StaleArray).
    fn beside(&self, other: &Proxy) -> Result<Proxy>;

    /// The number, if it is one, whether a double holds it or not.
    #[doc(hidden)]
    fn scalar(&self) -> Option<Scalar> {
        None
    }
}

impl TensorOrScalar for &Proxy {
    fn tensor(&self) -> Option<&Proxy> {
        Some(self)
    }

    fn number(&self) -> Option<f64> {
        None
    }

    fn beside(&self, _other: &Proxy) -> Result<Proxy> {
        Ok((*self).clone())
    }
}

impl TensorOrScalar for &Var {
    fn tensor(&self) -> Option<&Proxy> {
        Some(self.as_tensor())
    }

    fn number(&self) -> Option<f64> {
        None
    }

    fn beside(&self, _other: &Proxy) -> Result<Proxy> {
        Ok(self.as_tensor().clone())
    }
}

impl<T: WithDType> TensorOrScalar for T {
    fn tensor(&self) -> Option<&Proxy> {
        None
    }

    fn number(&self) -> Option<f64> {
        let number = self.to_f64();
        let same = T::from_f64(number) == *self && number.abs() < (1u64 << 53) as f64;
        (same || T::DTYPE.is_float()).then_some(number)
    }

    fn beside(&self, other: &Proxy) -> Result<Proxy> {
        Proxy::from_slice(&[*self], (), other.device())?.to_dtype(other.dtype())?.broadcast_as(other.shape())
    }

    fn scalar(&self) -> Option<Scalar> {
        Some((*self).into())
    }
}

macro_rules! scalars {
    ($($variant:ident $t:ty;)*) => {
        /// A number of any dtype; made of one by `into`.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        #[allow(missing_docs)] // a variant a dtype
        pub enum Scalar {
            $($variant($t),)*
        }

        impl Scalar {
            /// Its dtype.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Scalar::$variant(_) => DType::$variant,)*
                }
            }

            /// As a double, as `as` converts.
            pub fn to_f64(&self) -> f64 {
                match self {
                    $(Scalar::$variant(value) => WithDType::to_f64(*value),)*
                }
            }

            /// The whole number that it is; none for a float that is none, that does not hold its neighbours, or that
            /// is a zero, which has a sign.
            pub(crate) fn whole(&self) -> Option<i128> {
                let near = self.to_f64();
                let holds = near.fract() == 0.0 && near != 0.0 && near.abs() < (1u64 << 53) as f64;
                let whole = match self {
                    $(Scalar::$variant(value) => WithDType::to_i128(*value),)*
                };
                (holds || !self.dtype().is_float()).then_some(whole)
            }
        }

        impl<T: WithDType> From<T> for Scalar {
            fn from(value: T) -> Self {
                // Each way keeps every value of its kind.
                match T::DTYPE.is_float() {
                    true => Scalar::of_float(T::DTYPE, value.to_f64()),
                    false => Scalar::of_integer(T::DTYPE, value.to_i128()),
                }
            }
        }

        impl Scalar {
            #[inline]
            fn of_float(dtype: DType, value: f64) -> Self {
                match dtype {
                    $(DType::$variant => Scalar::$variant(<$t>::from_f64(value)),)*
                }
            }

            #[inline]
            fn of_integer(dtype: DType, value: i128) -> Self {
                match dtype {
                    $(DType::$variant => Scalar::$variant(<$t>::from_i128(value)),)*
                }
            }
        }

        impl TensorOrScalar for Scalar {
            fn tensor(&self) -> Option<&Proxy> {
                None
            }

            fn number(&self) -> Option<f64> {
                match self {
                    $(Scalar::$variant(value) => value.number(),)*
                }
            }

            fn beside(&self, other: &Proxy) -> Result<Proxy> {
                match self {
                    $(Scalar::$variant(value) => value.beside(other),)*
                }
            }

            fn scalar(&self) -> Option<Scalar> {
                Some(*self)
            }
        }
    };
}
scalars! {
    Bool bool; U8 u8; U16 u16; U32 u32; U64 u64; I8 i8; I16 i16; I32 i32; I64 i64; F8E4M3 F8E4M3; F16 f16; BF16 bf16;
    F32 f32; F64 f64;
}

impl Scalar {
    /// An integer as the nearest one that a dtype of integers has, where its conversion would wrap. Floats, and any
    /// number for other dtypes, are converted so, and stay.
    pub(crate) fn nearest(self, dtype: DType) -> Self {
        let Some(whole) = self.whole().filter(|_| dtype.is_int() && self.dtype().is_int()) else { return self };
        with_type!(dtype, T => {
            let (low, high) = (T::from_f64(f64::NEG_INFINITY).to_i128(), T::from_f64(f64::INFINITY).to_i128());
            T::from_i128(whole.clamp(low, high)).into()
        })
    }

    /// 0 of a dtype.
    pub fn zero(dtype: DType) -> Self {
        with_type!(dtype, T => T::from_i128(0).into())
    }

    /// 1 of a dtype.
    pub fn one(dtype: DType) -> Self {
        with_type!(dtype, T => T::from_i128(1).into())
    }
}

/// An operation of an array and another operand.
pub(crate) fn with_operand(
    call: Call,
    x: &Proxy,
    rhs: &impl TensorOrScalar,
    f: impl Fn(&Proxy, &Proxy) -> Result<Proxy>,
) -> Result<Proxy> {
    match rhs.tensor() {
        Some(rhs) => f(x, rhs),
        None => composite(call, x, &mut || f(x, &rhs.beside(x)?)),
    }
}
