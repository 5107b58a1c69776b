//! Memory runs out at the n-th request of a training step, by hand or of a network, or of a program of workspaces, for
//! every n: it fails with a typed error or gets by, nothing is lost, and the next one succeeds.
#![allow(clippy::unwrap_used)] // a test ends with the first surprise

use std::sync::{Mutex, PoisonError};

use ndgc::bench::refuse_host_memory;
use ndgc::nn::{self, Adam, Mlp, Module, Optimizer};
use ndgc::train::{
    Activation, Convolution2D, DataSet, Dense, InputType, Loss, Network, NetworkConfig, OutputLayer, Updater,
    WorkspaceMode,
};
use ndgc::{
    Device, Error, Generator, LearningPolicy, NdManager, Proxy, ResetPolicy, SimConfig, SpillPolicy, Tensor, Workspace,
    WorkspaceConfig, destroy_all_workspaces_for_current_thread, gc, node_count,
};

/// The counts and the refusals are the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A network and its data.
struct Training {
    manager: NdManager,
    model: Mlp,
    x: Proxy,
    labels: Proxy,
}

impl Training {
    fn new(device: &Device) -> Self {
        let manager = NdManager::new_base_manager(device).unwrap();
        let model = Mlp::new(&[8, 16, 4], &mut Generator::new(1), &manager).unwrap();
        let data: Vec<f32> = (0..48).map(|i| i as f32 / 48. - 0.5).collect();
        let x = manager.from_slice(&data, (6, 8)).unwrap();
        let labels = manager.from_slice(&[0i64, 1, 2, 3, 0, 1], 6).unwrap();
        Training { manager, model, x, labels }
    }

    /// Forward, cross entropy, backward, and the first step of a new optimiser.
    fn step(&self) -> Result<f32, Error> {
        let mut adam = Adam::new(self.model.variables(), 0.01)?;
        let scope = self.manager.new_sub_manager()?;
        let x = self.x.try_detach()?;
        x.attach(&scope)?;
        let loss = nn::loss::cross_entropy(&self.model.forward(&x)?, &self.labels)?;
        adam.backward_step(&loss)?;
        loss.to_scalar()
    }
}

/// What must not change.
fn books(device: &Device) -> (u64, u64, u64, u64) {
    gc::collect();
    let stats = gc::stats();
    (stats.live, stats.dead(), device.memory().active, node_count())
}

/// Invariant I10 (design.md).
#[test]
fn the_host_runs_out_of_memory_at_every_request_of_a_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _on = gc::scoped(true);
    let training = Training::new(&Device::Cpu);
    // What grows on first use has grown after this.
    (0..3).for_each(|_| _ = training.step().unwrap());
    let start = books(&Device::Cpu);
    for go_on in [false, true] {
        let mut refused = 0;
        for n in 1.. {
            Device::Cpu.clear_cache();
            let before = refuse_host_memory(n, go_on);
            let result = training.step();
            let reached = refuse_host_memory(0, false) > before;
            match result {
                Ok(_) => assert!(!reached || !go_on, "request {n} and all after it were refused"),
                Err(Error::OutOfMemory(report)) => {
                    assert!(go_on, "once only, at {n}: another request would have been granted");
                    assert_eq!(report.device, "cpu");
                    assert!(report.requested > 0);
                    refused += 1;
                }
                Err(other) => panic!("request {n}: {other:?}"),
            }
            assert_eq!(books(&Device::Cpu), start, "request {n} refused");
            training.step().expect("there is memory again");
            assert_eq!(books(&Device::Cpu), start, "after request {n} was refused");
            if !reached {
                break;
            }
        }
        assert!(refused > 10 || !go_on, "a step makes more requests than {refused}");
    }
    drop(training);
}

/// The simulated device of a training, after warming up.
fn simulated(streams: usize) -> (Device, Training) {
    let device = Device::sim(SimConfig { streams, ..SimConfig::default() });
    let training = Training::new(&device);
    training.step().unwrap();
    (device, training)
}

fn calls(device: &Device) -> u64 {
    let Device::Sim(sim) = device else { return 0 };
    let calls = sim.calls();
    calls.allocations
        + calls.frees
        + calls.launches
        + calls.copies
        + calls.records
        + calls.waits
        + calls.synchronisations
}

#[test]
fn a_simulated_device_fails_at_every_call_of_a_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _on = gc::scoped(true);
    let (device, training) = simulated(2);
    let Device::Sim(sim) = &device else { unreachable!("it was just made") };
    let start = books(&device);
    let mut failed = 0;
    for n in 1.. {
        sim.trim();
        let before = calls(&device);
        sim.fail_call(Some(n));
        let result = training.step();
        let reached = calls(&device) - before >= n;
        sim.fail_call(None);
        match result {
            Ok(_) => assert!(!reached, "call {n} failed, and nobody was told"),
            Err(Error::Device { .. }) => failed += 1,
            Err(other) => panic!("call {n}: {other:?}"),
        }
        assert_eq!(books(&device), start, "call {n} failed");
        training.step().unwrap_or_else(|error| panic!("the step after the failure of call {n}: {error:?}"));
        assert_eq!(books(&device), start, "after the failure of call {n}");
        if !reached {
            break;
        }
    }
    assert!(failed > 20, "a step makes more calls than {failed}");
    assert_eq!(sim.violations(), []);
}

#[test]
fn a_simulated_device_has_no_memory_at_every_request_of_a_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _on = gc::scoped(true);
    let (device, training) = simulated(1);
    let Device::Sim(sim) = &device else { unreachable!("it was just made") };
    let start = books(&device);
    // Each request that is refused once is repeated, and granted.
    for n in 1..100 {
        sim.refuse_allocation(Some(n));
        training.step().unwrap_or_else(|error| panic!("request {n} refused once: {error:?}"));
        sim.refuse_allocation(None);
        assert_eq!(books(&device), start, "request {n} refused");
    }
    // A limit that is reached sooner or later in the step.
    let (mut refused, mut granted) = (0, 0);
    for spare in (0..).step_by(64) {
        device.set_limit(Some(start.2 + spare));
        match training.step() {
            Ok(_) => granted += 1,
            Err(Error::OutOfMemory(report)) => {
                assert_eq!(report.limit, Some(start.2 + spare));
                refused += 1;
            }
            Err(other) => panic!("{spare} bytes to spare: {other:?}"),
        }
        assert_eq!(books(&device), start, "{spare} bytes to spare");
        if granted == 3 {
            break;
        }
    }
    assert!(refused > 10, "a step needs more than {} bytes", refused * 64);
    device.set_limit(None);
    training.step().unwrap();
    assert_eq!(books(&device), start);
    assert_eq!(sim.violations(), []);
}

/// Three workspaces inside each other, one that learns, one that grows, one that is a ring and spills.
fn workspaces() -> [WorkspaceConfig; 3] {
    let builder = WorkspaceConfig::builder;
    let grows = builder().policy_learning(LearningPolicy::None).initial_size(1 << 10);
    let ring = builder().policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(2.);
    [builder(), grows.policy_spill(SpillPolicy::Reallocate), ring.initial_size(1 << 10)].map(|b| b.build().unwrap())
}

impl Training {
    /// Cycles of nested workspaces, whose results leave by every way. Returns what they computed.
    fn cycles(&self, device: &Device) -> Result<Vec<f32>, Error> {
        let [learns, grows, ring] = workspaces();
        let (mut left, mut batches) = (Vec::new(), Vec::new());
        for step in 1..4u8 {
            let _learns = Workspace::enter_on(device, "LEARNS", &learns)?;
            let x = Tensor::from_vec((0..200u8).map(f32::from).collect(), 200, device)?;
            let best = {
                let _grows = Workspace::enter_on(device, "GROWS", &grows)?;
                let y = ((&x * f64::from(step))? + 1.)?;
                left.push(y.sum_all()?.try_detach()?);
                y.leverage()?
            };
            let cycle = Workspace::enter_on(device, "RING", &ring)?;
            let _lease = cycle.lease()?;
            batches.push((step, Tensor::full(f32::from(step), 100 * usize::from(step), device)?));
            for (value, batch) in &batches {
                match batch.to_vec::<f32>() {
                    Ok(values) => assert!(values.iter().all(|v| *v == f32::from(*value)), "used again too early"),
                    Err(Error::LeakedArray(_)) => {}
                    Err(other) => return Err(other),
                }
            }
            let _again = Workspace::enter_on(device, "LEARNS", &learns)?;
            let loss = nn::loss::cross_entropy(&self.model.forward(&self.x)?, &self.labels)?;
            let grads = loss.backward()?;
            for variable in self.model.variables() {
                if let Some(grad) = grads.get(variable.as_tensor()) {
                    left.push(grad.abs()?.sum_all()?.try_detach()?);
                }
            }
            left.push((best.sum_all()? + loss)?.try_detach()?);
        }
        left.iter().map(Proxy::to_scalar).collect()
    }

    /// Runs the program while something fails, then whole: it must be as before.
    fn survives(&self, device: &Device, expected: &[f32], result: Result<Vec<f32>, Error>, what: &str) -> bool {
        assert!(Workspace::current().is_none(), "{what}: every guard was dropped");
        let failed = match result {
            Ok(values) => {
                assert_eq!(values, expected, "{what}");
                false
            }
            Err(Error::OutOfMemory(_) | Error::Workspace { .. } | Error::Device { .. }) => true,
            Err(other) => panic!("{what}: {other:?}"),
        };
        let after = self.cycles(device).unwrap_or_else(|error| panic!("after {what}: {error:?}"));
        assert_eq!(after, expected, "after {what}");
        destroy_all_workspaces_for_current_thread().unwrap();
        failed
    }
}

#[test]
fn the_host_runs_out_of_memory_at_every_request_of_workspaces() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for on in [true, false] {
        let _switch = gc::scoped(on);
        let training = Training::new(&Device::Cpu);
        let expected = training.cycles(&Device::Cpu).unwrap();
        destroy_all_workspaces_for_current_thread().unwrap();
        let start = books(&Device::Cpu);
        for go_on in [false, true] {
            let mut failed = 0;
            for n in 1.. {
                Device::Cpu.clear_cache();
                let before = refuse_host_memory(n, go_on);
                let result = training.cycles(&Device::Cpu);
                let reached = refuse_host_memory(0, false) > before;
                let what = format!("request {n} refused, and all after it: {go_on}");
                failed += u32::from(training.survives(&Device::Cpu, &expected, result, &what));
                assert_eq!(books(&Device::Cpu), start, "{what}");
                if !reached {
                    break;
                }
            }
            assert!(failed > 10 || !go_on, "the program makes more requests than {failed}");
        }
    }
}

#[test]
fn a_simulated_device_fails_at_every_call_of_workspaces() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _on = gc::scoped(true);
    let (device, training) = simulated(2);
    let Device::Sim(sim) = &device else { unreachable!("it was just made") };
    let expected = training.cycles(&device).unwrap();
    destroy_all_workspaces_for_current_thread().unwrap();
    let start = books(&device);
    let mut failed = 0;
    for n in 1.. {
        sim.trim();
        let before = calls(&device);
        sim.fail_call(Some(n));
        let result = training.cycles(&device);
        let reached = calls(&device) - before >= n;
        sim.fail_call(None);
        failed += u32::from(training.survives(&device, &expected, result, &format!("call {n} failed")));
        assert_eq!(books(&device), start, "call {n} failed");
        if !reached {
            break;
        }
    }
    assert!(failed > 20, "the program makes more calls than {failed}");
    for n in 1..60 {
        sim.refuse_allocation(Some(n));
        let result = training.cycles(&device);
        sim.refuse_allocation(None);
        training.survives(&device, &expected, result, &format!("request {n} refused"));
        assert_eq!(books(&device), start, "request {n} refused");
    }
    assert_eq!(sim.violations(), []);
}

/// A convolution and a dense layer, trained with Adam: a network that made no step yet, the same one each time, and its
/// batch.
fn fitted(mode: WorkspaceMode) -> (Network, DataSet) {
    let config = NetworkConfig::builder().seed(2).updater(Updater::adam(1e-2)).training_workspace_mode(mode);
    let config = config.input_type(InputType::convolutional(1, 6, 6));
    let config = config.layer(Convolution2D::new(2, (3, 3)).activation(Activation::Tanh));
    let config = config.layer(Dense::new(8).activation(Activation::Tanh)).layer(OutputLayer::new(3, Loss::Mcxent));
    let pixels: Vec<f32> = (0..4 * 36).map(|i| (i * 37 % 101) as f32 / 50. - 1.).collect();
    let classes: Vec<f32> = (0..4 * 3).map(|i| f32::from(u8::from(i % 3 == i / 3 % 3))).collect();
    let images = Tensor::from_vec(pixels, (4, 1, 6, 6), &Device::Cpu).unwrap();
    let labels = Tensor::from_vec(classes, (4, 3), &Device::Cpu).unwrap();
    (config.build().unwrap(), DataSet::new(images, labels).unwrap())
}

/// The parameters to the last bit.
fn learned(net: &Network) -> Vec<Vec<u32>> {
    let bits = |array: &Tensor| array.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    net.params().map(|(_, var)| bits(&var.as_detached_tensor())).collect()
}

/// Of an array, of a block of a workspace, and of either inside of a layer.
fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory(_) | Error::WorkspaceFull(_) => true,
        Error::Workspace { why, .. } => why.contains("memory"),
        Error::Context { inner, .. } => is_out_of_memory(inner),
        _ => false,
    }
}

/// The first step of a network fails and changes no parameter, or is the step that it would have been; the next ones
/// are those of a network that was never short of memory.
#[test]
fn the_host_runs_out_of_memory_at_every_request_of_a_step_of_a_network() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _on = gc::scoped(true);
    for mode in [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::Enabled] {
        let (mut whole, batch) = fitted(mode);
        let untrained = learned(&whole);
        let scores = [(); 2].map(|()| whole.fit_batch(&batch).unwrap().to_bits());
        let trained = learned(&whole);
        drop(whole);
        let start = books(&Device::Cpu);
        for go_on in [false, true] {
            let mut failed = 0;
            for n in 1.. {
                let (mut net, _) = fitted(mode);
                Device::Cpu.clear_cache();
                let before = refuse_host_memory(n, go_on);
                let result = net.fit_batch(&batch);
                let reached = refuse_host_memory(0, false) > before;
                let what = format!("{mode:?}, request {n} refused, and all after it: {go_on}");
                assert!(Workspace::current().is_none(), "{what}: every guard was dropped");
                match result {
                    Ok(score) => assert_eq!(score.to_bits(), scores[0], "{what}"),
                    Err(error) => {
                        assert!(is_out_of_memory(&error), "{what}: {error:?}");
                        assert_eq!((learned(&net), net.iteration()), (untrained.clone(), 0), "{what}");
                        failed += 1;
                        let next = net.fit_batch(&batch).unwrap_or_else(|error| panic!("after {what}: {error:?}"));
                        assert_eq!(next.to_bits(), scores[0], "after {what}");
                    }
                }
                assert_eq!(net.fit_batch(&batch).unwrap().to_bits(), scores[1], "after {what}");
                assert_eq!(learned(&net), trained, "after {what}");
                drop(net);
                assert_eq!(books(&Device::Cpu), start, "{what}");
                if !reached {
                    break;
                }
            }
            assert!(failed > 10 || !go_on, "{mode:?}: a step makes more requests than {failed}");
        }
    }
}
