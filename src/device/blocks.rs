//! Blocks sub-allocated from segments: the free list of every pool, of the host's and of the devices'.
//!
//! # Finding
//! Free blocks wait in lists by size class: 32 classes a doubling, one set of lists for each home, which is what the
//! pool makes of it: the stream on which their last owner asked for them, or whether the system has given their pages.
//! Two levels of bitmaps say which lists are not empty, so a fit is found in a fixed number of steps (TLSF: Masmano,
//! Ripoll, Crespo and Real, ECRTS 2004). Requests are rounded to the smallest size of a class, so that every
//! block of the class serves, and a size that comes again finds the block it had.
//!
//! # Splitting and merging
//! A block that is larger than the request is split, and a block that is freed becomes one with its free
//! neighbours, also in a fixed number of steps: each knows its neighbours in the segment. What the pool knows of each
//! (its [`Tag`]) is split and joined with it.
//!
//! # Invariants
//! - Blocks begin at multiples of the tag's grain in their segment and cover it without gap or overlap.
//! - Two free neighbours are never left side by side, except where only one of them was born in a section that is
//!   being captured.
//! - A block is named by its number, from 1; a span with another block's number, or one whose block is gone, is
//!   found out by its address.
//! - `cached` counts free blocks.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::error::Result;
use crate::device::{budget::MemoryStats, span::Span};

/// Classes a doubling, and its logarithm.
pub(super) const STEPS: usize = 32;
const STEPS_LOG: u32 = STEPS.ilog2();
/// Groups of classes for the smallest grain, 64 bytes: one for sizes under 32 grains, and one for each doubling from
/// there.
pub(super) const LEVELS: usize = (usize::BITS - 6 - STEPS_LOG) as usize + 1;
pub(super) const MIB: usize = 1 << 20;

/// What a pool knows of each block beside its place.
pub(super) trait Tag: Clone {
    /// Sizes and addresses of blocks are multiples of this: 64 or more.
    const GRAIN: usize;

    /// The block is cut so many bytes from its begin: what is left there. Returns that of the other part.
    fn split(&mut self, at: usize) -> Self;

    /// The block, of `bytes`, and the one after it become one.
    fn join(&mut self, bytes: usize, right: &Self);

    /// The home in whose lists the block waits; `home` is that of its last owner.
    fn home(&self, home: u8) -> u8 {
        home
    }

    /// The bytes of a free block, of `bytes`, that count as cached.
    fn weight(&self, bytes: usize) -> usize {
        bytes
    }
}

/// How much the pool of a device asks of its driver at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// Each block is a segment of its own: never split, never merged.
    Each,
    /// So many bytes, rounded up to whole grains, or the request if it is larger.
    Of(usize),
    /// 2 MiB for requests up to 1 MiB, 20 MiB up to 10 MiB, then the next multiple of 2 MiB.
    Graded,
}

impl Segments {
    /// The segment for a block of this size.
    fn size_for(self, size: usize) -> usize {
        match self {
            Segments::Each => size,
            Segments::Of(bytes) => size.max(bytes),
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

/// The size of a block for `bytes`: a multiple of the grain, at most 1/32 and a grain above. `None` beyond the address
/// space.
pub(super) fn block_size<T: Tag>(bytes: usize) -> Option<usize> {
    let grains = bytes.max(1).div_ceil(T::GRAIN);
    let step = 1_usize << grains.ilog2().saturating_sub(STEPS_LOG);
    grains.checked_next_multiple_of(step)?.checked_mul(T::GRAIN).filter(|&size| size <= isize::MAX as usize)
}

/// The class of a size: the last one whose smallest size is not larger.
pub(super) fn class_of<T: Tag>(size: usize) -> usize {
    let grains = size / T::GRAIN;
    match grains.ilog2().checked_sub(STEPS_LOG) {
        None => grains,
        Some(shift) => (shift as usize + 1) * STEPS + ((grains >> shift) & (STEPS - 1)),
    }
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
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
pub(super) enum SectionMark {
    Nothing,
    Read,
    Written,
    /// Asked for it.
    Born,
}

/// A part of a segment: 32 bytes, since finding one among many is what taking and giving back cost.
#[derive(Debug)]
pub(super) struct Block {
    /// Atomic only because a plain pointer may not go to another thread; reached under the pool's lock.
    ptr: AtomicPtr<u8>,
    pub(super) bytes: usize,
    /// Numbers of the neighbours in the segment; 0 at its ends.
    pub(super) before: u32,
    pub(super) after: u32,
    /// The place in the free list, if it is in one.
    pub(super) slot: u32,
    /// Graphs that touch it.
    pub(super) pins: u32,
}

impl Block {
    /// At the place of these neighbours.
    fn new(span: Span, [before, after]: [u32; 2]) -> Self {
        Block { ptr: AtomicPtr::new(span.ptr().as_ptr()), bytes: span.bytes(), before, after, slot: 0, pins: 0 }
    }

    pub(super) fn ptr(&self) -> NonNull<u8> {
        // Relaxed: written under the same lock.
        NonNull::new(self.ptr.load(Ordering::Relaxed)).expect("made of a pointer that is not null")
    }

    pub(super) fn span(&self) -> Span {
        Span::new(self.ptr(), self.bytes)
    }
}

/// What is asked of the neighbours of a block. Apart from the block, so that all of them stay in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) state: BlockState,
    pub(super) mark: SectionMark,
    /// In whose lists it waits.
    pub(super) home: u8,
}

/// The free blocks of one home.
#[derive(Debug)]
pub(super) struct Lists {
    /// Levels that have a list that is not empty.
    pub(super) levels: u64,
    /// For each level, its lists that are not empty.
    pub(super) steps: [u32; LEVELS],
    /// The blocks of each class; the one freed last is at the end. A list does not run through its blocks: putting one
    /// in or taking one out would touch its neighbours there.
    pub(super) classes: Vec<Vec<u32>>,
}

impl Lists {
    fn new() -> Self {
        // Room for what a settled program has in a list, so that it asks the heap for nothing.
        let room = |class: usize| Vec::with_capacity(if class < 10 * STEPS { 64 } else { 4 });
        Lists { levels: 0, steps: [0; LEVELS], classes: (0..LEVELS * STEPS).map(room).collect() }
    }

    /// The last block of the first list from this class on that is not empty; 0 if all are.
    pub(super) fn first_from(&self, class: usize) -> u32 {
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

    /// The block that waits longest in the last list that is not empty; 0 if all are.
    pub(super) fn largest(&self) -> u32 {
        let Some(level) = self.levels.checked_ilog2() else { return 0 };
        let step = self.steps[level as usize].ilog2();
        self.classes[level as usize * STEPS + step as usize].first().copied().unwrap_or(0)
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

/// The blocks of a device, or of the host.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    segments: Segments,
    /// By number, less one; likewise the next two.
    pub(super) blocks: Vec<Block>,
    pub(super) statuses: Vec<Status>,
    tags: Vec<T>,
    /// Numbers that are not in use.
    numbers: Vec<u32>,
    /// By home.
    pub(super) lists: Vec<Lists>,
    /// Blocks of no list that nobody has any more; they go back when what used them is over.
    pub(super) leaving: Vec<u32>,
    pub(super) stats: MemoryStats,
}

impl<T: Tag> Blocks<T> {
    /// Without segments; blocks wait in so many homes.
    pub(super) fn new(homes: u8, segments: Segments) -> Self {
        // What is left of a segment is a block too, and has a class.
        let whole = |bytes: usize| bytes.checked_next_multiple_of(T::GRAIN).unwrap_or(bytes / T::GRAIN * T::GRAIN);
        let segments = if let Segments::Of(bytes) = segments { Segments::Of(whole(bytes)) } else { segments };
        let lists = (0..homes).map(|_| Lists::new()).collect();
        let (blocks, statuses, numbers, leaving) = Default::default();
        Blocks { segments, blocks, statuses, tags: Vec::new(), numbers, lists, leaving, stats: MemoryStats::default() }
    }

    pub(super) fn block(&self, number: u32) -> &Block {
        &self.blocks[number as usize - 1]
    }

    pub(super) fn block_mut(&mut self, number: u32) -> &mut Block {
        &mut self.blocks[number as usize - 1]
    }

    pub(super) fn status(&self, number: u32) -> Status {
        self.statuses[number as usize - 1]
    }

    pub(super) fn status_mut(&mut self, number: u32) -> &mut Status {
        &mut self.statuses[number as usize - 1]
    }

    /// Bytes to ask of the driver for a block of this size.
    pub(super) fn segment_size(&self, size: usize) -> usize {
        self.segments.size_for(size)
    }

    /// Whether blocks can still be named.
    pub(super) fn has_numbers(&self) -> bool {
        !self.numbers.is_empty() || self.blocks.len() < u32::MAX as usize
    }

    fn enter(&mut self, block: Block, status: Status, tag: T) -> u32 {
        if let Some(number) = self.numbers.pop() {
            *self.block_mut(number) = block;
            *self.status_mut(number) = status;
            *self.tag_mut(number) = tag;
            return number;
        }
        if self.blocks.len() == self.blocks.capacity() {
            // So that giving a number back never asks the heap for anything.
            self.blocks.reserve(1024);
            self.numbers.reserve(self.blocks.capacity() - self.numbers.len());
        }
        self.blocks.push(block);
        self.statuses.push(status);
        self.tags.push(tag);
        self.blocks.len() as u32
    }

    pub(super) fn leave(&mut self, number: u32) {
        *self.status_mut(number) = Status { state: BlockState::Gone, mark: SectionMark::Nothing, home: 0 };
        self.numbers.push(number);
    }

    // ------------------------------------------------------------------------------------------ from the driver

    /// Takes over a segment that the driver gave, as one block without an owner.
    pub(super) fn add(&mut self, segment: Span, home: u8, tag: T) -> u32 {
        self.stats.misses += 1;
        let status = Status { state: BlockState::Kept, mark: SectionMark::Nothing, home };
        self.enter(Block::new(segment, [0, 0]), status, tag)
    }

    /// Forgets the wholly free segments that `free` accepts, up to the first that it does not.
    pub(super) fn release(&mut self, free: impl Fn(Span) -> Result<()>) -> Result<()> {
        let is_whole = |block: &Block| block.before == 0 && block.after == 0;
        let is_free = |number: u32| self.status(number).state == BlockState::Free && is_whole(self.block(number));
        let numbers: Vec<u32> = (1..=self.blocks.len() as u32).filter(|&number| is_free(number)).collect();
        for number in numbers {
            free(self.block(number).span())?;
            self.unlink(number);
            self.leave(number);
        }
        Ok(())
    }

    /// The blocks that wait in the lists. Looks at each there is.
    pub(super) fn free_blocks(&self) -> impl Iterator<Item = Span> {
        let blocks = self.blocks.iter().zip(&self.statuses);
        blocks.filter(|(_, status)| status.state == BlockState::Free).map(|(block, _)| block.span())
    }

    // ------------------------------------------------------------------------------------------ taking

    /// Takes a block of this size out of the lists: of this home if one waits there, else of another.
    pub(super) fn take(&mut self, home: usize, size: usize) -> Option<u32> {
        let segments = self.segments;
        self.take_if(home, size, |bytes| segments.admits(bytes, size))
    }

    /// As [`Blocks::take`], however large the block is.
    pub(super) fn take_any(&mut self, home: usize, size: usize) -> Option<u32> {
        self.take_if(home, size, |_| true)
    }

    fn take_if(&mut self, first: usize, size: usize, admits: impl Fn(usize) -> bool) -> Option<u32> {
        let homes = self.lists.len();
        for home in (0..homes).map(|i| (first + i) % homes) {
            // The first block found is of the lowest class: if it is too large, the others are.
            let number = self.lists[home].first_from(class_of::<T>(size));
            if number != 0 && admits(self.block(number).bytes) {
                self.unlink(number);
                self.stats.hits += 1;
                return Some(self.suballocate(number, size));
            }
        }
        None
    }

    /// Cuts a block that is in no list to a size. What is left waits in the lists.
    pub(super) fn suballocate(&mut self, number: u32, size: usize) -> u32 {
        let block = self.block(number);
        let (after, rest) = (block.after, block.bytes - size);
        if rest == 0 || self.segments == Segments::Each || !self.has_numbers() {
            return number;
        }
        let cut = block.ptr().map_addr(|at| at.checked_add(size).expect("a block ends inside the address space"));
        let (status, tag) = (self.status(number), self.tag_mut(number).split(size));
        let remainder = self.enter(Block::new(Span::new(cut, rest), [number, after]), status, tag);
        if after != 0 {
            self.block_mut(after).before = remainder;
        }
        let block = self.block_mut(number);
        (block.bytes, block.after) = (size, remainder);
        self.link(remainder);
        number
    }

    /// The block with an owner that a span lies in, by the number that the span carries.
    pub(super) fn owned(&self, span: Span) -> Option<u32> {
        let number = span.block();
        let block = self.blocks.get((number as usize).checked_sub(1)?)?;
        let skip = span.ptr().addr().get().checked_sub(block.ptr().addr().get())?;
        let holds = skip <= block.bytes && span.bytes() <= block.bytes - skip;
        (self.status(number).state == BlockState::Owned && holds).then_some(number)
    }

    // ------------------------------------------------------------------------------------------ giving back

    /// Puts a block into the lists, as one with its free neighbours as far as their marks allow. Returns its number.
    pub(super) fn merge(&mut self, number: u32, fits: impl Fn(SectionMark, SectionMark) -> bool) -> u32 {
        let Block { before, after, .. } = *self.block(number);
        let Status { mark, home, .. } = self.status(number);
        let mut number = number;
        let joins = |pool: &Self, other: u32| {
            other != 0 && pool.status(other).state == BlockState::Free && fits(mark, pool.status(other).mark)
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
        *self.status_mut(number) = Status { state: BlockState::Kept, mark, home };
        self.link(number);
        number
    }

    /// Makes a block and the one after it, neither in a list, one.
    fn absorb(&mut self, number: u32, right: u32) {
        let Block { bytes, after, .. } = *self.block(right);
        let tag = self.tag(right).clone();
        if after != 0 {
            self.block_mut(after).before = number;
        }
        let block = self.block_mut(number);
        let left = block.bytes;
        (block.bytes, block.after) = (left + bytes, after);
        self.tag_mut(number).join(left, &tag);
        self.leave(right);
    }

    /// Puts a block into its list.
    pub(super) fn link(&mut self, number: u32) {
        let bytes = self.block(number).bytes;
        let last = self.status(number).home;
        let (home, weight) = (self.tag(number).home(last), self.tag(number).weight(bytes));
        let status = self.status_mut(number);
        (status.state, status.home) = (BlockState::Free, home);
        let home = usize::from(home);
        self.stats.cached += weight as u64;
        self.block_mut(number).slot = self.lists[home].push(class_of::<T>(bytes), number);
    }

    /// Takes a block out of its list.
    pub(super) fn unlink(&mut self, number: u32) {
        let Block { bytes, slot, .. } = *self.block(number);
        let status = self.status_mut(number);
        status.state = BlockState::Kept;
        let home = usize::from(status.home);
        self.stats.cached -= self.tag(number).weight(bytes) as u64;
        if let Some(moved) = self.lists[home].remove(class_of::<T>(bytes), slot) {
            self.block_mut(moved).slot = slot;
        }
    }

    pub(super) fn tag(&self, number: u32) -> &T {
        &self.tags[number as usize - 1]
    }

    pub(super) fn tag_mut(&mut self, number: u32) -> &mut T {
        &mut self.tags[number as usize - 1]
    }
}

/// splitmix64, for the tests of pools.
#[cfg(test)]
pub(super) struct SplitMix64(pub(super) u64);

#[cfg(test)]
impl SplitMix64 {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// Sizes of all magnitudes up to `1 << most`.
    pub(super) fn size(&mut self, most: usize) -> usize {
        let magnitude = self.below(most + 1);
        1 + self.below(1 << magnitude)
    }
}
