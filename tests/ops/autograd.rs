//! The gradient graph itself: long chains, what it keeps, what it refuses, what is left when a step is over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::{
    DType, Device, Error, Generator, GradStore, NdManager, SimConfig, Tensor, Var, gc, is_grad_enabled, no_grad,
    node_count,
};

use crate::ops::support::{alone, check, devices, each, error, f64s, values};

fn var(device: &Device, data: &[f64]) -> Var {
    Var::from_vec(data.to_vec(), data.len(), device).unwrap()
}

/// Runs `body` on a thread whose stack is far smaller than a recursion over a long chain would need.
fn on_a_small_stack(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, body).unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn a_chain_of_100000_operations_overflows_neither_in_backward_nor_in_drop() {
    alone(|| {
        let length = if cfg!(miri) { 1000 } else { 100_000 };
        for (device, length) in devices().into_iter().zip([length, length / 10, length / 100]) {
            let nodes = node_count();
            on_a_small_stack(|| {
                let x = var(&device, &[1., 2.]);
                let mut y = x.as_tensor().clone();
                for _ in 0..length {
                    y = y.affine(1.0, 1e-6).unwrap();
                }
                let grads = y.backward().unwrap();
                assert_eq!(values::<f64>(grads.get(&x).unwrap()), [1., 1.]);
                // All but the last value are gone; the graph hangs on it alone.
                assert!(node_count() >= nodes + length);
                drop(y);
                gc::collect();
            });
            gc::collect();
            assert_eq!(node_count(), nodes, "on {device}");
            check(&device);
        }
    });
}

#[test]
fn a_long_chain_whose_values_are_all_held_drops_in_any_order() {
    alone(|| {
        let nodes = node_count();
        on_a_small_stack(|| {
            for reversed in [false, true] {
                let x = var(&Device::Cpu, &[1.]);
                let mut all = vec![x.as_tensor().clone()];
                for i in 0..20_000 {
                    // Two ways to each value, as in a residual network.
                    all.push(all[i].add(&all[i / 2]).unwrap().affine(0.5, 0.).unwrap());
                }
                if reversed {
                    all.reverse();
                }
                drop(all);
                drop(x);
                gc::collect();
            }
        });
        assert_eq!(node_count(), nodes);
    });
}

#[test]
fn a_chain_of_joins_and_of_views_is_walked_without_recursion() {
    alone(|| {
        on_a_small_stack(|| {
            let x = var(&Device::Cpu, &[1., 2.]);
            let parts: Vec<Tensor> = (0..5000).map(|_| x.as_tensor().clone()).collect();
            let joined = Tensor::cat(&parts, 0).unwrap();
            assert_eq!(values::<f64>(joined.backward().unwrap().get(&x).unwrap()), [5000., 5000.]);
            let mut y = x.as_tensor().clone();
            for i in 0..5000 {
                y = if i % 2 == 0 { y.unsqueeze(0).unwrap() } else { y.squeeze(0).unwrap() };
            }
            assert_eq!(values::<f64>(y.backward().unwrap().get(&x).unwrap()), [1., 1.]);
        });
    });
}

#[test]
fn no_grad_records_nothing_and_restores_what_was_also_after_a_panic() {
    each(|device| {
        let x = var(device, &[1., 2.]);
        let before = node_count();
        let y = no_grad(|| {
            assert!(!is_grad_enabled());
            no_grad(|| assert!(!is_grad_enabled()));
            assert!(!is_grad_enabled(), "the inner one restores what the outer one set");
            x.exp().unwrap().add(&x).unwrap()
        });
        assert!(is_grad_enabled() && !y.track_op());
        assert_eq!(node_count(), before);
        assert!(catch_unwind(AssertUnwindSafe(|| no_grad(|| panic!("of the test")))).is_err());
        assert!(is_grad_enabled(), "a panic restores it");
        assert!(matches!(no_grad(|| x.reshape((3, 3)).map(drop)), Err(Error::Reshape { .. })));
        assert!(is_grad_enabled() && x.exp().unwrap().track_op());
        // Other threads have a switch of their own.
        no_grad(|| std::thread::scope(|s| s.spawn(|| assert!(is_grad_enabled())).join().unwrap()));
    });
}

#[test]
fn backward_without_a_variable_is_an_error() {
    each(|device| {
        let a = f64s(device, &[1., 2.], 2);
        assert!(matches!(error(a.sum_all().unwrap().backward()), Error::NoGradient { .. }));
        let x = var(device, &[1., 2.]);
        assert!(matches!(error(x.detach().sqr().unwrap().backward()), Error::NoGradient { .. }));
        assert!(matches!(error(no_grad(|| x.sqr().unwrap()).backward()), Error::NoGradient { .. }));
        assert!(matches!(error(x.gt(&a).unwrap().backward()), Error::NoGradient { .. }), "comparisons have none");
        assert!(matches!(error(x.argmax(0).unwrap().backward()), Error::NoGradient { .. }));
        assert!(matches!(error(x.to_dtype(DType::I64).unwrap().backward()), Error::NoGradient { .. }));
        let ints = Tensor::ones(2, DType::I64, device).unwrap();
        assert!(matches!(error(Var::from_tensor(&ints)), Error::UnsupportedDType { op: "var", .. }));
        // Of the variable itself: 1.
        assert_eq!(values::<f64>(x.backward().unwrap().get(&x).unwrap()), [1., 1.]);
        let y = x.sqr().unwrap();
        y.close();
        assert!(matches!(error(y.backward()), Error::StaleArray(_)));
    });
}

#[test]
fn a_value_changed_in_place_after_it_was_saved_is_an_error_that_names_the_operation() {
    each(|device| {
        let x = var(device, &[1., 2.]);
        let data = f64s(device, &[3., 4.], 2);
        let y = x.mul(&data).unwrap();
        data.affine_(2., 0.).unwrap();
        let found = error(y.backward());
        assert!(
            matches!(found, Error::ChangedSinceSaved { op: "mul", site, .. } if site.file().ends_with("autograd.rs")),
            "{found}"
        );
        let y = x.exp().unwrap();
        no_grad(|| y.zero_()).unwrap();
        assert!(matches!(error(y.backward()), Error::ChangedSinceSaved { op: "exp", .. }), "its own output");
        let y = x.sqr().unwrap();
        x.set(&data).unwrap();
        assert!(matches!(error(y.backward()), Error::ChangedSinceSaved { op: "sqr", .. }), "the variable");
        let view = data.narrow(0, 0, 1).unwrap();
        let y = x.mul(&data).unwrap();
        view.zero_().unwrap();
        assert!(matches!(error(y.backward()), Error::ChangedSinceSaved { op: "mul", .. }), "through a view");
        // A value that no gradient needs may change.
        let y = x.add(&data).unwrap();
        data.zero_().unwrap();
        assert_eq!(values::<f64>(y.backward().unwrap().get(&x).unwrap()), [1., 1.]);
    });
}

/// A chain whose values are large beside its gradients: what was used ends on the way.
#[test]
fn a_value_that_is_given_up_ends_what_was_saved_as_it_goes_back() {
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        let (length, rows) = (20, 4096);
        let vars: Vec<Var> = (0..length).map(|i| var(&Device::Cpu, &[1. + f64::from(i) / 100.])).collect();
        let loss = || {
            let start = Tensor::ones(rows, DType::F64, &Device::Cpu).unwrap();
            let step = |x: Tensor, w: &Var| x.broadcast_mul(w).unwrap().tanh().unwrap();
            vars.iter().fold(start, step).sum_all().unwrap()
        };
        let peak = |once: bool| {
            let loss = loss();
            gc::collect();
            let before = Device::Cpu.memory().active;
            Device::Cpu.reset_peak();
            let grads = if once { loss.backward_once() } else { loss.backward() }.unwrap();
            let found: Vec<Vec<f64>> = vars.iter().map(|w| values(grads.get(w).unwrap())).collect();
            (found, Device::Cpu.memory().peak - before, Device::Cpu.memory().active)
        };
        let (expected, more, kept) = peak(false);
        let (found, less, left) = peak(true);
        assert_eq!(found, expected);
        assert!(less <= more && left + 8 * rows as u64 * u64::from(length as u32) < kept, "{left} and {kept} are left");
        let (x, data) = (&vars[0], f64s(&Device::Cpu, &[3., 4.], 2));
        let y = x.broadcast_mul(&data).unwrap();
        data.zero_().unwrap();
        assert!(matches!(error(y.backward_once()), Error::ChangedSinceSaved { .. }), "as `backward`");
    });
}

#[test]
fn gradients_own_their_arrays_and_add_up_over_all_uses() {
    each(|device| {
        let (x, y) = (var(device, &[1., 2.]), var(device, &[3., 4.]));
        // One array would serve both variables, and twice the first.
        let loss = x.add(&y).unwrap().add(&x).unwrap();
        let grads = loss.backward().unwrap();
        let (gx, gy) = (grads.get(&x).unwrap(), grads.get(&y).unwrap());
        assert!(gx.is_unique().unwrap() && gy.is_unique().unwrap() && gx.is_detached().unwrap());
        gx.zero_().unwrap();
        assert_eq!((values::<f64>(gx), values::<f64>(gy)), (vec![0., 0.], vec![1., 1.]));
        // The graph is as it was: again the same, and nothing adds up in secret.
        let again = loss.backward().unwrap();
        assert_eq!(values::<f64>(again.get(&x).unwrap()), [2., 2.]);
        assert_eq!((again.len(), again.is_empty()), (2, false));
        assert!(again.get(&loss).is_none(), "only variables have one");
        assert!(!gx.track_op());
    });
}

#[test]
fn a_store_gives_gradients_out_and_takes_others_in() {
    each(|device| {
        let (x, other) = (var(device, &[1., 2.]), var(device, &[1.]));
        let mut grads = x.sqr().unwrap().backward().unwrap();
        assert!(grads.get(&other).is_none());
        let taken = grads.remove(&x).unwrap();
        assert_eq!(values::<f64>(&taken), [2., 4.]);
        assert!(grads.is_empty() && grads.remove(&x).is_none());
        assert!(grads.insert(&x, taken).is_none());
        let before = grads.insert(&x, f64s(device, &[7., 8.], 2)).unwrap();
        assert_eq!(values::<f64>(&before), [2., 4.]);
        assert_eq!(values::<f64>(grads.get(&x.clone()).unwrap()), [7., 8.]);
        assert!(grads.insert(&before, before.clone()).is_none());
        assert_eq!(grads.len(), 1, "an array that is no variable has no place");
        assert!(grads.insert_id(before.id(), before.clone()).is_none() && grads.len() == 1);
        let before = grads.insert_id(x.id(), f64s(device, &[1., 1.], 2)).unwrap();
        assert_eq!(values::<f64>(&before), [7., 8.]);
        let gone = var(device, &[1.]).id();
        gc::collect();
        assert!(grads.insert_id(gone, before).is_none() && grads.len() == 1);
    });
}

#[test]
fn gradients_of_several_losses_add_up() {
    each(|device| {
        let (x, y) = (var(device, &[1., 2.]), var(device, &[5., 6.]));
        let mut grads = GradStore::default();
        for loss in [x.sqr(), x.mul(&y), y.exp().and_then(|y| y.affine(0., 0.))] {
            grads.extend(loss.unwrap().backward().unwrap()).unwrap();
        }
        assert_eq!(values::<f64>(grads.get(&x).unwrap()), [7., 10.]);
        assert_eq!(values::<f64>(grads.get(&y).unwrap()), [1., 2.]);
        let kept = grads.get(&x).unwrap().clone();
        grads.extend(x.sqr().unwrap().backward().unwrap()).unwrap();
        assert_eq!(values::<f64>(&kept), [7., 10.], "a sum is an array of its own");
        let other = f64s(device, &[1.], 1);
        let mut wrong = GradStore::default();
        wrong.insert(&x, other);
        let refused = error(grads.extend(wrong));
        assert!(matches!(refused, Error::ShapeMismatch { op: "extend", .. }), "{refused}");
        assert_eq!(values::<f64>(grads.get(&x).unwrap()), [9., 14.], "and what was there stays");
    });
}

#[test]
fn the_graph_of_a_step_is_gone_when_its_values_are() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let w = Var::randn(0f32, 1., (3, 4), &manager).unwrap();
        let x = Tensor::ones((2, 4), DType::F32, device).unwrap();
        let before = (node_count(), manager.array_count());
        for _ in 0..3 {
            let hidden = x.linear(&w, None).unwrap().relu().unwrap();
            let loss = Tensor::cat(&[&hidden, &hidden], 0).unwrap().softmax(1).unwrap().mean_all().unwrap();
            assert!(node_count() > before.0);
            let grads = loss.backward().unwrap();
            assert_eq!(grads.len(), 1);
            drop((hidden, loss, grads));
            gc::collect();
            assert_eq!((node_count(), manager.array_count()), before, "the manager of the variable has nothing more");
        }
        manager.close().unwrap();
    });
}

/// Invariant I8 (design.md).
#[test]
fn what_a_gradient_needs_survives_the_close_and_the_reaping_of_the_arrays() {
    each(|device| {
        let x = var(device, &[1., 2.]);
        let manager = NdManager::new_base_manager(device).unwrap();
        let make = || manager.from_slice(&[3f64, 4.], 2).unwrap();
        // Closed by hand.
        let data = make();
        let inner = x.mul(&data).unwrap();
        let loss = inner.exp().unwrap().log().unwrap().sum_all().unwrap();
        data.close();
        inner.close();
        assert_eq!(values::<f64>(loss.backward().unwrap().get(&x).unwrap()), [3., 4.]);
        // Dropped, and reaped where the switch is on.
        let loss = x.mul(&make()).unwrap().sqr().unwrap().sum_all().unwrap();
        gc::collect();
        gc::collect_orphans();
        let other = manager.from_slice(&[9f64; 2], 2).unwrap();
        assert_eq!(values::<f64>(loss.backward().unwrap().get(&x).unwrap()), [18., 64.]);
        // Closed with its manager.
        let loss = x.mul(&other).unwrap().sum_all().unwrap();
        manager.close().unwrap();
        assert_eq!(values::<f64>(loss.backward().unwrap().get(&x).unwrap()), [9., 9.]);
        // The variable itself is closed: its gradient is no longer asked for, the others are.
        let y = var(device, &[5., 6.]);
        let loss = x.mul(&y).unwrap().sum_all().unwrap();
        y.close();
        let grads = loss.backward().unwrap();
        assert_eq!(values::<f64>(grads.get(&x).unwrap()), [5., 6.]);
        assert!(grads.get(&y).is_none());
    });
}

#[test]
fn gradients_cross_devices_and_threads() {
    alone(|| {
        let sim = Device::sim(SimConfig::default());
        let x = var(&Device::Cpu, &[1., 2.]);
        let y = x.sqr().unwrap().to_device(&sim).unwrap();
        assert_eq!(y.device(), &sim);
        let loss = y.mul(&f64s(&sim, &[3., 4.], 2)).unwrap().sum_all().unwrap();
        let grads = std::thread::scope(|scope| scope.spawn(|| loss.backward().unwrap()).join().unwrap());
        let grad = grads.get(&x).unwrap();
        assert_eq!((grad.device(), values::<f64>(grad)), (&Device::Cpu, vec![6., 16.]));
        drop((y, loss, grads));
        check(&sim);
    });
}

#[test]
fn a_copy_on_another_device_says_where_it_was_made() {
    alone(|| {
        let sim = Device::sim(SimConfig::default());
        let x = var(&Device::Cpu, &[1., 2.]);
        let plain = x.detach().to_device(&sim).unwrap();
        assert!(plain.created_at().unwrap().file().ends_with("autograd.rs"));
        let tracked = x.to_device(&sim).unwrap();
        let site = tracked.created_at().unwrap();
        assert!(site.file().ends_with("autograd.rs"), "{site}");
    });
}

#[test]
fn gradients_at_the_edges_of_functions_are_finite_where_the_limit_is() {
    each(|device| {
        let zero = var(device, &[0.]);
        let of = |y: Tensor| values::<f64>(y.backward().unwrap().get(&zero).unwrap())[0];
        assert_eq!(of(zero.relu().unwrap()), 0.);
        assert_eq!(of(zero.abs().unwrap()), 0.);
        assert_eq!(of(zero.sqr().unwrap()), 0.);
        assert_eq!(of(zero.powf(2.).unwrap()), 0.);
        assert_eq!(of(zero.powf(1.).unwrap()), 1.);
        assert_eq!(of(zero.powf(0.).unwrap()), 0., "x ^ 0 is 1 everywhere");
        assert_eq!(of(zero.sqrt().unwrap()), f64::INFINITY);
        assert_eq!(of(zero.maximum(&zero).unwrap()), 1.);
        let ties = var(device, &[2., 1., 2.]);
        let grads = ties.max_all().unwrap().backward().unwrap();
        assert_eq!(values::<f64>(grads.get(&ties).unwrap()), [0.5, 0., 0.5], "shared among equals");
        let large = var(device, &[-1000., 1000.]);
        for y in [large.sigmoid().unwrap(), large.tanh().unwrap(), large.softmax(0).unwrap()] {
            assert_eq!(values::<f64>(y.backward().unwrap().get(&large).unwrap()), [0., 0.]);
        }
    });
}

#[test]
fn gradients_of_powers_at_zero_are_zero_as_in_other_libraries() {
    each(|device| {
        let of = |x: f64, y: f64| {
            let (x, y) = (var(device, &[x]), var(device, &[y]));
            let grads = x.pow(&y).unwrap().backward().unwrap();
            [&x, &y].map(|v| values::<f64>(grads.get(v).unwrap())[0])
        };
        assert_eq!(of(0., 2.), [0., 0.], "0 ^ 2");
        assert_eq!(of(0., 0.)[0], 0., "0 ^ 0, in the base");
        assert_eq!(of(-2., 3.)[0], 12., "a negative base and a whole exponent");
    });
}

#[test]
fn random_initial_values_make_variables_like_any_other() {
    each(|device| {
        let mut random = Generator::new(1);
        let start = random.normal(0., 1., 3, DType::F64, device).unwrap();
        let x = Var::try_from(start.clone()).unwrap();
        assert_eq!(values::<f64>(&x), values::<f64>(&start));
        start.zero_().unwrap();
        assert!(values::<f64>(&x) != [0.; 3], "a variable has a copy");
        for x in [Var::zeros(2, DType::F32, device).unwrap(), Var::ones(2, DType::F32, device).unwrap()] {
            assert!(x.track_op() && x.is_detached().unwrap());
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_large_walk_leaves_no_table_that_each_small_one_clears() {
    /// What a thread keeps in any case.
    const ROOM: usize = 1 << 16;
    let walked = |steps: usize| {
        let x = var(&Device::Cpu, &[1.]);
        let y = (0..steps).try_fold(x.as_tensor().clone(), |y, _| y.affine(1., 1.)).unwrap();
        y.backward().unwrap();
        ndgc::bench::room_of_walks()
    };
    alone(|| {
        assert!(walked(2 * ROOM) > ROOM, "the next such walk uses it again");
        assert!(walked(1) <= ROOM);
    });
}
