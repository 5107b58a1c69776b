//! Who called, and what: what each operation and each of its errors says of itself.

use std::panic::Location;

/// A place in the user's source.
pub type Site = &'static Location<'static>;
