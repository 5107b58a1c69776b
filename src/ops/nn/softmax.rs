//! Softmax, its logarithm, and the cross entropy: in one pass each, stable for large values.

use std::panic::Location;

use crate::array::autograd::Saved;
use crate::base::{
    error::{Error, Result, Site},
    shape::{Dim, Shape},
};
use crate::device::kernel::Kernel;
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        exec::{adopt, call, composed, device, fresh, launch, pin, record, view},
    },
    elementwise::unary::one,
    index::select::readable,
};

impl Proxy {
    /// `e^x / sum(e^x)` along an axis. Floats; the result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`], [`Error::UnsupportedDType`], [`Error::StaleArray`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn softmax<A: Dim>(&self, dim: A) -> Result<Proxy> {
        along(self, dim, false, "softmax", Location::caller())
    }

    /// `x - log(sum(e^x))` along an axis.
    ///
    /// # Errors
    /// As [`Proxy::softmax`].
    #[track_caller]
    pub fn log_softmax<A: Dim>(&self, dim: A) -> Result<Proxy> {
        along(self, dim, true, "log_softmax", Location::caller())
    }

    /// The mean over rows of `-log_softmax(x)[label]`: `[rows, classes]` and labels `[rows]` of integers to
    /// a scalar. The result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::ShapeMismatch`]; [`Error::IndexOutOfRange`] for a label that is no class;
    /// [`Error::UnsupportedDType`]; as [`Proxy::softmax`].
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Proxy) -> Result<Proxy> {
        let (name, site) = ("cross_entropy", Location::caller());
        let converted = readable(labels)?;
        let labels = converted.as_ref().unwrap_or(labels);
        call(name, site, |local| {
            let pins = pin(local, name, [self, labels])?;
            let [x, l] = pins.arrays();
            check::same_device(name, device(&x), device(&l))?;
            check::float(name, x.dtype)?;
            check::index(name, &l)?;
            let shape = *x.layout.shape();
            if shape.rank() != 2 || shape.elem_count() == 0 {
                let expected = "[rows, classes] with at least one of each".into();
                return Err(Error::Shape { op: name, found: shape.dims().to_vec(), expected });
            }
            check::same_shape(name, l.layout.shape(), &Shape::from(shape.dims()[0]), "one label a row is needed")?;
            let probs = fresh(local, name, device(&x), x.dtype, &shape, false)?;
            let loss = fresh(local, name, device(&x), x.dtype, &Shape::SCALAR, false)?;
            let kernel =
                Kernel::CrossEntropy { logits: view(&x), labels: view(&l), probs: probs.view(), loss: loss.view() };
            launch(device(&x), &kernel)?;
            let node = record(&[&x], || {
                let probs = Saved::new(&probs.storage, probs.dtype, probs.layout, name, site);
                let labels = Saved::of(&l, name, site);
                move |grad: &Proxy, _| Ok(one(cross_entropy_grad(&probs.get()?, &labels.get()?, grad, site)?))
            });
            adopt(local, name, loss, self, node, site)
        })
    }
}

fn cross_entropy_grad(probs: &Proxy, labels: &Proxy, grad: &Proxy, site: Site) -> Result<Proxy> {
    let name = "cross_entropy";
    call(name, site, |local| {
        let pins = pin(local, name, [probs, labels, grad])?;
        let [p, l, g] = pins.arrays();
        let out = fresh(local, name, device(&p), p.dtype, p.layout.shape(), false)?;
        let kernel = Kernel::CrossEntropyGrad { probs: view(&p), labels: view(&l), grad: view(&g), dst: out.view() };
        launch(device(&p), &kernel)?;
        adopt(local, name, out, probs, None, site)
    })
}

/// Over any axis: the last one directly, another one moved to the end and back.
fn along<A: Dim>(src: &Proxy, dim: A, log: bool, name: &'static str, site: Site) -> Result<Proxy> {
    let shape = *src.shape();
    if shape.rank() == 0 {
        return composed(name, site, src, &mut || over_last(&src.reshape(1)?, log, name, site)?.reshape(()));
    }
    let (axis, last) = (dim.to_index(&shape, name)?, shape.rank() - 1);
    if axis == last && shape.rank() == 2 {
        return over_rows(src, log, name, site);
    }
    composed(name, site, src, &mut || match axis == last {
        true => over_last(src, log, name, site),
        false => over_last(&src.transpose(axis, last)?, log, name, site)?.transpose(axis, last),
    })
}

fn over_last(src: &Proxy, log: bool, name: &'static str, site: Site) -> Result<Proxy> {
    let shape = *src.shape();
    let columns = shape.dims()[shape.rank() - 1];
    let rows = shape.elem_count().checked_div(columns).unwrap_or(0);
    over_rows(&src.reshape((rows, columns))?, log, name, site)?.reshape(shape)
}

fn over_rows(src: &Proxy, log: bool, name: &'static str, site: Site) -> Result<Proxy> {
    call(name, site, |local| {
        let pins = pin(local, name, [src])?;
        let [x] = pins.arrays();
        check::float(name, x.dtype)?;
        let out = fresh(local, name, device(&x), x.dtype, x.layout.shape(), false)?;
        launch(device(&x), &Kernel::Softmax { src: view(&x), dst: out.view(), log })?;
        let node = record(&[&x], || {
            let saved = Saved::new(&out.storage, out.dtype, out.layout, name, site);
            move |grad: &Proxy, _| Ok(one(softmax_grad(&saved.get()?, grad, log, name, site)?))
        });
        adopt(local, name, out, src, node, site)
    })
}

fn softmax_grad(out: &Proxy, grad: &Proxy, log: bool, name: &'static str, site: Site) -> Result<Proxy> {
    call(name, site, |local| {
        let pins = pin(local, name, [out, grad])?;
        let [o, g] = pins.arrays();
        let dst = fresh(local, name, device(&o), o.dtype, o.layout.shape(), false)?;
        let kernel = Kernel::SoftmaxGrad { out: view(&o), grad: view(&g), dst: dst.view(), log };
        launch(device(&o), &kernel)?;
        adopt(local, name, dst, grad, None, site)
    })
}
