//! A place of the registry and its life: one atomic word of state, one of proxies, the body inline.
//!
//! ```text
//! vacant --open--> open --begin_close--> closing --finish--> closed --recycle--> vacant (next generation)
//!                    \\__________ close_at_once ____________/                  /
//!                     \___________ recycle (an orphan that nobody else can see) /
//! ```
//!
//! # Who may do what
//! - The body is written by `open` and by nobody else until `finish`, `close_at_once` or `recycle` takes it. In between
//!   it is only read, by a thread that either announced the slot in its hazard record and then found the state open
//!   (`hazard.rs`), or closes it.
//! - `begin_close` is called by the one thread that took the slot from its owner (`owner.rs`), once.
//! - Between `begin_close` and `finish` every thread that lets go of an announcement may finish; the bit
//!   `FINISHING` picks one.
//! - `proxies` counts the handles. The last one to drop gives its count to the reclaim queue, or, with the switch off,
//!   leaves it with the manager (`KEPT`). So the count reaches 0 only where somebody took it over: in the drain, in the
//!   last drop of an array that is closed already, in `take_only`. Then nobody holds a key, and the slot is
//!   recycled once it is closed as well, whichever comes second.
//! - A slot with a proxy is never recycled, so a live proxy never meets another array's generation.
//!
//! loom explores this file together with `hazard.rs` and `queue.rs` (`loom_tests/`).
//!
//! The unsafe code rests on the state word and the announcements: the body is written while the slot is vacant or held
//! by one thread alone, and read by those who announced it and then saw it open.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::base::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// Readable by whoever announced it.
pub(crate) const OPEN: u64 = 1;
/// Ended for new readers; running ones may still read.
pub(crate) const CLOSING: u64 = 2;
/// The body is gone.
pub(crate) const CLOSED: u64 = 4;
/// No proxy is left, and the queue has handed the slot out.
pub(crate) const ORPHAN: u64 = 8;
/// The last proxy fell while the switch was off: its count stays, in the name of the manager.
pub(crate) const KEPT: u64 = 16;
/// A thread is taking the body.
const FINISHING: u64 = 32;
/// A name is in the side table.
pub(crate) const NAMED: u64 = 64;
/// Lenders are in the side table.
pub(crate) const LENT: u64 = 128;
/// The body is being exchanged; readers wait.
pub(crate) const BUSY: u64 = 256;

/// The array ends with a cycle of a workspace: whether it did, the cycle says (`workspace/validity.rs`).
pub(crate) const CYCLE: u64 = 512;

/// Another thread than the one that made the array uses it, or did (`ArraySlot::is_usable`).
pub(crate) const SHARED: u64 = 1024;

/// Who reads the array asks its storage whether he may. Clear only of one that was made with bytes of its own, by the
/// thread that alone uses them; set before another thread writes them (`storage/writing.rs`).
pub(crate) const GUARDED: u64 = 4096;

/// What is shown of the array is not what it was made with (`Shown`).
pub(crate) const TURNED: u64 = 2048;

/// Handles of one array.
const HANDLES_MAX: u32 = u32::MAX / 2;
/// A generation never reaches this: the slot is retired instead.
const LAST_GENERATION: u32 = u32::MAX;

/// The generation in a state word.
#[inline]
pub(crate) fn generation_of(state: u64) -> u32 {
    (state >> 32) as u32
}

/// State, count and body of one slot.
#[derive(Debug)]
pub(crate) struct Slot<P> {
    /// Generation (upper half) and the bits above.
    state: AtomicU64,
    /// Handles, the queue's and the manager's inherited counts included.
    proxies: AtomicU32,
    /// The next slot of the reclaim queue, as index + 1; 0 ends it.
    pub(crate) link: AtomicU32,
    body: UnsafeCell<Option<P>>,
}

// SAFETY: the body is handed from thread to thread (`Send`) and read by several at once (`Sync`);
// the rules in the module docs keep writers alone.
unsafe impl<P: Send + Sync> Sync for Slot<P> {}

impl<P> Slot<P> {
    /// A vacant slot of the first generation.
    pub(crate) fn new() -> Self {
        Slot {
            state: AtomicU64::new(1 << 32),
            proxies: AtomicU32::new(0),
            link: AtomicU32::new(0),
            body: UnsafeCell::new(None),
        }
    }

    /// The state word. Acquire: pairs with the Release of `open` and of the closing calls, so that what they
    /// wrote before is seen.
    #[inline]
    pub(crate) fn state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// As [`Slot::open_with`], for models and tests.
    #[cfg(any(test, loom))]
    pub(crate) fn open(&self, body: P) -> u32 {
        self.open_with(0, || body)
    }

    /// Fills a vacant slot that the caller took from a free list, with one proxy; the body is made in its place.
    /// `bits` are set with its opening. Returns the generation.
    #[inline(always)]
    pub(crate) fn open_with(&self, bits: u64, body: impl FnOnce() -> P) -> u32 {
        // Relaxed: the free list passed on what `recycle` stored.
        let vacant = self.state.load(Ordering::Relaxed);
        assert_eq!(vacant & 0xffff_ffff, 0, "a slot from a free list is vacant");
        // SAFETY: the slot is vacant and came from a free list to this thread alone; no key of this
        // generation exists yet, so nobody reads. A vacant slot holds no body that would have to be dropped.
        self.body.with_mut(|p| unsafe { p.write(Some(body())) });
        // Release: pairs with the Acquire in `upgrade`: who counts up in this life sees at least its generation.
        self.proxies.store(1, Ordering::Release);
        // Release: pairs with `state` in readers; publishes the body.
        self.state.store(vacant | OPEN | bits, Ordering::Release);
        generation_of(vacant)
    }

    /// The body.
    ///
    /// # Safety
    /// The caller announced the slot and then saw it open, and the announcement stands for `'a`; or the caller
    /// is the one that closes it and has not finished.
    #[inline]
    pub(crate) unsafe fn body<'a>(&self) -> &'a P {
        // SAFETY: by the caller's promise no thread takes or replaces the body during `'a`, and an open slot
        // holds one: `open_with` wrote it, and `finish`, `close_at_once` and `recycle` alone take it.
        self.body.with(|p| unsafe { (*p).as_ref().unwrap_unchecked() })
    }

    /// One more handle, made from an existing one.
    #[inline]
    pub(crate) fn add_proxy(&self) {
        // Relaxed: the caller's own handle keeps the count above 0; nothing is published by counting up.
        let before = self.proxies.fetch_add(1, Ordering::Relaxed);
        if before > HANDLES_MAX {
            // Two billion handles of one array: only leaked ones get here, and wrapping would be unsound.
            std::process::abort();
        }
    }

    /// Handles now.
    pub(crate) fn proxies(&self) -> u32 {
        // Relaxed: a count of this moment; who takes the array because of it does so by an exchange (`take_only`).
        self.proxies.load(Ordering::Relaxed)
    }

    /// One more handle, made without one. `None` if the slot has none left, or two billion. Else the state, whose
    /// generation is that of the handle: it may be another than the caller looked for, and must be dropped like any
    /// handle.
    pub(crate) fn upgrade(&self) -> Option<u64> {
        // Relaxed: a guess, which the exchange confirms.
        let mut count = self.proxies.load(Ordering::Relaxed);
        while count != 0 && count <= HANDLES_MAX {
            // Acquire: pairs with the Release stores in `open` and `drop_proxy`: the state read next is of the life
            // that was counted up.
            match self.proxies.compare_exchange_weak(count, count + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(self.state()),
                Err(now) => count = now,
            }
        }
        None
    }

    /// Gives up one handle. `true` if it was the last: its count is now the caller's to queue or to keep.
    #[inline]
    pub(crate) fn drop_proxy(&self) -> bool {
        // Acquire: pairs with the Release below in the handles that went before; with a count of 1 nobody else
        // can count up except `upgrade`, whose count is dropped on its own.
        if self.proxies.load(Ordering::Acquire) == 1 {
            return true;
        }
        // Release: pairs with the Acquire above and in `take_last`: uses of this handle come before the end.
        if self.proxies.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        // An upgraded handle went between the two lines above. The count is 0: nobody can count up again, and
        // the caller's place in the queue needs a count.
        // Acquire: pairs with the Release of that handle's `fetch_sub`, which the store below would hide from the
        // drain; the push into the queue passes it on.
        self.proxies.load(Ordering::Acquire);
        // Release: pairs with the Acquire in `upgrade`, as in `open`.
        self.proxies.store(1, Ordering::Release);
        true
    }

    /// Gives up a count that the caller took over: the drain that of the queue. `true` if no handle is left.
    #[inline]
    pub(crate) fn take_last(&self) -> bool {
        // AcqRel: Acquire pairs with `drop_proxy`: every use through a handle happened before; Release: as there.
        self.proxies.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Gives up the only handle, for a caller that takes the array over at once. `false`, without a change, if there is
    /// another one.
    #[inline]
    pub(crate) fn take_only(&self) -> bool {
        // AcqRel: as `take_last`. Nobody can count up from 0, so no handle is left, and none will be.
        self.proxies.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Leaves the last count with the manager, for an array that is open. Returns the state before.
    #[inline]
    pub(crate) fn keep(&self) -> u64 {
        // SeqCst: pairs with the exchange in `begin_close` and in `unkeep`: exactly one side finds the bit set on
        // an open slot and takes the count over; and with the fence in `loan::end_if_kept`, against an owner that
        // changes meanwhile.
        self.state.fetch_or(KEPT, Ordering::SeqCst)
    }

    /// Takes a kept count back, for an array that is still open. `true` if this call took it.
    pub(crate) fn unkeep(&self, generation: u32) -> bool {
        let mut state = self.state();
        while generation_of(state) == generation && state & (OPEN | KEPT) == OPEN | KEPT {
            // AcqRel: as in `keep`.
            match self.state.compare_exchange_weak(state, state & !KEPT, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Sets side-table bits.
    pub(crate) fn set(&self, bits: u64) -> u64 {
        // AcqRel: pairs with `state` in whoever reads the side table because of the bit.
        self.state.fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears side-table bits.
    pub(crate) fn clear(&self, bits: u64) -> u64 {
        // AcqRel: as in `set`.
        self.state.fetch_and(!bits, Ordering::AcqRel)
    }

    /// Says that another thread than the one that made the array uses it. The caller announced the slot before; if the
    /// slot is open still, a closer finds the bit, and looks for the announcement. Nothing happens if it is not, or in
    /// another life.
    #[cold]
    #[inline(never)]
    pub(crate) fn share(&self, generation: u32) {
        let mut state = self.state();
        while generation_of(state) == generation && state & (OPEN | SHARED) == OPEN {
            // AcqRel: Release publishes the announcement to the exchange of `begin_close`, which finds the bit;
            // Acquire: as in `state`.
            match self.state.compare_exchange_weak(state, state | SHARED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Has readers ask the storage from now on, if the slot is open, in whatever life. The caller issues the heavy
    /// barrier before it relies on that: who announced the slot before and did not ask is found in his record.
    #[cold]
    #[inline(never)]
    pub(crate) fn guard(&self) {
        let mut state = self.state();
        while state & (OPEN | GUARDED) == OPEN {
            // Release: pairs with `state` in readers, who look at the storage after they saw the bit; Acquire: as in
            // `state`.
            match self.state.compare_exchange_weak(state, state | GUARDED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Open to closing. The caller took the slot from its owner. Returns the state before.
    #[inline]
    pub(crate) fn begin_close(&self) -> u64 {
        // AcqRel: Release pairs with `state` in readers; Acquire with `keep` and `share`. Against announcements it is
        // ordered by the heavy barrier that the caller issues next, or by `share`.
        let before = self.state.fetch_xor(OPEN | CLOSING, Ordering::AcqRel);
        assert_eq!(before & (OPEN | CLOSING | CLOSED), OPEN, "only an open slot is closed, by one thread");
        before
    }

    /// Open to closed at once, and ends the body by `end`. `false`, and nothing happens, if the slot is not just open,
    /// or if its state is not any more the one that was read.
    ///
    /// The caller has a handle of the slot, and announces it nowhere; he made the array, and by the state that he read
    /// no other thread uses it. He took it from its owner, or found it in no list after he had read the state: who else
    /// takes it from there says so by `share` before.
    /// Invariant I4 (design.md).
    #[inline(always)]
    pub(crate) fn close_at_once(&self, state: u64, end: impl FnOnce(&mut Option<P>)) -> bool {
        let closed = state ^ (OPEN | CLOSED);
        if state & (OPEN | KEPT | BUSY) != OPEN
            // AcqRel: Release pairs with `state` in readers; Acquire with `share` and `keep`, after which it fails.
            || self.state.compare_exchange(state, closed, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return false;
        }
        // SAFETY: while the slot was open no other thread said by `share` that it reads, and from now on none can; the
        // caller does not read. `CLOSING` was not set, so nobody finishes, and the caller's handle keeps the slot.
        self.body.with_mut(|p| end(unsafe { &mut *p }));
        true
    }

    /// The body of a slot that is closing in this generation and that nobody announces any more, for the one
    /// caller that gets it. A closer may come here late, when the slot has its next life already: that one is left
    /// alone.
    /// Invariant I4 (design.md).
    pub(crate) fn finish(&self, generation: u32) -> Option<P> {
        let mut state = self.state();
        loop {
            if generation_of(state) != generation || state & (CLOSING | FINISHING) != CLOSING {
                return None;
            }
            // AcqRel: pairs with itself: it picks one of several threads that let go at the same time.
            match self.state.compare_exchange_weak(state, state | FINISHING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // SAFETY: `FINISHING` was set by this thread alone, and the caller found no announcement after the state
        // had left open; a later announcer sees it closing and does not read.
        self.body.with_mut(|p| unsafe { (*p).take() })
    }

    /// Closing to closed, after `finish`. `true` if the slot is an orphan too, so that the caller recycles it.
    pub(crate) fn finished(&self) -> bool {
        // AcqRel: pairs with `orphan`: of the two, the later one sees the other's bit.
        self.state.fetch_xor(CLOSING | CLOSED | FINISHING, Ordering::AcqRel) & ORPHAN != 0
    }

    /// The caller found no handle left on a slot that somebody else is closing, or that is closed.
    /// `true` if it is closed already, so that the caller recycles it.
    pub(crate) fn orphan(&self) -> bool {
        // Closed already: nobody but the caller has anything left to say here. AcqRel: pairs with `finished`.
        self.state() & CLOSED != 0 || self.state.fetch_or(ORPHAN, Ordering::AcqRel) & CLOSED != 0
    }

    /// Ends what is left of the body by `end` and makes the slot vacant with the next generation. The caller is the
    /// only one that can reach the slot: no handle is left, and no owner.
    /// The second value is `false` if the generations are used up: the slot is retired and must not be handed out.
    /// Invariant I1 (design.md).
    #[inline(always)]
    pub(crate) fn recycle<R>(&self, end: impl FnOnce(&mut Option<P>) -> R) -> (R, bool) {
        // SAFETY: no handle is left, so nobody announces the slot and reads (an operation borrows its handles); no
        // owner is left, so nobody closes it. If `end` panics the slot stays unused for ever.
        let ended = self.body.with_mut(|p| end(unsafe { &mut *p }));
        // Relaxed: this alone changes the generation, and the caller alone is here.
        let generation = generation_of(self.state.load(Ordering::Relaxed));
        // Release: pairs with `state` in `upgrade` and in readers of stale keys.
        self.state.store(u64::from(generation + 1) << 32, Ordering::Release);
        (ended, generation != LAST_GENERATION - 1)
    }

    /// Exchanges the body of an open slot that is marked `BUSY` and that nobody announces.
    ///
    /// # Safety
    /// The caller set `BUSY`, then issued the heavy barrier, then found no announcement of the slot.
    pub(crate) unsafe fn replace(&self, body: P) -> Option<P> {
        // SAFETY: by the caller's promise; a later announcer sees `BUSY` and waits.
        self.body.with_mut(|p| unsafe { (*p).replace(body) })
    }

    /// For tests of the wrap-around: as if the slot had been used so often.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn age_to(&self, generation: u32) {
        // Release: as in `recycle`.
        self.state.store(u64::from(generation) << 32, Ordering::Release);
    }
}

/// What the handles of a slot's array tell of it, beside the body: written while the slot has no proxy, before `open`
/// and before `recycle`; in between only read, through a borrowed proxy. The first value first: its place in the slot's
/// lines of the cache is chosen (`registry/slots.rs`).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shown<F> {
    first: UnsafeCell<F>,
    /// What is shown after an exchange that changed it, as the slot's state says ([`TURNED`]).
    now: AtomicPtr<F>,
}

// SAFETY: written by the one thread that has the slot while it has no proxy (`change`); read by several at once.
unsafe impl<F: Send + Sync> Sync for Shown<F> {}

impl<F> Shown<F> {
    pub(crate) fn new(first: F) -> Self {
        Shown { first: UnsafeCell::new(first), now: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Changes the first value, in a slot that nobody else can reach: it came from a free list to this thread alone, or
    /// its last proxy is gone.
    #[inline(always)]
    pub(crate) fn change(&self, change: impl FnOnce(&mut F)) {
        // SAFETY: no proxy of the slot is there, and it is read through a borrowed one alone.
        self.first.with_mut(|first| change(unsafe { &mut *first }));
    }

    /// Shows another value as soon as the slot is marked `TURNED`. The caller borrows a proxy of the slot, and keeps
    /// the value until the slot is recycled.
    pub(crate) fn turn(&self, value: &Arc<F>) {
        // Release: pairs with the Acquire in `get`.
        self.now.store(Arc::as_ptr(value).cast_mut(), Ordering::Release);
    }

    /// What is shown, for as long as the caller borrows a proxy of the slot, whose state he read.
    #[inline(always)]
    pub(crate) fn get<'a>(&self, state: u64) -> &'a F {
        if state & TURNED != 0 {
            return self.turned();
        }
        // SAFETY: changed before the first proxy, and after the last one.
        self.first.with(|first| unsafe { &*first })
    }

    #[cold]
    #[inline(never)]
    fn turned<'a>(&self) -> &'a F {
        // Acquire: pairs with the Release in `turn`, which came before the slot was marked.
        // SAFETY: whoever called `turn` keeps it until the slot is recycled (`metadata.rs`).
        unsafe { &*self.now.load(Ordering::Acquire) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_generation_that_would_wrap_retires_its_slot() {
        let slot = Slot::<u8>::new();
        slot.age_to(LAST_GENERATION - 2);
        assert_eq!(slot.open(1), LAST_GENERATION - 2);
        assert!(slot.drop_proxy() && slot.take_last());
        assert_eq!(slot.recycle(Option::take), (Some(1), true));
        slot.open(2);
        assert!(slot.drop_proxy() && slot.take_last());
        assert_eq!(slot.recycle(Option::take), (Some(2), false), "the last generation is never handed out again");
    }

    #[test]
    fn the_second_of_closed_and_orphan_recycles() {
        let slot = Slot::<u8>::new();
        slot.open(1);
        slot.begin_close();
        assert!(!slot.orphan());
        assert_eq!(slot.finish(2), None, "a closer of another life");
        assert_eq!(slot.finish(1), Some(1));
        assert_eq!(slot.finish(1), None, "one thread finishes");
        assert!(slot.finished());
    }

    /// F4 of design.md, "What attack found".
    #[test]
    fn two_billion_forgotten_handles_stop_a_key_from_making_another() {
        let slot = Slot::<u8>::new();
        slot.open(1);
        slot.proxies.store(HANDLES_MAX, Ordering::Relaxed);
        assert!(slot.upgrade().is_some());
        assert_eq!((slot.upgrade(), slot.proxies()), (None, HANDLES_MAX + 1));
    }

    /// F14 of design.md, "What attack found".
    #[test]
    #[should_panic = "only an open slot is closed, by one thread"]
    fn a_slot_that_closes_is_not_closed_again() {
        let slot = Slot::<u8>::new();
        slot.open(1);
        slot.begin_close();
        slot.begin_close();
    }

    /// F14 of design.md, "What attack found".
    #[test]
    #[should_panic = "a slot from a free list is vacant"]
    fn a_slot_that_is_open_is_not_opened() {
        let slot = Slot::<u8>::new();
        slot.open(1);
        slot.open(2);
    }
}
