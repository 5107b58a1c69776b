//! Operations, one family a file: the method, its checks, its gradient.
//!
//! Every operation takes the one road of `exec`. Results follow one rule of ownership: the owner of the first
//! operand (the receiver; for `cat` and `stack` the first element; for `where_cond` the value where it holds).

pub(crate) mod activation;
pub(crate) mod binary;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod compare;
pub(crate) mod compose;
pub(crate) mod conv;
pub(crate) mod convert;
pub(crate) mod create;
pub(crate) mod custom;
pub(crate) mod direct;
pub mod dlpack;
pub(crate) mod draws;
pub(crate) mod einsum;
pub(crate) mod exec;
pub(crate) mod expression;
#[cfg(feature = "linalg")]
pub mod factors;
pub(crate) mod foreign;
#[cfg(feature = "fft")]
pub mod fourier;
pub(crate) mod generate;
pub(crate) mod index;
pub(crate) mod indexer;
pub(crate) mod inplace;
pub(crate) mod into;
pub(crate) mod linalg;
pub(crate) mod logic;
pub(crate) mod math;
pub(crate) mod matmul;
#[cfg(feature = "ndarray")]
pub(crate) mod ndarrays;
pub(crate) mod ndindex;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod order;
pub(crate) mod pick;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod resize;
pub(crate) mod reuse;
pub(crate) mod scalar;
pub(crate) mod scan;
pub(crate) mod shape;
pub(crate) mod slice;
pub(crate) mod softmax;
pub(crate) mod stats;
pub(crate) mod unary;
pub(crate) mod var;
pub(crate) mod view;
