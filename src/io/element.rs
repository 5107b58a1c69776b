//! Numbers as bytes, in either byte order, and what a stored dtype becomes here.

use crate::{DType, WithDType};

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

/// An unsigned integer of the size of an element, as which it is read and written.
pub(super) trait Bits: WithDType {
    /// From as many bytes as the type has.
    fn from_bytes(bytes: &[u8], order: Order) -> Self;
    /// Its bytes, the lowest first.
    fn append(self, out: &mut Vec<u8>);
}

macro_rules! bits {
    ($($t:ty)*) => {$(
        impl Bits for $t {
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
bits!(u8 u16 u32 u64);
