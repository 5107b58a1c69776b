//! Reductions over axes, running ones, statistics, and order.

pub(crate) mod reduce;

pub(crate) mod order;
pub(crate) mod scan;
pub(crate) mod stats;
