//! Room on the heap, where a refusal is an error.

use crate::base::{
    error::{Error, Result},
    out_of_memory::OutOfMemory,
};

/// An empty vector with room for so many items.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn room<T>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    match items.try_reserve_exact(count) {
        Ok(()) => Ok(items),
        Err(_) => Err(no_room(op, count, size_of::<T>())),
    }
}

#[cold]
fn no_room(op: &'static str, count: usize, size: usize) -> Error {
    let requested = (count as u64).saturating_mul(size as u64);
    Error::OutOfMemory(Box::new(OutOfMemory::on_the_heap(op, requested)))
}

/// Makes room in a vector for so many more items.
///
/// # Errors
/// As [`room`].
pub fn make_room<T>(op: &'static str, items: &mut Vec<T>, count: usize) -> Result<()> {
    items.try_reserve(count).map_err(|_| no_room(op, count, size_of::<T>()))
}

/// So many zeros.
///
/// # Errors
/// As [`room`].
pub fn zeros<T: Clone + Default>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    resize(op, &mut items, count)?;
    Ok(items)
}

/// Makes a vector as long as this; what is new in it is zero.
///
/// # Errors
/// As [`room`].
pub fn resize<T: Clone + Default>(op: &'static str, items: &mut Vec<T>, count: usize) -> Result<()> {
    if items.try_reserve_exact(count.saturating_sub(items.len())).is_err() {
        return Err(no_room(op, count, size_of::<T>()));
    }
    items.resize(count, T::default());
    Ok(())
}
