//! Blocks: the memory that an arena hands out in parts, and who keeps it from being used again.

use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{
    error::Result,
    order::value_of,
    sync::{AtomicU32, Ordering},
    work,
};
use crate::device::{
    Device,
    buffer::{Buffer, Span},
    host::mapped::MappedBlock,
};
use crate::memory::{
    budget::{self, NoBytes},
    cycle::{ForeignUse, RetainCount},
    slab::slab,
    switch,
    trace::{self, Kind},
    workspace::{figures, validity::CycleId},
};

/// What references need to know of a block. Lives in a slab and is used again.
#[derive(Debug)]
struct BlockCell {
    retain_count: RetainCount,
    foreign: ForeignUse,
    /// Whether it is a file: 1, or 0.
    is_file: AtomicU32,
}

slab!(CELLS: BlockCell = BlockCell {
    retain_count: RetainCount::new(),
    foreign: ForeignUse::new(),
    is_file: AtomicU32::new(0),
});

static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Number, workspace, device, bytes, and those among them that the device counts as active: none of a spilled block.
type BlockInfo = (u32, Arc<str>, Device, u64, u64);

/// Whose the blocks are, for reports.
static ALL: Mutex<Vec<BlockInfo>> = Mutex::new(Vec::new());

/// The blocks of such workspaces in the memory of such devices: for each name their number and bytes, by name. None in
/// a forked child.
pub(crate) fn by_workspace(is_of: &dyn Fn(&Arc<str>, &Device) -> bool) -> Vec<(Arc<str>, (u64, u64))> {
    let mut found: Vec<(Arc<str>, (u64, u64))> = Vec::new();
    if switch::forked() {
        return found;
    }
    for (_, name, at, bytes, _) in ALL.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if is_of(name, at) {
            let (blocks, sum) = value_of(&mut found, Arc::clone(name));
            (*blocks, *sum) = (*blocks + 1, *sum + bytes);
        }
    }
    found
}

/// References that retain blocks of such workspaces in the memory of such devices. None in a forked child.
pub(crate) fn holders(is_of: &dyn Fn(&Arc<str>, &Device) -> bool) -> u64 {
    let mut sum = 0;
    if switch::forked() {
        return sum;
    }
    for (index, name, at, ..) in ALL.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if is_of(name, at) {
            sum += u64::from(CELLS.get(*index).retain_count.count());
        }
    }
    sum
}

/// The bytes of blocks that a device counts as active. None in a forked child.
pub(crate) fn active(device: &Device) -> u64 {
    let mut sum = 0;
    if switch::forked() {
        return sum;
    }
    for (_, _, at, _, active) in ALL.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if at == device {
            sum += active;
        }
    }
    sum
}

/// One more reference that retains the block. The caller announces an array whose bytes lie in it, or retains it
/// already.
#[inline]
pub(crate) fn retain(block: u32) {
    CELLS.get(block).retain_count.retain();
}

/// One reference less.
#[inline]
pub(crate) fn release(block: u32) {
    CELLS.get(block).retain_count.release();
}

/// Another thread than the workspace's is about to use bytes of the block: it announced an array with them, and will do
/// so again.
pub(crate) fn share(block: u32) {
    CELLS.get(block).foreign.note();
}

/// Whether the bytes of a block are those of a file. The caller has an array of it.
pub(crate) fn is_file(block: u32) -> bool {
    // Relaxed: written before a byte of the block was handed out.
    CELLS.get(block).is_file.load(Ordering::Relaxed) != 0
}

/// Who reads a block: what it asks of what is above it, the slots and the hazard records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readers {
    /// The thread record of the workspace's thread.
    pub(crate) thread: u32,
    /// Whether a thread announces an array that lies in this block and is of such a cycle, which the caller ended: any,
    /// or the one with this thread record, if it is the caller's. Heavy barrier included.
    pub(crate) is_read: fn(u32, Option<u32>, Ended<'_>) -> bool,
}

/// Whether the caller ended a cycle.
pub(crate) type Ended<'a> = &'a dyn Fn(CycleId) -> bool;

/// Where the bytes of a block lie.
#[derive(Debug)]
enum Memory {
    Pooled(Buffer),
    Mapped(MappedBlock),
}

/// Memory of an arena. Its drop gives the memory back; the arena has made sure that nobody uses it.
#[derive(Debug)]
pub(crate) struct ArenaBlock {
    index: u32,
    readers: Readers,
    /// All of it.
    whole: Span,
    memory: Memory,
    workspace: Arc<str>,
    /// The budget that its bytes are charged to, or 0.
    payer: u32,
    /// Whether the trace has its begin.
    is_noted: bool,
}

impl ArenaBlock {
    fn new(memory: Memory, workspace: &Arc<str>, readers: Readers) -> Option<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let index = CELLS.take_from(&mut free)?;
        let whole = match &memory {
            Memory::Pooled(buffer) => buffer.span(),
            Memory::Mapped(file) => file.span(),
        };
        // Relaxed: whoever looks had a part of the block, which is handed out after this.
        CELLS.get(index).is_file.store(u32::from(matches!(memory, Memory::Mapped(_))), Ordering::Relaxed);
        let mut is_noted = false;
        if let Memory::Pooled(buffer) = &memory {
            let (bytes, active) = (buffer.span().bytes() as u64, buffer.active() as u64);
            let about = (index, Arc::clone(workspace), buffer.device().clone(), bytes, active);
            is_noted = trace::note_block(index, &about.2, about.3, workspace);
            figures::block_taken(workspace, &about.2, about.3);
            ALL.lock().unwrap_or_else(PoisonError::into_inner).push(about);
        }
        Some(ArenaBlock { index, readers, whole, memory, workspace: Arc::clone(workspace), payer: 0, is_noted })
    }

    /// Uninitialised bytes of a device.
    pub(crate) fn pooled(
        device: &Device,
        bytes: usize,
        workspace: &Arc<str>,
        readers: Readers,
    ) -> std::result::Result<Self, NoBytes> {
        let buffer = device.alloc(bytes, false)?;
        Self::new(Memory::Pooled(buffer), workspace, readers).ok_or(NoBytes::Exhausted)
    }

    /// Bytes of a file.
    pub(crate) fn mapped(
        file: MappedBlock,
        workspace: &Arc<str>,
        readers: Readers,
    ) -> std::result::Result<Self, NoBytes> {
        Self::new(Memory::Mapped(file), workspace, readers).ok_or(NoBytes::Exhausted)
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn bytes(&self) -> usize {
        self.whole.bytes()
    }

    /// Whether it is one of the workspace whose name this is, not of another one with such a name.
    pub(crate) fn is_of(&self, workspace: &Arc<str>) -> bool {
        Arc::ptr_eq(&self.workspace, workspace)
    }

    /// Its bytes are charged to a budget, which is told when they go.
    pub(crate) fn charged_to(&mut self, payer: u32) {
        self.payer = payer;
    }

    /// Charges its bytes to a new budget of its workspace, also beyond it. Files are charged to nobody.
    pub(crate) fn move_to(&mut self, payer: u32) {
        let (from, bytes) = (self.payer, self.bytes() as u64);
        if self.file().is_none() && budget::transfer(from, payer, bytes, true).is_ok() {
            self.payer = payer;
        }
    }

    /// The file, if it is one.
    pub(crate) fn file(&self) -> Option<&MappedBlock> {
        match &self.memory {
            Memory::Mapped(file) => Some(file),
            Memory::Pooled(_) => None,
        }
    }

    /// A part of a block of the host.
    #[inline(always)]
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> Span {
        self.whole.part(offset, bytes)
    }

    /// A part of it, for a new owner.
    ///
    /// # Errors
    /// A full disk, of a file.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Result<Span> {
        match &self.memory {
            Memory::Pooled(buffer) => buffer.device().suballocate(buffer, offset, bytes),
            Memory::Mapped(file) => {
                file.reserve(offset + bytes)?;
                Ok(self.at(offset, bytes))
            }
        }
    }

    /// Whether anybody uses its bytes of such cycles, which the caller ended: by an array that is announced, or by a
    /// reference that retains it. In this order: who is announced may begin to retain it, and nobody else. The records
    /// of other threads than the caller's matter if it is not the workspace's, or another one used bytes of the block.
    /// Invariant I13 (design.md).
    pub(crate) fn is_in_use(&self, ended: impl Fn(CycleId) -> bool) -> bool {
        let Readers { thread, is_read } = self.readers;
        let only = (!CELLS.get(self.index).foreign.is_noted()).then_some(thread);
        is_read(self.index, only, &ended) || self.is_retained()
    }

    /// Whether anybody uses its bytes. The caller ended all cycles that had some.
    pub(crate) fn is_in_use_at_all(&self) -> bool {
        // What is retained needs no look at other threads, which costs them an interrupt: the order of the two looks
        // matters for the answer that nobody does.
        let used = self.is_retained() || self.is_in_use(|_| true);
        if !used {
            CELLS.get(self.index).foreign.clear();
        }
        used
    }

    /// What its end costs a call, in units.
    pub(crate) fn work(&self) -> u32 {
        work::of_bytes(self.whole.bytes())
    }

    /// Whether a reference retains it.
    fn is_retained(&self) -> bool {
        CELLS.get(self.index).retain_count.is_retained()
    }
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        if self.is_retained() || switch::forked() {
            // The arena asks before; what somebody uses nevertheless stays, and its number with it. A forked child
            // frees nothing: another thread may have had a lock when it was forked.
            std::mem::forget(std::mem::replace(&mut self.memory, Memory::Pooled(Buffer::empty())));
            return;
        }
        ALL.lock().unwrap_or_else(PoisonError::into_inner).retain(|(index, ..)| *index != self.index);
        if self.is_noted {
            trace::note(Kind::BlockFreed, (self.index, 0), self.whole.bytes() as u64, 0, None);
        }
        // The next block has another size, or there is none.
        if let Memory::Pooled(buffer) = &mut self.memory {
            figures::block_returned(&self.workspace, buffer.device(), self.whole.bytes() as u64);
            buffer.return_pages();
        }
        if self.payer != 0 {
            // The bytes go first: what is charged is never less than there is. Invariant I14 (design.md).
            self.memory = Memory::Pooled(Buffer::empty());
            budget::discharge(self.payer, self.whole.bytes() as u64);
        }
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}
