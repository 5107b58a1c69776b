//! Whose bytes: what lives, by the line of the source that made it; what has grown since a mark, and what keeps it.
//!
//! Each array knows its line, so this costs nothing until it is asked for; then it walks all slots of the registry.

use std::cmp::Reverse;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::base::{
    error::Site,
    order::sort_by_key,
    units::{Bytes, counted},
};
use crate::device::Device;
use crate::memory::{
    line::{DisplaySite, Lines, alive, key_of},
    node,
    proxy::Proxy,
    reclaim, registry, switch,
    workspace::block,
};

pub use crate::memory::line::Line;

/// The live arrays of the process by the line of the source that made them, most bytes first.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// let kept: Vec<Tensor> = (0..10).map(|_| Tensor::zeros(256, DType::F32, &Device::Cpu)).collect::<Result<_, _>>()?;
/// let largest = memory::lines()[0];
/// assert_eq!((largest.arrays, largest.bytes), (10, 10 * 1024));
/// println!("{largest}"); // 10 arrays, 10.00 KiB, made at src/main.rs:4:46, the oldest 0.0 s old
/// # drop(kept);
/// # ndgc::gc::collect();
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn lines() -> Vec<Line> {
    alive(all(), &|_| true).sorted()
}

/// Bytes of a device that managers keep though nobody has a handle of the arrays.
pub(crate) fn kept_bytes(device: &Device) -> u64 {
    alive(all(), &|array| array.device() == device).0.values().map(|line| line.kept_bytes).sum()
}

/// All arrays of the process.
fn all() -> Vec<Proxy> {
    if switch::check("memory::lines").is_err() {
        return Vec::new();
    }
    // What is queued is dead.
    reclaim::collect();
    (0..registry::extent()).filter_map(registry::upgrade_index).map(Proxy::from_key).collect()
}

/// What lived at a moment, by line; made by [`mark`].
#[derive(Clone, Debug)]
pub struct Mark {
    lines: Lines,
    workspaces: Vec<(Arc<str>, (u64, u64))>,
    saved: (u64, u64),
    cached: u64,
}

/// Takes down what lives now, to compare it later: [`Mark::diff`]. Dead arrays that are queued are closed first.
///
/// ```
/// # use ndgc::{DType, Device, Result, Tensor, memory};
/// let mut history = Vec::new();
/// let before = memory::mark();
/// for _ in 0..3 {
///     let x = Tensor::ones((16, 16), DType::F32, &Device::Cpu)?;
///     history.push(x.sum(1)?); // the leak
/// }
/// let growth = before.diff();
/// assert_eq!(growth.lines.len(), 1);
/// assert_eq!((growth.lines[0].arrays, growth.lines[0].bytes), (3, 3 * 64));
/// # drop(history);
/// # ndgc::gc::collect();
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn mark() -> Mark {
    Mark {
        lines: alive(all(), &|_| true),
        workspaces: block::by_workspace(&|_, _| true),
        saved: node::saved(),
        cached: Device::Cpu.memory().cached,
    }
}

impl Mark {
    /// What has grown since, by line: also where another line has as much less, as with an array in place of another.
    pub fn diff(&self) -> Growth {
        self.growth_to(&mark())
    }

    fn growth_to(&self, now: &Mark) -> Growth {
        let grown = |line: &Line| {
            let before = self.lines.like(line);
            let arrays = line.arrays.saturating_sub(before.arrays);
            // Those that lost their handles since need not be more.
            let kept = line.kept.saturating_sub(before.kept).min(arrays);
            LineGrowth { line: *line, arrays, bytes: line.bytes.saturating_sub(before.bytes), kept }
        };
        let mut lines: Vec<LineGrowth> = now.lines.0.values().map(grown).collect();
        lines.retain(|growth| growth.arrays > 0 || growth.bytes > 0);
        sort_by_key(&mut lines, |growth| (Reverse((growth.bytes, growth.arrays)), key_of(growth.line.site)));
        let at = |name: &Arc<str>| self.workspaces.binary_search_by(|(own, _)| own.cmp(name));
        let before = |name: &Arc<str>| at(name).map_or(0, |at| self.workspaces[at].1.1);
        let grown = |(name, (_, bytes)): &(Arc<str>, (u64, u64))| bytes.saturating_sub(before(name));
        let workspaces = now.workspaces.iter().map(|of| (of.0.to_string(), grown(of)));
        Growth {
            lines,
            saved_values: now.saved.0.saturating_sub(self.saved.0),
            saved_bytes: now.saved.1.saturating_sub(self.saved.1),
            workspaces: workspaces.filter(|&(_, bytes)| bytes > 0).collect(),
            cached: now.cached.saturating_sub(self.cached),
            rounds: 1,
        }
    }

    /// What there is in all, on whatever line or workspace: arrays, their bytes, saved values, theirs, bytes of blocks.
    fn totals(&self) -> [u64; 5] {
        let lines = |number: fn(&Line) -> u64| self.lines.0.values().map(number).sum::<u64>();
        let blocks = self.workspaces.iter().map(|(_, (_, bytes))| bytes).sum::<u64>();
        [lines(|line| line.arrays), lines(|line| line.bytes), self.saved.0, self.saved.1, blocks]
    }

    /// Whether anything of [`Mark::totals`] is more now.
    fn rose_to(&self, now: &Mark) -> bool {
        self.totals().iter().zip(now.totals()).any(|(before, now)| now > *before)
    }
}

/// What one line has more than at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineGrowth {
    /// What it has now.
    pub line: Line,
    /// Arrays more.
    pub arrays: u64,
    /// Bytes more.
    pub bytes: u64,
    /// Of the arrays more, those that nobody has a handle of: their manager keeps them. The others are held by handles.
    pub kept: u64,
}

/// What has grown, told apart by what keeps it; made by [`Mark::diff`] and [`growth`]. Its text names the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The lines with more arrays or bytes, most bytes first.
    pub lines: Vec<LineGrowth>,
    /// Values more that gradient graphs keep.
    pub saved_values: u64,
    /// Their bytes, which may be those of arrays too.
    pub saved_bytes: u64,
    /// Workspaces whose blocks have more bytes, and how many more.
    pub workspaces: Vec<(String, u64)>,
    /// Bytes more that the host's pool keeps for reuse, whatever devices the arrays are of. They are no leak.
    pub cached: u64,
    /// Rounds in which it came.
    pub rounds: u64,
}

impl Growth {
    /// Whether nothing grew; bytes that are kept for reuse aside.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, memory};
    /// let before = memory::mark();
    /// let x = Tensor::zeros(256, DType::F32, &Device::Cpu)?;
    /// assert!(!before.diff().is_empty());
    /// drop(x);
    /// assert!(before.diff().is_empty());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && (self.saved_values, self.saved_bytes) == (0, 0) && self.workspaces.is_empty()
    }

    fn each(&self, f: &mut fmt::Formatter<'_>, number: u64) -> fmt::Result {
        match self.rounds {
            0 | 1 => Ok(()),
            rounds if number.is_multiple_of(rounds) => write!(f, " ({} a round)", number / rounds),
            rounds => write!(f, " ({:.2} a round)", number as f64 / rounds as f64),
        }
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            f.write_str("nothing grew")?;
        }
        let mut lead = "";
        for growth in &self.lines {
            write!(f, "{lead}{} more", counted(growth.arrays, "array"))?;
            self.each(f, growth.arrays)?;
            write!(f, ", {} more, made at {}: ", Bytes(growth.bytes), DisplaySite(growth.line.site))?;
            match growth.arrays.saturating_sub(growth.kept) {
                _ if growth.arrays == 0 => f.write_str("larger arrays than before")?,
                0 => f.write_str("kept by their manager, without a handle; gc::on() ends such arrays")?,
                held if growth.kept == 0 => write!(f, "{}", held_by(held))?,
                held => write!(f, "{}, {} kept by their manager without one", held_by(held), growth.kept)?,
            }
            lead = "\n";
        }
        if self.saved_values > 0 {
            write!(f, "{lead}gradient graphs keep {} more", counted(self.saved_values, "value"))?;
            self.each(f, self.saved_values)?;
            write!(f, ", {} more", Bytes(self.saved_bytes))?;
            lead = "\n";
        } else if self.saved_bytes > 0 {
            write!(f, "{lead}gradient graphs keep larger values, {} more", Bytes(self.saved_bytes))?;
            lead = "\n";
        }
        for (name, bytes) in &self.workspaces {
            write!(f, "{lead}workspace [{name}] has blocks of {} more", Bytes(*bytes))?;
            lead = "\n";
        }
        if self.cached > 0 {
            write!(f, "{}{} more kept for reuse", if lead.is_empty() { "; " } else { lead }, Bytes(self.cached))?;
        }
        Ok(())
    }
}

fn held_by(handles: u64) -> String {
    if handles == 1 { "held by a handle".into() } else { format!("{handles} held by handles") }
}

/// Runs `body` once, so that what is made once is there, then so many times more, and says what has grown in these.
/// Results of `body` are dropped at once.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, memory};
/// let manager = NdManager::new_base_manager(&Device::Cpu)?;
/// let growth = memory::growth(10, || manager.zeros(256, DType::F32)); // with the switch off
/// assert_eq!((growth.lines[0].arrays, growth.lines[0].kept), (10, 10));
/// assert!(growth.to_string().starts_with("10 arrays more (1 a round), 10.00 KiB more, made at "));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn growth<R>(rounds: u32, mut body: impl FnMut() -> R) -> Growth {
    drop(body());
    let before = mark();
    (0..rounds).for_each(|_| drop(body()));
    Growth { rounds: u64::from(rounds), ..before.diff() }
}

/// Panics when it is dropped if more lives than when it was made, and names the lines, after its own: a test that has
/// one as its first line fails if it leaks. While its thread panics already it says nothing.
///
/// More are, each in all: arrays, their bytes, values that gradient graphs keep, theirs, bytes of blocks of workspaces.
/// So an array in place of another is no growth, whatever its line, unless it has more bytes.
///
/// It counts what all threads of the process have. `cargo test` runs the tests of a program at once, and what others
/// make fails it, or what they end hides a leak: run `cargo test -- --test-threads=1`, or let each test that uses ndgc
/// hold one lock, taken before this is made, so that it looks while the lock is held; `cargo nextest` has a process for
/// each.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// let _growth = memory::no_growth();
/// Tensor::zeros(100, DType::F32, &Device::Cpu)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[must_use = "it looks when it is dropped, with `let _ = ...` at once; name it, as in `let _growth = ...`"]
#[track_caller]
pub fn no_growth() -> NoGrowth {
    NoGrowth { since: Location::caller(), before: mark() }
}

/// What a failed check says to whose test it is.
pub(crate) const OF_ALL: &str =
    "(what other threads did counts too: if tests ran meanwhile, use `cargo test -- --test-threads=1`)";

/// See [`no_growth`].
#[derive(Debug)]
pub struct NoGrowth {
    since: Site,
    before: Mark,
}

impl Drop for NoGrowth {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let now = mark();
        assert!(!self.before.rose_to(&now), "since {}:\n{}\n{OF_ALL}", self.since, self.before.growth_to(&now));
    }
}
