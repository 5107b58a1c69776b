//! Who reads the bytes of a block: what arenas ask before they use them again, of the hazard records and of the slots
//! that are announced there. The rooms of a workspace lie below both; they are handed [`of_thread`].

use crate::memory::{
    hazard::{PLACES, USER},
    registry::{slot, storage_of},
    slot::CYCLE,
    storage,
    threads::{self, ThreadContext, ThreadRecord},
    workspace::block::{Ended, Readers},
};

/// The readers of blocks of this thread's workspaces.
pub(crate) fn of_thread(context: &ThreadContext) -> Readers {
    Readers { thread: context.number, is_read }
}

/// Whether a thread announces an array that lies in a block and is of such a cycle, which the caller ended. `only`: no
/// other thread than that with this thread record does, as the block knows. For others it issues the heavy barrier.
///
/// What a slot says holds for whoever found its array valid: it was written before, and stays while the array is
/// announced. An announcement that finds it ended is withdrawn, whatever is answered for it.
fn is_read(block: u32, only: Option<u32>, ended: Ended<'_>) -> bool {
    let reads = |place: u32| {
        let index = (place & !USER) - 1;
        let array = slot(index);
        array.core.state() & CYCLE != 0
            && storage_of(index).is_some_and(|storage| storage::block_of(storage) == block)
            && ended(array.cycle_id())
    };
    let mut read = false;
    let mut look = |record: &ThreadRecord, used: usize| {
        read |= record.hazards.first_places(used).any(|(_, place)| reads(place));
    };
    let by_others = threads::with_context(|context| {
        let by_others = only != Some(context.number);
        if !by_others {
            look(context.record, context.used_places.get());
        }
        by_others
    });
    if by_others {
        threads::barrier();
        threads::for_each_record(|record| look(record, PLACES));
    }
    read
}
