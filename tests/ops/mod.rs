//! Operations: every one against naive loops, on the host and on the simulated device, in both positions of the
//! switch; and every gradient against central differences.

#[path = "../../crates/kernels/tests/kernels/cpu/formulas.rs"]
mod formulas;
mod reference;
mod support;

mod attention;
mod audited;
mod audited_grad;
mod audited_layers;
mod audited_nn;
mod autograd;
mod cases;
mod conv;
mod display;
mod dlpack;
mod drop_in;
mod dtypes;
mod errors;
mod foreign;
mod gradcheck;
mod gradcheck_more;
mod gradients;
mod gradients_checked;
mod hostile;
mod indexing;
mod inplace;
mod into;
mod logic;
mod math;
mod matmul;
mod modules;
mod moe;
mod nn_ops;
mod of_one;
mod of_two;
mod optim;
mod order;
mod pool;
mod pytorch;
mod quantized;
mod random;
mod rectifier;
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
