//! Picking and adding by indices along one axis.
//!
//! All indices are checked before anything is written: an operation in place either happens or leaves its
//! destination as it was. Where the axis is not the last one, whole rows move.

use std::cell::Cell;

use crate::base::{
    dtype::WithDType,
    error::{Error, Result},
    heap,
    layout::Layout,
};
use crate::cpu::{
    number::{IndexElement, Number},
    operand::{In, Out},
    strided::StridedIter,
    vector::simd,
};

/// Indices of an axis of size `dim`, and the one that names no place; or the first other one as an error.
pub(super) fn check<I: IndexElement>(op: &'static str, ids: In<'_, I>, dim: usize) -> Result<()> {
    let mut outside = None;
    StridedIter::in_order([ids.layout], None).elements(|[at]| {
        let id = ids.data[at].convert();
        if outside.is_none() && id != I::NOWHERE && !usize::try_from(id).is_ok_and(|id| id < dim) {
            outside = Some(id);
        }
    });
    match outside {
        Some(index) => Err(Error::index_out_of_range(op, index, dim)),
        None => Ok(()),
    }
}

/// Indices of the longest list whose memory a thread keeps for the next one.
const KEPT_MAX: usize = 1 << 16;

thread_local! {
    static KEPT: Cell<Vec<usize>> = const { Cell::new(Vec::new()) };
}

/// A list of indices.
pub(super) struct IndexList(Vec<usize>);

impl std::ops::Deref for IndexList {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl Drop for IndexList {
    fn drop(&mut self) {
        if self.0.capacity() <= KEPT_MAX {
            self.0.clear();
            // A thread that is ending keeps nothing.
            let _ = KEPT.try_with(|kept| kept.set(std::mem::take(&mut self.0)));
        }
    }
}

/// A list of indices, checked.
pub(super) fn list<I: IndexElement>(op: &'static str, ids: In<'_, I>, dim: usize) -> Result<IndexList> {
    let mut list = IndexList(KEPT.try_with(Cell::take).unwrap_or_default());
    // Of a list that repeats there may be more than memory, and more than anyone could look at.
    heap::make_room(op, &mut list.0, ids.layout.shape().elem_count())?;
    check(op, ids, dim)?;
    StridedIter::in_order([ids.layout], None).elements(|[at]| list.0.push(ids.data[at].convert() as usize));
    Ok(list)
}

/// `dst[.., i, ..] = src[.., ids[i], ..]`, and 0 for an index outside.
pub(super) fn select<T: WithDType>(src: In<'_, T>, ids: &[usize], axis: usize, dst: Out<'_, T>) {
    let Out { data, layout } = dst;
    let (sd, ss, dim) = (layout.strides()[axis], src.layout.strides()[axis], src.layout.dims()[axis]);
    let iter = StridedIter::in_order([layout, src.layout], Some(axis));
    let len = iter.len();
    if iter.steps() != [1, 1] {
        iter.elements(|[to, from]| {
            for (i, &id) in ids.iter().enumerate() {
                data[shifted(to, i, sd)] = if id < dim { src.data[shifted(from, id, ss)] } else { T::default() };
            }
        });
        return;
    }
    for (i, &id) in ids.iter().enumerate() {
        iter.rows(&mut |[to, from]: [isize; 2]| {
            let to = shifted(to as usize, i, sd);
            if id < dim {
                let from = shifted(from as usize, id, ss);
                data[to..to + len].copy_from_slice(&src.data[from..from + len]);
            } else {
                data[to..to + len].fill(T::default());
            }
        });
    }
}

/// `dst[.., ids[i], ..] += src[.., i, ..]`, in order of `i`; nothing for an index outside.
pub(super) fn add<T: Number>(dst: Out<'_, T>, ids: &[usize], src: In<'_, T>, axis: usize) {
    let Out { data, layout } = dst;
    let (sd, ss, dim) = (layout.strides()[axis], src.layout.strides()[axis], layout.dims()[axis]);
    let iter = StridedIter::in_order([layout, src.layout], Some(axis));
    let len = iter.len();
    let inside = || ids.iter().enumerate().filter(|&(_, &id)| id < dim);
    if iter.steps() != [1, 1] {
        iter.elements(|[to, from]| {
            for (i, &id) in inside() {
                let to = &mut data[shifted(to, id, sd)];
                *to = to.add(src.data[shifted(from, i, ss)]);
            }
        });
        return;
    }
    for (i, &id) in inside() {
        iter.rows(&mut |[to, from]: [isize; 2]| {
            let (to, from) = (shifted(to as usize, id, sd), shifted(from as usize, i, ss));
            add_row(&mut data[to..to + len], &src.data[from..from + len]);
        });
    }
}

#[inline(never)]
fn add_row<T: Number>(to: &mut [T], from: &[T]) {
    simd(to.len(), || to.iter_mut().zip(from).for_each(|(to, &from)| *to = to.add(from)));
}

/// The place `index` steps after `at`.
#[inline(always)]
fn shifted(at: usize, index: usize, step: isize) -> usize {
    (at as isize + index as isize * step) as usize
}

/// `whole` as far as `part` reaches, with the axis `axis` standing still at its beginning.
fn without_axis(whole: &Layout, part: &Layout, axis: usize) -> Result<Layout> {
    let mut layout = *whole;
    for (i, &len) in part.dims().iter().enumerate().filter(|&(i, _)| i != axis) {
        layout = layout.narrow(i, 0, len)?;
    }
    // An axis without elements has no first one; nothing is read from it, as each index is padding.
    layout.select(axis, 0).unsqueeze(axis).broadcast_to(part.shape(), "gather")
}

/// `dst[i][j] = src[i][ids[i][j]]` along `axis`, and 0 for an index outside. The indices were checked.
pub(super) fn gather<T: WithDType, I: IndexElement>(
    src: In<'_, T>,
    ids: In<'_, I>,
    axis: usize,
    dst: Out<'_, T>,
) -> Result<()> {
    let Out { data, layout } = dst;
    if layout.shape().elem_count() == 0 {
        return Ok(());
    }
    let (step, dim) = (src.layout.strides()[axis], src.layout.dims()[axis]);
    let rest = without_axis(src.layout, ids.layout, axis)?;
    StridedIter::in_order([layout, ids.layout, &rest], None).elements(|[to, id, from]| {
        let id = ids.data[id].convert() as usize;
        data[to] = if id < dim { src.data[shifted(from, id, step)] } else { T::default() };
    });
    Ok(())
}

/// `dst[i][ids[i][j]] += src[i][j]` along `axis`; nothing for an index outside. The indices were checked.
pub(super) fn scatter_add<T: Number, I: IndexElement>(
    dst: Out<'_, T>,
    ids: In<'_, I>,
    src: In<'_, T>,
    axis: usize,
) -> Result<()> {
    let Out { data, layout } = dst;
    if src.layout.shape().elem_count() == 0 {
        return Ok(());
    }
    let (step, dim) = (layout.strides()[axis], layout.dims()[axis]);
    let rest = without_axis(layout, ids.layout, axis)?;
    StridedIter::in_order([src.layout, ids.layout, &rest], None).elements(|[from, id, to]| {
        let id = ids.data[id].convert() as usize;
        if id < dim {
            let to = &mut data[shifted(to, id, step)];
            *to = to.add(src.data[from]);
        }
    });
    Ok(())
}
