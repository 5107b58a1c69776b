//! Memory of the host: the pool, its counts and its store, and blocks that lie in files.

mod counts;
pub(crate) mod mapped;
pub(crate) mod pool;
mod store;
