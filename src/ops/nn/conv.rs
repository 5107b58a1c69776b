//! Convolutions over one, two or three spatial axes, transposed ones, and the columns that they are made of.
//!
//! Kernels see images `[B, C, D, H, W]`; those with fewer axes get leading ones of size 1. A convolution, the gradient
//! of its image and that of its weights are three sides of one sum: each one's own gradients are the other two.

use crate::array::autograd::Saved;
use crate::base::{
    call::Call,
    error::{Error, Result},
    layout::Layout,
    shape::{Shape, ToUsize2},
};
use crate::device::{
    kernel::{Kernel, View},
    window::{ConvOp, ConvSizes, Window, Windowed},
};
use crate::memory::{proxy::Proxy, registry::Pinned, threads::ThreadContext};
use crate::ops::{
    call::{
        check,
        compose::argument,
        exec::{Output, adopt, aside, device, enter, launch, output, pin, record, view, view_as},
    },
    elementwise::unary::one,
};

/// A layout with three spatial axes.
pub(crate) fn as_ncdhw(mut layout: Layout) -> Layout {
    while layout.shape().rank() < 5 {
        layout = layout.unsqueeze(2);
    }
    layout
}

/// What a convolution is asked for, beside its arrays.
#[derive(Clone, Copy)]
struct Convolution {
    call: Call,
    /// Spatial axes.
    axes: usize,
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

impl Convolution {
    /// Numbers that are not 0, arrays of the right rank with at least one element along the window.
    fn check(&self, image: &Shape, weights: &Shape) -> Result<()> {
        for (what, value) in [("stride", self.stride), ("dilation", self.dilation), ("groups", self.groups)] {
            if value == 0 {
                return argument(self.call, what, value, "1 or more");
            }
        }
        for (shape, expected) in [(image, "[batch, channels"), (weights, "kernels as [out, in")] {
            if shape.rank() != self.axes + 2 {
                let spatial = ["", ", length]", ", height, width]", ", depth, height, width]"][self.axes];
                return Err(Error::shape(self.call, shape.dims(), format!("{expected}{spatial}")));
            }
        }
        if weights.dims()[2..].contains(&0) {
            let expected = "a kernel of at least one element along each spatial axis";
            return Err(Error::shape(self.call, weights.dims(), expected));
        }
        Ok(())
    }

    /// The window, without its places.
    fn window(&self, size: &[usize]) -> Window {
        let lead = 3 - self.axes;
        let along = |value: usize, other: usize| std::array::from_fn(|i| if i < lead { other } else { value });
        Window {
            size: std::array::from_fn(|i| if i < lead { 1 } else { size[i - lead] }),
            stride: along(self.stride, 1),
            padding: along(self.padding, 0),
            dilation: along(self.dilation, 1),
            out: [1; 3],
        }
    }
}

/// The places that a window takes on an axis; `None` if it does not fit once, or beyond what can be counted.
pub(crate) fn output_positions(
    len: usize,
    size: usize,
    padding: usize,
    stride: usize,
    dilation: usize,
) -> Option<usize> {
    let padded = padding.checked_mul(2)?.checked_add(len).filter(|&padded| isize::try_from(padded).is_ok())?;
    let reach = dilation.checked_mul(size.checked_sub(1)?)?;
    Some(padded.checked_sub(1)?.checked_sub(reach)? / stride + 1)
}

/// The length of an axis on which a window takes so many places; `None` as for [`output_positions`].
fn length(positions: usize, ask: &Convolution, size: usize, output_padding: usize) -> Option<usize> {
    let steps = positions.checked_sub(1)?.checked_mul(ask.stride)?;
    let reach = ask.dilation.checked_mul(size.checked_sub(1)?)?;
    let padded = steps.checked_add(reach)?.checked_add(output_padding)?.checked_add(1)?;
    isize::try_from(padded).ok()?;
    padded.checked_sub(ask.padding.checked_mul(2)?).filter(|&length| length > 0)
}

fn wrong_convolution<R>(ask: &Convolution, image: &Shape, weights: &Shape) -> Result<R> {
    let why =
        format!("the window does not fit: padding {}, stride {}, dilation {}", ask.padding, ask.stride, ask.dilation);
    Err(Error::shapes(ask.call, image, weights, why))
}

/// Channels that do not fit the groups.
fn channels<R>(ask: &Convolution, image: &Shape, weights: &Shape, why: &str) -> Result<R> {
    Err(Error::shapes(ask.call, image, weights, format!("{why}, with {} groups", ask.groups)))
}

/// The shape of a convolution, and its window.
fn forward_shape(ask: &Convolution, image: &Shape, weights: &Shape) -> Result<(Shape, Window)> {
    ask.check(image, weights)?;
    let (x, w) = (image.dims(), weights.dims());
    if w[1].checked_mul(ask.groups) != Some(x[1]) {
        return channels(ask, image, weights, "the image has other channels than the kernels see");
    }
    if !w[0].is_multiple_of(ask.groups) {
        return channels(ask, image, weights, "the kernels are no multiple of the groups");
    }
    let (mut shape, mut window) = (image.with_dim(1, w[0]), ask.window(&w[2..]));
    for axis in 2..x.len() {
        match output_positions(x[axis], w[axis], ask.padding, ask.stride, ask.dilation) {
            Some(positions) => shape = shape.with_dim(axis, positions),
            None => return wrong_convolution(ask, image, weights),
        }
        window.out[3 - ask.axes + axis - 2] = shape.dims()[axis];
    }
    Ok((shape, window))
}

/// The shape of a transposed convolution, and the window of the convolution that it is the transpose of.
fn transposed_shape(
    ask: &Convolution,
    image: &Shape,
    weights: &Shape,
    output_padding: usize,
) -> Result<(Shape, Window)> {
    ask.check(image, weights)?;
    let (x, w) = (image.dims(), weights.dims());
    if w[0] != x[1] {
        return channels(ask, image, weights, "the kernels are for another number of channels");
    }
    if !x[1].is_multiple_of(ask.groups) {
        return channels(ask, image, weights, "the channels are no multiple of the groups");
    }
    let Some(out) = w[1].checked_mul(ask.groups) else { return channels(ask, image, weights, "too many channels") };
    let (mut shape, mut window) = (image.with_dim(1, out), ask.window(&w[2..]));
    for axis in 2..x.len() {
        match length(x[axis], ask, w[axis], output_padding) {
            Some(length) => shape = shape.with_dim(axis, length),
            None => return wrong_convolution(ask, image, weights),
        }
        window.out[3 - ask.axes + axis - 2] = x[axis];
    }
    Ok((shape, window))
}

/// An operand as kernels of windows see it: with three spatial axes, and with its elements one after the other where
/// they want that, in a copy if they are not.
struct ConvOperand<'a> {
    array: &'a Pinned<'a>,
    copy: Option<Output>,
    layout: Layout,
}

impl<'a> ConvOperand<'a> {
    fn any(array: &'a Pinned<'a>) -> Self {
        ConvOperand { array, copy: None, layout: as_ncdhw(*array.layout) }
    }

    fn dense(context: &ThreadContext, name: &'static str, array: &'a Pinned<'a>) -> Result<Self> {
        if array.layout.is_contiguous() {
            return Ok(Self::any(array));
        }
        let copy = aside(context, name, device(array), array.dtype, array.layout.shape())?;
        launch(device(array), &Kernel::copy(view(array), copy.view()))?;
        Ok(ConvOperand { array, layout: as_ncdhw(copy.layout), copy: Some(copy) })
    }

    fn view(&self) -> View<'_> {
        match &self.copy {
            Some(copy) => copy.view_as(&self.layout),
            None => view_as(self.array, &self.layout),
        }
    }
}

/// One side of the sum from the other two: of image, weights and result the one that `op` names is `shape`, and `a`
/// and `b` are the others in that order.
fn side(
    context: &ThreadContext,
    ask: &Convolution,
    op: ConvOp,
    [a, b]: [&Pinned<'_>; 2],
    shape: &Shape,
    window: Window,
) -> Result<Output> {
    let (name, own) = (ask.call.op, device(a));
    let out = output(context, name, own, a.dtype, shape, false)?;
    let of_a = if op == ConvOp::Image { ConvOperand::dense(context, name, a)? } else { ConvOperand::any(a) };
    let of_b = ConvOperand::dense(context, name, b)?;
    let layout_ncdhw = as_ncdhw(out.layout);
    let (of_a, of_b, to) = (of_a.view(), of_b.view(), out.view_as(&layout_ncdhw));
    let [image, weights, result] = match op {
        ConvOp::Result => [of_a, of_b, to],
        ConvOp::Image => [to, of_a, of_b],
        ConvOp::Weights => [of_a, to, of_b],
    };
    let sizes = ConvSizes::new(image.layout().dims(), weights.layout().dims(), &window, ask.groups);
    let scratch = aside(context, name, own, a.dtype, &Shape::from(own.conv_scratch(op, &sizes)))?;
    launch(
        own,
        &Kernel::Windowed(Windowed::Conv {
            op,
            image,
            weights,
            result,
            scratch: scratch.view(),
            window,
            groups: ask.groups,
        }),
    )?;
    Ok(out)
}

/// A side as an array of its own, for gradients.
fn gradient(ask: &Convolution, op: ConvOp, a: &Proxy, b: &Proxy, shape: &Shape, window: Window) -> Result<Proxy> {
    enter(ask.call, |context| {
        let pins = pin(context, ask.call.op, [a, b])?;
        let [x, y] = pins.arrays();
        let out = side(context, ask, op, [&x, &y], shape, window)?;
        adopt(ask.call, context, out, a, None)
    })
}

/// A convolution, or a transposed one with this output padding.
fn convolve(x: &Proxy, weights: &Proxy, ask: Convolution, transposed: Option<usize>) -> Result<Proxy> {
    let call = ask.call;
    enter(call, |context| {
        let pins = pin(context, call.op, [x, weights])?;
        let [a, w] = pins.arrays();
        check::same_device(call, device(&a), device(&w))?;
        check::same_dtype(call, &a, &w)?;
        check::float(call, a.dtype)?;
        let shapes = [*a.layout.shape(), *w.layout.shape()];
        let (shape, window) = match transposed {
            None => forward_shape(&ask, &shapes[0], &shapes[1])?,
            Some(output_padding) => transposed_shape(&ask, &shapes[0], &shapes[1], output_padding)?,
        };
        shape.check(call, a.dtype.size_in_bytes())?;
        let out = match transposed {
            None => side(context, &ask, ConvOp::Result, [&a, &w], &shape, window)?,
            Some(_) => side(context, &ask, ConvOp::Image, [&w, &a], &shape, window)?,
        };
        let node = record(&[&a, &w], || {
            let left = w.node.is_some().then(|| Saved::of(call, &a));
            let right = a.node.is_some().then(|| Saved::of(call, &w));
            move |grad: &Proxy, needs: [bool; 3]| {
                let mut grads = [None, None, None];
                if let (true, Some(right)) = (needs[0], &right) {
                    let w = right.get()?;
                    grads[0] = Some(match transposed {
                        None => gradient(&ask, ConvOp::Image, &w, grad, &shapes[0], window)?,
                        Some(_) => gradient(&ask, ConvOp::Result, grad, &w, &shapes[0], window)?,
                    });
                }
                if let (true, Some(left)) = (needs[1], &left) {
                    let x = left.get()?;
                    let [image, result] = if transposed.is_none() { [&x, grad] } else { [grad, &x] };
                    grads[1] = Some(gradient(&ask, ConvOp::Weights, image, result, &shapes[1], window)?);
                }
                Ok(grads)
            }
        });
        adopt(call, context, out, x, node)
    })
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident, $axes:literal;)*) => {
        /// # Networks: convolutions
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// `groups` divide the channels: each group of kernels sees its own. The result belongs to the owner
                /// of this array; the kernels have its dtype. With gradients. Floats.
                ///
                /// # Errors
                /// [`Error::Shape`], [`Error::ShapeMismatch`] for arrays that do not fit each other, or a window
                /// larger than the padded image; [`Error::Argument`] for a stride, dilation or groups of 0;
                /// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::DeviceMismatch`],
                /// [`Error::StaleArray`], [`Error::SizeOverflow`], [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name(
                    &self,
                    kernel: &Proxy,
                    padding: usize,
                    stride: usize,
                    dilation: usize,
                    groups: usize,
                ) -> Result<Proxy> {
                    let call = Call::here(stringify!($name));
                    convolve(self, kernel, Convolution { call, axes: $axes, padding, stride, dilation, groups }, None)
                }
            )*
        }
    };
}

convolutions! {
    /// The convolution of `[batch, in, length]` with kernels `[out, in / groups, size]`: `[batch, out, positions]`.
    conv1d, 1;
    /// The convolution of `[batch, in, height, width]` with kernels `[out, in / groups, h, w]`; padding before stride.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let image = Tensor::ones((1, 3, 8, 8), DType::F32, &Device::Cpu)?;
    /// let kernels = Tensor::ones((5, 3, 3, 3), DType::F32, &Device::Cpu)?;
    /// let seen = image.conv2d(&kernels, 1, 2, 1, 1)?;
    /// assert_eq!(seen.dims(), [1, 5, 4, 4]);
    /// assert_eq!(seen.max_all()?.to_scalar::<f32>()?, 27.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    conv2d, 2;
    /// The convolution of `[batch, in, depth, height, width]` with kernels `[out, in / groups, d, h, w]`.
    conv3d, 3;
}

/// # Networks: transposed convolutions, columns
impl Proxy {
    /// The transpose of [`Proxy::conv1d`]: `[batch, in, positions]` and kernels `[in, out / groups, size]` to
    /// `[batch, out, (positions - 1) stride - 2 padding + dilation (size - 1) + output_padding + 1]`.
    ///
    /// The result belongs to the owner of this array. With gradients. Floats.
    ///
    /// # Errors
    /// As [`Proxy::conv1d`].
    #[track_caller]
    pub fn conv_transpose1d(
        &self,
        kernel: &Proxy,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Proxy> {
        let call = Call::here("conv_transpose1d");
        convolve(self, kernel, Convolution { call, axes: 1, padding, stride, dilation, groups }, Some(output_padding))
    }

    /// The transpose of [`Proxy::conv2d`]: `[batch, in, height, width]` and kernels `[in, out, h, w]`, with the sizes
    /// of [`Proxy::conv_transpose1d`] along both axes.
    ///
    /// # Errors
    /// As [`Proxy::conv2d`].
    #[track_caller]
    pub fn conv_transpose2d(
        &self,
        kernel: &Proxy,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
    ) -> Result<Proxy> {
        let call = Call::here("conv_transpose2d");
        convolve(
            self,
            kernel,
            Convolution { call, axes: 2, padding, stride, dilation, groups: 1 },
            Some(output_padding),
        )
    }

    /// What a window of `[h, w]` sees of `[batch, channels, height, width]`, 0 outside it:
    /// `[batch, channels h w, positions]`, which is contiguous. Of any dtype; with a gradient. The result belongs to
    /// the owner of this array. [`Proxy::fold`] goes back.
    ///
    /// # Errors
    /// As [`Proxy::conv2d`].
    #[track_caller]
    pub fn im2col<K: ToUsize2>(&self, kernel: K, padding: usize, stride: usize, dilation: usize) -> Result<Proxy> {
        let call = Call::here("im2col");
        let ask = Convolution { call, axes: 2, padding, stride, dilation, groups: 1 };
        let (h, w) = kernel.to_usize2();
        enter(call, |context| {
            let pins = pin(context, call.op, [self])?;
            let [a] = pins.arrays();
            let image = *a.layout.shape();
            let (shape, window) = columns_shape(&ask, &image, [h, w])?;
            let out = output(context, call.op, device(&a), a.dtype, &shape, false)?;
            let layout_ncdhw = as_ncdhw(*a.layout);
            let kernel = Windowed::Unfold { image: view_as(&a, &layout_ncdhw), columns: out.view(), window };
            launch(device(&a), &Kernel::Windowed(kernel))?;
            let node = record(&[&a], || move |grad: &Proxy, _: [bool; 3]| Ok(one(folded(grad, &ask, &image, window)?)));
            adopt(call, context, out, self, node)
        })
    }

    /// The transpose of [`Proxy::im2col`]: `[batch, channels h w, positions]` to `[batch, channels, height, width]`
    /// with this `(height, width)`, each element the sum of what it would have given. Any dtype but truth values; with
    /// a gradient.
    ///
    /// # Errors
    /// As [`Proxy::conv2d`]; [`Error::ShapeMismatch`] for columns that are not those of such an image.
    #[track_caller]
    pub fn fold<S: ToUsize2, K: ToUsize2>(
        &self,
        size: S,
        kernel: K,
        padding: usize,
        stride: usize,
        dilation: usize,
    ) -> Result<Proxy> {
        let call = Call::here("fold");
        let ask = Convolution { call, axes: 2, padding, stride, dilation, groups: 1 };
        let ((height, width), (h, w)) = (size.to_usize2(), kernel.to_usize2());
        enter(call, |context| {
            let pins = pin(context, call.op, [self])?;
            let [a] = pins.arrays();
            check::number(call, a.dtype)?;
            let columns = *a.layout.shape();
            let kernel_elems = h.checked_mul(w).filter(|&kernel_elems| kernel_elems > 0);
            let (&[batch, depth, _], Some(kernel_elems)) = (columns.dims(), kernel_elems) else {
                let expected = "[batch, channels h w, places] and a kernel of at least one element";
                return Err(Error::shape(call, columns.dims(), expected));
            };
            let image = Shape::from((batch, depth / kernel_elems, height, width));
            let (shape, window) = columns_shape(&ask, &image, [h, w])?;
            check::same_shape(call, &columns, &shape, "the columns are of another image or window")?;
            image.check(call, a.dtype.size_in_bytes())?;
            let out = fold_of(context, &ask, &a, &image, window)?;
            let node = record(&[&a], || {
                move |grad: &Proxy, _: [bool; 3]| Ok(one(grad.im2col((h, w), padding, stride, dilation)?))
            });
            adopt(call, context, out, self, node)
        })
    }
}

/// The shape of the columns of an image, and the window.
fn columns_shape(ask: &Convolution, image: &Shape, [h, w]: [usize; 2]) -> Result<(Shape, Window)> {
    if image.rank() != 4 {
        return Err(Error::shape(ask.call, image.dims(), "[batch, channels, height, width]"));
    }
    let (batch, channels) = (image.dims()[0], image.dims()[1]);
    let weights = Shape::from((1, channels, h, w));
    let (_, window) = forward_shape(ask, image, &weights)?;
    let overflow = || Error::size_overflow(ask.call, image.dims(), 1);
    let depth = h.checked_mul(w).and_then(|kernel_elems| kernel_elems.checked_mul(channels)).ok_or_else(overflow)?;
    let positions = window.out[1].checked_mul(window.out[2]).ok_or_else(overflow)?;
    Ok((Shape::from((batch, depth, positions)), window))
}

fn fold_of(
    context: &ThreadContext,
    ask: &Convolution,
    columns: &Pinned<'_>,
    image: &Shape,
    window: Window,
) -> Result<Output> {
    let out = output(context, ask.call.op, device(columns), columns.dtype, image, false)?;
    let layout_ncdhw = as_ncdhw(out.layout);
    let mut from = ConvOperand::dense(context, ask.call.op, columns)?;
    from.layout = from.copy.as_ref().map_or(*columns.layout, |copy| copy.layout);
    launch(
        device(columns),
        &Kernel::Windowed(Windowed::Fold { columns: from.view(), image: out.view_as(&layout_ncdhw), window }),
    )?;
    Ok(out)
}

fn folded(columns: &Proxy, ask: &Convolution, image: &Shape, window: Window) -> Result<Proxy> {
    enter(ask.call, |context| {
        let pins = pin(context, ask.call.op, [columns])?;
        let [c] = pins.arrays();
        let out = fold_of(context, ask, &c, image, window)?;
        adopt(ask.call, context, out, columns, None)
    })
}
