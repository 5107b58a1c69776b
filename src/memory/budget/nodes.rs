//! Nodes: what is above them, who refers to them, their ends, and what threads keep of them.
//!
//! Relaxed throughout, where nothing else is said, as in `budget.rs`.
//!
//! # The end of a node
//! It is used again when its manager or workspace, the nodes below it and its reservations are gone (`refs`) and no
//! byte is charged to it. Who drops the last reference sets the highest bit of `charged`; from then on nothing is
//! charged. Whoever then finds that all bytes were freed ends the node, the one of them that counts its lives on. What
//! threads keep of it is asked for then; what one keeps at that very moment goes back with its next call.

use std::sync::{Mutex, PoisonError};

use crate::base::sync::{AtomicU32, AtomicU64, Ordering, SpinLock};
use crate::memory::{
    allowance::{Allowance, Settlement},
    budget::{
        allowances,
        meter::{CLOSED, Meter, NONE},
        refusal::WORKSPACES,
    },
    slab::slab,
    switch,
};

/// The most bytes and arrays that a thread keeps of a node, and the part of its limits that they may be.
const MOST_BYTES: u64 = 64 << 10;
const MOST_ARRAYS: u64 = 64;
const SHARE: u64 = 64;

/// In `refs`: one life more.
const LIFE: u64 = 1 << 32;

/// A budget and what is charged to it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct BudgetNode {
    pub(super) bytes: Meter,
    pub(super) soft: AtomicU64,
    pub(super) soft_arrays: AtomicU64,
    /// Whether there are as many arrays as that, or more, and it was told.
    pub(super) has_soft_arrays: AtomicU32,
    /// What is reserved and not drawn, and what its reservations are for: changed under the lock.
    pub(super) reserved: AtomicU64,
    pub(super) promised: AtomicU64,
    /// Held by who draws on what is reserved, until it is known whether the rest is granted, and by who begins or ends
    /// a reservation.
    pub(super) drawing: SpinLock<()>,
    pub(super) arrays: Meter,
    /// The node above.
    pub(super) parent: AtomicU32,
    /// Who refers to it, below [`LIFE`], and how many lives it had.
    pub(super) refs: AtomicU64,
    pub(super) manager: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) soft_passed: AtomicU64,
}

slab!(NODES: BudgetNode = BudgetNode {
    bytes: Meter::closed(),
    soft: AtomicU64::new(NONE),
    soft_arrays: AtomicU64::new(NONE),
    has_soft_arrays: AtomicU32::new(0),
    reserved: AtomicU64::new(0),
    promised: AtomicU64::new(0),
    drawing: SpinLock::new(()),
    arrays: Meter::closed(),
    parent: AtomicU32::new(0),
    refs: AtomicU64::new(0),
    manager: AtomicU64::new(0),
    refused: AtomicU64::new(0),
    soft_passed: AtomicU64::new(0),
});

static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Nodes of managers that there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Whether any manager has a budget.
#[inline(always)]
pub(crate) fn is_in_use() -> bool {
    // What a manager has is read again under the lock of its list.
    COUNT.load(Ordering::Relaxed) != 0
}

impl BudgetNode {
    /// Reserves again what was drawn, as far as there still are reservations that it was for. How much that is.
    pub(super) fn reserve_again(&self, bytes: u64) -> u64 {
        self.drawing.with(|()| {
            let free = self.promised.load(Ordering::Relaxed).saturating_sub(self.reserved.load(Ordering::Relaxed));
            self.reserved.fetch_add(bytes.min(free), Ordering::Relaxed);
            bytes.min(free)
        })
    }
}

pub(super) fn node(number: u32) -> &'static BudgetNode {
    NODES.get(number - 1)
}

/// A node that nobody refers to, of a manager if `manager` is not 0. `None` if there are too many.
pub(super) fn take(manager: u64) -> Option<u32> {
    let number = NODES.take_from(&mut FREE.lock().unwrap_or_else(PoisonError::into_inner))? + 1;
    COUNT.fetch_add(u32::from(manager != 0), Ordering::Relaxed);
    Some(number)
}

/// The key of the manager whose node it is.
pub(crate) fn manager_of(number: u32) -> u64 {
    node(number).manager.load(Ordering::Relaxed)
}

/// The node above, or 0.
pub(crate) fn parent_of(number: u32) -> u32 {
    node(number).parent.load(Ordering::Relaxed)
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
    while let Some(above) = release_one(at) {
        at = above;
    }
}

/// As [`release`], of this node alone: the node above, if this one ended.
fn release_one(number: u32) -> Option<u32> {
    // AcqRel: pairs with itself in the others: the last one comes after them.
    if number == 0 || node(number).refs.fetch_sub(1, Ordering::AcqRel) % LIFE != 1 {
        return None;
    }
    let of = node(number);
    let life = of.refs.load(Ordering::Relaxed);
    of.arrays.charged.fetch_or(CLOSED, Ordering::Relaxed);
    // SeqCst: pairs with `free_bytes`: of this and what frees the last bytes, the later one finds the other.
    let before = of.bytes.charged.fetch_or(CLOSED, Ordering::SeqCst);
    if before & CLOSED == 0 {
        allowances::change();
        recall(number);
    }
    ended_if_free(number, life)
}

/// Ends the node if nobody refers to it and all that was charged to it was freed. `life`: its references at a time when
/// it surely had not ended.
pub(super) fn end_if_free(number: u32, life: u64) {
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
    // AcqRel: pairs with `release_one` and with itself: who ends the node comes after all who used it, and of several,
    // and of those that come too late, it picks one.
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
        WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| *of != number);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    FREE.lock().unwrap_or_else(PoisonError::into_inner).push(number - 1);
    parent
}

/// The nodes from one up to, and without, another one that is above it or 0.
pub(super) fn path(from: u32, to: u32) -> impl Iterator<Item = u32> {
    // What comes next is asked for before the end is seen.
    let above = |&number: &u32| (number != 0).then(|| parent_of(number));
    std::iter::successors(Some(from), above).take_while(move |&number| number != to && number != 0)
}

/// The lowest node that is above both, or is one of them; 0 if none is.
pub(crate) fn common(a: u32, b: u32) -> u32 {
    let [of_a, of_b] = [a, b].map(|number| path(number, 0).count());
    let [below_a, below_b] = [of_a.saturating_sub(of_b), of_b.saturating_sub(of_a)];
    // From the same height on.
    let mut above = path(a, 0).skip(below_a).zip(path(b, 0).skip(below_b));
    above.find(|(one, other)| one == other).map_or(0, |(found, _)| found)
}

#[inline]
pub(super) fn free_bytes(of: &BudgetNode, number: u32, bytes: u64) {
    // Relaxed: as long as bytes are charged to it, it does not end.
    let life = of.refs.load(Ordering::Relaxed);
    // SeqCst: pairs with `release_one`, and as Release with the Acquire in `Meter::read`.
    of.bytes.freed.fetch_add(bytes, Ordering::SeqCst);
    // SeqCst: as in `end_if_free`, which looks again.
    if of.bytes.charged.load(Ordering::SeqCst) & CLOSED != 0 {
        end_if_free(number, life);
    }
}

/// After [`allowances::keep`] would not: whether the thread begins with this node, and keeps them after all.
pub(super) fn keep_anew(number: u32, bytes: u64, arrays: u64) -> bool {
    let (Some(own), version) = (allowances::own(), allowances::version()) else { return false };
    let is_other = !own.is_of(number, version);
    if bytes > MOST_BYTES || manager_of(number) == 0 || !(if is_other { own.turns(version) } else { own.is_worn() }) {
        return false;
    }
    settle(own);
    // Above a limit each array is refused, until enough are gone.
    let Some(most) = most_kept(number) else { return false };
    own.begin(number, version, most);
    own.keep(number, version, bytes, arrays)
}

/// How many bytes and arrays a thread may keep of a node: of small budgets a small part, nothing where somebody has to
/// see each array. `None` where more is charged than there may be.
fn most_kept(number: u32) -> Option<(u64, u64)> {
    let mut most = (MOST_BYTES, MOST_ARRAYS);
    for at in path(number, 0) {
        let of = node(at);
        // Relaxed: who changed it, changed the version after that.
        let [soft, soft_arrays, reserved, charged, max, max_arrays] =
            [&of.soft, &of.soft_arrays, &of.reserved, &of.bytes.charged, &of.bytes.max, &of.arrays.max]
                .map(|number| number.load(Ordering::Relaxed));
        if of.bytes.now() > max || of.arrays.now() > max_arrays {
            return None;
        }
        most = (most.0.min(max / SHARE), most.1.min(max_arrays / SHARE));
        if soft != NONE || soft_arrays != NONE || reserved != 0 || charged & CLOSED != 0 {
            most = (0, 0);
        }
    }
    Some(most)
}

/// A thread ends: what it kept goes back.
pub(crate) fn leave(own: &'static Allowance) {
    release(allowances::leave(own, credit).unwrap_or(0));
}

/// What the thread keeps goes back to its node. Whether it did: not, where there is nothing, or another thread is about
/// to take it.
#[cold]
#[inline(never)]
pub(super) fn settle_own() -> bool {
    allowances::own().filter(|own| own.has_of().is_some()).is_some_and(settle)
}

fn settle(own: &Allowance) -> bool {
    own.hand_over(credit).map(release).is_some()
}

/// What threads keep of a node and of those below it goes back. Of workspaces none is kept.
#[cold]
pub(super) fn recall(number: u32) {
    if manager_of(number) == 0 || switch::forked() {
        return;
    }
    let is_below = |of: u32| path(of, 0).any(|above| above == number);
    let (mut next, mut held) = (0, [0; 16]);
    loop {
        let found = allowances::recall_some(&mut next, is_below, credit, &mut held);
        held[..found].iter().for_each(|&number| release(number));
        if found < held.len() {
            return;
        }
    }
}

/// Gives a node, and those above, what was kept. The node, to be released, or 0: with the last bytes it may end.
fn credit(kept: Settlement) -> u32 {
    let Settlement { node: number, bytes, arrays } = kept;
    // As long as bytes are charged to it, it does not end. Nor where there are arrays alone: these were freed before
    // their manager let go of the node, under the lock of its list; the end of the node asks for them, and waits.
    let held = if bytes.0 > 0 { number } else { 0 };
    retain(held);
    for at in path(number, 0) {
        let of = node(at);
        for (meter, (left, drawn)) in [(&of.bytes, bytes), (&of.arrays, arrays)] {
            if drawn > 0 {
                // Relaxed: a number, as everywhere here.
                meter.drawn.fetch_add(drawn, Ordering::Relaxed);
            }
            if left > 0 {
                // SeqCst: as in `free_bytes`; as Release it pairs with the Acquire in `Meter::read`.
                meter.freed.fetch_add(left, Ordering::SeqCst);
            }
        }
    }
    held
}
