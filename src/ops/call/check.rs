//! Checks that several operations share; they build the errors.

use crate::base::{
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
pub(crate) fn open(op: &'static str, operands: &[&Proxy]) -> Result<()> {
    open_from(op, operands, 0)
}

/// As [`open`], of those from operand `first` on.
pub(crate) fn open_from(op: &'static str, operands: &[&Proxy], first: usize) -> Result<()> {
    operands.iter().zip(first..).try_for_each(|(array, operand)| open_as(op, array, operand))
}

/// As [`open`], of one operand; the first is 0.
#[inline]
pub(crate) fn open_as(op: &'static str, array: &Proxy, operand: usize) -> Result<()> {
    if array.is_open() { Ok(()) } else { Err(registry::stale_operand(op, array.key(), operand)) }
}

/// The operand itself, as the result of an operation that has nothing to do.
#[inline]
pub(crate) fn same(op: &'static str, array: &Proxy) -> Result<Proxy> {
    open_as(op, array, 0)?;
    Ok(array.clone())
}

/// An array has the shape by which the caller decided what to ask of it, now that it is announced.
#[inline]
pub(crate) fn seen(op: &'static str, array: &Proxy, seen: &Shape, found: &Layout) -> Result<()> {
    if found.shape() == seen { Ok(()) } else { Err(exchanged(op, array)) }
}

/// An array is not the one that was looked at before.
#[cold]
pub(crate) fn exchanged(op: &'static str, array: &Proxy) -> Error {
    Error::InUse { op, array: registry::describe(array.key()), by: "an exchange by `intern` on another thread" }
}

/// A layout reaches no element beyond the bytes of an array.
#[inline]
pub(crate) fn inside(op: &'static str, layout: &Layout, of: &ArrayRef<'_>) -> Result<()> {
    let bytes = layout.end().checked_mul(of.dtype.size_in_bytes());
    if bytes.is_some_and(|bytes| bytes <= of.storage.buffer().span().bytes()) {
        return Ok(());
    }
    let expected = "a view inside the bytes of its array".into();
    Err(Error::Shape { op, found: layout.dims().to_vec(), expected })
}

/// Operands are on one device.
#[inline(always)]
pub(crate) fn same_device(op: &'static str, a: &Device, b: &Device) -> Result<()> {
    match (a, b) {
        (Device::Cpu, Device::Cpu) => Ok(()),
        _ if a == b => Ok(()),
        _ => Err(Error::DeviceMismatch { op, lhs: a.to_string(), rhs: b.to_string() }),
    }
}

/// What a change in place reads does not lie in the bytes that it writes.
pub(crate) fn apart(op: &'static str, array: &Proxy, sources: &[&Proxy]) -> Result<()> {
    let of = |array: &Proxy| array.with_pinned(op, |array| array.storage.id());
    let own = of(array)?;
    for source in sources {
        if of(source)? == own {
            let (argument, value) = ("source", "a view of the bytes that are written".to_owned());
            return Err(Error::Argument { op, argument, value, expected: "an array of its own; copy() makes one" });
        }
    }
    Ok(())
}

/// Operands have one dtype.
#[inline]
pub(crate) fn same_dtype(op: &'static str, a: &ArrayRef<'_>, b: &ArrayRef<'_>) -> Result<()> {
    if a.dtype == b.dtype { Ok(()) } else { Err(Error::DTypeMismatch { op, lhs: a.dtype, rhs: b.dtype }) }
}

/// Operands have one shape.
#[inline]
pub(crate) fn same_shape(op: &'static str, a: &Shape, b: &Shape, hint: &str) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::shapes(op, a, b, hint.to_owned())) }
}

/// A floating-point operand.
#[inline]
pub(crate) fn float(op: &'static str, dtype: DType) -> Result<DType> {
    if dtype.is_float() { Ok(dtype) } else { Err(Error::UnsupportedDType { op, dtype, supported: FLOATS }) }
}

/// An operand of numbers: of any dtype but `Bool`.
#[inline]
pub(crate) fn number(op: &'static str, dtype: DType) -> Result<DType> {
    if dtype != DType::Bool { Ok(dtype) } else { Err(Error::UnsupportedDType { op, dtype, supported: NUMBERS }) }
}

/// An operand of an operation of the table.
#[inline]
pub(crate) fn domain(op: &'static str, domain: Domain, dtype: DType) -> Result<DType> {
    match domain {
        Domain::Any | Domain::Whole => Ok(dtype),
        Domain::Number => number(op, dtype),
        Domain::Float => float(op, dtype),
    }
}

/// For error texts: every dtype but `Bool`.
const NUMBERS: &str = "u8, u16, u32, u64, i8, i16, i32, i64, f8e4m3, f16, bf16, f32, f64";
/// For error texts.
const FLOATS: &str = DType::FLOATS;

/// An operand that holds indices as kernels read them; see [`readable`](crate::ops::index::select::readable).
pub(crate) fn index(op: &'static str, ids: &ArrayRef<'_>) -> Result<()> {
    match ids.dtype {
        DType::U8 | DType::U32 | DType::I64 => Ok(()),
        dtype => Err(Error::UnsupportedDType { op, dtype, supported: "u8, u32, i64" }),
    }
}

/// An operand that holds truth: indices, or truth values.
pub(crate) fn mask(op: &'static str, cond: &ArrayRef<'_>) -> Result<()> {
    if cond.dtype == DType::Bool { Ok(()) } else { index(op, cond) }
}

/// A finite number.
pub(crate) fn finite(op: &'static str, argument: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(Error::Argument { op, argument, value: value.to_string(), expected: "a finite number" })
}
