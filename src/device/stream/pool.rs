//! The bytes of an asynchronous device: blocks, carved out of large segments of the driver.
//!
//! # Finding
//! Free blocks wait in lists by size class: 32 classes a doubling, one set of lists for each home stream, that is
//! the stream on which their last owner asked for them. Two levels of bitmaps say which lists are not empty, so
//! a fit is found in a fixed number of steps. Requests are rounded to the smallest size of a class, so that every
//! block of the class serves, and a size that comes again finds the block it had.
//!
//! # Splitting and merging
//! A block that is larger than the request is split, and a block that is freed becomes one with its free
//! neighbours, also in a fixed number of steps: each knows its neighbours in the segment. A merged block is behind
//! all uses of its parts.
//!
//! # Invariants
//! - Blocks begin at multiples of 256 bytes in their segment and cover it without gap or overlap.
//! - Two free neighbours are never left side by side, except where only one of them was born in a section that is
//!   being captured.
//! - A block is named by its number, from 1; a span with another block's number, or one whose block is gone, is
//!   found out by its address.
//! - `cached` counts free blocks, `pinned` those that only graphs have.
//!
//! # Sections
//! While a section is captured, its blocks carry a [`Mark`]. What was born in it and freed again may be used again,
//! by the section alone; nothing that it touched goes to anybody else until its graph is gone.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::error::Result;
use crate::device::{
    budget::MemoryStats,
    buffer::Span,
    kernel::Access,
    stream::order::{Clock, MAX_STREAMS},
};

/// Sizes and addresses of blocks are multiples of this.
const GRAIN: usize = 256;
/// Classes a doubling, and its logarithm.
const STEPS: usize = 32;
const STEPS_LOG: u32 = STEPS.ilog2();
/// Groups of classes: one for sizes under 32 grains, and one for each doubling from there.
const LEVELS: usize = (usize::BITS - GRAIN.ilog2() - STEPS_LOG) as usize + 1;
const MIB: usize = 1 << 20;

/// How much is asked of the driver at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segments {
    /// Each block is a segment of its own: never split, never merged.
    Each,
    /// So many bytes, or the request if it is larger.
    Of(usize),
    /// 2 MiB for requests up to 1 MiB, 20 MiB up to 10 MiB, then the next multiple of 2 MiB.
    Graded,
}

impl Segments {
    /// The segment for a block of this size.
    fn size_for(self, size: usize) -> usize {
        match self {
            Segments::Each => size,
            Segments::Of(bytes) => size.max(bytes.next_multiple_of(GRAIN)),
            Segments::Graded if size <= MIB => 2 * MIB,
            Segments::Graded if size <= 10 * MIB => 20 * MIB,
            Segments::Graded => size.checked_next_multiple_of(2 * MIB).unwrap_or(size),
        }
    }

    /// Whether a free block of `bytes` may serve a request of `size`.
    ///
    /// A block that is larger than the segment which the driver would be asked for is left to larger requests,
    /// unless this one takes a quarter of it.
    fn admits(self, bytes: usize, size: usize) -> bool {
        match self {
            Segments::Each => bytes - size <= if size > MIB { size / 8 } else { 0 },
            _ => bytes <= self.size_for(size) || size >= bytes / 4,
        }
    }
}

/// The size of a block for `bytes`: a multiple of 256, at most 1/32 and 255 bytes above. `None` beyond the address
/// space.
pub(super) fn block_size(bytes: usize) -> Option<usize> {
    let grains = bytes.max(1).div_ceil(GRAIN);
    let step = 1_usize << grains.ilog2().saturating_sub(STEPS_LOG);
    grains.checked_next_multiple_of(step)?.checked_mul(GRAIN).filter(|&size| size <= isize::MAX as usize)
}

/// The class of a size: the last one whose smallest size is not larger.
fn class_of(size: usize) -> usize {
    let grains = size / GRAIN;
    match grains.ilog2().checked_sub(STEPS_LOG) {
        None => grains,
        Some(shift) => (shift as usize + 1) * STEPS + ((grains >> shift) & (STEPS - 1)),
    }
}

/// When a block was used last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    /// Stream and tick of the last write.
    pub(super) written: (usize, u64),
    /// Ticks of the last write and of the reads since then.
    pub(super) used: Clock,
}

impl Uses {
    fn born(stream: usize, tick: u64) -> Self {
        Uses { written: (stream, tick), used: Clock::at(stream, tick) }
    }

    /// An operation that was submitted.
    pub(super) fn note(&mut self, stream: usize, tick: u64, access: Access) {
        if access != Access::Read {
            self.written = (stream, tick);
            self.used = Clock::default();
        }
        self.used.set(stream, tick);
    }

    /// What such an access has to be behind.
    pub(super) fn demanded(&self, writes: bool) -> Clock {
        if writes { self.used } else { Clock::at(self.written.0, self.written.1) }
    }
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The number is not in use.
    Gone,
    /// Waits in a list.
    Free,
    /// A buffer.
    Owned,
    /// Graphs, or the section that is being captured, and nobody else.
    Kept,
}

/// What the section that is being captured did with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Nothing,
    Read,
    Written,
    /// Asked for it.
    Born,
}

/// A part of a segment: 32 bytes, since finding one among many is what taking and giving back cost.
#[derive(Debug)]
struct Block {
    /// Atomic only because a plain pointer may not go to another thread; reached under the device's lock.
    ptr: AtomicPtr<u8>,
    bytes: usize,
    /// Numbers of the neighbours in the segment; 0 at its ends.
    before: u32,
    after: u32,
    /// The place in the free list, if it is in one.
    slot: u32,
    /// Graphs that touch it.
    pins: u32,
}

impl Block {
    /// At the place of these neighbours.
    fn new(span: Span, [before, after]: [u32; 2]) -> Self {
        Block { ptr: AtomicPtr::new(span.ptr().as_ptr()), bytes: span.bytes(), before, after, slot: 0, pins: 0 }
    }

    fn ptr(&self) -> NonNull<u8> {
        // Relaxed: written under the same lock.
        NonNull::new(self.ptr.load(Ordering::Relaxed)).expect("made of a pointer that is not null")
    }

    fn span(&self) -> Span {
        Span::new(self.ptr(), self.bytes)
    }
}

/// What is asked of the neighbours of a block. Apart from the block, so that all of them stay in the cache.
#[derive(Clone, Copy, Debug)]
struct Status {
    state: State,
    mark: Mark,
    /// The stream it was last asked for on, in whose lists it waits.
    home: u8,
}

/// The free blocks of one home stream.
#[derive(Debug)]
struct Lists {
    /// Levels that have a list that is not empty.
    levels: u64,
    /// For each level, its lists that are not empty.
    steps: [u32; LEVELS],
    /// The blocks of each class; the one freed last is at the end. A list does not run through its blocks: putting one
    /// in or taking one out would touch its neighbours there.
    classes: Vec<Vec<u32>>,
}

impl Lists {
    fn new() -> Self {
        Lists { levels: 0, steps: [0; LEVELS], classes: vec![Vec::new(); LEVELS * STEPS] }
    }

    /// The last block of the first list from this class on that is not empty; 0 if all are.
    fn first_from(&self, class: usize) -> u32 {
        let (mut level, step) = (class / STEPS, class % STEPS);
        let mut steps = self.steps[level] & (u32::MAX << step);
        if steps == 0 {
            let above = self.levels & (u64::MAX << level) & !(1 << level);
            if above == 0 {
                return 0;
            }
            level = above.trailing_zeros() as usize;
            steps = self.steps[level];
        }
        self.classes[level * STEPS + steps.trailing_zeros() as usize].last().copied().unwrap_or(0)
    }

    /// Puts a block into its list. Returns its place.
    fn push(&mut self, class: usize, block: u32) -> u32 {
        let (level, step) = (class / STEPS, class % STEPS);
        self.steps[level] |= 1 << step;
        self.levels |= 1 << level;
        let list = &mut self.classes[class];
        list.push(block);
        list.len() as u32 - 1
    }

    /// Takes a block out of its list. Returns the block that has its place now, if one has.
    fn remove(&mut self, class: usize, slot: u32) -> Option<u32> {
        let list = &mut self.classes[class];
        list.swap_remove(slot as usize);
        if list.is_empty() {
            let (level, step) = (class / STEPS, class % STEPS);
            self.steps[level] &= !(1 << step);
            if self.steps[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
        list.get(slot as usize).copied()
    }
}

/// The blocks of a device.
#[derive(Debug)]
pub(super) struct Pool {
    segments: Segments,
    /// By number, less one; likewise the next two.
    blocks: Vec<Block>,
    statuses: Vec<Status>,
    uses: Vec<Uses>,
    /// Numbers that are not in use.
    numbers: Vec<u32>,
    /// By home stream.
    lists: Vec<Lists>,
    pub(super) stats: MemoryStats,
}

impl Pool {
    pub(super) fn new(streams: usize, segments: Segments) -> Self {
        debug_assert!(streams <= MAX_STREAMS, "a home fits its byte");
        let lists = (0..streams).map(|_| Lists::new()).collect();
        let (blocks, statuses, uses, numbers) = Default::default();
        Pool { segments, blocks, statuses, uses, numbers, lists, stats: MemoryStats::default() }
    }

    fn block(&self, number: u32) -> &Block {
        &self.blocks[number as usize - 1]
    }

    fn block_mut(&mut self, number: u32) -> &mut Block {
        &mut self.blocks[number as usize - 1]
    }

    fn status(&self, number: u32) -> Status {
        self.statuses[number as usize - 1]
    }

    fn status_mut(&mut self, number: u32) -> &mut Status {
        &mut self.statuses[number as usize - 1]
    }

    pub(super) fn limit_admits(&self, bytes: usize) -> bool {
        self.stats.limit.is_none_or(|limit| self.stats.active.saturating_add(bytes as u64) <= limit)
    }

    /// Bytes to ask of the driver for a block of this size.
    pub(super) fn segment_size(&self, size: usize) -> usize {
        self.segments.size_for(size)
    }

    /// Whether blocks can still be named.
    pub(super) fn has_numbers(&self) -> bool {
        !self.numbers.is_empty() || self.blocks.len() < u32::MAX as usize
    }

    fn enter(&mut self, block: Block, status: Status, uses: Uses) -> u32 {
        if let Some(number) = self.numbers.pop() {
            *self.block_mut(number) = block;
            *self.status_mut(number) = status;
            *self.uses_of(number) = uses;
            return number;
        }
        self.blocks.push(block);
        self.statuses.push(status);
        self.uses.push(uses);
        self.blocks.len() as u32
    }

    fn leave(&mut self, number: u32) {
        *self.status_mut(number) = Status { state: State::Gone, mark: Mark::Nothing, home: 0 };
        self.numbers.push(number);
    }

    // ------------------------------------------------------------------------------------------ from the driver

    /// Takes over a segment that the driver gave, as one block without an owner.
    pub(super) fn add(&mut self, segment: Span, stream: usize, tick: u64) -> u32 {
        self.stats.misses += 1;
        let status = Status { state: State::Kept, mark: Mark::Nothing, home: stream as u8 };
        self.enter(Block::new(segment, [0, 0]), status, Uses::born(stream, tick))
    }

    /// Forgets the wholly free segments that `free` accepts, up to the first that it does not.
    pub(super) fn release(&mut self, free: impl Fn(Span) -> Result<()>) -> Result<()> {
        let is_whole = |block: &Block| block.before == 0 && block.after == 0;
        let is_free = |number: u32| self.status(number).state == State::Free && is_whole(self.block(number));
        let numbers: Vec<u32> = (1..=self.blocks.len() as u32).filter(|&number| is_free(number)).collect();
        for number in numbers {
            free(self.block(number).span())?;
            self.unlink(number);
            self.leave(number);
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------------------ taking

    /// Takes a block of this size out of the lists: of `stream` if one waits there, else of another.
    pub(super) fn take(&mut self, stream: usize, size: usize) -> Option<u32> {
        let segments = self.segments;
        self.take_if(stream, size, |bytes| segments.admits(bytes, size))
    }

    /// As [`Pool::take`], however large the block is.
    pub(super) fn take_any(&mut self, stream: usize, size: usize) -> Option<u32> {
        self.take_if(stream, size, |_| true)
    }

    fn take_if(&mut self, stream: usize, size: usize, admits: impl Fn(usize) -> bool) -> Option<u32> {
        let streams = self.lists.len();
        for home in (0..streams).map(|i| (stream + i) % streams) {
            // The first block found is of the lowest class: if it is too large, the others are.
            let number = self.lists[home].first_from(class_of(size));
            if number != 0 && admits(self.block(number).bytes) {
                self.unlink(number);
                self.stats.hits += 1;
                return Some(self.carve(number, size));
            }
        }
        None
    }

    /// Cuts a block that is in no list to a size. What is left waits in the lists.
    pub(super) fn carve(&mut self, number: u32, size: usize) -> u32 {
        let block = self.block(number);
        let (after, rest) = (block.after, block.bytes - size);
        if rest == 0 || self.segments == Segments::Each || !self.has_numbers() {
            return number;
        }
        let cut = block.ptr().map_addr(|at| at.checked_add(size).expect("a block ends inside the address space"));
        let (status, uses) = (self.status(number), *self.uses_of(number));
        let remainder = self.enter(Block::new(Span::new(cut, rest), [number, after]), status, uses);
        if after != 0 {
            self.block_mut(after).before = remainder;
        }
        let block = self.block_mut(number);
        (block.bytes, block.after) = (size, remainder);
        self.link(remainder);
        number
    }

    /// Gives a block that is in no list to an owner that asked for `bytes`. Returns those, and the size of the block.
    pub(super) fn give(&mut self, number: u32, stream: usize, bytes: usize) -> (Span, usize) {
        self.stats.active += bytes as u64;
        self.stats.peak = self.stats.peak.max(self.stats.active);
        let status = self.status_mut(number);
        (status.state, status.home) = (State::Owned, stream as u8);
        let block = self.block(number);
        (Span::in_block(block.ptr(), bytes, number), block.bytes)
    }

    /// The next owner is ordered behind nothing: what a checker has to notice.
    pub(super) fn forget_uses(&mut self, number: u32) {
        *self.uses_of(number) = Uses::default();
    }

    /// The block with an owner that a span lies in, by the number that the span carries.
    fn owned(&self, span: Span) -> Option<u32> {
        let number = span.block();
        let block = self.blocks.get((number as usize).checked_sub(1)?)?;
        let skip = span.ptr().addr().get().checked_sub(block.ptr().addr().get())?;
        let holds = skip <= block.bytes && span.bytes() <= block.bytes - skip;
        (self.status(number).state == State::Owned && holds).then_some(number)
    }

    /// The uses of the block with an owner that a span lies in.
    pub(super) fn find(&mut self, span: Span) -> Option<&mut Uses> {
        self.owned(span).map(|number| self.uses_of(number))
    }

    // ------------------------------------------------------------------------------------------ giving back

    /// Takes a block back from its owner. A span that is not all that an owner was given is left alone.
    pub(super) fn put(&mut self, span: Span) {
        let Some(number) = self.owned(span).filter(|&number| self.block(number).ptr() == span.ptr()) else {
            return;
        };
        self.stats.active -= span.bytes() as u64;
        let (pins, bytes) = (self.block(number).pins, self.block(number).bytes);
        if pins > 0 || matches!(self.status(number).mark, Mark::Read | Mark::Written) {
            self.status_mut(number).state = State::Kept;
            self.stats.pinned += bytes as u64;
        } else {
            self.merge(number, |own, neighbour| own == neighbour);
        }
    }

    /// Puts a block into the lists, as one with its free neighbours as far as their marks allow. Returns its number.
    fn merge(&mut self, number: u32, fits: impl Fn(Mark, Mark) -> bool) -> u32 {
        let Block { before, after, .. } = *self.block(number);
        let Status { mark, home, .. } = self.status(number);
        let mut number = number;
        let joins = |pool: &Self, other: u32| {
            other != 0 && pool.status(other).state == State::Free && fits(mark, pool.status(other).mark)
        };
        if joins(self, after) {
            self.unlink(after);
            self.absorb(number, after);
        }
        if joins(self, before) {
            self.unlink(before);
            self.absorb(before, number);
            number = before;
        }
        *self.status_mut(number) = Status { state: State::Kept, mark, home };
        self.link(number);
        number
    }

    /// Makes a block and the one after it, neither in a list, one.
    fn absorb(&mut self, number: u32, right: u32) {
        let Block { bytes, after, .. } = *self.block(right);
        let used = self.uses_of(right).used;
        if after != 0 {
            self.block_mut(after).before = number;
        }
        let block = self.block_mut(number);
        block.bytes += bytes;
        block.after = after;
        self.uses_of(number).used.join(&used);
        self.leave(right);
    }

    /// Puts a block into its list.
    fn link(&mut self, number: u32) {
        let bytes = self.block(number).bytes;
        let status = self.status_mut(number);
        status.state = State::Free;
        let home = usize::from(status.home);
        self.stats.cached += bytes as u64;
        self.block_mut(number).slot = self.lists[home].push(class_of(bytes), number);
    }

    /// Takes a block out of its list.
    fn unlink(&mut self, number: u32) {
        let Block { bytes, slot, .. } = *self.block(number);
        let status = self.status_mut(number);
        status.state = State::Kept;
        let home = usize::from(status.home);
        self.stats.cached -= bytes as u64;
        if let Some(moved) = self.lists[home].remove(class_of(bytes), slot) {
            self.block_mut(moved).slot = slot;
        }
    }

    // ------------------------------------------------------------------------------------------ sections, graphs

    /// The section that is being captured asked for this block. `true` if it had nothing to do with it before.
    pub(super) fn mark_born(&mut self, number: u32) -> bool {
        std::mem::replace(&mut self.status_mut(number).mark, Mark::Born) == Mark::Nothing
    }

    /// The block that was left when one was carved out of this one, if the section has to do with it.
    pub(super) fn rest_of(&self, number: u32) -> Option<u32> {
        let after = self.block(number).after;
        (after != 0 && self.is_free_in_section(after)).then_some(after)
    }

    fn is_free_in_section(&self, number: u32) -> bool {
        matches!(self.status(number), Status { state: State::Free, mark: Mark::Born, .. })
    }

    /// The section that is being captured uses a span. Returns its block if the section did not before.
    pub(super) fn mark_use(&mut self, span: Span, access: Access) -> Option<u32> {
        let number = self.owned(span)?;
        let mark = if access == Access::Read { Mark::Read } else { Mark::Written };
        let status = self.status_mut(number);
        let before = status.mark;
        status.mark = before.max(mark);
        (before == Mark::Nothing).then_some(number)
    }

    /// Lets a block that was born in the section and is free become one with free neighbours that were not.
    pub(super) fn merge_into_section(&mut self, number: u32) -> Option<u32> {
        if !self.is_free_in_section(number) {
            return None;
        }
        self.unlink(number);
        Some(self.merge(number, |_, _| true))
    }

    /// The section ended: of the blocks that it touched, those that are still there, each once, with whether it
    /// writes them. They are pinned if there is a graph of it, else they are as any other.
    pub(super) fn end_section(&mut self, touched: Vec<u32>, pin: bool) -> Vec<(u32, bool)> {
        let mut blocks = Vec::with_capacity(touched.len());
        for number in touched {
            let mark = std::mem::replace(&mut self.status_mut(number).mark, Mark::Nothing);
            if mark != Mark::Nothing {
                self.block_mut(number).pins += 1;
                blocks.push((number, mark != Mark::Read));
            }
        }
        for &(number, _) in &blocks {
            if self.status(number).state == State::Free {
                self.unlink(number);
                self.stats.pinned += self.block(number).bytes as u64;
            }
        }
        if pin {
            return blocks;
        }
        self.unpin(&blocks);
        Vec::new()
    }

    /// A graph that touched these blocks is gone.
    pub(super) fn unpin(&mut self, blocks: &[(u32, bool)]) {
        for &(number, _) in blocks {
            let block = self.block_mut(number);
            block.pins -= 1;
            let (pins, bytes) = (block.pins, block.bytes);
            if pins == 0 && self.status(number).state == State::Kept {
                self.stats.pinned -= bytes as u64;
                self.merge(number, |own, neighbour| own == neighbour);
            }
        }
    }

    /// The uses of a block, which a graph has pinned.
    pub(super) fn uses_of(&mut self, number: u32) -> &mut Uses {
        &mut self.uses[number as usize - 1]
    }
}

#[cfg(test)]
mod tests;
