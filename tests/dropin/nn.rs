//! ndgc's layers under candle-nn's name.

pub use ndgc::nn::*;
