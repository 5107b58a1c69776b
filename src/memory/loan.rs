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
    threads::{Counts, ThreadContext},
};

/// Notes who lends. The caller has taken the array from `lender`.
pub(crate) fn begin(index: u32, lender: Owner) {
    LENDERS.entry(index).or_default().push(lender);
    slot(index).core.set(LENT);
}

/// Undoes the last [`begin`].
pub(crate) fn undo(index: u32) {
    if let Some(mut lenders) = LENDERS.get_mut(&index) {
        lenders.pop();
    }
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

/// Gives a taken array to its nearest open lender. `false` if there is none: it is still taken.
pub(crate) fn give_back(context: &ThreadContext, key: Key) -> bool {
    let index = key.index();
    if slot(index).core.state() & LENT == 0 {
        return false;
    }
    loop {
        // The guard of the table is gone before the array is put anywhere.
        let lender = LENDERS.get_mut(&index).and_then(|mut lenders| lenders.pop());
        let Some(lender) = lender else {
            forget_lenders(index);
            return false;
        };
        if LENDERS.get(&index).is_none_or(|rest| rest.is_empty()) {
            forget_lenders(index);
        }
        if owner::put((index, slot(index)), lender, Entry::Returned).is_ok() {
            end_if_kept(context, key, lender);
            return true;
        }
    }
}

/// An array without a handle that went back to its handles has nobody: it ends.
fn end_if_kept(context: &ThreadContext, key: Key, lender: Owner) {
    // SeqCst: pairs with `Slot::keep` and the look at the owner after it in `registry::drop_proxy`. If that look comes
    // first, it may find the manager and leave the count kept, but the state below has the bit; if the fence does, it
    // finds the handles.
    fence(Ordering::SeqCst);
    let core = &slot(key.index()).core;
    if lender == Owner::Handles && core.state() & KEPT != 0 && core.unkeep(key.generation()) {
        Counts::bump(&context.record.counts.unkept, 1);
        registry::end_orphan(context, key.index(), slot(key.index()));
    }
}
