//! Arrays from Rust's numbers, slices and vectors, and back, by `TryFrom`. What is made so lies on the host, and its
//! handles own it.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::base::{
    call::Call,
    dtype::WithDType,
    error::{Error, Result},
    shape::Shape,
};
use crate::device::Device;
use crate::memory::proxy::Proxy;
use crate::ops::create::values::of_elements;

macro_rules! conversions {
    ($($t:ty)*) => {$(
        conversions!($t, of: $t, |x| x.to_scalar());
        conversions!($t, of: Vec<$t>, |x| x.to_vec1());
        conversions!($t, of: Vec<Vec<$t>>, |x| x.to_vec2());
        conversions!($t, of: Vec<Vec<Vec<$t>>>, |x| x.to_vec3());
        conversions!(to: $t, |value| array_of(&[value], Shape::SCALAR, Call::here("new")));
        conversions!(to: &[$t], |value| array_of(value, Shape::from(value.len()), Call::here("new")));
        conversions!(to: Vec<$t>, |value| Proxy::from_vec(value, ((),), &Device::Cpu));
    )*};
    ($t:ty, of: $to:ty, |$x:ident| $read:expr) => {
        impl TryFrom<&Proxy> for $to {
            type Error = Error;

            #[track_caller]
            fn try_from($x: &Proxy) -> Result<Self> {
                $read
            }
        }

        impl TryFrom<Proxy> for $to {
            type Error = Error;

            #[track_caller]
            fn try_from(x: Proxy) -> Result<Self> {
                Self::try_from(&x)
            }
        }
    };
    (to: $from:ty, |$value:ident| $make:expr) => {
        impl TryFrom<$from> for Proxy {
            type Error = Error;

            #[track_caller]
            fn try_from($value: $from) -> Result<Self> {
                $make
            }
        }
    };
}
/// As `Proxy::new`, whose code for lists of any depth is more than this takes.
fn array_of<T: WithDType>(values: &[T], shape: Shape, call: Call) -> Result<Proxy> {
    of_elements(call, T::bytes_of(values), (shape, T::DTYPE), &Device::Cpu)
}
conversions!(bool u8 u16 u32 u64 i8 i16 i32 i64 F8E4M3 f16 bf16 f32 f64);
