//! Composite operations: those that are computed by others.
//!
//! Two ways to get a gradient. A plain composition has that of its parts. A value whose parts would give a bad one
//! (`0 * infinity` in the branch not taken, cancellation, many saved intermediates) is computed outside the graph and
//! then [given a derivative of its own](Proxy::with_gradient), which keeps the operands alone.
//!
//! An error of a part names the composite operation: the user called that.

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    call::{Asked, Call},
    dtype::DType,
    error::{Error, Result, Site},
    shape::{Dims, Few, Shape},
};
use crate::memory::{
    node::forget_kept,
    proxy::Proxy,
    registry::{Parts, Pinned},
};
use crate::ops::call::{
    check,
    exec::{Once, adopt_parts, compose, compose_all, compose_at, enter, in_composite, once, pin, record},
    inplace::filled_beside,
    place::Place,
};

/// A composite operation; see [`compose`]. `f` may return an array that it made, or `first` itself, but
/// never another operand: the result is given to the owner of `first`.
pub(crate) fn composite(call: Call, first: &Proxy, f: Once<'_, Proxy>) -> Result<Proxy> {
    compose(call, first, f).map_err(|error| error.of(call))
}

/// As [`composite`], with a result for a place that the caller named; `f` returns an array that it made with the
/// device.
pub(crate) fn composite_at(call: Call, at: &dyn Place, f: Once<'_, Proxy>) -> Result<Proxy> {
    compose_at(call, at, f).map_err(|error| error.of(call))
}

/// A number as a scalar of the dtype and device of `x`, to be broadcast.
pub(crate) fn number(x: &Proxy, value: f64, site: Site) -> Result<Proxy> {
    filled_beside(Call { op: "number", site }, x, &Shape::SCALAR, value)
}

/// A number repeated over the shape of `x`: one element of memory.
pub(crate) fn number_like(x: &Proxy, value: f64, site: Site) -> Result<Proxy> {
    number(x, value, site)?.broadcast_as(*x.shape())
}

/// What `f` makes of an array of floats, in its dtype; `f` sees halves as f32, so that they are rounded once at the end
/// and not in each step.
pub(crate) fn in_single(x: &Proxy, f: impl FnOnce(&Proxy) -> Result<Proxy>) -> Result<Proxy> {
    match x.dtype() {
        dtype @ (DType::F8E4M3 | DType::F16 | DType::BF16) => f(&x.to_dtype(DType::F32)?)?.to_dtype(dtype),
        _ => f(x),
    }
}

/// An array, of halves as f32: a further operand of what [`in_single`] runs.
pub(crate) fn single(x: &Proxy) -> Result<Proxy> {
    match x.dtype() {
        DType::F8E4M3 | DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        _ => check::same("single", x),
    }
}

/// The axes named, as a list, and the number of elements along them together.
pub(crate) fn axes_of(x: &Proxy, dims: &impl Dims, call: impl Into<Asked>) -> Result<(Few, usize)> {
    let shape = *x.shape();
    let axes = call.into().axes(dims, &shape)?;
    let list: Few = (0..shape.rank()).filter(|&axis| axes.has(axis)).collect();
    let count = list.iter().map(|&axis| shape.dims()[axis]).product();
    Ok((list, count))
}

/// A shape made of a list of dims, refused if it is too long: for shapes computed from others.
pub(crate) fn shape_of(call: impl Into<Asked>, dims: &[usize], elem_bytes: usize) -> Result<Shape> {
    let shape = Shape::from(dims);
    shape.check(call, elem_bytes)?;
    Ok(shape)
}

/// What was saved, as arrays.
fn values_of<const N: usize>(saved: &[Saved; N]) -> Result<[Proxy; N]> {
    const { assert!(N > 0, "an operation has an operand") };
    let first = saved[0].get()?;
    let mut values = std::array::from_fn(|_| first.clone());
    for (value, saved) in values.iter_mut().zip(saved).skip(1) {
        *value = saved.get()?;
    }
    Ok(values)
}

/// What a derivative knows of its operands: their values, or what the gradients must be like.
enum Operands<const N: usize> {
    Kept([Saved; N]),
    Like([(Shape, DType); N]),
}

impl<const N: usize> Operands<N> {
    fn of(call: Call, arrays: &[Pinned<'_>; N], keep: bool) -> Self {
        match keep {
            true => Operands::Kept(arrays.each_ref().map(|a| Saved::of(call, a))),
            false => Operands::Like(arrays.each_ref().map(|a| (*a.layout.shape(), a.dtype))),
        }
    }

    /// What `vjp` makes of the values that were kept, if it fits.
    fn gradients(&self, op: &'static str, vjp: &dyn Fn(&[Proxy]) -> Result<Grads>) -> Result<Grads> {
        let (grads, like) = match self {
            Operands::Like(like) => (vjp(&[])?, *like),
            Operands::Kept(saved) => {
                let values = values_of(saved)?;
                // First: a user's derivative may exchange them.
                let like = values.each_ref().map(|value| (*value.shape(), value.dtype()));
                (vjp(&values)?, like)
            }
        };
        gradients_fit(op, &grads, &like)?;
        Ok(grads)
    }
}

/// What steps computed as gradients is that of their operands: the derivatives before rely on it. It is not if a user's
/// derivative gives something else, or if an operand was exchanged while the operation ran.
fn gradients_fit(op: &'static str, grads: &Grads, like: &[(Shape, DType)]) -> Result<()> {
    for (grad, (shape, dtype)) in grads.iter().zip(like) {
        let Some(grad) = grad else { continue };
        check::same_shape(op, grad.shape(), shape, "a gradient has the shape of its operand")?;
        if grad.dtype() != *dtype {
            return Err(Error::dtype_mismatch(op, grad.dtype(), *dtype));
        }
    }
    Ok(())
}

/// An argument outside its range.
pub(crate) fn argument<R>(
    call: impl Into<Asked>,
    argument: &'static str,
    value: impl ToString,
    expected: &'static str,
) -> Result<R> {
    Err(Error::argument(call, argument, value, expected))
}

/// A shape that does not have the form needed.
pub(crate) fn wrong_shape<R>(call: impl Into<Asked>, x: &Proxy, expected: &str) -> Result<R> {
    Err(Error::shape(call, x.dims(), expected))
}

/// Runs `f` for a call at `site`: the arrays that it makes are told of in reports, and its errors, as of that line.
///
/// For functions of a library of your own that make arrays; of arrays, [`Proxy::compose`] does it. Inside of a call
/// that is told of already, that stays.
///
/// # Errors
/// Those of `f`.
///
/// ```
/// # use ndgc::{called_at, DType, Device, Result, Tensor};
/// use std::panic::Location;
///
/// #[track_caller]
/// fn identity(size: usize) -> Result<Tensor> {
///     called_at(Location::caller(), || Tensor::eye(size, DType::F32, &Device::Cpu))
/// }
///
/// let (x, line) = (identity(2)?, line!());
/// assert_eq!(x.created_at().map(|site| site.line()), Some(line));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn called_at<R>(site: Site, f: impl FnOnce() -> Result<R>) -> Result<R> {
    in_composite(site, &mut once(f))
}

/// # Operations of your own: made of others
impl Proxy {
    /// An operation of your own, made of others: what `f` makes on the way is gone when it ends, whatever the switch
    /// says, and its result belongs to the owner of this array. Errors name `op`.
    ///
    /// `f` returns an array that it made, or this one.
    ///
    /// # Errors
    /// Those of `f`; [`Error::StaleArray`] if this array's owner ended meanwhile.
    ///
    /// ```
    /// # use ndgc::{Device, DType, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = manager.ones((2, 2), DType::F32)?;
    /// let y = x.compose("cube", || x.sqr()?.mul(&x))?;
    /// assert_eq!(manager.array_count(), 2); // x and y, and no square
    /// # drop(y);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn compose(&self, op: &'static str, f: impl FnOnce() -> Result<Proxy>) -> Result<Proxy> {
        composite(Call::here(op), self, &mut once(f))
    }

    /// As [`Proxy::compose`], with several results.
    ///
    /// # Errors
    /// As [`Proxy::compose`].
    #[track_caller]
    pub fn compose_all<const N: usize>(
        &self,
        op: &'static str,
        f: impl FnOnce() -> Result<[Proxy; N]>,
    ) -> Result<[Proxy; N]> {
        compose_all(Call::here(op), self, &mut once(f)).map_err(|error| error.of(op))
    }

    /// These values, which nobody else has, as a function of `operands` whose gradients `vjp` computes: from the
    /// gradient of the values, and from the operands if they are kept. For use inside [`composite`].
    pub(crate) fn with_gradient<const N: usize>(
        self,
        call: Call,
        operands: [&Proxy; N],
        keep: bool,
        vjp: impl Fn(&Proxy, &[Proxy], [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
    ) -> Result<Proxy> {
        let tied = enter(call, |context| {
            let (pins, own) = (pin(context, call.op, operands)?, pin(context, call.op, [&self])?);
            let (arrays, [v]) = (pins.arrays(), own.arrays());
            let node = record(&arrays.each_ref().map(|array| &**array), || {
                let operands = Operands::of(call, &arrays, keep);
                move |grad: &Proxy, needs: [bool; 3]| operands.gradients(call.op, &|values| vjp(grad, values, needs))
            });
            if node.is_none() {
                return Ok(None);
            }
            let parts = Parts { dtype: v.dtype, layout: v.layout, storage: v.storage.clone(), node };
            adopt_parts(call, context, parts, &self).map(Some)
        });
        if !matches!(tied, Ok(Some(_))) {
            // Of what the caller kept for a step that was not made.
            forget_kept();
        }
        match tied? {
            None => Ok(self),
            Some(tied) => {
                self.close();
                Ok(tied)
            }
        }
    }
}
