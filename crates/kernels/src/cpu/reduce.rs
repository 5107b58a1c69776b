//! Reductions over any set of axes.
//!
//! Axes are sorted by the source's strides and joined, so that the innermost loop runs over neighbours: if
//! its axis is reduced, over a row in several lanes; if it is kept, rows are added to the destination, which
//! never walks down a column.
//!
//! # Rules
//! - No float sum is one long chain: rows are summed in lanes and halves, and over outer axes the sum of more
//!   than [`CHAIN_MAX`] rows is split in two.
//! - `Max` and `Min` give NaN if any element is.

use std::marker::PhantomData;

use crate::base::{
    layout::Layout,
    shape::{Axes, MAX_RANK},
};
use crate::cpu::{
    number::Number,
    operand::{In, Out},
    strided::{self, StridedIter, sort_axes},
    vector::{Loop, read_ahead, simd},
};
use crate::kernel::ReduceOp;

/// Rows added to the destination one after the other before the sum is split.
const CHAIN_MAX: usize = 512;
/// Elements of a row summed in lanes before the row is split.
const ROW_MAX: usize = 4096;
/// Partial results of a row: several vectors, since one addition waits for the one before.
const LANES: usize = 64;
/// Bytes of a line of the cache.
const LINE: usize = 64;
/// Bytes that are asked for ahead.
const AHEAD: usize = 4096;
/// Partial results of what is left of a row, and of a short one.
const FEW: usize = 4;
/// Bytes of the destination that rows are added to at a time, so that they stay in the first cache.
const TILE_BYTES: usize = 16 << 10;
/// Elements without neighbours copied to the stack at a time.
const STAGE: usize = 256;

/// How two partial results become one.
trait Folding<T: Number> {
    /// The result of nothing.
    const EMPTY: T;
    /// Whether the order matters to the result's accuracy.
    const ROUNDS: bool;
    fn join(a: T, b: T) -> T;
}

struct Sum;
struct Max;
struct Min;
/// As `Max`, without regard to NaN.
struct Top;

impl<T: Number> Folding<T> for Sum {
    const EMPTY: T = T::ZERO;
    const ROUNDS: bool = true;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        a.add(b)
    }
}

impl<T: Number> Folding<T> for Max {
    const EMPTY: T = T::LOWEST;
    const ROUNDS: bool = false;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        a.max_or_nan(b)
    }
}

impl<T: Number> Folding<T> for Top {
    const EMPTY: T = T::LOWEST;
    const ROUNDS: bool = false;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        if b > a { b } else { a }
    }
}

impl<T: Number> Folding<T> for Min {
    const EMPTY: T = T::HIGHEST;
    const ROUNDS: bool = false;
    #[inline(always)]
    fn join(a: T, b: T) -> T {
        a.min_or_nan(b)
    }
}

/// `Mean` of an integer dtype is refused before; here it would be the wrapped sum, divided.
pub(super) fn reduce<T: Number>(op: ReduceOp, src: In<'_, T>, axes: Axes, dst: Out<'_, T>) {
    let dst = dst.dense();
    match op {
        ReduceOp::Sum => fold::<T, Sum>(src, axes, dst),
        ReduceOp::Max => fold::<T, Max>(src, axes, dst),
        ReduceOp::Min => fold::<T, Min>(src, axes, dst),
        ReduceOp::Mean => {
            fold::<T, Sum>(src, axes, dst);
            let count = T::from_count(reduced_count(src.layout, axes));
            simd(dst.len(), || {
                for d in dst.iter_mut() {
                    *d = d.div(count);
                }
            });
        }
    }
}

/// Elements that become one.
fn reduced_count(layout: &Layout, axes: Axes) -> usize {
    layout.dims().iter().enumerate().filter(|&(i, _)| axes.has(i)).map(|(_, &dim)| dim).product()
}

/// The sum of a row: for the kernels that need one on the way.
#[inline]
pub(super) fn sum<T: Number>(row: &[T]) -> T {
    fold_row::<T, Sum>(row)
}

/// The largest element of a row that is a number; the lowest value there is if none is.
#[inline]
pub(super) fn max<T: Number>(row: &[T]) -> T {
    fold_row::<T, Top>(row)
}

/// A source axis. `to` is its stride in the destination, 0 if it is reduced.
#[derive(Clone, Copy, Default)]
struct ReduceAxis {
    len: usize,
    from: isize,
    to: usize,
}

impl ReduceAxis {
    fn is_reduced(&self) -> bool {
        self.to == 0
    }
}

/// The axes longer than 1, slowest first in the source, joined where they follow each other.
#[derive(Clone, Copy)]
struct ReducePlan {
    axes: [ReduceAxis; MAX_RANK],
    rank: usize,
}

impl ReducePlan {
    fn new(layout: &Layout, reduced: Axes) -> Self {
        let rank = layout.dims().iter().filter(|&&len| len != 1).count();
        let mut plan = ReducePlan { axes: [ReduceAxis::default(); MAX_RANK], rank };
        let (mut at, mut to) = (rank, 1);
        for (i, (&len, &from)) in layout.dims().iter().zip(layout.strides()).enumerate().rev() {
            if len != 1 {
                at -= 1;
                plan.axes[at] = ReduceAxis { len, from, to: if reduced.has(i) { 0 } else { to } };
                to *= if reduced.has(i) { 1 } else { len };
            }
        }
        // A repeated axis goes outside: there its rows are used again while they are near.
        let distance = |axis: &ReduceAxis| if axis.from == 0 { usize::MAX } else { axis.from.unsigned_abs() };
        sort_axes(&mut plan.axes[..plan.rank], distance);
        plan.join();
        plan
    }

    fn join(&mut self) {
        let mut kept = 0;
        for i in 1..self.rank {
            // Number by number: they were just written.
            let (slow, fast) = (&self.axes[kept], &self.axes[i]);
            let in_source = slow.from == fast.from * fast.len as isize;
            let in_target = slow.is_reduced() == fast.is_reduced() && slow.to == fast.to * fast.len;
            if in_source && in_target {
                self.axes[kept] = ReduceAxis { len: slow.len * fast.len, ..*fast };
            } else {
                kept += 1;
                if kept < i {
                    self.axes[kept] = self.axes[i];
                }
            }
        }
        self.rank = self.rank.min(kept + 1);
    }

    fn axes(&self) -> &[ReduceAxis] {
        &self.axes[..self.rank]
    }

    /// Results that are joined one after the other in each element of the destination.
    fn chain(&self) -> usize {
        let outer = &self.axes()[..self.rank.saturating_sub(1)];
        outer.iter().filter(|axis| axis.is_reduced()).map(|axis| axis.len).product()
    }

    /// Both halves along the longest reduced axis outside the row, and where the second begins.
    fn halves(&self) -> (ReducePlan, ReducePlan, isize) {
        let outer = 0..self.rank.saturating_sub(1);
        let reduced = outer.filter(|&i| self.axes[i].is_reduced());
        let at = reduced.max_by_key(|&i| self.axes[i].len).unwrap_or(0);
        let ReduceAxis { len, from, .. } = self.axes[at];
        let (mut low, mut high) = (*self, *self);
        low.axes[at].len = len / 2;
        high.axes[at].len = len - len / 2;
        (low, high, (len / 2) as isize * from)
    }
}

fn fold<T: Number, F: Folding<T>>(src: In<'_, T>, axes: Axes, dst: &mut [T]) {
    dst.fill(F::EMPTY);
    if src.layout.shape().elem_count() > 0 {
        fold_into::<T, F>(&ReducePlan::new(src.layout, axes), src.data, src.layout.offset() as isize, dst);
    }
}

/// Joins what the plan reaches, from `at` on, to what `dst` holds.
fn fold_into<T: Number, F: Folding<T>>(plan: &ReducePlan, data: &[T], at: isize, dst: &mut [T]) {
    if F::ROUNDS && T::DTYPE.is_float() && plan.chain() > CHAIN_MAX {
        let (low, high, skip) = plan.halves();
        fold_into::<T, F>(&low, data, at, dst);
        let mut rest = vec![F::EMPTY; dst.len()];
        fold_into::<T, F>(&high, data, at + skip, &mut rest);
        return join_row::<T, F>(dst, &rest);
    }
    let Some((inner, outer)) = plan.axes().split_last() else {
        dst[0] = F::join(dst[0], data[at as usize]);
        return;
    };
    if inner.is_reduced() {
        each(outer, at, 0, &mut |at, to| {
            dst[to] = F::join(dst[to], fold_strided::<T, F>(data, at, inner.from, inner.len));
        });
        return;
    }
    let width = TILE_BYTES / size_of::<T>();
    for tile in (0..inner.len).step_by(width) {
        let part = ReduceAxis { len: width.min(inner.len - tile), ..*inner };
        add_rows::<T, F>(outer, part, data, at + tile as isize * inner.from, &mut dst[tile * inner.to..]);
    }
}

/// Calls `f` with source and destination index for every index of the axes.
fn each(axes: &[ReduceAxis], at: isize, to: usize, f: &mut impl FnMut(isize, usize)) {
    match axes.split_first() {
        None => f(at, to),
        Some((axis, rest)) => {
            for i in 0..axis.len {
                each(rest, at + i as isize * axis.from, to + i * axis.to, f);
            }
        }
    }
}

/// Joins rows of a kept axis to the destination, four at a time where a reduced axis is the next one.
fn add_rows<T: Number, F: Folding<T>>(outer: &[ReduceAxis], row: ReduceAxis, data: &[T], at: isize, dst: &mut [T]) {
    let one = |at: isize, to: usize, dst: &mut [T]| {
        if row.from == 1 && row.to == 1 {
            join_row::<T, F>(&mut dst[to..to + row.len], &data[at as usize..at as usize + row.len]);
        } else {
            for i in 0..row.len {
                let d = &mut dst[to + i * row.to];
                *d = F::join(*d, data[(at + i as isize * row.from) as usize]);
            }
        }
    };
    match outer.split_last() {
        Some((next, rest)) if next.is_reduced() && row.from == 1 && row.to == 1 => each(rest, at, 0, &mut |at, to| {
            let start = |i: usize| at + i as isize * next.from;
            let source = |i: usize| &data[start(i) as usize..start(i) as usize + row.len];
            let d = &mut dst[to..to + row.len];
            let quads = next.len / 4 * 4;
            for i in (0..quads).step_by(4) {
                join_rows::<T, F>(d, [source(i), source(i + 1), source(i + 2), source(i + 3)]);
            }
            (quads..next.len).for_each(|i| join_row::<T, F>(d, source(i)));
        }),
        _ => each(outer, at, 0, &mut |at, to| one(at, to, dst)),
    }
}

#[inline(never)]
fn join_row<T: Number, F: Folding<T>>(dst: &mut [T], row: &[T]) {
    simd(dst.len(), || {
        for (d, &x) in dst.iter_mut().zip(row) {
            *d = F::join(*d, x);
        }
    });
}

#[inline(never)]
fn join_rows<T: Number, F: Folding<T>>(dst: &mut [T], rows: [&[T]; 4]) {
    let [a, b, c, e] = rows;
    simd(dst.len(), || {
        for ((((d, &a), &b), &c), &e) in dst.iter_mut().zip(a).zip(b).zip(c).zip(e) {
            *d = F::join(*d, F::join(F::join(a, b), F::join(c, e)));
        }
    });
}

/// The fold of `len` elements `step` apart.
fn fold_strided<T: Number, F: Folding<T>>(data: &[T], at: isize, step: isize, len: usize) -> T {
    if step == 1 {
        return fold_row::<T, F>(&data[at as usize..at as usize + len]);
    }
    if len > STAGE {
        let half = len / 2;
        let high = fold_strided::<T, F>(data, at + half as isize * step, step, len - half);
        return F::join(fold_strided::<T, F>(data, at, step, half), high);
    }
    let mut stage = [T::ZERO; STAGE];
    strided::gather(data, at, step, &mut stage[..len]);
    fold_row::<T, F>(&stage[..len])
}

/// The fold of a row: in lanes, and in halves if it is long.
fn fold_row<T: Number, F: Folding<T>>(row: &[T]) -> T {
    if row.len() <= ROW_MAX {
        return fold_lanes::<T, F>(row);
    }
    let (low, high) = row.split_at((row.len() / 2).next_multiple_of(LANES));
    F::join(fold_row::<T, F>(low), fold_row::<T, F>(high))
}

#[inline(never)]
fn fold_lanes<T: Number, F: Folding<T>>(row: &[T]) -> T {
    simd(row.len(), InLanes::<T, F> { row, how: PhantomData })
}

/// The fold of a row.
struct InLanes<'a, T, F> {
    row: &'a [T],
    how: PhantomData<F>,
}

impl<T: Number, F: Folding<T>> Loop for InLanes<'_, T, F> {
    type Output = T;

    #[inline(always)]
    fn run(self) -> T {
        let (wide, rest) = self.row.split_at(self.row.len() - self.row.len() % LANES);
        let (narrow, rest) = rest.as_chunks::<FEW>();
        let mut few = [F::EMPTY; FEW];
        if !wide.is_empty() {
            for part in join_all::<T, F>([F::EMPTY; LANES], wide.as_chunks().0).as_chunks::<FEW>().0 {
                join_lanes::<T, F, FEW>(&mut few, part);
            }
        }
        for chunk in narrow {
            join_lanes::<T, F, FEW>(&mut few, chunk);
        }
        for (lane, &x) in few.iter_mut().zip(rest) {
            *lane = F::join(*lane, x);
        }
        let [a, b, c, d] = few;
        F::join(F::join(a, b), F::join(c, d))
    }
}

/// Joins chunks to lanes, each of every `LANES`th element in their order. By value, so that they are registers. What
/// comes later is asked for ahead: what a processor foresees of a row ends with each page.
#[inline(always)]
fn join_all<T: Number, F: Folding<T>>(mut lanes: [T; LANES], chunks: &[[T; LANES]]) -> [T; LANES] {
    for chunk in chunks {
        for line in chunk.chunks(LINE / size_of::<T>()) {
            read_ahead(&line[0], AHEAD);
        }
        join_lanes::<T, F, LANES>(&mut lanes, chunk);
    }
    lanes
}

#[inline(always)]
fn join_lanes<T: Number, F: Folding<T>, const N: usize>(lanes: &mut [T; N], chunk: &[T; N]) {
    for (lane, &x) in lanes.iter_mut().zip(chunk) {
        *lane = F::join(*lane, x);
    }
}

/// The index of the first largest (smallest) element along `axis`; the first NaN wins.
pub(super) fn arg<T: Number>(largest: bool, src: In<'_, T>, axis: usize, dst: Out<'_, u32>) {
    if largest {
        arg_by::<T, Max>(src, axis, dst, |new, best| new > best);
    } else {
        arg_by::<T, Min>(src, axis, dst, |new, best| new < best);
    }
}

fn arg_by<T: Number, F: Folding<T>>(src: In<'_, T>, axis: usize, dst: Out<'_, u32>, better: impl Fn(T, T) -> bool) {
    let (len, step) = match src.layout.dims().get(axis) {
        Some(&len) => (len, src.layout.strides()[axis]),
        None => (1, 1),
    };
    if dst.layout.shape().elem_count() == 0 || len == 0 {
        return;
    }
    let data = src.data;
    let iter = StridedIter::in_order([src.layout], Some(axis));
    let [along] = iter.steps();
    let mut rest = dst.dense();
    iter.rows(&mut |[at]: [isize; 1]| {
        let (row, after) = std::mem::take(&mut rest).split_at_mut(iter.len());
        rest = after;
        if step == 1 {
            for (i, d) in row.iter_mut().enumerate() {
                let start = (at + i as isize * along) as usize;
                *d = position::<T, F>(&data[start..start + len], &better) as u32;
            }
        } else {
            for (i, part) in row.chunks_mut(STAGE).enumerate() {
                let at = at + (i * STAGE) as isize * along;
                arg_columns(data, at, [step, along], len, part, &better);
            }
        }
    });
}

/// The index of the first extreme of a row: of a long one its value first, then where it is.
#[inline]
fn position<T: Number, F: Folding<T>>(row: &[T], better: &impl Fn(T, T) -> bool) -> usize {
    if row.len() < LANES {
        let mut best = (0, row[0]);
        for (i, &x) in row.iter().enumerate().skip(1) {
            best = if better(x, best.1) || (x.is_nan() && !best.1.is_nan()) { (i, x) } else { best };
        }
        return best.0;
    }
    place_of(row, fold_row::<T, F>(row))
}

/// Where the first element is that equals the extreme, or is NaN as it is.
fn place_of<T: Number>(row: &[T], extreme: T) -> usize {
    let is_it = |x: T| x == extreme || (x.is_nan() && extreme.is_nan());
    let has_it = |chunk: &[T]| simd(LANES, || chunk.iter().fold(false, |found, &x| found | is_it(x)));
    let chunk = row.chunks(LANES).position(has_it).unwrap_or(0);
    let inside = row[chunk * LANES..].iter().position(|&x| is_it(x)).unwrap_or(0);
    chunk * LANES + inside
}

/// Extremes of neighbouring columns, row by row. `steps` are those along a column and to the next one.
fn arg_columns<T: Number>(
    data: &[T],
    at: isize,
    steps: [isize; 2],
    len: usize,
    dst: &mut [u32],
    better: &impl Fn(T, T) -> bool,
) {
    let (mut best, mut stage) = ([T::ZERO; STAGE], [T::ZERO; STAGE]);
    let best = &mut best[..dst.len()];
    strided::gather(data, at, steps[1], best);
    dst.fill(0);
    for j in 1..len {
        let row = strided::dense(data, at + j as isize * steps[0], steps[1], dst.len(), &mut stage);
        simd(row.len(), || {
            let (dst, best) = (&mut dst[..row.len()], &mut best[..row.len()]);
            for i in 0..row.len() {
                // Both are written each time, which needs no branch.
                let (old, new) = (best[i], row[i]);
                let wins = better(new, old) | (new.is_nan() & !old.is_nan());
                dst[i] = if wins { j as u32 } else { dst[i] };
                best[i] = if wins { new } else { old };
            }
        });
    }
}
