//! What lives, where, how much, how old, and who made it: as data and as text.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::base::{dtype::DType, error::Site, units::Bytes};
use crate::memory::{key::Key, manager::NdManager, proxy::Proxy, reclaim, registry, threads::with_local};

/// One array of a manager.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArrayReport {
    /// Its key.
    pub key: Key,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Element type.
    pub dtype: DType,
    /// Size along each axis.
    pub shape: Vec<usize>,
    /// Bytes of its storage, which views share.
    pub storage_bytes: u64,
    /// Whether another array of the same manager was listed with this storage before: its bytes count there.
    pub shares_storage: bool,
    /// Handles that users hold; 0 for an array that nobody can reach any more.
    pub handles: usize,
    /// Time since it was made.
    pub age: Duration,
    /// Where it was made.
    pub created: Option<Site>,
}

/// A manager with its arrays and sub-managers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ManagerReport {
    /// Its name; its uuid if it was given none.
    pub name: String,
    /// Its public identity.
    pub uuid: Uuid,
    /// The device of the arrays it makes.
    pub device: String,
    /// Where it was made.
    pub created: Site,
    /// Whether it is capped.
    pub capped: bool,
    /// Its arrays, oldest first.
    pub arrays: Vec<ArrayReport>,
    /// Managers below it.
    pub managers: Vec<ManagerReport>,
}

impl ManagerReport {
    /// Bytes of its own arrays, each storage once.
    pub fn own_bytes(&self) -> u64 {
        self.arrays.iter().filter(|array| !array.shares_storage).map(|array| array.storage_bytes).sum()
    }

    /// Bytes of its arrays and of those below.
    pub fn total_bytes(&self) -> u64 {
        self.own_bytes() + self.managers.iter().map(ManagerReport::total_bytes).sum::<u64>()
    }

    /// Arrays of it and of the managers below.
    pub fn total_arrays(&self) -> usize {
        self.arrays.len() + self.managers.iter().map(ManagerReport::total_arrays).sum::<usize>()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, level: usize) -> fmt::Result {
        let pad = " ".repeat(4 * level);
        let count = self.arrays.len() + self.managers.len();
        writeln!(
            f,
            "{pad}\\--- NDManager({}) resource count: {count}, {} arrays, {}, {}, made at {}{}",
            self.name,
            self.arrays.len(),
            Bytes(self.own_bytes()),
            self.device,
            self.created,
            if self.capped { ", capped" } else { "" }
        )?;
        for array in &self.arrays {
            let name = array.name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
            let site = array.created.map(|site| format!(" made at {site}")).unwrap_or_default();
            let bytes = if array.shares_storage { "a view".to_owned() } else { Bytes(array.storage_bytes).to_string() };
            writeln!(
                f,
                "{pad}    |-- {}{name} {} {:?}, {bytes}, {} handles, {:.1} s old,{site}",
                array.key,
                array.dtype,
                array.shape,
                array.handles,
                array.age.as_secs_f64()
            )?;
        }
        self.managers.iter().try_for_each(|manager| manager.write(f, level + 1))
    }
}

impl fmt::Display for ManagerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl NdManager {
    /// What it and the managers below it hold, as data.
    pub fn report(&self) -> ManagerReport {
        // What is queued is dead: it is closed, not listed.
        with_local(reclaim::drain_all);
        let info = self.info();
        let mut indices = Vec::with_capacity(self.array_count());
        info.for_each_array(|index| indices.extend(registry::upgrade_index(index).map(Proxy::from_key)));
        let mut storages = HashSet::new();
        indices.sort_by_cached_key(|array| (Reverse(registry::age_millis(array.key().index())), array.key()));
        let arrays: Vec<ArrayReport> = indices.iter().filter_map(|array| describe(array, &mut storages)).collect();
        let mut managers: Vec<ManagerReport> = self.children().iter().map(NdManager::report).collect();
        managers.sort_by(|a, b| a.name.cmp(&b.name));
        ManagerReport {
            name: info.name(),
            uuid: info.uuid(),
            device: self.device().to_string(),
            created: info.created(),
            capped: self.is_capped(),
            arrays,
            managers,
        }
    }

    /// What it and the managers below it hold, as text: a line for each manager, and below it one for each array
    /// with key, name, dtype, shape, bytes, handles, age and the place in the source where it was made.
    pub fn debug_dump(&self) -> String {
        self.report().to_string()
    }

    /// Bytes of its own arrays, each storage once.
    pub fn bytes_used(&self) -> u64 {
        self.report().own_bytes()
    }
}

/// The report's line of an array of which the report itself holds one handle.
fn describe(array: &Proxy, storages: &mut HashSet<u32>) -> Option<ArrayReport> {
    let key = array.key();
    with_local(|local| {
        let pins = registry::pin(local, "report", [key], false).ok()?;
        let [pinned] = pins.arrays();
        // A kept or queued array has a count that is nobody's.
        let state = registry::slot(key.index()).core.state();
        let ghost = usize::from(state & crate::memory::slot::KEPT != 0);
        Some(ArrayReport {
            key,
            name: registry::name(key),
            dtype: pinned.dtype,
            shape: pinned.layout.dims().to_vec(),
            storage_bytes: pinned.storage.buffer().span().bytes() as u64,
            shares_storage: !storages.insert(pinned.storage.id()),
            handles: array.handle_count().saturating_sub(1 + ghost),
            age: Duration::from_millis(u64::from(registry::age_millis(key.index()))),
            created: registry::created(key.index()),
        })
    })
}

/// The managers of all devices that hold most bytes: name, arrays, bytes.
pub(crate) fn largest(device: &crate::device::Device, most: usize) -> Vec<(String, u64, u64)> {
    let mut all = Vec::new();
    for info in NdManager::system(device).subtree() {
        let (mut arrays, mut bytes, mut storages) = (0u64, 0u64, HashSet::new());
        info.for_each_array(|index| {
            arrays += 1;
            if let Some(id) = registry::storage_of(index)
                && storages.insert(id)
            {
                bytes += crate::memory::storage::bytes_of(id);
            }
        });
        all.push((info.name(), arrays, bytes));
    }
    all.sort_by_key(|&(_, _, bytes)| std::cmp::Reverse(bytes));
    all.truncate(most);
    all
}
