//! Products, sums over letters, factorisations, Fourier transforms.

pub(crate) mod matmul;

pub(crate) mod einsum;
#[cfg(feature = "linalg")]
pub mod factors;
#[cfg(feature = "fft")]
pub mod fourier;
pub(crate) mod products;
