//! stub
pub(crate) fn word(seed: u64, i: u64) -> u32 { (seed ^ i) as u32 }
