//! The bytes of an asynchronous device: blocks, sub-allocated from large segments of the driver (`device/blocks.rs`).
//!
//! Their home is a stream. A merged block is behind all uses of its parts. `pins` counts the graphs that have a block.
//!
//! Blocks in memory of the host have no such home, and never wait in a list: each is a segment of its own, and goes
//! back once nobody has it and what used it is over. `pinned` counts their bytes, `active` and `used` do not.
//!
//! # Sections
//! While a section is captured, its blocks carry a [`SectionMark`]. What was born in it and freed again may be used
//! again, by the section alone; nothing that it touched goes to anybody else until its graph is gone.

use crate::base::error::Result;
use crate::device::{
    blocks::{BlockState, Blocks, SectionMark, Status, Tag},
    kernel::Access,
    span::Span,
    stream::order::Clock,
};

/// The blocks of an asynchronous device.
pub(super) type Pool = Blocks<Uses>;

/// The home of blocks in memory of the host.
const ON_HOST: u8 = u8::MAX;

/// When a block was used last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    /// Stream and tick of the last write.
    pub(super) written: (usize, u64),
    /// Ticks of the last write and of the reads since then.
    pub(super) used: Clock,
}

impl Uses {
    pub(super) fn born(stream: usize, tick: u64) -> Self {
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
    /// Invariant I9 (design.md).
    pub(super) fn demanded(&self, writes: bool) -> Clock {
        if writes { self.used } else { Clock::at(self.written.0, self.written.1) }
    }
}

impl Tag for Uses {
    const GRAIN: usize = 256;

    fn split(&mut self, _at: usize) -> Uses {
        *self
    }

    fn join(&mut self, _bytes: usize, right: &Uses) {
        self.used.join(&right.used);
    }
}

impl Pool {
    pub(super) fn limit_admits(&self, bytes: usize) -> bool {
        self.stats.limit.is_none_or(|limit| self.stats.active.saturating_add(bytes as u64) <= limit)
    }

    /// Gives a block that is in no list to an owner that asked for `bytes`. Returns those, and the size of the block.
    pub(super) fn give(&mut self, number: u32, stream: usize, bytes: usize) -> (Span, usize) {
        self.stats.active += bytes as u64;
        self.stats.peak = self.stats.peak.max(self.stats.active);
        self.stats.total = self.stats.total.saturating_add(bytes as u64);
        let status = self.status_mut(number);
        (status.state, status.home) = (BlockState::Owned, stream as u8);
        let size = self.block(number).bytes as u64;
        self.stats.used += size;
        self.stats.total_used = self.stats.total_used.saturating_add(size);
        self.note_peaks();
        let block = self.block(number);
        (Span::in_block(block.ptr(), bytes, number), block.bytes)
    }

    /// Notes the bytes that are used, those that wait for reuse, and both: what the driver gave and no section has.
    /// These become more where a block is handed out, of a new segment perhaps, or given back, and where a graph goes.
    fn note_peaks(&mut self) {
        let stats = &mut self.stats;
        stats.peak_used = stats.peak_used.max(stats.used);
        stats.peak_cached = stats.peak_cached.max(stats.cached);
        stats.peak_reserved = stats.peak_reserved.max(stats.used + stats.cached);
    }

    /// Gives a segment in memory of the host to an owner that asked for `bytes`.
    pub(super) fn give_on_host(&mut self, segment: Span, bytes: usize) -> Span {
        let number = self.add(segment, ON_HOST, Uses::default());
        self.status_mut(number).state = BlockState::Owned;
        self.stats.pinned += segment.bytes() as u64;
        Span::in_block(segment.ptr(), bytes, number)
    }

    fn is_on_host(&self, number: u32) -> bool {
        self.status(number).home == ON_HOST
    }

    /// Whether `active` counts the bytes of an owner.
    pub(super) fn counts(&self, span: Span) -> bool {
        self.owned(span).is_some_and(|number| !self.is_on_host(number))
    }

    /// Forgets the blocks in memory of the host that nobody has any more, no graph either, and whose uses are over, up
    /// to the first that `free` does not accept. Not while a section is captured.
    pub(super) fn release_on_host(
        &mut self,
        is_over: impl Fn(&Clock) -> bool,
        free: impl Fn(Span) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while let Some(&number) = self.leaving.get(at) {
            if !is_over(&self.tag(number).used) {
                at += 1;
                continue;
            }
            free(self.block(number).span())?;
            self.stats.pinned -= self.block(number).bytes as u64;
            self.leaving.swap_remove(at);
            self.leave(number);
        }
        Ok(())
    }

    /// Nobody has the block any more.
    fn retire(&mut self, number: u32) {
        if self.is_on_host(number) {
            self.status_mut(number).state = BlockState::Kept;
            self.leaving.push(number);
        } else {
            self.merge(number, |own, neighbour| own == neighbour);
        }
    }

    /// The next owner is ordered behind nothing: what a checker has to notice.
    pub(super) fn forget_uses(&mut self, number: u32) {
        *self.tag_mut(number) = Uses::default();
    }

    /// The uses of the block with an owner that a span lies in.
    pub(super) fn find(&mut self, span: Span) -> Option<&mut Uses> {
        self.owned(span).map(|number| self.tag_mut(number))
    }

    /// Takes a block back from its owner; invariant I11 (design.md). A span that is not all that an owner was given is
    /// left alone.
    pub(super) fn put(&mut self, span: Span) {
        let Some(number) = self.owned(span).filter(|&number| self.block(number).ptr() == span.ptr()) else {
            return;
        };
        let (pins, bytes) = (self.block(number).pins, self.block(number).bytes);
        if !self.is_on_host(number) {
            self.stats.active -= span.bytes() as u64;
            self.stats.used -= bytes as u64;
        }
        if pins > 0 || self.is_used_in_section(number) {
            self.status_mut(number).state = BlockState::Kept;
            self.stats.captured += bytes as u64;
        } else {
            self.retire(number);
            self.note_peaks();
        }
    }

    // ------------------------------------------------------------------------------------------ sections, graphs

    /// The section that is being captured asked for this block. `true` if it had nothing to do with it before.
    pub(super) fn mark_born(&mut self, number: u32) -> bool {
        std::mem::replace(&mut self.status_mut(number).mark, SectionMark::Born) == SectionMark::Nothing
    }

    /// The block that was left when one was sub-allocated from this one, if the section has to do with it.
    pub(super) fn rest_of(&self, number: u32) -> Option<u32> {
        let after = self.block(number).after;
        (after != 0 && self.is_free_in_section(after)).then_some(after)
    }

    /// Whether the section that is being captured uses a block that it did not ask for itself.
    fn is_used_in_section(&self, number: u32) -> bool {
        matches!(self.status(number).mark, SectionMark::Read | SectionMark::Written)
    }

    fn is_free_in_section(&self, number: u32) -> bool {
        matches!(self.status(number), Status { state: BlockState::Free, mark: SectionMark::Born, .. })
    }

    /// The section that is being captured uses a span. Returns its block if the section did not before.
    pub(super) fn mark_use(&mut self, span: Span, access: Access) -> Option<u32> {
        let number = self.owned(span)?;
        let mark = if access == Access::Read { SectionMark::Read } else { SectionMark::Written };
        let status = self.status_mut(number);
        let before = status.mark;
        status.mark = before.max(mark);
        (before == SectionMark::Nothing).then_some(number)
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
            let mark = std::mem::replace(&mut self.status_mut(number).mark, SectionMark::Nothing);
            if mark != SectionMark::Nothing {
                self.block_mut(number).pins += 1;
                blocks.push((number, mark != SectionMark::Read));
            }
        }
        for &(number, _) in &blocks {
            if self.status(number).state == BlockState::Free {
                self.unlink(number);
                self.stats.captured += self.block(number).bytes as u64;
            }
        }
        if pin {
            return blocks;
        }
        self.unpin(&blocks);
        Vec::new()
    }

    /// A graph that touched these blocks is gone. Those that a section uses which is being captured meanwhile stay with
    /// that, whose end pins them or lets them go.
    pub(super) fn unpin(&mut self, blocks: &[(u32, bool)]) {
        for &(number, _) in blocks {
            let block = self.block_mut(number);
            block.pins -= 1;
            let (pins, bytes) = (block.pins, block.bytes);
            if pins == 0 && self.status(number).state == BlockState::Kept && !self.is_used_in_section(number) {
                self.stats.captured -= bytes as u64;
                self.retire(number);
            }
        }
        self.note_peaks();
    }
}

#[cfg(test)]
mod tests;
