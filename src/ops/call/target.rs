//! Results written to an array that is there: by the kernel itself where that can be, else as a copy.

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
};
use crate::memory::{
    proxy::Proxy,
    registry::{ArrayRef, Pinned},
};
use crate::ops::call::{
    check,
    compose::composite,
    exec::Once,
    inplace::{EXCHANGED, InPlace, into},
};

/// Writes what `value` computes to `out`.
pub(crate) fn write(call: Call, out: &Proxy, value: Once<'_, Proxy>) -> Result<()> {
    let mut write = || {
        let value = no_grad(&mut *value)?;
        out.copy_(&value)?;
        Ok(out.clone())
    };
    composite(call, out, &mut write).map(drop)
}

/// Writes the result of a kernel of `N` operands of one dtype, each of which has the shape of `out` or is broadcast to
/// it, to `out`: by the kernel itself if `out` is contiguous, else by way of `value`. `result` gives the dtype of the
/// result of operands of a dtype, or refuses it; it is asked again where all are announced.
pub(crate) fn kernel<const N: usize>(
    call: Call,
    out: &Proxy,
    operands: [&Proxy; N],
    result: &dyn Fn(DType) -> Result<DType>,
    change: &InPlace<'_, N>,
    value: Once<'_, Proxy>,
) -> Result<()> {
    check::open(call, &operands)?;
    check::open_as(call, out, 2)?;
    let fitting = |out: DType, operands: [DType; N]| {
        let Some(&first) = operands.first() else { return Ok(()) };
        if let Some(&other) = operands.iter().find(|&&other| other != first) {
            return Err(Error::dtype_mismatch(call, first, other));
        }
        match result(first)? {
            dtype if dtype == out => Ok(()),
            dtype => Err(Error::dtype_mismatch(call, dtype, out)),
        }
    };
    fitting(out.dtype(), operands.map(Proxy::dtype))?;
    if !out.is_contiguous() {
        return write(call, out, value);
    }
    let mut run = || {
        let expand =
            |x: &Proxy| no_grad(|| if x.shape() == out.shape() { Ok(x.clone()) } else { x.broadcast_as(out.shape()) });
        let mut operands = operands.map(Proxy::clone);
        for operand in &mut operands {
            *operand = expand(operand)?;
        }
        let fits = |d: &ArrayRef<'_>, sources: &[Pinned<'_>; N]| {
            fitting(d.dtype, sources.each_ref().map(|source| source.dtype))?;
            sources
                .iter()
                .try_for_each(|source| check::same_shape(call, d.layout.shape(), source.layout.shape(), EXCHANGED))
        };
        into(call, out, std::array::from_fn(|i| &operands[i]), &fits, change)?;
        Ok(out.clone())
    };
    composite(call, out, &mut run).map(drop)
}

/// That the common shape of two operands is that of `out`.
pub(crate) fn pair(a: &Proxy, b: &Proxy, out: &Proxy, call: Call, broadcast: bool) -> Result<()> {
    let hint = "the operation wants equal shapes; use the broadcast_ form to repeat axes of size 1";
    let shape = match broadcast {
        true => call.named(a.shape().broadcast(b.shape(), call.op))?,
        false => check::same_shape(call, a.shape(), b.shape(), hint).map(|()| *a.shape())?,
    };
    check::same_shape(call, &shape, out.shape(), "the array that is written must have the shape of the result")
}
