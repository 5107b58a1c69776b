//! Arrays as they are written down: numbers, and nested lists of numbers.
//!
//! Beside [`WithDType`], since only its own crate knows that a list is no number, whatever comes.

use std::borrow::Cow;

use crate::base::{
    dtype::WithDType,
    error::{Error, Result},
    shape::{Few, MAX_RANK, Shape},
};

/// What `Tensor::new` takes: a number, or arrays, slices and vectors of it, nested as deep as an array may have axes.
pub trait NdLiteral {
    /// The type of the numbers.
    type Elem: WithDType;

    /// The shape that each of these has.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if two of them differ; [`Error::Shape`] if none says how long the lists in it are;
    /// [`Error::RankTooLarge`].
    fn shape_of(all: &[Self]) -> Result<Shape>
    where
        Self: Sized;

    /// Appends the numbers of all of these, in row-major order.
    fn append(all: &[Self], to: &mut Vec<Self::Elem>)
    where
        Self: Sized;

    /// The numbers of all of these, if they lie one after the other.
    fn together(all: &[Self]) -> Option<&[Self::Elem]>
    where
        Self: Sized;

    /// The shape, and the numbers in row-major order.
    ///
    /// # Errors
    /// As [`NdLiteral::shape_of`].
    fn flatten(&self) -> Result<(Shape, Cow<'_, [Self::Elem]>)>
    where
        Self: Sized,
    {
        let all = std::slice::from_ref(self);
        let shape = Self::shape_of(all)?;
        let numbers = Self::together(all).map_or_else(
            || {
                let mut numbers = Vec::with_capacity(shape.elem_count());
                Self::append(all, &mut numbers);
                numbers.into()
            },
            Cow::Borrowed,
        );
        Ok((shape, numbers))
    }
}

macro_rules! number_literals {
    ($($t:ty)*) => {$(
        impl NdLiteral for $t {
            type Elem = $t;
            fn shape_of(_: &[$t]) -> Result<Shape> {
                Ok(Shape::SCALAR)
            }
            fn append(all: &[$t], to: &mut Vec<$t>) {
                to.extend_from_slice(all);
            }
            fn together(all: &[$t]) -> Option<&[$t]> {
                Some(all)
            }
        }
    )*};
}
number_literals!(bool u8 u16 u32 u64 i8 i16 i32 i64 float8::F8E4M3 half::f16 half::bf16 f32 f64);

/// The shape of a list of `len` items of a shape.
fn list_of(len: usize, item: Shape) -> Result<Shape> {
    if item.rank() == MAX_RANK {
        return Err(Error::rank_too_large("new", MAX_RANK + 1));
    }
    Ok([len].into_iter().chain(item.dims().iter().copied()).collect::<Few>().into())
}

/// Notes one more shape, of those that have to be one.
fn note(common: &mut Option<Shape>, shape: Shape) -> Result<()> {
    let first = *common.get_or_insert(shape);
    if shape != first {
        return Err(Error::shapes("new", &first, &shape, "lists beside each other need one length"));
    }
    Ok(())
}

/// The one shape of some lists.
fn of_lists(common: Option<Shape>) -> Result<Shape> {
    let expected = "an item that says how long the lists in it are";
    common.ok_or_else(|| Error::shape("new", &[0], expected))
}

impl<L: NdLiteral, const N: usize> NdLiteral for [L; N] {
    type Elem = L::Elem;
    fn shape_of(all: &[Self]) -> Result<Shape> {
        list_of(N, L::shape_of(all.as_flattened())?)
    }
    fn append(all: &[Self], to: &mut Vec<L::Elem>) {
        L::append(all.as_flattened(), to);
    }
    fn together(all: &[Self]) -> Option<&[L::Elem]> {
        L::together(all.as_flattened())
    }
}

impl<L: NdLiteral> NdLiteral for Vec<L> {
    type Elem = L::Elem;
    fn shape_of(all: &[Self]) -> Result<Shape> {
        let mut common = None;
        for list in all {
            note(&mut common, list_of(list.len(), L::shape_of(list)?)?)?;
        }
        of_lists(common)
    }
    fn append(all: &[Self], to: &mut Vec<L::Elem>) {
        all.iter().for_each(|list| L::append(list, to));
    }
    fn together(all: &[Self]) -> Option<&[L::Elem]> {
        let [list] = all else { return None };
        L::together(list)
    }
}

impl<L: NdLiteral> NdLiteral for &[L] {
    type Elem = L::Elem;
    fn shape_of(all: &[Self]) -> Result<Shape> {
        let mut common = None;
        for list in all {
            note(&mut common, list_of(list.len(), L::shape_of(list)?)?)?;
        }
        of_lists(common)
    }
    fn append(all: &[Self], to: &mut Vec<L::Elem>) {
        all.iter().for_each(|list| L::append(list, to));
    }
    fn together(all: &[Self]) -> Option<&[L::Elem]> {
        let [list] = all else { return None };
        L::together(list)
    }
}

impl<L: NdLiteral> NdLiteral for &L {
    type Elem = L::Elem;
    fn shape_of(all: &[Self]) -> Result<Shape> {
        let mut common = None;
        for item in all {
            note(&mut common, L::shape_of(std::slice::from_ref(*item))?)?;
        }
        common.map_or_else(|| L::shape_of(&[]), Ok)
    }
    fn append(all: &[Self], to: &mut Vec<L::Elem>) {
        all.iter().for_each(|item| L::append(std::slice::from_ref(*item), to));
    }
    fn together(all: &[Self]) -> Option<&[L::Elem]> {
        let [item] = all else { return None };
        L::together(std::slice::from_ref(*item))
    }
}
