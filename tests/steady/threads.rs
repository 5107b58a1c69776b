//! Threads that do not disturb each other: a loop whose arrays only its own thread uses makes no system call and
//! interrupts nobody, however many threads know ndgc; where arrays are shared, an optimiser's step interrupts the
//! others once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use ndgc::nn::{self, Module, Optimizer, VarBuilder, VarMap, loss};
use ndgc::train::{
    ArrayDataSetIterator, DataSet, Dense, InputType, Loss, NetworkConfig, OutputLayer, ParallelWrapper, Updater,
};
use ndgc::{DType, Device, Error, NdManager, Result, Tensor, Workspace, WorkspaceConfig, gc};

use crate::alone;

struct Model {
    layers: [nn::Linear; 2],
    variables: VarMap,
}

impl Model {
    fn new() -> Result<Self> {
        let variables = VarMap::new();
        let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        Ok(Model { layers: [nn::linear(6, 8, vb.pp("first"))?, nn::linear(8, 3, vb.pp("second"))?], variables })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layers[1].forward(&self.layers[0].forward(x)?.relu()?)
    }

    fn loss(&self) -> Result<Tensor> {
        let x = Tensor::ones((4, 6), DType::F32, &Device::Cpu)?;
        loss::cross_entropy(&self.forward(&x)?, &Tensor::zeros(4, DType::U32, &Device::Cpu)?)
    }
}

/// A loop as people write it, by the way in which its arrays end.
fn step(way: &str, model: &Model, optimiser: &mut nn::Adam, manager: &NdManager) -> Result<()> {
    match way {
        "handles" => optimiser.backward_step(&model.loss()?),
        "closed by hand" => {
            let loss = model.loss()?;
            optimiser.backward_step(&loss)?;
            loss.close();
            Ok(())
        }
        "changed in place" => {
            let sum = Tensor::zeros(16, DType::F32, &Device::Cpu)?;
            sum.add_(&Tensor::ones(16, DType::F32, &Device::Cpu)?)?.affine_(2., 1.)?.zero_()?;
            Ok(())
        }
        "sub-manager" => {
            let scope = manager.new_sub_manager()?;
            let x = scope.ones((4, 6), DType::F32)?;
            loss::cross_entropy(&model.forward(&x)?, &scope.zeros(4, DType::U32)?)?;
            scope.close()
        }
        "workspace" => {
            Workspace::cycle("THREADS", &WorkspaceConfig::default(), || optimiser.backward_step(&model.loss()?))
        }
        other => unreachable!("{other}"),
    }
}

const WAYS: [&str; 5] = ["handles", "closed by hand", "changed in place", "sub-manager", "workspace"];

/// Says that the other thread may end, also when this one fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Steps of one way, on a model of the thread's own.
fn train(way: &str, settled: impl FnOnce(&mut dyn FnMut())) -> Result<()> {
    let manager = NdManager::new_base_manager(&Device::Cpu)?;
    let model = Model::new()?;
    let mut adam = nn::Adam::new(model.variables.all_vars(), 0.01)?;
    let mut step = || step(way, &model, &mut adam, &manager).unwrap();
    (0..200).for_each(|_| step());
    settled(&mut step);
    if let Some(workspace) = Workspace::find("THREADS") {
        workspace.destroy()?;
    }
    manager.close()
}

#[test]
fn loops_on_two_threads_interrupt_nobody_and_make_no_system_call() {
    alone(|| {
        for way in WAYS {
            let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    train(way, |step| {
                        ready.store(true, Ordering::Release);
                        while !done.load(Ordering::Acquire) {
                            step();
                        }
                    })
                    .unwrap();
                });
                train(way, |step| {
                    let _done = Done(&done);
                    while !ready.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                    let before = gc::stats().interrupts;
                    (0..100).for_each(|_| step());
                    assert_eq!(gc::stats().interrupts - before, 0, "{way}");
                    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
                    if let Some(call) = crate::workspace::calls::first_in(|| (0..100).for_each(|_| step())) {
                        // The tree of managers has one lock for all threads, for which one may have to wait.
                        let call = call.filter(|&call| way != "sub-manager" || call != libc::SYS_futex);
                        assert_eq!(call, None, "{way}: the number of the first system call");
                    }
                })
                .unwrap();
            });
        }
    });
}

/// Evaluates on one thread what another one trains, in turns.
#[test]
fn a_step_on_variables_that_another_thread_reads_interrupts_it_once() {
    alone(|| {
        let model = Model::new().unwrap();
        let mut adam = nn::Adam::new(model.variables.all_vars(), 0.01).unwrap();
        let read = || thread::scope(|scope| scope.spawn(|| model.loss().map(drop)).join().unwrap().unwrap());
        for _ in 0..5 {
            adam.backward_step(&model.loss().unwrap()).unwrap();
            read();
            // Somebody to interrupt.
            let (known, done) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    gc::collect();
                    known.store(true, Ordering::Release);
                    while !done.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                });
                let _done = Done(&done);
                while !known.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                let loss = model.loss().unwrap();
                let grads = loss.backward().unwrap();
                let before = gc::stats().interrupts;
                adam.step(&grads).unwrap();
                assert_eq!(gc::stats().interrupts - before, 1, "four variables, one barrier");
                let before = gc::stats().interrupts;
                adam.step(&grads).unwrap();
                assert_eq!(gc::stats().interrupts - before, 0, "nobody read them since");
            });
        }
    });
}

/// Each of two workers takes what it adds up, and what it steps, by one barrier, of 18 arrays.
#[test]
fn workers_that_average_interrupt_each_other_a_few_times_a_round() {
    const ROUNDS: u64 = 50;
    alone(|| {
        let config = NetworkConfig::builder().updater(Updater::adam(0.01)).input_type(InputType::feed_forward(6));
        let net = config.layer(Dense::new(8)).layer(Dense::new(8)).layer(OutputLayer::new(3, Loss::Mse)).build();
        let mut wrapper = ParallelWrapper::builder(net.unwrap()).workers(2).build().unwrap();
        let of = |columns: usize| Tensor::ones((8 * ROUNDS as usize, columns), DType::F32, &Device::Cpu).unwrap();
        let mut batches = ArrayDataSetIterator::new(DataSet::new(of(6), of(3)).unwrap(), 4).unwrap();
        wrapper.fit(&mut batches).unwrap();
        let before = gc::stats().interrupts;
        wrapper.fit(&mut batches).unwrap();
        let each = (gc::stats().interrupts - before) as f64 / ROUNDS as f64;
        assert!(each < 10., "{each} barriers a round");
    });
}

/// An export keeps the block of an earlier cycle, which each cycle of any thread finds again.
#[test]
fn a_kept_export_of_one_thread_costs_the_cycles_of_another_no_interrupt() {
    alone(|| {
        let cycle = |name: &str| {
            Workspace::cycle(name, &WorkspaceConfig::default(), || {
                Tensor::ones(64, DType::F32, &Device::Cpu).map(|array| array.to_dlpack().unwrap())
            })
        };
        let (exported, done) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(cycle("EXPORTS").unwrap());
                let kept = cycle("EXPORTS").unwrap();
                // What it lies in is not used again.
                drop(cycle("EXPORTS").unwrap());
                exported.store(true, Ordering::Release);
                while !done.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                drop(kept);
            });
            let _done = Done(&done);
            while !exported.load(Ordering::Acquire) {
                thread::yield_now();
            }
            (0..20).for_each(|_| drop(cycle("OTHER").unwrap()));
            let before = gc::stats().interrupts;
            for _ in 0..100 {
                Workspace::cycle("OTHER", &WorkspaceConfig::default(), || {
                    Tensor::ones(64, DType::F32, &Device::Cpu).map(drop)
                })
                .unwrap();
            }
            assert_eq!(gc::stats().interrupts - before, 0);
        });
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// A manager's list is its thread's own, which another thread takes back by an interrupt.
#[test]
fn an_array_in_a_workspace_takes_no_list_from_the_thread_that_fills_the_manager() {
    // Numbers of threads that follow each other lie in all shards of a list.
    const THREADS: usize = 8;
    alone(|| {
        let managers: Vec<_> = (0..THREADS).map(|_| NdManager::new_base_manager(&Device::Cpu).unwrap()).collect();
        let (filled, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let cycle = |make: &dyn Fn() -> Result<()>| {
            Workspace::cycle("BESIDE", &WorkspaceConfig::default(), make).unwrap();
        };
        thread::scope(|scope| {
            for manager in &managers {
                scope.spawn(|| {
                    (0..100).for_each(|_| drop(manager.zeros(4, DType::F32).unwrap()));
                    filled.fetch_add(1, Ordering::AcqRel);
                    while !done.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                });
            }
            let _done = Done(&done);
            while filled.load(Ordering::Acquire) < THREADS {
                thread::yield_now();
            }
            let free = || managers.iter().try_for_each(|_| Tensor::zeros(4, DType::F32, &Device::Cpu).map(drop));
            (0..20).for_each(|_| cycle(&free));
            let before = gc::stats().interrupts;
            cycle(&|| managers.iter().try_for_each(|manager| manager.zeros(4, DType::F32).map(drop)));
            assert_eq!(gc::stats().interrupts - before, 0);
        });
        // It stays closed, also where a workspace would take the array.
        managers[0].close().unwrap();
        cycle(&|| {
            assert!(matches!(managers[0].zeros(4, DType::F32), Err(Error::ManagerClosed { .. })));
            Ok(())
        });
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}
