//! Kernels of windows that slide over images: convolutions, columns, pooling, other sizes. As `kernel.rs`, which has
//! them as one variant. `K` stands for the number of elements of a window, `L` for that of its output positions.

use crate::view::{
    Access::{self, Read, Write},
    kernels,
};

/// A window that slides over the three spatial axes of an image `[B, C, D, H, W]`; images with fewer have leading
/// axes of size 1.
///
/// Checked by `ops`: no size, stride or dilation is 0, and on each axis `(out - 1) * stride + dilation * (size - 1) +
/// 1` is at most the padded size, which fits an isize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub size: [usize; 3],
    pub stride: [usize; 3],
    pub padding: [usize; 3],
    pub dilation: [usize; 3],
    /// The output positions it takes along each axis.
    pub out: [usize; 3],
}

impl Window {
    /// Elements of the window.
    pub fn kernel_elems(&self) -> usize {
        self.size.iter().product()
    }

    /// The elements of an axis of `len` that it covers at a place. `adaptive`: the axis is divided among the places.
    pub fn span(&self, axis: usize, place: usize, len: usize, adaptive: bool) -> std::ops::Range<usize> {
        if adaptive {
            let at = |place: usize, up: u128| (place as u128 * len as u128 + up) / self.out[axis] as u128;
            return at(place, 0) as usize..at(place + 1, self.out[axis] as u128 - 1) as usize;
        }
        let (start, padding) = (place * self.stride[axis], self.padding[axis]);
        start.saturating_sub(padding)..(start + self.size[axis]).saturating_sub(padding).min(len)
    }

    /// Output positions that it takes.
    pub fn output_positions(&self) -> usize {
        self.out.iter().product()
    }
}

/// What becomes of the elements under a window. `Max` gives NaN if any is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolOp {
    Max,
    Mean,
}

/// How an image gets another size, along its last two axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeOp {
    /// The element at `floor(place * in / out)`.
    Nearest,
    /// Between the four nearest ones.
    Linear,
}

/// Where the places of a resized image lie on an axis of the old one: `(place + shift) * scale - shift`, at least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spacing {
    /// Along height and width.
    pub scale: [f64; 2],
    /// 0.5, or 0 if the corners lie on each other.
    pub shift: f64,
}

impl Spacing {
    /// The two elements of an axis of `len` that a place lies between, and how near it is to the second one.
    #[inline]
    pub fn between(&self, axis: usize, place: usize, len: usize) -> (usize, usize, f64) {
        let at = ((place as f64 + self.shift) * self.scale[axis] - self.shift).clamp(0.0, (len - 1) as f64);
        let first = at as usize;
        (first, (first + 1).min(len - 1), at - first as f64)
    }
}

/// Which of the three arrays of a convolution is computed from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvOp {
    /// The convolution.
    Result,
    /// The gradient of the image: the transposed convolution.
    Image,
    /// The gradient of the weights.
    Weights,
}

/// Sizes of a convolution, for each of its groups: `M` filters, `C` channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvSizes {
    pub batch: usize,
    pub groups: usize,
    pub filters: usize,
    pub channels: usize,
    pub kernel_elems: usize,
    /// Elements of a channel of the image.
    pub pixels: usize,
    pub positions: usize,
}

impl ConvSizes {
    pub fn new(image: &[usize], weights: &[usize], window: &Window, groups: usize) -> Self {
        ConvSizes {
            batch: image[0],
            groups,
            filters: weights[0] / groups,
            channels: weights[1],
            kernel_elems: window.kernel_elems(),
            pixels: image[2..].iter().product(),
            positions: window.output_positions(),
        }
    }

    /// Rows of the matrix of columns of one image and group.
    pub fn depth(&self) -> usize {
        self.channels * self.kernel_elems
    }

    /// Whether the window has one element and takes every place once, so that an image is its own matrix of columns.
    pub fn is_point(&self, window: &Window) -> bool {
        self.kernel_elems == 1 && self.positions == self.pixels && window.stride == [1; 3] && window.padding == [0; 3]
    }
}

/// What becomes of an array of a convolution.
fn of(op: &ConvOp, written: ConvOp) -> Access {
    if *op == written { Access::Write } else { Access::Read }
}

kernels! {
/// A kernel over images. Unless it says otherwise: `dst` is contiguous and shares no byte with a source.
pub enum Windowed {
    /// `result [B, G M, L] = ` sums of `weights [G M, C, K]` times what the window sees of
    /// `image [B, G C, pixels]`, all with three spatial axes; or one of the others, by the transposed sums. Floats.
    /// `result` and `weights` are contiguous, `image` only if it is written. `scratch` has as many
    /// elements as `Device::conv_scratch` says.
    Conv "conv", { op: ConvOp, window: Window, groups: usize } (
        image: of(op, ConvOp::Image),
        weights: of(op, ConvOp::Weights),
        result: of(op, ConvOp::Result),
        scratch: Write
    );
    /// `columns [B, C K, L] = ` what the window sees of `image`, 0 outside it.
    Unfold "unfold", { window: Window } (image: Read, columns: Write);
    /// `image = ` the sum of what each of its elements gave to `columns`.
    Fold "fold", { window: Window } (columns: Read, image: Write);
    /// `dst [B, C, L]` from what lies under the window on `image [B, C, pixels]`, and in `ids` (u32) where the first
    /// largest element lies in its channel. Every place covers an element. `Mean`: floats.
    Pool "pool", { op: PoolOp, window: Window, adaptive: bool } (image: Read, dst: Write) (ids: Write);
    /// The gradient of an image from `grad [B, C, L]`: of `Max` if there are `ids`, else of `Mean`. All contiguous.
    PoolGrad "pool_grad", { window: Window, adaptive: bool } (grad: Read, image: Write) (ids: Read);
    /// `dst [B, C, h, w]` from `image [B, C, H, W]`, neither of them empty. `Linear`: floats.
    Resize "resize", { op: ResizeOp, spacing: Spacing } (image: Read, dst: Write);
    /// The gradient of an image from `grad [B, C, h, w]`, contiguous, as is `image`.
    ResizeGrad "resize_grad", { op: ResizeOp, spacing: Spacing } (grad: Read, image: Write);
}
}
