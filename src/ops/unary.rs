//! Functions of one operand, element by element.

use std::panic::Location;

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    dtype::DType,
    error::{Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::kernel::{GradOp, Kernel, Map, UnaryOp};
use crate::memory::{proxy::Proxy, registry::Payload, storage::Storage};
use crate::ops::{
    check,
    compose::{argument, whole},
    exec::{adopt, call, device, fresh, launch, map1, pin, record, view},
    reuse::{Change, Operand, Reused, instead, is_recorded},
    scalar::{TensorOrScalar, with_operand},
};

/// The gradient of an operation with one operand.
pub(crate) fn one(grad: Proxy) -> Grads {
    [Some(grad), None, None]
}

/// What the derivative of a function needs.
#[derive(Clone, Copy)]
enum Needs {
    Input(GradOp),
    Output(GradOp),
    /// The gradient times a number.
    Factor(f64),
    /// Zero everywhere.
    Nothing,
}

/// As [`unary`], in place where the operand is given up and the gradient does not need it.
fn unary_of(src: Operand<'_>, op: UnaryOp, name: &'static str, needs: Needs, site: Site) -> Result<Proxy> {
    let src = match src {
        Operand::Lent(src) => return unary(src, op, name, needs, site),
        Operand::Given(src) => src,
    };
    let node = |a: &Payload, _: Option<&Payload>| {
        let free = !is_recorded(a) || !matches!(needs, Needs::Input(_));
        let known = defined(op, name, a.dtype).is_ok();
        (free && known).then(|| record(&[a], || vjp(needs, a, (&a.storage, a.layout), name, site)))
    };
    match instead((name, site), src, None, None, &node, Change::Unary(op))? {
        Reused::Made(result) => Ok(result),
        Reused::Not(src) => unary(&src, op, name, needs, site),
    }
}

/// `x * mul + add`, of an operand that may be given up.
pub(crate) fn affine_of(x: Operand<'_>, mul: f64, add: f64, (name, site): (&'static str, Site)) -> Result<Proxy> {
    let vjp = || move |grad: &Proxy, _: [bool; 3]| Ok(one(grad.affine(mul, 0.0)?));
    let x = match x {
        Operand::Lent(_) => x,
        Operand::Given(x) => {
            let node = |a: &Payload, _: Option<&Payload>| {
                check::number(name, a.dtype).ok()?;
                Some(record(&[a], vjp))
            };
            match instead((name, site), x, None, None, &node, Change::Affine { mul, add })? {
                Reused::Made(result) => return Ok(result),
                Reused::Not(x) => Operand::Given(x),
            }
        }
    };
    map1(name, site, x.get(), |dtype| check::number(name, dtype), Map::Affine { mul, add }, |_, _| vjp())
}

/// The dtype, if the function is defined for it.
pub(crate) fn defined(op: UnaryOp, name: &'static str, dtype: DType) -> Result<DType> {
    match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sqr | UnaryOp::Sign | UnaryOp::Relu => check::number(name, dtype),
        _ => check::float(name, dtype),
    }
}

/// The gradient of a function from what is kept of its operand `a` or its result, which has the dtype of `a`.
fn vjp(
    needs: Needs,
    a: &Payload,
    (storage, layout): (&Storage, Layout),
    name: &'static str,
    site: Site,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static + use<> {
    let saved = match needs {
        Needs::Input(grad) => Some((grad, Saved::of(a, name, site))),
        Needs::Output(grad) => Some((grad, Saved::new(storage, a.dtype, layout, name, site))),
        Needs::Factor(_) | Needs::Nothing => None,
    };
    move |grad: &Proxy, _| match (&saved, needs) {
        (Some((op, saved)), _) => Ok(one(unary_grad(&saved.get()?, grad, *op, name, site)?)),
        (None, Needs::Factor(factor)) => Ok(one(grad.affine(factor, 0.0)?)),
        (None, _) => Ok(one(grad.zeros_like()?)),
    }
}

fn unary(src: &Proxy, op: UnaryOp, name: &'static str, needs: Needs, site: Site) -> Result<Proxy> {
    map1(
        name,
        site,
        src,
        |dtype| defined(op, name, dtype),
        Map::Unary(op),
        |a, out| vjp(needs, a, (out.storage, *out.layout), name, site),
    )
}

/// `grad * f'(saved)` in one pass.
fn unary_grad(saved: &Proxy, grad: &Proxy, op: GradOp, name: &'static str, site: Site) -> Result<Proxy> {
    call(name, site, |local| {
        let pins = pin(local, name, [saved, grad])?;
        let [s, g] = pins.arrays();
        let out = fresh(local, name, device(&s), s.dtype, s.layout.shape(), false)?;
        let kernel = Kernel::UnaryGrad { op, saved: view(&s), grad: view(&g), dst: out.view() };
        launch(device(&s), &kernel)?;
        adopt(local, name, out, grad, None, site)
    })
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident, $op:ident, $needs:expr;)*) => {
        /// The function with this name, of an operand that may be given up.
        pub(crate) fn named_of(x: Operand<'_>, name: &'static str, site: Site) -> Result<Proxy> {
            match name {
                $(stringify!($name) => unary_of(x, UnaryOp::$op, name, $needs, site),)*
                _ => argument("t!", "function", name, "one of those that t! knows"),
            }
        }

        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element; the result has the shape and owner of this array.
                ///
                /// # Errors
                /// [`Error::StaleArray`](crate::Error::StaleArray);
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers where it is not closed
                /// over them; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
                #[track_caller]
                pub fn $name(&self) -> Result<Proxy> {
                    unary(self, UnaryOp::$op, stringify!($name), $needs, Location::caller())
                }
            )*
        }
    };
}

unary_methods! {
    /// `-x`. Integers wrap.
    neg, Neg, Needs::Factor(-1.0);
    /// `|x|`.
    abs, Abs, Needs::Input(GradOp::Abs);
    /// `-1`, `0` or `1`. Its gradient is 0.
    sign, Sign, Needs::Nothing;
    /// `e^x`.
    exp, Exp, Needs::Output(GradOp::Exp);
    /// The natural logarithm.
    log, Log, Needs::Input(GradOp::Log);
    /// The square root.
    sqrt, Sqrt, Needs::Output(GradOp::Sqrt);
    /// `x * x`.
    sqr, Sqr, Needs::Input(GradOp::Sqr);
    /// `1 / x`.
    recip, Recip, Needs::Output(GradOp::Recip);
    /// The hyperbolic tangent.
    tanh, Tanh, Needs::Output(GradOp::Tanh);
    /// `max(x, 0)`; the gradient at 0 is 0.
    relu, Relu, Needs::Output(GradOp::Relu);
    /// `1 / (1 + e^-x)`.
    sigmoid, Sigmoid, Needs::Output(GradOp::Sigmoid);
    /// The sine.
    sin, Sin, Needs::Input(GradOp::Sin);
    /// The cosine.
    cos, Cos, Needs::Input(GradOp::Cos);
}

impl Proxy {
    /// `x * mul + add` in one pass, for any dtype; for integers the numbers are converted first.
    ///
    /// # Errors
    /// [`Error::StaleArray`](crate::Error::StaleArray); [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[track_caller]
    pub fn affine(&self, mul: f64, add: f64) -> Result<Proxy> {
        affine_of(Operand::Lent(self), mul, add, ("affine", Location::caller()))
    }

    /// `x ^ exponent` with a number as exponent; a negative base gives NaN unless the exponent is whole.
    ///
    /// # Errors
    /// As [`Proxy::exp`].
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Result<Proxy> {
        let (name, site) = ("powf", Location::caller());
        map1(
            name,
            site,
            self,
            |dtype| check::float(name, dtype),
            Map::Powf(exponent),
            |a, _| {
                let saved = Saved::of(a, name, site);
                move |grad: &Proxy, _| {
                    if exponent == 0.0 {
                        return Ok(one(grad.zeros_like()?));
                    }
                    let slope = saved.get()?.powf(exponent - 1.0)?.affine(exponent, 0.0)?;
                    Ok(one(grad.mul(&slope)?))
                }
            },
        )
    }

    /// Between `min` and `max`, each a number or an array of this shape and dtype; NaN stays NaN. With arrays the larger
    /// of this and `min`, then the smaller of that and `max`. The gradient is 0 where a number cut.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the number `min` is above the number `max`, or one is NaN; as
    /// [`Proxy::maximum`].
    #[track_caller]
    pub fn clamp<A: TensorOrScalar, B: TensorOrScalar>(&self, min: A, max: B) -> Result<Proxy> {
        let (name, site) = ("clamp", Location::caller());
        match (min.number(), max.number()) {
            (Some(min), Some(max)) => clamped(self, [min, max], (name, site)),
            _ => whole(name, site, self, || {
                let raised = with_operand((name, site), self, &min, |x, min| x.maximum(min))?;
                with_operand((name, site), &raised, &max, |x, max| x.minimum(max))
            }),
        }
    }

    /// A copy of the elements in an array of its own: contiguous, with the same owner and name.
    ///
    /// # Errors
    /// As [`Proxy::affine`].
    #[track_caller]
    pub fn duplicate(&self) -> Result<Proxy> {
        let copy = copy_of(self, "duplicate", Location::caller())?;
        if let Some(name) = self.name() {
            copy.set_name(&name)?;
        }
        Ok(copy)
    }

    /// As [`Proxy::duplicate`].
    ///
    /// # Errors
    /// As [`Proxy::affine`].
    #[track_caller]
    pub fn copy(&self) -> Result<Proxy> {
        copy_of(self, "copy", Location::caller())
    }

    /// As [`Proxy::copy`], under candle's name: a contiguous array of its own, also where this one is contiguous.
    ///
    /// # Errors
    /// As [`Proxy::affine`].
    #[track_caller]
    pub fn force_contiguous(&self) -> Result<Proxy> {
        copy_of(self, "force_contiguous", Location::caller())
    }

    /// The array with its elements one after the other in row-major order: a handle of the same array if they
    /// are, else a copy.
    ///
    /// # Errors
    /// As [`Proxy::affine`].
    #[track_caller]
    pub fn contiguous(&self) -> Result<Proxy> {
        let op = "contiguous";
        if self.is_contiguous() { check::same(op, self) } else { copy_of(self, op, Location::caller()) }
    }
}

/// Between two numbers.
fn clamped(x: &Proxy, [min, max]: [f64; 2], (name, site): (&'static str, Site)) -> Result<Proxy> {
    if min.is_nan() || max.is_nan() || min > max {
        return argument(name, "range", format!("{min} to {max}"), "in ascending order");
    }
    map1(
        name,
        site,
        x,
        |dtype| check::number(name, dtype),
        Map::Clamp { min, max },
        |a, _| {
            let saved = Saved::of(a, name, site);
            move |grad: &Proxy, _| {
                let x = saved.get()?;
                let inside = x.clamp(min, max)?.eq(&x)?;
                Ok(one(inside.where_cond(grad, &grad.zeros_like()?)?))
            }
        },
    )
}

pub(crate) fn copy_of(src: &Proxy, name: &'static str, site: Site) -> Result<Proxy> {
    map1(name, site, src, Ok, Map::Copy, |_, _| move |grad: &Proxy, _| Ok(one(grad.clone())))
}

/// A copy of a pinned operand's elements, as `shape` in row-major order: for reshapes of views.
pub(crate) fn copy_as(src: &Proxy, shape: &Shape, name: &'static str, site: Site) -> Result<Proxy> {
    call(name, site, |local| {
        let pins = pin(local, name, [src])?;
        let [a] = pins.arrays();
        let mut out = fresh(local, name, device(&a), a.dtype, a.layout.shape(), false)?;
        launch(device(&a), &Kernel::Copy { src: view(&a), dst: out.view() })?;
        out.layout = crate::base::layout::Layout::contiguous(*shape);
        let from = *a.layout.shape();
        let node = record(&[&a], || move |grad: &Proxy, _| Ok(one(grad.reshape(from)?)));
        adopt(local, name, out, src, node, site)
    })
}
