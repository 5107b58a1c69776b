//! Networks without memory, and with workspaces that are switched off: typed errors, nothing left open, the same
//! numbers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ndgc::train::{
    Activation, Backprop, BatchNormalization, DataSet, Dense, GradientNormalization, InputType, Layer, LayerConfig,
    LayerSettings, Loss, Lstm, ModuleLayer, Moments, Network, NetworkConfig, OutputLayer, Pass, TrainingListener,
    Updater, WorkspaceMode,
};
use ndgc::{CpuStorage, CustomOp1, DType, DebugMode, Device, Error, Layout, Result, Shape, Tensor, Workspace, gc};

use super::both::both;
use super::network_layers::{MODES, numbers, one_hot};
use super::network_training::Folder;

fn rows(mode: WorkspaceMode) -> (Network, DataSet) {
    let config = NetworkConfig::builder().data_type(DType::F64).seed(2).updater(Updater::adam(1e-2));
    let config = config.training_workspace_mode(mode).inference_workspace_mode(mode);
    let config = config.input_type(InputType::feed_forward(40)).layer(Dense::new(60).activation(Activation::Tanh));
    let config = config.layer(BatchNormalization::new()).layer(OutputLayer::new(3, Loss::Mcxent));
    (config.build().unwrap(), DataSet::new(numbers(&[16, 40]), one_hot(&[16, 3])).unwrap())
}

fn series(mode: WorkspaceMode) -> (Network, DataSet) {
    let config = NetworkConfig::builder().data_type(DType::F64).seed(2).updater(Updater::adam(1e-2));
    let config = config.training_workspace_mode(mode).inference_workspace_mode(mode);
    let config =
        config.input_type(InputType::recurrent(5)).layer(Lstm::new(6)).layer(OutputLayer::new(2, Loss::Mcxent));
    (config.build().unwrap(), DataSet::new(numbers(&[3, 5, 7]), one_hot(&[3, 2, 7])).unwrap())
}

/// With all that changes a gradient or a parameter beside the updater, and an updater of another kind for each layer.
fn penalised(mode: WorkspaceMode) -> (Network, DataSet) {
    let moments = Moments::new(1e-2);
    let updaters = [
        Updater::nesterovs(1e-2, 0.9),
        Updater::AmsGrad(moments),
        Updater::Nadam(moments),
        Updater::AdaMax(moments),
        Updater::rms_prop(1e-3),
        Updater::ada_grad(1e-2),
    ];
    let config = NetworkConfig::builder().data_type(DType::F64).seed(2).l1(1e-3).l2(1e-3).weight_decay(1e-3, true);
    let config = config.gradient_normalization(GradientNormalization::ClipL2PerLayer, 1e-2);
    let config = config.training_workspace_mode(mode).inference_workspace_mode(mode);
    let config = updaters.into_iter().fold(config.input_type(InputType::feed_forward(40)), |config, updater| {
        config.layer(Dense::new(20).activation(Activation::Tanh).with(LayerSettings::new().updater(updater)))
    });
    let last = LayerSettings::new().updater(Updater::AdaDelta { rho: 0.95, epsilon: 1e-3 });
    let output = OutputLayer::new(3, Loss::Mcxent).with(last);
    (config.layer(output).build().unwrap(), DataSet::new(numbers(&[16, 40]), one_hot(&[16, 3])).unwrap())
}

const NETWORKS: [fn(WorkspaceMode) -> (Network, DataSet); 3] = [rows, series, penalised];

fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory(_) | Error::WorkspaceFull(_) => true,
        // A block that there is no memory for, and what happened inside of a layer.
        Error::Workspace { why, .. } => why.contains("memory"),
        Error::Context { inner, .. } => is_out_of_memory(inner),
        _ => false,
    }
}

/// Sets the limit back, also if the test fails.
pub(super) struct Limit(Option<u64>);

impl Limit {
    pub(super) fn set(bytes: u64) -> Self {
        Limit(Device::Cpu.set_limit(Some(bytes)))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        Device::Cpu.set_limit(self.0);
    }
}

/// The parameters to the last bit, but running means, which follow on the way forward.
fn params(net: &Network) -> Vec<Vec<u64>> {
    let all = net.params().filter(|(name, _)| !name.ends_with("_mean") && !name.ends_with("_log10stdev"));
    all.map(|(_, var)| bits(var)).collect()
}

/// All that a step changes.
fn state(net: &Network) -> Vec<Vec<u64>> {
    let kept = net.updater_state().unwrap();
    params(net).into_iter().chain(kept.iter().map(|(_, array)| bits(array))).collect()
}

fn bits(array: &Tensor) -> Vec<u64> {
    array.to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

/// Wherever memory ends in a step, the error says so, nothing is changed or stays open, and the next step is made.
#[test]
fn a_step_without_memory_is_an_error_and_the_next_one_is_made() {
    if crate::common::ran_apart() {
        return;
    }
    both(|| {
        for make in NETWORKS {
            for mode in MODES {
                let (mut net, batch) = make(mode);
                let before = params(&net);
                let (mut failed, mut more) = (0, 0);
                loop {
                    net.release_workspaces().unwrap();
                    gc::collect();
                    let limit = Limit::set(Device::Cpu.memory().active + more);
                    let result = net.fit_batch(&batch);
                    drop(limit);
                    assert!(net.workspaces().iter().all(|space| !space.is_open()) && Workspace::current().is_none());
                    match result {
                        Err(error) => {
                            assert!(is_out_of_memory(&error), "{mode:?} with {more} more: {error}");
                            assert_eq!(params(&net), before, "{mode:?} with {more} more");
                        }
                        Ok(_) => break,
                    }
                    failed += 1;
                    more += 1 + more / 3;
                }
                assert!(failed > 5, "{mode:?}: {failed}");
                let scores: Vec<f64> = (0..30).map(|_| net.fit_batch(&batch).unwrap()).collect();
                assert!(scores[29] < scores[0], "{mode:?}: {scores:?}");
            }
        }
    });
}

/// A step that finds room for what the updater keeps of one layer, and none for that of the next one.
#[test]
fn a_checkpoint_after_a_step_without_memory_is_whole() {
    both(|| {
        let folder = Folder::new("no-room");
        let path = folder.0.join("model");
        let config = NetworkConfig::builder().data_type(DType::F64).updater(Updater::adam(1e-2));
        let config = config.training_workspace_mode(WorkspaceMode::None).input_type(InputType::feed_forward(128));
        let config = config.layer(Dense::new(128)).layer(Dense::new(128)).layer(OutputLayer::new(128, Loss::Mse));
        let batch = DataSet::new(numbers(&[2, 128]), numbers(&[2, 128])).unwrap();
        let mut more = 0;
        loop {
            let mut net = config.clone().build().unwrap();
            gc::collect();
            let limit = Limit::set(Device::Cpu.memory().active + more);
            let result = net.fit_batch(&batch);
            drop(limit);
            net.save(&path).unwrap();
            let loaded = Network::load(&path, &Device::Cpu).unwrap();
            assert_eq!(state(&loaded), state(&net), "with {more} more");
            if result.is_ok() {
                break;
            }
            more += 1 + more / 5;
        }
        assert!(more > 1 << 19, "{more}");
    });
}

#[test]
fn a_layer_without_outputs_is_refused_by_its_name() {
    let config = NetworkConfig::builder().input_type(InputType::feed_forward(2)).layer(Dense::new(0));
    let Err(error) = config.layer(OutputLayer::new(2, Loss::Mcxent)).build() else { panic!("there is no such layer") };
    let told =
        "network: parameter is 0_W of shape [2, 0]; it must be one with elements: a layer has inputs and outputs";
    assert_eq!(crate::common::text_of(&error), told);
    // And one with more weights than can be counted as such.
    let config = NetworkConfig::builder().input_type(InputType::feed_forward(1 << 40)).layer(Dense::new(1 << 40));
    let built = config.layer(OutputLayer::new(2, Loss::Mcxent)).build();
    assert!(matches!(built.map(drop), Err(Error::SizeOverflow { .. })));
}

/// Hands on what it is given, and fails on the way back if it is asked to: by autograd, or on a way of its own.
#[derive(Clone, Debug)]
struct Fragile {
    fails: Arc<AtomicBool>,
    own: bool,
}

impl Fragile {
    fn back(&self, epsilon: &Tensor) -> Result<Tensor> {
        if self.fails.load(Ordering::Relaxed) { Err(Error::msg("as asked")) } else { epsilon.copy() }
    }
}

impl CustomOp1 for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), *layout.shape()))
    }
    fn bwd(&self, _x: &Tensor, _y: &Tensor, epsilon: &Tensor) -> Result<Option<Tensor>> {
        self.back(epsilon).map(Some)
    }
}

impl Layer for Fragile {
    fn kind(&self) -> &str {
        "Fragile"
    }
    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }
    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.result(|| if self.own { x.copy() } else { x.apply_op1(self.clone()) })
    }
    fn has_own_backprop(&self) -> bool {
        self.own
    }
    fn backprop_gradient(&self, _x: &Tensor, epsilon: &Tensor, _pass: &Pass<'_>) -> Result<Option<Backprop>> {
        Ok(Some(Backprop { epsilon: Some(self.back(epsilon)?), gradients: Default::default() }))
    }
}

/// Later layers have their gradients when one fails: none has changed, and all goes on as if nothing had been.
#[test]
fn a_step_that_fails_on_its_way_back_changes_no_parameter() {
    both(|| {
        for (own, mode) in [false, true].into_iter().flat_map(|own| MODES.map(|mode| (own, mode))) {
            let fails = Arc::new(AtomicBool::new(false));
            let layers: [LayerConfig; 4] = [
                Dense::new(6).activation(Activation::Tanh).into(),
                Fragile { fails: Arc::clone(&fails), own }.into(),
                Dense::new(5).activation(Activation::Relu).into(),
                OutputLayer::new(3, Loss::Mcxent).into(),
            ];
            let config = NetworkConfig::builder().data_type(DType::F64).updater(Updater::adam(0.05)).seed(1);
            let config = config.l2(0.01).weight_decay(0.1, true);
            let config = config.training_workspace_mode(mode).input_type(InputType::feed_forward(4));
            let mut net = layers.into_iter().fold(config, NetworkConfig::layer).build().unwrap();
            let mut whole = net.replica().unwrap();
            let batch = DataSet::new(numbers(&[6, 4]), one_hot(&[6, 3])).unwrap();
            for steps in [0, 1, 25] {
                for _ in 0..steps {
                    let scores = [&mut net, &mut whole].map(|net| net.fit_batch(&batch).unwrap().to_bits());
                    assert_eq!(scores[0], scores[1], "own {own}, {mode:?}");
                }
                assert_eq!(state(&net), state(&whole), "own {own}, {mode:?}, after steps");
                fails.store(true, Ordering::Relaxed);
                let error = net.fit_batch(&batch).unwrap_err().to_string();
                fails.store(false, Ordering::Relaxed);
                assert!(error.contains("as asked"), "{error}");
                assert_eq!(state(&net), state(&whole), "own {own}, {mode:?}, after the failure");
                assert_eq!((net.iteration(), net.score().to_bits()), (whole.iteration(), whole.score().to_bits()));
            }
        }
    });
}

#[test]
fn a_step_that_fails_on_its_way_forward_changes_no_parameter() {
    both(|| {
        for mode in MODES {
            let (mut net, batch) = rows(mode);
            let before = state(&net);
            let wrong = DataSet::new(batch.features.clone(), one_hot(&[16, 5])).unwrap();
            net.fit_batch(&wrong).unwrap_err();
            assert_eq!((state(&net), net.iteration()), (before, 0), "{mode:?}");
        }
    });
}

/// Broken by: what layers kept for the way back, until the next step took its place.
#[test]
fn a_step_that_fails_leaves_no_array_behind() {
    both(|| {
        for mode in MODES {
            let (mut net, batch) = series(mode);
            net.fit_batch(&batch).unwrap();
            let wrong = DataSet::new(batch.features.clone(), one_hot(&[3, 4, 7])).unwrap();
            let alive = || {
                gc::collect();
                // Of workspaces blocks are in use, whatever is in them.
                let bytes = if mode == WorkspaceMode::None { Device::Cpu.memory().active } else { 0 };
                (gc::stats().live, bytes)
            };
            let before = alive();
            net.fit_batch(&wrong).unwrap_err();
            assert_eq!(alive(), before, "{mode:?}");
            net.compute_gradient_and_score(&wrong).unwrap_err();
            assert_eq!(alive(), before, "{mode:?}");
        }
    });
}

/// Broken by: one of both that was set, whichever it is, and left so where somebody is reading the other.
#[test]
fn running_statistics_of_which_one_cannot_follow_both_stay() {
    both(|| {
        for mode in MODES {
            let (mut net, batch) = rows(mode);
            let of = |end: &str| net.params().find(|(name, _)| name.ends_with(end)).unwrap().1.clone();
            let (mean, log) = (of("_mean"), of("_log10stdev"));
            let before = [bits(&mean), bits(&log)];
            for read in [&mean, &log] {
                read.with_slice(|_: &[f64]| net.fit_batch(&batch).unwrap_err()).unwrap();
                assert_eq!([bits(&mean), bits(&log)], before, "{mode:?}");
            }
            net.fit_batch(&batch).unwrap();
            assert!(bits(&mean) != before[0] && bits(&log) != before[1], "{mode:?}");
        }
    });
}

/// A panic in the middle of a step, on the way forward or in an update, leaves a network that can be used.
#[test]
fn a_panic_in_a_step_leaves_the_network_usable() {
    both(|| {
        for mode in MODES {
            let fails = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&fails);
            let layer = ModuleLayer::new("fragile", InputType::feed_forward(4), move |_| {
                let seen = Arc::clone(&seen);
                Ok(Box::new(move |x: &Tensor| {
                    assert!(!seen.load(Ordering::Relaxed), "as asked");
                    x.tanh()
                }))
            });
            let config = NetworkConfig::builder().data_type(DType::F64).updater(Updater::adam(0.05)).seed(1);
            let config =
                config.training_workspace_mode(mode).input_type(InputType::feed_forward(4)).layer(Dense::new(4));
            let mut net = config.layer(layer).layer(OutputLayer::new(3, Loss::Mcxent)).build().unwrap();
            let batch = DataSet::new(numbers(&[6, 4]), one_hot(&[6, 3])).unwrap();
            let mut whole = net.replica().unwrap();
            net.fit_batch(&batch).unwrap();
            fails.store(true, Ordering::Relaxed);
            catch_unwind(AssertUnwindSafe(|| net.fit_batch(&batch))).unwrap_err();
            fails.store(false, Ordering::Relaxed);
            assert!(Workspace::current().is_none() && net.workspaces().iter().all(|space| !space.is_open()));
            let scores =
                |net: &mut Network| (0..3).map(|_| net.fit_batch(&batch).unwrap().to_bits()).collect::<Vec<_>>();
            whole.fit_batch(&batch).unwrap();
            assert_eq!(scores(&mut net), scores(&mut whole), "{mode:?}: as if nothing had been");
        }
    });
}

/// Panics at each step.
#[derive(Debug)]
struct Panics;

impl TrainingListener for Panics {
    fn iteration_done(&mut self, _net: &Network) -> Result<()> {
        panic!("as asked");
    }
}

#[test]
fn a_listener_that_panics_stays() {
    both(|| {
        let (mut net, batch) = rows(WorkspaceMode::Enabled);
        net.add_listener(Panics);
        catch_unwind(AssertUnwindSafe(|| net.fit_batch(&batch))).unwrap_err();
        assert_eq!((net.iteration(), net.take_listeners().len()), (1, 1));
        net.fit_batch(&batch).unwrap();
    });
}

/// Each array with memory of its own, or no workspaces at all: the same numbers.
#[test]
fn debug_modes_change_nothing() {
    both(|| {
        for make in NETWORKS {
            let run = |mode, debug| {
                Workspace::set_debug_mode(debug);
                let (mut net, batch) = make(mode);
                let scores: Vec<u64> = (0..3).map(|_| net.fit_batch(&batch).unwrap().to_bits()).collect();
                let output = net.output(&batch.features).unwrap().to_vec::<f64>().unwrap();
                Workspace::set_debug_mode(DebugMode::Disabled);
                (scores, output)
            };
            let expected = run(WorkspaceMode::None, DebugMode::Disabled);
            for mode in MODES {
                for debug in [DebugMode::SpillEverything, DebugMode::BypassEverything] {
                    assert_eq!(run(mode, debug), expected, "{mode:?} in {debug:?}");
                }
            }
        }
    });
}
