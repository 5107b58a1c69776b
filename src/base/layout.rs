//! Where the elements of an array lie in its storage: shape, strides and offset, in elements.

use crate::base::{
    error::{Error, Result},
    shape::{MAX_RANK, Shape},
};

/// Shape, strides and offset of an array in its storage, counted in elements.
///
/// A stride of 0 repeats an element (a broadcast axis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: [isize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// Row-major, starting at the first element.
    #[inline]
    pub fn contiguous(shape: Shape) -> Self {
        let mut strides = [0isize; MAX_RANK];
        let mut step = 1isize;
        for (i, &dim) in shape.dims().iter().enumerate().rev() {
            strides[i] = step;
            step = step.wrapping_mul(dim as isize);
        }
        Layout { shape, strides, offset: 0 }
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
        &self.strides[..self.shape.rank()]
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

    /// Whether two indices can lead to the same element: some axis longer than 1 has stride 0.
    pub(crate) fn repeats(&self) -> bool {
        self.dims().iter().zip(self.strides()).any(|(&dim, &stride)| dim > 1 && stride == 0)
    }

    /// Elements of storage reached: one past the highest index, or 0 for an empty array.
    pub(crate) fn end(&self) -> usize {
        if self.shape.elem_count() == 0 {
            return 0;
        }
        let span: isize = self.dims().iter().zip(self.strides()).map(|(&dim, &s)| (dim as isize - 1) * s.max(0)).sum();
        self.offset + span as usize + 1
    }

    /// Axes `a` and `b` exchanged.
    pub(crate) fn transpose(mut self, a: usize, b: usize) -> Self {
        let (da, db) = (self.dims()[a], self.dims()[b]);
        self.shape = self.shape.with_dim(a, db).with_dim(b, da);
        self.strides.swap(a, b);
        self
    }

    /// Axes in the given order, which is a permutation.
    pub(crate) fn permute(&self, order: &[usize]) -> Self {
        let mut layout = *self;
        for (to, &from) in order.iter().enumerate() {
            layout.shape = layout.shape.with_dim(to, self.dims()[from]);
            layout.strides[to] = self.strides[from];
        }
        layout
    }

    /// Indices `start .. start + len` of one axis.
    ///
    /// # Errors
    /// [`Error::Narrow`] if the range leaves the axis.
    pub(crate) fn narrow(mut self, axis: usize, start: usize, len: usize) -> Result<Self> {
        let dim = self.dims()[axis];
        if start.checked_add(len).is_none_or(|end| end > dim) {
            return Err(Error::Narrow { axis, start, len, dim });
        }
        if len > 0 {
            self.offset += start * self.strides[axis] as usize;
        }
        self.shape = self.shape.with_dim(axis, len);
        Ok(self)
    }

    /// A new axis of size 1 before `axis`. The caller checked that the rank allows it.
    pub(crate) fn unsqueeze(&self, axis: usize) -> Self {
        let mut dims = [0; MAX_RANK];
        let mut strides = [0; MAX_RANK];
        let rank = self.shape.rank();
        for i in 0..=rank {
            let (dim, stride) = match i.cmp(&axis) {
                std::cmp::Ordering::Less => (self.dims()[i], self.strides[i]),
                std::cmp::Ordering::Equal => (1, 1),
                std::cmp::Ordering::Greater => (self.dims()[i - 1], self.strides[i - 1]),
            };
            dims[i] = dim;
            strides[i] = stride;
        }
        Layout { shape: Shape::from_dims(&dims[..=rank]), strides, offset: self.offset }
    }

    /// The axis removed at index `at`: for `squeeze` (at 0 of size 1) and `get`.
    pub(crate) fn select(&self, axis: usize, at: usize) -> Self {
        let mut layout = *self;
        layout.offset += at * self.strides[axis] as usize;
        layout.shape = self.shape.without(axis);
        for i in axis..layout.shape.rank() {
            layout.strides[i] = self.strides[i + 1];
        }
        layout
    }

    /// Seen as `shape` by repeating axes of size 1 and adding leading ones.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`].
    pub(crate) fn broadcast_to(&self, shape: &Shape, op: &'static str) -> Result<Self> {
        let lead = match shape.rank().checked_sub(self.shape.rank()) {
            Some(lead) => lead,
            None => return Err(Error::shapes(op, &self.shape, shape, "the target has fewer axes".into())),
        };
        let mut strides = [0; MAX_RANK];
        for (i, (&dim, &stride)) in self.dims().iter().zip(self.strides()).enumerate() {
            let target = shape.dims()[lead + i];
            if dim != target && dim != 1 {
                let why = format!("axis {i} of size {dim} cannot be repeated to {target}");
                return Err(Error::shapes(op, &self.shape, shape, why));
            }
            strides[lead + i] = if dim == target { stride } else { 0 };
        }
        Ok(Layout { shape: *shape, strides, offset: self.offset })
    }

    /// The same elements in row-major order seen as another shape, if strides can express it.
    pub(crate) fn reshape(&self, shape: &Shape) -> Option<Self> {
        let mut next = Layout::contiguous(*shape);
        next.offset = self.offset;
        if self.is_contiguous() {
            return Some(next);
        }
        // Both shapes are walked from the right in blocks of equal product; inside a block the old axes
        // must follow each other without a gap.
        let (mut i, mut j) = (self.shape.rank(), shape.rank());
        while i > 0 {
            let (mut old, mut new) = (self.dims()[i - 1], 1);
            let mut step = self.strides[i - 1];
            i -= 1;
            while j > 0 && new < old {
                j -= 1;
                new *= shape.dims()[j];
                next.strides[j] = step;
                step *= shape.dims()[j] as isize;
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
                    step *= shape.dims()[j] as isize;
                }
            }
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn l(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims))
    }

    fn offsets(layout: &Layout) -> Vec<isize> {
        let mut all = vec![layout.offset() as isize];
        for (&dim, &stride) in layout.dims().iter().zip(layout.strides()) {
            all = all.iter().flat_map(|o| (0..dim as isize).map(move |i| o + i * stride)).collect();
        }
        all
    }

    #[test]
    fn reshape_of_views_keeps_the_order_or_gives_up() {
        let shapes: [&[usize]; 9] =
            [&[24], &[2, 12], &[4, 6], &[2, 3, 4], &[4, 3, 2], &[1, 24, 1], &[6, 1, 4], &[2, 2, 2, 3], &[3, 8]];
        let base = l(&[2, 3, 4]);
        let wide = l(&[4, 5, 6]).narrow(0, 1, 2).and_then(|v| v.narrow(1, 1, 3)).and_then(|v| v.narrow(2, 0, 4));
        let views = [base, base.transpose(0, 1), base.transpose(1, 2), base.transpose(0, 2), wide.expect("inside")];
        for view in views {
            for dims in shapes {
                if let Some(seen) = view.reshape(&Shape::from(dims)) {
                    assert_eq!(offsets(&seen), offsets(&view), "{view:?} as {dims:?}");
                }
            }
        }
        assert!(base.transpose(0, 1).reshape(&Shape::from(24)).is_none());
        assert!(l(&[4, 6]).narrow(0, 1, 2).expect("rows").reshape(&Shape::from(12)).is_some());
    }

    #[test]
    fn narrow_checks_its_range_without_overflow() {
        assert!(l(&[3]).narrow(0, 1, usize::MAX).is_err());
        assert_eq!(l(&[3, 4]).narrow(1, 1, 2).expect("columns").offset(), 1);
    }

    #[test]
    fn an_axis_of_size_one_does_not_break_contiguity() {
        assert!(l(&[1, 4]).transpose(0, 1).is_contiguous());
        assert!(!l(&[2, 4]).transpose(0, 1).is_contiguous());
    }
}
