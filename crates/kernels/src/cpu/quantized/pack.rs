//! From floats to blocks: scales that fit the numbers of a part, then the numbers that fit the scales as they are
//! stored.
//!
//! The scales are those of the format's own library, found by the same steps, so that a file that is written here is
//! the one that it would write. A least number is never above 0 in formats of 256.

use half::f16;

use super::{
    blocks::{signed_six_bits, six_bits},
    rounded::{LARGE, rounded},
};
use crate::base::ggml::GgmlDType;

/// The numbers of a large block, and how much an error in each of them matters, if that is known.
struct Weighed<'a> {
    x: &'a [f32],
    weights: Option<[f32; LARGE]>,
}

impl<'a> Weighed<'a> {
    /// A number matters by the importance of its place, and more the farther it is from 0.
    fn new(x: &'a [f32], importance: Option<&[f32]>) -> Self {
        let weights = importance.map(|importance| {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / LARGE as f32;
            by_place(|i| importance[i] * (mean + x[i] * x[i]).sqrt())
        });
        Weighed { x, weights }
    }

    /// As [`symmetric`], of 16 numbers.
    fn symmetric(&self, i: usize, most: i32, rounds: usize) -> f32 {
        let part = 16 * i..16 * i + 16;
        match &self.weights {
            None => symmetric(&self.x[part], most, rounds),
            Some(weights) => weighed_symmetric(&self.x[part.clone()], &weights[part], most),
        }
    }

    /// As [`with_least`], of `len` numbers.
    fn with_least(&self, i: usize, len: usize, most: i32) -> (f32, f32) {
        let part = len * i..len * i + len;
        match &self.weights {
            None => with_least(&self.x[part], most),
            Some(weights) => weighed_with_least(&self.x[part.clone()], &weights[part], most),
        }
    }
}

/// Writes the block of a format that is no float's. With the `importance` of each number in a format of 256 of them and
/// fewer than 8 bits; the others have no choice.
pub(super) fn block(dtype: GgmlDType, x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    use GgmlDType::*;
    match dtype {
        Q4_0 => about_zero(x, 8, b),
        Q5_0 => about_zero(x, 16, b),
        Q4_1 => above_least(x, 15, b),
        Q5_1 => above_least(x, 31, b),
        Q8_0 | Q8_1 => eight_bits(x, b),
        Q2K => q2k(&Weighed::new(x, importance), b),
        Q3K => q3k(&Weighed::new(x, importance), b),
        Q4K => q45k(&Weighed::new(x, importance), 15, b),
        Q5K => q45k(&Weighed::new(x, importance), 31, b),
        Q6K => q6k(&Weighed::new(x, importance), b),
        Q8K => q8k(x, b),
        F32 | F16 | BF16 => unreachable!("floats have no blocks"),
    }
}

/// An array of what `of` gives for each place. By a loop: the library's function is ten times as much to compile.
fn by_place<T: Copy + Default, const N: usize>(of: impl Fn(usize) -> T) -> [T; N] {
    let mut all = [T::default(); N];
    for (i, to) in all.iter_mut().enumerate() {
        *to = of(i);
    }
    all
}

fn put_half(b: &mut [u8], at: usize, x: f32) -> f32 {
    let half = f16::from_f32(x);
    b[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

fn nearest(x: f32) -> i32 {
    x.round() as i32
}

/// The number that is farthest from 0; the first one of several.
fn farthest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |far: f32, &x| if x.abs() > far.abs() { x } else { far })
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn about_zero(x: &[f32], half: u8, b: &mut [u8]) {
    let scale = farthest(x) / -f32::from(half);
    let (by, shift) = (inverse(scale), f32::from(half) + 0.5);
    put_half(b, 0, scale);
    nibbles(b, 2, half == 16, |i| ((x[i] * by + shift) as u8).min(2 * half - 1));
}

fn above_least(x: &[f32], most: u8, b: &mut [u8]) {
    let least = x.iter().copied().fold(f32::INFINITY, f32::min);
    let scale = (x.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least) / f32::from(most);
    let by = inverse(scale);
    put_half(b, 0, scale);
    put_half(b, 2, least);
    nibbles(b, 4, most == 31, |i| (((x[i] - least) * by + 0.5) as u8).min(most));
}

/// 32 numbers from byte `at` on, behind their fifth bits if they have any.
fn nibbles(b: &mut [u8], at: usize, has_fifth: bool, number: impl Fn(usize) -> u8) {
    let mut fifth = 0u32;
    let start = at + 4 * usize::from(has_fifth);
    for j in 0..16 {
        let (low, high) = (number(j), number(j + 16));
        b[start + j] = low & 15 | high << 4;
        fifth |= u32::from(low >> 4) << j | u32::from(high >> 4) << (j + 16);
    }
    if has_fifth {
        b[at..start].copy_from_slice(&fifth.to_le_bytes());
    }
}

/// `Q8_0`, or `Q8_1`, which has the sum too.
fn eight_bits(x: &[f32], b: &mut [u8]) {
    let scale = x.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 127.0;
    let by = inverse(scale);
    let short = put_half(b, 0, scale);
    let start = b.len() - 32;
    let mut sum = 0;
    for (to, &x) in b[start..].iter_mut().zip(x) {
        let number = (x * by).round() as i8;
        sum += i32::from(number);
        *to = number as u8;
    }
    if start == 4 {
        put_half(b, 2, sum as f32 * short);
    }
}

/// Scale of numbers in `-most..most` that comes nearest to numbers weighed with their squares. First as many `rounds`
/// of numbers for a scale and a scale for the numbers, then one number after the other.
fn symmetric(x: &[f32], most: i32, rounds: usize) -> f32 {
    let far = farthest(x);
    if far == 0.0 {
        return 0.0;
    }
    let number = |x: f32| nearest(x).clamp(-most, most - 1);
    let sums = |numbers: &[i32; 16]| {
        x.iter().zip(numbers).fold((0.0, 0.0), |(xs, squares), (&x, &q)| {
            let (w, q) = (x * x, q as f32);
            (xs + w * x * q, squares + w * q * q)
        })
    };
    let of = |by: f32| -> [i32; 16] { by_place(|i| number(by * x[i])) };
    let mut numbers = of(-(most as f32) / far);
    let (mut xs, mut squares) = sums(&numbers);
    for _ in 0..rounds {
        let next = of(1.0 / (xs / squares));
        let (a, b) = sums(&next);
        if next == numbers || b == 0.0 || a * a <= xs / squares * xs * b {
            break;
        }
        (numbers, xs, squares) = (next, a, b);
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&x, q) in x.iter().zip(&mut numbers) {
            let (w, own) = (x * x, *q as f32);
            let (mut a, mut b) = (xs - w * x * own, squares - w * own * own);
            if a <= 0.0 {
                continue;
            }
            let next = number(x * b / a);
            a += w * x * next as f32;
            b += w * (next * next) as f32;
            if next != *q && b > 0.0 && a * a * squares > xs * xs * b {
                (*q, xs, squares, changed) = (next, a, b, true);
            }
        }
        if !changed {
            break;
        }
    }
    xs / squares
}

/// Scale and least number, both as they are taken off: of numbers in `0..=most` that come near to those of a part.
fn with_least(x: &[f32], most: i32) -> (f32, f32) {
    let ends = x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, top), &x| (least.min(x), top.max(x)));
    if ends.0 == ends.1 {
        return (0.0, 0.0);
    }
    let mut least = ends.0.min(0.0);
    let mut by = most as f32 / (ends.1 - least);
    let mut scale = 1.0 / by;
    let mut numbers = [0; 32];
    for _ in 0..5 {
        let (mut xs, mut squares, mut changed) = (0.0, 0, false);
        for (&x, number) in x.iter().zip(&mut numbers) {
            let next = nearest(by * (x - least)).clamp(0, most);
            changed |= next != *number;
            *number = next;
            xs += (x - least) * next as f32;
            squares += next * next;
        }
        scale = xs / squares as f32;
        let sum: f32 = x.iter().zip(&numbers).map(|(x, &q)| x - scale * q as f32).sum();
        least = (sum / x.len() as f32).min(0.0);
        by = 1.0 / scale;
        if !changed {
            break;
        }
    }
    (scale, -least)
}

/// Scale of numbers in `-most..most` with the least sum of weighed squares of errors, of those that put the farthest
/// number at one of 19 places about the end.
fn weighed_symmetric(x: &[f32], weights: &[f32], most: i32) -> f32 {
    let far = farthest(x);
    let (mut best, mut scale) = (0.0, -far / most as f32);
    for step in -9..=9 {
        let by = -(most as f32 + 0.1 * step as f32) / far;
        let (mut xs, mut squares) = (0.0, 0.0);
        for (&x, &w) in x.iter().zip(weights) {
            let q = nearest(by * x).clamp(-most, most - 1) as f32;
            xs += w * x * q;
            squares += w * q * q;
        }
        // What the best scale for these numbers takes off the sum of squares.
        if squares > 0.0 && xs * xs > best * squares {
            (best, scale) = (xs * xs / squares, xs / squares);
        }
    }
    scale
}

/// As [`with_least`], with the least sum of weighed squares of errors, of numbers in `0..=most` by 37 widths.
fn weighed_with_least(x: &[f32], weights: &[f32], most: i32) -> (f32, f32) {
    let low = x.iter().fold(0.0, |low: f32, &x| low.min(x));
    let width = x.iter().fold(f32::NEG_INFINITY, |top: f32, &x| top.max(x)) - low;
    if width <= 0.0 {
        return (0.0, -low);
    }
    let all = x.iter().zip(weights);
    let (sum, mean) = all.clone().fold((0.0, 0.0), |(sum, mean), (x, w)| (sum + w, mean + w * x));
    let (mut best, mut found) = (f32::INFINITY, (width / most as f32, -low));
    for step in 0..=36 {
        let by = (most as f32 - 0.9 + 0.05 * step as f32) / width;
        let number = |x: f32| nearest(by * (x - low)).clamp(0, most) as f32;
        let (mut qs, mut squares, mut xs) = (0.0, 0.0, 0.0);
        for (&x, &w) in all.clone() {
            let q = number(x);
            qs += w * q;
            squares += w * q * q;
            xs += w * q * x;
        }
        let spread = sum * squares - qs * qs;
        if spread <= 0.0 {
            continue;
        }
        // The line through the numbers, or the one through 0 if that one begins above.
        let (mut scale, mut least) = ((sum * xs - mean * qs) / spread, (squares * mean - qs * xs) / spread);
        if least > 0.0 {
            (scale, least) = (xs / squares, 0.0);
        }
        let error = all.clone().fold(0.0, |error, (&x, &w)| {
            let off = scale * number(x) + least - x;
            error + w * off * off
        });
        if error < best {
            (best, found) = (error, (scale, -least));
        }
    }
    found
}

/// Scales and least numbers of parts as integers up to `most`, and what to divide by for that.
fn short<const PARTS: usize>(all: [f32; PARTS], most: f32) -> ([u8; PARTS], f32) {
    let top = all.iter().fold(0.0, |top: f32, &x| top.max(x));
    let by = if top > 0.0 { most / top } else { 0.0 };
    (by_place(|i| nearest(by * all[i]).clamp(0, most as i32) as u8), top / most)
}

/// The number of `x` in a part with this scale.
fn number(x: f32, scale: f32, least: f32, range: std::ops::RangeInclusive<i32>) -> i32 {
    if scale == 0.0 { 0 } else { nearest((x + least) / scale).clamp(*range.start(), *range.end()) }
}

/// Planes of 2 bits.
fn pairs(b: &mut [u8], numbers: &[u8; LARGE]) {
    for (b, q) in b.chunks_exact_mut(32).zip(numbers.chunks_exact(128)) {
        for (l, b) in b.iter_mut().enumerate() {
            *b = (0..4).fold(0, |all, plane| all | (q[32 * plane + l] & 3) << (2 * plane));
        }
    }
}

fn q2k(of: &Weighed<'_>, b: &mut [u8]) {
    let (x, parts) = (of.x, by_place::<_, 16>(|i| of.with_least(i, 16, 3)));
    let (scales, scale) = short::<16>(by_place(|i| parts[i].0), 15.0);
    let (bases, base) = short::<16>(by_place(|i| parts[i].1), 15.0);
    let (scale, base) = (put_half(b, 80, scale), put_half(b, 82, base));
    (0..16).for_each(|i| b[i] = scales[i] | bases[i] << 4);
    let numbers =
        by_place(|i| number(x[i], scale * f32::from(scales[i / 16]), base * f32::from(bases[i / 16]), 0..=3) as u8);
    pairs(&mut b[16..80], &numbers);
}

fn q3k(of: &Weighed<'_>, b: &mut [u8]) {
    let (x, parts) = (of.x, by_place::<_, 16>(|i| of.symmetric(i, 4, 0)));
    let far = farthest(&parts);
    let by = if far == 0.0 { 0.0 } else { -32.0 / far };
    b.fill(0);
    for (i, part) in parts.iter().enumerate().filter(|_| far != 0.0) {
        let scale = (nearest(by * part).clamp(-32, 31) + 32) as u8;
        b[96 + i % 8] |= (scale & 15) << (i / 8 * 4);
        b[96 + 8 + i % 4] |= scale >> 4 << (i / 4 * 2);
    }
    let scale = put_half(b, 108, inverse(by));
    let numbers: [u8; LARGE] = by_place(|i| {
        let scale = scale * f32::from(signed_six_bits(&b[96..108], i / 16));
        (number(x[i], scale, 0.0, -4..=3) + 4) as u8
    });
    for (i, &q) in numbers.iter().enumerate() {
        b[i % 32] |= (q >> 2) << (i / 32);
    }
    pairs(&mut b[32..96], &numbers);
}

/// `Q4K`, or with numbers up to 31 `Q5K`.
fn q45k(of: &Weighed<'_>, most: i32, b: &mut [u8]) {
    let (x, parts) = (of.x, by_place::<_, 8>(|i| of.with_least(i, 32, most)));
    let (scales, scale) = short::<8>(by_place(|i| parts[i].0), 63.0);
    let (bases, base) = short::<8>(by_place(|i| parts[i].1), 63.0);
    let (scale, base) = (put_half(b, 0, scale), put_half(b, 2, base));
    for i in 0..4 {
        b[4 + i] = scales[i] | scales[i + 4] >> 4 << 6;
        b[8 + i] = bases[i] | bases[i + 4] >> 4 << 6;
        b[12 + i] = scales[i + 4] & 15 | bases[i + 4] << 4;
    }
    let numbers: [u8; LARGE] = by_place(|i| {
        let (part, least) = six_bits(&b[4..16], i / 32);
        number(x[i], scale * f32::from(part), base * f32::from(least), 0..=most) as u8
    });
    let rest = &mut b[16..];
    let (fifth, nibbles) = rest.split_at_mut(rest.len() - 128);
    for (j, to) in nibbles.iter_mut().enumerate() {
        let at = j / 32 * 64 + j % 32;
        *to = numbers[at] & 15 | numbers[at + 32] << 4;
    }
    for (l, to) in fifth.iter_mut().enumerate() {
        *to = (0..8).fold(0, |all, plane| all | (numbers[32 * plane + l] >> 4) << plane);
    }
}

fn q6k(of: &Weighed<'_>, b: &mut [u8]) {
    let (x, parts) = (of.x, by_place::<_, 16>(|i| of.symmetric(i, 32, 3)));
    let far = farthest(&parts);
    let by = if far == 0.0 { 0.0 } else { -128.0 / far };
    let scale = put_half(b, 208, inverse(by));
    let scales: [i8; 16] = by_place(|i| nearest(by * parts[i]).clamp(-128, 127) as i8);
    (0..16).for_each(|i| b[192 + i] = scales[i] as u8);
    let number = |i: usize| (number(x[i], scale * f32::from(scales[i / 16]), 0.0, -32..=31) + 32) as u8;
    for j in (0..LARGE).step_by(128) {
        for l in 0..32 {
            let q: [u8; 4] = by_place(|plane| number(j + 32 * plane + l));
            b[j / 2 + l] = q[0] & 15 | q[2] << 4;
            b[j / 2 + 32 + l] = q[1] & 15 | q[3] << 4;
            b[128 + j / 4 + l] = (0..4).fold(0, |all, plane| all | q[plane] >> 4 << (2 * plane));
        }
    }
}

fn q8k(x: &[f32], b: &mut [u8]) {
    let mut numbers = [0; LARGE];
    let scale = rounded(x, &mut numbers);
    b[..4].copy_from_slice(&scale.to_le_bytes());
    b[4..260].iter_mut().zip(numbers).for_each(|(to, q)| *to = q as i8 as u8);
    for (to, part) in b[260..].chunks_exact_mut(2).zip(numbers.chunks_exact(16)) {
        to.copy_from_slice(&part.iter().sum::<i16>().to_le_bytes());
    }
}
