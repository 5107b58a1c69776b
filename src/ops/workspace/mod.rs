//! Arrays moved between workspaces, and arrays that the compiler ties to one.

pub(crate) mod moves;
pub(crate) mod scoped;
