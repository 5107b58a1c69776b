//! Kernels of windows and along axes, with the types of their dtypes, as in `typed.rs`.

use super::{
    bits, conv,
    norm::{self, Evenly},
    operand::{Dst, In, Out, Src},
    pooling, resize, scan,
};
use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::cpu::{
    compute_copy::compute_dtype,
    types::{open, with_bits, with_sums, with_wide},
};
use crate::{
    axiswise::ScanOp,
    kernel::{BitOp, View},
    window::{ResizeOp, Spacing, Window, Windowed},
};

/// Whether operands of low precision of a kernel over images are widened: not where elements only move, nor sums of
/// integers, which are those of their bits.
pub(super) fn is_widened(kernel: &Windowed<View<'_>>) -> bool {
    match kernel {
        Windowed::Unfold { .. } | Windowed::Resize { op: ResizeOp::Nearest, .. } => false,
        Windowed::Fold { image, .. } => compute_dtype(image.dtype()) == Some(DType::F32),
        Windowed::Conv { image: any, .. }
        | Windowed::Pool { image: any, .. }
        | Windowed::PoolGrad { grad: any, .. }
        | Windowed::Resize { image: any, .. }
        | Windowed::ResizeGrad { grad: any, .. } => compute_dtype(any.dtype()).is_some(),
    }
}

pub(super) fn conv_result(
    [image, weights]: [Src; 2],
    [result, scratch]: [Dst; 2],
    window: &Window,
    groups: usize,
) -> Result<()> {
    with_wide!("conv", float image.dtype(), T => {
        open!(T; image weights; result scratch);
        conv::result(image, weights, result, scratch, window, groups);
    });
    Ok(())
}

pub(super) fn conv_image(
    [weights, result]: [Src; 2],
    [image, scratch]: [Dst; 2],
    window: &Window,
    groups: usize,
) -> Result<()> {
    with_wide!("conv", float image.dtype(), T => {
        open!(T; weights result; image scratch);
        conv::image(result, weights, image, scratch, window, groups);
    });
    Ok(())
}

pub(super) fn conv_weights(
    [image, result]: [Src; 2],
    [weights, scratch]: [Dst; 2],
    window: &Window,
    groups: usize,
) -> Result<()> {
    with_wide!("conv", float image.dtype(), T => {
        open!(T; image result; weights scratch);
        conv::weights(image, result, weights, scratch, window, groups);
    });
    Ok(())
}

pub(super) fn unfold(image: Src, columns: Dst, window: &Window) -> Result<()> {
    with_bits!(columns.dtype(), T => {
        open!(T; image; columns);
        conv::unfold(image, columns, window);
    });
    Ok(())
}

pub(super) fn fold(columns: Src, image: Dst, window: &Window) -> Result<()> {
    with_sums!("fold", image.dtype(), T => {
        open!(T; columns; image);
        conv::fold(columns, image, window);
    });
    Ok(())
}

pub(super) fn mean_pool(image: Src, dst: Dst, window: &Window, adaptive: bool) -> Result<()> {
    with_wide!("avg_pool", float dst.dtype(), T => {
        open!(T; image; dst);
        pooling::mean(image, dst, window, adaptive);
    });
    Ok(())
}

pub(super) fn max_pool(image: Src, dst: Dst, ids: Option<Dst>, window: &Window, adaptive: bool) -> Result<()> {
    with_wide!("max_pool", dst.dtype(), T => {
        open!(T; image; dst);
        match ids {
            None => pooling::max(image, dst, window, adaptive),
            Some(ids) => {
                open!(u32; ; ids);
                pooling::max_with_ids(image, dst, ids, window, adaptive);
            }
        }
    });
    Ok(())
}

pub(super) fn pool_grad(grad: Src, ids: Option<Src>, image: Dst, window: &Window, adaptive: bool) -> Result<()> {
    with_wide!("pool", float image.dtype(), T => {
        open!(T; grad; image);
        match ids {
            None => pooling::mean_grad(grad, image, window, adaptive),
            Some(ids) => {
                open!(u32; ids;);
                pooling::max_grad(grad, ids, image, window.output_positions());
            }
        }
    });
    Ok(())
}

pub(super) fn resized(op: ResizeOp, image: Src, dst: Dst, spacing: &Spacing) -> Result<()> {
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

pub(super) fn resized_grad(op: ResizeOp, grad: Src, image: Dst, spacing: &Spacing) -> Result<()> {
    with_wide!("upsample", float image.dtype(), T => {
        open!(T; grad; image);
        match op {
            ResizeOp::Nearest => resize::nearest_grad(grad, image),
            ResizeOp::Linear => resize::linear_grad(grad, image, spacing),
        }
    });
    Ok(())
}

pub(super) fn scanned(op: ScanOp, src: Src, dst: Dst, ids: Option<Dst>, axis: usize, reverse: bool) -> Result<()> {
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

pub(super) fn prod_grad(src: Src, grad: Src, dst: Dst, axis: usize) -> Result<()> {
    with_wide!("cumprod", float dst.dtype(), T => {
        open!(T; src grad; dst);
        scan::prod_grad(src, grad, dst, axis)
    })
}

pub(super) fn norm(src: Src, dst: Dst, scale: Option<Src>, shift: Option<Src>, way: Evenly) -> Result<()> {
    with_wide!("norm", float dst.dtype(), T => {
        open!(T; src; dst);
        norm::norm(src, scale.map(In::of), shift.map(In::of), dst, way);
    });
    Ok(())
}

pub(super) fn norm_grad(
    [src, grad]: [Src; 2],
    scale: Option<Src>,
    [dst, products]: [Dst; 2],
    way: Evenly,
) -> Result<()> {
    with_wide!("norm", float dst.dtype(), T => {
        open!(T; src grad; dst products);
        norm::norm_grad(src, grad, scale.map(In::of), [dst, products], way);
    });
    Ok(())
}

pub(super) fn of_bits(op: BitOp, lhs: Src, rhs: Src, dst: Dst) -> Result<()> {
    let dtype = dst.dtype();
    with_bits!(dtype, T => {
        open!(T; lhs rhs; dst);
        bits::bits(op, lhs, rhs, dst, dtype);
    });
    Ok(())
}
