//! Atomics, locks and cells: std's, or loom's under `--cfg loom`.
//!
//! The protocol of `memory` (slots, hazard records, queues, cycles) takes its primitives from this file, so that the
//! code that loom explores is the code that ships. What loom does not explore uses std's own. The barriers of the
//! protocol are in `memory/hazard.rs`.
//!
//! The unsafe code rests on this file alone: the lock lets one thread at a time to its value, and an [`AtomicRef`]
//! holds nothing but what was a reference.

#![allow(unsafe_code)]

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

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
pub(crate) struct AtomicRef<T: 'static>(std::sync::atomic::AtomicPtr<T>, std::marker::PhantomData<&'static T>);

#[cfg(not(loom))]
impl<T: Sync> AtomicRef<T> {
    pub(crate) const fn none() -> Self {
        AtomicRef(std::sync::atomic::AtomicPtr::new(std::ptr::null_mut()), std::marker::PhantomData)
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

/// Opens the lock also when the critical section unwinds.
struct Unlock<'a>(&'a AtomicU32);

impl Drop for Unlock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next thread to take the lock.
        self.0.store(0, Ordering::Release);
    }
}
