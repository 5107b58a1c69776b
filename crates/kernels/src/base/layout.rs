//! Where the elements of an array lie in its storage: shape, strides and offset, in elements.

use crate::base::{
    error::{Error, Result},
    shape::{MAX_RANK, Shape, back, forward, joined, replaced},
};

/// Shape, strides and offset of an array in its storage, counted in elements.
///
/// A stride of 0 repeats an element (a broadcast axis); a negative one goes backwards (a flipped axis). The offset is
/// that of the first index, which then is not the lowest place. An empty array's offset means nothing.
//
// In this order: who asks for the shape alone reads one line of the cache (`memory/registry/slots.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Layout {
    shape: Shape,
    strides: [isize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// That of a scalar, at the first element.
    #[doc(hidden)]
    pub const SCALAR: Layout = Layout { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset: 0 };

    /// Row-major, starting at the first element.
    #[inline]
    pub fn contiguous(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let (mut strides, mut step) = ([0isize; MAX_RANK], 1isize);
        // All axes there may be, without a branch: strides that are written one by one are waited for by who copies
        // them.
        for (i, &dim) in shape.all_dims().iter().enumerate().rev() {
            let is_axis = i < shape.rank();
            strides[i] = if is_axis { step } else { 0 };
            step = step.wrapping_mul(if is_axis { dim as isize } else { 1 });
        }
        Layout { shape, strides, offset: 0 }
    }

    /// These strides, with the places counted from the lowest one; and how many places there are. `None` if they cannot
    /// be counted. As many strides as axes.
    #[doc(hidden)]
    pub fn strided(shape: Shape, strides: &[isize]) -> Option<(Self, usize)> {
        let mut layout = Layout { shape, strides: [0; MAX_RANK], offset: 0 };
        layout.strides.get_mut(..shape.rank())?.copy_from_slice(strides);
        if shape.elem_count() == 0 {
            return Some((layout, 0));
        }
        for (&dim, &stride) in shape.dims().iter().zip(strides).filter(|&(_, &stride)| stride < 0) {
            let below = (dim - 1).checked_mul(stride.unsigned_abs())?;
            layout.offset = layout.offset.checked_add(below).filter(|&offset| isize::try_from(offset).is_ok())?;
        }
        let (_, end) = layout.bounds()?;
        Some((layout, end))
    }

    /// The first index of each of the axes behind those of `shape`, which are its first ones.
    #[doc(hidden)]
    pub fn with_lead(mut self, shape: Shape) -> Self {
        self.strides[shape.rank()..].fill(0);
        self.shape = shape;
        self
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Size along each axis.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Elements from one index to the next, for each axis.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.rank().min(MAX_RANK)]
    }

    /// As [`Layout::strides`], under candle's name.
    pub fn stride(&self) -> &[isize] {
        self.strides()
    }

    /// As [`Layout::offset`], under candle's name.
    pub fn start_offset(&self) -> usize {
        self.offset
    }

    /// The first place and one past the last one, if the elements lie one after the other.
    pub fn contiguous_offsets(&self) -> Option<(usize, usize)> {
        self.is_contiguous().then(|| (self.offset, self.offset + self.shape.elem_count()))
    }

    /// Elements before the first one.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the elements lie one after the other in row-major order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&dim, &stride) in self.dims().iter().zip(self.strides()).rev() {
            if dim != 1 {
                if stride != step && self.shape.elem_count() > 0 {
                    return false;
                }
                step = step.wrapping_mul(dim as isize);
            }
        }
        true
    }

    /// Whether the elements lie one after the other with the first axis running fastest.
    pub fn is_fortran_contiguous(&self) -> bool {
        let order: crate::base::shape::Few = (0..self.dims().len()).rev().collect();
        self.permute(&order).is_contiguous()
    }

    /// Whether two indices may lead to the same element. Never false where they do; true for a few layouts in which
    /// they do not, of windows that interleave without touching.
    #[doc(hidden)]
    #[inline]
    pub fn repeats(&self) -> bool {
        !self.is_contiguous() && self.axes_meet()
    }

    fn axes_meet(&self) -> bool {
        if self.shape.elem_count() == 0 {
            return false;
        }
        let mut axes = [(0usize, 0usize); MAX_RANK];
        let mut count = 0;
        for (&dim, &stride) in self.dims().iter().zip(self.strides()).filter(|&(&dim, _)| dim > 1) {
            let (axis, mut at) = ((stride.unsigned_abs(), dim), count);
            // Sorted: they are so few that each walks to its place.
            while at > 0 && axes[at - 1] > axis {
                axes[at] = axes[at - 1];
                at -= 1;
            }
            axes[at] = axis;
            count += 1;
        }
        // Each axis steps over all that the shorter steps reach together.
        let mut reached = 0usize;
        for &(stride, dim) in &axes[..count] {
            if stride <= reached {
                return true;
            }
            reached = reached.saturating_add((dim - 1).saturating_mul(stride));
        }
        false
    }

    /// The elements of storage that it lies in, as the lowest place and one past the highest; `0..0` for an empty
    /// array.
    ///
    /// `None` if a place lies before the storage, or beyond what can be counted.
    #[inline]
    #[doc(hidden)]
    pub fn bounds(&self) -> Option<(usize, usize)> {
        if self.shape.elem_count() == 0 {
            return Some((0, 0));
        }
        let (mut low, mut high) = (0isize, 0isize);
        for (&dim, &stride) in self.dims().iter().zip(self.strides()) {
            let reach = (dim as isize - 1).checked_mul(stride)?;
            let side = if stride < 0 { &mut low } else { &mut high };
            *side = side.checked_add(reach)?;
        }
        Some((self.offset.checked_add_signed(low)?, self.offset.checked_add_signed(high)?.checked_add(1)?))
    }

    /// The same in a storage that lacks this many elements at its beginning, none of which it reaches.
    #[doc(hidden)]
    pub fn without_first(mut self, elements: usize) -> Self {
        self.offset = self.offset.saturating_sub(elements);
        self
    }

    /// Elements of storage reached: one past the highest place, or 0 for an empty array.
    #[doc(hidden)]
    pub fn end(&self) -> usize {
        self.bounds().map_or(usize::MAX, |(_, end)| end)
    }

    /// The first index moved by so many steps along an axis; nothing for an empty array, whose offset means nothing.
    fn advance(&mut self, axis: usize, by: usize) {
        if self.shape.elem_count() > 0 {
            self.offset = self.offset.wrapping_add_signed((by as isize).wrapping_mul(self.strides[axis]));
        }
    }

    /// Axes `a` and `b` exchanged.
    #[doc(hidden)]
    pub fn transpose(mut self, a: usize, b: usize) -> Self {
        let (da, db) = (self.dims()[a], self.dims()[b]);
        self.shape = self.shape.with_dim(a, db).with_dim(b, da);
        self.strides = replaced(&replaced(&self.strides, a, self.strides[b]), b, self.strides[a]);
        self
    }

    /// Axes in the given order, which is a permutation.
    #[doc(hidden)]
    pub fn permute(&self, order: &[usize]) -> Self {
        let mut layout = *self;
        for (to, &from) in order.iter().enumerate() {
            layout.shape = layout.shape.with_dim(to, self.dims()[from]);
            layout.strides = replaced(&layout.strides, to, self.strides[from]);
        }
        layout
    }

    /// Indices `start .. start + len` of one axis.
    ///
    /// # Errors
    /// [`Error::Narrow`] if the range leaves the axis.
    #[doc(hidden)]
    pub fn narrow(mut self, axis: usize, start: usize, len: usize) -> Result<Self> {
        let dim = self.dims()[axis];
        if start.checked_add(len).is_none_or(|end| end > dim) {
            return Err(Error::Narrow { op: "narrow", axis, start, len, dim, site: None });
        }
        self.shape = self.shape.with_dim(axis, len);
        self.advance(axis, start);
        Ok(self)
    }

    /// The `len` indices `start`, `start + step`, .. of one axis. All of them lie on it; a step of 0 is for one index.
    ///
    /// # Errors
    /// [`Error::Narrow`] if an index leaves the axis.
    #[doc(hidden)]
    pub fn stepped(mut self, axis: usize, start: usize, len: usize, step: isize) -> Result<Self> {
        let dim = self.dims()[axis];
        let last = isize::try_from(len.saturating_sub(1)).ok().and_then(|steps| steps.checked_mul(step));
        let last = last.and_then(|by| start.checked_add_signed(by));
        if len > 0 && (start >= dim || last.is_none_or(|last| last >= dim)) {
            return Err(Error::Narrow { op: "narrow_step", axis, start, len, dim, site: None });
        }
        self.shape = self.shape.with_dim(axis, len);
        self.advance(axis, start);
        let by = if len > 1 { step } else { 1 };
        self.strides = replaced(&self.strides, axis, self.strides[axis].wrapping_mul(by));
        Ok(self)
    }

    /// The indices of one axis in reverse order.
    #[doc(hidden)]
    pub fn flip(mut self, axis: usize) -> Self {
        self.advance(axis, self.dims()[axis].saturating_sub(1));
        self.strides = replaced(&self.strides, axis, self.strides[axis].wrapping_neg());
        self
    }

    /// `count` windows of `size` indices of one axis, `step` apart: the axis counts windows, and a new last axis what
    /// is in one. The caller checked that they fit, that neither is 0, and that the rank allows it.
    #[doc(hidden)]
    pub fn windows(&self, axis: usize, count: usize, size: usize, step: usize) -> Self {
        let mut layout = self.unsqueeze(self.shape.rank());
        let last = self.shape.rank();
        layout.shape = layout.shape.with_dim(axis, count).with_dim(last, size);
        layout.strides[last] = self.strides[axis];
        if count > 1 {
            layout.strides[axis] = self.strides[axis].wrapping_mul(step as isize);
        }
        layout
    }

    /// A new axis of size 1 before `axis`. The caller checked that the rank allows it.
    #[doc(hidden)]
    pub fn unsqueeze(&self, axis: usize) -> Self {
        let strides = replaced(&joined(axis, &self.strides, &back(&self.strides, 1)), axis, 1);
        Layout { shape: self.shape.with_axis(axis), strides, offset: self.offset }
    }

    /// The axis removed at index `at`: for `squeeze` (at 0 of size 1) and `get`.
    #[doc(hidden)]
    pub fn select(&self, axis: usize, at: usize) -> Self {
        let mut layout = *self;
        layout.advance(axis, at);
        layout.shape = self.shape.without(axis);
        layout.strides = joined(axis, &self.strides, &forward(&self.strides));
        layout
    }

    /// Seen as `shape` by repeating axes of size 1 and adding leading ones.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`].
    #[doc(hidden)]
    pub fn broadcast_to(&self, shape: &Shape, op: &'static str) -> Result<Self> {
        let mut layout = Layout::SCALAR;
        if self.broadcast_into(shape, &mut layout) { Ok(layout) } else { Err(self.apart(shape, op)) }
    }

    /// As [`Layout::broadcast_to`], into a place of the caller's. `false` if it cannot be.
    #[doc(hidden)]
    pub fn broadcast_into(&self, shape: &Shape, layout: &mut Layout) -> bool {
        let (mut dims, mut strides) = (*self.shape.all_dims(), self.strides);
        (self.shape.rank()..shape.rank()).for_each(|_| {
            dims = back(&dims, 1);
            strides = back(&strides, 0);
        });
        let mut fits = self.shape.rank() <= shape.rank();
        for (i, &target) in shape.all_dims().iter().enumerate() {
            fits &= dims[i] == target || dims[i] == 1;
            strides[i] = if dims[i] == target { strides[i] } else { 0 };
        }
        *layout = Layout { shape: *shape, strides, offset: self.offset };
        fits
    }

    #[cold]
    #[inline(never)]
    fn apart(&self, shape: &Shape, op: &'static str) -> Error {
        let Some(lead) = shape.rank().checked_sub(self.shape.rank()) else {
            return Error::shapes(op, &self.shape, shape, "the target has fewer axes");
        };
        let mut sizes = self.dims().iter().zip(&shape.dims()[lead..]).enumerate();
        let found = sizes.find(|(_, (dim, target))| dim != target && **dim != 1);
        let why = found.map_or_else(String::new, |(i, (dim, target))| {
            format!("axis {i} of size {dim} cannot be repeated to {target}")
        });
        Error::shapes(op, &self.shape, shape, why)
    }

    /// The same elements in row-major order seen as another shape, if strides can express it.
    #[doc(hidden)]
    pub fn reshape(&self, shape: &Shape) -> Option<Self> {
        let mut next = Layout::contiguous(*shape);
        next.offset = self.offset;
        if self.is_contiguous() {
            return Some(next);
        }
        // Both shapes are walked from the right in blocks of equal product; inside a block the old axes
        // must follow each other without a gap. What comes after a block may be further than can be counted; it is
        // no axis's stride.
        let (mut i, mut j) = (self.shape.rank(), shape.rank());
        while i > 0 {
            let (mut old, mut new) = (self.dims()[i - 1], 1);
            let mut step = self.strides[i - 1];
            i -= 1;
            while j > 0 && new < old {
                j -= 1;
                new *= shape.dims()[j];
                next.strides[j] = step;
                step = step.wrapping_mul(shape.dims()[j] as isize);
            }
            while new != old {
                if i == 0 || new < old || self.strides[i - 1] != self.strides[i] * self.dims()[i] as isize {
                    return None;
                }
                old *= self.dims()[i - 1];
                i -= 1;
                while j > 0 && new < old {
                    j -= 1;
                    new *= shape.dims()[j];
                    next.strides[j] = step;
                    step = step.wrapping_mul(shape.dims()[j] as isize);
                }
            }
        }
        Some(next)
    }
}
