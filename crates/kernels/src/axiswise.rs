//! Kernels along one axis: running sums and the like, and rows normalised. As `kernel.rs`, which has them as one
//! variant.

use crate::view::{
    Access::{Read, Write},
    kernels,
};

/// What is kept from one element to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOp {
    Sum,
    Prod,
    Max,
    Min,
    /// `log` of the sum of `e^x`, without overflow; floats.
    LogSumExp,
}

kernels! {
/// A kernel along an axis. Unless it says otherwise: what is written is contiguous and has the shape of the sources.
pub enum Axiswise {
    /// `dst = ` of each element and all before it on `axis` (behind it, if `reverse`), and in `ids` (u32) where on the
    /// axis the first extreme lies. Of floats all but extremes is computed in f64; integers wrap; NaN is the extreme.
    Scan "scan", { op: ScanOp, axis: usize, reverse: bool } (src: Read, dst: Write) (ids: Write);
    /// The gradient of running products from `src` and `grad`: also where elements are 0. Floats.
    ProdGrad "prod_grad", { axis: usize } (src: Read, grad: Read, dst: Write);
    /// Normalises rows: `dst [R, C]` is `src` divided by the root of each row's mean square plus `eps`, after taking
    /// off its mean if `centred`; times `scale [C]`, plus `shift [C]`. Floats.
    Norm "norm", { eps: f64, centred: bool } (src: Read, dst: Write) (scale: Read, shift: Read);
    /// The gradient of `src` from `grad`, both `[R, C]`, and `products`: `grad` times the even rows.
    NormGrad "norm_grad", { eps: f64, centred: bool } (src: Read, grad: Read, dst: Write, products: Write) (scale: Read);
}
}

impl<V> Axiswise<V> {
    /// Its first source.
    pub fn source(&self) -> &V {
        match self {
            Axiswise::Scan { src, .. }
            | Axiswise::ProdGrad { src, .. }
            | Axiswise::Norm { src, .. }
            | Axiswise::NormGrad { src, .. } => src,
        }
    }
}
