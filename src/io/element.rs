//! Numbers as bytes, in either byte order, and what a stored dtype becomes here.

use crate::{DType, F8E4M3, WithDType, bf16, f16};

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

/// Elements as a file has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) dtype: DType,
    pub(super) order: Order,
}

impl Stored {
    pub(super) fn little(dtype: DType) -> Self {
        Stored { dtype, order: Order::Little }
    }
}

/// The dtypes that can be read, for error texts.
pub(super) const READABLE: &str = "bool, u8, u16, u32, u64, i8, i16, i32, i64, f8e4m3, f16, bf16, f32 and f64";

/// An element type with its bytes.
pub(super) trait FileElement: WithDType {
    /// From as many bytes as the type has.
    fn from_bytes(bytes: &[u8], order: Order) -> Self;
    /// Its bytes, the lowest first.
    fn append(self, out: &mut Vec<u8>);
}

macro_rules! elements {
    ($($t:ty)*) => {$(
        impl FileElement for $t {
            #[inline]
            fn from_bytes(bytes: &[u8], order: Order) -> Self {
                let bytes = bytes.try_into().expect("cut to the size of the type");
                match order {
                    Order::Little => <$t>::from_le_bytes(bytes),
                    Order::Big => <$t>::from_be_bytes(bytes),
                }
            }

            #[inline]
            fn append(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
elements!(u8 u16 u32 u64 i8 i16 i32 i64 f16 bf16 f32 f64);

impl FileElement for F8E4M3 {
    #[inline]
    fn from_bytes(bytes: &[u8], _order: Order) -> Self {
        F8E4M3::from_bits(bytes[0])
    }

    #[inline]
    fn append(self, out: &mut Vec<u8>) {
        out.push(self.to_bits());
    }
}

impl FileElement for bool {
    #[inline]
    fn from_bytes(bytes: &[u8], _order: Order) -> Self {
        bytes[0] != 0
    }

    #[inline]
    fn append(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
}
