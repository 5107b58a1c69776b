//! A line of the source with the live arrays that it made.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use crate::base::{
    error::Site,
    order::sort_by_key,
    system::coarse_millis,
    units::{Bytes, counted},
};
use crate::memory::{proxy::Proxy, registry, slot::KEPT, storage};

/// The live arrays that one line of the source made, on all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// File, line and column; none where it is not known.
    pub site: Option<Site>,
    /// Arrays, views among them.
    pub arrays: u64,
    /// Those of them that nobody has a handle of: a manager keeps them, since they fell while the switch was off.
    pub kept: u64,
    /// Bytes of their storages. One that several arrays share counts for the line of the oldest, and bytes of a
    /// workspace count there.
    pub bytes: u64,
    /// Those of the bytes that are of arrays without a handle: `gc::collect_orphans()` gives them back.
    pub kept_bytes: u64,
    /// Time since the oldest was made.
    pub oldest: Duration,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { arrays, bytes, kept, oldest, .. } = *self;
        write!(f, "{}, {}, made at {}", counted(arrays, "array"), Bytes(bytes), DisplaySite(self.site))?;
        if kept > 0 {
            write!(f, ", {kept} of them without a handle")?;
        }
        write!(f, ", the oldest {:.1} s old", oldest.as_secs_f64())
    }
}

/// A line, if it is known.
pub(super) struct DisplaySite(pub(super) Option<Site>);

impl fmt::Display for DisplaySite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(site) => write!(f, "{site}"),
            None => f.write_str("a line that is not known"),
        }
    }
}

/// What tells lines apart: one may have several addresses.
pub(super) type LineKey = Option<(&'static str, u32, u32)>;

pub(super) fn key_of(site: Option<Site>) -> LineKey {
    site.map(|site| (site.file(), site.line(), site.column()))
}

/// A line without arrays.
fn nothing(site: Option<Site>) -> Line {
    Line { site, arrays: 0, kept: 0, bytes: 0, kept_bytes: 0, oldest: Duration::ZERO }
}

/// Lines that arrays are added to.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(pub(super) HashMap<LineKey, Line>);

impl Lines {
    pub(super) fn add(&mut self, site: Option<Site>, age: Duration, bytes: u64, is_kept: bool) {
        let none = Line { oldest: age, ..nothing(site) };
        let line = self.0.entry(key_of(site)).or_insert(none);
        line.arrays += 1;
        line.kept += u64::from(is_kept);
        line.bytes += bytes;
        line.kept_bytes += if is_kept { bytes } else { 0 };
        line.oldest = line.oldest.max(age);
    }

    /// As if there were so many times as many arrays.
    pub(super) fn times(mut self, factor: u64) -> Self {
        for line in self.0.values_mut() {
            for number in [&mut line.arrays, &mut line.kept, &mut line.bytes, &mut line.kept_bytes] {
                *number *= factor;
            }
        }
        self
    }

    /// Most bytes first.
    pub(super) fn sorted(self) -> Vec<Line> {
        let mut lines: Vec<Line> = self.0.into_values().collect();
        sort_by_key(&mut lines, |line| (Reverse((line.bytes, line.arrays)), key_of(line.site)));
        lines
    }

    /// Of the line of another one.
    pub(super) fn like(&self, line: &Line) -> Line {
        self.0.get(&key_of(line.site)).copied().unwrap_or(nothing(line.site))
    }
}

/// An array as it counts.
pub(super) struct ArrayFigures {
    pub(super) age: Duration,
    /// Its storage; none where its bytes count for a workspace.
    pub(super) storage: Option<u32>,
    /// Bytes of the storage, unless one that was visited before has it too.
    pub(super) bytes: u64,
    pub(super) is_kept: bool,
}

/// Calls `f` with those of the arrays that are open and that `is_wanted` accepts, the oldest first; of some the bytes
/// count. If they stand for `one_of` times as many, a storage counts for each with its share of it.
pub(super) fn visit(
    mut all: Vec<Proxy>,
    one_of: u64,
    is_wanted: &dyn Fn(&Proxy) -> bool,
    counts: &dyn Fn(&Proxy) -> bool,
    f: &mut dyn FnMut(&Proxy, ArrayFigures),
) {
    let now = coarse_millis();
    let age = |array: &Proxy| registry::age_millis(array.key().index(), now);
    all.retain(|array| array.is_open() && is_wanted(array));
    // Of one age, whose clock ticks every few milliseconds, a view comes after what it is of.
    let bytes = |array: &Proxy| array.elem_count() * array.dtype().size_in_bytes();
    sort_by_key(&mut all, |array| Reverse((age(array), bytes(array))));
    let mut storages = HashSet::new();
    for array in &all {
        let index = array.key().index();
        let storage = registry::storage_of(index).filter(|_| counts(array));
        let bytes = match storage {
            Some(id) if one_of > 1 => storage::share_of(id),
            Some(id) if storages.insert(id) => storage::bytes_of(id),
            _ => 0,
        };
        // A kept array's count is nobody's; the other one is this function's.
        let is_kept = registry::slot(index).core.state() & KEPT != 0 && array.handle_count() == 2;
        f(array, ArrayFigures { age: Duration::from_millis(u64::from(age(array))), storage, bytes, is_kept });
    }
}

/// Those of the arrays that are open and that `is_wanted` accepts, by line. The bytes of those in workspaces count with
/// the blocks.
pub(super) fn alive(all: Vec<Proxy>, is_wanted: &dyn Fn(&Proxy) -> bool) -> Lines {
    let mut lines = Lines::default();
    visit(all, 1, is_wanted, &is_outside, &mut |array, counted| {
        lines.add(registry::created(array.key().index()), counted.age, counted.bytes, counted.is_kept);
    });
    lines
}

/// Whether an array is none of a workspace.
pub(super) fn is_outside(array: &Proxy) -> bool {
    registry::cycle_of(array.key()).is_none()
}
