//! Budgets: how many bytes and arrays a manager may have, with those below it; and a workspace.
//!
//! A manager with a budget has a *node*; one without has the node of the nearest manager above that has one, or none.
//! What is charged to a node is charged to all nodes above it, each by compare-and-swap before there is any memory.
//! Numbers of nodes are indices + 1, and 0 where there is none; so managers without budgets cost a look at a number.
//!
//! # Who is charged
//! Bytes are charged once, with their storage (`storage.rs`), to the manager that the array is made for, and stay
//! charged until the storage ends, whoever shares it: a view, a gradient. An array that moves takes the bytes along
//! (`owner.rs`). Not charged are bytes of others (mapped files, lent memory). Arrays are counted where they are hung to
//! their manager and taken from it.
//!
//! No manager is charged for arrays of workspaces. A workspace with a budget has a node of its own, without a manager
//! and with none above it, which is charged for whole blocks (`workspace/arena.rs`): each discharges it where it ends,
//! on any thread. The workspace counts its arrays itself.
//!
//! # What is charged
//! Two numbers of each kind that only grow: what was charged, and what was freed of it; so an array costs two exchanges
//! and two additions at each level, and what was charged in all is there too. Who charges reads first what was freed:
//! it may find more than there is, never less, so that no limit is passed.
//!
//! # Orderings
//! Relaxed throughout, where nothing else is said: numbers that are added to, compared with a limit and reported;
//! nobody reads other memory by them. What a node is, with the node above it, is published by `charged`.
//!
//! # The end of a node
//! It is used again when its manager or workspace, the nodes below it and its reservations are gone (`refs`) and no
//! byte is charged to it. Who drops the last reference sets the highest bit of `charged`; from then on nothing is
//! charged. Whoever then finds that all bytes were freed ends the node, the one of them that counts its lives on.
//!
//! What goes up the tree is a loop: budgets are nested as deeply as the program likes, and a stack has an end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{
    error::Error,
    sync::{AtomicU32, AtomicU64, Ordering, SpinLock, Unlock},
};
use crate::device::budget::AllocError;
use crate::memory::slab::slab;

/// No limit.
const NONE: u64 = u64::MAX;
/// In `charged`: the manager is gone. Below it numbers count in a circle.
const CLOSED: u64 = 1 << 63;
/// In `refs`: one life more.
const LIFE: u64 = 1 << 32;

/// What a manager and those below it may have, or a [`Workspace`](crate::Workspace). Of each number none at first.
///
/// ```
/// # use ndgc::{Budget, DType, Device, Error, NdManager};
/// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
/// tenant.set_budget(Budget::new().max_bytes(1 << 20).soft_bytes(1 << 19).max_arrays(1000))?;
/// let request = tenant.new_sub_manager()?; // within the same budget
/// let _x = request.zeros((256, 512), DType::F32)?; // 512 KiB
/// assert!(tenant.can_fit(1 << 19) && !tenant.can_fit((1 << 19) + 1));
/// let refused = request.zeros((512, 512), DType::F32);
/// assert!(matches!(refused, Err(Error::OutOfMemory(_))));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// The most bytes. A request that would pass it is an error.
    pub max_bytes: Option<u64>,
    /// Bytes above which dead arrays are closed and caches asked for theirs before more is taken. No error.
    pub soft_bytes: Option<u64>,
    /// The most arrays, views among them; of a workspace those that get bytes in one cycle.
    pub max_arrays: Option<u64>,
    /// As [`Budget::soft_bytes`], of arrays: looked at when one takes bytes. Of a workspace it says nothing.
    pub soft_arrays: Option<u64>,
}

impl Budget {
    /// Without limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a limit on bytes.
    #[must_use]
    pub fn max_bytes(self, bytes: u64) -> Self {
        Budget { max_bytes: Some(bytes), ..self }
    }

    /// With a number of bytes above which memory is looked for before more is taken.
    #[must_use]
    pub fn soft_bytes(self, bytes: u64) -> Self {
        Budget { soft_bytes: Some(bytes), ..self }
    }

    /// With a limit on arrays.
    #[must_use]
    pub fn max_arrays(self, arrays: u64) -> Self {
        Budget { max_arrays: Some(arrays), ..self }
    }

    /// With a number of arrays above which memory is looked for before one more is made.
    #[must_use]
    pub fn soft_arrays(self, arrays: u64) -> Self {
        Budget { soft_arrays: Some(arrays), ..self }
    }
}

/// What a manager with a budget, and those below it, have; or a workspace with one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetUse {
    /// Bytes charged, what is reserved among them.
    pub bytes: u64,
    /// The most that it was.
    pub peak_bytes: u64,
    /// All bytes that were charged.
    pub total_bytes: u64,
    /// Bytes that [`NdManager::reserve`](crate::NdManager::reserve) keeps free.
    pub reserved_bytes: u64,
    /// Arrays; of a workspace those of the running cycle.
    pub arrays: u64,
    /// The most that there were; of a workspace in one cycle.
    pub peak_arrays: u64,
    /// All arrays that were counted; of a workspace none.
    pub total_arrays: u64,
    /// Requests that this budget refused.
    pub refused: u64,
    /// How often a soft limit was passed.
    pub soft_passed: u64,
}

/// Which budget refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverBudget {
    node: u32,
    /// The key of its manager, as a number; 0 if it is a workspace's.
    pub(crate) manager: u64,
    /// What it has, and may have: arrays if the request was for one, else bytes.
    pub(crate) used: u64,
    pub(crate) max: u64,
    /// What was asked for.
    pub(crate) asked: u64,
    pub(crate) is_arrays: bool,
}

impl OverBudget {
    /// The workspace whose budget it is, if it is one's.
    pub(crate) fn workspace(&self) -> Option<Arc<str>> {
        WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner).get(&self.node).cloned()
    }
}

/// Why there are no bytes.
#[derive(Debug)]
pub(crate) enum NoBytes {
    /// A budget has no room.
    Budget(OverBudget),
    /// The device has none.
    Exhausted,
    /// Nothing helps.
    Failed(Error),
}

impl NoBytes {
    pub(crate) fn is_budget(&self) -> bool {
        matches!(self, NoBytes::Budget(_))
    }

    /// Whether another try is no use. What a cycle has made counts until it ends, whatever is closed.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, NoBytes::Failed(_) | NoBytes::Budget(OverBudget { manager: 0, is_arrays: true, .. }))
    }
}

impl From<AllocError> for NoBytes {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::Exhausted => NoBytes::Exhausted,
            AllocError::Failed(error) => NoBytes::Failed(error),
        }
    }
}

/// What is charged to a node, with its limits.
#[derive(Debug)]
struct Meter {
    charged: AtomicU64,
    freed: AtomicU64,
    peak: AtomicU64,
    max: AtomicU64,
}

/// A budget and what is charged to it.
#[derive(Debug)]
#[repr(align(128))]
struct Node {
    bytes: Meter,
    soft: AtomicU64,
    soft_arrays: AtomicU64,
    /// Whether there are as many arrays as that, or more, and it was told.
    has_soft_arrays: AtomicU32,
    reserved: AtomicU64,
    /// Held by who draws on what is reserved, until it is known whether the rest is granted, and by who ends a
    /// reservation.
    drawing: SpinLock<()>,
    arrays: Meter,
    /// The node above.
    parent: AtomicU32,
    /// Who refers to it, below [`LIFE`], and how many lives it had.
    refs: AtomicU64,
    manager: AtomicU64,
    refused: AtomicU64,
    soft_passed: AtomicU64,
}

const fn meter() -> Meter {
    Meter {
        charged: AtomicU64::new(CLOSED),
        freed: AtomicU64::new(0),
        peak: AtomicU64::new(0),
        max: AtomicU64::new(NONE),
    }
}

slab!(NODES: Node = Node {
    bytes: meter(),
    soft: AtomicU64::new(NONE),
    soft_arrays: AtomicU64::new(NONE),
    has_soft_arrays: AtomicU32::new(0),
    reserved: AtomicU64::new(0),
    drawing: SpinLock::new(()),
    arrays: meter(),
    parent: AtomicU32::new(0),
    refs: AtomicU64::new(0),
    manager: AtomicU64::new(0),
    refused: AtomicU64::new(0),
    soft_passed: AtomicU64::new(0),
});

static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Nodes of managers that there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The workspaces whose nodes these are.
static WORKSPACES: Mutex<BTreeMap<u32, Arc<str>>> = Mutex::new(BTreeMap::new());

/// Whether any manager has a budget.
#[inline(always)]
pub(crate) fn is_in_use() -> bool {
    // What a manager has is read again under the lock of its list.
    COUNT.load(Ordering::Relaxed) != 0
}

impl Meter {
    /// Adds, if that stays within the limit or is `forced`. What there was, or is.
    #[inline]
    fn add(&self, amount: u64, forced: bool) -> Result<u64, u64> {
        let max = self.max.load(Ordering::Relaxed);
        loop {
            let (used, charged) = self.read();
            let now = used.saturating_add(amount);
            let fits = forced || (charged & CLOSED == 0 && now <= max && now < CLOSED);
            if !fits {
                return Err(used);
            }
            let sum = charged & CLOSED | charged.wrapping_add(amount) & !CLOSED;
            // Acquire: pairs with the Release in `open`; whoever is charged finds the node above. Relaxed: read again.
            if self.charged.compare_exchange_weak(charged, sum, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                if now > self.peak.load(Ordering::Relaxed) {
                    self.peak.fetch_max(now, Ordering::Relaxed);
                }
                return Ok(used);
            }
        }
    }

    /// Takes back what was added, as if it had never been.
    fn revoke(&self, amount: u64) {
        let less = |charged: u64| Some(charged & CLOSED | charged.wrapping_sub(amount) & !CLOSED);
        // SeqCst: as in `free_bytes`.
        let _ = self.charged.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    }

    /// What there is, and what was charged when it was read: first what was freed, so that there is not less.
    #[inline]
    fn read(&self) -> (u64, u64) {
        // Acquire: pairs with the Release in `free_bytes` and `uncount_array`: what was freed had been charged.
        let freed = self.freed.load(Ordering::Acquire);
        let charged = self.charged.load(Ordering::Relaxed);
        (charged.wrapping_sub(freed) & !CLOSED, charged)
    }

    #[inline]
    fn now(&self) -> u64 {
        self.read().0
    }

    /// What there is at a time during the call, and all that was charged.
    fn exact(&self) -> (u64, u64) {
        loop {
            // Acquire: as in `read`, and so that the three are read one after the other: while what was freed stays the
            // same, the difference is what there is.
            let freed = self.freed.load(Ordering::Acquire);
            let charged = self.charged.load(Ordering::Acquire);
            if self.freed.load(Ordering::Relaxed) == freed {
                return (charged.wrapping_sub(freed) & !CLOSED, charged & !CLOSED);
            }
        }
    }

    /// Begins at nothing.
    fn open(&self) {
        self.peak.store(0, Ordering::Relaxed);
        self.freed.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `add`.
        self.charged.store(0, Ordering::Release);
    }
}

fn node(number: u32) -> &'static Node {
    NODES.get(number - 1)
}

/// Opens the node of a workspace. `None` if there are too many.
pub(crate) fn open_workspace(name: &Arc<str>, budget: &Budget) -> Option<u32> {
    let number = open(0, 0, budget)?;
    WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(name));
    Some(number)
}

/// The workspaces with budgets: their names, limits, and what is charged. While they are locked no number is another's.
pub(crate) fn workspaces() -> Vec<(Arc<str>, Budget, BudgetUse)> {
    let all = WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().map(|(&number, name)| (Arc::clone(name), limits(number), usage(number))).collect()
}

/// Opens a node below another one, of a manager, or with 0 of none. `None` if there are too many.
pub(crate) fn open(parent: u32, manager: u64, budget: &Budget) -> Option<u32> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let number = NODES.take_from(&mut free)? + 1;
    drop(free);
    let fresh = node(number);
    retain(parent);
    fresh.parent.store(parent, Ordering::Relaxed);
    fresh.refs.fetch_add(1, Ordering::Relaxed);
    fresh.manager.store(manager, Ordering::Relaxed);
    for number in [&fresh.reserved, &fresh.refused, &fresh.soft_passed] {
        number.store(0, Ordering::Relaxed);
    }
    fresh.has_soft_arrays.store(0, Ordering::Relaxed);
    set(number, budget);
    COUNT.fetch_add(u32::from(manager != 0), Ordering::Relaxed);
    fresh.arrays.open();
    fresh.bytes.open();
    Some(number)
}

/// Changes the limits of a node; returns those before.
pub(crate) fn set(number: u32, budget: &Budget) -> Budget {
    let of = node(number);
    let swap = |at: &AtomicU64, to: Option<u64>| at.swap(to.unwrap_or(NONE), Ordering::Relaxed);
    let known = |limit: u64| (limit != NONE).then_some(limit);
    Budget {
        max_bytes: known(swap(&of.bytes.max, budget.max_bytes)),
        soft_bytes: known(swap(&of.soft, budget.soft_bytes)),
        max_arrays: known(swap(&of.arrays.max, budget.max_arrays)),
        soft_arrays: known(swap(&of.soft_arrays, budget.soft_arrays)),
    }
}

/// The limits of a node.
pub(crate) fn limits(number: u32) -> Budget {
    let of = node(number);
    let known = |at: &AtomicU64| Some(at.load(Ordering::Relaxed)).filter(|&limit| limit != NONE);
    Budget {
        max_bytes: known(&of.bytes.max),
        soft_bytes: known(&of.soft),
        max_arrays: known(&of.arrays.max),
        soft_arrays: known(&of.soft_arrays),
    }
}

/// The key of the manager whose node it is.
pub(crate) fn manager_of(number: u32) -> u64 {
    node(number).manager.load(Ordering::Relaxed)
}

/// The node above, or 0.
pub(crate) fn parent_of(number: u32) -> u32 {
    node(number).parent.load(Ordering::Relaxed)
}

/// What is charged to a node.
pub(crate) fn usage(number: u32) -> BudgetUse {
    let of = node(number);
    let read = |at: &AtomicU64| at.load(Ordering::Relaxed);
    let ((bytes, total_bytes), (arrays, total_arrays)) = (of.bytes.exact(), of.arrays.exact());
    BudgetUse {
        bytes,
        peak_bytes: read(&of.bytes.peak),
        total_bytes,
        reserved_bytes: read(&of.reserved),
        arrays,
        peak_arrays: read(&of.arrays.peak),
        total_arrays,
        refused: read(&of.refused),
        soft_passed: read(&of.soft_passed),
    }
}

/// One more that refers to a node, which the caller knows to be open.
pub(crate) fn retain(number: u32) {
    if number != 0 {
        node(number).refs.fetch_add(1, Ordering::Relaxed);
    }
}

/// One less that refers to a node.
pub(crate) fn release(number: u32) {
    let mut at = number;
    // A node that ends refers to the one above no more.
    while let Some(above) = let_go(at) {
        at = above;
    }
}

/// As [`release`], of this node alone: the node above, if this one ended.
fn let_go(number: u32) -> Option<u32> {
    // AcqRel: pairs with itself in the others: the last one comes after them.
    if number == 0 || node(number).refs.fetch_sub(1, Ordering::AcqRel) % LIFE != 1 {
        return None;
    }
    let of = node(number);
    let life = of.refs.load(Ordering::Relaxed);
    of.arrays.charged.fetch_or(CLOSED, Ordering::Relaxed);
    // SeqCst: pairs with `free_bytes`: of this and what frees the last bytes, the later one finds the other.
    of.bytes.charged.fetch_or(CLOSED, Ordering::SeqCst);
    ended_if_free(number, life)
}

/// Ends the node if nobody refers to it and all that was charged to it was freed. `life`: its references at a time when
/// it surely had not ended.
fn end_if_free(number: u32, life: u64) {
    if let Some(above) = ended_if_free(number, life) {
        release(above);
    }
}

/// As [`end_if_free`], but that the node above, which is the answer if the node ended, is not released yet.
fn ended_if_free(number: u32, life: u64) -> Option<u32> {
    let of = node(number);
    // SeqCst: pairs with the other's change, which comes before or finds this one's.
    let (freed, charged) = (of.bytes.freed.load(Ordering::SeqCst), of.bytes.charged.load(Ordering::SeqCst));
    let is_free = charged & CLOSED != 0 && charged.wrapping_sub(freed) & !CLOSED == 0;
    let refs = life / LIFE * LIFE;
    // AcqRel: pairs with `let_go` and with itself: who ends the node comes after all who used it, and of several, and
    // of those that come too late, it picks one.
    if is_free && of.refs.compare_exchange(refs, refs.wrapping_add(LIFE), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        return Some(end(number));
    }
    None
}

/// Nobody refers to the node, and nothing is charged to it. Returns the node above.
#[cold]
fn end(number: u32) -> u32 {
    let parent = parent_of(number);
    if manager_of(number) == 0 {
        WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    FREE.lock().unwrap_or_else(PoisonError::into_inner).push(number - 1);
    parent
}

/// The nodes from one up to, and without, another one that is above it or 0.
fn path(from: u32, to: u32) -> impl Iterator<Item = u32> {
    // What comes next is asked for before the end is seen.
    let above = |&number: &u32| (number != 0).then(|| parent_of(number));
    std::iter::successors(Some(from), above).take_while(move |&number| number != to && number != 0)
}

/// The lowest node that is above both, or is one of them; 0 if none is.
fn common(a: u32, b: u32) -> u32 {
    let [of_a, of_b] = [a, b].map(|number| path(number, 0).count());
    let [below_a, below_b] = [of_a.saturating_sub(of_b), of_b.saturating_sub(of_a)];
    // From the same height on.
    let mut above = path(a, 0).skip(below_a).zip(path(b, 0).skip(below_b));
    above.find(|(one, other)| one == other).map_or(0, |(found, _)| found)
}

/// What [`charge`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    /// Nothing: the manager is gone.
    Nobody,
    /// The bytes are charged.
    All,
    /// As above, and passed a soft limit.
    AllAboveSoft,
}

/// Charges bytes to a node, which may be closed already, and those above. Of what was reserved as much is used as there
/// is. Invariant I14 (design.md).
///
/// # Errors
/// The lowest budget that refuses; nothing is charged.
#[inline]
pub(crate) fn charge(number: u32, bytes: u64) -> Result<Charged, OverBudget> {
    match charge_to(number, 0, bytes, false) {
        Ok(false) => Ok(Charged::All),
        Ok(true) => Ok(Charged::AllAboveSoft),
        Err(_) if node(number).bytes.charged.load(Ordering::Relaxed) & CLOSED != 0 => Ok(Charged::Nobody),
        Err(refusal) => Err(refusal),
    }
}

/// As [`charge`], up to and without the node `end`. Whether a soft limit was passed.
#[inline(always)]
fn charge_to(number: u32, end: u32, bytes: u64, forced: bool) -> Result<bool, OverBudget> {
    if number == end || number == 0 || bytes == 0 { Ok(false) } else { charge_from(number, end, bytes, forced, true) }
}

/// What a charge took of a reservation. The node is locked until it is known whether the rest is granted.
struct Draw {
    node: u32,
    bytes: u64,
    _held: Unlock<'static>,
}

/// As [`charge_to`], where there is something to charge; `own`: also out of what this node itself has reserved.
fn charge_from(number: u32, end: u32, bytes: u64, forced: bool, own: bool) -> Result<bool, OverBudget> {
    let (mut at, mut left, mut passed, mut drawn) = (number, bytes, false, Vec::new());
    loop {
        let of = node(at);
        // What moves below a node in common brings no bytes along that those above have reserved.
        if end == 0 && (own || at != number) && of.reserved.load(Ordering::Relaxed) != 0 {
            let held = of.drawing.hold();
            let some = draw(of, left);
            drawn.push(Draw { node: at, bytes: some, _held: held });
            left -= some;
            if left == 0 {
                break;
            }
        }
        let before = of.bytes.add(left, forced).map_err(|used| {
            // Asked first: with what is taken back, this node may end.
            let refusal = refused(at, used, left, false);
            take_back(number, at, bytes, &drawn);
            refusal
        })?;
        let soft = of.soft.load(Ordering::Relaxed);
        if before <= soft && before + left > soft {
            of.soft_passed.fetch_add(1, Ordering::Relaxed);
            passed = true;
        }
        at = parent_of(at);
        if at == end || at == 0 {
            break;
        }
    }
    Ok(passed)
}

/// Takes back what [`charge_from`] did before the node `at` refused.
#[cold]
fn take_back(number: u32, at: u32, bytes: u64, drawn: &[Draw]) {
    for draw in drawn {
        node(draw.node).reserved.fetch_add(draw.bytes, Ordering::Relaxed);
    }
    let (mut left, mut drawn) = (bytes, drawn.iter().peekable());
    for below in path(number, at) {
        left -= drawn.next_if(|draw| draw.node == below).map_or(0, |draw| draw.bytes);
        // As long as bytes are charged to it, it does not end.
        let life = node(below).refs.load(Ordering::Relaxed);
        node(below).bytes.revoke(left);
        end_if_free(below, life);
    }
}

/// Takes from what is reserved, at most so much.
#[inline]
fn draw(of: &Node, bytes: u64) -> u64 {
    let take = |reserved: u64| (reserved > 0).then(|| reserved - reserved.min(bytes));
    let drawn = of.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    drawn.map_or(0, |reserved| reserved.min(bytes))
}

#[cold]
fn refused(number: u32, used: u64, asked: u64, is_arrays: bool) -> OverBudget {
    let of = node(number);
    let meter = if is_arrays { &of.arrays } else { &of.bytes };
    let (manager, max) = (of.manager.load(Ordering::Relaxed), meter.max.load(Ordering::Relaxed));
    OverBudget { node: number, manager, used, max, asked, is_arrays }
}

#[inline]
fn free_bytes(number: u32, bytes: u64) {
    let of = node(number);
    // Relaxed: as long as bytes are charged to it, it does not end.
    let life = of.refs.load(Ordering::Relaxed);
    // SeqCst: pairs with `let_go`, and as Release with the Acquire in `Meter::read`.
    of.bytes.freed.fetch_add(bytes, Ordering::SeqCst);
    // SeqCst: as in `end_if_free`, which looks again.
    if of.bytes.charged.load(Ordering::SeqCst) & CLOSED != 0 {
        end_if_free(number, life);
    }
}

/// Bytes that were charged are free. A node above ends after it was told: until then it has the bytes.
#[inline]
pub(crate) fn discharge(number: u32, bytes: u64) {
    discharge_to(number, 0, bytes);
}

#[inline(always)]
fn discharge_to(number: u32, end: u32, bytes: u64) {
    if number != end && number != 0 && bytes > 0 {
        discharge_from(number, end, bytes);
    }
}

#[inline(never)]
fn discharge_from(number: u32, end: u32, bytes: u64) {
    path(number, end).for_each(|at| free_bytes(at, bytes));
}

/// Bytes that are charged to `from`, or to nobody, are charged to `to`, or to nobody. Nodes above both do not notice.
///
/// # Errors
/// As [`charge`].
pub(crate) fn transfer(from: u32, to: u32, bytes: u64, forced: bool) -> Result<(), OverBudget> {
    let above = common(from, to);
    charge_to(to, above, bytes, forced)?;
    discharge_to(from, above, bytes);
    Ok(())
}

/// Counts an array with a node and those above.
///
/// # Errors
/// As [`charge`].
#[inline]
pub(crate) fn count_array(number: u32, forced: bool) -> Result<(), OverBudget> {
    let mut at = number;
    while at != 0 {
        let above = parent_of(at);
        if let Err(used) = node(at).arrays.add(1, forced) {
            path(number, at).for_each(|below| node(below).arrays.revoke(1));
            return Err(refused(at, used, 1, true));
        }
        at = above;
    }
    Ok(())
}

/// An array counted with a node is gone from it.
#[inline]
pub(crate) fn uncount_array(number: u32) {
    let mut at = number;
    while at != 0 {
        // Asked for before the end is seen, as in `path`.
        let above = parent_of(at);
        // Release: pairs with the Acquire in `Meter::read`.
        node(at).arrays.freed.fetch_add(1, Ordering::Release);
        at = above;
    }
}

/// Which budget would refuse an array more now.
#[inline]
pub(crate) fn full(number: u32) -> Option<OverBudget> {
    let mut at = number;
    while at != 0 {
        let Node { arrays, parent, .. } = node(at);
        let max = arrays.max.load(Ordering::Relaxed);
        if max != NONE && arrays.now() >= max {
            return Some(refused(at, arrays.now(), 1, true));
        }
        at = parent.load(Ordering::Relaxed);
    }
    None
}

/// Whether a workspace that has made so many arrays in its cycle may make another one.
pub(crate) fn full_cycle(number: u32, arrays: u64) -> Option<OverBudget> {
    let is_full = arrays >= node(number).arrays.max.load(Ordering::Relaxed);
    is_full.then(|| refused(number, arrays, 1, true))
}

/// Notes how many arrays a workspace made in a cycle.
pub(crate) fn note_cycle(number: u32, arrays: u64) {
    node(number).arrays.peak.fetch_max(arrays, Ordering::Relaxed);
}

/// Counts a request that ended in this refusal.
pub(crate) fn count_refusal(refusal: &OverBudget) {
    node(refusal.node).refused.fetch_add(1, Ordering::Relaxed);
}

/// Whether an array more passes a soft limit on arrays, and did not when this was asked last.
#[inline]
pub(crate) fn passes_soft_arrays(number: u32) -> bool {
    let mut passes = false;
    for at in path(number, 0) {
        let of = node(at);
        let soft = of.soft_arrays.load(Ordering::Relaxed);
        if soft == NONE {
            continue;
        }
        let has = u32::from(of.arrays.now() >= soft);
        if of.has_soft_arrays.swap(has, Ordering::Relaxed) < has {
            of.soft_passed.fetch_add(1, Ordering::Relaxed);
            passes = true;
        }
    }
    passes
}

/// The lowest budget that is above a soft limit now; of arrays, with one more.
pub(crate) fn above_soft(number: u32) -> Option<OverBudget> {
    path(number, 0).find_map(|at| {
        let of = node(at);
        let manager = of.manager.load(Ordering::Relaxed);
        let over = |is_arrays, used: u64, soft: &AtomicU64| {
            let max = soft.load(Ordering::Relaxed);
            (used > max).then_some(OverBudget { node: at, manager, used, max, asked: 0, is_arrays })
        };
        over(false, of.bytes.now(), &of.soft).or_else(|| over(true, of.arrays.now() + 1, &of.soft_arrays))
    })
}

/// Whether so many bytes would be charged now.
pub(crate) fn fits(number: u32, bytes: u64) -> bool {
    let mut bytes = bytes;
    path(number, 0).all(|at| {
        let of = node(at);
        bytes = bytes.saturating_sub(of.reserved.load(Ordering::Relaxed));
        // As `Meter::add` has it.
        let sum = of.bytes.now().saturating_add(bytes);
        bytes == 0 || (sum <= of.bytes.max.load(Ordering::Relaxed) && sum < CLOSED)
    })
}

/// Which budget would refuse bytes if so many that it has were given back before.
pub(crate) fn refuses(number: u32, bytes: u64, instead_of: u64) -> Option<OverBudget> {
    path(number, 0).find_map(|at| {
        let (used, max) = (node(at).bytes.now().saturating_sub(instead_of), node(at).bytes.max.load(Ordering::Relaxed));
        (used.saturating_add(bytes) > max).then(|| refused(at, used, bytes, false))
    })
}

/// Keeps bytes of a node free for those who charge it, or nodes below it.
///
/// # Errors
/// As [`charge`].
pub(crate) fn reserve(number: u32, bytes: u64) -> Result<(), OverBudget> {
    if number == 0 || bytes == 0 {
        return Ok(());
    }
    // Not out of what others reserved.
    charge_from(number, 0, bytes, false, false)?;
    node(number).reserved.fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}

/// Ends what [`reserve`] began, or less, in a node that was retained for it: what is left is free.
pub(crate) fn unreserve(number: u32, bytes: u64) {
    if number != 0 {
        let left = node(number).drawing.with(|()| draw(node(number), bytes));
        discharge(number, left);
        release(number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{ResetPolicy, Workspace, WorkspaceConfig};

    #[test]
    fn the_node_of_a_workspace_ends_with_it_and_its_last_byte() {
        let named = || WORKSPACES.lock().expect("no panic").values().filter(|name| ***name == *"NODE").count();
        let config = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).initial_size(4096);
        let config = config.overallocation_limit(1.).build().expect("no contradiction");
        let leased = std::thread::spawn(move || {
            let workspace = Workspace::for_current_thread("NODE", &config).expect("memory");
            workspace.set_budget(Budget::new().max_bytes(1 << 20)).expect("it lives");
            let _cycle = workspace.activate().expect("it is closed");
            workspace.lease().expect("a ring")
        });
        let lease = leased.join().expect("no panic");
        assert_eq!(named(), 1, "its thread ended, and the lease keeps the block");
        drop(lease);
        assert_eq!(named(), 0);
    }
}
