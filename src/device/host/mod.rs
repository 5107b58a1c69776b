//! The host: its memory (the pool, its counts and its store, also without memory, and blocks that lie in files), and
//! the one place where kernels are run on it.
//!
//! The unsafe code rests on who has the bytes: operations and the simulated device those of a kernel, and the store
//! those of a free block.

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
    span::Span,
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

/// Gives the pages of a part of a free block of the store back; they are zero when they come again. Whether they went.
fn return_pages(span: Span) -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the bytes lie in a mapping of ours that has no file, and in a block that nobody has: it came back,
        // and is in no list (`store.rs`); after the call they read as zero.
        let answer = unsafe { libc::madvise(span.ptr().as_ptr().cast(), span.bytes(), libc::MADV_DONTNEED) };
        answer == 0
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = span;
        false
    }
}
