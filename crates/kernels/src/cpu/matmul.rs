//! Matrix products, also of many matrices and of strided ones.
//!
//! `B` batch, `M x K` times `K x N`. Tiny products are computed here, since preparing the general routine takes
//! longer than they do. A batch whose right side repeats is one product of `B M` rows.

use std::slice::ChunksMut;

use crate::cpu::{
    matrix::{Matrix, Target},
    number::Number,
    operand::{In, Out},
    strided, threads,
    vector::{Loop, simd},
};

/// Multiplications up to which a product counts as tiny.
const TINY_MAX: usize = 1024;
/// The longest inner axis of a tiny product.
const DEPTH_MAX: usize = 64;
/// Columns computed together by the tiny product.
const PANEL: usize = 8;
/// Multiplications from which one product is worth several threads.
pub(super) const THREADS_MIN: usize = 8 << 20;

/// A batch axis: how many, and the strides of both sides.
#[derive(Clone, Copy)]
struct BatchAxis {
    len: usize,
    lhs: isize,
    rhs: isize,
}

/// A whole product: sizes, the first matrices, and the batch axes that are longer than 1.
struct ProductJob<'a, T> {
    m: usize,
    k: usize,
    n: usize,
    lhs: Matrix<'a, T>,
    rhs: Matrix<'a, T>,
    batch: [BatchAxis; 4],
    rank: usize,
}

impl<'a, T: Number> ProductJob<'a, T> {
    fn new(lhs: In<'a, T>, rhs: In<'a, T>) -> Self {
        let (ld, rd) = (lhs.layout.dims(), rhs.layout.dims());
        let (ls, rs) = (lhs.layout.strides(), rhs.layout.strides());
        let lead = ld.len() - 2;
        let none = BatchAxis { len: 1, lhs: 0, rhs: 0 };
        let mut job = ProductJob {
            m: ld[lead],
            k: ld[lead + 1],
            n: rd[lead + 1],
            lhs: Matrix { data: lhs.data, start: lhs.layout.offset() as isize, steps: [ls[lead], ls[lead + 1]] },
            rhs: Matrix { data: rhs.data, start: rhs.layout.offset() as isize, steps: [rs[lead], rs[lead + 1]] },
            batch: [none; 4],
            rank: 0,
        };
        for i in 0..lead {
            if ld[i] != 1 {
                job.batch[job.rank] = BatchAxis { len: ld[i], lhs: ls[i], rhs: rs[i] };
                job.rank += 1;
            }
        }
        job.join_rows();
        job
    }

    /// Takes batch axes over which the right side repeats as further rows of the left one.
    fn join_rows(&mut self) {
        while self.rank > 0 {
            let BatchAxis { len, lhs, rhs } = self.batch[self.rank - 1];
            // As of `StridedIter`: without elements a step may be as long as numbers go.
            let follows = self.m == 1 || lhs == self.lhs.steps[0].wrapping_mul(self.m as isize);
            if rhs != 0 || !follows {
                return;
            }
            if self.m == 1 {
                self.lhs.steps[0] = lhs;
            }
            self.m *= len;
            self.rank -= 1;
        }
    }

    fn items(&self) -> usize {
        let mut items = 1;
        for batch in &self.batch[..self.rank] {
            items *= batch.len;
        }
        items
    }

    /// Both matrices of one item.
    fn item(&self, mut index: usize) -> (Matrix<'a, T>, Matrix<'a, T>) {
        let (mut left, mut right) = (0, 0);
        for batch in self.batch[..self.rank].iter().rev() {
            let at = (index % batch.len) as isize;
            index /= batch.len;
            left += at * batch.lhs;
            right += at * batch.rhs;
        }
        (self.lhs.shifted(left), self.rhs.shifted(right))
    }
}

/// How a product that is not tiny is computed: `[M, K, N]`, both sides, the result, and threads to do it on.
pub(super) type ProductFn<T> = fn([usize; 3], Matrix<'_, T>, Matrix<'_, T>, &mut [T], usize);

pub(super) fn matmul<T: Number>(lhs: In<'_, T>, rhs: In<'_, T>, dst: Out<'_, T>, product: ProductFn<T>) {
    let dst = dst.dense();
    if dst.is_empty() {
        return;
    }
    let job = ProductJob::new(lhs, rhs);
    // Of operands that repeat, the depth is bound by no memory.
    let size = job.m * job.n;
    let work = size.saturating_mul(job.k);
    if work == 0 {
        return dst.fill(T::ZERO);
    }
    let one = |i: usize, dst: &mut [T]| {
        let (lhs, rhs) = job.item(i);
        let dims = [job.m, job.k, job.n];
        if !at_once(dims, lhs, rhs, &mut Target { data: dst, step: job.n, add: false }) {
            product(dims, lhs, rhs, dst, 1);
        }
    };
    let items = job.items();
    let pool = if work.saturating_mul(items) < THREADS_MIN { None } else { threads::pool() };
    match pool {
        Some(pool) if items >= pool.current_num_threads() => threads::items(pool, dst, size, &one),
        Some(pool) => threads::inside(pool, &mut || {
            for (i, dst) in dst.chunks_exact_mut(size).enumerate() {
                let (lhs, rhs) = job.item(i);
                product([job.m, job.k, job.n], lhs, rhs, dst, pool.current_num_threads());
            }
        }),
        None => {
            for (i, dst) in dst.chunks_exact_mut(size).enumerate() {
                one(i, dst);
            }
        }
    }
}

/// Computes the product if it is tiny; `false` if it is not, and nothing has happened.
pub(super) fn at_once<T: Number>(
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: &mut Target<'_, T>,
) -> bool {
    let dims = [m, k, n];
    match k {
        _ if (m * n).saturating_mul(k) > TINY_MAX => return false,
        0..=8 => tiny::<T, 8>(dims, lhs, rhs, dst),
        9..=DEPTH_MAX => tiny::<T, DEPTH_MAX>(dims, lhs, rhs, dst),
        _ => return false,
    }
    true
}

/// Rows computed together by the tiny product of plain rows.
const BLOCK: usize = 4;

/// A tiny product whose sides both have their rows one after the other, in squares of `BLOCK` rows and `PANEL` columns.
struct OfRows<'a, 'd, T> {
    dims: [usize; 3],
    left: &'a [T],
    right: &'a [T],
    dst: &'a mut Target<'d, T>,
}

impl<T: Number> Loop for OfRows<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let OfRows { dims: [m, k, n], left, right, dst } = self;
        for i in (0..m).step_by(BLOCK) {
            let row = |r: usize| &left[(i + r) * k..][..k];
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            for j in (0..n).step_by(PANEL) {
                let mut sums = [[T::ZERO; PANEL]; BLOCK];
                for ((((y, &a), &b), &c), &d) in right.chunks_exact(n).zip(a).zip(b).zip(c).zip(d) {
                    let y: &[T; PANEL] = y[j..].first_chunk().expect("n is a multiple of PANEL");
                    let x = [a, b, c, d];
                    for r in 0..BLOCK {
                        let (sums, x) = (&mut sums[r], x[r]);
                        for column in 0..PANEL {
                            sums[column] = sums[column].add(x.mul(y[column]));
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    dst.put(i + r, j, sums);
                }
            }
        }
    }
}

/// Columns of a product, `width` of them from column `j` on, whose right side is a panel, padded with zeros.
struct OfPanel<'a, 'd, T> {
    lhs: Matrix<'a, T>,
    panel: &'a [[T; PANEL]],
    dst: &'a mut Target<'d, T>,
    m: usize,
    j: usize,
    width: usize,
}

impl<T: Number> Loop for OfPanel<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let OfPanel { lhs, panel, dst, m, j, width } = self;
        for i in 0..m {
            let mut sums = [T::ZERO; PANEL];
            for (p, row) in panel.iter().enumerate() {
                let x = lhs.data[lhs.place(i, p) as usize];
                for (sum, &y) in sums.iter_mut().zip(row) {
                    *sum = sum.add(x.mul(y));
                }
            }
            dst.put(i, j, &sums[..width]);
        }
    }
}

/// A product of few multiplications: panels of the right side, copied and padded with zeros. `K` is at most `DEPTH`.
fn tiny<T: Number, const DEPTH: usize>(
    dims: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: &mut Target<'_, T>,
) {
    let [m, k, n] = dims;
    if m.is_multiple_of(BLOCK)
        && n.is_multiple_of(PANEL)
        && lhs.steps == [k as isize, 1]
        && rhs.steps == [n as isize, 1]
    {
        let (left, right) = (&lhs.data[lhs.start as usize..], &rhs.data[rhs.start as usize..]);
        return simd(m * k * n, OfRows { dims, left, right, dst });
    }
    let mut panel = [[T::ZERO; PANEL]; DEPTH];
    let panel = &mut panel[..k];
    for j in (0..n).step_by(PANEL) {
        let width = PANEL.min(n - j);
        for (p, row) in panel.iter_mut().enumerate() {
            strided::put(rhs.data, rhs.place(p, j), rhs.steps[1], &mut row[..width]);
        }
        simd(m * k * width, OfPanel { lhs, panel, dst, m, j, width });
    }
}

/// Side of the squares of the right side that stay in the first cache while rows of the left one pass.
const SQUARE: usize = 32;
/// Rows of the result that a thread takes at a time.
const ROWS: usize = 16;

/// A product of integers, for which there is no library: wrapping.
pub(super) fn of_integers<T: Number>(
    dims: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: &mut [T],
    threads: usize,
) {
    let [m, k, n] = dims;
    if threads > 1 && m > ROWS {
        return threads::items_here(dst, ROWS * n, &|i: usize, dst: &mut [T]| {
            let lhs = lhs.shifted((i * ROWS) as isize * lhs.steps[0]);
            of_integers([dst.len() / n, k, n], lhs, rhs, dst, 1);
        });
    }
    dst.fill(T::ZERO);
    let mut square = [[T::ZERO; SQUARE]; SQUARE];
    for j in (0..n).step_by(SQUARE) {
        let width = SQUARE.min(n - j);
        for start in (0..k).step_by(SQUARE) {
            let square = &mut square[..SQUARE.min(k - start)];
            for (p, row) in square.iter_mut().enumerate() {
                strided::put(rhs.data, rhs.place(start + p, j), rhs.steps[1], &mut row[..width]);
            }
            let rows = Matrix { start: lhs.place(0, start), ..lhs };
            let dst = dst[j..].chunks_mut(n);
            simd(m * width, AddSquare { lhs: rows, square, width, dst });
        }
    }
}

/// Adds the product of rows and a square to the first columns of rows of the result.
struct AddSquare<'a, T> {
    lhs: Matrix<'a, T>,
    square: &'a [[T; SQUARE]],
    width: usize,
    dst: ChunksMut<'a, T>,
}

impl<T: Number> Loop for AddSquare<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let AddSquare { lhs, square, width, dst } = self;
        for (i, row) in dst.enumerate() {
            let sums = &mut row[..width];
            for (p, row) in square.iter().enumerate() {
                let x = lhs.data[lhs.place(i, p) as usize];
                sums.iter_mut().zip(row).for_each(|(sum, &y)| *sum = sum.add(x.mul(y)));
            }
        }
    }
}
