//! The steps of optimisers: parameter and state change in place in one pass each.

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::device::kernel::Kernel;
pub use crate::device::kernel::StepRule;
use crate::memory::{
    proxy::Proxy,
    registry,
    storage::{Storage, writing},
    threads::ThreadContext,
};
use crate::ops::call::{
    check,
    exec::{device, enter, in_composite, launch, pin, view},
};

/// Changes `N` arrays in place from one gradient: a parameter and what its rule keeps. All are contiguous floats of one
/// shape.
fn step<const N: usize>(
    call: Call,
    targets: [&Proxy; N],
    grad: &Proxy,
    (rule, rate, number): (StepRule, f64, u64),
) -> Result<()> {
    // Here, since the copy would say that it found it.
    check::open_as(call, grad, 1)?;
    // A copy ends with its handle, whoever has the gradient.
    let grad = in_composite(call.site, &mut || no_grad(|| grad.contiguous()))?;
    let mut turns = 0;
    loop {
        let done = enter(call, |context| {
            let pins = pin(context, call.op, [&grad])?;
            let [g] = pins.arrays();
            check::float(call, g.dtype)?;
            let Some(pins) = registry::pin_now(context, call.op, targets.map(Proxy::key))? else { return Ok(false) };
            let pins = pins.arrays();
            for target in &pins {
                check::same_device(call, device(target), device(&g))?;
                check::same_dtype(call, target, &g)?;
                check::same_shape(
                    call.op,
                    target.layout.shape(),
                    g.layout.shape(),
                    "a parameter, what is kept for it and its gradient have one shape",
                )?;
                if !target.layout.is_contiguous() {
                    return Err(Error::shape(call, target.layout.dims(), "contiguous parameters"));
                }
            }
            let mut writing = [const { None }; N];
            for (writing, target) in writing.iter_mut().zip(&pins) {
                *writing = target.storage.write(context, call.op, target)?;
                if writing.is_none() {
                    return Ok(false);
                }
            }
            let kept = |i: usize| pins.get(i).map(view);
            launch(
                device(&g),
                &Kernel::OptimizerStep {
                    param: view(&pins[0]),
                    grad: view(&g),
                    kept1: kept(1),
                    kept2: kept(2),
                    kept3: kept(3),
                    rule,
                    rate,
                    step: number,
                },
            )?;
            Ok(true)
        })?;
        if done {
            return Ok(());
        }
        crate::base::sync::wait_turn(&mut turns);
        if turns > 1 << 16 {
            let array = registry::describe(targets[0].key());
            return Err(Error::in_use(call, array, "operations on other threads that do not end"));
        }
    }
}

/// Makes arrays that other threads used since they were last changed this thread's own, by one barrier for all: each
/// change in place would issue its own, which interrupts all threads. For optimisers and sums of gradients that are
/// about to change several arrays; nothing is wrong without it, and nothing is waited for.
///
/// ```
/// # use ndgc::{claim, DType, Device, Tensor};
/// let arrays = [Tensor::zeros(4, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::F32, &Device::Cpu)?];
/// let others = arrays.clone();
/// std::thread::spawn(move || others.map(|array| array.sum_all())).join().expect("no panic");
/// claim(&arrays)?;
/// for array in &arrays {
///     array.affine_(1., 1.)?;
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::StaleArray`], [`Error::LeakedArray`]: of any of the arrays, before one is claimed.
#[track_caller]
pub fn claim<'a>(arrays: impl IntoIterator<Item = &'a Proxy, IntoIter: Clone>) -> Result<()> {
    claim_for(Call::here("claim"), arrays.into_iter())
}

/// As [`claim`], for a call that its errors name.
pub(crate) fn claim_for<'a>(call: Call, arrays: impl Iterator<Item = &'a Proxy> + Clone) -> Result<()> {
    enter(call, |context| {
        let mut count = 0;
        for array in arrays.clone() {
            count += usize::from(shared(context, call.op, array)?.is_some());
        }
        if count > 1 {
            let mut storages = Vec::with_capacity(count);
            for array in arrays {
                storages.extend(shared(context, call.op, array).ok().flatten());
            }
            writing::claim(context, &storages);
        }
        Ok(())
    })
}

/// The storage of an array, if other threads may use it.
fn shared(context: &ThreadContext, op: &'static str, array: &Proxy) -> Result<Option<Storage>> {
    // A first look at bytes of another thread alone makes them those of all. What is being written is left to who
    // changes it.
    for _ in 0..2 {
        if let Some(pins) = registry::pin_now(context, op, [array.key()])? {
            let [array] = pins.arrays();
            return Ok(array.storage.is_shared().then(|| array.storage.clone()));
        }
    }
    Ok(None)
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
        let (call, rule) = (Call::here("sgd_step_"), (StepRule::Sgd { momentum, decay }, rate, 1));
        match velocity {
            None => step(call, [self], grad, rule),
            Some(velocity) => step(call, [self, velocity], grad, rule),
        }
    }

    /// Step `t` (from 1) of Adam with decoupled weight decay, in place, with the moments `m` and `v`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a step before the first; as [`Proxy::sgd_step_`].
    #[track_caller]
    pub fn adam_step_(&self, grad: &Proxy, m: &Proxy, v: &Proxy, t: i32, config: &AdamConfig) -> Result<()> {
        let call = Call::here("adam_step_");
        let AdamConfig { rate, beta1, beta2, eps: epsilon, decay } = *config;
        let rule = StepRule::Adam { beta1, beta2, epsilon, decay };
        step(call, [self, m, v], grad, (rule, rate, number(call, t)?))
    }

    /// Step `t` (from 1) of any rule, in place, with the arrays that it keeps for this parameter, in the order that
    /// [`StepRule`] names them. They begin at 0, and [`StepRule::RmsProp`]'s and [`StepRule::AdaGrad`]'s often at
    /// `epsilon`. One pass over all of them, which takes no memory.
    ///
    /// # Errors
    /// [`Error::Argument`] for another number of arrays than the rule keeps, and for a step before the first; as
    /// [`Proxy::sgd_step_`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, nn::StepRule};
    /// let x = Tensor::new([1f32, 2.], &Device::Cpu)?;
    /// let (grad, sum) = (Tensor::new([3f32, 0.], &Device::Cpu)?, x.zeros_like()?);
    /// x.optimizer_step_(&grad, &[sum.clone()], StepRule::AdaGrad { epsilon: 0. }, 0.5, 1)?;
    /// assert_eq!((x.to_vec1::<f32>()?[0], sum.to_vec1::<f32>()?), (0.5, vec![9., 0.]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn optimizer_step_(&self, grad: &Proxy, kept: &[Proxy], rule: StepRule, rate: f64, t: i32) -> Result<()> {
        let call = Call::here("optimizer_step_");
        let at = (rule, rate, number(call, t)?);
        let has_no_velocity = kept.is_empty() && matches!(rule, StepRule::Sgd { .. });
        match *kept {
            [] if has_no_velocity => step(call, [self], grad, at),
            [ref a] if rule.kept() == 1 => step(call, [self, a], grad, at),
            [ref a, ref b] if rule.kept() == 2 => step(call, [self, a, b], grad, at),
            [ref a, ref b, ref c] if rule.kept() == 3 => step(call, [self, a, b, c], grad, at),
            _ => Err(Error::argument(
                call,
                "kept",
                format!("{} arrays for {rule:?}, which keeps {}", kept.len(), rule.kept()),
                "as many arrays as the rule keeps",
            )),
        }
    }
}

/// The number of a step as kernels count: from 1, as the corrections of many rules divide by 0 else.
fn number(call: Call, t: i32) -> Result<u64> {
    match u64::try_from(t) {
        Ok(number @ 1..) => Ok(number),
        _ => Err(Error::argument(call, "t", t, "1 or more")),
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
