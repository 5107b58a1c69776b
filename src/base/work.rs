//! How much of others' work a call still does: what died since is ended by whatever call comes next, and no call shall
//! stall for it.
//!
//! Work is counted in units. A call begins with [`UNITS`]; what costs takes some, and what finds none left leaves the
//! rest to the next call. Between calls what is dropped by hand goes on with what the last call left.

use std::cell::Cell;

use crate::base::local::during;

/// Units of a call: the longest stall stays under 60 microseconds, and they are above the orphans of an ordinary
/// training step (design.md, "Budgets").
pub(crate) const UNITS: u32 = 256;
/// An array that is reaped, a step of the gradient graph that ends.
pub(crate) const ONE: u32 = 1;
/// A mebibyte whose pages go back to the system.
pub(crate) const MEBIBYTE: u32 = 32;

/// What it costs to give these bytes back to the system.
pub(crate) fn of_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX).saturating_mul(MEBIBYTE)
}

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(UNITS) };
}

/// A call begins.
#[inline]
pub(crate) fn begin() {
    LEFT.set(UNITS);
}

/// Units that are left.
#[inline]
pub(crate) fn left() -> u32 {
    LEFT.get()
}

/// Takes units, as far as there are any. Whether there were.
#[inline]
pub(crate) fn spend(units: u32) -> bool {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(units));
    left > 0
}

/// Runs `f` as a call of its own would.
pub(crate) fn of_call<R>(f: impl FnOnce() -> R) -> R {
    during(&LEFT, UNITS, f)
}

/// Runs code of others within a call. Calls that it makes leave no more to this one than it had before.
#[inline]
pub(crate) fn of_others<R>(f: impl FnOnce() -> R) -> R {
    let before = LEFT.get();
    let answer = f();
    // Who is asked to do all there is has more than any call begins with.
    LEFT.set(if before > UNITS { before } else { LEFT.get().min(before) });
    answer
}

/// Runs `f`, which is asked to do all there is.
pub(crate) fn all<R>(f: impl FnOnce() -> R) -> R {
    during(&LEFT, u32::MAX, f)
}
