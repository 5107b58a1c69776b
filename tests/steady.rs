//! What is settled asks nobody for anything. In a process of its own: the stocks of a runtime that many other tests used
//! hold more than these ones filled.

// A test ends at the first thing that goes wrong; `unwrap` says where.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/counting.rs"]
mod counting;

#[path = "steady/operations.rs"]
mod operations;
#[path = "steady/training.rs"]
mod training;
#[path = "steady/workspace.rs"]
mod workspace;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;
