//! Convolutions: what the window sees, as the columns of a matrix, times the weights.
//!
//! `B` batch, `G` groups of `M` filters and `C` channels, `K` elements of the kernel, `L` output positions. The matrix
//! of columns `[C K, L]` is made in blocks that fit a cache, in scratch that the caller brings; the product goes where
//! its elements belong. No block is made where the image is that matrix already (a window of one element), nor where a
//! filter sees one channel (depthwise): there rows are added to rows.

use std::ops::Range;

use crate::cpu::{
    matmul::THREADS_MIN,
    matrix::{Matrix, Target},
    number::Number,
    operand::{Element, In, Out},
    product::product_to,
    rows::Piece,
    strided, threads,
    vector::{Multiplied, simd},
};
use crate::window::{ConvOp, ConvSizes, Window};

/// Elements of a block of columns.
const BLOCK: usize = 256 << 10;
/// Columns of a block at least, if there are as many.
const POSITIONS_MIN: usize = 128;
/// Filters of a group up to which rows are added to rows.
const DIRECT_FILTERS_MAX: usize = 8;
/// Sums of a dot product that run side by side.
const LANES: usize = 16;

fn is_direct(s: &ConvSizes) -> bool {
    s.channels == 1 && s.filters <= DIRECT_FILTERS_MAX
}

/// Elements of scratch that a thread needs.
fn scratch_each(s: &ConvSizes) -> usize {
    if is_direct(s) { 1 } else { s.depth().saturating_mul(s.positions).clamp(1, BLOCK) }
}

/// Elements of scratch that a convolution wants: for one thread, or for each if there is enough to do.
pub fn scratch(_: ConvOp, s: &ConvSizes) -> usize {
    let factors = [s.groups, s.filters, s.depth(), s.positions];
    let work = factors.iter().fold(s.batch, |work, &factor| work.saturating_mul(factor));
    let threads = if work < THREADS_MIN { 1 } else { threads::pool().map_or(1, |pool| pool.current_num_threads()) };
    threads * scratch_each(s)
}

/// What is done for an item: its number, its part of the destination, scratch, threads.
type Item<'f, T> = dyn Fn(usize, &mut [T], &mut [T], usize) + Sync + 'f;

/// Calls `f` for each part of `size` elements: items side by side if there are
/// enough of them, else one after the other with all threads.
fn items<T: Element>(dst: &mut [T], size: usize, scratch: &mut [T], each: usize, f: &Item<'_, T>) {
    let (items, workers) = (dst.len() / size, scratch.len() / each);
    match if workers > 1 { threads::pool() } else { None } {
        Some(pool) if items >= workers => {
            let run = items.div_ceil(workers);
            let share = |worker: usize, dst: &mut [T], scratch: &mut [T]| {
                for (i, dst) in dst.chunks_mut(size).enumerate() {
                    f(worker * run + i, dst, scratch, 1);
                }
            };
            threads::items2(pool, (dst, scratch), [run * size, each], &share);
        }
        Some(pool) => threads::inside(pool, &mut || {
            for (i, dst) in dst.chunks_mut(size).enumerate() {
                f(i, dst, scratch, pool.current_num_threads());
            }
        }),
        None => {
            for (i, dst) in dst.chunks_mut(size).enumerate() {
                f(i, dst, &mut scratch[..each], 1);
            }
        }
    }
}

/// An image `[B, G C, D, H, W]` of any layout.
pub(super) struct Image<'a, T> {
    pub(super) data: &'a [T],
    start: isize,
    pub(super) steps: [isize; 5],
    pub(super) ins: [usize; 3],
}

impl<'a, T> Image<'a, T> {
    pub(super) fn new(view: In<'a, T>) -> Self {
        let (dims, strides) = (view.layout.dims(), view.layout.strides());
        let steps = *strides.first_chunk().expect("five axes");
        Image { data: view.data, start: view.layout.offset() as isize, steps, ins: [dims[2], dims[3], dims[4]] }
    }

    /// Where a channel of an image begins.
    pub(super) fn plane(&self, image: usize, channel: usize) -> isize {
        self.start + image as isize * self.steps[0] + channel as isize * self.steps[1]
    }

    /// The step from each element of a channel to the next, if it is the same one throughout.
    fn step(&self) -> Option<isize> {
        let ([d, h, w], [.., of_d, of_h, of_w]) = (self.ins, self.steps);
        let follows = (h == 1 || of_h == of_w * w as isize) && (d == 1 || of_d == of_w * (h * w) as isize);
        follows.then_some(of_w)
    }
}

/// The place of a kernel element along each axis.
fn elem_at(window: &Window, elem: usize) -> [usize; 3] {
    let [_, h, w] = window.size;
    [elem / (h * w), elem / w % h, elem % w]
}

/// Where a kernel element lies on an axis when the window is at a place; it may lie outside.
fn coordinate(window: &Window, axis: usize, place: usize, elem: usize) -> isize {
    (place * window.stride[axis] + elem * window.dilation[axis]) as isize - window.padding[axis] as isize
}

/// From what is seen at one place of the last axis to what is at the next one. If that lies outside, any number.
fn line_step(window: &Window, step: isize) -> isize {
    (window.stride[2] as isize).wrapping_mul(step)
}

/// As [`coordinate`], inside the axis.
fn inside(window: &Window, axis: usize, place: usize, elem: usize, len: usize) -> Option<usize> {
    usize::try_from(coordinate(window, axis, place, elem)).ok().filter(|&at| at < len)
}

/// Of some positions on the last axis, those at which a kernel element lies inside.
fn clip(window: &Window, elem: usize, len: usize, positions: &Range<usize>) -> Range<usize> {
    let (shift, stride) = (coordinate(window, 2, 0, elem), window.stride[2]);
    let from = if shift < 0 { shift.unsigned_abs().div_ceil(stride) } else { 0 };
    let to = usize::try_from(len as isize - shift).map_or(0, |reach| reach.div_ceil(stride));
    let start = from.clamp(positions.start, positions.end);
    start..to.clamp(start, positions.end)
}

/// Where a kernel element lies on the first two axes, at a line of positions that is there on those of the result; and
/// at which of them it lies inside the last one. `None` if it sees nothing of the line.
#[inline(always)]
fn seen(
    window: &Window,
    [kd, kh, kw]: [usize; 3],
    ins: [usize; 3],
    [d, h]: [usize; 2],
    positions: &Range<usize>,
) -> Option<([usize; 2], Range<usize>)> {
    let line = [inside(window, 0, d, kd, ins[0])?, inside(window, 1, h, kh, ins[1])?];
    let seen = clip(window, kw, ins[2], positions);
    (!seen.is_empty()).then_some((line, seen))
}

/// Calls `f` with the lines that make up a run of positions: their positions on the first two axes, those on the last
/// one, and where they begin in the run.
fn lines(window: &Window, run: Range<usize>, mut f: impl FnMut([usize; 2], Range<usize>, usize)) {
    let [_, h, w] = window.out;
    let mut place = run.start;
    while place < run.end {
        let (line, from) = (place / w, place % w);
        let to = w.min(from + run.end - place);
        f([line / h, line % h], from..to, place - run.start);
        place += to - from;
    }
}

/// What one kernel element sees from a run of positions in a channel that begins at `base`.
fn read<T: Number>(image: &Image<'_, T>, base: isize, window: &Window, elem: usize, run: Range<usize>, row: &mut [T]) {
    let (elem, steps) = (elem_at(window, elem), &image.steps[2..]);
    lines(window, run, |line, positions, at| {
        let to = &mut row[at..at + positions.len()];
        let Some(([d, h], seen)) = seen(window, elem, image.ins, line, &positions) else { return to.fill(T::ZERO) };
        to[..seen.start - positions.start].fill(T::ZERO);
        to[seen.end - positions.start..].fill(T::ZERO);
        let first = coordinate(window, 2, seen.start, elem[2]);
        let from = base + d as isize * steps[0] + h as isize * steps[1] + first * steps[2];
        let step = line_step(window, steps[2]);
        strided::put(image.data, from, step, &mut to[seen.start - positions.start..seen.end - positions.start]);
    });
}

/// Adds to a channel what one kernel element gave to a run of positions: the transpose of [`read`].
fn write<T: Number>(plane: &mut [T], ins: [usize; 3], window: &Window, elem: usize, run: Range<usize>, row: &[T]) {
    let elem = elem_at(window, elem);
    lines(window, run, |line, positions, at| {
        let Some(([d, h], seen)) = seen(window, elem, ins, line, &positions) else { return };
        let first = (d * ins[1] + h) * ins[2] + coordinate(window, 2, seen.start, elem[2]) as usize;
        let from = &row[at + seen.start - positions.start..at + seen.end - positions.start];
        for (d, &x) in plane[first..].iter_mut().step_by(window.stride[2]).zip(from) {
            *d = d.add(x);
        }
    });
}

/// Calls `f(elem, first place, where it looks, positions)` for each line of positions and each kernel element that sees
/// something there. `steps`: those of the channel looked at.
fn sights(window: &Window, ins: [usize; 3], steps: &[isize], mut f: impl FnMut(usize, usize, isize, usize)) {
    lines(window, 0..window.output_positions(), |line, positions, first| {
        for elem in 0..window.kernel_elems() {
            let place = elem_at(window, elem);
            if let Some(([d, h], seen)) = seen(window, place, ins, line, &positions) {
                let from = d as isize * steps[0] + h as isize * steps[1];
                let at = from + coordinate(window, 2, seen.start, place[2]) * steps[2];
                f(elem, first + seen.start, at, seen.len());
            }
        }
    });
}

/// Blocks of the matrix of columns: `f(its rows, its columns)`.
fn blocks(s: &ConvSizes, scratch: usize, mut f: impl FnMut(Range<usize>, Range<usize>)) {
    let positions = (scratch / s.depth()).max(POSITIONS_MIN).min(s.positions).min(scratch);
    let rows = scratch / positions;
    for first in (0..s.positions).step_by(positions) {
        for row in (0..s.depth()).step_by(rows) {
            f(row..s.depth().min(row + rows), first..s.positions.min(first + positions));
        }
    }
}

/// A block of the matrix of columns, of the channels from `base` on.
fn columns<T: Multiplied>(
    image: &Image<'_, T>,
    base: isize,
    window: &Window,
    [rows, run]: [Range<usize>; 2],
    scratch: &mut [T],
    threads: usize,
) {
    let (width, kernel_elems) = (run.len(), window.kernel_elems());
    let fill = |i: usize, row: &mut [T]| {
        let (channel, elem) = ((rows.start + i) / kernel_elems, (rows.start + i) % kernel_elems);
        read(image, base + channel as isize * image.steps[1], window, elem, run.clone(), row);
    };
    let scratch = &mut scratch[..rows.len() * width];
    match threads {
        1 => {
            for (i, row) in scratch.chunks_exact_mut(width).enumerate() {
                fill(i, row);
            }
        }
        _ => threads::items_here(scratch, width, &fill),
    }
}

fn matrix<T>(data: &[T], start: usize, row: usize) -> Matrix<'_, T> {
    Matrix { data, start: start as isize, steps: [row as isize, 1] }
}

fn turned<T>(data: &[T], start: usize, row: usize) -> Matrix<'_, T> {
    Matrix { data, start: start as isize, steps: [1, row as isize] }
}

pub(super) fn result<T: Multiplied>(
    image: In<'_, T>,
    weights: In<'_, T>,
    result: Out<'_, T>,
    scratch: Out<'_, T>,
    window: &Window,
    groups: usize,
) {
    let s = ConvSizes::new(image.layout.dims(), weights.layout.dims(), window, groups);
    let (dst, image, weights) = (result.dense(), Image::new(image), weights.all());
    if dst.is_empty() || s.depth() == 0 || s.pixels == 0 {
        return dst.fill(T::ZERO);
    }
    items(dst, s.filters * s.positions, scratch.dense(), scratch_each(&s), &|i, dst, scratch, threads| {
        let (b, g) = (i / groups, i % groups);
        let (base, own) = (image.plane(b, g * s.channels), g * s.filters * s.depth());
        if let Some(step) = image.step().filter(|_| s.is_point(window)) {
            let right = Matrix { data: image.data, start: base, steps: [image.steps[1], step] };
            let to = Target { data: dst, step: s.positions, add: false };
            return product_to(
                [s.filters, s.depth(), s.positions],
                matrix(weights, own, s.depth()),
                right,
                to,
                threads,
            );
        }
        if is_direct(&s) {
            return result_directly(&image, base, &weights[own..], window, dst);
        }
        blocks(&s, scratch.len(), |rows, run| {
            columns(&image, base, window, [rows.clone(), run.clone()], scratch, threads);
            let left = matrix(weights, own + rows.start, s.depth());
            let to = Target { data: &mut dst[run.start..], step: s.positions, add: rows.start > 0 };
            product_to([s.filters, rows.len(), run.len()], left, matrix(scratch, 0, run.len()), to, threads);
        });
    });
}

/// `d += w x`, for `x` that lie `step` apart.
fn add_times<T: Multiplied>(w: T, data: &[T], at: isize, step: isize, d: &mut [T]) {
    if step == 1 {
        let x = &data[at as usize..at as usize + d.len()];
        return simd(d.len(), || d.iter_mut().zip(x).for_each(|(d, &x)| *d = d.add(w.mul(x))));
    }
    for (i, d) in d.iter_mut().enumerate() {
        *d = d.add(w.mul(data[(at + i as isize * step) as usize]));
    }
}

fn result_directly<T: Multiplied>(image: &Image<'_, T>, base: isize, weights: &[T], window: &Window, dst: &mut [T]) {
    let step = line_step(window, image.steps[4]);
    for (filter, plane) in dst.chunks_exact_mut(window.output_positions()).enumerate() {
        let weights = &weights[filter * window.kernel_elems()..];
        plane.fill(T::ZERO);
        sights(window, image.ins, &image.steps[2..], |elem, place, at, len| {
            add_times(weights[elem], image.data, base + at, step, &mut plane[place..place + len]);
        });
    }
}

pub(super) fn image<T: Multiplied>(
    result: In<'_, T>,
    weights: In<'_, T>,
    image: Out<'_, T>,
    scratch: Out<'_, T>,
    window: &Window,
    groups: usize,
) {
    let (dims, weights_dims) = (image.layout.dims(), weights.layout.dims());
    let (s, ins) = (ConvSizes::new(dims, weights_dims, window, groups), [dims[2], dims[3], dims[4]]);
    let (result, weights, dst) = (result.all(), weights.all(), image.dense());
    if dst.is_empty() || s.filters == 0 || s.positions == 0 {
        return dst.fill(T::ZERO);
    }
    items(dst, s.channels * s.pixels, scratch.dense(), scratch_each(&s), &|i, dst, scratch, threads| {
        let (own, from) = (i % groups * s.filters * s.depth(), i * s.filters * s.positions);
        if s.is_point(window) {
            let to = Target { data: dst, step: s.positions, add: false };
            let (left, right) = (turned(weights, own, s.depth()), matrix(result, from, s.positions));
            return product_to([s.depth(), s.filters, s.positions], left, right, to, threads);
        }
        dst.fill(T::ZERO);
        if is_direct(&s) {
            let weights = &weights[own..own + s.filters * s.kernel_elems];
            return image_directly(&result[from..], weights, ins, window, dst);
        }
        blocks(&s, scratch.len(), |rows, run| {
            let left = turned(weights, own + rows.start, s.depth());
            let to = Target { data: scratch, step: run.len(), add: false };
            let right = matrix(result, from + run.start, s.positions);
            product_to([rows.len(), s.filters, run.len()], left, right, to, threads);
            for (row, from) in rows.zip(scratch.chunks_exact(run.len())) {
                let plane = &mut dst[row / s.kernel_elems * s.pixels..][..s.pixels];
                write(plane, ins, window, row % s.kernel_elems, run.clone(), from);
            }
        });
    });
}

fn image_directly<T: Multiplied>(result: &[T], weights: &[T], ins: [usize; 3], window: &Window, dst: &mut [T]) {
    let steps = [(ins[1] * ins[2]) as isize, ins[2] as isize, 1];
    for (grad, weights) in
        result.chunks_exact(window.output_positions()).zip(weights.chunks_exact(window.kernel_elems()))
    {
        sights(window, ins, &steps, |elem, place, at, len| {
            let (w, grad) = (weights[elem], &grad[place..place + len]);
            match window.stride[2] {
                1 => {
                    let d = &mut dst[at as usize..at as usize + len];
                    simd(len, || d.iter_mut().zip(grad).for_each(|(d, &g)| *d = d.add(w.mul(g))));
                }
                stride => {
                    let d = dst[at as usize..].iter_mut().step_by(stride);
                    d.zip(grad).for_each(|(d, &g)| *d = d.add(w.mul(g)));
                }
            }
        });
    }
}

pub(super) fn weights<T: Multiplied>(
    image: In<'_, T>,
    result: In<'_, T>,
    weights: Out<'_, T>,
    scratch: Out<'_, T>,
    window: &Window,
    groups: usize,
) {
    let s = ConvSizes::new(image.layout.dims(), weights.layout.dims(), window, groups);
    let (result, dst, image) = (result.all(), weights.dense(), Image::new(image));
    if dst.is_empty() || s.batch == 0 || s.positions == 0 || s.pixels == 0 {
        return dst.fill(T::ZERO);
    }
    items(dst, s.filters * s.depth(), scratch.dense(), scratch_each(&s), &|g, dst, scratch, threads| {
        for b in 0..s.batch {
            let (base, from) = (image.plane(b, g * s.channels), (b * groups + g) * s.filters * s.positions);
            if let Some(step) = image.step().filter(|_| s.is_point(window)) {
                let right = Matrix { data: image.data, start: base, steps: [step, image.steps[1]] };
                let to = Target { data: dst, step: s.depth(), add: b > 0 };
                let left = matrix(result, from, s.positions);
                product_to([s.filters, s.positions, s.depth()], left, right, to, threads);
            } else if is_direct(&s) {
                if b == 0 {
                    dst.fill(T::ZERO);
                }
                weights_directly(&image, base, &result[from..], window, dst);
            } else {
                blocks(&s, scratch.len(), |rows, run| {
                    columns(&image, base, window, [rows.clone(), run.clone()], scratch, threads);
                    let left = matrix(result, from + run.start, s.positions);
                    let add = b > 0 || run.start > 0;
                    let to = Target { data: &mut dst[rows.start..], step: s.depth(), add };
                    product_to([s.filters, run.len(), rows.len()], left, turned(scratch, 0, run.len()), to, threads);
                });
            }
        }
    });
}

fn weights_directly<T: Multiplied>(image: &Image<'_, T>, base: isize, result: &[T], window: &Window, dst: &mut [T]) {
    let step = line_step(window, image.steps[4]);
    for (grad, d) in result.chunks_exact(window.output_positions()).zip(dst.chunks_exact_mut(window.kernel_elems())) {
        sights(window, image.ins, &image.steps[2..], |elem, place, at, len| {
            d[elem] = d[elem].add(dot(&grad[place..place + len], image.data, base + at, step));
        });
    }
}

/// The sum of products with elements that lie `step` apart.
pub(super) fn dot<T: Number>(a: &[T], data: &[T], at: isize, step: isize) -> T {
    let mut sums = [T::ZERO; LANES];
    if step == 1 {
        let b = &data[at as usize..at as usize + a.len()];
        simd(a.len(), || {
            for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
                sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (&a, &b))| *sum = sum.add(a.mul(b)));
            }
        });
    } else {
        for (i, &a) in a.iter().enumerate() {
            let b = data[(at + i as isize * step) as usize];
            sums[i % LANES] = sums[i % LANES].add(a.mul(b));
        }
    }
    sums.into_iter().fold(T::ZERO, T::add)
}

/// Calls `f` with the parts of `dst`, of `size` elements: on several threads if there are many.
pub(super) fn parts<T: Element>(dst: &mut [T], size: usize, f: &(dyn Piece<T> + Sync)) {
    match if dst.len() < threads::ELEMENTS_MIN { None } else { threads::pool() } {
        Some(pool) => threads::items(pool, dst, size, f),
        None => {
            for (i, dst) in dst.chunks_exact_mut(size).enumerate() {
                f.run(i, dst);
            }
        }
    }
}

pub(super) fn unfold<T: Number>(image: In<'_, T>, columns: Out<'_, T>, window: &Window) {
    let (dst, channels) = (columns.dense(), image.layout.dims()[1]);
    let (image, kernel_elems) = (Image::new(image), window.kernel_elems());
    if dst.is_empty() {
        return;
    }
    if image.data.is_empty() {
        return dst.fill(T::ZERO);
    }
    parts(dst, window.output_positions(), &|i: usize, row: &mut [T]| {
        let (plane, elem) = (i / kernel_elems, i % kernel_elems);
        read(&image, image.plane(plane / channels, plane % channels), window, elem, 0..window.output_positions(), row);
    });
}

pub(super) fn fold<T: Number>(columns: In<'_, T>, image: Out<'_, T>, window: &Window) {
    let dims = image.layout.dims();
    let (ins, positions, kernel_elems) =
        ([dims[2], dims[3], dims[4]], window.output_positions(), window.kernel_elems());
    let (columns, dst) = (columns.all(), image.dense());
    if dst.is_empty() {
        return;
    }
    parts(dst, ins.iter().product(), &|i: usize, plane: &mut [T]| {
        plane.fill(T::ZERO);
        for elem in 0..kernel_elems {
            let from = &columns[(i * kernel_elems + elem) * positions..][..positions];
            write(plane, ins, window, elem, 0..positions, from);
        }
    });
}
