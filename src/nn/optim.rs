//! Optimisers: they change variables in place, and make nothing after their first step.

use crate::base::call::Call;
use crate::ops::call::check;
use crate::ops::nn::optim::claim_for;
pub use crate::ops::nn::optim::{AdamConfig, StepRule};
use crate::{Error, GradStore, Result, Tensor, Var, Workspace, no_grad};

/// Changes variables along their gradients.
pub trait Optimizer {
    /// What it is made with.
    type Config
    where
        Self: Sized;

    /// For these variables.
    ///
    /// # Errors
    /// [`Error::Argument`] for a learning rate that is negative or not finite.
    #[track_caller]
    fn new(variables: Vec<Var>, config: Self::Config) -> Result<Self>
    where
        Self: Sized;

    /// For no variables.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    #[track_caller]
    fn empty(config: Self::Config) -> Result<Self>
    where
        Self: Sized,
    {
        Self::new(Vec::new(), config)
    }

    /// For these variables, which stay with others too.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    #[track_caller]
    fn from_slice(variables: &[&Var], config: Self::Config) -> Result<Self>
    where
        Self: Sized,
    {
        Self::new(variables.iter().map(|&variable| variable.clone()).collect(), config)
    }

    /// One step. A variable without a gradient stays as it is.
    ///
    /// # Errors
    /// [`Error::StaleArray`] if a variable or gradient was closed; [`Error::Argument`] if a learning rate was set that
    /// [`Optimizer::new`] refuses; as [`Tensor::sgd_step_`]. [`SGD`] and [`Adam`] have changed no variable then, unless
    /// a device failed, or others used a variable and did not end.
    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()>;

    /// The gradients of a loss, and a step along them.
    ///
    /// # Errors
    /// As [`Tensor::backward`] and [`Optimizer::step`].
    ///
    /// ```
    /// # use ndgc::{nn, nn::Optimizer, Device, Var};
    /// let x = Var::new(&[3f32], &Device::Cpu)?;
    /// let mut sgd = nn::SGD::new(vec![x.clone()], 0.5)?; // a handle of the same variable
    /// sgd.backward_step(&x.sqr()?.sum_all()?)?; // the slope is 6
    /// assert_eq!(x.to_vec1::<f32>()?, [0.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    fn backward_step(&mut self, loss: &Tensor) -> Result<()> {
        let grads = loss.backward()?;
        self.step(&grads)
    }

    /// The learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate. One that is negative or not finite is refused by the next step.
    ///
    /// ```
    /// # use ndgc::{nn, nn::Optimizer, Device, Error, Var};
    /// let x = Var::new(&[3f32], &Device::Cpu)?;
    /// let mut sgd = nn::SGD::new(vec![x.clone()], 0.5)?;
    /// sgd.set_learning_rate(f64::NAN); // as in candle, it has no way to say so
    /// let step = sgd.backward_step(&x.sqr()?.sum_all()?);
    /// assert!(matches!(step, Err(Error::Argument { argument: "learning rate", .. })));
    /// assert_eq!(x.to_vec1::<f32>()?, [3.]); // as before
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    fn set_learning_rate(&mut self, rate: f64);
}

#[track_caller]
fn check_rate(op: &'static str, rate: f64) -> Result<f64> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(rate);
    }
    Err(Error::argument(Call::here(op), "learning rate", rate, "finite, not negative"))
}

/// The numbers of SGD.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SgdConfig {
    /// Learning rate.
    pub rate: f64,
    /// Share of the old velocity that stays; 0 keeps no velocity.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub decay: f64,
}

/// Stochastic gradient descent, with momentum and weight decay if they are asked for.
#[derive(Debug)]
pub struct SGD {
    variables: Vec<Var>,
    velocities: Vec<Option<Tensor>>,
    copies: Copies,
    config: SgdConfig,
}

impl SGD {
    /// With everything set.
    ///
    /// # Errors
    /// [`Error::Argument`] for a learning rate that is negative or not finite.
    #[track_caller]
    pub fn with_config(variables: Vec<Var>, config: SgdConfig) -> Result<Self> {
        check_rate("sgd", config.rate)?;
        let velocities = variables.iter().map(|_| None).collect();
        Ok(SGD { copies: Copies::of(&variables), variables, velocities, config })
    }

    /// The variables.
    pub fn into_inner(self) -> Vec<Var> {
        self.variables
    }

    /// With another variable.
    pub fn push(&mut self, variable: &Var) {
        self.variables.push(variable.clone());
        self.velocities.push(None);
        self.copies.0.push(None);
    }

    /// Makes all that the step wants memory for, and looks whether it all fits.
    #[track_caller]
    fn prepare(&mut self, call: Call, grads: &GradStore) -> Result<()> {
        let each = self.variables.iter().zip(&mut self.velocities).zip(&mut self.copies.0);
        for ((variable, velocity), copy) in each {
            let Some(grad) = grads.get(variable) else { continue };
            check::open_as(call, grad, 1)?;
            fits(call, variable, grad)?;
            if self.config.momentum != 0.0 && velocity.is_none() {
                *velocity = Some(state_beside(variable)?);
            }
            if let Some(velocity) = velocity {
                fits(call, variable, velocity)?;
            }
            *copy = copy_in_order(grad)?;
        }
        Ok(())
    }

    #[track_caller]
    fn change(&self, grads: &GradStore) -> Result<()> {
        let SgdConfig { rate, momentum, decay } = self.config;
        for ((variable, velocity), copy) in self.variables.iter().zip(&self.velocities).zip(&self.copies.0) {
            let Some(grad) = copy.as_ref().or_else(|| grads.get(variable)) else { continue };
            variable.sgd_step_(grad, velocity.as_ref(), rate, momentum, decay)?;
        }
        Ok(())
    }
}

impl Optimizer for SGD {
    /// The learning rate; [`SGD::with_config`] has more.
    type Config = f64;

    #[track_caller]
    fn new(variables: Vec<Var>, rate: f64) -> Result<Self> {
        Self::with_config(variables, SgdConfig { rate, ..SgdConfig::default() })
    }

    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        check_rate("sgd_step_", self.config.rate)?;
        let velocities = self.velocities.iter().flatten();
        claim_for(Call::here("optimizer step"), self.variables.iter().map(Var::as_tensor).chain(velocities))?;
        let call = Call::here("sgd_step_");
        let mut done = self.prepare(call, grads);
        if done.is_ok() {
            done = self.change(grads);
        }
        self.copies.end();
        call.named(done)
    }

    fn learning_rate(&self) -> f64 {
        self.config.rate
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.config.rate = rate;
    }
}

/// Adam, with decoupled weight decay.
#[derive(Debug)]
pub struct Adam {
    variables: Vec<Var>,
    moments: Vec<Option<(Tensor, Tensor)>>,
    copies: Copies,
    config: AdamConfig,
    steps: i32,
}

impl Adam {
    /// With everything set.
    ///
    /// # Errors
    /// [`Error::Argument`] for a learning rate that is negative or not finite.
    #[track_caller]
    pub fn with_config(variables: Vec<Var>, config: AdamConfig) -> Result<Self> {
        check_rate("adam", config.rate)?;
        let moments = variables.iter().map(|_| None).collect();
        Ok(Adam { copies: Copies::of(&variables), variables, moments, config, steps: 0 })
    }

    /// As [`SGD::prepare`].
    #[track_caller]
    fn prepare(&mut self, call: Call, grads: &GradStore) -> Result<()> {
        let each = self.variables.iter().zip(&mut self.moments).zip(&mut self.copies.0);
        for ((variable, moments), copy) in each {
            let Some(grad) = grads.get(variable) else { continue };
            check::open_as(call, grad, 1)?;
            fits(call, variable, grad)?;
            if moments.is_none() {
                *moments = Some((state_beside(variable)?, state_beside(variable)?));
            }
            if let Some((m, v)) = moments {
                fits(call, variable, m)?;
                fits(call, variable, v)?;
            }
            *copy = copy_in_order(grad)?;
        }
        Ok(())
    }

    #[track_caller]
    fn change(&self, grads: &GradStore, t: i32) -> Result<()> {
        for ((variable, moments), copy) in self.variables.iter().zip(&self.moments).zip(&self.copies.0) {
            let Some(grad) = copy.as_ref().or_else(|| grads.get(variable)) else { continue };
            if let Some((m, v)) = moments {
                variable.adam_step_(grad, m, v, t, &self.config)?;
            }
        }
        Ok(())
    }
}

impl Optimizer for Adam {
    /// The learning rate, with the usual numbers; [`Adam::with_config`] has more.
    type Config = f64;

    #[track_caller]
    fn new(variables: Vec<Var>, rate: f64) -> Result<Self> {
        Self::with_config(variables, AdamConfig { rate, ..AdamConfig::default() })
    }

    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        check_rate("adam_step_", self.config.rate)?;
        let t = self.steps.saturating_add(1);
        let moments = self.moments.iter().flatten().flat_map(|(m, v)| [m, v]);
        claim_for(Call::here("optimizer step"), self.variables.iter().map(Var::as_tensor).chain(moments))?;
        let call = Call::here("adam_step_");
        let mut done = self.prepare(call, grads);
        if done.is_ok() {
            done = self.change(grads, t);
        }
        self.copies.end();
        call.named(done)?;
        self.steps = t;
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.config.rate
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.config.rate = rate;
    }
}

/// The numbers of [`AdamW`], under candle's names.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamsAdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the latter.
    pub eps: f64,
    /// Weight decay, applied to the parameter and not to the gradient.
    pub weight_decay: f64,
}

impl Default for ParamsAdamW {
    fn default() -> Self {
        ParamsAdamW { lr: 0.001, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

impl From<&ParamsAdamW> for AdamConfig {
    fn from(params: &ParamsAdamW) -> Self {
        let &ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = params;
        AdamConfig { rate: lr, beta1, beta2, eps, decay: weight_decay }
    }
}

/// [`Adam`] under candle's name and with its numbers.
#[derive(Debug)]
pub struct AdamW {
    adam: Adam,
    params: ParamsAdamW,
}

impl AdamW {
    /// With the usual numbers.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    ///
    /// ```
    /// # use ndgc::{nn, nn::Optimizer, Device, Var};
    /// let x = Var::new(&[1f32], &Device::Cpu)?;
    /// let mut adam = nn::AdamW::new_lr(vec![x.clone()], 0.1)?;
    /// assert_eq!(adam.params().weight_decay, 0.01);
    /// adam.backward_step(&x.sqr()?.sum_all()?)?;
    /// // A first step is as long as the rate, whatever the gradient; and a thousandth decays.
    /// assert!((x.to_vec1::<f32>()?[0] - 0.899).abs() < 1e-3);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn new_lr(variables: Vec<Var>, learning_rate: f64) -> Result<Self> {
        Self::new(variables, ParamsAdamW { lr: learning_rate, ..ParamsAdamW::default() })
    }

    /// The numbers.
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// Sets the numbers; a learning rate as by [`Optimizer::set_learning_rate`].
    pub fn set_params(&mut self, params: ParamsAdamW) {
        self.adam.config = AdamConfig::from(&params);
        self.params = params;
    }
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    #[track_caller]
    fn new(variables: Vec<Var>, params: ParamsAdamW) -> Result<Self> {
        Ok(AdamW {
            adam: Adam::with_config(variables, AdamConfig::from(&params)).map_err(|error| error.of("adamw"))?,
            params,
        })
    }

    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        self.adam.step(grads)
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.params.lr = rate;
        self.adam.set_learning_rate(rate);
    }
}

/// Copies of gradients whose elements lie in no order, a place for each variable: made before the first variable
/// changes, closed after the last one.
#[derive(Debug)]
struct Copies(Vec<Option<Tensor>>);

impl Copies {
    fn of(variables: &[Var]) -> Self {
        Copies(variables.iter().map(|_| None).collect())
    }

    fn end(&mut self) {
        for copy in self.0.iter_mut().filter_map(Option::take) {
            copy.close();
        }
    }
}

/// A copy of a gradient with its elements in order, if they do not lie so.
#[track_caller]
fn copy_in_order(grad: &Tensor) -> Result<Option<Tensor>> {
    if grad.is_contiguous() {
        return Ok(None);
    }
    Ok(Some(no_grad(|| grad.contiguous())?))
}

/// Whether a gradient, or what is kept for a variable, is as a step wants it.
#[track_caller]
fn fits(call: Call, variable: &Var, other: &Tensor) -> Result<()> {
    if other.device() != variable.device() {
        return Err(Error::device_mismatch(call, variable.device(), other.device()));
    }
    if other.dtype() != variable.dtype() {
        return Err(Error::dtype_mismatch(call, variable.dtype(), other.dtype()));
    }
    if other.shape() != variable.shape() {
        let why = "a parameter, what is kept for it and its gradient have one shape";
        return Err(Error::shape_mismatch(call, variable.dims(), other.dims(), why));
    }
    if !variable.is_contiguous() {
        return Err(Error::shape(call, variable.dims(), "contiguous parameters"));
    }
    Ok(())
}

/// Zeros like a variable, owned by the optimiser's handle: they end with the optimiser, whatever manager the
/// variable has.
#[track_caller]
fn state_beside(variable: &Var) -> Result<Tensor> {
    // What an optimiser keeps outlives the cycle in which it begins.
    let _out = Workspace::scope_out();
    Tensor::zeros(*variable.shape(), variable.dtype(), variable.device())
}
