//! The switch: whether the last proxy's drop ends an array that a manager owns. Off by default.
//!
//! One word for the process. It is read once at each creation and at each last drop; it also carries what
//! makes every call refuse to work: an environment variable that cannot be understood, and a `fork`.

use crate::base::{
    env,
    error::{Error, Result},
    sync::{AtomicU32, Ordering},
    system,
};
use crate::device::host::pool;

/// The environment was not read yet.
const UNREAD: u32 = 0;
const OFF: u32 = 1;
const ON: u32 = 2;
/// The environment does not say understandably how the switch stands.
const WRONG: u32 = 3;
/// This is the child of a process that used the runtime.
const FORKED: u32 = 4;
/// A limit of the environment cannot be understood, whatever the switch.
const WRONG_LIMIT: u32 = 5;

static MODE: AtomicU32 = AtomicU32::new(UNREAD);

/// Whether reclaiming is on. For drops: reads no environment, cannot fail.
#[inline]
pub(crate) fn reclaiming() -> bool {
    // Relaxed: the switch orders nothing; a drop beside a change may fall on either side.
    MODE.load(Ordering::Relaxed) == ON
}

/// Whether this is a forked child. For drops.
#[inline]
pub(crate) fn forked() -> bool {
    // Relaxed: set by the child's only thread before it runs anything else.
    MODE.load(Ordering::Relaxed) == FORKED
}

/// Whether [`check`] would let a call pass without a further look.
#[inline]
pub(crate) fn is_settled() -> bool {
    // Relaxed: as in `reclaiming`.
    matches!(MODE.load(Ordering::Relaxed), OFF | ON)
}

/// The entry check, which every call passes.
#[inline]
pub(crate) fn check(op: &'static str) -> Result<()> {
    if is_settled() { Ok(()) } else { check_slow(op) }
}

#[cold]
fn check_slow(op: &'static str) -> Result<()> {
    if forked() {
        return Err(Error::forked(op));
    }
    env::warn_unknown_once();
    let wrong = |mode, (name, value, expected)| {
        // Relaxed: as in `reclaiming`, here and below.
        MODE.store(mode, Ordering::Relaxed);
        Err(Error::Environment { name, value, expected })
    };
    // A program that is to have a limit does not run without one.
    if let Some(limit) = pool::unreadable_limit() {
        return wrong(WRONG_LIMIT, limit);
    }
    let mode = match env::var("NDGC") {
        None => OFF,
        Some(value) => match value.as_str() {
            "on" => ON,
            "off" => OFF,
            _ => return wrong(WRONG, ("NDGC", value, "on or off")),
        },
    };
    // Another thread may have called `gc::on` meanwhile; its word stands.
    let _ = MODE.compare_exchange(UNREAD, mode, Ordering::Relaxed, Ordering::Relaxed);
    Ok(())
}

/// From now on a forked child finds that it is one.
pub(crate) fn watch_forks() {
    system::store_in_children(&MODE, FORKED);
}

/// Sets the switch; returns how it stood.
pub(crate) fn set(on: bool) -> bool {
    let before = is_on();
    // Relaxed: as in `reclaiming`, here and below.
    if ![FORKED, WRONG_LIMIT].contains(&MODE.load(Ordering::Relaxed)) {
        MODE.store(if on { ON } else { OFF }, Ordering::Relaxed);
    }
    before
}

/// Whether reclaiming is on, after reading the environment if nobody did yet.
pub(crate) fn is_on() -> bool {
    // A variable that cannot be understood is reported by the call that makes an array.
    let _ = check("gc::is_on");
    reclaiming()
}
