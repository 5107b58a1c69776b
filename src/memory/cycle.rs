//! What the end of a workspace's cycle and those who use its arrays know of each other: which cycles have ended, and
//! whether a reference retains a block. The third is the hazard record (`hazard.rs`).
//!
//! A reader announces an array, looks at [`Oldest`], and may begin to retain the block, before it withdraws. Whoever
//! ends a cycle changes `Oldest`, issues the heavy barrier, scans the records, and then looks at [`RetainCount`]; if
//! nobody is found, nobody will be.
//!
//! A thread that is not the workspace's says in [`ForeignUse`] that it reads, once for each storage, or finds that
//! another one did; then it looks at `Oldest`. Where nobody said so, no barrier is needed and no other thread's record.
//! loom explores this file (`loom_tests/cycle.rs`).

use crate::base::sync::{AtomicU32, AtomicU64, Ordering, fence};

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
        // comes before bytes are used again (`workspace/validity.rs`).
        self.0.store(stamp, Ordering::Release);
    }

    /// Whether a cycle goes on. Read after an array of it was announced, it is decisive.
    #[inline(always)]
    pub(crate) fn is_live(&self, stamp: u64) -> bool {
        // Acquire: pairs with the Release in `end_before`.
        stamp >= self.0.load(Ordering::Acquire)
    }
}

/// References that retain a block.
#[derive(Debug)]
pub(crate) struct RetainCount(AtomicU32);

impl RetainCount {
    pub(crate) fn new() -> Self {
        RetainCount(AtomicU32::new(0))
    }

    /// One more. The caller announces an array of the block, or retains it already.
    #[inline]
    pub(crate) fn retain(&self) {
        // Relaxed: seen by whoever finds the caller's announcement gone (its Release in `withdraw`, the Acquire in
        // `places`), or the reference that it was cloned from let go.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    #[inline]
    pub(crate) fn release(&self) {
        // Release: pairs with the Acquire in `is_retained`: what was read through the reference was read before.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// How many there are, for reports.
    pub(crate) fn count(&self) -> u32 {
        // Relaxed: a number of this moment, from which nothing follows for other memory.
        self.0.load(Ordering::Relaxed)
    }

    /// Whether there is one. Asked after the records were found without an announcement, it is decisive.
    pub(crate) fn is_retained(&self) -> bool {
        // Acquire: pairs with the Release in `release`.
        self.0.load(Ordering::Acquire) != 0
    }
}

/// Whether a thread that is not the workspace's used bytes of a block.
#[derive(Debug)]
pub(crate) struct ForeignUse(AtomicU32);

impl ForeignUse {
    pub(crate) fn new() -> Self {
        ForeignUse(AtomicU32::new(0))
    }

    /// Says so. The caller looks at `Oldest` afterwards.
    pub(crate) fn note(&self) {
        // Relaxed: the fence orders it before the caller's look.
        self.0.store(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `is_noted`: if this one comes first, the note is found; else the caller finds
        // the cycle ended.
        fence(Ordering::SeqCst);
    }

    /// Whether somebody said so, or will before it finds the cycle ended. The caller ended it.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        // SeqCst: pairs with the fence in `note`: if that one comes first, the Relaxed load below finds the note; if
        // this one does, who notes finds the cycle ended.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Nobody uses bytes of the block, and all its cycles have ended: who will, in a later one, says so anew.
    pub(crate) fn clear(&self) {
        // Relaxed: the block's next bytes are handed out after this, and who gets to know of them by that notes later.
        self.0.store(0, Ordering::Relaxed);
    }
}
