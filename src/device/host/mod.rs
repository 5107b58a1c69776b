//! Memory of the host: the pool, and blocks that lie in files.

pub(crate) mod mapped;
pub(crate) mod pool;
