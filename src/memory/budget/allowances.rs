//! What threads keep of budgets to themselves: where each has it, and how others get at it. Of what was kept before a
//! node changed nothing is drawn, by a number that each thread compares, `VERSION`; it goes back at its thread's next
//! call, or when it is recalled.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::base::sync::{AtomicU64, Ordering};
use crate::memory::{
    allowance::{Allowance, Settlement},
    hazard::heavy,
};

#[repr(align(128))]
struct Version(AtomicU64);

/// How often a node was changed, of all nodes.
static VERSION: Version = Version(AtomicU64::new(0));

/// All that there ever were; the lock is held by who takes what others keep.
static ALL: Mutex<Vec<&'static Allowance>> = Mutex::new(Vec::new());
/// Those of threads that ended.
static FREE: Mutex<Vec<&'static Allowance>> = Mutex::new(Vec::new());

thread_local! {
    /// The thread's own, from its first call to its end. Has no destructor.
    static OWN: Cell<Option<&'static Allowance>> = const { Cell::new(None) };
}

/// A thread begins.
pub(crate) fn enlist() -> &'static Allowance {
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let own = free.unwrap_or_else(|| {
        let own: &'static Allowance = Box::leak(Box::new(Allowance::new()));
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(own);
        own
    });
    OWN.set(Some(own));
    own
}

/// A thread ends: what it kept goes back by `credit`.
pub(super) fn leave<R>(own: &'static Allowance, credit: impl FnOnce(Settlement) -> R) -> Option<R> {
    OWN.set(None);
    let credited = own.hand_over(credit);
    FREE.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    credited
}

/// That of the calling thread, if it has begun and has not ended.
#[inline(always)]
pub(super) fn own() -> Option<&'static Allowance> {
    OWN.get()
}

/// A node was changed: nothing that is kept of any is drawn again.
pub(super) fn change() {
    // Release: pairs with the Acquire in `version`.
    VERSION.0.fetch_add(1, Ordering::Release);
}

/// Of all nodes: what comes after it sees all changes that it counts.
pub(super) fn version() -> u64 {
    // Acquire: pairs with the Release in `change`.
    VERSION.0.load(Ordering::Acquire)
}

/// Takes bytes and arrays of what the thread keeps of a node, if it has that.
#[inline(always)]
pub(super) fn draw(number: u32, bytes: u64, arrays: u64) -> bool {
    // Relaxed: who was told of a change sees it.
    OWN.get().is_some_and(|own| own.draw(number, VERSION.0.load(Ordering::Relaxed), bytes, arrays))
}

/// Whether the thread keeps an array of a node.
#[inline(always)]
pub(super) fn has_array(number: u32) -> bool {
    // Relaxed: as above.
    OWN.get().is_some_and(|own| own.has_array(number, VERSION.0.load(Ordering::Relaxed)))
}

/// Keeps bytes and arrays of a node that were freed, if the thread keeps some of it and there is room.
#[inline(always)]
pub(super) fn keep(number: u32, bytes: u64, arrays: u64) -> bool {
    // Relaxed: as above.
    OWN.get().is_some_and(|own| own.keep(number, VERSION.0.load(Ordering::Relaxed), bytes, arrays))
}

/// What threads keep of nodes that `is_asked` goes back by `credit`, of as many threads from the one with number `next`
/// on as there is room for answers. Returns how many those are. Nobody asks for the same meanwhile.
pub(super) fn recall_some(
    next: &mut usize,
    is_asked: impl Fn(u32) -> bool,
    credit: impl Fn(Settlement) -> u32,
    answers: &mut [u32],
) -> usize {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let is_own = |one: &Allowance| OWN.get().is_some_and(|own| std::ptr::eq(own, one));
    let (first, mut found, mut others) = (*next, 0, false);
    for one in &all[first..] {
        if found == answers.len() {
            break;
        }
        *next += 1;
        if one.has_of().is_some_and(&is_asked) {
            one.claim();
            found += 1;
            others |= !is_own(one);
        }
    }
    if others {
        // Whoever has begun is interrupted; who begins now finds the lock held, and then all that came before.
        heavy(u32::MAX);
    }
    let claimed = all[first..*next].iter().filter(|one| one.is_claimed());
    claimed.zip(answers).for_each(|(one, answer)| *answer = one.recall(&credit));
    found
}
