//! Training, evaluation and serving of networks.
#![forbid(unsafe_code)]

pub mod data;
pub mod evaluation;
pub mod network;
pub mod parallel;

pub use data::*;
pub use evaluation::*;
pub use network::*;
pub use parallel::*;
