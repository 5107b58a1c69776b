//! Bounds that every layer keeps.

/// The largest number of axes a tensor can have.
pub const MAX_RANK: usize = 6;
