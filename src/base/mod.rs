//! The vocabulary every layer speaks: that of the kernels, and the atomics of this crate.

#[cfg(not(loom))]
pub(crate) mod contain;
#[cfg(not(loom))]
pub(crate) mod context;
#[cfg(not(loom))]
pub(crate) mod local;
pub(crate) mod sync;
#[cfg(not(loom))]
pub(crate) mod system;
#[cfg(not(loom))]
pub(crate) mod work;

#[cfg(not(loom))]
pub(crate) use ndgc_kernels::base::{
    blocks, call, dtype, env, error, ggml, heap, layout, leak, literal, order, out_of_memory, say, shape, units,
};
