//! Arithmetic of two operands: strict, broadcasting, with numbers, and as operators.

use std::panic::Location;

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    cpu::few,
    kernel::{BinaryOp, Kernel, UnaryOp, View},
};
use crate::memory::{
    proxy::Proxy,
    registry::{ArrayRef, Parts, Pinned, Tracked},
    storage::{BufferRef, Storage},
};
use crate::ops::{
    call::{
        check,
        exec::{
            adopt_parts, allocate, compose, compose_for, dense, dense_part, device, enter, few_bytes, launch, once,
            output_view, pin, record, view_of,
        },
        inplace::{InPlace, assign, divide_in_place, filled_beside},
        make::failed,
        reuse::{Change, Operand, Reuse, Reused, is_recorded, write_in_place},
        target::{kernel, pair},
    },
    elementwise::{
        scalar::{Scalar, TensorOrScalar, with_operand},
        unary::{affine_of, quotient_of, unary_of},
    },
};

/// The layouts of two operands over their common shape; `None` if those that they have are.
#[inline]
pub(crate) fn align(
    op: &'static str,
    a: &ArrayRef<'_>,
    b: &ArrayRef<'_>,
    broadcast: bool,
) -> Result<Option<[Layout; 2]>> {
    let (left, right) = (a.layout.shape(), b.layout.shape());
    if left == right {
        return Ok(None);
    }
    let mut expanded = [Layout::SCALAR; 2];
    broadcast_layouts(op, [a.layout, b.layout], a.dtype, broadcast, &mut expanded)?;
    Ok(Some(expanded))
}

/// The layouts of two operands of different shapes over their common one, into a place of the caller's: in a result
/// they would be read again while they are still being written.
#[inline(never)]
pub(crate) fn broadcast_layouts(
    op: &'static str,
    [a, b]: [&Layout; 2],
    dtype: DType,
    broadcast: bool,
    [expanded_a, expanded_b]: &mut [Layout; 2],
) -> Result<()> {
    let (left, right) = (a.shape(), b.shape());
    if !broadcast {
        let hint = "the operation wants equal shapes; use the broadcast_ form to repeat axes of size 1";
        return Err(Error::shapes(op, left, right, hint));
    }
    let shape = left.broadcast(right, op)?;
    shape.check(op, dtype.size_in_bytes())?;
    if a.broadcast_into(&shape, expanded_a) && b.broadcast_into(&shape, expanded_b) {
        return Ok(());
    }
    Err(Error::shapes(op, left, right, "the common shape of both is none of theirs"))
}

pub(crate) fn binary(call: Call, a: &Proxy, b: &Proxy, op: BinaryOp, broadcast: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [a, b])?;
        let [x, y] = pins.arrays();
        // Each is looked up once: in a small operation that counts.
        let (of_x, of_y) = (x.storage.buffer(), y.storage.buffer());
        check::same_device(call, of_x.device(), of_y.device())?;
        check::same_dtype(call, &x, &y)?;
        check::domain(call, op.domain(), x.dtype)?;
        let mut expanded;
        let [left, right] = match x.layout.shape() == y.layout.shape() {
            true => [x.layout, y.layout],
            false => {
                expanded = [Layout::SCALAR; 2];
                broadcast_layouts(call.op, [x.layout, y.layout], x.dtype, broadcast, &mut expanded)?;
                expanded.each_ref()
            }
        };
        let (dtype, mut own) = (x.dtype, None);
        let layout = dense(left, &mut own);
        let mut storage = allocate(context, call.op, of_x.device(), dtype, layout.shape(), false)?;
        if !on_the_spot(op, (x, left), (y, right), &mut storage) {
            by_kernel(
                |[lhs, rhs, dst]| Kernel::Binary { op, lhs, rhs, dst },
                (of_x, left),
                (of_y, right),
                dtype,
                (&storage, dtype, layout),
            )?;
        }
        let node = if is_recorded(&x) || is_recorded(&y) { node_of_result(call, op, x, y) } else { None };
        adopt_parts(call, context, Parts { dtype, layout, storage, node }, a)
    })
}

/// The way of more than a few elements. Apart, so that few need no room for it.
#[inline(never)]
pub(crate) fn by_kernel(
    kernel: impl for<'v> FnOnce([View<'v>; 3]) -> Kernel<View<'v>>,
    (of_x, left): (BufferRef<'_>, &Layout),
    (of_y, right): (BufferRef<'_>, &Layout),
    dtype: DType,
    (out, of_out, layout): (&Storage, DType, &Layout),
) -> Result<()> {
    let (lhs, rhs) = (view_of(of_x, dtype, left), view_of(of_y, dtype, right));
    launch(of_x.device(), &kernel([lhs, rhs, output_view(out, of_out, layout)]))
}

/// The node of a result. Apart, and with copies of the operands, so that where nothing is recorded they need no place
/// in memory.
#[inline(never)]
fn node_of_result(call: Call, op: BinaryOp, x: Pinned<'_>, y: Pinned<'_>) -> Tracked {
    record(&[&x, &y], || gradient(call, op, &x, &y))
}

/// Computes a few dense numbers of the host without a kernel. `false` if the operands are others.
#[inline]
fn on_the_spot(op: BinaryOp, lhs: (Pinned<'_>, &Layout), rhs: (Pinned<'_>, &Layout), out: &mut Storage) -> bool {
    let ((x, left), (y, right)) = (lhs, rhs);
    let Some(result) = few_bytes(out, x.dtype) else { return false };
    let bytes = result.len();
    let (Some(a), Some(b)) = (dense_part(&x, left, bytes), dense_part(&y, right, bytes)) else { return false };
    few::binary(op, x.dtype, a, b, result)
}

/// The gradients of both operands, each summed back to its operand's shape.
fn gradient(
    call: Call,
    op: BinaryOp,
    x: &ArrayRef<'_>,
    y: &ArrayRef<'_>,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static + use<> {
    let shapes = [*x.layout.shape(), *y.layout.shape()];
    let saved = keeps_operands(op).then(|| [Saved::of(call, x), Saved::of(call, y)]);
    move |grad, needs| {
        let mut grads = [None, None, None];
        for side in 0..2 {
            if needs[side] {
                let whole = part(op, side, grad, saved.as_ref())?;
                grads[side] = Some(whole.sum_to(&shapes[side])?);
            }
        }
        Ok(grads)
    }
}

/// An operand that was kept.
fn saved_value(saved: Option<&[Saved; 2]>, operand: usize) -> Result<Proxy> {
    match saved {
        Some(saved) => saved[operand].get(),
        None => Err(Error::msg("the gradient keeps no values")),
    }
}

/// The number of an operand by its name in the table.
macro_rules! operand {
    (x) => {
        0
    };
    (y) => {
        1
    };
}

/// Whether a gradient of the table is computed from operands.
macro_rules! has_operands {
    ({ |$g:ident| $($slope:tt)* }) => {
        false
    };
    ($gradient:tt) => {
        true
    };
}

/// A gradient of the table.
macro_rules! slope {
    ($grad:ident $saved:ident { |$g:ident $(, $operand:ident)*| $slope:expr }) => {{
        let $g = $grad;
        $(let $operand = &saved_value($saved, operand!($operand))?;)*
        $slope
    }};
}

macro_rules! gradients {
    ([] $($(#[$doc:meta])* $op:ident [$($form:ident)*] $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        /// Whether the gradients are computed from the operands.
        fn keeps_operands(op: BinaryOp) -> bool {
            match op {
                $(BinaryOp::$op => has_operands!($of_x) || has_operands!($of_y),)*
            }
        }

        /// The gradient of one operand in the shape of the result.
        fn part(op: BinaryOp, side: usize, grad: &Proxy, saved: Option<&[Saved; 2]>) -> Result<Proxy> {
            match (op, side) {
                $(
                    (BinaryOp::$op, 0) => slope!(grad saved $of_x),
                    (BinaryOp::$op, _) => slope!(grad saved $of_y),
                )*
            }
        }
    };
}
ndgc_kernels::for_each_binary!(gradients);

/// Values, but 0 where a mask says so, which is broadcast to them.
fn zero_where(mask: &Proxy, values: &Proxy) -> Result<Proxy> {
    mask.broadcast_as(*values.shape())?.where_cond(&values.zeros_like()?, values)
}

/// The gradient of an operand that is chosen where it `wins`. Where both are equal it is shared. By choice, since an
/// infinite one times 0 is NaN.
fn of_choice(grad: &Proxy, wins: Proxy, x: &Proxy, y: &Proxy) -> Result<Proxy> {
    let shared = x.broadcast_eq(y)?.where_cond(&grad.affine(0.5, 0.0)?, &grad.zeros_like()?)?;
    wins.where_cond(grad, &shared)
}

/// The gradient of one coordinate of the point whose angle is taken: of the height, or of what lies along the axis.
fn of_angle(grad: &Proxy, height: &Proxy, along: &Proxy, side: usize) -> Result<Proxy> {
    // The squares of large coordinates overflow; their ratio does not.
    let far = height.abs()?.broadcast_maximum(&along.abs()?)?;
    let (v, u) = (height.broadcast_div(&far)?, along.broadcast_div(&far)?);
    let other = if side == 0 { u.clone() } else { v.neg()? };
    grad.mul(&other.div(&v.sqr()?.add(&u.sqr()?)?)?)?.div(&far)
}

/// The gradient of one coordinate of the vector whose length is taken; at the origin it is 0.
fn of_length(grad: &Proxy, coordinate: &Proxy, length: &Proxy) -> Result<Proxy> {
    let slope = coordinate.broadcast_div(length)?;
    zero_where(&length.eq(&length.zeros_like()?)?, &grad.mul(&slope)?)
}

/// Arithmetic written to `out`.
fn binary_into(call: Call, [x, y]: [&Proxy; 2], op: BinaryOp, broadcast: bool, out: &Proxy) -> Result<()> {
    pair(x, y, out, call, broadcast)?;
    let mut value = || binary(call, x, y, op, broadcast);
    let result = |dtype: DType| check::domain(call, op.domain(), dtype);
    let change: &InPlace<'_, 2> = &|device, dst, [lhs, rhs]| launch(device, &Kernel::Binary { op, lhs, rhs, dst });
    kernel(call, out, [x, y], &result, change, &mut value)
}

/// The form of equal shapes: choices between two take a number too.
macro_rules! strict_form {
    (any $(#[$doc:meta])* $name:ident $op:ident) => {
        $(#[$doc])*
        ///
        /// Element by element, with an array of equal shape and dtype or with a number; the result belongs to the owner
        /// of this array.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`],
        /// [`Error::StaleArray`], [`Error::OutOfMemory`].
        #[track_caller]
        pub fn $name<T: TensorOrScalar>(&self, rhs: T) -> Result<Proxy> {
            let call = Call::here(stringify!($name));
            with_operand(call, self, &rhs, |x, y| binary(call, x, y, BinaryOp::$op, false))
        }
    };
    ($kind:ident $(#[$doc:meta])* $name:ident $op:ident) => {
        $(#[$doc])*
        ///
        /// Element by element, of equal shapes and dtypes; the result belongs to the owner of this array.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`],
        /// [`Error::DeviceMismatch`], [`Error::StaleArray`], [`Error::OutOfMemory`].
        #[track_caller]
        pub fn $name(&self, rhs: &Proxy) -> Result<Proxy> {
            binary(Call::here(stringify!($name)), self, rhs, BinaryOp::$op, false)
        }
    };
}

macro_rules! binary_forms {
    ([] $($(#[$doc:meta])* $op:ident
        [$name:ident $broadcast:ident $place:ident $into:ident $broadcast_into:ident]
        $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        /// # Element by element: arithmetic
        ///
        /// Each in five forms: of equal shapes, with broadcasting, in place, and both written to an array that is
        /// there.
        ///
        /// ```
        /// # use ndgc::{Device, Tensor};
        /// let x = Tensor::new(&[3f64, 0.], &Device::Cpu)?;
        /// let y = Tensor::new(&[-4f64, 0.], &Device::Cpu)?;
        /// assert_eq!(x.hypot(&y)?.to_vec1::<f64>()?, [5., 0.]);
        /// assert_eq!(x.copysign(&y)?.to_vec1::<f64>()?, [-3., 0.]);
        /// assert_eq!(x.xlogy(&x)?.to_vec1::<f64>()?, [3. * 3f64.ln(), 0.]);
        /// let two = Tensor::new(2f64, &Device::Cpu)?;
        /// assert_eq!(x.broadcast_add(&two)?.to_vec1::<f64>()?, [5., 2.]);
        /// x.broadcast_maximum_into(&two, &y)?;
        /// assert_eq!(y.to_vec1::<f64>()?, [3., 2.]);
        /// # Ok::<(), ndgc::Error>(())
        /// ```
        impl Proxy {
            $(
                strict_form! { $kind $(#[$doc])* $name $op }

                $(#[$doc])*
                ///
                /// As the form without `broadcast_`, after repeating axes of size 1 and adding leading axes to
                /// either side.
                ///
                /// # Errors
                /// [`Error::ShapeMismatch`] if that does not make them equal; else as the strict form.
                #[track_caller]
                pub fn $broadcast(&self, rhs: &Proxy) -> Result<Proxy> {
                    binary(Call::here(stringify!($broadcast)), self, rhs, BinaryOp::$op, true)
                }

                $(#[$doc])*
                ///
                /// In place; the other array is broadcast to this one's shape. Returns this handle's array, as every
                /// view of it sees the change.
                ///
                /// # Errors
                /// Nothing is changed then: [`Error::Tracked`] if gradients are recorded through it;
                /// [`Error::InUse`] if its bytes are in use further up on this thread; [`Error::Overlap`] for a
                /// broadcast view; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`],
                /// [`Error::StaleArray`].
                #[track_caller]
                pub fn $place(&self, rhs: &Proxy) -> Result<Proxy> {
                    assign(Call::here(stringify!($place)), self, rhs, BinaryOp::$op)?;
                    Ok(self.clone())
                }

                #[doc = concat!("As [`Proxy::", stringify!($name), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    binary_into(Call::here(stringify!($into)), [self, rhs], BinaryOp::$op, false, out)
                }

                #[doc = concat!("As [`Proxy::", stringify!($broadcast), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $broadcast_into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    binary_into(Call::here(stringify!($broadcast_into)), [self, rhs], BinaryOp::$op, true, out)
                }
            )*
        }
    };
}
ndgc_kernels::for_each_binary!(binary_forms);

/// The form in which one operand's bytes become the result's, if one is given up.
pub(crate) fn reusing(call: Call, (a, b): (Operand<'_>, Operand<'_>), op: BinaryOp, broadcast: bool) -> Result<Proxy> {
    let commutes = matches!(op, BinaryOp::Add | BinaryOp::Mul | BinaryOp::Maximum | BinaryOp::Minimum);
    let reused = [a.may_be_reused(), commutes && b.may_be_reused()];
    if reused == [false; 2] {
        return binary(call, a.get(), b.get(), op, broadcast);
    }
    let a = match a {
        Operand::Owned(a) if reused[0] => match in_place_of(call, 0, a, b.get(), op, broadcast)? {
            Reused::Output(result) => return Ok(result),
            Reused::Not(a) => Operand::Owned(a),
        },
        lent => lent,
    };
    match b {
        Operand::Owned(b) if reused[1] => match in_place_of(call, 1, b, a.get(), op, broadcast)? {
            Reused::Output(result) => Ok(result),
            Reused::Not(b) => binary(call, a.get(), &b, op, broadcast),
        },
        b => binary(call, a.get(), b.get(), op, broadcast),
    }
}

/// The function of `own`, which is operand `place` and given up, and the other one.
fn in_place_of(call: Call, place: usize, own: Proxy, other: &Proxy, op: BinaryOp, broadcast: bool) -> Result<Reused> {
    let fits = |x: &ArrayRef<'_>, y: Option<&ArrayRef<'_>>| {
        y.is_some_and(|y| fits(call, in_order(place, x, y), place, op, broadcast))
    };
    let node = |x: &ArrayRef<'_>, y: Option<&ArrayRef<'_>>| node_of(call, in_order(place, x, y?), op);
    let first = (place == 1).then_some(other);
    write_in_place(call, own, Some(other), first, Reuse { change: Change::Binary(op), fits: &fits, node: &node })
}

/// Both operands, of which `own` is number `place`.
fn in_order<'r, 'a>(place: usize, own: &'r ArrayRef<'a>, other: &'r ArrayRef<'a>) -> [&'r ArrayRef<'a>; 2] {
    if place == 0 { [own, other] } else { [other, own] }
}

/// Whether a result may take the place of operand `own`.
fn fits(call: Call, [x, y]: [&ArrayRef<'_>; 2], own: usize, op: BinaryOp, broadcast: bool) -> bool {
    let same_shape = || match align(call.op, x, y, broadcast) {
        Ok(expanded) => expanded.is_none_or(|[left, _]| left.shape() == [x, y][own].layout.shape()),
        Err(_) => false,
    };
    let recorded = is_recorded(x) || is_recorded(y);
    (!recorded || matches!(op, BinaryOp::Add | BinaryOp::Sub))
        && check::same_device(call, device(x), device(y)).is_ok()
        && check::same_dtype(call, x, y).is_ok()
        && check::domain(call, op.domain(), x.dtype).is_ok()
        && same_shape()
}

/// The node of a function of both.
fn node_of(call: Call, [x, y]: [&ArrayRef<'_>; 2], op: BinaryOp) -> Tracked {
    record(&[x, y], || gradient(call, op, x, y))
}

/// Factor and summand that do what an operator does to floats and a number, which stands `first` or second; `None` for
/// a quotient that no product equals.
fn linear(op: BinaryOp, number: f64, first: bool) -> Option<[f64; 2]> {
    match op {
        BinaryOp::Add => Some([1.0, number]),
        BinaryOp::Sub if first => Some([-1.0, number]),
        BinaryOp::Sub => Some([1.0, -number]),
        // A product that is -0 becomes 0, as in candle, whose tests look at it.
        BinaryOp::Mul => Some([number, 0.0]),
        _ => {
            let inverse = 1.0 / number;
            // The inverse of a power of two is one; f32 has to hold it, in which the smaller dtypes compute too.
            let is_power = number.to_bits() << 12 == 0;
            // The sum of this 0 and a product leaves the sign of a product that is 0.
            (!first && is_power && (inverse as f32).is_normal()).then_some([inverse, -0.0])
        }
    }
}

/// Factor and summand that do a division of integers by a number that would become 0.
fn by_inverse(op: BinaryOp, number: f64) -> Option<[f64; 2]> {
    (matches!(op, BinaryOp::Div) && number != 0.0 && number.abs() < 1.0).then(|| [1.0 / number, 0.0])
}

/// Arithmetic with a number, which stands `first` or second: in one pass for floats; for integers that of the integers,
/// with the number converted. A division by what would become 0 is a product with its inverse, converted.
pub(crate) fn with_number(x: Operand<'_>, op: BinaryOp, number: Scalar, first: bool, site: Site) -> Result<Proxy> {
    let call = Call { op: "arithmetic", site };
    if x.get().dtype().is_float() {
        let value = number.to_f64();
        return compose_of(call, x, |x| match linear(op, value, first) {
            Some([mul, add]) => affine_of(call, x, mul, add),
            None => quotient_of(call, x, value, first),
        });
    }
    if let Some([mul, add]) = by_inverse(op, number.to_f64()).filter(|_| !first) {
        return compose_of(call, x, |x| affine_of(call, x, mul, add));
    }
    compose_of(call, x, |x| {
        let number = match number.number() {
            Some(number) => filled_beside(call, x.get(), &Shape::SCALAR, number)?,
            None => number.beside(x.get())?,
        };
        let number = Operand::Borrowed(&number);
        reusing(call, if first { (number, x) } else { (x, number) }, op, true)
    })
}

/// As [`compose`], of steps that may use the first operand up.
fn compose_of<'a>(call: Call, x: Operand<'a>, f: impl FnOnce(Operand<'a>) -> Result<Proxy>) -> Result<Proxy> {
    match x {
        Operand::Borrowed(array) => compose(call, array, &mut once(|| f(x))),
        Operand::Owned(array) => {
            let first = (array.key(), array.owner(call.op)?);
            compose_for(call, first, &mut once(|| f(Operand::Owned(array))))
        }
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        impl<'a, 'b> std::ops::$trait<&'b Proxy> for &'a Proxy {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: &'b Proxy) -> Result<Proxy> {
                binary(Call::here(stringify!($method)), self, rhs, BinaryOp::$trait, false)
            }
        }
        operators! { @pairs $trait $method
            [&'a Proxy, |a| Operand::Borrowed(a)] [Proxy, |b| Operand::Owned(b)];
            [Proxy, |a| Operand::Owned(a)] [&'b Proxy, |b| Operand::Borrowed(b)];
            [Proxy, |a| Operand::Owned(a)] [Proxy, |b| Operand::Owned(b)];
            [&'a Proxy, |a| Operand::Borrowed(a)] [Result<Proxy>, |b| Operand::Owned(b?)];
            [Proxy, |a| Operand::Owned(a)] [Result<Proxy>, |b| Operand::Owned(b?)];
            [Result<Proxy>, |a| Operand::Owned(a?)] [&'b Proxy, |b| Operand::Borrowed(b)];
            [Result<Proxy>, |a| Operand::Owned(a?)] [Proxy, |b| Operand::Owned(b)];
        }
        operators! { @number $trait $method
            [&Proxy, |a| Operand::Borrowed(a)];
            [Proxy, |a| Operand::Owned(a)];
        }
    )*};
    (@pairs $trait:ident $method:ident $([$left:ty, |$a:ident| $l:expr] [$right:ty, |$b:ident| $r:expr];)*) => {$(
        impl<'a, 'b> std::ops::$trait<$right> for $left {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: $right) -> Result<Proxy> {
                let ($a, $b) = (self, rhs);
                reusing(Call::here(stringify!($method)), ($l, $r), BinaryOp::$trait, false)
            }
        }
    )*};
    (@number $trait:ident $method:ident $([$array:ty, |$a:ident| $operand:expr];)*) => {$(
        impl std::ops::$trait<f64> for $array {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: f64) -> Result<Proxy> {
                let $a = self;
                with_number($operand, BinaryOp::$trait, rhs.into(), false, Location::caller())
            }
        }
        impl std::ops::$trait<$array> for f64 {
            type Output = Result<Proxy>;
            #[track_caller]
            fn $method(self, rhs: $array) -> Result<Proxy> {
                let $a = rhs;
                with_number($operand, BinaryOp::$trait, self.into(), true, Location::caller())
            }
        }
    )*};
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

fn changed(array: &mut Proxy, change: Result<Proxy>, site: Site) {
    if let Err(error) = change {
        match failed("a change", Call { op: "change", site }, array, &error) {
            Ok(nothing) => *array = nothing,
            // Not even nothing can be made: the error must not be lost.
            Err(_) => array.close(),
        }
    }
}

macro_rules! assign_operators {
    ($($trait:ident, $method:ident, $with:ident, $op:ident;)*) => {$(
        /// In place, as the method with an underscore: the right side is broadcast, and every view sees the change.
        ///
        /// An operator cannot return an error. If the change fails, the array is as it was, and this handle becomes
        /// that of a closed one: its next use gives [`Error::StaleArray`], whose text has the reason and the place.
        impl std::ops::$trait<&Proxy> for Proxy {
            #[track_caller]
            fn $method(&mut self, rhs: &Proxy) {
                let site = Location::caller();
                changed(self, self.$with(rhs), site);
            }
        }
        impl std::ops::$trait<Proxy> for Proxy {
            #[track_caller]
            fn $method(&mut self, rhs: Proxy) {
                let site = Location::caller();
                changed(self, self.$with(&rhs), site);
            }
        }
        impl std::ops::$trait<Result<Proxy>> for Proxy {
            #[track_caller]
            fn $method(&mut self, rhs: Result<Proxy>) {
                let site = Location::caller();
                changed(self, rhs.and_then(|rhs| self.$with(&rhs)), site);
            }
        }
        impl std::ops::$trait<f64> for Proxy {
            #[track_caller]
            fn $method(&mut self, rhs: f64) {
                let site = Location::caller();
                let number = || filled_beside(Call { op: stringify!($method), site }, self, &Shape::SCALAR, rhs);
                let (op, is_float) = (BinaryOp::$op, self.dtype().is_float());
                let factors = if is_float { linear(op, rhs, false) } else { by_inverse(op, rhs) };
                let change = match factors {
                    Some([mul, add]) => self.affine_(mul, add),
                    None if is_float => divide_in_place(Call { op: stringify!($with), site }, self, rhs),
                    None => compose(Call { op: "arithmetic", site }, self, &mut once(number))
                        .and_then(|number| self.$with(&number)),
                };
                changed(self, change, site);
            }
        }
    )*};
}

assign_operators! {
    AddAssign, add_assign, add_, Add;
    SubAssign, sub_assign, sub_, Sub;
    MulAssign, mul_assign, mul_, Mul;
    DivAssign, div_assign, div_, Div;
}

impl std::ops::Neg for Proxy {
    type Output = Result<Proxy>;
    #[track_caller]
    fn neg(self) -> Result<Proxy> {
        unary_of(Operand::Owned(self), UnaryOp::Neg, Location::caller())
    }
}

impl std::ops::Neg for &Proxy {
    type Output = Result<Proxy>;
    #[track_caller]
    fn neg(self) -> Result<Proxy> {
        Proxy::neg(self)
    }
}
