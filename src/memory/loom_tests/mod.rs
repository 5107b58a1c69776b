//! Models of the memory layer for loom: every interleaving of a few threads, and every value that weak memory
//! lets them read, within `LOOM_MAX_PREEMPTIONS` (2 or 3) preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release --lib loom
//! ```
//!
//! Slot, what it shows of its array, hazard records, queue, stamps, holders, what a thread keeps of a budget and the
//! lock of a list are the files that ship. What is made of them in `registry.rs`, `metadata.rs`, `owner.rs`,
//! `reclaim.rs`, `storage.rs`, `storage/writing.rs` and `arena.rs` is repeated in `world.rs`, `writers.rs` and
//! `cycle.rs`, function by function, for one slot. `faults.rs`, `metadata.rs`, `writers.rs`, `cycle.rs` and `list.rs`
//! leave steps out of that and ask that a model fails; faults inside those files are listed in design.md with the model
//! that finds each.

mod allowance;
mod close;
mod cycle;
mod faults;
mod keep;
mod life;
mod list;
mod metadata;
mod queue;
mod world;
mod writers;
