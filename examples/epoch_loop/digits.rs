//! Digits that the program draws itself, so that it runs without any file.
//!
//! Each digit is a few strokes through control points, in one of several ways of writing it. A
//! drawing bends the strokes by a smooth random field, then scales, slants, turns and shifts them,
//! and inks every pixel by its distance to the nearest stroke. A seed fixes every pixel, and a
//! longer set begins with the shorter one of the same seed.

use std::f32::consts::PI;

/// Pixels on each side of an image.
pub(crate) const SIDE: usize = 28;
/// Pixels of an image.
pub(crate) const PIXELS: usize = SIDE * SIDE;

/// Line pieces between two control points.
const PIECES: usize = 6;

/// Images with their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Digits {
    /// [`PIXELS`] values in `0.0..=1.0` for each image, row by row; 1 is ink.
    pub(crate) images: Vec<f32>,
    /// The digit on each image, `0..=9`.
    pub(crate) labels: Vec<u32>,
}

/// A small pseudo-random generator: a counter behind a mixing function.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence that belongs to `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Brings `items` into a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Even over `low..high`.
    fn even(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: the sum of three even numbers, so never beyond three times `spread`.
    fn around(&mut self, middle: f32, spread: f32) -> f32 {
        middle + spread * (self.even(-1.0, 1.0) + self.even(-1.0, 1.0) + self.even(-1.0, 1.0))
    }
}

/// Control points of one stroke: x to the right and y down, both over `0..=1`.
type Stroke = &'static [(f32, f32)];

/// One way to write a digit.
struct Shape {
    /// Width of the box that the points fill, with the height as 1.
    width: f32,
    strokes: &'static [Stroke],
}

const fn shape(width: f32, strokes: &'static [Stroke]) -> Shape {
    Shape { width, strokes }
}

/// The ways to write each digit.
#[rustfmt::skip]
const SHAPES: [&[Shape]; 10] = [
    &[
        shape(0.78, &[&[(0.52, 0.0), (0.18, 0.14), (0.02, 0.50), (0.16, 0.87), (0.48, 1.0), (0.84, 0.86), (0.98, 0.5), (0.84, 0.13), (0.52, 0.0)]]),
        shape(0.62, &[&[(0.70, 0.06), (0.35, 0.02), (0.06, 0.35), (0.08, 0.75), (0.42, 1.0), (0.82, 0.80), (0.96, 0.40), (0.72, 0.04), (0.40, 0.03)]]),
    ],
    &[
        shape(0.30, &[&[(0.5, 0.0), (0.5, 0.5), (0.5, 1.0)]]),
        shape(0.36, &[&[(0.0, 0.26), (0.35, 0.17), (0.72, 0.0)], &[(0.72, 0.0), (0.68, 0.5), (0.68, 1.0)]]),
        shape(0.52, &[&[(0.10, 0.24), (0.55, 0.0)], &[(0.55, 0.0), (0.54, 1.0)], &[(0.10, 1.0), (0.95, 0.99)]]),
    ],
    &[
        shape(0.70, &[&[(0.04, 0.24), (0.22, 0.04), (0.60, 0.0), (0.84, 0.22), (0.70, 0.52), (0.36, 0.80), (0.02, 0.99)], &[(0.02, 0.99), (0.50, 0.96), (0.98, 0.98)]]),
        shape(0.78, &[&[(0.06, 0.20), (0.32, 0.0), (0.70, 0.08), (0.74, 0.36), (0.50, 0.70), (0.20, 0.96), (0.04, 0.90), (0.16, 0.77), (0.42, 0.86), (0.70, 0.99), (1.0, 0.88)]]),
    ],
    &[
        shape(0.66, &[&[(0.06, 0.14), (0.38, 0.0), (0.80, 0.10), (0.78, 0.34), (0.34, 0.47)], &[(0.34, 0.47), (0.78, 0.53), (0.96, 0.76), (0.66, 0.98), (0.22, 0.98), (0.0, 0.86)]]),
        shape(0.68, &[&[(0.08, 0.02), (0.88, 0.0)], &[(0.88, 0.0), (0.42, 0.40)], &[(0.42, 0.40), (0.84, 0.48), (0.96, 0.74), (0.68, 0.98), (0.22, 0.98), (0.0, 0.88)]]),
    ],
    &[
        shape(0.74, &[&[(0.16, 0.03), (0.10, 0.30), (0.04, 0.56)], &[(0.04, 0.56), (0.45, 0.57), (1.0, 0.50)], &[(0.80, 0.06), (0.76, 0.50), (0.72, 1.0)]]),
        shape(0.76, &[&[(0.70, 0.0), (0.36, 0.36), (0.0, 0.68)], &[(0.0, 0.68), (0.50, 0.67), (1.0, 0.66)], &[(0.70, 0.0), (0.70, 0.50), (0.68, 1.0)]]),
        shape(0.66, &[&[(0.08, 0.0), (0.06, 0.36), (0.32, 0.50), (0.84, 0.38)], &[(0.90, 0.0), (0.82, 0.50), (0.74, 1.0)]]),
    ],
    &[
        shape(0.68, &[&[(0.94, 0.02), (0.55, 0.03), (0.20, 0.02)], &[(0.20, 0.02), (0.12, 0.42)], &[(0.12, 0.42), (0.46, 0.36), (0.86, 0.48), (0.94, 0.74), (0.62, 0.98), (0.24, 0.99), (0.0, 0.88)]]),
        shape(0.66, &[&[(1.0, 0.0), (0.60, 0.02), (0.26, 0.08), (0.16, 0.36), (0.50, 0.46), (0.84, 0.62), (0.78, 0.90), (0.40, 1.0), (0.02, 0.92)]]),
    ],
    &[
        shape(0.64, &[&[(0.74, 0.0), (0.36, 0.20), (0.08, 0.56), (0.12, 0.88), (0.46, 1.0), (0.86, 0.88), (0.90, 0.64), (0.56, 0.52), (0.14, 0.70)]]),
        shape(0.56, &[&[(0.40, 0.0), (0.14, 0.36), (0.04, 0.74), (0.34, 1.0), (0.80, 0.92), (0.92, 0.68), (0.60, 0.54), (0.22, 0.66), (0.08, 0.82)]]),
    ],
    &[
        shape(0.70, &[&[(0.0, 0.06), (0.45, 0.04), (0.96, 0.0)], &[(0.96, 0.0), (0.66, 0.42), (0.44, 1.0)]]),
        shape(0.72, &[&[(0.02, 0.05), (0.45, 0.03), (0.94, 0.0)], &[(0.94, 0.0), (0.62, 0.48), (0.40, 1.0)], &[(0.26, 0.52), (0.86, 0.48)]]),
        shape(0.66, &[&[(0.03, 0.20), (0.02, 0.03)], &[(0.02, 0.03), (0.50, 0.04), (0.94, 0.0), (0.80, 0.36), (0.66, 1.0)]]),
    ],
    &[
        shape(0.62, &[&[(0.84, 0.12), (0.46, 0.0), (0.12, 0.18), (0.44, 0.46), (0.86, 0.74), (0.56, 1.0), (0.10, 0.84), (0.38, 0.54), (0.80, 0.26), (0.84, 0.12)]]),
        shape(0.60, &[&[(0.50, 0.0), (0.14, 0.22), (0.50, 0.46), (0.86, 0.22), (0.50, 0.0)], &[(0.50, 0.46), (0.04, 0.74), (0.50, 1.0), (0.96, 0.74), (0.50, 0.46)]]),
    ],
    &[
        shape(0.60, &[&[(0.86, 0.14), (0.46, 0.0), (0.06, 0.22), (0.30, 0.47), (0.72, 0.38), (0.88, 0.12)], &[(0.88, 0.12), (0.86, 0.55), (0.76, 1.0)]]),
        shape(0.62, &[&[(0.92, 0.20), (0.50, 0.0), (0.10, 0.24), (0.42, 0.50), (0.84, 0.34), (0.92, 0.20), (0.90, 0.62), (0.62, 0.98), (0.16, 0.94)]]),
    ],
];

/// Draws `n` digits; the same seed gives the same digits.
pub(crate) fn draw(n: usize, seed: u64) -> Digits {
    let mut rng = Rng::new(seed);
    let mut digits = Digits { images: vec![0.0; n * PIXELS], labels: Vec::with_capacity(n) };
    for image in digits.images.chunks_exact_mut(PIXELS) {
        let label = rng.below(SHAPES.len());
        let ways = SHAPES[label];
        draw_one(&ways[rng.below(ways.len())], &mut rng, image);
        digits.labels.push(label as u32);
    }
    digits
}

/// Inks one image, which is blank before.
fn draw_one(shape: &Shape, rng: &mut Rng, image: &mut [f32]) {
    let hand = Hand::new(shape, rng);
    for stroke in shape.strokes {
        let radius = hand.radius * rng.even(0.9, 1.1);
        let path: Vec<_> = smooth(stroke).into_iter().map(|point| hand.place(point)).collect();
        for pair in path.windows(2) {
            ink(image, pair[0], pair[1], radius);
        }
    }
    let (strength, grain) = (rng.even(0.75, 1.0), rng.even(0.0, 0.15));
    for pixel in image {
        let noise = rng.even(-grain, grain);
        *pixel = (*pixel * strength + if *pixel > 0.0 { 2.0 * noise } else { noise.max(0.0) }).clamp(0.0, 1.0);
    }
}

/// How one image is written: where points of the unit box fall on it, and how thick the pen is.
struct Hand {
    /// Half the pen's width in pixels.
    radius: f32,
    /// Amplitude, two frequencies and a phase of the bend of x and of y.
    bends: [[f32; 4]; 2],
    /// Pixels from (x, y) around the box's middle: two rows of a matrix.
    matrix: [[f32; 2]; 2],
    /// Where the box's middle falls.
    middle: (f32, f32),
}

impl Hand {
    fn new(shape: &Shape, rng: &mut Rng) -> Self {
        let mut bend = || {
            let amplitude = rng.around(0.0, 0.065);
            [amplitude, rng.even(-5.0, 5.0), rng.even(-5.0, 5.0), rng.even(0.0, 2.0 * PI)]
        };
        let bends = [bend(), bend()];
        let height = rng.around(18.5, 1.5);
        let width = height * shape.width * rng.around(1.0, 0.14);
        let slant = rng.around(0.12, 0.14);
        let (sin, cos) = rng.around(0.0, 0.14).sin_cos();
        Self {
            radius: rng.even(0.65, 1.55),
            bends,
            matrix: [[cos * width, height * (-sin - slant * cos)], [sin * width, height * (cos - slant * sin)]],
            middle: (rng.around(13.5, 1.2), rng.around(13.5, 1.1)),
        }
    }

    /// The place on the image of a point of the unit box.
    fn place(&self, (x, y): (f32, f32)) -> (f32, f32) {
        let bent = |[amplitude, fx, fy, phase]: [f32; 4]| amplitude * (fx * x + fy * y + phase).sin();
        let (u, v) = (x - 0.5 + bent(self.bends[0]), y - 0.5 + bent(self.bends[1]));
        let [across, down] = self.matrix.map(|row| row[0] * u + row[1] * v);
        (self.middle.0 + across, self.middle.1 + down)
    }
}

/// A smooth line through the control points; two points make a straight one.
fn smooth(points: &[(f32, f32)]) -> Vec<(f32, f32)> {
    let last = points.len().saturating_sub(1);
    let closed = last > 2 && points[0] == points[last];
    let mut line = Vec::with_capacity(last * PIECES + 1);
    line.extend(points.first());
    for i in 0..last {
        let before = if i > 0 {
            i - 1
        } else if closed {
            last - 1
        } else {
            0
        };
        let after = if i + 2 <= last {
            i + 2
        } else if closed {
            1
        } else {
            last
        };
        let (a, b, c, d) = (points[before], points[i], points[i + 1], points[after]);
        for piece in 1..=PIECES {
            let t = piece as f32 / PIECES as f32;
            line.push((cubic(a.0, b.0, c.0, d.0, t), cubic(a.1, b.1, c.1, d.1, t)));
        }
    }
    line
}

/// Between `b` at `t = 0` and `c` at `t = 1`, with slopes taken from the neighbours.
fn cubic(a: f32, b: f32, c: f32, d: f32, t: f32) -> f32 {
    let (start, end) = ((c - a) * 0.5, (d - b) * 0.5);
    let bend = 3.0 * (c - b) - 2.0 * start - end;
    let turn = 2.0 * (b - c) + start + end;
    b + t * (start + t * (bend + t * turn))
}

/// Darkens the pixels near the line from `from` to `to`.
fn ink(image: &mut [f32], from: (f32, f32), to: (f32, f32), radius: f32) {
    let reach = radius + 0.7;
    let range = |a: f32, b: f32| {
        let low = (a.min(b) - reach).ceil().max(0.0) as usize;
        let high = (a.max(b) + reach).floor().max(-1.0) + 1.0;
        low..(high as usize).min(SIDE)
    };
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let square = (dx * dx + dy * dy).max(1e-9);
    for row in range(from.1, to.1) {
        for column in range(from.0, to.0) {
            let (x, y) = (column as f32 - from.0, row as f32 - from.1);
            let along = ((x * dx + y * dy) / square).clamp(0.0, 1.0);
            let distance = (x - along * dx).hypot(y - along * dy);
            let cover = ((reach - distance) / 1.4).clamp(0.0, 1.0);
            let pixel = &mut image[row * SIDE + column];
            *pixel = pixel.max(cover);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_fixes_every_pixel() {
        let (short, long) = (draw(40, 7), draw(60, 7));
        assert_eq!(short.images[..], long.images[..40 * PIXELS]);
        assert_eq!(short.labels[..], long.labels[..40]);
        assert_ne!(short, draw(40, 8));
        assert_eq!(draw(0, 7), Digits::default());
    }

    #[test]
    fn pixels_and_labels_stay_in_range() {
        let digits = draw(500, 3);
        assert_eq!((digits.images.len(), digits.labels.len()), (500 * PIXELS, 500));
        assert!(digits.images.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        for digit in 0..10 {
            assert!(digits.labels.iter().filter(|label| **label == digit).count() > 20);
        }
        for image in digits.images.chunks_exact(PIXELS) {
            let dark = image.iter().filter(|pixel| **pixel > 0.5).count();
            assert!((12..300).contains(&dark), "{dark} dark pixels");
        }
    }

    #[test]
    fn below_and_shuffle_cover_their_range() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| rng.below(3) < 3));
        let mut items: Vec<_> = (0..50).collect();
        rng.shuffle(&mut items);
        assert!(items.iter().enumerate().any(|(i, item)| i != *item));
        items.sort_unstable();
        assert!(items.into_iter().eq(0..50));
    }
}
