//! When ndgc collects without being asked: the settings, and when it did last.
//!
//! Relaxed throughout: settings and a time, by which nobody reads other memory.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The least distance of two collections, as milliseconds: ND4J's default.
static WINDOW: AtomicU64 = AtomicU64::new(100);
/// Calls of a thread between two collections by it; 0: none.
static FREQUENCY: AtomicU32 = AtomicU32::new(0);
/// Milliseconds from the start to the last collection, and one more; 0 before the first.
static LAST: AtomicU64 = AtomicU64::new(0);

pub(crate) fn window() -> Duration {
    Duration::from_millis(WINDOW.load(Ordering::Relaxed))
}

/// Returns the one before.
pub(crate) fn set_window(millis: u64) -> Duration {
    Duration::from_millis(WINDOW.swap(millis.max(1), Ordering::Relaxed))
}

#[inline]
pub(crate) fn frequency() -> u32 {
    FREQUENCY.load(Ordering::Relaxed)
}

/// Returns the one before.
pub(crate) fn set_frequency(calls: u32) -> u32 {
    FREQUENCY.swap(calls, Ordering::Relaxed)
}

/// Notes that there was a collection.
pub(crate) fn note() {
    LAST.store(START.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
}

/// Time since the last one.
pub(crate) fn since_last() -> Option<Duration> {
    let last = LAST.load(Ordering::Relaxed).checked_sub(1)?;
    Some(START.elapsed().saturating_sub(Duration::from_millis(last)))
}

/// Whether the window has passed.
pub(crate) fn has_passed() -> bool {
    since_last().is_none_or(|since| since >= window())
}
