//! Ending arrays: by hand, with their manager or cycle, or out of the reclaim queue.

use crate::base::{
    error::{Closer, Site},
    sync::Ordering,
};
use crate::memory::{
    exit,
    hazard::announced,
    key::Key,
    metadata::Metadata,
    node, owner,
    queue::QUEUE,
    registry::slots::{ArrayBody, ArraySlot, NAMES, NOBODY, OwnedArray, SLOTS, slot, upgrade_index},
    slot::{CLOSED, KEPT, LENT, NAMED, OPEN, TURNED, generation_of},
    storage, switch,
    threads::{self, Counts, ThreadContext},
};

/// Ends an array by hand. Harmless if it ended already. The caller borrows a handle of it.
pub(crate) fn close(context: &ThreadContext, key: Key, closer: Closer, site: Site) {
    let cell = slot(key.index());
    let state = cell.core.state();
    // A look at the owner is enough for the array's maker: whoever else takes it says so in its state before
    // (`owner::take`), and then it is not closed by the state that was read before that.
    if generation_of(state) == key.generation()
        && owner::is_unlisted(cell)
        && close_at_once(context, (key.index(), cell), state, (closer, site))
    {
        return;
    }
    if owner::take(context, cell, key.generation()).is_some()
        && !close_at_once(context, (key.index(), cell), cell.core.state(), (closer, site))
    {
        close_taken(context, &[key], closer, Some(site));
    }
}

/// Ends an array with this state at once, if the thread made it and no other one uses it. `false`, and nothing happens,
/// if not.
#[inline]
fn close_at_once(
    context: &ThreadContext,
    (index, cell): (u32, &ArraySlot),
    state: u64,
    (closer, site): (Closer, Site),
) -> bool {
    if state & OPEN == 0
        || !cell.is_alone(context, state)
        || context.record.hazards.announces_first(context.used_places.get(), index)
    {
        return false;
    }
    note_close(cell, closer, Some(site));
    cell.core.close_at_once(state, |held| {
        // Release: pairs with the Acquire in `owner::take`.
        cell.owner.store(NOBODY, Ordering::Release);
        // Counted before the body ends, as in every end: the code of users may run there, and look.
        context.record.counts.count_closed();
        end_body(context, held);
    })
}

/// Says who closes an array, and where.
fn note_close(cell: &ArraySlot, closer: Closer, site: Option<Site>) {
    // Relaxed: published by the Release of the exchange that closes it.
    cell.closer.store(closer as u32, Ordering::Relaxed);
    cell.closed.store(site);
}

/// Ends the arrays of this thread's cycles with a recorded gradient whose cycles ended, though somebody has handles of
/// them: the graph behind each would stay with the handle. Calls `note` with each.
#[cold]
pub(crate) fn end_graphs(context: &ThreadContext, mut note: impl FnMut(Key)) {
    let mut tracked = context.workspaces.tracked.take();
    let mut ended = Vec::new();
    tracked.retain(|&key| {
        let cell = slot(key.index());
        let state = cell.core.state();
        let open = generation_of(state) == key.generation() && state & OPEN != 0;
        if open && !cell.is_live() {
            ended.push(key);
        }
        open && cell.is_live()
    });
    context.workspaces.tracked.replace(tracked);
    // The handle that keeps it may go at this moment, and the slot with it: a count of one's own, while it is taken.
    ended.retain(|&key| {
        let Some(held) = upgrade_index(key.index()) else { return false };
        let taken = held == key && owner::take(context, slot(key.index()), key.generation()).is_some();
        drop_proxy(held);
        taken
    });
    if !ended.is_empty() {
        ended.iter().for_each(|&key| note(key));
        close_taken(context, &ended, Closer::Unknown, None);
    }
    exit::end(context);
}

/// Ends arrays that were taken from their owners. Their bytes come back at once, or with the last operation
/// that is using them.
///
/// The caller holds no count of them, so each may have its next life before this returns; hence the generations.
pub(crate) fn close_taken(context: &ThreadContext, taken: &[Key], closer: Closer, site: Option<Site>) {
    let mut alone = true;
    for key in taken {
        let cell = slot(key.index());
        note_close(cell, closer, site);
        let before = cell.core.begin_close();
        alone &= cell.is_alone(context, before);
        if before & KEPT != 0 {
            context.record.counts.count_unkept();
            if cell.core.take_last() && cell.core.orphan() {
                recycle(context, key.index(), cell);
            }
        }
    }
    if !alone {
        threads::barrier();
    }
    for &key in taken {
        finish_if_unannounced(context, key, alone);
    }
}

/// A reader let go of a closing array: the last one finishes it.
#[cold]
pub(super) fn finish_if_free(context: &ThreadContext, key: Key) {
    let cell = slot(key.index());
    let alone = cell.is_alone(context, cell.core.state());
    if !alone {
        threads::barrier();
    }
    finish_if_unannounced(context, key, alone);
}

/// `alone`: this thread made the array, and no other one used it before its close began. Else the barrier was issued
/// since then.
fn finish_if_unannounced(context: &ThreadContext, key: Key, alone: bool) {
    let index = key.index();
    let mut busy = context.record.hazards.announces_first(context.used_places.get(), index);
    if !alone {
        threads::for_each_record(|record| busy |= announced(std::iter::once(&record.hazards), index));
    }
    if busy {
        return;
    }
    let cell = slot(index);
    if let Some(body) = cell.core.finish(key.generation()) {
        context.record.counts.count_closed();
        drop(body);
        if cell.core.finished() {
            recycle(context, index, cell);
        }
    }
}

/// One proxy less. The last one queues the slot, or does at once what there is to do (`drop_listed`).
/// Invariant I2 (design.md).
#[inline]
pub(crate) fn drop_proxy(key: Key) {
    let cell = slot(key.index());
    if !cell.core.drop_proxy() || switch::forked() {
        return;
    }
    // Relaxed: nobody else holds a handle that could move the array now.
    let owner = cell.owner.load(Ordering::Relaxed);
    if owner & owner::UNLISTED == 0 && (owner == NOBODY || !switch::reclaiming()) && drop_listed(key, cell) {
        return;
    }
    let record = threads::count_queued();
    if record.and_then(|record| record.ring).is_some_and(|ring| ring.put(key.index())) {
        return;
    }
    push(record.map_or(0, |record| record.lane), key.index(), cell);
}

/// Queues what its thread has no ring for.
#[cold]
#[inline(never)]
fn push(lane: usize, index: u32, cell: &ArraySlot) {
    QUEUE.push(lane, index, &cell.core.link);
}

/// The last proxy of an array fell that a manager owns, or nobody does. `true` if nothing is left to do: it was closed,
/// and its slot is vacant now, or the switch is off, and it stays with its manager.
#[inline(never)]
fn drop_listed(key: Key, cell: &ArraySlot) -> bool {
    // Of a closed one nothing is left but the slot, which goes to this thread's stock; no lock, no call of a device.
    let state = cell.core.state();
    if state & (CLOSED | NAMED | LENT | TURNED) == CLOSED
        && threads::is_here()
        && cell.metadata.get(state).device.is_cpu()
        && threads::with_context(|context| {
            let has_room = context.slots.has_room();
            if has_room {
                end_orphan(context, key.index(), cell);
            }
            has_room
        })
    {
        return true;
    }
    if switch::reclaiming() || cell.core.keep() & OPEN == 0 {
        return false;
    }
    threads::count_kept(true);
    // SeqCst: pairs with the fence in `loan::end_if_kept`: if the array went to its handles meanwhile, one of the two
    // takes the kept count back.
    if cell.owner.load(Ordering::SeqCst) & owner::UNLISTED == 0 || !cell.core.unkeep(key.generation()) {
        return true;
    }
    threads::count_kept(false);
    false
}

/// A slot came out of the queue: ends the array if that was its last count.
#[inline]
pub(crate) fn reap(context: &ThreadContext, index: u32, cell: &ArraySlot) {
    Counts::bump(&context.record.counts.drained, 1);
    end_orphan(context, index, cell);
}

/// Gives up a count that the caller took over, and ends the array if it was the last.
/// Invariant I3 (design.md).
#[inline(always)]
pub(crate) fn end_orphan(context: &ThreadContext, index: u32, cell: &ArraySlot) {
    if !cell.core.take_last() {
        return;
    }
    let state = cell.core.state();
    let is_open = state & CLOSED == 0 && owner::take_orphan(context, cell, generation_of(state));
    if is_open {
        // Without handles and without owner: nobody else can reach it.
        context.record.counts.count_closed();
    }
    if is_open || cell.core.orphan() {
        recycle(context, index, cell);
    }
}

/// What became of an array whose only handle was given up.
#[derive(Debug)]
pub(crate) enum TakenOver {
    /// Its body, which nobody else can reach; it has no slot any more.
    Owned(OwnedArray),
    /// Nothing: there is another handle.
    Shared,
    /// Somebody else is ending it. The handle is used up.
    Gone,
}

/// Ends an array by its only handle, and keeps what it held. The caller has no announcement of it.
#[inline(always)]
pub(crate) fn take_over(context: &ThreadContext, key: Key) -> TakenOver {
    let cell = slot(key.index());
    if !cell.core.take_only() {
        return TakenOver::Shared;
    }
    if owner::take_orphan(context, cell, key.generation()) {
        // As in `end_orphan`: nobody else can reach it.
        context.record.counts.count_closed();
        let &Metadata { dtype, layout, .. } = cell.metadata.get(cell.core.state());
        let body = |ArrayBody { storage, node }| TakenOver::Owned(OwnedArray { dtype, layout, storage, node });
        return vacate(context, key.index(), cell, Option::take).map_or(TakenOver::Gone, body);
    }
    if cell.core.orphan() {
        recycle(context, key.index(), cell);
    }
    TakenOver::Gone
}

/// Makes a slot vacant.
#[inline(never)]
fn recycle(context: &ThreadContext, index: u32, cell: &ArraySlot) {
    vacate(context, index, cell, |held| end_body(context, held));
}

/// Ends what an array held.
#[inline(always)]
fn end_body(context: &ThreadContext, held: &mut Option<ArrayBody>) {
    if let Some(ArrayBody { storage, node }) = held.take() {
        storage.end(context);
        drop(node);
    }
}

/// Takes out of the side tables what they say of an array.
#[cold]
#[inline(never)]
fn forget_sides(index: u32) {
    NAMES.remove(&index);
    owner::forget_lenders(index);
}

/// Makes a slot vacant after `end` has emptied it.
#[inline(always)]
fn vacate<R>(
    context: &ThreadContext,
    index: u32,
    cell: &ArraySlot,
    end: impl FnOnce(&mut Option<ArrayBody>) -> R,
) -> R {
    let state = cell.core.state();
    if state & (NAMED | LENT) != 0 {
        forget_sides(index);
    }
    cell.metadata.hide(index, state);
    let (left, reusable) = cell.core.recycle(end);
    if reusable {
        context.slots.put(index, &SLOTS);
    }
    left
}

/// A thread leaves: its lane goes to the common one, its stocks to the slabs.
pub(crate) fn flush(context: &ThreadContext) {
    QUEUE.hand_over(context.record.lane, 0, |index| &slot(index).core.link);
    context.slots.empty(&SLOTS);
    storage::flush(context);
    node::flush(context);
}
