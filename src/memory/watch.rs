//! A look at a program that runs: a table of what the managers of a device hold, drawn again and again.
//!
//! A frame is counted while the lists of managers are locked, each shortly, and written when none is. It makes no array
//! and no handle of one, and closes nothing: what is looked at stays as it is.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{IsTerminal, Write as _, stderr};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::base::{
    order::{places_by, sort_by},
    units::{Bytes, counted},
};
use crate::device::{Device, budget::MemoryStats};
use crate::memory::{
    gc::{self, GcStats},
    manager,
    stats::HeldFigures,
    switch,
    threads::with_context,
};

/// Managers that a frame's text has at most.
const ROWS_MAX: usize = 16;
/// Columns of a name, with its indent.
const NAME_MAX: usize = 32;
/// The time between two frames on a terminal, and between two lines elsewhere.
const ON_TERMINAL: Duration = Duration::from_millis(500);
const ELSEWHERE: Duration = Duration::from_secs(10);

/// What a manager of a [`Frame`] and those below it hold.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FrameRow {
    /// Its name; its uuid if it was given none.
    pub name: String,
    /// Its public identity.
    pub uuid: Uuid,
    /// Managers above it.
    pub depth: usize,
    /// Arrays.
    pub arrays: u64,
    /// Those of them that nobody has a handle of.
    pub dead: u64,
    /// Bytes, each storage once, for the first manager that has an array of it.
    pub bytes: u64,
    /// Bytes more than in the frame before, or less, by second; 0 without one.
    pub bytes_per_second: i64,
}

/// What a device holds at a moment, by manager, and how fast that changes. Made by [`frame`]; its text is what
/// [`watch`] shows: the managers with most bytes, at most 16, in at most 79 columns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Frame {
    /// The device.
    pub device: Device,
    /// Its bytes.
    pub memory: MemoryStats,
    /// Arrays of the process.
    pub arrays: GcStats,
    /// Its open managers, each before those below it.
    pub rows: Vec<FrameRow>,
    /// Arrays made by second since the frame before; 0 without one.
    pub made_per_second: u64,
    at: Instant,
}

/// Looks at a device, and compares it with a frame before. Walks the arrays of all its managers. Empty in a forked
/// child.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, memory};
/// let model = NdManager::new_base_manager(&Device::Cpu)?;
/// model.set_name("model");
/// let before = memory::frame(&Device::Cpu, None);
/// let _x = model.child("layer")?.zeros(1024, DType::F32)?;
/// let frame = memory::frame(&Device::Cpu, Some(&before));
/// assert_eq!((frame.rows[0].name.as_str(), frame.rows[0].bytes), ("model", 0), "the layer's manager is gone");
/// println!("{frame}");
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn frame(device: &Device, before: Option<&Frame>) -> Frame {
    let at = Instant::now();
    let nothing = Frame {
        device: device.clone(),
        memory: MemoryStats::default(),
        arrays: GcStats::default(),
        rows: Vec::new(),
        made_per_second: 0,
        at,
    };
    if switch::check("memory::frame").is_err() {
        return nothing;
    }
    let (mut rows, mut storages, arrays): (Vec<FrameRow>, _, _) = (Vec::new(), HashSet::new(), gc::stats());
    for (depth, info) in manager::tree(device) {
        let (name, uuid) = (info.name(), info.uuid());
        let mut held = HeldFigures::default();
        held.add(&info, &mut storages);
        let HeldFigures { arrays, dead, bytes, .. } = held;
        rows.push(FrameRow { name, uuid, depth, arrays, dead, bytes, bytes_per_second: 0 });
    }
    add_to_parents(&mut rows);
    let seconds = before.map_or(0., |before| at.duration_since(before.at).as_secs_f64());
    let rate = |more: f64| if seconds > 0. { more / seconds } else { 0. };
    let rows_before = before.map_or(&[][..], |before| &before.rows);
    let old: HashMap<Uuid, u64> = rows_before.iter().map(|row| (row.uuid, row.bytes)).collect();
    for row in &mut rows {
        row.bytes_per_second = rate(row.bytes as f64 - old.get(&row.uuid).map_or(0., |&old| old as f64)) as i64;
    }
    let made = before.map_or(0, |before| arrays.created.saturating_sub(before.arrays.created));
    Frame { memory: device.memory(), arrays, rows, made_per_second: rate(made as f64) as u64, ..nothing }
}

/// Adds to each row those below it, which come after it.
fn add_to_parents(rows: &mut [FrameRow]) {
    // By depth: what rows that have not met their parent yet hold.
    let mut below: Vec<(u64, u64, u64)> = Vec::new();
    for row in rows.iter_mut().rev() {
        below.resize(below.len().max(row.depth + 2), (0, 0, 0));
        let (arrays, dead, bytes) = std::mem::take(&mut below[row.depth + 1]);
        row.arrays += arrays;
        row.dead += dead;
        row.bytes += bytes;
        let own = &mut below[row.depth];
        *own = (own.0 + row.arrays, own.1 + row.dead, own.2 + row.bytes);
    }
}

impl Frame {
    /// Its first two lines: the whole device and process.
    fn head(&self) -> String {
        let Frame { device, memory, arrays, .. } = self;
        format!(
            "{device}: {} live, {} at most, {} kept for reuse",
            Bytes(memory.active),
            Bytes(memory.peak),
            Bytes(memory.cached)
        ) + &format!(
            "\n{}, {} dead, {} made a second",
            counted(arrays.live, "array"),
            arrays.dead(),
            self.made_per_second
        )
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head())?;
        if self.rows.is_empty() {
            return Ok(());
        }
        write!(f, "\n{:NAME_MAX$} {:>12} {:>9} {:>9} {:>13}", "manager", "bytes", "arrays", "dead", "by second")?;
        // Those with most bytes; of equal ones those that come first, so that a manager comes with those above it.
        let by_bytes = |a: usize, b: usize| self.rows[b].bytes.cmp(&self.rows[a].bytes);
        let mut shown = places_by(self.rows.len(), &by_bytes);
        shown.truncate(ROWS_MAX);
        sort_by(&mut shown, Ord::cmp);
        for row in shown.iter().map(|&at| &self.rows[at]) {
            // A name is the program's, and may have what moves the cursor.
            let pad = 2 * row.depth.min(NAME_MAX / 4);
            let printable = |c: char| if c.is_control() { '?' } else { c };
            let name: String = row.name.chars().map(printable).take(NAME_MAX - pad).collect();
            let FrameRow { arrays, dead, bytes, bytes_per_second, .. } = row;
            let sign = if *bytes_per_second < 0 { '-' } else { '+' };
            let rate = format!("{sign}{}", Bytes(bytes_per_second.unsigned_abs()));
            let (pad, bytes) = (" ".repeat(pad), Bytes(*bytes).to_string());
            write!(f, "\n{:NAME_MAX$} {bytes:>12} {arrays:>9} {dead:>9} {rate:>13}", pad + &name)?;
        }
        match self.rows.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "\nand {} with less", counted(more as u64, "manager")),
        }
    }
}

/// Shows what a device holds on standard error until the guard drops: on a terminal as a table that is drawn in its
/// place twice a second, elsewhere as a line at the begin, every ten seconds, and at the end. A thread of its own
/// looks; what it costs is a walk over the arrays of the managers each time. What else is written to the terminal
/// meanwhile may be drawn over.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, memory};
/// let _watch = memory::watch(&Device::Cpu); // cpu: 0 B live, 0 B at most, 0 B kept for reuse; 0 arrays, ...
/// let manager = NdManager::new_base_manager(&Device::Cpu)?;
/// let _x = manager.zeros(1024, DType::F32)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[must_use = "it shows until the guard drops, with `let _ = ...` at once; name it, as in `let _watch = ...`"]
pub fn watch(device: &Device) -> Watch {
    let shown = ShownFrame { device: device.clone(), is_terminal: stderr().is_terminal(), ..ShownFrame::default() };
    let shared = Arc::new((Mutex::new(shown), Condvar::new()));
    let mut thread = None;
    if switch::check("memory::watch").is_ok() {
        // From here on a forked child knows that it is one.
        with_context(|_| ());
        let shared = Arc::clone(&shared);
        // Without a thread there is nothing to see, and the program goes on.
        thread = std::thread::Builder::new().name("ndgc-watch".into()).spawn(move || show(&shared)).ok();
    }
    Watch { shared, thread }
}

/// Ends what [`watch`] shows; the last state stays to be read.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<(Mutex<ShownFrame>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

/// What was shown last.
#[derive(Debug, Default)]
struct ShownFrame {
    device: Device,
    is_terminal: bool,
    frame: Option<Frame>,
    lines: usize,
    /// Whether the thread waits for standard error.
    waits: bool,
    ended: bool,
}

impl ShownFrame {
    /// What there is now.
    fn look(&mut self) -> String {
        let now = frame(&self.device, self.frame.as_ref());
        let text = if self.is_terminal { now.to_string() } else { now.head().replace('\n', "; ") };
        self.frame = Some(now);
        text
    }

    fn show(&mut self, text: &str) {
        let over = if self.is_terminal { self.lines } else { 0 };
        // A closed standard error is no reason to end the program.
        let _ = stderr().write_all(drawn_over(over, text).as_bytes());
        self.lines = text.lines().count();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if switch::forked() {
            // The parent's: here there is none, and its lock may be held for ever.
            std::mem::forget(thread);
            return;
        }
        let (shared, changed) = &*self.shared;
        let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = {
            let mut shown = lock();
            shown.ended = true;
            shown.waits
        };
        changed.notify_all();
        // This thread may hold what the other one waits for, which then ends by itself, and shows nothing more.
        if !waits {
            let _ = thread.join();
        }
        let last = lock().look();
        let _held = stderr().lock();
        lock().show(&last);
    }
}

/// Shows frames until it is told to end. Standard error is locked before what is shared, and not while it looks: the
/// program's own lines do not wait for that.
fn show((shared, changed): &(Mutex<ShownFrame>, Condvar)) {
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = || {
        let mut shown = lock();
        shown.waits = !shown.ended;
        shown.waits.then(|| shown.look())
    };
    while let Some(text) = begin() {
        let held = stderr().lock();
        let mut shown = lock();
        shown.waits = false;
        if shown.ended {
            return;
        }
        shown.show(&text);
        drop(held);
        let every = if shown.is_terminal { ON_TERMINAL } else { ELSEWHERE };
        drop(changed.wait_timeout_while(shown, every, |shown| !shown.ended));
    }
}

/// A text in the place of so many lines before it.
fn drawn_over(lines: usize, text: &str) -> String {
    let up = if lines > 0 { format!("\x1b[{lines}A\x1b[J") } else { String::new() };
    format!("{up}{text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_drawn_over_the_lines_of_the_one_before() {
        assert_eq!(drawn_over(0, "a\nb"), "a\nb\n");
        assert_eq!(drawn_over(2, "c"), "\x1b[2A\x1b[Jc\n");
    }

    #[test]
    fn rows_hold_what_is_below_them() {
        let row = |depth, bytes| FrameRow {
            name: String::new(),
            uuid: Uuid::nil(),
            depth,
            arrays: 1,
            dead: 0,
            bytes,
            bytes_per_second: 0,
        };
        let mut rows = [row(0, 1), row(1, 2), row(2, 4), row(1, 8), row(0, 16), row(1, 32)];
        add_to_parents(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.bytes), [15, 6, 4, 8, 48, 32]);
        assert_eq!(rows.each_ref().map(|row| row.arrays), [4, 2, 1, 1, 2, 1]);
    }
}
