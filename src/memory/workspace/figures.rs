//! The figures of workspaces by name, for reports on any thread: those of several threads with one name and device are
//! one here. They change where a workspace comes or goes, or a block does, or a budget refuses, so an operation and a
//! cycle pay nothing.

use std::sync::{Arc, Mutex, PoisonError};

use crate::base::order::value_of;
use crate::device::Device;
use crate::memory::{switch, workspace::validity::CycleScope};

/// What workspaces of a name have and had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Bytes of their blocks.
    pub(crate) bytes: u64,
    /// The most at once.
    pub(crate) peak: u64,
    /// Of all blocks that they took.
    pub(crate) total: u64,
    /// Of those of them that were taken beside a block without room.
    pub(crate) spilled: u64,
    /// Cycles that began.
    pub(crate) cycles: u64,
    /// Requests that their budgets refused.
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct DeviceRow {
    device: Device,
    figures: Figures,
    /// The scopes of those that live, with the stamps before their first cycles.
    scopes: Vec<(Arc<CycleScope>, u64)>,
}

/// By name.
static ROWS: Mutex<Vec<(Arc<str>, Vec<DeviceRow>)>> = Mutex::new(Vec::new());

/// Changes the row of a name, which is made if there is none, and goes when nothing is left.
fn change(name: &Arc<str>, device: &Device, change: &dyn Fn(&mut DeviceRow)) {
    let mut all = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    let rows = value_of(&mut all, Arc::clone(name));
    let at = rows.iter().position(|row| row.device == *device).unwrap_or_else(|| {
        rows.push(DeviceRow { device: device.clone(), figures: Figures::default(), scopes: Vec::new() });
        rows.len() - 1
    });
    change(&mut rows[at]);
    if rows[at].scopes.is_empty() && rows[at].figures.bytes == 0 {
        rows.swap_remove(at);
    }
    if rows.is_empty() {
        all.retain(|(own, _)| own != name);
    }
}

/// A workspace was made, with this scope and the device of its bytes.
pub(crate) fn opened(name: &Arc<str>, device: &Device, scope: &Arc<CycleScope>) {
    change(name, device, &|row| row.scopes.push((Arc::clone(scope), scope.last())));
}

/// It was destroyed.
pub(crate) fn destroyed(name: &Arc<str>, device: &Device, scope: &Arc<CycleScope>) {
    change(name, device, &|row| {
        if let Some(at) = row.scopes.iter().position(|(own, _)| Arc::ptr_eq(own, scope)) {
            let (scope, first) = row.scopes.swap_remove(at);
            row.figures.cycles += scope.last() - first;
        }
    });
}

/// A block was taken.
pub(crate) fn block_taken(name: &Arc<str>, device: &Device, bytes: u64) {
    change(name, device, &|DeviceRow { figures, .. }| {
        figures.bytes += bytes;
        figures.total += bytes;
        figures.peak = figures.peak.max(figures.bytes);
    });
}

/// It was one beside a block without room.
pub(crate) fn spilled(name: &Arc<str>, device: &Device, bytes: u64) {
    change(name, device, &|row| row.figures.spilled += bytes);
}

/// A block went back.
pub(crate) fn block_returned(name: &Arc<str>, device: &Device, bytes: u64) {
    change(name, device, &|row| row.figures.bytes -= bytes);
}

/// The budget of one refused a request for a device. Its bytes may be another's: of arrays of the host alone.
pub(crate) fn refused(name: &str, device: &Device) {
    let mut all = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, rows)) = all.iter_mut().find(|(own, _)| **own == *name) else { return };
    let at = rows.iter().position(|row| row.device == *device).unwrap_or(0);
    rows[at].figures.refused += 1;
}

/// Of each name with bytes on a device, or workspaces for it, by name. None in a forked child.
pub(crate) fn of_device(device: &Device) -> Vec<(Arc<str>, Figures)> {
    if switch::forked() {
        return Vec::new();
    }
    let all = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = |row: &DeviceRow| {
        let cycles: u64 = row.scopes.iter().map(|(scope, first)| scope.last() - first).sum();
        Figures { cycles: row.figures.cycles + cycles, ..row.figures }
    };
    let mut found = Vec::new();
    for (name, rows) in all.iter() {
        found.extend(rows.iter().filter(|row| row.device == *device).map(|row| (Arc::clone(name), now(row))));
    }
    found
}
