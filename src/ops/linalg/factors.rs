//! Inverses, solutions and factorisations of dense matrices: `ndgc::linalg`, with the feature `linalg`.
//!
//! Matrices are the last two axes; axes before them count matrices. Floats; the work is done in f64 on the host, by the
//! crate `faer`, whatever dtype and device the operand has, and the result goes back to both. So on another device each
//! call copies there and back, and waits.

use faer::linalg::solvers::{DenseSolveCore, PartialPivLu, Solve};
use faer::{MatRef, Side};

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
    heap,
    shape::{D, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, shape_of, wrong_shape},
        exec::once,
        inplace::EXCHANGED,
    },
    elementwise::unary::one,
};

/// Matrices on the host, row-major, one after the other.
struct Matrices {
    call: Call,
    data: Vec<f64>,
    shape: Shape,
    rows: usize,
    columns: usize,
}

impl Matrices {
    fn of(call: Call, x: &Proxy) -> Result<Self> {
        check::float(call, x.dtype())?;
        let read = no_grad(|| x.aside()?.to_dtype(DType::F64)?.elements::<f64>(call.op));
        let (shape, data) = read.map_err(|error| error.of(call))?;
        let &[.., rows, columns] = shape.dims() else {
            return wrong_shape(call, x, "a matrix, or matrices behind other axes");
        };
        Ok(Matrices { call, data, shape, rows, columns })
    }

    fn square(call: Call, x: &Proxy) -> Result<Self> {
        let all = Self::of(call, x)?;
        if all.rows == all.columns { Ok(all) } else { wrong_shape(call, x, "square matrices") }
    }

    /// Each matrix with its number. There are none if they have no elements.
    fn each(&self) -> impl Iterator<Item = (usize, MatRef<'_, f64>)> {
        let (rows, columns) = (self.rows, self.columns);
        let each = self.data.chunks(usize::max(1, rows * columns));
        each.map(move |one| MatRef::from_row_major_slice(one, rows, columns)).enumerate()
    }

    /// The axes that count matrices, followed by others.
    fn dims(&self, rest: &[usize]) -> Vec<usize> {
        [&self.shape.dims()[..self.shape.rank() - 2], rest].concat()
    }

    /// As an error names a matrix that does not do.
    fn refused<R>(&self, number: usize, expected: &'static str) -> Result<R> {
        argument(self.call, "matrix", format!("number {number} of {:?}", self.shape.dims()), expected)
    }
}

fn append(to: &mut Vec<f64>, matrix: MatRef<'_, f64>) {
    (0..matrix.nrows()).for_each(|i| to.extend((0..matrix.ncols()).map(|j| matrix[(i, j)])));
}

/// Numbers as an array beside `x`: of its dtype, on its device.
fn beside(x: &Proxy, data: Vec<f64>, dims: &[usize]) -> Result<Proxy> {
    no_grad(|| Proxy::from_vec(data, dims, x.device())?.to_dtype(x.dtype()))
}

/// The decomposition, if no pivot is 0 or not a number.
fn invertible(all: &Matrices, number: usize, matrix: MatRef<'_, f64>) -> Result<PartialPivLu<f64>> {
    let lu = matrix.partial_piv_lu();
    let pivots = lu.U();
    if (0..all.rows).any(|i| pivots[(i, i)] == 0.0 || !pivots[(i, i)].is_finite()) {
        return all.refused(number, "an invertible matrix of finite numbers");
    }
    Ok(lu)
}

fn turned(x: &Proxy) -> Result<Proxy> {
    x.transpose(D::Minus2, D::Minus1)
}

/// The inverse of each matrix `[.., n, n]`. With a gradient.
///
/// # Errors
/// [`Error::Argument`] that names a matrix without an inverse; [`Error::Shape`], [`Error::UnsupportedDType`],
/// [`Error::StaleArray`], [`Error::OutOfMemory`].
///
/// ```
/// # use ndgc::{Device, Tensor, linalg};
/// let a = Tensor::new(&[[2f64, 0.], [0., 4.]], &Device::Cpu)?;
/// assert_eq!(linalg::inverse(&a)?.to_vec2::<f64>()?, [[0.5, 0.], [0., 0.25]]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[doc(alias = "inv")]
#[track_caller]
pub fn inverse(a: &Proxy) -> Result<Proxy> {
    let call = Call::here("inverse");
    composite(call, a, &mut || {
        let all = Matrices::square(call, a)?;
        let mut data = Vec::with_capacity(all.data.len());
        for (number, matrix) in all.each() {
            append(&mut data, invertible(&all, number, matrix)?.inverse().as_ref());
        }
        beside(a, data, all.shape.dims())?.with_gradient(call, [a], true, |grad, operands, _| {
            let inverse = turned(&inverse(&operands[0])?)?;
            Ok(one(inverse.matmul(grad)?.matmul(&inverse)?.neg()?))
        })
    })
}

/// `x` with `a x = b`, for `a` of `[.., n, n]` and `b` of `[.., n, k]`, or of `[.., n]` for one vector each. With
/// gradients. More accurate than the product with the inverse, and faster.
///
/// ```
/// # use ndgc::{Device, Tensor, linalg};
/// let a = Tensor::new(&[[2f64, 0.], [0., 4.]], &Device::Cpu)?;
/// let b = Tensor::new(&[2f64, 8.], &Device::Cpu)?;
/// assert_eq!(linalg::solve(&a, &b)?.to_vec1::<f64>()?, [1., 2.]);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] if `b` does not fit; as [`inverse`].
#[track_caller]
pub fn solve(a: &Proxy, b: &Proxy) -> Result<Proxy> {
    let call = Call::here("solve");
    composite(call, a, &mut || {
        let all = Matrices::square(call, a)?;
        let (left, right) = (all.shape, *b.shape());
        if right.rank() + 1 == left.rank() {
            return solve(a, &b.unsqueeze(right.rank())?)?.squeeze(right.rank());
        }
        let lead = left.rank() - 1;
        if right.rank() != left.rank() || left.dims()[..lead] != right.dims()[..lead] {
            return Err(Error::shapes(call, &left, &right, "the second must have a row for each of the first"));
        }
        if a.dtype() != b.dtype() {
            return Err(Error::dtype_mismatch(call, a.dtype(), b.dtype()));
        }
        if a.device() != b.device() {
            return Err(Error::device_mismatch(call, a.device(), b.device()));
        }
        let rhs = Matrices::of(call, b)?;
        check::same_shape(call, &rhs.shape, &right, EXCHANGED)?;
        let mut data = Vec::with_capacity(rhs.data.len());
        for ((number, matrix), (_, wanted)) in all.each().zip(rhs.each()) {
            append(&mut data, invertible(&all, number, matrix)?.solve(wanted).as_ref());
        }
        beside(a, data, right.dims())?.with_gradient(call, [a, b], true, |grad, operands, needs| {
            let (a, b) = (&operands[0], &operands[1]);
            let to_b = solve(&turned(a)?, grad)?;
            let to_a = needs[0].then(|| to_b.matmul(&turned(&solve(a, b)?)?)?.neg()).transpose()?;
            Ok([to_a, needs[1].then_some(to_b), None])
        })
    })
}

/// The determinant of each matrix `[.., n, n]`, as `[..]`; 1 for matrices without elements. With a gradient where the
/// matrix has an inverse.
///
/// ```
/// # use ndgc::{Device, Error, Tensor, linalg};
/// let a = Tensor::new(&[[[2f64, 0.], [0., 4.]], [[1., 2.], [2., 4.]]], &Device::Cpu)?; // two matrices
/// assert_eq!(linalg::det(&a)?.to_vec1::<f64>()?, [8., 0.]);
/// assert!(matches!(linalg::inverse(&a), Err(Error::Argument { .. }))); // the second has none
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`inverse`], but that a matrix without an inverse has the determinant 0.
#[track_caller]
pub fn det(a: &Proxy) -> Result<Proxy> {
    let call = Call::here("det");
    composite(call, a, &mut || {
        let all = Matrices::square(call, a)?;
        let dims = all.dims(&[]);
        let mut data: Vec<f64> = all.each().map(|(_, matrix)| matrix.determinant()).collect();
        if all.rows == 0 {
            // Matrices without elements take no memory: there may be any number of them.
            let count = dims.iter().product();
            data = heap::room(call.op, count)?;
            data.resize(count, 1.0);
        }
        beside(a, data, &dims)?.with_gradient(call, [a], true, |grad, operands, _| {
            let a = &operands[0];
            let factor = det(a)?.mul(grad)?;
            let rank = factor.rank();
            Ok(one(turned(&inverse(a)?)?.broadcast_mul(&factor.unsqueeze(rank)?.unsqueeze(rank + 1)?)?))
        })
    })
}

/// The lower triangular `l` with `l l^T = a`, for each symmetric, positive definite matrix `[.., n, n]`, of which the
/// lower triangle is read. With a gradient.
///
/// ```
/// # use ndgc::{Device, Error, Tensor, linalg};
/// let a = Tensor::new(&[[4f64, 2.], [2., 5.]], &Device::Cpu)?;
/// assert_eq!(linalg::cholesky(&a)?.to_vec2::<f64>()?, [[2., 0.], [1., 2.]]);
/// let indefinite = Tensor::new(&[[1f64, 2.], [2., 1.]], &Device::Cpu)?;
/// assert!(matches!(linalg::cholesky(&indefinite), Err(Error::Argument { .. })));
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] that names a matrix that is not positive definite; as [`inverse`].
#[track_caller]
pub fn cholesky(a: &Proxy) -> Result<Proxy> {
    let call = Call::here("cholesky");
    composite(call, a, &mut || {
        let all = Matrices::square(call, a)?;
        let mut data = Vec::with_capacity(all.data.len());
        for (number, matrix) in all.each() {
            match matrix.llt(Side::Lower) {
                Ok(llt) if (0..all.rows).all(|i| llt.L()[(i, i)].is_finite()) => append(&mut data, llt.L()),
                _ => return all.refused(number, "a positive definite matrix"),
            }
        }
        beside(a, data, all.shape.dims())?.with_gradient(call, [a], true, |grad, operands, _| {
            // l^-T (lower half of l^T g) l^-1, made symmetric.
            let l = cholesky(&operands[0])?;
            let inner = turned(&l)?.matmul(&lower_of_each(grad)?)?;
            let inner = lower_of_each(&inner)?.sub(&diagonal_of_each(&inner)?.affine(0.5, 0.0)?)?;
            let inverse = inverse(&l)?;
            let half = turned(&inverse)?.matmul(&inner)?.matmul(&inverse)?;
            let full = half.add(&turned(&half)?)?.affine(0.5, 0.0)?;
            // Only the lower triangle was read: what the upper one would get is the lower one's.
            let upper = full.sub(&lower_of_each(&full)?)?;
            Ok(one(lower_of_each(&full)?.add(&turned(&upper)?)?))
        })
    })
}

/// The lower triangles, the rest 0.
fn lower_of_each(x: &Proxy) -> Result<Proxy> {
    let n = x.dim(D::Minus1)?;
    x.broadcast_mul(&Proxy::tril2(n, x.dtype(), x.device())?)
}

/// The diagonals, the rest 0.
fn diagonal_of_each(x: &Proxy) -> Result<Proxy> {
    let n = x.dim(D::Minus1)?;
    x.broadcast_mul(&Proxy::eye(n, x.dtype(), x.device())?)
}

/// What is computed of all matrices at once, and how each result continues the axes that count matrices.
type FactorParts<const N: usize> = [(Vec<f64>, Vec<usize>); N];

/// Several results of one computation, each with the owner of `a`.
fn parts<const N: usize>(call: Call, a: &Proxy, parts: FactorParts<N>) -> Result<[Proxy; N]> {
    let mut made = parts.map(|(data, dims)| Some(composite(call, a, &mut once(|| beside(a, data, &dims)))));
    if let Some(failed) = made.iter().position(|result| matches!(result, Some(Err(_)))) {
        // What was made for the owner of `a` does not stay there.
        made.iter().flatten().flatten().for_each(Proxy::close);
        return Err(made[failed].take().and_then(Result::err).unwrap_or_else(|| Error::msg("a part failed")));
    }
    Ok(made.map(|result| result.and_then(Result::ok).expect("none failed")))
}

/// `(p, l, u)` with `p l u = a`: a permutation, a lower triangular matrix with ones on the diagonal, an upper
/// triangular one; `[.., m, m]`, `[.., m, k]`, `[.., k, n]` for `a` of `[.., m, n]`, with k the smaller of both. No
/// gradient.
///
/// ```
/// # use ndgc::{Device, Tensor, linalg};
/// let a = Tensor::new(&[[0f64, 1.], [2., 3.]], &Device::Cpu)?;
/// let (p, l, u) = linalg::lu(&a)?;
/// assert_eq!(p.matmul(&l)?.matmul(&u)?.to_vec2::<f64>()?, [[0., 1.], [2., 3.]]);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::UnsupportedDType`], [`Error::StaleArray`], [`Error::OutOfMemory`].
#[track_caller]
pub fn lu(a: &Proxy) -> Result<(Proxy, Proxy, Proxy)> {
    let all = Matrices::of(Call::here("lu"), a)?;
    let (m, n) = (all.rows, all.columns);
    let k = m.min(n);
    // The permutations may have many more elements than the matrices.
    let count = shape_of(all.call, &all.dims(&[m, m]), size_of::<f64>())?.elem_count();
    let mut p: Vec<f64> = all.call.named(heap::zeros(all.call.op, count))?;
    let (mut l, mut u) = (Vec::new(), Vec::new());
    for (number, matrix) in all.each() {
        let lu = matrix.partial_piv_lu();
        let order = &mut p[number * m * m..][..m * m];
        lu.P().arrays().0.iter().enumerate().for_each(|(to, &from)| order[from * m + to] = 1.0);
        append(&mut l, lu.L());
        append(&mut u, lu.U());
    }
    if n == 0 {
        let each = p.chunks_exact_mut((m * m).max(1));
        each.for_each(|order| order.iter_mut().step_by(m + 1).for_each(|one| *one = 1.0));
    }
    let [p, l, u] = parts(all.call, a, [(p, all.dims(&[m, m])), (l, all.dims(&[m, k])), (u, all.dims(&[k, n]))])?;
    Ok((p, l, u))
}

/// `(q, r)` with `q r = a`: orthonormal columns, and an upper triangular matrix; `[.., m, k]` and `[.., k, n]` for `a`
/// of `[.., m, n]`, with k the smaller of both. No gradient.
///
/// ```
/// # use ndgc::{Device, Tensor, linalg};
/// let a = Tensor::new(&[[1f64, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
/// let (q, r) = linalg::qr(&a)?;
/// assert_eq!((q.dims2()?, r.dims2()?), ((3, 2), (2, 2)));
/// assert!(q.matmul(&r)?.sub(&a)?.abs()?.max_all()?.to_scalar::<f64>()? < 1e-9);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`lu`].
#[track_caller]
pub fn qr(a: &Proxy) -> Result<(Proxy, Proxy)> {
    let all = Matrices::of(Call::here("qr"), a)?;
    let k = all.rows.min(all.columns);
    let (mut q, mut r) = (Vec::new(), Vec::new());
    for (_, matrix) in all.each() {
        let qr = matrix.qr();
        append(&mut q, qr.compute_thin_Q().as_ref());
        append(&mut r, qr.thin_R());
    }
    let [q, r] = parts(all.call, a, [(q, all.dims(&[all.rows, k])), (r, all.dims(&[k, all.columns]))])?;
    Ok((q, r))
}

/// `(u, s, vt)` with `u diag(s) vt = a`: orthonormal columns, singular values from the largest, orthonormal rows;
/// `[.., m, k]`, `[.., k]`, `[.., k, n]` for `a` of `[.., m, n]`, with k the smaller of both. No gradient.
///
/// ```
/// # use ndgc::{Device, Tensor, linalg};
/// let a = Tensor::new(&[[3f64, 0.], [0., -5.], [0., 0.]], &Device::Cpu)?;
/// let (u, s, vt) = linalg::svd(&a)?;
/// assert_eq!((u.dims2()?, vt.dims2()?), ((3, 2), (2, 2)));
/// let s = s.to_vec1::<f64>()?; // the largest first, none negative
/// assert!((s[0] - 5.).abs() < 1e-9 && (s[1] - 3.).abs() < 1e-9);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] that names a matrix for which no values were found, such as one with NaN; as [`lu`].
#[track_caller]
pub fn svd(a: &Proxy) -> Result<(Proxy, Proxy, Proxy)> {
    let all = Matrices::of(Call::here("svd"), a)?;
    let k = all.rows.min(all.columns);
    let [mut u, mut s, mut vt] = [const { Vec::new() }; 3];
    for (number, matrix) in all.each() {
        let Some(svd) = finite(matrix).then(|| matrix.thin_svd().ok()).flatten() else {
            return all.refused(number, "a matrix of finite numbers");
        };
        append(&mut u, svd.U());
        s.extend((0..k).map(|i| svd.S().column_vector()[i]));
        append(&mut vt, svd.V().transpose());
    }
    let dims = [all.dims(&[all.rows, k]), all.dims(&[k]), all.dims(&[k, all.columns])];
    let [to_u, to_s, to_vt] = dims;
    let [u, s, vt] = parts(all.call, a, [(u, to_u), (s, to_s), (vt, to_vt)])?;
    Ok((u, s, vt))
}

/// `(w, v)` with `a v = v diag(w)`: the eigenvalues from the smallest, `[.., n]`, and orthonormal eigenvectors as
/// columns, `[.., n, n]`, of each symmetric matrix, of which the lower triangle is read. No gradient.
///
/// ```
/// # use ndgc::{Device, Tensor, linalg};
/// let a = Tensor::new(&[[2f64, 1.], [1., 2.]], &Device::Cpu)?;
/// let (w, v) = linalg::eigh(&a)?;
/// let w = w.to_vec1::<f64>()?; // the smallest first
/// assert!((w[0] - 1.).abs() < 1e-9 && (w[1] - 3.).abs() < 1e-9);
/// assert_eq!(v.dims2()?, (2, 2)); // a column for each
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`svd`]; [`Error::Shape`] for matrices that are not square.
#[track_caller]
pub fn eigh(a: &Proxy) -> Result<(Proxy, Proxy)> {
    let all = Matrices::square(Call::here("eigh"), a)?;
    let (mut w, mut v) = (Vec::new(), Vec::new());
    for (number, matrix) in all.each() {
        let Some(found) = finite(matrix).then(|| matrix.self_adjoint_eigen(Side::Lower).ok()).flatten() else {
            return all.refused(number, "a matrix of finite numbers");
        };
        w.extend((0..all.rows).map(|i| found.S().column_vector()[i]));
        append(&mut v, found.U());
    }
    let [w, v] = parts(all.call, a, [(w, all.dims(&[all.rows])), (v, all.dims(&[all.rows, all.rows]))])?;
    Ok((w, v))
}

fn finite(matrix: MatRef<'_, f64>) -> bool {
    (0..matrix.ncols()).all(|j| (0..matrix.nrows()).all(|i| matrix[(i, j)].is_finite()))
}
