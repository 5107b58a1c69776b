//! An allocator that counts: the requests of each thread, and the bytes of the process. A program that uses it declares it
//! as its global one.
#![allow(dead_code)] // each program uses a part

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts the requests of each thread and the bytes of all.
pub(crate) struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that were live while `body` ran, beyond those before it. Refused requests count too.
pub(crate) fn peak(body: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    body();
    PEAK.load(Relaxed).saturating_sub(before)
}

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
pub(crate) fn trace(requests: u32) {
    TRACED.set(requests);
}

fn given(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

fn taken(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
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
        taken(layout.size());
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        given(layout.size());
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        taken(new_size);
        given(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
