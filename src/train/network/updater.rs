//! Updaters: what a step makes of a gradient.

use ndgc::nn::StepRule;
use ndgc::{Result, Tensor, Var};

use super::schedule::Schedule;

/// How a parameter follows its gradient `g` (already divided by the examples of the batch). Formulas are DL4J's
/// (`org.nd4j.linalg.learning`), except for [`Updater::Nadam`]; `rate` is a number or a [`Schedule`].
///
/// ```
/// use ndgc::train::{Schedule, ScheduleKind, ScheduleType, Updater};
///
/// let plain = Updater::adam(1e-3);
/// let falling = Updater::sgd(Schedule::new(ScheduleType::Epoch, 0.1, ScheduleKind::Exponential { gamma: 0.9 }));
/// assert_eq!((plain.rate_at(7, 0), falling.rate_at(7, 0)), (1e-3, 0.1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Updater {
    /// `x -= rate g`.
    Sgd {
        /// Learning rate.
        rate: Schedule,
    },
    /// Momentum after Nesterov: `v = momentum v - rate g; x += v + momentum (v - v before)`.
    Nesterovs {
        /// Learning rate.
        rate: Schedule,
        /// Share of the velocity that stays.
        momentum: f64,
    },
    /// Adam, with epsilon added to the uncorrected root, as in the paper's last remark and in DL4J.
    Adam(Moments),
    /// Adam with decoupled weight decay: `x -= rate decay x` beside Adam's step.
    AdamW {
        /// Rates.
        moments: Moments,
        /// Weight decay.
        decay: f64,
    },
    /// Adam with the largest second moment so far.
    AmsGrad(Moments),
    /// Adam with Nesterov's momentum, after Dozat's paper. DL4J's leaves the second moment uncorrected, so that its
    /// first step is about 60 times the learning rate; this one is not that.
    Nadam(Moments),
    /// Adam with the largest gradient in place of the second moment.
    AdaMax(Moments),
    /// Divides by a running root mean square, which begins at epsilon.
    RmsProp {
        /// Learning rate.
        rate: Schedule,
        /// Share of the running mean that stays.
        decay: f64,
        /// Added to the root, and the mean's first value.
        epsilon: f64,
    },
    /// Divides by the root of the sum of all squared gradients.
    AdaGrad {
        /// Learning rate.
        rate: Schedule,
        /// Added to the root, and the sum's first value.
        epsilon: f64,
    },
    /// Has no learning rate: steps are as large as earlier ones.
    AdaDelta {
        /// Share of the running means that stays.
        rho: f64,
        /// Added in both roots.
        epsilon: f64,
    },
    /// `x -= g`: for gradients that are steps already.
    Gradient,
    /// `x` stays: the parameter is frozen.
    NoOp,
}

/// The numbers of Adam and its kin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Learning rate.
    pub rate: Schedule,
    /// Share of the mean of gradients that stays.
    pub beta1: f64,
    /// Share of the mean of squared gradients that stays.
    pub beta2: f64,
    /// Added to the root of the latter.
    pub epsilon: f64,
}

impl Moments {
    /// The usual numbers: 0.9, 0.999 and 1e-8.
    pub fn new(rate: impl Into<Schedule>) -> Self {
        Moments { rate: rate.into(), beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

impl Updater {
    /// [`Updater::Sgd`].
    pub fn sgd(rate: impl Into<Schedule>) -> Self {
        Updater::Sgd { rate: rate.into() }
    }

    /// [`Updater::Nesterovs`].
    pub fn nesterovs(rate: impl Into<Schedule>, momentum: f64) -> Self {
        Updater::Nesterovs { rate: rate.into(), momentum }
    }

    /// [`Updater::Adam`] with the usual numbers.
    pub fn adam(rate: impl Into<Schedule>) -> Self {
        Updater::Adam(Moments::new(rate))
    }

    /// [`Updater::AdamW`] with the usual numbers.
    pub fn adam_w(rate: impl Into<Schedule>, decay: f64) -> Self {
        Updater::AdamW { moments: Moments::new(rate), decay }
    }

    /// [`Updater::RmsProp`] with DL4J's decay of 0.95 and epsilon of 1e-8.
    pub fn rms_prop(rate: impl Into<Schedule>) -> Self {
        Updater::RmsProp { rate: rate.into(), decay: 0.95, epsilon: 1e-8 }
    }

    /// [`Updater::AdaGrad`] with DL4J's epsilon of 1e-6.
    pub fn ada_grad(rate: impl Into<Schedule>) -> Self {
        Updater::AdaGrad { rate: rate.into(), epsilon: 1e-6 }
    }

    /// The learning rate at an iteration and an epoch, counted from 0; 1 for those that have none.
    pub fn rate_at(&self, iteration: u64, epoch: u64) -> f64 {
        match self {
            Updater::Sgd { rate } | Updater::Nesterovs { rate, .. } => rate.value_at(iteration, epoch),
            Updater::RmsProp { rate, .. } | Updater::AdaGrad { rate, .. } => rate.value_at(iteration, epoch),
            Updater::Adam(moments) | Updater::AmsGrad(moments) | Updater::Nadam(moments) | Updater::AdaMax(moments) => {
                moments.rate.value_at(iteration, epoch)
            }
            Updater::AdamW { moments, .. } => moments.rate.value_at(iteration, epoch),
            Updater::AdaDelta { .. } | Updater::Gradient | Updater::NoOp => 1.0,
        }
    }

    /// The names of the arrays that it keeps for each parameter, and the number that they begin with.
    pub fn state(&self) -> &'static [&'static str] {
        match self {
            Updater::Sgd { .. } | Updater::Gradient | Updater::NoOp => &[],
            Updater::Nesterovs { .. } => &["V"],
            Updater::Adam(_) | Updater::AdamW { .. } | Updater::Nadam(_) => &["M", "V"],
            Updater::AmsGrad(_) => &["M", "V", "V_HAT"],
            Updater::AdaMax(_) => &["M", "U"],
            Updater::RmsProp { .. } => &["G"],
            Updater::AdaGrad { .. } => &["GRAD_STATE"],
            Updater::AdaDelta { .. } => &["MSG", "MSDX"],
        }
    }

    /// The number that its arrays begin with.
    pub fn state_start(&self) -> f64 {
        match *self {
            Updater::RmsProp { epsilon, .. } | Updater::AdaGrad { epsilon, .. } => epsilon,
            _ => 0.0,
        }
    }

    /// Step `t` (from 1) of a parameter, in place, with the arrays of [`Updater::state`]. It takes no memory but for a
    /// copy of a gradient that is not contiguous.
    ///
    /// # Errors
    /// As [`Tensor::optimizer_step_`].
    #[track_caller]
    pub fn step(&self, param: &Var, grad: &Tensor, state: &[Tensor], rate: f64, t: i32) -> Result<()> {
        let plain = StepRule::Sgd { momentum: 0.0, decay: 0.0 };
        let (rule, rate) = match *self {
            Updater::NoOp => return Ok(()),
            Updater::Gradient => (plain, 1.0),
            Updater::Sgd { .. } => (plain, rate),
            Updater::Nesterovs { momentum, .. } => (StepRule::Nesterov { momentum }, rate),
            Updater::Adam(moments) => (moments.rule(0.0, t), rate),
            Updater::AdamW { moments, decay } => (moments.rule(decay, t), rate),
            Updater::AmsGrad(Moments { beta1, beta2, epsilon, .. }) => {
                (StepRule::AmsGrad { beta1, beta2, epsilon }, rate)
            }
            Updater::Nadam(Moments { beta1, beta2, epsilon, .. }) => (StepRule::Nadam { beta1, beta2, epsilon }, rate),
            Updater::AdaMax(Moments { beta1, beta2, .. }) => (StepRule::AdaMax { beta1, beta2 }, rate),
            Updater::RmsProp { decay, epsilon, .. } => (StepRule::RmsProp { decay, epsilon }, rate),
            Updater::AdaGrad { epsilon, .. } => (StepRule::AdaGrad { epsilon }, rate),
            Updater::AdaDelta { rho, epsilon } => (StepRule::AdaDelta { rho, epsilon }, 1.0),
        };
        param.optimizer_step_(grad, state, rule, rate, t)
    }
}

impl Moments {
    /// DL4J adds epsilon to the root of the uncorrected second moment: the same as a larger epsilon on the corrected
    /// one.
    fn rule(&self, decay: f64, t: i32) -> StepRule {
        let Moments { beta1, beta2, epsilon, .. } = *self;
        StepRule::Adam { beta1, beta2, epsilon: epsilon / (1.0 - beta2.powi(t)).sqrt(), decay }
    }
}
