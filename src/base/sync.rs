//! Atomics, locks and cells: std's, or loom's under `--cfg loom`.
//!
//! The protocol of `memory` (slots, hazard records, queues, cycles) takes its primitives from this file, so that the
//! code that loom explores is the code that ships. What loom does not explore uses std's own. The barriers of the
//! protocol are in `memory/hazard.rs`.
//!
//! The unsafe code rests on this file alone: the lock lets one thread at a time to its value, an [`AtomicRef`] holds
//! nothing but what was a reference, what a [`Snapshot`] held goes when nobody may read it any more, and what a thread
//! owns stays in its place until that leads there no more.

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
        let here = self.here();
        let entered = if here.is_null() { self.first() } else { ThreadEntry { here, is_late: false } };
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

    /// Where the place leads. Apart from `with`, of which there is one for each closure: the reading is compiled once.
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

#[cfg(not(loom))]
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
