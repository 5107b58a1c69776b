//! The sizes of a workspace, cycle by cycle: pure arithmetic over a configuration and requests.
//!
//! The arena asks for [`place`](Plan::place), and at the end of a cycle is told what to free and how large a block to
//! make. Nothing here touches memory, so that a block that could not be made leaves everything as it was: only
//! [`sized`](Plan::sized) changes the size.
//!
//! A ring (a circular workspace) gives each cycle one block, whatever part of it is used. Therefore the last `turn`
//! cycles are whole at any moment; while blocks of different sizes are in it, one less. Which of them are valid is not
//! said here (`validity.rs`).

use super::{
    config::{AllocationPolicy, DebugMode, LearningPolicy, LocationPolicy, SpillPolicy, WorkspaceConfig},
    planning::{PlanStats, Planner, UNPLANNED},
};

/// The largest block that memory can have.
const SIZE_MAX: usize = isize::MAX as usize;

/// A block of a ring is this much larger than the need it was learned from.
const RING_SLACK: f64 = 0.3;

/// Where a request finds its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In the block, so many bytes from its begin.
    Block(usize),
    /// In memory of its own that goes when [`Leave::free_externals`] says so.
    External,
    /// In memory of its own, stamped with [`Plan::step`]; it goes by [`Leave::free_pinned_before`].
    Pinned,
}

/// The request does not fit, and `SpillPolicy::Fail` allows nothing else. Nothing was booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What the arena does at the end of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    /// All externals go.
    pub(crate) free_externals: bool,
    /// Those pinned that are stamped with a step below this one go.
    pub(crate) free_pinned_before: u64,
    /// The block is to have this size.
    pub(crate) resize: Option<usize>,
}

/// A point of a cycle that [`Plan::rewind`] goes back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RewindMark {
    generation: u64,
    offset: usize,
    beside: usize,
    requests: usize,
}

/// The books of one workspace.
#[derive(Debug)]
pub(crate) struct Plan {
    // What `place` looks at when a request simply fits.
    offset: usize,
    /// Bytes from `offset` on that this cycle may take; 0 while it may take none.
    free: usize,
    /// The alignment, less one.
    mask: usize,
    /// What the storage of the last request is to note of it.
    mark: u32,

    /// Of a workspace of [`LearningPolicy::Planned`].
    planner: Option<Box<Planner>>,
    config: WorkspaceConfig,
    circular: bool,
    debug: DebugMode,
    on: bool,

    // The cycle.
    open: bool,
    start: usize,
    limit: usize,
    /// Bytes that count in this cycle and lie beside the block.
    beside: usize,
    /// The most that this cycle needed before a rewind.
    peak: usize,
    wrapped: bool,

    // The block.
    size: usize,
    /// Bytes that each cycle of a ring takes.
    block: usize,
    /// Whether the ring's size was given, not learned: then a block is as large as the largest cycle so far.
    elastic: bool,
    /// The step in which a ring that has to change its size gave nothing out of its block for the first time.
    trimming: Option<u64>,

    // What was learned.
    last: usize,
    max: usize,
    /// The largest need since the block shrank: what sizes are learned from.
    basis: usize,
    /// Small cycles in a row, and the largest need among them.
    small: u32,
    small_need: usize,

    // Counters.
    cycles: u64,
    generation: u64,
    step: u64,
    in_turn: usize,
    spilled: usize,
    externals: u64,
    external_step: u64,
    pinned_bytes: usize,
    pinned: u64,
}

impl Plan {
    /// The books of a workspace without a block, whose arrays begin at multiples of `align`, a power of two.
    pub(crate) fn new(config: &WorkspaceConfig, align: usize) -> Plan {
        assert!(align.is_power_of_two(), "a mask is made of it");
        Plan {
            offset: 0,
            free: 0,
            mask: align - 1,
            mark: UNPLANNED,
            planner: (config.policy_learning() == LearningPolicy::Planned).then(Box::default),
            config: config.clone(),
            circular: config.is_circular(),
            debug: DebugMode::Disabled,
            on: true,
            open: false,
            start: 0,
            limit: 0,
            beside: 0,
            peak: 0,
            wrapped: false,
            size: 0,
            block: 0,
            elastic: false,
            trimming: None,
            last: 0,
            max: 0,
            basis: 0,
            small: 0,
            small_need: 0,
            cycles: 0,
            generation: 0,
            step: 0,
            in_turn: 0,
            spilled: 0,
            externals: 0,
            external_step: 0,
            pinned_bytes: 0,
            pinned: 0,
        }
    }

    /// Bytes of the block to make at once; 0 for none.
    pub(crate) fn first_size(&self) -> usize {
        let given = match (self.config.initial_size(), self.config.policy_learning()) {
            (0, LearningPolicy::None) => return self.config.min_size() as usize,
            (given, _) => given as usize,
        };
        let size = match self.config.policy_location() {
            LocationPolicy::Mmap => given,
            LocationPolicy::Ram if self.circular && self.blocks() > 1 => {
                self.aligned(given).saturating_mul(self.blocks())
            }
            LocationPolicy::Ram if self.circular || self.planner.is_some() => given,
            LocationPolicy::Ram => self.with_slack(given),
        };
        size.min(self.size_max())
    }

    /// The block has this size now, and nothing is in it. To be called after [`Plan::first_size`],
    /// [`Leave::resize`], [`Plan::initialize`] or [`Plan::trim`], if the block could be made.
    pub(crate) fn sized(&mut self, bytes: usize) {
        if bytes < self.size {
            self.basis = self.recent();
        }
        self.size = bytes;
        (self.small, self.small_need) = (0, 0);
        (self.offset, self.start, self.limit) = (0, 0, bytes);
        if self.circular {
            self.elastic = self.basis == 0;
            self.block = self.block_of(bytes);
            self.limit = if self.open { self.block } else { 0 };
            self.trimming = None;
        }
        self.refresh();
    }

    /// A cycle begins.
    pub(crate) fn enter(&mut self) {
        self.generation += 1;
        (self.open, self.wrapped) = (true, false);
        (self.beside, self.peak) = (0, 0);
        if self.circular {
            self.start = self.offset;
            if self.block.max(self.mask + 1) > self.size - self.offset {
                self.wrap();
            }
            self.limit = self.start + self.block;
        } else {
            (self.start, self.offset, self.limit) = (0, 0, self.size);
        }
        if let Some(planner) = &mut self.planner {
            planner.begin();
        }
        self.refresh();
    }

    /// Books a request of so many bytes, rounded up to the alignment.
    #[inline]
    pub(crate) fn place(&mut self, bytes: usize) -> Result<Placement, Full> {
        match self.room_at_once(bytes) {
            Some(at) => Ok(Placement::Block(at)),
            None => self.make_room(bytes),
        }
    }

    /// As [`Plan::place`], if the request simply fits into the block; else nothing is booked.
    #[inline(always)]
    pub(crate) fn room_at_once(&mut self, bytes: usize) -> Option<usize> {
        // A size that wraps becomes 0 here, then the largest number, and is not less than anything.
        let rounded = bytes.wrapping_add(self.mask) & !self.mask;
        if rounded.wrapping_sub(1) >= self.free {
            return None;
        }
        let at = self.offset;
        self.offset += rounded;
        self.free -= rounded;
        Some(at)
    }

    /// As [`Plan::room_at_once`], of a workspace that plans: where its plan says, or behind what was placed.
    pub(crate) fn planned_room(&mut self, bytes: usize) -> Option<usize> {
        let bytes = self.rounded(bytes);
        let counts = self.counts();
        let planner = self.planner.as_deref_mut().filter(|_| counts)?;
        let at = planner.offset_of_next(bytes, self.offset, self.size);
        // The block may be smaller than planned: there was no memory for it, or it may have no more.
        if bytes > self.size || at > self.size - bytes {
            return None;
        }
        self.offset = self.offset.max(at + bytes);
        self.mark = planner.note(bytes, Some(at));
        Some(at)
    }

    /// What the storage of the last request is to note of it.
    #[inline(always)]
    pub(crate) fn mark_of_last(&self) -> u32 {
        self.mark
    }

    /// A storage that noted this ended, in the cycle of its request.
    #[inline]
    pub(crate) fn ended(&mut self, mark: u32) {
        if let Some(planner) = &mut self.planner {
            planner.ended(mark);
        }
    }

    /// The last [`Plan::place`] said `Block`, but something still uses those bytes: takes that booking back, and books
    /// the request beside the block.
    pub(crate) fn divert(&mut self, bytes: usize) -> Placement {
        let bytes = self.rounded(bytes);
        self.take_back_block(bytes);
        self.book_beside(bytes)
    }

    /// The last request got no memory: its booking is taken back.
    pub(crate) fn take_back(&mut self, placement: Placement, bytes: usize) {
        let bytes = self.rounded(bytes);
        if let Some(planner) = self.planner.as_mut().filter(|_| self.mark != UNPLANNED) {
            planner.take_back(self.mark);
        }
        match placement {
            // By plan it may lie below others: what is beyond stays booked.
            Placement::Block(_) if self.planner.is_some() => return,
            Placement::Block(_) => return self.take_back_block(bytes),
            Placement::External => {
                self.spilled = self.spilled.saturating_sub(bytes);
                self.externals = self.externals.saturating_sub(1);
            }
            Placement::Pinned => self.released_pinned(bytes, 1),
        }
        if self.counts() {
            self.beside = self.beside.saturating_sub(bytes);
        }
    }

    /// The cycle ends.
    pub(crate) fn leave(&mut self) -> Leave {
        let need = self.this_cycle();
        let before = self.step;
        self.cycles += 1;
        self.count_step();
        self.on = true;
        self.learn(need);
        let resize = match () {
            () if self.circular => self.leave_ring(need, before),
            () if self.planner.is_some() => self.leave_planned(need),
            () => self.leave_block(need),
        };
        let free_externals = !self.circular || self.wrapped || self.step > self.external_step + 1;
        (self.open, self.beside, self.peak) = (false, 0, 0);
        if !self.circular {
            self.offset = 0;
        } else if self.offset > self.start {
            self.offset = self.limit;
        }
        self.start = self.offset;
        if self.circular {
            self.limit = self.offset;
        }
        self.refresh();
        let keep = u64::from(self.config.steps_number());
        Leave { free_externals, free_pinned_before: self.step.saturating_sub(keep), resize }
    }

    /// The size that was learned so far, whatever the policy waits for; of a workspace with a block, the size that it
    /// grows to. `None` if there is nothing to learn from, if the block is large enough, or if it is in use.
    pub(crate) fn initialize(&self) -> Option<usize> {
        if self.basis == 0 || self.offset > self.start || self.debug != DebugMode::Disabled {
            return None;
        }
        if self.size == 0 {
            return Some(self.learned(self.basis));
        }
        let grows = !self.circular && self.config.policy_spill() == SpillPolicy::Reallocate && self.basis > self.size;
        grows.then(|| self.learned(self.basis)).filter(|size| *size > self.size)
    }

    /// The size for what was needed since the last cycle that needed half of the block or more, if that is less than
    /// the block has and the block is not in use. A ring that becomes smaller loses what is in it.
    pub(crate) fn trim(&self) -> Option<usize> {
        let used = self.offset > self.start || (self.circular && self.open);
        let fixed = self.elastic || self.config.policy_location() == LocationPolicy::Mmap;
        let need = self.recent();
        (need > 0 && !used && !fixed).then(|| self.learned(need)).filter(|size| *size < self.size)
    }

    /// A point of this cycle to go back to.
    pub(crate) fn mark(&self) -> RewindMark {
        let requests = self.planner.as_ref().map_or(0, |planner| planner.count());
        RewindMark { generation: self.generation, offset: self.offset, beside: self.beside, requests }
    }

    /// What was booked since the mark is over. The cycle has needed it nevertheless. A ring does not go back: it
    /// hands its bytes out again one turn later, as all others; and a planned cycle does so where the plan says.
    pub(crate) fn rewind(&mut self, mark: RewindMark) {
        if self.circular || mark.generation != self.generation || mark.offset > self.offset {
            return;
        }
        if let Some(planner) = &mut self.planner {
            return planner.ended_since(mark.requests);
        }
        self.peak = self.this_cycle();
        (self.offset, self.beside) = (mark.offset, mark.beside);
        self.refresh();
    }

    /// Switches the workspace on or off. What is requested while it is off lies beside the block and does not count.
    pub(crate) fn toggle(&mut self, on: bool) {
        self.on = on;
        self.refresh();
    }

    /// Sets the debug mode; in another one than `Disabled` everything lies beside the block, and nothing is learned.
    pub(crate) fn set_debug(&mut self, mode: DebugMode) {
        self.debug = mode;
        self.refresh();
    }

    /// The arena freed so many externals, of so many bytes.
    pub(crate) fn released_externals(&mut self, bytes: usize, count: u64) {
        self.spilled = self.spilled.saturating_sub(bytes);
        self.externals = self.externals.saturating_sub(count);
    }

    /// The arena keeps a block beside the new one.
    pub(crate) fn pinned_block(&mut self, bytes: usize) {
        self.pinned_bytes = self.pinned_bytes.saturating_add(bytes);
        self.pinned += 1;
    }

    /// The arena freed so many pinned ones, of so many bytes.
    pub(crate) fn released_pinned(&mut self, bytes: usize, count: u64) {
        self.pinned_bytes = self.pinned_bytes.saturating_sub(bytes);
        self.pinned = self.pinned.saturating_sub(count);
    }
}

/// What it tells.
impl Plan {
    /// Whether it is switched on.
    #[cfg(test)]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether it is a ring.
    pub(crate) fn is_circular(&self) -> bool {
        self.circular
    }

    /// Bytes of the block; of a ring, of all its blocks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Bytes that a cycle may take of the block.
    pub(crate) fn block(&self) -> usize {
        if self.circular { self.block } else { self.size }
    }

    /// Bytes from the begin of the block to the next array.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The most that this cycle needed so far.
    pub(crate) fn this_cycle(&self) -> usize {
        let needed = (self.offset - self.start).saturating_add(self.beside);
        needed.max(self.peak)
    }

    /// Bytes that the last cycle needed.
    pub(crate) fn last_cycle(&self) -> usize {
        self.last
    }

    /// The most that a cycle needed.
    pub(crate) fn max_cycle(&self) -> usize {
        self.max
    }

    /// Cycles that ended.
    pub(crate) fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Cycles that began.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// What was planned, of a workspace that does.
    pub(crate) fn planned(&self) -> Option<PlanStats> {
        self.planner.as_ref().map(|planner| planner.stats())
    }

    /// Turns of the ring, the first cycle aside.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Bytes of externals.
    pub(crate) fn spilled(&self) -> usize {
        self.spilled
    }

    /// Number of externals.
    pub(crate) fn externals(&self) -> u64 {
        self.externals
    }

    /// Bytes of pinned ones.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.pinned_bytes
    }

    /// Number of pinned ones.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }
}

/// Sizes.
impl Plan {
    /// A request as it is booked: a multiple of the alignment, and no less than one of it. More than memory can have
    /// stays more than memory can have.
    pub(crate) fn rounded(&self, bytes: usize) -> usize {
        bytes.max(1).checked_add(self.mask).map_or(usize::MAX, |bytes| bytes & !self.mask)
    }

    /// A size, at most the largest there is, rounded up.
    fn aligned(&self, bytes: usize) -> usize {
        (bytes.min(SIZE_MAX) + self.mask) & !self.mask
    }

    fn size_max(&self) -> usize {
        match self.config.max_size() {
            0 => SIZE_MAX,
            max => max as usize,
        }
    }

    /// Blocks that a ring is made for.
    fn blocks(&self) -> usize {
        match self.config.policy_allocation() {
            AllocationPolicy::Strict => 1,
            AllocationPolicy::Overallocate => (self.config.overallocation_limit() as usize).saturating_add(1),
        }
    }

    fn with_slack(&self, bytes: usize) -> usize {
        match self.config.policy_allocation() {
            AllocationPolicy::Strict => bytes,
            AllocationPolicy::Overallocate => grown(bytes, self.config.overallocation_limit()),
        }
    }

    /// Bytes of a ring's block for that need.
    fn padded(&self, need: usize) -> usize {
        self.aligned(grown(need, RING_SLACK))
    }

    /// Bytes of a block of the ring, if that has so many. Without anything learned, a ring of one block gives each
    /// cycle what it asks for.
    fn block_of(&self, ring: usize) -> usize {
        let block = match (self.basis, self.blocks()) {
            (0, 1) => 0,
            (0, blocks) => ring / blocks,
            (need, _) => self.padded(need).min(ring),
        };
        block & !self.mask
    }

    /// Bytes of a block or a ring for that need.
    fn learned(&self, need: usize) -> usize {
        let size = match &self.planner {
            _ if self.circular => self.padded(need).saturating_mul(self.blocks()),
            Some(planner) => planner.size().max(self.config.initial_size() as usize),
            None => self.with_slack(need),
        };
        size.max(self.config.min_size() as usize).min(self.size_max())
    }

    /// The need that a smaller block would have to meet.
    fn recent(&self) -> usize {
        if self.small > 0 { self.small_need } else { self.last }
    }

    /// Cycles until the ring comes to a block again.
    fn turn(&self) -> usize {
        if !self.circular {
            return 1;
        }
        self.size.checked_div(self.block).map_or(self.blocks(), |blocks| blocks.max(1))
    }
}

/// Bytes and a fraction of them.
fn grown(bytes: usize, fraction: f64) -> usize {
    bytes.saturating_add((bytes as f64 * fraction) as usize).min(SIZE_MAX)
}

/// A cycle.
impl Plan {
    /// Whether requests are met from the block and count.
    fn counts(&self) -> bool {
        self.on && self.debug == DebugMode::Disabled
    }

    /// Keeps `free` up to date with everything that it stands for: requests that are placed side by side, unnumbered.
    fn refresh(&mut self) {
        let usable = self.counts() && self.trimming.is_none() && self.planner.is_none();
        self.free = if usable { self.limit - self.offset } else { 0 };
        self.mark = UNPLANNED;
    }

    fn take_back_block(&mut self, bytes: usize) {
        self.offset -= bytes;
        self.refresh();
    }

    #[cold]
    fn make_room(&mut self, bytes: usize) -> Result<Placement, Full> {
        if let Some(at) = self.planned_room(bytes) {
            return Ok(Placement::Block(at));
        }
        let bytes = self.rounded(bytes);
        if bytes <= self.free || self.stretch(bytes) {
            let at = self.offset;
            self.offset += bytes;
            self.free -= bytes;
            return Ok(Placement::Block(at));
        }
        let refused = self.config.policy_spill() == SpillPolicy::Fail
            && self.counts()
            && self.trimming.is_none()
            && self.size > 0;
        if refused { Err(Full) } else { Ok(self.book_beside(bytes)) }
    }

    /// Books so many bytes outside the block. A ring pins them, since its arrays outlive their cycle, except the
    /// first of all: these are there until the ring has turned once.
    fn book_beside(&mut self, bytes: usize) -> Placement {
        let counts = self.counts();
        if counts {
            self.beside = self.beside.saturating_add(bytes);
        }
        self.mark = match &mut self.planner {
            Some(planner) if counts => planner.note(bytes, None),
            _ => UNPLANNED,
        };
        let first = self.config.policy_learning() == LearningPolicy::FirstLoop && self.size == 0 && self.basis == 0;
        if self.circular && !(first && counts) {
            self.pinned += 1;
            self.pinned_bytes = self.pinned_bytes.saturating_add(bytes);
            return Placement::Pinned;
        }
        self.externals += 1;
        self.external_step = self.step;
        self.spilled = self.spilled.saturating_add(bytes);
        Placement::External
    }

    /// Makes this cycle's block of a ring of a given size larger by so many bytes, if that fits.
    fn stretch(&mut self, bytes: usize) -> bool {
        if !(self.circular && self.elastic && self.open && self.counts()) || self.trimming.is_some() {
            return false;
        }
        let wanted = (self.offset - self.start).saturating_add(bytes);
        if wanted > self.size - self.start {
            if self.offset > self.start || wanted > self.size {
                return false;
            }
            self.wrap();
        }
        self.block = wanted;
        self.limit = self.start + wanted;
        self.refresh();
        true
    }

    /// The ring begins anew.
    fn wrap(&mut self) {
        self.wrapped |= self.offset > 0;
        (self.start, self.offset) = (0, 0);
    }

    /// A step is a turn of the ring, and begins with the second cycle: the first is there to learn from.
    fn count_step(&mut self) {
        if self.cycles > 1 {
            self.in_turn += 1;
            if self.in_turn >= self.turn() {
                self.step += 1;
                self.in_turn = 0;
            }
        }
    }

    fn learn(&mut self, need: usize) {
        self.last = need;
        self.max = self.max.max(need);
        self.basis = self.basis.max(need);
        if need == 0 {
            return;
        }
        if need < self.block() / 2 {
            self.small = self.small.saturating_add(1);
            self.small_need = self.small_need.max(need);
        } else {
            (self.small, self.small_need) = (0, 0);
        }
    }

    /// The first size, if this is the end of the cycle that brings it.
    fn learned_now(&self) -> Option<usize> {
        let after = u64::from(self.config.cycles_before_initialization());
        let now = match self.config.policy_learning() {
            LearningPolicy::FirstLoop => true,
            LearningPolicy::OverTime => after > 0 && self.cycles >= after,
            LearningPolicy::None | LearningPolicy::Planned => false,
        };
        let now = now && self.basis > 0 && self.debug == DebugMode::Disabled;
        now.then(|| self.learned(self.basis))
    }

    fn leave_block(&self, need: usize) -> Option<usize> {
        if self.size == 0 {
            return self.learned_now();
        }
        if need > self.size && self.config.policy_spill() == SpillPolicy::Reallocate {
            return Some(self.learned(self.basis)).filter(|size| *size > self.size);
        }
        self.shrinks()
    }

    /// The size for the plans that this cycle leaves behind.
    #[inline(never)]
    fn leave_planned(&mut self, need: usize) -> Option<usize> {
        let planner = self.planner.as_mut()?;
        planner.end(self.config.shrink_after());
        let (astray, may_shrink) = (planner.size_astray(), planner.may_shrink());
        let mut wanted = self.learned(need);
        if let Some(alive) = astray.filter(|_| need > self.size) {
            // If what lives had room, it had none in one piece.
            wanted = wanted.max(alive).max(self.size + self.size / 8).min(self.size_max());
        }
        (wanted > self.size || may_shrink && wanted < self.size).then_some(wanted)
    }

    /// The smaller size, after enough small cycles.
    fn shrinks(&self) -> Option<usize> {
        let fixed = self.elastic
            || self.config.policy_learning() == LearningPolicy::None
            || self.config.policy_location() == LocationPolicy::Mmap;
        let due = self.config.shrink_after().is_some_and(|cycles| self.small >= cycles);
        (due && !fixed).then(|| self.learned(self.small_need)).filter(|size| *size < self.size)
    }

    /// A ring changes its size only when nothing in it is valid any more: it pins everything for some steps first.
    fn leave_ring(&mut self, need: usize, before: u64) -> Option<usize> {
        if self.size == 0 {
            return self.learned_now();
        }
        if let Some(since) = self.trimming {
            if since + u64::from(self.config.steps_number()) >= self.step {
                return None;
            }
            self.trimming = None;
            let ring = self.learned(self.basis);
            let grown = ring != self.size || self.block_of(ring) != self.block;
            return self.shrinks().or(grown.then_some(ring));
        }
        if self.elastic && need > self.block && need <= self.size {
            self.block = need;
        }
        let could_grow = self.block < self.size_max() & !self.mask;
        let grows = need > self.block && could_grow && self.config.policy_spill() == SpillPolicy::Reallocate;
        if grows || self.shrinks().is_some() {
            self.trimming = Some(before);
        }
        None
    }
}

#[cfg(test)]
mod tests;
