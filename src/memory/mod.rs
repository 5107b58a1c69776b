//! What lives, whose it is, and what has grown: by the line of the source that made it.
//!
//! [`lines()`] lists the live arrays by line; [`mark`] and [`Mark::diff`], or [`growth`] for a loop, say what has grown
//! and what keeps it; [`no_growth`] makes a test fail that leaks. [`watch()`] shows it while a program runs,
//! and [`trim`] gives back what it can. [`timeline`](timeline()) is what happened in a run, and a [`Recording`] of it
//! says what another pool would have done.

// Who lives how long: keys, registry, reclaim queue, owners, managers, reports.
//
// This layer owns the lifetimes and knows no mathematics. In reading order: what a slot is and how it ends (`slot`),
// how readers say that they use one (`hazard`), how dead ones wait (`queue`), when a cycle of arrays ends (`cycle`);
// the registry built of these; who owns an array (`owner`, `loan`, `manager`; while operations are composed of others
// `composed`), and how much there may be (`budget`, `admission`); what drains (`reclaim`, by itself `window` and
// `periodic`), and what is tried where there is no memory (`pressure`); what handles do (`handle`, `proxy`), alone and
// with managers (`ownership`); arenas for cycles (`workspace`, `readers`); what is told (`report`, `line`, `lines`,
// `leaks`, `stats`, `gc`; of a whole run `trace`, `timeline` and `replay`, of one that goes on `watch`).
//
// # Words for the end of an array
// It ends once, and its slot is used again once; both take several acts, each with a word of its own:
//
// | act | word | where |
// | --- | --- | --- |
// | somebody ends it: by hand, with its manager, after its cycle | close | `registry/ending.rs` |
// | it is taken from its owner; who has it moves or ends it alone | take | `owner.rs` |
// | its state leaves *open*: nobody who comes later reads it | begin to close | `slot.rs` |
// | its body comes out, when no record announces it any more | finish | `slot.rs`, `registry/ending.rs` |
// | a handle goes | drop | `proxy.rs`, `slot.rs` |
// | the last one goes, and its count waits in the queue | queue | `registry/ending.rs`, `queue.rs` |
// | the last one goes, and its count stays with the manager | keep | `slot.rs` |
// | the last one goes of one that is closed, and the slot is recycled at once | drop | `registry/ending.rs` |
// | such a count is taken back | unkeep | `slot.rs` |
// | slots leave the queue, a batch at a time | drain | `reclaim.rs` |
// | one that left it gives up its count | reap | `registry/ending.rs` |
// | a count is given up; if it was the last, what is left is ended | take the last, end an orphan | `slot.rs`, `registry/ending.rs` |
// | that happens while somebody else is closing it, who then recycles | orphan | `slot.rs` |
// | its only handle is used up, and what it held goes to the caller | take over | `registry/ending.rs` |
// | its slot is vacant, with the next generation | recycle; vacate, where what it held is asked for | `slot.rs`, `registry/ending.rs` |
// | what it was like is no longer shown | hide | `metadata.rs` |
// | who lent it is no longer known | forget | `owner.rs` |
//
// Of a workspace: a cycle *ends* (`workspace/validity.rs`), and its arrays with it, without any of these; their slots
// are recycled after their last handles, and those with a recorded gradient are closed. A block *retires* until nobody
// uses it, and is *swept* (`workspace/retired.rs`). A thread that ends *flushes* what it has in stock.

pub(crate) mod allowance;
pub(crate) mod cycle;
pub(crate) mod hazard;
pub(crate) mod queue;
pub(crate) mod slot;

#[cfg(not(loom))]
pub(crate) mod admission;
#[cfg(not(loom))]
pub(crate) mod budget;
#[cfg(not(loom))]
pub(crate) mod census;
#[cfg(not(loom))]
pub(crate) mod composed;
#[cfg(not(loom))]
pub(crate) mod exit;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod gc;
#[cfg(not(loom))]
pub(crate) mod handle;
#[cfg(not(loom))]
pub(crate) mod key;
#[cfg(not(loom))]
pub(crate) mod leaks;
#[cfg(not(loom))]
pub(crate) mod level;
#[cfg(not(loom))]
pub(crate) mod line;
#[cfg(not(loom))]
pub(crate) mod lines;
#[cfg(not(loom))]
pub(crate) mod loan;
#[cfg(not(loom))]
pub(crate) mod manager;
#[cfg(not(loom))]
pub(crate) mod metadata;
#[cfg(not(loom))]
pub(crate) mod node;
#[cfg(not(loom))]
pub(crate) mod owner;
#[cfg(not(loom))]
pub(crate) mod ownership;
#[cfg(not(loom))]
pub(crate) mod periodic;
#[cfg(not(loom))]
pub(crate) mod pressure;
#[cfg(not(loom))]
pub(crate) mod proxy;
#[cfg(not(loom))]
pub(crate) mod readers;
#[cfg(not(loom))]
pub(crate) mod reclaim;
#[cfg(not(loom))]
pub(crate) mod registry;
#[cfg(not(loom))]
pub(crate) mod replay;
#[cfg(not(loom))]
pub(crate) mod report;
#[cfg(not(loom))]
pub(crate) mod slab;
#[cfg(not(loom))]
pub(crate) mod stats;
#[cfg(not(loom))]
pub(crate) mod storage;
#[cfg(not(loom))]
pub(crate) mod switch;
#[cfg(not(loom))]
pub(crate) mod threads;
#[cfg(not(loom))]
pub(crate) mod timeline;
#[cfg(not(loom))]
pub(crate) mod trace;
#[cfg(not(loom))]
pub(crate) mod watch;
#[cfg(not(loom))]
pub(crate) mod window;
#[cfg(not(loom))]
pub(crate) mod workspace;

#[cfg(not(loom))]
pub use admission::parse_limit;
#[cfg(not(loom))]
pub use leaks::{LeakReport, set_leak_reports};
#[cfg(not(loom))]
pub use lines::{Growth, Line, LineGrowth, Mark, NoGrowth, growth, lines, mark, no_growth};
#[cfg(not(loom))]
pub use pressure::{
    Pressure, Reclaimer, Trim, crash_report, on_pressure, set_crash_report, set_device_spill, set_spill, trim,
    with_oom_retry, with_oom_split,
};
#[cfg(not(loom))]
pub use replay::{HostPool, Recording, ReplayPool, Replayed, Segments};
#[cfg(all(not(loom), feature = "metrics"))]
pub use stats::publish_metrics;
#[cfg(not(loom))]
pub use stats::{Scope, Stats, clear_scopes, scope, scopes, stats};
#[cfg(not(loom))]
pub use timeline::{Event, EventKind, Span, Timeline, timeline};
#[cfg(not(loom))]
pub use trace::{TraceMode, clear_trace, set_trace, set_trace_bytes};
#[cfg(not(loom))]
pub use watch::{Frame, FrameRow, Watch, frame, watch};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
