//! What a thread keeps of a budget to itself: bytes and arrays that it freed, and that stay charged for its next ones,
//! which take them without a locked instruction.
//!
//! Its thread changes it between two writes to `busy`. Who takes back what another thread keeps says so in `taken`,
//! issues the heavy barrier (`hazard.rs`), and waits until that thread is not busy: either the thread finds `taken` and
//! leaves all as it is, or it is waited for. What goes back is credited to its node before it is gone from here: who
//! finds nothing finds it there.

use crate::base::sync::{AtomicU32, AtomicU64, Ordering, wait_turn};
use crate::memory::hazard::Light;

/// Bytes and arrays in one word, so that both are added and compared at once: 39 bits and 23, each with a bit above it
/// that is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount(u64);

/// The bits above the two.
const GUARDS: u64 = 1 << 39 | 1 << 63;
const ARRAYS_FROM: u32 = 40;

impl Amount {
    /// The most bytes that are kept: of more there is no amount.
    const MOST: u64 = 1 << 16;

    #[inline(always)]
    fn new(bytes: u64, arrays: u64) -> Option<Self> {
        (bytes <= Self::MOST).then_some(Amount(bytes | arrays << ARRAYS_FROM))
    }

    fn bytes(self) -> u64 {
        self.0 & ((1 << ARRAYS_FROM) - 1)
    }

    fn arrays(self) -> u64 {
        self.0 >> ARRAYS_FROM
    }

    /// Whether there are as many bytes and arrays as in another one.
    #[inline(always)]
    fn covers(self, other: Amount) -> bool {
        ((self.0 | GUARDS) - other.0) & GUARDS == GUARDS
    }
}

/// What goes back of an [`Allowance`]: of bytes and of arrays those that are free, and those that were drawn.
#[derive(Debug)]
pub(crate) struct Settlement {
    pub(crate) node: u32,
    pub(crate) bytes: (u64, u64),
    pub(crate) arrays: (u64, u64),
}

/// What one thread keeps. Lives for ever, and is passed from thread to thread.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Allowance {
    busy: AtomicU32,
    taken: AtomicU32,
    light: Light,
    /// The node that all is charged to, and to those above it; and of which version of all nodes that holds.
    node: AtomicU32,
    version: AtomicU64,
    /// The most bytes, and arrays: 0 if nothing may be kept of this node.
    most: AtomicU64,
    /// What of other nodes was freed since it is of this one; for its thread alone, busy or not.
    misses: AtomicU32,
    /// What was freed, and what of that was drawn again. Each an [`Amount`].
    freed: AtomicU64,
    drawn: AtomicU64,
}

impl Allowance {
    // Relaxed throughout, where nothing else is said: the thread's own, and what one at a time changes, by `busy` and
    // `taken`.

    pub(crate) fn new() -> Self {
        Allowance {
            busy: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            light: Light::new(),
            node: AtomicU32::new(0),
            version: AtomicU64::new(0),
            most: AtomicU64::new(0),
            misses: AtomicU32::new(0),
            freed: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
        }
    }

    /// Runs `f`, by the thread whose it is, unless another one takes what there is. What `f` answers; else `false`.
    #[inline(always)]
    fn alone(&self, f: impl FnOnce() -> bool) -> bool {
        // Relaxed: comes before the look at `taken` by the light barrier, which pairs with that of who claims it.
        self.busy.store(1, Ordering::Relaxed);
        self.light.barrier();
        // Acquire: pairs with the Release in `recall`: what that one left is found.
        let done = self.taken.load(Ordering::Acquire) == 0 && f();
        // Release: pairs with the Acquire in `recall`.
        self.busy.store(0, Ordering::Release);
        done
    }

    /// Whether it is of this node, as it is now. By the thread whose it is; others, for a look.
    #[inline(always)]
    pub(crate) fn is_of(&self, node: u32, version: u64) -> bool {
        // Relaxed: the thread's own.
        self.node.load(Ordering::Relaxed) == node && self.version.load(Ordering::Relaxed) == version
    }

    /// What was freed and not drawn. By the thread whose it is, or who takes it.
    #[inline(always)]
    fn left(&self) -> Amount {
        Amount(self.freed.load(Ordering::Relaxed) - self.drawn.load(Ordering::Relaxed))
    }

    /// Takes bytes and arrays of what is kept of a node, if it has that, and the place of an array as well.
    #[inline(always)]
    pub(crate) fn draw(&self, node: u32, version: u64, bytes: u64, arrays: u64) -> bool {
        let Some(wanted) = Amount::new(bytes, arrays) else { return false };
        self.is_of(node, version)
            && self.alone(|| {
                let has = self.left().covers(Amount(bytes | 1 << ARRAYS_FROM));
                if has {
                    self.drawn.store(self.drawn.load(Ordering::Relaxed) + wanted.0, Ordering::Relaxed);
                }
                has
            })
    }

    /// Whether it has an array of a node, by a look of the thread whose it is; another one may be taking it.
    #[inline(always)]
    pub(crate) fn has_array(&self, node: u32, version: u64) -> bool {
        self.is_of(node, version)
            && self.freed.load(Ordering::Relaxed).saturating_sub(self.drawn.load(Ordering::Relaxed)) >> ARRAYS_FROM != 0
    }

    /// Keeps bytes and arrays of a node that were freed, if there is room.
    #[inline(always)]
    pub(crate) fn keep(&self, node: u32, version: u64, bytes: u64, arrays: u64) -> bool {
        let Some(more) = Amount::new(bytes, arrays) else { return false };
        self.is_of(node, version)
            && self.alone(|| {
                let freed = self.freed.load(Ordering::Relaxed) + more.0;
                let most = Amount(self.most.load(Ordering::Relaxed));
                let fits = most.covers(Amount(self.left().0 + more.0)) && freed & GUARDS == 0;
                if fits {
                    self.freed.store(freed, Ordering::Relaxed);
                }
                fits
            })
    }

    /// Whether what went through it fills the numbers: then it begins anew when it was handed over.
    pub(crate) fn is_worn(&self) -> bool {
        let freed = Amount(self.freed.load(Ordering::Relaxed));
        freed.bytes() + Amount::MOST >= 1 << 39 || freed.arrays() + 1 >= 1 << 23
    }

    /// Whether it is time to be of another node: the thread frees of another one again and again, or this one changed.
    pub(crate) fn turns(&self, version: u64) -> bool {
        // Relaxed: the thread's own, here and below.
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses + 1, Ordering::Relaxed);
        misses >= 16 || self.version.load(Ordering::Relaxed) != version || self.node.load(Ordering::Relaxed) == 0
    }

    /// Is of another node from now on, and keeps so many bytes and arrays of it. By the thread whose it is, after
    /// [`Allowance::hand_over`].
    pub(crate) fn begin(&self, node: u32, version: u64, (bytes, arrays): (u64, u64)) {
        self.alone(|| {
            // Relaxed: the thread's own, here and below.
            self.node.store(node, Ordering::Relaxed);
            self.version.store(version, Ordering::Relaxed);
            let most = Amount::new(bytes, arrays).map_or(0, |most| most.0);
            self.most.store(most, Ordering::Relaxed);
            self.misses.store(0, Ordering::Relaxed);
            true
        });
    }

    /// Whether there is something to take, by a look. Of which node.
    pub(crate) fn has_of(&self) -> Option<u32> {
        // Acquire: pairs with the Release in `settle`. What its thread did before the caller knew of it is found; the
        // rest is as if it came later.
        let some = self.freed.load(Ordering::Acquire);
        // Relaxed: a node that nothing is kept of any more has been credited.
        (some != 0).then(|| self.node.load(Ordering::Relaxed))
    }

    /// What there is goes back, by `credit`; from now on nothing.
    fn settle<R>(&self, credit: impl FnOnce(Settlement) -> R) -> R {
        // Relaxed: by its thread, or after it.
        let node = self.node.load(Ordering::Relaxed);
        let (left, drawn) = (self.left(), Amount(self.drawn.load(Ordering::Relaxed)));
        let (bytes, arrays) = ((left.bytes(), drawn.bytes()), (left.arrays(), drawn.arrays()));
        let credited = credit(Settlement { node, bytes, arrays });
        // Release: pairs with the Acquire in `has_of`: who finds nothing finds it credited.
        self.freed.store(0, Ordering::Release);
        self.drawn.store(0, Ordering::Relaxed);
        credited
    }

    /// What there is goes back, by the thread whose it is. Not, if another one is about to take it.
    pub(crate) fn hand_over<R>(&self, credit: impl FnOnce(Settlement) -> R) -> Option<R> {
        let mut credited = None;
        self.alone(|| {
            credited = Some(self.settle(credit));
            true
        });
        credited
    }

    /// Another thread is about to take what there is, one at a time: after the heavy barrier, by [`Allowance::recall`].
    pub(crate) fn claim(&self) {
        // Relaxed: the barrier orders it before the look at `busy`.
        self.taken.store(1, Ordering::Relaxed);
    }

    /// Whether it is claimed, for who claims.
    pub(crate) fn is_claimed(&self) -> bool {
        // Relaxed: his own.
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// What there is goes back, by the thread that claimed it.
    pub(crate) fn recall<R>(&self, credit: impl FnOnce(Settlement) -> R) -> R {
        let mut turns = 0;
        // Acquire: pairs with the Release in `alone`.
        while self.busy.load(Ordering::Acquire) != 0 {
            wait_turn(&mut turns);
        }
        let credited = self.settle(credit);
        // Release: pairs with the Acquire in `alone`.
        self.taken.store(0, Ordering::Release);
        credited
    }
}
