//! Indexing: by positions, by ranges, by masks, in the notations of candle, Rust and DJL; reading and writing.

pub(crate) mod indexer;
pub(crate) mod ndindex;
pub(crate) mod scatter;
pub(crate) mod select;
pub(crate) mod slice;
