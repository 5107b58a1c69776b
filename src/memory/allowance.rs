//! What a thread keeps of a budget to itself: bytes and arrays that it freed, and that stay charged for its next ones,
//! which take them without a locked instruction.
//!
//! Its thread alone changes it, between two writes to `busy`. Who takes back what another thread keeps says so in
//! `taken`, issues the heavy barrier (`hazard.rs`), and waits until that thread is not busy: either the thread finds
//! `taken` and leaves all as it is, or it is waited for.

use crate::base::sync::{AtomicU32, AtomicU64, Ordering, wait_turn};
use crate::memory::hazard::{Light, heavy};

/// The most arrays that a thread keeps.
const MOST_ARRAYS: u64 = 64;

/// Of bytes or of arrays: what was freed, and what of that was drawn again.
#[derive(Debug)]
struct Kept {
    freed: AtomicU64,
    drawn: AtomicU64,
}

/// Relaxed throughout: numbers of one writer, who reads his own; who takes them comes after it by `busy`.
impl Kept {
    fn none() -> Self {
        Kept { freed: AtomicU64::new(0), drawn: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn left(&self) -> u64 {
        self.freed.load(Ordering::Relaxed).wrapping_sub(self.drawn.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn add(counter: &AtomicU64, by: u64) {
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    /// What is left, and what was drawn; from now on nothing.
    fn empty(&self) -> (u64, u64) {
        let both = (self.left(), self.drawn.load(Ordering::Relaxed));
        self.freed.store(0, Ordering::Relaxed);
        self.drawn.store(0, Ordering::Relaxed);
        both
    }
}

/// What was taken out of an [`Allowance`]: of bytes and of arrays those that are free, and those that were drawn.
#[derive(Clone, Copy, Debug, Default)]
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
    /// The most bytes: 0 if nothing may be kept of this node.
    most: AtomicU64,
    /// What of other nodes was freed since it is of this one.
    misses: AtomicU32,
    bytes: Kept,
    arrays: Kept,
}

impl Allowance {
    pub(crate) fn new() -> Self {
        Allowance {
            busy: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            light: Light::new(),
            node: AtomicU32::new(0),
            version: AtomicU64::new(0),
            most: AtomicU64::new(0),
            misses: AtomicU32::new(0),
            bytes: Kept::none(),
            arrays: Kept::none(),
        }
    }

    /// Runs `f`, by the thread whose it is, unless another one takes what there is. What `f` answers; else `false`.
    #[inline(always)]
    fn alone(&self, f: impl FnOnce() -> bool) -> bool {
        // Relaxed: comes before the look at `taken` by the light barrier, which pairs with `heavy` in `recall`.
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

    /// Takes bytes and arrays of what is kept of a node, if it has that, and the place of an array as well.
    #[inline(always)]
    pub(crate) fn draw(&self, node: u32, version: u64, bytes: u64, arrays: u64) -> bool {
        self.is_of(node, version)
            && self.alone(|| {
                let has = self.bytes.left() >= bytes && self.arrays.left() > 0;
                if has {
                    Kept::add(&self.bytes.drawn, bytes);
                    Kept::add(&self.arrays.drawn, arrays);
                }
                has
            })
    }

    /// Whether it has an array of a node, by a look.
    #[inline(always)]
    pub(crate) fn has_array(&self, node: u32, version: u64) -> bool {
        self.is_of(node, version) && self.arrays.left() > 0
    }

    /// Keeps bytes and arrays of a node that were freed, if there is room.
    #[inline(always)]
    pub(crate) fn keep(&self, node: u32, version: u64, bytes: u64, arrays: u64) -> bool {
        self.is_of(node, version)
            && self.alone(|| {
                // Relaxed: the thread's own.
                let most = self.most.load(Ordering::Relaxed);
                let fits = self.bytes.left() + bytes <= most && self.arrays.left() + arrays <= MOST_ARRAYS.min(most);
                if fits {
                    Kept::add(&self.bytes.freed, bytes);
                    Kept::add(&self.arrays.freed, arrays);
                }
                fits
            })
    }

    /// Whether it is time to be of another node: the thread frees of another one again and again, or this one changed.
    pub(crate) fn turns(&self, version: u64) -> bool {
        // Relaxed: the thread's own, here and below.
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses + 1, Ordering::Relaxed);
        misses >= 16 || self.version.load(Ordering::Relaxed) != version || self.node.load(Ordering::Relaxed) == 0
    }

    /// Is of another node from now on, and keeps so many bytes of it. By the thread whose it is, after
    /// [`Allowance::hand_over`].
    pub(crate) fn begin(&self, node: u32, version: u64, most: u64) {
        self.alone(|| {
            // Relaxed: the thread's own, here and below.
            self.node.store(node, Ordering::Relaxed);
            self.version.store(version, Ordering::Relaxed);
            self.most.store(most, Ordering::Relaxed);
            self.misses.store(0, Ordering::Relaxed);
            true
        });
    }

    /// Whether there is something to take, by a look. Of which node.
    pub(crate) fn has_of(&self) -> Option<u32> {
        // Relaxed: what its thread did before the caller knew of it is found; the rest is as if it came later.
        let some = self.bytes.freed.load(Ordering::Relaxed) | self.arrays.freed.load(Ordering::Relaxed);
        (some != 0).then(|| self.node.load(Ordering::Relaxed))
    }

    fn empty(&self) -> Settlement {
        // Relaxed: by its thread, or after it.
        let node = self.node.load(Ordering::Relaxed);
        Settlement { node, bytes: self.bytes.empty(), arrays: self.arrays.empty() }
    }

    /// What there is, by the thread whose it is: nothing, if another one is about to take it.
    pub(crate) fn hand_over(&self) -> Settlement {
        let mut all = Settlement::default();
        self.alone(|| {
            all = self.empty();
            true
        });
        all
    }

    /// What there is, by another thread; one at a time.
    pub(crate) fn recall(&self) -> Settlement {
        // Relaxed: the barrier orders it before the look at `busy`.
        self.taken.store(1, Ordering::Relaxed);
        heavy(u32::MAX);
        let mut turns = 0;
        // Acquire: pairs with the Release in `alone`.
        while self.busy.load(Ordering::Acquire) != 0 {
            wait_turn(&mut turns);
        }
        let all = self.empty();
        // Release: pairs with the Acquire in `alone`.
        self.taken.store(0, Ordering::Release);
        all
    }
}
