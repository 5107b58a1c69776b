//! The stack: what a thread has of workspaces: all of them by name, and which are open, innermost last.
//!
//! An entry is a frame of a stack. A guard marks its frame as left; frames are taken away from the top while they are
//! marked. So whatever the order in which guards are dropped, a workspace's cycle ends when its guard and all entered
//! after it are gone, and what was current before is current again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::error::{Error, Result, Site};
use crate::device::{
    Device,
    buffer::{ArenaPart, Buffer, Span},
};
use crate::memory::workspace::{
    arena::Arena,
    block::Readers,
    config::{DebugMode, WorkspaceConfig},
    retired,
    validity::{self, CycleId},
};
use crate::memory::{budget::NoBytes, key::Key};

/// Why a frame is in the stack. A whole word, as all of a frame: one is written and read again within the shortest
/// cycle, and a read that is wider than the writes waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum FrameKind {
    /// Its cycle began here.
    Cycle,
    /// It was the current one.
    Again,
    /// It was open, but not current.
    Nested,
    /// It takes arrays of an open cycle again.
    Borrowed,
    /// No workspace takes arrays.
    Out,
}

/// In this order: it is written and read again within the shortest cycle, and words that are wanted together but do not
/// lie side by side are read one by one, as they were written; a wider read would wait.
#[derive(Debug)]
#[repr(C)]
struct StackFrame {
    kind: FrameKind,
    /// [`LEFT`] if its guard is gone.
    id: u64,
    /// The workspace; none of `Out`.
    arena: Option<Rc<Arena>>,
}

/// The number of no frame that has a guard.
const LEFT: u64 = u64::MAX;

/// What a thread has of workspaces.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceStack {
    /// The workspace that takes arrays of the host.
    host: RefCell<Option<Rc<Arena>>>,
    /// Whether any frame is there.
    busy: Cell<bool>,
    frames: RefCell<Vec<StackFrame>>,
    /// By name.
    all: RefCell<Vec<Rc<Arena>>>,
    next: Cell<u64>,
    /// The budget whose soft limit was passed by what [`WorkspaceStack::take`] took, or 0. The caller takes it back.
    pub(crate) above_soft: Cell<u32>,
    /// Arrays of cycles that gradients are recorded for.
    pub(crate) tracked: RefCell<Vec<Key>>,
    /// Whether arrays outside of cycles lead into them (`memory/exit.rs`).
    pub(crate) has_exits: Cell<bool>,
}

/// Process-wide: the number of a `DebugMode`.
static DEBUG: AtomicU32 = AtomicU32::new(0);

pub(crate) fn debug_mode() -> DebugMode {
    // Relaxed: it concerns cycles that begin later.
    let number = DEBUG.load(Ordering::Relaxed);
    let mut modes = [DebugMode::SpillEverything, DebugMode::BypassEverything].into_iter();
    modes.find(|mode| *mode as u32 == number).unwrap_or(DebugMode::Disabled)
}

pub(crate) fn set_debug_mode(mode: DebugMode) {
    // Relaxed: as in `debug_mode`.
    DEBUG.store(mode as u32, Ordering::Relaxed);
}

impl WorkspaceStack {
    /// Whether a workspace takes arrays of the host.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.busy.get() && self.host.borrow().is_some()
    }

    /// Bytes for an array of the host, if the workspace has them in its block.
    #[inline(always)]
    pub(crate) fn take_at_once(&self, bytes: usize) -> Option<(Span, ArenaPart, u32)> {
        self.host.borrow().as_ref()?.take_at_once(bytes)
    }

    /// A storage in such a part of an arena ended, that noted this of its request. Another thread's workspace is not
    /// told: there its bytes are in use until the cycle ends.
    pub(crate) fn request_ended(&self, part: ArenaPart, mark: u32) {
        let known = self.host.borrow().as_ref().is_some_and(|arena| arena.request_ended(part, mark));
        let _ = known || self.all.borrow().iter().any(|arena| arena.request_ended(part, mark));
    }

    /// Bytes for an array of a device from the workspace that takes its arrays, and what the storage is to note;
    /// `None` if there is none.
    pub(crate) fn take(
        &self,
        op: &'static str,
        device: &Device,
        bytes: usize,
    ) -> Option<std::result::Result<(Buffer, u32), NoBytes>> {
        if !self.busy.get() {
            return None;
        }
        let arena = self.current(device)?;
        let taken = arena.take(op, bytes);
        if arena.passed_soft() {
            self.above_soft.set(arena.budget_number());
        }
        Some(taken)
    }

    /// Notes an array of a cycle that has a recorded gradient.
    #[inline]
    pub(crate) fn track(&self, key: Key) {
        self.tracked.borrow_mut().push(key);
    }

    /// Whether gradients are recorded for arrays of cycles, or through them.
    #[inline]
    pub(crate) fn has_graphs(&self) -> bool {
        self.has_exits.get() || !self.tracked.borrow().is_empty()
    }

    /// Whether an array of the cycle `own`, or of none, outlives the cycle `from` of this thread, which goes on.
    pub(crate) fn leads_out(&self, from: CycleId, own: Option<CycleId>) -> bool {
        let frames = self.frames.borrow();
        // Where they began, not where one takes arrays again.
        let began = frames.iter().rev().filter(|frame| matches!(frame.kind, FrameKind::Cycle | FrameKind::Nested));
        let inner = began.filter_map(|frame| frame.arena.as_ref()).find_map(|arena| {
            let is_own = own.is_some_and(|own| arena.owns(own.scope()));
            (is_own || arena.owns(from.scope())).then_some(!is_own)
        });
        inner == Some(true) && validity::goes_on(from)
    }

    /// Which of two cycles ends first: of those that this thread is in, the one that began later; else the first.
    #[cold]
    pub(crate) fn first_to_end(&self, one: CycleId, other: CycleId) -> CycleId {
        let frames = self.frames.borrow();
        let began = |scope: u32| {
            let is_in = frames.iter().filter_map(|frame| frame.arena.as_ref()).any(|arena| arena.owns(scope));
            is_in.then(|| validity::entry_of(scope))
        };
        if began(other.scope()) > began(one.scope()) { other } else { one }
    }

    /// Whether a workspace takes arrays of a device.
    #[inline]
    pub(crate) fn takes(&self, device: &Device) -> bool {
        self.busy.get() && self.current(device).is_some()
    }

    /// An array with a recorded gradient was still in somebody's hands when its cycle ended.
    pub(crate) fn note_kept(&self, cycle: CycleId, created: Option<Site>) {
        if let Some(arena) = self.all.borrow().iter().find(|arena| arena.owns(cycle.scope())) {
            arena.note_kept(created);
        }
    }

    /// The workspace that takes arrays of a device: the innermost open one.
    pub(crate) fn current(&self, device: &Device) -> Option<Rc<Arena>> {
        for frame in self.frames.borrow().iter().rev() {
            match &frame.arena {
                None => return None,
                Some(arena) if &arena.device == device && !arena.is_destroyed() => return Some(Rc::clone(arena)),
                Some(_) => {}
            }
        }
        None
    }

    /// The cycle of the workspace that takes arrays of a device.
    #[cold]
    pub(crate) fn cycle_of(&self, device: &Device) -> Option<CycleId> {
        self.current(device).map(|arena| arena.cycle())
    }

    /// The innermost open workspace, whatever its device.
    pub(crate) fn innermost(&self) -> Option<Rc<Arena>> {
        let frames = self.frames.borrow();
        frames.last().and_then(|frame| frame.arena.clone()).filter(|arena| !arena.is_destroyed())
    }

    /// The workspace around the innermost open one. `None`: there is none, or no workspace is current there.
    pub(crate) fn enclosing(&self) -> Option<Rc<Arena>> {
        let frames = self.frames.borrow();
        let own = frames.last()?.arena.as_ref()?;
        let outer =
            frames.iter().rev().find(|frame| frame.arena.as_ref().is_none_or(|arena| !Rc::ptr_eq(arena, own)))?;
        outer.arena.clone().filter(|arena| !arena.is_destroyed())
    }

    pub(crate) fn find(&self, name: &str) -> Option<Rc<Arena>> {
        self.place_of(name).ok().map(|place| Rc::clone(&self.all.borrow()[place]))
    }

    /// The place of a workspace among all, or the one that it would have.
    fn place_of(&self, name: &str) -> std::result::Result<usize, usize> {
        self.all.borrow().binary_search_by(|arena| (*arena.name).cmp(name))
    }

    /// The device of the workspace that a cycle is one of.
    pub(crate) fn device_of(&self, cycle: CycleId) -> Option<Device> {
        self.all.borrow().iter().find(|arena| arena.owns(cycle.scope())).map(|arena| arena.device.clone())
    }

    /// Every workspace of the thread, by name.
    pub(crate) fn all(&self) -> Vec<Rc<Arena>> {
        self.all.borrow().clone()
    }

    /// The names of those that are open, outermost first.
    pub(crate) fn open_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for frame in self.frames.borrow().iter() {
            if let Some(arena) = &frame.arena
                && !names.iter().any(|name| **name == *arena.name)
            {
                names.push(arena.name.to_string());
            }
        }
        names
    }

    /// The workspace with this name, made if there is none; `begin` makes its first block.
    ///
    /// # Errors
    /// It has another configuration or device; those of `begin`.
    pub(crate) fn get(
        &self,
        op: &'static str,
        name: &str,
        device: &Device,
        config: &WorkspaceConfig,
        readers: Readers,
        begin: impl FnOnce(&Arena) -> Result<()>,
    ) -> Result<Rc<Arena>> {
        if let Some(arena) = self.known(op, name, device, config)? {
            return Ok(arena);
        }
        let arena = Rc::new(Arena::new(op, name, device, config, readers)?);
        begin(&arena)?;
        // What gave memory back for it may have made one of this name.
        if let Some(arena) = self.known(op, name, device, config)? {
            return Ok(arena);
        }
        if let Err(place) = self.place_of(name) {
            self.all.borrow_mut().insert(place, Rc::clone(&arena));
        }
        Ok(arena)
    }

    /// The workspace with this name, if there is one.
    fn known(
        &self,
        op: &'static str,
        name: &str,
        device: &Device,
        config: &WorkspaceConfig,
    ) -> Result<Option<Rc<Arena>>> {
        let Some(arena) = self.find(name) else { return Ok(None) };
        let why = if arena.config != *config {
            "it exists on this thread with another configuration; use that one, another name, or destroy() it first"
        } else if arena.device != *device {
            "it exists on this thread for another device; use another name, or destroy() it first"
        } else {
            return Ok(Some(arena));
        };
        Err(Error::workspace(op, name, why))
    }

    /// Enters a workspace. Returns the number of its frame.
    pub(crate) fn enter(&self, op: &'static str, arena: &Rc<Arena>) -> Result<u64> {
        retired::sweep();
        let debug = debug_mode();
        if debug == DebugMode::BypassEverything {
            return Ok(self.push(FrameKind::Out, None));
        }
        if !arena.is_open() {
            arena.begin(debug, self.next.get());
            return Ok(self.push(FrameKind::Cycle, Some(arena)));
        }
        if self.top().is_some_and(|(_, top)| Rc::ptr_eq(&top, arena)) || arena.is_ring() {
            return Ok(self.push(FrameKind::Again, Some(arena)));
        }
        if !arena.begin_nested(self.next.get()) {
            let why = "2^28 entries of workspaces are open; leave some";
            return Err(Error::workspace(op, &arena.name, why));
        }
        Ok(self.push(FrameKind::Nested, Some(arena)))
    }

    /// Lets an open workspace take arrays again.
    pub(crate) fn borrow(&self, op: &'static str, arena: &Rc<Arena>) -> Result<u64> {
        if debug_mode() == DebugMode::BypassEverything {
            return Ok(self.push(FrameKind::Out, None));
        }
        let wrong = |why: &str| Err(Error::workspace(op, &arena.name, why));
        if self.top().is_some_and(|(kind, top)| kind == FrameKind::Borrowed && Rc::ptr_eq(&top, arena)) {
            return wrong(&format!("Workspace [{}]: Can't borrow from borrowed workspace", arena.name));
        }
        if !arena.is_open() {
            return wrong("it is not open, so its arrays would have no cycle; enter it");
        }
        Ok(self.push(FrameKind::Borrowed, Some(arena)))
    }

    /// Lets an open workspace take arrays for a moment.
    pub(crate) fn redirect(&self, arena: &Rc<Arena>) -> u64 {
        self.push(FrameKind::Borrowed, Some(arena))
    }

    /// Lets no workspace take arrays.
    pub(crate) fn scope_out(&self) -> u64 {
        self.push(FrameKind::Out, None)
    }

    /// The innermost frame's workspace, and why it is there.
    fn top(&self) -> Option<(FrameKind, Rc<Arena>)> {
        self.frames.borrow().last().and_then(|frame| Some((frame.kind, Rc::clone(frame.arena.as_ref()?))))
    }

    fn push(&self, kind: FrameKind, arena: Option<&Rc<Arena>>) -> u64 {
        let id = self.next.get();
        self.next.set(id + 1);
        let mut frames = self.frames.borrow_mut();
        frames.push(StackFrame { kind, id, arena: None });
        // After it has its place: what might have to be dropped would go there over the stack.
        if let Some(frame) = frames.last_mut() {
            frame.arena = arena.cloned();
        }
        drop(frames);
        self.settle();
        id
    }

    /// A guard is gone: its frame, and those above that were left before, end. Whether a cycle did, and the workspace
    /// whose block grew beyond a soft limit, if one did.
    pub(crate) fn leave(&self, id: u64) -> (bool, Option<Rc<Arena>>) {
        let (mut ended, mut above_soft) = (false, None);
        if let Some(frame) = self.frames.borrow_mut().iter_mut().rev().find(|frame| frame.id == id) {
            frame.id = LEFT;
        }
        // A frame is taken away before its cycle ends, and no list is borrowed then.
        while let Some(top) = self.pop_left() {
            ended |= matches!(top.0, FrameKind::Cycle | FrameKind::Nested);
            match top {
                (FrameKind::Cycle, Some(arena)) => above_soft = arena.end().then_some(arena).or(above_soft),
                (FrameKind::Nested, Some(arena)) => arena.end_nested(),
                _ => {}
            }
        }
        self.settle();
        (ended, above_soft)
    }

    /// Takes the top frame away, if it was left.
    fn pop_left(&self) -> Option<(FrameKind, Option<Rc<Arena>>)> {
        let mut frames = self.frames.borrow_mut();
        let frame = frames.last_mut().filter(|frame| frame.id == LEFT)?;
        let top = (frame.kind, frame.arena.take());
        let rest = frames.len() - 1;
        frames.truncate(rest);
        Some(top)
    }

    /// Keeps what the fast paths look at up to date.
    fn settle(&self) {
        self.busy.set(!self.frames.borrow().is_empty());
        *self.host.borrow_mut() = self.current(&Device::Cpu);
    }

    /// Destroys a workspace, whose arrays end.
    ///
    /// # Errors
    /// It is open.
    pub(crate) fn destroy(&self, op: &'static str, arena: &Rc<Arena>) -> Result<()> {
        if arena.is_open() {
            return Err(Error::workspace(op, &arena.name, "it is open; leave it first"));
        }
        arena.destroy();
        self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, arena));
        Ok(())
    }

    /// The thread ends: all its workspaces do, the open ones too.
    pub(crate) fn close(&self) {
        self.frames.borrow_mut().clear();
        self.settle();
        for arena in std::mem::take(&mut *self.all.borrow_mut()) {
            arena.destroy();
        }
    }
}
