//! Functions of one operand, element by element.

use std::panic::Location;

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::kernel::{Domain, Kept, Kernel, Map, UnaryOp};
use crate::memory::{
    proxy::Proxy,
    registry::{ArrayRef, Pinned},
    storage::Storage,
};
use crate::ops::{
    call::{
        check,
        compose::{argument, composite},
        exec::{adopt, device, enter, launch, map1, output, pin, record, view},
        inplace::{InPlace, into},
        reuse::{Change, Operand, Reuse, Reused, Temporary, is_recorded, write_in_place},
        target::{kernel as kernel_into, write},
    },
    elementwise::scalar::TensorOrScalar,
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
    let call = Call { op: op.name(), site };
    let src = match src {
        src if !src.may_be_reused() => return unary(src.get(), op, call.site),
        Operand::Owned(src) if !is_whole(op, src.dtype()) => src,
        src => return unary(src.get(), op, call.site),
    };
    let fits = |a: &ArrayRef<'_>, _: Option<&ArrayRef<'_>>| {
        let free = !is_recorded(a) || op.kept() != Kept::Input;
        free && check::domain(call, op.domain(), a.dtype).is_ok()
    };
    let node =
        |a: &ArrayRef<'_>, _: Option<&ArrayRef<'_>>| record(&[a], || vjp(op, a, (a.storage, *a.layout), call.site));
    match write_in_place(
        call,
        src,
        None,
        None,
        Reuse { change: Change::Map(Map::Unary(op)), fits: &fits, node: &node },
    )? {
        Reused::Output(result) => Ok(result),
        Reused::Not(src) => unary(&src, op, call.site),
    }
}

/// A function of an operand that may be given up, which its gradient `keeps` or not.
fn mapped<F>(
    call: Call,
    x: Operand<'_>,
    map: Map,
    dtype: impl Fn(DType) -> Result<DType>,
    keeps: bool,
    vjp: impl Fn(&ArrayRef<'_>) -> F,
) -> Result<Proxy>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    let x = match x {
        x if !x.may_be_reused() => x,
        Operand::Borrowed(_) => x,
        Operand::Owned(x) => {
            let fits = |a: &ArrayRef<'_>, _: Option<&ArrayRef<'_>>| {
                let free = !keeps || !is_recorded(a);
                free && dtype(a.dtype).is_ok()
            };
            let node = |a: &ArrayRef<'_>, _: Option<&ArrayRef<'_>>| record(&[a], || vjp(a));
            match write_in_place(call, x, None, None, Reuse { change: Change::Map(map), fits: &fits, node: &node })? {
                Reused::Output(result) => return Ok(result),
                Reused::Not(x) => Operand::Owned(x),
            }
        }
    };
    map1(call, x.get(), dtype, map, |a, _| vjp(a))
}

/// `x * mul + add`, of an operand that may be given up.
pub(crate) fn affine_of(call: Call, x: Operand<'_>, mul: f64, add: f64) -> Result<Proxy> {
    let vjp = |_: &ArrayRef<'_>| move |grad: &Proxy, _: [bool; 3]| Ok(one(grad.affine(mul, 0.0)?));
    mapped(call, x, Map::Affine { mul, add }, |dtype| check::number(call, dtype), false, vjp)
}

/// `x / number`, or `number / x` if the number is `first`, of floats, and of an operand that may be given up.
pub(crate) fn quotient_of(call: Call, x: Operand<'_>, number: f64, first: bool) -> Result<Proxy> {
    let vjp = |a: &ArrayRef<'_>| {
        let saved = first.then(|| Saved::of(call, a));
        move |grad: &Proxy, _: [bool; 3]| -> Result<Grads> {
            let Some(saved) = &saved else {
                return Ok(one(quotient_of(call, Operand::Borrowed(grad), number, false)?));
            };
            let x = saved.get()?;
            // The square of `x` may overflow where the slope does not.
            let slope = quotient_of(call, Operand::Borrowed(&x), number, true)?.div(&x)?;
            Ok(one(grad.mul(&slope)?.neg()?))
        }
    };
    mapped(call, x, Map::Divide { number, first }, |dtype| check::float(call, dtype), first, vjp)
}

/// The gradient of a function from what is kept of its operand `a` or its result, which has the dtype of `a`.
fn vjp(
    op: UnaryOp,
    a: &ArrayRef<'_>,
    (storage, layout): (&Storage, Layout),
    site: Site,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static + use<> {
    let call = Call { op: op.name(), site };
    let saved = match op.kept() {
        Kept::Input => Some(Saved::of(call, a)),
        Kept::Output => Some(Saved::new(call, storage, a.dtype, layout)),
        Kept::Nothing => None,
    };
    move |grad: &Proxy, _| match &saved {
        Some(saved) => Ok(one(unary_grad(call, &saved.get()?, grad, op)?)),
        None => Ok(one(unary_grad(call, grad, grad, op)?)),
    }
}

/// A function of the table.
pub(crate) fn unary(src: &Proxy, op: UnaryOp, site: Site) -> Result<Proxy> {
    let call = Call { op: op.name(), site };
    if is_whole(op, src.dtype()) {
        return check::same(call, src);
    }
    map1(
        call,
        src,
        |dtype| check::domain(call, op.domain(), dtype),
        Map::Unary(op),
        |a, out| vjp(op, a, (out.storage, *out.layout), call.site),
    )
}

/// Its gradient in one pass.
fn unary_grad(call: Call, saved: &Proxy, grad: &Proxy, op: UnaryOp) -> Result<Proxy> {
    let kernel: &InPlace<'_, 2> =
        &|device, dst, [saved, grad]| launch(device, &Kernel::UnaryGrad { op, saved, grad, dst });
    gradient(call, saved, grad, kernel)
}

/// A gradient by one kernel, from what was kept and the gradient of the result.
pub(crate) fn gradient(call: Call, saved: &Proxy, grad: &Proxy, kernel: &InPlace<'_, 2>) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [saved, grad])?;
        let [s, g] = pins.arrays();
        let out = output(context, call.op, device(&s), s.dtype, s.layout.shape(), false)?;
        kernel(device(&s), out.view(), [view(&s), view(&g)])?;
        adopt(call, context, out, grad, None)
    })
}

/// In place.
fn unary_in_place(call: Call, x: &Proxy, op: UnaryOp) -> Result<Proxy> {
    check::domain(call, op.domain(), x.dtype())?;
    if is_whole(op, x.dtype()) {
        write(call, x, &mut || unary(x, op, call.site))?;
    } else {
        let map = Map::Unary(op);
        let fits = |d: &ArrayRef<'_>, []: &[Pinned<'_>; 0]| check::domain(call, op.domain(), d.dtype).map(drop);
        into(call, x, [], &fits, &|device, dst, []| launch(device, &Kernel::MapAssign { map, dst }))?;
    }
    Ok(x.clone())
}

/// Written to `out`.
fn unary_into(call: Call, x: &Proxy, op: UnaryOp, out: &Proxy) -> Result<()> {
    check::same_shape(call, x.shape(), out.shape(), "the array that is written must have this shape")?;
    let mut value = || unary(x, op, call.site);
    if is_whole(op, x.dtype()) {
        return write(call, out, &mut value);
    }
    let result = |dtype: DType| check::domain(call, op.domain(), dtype);
    let map = Map::Unary(op);
    let change: &InPlace<'_, 1> = &|device, dst, [src]| launch(device, &Kernel::Map { map, src, dst });
    kernel_into(call, out, [x], &result, change, &mut value)
}

macro_rules! unary_forms {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $place:ident $into:ident] $kind:ident $value:tt $gradient:tt)*) => {
        /// # Element by element: functions
        ///
        /// Each in three forms: as a new array, in place, and written to an array that is there.
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
                    unary_in_place(Call::here(stringify!($place)), self, UnaryOp::$op)
                }

                #[doc = concat!("As [`Proxy::", stringify!($name), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, out: &Proxy) -> Result<()> {
                    unary_into(Call::here(stringify!($into)), self, UnaryOp::$op, out)
                }
            )*
        }

        impl Temporary {
            $(
                #[track_caller]
                pub fn $name(self) -> Result<Proxy> {
                    unary_of(Operand::Owned(self.0), UnaryOp::$op, Location::caller())
                }
            )*
        }
    };
}
ndgc_kernels::for_each_unary!(unary_forms);

/// # Element by element: functions with numbers
impl Proxy {
    /// `x * mul + add` in one pass, for any dtype but bool; for integers the numbers are converted first.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(x.affine(0.5, 1.)?.to_vec1::<f32>()?, [1.5, 2.]);
    /// let whole = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// assert_eq!(whole.affine(2.5, 1.)?.to_vec1::<u32>()?, [3, 5]); // 2.5 is 2 here
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`](crate::Error::StaleArray); [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for
    /// truth values; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[track_caller]
    pub fn affine(&self, mul: f64, add: f64) -> Result<Proxy> {
        affine_of(Call::here("affine"), Operand::Borrowed(self), mul, add)
    }

    /// `x ^ exponent` with a number as exponent; a negative base gives NaN unless the exponent is whole.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[-3f32, 2.], &Device::Cpu)?;
    /// assert_eq!(x.powf(2.)?.to_vec1::<f32>()?, [9., 4.]);
    /// assert!(x.powf(0.5)?.to_vec1::<f32>()?[0].is_nan());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::exp`].
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Result<Proxy> {
        let call = Call::here("powf");
        map1(
            call,
            self,
            |dtype| check::float(call, dtype),
            Map::Powf(exponent),
            |a, _| {
                let saved = Saved::of(call, a);
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

    /// Between `min` and `max`, each a number or an array of this shape and dtype; NaN stays NaN. A number beyond an
    /// integer dtype stands for the nearest one that it has. With arrays the larger of this and `min`, then the smaller
    /// of that and `max`. The gradient is 0 where a number cut, and 1 at the numbers, as in PyTorch; among equals of
    /// arrays it is shared, as of [`Proxy::maximum`].
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::new(&[-2f32, 0.5, f32::NAN], &Device::Cpu)?;
    /// let y = x.clamp(0., 1.)?.to_vec1::<f32>()?;
    /// assert!(y[..2] == [0., 0.5] && y[2].is_nan());
    /// assert!(matches!(x.clamp(1., 0.), Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the number `min` is above the number `max`, or one is NaN; as
    /// [`Proxy::maximum`].
    #[doc(alias = "clip")]
    #[track_caller]
    pub fn clamp<A: TensorOrScalar, B: TensorOrScalar>(&self, min: A, max: B) -> Result<Proxy> {
        let call = Call::here("clamp");
        match (min.number(), max.number()) {
            (Some(min), Some(max)) => clamped(call, self, [min, max]),
            _ => clamped_by(call, self, [&min, &max]),
        }
    }
}

/// # Memory: copies
impl Proxy {
    /// As [`Proxy::copy`], with the name of this array too: DJL's `duplicate`.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// x.set_name("bias")?;
    /// assert_eq!((x.duplicate()?.name(), x.copy()?.name()), (Some("bias".into()), None));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::copy`].
    #[track_caller]
    pub fn duplicate(&self) -> Result<Proxy> {
        let copy = copy_of(Call::here("duplicate"), self)?;
        if let Some(name) = self.name() {
            copy.set_name(&name)?;
        }
        Ok(copy)
    }

    /// A copy of the elements in an array of its own: contiguous, with the same owner and no name.
    ///
    /// ```
    /// # use ndgc::{Device, NdManager};
    /// let batch = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = batch.create([1f32, 2.])?;
    /// let (same, copy) = (x.clone(), x.copy()?); // another handle, and another array
    /// x.zero_()?;
    /// assert_eq!((same.to_vec1::<f32>()?, copy.to_vec1::<f32>()?), (vec![0., 0.], vec![1., 2.]));
    /// assert_eq!(copy.manager()?.uuid(), batch.uuid());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`](crate::Error::StaleArray); [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[doc(alias = "dup")]
    #[track_caller]
    pub fn copy(&self) -> Result<Proxy> {
        copy_of(Call::here("copy"), self)
    }

    /// Alias of [`Proxy::copy`]: candle's name.
    ///
    /// # Errors
    /// As [`Proxy::copy`].
    #[track_caller]
    pub fn force_contiguous(&self) -> Result<Proxy> {
        copy_of(Call::here("force_contiguous"), self)
    }

    /// The array with its elements one after the other in row-major order: a handle of the same array if they
    /// are, else a copy.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// assert!(x.contiguous()?.is_same(&x)); // nothing to do
    /// let t = x.t()?;
    /// assert!(!t.is_contiguous() && t.contiguous()?.is_contiguous());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::copy`].
    #[track_caller]
    pub fn contiguous(&self) -> Result<Proxy> {
        let call = Call::here("contiguous");
        if self.is_contiguous() { check::same(call, self) } else { copy_of(call, self) }
    }
}

/// The ends of a range.
pub(crate) fn check_range([min, max]: [f64; 2], call: Call) -> Result<()> {
    if min.is_nan() || max.is_nan() || min > max {
        return argument(call, "range", format!("{min} to {max}"), "in ascending order");
    }
    Ok(())
}

/// Between two numbers.
fn clamped(call: Call, x: &Proxy, [min, max]: [f64; 2]) -> Result<Proxy> {
    check_range([min, max], call)?;
    map1(
        call,
        x,
        |dtype| check::number(call, dtype),
        Map::Clamp { min, max },
        |a, _| {
            let saved = Saved::of(call, a);
            move |grad: &Proxy, _| {
                let x = saved.get()?;
                let inside = x.clamp(min, max)?.eq(&x)?;
                Ok(one(inside.where_cond(grad, &grad.zeros_like()?)?))
            }
        },
    )
}

/// Between arrays, or numbers that no double holds.
fn clamped_by(call: Call, x: &Proxy, [min, max]: [&dyn TensorOrScalar; 2]) -> Result<Proxy> {
    composite(call, x, &mut || {
        if let (Some(low), Some(high)) = (min.scalar(), max.scalar()) {
            match (low.whole(), high.whole()) {
                (Some(low), Some(high)) if low > high => {
                    return argument(call, "range", format!("{low} to {high}"), "in ascending order");
                }
                _ => check_range([low.to_f64(), high.to_f64()], call)?,
            }
        }
        let end = |of: &dyn TensorOrScalar, x: &Proxy| -> Result<Proxy> {
            let Some(number) = of.scalar() else { return of.beside(x) };
            check_range([number.to_f64(); 2], call)?;
            number.nearest(x.dtype()).beside(x)
        };
        // A number shares no gradient with what equals it.
        let number = |of: &dyn TensorOrScalar| of.number().filter(|_| x.dtype().is_float());
        let raised = match number(min) {
            Some(min) => clamped(call, x, [min, f64::INFINITY])?,
            None => x.maximum(&end(min, x)?)?,
        };
        match number(max) {
            Some(max) => clamped(call, &raised, [f64::NEG_INFINITY, max]),
            None => raised.minimum(&end(max, &raised)?),
        }
    })
}

pub(crate) fn copy_of(call: Call, src: &Proxy) -> Result<Proxy> {
    map1(call, src, Ok, Map::Copy, |_, _| move |grad: &Proxy, _| Ok(one(grad.clone())))
}

/// A copy of an operand's elements, as `shape` in row-major order: for reshapes of views. `shape` has as many elements
/// as `seen`, the shape by which it was asked for.
pub(crate) fn copy_as(call: Call, (src, seen): (&Proxy, &Shape), shape: &Shape) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [src])?;
        let [a] = pins.arrays();
        check::seen(call, src, seen, a.layout)?;
        let mut out = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        launch(device(&a), &Kernel::copy(view(&a), out.view()))?;
        out.layout = crate::base::layout::Layout::contiguous(*shape);
        let from = *a.layout.shape();
        let node = record(&[&a], || move |grad: &Proxy, _| Ok(one(grad.reshape(from)?)));
        adopt(call, context, out, src, node)
    })
}
