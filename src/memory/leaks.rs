//! What ends with a manager: said before its close to who asks, and in debug builds at each close if the program wants
//! that.
//!
//! Relaxed throughout: a setting, by which nobody reads other memory.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::{
    env,
    error::Site,
    say::say,
    units::{Bytes, counted},
};
use crate::memory::{
    line::{Line, alive},
    proxy::Proxy,
    registry,
    slot::LENT,
};

/// Lines that the text of a report has at most.
const LINES_MAX: usize = 8;

/// The environment was not read yet.
const UNREAD: u32 = 0;
const OFF: u32 = 1;
const ON: u32 = 2;

static MODE: AtomicU32 = AtomicU32::new(UNREAD);

/// The arrays that would end with a manager, those of managers below it among them, by the line that made them. Made by
/// [`NdManager::leak_report`](crate::NdManager::leak_report).
///
/// To end what it owns is what a manager is for, so an array in it need not be a leak. Of a manager that lives long,
/// those without a handle are: nobody can use them, and they stay until it is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// The manager's name; its uuid if it was given none.
    pub manager: String,
    /// Where it was made.
    pub created: Site,
    /// Managers below it, which end with it.
    pub managers: usize,
    /// The lines, most bytes first.
    pub lines: Vec<Line>,
}

impl LeakReport {
    /// Of these arrays of a manager and of those below it. Borrowed ones go back to their lenders.
    pub(super) fn new((manager, created): (String, Site), managers: usize, arrays: Vec<Proxy>) -> Self {
        let is_own = |array: &Proxy| registry::slot(array.key().index()).core.state() & LENT == 0;
        LeakReport { manager, created, managers, lines: alive(arrays, &is_own).sorted() }
    }

    /// Whether nothing would end but managers.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Arrays.
    pub fn arrays(&self) -> u64 {
        self.lines.iter().map(|line| line.arrays).sum()
    }

    /// Their bytes, each storage once.
    pub fn bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }

    /// Arrays that nobody has a handle of: they fell while the switch was off.
    pub fn dead(&self) -> u64 {
        self.lines.iter().map(|line| line.kept).sum()
    }

    /// Their bytes.
    pub fn dead_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.kept_bytes).sum()
    }

    /// Arrays with handles, each use of which is an error after the close.
    pub fn held(&self) -> u64 {
        self.arrays() - self.dead()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeakReport { manager, created, managers, lines } = self;
        write!(f, "manager {manager}, made at {created}")?;
        if *managers > 0 {
            write!(f, ", with {} below it", counted(*managers as u64, "manager"))?;
        }
        if lines.is_empty() {
            return f.write_str(": no array ends with it");
        }
        let ends = if self.arrays() == 1 { "ends" } else { "end" };
        write!(f, ": {}, {}, {ends} with it", counted(self.arrays(), "array"), Bytes(self.bytes()))?;
        match (self.dead(), self.held()) {
            (0, _) => f.write_str("; all have handles, each use of which is an error then")?,
            (_, 0) => f.write_str("; nobody has a handle of them")?,
            (dead, held) => {
                write!(f, "; {dead} ({}) without a handle, {held} with handles", Bytes(self.dead_bytes()))?;
            }
        }
        for line in lines.iter().take(LINES_MAX) {
            write!(f, "\n    {line}")?;
        }
        match lines.len().saturating_sub(LINES_MAX) {
            0 => Ok(()),
            more => write!(f, "\n    and {} more", counted(more as u64, "line")),
        }
    }
}

/// Whether a debug build says on standard error what ends with each manager that is closed, or dropped, with arrays:
/// one [`LeakReport`], of at most eight lines. Off at first, since managers end arrays all the time; `NDGC_LEAKS=on`
/// sets it at the start. Returns what was set before. Builds without `debug_assertions` say nothing.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, memory};
/// memory::set_leak_reports(true);
/// let session = NdManager::new_base_manager(&Device::Cpu)?;
/// session.zeros(256, DType::F32)?;
/// session.close()?; // ndgc: manager 6e64..., made at src/main.rs:4:15: 1 array, 1.00 KiB, ends with it; ...
/// # memory::set_leak_reports(false);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn set_leak_reports(on: bool) -> bool {
    let before = are_wanted();
    MODE.store(if on { ON } else { OFF }, Ordering::Relaxed);
    before
}

fn are_wanted() -> bool {
    if MODE.load(Ordering::Relaxed) == UNREAD {
        let mode = match env::var("NDGC_LEAKS").as_deref() {
            None | Some("off") => OFF,
            Some("on") => ON,
            Some(other) => {
                say(format_args!("NDGC_LEAKS={other} is not understood; it may be on or off"));
                OFF
            }
        };
        // Another thread may have set it meanwhile.
        let _ = MODE.compare_exchange(UNREAD, mode, Ordering::Relaxed, Ordering::Relaxed);
    }
    MODE.load(Ordering::Relaxed) == ON
}

/// Says what ends now, if the program wants that.
pub(super) fn report_if_wanted(report: impl FnOnce() -> LeakReport) {
    if !cfg!(debug_assertions) || !are_wanted() {
        return;
    }
    let report = report();
    if !report.is_empty() {
        say(format_args!("{report}"));
    }
}
