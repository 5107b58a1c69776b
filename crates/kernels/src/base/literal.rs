//! Arrays as they are written down: numbers, and nested arrays of numbers.
//!
//! Beside [`WithDType`], since only its own crate knows that an array is no number, whatever comes.

use crate::base::{dtype::WithDType, shape::Shape};

/// What `Tensor::new` takes: a number, or nested arrays of up to three levels.
pub trait NdLiteral {
    /// The type of the numbers.
    type Elem: WithDType;
    /// The shape, and the numbers in row-major order.
    fn flatten(&self) -> (Shape, Vec<Self::Elem>);
}

macro_rules! number_literals {
    ($($t:ty)*) => {$(
        impl NdLiteral for $t {
            type Elem = $t;
            fn flatten(&self) -> (Shape, Vec<$t>) {
                (Shape::SCALAR, vec![*self])
            }
        }
    )*};
}
number_literals!(bool u8 u16 u32 u64 i8 i16 i32 i64 half::f16 half::bf16 f32 f64);

impl<T: WithDType, const N: usize> NdLiteral for [T; N] {
    type Elem = T;
    fn flatten(&self) -> (Shape, Vec<T>) {
        (Shape::from(N), self.to_vec())
    }
}

impl<T: WithDType, const N: usize, const M: usize> NdLiteral for [[T; M]; N] {
    type Elem = T;
    fn flatten(&self) -> (Shape, Vec<T>) {
        (Shape::from((N, M)), self.as_flattened().to_vec())
    }
}

impl<T: WithDType, const N: usize, const M: usize, const K: usize> NdLiteral for [[[T; K]; M]; N] {
    type Elem = T;
    fn flatten(&self) -> (Shape, Vec<T>) {
        (Shape::from((N, M, K)), self.as_flattened().as_flattened().to_vec())
    }
}

impl<T: WithDType> NdLiteral for [T] {
    type Elem = T;
    fn flatten(&self) -> (Shape, Vec<T>) {
        (Shape::from(self.len()), self.to_vec())
    }
}

impl<T: WithDType> NdLiteral for Vec<T> {
    type Elem = T;
    fn flatten(&self) -> (Shape, Vec<T>) {
        (Shape::from(self.len()), self.clone())
    }
}

impl<L: NdLiteral + ?Sized> NdLiteral for &L {
    type Elem = L::Elem;
    fn flatten(&self) -> (Shape, Vec<L::Elem>) {
        (**self).flatten()
    }
}
