//! What the end of a workspace's cycle and those who use its arrays know of each other: which cycles have ended, and
//! whether a reference holds a block. The third is the hazard record (`hazard.rs`).
//!
//! A reader announces an array, looks at [`Oldest`], and may begin to hold the block, before it withdraws. Whoever ends
//! a cycle changes `Oldest`, issues the heavy barrier, scans the records, and then looks at [`Holders`]; if nobody is
//! found, nobody will be. loom explores this file (`loom_tests/cycle.rs`).

use crate::base::sync::{AtomicU32, AtomicU64, Ordering};

/// The stamp below which the arrays of a scope have ended.
#[derive(Debug)]
pub(crate) struct Oldest(AtomicU64);

impl Oldest {
    /// No cycle ended yet; the first stamp is 1.
    pub(crate) fn new() -> Self {
        Oldest(AtomicU64::new(1))
    }

    /// Ends all cycles with a stamp below this one.
    #[inline]
    pub(crate) fn end_before(&self, stamp: u64) {
        // Release: pairs with the Acquire in `is_live`; against announcements it is ordered by the heavy barrier that
        // comes before bytes are used again (`workspace/scope.rs`).
        self.0.store(stamp, Ordering::Release);
    }

    /// Whether a cycle goes on. Read after an array of it was announced, it is decisive.
    #[inline(always)]
    pub(crate) fn is_live(&self, stamp: u64) -> bool {
        // Acquire: pairs with the Release in `end_before`.
        stamp >= self.0.load(Ordering::Acquire)
    }
}

/// References that hold a block.
#[derive(Debug)]
pub(crate) struct Holders(AtomicU32);

impl Holders {
    pub(crate) fn new() -> Self {
        Holders(AtomicU32::new(0))
    }

    /// One more. The caller announces an array of the block, or holds it already.
    #[inline]
    pub(crate) fn hold(&self) {
        // Relaxed: seen by whoever finds the caller's announcement gone (its Release in `withdraw`, the Acquire in
        // `places`), or the reference that it was cloned from let go.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    #[inline]
    pub(crate) fn let_go(&self) {
        // Release: pairs with the Acquire in `is_held`: what was read through the reference was read before.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether there is one. Asked after the records were found without an announcement, it is decisive.
    pub(crate) fn is_held(&self) -> bool {
        // Acquire: pairs with the Release in `let_go`.
        self.0.load(Ordering::Acquire) != 0
    }
}
