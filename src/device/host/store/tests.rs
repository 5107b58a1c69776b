//! The store against a plain model: blocks never overlap, untouched bytes are zero, pages follow the peak.

use super::*;
use crate::device::blocks::SplitMix64;

fn new() -> Store {
    Store::new(HostPool::default())
}

/// The bytes of a block.
#[allow(unsafe_code)]
fn bytes_of(span: &mut Span) -> &mut [u8] {
    // SAFETY: the store handed the block out, and the test has not given it back.
    unsafe { std::slice::from_raw_parts_mut(span.ptr().as_ptr(), span.bytes()) }
}

/// A block written from end to end, with what was written.
struct WrittenBlock(Span, u8);

impl WrittenBlock {
    fn take(store: &mut Store, size: usize, mark: u8) -> WrittenBlock {
        let TakenBlock { mut span, touched } = store.take(size).expect("memory");
        assert!(span.bytes() >= size && span.ptr().addr().get().is_multiple_of(64));
        let bytes = bytes_of(&mut span);
        let dirty = bytes.iter().skip(touched).position(|&byte| byte != 0);
        assert_eq!(dirty, None, "{size} of {}: bytes beyond {touched} that nobody wrote are zero", bytes.len());
        bytes.fill(mark);
        WrittenBlock(span, mark)
    }

    fn put(mut self, store: &mut Store, pages: Pages) {
        assert!(bytes_of(&mut self.0).iter().all(|&byte| byte == self.1), "nobody else wrote to it");
        store.put(self.0, pages);
    }
}

#[test]
fn blocks_never_overlap_and_untouched_bytes_are_zero() {
    for seed in 0..4 {
        // Every other one gives no pages back by itself, so that those that went are known.
        let kept_bytes = if seed % 2 == 0 { usize::MAX } else { HostPool::default().kept_bytes };
        let mut store: Store = Store::new(HostPool { kept_bytes, ..HostPool::default() });
        let (mut held, mut total, mut went, mut draw) = (Vec::new(), 0, 0, SplitMix64(seed));
        for round in 0..if cfg!(miri) { 100 } else { 3000 } {
            let many = held.len() >= 60;
            if !held.is_empty() && (many || draw.below(5) < 2) {
                let block: WrittenBlock = held.swap_remove(draw.below(held.len()));
                let (pages, owned) = (if draw.below(4) == 0 { Pages::Returned } else { Pages::Kept }, store.owned);
                block.put(&mut store, pages);
                went += if pages == Pages::Returned { owned - store.owned } else { 0 };
            } else {
                let most = 1 << (6 + draw.below(16));
                let size = (64 + draw.below(most)).next_multiple_of(64);
                let size = if size <= SMALL_MAX { block_size::<Segment>(size).expect("small") } else { size };
                let block = WrittenBlock::take(&mut store, size, round as u8);
                total += block.0.bytes() as u64;
                held.push(block);
            }
            let came = (store.resident() + went) as u64;
            assert!(store.total_resident == came || kept_bytes < usize::MAX && store.total_resident > came);
            assert_eq!(store.used(), held.iter().map(|block| block.0.bytes() as i64).sum::<i64>());
            if round % 100 == 0 {
                went += store.give_back(draw.below(8 * MIB));
            }
        }
        held.drain(..).for_each(|block| block.put(&mut store, Pages::Kept));
        assert_eq!((store.owned, store.total_used), (0, total));
        store.clear();
        assert_eq!(
            (store.resident(), store.cached(), store.ranges.0.len()),
            (0, 0, 0),
            "everything is one again and went"
        );
    }
}

#[test]
fn the_block_that_came_back_last_is_handed_out_again_or_merges() {
    let (mut store, size) = (new(), 4 * SMALL_MAX);
    let take = |store: &mut Store, size| store.take(size).expect("memory").span;
    let [first, second] = [take(&mut store, size), take(&mut store, size)];
    let (place, cached) = (first.ptr(), store.cached());
    store.put(second, Pages::Kept);
    store.put(first, Pages::Kept);
    assert_eq!((store.cached() - cached, store.last != 0), (2 * size as u64, true), "counted as the others are");
    let again = take(&mut store, size);
    assert_eq!((again.ptr(), store.last, store.cached() - cached), (place, 0, size as u64));
    store.put(again, Pages::Kept);
    let both = take(&mut store, 2 * size);
    assert_eq!((both.ptr(), store.cached()), (place, cached), "the two are one for who asks for more");
    store.put(both, Pages::Kept);
    assert_eq!((store.largest_free(), store.last), (cached + 2 * size as u64, 0));
    store.clear();
    assert_eq!((store.cached(), store.resident(), store.ranges.0.len()), (0, 0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "maps gibibytes")]
fn each_request_is_a_hit_or_needs_pages() {
    // Broken by: a request for which a range is mapped, which is no hit of the lists, taken off these as well.
    let (mut store, mut requests) = (new(), 0);
    for round in 0..3 {
        for size in [4 * SMALL_MAX, 1024, 4 * SMALL_MAX, 64, 1024] {
            let TakenBlock { span, .. } = store.take(size).expect("memory");
            store.put(span, Pages::Kept);
            requests += 1;
            assert_eq!(store.hits() + store.misses, requests, "{size} B in round {round}");
        }
        store.clear();
    }
    assert!(store.hits() >= 6 && store.misses >= 3, "{} hits, {} misses", store.hits(), store.misses);
    store.physical_max = Some(1);
    assert!(store.take(64 * MIB).is_none());
    assert_eq!(store.hits() + store.misses, requests, "what was refused is neither");
}

#[test]
#[cfg_attr(miri, ignore = "maps gibibytes")]
fn a_range_of_a_returned_block_goes_with_it() {
    let mut store = new();
    for step in 1..20 {
        let TakenBlock { span, .. } = store.take((64 + step * 8) * MIB).expect("address space");
        store.put(span, Pages::Returned);
        assert!(store.ranges.0.len() <= 1, "{} ranges after {step} blocks", store.ranges.0.len());
    }
}

#[test]
fn resident_bytes_follow_the_peak_whatever_sizes_come() {
    let (mut store, mut draw) = (new(), SplitMix64(9));
    let (mut held, mut live, mut peak, mut highest) = (Vec::new(), 0, 0, 0);
    for round in 0..20_000 {
        // Sizes of one magnitude for a while, then of another.
        let size = (1 << (10 + round / 1000 % 12)) + draw.below(8192).next_multiple_of(64);
        let size = if size <= SMALL_MAX { block_size::<Segment>(size).expect("small") } else { size };
        while live + size > 48 * MIB {
            let TakenBlock { span, .. } = held.swap_remove(draw.below(held.len()));
            live -= span.bytes();
            store.put(span, Pages::Kept);
        }
        let taken = store.take(size).expect("memory");
        live += taken.span.bytes();
        held.push(taken);
        (peak, highest) = (peak.max(live), highest.max(store.resident()));
    }
    assert!(highest <= peak + peak / 2 + 32 * MIB, "{highest} bytes resident for {peak}");
}

/// 100 MiB, and then twice 60, beside 5: what is kept at first is too little for both.
#[test]
fn a_loop_whose_sizes_do_not_fit_into_each_others_places_comes_to_rest() {
    let mut store = new();
    let mut misses = Vec::new();
    for _ in 0..500 {
        work::begin();
        let mut held = vec![store.take(100 * MIB).expect("memory"), store.take(5 * MIB).expect("memory")];
        store.put(held.swap_remove(0).span, Pages::Kept);
        held.extend((0..2).map(|_| store.take(60 * MIB).expect("memory")));
        held.into_iter().for_each(|taken| store.put(taken.span, Pages::Kept));
        misses.push(store.misses);
    }
    assert!(misses[20] > misses[10], "{misses:?}");
    assert_eq!(misses[300], misses[499], "{misses:?}");
}

#[test]
fn a_loop_of_the_same_sizes_soon_asks_the_system_for_nothing() {
    let mut store = new();
    let mut misses = Vec::new();
    for _ in 0..200 {
        let mut draw = SplitMix64(3);
        let mut held: Vec<TakenBlock> = Vec::new();
        for _ in 0..100 {
            held.push(store.take(SMALL_MAX + draw.below(3 * MIB)).expect("memory"));
            if draw.below(3) == 0 {
                store.put(held.swap_remove(draw.below(held.len())).span, Pages::Kept);
            }
        }
        held.drain(..).for_each(|taken| store.put(taken.span, Pages::Kept));
        misses.push(store.misses);
    }
    assert_eq!(misses[10], misses[199], "{misses:?}");
}

#[test]
fn a_peak_that_is_long_ago_is_forgotten_and_no_call_gives_back_more_than_its_share() {
    let mut store = new();
    let large = store.take(512 * MIB).expect("memory");
    store.put(large.span, Pages::Kept);
    let mut before = store.resident();
    assert!(before >= 512 * MIB, "kept for reuse");
    for _ in 0..40_000 {
        // A call: what it gives back to the system is work for others.
        work::begin();
        let block = store.take(4 * MIB).expect("memory");
        store.put(block.span, Pages::Kept);
        assert!(before.saturating_sub(store.resident()) <= 2 * (RETURNED + HUGE), "a call's share");
        before = store.resident();
    }
    assert!(before < 40 * MIB, "{before} bytes for 4 MiB");
}

#[test]
fn blocks_that_come_back_in_one_call_do_not_all_give_their_pages_back_in_it() {
    let mut store = new();
    let blocks: Vec<TakenBlock> = (0..64).map(|_| store.take(8 * MIB).expect("memory")).collect();
    blocks.into_iter().for_each(|block| store.put(block.span, Pages::Kept));
    let mut forgotten = || {
        for _ in 0..8000 {
            let block = store.take(2 * MIB).expect("memory");
            work::begin();
            let before = store.resident();
            // As many as a drain may have.
            for _ in 0..64 {
                let small = store.take(SMALL_MAX * 2).expect("memory");
                store.put(small.span, Pages::Kept);
            }
            assert!(before.saturating_sub(store.resident()) <= 2 * (RETURNED + HUGE), "a call's share");
            work::begin();
            store.put(block.span, Pages::Kept);
        }
        store.resident()
    };
    assert!(forgotten() < 512 * MIB, "some of them did");
}
