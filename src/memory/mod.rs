//! Who lives how long: keys, registry, reclaim queue, owners, managers, reports.
//!
//! This layer owns the lifetimes and knows no mathematics. In reading order: what a slot is and how it ends
//! (`slot`), how readers say that they use one (`hazard`), how dead ones wait (`queue`), when a cycle of arrays ends
//! (`cycle`); the registry built of these; who owns an array (`owner`, `loan`, `manager`); what drains (`reclaim`);
//! what is told (`report`, `gc`).

pub(crate) mod cycle;
pub(crate) mod hazard;
pub(crate) mod queue;
pub(crate) mod slot;

#[cfg(not(loom))]
pub mod gc;
#[cfg(not(loom))]
pub(crate) mod handle;
#[cfg(not(loom))]
pub(crate) mod key;
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
pub(crate) mod proxy;
#[cfg(not(loom))]
pub(crate) mod readers;
#[cfg(not(loom))]
pub(crate) mod reclaim;
#[cfg(not(loom))]
pub(crate) mod registry;
#[cfg(not(loom))]
pub(crate) mod report;
#[cfg(not(loom))]
pub(crate) mod slab;
#[cfg(not(loom))]
pub(crate) mod storage;
#[cfg(not(loom))]
pub(crate) mod switch;
#[cfg(not(loom))]
pub(crate) mod threads;
#[cfg(not(loom))]
pub(crate) mod workspace;

#[cfg(all(test, loom))]
mod loom_tests;
