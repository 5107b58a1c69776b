//! The pool against a plain model: blocks never overlap, everything becomes one again, little is wasted.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ptr::NonNull;

use super::*;
use crate::device::blocks::{LEVELS, MIB, STEPS, Segments, SplitMix64, block_size, class_of};

const GRAIN: usize = Uses::GRAIN;

/// A pool over a driver that gives addresses and nothing behind them.
struct PoolModel {
    pool: Pool,
    next: usize,
    /// By address: bytes of the driver's segments, and of owners.
    segments: BTreeMap<usize, usize>,
    owners: BTreeMap<usize, (Span, usize)>,
    /// Bytes of all blocks that were given.
    given: u64,
}

impl PoolModel {
    fn new(segments: Segments) -> Self {
        let pool = Pool::new(3, segments);
        PoolModel { pool, next: 1 << 20, segments: BTreeMap::new(), owners: BTreeMap::new(), given: 0 }
    }

    fn alloc(&mut self, stream: usize, bytes: usize) -> Span {
        let size = block_size::<Uses>(bytes).expect("small");
        let block = self.pool.take(stream, size).unwrap_or_else(|| {
            let segment = self.pool.segment_size(size);
            // Segments that touch each other show that blocks of two are not merged.
            let at = NonZero::new(self.next).expect("not null");
            self.segments.insert(self.next, segment);
            self.next += segment;
            let whole =
                self.pool.add(Span::new(NonNull::without_provenance(at), segment), stream as u8, Uses::born(stream, 1));
            self.pool.suballocate(whole, size)
        });
        let (span, reserved) = self.pool.give(block, stream, bytes);
        self.given += reserved as u64;
        let start = span.ptr().addr().get();
        assert!(start.is_multiple_of(GRAIN) && reserved >= bytes && span.bytes() == bytes);
        let before = self.owners.range(..start + reserved).next_back();
        assert!(before.is_none_or(|(at, (_, bytes))| at + bytes <= start), "blocks do not overlap");
        let segment = self.segments.range(..=start).next_back();
        assert!(segment.is_some_and(|(at, bytes)| start + reserved <= at + bytes), "a block lies in one segment");
        self.owners.insert(start, (span, reserved));
        span
    }

    fn free(&mut self, nth: usize) {
        let (&start, &(span, _)) = self.owners.iter().nth(nth).expect("in range");
        self.owners.remove(&start);
        self.pool.put(span);
    }

    /// Everything that has to hold between two calls.
    fn check(&self) {
        let pool = &self.pool;
        let mut covered = BTreeMap::new();
        for number in 1..=pool.blocks.len() as u32 {
            let (block, status) = (pool.block(number), pool.status(number));
            if status.state == BlockState::Gone {
                continue;
            }
            let start = block.ptr().addr().get();
            covered.insert(start, block.bytes);
            if block.after != 0 {
                let after = pool.block(block.after);
                assert_eq!((after.before, after.ptr().addr().get()), (number, start + block.bytes));
                let after = pool.status(block.after);
                let both = status.state == BlockState::Free && after.state == BlockState::Free;
                assert!(!both || status.mark != after.mark, "free neighbours are one");
            }
            assert_eq!(status.state == BlockState::Owned, self.owners.contains_key(&start));
        }
        let mut at = 1 << 20;
        for (start, bytes) in covered {
            assert_eq!(start, at, "blocks cover the segments");
            at += bytes;
        }
        assert_eq!(at, self.next);
        self.check_lists();
        let active: usize = self.owners.values().map(|(span, _)| span.bytes()).sum();
        assert_eq!(pool.stats.active, active as u64);
        let stats = &pool.stats;
        assert!(stats.peak_used >= stats.used && stats.peak_cached >= stats.cached, "{stats:?}");
        assert!(stats.peak_reserved >= stats.peak_used.max(stats.peak_cached), "{stats:?}");
        assert_eq!(stats.total_used, self.given);
    }

    fn check_lists(&self) {
        let pool = &self.pool;
        let (mut listed, mut cached) = (0, 0);
        for (home, lists) in pool.lists.iter().enumerate() {
            for (class, list) in lists.classes.iter().enumerate() {
                assert_eq!(!list.is_empty(), lists.steps[class / STEPS] & (1 << (class % STEPS)) != 0);
                for (slot, &number) in list.iter().enumerate() {
                    let (block, status) = (pool.block(number), pool.status(number));
                    let found =
                        (status.state, usize::from(status.home), class_of::<Uses>(block.bytes), block.slot as usize);
                    assert_eq!(found, (BlockState::Free, home, class, slot));
                    (listed, cached) = (listed + 1, cached + block.bytes);
                }
            }
            assert!((0..LEVELS).all(|level| (lists.steps[level] != 0) == (lists.levels & (1 << level) != 0)));
        }
        assert_eq!(listed, pool.statuses.iter().filter(|status| status.state == BlockState::Free).count());
        assert_eq!(pool.stats.cached, cached as u64);
    }
}

fn rounds() -> usize {
    if cfg!(miri) { 300 } else { 6000 }
}

#[test]
fn sizes_waste_at_most_one_part_in_32_beyond_the_smallest() {
    for bytes in (1..10_000).chain((1..4000).map(|i| i * 1021)).chain((8..60).map(|i| (1 << i) + 1)) {
        let size = block_size::<Uses>(bytes).expect("far from overflow");
        assert!((bytes..=bytes + bytes / STEPS + GRAIN).contains(&size) && size.is_multiple_of(GRAIN), "{bytes}");
        assert_eq!(block_size::<Uses>(size), Some(size), "a size is a size");
        assert_eq!(class_of::<Uses>(size), class_of::<Uses>(size + GRAIN - 1), "{bytes}");
        assert!(size == GRAIN || class_of::<Uses>(size - GRAIN) < class_of::<Uses>(size), "{bytes}");
    }
    assert_eq!((block_size::<Uses>(usize::MAX), block_size::<Uses>(isize::MAX as usize)), (None, None));
    let largest = (isize::MAX as usize >> 1) + 1;
    assert!(class_of::<Uses>(block_size::<Uses>(largest).expect("fits")) < LEVELS * STEPS);
}

#[test]
fn random_programs_keep_the_pool_in_order_and_leave_whole_segments() {
    for (seed, segments) in
        [Segments::Each, Segments::Of(1 << 16), Segments::Of(1 << 20), Segments::Graded].into_iter().enumerate()
    {
        let (mut model, mut draw) = (PoolModel::new(segments), SplitMix64(seed as u64));
        for round in 0..rounds() {
            let full = model.owners.len() >= 200;
            if !model.owners.is_empty() && (full || draw.below(5) < 2) {
                let nth = draw.below(model.owners.len());
                model.free(nth);
            } else {
                let (stream, bytes) = (draw.below(3), draw.size(23));
                model.alloc(stream, bytes);
            }
            if round % 50 == 0 {
                model.check();
            }
        }
        while !model.owners.is_empty() {
            model.free(draw.below(model.owners.len()));
        }
        model.check();
        let blocks = model.pool.statuses.iter().filter(|status| status.state != BlockState::Gone).count();
        assert_eq!(blocks, model.segments.len(), "{segments:?}: everything is one again");
        let mut back = BTreeMap::new();
        let seen = std::cell::RefCell::new(&mut back);
        let take = |span: Span| {
            seen.borrow_mut().insert(span.ptr().addr().get(), span.bytes());
            Ok(())
        };
        model.pool.release(take).expect("nothing fails");
        assert_eq!(back, model.segments, "{segments:?}: all segments go back as they came");
        assert_eq!(model.pool.stats.cached, 0);
    }
}

#[test]
fn a_program_that_repeats_itself_soon_asks_for_nothing() {
    let mut model = PoolModel::new(Segments::Graded);
    let mut asked = Vec::new();
    for _ in 0..20 {
        let mut draw = SplitMix64(7);
        for _ in 0..300 {
            let bytes = draw.size(22);
            model.alloc(0, bytes);
            if draw.below(3) == 0 {
                let nth = draw.below(model.owners.len());
                model.free(nth);
            }
        }
        while !model.owners.is_empty() {
            model.free(0);
        }
        asked.push(model.segments.len());
    }
    assert!(asked[5..].iter().all(|&count| count == asked[5]), "{asked:?}");
}

#[test]
fn waste_is_bounded() {
    let (mut model, mut draw) = (PoolModel::new(Segments::Graded), SplitMix64(11));
    // Sizes as in training: few different ones, from a bias to a batch of activations.
    let sizes: Vec<usize> = (0..12).map(|_| draw.size(22) + (1 << 12)).collect();
    for _ in 0..rounds() {
        if model.owners.len() >= 400 {
            let nth = draw.below(model.owners.len());
            model.free(nth);
        }
        let bytes = sizes[draw.below(sizes.len())];
        model.alloc(0, bytes);
    }
    let held: usize = model.segments.values().sum();
    let peak = model.pool.stats.peak as usize;
    assert!(held < peak + peak / 3, "{held} bytes held for {peak}");
}

#[test]
fn large_blocks_are_left_to_large_requests() {
    let mut model = PoolModel::new(Segments::Graded);
    let large = model.alloc(0, 64 * MIB);
    model.pool.put(large);
    model.owners.clear();
    model.alloc(0, 5 * MIB);
    assert_eq!(model.segments.len(), 2, "a segment of its own");
    assert_eq!(model.pool.stats.cached as usize, 64 * MIB + 15 * MIB);
    let quarter = model.alloc(0, 16 * MIB);
    assert_eq!(model.segments.len(), 2, "a quarter may have a part");
    assert_eq!(quarter.ptr(), large.ptr());
    assert!(model.pool.take(0, MIB).is_none(), "small requests keep to small segments");
    assert!(model.pool.take_any(0, MIB).is_some(), "but if there is nothing else");
}

#[test]
fn wrong_spans_change_nothing() {
    let mut model = PoolModel::new(Segments::Of(1 << 16));
    let [a, b] = [100, 1000].map(|bytes| model.alloc(0, bytes));
    let (before, a_block) = (model.pool.stats, a.block());
    let part = Span::in_block(b.ptr(), 10, a_block);
    for wrong in [Span::new(a.ptr(), 100), Span::in_block(b.ptr(), 1000, a_block), part, Span::in_block(a.ptr(), 1, 99)]
    {
        model.pool.put(wrong);
        assert!(model.pool.find(wrong).is_none());
    }
    assert_eq!(model.pool.stats, before);
    let inside = a.ptr().map_addr(|at| at.checked_add(50).expect("small"));
    assert!(model.pool.find(Span::in_block(inside, 50, a_block)).is_some());
    assert!(model.pool.find(Span::in_block(inside, 300, a_block)).is_none());
    model.pool.put(a);
    model.pool.put(a);
    assert_eq!(model.pool.stats.active, 1000, "twice is once");
    assert!(model.pool.find(a).is_none());
}

/// Invariant I9 (design.md).
#[test]
fn merged_blocks_are_behind_the_uses_of_their_parts() {
    let mut model = PoolModel::new(Segments::Of(1 << 12));
    let spans = [0, 1, 2].map(|stream| model.alloc(stream, 1024));
    for (stream, span) in spans.iter().enumerate() {
        model.pool.find(*span).expect("owned").note(stream, 10 + stream as u64, Access::Write);
    }
    model.owners.clear();
    spans.iter().for_each(|&span| model.pool.put(span));
    let whole = model.alloc(0, 4096);
    let demanded = model.pool.find(whole).expect("owned").demanded(true);
    assert_eq!([0, 1, 2].map(|stream| demanded.get(stream)), [10, 11, 12]);
}

/// Sections that take, free and take again between calls of others, each with a graph or without one.
#[test]
fn sections_keep_what_they_touched_and_give_all_of_it_back() {
    for (seed, segments) in [Segments::Each, Segments::Of(1 << 16), Segments::Graded].into_iter().enumerate() {
        let (mut model, mut draw) = (PoolModel::new(segments), SplitMix64(seed as u64));
        let mut graphs: Vec<Vec<(u32, bool)>> = Vec::new();
        for _ in 0..rounds() / 60 {
            for _ in 0..20 {
                let bytes = draw.size(18);
                model.alloc(0, bytes);
            }
            let mut touched = Vec::new();
            for _ in 0..30 {
                let nth = draw.below(model.owners.len().max(1));
                match draw.below(3) {
                    0 if !model.owners.is_empty() => model.free(nth),
                    1 if !model.owners.is_empty() => {
                        let span = model.owners.values().nth(nth).expect("in range").0;
                        touched.extend(model.pool.mark_use(span, Access::Read));
                    }
                    _ => {
                        let bytes = draw.size(18);
                        let block = model.alloc(0, bytes).block();
                        touched.extend(model.pool.mark_born(block).then_some(block));
                        touched.extend(model.pool.rest_of(block));
                    }
                }
            }
            for i in (0..touched.len()).step_by(3) {
                touched.extend(model.pool.merge_into_section(touched[i]));
            }
            model.check();
            graphs.push(model.pool.end_section(touched, draw.below(4) > 0));
            model.check();
            if graphs.len() > 6 {
                let gone = graphs.swap_remove(draw.below(6));
                model.pool.unpin(&gone);
            }
            while model.owners.len() > 40 {
                model.free(draw.below(model.owners.len()));
            }
            model.check();
        }
        while !model.owners.is_empty() {
            model.free(0);
        }
        graphs.iter().for_each(|graph| model.pool.unpin(graph));
        model.check();
        assert_eq!(model.pool.stats.captured, 0);
        let blocks = model.pool.statuses.iter().filter(|status| status.state != BlockState::Gone).count();
        assert_eq!(blocks, model.segments.len(), "{segments:?}: everything is one again");
    }
}

#[test]
fn finding_a_block_takes_as_many_steps_among_many_as_among_few() {
    for live in [100, if cfg!(miri) { 300 } else { 100_000 }] {
        let mut model = PoolModel::new(Segments::Graded);
        let spans: Vec<Span> = (0..2 * live).map(|_| model.alloc(0, 1024)).collect();
        // Every other one: as many pieces of one size as there can be.
        spans.iter().step_by(2).for_each(|&span| model.pool.put(span));
        let class = class_of::<Uses>(1024);
        assert_ne!(model.pool.lists[0].first_from(class), 0);
        let first = model.pool.take(0, 1024).expect("the head of the first list");
        assert_eq!(first, spans[2 * live - 2].block(), "the one freed last");
    }
}
