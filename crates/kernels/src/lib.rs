//! What [ndgc](https://docs.rs/ndgc) computes with: the vocabulary that all of it speaks (`base`), what a device can be
//! asked to do (`kernel`, `operations`, `window`, `along`), and the code that does it on the host (`cpu`).
//!
//! A crate of its own so that a change above never compiles the loops again. It owns no memory of a tensor, and promises
//! nothing to anybody but the crate `ndgc`, which shows its users what is theirs.

// What users never see says what it is where there is something to say.
#[allow(missing_docs)]
pub mod along;
pub mod base;
#[allow(missing_docs)]
pub mod cpu;
#[allow(missing_docs)]
pub mod kernel;
#[allow(missing_docs)]
pub mod operations;
#[allow(missing_docs)]
pub mod span;
#[allow(missing_docs)]
pub mod window;
