//! Floats as numbers of 8 bits: what products make of the side that is not in blocks.

use half::f16;

use crate::base::{error::Result, heap};
use crate::cpu::vector::{Loop, simd};

/// Numbers of a large block.
pub(super) const LARGE: usize = 256;

/// Numbers that begin where a line of the cache does, as the widest vectors want it: each 32 of them are one.
#[derive(Default)]
pub(super) struct Aligned {
    room: Vec<i16>,
    /// Where they begin.
    start: usize,
    len: usize,
}

impl Aligned {
    /// Makes it hold so many numbers, of any value.
    pub(super) fn resize(&mut self, op: &'static str, len: usize) -> Result<()> {
        const MORE: usize = 32;
        heap::resize(op, &mut self.room, len + MORE)?;
        (self.start, self.len) = (self.room.as_ptr().align_offset(64).min(MORE), len);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn all(&mut self) -> &mut [i16] {
        &mut self.room[self.start..][..self.len]
    }

    #[inline(always)]
    pub(super) fn chunks(&self) -> &[[i16; 32]] {
        self.room[self.start..][..self.len].as_chunks().0
    }
}

/// Rows of floats as numbers of 8 bits with a scale for each block.
#[derive(Default)]
pub(super) struct Rounded {
    /// In -128..=127, of 16 bits, as they are multiplied.
    pub(super) numbers: Aligned,
    /// Sums of each 16.
    pub(super) sums: Vec<i16>,
    pub(super) scales: Vec<f32>,
    /// The same in bytes, of each block of 32: its part of the first row, of the second, and so on.
    pub(super) parts: Vec<Part>,
}

/// 32 numbers of a row, as bytes are multiplied.
#[derive(Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) words: [[i8; 4]; 8],
    pub(super) scale: f32,
    /// What the other side's bias adds to their products, below 0.
    pub(super) less: i32,
}

impl Rounded {
    /// Makes it hold these rows, in the room that it has.
    pub(super) fn round(&mut self, op: &'static str, rows: &[f32], block: usize) -> Result<()> {
        self.numbers.resize(op, rows.len())?;
        heap::resize(op, &mut self.sums, rows.len() / 16)?;
        heap::resize(op, &mut self.scales, rows.len() / block)?;
        simd(rows.len(), Rounding { rows, block, to: self });
        Ok(())
    }

    /// Makes bytes of `m` rows in blocks of 32, whose other side has a bias.
    pub(super) fn part(&mut self, op: &'static str, m: usize, bias: i32) -> Result<()> {
        let Rounded { numbers, sums, scales, parts } = self;
        heap::resize(op, parts, scales.len())?;
        simd(numbers.len(), || {
            let rows = numbers.chunks().iter().zip(sums.as_chunks::<2>().0).zip(&*scales);
            for (i, ((numbers, sums), &scale)) in rows.enumerate() {
                let blocks = parts.len() / m;
                let words = bytemuck::cast(numbers.map(|number| number as i8));
                let less = -bias * (i32::from(sums[0]) + i32::from(sums[1]));
                parts[i % blocks * m + i / blocks] = Part { words, scale, less };
            }
        });
        Ok(())
    }
}

struct Rounding<'a> {
    rows: &'a [f32],
    block: usize,
    to: &'a mut Rounded,
}

impl Loop for Rounding<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.rows.chunks_exact(self.block).zip(self.to.numbers.all().chunks_exact_mut(self.block));
        for ((x, to), scale) in blocks.zip(&mut self.to.scales) {
            *scale = rounded(x, to);
        }
        for (x, sum) in self.to.numbers.all().chunks_exact(16).zip(&mut self.to.sums) {
            *sum = x.iter().sum();
        }
    }
}

/// Numbers of 8 bits for a block of 32 or 256 floats, and their scale. A block with a float that is no number has no
/// scale that is one.
#[inline(always)]
pub(super) fn rounded(x: &[f32], to: &mut [i16]) -> f32 {
    // The order of floats without sign is that of their bits, of which a maximum is found with vectors.
    let bits = |x: f32| x.to_bits() & (u32::MAX >> 1);
    let largest = x.iter().fold(0, |largest, &x| largest.max(bits(x)));
    if largest == 0 {
        to.fill(0);
        return 0.0;
    }
    let (by, scale) = if x.len() == LARGE {
        let signed = x.iter().find(|x| bits(**x) == largest).map_or(0.0, |x| *x);
        let by = -127.0 / signed;
        (by, 1.0 / by)
    } else {
        let scale = f32::from_bits(largest) / 127.0;
        (1.0 / scale, as_half(scale))
    };
    // Above 2^23 a float's last bits are those of its integer: vectors have no other fast way for what may not be a
    // number.
    const WHOLE: f32 = (3 << 22) as f32;
    let integer = |x: f32| (x.round().clamp(-128.0, 127.0) + WHOLE).to_bits() as i8;
    to.iter_mut().zip(x).for_each(|(to, &x)| *to = i16::from(integer(by * x)));
    scale
}

/// What a half makes of a scale, if it is in the range in which halves are precise.
fn as_half(scale: f32) -> f32 {
    let half = f16::from_f32(scale);
    if half.is_normal() { half.to_f32() } else { scale }
}
