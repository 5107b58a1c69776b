//! Kernels of windows and along axes: their views as slices of the type of their dtype, as in `mod.rs`.

use super::{
    bits, conv,
    norm::{self, Evenly},
    pooling, resize, scan, source, target,
};
use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::cpu::{
    types::{open, with_bits, with_sums, with_wide},
    wide::wider,
};
use crate::{
    along::{Along, ScanOp},
    kernel::{BitOp, View},
    window::{ConvOp, PoolOp, ResizeOp, Spacing, Window, Windowed},
};

/// Whether narrow operands of a kernel over images are widened: not where elements only move, nor sums of integers,
/// which are those of their bits.
pub(super) fn is_widened(kernel: &Windowed<View<'_>>) -> bool {
    match kernel {
        Windowed::Unfold { .. } | Windowed::Resize { op: ResizeOp::Nearest, .. } => false,
        Windowed::Fold { image, .. } => wider(image.dtype()) == Some(DType::F32),
        Windowed::Conv { image: any, .. }
        | Windowed::Pool { image: any, .. }
        | Windowed::PoolGrad { grad: any, .. }
        | Windowed::Resize { image: any, .. }
        | Windowed::ResizeGrad { grad: any, .. } => wider(any.dtype()).is_some(),
    }
}

/// Runs a kernel over images.
///
/// # Safety
/// As for [`super::run`].
#[allow(unsafe_code)]
pub(super) unsafe fn windowed(kernel: &Windowed<View<'_>>) -> Result<()> {
    // SAFETY: every function called here has the contract of this one, for the views of this kernel.
    unsafe {
        match kernel {
            Windowed::Conv { op, image, weights, result, room, window, groups } => {
                convolution(*op, [image, weights, result, room], window, *groups)
            }
            Windowed::Unfold { image, columns, window } => unfold(image, columns, window),
            Windowed::Fold { columns, image, window } => fold(columns, image, window),
            Windowed::Pool { op, image, dst, ids, window, adaptive } => {
                pool(*op, [image, dst], ids.as_ref(), window, *adaptive)
            }
            Windowed::PoolGrad { grad, ids, image, window, adaptive } => {
                pool_grad(grad, ids.as_ref(), image, window, *adaptive)
            }
            Windowed::Resize { op, image, dst, spacing } => resized(*op, image, dst, spacing),
            Windowed::ResizeGrad { op, grad, image, spacing } => resized_grad(*op, grad, image, spacing),
        }
    }
}

#[allow(unsafe_code)]
unsafe fn convolution(op: ConvOp, views: [&View; 4], window: &Window, groups: usize) -> Result<()> {
    let [image, weights, result, room] = views;
    with_wide!("conv", float image.dtype(), T => {
        open!(T; ; room);
        match op {
            ConvOp::Result => {
                open!(T; image weights; result);
                conv::result(image, weights, result, room, window, groups);
            }
            ConvOp::Image => {
                open!(T; weights result; image);
                conv::image(result, weights, image, room, window, groups);
            }
            ConvOp::Weights => {
                open!(T; image result; weights);
                conv::weights(image, result, weights, room, window, groups);
            }
        }
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn unfold(image: &View, columns: &View, window: &Window) -> Result<()> {
    with_bits!(columns.dtype(), T => {
        open!(T; image; columns);
        conv::unfold(image, columns, window);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn fold(columns: &View, image: &View, window: &Window) -> Result<()> {
    with_sums!("fold", image.dtype(), T => {
        open!(T; columns; image);
        conv::fold(columns, image, window);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn pool(op: PoolOp, views: [&View; 2], ids: Option<&View>, window: &Window, adaptive: bool) -> Result<()> {
    let [image, dst] = views;
    match (op, ids) {
        (PoolOp::Mean, _) => with_wide!("avg_pool", float dst.dtype(), T => {
            open!(T; image; dst);
            pooling::mean(image, dst, window, adaptive);
        }),
        (PoolOp::Max, None) => with_wide!("max_pool", dst.dtype(), T => {
            open!(T; image; dst);
            pooling::max(image, dst, window, adaptive);
        }),
        (PoolOp::Max, Some(ids)) => with_wide!("max_pool", dst.dtype(), T => {
            open!(u32; ; ids);
            open!(T; image; dst);
            pooling::max_with_ids(image, dst, ids, window, adaptive);
        }),
    }
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn pool_grad(grad: &View, ids: Option<&View>, image: &View, window: &Window, adaptive: bool) -> Result<()> {
    with_wide!("pool", float image.dtype(), T => {
        open!(T; grad; image);
        match ids {
            None => pooling::mean_grad(grad, image, window, adaptive),
            Some(ids) => {
                open!(u32; ids;);
                pooling::max_grad(grad, ids, image, window.places());
            }
        }
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn resized(op: ResizeOp, image: &View, dst: &View, spacing: &Spacing) -> Result<()> {
    match op {
        ResizeOp::Nearest => with_bits!(dst.dtype(), T => {
            open!(T; image; dst);
            resize::nearest(image, dst);
        }),
        ResizeOp::Linear => with_wide!("upsample_bilinear2d", float dst.dtype(), T => {
            open!(T; image; dst);
            resize::linear(image, dst, spacing);
        }),
    }
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn resized_grad(op: ResizeOp, grad: &View, image: &View, spacing: &Spacing) -> Result<()> {
    with_wide!("upsample", float image.dtype(), T => {
        open!(T; grad; image);
        match op {
            ResizeOp::Nearest => resize::nearest_grad(grad, image),
            ResizeOp::Linear => resize::linear_grad(grad, image, spacing),
        }
    });
    Ok(())
}

/// Runs a kernel along an axis.
///
/// # Safety
/// As for [`super::run`].
#[allow(unsafe_code)]
pub(super) unsafe fn along(kernel: &Along<View<'_>>) -> Result<()> {
    // SAFETY: every function called here has the contract of this one, for the views of this kernel.
    unsafe {
        match kernel {
            Along::Scan { op, src, dst, ids, axis, reverse } => scanned(*op, [src, dst], ids.as_ref(), *axis, *reverse),
            Along::ProdGrad { src, grad, dst, axis } => prod_grad(src, grad, dst, *axis),
            Along::Norm { src, scale, shift, dst, eps, centred } => {
                let way = Evenly { eps: *eps, centred: *centred };
                norm([src, dst], scale.as_ref(), shift.as_ref(), way)
            }
            Along::NormGrad { src, grad, scale, dst, products, eps, centred } => {
                let way = Evenly { eps: *eps, centred: *centred };
                norm_grad([src, grad, dst, products], scale.as_ref(), way)
            }
        }
    }
}

#[allow(unsafe_code)]
unsafe fn scanned(op: ScanOp, views: [&View; 2], ids: Option<&View>, axis: usize, reverse: bool) -> Result<()> {
    let [src, dst] = views;
    with_wide!("scan", dst.dtype(), T => {
        open!(T; src; dst);
        match ids {
            None => scan::scan(op, src, dst, axis, reverse),
            Some(ids) => {
                open!(u32; ; ids);
                scan::scan_with_ids(op, src, dst, ids, axis);
            }
        }
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn prod_grad(src: &View, grad: &View, dst: &View, axis: usize) -> Result<()> {
    with_wide!("cumprod", float dst.dtype(), T => {
        open!(T; src grad; dst);
        scan::prod_grad(src, grad, dst, axis);
    });
    Ok(())
}

/// A list that may be there, as slices.
macro_rules! open_list {
    ($t:ty; $list:ident) => {
        let $list = match $list {
            Some(list) => {
                open!($t; list;);
                Some(list)
            }
            None => None,
        };
    };
}

#[allow(unsafe_code)]
unsafe fn norm(views: [&View; 2], scale: Option<&View>, shift: Option<&View>, way: Evenly) -> Result<()> {
    let [src, dst] = views;
    with_wide!("norm", float dst.dtype(), T => {
        open!(T; src; dst);
        open_list!(T; scale);
        open_list!(T; shift);
        norm::norm(src, scale, shift, dst, way);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn norm_grad(views: [&View; 4], scale: Option<&View>, way: Evenly) -> Result<()> {
    let [src, grad, dst, products] = views;
    with_wide!("norm", float dst.dtype(), T => {
        open!(T; src grad; dst products);
        open_list!(T; scale);
        norm::norm_grad(src, grad, scale, [dst, products], way);
    });
    Ok(())
}

/// Runs a kernel of bits.
///
/// # Safety
/// As for [`super::run`].
#[allow(unsafe_code)]
pub(super) unsafe fn of_bits(op: BitOp, lhs: &View, rhs: &View, dst: &View) -> Result<()> {
    let dtype = dst.dtype();
    with_bits!(dtype, T => {
        open!(T; lhs rhs; dst);
        bits::bits(op, lhs, rhs, dst, dtype);
    });
    Ok(())
}
