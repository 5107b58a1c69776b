//! All tests that can share a process. Those that count what the process has take turns (`common::turn`); the longest
//! run in processes of their own meanwhile (`common::ran_apart`).
//!
//! The global allocator counts, which changes nothing for those that do not look.

// A test ends at the first thing that goes wrong; `unwrap` says where.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/counting.rs"]
mod counting;

mod device;
mod files;
mod it;
#[cfg(feature = "cuda")]
mod kernels;
mod ops;
mod oracle;
mod ported;
#[cfg(feature = "cuda")]
mod pretend_cuda;
mod process;
mod programs;
mod soak;
mod table;
mod tidy;
mod train;
mod unwinding;
mod workspace;
mod workspace_programs;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;
