//! Indexing of several axes at once: what each axis takes, and the views, picks and changes made from that.
//!
//! Indices, ranges and new axes are one view. Lists of indices and masks pick from that view, one axis after the other.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    error::{Error, Result},
    layout::Layout,
    shape::{MAX_RANK, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        compose::{argument, composite},
        exec::in_composite,
        inplace::writable,
    },
    elementwise::unary::one,
    shape::view::{recorded_view, zeros_beside},
};

/// A new axis of size 1 at this place, in [`s!`](crate::s) and [`IndexOp::i`].
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

/// All axes that the other items leave over, in [`s!`](crate::s) and [`IndexOp::i`]. At most one of the items.
#[derive(Clone, Copy, Debug)]
pub struct Ellipsis;

/// What is taken of one axis: made from an index, a range, a list of indices (any integers), [`NewAxis`] or
/// [`Ellipsis`].
///
/// An index and the ends of ranges count from the end if they are negative; the indices of a list do not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TensorIndexer {
    /// One index; the axis goes.
    Select(i64),
    /// The indices of a range, every `step`-th from its first one on; with a negative step from its last one on, back.
    Narrow(Bound<i64>, Bound<i64>, isize),
    /// As NumPy's `start:end:step`: ends beyond the axis are cut off, and a negative step counts from `start` down to
    /// what lies behind `end`.
    Slice(Option<i64>, Option<i64>, i64),
    /// The entries that a list names, in its order.
    IndexSelect(Proxy),
    /// The entries that numbers name, in their order.
    List(Vec<u32>),
    /// Where a mask is not 0: as many axes as the mask has become one.
    Mask(Proxy),
    /// A new axis of size 1.
    NewAxis,
    /// All axes left over.
    Ellipsis,
    /// A step behind something that is no range.
    BadStep,
}

impl TensorIndexer {
    /// Every `step`-th index of a range; see [`TensorIndexer::Narrow`].
    #[must_use]
    pub fn by(self, step: isize) -> Self {
        match self {
            TensorIndexer::Narrow(start, end, 1) => TensorIndexer::Narrow(start, end, step),
            _ => TensorIndexer::BadStep,
        }
    }

    /// The entries where a mask (any integers) is not 0: the axes that the mask has become one.
    pub fn mask(mask: &Proxy) -> Self {
        TensorIndexer::Mask(mask.clone())
    }
}

macro_rules! from_integers {
    ($($t:ty),*) => {$(
        impl From<$t> for TensorIndexer {
            fn from(at: $t) -> Self {
                TensorIndexer::Select(count(at))
            }
        }
        from_integers! { $t: Range, |r| (Bound::Included(r.start), Bound::Excluded(r.end)) }
        from_integers! { $t: RangeInclusive, |r| (Bound::Included(*r.start()), Bound::Included(*r.end())) }
        from_integers! { $t: RangeFrom, |r| (Bound::Included(r.start), Bound::Unbounded) }
        from_integers! { $t: RangeTo, |r| (Bound::Unbounded, Bound::Excluded(r.end)) }
        from_integers! { $t: RangeToInclusive, |r| (Bound::Unbounded, Bound::Included(r.end)) }
    )*};
    ($t:ty: $range:ident, |$r:ident| $bounds:expr) => {
        impl From<$range<$t>> for TensorIndexer {
            fn from($r: $range<$t>) -> Self {
                let (start, end): (Bound<$t>, Bound<$t>) = $bounds;
                TensorIndexer::Narrow(start.map(count), end.map(count), 1)
            }
        }
    };
}

/// An index as a number that counts; one that is too large leaves every axis.
fn count(at: impl TryInto<i64>) -> i64 {
    at.try_into().unwrap_or(i64::MAX)
}

from_integers!(usize, i32, i64, isize);

impl From<RangeFull> for TensorIndexer {
    fn from(_: RangeFull) -> Self {
        TensorIndexer::Narrow(Bound::Unbounded, Bound::Unbounded, 1)
    }
}

impl From<&Proxy> for TensorIndexer {
    fn from(ids: &Proxy) -> Self {
        TensorIndexer::IndexSelect(ids.clone())
    }
}

impl From<&[u32]> for TensorIndexer {
    fn from(ids: &[u32]) -> Self {
        TensorIndexer::List(ids.to_vec())
    }
}

impl From<Vec<u32>> for TensorIndexer {
    fn from(ids: Vec<u32>) -> Self {
        TensorIndexer::List(ids)
    }
}

impl From<NewAxis> for TensorIndexer {
    fn from(_: NewAxis) -> Self {
        TensorIndexer::NewAxis
    }
}

impl From<Ellipsis> for TensorIndexer {
    fn from(_: Ellipsis) -> Self {
        TensorIndexer::Ellipsis
    }
}

/// The items of [`Proxy::slice`]: indices, ranges (with `; step`, also negative), lists, [`NewAxis`] and [`Ellipsis`].
///
/// ```
/// # use ndgc::{Device, NewAxis, Tensor, s};
/// let a = Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((3, 4))?;
/// assert_eq!(a.slice(s![.., ..;-1])?.get(0)?.to_vec1::<f32>()?, [3., 2., 1., 0.]);
/// assert_eq!(a.slice(s![-1, 1..=3; 2])?.to_vec1::<f32>()?, [9., 11.]);
/// assert_eq!(a.slice(s![0, NewAxis, ..-2])?.dims(), [1, 2]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[macro_export]
macro_rules! s {
    ($($item:expr $(; $step:expr)?),* $(,)?) => {
        [$($crate::TensorIndexer::from($item)$(.by($step))?),*]
    };
}

/// Indexing with `i`, by one item or a tuple of them.
pub trait IndexOp<T> {
    /// What the items take of the first axes; see [`Proxy::slice`].
    ///
    /// # Errors
    /// As [`Proxy::slice`].
    ///
    /// ```
    /// # use ndgc::{Device, IndexOp, Tensor};
    /// let a = Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((3, 4))?;
    /// assert_eq!(a.i((.., 1..3))?.dims(), [3, 2]);
    /// assert_eq!(a.i((2, -1))?.to_scalar::<f32>()?, 11.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    fn i(&self, index: T) -> Result<Proxy>;
}

impl<A: Into<TensorIndexer>> IndexOp<A> for Proxy {
    #[track_caller]
    fn i(&self, index: A) -> Result<Proxy> {
        sliced(Call::here("i"), self, &[index.into()])
    }
}

macro_rules! index_by_tuple {
    ($($t:ident $i:tt),+) => {
        impl<$($t: Into<TensorIndexer>),+> IndexOp<($($t,)+)> for Proxy {
            #[track_caller]
            fn i(&self, index: ($($t,)+)) -> Result<Proxy> {
                sliced(Call::here("i"), self, &[$(index.$i.into()),+])
            }
        }
    };
}
index_by_tuple!(A 0);
index_by_tuple!(A 0, B 1);
index_by_tuple!(A 0, B 1, C 2);
index_by_tuple!(A 0, B 1, C 2, D 3);
index_by_tuple!(A 0, B 1, C 2, D 3, E 4);
index_by_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
index_by_tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);

/// What is taken of one axis of the array.
#[derive(Clone, Copy)]
enum TakenPart {
    One(usize),
    Some { start: usize, len: usize, step: isize },
}

/// The view that the items make before anything is picked from it.
#[derive(Clone, Copy)]
struct Cut {
    /// The shape of the array.
    shape: Shape,
    taken: [TakenPart; MAX_RANK],
    rank: usize,
    /// Which axes of the view are new, as bits.
    new: u16,
}

impl Cut {
    /// All of an array.
    #[inline(always)]
    fn whole(shape: &Shape) -> Self {
        let mut cut = Cut { shape: *shape, taken: [TakenPart::One(0); MAX_RANK], rank: shape.rank(), new: 0 };
        let every = |&len: &usize| TakenPart::Some { start: 0, len, step: 1 };
        cut.taken.iter_mut().zip(shape.dims()).for_each(|(taken, dim)| *taken = every(dim));
        cut
    }

    fn of(&self, layout: &Layout) -> Result<Layout> {
        let mut layout = *layout;
        for (axis, taken) in self.taken[..self.rank].iter().enumerate().rev() {
            layout = match *taken {
                TakenPart::One(at) => layout.select(axis, at),
                TakenPart::Some { start: 0, len, step: 1 } if len == layout.dims()[axis] => continue,
                TakenPart::Some { start, len, step } => layout.stepped(axis, start, len, step)?,
            };
        }
        let mut new = self.new;
        while new != 0 {
            layout = layout.unsqueeze(new.trailing_zeros() as usize);
            new &= new - 1;
        }
        Ok(layout)
    }

    fn made(&self, call: Call, x: &Proxy) -> Result<Proxy> {
        recorded_view(
            call,
            (x, &self.shape),
            |layout| self.of(layout),
            |from| {
                let (from, cut) = (*from.shape(), *self);
                move |grad: &Proxy, _| {
                    let whole = zeros_beside(grad, &from)?;
                    cut.made(call, &whole)?.copy_(grad)?;
                    Ok(one(whole))
                }
            },
        )
    }
}

/// A list or a mask, with the axis of the view that it begins at.
type PickedAxis<'a> = (usize, &'a TensorIndexer);

/// An index of an axis, counted from the end if it is negative.
fn index(op: &'static str, at: i64, dim: usize) -> Result<usize> {
    bound(op, at, dim).ok().filter(|&at| at < dim).ok_or_else(|| Error::index_out_of_range(op, at, dim))
}

/// The end of a range, which may lie one behind the last index.
fn bound(op: &'static str, at: i64, dim: usize) -> Result<usize> {
    let from_start = if at < 0 { at + dim as i64 } else { at };
    match usize::try_from(from_start) {
        Ok(found) if found <= dim => Ok(found),
        _ => Err(Error::index_out_of_range(op, at, dim)),
    }
}

fn range(op: &'static str, bounds: (Bound<i64>, Bound<i64>), step: isize, dim: usize) -> Result<TakenPart> {
    if step == 0 {
        return argument(op, "step", step, "not 0");
    }
    let start = match bounds.0 {
        Bound::Unbounded => 0,
        Bound::Included(at) => bound(op, at, dim)?,
        Bound::Excluded(at) => index(op, at, dim)? + 1,
    };
    let end = match bounds.1 {
        Bound::Unbounded => dim,
        Bound::Included(at) => index(op, at, dim)? + 1,
        Bound::Excluded(at) => bound(op, at, dim)?,
    };
    let count = end.saturating_sub(start);
    let first = if step < 0 && count > 0 { end - 1 } else { start };
    Ok(TakenPart::Some { start: first, len: count.div_ceil(step.unsigned_abs()), step })
}

/// By NumPy's rules.
fn slice(op: &'static str, start: Option<i64>, end: Option<i64>, step: i64, dim: usize) -> Result<TakenPart> {
    if step == 0 {
        return argument(op, "step", step, "not 0");
    }
    let size = dim as i64;
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let place = |at: Option<i64>, none: i64| {
        at.map_or(none, |at| (if at < 0 { at + size } else { at }).clamp(low, high.max(low)))
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, end) = (place(start, first), place(end, last));
    let reach = if step > 0 { end - start } else { start - end };
    let len = if reach > 0 { (reach as u64).div_ceil(step.unsigned_abs()) as usize } else { 0 };
    Ok(TakenPart::Some { start: start.max(0) as usize, len, step: step as isize })
}

/// Axes of the array that an item uses up.
fn used(item: &TensorIndexer) -> usize {
    match item {
        TensorIndexer::NewAxis | TensorIndexer::Ellipsis => 0,
        TensorIndexer::Mask(mask) => mask.rank(),
        _ => 1,
    }
}

/// The view and the picks that items mean, of a cut that takes all and of no picks.
fn resolve<'a>(
    op: &'static str,
    items: &'a [TensorIndexer],
    cut: &mut Cut,
    picks: &mut Vec<PickedAxis<'a>>,
) -> Result<()> {
    let shape = &cut.shape;
    let uses = items.iter().map(used).sum();
    let Some(left) = shape.rank().checked_sub(uses) else {
        return argument(op, "number of indices", uses, "at most one for each axis");
    };
    if items.iter().filter(|item| matches!(item, TensorIndexer::Ellipsis)).count() > 1 {
        return argument(op, "ellipses", items.len(), "at most one");
    }
    // The next axis of the array, and of the view.
    let (mut from, mut to) = (0, 0);
    for item in items {
        // Looked at again: a mask may have other axes by now.
        let own = used(item);
        if from + own > shape.rank() {
            return argument(op, "number of indices", from + own, "at most one for each axis");
        }
        let (own, into) = match item {
            TensorIndexer::Select(at) => {
                cut.taken[from] = TakenPart::One(index(op, *at, shape.dims()[from])?);
                (1, 0)
            }
            TensorIndexer::Narrow(start, end, step) => {
                cut.taken[from] = range(op, (*start, *end), *step, shape.dims()[from])?;
                (1, 1)
            }
            TensorIndexer::Slice(start, end, step) => {
                cut.taken[from] = slice(op, *start, *end, *step, shape.dims()[from])?;
                (1, 1)
            }
            TensorIndexer::IndexSelect(_) | TensorIndexer::List(_) | TensorIndexer::Mask(_) => {
                picks.push((to, item));
                (own, own)
            }
            TensorIndexer::NewAxis => {
                if to > MAX_RANK {
                    return Err(Error::rank_too_large(op, to + 1));
                }
                cut.new |= 1 << to;
                (0, 1)
            }
            TensorIndexer::Ellipsis => (left, left),
            TensorIndexer::BadStep => return argument(op, "step", "a step", "behind a range, once"),
        };
        (from, to) = (from + own, to + into);
    }
    let Some(behind) = shape.rank().checked_sub(from) else {
        return argument(op, "number of indices", from, "at most one for each axis");
    };
    let rank = to + behind;
    if rank > MAX_RANK {
        return Err(Error::rank_too_large(op, rank));
    }
    Ok(())
}

/// The indices that a pick means, as a list on the device of `x`; axes that a mask covers are first made one.
fn ids_of(x: &Proxy, (axis, item): PickedAxis<'_>, op: &'static str) -> Result<(Proxy, Proxy)> {
    let device = x.device();
    match item {
        TensorIndexer::IndexSelect(ids) => Ok((x.clone(), ids.clone())),
        TensorIndexer::List(ids) => Ok((x.clone(), Proxy::from_slice(ids, ids.len(), device)?)),
        TensorIndexer::Mask(mask) => {
            let (shape, of_mask) = (x.shape(), mask.shape());
            let covered = shape.dims().get(axis..axis + of_mask.rank()).unwrap_or_default();
            if covered != of_mask.dims() {
                let why = format!("the mask must have the sizes {covered:?} of the axes that it stands for");
                return Err(Error::shapes(op, shape, of_mask, why));
            }
            let count: usize = covered.iter().product();
            let dims = [&shape.dims()[..axis], &[count], &shape.dims()[axis + of_mask.rank()..]].concat();
            let ids = mask.flatten_all()?.ext_nonzero()?.flatten_all()?.to_device(device)?;
            Ok((x.reshape(dims)?, ids))
        }
        _ => argument(op, "index", "an item", "a list of indices or a mask"),
    }
}

/// What items take of an array.
pub(crate) fn sliced(call: Call, x: &Proxy, items: &[TensorIndexer]) -> Result<Proxy> {
    let (mut cut, mut picks) = (Cut::whole(x.shape()), Vec::new());
    call.named(resolve(call.op, items, &mut cut, &mut picks))?;
    if picks.is_empty() {
        return cut.made(call, x);
    }
    composite(call, x, &mut || {
        // The last one first: those before it keep their axes.
        picks.iter().rev().try_fold(cut.made(call, x)?, |view, &pick| {
            let (view, ids) = ids_of(&view, pick, call.op)?;
            view.index_select(&ids, pick.0)
        })
    })
}

/// Writes an array, broadcast, to what items take of another.
pub(crate) fn assign(call: Call, x: &Proxy, items: &[TensorIndexer], src: &Proxy) -> Result<()> {
    let mut write = || {
        let (mut cut, mut picks) = (Cut::whole(x.shape()), Vec::new());
        resolve(call.op, items, &mut cut, &mut picks)?;
        // Checked here, as a view aside says nothing of its array.
        writable(x, call.op)?;
        no_grad(|| {
            let (view, src) = (cut.made(call, &x.aside()?)?, src.aside()?);
            let &[pick] = &picks[..] else {
                if picks.is_empty() {
                    return view.copy_(&src.broadcast_as(view.shape())?);
                }
                return argument(call, "lists and masks", picks.len(), "at most one where something is written");
            };
            let (flat, ids) = ids_of(&view, pick, call.op)?;
            let shape = flat.shape().with_dim(pick.0, ids.dims1()?);
            let mut dims = vec![1; shape.rank()];
            dims[pick.0] = ids.dims1()?;
            let put = flat.scatter(&ids.reshape(dims)?.broadcast_as(shape)?, &src.broadcast_as(shape)?, pick.0)?;
            view.copy_(&put.reshape(view.shape())?)
        })
    };
    in_composite(call.site, &mut write).map_err(|error| error.of(call))
}

/// # Indexing: by items of several kinds
impl Proxy {
    /// What items take of the first axes, as [`s!`](crate::s) writes them; axes without an item stay whole. Indices,
    /// ranges with steps and new axes are a view; a list of indices or a mask copies. With a gradient.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for an index or an end of a range outside its axis; [`Error::Argument`] for more
    /// items than axes, a step of 0, a second ellipsis; [`Error::ShapeMismatch`] of a mask; [`Error::RankTooLarge`],
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn slice(&self, index: impl AsRef<[TensorIndexer]>) -> Result<Proxy> {
        sliced(Call::here("slice"), self, index.as_ref())
    }

    /// What items take, replaced by `src`, which is broadcast to it: in place. Of a list that names an entry twice the
    /// last one wins.
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::slice`] and [`Proxy::copy_`]; [`Error::Argument`] for more than one list or
    /// mask.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, s};
    /// let a = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// a.slice_assign_(s![.., ..;2], &Tensor::new(5f32, &Device::Cpu)?)?;
    /// assert_eq!(a.to_vec2::<f32>()?, [[5., 0., 5.], [5., 0., 5.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn slice_assign_(&self, index: impl AsRef<[TensorIndexer]>, src: &Proxy) -> Result<()> {
        assign(Call::here("slice_assign_"), self, index.as_ref(), src)
    }
}
