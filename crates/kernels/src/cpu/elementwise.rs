//! Kernels that treat each element by itself.
//!
//! Operands that are dense go through one slice loop, compiled for several instruction sets and chosen at run
//! time; with many elements on several threads. Others go through `walk.rs`, which hands the same loop one row
//! at a time. A loop is compiled once for each operation and dtype, never once for each layout.

// Loops over a range: half of the code to compile that iterators are, and the same vectors.
#![allow(clippy::needless_range_loop)]

use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::cpu::{
    Element, In, Out,
    number::{Float, Id, Number},
    special, threads,
    vector::simd,
    walk,
};
use crate::kernel::{BinaryOp, CmpOp, GradOp, UnaryOp};

#[inline(never)]
fn row1<A: Copy, D>(a: &[A], d: &mut [D], f: impl Fn(A) -> D) {
    simd(d.len(), || {
        let a = &a[..d.len()];
        for i in 0..d.len() {
            d[i] = f(a[i]);
        }
    });
}

#[inline(never)]
fn row2<A: Copy, B: Copy, D>(a: &[A], b: &[B], d: &mut [D], f: impl Fn(A, B) -> D) {
    simd(d.len(), || {
        let (a, b) = (&a[..d.len()], &b[..d.len()]);
        for i in 0..d.len() {
            d[i] = f(a[i], b[i]);
        }
    });
}

#[inline(always)]
pub(super) fn map<A: Element, D: Element>(src: In<'_, A>, dst: Out<'_, D>, f: impl Fn(A) -> D + Copy + Sync) {
    rows_to(src, dst, &|a, d| row1(a, d, f));
}

/// What is done with a row of one or two sources and the destination: by reference, so that the code around it is there
/// once for its types.
type Row2<'f, A, D> = dyn Fn(&[A], &mut [D]) + Sync + 'f;
type Row3<'f, A, B, D> = dyn Fn(&[A], &[B], &mut [D]) + Sync + 'f;

/// `row` from rows of `src` to rows of `dst`, which is dense.
pub(super) fn rows_to<A: Element, D: Element>(src: In<'_, A>, dst: Out<'_, D>, row: &Row2<'_, A, D>) {
    match src.dense() {
        Some(a) => threads::split2(a, dst.dense(), row),
        None => walk::rows2(src, dst, false, row),
    }
}

#[inline(always)]
fn zip<A: Element, B: Element, D: Element>(
    lhs: In<'_, A>,
    rhs: In<'_, B>,
    dst: Out<'_, D>,
    f: impl Fn(A, B) -> D + Copy + Sync,
) {
    rows_of_two(lhs, rhs, dst, &|a, b, d| row2(a, b, d, f));
}

/// `row` from rows of both sides to rows of `dst`, which is dense.
pub(super) fn rows_of_two<A: Element, B: Element, D: Element>(
    lhs: In<'_, A>,
    rhs: In<'_, B>,
    dst: Out<'_, D>,
    row: &Row3<'_, A, B, D>,
) {
    match (lhs.dense(), rhs.dense()) {
        (Some(a), Some(b)) => threads::split3(a, b, dst.dense(), row),
        _ => walk::rows3(lhs, rhs, dst, row),
    }
}

/// The operand of a unary function, which may be the destination itself.
pub(super) enum Unary<'a, T> {
    To(In<'a, T>, Out<'a, T>),
    InPlace(Out<'a, T>),
}

impl<T: Number> Unary<'_, T> {
    #[inline(always)]
    fn map(self, f: impl Fn(T) -> T + Copy + Sync) -> Result<()> {
        match self {
            Unary::To(src, dst) => map(src, dst, f),
            Unary::InPlace(dst) => change(dst, &|d| change_row(d, f)),
        }
        Ok(())
    }
}

#[inline(never)]
fn change_row<T: Number>(d: &mut [T], f: impl Fn(T) -> T) {
    simd(d.len(), || {
        for i in 0..d.len() {
            d[i] = f(d[i]);
        }
    });
}

fn change<T: Number>(dst: Out<'_, T>, row: &(dyn Fn(&mut [T]) + Sync)) {
    if dst.is_dense() {
        threads::split1(dst.dense(), &|_, d| row(d));
    } else {
        walk::rows1(dst, row);
    }
}

/// The operands of a binary function, whose left one may be the destination itself.
pub(super) enum Binary<'a, T> {
    To(In<'a, T>, In<'a, T>, Out<'a, T>),
    InPlace(In<'a, T>, Out<'a, T>),
}

impl<T: Number> Binary<'_, T> {
    #[inline(always)]
    fn zip(self, f: impl Fn(T, T) -> T + Copy + Sync) {
        match self {
            Binary::To(lhs, rhs, dst) => zip(lhs, rhs, dst, f),
            Binary::InPlace(rhs, dst) => assign(rhs, dst, &|b, d| assign_row(b, d, f)),
        }
    }
}

#[inline(never)]
fn assign_row<T: Number>(b: &[T], d: &mut [T], f: impl Fn(T, T) -> T) {
    simd(d.len(), || {
        let b = &b[..d.len()];
        for i in 0..d.len() {
            d[i] = f(d[i], b[i]);
        }
    });
}

fn assign<T: Number>(rhs: In<'_, T>, dst: Out<'_, T>, row: &(dyn Fn(&[T], &mut [T]) + Sync)) {
    match rhs.dense() {
        Some(b) if dst.is_dense() => threads::split2(b, dst.dense(), row),
        _ => walk::rows2(rhs, dst, true, row),
    }
}

/// Refuses functions that only floats have.
pub(super) fn check_closed(op: UnaryOp, dtype: DType) -> Result<()> {
    match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Sqr | UnaryOp::Relu => Ok(()),
        _ => Err(Error::UnsupportedDType { op: "unary", dtype, supported: "f16, bf16, f32, f64" }),
    }
}

/// Functions that exist for every dtype.
pub(super) fn unary<T: Number>(op: UnaryOp, operand: Unary<'_, T>) -> Result<()> {
    match op {
        UnaryOp::Neg => operand.map(T::negated),
        UnaryOp::Abs => operand.map(T::magnitude),
        UnaryOp::Sign => operand.map(T::sign),
        UnaryOp::Sqr => operand.map(T::squared),
        UnaryOp::Relu => operand.map(T::rectified),
        _ => check_closed(op, T::DTYPE),
    }
}

/// All functions, for floats.
pub(super) fn unary_float<T: Float>(op: UnaryOp, operand: Unary<'_, T>) -> Result<()> {
    match op {
        UnaryOp::Exp => operand.map(T::exp),
        UnaryOp::Log => operand.map(T::ln),
        UnaryOp::Sqrt => operand.map(T::sqrt),
        UnaryOp::Recip => operand.map(T::recip),
        UnaryOp::Tanh => operand.map(T::tanh),
        UnaryOp::Sigmoid => operand.map(T::sigmoid),
        UnaryOp::Sin => operand.map(T::sin),
        UnaryOp::Cos => operand.map(T::cos),
        UnaryOp::Erf => operand.map(|x| x.through(special::erf)),
        UnaryOp::GeluErf => operand.map(|x| x.through(special::gelu_erf)),
        UnaryOp::ErfInv => operand.map(|x| x.through(special::erf_inv)),
        UnaryOp::LnGamma => operand.map(|x| x.through(special::ln_gamma)),
        UnaryOp::Digamma => operand.map(|x| x.through(special::digamma)),
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Sqr | UnaryOp::Relu => unary(op, operand),
    }
}

pub(super) fn binary<T: Number>(op: BinaryOp, operands: Binary<'_, T>) {
    match op {
        BinaryOp::Add => operands.zip(T::plus),
        BinaryOp::Sub => operands.zip(T::minus),
        BinaryOp::Mul => operands.zip(T::times),
        BinaryOp::Div => operands.zip(T::over),
        BinaryOp::Maximum => operands.zip(T::larger),
        BinaryOp::Minimum => operands.zip(T::smaller),
        BinaryOp::Pow => operands.zip(T::power),
        BinaryOp::Atan2 => operands.zip(T::angle),
    }
}

pub(super) fn affine<T: Number>(operand: Unary<'_, T>, mul: f64, add: f64) -> Result<()> {
    let (mul, add) = (T::from_f64(mul), T::from_f64(add));
    operand.map(move |x| x.times(mul).plus(add))
}

pub(super) fn clamp<T: Number>(src: In<'_, T>, dst: Out<'_, T>, min: f64, max: f64) {
    let (min, max) = (T::from_f64(min), T::from_f64(max));
    map(src, dst, move |x: T| x.clamped(min, max));
}

pub(super) fn powf<T: Float>(src: In<'_, T>, dst: Out<'_, T>, exponent: f64) {
    if exponent == 2.0 {
        return map(src, dst, T::squared);
    }
    let exponent = T::from_f64(exponent);
    map(src, dst, move |x: T| x.power(exponent));
}

pub(super) fn compare<T: Number>(op: CmpOp, lhs: In<'_, T>, rhs: In<'_, T>, dst: Out<'_, u8>) {
    match op {
        CmpOp::Eq => zip(lhs, rhs, dst, |x: T, y: T| u8::from(x == y)),
        CmpOp::Ne => zip(lhs, rhs, dst, |x: T, y: T| u8::from(x != y)),
        CmpOp::Lt => zip(lhs, rhs, dst, |x: T, y: T| u8::from(x < y)),
        CmpOp::Le => zip(lhs, rhs, dst, |x: T, y: T| u8::from(x <= y)),
        CmpOp::Gt => zip(lhs, rhs, dst, |x: T, y: T| u8::from(x > y)),
        CmpOp::Ge => zip(lhs, rhs, dst, |x: T, y: T| u8::from(x >= y)),
    }
}

pub(super) fn unary_grad<T: Float>(op: GradOp, saved: In<'_, T>, grad: In<'_, T>, dst: Out<'_, T>) {
    let two = T::ONE.plus(T::ONE);
    match op {
        GradOp::Exp => zip(saved, grad, dst, T::times),
        GradOp::Log => zip(saved, grad, dst, |x: T, g: T| g.over(x)),
        GradOp::Sqrt => zip(saved, grad, dst, move |y: T, g: T| g.over(two.times(y))),
        GradOp::Sqr => zip(saved, grad, dst, move |x: T, g: T| two.times(x).times(g)),
        GradOp::Recip => zip(saved, grad, dst, |y: T, g: T| g.times(y.squared()).negated()),
        GradOp::Tanh => zip(saved, grad, dst, |y: T, g: T| g.times(T::ONE.minus(y.squared()))),
        GradOp::Relu => zip(saved, grad, dst, |y: T, g: T| if y > T::ZERO { g } else { T::ZERO }),
        GradOp::Sigmoid => zip(saved, grad, dst, |y: T, g: T| g.times(y).times(T::ONE.minus(y))),
        GradOp::Abs => zip(saved, grad, dst, |x: T, g: T| g.times(x.sign())),
        GradOp::Sin => zip(saved, grad, dst, |x: T, g: T| g.times(x.cos())),
        GradOp::Cos => zip(saved, grad, dst, |x: T, g: T| g.times(x.sin()).negated()),
    }
}

pub(super) fn fill<T: Element>(dst: Out<'_, T>, value: T) {
    if dst.is_dense() {
        dst.dense().fill(value);
    } else {
        walk::rows1(dst, &|d| d.fill(value));
    }
}

/// Floats: computed in f64. Integers: in i64.
pub(super) fn arange<T: Element>(dst: Out<'_, T>, start: f64, step: f64) {
    let (first, by) = (start as i64, step as i64);
    for (i, d) in dst.dense().iter_mut().enumerate() {
        *d = if T::DTYPE.is_float() {
            T::from_f64(start + i as f64 * step)
        } else {
            T::from_i128(first.wrapping_add((i as i64).wrapping_mul(by)).into())
        };
    }
}

pub(super) fn copy<T: Element>(src: In<'_, T>, dst: Out<'_, T>) {
    match src.dense() {
        Some(a) if dst.is_dense() => threads::split2(a, dst.dense(), &|a, d| d.copy_from_slice(a)),
        _ => walk::copy(src, dst),
    }
}

#[inline(never)]
fn choose_row<I: Id, T: Element>(cond: &[I], yes: &[T], no: &[T], d: &mut [T]) {
    simd(d.len(), || {
        for (((d, &c), &yes), &no) in d.iter_mut().zip(cond).zip(yes).zip(no) {
            *d = if c != I::ZERO { yes } else { no };
        }
    });
}

pub(super) fn choose<I: Id, T: Element>(cond: In<'_, I>, yes: In<'_, T>, no: In<'_, T>, dst: Out<'_, T>) {
    match (cond.dense(), yes.dense(), no.dense()) {
        (Some(c), Some(yes), Some(no)) => choose_row(c, yes, no, dst.dense()),
        _ => walk::rows4(cond, yes, no, dst, &|c, yes, no, d| choose_row(c, yes, no, d)),
    }
}

#[cfg(test)]
mod tests;
