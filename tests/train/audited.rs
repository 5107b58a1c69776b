//! What an audit of networks and layers found: gradients behind dropout and in segments of series, calls that fail in
//! the middle, settings of any size, halves that overflow.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ndgc::train::{
    Activation, BatchNormalization, Convolution2D, DataSet, Dense, DuplicateToTimeSeriesVertex, Embedding,
    GlobalPooling, GradientNormalization, Gru, InputType, LastTimeStep, Layer, LayerConfig, LayerSettings,
    LayerWorkspaceMgr, ListDataSetIterator, Loss, Lstm, Network, NetworkConfig, OutputLayer, ParallelWrapper, Param,
    Pass, PoolingType, SelfAttention, SimpleRnn, TimeListener, Updater, WeightInit, WorkspaceMode, gradient_check,
};
use ndgc::{DType, Device, Error, Result, Tensor, Var};

use super::both::both;
use super::network_layers::{MODES, numbers, one_hot};

fn config(mode: WorkspaceMode) -> NetworkConfig {
    let config = NetworkConfig::builder().data_type(DType::F64).seed(4).updater(Updater::sgd(0.5));
    config.training_workspace_mode(mode).inference_workspace_mode(mode)
}

pub(super) fn of(all: &[f64], dims: &[usize]) -> Tensor {
    Tensor::from_slice(all, dims, &Device::Cpu).unwrap()
}

pub(super) fn values(array: &Tensor) -> Vec<f64> {
    array.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

pub(super) fn params(net: &Network) -> Vec<f64> {
    net.params().flat_map(|(_, var)| values(&var.as_detached_tensor())).collect()
}

#[track_caller]
fn near(ours: &[f64], wanted: &[f64], most: f64, what: &str) {
    let close = ours.iter().zip(wanted).all(|(a, b)| (a - b).abs() < most);
    assert!(ours.len() == wanted.len() && close, "{what}: {ours:?}, and not {wanted:?}");
}

/// The gradient that a layer's own way back gives is that of what dropout left of its input.
#[test]
fn a_layer_with_its_own_way_back_may_have_dropout() {
    both(|| {
        for mode in MODES {
            let before = Dense::new(5).activation(Activation::Tanh);
            let series = Lstm::new(4).with(LayerSettings::new().dropout(0.4));
            let config = config(mode).input_type(InputType::recurrent(3)).validate_workspaces(true);
            let net = config.layer(before).layer(series).layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let batch = DataSet::new(numbers(&[3, 3, 6]), one_hot(&[3, 2, 6])).unwrap();
            let found = gradient_check(&net, &batch, 7).unwrap();
            assert!(found.checked > 0 && found.max_error < 2e-5, "{mode:?}: {found:?}");
        }
    });
}

/// The parameters after three series of ten steps, in segments of four.
fn in_segments(mode: WorkspaceMode, layers: Vec<LayerConfig>) -> Vec<f64> {
    let config = config(mode).tbptt_length(4).input_type(InputType::recurrent(3));
    let config = layers.into_iter().fold(config, NetworkConfig::layer);
    let mut net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
    let batch = DataSet::new(numbers(&[2, 3, 10]), one_hot(&[2, 2, 10])).unwrap();
    for _ in 0..3 {
        net.fit_batch(&batch).unwrap();
    }
    params(&net)
}

/// N5: what is computed again begins with what the segment before left.
#[test]
fn segments_of_series_are_the_same_in_each_mode() {
    both(|| {
        let hard = || Lstm::new(4).activation(Activation::HardTanh);
        let cases: [(&str, Vec<LayerConfig>); 5] = [
            ("gru", vec![Gru::new(4).into()]),
            ("simple", vec![SimpleRnn::new(4).into()]),
            ("lstm by autograd", vec![hard().into()]),
            ("lstm", vec![Lstm::new(4).into()]),
            ("both", vec![Lstm::new(4).into(), Gru::new(3).into()]),
        ];
        for (name, layers) in cases {
            // In one graph, but of layers with a way back of their own, which keep what they had.
            let wanted = in_segments(WorkspaceMode::None, layers.clone());
            for mode in MODES {
                near(&in_segments(mode, layers.clone()), &wanted, 1e-9, &format!("{name} in {mode:?}"));
            }
        }
    });
}

/// Hands on what it is given, unless it is shut.
#[derive(Debug)]
struct Gate(Arc<AtomicBool>);

impl Layer for Gate {
    fn kind(&self) -> &str {
        "Gate"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        match self.0.load(SeqCst) {
            true => Err(Error::msg("it is shut")),
            false => pass.result(|| x.copy()),
        }
    }
}

#[test]
fn a_step_of_a_series_that_fails_is_no_step() {
    both(|| {
        for mode in MODES {
            let shut = Arc::new(AtomicBool::new(false));
            let config = config(mode).input_type(InputType::recurrent(3)).layer(Lstm::new(4));
            let config = config.layer(Gate(Arc::clone(&shut))).layer(OutputLayer::new(2, Loss::Mcxent));
            let net = config.build().unwrap();
            let x = numbers(&[2, 3, 4]);
            let whole = net.output(&x).unwrap();
            for step in 0..4 {
                let x = x.get_on_dim(2, step).unwrap();
                shut.store(true, SeqCst);
                assert!(net.rnn_time_step(&x).unwrap_err().to_string().contains("it is shut"));
                shut.store(false, SeqCst);
                let y = net.rnn_time_step(&x).unwrap();
                let wanted = whole.get_on_dim(2, step).unwrap().contiguous().unwrap();
                near(&values(&y), &values(&wanted), 1e-14, &format!("{mode:?}, step {step}"));
            }
        }
    });
}

fn rows(updater: Updater) -> Network {
    let config = NetworkConfig::builder().seed(3).updater(updater).input_type(InputType::feed_forward(3));
    config.layer(Dense::new(4).activation(Activation::Tanh)).layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap()
}

fn batch() -> DataSet {
    DataSet::new(numbers(&[5, 3]), one_hot(&[5, 2])).unwrap().map(|array| array.to_dtype(DType::F32)).unwrap()
}

#[test]
fn gradients_of_which_one_does_not_fit_change_nothing() {
    both(|| {
        for updater in [Updater::sgd(0.1), Updater::adam(0.1)] {
            let mut net = rows(updater);
            let (good, _) = net.compute_gradient_and_score(&batch()).unwrap();
            let before = params(&net);
            let last = good.len() - 1;
            let mut wrong = good.clone();
            wrong[last].1 = Tensor::zeros(7, DType::F32, &Device::Cpu).unwrap();
            let error = net.apply_gradients(&wrong).unwrap_err();
            assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
            assert!(error.site().is_some_and(|site| site.file().ends_with("audited.rs")), "{error}");
            wrong[last].1 = good[last].1.to_dtype(DType::F64).unwrap();
            assert!(matches!(net.apply_gradients(&wrong), Err(Error::DTypeMismatch { .. })));
            assert_eq!((params(&net), net.iteration()), (before, 0));
            net.apply_gradients(&good).unwrap();
        }
    });
}

#[test]
fn state_of_which_one_array_does_not_fit_changes_nothing() {
    both(|| {
        let mut net = rows(Updater::adam(0.1));
        net.fit_batch(&batch()).unwrap();
        let state = |net: &Network| -> Vec<(String, Tensor)> {
            let all = net.updater_state().unwrap().into_iter();
            all.map(|(name, array)| (name, array.try_detach().unwrap().copy().unwrap())).collect()
        };
        let numbers = |net: &Network| state(net).iter().flat_map(|(_, array)| values(array)).collect::<Vec<f64>>();
        let before = numbers(&net);
        let mut given: Vec<(String, Tensor)> = state(&net);
        given.iter_mut().for_each(|(_, array)| *array = array.affine(0., 9.).unwrap());
        let set = |given: &[(String, Tensor)]| {
            net.set_updater_state(given.iter().map(|(name, array)| (name.as_str(), array)))
        };
        let last = given.len() - 1;
        let whole = std::mem::replace(&mut given[last].1, Tensor::zeros(7, DType::F32, &Device::Cpu).unwrap());
        let error = set(&given).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        given[last] = ("9_W/M".to_owned(), whole);
        assert!(matches!(set(&given), Err(Error::CannotFindTensor { .. })));
        assert_eq!(numbers(&net), before);
    });
}

#[test]
fn counts_end_where_there_are_no_more() {
    both(|| {
        for updater in [Updater::sgd(0.1), Updater::adam(0.1)] {
            let mut net = rows(updater);
            net.set_iteration(u64::MAX);
            net.set_epoch(u64::MAX);
            net.fit(ListDataSetIterator::new(vec![batch(); 2])).unwrap();
            let (gradients, _) = net.compute_gradient_and_score(&batch()).unwrap();
            net.apply_gradients(&gradients).unwrap();
            assert_eq!((net.iteration(), net.epoch()), (u64::MAX, u64::MAX));
            let mut wrapper = ParallelWrapper::builder(net).workers(2).averaging_frequency(2).build().unwrap();
            wrapper.fit(ListDataSetIterator::new(vec![batch(); 3])).unwrap();
            let net = wrapper.into_model().unwrap();
            assert!(params(&net).iter().all(|x| x.is_finite()) && net.iteration() == u64::MAX);
        }
    });
}

#[test]
fn a_count_that_is_set_back_starts_the_clock_again() {
    both(|| {
        let mut net = rows(Updater::sgd(0.1));
        net.add_listener(TimeListener::new(1000));
        net.set_iteration(10);
        net.fit_batch(&batch()).unwrap();
        net.set_iteration(0);
        for _ in 0..3 {
            net.fit_batch(&batch()).unwrap();
        }
        assert_eq!(net.iteration(), 3);
    });
}

#[test]
fn a_name_that_is_there_twice_is_refused() {
    both(|| {
        let out = || OutputLayer::new(2, Loss::Mcxent);
        let one = NetworkConfig::builder().add_input("x", InputType::feed_forward(3));
        let twice = one.clone().add_layer("out", out(), &["x"]).set_outputs(&["out", "out"]).build();
        let error = twice.unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "set_outputs", .. }), "{error}");
        let twice = one.add_input("x", InputType::feed_forward(4)).add_layer("out", out(), &["x"]);
        let error = twice.set_outputs(&["out"]).build().unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "add_input", .. }), "{error}");
    });
}

#[test]
fn layers_of_any_size_are_built_or_refused() {
    both(|| {
        for wide in [usize::MAX, usize::MAX / 2, usize::MAX / 4 + 1] {
            let layers: [LayerConfig; 3] = [Lstm::new(wide).into(), Gru::new(wide).into(), SimpleRnn::new(wide).into()];
            for layer in layers {
                NetworkConfig::builder().input_type(InputType::recurrent(3)).layer(layer).build().unwrap_err();
            }
            let kernel = || Convolution2D::new(2, (2, 2));
            for layer in [kernel().padding(wide), kernel().dilation(wide)] {
                let images = NetworkConfig::builder().input_type(InputType::convolutional(1, 4, 4));
                // The room for padding of a quarter of all numbers is there, and nobody asks for it.
                let _ = images.layer(layer).build();
            }
        }
    });
}

/// What a layer makes of a series under a mask, alone.
fn alone(layer: &dyn Layer, x: &Tensor, params: &[Var], mask: &Tensor) -> Result<Tensor> {
    let mgr = LayerWorkspaceMgr::no_workspaces_immutable();
    layer.activate(x, &Pass::alone(params, false, &mgr).with_mask(Some(mask)))
}

fn vars(all: &[&[usize]], dtype: DType) -> Vec<Var> {
    all.iter().map(|dims| Var::from_tensor(&numbers(dims).to_dtype(dtype).unwrap()).unwrap()).collect()
}

#[test]
fn a_mask_of_a_series_has_a_number_for_each_step() {
    both(|| {
        let (x, lstm) = (numbers(&[2, 3, 4]), vars(&[&[3, 8], &[2, 8], &[8]], DType::F64));
        let steps = of(&[1., 1., 0., 0., 1., 1., 1., 1.], &[2, 4]);
        assert_eq!(alone(&LastTimeStep, &x, &[], &steps).unwrap().dims(), [2, 3]);
        assert_eq!(alone(&Lstm::new(2), &x, &lstm, &steps).unwrap().dims(), [2, 2, 4]);
        for dims in [&[2usize][..], &[2, 1], &[2, 5], &[2, 3, 4]] {
            let mask = Tensor::ones(dims, DType::F64, &Device::Cpu).unwrap();
            let results = [alone(&LastTimeStep, &x, &[], &mask), alone(&Lstm::new(2), &x, &lstm, &mask)];
            for result in results {
                assert!(matches!(result, Err(Error::ShapeMismatch { .. })), "a mask {dims:?}");
            }
        }
    });
}

#[test]
fn a_mask_of_examples_has_no_steps_to_cut() {
    both(|| {
        let (x, labels) = (numbers(&[4, 3, 4]), one_hot(&[4, 2, 4]));
        let trained = |mask: Tensor| {
            let config = config(WorkspaceMode::default()).tbptt_length(2).input_type(InputType::recurrent(3));
            let mut net = config.layer(Gru::new(3)).layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            net.fit_batch(&DataSet::with_masks(x.clone(), labels.clone(), None, Some(mask)).unwrap()).unwrap();
            params(&net)
        };
        // As many examples as steps.
        let mask = of(&[1., 0., 1., 0.], &[4]);
        let each = of(&[1., 0., 1., 0.], &[4, 1]).broadcast_as((4, 4)).unwrap().contiguous().unwrap();
        near(&trained(mask), &trained(each), 1e-12, "examples");
    });
}

#[test]
fn attention_and_embeddings_refuse_a_mask_of_other_steps() {
    both(|| {
        let wide: &[usize] = &[4, 4];
        let (x, weights, table) = (numbers(&[2, 4, 3]), vars(&[wide; 4], DType::F64), vars(&[&[5, 2]], DType::F64));
        let steps = Tensor::new([[1u32, 2, 0], [3, 4, 4]], &Device::Cpu).unwrap();
        let mask = |dims: &[usize]| Tensor::ones(dims, DType::F64, &Device::Cpu).unwrap();
        let of_steps = |dims: &[usize]| {
            let attended = alone(&SelfAttention::new(4, 2), &x, &weights, &mask(dims));
            [attended, alone(&Embedding::sequence(5, 2), &steps, &table, &mask(dims))]
        };
        let row = steps.get(0).unwrap();
        let of_row = |dims: &[usize]| alone(&Embedding::new(5, 2), &row, &table, &mask(dims));
        assert!(of_steps(&[2, 3]).iter().all(Result::is_ok));
        assert!(of_row(&[3]).is_ok() && of_row(&[3, 1]).is_ok());
        for dims in [&[2usize][..], &[2, 1], &[2, 4], &[3, 2]] {
            for refused in of_steps(dims).into_iter().chain([of_row(dims)]) {
                assert!(matches!(refused, Err(Error::ShapeMismatch { .. })), "a mask {dims:?}");
            }
        }
    });
}

#[test]
fn attention_without_heads_is_an_error() {
    both(|| {
        let wide: &[usize] = &[4, 4];
        let params = vars(&[wide; 4], DType::F64);
        let mask = Tensor::ones((2, 3), DType::F64, &Device::Cpu).unwrap();
        alone(&SelfAttention::new(4, 0), &numbers(&[2, 4, 3]), &params, &mask).unwrap_err();
    });
}

/// An example that a mask leaves out as a whole: f16 has no number as low as f32's.
#[test]
fn attention_of_halves_looks_at_what_counts() {
    both(|| {
        let wide: &[usize] = &[4, 4];
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let x = numbers(&[2, 4, 3]).to_dtype(dtype).unwrap();
            let mask = of(&[1., 1., 0., 0., 0., 0.], &[2, 3]);
            for causal in [false, true] {
                let layer = SelfAttention::new(4, 2).causal(causal);
                let y = values(&alone(&layer, &x, &vars(&[wide; 4], dtype), &mask).unwrap());
                assert!(y.iter().all(|x| x.is_finite()), "{dtype}, causal {causal}: {y:?}");
            }
        }
    });
}

/// The square of 300 is none of f16's numbers.
#[test]
fn gradients_and_weights_of_halves_have_a_length() {
    both(|| {
        for dtype in [DType::F16, DType::BF16] {
            let of = |normalization| {
                let config = NetworkConfig::builder().data_type(dtype).updater(Updater::sgd(1.));
                let config = config.weight_init(WeightInit::Constant(0.)).gradient_normalization(normalization, 1.);
                let config = config.input_type(InputType::feed_forward(3));
                config.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap()
            };
            let gradient = Tensor::full(300f32, (3, 2), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            for normalization in [
                GradientNormalization::ClipL2PerLayer,
                GradientNormalization::ClipL2PerParamType,
                GradientNormalization::RenormalizeL2PerLayer,
            ] {
                let mut net = of(normalization);
                net.apply_gradients(&[("0_W".to_owned(), gradient.clone())]).unwrap();
                let weights = values(&net.param("0_W").unwrap().as_detached_tensor());
                near(&weights, &[-1. / 6f64.sqrt(); 6], 1e-2, &format!("{dtype}, {normalization:?}"));
            }
            let config = NetworkConfig::builder().data_type(dtype).weight_init(WeightInit::Constant(300.));
            let net = config.l2(1.).l1(1.).input_type(InputType::feed_forward(3)).layer(OutputLayer::new(2, Loss::Mse));
            let net = net.build().unwrap();
            let nothing = |columns| Tensor::zeros((1, columns), dtype, &Device::Cpu).unwrap();
            let score = net.score_batch(&DataSet::new(nothing(3), nothing(2)).unwrap(), false).unwrap();
            assert!((score - (0.5 * 6. * 90_000. + 6. * 300.)).abs() < 1_000., "{dtype}: {score}");
        }
    });
}

/// Of bf16 there is no 1001, which is their mean; of f16 no square of 300.
#[test]
fn batch_normalization_of_halves_takes_off_the_mean_that_there_is() {
    both(|| {
        let cases = [
            (DType::BF16, [1000., 1000., 1000., 1004.], [-0.577, -0.577, -0.577, 1.732], 1.2f64),
            (DType::F16, [-300., 300., -300., 300.], [-1., 1., -1., 1.], 9000.9),
        ];
        for (dtype, data, wanted, variance) in cases {
            let var = |start: f64| Var::from_tensor(&of(&[start], &[1]).to_dtype(dtype).unwrap()).unwrap();
            let (params, mgr) = ([1., 0., 0., 0.].map(var), LayerWorkspaceMgr::no_workspaces_immutable());
            let x = of(&data, &[4, 1]).to_dtype(dtype).unwrap();
            let y = BatchNormalization::new().activate(&x, &Pass::alone(&params, true, &mgr)).unwrap();
            assert_eq!(y.dtype(), dtype);
            near(&values(&y), &wanted, 0.01, &format!("{dtype}"));
            let deviation = values(&params[3].as_detached_tensor());
            near(&deviation, &[variance.log10() / 2.], 0.01, &format!("log10stdev of {dtype}"));
        }
        // A deviation of 300, outside of training.
        let var = |start: f64| Var::from_tensor(&of(&[start], &[1]).to_dtype(DType::F16).unwrap()).unwrap();
        let (params, mgr) = ([1., 0., 0., 300f64.log10()].map(var), LayerWorkspaceMgr::no_workspaces_immutable());
        let x = of(&[-300., 300.], &[2, 1]).to_dtype(DType::F16).unwrap();
        let y = BatchNormalization::new().activate(&x, &Pass::alone(&params, false, &mgr)).unwrap();
        near(&values(&y), &[-1., 1.], 0.01, "outside of training");
    });
}

#[test]
fn a_batch_of_no_example_leaves_running_means_alone() {
    both(|| {
        let config = config(WorkspaceMode::default()).input_type(InputType::feed_forward(3));
        let mut net = config.layer(BatchNormalization::new()).layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
        let before = params(&net);
        let nothing = |columns| Tensor::zeros((0, columns), DType::F64, &Device::Cpu).unwrap();
        let batch = DataSet::new(nothing(3), nothing(2)).unwrap();
        let _ = (net.fit_batch(&batch), net.compute_gradient_and_score(&batch));
        assert_eq!(params(&net), before);
    });
}

#[test]
fn pooling_refuses_a_mask_of_other_steps() {
    both(|| {
        let (x, images, pool) = (numbers(&[2, 3, 4]), numbers(&[2, 3, 4, 4]), GlobalPooling(PoolingType::Avg));
        let mask = |dims: &[usize]| Tensor::ones(dims, DType::F64, &Device::Cpu).unwrap();
        assert_eq!(alone(&pool, &x, &[], &mask(&[2, 4])).unwrap().dims(), [2, 3]);
        assert_eq!(alone(&pool, &images, &[], &mask(&[2])).unwrap().dims(), [2, 3], "it says which images count");
        for dims in [&[2usize][..], &[2, 1], &[2, 5], &[1, 4]] {
            let pooled = alone(&pool, &x, &[], &mask(dims));
            assert!(matches!(pooled, Err(Error::ShapeMismatch { .. })), "a mask {dims:?}");
        }
    });
}

#[test]
fn a_row_for_each_step_has_the_mask_of_the_series() {
    both(|| {
        for mode in MODES {
            let config = config(mode).add_input("row", InputType::feed_forward(2));
            let config = config.add_input("series", InputType::recurrent(3));
            let config = config.add_vertex("each", DuplicateToTimeSeriesVertex, &["row", "series"]);
            let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["each"]).set_outputs(&["out"]);
            let (net, mask) = (config.build().unwrap(), of(&[1., 1., 0., 1., 0., 0.], &[2, 3]));
            let features = [numbers(&[2, 2]), numbers(&[2, 3, 3])];
            let y = net.outputs(&features, &[None, Some(mask.clone())]).unwrap();
            // Probabilities, and 0 where nothing counts.
            near(&values(&y[0].sum(1).unwrap()), &values(&mask), 1e-12, &format!("{mode:?}"));
        }
    });
}

/// The sum of 200 scores of 400 is none of f16's numbers.
#[test]
fn scores_of_halves_have_a_mean() {
    both(|| {
        for mode in MODES {
            let config = NetworkConfig::builder().data_type(DType::F16).weight_init(WeightInit::Constant(0.));
            let config = config.training_workspace_mode(mode).inference_workspace_mode(mode);
            let config = config.updater(Updater::sgd(0.1)).input_type(InputType::feed_forward(1));
            let mut net = config.layer(OutputLayer::new(1, Loss::Mse)).build().unwrap();
            let all = |value: f64| Tensor::full(value, (200, 1), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap();
            let batch = DataSet::new(all(0.), all(20.)).unwrap();
            let scores = [net.score_batch(&batch, false).unwrap(), net.fit_batch(&batch).unwrap()];
            near(&scores, &[400.; 2], 0.5, &format!("{mode:?}"));
        }
    });
}

/// Adds a parameter of this name.
#[derive(Debug)]
struct Named(&'static str);

impl Layer for Named {
    fn kind(&self) -> &str {
        "Named"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn params(&self, input: InputType) -> Result<Vec<Param>> {
        Ok(vec![Param::bias(self.0, input.size(), 0.)])
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.result(|| x.broadcast_add(pass.param(0)?))
    }
}

/// A checkpoint has one array of a name.
#[test]
fn two_parameters_of_one_name_are_refused() {
    both(|| {
        let of = |name| {
            let config = NetworkConfig::builder().add_input("x", InputType::feed_forward(3));
            let config = config.add_layer("node", Named(name), &["x"]);
            config.add_layer("node_1", OutputLayer::new(2, Loss::Mcxent), &["node"]).set_outputs(&["node_1"]).build()
        };
        let error = of("1_W").unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "parameter", .. }), "{error}");
        assert!(error.to_string().contains("node_1_W"), "{error}");
        assert_eq!(of("2_W").unwrap().param_names().count(), 3);
    });
}

/// Nor one of what an updater keeps and of a parameter: `node_1_W/M` of `node_1_W`.
#[test]
fn a_parameter_with_the_name_of_what_an_updater_keeps_is_refused() {
    both(|| {
        let of = |updater: Updater| {
            let config = NetworkConfig::builder().updater(updater).add_input("x", InputType::feed_forward(3));
            let config = config.add_layer("node", Named("1_W/M"), &["x"]);
            config.add_layer("node_1", OutputLayer::new(2, Loss::Mcxent), &["node"]).set_outputs(&["node_1"]).build()
        };
        let error = of(Updater::adam(0.1)).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "parameter", .. }), "{error}");
        assert!(error.to_string().contains("node_1_W/M"), "{error}");
        let net = of(Updater::sgd(0.1)).unwrap();
        assert_eq!((net.param_names().count(), net.updater_state().unwrap().len()), (3, 0), "it keeps nothing");
    });
}

/// Ends a network, and counts the segments of a series in what it leaves for the next one.
#[derive(Debug)]
struct Remembers(Arc<Mutex<Vec<f64>>>);

impl Layer for Remembers {
    fn kind(&self) -> &str {
        "Remembers"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.result(|| x.copy())
    }

    fn scores(&self, x: &Tensor, labels: &Tensor, mask: Option<&Tensor>, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let before = pass.memory().first().map_or(0., |seen| values(seen)[0]);
        self.0.lock().unwrap().push(before);
        pass.remember(&[&of(&[before + 1.], &[1])])?;
        Loss::Mse.scores(x, Activation::Identity, labels, mask).map(Some)
    }
}

#[test]
fn a_layer_that_ends_a_network_may_remember() {
    both(|| {
        for mode in MODES {
            let layers: [LayerConfig; 2] = [SimpleRnn::new(2).into(), Lstm::new(2).into()];
            for layer in layers {
                let seen = Arc::new(Mutex::new(Vec::new()));
                let config = config(mode).tbptt_length(4).input_type(InputType::recurrent(3)).layer(layer);
                let mut net = config.layer(Remembers(Arc::clone(&seen))).build().unwrap();
                net.fit_batch(&DataSet::new(numbers(&[2, 3, 10]), numbers(&[2, 2, 10])).unwrap()).unwrap();
                assert_eq!(*seen.lock().unwrap(), [0., 1., 2.], "{mode:?}");
            }
        }
    });
}
