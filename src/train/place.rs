//! Where a function was called, for its errors.

use std::panic::Location;

use ndgc::Result;

/// The answer of a function whose caller called it at the place that an error is to name.
#[track_caller]
pub(super) fn called_here<R>(answer: Result<R>) -> Result<R> {
    of_call(|| answer)
}

/// As [`called_here`], of what such a function does.
#[track_caller]
pub(super) fn of_call<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let site = Location::caller();
    f().map_err(|error| error.at(site))
}
