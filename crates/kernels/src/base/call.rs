//! Who called, and what: what each operation and each of its errors says of itself.

use std::panic::Location;

/// A place in the user's source.
pub type Site = &'static Location<'static>;

/// A call of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The operation.
    pub op: &'static str,
    /// Where the user called it.
    pub site: Site,
}

impl Call {
    /// The call of `op` by the caller of the function that asks.
    #[inline(always)]
    #[track_caller]
    pub fn here(op: &'static str) -> Self {
        Call { op, site: Location::caller() }
    }
}

/// What an error is told of the call that failed: which operation, and where it was called, if that is known here.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The operation.
    pub op: &'static str,
    /// Where the user called it.
    pub site: Option<Site>,
}

impl From<&'static str> for Asked {
    fn from(op: &'static str) -> Self {
        Asked { op, site: None }
    }
}

impl From<Call> for Asked {
    #[inline(always)]
    fn from(Call { op, site }: Call) -> Self {
        Asked { op, site: Some(site) }
    }
}
