//! Checks that several operations share; they build the errors.

use crate::base::{
    call::Asked,
    dtype::DType,
    error::{Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::{Device, kernel::Domain};
use crate::memory::{
    proxy::Proxy,
    registry::{self, ArrayRef},
};

/// Operands can be used. For operations that look at them one by one: the error says which operand it is.
#[inline]
pub(crate) fn open(call: impl Into<Asked>, operands: &[&Proxy]) -> Result<()> {
    open_from(call, operands, 0)
}

/// As [`open`], of those from operand `first` on.
pub(crate) fn open_from(call: impl Into<Asked>, operands: &[&Proxy], first: usize) -> Result<()> {
    let call = call.into();
    operands.iter().zip(first..).try_for_each(|(array, operand)| open_as(call, array, operand))
}

/// As [`open`], of one operand; the first is 0.
#[inline]
pub(crate) fn open_as(call: impl Into<Asked>, array: &Proxy, operand: usize) -> Result<()> {
    if array.is_open() { Ok(()) } else { Err(registry::stale_operand(call, array.key(), operand)) }
}

/// The operand itself, as the result of an operation that has nothing to do.
#[inline]
pub(crate) fn same(call: impl Into<Asked>, array: &Proxy) -> Result<Proxy> {
    open_as(call, array, 0)?;
    Ok(array.clone())
}

/// An array has the shape by which the caller decided what to ask of it, now that it is announced.
#[inline]
pub(crate) fn seen(call: impl Into<Asked>, array: &Proxy, seen: &Shape, found: &Layout) -> Result<()> {
    if found.shape() == seen { Ok(()) } else { Err(exchanged(call, array)) }
}

/// An array is not the one that was looked at before.
#[cold]
pub(crate) fn exchanged(call: impl Into<Asked>, array: &Proxy) -> Error {
    Error::in_use(call, registry::describe(array.key()), "an exchange by `intern` on another thread")
}

/// A layout reaches no element beyond the bytes of an array.
#[inline]
pub(crate) fn inside(call: impl Into<Asked>, layout: &Layout, of: &ArrayRef<'_>) -> Result<()> {
    let bytes = layout.end().checked_mul(of.dtype.size_in_bytes());
    if bytes.is_some_and(|bytes| bytes <= of.storage.buffer().span().bytes()) {
        return Ok(());
    }
    Err(Error::shape(call, layout.dims(), "a view inside the bytes of its array"))
}

/// Operands are on one device.
#[inline(always)]
pub(crate) fn same_device(call: impl Into<Asked>, a: &Device, b: &Device) -> Result<()> {
    match (a, b) {
        (Device::Cpu, Device::Cpu) => Ok(()),
        _ if a == b => Ok(()),
        _ => Err(Error::device_mismatch(call, a, b)),
    }
}

/// What a change in place reads does not lie in the bytes that it writes.
pub(crate) fn apart(call: impl Into<Asked>, array: &Proxy, sources: &[&Proxy]) -> Result<()> {
    let call = call.into();
    let of = |array: &Proxy| array.with_pinned(call, |array| array.storage.id());
    let own = of(array)?;
    for source in sources {
        if of(source)? == own {
            let value = "a view of the bytes that are written";
            return Err(Error::argument(call, "source", value, "an array of its own; copy() makes one"));
        }
    }
    Ok(())
}

/// Operands have one dtype.
#[inline]
pub(crate) fn same_dtype(call: impl Into<Asked>, a: &ArrayRef<'_>, b: &ArrayRef<'_>) -> Result<()> {
    if a.dtype == b.dtype { Ok(()) } else { Err(Error::dtype_mismatch(call, a.dtype, b.dtype)) }
}

/// Operands have one shape.
#[inline]
pub(crate) fn same_shape(call: impl Into<Asked>, a: &Shape, b: &Shape, hint: &str) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::shapes(call, a, b, hint)) }
}

/// A floating-point operand.
#[inline]
pub(crate) fn float(call: impl Into<Asked>, dtype: DType) -> Result<DType> {
    if dtype.is_float() { Ok(dtype) } else { Err(Error::unsupported_dtype(call, dtype, FLOATS)) }
}

/// An operand of numbers: of any dtype but `Bool`.
#[inline]
pub(crate) fn number(call: impl Into<Asked>, dtype: DType) -> Result<DType> {
    if dtype != DType::Bool { Ok(dtype) } else { Err(Error::unsupported_dtype(call, dtype, NUMBERS)) }
}

/// An operand of an operation of the table.
#[inline]
pub(crate) fn domain(call: impl Into<Asked>, domain: Domain, dtype: DType) -> Result<DType> {
    match domain {
        Domain::Any | Domain::Whole => Ok(dtype),
        Domain::Number => number(call, dtype),
        Domain::Float => float(call, dtype),
    }
}

/// For error texts: every dtype but `Bool`.
const NUMBERS: &str = "u8, u16, u32, u64, i8, i16, i32, i64, f8e4m3, f16, bf16, f32, f64";
/// For error texts.
const FLOATS: &str = DType::FLOATS;

/// An operand that holds indices as kernels read them; see [`readable`](crate::ops::index::select::readable).
pub(crate) fn index(call: impl Into<Asked>, ids: &ArrayRef<'_>) -> Result<()> {
    match ids.dtype {
        DType::U8 | DType::U32 | DType::I64 => Ok(()),
        dtype => Err(Error::unsupported_dtype(call, dtype, "u8, u32, i64")),
    }
}

/// An operand that holds truth: indices, or truth values.
pub(crate) fn mask(call: impl Into<Asked>, cond: &ArrayRef<'_>) -> Result<()> {
    if cond.dtype == DType::Bool { Ok(()) } else { index(call, cond) }
}

/// A finite number.
pub(crate) fn finite(call: impl Into<Asked>, argument: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(Error::argument(call, argument, value, "a finite number"))
}
