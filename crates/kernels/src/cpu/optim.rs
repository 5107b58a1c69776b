//! Steps of optimisers: one pass over parameters, gradients and state.

use rayon::prelude::*;

use crate::cpu::{In, Out, elementwise::simd, number::Float, threads};
use crate::kernel::AdamHyper;

/// The numbers of one SGD step.
#[derive(Clone, Copy)]
pub(super) struct SgdHyper {
    pub(super) rate: f64,
    pub(super) momentum: f64,
    pub(super) decay: f64,
}

/// `param -= rate * (grad + decay * param)`.
pub(super) fn sgd<T: Float>(param: Out<'_, T>, grad: In<'_, T>, hyper: SgdHyper) {
    let (rate, decay) = (T::from_f64(hyper.rate), T::from_f64(hyper.decay));
    threads::split2(grad.all(), param.dense(), &|g, p| {
        simd(p.len(), || {
            for (p, &g) in p.iter_mut().zip(g) {
                *p = p.minus(rate.times(g.plus(decay.times(*p))));
            }
        });
    });
}

/// `velocity = momentum * velocity + grad + decay * param; param -= rate * velocity`.
pub(super) fn sgd_momentum<T: Float>(param: Out<'_, T>, grad: In<'_, T>, velocity: Out<'_, T>, hyper: SgdHyper) {
    let (rate, decay) = (T::from_f64(hyper.rate), T::from_f64(hyper.decay));
    let momentum = T::from_f64(hyper.momentum);
    let row = |p: &mut [T], g: &[T], v: &mut [T]| {
        simd(p.len(), || {
            for ((p, &g), v) in p.iter_mut().zip(g).zip(v) {
                *v = momentum.times(*v).plus(g.plus(decay.times(*p)));
                *p = p.minus(rate.times(*v));
            }
        });
    };
    let (p, g, v) = (param.dense(), grad.all(), velocity.dense());
    match threads::plan(p.len()) {
        None => row(p, g, v),
        Some((pool, chunk)) => pool.install(|| {
            let state = g.par_chunks(chunk).zip(v.par_chunks_mut(chunk));
            p.par_chunks_mut(chunk).zip(state).for_each(|(p, (g, v))| row(p, g, v));
        }),
    }
}

/// `m = beta1 m + (1 - beta1) grad`, `v = beta2 v + (1 - beta2) grad^2`, `param -= rate * (m / fix1 / (sqrt(v / fix2)
/// + eps) + decay * param)`.
pub(super) fn adam<T: Float>(param: Out<'_, T>, grad: In<'_, T>, m: Out<'_, T>, v: Out<'_, T>, hyper: &AdamHyper) {
    let [rate, eps, decay] = [hyper.rate, hyper.eps, hyper.decay].map(T::from_f64);
    let [beta1, beta2] = [hyper.beta1, hyper.beta2].map(T::from_f64);
    let [rest1, rest2] = [1.0 - hyper.beta1, 1.0 - hyper.beta2].map(T::from_f64);
    let [fix1, fix2] = [1.0 / hyper.fix1, 1.0 / hyper.fix2].map(T::from_f64);
    let row = |p: &mut [T], g: &[T], m: &mut [T], v: &mut [T]| {
        simd(p.len(), || {
            for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                *m = beta1.times(*m).plus(rest1.times(g));
                *v = beta2.times(*v).plus(rest2.times(g.squared()));
                let step = m.times(fix1).over(v.times(fix2).sqrt().plus(eps));
                *p = p.minus(rate.times(step.plus(decay.times(*p))));
            }
        });
    };
    let (p, g, m, v) = (param.dense(), grad.all(), m.dense(), v.dense());
    match threads::plan(p.len()) {
        None => row(p, g, m, v),
        Some((pool, chunk)) => pool.install(|| {
            let state = m.par_chunks_mut(chunk).zip(v.par_chunks_mut(chunk));
            let sources = g.par_chunks(chunk).zip(state);
            p.par_chunks_mut(chunk).zip(sources).for_each(|(p, (g, (m, v)))| row(p, g, m, v));
        }),
    }
}

#[cfg(test)]
mod tests;
