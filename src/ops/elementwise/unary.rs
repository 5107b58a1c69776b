//! Functions of one operand, element by element.

use std::panic::Location;

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    dtype::DType,
    error::{Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::kernel::{Domain, Kept, Kernel, Map, UnaryOp};
use crate::memory::{proxy::Proxy, registry::Payload, storage::Storage};
use crate::ops::{
    call::{
        check,
        compose::{argument, whole},
        exec::{adopt, call, device, fresh, launch, map1, pin, record, view},
        inplace::into,
        reuse::{Change, Operand, Reused, Temporary, instead, is_recorded},
        target::{kernel as kernel_into, write},
    },
    elementwise::scalar::{TensorOrScalar, with_operand},
};

/// The gradient of an operation with one operand.
pub(crate) fn one(grad: Proxy) -> Grads {
    [Some(grad), None, None]
}

/// Whether the operand is whole already, so that a rounding leaves it as it is.
fn is_whole(op: UnaryOp, dtype: DType) -> bool {
    op.domain() == Domain::Whole && !dtype.is_float()
}

/// As [`unary`], in place where the operand is given up and the gradient does not need it.
pub(crate) fn unary_of(src: Operand<'_>, op: UnaryOp, site: Site) -> Result<Proxy> {
    let name = op.name();
    let src = match src {
        Operand::Given(src) if !is_whole(op, src.dtype()) => src,
        src => return unary(src.get(), op, site),
    };
    let node = |a: &Payload, _: Option<&Payload>| {
        let free = !is_recorded(a) || op.kept() != Kept::Input;
        let known = check::domain(name, op.domain(), a.dtype).is_ok();
        (free && known).then(|| record(&[a], || vjp(op, a, (&a.storage, a.layout), site)))
    };
    match instead((name, site), src, None, None, &node, Change::Unary(op))? {
        Reused::Made(result) => Ok(result),
        Reused::Not(src) => unary(&src, op, site),
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

/// The gradient of a function from what is kept of its operand `a` or its result, which has the dtype of `a`.
fn vjp(
    op: UnaryOp,
    a: &Payload,
    (storage, layout): (&Storage, Layout),
    site: Site,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static + use<> {
    let name = op.name();
    let saved = match op.kept() {
        Kept::Input => Some(Saved::of(a, name, site)),
        Kept::Output => Some(Saved::new(storage, a.dtype, layout, name, site)),
        Kept::Nothing => None,
    };
    move |grad: &Proxy, _| match &saved {
        Some(saved) => Ok(one(unary_grad(&saved.get()?, grad, op, site)?)),
        None => Ok(one(unary_grad(grad, grad, op, site)?)),
    }
}

/// A function of the table.
pub(crate) fn unary(src: &Proxy, op: UnaryOp, site: Site) -> Result<Proxy> {
    let name = op.name();
    if is_whole(op, src.dtype()) {
        return check::same(name, src);
    }
    map1(
        name,
        site,
        src,
        |dtype| check::domain(name, op.domain(), dtype),
        Map::Unary(op),
        |a, out| vjp(op, a, (out.storage, *out.layout), site),
    )
}

/// Its gradient in one pass.
fn unary_grad(saved: &Proxy, grad: &Proxy, op: UnaryOp, site: Site) -> Result<Proxy> {
    let name = op.name();
    call(name, site, |local| {
        let pins = pin(local, name, [saved, grad])?;
        let [s, g] = pins.arrays();
        let out = fresh(local, name, device(&s), s.dtype, s.layout.shape(), false)?;
        let kernel = Kernel::UnaryGrad { op, saved: view(&s), grad: view(&g), dst: out.view() };
        launch(device(&s), &kernel)?;
        adopt(local, name, out, grad, None, site)
    })
}

/// In place.
fn unary_in_place(x: &Proxy, op: UnaryOp, (name, site): (&'static str, Site)) -> Result<Proxy> {
    check::domain(name, op.domain(), x.dtype())?;
    if is_whole(op, x.dtype()) {
        write(x, name, site, || unary(x, op, site))?;
    } else {
        into(x, [], name, site, &|dst, []| Kernel::UnaryAssign { op, dst })?;
    }
    Ok(x.clone())
}

/// Written to `out`.
fn unary_into(x: &Proxy, op: UnaryOp, out: &Proxy, (name, site): (&'static str, Site)) -> Result<()> {
    check::domain(name, op.domain(), x.dtype())?;
    check::same_shape(name, x.shape(), out.shape(), "the array that is written must have this shape")?;
    let value = || unary(x, op, site);
    if is_whole(op, x.dtype()) {
        return write(out, name, site, value);
    }
    kernel_into(out, [x], x.dtype(), (name, site), &|dst, [src]| Kernel::Unary { op, src, dst }, value)
}

macro_rules! unary_forms {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $place:ident $into:ident] $kind:ident $value:tt $gradient:tt)*) => {
        /// Functions of the table of operations, each in three forms.
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element, with a gradient; the result has the shape and owner of this array.
                ///
                /// # Errors
                /// [`Error::StaleArray`](crate::Error::StaleArray);
                /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for integers where it is not closed
                /// over them; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
                #[track_caller]
                pub fn $name(&self) -> Result<Proxy> {
                    unary(self, UnaryOp::$op, Location::caller())
                }

                #[doc = concat!("As [`Proxy::", stringify!($name), "`], in place. Returns this handle's array.")]
                ///
                /// # Errors
                /// Nothing is changed then: as [`Proxy::add_`].
                #[track_caller]
                pub fn $place(&self) -> Result<Proxy> {
                    unary_in_place(self, UnaryOp::$op, (stringify!($place), Location::caller()))
                }

                #[doc = concat!("As [`Proxy::", stringify!($name), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, out: &Proxy) -> Result<()> {
                    unary_into(self, UnaryOp::$op, out, (stringify!($into), Location::caller()))
                }
            )*
        }

        impl Temporary {
            $(
                #[track_caller]
                pub fn $name(self) -> Result<Proxy> {
                    unary_of(Operand::Given(self.0), UnaryOp::$op, Location::caller())
                }
            )*
        }
    };
}
ndgc_kernels::for_each_unary!(unary_forms);

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

/// The ends of a range.
pub(crate) fn check_range([min, max]: [f64; 2], name: &'static str) -> Result<()> {
    if min.is_nan() || max.is_nan() || min > max {
        return argument(name, "range", format!("{min} to {max}"), "in ascending order");
    }
    Ok(())
}

/// Between two numbers.
fn clamped(x: &Proxy, [min, max]: [f64; 2], (name, site): (&'static str, Site)) -> Result<Proxy> {
    check_range([min, max], name)?;
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
