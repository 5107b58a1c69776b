//! What is charged to a budget: of bytes and of arrays two numbers each that only grow, what was charged, and what was
//! freed of it. So an array costs two exchanges and two additions at each level, and what was charged in all is there
//! too. Who charges reads first what was freed: it may find more than there is, never less, so that no limit is passed.
//!
//! Relaxed throughout, where nothing else is said, as in `budget.rs`.

use crate::base::sync::{AtomicU64, Ordering};
use crate::memory::budget::allowances;

/// No limit.
pub(super) const NONE: u64 = u64::MAX;
/// In `charged`: the manager is gone. Below it numbers count in a circle.
pub(super) const CLOSED: u64 = 1 << 63;

/// What is charged to a node, with its limits.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) charged: AtomicU64,
    pub(super) freed: AtomicU64,
    /// What threads freed and charged again without a word (`allowances.rs`): all that was charged has it too.
    pub(super) drawn: AtomicU64,
    pub(super) peak: AtomicU64,
    pub(super) max: AtomicU64,
}

impl Meter {
    /// Of a node that was never used: nothing is charged to it.
    pub(super) const fn closed() -> Self {
        Meter {
            charged: AtomicU64::new(CLOSED),
            freed: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            max: AtomicU64::new(NONE),
        }
    }

    /// Adds, if that stays within the limit or is `forced`. What there was, or is.
    #[inline]
    pub(super) fn add(&self, amount: u64, forced: bool) -> Result<u64, u64> {
        self.add_within(self.max.load(Ordering::Relaxed), amount, forced)
    }

    /// As [`Meter::add`], with this limit.
    #[inline]
    pub(super) fn add_within(&self, most: u64, amount: u64, forced: bool) -> Result<u64, u64> {
        loop {
            let (used, charged) = self.read();
            let now = used.saturating_add(amount);
            let fits = forced || (charged & CLOSED == 0 && now <= most && now < CLOSED);
            if !fits {
                return Err(used);
            }
            let sum = charged & CLOSED | charged.wrapping_add(amount) & !CLOSED;
            // Acquire: pairs with the Release in `open`; whoever is charged finds the node above. Relaxed: read again.
            if self.charged.compare_exchange_weak(charged, sum, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(used);
            }
        }
    }

    /// So many are there now: if that is more than there may be, nothing is drawn of what was kept.
    #[inline(always)]
    pub(super) fn note_forced(&self, now: u64, forced: bool) {
        if forced && now > self.max.load(Ordering::Relaxed) {
            allowances::change();
        }
    }

    /// Takes back what was added, as if it had never been.
    pub(super) fn revoke(&self, amount: u64) {
        let less = |charged: u64| Some(charged & CLOSED | charged.wrapping_sub(amount) & !CLOSED);
        // SeqCst: as in `free_bytes`.
        let _ = self.charged.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    }

    /// What there is, and what was charged when it was read: first what was freed, so that there is not less.
    #[inline]
    fn read(&self) -> (u64, u64) {
        // Acquire: pairs with the Release in `free_bytes` and `uncount_array`: what was freed had been charged.
        let freed = self.freed.load(Ordering::Acquire);
        let charged = self.charged.load(Ordering::Relaxed);
        (charged.wrapping_sub(freed) & !CLOSED, charged)
    }

    /// Whether so much is more than there ever was.
    #[inline(always)]
    pub(super) fn rises_to(&self, now: u64) -> bool {
        now > self.peak.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.read().0
    }

    /// What there is at a time during the call, and all that was charged.
    pub(super) fn exact(&self) -> (u64, u64) {
        loop {
            // Acquire: as in `read`, and so that the three are read one after the other: while what was freed stays the
            // same, the difference is what there is.
            let freed = self.freed.load(Ordering::Acquire);
            let charged = self.charged.load(Ordering::Acquire);
            if self.freed.load(Ordering::Relaxed) == freed {
                let total = (charged & !CLOSED) + self.drawn.load(Ordering::Relaxed);
                return (charged.wrapping_sub(freed) & !CLOSED, total);
            }
        }
    }

    /// Begins at nothing, after so much that was charged and is free, and with this peak.
    pub(super) fn open(&self, peak: u64, gone: u64) {
        self.peak.store(peak, Ordering::Relaxed);
        self.freed.store(gone, Ordering::Relaxed);
        self.drawn.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `add`.
        self.charged.store(gone, Ordering::Release);
    }
}
