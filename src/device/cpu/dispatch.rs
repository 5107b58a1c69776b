//! Kernels of windows and along axes: their views as slices of the type of their dtype, as in `mod.rs`.

use super::{conv, source, target};
use crate::base::{
    dtype::{DType, with_type},
    error::{Error, Result},
};
use crate::device::kernel::{ConvOp, Kernel, View, Window};

/// Runs a kernel that belongs here.
///
/// # Safety
/// As for [`super::run`].
#[allow(unsafe_code)]
pub(super) unsafe fn run(kernel: &Kernel) -> Result<()> {
    // SAFETY: every function called here has the contract of this one, for the views of this kernel.
    unsafe {
        match kernel {
            Kernel::Conv { op, image, weights, result, room, window, groups } => {
                convolution(*op, [image, weights, result, room], window, *groups)
            }
            Kernel::Unfold { image, columns, window } => unfold(image, columns, window),
            Kernel::Fold { columns, image, window } => fold(columns, image, window),
            _ => Err(Error::msg("a kernel of another file")),
        }
    }
}

#[allow(unsafe_code)]
unsafe fn convolution(op: ConvOp, views: [&View; 4], window: &Window, groups: usize) -> Result<()> {
    let [image, weights, result, room] = views;
    with_float!("conv", image.dtype(), T => {
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
    with_type!(columns.dtype(), T => {
        open!(T; image; columns);
        conv::unfold(image, columns, window);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn fold(columns: &View, image: &View, window: &Window) -> Result<()> {
    with_type!(image.dtype(), T => {
        open!(T; columns; image);
        conv::fold(columns, image, window);
    });
    Ok(())
}
