//! The code of others where a panic must not go further: what they drop in the middle of ndgc's own work.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::work;

/// Drops a value of somebody else's. Its panic, which std has reported, ends here: this may run in the middle of a
/// drain, where it would leave other arrays in nobody's hands. Calls that it makes leave the drain its work.
pub(crate) fn drop_contained<T>(value: T) {
    work::of_others(|| {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            // What it panicked with is somebody else's too, and its drop may panic again: once is tried, no more.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
        }
    });
}
