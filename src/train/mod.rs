//! Training, evaluation and serving of networks.
#![forbid(unsafe_code)]

pub mod data;

pub use data::*;
