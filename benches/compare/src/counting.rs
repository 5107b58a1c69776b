//! The allocator of every contender, with a counter of requests: one addition each, the same for all.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the requests that it passes on.
pub struct Counting<A>(pub A);

static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Requests of the process so far; exact if one thread makes them at a time.
pub fn requests() -> u64 {
    REQUESTS.load(Ordering::Relaxed)
}

fn count() {
    REQUESTS.store(REQUESTS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

// SAFETY: passes everything on to an allocator.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of this function.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { self.0.realloc(block, layout, size) }
    }
}
