//! Operands of a kernel: as the door hands them on, in bytes, and as its code sees them, in elements.

use bytemuck::{Pod, PodCastError, try_cast_slice, try_cast_slice_mut};

use crate::base::{
    dtype::{DType, WithDType},
    layout::Layout,
};

/// An element as kernels see it: any bytes are one. Truth values are seen as bytes.
pub(super) trait Element: WithDType + Pod {}
impl<T: WithDType + Pod> Element for T {}

/// A source as the door hands it on: the bytes of its whole buffer, and which of them are its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Src<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
    pub(super) layout: &'a Layout,
}

impl<'a> Src<'a> {
    #[inline(always)]
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    pub(super) fn layout(&self) -> &'a Layout {
        self.layout
    }
}

/// A destination, as [`Src`].
#[derive(Debug)]
pub(super) struct Dst<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) dtype: DType,
    pub(super) layout: &'a Layout,
}

impl<'a> Dst<'a> {
    #[inline(always)]
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    pub(super) fn layout(&self) -> &'a Layout {
        self.layout
    }
}

/// Whether elements of `dtype` may be opened as those of `as_type`: of the same type, or as the unsigned integer of
/// their size, for kernels that look at their bits. Truth values are opened as bytes alone.
#[inline(always)]
fn opens_as(dtype: DType, as_type: DType) -> bool {
    let as_bits = matches!(as_type, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    dtype == as_type && as_type != DType::Bool || as_bits && as_type.size_in_bytes() == dtype.size_in_bytes()
}

/// No bytes may lie anywhere; others lie as their dtype wants it.
#[cold]
fn misplaced<T>(is_empty: bool, error: PodCastError, none: T) -> T {
    assert!(is_empty, "the buffer of an operand: {error}");
    none
}

/// The shortest line that is worth a loop of its own where it repeats, and how often a shorter one may. Others are
/// copied, many in a row.
const LINE_MIN: usize = 24;
const SHORT_LINES_MAX: usize = 64;

/// A source: the elements of its whole buffer, and where its own lie among them.
#[derive(Debug)]
pub(super) struct In<'a, T> {
    pub(super) data: &'a [T],
    pub(super) layout: &'a Layout,
}

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<'_, T> {}

impl<'a, T: Element> In<'a, T> {
    /// A source as elements of its dtype, or as their bits.
    #[inline(always)]
    pub(super) fn of(Src { bytes, dtype, layout }: Src<'a>) -> Self {
        assert!(opens_as(dtype, T::DTYPE), "operands have the dtype that their kernel was chosen for");
        In { data: try_cast_slice(bytes).unwrap_or_else(|error| misplaced(bytes.is_empty(), error, &[])), layout }
    }
}

impl<'a, T> In<'a, T> {
    /// Its elements, if they follow each other in row-major order.
    #[inline(always)]
    pub(super) fn dense(&self) -> Option<&'a [T]> {
        dense_count(self.layout).map(|count| part(self.data, self.layout.offset(), count))
    }

    /// Its elements, if they follow each other in row-major order; or, if they are a line of those that repeats along
    /// the axes in front, and is worth it, the line.
    pub(super) fn line(&self) -> Option<&'a [T]> {
        let (mut count, mut lines) = (1, 1);
        for (&dim, &stride) in self.layout.dims().iter().zip(self.layout.strides()).rev() {
            match stride {
                _ if dim == 1 => {}
                0 => lines *= dim,
                _ if lines != 1 || stride != count as isize => return None,
                _ => count *= dim,
            }
        }
        let is_worth_it = lines == 1 || count >= LINE_MIN || count > 1 && lines <= SHORT_LINES_MAX;
        // One that repeats no times may lie outside its buffer.
        let count = if lines == 0 { 0 } else { count };
        is_worth_it.then(|| part(self.data, self.layout.offset(), count))
    }

    /// Its elements, of a kernel that says they are contiguous.
    #[inline(always)]
    pub(super) fn all(&self) -> &'a [T] {
        part(self.data, self.layout.offset(), self.layout.shape().elem_count())
    }
}

/// A destination, as [`In`].
#[derive(Debug)]
pub(super) struct Out<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) layout: &'a Layout,
}

impl<'a, T: Element> Out<'a, T> {
    /// A destination as elements of its dtype, or as their bits.
    #[inline(always)]
    pub(super) fn of(Dst { bytes, dtype, layout }: Dst<'a>) -> Self {
        assert!(opens_as(dtype, T::DTYPE), "operands have the dtype that their kernel was chosen for");
        let is_empty = bytes.is_empty();
        let data = try_cast_slice_mut(bytes).unwrap_or_else(|error| misplaced(is_empty, error, &mut []));
        Out { data, layout }
    }
}

impl<'a, T> Out<'a, T> {
    /// Whether its elements follow each other in row-major order.
    #[inline(always)]
    pub(super) fn is_dense(&self) -> bool {
        dense_count(self.layout).is_some()
    }

    /// Its elements, of a kernel that says they are contiguous, or where that was checked.
    #[inline(always)]
    pub(super) fn dense(self) -> &'a mut [T] {
        let count = self.layout.shape().elem_count();
        // The offset of an empty view may lie outside its buffer.
        let start = if count == 0 { 0 } else { self.layout.offset() };
        &mut self.data[start..start + count]
    }
}

#[inline(always)]
fn part<T>(data: &[T], offset: usize, count: usize) -> &[T] {
    let start = if count == 0 { 0 } else { offset };
    &data[start..start + count]
}

/// The number of elements, if they follow each other in row-major order: one pass for both.
#[inline(always)]
fn dense_count(layout: &Layout) -> Option<usize> {
    let mut count = 1;
    for (&dim, &stride) in layout.dims().iter().zip(layout.strides()).rev() {
        if dim != 1 {
            if stride != count as isize {
                return None;
            }
            count *= dim;
        }
    }
    Some(count)
}
