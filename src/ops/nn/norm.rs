//! Normalisations: each row of the last axis made even in one pass, and the gradient in another.

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    call::Call,
    error::Result,
    shape::{D, Few, Shape},
};
use crate::device::{axiswise::Axiswise, kernel::Kernel};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    check,
    compose::{argument, composite, wrong_shape},
    exec::{adopt, both_or_none, device, enter, launch, output, pin, record, view},
};

/// What is asked for, beside the arrays.
#[derive(Clone, Copy)]
struct Normalisation {
    call: Call,
    eps: f64,
    centred: bool,
}

/// A parameter has one number for each entry of an axis.
fn fits(op: &'static str, parameter: &Shape, size: usize, what: &str) -> Result<()> {
    if *parameter.dims() == [size] {
        return Ok(());
    }
    check::same_shape(op, parameter, &Shape::from(size), &format!("{what} has one number for each entry"))
}

/// Rows of the last axis, whatever the others are.
fn over_last(x: &Proxy, lists: [Option<&Proxy>; 2], ask: Normalisation) -> Result<Proxy> {
    let shape = *x.shape();
    let columns = shape.dim(D::Minus1)?;
    let rows = shape.elem_count().checked_div(columns).unwrap_or(0);
    over_rows(&x.reshape((rows, columns))?, lists, ask)?.reshape(shape)
}

fn over_rows(x: &Proxy, [scale, shift]: [Option<&Proxy>; 2], ask: Normalisation) -> Result<Proxy> {
    let Normalisation { call, eps, centred } = ask;
    enter(call, |context| {
        // An absent list stands for the array itself, and is looked at no further.
        let pins = pin(context, call.op, [x, scale.unwrap_or(x), shift.unwrap_or(x)])?;
        let [a, s, h] = pins.arrays();
        check::float(call, a.dtype)?;
        let (_, columns) = a.layout.shape().dims2()?;
        let (with_scale, with_shift) = (scale.is_some(), shift.is_some());
        for (list, what) in [(with_scale.then_some(&s), "the scale"), (with_shift.then_some(&h), "the shift")] {
            let Some(list) = list else { continue };
            check::same_device(call, device(&a), device(list))?;
            check::same_dtype(call, &a, list)?;
            fits(call.op, list.layout.shape(), columns, what)?;
        }
        let out = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        let (scale, shift) = (with_scale.then(|| view(&s)), with_shift.then(|| view(&h)));
        let kernel = Axiswise::Norm { src: view(&a), scale, shift, dst: out.view(), eps, centred };
        launch(device(&a), &Kernel::Axiswise(kernel))?;
        let node = record(&[&a, &s, &h], || {
            let (of_x, of_scale) = (Saved::of(call, &a), with_scale.then(|| Saved::of(call, &s)));
            move |grad: &Proxy, needs: [bool; 3]| {
                let scale = of_scale.as_ref().map(Saved::get).transpose()?;
                let (dx, products) = gradient(&of_x.get()?, grad, scale.as_ref(), ask)?;
                let mut grads: Grads = [needs[0].then_some(dx), None, None];
                if with_scale && needs[1] {
                    grads[1] = Some(products.sum(0)?);
                }
                if with_shift && needs[2] {
                    grads[2] = Some(grad.sum(0)?);
                }
                Ok(grads)
            }
        });
        adopt(call, context, out, x, node)
    })
}

/// The gradient of the rows, and the gradient of the result times the even rows.
fn gradient(x: &Proxy, grad: &Proxy, scale: Option<&Proxy>, ask: Normalisation) -> Result<(Proxy, Proxy)> {
    let Normalisation { call, eps, centred } = ask;
    enter(call, |context| {
        let pins = pin(context, call.op, [x, grad, scale.unwrap_or(x)])?;
        let [a, g, s] = pins.arrays();
        let dst = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        let products = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        let kernel = Axiswise::NormGrad {
            src: view(&a),
            grad: view(&g),
            scale: scale.map(|_| view(&s)),
            dst: dst.view(),
            products: products.view(),
            eps,
            centred,
        };
        launch(device(&a), &Kernel::Axiswise(kernel))?;
        both_or_none(adopt(call, context, dst, x, None), |_| adopt(call, context, products, x, None))
    })
}

/// # Networks: normalisation
impl Proxy {
    /// The last axis with mean 0 and variance 1, times `scale`, plus `shift` (one number each for an entry). `eps` is
    /// added to the variance. With gradients of all.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), `DTypeMismatch`, `DeviceMismatch` of the parameters; as
    /// [`Proxy::mean`].
    #[track_caller]
    pub fn layer_norm(&self, scale: &Proxy, shift: &Proxy, eps: f64) -> Result<Proxy> {
        let call = Call::here("layer_norm");
        composite(call, self, &mut || {
            over_last(self, [Some(scale), Some(shift)], Normalisation { call, eps, centred: true })
        })
    }

    /// The last axis with mean square 1, times `scale` (one number for each entry). `eps` is added to the mean square.
    /// With gradients of both.
    ///
    /// # Errors
    /// As [`Proxy::layer_norm`].
    #[track_caller]
    pub fn rms_norm(&self, scale: &Proxy, eps: f64) -> Result<Proxy> {
        let call = Call::here("rms_norm");
        composite(call, self, &mut || over_last(self, [Some(scale), None], Normalisation { call, eps, centred: false }))
    }

    /// `[batch, channels, ..]` with mean 0 and variance 1 in each of `groups` groups of channels, times `scale`, plus
    /// `shift` (one number each for a channel). With gradients of all.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for fewer than three axes; [`Error::Argument`](crate::Error::Argument) if
    /// the groups do not divide the channels; as [`Proxy::layer_norm`].
    #[track_caller]
    pub fn group_norm(&self, groups: usize, scale: &Proxy, shift: &Proxy, eps: f64) -> Result<Proxy> {
        let call = Call::here("group_norm");
        composite(call, self, &mut || {
            let shape = *self.shape();
            let &[batch, channels, _, ..] = shape.dims() else {
                return wrong_shape(call, self, "at least three axes: batch, channels, ..");
            };
            if groups == 0 || !channels.is_multiple_of(groups) {
                return argument(call, "groups", groups, "a divisor of the channels");
            }
            fits(call.op, scale.shape(), channels, "the scale")?;
            fits(call.op, shift.shape(), channels, "the shift")?;
            let width = shape.dims()[2..].iter().product::<usize>() * (channels / groups);
            let each: Few = (0..shape.rank()).map(|axis| if axis == 1 { channels } else { 1 }).collect();
            let ask = Normalisation { call, eps, centred: true };
            let even = over_last(&self.reshape((batch, groups, width))?, [None; 2], ask)?.reshape(shape)?;
            even.broadcast_mul(&scale.reshape(each)?)?.broadcast_add(&shift.reshape(each)?)
        })
    }
}
