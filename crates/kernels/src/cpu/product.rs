//! Products of matrices of floats, by a library that takes addresses and strides.

use gemm_common::Parallelism;

use super::{
    matmul::{Matrix, Target, at_once},
    number::Float,
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
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    mut dst: Target<'_, T>,
    threads: usize,
) {
    assert!(m * n * k > 0 && n <= dst.step && dst.data.len() >= (m - 1) * dst.step + n, "the product fits its place");
    lhs.check(m, k);
    rhs.check(k, n);
    if at_once([m, k, n], lhs, rhs, &mut dst) {
        return;
    }
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: `check` found both first elements inside their slices.
    #[allow(unsafe_code)]
    let (left, right) = unsafe { (lhs.data.as_ptr().offset(lhs.start), rhs.data.as_ptr().offset(rhs.start)) };
    // The routine prefers columns to rows, so it is given the transposed product, unless that is one column.
    let ([lr, lc], [rr, rc], step) = (lhs.steps, rhs.steps, dst.step as isize);
    let ((rows, columns), (mut a, mut ac, ar), (mut b, bc, mut br)) = match step {
        1 => ((m, n), (left, lc, lr), (right, rc, rr)),
        _ => ((n, m), (right, rr, rc), (left, lr, lc)),
    };
    if ac < 0 {
        // It wants the inner axis of the first side ascending; the order of the sums is its own business.
        (a, b) = (a.wrapping_offset((k - 1) as isize * ac), b.wrapping_offset((k - 1) as isize * br));
        (ac, br) = (-ac, -br);
    }
    let kept = if dst.add { T::ONE } else { T::ZERO };
    let (to, add, one) = (dst.data.as_mut_ptr(), dst.add, T::ONE);
    // SAFETY: `check` found that every `start + i * steps[0] + j * steps[1]` lies inside the slice of that side, and the
    // same places are reached in the other order; `dst` has `m` rows of `n` elements, `step` apart and so apart from each
    // other, and is borrowed for this call alone.
    #[allow(unsafe_code)]
    unsafe {
        T::general()(
            rows,
            columns,
            k,
            to,
            step,
            1,
            add,
            a,
            ac,
            ar,
            b,
            bc,
            br,
            kept,
            one,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The general routine: sizes M, N, K; the destination, its steps to the next column and row, and whether it is read; both
/// sides in the same form; factors of the destination and of the product; what is conjugated; threads.
type General<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A float that the library multiplies matrices of.
pub(super) trait Multiplied: Float {
    /// The routine for the vector units of this machine.
    fn general() -> General<Self>;
}

impl Multiplied for f32 {
    fn general() -> General<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Multiplied for f64 {
    fn general() -> General<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}
