//! Bits of integers, as unsigned ones of their size.

use crate::base::dtype::DType;
use crate::cpu::{
    operand::{Element, In, Out},
    strided,
};
use crate::kernel::BitOp;

/// An unsigned integer of the size of an element, as which a kernel sees its bits.
pub(super) trait Bits: Element {
    fn widen(self) -> u64;
    fn cut(bits: u64) -> Self;
}

macro_rules! bits {
    ($($t:ty)*) => {$(
        impl Bits for $t {
            #[inline(always)]
            fn widen(self) -> u64 {
                self.into()
            }
            #[inline(always)]
            fn cut(bits: u64) -> Self {
                bits as $t
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
        move |x: T| if is_signed { ((x.widen() << (64 - width)) as i64) >> (64 - width) } else { x.widen() as i64 };
    let places = move |y: T| u32::try_from(y.widen()).ok().filter(|&places| places < width);
    match op {
        BitOp::And => each(lhs, rhs, dst, |x, y| T::cut(x.widen() & y.widen())),
        BitOp::Or => each(lhs, rhs, dst, |x, y| T::cut(x.widen() | y.widen())),
        BitOp::Xor => each(lhs, rhs, dst, |x, y| T::cut(x.widen() ^ y.widen())),
        BitOp::Not if dtype == DType::Bool => each(lhs, rhs, dst, |x, _| T::cut(x.widen() ^ 1)),
        BitOp::Not => each(lhs, rhs, dst, |x, _| T::cut(!x.widen())),
        BitOp::Shl => each(lhs, rhs, dst, move |x, y| places(y).map_or(T::cut(0), |by| T::cut(x.widen() << by))),
        BitOp::Shr if is_signed => {
            each(lhs, rhs, dst, move |x, y| T::cut((signed(x) >> places(y).unwrap_or(63)) as u64));
        }
        BitOp::Shr => each(lhs, rhs, dst, move |x, y| places(y).map_or(T::cut(0), |by| T::cut(x.widen() >> by))),
    }
}

fn each<T: Bits>(lhs: In<'_, T>, rhs: In<'_, T>, dst: Out<'_, T>, f: impl Fn(T, T) -> T + Copy) {
    strided::rows3(lhs, rhs, dst, &|x: &[T], y: &[T], d: &mut [T]| {
        let (x, y) = (&x[..d.len()], &y[..d.len()]);
        for i in 0..d.len() {
            d[i] = f(x[i], y[i]);
        }
    });
}
