//! What all threads share of the host's memory: blocks sub-allocated from ranges of the address space, and how much of
//! those the system has given.
//!
//! Blocks above 32 KiB are sub-allocated from large ranges, in pages; smaller ones out of segments of 256 KiB, which
//! are such blocks themselves, in cache lines. Both lists split and merge (`device/blocks.rs`). Where ranges come from
//! is apart ([`PageSource`]): in a replay there are only their addresses (`addresses.rs`). A large block of the size
//! that was handed out last is in no list when it comes back, since a loop asks for its size again: if the next request
//! is of another, it merges then.
//!
//! # Resident memory
//! A range costs address space; its pages come with their first write. Of each free block the store knows how many of
//! its first bytes may have pages. Blocks that have some are taken first. Where the bytes with pages pass the recent
//! peak of those in use by an eighth of it, and by 24 MiB, pages of the largest free blocks go back to the system:
//! twice as many as came, and what a call has work left for, 4 MiB at most. So resident memory follows the peak,
//! whatever sizes come. The peak is that of this period and the one before, and of six more if it is at most four
//! times as much: a large step that was rare is soon forgotten, and a valley is no new peak. A period ends when 8
//! times the peak has been handed out, in 1,024 requests or more. If of 32 times the peak, and of as much again, more
//! than a 32nd went back, sizes come which do not fit into each other's places: from then on twice as much is kept,
//! and at last three times, so that a loop whose sizes repeat comes to rest. The share, the 24 MiB and the size of
//! ranges are those of [`HostPool`].
//!
//! # Invariants
//! - Bytes of a block are initialised: a range is zero when it is new, a page is zero when it comes again.
//! - Bytes of a free block beyond its touched ones are zero.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::base::{
    system::{self, Mapping},
    work,
};
use crate::device::{
    blocks::{BlockState, Blocks, MIB, Segments, Tag, block_size},
    span::Span,
};

/// Blocks up to this size are sub-allocated from segments.
pub(crate) const SMALL_MAX: usize = 32 << 10;
const SEGMENT: usize = 256 << 10;
/// Ranges begin at multiples of this, the size of a large page.
pub(super) const HUGE: usize = 2 * MIB;
/// Bytes whose pages go back at a time, beside twice those that came.
const RETURNED: usize = 4 * MIB;
/// A period hands out so many times the peak.
const PERIOD: usize = 8;
/// Periods whose peaks are known.
const PERIODS: usize = 8;
/// When so many times the peak was handed out, it is looked whether more than this part of it went back.
const LOOK: usize = 32;
/// Where sizes do not fit into each other's places, so many times as much is kept beyond the peak.
const TIMES_MAX: usize = 3;

/// What the host's pool asks of the system, and what it keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPool {
    /// Eighths of the recent peak that it keeps resident beyond it: 1 if not said.
    pub kept_eighths: usize,
    /// Bytes that it keeps resident beyond the recent peak at least: 24 MiB if not said. Of both up to three times as
    /// much, where much of what goes back to the system is soon asked for again.
    pub kept_bytes: usize,
    /// Bytes of the address space that it asks for at least, rounded up to whole pages: 1 GiB if not said.
    pub range_bytes: usize,
}

impl Default for HostPool {
    fn default() -> Self {
        HostPool { kept_eighths: 1, kept_bytes: 24 * MIB, range_bytes: 1024 * MIB }
    }
}

/// Where ranges of the address space come from, and their pages.
pub(super) trait PageSource: Default {
    /// The first address of a range of so many bytes, which are zero. `None`: there is none.
    fn map(&mut self, bytes: usize) -> Option<NonNull<u8>>;
    /// Gives back the range that this address lies in.
    fn unmap(&mut self, start: NonNull<u8>);
    /// Gives the pages of a part of a free block back; they are zero when they come again. Whether they went.
    fn return_pages(&mut self, part: Span) -> bool;
}

/// The system: its mappings.
#[derive(Debug, Default)]
pub(super) struct Mappings(Vec<Mapping>);

impl PageSource for Mappings {
    fn map(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let range = Mapping::new(bytes)?;
        let start = range.start();
        self.0.push(range);
        Some(start)
    }

    fn unmap(&mut self, start: NonNull<u8>) {
        self.0.retain(|range| range.place_of(start).is_none());
    }

    fn return_pages(&mut self, part: Span) -> bool {
        self.0
            .iter_mut()
            .any(|range| range.place_of(part.ptr()).is_some_and(|place| range.return_pages(place, part.bytes())))
    }
}

/// How many of a block's first bytes may have pages of the system.
#[derive(Clone, Copy, Debug)]
struct Touched(usize);

impl Tag for Touched {
    const GRAIN: usize = 4096;

    fn split(&mut self, at: usize) -> Self {
        let right = Touched(self.0.saturating_sub(at));
        self.0 = self.0.min(at);
        right
    }

    fn join(&mut self, bytes: usize, right: &Self) {
        if right.0 > 0 {
            self.0 = bytes + right.0;
        }
    }

    fn home(&self, _home: u8) -> u8 {
        u8::from(self.0 == 0)
    }

    fn weight(&self, _bytes: usize) -> usize {
        self.0
    }
}

/// The large block that the segment of a small one is.
#[derive(Clone, Copy, Debug)]
struct Segment(u32);

impl Tag for Segment {
    const GRAIN: usize = 64;

    fn split(&mut self, _at: usize) -> Self {
        *self
    }

    fn join(&mut self, _bytes: usize, _right: &Self) {}
}

/// A block that is handed out.
#[derive(Debug)]
pub(super) struct TakenBlock {
    /// Its address, size and number.
    pub(super) span: Span,
    /// How many of its first bytes may be other than zero.
    pub(super) touched: usize,
}

/// What becomes of the pages of a block that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    Kept,
    /// They go to the system at once.
    Returned,
}

#[derive(Debug)]
pub(super) struct Store<S = Mappings> {
    plan: HostPool,
    large: Blocks<Touched>,
    small: Blocks<Segment>,
    pub(super) ranges: S,
    /// The large block that came back last, in no list, if it had the size of the one handed out last; else 0. Its
    /// pages count as cached.
    last: u32,
    /// Bytes of the large block that was handed out last.
    last_size: usize,
    /// Bytes of large blocks that are handed out.
    owned: usize,
    /// The most that were [resident](Store::resident) when a call ended, since it was set.
    peak_resident: usize,
    /// The most of them in this period, whose number is `period`, and in those before.
    peaks: [usize; PERIODS],
    period: usize,
    /// What [`Store::peak_of`] says of these.
    recent_peak: usize,
    /// Requests of this period, and their bytes.
    requests: u32,
    volume: usize,
    /// Bytes that were handed out, and whose pages went back to the system, since that was looked at.
    handed_out: usize,
    returned: usize,
    /// How many times what the plan says is kept beyond the peak.
    times: usize,
    /// Whether much went back before the last look.
    thrashed: bool,
    /// Large blocks that were handed out without a page of the system.
    hits: u64,
    /// Requests that needed pages of the system.
    pub(super) misses: u64,
    /// Bytes of blocks that are handed out and wait in caches of threads, as far as those told it.
    pub(super) waiting: i64,
    /// The most that [`Store::used`] and [`Store::kept`] were, since they were set.
    pub(super) peak_used: i64,
    pub(super) peak_kept: i64,
    /// Bytes of all blocks that were handed out from here.
    pub(super) total_used: u64,
    /// Bytes that came to be [resident](Store::resident).
    pub(super) total_resident: u64,
    /// The most that the process may have resident.
    pub(super) physical_max: Option<u64>,
}

static STORE: Mutex<Option<Store>> = Mutex::new(None);

/// Works with the store, alone.
pub(super) fn store<R>(f: impl FnOnce(&mut Store) -> R) -> R {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    f(store.get_or_insert_with(|| Store::new(HostPool::default())))
}

impl<S: PageSource> Store<S> {
    pub(super) fn new(plan: HostPool) -> Self {
        Store {
            plan,
            large: Blocks::new(2, Segments::Of(plan.range_bytes)),
            small: Blocks::new(1, Segments::Of(SEGMENT)),
            ranges: S::default(),
            last: 0,
            last_size: 0,
            owned: 0,
            peak_resident: 0,
            peaks: [0; PERIODS],
            period: 0,
            recent_peak: 0,
            requests: 0,
            volume: 0,
            handed_out: 0,
            returned: 0,
            times: 1,
            thrashed: false,
            hits: 0,
            misses: 0,
            waiting: 0,
            peak_used: 0,
            peak_kept: 0,
            total_used: 0,
            total_resident: 0,
            physical_max: None,
        }
    }

    /// A block of this size: a class of the cache if it is small. `None`: the system has none, or the limit on
    /// resident memory forbids it.
    pub(super) fn take(&mut self, size: usize) -> Option<TakenBlock> {
        let taken =
            if size > SMALL_MAX { self.take_large(block_size::<Touched>(size)?)? } else { self.take_small(size)? };
        self.total_used = self.total_used.saturating_add(taken.span.bytes() as u64);
        Some(taken)
    }

    fn take_small(&mut self, size: usize) -> Option<TakenBlock> {
        let number = match self.small.take_any(0, size) {
            Some(number) => number,
            None => {
                let TakenBlock { span, .. } = self.take_large(SEGMENT)?;
                let number = self.small.add(Span::new(span.ptr(), span.bytes()), 0, Segment(span.block()));
                self.small.suballocate(number, size)
            }
        };
        self.small.status_mut(number).state = BlockState::Owned;
        let block = self.small.block(number);
        Some(TakenBlock { span: Span::in_block(block.ptr(), block.bytes, number), touched: block.bytes })
    }

    fn take_large(&mut self, size: usize) -> Option<TakenBlock> {
        let number = match self.take_last(size).or_else(|| self.large.take_any(0, size)) {
            Some(number) => number,
            None => {
                let whole = self.range(size)?;
                self.large.suballocate(whole, size)
            }
        };
        let bytes = self.large.block(number).bytes;
        let touched = self.large.tag_mut(number).0;
        let new = bytes - touched;
        if new > 0 && !self.physical_admits(new) {
            self.merge(number);
            return None;
        }
        *self.large.tag_mut(number) = Touched(bytes);
        self.large.status_mut(number).state = BlockState::Owned;
        self.owned += bytes;
        self.total_resident = self.total_resident.saturating_add(new as u64);
        self.last_size = bytes;
        self.note(bytes);
        if new > 0 {
            self.misses += 1;
        } else {
            self.hits += 1;
        }
        self.bound(new);
        Some(TakenBlock { span: Span::in_block(self.large.block(number).ptr(), bytes, number), touched })
    }

    /// The block that came back last if it has this size; else it goes to the others.
    fn take_last(&mut self, size: usize) -> Option<u32> {
        if self.last == 0 || self.large.block(self.last).bytes != size {
            self.settle();
            return None;
        }
        let number = std::mem::take(&mut self.last);
        self.large.stats.cached -= self.large.tag(number).0 as u64;
        Some(number)
    }

    /// Puts the block that came back last to the others.
    pub(super) fn settle(&mut self) {
        let number = std::mem::take(&mut self.last);
        if number != 0 {
            self.large.stats.cached -= self.large.tag(number).0 as u64;
            self.merge(number);
        }
    }

    /// Puts a large block that is in no list, and whose pages count nowhere, to the others. Where bytes without pages
    /// lie before some that have them, in one block now, they may have some from now on. Returns the number of that.
    fn merge(&mut self, number: u32) -> u32 {
        let before = self.large.stats.cached + self.large.tag(number).0 as u64;
        let number = self.large.merge(number, |_, _| true);
        self.total_resident += self.large.stats.cached - before;
        number
    }

    /// Takes back a block: its span as it was handed out.
    pub(super) fn put(&mut self, span: Span, pages: Pages) {
        let number = span.block();
        if span.bytes() > SMALL_MAX {
            return self.put_large(number, pages);
        }
        let number = self.small.merge(number, |_, _| true);
        let block = self.small.block(number);
        if block.before == 0 && block.after == 0 {
            let segment = self.small.tag_mut(number).0;
            self.small.unlink(number);
            self.small.leave(number);
            self.put_large(segment, pages);
        }
    }

    fn put_large(&mut self, number: u32, pages: Pages) {
        self.settle();
        let block = self.large.block(number);
        let (span, bytes) = (block.span(), block.bytes);
        self.owned -= bytes;
        if pages == Pages::Kept && bytes == self.last_size {
            self.large.status_mut(number).state = BlockState::Kept;
            self.large.stats.cached += self.large.tag(number).0 as u64;
            self.last = number;
            return self.bound(0);
        }
        if pages == Pages::Returned && self.ranges.return_pages(span) {
            *self.large.tag_mut(number) = Touched(0);
        }
        let number = self.merge(number);
        // A range of usual size waits for its next use; one that was made for a block does not.
        if pages == Pages::Returned && self.is_whole(number) && self.large.block(number).bytes > self.plan.range_bytes {
            self.large.unlink(number);
            self.unmap(number);
        }
        self.bound(0);
    }

    /// Whether a free block is all of its range.
    fn is_whole(&self, number: u32) -> bool {
        let block = self.large.block(number);
        block.before == 0 && block.after == 0
    }

    /// Gives back the range that a block, in no list, is all of.
    fn unmap(&mut self, number: u32) {
        let start = self.large.block(number).ptr();
        self.large.leave(number);
        self.ranges.unmap(start);
    }

    /// Counts what was handed out; ends the period, and looks at what went back, when it is time.
    fn note(&mut self, bytes: usize) {
        if self.owned > self.peaks[self.period] {
            self.peaks[self.period] = self.owned;
            self.recent_peak = self.peak_of();
        }
        self.requests += 1;
        self.volume = self.volume.saturating_add(bytes);
        if self.requests >= 1024 && self.volume / PERIOD >= self.recent_peak {
            (self.requests, self.volume) = (0, 0);
            self.period = (self.period + 1) % PERIODS;
            self.peaks[self.period] = self.owned;
            self.recent_peak = self.peak_of();
        }
        self.handed_out = self.handed_out.saturating_add(bytes);
        if self.handed_out / LOOK >= self.recent_peak {
            // Where a peak fell, it goes back once.
            let thrashes = self.returned > self.handed_out / LOOK;
            if thrashes && self.thrashed {
                self.times = (self.times + 1).min(TIMES_MAX);
            }
            (self.thrashed, self.handed_out, self.returned) = (thrashes, 0, 0);
        }
    }

    /// The peak of this period and the one before; that of all that are known, if it is at most four times as much.
    fn peak_of(&self) -> usize {
        let before = (self.period + PERIODS - 1) % PERIODS;
        let now = self.peaks[self.period].max(self.peaks[before]);
        let known = self.peaks.into_iter().max().unwrap_or(0);
        if known / 4 <= now { known } else { now }
    }

    /// Bytes that may have pages.
    pub(super) fn resident(&self) -> usize {
        self.owned + self.large.stats.cached as usize
    }

    /// The most that [`Store::resident`] was since the peak was set, now among it.
    pub(super) fn note_resident(&mut self) -> usize {
        self.peak_resident = self.peak_resident.max(self.resident());
        self.peak_resident
    }

    /// Bytes that wait here for their next use.
    pub(super) fn cached(&self) -> u64 {
        self.large.stats.cached + self.small.stats.cached
    }

    /// Bytes that wait for their next use, here and in caches of threads.
    pub(super) fn kept(&self) -> i64 {
        self.cached() as i64 + self.waiting
    }

    /// Bytes of blocks that are handed out, and wait in no cache of a thread. With what is kept, all that is resident.
    pub(super) fn used(&self) -> i64 {
        self.owned as i64 - self.small.stats.cached as i64 - self.waiting
    }

    /// Notes how many bytes are used and kept, before that changes. In the cache of the thread that changes it so many
    /// more waited since it told that last: at least, below 0, and at most.
    pub(super) fn note_use(&mut self, least: i64, most: i64) {
        self.peak_used = self.peak_used.max(self.used() - least);
        self.peak_kept = self.peak_kept.max(self.kept() + most);
    }

    /// Takes the peaks of what is resident, used and kept as of now.
    pub(super) fn restart_peaks(&mut self) {
        (self.peak_resident, self.peak_used, self.peak_kept) = (self.resident(), self.used(), self.kept());
    }

    /// Bytes of the largest free block that have pages.
    pub(super) fn largest_free(&mut self) -> u64 {
        self.settle();
        match self.large.lists[0].largest() {
            0 => 0,
            number => self.large.tag(number).0 as u64,
        }
    }

    /// The free blocks but the one that came back last: those out of ranges, and those out of segments.
    pub(super) fn free_blocks(&self) -> impl Iterator<Item = Span> {
        self.large.free_blocks().chain(self.small.free_blocks())
    }

    /// Requests that needed no page of the system.
    pub(super) fn hits(&self) -> u64 {
        self.hits + self.small.stats.hits
    }

    /// Gives pages back, as long as there are too many: twice as many as came for a request, `new`, and what the call
    /// has work left for.
    fn bound(&mut self, new: usize) {
        let recent = self.recent_peak;
        let kept = (recent / 8).saturating_mul(self.plan.kept_eighths).max(self.plan.kept_bytes);
        let admitted = recent.saturating_add(kept.saturating_mul(self.times));
        let excess = self.resident().saturating_sub(admitted);
        if excess == 0 {
            self.note_resident();
            return;
        }
        let share = RETURNED.min(work::left() as usize * MIB / work::MEBIBYTE as usize);
        let returned = self.give_back(excess.min(share + 2 * new));
        self.note_resident();
        self.returned = self.returned.saturating_add(returned);
        let for_others = returned.saturating_sub(2 * new).div_ceil(MIB) as u32;
        work::spend(for_others.saturating_mul(work::MEBIBYTE));
    }

    /// Gives the pages of free blocks back to the system, the largest ones first, until so many bytes went. Returns how
    /// many did.
    fn give_back(&mut self, bytes: usize) -> usize {
        self.settle();
        let mut given = 0;
        while given < bytes {
            let number = self.large.lists[0].largest();
            if number == 0 {
                break;
            }
            let (start, touched) = (self.large.block(number).ptr(), self.large.tag(number).0);
            // Whole large pages, as far as the block has some.
            let most = (bytes - given).max(HUGE);
            let keep = (start.addr().get() + touched.saturating_sub(most)) / HUGE * HUGE;
            let keep = keep.saturating_sub(start.addr().get());
            self.large.unlink(number);
            if keep == 0 && self.is_whole(number) {
                self.unmap(number);
            } else {
                let tail = Span::new(start, touched).part(keep, touched - keep);
                let returned = self.ranges.return_pages(tail);
                if returned {
                    *self.large.tag_mut(number) = Touched(keep);
                }
                self.large.link(number);
                if !returned {
                    break;
                }
            }
            given += touched - keep;
        }
        given
    }

    /// Gives back all that can be. Returns the bytes.
    pub(super) fn clear(&mut self) -> u64 {
        self.give_back(usize::MAX) as u64
    }

    /// A range of the address space with room for a block of this size, as one block.
    #[cold]
    fn range(&mut self, size: usize) -> Option<u32> {
        // Few and large: blocks of two ranges never become one, and what is free at their ends serves nobody.
        let roomy = self.large.segment_size(size).max(self.owned);
        let map = |ranges: &mut S, bytes: usize| ranges.map(bytes.checked_add(HUGE)?);
        let (bytes, start) = match map(&mut self.ranges, roomy) {
            Some(start) => (roomy, start),
            None => match map(&mut self.ranges, size) {
                Some(start) => (size, start),
                None => {
                    self.clear();
                    (size, map(&mut self.ranges, size)?)
                }
            },
        };
        let skip = start.addr().get().next_multiple_of(HUGE) - start.addr().get();
        Some(self.large.add(Span::new(start, bytes + skip).part(skip, bytes), 1, Touched(0)))
    }

    /// Whether the process may have so many bytes more resident; what waits here goes back before it may not.
    pub(super) fn physical_admits(&mut self, new: usize) -> bool {
        let Some(most) = self.physical_max else { return true };
        let now = (self.resident() as u64).max(system::resident_bytes().unwrap_or(0));
        let excess = now.saturating_add(new as u64).saturating_sub(most);
        excess == 0 || self.give_back(excess as usize) as u64 >= excess
    }
}

#[cfg(test)]
mod tests;
