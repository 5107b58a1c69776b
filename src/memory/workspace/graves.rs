//! Memory of workspaces that could not be freed when its time came, because something was still using it.

use std::sync::{Mutex, PoisonError};

use crate::base::sync::{AtomicU32, Ordering};
use crate::memory::workspace::block::Block;

static GRAVES: Mutex<Vec<Block>> = Mutex::new(Vec::new());
/// As many as are in the list, to be read without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Frees a block whose cycles ended: at once, or when nobody uses it any more.
pub(crate) fn bury(block: Block) {
    if block.is_in_use_at_all() {
        let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
        graves.push(block);
        COUNT.store(graves.len() as u32, Ordering::Relaxed);
    }
}

/// Frees what nobody uses any more.
#[inline]
pub(crate) fn sweep() {
    // Relaxed: what was buried meanwhile waits for the next sweep.
    if COUNT.load(Ordering::Relaxed) != 0 {
        sweep_all();
    }
}

#[cold]
fn sweep_all() {
    let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
    let (used, free): (Vec<Block>, Vec<Block>) = graves.drain(..).partition(Block::is_in_use_at_all);
    *graves = used;
    COUNT.store(graves.len() as u32, Ordering::Relaxed);
    drop(graves);
    // Freed without the lock: a device may be slow.
    drop(free);
}
