//! The vocabulary every layer speaks: errors, dtypes, shapes, layouts, units, the environment.
//!
//! Pure data and arithmetic; nothing here owns memory of a tensor or knows a device.

pub mod blocks;
pub mod call;
pub mod context;
pub mod dtype;
pub mod env;
pub mod error;
pub mod ggml;
pub mod heap;
pub mod layout;
pub mod leak;
pub mod limits;
pub mod literal;
pub mod order;
pub mod out_of_memory;
pub mod parse;
pub mod say;
pub mod shape;
pub mod units;
