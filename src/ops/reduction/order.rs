//! Order: sorting, the largest, quantiles, what is unique, what is not 0, how often.
//!
//! Which element goes where is found on the host; the elements are then picked on their device, so that the gradient is
//! that of `gather`. NaN counts as the largest; equal elements keep their order.

use crate::array::autograd::no_grad;
use crate::base::{
    call::{Asked, Call},
    dtype::{DType, WithDType, with_bits, with_type},
    error::{Error, Result},
    heap,
    shape::{D, Dim, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, in_single, number, number_like, single, wrong_shape},
        exec::both_or_none,
    },
    create::values::of_values,
};

/// Of the same order as an element's: the key of all NaNs is the largest, and both zeros have one.
fn key<T: WithDType>(x: T) -> u64 {
    const SIGN: u64 = 1 << 63;
    if T::DTYPE.is_float() {
        let x = x.to_f64();
        let bits = if x == 0.0 { 0 } else { x.to_bits() };
        return match x.is_nan() {
            true => NAN,
            false if bits & SIGN == 0 => bits | SIGN,
            false => !bits,
        };
    }
    let bits = x.to_i128() as u64;
    if T::DTYPE.is_signed() { bits ^ SIGN } else { bits }
}

/// The key of what is no number, which no number has; an integer may.
const NAN: u64 = u64::MAX;

/// As `collect`, with an error where there is no room: a view that repeats may have any number of elements.
pub(crate) fn collected<T>(op: &'static str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = heap::room(op, items.len())?;
    all.extend(items);
    Ok(all)
}

/// Puts places in the order of the keys there; equal ones stay in theirs. One sort for all dtypes.
fn rank(places: &mut [usize], keys: &[u64], descending: bool) {
    let flip = if descending { u64::MAX } else { 0 };
    places.sort_by_key(|&place| keys[place] ^ flip);
}

/// The keys of all elements of an array, in row-major order.
fn keys_of(op: &'static str, x: &Proxy) -> Result<Vec<u64>> {
    with_type!(x.dtype(), T => {
        let all = x.to_vec::<T>()?;
        let mut keys = heap::room(op, all.len())?;
        // A loop: iterators would be compiled for each dtype.
        for &x in &all {
            keys.push(key(x));
        }
        Ok(keys)
    })
}

/// The elements along an axis, sorted: for each place of the other axes the indices in order, and whether one is NaN.
struct SortedLanes {
    op: &'static str,
    axis: usize,
    last: usize,
    /// The shape with the axis and the last one exchanged.
    shape: Shape,
    ids: Vec<u32>,
    nan: Vec<bool>,
}

impl SortedLanes {
    fn sorted(x: &Proxy, axis: usize, descending: bool, op: &'static str) -> Result<Self> {
        // Another thread may exchange the array after the axis was looked up: `transpose` looks again.
        let last = x.shape().rank().saturating_sub(1);
        let turned = x.transpose(axis, last)?;
        // From here on of the view, which nobody else has.
        let x = &turned;
        let shape = *x.shape();
        let size = shape.dim(last)?;
        if u32::try_from(size).is_err() {
            return wrong_shape(op, x, "at most 2^32 - 1 elements along the axis");
        }
        let (keys, is_float) = (keys_of(op, x)?, x.dtype().is_float());
        let lanes = keys.chunks(size.max(1));
        let (mut ids, mut nan) = (heap::room(op, keys.len())?, heap::room(op, lanes.len())?);
        // One list for all lanes.
        let mut places: Vec<usize> = heap::room(op, size.min(keys.len()))?;
        for lane in lanes {
            places.clear();
            places.extend(0..lane.len());
            rank(&mut places, lane, descending);
            ids.extend(places.iter().map(|&place| place as u32));
            nan.push(is_float && lane.contains(&NAN));
        }
        Ok(SortedLanes { op, axis, last, shape, ids, nan })
    }

    fn size(&self) -> usize {
        self.shape.dims()[self.last]
    }

    /// `count` indices of each lane, as an array in the place of the axis.
    fn pick(&self, x: &Proxy, count: usize, at: &dyn Fn(usize, bool) -> usize) -> Result<Proxy> {
        let mut ids: Vec<u32> = heap::room(self.op, self.nan.len() * count)?;
        for (lane, &nan) in self.ids.chunks(self.size().max(1)).zip(&self.nan) {
            ids.extend((0..count).map(|i| lane[at(i, nan)]));
        }
        self.put(x, ids, count)
    }

    /// All indices, as [`SortedLanes::pick`].
    fn all(mut self, x: &Proxy) -> Result<Proxy> {
        let ids = std::mem::take(&mut self.ids);
        self.put(x, ids, self.size())
    }

    /// So many indices of each lane, as an array in the place of the axis.
    fn put(&self, x: &Proxy, ids: Vec<u32>, count: usize) -> Result<Proxy> {
        let ids = Proxy::from_vec(ids, self.shape.with_dim(self.last, count), x.device())?;
        match self.axis == self.last {
            true => Ok(ids),
            false => ids.transpose(self.axis, self.last)?.contiguous(),
        }
    }
}

/// The first `count` indices along an axis in order, and the elements there.
fn first(call: Call, x: &Proxy, axis: usize, count: Option<usize>, descending: bool) -> Result<(Proxy, Proxy)> {
    let ids = composite(call, x, &mut || {
        let lanes = SortedLanes::sorted(x, axis, descending, call.op)?;
        match count {
            None => lanes.all(x),
            Some(count) if count > lanes.size() => argument(call, "count", count, "at most the size of the axis"),
            Some(count) => lanes.pick(x, count, &|i, _| i),
        }
    });
    let (ids, values) = both_or_none(ids, |ids| composite(call, x, &mut || x.gather(ids, axis)))?;
    Ok((values, ids))
}

/// How many of the sorted elements of its lane are less than each value, or not more, if `right`.
fn placed(call: Call, sorted: &Proxy, values: &Proxy, right: bool) -> Result<Proxy> {
    // Of views that nobody else has: another thread may exchange the arrays.
    let (sorted, values) = (sorted.aside()?, values.aside()?);
    let (device, other) = (sorted.device(), values.device());
    if device != other {
        return Err(Error::device_mismatch(call, device, other));
    }
    if sorted.dtype() != values.dtype() {
        return Err(Error::dtype_mismatch(call, sorted.dtype(), values.dtype()));
    }
    let (shape, of_values) = (*sorted.shape(), *values.shape());
    let Some((&size, lanes)) = shape.dims().split_last() else {
        return wrong_shape(call, &sorted, "at least one axis");
    };
    let count = match of_values.dims().split_last() {
        _ if lanes.is_empty() => of_values.elem_count(),
        Some((&count, others)) if others == lanes => count,
        _ => {
            let hint = "all axes but the last one must be those of the sorted array, unless it has one alone";
            return Err(Error::shapes(call, &shape, &of_values, hint));
        }
    };
    if u32::try_from(size).is_err() {
        return wrong_shape(call, &sorted, "at most 2^32 - 1 elements along the axis");
    }
    let (all, wanted) = (keys_of(call.op, &sorted)?, keys_of(call.op, &values)?);
    let mut places: Vec<u32> = heap::room(call.op, wanted.len())?;
    for (i, keys) in wanted.chunks(count.max(1)).enumerate() {
        let lane = &all[i * size..][..size];
        for &key in keys {
            places.push(lane.partition_point(|&other| other < key || right && other == key) as u32);
        }
    }
    Proxy::from_vec(places, of_values, device)
}

/// Between two neighbours: as `lerp`, which is exact between equal ones. Where their difference is infinite or NaN it
/// is a sum of shares, which there may be all the same.
fn between(low: &Proxy, high: &Proxy, part: f64) -> Result<Proxy> {
    in_single(low, |low| {
        let high = single(high)?;
        let shares = low.affine(1.0 - part, 0.0)?.add(&high.affine(part, 0.0)?)?;
        let near = no_grad(|| high.sub(low)?.ext_is_finite())?;
        near.where_cond(&low.ext_lerp(&high, part)?, &shares)
    })
}

/// # Order: sorting, ranks, what occurs
impl Proxy {
    #[track_caller]
    pub(crate) fn ext_sort<A: Dim>(&self, dim: A, descending: bool) -> Result<(Proxy, Proxy)> {
        let call = Call::here("sort");
        first(call, self, call.axis(dim, self.shape())?, None, descending)
    }

    #[track_caller]
    pub(crate) fn ext_argsort<A: Dim>(&self, dim: A, descending: bool) -> Result<Proxy> {
        let call = Call::here("argsort");
        argsort(call, self, call.axis(dim, self.shape())?, descending)
    }

    /// As [`TensorExt::sort`](crate::TensorExt::sort), along the last axis.
    ///
    /// # Errors
    /// As [`TensorExt::sort`](crate::TensorExt::sort).
    #[track_caller]
    pub fn sort_last_dim(&self, ascending: bool) -> Result<(Proxy, Proxy)> {
        let call = Call::here("sort_last_dim");
        first(call, self, call.axis(D::Minus1, self.shape())?, None, !ascending)
    }

    /// As [`TensorExt::argsort`](crate::TensorExt::argsort), along the last axis.
    ///
    /// # Errors
    /// As [`TensorExt::sort`](crate::TensorExt::sort).
    #[track_caller]
    pub fn arg_sort_last_dim(&self, ascending: bool) -> Result<Proxy> {
        let call = Call::here("arg_sort_last_dim");
        argsort(call, self, call.axis(D::Minus1, self.shape())?, !ascending)
    }

    #[track_caller]
    pub(crate) fn ext_searchsorted(&self, values: &Proxy, right: bool) -> Result<Proxy> {
        let call = Call::here("searchsorted");
        composite(call, self, &mut || placed(call, self, values, right))
    }

    #[track_caller]
    pub(crate) fn ext_topk<A: Dim>(&self, count: usize, dim: A) -> Result<(Proxy, Proxy)> {
        let call = Call::here("topk");
        first(call, self, call.axis(dim, self.shape())?, Some(count), true)
    }

    #[track_caller]
    pub(crate) fn ext_median<A: Dim>(&self, dim: A) -> Result<Proxy> {
        let op = "median";
        composite(Call::here(op), self, &mut || {
            let lanes = SortedLanes::sorted(self, Asked::from(op).axis(dim, self.shape())?, false, op)?;
            let Some(last) = lanes.size().checked_sub(1) else {
                return wrong_shape(op, self, "at least one element along the axis");
            };
            let ids = lanes.pick(self, 1, &|_, nan| if nan { last } else { last / 2 })?;
            self.gather(&ids, lanes.axis)?.squeeze(lanes.axis)
        })
    }

    #[track_caller]
    pub(crate) fn ext_quantile<A: Dim>(&self, q: f64, dim: A) -> Result<Proxy> {
        let op = "quantile";
        composite(Call::here(op), self, &mut || {
            check::float(op, self.dtype())?;
            if !(0.0..=1.0).contains(&q) {
                return argument(op, "q", q, "between 0 and 1");
            }
            let lanes = SortedLanes::sorted(self, Asked::from(op).axis(dim, self.shape())?, false, op)?;
            let Some(last) = lanes.size().checked_sub(1) else {
                return wrong_shape(op, self, "at least one element along the axis");
            };
            let place = q * last as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let at = |i: usize| {
                let ids = lanes.pick(self, 1, &|_, nan| if nan { last } else { i.min(last) })?;
                self.gather(&ids, lanes.axis)?.squeeze(lanes.axis)
            };
            if part == 0.0 {
                return at(low);
            }
            between(&at(low)?, &at(low + 1)?, part)
        })
    }

    #[track_caller]
    pub(crate) fn ext_unique(&self) -> Result<Proxy> {
        let op = "unique";
        composite(Call::here(op), self, &mut || {
            let keys = keys_of(op, self)?;
            let mut places: Vec<usize> = collected(op, 0..keys.len())?;
            rank(&mut places, &keys, false);
            places.dedup_by_key(|&mut place| keys[place]);
            let (dtype, count) = (self.dtype(), Shape::from(places.len()));
            with_bits!(dtype, B => {
                let (_, all) = self.bits::<B>("to_vec", dtype)?;
                if all.len() != keys.len() {
                    return Err(check::exchanged(op, self));
                }
                let values = collected(op, places.iter().map(|&place| all[place]))?;
                of_values(Call::here("from_vec"), values, (count, dtype), self.device())
            })
        })
    }

    #[track_caller]
    pub(crate) fn ext_nonzero(&self) -> Result<Proxy> {
        let op = "nonzero";
        composite(Call::here(op), self, &mut || {
            let dtype = self.dtype();
            // Both zeros of floats are 0.
            let sign = if dtype.is_float() { 1 << (8 * dtype.size_in_bytes() - 1) } else { 0 };
            let (shape, on) = with_bits!(dtype, B => {
                let (shape, all) = self.bits::<B>(op, dtype)?;
                (shape, collected(op, all.iter().map(|x| x.to_i128() & !sign != 0))?)
            });
            let (count, rank) = (on.iter().filter(|&&on| on).count(), shape.rank());
            let mut found: Vec<i64> = heap::zeros(op, count.saturating_mul(rank))?;
            let places = (0..).zip(on).filter(|&(_, on)| on);
            for (i, (mut flat, _)) in places.enumerate() {
                for (place, &dim) in found[i * rank..][..rank].iter_mut().zip(shape.dims()).rev() {
                    *place = (flat % dim) as i64;
                    flat /= dim;
                }
            }
            Proxy::from_vec(found, (count, rank), self.device())
        })
    }

    #[track_caller]
    pub(crate) fn ext_bincount(&self, least: usize) -> Result<Proxy> {
        let op = "bincount";
        composite(Call::here(op), self, &mut || {
            let dtype = self.dtype();
            if !dtype.is_int() {
                return Err(Error::unsupported_dtype(op, dtype, "integers"));
            }
            self.dims1()?;
            let all = self.to_dtype(DType::I64)?.to_vec::<i64>()?;
            if let Some(&index) = all.iter().find(|&&index| index < 0) {
                return Err(Error::index_out_of_range(op, index, least));
            }
            let count = all.iter().max().map_or(0, |&largest| (largest as usize).saturating_add(1)).max(least);
            let device = self.device();
            let once = Proxy::ones(all.len(), DType::I64, &device)?;
            Proxy::zeros(count, DType::I64, &device)?.index_add(self, &once, 0)
        })
    }
}

/// # Order: histograms
impl Proxy {
    #[track_caller]
    pub(crate) fn ext_histc(&self, bins: usize, min: f64, max: f64) -> Result<Proxy> {
        let call = Call::here("histc");
        composite(call, self, &mut || {
            let dtype = check::float(call, self.dtype())?;
            let all = self.aside()?.flatten_all()?.to_dtype(DType::F64)?;
            let (mut low, mut high) = (min, max);
            if (min, max) == (0.0, 0.0) && all.elem_count() > 0 {
                let numbers = |none: f64| all.ne(&all)?.where_cond(&number_like(&all, none, call.site)?, &all);
                low = numbers(f64::INFINITY)?.min_all()?.to_scalar::<f64>()?;
                high = numbers(f64::NEG_INFINITY)?.max_all()?.to_scalar::<f64>()?;
                if low > high {
                    // Nothing but NaN.
                    (low, high) = (0.0, 0.0);
                }
            }
            // Ends that are finite may be further apart than doubles go.
            if bins == 0 || !(low <= high && (high - low).is_finite()) {
                return argument(call, "bins", format!("{bins} of {low} to {high}"), "1 or more, of a finite range");
            }
            if low == high {
                (low, high) = (low - 1.0, high + 1.0);
            }
            let inside = all.broadcast_ge(&number(&all, low, call.site)?)?;
            let inside = inside.mul(&all.broadcast_le(&number(&all, high, call.site)?)?)?;
            let (above, width, count) = (all.affine(1.0, -low)?, high - low, bins as f64);
            // The product first, where there is one: of whole numbers it is exact, and so is what lies at an edge.
            let part = match (width * count).is_finite() {
                true => above.affine(count, 0.0)? / width,
                false => above.affine(count / width, 0.0),
            };
            let part = part?.clamp(0.0, (bins - 1) as f64)?;
            let ids = inside.where_cond(&part, &part.full_like(bins as f64)?)?.to_dtype(DType::I64)?;
            let once = Proxy::ones(all.elem_count(), DType::I64, self.device())?;
            let counts = Proxy::zeros(bins.saturating_add(1), DType::I64, self.device())?.index_add(&ids, &once, 0)?;
            counts.narrow(0, 0, bins)?.to_dtype(dtype)
        })
    }
}

fn argsort(call: Call, x: &Proxy, axis: usize, descending: bool) -> Result<Proxy> {
    composite(call, x, &mut || SortedLanes::sorted(x, axis, descending, call.op)?.all(x))
}
