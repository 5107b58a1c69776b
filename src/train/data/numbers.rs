//! The numbers of an array as doubles, without an array between.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use ndgc::{DType, Error, F8E4M3, Result, Tensor, WithDType, bf16, f16};

/// Lists that a thread keeps: labels, predictions and a mask.
const KEPT: usize = 3;
/// Numbers in a list that is kept at most: 8 MiB.
const KEPT_LEN: usize = 1 << 20;

thread_local! {
    static FREE: RefCell<Vec<Vec<f64>>> = const { RefCell::new(Vec::new()) };
}

/// Numbers; when they end, their thread keeps the memory for the next ones, whose pages the system need not give again.
pub(crate) struct Numbers(Vec<f64>);

impl Numbers {
    /// So many zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no memory for them.
    pub(crate) fn zeros(op: &'static str, count: usize) -> Result<Self> {
        let mut all = Self::with_room(op, count)?;
        all.0.resize(count, 0.0);
        Ok(all)
    }

    /// None yet, and room for so many. Of arrays that repeat there may be any number.
    fn with_room(op: &'static str, count: usize) -> Result<Self> {
        // A thread that ends keeps nothing.
        let mut all = Numbers(FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten().unwrap_or_default());
        let full = |_| Error::invalid(op, format!("no memory for {count} numbers"));
        all.0.try_reserve_exact(count).map_err(full)?;
        Ok(all)
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        let mut own = std::mem::take(&mut self.0);
        own.clear();
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT && own.capacity() <= KEPT_LEN {
                free.push(own);
            }
        });
    }
}

impl Deref for Numbers {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.0
    }
}

impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [f64] {
        &mut self.0
    }
}

/// All numbers in row-major order, whatever the dtype, the layout and the device.
///
/// # Errors
/// [`Error::Invalid`] if there is no memory for them; as [`Tensor::to_vec`].
pub(crate) fn numbers(op: &'static str, array: &Tensor) -> Result<Numbers> {
    fn of<T: WithDType>(op: &'static str, array: &Tensor) -> Result<Numbers> {
        let mut numbers = Numbers::with_room(op, array.elem_count())?;
        let mut add = |all: &[T]| numbers.0.extend(all.iter().map(|x| x.to_f64()));
        if array.is_contiguous() && array.device().is_cpu() {
            array.with_slice(add)?;
        } else {
            add(&array.to_vec::<T>()?);
        }
        Ok(numbers)
    }
    match array.dtype() {
        DType::F64 => of::<f64>(op, array),
        DType::F32 => of::<f32>(op, array),
        DType::F16 => of::<f16>(op, array),
        DType::BF16 => of::<bf16>(op, array),
        DType::F8E4M3 => of::<F8E4M3>(op, array),
        DType::I64 => of::<i64>(op, array),
        DType::I32 => of::<i32>(op, array),
        DType::I16 => of::<i16>(op, array),
        DType::I8 => of::<i8>(op, array),
        DType::U64 => of::<u64>(op, array),
        DType::U32 => of::<u32>(op, array),
        DType::U16 => of::<u16>(op, array),
        DType::U8 => of::<u8>(op, array),
        DType::Bool => of::<bool>(op, array),
    }
}
