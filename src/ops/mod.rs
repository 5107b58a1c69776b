//! Operations, a folder for each subject and a file for each family: the method, its checks, its gradient.
//!
//! Every operation runs through `call/exec.rs`. Results follow one rule of ownership: the owner of the first
//! operand (the receiver; for `cat` and `stack` the first element; for `where_cond` the value where it holds).

// In the order in which the docs show the methods of arrays.
pub(crate) mod workspace;

pub(crate) mod create;
pub(crate) mod index;
pub(crate) mod shape;

pub(crate) mod convert;
pub(crate) mod elementwise;

pub(crate) mod reduction;

pub(crate) mod linalg;
pub(crate) mod nn;

pub(crate) mod extension;

pub(crate) mod call;
pub(crate) mod exchange;
pub(crate) mod grad;
