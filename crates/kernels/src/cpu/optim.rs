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
    threads,
    vector::{Loop, simd},
};
use crate::kernel::{StepRule, bias};

/// One pass: gradients, and the slices of one length that they change.
pub(super) type Pass<'f, T, const N: usize> = dyn Fn(&[T], [&mut [T]; N]) + Sync + 'f;

/// Elements as they are kept, and what a step computes in.
pub(super) trait Stepped: Element {
    type Compute: Float;

    /// Runs a pass over some of them.
    fn pass<const N: usize>(grad: &[Self], arrays: [&mut [Self]; N], pass: &Pass<'_, Self::Compute, N>);
}

macro_rules! stepped_as_they_are {
    ($($t:ty)*) => {$(
        impl Stepped for $t {
            type Compute = $t;
            fn pass<const N: usize>(grad: &[$t], arrays: [&mut [$t]; N], pass: &Pass<'_, $t, N>) {
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

/// A function of numbers that were worked out before.
macro_rules! rules {
    ($(
        $(#[$about:meta])*
        $name:ident [$($number:ident)*] |$grad:ident, [$($now:ident),*]| $step:expr;
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy)]
        struct $name<T> {
            $($number: T,)*
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
    Descent [rate decay] |g, [x]| [x.sub(rate.mul(g.add(decay.mul(x))))];
    Momentum [rate momentum decay] |g, [x, v]| {
        let v = momentum.mul(v).add(g.add(decay.mul(x))).flushed();
        [x.sub(rate.mul(v)), v]
    };
    /// `ahead` is `1 + momentum`, `back` the square of `momentum`.
    Nesterov [rate momentum ahead back] |g, [x, v]| {
        let step = ahead.mul(rate.mul(g)).sub(back.mul(v));
        [x.sub(step), momentum.mul(v).sub(rate.mul(g)).flushed()]
    };
    /// `rest1` is `1 - beta1`, `fix1` the reciprocal of `1 - beta1^t`, here and below.
    Adam [rate beta1 beta2 rest1 rest2 fix1 fix2 epsilon decay] |g, [x, m, v]| {
        let m = beta1.mul(m).add(rest1.mul(g)).flushed();
        let v = beta2.mul(v).add(rest2.mul(g.squared())).flushed();
        let step = m.mul(fix1).div(v.mul(fix2).sqrt().add(epsilon));
        [x.sub(rate.mul(step.add(decay.mul(x)))), m, v]
    };
    /// `rate` is corrected already.
    AmsGrad [rate beta1 beta2 rest1 rest2 epsilon] |g, [x, m, v, highest]| {
        let m = beta1.mul(m).add(rest1.mul(g)).flushed();
        let v = beta2.mul(v).add(rest2.mul(g.squared())).flushed();
        let highest = highest.max_or_nan(v);
        [x.sub(rate.mul(m.div(highest.sqrt().add(epsilon)))), m, v, highest]
    };
    /// `next` and `now` are the shares of `m` and `g` in the step.
    Nadam [rate beta1 beta2 rest1 rest2 next now fix2 epsilon] |g, [x, m, v]| {
        let m = beta1.mul(m).add(rest1.mul(g)).flushed();
        let v = beta2.mul(v).add(rest2.mul(g.squared())).flushed();
        let step = next.mul(m).add(now.mul(g)).div(v.mul(fix2).sqrt().add(epsilon));
        [x.sub(rate.mul(step)), m, v]
    };
    /// `rate` is corrected already.
    AdaMax [rate beta1 beta2 rest1 epsilon] |g, [x, m, u]| {
        let m = beta1.mul(m).add(rest1.mul(g)).flushed();
        let u = beta2.mul(u).max_or_nan(g.max_or_nan(T::ZERO.sub(g))).flushed();
        [x.sub(rate.mul(m.div(u.add(epsilon)))), m, u]
    };
    /// With `keep` and `share` of 1 it is AdaGrad.
    RmsProp [rate keep share epsilon] |g, [x, s]| {
        let s = keep.mul(s).add(share.mul(g.squared())).flushed();
        [x.sub(rate.mul(g.div(s.sqrt().add(epsilon)))), s]
    };
    AdaDelta [rate rho rest epsilon] |g, [x, s, e]| {
        let s = rho.mul(s).add(rest.mul(g.squared())).flushed();
        let step = g.mul(e.add(epsilon).sqrt().div(s.add(epsilon).sqrt()));
        [x.sub(rate.mul(step)), s, rho.mul(e).add(rest.mul(step.squared())).flushed()]
    };
}

/// A rule for each element of slices of one length.
struct Steps<'a, R, T, const N: usize> {
    rule: R,
    grad: &'a [T],
    arrays: [&'a mut [T]; N],
}

impl<R: Rule<T, N>, T: Float, const N: usize> Loop for Steps<'_, R, T, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Steps { rule, grad, mut arrays } = self;
        let count = grad.len();
        for array in &mut arrays {
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
    arrays: [Option<Out<'a, E>>; 4],
}

impl<E: Stepped> Operands<'_, E> {
    fn run<const N: usize>(self, rule: impl Rule<E::Compute, N>) -> Result<()> {
        self.each(&|grad: &[E::Compute], arrays: [&mut [E::Compute]; N]| {
            simd(grad.len(), Steps { rule, grad, arrays });
        })
    }

    /// Runs a pass over all of them: once for all rules.
    fn each<const N: usize>(self, pass: &Pass<'_, E::Compute, N>) -> Result<()> {
        let mut slices: [&mut [E]; N] = std::array::from_fn(|_| Default::default());
        let (mut count, given) = (0, self.arrays.into_iter().flatten());
        for array in given {
            match slices.get_mut(count) {
                Some(slice) => *slice = array.dense(),
                None => return Err(Error::msg(OTHERS)),
            }
            count += 1;
        }
        if count != N {
            return Err(Error::msg(OTHERS));
        }
        let grad = self.grad.all();
        threads::split_all(slices, &|start: usize, arrays: [&mut [E]; N]| {
            E::pass(&grad[start..start + arrays[0].len()], arrays, pass);
        });
        Ok(())
    }
}

/// What a step says that is not as its kernel says.
const OTHERS: &str = "a step with other arrays than those that its rule keeps";

/// Step number `step` of a rule.
pub(super) fn step<E: Stepped>(
    (rule, rate, step): (StepRule, f64, u64),
    grad: In<'_, E>,
    arrays: [Option<Out<'_, E>>; 4],
) -> Result<()> {
    let as_is = <E::Compute as WithDType>::from_f64;
    let rest = |share: f64| as_is(1.0 - share);
    let fix = |beta: f64| 1.0 / bias(beta, step);
    let has_velocity = arrays[1].is_some();
    let operands = Operands { grad, arrays };
    let just = as_is(rate);
    match rule {
        StepRule::Sgd { decay, .. } if !has_velocity => operands.run(Descent { rate: just, decay: as_is(decay) }),
        StepRule::Sgd { momentum, decay } => {
            operands.run(Momentum { rate: just, momentum: as_is(momentum), decay: as_is(decay) })
        }
        StepRule::Nesterov { momentum: share } => {
            let [momentum, ahead, back] = [share, 1.0 + share, share * share].map(as_is);
            operands.run(Nesterov { rate: just, momentum, ahead, back })
        }
        StepRule::Adam { beta1, beta2, epsilon, decay } => operands.run(Adam {
            rate: just,
            beta1: as_is(beta1),
            beta2: as_is(beta2),
            rest1: rest(beta1),
            rest2: rest(beta2),
            fix1: as_is(fix(beta1)),
            fix2: as_is(fix(beta2)),
            epsilon: as_is(epsilon),
            decay: as_is(decay),
        }),
        StepRule::AmsGrad { beta1, beta2, epsilon } => operands.run(AmsGrad {
            rate: as_is(rate * bias(beta2, step).sqrt() * fix(beta1)),
            beta1: as_is(beta1),
            beta2: as_is(beta2),
            rest1: rest(beta1),
            rest2: rest(beta2),
            epsilon: as_is(epsilon),
        }),
        StepRule::Nadam { beta1, beta2, epsilon } => operands.run(Nadam {
            rate: just,
            beta1: as_is(beta1),
            beta2: as_is(beta2),
            rest1: rest(beta1),
            rest2: rest(beta2),
            next: as_is(beta1 / bias(beta1, step.saturating_add(1))),
            now: as_is((1.0 - beta1) * fix(beta1)),
            fix2: as_is(fix(beta2)),
            epsilon: as_is(epsilon),
        }),
        StepRule::AdaMax { beta1, beta2 } => operands.run(AdaMax {
            rate: as_is(rate * fix(beta1)),
            beta1: as_is(beta1),
            beta2: as_is(beta2),
            rest1: rest(beta1),
            epsilon: as_is(1e-32),
        }),
        StepRule::RmsProp { decay, epsilon } => {
            operands.run(RmsProp { rate: just, keep: as_is(decay), share: rest(decay), epsilon: as_is(epsilon) })
        }
        StepRule::AdaGrad { epsilon } => {
            let one = E::Compute::ONE;
            operands.run(RmsProp { rate: just, keep: one, share: one, epsilon: as_is(epsilon) })
        }
        StepRule::AdaDelta { rho, epsilon } => {
            operands.run(AdaDelta { rate: just, rho: as_is(rho), rest: rest(rho), epsilon: as_is(epsilon) })
        }
    }
}

#[cfg(test)]
mod tests;
