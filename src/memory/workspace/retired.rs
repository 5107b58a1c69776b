//! Memory of workspaces that could not be freed when its time came, because something was still using it, or because
//! cycles of a destroyed ring are leased.

use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{
    sync::{AtomicU32, Ordering},
    work,
};
use crate::memory::workspace::{
    block::ArenaBlock,
    validity::{CycleScope, Leases},
};

/// What a destroyed ring leaves to its leases. Its cycles end with the last of them.
#[derive(Debug)]
pub(crate) struct RetiredRing {
    pub(crate) scope: Arc<CycleScope>,
    pub(crate) leases: Leases,
    pub(crate) blocks: Vec<ArenaBlock>,
}

impl RetiredRing {
    fn is_leased(&self) -> bool {
        self.leases.first().is_some()
    }
}

static RETIRED: Mutex<Vec<ArenaBlock>> = Mutex::new(Vec::new());
static RINGS: Mutex<Vec<RetiredRing>> = Mutex::new(Vec::new());
/// As many as are in both lists, to be read without a lock.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Frees a block whose cycles ended: at once, or when nobody uses it any more.
pub(crate) fn retire(block: ArenaBlock) {
    if block.is_in_use_at_all() {
        let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(block);
        // Relaxed: as in `sweep`; `sweep_all`, which stores it, holds this lock too.
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps the memory of a destroyed ring for as long as its leases live.
pub(crate) fn retire_ring(ring: RetiredRing) {
    let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    rings.push(ring);
    // Relaxed: as in `retire`.
    COUNT.fetch_add(1, Ordering::Relaxed);
    drop(rings);
    // The last lease may have gone before the ring was there to be found.
    sweep();
}

/// Charges what waits of a workspace to a new budget of it.
pub(crate) fn move_to(workspace: &Arc<str>, payer: u32) {
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    retired.iter_mut().filter(|block| block.is_of(workspace)).for_each(|block| block.move_to(payer));
}

/// Frees what nobody uses any more.
#[inline]
pub(crate) fn sweep() {
    // Relaxed: what was retired meanwhile waits for the next sweep.
    if COUNT.load(Ordering::Relaxed) != 0 {
        sweep_all();
    }
}

#[cold]
fn sweep_all() {
    let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let (leased, ended): (Vec<RetiredRing>, Vec<RetiredRing>) = rings.drain(..).partition(RetiredRing::is_leased);
    *rings = leased;
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    for RetiredRing { scope, blocks, .. } in ended {
        scope.end_all();
        retired.extend(blocks);
    }
    // A block is large: what the call has no work left for waits for the next one.
    let stays = |block: &ArenaBlock| block.is_in_use_at_all() || !work::spend(block.work());
    let (used, free): (Vec<ArenaBlock>, Vec<ArenaBlock>) = retired.drain(..).partition(stays);
    *retired = used;
    // Relaxed: as in `sweep`; nobody adds without one of the two locks.
    COUNT.store((retired.len() + rings.len()) as u32, Ordering::Relaxed);
    drop(retired);
    drop(rings);
    // Freed without the locks: a device may be slow.
    drop(free);
}
