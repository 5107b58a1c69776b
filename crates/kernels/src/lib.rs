//! What [ndgc](https://docs.rs/ndgc) computes with: the vocabulary that all of it speaks (`base`), what a device can be
//! asked to do (`kernel`, `view`, `operations`, `window`, `axiswise`), and the code that does it on the host (`cpu`).
//!
//! A crate of its own so that a change above never compiles the loops again. It owns no memory of a tensor, and
//! promises nothing to anybody but the crate `ndgc`, which shows its users what is theirs.

#![allow(missing_docs)] // What users never see says what it is where there is something to say.

pub mod axiswise;
#[warn(missing_docs)] // users see it
pub mod base;
pub mod cpu;
pub mod kernel;
pub mod operations;
pub mod shared;
pub mod span;
pub mod view;
pub mod window;
