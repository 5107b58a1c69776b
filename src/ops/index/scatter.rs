//! Picking and putting in more ways than `select.rs`: slices written into copies, points by their coordinates, scatter
//! where the last one wins, one-hot rows.
//!
//! Where indices decide what a copy holds, they are read and checked on the host.

use std::ops::{Bound, RangeBounds};

use crate::array::autograd::no_grad;
use crate::base::{
    call::{Asked, Call},
    dtype::{DType, WithDType},
    error::{Error, Result},
    heap,
    layout::Layout,
    shape::{D, Dim, Few, MAX_RANK, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, shape_of, wrong_shape},
        exec::in_composite,
        inplace::writable,
    },
    index::select::{fits_inside, nowhere, readable},
    reduction::order::collected,
};

/// Indices on the host, and their shape.
fn ids_of(ids: &Proxy, op: &'static str) -> Result<(Shape, Vec<i64>)> {
    let dtype = ids.dtype();
    if !dtype.is_int() {
        return Err(Error::unsupported_dtype(op, dtype, "integers"));
    }
    let (shape, mut read) = ids.to_dtype(DType::I64)?.elements::<i64>(op)?;
    if dtype == DType::U64 {
        // From 2^63 on, which is less than 0 here, and as far beyond any axis.
        read.iter_mut().filter(|id| **id < 0).for_each(|id| *id = i64::MAX);
    }
    Ok((shape, read))
}

fn inside(op: &'static str, index: i64, dim: usize) -> Result<usize> {
    match usize::try_from(index) {
        Ok(at) if at < dim => Ok(at),
        _ => Err(Error::index_out_of_range(op, index, dim)),
    }
}

/// A range of an axis as first index and number of indices.
fn range_of(op: &'static str, range: &impl RangeBounds<usize>, axis: usize, dim: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Unbounded => 0,
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
    };
    let end = match range.end_bound() {
        Bound::Unbounded => dim,
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
    };
    if end <= start {
        return argument(op, "range", format!("{start}..{end}"), "not empty");
    }
    if end > dim {
        return Err(Error::Narrow { op, axis, start, len: end - start, dim, site: None });
    }
    Ok((start, end - start))
}

/// The block of these ranges: a view.
fn block(x: &Proxy, ranges: &[(usize, usize)]) -> Result<Proxy> {
    let start = x.narrow(0, ranges[0].0, ranges[0].1)?;
    ranges.iter().enumerate().skip(1).try_fold(start, |view, (axis, &(start, len))| view.narrow(axis, start, len))
}

/// A copy of `x` with `src` in the block of these ranges, which fits it.
fn assigned(call: Call, x: &Proxy, src: &Proxy, ranges: Few<(usize, usize)>) -> Result<Proxy> {
    let copy = no_grad(|| {
        let copy = x.copy()?;
        if ranges.is_empty() {
            copy.copy_(src)?
        } else {
            block(&copy, &ranges)?.copy_(src)?
        }
        Ok::<_, Error>(copy)
    })?;
    copy.with_gradient(call, [x, src], false, move |grad, _, needs| {
        let of_src = || if ranges.is_empty() { Ok(grad.clone()) } else { block(grad, &ranges) };
        let rest = || {
            let rest = grad.copy()?;
            if ranges.is_empty() {
                rest.zero_()?
            } else {
                block(&rest, &ranges)?.zero_()?
            };
            Ok::<_, Error>(rest)
        };
        let rest = if needs[0] { Some(rest()?) } else { None };
        Ok([rest, if needs[1] { Some(of_src()?) } else { None }, None])
    })
}

/// For each element the number of the source element that was written to it last, or -1. The index `nowhere` writes
/// nothing, unless the axis has it.
fn winners(x: &Shape, ids: &Shape, axis: usize, (at, nowhere): (&[i64], i64), op: &'static str) -> Result<Vec<i64>> {
    // Of a view that repeats there may be more elements than memory.
    let mut winners = heap::room(op, x.elem_count())?;
    winners.resize(x.elem_count(), -1i64);
    let strides = Layout::contiguous(*x);
    let mut index = vec![0usize; ids.rank()];
    for (number, &id) in (0i64..).zip(at) {
        match inside(op, id, x.dims()[axis]) {
            Ok(at) => {
                index[axis] = at;
                let place: usize = index.iter().zip(strides.strides()).map(|(&i, &stride)| i * stride as usize).sum();
                winners[place] = number;
            }
            Err(_) if id == nowhere => {}
            Err(error) => return Err(error),
        }
        // The next index of the source in row-major order.
        let mut rest = number as usize + 1;
        for (i, &dim) in ids.dims().iter().enumerate().rev() {
            index[i] = rest % dim;
            rest /= dim;
        }
    }
    Ok(winners)
}

/// Of an array that had this shape when the axis was looked up.
fn scattered((x, shape): (&Proxy, Shape), ids: &Proxy, src: &Proxy, axis: usize, op: &'static str) -> Result<Proxy> {
    let converted = readable(ids, &|| Some(shape.dims()[axis]))?;
    let ids = converted.as_ref().unwrap_or(ids);
    let (of_ids, at) = ids_of(ids, op)?;
    check::same_shape(op, &of_ids, src.shape(), "the source must have one element for each index")?;
    fits_inside(op, &of_ids, &shape, axis)?;
    if x.dtype() != src.dtype() {
        return Err(Error::dtype_mismatch(op, x.dtype(), src.dtype()));
    }
    let device = x.device();
    for other in [ids.device(), src.device()] {
        if device != other {
            return Err(Error::device_mismatch(op, device, other));
        }
    }
    let winners = winners(&shape, &of_ids, axis, (&at, nowhere(ids.dtype())), op)?;
    if of_ids.elem_count() == 0 {
        return x.copy();
    }
    let won = collected(op, winners.iter().map(|&winner| u8::from(winner >= 0)))?;
    let from = collected(op, winners.iter().map(|&winner| winner.max(0)))?;
    let from = Proxy::from_vec(from, shape.elem_count(), &device)?;
    let picked = src.flatten_all()?.index_select(&from, 0)?.reshape(shape)?;
    Proxy::from_vec(won, shape, &device)?.where_cond(&picked, x)
}

/// Points of an array: their places in the table that its first axes are the rows of, and the shape of what is there.
struct Points {
    rows: Proxy,
    to: Shape,
    /// Rows and columns.
    table: (usize, usize),
}

fn points_of(x: &Proxy, ids: &Proxy, op: &'static str) -> Result<Points> {
    let shape = *x.shape();
    let (of_ids, read) = ids_of(ids, op)?;
    let Some((&depth, points)) = of_ids.dims().split_last() else {
        return wrong_shape(op, ids, "at least one axis");
    };
    if depth > shape.rank() {
        return wrong_shape(op, ids, "at most as many indices a point as the array has axes");
    }
    let (indexed, rest) = shape.dims().split_at(depth);
    let count: usize = points.iter().product();
    let flat = |point: usize| {
        let point = &read[point * depth..(point + 1) * depth];
        let at = point.iter().zip(indexed);
        at.clone().try_fold(0usize, |flat, (&i, &dim)| Ok::<usize, Error>(flat * dim + inside(op, i, dim)?))
    };
    let rank = points.len() + rest.len();
    if rank > MAX_RANK {
        return Err(Error::rank_too_large(op, rank));
    }
    let to: Few = points.iter().chain(rest).copied().collect();
    let to = shape_of(op, &to, x.dtype().size_in_bytes())?;
    // Points without coordinates take no memory: there may be any number of them.
    let mut rows: Vec<i64> = heap::room(op, count)?;
    for point in 0..count {
        rows.push(flat(point)? as i64);
    }
    let rows = Proxy::from_vec(rows, count, x.device())?;
    Ok(Points { rows, to, table: (indexed.iter().product(), rest.iter().product()) })
}

/// # Indexing: writing at indices
impl Proxy {
    /// A copy with the block that one range for each axis names replaced by `src`, which has its shape. With gradients
    /// of both.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if `src` is not the block's shape; [`Error::Argument`] for another number of ranges or
    /// an empty one; [`Error::Narrow`] for one that leaves its axis; [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let a = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let b = Tensor::ones((2, 1), DType::F32, &Device::Cpu)?;
    /// assert_eq!(a.slice_assign(&[0..2, 1..2], &b)?.to_vec2::<f32>()?, [[0., 1., 0.], [0., 1., 0.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn slice_assign<R: RangeBounds<usize>>(&self, ranges: &[R], src: &Proxy) -> Result<Proxy> {
        let call = Call::here("slice_assign");
        composite(call, self, &mut || {
            let (shape, of_src) = (*self.shape(), *src.shape());
            if ranges.len() != shape.rank() {
                return argument(call, "number of ranges", ranges.len(), "one for each axis");
            }
            let axes = ranges.iter().zip(shape.dims()).enumerate();
            let ranges: Few<(usize, usize)> =
                axes.map(|(axis, (range, &dim))| range_of(call.op, range, axis, dim)).collect::<Result<_>>()?;
            let sizes: Few = ranges.iter().map(|&(_, len)| len).collect();
            check::same_shape(call, &Shape::from(sizes), &of_src, "the source must have the shape of the block")?;
            assigned(call, self, src, ranges)
        })
    }

    /// A copy with the entries from `start` on of one axis replaced by `src`, whose other sizes are the same. With
    /// gradients of both.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let x = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
    /// let ones = Tensor::ones(2, DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.slice_scatter(&ones, 0, 1)?.to_vec1::<f32>()?, [0., 1., 1., 0.]);
    /// assert_eq!(x.to_vec1::<f32>()?, [0.; 4]); // it was a copy
    /// assert!(matches!(x.slice_scatter(&ones, 0, 3), Err(Error::Narrow { start: 3, len: 2, dim: 4, .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::slice_assign`]; [`Error::DimOutOfRange`].
    #[track_caller]
    pub fn slice_scatter<A: Dim>(&self, src: &Proxy, dim: A, start: usize) -> Result<Proxy> {
        let call = Call::here("slice_scatter");
        composite(call, self, &mut || {
            let ranges = part_of(self, src, dim, start, call.op)?;
            assigned(call, self, src, ranges)
        })
    }

    /// As [`Proxy::slice_scatter`], along the first axis.
    ///
    /// # Errors
    /// As [`Proxy::slice_scatter`].
    #[track_caller]
    pub fn slice_scatter0(&self, src: &Proxy, start: usize) -> Result<Proxy> {
        self.slice_scatter(src, 0, start)
    }

    /// The entries from `offset` on of one axis replaced by `src`, in place; its other sizes are the same.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let cache = Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?;
    /// cache.slice_set(&Tensor::new(&[[1f32, 2.]], &Device::Cpu)?, 0, 1)?;
    /// assert_eq!(cache.to_vec2::<f32>()?, [[0., 0.], [1., 2.], [0., 0.]]);
    /// let own = cache.narrow(0, 1, 1)?;
    /// assert!(matches!(cache.slice_set(&own, 0, 2), Err(Error::Argument { .. }))); // own.copy() may
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is changed then: [`Error::Tracked`] if gradients are recorded through this array; [`Error::Argument`] if
    /// `src` shares its bytes; as [`Proxy::slice_scatter`] and [`Proxy::copy_`].
    #[track_caller]
    pub fn slice_set<A: Dim>(&self, src: &Proxy, dim: A, offset: usize) -> Result<()> {
        let call = Call::here("slice_set");
        check::open(call, &[self, src])?;
        let set = || {
            writable(self, call.op)?;
            check::apart(call, self, &[src])?;
            let ranges = part_of(self, src, dim, offset, call.op)?;
            // Its handle owns the view, so that none is left with a manager.
            no_grad(|| block(&self.aside()?, &ranges)?.copy_(src))
        };
        set().map_err(|error| error.of(call))
    }

    /// A copy with `src[i][j]` at `[i][ids[i][j]]` along an axis; the last one wins where several meet. `ids` (any
    /// integers) and `src` have one shape, that fits inside on the other axes. The indices are read on the host, with
    /// padding as for [`Proxy::index_select`]; with gradients of both.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
    /// let ids = Tensor::new(&[1u32, 3, 1], &Device::Cpu)?;
    /// let y = x.scatter(&ids, &Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?, 0)?;
    /// assert_eq!(y.to_vec1::<f32>()?, [0., 3., 0., 2.]); // of 1 and 3 the last one
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`],
    /// [`Error::DimOutOfRange`], [`Error::DeviceMismatch`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn scatter<A: Dim>(&self, ids: &Proxy, src: &Proxy, dim: A) -> Result<Proxy> {
        let call = Call::here("scatter");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        composite(call, self, &mut || scattered((self, shape), ids, src, axis, call.op))
    }

    /// As [`Proxy::scatter`], in place.
    ///
    /// # Errors
    /// As [`Proxy::scatter`] and [`Proxy::copy_`].
    #[doc(alias = "put")]
    #[track_caller]
    pub fn scatter_set<A: Dim>(&self, ids: &Proxy, src: &Proxy, dim: A) -> Result<()> {
        let call = Call::here("scatter_set");
        let values = no_grad(|| self.aside()?.scatter(ids, src, dim));
        values.and_then(|values| self.copy_(&values)).map_err(|error| error.of(call))
    }

    /// As [`Proxy::scatter_add`], in place.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
    /// let ids = Tensor::new(&[1u32, 3, 1], &Device::Cpu)?;
    /// x.scatter_add_set(&ids, &Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?, 0)?;
    /// assert_eq!(x.to_vec1::<f32>()?, [0., 4., 0., 2.]); // 1 and 3 meet
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::scatter_add`] and [`Proxy::copy_`].
    #[track_caller]
    pub fn scatter_add_set<A: Dim>(&self, ids: &Proxy, src: &Proxy, dim: A) -> Result<()> {
        let call = Call::here("scatter_add_set");
        let values = no_grad(|| self.aside()?.scatter_add(ids, src, dim));
        values.and_then(|values| self.copy_(&values)).map_err(|error| error.of(call))
    }

    /// The entries at points: the last axis of `ids` (any integers) holds indices of the first axes. Shape: `ids`
    /// without its last axis, then the axes that are not indexed. The indices are read on the host; with a gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let points = Tensor::new(&[[0u32, 1], [1, 0]], &Device::Cpu)?;
    /// assert_eq!(x.gather_nd(&points)?.to_vec1::<f32>()?, [2., 3.]);
    /// let rows = Tensor::new(&[[1u32]], &Device::Cpu)?; // one index a point: the second axis stays
    /// assert_eq!(x.gather_nd(&rows)?.to_vec2::<f32>()?, [[3., 4.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::Shape`] if `ids` has no axis, or more indices than there are axes;
    /// [`Error::UnsupportedDType`], [`Error::RankTooLarge`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn gather_nd(&self, ids: &Proxy) -> Result<Proxy> {
        let op = "gather_nd";
        composite(Call::here(op), self, &mut || {
            let Points { rows, to, table } = points_of(self, ids, op)?;
            self.reshape(table)?.index_select(&rows, 0)?.reshape(to)
        })
    }

    /// The entries at points, as [`Proxy::gather_nd`] names them, replaced by `src`, which is broadcast to their shape:
    /// in place. With `accumulate` it is added to them, also where points meet; else the last one wins.
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::gather_nd`] and [`Proxy::copy_`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let a = Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?;
    /// let points = Tensor::new([[0u32, 1], [1, 0], [0, 1]], &Device::Cpu)?;
    /// a.index_put_(&points, &Tensor::new([1f32, 2., 3.], &Device::Cpu)?, true)?;
    /// assert_eq!(a.to_vec2::<f32>()?, [[0., 4.], [2., 0.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn index_put_(&self, ids: &Proxy, src: &Proxy, accumulate: bool) -> Result<()> {
        let call = Call::here("index_put_");
        let mut put = || {
            writable(self, call.op)?;
            no_grad(|| {
                let base = self.aside()?;
                let Points { rows, to, table } = points_of(&base, ids, call.op)?;
                let (count, width) = (rows.elem_count(), table.1);
                let src = src.aside()?.broadcast_as(to)?.reshape((count, width))?;
                let whole = base.reshape(table)?;
                let changed = if accumulate {
                    whole.index_add(&rows, &src, 0)?
                } else {
                    whole.scatter(&rows.reshape((count, 1))?.broadcast_as((count, width))?, &src, 0)?
                };
                base.copy_(&changed.reshape(base.shape())?)
            })
        };
        in_composite(call.site, &mut put).map_err(|error| error.of(call))
    }

    #[track_caller]
    pub(crate) fn ext_one_hot(&self, depth: usize) -> Result<Proxy> {
        composite(Call::here("one_hot"), self, &mut || one_hot(self, depth, 1u8, 0u8, "one_hot"))
    }

    /// As [`TensorExt::one_hot`](crate::TensorExt::one_hot), with other values: for `nn::encoding`.
    #[track_caller]
    pub(crate) fn one_hot_of<T: WithDType>(&self, depth: usize, on: T, off: T) -> Result<Proxy> {
        composite(Call::here("one_hot"), self, &mut || one_hot(self, depth, on, off, "one_hot"))
    }
}

fn one_hot<T: WithDType>(ids: &Proxy, depth: usize, on: T, off: T, op: &'static str) -> Result<Proxy> {
    let (of_ids, read) = ids_of(ids, op)?;
    let shape = shape_of(op, &[of_ids.dims(), &[depth]].concat(), T::DTYPE.size_in_bytes())?;
    for &id in read.iter().filter(|&&id| id != -1) {
        inside(op, id, depth)?;
    }
    // Compared on the device, so that the rows are never on the host.
    let device = ids.device();
    let places = Proxy::arange(0, depth as i64, &device)?;
    let hot = ids.to_dtype(DType::I64)?.unsqueeze(D::Minus1)?.broadcast_eq(&places)?;
    let value = |value: T| Proxy::from_slice(&[value], (), &device)?.broadcast_as(shape);
    hot.where_cond(&value(on)?, &value(off)?)
}

/// The ranges of `src` placed at `start` of one axis.
fn part_of<A: Dim>(x: &Proxy, src: &Proxy, dim: A, start: usize, op: &'static str) -> Result<Few<(usize, usize)>> {
    let (shape, of_src) = (*x.shape(), *src.shape());
    let axis = Asked::from(op).axis(dim, &shape)?;
    let size = if of_src.rank() == shape.rank() { of_src.dims()[axis] } else { 0 };
    let wanted = shape.with_dim(axis, size);
    check::same_shape(op, &of_src, &wanted, "all sizes but that of the axis must agree")?;
    if x.dtype() != src.dtype() {
        return Err(Error::dtype_mismatch(op, x.dtype(), src.dtype()));
    }
    let mut ranges: Few<(usize, usize)> = shape.dims().iter().map(|&dim| (0, dim)).collect();
    if start.checked_add(size).is_none_or(|end| end > shape.dims()[axis]) {
        return Err(Error::Narrow { op, axis, start, len: size, dim: shape.dims()[axis], site: None });
    }
    ranges[axis] = (start, size);
    Ok(ranges)
}
