//! The collection that comes by itself: ND4J's periodic and occasional one under its names, with effects here.
//!
//! Ordinary calls close what died on their thread, and look at other lanes now and then. What stays is what dies on
//! threads that rest, and what the pool keeps for a load that is over. The collector thread takes both.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::base::say::say;
use crate::device::Device;
use crate::memory::{reclaim, switch, threads, window};

/// Whether the collector shall run, and its thread. Held while one starts or ends.
struct Collector {
    thread: Option<JoinHandle<()>>,
}

static COLLECTOR: Mutex<Collector> = Mutex::new(Collector { thread: None });
static ACTIVE: Mutex<bool> = Mutex::new(false);
static CHANGED: Condvar = Condvar::new();
/// Whether somebody waits for the end of the thread.
static IS_AWAITED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_COLLECTOR: Cell<bool> = const { Cell::new(false) };
}

/// The least time between two collections that ndgc begins by itself, periodic or occasional: 100 milliseconds at
/// first, at least 1. Returns the one before.
///
/// ```
/// # use ndgc::gc;
/// # use std::time::Duration;
/// assert_eq!(gc::set_auto_gc_window(5000), Duration::from_millis(100));
/// assert_eq!(gc::auto_gc_window(), Duration::from_secs(5));
/// # gc::set_auto_gc_window(100);
/// ```
pub fn set_auto_gc_window(millis: u64) -> Duration {
    let before = window::set_window(millis);
    // A forked child has no such thread, and another one of the parent may have had the lock.
    if !switch::forked() {
        // Who looked at the window before it was set has the lock until it waits, and is woken.
        let active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        CHANGED.notify_all();
        drop(active);
    }
    before
}

/// The time of [`set_auto_gc_window`].
pub fn auto_gc_window() -> Duration {
    window::window()
}

/// Starts, or ends, a thread that collects once a window: it closes what died on threads that rest, and, if nothing was
/// made since it looked last, gives what the host's pool keeps for reuse back to the system. Off at first, and then
/// there is no such thread; off it stays where the system gives none, as [`is_periodic_gc_active`] and a line on
/// standard error say. Returns whether it was on.
///
/// A server that has peaks wants it on; a loop that runs all the time has nothing to gain. The guide has
/// what it costs.
///
/// ```
/// # use ndgc::gc;
/// gc::set_auto_gc_window(5000);
/// assert!(!gc::toggle_periodic_gc(true));
/// assert!(gc::is_periodic_gc_active());
/// gc::toggle_periodic_gc(false);
/// # gc::set_auto_gc_window(100);
/// ```
pub fn toggle_periodic_gc(on: bool) -> bool {
    // A forked child has no such thread, and none to wait for.
    if switch::forked() {
        return false;
    }
    if IS_COLLECTOR.get() {
        // What it drops is the user's, who may ask for it: it cannot wait for itself, and ends after this collection.
        return set_active(on);
    }
    let mut collector = COLLECTOR.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_periodic_gc_active()
        && let Some(ending) = collector.thread.take()
    {
        end(ending);
    }
    let before = set_active(on);
    if on && collector.thread.is_none() {
        match std::thread::Builder::new().name("ndgc-gc".into()).spawn(run) {
            Ok(thread) => collector.thread = Some(thread),
            Err(error) => {
                set_active(false);
                say(format_args!("the periodic collection stays off: its thread cannot begin: {error}"));
            }
        }
    }
    if !on && let Some(thread) = collector.thread.take() {
        end(thread);
    }
    before
}

/// Ends the thread, whatever its drops ask for meanwhile: they are the user's.
fn end(thread: JoinHandle<()>) {
    // Relaxed, here and below: whoever has the lock after `set_active` finds it, and the thread looks under that.
    IS_AWAITED.store(true, Ordering::Relaxed);
    set_active(false);
    CHANGED.notify_all();
    // It collects nothing that could panic: the code of users is contained.
    let _ = thread.join();
    // Relaxed: as above; the next thread starts after it.
    IS_AWAITED.store(false, Ordering::Relaxed);
    set_active(false);
}

fn set_active(on: bool) -> bool {
    std::mem::replace(&mut *ACTIVE.lock().unwrap_or_else(PoisonError::into_inner), on)
}

/// Whether the thread of [`toggle_periodic_gc`] runs.
pub fn is_periodic_gc_active() -> bool {
    !switch::forked() && *ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets each thread collect after so many of its calls, if the window has passed: what died on all threads. 0, as at
/// first, for never. Looked at every 64 calls. Returns the number before.
///
/// ```
/// # use ndgc::gc;
/// assert_eq!(gc::set_occasional_gc_frequency(10_000), 0);
/// assert_eq!(gc::occasional_gc_frequency(), 10_000);
/// # gc::set_occasional_gc_frequency(0);
/// ```
pub fn set_occasional_gc_frequency(calls: u32) -> u32 {
    window::set_frequency(calls)
}

/// The number of [`set_occasional_gc_frequency`].
pub fn occasional_gc_frequency() -> u32 {
    window::frequency()
}

/// Collects now: closes what is dead on all threads and devices, with the switch on also what managers keep of it, and
/// gives what the host's pool keeps for reuse back to the system. Returns the bytes of the host given back: what the
/// pools of other devices keep stays there ([`Device::clear_cache`]). 0 in a forked child.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, gc};
/// drop(Tensor::zeros(1 << 20, DType::U8, &Device::Cpu)?);
/// assert!(gc::invoke_gc() >= 1 << 20); // it was dead; its bytes are the system's again
/// assert_eq!(Device::Cpu.memory().active, 0);
/// assert!(gc::since_last_gc().is_some());
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn invoke_gc() -> u64 {
    if switch::check("gc::invoke_gc").is_err() {
        return 0;
    }
    if switch::reclaiming() {
        reclaim::collect_kept();
    }
    window::note();
    Device::Cpu.clear_cache()
}

/// Time since the last collection that was periodic, occasional, or [`invoke_gc`]'s. `None` before the first.
pub fn since_last_gc() -> Option<Duration> {
    window::since_last()
}

fn run() {
    IS_COLLECTOR.set(true);
    let mut made = 0;
    let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    // Relaxed: as in `end`.
    while *active && !IS_AWAITED.load(Ordering::Relaxed) {
        let (again, _) = CHANGED.wait_timeout(active, window::window()).unwrap_or_else(PoisonError::into_inner);
        drop(again);
        if window::has_passed() && !switch::forked() {
            reclaim::collect();
            let now = threads::sum(|counts| &counts.live.came);
            if std::mem::replace(&mut made, now) == now {
                reclaim::trim(&Device::Cpu);
            }
            window::note();
        }
        active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// This thread is the collector, between its look at the window and its sleep.
    #[test]
    fn a_window_that_is_set_before_the_collector_sleeps_wakes_it() {
        let before = auto_gc_window();
        let active = ACTIVE.lock().expect("no panic");
        let setter = std::thread::spawn(|| set_auto_gc_window(12_345));
        while auto_gc_window() != Duration::from_millis(12_345) {
            std::thread::yield_now();
        }
        // Time to tell nobody.
        std::thread::sleep(Duration::from_millis(50));
        let (active, waited) = CHANGED.wait_timeout(active, Duration::from_secs(30)).expect("no panic");
        drop(active);
        assert!(!waited.timed_out(), "nobody told of the window");
        assert_eq!(setter.join().expect("no panic"), before);
        set_auto_gc_window(before.as_millis() as u64);
    }
}
