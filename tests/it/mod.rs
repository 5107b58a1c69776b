//! Conformance: what DJL's managers and its unmerged garbage-collected proxies do or meant to do, on every device and
//! in both positions of the switch. Areas and numbers are those of the reference (`djl.md` sections 1.8, 5 and 9).

mod support;

mod allowances;
mod attachment;
mod audited_reports;
mod better;
mod budget_programs;
mod budgets;
mod cap;
mod census;
mod closing;
mod defects;
mod errors;
mod exchanged;
mod flat;
mod found;
mod hierarchy;
mod leaks;
mod lending;
mod limits;
mod lines;
mod pressure;
mod reclaim;
mod replay;
mod scopes;
mod stats;
mod texts;
mod threads;
mod timeline;
mod told;
mod watch;
