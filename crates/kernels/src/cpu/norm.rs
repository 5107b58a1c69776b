//! Normalises rows to mean square 1, with or without taking off their mean first; and the gradient. `R` rows, `C`
//! columns.

use std::borrow::Cow;

use crate::cpu::{
    conv::dot,
    number::Float,
    operand::{In, Out},
    reduce,
    softmax::{MatrixRows, matrix},
    strided, threads,
    vector::simd,
};

/// Numbers for each column, one after the other: a copy, if they do not lie so.
fn list<T: Float>(view: Option<In<'_, T>>) -> Option<Cow<'_, [T]>> {
    view.map(|view| {
        view.dense().map(Cow::Borrowed).unwrap_or_else(|| {
            let mut list = vec![T::ZERO; view.layout.dims()[0]];
            strided::put(view.data, view.layout.offset() as isize, view.layout.strides()[0], &mut list);
            Cow::Owned(list)
        })
    })
}

/// What `eps` and the mean make of a row.
#[derive(Clone, Copy)]
pub(super) struct Evenly {
    pub(super) eps: f64,
    pub(super) centred: bool,
}

impl Evenly {
    /// `d` becomes the row without its mean; returns what it is to be divided by.
    fn centre<T: Float>(self, x: &[T], d: &mut [T]) -> T {
        let count = T::from_count(x.len());
        let mean = if self.centred { reduce::sum(x).div(count) } else { T::ZERO };
        simd(x.len(), || d.iter_mut().zip(x).for_each(|(d, &x)| *d = x.sub(mean)));
        dot(d, d, 0, 1).div(count).add(T::from_f64(self.eps)).sqrt()
    }
}

/// Rows for each part of the work: all of them, if there are few elements.
fn rows_each(rows: usize, columns: usize) -> usize {
    let many = if rows * columns < threads::ELEMENTS_MIN { None } else { threads::pool() };
    many.map_or(rows, |pool| rows.div_ceil(4 * pool.current_num_threads()))
}

pub(super) fn norm<T: Float>(
    src: In<'_, T>,
    scale: Option<In<'_, T>>,
    shift: Option<In<'_, T>>,
    dst: Out<'_, T>,
    way: Evenly,
) {
    let Some((count, columns)) = matrix(src.layout.dims()) else { return };
    let (scale, shift) = (list(scale), list(shift));
    let each = rows_each(count, columns);
    let part = |i: usize, dst: &mut [T]| {
        let mut rows = MatrixRows::new(src, columns);
        for (r, d) in dst.chunks_exact_mut(columns).enumerate() {
            let root = way.centre(rows.get(i * each + r), d);
            match &scale {
                Some(scale) => {
                    let by = root.recip();
                    simd(columns, || d.iter_mut().for_each(|d| *d = d.mul(by)));
                    simd(columns, || d.iter_mut().zip(&**scale).for_each(|(d, &s)| *d = d.mul(s)));
                }
                // For groups, whose elements are scaled later: as candle has it.
                None => simd(columns, || d.iter_mut().for_each(|d| *d = d.div(root))),
            }
            if let Some(shift) = &shift {
                simd(columns, || d.iter_mut().zip(&**shift).for_each(|(d, &s)| *d = d.add(s)));
            }
        }
    };
    let dst = dst.dense();
    match if each < count { threads::pool() } else { None } {
        Some(pool) => threads::items(pool, dst, each * columns, &part),
        None => part(0, dst),
    }
}

/// With `y` the even row, `h = grad scale` and `r` what the row was multiplied with:
/// `dst = r (h - mean(h) - y mean(h y))`, without `mean(h)` if it was not centred; `products = grad y`.
pub(super) fn norm_grad<T: Float>(
    src: In<'_, T>,
    grad: In<'_, T>,
    scale: Option<In<'_, T>>,
    [dst, products]: [Out<'_, T>; 2],
    way: Evenly,
) {
    let Some((count, columns)) = matrix(src.layout.dims()) else { return };
    let scale = list(scale);
    let each = rows_each(count, columns);
    let part = |i: usize, dst: &mut [T], products: &mut [T]| {
        let (mut rows, mut grads) = (MatrixRows::new(src, columns), MatrixRows::new(grad, columns));
        let lines = dst.chunks_exact_mut(columns).zip(products.chunks_exact_mut(columns));
        for (r, (d, y)) in lines.enumerate() {
            let by = way.centre(rows.get(i * each + r), y).recip();
            let g = grads.get(i * each + r);
            simd(columns, || y.iter_mut().for_each(|y| *y = y.mul(by)));
            match &scale {
                Some(scale) => {
                    simd(columns, || d.iter_mut().zip(g).zip(&**scale).for_each(|((d, &g), &s)| *d = g.mul(s)));
                }
                None => d.copy_from_slice(g),
            }
            let all = T::from_count(columns);
            let mean = if way.centred { reduce::sum(d).div(all) } else { T::ZERO };
            let slope = dot(d, y, 0, 1).div(all);
            simd(columns, || {
                for ((d, y), &g) in d.iter_mut().zip(y.iter_mut()).zip(g) {
                    *d = d.sub(mean).sub(y.mul(slope)).mul(by);
                    *y = y.mul(g);
                }
            });
        }
    };
    let (dst, products, size) = (dst.dense(), products.dense(), each * columns);
    match if each < count { threads::pool() } else { None } {
        Some(pool) => threads::items2(pool, (dst, products), [size; 2], &part),
        None => part(0, dst, products),
    }
}
