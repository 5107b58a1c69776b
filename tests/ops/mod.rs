//! Operations: every one against naive loops, on the host and on the simulated device, in both positions of the
//! switch; and every gradient against central differences.

mod reference;
mod support;

mod attention;
mod audited;
mod audited_grad;
mod audited_layers;
mod audited_nn;
mod autograd;
mod bent;
mod cases;
mod conv;
mod display;
mod dlpack;
mod drop_in;
mod dtypes;
mod errors;
#[cfg(feature = "linalg")]
mod factors;
mod foreign;
#[cfg(feature = "fft")]
mod fourier;
mod gradcheck;
mod gradcheck_more;
mod gradients;
mod hostile;
mod indexing;
mod inplace;
mod into;
mod logic;
mod math;
mod matmul;
mod modules;
mod moe;
#[cfg(feature = "ndarray")]
mod ndarrays;
mod nn_ops;
mod optim;
mod order;
mod pool;
mod quantized;
mod random;
mod reductions;
mod reuse;
mod scalars;
mod scan;
mod shadowing;
mod shapes;
mod slices;
mod special;
mod streaming;
mod views;
mod walks;
