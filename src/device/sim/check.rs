//! The checker: were accesses ordered, of live blocks, of bytes that had been written?
//!
//! It sees the calls that reach the driver and nothing else, so it judges the waits that were really made. Each
//! stream and the host have a clock of the operations they are behind; an event carries a copy of its
//! stream's. An access is compared with the earlier ones of its block, at the moment of its submission, so
//! that a missing wait is found in every run and not only when the draw of the queues exposes it.
//!
//! The bytes of the driver's segments are divided into shadows: one for each range that was handed out, or
//! sub-allocated from one that was, anew each time, and for what never was. A new shadow follows all uses of the bytes
//! that it covers.
//!
//! What a captured section uses is looked at twice: whether it has an owner when it is recorded, and whether it is
//! ordered and written at each replay. In between nobody else may be given it.

use std::ops::Range;

use crate::device::{
    kernel::{Access, OwnedView},
    sim::{
        places::AddressMap,
        shadow::{Shadow, Use, overlap},
    },
    span::Span,
    stream::{Clock, MAX_STREAMS},
};

/// Blocks begin and end at multiples of this.
const GRAIN: usize = 256;

/// Violations beyond so many are not kept.
const VIOLATIONS_MAX: usize = 4096;

/// Something that a real device would have punished, now or in one of many runs.
///
/// A block is named by the number of the driver allocation that it lies in, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two uses of a block, at least one of them a write, may run in either order or at once.
    Unordered {
        /// The block.
        block: u64,
        /// The use submitted first.
        first: Use,
        /// The use that did not wait for it.
        second: Use,
    },
    /// A use of a block whose owner was gone.
    UseAfterFree {
        /// The block; `None` if no block is at this address any more.
        block: Option<u64>,
        /// The use.
        by: Use,
    },
    /// A read of bytes that were not written since the block was handed out.
    Uninitialised {
        /// The block.
        block: u64,
        /// The read.
        by: Use,
        /// The first such byte, from the start of what was handed out or sub-allocated as one.
        byte: usize,
    },
    /// Operands of one kernel share bytes that it writes. The kernel was refused.
    Overlap {
        /// The block.
        block: u64,
        /// The use.
        by: Use,
    },
    /// Bytes were handed out that somebody has: another owner, or a captured section; or they were sub-allocated from a
    /// block for a new array while a captured section uses them.
    Shared {
        /// The block.
        block: u64,
    },
}

/// The books of the checker.
#[derive(Debug, Default)]
pub(super) struct Checker {
    /// What each stream is behind; at its own place, its operations so far.
    streams: [Clock; MAX_STREAMS],
    /// What each stream's event carries.
    events: [Clock; MAX_STREAMS],
    /// What the host is behind.
    host: Clock,
    /// By address, without gaps in a segment. Boxed: those behind a new one move up.
    shadows: AddressMap<Box<Shadow>>,
    /// By address: number and bytes of the driver's allocations.
    segments: AddressMap<(u64, usize)>,
    /// By address: the bytes of whoever has some.
    live: AddressMap<usize>,
    /// By the number of a section: the bytes that it uses.
    pinned: Vec<(u64, Vec<Range<usize>>)>,
    created: u64,
    violations: Vec<Violation>,
}

impl Checker {
    pub(super) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    fn report(&mut self, violation: Violation) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(violation);
        }
    }

    /// Counts an operation of a stream.
    fn operate(&mut self, kernel: &'static str, stream: usize) -> Use {
        let host = self.host;
        self.streams[stream].join(&host);
        Use { kernel, stream: Some(stream), operation: self.streams[stream].advance(stream) }
    }

    /// The driver gave a segment, in the order of a stream or of none.
    pub(super) fn create(&mut self, stream: Option<usize>, address: usize, bytes: usize) {
        let mut shadow = Shadow::new(self.created, bytes);
        stream.into_iter().for_each(|stream| shadow.follow(self.operate("alloc", stream)));
        self.shadows.insert(address, Box::new(shadow));
        self.segments.insert(address, (self.created, bytes));
        self.created += 1;
    }

    /// The driver takes a segment back: every use of it has to be known to be over, and nobody may have bytes of it.
    pub(super) fn destroy(&mut self, address: usize) {
        let Some((block, bytes)) = self.segments.remove(address) else { return };
        let second = Use { kernel: "free", stream: None, operation: 0 };
        if self.is_taken(&(address..address + bytes)) {
            self.report(Violation::UseAfterFree { block: Some(block), by: second });
        }
        let gone = self.shadows.take(address..address + bytes);
        let host = self.host;
        for (_, shadow) in gone {
            for first in shadow.unordered(true, &host) {
                self.report(Violation::Unordered { block, first, second });
            }
        }
    }

    /// Whether somebody has bytes of a range.
    fn is_taken(&self, range: &Range<usize>) -> bool {
        let before = self.live.last_below(range.end);
        before.is_some_and(|(start, bytes)| start + bytes > range.start) || self.is_pinned(range)
    }

    /// Whether a captured section uses bytes of a range.
    fn is_pinned(&self, range: &Range<usize>) -> bool {
        let meets = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        self.pinned.iter().any(|(_, ranges)| ranges.iter().any(meets))
    }

    pub(super) fn hand_out(&mut self, span: Span) {
        let range = range_of(span);
        if self.is_taken(&range) {
            let block = self.number_at(range.start).unwrap_or_default();
            self.report(Violation::Shared { block });
        }
        self.live.insert(range.start, span.bytes());
        self.begin_block(span);
    }

    /// Bytes of a block begin anew, for whoever its owner gives them to.
    pub(super) fn suballocate(&mut self, span: Span) {
        let range = range_of(span);
        if self.is_pinned(&range) {
            let block = self.number_at(range.start).unwrap_or_default();
            self.report(Violation::Shared { block });
        }
        self.begin_life(range);
    }

    /// As [`Checker::begin_life`], for all of a block.
    pub(super) fn begin_block(&mut self, span: Span) {
        let Range { start, end } = range_of(span);
        self.begin_life(start..end.next_multiple_of(GRAIN));
    }

    /// The bytes of a range count as unwritten, and whoever uses them has to be behind who did.
    pub(super) fn begin_life(&mut self, range: Range<usize>) {
        let Range { start, end } = range;
        self.split_at(start);
        self.split_at(end);
        let Some(number) = self.number_at(start) else { return };
        let mut life = Shadow::new(number, end - start);
        for (_, part) in self.shadows.take(start..end) {
            life.follow_all(&part);
        }
        self.shadows.insert(start, Box::new(life));
    }

    /// Lets a shadow begin at this address, if one covers it.
    fn split_at(&mut self, at: usize) {
        let Some((start, shadow)) = self.shadows.last_below_mut(at) else { return };
        let (skip, bytes) = (at - *start, shadow.bytes);
        if skip < bytes {
            let right = shadow.part(skip..bytes);
            **shadow = shadow.part(0..skip);
            self.shadows.insert(at, Box::new(right));
        }
    }

    fn number_at(&self, address: usize) -> Option<u64> {
        let (start, (number, bytes)) = self.segments.last_below(address.saturating_add(1))?;
        (address - start < *bytes).then_some(*number)
    }

    pub(super) fn take_back(&mut self, span: Span) {
        let start = span.ptr().addr().get();
        if self.live.get(start) == Some(&span.bytes()) {
            self.live.remove(start);
        } else {
            let block = self.number_at(start);
            self.report(Violation::UseAfterFree { block, by: Use { kernel: "free", stream: None, operation: 0 } });
        }
    }

    /// A section was captured that uses these bytes.
    pub(super) fn pin(&mut self, section: u64, ranges: Vec<Range<usize>>) {
        self.pinned.push((section, ranges));
    }

    pub(super) fn unpin(&mut self, section: u64) {
        self.pinned.retain(|(number, _)| *number != section);
    }

    /// An operation is submitted. `false` if it must not run, because its operands overlap.
    pub(super) fn operation(&mut self, kernel: &'static str, stream: usize, operands: &[(OwnedView, Access)]) -> bool {
        let by = self.operate(kernel, stream);
        self.check_owners(by, operands);
        self.check_contents(by, operands);
        self.check_overlap(by, operands)
    }

    /// An operation is recorded as part of a section. `false` if it must not run.
    pub(super) fn recorded(&mut self, kernel: &'static str, stream: usize, operands: &[(OwnedView, Access)]) -> bool {
        let by = Use { kernel, stream: Some(stream), operation: 0 };
        self.check_owners(by, operands);
        self.check_overlap(by, operands)
    }

    /// An operation of a section is submitted.
    pub(super) fn replayed(&mut self, kernel: &'static str, stream: usize, operands: &[(OwnedView, Access)]) {
        let by = self.operate(kernel, stream);
        self.check_contents(by, operands);
    }

    /// Do the operands lie in bytes that somebody has?
    fn check_owners(&mut self, by: Use, operands: &[(OwnedView, Access)]) {
        for (view, _) in operands.iter().filter(|(view, _)| view.span().bytes() > 0) {
            let range = range_of(view.span());
            let owner = self.live.last_below(range.start.saturating_add(1));
            if owner.is_none_or(|(start, bytes)| start + bytes < range.end) {
                let block = self.number_at(range.start);
                self.report(Violation::UseAfterFree { block, by });
            }
        }
    }

    /// Are the accesses ordered, and the bytes that are read written?
    fn check_contents(&mut self, by: Use, operands: &[(OwnedView, Access)]) {
        let now = by.stream.map_or(self.host, |stream| self.streams[stream]);
        let mut found = Vec::new();
        let operands = || operands.iter().filter(|(view, _)| view.span().bytes() > 0);
        for (view, access) in operands() {
            let (mut late, mut hole) = (Vec::new(), None);
            for (shadow, skip) in reached(&mut self.shadows, view.span()) {
                let block = shadow.number;
                for first in shadow.unordered(*access != Access::Read, &now) {
                    if !late.contains(&(block, first)) {
                        late.push((block, first));
                    }
                }
                if *access != Access::Write {
                    hole = hole.or_else(|| shadow.uninitialised(view, skip).map(|byte| (block, byte)));
                }
            }
            found.extend(late.into_iter().map(|(block, first)| Violation::Unordered { block, first, second: by }));
            found.extend(hole.map(|(block, byte)| Violation::Uninitialised { block, by, byte }));
        }
        for (view, access) in operands() {
            for (shadow, skip) in reached(&mut self.shadows, view.span()) {
                match access {
                    Access::Read => by.stream.into_iter().for_each(|stream| shadow.note_read(stream, by)),
                    Access::Write | Access::ReadWrite => shadow.note_write(by, view, skip),
                }
            }
        }
        found.into_iter().for_each(|violation| self.report(violation));
    }

    fn check_overlap(&mut self, by: Use, operands: &[(OwnedView, Access)]) -> bool {
        let mut fits = true;
        for (i, (a, writes)) in operands.iter().enumerate() {
            for (b, also) in &operands[i + 1..] {
                let both = a.span().bytes() > 0 && b.span().bytes() > 0;
                if both && (*writes != Access::Read || *also != Access::Read) && overlap(a, b) {
                    fits = false;
                    let block = self.number_at(a.span().ptr().addr().get()).unwrap_or_default();
                    self.report(Violation::Overlap { block, by });
                }
            }
        }
        fits
    }

    pub(super) fn record(&mut self, stream: usize) {
        let host = self.host;
        self.streams[stream].join(&host);
        self.events[stream] = self.streams[stream];
    }

    pub(super) fn wait(&mut self, stream: usize, on: usize) {
        let event = self.events[on];
        self.streams[stream].join(&event);
    }

    pub(super) fn synchronize(&mut self, stream: usize) {
        let reached = self.streams[stream];
        self.host_waited(&reached);
    }

    /// What everything submitted to the stream so far is behind or is itself.
    pub(super) fn reached(&self, stream: usize) -> Clock {
        self.streams[stream]
    }

    pub(super) fn host_waited(&mut self, reached: &Clock) {
        self.host.join(reached);
    }
}

pub(super) fn range_of(span: Span) -> Range<usize> {
    let start = span.ptr().addr().get();
    start..start + span.bytes()
}

/// The shadows that a span has bytes in, each with the bytes from its start to the span's.
///
/// Mostly one. Several if parts of the span were sub-allocated anew.
fn reached(shadows: &mut AddressMap<Box<Shadow>>, span: Span) -> impl Iterator<Item = (&mut Shadow, isize)> {
    let Range { start, end } = range_of(span);
    let first = shadows.last_below(start.saturating_add(1)).map_or(start, |(at, _)| *at);
    let with_skip = shadows.within_mut(first..end).iter_mut().map(move |(at, shadow)| {
        let skip = start.wrapping_sub(*at).cast_signed();
        (&mut **shadow, skip)
    });
    with_skip.filter(|(shadow, skip)| *skip < shadow.bytes.cast_signed())
}
