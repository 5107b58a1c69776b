//! New arrays that one kernel, or a copy of numbers, fills.

use crate::base::{call::Call, dtype::DType, error::Result, shape::Shape};
use crate::memory::{proxy::Proxy, registry::Parts};
use crate::ops::call::{
    exec::{Output, enter, output, place},
    place::Place,
};

/// Makes an array that one kernel, or an upload, fills.
pub(crate) fn make<P: Place + ?Sized>(
    call: Call,
    shape: Shape,
    dtype: DType,
    at: &P,
    zeroed: bool,
    fill: impl FnOnce(&mut Output) -> Result<()>,
) -> Result<Proxy> {
    let mut fill = Some(fill);
    make_by(call, (shape, dtype), &at, zeroed, &mut |out| fill.take().map_or(Ok(()), |fill| fill(out)))
}

/// As [`make`], by reference.
fn make_by(
    call: Call,
    (shape, dtype): (Shape, DType),
    at: &dyn Place,
    zeroed: bool,
    fill: &mut dyn FnMut(&mut Output) -> Result<()>,
) -> Result<Proxy> {
    enter(call, |local| {
        let mut out = output(local, call.op, at.device_of_place(), dtype, &shape, zeroed)?;
        fill(&mut out)?;
        let Output { storage, layout, dtype } = out;
        place(call, local, Parts { dtype, layout: &layout, storage, node: None }, at)
    })
}
