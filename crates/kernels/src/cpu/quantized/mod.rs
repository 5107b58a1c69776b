//! Blocks of small integers that share their scales: as floats, made of floats, and multiplied.
//!
//! `blocks.rs` knows the layout of each format, and makes of any of them rows of one form (`Opened`), in which the
//! scales that are integers are multiplied into the numbers. What is done with rows is code once for all formats. Since
//! numbers and scales are short, a row of that form is exact, and so is each product of it with a float's bits but for
//! one rounding.
//!
//! A product makes 8-bit numbers of the other side, of each 32 or 256 of them with a scale, as the format's own library
//! does, multiplies integers in pairs, and adds these as floats in sixteen lanes. A row of blocks is opened once for
//! all rows of the other side.

mod blocks;
mod bytes;
mod pack;
mod rounded;

use std::cell::Cell;
use std::sync::OnceLock;

use half::{bf16, f16};

use self::{
    blocks::{Opened, float},
    rounded::Rounded,
};
use super::{
    rows::Piece,
    threads,
    vector::{Loop, simd},
};
use crate::base::{error::Result, ggml::GgmlDType, heap};

/// Multiplications from which a product is worth several threads.
const THREADS_MIN: usize = 1 << 20;
/// Rows of blocks that are opened at a time.
const ROWS: usize = 8;
/// Numbers that are opened at a time, if there is one row to multiply with.
const TOGETHER: usize = 1 << 12;
/// Numbers whose room a thread keeps.
const KEPT: usize = 1 << 16;
/// Numbers of blocks that a thread takes at a time.
const SHARE: usize = 1 << 16;
/// Blocks that are opened or packed at a time.
const PIECE: usize = 16;

/// The numbers of whole blocks. `bytes` and `to` have as many blocks.
pub fn dequantize(dtype: GgmlDType, bytes: &[u8], to: &mut [f32]) {
    let (size, len) = (dtype.type_size(), dtype.block_size());
    assert!(bytes.len() / size * len == to.len(), "as many numbers as the blocks have");
    let piece = if len == 1 { 4096 } else { PIECE * len };
    let one = |i: usize, to: &mut [f32]| {
        let bytes = &bytes[i * (piece / len) * size..][..to.len() / len * size];
        match dtype {
            GgmlDType::F32 => to.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(to, x)| *to = float(x)),
            GgmlDType::F16 => halves(bytes, to, f16::to_f32, f16::from_bits),
            GgmlDType::BF16 => halves(bytes, to, bf16::to_f32, bf16::from_bits),
            _ => {
                let mut row = Opened::of_few(len, to.len());
                row.open(dtype, bytes);
                row.floats(to);
            }
        }
    };
    each(to, piece, &one);
}

fn halves<H>(bytes: &[u8], to: &mut [f32], widen: fn(H) -> f32, of: fn(u16) -> H) {
    to.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(to, x)| *to = widen(of(u16::from_le_bytes([x[0], x[1]]))));
}

/// The blocks nearest to numbers. `bytes` and `from` have as many blocks.
pub fn quantize(dtype: GgmlDType, from: &[f32], bytes: &mut [u8]) {
    weighed(dtype, from, &[], bytes);
}

/// As [`quantize`], in a format of 256 numbers a block, where an error matters by the importance of its place in a row:
/// that is as long as `importance`, of whole blocks. Of none, everything matters alike.
pub fn weighed(dtype: GgmlDType, from: &[f32], importance: &[f32], bytes: &mut [u8]) {
    let (size, len) = (dtype.type_size(), dtype.block_size());
    assert!(bytes.len() / size * len == from.len(), "as many numbers as the blocks have");
    let piece = if len == 1 { 4096 } else { PIECE };
    each(bytes, piece * size, &|i: usize, bytes: &mut [u8]| {
        let from = &from[i * piece * len..][..bytes.len() / size * len];
        match dtype {
            GgmlDType::F32 => {
                bytes.chunks_exact_mut(4).zip(from).for_each(|(b, x)| b.copy_from_slice(&x.to_le_bytes()))
            }
            GgmlDType::F16 => put_halves(bytes, from, |x| f16::from_f32(x).to_bits()),
            GgmlDType::BF16 => put_halves(bytes, from, |x| bf16::from_f32(x).to_bits()),
            _ => {
                for (at, (b, x)) in (i * piece..).zip(bytes.chunks_exact_mut(size).zip(from.chunks_exact(len))) {
                    let row = importance.len() / len;
                    let own = (row > 0).then(|| &importance[at % row.max(1) * len..][..len]);
                    pack::block(dtype, x, own, b);
                }
            }
        }
    });
}

fn put_halves(bytes: &mut [u8], from: &[f32], bits: fn(f32) -> u16) {
    bytes.chunks_exact_mut(2).zip(from).for_each(|(b, &x)| b.copy_from_slice(&bits(x).to_le_bytes()));
}

/// Calls `f` with every piece, on several threads if there are many elements.
fn each<D: bytemuck::Pod>(to: &mut [D], piece: usize, f: &(dyn Piece<D> + Sync)) {
    match if to.len() < threads::ELEMENTS_MIN { None } else { threads::pool() } {
        Some(pool) => threads::items(pool, to, piece, f),
        None => to.chunks_mut(piece).enumerate().for_each(|(i, to)| f.run(i, to)),
    }
}

thread_local! {
    // What a product needs room for stays with the thread up to [`KEPT`], so that the next one asks the heap for
    // nothing.
    /// The other side, and columns of the result.
    static ROUNDED: Cell<(Rounded, Vec<f32>)> = Cell::default();
    /// Opened rows, and scales of one.
    static OPENED: Cell<(Opened, Vec<f32>)> = Cell::default();
}

/// The products of opened rows with all rows of the other side: columns of `m`.
struct Columns<'a> {
    open: &'a Opened,
    x: &'a Rounded,
    /// Room for the scales of a row.
    by: &'a mut [f32],
    m: usize,
    columns: &'a mut [f32],
}

impl Loop for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for at in 0..self.m {
            for (row, column) in self.columns.chunks_exact_mut(self.m).enumerate() {
                column[at] = self.open.dot(row, self.x, at, self.by);
            }
        }
    }
}

/// The product of two rows of as many blocks, the second of them of numbers of 8 bits without a base.
pub fn dot(dtypes: [GgmlDType; 2], rows: [&[u8]; 2]) -> f32 {
    let len = dtypes[0].block_size();
    let count = rows[0].len() / dtypes[0].type_size() * len;
    let [a, b] = [0, 1].map(|side| {
        let mut open = Opened::of_few(len, count);
        open.open(dtypes[side], rows[side]);
        open
    });
    a.dot(0, &b.into_rounded(), 0, &mut vec![0.0; count / 32])
}

/// `x weights^T` of `[M, K]` and `[N, K]` blocks, to `[M, N]`: what [`GgmlDType::block_size`] of more than 1 stands
/// for.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::base::error::Error::OutOfMemory): no room for the other side in 8 bits, or for
/// columns.
pub fn product(
    op: &'static str,
    dtype: GgmlDType,
    [m, k, n]: [usize; 3],
    x: &[f32],
    weights: &[u8],
    to: &mut [f32],
) -> Result<()> {
    let (size, len) = (dtype.type_size(), dtype.block_size());
    let row_bytes = k / len * size;
    assert!(len > 1 && k.is_multiple_of(len), "rows of whole blocks");
    assert!(x.len() == m * k && weights.len() == n * row_bytes && to.len() == m * n, "the sides and the result fit");
    if to.is_empty() || k == 0 {
        to.fill(0.0);
        return Ok(());
    }
    let (mut rounded, mut columns) = ROUNDED.try_with(Cell::take).unwrap_or_default();
    rounded.round(op, x, len)?;
    let bias = bytes::bias(dtype);
    if let Some(bias) = bias {
        rounded.part(op, m, bias)?;
    }
    // Several rows are opened at once where each row of the other side is read for all of them, and short ones.
    let together = if m == 1 { (TOGETHER / k).clamp(1, ROWS) } else { ROWS }.min(n);
    let share = (SHARE / k).max(1).next_multiple_of(bytes::ROWS);
    // Row by row of the blocks: the result's columns, which lie one after the other if there is one row.
    let refused = OnceLock::new();
    let rows = |i: usize, columns: &mut [f32]| {
        let (mut open, mut by) = OPENED.try_with(Cell::take).unwrap_or_default();
        let room = match bias {
            Some(_) => heap::resize(op, &mut by, bytes::ROWS * m),
            None => open.resize(op, len, together * k).and_then(|()| heap::resize(op, &mut by, k / 32)),
        };
        if let Err(error) = room {
            return drop(refused.set(error));
        }
        if bias.is_some() {
            let rows = &weights[i * share * row_bytes..][..columns.len() / m * row_bytes];
            bytes::columns(dtype, rows, m, &rounded, &mut by, columns);
        } else {
            for (j, columns) in columns.chunks_mut(together * m).enumerate() {
                let (first, count) = (i * share + j * together, columns.len() / m);
                open.open(dtype, &weights[first * row_bytes..][..count * row_bytes]);
                simd(k, Columns { open: &open, x: &rounded, by: &mut by, m, columns });
            }
        }
        if open.room().max(by.len()) <= KEPT {
            let _ = OPENED.try_with(|kept| kept.set((open, by)));
        }
    };
    let all = |columns: &mut [f32]| match if m * k * n < THREADS_MIN { None } else { threads::pool() } {
        Some(pool) => threads::items(pool, columns, share * m, &rows),
        None => columns.chunks_mut(share * m).enumerate().for_each(|(i, columns)| rows(i, columns)),
    };
    if m == 1 {
        all(to);
    } else {
        heap::resize(op, &mut columns, m * n)?;
        all(&mut columns);
        for (i, to) in to.chunks_exact_mut(n).enumerate() {
            to.iter_mut().zip(columns[i..].iter().step_by(m)).for_each(|(to, &x)| *to = x);
        }
    }
    if rounded.numbers.len().max(columns.len()) <= KEPT {
        let _ = ROUNDED.try_with(|kept| kept.set((rounded, columns)));
    }
    refused.into_inner().map_or(Ok(()), Err)
}
