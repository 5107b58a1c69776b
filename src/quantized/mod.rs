//! Weights of a few bits a number, as GGUF and GGML files have them: blocks that share scales, under candle's names.
//!
//! A [`QTensor`] is its blocks, an ordinary array of bytes ([`QTensor::blocks`]): it has an owner, is counted and
//! reported, and ends like any other. [`QMatMul`] multiplies with them as they are, a row of blocks at a time, so that
//! there is no copy of the weights as floats. [`gguf_file`] and [`ggml_file`] read files, a mapped one without a copy.
//!
//! The code for blocks is the host's. On another device blocks can be kept and moved; a [`QMatMul`] of them is made of
//! their numbers as floats, which are computed on the host and sent there once.

#![forbid(unsafe_code)]

pub mod ggml_file;
pub mod gguf_file;
pub mod k_quants;
mod matmul;
mod tensor;

pub use crate::base::ggml::GgmlDType;
pub use k_quants::GgmlType;
pub use matmul::QMatMul;
pub use tensor::{QStorage, QTensor};
