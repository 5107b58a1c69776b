//! The table of operations: what each takes, found out by running it, and written to `docs/operations.md`.
//!
//! `rows/` has one line for each public operation: its name and how to call it on the operands of `sample.rs`; those of
//! the kernels' table of elementwise operations are taken from there. The tests run every row on every device, in both
//! positions of the switch, with every dtype, on arrays of many axes, of none and of no elements, and compare the
//! documents with what they found. `BLESS=1` writes the documents anew.

mod document;
mod facts;
mod names;
mod refusals;
mod rows;
mod runs;
mod sample;
mod sources;
mod workspaces;
