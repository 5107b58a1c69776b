//! Dtypes of low precision, which compute in a wider one: f8e4m3, f16 and bf16 in f32, the integers of 8 and 16 bits in
//! i32.
//!
//! Elementwise kernels widen a block of every operand on the stack, run the wider dtype's code there, and round the
//! result back: one rounding an operation, and no loop of its own for each of these dtypes. Wrapping arithmetic in 32
//! bits ends in the lower 8 or 16 bits of one of low precision. Kernels that look at more than one element at a time
//! get their operands [`widened`](super::widened) as a whole.

use std::ops::Range;

use float8::F8E4M3;
use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::base::{
    dtype::{f8_of_single, f8_to_single},
    error::Result,
    layout::Layout,
    shape::Shape,
};
use crate::cpu::{
    elementwise::{self, Binary, Functions, Unary},
    number::Number,
    operand::{Element, In, Out},
    optim::{Pass, Stepped},
    strided,
    threads::{self, SLICES},
    vector::simd,
};
use crate::kernel::{BinaryOp, CmpOp, Map, Rectifier, UnaryOp};

/// Elements widened at a time.
pub(super) const BLOCK: usize = 256;

/// The blocks of a row of so many elements.
pub(super) fn blocks(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(BLOCK).map(move |start| start..len.min(start + BLOCK))
}

/// An element of low precision.
pub(super) trait LowPrecision: Element {
    /// What it computes in.
    type Compute: Number;
    fn widen(from: &[Self], to: &mut [Self::Compute]);
    /// Floats are rounded, integers wrap.
    fn narrow(from: &[Self::Compute], to: &mut [Self]);
    /// A number as this dtype holds it.
    fn rounded(value: f64) -> f64 {
        Self::from_f64(value).to_f64()
    }
}

macro_rules! narrow_integers {
    ($($t:ty)*) => {$(
        impl LowPrecision for $t {
            type Compute = i32;
            #[inline(never)]
            fn widen(from: &[Self], to: &mut [i32]) {
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.into());
            }
            #[inline(never)]
            fn narrow(from: &[i32], to: &mut [Self]) {
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as $t);
            }
        }
    )*};
}
narrow_integers!(u8 i8 u16 i16);

impl LowPrecision for f16 {
    type Compute = f32;
    #[inline]
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    #[inline]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl LowPrecision for bf16 {
    type Compute = f32;
    #[inline(never)]
    fn widen(from: &[Self], to: &mut [f32]) {
        simd(to.len(), || to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32()));
    }
    #[inline(never)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        simd(to.len(), || to.iter_mut().zip(from).for_each(|(to, &from)| *to = bf16::from_f32(from)));
    }
}

impl LowPrecision for F8E4M3 {
    type Compute = f32;
    #[inline(never)]
    fn widen(from: &[Self], to: &mut [f32]) {
        simd(to.len(), || to.iter_mut().zip(from).for_each(|(to, &from)| *to = f8_to_single(from)));
    }
    #[inline(never)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        simd(to.len(), || to.iter_mut().zip(from).for_each(|(to, &from)| *to = f8_of_single(from)));
    }
}

/// A float of 8 or 16 bits.
pub(super) trait Half: LowPrecision<Compute = f32> {
    /// The next lower one.
    fn next_down(self) -> Self;
}

macro_rules! halves {
    ($($t:ty, $sign:literal;)*) => {$(
        impl Half for $t {
            fn next_down(self) -> Self {
                let bits = self.to_bits();
                <$t>::from_bits(match bits {
                    0 | $sign => $sign + 1,
                    0..$sign => bits - 1,
                    _ => bits + 1,
                })
            }
        }
    )*};
}
halves! { F8E4M3, 0x80; f16, 0x8000; bf16, 0x8000; }

/// A block of widened elements, and their layout.
struct StagedBlock<W> {
    data: [W; BLOCK],
    layout: Layout,
}

impl<W: Number> StagedBlock<W> {
    fn new(len: usize) -> Self {
        StagedBlock { data: [W::ZERO; BLOCK], layout: Layout::contiguous(Shape::from(len)) }
    }

    fn of<N: LowPrecision<Compute = W>>(from: &[N]) -> Self {
        let mut stage = StagedBlock::new(from.len());
        N::widen(from, &mut stage.data[..from.len()]);
        stage
    }

    fn source(&self) -> In<'_, W> {
        In { data: &self.data, layout: &self.layout }
    }

    fn target(&mut self) -> Out<'_, W> {
        Out { data: &mut self.data, layout: &self.layout }
    }

    fn put<N: LowPrecision<Compute = W>>(&self, to: &mut [N]) {
        N::narrow(&self.data[..to.len()], to);
    }
}

/// What is done with blocks of one and of two widened operands.
type RowMap<'f, W> = dyn Fn(In<'_, W>, Out<'_, W>) + Sync + 'f;
type RowZip<'f, W> = dyn Fn(In<'_, W>, In<'_, W>, Out<'_, W>) + Sync + 'f;

/// `f` from blocks of `src` to blocks of `dst`.
fn map<N: LowPrecision>(src: In<'_, N>, dst: Out<'_, N>, f: &RowMap<'_, N::Compute>) {
    let row = |a: &[N], d: &mut [N]| {
        for part in blocks(d.len()) {
            let (a, mut out) = (StagedBlock::of(&a[part.clone()]), StagedBlock::new(part.len()));
            f(a.source(), out.target());
            out.put(&mut d[part]);
        }
    };
    elementwise::rows_to(src, dst, &row);
}

/// `f` changes blocks of `dst`.
fn change<N: LowPrecision>(dst: Out<'_, N>, f: &(dyn Fn(Out<'_, N::Compute>) + Sync)) {
    let row = |d: &mut [N]| {
        for d in d.chunks_mut(BLOCK) {
            let mut out = StagedBlock::of(d);
            f(out.target());
            out.put(d);
        }
    };
    match dst.is_dense() {
        true => threads::split1(dst.dense(), &|_: usize, d: &mut [N]| row(d)),
        false => strided::rows1(dst, &row),
    }
}

/// `f` from blocks of both sides to blocks of `dst`.
fn zip<N: LowPrecision>(lhs: In<'_, N>, rhs: In<'_, N>, dst: Out<'_, N>, f: &RowZip<'_, N::Compute>) {
    let row = |a: &[N], b: &[N], d: &mut [N]| {
        for part in blocks(d.len()) {
            let (a, b) = (StagedBlock::of(&a[part.clone()]), StagedBlock::of(&b[part.clone()]));
            let mut out = StagedBlock::new(part.len());
            f(a.source(), b.source(), out.target());
            out.put(&mut d[part]);
        }
    };
    elementwise::rows_of_two(lhs, rhs, dst, &row);
}

pub(super) fn binary<N: LowPrecision>(op: BinaryOp, operands: Binary<'_, N>) {
    match operands {
        Binary::To(lhs, rhs, dst) => {
            zip(lhs, rhs, dst, &|a, b, d| elementwise::binary(op, Binary::To(a, b, d)));
        }
        Binary::InPlace(rhs, dst) => {
            let row = |b: &[N], d: &mut [N]| {
                for part in blocks(d.len()) {
                    let (b, mut out) = (StagedBlock::of(&b[part.clone()]), StagedBlock::of(&d[part.clone()]));
                    elementwise::binary(op, Binary::InPlace(b.source(), out.target()));
                    out.put(&mut d[part]);
                }
            };
            match rhs.dense() {
                Some(b) if dst.is_dense() => threads::split2(b, dst.dense(), &row),
                _ => strided::rows2(rhs, dst, true, &row),
            }
        }
    }
}

/// `f` of the operand of a unary function, which may be the destination itself.
fn each<N: LowPrecision>(operand: Unary<'_, N>, f: &(dyn Fn(Unary<'_, N::Compute>) + Sync)) {
    match operand {
        Unary::To(src, dst) => map(src, dst, &|a, d| f(Unary::To(a, d))),
        Unary::InPlace(dst) => change(dst, &|d| f(Unary::InPlace(d))),
    }
}

/// A map whose numbers are as this dtype holds them.
pub(super) fn rounded<N: LowPrecision>(map: Map) -> Map {
    match map {
        Map::Clamp { min, max } => Map::Clamp { min: N::rounded(min), max: N::rounded(max) },
        Map::Affine { mul, add } if !N::DTYPE.is_float() => Map::Affine { mul: N::rounded(mul), add: N::rounded(add) },
        map => map,
    }
}

/// As [`elementwise::map_numbers`], of the wider dtype.
pub(super) fn map_numbers<N: LowPrecision>(map: Map, operand: Unary<'_, N>) -> Result<()> {
    elementwise::check_closed(map, N::DTYPE)?;
    let map = rounded::<N>(map);
    each(operand, &|operand| {
        // What integers are not closed over was refused.
        let _ = elementwise::map_numbers(map, operand);
    });
    Ok(())
}

/// As [`map_numbers`], of floats.
pub(super) fn map_floats<N: LowPrecision<Compute: Functions>>(map: Map, operand: Unary<'_, N>) {
    let map = rounded::<N>(map);
    each(operand, &|operand| {
        // Floats have all maps.
        let _ = elementwise::map_floats(map, operand);
    });
}

pub(super) fn compare<N: LowPrecision>(op: CmpOp, lhs: In<'_, N>, rhs: In<'_, N>, dst: Out<'_, u8>) {
    let row = |a: &[N], b: &[N], d: &mut [u8]| {
        for part in blocks(d.len()) {
            let (a, b) = (StagedBlock::of(&a[part.clone()]), StagedBlock::of(&b[part.clone()]));
            elementwise::compare(op, a.source(), b.source(), Out { data: &mut d[part], layout: &a.layout });
        }
    };
    elementwise::rows_of_two(lhs, rhs, dst, &row);
}

pub(super) fn unary_grad<N: LowPrecision<Compute: Functions>>(
    op: UnaryOp,
    saved: In<'_, N>,
    grad: In<'_, N>,
    dst: Out<'_, N>,
) {
    zip(saved, grad, dst, &|s, g, d| N::Compute::unary_grad(op, s, g, d));
}

pub(super) fn rectifier_grad<N: LowPrecision<Compute: Functions>>(
    rectifier: Rectifier,
    saved: In<'_, N>,
    grad: In<'_, N>,
    dst: Out<'_, N>,
) {
    zip(saved, grad, dst, &|s, g, d| elementwise::rectifier_grad(rectifier, s, g, d));
}

/// Steps of optimisers go from block to block.
macro_rules! stepped_in_blocks {
    ($($t:ty)*) => {$(
        impl Stepped for $t {
            type Compute = f32;
            fn pass(grad: &[$t], arrays: [&mut [$t]; SLICES], pass: &Pass<'_, f32>) {
                let mut wide = [[0.0; BLOCK]; SLICES];
                for part in blocks(grad.len()) {
                    let (slope, count) = (StagedBlock::of(&grad[part.clone()]), part.len());
                    for n in 0..SLICES {
                        if let Some(array) = arrays[n].get(part.clone()) {
                            <$t>::widen(array, &mut wide[n][..count]);
                        }
                    }
                    let [a, b, c, d] = &mut wide;
                    pass(&slope.data[..count], [&mut a[..count], &mut b[..count], &mut c[..count], &mut d[..count]]);
                    for n in 0..SLICES {
                        if let Some(array) = arrays[n].get_mut(part.clone()) {
                            <$t>::narrow(&wide[n][..count], array);
                        }
                    }
                }
            }
        }
    )*};
}
stepped_in_blocks!(F8E4M3 f16 bf16);

/// `dst` in the wider dtype, in row-major order, of a source of any layout.
pub(super) fn widen_all<N: LowPrecision>(src: In<'_, N>, dst: Out<'_, N::Compute>) {
    elementwise::rows_to(src, dst, &|a: &[N], d: &mut [N::Compute]| N::widen(a, d));
}

/// `dst`, of any layout that does not repeat, from the wider dtype in row-major order.
pub(super) fn narrow_all<N: LowPrecision>(src: In<'_, N::Compute>, dst: Out<'_, N>) {
    let row = &|a: &[N::Compute], d: &mut [N]| N::narrow(a, d);
    match src.dense() {
        Some(a) if dst.is_dense() => threads::split2(a, dst.dense(), row),
        _ => strided::rows2(src, dst, false, row),
    }
}
