//! Steps of optimisers: one pass over parameters, gradients and what is kept of earlier ones.
//!
//! What no gradient reaches any more falls with each step, and would stay among the subnormal numbers, where a step
//! takes 25 times as long: there it becomes 0.

use crate::base::{
    dtype::WithDType,
    error::{Error, Result},
};
use crate::cpu::{
    number::{Float, Number},
    operand::{Element, In, Out},
    threads::{self, SLICES},
    vector::{Loop, simd},
};
use crate::kernel::{StepRule, bias};

/// One pass: gradients, and the slices of one length that they change; those behind them are not looked at.
pub(super) type Pass<'f, T> = dyn Fn(&[T], [&mut [T]; SLICES]) + Sync + 'f;

/// Elements as they are kept, and what a step computes in.
pub(super) trait Stepped: Element {
    type Compute: Float;

    /// Runs a pass over some of them. Arrays that the rule does not have are empty.
    fn pass(grad: &[Self], arrays: [&mut [Self]; SLICES], pass: &Pass<'_, Self::Compute>);
}

macro_rules! stepped_as_they_are {
    ($($t:ty)*) => {$(
        impl Stepped for $t {
            type Compute = $t;
            fn pass(grad: &[$t], arrays: [&mut [$t]; SLICES], pass: &Pass<'_, $t>) {
                pass(grad, arrays);
            }
        }
    )*};
}
stepped_as_they_are!(f32 f64);

/// What becomes of a parameter and of what is kept for it, in this order.
trait Rule<T, const N: usize>: Copy + Sync {
    fn step(self, grad: T, now: [T; N]) -> [T; N];
}

/// A mean of which a share stays when one more number comes.
#[derive(Clone, Copy)]
struct Mean<T> {
    keep: T,
    share: T,
}

impl<T: Float> Mean<T> {
    #[inline(always)]
    fn of(self, old: T, new: T) -> T {
        self.keep.mul(old).add(self.share.mul(new)).flushed()
    }
}

/// A function of numbers that were worked out before.
macro_rules! rules {
    ($(
        $(#[$about:meta])*
        $name:ident { $($number:ident: $type:ty),* } |$grad:ident, [$($now:ident),*]| $step:expr;
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy)]
        struct $name<T> {
            $($number: $type,)*
        }

        impl<T: Float> Rule<T, { [$(stringify!($now)),*].len() }> for $name<T> {
            #[inline(always)]
            fn step(self, $grad: T, [$($now),*]: [T; [$(stringify!($now)),*].len()]) -> [T; [$(stringify!($now)),*].len()] {
                let $name { $($number),* } = self;
                $step
            }
        }
    )*};
}

rules! {
    Descent { rate: T, decay: T } |g, [x]| [x.sub(rate.mul(g.add(decay.mul(x))))];
    Momentum { rate: T, momentum: T, decay: T } |g, [x, v]| {
        let v = momentum.mul(v).add(g.add(decay.mul(x))).flushed();
        [x.sub(rate.mul(v)), v]
    };
    /// `ahead` is `1 + momentum`, `back` the square of `momentum`.
    Nesterov { rate: T, momentum: T, ahead: T, back: T } |g, [x, v]| {
        let step = ahead.mul(rate.mul(g)).sub(back.mul(v));
        [x.sub(step), momentum.mul(v).sub(rate.mul(g)).flushed()]
    };
    /// `of_mean` and `of_grad` are the shares of `m` and `g` in the step, `fix` the reciprocal of `1 - beta2^t`.
    Adam { rate: T, first: Mean<T>, second: Mean<T>, of_mean: T, of_grad: T, fix: T, epsilon: T, decay: T }
    |g, [x, m, v]| {
        let (m, v) = (first.of(m, g), second.of(v, g.squared()));
        let step = m.mul(of_mean).add(g.mul(of_grad)).div(v.mul(fix).sqrt().add(epsilon));
        [x.sub(rate.mul(step.add(decay.mul(x)))), m, v]
    };
    /// `rate` is corrected already.
    AmsGrad { rate: T, first: Mean<T>, second: Mean<T>, epsilon: T } |g, [x, m, v, highest]| {
        let (m, v) = (first.of(m, g), second.of(v, g.squared()));
        let highest = highest.max_or_nan(v);
        [x.sub(rate.mul(m.div(highest.sqrt().add(epsilon)))), m, v, highest]
    };
    /// `rate` is corrected already.
    AdaMax { rate: T, first: Mean<T>, beta2: T, epsilon: T } |g, [x, m, u]| {
        let m = first.of(m, g);
        let u = beta2.mul(u).max_or_nan(g.max_or_nan(T::ZERO.sub(g))).flushed();
        [x.sub(rate.mul(m.div(u.add(epsilon)))), m, u]
    };
    /// With a mean of which all stays it is AdaGrad.
    RmsProp { rate: T, squares: Mean<T>, epsilon: T } |g, [x, s]| {
        let s = squares.of(s, g.squared());
        [x.sub(rate.mul(g.div(s.sqrt().add(epsilon)))), s]
    };
    AdaDelta { rate: T, mean: Mean<T>, epsilon: T } |g, [x, s, e]| {
        let s = mean.of(s, g.squared());
        let step = g.mul(e.add(epsilon).sqrt().div(s.add(epsilon).sqrt()));
        [x.sub(rate.mul(step)), s, mean.of(e, step.squared())]
    };
}

/// A rule for each element of slices of one length, of which it has the first `N`.
struct Steps<'a, R, T, const N: usize> {
    rule: R,
    grad: &'a [T],
    arrays: [&'a mut [T]; SLICES],
}

impl<R: Rule<T, N>, T: Float, const N: usize> Loop for Steps<'_, R, T, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Steps { rule, grad, mut arrays } = self;
        let count = grad.len();
        for array in &mut arrays[..N] {
            *array = &mut std::mem::take(array)[..count];
        }
        for (i, &g) in grad.iter().enumerate() {
            let mut now = [T::ZERO; N];
            for k in 0..N {
                now[k] = arrays[k][i];
            }
            let next = rule.step(g, now);
            for k in 0..N {
                arrays[k][i] = next[k];
            }
        }
    }
}

/// The operands of a step.
struct Operands<'a, E> {
    grad: In<'a, E>,
    /// The parameter, and what is kept.
    arrays: [Option<Out<'a, E>>; SLICES],
}

impl<E: Stepped> Operands<'_, E> {
    fn run<const N: usize>(self, rule: impl Rule<E::Compute, N>) -> Result<()> {
        self.each(N, &|grad: &[E::Compute], arrays: [&mut [E::Compute]; SLICES]| {
            simd(grad.len(), Steps::<_, _, N> { rule, grad, arrays });
        })
    }

    /// Runs a pass over all of them, which has to be so many, of the gradient's length: once for all rules.
    fn each(mut self, count: usize, pass: &Pass<'_, E::Compute>) -> Result<()> {
        let grad = self.grad.all();
        let (mut slices, mut given, mut fit) = (<[&mut [E]; SLICES]>::default(), 0, true);
        for array in &mut self.arrays {
            let Some(array) = array.take() else { continue };
            slices[given] = array.dense();
            fit &= slices[given].len() == grad.len();
            given += 1;
        }
        if given != count || !fit {
            return Err(Error::msg("a step with other arrays than those that its rule keeps"));
        }
        threads::split_all(slices, count, &|start: usize, arrays: [&mut [E]; SLICES]| {
            E::pass(&grad[start..start + arrays[0].len()], arrays, pass);
        });
        Ok(())
    }
}

/// Step number `step` of a rule.
pub(super) fn step<E: Stepped>(
    (rule, rate, step): (StepRule, f64, u64),
    grad: In<'_, E>,
    arrays: [Option<Out<'_, E>>; SLICES],
) -> Result<()> {
    let number = <E::Compute as WithDType>::from_f64;
    let mean = |beta: f64| Mean { keep: number(beta), share: number(1.0 - beta) };
    let fix = |beta: f64| 1.0 / bias(beta, step);
    let has_velocity = arrays[1].is_some();
    let operands = Operands { grad, arrays };
    let (just, zero, one) = (number(rate), E::Compute::ZERO, E::Compute::ONE);
    match rule {
        StepRule::Sgd { decay, .. } if !has_velocity => operands.run(Descent { rate: just, decay: number(decay) }),
        StepRule::Sgd { momentum, decay } => {
            operands.run(Momentum { rate: just, momentum: number(momentum), decay: number(decay) })
        }
        StepRule::Nesterov { momentum: share } => {
            let (momentum, ahead, back) = (number(share), number(1.0 + share), number(share * share));
            operands.run(Nesterov { rate: just, momentum, ahead, back })
        }
        StepRule::Adam { beta1, beta2, epsilon, decay } => operands.run(Adam {
            rate: just,
            first: mean(beta1),
            second: mean(beta2),
            of_mean: number(fix(beta1)),
            of_grad: zero,
            fix: number(fix(beta2)),
            epsilon: number(epsilon),
            decay: number(decay),
        }),
        StepRule::Nadam { beta1, beta2, epsilon } => operands.run(Adam {
            rate: just,
            first: mean(beta1),
            second: mean(beta2),
            of_mean: number(beta1 / bias(beta1, step.saturating_add(1))),
            of_grad: number((1.0 - beta1) * fix(beta1)),
            fix: number(fix(beta2)),
            epsilon: number(epsilon),
            decay: zero,
        }),
        StepRule::AmsGrad { beta1, beta2, epsilon } => {
            let rate = number(rate * bias(beta2, step).sqrt() * fix(beta1));
            operands.run(AmsGrad { rate, first: mean(beta1), second: mean(beta2), epsilon: number(epsilon) })
        }
        StepRule::AdaMax { beta1, beta2 } => {
            let (rate, epsilon) = (number(rate * fix(beta1)), number(1e-32));
            operands.run(AdaMax { rate, first: mean(beta1), beta2: number(beta2), epsilon })
        }
        StepRule::RmsProp { decay, epsilon } => {
            operands.run(RmsProp { rate: just, squares: mean(decay), epsilon: number(epsilon) })
        }
        StepRule::AdaGrad { epsilon } => {
            let squares = Mean { keep: one, share: one };
            operands.run(RmsProp { rate: just, squares, epsilon: number(epsilon) })
        }
        StepRule::AdaDelta { rho, epsilon } => {
            operands.run(AdaDelta { rate: just, mean: mean(rho), epsilon: number(epsilon) })
        }
    }
}
