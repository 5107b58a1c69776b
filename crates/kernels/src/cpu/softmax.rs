//! Softmax over rows, its logarithm, the cross entropy, and their gradients.
//!
//! `R` rows, `C` columns. Each row is shifted by its largest element before anything is raised, so that no
//! finite input overflows. Short rows are raised together, several at a time: the exponential is a vector
//! loop, which a row of ten classes would not fill.

use crate::base::error::{Error, Result};
use crate::cpu::{
    number::{Float, IndexElement},
    operand::{In, Out},
    reduce, strided,
    vector::simd,
};

/// Elements raised at a time, if rows are shorter; and the most rows.
const BLOCK: usize = 1024;
const BLOCK_ROWS: usize = 64;

/// The dims of `[R, C]`; `None` if there is nothing to do.
pub(super) fn matrix(dims: &[usize]) -> Option<(usize, usize)> {
    match *dims {
        [r, c] if r > 0 && c > 0 => Some((r, c)),
        _ => None,
    }
}

/// Rows of a matrix as slices, copied to a buffer if their elements do not follow each other.
pub(super) struct MatrixRows<'a, T> {
    data: &'a [T],
    columns: usize,
    steps: [isize; 2],
    start: isize,
    buffer: Vec<T>,
}

impl<'a, T: Float> MatrixRows<'a, T> {
    pub(super) fn new(src: In<'a, T>, columns: usize) -> Self {
        let strides = src.layout.strides();
        let (steps, start) = ([strides[0], strides[1]], src.layout.offset() as isize);
        let buffer = if steps[1] == 1 { Vec::new() } else { vec![T::ZERO; columns] };
        MatrixRows { data: src.data, columns, steps, start, buffer }
    }

    #[inline]
    pub(super) fn get(&mut self, r: usize) -> &[T] {
        let at = self.start + r as isize * self.steps[0];
        if self.steps[1] == 1 || self.columns == 1 {
            return &self.data[at as usize..at as usize + self.columns];
        }
        strided::gather(self.data, at, self.steps[1], &mut self.buffer);
        &self.buffer
    }

    fn element(&self, r: usize, c: usize) -> T {
        self.data[(self.start + r as isize * self.steps[0] + c as isize * self.steps[1]) as usize]
    }
}

/// `e^(x - max)` of each row, from row `first` on. `tail` gets every raised row with its place in the block, and the
/// largest element that it had.
fn raise<T: Float>(
    rows: &mut MatrixRows<'_, T>,
    first: usize,
    block: &mut [T],
    mut tail: impl FnMut(usize, T, &mut [T]),
) {
    let columns = rows.columns;
    let mut tops = [T::ZERO; BLOCK_ROWS];
    for ((i, d), top) in block.chunks_exact_mut(columns).enumerate().zip(&mut tops) {
        let x = rows.get(first + i);
        *top = reduce::max(x);
        shift(x, *top, d);
    }
    exp_all(block);
    for ((i, d), &top) in block.chunks_exact_mut(columns).enumerate().zip(&tops) {
        tail(i, top, d);
    }
}

#[inline(never)]
fn shift<T: Float>(row: &[T], by: T, dst: &mut [T]) {
    simd(row.len(), || dst.iter_mut().zip(row).for_each(|(d, &x)| *d = x.sub(by)));
}

#[inline(never)]
fn exp_all<T: Float>(block: &mut [T]) {
    simd(block.len(), || block.iter_mut().for_each(|d| *d = d.exp()));
}

#[inline(never)]
fn scale<T: Float>(row: &mut [T], by: T) {
    simd(row.len(), || row.iter_mut().for_each(|d| *d = d.mul(by)));
}

/// Rows raised at a time.
fn rows_at_once(columns: usize) -> usize {
    (BLOCK / columns).clamp(1, BLOCK_ROWS)
}

pub(super) fn softmax<T: Float>(src: In<'_, T>, dst: Out<'_, T>, log: bool) {
    let Some((_, columns)) = matrix(src.layout.dims()) else { return };
    let mut rows = MatrixRows::new(src, columns);
    let at_once = rows_at_once(columns);
    for (i, block) in dst.dense().chunks_mut(at_once * columns).enumerate() {
        if log {
            log_block(&mut rows, i * at_once, block);
        } else {
            raise(&mut rows, i * at_once, block, |_, _, d| scale(d, reduce::sum(d).recip()));
        }
    }
}

fn log_block<T: Float>(rows: &mut MatrixRows<'_, T>, first: usize, block: &mut [T]) {
    let mut shifts = [(T::ZERO, T::ZERO); BLOCK_ROWS];
    raise(rows, first, block, |i, top, d| shifts[i] = (top, reduce::sum(d).ln()));
    for ((i, d), &(top, log)) in block.chunks_exact_mut(rows.columns).enumerate().zip(&shifts) {
        let x = rows.get(first + i);
        // One after the other: their sum would round away what is small beside a large element.
        simd(d.len(), || d.iter_mut().zip(x).for_each(|(d, &x)| *d = x.sub(top).sub(log)));
    }
}

/// Softmax: `dst = out * (grad - sum(out * grad))`. Its logarithm: `dst = grad - e^out * sum(grad)`.
pub(super) fn softmax_grad<T: Float>(out: In<'_, T>, grad: In<'_, T>, dst: Out<'_, T>, log: bool) {
    let Some((_, columns)) = matrix(out.layout.dims()) else { return };
    let (mut outs, mut grads) = (MatrixRows::new(out, columns), MatrixRows::new(grad, columns));
    for (r, d) in dst.dense().chunks_exact_mut(columns).enumerate() {
        let (y, g) = (outs.get(r), grads.get(r));
        if log {
            let sum = reduce::sum(g);
            simd(columns, || d.iter_mut().zip(y).zip(g).for_each(|((d, &y), &g)| *d = g.sub(y.exp().mul(sum))));
        } else {
            simd(columns, || d.iter_mut().zip(y).zip(g).for_each(|((d, &y), &g)| *d = y.mul(g)));
            let sum = reduce::sum(d);
            simd(columns, || d.iter_mut().zip(y).zip(g).for_each(|((d, &y), &g)| *d = y.mul(g.sub(sum))));
        }
    }
}

/// The label of row `r`, which was checked.
fn label<I: IndexElement>(labels: In<'_, I>, r: usize) -> usize {
    let at = labels.layout.offset() as isize + r as isize * labels.layout.strides()[0];
    labels.data[at as usize].convert() as usize
}

fn check_labels<I: IndexElement>(labels: In<'_, I>, rows: usize, columns: usize) -> Result<()> {
    for r in 0..rows {
        let at = labels.layout.offset() as isize + r as isize * labels.layout.strides()[0];
        let index = labels.data[at as usize].convert();
        if usize::try_from(index).is_ok_and(|label| label < columns) {
            continue;
        }
        return Err(Error::index_out_of_range("cross_entropy", index, columns));
    }
    Ok(())
}

/// The loss of no rows is NaN, the mean of nothing.
pub(super) fn cross_entropy<T: Float, I: IndexElement>(
    logits: In<'_, T>,
    labels: In<'_, I>,
    probs: Out<'_, T>,
    loss: Out<'_, T>,
) -> Result<()> {
    let (rows, columns) = match *logits.layout.dims() {
        [r, c] => (r, c),
        _ => (0, 0),
    };
    check_labels(labels, rows, columns)?;
    let mut total = 0.0;
    if rows > 0 {
        let mut source = MatrixRows::new(logits, columns);
        let at_once = rows_at_once(columns);
        for (i, block) in probs.dense().chunks_mut(at_once * columns).enumerate() {
            total += entropy_block(&mut source, labels, i * at_once, block);
        }
    }
    loss.dense()[0] = T::from_f64(total / rows as f64);
    Ok(())
}

/// Probabilities of a block of rows; the sum of their losses.
fn entropy_block<T: Float, I: IndexElement>(
    rows: &mut MatrixRows<'_, T>,
    labels: In<'_, I>,
    first: usize,
    block: &mut [T],
) -> f64 {
    let mut tops = [T::ZERO; BLOCK_ROWS];
    let mut total = 0.0;
    raise(rows, first, block, |i, top, d| {
        let sum = reduce::sum(d);
        tops[i] = top;
        total += sum.ln().to_f64();
        scale(d, sum.recip());
    });
    for (i, top) in tops[..block.len() / rows.columns].iter().enumerate() {
        total += top.sub(rows.element(first + i, label(labels, first + i))).to_f64();
    }
    total
}

/// `dst = (probs - onehot(labels)) * grad / R`.
pub(super) fn cross_entropy_grad<T: Float, I: IndexElement>(
    probs: In<'_, T>,
    labels: In<'_, I>,
    grad: In<'_, T>,
    dst: Out<'_, T>,
) -> Result<()> {
    let Some((rows, columns)) = matrix(probs.layout.dims()) else { return Ok(()) };
    check_labels(labels, rows, columns)?;
    let factor = grad.data[grad.layout.offset()].div(T::from_count(rows));
    let mut source = MatrixRows::new(probs, columns);
    for (r, d) in dst.dense().chunks_exact_mut(columns).enumerate() {
        let p = source.get(r);
        simd(columns, || d.iter_mut().zip(p).for_each(|(d, &p)| *d = p.mul(factor)));
        let at = label(labels, r);
        d[at] = p[at].sub(T::ONE).mul(factor);
    }
    Ok(())
}
