//! Random numbers: Philox4x32-10, a function from a counter to random bits (Salmon, Moraes, Dror and Shaw, "Parallel
//! random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! Element `first + i` of a stream has its own place in the counter, so a fill gives the same numbers on any
//! number of threads, and two fills the same as one of both.
//!
//! ```text
//! key       seed, low word first
//! counter   [block low, block high, words per element, replays of the captured section before this run]
//! f32       one word:   element e is word e % 4 of block e / 4
//! others    two words:  element e is words 2 (e % 2) and the next of block e / 2
//! ```
//!
//! Halves are the numbers of f32, rounded.
//!
//! A uniform number takes the highest 24 (f32) or 53 bits. A normal one needs a pair of uniforms, those of the
//! elements `2p` and `2p + 1`: radius from the first, angle from the second; the even element is the cosine.

use crate::base::{layout::Layout, shape::Shape};
use crate::cpu::{
    low_precision::Half,
    math,
    number::Number,
    operand::{Element, Out},
    rows::Row2,
    threads,
};

const ROUNDS: usize = 10;
/// Blocks computed together: one vector of each word.
const TOGETHER: usize = 16;
/// Words of those blocks.
const WORDS: usize = 4 * TOGETHER;

/// One word of each of `TOGETHER` blocks.
type PhiloxLanes = [u32; TOGETHER];

/// Both halves of the product of each lane.
#[inline(always)]
fn multiply(lanes: &PhiloxLanes, by: u32) -> (PhiloxLanes, PhiloxLanes) {
    let (mut high, mut low) = ([0; TOGETHER], [0; TOGETHER]);
    for i in 0..TOGETHER {
        let product = u64::from(lanes[i]) * u64::from(by);
        (high[i], low[i]) = ((product >> 32) as u32, product as u32);
    }
    (high, low)
}

#[inline(always)]
fn mix(high: &PhiloxLanes, word: &PhiloxLanes, key: u32) -> PhiloxLanes {
    let mut mixed = [0; TOGETHER];
    for i in 0..TOGETHER {
        mixed[i] = high[i] ^ word[i] ^ key;
    }
    mixed
}

/// Counters, word by word, after all rounds.
///
/// Not inlined: into the fills below, LLVM 22 made of it code that gave other words in about a tenth of the lanes.
#[inline(never)]
fn philox(counters: [PhiloxLanes; 4], seed: u64) -> [PhiloxLanes; 4] {
    let [mut a, mut b, mut c, mut d] = counters;
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..ROUNDS {
        let (p_high, p_low) = multiply(&a, 0xD251_1F53);
        let (q_high, q_low) = multiply(&c, 0xCD9E_8D57);
        (a, b, c, d) = (mix(&q_high, &b, key[0]), q_low, mix(&p_high, &d, key[1]), p_low);
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    [a, b, c, d]
}

/// The words of `TOGETHER` blocks from `block` on, in order. `width` is the number of words an element takes.
#[inline(always)]
fn words(stream: RandomStream, block: u64, width: u32) -> [u32; WORDS] {
    let (mut low, mut high) = ([0; TOGETHER], [0; TOGETHER]);
    for i in 0..TOGETHER {
        let at = block.wrapping_add(i as u64);
        (low[i], high[i]) = (at as u32, (at >> 32) as u32);
    }
    let [a, b, c, d] = philox([low, high, [width; TOGETHER], [stream.replays; TOGETHER]], stream.seed);
    let mut words = [0; WORDS];
    for i in 0..TOGETHER {
        (words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]) = (a[i], b[i], c[i], d[i]);
    }
    words
}

/// Which numbers: of which stream, from which element on.
#[derive(Clone, Copy)]
pub(super) struct RandomStream {
    pub(super) seed: u64,
    pub(super) first: u64,
    /// Replays before this run: each draws other numbers.
    pub(super) replays: u32,
}

/// Fills `dst` with what `make` gives for groups of `N` elements, which take `width` words each.
#[inline(always)]
fn fill<T: Number, const N: usize>(
    dst: Out<'_, T>,
    stream: RandomStream,
    width: u32,
    make: impl Fn(&[u32; WORDS], &mut [T; N]) + Sync,
) {
    threads::split1(dst.dense(), &|start: usize, part: &mut [T]| {
        let mut element = stream.first.wrapping_add(start as u64);
        let mut rest = part;
        let mut made = [T::ZERO; N];
        while !rest.is_empty() {
            let (group, skip) = (element / N as u64, (element % N as u64) as usize);
            let block = group.wrapping_mul(TOGETHER as u64);
            make(&words(stream, block, width), &mut made);
            let count = rest.len().min(N - skip);
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&made[skip..skip + count]);
            element = element.wrapping_add(count as u64);
            rest = later;
        }
    });
}

/// 24 bits as a number in `[0, 1)`.
#[inline(always)]
fn unit32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Two words as a number in `[0, 1)`, of 53 bits.
#[inline(always)]
fn unit64(low: u32, high: u32) -> f64 {
    let word = u64::from(low) | u64::from(high) << 32;
    (word >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// `low` to `high` by `unit`, at most `last`: by both parts, since the whole length may overflow.
macro_rules! between {
    ($low:expr, $high:expr, $last:expr, $unit:expr) => {{
        let unit = $unit;
        ($low * (1.0 - unit) + $high * unit).min($last).max($low)
    }};
}

/// Uniform in `[low, high)`; `low` if both are equal.
pub(super) fn uniform_f32(dst: Out<'_, f32>, stream: RandomStream, low: f64, high: f64) {
    let (low, high) = (low as f32, high as f32);
    let last = high.next_down().max(low);
    fill(dst, stream, 1, |words, made: &mut [f32; WORDS]| {
        for (made, &word) in made.iter_mut().zip(words) {
            *made = between!(low, high, last, unit32(word));
        }
    });
}

/// Uniform in `[low, high)`.
pub(super) fn uniform_f64(dst: Out<'_, f64>, stream: RandomStream, low: f64, high: f64) {
    let last = high.next_down().max(low);
    fill(dst, stream, 2, |words, made: &mut [f64; WORDS / 2]| {
        for (made, &[first, second]) in made.iter_mut().zip(words.as_chunks().0) {
            *made = between!(low, high, last, unit64(first, second));
        }
    });
}

/// Numbers drawn at a time by what converts them.
const DRAWN: usize = 512;

/// Draws numbers, which two others describe.
type Draw<S> = fn(Out<'_, S>, RandomStream, f64, f64);

/// Fills `dst` with what `convert` makes of numbers of another type, which `draw` draws.
pub(super) fn converted<S: Number, T: Element>(
    dst: Out<'_, T>,
    stream: RandomStream,
    (draw, low, high): (Draw<S>, f64, f64),
    convert: &(dyn Row2<S, T> + Sync),
) {
    threads::split1(dst.dense(), &|start: usize, part: &mut [T]| {
        let mut stage = [S::ZERO; DRAWN];
        for (i, part) in part.chunks_mut(DRAWN).enumerate() {
            let (drawn, layout) = (&mut stage[..part.len()], Layout::contiguous(Shape::from(part.len())));
            let first = stream.first.wrapping_add((start + i * DRAWN) as u64);
            draw(Out { data: drawn, layout: &layout }, RandomStream { first, ..stream }, low, high);
            convert.run(drawn, part);
        }
    });
}

/// Uniform integers: the floor of numbers in `[low, high)`.
pub(super) fn uniform_integers<T: Element>(dst: Out<'_, T>, stream: RandomStream, low: f64, high: f64) {
    converted(dst, stream, (uniform_f64, low, high), &|drawn: &[f64], part: &mut [T]| {
        for (to, from) in part.iter_mut().zip(drawn) {
            *to = T::from_f64(from.floor());
        }
    });
}

/// Uniform halves in `[low, high)`: those of f32, rounded, but never to the end.
pub(super) fn uniform_halves<T: Half>(dst: Out<'_, T>, stream: RandomStream, low: f64, high: f64) {
    let (least, end) = (T::from_f64(low), T::from_f64(high));
    let last = if end > least { end.next_down() } else { least };
    let (low, high) = (least.to_f64(), end.to_f64());
    converted(dst, stream, (uniform_f32, low, high), &|drawn: &[f32], part: &mut [T]| {
        T::narrow(drawn, part);
        part.iter_mut().filter(|x| **x >= end).for_each(|x| *x = last);
    });
}

/// Normal halves: those of f32, rounded.
pub(super) fn normal_halves<T: Half>(dst: Out<'_, T>, stream: RandomStream, mean: f64, std: f64) {
    converted(dst, stream, (normal_f32, mean, std), &T::narrow);
}

/// Normal with this mean and deviation.
pub(super) fn normal_f32(dst: Out<'_, f32>, stream: RandomStream, mean: f64, std: f64) {
    let (mean, std) = (mean as f32, std as f32);
    fill(dst, stream, 1, |words, made: &mut [f32; WORDS]| {
        for (made, &[first, second]) in made.as_chunks_mut().0.iter_mut().zip(words.as_chunks().0) {
            // All 32 bits, and never 0, for the radius: its tail reaches 6.7 deviations.
            let unit = (first as f32 + 0.5) * (1.0 / 4_294_967_296.0);
            let radius = (-2.0 * math::ln(unit)).max(0.0).sqrt();
            let (sin, cos) = math::sin_cos_turns(unit32(second));
            *made = [mean + std * (radius * cos), mean + std * (radius * sin)];
        }
    });
}

/// Normal with this mean and deviation.
pub(super) fn normal_f64(dst: Out<'_, f64>, stream: RandomStream, mean: f64, std: f64) {
    fill(dst, stream, 2, |words, made: &mut [f64; WORDS / 2]| {
        for (made, &[a, b, c, d]) in made.as_chunks_mut().0.iter_mut().zip(words.as_chunks().0) {
            let radius = (-2.0 * (1.0 - unit64(a, b)).ln()).sqrt();
            let (sin, cos) = (unit64(c, d) * std::f64::consts::TAU).sin_cos();
            *made = [mean + std * (radius * cos), mean + std * (radius * sin)];
        }
    });
}
