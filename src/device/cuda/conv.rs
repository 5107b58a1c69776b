//! A convolution as launches: columns of some images in the scratch that came with it, and products of matrices.
//!
//! `B` batch, `G` groups of `M` filters and `C` channels, `K` elements of the kernel, `L` output positions. Columns are
//! `[b, G C K, L]`, which is `[b, G, C K, L]`: one batch of products for several images.

use crate::base::{
    dtype::DType,
    error::Result,
    layout::Layout,
    shape::{Axes, Shape},
};
use crate::device::{
    kernel::{BinaryOp, Kernel, OwnedView, ReduceOp},
    span::Span,
    window::{ConvOp, ConvSizes, Window, Windowed},
};

/// Elements that the columns of several images may have together; those of one image may have more.
const COLUMNS_MAX: usize = 16 << 20;

/// Elements of scratch for one image: its columns, and for the gradient of the weights a product of its own.
fn room_each(op: ConvOp, s: &ConvSizes) -> usize {
    let product = if op == ConvOp::Weights { s.filters } else { 0 };
    s.groups.saturating_mul(s.depth()).saturating_mul(s.positions.saturating_add(product))
}

/// Images whose columns the scratch holds at once.
fn images(op: ConvOp, s: &ConvSizes) -> usize {
    (COLUMNS_MAX / room_each(op, s).max(1)).clamp(1, s.batch.max(1))
}

/// Elements of scratch that a convolution wants.
pub(crate) fn scratch(op: ConvOp, s: &ConvSizes) -> usize {
    let sum = if op == ConvOp::Weights { s.groups * s.filters * s.depth() } else { 0 };
    images(op, s).saturating_mul(room_each(op, s)).saturating_add(sum)
}

/// Elements of a span from `start` on, contiguous.
fn part(span: Span, dtype: DType, start: usize, dims: &[usize]) -> OwnedView {
    let all = Layout::contiguous(Shape::from(start + dims.iter().product::<usize>()));
    let rest = all.narrow(0, start, dims.iter().product());
    let layout = rest.ok().and_then(|rest| rest.reshape(&Shape::from(dims)));
    OwnedView::new(span, dtype, layout.expect("the elements follow each other"))
}

/// A contiguous view as another shape of as many elements.
fn shaped(view: &OwnedView, dims: &[usize]) -> OwnedView {
    let layout = view.layout().reshape(&Shape::from(dims)).expect("the operands are contiguous, and the shape theirs");
    OwnedView::new(view.span(), view.dtype(), layout)
}

fn transposed(view: &OwnedView) -> OwnedView {
    let rank = view.layout().shape().rank();
    OwnedView::new(view.span(), view.dtype(), view.layout().transpose(rank - 2, rank - 1))
}

/// Some images of a batch.
fn narrow(view: &OwnedView, first: usize, count: usize) -> OwnedView {
    let layout = view.layout().narrow(0, first, count).expect("images of the batch");
    OwnedView::new(view.span(), view.dtype(), layout)
}

/// The same matrices for each image.
fn repeated(view: &OwnedView, count: usize) -> OwnedView {
    let dims = [&[count], view.layout().dims()].concat();
    let layout = view.layout().broadcast_to(&Shape::from(dims), "conv").expect("one more axis in front");
    OwnedView::new(view.span(), view.dtype(), layout)
}

/// Calls `launch` with the kernels that make up a convolution, in order.
pub(super) fn parts(kernel: &Windowed, launch: &mut dyn FnMut(&Kernel) -> Result<()>) -> Result<()> {
    let Windowed::Conv { op, image, weights, result, scratch, window, groups } = kernel else { return Ok(()) };
    let s = ConvSizes::new(image.layout().dims(), weights.layout().dims(), window, *groups);
    let written = match op {
        ConvOp::Result => result,
        ConvOp::Image => image,
        ConvOp::Weights => weights,
    };
    if [s.batch, s.groups * s.filters, s.depth(), s.pixels, s.positions].contains(&0) {
        return launch(&Kernel::Fill { dst: *written, value: 0.0 });
    }
    let job = ConvJob {
        s,
        window: *window,
        image: *image,
        weights: shaped(weights, &[s.groups, s.filters, s.depth()]),
        result: shaped(result, &[s.batch, s.groups, s.filters, s.positions]),
        scratch: scratch.span(),
    };
    let step = images(*op, &s);
    for first in (0..s.batch).step_by(step) {
        let count = step.min(s.batch - first);
        match op {
            ConvOp::Result => job.result(first, count, launch)?,
            ConvOp::Image => job.image(first, count, launch)?,
            ConvOp::Weights => job.weights(first, count, launch)?,
        }
    }
    Ok(())
}

struct ConvJob {
    s: ConvSizes,
    window: Window,
    image: OwnedView,
    weights: OwnedView,
    result: OwnedView,
    scratch: Span,
}

impl ConvJob {
    fn dtype(&self) -> DType {
        self.image.dtype()
    }

    /// The columns of so many images, as the window and as products see them.
    fn columns(&self, count: usize) -> [OwnedView; 2] {
        let ConvSizes { groups, positions, .. } = self.s;
        let columns = part(self.scratch, self.dtype(), 0, &[count, groups * self.s.depth(), positions]);
        [columns, shaped(&columns, &[count, groups, self.s.depth(), positions])]
    }

    fn result(&self, first: usize, count: usize, launch: &mut dyn FnMut(&Kernel) -> Result<()>) -> Result<()> {
        let [columns, matrices] = self.columns(count);
        launch(&Kernel::Windowed(Windowed::Unfold {
            image: narrow(&self.image, first, count),
            columns,
            window: self.window,
        }))?;
        let lhs = repeated(&self.weights, count);
        launch(&Kernel::Matmul { lhs, rhs: matrices, dst: narrow(&self.result, first, count) })
    }

    fn image(&self, first: usize, count: usize, launch: &mut dyn FnMut(&Kernel) -> Result<()>) -> Result<()> {
        let [columns, matrices] = self.columns(count);
        let lhs = transposed(&repeated(&self.weights, count));
        launch(&Kernel::Matmul { lhs, rhs: narrow(&self.result, first, count), dst: matrices })?;
        launch(&Kernel::Windowed(Windowed::Fold {
            columns,
            image: narrow(&self.image, first, count),
            window: self.window,
        }))
    }

    /// A product for each image, their sum, and that added to what the images before gave.
    fn weights(&self, first: usize, count: usize, launch: &mut dyn FnMut(&Kernel) -> Result<()>) -> Result<()> {
        let [columns, matrices] = self.columns(count);
        let dims = [self.s.groups, self.s.filters, self.s.depth()];
        let (size, used) = (dims.iter().product::<usize>(), columns.layout().shape().elem_count());
        let products = part(self.scratch, self.dtype(), used, &[&[count], &dims[..]].concat());
        launch(&Kernel::Windowed(Windowed::Unfold {
            image: narrow(&self.image, first, count),
            columns,
            window: self.window,
        }))?;
        let lhs = narrow(&self.result, first, count);
        launch(&Kernel::Matmul { lhs, rhs: transposed(&matrices), dst: products })?;
        let sum = if first == 0 { self.weights } else { part(self.scratch, self.dtype(), used + count * size, &dims) };
        launch(&Kernel::Reduce { op: ReduceOp::Sum, src: products, axes: Axes::one(0), dst: sum })?;
        if first == 0 {
            return Ok(());
        }
        launch(&Kernel::BinaryAssign { op: BinaryOp::Add, dst: self.weights, rhs: sum })
    }
}
