//! What a budget grants without more ado: nothing is noted beside it, and so nothing waits to be settled.
//!
//! Relaxed throughout, as in `budget.rs`.

use crate::base::sync::Ordering;
use crate::memory::budget::{Node, meter::NONE, node, path, take_back};

/// As [`charge`](super::charge), for a new array, settled: where nothing is reserved, no soft limit counts arrays, none
/// is passed, and no number is higher than it ever was. Else `false`, and nothing is charged.
pub(crate) fn charge_at_once(number: u32, bytes: u64) -> bool {
    let mut at = number;
    loop {
        let of = node(at);
        let [reserved, soft_arrays, max_arrays, max, soft, peak] =
            [&of.reserved, &of.soft_arrays, &of.arrays.max, &of.bytes.max, &of.soft, &of.bytes.peak]
                .map(|number| number.load(Ordering::Relaxed));
        let is_plain = reserved == 0 && soft_arrays == NONE && (max_arrays == NONE || of.arrays.now() < max_arrays);
        if !is_plain || of.bytes.add_within(max.min(soft).min(peak), bytes, false).is_err() {
            take_back(number, at, bytes, &[]);
            return false;
        }
        at = of.parent.load(Ordering::Relaxed);
        if at == 0 {
            return true;
        }
    }
}

/// There are no bytes after [`charge_at_once`].
#[cold]
pub(crate) fn revoke_at_once(number: u32, bytes: u64) {
    take_back(number, 0, bytes, &[]);
}

/// As [`count_array`](super::count_array) with all nodes above, settled: where no number is higher than it ever was. Else
/// `false`, and nothing is counted.
#[inline]
pub(crate) fn count_at_once(number: u32) -> bool {
    let mut at = number;
    while at != 0 {
        let Node { arrays, parent, .. } = node(at);
        let most = arrays.max.load(Ordering::Relaxed).min(arrays.peak.load(Ordering::Relaxed));
        if arrays.add_within(most, 1, false).is_err() {
            path(number, at).for_each(|below| node(below).arrays.revoke(1));
            return false;
        }
        at = parent.load(Ordering::Relaxed);
    }
    true
}
