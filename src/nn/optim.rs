//! Optimisers: they change variables in place, and make nothing after their first step.

pub use crate::ops::optim::AdamConfig;
use crate::{Error, GradStore, Result, Tensor, Var};

/// Changes variables along their gradients.
pub trait Optimizer {
    /// One step. A variable without a gradient stays as it is.
    ///
    /// # Errors
    /// [`Error::StaleArray`] if a variable or gradient was closed; as [`Tensor::sgd_step_`].
    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()>;

    /// The gradients of a loss, and a step along them.
    ///
    /// # Errors
    /// As [`Tensor::backward`] and [`Optimizer::step`].
    #[track_caller]
    fn backward_step(&mut self, loss: &Tensor) -> Result<()> {
        let grads = loss.backward()?;
        self.step(&grads)
    }

    /// The learning rate.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate.
    fn set_learning_rate(&mut self, rate: f64);
}

fn check_rate(op: &'static str, rate: f64) -> Result<f64> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(rate);
    }
    Err(Error::Argument { op, argument: "learning rate", value: rate.to_string(), expected: "finite, not negative" })
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
    config: SgdConfig,
}

impl SGD {
    /// Without momentum or decay.
    ///
    /// # Errors
    /// [`Error::Argument`] for a learning rate that is negative or not finite.
    pub fn new(variables: Vec<Var>, rate: f64) -> Result<Self> {
        Self::with_config(variables, SgdConfig { rate, ..SgdConfig::default() })
    }

    /// With everything set.
    ///
    /// # Errors
    /// As [`SGD::new`].
    pub fn with_config(variables: Vec<Var>, config: SgdConfig) -> Result<Self> {
        check_rate("sgd", config.rate)?;
        let velocities = variables.iter().map(|_| None).collect();
        Ok(SGD { variables, velocities, config })
    }
}

impl Optimizer for SGD {
    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let SgdConfig { rate, momentum, decay } = self.config;
        for (variable, velocity) in self.variables.iter().zip(&mut self.velocities) {
            let Some(grad) = grads.get(variable) else { continue };
            if momentum != 0.0 && velocity.is_none() {
                *velocity = Some(state_beside(variable)?);
            }
            variable.sgd_step_(grad, velocity.as_ref(), rate, momentum, decay)?;
        }
        Ok(())
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
    config: AdamConfig,
    steps: i32,
}

impl Adam {
    /// With the usual numbers.
    ///
    /// # Errors
    /// [`Error::Argument`] for a learning rate that is negative or not finite.
    pub fn new(variables: Vec<Var>, rate: f64) -> Result<Self> {
        Self::with_config(variables, AdamConfig { rate, ..AdamConfig::default() })
    }

    /// With everything set.
    ///
    /// # Errors
    /// As [`Adam::new`].
    pub fn with_config(variables: Vec<Var>, config: AdamConfig) -> Result<Self> {
        check_rate("adam", config.rate)?;
        let moments = variables.iter().map(|_| None).collect();
        Ok(Adam { variables, moments, config, steps: 0 })
    }
}

impl Optimizer for Adam {
    #[track_caller]
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let t = self.steps.saturating_add(1);
        for (variable, moments) in self.variables.iter().zip(&mut self.moments) {
            let Some(grad) = grads.get(variable) else { continue };
            if moments.is_none() {
                *moments = Some((state_beside(variable)?, state_beside(variable)?));
            }
            if let Some((m, v)) = moments {
                variable.adam_step_(grad, m, v, t, &self.config)?;
            }
        }
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

/// Zeros like a variable, owned by the optimiser's handle: they end with the optimiser, whatever manager the
/// variable has.
#[track_caller]
fn state_beside(variable: &Var) -> Result<Tensor> {
    Tensor::zeros(*variable.shape(), variable.dtype(), variable.device())
}
