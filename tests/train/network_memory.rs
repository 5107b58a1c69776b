//! Memory of networks: constant over steps, outputs of their own, workspaces that are the caller's, nothing left
//! behind.

use std::sync::{Arc, Mutex};

use ndgc::train::{
    Activation, ArrayType, BatchNormalization, Convolution2D, DataSet, Dense, DropoutLayer, InputType,
    LayerWorkspaceMgr, ListDataSetIterator, Loss, Lstm, MemoryLine, Network, NetworkConfig, OutputLayer, PoolingType,
    Subsampling, TrainingListener, Updater, WorkspaceMode,
};
use ndgc::{
    DType, Device, Error, NdManager, ResetPolicy, Result, SimConfig, Tensor, Workspace, WorkspaceConfig,
    destroy_all_workspaces_for_current_thread, gc, memory,
};

use super::both::both;
use super::network_layers::{MODES, numbers, one_hot};

fn f32s(array: Tensor) -> Tensor {
    array.to_dtype(DType::F32).unwrap()
}

fn batch(features: &[usize], labels: &[usize]) -> DataSet {
    DataSet::new(f32s(numbers(features)), f32s(one_hot(labels))).unwrap()
}

fn start(mode: WorkspaceMode) -> NetworkConfig {
    let config = NetworkConfig::builder().seed(3).updater(Updater::adam(1e-3));
    config.training_workspace_mode(mode).inference_workspace_mode(mode)
}

fn deep(mode: WorkspaceMode) -> (Network, DataSet) {
    let config = start(mode).input_type(InputType::feed_forward(64));
    let hidden = || Dense::new(64).activation(Activation::Relu);
    let config = (0..20).fold(config, |config, _| config.layer(hidden()));
    (config.layer(OutputLayer::new(10, Loss::Mcxent)).build().unwrap(), batch(&[32, 64], &[32, 10]))
}

fn images(mode: WorkspaceMode) -> (Network, DataSet) {
    let config = start(mode)
        .input_type(InputType::convolutional(1, 12, 12))
        .layer(Convolution2D::new(4, (3, 3)).activation(Activation::Relu))
        .layer(Subsampling::new(PoolingType::Max, (2, 2)))
        .layer(BatchNormalization::new())
        .layer(DropoutLayer(0.2))
        .layer(OutputLayer::new(10, Loss::Mcxent));
    (config.build().unwrap(), batch(&[8, 1, 12, 12], &[8, 10]))
}

fn series(mode: WorkspaceMode) -> (Network, DataSet) {
    let config = start(mode).input_type(InputType::recurrent(6)).layer(Lstm::new(8)).layer(Lstm::new(8));
    (config.layer(OutputLayer::new(4, Loss::Mcxent)).build().unwrap(), batch(&[4, 6, 12], &[4, 4, 12]))
}

const NETWORKS: [fn(WorkspaceMode) -> (Network, DataSet); 3] = [deep, images, series];

/// Three of the networks that `docs/train.md` has figures of.
fn measured(name: &str, mode: WorkspaceMode) -> (Network, DataSet) {
    let (dense, output) = (|n| Dense::new(n).activation(Activation::Relu), |n| OutputLayer::new(n, Loss::Mcxent));
    let (config, features, labels): (_, &[usize], &[usize]) = match name {
        "mlp" => {
            let config = start(mode).input_type(InputType::feed_forward(784)).layer(dense(128)).layer(dense(64));
            (config.layer(output(10)), &[32, 784], &[32, 10])
        }
        "lenet" => {
            let pool = || Subsampling::new(PoolingType::Max, (2, 2));
            let config = start(mode).input_type(InputType::convolutional(1, 28, 28));
            let config = config.layer(Convolution2D::new(20, (5, 5))).layer(pool());
            let config = config.layer(Convolution2D::new(50, (5, 5))).layer(pool()).layer(dense(500));
            (config.layer(output(10)), &[32, 1, 28, 28], &[32, 10])
        }
        _ => {
            let config = start(mode).input_type(InputType::recurrent(50)).layer(Lstm::new(128));
            (config.layer(output(50)), &[16, 50, 30], &[16, 50, 30])
        }
    };
    (config.build().unwrap(), batch(features, labels))
}

/// After the first steps, a step leaves no array and no byte behind, and asks for no memory, in training as in use.
#[test]
fn memory_is_constant_over_steps() {
    both(|| {
        for make in NETWORKS {
            for mode in MODES {
                let (mut net, batch) = make(mode);
                let once = |net: &mut Network| {
                    net.fit_batch(&batch).unwrap();
                    drop(net.output(&batch.features).unwrap());
                    net.score_batch(&batch, false).unwrap();
                    gc::collect();
                    MemoryLine { iteration: 0, ..MemoryLine::of(net) }
                };
                // Workspaces that learn over time settle after twice as many layers, rings after some turns more.
                for _ in 0..24 {
                    once(&mut net);
                }
                let settled = once(&mut net);
                for step in 0..12 {
                    assert_eq!(once(&mut net), settled, "{mode:?}, step {step}");
                }
                assert_eq!(settled.requests == 0, mode == WorkspaceMode::None);
                assert_eq!(settled.workspace_bytes == 0, mode == WorkspaceMode::None);
            }
        }
    });
}

/// As `tests/steady` has it of larger networks, with each updater's first numbers.
#[test]
fn a_settled_step_asks_the_heap_for_nothing() {
    both(|| {
        for mode in [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Enabled] {
            for updater in [Updater::sgd(0.1), Updater::adam(0.1)] {
                let config = start(mode).updater(updater).input_type(InputType::feed_forward(6));
                let config = config.layer(Dense::new(8).activation(Activation::Relu));
                let mut net = config.layer(OutputLayer::new(3, Loss::Mcxent)).build().unwrap();
                let batch = batch(&[4, 6], &[4, 3]);
                for _ in 0..40 {
                    net.fit_batch(&batch).unwrap();
                }
                let before = crate::counting::requests();
                for _ in 0..10 {
                    net.fit_batch(&batch).unwrap();
                }
                let requests = crate::counting::requests() - before;
                assert_eq!(requests, 0, "{mode:?} with {updater:?}: in 10 steps");
            }
        }
    });
}

/// Batches and series of other lengths each time: workspaces grow to the longest, and stay.
#[test]
fn memory_settles_for_batches_of_all_sizes() {
    both(|| {
        for mode in MODES {
            let (mut net, _) = series(mode);
            let batches: Vec<DataSet> =
                [(4, 12), (1, 3), (6, 5), (2, 20), (6, 20)].map(|(n, t)| batch(&[n, 6, t], &[n, 4, t])).into();
            let round = |net: &mut Network| {
                for batch in &batches {
                    net.fit_batch(batch).unwrap();
                    drop(net.output(&batch.features).unwrap());
                }
                gc::collect();
                MemoryLine { iteration: 0, ..MemoryLine::of(net) }
            };
            for _ in 0..8 {
                round(&mut net);
            }
            let settled = round(&mut net);
            for _ in 0..6 {
                assert_eq!(round(&mut net), settled, "{mode:?}");
            }
        }
    });
}

/// What a settled step has at most beyond what stays; what of it lies in workspaces, and the most of that which lives at
/// once, as they know: those that plan have it as `alive`, and in the room of a step of a series all lives until the
/// step ends. Beside them is a copy of the input of a layer after one that has a way back of its own: a variable.
fn peak((mut net, batch): (Network, DataSet)) -> [u64; 3] {
    for _ in 0..12 {
        net.fit_batch(&batch).unwrap();
    }
    net.release_workspaces().unwrap();
    gc::collect();
    let stays = Device::Cpu.memory().active;
    for _ in 0..60 {
        net.fit_batch(&batch).unwrap();
    }
    Device::Cpu.reset_peak();
    for _ in 0..3 {
        net.fit_batch(&batch).unwrap();
    }
    let lives = net.workspaces().into_iter().map(|space| {
        let stats = space.stats();
        stats.plan.map_or(stats.max_cycle, |plan| plan.alive)
    });
    [Device::Cpu.memory().peak - stays, MemoryLine::of(&net).workspace_bytes, lives.sum()]
}

/// Where one layer is most of the network, its room is most of the memory in each mode. All gradients live at the end
/// of each, a quarter of what `Single` needs.
#[test]
fn separate_needs_less_than_two_thirds_of_single_for_many_narrow_layers() {
    both(|| {
        let [single, separate] = [WorkspaceMode::Single, WorkspaceMode::Separate].map(|mode| peak(deep(mode))[0]);
        assert!(separate * 3 < single * 2, "{separate} and {single}");
    });
}

/// R17: the default needs at most what `Separate` does, and at most 1.05 times what lives at once. (That it is as fast
/// as `Single` is measured: `docs/train.md`.)
#[test]
fn enabled_needs_no_more_than_separate_and_little_more_than_what_lives_at_once() {
    if crate::common::ran_apart() {
        return;
    }
    both(|| {
        for name in ["mlp", "lenet", "lstm"] {
            let [separate, ..] = peak(measured(name, WorkspaceMode::Separate));
            let [enabled, spaces, lives] = peak(measured(name, WorkspaceMode::Enabled));
            assert!(enabled <= separate, "{name}: {enabled} bytes, where `Separate` has {separate}");
            assert!(spaces >= lives && 20 * spaces <= 21 * lives, "{name}: {spaces} bytes for {lives} that live");
            let copied = if name == "lstm" { 4 * 16 * 128 * 30 } else { 0 };
            assert!(enabled <= spaces + copied, "{name}: {enabled} bytes, of which {spaces} in workspaces");
        }
    });
}

#[test]
fn nothing_is_left_of_a_network() {
    both(|| {
        let before = (gc::stats().live, Device::Cpu.memory().active, Workspace::all_for_current_thread().len());
        for make in NETWORKS {
            for mode in MODES {
                let (mut net, batch) = make(mode);
                net.fit_batch(&batch).unwrap();
                net.output(&batch.features).unwrap();
            }
        }
        gc::collect();
        let after = (gc::stats().live, Device::Cpu.memory().active, Workspace::all_for_current_thread().len());
        assert_eq!(before, after);
    });
}

/// On a device whose work is checked, the same numbers, and nothing stays there.
#[test]
fn a_network_may_be_on_another_device() {
    both(|| {
        for make in [rows_on, series_on] {
            for mode in MODES {
                let sim = Device::sim(SimConfig::default());
                let run = |device: &Device| {
                    let (mut net, batch) = make(mode, device);
                    let scores: Vec<f64> = (0..4).map(|_| net.fit_batch(&batch).unwrap()).collect();
                    let y = net.output(&batch.features).unwrap();
                    assert!(*y.device() == *device && !y.is_attached());
                    (scores, y.to_vec::<f32>().unwrap())
                };
                assert_eq!(run(&sim), run(&Device::Cpu), "{mode:?}");
                gc::collect();
                crate::common::check(&sim);
                assert_eq!(sim.memory().active, 0, "{mode:?}");
            }
        }
    });
}

fn rows_on(mode: WorkspaceMode, device: &Device) -> (Network, DataSet) {
    let config = start(mode).device(device).input_type(InputType::feed_forward(6)).layer(Dense::new(5));
    let config =
        config.layer(BatchNormalization::new()).layer(DropoutLayer(0.2)).layer(OutputLayer::new(3, Loss::Mcxent));
    (config.build().unwrap(), batch(&[4, 6], &[4, 3]).map(|array| array.to_device(device)).unwrap())
}

fn series_on(mode: WorkspaceMode, device: &Device) -> (Network, DataSet) {
    let config = start(mode).device(device).input_type(InputType::recurrent(6)).layer(Lstm::new(5));
    let config = config.layer(OutputLayer::new(3, Loss::Mcxent)).build().unwrap();
    (config, batch(&[4, 6, 3], &[4, 3, 3]).map(|array| array.to_device(device)).unwrap())
}

/// N2 (#4337): two networks of one configuration, in different modes.
#[test]
fn networks_of_one_configuration_share_nothing() {
    both(|| {
        let config = NetworkConfig::builder().input_type(InputType::feed_forward(4)).layer(Dense::new(3));
        let config = config.layer(OutputLayer::new(2, Loss::Mcxent));
        let nets = MODES
            .map(|mode| config.clone().training_workspace_mode(mode).inference_workspace_mode(mode).build().unwrap());
        let batch = batch(&[5, 4], &[5, 2]);
        let first = nets[0].output(&batch.features).unwrap().to_vec::<f32>().unwrap();
        for mut net in nets {
            assert_eq!(net.output(&batch.features).unwrap().to_vec::<f32>().unwrap(), first);
            net.fit_batch(&batch).unwrap();
        }
    });
}

/// N6, N9, N10: outputs are detached, or in the caller's workspace, which is not entered or left for that.
#[test]
fn an_output_is_the_callers() {
    both(|| {
        let config = WorkspaceConfig::default();
        for make in NETWORKS {
            for mode in MODES {
                let (net, batch) = make(mode);
                let first = net.output(&batch.features).unwrap();
                let second = net.output(&batch.features).unwrap();
                let expected = first.to_vec::<f32>().unwrap();
                assert!([&first, &second].iter().all(|y| !y.is_attached() && y.is_detached().unwrap()));
                assert_eq!(second.to_vec::<f32>().unwrap(), expected);
                for _ in 0..3 {
                    let cycle = Workspace::enter("EXTERNAL", &config).unwrap();
                    let y = net.output_in(&batch.features, &cycle).unwrap();
                    assert!(y.is_attached() && y.leverage_to("EXTERNAL").unwrap().is_same(&y));
                    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
                    assert!(
                        !net.output(&batch.features).unwrap().is_attached(),
                        "the caller's workspace is not in the way"
                    );
                    assert!(Workspace::current().is_some_and(|current| current.id() == "EXTERNAL"));
                    drop(cycle);
                    assert!(!Workspace::find("EXTERNAL").unwrap().is_open());
                    assert!(matches!(y.exp(), Err(Error::LeakedArray(_))));
                }
                let closed = Workspace::find("EXTERNAL").unwrap();
                let error = net.output_in(&batch.features, &closed).unwrap_err().to_string();
                assert!(error.contains("Workspace \"EXTERNAL\" for array type ACTIVATIONS is not open"), "{error}");
            }
        }
    });
}

/// N11: scores within a user's workspace, and in a part of the program without one.
#[test]
fn scores_are_taken_anywhere() {
    both(|| {
        for mode in MODES {
            let (net, batch) = deep(mode);
            let expected = net.score_batch(&batch, false).unwrap();
            for _ in 0..10 {
                let _cycle = Workspace::enter("USER", &WorkspaceConfig::default()).unwrap();
                let inside = net.score_batch(&batch, false).unwrap();
                let _out = Workspace::scope_out();
                let each = net.score_examples(&batch, false).unwrap();
                assert!(!each.is_attached() && each.dims() == [32]);
                let mean = each.mean_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(inside == expected && (f64::from(mean) - expected).abs() < 1e-5);
            }
        }
    });
}

/// Features that a manager owns give results that it does not own.
#[test]
fn results_do_not_belong_to_the_manager_of_the_features() {
    both(|| {
        for mode in MODES {
            let (mut net, batch) = deep(mode);
            let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
            batch.features.attach(&manager).unwrap();
            batch.labels.attach(&manager).unwrap();
            for _ in 0..3 {
                net.fit_batch(&batch).unwrap();
            }
            let y = net.output(&batch.features).unwrap();
            assert_eq!(manager.array_count(), 2, "{mode:?}");
            manager.close().unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap().len(), 320);
            assert!(net.output(&batch.features).is_err(), "they ended with their manager");
        }
    });
}

/// Asks the network for an output and a score after each step (#5351).
#[derive(Debug)]
struct Curious(DataSet, Arc<Mutex<Vec<f64>>>);

impl TrainingListener for Curious {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        assert!(!net.output(&self.0.features)?.is_attached());
        net.for_each_output(ListDataSetIterator::new(vec![self.0.clone()]), |_, y| y.to_vec::<f32>().map(drop))?;
        self.1.lock().unwrap().push(net.score_batch(&self.0, false)?);
        Ok(())
    }
}

#[test]
fn a_listener_may_use_the_network() {
    both(|| {
        for mode in MODES {
            let (mut net, batch) = series(mode);
            let seen = Arc::default();
            net.add_listener(Curious(batch.clone(), Arc::clone(&seen)));
            let scores: Vec<f64> = {
                // Inside of a user's workspace too.
                let _cycle = Workspace::enter("AROUND", &WorkspaceConfig::default()).unwrap();
                (0..4).map(|_| net.fit_batch(&batch).unwrap()).collect()
            };
            let seen = seen.lock().unwrap().clone();
            // What the listener sees after a step is the score before the next one.
            assert!(seen.iter().zip(&scores[1..]).all(|(a, b)| (a - b).abs() < 1e-6), "{seen:?} and {scores:?}");
        }
    });
}

/// R24: as many bytes after batch 3 as after batch 300.
#[test]
fn evaluating_many_batches_needs_the_memory_of_one() {
    both(|| {
        for mode in MODES {
            let (net, batch) = deep(mode);
            let mut bytes = Vec::new();
            let all = ListDataSetIterator::new(vec![batch.clone(); 300]);
            net.for_each_output(all, |_, y| {
                assert_eq!(y.dims(), [32, 10]);
                gc::collect();
                bytes.push(Device::Cpu.memory().active);
                Ok(())
            })
            .unwrap();
            assert!(bytes[50..].iter().all(|&now| now == bytes[50]), "{mode:?}: {bytes:?}");
        }
    });
}

/// R26: one by one where arrays are few, and together where they are many.
#[test]
fn reports_say_which_network_has_what() {
    both(|| {
        let (mut net, batch) = deep(WorkspaceMode::Enabled);
        net.fit_batch(&batch).unwrap();
        let (other, _) = deep(WorkspaceMode::Enabled);
        let number = |net: &Network| {
            let workspace = net.training_workspaces().workspace_name(ArrayType::Activations).unwrap();
            workspace.rsplit_once('#').unwrap().1.to_owned()
        };
        let (own, others) = (number(&net), number(&other));
        let arrays = NdManager::system(&Device::Cpu).report().arrays;
        for name in ["parameters.0_W", "updater.0_W/M", "updater.0_W/V"] {
            let name = format!("network#{own} {name}");
            let found: Vec<_> = arrays.iter().filter(|array| array.name.as_ref() == Some(&name)).collect();
            assert!(found.len() == 1 && found[0].shape == [64, 64], "{name}: {found:?}");
        }
        let report = memory::crash_report(&Device::Cpu);
        for (network, what) in
            [(&own, "parameters`: 42 arrays, "), (&own, "updater`: 84 arrays, "), (&others, "parameters`: 42 arrays, ")]
        {
            assert!(report.contains(&format!("of these `network#{network} {what}")), "{what} of {network}:\n{report}");
        }
        assert!(!report.contains(&format!("network#{others} updater")), "{report}");
    });
}

/// R17: calls commute, the last one for a kind holds; both directions of a validation have DL4J's texts.
#[test]
fn places_are_told_and_validated() {
    both(|| {
        let config = WorkspaceConfig::default();
        let builder = LayerWorkspaceMgr::builder;
        let with = builder().with(ArrayType::Input, "WS_A", &config).default_no_workspace().build();
        let other = builder().default_no_workspace().with(ArrayType::Input, "WS_A", &config).build();
        for kind in ArrayType::ALL {
            assert_eq!(with.workspace_name(kind), other.workspace_name(kind));
            assert_eq!(with.is_scoped_out(kind), kind != ArrayType::Input);
        }
        let kind = ArrayType::Activations;
        let again = builder().no_workspace_for(kind).with(kind, "WS_A", &config).build();
        assert_eq!(again.workspace_name(kind), Some("WS_A"), "DL4J leaves it scoped out");
        let none = builder().build().create(kind, DType::F32, 1).unwrap_err().to_string();
        assert!(none.contains("No workspace configuration has been provided for arrayType: ACTIVATIONS"), "{none}");
        let closed = again.create(kind, DType::F32, 1).unwrap_err().to_string();
        assert!(closed.contains("Workspace \"WS_A\" for array type ACTIVATIONS is not open"), "{closed}");

        let mgr = builder()
            .default_no_workspace()
            .with(kind, "WS_A", &config)
            .with(ArrayType::Input, "WS_B", &config)
            .build();
        let text = |result: Result<Tensor>| result.unwrap_err().to_string();
        {
            let _open = mgr.notify_scope_entered(&[kind, ArrayType::Input]).unwrap();
            mgr.assert_open(kind).unwrap();
            mgr.assert_current_workspace(ArrayType::Input).unwrap();
            assert!(mgr.assert_current_workspace(kind).is_err() && mgr.assert_not_open(kind).is_err());
            let a = mgr.create(kind, DType::F16, (2, 3)).unwrap();
            let b = mgr.create_uninitialized(ArrayType::Input, DType::F32, 4).unwrap();
            let out = mgr.create(ArrayType::FfWorkingMem, DType::F32, 4).unwrap();
            mgr.validate_array_location(kind, &a, false, true).unwrap();
            let wrong = text(mgr.validate_array_location(kind, &b, false, false));
            assert!(
                wrong
                    .contains("Array of type ACTIVATIONS should be in workspace \"WS_A\" but is in workspace \"WS_B\""),
                "{wrong}"
            );
            mgr.validate_array_location(kind, &out, false, false).unwrap();
            let detached = text(mgr.validate_array_location(kind, &out, false, true));
            assert!(detached.contains("should be in workspace \"WS_A\" but is detached"), "{detached}");
            let inside = text(mgr.validate_array_location(ArrayType::FfCache, &a, false, false));
            assert!(inside.contains("should be detached (no workspace) but is in workspace: WS_A"), "{inside}");
            let moved = mgr.validate_array_location(kind, &b, true, true).unwrap();
            mgr.validate_array_location(kind, &moved, false, true).unwrap();

            let there = mgr.leverage_to(ArrayType::Input, &a).unwrap();
            assert!(there.dtype() == DType::F16 && there.leverage_to("WS_B").unwrap().is_same(&there));
            assert!(
                mgr.leverage_to(kind, &a).unwrap().is_same(&a) && mgr.leverage_to(kind, &out).unwrap().is_same(&out)
            );
            assert!(!mgr.leverage_to(ArrayType::FfCache, &a).unwrap().is_attached());
            assert!(mgr.dup(kind, &out).unwrap().is_attached());
            assert_eq!(mgr.cast_to(kind, DType::F64, &b).unwrap().dtype(), DType::F64);
            let mut keeps = mgr.clone();
            keeps.set_no_leverage_override("WS_B");
            assert!(keeps.leverage_to(kind, &b).unwrap().is_same(&b));
            let _borrowed = mgr.notify_scope_borrowed(kind).unwrap();
            mgr.assert_current_workspace(kind).unwrap();
        }
        assert!(Workspace::current().is_none());
        let mut fixed = LayerWorkspaceMgr::no_workspaces_immutable();
        assert!(fixed.set_workspace(kind, "WS_A", &config).is_err() && fixed.set_scoped_out_for(kind).is_err());
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// What is asserted of places, and changed of those that stay as they are.
#[test]
fn places_that_are_not_as_was_asked_say_so() {
    both(|| {
        let (config, kind) = (WorkspaceConfig::default(), ArrayType::Activations);
        let mgr = LayerWorkspaceMgr::builder().default_no_workspace().with(kind, "WS_A", &config);
        let mgr = mgr.with(ArrayType::Input, "WS_B", &config).build();
        let told = |result: Result<()>, wanted: &str| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(wanted), "{text}");
        };
        told(mgr.assert_open(kind), "Workspace \"WS_A\" for array type ACTIVATIONS is not open");
        {
            let _open = mgr.notify_scope_entered(&[kind, ArrayType::Input]).unwrap();
            told(mgr.assert_not_open(kind), "Workspace \"WS_A\" for array type ACTIVATIONS is open");
            told(
                mgr.assert_current_workspace(kind),
                "the current workspace for array type ACTIVATIONS should be Some(\"WS_A\"), but is Some(\"WS_B\")",
            );
        }
        let mut fixed = LayerWorkspaceMgr::no_workspaces_immutable();
        for result in [fixed.set_workspace(kind, "WS_A", &config), fixed.set_scoped_out_for(kind)] {
            told(result, "the place of ACTIVATIONS cannot be changed: this manager is immutable");
        }
        assert!(fixed.is_scoped_out(kind), "nothing was changed");
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn a_default_workspace_is_for_the_kinds_that_no_call_names() {
    both(|| {
        let (config, own) = (WorkspaceConfig::default(), ArrayType::Input);
        let builder = LayerWorkspaceMgr::builder;
        let first = builder().default_workspace("WS_ALL", &config).no_workspace_for(own).build();
        let last = builder().no_workspace_for(own).default_workspace("WS_ALL", &config).build();
        for mgr in [first, last] {
            for kind in ArrayType::ALL {
                let name = (kind != own).then_some("WS_ALL");
                assert_eq!((mgr.workspace_name(kind), mgr.has_configuration(kind)), (name, name.is_some()));
                assert_eq!((mgr.is_scoped_out(kind), mgr.is_workspace_open(kind)), (kind == own, kind == own));
            }
            let open = mgr.notify_scope_entered(&[ArrayType::Activations]).unwrap();
            assert!(ArrayType::ALL.into_iter().all(|kind| mgr.is_workspace_open(kind)), "it is one for all");
            drop(open);
        }
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// Broken by: a look at where an array lies that copied it there, and saw the workspaces of its own thread alone.
#[test]
fn a_look_at_a_place_takes_nothing_there_and_knows_those_of_other_threads() {
    both(|| {
        let (config, kind) = (WorkspaceConfig::default(), ArrayType::Activations);
        let mgr = LayerWorkspaceMgr::builder().default_no_workspace().with(kind, "WS_A", &config);
        let mut mgr = mgr.with(ArrayType::Input, "WS_B", &config).build();
        mgr.set_no_leverage_override("WS_B");
        mgr.set_no_leverage_override("WS_RING");
        {
            let _open = mgr.notify_scope_entered(&[ArrayType::Input, kind]).unwrap();
            let a = mgr.create(kind, DType::F32, 4).unwrap();
            assert!(mgr.leverage_to(kind, &a).unwrap().is_same(&a));
            let wrong = mgr.validate_array_location(ArrayType::Input, &a, false, false).unwrap_err().to_string();
            assert!(wrong.contains("should be in workspace \"WS_B\" but is in workspace \"WS_A\""), "{wrong}");
            assert_eq!(Workspace::find("WS_B").unwrap().stats().this_cycle, 0);

            let made = std::thread::spawn(|| {
                let ring = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached);
                let ring = ring.initial_size(4096).overallocation_limit(1.).build()?;
                let cycle = Workspace::enter("WS_RING", &ring)?;
                Ok::<_, Error>((Tensor::ones(4, DType::F32, &Device::Cpu)?, cycle.lease()?))
            });
            let (batch, lease) = made.join().unwrap().unwrap();
            assert_eq!(batch.workspace_id().as_deref(), Some("WS_RING"));
            assert!(mgr.leverage_to(kind, &batch).unwrap().is_same(&batch));
            drop(lease);
            assert_eq!((batch.is_attached(), batch.workspace_id()), (true, None));
        }
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// N7, and a mode may be changed later.
#[test]
fn modes_are_told_and_changed() {
    both(|| {
        let (mut net, batch) = deep(WorkspaceMode::Separate);
        assert_eq!(net.training_workspace_mode(), WorkspaceMode::Separate);
        net.fit_batch(&batch).unwrap();
        net.set_workspace_modes(WorkspaceMode::None, WorkspaceMode::Single).unwrap();
        assert_eq!(
            (net.training_workspace_mode(), net.inference_workspace_mode()),
            (WorkspaceMode::None, WorkspaceMode::Single)
        );
        assert!(net.workspaces().is_empty());
        net.fit_batch(&batch).unwrap();
        assert!(net.workspaces().is_empty());
        net.output(&batch.features).unwrap();
        assert_eq!(net.workspaces().len(), 1);
    });
}
