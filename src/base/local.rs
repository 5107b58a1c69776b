//! What a thread knows for as long as a call lasts.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `f` while this thread's `cell` has a value; afterwards, also after a panic, it has the one before.
#[inline]
pub(crate) fn during<T: Copy + 'static, R>(cell: &'static LocalKey<Cell<T>>, value: T, f: impl FnOnce() -> R) -> R {
    struct Restore<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);

    impl<T: Copy + 'static> Drop for Restore<T> {
        fn drop(&mut self) {
            // A thread that is ending may have it no more.
            let _ = self.0.try_with(|cell| cell.set(self.1));
        }
    }

    let _restore = Restore(cell, cell.replace(value));
    f()
}
