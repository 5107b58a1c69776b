//! The steps of optimisers: parameter and state change in place in one pass each.

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::device::kernel::{AdamHyper, Kernel, View};
use crate::memory::{
    proxy::Proxy,
    registry,
    storage::{self, Storage},
};
use crate::ops::call::{
    check,
    exec::{device, enter, launch, named, pin, view},
};

/// Changes `N` arrays in place from one gradient. All are contiguous floats of one shape.
fn step<const N: usize>(
    call: Call,
    targets: [&Proxy; N],
    grad: &Proxy,
    kernel: &dyn for<'v> Fn([View<'v>; N], View<'v>) -> Kernel<View<'v>>,
) -> Result<()> {
    // Here, since the copy would say that it found it.
    check::open_as(call.op, grad, 1)?;
    let grad = named(call.site, no_grad(|| grad.contiguous()))?;
    let mut turns = 0;
    loop {
        let done = enter(call, |context| {
            let pins = pin(context, call.op, [&grad])?;
            let [g] = pins.arrays();
            check::float(call.op, g.dtype)?;
            let Some(pins) = registry::pin_now(context, call.op, targets.map(Proxy::key))? else { return Ok(false) };
            let pins = pins.arrays();
            for target in &pins {
                check::same_device(call.op, device(target), device(&g))?;
                check::same_dtype(call.op, target, &g)?;
                check::same_shape(call.op, target.layout.shape(), g.layout.shape(), "the gradient has another shape")?;
                if !target.layout.is_contiguous() {
                    let found = target.layout.dims().to_vec();
                    return Err(Error::Shape { op: call.op, found, expected: "contiguous parameters".into() });
                }
            }
            let mut writing = [const { None }; N];
            for (writing, target) in writing.iter_mut().zip(&pins) {
                *writing = target.storage.write(context, call.op, target)?;
                if writing.is_none() {
                    return Ok(false);
                }
            }
            launch(device(&g), &kernel(std::array::from_fn(|i| view(&pins[i])), view(&g)))?;
            Ok(true)
        })?;
        if done {
            return Ok(());
        }
        crate::base::sync::wait_turn(&mut turns);
        if turns > 1 << 16 {
            let array = registry::describe(targets[0].key());
            return Err(Error::InUse { op: call.op, array, by: "operations on other threads that do not end" });
        }
    }
}

/// Makes ready for steps that change several arrays: those that other threads used since the last step become this
/// thread's by one barrier, where each change would issue its own. One that is being written is left to the step.
///
/// # Errors
/// [`Error::StaleArray`], [`Error::LeakedArray`]: before any of them is changed, and also for one without a gradient,
/// of which nothing else would tell that it is closed.
pub(crate) fn prepare<'a>(arrays: impl Iterator<Item = &'a Proxy> + Clone) -> Result<()> {
    let call = Call::here("optimizer step");
    enter(call, |context| {
        let shared = |array: &Proxy| -> Result<Option<Storage>> {
            let Some(pins) = registry::pin_now(context, call.op, [array.key()])? else { return Ok(None) };
            let [array] = pins.arrays();
            Ok(array.storage.is_shared().then(|| array.storage.clone()))
        };
        let mut count = 0;
        for array in arrays.clone() {
            count += usize::from(shared(array)?.is_some());
        }
        if count > 1 {
            let storages: Vec<Storage> = arrays.filter_map(|array| shared(array).ok().flatten()).collect();
            storage::claim(context, &storages);
        }
        Ok(())
    })
}

/// # Networks: steps of optimisers
impl Proxy {
    /// One step of gradient descent, in place: `x -= rate * (grad + decay * x)`, or along a velocity.
    ///
    /// # Errors
    /// Nothing is changed then: [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`],
    /// [`Error::InUse`], [`Error::StaleArray`].
    #[track_caller]
    pub fn sgd_step_(
        &self,
        grad: &Proxy,
        velocity: Option<&Proxy>,
        rate: f64,
        momentum: f64,
        decay: f64,
    ) -> Result<()> {
        let call = Call::here("sgd_step_");
        match velocity {
            None => step(call, [self], grad, &|[param], grad| Kernel::SgdStep {
                param,
                grad,
                velocity: None,
                rate,
                momentum,
                decay,
            }),
            Some(velocity) => step(call, [self, velocity], grad, &|[param, velocity], grad| Kernel::SgdStep {
                param,
                grad,
                velocity: Some(velocity),
                rate,
                momentum,
                decay,
            }),
        }
    }

    /// Step `t` (from 1) of Adam with decoupled weight decay, in place, with the moments `m` and `v`.
    ///
    /// # Errors
    /// As [`Proxy::sgd_step_`].
    #[track_caller]
    pub fn adam_step_(&self, grad: &Proxy, m: &Proxy, v: &Proxy, t: i32, config: &AdamConfig) -> Result<()> {
        let AdamConfig { rate, beta1, beta2, eps, decay } = *config;
        let count = u64::try_from(t).unwrap_or(0);
        let [fix1, fix2] = AdamHyper::fixes([beta1, beta2], count);
        let hyper = AdamHyper { rate, beta1, beta2, eps, decay, fix1, fix2, step: count };
        let call = Call::here("adam_step_");
        step(call, [self, m, v], grad, &|[param, m, v], grad| Kernel::AdamStep { param, grad, m, v, hyper })
    }
}

/// The numbers of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Learning rate.
    pub rate: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the latter.
    pub eps: f64,
    /// Weight decay, applied to the parameter and not to the gradient.
    pub decay: f64,
}

impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.0 }
    }
}
