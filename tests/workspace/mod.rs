//! Workspaces: what ND4J's tests assert (W1 to W63, A1 to A6), and what goes beyond.

mod support;

mod accounting;
mod audited;
mod basics;
mod budgets;
mod circular;
mod debug;
mod failure;
mod host_only;
mod leaks;
mod learning;
mod mapped;
mod nd4j;
mod nested_order;
mod nesting;
mod planned;
mod prefetch;
mod rings;
mod survivors;
