//! Pooling: the largest or the mean of what lies under a window, which may be any part of an axis.

use crate::array::autograd::Saved;
use crate::array::autograd::is_grad_enabled;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
    shape::{Shape, ToUsize2},
};
use crate::device::{
    kernel::Kernel,
    window::{PoolOp, Window, Windowed},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::argument,
        exec::{adopt, aside, both_or_none, device, enter, launch, output, pin, record, view_as},
    },
    elementwise::unary::one,
    nn::conv::{as_ncdhw, output_positions},
};

/// How a window goes over the last axes.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// Its size, and its steps.
    Slide(&'a [usize], &'a [usize]),
    /// The places among which each axis is divided.
    Divide(&'a [usize]),
}

#[derive(Clone, Copy)]
struct Pooling {
    call: Call,
    op: PoolOp,
}

/// The shape of a pooled image, and the window.
fn shape_of(ask: Pooling, image: &Shape, way: Way<'_>) -> Result<(Shape, Window)> {
    let (Way::Slide(sizes, _) | Way::Divide(sizes)) = way;
    let (axes, dims) = (sizes.len(), image.dims());
    if dims.len() != axes + 2 {
        let expected = ["", "[batch, channels, length]", "[batch, channels, height, width]"][axes];
        return Err(Error::shape(ask.call, dims, expected));
    }
    let (mut shape, mut window) =
        (*image, Window { size: [1; 3], stride: [1; 3], padding: [0; 3], dilation: [1; 3], out: [1; 3] });
    for axis in 0..axes {
        let (to, len) = (3 - axes + axis, dims[axis + 2]);
        let out = match way {
            Way::Slide(sizes, steps) => {
                for (what, value) in [("kernel", sizes[axis]), ("stride", steps[axis])] {
                    if value == 0 {
                        return argument(ask.call, what, value, "1 or more");
                    }
                }
                (window.size[to], window.stride[to]) = (sizes[axis], steps[axis]);
                output_positions(len, sizes[axis], 0, steps[axis], 1)
            }
            Way::Divide(outs) => (len > 0 || outs[axis] == 0).then_some(outs[axis]),
        };
        let Some(out) = out else {
            let expected = format!("at least {} elements along axis {}", sizes[axis].max(1), axis + 2);
            return Err(Error::shape(ask.call, dims, expected));
        };
        window.out[to] = out;
        shape = shape.with_dim(axis + 2, out);
    }
    Ok((shape, window))
}

/// The pooled values, and where the largest ones lie if `ids`.
fn pool(x: &Proxy, ask: Pooling, way: Way<'_>, ids: bool) -> Result<(Proxy, Option<Proxy>)> {
    let Pooling { op, call } = ask;
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        if op == PoolOp::Mean {
            check::float(call, a.dtype)?;
        }
        let (image, adaptive) = (*a.layout.shape(), matches!(way, Way::Divide(_)));
        let (shape, window) = shape_of(ask, &image, way)?;
        let tracked = op == PoolOp::Max && a.node.is_some() && is_grad_enabled();
        if (ids || tracked) && u32::try_from(image.dims()[2..].iter().product::<usize>()).is_err() {
            return Err(Error::shape(call, image.dims(), "channels of less than 2^32 elements, which u32 can count"));
        }
        let out = output(context, call.op, device(&a), a.dtype, &shape, false)?;
        let found = match (ids, tracked) {
            (true, _) => Some(output(context, call.op, device(&a), DType::U32, &shape, false)?),
            (false, true) => Some(aside(context, call.op, device(&a), DType::U32, &shape)?),
            (false, false) => None,
        };
        let [from, to] = [*a.layout, out.layout].map(as_ncdhw);
        let ids_to = found.as_ref().map(|found| found.view_as(&to));
        let (src, dst) = (view_as(&a, &from), out.view_as(&to));
        launch(device(&a), &Kernel::Windowed(Windowed::Pool { op, image: src, dst, ids: ids_to, window, adaptive }))?;
        let node = record(&[&a], || {
            let saved = found.as_ref().map(|found| Saved::new(call, &found.storage, found.dtype, found.layout));
            move |grad: &Proxy, _: [bool; 3]| Ok(one(gradient(ask, grad, saved.as_ref(), &image, window, adaptive)?))
        });
        let values = adopt(call, context, out, x, node);
        let Some(found) = found.filter(|_| ids) else { return Ok((values?, None)) };
        let (values, found) = both_or_none(values, |_| adopt(call, context, found, x, None))?;
        Ok((values, Some(found)))
    })
}

fn gradient(
    ask: Pooling,
    grad: &Proxy,
    ids: Option<&Saved>,
    image: &Shape,
    window: Window,
    adaptive: bool,
) -> Result<Proxy> {
    let grad = grad.contiguous()?;
    let ids = ids.map(Saved::get).transpose()?;
    enter(ask.call, |context| {
        let own = [Some(&grad), ids.as_ref()];
        let pins = pin(context, ask.call.op, [&grad, own[1].unwrap_or(&grad)])?;
        let [g, i] = pins.arrays();
        let out = output(context, ask.call.op, device(&g), g.dtype, image, false)?;
        let [of_g, of_i, to] = [*g.layout, *i.layout, out.layout].map(as_ncdhw);
        let ids = own[1].is_some().then(|| view_as(&i, &of_i));
        let (from, image) = (view_as(&g, &of_g), out.view_as(&to));
        launch(device(&g), &Kernel::Windowed(Windowed::PoolGrad { grad: from, ids, image, window, adaptive }))?;
        adopt(ask.call, context, out, &grad, None)
    })
}

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident, $with_stride:ident, $op:ident, $size:ty, |$k:ident| $list:expr;)*) => {
        /// # Networks: pooling
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// The window steps by its own size; what is left at the end of an axis is not seen. The result belongs
                /// to the owner of this array. With a gradient.
                ///
                /// # Errors
                /// [`Error::Shape`] for another number of axes, or a window that is larger than the image;
                /// [`Error::Argument`] for a size of 0; [`Error::UnsupportedDType`] (means of integers),
                /// [`Error::StaleArray`], [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name(&self, kernel: $size) -> Result<Proxy> {
                    let ask = Pooling { op: PoolOp::$op, call: Call::here(stringify!($name)) };
                    let $k = kernel;
                    let size = $list;
                    Ok(pool(self, ask, Way::Slide(&size, &size), false)?.0)
                }

                $(#[$doc])*
                ///
                /// The window steps by `stride`.
                ///
                /// # Errors
                /// As the form without a stride.
                #[track_caller]
                pub fn $with_stride(&self, kernel: $size, stride: $size) -> Result<Proxy> {
                    let ask = Pooling { op: PoolOp::$op, call: Call::here(stringify!($with_stride)) };
                    let $k = kernel;
                    let size = $list;
                    let $k = stride;
                    Ok(pool(self, ask, Way::Slide(&size, &$list), false)?.0)
                }
            )*
        }
    };
}

pools! {
    /// The mean of each window on `[batch, channels, height, width]`, of floats.
    avg_pool2d, avg_pool2d_with_stride, Mean, impl ToUsize2, |k| pair(k);
    /// The largest element of each window on `[batch, channels, height, width]`, of any dtype; NaN if any is.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let image = Tensor::arange(0f32, 16., &Device::Cpu)?.reshape((1, 1, 4, 4))?;
    /// assert_eq!(image.max_pool2d(2)?.flatten_all()?.to_vec1::<f32>()?, [5., 7., 13., 15.]);
    /// assert_eq!(image.avg_pool2d((4, 2))?.flatten_all()?.to_vec1::<f32>()?, [6.5, 8.5]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    max_pool2d, max_pool2d_with_stride, Max, impl ToUsize2, |k| pair(k);
    /// The mean of each window on `[batch, channels, length]`, of floats.
    avg_pool1d, avg_pool1d_with_stride, Mean, usize, |k| [k];
    /// The largest element of each window on `[batch, channels, length]`, of any dtype; NaN if any is.
    max_pool1d, max_pool1d_with_stride, Max, usize, |k| [k];
}

fn pair(size: impl ToUsize2) -> [usize; 2] {
    let (height, width) = size.to_usize2();
    [height, width]
}

/// # Networks: pooling with indices, adaptive pooling
impl Proxy {
    /// As [`Proxy::max_pool2d_with_stride`], and where the first largest element of each window lies in its channel, as
    /// u32: `row * width + column`. Both results belong to the owner of this array.
    ///
    /// # Errors
    /// As [`Proxy::max_pool2d`].
    #[track_caller]
    pub fn max_pool2d_with_indices(&self, kernel: impl ToUsize2, stride: impl ToUsize2) -> Result<(Proxy, Proxy)> {
        let ask = Pooling { op: PoolOp::Max, call: Call::here("max_pool2d_with_indices") };
        let (values, ids) = pool(self, ask, Way::Slide(&pair(kernel), &pair(stride)), true)?;
        Ok((values, ids.ok_or_else(|| Error::msg("the indices were asked for"))?))
    }

    /// `[batch, channels, height, width]` to `[batch, channels, h, w]`: each axis is divided among the places, which
    /// may share elements, and each gives the mean of its own. `1` is the mean of every channel. Floats, with a
    /// gradient; the result belongs to the owner of this array.
    ///
    /// # Errors
    /// As [`Proxy::avg_pool2d`].
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, size: impl ToUsize2) -> Result<Proxy> {
        let ask = Pooling { op: PoolOp::Mean, call: Call::here("adaptive_avg_pool2d") };
        Ok(pool(self, ask, Way::Divide(&pair(size)), false)?.0)
    }

    /// `[batch, channels, length]` to `[batch, channels, size]`, as [`Proxy::adaptive_avg_pool2d`].
    ///
    /// # Errors
    /// As [`Proxy::avg_pool2d`].
    #[track_caller]
    pub fn adaptive_avg_pool1d(&self, size: usize) -> Result<Proxy> {
        let ask = Pooling { op: PoolOp::Mean, call: Call::here("adaptive_avg_pool1d") };
        Ok(pool(self, ask, Way::Divide(&[size]), false)?.0)
    }
}
