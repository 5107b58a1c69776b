//! Products of blocks of 32 numbers about 0 by the instruction that multiplies bytes. One of its sides has no sign:
//! there a number stands above what it is by the format's bias, and what that adds to a sum is taken off before.
//!
//! Four bytes of sixteen rows lie beside each other, so that a row's sum is a lane. The products of a block are an
//! integer, which is added, times both scales, block by block: a result does not depend on how many rows there are.

use super::rounded::{Part, Rounded};
use crate::base::ggml::GgmlDType;
use crate::cpu::vector::{ByteLoop, ByteProducts, by_bytes, multiplies_bytes};

/// Rows of blocks that are multiplied at a time.
pub(super) const ROWS: usize = 16;

/// What a format's numbers stand above what they are, if they are multiplied here.
pub(super) fn bias(dtype: GgmlDType) -> Option<i32> {
    let bias = match dtype {
        GgmlDType::Q4_0 => 8,
        GgmlDType::Q8_0 => 128,
        _ => return None,
    };
    multiplies_bytes().then_some(bias)
}

/// The products of rows of blocks with each of `m` rows: as many columns of `m`. Room for `ROWS * m` sums.
pub(super) fn columns(dtype: GgmlDType, rows: &[u8], m: usize, x: &Rounded, room: &mut [f32], columns: &mut [f32]) {
    match dtype {
        // The lower nibbles first.
        GgmlDType::Q4_0 => {
            run(rows, m, x, room, columns, |b: &[u8; 18]| std::array::from_fn(|i| b[2 + i % 16] >> (i / 16 * 4) & 15))
        }
        _ => run(rows, m, x, room, columns, |b: &[u8; 34]| std::array::from_fn(|i| b[2 + i] ^ 0x80)),
    }
}

fn run<const SIZE: usize>(
    rows: &[u8],
    m: usize,
    x: &Rounded,
    room: &mut [f32],
    columns: &mut [f32],
    numbers: impl Fn(&[u8; SIZE]) -> [u8; 32],
) {
    let blocks = x.parts.len() / m;
    let (rows, sums) = (rows.as_chunks().0, room.as_chunks_mut().0);
    by_bytes(Products { rows, blocks, m, parts: &x.parts, sums, columns, numbers });
}

/// The blocks of sixteen rows, the last of them in place of those that there are not.
#[inline(always)]
fn each_of<const SIZE: usize>(rows: &[[u8; SIZE]], blocks: usize) -> [&[[u8; SIZE]]; ROWS] {
    let last = rows.len() / blocks - 1;
    std::array::from_fn(|row| &rows[row.min(last) * blocks..][..blocks])
}

/// Sixteen rows of blocks beside each other, whose sums are lanes.
struct Products<'a, F, const SIZE: usize> {
    rows: &'a [[u8; SIZE]],
    blocks: usize,
    m: usize,
    parts: &'a [Part],
    sums: &'a mut [[f32; ROWS]],
    columns: &'a mut [f32],
    numbers: F,
}

impl<F: Fn(&[u8; SIZE]) -> [u8; 32], const SIZE: usize> ByteLoop for Products<'_, F, SIZE> {
    #[inline(always)]
    fn run(self, unit: ByteProducts) {
        let sums = &mut self.sums[..self.m];
        for (rows, columns) in self.rows.chunks(ROWS * self.blocks).zip(self.columns.chunks_mut(ROWS * self.m)) {
            let rows = each_of(rows, self.blocks);
            sums.fill([0.0; ROWS]);
            for (i, parts) in self.parts.chunks_exact(self.m).enumerate() {
                let words = unit.transposed(std::array::from_fn(|row| (self.numbers)(&rows[row][i])));
                let half = |row: usize| u16::from_le_bytes([rows[row][i][0], rows[row][i][1]]);
                let scales = unit.floats(std::array::from_fn(half));
                for (sums, part) in sums.iter_mut().zip(parts) {
                    let pairs = words.iter().zip(&part.words);
                    let integers = pairs.fold([part.less; ROWS], |sums, (words, &four)| unit.add(sums, *words, four));
                    add(sums, part.scale, scales, integers);
                }
            }
            for (row, columns) in columns.chunks_exact_mut(self.m).enumerate() {
                columns.iter_mut().zip(&*sums).for_each(|(to, sums)| *to = sums[row]);
            }
        }
    }
}

/// Adds integers times both scales.
#[inline(always)]
fn add(sums: &mut [f32; ROWS], scale: f32, scales: [f32; ROWS], integers: [i32; ROWS]) {
    for ((sum, own), integer) in sums.iter_mut().zip(scales).zip(integers) {
        *sum += own * scale * integer as f32;
    }
}
