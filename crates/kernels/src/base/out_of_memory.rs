//! What is said where memory is exhausted.

use std::fmt;

use crate::base::{
    call::Site,
    units::{Bytes, counted},
};

/// Why there were no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutOfMemoryClass {
    /// The request alone is more than the limit, the budget or the machine has: closing arrays cannot help.
    TooBig,
    /// The budget of a manager or workspace has no room.
    OverBudget {
        /// The manager; of a workspace `workspace [NAME]`.
        manager: String,
        /// Bytes that are charged to it, or arrays.
        used: u64,
        /// The most bytes, or arrays, that it may have.
        max: u64,
        /// Whether it is a matter of arrays.
        is_arrays: bool,
    },
    /// The limit of the device has no room.
    OverLimit,
    /// The limit on what the process has resident, or a device's pool has from its driver, has no room.
    OverPhysicalLimit {
        /// Bytes that are resident, or the pool's and those of kernels and libraries.
        resident: u64,
        /// The limit.
        max: u64,
    },
    /// As many bytes are kept for reuse, in pieces that are too small.
    Fragmented,
    /// The system or the driver has none.
    Exhausted,
}

/// A step that was taken to find memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryStep {
    /// What was done: `drain`, `trim`, `collect_orphans`, the name of a reclaimer of the program's, or `spill`.
    pub name: &'static str,
    /// Bytes that it freed: of arrays, or of what was kept for reuse.
    pub freed: u64,
    /// How long it took.
    pub micros: u64,
}

impl RecoveryStep {
    #[doc(hidden)]
    pub fn new(name: &'static str, freed: u64, micros: u64) -> Self {
        RecoveryStep { name, freed, micros }
    }
}

/// An allocation that failed after all that could be done for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The operation.
    pub op: &'static str,
    /// Where the user called it, where that is known.
    pub site: Option<Site>,
    /// The device.
    pub device: String,
    /// The number of the thread.
    pub thread: u32,
    /// Bytes asked for.
    pub requested: u64,
    /// Why there were none.
    pub class: OutOfMemoryClass,
    /// What was tried, in order.
    pub steps: Vec<RecoveryStep>,
    /// Bytes of live arrays.
    pub active: u64,
    /// Bytes kept for reuse.
    pub cached: u64,
    /// Those of the largest block of them: the largest request that needs no more memory.
    pub largest_free: u64,
    /// The limit in force, if one is.
    pub limit: Option<u64>,
    /// Of [`OutOfMemoryClass::TooBig`]: the manager whose budget is less than the request, and its bytes.
    pub budget: Option<(String, u64)>,
    /// Dead arrays that were closed on the way here.
    pub reclaimed: u64,
    /// Bytes of the device that live arrays had less when they were.
    pub reclaimed_bytes: u64,
    /// What follows is estimated from one of so many arrays, since more cannot be looked at within milliseconds; 1 if
    /// it is of all.
    pub one_of: u64,
    /// Dead arrays of the device that managers keep, because they fell while the switch was off.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Who holds most: managers, workspaces (with their blocks as arrays), and the handles of arrays without a manager;
    /// name, arrays, bytes.
    pub largest: Vec<(String, u64, u64)>,
    /// The lines of the source whose arrays have most bytes: line, arrays, bytes.
    pub lines: Vec<(Option<Site>, u64, u64)>,
}

impl OutOfMemory {
    /// The heap of the process has no room for so many bytes.
    #[doc(hidden)]
    pub fn on_the_heap(op: &'static str, requested: u64) -> Self {
        Self::of("the heap".into(), op, requested)
    }

    /// A refusal of which nothing else is known.
    #[doc(hidden)]
    pub fn of(device: String, op: &'static str, requested: u64) -> Self {
        OutOfMemory {
            op,
            site: None,
            device,
            thread: 0,
            requested,
            class: OutOfMemoryClass::Exhausted,
            steps: Vec::new(),
            active: 0,
            cached: 0,
            largest_free: 0,
            limit: None,
            budget: None,
            reclaimed: 0,
            reclaimed_bytes: 0,
            one_of: 1,
            kept: 0,
            kept_bytes: 0,
            largest: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Bytes that the device could still hand out if all that is kept were given back: within its limit those that no
    /// live array with a handle has; without one those kept for reuse and by managers.
    pub fn reachable(&self) -> u64 {
        // What is kept need not be active bytes of the device, and is estimated among many arrays.
        let others = self.limit.map_or(self.cached, |limit| limit.saturating_sub(self.active));
        others.saturating_add(self.kept_bytes)
    }
}

/// ND4J's sentence, then what it does not say.
impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let oom = self;
        let OutOfMemory { op, device, requested, largest, lines, .. } = oom;
        let kind = if device == "cpu" || device == "the heap" { "HOST" } else { "DEVICE" };
        write!(f, "Can't allocate [{kind}] memory: {requested}; threadId: {}; ", oom.thread)?;
        write!(f, "{op} wants {} on {device}, ", Bytes(*requested))?;
        fmt_class(f, oom)?;
        let (about, estimated) = match oom.one_of {
            0 | 1 => ("", String::new()),
            one_of => ("about ", format!(", estimated from one of {one_of} arrays")),
        };
        fmt_bytes(f, oom, about)?;
        for (i, step) in oom.steps.iter().enumerate() {
            let lead = if i == 0 { "; tried: " } else { ", " };
            write!(f, "{lead}{} {}", step.name, Bytes(step.freed))?;
        }
        for (i, (manager, arrays, bytes)) in largest.iter().enumerate() {
            let lead = if i == 0 { format!("; largest owners{estimated}: ") } else { ", ".to_owned() };
            write!(f, "{lead}`{manager}` ({}, {})", counted(*arrays, "array"), Bytes(*bytes))?;
        }
        let known = lines.iter().filter_map(|&(site, arrays, bytes)| Some((site?, arrays, bytes)));
        for (i, (site, arrays, bytes)) in known.enumerate() {
            let lead = if i == 0 { format!("; largest lines{estimated}: ") } else { ", ".to_owned() };
            write!(f, "{lead}{site} ({}, {})", counted(arrays, "array"), Bytes(bytes))?;
        }
        fmt_advice(f, oom, about)
    }
}

/// What the device has.
fn fmt_bytes(f: &mut fmt::Formatter<'_>, oom: &OutOfMemory, about: &str) -> fmt::Result {
    let OutOfMemory { active, cached, largest_free, limit, reclaimed, reclaimed_bytes, kept_bytes, .. } = oom;
    write!(f, ": {} live, {} kept for reuse", Bytes(*active), Bytes(*cached))?;
    if *largest_free > 0 {
        write!(f, " (at most {} in one piece)", Bytes(*largest_free))?;
    }
    let about = if *kept_bytes > 0 { about } else { "" };
    write!(f, ", {about}{} reachable", Bytes(oom.reachable()))?;
    if let Some(limit) = limit {
        write!(f, ", limit {}", Bytes(*limit))?;
    }
    write!(f, ", {}", counted(*reclaimed, "dead array"))?;
    if *reclaimed > 0 {
        write!(f, " of {}", Bytes(*reclaimed_bytes))?;
    }
    f.write_str(" closed first")
}

/// How to go on.
fn fmt_advice(f: &mut fmt::Formatter<'_>, oom: &OutOfMemory, about: &str) -> fmt::Result {
    let spills = match oom.device.as_str() {
        _ if oom.steps.iter().any(|step| step.name == "spill") => None,
        "the heap" => None,
        "cpu" => Some("give memory::set_spill() a folder"),
        _ => Some("let memory::set_device_spill() take memory of the host"),
    };
    match (oom.kept, &oom.class) {
        (_, OutOfMemoryClass::TooBig) => match &oom.budget {
            Some((manager, _)) => {
                write!(f, "; no close can make room for it: raise the budget of `{manager}`, or use smaller batches")
            }
            None => f.write_str("; no close can make room for it: use smaller batches"),
        },
        (0, OutOfMemoryClass::OverBudget { manager, .. }) if manager.starts_with("workspace [") => {
            f.write_str("; raise its budget, make less in a cycle, or use smaller batches")
        }
        (0, OutOfMemoryClass::OverBudget { manager, .. }) => {
            write!(f, "; close arrays of `{manager}`, raise its budget, or use smaller batches")
        }
        (0, OutOfMemoryClass::Fragmented) => {
            f.write_str("; clear_cache() gives the pieces back, and a workspace keeps one block for all")
        }
        (0, _) => match spills {
            Some(spills) => write!(f, "; close one, use smaller batches, or {spills}"),
            None => f.write_str("; close one, or use smaller batches"),
        },
        (kept, _) => write!(
            f,
            "; {about}{} of {} kept by their managers: gc::collect_orphans() gives them back, and with gc::on() none are kept",
            counted(kept, "dead array"),
            Bytes(oom.kept_bytes)
        ),
    }
}

fn fmt_class(f: &mut fmt::Formatter<'_>, oom: &OutOfMemory) -> fmt::Result {
    match &oom.class {
        OutOfMemoryClass::TooBig => match &oom.budget {
            Some((manager, bytes)) => write!(f, "more than the budget of `{manager}`, which is {}", Bytes(*bytes)),
            None => f.write_str("more than there can be"),
        },
        OutOfMemoryClass::OverBudget { manager, used, max, is_arrays: false } => {
            write!(f, "over the budget of `{manager}`, which has {} of {}", Bytes(*used), Bytes(*max))
        }
        OutOfMemoryClass::OverBudget { manager, used, max, is_arrays: true } => {
            write!(f, "over the budget of `{manager}`, which has {used} of {}", counted(*max, "array"))
        }
        OutOfMemoryClass::OverLimit => f.write_str("over the limit of the device"),
        OutOfMemoryClass::OverPhysicalLimit { resident, max } => {
            let (resident, max) = (Bytes(*resident), Bytes(*max));
            write!(f, "over the physical limit: {resident} of {max} are taken")
        }
        OutOfMemoryClass::Fragmented => f.write_str("and what is kept for reuse is in smaller pieces"),
        OutOfMemoryClass::Exhausted => f.write_str("and there is no more memory"),
    }
}
