//! Kernels that look at more than one element at a time, with operands of low precision: on copies in their compute
//! dtype.
//!
//! A copy holds an element that repeats once. What is copied is let go at the end of the kernel.

use std::ptr::NonNull;

use bytemuck::{cast_slice, cast_slice_mut};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
    layout::Layout,
};
use crate::cpu::{
    low_precision::{self, LowPrecision},
    operand::{Dst, In, Out, Src},
    types::with_low_precision,
};
use crate::kernel::View;
use crate::span::Span;

/// The dtype in which one of low precision computes.
#[inline]
pub(super) fn compute_dtype(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F8E4M3 | DType::F16 | DType::BF16 => Some(DType::F32),
        DType::I8 | DType::I16 | DType::U16 => Some(DType::I32),
        _ => None,
    }
}

/// An operand in its compute dtype, of 4 bytes: in row-major order.
pub(super) struct ComputeCopy {
    words: Vec<u32>,
    dtype: DType,
    /// The operand without its repetitions.
    part: Layout,
    /// The copy as the kernel sees it.
    layout: Layout,
}

impl ComputeCopy {
    pub(super) fn new(whole: &Layout, dtype: DType) -> Result<Self> {
        let mut part = *whole;
        for (axis, &step) in whole.strides().iter().enumerate() {
            if step == 0 {
                part = part.narrow(axis, 0, part.dims()[axis].min(1))?;
            }
        }
        let mut words = Vec::new();
        let (count, call) = (part.shape().elem_count(), "room to compute in a wider dtype");
        words
            .try_reserve_exact(count)
            .map_err(|error| Error::device("cpu", call, format!("{count} elements: {error}")))?;
        words.resize(count, 0);
        let layout = Layout::contiguous(*part.shape()).broadcast_to(whole.shape(), call)?;
        Ok(ComputeCopy { words, dtype, part, layout })
    }

    /// The copy as an operand.
    pub(super) fn view(&mut self) -> View<'_> {
        let span = Span::new(NonNull::from(&mut self.words[..]).cast(), size_of_val(&self.words[..]));
        View::new(span, self.dtype, &self.layout)
    }

    /// Fills the copy from the operand.
    pub(super) fn load(&mut self, from: Src) {
        let dense = Layout::contiguous(*self.part.shape());
        with_low_precision!(from.dtype(), N => {
            let own = Out { data: cast_slice_mut::<u32, <N as LowPrecision>::Compute>(&mut self.words), layout: &dense };
            low_precision::widen_all(In::<N>::of(Src { layout: &self.part, ..from }), own);
        });
    }

    /// Writes the copy to the operand.
    pub(super) fn store(&self, to: Dst) {
        let dense = Layout::contiguous(*self.part.shape());
        with_low_precision!(to.dtype(), N => {
            let own = In { data: cast_slice::<u32, <N as LowPrecision>::Compute>(&self.words), layout: &dense };
            low_precision::narrow_all(own, Out::<N>::of(Dst { layout: &self.part, ..to }));
        });
    }
}
