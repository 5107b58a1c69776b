//! The host's memory: the pool, its counts and its store, also without memory, and blocks that lie in files.

pub(crate) mod addresses;
mod counts;
pub(crate) mod mapped;
pub(crate) mod pool;
pub(crate) mod spill;
pub(crate) mod store;
