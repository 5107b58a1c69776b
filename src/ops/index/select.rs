//! Entries selected and added by arrays of indices.

use std::panic::Location;

use crate::array::autograd::{Saved, no_grad};
use crate::base::{
    call::{Asked, Call},
    dtype::DType,
    error::{Error, Result, Site},
    shape::{Dim, Few, MAX_RANK, Shape},
};
use crate::device::kernel::Kernel;
use crate::memory::{proxy::Proxy, registry::ArrayRef};
use crate::ops::{
    call::{
        check,
        exec::{adopt, compose, device, enter, launch, once, output, pin, record, view},
        inplace::{InPlace, into},
    },
    elementwise::{scalar::TensorOrScalar, unary::one},
    shape::view::zeros_beside,
};

fn ids_are_list(op: &'static str, ids: &ArrayRef<'_>) -> Result<usize> {
    check::index(op, ids)?;
    match ids.layout.dims() {
        [n] => Ok(*n),
        dims => Err(Error::shape(op, dims, "a list of indices (one axis)")),
    }
}

/// Indices of integer dtypes that kernels do not read, converted to i64, which they do. The largest of theirs becomes
/// the largest i64 where it is padding: if there is an axis, whose size `dim` gives, and it has no such index. None for
/// all others: they are right, or refused later.
pub(crate) fn readable(ids: &Proxy, dim: &dyn Fn() -> Option<usize>) -> Result<Option<Proxy>> {
    let dtype = ids.dtype();
    if !dtype.is_int() || matches!(dtype, DType::U8 | DType::U32 | DType::I64) {
        return Ok(None);
    }
    let largest = u64::MAX >> (64 - 8 * dtype.size_in_bytes() + usize::from(dtype.is_signed()));
    let pads = dim().is_some_and(|dim| dim as u64 <= largest);
    let converted = || {
        let ids = ids.aside()?;
        let as_i64 = ids.to_dtype(DType::I64)?;
        match pads {
            true => ids.eq(largest)?.where_cond(&i64::MAX.beside(&as_i64)?, &as_i64),
            false => Ok(as_i64),
        }
    };
    no_grad(converted).map(Some)
}

/// The size of an axis, if the array has it; else the operation says so.
fn size_along(array: &Proxy, axis_of: &dyn Fn(&Shape) -> Result<usize>) -> Option<usize> {
    let shape = *array.shape();
    axis_of(&shape).ok().map(|axis| shape.dims()[axis])
}

/// The index in an array that kernels read that names no place, unless the axis has it.
pub(crate) fn nowhere(dtype: DType) -> i64 {
    match dtype {
        DType::U8 => u8::MAX.into(),
        DType::U32 => u32::MAX.into(),
        _ => i64::MAX,
    }
}

/// The axes of `part` other than `axis` are at most those of `whole`.
pub(crate) fn fits_inside(op: &'static str, part: &Shape, whole: &Shape, axis: usize) -> Result<()> {
    let inside = |(i, (&p, &w)): (usize, (&usize, &usize))| i == axis || p <= w;
    if part.rank() == whole.rank() && part.dims().iter().zip(whole.dims()).enumerate().all(inside) {
        return Ok(());
    }
    Err(Error::shapes(op, part, whole, format!("the indices must fit inside on every axis but {axis}")))
}

/// # Indexing: by lists of indices
impl Proxy {
    /// The entries of one axis that a list of indices names, in its order.
    ///
    /// Indices may be of any integer dtype, here and wherever indices are taken; u8, u32 and i64 are read as they are,
    /// the others converted to i64 first. The largest number of their dtype is padding, unless the axis has that index:
    /// it reads 0, and where indices say what is written, it writes nothing.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::Shape`] if `ids` is no list; [`Error::DimOutOfRange`];
    /// [`Error::UnsupportedDType`], [`Error::DeviceMismatch`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[doc(alias = "take")]
    #[track_caller]
    pub fn index_select<A: Dim>(&self, ids: &Proxy, dim: A) -> Result<Proxy> {
        let axis_of = |shape: &Shape| Asked::from("index_select").axis(dim, shape);
        picked(Call::here("index_select"), self, ids, &axis_of, Indexed::Lines)
    }

    /// The rows of a table `[rows, width]` for indices of any shape: `[ids.., width]`.
    ///
    /// # Errors
    /// As [`Proxy::index_select`].
    #[track_caller]
    pub fn embedding(&self, ids: &Proxy) -> Result<Proxy> {
        let call = Call::here("embedding");
        let (_, width) = self.dims2().map_err(|error| error.of(call))?;
        let of_ids = ids.dims();
        let rank = of_ids.len() + 1;
        if rank > MAX_RANK {
            return Err(Error::rank_too_large(call, rank));
        }
        let dims: Few = of_ids.iter().copied().chain([width]).collect();
        let rows = || self.index_select(&ids.flatten_all()?, 0)?.reshape(dims);
        compose(call, self, &mut once(rows))
    }

    /// `out[i][j] = self[i][ids[i][j]]` along an axis: the result has the shape of `ids`, whose other axes are at
    /// most those of this array.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::ShapeMismatch`]; as [`Proxy::index_select`].
    #[track_caller]
    pub fn gather<A: Dim>(&self, ids: &Proxy, dim: A) -> Result<Proxy> {
        picked(Call::here("gather"), self, ids, &|shape| Asked::from("gather").axis(dim, shape), Indexed::Elements)
    }

    /// A copy with `src[i][j]` added at `[i][ids[i][j]]` along an axis; `ids` and `src` have one shape.
    ///
    /// # Errors
    /// As [`Proxy::gather`]; [`Error::DTypeMismatch`] of `src`.
    #[track_caller]
    pub fn scatter_add<A: Dim>(&self, ids: &Proxy, src: &Proxy, dim: A) -> Result<Proxy> {
        let axis_of = |shape: &Shape| Asked::from("scatter_add").axis(dim, shape);
        put_into_copy(self, ids, src, &axis_of, Indexed::Elements, Location::caller())
    }

    /// A copy with `src[.., i, ..]` added at `[.., ids[i], ..]` along an axis.
    ///
    /// # Errors
    /// As [`Proxy::index_select`]; [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] of `src`.
    #[track_caller]
    pub fn index_add<A: Dim>(&self, ids: &Proxy, src: &Proxy, dim: A) -> Result<Proxy> {
        let axis_of = |shape: &Shape| Asked::from("index_add").axis(dim, shape);
        put_into_copy(self, ids, src, &axis_of, Indexed::Lines, Location::caller())
    }
}

/// The elements that indices name along an axis; the gradient is added to where they were.
fn picked(
    call: Call,
    array: &Proxy,
    ids: &Proxy,
    axis_of: &dyn Fn(&Shape) -> Result<usize>,
    how: Indexed,
) -> Result<Proxy> {
    let converted = readable(ids, &|| size_along(array, axis_of))?;
    let ids = converted.as_ref().unwrap_or(ids);
    enter(call, |context| {
        let pins = pin(context, call.op, [array, ids])?;
        let [x, i] = pins.arrays();
        check::same_device(call, device(&x), device(&i))?;
        check::index(call, &i)?;
        let shape = *x.layout.shape();
        let axis = axis_of(&shape)?;
        let to = match how {
            Indexed::Lines => shape.with_dim(axis, ids_are_list(call.op, &i)?),
            Indexed::Elements => fits_inside(call.op, i.layout.shape(), &shape, axis).map(|()| *i.layout.shape())?,
        };
        let out = output(context, call.op, device(&x), x.dtype, &to, false)?;
        let (src, ids, dst) = (view(&x), view(&i), out.view());
        launch(
            device(&x),
            &match how {
                Indexed::Lines => Kernel::IndexSelect { src, ids, axis, dst },
                Indexed::Elements => Kernel::Gather { src, ids, axis, dst },
            },
        )?;
        let node = record(&[&x], || {
            let ids = Saved::of(call, &i);
            move |grad: &Proxy, _| {
                let whole = zeros_beside(grad, &shape)?;
                match how {
                    Indexed::Lines => index_add_into(&whole, &ids.get()?, grad, axis, call.op)?,
                    Indexed::Elements => scatter_add_into(&whole, &ids.get()?, grad, axis, call.op)?,
                }
                Ok(one(whole))
            }
        });
        adopt(call, context, out, array, node)
    })
}

/// Adds rows in place into an array that the caller alone has.
fn index_add_into(whole: &Proxy, ids: &Proxy, src: &Proxy, axis: usize, name: &'static str) -> Result<()> {
    let change: &InPlace<'_, 2> = &|device, dst, [ids, src]| launch(device, &Kernel::IndexAdd { dst, ids, src, axis });
    into(Call::here(name), whole, [ids, src], &|_, _| Ok(()), change)
}

fn scatter_add_into(whole: &Proxy, ids: &Proxy, src: &Proxy, axis: usize, name: &'static str) -> Result<()> {
    let change: &InPlace<'_, 2> =
        &|device, dst, [ids, src]| launch(device, &Kernel::ScatterAdd { dst, ids, src, axis });
    into(Call::here(name), whole, [ids, src], &|_, _| Ok(()), change)
}

/// What an index names along an axis.
#[derive(Clone, Copy, PartialEq)]
enum Indexed {
    /// Everything at it.
    Lines,
    /// One element, at the places of the index on the other axes.
    Elements,
}

fn put_into_copy(
    base: &Proxy,
    ids: &Proxy,
    src: &Proxy,
    axis_of: &dyn Fn(&Shape) -> Result<usize>,
    put: Indexed,
    site: Site,
) -> Result<Proxy> {
    let call = Call { op: if put == Indexed::Lines { "index_add" } else { "scatter_add" }, site };
    let converted = readable(ids, &|| size_along(base, axis_of))?;
    let ids = converted.as_ref().unwrap_or(ids);
    enter(call, |context| {
        let pins = pin(context, call.op, [base, ids, src])?;
        let [x, i, s] = pins.arrays();
        check::same_device(call, device(&x), device(&i))?;
        check::same_device(call, device(&x), device(&s))?;
        check::same_dtype(call, &x, &s)?;
        check::number(call, x.dtype)?;
        let axis = axis_of(x.layout.shape())?;
        check_put(call.op, &x, &i, &s, axis, put)?;
        let out = output(context, call.op, device(&x), x.dtype, x.layout.shape(), false)?;
        launch(device(&x), &Kernel::copy(view(&x), out.view()))?;
        let (dst, ids, src) = (out.view(), view(&i), view(&s));
        let kernel = match put {
            Indexed::Lines => Kernel::IndexAdd { dst, ids, src, axis },
            Indexed::Elements => Kernel::ScatterAdd { dst, ids, src, axis },
        };
        launch(device(&x), &kernel)?;
        let node = record(&[&x, &s], || {
            let ids = Saved::of(call, &i);
            move |grad: &Proxy, needs: [bool; 3]| {
                let of_src = || match put {
                    Indexed::Lines => grad.index_select(&ids.get()?, axis),
                    Indexed::Elements => grad.gather(&ids.get()?, axis),
                };
                let src: Option<Proxy> = if needs[1] { Some(of_src()?) } else { None };
                Ok([Some(grad.clone()), src, None])
            }
        });
        adopt(call, context, out, base, node)
    })
}

fn check_put(
    name: &'static str,
    x: &ArrayRef<'_>,
    i: &ArrayRef<'_>,
    s: &ArrayRef<'_>,
    axis: usize,
    put: Indexed,
) -> Result<()> {
    if put == Indexed::Elements {
        check::index(name, i)?;
        check::same_shape(name, i.layout.shape(), s.layout.shape(), "indices and source must have one shape")?;
        return fits_inside(name, i.layout.shape(), x.layout.shape(), axis);
    }
    let wanted = x.layout.shape().with_dim(axis, ids_are_list(name, i)?);
    check::same_shape(name, s.layout.shape(), &wanted, "the source must have one entry for each index")
}
