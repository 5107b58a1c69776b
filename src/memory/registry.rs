//! The registry: every array of the process, found by its key, kept alive by nobody here.
//!
//! A slot holds the array's metadata inline. This file makes arrays and tells of them; `registry/pinning.rs` lets
//! operations use them, `registry/ending.rs` ends them, `registry/diagnostics.rs` has what errors and reports say. The
//! rules of a slot's life are in `slot.rs`, those of use against close in `hazard.rs`, those of ownership in
//! `owner.rs`.

mod diagnostics;
mod ending;
mod pinning;

pub(crate) use diagnostics::{age_millis, created, describe, name, set_name, stale, stale_operand};
pub(crate) use ending::{TakenOver, close, close_taken, drop_proxy, end_graphs, end_orphan, flush, reap, take_over};
pub(crate) use pinning::{NotPinned, Pinned, Pins, Refuses, exchange, pin, pin_if, pin_now};

use std::panic::Location;

use dashmap::DashMap;

use crate::base::{
    dtype::DType,
    error::{Error, Site},
    layout::Layout,
    sync::{AtomicRef, AtomicU32, AtomicU64, Ordering},
    system::coarse_millis,
};
use crate::device::buffer::ArenaPart;
use crate::memory::{
    cycle::Oldest,
    exit,
    handle::Proxy,
    hazard::USER,
    key::Key,
    metadata::{Metadata, MetadataCell},
    node::Node,
    owner::{self, Entry, Owner, Refused},
    queue::Queue,
    slab::slab,
    slot::{BUSY, CYCLE, GUARDED, KEPT, OPEN, SHARED, Slot, generation_of},
    storage::{self, Storage},
    threads::{self, Counts, ThreadContext, with_context},
    trace,
    workspace::validity::{self, CycleId},
};

/// The step of the gradient graph that an array came out of.
pub(crate) type Tracked = Option<Node>;

/// What the close of an array takes; what it is like stays with the slot (`metadata.rs`). Never changed in between, but
/// exchanged whole by `intern`.
#[derive(Debug)]
pub(crate) struct ArrayBody {
    storage: Storage,
    node: Tracked,
}

/// An array out of its slot.
#[derive(Debug)]
pub(crate) struct OwnedArray {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) storage: Storage,
    pub(crate) node: Tracked,
}

impl OwnedArray {
    fn metadata(&self) -> Metadata {
        Metadata::new(self.dtype, &self.layout, self.storage.buffer().device().clone())
    }

    pub(crate) fn as_ref(&self) -> ArrayRef<'_> {
        ArrayRef { dtype: self.dtype, layout: &self.layout, storage: &self.storage, node: &self.node }
    }
}

/// An array that is announced, or out of its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayRef<'p> {
    pub(crate) dtype: DType,
    pub(crate) layout: &'p Layout,
    pub(crate) storage: &'p Storage,
    pub(crate) node: &'p Tracked,
}

/// A slot with what owners, writers and errors need to know of it.
///
/// In the order in which they are looked at: the first line of the cache has what resolving, dropping and draining
/// touch, the second one dtype and shape.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ArraySlot {
    pub(crate) core: Slot<ArrayBody>,
    pub(crate) owner: AtomicU32,
    /// The storage's id + 1, for writers that look who reads it.
    storage: AtomicU32,
    /// The number of the thread record of the thread that made it. Written while the slot is vacant.
    maker: AtomicU32,
    /// The coarse clock when it was made, in milliseconds modulo 2^32: 49 days.
    born: AtomicU32,
    metadata: MetadataCell,
    pub(crate) prev: AtomicU32,
    pub(crate) next: AtomicU32,
    /// Of an array of a workspace, since it was made: its scope, and the stamp of its cycle.
    pub(crate) cycle: AtomicU64,
    /// Where its scope says which stamps are valid still; none before the slot's first array of a workspace.
    oldest: AtomicRef<Oldest>,
    pub(crate) scope: AtomicU32,
    /// Who closed it, as the number of a `Closer`.
    closer: AtomicU32,
    created: AtomicRef<Location<'static>>,
    closed: AtomicRef<Location<'static>>,
}

// Four lines of the cache, the metadata from the second one on.
const _: () = assert!(size_of::<ArraySlot>() == 256 && std::mem::offset_of!(ArraySlot, metadata) == 64);

impl ArraySlot {
    /// The cycle that the array ends with, for one of a workspace.
    pub(crate) fn cycle_id(&self) -> CycleId {
        // Relaxed: written before the slot was opened.
        CycleId::new(self.scope.load(Ordering::Relaxed), self.cycle.load(Ordering::Relaxed))
    }

    /// Whether an array with this state can be used: it is open, nobody exchanges what it holds, and its cycle goes on.
    fn is_usable(&self, state: u64) -> bool {
        match state & (OPEN | BUSY | CYCLE) {
            OPEN => true,
            bits => bits == OPEN | CYCLE && self.is_live(),
        }
    }

    /// Whether the thread made the array, and no other thread used it by this state: then no other thread is using it,
    /// and who closes it on this one need not look for others.
    #[inline(always)]
    fn is_alone(&self, context: &ThreadContext, state: u64) -> bool {
        state & SHARED == 0 && self.maker() == context.number
    }

    /// The number of the storage.
    #[inline(always)]
    pub(crate) fn storage_id(&self) -> Option<u32> {
        // Relaxed: written before the slot was opened, or under a claim that keeps readers out.
        self.storage.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The number of the thread record of the thread that made the array.
    #[inline(always)]
    pub(crate) fn maker(&self) -> u32 {
        // Relaxed: written before the slot was opened.
        self.maker.load(Ordering::Relaxed)
    }

    /// Whether a closer of the array would look for this thread's announcement. If not, it will from now on, and the
    /// caller tries again.
    fn is_looked_for(&self, context: &ThreadContext, state: u64) -> bool {
        let looked_for = state & SHARED != 0 || self.maker() == context.number;
        if !looked_for {
            self.core.share(generation_of(state));
        }
        looked_for
    }

    /// Whether the cycle of an array of a workspace goes on. Read after the array was announced, it is decisive.
    #[inline(always)]
    fn is_live(&self) -> bool {
        // Relaxed: written before the slot was opened, which the caller saw.
        let oldest = self.oldest.load();
        oldest.is_some_and(|oldest| oldest.is_live(self.cycle.load(Ordering::Relaxed)))
    }
}

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

slab!(SLOTS: ArraySlot = ArraySlot {
    core: Slot::new(),
    owner: AtomicU32::new(owner::NOBODY),
    prev: AtomicU32::new(0),
    next: AtomicU32::new(0),
    scope: AtomicU32::new(0),
    cycle: AtomicU64::new(0),
    oldest: AtomicRef::none(),
    storage: AtomicU32::new(0),
    maker: AtomicU32::new(0),
    born: AtomicU32::new(0),
    closer: AtomicU32::new(0),
    created: AtomicRef::none(),
    closed: AtomicRef::none(),
    metadata: MetadataCell::new(),
});

pub(crate) static QUEUE: Queue = Queue::new();

/// Names given by `set_name`, while their array is open or has handles.
static NAMES: std::sync::LazyLock<DashMap<u32, String>> = std::sync::LazyLock::new(DashMap::new);

/// The slot with this index.
#[inline]
pub(crate) fn slot(index: u32) -> &'static ArraySlot {
    SLOTS.get(index)
}

/// Slots ever used.
pub(crate) fn extent() -> u32 {
    SLOTS.extent()
}

/// The storage of the array that was announced as this slot.
pub(crate) fn storage_of(index: u32) -> Option<u32> {
    slot(index).storage_id()
}

/// Has the readers of the array in this slot ask its storage.
pub(crate) fn guard(index: u32) {
    slot(index).core.guard();
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
    cell.owner.store(owner::NOBODY, Ordering::Relaxed);
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
    Counts::bump(&context.record.counts.created, 1);
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

/// What the handle of an array tells of it, open or closed.
#[inline]
pub(crate) fn metadata(of: &Proxy) -> &Metadata {
    let cell = slot(of.key.index());
    cell.metadata.get(cell.core.state())
}

/// Whether the array is open.
pub(crate) fn is_open(key: Key) -> bool {
    let cell = slot(key.index());
    let state = cell.core.state();
    generation_of(state) == key.generation() && state & OPEN != 0 && (state & CYCLE == 0 || cell.is_live())
}

/// The cycle that an array ends with, or ended with, if it is one of a workspace. The caller borrows a proxy of it.
pub(crate) fn cycle_of(key: Key) -> Option<CycleId> {
    let cell = slot(key.index());
    (cell.core.state() & CYCLE != 0).then(|| cell.cycle_id())
}

/// Whether no cycle ended the array. The caller borrows a proxy of it.
pub(crate) fn is_in_scope(key: Key) -> bool {
    let cell = slot(key.index());
    cell.core.state() & CYCLE == 0 || cell.is_live()
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
        threads::count_here(|counts| &counts.unkept);
        // One too many now; it is not the last.
        drop_proxy(key);
    }
    key
}

/// A proxy's count for whatever array is in a slot. The caller must give it to a proxy or to `drop_proxy`.
pub(crate) fn upgrade_index(index: u32) -> Option<Key> {
    slot(index).core.upgrade().map(|state| Key::new(index, generation_of(state)))
}

/// Runs with this thread's part of the runtime; for callers above this layer.
#[inline]
pub(crate) fn context<R>(f: impl FnOnce(&ThreadContext) -> R) -> R {
    with_context(f)
}
