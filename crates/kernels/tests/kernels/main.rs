//! The vocabulary and the host's kernels, asked from outside: the crate is compiled once, as others use it.

mod base;
mod cpu;
