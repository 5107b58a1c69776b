//! Memory of workspaces that could not be freed when its time came, because something was still using it, or because
//! cycles of a destroyed ring are leased.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::base::sync::{AtomicU32, Ordering};
use crate::memory::workspace::{arena::Token, block::Block, scope::Scope};

/// What a destroyed ring leaves to its leases. Its cycles end with the last of them.
#[derive(Debug)]
pub(crate) struct Estate {
    pub(crate) scope: Arc<Scope>,
    pub(crate) leases: Vec<(u64, Weak<Token>)>,
    pub(crate) blocks: Vec<Block>,
}

impl Estate {
    fn is_leased(&self) -> bool {
        self.leases.iter().any(|(_, token)| token.strong_count() > 0)
    }
}

static GRAVES: Mutex<Vec<Block>> = Mutex::new(Vec::new());
static ESTATES: Mutex<Vec<Estate>> = Mutex::new(Vec::new());
/// As many as are in both lists, to be read without a lock.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Frees a block whose cycles ended: at once, or when nobody uses it any more.
pub(crate) fn bury(block: Block) {
    if block.is_in_use_at_all() {
        let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
        graves.push(block);
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps the memory of a destroyed ring for as long as its leases live.
pub(crate) fn bequeath(estate: Estate) {
    let mut estates = ESTATES.lock().unwrap_or_else(PoisonError::into_inner);
    estates.push(estate);
    COUNT.fetch_add(1, Ordering::Relaxed);
    drop(estates);
    // The last lease may have gone before the estate was there to be found.
    sweep();
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
    let mut estates = ESTATES.lock().unwrap_or_else(PoisonError::into_inner);
    let (leased, ended): (Vec<Estate>, Vec<Estate>) = estates.drain(..).partition(Estate::is_leased);
    *estates = leased;
    let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
    for Estate { scope, blocks, .. } in ended {
        scope.end_all();
        graves.extend(blocks);
    }
    let (used, free): (Vec<Block>, Vec<Block>) = graves.drain(..).partition(Block::is_in_use_at_all);
    *graves = used;
    COUNT.store((graves.len() + estates.len()) as u32, Ordering::Relaxed);
    drop(graves);
    drop(estates);
    // Freed without the locks: a device may be slow.
    drop(free);
}
