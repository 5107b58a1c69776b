//! Using arrays: they are announced, and stay readable until the announcement is withdrawn (`hazard.rs`); and the one
//! use that nobody else may have beside it, the exchange of what an array holds.
//!
//! The unsafe code rests on announcements: while one stands, nobody ends, exchanges or writes what it is of.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::slice;

use crate::base::{
    error::{Closer, Error, Result},
    sync::{Ordering, fence, wait_turn},
};
use crate::memory::{
    hazard::PLACES,
    key::Key,
    owner::{self, Entry},
    registry::{
        diagnostics::{describe, stale, stale_operand},
        ending,
        slots::{ArrayBody, ArrayRef, ArraySlot, OwnedArray, cycle_of, is_open, slot},
    },
    slot::{BUSY, CLOSING, CYCLE, GUARDED, OPEN, SHARED, Slot, TURNED, generation_of},
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
        buffer.device().is_cpu().then(|| {
            let span = buffer.span();
            // SAFETY: host memory of a storage that the array keeps for `'p`; initialised when it was handed out, and
            // written by nobody while the array is announced, but by this thread if it holds a `Writing`, under which
            // nobody asks.
            unsafe { slice::from_raw_parts(span.ptr().as_ptr(), span.bytes()) }
        })
    }
}

impl<const N: usize> Pins<'_, N> {
    /// The arrays, for as long as this is borrowed.
    #[inline(always)]
    pub(crate) fn arrays(&self) -> [Pinned<'_>; N] {
        std::array::from_fn(|i| {
            let cell = self.cells[i];
            // SAFETY: announced and then seen open and not busy by `announce`; the announcement stands until `self`
            // drops.
            let held = unsafe { cell.core.body() };
            Pinned { array: array_of(cell, held), key: self.keys[i], place: self.first_place + i }
        })
    }
}

/// What an open slot holds, which the caller announces. Its metadata stays as long as the proxies that he borrows.
#[inline(always)]
fn array_of<'p>(cell: &'static ArraySlot, held: &'p ArrayBody) -> ArrayRef<'p> {
    let metadata = cell.metadata.get(cell.core.state());
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
        finish_if_closing(context, key, cell);
    }
}

#[inline(always)]
fn finish_if_closing(context: &ThreadContext, key: Key, cell: &ArraySlot) {
    if cell.core.state() & CLOSING != 0 {
        ending::finish_if_free(context, key);
    }
}

/// Slots that are announced, and the first of their places.
type Announced<const N: usize> = ([&'static ArraySlot; N], usize);

/// Announces arrays, if all of them can be used now.
#[inline(always)]
fn announce<const N: usize>(context: &ThreadContext, keys: [Key; N], user: bool) -> Option<Announced<N>> {
    // Places are taken and given back like a stack: pins are locals of nested calls.
    let first = context.used_places.get();
    if first + N > PLACES {
        return None;
    }
    context.used_places.set(first + N);
    let cells = keys.map(|key| slot(key.index()));
    context.record.hazards.announce(first, keys.map(Key::index), user);
    let (mut differs, mut of_cycle) = (0, 0);
    for (&key, cell) in keys.iter().zip(cells) {
        let state = cell.core.state();
        differs |= from_plain(state, key, cell.maker() ^ context.number);
        of_cycle |= state & CYCLE;
    }
    // By a copy, so that the keys themselves need no place in memory.
    let mut usable =
        differs == 0 || differs == GUARDED && are_readable(context, cells) || are_usable(context, &{ keys });
    if of_cycle != 0 {
        // After the look at the storage: by then whoever ends the cycle was told that this thread reads (`storage.rs`);
        // of bytes that only their workspace's thread uses it looks at that thread's record always.
        // Invariant I12 (design.md).
        for cell in cells {
            usable &= cell.core.state() & CYCLE == 0 || cell.is_live();
        }
    }
    if !usable {
        give_back(context, first, &{ keys });
        return None;
    }
    Some((cells, first))
}

/// In which bits a state differs from that of the key's array if it is open and not busy, and no other thread than the
/// one that made it uses the array, or writes its bytes without a word to its readers (`Slot::guard`). If in none, that
/// thread may use it. `another`: not 0 if the caller is another thread; then they differ where the generation stands.
#[inline(always)]
fn from_plain(state: u64, key: Key, another: u32) -> u64 {
    (state ^ key.open_word(OPEN)) & (u64::MAX << 32 | OPEN | BUSY | SHARED | GUARDED) | u64::from(another) << 32
}

/// Whether nobody writes the bytes of arrays that this thread made, announced, and found open and not busy.
#[inline(always)]
fn are_readable<const N: usize>(context: &ThreadContext, cells: [&'static ArraySlot; N]) -> bool {
    let mut readable = true;
    for cell in cells {
        // SAFETY: announced, and then seen open and not busy, as the caller says.
        readable &= unsafe { cell.core.body() }.storage.is_readable(context);
    }
    readable
}

/// Whether announced arrays of any state can be used, but for the ends of their cycles. What is in the way of this
/// thread alone is out of it when the caller tries again.
#[inline(never)]
fn are_usable(context: &ThreadContext, keys: &[Key]) -> bool {
    let mut usable = true;
    for &key in keys {
        let cell = slot(key.index());
        let state = cell.core.state();
        let open = generation_of(state) == key.generation() && state & (OPEN | BUSY) == OPEN;
        // SAFETY: the caller announced it, and it was seen open and not busy after that.
        usable &=
            open && cell.is_looked_for(context, state) && unsafe { cell.core.body() }.storage.is_readable(context);
    }
    usable
}

/// As [`release`], of keys in memory.
#[cold]
#[inline(never)]
fn give_back(context: &ThreadContext, first_place: usize, keys: &[Key]) {
    context.record.hazards.withdraw(first_place, keys.len());
    context.used_places.set(first_place);
    for &key in keys {
        finish_if_closing(context, key, slot(key.index()));
    }
}

/// Why arrays were not announced. A word, so that the pins of a success stay in registers.
#[derive(Debug)]
pub(crate) struct NotPinned(Box<Error>);

impl From<Error> for NotPinned {
    #[cold]
    fn from(error: Error) -> Self {
        NotPinned(Box::new(error))
    }
}

impl From<NotPinned> for Error {
    #[cold]
    fn from(NotPinned(error): NotPinned) -> Self {
        *error
    }
}

/// Why arrays were not announced, asked when nothing is announced any more. `Ok`: one of them is being written or
/// exchanged, or was the first time.
#[cold]
fn hindrance(context: &ThreadContext, op: &'static str, keys: &[Key]) -> Result<()> {
    if context.used_places.get() + keys.len() > PLACES {
        return Err(Error::in_use(op, name_first(keys), "this thread, with 15 others"));
    }
    for (operand, &key) in keys.iter().enumerate() {
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

/// Announces several arrays at once, of which the caller borrows proxies for `'a`. Waits, holding none of them, while
/// one is being written.
#[inline(always)]
pub(crate) fn pin<'a, const N: usize>(
    context: &'a ThreadContext,
    op: &'static str,
    keys: [Key; N],
    user: bool,
) -> std::result::Result<Pins<'a, N>, NotPinned> {
    pin_if(context, op, keys, user, None)
}

/// What may have something against arrays that are announced for an operation.
pub(crate) type Refuses = fn(&'static str, &[Pinned<'_>]) -> Result<()>;

/// As [`pin`], if nobody has anything against it.
#[inline(always)]
pub(crate) fn pin_if<'a, const N: usize>(
    context: &'a ThreadContext,
    op: &'static str,
    keys: [Key; N],
    user: bool,
    refuses: Option<Refuses>,
) -> std::result::Result<Pins<'a, N>, NotPinned> {
    let announced = match announce(context, keys, user) {
        Some(announced) => announced,
        None => announce_later(context, op, keys, user)?,
    };
    if let Some(refuses) = refuses {
        ask(context, op, keys, announced, refuses)?;
    }
    // In one place, after all that may fail: what is given up where it does has a place in memory, and is copied out of
    // it when it moves.
    let (cells, first_place) = announced;
    Ok(Pins { keys, cells, context, first_place, _thread: PhantomData })
}

/// Withdraws what is announced if somebody has something against it.
#[cold]
#[inline(never)]
fn ask<const N: usize>(
    context: &ThreadContext,
    op: &'static str,
    keys: [Key; N],
    (cells, first_place): Announced<N>,
    refuses: Refuses,
) -> std::result::Result<(), NotPinned> {
    let pins = Pins { keys, cells, context, first_place, _thread: PhantomData };
    refuses(op, &pins.arrays())?;
    // The caller has the announcements.
    std::mem::forget(pins);
    Ok(())
}

/// Announces arrays that could not be announced at once, as soon as they can be.
#[cold]
#[inline(never)]
fn announce_later<const N: usize>(
    context: &ThreadContext,
    op: &'static str,
    keys: [Key; N],
    user: bool,
) -> std::result::Result<Announced<N>, NotPinned> {
    let mut turns = 0;
    loop {
        hindrance(context, op, &keys)?;
        if turns > 1 << 20 {
            return Err(Error::in_use(op, name_first(&keys), "an operation that writes in place").into());
        }
        wait_turn(&mut turns);
        if let Some(announced) = announce(context, keys, user) {
            return Ok(announced);
        }
    }
}

fn name_first(keys: &[Key]) -> String {
    keys.first().map_or_else(String::new, |&key| describe(key))
}

/// As [`pin`], without waiting: `None` if one of the arrays is being written.
#[inline]
pub(crate) fn pin_now<'a, const N: usize>(
    context: &'a ThreadContext,
    op: &'static str,
    keys: [Key; N],
) -> Result<Option<Pins<'a, N>>> {
    let Some((cells, first_place)) = announce(context, keys, false) else {
        hindrance(context, op, &keys)?;
        return Ok(None);
    };
    Ok(Some(Pins { keys, cells, context, first_place, _thread: PhantomData }))
}

/// Exchanges the body of an open array for another, for all its handles at once. What it held is returned.
///
/// Readers are kept out first, and waited for while they can still move on; then the array is taken from its owner,
/// so that nobody ends it during the exchange.
pub(crate) fn exchange(context: &ThreadContext, op: &'static str, key: Key, mut body: OwnedArray) -> Result<ArrayBody> {
    let cell = slot(key.index());
    let own = cycle_of(key);
    body.storage.taken_over(own);
    let is_tracked = own.is_some() && body.node.is_some();
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
    let Some((owner, mut counted)) = owner::take_to_move(context, cell, key.generation()) else {
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
    let turned = cell.metadata.turn(key.index(), cell.core.state(), metadata);
    // The bytes may be another thread's, or those of other arrays too.
    cell.core.set(if turned { GUARDED | TURNED } else { GUARDED });
    if counted.put((key.index(), cell), owner, Entry::Returned).is_err() {
        ending::close_taken(context, &[key], Closer::Manager, None);
    }
    if is_tracked {
        context.workspaces.track(key);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::memory::{
        proxy::Proxy,
        storage::writing::claim,
        tests::{view, with_array, zeros},
        threads::with_context,
    };

    fn is_guarded(array: &Proxy) -> bool {
        slot(array.key().index()).core.state() & GUARDED != 0
    }

    /// The array that was made with its bytes is read without a look at them, until another thread is about to write
    /// them: through a view, which it asks for.
    #[test]
    fn who_does_not_ask_is_told_before_another_thread_writes() -> Result<()> {
        let array = zeros(4);
        let view = view(&array)?;
        assert!(!is_guarded(&array) && is_guarded(&view));
        let ((writes, is_written), (go_on, may_go_on)) = (channel(), channel());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                with_array(&view, |context, target| {
                    let writing = target.storage.write(context, "test", target)?.expect("nobody reads");
                    let _ = writes.send(());
                    let _ = may_go_on.recv();
                    drop(writing);
                    Ok(())
                })
            });
            is_written.recv().expect("the other thread writes");
            let found = with_context(|context| pin_now(context, "test", [array.key()]).map(|pins| pins.is_some()));
            let _ = go_on.send(());
            assert!(!found?, "the bytes are being written");
            assert!(is_guarded(&array));
            assert_eq!(array.to_vec::<f32>()?, [0.0; 4]);
            Ok(())
        })
    }

    /// An optimiser takes bytes for its thread's own through a view: who reads them afterwards without that he asks is
    /// in its way as any reader.
    #[test]
    fn who_does_not_ask_is_told_before_bytes_become_another_threads_own() -> Result<()> {
        let array = zeros(4);
        let view = view(&array)?;
        let ((claims, is_claimed), (go_on, may_go_on)) = (channel(), channel());
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                let storage = with_array(&view, |_, target| Ok(target.storage.clone()))?;
                with_context(|context| claim(context, &[storage]));
                let _ = claims.send(());
                let _ = may_go_on.recv();
                with_array(&view, |context, target| {
                    target.storage.write(context, "test", target).map(|writing| writing.is_some())
                })
            });
            is_claimed.recv().expect("the other thread claims");
            array.with_slice(|_: &[f32]| {
                let _ = go_on.send(());
                let written = other.join().expect("no panic");
                assert!(matches!(written, Err(Error::InUse { .. })), "{written:?}");
            })
        })
    }

    /// Whatever the numbers of their records: none is taken for a bit of the state.
    #[test]
    fn another_threads_array_is_never_a_plain_one() {
        let key = Key::new(7, 3);
        for state in [OPEN, OPEN | GUARDED, OPEN | CYCLE] {
            let state = 3 << 32 | state;
            assert_eq!(from_plain(state, key, 0), state & GUARDED);
            for bit in 0..32 {
                assert!(from_plain(state, key, 1 << bit) & !GUARDED != 0, "{bit}");
            }
        }
    }

    /// What an array has after an exchange may be another thread's, or other arrays' too.
    #[test]
    fn an_exchanged_array_asks() -> Result<()> {
        let (array, other) = (zeros(4), zeros(3));
        let view = view(&other)?;
        let body = with_array(&other, |_, other| {
            Ok(OwnedArray { dtype: other.dtype, layout: *other.layout, storage: other.storage.clone(), node: None })
        })?;
        with_context(|context| exchange(context, "test", array.key(), body))?;
        assert!(is_guarded(&array) && is_guarded(&view));
        Ok(())
    }
}
