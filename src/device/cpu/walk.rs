//! Walking several operands of one shape together, row by row.
//!
//! Axes are put in the order of the first operand's strides and joined where every operand allows it, so
//! that what is left is the fewest, longest rows. A row is handed on as slices: an operand whose elements
//! do not follow each other is copied to a buffer on the stack first, so each operation has one loop.

use crate::base::{layout::Layout, shape::MAX_RANK};
use crate::device::cpu::{In, Out};

/// Elements staged at a time: with three operands of 8 bytes still well inside the first cache.
const STAGE: usize = 256;
/// Side of the squares in which a transposed copy goes: a cache line of f32.
const TILE: usize = 16;

/// One axis: its length, and the stride of each operand.
#[derive(Clone, Copy)]
struct Axis<const N: usize> {
    len: usize,
    steps: [isize; N],
}

/// Axes of `N` operands. The innermost one is the row.
pub(super) struct Walk<const N: usize> {
    axes: [Axis<N>; MAX_RANK],
    /// Axes outside the row.
    outer: usize,
    row: Axis<N>,
    starts: [isize; N],
}

impl<const N: usize> Walk<N> {
    /// Over all indices of layouts of one shape, in the order that suits the first one.
    pub(super) fn new(layouts: [&Layout; N]) -> Self {
        let mut walk = Walk::unsorted(layouts, None);
        walk.axes[..walk.outer].sort_by_key(|axis| std::cmp::Reverse(axis.steps[0].unsigned_abs()));
        walk.join();
        walk
    }

    /// Over all indices but those of the axis `skip`, in row-major order.
    pub(super) fn in_order(layouts: [&Layout; N], skip: Option<usize>) -> Self {
        let mut walk = Walk::unsorted(layouts, skip);
        walk.join();
        walk
    }

    /// Every axis longer than 1 as an outer one. Sizes are those of the first layout; another layout that has
    /// fewer or other sizes than that is the caller's to rule out.
    fn unsorted(layouts: [&Layout; N], skip: Option<usize>) -> Self {
        let none = Axis { len: 1, steps: [0; N] };
        let mut axes = [none; MAX_RANK];
        let mut outer = 0;
        for (i, &len) in layouts[0].dims().iter().enumerate() {
            if len != 1 && Some(i) != skip {
                axes[outer] = Axis { len, steps: layouts.map(|layout| layout.strides()[i]) };
                outer += 1;
            }
        }
        Walk { axes, outer, row: none, starts: layouts.map(|layout| layout.offset() as isize) }
    }

    /// Joins axes that follow each other without a gap in every operand; the last one becomes the row.
    fn join(&mut self) {
        let mut kept = 0;
        for i in 1..self.outer {
            let (slow, fast) = (self.axes[kept], self.axes[i]);
            let follows = |n: usize| slow.steps[n] == fast.steps[n] * fast.len as isize;
            if (0..N).all(follows) {
                self.axes[kept] = Axis { len: slow.len * fast.len, steps: fast.steps };
            } else {
                kept += 1;
                self.axes[kept] = fast;
            }
        }
        if self.outer > 0 {
            self.row = self.axes[kept];
            self.outer = kept;
        }
    }

    /// Elements of a row.
    pub(super) fn len(&self) -> usize {
        self.row.len
    }

    /// Strides along a row.
    pub(super) fn steps(&self) -> [isize; N] {
        self.row.steps
    }

    /// Calls `f` with where each row begins in each operand.
    #[inline]
    pub(super) fn rows(&self, mut f: impl FnMut([isize; N])) {
        let axes = &self.axes[..self.outer];
        if self.row.len == 0 || axes.iter().any(|axis| axis.len == 0) {
            return;
        }
        let mut at = self.starts;
        let mut index = [0usize; MAX_RANK];
        loop {
            f(at);
            let mut next = axes.len();
            loop {
                if next == 0 {
                    return;
                }
                next -= 1;
                let Axis { len, steps } = axes[next];
                index[next] += 1;
                if index[next] < len {
                    (0..N).for_each(|n| at[n] += steps[n]);
                    break;
                }
                index[next] = 0;
                (0..N).for_each(|n| at[n] -= steps[n] * (len as isize - 1));
            }
        }
    }

    /// Calls `f` with where each element lies in each operand.
    #[inline]
    pub(super) fn elements(&self, mut f: impl FnMut([usize; N])) {
        self.rows(|starts| {
            for i in 0..self.row.len as isize {
                f(std::array::from_fn(|n| (starts[n] + i * self.row.steps[n]) as usize));
            }
        });
    }
}

/// `len` elements from `at` on as a slice: where they lie, or copied to `stage`.
#[inline]
pub(super) fn dense<'a, T: Copy>(
    data: &'a [T],
    at: isize,
    step: isize,
    len: usize,
    stage: &'a mut [T; STAGE],
) -> &'a [T] {
    let start = at as usize;
    if step == 1 {
        return &data[start..start + len];
    }
    let stage = &mut stage[..len];
    if step == 0 {
        stage.fill(data[start]);
    } else {
        gather(data, at, step, stage);
    }
    stage
}

/// Copies elements `step` apart, from `at` on.
#[inline]
pub(super) fn gather<T: Copy>(data: &[T], at: isize, step: isize, to: &mut [T]) {
    for (i, to) in to.iter_mut().enumerate() {
        *to = data[(at + i as isize * step) as usize];
    }
}

/// Writes elements `step` apart, from `at` on.
#[inline]
fn scatter<T: Copy>(from: &[T], data: &mut [T], at: isize, step: isize) {
    for (i, &from) in from.iter().enumerate() {
        data[(at + i as isize * step) as usize] = from;
    }
}

/// Elements to take at once: a whole row if every operand is dense, else what fits on the stage.
fn portion<const N: usize>(walk: &Walk<N>) -> usize {
    if walk.steps().iter().all(|&step| step == 1) { walk.len() } else { STAGE }.max(1)
}

/// Hands `len` elements of `data` to `f` as a slice to write; `read` if `f` also reads them.
#[inline]
fn with_target<T: Copy + Default>(
    data: &mut [T],
    at: isize,
    step: isize,
    len: usize,
    read: bool,
    f: impl FnOnce(&mut [T]),
) {
    if step == 1 {
        return f(&mut data[at as usize..at as usize + len]);
    }
    let mut stage = [T::default(); STAGE];
    let stage = &mut stage[..len];
    if read {
        gather(data, at, step, stage);
    }
    f(stage);
    scatter(stage, data, at, step);
}

/// `row` writes every part of `dst`, which it may read.
pub(super) fn rows1<D: Copy + Default>(dst: Out<'_, D>, row: &dyn Fn(&mut [D])) {
    let Out { data, layout } = dst;
    let walk = Walk::new([layout]);
    let ([step], size) = (walk.steps(), portion(&walk));
    walk.rows(|[at]| {
        for i in (0..walk.len()).step_by(size) {
            let len = size.min(walk.len() - i);
            with_target(data, at + i as isize * step, step, len, true, row);
        }
    });
}

/// `row` writes every part of `dst` from that of `a`; `read` if it also reads what `dst` held.
pub(super) fn rows2<A, D>(a: In<'_, A>, dst: Out<'_, D>, read: bool, row: &dyn Fn(&[A], &mut [D]))
where
    A: Copy + Default,
    D: Copy + Default,
{
    let Out { data, layout } = dst;
    let walk = Walk::new([layout, a.layout]);
    let ([step, sa], size) = (walk.steps(), portion(&walk));
    let mut stage = [A::default(); STAGE];
    walk.rows(|[at, xa]| {
        for i in (0..walk.len()).step_by(size) {
            let (len, i) = (size.min(walk.len() - i), i as isize);
            let xs = dense(a.data, xa + i * sa, sa, len, &mut stage);
            with_target(data, at + i * step, step, len, read, |out| row(xs, out));
        }
    });
}

/// As [`rows2`], from two operands.
pub(super) fn rows3<A, B, D>(a: In<'_, A>, b: In<'_, B>, dst: Out<'_, D>, row: &dyn Fn(&[A], &[B], &mut [D]))
where
    A: Copy + Default,
    B: Copy + Default,
    D: Copy + Default,
{
    let Out { data, layout } = dst;
    let walk = Walk::new([layout, a.layout, b.layout]);
    let ([step, sa, sb], size) = (walk.steps(), portion(&walk));
    let (mut stage_a, mut stage_b) = ([A::default(); STAGE], [B::default(); STAGE]);
    walk.rows(|[at, xa, xb]| {
        for i in (0..walk.len()).step_by(size) {
            let (len, i) = (size.min(walk.len() - i), i as isize);
            let xs = dense(a.data, xa + i * sa, sa, len, &mut stage_a);
            let ys = dense(b.data, xb + i * sb, sb, len, &mut stage_b);
            with_target(data, at + i * step, step, len, false, |out| row(xs, ys, out));
        }
    });
}

/// The rows of three operands, to write a fourth.
type Row4<'r, A, B, C, D> = &'r dyn Fn(&[A], &[B], &[C], &mut [D]);

/// As [`rows2`], from three operands.
pub(super) fn rows4<A, B, C, D>(a: In<'_, A>, b: In<'_, B>, c: In<'_, C>, dst: Out<'_, D>, row: Row4<'_, A, B, C, D>)
where
    A: Copy + Default,
    B: Copy + Default,
    C: Copy + Default,
    D: Copy + Default,
{
    let Out { data, layout } = dst;
    let walk = Walk::new([layout, a.layout, b.layout, c.layout]);
    let ([step, sa, sb, sc], size) = (walk.steps(), portion(&walk));
    let mut stages = ([A::default(); STAGE], [B::default(); STAGE], [C::default(); STAGE]);
    walk.rows(|[at, xa, xb, xc]| {
        for i in (0..walk.len()).step_by(size) {
            let (len, i) = (size.min(walk.len() - i), i as isize);
            let xs = dense(a.data, xa + i * sa, sa, len, &mut stages.0);
            let ys = dense(b.data, xb + i * sb, sb, len, &mut stages.1);
            let zs = dense(c.data, xc + i * sc, sc, len, &mut stages.2);
            with_target(data, at + i * step, step, len, false, |out| row(xs, ys, zs, out));
        }
    });
}

/// `dst = src`, both of any layout.
pub(super) fn copy<T: Copy>(src: In<'_, T>, dst: Out<'_, T>) {
    let Out { data, layout } = dst;
    let mut walk = Walk::new([layout, src.layout]);
    let len = walk.len();
    match walk.steps() {
        [1, 1] => walk.rows(|[to, from]| {
            data[to as usize..to as usize + len].copy_from_slice(&src.data[from as usize..from as usize + len]);
        }),
        [1, 0] => walk.rows(|[to, from]| data[to as usize..to as usize + len].fill(src.data[from as usize])),
        [1, step] => match walk.take_axis(|axis| axis.steps[1] == 1) {
            Some(axis) => walk.rows(|starts| transpose(src.data, data, starts, [axis.steps[0], step], [axis.len, len])),
            None => walk.rows(|[to, from]| gather(src.data, from, step, &mut data[to as usize..to as usize + len])),
        },
        _ => walk.elements(|[to, from]| data[to] = src.data[from]),
    }
}

impl<const N: usize> Walk<N> {
    /// Takes the first outer axis that `wanted` accepts out of the walk.
    fn take_axis(&mut self, wanted: impl Fn(&Axis<N>) -> bool) -> Option<Axis<N>> {
        let found = self.axes[..self.outer].iter().position(wanted)?;
        let axis = self.axes[found];
        self.axes.copy_within(found + 1..self.outer, found);
        self.outer -= 1;
        Some(axis)
    }
}

/// `dst[to + r * steps[0] + c] = src[from + c * steps[1] + r]` for `r < dims[0]`, `c < dims[1]`, where `[to, from]`
/// are the starts: square by square, so that lines of both sides are used while they are near.
fn transpose<T: Copy>(src: &[T], dst: &mut [T], starts: [isize; 2], steps: [isize; 2], dims: [usize; 2]) {
    let ([to, from], [rows, columns]) = (starts, dims);
    for r0 in (0..rows).step_by(TILE) {
        for c0 in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - c0);
            for r in r0..(r0 + TILE).min(rows) {
                let start = (to + r as isize * steps[0]) as usize + c0;
                let first = from + c0 as isize * steps[1] + r as isize;
                gather(src, first, steps[1], &mut dst[start..start + width]);
            }
        }
    }
}
