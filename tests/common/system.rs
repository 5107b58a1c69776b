//! What the system tells of the threads of this process: how long they had a processor, and whether they wait. With
//! unsafe code, for a call of the system.

#![allow(unsafe_code)]

use std::thread;
use std::time::Duration;

/// The time that this thread has had a processor. Other programs and threads take none of it, however many there are.
#[cfg(unix)]
pub(crate) fn busy() -> Duration {
    // SAFETY: a time is numbers alone, for which zeros are values; the call fills it.
    let (answer, time) = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        (libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time), time)
    };
    assert_eq!(answer, 0, "the clock of a thread");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Elsewhere the time since the first call.
#[cfg(not(unix))]
pub(crate) fn busy() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Threads of this process of that name that wait for something.
#[cfg(target_os = "linux")]
fn waiting(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // One that ends meanwhile has no file any more.
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let waits = |stat: &String| {
        stat.rsplit_once(") ").is_some_and(|(head, rest)| head.ends_with(name) && rest.starts_with('S'))
    };
    stats.filter(waits).count()
}

/// Returns when so many threads of this name, of at most 15 bytes, wait for something, in three looks that follow each
/// other: one of them may wait for a lock on its way. After two minutes it gives up: what is asked next says what is
/// wrong.
#[cfg(target_os = "linux")]
pub(crate) fn until_they_wait(name: &str, count: usize) {
    let begun = std::time::Instant::now();
    let mut looks = 0;
    while looks < 3 && begun.elapsed() < Duration::from_secs(120) {
        looks = if waiting(name) >= count { looks + 1 } else { 0 };
        thread::sleep(Duration::from_millis(1));
    }
}

/// Elsewhere a while.
#[cfg(not(target_os = "linux"))]
pub(crate) fn until_they_wait(_: &str, _: usize) {
    thread::sleep(Duration::from_millis(100));
}
