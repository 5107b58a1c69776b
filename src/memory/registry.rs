//! The registry: every array of the process, found by its key, kept alive by nobody here.
//!
//! A slot (`registry/slots.rs`) holds the array's metadata inline. This file makes arrays and finds them by their keys;
//! `registry/pinning.rs` lets operations use them, `registry/ending.rs` ends them, `registry/diagnostics.rs` has what
//! errors and reports say. The rules of a slot's life are in `slot.rs`, those of use against close in `hazard.rs`,
//! those of ownership in `owner.rs`.

mod diagnostics;
mod ending;
mod pinning;
pub(super) mod slots;

pub(crate) use diagnostics::{age_millis, created, describe, name, set_name, stale, stale_operand};
pub(crate) use ending::{TakenOver, close, close_taken, drop_proxy, end_graphs, end_orphan, flush, reap, take_over};
pub(crate) use pinning::{NotPinned, Pinned, Pins, Refuses, exchange, pin, pin_if, pin_now};
pub(crate) use slots::{
    ArrayRef, OwnedArray, Tracked, cycle_of, extent, guard, is_in_scope, is_open, metadata, slot, storage_of,
    upgrade_index,
};

use crate::base::{
    dtype::DType,
    error::{Error, Site},
    layout::Layout,
    sync::Ordering,
    system::coarse_millis,
};
use crate::device::buffer::ArenaPart;
use crate::memory::{
    exit,
    hazard::USER,
    key::Key,
    owner::{self, Entry, Owner, Refused},
    registry::slots::{ArrayBody, NOBODY, SLOTS},
    slot::{CYCLE, GUARDED, KEPT, generation_of},
    storage::{self, Storage},
    threads::{self, ThreadContext, with_context},
    trace,
    workspace::validity::{self, CycleId},
};

/// The owner of an array with these bytes, where `owner` was meant: bytes of a workspace end with their cycle, whoever
/// asked, unless the reference keeps them; and no other bytes do.
#[inline(always)]
fn owner_of_bytes(storage: &mut Storage, owner: Owner) -> Owner {
    match (storage.join_cycle(), owner) {
        (Some(ArenaPart { scope, stamp, .. }), _) => Owner::Cycle(CycleId::new(scope, stamp)),
        (None, Owner::Cycle(_)) => Owner::Handles,
        (None, _) => owner,
    }
}

/// The owner of the first operand of this thread's call.
pub(crate) fn first_operand(context: &ThreadContext) -> Option<Owner> {
    let place = context.first_place.get();
    let announced = context.record.hazards.places().find(|&(at, _)| at == place)?.1;
    let index = (announced & !USER) - 1;
    owner::owner_of(index, generation_of(slot(index).core.state()))
}

/// What an array is made of. The layout by reference: it is written once, in the slot.
pub(crate) struct Parts<'a> {
    pub(crate) dtype: DType,
    pub(crate) layout: &'a Layout,
    pub(crate) storage: Storage,
    pub(crate) node: Tracked,
}

/// Why there is no array.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// No slot is left.
    Full,
    /// By its owner.
    Refused(Refused),
}

impl NotMade {
    /// The error, with what the owner says of its refusal.
    #[cold]
    pub(crate) fn error(self, op: &'static str, refusal: impl FnOnce(Refused) -> Error) -> Error {
        match self {
            NotMade::Full => storage::full(op),
            NotMade::Refused(refused) => refusal(refused),
        }
    }
}

/// Makes an array with one proxy, owned by `owner`.
///
/// If the owner refuses, the parts are dropped, nothing is left behind, and the refusal is returned.
#[inline(always)]
pub(crate) fn create(
    context: &ThreadContext,
    op: &'static str,
    Parts { dtype, layout, storage, mut node }: Parts<'_>,
    owner: &Owner,
    site: Site,
) -> std::result::Result<Key, NotMade> {
    // Part by part, in registers: whole, they would be read again while they are still being written, as would be both
    // words of a node that is none, of which one is written.
    make(context, storage, layout, dtype, &mut node, owner, (op, site))
}

#[inline(never)]
fn make(
    context: &ThreadContext,
    mut storage: Storage,
    layout: &Layout,
    dtype: DType,
    node: &mut Tracked,
    owner: &Owner,
    (op, site): (&'static str, Site),
) -> std::result::Result<Key, NotMade> {
    let owner = owner_of_bytes(&mut storage, *owner);
    if trace::is_on() {
        let manager = if let Owner::Manager(id) = owner { owner::manager_key(id) } else { 0 };
        storage.trace(site, manager);
    }
    let index = context.slots.pop().or_else(|| refilled(context)).ok_or(NotMade::Full)?;
    let cell = slot(index);
    cell.metadata.show(dtype, layout, storage.buffer().device());
    // Relaxed: published with the slot's state, or by the lock of the owner's list.
    cell.storage.store(storage.id() + 1, Ordering::Relaxed);
    cell.maker.store(context.number, Ordering::Relaxed);
    cell.born.store(coarse_millis(), Ordering::Relaxed);
    cell.created.store(Some(site));
    cell.owner.store(NOBODY, Ordering::Relaxed);
    let mut bits = if storage.is_begun_by(context, index) { 0 } else { GUARDED };
    if let Owner::Cycle(id) = owner {
        cell.scope.store(id.scope(), Ordering::Relaxed);
        cell.cycle.store(id.stamp, Ordering::Relaxed);
        cell.oldest.store(Some(validity::oldest(id.scope())));
        bits |= CYCLE;
    }
    let own = || (bits & CYCLE != 0).then(|| cell.cycle_id());
    let node =
        if node.is_some() { node.take().map(|node| exit::placed(context, (op, site), node, own())) } else { None };
    let tracked = bits & CYCLE != 0 && node.is_some();
    let generation = cell.core.open_with(bits, || ArrayBody { storage, node });
    context.record.counts.count_created();
    match owner::put((index, cell), owner, Entry::Made) {
        Ok(()) => {
            let key = Key::new(index, generation);
            if tracked {
                context.workspaces.track(key);
            }
            Ok(key)
        }
        Err(refused) => {
            // Nobody was given the key; it ends as any array without owner and handles does.
            // Release: pairs with the Acquire in `owner::take`.
            cell.owner.store(owner::HANDLES, Ordering::Release);
            end_orphan(context, index, cell);
            Err(NotMade::Refused(refused))
        }
    }
}

/// A slot for a thread without one in stock.
#[cold]
fn refilled(context: &ThreadContext) -> Option<u32> {
    threads::at_end(flush);
    context.slots.take(&SLOTS)
}

/// A proxy's count for a key alone. `None` if its array has no handle or the key is stale.
pub(crate) fn upgrade(key: Key) -> Option<Key> {
    if key.index() >= extent() {
        return None;
    }
    let found = upgrade_index(key.index())?;
    if found != key || !is_open(key) {
        // Another life's: its count goes back, and what its manager keeps stays kept.
        drop_proxy(found);
        return None;
    }
    Some(unkept(found))
}

/// As [`upgrade_index`]; an array whose last proxy fell while the switch was off is an ordinary one from here on.
pub(crate) fn revive(index: u32) -> Option<Key> {
    upgrade_index(index).map(unkept)
}

/// Takes back the count that a manager keeps of an array, of which the caller has another.
fn unkept(key: Key) -> Key {
    let core = &slot(key.index()).core;
    if core.state() & KEPT != 0 && core.unkeep(key.generation()) {
        threads::count_kept(false);
        // One too many now; it is not the last.
        drop_proxy(key);
    }
    key
}

/// Runs with this thread's part of the runtime; for callers above this layer.
#[inline]
pub(crate) fn context<R>(f: impl FnOnce(&ThreadContext) -> R) -> R {
    with_context(f)
}
