//! Products of matrices of floats: the tiny ones here, the others by a library.

use super::{
    blocked::multiply,
    matmul::at_once,
    matrix::{Matrix, Target},
    vector::Multiplied,
};

/// `dst = lhs x rhs` of `[M, K, N]`, all at least 1; `dst` is row-major. On up to that many threads of the current
/// pool.
pub(super) fn product<T: Multiplied>(
    dims: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: &mut [T],
    threads: usize,
) {
    assert!(dst.len() == dims[0] * dims[2], "the destination is the product's");
    product_to(dims, lhs, rhs, Target { data: dst, step: dims[2], add: false }, threads);
}

/// As [`product`], to rows that may lie apart.
pub(super) fn product_to<T: Multiplied>(
    dims: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    mut dst: Target<'_, T>,
    threads: usize,
) {
    if !at_once(dims, lhs, rhs, &mut dst) {
        multiply(dims, lhs, rhs, dst, threads);
    }
}
