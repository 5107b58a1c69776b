//! Kernels that look at more than one element at a time, with operands of a narrow dtype: on copies in a wider one.
//!
//! A copy holds an element that repeats once. What is copied is let go at the end of the kernel.

use std::ptr::NonNull;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
    layout::Layout,
};
use crate::cpu::{
    In, Out,
    narrow::{self, Narrow},
    run_again, source, target,
    types::with_narrow,
};
use crate::kernel::{Access, Kernel, View};
use crate::span::Span;

/// The dtype in which a narrow one computes.
#[inline]
pub(super) fn wider(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 => Some(DType::F32),
        DType::I8 | DType::I16 | DType::U16 => Some(DType::I32),
        _ => None,
    }
}

/// Runs a kernel on copies of its narrow operands; what it writes is narrowed again.
///
/// # Safety
/// As for [`run`](super::run).
#[cold]
#[allow(unsafe_code)]
pub(super) unsafe fn widened(kernel: &Kernel<View<'_>>, replays: u64) -> Result<()> {
    let mut copies = [const { None }; 5];
    let operands = kernel.accesses();
    for (copy, (view, access)) in copies.iter_mut().zip(operands.iter()) {
        if let Some(dtype) = wider(view.dtype()) {
            let made = copy.insert(Wide::new(view, dtype)?);
            if access != Access::Write {
                // SAFETY: the contract of this function covers the source; the copy is this function's alone.
                unsafe { made.load(view) };
            }
        }
    }
    let mut next = copies.iter_mut();
    let wide = kernel.map(&mut |view| match next.next() {
        Some(Some(copy)) => {
            let span = copy.span();
            View::new(span, copy.dtype, &copy.layout)
        }
        _ => *view,
    });
    // SAFETY: what was replaced are this function's own buffers, initialised and live until its end; the rest are the
    // operands of the kernel, for which the caller promises.
    unsafe { run_again(&wide, replays)? };
    for (copy, (view, access)) in copies.iter_mut().zip(operands.iter()) {
        if let (Some(copy), false) = (copy, access == Access::Read) {
            // SAFETY: the contract of this function covers the destination, which no copy overlaps.
            unsafe { copy.store(view) };
        }
    }
    Ok(())
}

/// An operand in a wider dtype, of 4 bytes: in row-major order.
struct Wide {
    words: Vec<u32>,
    dtype: DType,
    /// The operand without its repetitions.
    part: Layout,
    /// The copy as the kernel sees it.
    layout: Layout,
}

impl Wide {
    fn new(view: &View, dtype: DType) -> Result<Self> {
        let mut part = *view.layout();
        for (axis, &step) in view.layout().strides().iter().enumerate() {
            if step == 0 {
                part = part.narrow(axis, 0, part.dims()[axis].min(1))?;
            }
        }
        let mut words = Vec::new();
        let (count, call) = (part.shape().elem_count(), "room to compute in a wider dtype");
        words.try_reserve_exact(count).map_err(|error| {
            let message = format!("{count} elements: {error}");
            Error::Device { device: "cpu".into(), call, message }
        })?;
        words.resize(count, 0);
        let layout = Layout::contiguous(*part.shape()).broadcast_to(view.layout().shape(), call)?;
        Ok(Wide { words, dtype, part, layout })
    }

    /// Where the copy lies.
    fn span(&mut self) -> Span {
        Span::new(NonNull::from(&mut self.words[..]).cast(), size_of_val(&self.words[..]))
    }

    /// # Safety
    /// As for [`run`](super::run), for a view that is read.
    #[allow(unsafe_code)]
    unsafe fn load(&mut self, view: &View) {
        let dense = Layout::contiguous(*self.part.shape());
        let theirs = View::new(view.span(), view.dtype(), &self.part);
        with_narrow!(view.dtype(), N => {
            let own = Out { data: cast_slice_mut::<u32, <N as Narrow>::Wide>(&mut self.words), layout: &dense };
            // SAFETY: by the contract of this function.
            narrow::widen_all(unsafe { source::<N>(&theirs) }, own);
        });
    }

    /// # Safety
    /// As for [`run`](super::run), for a view that is written.
    #[allow(unsafe_code)]
    unsafe fn store(&self, view: &View) {
        let dense = Layout::contiguous(*self.part.shape());
        let theirs = View::new(view.span(), view.dtype(), &self.part);
        with_narrow!(view.dtype(), N => {
            let own = In { data: cast_slice::<u32, <N as Narrow>::Wide>(&self.words), layout: &dense };
            // SAFETY: by the contract of this function.
            narrow::narrow_all(own, unsafe { target::<N>(&theirs) });
        });
    }
}
