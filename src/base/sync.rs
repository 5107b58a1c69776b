//! Atomics, locks and cells: std's, or loom's under `--cfg loom`.
//!
//! The protocol of `memory` (slots, hazard records, queues, cycles) takes its primitives from this file, so that the
//! code that loom explores is the code that ships. What loom does not explore uses std's own. The barriers of the
//! protocol are in `memory/hazard.rs`.
//!
//! The unsafe code rests on this file alone, and on the barriers that a [`BiasedLock`] is given (`memory/owner.rs`): a
//! lock lets one thread at a time to its value, an [`AtomicRef`] holds nothing but what was a reference, what a
//! [`Snapshot`] held goes when nobody may read it any more, and what a thread owns stays in its place until that leads
//! there no more.

#![allow(unsafe_code)]

#[cfg(not(loom))]
use std::cell::{Cell, OnceCell};
#[cfg(not(loom))]
use std::thread::LocalKey;

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// `std::cell::UnsafeCell` with the closure interface of loom's, so that loom sees every access.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A reference to something that lives for ever, or none, that threads exchange.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct AtomicRef<T: 'static>(AtomicPtr<T>, std::marker::PhantomData<&'static T>);

#[cfg(not(loom))]
impl<T: Sync> AtomicRef<T> {
    pub(crate) const fn none() -> Self {
        AtomicRef(AtomicPtr::new(std::ptr::null_mut()), std::marker::PhantomData)
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> Option<&'static T> {
        // Acquire: pairs with the Release in `store`: what the reference leads to was made before.
        let at = self.0.load(Ordering::Acquire);
        // SAFETY: null, or made from a `&'static T` by `store`, after which this comes.
        unsafe { at.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn store(&self, to: Option<&'static T>) {
        let at = to.map_or(std::ptr::null_mut(), |to| std::ptr::from_ref(to).cast_mut());
        // Release: pairs with the Acquire in `load`.
        self.0.store(at, Ordering::Release);
    }
}

/// A value that readers see whole, without a lock, while others replace it. What was replaced goes when nobody reads it
/// any more.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Snapshot<T>(crossbeam_epoch::Atomic<T>);

#[cfg(not(loom))]
impl<T: Clone + Default + Send + Sync + 'static> Snapshot<T> {
    pub(crate) const fn none() -> Self {
        Snapshot(crossbeam_epoch::Atomic::null())
    }

    /// Runs `f` with the value of now, if there is one.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&T) -> R) -> Option<R> {
        let guard = crossbeam_epoch::pin();
        // Acquire: pairs with the Release in `change`: the value was complete before.
        let now = self.0.load(Ordering::Acquire, &guard);
        // SAFETY: `change` retires a value after it has unlinked it, and it goes when no guard is left that was there.
        unsafe { now.as_ref() }.map(f)
    }

    /// Replaces the value by a changed copy; `change` is called again where another thread was faster.
    pub(crate) fn change(&self, change: impl Fn(&mut T)) {
        let guard = crossbeam_epoch::pin();
        // Acquire: as in `with`.
        let mut old = self.0.load(Ordering::Acquire, &guard);
        loop {
            // SAFETY: as in `with`.
            let mut value = unsafe { old.as_ref() }.cloned().unwrap_or_default();
            change(&mut value);
            let new = crossbeam_epoch::Owned::new(value);
            // AcqRel: the Release pairs with the Acquire here and in `with`.
            match self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire, &guard) {
                // SAFETY: this call alone unlinked it.
                Ok(_) if !old.is_null() => return unsafe { guard.defer_destroy(old) },
                Ok(_) => return,
                Err(faster) => old = faster.current,
            }
        }
    }
}

/// Where a thread finds its own value: none before it is made and after it is gone. Has no destructor.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct ThreadPlace<T>(Cell<*const T>);

#[cfg(not(loom))]
impl<T> ThreadPlace<T> {
    pub(crate) const fn new() -> Self {
        ThreadPlace(Cell::new(std::ptr::null()))
    }
}

/// A thread's own value, and the place that leads to it.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct ThreadHome<T: 'static> {
    value: OnceCell<T>,
    place: OnceCell<&'static LocalKey<ThreadPlace<T>>>,
}

#[cfg(not(loom))]
impl<T> ThreadHome<T> {
    pub(crate) const fn new() -> Self {
        ThreadHome { value: OnceCell::new(), place: OnceCell::new() }
    }
}

#[cfg(not(loom))]
impl<T> Drop for ThreadHome<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.get() {
            place.with(|place| place.0.set(std::ptr::null()));
        }
    }
}

/// A value of each thread's own, made by its first use and gone with the thread; found by one read.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct ThreadOwned<T: 'static> {
    pub(crate) place: &'static LocalKey<ThreadPlace<T>>,
    pub(crate) home: &'static LocalKey<ThreadHome<T>>,
    pub(crate) make: fn() -> T,
}

/// A thread's own value for the length of a call.
#[cfg(not(loom))]
struct ThreadEntry<T> {
    here: *const T,
    /// Whether the thread's own is gone already, and this one, from the heap, is for this call.
    is_late: bool,
}

#[cfg(not(loom))]
impl<T> ThreadOwned<T> {
    /// Runs `f` with the value of the calling thread; with one for this call alone, if the thread's own is gone.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let entered = self.entered();
        // SAFETY: a late one is this call's (`first`). Else a place leads to the value of the home of this thread that
        // `first` noted it in: that stays where it is until `ThreadHome::drop`, which makes the place lead nowhere
        // first. The borrow is no longer than this call, and where thread-locals are destroyed inside `f`, the process
        // ends there.
        f(unsafe { &*entered.here })
    }

    /// Whether the calling thread has its own now, so that `with` makes none.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        !self.here().is_null()
    }

    /// The value of the calling thread. Apart from `with`, of which there is one for each closure: the reading is
    /// compiled once.
    #[inline(always)]
    fn entered(&self) -> ThreadEntry<T> {
        let here = self.here();
        if here.is_null() { self.first() } else { ThreadEntry { here, is_late: false } }
    }

    /// Where the place leads.
    #[inline(always)]
    fn here(&self) -> *const T {
        // A place has no drop, so that it is always there.
        self.place.try_with(|place| place.0.get()).unwrap_or(std::ptr::null())
    }

    #[cold]
    #[inline(never)]
    fn first(&self) -> ThreadEntry<T> {
        let here = self.home.try_with(|home| {
            let value = std::ptr::from_ref(home.value.get_or_init(self.make));
            if std::ptr::eq(*home.place.get_or_init(|| self.place), self.place) {
                self.place.with(|place| place.0.set(value));
            }
            value
        });
        match here {
            Ok(here) => ThreadEntry { here, is_late: false },
            Err(_) => ThreadEntry { here: Box::into_raw(Box::new((self.make)())), is_late: true },
        }
    }
}

#[cfg(not(loom))]
impl<T> Drop for ThreadEntry<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_late {
            end_late(self.here);
        }
    }
}

/// Ends what [`ThreadOwned::first`] made for one call.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
fn end_late<T>(late: *const T) {
    // SAFETY: from `Box::into_raw` in `first`, which nobody else has; its call is over.
    drop(unsafe { Box::from_raw(late.cast_mut()) });
}

/// Fills room that lives for ever.
#[cfg(not(loom))]
pub(crate) fn fill<T>(room: &'static mut [std::mem::MaybeUninit<T>], make: impl Fn() -> T) -> &'static [T] {
    room.iter_mut().for_each(|cell| {
        cell.write(make());
    });
    // SAFETY: each element was written just now, and lies as a `T` does.
    unsafe { &*(std::ptr::from_mut(room) as *const [T]) }
}

/// One turn of a waiting loop: lets loom switch, lets another thread run.
#[inline]
pub(crate) fn wait_turn(turns: &mut u32) {
    *turns += 1;
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *turns < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A lock for short critical sections: one locked instruction to take, one store to
/// let go. Waiters spin for a moment, then give their time slice away.
#[derive(Debug)]
pub(crate) struct SpinLock<T> {
    taken: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through `with`, which holds `taken`; so the lock hands a `T` from
// thread to thread, for which `T: Send` is enough.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    #[cfg(loom)]
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Runs `f` with the value. `f` must be short, must not panic and must not take this lock again.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // Acquire: pairs with the Release store below in the thread that held the lock before.
        if self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        let unlock = Unlock(&self.taken);
        // SAFETY: `taken` went from 0 to 1 in this thread, so no other thread is inside `with`, and
        // `unlock` keeps it at 1 until after the last use of the reference.
        let result = self.value.with_mut(|value| f(unsafe { &mut *value }));
        drop(unlock);
        result
    }

    #[cold]
    fn wait(&self) {
        let mut turns = 0;
        // Acquire: as in `with`.
        while self.taken.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            wait_turn(&mut turns);
        }
    }
}

impl SpinLock<()> {
    /// Takes the lock until what it returns drops: for who has several, in one order. As of [`SpinLock::with`], what is
    /// done meanwhile is short.
    #[must_use]
    pub(crate) fn hold(&self) -> Unlock<'_> {
        // Acquire: as in `with`.
        if self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Unlock(&self.taken)
    }
}

/// Opens the lock also when the critical section unwinds.
pub(crate) struct Unlock<'a>(&'a AtomicU32);

impl Drop for Unlock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next thread to take the lock.
        self.0.store(0, Ordering::Release);
    }
}

/// A thread's mark that it is inside a [`BiasedLock`] which it has to itself. Lives for ever, and is passed from thread
/// to thread; no such lock is taken inside another one.
#[derive(Debug)]
pub(crate) struct Inside(AtomicU32);

impl Inside {
    pub(crate) fn new() -> Self {
        Inside(AtomicU32::new(0))
    }

    /// What the unsafe code of the lock rests on, of the thread whose mark it is.
    #[inline(always)]
    fn assert_outside(&self) {
        // Relaxed: the thread's own.
        assert!(self.0.load(Ordering::Relaxed) == 0, "a biased lock inside another one");
    }
}

/// As [`SpinLock`], of what mostly one thread uses: that one has it to itself, and enters by two stores to its own
/// mark. Another one takes the lock and the bias back, issues the heavy barrier of `memory/hazard.rs`, and waits until
/// that thread is not inside: either the thread finds the bias gone, or it is waited for. The more often that was, the
/// more often a thread has to use the lock alone until it has it to itself again.
#[derive(Debug)]
pub(crate) struct BiasedLock<T> {
    /// The mark of the thread that has it to itself, or null. This and the next three are written under `lock`.
    owner: AtomicPtr<Inside>,
    /// The mark of the thread that came last while nobody had it to himself; how often, one time after the other; and
    /// how often it has to be for the bias.
    last: AtomicPtr<Inside>,
    run: AtomicU32,
    wanted: AtomicU32,
    lock: SpinLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only by the thread that has the lock to itself, between two writes to its mark, and by who
// holds `lock` after that thread was waited for; so the lock hands a `T` from thread to thread, for which `T: Send` is
// enough.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    // Relaxed throughout, where nothing else is said: what is written under `lock` is looked at without it by the
    // thread alone that it may name.
    pub(crate) fn new(value: T) -> Self {
        let nobody = || AtomicPtr::new(std::ptr::null_mut());
        let (run, wanted) = (AtomicU32::new(0), AtomicU32::new(1));
        let (lock, value) = (SpinLock::new(()), UnsafeCell::new(value));
        BiasedLock { owner: nobody(), last: nobody(), run, wanted, lock, value }
    }

    /// Runs `f` with the value, as [`SpinLock::with`] does, by a thread with this mark, if it has one, which may have
    /// the lock to itself, now or later. `light` and `heavy`: the barriers.
    #[inline(always)]
    pub(crate) fn with_own<R>(
        &self,
        own: Option<&'static Inside>,
        light: impl FnOnce(),
        heavy: fn(),
        f: impl FnOnce(&mut T) -> R,
    ) -> R {
        let unlock = match own.and_then(|own| self.enter_own(own, light)) {
            Some(leave) => leave,
            None => self.enter(own, heavy, own.is_some()),
        };
        // SAFETY: by `enter_own` the lock is this thread's, and who takes it back waits until `unlock` has dropped,
        // after the last use of the reference; by `enter` nobody else is inside until then.
        let result = self.value.with_mut(|value| f(unsafe { &mut *value }));
        drop(unlock);
        result
    }

    /// Enters, if this thread has the lock to itself.
    #[inline(always)]
    fn enter_own(&self, own: &'static Inside, light: impl FnOnce()) -> Option<Unlock<'_>> {
        let mark = std::ptr::from_ref(own).cast_mut();
        if self.owner.load(Ordering::Relaxed) != mark {
            return None;
        }
        own.assert_outside();
        // Relaxed: comes before the second look by the light barrier, which pairs with `heavy` in `wait_for`.
        own.0.store(1, Ordering::Relaxed);
        light();
        let leave = Unlock(&own.0);
        (self.owner.load(Ordering::Relaxed) == mark).then_some(leave)
    }

    /// Runs `f` with the value, as [`SpinLock::with`] does. `own`: the mark of the calling thread, if it has one.
    /// Nobody has the lock to himself after that.
    pub(crate) fn with<R>(&self, own: Option<&'static Inside>, heavy: fn(), f: impl FnOnce(&mut T) -> R) -> R {
        let unlock = self.enter(own, heavy, false);
        // SAFETY: as in `with_own`.
        let result = self.value.with_mut(|value| f(unsafe { &mut *value }));
        drop(unlock);
        result
    }

    /// As [`BiasedLock::with`], of a value that begins anew: half as often as before is often enough for the bias.
    pub(crate) fn restart(&self, own: Option<&'static Inside>, heavy: fn(), value: T) {
        self.with(own, heavy, |at| {
            *at = value;
            self.wanted.store((self.wanted.load(Ordering::Relaxed) / 2).max(1), Ordering::Relaxed);
        });
    }

    /// Takes the lock, by a thread with this mark or none; with `biased` it may be the thread's own from now on.
    #[inline(never)]
    fn enter(&self, own: Option<&'static Inside>, heavy: fn(), biased: bool) -> Unlock<'_> {
        let mark = own.map_or(std::ptr::null_mut(), |own| std::ptr::from_ref(own).cast_mut());
        let unlock = self.lock.hold();
        let owner = self.owner.load(Ordering::Relaxed);
        if !owner.is_null() {
            // Comes before the look at the mark by the heavy barrier, which pairs with `light` in `enter_own`.
            self.owner.store(std::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: not null, and made from a `&'static` in `with_own`.
            let owner_mark = unsafe { &*owner };
            if owner == mark {
                owner_mark.assert_outside();
            } else {
                self.wait_for(owner_mark, heavy);
            }
        }
        if let Some(own) = own.filter(|_| biased) {
            let is_next = self.last.load(Ordering::Relaxed) == mark;
            let run = if is_next { self.run.load(Ordering::Relaxed) + 1 } else { 1 };
            let is_own = run >= self.wanted.load(Ordering::Relaxed);
            self.last.store(mark, Ordering::Relaxed);
            self.run.store(if is_own { 0 } else { run }, Ordering::Relaxed);
            if is_own {
                own.assert_outside();
                self.owner.store(mark, Ordering::Relaxed);
                // Seen by who takes the lock next: it is inside from now on by its mark.
                own.0.store(1, Ordering::Relaxed);
                return Unlock(&own.0);
            }
        }
        unlock
    }

    /// The thread that had the lock to itself may be inside still.
    #[cold]
    fn wait_for(&self, owner: &Inside, heavy: fn()) {
        heavy();
        let mut turns = 0;
        // Acquire: pairs with the Release in `Unlock::drop`: what was done inside is seen.
        while owner.0.load(Ordering::Acquire) != 0 {
            wait_turn(&mut turns);
        }
        self.wanted.store((self.wanted.load(Ordering::Relaxed) * 8).min(1 << 15), Ordering::Relaxed);
    }
}
