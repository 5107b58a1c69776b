//! Steps of optimisers: one pass over parameters, gradients and state.
//!
//! State that no gradient reaches any more falls with each step, and would stay among the subnormal numbers, where a
//! step takes 25 times as long: there it becomes 0.

use crate::cpu::{
    number::Float,
    operand::{In, Out},
    threads,
    vector::simd,
};
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
    threads::split2(grad.all(), param.dense(), &|g: &[T], p: &mut [T]| {
        simd(p.len(), || {
            for (p, &g) in p.iter_mut().zip(g) {
                *p = p.sub(rate.mul(g.add(decay.mul(*p))));
            }
        });
    });
}

/// `velocity = momentum * velocity + grad + decay * param; param -= rate * velocity`.
pub(super) fn sgd_momentum<T: Float>(param: Out<'_, T>, grad: In<'_, T>, velocity: Out<'_, T>, hyper: SgdHyper) {
    let (rate, decay) = (T::from_f64(hyper.rate), T::from_f64(hyper.decay));
    let momentum = T::from_f64(hyper.momentum);
    let g = grad.all();
    threads::split_all([param.dense(), velocity.dense()], &|start, [p, v]| {
        let g = &g[start..start + p.len()];
        simd(p.len(), || {
            for ((p, &g), v) in p.iter_mut().zip(g).zip(v.iter_mut()) {
                *v = momentum.mul(*v).add(g.add(decay.mul(*p))).flushed();
                *p = p.sub(rate.mul(*v));
            }
        });
    });
}

/// `m = beta1 m + (1 - beta1) grad`, `v = beta2 v + (1 - beta2) grad^2`, `param -= rate * (m / fix1 / (sqrt(v / fix2)
/// + eps) + decay * param)`.
pub(super) fn adam<T: Float>(param: Out<'_, T>, grad: In<'_, T>, m: Out<'_, T>, v: Out<'_, T>, hyper: &AdamHyper) {
    let [rate, eps, decay] = [hyper.rate, hyper.eps, hyper.decay].map(T::from_f64);
    let [beta1, beta2] = [hyper.beta1, hyper.beta2].map(T::from_f64);
    let [rest1, rest2] = [1.0 - hyper.beta1, 1.0 - hyper.beta2].map(T::from_f64);
    let [fix1, fix2] = [1.0 / hyper.fix1, 1.0 / hyper.fix2].map(T::from_f64);
    let g = grad.all();
    threads::split_all([param.dense(), m.dense(), v.dense()], &|start, [p, m, v]| {
        let g = &g[start..start + p.len()];
        simd(p.len(), || {
            for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m.iter_mut()).zip(v.iter_mut()) {
                *m = beta1.mul(*m).add(rest1.mul(g)).flushed();
                *v = beta2.mul(*v).add(rest2.mul(g.squared())).flushed();
                let step = m.mul(fix1).div(v.mul(fix2).sqrt().add(eps));
                *p = p.sub(rate.mul(step.add(decay.mul(*p))));
            }
        });
    });
}

#[cfg(test)]
mod tests;
