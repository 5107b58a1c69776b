//! Views by ranges with steps, in reverse, and of windows. No kernel runs.

use crate::base::{
    call::Call,
    error::{Error, Result},
    layout::Layout,
    shape::{Dim, MAX_RANK, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, in_single},
    },
    elementwise::unary::one,
    shape::view::{recorded_view, zeros_beside},
};

/// The axes of a set, as bits, in reverse order.
fn flipped(call: Call, (x, seen): (&Proxy, &Shape), axes: u8) -> Result<Proxy> {
    let of = |layout: &Layout| {
        let turned = |layout: Layout, axis: usize| if axes & 1 << axis == 0 { layout } else { layout.flip(axis) };
        Ok((0..layout.dims().len()).fold(*layout, turned))
    };
    recorded_view(call, (x, seen), of, |_| move |grad: &Proxy, _| Ok(one(flipped(call, (grad, grad.shape()), axes)?)))
}

/// The sum, at each element of an array of the shape `from`, of what `grad` has for it in `count` windows.
fn joined(grad: &Proxy, from: &Shape, axis: usize, [count, size, step]: [usize; 3]) -> Result<Proxy> {
    let whole = zeros_beside(grad, from)?;
    // One addition for each window or for each place in one, whichever are fewer.
    if count < size {
        let by_window = grad.transpose(axis, from.rank())?;
        for window in 0..count {
            let part = by_window.get_on_dim(from.rank(), window)?;
            whole.narrow(axis, window * step, size)?.add_(&part)?;
        }
    } else {
        for place in 0..size {
            let part = grad.get_on_dim(from.rank(), place)?;
            whole.narrow_step(axis, place, count, step as isize)?.add_(&part)?;
        }
    }
    Ok(whole)
}

/// # Indexing: views in steps and windows
impl Proxy {
    /// The indices of these axes in reverse order: a view, with a gradient. An axis named twice stays; the same
    /// array if none is turned.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::arange(0f32, 3., &Device::Cpu)?;
    /// assert_eq!(a.flip(&[0])?.to_vec1::<f32>()?, [2., 1., 0.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias = "reverse")]
    #[track_caller]
    pub fn flip(&self, dims: &[usize]) -> Result<Proxy> {
        let call = Call::here("flip");
        let (shape, mut axes) = (*self.shape(), 0u8);
        for dim in dims {
            axes ^= 1 << call.axis(*dim, &shape)?;
        }
        if axes == 0 { check::same(call, self) } else { flipped(call, (self, &shape), axes) }
    }

    /// The `len` indices `start`, `start + step`, .. of one axis, `step` also negative: a view, with a gradient.
    ///
    /// # Errors
    /// [`Error::Narrow`] if one of them leaves the axis; [`Error::Argument`] for a step of 0;
    /// [`Error::DimOutOfRange`], [`Error::StaleArray`].
    #[track_caller]
    pub fn narrow_step<A: Dim>(&self, dim: A, start: usize, len: usize, step: isize) -> Result<Proxy> {
        let call = Call::here("narrow_step");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        if step == 0 {
            return argument(call, "step", step, "not 0");
        }
        recorded_view(
            call,
            (self, &shape),
            |layout| layout.stepped(axis, start, len, step),
            |from| {
                let from = *from.shape();
                move |grad: &Proxy, _| {
                    let whole = zeros_beside(grad, &from)?;
                    whole.narrow_step(axis, start, len, step)?.copy_(grad)?;
                    Ok(one(whole))
                }
            },
        )
    }

    /// Windows of `size` indices of one axis, each `step` after the one before: the axis counts the windows, a new last
    /// axis what is in one. Indices behind the last whole window are left out. A view, with a gradient; windows that
    /// share elements are for reading, and writing to them in place is refused.
    ///
    /// # Errors
    /// [`Error::Argument`] for a size or a step of 0, or a size longer than the axis; [`Error::DimOutOfRange`],
    /// [`Error::RankTooLarge`], [`Error::SizeOverflow`], [`Error::StaleArray`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::arange(0f32, 5., &Device::Cpu)?;
    /// assert_eq!(a.unfold(0, 3, 2)?.to_vec2::<f32>()?, [[0., 1., 2.], [2., 3., 4.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn unfold<A: Dim>(&self, dim: A, size: usize, step: usize) -> Result<Proxy> {
        let call = Call::here("unfold");
        let (shape, dtype) = (*self.shape(), self.dtype());
        let axis = call.axis(dim, &shape)?;
        if size == 0 || size > shape.dims()[axis] {
            return argument(call, "size", size, "at least 1 and at most the size of the axis");
        }
        if step == 0 {
            return argument(call, "step", step, "at least 1");
        }
        if shape.rank() == MAX_RANK {
            return Err(Error::rank_too_large(call, MAX_RANK + 1));
        }
        let count = (shape.dims()[axis] - size) / step + 1;
        recorded_view(
            call,
            (self, &shape),
            |layout| {
                let windows = layout.windows(axis, count, size, step);
                windows.shape().check(call, dtype.size_in_bytes()).map(|_| windows)
            },
            |from| {
                let from = *from.shape();
                move |grad: &Proxy, _| Ok(one(in_single(grad, |grad| joined(grad, &from, axis, [count, size, step]))?))
            },
        )
    }
}
