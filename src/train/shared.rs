//! Arrays that have the bytes of others, or their numbers, or are beside them.

use std::panic::Location;

use ndgc::{DType, Result, Tensor, called_at, no_grad};

/// The same bytes in an array that its handles own, outside of the gradient graph. They stay in the budget that they
/// are in, which [`Tensor::try_detach`] takes them out of. Not for an array of a workspace, whose bytes end with its
/// cycle.
///
/// # Errors
/// As [`Tensor::reshape`].
#[track_caller]
pub(super) fn same_bytes(array: &Tensor) -> Result<Tensor> {
    called_at(Location::caller(), || no_grad(|| array.reshape(*array.shape())))
}

/// An array whose squares and sums a half float may have no number for: f16 ends at 65504.
pub(super) fn upcast_half(array: &Tensor) -> Result<Tensor> {
    match array.dtype() {
        DType::F16 | DType::BF16 => array.to_dtype(DType::F32),
        _ => Ok(array.clone()),
    }
}

/// Whether labels, or a mask, are one number for each row: without the axis of the columns, or with 1 there.
pub(super) fn one_each(labels: &[usize], dims: &[usize], axis: usize) -> bool {
    if dims.len() < 2 {
        return labels == dims;
    }
    let (before, after) = (&dims[..axis], &dims[axis + 1..]);
    labels == [before, after].concat() || labels == [before, &[1][..], after].concat()
}
