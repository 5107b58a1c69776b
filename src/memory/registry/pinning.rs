//! Using arrays: they are announced, and stay readable until the announcement is withdrawn (`hazard.rs`); and the one
//! use that nobody else may have beside it, the exchange of what an array holds.
//!
//! The unsafe code rests on announcements: while one stands, nobody ends, exchanges or writes what it is of.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::{ArrayBody, ArrayRef, ArraySlot, OwnedArray, describe, ending, is_open, slot, stale, stale_operand};
use crate::base::{
    error::{Closer, Error, Result},
    sync::{Ordering, fence, wait_turn},
};
use crate::memory::{
    hazard::PLACES,
    key::Key,
    owner::{self, Entry},
    slot::{BUSY, CLOSING, CYCLE, OPEN, Slot, generation_of},
    threads::{self, ThreadContext},
};

/// Arrays in use: their bodies stay readable until this drops, whoever closes them meanwhile.
///
/// It does not say that they are still open. The announcements stand in consecutive places of the record.
#[derive(Debug)]
pub(crate) struct Pins<'a, const N: usize> {
    keys: [Key; N],
    cells: [&'static ArraySlot; N],
    context: &'a ThreadContext,
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
        // SAFETY: host memory of a storage that the array keeps for `'p`; initialised when it was handed out, and
        // written by nobody while the array is announced, but by this thread if it holds a `Writing`, under which
        // nobody asks.
        buffer.device().is_cpu().then(|| unsafe { buffer.span().slice() })
    }
}

impl<const N: usize> Pins<'_, N> {
    /// The arrays, for as long as this is borrowed.
    #[inline(always)]
    pub(crate) fn arrays(&self) -> [Pinned<'_>; N] {
        std::array::from_fn(|i| {
            let cell = self.cells[i];
            // SAFETY: announced and then seen open and not busy by `try_pin`; the announcement stands until `self`
            // drops.
            let held = unsafe { cell.core.body() };
            Pinned { array: array_of(cell, held), key: self.keys[i], place: self.first_place + i }
        })
    }
}

/// What an open slot holds, which the caller announces. Its metadata stays as long as the proxies that he borrows.
#[inline(always)]
fn array_of<'p>(cell: &'static ArraySlot, held: &'p ArrayBody) -> ArrayRef<'p> {
    let metadata = cell.metadata.get().expect("an open slot has metadata");
    ArrayRef { dtype: metadata.dtype, layout: &metadata.layout, storage: &held.storage, node: &held.node }
}

impl<const N: usize> Drop for Pins<'_, N> {
    // Where it is a call, all of it has a place in memory.
    #[inline(always)]
    fn drop(&mut self) {
        release(self.context, self.first_place, self.keys, self.cells);
    }
}

/// Withdraws announcements; the last reader of an array that is closing finishes it.
#[inline(always)]
fn release<const N: usize>(context: &ThreadContext, first_place: usize, keys: [Key; N], cells: [&ArraySlot; N]) {
    context.record.hazards.withdraw(first_place, N);
    context.used_places.set(first_place);
    for (key, cell) in keys.into_iter().zip(cells) {
        if cell.core.state() & CLOSING != 0 {
            ending::finish_if_free(context, key);
        }
    }
}

/// Announces arrays of which the caller borrows proxies for `'a`, if all of them can be used now.
#[inline(always)]
fn try_pin<'a, const N: usize>(context: &'a ThreadContext, keys: [Key; N], user: bool) -> Option<Pins<'a, N>> {
    // Places are taken and given back like a stack: pins are locals of nested calls.
    let first = context.used_places.get();
    if first + N > PLACES {
        return None;
    }
    context.used_places.set(first + N);
    let cells = keys.map(|key| slot(key.index()));
    context.record.hazards.announce(first, keys.map(Key::index), user);
    let (mut usable, mut of_cycle) = (true, 0);
    for (key, cell) in keys.iter().zip(cells) {
        let state = cell.core.state();
        let open = generation_of(state) == key.generation() && state & (OPEN | BUSY) == OPEN;
        usable &= open && cell.is_looked_for(context, state);
        of_cycle |= state & CYCLE;
    }
    if !usable {
        release(context, first, keys, cells);
        return None;
    }
    let mut readable = true;
    for cell in cells {
        // SAFETY: announced above, then seen open and not busy.
        let held: &ArrayBody = unsafe { cell.core.body() };
        readable &= held.storage.is_readable(context);
    }
    if of_cycle != 0 {
        // After the look at the storage: by then whoever ends the cycle was told that this thread reads (`storage.rs`).
        // Invariant I12 (design.md).
        for cell in cells {
            readable &= cell.core.state() & CYCLE == 0 || cell.is_live();
        }
    }
    if !readable {
        release(context, first, keys, cells);
        return None;
    }
    Some(Pins { keys, cells, context, first_place: first, _thread: PhantomData })
}

/// Why arrays were not announced, asked when nothing is announced any more. `Ok`: one of them is being written or
/// exchanged, or was the first time.
#[cold]
fn hindrance<const N: usize>(context: &ThreadContext, op: &'static str, keys: [Key; N]) -> Result<()> {
    if context.used_places.get() + N > PLACES {
        return Err(Error::in_use(op, name_first(keys), "this thread, with 15 others"));
    }
    for (operand, key) in keys.into_iter().enumerate() {
        let cell = slot(key.index());
        let state = cell.core.state();
        let same = generation_of(state) == key.generation();
        let is_busy = same && state & (OPEN | BUSY) == OPEN | BUSY;
        if !(is_busy || same && cell.is_usable(state)) {
            return Err(stale_operand(op, key, operand));
        }
    }
    Ok(())
}

/// Announces several arrays at once. Waits, holding none of them, while one is being written.
#[inline(always)]
pub(crate) fn pin<'a, const N: usize>(
    context: &'a ThreadContext,
    op: &'static str,
    mut keys: [Key; N],
    user: bool,
) -> Result<Pins<'a, N>> {
    // Made in one place: a result that a call could have written too would be copied out of memory.
    let mut turns = 0;
    loop {
        if let Some(pins) = try_pin(context, keys, user) {
            return Ok(pins);
        }
        // The keys anew, so that nothing that follows from them is kept for a second try.
        keys = wait(context, op, keys, &mut turns)?;
    }
}

/// Waits a turn for arrays that could not be announced. Their keys.
#[cold]
#[inline(never)]
fn wait<const N: usize>(
    context: &ThreadContext,
    op: &'static str,
    keys: [Key; N],
    turns: &mut u32,
) -> Result<[Key; N]> {
    hindrance(context, op, keys)?;
    if *turns > 1 << 20 {
        return Err(Error::in_use(op, name_first(keys), "an operation that writes in place"));
    }
    wait_turn(turns);
    Ok(keys)
}

fn name_first<const N: usize>(keys: [Key; N]) -> String {
    keys.first().map_or_else(String::new, |&key| describe(key))
}

/// As [`pin`], without waiting: `None` if one of the arrays is being written.
#[inline]
pub(crate) fn pin_now<'a, const N: usize>(
    context: &'a ThreadContext,
    op: &'static str,
    keys: [Key; N],
) -> Result<Option<Pins<'a, N>>> {
    let pins = try_pin(context, keys, false);
    if pins.is_none() {
        hindrance(context, op, keys)?;
    }
    Ok(pins)
}

/// Exchanges the body of an open array for another, for all its handles at once. What it held is returned.
///
/// Readers are kept out first, and waited for while they can still move on; then the array is taken from its owner,
/// so that nobody ends it during the exchange.
pub(crate) fn exchange(context: &ThreadContext, op: &'static str, key: Key, body: OwnedArray) -> Result<ArrayBody> {
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
    while let Some(mine) = announcer(context, key.index()) {
        if mine || turns > 1 << 16 {
            return Err(Error::in_use(op, describe(key), "a call that has not ended"));
        }
        wait_turn(&mut turns);
    }
    let Some(owner) = owner::take(cell, key.generation()) else {
        return Err(stale(op, key));
    };
    // Relaxed: published with the end of `BUSY`; until then no announcement leads to a use.
    cell.storage.store(body.storage.id() + 1, Ordering::Relaxed);
    // SeqCst: pairs with the fence in `heavy` of a writer of the new bytes. If that one comes first, whoever reads
    // after `BUSY` finds that somebody writes; if this one does, the writer finds these bytes behind the reader's
    // announcement.
    fence(Ordering::SeqCst);
    let metadata = body.metadata();
    // SAFETY: this thread set `BUSY`, issued the barrier, and found no announcement; and it took the array from its
    // owner, so that nobody closes it.
    let old = unsafe { cell.core.replace(ArrayBody { storage: body.storage, node: body.node }) };
    cell.metadata.turn(key.index(), metadata);
    if owner::put((key.index(), cell), owner, Entry::Returned).is_err() {
        ending::close_taken(context, &[key], Closer::Manager, None);
    }
    old.ok_or_else(|| stale(op, key))
}

/// Lets readers in again.
struct Ready<'a>(&'a Slot<ArrayBody>);

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.0.clear(BUSY);
    }
}

/// Whether a thread announces the slot, and whether it is this one.
fn announcer(context: &ThreadContext, index: u32) -> Option<bool> {
    let mut found = None;
    threads::for_each_record(|record| {
        if record.hazards.announces(index) {
            found = Some(std::ptr::eq(record, context.record) || found == Some(true));
        }
    });
    found
}
