//! Lending: an array that is with a manager for a while, and goes back to where it came from.
//!
//! The lenders of an array form a stack, kept in a side table (`owner.rs`) under the array's slot. When the borrower
//! closes, the array goes to the nearest lender that is still open; if none is, it ends with the borrower. So chains
//! may close in any order.

use crate::base::sync::{Ordering, fence};
use crate::memory::{
    key::Key,
    owner::{self, Entry, LENDERS, Owner, forget_lenders},
    registry::{self, slot},
    slot::{KEPT, LENT},
    threads::ThreadContext,
};

/// Notes who lends. The caller has taken the array from `lender`.
pub(crate) fn begin(index: u32, lender: Owner) {
    LENDERS.entry(index).or_default().push(lender);
    slot(index).core.set(LENT);
}

/// Undoes the last [`begin`].
pub(crate) fn undo(index: u32) {
    take_lender(index);
}

/// The lender that was noted last, which is noted no more.
fn take_lender(index: u32) -> Option<Owner> {
    // The guard of the table is gone before anything else is done with the array.
    let found = LENDERS.get_mut(&index).map(|mut lenders| (lenders.pop(), lenders.is_empty()));
    if let None | Some((_, true)) = found {
        forget_lenders(index);
    }
    found.and_then(|(lender, _)| lender)
}

/// Ends all lending of an array that the caller has taken, and returns who lent it, to be [`restore`]d.
pub(crate) fn end(index: u32) -> Option<Vec<Owner>> {
    if slot(index).core.state() & LENT == 0 {
        return None;
    }
    slot(index).core.clear(LENT);
    LENDERS.remove(&index).map(|(_, lenders)| lenders)
}

/// Undoes [`end`].
pub(crate) fn restore(index: u32, lenders: Option<Vec<Owner>>) {
    if let Some(lenders) = lenders {
        LENDERS.insert(index, lenders);
        slot(index).core.set(LENT);
    }
}

/// Gives a taken array, which this budget goes on counting, to its nearest open lender, which is returned. If there is
/// none, it is still taken, and counted. What went back to its handles may have none: see [`end_if_kept`].
pub(crate) fn give_back(index: u32, counted: u32) -> Option<Owner> {
    if slot(index).core.state() & LENT == 0 {
        return None;
    }
    loop {
        let lender = take_lender(index)?;
        if owner::put_from((index, slot(index)), lender, Entry::Returned, counted).is_ok() {
            return Some(lender);
        }
    }
}

/// An array without a handle that went back to its handles has nobody: it ends. The caller has no other array taken
/// from its owner: what ends may be the user's, who may ask for it.
pub(crate) fn end_if_kept(context: &ThreadContext, key: Key, lender: Owner) {
    // SeqCst: pairs with `Slot::keep` and the look at the owner after it in `registry::drop_proxy`. If that look comes
    // first, it may find the manager and leave the count kept, but the state below has the bit; if the fence does, it
    // finds the handles.
    fence(Ordering::SeqCst);
    let core = &slot(key.index()).core;
    if lender == Owner::Handles && core.state() & KEPT != 0 && core.unkeep(key.generation()) {
        context.record.counts.count_unkept();
        registry::end_orphan(context, key.index(), slot(key.index()));
    }
}
