//! Kernels along one axis: running sums and the like, and rows made even. As `kernel.rs`, which has them as one variant.

use crate::kernel::{
    Access::{Read, Write},
    Operands, View, each,
};

/// What is kept from one element to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOp {
    Sum,
    Prod,
    Max,
    Min,
}

/// A kernel along an axis. Unless it says otherwise: what is written is contiguous and has the shape of the sources.
#[derive(Clone, Copy, Debug)]
pub enum Along {
    /// `dst = ` of each element and all before it on `axis` (behind it, if `reverse`), and in `ids` (u32) where on the
    /// axis the first extreme lies. Floats are added and multiplied in f64; integers wrap; NaN is the extreme.
    Scan { op: ScanOp, src: View, dst: View, ids: Option<View>, axis: usize, reverse: bool },
    /// The gradient of running products from `src` and `grad`: also where elements are 0. Floats.
    ProdGrad { src: View, grad: View, dst: View, axis: usize },
    /// `dst [R, C]`: rows of `src` divided by the root of their mean square plus `eps`, `centred`: of what differs from
    /// their mean; times `scale [C]`, plus `shift [C]`. Floats.
    Norm { src: View, scale: Option<View>, shift: Option<View>, dst: View, eps: f64, centred: bool },
    /// The gradient of `src` from `grad`, both `[R, C]`, and `products`: `grad` times the even rows.
    NormGrad { src: View, grad: View, scale: Option<View>, dst: View, products: View, eps: f64, centred: bool },
}

impl Along {
    pub fn name(&self) -> &'static str {
        match self {
            Along::Scan { .. } => "scan",
            Along::ProdGrad { .. } => "prod_grad",
            Along::Norm { .. } => "norm",
            Along::NormGrad { .. } => "norm_grad",
        }
    }

    /// Its first source.
    pub fn source(&self) -> &View {
        match self {
            Along::Scan { src, .. }
            | Along::ProdGrad { src, .. }
            | Along::Norm { src, .. }
            | Along::NormGrad { src, .. } => src,
        }
    }

    /// Calls `f` with every operand and what the kernel does to it.
    pub fn operands(&mut self, f: Operands<'_>) {
        let read = |view| (view, Read);
        match self {
            Along::Scan { src, dst, ids, .. } => {
                each(f, [(src, Read), (dst, Write)].into_iter().chain(ids.as_mut().map(|ids| (ids, Write))));
            }
            Along::ProdGrad { src, grad, dst, .. } => each(f, [(src, Read), (grad, Read), (dst, Write)]),
            Along::Norm { src, scale, shift, dst, .. } => {
                let sources = [Some(src), scale.as_mut(), shift.as_mut()].into_iter().flatten();
                each(f, sources.map(read).chain([(dst, Write)]));
            }
            Along::NormGrad { src, grad, scale, dst, products, .. } => {
                let sources = [Some(src), Some(grad), scale.as_mut()].into_iter().flatten();
                each(f, sources.map(read).chain([(dst, Write), (products, Write)]));
            }
        }
    }
}
