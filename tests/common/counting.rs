//! An allocator that counts: the requests of each thread, and the bytes of the process. A program that uses it declares
//! it as its global one.
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

/// Notes that this thread asks for `bytes` bytes; they count as live until the request is refused, or they are given
/// back.
fn ask(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(live, Relaxed);
    // A thread that is ending has no counters any more.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
    let left = TRACED.try_with(|traced| traced.replace(0)).unwrap_or(0);
    if left != 0 {
        // None is traced meanwhile: a backtrace makes requests itself.
        eprintln!("a request for memory:\n{}", std::backtrace::Backtrace::force_capture());
        TRACED.set(left - 1);
    }
}

fn give(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

/// What a request for `bytes` bytes was answered.
fn answered(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        give(bytes);
    }
    block
}

// SAFETY: passes everything on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ask(layout.size());
        // SAFETY: the caller's promises are those of this function.
        answered(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ask(layout.size());
        // SAFETY: as above.
        answered(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ask(new_size);
        // SAFETY: as above.
        let block = answered(unsafe { System.realloc(ptr, layout, new_size) }, new_size);
        if !block.is_null() {
            give(layout.size());
        }
        block
    }
}
