//! Images of other sizes.

use crate::base::{
    call::Call,
    error::{Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    kernel::Kernel,
    window::{ResizeOp, Spacing, Windowed},
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::argument,
        exec::{adopt, device, enter, launch, output, pin, record, view_as},
    },
    elementwise::unary::one,
};

#[derive(Clone, Copy)]
struct Resize {
    call: Call,
    op: ResizeOp,
}

/// With height and width.
fn image_of(mut layout: Layout) -> Layout {
    while layout.shape().rank() < 4 {
        layout = layout.unsqueeze(2);
    }
    layout
}

/// The last axes as `out`, each with its scale.
fn resize(x: &Proxy, out: &[usize], ask: Resize, spacing: &dyn Fn(&[usize]) -> Result<Spacing>) -> Result<Proxy> {
    let Resize { op, call } = ask;
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        if op == ResizeOp::Linear {
            check::float(call, a.dtype)?;
        }
        let from = *a.layout.shape();
        let is_image = from.rank() == out.len() + 2;
        if !is_image || from.dims()[2..].iter().zip(out).any(|(&len, &out)| len == 0 && out > 0) {
            let form = ["", "[batch, channels, length]", "[batch, channels, height, width]"][out.len()];
            let expected = format!("{form} with at least one element along each resized axis");
            return Err(Error::shape(call, from.dims(), expected));
        }
        let shape = out.iter().enumerate().fold(from, |shape, (i, &size)| shape.with_dim(i + 2, size));
        let spacing = spacing(&from.dims()[2..])?;
        let dst = output(context, call.op, device(&a), a.dtype, &shape, false)?;
        if shape.elem_count() > 0 {
            let [from, to] = [*a.layout, dst.layout].map(image_of);
            let kernel = Windowed::Resize { op, image: view_as(&a, &from), dst: dst.view_as(&to), spacing };
            launch(device(&a), &Kernel::Windowed(kernel))?;
        }
        let node = record(&[&a], || move |grad: &Proxy, _: [bool; 3]| Ok(one(gradient(ask, grad, &from, spacing)?)));
        adopt(call, context, dst, x, node)
    })
}

fn gradient(ask: Resize, grad: &Proxy, image: &Shape, spacing: Spacing) -> Result<Proxy> {
    let grad = grad.contiguous()?;
    enter(ask.call, |context| {
        let pins = pin(context, ask.call.op, [&grad])?;
        let [g] = pins.arrays();
        let is_empty = g.layout.shape().elem_count() == 0;
        let out = output(context, ask.call.op, device(&g), g.dtype, image, is_empty)?;
        if !is_empty {
            let [from, to] = [*g.layout, out.layout].map(image_of);
            let kernel =
                Windowed::ResizeGrad { op: ask.op, grad: view_as(&g, &from), image: out.view_as(&to), spacing };
            launch(device(&g), &Kernel::Windowed(kernel))?;
        }
        adopt(ask.call, context, out, &grad, None)
    })
}

/// No spacing: the nearest element is found in whole numbers.
fn whole_numbers(_: &[usize]) -> Result<Spacing> {
    Ok(Spacing { scale: [1.0; 2], shift: 0.0 })
}

macro_rules! nearest {
    ($($(#[$doc:meta])* $name:ident, $($size:ident)+;)*) => {
        /// # Networks: other sizes by the nearest element
        impl Proxy {
            $(
                $(#[$doc])*
                ///
                /// Place `i` of `n` shows element `floor(i * len / n)`. Of any dtype, with a gradient; the result
                /// belongs to the owner of this array.
                ///
                /// # Errors
                /// [`Error::Shape`] for another number of axes, or an axis without elements; [`Error::SizeOverflow`],
                /// [`Error::StaleArray`], [`Error::OutOfMemory`].
                #[track_caller]
                pub fn $name(&self, $($size: usize),+) -> Result<Proxy> {
                    let ask = Resize { op: ResizeOp::Nearest, call: Call::here(stringify!($name)) };
                    resize(self, &[$($size),+], ask, &whole_numbers)
                }
            )*
        }
    };
}

nearest! {
    /// `[batch, channels, length]` with another length, by the nearest element.
    interpolate1d, target_size;
    /// Alias of [`Proxy::interpolate1d`]: candle's other name.
    upsample_nearest1d, target_size;
    /// `[batch, channels, height, width]` with another height and width, by the nearest element.
    interpolate2d, target_h target_w;
    /// Alias of [`Proxy::interpolate2d`]: candle's other name.
    upsample_nearest2d, target_h target_w;
}

/// # Networks: other sizes by interpolation
impl Proxy {
    /// `[batch, channels, height, width]` with another height and width, each element between the four nearest ones.
    ///
    /// Elements are the middles of equal squares; with `align_corners` those at the corners stay where they are.
    /// Floats, with a gradient; the result belongs to the owner of this array.
    ///
    /// # Errors
    /// As [`Proxy::interpolate2d`]; [`Error::UnsupportedDType`] for integers.
    #[track_caller]
    pub fn upsample_bilinear2d(&self, target_h: usize, target_w: usize, align_corners: bool) -> Result<Proxy> {
        let ask = Resize { op: ResizeOp::Linear, call: Call::here("upsample_bilinear2d") };
        let out = [target_h, target_w];
        resize(self, &out, ask, &|dims| Ok(linear(dims, out, None, align_corners)))
    }

    /// As [`Proxy::upsample_bilinear2d`], to `floor(height * scale_h)` and `floor(width * scale_w)`; the places lie
    /// `1 / scale` apart. Scales that leave the size leave the elements.
    ///
    /// # Errors
    /// As there; [`Error::Argument`] for a scale that is not positive and finite, or gives no size.
    #[track_caller]
    pub fn upsample_bilinear2d_with_scale(&self, scale_h: f64, scale_w: f64, align_corners: bool) -> Result<Proxy> {
        let ask = Resize { op: ResizeOp::Linear, call: Call::here("upsample_bilinear2d_with_scale") };
        let shape = *self.shape();
        let &[_, _, height, width] = shape.dims() else {
            return Err(Error::shape(ask.call, shape.dims(), "[batch, channels, height, width]"));
        };
        let scaled = |what: &'static str, len: usize, scale: f64| {
            let size = (len as f64 * scale).floor();
            let is_size = size < isize::MAX as f64 && (size >= 1.0 || len == 0);
            match scale > 0.0 && scale.is_finite() && is_size {
                true => Ok(size as usize),
                false => argument(ask.call, what, scale, "a positive number that gives a size"),
            }
        };
        let out = [scaled("scale_h", height, scale_h)?, scaled("scale_w", width, scale_w)?];
        // Of its own size: its elements, also where the factors would shift them.
        let scales = (out != [height, width]).then_some([scale_h, scale_w]);
        resize(self, &out, ask, &|dims| Ok(linear(dims, out, scales, align_corners)))
    }
}

fn linear(dims: &[usize], out: [usize; 2], scales: Option<[f64; 2]>, align_corners: bool) -> Spacing {
    let scale = std::array::from_fn(|i| match (align_corners, scales) {
        (true, _) if out[i] > 1 => dims[i].saturating_sub(1) as f64 / (out[i] - 1) as f64,
        (true, _) => 0.0,
        (false, Some(scales)) => 1.0 / scales[i],
        (false, None) => dims[i] as f64 / out[i].max(1) as f64,
    });
    Spacing { scale, shift: if align_corners { 0.0 } else { 0.5 } }
}
