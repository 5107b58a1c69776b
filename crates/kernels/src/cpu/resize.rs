//! Images of other sizes, by the nearest element or between four, and their gradients. Channels go side by side.

use crate::cpu::{
    conv::parts,
    number::{Float, Number},
    operand::{In, Out},
};
use crate::window::Spacing;

/// The element nearest to a place: `floor(place * len / out)`.
fn near(place: usize, len: usize, out: usize) -> usize {
    match place.checked_mul(len) {
        Some(scaled) => scaled / out,
        None => (place as u128 * len as u128 / out as u128) as usize,
    }
}

/// Channels of an image, where each begins, and its steps.
struct Planes<'a, T> {
    data: &'a [T],
    start: isize,
    channels: usize,
    steps: [isize; 4],
    ins: [usize; 2],
}

impl<'a, T> Planes<'a, T> {
    fn new(image: In<'a, T>) -> Self {
        let (dims, strides) = (image.layout.dims(), image.layout.strides());
        Planes {
            data: image.data,
            start: image.layout.offset() as isize,
            channels: dims[1],
            steps: *strides.first_chunk().expect("four axes"),
            ins: [dims[2], dims[3]],
        }
    }

    /// Where a line of a channel begins.
    fn line(&self, plane: usize, h: usize) -> isize {
        let (b, c) = (plane / self.channels, plane % self.channels);
        self.start + b as isize * self.steps[0] + c as isize * self.steps[1] + h as isize * self.steps[2]
    }

    fn get(&self, line: isize, w: usize) -> T
    where
        T: Copy,
    {
        self.data[(line + w as isize * self.steps[3]) as usize]
    }
}

/// Height and width.
fn size(dims: &[usize]) -> [usize; 2] {
    [dims[2], dims[3]]
}

pub(super) fn nearest<T: Number>(image: In<'_, T>, dst: Out<'_, T>) {
    let [height, width] = size(dst.layout.dims());
    let image = Planes::new(image);
    parts(dst.dense(), height * width, &|i: usize, plane: &mut [T]| {
        for (h, row) in plane.chunks_exact_mut(width).enumerate() {
            let line = image.line(i, near(h, image.ins[0], height));
            for (w, d) in row.iter_mut().enumerate() {
                *d = image.get(line, near(w, image.ins[1], width));
            }
        }
    });
}

pub(super) fn nearest_grad<T: Float>(grad: In<'_, T>, image: Out<'_, T>) {
    let ([height, width], [h_in, w_in]) = (size(grad.layout.dims()), size(image.layout.dims()));
    let grad = grad.all();
    parts(image.dense(), h_in * w_in, &|i: usize, plane: &mut [T]| {
        plane.fill(T::ZERO);
        for (h, row) in grad[i * height * width..][..height * width].chunks_exact(width).enumerate() {
            let line = near(h, h_in, height) * w_in;
            for (w, &g) in row.iter().enumerate() {
                let at = line + near(w, w_in, width);
                plane[at] = plane[at].add(g);
            }
        }
    });
}

pub(super) fn linear<T: Float>(image: In<'_, T>, dst: Out<'_, T>, spacing: &Spacing) {
    let [height, width] = size(dst.layout.dims());
    let image = Planes::new(image);
    parts(dst.dense(), height * width, &|i: usize, plane: &mut [T]| {
        for (h, row) in plane.chunks_exact_mut(width).enumerate() {
            let (top, bottom, down) = spacing.between(0, h, image.ins[0]);
            let (top, bottom) = (image.line(i, top), image.line(i, bottom));
            for (w, d) in row.iter_mut().enumerate() {
                let (left, right, across) = spacing.between(1, w, image.ins[1]);
                let mix = |line| blend(image.get(line, left), image.get(line, right), across);
                *d = blend(mix(top), mix(bottom), down);
            }
        }
    });
}

/// Between two elements; the first one itself at 0, so that nothing comes from a neighbour of no weight.
fn blend<T: Float>(a: T, b: T, weight: f64) -> T {
    if weight == 0.0 {
        return a;
    }
    a.mul(T::from_f64(1.0 - weight)).add(b.mul(T::from_f64(weight)))
}

pub(super) fn linear_grad<T: Float>(grad: In<'_, T>, image: Out<'_, T>, spacing: &Spacing) {
    let ([height, width], [h_in, w_in]) = (size(grad.layout.dims()), size(image.layout.dims()));
    let grad = grad.all();
    parts(image.dense(), h_in * w_in, &|i: usize, plane: &mut [T]| {
        plane.fill(T::ZERO);
        for (h, row) in grad[i * height * width..][..height * width].chunks_exact(width).enumerate() {
            let (top, bottom, down) = spacing.between(0, h, h_in);
            for (w, &g) in row.iter().enumerate() {
                let (left, right, across) = spacing.between(1, w, w_in);
                for (line, by_line) in [(top, 1.0 - down), (bottom, down)] {
                    for (at, by) in [(left, 1.0 - across), (right, across)] {
                        // As in `blend`: of an infinity it would be NaN.
                        if by_line == 0.0 || by == 0.0 {
                            continue;
                        }
                        let to = &mut plane[line * w_in + at];
                        *to = to.add(g.mul(T::from_f64(by_line)).mul(T::from_f64(by)));
                    }
                }
            }
        }
    });
}
