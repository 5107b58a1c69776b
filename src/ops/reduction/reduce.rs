//! Reductions over axes: sum, mean, max, min, argmax, argmin.

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    call::{Asked, Call},
    dtype::DType,
    error::{Error, Result},
    shape::{Axes, Dim, Dims, Few, Shape},
};
use crate::device::kernel::{Kernel, ReduceOp};
use crate::memory::{proxy::Proxy, registry::ArrayRef};
use crate::ops::{
    call::{
        check,
        compose::single,
        exec::{Output, adopt, device, enter, launch, output, pin, record, view},
    },
    elementwise::unary::one,
};

/// How a reduction is asked for.
#[derive(Clone, Copy)]
struct Reduction {
    call: Call,
    op: ReduceOp,
    keep: bool,
}

fn reduce(src: &Proxy, axes: &dyn Fn(&Shape) -> Result<Axes>, ask: Reduction) -> Result<Proxy> {
    let Reduction { op, call, keep } = ask;
    enter(call, |context| {
        let pins = pin(context, call.op, [src])?;
        let [a] = pins.arrays();
        match op {
            ReduceOp::Mean => check::float(call, a.dtype)?,
            ReduceOp::Sum => check::number(call, a.dtype)?,
            ReduceOp::Max | ReduceOp::Min => a.dtype,
        };
        let shape = *a.layout.shape();
        let axes = axes(&shape)?;
        let empty = shape.dims().iter().enumerate().any(|(i, &dim)| axes.has(i) && dim == 0);
        if empty && matches!(op, ReduceOp::Max | ReduceOp::Min) {
            return Err(Error::shape(call, shape.dims(), "at least one element along the reduced axes"));
        }
        let out = output(context, call.op, device(&a), a.dtype, &axes.reduced(&shape, keep), false)?;
        launch(device(&a), &Kernel::Reduce { op, src: view(&a), axes, dst: out.view() })?;
        let node = record(&[&a], || gradient(ask, &a, &out, axes));
        adopt(call, context, out, src, node)
    })
}

/// The gradient, repeated over the reduced axes; of max and min only where the extreme is, shared among ties.
fn gradient(
    ask: Reduction,
    a: &ArrayRef<'_>,
    out: &Output,
    axes: Axes,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static {
    let shape = *a.layout.shape();
    let kept = axes.reduced(&shape, true);
    let reduced: usize = (0..shape.rank()).filter(|&i| axes.has(i)).map(|i| shape.dims()[i]).product();
    let Reduction { op, call, .. } = ask;
    let saved = matches!(op, ReduceOp::Max | ReduceOp::Min)
        .then(|| (Saved::of(call, a), Saved::new(call, &out.storage, out.dtype, out.layout)));
    move |grad, _| {
        let expanded = grad.reshape(kept)?.broadcast_as(shape)?;
        Ok(one(match (op, &saved) {
            (ReduceOp::Mean, _) => (&expanded / reduced as f64)?,
            (ReduceOp::Sum, _) | (_, None) => expanded,
            (_, Some((x, extreme))) => {
                let hit = x.get()?.broadcast_eq(&extreme.get()?.reshape(kept)?)?.to_dtype(grad.dtype())?;
                // How many there are may be no half.
                let ties = single(&hit)?.sum_over(axes)?;
                let share = single(&grad.reshape(kept)?)?.div(&ties)?.to_dtype(grad.dtype())?;
                hit.broadcast_mul(&share)?
            }
        }))
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident, $all:ident, $op:ident;)*) => {
        /// # Reductions: sums, means, extremes
        impl Proxy {
            $(
                $(#[$doc])*
                /// Over one or more axes, which are removed; the result belongs to the owner of this array.
                ///
                /// # Errors
                /// [`Error::DimOutOfRange`], [`Error::DuplicateDim`], [`Error::StaleArray`],
                /// [`Error::UnsupportedDType`] (means of integers), [`Error::Shape`] (extremes of nothing),
                /// [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name<A: Dims>(&self, dims: A) -> Result<Proxy> {
                    let name = stringify!($name);
                    let ask = Reduction { call: Call::here(name), op: ReduceOp::$op, keep: false };
                    reduce(self, &|shape| Asked::from(name).axes(&dims, shape), ask)
                }

                $(#[$doc])*
                /// Over one or more axes, which stay with size 1.
                ///
                /// # Errors
                /// As the form without `_keepdim`.
                #[track_caller]
                pub fn $keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> {
                    let name = stringify!($keepdim);
                    let ask = Reduction { call: Call::here(name), op: ReduceOp::$op, keep: true };
                    reduce(self, &|shape| Asked::from(name).axes(&dims, shape), ask)
                }

                $(#[$doc])*
                /// Over all axes: a scalar.
                ///
                /// # Errors
                /// As the form without `_all`.
                #[track_caller]
                pub fn $all(&self) -> Result<Proxy> {
                    let ask = Reduction { op: ReduceOp::$op, keep: false, call: Call::here(stringify!($all)) };
                    reduce(self, &|shape| Ok(Axes::all(shape)), ask)
                }
            )*
        }
    };
}

reductions! {
    /// The sum. Integers wrap in their own type; halves are added in f32. Truth values are refused: convert them first.
    sum, sum_keepdim, sum_all, Sum;
    /// The mean of floats.
    mean, mean_keepdim, mean_all, Mean;
    /// The largest element; NaN if any is. Its gradient is shared among equals.
    max, max_keepdim, max_all, Max;
    /// The smallest element; NaN if any is. Its gradient is shared among equals.
    min, min_keepdim, min_all, Min;
}

fn arg(call: Call, src: &Proxy, dim: impl Dim, largest: bool, keep: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [src])?;
        let [a] = pins.arrays();
        let shape = *a.layout.shape();
        let axis = call.axis(dim, &shape)?;
        if shape.dims()[axis] == 0 || u32::try_from(shape.dims()[axis]).is_err() {
            return Err(Error::shape(call, shape.dims(), format!("between 1 and 2^32 elements along axis {axis}")));
        }
        let to = if keep { shape.with_dim(axis, 1) } else { shape.without(axis) };
        let out = output(context, call.op, device(&a), DType::U32, &to, false)?;
        launch(device(&a), &Kernel::ArgReduce { largest, src: view(&a), axis, dst: out.view() })?;
        adopt(call, context, out, src, None)
    })
}

macro_rules! arg_reductions {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident, $largest:expr;)*) => {
        /// # Reductions: where the extremes are
        impl Proxy {
            $(
                $(#[$doc])*
                /// Along an axis, which is removed; u32. No gradient.
                ///
                /// # Errors
                /// [`Error::DimOutOfRange`], [`Error::Shape`] for an empty axis, [`Error::StaleArray`],
                /// [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name<A: Dim>(&self, dim: A) -> Result<Proxy> {
                    arg(Call::here(stringify!($name)), self, dim, $largest, false)
                }

                $(#[$doc])*
                /// Along an axis, which stays with size 1; u32. No gradient.
                ///
                /// # Errors
                /// As the form without `_keepdim`.
                #[track_caller]
                pub fn $keepdim<A: Dim>(&self, dim: A) -> Result<Proxy> {
                    arg(Call::here(stringify!($keepdim)), self, dim, $largest, true)
                }
            )*
        }
    };
}

arg_reductions! {
    /// The index of the first largest element; the first NaN wins.
    argmax, argmax_keepdim, true;
    /// The index of the first smallest element; the first NaN wins.
    argmin, argmin_keepdim, false;
}

impl Proxy {
    /// The sum over a set of axes, which stay with size 1.
    fn sum_over(&self, axes: Axes) -> Result<Proxy> {
        let ask = Reduction { op: ReduceOp::Sum, keep: true, call: Call::here("sum") };
        reduce(self, &|_| Ok(axes), ask)
    }

    /// The sum over the axes that broadcasting added or repeated, so that the result has `shape`: the gradient of a
    /// broadcast.
    pub(crate) fn sum_to(&self, shape: &Shape) -> Result<Proxy> {
        let own = *self.shape();
        if &own == shape {
            return Ok(self.clone());
        }
        let Some(lead) = own.rank().checked_sub(shape.rank()) else {
            return Err(Error::shapes("sum_to", &own, shape, "a gradient has the axes of its array"));
        };
        let axes: Few =
            (0..own.rank()).filter(|&i| i < lead || (shape.dims()[i - lead] == 1 && own.dims()[i] != 1)).collect();
        self.sum_keepdim(&axes[..])?.reshape(*shape)
    }
}
