//! What asynchronous devices share, shown on the simulated one: blocks carved out of segments, and captured sections.

mod capture;
mod pinning;
mod pool;
mod refusals;
mod support;
