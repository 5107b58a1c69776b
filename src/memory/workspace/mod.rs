//! Workspaces: arenas for cyclic work. Their arrays end together, with the cycle they were made in, and their bytes are
//! used again in the next one: nothing is freed, and nothing is collected.
//!
//! Five rooms, each with one question, in reading order; a room uses those before it:
//!
//! - configuration (`config`): what is a workspace to be like?
//! - sizing (`sizing`, with `planning`): where does a request go, and how large is the block to be? Arithmetic, without
//!   memory.
//! - validity (`validity`): which cycles go on? Asked by arrays on any thread, and by the arena.
//! - the arena (`arena`, with `block` and `retired`): which bytes are it, and may they be used again?
//! - the stack (`stack`): which workspaces has this thread, and which one takes an array?
//!
//! Here is what users see of them; `stats` and `figures` have what is told.

pub(crate) mod arena;
pub(crate) mod block;
pub(crate) mod config;
pub(crate) mod figures;
pub(crate) mod planning;
pub(crate) mod retired;
pub(crate) mod sizing;
pub(crate) mod stack;
pub(crate) mod stats;
pub(crate) mod validity;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{
    call::Call,
    error::{Error, Result, Site},
};
use crate::device::Device;
use crate::memory::{
    budget::NoBytes,
    pressure, readers, reclaim, registry, switch,
    threads::{ThreadContext, with_context},
};

use arena::{Arena, CycleLease};
use config::{DebugMode, WorkspaceConfig};
use stats::WorkspaceStats;

/// The name of the workspace that [`Workspace::default_for_current_thread`] gives.
pub const DEFAULT_WORKSPACE: &str = "DefaultWorkspace";

/// An arena for cyclic work, of one thread, known there by its name.
///
/// While a cycle of it runs, each array that this thread makes on its device has its bytes there: of a creation, of an
/// operation, of a derivative. At the end of the cycle they end all at once, in a time that depends on how many have a
/// recorded gradient alone, and the next cycle uses the bytes again. A handle that is left over gives
/// [`Error::LeakedArray`] wherever it is used. A result leaves by [`Proxy::detach`](crate::Proxy::detach), or by
/// [`Proxy::leverage`](crate::Proxy::leverage) to a workspace further out.
///
/// What ND4J's guide says of workspaces holds here, where its code does otherwise too.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
/// let config = WorkspaceConfig::builder().initial_size(1 << 20).build()?;
/// let mut kept = Vec::new();
/// for step in 0..3 {
///     let _cycle = Workspace::enter("LOOP", &config)?;
///     let x = Tensor::full(step as f32, 4, &Device::Cpu)?;
///     let y = (&x * 2.)?; // both in the workspace
///     kept.push(y.sum_all()?.detach()); // leaves it
/// }
/// assert_eq!(kept[2].to_scalar::<f32>()?, 16.);
/// assert_eq!(Workspace::find("LOOP").map(|loops| loops.stats().cycles), Some(3));
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// Memory that is a file, for more than the memory there is; the file is temporary, and takes room on the disk as it is
/// used:
///
/// ```
/// # use ndgc::{DType, Device, LocationPolicy, Tensor, Workspace, WorkspaceConfig};
/// let mmap = WorkspaceConfig::builder().initial_size(1_000_000_000).policy_location(LocationPolicy::Mmap).build()?;
/// let cycle = Workspace::enter("M2", &mmap)?;
/// let x = Tensor::zeros(10_000, DType::F32, &Device::Cpu)?;
/// assert_eq!((x.is_attached(), cycle.stats().location), (true, "mapped file"));
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// Arrays on the host alone, as a cache in front of a device:
///
/// ```
/// # use ndgc::{AllocationPolicy, DType, Device, LearningPolicy, MirroringPolicy, SpillPolicy, Tensor, Workspace};
/// # use ndgc::WorkspaceConfig;
/// # let device = Device::sim(ndgc::SimConfig::default()); // or Device::cuda(0)?
/// let host_only = WorkspaceConfig::builder()
///     .policy_allocation(AllocationPolicy::Strict)
///     .policy_learning(LearningPolicy::FirstLoop)
///     .policy_mirroring(MirroringPolicy::HostOnly)
///     .policy_spill(SpillPolicy::External)
///     .build()?;
/// let _cache = Workspace::enter_on(&device, "CACHE", &host_only)?;
/// let cached = Tensor::ones(1000, DType::F32, &device)?;
/// assert!(cached.device().is_cpu());
/// let _step = Workspace::enter_on(&device, "STEP", &WorkspaceConfig::default())?;
/// let x = cached.unsafe_duplication()?; // on the device, for this step
/// assert!(*x.device() == device);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone)]
pub struct Workspace {
    pub(super) arena: Rc<Arena>,
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workspace({} on {})", self.arena.name, self.arena.device)
    }
}

/// A workspace that was entered or borrowed, until this is dropped; then what was current before is current again.
///
/// It ends a cycle on any way out: at the end of a block, by `return`, `?` and a panic. If several are dropped in
/// another order than the reverse one, a cycle ends when its own and all that were entered after it are gone.
#[derive(Debug)]
#[must_use = "the cycle ends when this is dropped, with `let _ = ...` at once; name it, as in `let _cycle = ...`"]
pub struct WorkspaceCycle {
    workspace: Workspace,
    leaves: Leaves,
}

impl Deref for WorkspaceCycle {
    type Target = Workspace;

    fn deref(&self) -> &Workspace {
        &self.workspace
    }
}

impl WorkspaceCycle {
    /// The workspace, to be kept longer than its cycle.
    pub fn workspace(&self) -> Workspace {
        self.workspace.clone()
    }

    /// Ends it here.
    pub fn leave(self) {
        drop(self.leaves);
    }
}

/// A part of the program in which no workspace takes arrays, until this is dropped.
#[derive(Debug)]
#[must_use = "workspaces take arrays again when this is dropped, with `let _ = ...` at once; name it, as in `let _out = ...`"]
pub struct ScopeOut {
    _leaves: Leaves,
}

/// Takes a frame from this thread's stack.
#[derive(Debug)]
struct Leaves {
    frame: u64,
    /// Bound to the thread.
    _thread: PhantomData<*const ()>,
}

impl Leaves {
    fn new(frame: u64) -> Self {
        Leaves { frame, _thread: PhantomData }
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        if switch::forked() {
            return;
        }
        with_context(|context| {
            reclaim::on_call(context);
            let (ended, above_soft) = context.workspaces.leave(self.frame);
            if ended && context.workspaces.has_graphs() {
                // Of what waits to be reaped nobody has a handle.
                let is_held = reclaim::is_drained(context);
                registry::end_graphs(context, |key| {
                    if is_held && let Some(cycle) = registry::cycle_of(key) {
                        context.workspaces.note_kept(cycle, registry::created(key.index()));
                    }
                });
            }
            if let Some(arena) = above_soft {
                relieve(context, &arena);
            }
        });
    }
}

/// Makes a block, and looks for memory where there is none.
fn make_block(
    context: &ThreadContext,
    (op, arena, bytes): (&'static str, &Arena, usize),
    make: &mut dyn FnMut() -> std::result::Result<(), NoBytes>,
) -> Result<()> {
    make().or_else(|why| pressure::recover(context, (op, &arena.memory, bytes), why, make))
}

/// The block of a workspace grew beyond its soft budget.
#[cold]
fn relieve(context: &ThreadContext, arena: &Arena) {
    pressure::relieve(context, &arena.memory, arena.plan(|plan| plan.size()), (arena.budget_number(), 0));
}

/// The configuration of default workspaces, if one was set.
static DEFAULT: Mutex<Option<WorkspaceConfig>> = Mutex::new(None);

/// # Cycles, and workspaces by name
impl Workspace {
    /// Begins a cycle of this thread's workspace with this name, for arrays of the host; the workspace is made if there
    /// is none. The cycle ends when the answer is dropped.
    ///
    /// If the workspace is open already, its arrays stay: as the current one, or as a circular one, it goes on with the
    /// same cycle; else what is made until the answer is dropped ends then, and what was made before stays.
    ///
    /// An answer that is never dropped ([`std::mem::forget`]) leaves its cycle open, and those around it, whoever drops
    /// theirs: arrays are made in it, and stay, until the thread ends, which ends them all. Cycles entered later are as
    /// usual. [`Workspace::cycle`] has no answer to forget.
    ///
    /// ```
    /// # use ndgc::{Error, Workspace, WorkspaceConfig};
    /// let cycle = Workspace::enter("LOOP", &WorkspaceConfig::default())?;
    /// assert!(cycle.is_open());
    /// let other = WorkspaceConfig::builder().initial_size(4096).build()?;
    /// assert!(matches!(Workspace::enter("LOOP", &other), Err(Error::Workspace { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it has another configuration; [`Error::OutOfMemory`] if there is no memory for a first
    /// block of [`initial_size`](config::WorkspaceConfigBuilder::initial_size); [`Error::File`] of a mapped one.
    #[track_caller]
    pub fn enter(id: &str, config: &WorkspaceConfig) -> Result<WorkspaceCycle> {
        Self::enter_on(&Device::Cpu, id, config)
    }

    /// As [`Workspace::enter`], for arrays of a device.
    ///
    /// # Errors
    /// As of [`Workspace::enter`]; [`Error::Workspace`] for a mapped one of another device than the host, unless its
    /// arrays are the host's ([`MirroringPolicy::HostOnly`](config::MirroringPolicy::HostOnly)).
    #[track_caller]
    pub fn enter_on(device: &Device, id: &str, config: &WorkspaceConfig) -> Result<WorkspaceCycle> {
        let (arena, frame) = Self::called(Location::caller(), |context| {
            let arena = Self::named(context, device, id, config)?;
            let frame = context.workspaces.enter("enter", &arena)?;
            Ok((arena, frame))
        })?;
        Ok(WorkspaceCycle { workspace: Workspace { arena }, leaves: Leaves::new(frame) })
    }

    /// Runs `f` in a cycle of the workspace with this name.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::default();
    /// let loss = Workspace::cycle("STEP", &config, || {
    ///     Tensor::ones(3, DType::F32, &Device::Cpu)?.sum_all()?.to_scalar::<f32>()
    /// })?;
    /// assert_eq!(loss, 3.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`Workspace::enter`]; what `f` returns.
    #[track_caller]
    pub fn cycle<R, E: From<Error>>(
        id: &str,
        config: &WorkspaceConfig,
        f: impl FnOnce() -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        Self::cycle_on(&Device::Cpu, id, config, f)
    }

    /// As [`Workspace::cycle`], for arrays of a device.
    ///
    /// # Errors
    /// As of [`Workspace::cycle`].
    #[track_caller]
    pub fn cycle_on<R, E: From<Error>>(
        device: &Device,
        id: &str,
        config: &WorkspaceConfig,
        f: impl FnOnce() -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let _cycle = Self::enter_on(device, id, config)?;
        f()
    }

    /// This thread's workspace with this name, which is made if there is none. It is not entered.
    ///
    /// # Errors
    /// As of [`Workspace::enter`].
    #[track_caller]
    pub fn for_current_thread(id: &str, config: &WorkspaceConfig) -> Result<Self> {
        Self::for_current_thread_on(&Device::Cpu, id, config)
    }

    /// As [`Workspace::for_current_thread`], for arrays of a device.
    ///
    /// # Errors
    /// As of [`Workspace::enter_on`].
    #[track_caller]
    pub fn for_current_thread_on(device: &Device, id: &str, config: &WorkspaceConfig) -> Result<Self> {
        let arena = Self::called(Location::caller(), |context| Self::named(context, device, id, config))?;
        Ok(Workspace { arena })
    }

    /// The entry check, and `f` after what every call does first.
    fn called<R>(site: Site, f: impl FnOnce(&ThreadContext) -> Result<R>) -> Result<R> {
        let answer = switch::check("workspace").and_then(|()| {
            with_context(|context| {
                reclaim::on_call(context);
                f(context)
            })
        });
        answer.map_err(|error| error.at(site))
    }

    fn named(context: &ThreadContext, device: &Device, id: &str, config: &WorkspaceConfig) -> Result<Rc<Arena>> {
        let begin = |arena: &Arena| {
            let bytes = arena.first_size();
            make_block(context, ("workspace", arena, bytes), &mut || arena.make_block(bytes))
        };
        context.workspaces.get("workspace", id, device, config, readers::of_thread(context), begin)
    }
}

/// # Workspaces of this thread
impl Workspace {
    /// This thread's default workspace of the host, with the default configuration; one that is there keeps its own.
    ///
    /// # Errors
    /// As of [`Workspace::enter`].
    #[track_caller]
    pub fn default_for_current_thread() -> Result<Self> {
        let call = Call::here("workspace");
        call.named(switch::check(call.op))?;
        if let Some(known) = Self::find(DEFAULT_WORKSPACE).filter(|known| known.device().is_cpu()) {
            return Ok(known);
        }
        let config = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        Self::for_current_thread(DEFAULT_WORKSPACE, &config)
    }

    /// The configuration that default workspaces made from now on have, on all threads. Nothing happens in a forked
    /// child: somebody may have had the lock when it was forked.
    pub fn set_default_configuration(config: WorkspaceConfig) {
        if switch::forked() {
            return;
        }
        *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(config);
    }

    /// This thread's workspace with this name, if there is one.
    pub fn find(id: &str) -> Option<Self> {
        with_context(|context| context.workspaces.find(id)).map(|arena| Workspace { arena })
    }

    /// The workspace that takes this thread's arrays now: the innermost open one. `None` if there is none, or in a
    /// [`Workspace::scope_out`].
    ///
    /// ```
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// let outer = Workspace::enter("OUTER", &WorkspaceConfig::default())?;
    /// let inner = Workspace::enter("INNER", &WorkspaceConfig::default())?;
    /// assert!(Workspace::current().is_some_and(|found| found.is_same(&inner)));
    /// inner.leave();
    /// assert!(Workspace::current().is_some_and(|found| found.is_same(&outer)));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn current() -> Option<Self> {
        with_context(|context| context.workspaces.innermost()).map(|arena| Workspace { arena })
    }

    /// Every workspace of this thread, by name.
    pub fn all_for_current_thread() -> Vec<Self> {
        with_context(|context| context.workspaces.all()).into_iter().map(|arena| Workspace { arena }).collect()
    }

    /// Begins a part of the program in which no workspace takes this thread's arrays.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let _cycle = Workspace::enter("LOOP", &WorkspaceConfig::default())?;
    /// let weights = {
    ///     let _out = Workspace::scope_out();
    ///     Tensor::zeros(3, DType::F32, &Device::Cpu)?
    /// };
    /// assert!(!weights.is_attached() && Workspace::current().is_some());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias = "scopeOutOfWorkspaces")]
    pub fn scope_out() -> ScopeOut {
        ScopeOut { _leaves: Leaves::new(with_context(|context| context.workspaces.scope_out())) }
    }

    /// Begins a cycle, as [`Workspace::enter`] does.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::default())?; // made, not entered
    /// let cycle = step.activate()?;
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// assert!(step.is_open() && x.is_open());
    /// cycle.leave(); // or its drop
    /// assert!(!step.is_open() && !x.is_open());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it was destroyed; [`Error::Forked`].
    #[track_caller]
    pub fn activate(&self) -> Result<WorkspaceCycle> {
        let call = Call::here("enter");
        call.named(switch::check(call.op))?;
        let frame = call.named(with_context(|context| {
            reclaim::on_call(context);
            // After what ended there, which may be the user's, and destroy it.
            self.check_there(call)?;
            context.workspaces.enter(call.op, &self.arena)
        }))?;
        Ok(WorkspaceCycle { workspace: self.clone(), leaves: Leaves::new(frame) })
    }

    /// Lets an open workspace take arrays again, for its running cycle, until the answer is dropped: inside another
    /// one, or in a [`Workspace::scope_out`]. In [`DebugMode::BypassEverything`] arrays are made as if no workspace
    /// were open.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let epoch = Workspace::enter("EPOCH", &WorkspaceConfig::default())?;
    /// let step = Workspace::enter("STEP", &WorkspaceConfig::default())?;
    /// let again = epoch.borrow()?;
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?; // of the cycle of EPOCH
    /// again.leave();
    /// let y = Tensor::zeros(3, DType::F32, &Device::Cpu)?; // of that of STEP
    /// step.leave();
    /// assert!(x.is_open() && !y.is_open());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it is not open, is borrowed right now, or was destroyed; [`Error::Forked`].
    #[track_caller]
    pub fn borrow(&self) -> Result<WorkspaceCycle> {
        let call = Call::here("borrow");
        self.check(call)?;
        let frame = call.named(with_context(|context| context.workspaces.borrow(call.op, &self.arena)))?;
        Ok(WorkspaceCycle { workspace: self.clone(), leaves: Leaves::new(frame) })
    }

    pub(super) fn check(&self, call: Call) -> Result<()> {
        call.named(switch::check(call.op))?;
        self.check_there(call)
    }

    fn check_there(&self, call: Call) -> Result<()> {
        if self.arena.is_destroyed() {
            return Err(Error::workspace(call, self.id(), "it was destroyed; enter one of this name again"));
        }
        Ok(())
    }

    fn check_closed(&self, call: Call) -> Result<()> {
        self.check(call)?;
        if self.arena.is_open() {
            return Err(Error::workspace(call, self.id(), "it is open, and has arrays; leave it first"));
        }
        Ok(())
    }
}

/// # What it is
impl Workspace {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.arena.name
    }

    /// The device whose arrays it takes.
    pub fn device(&self) -> &Device {
        &self.arena.device
    }

    /// What it is like.
    pub fn configuration(&self) -> &WorkspaceConfig {
        &self.arena.config
    }

    /// Whether a cycle of it runs.
    pub fn is_open(&self) -> bool {
        self.arena.is_open()
    }

    /// Whether both are one workspace.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.arena, &other.arena)
    }
}

/// # Its memory: the block, leases, the end
impl Workspace {
    /// Makes its block, as large as it learned (`initializeWorkspace` of ND4J). Nothing happens if it learned nothing
    /// yet.
    ///
    /// ```
    /// # use ndgc::{DType, Device, LearningPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().policy_learning(LearningPolicy::OverTime).build()?;
    /// let step = Workspace::for_current_thread("STEP", &config)?;
    /// let cycle = step.activate()?;
    /// Tensor::zeros(4096, DType::U8, &Device::Cpu)?;
    /// cycle.leave();
    /// assert_eq!(step.stats().size, 0); // it learns when it is told to
    /// step.initialize()?;
    /// assert!(step.stats().size >= 4096);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it is open or destroyed; [`Error::OutOfMemory`]; [`Error::File`] of a mapped one.
    #[track_caller]
    pub fn initialize(&self) -> Result<()> {
        let call = Call::here("initialize");
        self.check_closed(call)?;
        call.named(with_context(|context| {
            let (arena, bytes) = (&*self.arena, self.arena.plan(|plan| plan.initialize().unwrap_or(0)));
            make_block(context, (call.op, arena, bytes), &mut || {
                // What gave memory back for it may have destroyed or entered it.
                self.check_closed(call).map_err(NoBytes::Failed)?;
                arena.initialize()
            })?;
            if arena.passed_soft() {
                relieve(context, arena);
            }
            Ok(())
        }))
    }

    /// Makes its block as small as the last cycles allow. Returns the bytes given up: 0 for a mapped one, and while
    /// cycles are leased.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::default())?;
    /// for bytes in [1 << 20, 1 << 10] {
    ///     let _cycle = step.activate()?;
    ///     Tensor::zeros(bytes, DType::U8, &Device::Cpu)?;
    /// }
    /// assert!(step.trim()? > 1 << 20); // the block of the first cycle, with its slack
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it is open or destroyed.
    #[track_caller]
    pub fn trim(&self) -> Result<u64> {
        self.check_closed(Call::here("trim"))?;
        Ok(self.arena.trim() as u64)
    }

    /// Lets requests of the running cycle go beside the block, uncounted (`false`), or into it again; the end of the
    /// cycle lets them into it again too (`toggleWorkspaceUse` of ND4J).
    pub fn toggle_use(&self, on: bool) {
        self.arena.plan(|plan| plan.toggle(on));
    }

    /// Keeps the running cycle of a circular workspace for as long as the answer lives: the ring goes round it, and
    /// what has no room is pinned beside it. For batches that are handed to another thread. The lease holds nothing
    /// where [`DebugMode::BypassEverything`] left no cycle to keep: the arrays are no workspace's then.
    ///
    /// ```
    /// # use ndgc::{DType, Device, ResetPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let builder = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached);
    /// let ring = builder.initial_size(4096).overallocation_limit(1.).build()?; // two blocks
    /// let make = || Tensor::zeros(1024, DType::F32, &Device::Cpu);
    /// let cycle = Workspace::enter("RING", &ring)?;
    /// let (batch, lease) = (make()?, cycle.lease()?);
    /// cycle.leave();
    /// for _ in 0..5 {
    ///     Workspace::cycle("RING", &ring, || make().map(drop))?;
    /// }
    /// assert!(batch.is_open()); // the ring goes round it until the lease drops
    /// # drop(lease);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it is not circular, not open, or destroyed.
    #[track_caller]
    pub fn lease(&self) -> Result<CycleLease> {
        let call = Call::here("lease");
        self.check(call)?;
        if self.arena.is_ring() && !self.arena.is_open() && Self::debug_mode() == DebugMode::BypassEverything {
            return Ok(CycleLease::of_nothing());
        }
        if !self.arena.is_ring() || !self.arena.is_open() {
            let why = "only a cycle of a circular workspace that is open can be kept; detach() keeps single arrays";
            return Err(Error::workspace(call, self.id(), why));
        }
        Ok(self.arena.lease())
    }

    /// Writes what a mapped workspace holds to its file; nothing happens for others.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn sync(&self) -> Result<()> {
        self.check(Call::here("sync"))?;
        self.arena.file_of(|file| file.sync()).unwrap_or(Ok(()))
    }

    /// Ends it and its arrays, and gives its memory back: at once, or when the last running operation on it ends.
    /// Leased cycles, and those after the first of them, stay until their leases are gone.
    ///
    /// ```
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().initial_size(1 << 20).build()?;
    /// let step = Workspace::for_current_thread("STEP", &config)?;
    /// step.destroy()?;
    /// assert_eq!(step.stats().size, 0);
    /// assert!(step.activate().is_err() && Workspace::find("STEP").is_none());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it is open or was destroyed.
    #[track_caller]
    pub fn destroy(&self) -> Result<()> {
        let call = Call::here("destroy");
        self.check(call)?;
        call.named(with_context(|context| context.workspaces.destroy(call.op, &self.arena)))
    }
}

/// # Reports, and modes for finding faults
impl Workspace {
    /// What it is and has done.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::default())?;
    /// for _ in 0..10 {
    ///     let _cycle = step.activate()?;
    ///     Tensor::zeros(1024, DType::F32, &Device::Cpu)?;
    /// }
    /// let stats = step.stats();
    /// assert_eq!((stats.cycles, stats.last_cycle), (10, 4096));
    /// assert_eq!(stats.system_allocations, 2); // in the first cycle, and for the block that it made known
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn stats(&self) -> WorkspaceStats {
        let (arena, tally) = (&self.arena, self.arena.tally());
        let is_mapped = arena.config.policy_location() == config::LocationPolicy::Mmap;
        let location = match (is_mapped, arena.memory == arena.device) {
            (true, _) => "mapped file",
            (false, true) if arena.config.policy_mirroring() == config::MirroringPolicy::HostOnly => "ram (host-only)",
            (false, true) => "ram",
            (false, false) => "ram of the host (host-only)",
        };
        arena.plan(|plan| WorkspaceStats {
            id: arena.name.to_string(),
            device: arena.device.to_string(),
            location,
            open: arena.is_open(),
            size: plan.size() as u64,
            offset: plan.offset() as u64,
            cycle_block: if plan.is_circular() { plan.block() as u64 } else { 0 },
            this_cycle: plan.this_cycle() as u64,
            last_cycle: plan.last_cycle() as u64,
            max_cycle: plan.max_cycle() as u64,
            arrays: tally.arrays,
            spilled: plan.spilled() as u64,
            externals: plan.externals(),
            pinned: plan.pinned_bytes() as u64,
            pinned_requests: plan.pinned(),
            cycles: plan.cycles(),
            generation: plan.generation(),
            step: plan.step(),
            system_allocations: tally.system_allocations,
            renewals: tally.renewals,
            holders: block::holders(&|own, _| Arc::ptr_eq(own, &arena.name)),
            kept_graphs: tally.kept_graphs.0,
            kept_graph_at: tally.kept_graphs.1,
            same_addresses: tally.same_addresses,
            plan: plan.planned(),
        })
    }

    /// ND4J's table of this thread's workspaces.
    pub fn allocation_statistics() -> String {
        let all: Vec<WorkspaceStats> = Self::all_for_current_thread().iter().map(Workspace::stats).collect();
        stats::table(&all)
    }

    /// Prints [`Workspace::allocation_statistics`].
    pub fn print_allocation_statistics() {
        print!("{}", Self::allocation_statistics());
    }

    /// How workspaces behave that are entered from now on, on all threads.
    pub fn set_debug_mode(mode: DebugMode) {
        stack::set_debug_mode(mode);
    }

    /// See [`Workspace::set_debug_mode`].
    pub fn debug_mode() -> DebugMode {
        stack::debug_mode()
    }
}

/// Runs `f` while no workspace takes this thread's arrays.
pub(crate) fn outside<R>(f: impl FnOnce() -> R) -> R {
    let _out = Workspace::scope_out();
    f()
}

/// Runs `f` while this open workspace takes this thread's arrays.
pub(crate) fn inside<R>(arena: &Rc<Arena>, f: impl FnOnce() -> R) -> R {
    let _leaves = Leaves::new(with_context(|context| context.workspaces.redirect(arena)));
    f()
}

/// Whether a workspace takes this thread's arrays of the host.
pub(crate) fn is_open() -> bool {
    with_context(|context| context.workspaces.is_open())
}

/// Ends all workspaces of this thread and their arrays, and gives their memory back. Other threads have to call it
/// themselves. Handles that are left over give [`Error::LeakedArray`], except those of leased cycles, as of
/// [`Workspace::destroy`].
///
/// ```
/// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig, destroy_all_workspaces_for_current_thread};
/// Workspace::cycle("LOOP", &WorkspaceConfig::default(), || Tensor::ones(3, DType::F32, &Device::Cpu).map(drop))?;
/// destroy_all_workspaces_for_current_thread()?;
/// assert!(Workspace::find("LOOP").is_none());
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Workspace`] if one of them is open; then all stay.
#[track_caller]
pub fn destroy_all_workspaces_for_current_thread() -> Result<()> {
    let call = Call::here("destroy_all_workspaces_for_current_thread");
    call.named(switch::check(call.op))?;
    let all = Workspace::all_for_current_thread();
    if let Some(open) = all.iter().find(|workspace| workspace.is_open()) {
        return Err(Error::workspace(call, open.id(), "it is open; leave it first"));
    }
    call.named(all.iter().try_for_each(Workspace::destroy))
}
