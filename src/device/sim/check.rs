//! The checker: were accesses ordered, of live blocks, of bytes that had been written?
//!
//! It sees the calls that reach the driver and nothing else, so it judges the waits that were really made. Each
//! stream and the host have a clock of the operations they are behind; an event carries a copy of its
//! stream's. An access is compared with the earlier ones of its block, at the moment of its submission, so
//! that a missing wait is found in every run and not only when the draw of the queues exposes it.

use std::collections::BTreeMap;

use crate::device::{
    buffer::Span,
    kernel::{Access, Kernel, View},
    sim::shadow::{Shadow, overlap},
    stream::{Clock, MAX_STREAMS},
};

/// Violations beyond so many are not kept.
const VIOLATIONS_MAX: usize = 4096;

/// A use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Use {
    /// The kernel; or `upload`, `download`, `free`.
    pub kernel: &'static str,
    /// The stream; `None` for the host.
    pub stream: Option<usize>,
    /// The how-manieth operation of that stream it was, from 1.
    pub operation: u64,
}

/// Something that a real device would have punished, now or in one of many runs.
///
/// A block is named by the number of the driver allocation that made it, from 0.
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
        /// The first such byte, from the block's start.
        byte: usize,
    },
    /// Operands of one kernel share bytes that it writes. The kernel was refused.
    Overlap {
        /// The block.
        block: u64,
        /// The use.
        by: Use,
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
    /// By address.
    blocks: BTreeMap<usize, Shadow>,
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

    pub(super) fn create(&mut self, address: usize, bytes: usize) {
        self.blocks.insert(address, Shadow::new(self.created, bytes));
        self.created += 1;
    }

    /// The driver takes a block back: every use of it has to be known to be over.
    pub(super) fn destroy(&mut self, address: usize) {
        let Some(shadow) = self.blocks.remove(&address) else { return };
        let second = Use { kernel: "free", stream: None, operation: 0 };
        for first in shadow.unordered(true, &self.host) {
            self.report(Violation::Unordered { block: shadow.number, first, second });
        }
    }

    pub(super) fn hand_out(&mut self, span: Span) {
        if let Some((shadow, _)) = find(&mut self.blocks, span) {
            shadow.hand_out();
        }
    }

    pub(super) fn take_back(&mut self, span: Span) {
        let shadow = find(&mut self.blocks, span).map(|(shadow, _)| shadow);
        let block = shadow.as_ref().map(|shadow| shadow.number);
        if shadow.is_some_and(|shadow| std::mem::replace(&mut shadow.owned, false)) {
            return;
        }
        self.report(Violation::UseAfterFree { block, by: Use { kernel: "free", stream: None, operation: 0 } });
    }

    /// An operation is submitted. `false` if it must not run, because its operands overlap.
    pub(super) fn operation(&mut self, kernel: &'static str, stream: usize, operands: &[(View, Access)]) -> bool {
        let host = self.host;
        self.streams[stream].join(&host);
        let operation = self.streams[stream].advance(stream);
        let by = Use { kernel, stream: Some(stream), operation };
        let operands = || operands.iter().filter(|(view, _)| view.span().bytes() > 0);
        for (view, access) in operands() {
            self.check(view, *access, by);
        }
        for (view, access) in operands() {
            let Some((shadow, skip)) = find(&mut self.blocks, view.span()) else { continue };
            match access {
                Access::Read => shadow.note_read(stream, by),
                Access::Write | Access::ReadWrite => shadow.note_write(by, view, skip),
            }
        }
        let mut fits = true;
        for (i, (a, writes)) in operands().enumerate() {
            for (b, also) in operands().skip(i + 1) {
                if (*writes != Access::Read || *also != Access::Read) && overlap(a, b) {
                    fits = false;
                    let block = find(&mut self.blocks, a.span()).map_or(0, |(shadow, _)| shadow.number);
                    self.report(Violation::Overlap { block, by });
                }
            }
        }
        fits
    }

    fn check(&mut self, view: &View, access: Access, by: Use) {
        let Some((shadow, skip)) = find(&mut self.blocks, view.span()) else {
            return self.report(Violation::UseAfterFree { block: None, by });
        };
        let block = shadow.number;
        let now = by.stream.map_or(self.host, |stream| self.streams[stream]);
        let mut found = Vec::new();
        if !shadow.owned {
            found.push(Violation::UseAfterFree { block: Some(block), by });
        }
        for first in shadow.unordered(access != Access::Read, &now) {
            found.push(Violation::Unordered { block, first, second: by });
        }
        if let Some(byte) = shadow.uninitialised(view, skip).filter(|_| access != Access::Write) {
            found.push(Violation::Uninitialised { block, by, byte });
        }
        found.into_iter().for_each(|violation| self.report(violation));
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
        self.host.join(&reached);
    }
}

/// The block that a span lies in, and the bytes before it.
fn find(blocks: &mut BTreeMap<usize, Shadow>, span: Span) -> Option<(&mut Shadow, usize)> {
    let start = span.ptr().addr().get();
    let (address, shadow) = blocks.range_mut(..=start).next_back()?;
    let skip = start - address;
    (skip + span.bytes() <= shadow.bytes).then_some((shadow, skip))
}

/// What a violation calls a kernel.
pub(super) fn name_of(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Fill { .. } => "fill",
        Kernel::Arange { .. } => "arange",
        Kernel::Copy { .. } => "copy",
        Kernel::Cast { .. } => "cast",
        Kernel::Unary { .. } => "unary",
        Kernel::UnaryAssign { .. } => "unary_assign",
        Kernel::Affine { .. } => "affine",
        Kernel::AffineAssign { .. } => "affine_assign",
        Kernel::Powf { .. } => "powf",
        Kernel::Clamp { .. } => "clamp",
        Kernel::Binary { .. } => "binary",
        Kernel::BinaryAssign { .. } => "binary_assign",
        Kernel::Compare { .. } => "compare",
        Kernel::Where { .. } => "where",
        Kernel::UnaryGrad { .. } => "unary_grad",
        Kernel::Reduce { .. } => "reduce",
        Kernel::ArgReduce { .. } => "arg_reduce",
        Kernel::Softmax { .. } => "softmax",
        Kernel::SoftmaxGrad { .. } => "softmax_grad",
        Kernel::CrossEntropy { .. } => "cross_entropy",
        Kernel::CrossEntropyGrad { .. } => "cross_entropy_grad",
        Kernel::Matmul { .. } => "matmul",
        Kernel::IndexSelect { .. } => "index_select",
        Kernel::IndexAdd { .. } => "index_add",
        Kernel::Gather { .. } => "gather",
        Kernel::ScatterAdd { .. } => "scatter_add",
        Kernel::Uniform { .. } => "uniform",
        Kernel::Normal { .. } => "normal",
        Kernel::SgdStep { .. } => "sgd_step",
        Kernel::AdamStep { .. } => "adam_step",
    }
}
