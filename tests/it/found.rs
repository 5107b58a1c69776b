//! What an attack from outside found: tests of findings of design.md, "What attack found". Others stand beside what they
//! are about: F11 in `ops/dlpack.rs`, F13 in `process.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::{
    Budget, BudgetUse, CpuStorage, CustomOp1, DType, Device, Error, Key, Layout, NdManager, Proxy, Result, Shape,
    Tensor, Var, Workspace, WorkspaceConfig, destroy_all_workspaces_for_current_thread, gc,
};

use crate::it::support::{alone, base, live_bytes, matrix, values};

/// How long threads are let loose on each other.
const A_WHILE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1500 } else { 600 });

/// Runs `others` on a thread of its own, again and again, while `f` does its rounds.
fn beside(others: impl Fn() + Sync, mut f: impl FnMut()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                others();
            }
        });
        let end = Instant::now() + A_WHILE;
        let answer = catch_unwind(AssertUnwindSafe(|| {
            while Instant::now() < end {
                f();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        answer.unwrap();
    });
}

#[test]
fn f1_a_temporary_that_somebody_exchanges_never_writes_into_what_is_lent_for_reading() {
    alone(|| {
        let lent: Arc<Vec<u8>> = Arc::new(1f32.to_ne_bytes().repeat(4096));
        let before = lent.to_vec();
        let key = AtomicU64::new(0);
        // Each once: while it has a handle there is no temporary.
        let exchange = || {
            let Some(found) = Proxy::from_registry(Key::from_ffi(key.swap(0, Ordering::Relaxed))) else { return };
            let shared = Tensor::from_shared(Arc::clone(&lent), 0..lent.len(), DType::F32, 4096, &Device::Cpu);
            let _ = found.intern(shared.unwrap());
        };
        beside(exchange, || {
            let temporary = Tensor::full(5f32, 4096, &Device::Cpu).unwrap();
            key.store(temporary.key().as_ffi(), Ordering::Relaxed);
            if let Ok(sum) = temporary + 1. {
                let first = sum.get(0).and_then(|first| first.to_scalar::<f32>());
                assert!(matches!(first, Ok(6.) | Ok(2.)), "{first:?}");
            }
            assert!(*lent == before, "lent for reading");
        });
    });
}

/// Invariant I5 (design.md).
#[test]
fn f2_a_result_closed_by_its_key_is_not_hung_into_a_list() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let x = matrix(&manager);
        let key = AtomicU64::new(0);
        let close = || {
            if let Some(found) = Proxy::from_registry(Key::from_ffi(key.load(Ordering::Relaxed))) {
                found.close();
            }
        };
        beside(close, || {
            let made = x.compose("squared", || {
                let result = x.sqr()?;
                key.store(result.key().as_ffi(), Ordering::Relaxed);
                Ok(result)
            });
            assert!(matches!(made, Ok(_) | Err(Error::StaleArray(_))), "{made:?}");
        });
        manager.close().unwrap();
        assert_eq!(manager.array_count(), 0);
    });
}

/// Invariant I1 (design.md).
#[test]
fn f3_a_key_is_the_same_after_a_number() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let mut generations = [false; 2];
        for _ in 0..100 {
            let array = matrix(&manager);
            let number = array.key().as_ffi();
            assert_eq!(Key::from_ffi(number), array.key());
            assert!(Proxy::from_registry(Key::from_ffi(number)).unwrap().is_same(&array));
            generations[(number >> 32) as usize % 2] = true;
            // Neighbours in life, and a number of no life.
            for wrong in [number + (1 << 32), number - (1 << 32), number & 0xffff_ffff] {
                assert!(Proxy::from_registry(Key::from_ffi(wrong)).is_none(), "{number:x} {wrong:x}");
            }
            array.close();
            drop(array);
            gc::collect();
        }
        assert_eq!(generations, [true; 2], "lives of both kinds were seen");
    });
}

#[test]
fn f5_a_gradient_across_the_end_of_a_cycle_is_a_typed_error_and_the_loss_costs_a_loss() {
    alone(|| {
        let _off = gc::scoped(false);
        let w = Var::from_vec(vec![1f32, 2., 3., 4.], (2, 2), &Device::Cpu).unwrap();
        let config = WorkspaceConfig::builder().initial_size(1 << 16).build().unwrap();
        let step = || {
            let x = Tensor::from_slice(&[1f32, 0., 0., 1.], (2, 2), &Device::Cpu)?;
            let hidden = x.sqr()?.matmul(&w)?;
            hidden.t()?.matmul(&hidden)?.sum_all()
        };
        let numbers = (gc::stats().live, ndgc::node_count());
        let (mut losses, mut leveraged) = (Vec::new(), None);
        let mut active = Vec::new();
        for _ in 0..1000 {
            let _cycle = Workspace::enter("F5", &config).unwrap();
            let loss = step().unwrap();
            loss.backward().unwrap();
            leveraged.get_or_insert_with(|| {
                let _out = Workspace::scope_out();
                loss.affine(1., 0.).unwrap()
            });
            losses.push(loss);
            active.push(Device::Cpu.memory().active);
        }
        assert_eq!(active[10], active[999], "no block is kept for a loss");
        let (live, nodes) = (gc::stats().live, ndgc::node_count());
        assert!(live < numbers.0 + 10 && nodes < numbers.1 + 20, "{live} arrays and {nodes} nodes of 1,000 losses");
        let stats = Workspace::find("F5").unwrap().stats();
        assert_eq!((stats.renewals, stats.kept_graphs), (0, 1000));
        assert!(stats.kept_graph_at.unwrap().file().ends_with("found.rs"));
        let report = NdManager::system(&Device::Cpu).report();
        let told = report.workspaces.iter().find(|workspace| workspace.name == "F5").unwrap();
        assert_eq!((told.kept_graphs, told.kept_graph_at), (1000, stats.kept_graph_at));
        let text = format!(
            "; 1000 graphs ended with a cycle while an array was kept, the last one made at {}",
            stats.kept_graph_at.unwrap()
        );
        assert!(report.to_string().contains(&text), "{report}");
        assert!(matches!(losses[0].backward(), Err(Error::LeakedArray(_))), "{:?}", losses[0].backward());
        let told = leveraged.unwrap().backward().unwrap_err();
        assert!(matches!(&told, Error::GraphEnded { op: "affine", workspace, .. } if workspace == "F5"), "{told}");
        assert!(told.to_string().contains("call backward before the cycle ends"), "{told}");
        drop(losses);
        destroy_all_workspaces_for_current_thread().unwrap();
        Workspace::cycle("F5", &config, || w.sqr().map(drop)).unwrap();
        let report = NdManager::system(&Device::Cpu).report();
        let told = report.workspaces.iter().find(|workspace| workspace.name == "F5").unwrap();
        assert_eq!((told.kept_graphs, told.kept_graph_at), (0, None), "another one of this name");
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// The losses of steps, kept by the epoch around them, or outside of all.
#[test]
fn f5_a_thousand_losses_that_leave_their_cycles_keep_no_graph() {
    alone(|| {
        let _off = gc::scoped(false);
        let w = Var::from_vec(vec![1f32, 2., 3., 4.], (2, 2), &Device::Cpu).unwrap();
        let config = WorkspaceConfig::builder().initial_size(1 << 20).build().unwrap();
        let kept: [fn(&Tensor) -> Result<Tensor>; 3] = [
            |loss| loss.leverage(),
            |loss| loss.leverage_to("EPOCH"),
            |loss| {
                let _out = Workspace::scope_out();
                loss.affine(1., 0.)
            },
        ];
        for keep in kept {
            let _epoch = Workspace::enter("EPOCH", &config).unwrap();
            let step = || {
                let _step = Workspace::enter("STEP", &config).unwrap();
                let loss = w.sqr()?.matmul(&w)?.sum_all()?;
                let kept = keep(&loss)?;
                let both = (&kept + keep(&loss)?)?;
                // dw^3 is 3 w^2 on the diagonal alone; it is what it would be without workspaces.
                let (grads, wanted) = (both.backward()?, (loss * 2.)?.backward()?);
                assert_eq!(values(grads.get(&w).unwrap()), values(wanted.get(&w).unwrap()));
                Ok::<_, Error>(kept)
            };
            let mut losses = vec![step().unwrap()];
            let before = (ndgc::node_count(), ndgc::graph_report().saved_values, Device::Cpu.memory().active);
            losses.extend((0..1000).map(|_| step().unwrap()));
            let after = (ndgc::node_count(), ndgc::graph_report().saved_values, Device::Cpu.memory().active);
            // The loss itself is 64 bytes, in a block of the epoch or by its handles.
            assert_eq!((after.0 - before.0, after.1 - before.1), (1000, 0), "the way out of each is left");
            assert!(after.2 <= before.2 + 64 * 1000, "{} bytes of {}", after.2, before.2);
            let told = losses[7].backward().unwrap_err();
            assert!(matches!(&told, Error::GraphEnded { workspace, .. } if workspace == "STEP"), "{told}");
            assert_eq!(losses[7].to_scalar::<f32>().unwrap(), losses[0].to_scalar::<f32>().unwrap());
            let more = (&losses[7] * &losses[8]).unwrap().backward();
            assert!(matches!(more, Err(Error::GraphEnded { .. })), "{more:?}");
        }
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn f5_a_sum_over_cycles_keeps_no_graph() {
    alone(|| {
        let w = Var::from_vec(vec![1f32, 2., 3., 4.], (2, 2), &Device::Cpu).unwrap();
        let config = WorkspaceConfig::builder().initial_size(1 << 20).build().unwrap();
        let _epoch = Workspace::enter("EPOCH", &config).unwrap();
        let mut total = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
        let mut saved = Vec::new();
        for _ in 0..300 {
            let _step = Workspace::enter("STEP", &config).unwrap();
            let loss = w.sqr().unwrap().matmul(&w).unwrap().sum_all().unwrap();
            // The loss that left is a temporary: the sum alone has a way into the graph.
            let _ = loss.leverage().unwrap();
            let left = loss.leverage().unwrap();
            let _borrowed = Workspace::find("EPOCH").unwrap().borrow().unwrap();
            total = (&total + left).unwrap();
            saved.push(ndgc::graph_report().saved_values);
        }
        assert!(saved[299] <= saved[1], "{} values saved, and {} of two steps", saved[299], saved[1]);
        assert!(matches!(total.backward(), Err(Error::GraphEnded { .. })));
        assert_eq!(total.to_scalar::<f32>().unwrap(), 300. * 170.);
    });
    destroy_all_workspaces_for_current_thread().unwrap();
}

#[test]
fn a_graph_beside_a_cycle_outlives_it() {
    alone(|| {
        let w = Var::from_vec(vec![1f32, 2.], 2, &Device::Cpu).unwrap();
        let config = WorkspaceConfig::builder().initial_size(1 << 16).build().unwrap();
        let (outside, epoch) = {
            let _epoch = Workspace::enter("EPOCH", &config).unwrap();
            // Keeps a value of this cycle.
            let hidden = w.sqr().unwrap().sqr().unwrap();
            let step = Workspace::enter("STEP", &config).unwrap();
            let nodes = ndgc::node_count();
            let _used = hidden.sum_all().unwrap();
            assert_eq!(ndgc::node_count(), nodes + 1, "what is inside has no way out of what is around it");
            let outside = {
                let _out = Workspace::scope_out();
                w.sqr().unwrap()
            };
            // Of the cycle around, which goes on.
            let epoch = {
                let _borrowed = Workspace::find("EPOCH").unwrap().borrow().unwrap();
                hidden.sqr().unwrap()
            };
            drop(step);
            assert_eq!(values(epoch.backward().unwrap().get(&w).unwrap()), [8., 1024.], "8 w^7");
            (outside, epoch)
        };
        assert_eq!(values(outside.backward().unwrap().get(&w).unwrap()), [2., 4.]);
        assert!(epoch.backward().is_err());
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn views_made_in_a_workspace_end_with_their_handles_and_not_with_the_manager() {
    alone(|| {
        let _off = gc::scoped(false);
        let manager = base(&Device::Cpu);
        let data = manager.ones((1000, 20), DType::F32).unwrap();
        let w = Var::from_vec(vec![1f32; 40], (2, 20), &manager).unwrap();
        let config = WorkspaceConfig::builder().initial_size(1 << 16).build().unwrap();
        let mut kept = Vec::new();
        for i in 0..300 {
            let _cycle = Workspace::enter("VIEWS", &config).unwrap();
            let x = data.narrow(0, i % 100 * 10, 10).unwrap();
            let made = [
                data.t(),
                data.reshape((20, 1000)),
                data.get(i),
                data.broadcast_as((2, 1000, 20)),
                w.t(),
                w.flatten_all(),
                x.matmul(&w.t().unwrap()),
                data.squeeze(0),
            ];
            drop(made.map(Result::unwrap));
            drop(data.chunk(10, 0).unwrap());
            kept.push(data.narrow(0, 0, 1).unwrap());
        }
        assert_eq!(manager.array_count(), 2);
        assert!(kept.iter().all(|view| values(view) == [1.; 20]), "a view of a manager's array is no cycle's");
        manager.close().unwrap();
        assert!(kept[0].is_open(), "its bytes are the view's as well");
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn a_closed_manager_makes_nothing_inside_a_workspace_either() {
    alone(|| {
        let manager = base(&Device::Cpu);
        manager.close().unwrap();
        let config = WorkspaceConfig::builder().initial_size(1 << 16).build().unwrap();
        let _cycle = Workspace::enter("CLOSED", &config).unwrap();
        assert!(matches!(manager.ones(4, DType::F32), Err(Error::ManagerClosed { .. })));
        // Nor what is made of several operations, nor a view of what is there.
        let x = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
        let made: [&dyn Fn() -> Result<Tensor>; 5] = [
            &|| Tensor::eye(3, DType::F32, &manager),
            &|| Tensor::linspace(0., 1., 5, DType::F32, &manager),
            &|| Tensor::full(7i64, 4, &manager),
            &|| Tensor::randperm(4, &manager),
            &|| x.get_in(&manager, 0),
        ];
        for (at, make) in made.iter().enumerate() {
            let refused = make();
            assert!(matches!(refused, Err(Error::ManagerClosed { .. })), "{at}: {refused:?}");
        }
        drop(_cycle);
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// Panics when it is dropped, with a payload that panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        struct Again;
        impl Drop for Again {
            fn drop(&mut self) {
                panic!("the payload's drop");
            }
        }
        std::panic::panic_any(Again);
    }
}

impl CustomOp1 for Grenade {
    fn name(&self) -> &'static str {
        "grenade"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), *layout.shape()))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(grad.clone()))
    }
}

#[test]
fn f6_what_the_user_drops_may_panic_and_takes_nothing_of_others_along() {
    for on in [false, true] {
        alone(|| {
            let before = (gc::stats().live, ndgc::node_count(), live_bytes(&Device::Cpu));
            let _switch = gc::scoped(on);
            let manager = base(&Device::Cpu);
            let w = Var::from_vec(vec![1f32, 2.], 2, &manager).unwrap();
            let mut kept: Vec<Tensor> = (0..100).map(|_| w.affine(2., 0.).unwrap()).collect();
            kept.push(w.apply_op1(Grenade).unwrap());
            kept.extend((0..100).map(|_| w.sqr().unwrap()));
            let config = WorkspaceConfig::builder().initial_size(1 << 16).build().unwrap();
            {
                let _cycle = Workspace::enter("F6", &config).unwrap();
                drop(w.apply_op1(Grenade).unwrap());
            }
            assert!(Workspace::current().is_none(), "the cycle ended");
            match on {
                true => kept.clear(),
                false => manager.close().unwrap(),
            }
            drop((kept, w, manager));
            destroy_all_workspaces_for_current_thread().unwrap();
            gc::collect();
            assert_eq!((gc::stats().live, ndgc::node_count(), live_bytes(&Device::Cpu)), before);
        });
    }
}

#[test]
fn f7_a_gradient_beside_a_writer_is_right_or_an_error() {
    alone(|| {
        let x = Var::from_vec(vec![1f32; 4096], 4096, &Device::Cpu).unwrap();
        let y = Tensor::ones(4096, DType::F32, &Device::Cpu).unwrap();
        let (mut right, mut refused) = (0, 0);
        let flip = || {
            for value in [2., 1.] {
                let _ = y.fill_(value);
            }
        };
        beside(flip, || {
            y.fill_(1.).ok();
            // The derivative by x is what y held when the product was computed.
            let Ok(product) = x.mul(&y) else { return };
            let was = values(&product);
            let Ok(loss) = product.sum_all() else { return };
            match loss.backward() {
                Ok(grads) => {
                    assert_eq!(values(grads.get(&x).unwrap()), was);
                    right += 1;
                }
                Err(Error::ChangedSinceSaved { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        });
        assert!(right > 0 && refused > 0, "{right} right and {refused} refused: they met");
    });
}

/// Invariant I6 (design.md).
#[test]
fn f8_a_manager_is_closed_when_close_returns_for_every_closer() {
    alone(|| {
        for round in 0..200 {
            let parent = base(&Device::Cpu);
            let child = parent.new_sub_manager().unwrap();
            let arrays: Vec<Tensor> = (0..600).map(|_| child.zeros(4, DType::F32).unwrap()).collect();
            let closers = match round % 3 {
                0 => [&child, &child],
                1 => [&parent, &child],
                _ => [&parent, &parent],
            };
            let start = Barrier::new(2);
            thread::scope(|scope| {
                for closer in closers {
                    scope.spawn(|| {
                        start.wait();
                        closer.close().unwrap();
                        let open = arrays.iter().filter(|array| array.is_open()).count();
                        assert_eq!((open, child.array_count()), (0, 0), "round {round}");
                    });
                }
            });
        }
    });
}

#[test]
fn f9_an_exchange_beside_operations_is_an_error_and_no_panic() {
    alone(|| {
        let x = Tensor::zeros((4, 6), DType::F32, &Device::Cpu).unwrap();
        let y = Tensor::ones((4, 6), DType::F32, &Device::Cpu).unwrap();
        let exchange = || {
            for shape in [&[24][..], &[2, 3, 4], &[2, 2], &[4, 6]] {
                let other = Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
                let _ = x.intern(other);
            }
        };
        let (mut answers, mut refused) = (0, 0);
        beside(exchange, || {
            let attempts: [Result<Tensor>; 10] = [
                x.narrow(1, 1, 3),
                x.transpose(0, 1),
                x.get_on_dim(1, 3),
                x.unfold(0, 2, 1),
                x.reshape((6, 4)),
                x.add_(&y),
                x.copy_(&y).map(|()| y.clone()),
                Tensor::cat(&[&y, &x], 0),
                ndgc::nn::ops::softmax(&x, 1),
                x.flip(&[1]),
            ];
            for made in attempts {
                // Whatever it is, it lies inside its bytes.
                let read = made.map(|made| made.to_vec::<f32>());
                *(if read.is_ok() { &mut answers } else { &mut refused }) += 1;
            }
            let _ = x.to_vec2::<f32>();
        });
        assert!(answers > 0 && refused > 0, "{answers} answers and {refused} refused: they met");
    });
}

#[test]
fn f10_an_array_too_large_for_a_copy_is_an_error_and_prints() {
    alone(|| {
        let huge = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap().broadcast_as(1usize << 60).unwrap();
        assert!(matches!(huge.to_vec::<f32>(), Err(Error::OutOfMemory(_))));
        assert!(huge.to_string().contains("0., 0., 0., ..., 0., 0., 0."), "{huge}");
        let rows = Tensor::arange(0f32, 4., &Device::Cpu).unwrap().reshape((4, 1)).unwrap();
        let wide = rows.broadcast_as((4, 1 << 50)).unwrap().to_string();
        assert!(wide.contains("[3., 3., 3., ..., 3., 3., 3.]]"), "{wide}");
    });
}

/// Makes an array of a manager, and keeps it.
struct Making(NdManager);

impl CustomOp1 for Making {
    fn name(&self) -> &'static str {
        "making"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        drop(self.0.ones(8, DType::F32)?.exp()?);
        Ok((storage.clone(), *layout.shape()))
    }
}

#[test]
fn f12_what_the_users_code_makes_inside_an_operation_is_its_managers() {
    alone(|| {
        let _off = gc::scoped(false);
        let (manager, other) = (base(&Device::Cpu), base(&Device::Cpu));
        let x = matrix(&manager);
        let y = x.apply_op1_no_bwd(&Making(other.clone())).unwrap();
        assert_eq!((manager.array_count(), other.array_count()), (2, 2));
        drop(y);
    });
}

/// Closes a manager, and gives another one a budget, in the place of the one that ended.
struct Closing(NdManager, NdManager);

impl CustomOp1 for Closing {
    fn name(&self) -> &'static str {
        "closing"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.close()?;
        self.1.set_budget(Budget::new())?;
        Ok((CpuStorage::U8(vec![1; 600]), Shape::from(600)))
    }
}

#[test]
fn f30_steps_of_an_operation_whose_manager_is_closed_meanwhile_charge_nobody() {
    alone(|| {
        let (old, tenant) = (base(&Device::Cpu), base(&Device::Cpu));
        old.set_budget(Budget::new()).unwrap();
        // Without bytes: nothing keeps the budget of its manager.
        let x = old.zeros(0, DType::U8).unwrap();
        assert!(x.apply_op1_no_bwd(&Closing(old.clone(), tenant.clone())).is_err());
        assert_eq!(tenant.budget_use(), Some(BudgetUse::default()));
    });
}

#[test]
fn f15_one_collection_brings_the_bytes_of_ended_cycles_back() {
    alone(|| {
        let before = live_bytes(&Device::Cpu);
        let config = WorkspaceConfig::builder().initial_size(1 << 20).build().unwrap();
        let w = Var::from_vec(vec![1f32; 16], 16, &Device::Cpu).unwrap();
        let loss = {
            let _cycle = Workspace::enter("F15", &config).unwrap();
            w.sqr().unwrap().sum_all().unwrap()
        };
        destroy_all_workspaces_for_current_thread().unwrap();
        drop((loss, w));
        gc::collect();
        assert_eq!(Device::Cpu.memory().active, before);
    });
}
