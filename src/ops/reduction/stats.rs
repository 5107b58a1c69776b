//! Reductions composed of others: variance, product, truth, norms, log of a sum of exponentials.

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::Result,
    shape::{Dims, Few},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{axes_of, composite, in_single, number, number_like},
        exec::both_or_none,
    },
    elementwise::{logic::truth, unary::one},
};

/// The sum over axes, kept or not.
fn summed(x: &Proxy, axes: &[usize], keep: bool) -> Result<Proxy> {
    if keep { x.sum_keepdim(axes) } else { x.sum(axes) }
}

/// The unbiased variance; NaN for fewer than two elements.
fn variance(x: &Proxy, dims: &impl Dims, keep: bool, op: &'static str) -> Result<Proxy> {
    check::float(op, x.dtype())?;
    let (axes, count) = axes_of(x, dims, op)?;
    let free = if count > 1 { (count - 1) as f64 } else { f64::NAN };
    in_single(x, |x| {
        let squares = x.broadcast_sub(&x.mean_keepdim(&axes[..])?)?.sqr()?;
        summed(&squares, &axes, keep)? / free
    })
}

/// The root of the variance. Its derivative is 0 where it is.
fn deviation(call: Call, x: &Proxy, dims: &impl Dims, keep: bool) -> Result<Proxy> {
    in_single(x, |x| {
        let variance = variance(x, dims, keep, call.op)?;
        let values = no_grad(|| variance.sqrt())?;
        values.with_gradient(call, [&variance], true, |grad, operands, _| {
            let root = operands[0].sqrt()?;
            let none = root.zeros_like()?;
            let slope = grad.div(&root.affine(2.0, 0.0)?)?;
            Ok(one(root.eq(&none)?.where_cond(&none, &slope)?))
        })
    })
}

/// Halves are multiplied until one index is left: the gradient is right for zeros too, and nothing is divided.
fn product(x: &Proxy, axis: usize) -> Result<Proxy> {
    let mut out = x.clone();
    let shape = *x.shape();
    let mut size = shape.dim(axis)?;
    if size == 0 {
        return Proxy::ones(shape.with_dim(axis, 1), x.dtype(), x.device());
    }
    while size > 1 {
        let half = size / 2;
        let pairs = out.narrow(axis, 0, half)?.mul(&out.narrow(axis, half, half)?)?;
        out = if size.is_multiple_of(2) { pairs } else { Proxy::cat(&[pairs, out.narrow(axis, 2 * half, 1)?], axis)? };
        size = size.div_ceil(2);
    }
    Ok(out)
}

fn products(x: &Proxy, dims: &impl Dims, keep: bool, op: &'static str) -> Result<Proxy> {
    check::number(op, x.dtype())?;
    let (axes, _) = axes_of(x, dims, op)?;
    // What some of the halves give together may be none of theirs.
    let out = in_single(x, |x| {
        let mut out = x.clone();
        for &axis in axes.iter().rev() {
            out = product(&out, axis)?;
            if !keep {
                out = out.get_on_dim(axis, 0)?;
            }
        }
        Ok(out)
    })?;
    // An array of its own also where there was nothing to multiply.
    out.copy()
}

/// Whether any (or each) element is not 0.
fn decided(call: Call, x: &Proxy, dims: &impl Dims, keep: bool, any: bool) -> Result<Proxy> {
    let (axes, count) = axes_of(x, dims, call)?;
    let truth = truth(x, call.site)?;
    if count == 0 {
        // Nothing is true of anything in it, and everything of all in it.
        let shape = *x.shape();
        let shape = (&axes[..]).to_axes(&shape, call.op)?.reduced(&shape, keep);
        let make = if any { Proxy::zeros } else { Proxy::ones };
        return make(shape, DType::U8, x.device());
    }
    match (any, keep) {
        (true, true) => truth.max_keepdim(&axes[..]),
        (true, false) => truth.max(&axes[..]),
        (false, true) => truth.min_keepdim(&axes[..]),
        (false, false) => truth.min(&axes[..]),
    }
}

/// The root of order `p` of the sum of powers. Its derivative is 0 where it is, and below order 1 where `x` is.
fn root_of_powers(call: Call, x: &Proxy, p: f64, axes: Few, keep: bool) -> Result<Proxy> {
    let root = move |x: &Proxy, axes: &Few, keep: bool| match p {
        2.0 => summed(&x.sqr()?, axes, keep)?.sqrt(),
        _ => summed(&x.abs()?.powf(p)?, axes, keep)?.powf(1.0 / p),
    };
    let values = no_grad(|| root(x, &axes, keep))?;
    values.with_gradient(call, [x], true, move |grad, operands, _| {
        let x = &operands[0];
        let length = root(x, &axes, true)?;
        let still = if p < 1.0 { x } else { &length };
        let still = still.broadcast_eq(&number(x, 0.0, call.site)?)?.broadcast_as(*x.shape())?;
        let share = x.broadcast_div(&length)?;
        let slope = if p == 2.0 { share } else { share.abs()?.powf(p - 1.0)?.mul(&x.sign()?)? };
        // By choice: an infinite gradient, as of a root of it, times 0 is NaN.
        let slope = slope.broadcast_mul(&grad.reshape(*length.shape())?)?;
        Ok(one(still.where_cond(&x.zeros_like()?, &slope)?))
    })
}

fn norm_of(call: Call, x: &Proxy, p: f64, axes: Few, keep: bool) -> Result<Proxy> {
    check::float(call, x.dtype())?;
    if p.is_nan() {
        return crate::ops::call::compose::argument(call, "p", p, "a number");
    }
    let out = match p {
        0.0 => return summed(&truth(x, call.site)?.to_dtype(x.dtype())?, &axes, keep),
        f64::INFINITY => x.abs()?.max_keepdim(&axes[..])?,
        f64::NEG_INFINITY => x.abs()?.min_keepdim(&axes[..])?,
        1.0 => return summed(&x.abs()?, &axes, keep),
        _ => return root_of_powers(call, x, p, axes, keep),
    };
    if keep {
        return Ok(out);
    }
    let shape = *x.shape();
    out.reshape((&axes[..]).to_axes(&shape, call.op)?.reduced(&shape, false))
}

/// # Reductions: statistics, norms, truth
impl Proxy {
    /// The unbiased variance over one or more axes, which are removed: NaN for fewer than two elements. Floats, with a
    /// gradient.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::new(&[[1f32, 3.], [2., 2.]], &Device::Cpu)?;
    /// assert_eq!(a.var(1)?.to_vec1::<f32>()?, [2., 0.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn var<A: Dims>(&self, dims: A) -> Result<Proxy> {
        composite(Call::here("var"), self, &mut || variance(self, &dims, false, "var"))
    }

    /// As [`Proxy::var`], with the axes kept as size 1.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    #[track_caller]
    pub fn var_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> {
        composite(Call::here("var_keepdim"), self, &mut || variance(self, &dims, true, "var_keepdim"))
    }

    #[track_caller]
    pub(crate) fn ext_std<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("std");
        composite(call, self, &mut || deviation(call, self, &dims, false))
    }

    #[track_caller]
    pub(crate) fn ext_std_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("std_keepdim");
        composite(call, self, &mut || deviation(call, self, &dims, true))
    }

    #[track_caller]
    pub(crate) fn ext_var_mean<A: Dims>(&self, dims: A) -> Result<(Proxy, Proxy)> {
        let call = Call::here("var_mean");
        let variance = composite(call, self, &mut || variance(self, &dims, false, call.op));
        let mean = || composite(call, self, &mut || self.mean(&axes_of(self, &dims, call)?.0[..]));
        both_or_none(variance, |_| mean())
    }

    #[track_caller]
    pub(crate) fn ext_nansum<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("nansum");
        composite(call, self, &mut || {
            let (axes, _) = axes_of(self, &dims, call)?;
            check::number(call, self.dtype())?;
            self.ext_masked_fill(&self.ext_is_nan()?, 0.0)?.sum(&axes[..])
        })
    }

    #[track_caller]
    pub(crate) fn ext_nanmean<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("nanmean");
        composite(call, self, &mut || {
            let (axes, _) = axes_of(self, &dims, call)?;
            check::float(call, self.dtype())?;
            in_single(self, |x| {
                let count = x.eq(x)?.to_dtype(x.dtype())?.sum(&axes[..])?;
                x.ext_masked_fill(&x.ext_is_nan()?, 0.0)?.sum(&axes[..])?.div(&count)
            })
        })
    }

    #[track_caller]
    pub(crate) fn ext_prod<A: Dims>(&self, dims: A) -> Result<Proxy> {
        composite(Call::here("prod"), self, &mut || products(self, &dims, false, "prod"))
    }

    #[track_caller]
    pub(crate) fn ext_prod_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> {
        composite(Call::here("prod_keepdim"), self, &mut || products(self, &dims, true, "prod_keepdim"))
    }

    #[track_caller]
    pub(crate) fn ext_prod_all(&self) -> Result<Proxy> {
        composite(Call::here("prod_all"), self, &mut || products(&self.flatten_all()?, &0, false, "prod_all"))
    }

    #[track_caller]
    pub(crate) fn ext_any<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("any");
        composite(call, self, &mut || decided(call, self, &dims, false, true))
    }

    #[track_caller]
    pub(crate) fn ext_any_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("any_keepdim");
        composite(call, self, &mut || decided(call, self, &dims, true, true))
    }

    #[track_caller]
    pub(crate) fn ext_any_all(&self) -> Result<Proxy> {
        let call = Call::here("any_all");
        composite(call, self, &mut || decided(call, &self.flatten_all()?, &0, false, true))
    }

    #[track_caller]
    pub(crate) fn ext_all<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("all");
        composite(call, self, &mut || decided(call, self, &dims, false, false))
    }

    #[track_caller]
    pub(crate) fn ext_all_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("all_keepdim");
        composite(call, self, &mut || decided(call, self, &dims, true, false))
    }

    #[track_caller]
    pub(crate) fn ext_all_all(&self) -> Result<Proxy> {
        let call = Call::here("all_all");
        composite(call, self, &mut || decided(call, &self.flatten_all()?, &0, false, false))
    }

    /// The root of the sum of all squares: a scalar. Floats; the gradient at 0 is 0.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers; as [`Proxy::sum`].
    #[doc(alias = "norm2")]
    #[track_caller]
    pub fn norm(&self) -> Result<Proxy> {
        let call = Call::here("norm");
        let norm = |x: &Proxy| norm_of(call, x, 2.0, (0..x.rank()).collect(), false);
        composite(call, self, &mut || in_single(self, norm))
    }

    #[track_caller]
    pub(crate) fn ext_norm_dim<A: Dims>(&self, p: f64, dims: A) -> Result<Proxy> {
        let call = Call::here("norm_dim");
        let norm = |x: &Proxy| norm_of(call, x, p, axes_of(x, &dims, call)?.0, false);
        composite(call, self, &mut || in_single(self, norm))
    }

    /// `log(sum(e^x))` over one or more axes, which are removed, without overflow: minus infinity of nothing. Floats,
    /// with a gradient. The same array for no axes.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    #[track_caller]
    pub fn log_sum_exp<A: Dims>(&self, dims: A) -> Result<Proxy> {
        let call = Call::here("log_sum_exp");
        composite(call, self, &mut || {
            check::float(call, self.dtype())?;
            let (axes, count) = axes_of(self, &dims, call)?;
            if axes.is_empty() {
                return check::same(call, self);
            }
            if count == 0 {
                return self.exp()?.sum(&axes[..])?.log();
            }
            in_single(self, |x| {
                // Any number may be taken off; an infinite one would leave `infinity - infinity`.
                let shift = no_grad(|| {
                    let largest = x.max_keepdim(&axes[..])?;
                    largest.ext_is_finite()?.where_cond(&largest, &number_like(&largest, 0.0, call.site)?)
                })?;
                let sum = x.broadcast_sub(&shift)?.exp()?.sum(&axes[..])?.log()?;
                let shift = shift.reshape(*sum.shape())?;
                sum.add(&shift)
            })
        })
    }
}
