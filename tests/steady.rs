//! What is settled asks nobody for anything. In a process of its own: the stocks of a runtime that many other tests
//! used hold more than these ones filled.

// A test ends at the first thing that goes wrong; `unwrap` says where.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};

#[path = "common/counting.rs"]
mod counting;

#[path = "steady/operations.rs"]
mod operations;
#[path = "steady/reserved.rs"]
mod reserved;
#[path = "steady/threads.rs"]
mod threads;
#[path = "steady/training.rs"]
mod training;
#[path = "steady/workspace.rs"]
mod workspace;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Runs `body` on a thread of its own that ends before the next test begins: with two threads that know ndgc there are
/// system calls for the other one's sake, and the thread of a test goes on for a while when the test is over. It must
/// not know ndgc, so the lock is not that of the other tests, whose end destroys the thread's workspaces.
fn alone(body: impl FnOnce() + Send) {
    static LOCK: Mutex<()> = Mutex::new(());
    let _turn = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| scope.spawn(body).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
