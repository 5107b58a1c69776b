//! What asynchronous devices share, shown on the simulated one: blocks sub-allocated from segments, and captured
//! sections.

mod audited;
mod capture;
mod pinning;
mod pool;
mod refusals;
mod support;
mod texts;
