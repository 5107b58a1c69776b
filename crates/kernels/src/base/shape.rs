//! Shapes and axes: what users write as `(2, 3)`, `&[2, 3]`, `D::Minus1` or `(b, ())`.
//!
//! A shape holds up to [`MAX_RANK`] dims inline, so that making one allocates nothing. A longer list is
//! remembered by its length alone and refused by [`Shape::check`], which every creating call makes.

use std::fmt;

pub use crate::base::limits::MAX_RANK;
use crate::base::{
    call::{Asked, Call},
    error::{Error, Result},
};

/// The size of a tensor along each axis.
#[derive(Clone, Copy, Eq)]
#[repr(C)]
pub struct Shape {
    /// A whole word: a copy of what lies behind a byte would begin in the middle of a word, and wait for it.
    rank: usize,
    dims: [usize; MAX_RANK],
}

impl PartialEq for Shape {
    /// All words at once: what is behind the rank is 0, and a call that compares bytes costs more.
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let differ = self.dims.iter().zip(&other.dims).fold(0, |differ, (a, b)| differ | (a ^ b));
        self.rank == other.rank && differ == 0
    }
}

impl std::hash::Hash for Shape {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

impl Shape {
    /// The shape of a scalar: no axes, one element.
    pub const SCALAR: Shape = Shape { rank: 0, dims: [0; MAX_RANK] };

    /// From a list of dims; more than [`MAX_RANK`] of them are refused when the shape is used.
    pub fn from_dims(dims: &[usize]) -> Self {
        let mut shape = Shape { rank: dims.len(), dims: [0; MAX_RANK] };
        let kept = dims.len().min(MAX_RANK);
        shape.dims[..kept].copy_from_slice(&dims[..kept]);
        shape
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Size along each axis.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank().min(MAX_RANK)]
    }

    /// Its dims and, after them, zeros.
    #[inline]
    pub(super) fn all_dims(&self) -> &[usize; MAX_RANK] {
        &self.dims
    }

    /// Number of elements. Exact for a shape that [`Shape::check`] accepted; of more than can be counted the largest
    /// number.
    #[inline]
    pub fn elem_count(&self) -> usize {
        self.dims().iter().fold(1usize, |count, &dim| count.saturating_mul(dim))
    }

    /// Size along one axis.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`] if there is no such axis; [`Error::RankTooLarge`] for one that is not kept.
    #[track_caller]
    pub fn dim<D: Dim>(&self, dim: D) -> Result<usize> {
        let call = Call::here("dim");
        let axis = call.axis(dim, self)?;
        self.dims().get(axis).copied().ok_or_else(|| Error::rank_too_large(call, self.rank()))
    }

    #[track_caller]
    fn dims_n<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        let (call, found) = (Call::here(op), self.dims());
        found.try_into().map_err(|_| Error::shape(call, found, format!("{N} axes")))
    }

    /// No sizes, of a scalar.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has another number of axes.
    #[track_caller]
    pub fn dims0(&self) -> Result<()> {
        self.dims_n("dims0").map(|[]| ())
    }

    /// The size along one axis.
    ///
    /// # Errors
    /// As [`Shape::dims0`].
    #[track_caller]
    pub fn dims1(&self) -> Result<usize> {
        self.dims_n("dims1").map(|[a]| a)
    }

    /// The sizes along two axes.
    ///
    /// # Errors
    /// As [`Shape::dims0`].
    #[track_caller]
    pub fn dims2(&self) -> Result<(usize, usize)> {
        self.dims_n("dims2").map(|[a, b]| (a, b))
    }

    /// The sizes along three axes.
    ///
    /// # Errors
    /// As [`Shape::dims0`].
    #[track_caller]
    pub fn dims3(&self) -> Result<(usize, usize, usize)> {
        self.dims_n("dims3").map(|[a, b, c]| (a, b, c))
    }

    /// The sizes along four axes.
    ///
    /// # Errors
    /// As [`Shape::dims0`].
    #[track_caller]
    pub fn dims4(&self) -> Result<(usize, usize, usize, usize)> {
        self.dims_n("dims4").map(|[a, b, c, d]| (a, b, c, d))
    }

    /// The sizes along five axes.
    ///
    /// # Errors
    /// As [`Shape::dims0`].
    #[track_caller]
    pub fn dims5(&self) -> Result<(usize, usize, usize, usize, usize)> {
        self.dims_n("dims5").map(|[a, b, c, d, e]| (a, b, c, d, e))
    }

    /// The dims as a list.
    pub fn into_dims(self) -> Vec<usize> {
        self.dims().to_vec()
    }

    /// The shape with more axes behind its own.
    #[must_use]
    pub fn extend(self, more: &[usize]) -> Self {
        Shape::from([self.dims(), more].concat())
    }

    /// The shape that both broadcast to, for an operation of that name.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if two sizes differ, counted from the last axis, and neither is 1.
    #[track_caller]
    pub fn broadcast_shape_binary_op(&self, other: &Shape, op: &'static str) -> Result<Shape> {
        Call::here(op).named(self.broadcast(other, op))
    }

    /// Whether the shape can be that of an array with elements of `elem_bytes` bytes: at most
    /// [`MAX_RANK`] axes and fewer than `isize::MAX` bytes.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`], [`Error::SizeOverflow`].
    #[inline]
    pub fn check(&self, call: impl Into<Asked>, elem_bytes: usize) -> Result<usize> {
        if self.rank() > MAX_RANK {
            return Err(Error::rank_too_large(call, self.rank()));
        }
        let mut bytes = elem_bytes;
        let mut zero = false;
        for &dim in self.dims() {
            zero |= dim == 0;
            bytes = match bytes.checked_mul(dim.max(1)) {
                Some(bytes) if bytes <= isize::MAX as usize => bytes,
                _ => return Err(Error::size_overflow(call, self.dims(), elem_bytes)),
            };
        }
        Ok(if zero { 0 } else { bytes / elem_bytes })
    }

    /// The bytes of an array of this shape.
    #[doc(hidden)]
    #[inline]
    pub fn bytes(&self, op: &'static str, elem_bytes: usize) -> Result<usize> {
        let (mut bytes, mut fits) = (elem_bytes, self.rank() <= MAX_RANK);
        for &dim in self.dims() {
            let (product, overflows) = bytes.overflowing_mul(dim);
            (bytes, fits) = (product, fits & !overflows);
        }
        // An empty one must not be too large along its other axes either: that is looked at axis by axis.
        if fits && bytes > 0 && bytes <= isize::MAX as usize {
            return Ok(bytes);
        }
        self.check(op, elem_bytes).map(|count| count * elem_bytes)
    }

    /// The same shape with the size of one axis replaced.
    #[doc(hidden)]
    #[inline]
    pub fn with_dim(mut self, axis: usize, size: usize) -> Self {
        assert!(axis < MAX_RANK, "an axis of the shape");
        self.dims = replaced(&self.dims, axis, size);
        self
    }

    /// The same shape without the axis.
    #[doc(hidden)]
    pub fn without(&self, axis: usize) -> Self {
        Shape { rank: self.rank - 1, dims: joined(axis, &self.dims, &forward(&self.dims)) }
    }

    /// The same shape with an axis of size 1 before `axis`. The caller checked that the rank allows it.
    #[inline]
    pub(super) fn with_axis(&self, axis: usize) -> Self {
        let dims = joined(axis, &self.dims, &back(&self.dims, 1));
        Shape { rank: self.rank + 1, dims }.with_dim(axis, 1)
    }

    /// The shape that two shapes broadcast to by NumPy's rule.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] naming both.
    #[doc(hidden)]
    pub fn broadcast(&self, other: &Shape, op: &'static str) -> Result<Shape> {
        let (long, short) = if self.rank() >= other.rank() { (self, other) } else { (other, self) };
        let (mut shape, mut dims) = (*long, short.dims);
        (short.rank()..long.rank()).for_each(|_| dims = back(&dims, 1));
        let mut differ = None;
        for (i, (size, dim)) in shape.dims.iter_mut().zip(dims).enumerate() {
            let own = *size;
            if own != dim && own != 1 && dim != 1 {
                differ = differ.or(Some(i));
            }
            *size = if own == 1 { dim } else { own };
        }
        match differ {
            None => Ok(shape),
            Some(axis) => Err(Self::apart(op, [self, other], axis, [long.dims[axis], dims[axis]])),
        }
    }

    #[cold]
    #[inline(never)]
    fn apart(op: &'static str, [lhs, rhs]: [&Shape; 2], axis: usize, [own, dim]: [usize; 2]) -> Error {
        let why = format!("sizes {own} and {dim} differ on axis {axis} and neither is 1");
        Error::shapes(op, lhs, rhs, why)
    }
}

// What there is for each axis, made whole: what is written piece by piece is waited for by who copies it.

/// The values one place further back, with one in front of them; the last one is left out.
#[inline(always)]
pub(super) fn back<T: Copy>(&[a, b, c, d, e, _]: &[T; MAX_RANK], first: T) -> [T; MAX_RANK] {
    [first, a, b, c, d, e]
}

/// The values one place further forward, without the first one; behind them there is nothing.
#[inline(always)]
pub(super) fn forward<T: Copy + Default>(&[_, b, c, d, e, f]: &[T; MAX_RANK]) -> [T; MAX_RANK] {
    [b, c, d, e, f, T::default()]
}

/// The values with another one at a place: all of them at once, since one that is written alone is waited for by who
/// reads it with its neighbours.
#[inline(always)]
pub(super) fn replaced<T: Copy>(list: &[T; MAX_RANK], at: usize, by: T) -> [T; MAX_RANK] {
    let mut all = *list;
    for (i, one) in all.iter_mut().enumerate() {
        *one = if i == at { by } else { *one };
    }
    all
}

/// The values of one list before a place, and those of another from it on.
#[inline(always)]
pub(super) fn joined<T: Copy>(at: usize, before: &[T; MAX_RANK], from: &[T; MAX_RANK]) -> [T; MAX_RANK] {
    let mut all = *from;
    for (i, (one, &other)) in all.iter_mut().zip(before).enumerate() {
        *one = if i < at { other } else { *one };
    }
    all
}

impl Error {
    /// A shape mismatch of two shapes.
    #[doc(hidden)]
    pub fn shapes(call: impl Into<Asked>, lhs: &Shape, rhs: &Shape, why: impl Into<String>) -> Self {
        Error::shape_mismatch(call, lhs.dims(), rhs.dims(), why)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// A list with a place for each axis that an array can have: on the stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Few<T = usize> {
    list: [T; MAX_RANK],
    len: usize,
}

impl<T> Few<T> {
    /// Adds one. The caller knows that there is a place.
    #[doc(hidden)]
    pub fn push(&mut self, item: T) {
        self.list[self.len] = item;
        self.len += 1;
    }
}

impl<T> std::ops::Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.list[..self.len]
    }
}

impl<T> std::ops::DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.list[..self.len]
    }
}

impl<T: Default> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut few = Few { list: Default::default(), len: 0 };
        for item in items {
            few.push(item);
        }
        few
    }
}

impl From<Few> for Shape {
    fn from(dims: Few) -> Self {
        Shape::from(&dims[..])
    }
}

impl From<()> for Shape {
    fn from(_: ()) -> Self {
        Shape::SCALAR
    }
}

impl From<usize> for Shape {
    fn from(dim: usize) -> Self {
        Shape::from_dims(&[dim])
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape::from_dims(dims)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape::from_dims(&dims)
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Self {
        Shape::from_dims(dims)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        *shape
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape::from_dims(&dims)
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Self {
        Shape::from_dims(dims)
    }
}

/// The type of a tuple's place; always `usize`.
type Size<const I: usize> = usize;

macro_rules! shape_from_tuple {
    ($($i:tt)+) => {
        impl From<($(Size<$i>,)+)> for Shape {
            fn from(dims: ($(Size<$i>,)+)) -> Self {
                Shape::from_dims(&[$(dims.$i),+])
            }
        }
    };
}
shape_from_tuple!(0);
shape_from_tuple!(0 1);
shape_from_tuple!(0 1 2);
shape_from_tuple!(0 1 2 3);
shape_from_tuple!(0 1 2 3 4);
shape_from_tuple!(0 1 2 3 4 5);

/// A shape argument of `reshape` or `from_vec`: a shape, or one with a hole, written `()` or `-1`, that is computed.
pub trait ShapeWithOneHole {
    /// The complete shape for `elem_count` elements.
    ///
    /// # Errors
    /// [`Error::Reshape`] if no size fits the hole; [`Error::Argument`] for a second hole or another negative size.
    fn into_shape(self, elem_count: usize) -> Result<Shape>;
}

/// One size of a shape with a hole: a number, of which -1 is the hole, or `()`.
pub trait SizeOrHole: Copy {
    /// The size; -1 for the hole.
    fn size(self) -> i64;
}

impl SizeOrHole for () {
    fn size(self) -> i64 {
        -1
    }
}

fn fill_hole(sizes: &[i64], elem_count: usize) -> Result<Shape> {
    let op = "reshape";
    let wrong = |expected| Error::argument(op, "shape", format!("{sizes:?}"), expected);
    if sizes.len() > MAX_RANK {
        return Err(Error::rank_too_large(op, sizes.len()));
    }
    let (mut dims, mut hole) = ([1; MAX_RANK], None);
    for (i, (dim, &size)) in dims.iter_mut().zip(sizes).enumerate() {
        match usize::try_from(size) {
            Ok(size) => *dim = size,
            Err(_) if size == -1 && hole.is_none() => hole = Some(i),
            Err(_) => return Err(wrong("sizes, and at most one -1 or () that is computed")),
        }
    }
    let dims = &mut dims[..sizes.len()];
    if let Some(at) = hole {
        let known = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        match known {
            Some(known) if known > 0 && elem_count.is_multiple_of(known) => dims[at] = elem_count / known,
            _ => return Err(Error::Reshape { op: "reshape", elem_count, to: dims.to_vec(), hole, site: None }),
        }
    }
    Ok(Shape::from_dims(dims))
}

impl<S: Into<Shape>> ShapeWithOneHole for S {
    fn into_shape(self, _elem_count: usize) -> Result<Shape> {
        Ok(self.into())
    }
}

macro_rules! signed_shapes {
    ($($t:ty),*) => {$(
        impl SizeOrHole for $t {
            fn size(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }
        impl ShapeWithOneHole for $t {
            fn into_shape(self, elem_count: usize) -> Result<Shape> {
                fill_hole(&[self.size()], elem_count)
            }
        }
        impl ShapeWithOneHole for &[$t] {
            fn into_shape(self, elem_count: usize) -> Result<Shape> {
                fill_hole(&self.iter().map(|size| size.size()).collect::<Vec<_>>(), elem_count)
            }
        }
        impl<const N: usize> ShapeWithOneHole for [$t; N] {
            fn into_shape(self, elem_count: usize) -> Result<Shape> {
                fill_hole(&self.map(SizeOrHole::size), elem_count)
            }
        }
        impl ShapeWithOneHole for Vec<$t> {
            fn into_shape(self, elem_count: usize) -> Result<Shape> {
                self.as_slice().into_shape(elem_count)
            }
        }
    )*};
}
signed_shapes!(i32, i64, isize);

impl SizeOrHole for usize {
    fn size(self) -> i64 {
        i64::try_from(self).unwrap_or(i64::MAX)
    }
}

/// Tuples whose first item that is no `usize` is of this type, whatever comes behind it: others are shapes already.
macro_rules! shapes_with_hole {
    ($h:ty) => {
        shapes_with_hole!($h: [] A 0, B 1, C 2, E 3, F 4, G 5);
        shapes_with_hole!($h: [0] B 1, C 2, E 3, F 4, G 5);
        shapes_with_hole!($h: [0 1] C 2, E 3, F 4, G 5);
        shapes_with_hole!($h: [0 1 2] E 3, F 4, G 5);
        shapes_with_hole!($h: [0 1 2 3] F 4, G 5);
        shapes_with_hole!($h: [0 1 2 3 4] G 5);
    };
    // One with all that may come behind, then one with less.
    ($h:ty: [$($before:tt)*] $t:ident $at:tt $(, $u:ident $i:tt)*) => {
        shapes_with_hole!($h: [$($before)*] $at; $($u $i)*);
        shapes_with_hole!($h: [$($before)*] $at less; [] $($u $i)*);
    };
    ($h:ty: [$($before:tt)*] $at:tt less; [$($kept:tt)*]) => {};
    ($h:ty: [$($before:tt)*] $at:tt less; [$($k:ident $ki:tt)*] $u:ident $i:tt $($more:tt)*) => {
        shapes_with_hole!($h: [$($before)*] $at; $($k $ki)*);
        shapes_with_hole!($h: [$($before)*] $at less; [$($k $ki)* $u $i] $($more)*);
    };
    ($h:ty: [$($before:tt)*] $at:tt; $($u:ident $i:tt)*) => {
        impl<$($u: SizeOrHole),*> ShapeWithOneHole for ($(Size<$before>,)* $h, $($u,)*) {
            fn into_shape(self, elem_count: usize) -> Result<Shape> {
                fill_hole(&[$(self.$before.size(),)* self.$at.size(), $(self.$i.size()),*], elem_count)
            }
        }
    };
}
shapes_with_hole!(());
shapes_with_hole!(i32);
shapes_with_hole!(i64);
shapes_with_hole!(isize);

/// Sizes along height and width: one number for both, or one for each.
pub trait ToUsize2 {
    /// `(height, width)`.
    fn to_usize2(self) -> (usize, usize);
}

impl ToUsize2 for usize {
    fn to_usize2(self) -> (usize, usize) {
        (self, self)
    }
}

impl ToUsize2 for (usize, usize) {
    fn to_usize2(self) -> (usize, usize) {
        self
    }
}

/// An axis counted from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum D {
    /// The last axis.
    Minus1,
    /// The last but one.
    Minus2,
    /// Counted from the end: `D::Minus(1)` is the last; `D::Minus(0)` would be one behind it, which is none.
    Minus(usize),
}

/// One axis: a `usize`, a signed integer (negative counts from the end) or [`D`].
pub trait Dim: Copy {
    /// The axis as an index into the dims.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`].
    fn to_index(&self, shape: &Shape, op: &'static str) -> Result<usize>;

    /// As `to_index`, one past the last axis allowed: where `unsqueeze` may insert.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`].
    fn to_index_plus_one(&self, shape: &Shape, op: &'static str) -> Result<usize>;
}

/// Where axes come in: a program's own [`Dim`] and [`Dims`] may answer what they like.
impl Asked {
    /// An axis as an index into the dims of `shape`.
    #[doc(hidden)]
    #[inline]
    pub fn axis(self, dim: impl Dim, shape: &Shape) -> Result<usize> {
        self.below(shape.rank(), self.named(dim.to_index(shape, self.op))?, shape)
    }

    /// As [`Asked::axis`], one past the last axis allowed.
    #[doc(hidden)]
    #[inline]
    pub fn axis_plus_one(self, dim: impl Dim, shape: &Shape) -> Result<usize> {
        self.below(shape.rank() + 1, self.named(dim.to_index_plus_one(shape, self.op))?, shape)
    }

    /// Axes of `shape`.
    #[doc(hidden)]
    #[inline]
    pub fn axes(self, dims: &impl Dims, shape: &Shape) -> Result<Axes> {
        let axes = self.named(dims.to_axes(shape, self.op))?;
        let last = axes.0.checked_ilog2().map_or(Ok(0), |last| self.below(shape.rank(), last as usize, shape));
        last.map(|_| axes)
    }

    #[inline]
    fn below(self, end: usize, axis: usize, shape: &Shape) -> Result<usize> {
        let dim = i64::try_from(axis).unwrap_or(i64::MAX);
        let error = || Error::DimOutOfRange { op: self.op, dim, shape: shape.dims().to_vec(), site: self.site };
        if axis < end { Ok(axis) } else { Err(error()) }
    }
}

impl Call {
    /// An axis as an index into the dims of `shape`.
    #[doc(hidden)]
    #[inline]
    pub fn axis(self, dim: impl Dim, shape: &Shape) -> Result<usize> {
        Asked::from(self).axis(dim, shape)
    }
}

fn axis(signed: i64, rank: usize, shape: &Shape, op: &'static str) -> Result<usize> {
    let index = if signed < 0 { signed.saturating_add(rank as i64) } else { signed };
    if index < 0 || index >= rank as i64 {
        return Err(Error::DimOutOfRange { op, dim: signed, shape: shape.dims().to_vec(), site: None });
    }
    Ok(index as usize)
}

macro_rules! dim {
    ($t:ty, |$d:ident, $rank:ident| $e:expr) => {
        impl Dim for $t {
            #[inline]
            fn to_index(&self, shape: &Shape, op: &'static str) -> Result<usize> {
                let ($d, $rank) = (*self, shape.rank());
                axis($e, shape.rank(), shape, op)
            }
            #[inline]
            fn to_index_plus_one(&self, shape: &Shape, op: &'static str) -> Result<usize> {
                let ($d, $rank) = (*self, shape.rank() + 1);
                axis($e, shape.rank() + 1, shape, op)
            }
        }
    };
}
dim!(usize, |d, _rank| i64::try_from(d).unwrap_or(i64::MAX));
dim!(i32, |d, _rank| i64::from(d));
dim!(i64, |d, _rank| d);
dim!(isize, |d, _rank| d as i64);
dim!(D, |d, rank| match d {
    D::Minus1 => -1,
    D::Minus2 => -2,
    // One behind the last axis, which is none.
    D::Minus(0) => rank as i64,
    D::Minus(n) => i64::try_from(n).map_or(i64::MIN, |n| -n),
});

/// A set of axes, as bits: for reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes(u8);

impl Axes {
    /// Whether the axis is in the set.
    #[doc(hidden)]
    pub fn has(self, axis: usize) -> bool {
        self.0 & (1 << axis) != 0
    }

    /// One axis.
    #[doc(hidden)]
    pub fn one(axis: usize) -> Self {
        Axes(1 << axis)
    }

    /// All axes of a shape.
    #[doc(hidden)]
    pub fn all(shape: &Shape) -> Self {
        Axes(((1u16 << shape.rank()) - 1) as u8)
    }

    /// The shape after reducing these axes: kept as 1, or removed.
    #[doc(hidden)]
    pub fn reduced(self, shape: &Shape, keep: bool) -> Shape {
        let axes = (0..shape.rank()).rev().filter(|&axis| self.has(axis));
        axes.fold(*shape, |shape, axis| if keep { shape.with_dim(axis, 1) } else { shape.without(axis) })
    }
}

/// One or more axes: what reductions and `permute` take.
pub trait Dims {
    /// The set of axes.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`] for an axis that is not there, [`Error::DuplicateDim`] for one named twice.
    fn to_axes(&self, shape: &Shape, op: &'static str) -> Result<Axes>;

    /// The axes as they are named, one after the other, also one that is named twice.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`] for an axis that is not there, [`Error::RankTooLarge`] for more than an array can have.
    #[doc(hidden)]
    fn to_order(&self, shape: &Shape, op: &'static str) -> Result<Few>;
}

fn collect_axes<D: Dim>(dims: &[D], shape: &Shape, op: &'static str) -> Result<Axes> {
    if shape.rank() > MAX_RANK {
        return Err(Error::rank_too_large(op, shape.rank()));
    }
    let mut axes = 0u8;
    for dim in dims {
        let axis = Asked::from(op).axis(*dim, shape)?;
        if axes & (1 << axis) != 0 {
            return Err(Error::DuplicateDim { op, dim: axis, site: None });
        }
        axes |= 1 << axis;
    }
    Ok(Axes(axes))
}

fn collect_order<D: Dim>(dims: &[D], shape: &Shape, op: &'static str) -> Result<Few> {
    if dims.len() > MAX_RANK {
        return Err(Error::rank_too_large(op, dims.len()));
    }
    dims.iter().map(|dim| Asked::from(op).axis(*dim, shape)).collect()
}

macro_rules! dims_from_list {
    ($([$($generic:tt)*] $list:ty, |$x:ident| $slice:expr;)*) => {$(
        impl<$($generic)*> Dims for $list {
            fn to_axes(&self, shape: &Shape, op: &'static str) -> Result<Axes> {
                let $x = self;
                collect_axes($slice, shape, op)
            }

            fn to_order(&self, shape: &Shape, op: &'static str) -> Result<Few> {
                let $x = self;
                collect_order($slice, shape, op)
            }
        }
    )*};
}
dims_from_list! {
    [T: Dim] T, |x| std::slice::from_ref(x);
    [T: Dim] &[T], |x| x;
    [T: Dim] Vec<T>, |x| x;
    [T: Dim] &Vec<T>, |x| &x[..];
    [T: Dim, const N: usize] [T; N], |x| &x[..];
    [T: Dim, const N: usize] &[T; N], |x| &x[..];
    [] Few, |x| &x[..];
    [] Shape, |x| x.dims();
    [] &Shape, |x| x.dims();
}

/// No axis.
impl Dims for () {
    fn to_axes(&self, _shape: &Shape, _op: &'static str) -> Result<Axes> {
        Ok(Axes(0))
    }

    fn to_order(&self, _shape: &Shape, _op: &'static str) -> Result<Few> {
        Ok(Few::default())
    }
}

macro_rules! dims_from_tuple {
    ($($t:ident $i:tt),+) => {
        impl<$($t: Dim),+> Dims for ($($t,)+) {
            fn to_axes(&self, shape: &Shape, op: &'static str) -> Result<Axes> {
                collect_axes(&[$(self.$i.to_index(shape, op)?),+], shape, op)
            }

            fn to_order(&self, shape: &Shape, op: &'static str) -> Result<Few> {
                collect_order(&[$(self.$i.to_index(shape, op)?),+], shape, op)
            }
        }
    };
}
dims_from_tuple!(A 0);
dims_from_tuple!(A 0, B 1);
dims_from_tuple!(A 0, B 1, C 2);
dims_from_tuple!(A 0, B 1, C 2, E 3);
dims_from_tuple!(A 0, B 1, C 2, E 3, F 4);
dims_from_tuple!(A 0, B 1, C 2, E 3, F 4, G 5);
