//! Blocks one by one, under candle's names: a block is its bytes, as files have them, so that `as_chunks` sees the
//! blocks of a file in place. What is done with them is what a [`QTensor`](super::QTensor) does.
//!
//! ```
//! use ndgc::quantized::k_quants::{self, BlockQ8_0, GgmlType};
//! let weights: Vec<f32> = (0..64).map(|i| i as f32).collect(); // two rows of 32
//! let mut blocks = vec![BlockQ8_0::zeros(); 2];
//! BlockQ8_0::from_float(&weights, &mut blocks);
//! let mut y = [0.; 2];
//! k_quants::matmul((1, 32, 2), &[1.; 32], &blocks, &mut y)?;
//! assert_eq!(y.map(|y| (y / 10.).round()), [50., 152.]); // 496 and 1520
//! # Ok::<(), ndgc::Error>(())
//! ```

use half::{bf16, f16};

use crate::base::{error::Result, ggml::GgmlDType, heap};
use crate::device::cpu::quantized;

/// Numbers of a block of the K formats.
pub const QK_K: usize = 256;
/// Bytes of the scales of a block of `Q4K` and `Q5K`.
pub const K_SCALE_SIZE: usize = 12;
/// Numbers of a block of `Q4_0`.
pub const QK4_0: usize = 32;
/// Numbers of a block of `Q4_1`.
pub const QK4_1: usize = 32;
/// Numbers of a block of `Q5_0`.
pub const QK5_0: usize = 32;
/// Numbers of a block of `Q5_1`.
pub const QK5_1: usize = 32;
/// Numbers of a block of `Q8_0`.
pub const QK8_0: usize = 32;
/// Numbers of a block of `Q8_1`.
pub const QK8_1: usize = 32;

mod sealed {
    pub trait Sealed {}
}

/// What rows of weights are made of: a block, or a float by itself. Sealed: the list is that of [`GgmlDType`].
pub trait GgmlType: sealed::Sealed + Sized + Clone + Send + Sync + 'static {
    /// The format.
    const DTYPE: GgmlDType;
    /// Numbers of one of these.
    const BLCK_SIZE: usize = Self::DTYPE.block_size();
    /// What the other side of a product is made of: numbers of 8 bits in blocks of this length, or the same floats.
    type VecDotType: GgmlType;

    /// One whose bytes are all 0.
    fn zeros() -> Self;

    /// The numbers.
    ///
    /// # Panics
    /// If there are not as many as the blocks have.
    fn to_float(xs: &[Self], ys: &mut [f32]);

    /// The blocks that come nearest to numbers.
    ///
    /// # Panics
    /// If there are not as many as the blocks have.
    fn from_float(xs: &[f32], ys: &mut [Self]);

    /// The sum of the products of the first `n` numbers of two rows. Integers are multiplied in pairs, and these added
    /// as floats.
    ///
    /// # Panics
    /// If a row has fewer, or `n` is not one of whole blocks.
    fn vec_dot(n: usize, xs: &[Self], ys: &[Self::VecDotType]) -> f32;

    /// As [`GgmlType::vec_dot`], which is one code with and without vector units.
    ///
    /// # Panics
    /// As [`GgmlType::vec_dot`].
    fn vec_dot_unopt(n: usize, xs: &[Self], ys: &[Self::VecDotType]) -> f32 {
        Self::vec_dot(n, xs, ys)
    }

    /// `lhs [m, k]` times the transposed rows `[n, k]`.
    #[doc(hidden)]
    fn product(sizes: [usize; 3], lhs: &[f32], rows: &[Self], dst: &mut [f32]) -> Result<()>;
}

macro_rules! blocks {
    ($($name:ident $dtype:ident $size:literal with $other:ident;)*) => {$(
        #[doc = concat!("A block of [`GgmlDType::", stringify!($dtype), "`].")]
        pub type $name = [u8; $size];

        impl sealed::Sealed for $name {}

        impl GgmlType for $name {
            const DTYPE: GgmlDType = GgmlDType::$dtype;
            type VecDotType = $other;

            fn zeros() -> Self {
                [0; $size]
            }

            fn to_float(xs: &[Self], ys: &mut [f32]) {
                quantized::dequantize(Self::DTYPE, xs.as_flattened(), ys);
            }

            fn from_float(xs: &[f32], ys: &mut [Self]) {
                quantized::quantize(Self::DTYPE, xs, ys.as_flattened_mut());
            }

            fn vec_dot(n: usize, xs: &[Self], ys: &[$other]) -> f32 {
                let (len, count) = (Self::BLCK_SIZE, n / Self::BLCK_SIZE);
                assert!(n.is_multiple_of(len), "rows of whole blocks: {n} numbers, {len} a block");
                let rows = [xs[..count].as_flattened(), ys[..count].as_flattened()];
                quantized::dot([Self::DTYPE, <$other>::DTYPE], rows)
            }

            fn product(sizes: [usize; 3], lhs: &[f32], rows: &[Self], dst: &mut [f32]) -> Result<()> {
                quantized::product("matmul", Self::DTYPE, sizes, lhs, rows.as_flattened(), dst)
            }
        }
    )*};
}
blocks! {
    BlockQ4_0 Q4_0 18 with BlockQ8_0;
    BlockQ4_1 Q4_1 20 with BlockQ8_1;
    BlockQ5_0 Q5_0 22 with BlockQ8_0;
    BlockQ5_1 Q5_1 24 with BlockQ8_1;
    BlockQ8_0 Q8_0 34 with BlockQ8_0;
    BlockQ8_1 Q8_1 36 with BlockQ8_1;
    BlockQ2K Q2K 84 with BlockQ8K;
    BlockQ3K Q3K 110 with BlockQ8K;
    BlockQ4K Q4K 144 with BlockQ8K;
    BlockQ5K Q5K 176 with BlockQ8K;
    BlockQ6K Q6K 210 with BlockQ8K;
    BlockQ8K Q8K 292 with BlockQ8K;
}

macro_rules! floats {
    ($($t:ty, $dtype:ident, |$x:ident| $wide:expr, |$y:ident| $narrow:expr;)*) => {$(
        impl sealed::Sealed for $t {}

        impl GgmlType for $t {
            const DTYPE: GgmlDType = GgmlDType::$dtype;
            type VecDotType = $t;

            fn zeros() -> Self {
                Self::default()
            }

            fn to_float(xs: &[Self], ys: &mut [f32]) {
                assert_eq!(xs.len(), ys.len(), "as many numbers as there are floats");
                ys.iter_mut().zip(xs).for_each(|(y, &$x)| *y = $wide);
            }

            fn from_float(xs: &[f32], ys: &mut [Self]) {
                assert_eq!(xs.len(), ys.len(), "as many numbers as there are floats");
                ys.iter_mut().zip(xs).for_each(|(y, &$y)| *y = $narrow);
            }

            fn vec_dot(n: usize, xs: &[Self], ys: &[Self]) -> f32 {
                let wide = |$x: $t| -> f32 { $wide };
                xs[..n].iter().zip(&ys[..n]).fold(0.0, |sum, (&x, &y)| sum + wide(x) * wide(y))
            }

            fn product([_, k, n]: [usize; 3], lhs: &[f32], rows: &[Self], dst: &mut [f32]) -> Result<()> {
                let mut short = heap::zeros::<$t>("matmul", k)?;
                for (x, dst) in lhs.chunks_exact(k.max(1)).zip(dst.chunks_exact_mut(n.max(1))) {
                    Self::from_float(x, &mut short);
                    for (row, to) in rows.chunks_exact(k.max(1)).zip(dst) {
                        *to = Self::vec_dot(k, &short, row);
                    }
                }
                Ok(())
            }
        }
    )*};
}
floats! {
    f32, F32, |x| x, |y| y;
    f16, F16, |x| x.to_f32(), |y| f16::from_f32(y);
    bf16, BF16, |x| x.to_f32(), |y| bf16::from_f32(y);
}

/// `lhs [m, k]` times the transposed rows `rhs_t [n, k]`, to `dst [m, n]`: the first of its numbers, if it has more.
/// `lhs` is rounded to [`GgmlType::VecDotType`] for it.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
///
/// # Panics
/// If a slice is too short, or `k` is not one of whole blocks.
pub fn matmul<T: GgmlType>((m, k, n): (usize, usize, usize), lhs: &[f32], rhs_t: &[T], dst: &mut [f32]) -> Result<()> {
    assert_eq!(lhs.len(), m * k, "lhs has m * k numbers");
    assert!(dst.len() >= m * n, "dst too small: {} numbers, and {m} * {n} are computed", dst.len());
    assert!(k.is_multiple_of(T::BLCK_SIZE), "rows of whole blocks: {k} numbers, {} a block", T::BLCK_SIZE);
    let dst = &mut dst[..m * n];
    if k == 0 {
        dst.fill(0.0);
        return Ok(());
    }
    T::product([m, k, n], lhs, &rhs_t[..n * (k / T::BLCK_SIZE)], dst)
}
