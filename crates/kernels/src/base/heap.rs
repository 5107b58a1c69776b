//! Room on the heap, where a refusal is an error.

use crate::base::error::{Error, OutOfMemory, Result};

/// An empty vector with room for so many items.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn room<T>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| {
        let requested = (count as u64).saturating_mul(size_of::<T>() as u64);
        Error::OutOfMemory(Box::new(OutOfMemory::on_the_heap(op, requested)))
    })?;
    Ok(items)
}

/// So many zeros.
///
/// # Errors
/// As [`room`].
pub fn zeros<T: Clone + Default>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut items = room(op, count)?;
    items.resize(count, T::default());
    Ok(items)
}
