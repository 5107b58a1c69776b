//! What asynchronous devices share, shown on the simulated one: blocks carved out of segments, and captured sections.
#![allow(clippy::unwrap_used)] // a test ends with the first surprise

mod capture;
mod pinning;
mod pool;
mod refusals;
mod support;
