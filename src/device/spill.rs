//! Spilling: bytes that lie elsewhere, where the program allows it, since there is no room where they belong.
//!
//! What the host has no room for lies in a file (`host/spill.rs`). What a device has no room for lies in page-locked
//! memory of the host, which the device reads and writes over the bus (`stream/spill.rs`); all devices together may
//! have so many bytes of that as the program says, and none that the process may not have resident.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::{
    error::{Error, Result},
    local::during,
    system,
    units::Bytes,
};
use crate::device::host::pool;

thread_local! {
    /// Whether what this thread asks for may lie elsewhere.
    static WANTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, and what it asks for may lie elsewhere.
pub(crate) fn wanted<R>(f: impl FnOnce() -> R) -> R {
    during(&WANTED, true, f)
}

/// Whether what this thread asks for may lie elsewhere.
pub(crate) fn is_wanted() -> bool {
    WANTED.get()
}

/// The host's memory for bytes of devices.
#[derive(Debug)]
struct SpillRoom {
    /// Whether the environment was asked.
    is_read: bool,
    /// The most bytes, if there may be any.
    most: Option<u64>,
    taken: u64,
}

static ROOM: Mutex<SpillRoom> = Mutex::new(SpillRoom { is_read: false, most: None, taken: 0 });

fn room() -> MutexGuard<'static, SpillRoom> {
    let mut room = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    if !room.is_read {
        (room.is_read, room.most) = (true, pool::limit_of("NDGC_DEVICE_SPILL"));
    }
    room
}

/// The most bytes, if there may be any, and those that are taken.
pub(crate) fn bounds() -> (Option<u64>, u64) {
    let room = room();
    (room.most, room.taken)
}

/// Whether there may be any.
pub(crate) fn has_room() -> bool {
    bounds().0.is_some()
}

/// Sets the most bytes, or none; returns the most before.
pub(crate) fn set_room(most: Option<u64>) -> Option<u64> {
    std::mem::replace(&mut room().most, most)
}

/// Takes so many bytes of the room.
///
/// # Errors
/// It has less, or the process may not have as many more resident.
pub(super) fn take(bytes: u64) -> Result<()> {
    let mut room = room();
    let most = room.most.unwrap_or(0);
    if bytes > most.saturating_sub(room.taken) {
        let (taken, most) = (Bytes(room.taken), Bytes(most));
        return Err(Error::msg(format!("devices have {taken} of the {most} of the host that are for them")));
    }
    if let (Some(most), Some(resident)) = (pool::physical_limit(), system::resident_bytes())
        && bytes > most.saturating_sub(resident)
    {
        let (resident, most) = (Bytes(resident), Bytes(most));
        return Err(Error::msg(format!("the process has {resident} of {most} resident")));
    }
    room.taken += bytes;
    Ok(())
}

/// Gives back what was taken.
pub(super) fn give_back(bytes: u64) {
    room().taken -= bytes;
}
