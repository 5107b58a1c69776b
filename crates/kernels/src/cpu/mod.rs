//! The host: runs kernels on memory that this process can read, before the call returns.
//!
//! `open.rs` turns views into slices; `typed.rs`, `maps.rs` and `dispatch.rs` choose the code for their dtype. All of
//! it is safe Rust but that door, and the calls of code for vector units.
//!
//! ```text
//! open.rs           the door: from views to slices
//! operand.rs        operands as bytes, and as elements
//! types.rs          from a dtype to a type
//! number.rs         arithmetic of one element, for each dtype that has its own
//! low_precision.rs  dtypes of low precision, block by block in their compute dtype
//! compute_copy.rs   the same with whole operands
//! math.rs           e^x, ln, tanh, sin and cos that vectorise
//! special.rs        the error function and its relatives
//! vector.rs         code for the widest vector units there are, a library's among it
//! strided.rs        strided operands as rows
//! threads.rs        the pool of threads
//! elementwise.rs    maps, arithmetic, comparison, choice
//! cast.rs           conversion between dtypes
//! reduce.rs         sums, means, extremes and where they are
//! softmax.rs        softmax, cross entropy, their gradients
//! matrix.rs         sides and places of products
//! matmul.rs         products of matrices
//! product.rs        those of floats: tiny ones, and others
//! blocked.rs        in blocks, by the kernels of a library
//! bits.rs           bits of integers
//! conv.rs           convolutions
//! pooling.rs        extremes and means under a window
//! resize.rs         images of other sizes
//! scan.rs           running sums and the like
//! norm.rs           rows made even
//! few.rs            a few dense numbers, on the spot
//! index.rs          picking and adding by indices
//! random.rs         counter-based random numbers
//! optim.rs          steps of optimisers
//! typed.rs          kernels with the types of their dtypes
//! maps.rs           elementwise ones
//! dispatch.rs       those of windows and along axes
//! ```

mod bits;
mod blocked;
mod cast;
mod compute_copy;
pub mod conv;
mod dispatch;
mod dots;
mod elementwise;
pub mod few;
mod index;
mod low_precision;
mod maps;
mod math;
mod matmul;
mod matrix;
mod norm;
mod number;
mod open;
mod operand;
mod optim;
mod pooling;
mod product;
pub mod quantized;
mod random;
mod reduce;
mod resize;
mod rows;
mod scan;
mod softmax;
mod special;
mod strided;
pub mod threads;
mod typed;
mod types;
mod vector;

pub use libm::erf;
pub use math::sin_cos_turns;
pub use open::{run, run_again, run_on_copies};
