//! Operands that are given up: an operation that consumes the last handle of an array writes its result into the
//! array's bytes, so that an expression of temporaries needs one buffer.
//!
//! That is done where nobody can see it: the array would die with the handle (its handles own it, or the switch is on),
//! no view and no gradient holds its bytes, they are the pool's and exactly those of the result, and the gradient of
//! the operation does not need what they held. Else the operation makes a result of its own. Not in a captured section,
//! whose replays would find their operand changed.

use crate::array::autograd::is_grad_enabled;
use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::device::{
    graph::is_capturing,
    kernel::{BinaryOp, Kernel, Map},
};
use crate::memory::{
    owner::Owner,
    proxy::Proxy,
    registry::{ArrayRef, OwnedArray, Parts, Tracked},
    switch,
};
use crate::ops::call::{
    check,
    exec::{adopt_for, device, enter, launch, output_view, pin, view_of},
};

/// An operand of an operation that may write into what it is given.
#[derive(Debug)]
pub(crate) enum Operand<'a> {
    /// To be read.
    Borrowed(&'a Proxy),
    /// To be used up.
    Owned(Proxy),
}

impl Operand<'_> {
    pub(crate) fn get(&self) -> &Proxy {
        match self {
            Operand::Borrowed(array) => array,
            Operand::Owned(array) => array,
        }
    }
}

/// An array that nobody else uses: the functions of the table, which `unary.rs` gives it, take it by value and may
/// write into its bytes; every other method is the array's.
#[doc(hidden)]
#[derive(Debug)]
pub struct Temporary(pub(crate) Proxy);

impl std::ops::Deref for Temporary {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.0
    }
}

/// Whether the array of a handle ends with it.
fn may_end(array: &Proxy, op: &'static str) -> Result<bool> {
    let alone = array.handle_count() == 1 && !is_capturing();
    Ok(alone && (switch::reclaiming() || array.owner(op)? == Owner::Handles))
}

/// Whether the bytes of an array are those that a result has, and nobody else's.
fn is_temporary(own: &ArrayRef<'_>) -> bool {
    let buffer = own.storage.buffer();
    let bytes = own.layout.shape().elem_count() * own.dtype.size_in_bytes();
    let whole = bytes > 0 && buffer.span().bytes() == bytes && own.layout.is_contiguous() && buffer.is_pooled();
    whole && own.storage.references() == 1
}

/// Whether a gradient is recorded for an operation with this operand.
pub(crate) fn is_recorded(operand: &ArrayRef<'_>) -> bool {
    operand.node.is_some() && is_grad_enabled()
}

/// What is done to the operand that is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Map(Map),
    /// With the other operand on the right.
    Binary(BinaryOp),
}

/// What came of an attempt to write a result into the bytes of an operand.
pub(crate) enum Reused {
    Output(Proxy),
    /// The operand as it was.
    Not(Proxy),
}

/// Bytes of an operand from which it is looked at whether they can be used again: below, a block of the pool costs less
/// than the look.
const BYTES_MIN: usize = 16 << 10;

impl Operand<'_> {
    /// Whether it is given up, and large enough that its bytes are worth a look.
    #[inline(always)]
    pub(crate) fn may_be_reused(&self) -> bool {
        matches!(self, Operand::Owned(own) if own.elem_count() * own.dtype().size_in_bytes() >= BYTES_MIN)
    }
}

/// What an operation asks of the operand that it may write into, and of the other one.
pub(crate) struct Reuse<'a> {
    pub(crate) change: Change,
    /// Whether they fit, and the gradient does not need what the operand holds.
    pub(crate) fits: &'a dyn Fn(&ArrayRef<'_>, Option<&ArrayRef<'_>>) -> bool,
    /// The gradient node.
    pub(crate) node: &'a dyn Fn(&ArrayRef<'_>, Option<&ArrayRef<'_>>) -> Tracked,
}

/// Writes the result of an operation into the bytes of `own`, where that is possible.
///
/// The kernel works in place on the first view; the other one has its shape. The result belongs to the owner of
/// `first`, or of `own`.
pub(crate) fn write_in_place(
    call: Call,
    own: Proxy,
    other: Option<&Proxy>,
    first: Option<&Proxy>,
    Reuse { change, fits, node }: Reuse<'_>,
) -> Result<Reused> {
    enter(call, |context| {
        // The other operand stays announced; `own` must not be when it is taken.
        let others = other
            .map(|other| {
                check::open_as(call, other, usize::from(first.is_none()))?;
                pin(context, call.op, [other])
            })
            .transpose()?;
        let others = others.as_ref().map(|pins| pins.arrays());
        let other = others.as_ref().map(|[other]| &**other);
        // What is found here is true of the array as it is announced. It may change until it is taken, by whoever found
        // it by its key, so everything is asked of what was taken again.
        let may_be = |a: &ArrayRef<'_>| is_temporary(a) && fits(a, other);
        let look = || {
            let pins = pin(context, call.op, [&own])?;
            let [a] = pins.arrays();
            Ok::<_, Error>(may_end(&own, call.op)? && may_be(&a))
        };
        if !look()? {
            return Ok(Reused::Not(own));
        }
        let mine = (own.key(), own.owner(call.op)?);
        let first = first.map_or(Ok(mine), |first| first.owner(call.op).map(|owner| (first.key(), owner)))?;
        let taken = match own.take_over(context, call.op)? {
            Ok(taken) => taken,
            Err(own) => return Ok(Reused::Not(own)),
        };
        if !may_be(&taken.as_ref()) {
            let OwnedArray { dtype, layout, storage, node } = taken;
            return adopt_for(call, context, Parts { dtype, layout: &layout, storage, node }, mine).map(Reused::Not);
        }
        let node = node(&taken.as_ref(), other);
        let expanded = other
            .filter(|other| other.layout.shape() != taken.layout.shape())
            .map(|other| other.layout.broadcast_to(taken.layout.shape(), call.op))
            .transpose()?;
        let other =
            other.map(|other| view_of(other.storage.buffer(), other.dtype, expanded.as_ref().unwrap_or(other.layout)));
        let dst = output_view(&taken.storage, taken.dtype, &taken.layout);
        let kernel = match (change, other) {
            (Change::Map(map), _) => Kernel::MapAssign { map, dst },
            (Change::Binary(op), Some(rhs)) => Kernel::BinaryAssign { op, dst, rhs },
            (Change::Binary(_), None) => return Err(Error::msg("a function of two operands has two")),
        };
        launch(device(&taken.as_ref()), &kernel)?;
        let OwnedArray { dtype, layout, storage, .. } = taken;
        adopt_for(call, context, Parts { dtype, layout: &layout, storage, node }, first).map(Reused::Output)
    })
}
