//! Host memory for arrays: 64-byte aligned blocks, kept for reuse.
//!
//! Blocks up to 32 KiB have 8 sizes a doubling (at most 12.5 % over), from 64 bytes, and wait in the thread that freed
//! them, so that the usual allocation and its free touch nothing shared; larger ones, and what a thread has too many
//! of, wait in the store (`store.rs`), which splits and merges them and bounds resident memory.
//!
//! Every byte handed out is initialised: it is zero, or was written by its last owner.

use std::cell::{Cell, OnceCell};
use std::ptr::NonNull;

use crate::base::system;
use crate::device::{
    budget::AllocError,
    host::{
        counts::{self, Share, discharge},
        store::{Pages, TakenBlock, store},
    },
    span::Span,
};

#[cfg(feature = "bench")]
pub(crate) use crate::device::host::counts::refuse;
pub(crate) use crate::device::host::counts::{
    largest_free, limit_of, physical_limit, raise_peak, reset_peak, set_limit, set_physical_limit, stats,
    unreadable_limit,
};
pub(crate) use crate::device::host::store::SMALL_MAX;

/// Alignment of every block: a cache line, and the widest vector.
const ALIGN: usize = 64;
/// Classes of small blocks.
const CLASSES: usize = 56;
/// Bytes of one class that a thread keeps.
const STOCK_CLASS_BYTES: usize = 128 << 10;
/// Blocks of one class that a thread keeps, whatever their size: at least and at most.
const LIST_MIN: usize = 4;
const LIST_MAX: usize = 64;

/// Class and size of a small request: size is a multiple of 64 with 8 steps a doubling.
#[inline(always)]
pub(super) fn class_of(bytes: usize) -> (usize, usize) {
    let units = bytes.div_ceil(ALIGN);
    if units <= 8 {
        return (units - 1, units * ALIGN);
    }
    let shift = (units - 1).ilog2() as usize - 3;
    let step = (units - 1) >> shift;
    (shift * 8 + step, ((step + 1) << shift) * ALIGN)
}

const fn class_size(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * ALIGN;
    }
    let (shift, step) = ((class - 8) / 8, (class - 8) % 8 + 8);
    ((step + 1) << shift) * ALIGN
}

/// Blocks that a thread keeps of each class.
const KEPT: [usize; CLASSES] = {
    let (mut kept, mut class) = ([0; CLASSES], 0);
    while class < CLASSES {
        let fit = STOCK_CLASS_BYTES / class_size(class);
        kept[class] = if fit < LIST_MIN {
            LIST_MIN
        } else if fit > LIST_MAX {
            LIST_MAX
        } else {
            fit
        };
        class += 1;
    }
    kept
};

/// Free blocks of one class: the first `len`. Addresses and numbers apart, each as wide as it is written: a block that
/// was just put in is mostly the next one that is taken, and a wider read would wait for both writes.
struct FreeList {
    len: Cell<usize>,
    room: OnceCell<Box<Room>>,
}

/// Room for the blocks of a list.
struct Room {
    addresses: [Cell<NonNull<u8>>; LIST_MAX],
    numbers: [Cell<u32>; LIST_MAX],
}

/// Address and number of a block.
type Block = (NonNull<u8>, u32);

impl FreeList {
    #[inline(always)]
    fn pop(&self) -> Option<Block> {
        let room = self.room.get()?;
        let last = self.len.get().checked_sub(1)?;
        let (address, number) = (room.addresses.get(last)?.get(), room.numbers.get(last)?.get());
        self.len.set(last);
        Some((address, number))
    }

    /// Puts a block in; the caller looked that the list is not full.
    #[inline(always)]
    fn push(&self, block: Span) {
        let (at, room) = (self.len.get(), self.room.get_or_init(empty_room));
        room.addresses[at].set(block.ptr());
        room.numbers[at].set(block.block());
        self.len.set(at + 1);
    }

    /// Gives the first ones to the store, from the cache of the thread with this share.
    #[cold]
    #[inline(never)]
    fn give(&self, share: &Share, count: usize, size: usize, pages: Pages) {
        let (Some(Room { addresses, numbers }), len) = (self.room.get().map(|room| &**room), self.len.get()) else {
            return;
        };
        let blocks = addresses[..count].iter().zip(&numbers[..count]);
        store(|store| {
            share.tell(store, count * size);
            blocks.for_each(|(address, number)| store.put(Span::in_block(address.get(), size, number.get()), pages));
        });
        for at in count..len {
            addresses[at - count].set(addresses[at].get());
            numbers[at - count].set(numbers[at].get());
        }
        self.len.set(len - count);
    }
}

#[cold]
#[inline(never)]
fn empty_room() -> Box<Room> {
    Box::new(Room {
        addresses: [const { Cell::new(NonNull::dangling()) }; LIST_MAX],
        numbers: [const { Cell::new(0) }; LIST_MAX],
    })
}

/// What a thread keeps.
struct ThreadCache {
    share: &'static Share,
    lists: [FreeList; CLASSES],
}

impl ThreadCache {
    fn new() -> Self {
        counts::read_limits_once();
        ThreadCache {
            share: Share::take(),
            lists: [const { FreeList { len: Cell::new(0), room: OnceCell::new() } }; CLASSES],
        }
    }

    #[inline(always)]
    fn take(&self, class: usize, size: usize) -> Option<Block> {
        let block = self.lists[class].pop()?;
        self.share.hit(size);
        Some(block)
    }

    /// As [`ThreadCache::take`], counted for an array of so many bytes. A call, with all that it has and gives in
    /// registers.
    #[inline(never)]
    fn take_at_once(&self, class: usize, size: usize, bytes: usize) -> Option<Block> {
        let block = self.take(class, size)?;
        self.share.charge(bytes);
        Some(block)
    }

    /// As [`ThreadCache::take_at_once`], where there is a limit, and it is far.
    fn take_within(&self, class: usize, size: usize, bytes: usize) -> Option<Block> {
        // Looked at first: what is counted for a moment only may refuse what others ask for.
        if self.lists[class].len.get() == 0 {
            return None;
        }
        let grant = counts::grant_far(self.share, bytes)?;
        grant.take(bytes);
        self.take(class, size)
    }

    #[inline]
    fn put(&self, class: usize, block: Span) {
        let size = block.bytes();
        let list = &self.lists[class];
        if list.len.get() >= KEPT[class] {
            list.give(self.share, list.len.get() / 2, size, Pages::Kept);
        }
        list.push(block);
        self.share.cache(size);
    }

    fn empty(&self) {
        for (class, list) in self.lists.iter().enumerate() {
            list.give(self.share, list.len.get(), class_size(class), Pages::Returned);
        }
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        if system::is_forked_child() {
            return;
        }
        self.empty();
        self.share.give_back();
    }
}

thread_local! {
    static THREAD_CACHE: ThreadCache = ThreadCache::new();
}

/// Bytes for an array: its block.
#[inline(always)]
fn alloc_bytes(cache: Option<&ThreadCache>, bytes: usize) -> Result<TakenBlock, AllocError> {
    let share = cache.map(|cache| cache.share);
    let grant = counts::grant(share, bytes).ok_or(AllocError::Exhausted)?;
    let (class, size) = if bytes <= SMALL_MAX { class_of(bytes) } else { (CLASSES, bytes) };
    let found = match cache.filter(|_| class < CLASSES).and_then(|cache| cache.take(class, size)) {
        Some((address, number)) => Some(TakenBlock { span: Span::in_block(address, size, number), touched: size }),
        None => store(|store| {
            counts::tell(share, store);
            store.take(size)
        }),
    };
    match &found {
        Some(_) => grant.take(bytes),
        None => grant.give_back(bytes),
    }
    found.ok_or(AllocError::Exhausted)
}

/// Initialised bytes for an array on the host, the size of their block, and how many of the first ones may be other
/// than zero. An empty request touches nothing. What [`alloc_at_once`] has not.
#[inline]
pub(crate) fn alloc(bytes: usize) -> Result<(Span, usize, usize), AllocError> {
    if bytes == 0 {
        return Ok((Span::empty(), 0, 0));
    }
    let taken =
        THREAD_CACHE.try_with(|cache| alloc_bytes(Some(cache), bytes)).unwrap_or_else(|_| alloc_bytes(None, bytes))?;
    let TakenBlock { span: block, touched } = taken;
    Ok((Span::in_block(block.ptr(), bytes, block.block()), block.bytes(), bytes.min(touched)))
}

/// Counts bytes that did not come from here as if they had. `false`: a limit does not admit them.
#[inline]
pub(crate) fn count(bytes: usize) -> bool {
    let counted = |share| counts::grant(share, bytes).map(|grant| grant.take(bytes)).is_some();
    THREAD_CACHE.try_with(|cache| counted(Some(cache.share))).unwrap_or_else(|_| counted(None))
}

/// Takes back what [`count`] counted.
#[inline]
pub(crate) fn discount(bytes: usize) {
    if THREAD_CACHE.try_with(|cache| discharge(Some(cache.share), bytes)).is_err() {
        discharge(None, bytes);
    }
}

/// Initialised bytes and the size of their block, for [`free`]: if they are some and few, this thread has a block in
/// its cache, and no limit is near. In line, so that the span goes from here to its place in registers.
#[inline(always)]
pub(crate) fn alloc_at_once(bytes: usize) -> Option<(Span, usize)> {
    if !(1..=SMALL_MAX).contains(&bytes) {
        return None;
    }
    let (class, size) = class_of(bytes);
    let taken = if counts::is_limited() {
        take_within(class, size, bytes)
    } else {
        THREAD_CACHE.try_with(move |cache| cache.take_at_once(class, size, bytes)).ok().flatten()
    };
    taken.map(|(address, number)| (Span::in_block(address, bytes, number), size))
}

/// [`ThreadCache::take_within`] of this thread's. A call of its own, so that who needs none keeps nothing for it.
#[cold]
#[inline(never)]
fn take_within(class: usize, size: usize, bytes: usize) -> Option<Block> {
    THREAD_CACHE.try_with(|cache| cache.take_within(class, size, bytes)).ok().flatten()
}

/// Takes back what [`alloc`] gave: a span, and the size of its block.
#[inline]
pub(crate) fn free(span: Span, size: usize) {
    if size == 0 {
        return;
    }
    let block = Span::in_block(span.ptr(), size, span.block());
    let kept = THREAD_CACHE.try_with(|cache| {
        discharge(Some(cache.share), span.bytes());
        if size <= SMALL_MAX { cache.put(class_of(size).0, block) } else { put(Some(cache.share), block, Pages::Kept) }
    });
    if kept.is_err() {
        discharge(None, span.bytes());
        put(None, block, Pages::Kept);
    }
}

/// Gives a block to the store.
#[inline(never)]
fn put(share: Option<&Share>, block: Span, pages: Pages) {
    store(|store| {
        counts::tell(share, store);
        store.put(block, pages);
    });
}

/// As [`free`], and the pages of a large block go back to the system at once.
pub(crate) fn free_to_system(span: Span, size: usize) {
    if size <= SMALL_MAX {
        return free(span, size);
    }
    discount(span.bytes());
    let block = Span::in_block(span.ptr(), size, span.block());
    if THREAD_CACHE.try_with(|cache| put(Some(cache.share), block, Pages::Returned)).is_err() {
        put(None, block, Pages::Returned);
    }
}

/// Gives this thread's blocks and the store's back to the system. Returns the bytes. The blocks that wait
/// in other threads come with those threads' end.
pub(crate) fn trim() -> u64 {
    let before = stats().cached;
    let _ = THREAD_CACHE.try_with(ThreadCache::empty);
    store(|store| store.clear());
    before.saturating_sub(stats().cached)
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_an_eighth_and_never_shrink() {
        let mut last = 0;
        for bytes in (1..5000).chain((5..400).map(|i| i * 1017)) {
            let (class, size) = class_of(bytes);
            assert!(size >= bytes && size % ALIGN == 0, "{bytes} -> {size}");
            assert!(size <= bytes.next_multiple_of(ALIGN) * 9 / 8, "{bytes} -> {size}");
            assert_eq!(class_size(class), size);
            assert_eq!(class_of(size), (class, size), "a class holds its own size");
            assert!(class >= last);
            last = class;
        }
        assert_eq!(class_of(SMALL_MAX).0, CLASSES - 1);
    }

    #[test]
    fn what_nobody_has_room_for_is_counted_nowhere() {
        (0..3).for_each(|_| assert!(alloc(isize::MAX as usize - 63).is_err()));
        assert!(stats().peak < 1 << 50 && stats().total < 1 << 50, "{:?}", stats());
    }

    #[test]
    fn each_block_of_a_list_that_overflowed_is_handed_out_once() {
        let take = || alloc(3000).expect("memory");
        let taken: Vec<_> = (0..3 * LIST_MAX).map(|_| take()).collect();
        taken.into_iter().for_each(|(span, size, _)| free(span, size));
        let again: Vec<_> = (0..3 * LIST_MAX).map(|_| take()).collect();
        let places: std::collections::BTreeSet<_> = again.iter().map(|(span, ..)| span.ptr()).collect();
        assert_eq!(places.len(), again.len(), "a block is two arrays'");
        again.into_iter().for_each(|(span, size, _)| free(span, size));
    }
}
