//! Shapes changed by views and copies: splitting, repeating, moving axes, padding, turning round.

use crate::base::{
    call::{Asked, Call},
    error::Result,
    shape::{Dim, Few, MAX_RANK, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    check,
    compose::{argument, composite, shape_of, wrong_shape},
    exec::all_or_none,
};

/// Consecutive pieces of an axis, each a view that the array's owner owns.
fn pieces(call: Call, x: &Proxy, axis: usize, sizes: impl Iterator<Item = usize>) -> Result<Vec<Proxy>> {
    let mut start = 0;
    let piece = |size: usize| {
        let from = start;
        start += size;
        composite(call, x, &mut || x.narrow(axis, from, size))
    };
    all_or_none(call, sizes.map(piece))
}

/// `count` copies of an array, or of each of its entries, one after the other along an axis: one pass.
fn repeated(x: &Proxy, axis: usize, count: usize, each: bool, op: &'static str) -> Result<Proxy> {
    let (shape, elem_bytes) = (*x.shape(), x.dtype().size_in_bytes());
    let axis = axis.to_index(&shape, op)?;
    let to = shape.with_dim(axis, shape.dims()[axis].saturating_mul(count));
    to.check(op, elem_bytes)?;
    let (lead, rest) = shape.dims().split_at(axis + usize::from(each));
    let (lead, rest): (usize, usize) = (lead.iter().product(), rest.iter().product());
    let expanded = shape_of(op, &[lead, count, rest], elem_bytes)?;
    x.reshape((lead, 1, rest))?.broadcast_as(expanded)?.reshape(to)?.contiguous()
}

/// # Shape: splitting, repeating, rolling
impl Proxy {
    /// The sizes along four axes.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let images = Tensor::zeros((8, 3, 32, 40), DType::U8, &Device::Cpu)?;
    /// let (_, channels, height, width) = images.dims4()?;
    /// assert_eq!((channels, height, width), (3, 32, 40));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::dims1`].
    #[track_caller]
    pub fn dims4(&self) -> Result<(usize, usize, usize, usize)> {
        self.shape().dims4()
    }

    /// The sizes along five axes.
    ///
    /// # Errors
    /// As [`Proxy::dims1`].
    #[track_caller]
    pub fn dims5(&self) -> Result<(usize, usize, usize, usize, usize)> {
        self.shape().dims5()
    }

    /// Alias of [`Proxy::elem_count`]: PyTorch's name.
    pub fn numel(&self) -> usize {
        self.elem_count()
    }

    /// The first axes up to and with `end` merged into one.
    ///
    /// # Errors
    /// As [`Proxy::flatten`].
    #[track_caller]
    pub fn flatten_to<A: Dim>(&self, end: A) -> Result<Proxy> {
        self.flatten(0, end)
    }

    /// The array repeated along new leading axes: shape `[left.., own..]`, without a copy.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let row = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(row.broadcast_left(3)?.to_vec2::<f32>()?, [[1., 2.], [1., 2.], [1., 2.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::broadcast_as`]; [`Error::RankTooLarge`](crate::Error::RankTooLarge).
    #[track_caller]
    pub fn broadcast_left<S: Into<Shape>>(&self, left: S) -> Result<Proxy> {
        let left = left.into();
        composite(Call::here("broadcast_left"), self, &mut || {
            left.check("broadcast_left", 1)?;
            let own = self.dims();
            let rank = left.rank() + own.len();
            if rank > MAX_RANK {
                return Err(crate::Error::rank_too_large("broadcast_left", rank));
            }
            self.broadcast_as(left.dims().iter().chain(own).copied().collect::<Few>())
        })
    }

    #[track_caller]
    pub(crate) fn ext_movedim<A: Dim, B: Dim>(&self, from: A, to: B) -> Result<Proxy> {
        let op = "movedim";
        composite(Call::here(op), self, &mut || {
            let shape = *self.shape();
            let (from, to) = (Asked::from(op).axis(from, &shape)?, Asked::from(op).axis(to, &shape)?);
            let others = (0..shape.rank()).filter(|&axis| axis != from);
            let order = others.clone().take(to).chain([from]).chain(others.skip(to));
            self.permute(order.collect::<Few>())
        })
    }

    /// The array repeated `counts[i]` times along axis `i`. More counts than axes add leading axes; fewer leave the
    /// last axes as they are. The same array if every count is 1.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`](crate::Error::RankTooLarge), [`Error::SizeOverflow`](crate::Error::SizeOverflow),
    /// [`Error::StaleArray`](crate::Error::StaleArray), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(a.repeat((2, 2))?.to_vec2::<f32>()?, [[1., 2., 1., 2.], [1., 2., 1., 2.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat<S: Into<Shape>>(&self, counts: S) -> Result<Proxy> {
        let (op, counts) = ("repeat", counts.into());
        composite(Call::here(op), self, &mut || {
            counts.check(op, 1)?;
            let own = self.dims();
            let mut out = match counts.rank().checked_sub(own.len()) {
                Some(missing) if missing > 0 => {
                    self.reshape((0..missing).map(|_| 1).chain(own.iter().copied()).collect::<Few>())?
                }
                _ => check::same(op, self)?,
            };
            for (axis, &count) in counts.dims().iter().enumerate().filter(|&(_, &count)| count != 1) {
                out = repeated(&out, axis, count, false, op)?;
            }
            Ok(out)
        })
    }

    #[track_caller]
    pub(crate) fn ext_repeat_interleave<A: Dim>(&self, count: usize, dim: A) -> Result<Proxy> {
        let op = "repeat_interleave";
        composite(Call::here(op), self, &mut || {
            repeated(self, Asked::from(op).axis(dim, self.shape())?, count, true, op)
        })
    }

    #[track_caller]
    pub(crate) fn ext_tile<S: Into<Shape>>(&self, counts: S) -> Result<Proxy> {
        self.repeat(counts)
    }

    /// An axis cut into `count` views whose sizes differ by at most one, larger ones first; an axis with fewer indices
    /// gives one view for each.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0u32, 5, &Device::Cpu)?;
    /// let parts = x.chunk(2, 0)?;
    /// assert_eq!((parts[0].to_vec1::<u32>()?, parts[1].to_vec1::<u32>()?), (vec![0, 1, 2], vec![3, 4]));
    /// assert_eq!(x.chunk(7, 0)?.len(), 5);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for a count of 0;
    /// [`Error::DimOutOfRange`](crate::Error::DimOutOfRange); [`Error::StaleArray`](crate::Error::StaleArray);
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) for the list.
    #[track_caller]
    pub fn chunk<A: Dim>(&self, count: usize, dim: A) -> Result<Vec<Proxy>> {
        let call = Call::here("chunk");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        if count == 0 {
            return argument(call, "count", count, "at least 1");
        }
        let size = shape.dims()[axis];
        // An axis with fewer indices has pieces of one.
        let count = count.min(size);
        pieces(call, self, axis, (0..count).map(|i| size / count + usize::from(i < size % count)))
    }

    #[track_caller]
    pub(crate) fn ext_split<A: Dim>(&self, size: usize, dim: A) -> Result<Vec<Proxy>> {
        let call = Call::here("split");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        if size == 0 {
            return argument(call, "size", size, "at least 1");
        }
        let all = shape.dims()[axis];
        let count = all.div_ceil(size).max(1);
        pieces(call, self, axis, (0..count).map(|i| size.min(all - i * size)))
    }

    #[track_caller]
    pub(crate) fn ext_split_sizes<A: Dim>(&self, sizes: &[usize], dim: A) -> Result<Vec<Proxy>> {
        let call = Call::here("split_sizes");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if total != Some(shape.dims()[axis]) {
            return argument(call, "sizes", format!("{sizes:?}"), "as many indices together as the axis has");
        }
        pieces(call, self, axis, sizes.iter().copied())
    }

    /// The indices of an axis moved on by `shift`, those that leave it coming in at the other end: a copy, or the same
    /// array if nothing moves. With a gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0u32, 4, &Device::Cpu)?;
    /// assert_eq!(x.roll(1, 0)?.to_vec1::<u32>()?, [3, 0, 1, 2]);
    /// assert_eq!(x.roll(-1, 0)?.to_vec1::<u32>()?, [1, 2, 3, 0]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`](crate::Error::DimOutOfRange); [`Error::StaleArray`](crate::Error::StaleArray),
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[track_caller]
    pub fn roll<A: Dim>(&self, shift: i32, dim: A) -> Result<Proxy> {
        let op = "roll";
        composite(Call::here(op), self, &mut || {
            let shape = *self.shape();
            let axis = Asked::from(op).axis(dim, &shape)?;
            let size = shape.dims()[axis];
            let shift = i64::from(shift).checked_rem_euclid(size as i64).unwrap_or(0) as usize;
            if shift == 0 {
                return check::same(op, self);
            }
            Proxy::cat(&[self.narrow(axis, size - shift, shift)?, self.narrow(axis, 0, size - shift)?], axis)
        })
    }

    /// An axis with `left` zeros before it and `right` after it: a copy, or the same array if both are 0. With a
    /// gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
    /// assert_eq!(x.pad_with_zeros(1, 1, 2)?.to_vec2::<f32>()?, [[0., 1., 2., 0., 0.]]);
    /// assert_eq!(x.pad_with_zeros(0, 1, 0)?.to_vec2::<f32>()?, [[0., 0.], [1., 2.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`](crate::Error::DimOutOfRange), [`Error::SizeOverflow`](crate::Error::SizeOverflow),
    /// [`Error::StaleArray`](crate::Error::StaleArray), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[track_caller]
    pub fn pad_with_zeros<A: Dim>(&self, dim: A, left: usize, right: usize) -> Result<Proxy> {
        let op = "pad_with_zeros";
        composite(Call::here(op), self, &mut || {
            let (axis, shape) = self.padded(dim, left, right, op)?;
            let zeros = |size: usize| Proxy::zeros(shape.with_dim(axis, size), self.dtype(), self.device());
            match (left, right) {
                (0, 0) => check::same(op, self),
                (0, _) => Proxy::cat(&[self, &zeros(right)?], axis),
                (_, 0) => Proxy::cat(&[&zeros(left)?, self], axis),
                _ => Proxy::cat(&[&zeros(left)?, self, &zeros(right)?], axis),
            }
        })
    }

    /// As [`Proxy::pad_with_zeros`], with the first and the last entry of the axis repeated instead of zeros.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(x.pad_with_same(0, 1, 2)?.to_vec1::<f32>()?, [1., 1., 2., 2., 2.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::pad_with_zeros`]; [`Error::Shape`](crate::Error::Shape) for an array without elements.
    #[track_caller]
    pub fn pad_with_same<A: Dim>(&self, dim: A, left: usize, right: usize) -> Result<Proxy> {
        let op = "pad_with_same";
        composite(Call::here(op), self, &mut || {
            let (axis, shape) = self.padded(dim, left, right, op)?;
            if (left, right) == (0, 0) {
                return check::same(op, self);
            }
            if shape.elem_count() == 0 {
                return wrong_shape(op, self, "at least one element");
            }
            let edge = |at: usize, count: usize| self.narrow(axis, at, 1)?.broadcast_as(shape.with_dim(axis, count));
            Proxy::cat(&[&edge(0, left)?, self, &edge(shape.dims()[axis] - 1, right)?], axis)
        })
    }

    /// Checks that the padded shape can be; gives the axis, and the shape that was looked at.
    fn padded<A: Dim>(&self, dim: A, left: usize, right: usize, op: &'static str) -> Result<(usize, Shape)> {
        let shape = *self.shape();
        let axis = Asked::from(op).axis(dim, &shape)?;
        let elem_bytes = self.dtype().size_in_bytes();
        let size = shape.dims()[axis].saturating_add(left).saturating_add(right);
        shape.with_dim(axis, size).check(op, elem_bytes)?;
        Ok((axis, shape))
    }
}
