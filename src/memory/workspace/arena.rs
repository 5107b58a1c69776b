//! The arena of one workspace: its block, what spilled out of it, and when bytes may be used again.
//!
//! The plan (`sizing.rs`) says where a request goes; this file has the memory. Bytes are used again when their cycles
//! have ended (`validity.rs`), no record announces an array of them, and no reference holds their block (`block.rs`);
//! where that does not hold yet, the workspace takes fresh memory, and the old block waits in `retired.rs`.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::{
    error::{Error, Result, Site},
    leak::{WorkspaceFull, WorkspaceState},
    say::say,
    units::Bytes,
};
use crate::device::{
    Device,
    buffer::{ArenaPart, Buffer, Span},
    host::mapped::MappedBlock,
};
use crate::memory::workspace::{
    block::{ArenaBlock, Readers},
    config::{DebugMode, LocationPolicy, MirroringPolicy, ResetPolicy, WorkspaceConfig},
    figures, retired,
    sizing::{Placement, Plan, RewindMark},
    stats::{self, Tally},
    validity::{CycleId, CycleScope, Leases},
};
use crate::memory::{
    budget::{self, Budget, BudgetUse, NoBytes},
    switch, trace,
};

/// The least memory that a request beside the block asks the device for.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// Cycles in a row that spill until it is said.
const SPILLED_CYCLES: u32 = 16;

/// Memory beside the block, for requests that had no room in it: each chunk is twice as large as the one before, so
/// that a cycle of n requests asks the device for memory O(log n) times.
#[derive(Debug)]
struct Chunk {
    block: ArenaBlock,
    used: usize,
    /// The cycle that it belongs to, and its step.
    stamp: u64,
    step: u64,
    /// What was asked of it.
    bytes: usize,
    requests: u64,
}

/// The bytes of a ring that a cycle has.
#[derive(Clone, Copy, Debug)]
struct RingSpan {
    stamp: u64,
    start: usize,
    end: usize,
}

/// Keeps a cycle of a ring: its arrays stay valid, and its bytes are not used again, until this is dropped; also if the
/// workspace is destroyed or its thread ends meanwhile.
///
/// Made by [`Workspace::lease`](crate::Workspace::lease); it may go to another thread with the arrays.
#[derive(Debug)]
pub struct CycleLease {
    token: Option<Arc<()>>,
}

impl CycleLease {
    /// Where workspaces are bypassed there is no cycle to keep.
    pub(crate) fn of_nothing() -> Self {
        CycleLease { token: None }
    }
}

impl Drop for CycleLease {
    fn drop(&mut self) {
        drop(self.token.take());
        // Of a destroyed workspace, this may be what its memory waits for. A forked child frees nothing.
        if !switch::forked() {
            retired::sweep();
        }
    }
}

/// An open nested entry: what to go back to.
#[derive(Debug)]
struct Nested {
    mark: RewindMark,
    outer: CycleId,
}

#[derive(Debug)]
struct ArenaState {
    plan: Plan,
    block: Option<ArenaBlock>,
    /// Whether bytes of the block may still be in use when its next cycle begins.
    in_use: bool,
    /// Whether the block, a file, is still in use: requests go beside it.
    blocked: bool,
    /// Bytes of a block that was given up for a fresh one, which could not be had.
    lost: usize,
    /// Whether a request that fits needs nothing but its offset: memory of the host, no ring.
    plain: bool,
    externals: Vec<Chunk>,
    pinned: VecDeque<Chunk>,
    ring_spans: VecDeque<RingSpan>,
    leases: Leases,
    /// Open nested entries, and scopes of nested entries by depth: those of the open ones first.
    open: Vec<Nested>,
    nested: Vec<CycleScope>,
    /// The cycle that arrays are made in.
    cycle: CycleId,
    tally: Tally,
    /// Cycles in a row, up to the last one, that had no room in the block.
    spilled: u32,
    /// Whether that was said.
    warned: bool,
}

/// A workspace of one thread.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) name: Arc<str>,
    /// The device whose arrays it takes.
    pub(crate) device: Device,
    /// Where the bytes lie: the host, if its arrays are host-only.
    pub(crate) memory: Device,
    pub(crate) config: WorkspaceConfig,
    scope: Arc<CycleScope>,
    readers: Readers,
    /// Open entries that are not re-entries of the current one.
    entries: Cell<usize>,
    destroyed: Cell<bool>,
    /// The number of its budget, or 0.
    budget: Cell<u32>,
    /// Whether a soft limit was passed since it was last asked.
    above_soft: Cell<bool>,
    state: RefCell<ArenaState>,
}

impl Arena {
    /// A workspace, closed and without a block.
    pub(crate) fn new(
        op: &'static str,
        name: &str,
        device: &Device,
        config: &WorkspaceConfig,
        readers: Readers,
    ) -> Result<Self> {
        let wrong = |why: &str| Error::workspace(op, name, why);
        let is_mapped = config.policy_location() == LocationPolicy::Mmap;
        let is_host_only = config.policy_mirroring() == MirroringPolicy::HostOnly;
        if is_mapped && !device.is_cpu() && !is_host_only {
            return Err(wrong(
                "a device cannot use mapped memory; choose LocationPolicy::Ram or MirroringPolicy::HostOnly",
            ));
        }
        let memory = if is_host_only { Device::Cpu } else { device.clone() };
        let name: Arc<str> = name.into();
        let scope = CycleScope::new(Arc::clone(&name), config.policy_reset() == ResetPolicy::EndOfBufferReached)
            .map(Arc::new)
            .ok_or_else(|| wrong("2^28 workspaces are in use; destroy some"))?;
        figures::opened(&name, &memory, &scope);
        let cycle = CycleId::new(0, 0);
        let plan = Plan::new(config, if memory.is_cpu() { 64 } else { 256 });
        let state = ArenaState {
            plan,
            block: None,
            in_use: false,
            blocked: false,
            lost: 0,
            plain: false,
            externals: Vec::new(),
            pinned: VecDeque::new(),
            ring_spans: VecDeque::new(),
            leases: Leases::default(),
            nested: Vec::new(),
            open: Vec::new(),
            cycle,
            tally: Tally::default(),
            spilled: 0,
            warned: false,
        };
        Ok(Arena {
            name,
            device: device.clone(),
            memory,
            config: config.clone(),
            scope,
            readers,
            entries: Cell::new(0),
            destroyed: Cell::new(false),
            budget: Cell::new(0),
            above_soft: Cell::new(false),
            state: RefCell::new(state),
        })
    }

    /// Bytes of the first block: those of the configuration, or of a file that is there.
    pub(crate) fn first_size(&self) -> usize {
        let found = || self.config.temp_file_path().and_then(|path| path.metadata().ok());
        match self.state.borrow().plan.first_size() {
            0 => found().map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX)),
            given => given,
        }
    }

    /// Makes a block of so many bytes, if that is any.
    pub(crate) fn make_block(&self, bytes: usize) -> std::result::Result<(), NoBytes> {
        if bytes == 0 { Ok(()) } else { self.resize(&mut self.state.borrow_mut(), bytes) }
    }

    pub(crate) fn is_ring(&self) -> bool {
        self.config.policy_reset() == ResetPolicy::EndOfBufferReached
    }

    pub(crate) fn is_open(&self) -> bool {
        self.entries.get() > 0
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.get()
    }

    pub(crate) fn plan<R>(&self, f: impl FnOnce(&mut Plan) -> R) -> R {
        f(&mut self.state.borrow_mut().plan)
    }

    pub(crate) fn note_kept(&self, created: Option<Site>) {
        let kept = &mut self.state.borrow_mut().tally.kept_graphs;
        *kept = (kept.0 + 1, created);
        stats::note_kept(&self.name, &self.device, created);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state.borrow().tally
    }

    /// Sets what it may have; what it has is charged. Returns what was set before. `None`: there are too many budgets.
    pub(crate) fn set_budget(&self, budget: &Budget) -> Option<Budget> {
        match self.budget.get() {
            0 => self.open_budget(0, budget).map(|()| Budget::new()),
            number => {
                let before = budget::set(number, budget);
                let mut state = self.state.borrow_mut();
                state.plain = self.is_plain(&state);
                Some(before)
            }
        }
    }

    /// Gives it a new budget, below the one with this number, or with 0 below none, and charges to it what it has.
    /// `None`: there are too many.
    pub(crate) fn open_budget(&self, above: u32, budget: &Budget) -> Option<()> {
        let number = budget::open_workspace(&self.name, above, budget)?;
        let before = self.budget.replace(number);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let beside = state.externals.iter_mut().chain(&mut state.pinned).map(|chunk| &mut chunk.block);
        state.block.iter_mut().chain(beside).for_each(|block| block.move_to(number));
        retired::move_to(&self.name, number);
        budget::release(before);
        state.plain = self.is_plain(state);
        Some(())
    }

    pub(crate) fn budget(&self) -> Budget {
        match self.budget.get() {
            0 => Budget::new(),
            number => budget::limits(number),
        }
    }

    pub(crate) fn budget_use(&self) -> Option<BudgetUse> {
        let number = Some(self.budget.get()).filter(|&number| number != 0)?;
        let mut found = budget::usage(number);
        found.arrays = if self.is_open() { self.tally().arrays } else { 0 };
        found.peak_arrays = found.peak_arrays.max(found.arrays);
        Some(found)
    }

    /// The number of its budget, or 0.
    pub(crate) fn budget_number(&self) -> u32 {
        self.budget.get()
    }

    /// Whether a soft limit was passed since this was asked last.
    pub(crate) fn passed_soft(&self) -> bool {
        self.above_soft.take()
    }

    pub(crate) fn file_of<R>(&self, f: impl FnOnce(&MappedBlock) -> R) -> Option<R> {
        self.state.borrow().block.as_ref().and_then(ArenaBlock::file).map(f)
    }

    // ------------------------------------------------------------------------------------------ blocks

    /// Makes the block `bytes` large. What there was is let go; on failure there is a block of the size before, or
    /// none.
    fn resize(&self, state: &mut ArenaState, bytes: usize) -> std::result::Result<(), NoBytes> {
        let before = state.plan.size();
        if self.config.policy_location() == LocationPolicy::Mmap {
            // Growing a file keeps what is in it, and who uses it would see what is written to it anew.
            if self.is_ring() && state.block.is_some() {
                self.scope.end_all();
            }
            if state.block.as_ref().is_some_and(ArenaBlock::is_in_use_at_all) {
                return Err(NoBytes::Exhausted);
            }
            let made = self.map(state, bytes).map_err(NoBytes::Failed)?;
            self.retire_block(state);
            state.plan.sized(made.bytes());
            state.block = Some(made);
        } else {
            self.retire_block(state);
            let made = self.pooled(state, bytes);
            let (made, size, answer) = match made {
                Ok(made) => (Some(made), bytes, Ok(())),
                Err(refused) if before == 0 => (None, 0, Err(refused)),
                Err(refused) => match self.pooled(state, before) {
                    Ok(made) => (Some(made), before, Err(refused)),
                    Err(_) => (None, 0, Err(refused)),
                },
            };
            state.lost = if made.is_none() { before.max(state.lost) } else { 0 };
            state.block = made;
            state.plan.sized(size);
            state.plain = self.is_plain(state);
            return answer;
        }
        Ok(())
    }

    /// As [`Arena::resize`], of a block that may as well stay: what its budget would refuse is refused before it goes.
    fn resize_within(&self, state: &mut ArenaState, bytes: usize) -> std::result::Result<(), NoBytes> {
        let waits = state.in_use || state.leases.first().is_some();
        let goes = state.block.as_ref().filter(|_| !waits).map_or(0, ArenaBlock::bytes);
        match budget::refuses(self.budget.get(), bytes as u64, goes as u64) {
            Some(refusal) if self.config.policy_location() == LocationPolicy::Ram => Err(NoBytes::Budget(refusal)),
            _ => self.resize(state, bytes),
        }
    }

    /// Whether requests that fit need nothing but their offsets.
    fn is_plain(&self, state: &ArenaState) -> bool {
        let in_memory = state.block.as_ref().is_some_and(|block| block.file().is_none());
        in_memory && self.memory.is_cpu() && !self.is_ring() && self.budget().max_arrays.is_none()
    }

    /// Uninitialised memory, charged to the budget before it is there. Invariant I14 (design.md).
    fn pooled(&self, state: &mut ArenaState, bytes: usize) -> std::result::Result<ArenaBlock, NoBytes> {
        let payer = self.budget.get();
        let charge = budget::charge(payer, bytes as u64).map_err(NoBytes::Budget)?;
        match ArenaBlock::pooled(&self.memory, bytes, &self.name, self.readers) {
            Ok(mut block) => {
                if charge.is_above_soft() {
                    self.above_soft.set(true);
                }
                block.charged_to(charge.settle());
                state.tally.system_allocations += 1;
                Ok(block)
            }
            Err(why) => {
                charge.revoke();
                Err(why)
            }
        }
    }

    fn map(&self, state: &mut ArenaState, bytes: usize) -> Result<ArenaBlock> {
        let file = match state.block.as_ref().and_then(ArenaBlock::file) {
            Some(file) => file.grown(bytes)?,
            None => MappedBlock::create(self.config.temp_file_path(), bytes)?,
        };
        state.tally.system_allocations += 1;
        ArenaBlock::mapped(file, &self.name, self.readers)
            .map_err(|_| Error::workspace("initialize", &self.name, "2^28 blocks are in use; destroy some"))
    }

    /// Lets go of the block. All cycles end, if it was a ring and none is leased.
    fn retire_block(&self, state: &mut ArenaState) {
        if let Some(block) = state.block.take() {
            if state.leases.first().is_some() {
                // It goes on beside the new one, full, until the leases are gone.
                let (bytes, step, stamp) = (block.bytes(), state.plan.step(), self.scope.last());
                state.plan.pinned_block(bytes);
                state.pinned.push_back(Chunk { block, used: bytes, stamp, step, bytes, requests: 1 });
            } else {
                if self.is_ring() {
                    self.scope.end_all();
                }
                retired::retire(block);
            }
        }
        (state.in_use, state.blocked) = (false, false);
        state.ring_spans.clear();
    }

    // ------------------------------------------------------------------------------------------ cycles

    /// A cycle begins, with this entry of the thread. The workspace was closed.
    pub(crate) fn begin(&self, debug: DebugMode, entry: u64) {
        let mut state = self.state.borrow_mut();
        state.plan.set_debug(debug);
        if state.in_use {
            self.renew(&mut state);
        } else if state.lost > 0 {
            let size = state.lost;
            let _ = self.resize(&mut state, size);
        }
        state.plan.enter();
        state.cycle = self.scope.begin(entry);
        state.tally.begin();
        self.entries.set(1);
    }

    /// Something used the bytes when their cycle ended. If it still does, the workspace takes fresh ones.
    fn renew(&self, state: &mut ArenaState) {
        if state.block.as_ref().is_some_and(ArenaBlock::is_in_use_at_all) {
            let size = state.plan.size();
            state.tally.renewals += 1;
            if self.config.policy_location() == LocationPolicy::Mmap {
                // A file is one: until it is free, requests go beside it.
                state.blocked = true;
                return;
            }
            // Without memory for another one everything spills.
            let _ = self.resize(state, size);
        }
        (state.in_use, state.blocked) = (false, false);
    }

    /// The cycle ends, and with it its arrays. Never fails: what cannot be made larger stays as it was. Whether the
    /// block grew beyond a soft limit.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        self.entries.set(0);
        self.scope.set_state(WorkspaceState::Closed);
        state.tally.end();
        let mut above_soft = false;
        let leave = state.plan.leave();
        if !self.is_ring() {
            self.scope.end_all();
            state.in_use = state.block.as_ref().is_some_and(ArenaBlock::is_in_use_at_all);
            state.blocked &= state.in_use;
        }
        if leave.free_externals && !state.externals.is_empty() {
            self.free_externals(state);
        }
        while state.pinned.front().is_some_and(|chunk| chunk.step < leave.free_pinned_before) && self.free_pinned(state)
        {
        }
        // A file shows the bytes of leased cycles in its new mapping too.
        let is_fixed = state.block.as_ref().is_some_and(|block| block.file().is_some());
        if let Some(bytes) = leave.resize
            && !(is_fixed && state.leases.first().is_some())
        {
            // What was learned has slack; without it, it may be had. Else the size is as it was: the next cycles spill,
            // and ask again.
            let need = state.plan.max_cycle();
            if self.resize_within(state, bytes).is_err() && (1..bytes).contains(&need) {
                let _ = self.resize_within(state, need);
            }
            above_soft = self.passed_soft();
        }
        if trace::is_on() || self.budget.get() != 0 {
            self.note_end(state);
        }
        self.warn_of_spills(state);
        above_soft
    }

    /// Tells who counts what the cycle had.
    #[cold]
    fn note_end(&self, state: &ArenaState) {
        let (bytes, arrays) = (state.plan.last_cycle() as u64, state.tally.arrays);
        if self.budget.get() != 0 {
            budget::note_cycle(self.budget.get(), arrays);
        }
        trace::note_cycle(&self.name, bytes, arrays);
    }

    /// Says once that every cycle spills, and what to set.
    fn warn_of_spills(&self, state: &mut ArenaState) {
        let need = state.plan.last_cycle();
        let spills = state.plan.size() > 0 && need > state.plan.size() && !self.is_ring();
        state.spilled = if spills { state.spilled.saturating_add(1) } else { 0 };
        if state.spilled >= SPILLED_CYCLES && !std::mem::replace(&mut state.warned, true) {
            say(format_args!(
                "workspace [{}] has {} and its last {SPILLED_CYCLES} cycles needed more, the last one {}; set \
                 policy_spill(SpillPolicy::Reallocate) or an initial_size of {need}",
                self.name,
                Bytes(state.plan.size() as u64),
                Bytes(need as u64)
            ));
        }
    }

    /// Frees what spilled; of a ring only what belongs to cycles that ended.
    fn free_externals(&self, state: &mut ArenaState) {
        let chunks = std::mem::take(&mut state.externals);
        for chunk in chunks {
            if self.is_ring() && self.scope.is_live(chunk.stamp) {
                state.externals.push(chunk);
            } else {
                state.plan.released_externals(chunk.bytes, chunk.requests);
                retired::retire(chunk.block);
            }
        }
    }

    /// Frees the oldest memory that was taken for a ring. `false` if it is leased.
    fn free_pinned(&self, state: &mut ArenaState) -> bool {
        let Some(stamp) = state.pinned.front().map(|chunk| chunk.stamp) else { return false };
        if state.leases.any_through(stamp) {
            return false;
        }
        self.scope.end_through(stamp);
        if let Some(chunk) = state.pinned.pop_front() {
            state.plan.released_pinned(chunk.bytes, chunk.requests);
            retired::retire(chunk.block);
        }
        true
    }

    /// An entry of an open workspace that is not the current one: its arrays end with it, the older ones stay. `false`:
    /// no scope is left.
    pub(crate) fn begin_nested(&self, entry: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.open.len() == state.nested.len() {
            let Some(scope) = CycleScope::new(Arc::clone(&self.name), self.is_ring()) else { return false };
            state.nested.push(scope);
        }
        let cycle = state.nested[state.open.len()].begin(entry);
        state.open.push(Nested { mark: state.plan.mark(), outer: state.cycle });
        state.cycle = cycle;
        self.entries.set(self.entries.get() + 1);
        true
    }

    /// The last nested entry that is open ends.
    pub(crate) fn end_nested(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(nested) = state.open.pop() else { return };
        let depth = state.open.len();
        self.entries.set(self.entries.get() - 1);
        state.cycle = nested.outer;
        let scope = &state.nested[depth];
        scope.end_all();
        scope.set_state(WorkspaceState::Closed);
        // Bytes in use stay where they are until the whole cycle ends: its own, and those of entries inside it.
        let ended = |cycle: CycleId| state.nested[depth..].iter().any(|scope| scope.index() == cycle.scope());
        if !state.block.as_ref().is_some_and(|block| block.is_in_use(ended)) {
            state.plan.rewind(nested.mark);
        }
    }

    /// The cycle that arrays are made in.
    pub(crate) fn cycle(&self) -> CycleId {
        self.state.borrow().cycle
    }

    /// Whether a scope is one of its own.
    pub(crate) fn owns(&self, scope: u32) -> bool {
        self.scope.index() == scope || self.state.borrow().nested.iter().any(|nested| nested.index() == scope)
    }

    /// Ends everything but leased cycles and those after them; what is in use is freed when it no longer is.
    pub(crate) fn destroy(&self) {
        if self.destroyed.replace(true) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let first_leased = state.leases.first();
        match first_leased {
            Some(stamp) => self.scope.end_through(stamp - 1),
            None => self.scope.end_all(),
        }
        self.scope.set_state(WorkspaceState::Destroyed);
        state.nested.iter().for_each(CycleScope::end_all);
        state.plain = false;
        let mut blocks: Vec<ArenaBlock> = state.block.take().into_iter().collect();
        blocks.extend(state.externals.drain(..).map(|chunk| chunk.block));
        blocks.extend(state.pinned.drain(..).map(|chunk| chunk.block));
        if first_leased.is_some() {
            let leases = std::mem::take(&mut state.leases);
            retired::retire_ring(retired::RetiredRing { scope: Arc::clone(&self.scope), leases, blocks });
        } else {
            blocks.into_iter().for_each(retired::retire);
        }
        state.plan.sized(0);
        stats::forget_kept(&self.name, &self.device, state.tally.kept_graphs.0);
        figures::destroyed(&self.name, &self.memory, &self.scope);
    }

    // ------------------------------------------------------------------------------------------ sizes

    /// Makes the block of what was learned (`initializeWorkspace`). Its arrays have ended: it is closed.
    pub(crate) fn initialize(&self) -> std::result::Result<(), NoBytes> {
        let mut state = self.state.borrow_mut();
        let Some(bytes) = state.plan.initialize() else { return Ok(()) };
        let need = state.plan.max_cycle();
        match self.resize_within(&mut state, bytes) {
            Err(NoBytes::Budget(_)) if (1..bytes).contains(&need) => self.resize_within(&mut state, need),
            made => made,
        }
    }

    /// Makes the block as small as the last cycles allow. It is closed. Returns the bytes that were given up.
    pub(crate) fn trim(&self) -> usize {
        let mut state = self.state.borrow_mut();
        let before = state.plan.size();
        let is_mapped = self.config.policy_location() == LocationPolicy::Mmap;
        if is_mapped || state.leases.first().is_some() {
            return 0;
        }
        if let Some(bytes) = state.plan.trim() {
            let _ = self.resize_within(&mut state, bytes);
        }
        before.saturating_sub(state.plan.size())
    }

    /// Keeps the current cycle of a ring.
    pub(crate) fn lease(&self) -> CycleLease {
        let mut state = self.state.borrow_mut();
        let stamp = state.cycle.stamp;
        CycleLease { token: Some(state.leases.lease(stamp)) }
    }

    // ------------------------------------------------------------------------------------------ bytes

    /// Bytes that fit into the block of an ordinary workspace of the host.
    #[inline(always)]
    pub(crate) fn take_at_once(&self, bytes: usize) -> Option<(Span, ArenaPart, u32)> {
        let mut state: RefMut<'_, ArenaState> = self.state.borrow_mut();
        let state = &mut *state;
        let block = state.block.as_ref().filter(|_| state.plain)?;
        let offset = match state.plan.room_at_once(bytes) {
            Some(offset) => offset,
            None => state.plan.planned_room(bytes)?,
        };
        let span = block.at(offset, bytes);
        state.tally.note(span);
        let part = ArenaPart { block: block.index(), scope: state.cycle.scope(), stamp: state.cycle.stamp };
        Some((span, part, state.plan.mark_of_last()))
    }

    /// The storage of a request, which noted `mark` of it, ended. `false`: it is another workspace's.
    ///
    /// The bytes may be handed out again from here on, in the same cycle: as with those that go back to a pool, the
    /// last reference to them is gone. What is of an earlier cycle, or of a nested entry, says nothing: the numbers of
    /// the one are used again, and the others' arrays end together. Invariant I15 (design.md).
    pub(crate) fn request_ended(&self, part: ArenaPart, mark: u32) -> bool {
        if part.scope == self.scope.index() {
            let is_current = part.stamp == self.scope.last();
            // Where it is borrowed, something is being placed: what is not noted counts as in use.
            if let Some(mut state) = self.state.try_borrow_mut().ok().filter(|_| is_current) {
                state.plan.ended(mark);
            }
            return true;
        }
        self.owns(part.scope)
    }

    /// Bytes for an array of the current cycle, and what its storage is to note of the request.
    pub(crate) fn take(&self, op: &'static str, bytes: usize) -> std::result::Result<(Buffer, u32), NoBytes> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if self.budget.get() != 0
            && let Some(refusal) = budget::full_cycle(self.budget.get(), state.tally.arrays)
        {
            return Err(NoBytes::Budget(refusal));
        }
        let placement = state.plan.place(bytes).map_err(|_| NoBytes::Failed(self.full(op, &state.plan, bytes)))?;
        let placed = self.placed(state, placement, bytes);
        let (span, block) = match placed {
            Ok(placed) => placed,
            Err((placement, refused)) => {
                state.plan.take_back(placement, bytes);
                return Err(refused);
            }
        };
        let part = ArenaPart { block, scope: state.cycle.scope(), stamp: state.cycle.stamp };
        Ok((Buffer::from_arena(span, self.memory.clone(), part), state.plan.mark_of_last()))
    }

    /// The place that was booked, or another one if that is in use; with what is booked, if there is none.
    #[allow(clippy::type_complexity)] // two pairs
    fn placed(
        &self,
        state: &mut ArenaState,
        placement: Placement,
        bytes: usize,
    ) -> std::result::Result<(Span, u32), (Placement, NoBytes)> {
        let mut placement = placement;
        if let Placement::Block(offset) = placement {
            let size = state.plan.rounded(bytes);
            if !state.blocked && (!self.is_ring() || self.evict(state, offset, offset + size)) {
                let Some(block) = &state.block else { return Err((placement, NoBytes::Exhausted)) };
                let span = block.part(offset, bytes).map_err(|error| (placement, NoBytes::Failed(error)))?;
                state.tally.note(span);
                if self.is_ring() {
                    note_span(&mut state.ring_spans, state.cycle.stamp, offset, offset + size);
                }
                return Ok((span, block.index()));
            }
            placement = state.plan.divert(bytes);
        }
        self.beside(state, matches!(placement, Placement::Pinned), bytes).map_err(|refused| (placement, refused))
    }

    /// Bytes in a chunk beside the block.
    fn beside(&self, state: &mut ArenaState, pinned: bool, bytes: usize) -> std::result::Result<(Span, u32), NoBytes> {
        let size = state.plan.rounded(bytes).max(1);
        let (stamp, step) = (state.cycle.stamp, state.plan.step());
        // A ring frees by cycle; else all go together.
        let ring = self.is_ring();
        let last = if pinned { state.pinned.back_mut() } else { state.externals.last_mut() };
        let fits = |chunk: &Chunk| chunk.used + size <= chunk.block.bytes() && (!ring || chunk.stamp == stamp);
        let before = last.as_ref().map_or(0, |chunk| chunk.block.bytes());
        if !last.is_some_and(|chunk| fits(chunk)) {
            let wanted = size.max(CHUNK_BYTES_MIN).max(if ring { 0 } else { before.saturating_mul(2) });
            let block = match self.pooled(state, wanted) {
                Err(NoBytes::Exhausted | NoBytes::Budget(_)) if wanted > size => self.pooled(state, size)?,
                other => other?,
            };
            if state.plan.size() > 0 {
                figures::spilled(&self.name, &self.memory, block.bytes() as u64);
            }
            let chunk = Chunk { block, used: 0, stamp, step, bytes: 0, requests: 0 };
            if pinned { state.pinned.push_back(chunk) } else { state.externals.push(chunk) }
        }
        let chunk = if pinned { state.pinned.back_mut() } else { state.externals.last_mut() };
        let chunk = chunk.ok_or(NoBytes::Exhausted)?;
        let span = chunk.block.part(chunk.used, bytes).map_err(NoBytes::Failed)?;
        state.tally.note(span);
        chunk.used += size;
        chunk.bytes += state.plan.rounded(bytes);
        chunk.requests += 1;
        Ok((span, chunk.block.index()))
    }

    /// Ends the cycles of a ring whose bytes are wanted. `false` if they are leased or in use, or are the cycle's own.
    fn evict(&self, state: &mut ArenaState, start: usize, end: usize) -> bool {
        let wanted = |span: &RingSpan| span.start < end && start < span.end;
        // The youngest that is in the way, and with it all older ones.
        let Some(stamp) = state.ring_spans.iter().filter(|span| wanted(span)).map(|span| span.stamp).max() else {
            return true;
        };
        if stamp == state.cycle.stamp || state.leases.any_through(stamp) {
            return false;
        }
        self.scope.end_through(stamp);
        let ended = |cycle: CycleId| cycle.scope() == self.scope.index() && cycle.stamp <= stamp;
        if state.block.as_ref().is_some_and(|block| block.is_in_use(ended)) {
            return false;
        }
        while state.ring_spans.front().is_some_and(|span| span.stamp <= stamp) {
            state.ring_spans.pop_front();
        }
        true
    }

    fn full(&self, op: &'static str, plan: &Plan, bytes: usize) -> Error {
        Error::WorkspaceFull(Box::new(WorkspaceFull {
            site: None,
            op,
            workspace: self.name.to_string(),
            requested: bytes as u64,
            size: plan.size() as u64,
            used: plan.offset() as u64,
        }))
    }
}

fn note_span(ring_spans: &mut VecDeque<RingSpan>, stamp: u64, start: usize, end: usize) {
    match ring_spans.back_mut() {
        Some(last) if last.stamp == stamp && last.end == start => last.end = end,
        _ => ring_spans.push_back(RingSpan { stamp, start, end }),
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if switch::forked() {
            return;
        }
        self.destroy();
        // What somebody still uses stays charged until it goes.
        budget::release(self.budget.get());
    }
}
