//! Walking several operands of one shape together, row by row.
//!
//! Axes are put in the order of the first operand's strides and joined where every operand allows it, so
//! that what is left is the fewest, longest rows. A row is handed on as slices: an operand whose elements
//! do not follow each other is copied to a buffer on the stack first, so each operation has one loop.

use crate::base::{layout::Layout, shape::MAX_RANK};
use crate::cpu::{In, Out};

/// Elements staged at a time: with three operands of 8 bytes still inside the first cache.
const STAGE: usize = 512;
/// Rows shorter than this are staged several at a time.
const SHORT: usize = 256;
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
pub(super) fn dense<'a, T: Copy>(data: &'a [T], at: isize, step: isize, len: usize, stage: &'a mut [T]) -> &'a [T] {
    if step == 1 {
        return &data[at as usize..at as usize + len];
    }
    put(data, at, step, &mut stage[..len]);
    &stage[..len]
}

/// Copies elements `step` apart, from `at` on.
#[inline]
pub(super) fn put<T: Copy>(data: &[T], at: isize, step: isize, to: &mut [T]) {
    match step {
        1 => to.copy_from_slice(&data[at as usize..at as usize + to.len()]),
        0 => to.fill(data[at as usize]),
        _ => gather(data, at, step, to),
    }
}

/// Copies elements `step` apart, from `at` on, where most often nothing repeats or follows each other.
#[inline]
pub(super) fn gather<T: Copy>(data: &[T], at: isize, step: isize, to: &mut [T]) {
    if step == -1 && !to.is_empty() {
        let end = at as usize + 1;
        let from = &data[end - to.len()..end];
        return to.iter_mut().zip(from.iter().rev()).for_each(|(to, &from)| *to = from);
    }
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

/// The pieces in which a walk is handed on: parts of rows, or several short rows that are neighbours in the
/// destination, which is operand 0.
struct Pieces<const N: usize> {
    walk: Walk<N>,
    /// The rows taken together: how many there are, and their strides.
    lines: Axis<N>,
    /// Rows of a piece, and elements of each.
    rows: usize,
    len: usize,
}

impl<const N: usize> Pieces<N> {
    fn new(mut walk: Walk<N>) -> Self {
        let Axis { len, steps } = walk.row;
        let last = walk.outer.checked_sub(1).map(|last| walk.axes[last]);
        let neighbours = |lines: &Axis<N>| steps[0] == 1 && lines.steps[0] == len as isize;
        if let Some(lines) = last.filter(|lines| len > 0 && len < SHORT && neighbours(lines)) {
            walk.outer -= 1;
            return Pieces { lines, rows: STAGE / len, len, walk };
        }
        let len = if steps.iter().all(|&step| step == 1) { len } else { STAGE }.max(1);
        Pieces { lines: Axis { len: 1, steps: [0; N] }, rows: 1, len, walk }
    }

    /// Calls `f` with where each piece begins in each operand, its rows, and their length.
    #[inline]
    fn each(&self, mut f: impl FnMut([isize; N], usize, usize)) {
        let Axis { len, steps } = self.walk.row;
        self.walk.rows(|starts| {
            for line in (0..self.lines.len).step_by(self.rows) {
                for i in (0..len).step_by(self.len) {
                    let by = |n: usize| line as isize * self.lines.steps[n] + i as isize * steps[n];
                    let at = std::array::from_fn(|n| starts[n] + by(n));
                    f(at, self.rows.min(self.lines.len - line), self.len.min(len - i));
                }
            }
        });
    }
}

/// One operand of pieces: hands them on as slices.
struct Source<'a, T> {
    data: &'a [T],
    /// From one row of a piece to the next, and along a row.
    steps: [isize; 2],
    /// Made when first needed.
    stage: Option<[T; STAGE]>,
    /// Where the staged piece begins, and its elements: one that repeats need not be copied again.
    staged: (isize, usize),
}

impl<'a, T: Copy + Default> Source<'a, T> {
    #[inline]
    fn new<const N: usize>(operand: In<'a, T>, pieces: &Pieces<N>, n: usize) -> Self {
        let steps = [pieces.lines.steps[n], pieces.walk.row.steps[n]];
        Source { data: operand.data, steps, stage: None, staged: (-1, 0) }
    }

    #[inline]
    fn get(&mut self, at: isize, rows: usize, len: usize) -> &[T] {
        let ([line, step], count) = (self.steps, rows * len);
        if step == 1 && (rows == 1 || line == len as isize) {
            return &self.data[at as usize..at as usize + count];
        }
        let stage = &mut self.stage.get_or_insert_with(|| [T::default(); STAGE])[..count];
        if self.staged.0 != at || self.staged.1 < count {
            for (i, to) in stage.chunks_exact_mut(len).enumerate() {
                put(self.data, at + i as isize * line, step, to);
            }
            self.staged = (at, count);
        }
        stage
    }
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
    let pieces = Pieces::new(Walk::new([layout]));
    let [step] = pieces.walk.row.steps;
    pieces.each(|[at], rows, len| with_target(data, at, step, rows * len, true, row));
}

/// `row` writes every part of `dst` from that of `a`; `read` if it also reads what `dst` held.
pub(super) fn rows2<A, D>(a: In<'_, A>, dst: Out<'_, D>, read: bool, row: &dyn Fn(&[A], &mut [D]))
where
    A: Copy + Default,
    D: Copy + Default,
{
    let Out { data, layout } = dst;
    let pieces = Pieces::new(Walk::new([layout, a.layout]));
    let [step, _] = pieces.walk.row.steps;
    let mut a = Source::new(a, &pieces, 1);
    pieces.each(|[at, xa], rows, len| {
        let xs = a.get(xa, rows, len);
        with_target(data, at, step, rows * len, read, |out| row(xs, out));
    });
}

/// What is done with a row of two operands and the result.
type Row3<'f, A, B, D> = dyn Fn(&[A], &[B], &mut [D]) + 'f;

/// As [`rows2`], from two operands.
pub(super) fn rows3<A, B, D>(a: In<'_, A>, b: In<'_, B>, dst: Out<'_, D>, row: &Row3<'_, A, B, D>)
where
    A: Copy + Default,
    B: Copy + Default,
    D: Copy + Default,
{
    let Out { data, layout } = dst;
    let pieces = Pieces::new(Walk::new([layout, a.layout, b.layout]));
    let [step, _, _] = pieces.walk.row.steps;
    let (mut a, mut b) = (Source::new(a, &pieces, 1), Source::new(b, &pieces, 2));
    pieces.each(|[at, xa, xb], rows, len| {
        let (xs, ys) = (a.get(xa, rows, len), b.get(xb, rows, len));
        with_target(data, at, step, rows * len, false, |out| row(xs, ys, out));
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
    let pieces = Pieces::new(Walk::new([layout, a.layout, b.layout, c.layout]));
    let [step, ..] = pieces.walk.row.steps;
    let (mut a, mut b) = (Source::new(a, &pieces, 1), Source::new(b, &pieces, 2));
    let mut c = Source::new(c, &pieces, 3);
    pieces.each(|[at, xa, xb, xc], rows, len| {
        let (xs, ys, zs) = (a.get(xa, rows, len), b.get(xb, rows, len), c.get(xc, rows, len));
        with_target(data, at, step, rows * len, false, |out| row(xs, ys, zs, out));
    });
}

/// `dst = src`, both of any layout.
pub(super) fn copy<T: Copy + Default>(src: In<'_, T>, dst: Out<'_, T>) {
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
/// are the starts. Square by square by way of a buffer: whole lines are read and written, once each.
fn transpose<T: Copy + Default>(src: &[T], dst: &mut [T], starts: [isize; 2], steps: [isize; 2], dims: [usize; 2]) {
    let ([to, from], [rows, columns]) = (starts, dims);
    let mut square = [[T::default(); TILE]; TILE];
    for r in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - r);
        for c in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - c);
            for (i, line) in square[..width].iter_mut().enumerate() {
                let start = (from + (c + i) as isize * steps[1]) as usize + r;
                line[..height].copy_from_slice(&src[start..start + height]);
            }
            for i in 0..height {
                let start = (to + (r + i) as isize * steps[0]) as usize + c;
                for (d, line) in dst[start..start + width].iter_mut().zip(&square) {
                    *d = line[i];
                }
            }
        }
    }
}
