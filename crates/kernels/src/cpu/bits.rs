//! Bits of integers, as unsigned ones of their size.

use crate::base::dtype::DType;
use crate::cpu::{
    operand::{Element, In, Out},
    walk,
};
use crate::kernel::BitOp;

/// An unsigned integer.
pub(super) trait Bits: Element {
    fn wide(self) -> u64;
    fn cut(wide: u64) -> Self;
}

macro_rules! bits {
    ($($t:ty)*) => {$(
        impl Bits for $t {
            fn wide(self) -> u64 {
                self.into()
            }
            fn cut(wide: u64) -> Self {
                wide as $t
            }
        }
    )*};
}
bits!(u8 u16 u32 u64);

/// `dtype`: what the bits stand for.
pub(super) fn bits<T: Bits>(op: BitOp, lhs: In<'_, T>, rhs: In<'_, T>, dst: Out<'_, T>, dtype: DType) {
    let width = 8 * size_of::<T>() as u32;
    let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    // With its sign, if it has one, in 64 bits.
    let signed =
        move |x: T| if is_signed { ((x.wide() << (64 - width)) as i64) >> (64 - width) } else { x.wide() as i64 };
    let places = move |y: T| u32::try_from(y.wide()).ok().filter(|&places| places < width);
    match op {
        BitOp::And => each(lhs, rhs, dst, |x, y| T::cut(x.wide() & y.wide())),
        BitOp::Or => each(lhs, rhs, dst, |x, y| T::cut(x.wide() | y.wide())),
        BitOp::Xor => each(lhs, rhs, dst, |x, y| T::cut(x.wide() ^ y.wide())),
        BitOp::Not if dtype == DType::Bool => each(lhs, rhs, dst, |x, _| T::cut(x.wide() ^ 1)),
        BitOp::Not => each(lhs, rhs, dst, |x, _| T::cut(!x.wide())),
        BitOp::Shl => each(lhs, rhs, dst, move |x, y| places(y).map_or(T::cut(0), |by| T::cut(x.wide() << by))),
        BitOp::Shr if is_signed => {
            each(lhs, rhs, dst, move |x, y| T::cut((signed(x) >> places(y).unwrap_or(63)) as u64));
        }
        BitOp::Shr => each(lhs, rhs, dst, move |x, y| places(y).map_or(T::cut(0), |by| T::cut(x.wide() >> by))),
    }
}

fn each<T: Bits>(lhs: In<'_, T>, rhs: In<'_, T>, dst: Out<'_, T>, f: impl Fn(T, T) -> T) {
    walk::rows3(lhs, rhs, dst, &|x, y, d| d.iter_mut().zip(x.iter().zip(y)).for_each(|(d, (&x, &y))| *d = f(x, y)));
}
