//! The host: its memory (the pool, its counts and its store, also without memory, and blocks that lie in files), and
//! the one place where kernels are run on it.
//!
//! The unsafe code rests on who has the bytes of a kernel: operations, and the simulated device.

#![allow(unsafe_code)]

pub(crate) mod addresses;
mod counts;
pub(crate) mod mapped;
pub(crate) mod pool;
pub(crate) mod spill;
pub(crate) mod store;

use crate::base::error::Result;
use crate::device::{
    cpu,
    kernel::{Kernel, View},
};

/// Runs a kernel to its end: for the first time, or a captured one after so many replays.
///
/// Two callers make operands, and each sees to it that those live, and that nobody else uses what is written meanwhile:
/// operations (`ops/call/exec.rs`) of pinned arrays, fresh results and storages held for writing; and the simulated
/// device (`sim/memory.rs`) of its own regions.
#[inline]
pub(crate) fn run(kernel: &Kernel<View<'_>>, replays: u64) -> Result<()> {
    // In operations every view is made from a storage that the caller pins or owns (`tests/tidy.rs` looks that
    // `exec.rs` alone makes them), so the buffers live and, since a pinned storage is not being written
    // (`registry::pin`), sources are not written meanwhile. Destinations are fresh storages that no other thread knows,
    // or are held by a `Writing`, which excludes all readers, also through another operand. The simulated device looks
    // at every operand (`Heap::kernel`, `Checker::operation`) and runs one kernel at a time. SAFETY: so operands live
    // and are used by nobody else; and the host's bytes are initialised before they are handed out: those of the pool,
    // of files, of vectors, and by promise those of others.
    unsafe { cpu::run_again(kernel, replays) }
}
