//! Arrays joined: one after the other along an axis (`cat`), or along a new one (`stack`).

use crate::array::autograd::Grads;
use crate::base::{
    call::{Asked, Call},
    error::{Error, Result},
    layout::Layout,
    shape::{Dim, MAX_RANK, Shape},
};
use crate::device::kernel::Kernel;
use crate::memory::{proxy::Proxy, registry::Parts};
use crate::ops::call::{
    check,
    exec::{adopt, adopt_parts, compose, device, enter, launch, output, pin, record, view_as},
    reuse::is_recorded,
};

/// # Shape: joining arrays
impl Proxy {
    /// Arrays joined along an axis; all other sizes are equal. The result belongs to the owner of the first.
    ///
    /// # Errors
    /// [`Error::Argument`] for no arrays; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`], [`Error::DimOutOfRange`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[doc(alias("concat", "concatenate"))]
    #[track_caller]
    pub fn cat<T: AsRef<Proxy>, A: Dim>(arrays: &[T], dim: A) -> Result<Proxy> {
        let call = Call::here("cat");
        let first = arrays.first().ok_or_else(|| nothing(call))?.as_ref();
        all_open(call, arrays)?;
        compose(call, first, &mut || join(call, arrays, &|shape| call.axis(dim, shape), false))
    }

    /// Arrays of one shape joined along a new axis. The result belongs to the owner of the first.
    ///
    /// # Errors
    /// As [`Proxy::cat`]; [`Error::RankTooLarge`].
    #[track_caller]
    pub fn stack<T: AsRef<Proxy>, A: Dim>(arrays: &[T], dim: A) -> Result<Proxy> {
        let call = Call::here("stack");
        let first = arrays.first().ok_or_else(|| nothing(call))?.as_ref();
        all_open(call, arrays)?;
        compose(call, first, &mut || join(call, arrays, &|shape| Asked::from(call).axis_plus_one(dim, shape), true))
    }
}

fn all_open<T: AsRef<Proxy>>(call: Call, arrays: &[T]) -> Result<()> {
    arrays.iter().enumerate().try_for_each(|(operand, array)| check::open_as(call, array.as_ref(), operand))
}

fn nothing(call: Call) -> Error {
    Error::argument(call, "arrays", "[]", "not empty")
}

impl AsRef<Proxy> for Proxy {
    fn as_ref(&self) -> &Proxy {
        self
    }
}

/// The arrays one after the other along the axis that `axis_of` finds in the first one's shape, each first given that
/// axis if they are stacked.
fn join<T: AsRef<Proxy>>(
    call: Call,
    arrays: &[T],
    axis_of: &dyn Fn(&Shape) -> Result<usize>,
    stacked: bool,
) -> Result<Proxy> {
    let first = arrays.first().ok_or_else(|| nothing(call))?.as_ref();
    let head = *first.layout();
    let (rank, axis) = (head.shape().rank(), axis_of(head.shape())?);
    if stacked && rank == MAX_RANK {
        return Err(Error::rank_too_large(call, MAX_RANK + 1));
    }
    let part = |layout: &Layout| if stacked { layout.unsqueeze(axis) } else { *layout };
    let each = *part(&head).shape();
    let fitting = |layout: &Layout| {
        let hint = "all sizes but that of the joined axis must agree";
        if layout.shape().rank() != rank {
            check::same_shape(call, layout.shape(), head.shape(), hint)?;
        }
        let own = part(layout);
        check::same_shape(call, own.shape(), &each.with_dim(axis, own.dims()[axis]), hint)?;
        Ok::<_, Error>(own)
    };
    let mut total = 0usize;
    for array in arrays {
        total = total.saturating_add(fitting(array.as_ref().layout())?.dims()[axis]);
    }
    let shape = each.with_dim(axis, total);
    let (joined, is_tracked) = enter(call, |context| {
        let pins = pin(context, call.op, [first])?;
        let [head] = pins.arrays();
        fitting(head.layout)?;
        let out = output(context, call.op, device(&head), head.dtype, &shape, false)?;
        let (mut start, mut is_tracked) = (0, false);
        for array in arrays {
            let array = array.as_ref();
            // That was the program's code.
            out.goes_on(call.op)?;
            let pins = pin(context, call.op, [array])?;
            let [p] = pins.arrays();
            check::same_device(call, device(&head), device(&p))?;
            check::same_dtype(call, &head, &p)?;
            let own = fitting(p.layout)?;
            let size = own.dims()[axis];
            let place: Layout = out.layout.narrow(axis, start, size)?;
            launch(device(&head), &Kernel::copy(view_as(&p, &own), out.view_as(&place)))?;
            start += size;
            is_tracked |= is_recorded(&p);
        }
        // Else an array was exchanged since its size was asked for, and bytes of the result stay unwritten.
        check::same_shape(call, &each.with_dim(axis, start), &shape, "an array has another size when asked again")?;
        Ok((adopt(call, context, out, first, None)?, is_tracked))
    })?;
    if is_tracked { track_join(call, joined, arrays, axis, stacked) } else { Ok(joined) }
}

/// Hangs the gradient of a join on its result: a chain of nodes with one part each, since a node has three operands.
fn track_join<T: AsRef<Proxy>>(call: Call, joined: Proxy, arrays: &[T], axis: usize, stacked: bool) -> Result<Proxy> {
    let mut result = joined;
    let mut start = 0;
    for part in arrays.iter().map(AsRef::as_ref) {
        let sizes = part.dims();
        let size = if stacked { None } else { sizes.get(axis).copied() };
        if part.track_op() {
            result = tie(call, [&result, part], axis, start, size)?;
        }
        start += size.unwrap_or(1);
    }
    Ok(result)
}

/// The same values, with the gradient of one range passed on to `part`, or of one index if there is no size.
fn tie(call: Call, [values, part]: [&Proxy; 2], axis: usize, start: usize, size: Option<usize>) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [values, part])?;
        let [v, p] = pins.arrays();
        // The part is what was joined.
        let whole = v.layout.shape();
        let own = size.map_or_else(|| whole.without(axis), |size| whole.with_dim(axis, size));
        check::seen(call, part, &own, p.layout)?;
        check::same_dtype(call, &v, &p)?;
        let node = record(&[&v, &p], || {
            move |grad: &Proxy, _: [bool; 3]| -> Result<Grads> {
                let own = match size {
                    Some(size) => grad.narrow(axis, start, size)?,
                    None => grad.get_on_dim(axis, start)?,
                };
                Ok([Some(grad.clone()), Some(own), None])
            }
        });
        let parts = Parts { dtype: v.dtype, layout: v.layout, storage: v.storage.clone(), node };
        adopt_parts(call, context, parts, values)
    })
}
