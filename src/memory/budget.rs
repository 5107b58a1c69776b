//! Budgets: how many bytes and arrays a manager may have, with those below it; and a workspace.
//!
//! A manager with a budget has a *node*; one without has the node of the nearest manager above that has one, or none.
//! What is charged to a node is charged to all nodes above it, each by compare-and-swap before there is any memory.
//! Numbers of nodes are indices + 1, and 0 where there is none; so managers without budgets cost a look at a number.
//!
//! # Who is charged
//! Bytes are charged once, with their storage (`storage.rs`), to the manager that the array is made for, and stay
//! charged until the storage ends, whoever shares it: a view, a gradient. An array that moves takes the bytes along
//! (`owner.rs`). Not charged are bytes of others (mapped files, lent memory). Arrays are counted where they are linked
//! to their manager and taken from it; or together with their bytes, before, by who keeps both (`storage.rs`).
//!
//! No manager is charged for arrays of workspaces. A workspace with a budget has a node of its own, without a manager,
//! which is charged for whole blocks (`workspace/arena.rs`): each discharges it where it ends, on any thread. The
//! workspace counts its arrays itself. Above its node there is none, or that of the manager that it is charged to: what
//! it has of a node keeps that node from its end, whatever becomes of the manager.
//!
//! # What threads keep
//! An array that is freed stays charged for the next one that its thread makes within the same budget: that one asks
//! nobody, however many budgets are above (`memory/allowance.rs`). A thread keeps 64 KiB and 64 arrays at most, and no
//! more than a 64th of any limit above, of one node; of none that has to see each array: with a soft limit or a
//! reservation, its own or above, of a workspace, or with more than it may have. What it keeps goes back when that lets
//! it pass a limit or a peak, when it frees of other nodes again and again, and at its end; and a budget that would
//! refuse, tells its figures, gets other limits or ends asks all threads first. So a peak is exact for one thread, and
//! at most 64 KiB and 64 arrays too high for each further one.
//!
//! # Orderings
//! Relaxed throughout, where nothing else is said: numbers that are added to, compared with a limit and reported;
//! nobody reads other memory by them. What a node is, with the node above it, is published by `charged`.
//!
//! What goes up the tree is a loop: budgets are nested as deeply as the program likes, and a stack has an end.

mod allowances;
mod figures;
mod meter;
mod nodes;
mod refusal;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use allowances::enlist;
pub use figures::{Budget, BudgetUse};
pub(crate) use nodes::{common, is_in_use, leave, manager_of, parent_of, release, retain};
pub(crate) use refusal::{NoBytes, OverBudget, too_many};

use std::sync::{Arc, PoisonError};

use crate::base::{
    order::value_of,
    sync::{AtomicU64, Ordering, Unlock},
};
use crate::memory::budget::{
    meter::{CLOSED, Meter, NONE},
    nodes::{BudgetNode, end_if_free, free_bytes, keep_anew, node, path, recall, settle_own},
    refusal::WORKSPACES,
};

/// Opens the node of a workspace below another one, or with 0 below none. `None` if there are too many.
pub(crate) fn open_workspace(name: &Arc<str>, parent: u32, budget: &Budget) -> Option<u32> {
    let number = open(parent, 0, budget, 0)?;
    *value_of(&mut WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner), number) = Arc::clone(name);
    Some(number)
}

/// The workspaces with budgets: their names, limits, and what is charged. While they are locked no number is another's.
pub(crate) fn workspaces() -> Vec<(Arc<str>, Budget, BudgetUse)> {
    let all = WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().map(|&(number, ref name)| (Arc::clone(name), limits(number), usage(number))).collect()
}

/// The names of the workspaces below a node, each as the workspace itself has it.
pub(crate) fn workspaces_below(number: u32) -> Vec<Arc<str>> {
    let all = WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_below = |(of, _): &&(u32, Arc<str>)| path(*of, 0).any(|above| above == number);
    all.iter().filter(is_below).map(|(_, name)| Arc::clone(name)).collect()
}

/// Opens a node below another one, of a manager, or with 0 of none. In the place of a former one of the manager, if
/// that is not 0, it goes on with its figures. `None` if there are too many.
pub(crate) fn open(parent: u32, manager: u64, budget: &Budget, former: u32) -> Option<u32> {
    let number = nodes::take(manager)?;
    let fresh = node(number);
    retain(parent);
    let (so_far, has_soft_arrays) = match former {
        0 => (BudgetUse::default(), 0),
        former => (usage(former), node(former).has_soft_arrays.load(Ordering::Relaxed)),
    };
    fresh.parent.store(parent, Ordering::Relaxed);
    fresh.refs.fetch_add(1, Ordering::Relaxed);
    fresh.manager.store(manager, Ordering::Relaxed);
    let begins = [(&fresh.refused, so_far.refused), (&fresh.soft_passed, so_far.soft_passed)];
    for (number, begin) in [(&fresh.reserved, 0), (&fresh.promised, 0)].into_iter().chain(begins) {
        number.store(begin, Ordering::Relaxed);
    }
    fresh.has_soft_arrays.store(has_soft_arrays, Ordering::Relaxed);
    set_limits(fresh, budget);
    // What is charged to the former one comes over, and counts with what is free by now; what is reserved does not.
    let held = so_far.bytes.saturating_sub(so_far.reserved_bytes);
    fresh.arrays.open(so_far.peak_arrays, so_far.total_arrays.saturating_sub(so_far.arrays));
    fresh.bytes.open(so_far.peak_bytes, so_far.total_bytes.saturating_sub(held));
    Some(number)
}

/// Changes the limits of a node; returns those before. What was kept before that is drawn no more, and counts no more.
pub(crate) fn set(number: u32, budget: &Budget) -> Budget {
    let before = set_limits(node(number), budget);
    allowances::change();
    recall(number);
    before
}

fn set_limits(of: &BudgetNode, budget: &Budget) -> Budget {
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

/// What is charged to a node.
pub(crate) fn usage(number: u32) -> BudgetUse {
    recall(number);
    let of = node(number);
    let read = |at: &AtomicU64| at.load(Ordering::Relaxed);
    let ((bytes, total_bytes), (arrays, total_arrays)) = (of.bytes.exact(), of.arrays.exact());
    BudgetUse {
        bytes,
        // What waits to be granted is charged already, and not noted yet.
        peak_bytes: read(&of.bytes.peak).max(bytes),
        total_bytes,
        reserved_bytes: read(&of.reserved),
        arrays,
        peak_arrays: read(&of.arrays.peak).max(arrays),
        total_arrays,
        refused: read(&of.refused),
        soft_passed: read(&of.soft_passed),
    }
}

/// What [`charge`] or [`count_array`] has to record when it is settled: mostly nothing.
#[derive(Debug, Default)]
struct Deferred {
    /// Numbers that were never as high: they were that when all have granted it.
    risen: Vec<(&'static Meter, u64)>,
    /// Nodes whose soft limit it passed.
    passed: Vec<u32>,
    /// What was drawn on reservations of nodes, the lowest first.
    drawn: Vec<(u32, u64)>,
}

/// In a box, so that a charge is as small as can be.
#[derive(Debug, Default)]
struct Rare(Option<Box<Deferred>>);

impl Rare {
    #[cold]
    #[inline(never)]
    fn deferred(&mut self) -> &mut Deferred {
        self.0.get_or_insert_default()
    }

    /// Everybody has granted it.
    #[inline(always)]
    fn settle(self) {
        if let Some(deferred) = self.0 {
            deferred.settle();
        }
    }
}

impl Deferred {
    #[cold]
    fn settle(self) {
        for (meter, now) in self.risen {
            meter.peak.fetch_max(now, Ordering::Relaxed);
        }
        for at in self.passed {
            node(at).soft_passed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What [`charge`] did, until it is known whether there are the bytes.
#[derive(Debug)]
#[must_use]
pub(crate) struct Charge {
    /// The node; 0 if nobody is charged.
    number: u32,
    bytes: u64,
    rare: Rare,
}

impl Charge {
    /// Whether it passed a soft limit.
    #[inline(always)]
    pub(crate) fn is_above_soft(&self) -> bool {
        self.rare.0.as_ref().is_some_and(|deferred| !deferred.passed.is_empty())
    }

    /// There are the bytes. The node that they are charged to, or 0.
    #[inline(always)]
    pub(crate) fn settle(self) -> u32 {
        self.rare.settle();
        self.number
    }

    /// There are no bytes: as if nothing had been charged. What was drawn is reserved again; if the reservation ended
    /// meanwhile it is free.
    #[cold]
    pub(crate) fn revoke(self) {
        // Without a box: this may be where there is no memory.
        let drawn = self.rare.0.map_or_else(Vec::new, |deferred| deferred.drawn);
        let (mut left, mut free, mut drawn) = (self.bytes, 0, drawn.into_iter().peekable());
        for at in path(self.number, 0) {
            if let Some((_, some)) = drawn.next_if(|&(number, _)| number == at) {
                left -= some;
                free += some - node(at).reserve_again(some);
                allowances::change();
            }
            if left == 0 && free == 0 {
                // Those above were charged nothing.
                break;
            }
            // As long as bytes are charged to it, it does not end.
            let life = node(at).refs.load(Ordering::Relaxed);
            node(at).bytes.revoke(left);
            if free > 0 {
                free_bytes(node(at), at, free);
            }
            end_if_free(at, life);
        }
    }
}

/// Charges bytes to a node, which may be closed already, and those above. Of what was reserved as much is used as there
/// is. Invariant I14 (design.md).
///
/// # Errors
/// The lowest budget that refuses; nothing is charged.
#[inline]
pub(crate) fn charge(number: u32, bytes: u64) -> Result<Charge, OverBudget> {
    if number == 0 || bytes == 0 || charge_at_once(number, bytes, false).is_some() {
        return Ok(Charge { number, bytes, rare: Rare::default() });
    }
    match charge_from(number, 0, bytes, false, true) {
        Err(_) if node(number).bytes.charged.load(Ordering::Relaxed) & CLOSED != 0 => {
            Ok(Charge { number: 0, bytes: 0, rare: Rare::default() })
        }
        answer => answer,
    }
}

/// As [`charge`], for a new array, settled: where nothing is reserved, no soft limit counts arrays, none is passed, and
/// no number is higher than it ever was. Whether it counted the array too: of what the thread keeps, and `with_array`
/// alone. `None`: nothing is charged.
#[inline(always)]
pub(crate) fn charge_at_once(number: u32, bytes: u64, with_array: bool) -> Option<bool> {
    if allowances::draw(number, bytes, with_array.into()) {
        return Some(with_array);
    }
    charge_plainly(number, bytes).then_some(false)
}

#[inline(never)]
fn charge_plainly(number: u32, bytes: u64) -> bool {
    let mut at = number;
    loop {
        let of = node(at);
        let [reserved, soft_arrays, max_arrays, max, soft, peak] =
            [&of.reserved, &of.soft_arrays, &of.arrays.max, &of.bytes.max, &of.soft, &of.bytes.peak]
                .map(|number| number.load(Ordering::Relaxed));
        let is_plain = reserved == 0 && soft_arrays == NONE && (max_arrays == NONE || of.arrays.now() < max_arrays);
        if !is_plain || of.bytes.add_within(max.min(soft).min(peak), bytes, false).is_err() {
            take_back(number, at, bytes, &[]);
            // With what the thread keeps there may be room, or no new peak.
            return settle_own() && charge_plainly(number, bytes);
        }
        at = of.parent.load(Ordering::Relaxed);
        if at == 0 {
            return true;
        }
    }
}

/// There are no bytes after [`charge_at_once`], which counted an array or not.
#[cold]
pub(crate) fn revoke_at_once(number: u32, bytes: u64, with_array: bool) {
    if with_array {
        revoke_array(number);
    }
    take_back(number, 0, bytes, &[]);
}

/// What was counted with its bytes is no array of the node, if there is a node: as if it had never been counted. While
/// the bytes are still charged, so that the node is there; and nobody keeps it, who would have an array of a node that
/// ends with them.
#[cold]
#[inline(never)]
pub(crate) fn revoke_array(number: u32) {
    path(number, 0).for_each(|at| node(at).arrays.revoke(1));
}

/// As [`charge`], up to and without the node `end`, of bytes that there are.
#[inline(always)]
fn charge_to(number: u32, end: u32, bytes: u64, forced: bool) -> Result<(), OverBudget> {
    if number != end && number != 0 && bytes > 0 {
        charge_from(number, end, bytes, forced, true)?.settle();
    }
    Ok(())
}

/// What a charge took of a reservation. The node is locked until it is known whether the rest is granted.
struct ReservationDraw {
    node: u32,
    bytes: u64,
    _held: Unlock<'static>,
}

/// As [`charge_to`], where there is something to charge; `own`: also out of what this node itself has reserved.
fn charge_from(number: u32, end: u32, bytes: u64, forced: bool, own: bool) -> Result<Charge, OverBudget> {
    let (mut at, mut left, mut drawn, mut rare) = (number, bytes, Vec::new(), Rare::default());
    settle_own();
    loop {
        let of = node(at);
        // What moves below a node in common brings no bytes along that those above have reserved.
        if end == 0 && (own || at != number) && of.reserved.load(Ordering::Relaxed) != 0 {
            let held = of.drawing.hold();
            let some = draw(of, left);
            drawn.push(ReservationDraw { node: at, bytes: some, _held: held });
            left -= some;
            if left == 0 {
                break;
            }
        }
        let again = |_| {
            recall(at);
            of.bytes.add(left, forced)
        };
        let before = of.bytes.add(left, forced).or_else(again).map_err(|used| {
            // Asked first: with what is taken back, this node may end.
            let refusal = refused(at, used, left, false);
            take_back(number, at, bytes, &drawn);
            refusal
        })?;
        if of.bytes.rises_to(before + left) {
            rare.deferred().risen.push((&of.bytes, before + left));
        }
        of.bytes.note_forced(before + left, forced);
        let soft = of.soft.load(Ordering::Relaxed);
        if before <= soft && before + left > soft {
            rare.deferred().passed.push(at);
        }
        at = parent_of(at);
        if at == end || at == 0 {
            break;
        }
    }
    if !drawn.is_empty() {
        rare.deferred().drawn = drawn.iter().map(|draw| (draw.node, draw.bytes)).collect();
    }
    Ok(Charge { number, bytes, rare })
}

/// Takes back what [`charge_from`] did before the node `at` refused.
#[cold]
fn take_back(number: u32, at: u32, bytes: u64, drawn: &[ReservationDraw]) {
    for draw in drawn {
        node(draw.node).reserved.fetch_add(draw.bytes, Ordering::Relaxed);
        allowances::change();
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
fn draw(of: &BudgetNode, bytes: u64) -> u64 {
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

/// Bytes that were charged are free. A node above ends after it was told: until then it has the bytes.
#[inline]
pub(crate) fn discharge(number: u32, bytes: u64) {
    if number != 0 && !allowances::keep(number, bytes, 0) {
        discharge_plainly(number, bytes);
    }
}

#[cold]
#[inline(never)]
fn discharge_plainly(number: u32, bytes: u64) {
    if !keep_anew(number, bytes, 0) {
        discharge_to(number, 0, bytes);
    }
}

#[inline(always)]
fn discharge_to(number: u32, end: u32, bytes: u64) {
    if number != end && number != 0 && bytes > 0 {
        discharge_from(number, end, bytes);
    }
}

#[inline(never)]
fn discharge_from(number: u32, end: u32, bytes: u64) {
    let mut at = number;
    while at != end && at != 0 {
        let of = node(at);
        // Asked for before it may end.
        let above = of.parent.load(Ordering::Relaxed);
        free_bytes(of, at, bytes);
        at = above;
    }
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

/// What [`count_array`] did, until it is known whether the array comes in.
#[derive(Debug)]
#[must_use]
pub(crate) struct Count {
    number: u32,
    end: u32,
    rare: Rare,
}

impl Count {
    /// It has come in.
    #[inline(always)]
    pub(crate) fn settle(self) {
        self.rare.settle();
    }

    /// It has not: as if it had never been counted.
    #[cold]
    pub(crate) fn revoke(self) {
        path(self.number, self.end).for_each(|at| node(at).arrays.revoke(1));
    }
}

/// Counts an array with a node and those above, up to and without the node `end`.
///
/// # Errors
/// As [`charge`].
#[inline]
pub(crate) fn count_array(number: u32, end: u32, forced: bool) -> Result<Count, OverBudget> {
    let (mut at, mut rare) = (number, Rare::default());
    settle_own();
    while at != end && at != 0 {
        let of = node(at);
        let again = |_| {
            recall(at);
            of.arrays.add(1, forced)
        };
        match of.arrays.add(1, forced).or_else(again) {
            Ok(before) => {
                if of.arrays.rises_to(before + 1) {
                    rare.deferred().risen.push((&of.arrays, before + 1));
                }
                of.arrays.note_forced(before + 1, forced);
            }
            Err(used) => {
                let refusal = refused(at, used, 1, true);
                Count { number, end: at, rare }.revoke();
                return Err(refusal);
            }
        }
        at = parent_of(at);
    }
    Ok(Count { number, end, rare })
}

/// As [`count_array`] with all nodes above, settled: where no number is higher than it ever was. Else `false`, and
/// nothing is counted.
#[inline]
pub(crate) fn count_at_once(number: u32) -> bool {
    allowances::draw(number, 0, 1) || count_plainly(number)
}

#[inline(never)]
fn count_plainly(number: u32) -> bool {
    let mut at = number;
    while at != 0 {
        let BudgetNode { arrays, parent, .. } = node(at);
        let most = arrays.max.load(Ordering::Relaxed).min(arrays.peak.load(Ordering::Relaxed));
        if arrays.add_within(most, 1, false).is_err() {
            path(number, at).for_each(|below| node(below).arrays.revoke(1));
            // As in `charge_plainly`.
            return settle_own() && count_plainly(number);
        }
        at = parent.load(Ordering::Relaxed);
    }
    true
}

/// An array counted with a node is gone from it, and from those above, up to and without the node `end`.
#[inline]
pub(crate) fn uncount_array(number: u32, end: u32) {
    if number != end {
        uncount(number, end);
    }
}

/// A call of its own, so that an array without a budget keeps nothing for it; as the next one for one with.
#[inline(never)]
fn uncount(number: u32, end: u32) {
    if !(end == 0 && allowances::keep(number, 0, 1)) {
        uncount_anew(number, end);
    }
}

#[cold]
#[inline(never)]
fn uncount_anew(number: u32, end: u32) {
    if end != 0 || !keep_anew(number, 0, 1) {
        uncount_plainly(number, end);
    }
}

fn uncount_plainly(number: u32, end: u32) {
    let mut at = number;
    while at != end && at != 0 {
        let of = node(at);
        // Asked for before it may end.
        let above = of.parent.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `Meter::read`.
        of.arrays.freed.fetch_add(1, Ordering::Release);
        at = above;
    }
}

/// Which budget would refuse an array more now. None, if the thread keeps one.
#[inline]
pub(crate) fn full(number: u32) -> Option<OverBudget> {
    if allowances::has_array(number) {
        return None;
    }
    let fullest = |at: u32| {
        let (max, now) = (node(at).arrays.max.load(Ordering::Relaxed), node(at).arrays.now());
        (max != NONE && now >= max).then(|| refused(at, now, 1, true))
    };
    path(number, 0).find_map(|at| {
        fullest(at).and_then(|_| {
            recall(at);
            fullest(at)
        })
    })
}

/// Whether a workspace that has made so many arrays in its cycle may make another one.
pub(crate) fn full_cycle(number: u32, arrays: u64) -> Option<OverBudget> {
    let is_full = arrays >= node(number).arrays.max.load(Ordering::Relaxed);
    is_full.then(|| refused(number, arrays, 1, true))
}

/// Notes how many arrays a workspace made in a cycle.
pub(crate) fn note_cycle(number: u32, arrays: u64) {
    let of = node(number);
    of.arrays.peak.fetch_max(arrays, Ordering::Relaxed);
    if arrays > of.soft_arrays.load(Ordering::Relaxed) {
        of.soft_passed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a request that ended in this refusal.
pub(crate) fn count_refusal(refusal: &OverBudget) {
    node(refusal.node).refused.fetch_add(1, Ordering::Relaxed);
}

/// Whether so many arrays more pass a soft limit on arrays, and it was not passed when this was asked last.
#[inline]
pub(crate) fn passes_soft_arrays(number: u32, more: u64) -> bool {
    let mut passes = false;
    for at in path(number, 0) {
        let of = node(at);
        let soft = of.soft_arrays.load(Ordering::Relaxed);
        if soft == NONE {
            continue;
        }
        let has = u32::from(of.arrays.now() + more > soft);
        if of.has_soft_arrays.swap(has, Ordering::Relaxed) < has {
            of.soft_passed.fetch_add(1, Ordering::Relaxed);
            passes = true;
        }
    }
    passes
}

/// How often soft limits of this budget, and of those above it, were passed.
pub(crate) fn soft_passed(number: u32) -> u64 {
    path(number, 0).map(|at| node(at).soft_passed.load(Ordering::Relaxed)).sum()
}

/// The lowest budget that is above a soft limit now; of arrays, with so many more.
pub(crate) fn above_soft(number: u32, more: u64) -> Option<OverBudget> {
    path(number, 0).find_map(|at| {
        let of = node(at);
        let manager = of.manager.load(Ordering::Relaxed);
        let over = |is_arrays, used: u64, soft: &AtomicU64| {
            let max = soft.load(Ordering::Relaxed);
            (used > max).then_some(OverBudget { node: at, manager, used, max, asked: 0, is_arrays })
        };
        over(false, of.bytes.now(), &of.soft).or_else(|| over(true, of.arrays.now() + more, &of.soft_arrays))
    })
}

/// Which budget would refuse so many bytes now, if so many that it has were given back before.
pub(crate) fn refuses(number: u32, bytes: u64, instead_of: u64) -> Option<OverBudget> {
    let ask = || {
        let mut bytes = bytes;
        path(number, 0).find_map(|at| {
            let of = node(at);
            bytes = bytes.saturating_sub(of.reserved.load(Ordering::Relaxed));
            // As `Meter::add` has it.
            let used = of.bytes.now().saturating_sub(instead_of);
            let sum = used.saturating_add(bytes);
            let fits = bytes == 0 || (sum <= of.bytes.max.load(Ordering::Relaxed) && sum < CLOSED);
            (!fits).then(|| refused(at, used, bytes, false))
        })
    };
    // The lowest that refuses, each once: those above may have less than they say, too.
    let mut asked = 0;
    loop {
        let refusal = ask()?;
        if refusal.node == asked {
            return Some(refusal);
        }
        asked = refusal.node;
        recall(asked);
    }
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
    charge_from(number, 0, bytes, false, false)?.settle();
    let of = node(number);
    of.drawing.with(|()| {
        for sum in [&of.promised, &of.reserved] {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    });
    allowances::change();
    Ok(())
}

/// Ends what [`reserve`] began, or less, in a node that was retained for it: what is left is free.
pub(crate) fn unreserve(number: u32, bytes: u64) {
    if number != 0 {
        let of = node(number);
        let left = of.drawing.with(|()| {
            of.promised.fetch_sub(bytes, Ordering::Relaxed);
            draw(of, bytes)
        });
        allowances::change();
        discharge(number, left);
        release(number);
    }
}
