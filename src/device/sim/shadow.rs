//! What the checker knows of a block: who used it last, and which of its bytes were written.

use std::ops::Range;

use crate::device::{
    kernel::OwnedView,
    stream::{Clock, MAX_STREAMS},
};

/// A use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Use {
    /// The kernel; or `alloc`, `upload`, `download`, `free`.
    pub kernel: &'static str,
    /// The stream; `None` for the host.
    pub stream: Option<usize>,
    /// The how-manieth operation of that stream it was, from 1.
    pub operation: u64,
}

/// A set of byte offsets: words up to the last one that has some.
#[derive(Debug, Default)]
pub(super) struct BitSet(Vec<u64>);

impl BitSet {
    /// The words that a range touches, each with the bits of the range in it.
    fn words(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        (range.start / 64..range.end.div_ceil(64)).map(move |word| {
            let low = range.start.saturating_sub(word * 64);
            let high = (range.end - word * 64).min(64);
            (word, (u64::MAX << low) & (u64::MAX >> (64 - high)))
        })
    }

    /// The offsets of a range, counted from its start.
    fn part(&self, range: Range<usize>) -> Self {
        let (first, shift) = (range.start / 64, range.start % 64);
        let word = |at: usize| self.0.get(at).copied().unwrap_or(0);
        let both = |at: usize| (word(at) >> shift) | (word(at + 1) << 1 << (63 - shift));
        let words = range.len().div_ceil(64).min(self.0.len().saturating_sub(first));
        BitSet((0..words).map(|i| both(first + i)).collect())
    }

    fn insert(&mut self, range: Range<usize>) {
        self.0.resize(self.0.len().max(range.end.div_ceil(64)), 0);
        Self::words(range).for_each(|(word, mask)| self.0[word] |= mask);
    }

    /// The first offset of a range that is, or is not, in the set.
    fn find(&self, range: Range<usize>, present: bool) -> Option<usize> {
        Self::words(range).find_map(|(word, mask)| {
            let bits = self.0.get(word).copied().unwrap_or(0);
            let found = if present { bits } else { !bits } & mask;
            (found != 0).then(|| word * 64 + found.trailing_zeros() as usize)
        })
    }
}

/// Calls `f` with the runs of bytes, counted from the start of the view's span, that its elements lie in.
fn for_each_run(view: &OwnedView, f: &mut dyn FnMut(Range<usize>)) {
    let (layout, elem_bytes) = (view.layout(), view.dtype().size_in_bytes());
    if layout.shape().elem_count() == 0 {
        return;
    }
    let mut first = layout.offset();
    let mut axes = Vec::with_capacity(layout.dims().len());
    for (&dim, &stride) in layout.dims().iter().zip(layout.strides()) {
        if dim > 1 && stride != 0 {
            first = if stride < 0 { first.saturating_sub((dim - 1) * stride.unsigned_abs()) } else { first };
            axes.push((stride.unsigned_abs(), dim));
        }
    }
    // Which elements are reached does not depend on the order of axes: the smallest steps first, as far as
    // they leave no gap.
    axes.sort_unstable();
    let mut run = 1;
    let mut inner = 0;
    while let Some(&(stride, dim)) = axes.get(inner).filter(|&&(stride, _)| stride <= run) {
        run += (dim - 1) * stride;
        inner += 1;
    }
    walk(&axes[inner..], first, &mut |start| f(start * elem_bytes..(start + run) * elem_bytes));
}

fn walk(axes: &[(usize, usize)], start: usize, f: &mut dyn FnMut(usize)) {
    match axes.split_last() {
        None => f(start),
        Some((&(stride, dim), rest)) => (0..dim).for_each(|i| walk(rest, start + i * stride, f)),
    }
}

/// Whether two views reach a byte in common.
pub(super) fn overlap(a: &OwnedView, b: &OwnedView) -> bool {
    let ends = [a, b].map(|view| {
        let start = view.span().ptr().addr().get();
        (start, start + view.layout().end() * view.dtype().size_in_bytes())
    });
    if ends[0].0 >= ends[1].1 || ends[1].0 >= ends[0].1 {
        return false;
    }
    let base = ends[0].0.min(ends[1].0);
    let mut bits = BitSet::default();
    for_each_run(a, &mut |run| bits.insert(run.start + ends[0].0 - base..run.end + ends[0].0 - base));
    let mut found = false;
    for_each_run(b, &mut |run| {
        found |= bits.find(run.start + ends[1].0 - base..run.end + ends[1].0 - base, true).is_some();
    });
    found
}

/// A range of a segment that was handed out or sub-allocated as one, or that never was.
#[derive(Debug)]
pub(super) struct Shadow {
    /// The how-manieth allocation of the device it lies in.
    pub(super) number: u64,
    pub(super) bytes: usize,
    written: Option<Use>,
    /// For each stream, its last read since the last write; before the first write, its last use by whoever had these
    /// bytes before.
    read: [Option<Use>; MAX_STREAMS],
    initialised: BitSet,
}

impl Shadow {
    pub(super) fn new(number: u64, bytes: usize) -> Self {
        Shadow { number, bytes, written: None, read: [None; MAX_STREAMS], initialised: BitSet::default() }
    }

    /// What is known of some of the bytes.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        let Shadow { number, written, read, .. } = *self;
        Shadow { number, bytes: range.len(), written, read, initialised: self.initialised.part(range) }
    }

    /// Whoever has these bytes next has to be behind the use.
    pub(super) fn follow(&mut self, by: Use) {
        let Some(stream) = by.stream else { return };
        if self.read[stream].is_none_or(|other| other.operation < by.operation) {
            self.read[stream] = Some(by);
        }
    }

    /// Whoever has these bytes next has to be behind all uses of the other's.
    pub(super) fn follow_all(&mut self, other: &Shadow) {
        other.written.iter().chain(other.read.iter().flatten()).for_each(|&by| self.follow(by));
    }

    /// The uses that a read, or a write, at `now` has to be behind and is not.
    pub(super) fn unordered(&self, writes: bool, now: &Clock) -> Vec<Use> {
        let reads = self.read.iter().flatten().filter(|_| writes);
        let uses = self.written.iter().chain(reads);
        uses.filter(|by| by.stream.is_some_and(|stream| now.get(stream) < by.operation)).copied().collect()
    }

    /// What lies in here of a range that is counted from `skip` bytes behind the start.
    fn clip(&self, range: Range<usize>, skip: isize) -> Range<usize> {
        let at = |byte: usize| byte.saturating_add_signed(skip).min(self.bytes);
        at(range.start)..at(range.end)
    }

    /// The first byte in here that the view reaches and nobody wrote; its span begins `skip` bytes behind the start.
    pub(super) fn uninitialised(&self, view: &OwnedView, skip: isize) -> Option<usize> {
        let mut first = None;
        for_each_run(view, &mut |run| {
            first = first.or_else(|| self.initialised.find(self.clip(run, skip), false));
        });
        first
    }

    pub(super) fn note_read(&mut self, stream: usize, by: Use) {
        self.read[stream] = Some(by);
    }

    pub(super) fn note_write(&mut self, by: Use, view: &OwnedView, skip: isize) {
        self.written = Some(by);
        self.read = [None; MAX_STREAMS];
        for_each_run(view, &mut |run| self.initialised.insert(self.clip(run, skip)));
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::base::{dtype::DType, layout::Layout, shape::Shape};
    use crate::device::span::Span;

    fn view(layout: Layout) -> OwnedView {
        OwnedView::new(Span::new(NonNull::<u64>::dangling().cast(), 4096), DType::U8, layout)
    }

    fn reached(layout: Layout) -> Vec<usize> {
        let mut all = Vec::new();
        for_each_run(&view(layout), &mut |run| all.extend(run));
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn runs_cover_the_elements_of_a_layout_and_no_others() {
        let base = Layout::contiguous(Shape::from((4, 6, 5)));
        let inner = base.narrow(1, 2, 3).expect("inside").narrow(2, 1, 2).expect("inside");
        let flipped = inner.flip(0).flip(2).stepped(1, 2, 2, -2).expect("inside");
        let views =
            [base, inner, inner.transpose(0, 2), inner.select(1, 1), flipped, base.narrow(0, 0, 0).expect("empty")];
        for layout in views {
            let mut expected = vec![layout.offset()];
            for (&dim, &stride) in layout.dims().iter().zip(layout.strides()) {
                expected = expected
                    .iter()
                    .flat_map(|o| (0..dim).map(move |i| o.wrapping_add_signed(i as isize * stride)))
                    .collect();
            }
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(reached(layout), expected, "{layout:?}");
        }
        let row = Layout::contiguous(Shape::from(5)).broadcast_to(&Shape::from((3, 5)), "test").expect("fits");
        assert_eq!(reached(row), [0, 1, 2, 3, 4], "a repeated axis reaches nothing new");
    }

    #[test]
    fn bits_find_the_first_hole_across_words() {
        let mut bits = BitSet::default();
        bits.insert(3..200);
        assert_eq!(bits.find(3..200, false), None);
        assert_eq!(bits.find(3..201, false), Some(200));
        assert_eq!(bits.find(0..3, true), None);
        assert_eq!(bits.find(0..64, true), Some(3));
        assert_eq!(bits.find(5..5, false), None);
    }

    #[test]
    fn a_part_of_bits_is_their_range_wherever_it_begins() {
        let mut bits = BitSet::default();
        [3..9, 60..70, 127..129, 200..300].into_iter().for_each(|range| bits.insert(range));
        for range in [0..300, 3..70, 64..192, 61..64, 128..300, 299..300, 5..5] {
            let part = bits.part(range.clone());
            for at in range.clone() {
                let [whole, own] =
                    [(&bits, at), (&part, at - range.start)].map(|(bits, at)| bits.find(at..at + 1, true).is_some());
                assert_eq!(whole, own, "{at} of {range:?}");
            }
        }
    }

    #[test]
    fn views_overlap_if_they_share_a_byte() {
        let base = Layout::contiguous(Shape::from((4, 4)));
        let [left, right] = [0, 2].map(|start| view(base.narrow(1, start, 2).expect("inside")));
        assert!(!overlap(&left, &right), "columns interleave without touching");
        assert!(overlap(&left, &view(base)));
    }
}
