//! Methods that candle's tensors lack and whose names its users give to methods of their own: in a trait, so that
//! a program has them only if it asks for them.
//!
//! What they do stands with its family, in methods that this crate alone sees, under names that begin with `ext_`: with
//! the same names, a program that forgot the import would read that the method is private.

#[allow(unused_imports)] // named in docs
use crate::base::error::Error;
use crate::base::{
    error::Result,
    shape::{Dim, Dims, Shape},
};
use crate::memory::proxy::Proxy;
use crate::ops::shape::pad::PadMode;

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::Proxy {}
}

/// Declares the trait, whose methods are those that stand with their kind under names of their own, which nobody else
/// sees.
macro_rules! extension {
    ($(#[$about:meta])* $trait:ident: $(
        $(#[$doc:meta])*
        fn $name:ident $(<$($of:ident: $bound:path),+>)? (&self $(, $operand:ident: $is:ty)* $(,)?)
            -> $gives:ty = $own:ident;
    )*) => {
        $(#[$about])*
        pub trait $trait: sealed::Sealed + Sized {
            $(
                $(#[$doc])*
                #[track_caller]
                fn $name $(<$($of: $bound),+>)? (&self $(, $operand: $is)*) -> $gives;
            )*
        }

        impl $trait for Proxy {
            $(
                fn $name $(<$($of: $bound),+>)? (&self $(, $operand: $is)*) -> $gives {
                    self.$own($($operand),*)
                }
            )*
        }
    };
}

extension! {
    /// Operations of a [`Proxy`] that one imports: `use ndgc::TensorExt;`, or all of [`prelude`](crate::prelude).
    ///
    /// Methods of a type win over those of a trait, without a word. candle's tensors have none of these names, and
    /// programs written for candle have them in traits of their own, with other arguments or results: those keep their
    /// meaning here. Only this crate implements the trait.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// use ndgc::TensorExt;
    ///
    /// let parts = Tensor::arange(0f32, 6., &Device::Cpu)?.split(4, 0)?;
    /// assert_eq!(parts[1].to_vec1::<f32>()?, [4., 5.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    TensorExt:

    /// The elements on and below diagonal `k` of the last two axes (0 the main one, 1 the one above it), else 0. With a
    /// gradient.
    ///
    /// # Errors
    /// [`Error::Shape`] for fewer than two axes; [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn tril(&self, k: i64) -> Result<Proxy> = ext_tril;

    /// The elements on and above diagonal `k` of the last two axes (0 the main one, 1 the one above it), else 0. With a
    /// gradient.
    ///
    /// # Errors
    /// As [`TensorExt::tril`].
    fn triu(&self, k: i64) -> Result<Proxy> = ext_triu;

    /// Of a vector: the square matrix with it on diagonal `k`, else zeros. Of a matrix: its diagonal `k`. With a
    /// gradient.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of axes; [`Error::SizeOverflow`], [`Error::StaleArray`],
    /// [`Error::OutOfMemory`].
    fn diag(&self, k: i64) -> Result<Proxy> = ext_diag;

    /// Diagonal `k` of the matrices that two axes span: these axes are removed, the diagonal is the last one. With a
    /// gradient.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::DuplicateDim`] if the axes are one; [`Error::StaleArray`],
    /// [`Error::OutOfMemory`].
    fn diagonal<A: Dim, B: Dim>(&self, k: i64, a: A, b: B) -> Result<Proxy> = ext_diagonal;

    /// The sum of the main diagonal of the last two axes. With a gradient.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`] for fewer than two axes; [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn trace(&self) -> Result<Proxy> = ext_trace;

    /// 1 where an element is NaN, as u8 of the same shape. Integers never are. No gradient.
    ///
    /// # Errors
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn is_nan(&self) -> Result<Proxy> = ext_is_nan;

    /// 1 where an element is an infinity of either sign, as u8 of the same shape. Integers and f8e4m3 never are. No
    /// gradient.
    ///
    /// # Errors
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[doc(alias = "isInfinite")]
    fn is_inf(&self) -> Result<Proxy> = ext_is_inf;

    /// 1 where an element is neither NaN nor infinite, as u8 of the same shape. No gradient.
    ///
    /// # Errors
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn is_finite(&self) -> Result<Proxy> = ext_is_finite;

    /// 1 where an element is 0, as u8 of the same shape, for any dtype. No gradient.
    ///
    /// # Errors
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn logical_not(&self) -> Result<Proxy> = ext_logical_not;

    /// 1 where both elements are not 0, as u8; equal shapes, any dtypes. No gradient.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DeviceMismatch`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn logical_and(&self, rhs: &Proxy) -> Result<Proxy> = ext_logical_and;

    /// 1 where an element of either is not 0, as u8; equal shapes, any dtypes. No gradient.
    ///
    /// # Errors
    /// As [`TensorExt::logical_and`].
    fn logical_or(&self, rhs: &Proxy) -> Result<Proxy> = ext_logical_or;

    /// 1 where an element of just one is not 0, as u8; equal shapes, any dtypes. No gradient.
    ///
    /// # Errors
    /// As [`TensorExt::logical_and`].
    fn logical_xor(&self, rhs: &Proxy) -> Result<Proxy> = ext_logical_xor;

    /// `value` where the mask (bool or integers, broadcast to this shape) is not 0, else these elements. The gradient
    /// is 0 where it was filled.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DeviceMismatch`], [`Error::UnsupportedDType`] of the mask,
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn masked_fill(&self, mask: &Proxy, value: f64) -> Result<Proxy> = ext_masked_fill;

    /// The elements where the mask (bool or integers, broadcast to this shape) is not 0, in row-major order: one axis.
    /// The mask is read on the host; with a gradient.
    ///
    /// # Errors
    /// As [`TensorExt::masked_fill`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let a = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let large = a.gt(&a.full_like(1.5)?)?;
    /// assert_eq!(a.masked_select(&large)?.to_vec1::<f32>()?, [2., 3., 4.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias("boolean_mask", "booleanMask"))]
    fn masked_select(&self, mask: &Proxy) -> Result<Proxy> = ext_masked_select;

    /// The larger of `x` and a number; NaN stays NaN. The gradient is 0 where it was cut.
    ///
    /// # Errors
    /// As [`Proxy::clamp`].
    fn clamp_min(&self, min: f64) -> Result<Proxy> = ext_clamp_min;

    /// The smaller of `x` and a number; NaN stays NaN. The gradient is 0 where it was cut.
    ///
    /// # Errors
    /// As [`Proxy::clamp`].
    fn clamp_max(&self, max: f64) -> Result<Proxy> = ext_clamp_max;

    /// `self + weight * (end - self)`, of equal shapes; floats, with gradients. As in PyTorch it is computed from
    /// `self` for weights within 0.5 of 0, else from `end`, of halves in f32: exact at weights 0 and 1, and between
    /// equal numbers. NaN where that end is infinite, and at weights 0 and 1 where any is.
    ///
    /// # Errors
    /// As [`Proxy::add`]; [`Error::UnsupportedDType`] for integers.
    fn lerp(&self, end: &Proxy, weight: f64) -> Result<Proxy> = ext_lerp;

    /// `nan` in place of NaN, and these in place of the infinities: without them the largest number of the dtype, and
    /// the lowest. Integers stay as they are. The gradient is 0 where one was put.
    ///
    /// # Errors
    /// As [`TensorExt::masked_fill`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let x = Tensor::new(&[f32::NAN, f32::INFINITY, 2.], &Device::Cpu)?;
    /// assert_eq!(x.nan_to_num(0., Some(9.), None)?.to_vec1::<f32>()?, [0., 9., 2.]);
    /// assert_eq!(x.nan_to_num(0., None, None)?.to_vec1::<f32>()?, [0., f32::MAX, 2.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Proxy> = ext_nan_to_num;

    /// `x` above 0, `alpha (e^(x / alpha) - 1)` below, whose slope at 0 is 1 whatever `alpha` is. Floats, with a
    /// gradient.
    ///
    /// # Errors
    /// [`Error::Argument`] if `alpha` is 0, NaN or infinite, or its inverse is, in f32 or of f64 in doubles; as
    /// [`Proxy::exp`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let x = Tensor::new(&[-1000f32, 0., 3.], &Device::Cpu)?;
    /// let y = x.celu(2.)?.to_vec1::<f32>()?;
    /// assert!((y[0] + 2.).abs() < 1e-6 && y[1..] == [0., 3.]); // never below -alpha
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn celu(&self, alpha: f64) -> Result<Proxy> = ext_celu;

    /// `x` brought nearer to 0 by `lambda`, and 0 within that. Floats, with a gradient, which is 0 at `lambda`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `lambda` is negative or not finite; as [`Proxy::exp`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let x = Tensor::new(&[-2f32, 0.25, 1.5], &Device::Cpu)?;
    /// assert_eq!(x.softshrink(0.5)?.to_vec1::<f32>()?, [-1.5, 0., 1.]);
    /// assert_eq!(x.hardshrink(0.5)?.to_vec1::<f32>()?, [-2., 0., 1.5]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn softshrink(&self, lambda: f64) -> Result<Proxy> = ext_softshrink;

    /// 0 from `-lambda` to `lambda`, else `x`; NaN stays NaN. Floats, with a gradient, which is 0 at `lambda`.
    ///
    /// # Errors
    /// As [`Proxy::exp`].
    fn hardshrink(&self, lambda: f64) -> Result<Proxy> = ext_hardshrink;

    /// The first half of an axis times the sigmoid of the second half. Floats, with a gradient.
    ///
    /// # Errors
    /// [`Error::Shape`] if the axis has an odd size; [`Error::DimOutOfRange`]; as [`Proxy::exp`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let x = Tensor::new(&[[3f32, 4.], [0., 0.]], &Device::Cpu)?; // sigmoid(0) is a half
    /// assert_eq!(x.glu(0)?.to_vec2::<f32>()?, [[1.5, 2.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn glu<A: Dim>(&self, dim: A) -> Result<Proxy> = ext_glu;

    /// For each index (any integers) a row of `depth` zeros with a 1 there, in u8: shape `[own.., depth]`. An index
    /// of -1 gives zeros alone. The indices are read on the host; no gradient.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::UnsupportedDType`], [`Error::RankTooLarge`], [`Error::SizeOverflow`],
    /// [`Error::StaleArray`], [`Error::OutOfMemory`].
    fn one_hot(&self, depth: usize) -> Result<Proxy> = ext_one_hot;

    /// Every product of an element of one vector with one of another: `[m] x [n] -> [m, n]`. Any dtype but bool, with
    /// gradients.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if one is no vector; as [`Proxy::mul`].
    fn outer(&self, rhs: &Proxy) -> Result<Proxy> = ext_outer;

    /// The Kronecker product: every product of two elements, in blocks of the shape of `rhs`. Missing leading axes
    /// count as 1. Any dtype but bool, up to three axes, with gradients.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`] for more axes; [`Error::SizeOverflow`]; as [`Proxy::mul`].
    fn kron(&self, rhs: &Proxy) -> Result<Proxy> = ext_kron;

    /// The cross product of vectors of three numbers along an axis; equal shapes. Any dtype but bool, with gradients.
    ///
    /// # Errors
    /// [`Error::Shape`] if the axis is not of size 3; [`Error::DimOutOfRange`]; as [`Proxy::mul`].
    fn cross<A: Dim>(&self, rhs: &Proxy, dim: A) -> Result<Proxy> = ext_cross;

    /// The distance by norm `p` of every point of one set from every point of another:
    /// `[.., m, d] x [.., n, d] -> [.., m, n]`, leading axes broadcast. Floats, with gradients, which are 0 between
    /// equal points. Holds all `m n d` differences for a moment.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; as [`TensorExt::norm_dim`].
    fn cdist(&self, rhs: &Proxy, p: f64) -> Result<Proxy> = ext_cdist;

    /// The elements along an axis in ascending (or descending) order, and the indices (u32) they come from. Any dtype;
    /// the values have a gradient.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::StaleArray`], [`Error::OutOfMemory`]; the first failure of the device's work.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let (values, ids) = Tensor::new(&[3f32, 1., 2.], &Device::Cpu)?.sort(0, false)?;
    /// assert_eq!(values.to_vec1::<f32>()?, [1., 2., 3.]);
    /// assert_eq!(ids.to_vec1::<u32>()?, [1, 2, 0]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn sort<A: Dim>(&self, dim: A, descending: bool) -> Result<(Proxy, Proxy)> = ext_sort;

    /// The indices (u32) that put the elements along an axis in order. No gradient.
    ///
    /// # Errors
    /// As [`TensorExt::sort`].
    fn argsort<A: Dim>(&self, dim: A, descending: bool) -> Result<Proxy> = ext_argsort;

    /// For each value the index (u32) before which it would be put, so that the last axis stays in ascending order:
    /// before those that are equal, or behind them, if `right`. As many as `values`, which has the same leading axes,
    /// or any shape if this is a vector; NaN counts as the largest. PyTorch's `bucketize` is this of the boundaries. Of
    /// an axis that is not in order any index. Any dtype; no gradient; the result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other leading axes; [`Error::Shape`] for no axis; [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; as [`TensorExt::sort`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let bounds = Tensor::new(&[1f32, 3., 3., 5.], &Device::Cpu)?;
    /// let x = Tensor::new(&[[0f32, 3.], [4., 9.]], &Device::Cpu)?;
    /// assert_eq!(bounds.searchsorted(&x, false)?.to_vec2::<u32>()?, [[0, 1], [3, 4]]);
    /// assert_eq!(bounds.searchsorted(&x, true)?.to_vec2::<u32>()?, [[0, 3], [3, 4]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias("bucketize", "digitize"))]
    fn searchsorted(&self, values: &Proxy, right: bool) -> Result<Proxy> = ext_searchsorted;

    /// The `count` largest elements along an axis, in descending order, and the indices (u32) they come from. Any
    /// dtype; the values have a gradient.
    ///
    /// # Errors
    /// [`Error::Argument`] if the axis has fewer; as [`TensorExt::sort`].
    fn topk<A: Dim>(&self, count: usize, dim: A) -> Result<(Proxy, Proxy)> = ext_topk;

    /// The middle element along an axis, which is removed; the lower one of two. NaN if any is. Any dtype, with a
    /// gradient.
    ///
    /// # Errors
    /// [`Error::Shape`] for an empty axis; as [`TensorExt::sort`].
    fn median<A: Dim>(&self, dim: A) -> Result<Proxy> = ext_median;

    /// The value below which the share `q` of the elements along an axis lies, interpolated between neighbours; the
    /// axis is removed. NaN if any element is. Floats, with a gradient.
    ///
    /// # Errors
    /// [`Error::Argument`] if `q` is not in `[0, 1]`; [`Error::UnsupportedDType`] for integers; as
    /// [`TensorExt::median`].
    #[doc(alias = "percentile")]
    fn quantile<A: Dim>(&self, q: f64, dim: A) -> Result<Proxy> = ext_quantile;

    /// The different elements of the whole array in ascending order: one axis; NaN once, as the last. No gradient.
    ///
    /// # Errors
    /// As [`TensorExt::sort`].
    fn unique(&self) -> Result<Proxy> = ext_unique;

    /// The indices of the elements that are not 0, in row-major order: i64, `[how many, axes]`. No gradient.
    ///
    /// # Errors
    /// As [`TensorExt::sort`].
    #[doc(alias = "argwhere")]
    fn nonzero(&self) -> Result<Proxy> = ext_nonzero;

    /// How often each number from 0 to the largest occurs, but at least `least` of them: i64. For vectors of any
    /// integers. No gradient.
    ///
    /// # Errors
    /// [`Error::Shape`] if it is no vector; [`Error::IndexOutOfRange`] for a negative number; [`Error::SizeOverflow`]
    /// and [`Error::OutOfMemory`] for one too large to count up to; [`Error::UnsupportedDType`]; as
    /// [`TensorExt::sort`].
    fn bincount(&self, least: usize) -> Result<Proxy> = ext_bincount;

    /// How many elements lie in each of `bins` equal parts of `[min, max]`, in the dtype of this array; others and NaN
    /// are not counted. With `min` and `max` both 0: from the smallest to the largest number. Floats; no gradient.
    ///
    /// # Errors
    /// [`Error::Argument`] for no bins, or `min > max`, or one that is not finite, or `max - min` is not, given or
    /// found; as [`TensorExt::sort`].
    #[doc(alias = "histogram")]
    fn histc(&self, bins: usize, min: f64, max: f64) -> Result<Proxy> = ext_histc;

    /// The product of each element and all before it along an axis, as [`Proxy::cumsum`]: any dtype but bool. The
    /// gradient holds where elements are 0 too.
    ///
    /// # Errors
    /// As [`Proxy::cumsum`].
    fn cumprod<A: Dim>(&self, dim: A) -> Result<Proxy> = ext_cumprod;

    /// `log(sum(e^x))` of each element and all before it along an axis, without overflow. Floats, added in f64; one
    /// pass, with a gradient, which is 0 where an element is minus infinity.
    ///
    /// # Errors
    /// As [`Proxy::cumsum`]; [`Error::UnsupportedDType`] for integers.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let x = Tensor::new(&[1000f32, 1000., -1000.], &Device::Cpu)?;
    /// let more = 1000. + 2f32.ln();
    /// assert_eq!(x.logcumsumexp(0)?.to_vec1::<f32>()?, [1000., more, more]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn logcumsumexp<A: Dim>(&self, dim: A) -> Result<Proxy> = ext_logcumsumexp;

    /// The largest of each element and all before it along an axis, and the index of the first such one there, as u32;
    /// NaN is larger than any number. Any dtype, with a gradient. Both belong to the owner of this array.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::Shape`] for an axis of 2^32 elements or more; [`Error::StaleArray`],
    /// [`Error::OutOfMemory`].
    fn cummax<A: Dim>(&self, dim: A) -> Result<(Proxy, Proxy)> = ext_cummax;

    /// As [`TensorExt::cummax`], with the smallest; NaN is smaller than any number.
    ///
    /// # Errors
    /// As [`TensorExt::cummax`].
    fn cummin<A: Dim>(&self, dim: A) -> Result<(Proxy, Proxy)> = ext_cummin;

    /// The root of [`Proxy::var`]. Its gradient is 0 where it is.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    fn std<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_std;

    /// As [`TensorExt::std`], with the axes kept as size 1.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    fn std_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_std_keepdim;

    /// [`Proxy::var`] and [`Proxy::mean`] over the same axes.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    fn var_mean<A: Dims>(&self, dims: A) -> Result<(Proxy, Proxy)> = ext_var_mean;

    /// The sum of what is not NaN over one or more axes, which are removed: 0 of nothing. Any dtype but bool, with a
    /// gradient.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let a = Tensor::new(&[[1f32, f32::NAN, 5.], [2., 2., 2.]], &Device::Cpu)?;
    /// assert_eq!(a.nansum(1)?.to_vec1::<f32>()?, [6., 6.]);
    /// assert_eq!(a.nanmean(1)?.to_vec1::<f32>()?, [3., 2.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn nansum<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_nansum;

    /// The mean of what is not NaN over one or more axes, which are removed: NaN of nothing. Floats, with a gradient.
    ///
    /// # Errors
    /// As [`Proxy::mean`].
    fn nanmean<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_nanmean;

    /// The product over one or more axes, which are removed: 1 of nothing. Any dtype but bool, integers wrap; with a
    /// gradient, also where elements are 0.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn prod<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_prod;

    /// As [`TensorExt::prod`], with the axes kept as size 1.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn prod_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_prod_keepdim;

    /// The product of all elements: a scalar.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn prod_all(&self) -> Result<Proxy> = ext_prod_all;

    /// 1 where any element along the axes, which are removed, is not 0; u8. 0 of nothing. No gradient.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn any<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_any;

    /// As [`TensorExt::any`], with the axes kept as size 1.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn any_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_any_keepdim;

    /// Whether any element at all is not 0: a scalar in u8.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn any_all(&self) -> Result<Proxy> = ext_any_all;

    /// 1 where every element along the axes, which are removed, is not 0; u8. 1 of nothing. No gradient.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn all<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_all;

    /// As [`TensorExt::all`], with the axes kept as size 1.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn all_keepdim<A: Dims>(&self, dims: A) -> Result<Proxy> = ext_all_keepdim;

    /// Whether every element is not 0: a scalar in u8.
    ///
    /// # Errors
    /// As [`Proxy::sum`].
    fn all_all(&self) -> Result<Proxy> = ext_all_all;

    /// The norm `(sum |x|^p)^(1/p)` over one or more axes, which are removed. `p` may be infinite (the largest or
    /// smallest size) or 0 (how many are not 0, without a gradient). Floats, with a gradient, which is 0 at 0.
    ///
    /// # Errors
    /// [`Error::Argument`] if `p` is NaN;
    /// [`Error::UnsupportedDType`] for integers; as [`Proxy::sum`].
    fn norm_dim<A: Dims>(&self, p: f64, dims: A) -> Result<Proxy> = ext_norm_dim;

    /// The array with other entries around it: a pair `(before, behind)` for each of the last axes, in their order. Of
    /// any dtype, with a gradient; the result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::Argument`] for more pairs than axes; [`Error::Shape`] if an axis has too few entries: to reflect, one
    /// more than are added at each end, else at least one, and for `Circular` as many as are added; `SizeOverflow`,
    /// `StaleArray`, `OutOfMemory`.
    ///
    /// ```
    /// # use ndgc::{Device, PadMode, Tensor, TensorExt};
    /// let a = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// assert_eq!(a.pad(&[(2, 1)], PadMode::Reflect)?.to_vec1::<f32>()?, [3., 2., 1., 2., 3., 2.]);
    /// assert_eq!(a.pad(&[(0, 2)], PadMode::Constant(7.))?.to_vec1::<f32>()?, [1., 2., 3., 7., 7.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn pad(&self, pads: &[(usize, usize)], mode: PadMode) -> Result<Proxy> = ext_pad;

    /// One axis moved to another place, the others in their order: a view.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, TensorExt};
    /// let a = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!(a.movedim(0, -1)?.dims(), [3, 4, 2]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias = "moveaxis")]
    fn movedim<A: Dim, B: Dim>(&self, from: A, to: B) -> Result<Proxy> = ext_movedim;

    /// Alias of [`Proxy::repeat`]: NumPy's and DJL's name. Fewer counts than axes are those of the first axes, as in
    /// candle; NumPy takes them for the last.
    ///
    /// # Errors
    /// As [`Proxy::repeat`].
    fn tile<S: Into<Shape>>(&self, counts: S) -> Result<Proxy> = ext_tile;

    /// Each entry of an axis `count` times, one after the other: `a a b b`, where [`Proxy::repeat`] gives `a b a b`. Of
    /// any dtype, with a gradient.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::SizeOverflow`]; as [`Proxy::repeat`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let a = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// assert_eq!(a.repeat_interleave(3, 0)?.to_vec1::<u32>()?, [1, 1, 1, 2, 2, 2]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn repeat_interleave<A: Dim>(&self, count: usize, dim: A) -> Result<Proxy> = ext_repeat_interleave;

    /// An axis cut into views of `size` indices each; the last may be smaller. An empty axis gives one empty view.
    ///
    /// # Errors
    /// [`Error::Argument`] for a size of 0; [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    fn split<A: Dim>(&self, size: usize, dim: A) -> Result<Vec<Proxy>> = ext_split;

    /// An axis cut into views of these sizes, which together are its size.
    ///
    /// # Errors
    /// [`Error::Argument`] if they are not; [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    fn split_sizes<A: Dim>(&self, sizes: &[usize], dim: A) -> Result<Vec<Proxy>> = ext_split_sizes;
}
