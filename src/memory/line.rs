//! A line of the source with the live arrays that it made.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use crate::base::{
    error::Site,
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
        write!(f, "{}, {}, made at {}", counted(arrays, "array"), Bytes(bytes), Place(self.site))?;
        if kept > 0 {
            write!(f, ", {kept} of them without a handle")?;
        }
        write!(f, ", the oldest {:.1} s old", oldest.as_secs_f64())
    }
}

/// A line, if it is known.
pub(super) struct Place(pub(super) Option<Site>);

impl fmt::Display for Place {
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

    /// Most bytes first.
    pub(super) fn sorted(self) -> Vec<Line> {
        let mut lines: Vec<Line> = self.0.into_values().collect();
        lines.sort_by_key(|line| (Reverse((line.bytes, line.arrays)), key_of(line.site)));
        lines
    }

    /// Of the line of another one.
    pub(super) fn like(&self, line: &Line) -> Line {
        self.0.get(&key_of(line.site)).copied().unwrap_or(nothing(line.site))
    }
}

/// Of those of the arrays that are open and that `is_wanted` accepts. The bytes of those in workspaces count with the
/// blocks.
pub(super) fn alive(all: Vec<Proxy>, is_wanted: impl Fn(&Proxy) -> bool) -> Lines {
    alive_with(all, is_wanted, |array| registry::cycle_of(array.key()).is_none())
}

/// As [`alive`], and of some the bytes count.
pub(super) fn alive_with(
    mut all: Vec<Proxy>,
    is_wanted: impl Fn(&Proxy) -> bool,
    counts: impl Fn(&Proxy) -> bool,
) -> Lines {
    let mut lines = Lines::default();
    let now = coarse_millis();
    let age = |array: &Proxy| registry::age_millis(array.key().index(), now);
    all.retain(|array| array.is_open() && is_wanted(array));
    // Of one age, whose clock ticks every few milliseconds, a view comes after what it is of.
    let bytes = |array: &Proxy| array.elem_count() * array.dtype().size_in_bytes();
    all.sort_by_cached_key(|array| Reverse((age(array), bytes(array))));
    let mut storages = HashSet::new();
    for array in &all {
        let index = array.key().index();
        let storage = registry::storage_of(index).filter(|_| counts(array));
        let bytes = storage.filter(|&id| storages.insert(id)).map_or(0, storage::bytes_of);
        // A kept array's count is nobody's; the other one is this function's.
        let is_kept = registry::slot(index).core.state() & KEPT != 0 && array.handle_count() == 2;
        lines.add(registry::created(index), Duration::from_millis(u64::from(age(array))), bytes, is_kept);
    }
    lines
}
