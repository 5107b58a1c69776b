//! Configurations as JSON: nothing is lost, what is wrong is named, and a checkpoint needs no code of its network.

use std::path::Path;

use ndgc::train::{
    Activation, ActivationLayer, BatchNormalization, Convolution2D, DataSet, Dense, DropoutLayer,
    DuplicateToTimeSeriesVertex, ElementWiseVertex, Embedding, GlobalPooling, GradientNormalization, GraphVertex, Gru,
    InputType, L2NormalizeVertex, LastTimeStep, Layer, LayerNormalization, LayerSettings, Loss, LossLayer, Lstm,
    MergeVertex, ModuleLayer, Moments, Network, NetworkConfig, OutputLayer, Param, Pass, PoolingType, Regularization,
    ScaleVertex, Schedule, ScheduleKind, ScheduleType, SelfAttention, SimpleRnn, Subsampling, SubsetVertex, Updater,
    WeightInit, WorkspaceMode,
};
use ndgc::{DType, Device, Error, Result, Tensor, nn};
use serde_json::{Value, json};

use super::both::both;
use super::network_dl4j::{batch, cases, network};
use super::network_layers::{MODES, numbers};
use super::network_training::Folder;
use crate::common::Dice;
use crate::counting::peak;

/// Every kind of schedule, with numbers that are no short decimals.
fn schedules() -> Vec<Schedule> {
    let third = 1. / 3.;
    let kinds = [
        ScheduleKind::Fixed,
        ScheduleKind::Step { decay: 0.5, step: 2 },
        ScheduleKind::Exponential { gamma: third },
        ScheduleKind::Poly { power: 2.5, max: u64::MAX },
        ScheduleKind::Inverse { gamma: 5e-324, power: f64::MAX },
        ScheduleKind::Sigmoid { gamma: -0.0, step: 3 },
        ScheduleKind::Cycle { max: 0.2, length: 6, annealing: 2, decay: 0.1 },
        ScheduleKind::Ramp { length: 7 },
    ];
    let of = |kind| [ScheduleType::Iteration, ScheduleType::Epoch].map(|counts| Schedule::new(counts, third, kind));
    kinds.into_iter().flat_map(of).collect()
}

fn updaters() -> Vec<Updater> {
    let moments = Moments { beta1: 0.1 + 0.2, epsilon: f64::INFINITY, ..Moments::new(0.1) };
    let fixed = vec![
        Updater::nesterovs(0.1, 0.9),
        Updater::Adam(moments),
        Updater::AdamW { moments, decay: 1e-2 },
        Updater::AmsGrad(moments),
        Updater::Nadam(moments),
        Updater::AdaMax(moments),
        Updater::rms_prop(0.1),
        Updater::ada_grad(0.1),
        Updater::AdaDelta { rho: 0.95, epsilon: 1e-6 },
        Updater::Gradient,
        Updater::NoOp,
    ];
    schedules().into_iter().map(Updater::sgd).chain(fixed).collect()
}

const ACTIVATIONS: [Activation; 21] = [
    Activation::Identity,
    Activation::Relu,
    Activation::Relu6,
    Activation::LeakyRelu(0.01),
    Activation::Elu(1.),
    Activation::Selu,
    Activation::Sigmoid,
    Activation::HardSigmoid,
    Activation::Tanh,
    Activation::HardTanh,
    Activation::RationalTanh,
    Activation::RectifiedTanh,
    Activation::Softmax,
    Activation::LogSoftmax,
    Activation::Softplus,
    Activation::Softsign,
    Activation::Swish,
    Activation::Gelu,
    Activation::GeluErf,
    Activation::Mish,
    Activation::Cube,
];

const LOSSES: [Loss; 16] = [
    Loss::Mcxent,
    Loss::SparseMcxent,
    Loss::NegativeLogLikelihood,
    Loss::Xent,
    Loss::Mse,
    Loss::L2,
    Loss::L1,
    Loss::MeanAbsoluteError,
    Loss::MeanAbsolutePercentageError,
    Loss::MeanSquaredLogarithmicError,
    Loss::KlDivergence,
    Loss::Hinge,
    Loss::SquaredHinge,
    Loss::Poisson,
    Loss::CosineProximity,
    Loss::Huber(0.7),
];

fn inits() -> Vec<WeightInit> {
    use WeightInit as W;
    let plain = [W::Xavier, W::XavierUniform, W::Relu, W::ReluUniform, W::LecunNormal, W::LecunUniform];
    plain.into_iter().chain([W::Normal(0.1), W::Uniform(0.2), W::Constant(-0.5)]).collect()
}

fn normalizations() -> [GradientNormalization; 6] {
    use GradientNormalization as G;
    let clips = [G::ClipElementWiseAbsoluteValue, G::ClipL2PerLayer, G::ClipL2PerParamType];
    [G::None, G::RenormalizeL2PerLayer, G::RenormalizeL2PerParamType, clips[0], clips[1], clips[2]]
}

/// A graph with every kind of layer and vertex, and every setting of a network and of a layer.
fn everything() -> NetworkConfig {
    let penalty = Regularization { l1: 0.1, l2: 0.2, weight_decay: 0.3, apply_rate: true };
    let settings = LayerSettings::new()
        .updater(Updater::NoOp)
        .bias_updater(Updater::sgd(0.5))
        .weight_init(WeightInit::Relu)
        .regularization(penalty)
        .bias_regularization(Regularization { l2: 1e-9, ..Regularization::default() })
        .gradient_normalization(GradientNormalization::ClipL2PerLayer, 0.7)
        .dropout(0.25);
    NetworkConfig::builder()
        .seed(u64::MAX)
        .updater(Updater::adam(1e-3))
        .bias_updater(Updater::rms_prop(0.1))
        .weight_init(WeightInit::Uniform(0.1))
        .l1(0.1)
        .weight_decay(0.2, true)
        .bias_regularization(penalty)
        .gradient_normalization(GradientNormalization::ClipL2PerParamType, 2.)
        .data_type(DType::F64)
        .training_workspace_mode(WorkspaceMode::Separate)
        .inference_workspace_mode(WorkspaceMode::None)
        .tbptt_length(9)
        .validate_workspaces(true)
        .add_input("image", InputType::convolutional(2, 8, 8))
        .add_input("series", InputType::recurrent(4))
        .add_input("word", InputType::feed_forward(1))
        .add_layer("conv", Convolution2D::new(3, (3, 2)).stride(2).padding(1).dilation(1).has_bias(false), &["image"])
        .add_layer("pool", Subsampling::new(PoolingType::PNorm(2.5), (2, 2)).stride((1, 2)), &["conv"])
        .add_layer("bn", BatchNormalization::new().decay(0.8).epsilon(1e-4), &["pool"])
        .add_layer("flat", GlobalPooling(PoolingType::Avg), &["bn"])
        .add_layer("lstm", Lstm::new(4).activation(Activation::Sigmoid).forget_gate_bias_init(2.), &["series"])
        .add_layer("gru", Gru::new(4), &["lstm"])
        .add_layer("rnn", SimpleRnn::new(4).activation(Activation::Elu(0.3)), &["gru"])
        .add_layer("attention", SelfAttention::new(4, 2).causal(true), &["rnn"])
        .add_layer("ln", LayerNormalization::new().epsilon(1e-6), &["attention"])
        .add_vertex("sum", ElementWiseVertex::Subtract, &["ln", "rnn"])
        .add_layer("last", LastTimeStep, &["sum"])
        .add_layer("word-row", Embedding::new(11, 4), &["word"])
        .add_vertex("scaled", ScaleVertex { scale: 0.5, shift: -1. }, &["word-row"])
        .add_vertex("length", L2NormalizeVertex, &["scaled"])
        .add_vertex("some", SubsetVertex { from: 1, to: 2 }, &["length"])
        .add_vertex("again", DuplicateToTimeSeriesVertex, &["some", "series"])
        .add_layer("steps", GlobalPooling(PoolingType::Max), &["again"])
        .add_layer("act", ActivationLayer(Activation::LeakyRelu(0.2)), &["steps"])
        .add_layer("drop", DropoutLayer(0.1), &["act"])
        .add_vertex("all", MergeVertex, &["flat", "last"])
        .add_layer("hidden", Dense::new(5).has_bias(false).bias_init(0.1).with(settings), &["all", "drop"])
        .add_layer("out", OutputLayer::new(3, Loss::Mcxent).has_bias(true), &["hidden"])
        .add_layer("other", LossLayer::new(Loss::Huber(0.5)).activation(Activation::Softsign), &["hidden"])
        .set_outputs(&["out", "other"])
}

fn again(config: &NetworkConfig) -> NetworkConfig {
    let text = config.to_json().unwrap();
    let read = NetworkConfig::from_json(&text).unwrap();
    assert_eq!(read.to_json().unwrap(), text);
    read
}

#[test]
fn nothing_of_a_configuration_is_lost() {
    both(|| {
        let base = || NetworkConfig::builder().input_type(InputType::feed_forward(3));
        let mut all = vec![everything()];
        all.extend(updaters().into_iter().map(|updater| base().updater(updater).bias_updater(updater)));
        all.extend(ACTIVATIONS.map(|activation| base().layer(Dense::new(2).activation(activation))));
        all.extend(LOSSES.map(|loss| base().layer(OutputLayer::new(2, loss))));
        all.extend(inits().into_iter().map(|init| base().weight_init(init)));
        all.extend(normalizations().map(|normalization| base().gradient_normalization(normalization, 0.1)));
        all.extend(MODES.map(|mode| base().training_workspace_mode(mode).inference_workspace_mode(mode)));
        all.push(base().layer(Embedding::sequence(5, 2)).layer(GlobalPooling(PoolingType::Sum)));
        for size in [1, 1 << 31, usize::MAX] {
            let kernel = Convolution2D::new(size, (size, size)).stride(size).padding(size).dilation(size);
            let images = NetworkConfig::builder().input_type(InputType::convolutional(size, size, size));
            all.extend([base().tbptt_length(size), base().layer(Embedding::new(size, size)), images.layer(kernel)]);
        }
        // Of a network that can be built.
        let far = Convolution2D::new(2, (2, 2)).stride(usize::MAX);
        let far = NetworkConfig::builder().input_type(InputType::convolutional(1, 4, 4)).layer(far);
        let far = far.layer(OutputLayer::new(2, Loss::Mse));
        assert_eq!(again(&far).build().unwrap().summary(), far.build().unwrap().summary());
        for vertex in [ElementWiseVertex::Add, ElementWiseVertex::Product, ElementWiseVertex::Average] {
            all.push(base().add_vertex("v", vertex, &["input", "input"]).add_vertex(
                "m",
                ElementWiseVertex::Max,
                &["v"],
            ));
        }
        for config in &all {
            // What `Debug` shows is every field.
            assert_eq!(format!("{:?}", again(config)), format!("{config:?}"));
        }
        assert_eq!(again(&everything()).build().unwrap().summary(), everything().build().unwrap().summary());
    });
}

#[test]
fn dl4js_networks_are_loaded_without_their_code() {
    both(|| {
        let folder = Folder::new("json");
        for (i, case) in cases().iter().enumerate() {
            let (path, batch) = (folder.0.join("model"), batch(case));
            let mut net = network(case, MODES[i % 4]);
            net.fit_batch(&batch).unwrap();
            net.save(&path).unwrap();
            let mut loaded = Network::load(&path, &Device::Cpu).unwrap();
            assert_eq!((loaded.iteration(), loaded.score().to_bits()), (1, net.score().to_bits()));
            let mut answers = [&mut net, &mut loaded].into_iter().map(|net| {
                let output = net.output_masked(&batch.features, batch.features_mask.as_ref()).unwrap();
                let scores: Vec<u64> = (0..3).map(|_| net.fit_batch(&batch).unwrap().to_bits()).collect();
                let params: Vec<Vec<f64>> = net.params().map(|(_, var)| var.to_vec::<f64>().unwrap()).collect();
                (output.to_vec::<f64>().unwrap(), scores, params)
            });
            assert_eq!(answers.next(), answers.next(), "{}", case["case"]);
        }
    });
}

/// A layer of one's own.
#[derive(Clone, Debug)]
struct Twice;

impl Layer for Twice {
    fn kind(&self) -> &str {
        "Twice"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn params(&self, _input: InputType) -> Result<Vec<Param>> {
        Ok(Vec::new())
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.result(|| x.affine(2., 0.))
    }
}

#[derive(Clone, Debug)]
struct Mirror;

impl GraphVertex for Mirror {
    fn kind(&self) -> &str {
        "Mirror"
    }

    fn output_type(&self, inputs: &[InputType]) -> Result<InputType> {
        Ok(inputs[0])
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        inputs[0].neg()
    }
}

#[test]
fn what_is_code_says_so() {
    both(|| {
        let base = || NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(Dense::new(3));
        let module = ModuleLayer::new("linear", InputType::feed_forward(3), |vb| Ok(Box::new(nn::linear(3, 3, vb)?)));
        let end = || OutputLayer::new(2, Loss::Mse);
        let own = base().layer(Twice).layer(end());
        let vertex = base().add_vertex("v", Mirror, &["0"]).add_layer("out", end(), &["v"]).set_outputs(&["out"]);
        for (config, what) in [
            (own.clone(), "layer is 1 (Twice)"),
            (base().layer(module).layer(end()), "layer is 1 (linear)"),
            (vertex, "vertex is v (Mirror)"),
        ] {
            let error = config.to_json().unwrap_err();
            assert!(matches!(error, Error::Argument { op: "to_json", .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
        // Its checkpoint is one for those who have the code.
        let folder = Folder::new("code");
        let path = folder.0.join("model");
        own.clone().build().unwrap().save(&path).unwrap();
        let error = Network::load(&path, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("model.json: it has no configuration") && error.contains("restore"), "{error}");
        own.seed(4).build().unwrap().restore(&path).unwrap();
    });
}

#[test]
fn what_is_wrong_is_named() {
    both(|| {
        let good: Value = serde_json::from_str(&everything().to_json().unwrap()).unwrap();
        let dense = "/nodes/21/op/Layer";
        assert!(good.pointer(&format!("{dense}/layer/Dense")).is_some(), "{good}");
        let wrong = |pointer: &str, value: Value| {
            let mut all = good.clone();
            *all.pointer_mut(pointer).unwrap() = value;
            let error = NetworkConfig::from_json(&all.to_string()).unwrap_err();
            assert!(matches!(error, Error::File { path: None, .. }), "{error}");
            error.to_string()
        };
        for (pointer, value, text) in [
            ("/seed", json!(-1), "`seed` is -1; it must be a whole number"),
            ("/format", json!("other"), "`format` is \"other\""),
            ("/data_type", json!("u8"), "`data_type` is \"u8\"; it must be a dtype of floats"),
            ("/updater", json!("Adam"), "`updater` is \"Adam\"; it must be one of Gradient NoOp Adam"),
            ("/updater", json!({ "Adam": {}, "b": {} }), "`updater` is {"),
            ("/outputs", json!([1]), "`outputs.0` is 1; it must be a text"),
            ("/gradient_normalization", json!(["None"]), "a list of two"),
            ("/nodes/21/op/Layer/layer/Dense/n_out", json!(1.5), "`nodes.21.op.Layer.layer.Dense.n_out` is 1.5"),
            ("/nodes/21/op/Layer/layer", json!({ "Conv": {} }), "`nodes.21.op.Layer.layer` is {"),
            ("/nodes/21/op/Layer/settings/dropout", json!([]), "`nodes.21.op.Layer.settings.dropout` is []"),
            ("/inputs/0/1/Convolutional", json!({ "size": 3 }), "`inputs.0.1.Convolutional.channels` is not there"),
        ] {
            assert!(wrong(pointer, value).contains(text), "{pointer}: {text}");
        }
        let mut more = good.clone();
        more["momentum"] = json!(0.9);
        let error = NetworkConfig::from_json(&more.to_string()).unwrap_err().to_string();
        assert!(error.contains("`momentum` is none of the fields format, tbptt_length, seed"), "{error}");
        more.as_object_mut().unwrap().retain(|key, _| key != "momentum" && key != "seed");
        let error = NetworkConfig::from_json(&more.to_string()).unwrap_err().to_string();
        assert!(error.contains("`seed` is not there"), "{error}");
        // What is well formed and still no network is for `build` to say.
        more = good;
        more["outputs"] = json!(["nothing"]);
        assert!(NetworkConfig::from_json(&more.to_string()).unwrap().build().is_err());
        let inputs = more["nodes"][21]["inputs"].as_array_mut().unwrap();
        inputs.push(inputs[0].clone());
        let error = NetworkConfig::from_json(&more.to_string()).unwrap().build().unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "inputs", .. }), "a layer of two: {error}");
    });
}

/// Every value of a tree of JSON, by its pointer.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| places(value, &format!("{at}/{i}"), all)),
        Value::Object(map) => map.iter().for_each(|(key, value)| places(value, &format!("{at}/{key}"), all)),
        _ => {}
    }
}

/// Puts something else in place of a value, or takes it away.
fn damage(value: &mut Value, dice: &mut Dice) {
    let mut all = Vec::new();
    places(value, "", &mut all);
    let pointer = all[1 + dice.below(all.len() - 1)].clone();
    let huge = Value::from([i32::MAX as u64, u64::MAX][dice.below(2)]);
    let others = [Value::Null, json!(-1), json!(0), huge, json!(1e300), json!("x"), json!([]), json!({}), json!(true)];
    match dice.below(10) {
        i if i < others.len() => *value.pointer_mut(&pointer).unwrap() = others[i].clone(),
        _ => {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match value.pointer_mut(parent).unwrap() {
                Value::Object(map) => drop(map.remove(key)),
                Value::Array(list) => drop(list.remove(key.parse().unwrap())),
                _ => unreachable!("it has a part"),
            }
        }
    }
}

#[test]
fn damaged_checkpoints_are_refused_or_small() {
    if crate::common::ran_apart() {
        return;
    }
    both(|| {
        let folder = Folder::new("damaged");
        let path = folder.0.join("model");
        everything().build().unwrap().save(&path).unwrap();
        let index = path.with_extension("json");
        let text = std::fs::read_to_string(&index).unwrap();
        let good: Value = serde_json::from_str(&text).unwrap();
        let attempt = |text: &str| {
            std::fs::write(&index, text).unwrap();
            Network::load(&path, &Device::Cpu).map(drop)
        };
        attempt(&text).unwrap();
        ndgc::gc::collect();
        let before = Device::Cpu.memory().active;
        let most = peak(|| {
            for length in (0..text.len()).step_by(37) {
                assert!(attempt(&text[..length]).is_err(), "{length} bytes are enough");
            }
            let (mut dice, mut refused) = (Dice(2026), 0);
            for _ in 0..1500 {
                let mut damaged = good.clone();
                for _ in 0..1 + dice.below(3) {
                    damage(&mut damaged, &mut dice);
                }
                refused += usize::from(attempt(&damaged.to_string()).is_err());
            }
            assert!(refused > 500, "{refused}");
        });
        assert!(most < 8 << 20, "{most} bytes were live at a time");
        ndgc::gc::collect();
        assert_eq!(Device::Cpu.memory().active, before);
        // What is refused names the file.
        assert!(attempt("{").unwrap_err().to_string().contains(&index.display().to_string()));
        std::fs::remove_file(&index).unwrap();
        assert!(Network::load(Path::new("nowhere"), &Device::Cpu).is_err());
    });
}

/// A file of a network, and one of another with the same names.
#[test]
fn arrays_of_another_network_are_refused() {
    both(|| {
        let folder = Folder::new("arrays");
        let of = |size: usize| {
            let config = NetworkConfig::builder().input_type(InputType::feed_forward(3));
            config.layer(OutputLayer::new(size, Loss::Mse)).build().unwrap()
        };
        let (path, x) = (folder.0.join("model"), numbers(&[2, 3]).to_dtype(DType::F32).unwrap());
        let small = of(2);
        small.save(&path).unwrap();
        of(4).save(folder.0.join("other")).unwrap();
        let loaded = Network::load(&path, &Device::Cpu).unwrap();
        assert_eq!(
            loaded.output(&x).unwrap().to_vec::<f32>().unwrap(),
            small.output(&x).unwrap().to_vec::<f32>().unwrap()
        );
        std::fs::copy(folder.0.join("other-0.safetensors"), folder.0.join("model-0.safetensors")).unwrap();
        let error = Network::load(&path, &Device::Cpu).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }) && error.to_string().contains("0_W"), "{error}");
        let batch = DataSet::new(x.clone(), x.narrow(1, 0, 2).unwrap()).unwrap();
        assert!(small.score_batch(&batch, false).unwrap().is_finite(), "the network of the checkpoint goes on");
    });
}
