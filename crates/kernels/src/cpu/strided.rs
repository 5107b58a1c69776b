//! Strided iteration: several operands of one shape together, row by row.
//!
//! Axes are put in the order of the first operand's strides and joined where every operand allows it, so
//! that what is left is the fewest, longest rows. A row is handed on as slices: an operand whose elements
//! do not follow each other is copied to a buffer on the stack first, so each operation has one loop.

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use crate::base::{layout::Layout, shape::MAX_RANK};
use crate::cpu::{
    operand::{In, Out},
    rows::{Row1, Row2, Row3, Row4, RowOfBytes},
    types::with_size,
};

/// Elements staged at a time: with three operands of 8 bytes still inside the first cache.
const STAGE: usize = 512;
/// Rows shorter than this are staged several at a time.
const SHORT: usize = 256;
/// Words of the room for a few elements.
const FEW: usize = 32;
/// Side of the squares in which a transposed copy goes: a cache line of f32.
const TILE: usize = 16;

/// One axis: its length, and the stride of each operand.
#[derive(Clone, Copy)]
struct StridedAxis<const N: usize> {
    len: usize,
    steps: [isize; N],
}

/// Axes of `N` operands. The innermost one is the row.
pub(super) struct StridedIter<const N: usize> {
    axes: [StridedAxis<N>; MAX_RANK],
    /// Axes outside the row.
    outer: usize,
    row: StridedAxis<N>,
    starts: [isize; N],
}

impl<const N: usize> StridedIter<N> {
    /// Over all indices of layouts of one shape, in the order that suits the first one.
    pub(super) fn new(layouts: [&Layout; N]) -> Self {
        let mut iter = StridedIter::unsorted(layouts, None);
        sort_axes(&mut iter.axes[..iter.outer], |axis| axis.steps[0].unsigned_abs());
        iter.join();
        iter
    }

    /// Over all indices but those of the axis `skip`, in row-major order.
    pub(super) fn in_order(layouts: [&Layout; N], skip: Option<usize>) -> Self {
        let mut iter = StridedIter::unsorted(layouts, skip);
        iter.join();
        iter
    }

    /// Every axis longer than 1 as an outer one. Sizes are those of the first layout; another layout that has
    /// fewer or other sizes than that is the caller's to rule out.
    fn unsorted(layouts: [&Layout; N], skip: Option<usize>) -> Self {
        let none = StridedAxis { len: 1, steps: [0; N] };
        let mut axes = [none; MAX_RANK];
        let mut outer = 0;
        for (i, &len) in layouts[0].dims().iter().enumerate() {
            if len != 1 && Some(i) != skip {
                axes[outer] = StridedAxis { len, steps: strides(layouts, i) };
                outer += 1;
            }
        }
        let mut starts = [0; N];
        for n in 0..N {
            starts[n] = layouts[n].offset() as isize;
        }
        StridedIter { axes, outer, row: none, starts }
    }

    /// Joins axes that follow each other without a gap in every operand; the last one becomes the row.
    fn join(&mut self) {
        let mut kept = 0;
        for i in 1..self.outer {
            let (slow, fast) = (self.axes[kept], self.axes[i]);
            // Of an array without elements a step may be as long as numbers go.
            let follows = |n: usize| slow.steps[n] == fast.steps[n].wrapping_mul(fast.len as isize);
            if (0..N).all(follows) {
                self.axes[kept] = StridedAxis { len: slow.len * fast.len, steps: fast.steps };
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

    /// Calls `f` with where each row begins in each operand. By reference: a row is worth a call, and the loop around
    /// it is there once.
    pub(super) fn rows(&self, f: &mut dyn FnMut([isize; N])) {
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
                let StridedAxis { len, steps } = axes[next];
                index[next] += 1;
                if index[next] < len {
                    advance(&mut at, &steps, 1);
                    break;
                }
                index[next] = 0;
                advance(&mut at, &steps, 1 - len as isize);
            }
        }
    }

    /// Calls `f` with where each element lies in each operand.
    #[inline]
    pub(super) fn elements(&self, mut f: impl FnMut([usize; N])) {
        self.rows(&mut |starts: [isize; N]| {
            let mut at = starts;
            for _ in 0..self.row.len {
                f(places(at));
                (0..N).for_each(|n| at[n] += self.row.steps[n]);
            }
        });
    }
}

/// The stride of each layout along an axis. A loop: `map` of an array is ten times as much to compile.
fn strides<const N: usize>(layouts: [&Layout; N], axis: usize) -> [isize; N] {
    let mut strides = [0; N];
    for n in 0..N {
        strides[n] = layouts[n].strides()[axis];
    }
    strides
}

/// Goes so many steps on in each operand.
#[inline(always)]
fn advance<const N: usize>(at: &mut [isize; N], steps: &[isize; N], count: isize) {
    for n in 0..N {
        at[n] += steps[n] * count;
    }
}

/// Puts axes with a large key first; equal ones stay in their order. They are so few that each walks to its place.
pub(super) fn sort_axes<A>(axes: &mut [A], key: impl Fn(&A) -> usize) {
    for i in 1..axes.len() {
        let mut at = i;
        while at > 0 && key(&axes[at - 1]) < key(&axes[at]) {
            axes.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Apart from who goes there, so that it is code once.
#[inline]
fn places<const N: usize>(at: [isize; N]) -> [usize; N] {
    at.map(|at| at as usize)
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

/// The pieces in which an iteration is handed on: parts of rows, or several short rows that are neighbours in the
/// destination, which is operand 0.
struct Pieces<const N: usize> {
    iter: StridedIter<N>,
    /// The rows taken together: how many there are, and their strides.
    lines: StridedAxis<N>,
    /// Rows of a piece, and elements of each.
    rows: usize,
    len: usize,
}

impl<const N: usize> Pieces<N> {
    fn new(mut iter: StridedIter<N>) -> Self {
        let StridedAxis { len, steps } = iter.row;
        let last = iter.outer.checked_sub(1).map(|last| iter.axes[last]);
        let neighbours = |lines: &StridedAxis<N>| steps[0] == 1 && lines.steps[0] == len as isize;
        if let Some(lines) = last.filter(|lines| len > 0 && len < SHORT && neighbours(lines)) {
            iter.outer -= 1;
            return Pieces { lines, rows: STAGE / len, len, iter };
        }
        let len = if steps.iter().all(|&step| step == 1) { len } else { STAGE }.max(1);
        Pieces { lines: StridedAxis { len: 1, steps: [0; N] }, rows: 1, len, iter }
    }

    /// Calls `f` with where each piece begins in each operand, its rows, and their length.
    fn each(&self, f: &mut dyn FnMut([isize; N], usize, usize)) {
        let StridedAxis { len, steps } = self.iter.row;
        self.iter.rows(&mut |starts: [isize; N]| {
            for line in (0..self.lines.len).step_by(self.rows) {
                for i in (0..len).step_by(self.len) {
                    let mut at = starts;
                    advance(&mut at, &self.lines.steps, line as isize);
                    advance(&mut at, &steps, i as isize);
                    f(at, self.rows.min(self.lines.len - line), self.len.min(len - i));
                }
            }
        });
    }
}

/// Room for a piece of any type, made when it is needed. Filling it with zeros takes longer than a small piece itself:
/// those get little.
#[derive(Default)]
struct Stage {
    few: Option<[u64; FEW]>,
    many: Option<[u64; STAGE]>,
}

impl Stage {
    /// The first so many bytes, as they were left if it was called with no more before.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let words: &mut [u64] = match &mut self.many {
            None if bytes <= size_of::<[u64; FEW]>() => self.few.get_or_insert([0; FEW]),
            many => many.get_or_insert([0; STAGE]),
        };
        &mut cast_slice_mut::<u64, u8>(words)[..bytes]
    }
}

/// An operand of which only the size of its elements is known: the code of an iteration is there once for all types.
#[derive(Clone, Copy)]
struct ByteOperand<'a> {
    data: &'a [u8],
    size: usize,
    layout: &'a Layout,
}

impl<'a, T: Pod> From<In<'a, T>> for ByteOperand<'a> {
    fn from(operand: In<'a, T>) -> Self {
        ByteOperand { data: cast_slice(operand.data), size: size_of::<T>(), layout: operand.layout }
    }
}

/// One operand of pieces: hands them on as slices.
struct StagedSource<'a> {
    data: &'a [u8],
    size: usize,
    /// From one row of a piece to the next, and along a row.
    steps: [isize; 2],
    stage: Stage,
    /// Where the staged piece begins, and its elements: one that repeats need not be copied again.
    staged: (isize, usize),
}

impl<'a> StagedSource<'a> {
    fn new<const N: usize>(operand: ByteOperand<'a>, pieces: &Pieces<N>, n: usize) -> Self {
        let steps = [pieces.lines.steps[n], pieces.iter.row.steps[n]];
        StagedSource { data: operand.data, size: operand.size, steps, stage: Stage::default(), staged: (-1, 0) }
    }

    fn get(&mut self, at: isize, rows: usize, len: usize) -> &[u8] {
        let ([line, step], count, size) = (self.steps, rows * len, self.size);
        if step == 1 && (rows == 1 || line == len as isize) {
            return &self.data[at as usize * size..(at as usize + count) * size];
        }
        let stage = self.stage.room(count * size);
        if self.staged.0 != at || self.staged.1 < count {
            with_size!(size, T => {
                let (data, stage) = (cast_slice::<u8, T>(self.data), cast_slice_mut::<u8, T>(stage));
                for (i, to) in stage.chunks_exact_mut(len).enumerate() {
                    put(data, at + i as isize * line, step, to);
                }
            });
            self.staged = (at, count);
        }
        stage
    }
}

/// Hands `len` elements of `data` to `f` as a slice to write; `read` if `f` also reads them.
fn with_target(
    (data, size): (&mut [u8], usize),
    at: isize,
    step: isize,
    len: usize,
    read: bool,
    f: &mut dyn FnMut(&mut [u8]),
) {
    if step == 1 {
        return f(&mut data[at as usize * size..(at as usize + len) * size]);
    }
    let mut stage = Stage::default();
    let stage = stage.room(len * size);
    if read {
        with_size!(size, T => gather(cast_slice::<u8, T>(data), at, step, cast_slice_mut(stage)));
    }
    f(stage);
    with_size!(size, T => scatter(cast_slice::<u8, T>(stage), cast_slice_mut(data), at, step));
}

/// `row` writes every part of `dst` from those of `S` sources; `read` if it also reads what `dst` held. `N` is `S + 1`.
fn rows<const S: usize, const N: usize>(
    sources: [ByteOperand<'_>; S],
    (dst, size, layout): (&mut [u8], usize, &Layout),
    read: bool,
    row: &dyn RowOfBytes<S>,
) {
    let mut layouts = [layout; N];
    layouts[1..].iter_mut().zip(&sources).for_each(|(layout, source)| *layout = source.layout);
    let pieces = Pieces::new(StridedIter::new(layouts));
    let step = pieces.iter.row.steps[0];
    let mut n = 0;
    let mut sources = sources.map(|source| {
        n += 1;
        StagedSource::new(source, &pieces, n)
    });
    pieces.each(&mut |at, rows, len| {
        let mut parts: [&[u8]; S] = [&[]; S];
        for (n, source) in sources.iter_mut().enumerate() {
            parts[n] = source.get(at[n + 1], rows, len);
        }
        with_target((dst, size), at[0], step, rows * len, read, &mut |out| row.run(parts, out));
    });
}

/// The bytes of a destination, their size, and where they lie.
fn target<D: Pod>(dst: Out<'_, D>) -> (&mut [u8], usize, &Layout) {
    (cast_slice_mut(dst.data), size_of::<D>(), dst.layout)
}

/// `row` writes every part of `dst`, which it may read.
pub(super) fn rows1<D: Pod>(dst: Out<'_, D>, row: &dyn Row1<D>) {
    rows::<0, 1>([], target(dst), true, &|[]: [&[u8]; 0], d: &mut [u8]| row.run(cast_slice_mut(d)));
}

/// `row` writes every part of `dst` from that of `a`; `read` if it also reads what `dst` held.
pub(super) fn rows2<A: Pod, D: Pod>(a: In<'_, A>, dst: Out<'_, D>, read: bool, row: &dyn Row2<A, D>) {
    let row: &dyn RowOfBytes<1> = &|[a]: [&[u8]; 1], d: &mut [u8]| row.run(cast_slice(a), cast_slice_mut(d));
    rows::<1, 2>([a.into()], target(dst), read, row);
}

/// As [`rows2`], from two operands.
pub(super) fn rows3<A: Pod, B: Pod, D: Pod>(a: In<'_, A>, b: In<'_, B>, dst: Out<'_, D>, row: &dyn Row3<A, B, D>) {
    let row: &dyn RowOfBytes<2> =
        &|[a, b]: [&[u8]; 2], d: &mut [u8]| row.run(cast_slice(a), cast_slice(b), cast_slice_mut(d));
    rows::<2, 3>([a.into(), b.into()], target(dst), false, row);
}

/// As [`rows2`], from three operands.
pub(super) fn rows4<A: Pod, B: Pod, C: Pod, D: Pod>(
    a: In<'_, A>,
    b: In<'_, B>,
    c: In<'_, C>,
    dst: Out<'_, D>,
    row: &dyn Row4<A, B, C, D>,
) {
    let row: &dyn RowOfBytes<3> = &|[a, b, c]: [&[u8]; 3], d: &mut [u8]| {
        row.run(cast_slice(a), cast_slice(b), cast_slice(c), cast_slice_mut(d));
    };
    rows::<3, 4>([a.into(), b.into(), c.into()], target(dst), false, row);
}

/// `dst = src`, both of any layout.
pub(super) fn copy<T: Copy + Default>(src: In<'_, T>, dst: Out<'_, T>) {
    let Out { data, layout } = dst;
    let mut iter = StridedIter::new([layout, src.layout]);
    let len = iter.len();
    match iter.steps() {
        [1, 1] => iter.rows(&mut |[to, from]: [isize; 2]| {
            data[to as usize..to as usize + len].copy_from_slice(&src.data[from as usize..from as usize + len]);
        }),
        [1, 0] => iter.rows(&mut |[to, from]: [isize; 2]| {
            data[to as usize..to as usize + len].fill(src.data[from as usize]);
        }),
        [1, step] => match iter.take_axis(|axis| axis.steps[1] == 1) {
            Some(axis) => iter.rows(&mut |starts: [isize; 2]| {
                transpose(src.data, data, starts, [axis.steps[0], step], [axis.len, len]);
            }),
            None => iter.rows(&mut |[to, from]: [isize; 2]| {
                gather(src.data, from, step, &mut data[to as usize..to as usize + len]);
            }),
        },
        _ => iter.elements(|[to, from]| data[to] = src.data[from]),
    }
}

impl<const N: usize> StridedIter<N> {
    /// Takes the first outer axis that `wanted` accepts out of the iteration.
    fn take_axis(&mut self, wanted: impl Fn(&StridedAxis<N>) -> bool) -> Option<StridedAxis<N>> {
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
