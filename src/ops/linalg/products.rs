//! Products of vectors and matrices beyond `matmul`.

use crate::base::{
    call::{Asked, Call},
    error::{Error, Result},
    shape::{D, Dim, Few, MAX_RANK},
};
use crate::memory::proxy::Proxy;
use crate::ops::call::compose::{composite, shape_of, wrong_shape};

/// # Linear algebra: products of vectors and others
impl Proxy {
    /// The sum of the products of two vectors' elements: a scalar. Any dtype but truth values, with gradients; sums of
    /// f16 and bf16 are kept in f32.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if they are not vectors of one size; as [`Proxy::mul`].
    #[track_caller]
    pub fn dot(&self, rhs: &Proxy) -> Result<Proxy> {
        let op = "dot";
        composite(Call::here(op), self, &mut || {
            let (a, b) = (*self.shape(), *rhs.shape());
            if a.rank() != 1 || a != b {
                return Err(Error::shapes(op, &a, &b, "both must be vectors of one size"));
            }
            if !self.dtype().is_float() {
                // Exact in any order: on a device the sum takes many more threads than a product of two vectors.
                return self.mul(rhs)?.sum_all();
            }
            // Along strides a product of two vectors is one long chain.
            let (left, right) = (self.contiguous()?, rhs.contiguous()?);
            left.unsqueeze(0)?.matmul(&right.unsqueeze(1)?)?.reshape(())
        })
    }

    /// A matrix times a vector: `[m, n] x [n] -> [m]`. Any dtype but truth values, with gradients.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; as [`Proxy::matmul`].
    #[track_caller]
    pub fn mv(&self, rhs: &Proxy) -> Result<Proxy> {
        let op = "mv";
        composite(Call::here(op), self, &mut || {
            let (a, b) = (*self.shape(), *rhs.shape());
            if a.rank() != 2 || b.rank() != 1 {
                return Err(Error::shapes(op, &a, &b, "needs a matrix and a vector"));
            }
            self.matmul(&rhs.unsqueeze(1)?)?.squeeze(1)
        })
    }

    #[track_caller]
    pub(crate) fn ext_outer(&self, rhs: &Proxy) -> Result<Proxy> {
        let op = "outer";
        composite(Call::here(op), self, &mut || {
            let (a, b) = (*self.shape(), *rhs.shape());
            if a.rank() != 1 || b.rank() != 1 {
                return Err(Error::shapes(op, &a, &b, "both must be vectors"));
            }
            self.unsqueeze(1)?.broadcast_mul(&rhs.unsqueeze(0)?)
        })
    }

    /// A matrix product and a bias, which is broadcast to it: `self x rhs + bias`. Any dtype but
    /// truth values, with gradients.
    ///
    /// # Errors
    /// As [`Proxy::matmul`] and [`Proxy::broadcast_add`].
    #[track_caller]
    pub fn addmm(&self, bias: &Proxy, rhs: &Proxy) -> Result<Proxy> {
        let op = "addmm";
        composite(Call::here(op), self, &mut || {
            let product = self.matmul(rhs)?;
            let sum = product.broadcast_add(bias)?;
            crate::ops::call::check::same_shape(op, product.shape(), sum.shape(), "the bias must fit the product")?;
            Ok(sum)
        })
    }

    #[track_caller]
    pub(crate) fn ext_kron(&self, rhs: &Proxy) -> Result<Proxy> {
        let op = "kron";
        composite(Call::here(op), self, &mut || {
            let (a, b) = (self.dims(), rhs.dims());
            let rank = a.len().max(b.len());
            if 2 * rank > MAX_RANK {
                return Err(Error::rank_too_large(op, 2 * rank));
            }
            let filled = |dims: &[usize]| (dims.len()..rank).map(|_| 1).chain(dims.iter().copied()).collect::<Few>();
            let (a, b) = (filled(a), filled(b));
            let elem_bytes = self.dtype().size_in_bytes();
            // The first axis of one, then that of the other, and so on.
            let alternating = |a: &dyn Fn(usize) -> usize, b: &dyn Fn(usize) -> usize| -> Few {
                (0..2 * rank).map(|i| if i % 2 == 0 { a(i / 2) } else { b(i / 2) }).collect()
            };
            let (of_a, of_b) = (|i: usize| a[i], |i: usize| b[i]);
            let pairs = alternating(&of_a, &of_b);
            shape_of(op, &pairs, elem_bytes)?;
            let (outer, inner) = (alternating(&of_a, &|_| 1), alternating(&|_| 1, &of_b));
            let to: Few = (0..rank).map(|i| a[i] * b[i]).collect();
            self.reshape(outer)?.broadcast_mul(&rhs.reshape(inner)?)?.reshape(to)
        })
    }

    #[track_caller]
    pub(crate) fn ext_cross<A: Dim>(&self, rhs: &Proxy, dim: A) -> Result<Proxy> {
        let op = "cross";
        composite(Call::here(op), self, &mut || {
            let shape = *self.shape();
            let axis = Asked::from(op).axis(dim, &shape)?;
            if shape.dims()[axis] != 3 {
                return wrong_shape(op, self, "3 elements along the axis");
            }
            crate::ops::call::check::same_shape(op, &shape, rhs.shape(), "both must have one shape")?;
            let left = self.roll(-1, axis)?.mul(&rhs.roll(-2, axis)?)?;
            left.sub(&self.roll(-2, axis)?.mul(&rhs.roll(-1, axis)?)?)
        })
    }

    #[track_caller]
    pub(crate) fn ext_cdist(&self, rhs: &Proxy, p: f64) -> Result<Proxy> {
        let op = "cdist";
        composite(Call::here(op), self, &mut || {
            let (a, b) = (*self.shape(), *rhs.shape());
            if a.rank() < 2 || b.rank() < 2 || a.dim(D::Minus1)? != b.dim(D::Minus1)? {
                return Err(Error::shapes(op, &a, &b, "needs two sets of points with as many coordinates"));
            }
            // Points without coordinates are in one place: sums of nothing are 0, and there is no largest of nothing.
            let p = if p == f64::INFINITY && a.dim(D::Minus1)? == 0 { 1.0 } else { p };
            self.unsqueeze(a.rank() - 1)?.broadcast_sub(&rhs.unsqueeze(b.rank() - 2)?)?.ext_norm_dim(p, D::Minus1)
        })
    }
}
