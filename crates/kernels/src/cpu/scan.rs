//! Running sums, products and extremes along an axis. Lines go side by side: each waits for its own last element, and
//! not for those of others.

use crate::axiswise::ScanOp;
use crate::base::{error::Result, heap};
use crate::cpu::{
    number::{Float, Number},
    operand::{In, Out},
    special::log_add_exp,
    strided::StridedIter,
};

/// Lines that go together.
const SIDE: usize = 64;

/// Calls `f` with groups of lines along `axis`: where their first elements lie, the steps between them, how many.
fn lines<const N: usize>(
    layouts: [&crate::base::layout::Layout; N],
    axis: usize,
    f: &mut dyn FnMut([isize; N], [isize; N], usize),
) {
    let iter = StridedIter::in_order(layouts, Some(axis));
    let steps = iter.steps();
    iter.rows(&mut |starts: [isize; N]| {
        for first in (0..iter.len()).step_by(SIDE) {
            let at = std::array::from_fn(|n| starts[n] + first as isize * steps[n]);
            f(at, steps, SIDE.min(iter.len() - first));
        }
    });
}

/// The places of an axis in the order of the scan.
fn order(len: usize, reverse: bool) -> impl Iterator<Item = isize> {
    (0..len as isize).map(move |i| if reverse { len as isize - 1 - i } else { i })
}

fn scan_by<T: Number, A: Copy>(
    src: In<'_, T>,
    dst: Out<'_, T>,
    (axis, reverse): (usize, bool),
    first: A,
    next: impl Fn(A, T) -> A,
    value: impl Fn(A) -> T,
) {
    let Out { data, layout } = dst;
    let (len, along) = (layout.dims()[axis], [layout.strides()[axis], src.layout.strides()[axis]]);
    lines([layout, src.layout], axis, &mut |starts, steps, count| {
        let mut kept = [first; SIDE];
        for i in order(len, reverse) {
            let (to, from) = (starts[0] + i * along[0], starts[1] + i * along[1]);
            for (j, kept) in kept[..count].iter_mut().enumerate() {
                *kept = next(*kept, src.data[(from + j as isize * steps[1]) as usize]);
                data[(to + j as isize * steps[0]) as usize] = value(*kept);
            }
        }
    });
}

pub(super) fn scan<T: Number>(op: ScanOp, src: In<'_, T>, dst: Out<'_, T>, axis: usize, reverse: bool) {
    let way = (axis, reverse);
    match op {
        ScanOp::Max => scan_by(src, dst, way, T::LOWEST, T::max_or_nan, |best| best),
        ScanOp::Min => scan_by(src, dst, way, T::HIGHEST, T::min_or_nan, |best| best),
        // Known to the compiler, so that no dtype has the code of both.
        _ if const { T::DTYPE.is_float() } => scan_of_floats(op, src, dst, way),
        _ => scan_of_integers(op, src, dst, way),
    }
}

/// Sums, products and logarithms of sums, in f64.
fn scan_of_floats<T: Number>(op: ScanOp, src: In<'_, T>, dst: Out<'_, T>, way: (usize, bool)) {
    match op {
        ScanOp::LogSumExp => {
            scan_by(src, dst, way, f64::NEG_INFINITY, |sum, x| log_add_exp(sum, x.to_f64()), T::from_f64);
        }
        ScanOp::Prod => scan_by(src, dst, way, 1.0, |product: f64, x| product * x.to_f64(), T::from_f64),
        _ => scan_by(src, dst, way, 0.0, |sum: f64, x| sum + x.to_f64(), T::from_f64),
    }
}

/// Sums and products.
fn scan_of_integers<T: Number>(op: ScanOp, src: In<'_, T>, dst: Out<'_, T>, way: (usize, bool)) {
    match op {
        ScanOp::Prod => scan_by(src, dst, way, T::ONE, T::mul, |product| product),
        _ => scan_by(src, dst, way, T::ZERO, T::add, |sum| sum),
    }
}

/// Whether `x` takes the place of the extreme so far.
pub(super) fn beats<T: Number>(op: ScanOp, x: T, best: T) -> bool {
    let is_beyond = if op == ScanOp::Max { x > best } else { x < best };
    is_beyond || x.is_nan() && !best.is_nan()
}

pub(super) fn scan_with_ids<T: Number>(op: ScanOp, src: In<'_, T>, dst: Out<'_, T>, ids: Out<'_, u32>, axis: usize) {
    let layouts = [dst.layout, src.layout, ids.layout];
    let (len, along) = (dst.layout.dims()[axis], layouts.map(|layout| layout.strides()[axis]));
    lines(layouts, axis, &mut |starts, steps, count| {
        let mut kept: [Option<(T, u32)>; SIDE] = [None; SIDE];
        for i in order(len, false) {
            for (j, kept) in kept[..count].iter_mut().enumerate() {
                let place = |n: usize| (starts[n] + i * along[n] + j as isize * steps[n]) as usize;
                let (to, from, id) = (place(0), place(1), place(2));
                let x = src.data[from];
                let best = kept.filter(|best| !beats(op, x, best.0)).unwrap_or((x, i as u32));
                *kept = Some(best);
                (dst.data[to], ids.data[id]) = best;
            }
        }
    });
}

/// `dst[k] = p[k] s[k]`: the product of all before `k`, and `s[k] = grad[k] + x[k + 1] s[k + 1]`. No division, so that
/// a 0 is a number as any other; both in f64, so that between large numbers and a 0 neither is infinite.
pub(super) fn prod_grad<T: Float>(src: In<'_, T>, grad: In<'_, T>, dst: Out<'_, T>, axis: usize) -> Result<()> {
    let mut products: Vec<f64> = heap::zeros("cumprod", dst.layout.dims()[axis])?;
    let layouts = [dst.layout, src.layout, grad.layout];
    let (len, along) = (dst.layout.dims()[axis] as isize, layouts.map(|layout| layout.strides()[axis]));
    lines(layouts, axis, &mut |starts, steps, count| {
        for j in 0..count as isize {
            let place = |n: usize, i: isize| (starts[n] + i * along[n] + j * steps[n]) as usize;
            let mut before = 1.0;
            for (product, i) in products.iter_mut().zip(0..len) {
                *product = before;
                before *= src.data[place(1, i)].to_f64();
            }
            let mut behind = 0.0;
            for (product, i) in products.iter().zip(0..len).rev() {
                behind += grad.data[place(2, i)].to_f64();
                dst.data[place(0, i)] = T::from_f64(product * behind);
                behind *= src.data[place(1, i)].to_f64();
            }
        }
    });
    Ok(())
}
