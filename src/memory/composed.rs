//! Whose the arrays are that a thread makes: steps of an operation that is composed of others, or the program's own.

use std::cell::Cell;

use crate::base::error::Site;
use crate::memory::{budget, owner::Owner};

thread_local! {
    /// The owner of a composed operation's result, where budgets are in use: its steps are charged to that one's.
    static PAYER: Cell<Option<Owner>> = const { Cell::new(None) };
    /// Set while an operation is composed of others: the place of the call that asked for it.
    static COMPOSITE: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Puts back whose steps these are, also after a panic.
pub(crate) struct Restore(Option<Site>);

impl Drop for Restore {
    #[inline]
    fn drop(&mut self) {
        COMPOSITE.set(self.0);
        note_owner(|| None);
    }
}

/// Until the answer falls, what this thread makes is part of a call that was made at `site`, or of the one that asked
/// for that.
#[inline]
pub(crate) fn begin(site: Site) -> Restore {
    let before = COMPOSITE.get();
    COMPOSITE.set(Some(before.unwrap_or(site)));
    Restore(before)
}

/// Inside an operation composed of others, the place of the call that asked for it.
#[inline]
pub(crate) fn composite_site() -> Option<Site> {
    COMPOSITE.get()
}

/// Notes who will own the result of a composed operation, where budgets are in use. The outermost one counts.
#[inline]
pub(crate) fn note_owner(owner: impl FnOnce() -> Option<Owner>) {
    if budget::is_in_use() && composite_site().is_none() {
        PAYER.set(owner());
    }
}

/// Who was noted.
pub(crate) fn noted_owner() -> Option<Owner> {
    PAYER.get()
}

/// Puts back whose steps these are, and who pays, also after a panic.
struct Interlude {
    payer: Option<Owner>,
    _restore: Restore,
}

impl Interlude {
    #[inline(never)]
    fn begin() -> Self {
        Interlude { _restore: Restore(COMPOSITE.take()), payer: PAYER.take() }
    }
}

impl Drop for Interlude {
    #[inline(never)]
    fn drop(&mut self) {
        PAYER.set(self.payer);
    }
}

/// Runs the user's code inside an operation: what it makes is made by its own lines, for its own owners.
pub(crate) fn users<R>(f: impl FnOnce() -> R) -> R {
    let _interlude = Interlude::begin();
    f()
}
