//! Managers: a tree of owners. Closing one closes everything below it.
//!
//! The tree is a cold table behind one lock: a manager is made or closed now and then, while arrays come and go
//! through its core (`owner.rs`) without touching the tree.
//!
//! # Closing
//! 1. Its managers are marked, under the lock of the tree: of several closers of one of them one gets it.
//! 2. Each manager is shut: from here on it refuses arrays. An array that was attached before is in its lists, so
//!    that every attach either succeeds before the close or fails; none is lost between.
//! 3. The lists are emptied in batches; borrowed arrays go back to their lenders, the others are closed.
//! 4. They leave the tree. Who came second, to one of them or to a part of the subtree, waits until then: a manager is
//!    closed when `close` returns, for every closer.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use slotmap::{Key as _, KeyData, SlotMap};
use uuid::Uuid;

use crate::base::{
    call::{Asked, Call},
    error::{Closer, Error, Result, Site},
    order::sort_by_key,
    sync::{AtomicU32, AtomicU64, Ordering, wait_turn},
};
use crate::device::Device;
use crate::memory::{
    budget::{self, Budget, BudgetUse},
    handle::Proxy,
    key::{ManagerKey, manager_uuid, process_uuid},
    leaks::{self, LeakReport},
    loan,
    owner::{ManagerId, Owner, SHARDS, manager_key},
    reclaim, registry, switch,
    threads::{ThreadContext, with_context},
    trace,
};

/// Arrays closed between two barriers.
const CLOSE_BATCH: usize = 256;

/// An owner of arrays and of further managers: a scope and a factory.
///
/// A manager ends with [`close`](NdManager::close) or with its last handle's drop, and with it every array it
/// owns and every manager below it, whatever handles of them are left. The tree begins at the system manager of
/// a device, which never ends and owns no arrays.
///
/// ```
/// # use ndgc::{NdManager, Device, DType};
/// let model = NdManager::new_base_manager(&Device::Cpu)?;
/// let batch = model.new_sub_manager()?;
/// let x = batch.zeros((2, 3), DType::F32)?;
/// let y = x.exp()?; // belongs to `batch`, as its first operand does
/// model.ret_to(&y)?; // now to `model`
/// batch.close()?;
/// assert!(!x.is_open() && y.is_open());
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone)]
pub struct NdManager {
    handle: Arc<ManagerHandle>,
}

/// Closes the manager when the last of the user's handles is gone.
struct ManagerHandle {
    inner: Arc<ManagerInner>,
}

struct ManagerInner {
    /// None for a system manager.
    place: Option<TreePlace>,
    device: Device,
    created: Site,
    name: Mutex<Option<String>>,
    /// Who closed it, and where. Set under the lock of the tree.
    closed: OnceLock<(Closer, Option<Site>)>,
    /// 1 when it was closed, and all its arrays were.
    is_empty: AtomicU32,
}

#[derive(Clone, Copy)]
struct TreePlace {
    key: ManagerKey,
    id: ManagerId,
}

impl TreePlace {
    /// Whether its budget is its own. The tree is locked.
    fn owns_budget(self) -> bool {
        let number = self.id.budget();
        number != 0 && budget::manager_of(number) == manager_key(self.id)
    }
}

struct TreeNode {
    /// Of two managers the later one's is larger.
    serial: u64,
    inner: Arc<ManagerInner>,
    handle: Weak<ManagerHandle>,
    parent: Option<ManagerKey>,
    /// Each with its serial, in order.
    children: Vec<(u64, ManagerKey)>,
}

impl TreeNode {
    fn is_open(&self) -> bool {
        self.inner.closed.get().is_none()
    }

    /// Whether it is an open manager below the system manager of a device.
    fn is_base_of(&self, device: &Device) -> bool {
        self.parent.is_none() && &self.inner.device == device && self.is_open()
    }
}

static TREE: Mutex<Option<SlotMap<ManagerKey, TreeNode>>> = Mutex::new(None);
/// Managers that were made. Written under the lock of the tree.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The tree, for the life of the guard. A panic while it is held leaves it usable: it is changed in single steps.
struct Tree(MutexGuard<'static, Option<SlotMap<ManagerKey, TreeNode>>>);

impl Tree {
    /// In a forked child, where another thread of the parent may have held the lock, an empty tree.
    fn lock() -> Self {
        let tree = if switch::forked() { Box::leak(Box::default()) } else { &TREE };
        let mut guard = tree.lock().unwrap_or_else(PoisonError::into_inner);
        guard.get_or_insert_with(SlotMap::with_key);
        Tree(guard)
    }

    fn nodes(&mut self) -> &mut SlotMap<ManagerKey, TreeNode> {
        self.0.get_or_insert_with(SlotMap::with_key)
    }

    /// The open managers below the system manager of a device, in the order in which they were made: that of keys is
    /// none, since they are used again.
    fn bases(&mut self, device: &Device) -> Vec<ManagerKey> {
        let mut bases: Vec<_> = self.nodes().iter().filter(|(_, node)| node.is_base_of(device)).collect();
        sort_by_key(&mut bases, |(_, node)| node.serial);
        bases.into_iter().map(|(key, _)| key).collect()
    }

    /// The subtree's managers, parents first.
    fn below(&mut self, key: ManagerKey) -> Vec<Arc<ManagerInner>> {
        let nodes = self.nodes();
        let mut found = Vec::new();
        let mut todo = vec![key];
        while let Some(key) = todo.pop() {
            if let Some(node) = nodes.get(key) {
                found.push(Arc::clone(&node.inner));
                todo.extend(node.children.iter().map(|&(_, child)| child));
            }
        }
        found
    }
}

impl Tree {
    /// The managers of a subtree that nobody is closing.
    fn open_below(&mut self, key: ManagerKey) -> Vec<ManagerInfo> {
        let open = |inner: &Arc<ManagerInner>| inner.closed.get().is_none();
        self.below(key).into_iter().filter(open).map(ManagerInfo).collect()
    }
}

impl Drop for ManagerHandle {
    fn drop(&mut self) {
        // Not in a forked child: the other threads' locks may be held for ever.
        if !switch::forked() {
            close(&self.inner, Closer::ManagerDrop, None);
        }
    }
}

/// # Making managers
impl NdManager {
    /// A manager below the system manager of `device`.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = manager.zeros(3, DType::F32)?;
    /// drop(manager); // its last handle: that closes it, whatever handles of arrays there are
    /// assert!(!x.is_open());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Environment`] if `NDGC`, or a limit in the environment, cannot be understood; [`Error::Forked`].
    #[track_caller]
    pub fn new_base_manager(device: &Device) -> Result<Self> {
        Self::make(Call::here("new_base_manager"), None, device.clone())
    }

    /// A manager below this one, on the same device. A capped manager may make some; the cap is not inherited.
    ///
    /// # Errors
    /// [`Error::ManagerClosed`].
    #[track_caller]
    pub fn new_sub_manager(&self) -> Result<Self> {
        Self::make(Call::here("new_sub_manager"), Some(self), self.device().clone())
    }

    /// As [`NdManager::new_sub_manager`], on another device.
    ///
    /// # Errors
    /// [`Error::ManagerClosed`].
    #[track_caller]
    pub fn new_sub_manager_on(&self, device: &Device) -> Result<Self> {
        Self::make(Call::here("new_sub_manager_on"), Some(self), device.clone())
    }

    /// As [`NdManager::new_sub_manager`], with a name.
    ///
    /// # Errors
    /// [`Error::ManagerClosed`].
    #[track_caller]
    pub fn child(&self, name: &str) -> Result<Self> {
        let manager = Self::make(Call::here("child"), Some(self), self.device().clone())?;
        manager.set_name(name);
        Ok(manager)
    }

    /// The system manager of a device: the root. It never ends, and does not track arrays: what is made through
    /// it is owned by its handles.
    #[track_caller]
    pub fn system(device: &Device) -> Self {
        let inner = ManagerInner {
            place: None,
            device: device.clone(),
            created: Location::caller(),
            name: Mutex::new(Some(format!("system {device}"))),
            closed: OnceLock::new(),
            is_empty: AtomicU32::new(0),
        };
        NdManager { handle: Arc::new(ManagerHandle { inner: Arc::new(inner) }) }
    }

    fn make(call: Call, parent: Option<&Self>, device: Device) -> Result<Self> {
        call.named(switch::check(call.op))?;
        with_context(reclaim::on_call);
        let mut tree = Tree::lock();
        let parent_key = parent.and_then(|parent| parent.inner().place).map(|place| place.key);
        if let (Some(key), Some(parent)) = (parent_key, parent)
            && !(tree.nodes().contains_key(key) && parent.is_open())
        {
            drop(tree);
            return Err(parent.closed_error(call));
        }
        let full = || Error::argument(call, "number of managers", "2^28", "less; close some first");
        // Relaxed: under the lock of the tree.
        let (mut made, serial) = (None, MADE.fetch_add(1, Ordering::Relaxed));
        // The lock of the tree keeps it from ending.
        let budget = parent.and_then(|parent| parent.inner().place).map_or(0, |place| place.id.budget());
        let nodes = tree.nodes();
        let key = nodes.insert_with_key(|key| {
            let place = ManagerId::open(key.data().as_ffi(), budget).map(|id| TreePlace { key, id });
            let name = Mutex::new(None);
            let inner = Arc::new(ManagerInner {
                place,
                device,
                created: call.site,
                name,
                closed: OnceLock::new(),
                is_empty: AtomicU32::new(0),
            });
            let manager = NdManager { handle: Arc::new(ManagerHandle { inner: Arc::clone(&inner) }) };
            let handle = Arc::downgrade(&manager.handle);
            made = Some(manager);
            TreeNode { serial, inner, handle, parent: parent_key, children: Vec::new() }
        });
        let made = made.filter(|manager| manager.inner().place.is_some());
        match made {
            Some(manager) => {
                budget::retain(budget);
                if let Some(parent) = parent_key.and_then(|parent| nodes.get_mut(parent)) {
                    parent.children.push((serial, key));
                }
                Ok(manager)
            }
            None => {
                nodes.remove(key);
                Err(full())
            }
        }
    }

    /// The manager of an array's owner.
    pub(crate) fn of(id: ManagerId) -> Option<Self> {
        let key = ManagerKey::from(KeyData::from_ffi(manager_key(id)));
        let handle = Tree::lock().nodes().get(key).and_then(|node| node.handle.upgrade())?;
        Some(NdManager { handle }).filter(|manager| manager.owner() == Owner::Manager(id))
    }

    fn inner(&self) -> &Arc<ManagerInner> {
        &self.handle.inner
    }

    /// As an owner of arrays.
    pub(crate) fn owner(&self) -> Owner {
        self.inner().place.map_or(Owner::Handles, |place| Owner::Manager(place.id))
    }
}

/// # Which manager it is
impl NdManager {
    /// The device on which it makes arrays.
    pub fn device(&self) -> &Device {
        &self.inner().device
    }

    /// Whether it is a system manager.
    pub fn is_system(&self) -> bool {
        self.inner().place.is_none()
    }

    /// Its name; its uuid if it was given none.
    pub fn name(&self) -> String {
        self.inner().name()
    }

    /// Names it, for dumps and errors.
    pub fn set_name(&self, name: &str) {
        *self.inner().name.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
    }

    /// Its public identity.
    pub fn uuid(&self) -> Uuid {
        self.inner().uuid()
    }

    /// The manager it was made by: the system manager for a base manager, none for the system manager itself.
    ///
    /// # Errors
    /// [`Error::ManagerClosed`] if this manager was closed.
    #[track_caller]
    pub fn parent(&self) -> Result<Option<NdManager>> {
        self.parent_for(Call::here("parent"))
    }

    #[track_caller]
    pub(super) fn parent_for(&self, call: Call) -> Result<Option<NdManager>> {
        call.named(switch::check(call.op))?;
        let Some(place) = self.inner().place else { return Ok(None) };
        let mut tree = Tree::lock();
        let nodes = tree.nodes();
        let Some(node) = nodes.get(place.key).filter(|_| self.is_open()) else {
            drop(tree);
            return Err(self.closed_error(call));
        };
        let parent = match node.parent.and_then(|parent| nodes.get(parent)) {
            None => None,
            Some(node) => node.handle.upgrade().map(|handle| NdManager { handle }),
        };
        drop(tree);
        Ok(Some(match parent {
            Some(parent) => parent,
            None => NdManager::system(self.device()),
        }))
    }

    /// Whether it was not closed.
    pub fn is_open(&self) -> bool {
        self.inner().closed.get().is_none()
    }
}

/// # What is in it
impl NdManager {
    /// Arrays it owns or has borrowed, without those of its sub-managers.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let layer = model.child("layer")?;
    /// let _w = layer.zeros(3, DType::F32)?;
    /// assert_eq!((model.array_count(), model.manager_count(), layer.array_count()), (0, 1, 1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn array_count(&self) -> usize {
        self.inner().place.filter(|_| !switch::forked()).map_or(0, |place| place.id.count())
    }

    /// Managers directly below it. For a system manager: the base managers of its device.
    pub fn manager_count(&self) -> usize {
        let mut tree = Tree::lock();
        let nodes = tree.nodes();
        match self.inner().place {
            Some(place) => {
                let children = nodes.get(place.key).map(|node| &node.children).into_iter().flatten();
                children.filter(|&&(_, child)| nodes.get(child).is_some_and(TreeNode::is_open)).count()
            }
            None => nodes.values().filter(|node| node.is_base_of(self.device())).count(),
        }
    }

    /// Handles of every array that it or a manager below it owns or has borrowed. Arrays whose last proxy fell
    /// while the switch was off are among them, and alive again in the caller's hands.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// drop(manager.zeros(3, DType::F32)?); // with the switch off, the manager keeps it
    /// let found = manager.managed_arrays();
    /// assert!(found.len() == 1 && found[0].dims() == [3]); // and it has a handle again
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn managed_arrays(&self) -> Vec<Proxy> {
        if switch::check("managed_arrays").is_err() {
            return Vec::new();
        }
        with_context(reclaim::on_call);
        let mut arrays = Vec::new();
        for inner in self.subtree() {
            inner.for_each_array(|index| arrays.extend(registry::revive(index).map(Proxy::from_key)));
        }
        arrays.retain(|array| registry::is_open(array.key));
        arrays
    }

    /// The managers of its subtree, itself first; none if it is closed.
    pub(crate) fn subtree(&self) -> Vec<ManagerInfo> {
        let mut tree = Tree::lock();
        match self.inner().place {
            Some(place) => tree.open_below(place.key),
            None => tree.bases(self.device()).into_iter().flat_map(|key| tree.open_below(key)).collect(),
        }
    }

    /// The managers directly below it.
    pub(crate) fn children(&self) -> Vec<NdManager> {
        let mut tree = Tree::lock();
        let keys = match self.inner().place {
            Some(place) => {
                let children = tree.nodes().get(place.key).map(|node| node.children.iter());
                children.into_iter().flatten().map(|&(_, child)| child).collect()
            }
            None => tree.bases(self.device()),
        };
        let nodes = tree.nodes();
        let handles = keys.iter().filter_map(|&key| nodes.get(key)?.handle.upgrade());
        handles.map(|handle| NdManager { handle }).collect()
    }

    pub(crate) fn info(&self) -> ManagerInfo {
        ManagerInfo(Arc::clone(self.inner()))
    }
}

/// # The end
impl NdManager {
    /// Ends it, every manager below it, and all their arrays. Arrays that were lent to it go back to their lenders.
    /// Closing twice is harmless.
    ///
    /// ```
    /// # use ndgc::{Closer, DType, Device, Error, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let layer = model.child("layer")?;
    /// let w = layer.zeros(3, DType::F32)?;
    /// model.close()?;
    /// assert!(!layer.is_open() && !w.is_open());
    /// let refused = layer.zeros(3, DType::F32);
    /// assert!(matches!(refused, Err(Error::ManagerClosed { closed_by: Closer::Ancestor, .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SystemManager`]; [`Error::Forked`].
    #[track_caller]
    pub fn close(&self) -> Result<()> {
        let call = Call::here("close");
        if self.is_system() {
            return Err(Error::system_manager(call));
        }
        call.named(switch::check(call.op))?;
        close(self.inner(), Closer::Manager, Some(call.site));
        Ok(())
    }

    /// What would end with it if it were closed now, by the line that made it: a look at a manager that lives long, or
    /// that ends although its arrays were to be kept. Dead arrays that are queued are closed first. Of the system
    /// manager, which does not end, it is what the managers of its device own.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let session = NdManager::new_base_manager(&Device::Cpu)?;
    /// let model = session.zeros(256, DType::F32)?;
    /// for _ in 0..10 {
    ///     model.exp()?; // with the switch off, it stays with the manager
    /// }
    /// let report = session.leak_report();
    /// assert_eq!((report.dead(), report.dead_bytes(), report.held()), (10, 10 << 10, 1));
    /// assert_eq!(report.lines[0].arrays, 10);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn leak_report(&self) -> LeakReport {
        if switch::check("leak_report").is_err() {
            return LeakReport::new((self.name(), self.inner().created), 0, Vec::new());
        }
        with_context(reclaim::drain_all);
        let managers = self.subtree();
        let below = managers.len().saturating_sub(usize::from(!self.is_system()));
        ending(self.inner(), below, &managers)
    }

    #[cold]
    pub(super) fn capped_error(&self, op: &'static str) -> Error {
        Error::ManagerCapped { op, manager: self.name(), created: self.inner().created, site: None }
    }

    #[cold]
    pub(super) fn closed_error(&self, call: impl Into<Asked>) -> Error {
        let Asked { op, site } = call.into();
        let &(closed_by, closed) = self.inner().closed.get().unwrap_or(&(Closer::Unknown, None));
        Error::ManagerClosed { op, manager: self.name(), created: self.inner().created, closed_by, closed, site }
    }
}

thread_local! {
    /// Whether this thread is closing a manager: what of the user's it runs then, as in a drop, waits for no closer.
    static CLOSING: Cell<bool> = const { Cell::new(false) };
}

/// What ends with these managers: one and so many below it.
fn ending(inner: &ManagerInner, below: usize, managers: &[ManagerInfo]) -> LeakReport {
    let mut arrays = Vec::new();
    for manager in managers {
        manager.for_each_array(|index| arrays.extend(registry::upgrade_index(index).map(Proxy::from_key)));
    }
    LeakReport::new((inner.name(), inner.created), below, arrays)
}

/// Ends a manager and what is below it. When it returns all of them are empty, whoever closed them; but for a call that
/// the user's code makes while its thread is closing a manager: two of those could wait for each other.
fn close(inner: &Arc<ManagerInner>, closer: Closer, site: Option<Site>) {
    let Some(place) = inner.place else { return };
    // Of several closers of a manager the first one under the lock gets it.
    let (mine, others): (Vec<_>, Vec<_>) = {
        let mut tree = Tree::lock();
        let below = tree.below(place.key);
        below.into_iter().enumerate().partition(|(depth, manager)| {
            let by = if *depth == 0 { closer } else { Closer::Ancestor };
            manager.closed.set((by, site)).is_ok()
        })
    };
    let outer = CLOSING.replace(true);
    for (_, manager) in &mine {
        trace::note_closed(manager.key(), manager.given_name(), manager.uuid());
    }
    if let Some((0, _)) = mine.first() {
        leaks::report_if_wanted(|| {
            with_context(reclaim::drain_all);
            let managers: Vec<_> = mine.iter().map(|(_, manager)| ManagerInfo(Arc::clone(manager))).collect();
            ending(inner, managers.len() - 1, &managers)
        });
    }
    let places = || mine.iter().filter_map(|(_, manager)| Some((manager, manager.place?)));
    for (_, place) in places() {
        place.id.shut();
    }
    with_context(|context| {
        for (manager, place) in places().rev() {
            let by = manager.closed.get().map_or(closer, |(by, _)| *by);
            close_arrays(context, place.id, by, site);
        }
    });
    {
        let mut tree = Tree::lock();
        let nodes = tree.nodes();
        // Parents first: those below one that went are in no list any more.
        for (_, place) in places() {
            // Under this lock nobody gives it another one.
            budget::release(place.id.budget());
            let Some(node) = nodes.remove(place.key) else { continue };
            if let Some(parent) = node.parent.and_then(|parent| nodes.get_mut(parent))
                && let Ok(at) = parent.children.binary_search_by_key(&node.serial, |&(serial, _)| serial)
            {
                parent.children.remove(at);
            }
        }
    }
    for (manager, place) in places().rev() {
        place.id.give_back();
        // Release: pairs with the Acquire below: who sees it sees the arrays closed.
        manager.is_empty.store(1, Ordering::Release);
    }
    CLOSING.set(outer);
    if !outer {
        let waits_for = others.iter().map(|(_, manager)| manager).chain(others.is_empty().then_some(inner));
        for manager in waits_for {
            let mut turns = 0;
            // Acquire: as above.
            while manager.is_empty.load(Ordering::Acquire) == 0 {
                wait_turn(&mut turns);
            }
        }
    }
    with_context(reclaim::on_call);
}

/// Invariant I6 (design.md).
fn close_arrays(context: &ThreadContext, id: ManagerId, closer: Closer, site: Option<Site>) {
    let mut taken = Vec::with_capacity(CLOSE_BATCH.min(id.count()));
    let mut returned = Vec::new();
    for shard in 0..SHARDS {
        loop {
            let counted = id.take_some(shard, CLOSE_BATCH, &mut taken);
            let is_empty = taken.is_empty();
            taken.retain(|&key| {
                let lender = loan::give_back(key.index(), counted);
                if lender.is_none() {
                    budget::uncount_array(counted, 0);
                }
                returned.extend(lender.map(|lender| (key, lender)));
                lender.is_none()
            });
            budget::release(counted);
            if is_empty {
                break;
            }
            registry::close_taken(context, &taken, closer, site);
            taken.clear();
            for (key, lender) in returned.drain(..) {
                loan::end_if_kept(context, key, lender);
            }
        }
    }
}

/// The open managers of a device and those below them, each before these, with the number of managers above it.
pub(crate) fn tree(device: &Device) -> Vec<(usize, ManagerInfo)> {
    let mut tree = Tree::lock();
    let mut todo: Vec<_> = tree.bases(device).into_iter().rev().map(|key| (0, key)).collect();
    let (nodes, mut found) = (tree.nodes(), Vec::new());
    while let Some((depth, key)) = todo.pop() {
        let Some(node) = nodes.get(key).filter(|node| node.is_open()) else { continue };
        found.push((depth, ManagerInfo(Arc::clone(&node.inner))));
        todo.extend(node.children.iter().rev().map(|&(_, child)| (depth + 1, child)));
    }
    found
}

/// The manager with this key as a number, and those below it; none if it is closed.
pub(crate) fn subtree_of(key: u64) -> Vec<ManagerInfo> {
    Tree::lock().open_below(ManagerKey::from(KeyData::from_ffi(key)))
}

/// The name of a manager by its key as a number; of a closed one its uuid.
pub(crate) fn name_of(key: u64) -> String {
    let key = ManagerKey::from(KeyData::from_ffi(key));
    let inner = Tree::lock().nodes().get(key).map(|node| Arc::clone(&node.inner));
    inner.map_or_else(|| manager_uuid(key).to_string(), |inner| inner.name())
}

/// Runs `f` with the number of the budget that a manager is within, or 0, and whether that is its own. A closed manager
/// is within none: its number may be another's.
pub(super) fn in_budget<R>(manager: &NdManager, f: impl FnOnce(u32, bool) -> R) -> R {
    let mut tree = Tree::lock();
    let place = manager.inner().place.filter(|place| tree.nodes().contains_key(place.key));
    f(place.map_or(0, |place| place.id.budget()), place.is_some_and(TreePlace::owns_budget))
}

/// Runs `f` with the number of a manager's own budget, and whether it is new: then it has these limits.
pub(super) fn own_budget<R>(
    manager: &NdManager,
    call: Call,
    first: &Budget,
    f: impl FnOnce(u32, bool) -> R,
) -> Result<R> {
    let Some(place) = manager.inner().place else { return Err(Error::system_manager(call)) };
    let mut tree = Tree::lock();
    if !tree.nodes().contains_key(place.key) || !manager.is_open() {
        drop(tree);
        return Err(manager.closed_error(call));
    }
    let is_new = !place.owns_budget();
    if is_new {
        give_budget(&mut tree, place, call, first)?;
    }
    Ok(f(place.id.budget(), is_new))
}

/// The first budget of a manager: those below get new nodes below the new one, parents first. Each node keeps the one
/// above it.
fn give_budget(tree: &mut Tree, place: TreePlace, call: Call, budget: &Budget) -> Result<()> {
    let mut renewed = HashMap::<u32, u32>::new();
    for inner in tree.below(place.key) {
        let Some(at) = inner.place else { continue };
        let old = at.id.budget();
        let renewed_of = |old: u32| renewed.get(&old).copied();
        let new = if at.key == place.key {
            budget::open(old, manager_key(at.id), budget, 0)
        } else if at.owns_budget() {
            let above = renewed_of(budget::parent_of(old)).unwrap_or(0);
            budget::open(above, manager_key(at.id), &budget::limits(old), old)
        } else {
            renewed_of(old).inspect(|&number| budget::retain(number))
        };
        let new = new.ok_or_else(|| budget::too_many(call))?;
        renewed.insert(old, new);
        at.id.set_budget(new);
        budget::release(old);
    }
    Ok(())
}

/// The open managers with a budget of their own, the one made first before the others: its limits, and what is charged.
pub(crate) fn budgets() -> Vec<(ManagerInfo, Budget, BudgetUse)> {
    let mut tree = Tree::lock();
    let budget_of = |node: &TreeNode| Some(node.inner.place.filter(|place| place.owns_budget())?.id.budget());
    let open = tree.nodes().values().filter(|node| node.is_open());
    let mut found: Vec<_> = open.filter_map(|node| Some((node.serial, budget_of(node)?, &node.inner))).collect();
    sort_by_key(&mut found, |&(serial, ..)| serial);
    let of = |(_, number, inner): (u64, u32, &Arc<ManagerInner>)| {
        (ManagerInfo(Arc::clone(inner)), budget::limits(number), budget::usage(number))
    };
    found.into_iter().map(of).collect()
}

/// What reports read of a manager.
pub(crate) struct ManagerInfo(Arc<ManagerInner>);

impl ManagerInfo {
    pub(crate) fn name(&self) -> String {
        self.0.name()
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.0.uuid()
    }

    pub(crate) fn created(&self) -> Site {
        self.0.created
    }

    /// Its key, as a number.
    pub(crate) fn key(&self) -> u64 {
        self.0.key()
    }

    /// Its arrays.
    pub(crate) fn count(&self) -> u64 {
        self.0.place.map_or(0, |place| place.id.count() as u64)
    }

    /// Calls `f` with the slot of each of its arrays, under the lock of a shard: `f` must be short.
    pub(crate) fn for_each_array(&self, mut f: impl FnMut(u32)) {
        if let Some(place) = self.0.place {
            for shard in 0..SHARDS {
                place.id.for_each(shard, &mut f);
            }
        }
    }
}

impl ManagerInner {
    /// Its key, as a number.
    fn key(&self) -> u64 {
        self.place.map_or(0, |place| place.key.data().as_ffi())
    }

    fn uuid(&self) -> Uuid {
        self.place.map_or_else(|| process_uuid(b's', 0), |place| manager_uuid(place.key))
    }

    fn given_name(&self) -> Option<String> {
        if switch::forked() {
            // Another thread of the parent may have had the lock.
            return self.name.try_lock().ok()?.clone();
        }
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn name(&self) -> String {
        self.given_name().unwrap_or_else(|| self.uuid().to_string())
    }
}

impl fmt::Display for NdManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = self.parent().ok().flatten().map_or("none".into(), |parent| parent.name());
        write!(
            f,
            "Name: {} Parent Name: {parent} isOpen: {} Resource size: {}",
            self.name(),
            self.is_open(),
            self.array_count() + self.manager_count()
        )
    }
}

impl fmt::Debug for NdManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NdManager({}, {})", self.name(), if self.is_open() { "open" } else { "closed" })
    }
}
