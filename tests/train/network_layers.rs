//! Layers and vertices: gradients beside differences of scores in each workspace mode, shapes, masks, layers of one's
//! own.

use ndgc::nn::{self, Module};
use ndgc::train::{
    Activation, ActivationLayer, ArrayType, Backprop, BatchNormalization, Convolution2D, DataSet, Dense, DropoutLayer,
    DuplicateToTimeSeriesVertex, ElementWiseVertex, Embedding, GlobalPooling, Gru, InputType, L2NormalizeVertex,
    LastTimeStep, Layer, LayerConfig, LayerNormalization, LayerSettings, LayerWorkspaceMgr, Loss, LossLayer, Lstm,
    MergeVertex, ModuleLayer, MultiDataSet, NetworkConfig, OutputLayer, Param, Pass, PoolingType, Regularization,
    ScaleVertex, SelfAttention, SimpleRnn, Subsampling, SubsetVertex, Updater, WorkspaceMode, gradient_check,
};
use ndgc::{DType, Device, Error, Result, Tensor};

use super::both::both;
use crate::common::Dice;

pub(super) const MODES: [WorkspaceMode; 4] =
    [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::Enabled];

/// Numbers between -1 and 1 that look random, the same each time.
pub(super) fn numbers(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    let data: Vec<f64> = (0..count).map(|i| ((i * 37 + 11) % 101) as f64 / 50. - 1.003).collect();
    Tensor::from_vec(data, dims, &Device::Cpu).unwrap()
}

/// Rows with one 1 each, `[rows, classes]` or `[rows, classes, steps]`.
pub(super) fn one_hot(dims: &[usize]) -> Tensor {
    let (classes, steps) = (dims[1], dims.get(2).copied().unwrap_or(1));
    let at = |i: usize| ((i / steps) % classes == (i / steps / classes + i % steps) % classes) as u8 as f64;
    Tensor::from_vec((0..dims.iter().product()).map(at).collect::<Vec<f64>>(), dims, &Device::Cpu).unwrap()
}

fn config(mode: WorkspaceMode) -> NetworkConfig {
    let config = NetworkConfig::builder().data_type(DType::F64).seed(5).updater(Updater::sgd(0.1));
    config.training_workspace_mode(mode).inference_workspace_mode(mode)
}

fn dense(n_out: usize) -> LayerConfig {
    Dense::new(n_out).activation(Activation::Tanh).into()
}

/// Its layer makes its result anywhere: that is what it is about.
const ASTRAY: &str = "copied where it belongs";

/// Checks the gradients of a stack of layers in each mode, that all modes make the same steps, and that the output has
/// the shape of the labels; with a look at where each result lies.
fn check(name: &str, input: InputType, layers: &[LayerConfig], batch: &DataSet) {
    let mut expected = None;
    for mode in MODES {
        Device::Cpu.set_seed(3).unwrap(); // of modules' own variables
        let start = config(mode).input_type(input).validate_workspaces(name != ASTRAY);
        let mut net = layers.iter().cloned().fold(start, NetworkConfig::layer).build().unwrap();
        let found = gradient_check(&net, batch, 7).unwrap();
        assert!(found.checked > 0 && found.max_error < 2e-5, "{name} in {mode:?}: {found:?}");
        let scores: Vec<u64> = (0..3).map(|_| net.fit_batch(batch).unwrap().to_bits()).collect();
        let y = net.output_masked(&batch.features, batch.features_mask.as_ref()).unwrap();
        assert!(!y.is_attached() && y.is_detached().unwrap(), "{name} in {mode:?}: the output is its handle's");
        let answer = (scores, y.to_vec::<f64>().unwrap());
        assert_eq!(expected.get_or_insert_with(|| answer.clone()), &answer, "{name} in {mode:?}");
    }
}

fn data(features: Tensor, labels: Tensor) -> DataSet {
    DataSet::new(features, labels).unwrap()
}

fn masked(features: Tensor, labels: Tensor, of_labels: bool) -> DataSet {
    let (n, steps) = (features.dim(0).unwrap(), features.dim(2).unwrap());
    let on = |i: usize| f64::from(i % steps < steps - i / steps % 2);
    let mask = Tensor::from_vec((0..n * steps).map(on).collect::<Vec<f64>>(), (n, steps), &Device::Cpu).unwrap();
    let labels_mask = of_labels.then(|| mask.clone());
    DataSet::with_masks(features, labels, Some(mask), labels_mask).unwrap()
}

#[test]
fn layers_of_rows_have_their_gradients_in_each_mode() {
    both(|| {
        let batch = data(numbers(&[5, 4]), one_hot(&[5, 3]));
        let out: LayerConfig = OutputLayer::new(3, Loss::Mcxent).into();
        let input = InputType::feed_forward(4);
        let stacks: [(&str, Vec<LayerConfig>); 9] = [
            ("dense", vec![dense(6), Dense::new(3).has_bias(false).into()]),
            ("batch normalisation", vec![dense(6), BatchNormalization::new().into()]),
            ("layer normalisation", vec![dense(6), LayerNormalization::new().into()]),
            ("dropout", vec![dense(6), DropoutLayer(0.3).into(), dense(4)]),
            ("dropout of an input", vec![dense(6), Dense::new(4).with(LayerSettings::new().dropout(0.4))]),
            ("activation", vec![Dense::new(5).into(), ActivationLayer(Activation::Mish).into()]),
            (
                "penalties",
                vec![
                    dense(5),
                    Dense::new(4)
                        .with(LayerSettings::new().regularization(Regularization { l2: 0.3, ..Default::default() })),
                ],
            ),
            (
                // Broken by: other numbers where a module computes again, or in another call of one step.
                "dropout of a module",
                vec![
                    dense(6),
                    ModuleLayer::new("dropout", InputType::feed_forward(6), |_| Ok(Box::new(nn::Dropout::new(0.3))))
                        .into(),
                    dense(4),
                ],
            ),
            (
                "module",
                vec![
                    ModuleLayer::new("mlp", InputType::feed_forward(6), |vb| {
                        let [a, b] = [nn::linear(4, 5, vb.pp("a"))?, nn::linear(5, 6, vb.pp("b"))?];
                        Ok(Box::new(move |x: &Tensor| b.forward(&a.forward(x)?.tanh()?)))
                    })
                    .into(),
                ],
            ),
        ];
        for (name, mut layers) in stacks {
            layers.push(out.clone());
            check(name, input, &layers, &batch);
        }
        check("loss layer", input, &[dense(3), LossLayer::new(Loss::Mcxent).into()], &batch);
    });
}

#[test]
fn losses_have_their_gradients() {
    both(|| {
        let (x, positive) = (numbers(&[4, 3]), numbers(&[4, 2]).affine(0.4, 0.5).unwrap());
        let signs = numbers(&[4, 2]).sign().unwrap();
        let losses = [
            (Loss::Mse, Activation::Tanh, &positive),
            (Loss::L1, Activation::Identity, &positive),
            (Loss::Xent, Activation::Sigmoid, &positive),
            (Loss::Xent, Activation::HardSigmoid, &positive),
            (Loss::MeanAbsolutePercentageError, Activation::Identity, &positive),
            (Loss::MeanSquaredLogarithmicError, Activation::Sigmoid, &positive),
            (Loss::KlDivergence, Activation::Softmax, &positive),
            (Loss::Hinge, Activation::Identity, &signs),
            (Loss::SquaredHinge, Activation::Tanh, &signs),
            (Loss::Poisson, Activation::Softplus, &positive),
            (Loss::CosineProximity, Activation::Identity, &positive),
            (Loss::Huber(0.5), Activation::Identity, &positive),
            (Loss::Mcxent, Activation::Sigmoid, &positive),
        ];
        for (loss, activation, labels) in losses {
            let out: LayerConfig = OutputLayer::new(2, loss).activation(activation).into();
            let batch = data(x.clone(), labels.clone());
            check(&format!("{loss:?}"), InputType::feed_forward(3), &[dense(4), out], &batch);
        }
    });
}

#[test]
fn classes_may_be_rows_or_numbers() {
    both(|| {
        let x = numbers(&[4, 3]);
        let ids = Tensor::from_vec(vec![2u32, 0, 1, 2], 4, &Device::Cpu).unwrap();
        let rows = [[0., 0., 1.], [1., 0., 0.], [0., 1., 0.], [0., 0., 1.]];
        let score = |loss, labels: Tensor| {
            let net =
                config(WorkspaceMode::Enabled).input_type(InputType::feed_forward(3)).layer(OutputLayer::new(3, loss));
            net.build().unwrap().score_batch(&data(x.clone(), labels), false).unwrap()
        };
        let by_rows = score(Loss::Mcxent, Tensor::new(rows, &Device::Cpu).unwrap());
        // One operation, as in training.
        let by_numbers = score(Loss::SparseMcxent, ids.clone());
        assert!((by_numbers - by_rows).abs() < 1e-14, "{by_numbers}, {by_rows}");
        assert_eq!(score(Loss::SparseMcxent, ids.unsqueeze(1).unwrap()), by_rows);
        let out: LayerConfig = OutputLayer::new(3, Loss::SparseMcxent).into();
        check("numbers of classes", InputType::feed_forward(3), &[dense(4), out], &data(x.clone(), ids.clone()));
        // What training follows is the mean of the scores, whatever type the numbers have, or an error.
        for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
            let (ids, softmax) = (ids.to_dtype(dtype).unwrap(), Activation::Softmax);
            let score = Loss::SparseMcxent.score(&x, softmax, &ids, None).unwrap().to_scalar::<f64>().unwrap();
            let scores = Loss::SparseMcxent.scores(&x, softmax, &ids, None).unwrap().to_vec::<f64>().unwrap();
            assert!((score - scores.iter().sum::<f64>() / 4.).abs() < 1e-14, "{dtype}: {score}, {scores:?}");
        }
        for wrong in [vec![2u32, 0, 3, 2], vec![2, 0, 1]] {
            let count = wrong.len();
            let wrong = Tensor::from_vec(wrong, count, &Device::Cpu).unwrap();
            assert!(Loss::SparseMcxent.score(&x, Activation::Softmax, &wrong, None).is_err());
        }
    });
}

#[test]
fn layers_of_images_have_their_gradients_in_each_mode() {
    both(|| {
        let batch = data(numbers(&[3, 2, 6, 6]), one_hot(&[3, 3]));
        let convolution = || Convolution2D::new(4, (3, 3)).activation(Activation::Tanh);
        let stacks: [(&str, Vec<LayerConfig>); 5] = [
            ("padded", vec![convolution().padding(1).stride(2).into(), BatchNormalization::new().into()]),
            ("maximum", vec![convolution().into(), Subsampling::new(PoolingType::Max, (2, 2)).into()]),
            (
                "mean",
                vec![convolution().into(), Subsampling::new(PoolingType::Avg, (2, 2)).stride((1, 1)).into(), dense(4)],
            ),
            ("norm", vec![convolution().into(), Subsampling::new(PoolingType::PNorm(2.), (2, 2)).into()]),
            ("global", vec![convolution().dilation(2).into(), GlobalPooling(PoolingType::Avg).into()]),
        ];
        for (name, mut layers) in stacks {
            layers.push(OutputLayer::new(3, Loss::Mcxent).into());
            check(name, InputType::convolutional(2, 6, 6), &layers, &batch);
        }
    });
}

#[test]
fn layers_of_series_have_their_gradients_in_each_mode() {
    if crate::common::ran_apart() {
        return;
    }
    both(|| {
        let (input, steps) = (InputType::recurrent(3), numbers(&[4, 3, 5]));
        let out: LayerConfig = OutputLayer::new(2, Loss::Mcxent).into();
        let each: [(&str, LayerConfig); 6] = [
            ("lstm", Lstm::new(4).into()),
            ("gru", Gru::new(4).into()),
            ("simple", SimpleRnn::new(4).into()),
            ("attention", SelfAttention::new(4, 2).into()),
            ("causal attention", SelfAttention::new(4, 2).causal(true).into()),
            ("dense", dense(4)),
        ];
        for (name, layer) in each {
            let layers = [layer.clone(), out.clone()];
            check(name, input, &layers, &data(steps.clone(), one_hot(&[4, 2, 5])));
            check(name, input, &layers, &masked(steps.clone(), one_hot(&[4, 2, 5]), true));
            let ends: [LayerConfig; 3] =
                [LastTimeStep.into(), GlobalPooling(PoolingType::Max).into(), GlobalPooling(PoolingType::Avg).into()];
            for end in ends {
                let layers = [layer.clone(), end, out.clone()];
                check(name, input, &layers, &data(steps.clone(), one_hot(&[4, 2])));
                check(name, input, &layers, &masked(steps.clone(), one_hot(&[4, 2]), false));
            }
        }
        let ids =
            Tensor::from_vec((0..20).map(|i| f64::from(i * 7 % 6)).collect::<Vec<_>>(), (4, 5), &Device::Cpu).unwrap();
        let layers =
            [Embedding::sequence(6, 3).into(), LayerNormalization::new().into(), Lstm::new(3).into(), out.clone()];
        check("embedding", InputType::recurrent(1), &layers, &data(ids.clone(), one_hot(&[4, 2, 5])));
        let column = ids.narrow(1, 0, 1).unwrap();
        check(
            "embedding",
            InputType::feed_forward(1),
            &[Embedding::new(6, 3).into(), out],
            &data(column, one_hot(&[4, 2])),
        );
    });
}

/// Stacks of layers that nobody thought of: each mode makes the same steps.
#[test]
fn random_stacks_are_trained_the_same_in_each_mode() {
    both(|| {
        let mut dice = Dice(0x2545_f491_4f6c_dd1d);
        for program in 0..if cfg!(miri) { 2 } else { 40 } {
            let (rows, size, classes) = (2 + dice.below(4), 2 + dice.below(4), 2 + dice.below(3));
            let is_series = dice.below(2) == 0;
            let mut layers: Vec<LayerConfig> = Vec::new();
            for _ in 0..1 + dice.below(5) {
                let wide = 2 * (1 + dice.below(3));
                layers.push(match dice.below(if is_series { 9 } else { 6 }) {
                    0 => dense(wide),
                    1 => Dense::new(wide).with(LayerSettings::new().dropout(0.25).updater(Updater::adam(0.01))),
                    2 => DropoutLayer(0.2).into(),
                    3 => ActivationLayer(Activation::Elu(1.)).into(),
                    4 => LayerNormalization::new().into(),
                    5 if !is_series => BatchNormalization::new().into(),
                    5 => SelfAttention::new(wide, 2).into(),
                    6 => Lstm::new(wide).into(),
                    7 => Gru::new(wide).into(),
                    _ => SimpleRnn::new(wide).into(),
                });
            }
            layers.push(OutputLayer::new(classes, Loss::Mcxent).into());
            let steps = 1 + dice.below(4);
            let (input, batch) = match is_series {
                true => {
                    (InputType::recurrent(size), data(numbers(&[rows, size, steps]), one_hot(&[rows, classes, steps])))
                }
                false => (InputType::feed_forward(size), data(numbers(&[rows, size]), one_hot(&[rows, classes]))),
            };
            let run = |mode| {
                let start = config(mode).input_type(input);
                let mut net = layers.iter().cloned().fold(start, NetworkConfig::layer).build().unwrap();
                let scores: Vec<u64> = (0..4).map(|_| net.fit_batch(&batch).unwrap().to_bits()).collect();
                (scores, net.output(&batch.features).unwrap().to_vec::<f64>().unwrap())
            };
            let expected = run(WorkspaceMode::None);
            for mode in MODES {
                assert_eq!(run(mode), expected, "program {program} in {mode:?}: {layers:?}");
            }
        }
    });
}

/// A step that does not count changes nothing, whatever is in it.
#[test]
fn what_is_masked_does_not_matter() {
    both(|| {
        let batch = masked(numbers(&[4, 3, 5]), one_hot(&[4, 2, 5]), true);
        let mask = batch.features_mask.clone().unwrap();
        let noise = mask.affine(-50., 50.).unwrap().unsqueeze(1).unwrap();
        let mut other = batch.clone();
        other.features = batch.features.broadcast_add(&noise).unwrap();
        for layer in [LayerConfig::from(Lstm::new(3)), Gru::new(3).into(), SelfAttention::new(4, 2).into()] {
            let net = config(WorkspaceMode::Enabled).input_type(InputType::recurrent(3)).layer(layer);
            let net = net.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            let [a, b] = [&batch, &other].map(|batch| net.score_batch(batch, true).unwrap());
            assert!((a - b).abs() < 1e-9, "{a} and {b}");
        }
    });
}

/// With its own backward pass: `y = 2 x`.
#[derive(Debug)]
struct Twice {
    /// Whether arrays are made where they do not belong.
    astray: bool,
}

impl Layer for Twice {
    fn kind(&self) -> &str {
        "Twice"
    }
    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }
    fn params(&self, _input: InputType) -> Result<Vec<Param>> {
        Ok(vec![Param::bias("shift", 1, 0.25)])
    }
    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let y = || x.affine(2., 0.)?.broadcast_add(pass.param(0)?);
        if self.astray { y() } else { pass.result(y) }
    }
    fn has_own_backprop(&self) -> bool {
        true
    }
    fn backprop_gradient(&self, _x: &Tensor, epsilon: &Tensor, pass: &Pass<'_>) -> Result<Option<Backprop>> {
        let gradients = [Some(epsilon.sum_all()?.reshape(1)?)].into_iter().collect();
        let doubled = epsilon.affine(2., 0.)?;
        let epsilon = match self.astray {
            true => doubled,
            false => pass.workspaces().leverage_to(ArrayType::ActivationGrad, &doubled)?,
        };
        Ok(Some(Backprop { epsilon: Some(epsilon), gradients }))
    }
}

#[test]
fn a_layer_may_have_its_own_backward_pass() {
    both(|| {
        let batch = data(numbers(&[5, 4]), one_hot(&[5, 3]));
        let layers = [dense(4), Twice { astray: false }.into(), dense(4), OutputLayer::new(3, Loss::Mcxent).into()];
        check("own backward pass", InputType::feed_forward(4), &layers, &batch);
        let astray = [dense(4), Twice { astray: true }.into(), dense(4), OutputLayer::new(3, Loss::Mcxent).into()];
        check("copied where it belongs", InputType::feed_forward(4), &astray, &batch);
    });
}

#[test]
fn arrays_in_the_wrong_workspace_are_told_if_asked() {
    both(|| {
        let batch = data(numbers(&[5, 4]), one_hot(&[5, 3]));
        let build = |astray| {
            let start =
                config(WorkspaceMode::Separate).input_type(InputType::feed_forward(4)).validate_workspaces(true);
            start.layer(dense(4)).layer(Twice { astray }).layer(OutputLayer::new(3, Loss::Mcxent)).build().unwrap()
        };
        build(false).fit_batch(&batch).unwrap();
        let mut net = build(true);
        let error = net.fit_batch(&batch).unwrap_err().to_string();
        for text in [
            "activate: array (ACTIVATIONS) workspace validation failed (layer 1 - class: Twice) - array is defined in \
             incorrect workspace",
            "Array workspace validation failed: Array of type ACTIVATIONS should be in workspace \"WS_ALL_LAYERS_ACT",
            "but is in workspace \"WS_LAYER_WORKING_MEM",
        ] {
            assert!(error.contains(text), "{error}");
        }
        // The network can be used after that.
        assert!(net.output(&batch.features).is_err() && net.workspaces().iter().all(|space| !space.is_open()));
    });
}

#[test]
fn a_layer_can_be_used_alone() {
    both(|| {
        let layer = Dense::new(2).activation(Activation::Tanh);
        let mgr = LayerWorkspaceMgr::no_workspaces_immutable();
        let params = [
            ndgc::Var::from_tensor(&numbers(&[3, 2])).unwrap(),
            ndgc::Var::zeros(2, DType::F64, &Device::Cpu).unwrap(),
        ];
        let x = numbers(&[4, 3]);
        let y = layer.activate(&x, &Pass::alone(&params, true, &mgr)).unwrap();
        let expected = x.matmul(&params[0]).unwrap().tanh().unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
    });
}

fn two_in_two_out(mode: WorkspaceMode) -> NetworkConfig {
    config(mode)
        .add_input("series", InputType::recurrent(3))
        .add_input("row", InputType::feed_forward(4))
        .add_layer("lstm", Lstm::new(4), &["series"])
        .add_layer("last", LastTimeStep, &["lstm"])
        .add_layer("hidden", Dense::new(4).activation(Activation::Tanh), &["row"])
        .add_vertex("sum", ElementWiseVertex::Add, &["last", "hidden"])
        .add_vertex("scaled", ScaleVertex { scale: 0.5, shift: 0.1 }, &["sum"])
        .add_vertex("unit", L2NormalizeVertex, &["scaled"])
        .add_vertex("part", SubsetVertex { from: 1, to: 2 }, &["hidden"])
        .add_vertex("both", MergeVertex, &["unit", "part"])
        .add_layer("class", OutputLayer::new(3, Loss::Mcxent), &["both"])
        .add_vertex("repeated", DuplicateToTimeSeriesVertex, &["unit", "series"])
        .add_layer("steps", OutputLayer::new(2, Loss::Mse), &["repeated", "lstm"])
        .set_outputs(&["class", "steps"])
}

#[test]
fn a_graph_has_its_gradients_in_each_mode() {
    both(|| {
        let features = vec![numbers(&[4, 3, 5]), numbers(&[4, 4])];
        let batch = MultiDataSet::new(features, vec![one_hot(&[4, 3]), numbers(&[4, 2, 5])]).unwrap();
        let mut expected = None;
        for mode in MODES {
            let mut net = two_in_two_out(mode).validate_workspaces(true).build().unwrap();
            let found = gradient_check(&net, &batch, 9).unwrap();
            assert!(found.checked > 50 && found.max_error < 2e-5, "{mode:?}: {found:?}");
            let scores: Vec<f64> = (0..3).map(|_| net.fit_batch(&batch).unwrap()).collect();
            let outputs = net.outputs(&batch.features, &[]).unwrap();
            assert_eq!(outputs.iter().map(|y| y.dims().to_vec()).collect::<Vec<_>>(), [vec![4, 3], vec![4, 2, 5]]);
            // A gradient that comes out of a part of a larger one is a view in one way back, and a copy in the other;
            // the products that it goes into are rounded in another order then.
            let answer: Vec<f64> = outputs.iter().flat_map(|y| y.to_vec::<f64>().unwrap()).chain(scores).collect();
            let expected: &Vec<f64> = expected.get_or_insert_with(|| answer.clone());
            assert!(answer.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-13), "{mode:?}");
            let all = net.feed_forward(&batch.features, false).unwrap();
            assert!(all.len() == 12 && all.iter().all(|array| !array.is_attached()), "all are the caller's");
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_with_its_place() {
    both(|| {
        let say = |config: NetworkConfig| config.build().map(drop).unwrap_err().to_string();
        let start = || NetworkConfig::builder().input_type(InputType::feed_forward(3));
        assert!(say(NetworkConfig::builder().layer(Dense::new(2))).contains("input_type"));
        let text = say(start().layer(Dense::new(2)).layer(Lstm::new(2)));
        assert!(text.contains("layer 1 (LSTM)") && text.contains("[n, 2]") && text.contains("a series"), "{text}");
        let graph = || NetworkConfig::builder().add_input("in", InputType::feed_forward(3));
        let circle =
            graph().add_layer("a", Dense::new(2), &["b"]).add_layer("b", Dense::new(2), &["a"]).set_outputs(&["b"]);
        assert!(say(circle).contains("without a circle"));
        let twice =
            graph().add_layer("a", Dense::new(2), &["in"]).add_layer("a", Dense::new(2), &["in"]).set_outputs(&["a"]);
        assert!(say(twice).contains("a name that nothing else has"));
        assert!(say(graph().add_layer("a", Dense::new(2), &["in"]).set_outputs(&["b"])).contains("set_outputs"));

        let mut net = start().layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
        let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap();
        let error =
            net.fit_arrays(&x, &Tensor::ones((4, 5), DType::F32, &Device::Cpu).unwrap()).unwrap_err().to_string();
        assert!(error.contains("layer 0 (OutputLayer)") && error.contains("lhs: [4, 2], rhs: [4, 5]"), "{error}");
        assert!(net.fit_batch(&MultiDataSet::new(vec![x.clone()], vec![]).unwrap()).is_err(), "no labels");
        let wrong = net.output(&Tensor::ones((4, 9), DType::F32, &Device::Cpu).unwrap()).unwrap_err();
        assert!(
            matches!(&wrong, Error::Context { inner, .. } if matches!(**inner, Error::ShapeMismatch { .. })),
            "{wrong}"
        );
        assert!(net.fit_arrays(&x, &Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap()).is_ok(), "it goes on");
    });
}

/// Whatever is given, the answer is a result or an error.
#[test]
fn no_shape_is_a_panic() {
    both(|| {
        let rows: [LayerConfig; 6] = [
            dense(3),
            BatchNormalization::new().into(),
            LayerNormalization::new().into(),
            DropoutLayer(0.5).into(),
            Embedding::new(4, 2).into(),
            Dense::new(2).with(LayerSettings::new().dropout(0.5)),
        ];
        let series: [LayerConfig; 7] = [
            Lstm::new(3).into(),
            Gru::new(3).into(),
            SimpleRnn::new(3).into(),
            SelfAttention::new(4, 2).into(),
            LastTimeStep.into(),
            GlobalPooling(PoolingType::Max).into(),
            Embedding::sequence(4, 2).into(),
        ];
        let images: [LayerConfig; 3] = [
            Convolution2D::new(2, (2, 2)).into(),
            Subsampling::new(PoolingType::Avg, (2, 2)).into(),
            GlobalPooling(PoolingType::Avg).into(),
        ];
        let with =
            |input, layers: &[LayerConfig]| layers.iter().map(|layer| (input, layer.clone())).collect::<Vec<_>>();
        let mut all = with(InputType::feed_forward(4), &rows);
        all.extend(with(InputType::recurrent(4), &series));
        all.extend(with(InputType::convolutional(4, 3, 3), &images));
        let shapes: [&[usize]; 10] = [
            &[],
            &[4],
            &[2, 4],
            &[0, 4],
            &[2, 4, 3],
            &[2, 4, 0],
            &[2, 4, 3, 3],
            &[2, 4, 1, 1],
            &[2, 4, 3, 3, 1],
            &[1, 2, 1, 2, 1, 2],
        ];
        for (input, layer) in all {
            for mode in [WorkspaceMode::Enabled, WorkspaceMode::Separate] {
                let net = config(mode).input_type(input).layer(layer.clone()).layer(OutputLayer::new(2, Loss::Mcxent));
                let mut net = net.build().unwrap();
                for dims in shapes {
                    let x = numbers(dims).abs().unwrap();
                    let y = net.output(&x);
                    for labels in [y.as_ref().map_or(x.clone(), Tensor::clone), x.clone()] {
                        if let Ok(batch) = DataSet::new(x.clone(), labels.clone()) {
                            let _ = net.fit_batch(&batch);
                        }
                        if let Ok(batch) = DataSet::with_masks(x.clone(), labels, Some(x.clone()), Some(x.clone())) {
                            let _ = net.score_batch(&batch, true);
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn images_come_in_other_shapes() {
    both(|| {
        let images = numbers(&[2, 1, 6, 6]);
        let shapes: [&[usize]; 3] = [&[2, 1, 6, 6], &[2, 6, 6], &[2, 36]];
        let convolution: LayerConfig = Convolution2D::new(2, (3, 3)).into();
        for (input, first) in
            [(InputType::convolutional(1, 6, 6), convolution), (InputType::feed_forward(36), dense(4))]
        {
            for mode in MODES {
                let net = config(mode).input_type(input).layer(first.clone()).layer(OutputLayer::new(3, Loss::Mse));
                let mut net = net.build().unwrap();
                let outputs = shapes.map(|shape| {
                    let x = images.reshape(shape).unwrap();
                    net.fit_arrays(&x, &numbers(&[2, 3])).unwrap();
                    net.output(&images).unwrap().to_vec::<f64>().unwrap()
                        == net.output(&x).unwrap().to_vec::<f64>().unwrap()
                });
                assert_eq!(outputs, [true; 3], "{input} in {mode:?}");
                assert!(net.output(&numbers(&[2, 5, 6])).is_err(), "what has other numbers does not fit");
            }
        }
    });
}
