//! What lives, where, how much, how old, and who made it: as data and as text.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use crate::base::{
    dtype::DType,
    error::Site,
    order::{sort_by, sort_by_key, value_of},
    system::coarse_millis,
    units::{Bytes, counted},
};
use crate::device::Device;
use crate::memory::{
    key::Key,
    line::{Line, Lines},
    manager::{ManagerInfo, NdManager},
    owner,
    proxy::Proxy,
    reclaim, registry, switch,
    threads::with_context,
    workspace::{block, stats, validity},
};

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
    /// The workspace whose cycle ends it, if it is one of a workspace.
    pub workspace: Option<String>,
}

/// The memory of a workspace: its blocks, whatever arrays lie in them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkspaceReport {
    /// Its name; workspaces of several threads with one name are one here.
    pub name: String,
    /// Blocks, those that wait for their last reader among them.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// References that hold the blocks beyond the cycles of their bytes, as
    /// [`WorkspaceStats::holders`](crate::WorkspaceStats::holders).
    pub holders: u64,
    /// Arrays with a recorded gradient that somebody still had a handle of when their cycle ended, as in
    /// `losses.push(loss)`: their graphs ended then.
    pub kept_graphs: u64,
    /// Where the last of them was made.
    pub kept_graph_at: Option<Site>,
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
    /// Its arrays, oldest first, by a clock that ticks every few milliseconds. Within a tick, those that one thread
    /// made stand in the order in which they came to the manager. Of the system manager: those on its device that their
    /// handles own, or a workspace; within a tick by key.
    pub arrays: Vec<ArrayReport>,
    /// Managers below it. All that are more than 64 levels below the one that was asked stand side by side.
    pub managers: Vec<ManagerReport>,
    /// Of the system manager: the workspaces with memory of its device.
    pub workspaces: Vec<WorkspaceReport>,
    /// Of the system manager: active bytes of the device that neither arrays nor workspaces have. Values that gradient
    /// graphs keep have them, and exports.
    pub elsewhere: u64,
}

/// Arrays of one owner above which a dump is grouped by the lines that made them.
const LISTED_MAX: usize = 100;
/// Levels of managers that a report has: what goes through it calls itself for each, and a stack has an end.
const LEVELS_MAX: usize = 64;

impl ManagerReport {
    /// Of a manager that holds nothing.
    fn empty(info: &ManagerInfo, device: &Device) -> Self {
        ManagerReport {
            name: info.name(),
            uuid: info.uuid(),
            device: device.to_string(),
            created: info.created(),
            capped: false,
            arrays: Vec::new(),
            managers: Vec::new(),
            workspaces: Vec::new(),
            elsewhere: 0,
        }
    }

    /// Bytes of its own arrays, each storage once; those of arrays of workspaces count there.
    pub fn own_bytes(&self) -> u64 {
        self.arrays.iter().map(ArrayReport::own_bytes).sum()
    }

    /// Its own arrays by the line that made them, most bytes first. [`memory::lines`](crate::memory::lines()) has those
    /// of the process.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager, Result};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let _kept: Vec<_> = [10usize, 1000].into_iter().map(|n| manager.zeros(n, DType::U8)).collect::<Result<_>>()?;
    /// let lines = manager.report().by_line();
    /// assert_eq!((lines.len(), lines[0].arrays, lines[0].bytes), (1, 2, 1010));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn by_line(&self) -> Vec<Line> {
        let mut lines = Lines::default();
        for array in &self.arrays {
            lines.add(array.created, array.age, array.own_bytes(), array.handles == 0);
        }
        lines.sorted()
    }

    /// Its own arrays whose names have parts, by the first of these, which ends at a dot: how many, and their bytes.
    fn by_name(&self) -> Vec<(&str, (u64, u64))> {
        let mut found: Vec<(&str, (u64, u64))> = Vec::new();
        for array in &self.arrays {
            if let Some((first, _)) = array.name.as_deref().and_then(|name| name.split_once('.')) {
                let (arrays, bytes) = value_of(&mut found, first);
                (*arrays, *bytes) = (*arrays + 1, *bytes + array.own_bytes());
            }
        }
        found
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
            "{pad}\\--- NDManager({}) resource count: {count}, {}, {}, {}, made at {}{}",
            self.name,
            counted(self.arrays.len() as u64, "array"),
            Bytes(self.own_bytes()),
            self.device,
            self.created,
            if self.capped { ", capped" } else { "" }
        )?;
        if self.arrays.len() > LISTED_MAX {
            self.by_line().iter().try_for_each(|line| writeln!(f, "{pad}    |-- {line}"))?;
            for (name, (arrays, bytes)) in self.by_name() {
                writeln!(f, "{pad}    |-- of these `{name}`: {}, {}", counted(arrays, "array"), Bytes(bytes))?;
            }
        }
        for array in self.arrays.iter().filter(|_| self.arrays.len() <= LISTED_MAX) {
            let name = array.name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
            let site = array.created.map(|site| format!(" made at {site}")).unwrap_or_default();
            let workspace = array.workspace.as_ref().map(|name| format!(", in workspace [{name}]")).unwrap_or_default();
            let bytes = if array.shares_storage { "a view".to_owned() } else { Bytes(array.storage_bytes).to_string() };
            writeln!(
                f,
                "{pad}    |-- {}{name} {} {:?}, {bytes}, {}, {:.1} s old,{site}{workspace}",
                array.key,
                array.dtype,
                array.shape,
                counted(array.handles as u64, "handle"),
                array.age.as_secs_f64()
            )?;
        }
        for WorkspaceReport { name, blocks, bytes, holders, kept_graphs, kept_graph_at } in &self.workspaces {
            let blocks = counted(*blocks, "block");
            write!(f, "{pad}    |-- workspace [{name}]: {blocks} of {}", Bytes(*bytes))?;
            if *holders > 0 {
                write!(f, ", held by {} beyond its cycles", counted(*holders, "reference"))?;
            }
            if let Some(site) = kept_graph_at {
                let graphs = counted(*kept_graphs, "graph");
                write!(f, "; {graphs} ended with a cycle while an array was kept, the last one made at {site}")?;
                write!(f, " (keep a loss by its number or by detach())")?;
            }
            writeln!(f)?;
        }
        if self.elsewhere > 0 {
            writeln!(f, "{pad}    |-- values kept by gradient graphs, and exports: {}", Bytes(self.elsewhere))?;
        }
        self.managers.iter().try_for_each(|manager| manager.write(f, level + 1))
    }
}

impl fmt::Display for ManagerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

/// # Reports: what it holds
impl NdManager {
    /// What it and the managers below it hold, as data.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let layer = model.child("layer")?;
    /// let w = layer.zeros((2, 3), DType::F32)?;
    /// w.set_name("w")?;
    /// let report = model.report();
    /// assert_eq!((report.own_bytes(), report.total_bytes(), report.total_arrays()), (0, 24, 1));
    /// let found = &report.managers[0].arrays[0];
    /// assert_eq!((found.name.as_deref(), found.handles), (Some("w"), 1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn report(&self) -> ManagerReport {
        self.report_of(LEVELS_MAX + 1)
    }

    /// With so many levels below it.
    fn report_of(&self, levels: usize) -> ManagerReport {
        let info = self.info();
        if switch::check("report").is_err() {
            return ManagerReport::empty(&info, self.device());
        }
        // What is queued is dead: it is closed, not listed.
        with_context(reclaim::drain_all);
        let mut indices = Vec::with_capacity(self.array_count());
        if self.is_system() {
            // Relaxed: a report of this moment; what is found is held and looked at again below.
            let is_free = |&index: &u32| registry::slot(index).owner.load(Ordering::Relaxed) & owner::UNLISTED != 0;
            let free = (0..registry::extent()).filter(is_free);
            indices.extend(free.filter_map(registry::upgrade_index).map(Proxy::from_key));
            indices.retain(|array| array.is_open() && array.device() == self.device());
        }
        info.for_each_array(|index| indices.extend(registry::upgrade_index(index).map(Proxy::from_key)));
        // After the last of them was made, and one for all.
        let now = coarse_millis();
        // A list begins with what came last; the system manager has none.
        if !self.is_system() {
            indices.reverse();
        }
        let mut storages = HashSet::new();
        sort_by_key(&mut indices, |array| Reverse(registry::age_millis(array.key().index(), now)));
        let arrays: Vec<ArrayReport> = indices.iter().filter_map(|array| describe(array, now, &mut storages)).collect();
        let below = if levels > 0 { self.below(levels == 1) } else { Vec::new() };
        let mut managers: Vec<_> = below.iter().map(|manager| manager.report_of(levels - 1)).collect();
        sort_by(&mut managers, |a, b| a.name.cmp(&b.name));
        let mut workspaces = Vec::new();
        if self.is_system() {
            let found = block::by_workspace(&|_, at| at == self.device()).into_iter();
            workspaces.extend(found.map(|(name, (blocks, bytes))| {
                let (kept_graphs, kept_graph_at) = stats::kept_graphs(&name, self.device());
                let holders = block::holders(&|own, at| *own == name && at == self.device());
                WorkspaceReport { name: name.to_string(), blocks, bytes, holders, kept_graphs, kept_graph_at }
            }));
        }
        let empty = ManagerReport::empty(&info, self.device());
        let mut report = ManagerReport { capped: self.is_capped(), arrays, managers, workspaces, ..empty };
        if self.is_system() {
            let known = active_of_arrays(self.device()) + block::active(self.device());
            report.elsewhere = self.device().memory().active.saturating_sub(known);
        }
        report
    }

    /// The managers directly below it, or all.
    fn below(&self, all: bool) -> Vec<NdManager> {
        let (mut found, mut at) = (self.children(), 0);
        while let Some(next) = found.get(at).filter(|_| all).map(NdManager::children) {
            found.extend(next);
            at += 1;
        }
        found
    }

    /// What it and the managers below it hold, as text: a line for each manager, and below it one for each array
    /// with key, name, dtype, shape, bytes, handles, age and the place in the source where it was made. Of a manager
    /// with more than 100 arrays there is one for each such place instead, and one for each first part of names with a
    /// dot; [`NdManager::report`] has all arrays.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let mask = manager.zeros((2, 3), DType::F32)?;
    /// mask.set_name("mask")?;
    /// drop(mask); // with the switch off, the manager keeps it
    /// let dump = manager.debug_dump();
    /// assert!(dump.contains("`mask` f32 [2, 3], 24 B, 0 handles"), "{dump}");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn debug_dump(&self) -> String {
        self.report().to_string()
    }

    /// Bytes of its own arrays, each storage once.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = manager.zeros((2, 3), DType::F32)?;
    /// let _row = x.get(0)?; // of the same storage
    /// assert_eq!((manager.array_count(), manager.bytes_used()), (2, 24));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn bytes_used(&self) -> u64 {
        self.report().own_bytes()
    }
}

/// Active bytes of a device that open arrays have, whoever owns them, each storage once. A manager's arrays may be of
/// another device, share storages with those of others, and have bytes that are not active: mapped, spilled, others'.
fn active_of_arrays(device: &Device) -> u64 {
    let (mut storages, mut bytes) = (HashSet::new(), 0);
    for array in (0..registry::extent()).filter_map(registry::upgrade_index).map(Proxy::from_key) {
        with_context(|context| {
            let Ok(pins) = registry::pin(context, "report", [array.key()], false) else { return };
            let [pinned] = pins.arrays();
            let buffer = pinned.storage.buffer();
            if buffer.device() == device && storages.insert(pinned.storage.id()) {
                bytes += buffer.active() as u64;
            }
        });
    }
    bytes
}

/// The report's line of an array of which the report itself holds one handle.
fn describe(array: &Proxy, now: u32, storages: &mut HashSet<u32>) -> Option<ArrayReport> {
    let key = array.key();
    with_context(|context| {
        let pins = registry::pin(context, "report", [key], false).ok()?;
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
            age: Duration::from_millis(u64::from(registry::age_millis(key.index(), now))),
            created: registry::created(key.index()),
            workspace: registry::cycle_of(key).map(|cycle| validity::about(cycle).workspace),
        })
    })
}

impl ArrayReport {
    /// Bytes that are counted for it: none for a view of one listed before, or in a workspace, whose blocks are.
    fn own_bytes(&self) -> u64 {
        if self.shares_storage || self.workspace.is_some() { 0 } else { self.storage_bytes }
    }
}
