//! Comparison, and choosing by it.

use crate::base::{call::Call, dtype::DType, error::Result, layout::Layout};
use crate::device::{
    cpu::few,
    kernel::{CmpOp, Kernel},
};
use crate::memory::{
    proxy::Proxy,
    registry::{Parts, Pinned},
    storage::Storage,
};
use crate::ops::{
    call::{
        check,
        exec::{
            adopt_parts, allocate, allocate_for, budget_of, dense, dense_part, device, enter, few_bytes, launch,
            output_view, pin, record, view,
        },
    },
    elementwise::{
        binary::{broadcast_layouts, by_kernel},
        scalar::{TensorOrScalar, with_operand},
    },
    index::select::readable,
};

/// Integers one after the other, each as it is.
type Whole = Box<dyn Iterator<Item = i128>>;

fn whole(call: Call, x: &Proxy) -> Result<Whole> {
    let read = || -> Result<Whole> {
        let own = x.aside()?;
        if own.dtype() == DType::U64 {
            return Ok(Box::new(own.to_vec::<u64>()?.into_iter().map(i128::from)));
        }
        Ok(Box::new(own.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().map(i128::from)))
    };
    read().map_err(|error| error.of(call))
}

fn compare(call: Call, a: &Proxy, b: &Proxy, op: CmpOp, broadcast: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [a, b])?;
        let [x, y] = pins.arrays();
        // As in `binary`.
        let (of_x, of_y) = (x.storage.buffer(), y.storage.buffer());
        check::same_device(call, of_x.device(), of_y.device())?;
        check::same_dtype(call, &x, &y)?;
        let mut expanded;
        let [left, right] = match x.layout.shape() == y.layout.shape() {
            true => [x.layout, y.layout],
            false => {
                expanded = [Layout::SCALAR; 2];
                broadcast_layouts(call.op, [x.layout, y.layout], x.dtype, broadcast, &mut expanded)?;
                expanded.each_ref()
            }
        };
        let (dtype, mut own) = (DType::U8, None);
        let layout = dense(left, &mut own);
        let mut storage = allocate(context, call.op, of_x.device(), dtype, layout.shape(), false)?;
        if !on_the_spot(op, (x, left), (y, right), &mut storage) {
            by_kernel(
                |[lhs, rhs, dst]| Kernel::Compare { op, lhs, rhs, dst },
                (of_x, left),
                (of_y, right),
                x.dtype,
                (&storage, dtype, layout),
            )?;
        }
        adopt_parts(call, context, Parts { dtype, layout, storage, node: None }, a)
    })
}

/// Compares a few dense elements of the host without a kernel. `false` if the operands are others.
#[inline]
fn on_the_spot(op: CmpOp, lhs: (Pinned<'_>, &Layout), rhs: (Pinned<'_>, &Layout), out: &mut Storage) -> bool {
    let ((x, left), (y, right)) = (lhs, rhs);
    let Some(result) = few_bytes(out, DType::U8) else { return false };
    let bytes = result.len() * x.dtype.size_in_bytes();
    let (Some(a), Some(b)) = (dense_part(&x, left, bytes), dense_part(&y, right, bytes)) else { return false };
    few::compare(op, x.dtype, a, b, result);
    true
}

/// As [`on_the_spot`], of a choice by a mask.
#[inline(never)]
fn choose_on_the_spot([c, y, n]: [&Pinned<'_>; 3], out: &mut Storage) -> bool {
    let Some(result) = few_bytes(out, y.dtype) else { return false };
    let bytes = result.len();
    let of_mask = bytes / y.dtype.size_in_bytes() * c.dtype.size_in_bytes();
    let (cond, [yes, no]) = (dense_part(c, c.layout, of_mask), [y, n].map(|x| dense_part(x, x.layout, bytes)));
    let (Some(cond), Some(yes), Some(no)) = (cond, yes, no) else { return false };
    few::select((c.dtype, cond), y.dtype, yes, no, result);
    true
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident, $broadcast:ident, $op:ident;)*) => {
        /// # Element by element: comparisons
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Element by element, with an array of equal shape and dtype or with a number; the result holds 0 or 1
                /// in u8 and belongs to the owner of this array. No gradient.
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
                /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
                /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch),
                /// [`Error::StaleArray`](crate::Error::StaleArray), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
                #[track_caller]
                pub fn $name<T: TensorOrScalar>(&self, rhs: T) -> Result<Proxy> {
                    let call = Call::here(stringify!($name));
                    with_operand(call, self, &rhs, |x, y| compare(call, x, y, CmpOp::$op, false))
                }

                $(#[$doc])*
                ///
                /// With broadcasting of either side.
                ///
                /// # Errors
                /// As the strict form.
                #[track_caller]
                pub fn $broadcast(&self, rhs: &Proxy) -> Result<Proxy> {
                    compare(Call::here(stringify!($broadcast)), self, rhs, CmpOp::$op, true)
                }
            )*
        }
    };
}

comparisons! {
    /// `x == y`
    eq, broadcast_eq, Eq;
    /// `x != y`
    ne, broadcast_ne, Ne;
    /// `x < y`
    lt, broadcast_lt, Lt;
    /// `x <= y`
    le, broadcast_le, Le;
    /// `x > y`
    gt, broadcast_gt, Gt;
    /// `x >= y`
    ge, broadcast_ge, Ge;
}

/// # Comparing, and choosing by a mask
impl Proxy {
    /// A comparison named by a value.
    ///
    /// # Errors
    /// As [`Proxy::eq`].
    #[track_caller]
    pub fn cmp<T: TensorOrScalar>(&self, rhs: T, op: CmpOp) -> Result<Proxy> {
        let call = Call::here("cmp");
        with_operand(call, self, &rhs, |x, y| compare(call, x, y, op, false))
    }

    /// `yes` where this mask is not 0, else `no`. The mask holds truth values or integers; all three have one shape.
    /// The result belongs to the owner of `yes`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) of
    /// `yes` and `no`, [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) of the mask,
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::StaleArray`](crate::Error::StaleArray),
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[doc(alias = "where")]
    #[track_caller]
    pub fn where_cond(&self, yes: &Proxy, no: &Proxy) -> Result<Proxy> {
        let call = Call::here("where_cond");
        let converted = readable(self, &|| None)?;
        let mask = converted.as_ref().unwrap_or(self);
        enter(call, |context| {
            let pins = pin(context, call.op, [mask, yes, no])?;
            let [c, y, n] = pins.arrays();
            check::mask(call, &c)?;
            check::same_device(call, device(&y), device(&n))?;
            check::same_device(call, device(&y), device(&c))?;
            check::same_dtype(call, &y, &n)?;
            let hint = "mask and both values must have one shape; use broadcast_as";
            check::same_shape(call, c.layout.shape(), y.layout.shape(), hint)?;
            check::same_shape(call, y.layout.shape(), n.layout.shape(), hint)?;
            let (dtype, mut own) = (y.dtype, None);
            let layout = dense(y.layout, &mut own);
            // Not that of the mask, which is the first operand.
            let payer = || yes.owner(call.op).map_or(0, |owner| budget_of(&owner));
            let mut storage =
                allocate_for::<true>(context, call.op, device(&y), (dtype, layout.shape()), false, payer)?;
            if !choose_on_the_spot([&c, &y, &n], &mut storage) {
                let dst = output_view(&storage, dtype, layout);
                launch(device(&y), &Kernel::Where { cond: view(&c), yes: view(&y), no: view(&n), dst })?;
            }
            let node = record(&[&y, &n], || {
                let mask = crate::array::autograd::Saved::of(call, &c);
                move |grad: &Proxy, needs: [bool; 3]| {
                    let mask = mask.get()?;
                    let zeros = grad.zeros_like()?;
                    let yes = if needs[0] { Some(mask.where_cond(grad, &zeros)?) } else { None };
                    let no = if needs[1] { Some(mask.where_cond(&zeros, grad)?) } else { None };
                    Ok([yes, no, None])
                }
            });
            adopt_parts(call, context, Parts { dtype, layout, storage, node }, yes)
        })
    }

    /// Whether every element differs by at most `atol + rtol * |other|`. NaN is close to NaN alone, and an infinite
    /// number to itself alone. Integers are told apart exactly, and what they differ by is compared as f64.
    ///
    /// # Errors
    /// As [`Proxy::sub`].
    #[track_caller]
    pub fn all_close(&self, other: &Proxy, rtol: f64, atol: f64) -> Result<bool> {
        let call = Call::here("all_close");
        check::open(call, &[self, other])?;
        check::same_shape(call, self.shape(), other.shape(), "all_close compares equal shapes")?;
        let wide = |x: &Proxy| matches!(x.dtype(), DType::I64 | DType::U64);
        if (wide(self) || wide(other)) && !self.dtype().is_float() && !other.dtype().is_float() {
            // f64 has not all of these.
            let near = |x: i128, y: i128| x.abs_diff(y) as f64 <= atol + rtol * y.unsigned_abs() as f64;
            return Ok(whole(call, self)?.zip(whole(call, other)?).all(|(x, y)| x == y || near(x, y)));
        }
        let read = |x: &Proxy| x.aside().and_then(|x| x.to_dtype(DType::F64)?.to_vec::<f64>());
        let values = |x: &Proxy| read(x).map_err(|error| error.of(call));
        let pairs = values(self)?.into_iter().zip(values(other)?);
        let near = |x: f64, y: f64| x.is_finite() && y.is_finite() && (x - y).abs() <= atol + rtol * y.abs();
        let close = |(x, y): (f64, f64)| x == y || near(x, y) || (x.is_nan() && y.is_nan());
        Ok(pairs.into_iter().all(close))
    }

    /// Whether shape, dtype and every element are equal (DJL's `contentEquals`). NaN is not equal to itself.
    ///
    /// # Errors
    /// [`Error::StaleArray`](crate::Error::StaleArray); [`Error::DeviceMismatch`](crate::Error::DeviceMismatch).
    #[doc(alias = "array_equal")]
    #[track_caller]
    pub fn content_equals(&self, other: &Proxy) -> Result<bool> {
        if *self.shape() != *other.shape() || self.dtype() != other.dtype() {
            return Ok(false);
        }
        let equal = self.aside().and_then(|own| own.eq(other)?.to_vec::<u8>());
        let call = Call::here("content_equals");
        Ok(equal.map_err(|error| error.of(call))?.iter().all(|&e| e == 1))
    }
}
