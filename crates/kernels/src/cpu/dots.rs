//! Products of few rows whose sides both lie along the inner axis, as those with the weights of a layer do: squares of
//! dot products. Nothing is copied or turned, and the right side is read once.

use super::{
    matrix::{Matrix, Target},
    vector::{Loop, Multiplied},
};

/// Columns of a square, which has at most as many rows.
pub(super) const SIDE: usize = 4;

/// A product of `[M, K, N]` in squares of `ROWS` rows and [`SIDE`] columns, of which there are as many at least; in
/// vectors of `LANES` elements, at least one. The last squares begin where those before them end, or earlier.
pub(super) struct Dots<'a, T, const ROWS: usize, const LANES: usize> {
    pub(super) dims: [usize; 3],
    pub(super) lhs: Matrix<'a, T>,
    pub(super) rhs: Matrix<'a, T>,
    pub(super) dst: Target<'a, T>,
}

impl<T: Multiplied, const ROWS: usize, const LANES: usize> Loop for Dots<'_, T, ROWS, LANES> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let [m, k, n] = self.dims;
        // The last vector of a line ends with it: what is in the one before too counts as 0.
        let mut counts = [T::ONE; LANES];
        counts[..(LANES - k % LANES) % LANES].fill(T::ZERO);
        let (mut j, mut columns) = (0, 0);
        while columns < n {
            let right = lines::<T, SIDE>(self.rhs.transposed(), j, k);
            let (mut i, mut rows) = (0, 0);
            while rows < m {
                let sums = square(lines::<T, ROWS>(self.lhs, i, k), right, k, &counts);
                for (row, sums) in (i..).zip(&sums).skip(rows - i) {
                    self.dst.put(row, columns, &sums[columns - j..]);
                }
                rows = i + ROWS;
                i = rows.min(m - ROWS);
            }
            columns = j + SIDE;
            j = columns.min(n - SIDE);
        }
    }
}

/// Rows of a matrix, from row `from` on.
#[inline(always)]
fn lines<'a, T: Copy, const COUNT: usize>(of: Matrix<'a, T>, from: usize, k: usize) -> [&'a [T]; COUNT] {
    let mut lines = [&of.data[..0]; COUNT];
    for (row, line) in (from..).zip(&mut lines) {
        *line = &of.data[of.place(row, 0) as usize..][..k];
    }
    lines
}

/// The dot products of each row with each column, of `k` elements.
#[inline(always)]
fn square<T: Multiplied, const ROWS: usize, const LANES: usize>(
    left: [&[T]; ROWS],
    right: [&[T]; SIDE],
    k: usize,
    counts: &[T; LANES],
) -> [[T; SIDE]; ROWS] {
    let sums = in_vectors(left, right, k, counts);
    let mut totals = [[T::ZERO; SIDE]; ROWS];
    for (total, [a, b, c, d]) in totals.iter_mut().zip(&sums) {
        for line in T::turned([T::folded(a), T::folded(b), T::folded(c), T::folded(d)]) {
            for column in 0..SIDE {
                total[column] = total[column].add(line[column]);
            }
        }
    }
    totals
}

/// The sums of the products, in vectors. Apart, so that they stay in registers.
#[inline(always)]
fn in_vectors<T: Multiplied, const ROWS: usize, const LANES: usize>(
    left: [&[T]; ROWS],
    right: [&[T]; SIDE],
    k: usize,
    counts: &[T; LANES],
) -> [[[T; LANES]; SIDE]; ROWS] {
    let mut sums = [[[T::ZERO; LANES]; SIDE]; ROWS];
    for p in (0..k - k % LANES).step_by(LANES) {
        add(&mut sums, &vectors(left, p), &vectors(right, p));
    }
    if !k.is_multiple_of(LANES) {
        add(&mut sums, &counted(vectors(left, k - LANES), counts), &counted(vectors(right, k - LANES), counts));
    }
    sums
}

/// A vector of each line, from element `at` on.
#[inline(always)]
fn vectors<T: Multiplied, const COUNT: usize, const LANES: usize>(
    lines: [&[T]; COUNT],
    at: usize,
) -> [[T; LANES]; COUNT] {
    let mut vectors = [[T::ZERO; LANES]; COUNT];
    for (vector, line) in vectors.iter_mut().zip(lines) {
        *vector = *line[at..].first_chunk().expect("a line has a vector at least");
    }
    vectors
}

/// Zeros but where `counts` has 1.
#[inline(always)]
fn counted<T: Multiplied, const COUNT: usize, const LANES: usize>(
    mut vectors: [[T; LANES]; COUNT],
    counts: &[T; LANES],
) -> [[T; LANES]; COUNT] {
    for vector in &mut vectors {
        for lane in 0..LANES {
            vector[lane] = if counts[lane] == T::ONE { vector[lane] } else { T::ZERO };
        }
    }
    vectors
}

/// Adds the products of a vector of each row and each column.
#[inline(always)]
fn add<T: Multiplied, const ROWS: usize, const LANES: usize>(
    sums: &mut [[[T; LANES]; SIDE]; ROWS],
    left: &[[T; LANES]; ROWS],
    right: &[[T; LANES]; SIDE],
) {
    for (sums, x) in sums.iter_mut().zip(left) {
        for (sum, y) in sums.iter_mut().zip(right) {
            for lane in 0..LANES {
                sum[lane] = x[lane].times_plus(y[lane], sum[lane]);
            }
        }
    }
}
