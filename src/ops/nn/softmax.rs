//! Softmax, its logarithm, and the cross entropy: in one pass each, stable for large values.

use crate::array::autograd::Saved;
use crate::base::{
    call::Call,
    error::{Error, Result},
    shape::{D, Dim, Shape},
};
use crate::device::kernel::Kernel;
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        exec::{adopt, aside, compose, device, enter, launch, output, pin, record, view},
    },
    elementwise::unary::one,
    index::select::readable,
};

/// # Networks: softmax and its loss
impl Proxy {
    /// `e^x / sum(e^x)` along an axis, of a scalar 0 or -1. Floats; the result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`], [`Error::UnsupportedDType`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn softmax<A: Dim>(&self, dim: A) -> Result<Proxy> {
        over_axis(Call::here("softmax"), self, dim, false)
    }

    /// `x - log(sum(e^x))` along an axis.
    ///
    /// # Errors
    /// As [`Proxy::softmax`].
    #[track_caller]
    pub fn log_softmax<A: Dim>(&self, dim: A) -> Result<Proxy> {
        over_axis(Call::here("log_softmax"), self, dim, true)
    }

    /// The mean over rows of `-log_softmax(x)[label]`: `[rows, classes]` and labels `[rows]` of integers to
    /// a scalar. The result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::ShapeMismatch`]; [`Error::IndexOutOfRange`] for a label that is no class;
    /// [`Error::UnsupportedDType`]; as [`Proxy::softmax`].
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Proxy) -> Result<Proxy> {
        let call = Call::here("cross_entropy");
        let converted = readable(labels, &|| None)?;
        let labels = converted.as_ref().unwrap_or(labels);
        enter(call, |context| {
            let pins = pin(context, call.op, [self, labels])?;
            let [x, l] = pins.arrays();
            check::same_device(call, device(&x), device(&l))?;
            check::float(call, x.dtype)?;
            check::index(call, &l)?;
            let shape = *x.layout.shape();
            if shape.rank() != 2 || shape.elem_count() == 0 {
                return Err(Error::shape(call, shape.dims(), "[rows, classes] with at least one of each"));
            }
            check::same_shape(call, l.layout.shape(), &Shape::from(shape.dims()[0]), "one label a row is needed")?;
            let probs = aside(context, call.op, device(&x), x.dtype, &shape)?;
            let loss = output(context, call.op, device(&x), x.dtype, &Shape::SCALAR, false)?;
            let kernel =
                Kernel::CrossEntropy { logits: view(&x), labels: view(&l), probs: probs.view(), loss: loss.view() };
            launch(device(&x), &kernel)?;
            let node = record(&[&x], || {
                let probs = Saved::new(call, &probs.storage, probs.dtype, probs.layout);
                let labels = Saved::of(call, &l);
                move |grad: &Proxy, _| Ok(one(cross_entropy_grad(call, &probs.get()?, &labels.get()?, grad)?))
            });
            adopt(call, context, loss, self, node)
        })
    }
}

fn cross_entropy_grad(call: Call, probs: &Proxy, labels: &Proxy, grad: &Proxy) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [probs, labels, grad])?;
        let [p, l, g] = pins.arrays();
        let out = output(context, call.op, device(&p), p.dtype, p.layout.shape(), false)?;
        let kernel = Kernel::CrossEntropyGrad { probs: view(&p), labels: view(&l), grad: view(&g), dst: out.view() };
        launch(device(&p), &kernel)?;
        adopt(call, context, out, probs, None)
    })
}

/// Over any axis: the last one directly, another one moved to the end and back.
fn over_axis<A: Dim>(call: Call, src: &Proxy, dim: A, log: bool) -> Result<Proxy> {
    let shape = *src.shape();
    if shape.rank() == 0 {
        // As of one axis, which the only element has to itself.
        call.axis(dim, &Shape::from(1usize))?;
        return compose(call, src, &mut || over_last(call, &src.reshape(1)?, log)?.reshape(()));
    }
    let (axis, last) = (call.axis(dim, &shape)?, shape.rank() - 1);
    if axis == last && shape.rank() == 2 {
        return over_rows(call, src, log);
    }
    compose(call, src, &mut || match axis == last {
        true => over_last(call, src, log),
        false => over_last(call, &src.transpose(axis, last)?, log)?.transpose(axis, last),
    })
}

fn over_last(call: Call, src: &Proxy, log: bool) -> Result<Proxy> {
    let shape = *src.shape();
    let columns = shape.dim(D::Minus1)?;
    let rows = shape.elem_count().checked_div(columns).unwrap_or(0);
    over_rows(call, &src.reshape((rows, columns))?, log)?.reshape(shape)
}

fn over_rows(call: Call, src: &Proxy, log: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [src])?;
        let [x] = pins.arrays();
        check::float(call, x.dtype)?;
        x.layout.shape().dims2()?;
        let out = output(context, call.op, device(&x), x.dtype, x.layout.shape(), false)?;
        launch(device(&x), &Kernel::Softmax { src: view(&x), dst: out.view(), log })?;
        let node = record(&[&x], || {
            let saved = Saved::new(call, &out.storage, out.dtype, out.layout);
            move |grad: &Proxy, _| Ok(one(softmax_grad(call, &saved.get()?, grad, log)?))
        });
        adopt(call, context, out, src, node)
    })
}

fn softmax_grad(call: Call, out: &Proxy, grad: &Proxy, log: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [out, grad])?;
        let [o, g] = pins.arrays();
        let dst = output(context, call.op, device(&o), o.dtype, o.layout.shape(), false)?;
        let kernel = Kernel::SoftmaxGrad { out: view(&o), grad: view(&g), dst: dst.view(), log };
        launch(device(&o), &kernel)?;
        adopt(call, context, dst, grad, None)
    })
}
