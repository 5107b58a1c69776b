//! What is told of an array: its name, where it was made, and why it cannot be used any more.

use crate::base::{
    call::Asked,
    dtype::DType,
    error::{Closer, Error, Site, StaleArray},
    leak::LeakedArray,
    sync::Ordering,
};
use crate::memory::{
    key::Key,
    registry::{
        ending::drop_proxy,
        slots::{NAMES, slot, upgrade_index},
    },
    slot::{CYCLE, NAMED, OPEN, generation_of},
    threads::with_context,
    workspace::validity::{self, CycleInfo},
};

/// The array's name, if it has one.
pub(crate) fn name(key: Key) -> Option<String> {
    let cell = slot(key.index());
    (cell.core.state() & NAMED != 0).then(|| NAMES.get(&key.index()).map(|name| name.clone())).flatten()
}

/// Names an array. The caller borrows a proxy of it.
pub(crate) fn set_name(key: Key, name: &str) {
    NAMES.insert(key.index(), name.to_owned());
    slot(key.index()).core.set(NAMED);
}

/// The array's name, or its key.
pub(crate) fn describe(key: Key) -> String {
    match name(key) {
        Some(name) => format!("`{name}` ({key})"),
        None => key.to_string(),
    }
}

/// Where the array was made.
pub(crate) fn created(index: u32) -> Option<Site> {
    slot(index).created.load()
}

/// Milliseconds from when the array was made to `now`, which is no earlier.
pub(crate) fn age_millis(index: u32, now: u32) -> u32 {
    // Relaxed: written before the slot was opened.
    now.wrapping_sub(slot(index).born.load(Ordering::Relaxed))
}

/// The error for a key whose array ended, with everything its slot still knows.
#[cold]
pub(crate) fn stale(call: impl Into<Asked>, key: Key) -> Error {
    stale_operand(call, key, 0)
}

/// As [`stale`], for an operand; the first is 0.
#[cold]
pub(crate) fn stale_operand(call: impl Into<Asked>, key: Key, operand: usize) -> Error {
    let call = call.into();
    let cell = slot(key.index());
    let state = cell.core.state();
    let same = generation_of(state) == key.generation();
    // One with a recorded gradient is closed when its cycle ends, by nobody that has a name.
    // Relaxed, here and below: of a slot that is closing or closed, written before its state said so (`close_taken`).
    let by_nobody = closer(cell.closer.load(Ordering::Relaxed)) == Closer::Unknown;
    if same && state & CYCLE != 0 && (state & OPEN != 0 || by_nobody) {
        return leaked(call, key, operand);
    }
    Error::StaleArray(Box::new(StaleArray {
        site: call.site,
        op: call.op,
        array: if same { describe(key) } else { key.to_string() },
        created: if same { created(key.index()) } else { None },
        closed_by: if same { closer(cell.closer.load(Ordering::Relaxed)) } else { Closer::Unknown },
        closed: if same { cell.closed.load() } else { None },
    }))
}

/// The error for an array that ended with its cycle.
fn leaked(Asked { op, site }: Asked, key: Key, operand: usize) -> Error {
    let cell = slot(key.index());
    let CycleInfo { workspace, cycle, now, state, is_ring, thread } = validity::about(cell.cycle_id());
    // The caller's handle may be used up already: a count of one's own, while the slot is read.
    let held = upgrade_index(key.index());
    let shown = held.filter(|&held| held == key).map(|_| cell.metadata.get(cell.core.state()));
    let (shape, dtype) = shown.map_or((Vec::new(), DType::F32), |of| (of.layout.dims().to_vec(), of.dtype));
    if let Some(held) = held {
        drop_proxy(held);
    }
    Error::LeakedArray(Box::new(LeakedArray {
        site,
        op,
        // ND4J's letters, and numbers from the fourth on.
        operand: ['X', 'Y', 'Z', '4', '5', '6', '7', '8', '9'].get(operand).copied().unwrap_or('?'),
        array: describe(key),
        shape,
        dtype,
        workspace,
        cycle,
        now,
        state,
        created: created(key.index()),
        is_ring,
        thread,
        open: with_context(|context| context.workspaces.open_names()),
    }))
}

fn closer(number: u32) -> Closer {
    [Closer::User, Closer::Manager, Closer::ManagerDrop, Closer::Ancestor, Closer::Reaper, Closer::Failure]
        .into_iter()
        .find(|closer| *closer as u32 == number)
        .unwrap_or(Closer::Unknown)
}
