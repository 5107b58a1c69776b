//! The host's pool of addresses with nothing behind them: what it would do, without the memory.
//!
//! Of the pages that it would have exactly those are known that somebody wrote to and that it did not give back, while
//! the pool itself knows how many it may have at most. Blocks that threads keep for themselves wait in the store here.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;

use crate::base::work;
use crate::device::{
    host::{
        pool::class_of,
        store::{HUGE, HostPool, PageSource, Pages, SMALL_MAX, Store},
    },
    span::Span,
};

const PAGE: usize = 4096;

/// Ranges of addresses, and their pages.
#[derive(Debug, Default)]
struct AddressRanges {
    /// Begin and bytes of each range.
    ranges: BTreeSet<(usize, usize)>,
    /// Pages that somebody wrote to: begins and ends, apart from each other.
    written: BTreeSet<(usize, usize)>,
    /// Bytes of these.
    bytes: usize,
}

/// The addresses of all pages that a span lies in.
fn pages_of(span: Span) -> Range<usize> {
    let start = span.ptr().addr().get();
    start / PAGE * PAGE..(start + span.bytes()).next_multiple_of(PAGE)
}

/// The last one that begins before an address.
fn last_before(parts: &BTreeSet<(usize, usize)>, end: usize) -> Option<(usize, usize)> {
    parts.range(..(end, 0)).next_back().copied()
}

impl AddressRanges {
    /// Takes the pages of some addresses out, as far as they are there. Returns their bytes.
    fn forget(&mut self, part: Range<usize>) -> usize {
        let mut gone = 0;
        // The last one that begins before the end, until it ends before the begin.
        while let Some((start, end)) = last_before(&self.written, part.end).filter(|last| last.1 > part.start) {
            self.written.remove(&(start, end));
            gone += end.min(part.end) - start.max(part.start);
            if end > part.end {
                self.written.insert((part.end, end));
            }
            if start < part.start {
                self.written.insert((start, part.start));
            }
        }
        self.bytes -= gone;
        gone
    }

    /// Somebody writes to all of a block. Returns the bytes of the pages that the system gives for it.
    fn write(&mut self, span: Span) -> usize {
        let pages = pages_of(span);
        if last_before(&self.written, pages.start + 1).is_some_and(|last| last.1 >= pages.end) {
            return 0;
        }
        let before = self.forget(pages.clone());
        self.bytes += pages.len();
        // As one with what lies beside it.
        let (mut start, mut end) = (pages.start, pages.end);
        while let Some(beside) = last_before(&self.written, end + 1).filter(|last| last.1 >= start) {
            self.written.remove(&beside);
            (start, end) = (start.min(beside.0), end.max(beside.1));
        }
        self.written.insert((start, end));
        pages.len() - before
    }

    /// How many bytes of a span lie in pages that somebody wrote to.
    fn written(&self, span: Span) -> usize {
        let (start, end) = (span.ptr().addr().get(), span.ptr().addr().get() + span.bytes());
        let parts = self.written.range(..(end, 0)).rev().take_while(|part| part.1 > start);
        parts.map(|&(first, last)| last.min(end) - first.max(start)).sum()
    }
}

impl PageSource for AddressRanges {
    fn map(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let start = self.ranges.last().map_or(HUGE, |(start, bytes)| (start + bytes).next_multiple_of(HUGE));
        start.checked_add(bytes)?.checked_next_multiple_of(HUGE)?;
        self.ranges.insert((start, bytes));
        NonZero::new(start).map(NonNull::without_provenance)
    }

    fn unmap(&mut self, start: NonNull<u8>) {
        if let Some((start, bytes)) = last_before(&self.ranges, start.addr().get() + 1) {
            self.ranges.remove(&(start, bytes));
            self.forget(start..start + bytes);
        }
    }

    fn return_pages(&mut self, part: Span) -> bool {
        let start = part.ptr().addr().get();
        self.forget(start..start + part.bytes());
        true
    }
}

/// The pool.
#[derive(Debug)]
pub(crate) struct HostAddresses {
    store: Store<AddressRanges>,
    /// Requests for which the system gave pages, and the bytes of all of these.
    misses: u64,
    fresh: u64,
}

impl HostAddresses {
    pub(crate) fn new(plan: HostPool) -> Self {
        HostAddresses { store: Store::new(plan), misses: 0, fresh: 0 }
    }

    /// A block for so many bytes, at least one, all of which are written. `None`: the address space is used up.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Span> {
        let size = if bytes <= SMALL_MAX { class_of(bytes).1 } else { bytes };
        let span = work::of_call(|| self.store.take(size))?.span;
        let fresh = self.store.ranges.write(Span::new(span.ptr(), bytes));
        self.misses += u64::from(fresh > 0);
        self.fresh = self.fresh.saturating_add(fresh as u64);
        Some(span)
    }

    /// Takes back what [`HostAddresses::take`] gave.
    pub(crate) fn put(&mut self, span: Span) {
        work::of_call(|| self.store.put(span, Pages::Kept));
    }

    /// Bytes that have pages.
    pub(crate) fn reserved(&self) -> u64 {
        self.store.ranges.bytes as u64
    }

    /// Requests for which the system gave pages, and the bytes of all of these.
    pub(crate) fn misses(&self) -> (u64, u64) {
        (self.misses, self.fresh)
    }

    /// Bytes of pages of the free block that has most of them, and of all free blocks.
    pub(crate) fn free(&mut self) -> (u64, u64) {
        self.store.settle();
        let places = &self.store.ranges;
        let written = self.store.free_blocks().map(|span| places.written(span) as u64);
        written.fold((0, 0), |(most, sum), bytes| (most.max(bytes), sum + bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::blocks::SplitMix64;

    #[test]
    fn pages_are_those_of_a_plain_model() {
        let (mut places, mut model, mut draw) = (AddressRanges::default(), [false; 64], SplitMix64(3));
        for _ in 0..2000 {
            let (first, count) = (draw.below(64), 1 + draw.below(16));
            let pages = first..(first + count).min(64);
            let bytes = pages.len() * PAGE - draw.below(PAGE);
            let start = NonNull::without_provenance(NonZero::new(HUGE + first * PAGE).expect("not null"));
            let span = Span::new(start, bytes);
            let part = &mut model[pages.clone()];
            assert_eq!(
                places.written(Span::new(start, pages.len() * PAGE)),
                part.iter().filter(|page| **page).count() * PAGE
            );
            if draw.below(2) == 0 {
                assert_eq!(places.write(span), part.iter().filter(|page| !**page).count() * PAGE);
                part.fill(true);
            } else {
                assert!(places.return_pages(Span::new(start, pages.len() * PAGE)));
                part.fill(false);
            }
            assert_eq!(places.bytes, model.iter().filter(|page| **page).count() * PAGE);
            assert!(places.written.iter().zip(places.written.iter().skip(1)).all(|((_, end), (start, _))| end < start));
        }
    }
}
