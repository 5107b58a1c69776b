//! The layout of each format: from the bytes of a row's blocks to numbers with their scales multiplied in.
//!
//! A format of 256 numbers divides them in parts of 16 or 32, which have scales of 4 to 8 bits; one of two factors that
//! all share is a half. The numbers' bits lie in planes: a byte has the lowest bits of numbers that are 32, 64 or 96
//! apart.

use super::rounded::{Aligned, Rounded};
use crate::base::{error::Result, ggml::GgmlDType, heap};
use crate::cpu::vector::{Loop, simd};

/// A row of blocks: number `i` of a block is `scale * numbers[i] - base * bases[i / 16]`.
#[derive(Default)]
pub(super) struct Opened {
    /// Numbers of a block.
    len: usize,
    /// Times their scales of few bits: of 14 bits at most, so that the sum of a block's products with 8-bit numbers
    /// fits an `i32`.
    numbers: Aligned,
    bases: Vec<i16>,
    /// Of each block; likewise the next ones.
    scales: Vec<f32>,
    base_scales: Vec<f32>,
    /// Whether the format has bases.
    based: bool,
}

pub(super) fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The half that stands there. The bits of its exponent and fraction are those of a float 2^112 times smaller, unless
/// it is infinite or no number. (`half` would look for the machine's instruction each time.)
#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (sign, rest) = ((bits >> 15) << 31, (bits & 0x7fff) << 13);
    let finite = f32::from_bits(rest) * f32::from_bits((127 + 112) << 23);
    let infinite = u32::from(rest >= 31 << 23) * (255 << 23);
    f32::from_bits(sign | infinite | finite.to_bits())
}

/// Scale and base of part `i` of the eight of a block of `Q4K` and `Q5K`, of 6 bits each: of the first four, one after
/// the other; of the last four, the lower bits in bytes of their own and the upper ones above those of the first four.
#[inline(always)]
pub(super) fn six_bits(scales: &[u8], i: usize) -> (u8, u8) {
    match i {
        0..4 => (scales[i] & 63, scales[i + 4] & 63),
        _ => (scales[i + 4] & 15 | scales[i - 4] >> 6 << 4, scales[i + 4] >> 4 | scales[i] >> 6 << 4),
    }
}

/// Scale of part `i` of the sixteen of a block of `Q3K`, of 6 bits about 0: the lower four in the nibbles of 8 bytes,
/// the upper two in the planes of the 4 bytes behind.
#[inline(always)]
pub(super) fn signed_six_bits(scales: &[u8], i: usize) -> i16 {
    let low = scales[i % 8] >> (i / 8 * 4) & 15;
    let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    i16::from(low | high << 4) - 32
}

/// Where a block's parts go.
struct Block<'a> {
    numbers: &'a mut [i16],
    bases: &'a mut [i16],
    scale: &'a mut f32,
    base_scale: &'a mut f32,
}

impl Block<'_> {
    /// Blocks of 32: nibbles, the lower ones first, with a fifth bit where there is one.
    #[inline(always)]
    fn nibbles(&mut self, nibbles: &[u8], fifth: u32, less: i16) {
        let (low, high) = self.numbers.split_at_mut(16);
        for (j, ((low, high), &q)) in low.iter_mut().zip(high).zip(nibbles).enumerate() {
            *low = i16::from(q & 15) + ((fifth >> j & 1) << 4) as i16 - less;
            *high = i16::from(q >> 4) + ((fifth >> (j + 16) & 1) << 4) as i16 - less;
        }
    }

    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        self.numbers.iter_mut().zip(bytes).for_each(|(to, &q)| *to = i16::from(q as i8));
    }

    /// One scale.
    #[inline(always)]
    fn about(&mut self, scale: f32) {
        *self.scale = scale;
    }

    /// One scale, and the least number.
    #[inline(always)]
    fn above(&mut self, least: f32, scale: f32) {
        self.bases.fill(1);
        (*self.scale, *self.base_scale) = (scale, -least);
    }

    /// Planes of 2 bits, 64 bytes for 256 numbers.
    #[inline(always)]
    fn pairs(&mut self, bytes: &[u8]) {
        for (half, bytes) in self.numbers.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
            for (plane, numbers) in half.chunks_exact_mut(32).enumerate() {
                numbers.iter_mut().zip(bytes).for_each(|(to, &q)| *to = i16::from(q >> (2 * plane) & 3));
            }
        }
    }

    /// Planes of nibbles, 32 bytes for each 64 numbers, and a bit above them if `fifth` has bytes.
    #[inline(always)]
    fn planes(&mut self, bytes: &[u8], fifth: &[u8]) {
        for (c, (numbers, bytes)) in self.numbers.chunks_exact_mut(64).zip(bytes.chunks_exact(32)).enumerate() {
            let (low, high) = numbers.split_at_mut(32);
            low.iter_mut().zip(bytes).for_each(|(to, &q)| *to = i16::from(q & 15));
            high.iter_mut().zip(bytes).for_each(|(to, &q)| *to = i16::from(q >> 4));
            low.iter_mut().zip(fifth).for_each(|(to, &q)| *to += i16::from(q >> (2 * c) & 1) << 4);
            high.iter_mut().zip(fifth).for_each(|(to, &q)| *to += i16::from(q >> (2 * c + 1) & 1) << 4);
        }
    }

    /// Multiplies each part by its scale.
    #[inline(always)]
    fn scale<const PART: usize>(&mut self, scale: impl Fn(usize) -> i16) {
        for (i, numbers) in self.numbers.chunks_exact_mut(PART).enumerate() {
            let scale = scale(i);
            numbers.iter_mut().for_each(|to| *to *= scale);
        }
    }

    #[inline(always)]
    fn q4_0(&mut self, b: &[u8; 18]) {
        self.nibbles(&b[2..], 0, 8);
        self.about(half_at(b, 0));
    }

    #[inline(always)]
    fn q4_1(&mut self, b: &[u8; 20]) {
        self.nibbles(&b[4..], 0, 0);
        self.above(half_at(b, 2), half_at(b, 0));
    }

    #[inline(always)]
    fn q5_0(&mut self, b: &[u8; 22]) {
        self.nibbles(&b[6..], u32::from_le_bytes([b[2], b[3], b[4], b[5]]), 16);
        self.about(half_at(b, 0));
    }

    #[inline(always)]
    fn q5_1(&mut self, b: &[u8; 24]) {
        self.nibbles(&b[8..], u32::from_le_bytes([b[4], b[5], b[6], b[7]]), 0);
        self.above(half_at(b, 2), half_at(b, 0));
    }

    #[inline(always)]
    fn q8_0(&mut self, b: &[u8; 34]) {
        self.bytes(&b[2..]);
        self.about(half_at(b, 0));
    }

    #[inline(always)]
    fn q8_1(&mut self, b: &[u8; 36]) {
        self.bytes(&b[4..]);
        self.about(half_at(b, 0));
    }

    #[inline(always)]
    fn q2k(&mut self, b: &[u8; 84]) {
        self.pairs(&b[16..80]);
        self.scale::<16>(|i| i16::from(b[i] & 15));
        self.bases.iter_mut().zip(b).for_each(|(to, &s)| *to = i16::from(s >> 4));
        (*self.scale, *self.base_scale) = (half_at(b, 80), half_at(b, 82));
    }

    #[inline(always)]
    fn q3k(&mut self, b: &[u8; 110]) {
        self.pairs(&b[32..96]);
        for (plane, numbers) in self.numbers.chunks_exact_mut(32).enumerate() {
            // The third bit says what is not to be taken off.
            numbers.iter_mut().zip(&b[..32]).for_each(|(to, &mask)| *to += i16::from(mask >> plane & 1) * 4 - 4);
        }
        self.scale::<16>(|i| signed_six_bits(&b[96..108], i));
        self.about(half_at(b, 108));
    }

    #[inline(always)]
    fn q4k(&mut self, b: &[u8; 144]) {
        self.q45k(b, &[], &b[16..]);
    }

    #[inline(always)]
    fn q5k(&mut self, b: &[u8; 176]) {
        self.q45k(b, &b[16..48], &b[48..]);
    }

    #[inline(always)]
    fn q45k(&mut self, b: &[u8], fifth: &[u8], nibbles: &[u8]) {
        let scales = &b[4..16];
        self.planes(nibbles, fifth);
        self.scale::<32>(|i| six_bits(scales, i).0.into());
        self.bases.iter_mut().enumerate().for_each(|(i, to)| *to = six_bits(scales, i / 2).1.into());
        (*self.scale, *self.base_scale) = (half_at(b, 0), half_at(b, 2));
    }

    #[inline(always)]
    fn q6k(&mut self, b: &[u8; 210]) {
        let (low, high) = (&b[..128], &b[128..192]);
        for (h, half) in self.numbers.chunks_exact_mut(128).enumerate() {
            let high = &high[32 * h..][..32];
            for (plane, numbers) in half.chunks_exact_mut(32).enumerate() {
                let (low, by) = (&low[64 * h + plane % 2 * 32..][..32], plane / 2 * 4);
                for ((to, &low), &high) in numbers.iter_mut().zip(low).zip(high) {
                    *to = i16::from(low >> by & 15 | (high >> (2 * plane) & 3) << 4) - 32;
                }
            }
        }
        self.scale::<16>(|i| i16::from(b[192 + i] as i8));
        self.about(half_at(b, 208));
    }

    #[inline(always)]
    fn q8k(&mut self, b: &[u8; 292]) {
        self.bytes(&b[4..260]);
        self.about(float(b));
    }
}

/// Reading blocks, by what reads one of them.
struct Opening<'a, F, const SIZE: usize> {
    row: &'a mut Opened,
    blocks: &'a [[u8; SIZE]],
    open: F,
}

impl<'a, F: Fn(&mut Block<'a>, &[u8; SIZE]), const SIZE: usize> Loop for Opening<'a, F, SIZE> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (mut place, block) in self.row.places().zip(self.blocks) {
            (self.open)(&mut place, block);
        }
    }
}

impl Opened {
    /// Room for `k` numbers in blocks of `len`: a row, or a few blocks.
    pub(super) fn of_few(len: usize, k: usize) -> Self {
        let mut open = Opened::default();
        open.resize("blocks", len, k).expect("room for a few blocks");
        open
    }

    /// Makes room for `k` numbers in blocks of `len`.
    pub(super) fn resize(&mut self, op: &'static str, len: usize, k: usize) -> Result<()> {
        self.len = len;
        self.numbers.resize(op, k)?;
        heap::resize(op, &mut self.bases, k / 16)?;
        heap::resize(op, &mut self.scales, k / len)?;
        heap::resize(op, &mut self.base_scales, k / len)
    }

    /// Where blocks go.
    #[inline(always)]
    fn places(&mut self) -> impl Iterator<Item = Block<'_>> {
        let numbers = self.numbers.all().chunks_exact_mut(self.len);
        let bases = self.bases.chunks_exact_mut(self.len / 16);
        let scales = self.scales.iter_mut().zip(&mut self.base_scales);
        let places = numbers.zip(bases).zip(scales);
        places.map(|((numbers, bases), (scale, base_scale))| Block { numbers, bases, scale, base_scale })
    }

    /// How many numbers there is room for.
    pub(super) fn room(&self) -> usize {
        self.numbers.len()
    }

    /// Reads a row of blocks of a format that is no float's.
    pub(super) fn open(&mut self, dtype: GgmlDType, row: &[u8]) {
        use GgmlDType::*;
        self.based = matches!(dtype, Q4_1 | Q5_1 | Q2K | Q4K | Q5K);
        // Functions by name, which are inlined where the vector units are known, as closures need not be.
        match dtype {
            Q4_0 => self.each::<18>(row, Block::q4_0),
            Q4_1 => self.each::<20>(row, Block::q4_1),
            Q5_0 => self.each::<22>(row, Block::q5_0),
            Q5_1 => self.each::<24>(row, Block::q5_1),
            Q8_0 => self.each::<34>(row, Block::q8_0),
            Q8_1 => self.each::<36>(row, Block::q8_1),
            Q2K => self.each::<84>(row, Block::q2k),
            Q3K => self.each::<110>(row, Block::q3k),
            Q4K => self.each::<144>(row, Block::q4k),
            Q5K => self.each::<176>(row, Block::q5k),
            Q6K => self.each::<210>(row, Block::q6k),
            Q8K => self.each::<292>(row, Block::q8k),
            F32 | F16 | BF16 => unreachable!("floats have no blocks"),
        }
    }

    fn each<'a, const SIZE: usize>(&'a mut self, row: &'a [u8], open: impl Fn(&mut Block<'a>, &[u8; SIZE])) {
        simd(row.len(), Opening { row: self, blocks: row.as_chunks().0, open });
    }

    /// The other side of a product, of a format of 8 bits, whose numbers have no scales of few bits.
    pub(super) fn into_rounded(self) -> Rounded {
        let parts = self.numbers.chunks().as_flattened().chunks_exact(16);
        let sums = parts.map(|part| part.iter().sum()).collect();
        Rounded { numbers: self.numbers, sums, scales: self.scales, parts: Vec::new() }
    }

    /// The numbers as floats.
    pub(super) fn floats(&self, to: &mut [f32]) {
        let parts = self.numbers.chunks().as_flattened().chunks_exact(16).zip(&self.bases).enumerate();
        for (to, (i, (numbers, &part))) in to.chunks_exact_mut(16).zip(parts) {
            let block = i * 16 / self.len;
            let scale = self.scales[block];
            let base = if self.based { self.base_scales[block] * f32::from(part) } else { 0.0 };
            to.iter_mut().zip(numbers).for_each(|(to, &q)| *to = scale * f32::from(q) - base);
        }
    }

    /// The product of row `i` with row `at` of the other side. `by` is room for the scale of each 32 numbers.
    #[inline(always)]
    pub(super) fn dot(&self, i: usize, x: &Rounded, at: usize, by: &mut [f32]) -> f32 {
        match self.len {
            32 => self.dot_of::<32, 2>(i, x, at, by),
            _ => self.dot_of::<256, 16>(i, x, at, by),
        }
    }

    #[inline(always)]
    fn dot_of<const LEN: usize, const PARTS: usize>(&self, i: usize, x: &Rounded, at: usize, by: &mut [f32]) -> f32 {
        let (chunks, blocks) = (by.len(), by.len() * 32 / LEN);
        let (own, other) = (i * blocks..(i + 1) * blocks, at * blocks..(at + 1) * blocks);
        let scales = &x.scales[other.clone()];
        for ((by, own), scale) in by.chunks_exact_mut(LEN / 32).zip(&self.scales[own.clone()]).zip(scales) {
            by.fill(own * scale);
        }
        let (a, b) = (&self.numbers.chunks()[i * chunks..][..chunks], &x.numbers.chunks()[at * chunks..][..chunks]);
        // Two sums, so that one does not wait for the other.
        let mut lanes = [[0.0; 16]; 2];
        let (a, b, by) = (a.as_chunks::<2>(), b.as_chunks::<2>(), by.as_chunks::<2>());
        for ((a, b), by) in a.0.iter().zip(b.0).zip(by.0) {
            add_products(&mut lanes[0], &a[0], &b[0], by[0]);
            add_products(&mut lanes[1], &a[1], &b[1], by[1]);
        }
        for ((a, b), &by) in a.1.iter().zip(b.1).zip(by.1) {
            add_products(&mut lanes[0], a, b, by);
        }
        let mut sum = sum_of(&lanes);
        if self.based {
            let (c, d) = (&self.bases.as_chunks::<PARTS>().0[own.clone()], &x.sums.as_chunks::<PARTS>().0[other]);
            for (((base, by), c), d) in self.base_scales[own].iter().zip(scales).zip(c).zip(d) {
                let integers = c.iter().zip(d).fold(0, |sum: i32, (&c, &d)| sum + i32::from(c) * i32::from(d));
                sum -= by * base * integers as f32;
            }
        }
        sum
    }
}

/// The sum, by fours: one after the other each addition would wait for the one before it. Apart, since in line it would
/// take the loop before it out of vectors.
#[inline(never)]
fn sum_of(lanes: &[[f32; 16]; 2]) -> f32 {
    let fours = lanes.as_flattened().as_chunks::<4>().0.iter();
    let sums = fours.fold([0.0; 4], |sums: [f32; 4], four| std::array::from_fn(|j| sums[j] + four[j]));
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// Adds the products of integers times a scale, each lane two of them: what vector units multiply in one instruction.
#[inline(always)]
fn add_products(lanes: &mut [f32; 16], a: &[i16; 32], b: &[i16; 32], scale: f32) {
    for (j, lane) in lanes.iter_mut().enumerate() {
        let product = |j: usize| i32::from(a[j]) * i32::from(b[j]);
        *lane += scale * (product(2 * j) + product(2 * j + 1)) as f32;
    }
}
