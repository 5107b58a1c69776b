//! Hazard records: how a reader says, without writing anything shared, which slots it is using. They are hazard
//! pointers (M. M. Michael, IEEE Transactions on Parallel and Distributed Systems 15(6), 2004) of slots, with the
//! fence on the side of who closes.
//!
//! A reader writes the slot into a place of its own thread's record, issues the light barrier, and then reads
//! the state. A closer changes the state, issues the heavy barrier, and then reads all records. So one of the
//! two sees the other: either the reader finds the slot closed and lets go, or the closer finds the
//! announcement and leaves the slot to its reader. Letting go is a store and again a look at the state: a
//! reader that finds the slot closing tries to finish it.
//!
//! The same pair orders in-place writers of a storage against its readers (`storage/writing.rs`).
//!
//! # The barriers
//! `heavy` is `membarrier(2)`, which interrupts every running thread of the process, so that `light` costs nothing but
//! a compiler fence. Where `membarrier` is missing (other systems, Miri, loom) both are full fences. With one
//! registered thread `heavy` is a fence as well: there is nobody to interrupt. And none is issued for what only one
//! thread used: another one says so before it does, by an exchange in the slot (`Slot::share`), the storage
//! (`storage.rs`), or both and the block of a workspace (`cycle.rs`), and then announces anew.

use crate::base::sync::{AtomicU32, Ordering, fence};

/// Arrays one thread can be using at the same time.
pub(crate) const PLACES: usize = if cfg!(loom) { 2 } else { 16 };

/// Marks an announcement made for a closure of the user's: nobody waits for it.
pub(crate) const USER: u32 = 1 << 31;

/// The slots one thread is using, as index + 1, with `USER` or-ed in; 0 is none.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Hazards {
    places: [AtomicU32; PLACES],
    light: Light,
}

/// The light barrier: orders what the thread wrote before its next read; free where `heavy` interrupts.
#[derive(Debug)]
pub(crate) struct Light {
    /// Whether it is a fence: where `membarrier` is missing.
    fences: bool,
}

impl Light {
    pub(crate) fn new() -> Self {
        Light { fences: fences() }
    }

    #[inline(always)]
    pub(crate) fn barrier(&self) {
        if self.fences {
            // SeqCst: pairs with the fence in `heavy`.
            fence(Ordering::SeqCst);
        } else {
            // SeqCst: its partner is `heavy`, which runs the processor's side of this fence on every thread at once.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
    }
}

impl Hazards {
    pub(crate) fn new() -> Self {
        Hazards { places: std::array::from_fn(|_| AtomicU32::new(0)), light: Light::new() }
    }

    /// Announces slots in consecutive places; the states read after this are decisive.
    #[inline]
    pub(crate) fn announce<const N: usize>(&self, first: usize, indices: [u32; N], user: bool) {
        let mark = if user { USER } else { 0 };
        for (place, index) in self.places[first..first + N].iter().zip(indices) {
            // Release: pairs with the Acquire in `places`: who finds this announcement saw what was done under those
            // that stood here before. Ordered before the state reads by the light barrier, which pairs with `heavy` in
            // `announced`'s caller.
            place.store((index + 1) | mark, Ordering::Release);
        }
        self.light.barrier();
    }

    /// Lets go of `n` places; the states read after this decide who finishes a close.
    #[inline]
    pub(crate) fn withdraw(&self, first: usize, n: usize) {
        for place in &self.places[first..first + n] {
            // Release: pairs with the Acquire in `places`: what was read under the announcement was read before.
            place.store(0, Ordering::Release);
        }
        self.light.barrier();
    }

    /// The light barrier alone.
    #[inline(always)]
    pub(crate) fn barrier(&self) {
        self.light.barrier();
    }

    /// Every announcement with its place.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.first_places(PLACES)
    }

    /// Every announcement in the first `used` places: all that there are, where the thread whose record this is knows
    /// that it uses no more.
    #[inline]
    pub(crate) fn first_places(&self, used: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        // Acquire: pairs with the Release in `withdraw`.
        self.places.iter().take(used).map(|p| p.load(Ordering::Acquire)).enumerate().filter(|&(_, v)| v != 0)
    }

    /// Whether the slot is announced here.
    pub(crate) fn announces(&self, index: u32) -> bool {
        self.announces_first(PLACES, index)
    }

    /// Whether it is announced in the first `used` places.
    #[inline]
    pub(crate) fn announces_first(&self, used: usize, index: u32) -> bool {
        self.first_places(used).any(|(_, v)| v & !USER == index + 1)
    }
}

#[cfg(loom)]
fn fences() -> bool {
    true
}

#[cfg(not(loom))]
fn fences() -> bool {
    !membarrier::available()
}

/// Whether any record announces the slot. The caller changed the state and issued `heavy` before.
pub(crate) fn announced<'a>(mut records: impl Iterator<Item = &'a Hazards>, index: u32) -> bool {
    records.any(|record| record.announces(index))
}

#[cfg(loom)]
pub(crate) fn heavy(_threads: u32) {
    // SeqCst: pairs with the fence in `Light::barrier`: if that one comes first, the announcement is found; if this one
    // does, the reader finds the change.
    fence(Ordering::SeqCst);
}

/// Orders a closer's change before its reads of all records. `threads`: how many are registered.
#[cfg(not(loom))]
pub(crate) fn heavy(threads: u32) {
    // SeqCst: pairs with `Light::barrier` where that is a fence, and with the fence of a registering thread
    // (`threads.rs`), which is why one registered thread needs no interrupt.
    fence(Ordering::SeqCst);
    if threads > 1 && membarrier::available() {
        membarrier::interrupt();
    }
}

/// How often `heavy` interrupted the other threads.
#[cfg(not(loom))]
pub(crate) fn interrupts() -> u64 {
    // Relaxed: statistics.
    membarrier::COUNT.load(Ordering::Relaxed)
}

#[cfg(not(loom))]
pub(crate) mod membarrier {
    //! The system call, asked for once when the runtime starts.

    use crate::base::{
        sync::{AtomicU32, AtomicU64, Ordering},
        system,
    };

    static AVAILABLE: AtomicU32 = AtomicU32::new(0);
    pub(super) static COUNT: AtomicU64 = AtomicU64::new(0);

    /// Whether `register` succeeded.
    #[inline]
    pub(crate) fn available() -> bool {
        // Relaxed: set before the first record is handed out, by the lock of the thread table.
        AVAILABLE.load(Ordering::Relaxed) != 0
    }

    /// Registers the process. Called before the first record is handed out.
    pub(crate) fn register() {
        if system::membarrier::register() {
            // Relaxed: as in `available`.
            AVAILABLE.store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn interrupt() {
        // Relaxed: statistics.
        COUNT.fetch_add(1, Ordering::Relaxed);
        let done = system::membarrier::interrupt();
        assert!(done, "a registered process can interrupt its threads");
    }
}
