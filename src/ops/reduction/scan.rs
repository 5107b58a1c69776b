//! Running sums, products, extremes and logarithms of sums along an axis, in one pass.

use crate::array::autograd::Saved;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
    shape::{Dim, Shape},
};
use crate::device::{
    axiswise::{Axiswise, ScanOp},
    kernel::Kernel,
};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{composite, in_single, single},
        exec::{adopt, both_or_none, device, enter, launch, output, pin, record, view},
    },
    elementwise::unary::one,
};

/// Each element and all before it, or all behind it.
fn sums(call: Call, x: &Proxy, dim: impl Dim, reverse: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        check::number(call, a.dtype)?;
        let axis = call.axis(dim, a.layout.shape())?;
        let out = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        let kernel = Axiswise::Scan { op: ScanOp::Sum, src: view(&a), dst: out.view(), ids: None, axis, reverse };
        launch(device(&a), &Kernel::Axiswise(kernel))?;
        let node = record(&[&a], || move |grad: &Proxy, _: [bool; 3]| Ok(one(sums(call, grad, axis, !reverse)?)));
        adopt(call, context, out, x, node)
    })
}

fn products_grad(call: Call, x: &Proxy, grad: &Proxy, axis: usize) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [x, grad])?;
        let [a, g] = pins.arrays();
        let out = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        let kernel = Axiswise::ProdGrad { src: view(&a), grad: view(&g), dst: out.view(), axis };
        launch(device(&a), &Kernel::Axiswise(kernel))?;
        adopt(call, context, out, x, None)
    })
}

/// The logarithm of the sum of `e^x` of each element and all before it, or all behind it.
fn log_sums(call: Call, x: &Proxy, dim: impl Dim, reverse: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        check::float(call, a.dtype)?;
        let axis = call.axis(dim, a.layout.shape())?;
        let out = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
        let (op, src, dst) = (ScanOp::LogSumExp, view(&a), out.view());
        launch(device(&a), &Kernel::Axiswise(Axiswise::Scan { op, src, dst, ids: None, axis, reverse }))?;
        let node = record(&[&a], || {
            let saved = Saved::of(call, &a);
            move |grad: &Proxy, _: [bool; 3]| Ok(one(log_sums_grad(call, &saved.get()?, grad, axis, reverse)?))
        });
        adopt(call, context, out, x, node)
    })
}

/// The sum of `grad e^(x - y)` over all results `y` that an element is in, by logarithms: a factor may be no number
/// where the product is one.
fn log_sums_grad(call: Call, x: &Proxy, grad: &Proxy, axis: usize, reverse: bool) -> Result<Proxy> {
    composite(call, grad, &mut || {
        in_single(grad, |grad| {
            let x = single(x)?;
            let sizes = grad.abs()?.log()?.sub(&log_sums(call, &x, axis, reverse)?)?;
            // What is above 0 and what is below it each by itself: a number below 0 has no logarithm.
            let part = |others: Proxy| {
                let sizes = sizes.ext_masked_fill(&others, f64::NEG_INFINITY)?;
                log_sums(call, &sizes, axis, !reverse)?.add(&x)?.exp()
            };
            let slope = part(grad.le(0.0)?)?.sub(&part(grad.ge(0.0)?)?)?;
            slope.ext_masked_fill(&x.eq(f64::NEG_INFINITY)?, 0.0)
        })
    })
}

fn extremes(call: Call, x: &Proxy, dim: impl Dim, op: ScanOp) -> Result<(Proxy, Proxy)> {
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        let shape = *a.layout.shape();
        let axis = call.axis(dim, &shape)?;
        if u32::try_from(shape.dims()[axis]).is_err() {
            let expected = format!("less than 2^32 elements along axis {axis}, which u32 can count");
            return Err(Error::shape(call, shape.dims(), expected));
        }
        let out = output(context, call.op, device(&a), a.dtype, &shape, false)?;
        let ids = output(context, call.op, device(&a), DType::U32, &shape, false)?;
        let to = Some(ids.view());
        let kernel = Axiswise::Scan { op, src: view(&a), dst: out.view(), ids: to, axis, reverse: false };
        launch(device(&a), &Kernel::Axiswise(kernel))?;
        let node = record(&[&a], || {
            let saved = Saved::new(call, &ids.storage, ids.dtype, ids.layout);
            move |grad: &Proxy, _: [bool; 3]| Ok(one(gathered(grad, &saved.get()?, axis, &shape)?))
        });
        both_or_none(adopt(call, context, out, x, node), |_| adopt(call, context, ids, x, None))
    })
}

/// What each element gave to the places at which it was the extreme.
fn gathered(grad: &Proxy, ids: &Proxy, axis: usize, shape: &Shape) -> Result<Proxy> {
    grad.zeros_like()?.reshape(*shape)?.scatter_add(ids, grad, axis)
}

/// # Reductions: running sums, products, extremes
impl Proxy {
    /// The sum of each element and all before it along an axis. Any dtype but bool, integers wrap, floats are added in
    /// f64; one pass, with a gradient. The result belongs to the owner of this array.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::UnsupportedDType`] for truth values; [`Error::StaleArray`],
    /// [`Error::OutOfMemory`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, TensorExt};
    /// let a = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// assert_eq!(a.cumsum(0)?.to_vec1::<f32>()?, [1., 3., 6.]);
    /// assert_eq!(a.cumprod(0)?.to_vec1::<f32>()?, [1., 2., 6.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn cumsum<A: Dim>(&self, dim: A) -> Result<Proxy> {
        sums(Call::here("cumsum"), self, dim, false)
    }

    #[track_caller]
    pub(crate) fn ext_cumprod<A: Dim>(&self, dim: A) -> Result<Proxy> {
        let call = Call::here("cumprod");
        enter(call, |context| {
            let pins = pin(context, call.op, [self])?;
            let [a] = pins.arrays();
            check::number(call, a.dtype)?;
            let axis = call.axis(dim, a.layout.shape())?;
            let out = output(context, call.op, device(&a), a.dtype, a.layout.shape(), false)?;
            let (src, dst) = (view(&a), out.view());
            let kernel = Axiswise::Scan { op: ScanOp::Prod, src, dst, ids: None, axis, reverse: false };
            launch(device(&a), &Kernel::Axiswise(kernel))?;
            let node = record(&[&a], || {
                let saved = Saved::of(call, &a);
                move |grad: &Proxy, _: [bool; 3]| Ok(one(products_grad(call, &saved.get()?, grad, axis)?))
            });
            adopt(call, context, out, self, node)
        })
    }

    #[track_caller]
    pub(crate) fn ext_logcumsumexp<A: Dim>(&self, dim: A) -> Result<Proxy> {
        log_sums(Call::here("logcumsumexp"), self, dim, false)
    }

    #[track_caller]
    pub(crate) fn ext_cummax<A: Dim>(&self, dim: A) -> Result<(Proxy, Proxy)> {
        extremes(Call::here("cummax"), self, dim, ScanOp::Max)
    }

    #[track_caller]
    pub(crate) fn ext_cummin<A: Dim>(&self, dim: A) -> Result<(Proxy, Proxy)> {
        extremes(Call::here("cummin"), self, dim, ScanOp::Min)
    }
}
