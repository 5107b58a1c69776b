//! New arrays that one kernel, or a copy of numbers, fills.

use crate::base::{
    call::Call,
    dtype::DType,
    error::{Closer, Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::Device;
use crate::memory::{proxy::Proxy, workspace};
use crate::ops::call::{
    exec::{Output, allocate_for, budget_of, enter, place},
    place::Place,
};

/// Makes an array that one kernel, or an upload, fills.
pub(crate) fn make(
    call: Call,
    shape: Shape,
    dtype: DType,
    at: &dyn Place,
    zeroed: bool,
    fill: &mut dyn FnMut(&mut Output) -> Result<()>,
) -> Result<Proxy> {
    enter(call, |context| {
        let device = at.device_of_place();
        let owner = at.owner();
        let storage = allocate_for::<true>(context, call.op, device, (dtype, &shape), zeroed, || budget_of(&owner))?;
        let mut out = Output { storage, layout: Layout::contiguous(shape), dtype };
        fill(&mut out)?;
        let Output { storage, ref layout, dtype } = out;
        place(call, context, (dtype, layout), storage, (at, &owner))
    })
}

/// What takes the place of the result of a call that failed and cannot return an error: a closed array with the
/// metadata of `like`, each use of which is [`Error::StaleArray`] with what failed, where and why.
///
/// # Errors
/// Not even that can be made.
#[cold]
pub(crate) fn failed(what: &str, call: Call, like: &Proxy, error: &Error) -> Result<Proxy> {
    let (shape, dtype, device) = (*like.shape(), like.dtype(), like.device());
    // One element stands for all.
    let mut one = |out: &mut Output| {
        out.layout = out.layout.broadcast_to(&shape, call.op)?;
        Ok(())
    };
    let nothing = workspace::outside(|| {
        let there = make(call, Shape::SCALAR, dtype, device, true, &mut one);
        // No memory at all: then it is of no elements.
        there.or_else(|_| make(call, Shape::from(0), dtype, &Device::Cpu, true, &mut |_| Ok(())))
    })?;
    nothing.set_name(&format!("the result of {what} at {} that failed ({error})", call.site))?;
    nothing.close_as(Closer::Failure, call.site);
    Ok(nothing)
}
