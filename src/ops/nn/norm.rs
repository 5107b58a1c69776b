//! Normalisations: each row of the last axis made even in one pass, and the gradient in another.

use std::panic::Location;

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    error::{Result, Site},
    shape::{D, Few, Shape},
};
use crate::device::{along::Along, kernel::Kernel};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    check,
    compose::{argument, misshapen, whole},
    exec::{adopt, call, device, fresh, launch, pin, record, view},
};

/// What is asked for, beside the arrays.
#[derive(Clone, Copy)]
struct Ask {
    op: &'static str,
    site: Site,
    eps: f64,
    centred: bool,
}

/// A parameter has one number for each entry of an axis.
fn fits(op: &'static str, parameter: &Proxy, size: usize, what: &str) -> Result<()> {
    if *parameter.dims() == [size] {
        return Ok(());
    }
    check::same_shape(op, parameter.shape(), &Shape::from(size), &format!("{what} has one number for each entry"))
}

/// Rows of the last axis, whatever the others are.
fn over_last(x: &Proxy, lists: [Option<&Proxy>; 2], ask: Ask) -> Result<Proxy> {
    let shape = *x.shape();
    let columns = shape.dim(D::Minus1)?;
    let rows = shape.elem_count().checked_div(columns).unwrap_or(0);
    over_rows(&x.reshape((rows, columns))?, lists, ask)?.reshape(shape)
}

fn over_rows(x: &Proxy, [scale, shift]: [Option<&Proxy>; 2], ask: Ask) -> Result<Proxy> {
    let Ask { op, site, eps, centred } = ask;
    call(op, site, |local| {
        // An absent list stands for the array itself, and is looked at no further.
        let pins = pin(local, op, [x, scale.unwrap_or(x), shift.unwrap_or(x)])?;
        let [a, s, h] = pins.arrays();
        check::float(op, a.dtype)?;
        for list in [&s, &h] {
            check::same_device(op, device(&a), device(list))?;
            check::same_dtype(op, &a, list)?;
        }
        let (with_scale, with_shift) = (scale.is_some(), shift.is_some());
        let out = fresh(local, op, device(&a), a.dtype, a.layout.shape(), false)?;
        let (scale, shift) = (with_scale.then(|| view(&s)), with_shift.then(|| view(&h)));
        let kernel = Along::Norm { src: view(&a), scale, shift, dst: out.view(), eps, centred };
        launch(device(&a), &Kernel::Along(kernel))?;
        let node = record(&[&a, &s, &h], || {
            let (of_x, of_scale) = (Saved::of(&a, op, site), with_scale.then(|| Saved::of(&s, op, site)));
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
        adopt(local, op, out, x, node, site)
    })
}

/// The gradient of the rows, and the gradient of the result times the even rows.
fn gradient(x: &Proxy, grad: &Proxy, scale: Option<&Proxy>, ask: Ask) -> Result<(Proxy, Proxy)> {
    let Ask { op, site, eps, centred } = ask;
    call(op, site, |local| {
        let pins = pin(local, op, [x, grad, scale.unwrap_or(x)])?;
        let [a, g, s] = pins.arrays();
        let dst = fresh(local, op, device(&a), a.dtype, a.layout.shape(), false)?;
        let products = fresh(local, op, device(&a), a.dtype, a.layout.shape(), false)?;
        let kernel = Along::NormGrad {
            src: view(&a),
            grad: view(&g),
            scale: scale.map(|_| view(&s)),
            dst: dst.view(),
            products: products.view(),
            eps,
            centred,
        };
        launch(device(&a), &Kernel::Along(kernel))?;
        Ok((adopt(local, op, dst, x, None, site)?, adopt(local, op, products, x, None, site)?))
    })
}

impl Proxy {
    /// The last axis with mean 0 and variance 1, times `scale`, plus `shift` (one number each for an entry). `eps` is
    /// added to the variance. With gradients of all.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), `DTypeMismatch`, `DeviceMismatch` of the parameters; as
    /// [`Proxy::mean`].
    #[track_caller]
    pub fn layer_norm(&self, scale: &Proxy, shift: &Proxy, eps: f64) -> Result<Proxy> {
        let (op, site) = ("layer_norm", Location::caller());
        whole(op, site, self, || {
            let size = self.dim(D::Minus1)?;
            fits(op, scale, size, "the scale")?;
            fits(op, shift, size, "the shift")?;
            over_last(self, [Some(scale), Some(shift)], Ask { op, site, eps, centred: true })
        })
    }

    /// The last axis with mean square 1, times `scale` (one number for each entry). `eps` is added to the mean square.
    /// With gradients of both.
    ///
    /// # Errors
    /// As [`Proxy::layer_norm`].
    #[track_caller]
    pub fn rms_norm(&self, scale: &Proxy, eps: f64) -> Result<Proxy> {
        let (op, site) = ("rms_norm", Location::caller());
        whole(op, site, self, || {
            fits(op, scale, self.dim(D::Minus1)?, "the scale")?;
            over_last(self, [Some(scale), None], Ask { op, site, eps, centred: false })
        })
    }

    /// `[batch, channels, ..]` with mean 0 and variance 1 in each of `groups` groups of channels, times `scale`, plus
    /// `shift` (one number each for a channel). With gradients of all.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for fewer than three axes; [`Error::Argument`](crate::Error::Argument) if the groups do not divide the channels; as
    /// [`Proxy::layer_norm`].
    #[track_caller]
    pub fn group_norm(&self, groups: usize, scale: &Proxy, shift: &Proxy, eps: f64) -> Result<Proxy> {
        let (op, site) = ("group_norm", Location::caller());
        whole(op, site, self, || {
            let shape = *self.shape();
            let &[batch, channels, _, ..] = shape.dims() else {
                return misshapen(op, self, "at least three axes: batch, channels, ..");
            };
            if groups == 0 || !channels.is_multiple_of(groups) {
                return argument(op, "groups", groups, "a divisor of the channels");
            }
            fits(op, scale, channels, "the scale")?;
            fits(op, shift, channels, "the shift")?;
            let width = shape.dims()[2..].iter().product::<usize>() * (channels / groups);
            let each: Few = (0..shape.rank()).map(|axis| if axis == 1 { channels } else { 1 }).collect();
            let ask = Ask { op, site, eps, centred: true };
            let even = over_last(&self.reshape((batch, groups, width))?, [None; 2], ask)?.reshape(shape)?;
            even.broadcast_mul(&scale.reshape(each)?)?.broadcast_add(&shift.reshape(each)?)
        })
    }
}
