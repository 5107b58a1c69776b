//! What outlives the cycle in which it is made or used: saved values, readers on other threads, exports, variables,
//! what optimisers and layers keep; and what does not.

use std::sync::mpsc;
use std::thread;

use ndgc::nn::kv_cache::{Cache, ConcatKvCache, InterleavedKvCache, KvCache, RotatingKvCache};
use ndgc::nn::ops::softmax_last_dim;
use ndgc::nn::{Adam, AdamConfig, BatchNorm, Mlp, Module, ModuleT, Optimizer, SGD, VarBuilder, VarMap, linear};
use ndgc::{
    DType, Device, Error, Generator, LocationPolicy, NdManager, Result, SpillPolicy, Tensor, Var, Workspace,
    WorkspaceConfig, gc, no_grad, node_count,
};

use crate::workspace::support::{alone, basic, doubles, el, filled, in_cycle, leak, refusal, sum, values};

type Join = fn(&[&Tensor]) -> Result<Tensor>;
type Step<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

fn config() -> WorkspaceConfig {
    basic().build().unwrap()
}

fn no_workspace<R>(f: impl FnOnce() -> R) -> R {
    let _out = Workspace::scope_out();
    f()
}

fn renewals(id: &str) -> u64 {
    Workspace::find(id).unwrap().stats().renewals
}

/// Fills the workspace with other numbers, three times: in the block that it has, which no graph keeps.
fn write_over(id: &str) {
    for value in [100., 200., 300.] {
        let _cycle = Workspace::enter(id, &config()).unwrap();
        let noise: Vec<Tensor> = (0..10).map(|_| filled(value, 2)).collect();
        assert_eq!(noise.iter().map(sum).sum::<f64>(), 20. * value);
    }
    assert_eq!(renewals(id), 0, "the graph keeps no block");
}

#[test]
fn a_loss_that_leaves_its_cycle_is_a_number_and_its_graph_ended() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let loss = {
            let _epoch = Workspace::enter("EPOCH", &config()).unwrap();
            let step = Workspace::enter("STEP", &config()).unwrap();
            let x = Tensor::new([5f64, 7.], &Device::Cpu).unwrap();
            let loss = w.mul(&x).unwrap().sqr().unwrap().sum_all().unwrap().leverage().unwrap();
            // 2 (w x) x
            assert_eq!(values(loss.backward().unwrap().get(&w).unwrap()), [100., 294.]);
            step.leave();
            write_over("STEP");
            assert_eq!(loss.to_scalar::<f64>().unwrap(), 541.);
            assert!(matches!(loss.backward(), Err(Error::GraphEnded { op: "leverage", .. })), "{:?}", loss.backward());
            loss
        };
        leak(loss.backward());
    });
}

/// As in ND4J: `leverageOrDetach` of an array that is not attached is the array.
#[test]
fn what_is_of_no_workspace_keeps_its_gradient_and_its_manager_whether_the_named_one_is_open_or_not() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let squares = w.sqr().unwrap();
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let owned = manager.ones(2, DType::F64).unwrap();
        for is_open in [false, true] {
            let _step = is_open.then(|| Workspace::enter("STEP", &config()).unwrap());
            for array in [&squares, &owned] {
                assert!(array.leverage_or_detach("STEP").unwrap().is_same(array), "open: {is_open}");
            }
        }
        let loss = squares.leverage_or_detach("STEP").unwrap().sum_all().unwrap();
        assert_eq!(values(loss.backward().unwrap().get(&w).unwrap()), [4., 6.]);
        assert_eq!(manager.array_count(), 1);
    });
}

#[test]
fn a_loss_made_outside_of_arrays_inside_says_that_its_graph_ended() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let loss = {
            let _step = Workspace::enter("STEP", &config()).unwrap();
            let x = Tensor::new([5f64, 7.], &Device::Cpu).unwrap();
            let squares = w.mul(&x).unwrap().sqr().unwrap();
            let _out = Workspace::scope_out();
            squares.sum_all().unwrap()
        };
        assert!(!loss.is_attached() && loss.is_in_scope());
        let _step = Workspace::enter("STEP", &config()).unwrap();
        let noise: Vec<Tensor> = (0..10).map(|_| filled(9., 2)).collect();
        assert_eq!(loss.to_scalar::<f64>().unwrap(), 541.);
        assert!(matches!(loss.backward(), Err(Error::GraphEnded { op: "sum_all", .. })), "{:?}", loss.backward());
        assert_eq!(noise.iter().map(sum).sum::<f64>(), 180.);
    });
}

#[test]
fn arrays_joined_outside_of_arrays_inside_are_told_of_by_how_they_were_joined() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let joins: [(&str, Join); 2] = [("cat", |all| Tensor::cat(all, 0)), ("stack", |all| Tensor::stack(all, 0))];
        for (name, join) in joins {
            let joined = {
                let _step = Workspace::enter("STEP", &config()).unwrap();
                let squares = w.mul(&doubles(2)).unwrap().sqr().unwrap();
                let _out = Workspace::scope_out();
                join(&[&squares, &squares]).unwrap().sum_all().unwrap()
            };
            let told = joined.backward();
            assert!(matches!(told, Err(Error::GraphEnded { op, .. }) if op == name), "{name}: {told:?}");
        }
    });
}

/// Broken by: bytes of a cycle that an array outside had as if it ended with the cycle, so that a gradient through it
/// was one of a graph that ended.
#[test]
fn what_an_array_outside_takes_over_outlives_its_cycle() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let (state, loss) = (doubles(2), doubles(2));
        for n in 0..4 {
            let _step = Workspace::enter("STEP", &WorkspaceConfig::default()).unwrap();
            let grads = w.mul(&state).unwrap().sum_all().unwrap().backward().unwrap();
            assert_eq!(values(grads.get(&w).unwrap()), [2f64.powi(n); 2], "what it took over in the cycle before");
            state.intern((&state * 2.).unwrap()).unwrap();
        }
        assert_eq!((values(&state), state.is_attached()), (vec![16.; 2], false));
        {
            let _step = Workspace::enter("STEP", &WorkspaceConfig::default()).unwrap();
            loss.intern(w.mul(&doubles(2)).unwrap().sqr().unwrap()).unwrap();
            let grads = loss.sum_all().unwrap().backward().unwrap();
            assert_eq!(values(grads.get(&w).unwrap()), [4., 6.]);
        }
        assert_eq!(values(&loss), [4., 9.]);
        let told = loss.sum_all().unwrap().backward();
        assert!(matches!(told, Err(Error::GraphEnded { op: "intern", .. })), "{told:?}");
    });
}

/// Broken by: a block that an array of the cycle itself retained, and a graph that nobody ended with it.
#[test]
fn what_an_array_of_a_cycle_takes_over_ends_with_it() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let step = || {
            let _step = Workspace::enter("STEP", &config()).unwrap();
            let x = doubles(2);
            x.intern(w.mul(&doubles(2)).unwrap().sqr().unwrap()).unwrap();
            assert_eq!(values(x.sum_all().unwrap().backward().unwrap().get(&w).unwrap()), [4., 6.]);
            x
        };
        let mut kept = vec![step()];
        gc::collect();
        let before = node_count();
        kept.extend((0..20).map(|_| step()));
        gc::collect();
        assert_eq!((node_count(), renewals("STEP")), (before, 0));
        leak(kept[7].sum_all());
    });
}

/// Broken by: taking the cycle of what was saved last, or of the first operand, for the one whose end ends the graph.
#[test]
fn a_loss_of_arrays_of_two_cycles_keeps_no_graph_behind_the_end_of_the_inner_one() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let _epoch = Workspace::enter("EPOCH", &config()).unwrap();
        let mask = Tensor::new([1f64, 0.], &Device::Cpu).unwrap();
        let outer = w.mul(&mask).unwrap();
        let losses: [Step<'_>; 5] = [
            &|inner| inner.mul(&mask),
            &|inner| mask.mul(inner),
            &|inner| outer.add(inner),
            &|inner| inner.add(&outer),
            &|inner| inner.unsqueeze(0)?.matmul(&mask.unsqueeze(1)?),
        ];
        for loss in losses {
            let step = || {
                let _step = Workspace::enter("STEP", &config()).unwrap();
                let inner = w.mul(&doubles(2)).unwrap();
                loss(&inner).unwrap().sum_all().unwrap().leverage().unwrap()
            };
            gc::collect();
            let before = node_count();
            let kept: Vec<Tensor> = (0..100).map(|_| step()).collect();
            gc::collect();
            assert_eq!(node_count() - before, 100, "the way out of each is left");
            let told = kept[7].backward();
            assert!(matches!(told, Err(Error::GraphEnded { op: "leverage", .. })), "{told:?}");
        }
    });
}

/// Its thread has no way to hear of the cycle's end.
#[test]
fn a_loss_that_another_thread_made_of_arrays_inside_says_that_its_graph_ended_and_keeps_no_block() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let step = Workspace::enter("STEP", &config()).unwrap();
        let squares = w.mul(&Tensor::new([5f64, 7.], &Device::Cpu).unwrap()).unwrap().sqr().unwrap();
        let made = thread::scope(|scope| scope.spawn(|| squares.sum_all()).join());
        let loss = made.unwrap().unwrap();
        assert_eq!(values(loss.backward().unwrap().get(&w).unwrap()), [100., 294.]);
        drop(squares);
        step.leave();
        write_over("STEP");
        assert!(!loss.is_attached() && loss.to_scalar::<f64>().unwrap() == 541.);
        assert!(matches!(loss.backward(), Err(Error::GraphEnded { op: "sqr", .. })), "{:?}", loss.backward());
    });
}

#[test]
fn gradients_belong_to_the_cycle_in_which_backward_ran() {
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let grads = Workspace::cycle("STEP", &config(), || w.sqr()?.sum_all()?.backward()).unwrap();
        let grad = grads.get(&w).unwrap();
        assert!(grad.is_attached() && !grad.is_in_scope());
        let mut sgd = SGD::new(vec![w.clone()], 0.5).unwrap();
        leak(sgd.step(&grads));
        assert_eq!(values(&w), [2., 3.]);
    });
}

#[test]
fn bytes_that_another_thread_reads_when_their_cycle_ends_are_not_overwritten() {
    alone(|| {
        let cycle = Workspace::enter("STEP", &config()).unwrap();
        let array = filled(7., 1000);
        let (reading, wait_reading) = mpsc::channel::<()>();
        let (go_on, wait_go_on) = mpsc::channel::<()>();
        let other = array.clone();
        let reader = thread::spawn(move || {
            let all = other.with_slice(|slice: &[f64]| {
                reading.send(()).unwrap();
                wait_go_on.recv().unwrap();
                slice.to_vec()
            });
            (all, leak(other.exp()))
        });
        wait_reading.recv().unwrap();
        cycle.leave();
        for _ in 0..3 {
            let _cycle = Workspace::enter("STEP", &config()).unwrap();
            let over = filled(-1., 1000);
            assert_eq!(sum(&over), -1000.);
        }
        go_on.send(()).unwrap();
        let (all, after) = reader.join().unwrap();
        assert_eq!(all.unwrap(), [7.; 1000]);
        assert!(after.contains("in cycle 1, ended with its cycle"), "{after}");
        leak(array.exp());
        assert_eq!(renewals("STEP"), 1);
        let active = Device::Cpu.memory().active;
        Workspace::cycle("STEP", &config(), || Ok::<_, ndgc::Error>(())).unwrap();
        assert!(active - Device::Cpu.memory().active >= 10 << 20, "the block that was left alone came back");
    });
}

#[test]
fn bytes_of_a_nested_entry_that_another_thread_reads_are_not_overwritten_by_the_next_cycle() {
    alone(|| {
        let cycle = Workspace::enter("STEP", &config()).unwrap();
        let other = Workspace::enter("OTHER", &config()).unwrap();
        let nested = Workspace::enter("STEP", &config()).unwrap();
        let array = filled(7., 1000);
        let (reading, wait_reading) = mpsc::channel::<()>();
        let (go_on, wait_go_on) = mpsc::channel::<()>();
        let reader = thread::spawn(move || {
            array.with_slice(|slice: &[f64]| {
                reading.send(()).unwrap();
                wait_go_on.recv().unwrap();
                slice.to_vec()
            })
        });
        wait_reading.recv().unwrap();
        drop(nested);
        drop(other);
        let beside = filled(-1., 1000);
        cycle.leave();
        leak(beside.exp());
        in_cycle("STEP", &config(), || assert_eq!(sum(&filled(-1., 10_000)), -10_000.));
        go_on.send(()).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), [7.; 1000]);
        assert_eq!(renewals("STEP"), 1);
    });
}

/// The workspace is destroyed while its own thread reads, and another thread looks which blocks fell free.
#[test]
fn bytes_of_a_destroyed_workspace_that_its_own_thread_reads_outlive_another_threads_sweep() {
    alone(|| {
        let cycle = Workspace::enter("STEP", &config()).unwrap();
        let array = filled(7., 1000);
        let before = Device::Cpu.memory().active;
        let mut cycle = Some(cycle);
        let all = array.with_slice(|slice: &[f64]| {
            cycle.take().unwrap().leave();
            Workspace::find("STEP").unwrap().destroy().unwrap();
            thread::spawn(|| {
                gc::collect();
                drop(filled(-1., 1000));
            })
            .join()
            .unwrap();
            assert!(Device::Cpu.memory().active >= before, "the block is still there");
            slice.to_vec()
        });
        assert_eq!(all.unwrap(), [7.; 1000]);
        gc::collect();
        assert!(Device::Cpu.memory().active < before);
    });
}

#[test]
fn a_mapped_workspace_does_not_grow_over_bytes_that_another_thread_reads() {
    alone(|| {
        let config = WorkspaceConfig::builder()
            .initial_size(64 << 10)
            .policy_location(LocationPolicy::Mmap)
            .policy_spill(SpillPolicy::Reallocate)
            .build()
            .unwrap();
        let cycle = Workspace::enter("STEP", &config).unwrap();
        let array = filled(7., 1000);
        let (reading, wait_reading) = mpsc::channel::<()>();
        let (go_on, wait_go_on) = mpsc::channel::<()>();
        let reader = thread::spawn(move || {
            array.with_slice(|slice: &[f64]| {
                reading.send(()).unwrap();
                wait_go_on.recv().unwrap();
                slice.to_vec()
            })
        });
        wait_reading.recv().unwrap();
        let _too_large = filled(1., 100_000);
        let size = cycle.stats().size;
        cycle.leave();
        for _ in 0..3 {
            let cycle = Workspace::enter("STEP", &config).unwrap();
            assert_eq!(sum(&filled(-1., 1000)), -1000.);
            assert_eq!((cycle.stats().size, cycle.stats().externals), (size, 1), "it goes beside the file");
        }
        go_on.send(()).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), [7.; 1000]);
        for larger in [false, true] {
            let cycle = Workspace::enter("STEP", &config).unwrap();
            let _large = filled(1., 100_000);
            assert_eq!((cycle.stats().size > size, cycle.stats().externals == 0), (larger, larger));
        }
    });
}

#[test]
fn a_mapped_workspace_has_its_file_again_when_who_had_it_lets_go_within_a_cycle() {
    // Broken by: a file that was in use when a cycle began and free at its end: all cycles after it went beside it.
    alone(|| {
        let config = WorkspaceConfig::builder().initial_size(64 << 10).policy_location(LocationPolicy::Mmap);
        let config = config.build().unwrap();
        let cycle = Workspace::enter("STEP", &config).unwrap();
        let pack = filled(7., 1000).to_dlpack().unwrap();
        cycle.leave();
        let cycle = Workspace::enter("STEP", &config).unwrap();
        assert_eq!((sum(&filled(1., 1000)), cycle.stats().externals), (1000., 1), "it goes beside the file");
        drop(pack);
        cycle.leave();
        let cycle = Workspace::enter("STEP", &config).unwrap();
        assert_eq!((sum(&filled(2., 1000)), cycle.stats().externals), (2000., 0));
    });
}

#[test]
fn an_export_keeps_the_bytes_and_comes_back_as_an_array_that_no_workspace_ends() {
    alone(|| {
        let cycle = Workspace::enter("STEP", &config()).unwrap();
        let pack = filled(7., 1000).to_dlpack().unwrap();
        cycle.leave();
        in_cycle("STEP", &config(), || assert_eq!(sum(&filled(1., 1000)), 1000.));
        assert_eq!(renewals("STEP"), 1);
        let again = Tensor::from_dlpack(pack, &Device::Cpu).unwrap();
        assert!(again.is_in_scope() && again.is_detached().unwrap());
        in_cycle("STEP", &config(), || assert_eq!(sum(&filled(2., 1000)), 2000.));
        assert_eq!(values(&again), [7.; 1000]);
    });
}

/// R25: a workspace says how many hold its blocks.
#[test]
fn who_holds_a_block_beyond_its_cycle_is_counted() {
    alone(|| {
        let stats = || Workspace::find("STEP").unwrap().stats();
        let told = || {
            let report = NdManager::system(&Device::Cpu).report();
            let found = report.workspaces.iter().find(|workspace| workspace.name == "STEP").unwrap();
            (found.blocks, found.holders, report.to_string())
        };
        let cycle = Workspace::enter("STEP", &config()).unwrap();
        let array = filled(7., 1000);
        let view = array.narrow(0, 0, 10).unwrap();
        assert_eq!((stats().holders, told().1), (0, 0), "what is of the cycle ends with it");
        let [pack, other] = [&array, &view].map(|array| array.to_dlpack().unwrap());
        assert_eq!(stats().holders, 2);
        cycle.leave();
        in_cycle("STEP", &config(), || assert_eq!(sum(&filled(1., 1000)), 1000.));
        assert_eq!((stats().holders, stats().renewals), (2, 1));
        let (blocks, holders, text) = told();
        assert_eq!((blocks, holders), (2, 2), "one waits");
        assert!(text.contains("workspace [STEP]: 2 blocks of "), "{text}");
        assert!(text.contains(", held by 2 references beyond its cycles\n"), "{text}");
        drop(other);
        let again = Tensor::from_dlpack(pack, &Device::Cpu).unwrap();
        assert_eq!(stats().holders, 1, "the array, and no export any more");
        drop(again);
        gc::collect();
        assert_eq!((stats().holders, told().1), (0, 0));
        assert!(!told().2.contains("beyond its cycles"));
    });
}

#[test]
fn a_manager_cannot_have_an_array_of_a_workspace_and_says_what_to_do() {
    alone(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let _cycle = Workspace::enter("STEP", &config()).unwrap();
        let array = doubles(10);
        let why =
            "workspace [STEP]: the array's bytes are the workspace's; detach() gives an array that can be attached";
        assert_eq!(refusal(array.attach(&manager)), format!("attach: {why}"));
        assert_eq!(refusal(array.temp_attach(&manager)), format!("temp_attach: {why}"));
        assert!(array.is_attached() && manager.array_count() == 0);
        array.detach().attach(&manager).unwrap();
        assert_eq!(manager.array_count(), 1);
        // A manager's creation in a workspace is the workspace's: the innermost open one takes what is made.
        assert!(manager.ones(3, DType::F64).unwrap().is_attached());
        assert_eq!(manager.array_count(), 1);
    });
}

#[test]
fn variables_made_in_a_cycle_outlive_it() {
    alone(|| {
        let (of_array, of_numbers, of_zeros, drawn) = {
            let cycle = Workspace::enter("STEP", &config()).unwrap();
            let of_array = Var::from_tensor(&filled(2., 10)).unwrap();
            let before = cycle.stats().offset;
            let of_numbers = Var::new([1f64, 2.], &Device::Cpu).unwrap();
            let of_zeros = Var::zeros(10, DType::F64, &Device::Cpu).unwrap();
            let drawn = Var::rand(1f64, 2., 10, &Device::Cpu).unwrap();
            assert!(cycle.stats().offset - before <= 3 * el(10));
            (of_array, of_numbers, of_zeros, drawn)
        };
        Workspace::cycle("STEP", &config(), || {
            of_zeros.set(&filled(5., 10))?;
            filled(-1., 1000).sum_all().map(drop)
        })
        .unwrap();
        for variable in [&of_array, &of_numbers, &of_zeros, &drawn] {
            assert!(!variable.is_attached() && variable.is_in_scope());
        }
        assert_eq!((sum(&of_array), values(&of_numbers), sum(&of_zeros)), (20., vec![1., 2.], 50.));
        assert!(values(&drawn).iter().all(|number| (1. ..2.).contains(number)));
    });
}

/// A training of four steps with Adam, and what the variables are afterwards.
fn trained(in_cycles: bool) -> Vec<Vec<f64>> {
    let steps = |step: u32, model: &mut Option<(Mlp, Adam)>| {
        let (mlp, adam) = model.get_or_insert_with(|| {
            let mlp = Mlp::new(&[3, 4, 1], &mut Generator::new(7), &Device::Cpu).unwrap();
            let adam = Adam::with_config(mlp.variables(), AdamConfig::default()).unwrap();
            (mlp, adam)
        });
        let x = Tensor::full(0.5f32 + step as f32, (5, 3), &Device::Cpu)?;
        let loss = mlp.forward(&x)?.sqr()?.mean_all()?;
        adam.step(&loss.backward()?)
    };
    let mut model = None;
    for step in 0..4 {
        // Model and optimiser are made in the first cycle.
        if in_cycles {
            Workspace::cycle("STEP", &config(), || steps(step, &mut model)).unwrap();
        } else {
            steps(step, &mut model).unwrap();
        }
    }
    let variables = model.unwrap().0.variables();
    variables.iter().map(|variable| values(&variable.to_dtype(DType::F64).unwrap())).collect()
}

#[test]
fn a_model_and_adam_made_in_a_cycle_train_as_they_do_without() {
    alone(|| {
        assert_eq!(trained(true), trained(false));
        let stats = Workspace::find("STEP").unwrap().stats();
        assert_eq!((stats.cycles, stats.renewals, stats.externals), (4, 0, 0));
    });
}

#[test]
fn layers_made_in_a_cycle_by_a_builder_outlive_it() {
    alone(|| {
        let map = VarMap::new();
        let layer = Workspace::cycle("STEP", &config(), || {
            linear(3, 2, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))
        })
        .unwrap();
        let x = Tensor::ones((1, 3), DType::F64, &Device::Cpu).unwrap();
        let first = Workspace::cycle("STEP", &config(), || layer.forward(&x)?.to_vec::<f64>()).unwrap();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f64>().unwrap(), first);
        assert!(map.all_vars().iter().all(|variable| !variable.is_attached()));
    });
}

#[test]
fn the_running_statistics_of_a_batch_norm_made_and_used_in_cycles_outlive_them() {
    alone(|| {
        let make = || {
            let of = |value: f64| Tensor::full(value, 2, &Device::Cpu);
            BatchNorm::new_no_bias(2, of(0.)?, of(1.)?, 1e-5)
        };
        let batch = |step: u32| Tensor::arange(f64::from(step), f64::from(step) + 8., &Device::Cpu)?.reshape((4, 2));
        let plain = make().unwrap();
        let norm = Workspace::cycle("STEP", &config(), make).unwrap();
        for step in 0..3 {
            plain.forward_train(&batch(step).unwrap()).unwrap();
            Workspace::cycle("STEP", &config(), || norm.forward_t(&batch(step)?, true).map(drop)).unwrap();
        }
        assert_eq!(values(norm.running_mean()), values(plain.running_mean()));
        assert_eq!(values(norm.running_var()), values(plain.running_var()));
        let x = batch(9).unwrap();
        let of = |norm: &BatchNorm| no_grad(|| norm.forward_t(&x, false)).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(of(&norm), of(&plain));
        assert!(!norm.running_mean().is_attached());
        assert_eq!(renewals("STEP"), 0);
    });
}

#[test]
fn a_cache_of_keys_outlives_the_cycles_in_which_it_is_filled() {
    alone(|| {
        let token = |value: f64| Tensor::full(value, (1, 1, 2), &Device::Cpu).unwrap();
        let mut cache = Cache::new(1, 2);
        for value in [1., 2., 3.] {
            Workspace::cycle("STEP", &config(), || cache.append(&token(value))).unwrap();
        }
        assert_eq!(values(&cache.current_data().unwrap().unwrap()), [1., 1., 2., 2., 3., 3.]);
        // This one detaches what it keeps.
        let mut concat = ConcatKvCache::new(1);
        for value in [1., 2., 3.] {
            Workspace::cycle("STEP", &config(), || concat.append(&token(value), &token(-value)).map(drop)).unwrap();
        }
        assert_eq!(values(concat.k().unwrap()), [1., 1., 2., 2., 3., 3.]);
        assert_eq!(values(concat.v().unwrap()), [-1., -1., -2., -2., -3., -3.]);
    });
}

/// What gives keys and values back: `[1, heads, positions, size]` each.
trait Keeps {
    fn keep(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)>;
}

impl Keeps for KvCache {
    fn keep(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.append(k, v)
    }
}

impl Keeps for RotatingKvCache {
    fn keep(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.append(k, v)
    }
}

impl Keeps for ConcatKvCache {
    fn keep(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.append(k, v)
    }
}

impl Keeps for InterleavedKvCache {
    fn keep(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let both = self.append(k, v)?.transpose(0, 1)?.unsqueeze(0)?;
        let size = self.head_dim();
        Ok((both.narrow(3, 0, size)?, both.narrow(3, size, size)?))
    }
}

#[test]
fn tokens_each_in_a_cycle_of_its_own_are_what_they_are_without_workspaces() {
    const SIZE: usize = 4;
    // Positions: fewer than are made, so that the first two grow, and the rotating one goes round.
    let caches: [fn() -> Box<dyn Keeps>; 4] = [
        || Box::new(KvCache::new(2, 8)),
        || Box::new(RotatingKvCache::new(2, 8)),
        || Box::new(ConcatKvCache::new(2)),
        || Box::new(InterleavedKvCache::new(SIZE)),
    ];
    let weights = |seed: u64| Generator::new(seed).uniform(-1., 1., (SIZE, SIZE), DType::F64, &Device::Cpu).unwrap();
    // The next token of one, by attention with two heads over those before.
    let step = |token: &[f64], weights: &[Tensor; 3], cache: &mut dyn Keeps| {
        let x = Tensor::from_slice(token, (1, 2, 1, SIZE), &Device::Cpu)?;
        let [q, k, v] = weights.each_ref().map(|weights| x.broadcast_matmul(weights));
        let (k, v) = cache.keep(&k?, &v?)?;
        let seen = softmax_last_dim(&q?.matmul(&k.t()?)?)?.matmul(&v)?;
        seen.tanh()?.flatten_all()?.to_vec1::<f64>()
    };
    for (on, new) in [false, true].into_iter().flat_map(|on| caches.map(|new| (on, new))) {
        alone(|| {
            let _switch = gc::scoped(on);
            let weights = [1, 2, 3].map(weights);
            let (mut plain, mut cycled) = (new(), new());
            let mut token = vec![0.5; 2 * SIZE];
            let mut active = Vec::new();
            for at in 0..40 {
                let next = step(&token, &weights, plain.as_mut()).unwrap();
                let inside = Workspace::cycle("TOKEN", &config(), || step(&token, &weights, cycled.as_mut())).unwrap();
                assert_eq!(inside, next, "token {at}");
                token = next;
                active.push(Device::Cpu.memory().active);
            }
            // The two caches grow by keys and values, or have room for a round of 8 before.
            let grown = active[39] - active[20];
            assert!(grown <= 2 * 2 * (19 + 8) * 2 * SIZE as u64 * 8, "{grown} bytes in 19 tokens");
            assert_eq!(renewals("TOKEN"), 0, "no cache keeps a block");
        });
    }
}

#[test]
fn a_result_that_a_section_needs_again_must_not_lie_in_a_workspace() {
    alone(|| {
        let device = Device::sim(ndgc::SimConfig::default());
        let outside = Tensor::ones(10, DType::F64, &device).unwrap();
        let _cycle = Workspace::enter_on(&device, "STEP", &config()).unwrap();
        let inside = Tensor::ones(10, DType::F64, &device).unwrap();
        let refused = device.capture(|| inside.exp());
        assert!(matches!(refused, Err(Error::Capture { .. })), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("detach() it before the section"));
        // A section is run once before it is captured.
        no_workspace(|| outside.affine(2., 0.).map(drop)).unwrap();
        gc::collect();
        let (graph, result) = device.capture(|| outside.affine(2., 0.)).unwrap();
        assert!(!result.is_attached());
        graph.replay().unwrap();
        assert_eq!(sum(&result), 20.);
    });
}
