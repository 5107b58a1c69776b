//! The door to memory: where a kernel's views become slices, and the code for it is chosen.
//!
//! Behind it everything is safe Rust: a mistake in its arithmetic is a panic or a wrong number, never a stray access.
//! What the door relies on is the contract of [`run`]. A kernel has an arm here, and so one place that says which of
//! its operands are read ([`Src`]) and which are written ([`Dst`]), as its entry in `kernel.rs` says to other devices.
//! The unsafe code rests on that contract, and on each operand's being opened once. Who cannot promise it has a kernel
//! run on copies ([`run_on_copies`]).

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::slice;

use super::{
    compute_copy::{ComputeCopy, compute_dtype},
    dispatch, maps,
    norm::Evenly,
    operand::{Dst, Src},
    random::RandomStream,
    typed::{
        arange, arg_reduce, choose, compare, cross_entropy, cross_entropy_grad, fill, gather, index_add, index_select,
        matmul, normal, rectifier_grad, reduce, scatter_add, softmax, softmax_grad, step, unary_grad, uniform,
    },
};
use crate::base::{
    dtype::DType,
    error::{Error, Result},
    layout::Layout,
};
use crate::{
    axiswise::Axiswise,
    kernel::{Access, Kernel, Map, OPERANDS_MAX, OwnedView, View},
    span::Span,
    window::{ConvOp, PoolOp, Windowed},
};

/// A source of a kernel.
///
/// # Safety
/// As for [`run`], for a view that is read.
#[inline(always)]
unsafe fn read<'v>(view: &'v View<'_>) -> Src<'v> {
    // SAFETY: the caller's promise: live, initialised host memory that nobody writes during the call, from which the
    // view is borrowed.
    let bytes = unsafe { slice::from_raw_parts(view.span().ptr().as_ptr(), view.span().bytes()) };
    Src { bytes, dtype: view.dtype(), layout: view.layout() }
}

/// A destination of a kernel.
///
/// # Safety
/// As for [`run`], for a view that is written; it is opened once.
#[inline(always)]
unsafe fn write<'v>(view: &'v View<'_>) -> Dst<'v> {
    // SAFETY: as in `read`; and by that promise nobody else touches the span, and no other operand of the kernel
    // overlaps it, so this is the only reference to its bytes.
    let bytes = unsafe { slice::from_raw_parts_mut(view.span().ptr().as_ptr(), view.span().bytes()) };
    Dst { bytes, dtype: view.dtype(), layout: view.layout() }
}

/// Runs a kernel to its end.
///
/// # Safety
/// - The span of every view, if it has bytes, is live, initialised host memory.
/// - Nobody else writes the sources or touches the destinations meanwhile.
/// - The span of a destination overlaps that of no other operand.
#[inline]
pub unsafe fn run(kernel: &Kernel<View<'_>>) -> Result<()> {
    // SAFETY: the caller's promises are those that `run_again` asks for.
    unsafe { run_again(kernel, 0) }
}

/// Runs a kernel of a captured section that was replayed so many times before: what counts steps or draws random
/// numbers goes on from there.
///
/// # Safety
/// As for [`run`].
#[inline]
pub unsafe fn run_again(kernel: &Kernel<View<'_>>, replays: u64) -> Result<()> {
    let stream = |seed: u64, first: u64| RandomStream { seed, first, replays: replays as u32 };
    // SAFETY: the caller's promises; in each arm the views are different fields of the kernel, each opened once.
    unsafe {
        match kernel {
            // Of these, operands of low precision are widened as a whole.
            Kernel::Reduce { src, .. }
            | Kernel::ArgReduce { src, .. }
            | Kernel::Softmax { src, .. }
            | Kernel::SoftmaxGrad { out: src, .. }
            | Kernel::CrossEntropy { logits: src, .. }
            | Kernel::CrossEntropyGrad { probs: src, .. }
                if compute_dtype(src.dtype()).is_some() =>
            {
                widened(kernel, replays)
            }
            // Of these, the integers are their bits.
            Kernel::Matmul { dst, .. } | Kernel::IndexAdd { dst, .. } | Kernel::ScatterAdd { dst, .. }
                if compute_dtype(dst.dtype()) == Some(DType::F32) =>
            {
                widened(kernel, replays)
            }
            Kernel::Binary { op, lhs, rhs, dst } => maps::binary(*op, read(lhs), read(rhs), write(dst)),
            Kernel::BinaryAssign { op, dst, rhs } => maps::binary_assign(*op, write(dst), read(rhs)),
            Kernel::Fill { dst, value } => fill(write(dst), *value),
            Kernel::Arange { dst, start, step } => arange(write(dst), *start, *step),
            Kernel::Map { map: Map::Copy, src, dst } => maps::copy(read(src), write(dst)),
            Kernel::Map { map: Map::Cast, src, dst } => maps::cast(read(src), write(dst)),
            Kernel::Map { map, src, dst } => maps::map(*map, Some(read(src)), write(dst)),
            Kernel::MapAssign { map, dst } => maps::map(*map, None, write(dst)),
            Kernel::Compare { op, lhs, rhs, dst } => compare(*op, read(lhs), read(rhs), write(dst)),
            Kernel::Where { cond, yes, no, dst } => choose(read(cond), read(yes), read(no), write(dst)),
            Kernel::UnaryGrad { op, saved, grad, dst } => unary_grad(*op, read(saved), read(grad), write(dst)),
            Kernel::RectifierGrad { rectifier, saved, grad, dst } => {
                rectifier_grad(*rectifier, read(saved), read(grad), write(dst))
            }
            Kernel::Reduce { op, src, axes, dst } => reduce(*op, read(src), *axes, write(dst)),
            Kernel::ArgReduce { largest, src, axis, dst } => arg_reduce(*largest, read(src), *axis, write(dst)),
            Kernel::Softmax { src, dst, log } => softmax(read(src), write(dst), *log),
            Kernel::SoftmaxGrad { out, grad, dst, log } => softmax_grad(read(out), read(grad), write(dst), *log),
            Kernel::CrossEntropy { logits, labels, probs, loss } => {
                cross_entropy(read(logits), read(labels), write(probs), write(loss))
            }
            Kernel::CrossEntropyGrad { probs, labels, grad, dst } => {
                cross_entropy_grad(read(probs), read(labels), read(grad), write(dst))
            }
            Kernel::Matmul { lhs, rhs, dst } => matmul(read(lhs), read(rhs), write(dst)),
            Kernel::Bits { op, lhs, rhs, dst } => dispatch::of_bits(*op, read(lhs), read(rhs), write(dst)),
            Kernel::Windowed(kernel_of) if dispatch::is_widened(kernel_of) => widened(kernel, replays),
            Kernel::Windowed(windowed) => run_windowed(windowed),
            Kernel::Axiswise(axiswise) if compute_dtype(axiswise.source().dtype()).is_some() => {
                widened(kernel, replays)
            }
            Kernel::Axiswise(axiswise) => run_axiswise(axiswise),
            Kernel::IndexSelect { src, ids, axis, dst } => index_select(read(src), read(ids), *axis, write(dst)),
            Kernel::IndexAdd { dst, ids, src, axis } => index_add(write(dst), read(ids), read(src), *axis),
            Kernel::Gather { src, ids, axis, dst } => gather(read(src), read(ids), *axis, write(dst)),
            Kernel::ScatterAdd { dst, ids, src, axis } => scatter_add(write(dst), read(ids), read(src), *axis),
            Kernel::Uniform { dst, seed, first, low, high } => uniform(write(dst), stream(*seed, *first), *low, *high),
            Kernel::Normal { dst, seed, first, mean, std } => normal(write(dst), stream(*seed, *first), *mean, *std),
            Kernel::OptimizerStep { param, grad, kept1, kept2, kept3, rule, rate, step: number } => {
                let kept = [kept1, kept2, kept3].map(|kept| kept.as_ref().map(|kept| write(kept)));
                step((*rule, *rate, number.saturating_add(replays)), write(param), read(grad), kept)
            }
        }
    }
}

/// The bytes of an operand, from the first that it reaches to the last.
struct OperandCopy {
    /// Aligned for every dtype.
    words: Vec<u128>,
    /// Where they were copied from.
    part: Span,
    dtype: DType,
    layout: Layout,
}

impl OperandCopy {
    /// A copy to be filled.
    fn new(view: &OwnedView) -> Result<Self> {
        let size = view.dtype().size_in_bytes();
        let (first, end) = view.layout().bounds().unwrap_or_default();
        let part = view.span().part(first * size, (end - first) * size);
        let mut words = Vec::new();
        let (count, call) = (part.bytes().div_ceil(size_of::<u128>()), "room for a copy of an operand");
        words
            .try_reserve_exact(count)
            .map_err(|error| Error::device("cpu", call, format!("{} bytes: {error}", part.bytes())))?;
        words.resize(count, 0);
        Ok(OperandCopy { words, part, dtype: view.dtype(), layout: view.layout().without_first(first) })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut::<u128, u8>(&mut self.words)[..self.part.bytes()]
    }

    /// The copy as an operand.
    fn view(&mut self) -> View<'_> {
        let span = Span::new(NonNull::from(self.bytes()).cast(), self.part.bytes());
        View::new(span, self.dtype, &self.layout)
    }
}

/// Runs a kernel to its end, as [`run_again`], on copies of its operands: nothing is asked of where they lie. `load`
/// fills a copy from a part of memory, and `store` takes the copy of one that the kernel writes; both get the number of
/// the operand in [`Kernel::accesses`]. A copy is stored whole: a kernel that writes several operands has contiguous
/// ones, so that none lies between the elements of another.
pub fn run_on_copies(
    kernel: &Kernel,
    replays: u64,
    load: &dyn Fn(usize, Span, &mut [u8]),
    store: &dyn Fn(usize, Span, &[u8]),
) -> Result<()> {
    let operands = kernel.accesses();
    let mut copies = Vec::with_capacity(OPERANDS_MAX);
    for (number, (view, _)) in operands.iter().enumerate() {
        let mut copy = OperandCopy::new(view)?;
        // Also of one that is written: there may be places between its elements.
        load(number, copy.part, copy.bytes());
        copies.push(copy);
    }
    let mut next = copies.iter_mut();
    let own = kernel.map(&mut |_| next.next().expect("each operand has a copy").view());
    // SAFETY: each operand is a copy of its own that was made above, initialised, borrowed here alone, and live until
    // the end of this function.
    let answer = unsafe { run_again(&own, replays) };
    for (number, (copy, (_, access))) in copies.iter_mut().zip(operands.iter()).enumerate() {
        if access != Access::Read {
            store(number, copy.part, copy.bytes());
        }
    }
    answer
}

/// Runs a kernel over images.
///
/// # Safety
/// As for [`run`].
unsafe fn run_windowed(kernel: &Windowed<View<'_>>) -> Result<()> {
    // SAFETY: as in `run_again`.
    unsafe {
        match kernel {
            Windowed::Conv { op: ConvOp::Result, image, weights, result, scratch, window, groups } => {
                dispatch::conv_result([read(image), read(weights)], [write(result), write(scratch)], window, *groups)
            }
            Windowed::Conv { op: ConvOp::Image, image, weights, result, scratch, window, groups } => {
                dispatch::conv_image([read(weights), read(result)], [write(image), write(scratch)], window, *groups)
            }
            Windowed::Conv { op: ConvOp::Weights, image, weights, result, scratch, window, groups } => {
                dispatch::conv_weights([read(image), read(result)], [write(weights), write(scratch)], window, *groups)
            }
            Windowed::Unfold { image, columns, window } => dispatch::unfold(read(image), write(columns), window),
            Windowed::Fold { columns, image, window } => dispatch::fold(read(columns), write(image), window),
            Windowed::Pool { op: PoolOp::Mean, image, dst, ids: _, window, adaptive } => {
                dispatch::mean_pool(read(image), write(dst), window, *adaptive)
            }
            Windowed::Pool { op: PoolOp::Max, image, dst, ids, window, adaptive } => {
                let ids = ids.as_ref().map(|ids| write(ids));
                dispatch::max_pool(read(image), write(dst), ids, window, *adaptive)
            }
            Windowed::PoolGrad { grad, ids, image, window, adaptive } => {
                let ids = ids.as_ref().map(|ids| read(ids));
                dispatch::pool_grad(read(grad), ids, write(image), window, *adaptive)
            }
            Windowed::Resize { op, image, dst, spacing } => dispatch::resized(*op, read(image), write(dst), spacing),
            Windowed::ResizeGrad { op, grad, image, spacing } => {
                dispatch::resized_grad(*op, read(grad), write(image), spacing)
            }
        }
    }
}

/// Runs a kernel along an axis.
///
/// # Safety
/// As for [`run`].
unsafe fn run_axiswise(kernel: &Axiswise<View<'_>>) -> Result<()> {
    // SAFETY: as in `run_again`.
    unsafe {
        match kernel {
            Axiswise::Scan { op, src, dst, ids, axis, reverse } => {
                let ids = ids.as_ref().map(|ids| write(ids));
                dispatch::scanned(*op, read(src), write(dst), ids, *axis, *reverse)
            }
            Axiswise::ProdGrad { src, grad, dst, axis } => {
                dispatch::prod_grad(read(src), read(grad), write(dst), *axis)
            }
            Axiswise::Norm { src, scale, shift, dst, eps, centred } => {
                let (scale, shift) = (scale.as_ref().map(|view| read(view)), shift.as_ref().map(|view| read(view)));
                dispatch::norm(read(src), write(dst), scale, shift, Evenly { eps: *eps, centred: *centred })
            }
            Axiswise::NormGrad { src, grad, scale, dst, products, eps, centred } => {
                let scale = scale.as_ref().map(|view| read(view));
                let way = Evenly { eps: *eps, centred: *centred };
                dispatch::norm_grad([read(src), read(grad)], scale, [write(dst), write(products)], way)
            }
        }
    }
}

/// Runs a kernel on copies of its operands of low precision; what it writes is rounded again.
///
/// # Safety
/// As for [`run`].
#[cold]
unsafe fn widened(kernel: &Kernel<View<'_>>, replays: u64) -> Result<()> {
    let mut copies = [const { None }; OPERANDS_MAX];
    let operands = kernel.accesses();
    for (copy, (view, access)) in copies.iter_mut().zip(operands.iter()) {
        if let Some(dtype) = compute_dtype(view.dtype()) {
            let made = copy.insert(ComputeCopy::new(view.layout(), dtype)?);
            if access != Access::Write {
                // SAFETY: the contract of this function covers the operand, which nobody writes before `store`.
                made.load(unsafe { read(view) });
            }
        }
    }
    let mut next = copies.iter_mut();
    let wide = kernel.map(&mut |view| match next.next() {
        Some(Some(copy)) => copy.view(),
        _ => *view,
    });
    // SAFETY: what was replaced are this function's own buffers, initialised and live until its end; the rest are the
    // operands of the kernel, for which the caller promises.
    unsafe { run_again(&wide, replays)? };
    for (copy, (view, access)) in copies.iter().zip(operands.iter()) {
        if let (Some(copy), false) = (copy, access == Access::Read) {
            // SAFETY: the contract of this function covers the destination, which no copy overlaps.
            copy.store(unsafe { write(view) });
        }
    }
    Ok(())
}
