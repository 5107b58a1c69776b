//! Optimisers against the same steps in scalars of f64; in place, and making nothing after their first step.

use ndgc::nn::{Adam, AdamConfig, AdamW, Optimizer, ParamsAdamW, SGD, SgdConfig, StepRule};
use ndgc::{DType, Device, Error, GradStore, NdManager, Tensor, Var, gc};

use crate::ops::support::{active, each, error, f64s, values};

const START: [f64; 4] = [1., -2., 3., 0.5];
/// Curvature of each coordinate, so that no two behave alike.
const SCALE: [f64; 4] = [1., 0.1, 3., 0.7];

/// `sum(scale * x^2)` and its gradient.
fn gradient(x: &Var) -> GradStore {
    let scale = f64s(x.device(), &SCALE, *x.shape()).to_dtype(x.dtype()).unwrap();
    x.sqr().unwrap().mul(&scale).unwrap().sum_all().unwrap().backward().unwrap()
}

/// Twenty steps of both; every coordinate on its own.
fn compare<O: Optimizer>(device: &Device, make: impl Fn(Vec<Var>) -> O, step: impl Fn(&mut Scalar, f64)) {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        let start = f64s(device, &START, (2, 2)).to_dtype(dtype).unwrap();
        let x = Var::from_tensor(&start).unwrap();
        let mut optimiser = make(vec![x.clone()]);
        let mut scalars = START.map(|x| Scalar { x, ..Scalar::default() });
        for t in 1..=20 {
            let grads = gradient(&x);
            optimiser.step(&grads).unwrap();
            for (scalar, scale) in scalars.iter_mut().zip(SCALE) {
                scalar.t = t;
                let grad = 2. * scale * scalar.x;
                step(scalar, grad);
            }
            let got = values::<f64>(&x.detach().to_dtype(DType::F64).unwrap());
            for (got, want) in got.iter().zip(&scalars) {
                assert!(
                    (got - want.x).abs() <= tolerance * (1. + want.x.abs()),
                    "step {t} in {dtype}: {got} and {}",
                    want.x
                );
            }
        }
    }
}

/// The state of one coordinate.
#[derive(Default)]
struct Scalar {
    x: f64,
    velocity: f64,
    m: f64,
    v: f64,
    t: i32,
}

#[test]
fn sgd_follows_its_definition_with_and_without_momentum_and_decay() {
    each(|device| {
        for (momentum, decay) in [(0., 0.), (0.9, 0.), (0., 0.01), (0.8, 0.05)] {
            let config = SgdConfig { rate: 0.05, momentum, decay };
            compare(
                device,
                |variables| SGD::with_config(variables, config).unwrap(),
                |s, grad| {
                    s.velocity = momentum * s.velocity + grad + decay * s.x;
                    s.x -= 0.05 * s.velocity;
                },
            );
        }
        compare(device, |variables| SGD::new(variables, 0.1).unwrap(), |s, grad| s.x -= 0.1 * grad);
    });
}

#[test]
fn adam_follows_its_definition_with_decoupled_decay() {
    each(|device| {
        for decay in [0., 0.1] {
            let config = AdamConfig { rate: 0.05, beta1: 0.8, beta2: 0.95, eps: 1e-6, decay };
            compare(
                device,
                |variables| Adam::with_config(variables, config).unwrap(),
                |s, grad| {
                    s.m = 0.8 * s.m + 0.2 * grad;
                    s.v = 0.95 * s.v + 0.05 * grad * grad;
                    let (m, v) = (s.m / (1. - 0.8f64.powi(s.t)), s.v / (1. - 0.95f64.powi(s.t)));
                    s.x -= 0.05 * (m / (v.sqrt() + 1e-6) + decay * s.x);
                },
            );
        }
    });
}

/// Steps with ready gradients, of which one is in strides; what the steps make is counted.
fn make_nothing<O: Optimizer>(device: &Device, make: impl Fn(Vec<Var>) -> O) {
    let manager = NdManager::new_base_manager(device).unwrap();
    let variables = [Var::ones((3, 4), DType::F32, &manager).unwrap(), Var::ones(5, DType::F64, &manager).unwrap()];
    let mut optimiser = make(variables.to_vec());
    let loss = || {
        let first = variables[0].sqr().unwrap().sum_all().unwrap();
        first.add(&variables[1].sqr().unwrap().sum_all().unwrap().to_dtype(DType::F32).unwrap()).unwrap()
    };
    let books = || (active(device), gc::stats().created, manager.array_count());
    optimiser.step(&loss().backward().unwrap()).unwrap();
    gc::collect();
    gc::collect_orphans();
    let grads = loss().backward().unwrap();
    gc::collect_orphans();
    let before = books();
    let values_before = values::<f32>(&variables[0]);
    for _ in 0..5 {
        optimiser.step(&grads).unwrap();
    }
    assert_eq!(books(), before, "five steps made no array and took no byte");
    assert!(values::<f32>(&variables[0]) != values_before);
    assert_eq!(manager.array_count(), 2, "the state of the optimiser is not with the manager");
    drop(optimiser);
    manager.close().unwrap();
}

#[test]
fn optimisers_make_nothing_after_their_first_step() {
    each(|device| {
        make_nothing(device, |v| SGD::new(v, 0.1).unwrap());
        make_nothing(device, |v| SGD::with_config(v, SgdConfig { rate: 0.1, momentum: 0.9, decay: 0.1 }).unwrap());
        make_nothing(device, |v| Adam::new(v, 0.1).unwrap());
    });
}

#[test]
fn a_step_says_that_a_variable_was_closed_and_changes_none() {
    each(|device| {
        let [x, y] = [(); 2].map(|()| Var::ones(3, DType::F32, device).unwrap());
        let grads = x.sqr().unwrap().add(&y.sqr().unwrap()).unwrap().sum_all().unwrap().backward().unwrap();
        y.close();
        let all = || vec![x.clone(), y.clone()];
        assert!(matches!(SGD::new(all(), 0.1).unwrap().step(&grads), Err(Error::StaleArray(_))));
        assert!(matches!(Adam::new(all(), 0.1).unwrap().step(&grads), Err(Error::StaleArray(_))));
        assert_eq!(values::<f32>(&x), [1.; 3], "nothing of the step was made");
    });
}

#[test]
fn a_variable_without_a_gradient_stays_as_it_is() {
    each(|device| {
        let (x, idle) = (Var::ones(3, DType::F32, device).unwrap(), Var::ones(3, DType::F32, device).unwrap());
        let mut adam =
            Adam::with_config(vec![idle.clone(), x.clone()], AdamConfig { decay: 0.5, ..Default::default() }).unwrap();
        adam.backward_step(&x.sqr().unwrap().sum_all().unwrap()).unwrap();
        assert_eq!(values::<f32>(&idle), [1.; 3]);
        assert!(values::<f32>(&x)[0] < 1.);
    });
}

#[test]
fn the_learning_rate_can_be_read_and_set_and_must_be_a_number() {
    each(|device| {
        let x = Var::ones(1, DType::F64, device).unwrap();
        let mut sgd = SGD::new(vec![x.clone()], 0.5).unwrap();
        sgd.set_learning_rate(0.25);
        assert_eq!(sgd.learning_rate(), 0.25);
        sgd.backward_step(&x.sum_all().unwrap()).unwrap();
        assert_eq!(values::<f64>(&x), [0.75]);
        for rate in [-1., f64::NAN, f64::INFINITY] {
            assert!(matches!(error(SGD::new(vec![], rate)), Error::Argument { op: "sgd", .. }));
            assert!(matches!(error(Adam::new(vec![], rate)), Error::Argument { op: "adam", .. }));
        }
    });
}

#[test]
fn a_learning_rate_that_no_optimiser_begins_with_is_refused_by_the_step() {
    each(|device| {
        let x = Var::ones(1, DType::F64, device).unwrap();
        let grads = x.sum_all().unwrap().backward().unwrap();
        let mut sgd = SGD::new(vec![x.clone()], 0.5).unwrap();
        let mut adam = Adam::new(vec![x.clone()], 0.5).unwrap();
        let mut adam_w = AdamW::new_lr(vec![x.clone()], 0.5).unwrap();
        for rate in [-1., f64::NAN, f64::INFINITY] {
            sgd.set_learning_rate(rate);
            adam.set_learning_rate(rate);
            adam_w.set_params(ParamsAdamW { lr: rate, ..ParamsAdamW::default() });
            let found = error(sgd.step(&grads));
            assert!(matches!(found, Error::Argument { op: "sgd_step_", argument: "learning rate", .. }), "{found}");
            for found in [error(adam.step(&grads)), error(adam_w.step(&grads))] {
                assert!(
                    matches!(found, Error::Argument { op: "adam_step_", argument: "learning rate", .. }),
                    "{found}"
                );
            }
            adam_w.set_learning_rate(rate);
            assert!(matches!(error(adam_w.step(&grads)), Error::Argument { argument: "learning rate", .. }));
        }
        assert_eq!(values::<f64>(&x), [1.], "as before");
        sgd.set_learning_rate(0.25);
        sgd.step(&grads).unwrap();
        assert_eq!(values::<f64>(&x), [0.75]);
    });
}

#[test]
fn a_step_that_is_refused_changes_nothing() {
    each(|device| {
        let x = Tensor::ones((2, 2), DType::F32, device).unwrap();
        let three = Tensor::ones(3, DType::F32, device).unwrap();
        let grad = Tensor::ones((2, 2), DType::F32, device).unwrap();
        let step = |x: &Tensor, grad: &Tensor, velocity| x.sgd_step_(grad, velocity, 0.1, 0.9, 0.);
        assert!(matches!(error(step(&x, &three, None)), Error::ShapeMismatch { op: "sgd_step_", .. }));
        assert!(matches!(error(step(&x, &grad, Some(&three))), Error::ShapeMismatch { op: "sgd_step_", .. }));
        assert!(matches!(error(step(&x.t().unwrap(), &grad, None)), Error::Shape { op: "sgd_step_", .. }));
        let ints = grad.to_dtype(DType::I64).unwrap();
        assert!(matches!(error(step(&ints, &ints, None)), Error::UnsupportedDType { op: "sgd_step_", .. }));
        let doubles = grad.to_dtype(DType::F64).unwrap();
        assert!(matches!(error(step(&x, &doubles, None)), Error::DTypeMismatch { op: "sgd_step_", .. }));
        assert_eq!(values::<f32>(&x), [1.; 4]);
        // A gradient in strides is right.
        step(&x, &Tensor::new([[1f32, 2.], [3., 4.]], device).unwrap().t().unwrap(), None).unwrap();
        assert_eq!(values::<f32>(&x), [0.9, 0.7, 0.8, 0.6]);
    });
}

#[test]
fn a_step_whose_operands_share_bytes_is_refused_or_right() {
    each(|device| {
        let x = f64s(device, &[1., 2.], 2);
        match x.sgd_step_(&x, None, 0.5, 0., 0.) {
            Ok(()) => assert_eq!(values::<f64>(&x), [0.5, 1.]),
            Err(error) => {
                assert!(matches!(error, Error::InUse { op: "sgd_step_", .. }), "{error}");
                assert_eq!(values::<f64>(&x), [1., 2.]);
            }
        }
        let y = f64s(device, &[1., 2.], 2);
        let grad = f64s(device, &[1., 1.], 2);
        match y.sgd_step_(&grad, Some(&y), 0.5, 0.9, 0.) {
            Ok(()) => panic!("a parameter that is its own velocity has no meaning"),
            Err(error) => assert!(matches!(error, Error::InUse { .. } | Error::Argument { .. }), "{error}"),
        }
        assert_eq!(values::<f64>(&y), [1., 2.]);
    });
}

/// Steps of the other rules on every device, each with the arrays that it keeps, against the same in scalars.
#[test]
fn the_other_rules_follow_their_definitions() {
    let mean = |old: f64, beta: f64, new: f64| old * beta + new * (1. - beta);
    type Step<'a> = &'a dyn Fn(&mut [f64; 4], f64, i32);
    // Of each the parameter, and what is kept.
    let nesterov: Step<'_> = &|[x, v, ..], g, _| {
        let old = *v;
        *v = 0.9 * *v - 0.05 * g;
        *x += *v + 0.9 * (*v - old);
    };
    let ams_grad: Step<'_> = &|[x, m, v, h], g, t| {
        (*m, *v) = (mean(*m, 0.8, g), mean(*v, 0.95, g * g));
        *h = h.max(*v);
        *x -= 0.05 * (1. - 0.95f64.powi(t)).sqrt() / (1. - 0.8f64.powi(t)) * *m / (h.sqrt() + 1e-3);
    };
    let nadam: Step<'_> = &|[x, m, v, _], g, t| {
        (*m, *v) = (mean(*m, 0.8, g), mean(*v, 0.95, g * g));
        let ahead = 0.8 * *m / (1. - 0.8f64.powi(t + 1)) + 0.2 * g / (1. - 0.8f64.powi(t));
        *x -= 0.05 * ahead / ((*v / (1. - 0.95f64.powi(t))).sqrt() + 1e-3);
    };
    let ada_max: Step<'_> = &|[x, m, u, _], g, t| {
        (*m, *u) = (mean(*m, 0.8, g), (0.95 * *u).max(g.abs()));
        *x -= 0.05 / (1. - 0.8f64.powi(t)) * *m / (*u + 1e-32);
    };
    let rms_prop: Step<'_> = &|[x, s, ..], g, _| {
        *s = mean(*s, 0.95, g * g);
        *x -= 0.05 * g / (s.sqrt() + 1e-3);
    };
    let ada_grad: Step<'_> = &|[x, s, ..], g, _| {
        *s += g * g;
        *x -= 0.05 * g / (s.sqrt() + 1e-3);
    };
    let ada_delta: Step<'_> = &|[x, s, e, _], g, _| {
        *s = mean(*s, 0.95, g * g);
        let d = g * (*e + 1e-3).sqrt() / (*s + 1e-3).sqrt();
        *e = mean(*e, 0.95, d * d);
        *x -= 0.05 * d;
    };
    let (beta1, beta2, epsilon) = (0.8, 0.95, 1e-3);
    let rules = [
        (StepRule::Nesterov { momentum: 0.9 }, nesterov),
        (StepRule::AmsGrad { beta1, beta2, epsilon }, ams_grad),
        (StepRule::Nadam { beta1, beta2, epsilon }, nadam),
        (StepRule::AdaMax { beta1, beta2 }, ada_max),
        (StepRule::RmsProp { decay: beta2, epsilon }, rms_prop),
        (StepRule::AdaGrad { epsilon }, ada_grad),
        (StepRule::AdaDelta { rho: beta2, epsilon }, ada_delta),
    ];
    each(|device| {
        for (rule, step) in rules {
            let x = f64s(device, &START, (2, 2));
            let kept: Vec<Tensor> = (0..rule.kept()).map(|_| x.zeros_like().unwrap()).collect();
            let mut scalars = START.map(|x| [x, 0., 0., 0.]);
            for t in 1..=20 {
                // Along strides, as a gradient may lie.
                let grad = x.t().unwrap().contiguous().unwrap().t().unwrap();
                x.optimizer_step_(&grad, &kept, rule, 0.05, t).unwrap();
                scalars.iter_mut().for_each(|now| step(now, now[0], t));
            }
            let near = |got: Vec<f64>, at: usize| {
                let close = |(got, now): (&f64, &[f64; 4])| (got - now[at]).abs() <= 1e-12 * (1. + now[at].abs());
                assert!(got.iter().zip(&scalars).all(close), "{rule:?}, {at}: {got:?} and {scalars:?}");
            };
            near(values::<f64>(&x), 0);
            kept.iter().enumerate().for_each(|(i, kept)| near(values::<f64>(kept), i + 1));
            let fewer = x.optimizer_step_(&x.copy().unwrap(), &kept[1..], rule, 0.05, 1);
            assert!(matches!(error(fewer), Error::Argument { op: "optimizer_step_", argument: "kept", .. }));
        }
    });
}

/// Each step by itself, as a program calls it, not by way of an optimiser.
#[test]
fn a_step_along_a_gradient_in_strides_leaves_nothing_with_its_manager() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let zeros = || manager.zeros((2, 3), DType::F64).unwrap();
        let [x, m, v] = [zeros(), zeros(), zeros()];
        let base = manager.from_slice(&[1f64, 2., 3., 4., 5., 6.], (3, 2)).unwrap();
        let grad = base.t().unwrap();
        gc::collect();
        let count = manager.array_count();
        x.sgd_step_(&grad, None, 1., 0., 0.).unwrap();
        x.sgd_step_(&grad, Some(&m), 1., 0.5, 0.).unwrap();
        assert_eq!(values::<f64>(&x), [-2., -6., -10., -4., -8., -12.]);
        x.adam_step_(&grad, &m, &v, 1, &AdamConfig::default()).unwrap();
        x.optimizer_step_(&grad, std::slice::from_ref(&m), StepRule::AdaGrad { epsilon: 0.1 }, 0.5, 1).unwrap();
        gc::collect();
        assert_eq!(manager.array_count(), count);
        manager.close().unwrap();
    });
}
