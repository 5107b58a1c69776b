//! The slots of all arrays: what each holds, and what a look at it tells. Owners (`owner.rs`) lie between this and the
//! rest of the registry.

use std::panic::Location;
use std::sync::LazyLock;

use dashmap::DashMap;

use crate::base::{
    dtype::DType,
    layout::Layout,
    sync::{AtomicRef, AtomicU32, AtomicU64, Ordering},
};
use crate::memory::{
    cycle::Oldest,
    handle::Proxy,
    key::Key,
    metadata::{Metadata, MetadataCell},
    node::Node,
    slab::slab,
    slot::{BUSY, CYCLE, OPEN, SHARED, Slot, generation_of},
    storage::Storage,
    threads::ThreadContext,
    workspace::validity::CycleId,
};

/// The owner of an array that is new, or taken (`owner.rs`).
pub(crate) const NOBODY: u32 = 0;

/// The step of the gradient graph that an array came out of.
pub(crate) type Tracked = Option<Node>;

/// What the close of an array takes; what it is like stays with the slot (`metadata.rs`). Never changed in between, but
/// exchanged whole by `intern`.
#[derive(Debug)]
pub(crate) struct ArrayBody {
    pub(super) storage: Storage,
    pub(super) node: Tracked,
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
    pub(super) fn metadata(&self) -> Metadata {
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
    pub(super) storage: AtomicU32,
    /// The number of the thread record of the thread that made it. Written while the slot is vacant.
    pub(super) maker: AtomicU32,
    /// The coarse clock when it was made, in milliseconds modulo 2^32: 49 days.
    pub(super) born: AtomicU32,
    pub(super) metadata: MetadataCell,
    pub(crate) prev: AtomicU32,
    pub(crate) next: AtomicU32,
    /// Of an array of a workspace, since it was made: its scope, and the stamp of its cycle.
    pub(crate) cycle: AtomicU64,
    /// Where its scope says which stamps are valid still; none before the slot's first array of a workspace.
    pub(super) oldest: AtomicRef<Oldest>,
    pub(crate) scope: AtomicU32,
    /// Who closed it, as the number of a `Closer`.
    pub(super) closer: AtomicU32,
    pub(super) created: AtomicRef<Location<'static>>,
    pub(super) closed: AtomicRef<Location<'static>>,
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
    pub(super) fn is_usable(&self, state: u64) -> bool {
        match state & (OPEN | BUSY | CYCLE) {
            OPEN => true,
            bits => bits == OPEN | CYCLE && self.is_live(),
        }
    }

    /// Whether the thread made the array, and no other thread used it by this state: then no other thread is using it,
    /// and who closes it on this one need not look for others.
    #[inline(always)]
    pub(super) fn is_alone(&self, context: &ThreadContext, state: u64) -> bool {
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
    pub(crate) fn is_looked_for(&self, context: &ThreadContext, state: u64) -> bool {
        let looked_for = state & SHARED != 0 || self.maker() == context.number;
        if !looked_for {
            self.core.share(generation_of(state));
        }
        looked_for
    }

    /// Whether the cycle of an array of a workspace goes on. Read after the array was announced, it is decisive.
    #[inline(always)]
    pub(super) fn is_live(&self) -> bool {
        // Relaxed: written before the slot was opened, which the caller saw.
        let oldest = self.oldest.load();
        oldest.is_some_and(|oldest| oldest.is_live(self.cycle.load(Ordering::Relaxed)))
    }
}

slab!(pub(super) SLOTS: ArraySlot = ArraySlot {
    core: Slot::new(),
    owner: AtomicU32::new(NOBODY),
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

/// Names given by `set_name`, while their array is open or has handles.
pub(super) static NAMES: LazyLock<DashMap<u32, String>> = LazyLock::new(DashMap::new);

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

/// A proxy's count for whatever array is in a slot. The caller must give it to a proxy or to `drop_proxy`.
pub(crate) fn upgrade_index(index: u32) -> Option<Key> {
    slot(index).core.upgrade().map(|state| Key::new(index, generation_of(state)))
}
