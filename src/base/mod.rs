//! The vocabulary every layer speaks: errors, dtypes, shapes, layouts, units, the environment.
//!
//! Pure data and arithmetic; nothing here owns memory of a tensor or knows a device.

#[cfg(not(loom))]
pub(crate) mod context;
#[cfg(not(loom))]
pub(crate) mod dtype;
#[cfg(not(loom))]
pub(crate) mod env;
#[cfg(not(loom))]
pub(crate) mod error;
#[cfg(not(loom))]
pub(crate) mod layout;
#[cfg(not(loom))]
pub(crate) mod leak;
#[cfg(not(loom))]
pub(crate) mod shape;
pub(crate) mod sync;
#[cfg(not(loom))]
pub(crate) mod units;
