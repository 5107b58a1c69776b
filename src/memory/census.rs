//! Who holds what of a device, for the error of an allocation that failed: in a time that does not grow with the number
//! of arrays.
//!
//! Where there are more than can be looked at in some milliseconds, the slots are divided into parts of one size, one
//! slot of each is looked at, and what is found counts for its part. Which one of a part changes from part to part, so
//! that no rhythm in which arrays are made meets it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::base::order::sort_by_key;
use crate::device::Device;
use crate::memory::{
    gc,
    line::{ArrayFigures, Line, Lines, is_outside, visit},
    manager::{self, ManagerInfo},
    owner,
    proxy::Proxy,
    reclaim, registry,
    slot::OPEN,
    stats, storage,
    workspace::{block, validity},
};

/// Arrays that are looked at, at most.
const LOOKED_MAX: u64 = 1 << 13;
/// Slots that are looked at, at most: most of them may have no array.
const SLOTS_MAX: u64 = 1 << 21;

/// Whose arrays are asked for.
pub(crate) enum Within<'a> {
    /// Those of the whole device.
    Device,
    /// What these managers own, and such workspaces.
    Managers(&'a [ManagerInfo], &'a [Arc<str>]),
    /// Those of the cycles of a workspace, with their bytes.
    Workspace(&'a str),
}

/// What a look found.
#[derive(Debug)]
pub(crate) struct Census {
    /// One of so many arrays was looked at; with more than 1 all else is estimated.
    pub(crate) one_of: u64,
    /// The lines with most bytes.
    pub(crate) lines: Vec<Line>,
    /// Who has most bytes: managers, workspaces, and the handles of arrays without a manager; name, arrays (of a
    /// workspace: blocks), bytes.
    pub(crate) holders: Vec<(String, u64, u64)>,
    /// Arrays that nobody has a handle of, and their bytes.
    pub(crate) kept: u64,
    pub(crate) kept_bytes: u64,
}

/// What lives on a device, or a part of it: at most so many lines and holders.
pub(crate) fn take(device: &Device, within: &Within<'_>, most: usize) -> Census {
    // What is queued is dead.
    reclaim::collect();
    let (arrays, one_of) = match within {
        Within::Managers(managers, _) => of_managers(managers),
        Within::Device | Within::Workspace(_) => sample(None),
    };
    let is_wanted = |array: &Proxy| match within {
        Within::Device => array.device() == device,
        Within::Managers(..) => true,
        Within::Workspace(name) => {
            registry::cycle_of(array.key()).is_some_and(|cycle| validity::about(cycle).workspace == *name)
        }
    };
    let counts = |array: &Proxy| matches!(within, Within::Workspace(_)) || is_outside(array);
    let (mut lines, mut holders, mut storages) = (Lines::default(), HashMap::new(), HashSet::new());
    visit(arrays, one_of, &is_wanted, &counts, &mut |array, ArrayFigures { age, storage, bytes, is_kept }| {
        let index = array.key().index();
        lines.add(registry::created(index), age, bytes, is_kept);
        let Some(holder) = owner::holder(registry::slot(index)) else { return };
        // What several share counts for each.
        let bytes = match storage {
            Some(id) if one_of == 1 && storages.insert((holder, id)) => storage::bytes_of(id),
            _ => bytes,
        };
        let (arrays, sum) = holders.entry(holder).or_insert((0, 0));
        (*arrays, *sum) = (*arrays + one_of, *sum + bytes * one_of);
    });
    let mut lines = lines.times(one_of).sorted();
    let kept = lines.iter().map(|line| line.kept).sum();
    let kept_bytes = lines.iter().map(|line| line.kept_bytes).sum();
    if one_of == 1 && matches!(within, Within::Device) {
        stats::note_dead(device, kept_bytes);
    }
    lines.truncate(most);
    let blocks = block::by_workspace(&|workspace, at| match within {
        Within::Device => at == device,
        Within::Managers(_, workspaces) => workspaces.iter().any(|one| Arc::ptr_eq(one, workspace)),
        Within::Workspace(name) => **workspace == **name,
    });
    Census { one_of, lines, holders: largest(holders, blocks, most), kept, kept_bytes }
}

/// What these managers own, and one of how many arrays that is.
fn of_managers(managers: &[ManagerInfo]) -> (Vec<Proxy>, u64) {
    if managers.iter().map(ManagerInfo::count).sum::<u64>() > LOOKED_MAX {
        return sample(Some(&managers.iter().map(ManagerInfo::key).collect()));
    }
    let mut arrays = Vec::new();
    let mut add = |index| arrays.extend(registry::upgrade_index(index).map(Proxy::from_key));
    managers.iter().for_each(|manager| manager.for_each_array(&mut add));
    (arrays, 1)
}

/// Arrays of the process, or those of managers with these keys, and one of how many it is.
fn sample(of: Option<&HashSet<u64>>) -> (Vec<Proxy>, u64) {
    let extent = u64::from(registry::extent());
    let one_of = gc::stats().live.div_ceil(LOOKED_MAX).max(extent.div_ceil(SLOTS_MAX)).max(1);
    let places = (0..extent.div_ceil(one_of)).map(|part| part * one_of + scattered(part) % one_of);
    let arrays = places.filter(|&index| index < extent).filter_map(|index| {
        let (index, cell) = (index as u32, registry::slot(index as u32));
        let is_of = || of.is_none_or(|keys| owner::holder(cell).is_some_and(|holder| keys.contains(&holder)));
        (cell.core.state() & OPEN != 0 && is_of()).then(|| registry::upgrade_index(index)).flatten()
    });
    (arrays.map(Proxy::from_key).collect(), one_of)
}

/// A number that looks random.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33
}

/// The first of them by bytes.
fn largest(
    holders: HashMap<u64, (u64, u64)>,
    blocks: Vec<(Arc<str>, (u64, u64))>,
    most: usize,
) -> Vec<(String, u64, u64)> {
    let mut holders: Vec<_> = holders.into_iter().collect();
    // Of the same, handles after managers.
    sort_by_key(&mut holders, |&(key, (arrays, bytes))| (Reverse((bytes, arrays)), key.wrapping_sub(1)));
    holders.truncate(most);
    let name = |key| if key == 0 { "arrays owned by their handles".to_owned() } else { manager::name_of(key) };
    let holders = holders.into_iter().map(|(key, (arrays, bytes))| (name(key), arrays, bytes));
    let blocks = blocks.into_iter().map(|(name, (blocks, bytes))| (format!("workspace [{name}]"), blocks, bytes));
    let mut all: Vec<_> = holders.chain(blocks).collect();
    sort_by_key(&mut all, |&(_, _, bytes)| Reverse(bytes));
    all.truncate(most);
    all
}
