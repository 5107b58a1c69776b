//! The registry: every array of the process, found by its key, kept alive by nobody here.
//!
//! A slot holds the array's metadata inline. This file makes arrays, lets operations use them (`pin`), and ends
//! them: by hand, with their manager, or out of the reclaim queue. The rules of a slot's life are in `slot.rs`,
//! those of use against close in `hazard.rs`, those of ownership in `owner.rs`.

mod tell;

pub(crate) use tell::{age_millis, created, describe, name, set_name, stale, stale_operand};

use std::marker::PhantomData;
use std::panic::Location;

use dashmap::DashMap;

use crate::base::{
    dtype::DType,
    error::{Closer, Error, Result, Site},
    layout::Layout,
    sync::{AtomicRef, AtomicU32, AtomicU64, Ordering, wait_turn},
    system::coarse_millis,
};
use crate::device::buffer::Part;
use crate::memory::{
    cycle::Oldest,
    face::{Face, FaceCell},
    hazard::{PLACES, announced},
    key::Key,
    lend,
    node::{self, Node},
    owner::{self, Owner, Refused},
    proxy::Proxy,
    queue::Queue,
    slab::Slab,
    slot::{BUSY, CLOSING, CYCLE, KEPT, LENT, NAMED, OPEN, Slot, generation_of},
    storage::{self, Storage, give_back_surplus},
    switch,
    threads::{self, Counts, Local, with_local},
    workspace::scope::{self, CycleId},
};

/// The step of the gradient graph that an array came out of.
pub(crate) type Tracked = Option<Node>;

/// What the close of an array takes; what it is like stays with the slot (`face.rs`). Never changed in between, but exchanged
/// whole by `intern`.
#[derive(Debug)]
pub(crate) struct Held {
    storage: Storage,
    node: Tracked,
}

/// An array out of its slot.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) storage: Storage,
    pub(crate) node: Tracked,
}

impl Payload {
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
/// In the order in which they are looked at: the first line of the cache has what resolving, dropping and draining touch,
/// the second one dtype and shape.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ArraySlot {
    pub(crate) core: Slot<Held>,
    pub(crate) owner: AtomicU32,
    /// The storage's id + 1, for writers that look who reads it.
    storage: AtomicU32,
    pub(crate) shard: AtomicU32,
    /// Milliseconds since the start of the runtime.
    born: AtomicU32,
    face: FaceCell,
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

// Four lines of the cache, the face from the second one on.
const _: () = assert!(size_of::<ArraySlot>() == 256 && std::mem::offset_of!(ArraySlot, face) == 64);

impl ArraySlot {
    /// The cycle that the array ends with, for one of a workspace.
    pub(crate) fn cycle_id(&self) -> CycleId {
        // Relaxed: written before the slot was opened.
        CycleId { scope: self.scope.load(Ordering::Relaxed), stamp: self.cycle.load(Ordering::Relaxed) }
    }

    /// Whether an array with this state can be used: it is open, nobody exchanges what it holds, and its cycle goes on.
    /// Invariant I12 (design.md).
    #[inline(always)]
    fn is_usable(&self, state: u64) -> bool {
        match state & (OPEN | BUSY | CYCLE) {
            OPEN => true,
            bits => bits == OPEN | CYCLE && self.is_live(),
        }
    }

    /// Whether the cycle of an array of a workspace goes on. Read after the array was announced, it is decisive.
    #[inline(always)]
    fn is_live(&self) -> bool {
        // Relaxed: both were written before the slot was opened, which the caller saw.
        let oldest = self.oldest.load(Ordering::Relaxed);
        oldest.is_some_and(|oldest| oldest.is_live(self.cycle.load(Ordering::Relaxed)))
    }
}

/// The owner of an array with these bytes, where `owner` was meant: bytes of a workspace end with their cycle, whoever
/// asked, unless the reference keeps them; and no other bytes do.
#[inline(always)]
fn owner_of_bytes(storage: &mut Storage, owner: Owner) -> Owner {
    match (storage.join_cycle(), owner) {
        (Some(Part { scope, stamp, .. }), _) => Owner::Cycle(CycleId { scope, stamp }),
        (None, Owner::Cycle(_)) => Owner::Handles,
        (None, _) => owner,
    }
}

static SLOTS: Slab<ArraySlot> = Slab::new(|| ArraySlot {
    core: Slot::new(),
    owner: AtomicU32::new(owner::NOBODY),
    shard: AtomicU32::new(0),
    prev: AtomicU32::new(0),
    next: AtomicU32::new(0),
    scope: AtomicU32::new(0),
    cycle: AtomicU64::new(0),
    oldest: AtomicRef::none(),
    storage: AtomicU32::new(0),
    born: AtomicU32::new(0),
    closer: AtomicU32::new(0),
    created: AtomicRef::none(),
    closed: AtomicRef::none(),
    face: FaceCell::new(),
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
    // Relaxed: written before the slot was opened, which the announcer saw.
    slot(index).storage.load(Ordering::Relaxed).checked_sub(1)
}

// ---------------------------------------------------------------------------------------------- making

/// What an array is made of. The layout by reference: it is written once, in the slot.
pub(crate) struct Parts<'a> {
    pub(crate) dtype: DType,
    pub(crate) layout: &'a Layout,
    pub(crate) storage: Storage,
    pub(crate) node: Tracked,
}

/// Makes an array with one proxy, owned by `owner`.
///
/// If the owner refuses, the parts are dropped, nothing is left behind, and the refusal is returned.
#[inline(never)]
pub(crate) fn create(
    local: &Local,
    op: &'static str,
    parts: Parts<'_>,
    owner: Owner,
    site: Site,
) -> Result<std::result::Result<Key, Refused>> {
    let Parts { dtype, layout, mut storage, node } = parts;
    let owner = owner_of_bytes(&mut storage, owner);
    let stocked = local.slots.borrow_mut().pop();
    let index = stocked.or_else(|| refilled(local)).ok_or_else(|| storage::full(op))?;
    let cell = slot(index);
    cell.face.show(|| Face { dtype, layout: *layout, device: storage.buffer().device().clone() });
    // Relaxed: published with the slot's state, or by the lock of the owner's list.
    cell.storage.store(storage.id() + 1, Ordering::Relaxed);
    cell.born.store(coarse_millis(), Ordering::Relaxed);
    cell.created.store(Some(site), Ordering::Relaxed);
    cell.owner.store(owner::NOBODY, Ordering::Relaxed);
    let mut bits = 0;
    if let Owner::Cycle(id) = owner {
        cell.scope.store(id.scope, Ordering::Relaxed);
        cell.cycle.store(id.stamp, Ordering::Relaxed);
        cell.oldest.store(Some(scope::oldest(id.scope)), Ordering::Relaxed);
        bits = CYCLE;
    }
    let tracked = bits == CYCLE && node.is_some();
    let generation = cell.core.open_with(bits, || Held { storage, node });
    Counts::bump(&local.seat.counts.created, 1);
    match owner::put(local, (index, cell), owner, false) {
        Ok(()) => {
            let key = Key::new(index, generation);
            if tracked {
                local.desk.track(key);
            }
            Ok(Ok(key))
        }
        Err(refused) => {
            // Nobody was given the key; it ends as any array without owner and handles does.
            cell.owner.store(owner::HANDLES, Ordering::Release);
            end_orphan(local, index, cell);
            Ok(Err(refused))
        }
    }
}

/// A slot for a thread without one in stock.
#[cold]
fn refilled(local: &Local) -> Option<u32> {
    let mut free = local.slots.borrow_mut();
    SLOTS.refill(&mut free);
    free.pop()
}

// ---------------------------------------------------------------------------------------------- using

/// Arrays in use: their payloads stay readable until this drops, whoever closes them meanwhile.
///
/// It does not say that they are still open. The announcements stand in consecutive places of the record.
#[derive(Debug)]
pub(crate) struct Pins<'a, const N: usize> {
    arrays: [ArrayRef<'a>; N],
    keys: [Key; N],
    cells: [&'static ArraySlot; N],
    local: &'a Local,
    first_place: usize,
    /// Bound to the thread whose record announces them.
    _thread: PhantomData<*const ()>,
}

/// One of the arrays in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned<'p> {
    array: ArrayRef<'p>,
    pub(crate) key: Key,
    pub(crate) place: usize,
}

impl<'p> std::ops::Deref for Pinned<'p> {
    type Target = ArrayRef<'p>;

    #[inline]
    fn deref(&self) -> &ArrayRef<'p> {
        &self.array
    }
}

impl<'p> Pinned<'p> {
    /// All bytes of its storage, if they are the host's.
    #[inline]
    pub(crate) fn host_bytes(&self) -> Option<&'p [u8]> {
        let buffer = self.array.storage.buffer();
        // SAFETY: host memory of a storage that the array keeps for `'p`; initialised when it was handed out, and written
        // by nobody while the array is announced, but by this thread if it holds a `Writing`, under which nobody asks.
        #[allow(unsafe_code)]
        buffer.device().is_cpu().then(|| unsafe { buffer.span().slice() })
    }
}

impl<const N: usize> Pins<'_, N> {
    /// The arrays, for as long as this is borrowed.
    #[inline]
    pub(crate) fn arrays(&self) -> [Pinned<'_>; N] {
        std::array::from_fn(|i| Pinned { array: self.arrays[i], key: self.keys[i], place: self.first_place + i })
    }
}

impl<const N: usize> Drop for Pins<'_, N> {
    #[inline]
    fn drop(&mut self) {
        release(self.local, self.first_place, self.keys, self.cells);
    }
}

/// Withdraws announcements; the last reader of an array that is closing finishes it.
#[inline]
fn release<const N: usize>(local: &Local, first_place: usize, keys: [Key; N], cells: [&ArraySlot; N]) {
    local.seat.record.withdraw(first_place, N);
    local.used_places.set(first_place);
    for (key, cell) in keys.into_iter().zip(cells) {
        if cell.core.state() & CLOSING != 0 {
            finish_if_free(local, key);
        }
    }
}

/// What an attempt to announce arrays came to.
enum Attempt<'a, const N: usize> {
    Pinned(Pins<'a, N>),
    /// One of them is being written or exchanged: let go of everything and try again.
    Busy,
    /// This one is closed.
    Stale(Key),
    /// The thread uses too many arrays already.
    Full,
}

/// Announces arrays of which the caller borrows proxies for `'a`, if all of them can be used now.
#[inline(always)]
fn try_pin<'a, const N: usize>(local: &'a Local, keys: [Key; N], user: bool) -> Option<Pins<'a, N>> {
    // Places are taken and given back like a stack: pins are locals of nested calls.
    let first = local.used_places.get();
    if first + N > PLACES {
        return None;
    }
    local.used_places.set(first + N);
    let cells = keys.map(|key| slot(key.index()));
    local.seat.record.announce(first, keys.map(Key::index), user);
    let mut usable = true;
    for (key, cell) in keys.iter().zip(cells) {
        let state = cell.core.state();
        usable &= generation_of(state) == key.generation() && cell.is_usable(state);
    }
    if !usable {
        release(local, first, keys, cells);
        return None;
    }
    let arrays: [ArrayRef<'a>; N] = cells.map(|cell| {
        // SAFETY: announced above, then seen open and not busy; the announcements stand until `Pins` drops. (The face stays
        // as long as the proxies that the caller borrows.)
        #[allow(unsafe_code)]
        let held: &'a Held = unsafe { cell.core.payload() };
        let face = cell.face.get().expect("an open slot has a face");
        ArrayRef { dtype: face.dtype, layout: &face.layout, storage: &held.storage, node: &held.node }
    });
    let pins = Pins { arrays, keys, cells, local, first_place: first, _thread: PhantomData };
    for array in arrays {
        if array.storage.is_being_written() {
            return None;
        }
    }
    Some(pins)
}

/// As [`try_pin`], with the reason why not: what is found now, when nothing is announced any more.
fn attempt<'a, const N: usize>(local: &'a Local, keys: [Key; N], user: bool) -> Attempt<'a, N> {
    if let Some(pins) = try_pin(local, keys, user) {
        return Attempt::Pinned(pins);
    }
    if local.used_places.get() + N > PLACES {
        return Attempt::Full;
    }
    for key in keys {
        let cell = slot(key.index());
        let state = cell.core.state();
        let same = generation_of(state) == key.generation();
        let is_busy = same && state & (OPEN | BUSY) == OPEN | BUSY;
        if !(is_busy || same && cell.is_usable(state)) {
            return Attempt::Stale(key);
        }
    }
    Attempt::Busy
}

/// Announces several arrays at once. Waits, holding none of them, while one is being written.
#[inline(always)]
pub(crate) fn pin<'a, const N: usize>(
    local: &'a Local,
    op: &'static str,
    keys: [Key; N],
    user: bool,
) -> Result<Pins<'a, N>> {
    match try_pin(local, keys, user) {
        Some(pins) => Ok(pins),
        None => pin_slowly(local, op, keys, user, attempt(local, keys, user)),
    }
}

#[cold]
fn pin_slowly<'a, const N: usize>(
    local: &'a Local,
    op: &'static str,
    keys: [Key; N],
    user: bool,
    mut last: Attempt<'a, N>,
) -> Result<Pins<'a, N>> {
    let mut turns = 0;
    loop {
        match last {
            Attempt::Pinned(pins) => return Ok(pins),
            Attempt::Stale(key) => {
                let operand = keys.iter().position(|other| *other == key).unwrap_or(0);
                return Err(tell::stale_operand(op, key, operand));
            }
            Attempt::Full => {
                return Err(Error::InUse { op, array: name_first(&keys), by: "this thread, with 15 others" });
            }
            Attempt::Busy if turns > 1 << 20 => {
                return Err(Error::InUse { op, array: name_first(&keys), by: "an operation that writes in place" });
            }
            Attempt::Busy => wait_turn(&mut turns),
        }
        last = attempt(local, keys, user);
    }
}

fn name_first(keys: &[Key]) -> String {
    keys.first().map_or_else(String::new, |&key| describe(key))
}

/// As [`pin`], without waiting: `None` if one of the arrays is being written.
#[inline]
pub(crate) fn pin_now<'a, const N: usize>(
    local: &'a Local,
    op: &'static str,
    keys: [Key; N],
) -> Result<Option<Pins<'a, N>>> {
    match attempt(local, keys, false) {
        Attempt::Pinned(pins) => Ok(Some(pins)),
        Attempt::Busy => Ok(None),
        other => pin_slowly(local, op, keys, false, other).map(Some),
    }
}

// ---------------------------------------------------------------------------------------------- ending

/// Ends an array by hand. Harmless if it ended already.
pub(crate) fn close(local: &Local, key: Key, closer: Closer, site: Site) {
    if owner::take(slot(key.index()), key.generation()).is_some() {
        close_taken(local, &[key], closer, Some(site));
    }
}

/// Ends the arrays of this thread's cycles with a recorded gradient whose cycles ended, though somebody has handles of them:
/// the graph behind each would stay with the handle. Calls `note` with each.
#[cold]
pub(crate) fn end_graphs(local: &Local, mut note: impl FnMut(Key)) {
    let mut tracked = local.desk.tracked.take();
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
    local.desk.tracked.replace(tracked);
    ended.retain(|key| {
        // The handle that keeps it may go at this moment.
        owner::take(slot(key.index()), key.generation()).is_some()
    });
    if !ended.is_empty() {
        ended.iter().for_each(|&key| note(key));
        close_taken(local, &ended, Closer::Unknown, None);
    }
}

/// Ends arrays that were taken from their owners. Their bytes come back at once, or with the last operation
/// that is using them.
///
/// The caller holds no count of them, so each may have its next life before this returns; hence the generations.
pub(crate) fn close_taken(local: &Local, taken: &[Key], closer: Closer, site: Option<Site>) {
    for key in taken {
        let cell = slot(key.index());
        cell.closer.store(closer as u32, Ordering::Relaxed);
        cell.closed.store(site, Ordering::Relaxed);
        if cell.core.begin_close() & KEPT != 0 {
            Counts::bump(&local.seat.counts.unkept, 1);
            if cell.core.take_last() && cell.core.orphan() {
                recycle(local, key.index(), cell);
            }
        }
    }
    threads::barrier();
    for &key in taken {
        finish_if_unannounced(local, key);
    }
}

/// A reader let go of a closing array: the last one finishes it.
#[cold]
fn finish_if_free(local: &Local, key: Key) {
    threads::barrier();
    finish_if_unannounced(local, key);
}

fn finish_if_unannounced(local: &Local, key: Key) {
    let index = key.index();
    let mut busy = false;
    threads::for_each_seat(|seat| busy |= announced(std::iter::once(&seat.record), index));
    if busy {
        return;
    }
    let cell = slot(index);
    if let Some(payload) = cell.core.finish(key.generation()) {
        Counts::bump(&local.seat.counts.closed, 1);
        drop(payload);
        if cell.core.finished() {
            recycle(local, index, cell);
        }
    }
}

/// One proxy less. The last one queues the slot, or leaves it with its manager if the switch is off.
/// Invariant I2 (design.md).
#[inline]
pub(crate) fn drop_proxy(key: Key) {
    let cell = slot(key.index());
    if !cell.core.drop_proxy() || switch::forked() {
        return;
    }
    // Relaxed: nobody else holds a handle that could move the array now.
    if !switch::reclaiming()
        && cell.owner.load(Ordering::Relaxed) & owner::UNLISTED == 0
        && cell.core.keep() & OPEN != 0
    {
        threads::count_here(|counts| &counts.kept);
        // SeqCst: pairs with the fence in `lend::give_back`: if the array went to its handles meanwhile, one of the two
        // takes the kept count back.
        let generation = key.generation();
        if cell.owner.load(Ordering::SeqCst) & owner::UNLISTED == 0 || !cell.core.unkeep(generation) {
            return;
        }
        threads::count_here(|counts| &counts.unkept);
    }
    threads::count_here(|counts| &counts.queued);
    QUEUE.push(threads::lane(), key.index(), &cell.core.link);
}

/// A slot came out of the queue: ends the array if that was its last count.
#[inline]
pub(crate) fn reap(local: &Local, index: u32, cell: &ArraySlot) {
    Counts::bump(&local.seat.counts.drained, 1);
    end_orphan(local, index, cell);
}

/// Gives up a count that the caller took over, and ends the array if it was the last.
/// Invariant I3 (design.md).
#[inline]
pub(crate) fn end_orphan(local: &Local, index: u32, cell: &ArraySlot) {
    if !cell.core.take_last() {
        return;
    }
    let generation = generation_of(cell.core.state());
    if owner::take(cell, generation).is_some() {
        // Open, without handles and without owner: nobody else can reach it.
        Counts::bump(&local.seat.counts.closed, 1);
        recycle(local, index, cell);
    } else if cell.core.orphan() {
        recycle(local, index, cell);
    }
}

/// What became of an array whose only handle was given up.
#[derive(Debug)]
pub(crate) enum TakenOver {
    /// Its payload, which nobody else can reach; it has no slot any more.
    Payload(Payload),
    /// Nothing: there is another handle.
    Shared,
    /// Somebody else is ending it. The handle is used up.
    Gone,
}

/// Ends an array by its only handle, and keeps what it held. The caller has no announcement of it.
pub(crate) fn take_over(local: &Local, key: Key) -> TakenOver {
    let cell = slot(key.index());
    if !cell.core.take_only() {
        return TakenOver::Shared;
    }
    if owner::take(cell, key.generation()).is_some() {
        // As in `end_orphan`: nobody else can reach it.
        Counts::bump(&local.seat.counts.closed, 1);
        let &Face { dtype, layout, .. } = cell.face.get().expect("an open slot has a face");
        let payload = |Held { storage, node }| TakenOver::Payload(Payload { dtype, layout, storage, node });
        return vacate(local, key.index(), cell, Option::take).map_or(TakenOver::Gone, payload);
    }
    if cell.core.orphan() {
        recycle(local, key.index(), cell);
    }
    TakenOver::Gone
}

/// Makes a slot vacant.
#[inline]
fn recycle(local: &Local, index: u32, cell: &ArraySlot) {
    vacate(local, index, cell, |held| *held = None);
}

/// Makes a slot vacant after `end` has emptied it.
#[inline(always)]
fn vacate<R>(local: &Local, index: u32, cell: &ArraySlot, end: impl FnOnce(&mut Option<Held>) -> R) -> R {
    if cell.core.state() & (NAMED | LENT) != 0 {
        NAMES.remove(&index);
        lend::forget(index);
    }
    cell.face.hide(index);
    let (left, reusable) = cell.core.recycle(end);
    if reusable {
        let mut free = local.slots.borrow_mut();
        free.push(index);
        give_back_surplus(&mut free, &SLOTS);
    }
    left
}

/// A thread leaves: its lane goes to the common one, its stocks to the slabs.
pub(crate) fn flush(local: &Local) {
    let lane = local.seat.lane;
    loop {
        let mut at = QUEUE.take(lane);
        if at == 0 {
            break;
        }
        while at != 0 {
            let index = at - 1;
            at = slot(index).core.link.load(Ordering::Relaxed);
            QUEUE.push(0, index, &slot(index).core.link);
        }
    }
    SLOTS.give_back(local.slots.borrow_mut().drain(..));
    storage::flush(local);
    node::flush(local);
}

/// Exchanges the payload of an open array for another, for all its handles at once. What it held is returned.
///
/// Readers are kept out first, and waited for while they can still move on; then the array is taken from its owner,
/// so that nobody ends it during the exchange.
pub(crate) fn exchange(local: &Local, op: &'static str, key: Key, payload: Payload) -> Result<Held> {
    let cell = slot(key.index());
    let mut turns = 0;
    loop {
        if !is_open(key) {
            return Err(stale(op, key));
        }
        if cell.core.set(BUSY) & BUSY == 0 {
            break;
        }
        wait_turn(&mut turns);
    }
    let _ready = Ready(&cell.core);
    threads::barrier();
    turns = 0;
    while let Some(mine) = announcer(local, key.index()) {
        if mine || turns > 1 << 16 {
            return Err(Error::InUse { op, array: describe(key), by: "a call that has not ended" });
        }
        wait_turn(&mut turns);
    }
    let Some(owner) = owner::take(cell, key.generation()) else {
        return Err(stale(op, key));
    };
    cell.storage.store(payload.storage.id() + 1, Ordering::Relaxed);
    let face = Face::of(&payload);
    // SAFETY: this thread set `BUSY`, issued the barrier, and found no announcement; and it took the array from its
    // owner, so that nobody closes it.
    #[allow(unsafe_code)]
    let old = unsafe { cell.core.replace(Held { storage: payload.storage, node: payload.node }) };
    cell.face.turn(key.index(), face);
    if owner::put(local, (key.index(), cell), owner, true).is_err() {
        close_taken(local, &[key], Closer::Manager, None);
    }
    old.ok_or_else(|| stale(op, key))
}

/// What the handle of an array tells of it, open or closed.
#[inline]
pub(crate) fn face(of: &Proxy) -> &Face {
    slot(of.key().index()).face.get().expect("the slot of a proxy has a face")
}

/// Lets readers in again.
struct Ready<'a>(&'a Slot<Held>);

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.0.clear(BUSY);
    }
}

/// Whether a thread announces the slot, and whether it is this one.
fn announcer(local: &Local, index: u32) -> Option<bool> {
    let mut found = None;
    threads::for_each_seat(|seat| {
        if seat.record.announces(index) {
            found = Some(std::ptr::eq(seat, local.seat) || found == Some(true));
        }
    });
    found
}

// ---------------------------------------------------------------------------------------------- asking

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
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    with_local(f)
}
