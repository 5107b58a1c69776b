//! An allocator that counts the requests of each thread. A program that uses it declares it as its global one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the requests of each thread.
pub(crate) struct Counting;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// Requests of this thread so far.
pub(crate) fn requests() -> u64 {
    REQUESTS.get()
}

thread_local! {
    static TRACED: Cell<u32> = const { Cell::new(0) };
}

/// Prints where the next `requests` of this thread come from.
#[allow(dead_code)] // not every program that counts also traces
pub(crate) fn trace(requests: u32) {
    TRACED.set(requests);
}

fn count() {
    // A thread that is ending has no counters any more.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
    let left = TRACED.try_with(|traced| traced.replace(0)).unwrap_or(0);
    if left != 0 {
        // None is traced meanwhile: a backtrace makes requests itself.
        eprintln!("a request for memory:\n{}", std::backtrace::Backtrace::force_capture());
        TRACED.set(left - 1);
    }
}

// SAFETY: passes everything on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
