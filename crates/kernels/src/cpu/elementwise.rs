//! Kernels that treat each element by itself.
//!
//! Operands that are dense go through one slice loop, compiled for several instruction sets and chosen at run
//! time; with many elements on several threads. Others go through `strided.rs`, which hands the same loop one row
//! at a time. A loop is compiled once for each operation and dtype, never once for each layout.

#![allow(clippy::needless_range_loop)] // half of the code to compile that iterators are, and the same vectors

use std::ops::Range;

use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::cpu::{
    number::{Float, IndexElement, Number},
    operand::{Element, In, Out},
    rows::{Row1, Row2, Row3},
    special, strided, threads,
    vector::{Loop, simd},
};
use crate::kernel::{BinaryOp, CmpOp, Domain, Map, Rectifier, UnaryOp};
use crate::{for_each_binary, for_each_unary};

/// Elements up to which rows, threads and vectors cost more than they do (`few.rs`).
pub const FEW: usize = 16;

/// What is done to an element: a closure, if it is short. A long one would be called for each element, or make the loop
/// around it a function that knows of no vector units; so it is a type whose `of` is `#[inline(always)]`.
pub(super) trait Function<A>: Copy + Sync {
    type Output;

    fn of(self, a: A) -> Self::Output;
}

impl<A, D, F: Fn(A) -> D + Copy + Sync> Function<A> for F {
    type Output = D;

    #[inline(always)]
    fn of(self, a: A) -> D {
        self(a)
    }
}

/// As [`Function`], of two elements.
pub(super) trait FunctionOfTwo<A, B>: Copy + Sync {
    type Output;

    fn of(self, a: A, b: B) -> Self::Output;
}

impl<A, B, D, F: Fn(A, B) -> D + Copy + Sync> FunctionOfTwo<A, B> for F {
    type Output = D;

    #[inline(always)]
    fn of(self, a: A, b: B) -> D {
        self(a, b)
    }
}

/// Where a row that repeats goes on, `line` elements after `at`.
#[inline(always)]
fn after(at: usize, line: usize, row: usize) -> usize {
    if at + line < row { at + line } else { 0 }
}

/// Rows of two operands and of the result. Those that are shorter repeat; of any two lengths one is a multiple of the
/// other.
struct Lines<'a, A, B, D> {
    a: &'a [A],
    b: &'a [B],
    /// Where both go on.
    at: [usize; 2],
    rest: &'a mut [D],
}

impl<'a, A, B, D> Lines<'a, A, B, D> {
    /// The next parts, which are of one length. Apart from what is done with them, so that it is code once for all
    /// functions.
    #[inline(always)]
    fn line(&mut self) -> Option<(&'a [A], &'a [B], &'a mut [D])> {
        let (line, [at_a, at_b]) = (self.a.len().min(self.b.len()).min(self.rest.len()), self.at);
        if line == 0 {
            return None;
        }
        let (d, rest) = std::mem::take(&mut self.rest).split_at_mut(line);
        self.rest = rest;
        self.at = [after(at_a, line, self.a.len()), after(at_b, line, self.b.len())];
        Some((&self.a[at_a..][..line], &self.b[at_b..][..line], d))
    }
}

/// A function over a row, or lines of two, or of the row itself, or of it and a line that repeats in it.
struct Over<S, D, F>(S, D, F);

impl<A: Copy, D: Copy, F: Function<A, Output = D>> Loop for Over<&[A], &mut [D], F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Over(a, d, f) = self;
        let a = &a[..d.len()];
        for i in 0..d.len() {
            d[i] = f.of(a[i]);
        }
    }
}

impl<A: Copy, B: Copy, D: Copy, F: FunctionOfTwo<A, B, Output = D>> Loop for Over<Lines<'_, A, B, D>, (), F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Over(mut lines, (), f) = self;
        while let Some((a, b, d)) = lines.line() {
            for i in 0..d.len() {
                d[i] = f.of(a[i], b[i]);
            }
        }
    }
}

impl<T: Copy, F: Function<T, Output = T>> Loop for Over<(), &mut [T], F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Over((), d, f) = self;
        for i in 0..d.len() {
            d[i] = f.of(d[i]);
        }
    }
}

impl<T: Copy, F: FunctionOfTwo<T, T, Output = T>> Loop for Over<(&[T],), &mut [T], F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Over((b,), d, f) = self;
        for d in d.chunks_mut(b.len().max(1)) {
            let b = &b[..d.len()];
            for i in 0..d.len() {
                d[i] = f.of(d[i], b[i]);
            }
        }
    }
}

#[inline(never)]
fn row1<A: Copy, D: Copy>(a: &[A], d: &mut [D], f: impl Function<A, Output = D>) {
    simd(d.len(), Over(a, d, f));
}

#[inline(never)]
fn row2<A: Copy, B: Copy, D: Copy>(a: &[A], b: &[B], d: &mut [D], f: impl FunctionOfTwo<A, B, Output = D>) {
    simd(d.len(), Over(Lines { a, b, at: [0, 0], rest: d }, (), f));
}

#[inline(always)]
pub(super) fn map<A: Element, D: Element>(src: In<'_, A>, dst: Out<'_, D>, f: impl Function<A, Output = D>) {
    match src.dense() {
        Some(a) if a.len() <= FEW => {
            let d = &mut dst.dense()[..a.len()];
            for i in 0..a.len() {
                d[i] = f.of(a[i]);
            }
        }
        Some(a) if a.len() < threads::ELEMENTS_MIN => row1(a, dst.dense(), f),
        _ => rows_to(src, dst, &|a: &[A], d: &mut [D]| row1(a, d, f)),
    }
}

/// `row` from rows of `src` to rows of `dst`, which is dense.
pub(super) fn rows_to<A: Element, D: Element>(src: In<'_, A>, dst: Out<'_, D>, row: &(dyn Row2<A, D> + Sync)) {
    match src.dense() {
        Some(a) if a.len() < threads::ELEMENTS_MIN => row.run(a, dst.dense()),
        Some(a) => threads::split2(a, dst.dense(), row),
        None => strided::rows2(src, dst, false, row),
    }
}

/// The elements of both sides, if they are dense and one thread's.
#[inline(always)]
fn dense_of_two<'a, A, B>(lhs: &In<'a, A>, rhs: &In<'a, B>) -> Option<(&'a [A], &'a [B])> {
    match (lhs.dense(), rhs.dense()) {
        (Some(a), Some(b)) if a.len() < threads::ELEMENTS_MIN => Some((a, b)),
        _ => None,
    }
}

#[inline(always)]
fn zip<A: Element, B: Element, D: Element>(
    lhs: In<'_, A>,
    rhs: In<'_, B>,
    dst: Out<'_, D>,
    f: impl FunctionOfTwo<A, B, Output = D>,
) {
    match dense_of_two(&lhs, &rhs) {
        Some((a, b)) => row2(a, b, dst.dense(), f),
        None => lines_of_two(lhs, rhs, dst, &|a: &[A], b: &[B], d: &mut [D]| row2(a, b, d, f)),
    }
}

/// As [`rows_of_two`], for a `row` whose shorter sides repeat.
fn lines_of_two<A: Element, B: Element, D: Element>(
    lhs: In<'_, A>,
    rhs: In<'_, B>,
    dst: Out<'_, D>,
    row: &(dyn Row3<A, B, D> + Sync),
) {
    let (Some(a), Some(b)) = (lhs.line(), rhs.line()) else { return strided::rows3(lhs, rhs, dst, row) };
    let d = dst.dense();
    let count = d.len();
    // Where one line begins again, shorter ones do.
    let line = line_in(a.len(), count).max(line_in(b.len(), count));
    threads::split_lines(d, line, &|start: usize, d: &mut [D]| {
        let part = start..start + d.len();
        row.run(part_of(a, count, &part), part_of(b, count, &part), d);
    });
}

/// Elements that have to stay together for a row of so many, which repeats if that is not `count`.
fn line_in(row: usize, count: usize) -> usize {
    if row == count { 1 } else { row }
}

/// Part of a row of `count` elements, or, of a line that repeats in it, the line.
fn part_of<'a, T>(row: &'a [T], count: usize, part: &Range<usize>) -> &'a [T] {
    if row.len() == count { &row[part.clone()] } else { row }
}

/// `row` from rows of both sides to rows of `dst`, which is dense.
pub(super) fn rows_of_two<A: Element, B: Element, D: Element>(
    lhs: In<'_, A>,
    rhs: In<'_, B>,
    dst: Out<'_, D>,
    row: &(dyn Row3<A, B, D> + Sync),
) {
    match (lhs.dense(), rhs.dense()) {
        (Some(a), Some(b)) if a.len() < threads::ELEMENTS_MIN => row.run(a, b, dst.dense()),
        (Some(a), Some(b)) => threads::split3(a, b, dst.dense(), row),
        _ => strided::rows3(lhs, rhs, dst, row),
    }
}

/// The operand of a unary function, which may be the destination itself.
pub(super) enum Unary<'a, T> {
    To(In<'a, T>, Out<'a, T>),
    InPlace(Out<'a, T>),
}

/// What a function of one operand is applied to.
pub(super) trait Operand<T> {
    fn map(self, f: impl Function<T, Output = T>);

    /// As [`Operand::map`], by a call for each element: one loop for all functions that never become vectors.
    fn call(self, f: fn(T) -> T);
}

impl<T: Number> Operand<T> for Unary<'_, T> {
    #[inline(always)]
    fn map(self, f: impl Function<T, Output = T>) {
        match self {
            Unary::To(src, dst) => rows_to(src, dst, &|a: &[T], d: &mut [T]| row1(a, d, f)),
            Unary::InPlace(dst) => change(dst, &|d: &mut [T]| change_row(d, f)),
        }
    }

    fn call(self, f: fn(T) -> T) {
        let row = |a: &[T], d: &mut [T]| Over(a, d, f).run();
        match self {
            Unary::To(src, dst) => match src.dense() {
                Some(a) => threads::split2(a, dst.dense(), &row),
                None => strided::rows2(src, dst, false, &row),
            },
            Unary::InPlace(dst) => change(dst, &|d: &mut [T]| Over((), d, f).run()),
        }
    }
}

#[inline(never)]
fn change_row<T: Number>(d: &mut [T], f: impl Function<T, Output = T>) {
    simd(d.len(), Over((), d, f));
}

fn change<T: Number>(dst: Out<'_, T>, row: &(dyn Row1<T> + Sync)) {
    if dst.is_dense() {
        threads::split1(dst.dense(), &|_: usize, d: &mut [T]| row.run(d));
    } else {
        strided::rows1(dst, row);
    }
}

/// The operands of a binary function, whose left one may be the destination itself.
pub(super) enum Binary<'a, T> {
    To(In<'a, T>, In<'a, T>, Out<'a, T>),
    InPlace(In<'a, T>, Out<'a, T>),
}

impl<T: Number> Binary<'_, T> {
    #[inline(always)]
    fn zip(self, f: impl FunctionOfTwo<T, T, Output = T>) {
        match self {
            Binary::To(lhs, rhs, dst) => zip(lhs, rhs, dst, f),
            Binary::InPlace(rhs, dst) => assign(rhs, dst, &|b: &[T], d: &mut [T]| assign_row(b, d, f)),
        }
    }

    /// As [`Binary::zip`], by a call for each pair: one loop for all functions that never become vectors.
    fn call(self, f: fn(T, T) -> T) {
        match self {
            Binary::To(lhs, rhs, dst) => zip_by_calls((lhs, rhs, dst), f),
            Binary::InPlace(rhs, dst) => assign(rhs, dst, &|b: &[T], d: &mut [T]| Over((b,), d, f).run()),
        }
    }
}

#[inline(never)]
fn assign_row<T: Number>(b: &[T], d: &mut [T], f: impl FunctionOfTwo<T, T, Output = T>) {
    simd(d.len(), Over((b,), d, f));
}

/// `row` changes rows of `dst` by those of `rhs`, or by a line that repeats in them.
fn assign<T: Number>(rhs: In<'_, T>, dst: Out<'_, T>, row: &(dyn Row2<T, T> + Sync)) {
    match rhs.line() {
        Some(b) if dst.is_dense() => {
            let d = dst.dense();
            let count = d.len();
            threads::split_lines(d, line_in(b.len(), count), &|start: usize, d: &mut [T]| {
                row.run(part_of(b, count, &(start..start + d.len())), d);
            });
        }
        _ => strided::rows2(rhs, dst, true, row),
    }
}

/// The functions of floats: how each is compiled, as its row says.
pub(super) trait Functions: Float {
    fn unary(op: UnaryOp, operand: impl Operand<Self>);
    fn unary_grad(op: UnaryOp, saved: In<'_, Self>, grad: In<'_, Self>, dst: Out<'_, Self>);
}

macro_rules! of_float {
    (number $t:ty, $op:ident $operand:ident { |$x:ident| $value:expr => $cuda:literal }) => {
        $operand.map(|$x: $t| $value)
    };
    (call $t:ty, $op:ident $operand:ident { |$x:ident| $value:expr => $cuda:literal }) => {
        $operand.call(|$x: $t| $value)
    };
    (single f64, $op:ident $operand:ident $value:tt) => { of_float!(call f64, $op $operand $value) };
    ($kind:ident $t:ty, $op:ident $operand:ident { |$x:ident| $value:expr => $cuda:literal }) => {{
        #[derive(Clone, Copy)]
        struct Of;
        impl Function<$t> for Of {
            type Output = $t;

            #[inline(always)]
            fn of(self, $x: $t) -> $t {
                $value
            }
        }
        $operand.map(Of)
    }};
}

macro_rules! gradient_of_float {
    (call $t:ty, $operands:tt { $kept:ident |$g:ident, $s:ident| $value:expr => $cuda:literal }) => {
        zip_by_calls($operands, |$s: $t, $g: $t| $value)
    };
    (single f64, $operands:tt $gradient:tt) => { gradient_of_float!(call f64, $operands $gradient) };
    // Zeros.
    (whole $t:ty, $operands:tt $gradient:tt) => { gradient_of_float!(call $t, $operands $gradient) };
    ($kind:ident $t:ty, ($saved:ident, $grad:ident, $dst:ident)
     { $kept:ident |$g:ident, $s:ident| $value:expr => $cuda:literal }) => {
        {
            #[derive(Clone, Copy)]
            struct Of;
            impl FunctionOfTwo<$t, $t> for Of {
                type Output = $t;

                #[inline(always)]
                fn of(self, $s: $t, $g: $t) -> $t {
                    $value
                }
            }
            zip($saved, $grad, $dst, Of)
        }
    };
}

macro_rules! functions {
    ([$t:ident] $($(#[$doc:meta])* $name:ident [$($form:ident)*] $kind:ident $value:tt $gradient:tt)*) => {
        impl Functions for $t {
            fn unary(op: UnaryOp, operand: impl Operand<$t>) {
                match op {
                    $(UnaryOp::$name => of_float!($kind $t, op operand $value),)*
                }
            }

            fn unary_grad(op: UnaryOp, saved: In<'_, $t>, grad: In<'_, $t>, dst: Out<'_, $t>) {
                use std::$t::consts;
                match op {
                    $(UnaryOp::$name => gradient_of_float!($kind $t, (saved, grad, dst) $gradient),)*
                }
            }
        }
    };
}
for_each_unary!(functions, f32);
for_each_unary!(functions, f64);

macro_rules! of_number {
    (number $t:ty, $op:ident $operand:ident { |$x:ident| $value:expr => $cuda:literal }) => {
        $operand.map(|$x: $t| $value)
    };
    ($kind:ident $t:ty, $op:ident $operand:ident $value:tt) => {
        return Err(Error::unsupported_dtype("map", <$t>::DTYPE, DType::FLOATS))
    };
}

macro_rules! numbers {
    ([] $($(#[$doc:meta])* $name:ident [$($form:ident)*] $kind:ident $value:tt $gradient:tt)*) => {
        /// A map of integers, but a copy or a cast. An error if only floats have it.
        pub(super) fn map_numbers<T: Number>(map: Map, operand: impl Operand<T>) -> Result<()> {
            match map {
                $(Map::Unary(UnaryOp::$name) => of_number!($kind T, op operand $value),)*
                map => by_numbers(map, operand)?,
            }
            Ok(())
        }
    };
}
for_each_unary!(numbers);

/// Refuses maps that only floats have.
pub(super) fn check_closed(map: Map, dtype: DType) -> Result<()> {
    match map {
        Map::Unary(op) if op.domain() == Domain::Number => Ok(()),
        Map::Affine { .. } | Map::Clamp { .. } => Ok(()),
        _ => Err(Error::unsupported_dtype("map", dtype, DType::FLOATS)),
    }
}

/// As [`map_numbers`], of floats.
pub(super) fn map_floats<T: Functions>(map: Map, operand: impl Operand<T>) -> Result<()> {
    match map {
        Map::Unary(op) => T::unary(op, operand),
        Map::Powf(2.0) => operand.map(T::squared),
        Map::Powf(exponent) => {
            let exponent = T::from_f64(exponent);
            operand.map(move |x: T| x.power(exponent));
        }
        Map::Divide { number, first: true } => {
            let number = T::from_f64(number);
            operand.map(move |x: T| number.div(x));
        }
        Map::Divide { number, first: false } => {
            let number = T::from_f64(number);
            operand.map(move |x: T| x.div(number));
        }
        Map::Rectifier(rectifier) if rectifier.curved => operand.map(TypedRectifier::<T, true>::new(rectifier)),
        Map::Rectifier(rectifier) => operand.map(TypedRectifier::<T, false>::new(rectifier)),
        map => by_numbers(map, operand)?,
    }
    Ok(())
}

/// A rectifier with its numbers in `T`, and its gradient.
#[derive(Clone, Copy)]
struct TypedRectifier<T, const CURVED: bool> {
    scale: T,
    below: T,
}

impl<T: Float, const CURVED: bool> TypedRectifier<T, CURVED> {
    fn new(rectifier: Rectifier) -> Self {
        TypedRectifier { scale: T::from_f64(rectifier.scale), below: T::from_f64(rectifier.below) }
    }
}

impl<T: Float, const CURVED: bool> Function<T> for TypedRectifier<T, CURVED> {
    type Output = T;

    #[inline(always)]
    fn of(self, x: T) -> T {
        let below = if CURVED { x.exp_m1() } else { x };
        let value = if x > T::ZERO { x } else { below.mul(self.below) };
        // The sum takes the sign of a 0.
        value.mul(self.scale).add(T::ZERO)
    }
}

impl<T: Float, const CURVED: bool> FunctionOfTwo<T, T> for TypedRectifier<T, CURVED> {
    type Output = T;

    #[inline(always)]
    fn of(self, x: T, grad: T) -> T {
        let above = grad.mul(self.scale);
        let below = above.mul(self.below);
        let below = if CURVED { below.mul(x.exp()) } else { below };
        let grad = if x > T::ZERO { above } else { below };
        if x.is_nan() { T::ZERO } else { grad.add(T::ZERO) }
    }
}

pub(super) fn rectifier_grad<T: Float>(rectifier: Rectifier, saved: In<'_, T>, grad: In<'_, T>, dst: Out<'_, T>) {
    match rectifier.curved {
        true => zip(saved, grad, dst, TypedRectifier::<T, true>::new(rectifier)),
        false => zip(saved, grad, dst, TypedRectifier::<T, false>::new(rectifier)),
    }
}

/// Maps with numbers that integers have too.
#[inline(always)]
fn by_numbers<T: Number>(map: Map, operand: impl Operand<T>) -> Result<()> {
    match map {
        Map::Affine { mul, add } => {
            let (mul, add) = (T::from_f64(mul), T::from_f64(add));
            operand.map(move |x: T| x.mul(mul).add(add));
        }
        Map::Clamp { min, max } => {
            let (min, max) = (T::from_f64(min), T::from_f64(max));
            operand.map(move |x: T| x.clamped(min, max));
        }
        _ => return Err(Error::unsupported_dtype("map", T::DTYPE, DType::FLOATS)),
    }
    Ok(())
}

/// As [`zip`], by a call for each element.
fn zip_by_calls<T: Number>((lhs, rhs, dst): (In<'_, T>, In<'_, T>, Out<'_, T>), f: fn(T, T) -> T) {
    lines_of_two(lhs, rhs, dst, &|a: &[T], b: &[T], d: &mut [T]| {
        Over(Lines { a, b, at: [0, 0], rest: d }, (), f).run();
    });
}

macro_rules! of_two {
    (float $operands:ident $t:ty, { |$x:ident, $y:ident| $value:expr => $cuda:literal }) => {
        $operands.call(|$x: $t, $y: $t| $value)
    };
    ($kind:ident $operands:ident $t:ty, { |$x:ident, $y:ident| $value:expr => $cuda:literal }) => {
        $operands.zip(|$x: $t, $y: $t| $value)
    };
}

macro_rules! binary_functions {
    ([] $($(#[$doc:meta])* $name:ident [$($form:ident)*] $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        pub(super) fn binary<T: Number>(op: BinaryOp, operands: Binary<'_, T>) {
            match op {
                $(BinaryOp::$name => of_two!($kind operands T, $value),)*
            }
        }
    };
}
for_each_binary!(binary_functions);

/// Whether a comparison of two elements holds.
#[inline(always)]
pub(super) fn holds<T: Number>(op: CmpOp, x: T, y: T) -> bool {
    match op {
        CmpOp::Eq => x == y,
        CmpOp::Ne => x != y,
        CmpOp::Lt => x < y,
        CmpOp::Le => x <= y,
        CmpOp::Gt => x > y,
        CmpOp::Ge => x >= y,
    }
}

pub(super) fn compare<T: Number>(op: CmpOp, lhs: In<'_, T>, rhs: In<'_, T>, dst: Out<'_, u8>) {
    match op {
        CmpOp::Eq => zip(lhs, rhs, dst, |x: T, y: T| u8::from(holds(CmpOp::Eq, x, y))),
        CmpOp::Ne => zip(lhs, rhs, dst, |x: T, y: T| u8::from(holds(CmpOp::Ne, x, y))),
        CmpOp::Lt => zip(lhs, rhs, dst, |x: T, y: T| u8::from(holds(CmpOp::Lt, x, y))),
        CmpOp::Le => zip(lhs, rhs, dst, |x: T, y: T| u8::from(holds(CmpOp::Le, x, y))),
        CmpOp::Gt => compare(CmpOp::Lt, rhs, lhs, dst),
        CmpOp::Ge => compare(CmpOp::Le, rhs, lhs, dst),
    }
}

pub(super) fn fill<T: Element>(dst: Out<'_, T>, value: T) {
    if dst.is_dense() {
        dst.dense().fill(value);
    } else {
        strided::rows1(dst, &|d: &mut [T]| d.fill(value));
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
        Some(a) if dst.is_dense() => threads::split2(a, dst.dense(), &|a: &[T], d: &mut [T]| d.copy_from_slice(a)),
        _ => strided::copy(src, dst),
    }
}

#[inline(never)]
fn choose_row<I: IndexElement, T: Element>(cond: &[I], yes: &[T], no: &[T], d: &mut [T]) {
    simd(d.len(), || {
        for (((d, &c), &yes), &no) in d.iter_mut().zip(cond).zip(yes).zip(no) {
            *d = if c != I::ZERO { yes } else { no };
        }
    });
}

pub(super) fn choose<I: IndexElement, T: Element>(cond: In<'_, I>, yes: In<'_, T>, no: In<'_, T>, dst: Out<'_, T>) {
    match (cond.dense(), yes.dense(), no.dense()) {
        (Some(c), Some(yes), Some(no)) => choose_row(c, yes, no, dst.dense()),
        _ => strided::rows4(cond, yes, no, dst, &choose_row::<I, T>),
    }
}
