//! Extremes and means of what lies under a window, and their gradients. Channels go side by side.

use std::ops::Range;

use crate::cpu::{
    conv::{Image, parts},
    number::{Float, Number},
    operand::{In, Out},
    threads,
};
use crate::window::Window;

/// Calls `f` with the number of each place and what it covers on each axis.
fn output_positions(window: &Window, ins: [usize; 3], adaptive: bool, mut f: impl FnMut(usize, [Range<usize>; 3])) {
    let mut place = 0;
    for d in 0..window.out[0] {
        let ds = window.span(0, d, ins[0], adaptive);
        for h in 0..window.out[1] {
            let hs = window.span(1, h, ins[1], adaptive);
            for w in 0..window.out[2] {
                f(place, [ds.clone(), hs.clone(), window.span(2, w, ins[2], adaptive)]);
                place += 1;
            }
        }
    }
}

/// Calls `f` with each covered element of a channel of an image, and where it lies in a contiguous one.
#[inline(always)]
fn covered<T: Copy>(image: &Image<'_, T>, base: isize, [ds, hs, ws]: [Range<usize>; 3], mut f: impl FnMut(T, usize)) {
    let [.., of_d, of_h, of_w] = image.steps;
    for d in ds {
        for h in hs.clone() {
            let line = base + d as isize * of_d + h as isize * of_h;
            let first = (d * image.ins[1] + h) * image.ins[2];
            for w in ws.clone() {
                f(image.data[(line + w as isize * of_w) as usize], first + w);
            }
        }
    }
}

/// The largest element of each place; the first NaN is larger than any number.
fn largest<T: Number>(image: &Image<'_, T>, base: isize, at: [Range<usize>; 3]) -> (T, usize) {
    let mut best = (T::LOWEST, usize::MAX);
    covered(image, base, at, |x, place| {
        if x > best.0 || best.1 == usize::MAX || x.is_nan() && !best.0.is_nan() {
            best = (x, place);
        }
    });
    best
}

fn channels<T>(image: &In<'_, T>) -> usize {
    image.layout.dims()[1].max(1)
}

pub(super) fn max<T: Number>(image: In<'_, T>, dst: Out<'_, T>, window: &Window, adaptive: bool) {
    let (channels, image) = (channels(&image), Image::new(image));
    let dst = dst.dense();
    if dst.is_empty() {
        return;
    }
    parts(dst, window.output_positions(), &|i: usize, dst: &mut [T]| {
        let base = image.plane(i / channels, i % channels);
        output_positions(window, image.ins, adaptive, |place, at| dst[place] = largest(&image, base, at).0);
    });
}

pub(super) fn max_with_ids<T: Number>(
    image: In<'_, T>,
    dst: Out<'_, T>,
    ids: Out<'_, u32>,
    window: &Window,
    adaptive: bool,
) {
    let (channels, image) = (channels(&image), Image::new(image));
    let (dst, ids, size) = (dst.dense(), ids.dense(), window.output_positions());
    if dst.is_empty() {
        return;
    }
    let one = |i: usize, dst: &mut [T], ids: &mut [u32]| {
        let base = image.plane(i / channels, i % channels);
        output_positions(window, image.ins, adaptive, |place, at| {
            let (value, id) = largest(&image, base, at);
            (dst[place], ids[place]) = (value, id as u32);
        });
    };
    match if dst.len() < threads::ELEMENTS_MIN { None } else { threads::pool() } {
        None => {
            let parts = dst.chunks_exact_mut(size).zip(ids.chunks_exact_mut(size)).enumerate();
            parts.for_each(|(i, (dst, ids))| one(i, dst, ids));
        }
        Some(pool) => threads::items2(pool, (dst, ids), [size; 2], &one),
    }
}

pub(super) fn max_grad<T: Float>(grad: In<'_, T>, ids: In<'_, u32>, image: Out<'_, T>, size: usize) {
    let (grad, ids) = (grad.all(), ids.all());
    let pixels = image.layout.dims()[2..].iter().product();
    let dst = image.dense();
    if dst.is_empty() {
        return;
    }
    parts(dst, pixels, &|i: usize, plane: &mut [T]| {
        plane.fill(T::ZERO);
        let own = i * size..(i + 1) * size;
        for (&g, &id) in grad[own.clone()].iter().zip(&ids[own]) {
            plane[id as usize] = plane[id as usize].add(g);
        }
    });
}

fn count([ds, hs, ws]: &[Range<usize>; 3]) -> usize {
    ds.len() * hs.len() * ws.len()
}

/// Elements of a window that are added up before they are added to a double.
const PART: usize = 64;

pub(super) fn mean<T: Float>(image: In<'_, T>, dst: Out<'_, T>, window: &Window, adaptive: bool) {
    let (channels, image) = (channels(&image), Image::new(image));
    let dst = dst.dense();
    if dst.is_empty() {
        return;
    }
    parts(dst, window.output_positions(), &|i: usize, dst: &mut [T]| {
        let base = image.plane(i / channels, i % channels);
        output_positions(window, image.ins, adaptive, |place, at| {
            // A window may be the whole image: no sum of so many is one chain of floats.
            let (mut total, mut part, mut left, all) = (0.0, T::ZERO, PART, count(&at) as f64);
            covered(&image, base, at, |x, _| {
                part = part.add(x);
                left -= 1;
                if left == 0 {
                    total += part.to_f64();
                    (part, left) = (T::ZERO, PART);
                }
            });
            dst[place] = T::from_f64((total + part.to_f64()) / all);
        });
    });
}

pub(super) fn mean_grad<T: Float>(grad: In<'_, T>, image: Out<'_, T>, window: &Window, adaptive: bool) {
    let (grad, dims) = (grad.all(), image.layout.dims());
    let ins = [dims[2], dims[3], dims[4]];
    let dst = image.dense();
    if dst.is_empty() {
        return;
    }
    parts(dst, ins.iter().product(), &|i: usize, plane: &mut [T]| {
        plane.fill(T::ZERO);
        let grad = &grad[i * window.output_positions()..(i + 1) * window.output_positions()];
        output_positions(window, ins, adaptive, |place, at| {
            let share = grad[place].div(T::from_count(count(&at)));
            let [ds, hs, ws] = at;
            for (d, h) in ds.flat_map(|d| hs.clone().map(move |h| (d, h))) {
                let line = (d * ins[1] + h) * ins[2];
                plane[line + ws.start..line + ws.end].iter_mut().for_each(|d| *d = d.add(share));
            }
        });
    });
}
