//! Where a function was called, for its errors.

use std::panic::Location;

use ndgc::Result;

/// The answer of a function whose caller called it at the place that an error is to name.
#[track_caller]
pub(super) fn called_here<R>(answer: Result<R>) -> Result<R> {
    let site = Location::caller();
    answer.map_err(|error| error.at(site))
}
