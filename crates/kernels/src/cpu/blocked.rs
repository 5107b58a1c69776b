//! Products of matrices of floats in blocks, by the kernels of a library, each of which keeps one tile of the result in
//! registers.
//!
//! The library's own routine asks the heap for its room in each call, and for a list even where it needs none. Here the
//! room stays with the thread, half of a mebibyte at most. The left side is read where it lies, and so is the right one
//! where its rows are read a few times only; else a block of it is copied, turned if need be.

use std::{array::from_fn, cell::Cell};

use bytemuck::cast_slice_mut;

use super::{
    dots::{Dots, SIDE},
    matrix::{Matrix, Target},
    strided, threads,
    vector::{Loop, Multiplied, Tiles, general, simd},
};

/// Elements of the inner axis that are added up in registers, at most.
const DEPTH: usize = 512;
/// Panels of a block of the right side.
const PANELS: usize = 4;
/// Rows up to which reading the right side where it lies costs less than copying it: where its own rows are short, and
/// where they are so long that a block of them does not stay in the cache.
const ROWS_MAX: [usize; 2] = [96, 48];
/// Elements of a short row.
const SHORT: isize = 1024;
/// Rows for each thread, from which they are divided among threads.
const THREAD_ROWS: usize = 32;
/// Rows of the left side from which it is turned instead of the right one: a vector of them.
const ACROSS_MIN: usize = 16;
/// Vectors of the inner axis from which dot products cost less than turning a side.
const DOTS_MIN: usize = 16;
/// Rows of a thread up to which they are so if the right side has more elements than stay in the cache.
const DOTS_MAX: usize = 64;
const CACHED: usize = 1 << 19;
/// Copies begin on lines of the cache.
const LINE: usize = 128;

thread_local! {
    /// The room of a product, kept for the next one.
    static ROOM: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// `dst = lhs x rhs` of `[M, K, N]`, all at least 1, or added to `dst`; on up to that many threads of the current pool.
pub(super) fn multiply<T: Multiplied>(
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: Target<'_, T>,
    threads: usize,
) {
    // What the library has loops of its own for, without room: vectors, and dot products.
    let along = lhs.steps[1] == 1 && rhs.steps[0] == 1;
    let row = m == 1 && (along || rhs.steps[1] == 1);
    let column = n == 1 && (along || (lhs.steps[0] == 1 && dst.step == 1));
    let tiles = T::tiles();
    let few = k <= 2 || row || column || (along && m * n <= 256);
    let shared = threads > 1 && m < THREAD_ROWS * threads;
    // A side that is turned costs more where it fills no vectors, or where the other one does not stay in the cache.
    let each = m.div_ceil(threads);
    let large = n * k > CACHED && each <= DOTS_MAX;
    let narrow = shared || large || each < ACROSS_MIN || 5 * each.next_multiple_of(ACROSS_MIN) > 6 * each;
    if !few && along && narrow && n >= SIDE && tiles.lanes >= 8 && k >= DOTS_MIN * tiles.lanes {
        return dots(tiles.lanes, [m, k, n], lhs, rhs, dst, threads);
    }
    if few || shared {
        return general([m, k, n], lhs, rhs, dst, threads);
    }
    if threads == 1 {
        return in_blocks(&tiles, [m, k, n], lhs, rhs, dst);
    }
    let Target { data, step, add } = dst;
    let rows = m.div_ceil(threads).next_multiple_of(tiles.rows);
    let data = &mut data[..(m - 1) * step + n];
    threads::items_here(data, rows * step, &|i: usize, data: &mut [T]| {
        let (first, own) = (i * rows, rows.min(m - i * rows));
        let lhs = lhs.shifted(first as isize * lhs.steps[0]);
        in_blocks(&tiles, [own, k, n], lhs, rhs, Target { data, step, add });
    });
}

/// As [`multiply`], of sides that both lie along the inner axis, in squares of dot products.
fn dots<T: Multiplied>(
    lanes: usize,
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: Target<'_, T>,
    threads: usize,
) {
    let Target { data, step, add } = dst;
    let rows = m.div_ceil(threads).next_multiple_of(SIDE);
    let run = |i: usize, data: &mut [T]| {
        let (first, m) = (i * rows, rows.min(m - i * rows));
        let (lhs, dst) = (lhs.shifted(first as isize * lhs.steps[0]), Target { data, step, add });
        macro_rules! of {
            ($rows:literal, $lanes:literal) => {
                simd(m * k * n, Dots::<T, $rows, $lanes> { dims: [m, k, n], lhs, rhs, dst })
            };
        }
        match (lanes, m) {
            (_, 1) => general([m, k, n], lhs, rhs, dst, 1),
            (16, 2) => of!(2, 16),
            (16, 3 | 5 | 6 | 9) => of!(3, 16),
            (16, _) => of!(4, 16),
            (_, 2) => of!(2, 8),
            _ => of!(3, 8),
        }
    };
    let data = &mut data[..(m - 1) * step + n];
    if threads == 1 { run(0, data) } else { threads::items_here(data, rows * step, &run) }
}

fn in_blocks<T: Multiplied>(
    tiles: &Tiles<T>,
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: Target<'_, T>,
) {
    // One side has to be turned: the left one, if that is so much smaller that the result may be written element by
    // element, each of which costs as much as two that are turned.
    let turns = lhs.steps[1] == 1 && rhs.steps[0] == 1 && rhs.steps[1] != 1;
    let across = turns && m >= ACROSS_MIN && n * k > m * (k + 2 * n);
    let ([m, n], lhs, rhs) = if across { ([n, m], rhs.transposed(), lhs.transposed()) } else { ([m, n], lhs, rhs) };
    let depth = k.div_ceil(k.div_ceil(if across { 2 * DEPTH } else { DEPTH }));
    let (panel, block) = (tiles.columns(), n.min(PANELS * tiles.columns()).next_multiple_of(tiles.lanes));
    let lies = rhs.steps[1] == 1 && m <= ROWS_MAX[usize::from(rhs.steps[0].abs() > SHORT)];
    let room = if lies && n.is_multiple_of(tiles.lanes) { 0 } else { depth * block };
    with_room(room, |room| {
        for p in (0..k).step_by(depth) {
            let (depth, add) = (depth.min(k - p), dst.add || p > 0);
            for j in (0..n).step_by(block) {
                let columns = block.min(n - j);
                let width = |at: usize| panel.min(columns - at);
                let whole = |at: usize| lies && width(at).is_multiple_of(tiles.lanes);
                for at in (0..columns).step_by(panel).filter(|&at| !whole(at)) {
                    let from = Matrix { start: rhs.place(p, j + at), ..rhs };
                    copy_right(tiles, depth, width(at), from, &mut room[at * depth..]);
                }
                let side = |i: usize| match i * panel {
                    at if at >= columns || whole(at) => Matrix { start: rhs.place(p, j + at), ..rhs },
                    at => {
                        let step = width(at).next_multiple_of(tiles.lanes);
                        Matrix { data: room, start: (at * depth) as isize, steps: [step as isize, 1] }
                    }
                };
                let left = Matrix { start: lhs.place(0, p), ..lhs };
                let start = if across { j * dst.step } else { j };
                let to = Target { data: &mut dst.data[start..], step: dst.step, add };
                tiles.run([m, depth, columns], left, &from_fn::<_, PANELS, _>(side), to, across);
            }
        }
    });
}

/// The columns of a panel up to a multiple of `lanes`, each of its rows behind the one before. What lies beyond the
/// panel is any numbers.
fn copy_right<T: Multiplied>(tiles: &Tiles<T>, depth: usize, width: usize, from: Matrix<'_, T>, to: &mut [T]) {
    let padded = width.next_multiple_of(tiles.lanes);
    let panel = Panel { from, width, padded, to: &mut to[..depth * padded] };
    let len = panel.to.len();
    match (from.steps, tiles.lanes) {
        ([_, 1], _) if width == padded => CopyRows::<T, 1>(panel).run(),
        ([_, 1], 16) => simd(len, CopyRows::<T, 16>(panel)),
        ([_, 1], 8) => simd(len, CopyRows::<T, 8>(panel)),
        ([_, 1], 4) => simd(len, CopyRows::<T, 4>(panel)),
        ([1, _], _) => simd(len, Turn(panel)),
        _ => CopyRows::<T, 1>(panel).run(),
    }
}

/// `width` columns, and where they go: rows of `padded` elements.
struct Panel<'a, T> {
    from: Matrix<'a, T>,
    width: usize,
    padded: usize,
    to: &'a mut [T],
}

/// Copies rows whose elements follow each other, `L` at a time.
struct CopyRows<'a, T, const L: usize>(Panel<'a, T>);

impl<T: Multiplied, const L: usize> Loop for CopyRows<'_, T, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Panel { from, width, padded, to } = self.0;
        for (p, row) in to.chunks_exact_mut(padded).enumerate() {
            if L == 1 {
                strided::put(from.data, from.place(p, 0), from.steps[1], &mut row[..width]);
                continue;
            }
            for (i, part) in row.as_chunks_mut::<L>().0.iter_mut().enumerate() {
                let at = from.place(p, i * L);
                match from.data.get(at as usize..).and_then(|rest| rest.first_chunk()) {
                    Some(whole) => *part = *whole,
                    _ => strided::put(from.data, at, from.steps[1], &mut part[..L.min(width - i * L)]),
                }
            }
        }
    }
}

/// Side of the squares that are turned at a time.
const SQUARE: usize = 4;

/// Copies rows whose columns follow each other.
struct Turn<'a, T>(Panel<'a, T>);

impl<T: Multiplied> Loop for Turn<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Panel { from, width, padded, to } = self.0;
        let mut at = 0;
        while width - at >= 4 * SQUARE {
            turn::<T, 4>(from, at, padded, to);
            at += 4 * SQUARE;
        }
        while width - at >= SQUARE {
            turn::<T, 1>(from, at, padded, to);
            at += SQUARE;
        }
        for c in at..width {
            for p in 0..to.len() / padded {
                to[p * padded + c] = from.data[from.place(p, c) as usize];
            }
        }
    }
}

/// A column: its part of whole squares, and what is left.
type Column<'a, T> = (&'a [[T; SQUARE]], &'a [T]);

/// So many squares of columns that follow each other.
#[inline(always)]
fn turn<T: Multiplied, const SQUARES: usize>(from: Matrix<'_, T>, at: usize, padded: usize, to: &mut [T]) {
    let depth = to.len() / padded;
    let column = |c: usize| from.data[from.place(0, at + c) as usize..][..depth].as_chunks::<SQUARE>();
    let mut columns: [[Column<'_, T>; SQUARE]; SQUARES] = [[(&[], &[]); SQUARE]; SQUARES];
    for (c, to) in columns.as_flattened_mut().iter_mut().enumerate() {
        *to = column(c);
    }
    let (whole, rest) = to.split_at_mut(depth / SQUARE * SQUARE * padded);
    for p in 0..depth / SQUARE {
        let mut turned = [[[T::ZERO; SQUARE]; SQUARE]; SQUARES];
        for (square, [a, b, c, d]) in turned.iter_mut().zip(&columns) {
            *square = T::turned([a.0[p], b.0[p], c.0[p], d.0[p]]);
        }
        let rows = &mut whole[p * SQUARE * padded..][..SQUARE * padded];
        for (q, row) in rows.chunks_exact_mut(padded).enumerate() {
            let parts = row[at..][..SQUARES * SQUARE].as_chunks_mut().0.iter_mut();
            parts.zip(&turned).for_each(|(part, square)| *part = square[q]);
        }
    }
    for (p, row) in rest.chunks_exact_mut(padded).enumerate() {
        let parts = row[at..].iter_mut();
        parts.zip(columns.as_flattened()).for_each(|(to, (_, column))| *to = column[p]);
    }
}

/// Calls `f` with so many elements, of any values, which the thread keeps.
fn with_room<T: Multiplied>(count: usize, f: impl FnOnce(&mut [T])) {
    if count == 0 {
        return f(&mut []);
    }
    // A thread that is ending keeps nothing.
    let mut room = ROOM.try_with(Cell::take).unwrap_or_default();
    let words = (count * size_of::<T>()).div_ceil(size_of::<u64>()) + LINE / size_of::<u64>();
    if room.len() < words {
        room.resize(words, 0);
    }
    let first = room.as_ptr().align_offset(LINE).min(LINE / size_of::<u64>());
    f(&mut cast_slice_mut(&mut room[first..])[..count]);
    let _ = ROOM.try_with(|kept| kept.set(room));
}
