//! The bytes of arrays: counted references to a buffer, and who uses it.
//!
//! A storage is shared by an array, its views, what gradients saved of it, and operations that run. Its cell
//! lies in a slab, so that taking one allocates nothing. The buffer goes back to its pool with the last reference.
//!
//! # Bytes of a workspace
//! An arena takes its bytes back when their cycle ends, and asks no storage. What an array of the cycle has is checked
//! with the cycle at each use (`workspace/validity.rs`); every other reference to such a storage *retains* the block
//! that the bytes lie in, so that the arena leaves it alone (`workspace/block.rs`). A clone retains it. An array that
//! is made of the clone of an array of the cycle, a view, is of the cycle too, and does not retain it; one that is made
//! of a reference that held already, a saved value, is not, and nor are its views ([`Storage::join_cycle`]). Nor is one
//! of no cycle that took them over ([`Storage::taken_over`]).
//!
//! # Readers
//! The word `users` says which thread alone uses the bytes, and whether somebody writes into them. It begins with the
//! thread that made the storage. A reader looks at it after it announced its array. If it names another thread, the
//! reader sets it to that of all threads, by an exchange; if somebody writes, it withdraws. So reading costs one load.
//!
//! Not even that for the array that was made with the bytes, by its own thread, as long as it is not guarded
//! (`slot.rs`). The storage knows its slot. Whoever is about to write bytes of all threads guards it before the
//! barrier (`storage/writing.rs`); and no bytes become another thread's own without such a write.
//!
//! The unsafe code rests on the count of a cell: its buffer is written by whoever has the cell from a free list, or the
//! last reference, and only read in between.

#![allow(unsafe_code)]

#[deny(unsafe_code)]
pub(crate) mod writing;

use std::mem::ManuallyDrop;

use crate::base::{
    error::{Error, Result, Site},
    sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, wait_turn},
};
use crate::device::{
    Device,
    buffer::{ArenaPart, Buffer, BufferMut, PackedBuffer, Span},
    graph::is_capturing,
    host::pool,
};
use crate::memory::{
    budget::{self, OverBudget},
    slab::slab,
    threads::{ThreadContext, with_context},
    trace,
    workspace::{
        block,
        planning::{PLANNED, UNPLANNED},
        validity::CycleId,
    },
};

/// A cell of a storage: one line of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct StorageCell {
    refs: AtomicU32,
    /// Who uses the bytes: [`SHARED`], or twice the number of a thread record, whose thread alone does; [`WRITES`] is
    /// added while an operation writes in place.
    users: AtomicU32,
    /// 1 if somebody wanted to read while somebody wrote.
    wanted: AtomicU32,
    /// The slot of the array whose readers do not ask ([`GUARDED`]), plus 1; 0 if there is none. Another one's, or
    /// nobody's, when that array has ended.
    unasked: AtomicU32,
    /// In-place changes so far; from the last one of a storage on to the next multiple of [`CHANGES`] for the next.
    version: AtomicU64,
    /// Bytes of the buffer.
    bytes: AtomicU64,
    /// The block of an arena that the buffer lies in, if it lies in one.
    block: AtomicU32,
    /// Who is told of its end: the budget that the bytes are charged to (`budget.rs`), [`FREE`] if they are nobody's
    /// business, and [`TRACED`] if they stand in the trace (`trace.rs`). 0 if nobody.
    marks: AtomicU32,
    buffer: UnsafeCell<PackedBuffer>,
}

const _: () = assert!(size_of::<StorageCell>() == 64);

// SAFETY: the buffer is written while `refs` is 0 and the cell belongs to one thread's free list, and only read
// while `refs` is above.
unsafe impl Sync for StorageCell {}

slab!(CELLS: StorageCell = StorageCell {
    refs: AtomicU32::new(0),
    users: AtomicU32::new(SHARED),
    wanted: AtomicU32::new(0),
    unasked: AtomicU32::new(0),
    version: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    block: AtomicU32::new(0),
    marks: AtomicU32::new(0),
    buffer: UnsafeCell::new(PackedBuffer::NONE),
});

/// Bytes that no budget counts: of others, or of a workspace. Those that a workspace planned have their request's
/// number instead, above [`PLANNED`].
const FREE: u32 = UNPLANNED;
/// In the place of a budget: the bytes are being charged to another.
const MOVING: u32 = AHEAD - 1;
/// In the marks of a cell, beside a budget: that counts the array already which the bytes are for. Whoever links one
/// with these bytes takes it; if nobody does, or their handles own the array, it was never counted.
const AHEAD: u32 = 1 << 29;
/// In the marks of a cell: it stands in the trace.
const TRACED: u32 = 1 << 31;
/// Changes that the versions of one storage count.
const CHANGES: u64 = 1 << 32;
/// Any thread may use the bytes.
const SHARED: u32 = 0;
/// Somebody writes.
const WRITES: u32 = 1;

/// The bytes are this thread's alone.
#[inline(always)]
fn alone(context: &ThreadContext) -> u32 {
    context.number * 2
}

/// A counted reference to a buffer.
#[derive(Debug)]
pub(crate) struct Storage {
    cell: &'static StorageCell,
    /// The cell's number, by which slots name it, and above it whether the reference retains a block: one word, so that
    /// a reference moves as two, and who reads it waits for no second write.
    word: u64,
}

/// Whether a reference retains the block of an arena, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retention(u32);

impl Retention {
    /// The bytes are no arena's, and this is the reference that they were made with, or has its place.
    const MADE: Retention = Retention(0);
    /// The bytes are no arena's.
    const NEVER: Retention = Retention(1);
    /// It was made of one that retains it.
    const PASSED: Retention = Retention(2);
    /// It does not: an array of their cycle has it.
    const NO: Retention = Retention(3);
    /// It was made of one that does not.
    const BEGUN: Retention = Retention(4);
}

impl StorageCell {
    /// Bytes of the buffer.
    #[inline(always)]
    fn bytes(&self) -> usize {
        // Relaxed: written before the storage was published.
        self.bytes.load(Ordering::Relaxed) as usize
    }
}

/// The buffer of a storage, as long as there is the reference to it. What is not asked for is not loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferRef<'a> {
    cell: &'static StorageCell,
    packed: &'a PackedBuffer,
}

impl<'a> BufferRef<'a> {
    #[inline(always)]
    pub(crate) fn span(self) -> Span {
        self.packed.span(self.cell.bytes())
    }

    #[inline(always)]
    pub(crate) fn device(self) -> &'a Device {
        self.packed.device()
    }

    /// As [`Buffer::part`].
    #[inline(always)]
    pub(crate) fn part(self) -> Option<ArenaPart> {
        // Relaxed: written before the storage was published.
        self.packed.part(|| self.cell.block.load(Ordering::Relaxed))
    }

    /// As [`Buffer::is_read_only`].
    #[inline(always)]
    pub(crate) fn is_read_only(self) -> bool {
        self.packed.is_read_only()
    }

    /// As [`Buffer::is_pooled`].
    #[inline(always)]
    pub(crate) fn is_pooled(self) -> bool {
        self.packed.is_pooled()
    }

    /// As [`Buffer::is_counted`].
    #[inline(always)]
    pub(crate) fn is_counted(self) -> bool {
        self.packed.is_counted()
    }

    /// Bytes of it that its device counts as active; none of an arena's.
    pub(crate) fn active(self) -> usize {
        self.packed.active(self.cell.bytes())
    }
}

/// The block of an arena that the storage of an array of a cycle lies in.
pub(crate) fn block_of(storage: u32) -> u32 {
    // Relaxed: the caller knows of the storage from the array's slot, which was published after this was written.
    CELLS.get(storage).block.load(Ordering::Relaxed)
}

/// No cell is left: 268 million storages are alive.
pub(crate) fn full(op: &'static str) -> Error {
    Error::argument(op, "number of arrays", "2^28", "less; close some first")
}

impl Storage {
    #[inline(always)]
    fn of(cell: &'static StorageCell, index: u32, retention: Retention) -> Self {
        Storage { cell, word: Self::word(index, retention) }
    }

    #[inline(always)]
    fn word(index: u32, Retention(retention): Retention) -> u64 {
        u64::from(retention) << 32 | u64::from(index)
    }

    /// Uninitialised bytes of the host, at least one. `None` if this thread has no cell or no block in stock.
    #[inline(always)]
    pub(crate) fn on_host(context: &ThreadContext, bytes: usize) -> Option<Self> {
        let index = context.storages.next()?;
        if context.workspaces.is_open() {
            // What a captured section writes must not lie where the next cycle does.
            if is_capturing() {
                return None;
            }
            let (span, part, mark) = context.workspaces.take_at_once(bytes)?;
            context.storages.pop();
            // Relaxed: published with the slot of the array.
            CELLS.get(index).block.store(part.block, Ordering::Relaxed);
            CELLS.get(index).marks.store(mark, Ordering::Relaxed);
            let cell = Self::fill(context, index, span.bytes(), || PackedBuffer::from_arena(span, part));
            Some(Storage::of(cell, index, Retention::NO))
        } else {
            let (span, reserved) = pool::alloc_at_once(bytes)?;
            context.storages.pop();
            let cell = Self::fill(context, index, span.bytes(), || PackedBuffer::from_pool(span, reserved));
            Some(Storage::of(cell, index, Retention::MADE))
        }
    }

    /// Puts a buffer into a cell. `mark`: what a workspace wants noted of it.
    #[inline]
    pub(crate) fn new(context: &ThreadContext, op: &'static str, buffer: Buffer, mark: u32) -> Result<Self> {
        let index = context.storages.take(&CELLS).ok_or_else(|| full(op))?;
        let mut retention = Retention::MADE;
        if !buffer.is_counted() {
            // Relaxed: as above.
            CELLS.get(index).marks.store(mark, Ordering::Relaxed);
        }
        if let Some(part) = buffer.part() {
            // Relaxed: as above.
            CELLS.get(index).block.store(part.block, Ordering::Relaxed);
            retention = Retention::NO;
        }
        let cell = Self::fill(context, index, buffer.span().bytes(), || PackedBuffer::of(buffer));
        Ok(Storage::of(cell, index, retention))
    }

    /// Fills a cell of the free list, with one reference. The buffer is made in its place.
    #[inline(always)]
    fn fill(
        context: &ThreadContext,
        index: u32,
        bytes: usize,
        buffer: impl FnOnce() -> PackedBuffer,
    ) -> &'static StorageCell {
        let cell = CELLS.get(index);
        // Relaxed: published with the storage, of which nobody else can know yet.
        cell.bytes.store(bytes as u64, Ordering::Relaxed);
        // Relaxed: as above.
        cell.users.store(alone(context), Ordering::Relaxed);
        // Relaxed: as above.
        cell.unasked.store(0, Ordering::Relaxed);
        // Relaxed: as above. Who remembers a version sees that it was another storage's (`is_of_later`).
        let before = cell.version.load(Ordering::Relaxed);
        // Relaxed: as above.
        cell.version.store((before | (CHANGES - 1)).wrapping_add(1), Ordering::Relaxed);
        // SAFETY: the cell came from a free list: no reference to it exists, and it holds no buffer that would have
        // to be dropped.
        cell.buffer.with_mut(|b| unsafe { b.write(buffer()) });
        // Relaxed: the reference is passed on by whatever publishes the `Storage` itself.
        cell.refs.store(1, Ordering::Relaxed);
        cell
    }

    /// For the array that is made with this reference, in this slot: whether its bytes are this thread's alone, and no
    /// other array has them, so that it need not be asked before who writes them says so (`write`).
    #[inline(always)]
    pub(crate) fn is_begun_by(&self, context: &ThreadContext, slot: u32) -> bool {
        let cell = self.cell;
        // Acquire: as in `own_buffer`. Relaxed: nobody else has a reference, and who had one let go of it before.
        let begun = cell.refs.load(Ordering::Acquire) == 1 && cell.users.load(Ordering::Relaxed) == alone(context);
        if begun {
            // Relaxed: published with the slot, or a reference that is made of this one.
            cell.unasked.store(slot + 1, Ordering::Relaxed);
        }
        begun
    }

    /// The number by which slots name it.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.word as u32
    }

    #[inline(always)]
    fn retention(&self) -> Retention {
        Retention((self.word >> 32) as u32)
    }

    /// The buffer.
    #[inline(always)]
    pub(crate) fn buffer(&self) -> BufferRef<'_> {
        let cell = self.cell;
        // SAFETY: `refs` is at least 1 for as long as `self`, so the buffer is there and is not written.
        let packed = cell.buffer.with(|b| unsafe { &*b });
        BufferRef { cell, packed }
    }

    /// The buffer of a storage that nobody else has a reference to.
    #[inline(always)]
    pub(crate) fn own_buffer(&mut self) -> Option<BufferMut<'_>> {
        let cell = self.cell;
        // Acquire: pairs with the Release in the drops of references that went before.
        if cell.refs.load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: this is the only reference, from which alone another could be made, and it is borrowed.
        let packed = cell.buffer.with_mut(|b| unsafe { &mut *b });
        Some(packed.as_mut(cell.bytes()))
    }

    /// The part of an arena that it is, if it is one.
    #[inline]
    pub(crate) fn part(&self) -> Option<ArenaPart> {
        self.buffer().part()
    }

    /// For the reference of a new array: the part of an arena whose cycle the array is of, if it is of one. The
    /// reference does not retain it any more.
    #[inline(always)]
    pub(crate) fn join_cycle(&mut self) -> Option<ArenaPart> {
        if matches!(self.retention(), Retention::MADE | Retention::NEVER | Retention::PASSED) {
            return None;
        }
        if self.retention() == Retention::BEGUN {
            self.release();
        }
        self.part()
    }

    /// As [`Storage::part`], of a reference that does not retain it: of an array of the cycle, or of a gradient of one.
    #[inline]
    pub(crate) fn part_of_cycle(&self) -> Option<ArenaPart> {
        self.part().filter(|_| self.retention() == Retention::NO)
    }

    /// For the reference of an array that takes over the bytes of another one, and ends with the cycle `own`, or with
    /// none: it retains the block unless that is the cycle of the bytes.
    pub(crate) fn taken_over(&mut self, own: Option<CycleId>) {
        if self.retention() != Retention::BEGUN {
            return;
        }
        match self.part() {
            Some(part) if own == Some(CycleId::new(part.scope, part.stamp)) => self.release(),
            _ => self.word = Storage::word(self.id(), Retention::PASSED),
        }
    }

    /// A reference for a gradient. Of an array of a cycle it does not retain the block: who comes back with it after
    /// the cycle finds the array that it makes of it ended.
    pub(crate) fn for_gradient(&self) -> Self {
        let mut share = self.clone();
        if share.retention() == Retention::BEGUN || self.retention() == Retention::BEGUN {
            share.release();
        }
        share
    }

    fn release(&mut self) {
        if matches!(self.retention(), Retention::BEGUN | Retention::PASSED) {
            self.word = Storage::word(self.id(), Retention::NO);
            if let Some(part) = self.part() {
                block::release(part.block);
            }
        }
    }

    /// Notes who is charged for the bytes of a fresh storage, of which nobody knows yet, and whether for an array too.
    #[inline(always)]
    pub(crate) fn charged_to(&self, payer: u32, with_array: bool) {
        let marks = if with_array { payer | AHEAD } else { payer };
        // Relaxed: published with the storage.
        self.cell.marks.store(marks, Ordering::Relaxed);
    }

    /// Whether this budget, or none, counts the array already that is to be linked with these bytes.
    #[inline(always)]
    pub(crate) fn is_counted_ahead(&self, payer: u32) -> bool {
        // Relaxed: the caller's own, or a guess.
        ahead_of(self.cell.marks.load(Ordering::Relaxed)) == payer
    }

    /// Whether the bytes are a part of an arena's block, of a storage that was made just now.
    #[inline(always)]
    pub(crate) fn is_made_in_arena(&self) -> bool {
        self.retention() == Retention::NO
    }

    /// Notes in the trace that an array of this line has the bytes, unless they are a workspace's, or the array is a
    /// view.
    #[cold]
    pub(crate) fn trace(&self, site: Site, manager: u64) {
        if self.retention() == Retention::MADE && self.buffer().is_counted() && trace::takes_next() {
            // Relaxed: as yet nobody else knows the storage; who drops it has it from who publishes it.
            self.cell.marks.store(self.cell.marks.load(Ordering::Relaxed) | TRACED, Ordering::Relaxed);
            let about = (self.id(), trace::device_number(self.buffer().device()));
            trace::note(trace::Kind::Made, about, bytes_of(self.id()), manager, Some(site));
        }
    }

    /// Takes the bytes out of the budget that they are charged to.
    pub(crate) fn leave_budget(&self) {
        // To none is never refused.
        let _ = charge(self.id(), 0, true, |_, _| true);
    }

    /// References now.
    pub(crate) fn references(&self) -> u32 {
        // Acquire: pairs with the Release in the drops of references that went before: who writes because it finds
        // itself alone (`ops/call/reuse.rs`) does so after their reads.
        self.cell.refs.load(Ordering::Acquire)
    }

    /// Its version: changes so far, on from where the cell's last storage ended.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: its partner is the Release of `users` in `Writing::drop`, and found in `is_readable`, by who reads
        // the bytes too; this load alone would tell the number and not what was written.
        self.cell.version.load(Ordering::Acquire)
    }

    /// Whether this thread may read the bytes of an array that it announced: nobody writes into them, and no other
    /// thread will without finding the announcement. If not, it announces again before it asks again.
    #[inline(always)]
    pub(crate) fn is_readable(&self, context: &ThreadContext) -> bool {
        // Acquire: pairs with the Release in `Writing::drop`: a reader that finds no writer sees what was written.
        let users = self.cell.users.load(Ordering::Acquire);
        if users == SHARED || users == alone(context) {
            return true;
        }
        self.ask(users);
        false
    }

    /// Takes the bytes from the thread that alone used them, for all; from one that writes, the next time. The caller
    /// announces an array with them.
    #[cold]
    fn ask(&self, users: u32) {
        if users & WRITES != 0 {
            // Relaxed: a wish.
            self.cell.wanted.store(1, Ordering::Relaxed);
            return;
        }
        if let Some(part) = self.part() {
            // First, so that who finds the bytes shared and uses them was told of.
            block::share(part.block);
        }
        // Release: pairs with the Acquire of a writer that finds the bytes shared (`write`), which then sees the
        // announcement in the record.
        let _ = self.cell.users.compare_exchange(users, SHARED, Ordering::Release, Ordering::Relaxed);
    }
}

impl Clone for Storage {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the reference cloned from keeps the count above 0.
        if self.cell.refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
            // Two billion references: only leaked ones get here, and wrapping would be unsound.
            std::process::abort();
        }
        let retention = match self.retention() {
            Retention::MADE | Retention::NEVER => Retention::NEVER,
            before => {
                if let Some(part) = self.part() {
                    block::retain(part.block);
                }
                if before == Retention::NO { Retention::BEGUN } else { Retention::PASSED }
            }
        };
        Storage::of(self.cell, self.id(), retention)
    }
}

impl Storage {
    /// Gives the reference up, as its drop does, by who has the thread's context at hand.
    #[inline(always)]
    pub(crate) fn end(self, context: &ThreadContext) {
        let mut this = ManuallyDrop::new(self);
        if this.give_up() {
            this.end_cell(context);
        }
    }

    /// One reference less. Whether it was the last one.
    #[inline(always)]
    fn give_up(&mut self) -> bool {
        self.release();
        let refs = &self.cell.refs;
        // Acquire: pairs with the Release below in the references that went before. A count of 1 is this one's
        // own, from which alone another could be made.
        if refs.load(Ordering::Acquire) != 1 && refs.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        // Acquire: as above, for the second way into here.
        refs.load(Ordering::Acquire);
        true
    }

    /// The end of the last reference: the bytes go back, and the cell becomes free.
    #[inline(always)]
    fn end_cell(&self, context: &ThreadContext) {
        let (cell, index) = (self.cell, self.id());
        // Relaxed, here and below: the cell is this thread's now.
        let (marks, bytes) = (cell.marks.load(Ordering::Relaxed), cell.bytes());
        let part = if (PLANNED..FREE).contains(&marks) { self.part() } else { None };
        cell.refs.store(0, Ordering::Relaxed);
        // SAFETY: this was the last reference, and all uses through others happened before.
        cell.buffer.with_mut(|b| unsafe { b.replace(PackedBuffer::NONE) }).end(bytes);
        if marks != 0 {
            cell.marks.store(0, Ordering::Relaxed);
            match part {
                Some(part) => context.workspaces.request_ended(part, marks),
                None if marks == FREE => {}
                None => notify_end(index, marks, bytes as u64),
            }
        }
        context.storages.put(index, &CELLS);
    }
}

impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        if self.give_up() {
            with_context(|context| self.end_cell(context));
        }
    }
}

/// A thread leaves: its stock goes back.
pub(crate) fn flush(context: &ThreadContext) {
    context.storages.empty(&CELLS);
}

/// Notifies of the end of a storage whom its begin was noted with: the budget that pays, and the trace.
#[cold]
#[inline(never)]
fn notify_end(id: u32, marks: u32, bytes: u64) {
    if marks & TRACED != 0 {
        trace::note(trace::Kind::Freed, (id, 0), bytes, 0, None);
    }
    let payer = marks & !TRACED;
    if payer < PLANNED {
        // First: with its last bytes the node may end.
        if payer & AHEAD != 0 {
            budget::revoke_array(payer & !AHEAD);
        }
        budget::discharge(payer & !AHEAD, bytes);
    }
}

/// The budget that counts an array ahead, by the marks of a cell; 0 if none does.
#[inline(always)]
fn ahead_of(marks: u32) -> u32 {
    if marks & (PLANNED | AHEAD) == AHEAD { marks & !(AHEAD | TRACED) } else { 0 }
}

/// Takes the array that a budget counts ahead, of bytes that the caller knows to be alive. That budget, or 0.
pub(crate) fn take_ahead(id: u32) -> u32 {
    let clear = |now: u32| (ahead_of(now) != 0).then_some(now & !AHEAD);
    // Relaxed: numbers.
    CELLS.get(id).marks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, clear).map_or(0, ahead_of)
}

/// As if no budget had counted an array ahead, of bytes that the caller alone has.
pub(crate) fn revoke_ahead(id: u32) {
    budget::revoke_array(take_ahead(id));
}

/// As [`take_ahead`], if it is this budget that counts it, of bytes that no other array has. Whether it is.
#[inline(always)]
pub(crate) fn take_ahead_of(id: u32, payer: u32) -> bool {
    let StorageCell { marks, refs, .. } = CELLS.get(id);
    // Relaxed, here and below: numbers. Nobody else comes to the bytes of the caller's array.
    let before = marks.load(Ordering::Relaxed);
    let is_ahead = before & !TRACED == payer | AHEAD && refs.load(Ordering::Relaxed) == 1;
    if is_ahead {
        marks.store(before & !AHEAD, Ordering::Relaxed);
    }
    is_ahead
}

/// Charges the bytes of the storage in a cell, which the caller knows to be alive, to a budget, or to none; `forced`:
/// also beyond it. They stay where they are unless `moves` accepts whom they are charged to, 0 if to none, and how many
/// references there are.
///
/// # Errors
/// The budget has no room: they are charged to whom they were.
pub(crate) fn charge(
    id: u32,
    to: u32,
    forced: bool,
    moves: impl Fn(u32, u32) -> bool,
) -> std::result::Result<(), OverBudget> {
    let StorageCell { marks, bytes, refs, .. } = CELLS.get(id);
    let mut turns = 0;
    loop {
        // Relaxed, here and below: numbers.
        let before = marks.load(Ordering::Relaxed);
        let ahead = ahead_of(before);
        let from = if ahead != 0 { ahead } else { before & !TRACED };
        if from == MOVING {
            wait_turn(&mut turns);
            continue;
        }
        if from >= PLANNED || from == to || !moves(from, refs.load(Ordering::Relaxed)) {
            return Ok(());
        }
        // Of several that move arrays with these bytes one at a time moves them.
        let moving = before & TRACED | MOVING;
        if marks.compare_exchange(before, moving, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            budget::revoke_array(ahead);
            let moved = budget::transfer(from, to, bytes.load(Ordering::Relaxed), forced);
            marks.store(before & TRACED | if moved.is_ok() { to } else { from }, Ordering::Relaxed);
            return moved;
        }
    }
}

/// Whether the bytes of the storage in a cell are charged to a budget, or to none.
#[inline]
pub(crate) fn is_charged_to(id: u32, payer: u32) -> bool {
    // Relaxed: as above.
    CELLS.get(id).marks.load(Ordering::Relaxed) & !TRACED == payer
}

/// Whether a version is that of a storage which has the cell since the one with the other version ended.
pub(crate) fn is_of_later(version: u64, before: u64) -> bool {
    version / CHANGES != before / CHANGES
}

/// The version of the storage in a cell, or of the last one that was there.
pub(crate) fn version_of(id: u32) -> u64 {
    // Acquire: as in `Storage::version`.
    CELLS.get(id).version.load(Ordering::Acquire)
}

/// Bytes of the storage in a cell, for reports: 0 if the cell is empty or changes hands meanwhile.
pub(crate) fn bytes_of(id: u32) -> u64 {
    // Relaxed: a report.
    CELLS.get(id).bytes.load(Ordering::Relaxed)
}

/// As [`bytes_of`], divided by the references that there are.
pub(crate) fn share_of(id: u32) -> u64 {
    // Relaxed: as above.
    bytes_of(id) / u64::from(CELLS.get(id).refs.load(Ordering::Relaxed).max(1))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::process::Command;

    use super::*;

    /// F4 of design.md, "What attack found".
    #[test]
    fn two_billion_forgotten_references_end_the_process_before_the_count_wraps() {
        const TEST: &str =
            "memory::storage::tests::two_billion_forgotten_references_end_the_process_before_the_count_wraps";
        const CHILD: &str = "NDGC_TEST_COUNT";
        if let Ok(count) = std::env::var(CHILD) {
            let made = with_context(|context| Storage::new(context, "test", Buffer::empty(), 0));
            let storage = made.expect("a cell");
            storage.cell.refs.store(count.parse().expect("a number"), Ordering::Relaxed);
            std::mem::forget((storage.clone(), storage));
            return;
        }
        let counted = |count: u32| {
            let mut child = Command::new(std::env::current_exe().expect("this program"));
            child.args(["--exact", TEST]).env(CHILD, count.to_string()).output().expect("a process").status
        };
        assert!(counted(u32::MAX / 2).success());
        assert_eq!(counted(u32::MAX / 2 + 1).code(), None, "it was aborted");
    }
}
