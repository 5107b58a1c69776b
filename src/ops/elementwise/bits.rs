//! Bits of integers.

use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
};
use crate::device::kernel::{BitOp, Kernel};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        exec::{adopt, device, enter, launch, output, pin, view_as},
        inplace::InPlace,
        target::{kernel, pair},
    },
    elementwise::binary::align,
};

/// Integers, and truth values where the result is one.
fn check_bits(name: &'static str, dtype: DType, op: BitOp) -> Result<()> {
    let is_shift = matches!(op, BitOp::Shl | BitOp::Shr);
    if dtype.is_int() || dtype == DType::Bool && !is_shift {
        return Ok(());
    }
    let supported = if is_shift { "integers" } else { "bool and integers" };
    Err(Error::unsupported_dtype(name, dtype, supported))
}

fn bits(call: Call, a: &Proxy, b: &Proxy, op: BitOp) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [a, b])?;
        let [x, y] = pins.arrays();
        check::same_device(call, device(&x), device(&y))?;
        check::same_dtype(call, &x, &y)?;
        check_bits(call.op, x.dtype, op)?;
        let expanded = align(call.op, &x, &y, true)?;
        let (left, right) = expanded.as_ref().map_or((x.layout, y.layout), |[left, right]| (left, right));
        let out = output(context, call.op, device(&x), x.dtype, left.shape(), false)?;
        launch(device(&x), &Kernel::Bits { op, lhs: view_as(&x, left), rhs: view_as(&y, right), dst: out.view() })?;
        adopt(call, context, out, a, None)
    })
}

/// Bits written to `out`.
fn bits_into(call: Call, [x, y]: [&Proxy; 2], op: BitOp, out: &Proxy) -> Result<()> {
    pair(x, y, out, call, true)?;
    let mut value = || bits(call, x, y, op);
    let result = |dtype: DType| check_bits(call.op, dtype, op).map(|()| dtype);
    let change: &InPlace<'_, 2> = &|device, dst, [lhs, rhs]| launch(device, &Kernel::Bits { op, lhs, rhs, dst });
    kernel(call, out, [x, y], &result, change, &mut value)
}

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $op:ident;)*) => {
        /// # Element by element: bits of integers
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Of integers of one dtype, after repeating axes of size 1. No gradient; the result belongs to the
                /// owner of this array.
                ///
                /// # Errors
                /// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`],
                /// [`Error::DeviceMismatch`], [`Error::StaleArray`], [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name(&self, rhs: &Proxy) -> Result<Proxy> {
                    bits(Call::here(stringify!($name)), self, rhs, BitOp::$op)
                }

                #[doc = concat!("As [`Proxy::", stringify!($name), "`], written to `out`.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    bits_into(Call::here(stringify!($into)), [self, rhs], BitOp::$op, out)
                }
            )*
        }
    };
}

bits! {
    /// The bits that both have; also of truth values.
    bitwise_and, bitwise_and_into, And;
    /// The bits that either has; also of truth values.
    bitwise_or, bitwise_or_into, Or;
    /// The bits that one of both has; also of truth values.
    bitwise_xor, bitwise_xor_into, Xor;
    /// The bits moved up by as many places as `rhs` says, zeros coming in; 0 for a negative number of places, or as
    /// many as there are bits.
    bitwise_left_shift, bitwise_left_shift_into, Shl;
    /// The bits moved down, those of the sign coming in; the sign alone for a negative number of places, or as many as
    /// there are bits.
    bitwise_right_shift, bitwise_right_shift_into, Shr;
}

/// # Element by element: bits of one array
impl Proxy {
    /// Every bit turned; of truth values, the other one. Integers; no gradient.
    ///
    /// # Errors
    /// As [`Proxy::bitwise_and`].
    #[track_caller]
    pub fn bitwise_not(&self) -> Result<Proxy> {
        bits(Call::here("bitwise_not"), self, self, BitOp::Not)
    }

    /// As [`Proxy::bitwise_not`], written to `out`.
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn bitwise_not_into(&self, out: &Proxy) -> Result<()> {
        bits_into(Call::here("bitwise_not_into"), [self, self], BitOp::Not, out)
    }
}
