//! Where the arrays of a network lie: kinds of arrays, and the workspace of each.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ndgc::{
    CycleLease, DType, Device, Error, NdManager, ResetPolicy, Result, ScopeOut, Shape, Tensor, Workspace,
    WorkspaceConfig, WorkspaceCycle,
};

use super::super::place::called_here;

/// How a network uses workspaces. The results are the same in each mode: of sequences to the last bit, of graphs but
/// for the order in which sums are rounded; not of a [`ModuleLayer`](super::ModuleLayer) that has running means.
///
/// | mode | time of a step | memory of a step |
/// |---|---|---|
/// | `None` | as `Single` where the allocator is not in the way | what lives at a time |
/// | `Single` | the least | all that the step makes, side by side |
/// | `Separate` | a second pass forward | what layers hand on, all gradients, and the room of one layer |
/// | `Enabled` | as `Single` | what lives at a time, all gradients among it |
///
/// In each mode parameters are changed when all gradients are there: a step that fails before changes none.
///
/// `Enabled` is one workspace of [`LearningPolicy::Planned`](crate::LearningPolicy::Planned): its first step needs as
/// much as with `Single`, and it settles in 20 steps.
///
/// With `Separate`, layers compute again on the way back what their gradients need, in the room that the layer before
/// used. That pays for many layers whose activations are large; where one layer is most of the network, it needs more
/// than `Single`. A recurrent layer with a way back of its own ([`Lstm`](super::Lstm)) has outputs, memory and gates of
/// all steps on the way back, which the other modes keep from the way forward on; beside them it needs in each mode
/// only what one step needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkspaceMode {
    /// No workspaces: DL4J's `NONE`.
    None,
    /// One workspace: DL4J's `SINGLE`.
    Single,
    /// Workspaces for activations, for gradients of activations and for the room of a layer: DL4J's `SEPARATE`.
    Separate,
    /// What is best: DL4J's `ENABLED`.
    #[default]
    Enabled,
}

/// What an array is for; each kind has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArrayType {
    /// Features and labels of a batch.
    Input,
    /// What layers hand on.
    Activations,
    /// Gradients of what layers hand on.
    ActivationGrad,
    /// What a layer needs on its way forward.
    FfWorkingMem,
    /// What a layer needs on its way back.
    BpWorkingMem,
    /// What a step of a recurrent layer needs on its way forward.
    RnnFfLoopWorkingMem,
    /// What a step of a recurrent layer needs on its way back.
    RnnBpLoopWorkingMem,
    /// What an updater needs.
    UpdaterWorkingMem,
    /// What is kept of the way forward for the way back.
    FfCache,
}

impl ArrayType {
    /// Every kind.
    pub const ALL: [ArrayType; 9] = [
        ArrayType::Input,
        ArrayType::Activations,
        ArrayType::ActivationGrad,
        ArrayType::FfWorkingMem,
        ArrayType::BpWorkingMem,
        ArrayType::RnnFfLoopWorkingMem,
        ArrayType::RnnBpLoopWorkingMem,
        ArrayType::UpdaterWorkingMem,
        ArrayType::FfCache,
    ];
}

impl std::fmt::Display for ArrayType {
    /// DL4J's name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ArrayType::Input => "INPUT",
            ArrayType::Activations => "ACTIVATIONS",
            ArrayType::ActivationGrad => "ACTIVATION_GRAD",
            ArrayType::FfWorkingMem => "FF_WORKING_MEM",
            ArrayType::BpWorkingMem => "BP_WORKING_MEM",
            ArrayType::RnnFfLoopWorkingMem => "RNN_FF_LOOP_WORKING_MEM",
            ArrayType::RnnBpLoopWorkingMem => "RNN_BP_LOOP_WORKING_MEM",
            ArrayType::UpdaterWorkingMem => "UPDATER_WORKING_MEM",
            ArrayType::FfCache => "FF_CACHE",
        })
    }
}

/// The place of a kind of array.
#[derive(Clone, Debug, Default, PartialEq)]
enum ArrayPlacement {
    #[default]
    Unknown,
    Out,
    In(Arc<str>, WorkspaceConfig),
}

/// The workspaces of a network: for activations, for those of layers in turn, for the room of a layer and of a step of
/// a series, for all of it by plan, and for outputs. The network's number ends their names.
pub(super) const WORKSPACES: [&str; 6] = [
    "WS_ALL_LAYERS_ACT",
    "WS_LAYER_ACT",
    "WS_LAYER_WORKING_MEM",
    "WS_RNN_LOOP_WORKING_MEM",
    "WS_ALL_LAYERS_PLANNED",
    "WS_OUTPUT_MEM",
];

/// The networks that live, and some that ended since the last one was made.
static NETWORKS: Mutex<Vec<(u64, Arc<AtomicBool>)>> = Mutex::new(Vec::new());
/// How many ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How many had ended when this thread last destroyed its workspaces of such.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// The number of a network, and whether it lives: until this is dropped.
#[derive(Debug)]
pub(super) struct NetworkId {
    number: u64,
    lives: Arc<AtomicBool>,
}

impl NetworkId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: a number for each is all; and who still lives here will be gone the next time.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lives = Arc::new(AtomicBool::new(true));
        let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
        networks.retain(|(_, lives)| lives.load(Ordering::Relaxed));
        networks.push((number, Arc::clone(&lives)));
        NetworkId { number, lives }
    }

    /// Whether a workspace of this name is one of the network's.
    pub(super) fn has(&self, workspace: &str) -> bool {
        network_of(workspace) == Some(self.number)
    }
}

impl std::fmt::Display for NetworkId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.number)
    }
}

impl Drop for NetworkId {
    fn drop(&mut self) {
        // Without the lock: a forked child drops networks too, and another thread may have had it.
        // Relaxed: who counts this one sees it, by the next line.
        self.lives.store(false, Ordering::Relaxed);
        // Release: pairs with the Acquire in `any_ended`.
        ENDED.fetch_add(1, Ordering::Release);
    }
}

/// The number of the network that has a workspace of this name.
fn network_of(workspace: &str) -> Option<u64> {
    let (name, number) = workspace.rsplit_once('#')?;
    WORKSPACES.contains(&name).then(|| number.parse().ok())?
}

// Networks that ended on other threads.
impl LayerWorkspaceMgr {
    /// Whether networks ended since this thread last destroyed what it had of such.
    pub(crate) fn any_ended() -> bool {
        // Acquire: pairs with the Release of a network's end.
        ENDED.load(Ordering::Acquire) != SEEN.get()
    }

    /// Destroys this thread's workspaces of networks that ended. It costs next to nothing where none did.
    pub(crate) fn release_ended() {
        // Acquire: pairs with the Release of a network's end; those that are counted are seen to have ended.
        let count = ENDED.load(Ordering::Acquire);
        if SEEN.replace(count) == count {
            return;
        }
        let networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: by the count.
        let lives = |number| networks.iter().any(|(own, lives)| *own == number && lives.load(Ordering::Relaxed));
        let all = Workspace::all_for_current_thread().into_iter();
        let ended = all.filter(|space| network_of(space.id()).is_some_and(|number| !lives(number)));
        let ended: Vec<Workspace> = ended.collect();
        drop(networks);
        for workspace in ended {
            // What is open stays; it ends with the thread.
            let _ = workspace.destroy();
        }
    }
}

/// Says for each [`ArrayType`] which workspace takes it, for authors of layers.
///
/// A layer that is used alone has [`LayerWorkspaceMgr::no_workspaces`]; a network gives its own to each pass.
///
/// ```
/// use ndgc::train::{ArrayType, LayerWorkspaceMgr};
/// use ndgc::{DType, WorkspaceConfig};
///
/// let config = WorkspaceConfig::default();
/// let mgr = LayerWorkspaceMgr::builder()
///     .default_no_workspace()
///     .with(ArrayType::Activations, "WS_ACT", &config)
///     .build();
/// let _open = mgr.notify_scope_entered(&[ArrayType::Activations])?;
/// let y = mgr.create(ArrayType::Activations, DType::F32, (2, 3))?;
/// let scratch = mgr.create(ArrayType::FfWorkingMem, DType::F32, 3)?;
/// assert!(y.is_attached() && !scratch.is_attached());
/// mgr.validate_array_location(ArrayType::Activations, &y, false, true)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerWorkspaceMgr {
    placements: [ArrayPlacement; ArrayType::ALL.len()],
    device: Device,
    no_leverage: Vec<String>,
    immutable: bool,
    /// Whose budgets its workspaces count within.
    payer: Option<NdManager>,
}

/// Workspaces that were entered together; they are left in reverse order when this is dropped.
#[derive(Debug)]
#[must_use = "the workspaces are left when this is dropped"]
pub struct WorkspacesCloseable(#[allow(dead_code)] Vec<Entered>);

/// A workspace, or none, that takes this thread's arrays until this is dropped.
#[derive(Debug)]
#[allow(dead_code)] // held for its end
pub(super) enum Entered {
    Cycle(WorkspaceCycle),
    Out(ScopeOut),
    AsIs,
}

impl Entered {
    /// Keeps what is made in this cycle of a ring until the answer is gone: the ring may change its size in between.
    pub(super) fn lease(&self) -> Result<Option<CycleLease>> {
        match self {
            Entered::Cycle(cycle) if cycle.configuration().policy_reset() == ResetPolicy::EndOfBufferReached => {
                cycle.lease().map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Drop for WorkspacesCloseable {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// # Making one
impl LayerWorkspaceMgr {
    /// With no place for any kind yet.
    pub fn builder() -> LayerWorkspaceMgrBuilder {
        LayerWorkspaceMgrBuilder { mgr: LayerWorkspaceMgr::all(ArrayPlacement::Unknown), default: None }
    }

    /// Everything detached, for a layer that is used alone. Places can be changed.
    pub fn no_workspaces() -> Self {
        Self::all(ArrayPlacement::Out)
    }

    /// As [`LayerWorkspaceMgr::no_workspaces`]; changes are refused.
    pub fn no_workspaces_immutable() -> Self {
        LayerWorkspaceMgr { immutable: true, ..Self::no_workspaces() }
    }

    fn all(placement: ArrayPlacement) -> Self {
        LayerWorkspaceMgr {
            placements: std::array::from_fn(|_| placement.clone()),
            device: Device::Cpu,
            no_leverage: Vec::new(),
            immutable: false,
            payer: None,
        }
    }

    /// The same, for arrays of a device.
    pub fn on_device(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }
}

/// # Places
impl LayerWorkspaceMgr {
    /// Puts a kind into a workspace.
    ///
    /// # Errors
    /// [`Error::Workspace`] of an immutable one.
    #[track_caller]
    pub fn set_workspace(&mut self, array_type: ArrayType, name: &str, config: &WorkspaceConfig) -> Result<()> {
        self.set(array_type, ArrayPlacement::In(name.into(), config.clone()))
    }

    /// Leaves a kind detached.
    ///
    /// # Errors
    /// [`Error::Workspace`] of an immutable one.
    #[track_caller]
    pub fn set_scoped_out_for(&mut self, array_type: ArrayType) -> Result<()> {
        self.set(array_type, ArrayPlacement::Out)
    }

    #[track_caller]
    fn set(&mut self, array_type: ArrayType, placement: ArrayPlacement) -> Result<()> {
        if self.immutable {
            let why = format!("the place of {array_type} cannot be changed: this manager is immutable");
            return called_here(Err(wrong("set_workspace", "", why)));
        }
        self.placements[array_type as usize] = placement;
        Ok(())
    }

    /// Leaves arrays that lie in a workspace of this name, on whatever thread, where they are, when they are to be
    /// moved: the prefetching iterator's.
    pub fn set_no_leverage_override(&mut self, workspace: &str) {
        self.no_leverage.push(workspace.to_owned());
    }

    /// Whether a kind is detached.
    pub fn is_scoped_out(&self, array_type: ArrayType) -> bool {
        self.placements[array_type as usize] == ArrayPlacement::Out
    }

    /// Whether a kind has a workspace.
    pub fn has_configuration(&self, array_type: ArrayType) -> bool {
        self.workspace_name(array_type).is_some()
    }

    /// The name of a kind's workspace.
    pub fn workspace_name(&self, array_type: ArrayType) -> Option<&str> {
        match &self.placements[array_type as usize] {
            ArrayPlacement::In(name, _) => Some(name),
            _ => None,
        }
    }

    /// The configuration of a kind's workspace.
    pub fn configuration(&self, array_type: ArrayType) -> Option<&WorkspaceConfig> {
        match &self.placements[array_type as usize] {
            ArrayPlacement::In(_, config) => Some(config),
            _ => None,
        }
    }

    /// Whether a kind's workspace is open on this thread; true if the kind is detached.
    pub fn is_workspace_open(&self, array_type: ArrayType) -> bool {
        let open = |name| Workspace::find(name).is_some_and(|workspace| workspace.is_open());
        self.is_scoped_out(array_type) || self.workspace_name(array_type).is_some_and(open)
    }

    /// # Errors
    /// [`Error::Workspace`] if the kind's workspace is not open.
    #[track_caller]
    pub fn assert_open(&self, array_type: ArrayType) -> Result<()> {
        if self.is_workspace_open(array_type) {
            return Ok(());
        }
        let name = called_here(self.name_of(array_type))?;
        let why = format!("Workspace \"{name}\" for array type {array_type} is not open");
        called_here(Err(wrong("assert_open", name, why)))
    }

    /// # Errors
    /// [`Error::Workspace`] if the kind's workspace is open.
    #[track_caller]
    pub fn assert_not_open(&self, array_type: ArrayType) -> Result<()> {
        if self.is_scoped_out(array_type) || !self.is_workspace_open(array_type) {
            return Ok(());
        }
        let name = called_here(self.name_of(array_type))?;
        let why = format!("Workspace \"{name}\" for array type {array_type} is open");
        called_here(Err(wrong("assert_not_open", name, why)))
    }

    /// # Errors
    /// [`Error::Workspace`] if another workspace than the kind's takes arrays now.
    #[track_caller]
    pub fn assert_current_workspace(&self, array_type: ArrayType) -> Result<()> {
        let current = Workspace::current();
        let found = current.as_ref().map(Workspace::id);
        let expected = self.workspace_name(array_type);
        if found == expected {
            return Ok(());
        }
        let why = format!("the current workspace for array type {array_type} should be {expected:?}, but is {found:?}");
        called_here(Err(wrong("assert_current_workspace", expected.unwrap_or_default(), why)))
    }

    fn name_of(&self, array_type: ArrayType) -> Result<&str> {
        self.workspace_name(array_type).ok_or_else(|| unknown(array_type))
    }
}

/// # Scopes
impl LayerWorkspaceMgr {
    /// Begins a cycle of the workspace of each of these kinds; the last one takes arrays.
    ///
    /// # Errors
    /// As [`Workspace::enter`]; [`Error::Workspace`] for a kind without a place.
    #[track_caller]
    pub fn notify_scope_entered(&self, types: &[ArrayType]) -> Result<WorkspacesCloseable> {
        let mut entered = WorkspacesCloseable(Vec::with_capacity(types.len()));
        for &array_type in types {
            entered.0.push(called_here(self.enter(array_type))?);
        }
        Ok(entered)
    }

    /// Lets the open workspace of a kind take arrays.
    ///
    /// # Errors
    /// [`Error::Workspace`] if it is not open; as [`Workspace::borrow`].
    #[track_caller]
    pub fn notify_scope_borrowed(&self, array_type: ArrayType) -> Result<WorkspacesCloseable> {
        Ok(WorkspacesCloseable(vec![called_here(self.borrow(array_type))?]))
    }

    pub(super) fn enter(&self, array_type: ArrayType) -> Result<Entered> {
        match &self.placements[array_type as usize] {
            ArrayPlacement::Unknown => Err(unknown(array_type)),
            ArrayPlacement::Out => Ok(Entered::Out(Workspace::scope_out())),
            ArrayPlacement::In(name, config) => {
                let cycle = Workspace::enter_on(&self.device, name, config)?;
                if let Some(payer) = &self.payer {
                    cycle.charge_to(payer)?;
                }
                Ok(Entered::Cycle(cycle))
            }
        }
    }

    pub(super) fn borrow(&self, array_type: ArrayType) -> Result<Entered> {
        let name = match &self.placements[array_type as usize] {
            ArrayPlacement::Unknown => return Err(unknown(array_type)),
            ArrayPlacement::Out if Workspace::current().is_none() => return Ok(Entered::AsIs),
            ArrayPlacement::Out => return Ok(Entered::Out(Workspace::scope_out())),
            ArrayPlacement::In(name, _) => name,
        };
        if Workspace::current().is_some_and(|current| current.id() == &**name) {
            return Ok(Entered::AsIs);
        }
        match Workspace::find(name) {
            Some(workspace) if workspace.is_open() => Ok(Entered::Cycle(workspace.borrow()?)),
            _ if Workspace::debug_mode() == ndgc::DebugMode::BypassEverything => Ok(Entered::AsIs),
            _ => {
                let why = format!("Workspace \"{name}\" for array type {array_type} is not open");
                Err(wrong("borrow", name, why))
            }
        }
    }
}

/// # Arrays
impl LayerWorkspaceMgr {
    /// Zeros in the workspace of a kind, which is open, or detached.
    ///
    /// # Errors
    /// [`Error::Workspace`] if the workspace is not open, or the kind has no place; as [`Tensor::zeros`].
    #[track_caller]
    pub fn create<S: Into<Shape>>(&self, array_type: ArrayType, dtype: DType, shape: S) -> Result<Tensor> {
        let _place = self.borrow(array_type)?;
        Tensor::zeros(shape, dtype, &self.device)
    }

    /// As [`LayerWorkspaceMgr::create`], with any numbers.
    ///
    /// # Errors
    /// As [`LayerWorkspaceMgr::create`].
    #[track_caller]
    pub fn create_uninitialized<S: Into<Shape>>(
        &self,
        array_type: ArrayType,
        dtype: DType,
        shape: S,
    ) -> Result<Tensor> {
        let _place = self.borrow(array_type)?;
        Tensor::empty(shape, dtype, &self.device)
    }

    /// A copy in the workspace of a kind, or detached.
    ///
    /// # Errors
    /// As [`LayerWorkspaceMgr::create`] and [`Tensor::copy`].
    #[track_caller]
    pub fn dup(&self, array_type: ArrayType, array: &Tensor) -> Result<Tensor> {
        let _place = self.borrow(array_type)?;
        array.copy()
    }

    /// The numbers in another dtype, in the workspace of a kind, or detached.
    ///
    /// # Errors
    /// As [`LayerWorkspaceMgr::create`] and [`Tensor::to_dtype`].
    #[track_caller]
    pub fn cast_to(&self, array_type: ArrayType, dtype: DType, array: &Tensor) -> Result<Tensor> {
        let _place = self.borrow(array_type)?;
        if array.dtype() == dtype { self.leverage_to(array_type, array) } else { array.to_dtype(dtype) }
    }

    /// An array of a workspace in the workspace of a kind: a copy unless it is there. A detached array stays as it is;
    /// for a kind that is detached, so is the answer.
    ///
    /// # Errors
    /// [`Error::Workspace`] if the workspace is not open, or the kind has no place; as [`Tensor::leverage_to`].
    #[track_caller]
    pub fn leverage_to(&self, array_type: ArrayType, array: &Tensor) -> Result<Tensor> {
        let stays = |name: &String| is_in(array, name);
        if !array.is_attached() || self.no_leverage.iter().any(stays) {
            return Ok(array.clone());
        }
        match &self.placements[array_type as usize] {
            ArrayPlacement::Unknown => Err(unknown(array_type)),
            ArrayPlacement::Out => {
                let _out = Workspace::scope_out();
                array.copy()
            }
            ArrayPlacement::In(name, _) => array.leverage_to(name),
        }
    }

    /// The array, if it lies where its kind belongs; with `migrate_if_invalid` a copy there. A detached array is only
    /// wrong if `exception_if_detached`.
    ///
    /// # Errors
    /// [`Error::Workspace`] with DL4J's text if it lies elsewhere; as [`LayerWorkspaceMgr::leverage_to`].
    #[track_caller]
    pub fn validate_array_location(
        &self,
        array_type: ArrayType,
        array: &Tensor,
        migrate_if_invalid: bool,
        exception_if_detached: bool,
    ) -> Result<Tensor> {
        let kept = |name: &String| is_in(array, name);
        if Workspace::debug_mode() == ndgc::DebugMode::BypassEverything || self.no_leverage.iter().any(kept) {
            return Ok(array.clone());
        }
        let (name, why) = match &self.placements[array_type as usize] {
            ArrayPlacement::Unknown => return Err(unknown(array_type)),
            ArrayPlacement::Out if !array.is_attached() => return Ok(array.clone()),
            ArrayPlacement::Out => {
                let found = where_is(array);
                (
                    "",
                    format!(
                        "Array of type {array_type} should be detached (no workspace) but is in workspace: {found}"
                    ),
                )
            }
            ArrayPlacement::In(_, _) if !array.is_attached() && !exception_if_detached => return Ok(array.clone()),
            ArrayPlacement::In(name, _) if is_in(array, name) => return Ok(array.clone()),
            ArrayPlacement::In(name, _) => {
                let found = if array.is_attached() {
                    format!("in workspace \"{}\"", where_is(array))
                } else {
                    "detached".into()
                };
                (&**name, format!("Array of type {array_type} should be in workspace \"{name}\" but is {found}"))
            }
        };
        if migrate_if_invalid {
            return self.dup(array_type, array);
        }
        Err(wrong("validate_array_location", name, format!("Array workspace validation failed: {why}")))
    }
}

/// Whether an array lies in a workspace of this name.
fn is_in(array: &Tensor, name: &str) -> bool {
    array.workspace_id().as_deref() == Some(name)
}

/// The name of the workspace that an array lies in.
fn where_is(array: &Tensor) -> String {
    array.workspace_id().unwrap_or_else(|| "one that is not open".to_owned())
}

fn wrong(op: &'static str, workspace: &str, why: String) -> Error {
    Error::workspace(op, workspace, why)
}

fn unknown(array_type: ArrayType) -> Error {
    wrong("workspace", "", format!("No workspace configuration has been provided for arrayType: {array_type}"))
}

/// Makes a [`LayerWorkspaceMgr`]. Of two calls for one kind the last one holds; a default is for the kinds that no call
/// names, whenever it is given.
#[derive(Clone, Debug)]
pub struct LayerWorkspaceMgrBuilder {
    mgr: LayerWorkspaceMgr,
    default: Option<ArrayPlacement>,
}

impl LayerWorkspaceMgrBuilder {
    /// Kinds that no call names go into this workspace.
    pub fn default_workspace(mut self, name: &str, config: &WorkspaceConfig) -> Self {
        self.default = Some(ArrayPlacement::In(name.into(), config.clone()));
        self
    }

    /// Kinds that no call names are detached.
    pub fn default_no_workspace(mut self) -> Self {
        self.default = Some(ArrayPlacement::Out);
        self
    }

    /// A kind goes into this workspace.
    pub fn with(mut self, array_type: ArrayType, name: &str, config: &WorkspaceConfig) -> Self {
        self.mgr.placements[array_type as usize] = ArrayPlacement::In(name.into(), config.clone());
        self
    }

    /// A kind is detached.
    pub fn no_workspace_for(mut self, array_type: ArrayType) -> Self {
        self.mgr.placements[array_type as usize] = ArrayPlacement::Out;
        self
    }

    /// The arrays are of this device.
    pub fn device(mut self, device: &Device) -> Self {
        self.mgr.device = device.clone();
        self
    }

    /// Its workspaces count within the budgets of a manager.
    pub(super) fn charged_to(mut self, payer: Option<&NdManager>) -> Self {
        self.mgr.payer = payer.cloned();
        self
    }

    /// The manager.
    pub fn build(self) -> LayerWorkspaceMgr {
        let LayerWorkspaceMgrBuilder { mut mgr, default } = self;
        for placement in &mut mgr.placements {
            if let (ArrayPlacement::Unknown, Some(default)) = (&placement, &default) {
                *placement = default.clone();
            }
        }
        mgr
    }
}
