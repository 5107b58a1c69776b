//! The texts of errors of networks, data, evaluations and workers, each to the word.

use std::fs;

use ndgc::train::{
    ArrayDataSetIterator, AsyncDataSetIterator, AsyncShieldDataSetIterator, BatchNormalization, Convolution2D,
    CsvDataSetIterator, CsvLabels, DataSet, Dense, DropoutLayer, DuplicateToTimeSeriesVertex, EarlyStopping,
    ElementWiseVertex, Embedding, Evaluation, EvaluationBinary, EvaluationCalibration, GlobalPooling,
    GradientNormalization, GraphVertex, Gru, IEvaluation, IdxDataSetIterator, InputType, LastTimeStep, Layer,
    LayerConfig, LayerNormalization, LayerSettings, ListDataSetIterator, Loss, Lstm, Moments, MultiDataSet,
    NetworkConfig, Normalizer, OutputLayer, ParallelInference, ParallelWrapper, Pass, PoolingType,
    RegressionEvaluation, Roc, RocBinary, RocMultiClass, Schedule, ScheduleKind, ScheduleType, SelfAttention,
    SimpleRnn, Subsampling, SubsetVertex, ThreadCommunicator, TrainingMode, Updater, read_idx,
};
use ndgc::{DType, Device, NdManager, Result, Tensor, Workspace, WorkspaceConfig};

use super::both::both;
use super::network_training::Folder;
use crate::common::text_of;

/// What an error says, without the line of these tests that it names.
fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => text_of(&error),
    }
}

/// Compares texts, each with what it is to be.
fn compare<const N: usize>(cases: [(String, &str); N]) {
    for (told, wanted) in cases {
        assert_eq!(told, wanted);
    }
}

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap()
}

fn config() -> NetworkConfig {
    NetworkConfig::builder().input_type(InputType::feed_forward(3))
}

fn out() -> OutputLayer {
    OutputLayer::new(2, Loss::Mse)
}

fn batch() -> DataSet {
    DataSet::new(ones(&[4, 3]), ones(&[4, 2])).unwrap()
}

/// A graph of an input `x` and an output `out`.
fn graph(inputs: &[&str]) -> NetworkConfig {
    let config = NetworkConfig::builder().add_input("x", InputType::feed_forward(3));
    config.add_layer("out", out(), inputs).set_outputs(&["out"])
}

/// A layer of the user's own.
#[derive(Debug)]
struct Own;

impl Layer for Own {
    fn kind(&self) -> &str {
        "Own"
    }

    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }

    fn activate(&self, x: &Tensor, _pass: &Pass<'_>) -> Result<Tensor> {
        Ok(x.clone())
    }
}

#[test]
fn a_network_of_several_outputs_says_where_it_was_asked_for_one() {
    both(|| {
        let config = config().add_layer("a", out(), &["input"]).add_layer("b", out(), &["input"]);
        let (net, x) = (config.set_outputs(&["a", "b"]).build().unwrap(), ones(&[4, 3]));
        let wanted = "output: outputs is 2; it must be one output; use outputs(), or do_evaluation_of(), for networks \
                      with several";
        assert_eq!(text(net.output(&x)), wanted);
        assert_eq!(text(net.output_masked(&x, None)), wanted);
        let answers = Workspace::for_current_thread("ANSWERS", &WorkspaceConfig::default()).unwrap();
        let cycle = answers.activate().unwrap();
        assert_eq!(text(net.output_in(&x, &cycle)), wanted);
        cycle.leave();
        answers.destroy().unwrap();
    });
}

#[test]
fn an_axis_that_no_evaluation_has_is_told_as_it_was_given() {
    both(|| {
        let x = ones(&[2, 3]);
        let told = text(Evaluation::default().with_axis(-3).eval(&x, &x, None));
        let wanted = "Evaluation::eval: axis -3 is out of range for shape [2, 3]; it has 2 axes, counted from 0 or \
                      backwards from -1";
        assert_eq!(told, wanted);
    });
}

#[test]
fn a_configuration_that_is_no_network_is_told_why() {
    both(|| {
        let several = graph(&["x"]).add_input("y", InputType::feed_forward(3)).to_json().unwrap();
        let several = several.replace(r#""inputs":["x"]"#, r#""inputs":["x","y"]"#);
        let settings = LayerSettings::new;
        let names = "network: name is x; it must be a name that nothing else has, and at least one input";
        compare([
            (
                text(NetworkConfig::builder().layer(out()).build()),
                "network: input_type is none; it must be what the first layer is given: .input_type(..) or \
                 .add_input(..)",
            ),
            (text(config().build()), "network: set_outputs is none; it must be at least one layer"),
            (
                text(config().layer(out()).set_outputs(&["1"]).build()),
                "network: set_outputs is 1; it must be the name of a layer or vertex",
            ),
            (
                text(config().layer(out()).set_outputs(&["0", "0"]).build()),
                "network: set_outputs is 0; it must be each layer once",
            ),
            (
                text(graph(&["x"]).add_input("x", InputType::feed_forward(3)).build()),
                "network: add_input is x; it must be a name that nothing else has",
            ),
            (
                text(graph(&["y"]).build()),
                "network: inputs is out; it must be names of inputs, layers and vertices, without a circle",
            ),
            (text(graph(&["x"]).add_layer("x", out(), &["x"]).build()), names),
            (text(graph(&[]).build()), names.replace("name is x", "name is out").as_str()),
            (
                text(NetworkConfig::from_json(&several).unwrap().build()),
                "network: inputs is out; it must be one input of a layer; a vertex joins several before it",
            ),
            (
                text(config().layer(Dense::new(4).with(settings().dropout(1.))).layer(out()).build()),
                "network: dropout is 1 in layer 0 (Dense); it must be at least 0 and less than 1",
            ),
            (
                text(config().layer(Embedding::new(5, 4).with(settings().dropout(0.5))).layer(out()).build()),
                "network: dropout is 0.5 in layer 0 (Embedding); it must be 0 in a layer of numbers of rows; another \
                 layer may drop its output",
            ),
            (
                text(config().layer(Dense::new(0)).layer(out()).build()),
                "network: parameter is 0_W of shape [3, 0]; it must be one with elements: a layer has inputs and \
                 outputs",
            ),
        ]);
    });
}

#[test]
fn numbers_by_which_no_step_could_be_made_are_told_with_what_they_may_be() {
    both(|| {
        let of = |config: NetworkConfig| text(config.layer(out()).build());
        let falling = ScheduleKind::Exponential { gamma: -1. };
        let moments = Moments { beta1: 1., ..Moments::new(0.1) };
        let nesterovs = Updater::Nesterovs { rate: Schedule::from(0.1), momentum: 2. };
        let own = LayerSettings::new().updater(Updater::sgd(-2.));
        compare([
            (
                of(config().tbptt_length(0)),
                "network: tbptt_length is 0; it must be at least 1; without a call series are trained on as a whole",
            ),
            (
                of(config().updater(Updater::sgd(-1.))),
                "network: learning rate is -1; it must be finite, and at least 0",
            ),
            (
                of(config().bias_updater(Updater::sgd(f64::NAN))),
                "network: learning rate is NaN of biases; it must be finite, and at least 0",
            ),
            (
                of(config().layer(Dense::new(4).with(own))),
                "network: learning rate is -2 in layer 0 (Dense); it must be finite, and at least 0",
            ),
            (
                of(config().updater(Updater::sgd(Schedule::new(ScheduleType::Iteration, 0.1, falling)))),
                "network: gamma of the learning rate is -1; it must be finite, and at least 0",
            ),
            (
                of(config().updater(Updater::Adam(moments))),
                "network: beta1 is 1; it must be at least 0 and less than 1",
            ),
            (of(config().updater(nesterovs)), "network: momentum is 2; it must be at least 0 and at most 1"),
            (of(config().l2(-1.)), "network: l2 is -1; it must be finite, and at least 0"),
            (
                of(config().gradient_normalization(GradientNormalization::ClipL2PerLayer, -1.)),
                "network: threshold of gradient_normalization is -1; it must be at least 0",
            ),
        ]);
    });
}

#[test]
fn a_layer_whose_input_does_not_fit_is_told_with_its_place() {
    both(|| {
        let of = |layer: LayerConfig| text(config().layer(layer).layer(out()).build());
        let series = "it must be a series; give input_type(InputType::recurrent(..))";
        let recurrent: [(LayerConfig, &str); 4] = [
            (Lstm::new(4).into(), "LSTM)\nlstm"),
            (Gru::new(4).into(), "GRU)\ngru"),
            (SimpleRnn::new(4).into(), "SimpleRnn)\nsimple_rnn"),
            (LastTimeStep.into(), "LastTimeStep)\nlast_time_step"),
        ];
        for (layer, name) in recurrent {
            assert_eq!(of(layer), format!("layer 0 ({name}: input is [n, 3]; {series}"));
        }
        compare([
            (
                of(Convolution2D::new(2, (3, 3)).into()),
                "layer 0 (Convolution2D)\nconvolution: input is [n, 3]; it must be images at least as large as the \
                 kernel; give input_type(InputType::convolutional(..))",
            ),
            (
                of(Subsampling::new(PoolingType::Max, (2, 2)).into()),
                "layer 0 (Subsampling)\nsubsampling: input is [n, 3]; it must be images at least as large as the \
                 window",
            ),
            (
                of(GlobalPooling(PoolingType::Avg).into()),
                "layer 0 (GlobalPooling)\nglobal_pooling: input is [n, 3]; it must be a series or images",
            ),
            (
                of(SelfAttention::new(4, 2).into()),
                "layer 0 (SelfAttention)\nself_attention: input is [n, 3]; it must be a series, and outputs that the \
                 heads divide",
            ),
            (
                of(DropoutLayer(1.).into()),
                "layer 0 (Dropout)\ndropout: share is 1; it must be at least 0 and less than 1",
            ),
            (
                of(BatchNormalization::new().decay(2.).into()),
                "layer 0 (BatchNormalization)\nbatch_normalization: decay is 2; it must be at least 0 and at most 1",
            ),
            (
                of(BatchNormalization::new().epsilon(-1.).into()),
                "layer 0 (BatchNormalization)\nbatch_normalization: epsilon is -1; it must be finite, and at least 0",
            ),
            (
                of(LayerNormalization::new().epsilon(f64::INFINITY).into()),
                "layer 0 (LayerNormalization)\nlayer_normalization: epsilon is inf; it must be finite, and at least 0",
            ),
        ]);
    });
}

#[test]
fn vertices_whose_inputs_do_not_fit_say_what_they_take() {
    both(|| {
        fn of(vertex: impl GraphVertex + 'static, inputs: &[&str]) -> NetworkConfig {
            let config = NetworkConfig::builder().add_input("x", InputType::feed_forward(3));
            let config = config.add_input("y", InputType::feed_forward(4)).add_vertex("v", vertex, inputs);
            config.add_layer("out", out(), &["v"]).set_outputs(&["out"])
        }
        let lone = of(DuplicateToTimeSeriesVertex, &["x"]).build().unwrap();
        compare([
            (
                text(of(ElementWiseVertex::Add, &["x", "y"]).build()),
                "elementwise: inputs is [n, 3], [n, 4]; it must be inputs of one shape; two of them for a difference",
            ),
            (
                text(of(ElementWiseVertex::Subtract, &["x"]).build()),
                "elementwise: inputs is [n, 3]; it must be inputs of one shape; two of them for a difference",
            ),
            (
                text(of(SubsetVertex { from: 2, to: 5 }, &["x"]).build()),
                "subset: range is 2..=5; it must be within axis 1",
            ),
            (
                text(lone.outputs(&[ones(&[2, 3]), ones(&[2, 4])], &[])),
                "duplicate_to_time_series: inputs is 1; it must be 2: rows, and a series",
            ),
        ]);
    });
}

#[test]
fn batches_that_a_network_cannot_train_on_are_told_why() {
    both(|| {
        let x = ones(&[4, 3]);
        let mut net = config().layer(out()).build().unwrap();
        let mut classes = config().layer(OutputLayer::new(2, Loss::SparseMcxent)).build().unwrap();
        let mut without = config().layer(Dense::new(2)).build().unwrap();
        let two = graph(&["x", "y"]).add_input("y", InputType::feed_forward(3));
        let mut two = two.build().unwrap();
        let words = NetworkConfig::builder().input_type(InputType::feed_forward(1)).layer(Embedding::new(5, 4));
        let words = words.layer(out()).build().unwrap();
        let rows = config().layer(BatchNormalization::new()).layer(out()).build().unwrap();
        let unlabelled = MultiDataSet::new(vec![x.clone()], Vec::new()).unwrap();
        let alone = MultiDataSet::new(vec![x.clone()], vec![ones(&[4, 2])]).unwrap();
        let needs = "it must be labels for each output, and outputs with a loss";
        compare([
            (
                text(net.fit_arrays(&x, &x)),
                "layer 0 (OutputLayer)\nshape mismatch in loss, lhs: [4, 2], rhs: [4, 3]: the labels must have the \
                 shape of the output",
            ),
            (
                text(classes.fit_arrays(&x, &ones(&[4, 2]))),
                "layer 0 (OutputLayer)\nshape mismatch in loss, lhs: [4, 2], rhs: [4, 2]: there must be one class for \
                 each row: [n] or [n, 1], of series [n, t] or [n, 1, t]",
            ),
            (text(net.fit_batch(&unlabelled)), format!("score: labels is none at output 0 (0); {needs}").as_str()),
            (text(without.fit_batch(&alone)), format!("score: loss is none at output 0 (0); {needs}").as_str()),
            (text(two.fit_batch(&alone)), "network: features is 1; it must be an array for each input of the network"),
            (
                text(words.output(&Tensor::new([0.5f32, 1.], &Device::Cpu).unwrap())),
                "layer 0 (Embedding)\nembedding: index is 0.5 at place 0; it must be a whole number from 0; mask what \
                 does not count, and round fractions first",
            ),
            (
                text(rows.output(&ones(&[4]))),
                "layer 0 (BatchNormalization)\nbatch_normalization: unexpected shape [4]: needs [n, size], a series or \
                 images",
            ),
            (
                text(net.score_batch(&unlabelled, false)),
                format!("score: labels is none at output 0 (0); {needs}").as_str(),
            ),
        ]);
    });
}

#[test]
fn what_a_network_is_given_that_does_not_fit_is_told_with_its_name() {
    both(|| {
        let x = ones(&[4, 3]);
        let mut net = config().updater(Updater::adam(0.1)).layer(out()).build().unwrap();
        let nothing = || ListDataSetIterator::new(vec![batch()]);
        let of_another = net.do_evaluation_of(nothing(), &mut [(1, &mut Evaluation::default())]);
        let never = EarlyStopping::max_epochs(1).min_improvement(f64::NAN);
        let wide = Tensor::ones((3, 2), DType::F64, &Device::Cpu).unwrap();
        let gradient = |name: &str, grad: &Tensor| [(name.to_owned(), grad.clone())];
        compare([
            (
                text(net.set_params([("0_W", &x)])),
                "shape mismatch in set_params, lhs: [3, 2], rhs: [4, 3]: the parameter 0_W has another shape",
            ),
            (text(net.set_params([("0_w", &x)])), "there is no tensor `0_w`; the nearest names are `0_W`, `0_b`"),
            (
                text(net.set_updater_state([("0_W/M", &x)])),
                "shape mismatch in set_updater_state, lhs: [3, 2], rhs: [4, 3]: the updater's 0_W/M has another shape",
            ),
            (
                text(net.apply_gradients(&gradient("0_W", &x))),
                "shape mismatch in apply_gradients, lhs: [3, 2], rhs: [4, 3]: the parameter 0_W and its gradient \
                 have one shape",
            ),
            (
                text(net.apply_gradients(&gradient("0_W", &wide))),
                "dtype mismatch in apply_gradients, lhs: f32, rhs: f64; convert one with to_dtype",
            ),
            (
                text(net.apply_gradients(&gradient("x", &x))),
                "there is no tensor `x`; the nearest names are `0_W`, `0_b`",
            ),
            (
                text(of_another),
                "do_evaluation_of: output is 1; it must be the place of an output, from 0, in the order of the \
                 network's outputs",
            ),
            (
                text(net.evaluate(nothing())),
                "evaluate: Evaluation is of classes, and the output of OutputLayer with the activation Identity is no \
                 probability; give the layer another activation, or ask do_evaluation(), which does not look at it",
            ),
            (
                text(net.charge_to(&NdManager::system(&Device::Cpu))),
                "charge_to: the system manager has no budget; give a manager below it",
            ),
            (
                text(never.fit(&mut net, nothing(), |net| Ok(net.score()))),
                "EarlyStopping: min_improvement is NaN; it must be finite",
            ),
        ]);
    });
}

#[test]
fn json_that_is_no_configuration_is_told_with_the_path_of_its_field() {
    both(|| {
        let good = config().layer(out()).to_json().unwrap();
        let read = |from: &str, to: &str| {
            assert!(good.contains(from), "{from} in {good}");
            text(NetworkConfig::from_json(&good.replacen(from, to, 1)))
        };
        compare([
            (
                text(config().layer(Own).to_json()),
                "to_json: layer is 0 (Own); it must be one of ndgc::train: others are code, as modules are; build \
                 their network in code, and restore() its checkpoint",
            ),
            (text(NetworkConfig::from_json("x")), "buffer: expected value at line 1 column 1"),
            (text(NetworkConfig::from_json("[]")), "buffer: `` is []; it must be an object"),
            (text(NetworkConfig::from_json("{}")), "buffer: `format` is not there"),
            (
                text(NetworkConfig::from_json(r#"{"format":"x"}"#)),
                r#"buffer: `format` is "x"; it must be "ndgc network configuration 1""#,
            ),
            (read(r#""seed":0"#, r#""seeds":0"#), "buffer: `seed` is not there"),
            (read(r#""seed":0"#, r#""seed":-1"#), "buffer: `seed` is -1; it must be a whole number of 0 or more"),
            (
                read(r#""seed":0"#, r#""seed":0,"x":1"#),
                "buffer: `x` is none of the fields format, tbptt_length, seed, updater, bias_updater, weight_init, \
                 regularization, bias_regularization, gradient_normalization, data_type, training_workspace_mode, \
                 inference_workspace_mode, validate_workspaces, inputs, nodes, outputs",
            ),
            (
                read(r#""validate_workspaces":false"#, r#""validate_workspaces":1"#),
                "buffer: `validate_workspaces` is 1; it must be true or false",
            ),
            (
                read(r#""data_type":"f32""#, r#""data_type":"u8""#),
                r#"buffer: `data_type` is "u8"; it must be a dtype of floats, such as f32"#,
            ),
            (
                read(r#""training_workspace_mode":"Enabled""#, r#""training_workspace_mode":"Fast""#),
                r#"buffer: `training_workspace_mode` is "Fast"; it must be one of None Single Separate Enabled"#,
            ),
            (
                read(r#""training_workspace_mode":"Enabled""#, r#""training_workspace_mode":[]"#),
                "buffer: `training_workspace_mode` is []; it must be the name of a variant, or an object with it as \
                 the only key",
            ),
            (
                read(r#""n_out":2"#, r#""n_out":"x""#),
                "buffer: `nodes.0.op.Layer.layer.OutputLayer.dense.n_out` is \"x\"; it must be a whole number of 0 \
                 or more",
            ),
            (
                read(r#""OutputLayer":"#, r#""Output":"#),
                "buffer: `nodes.0.op.Layer.layer` is {\"Output\":{\"dense\":{\"activation\":\"Identi; it must be an \
                 object with one key: Activation BatchNormalization Convolution2D Dense Dropout Embedding \
                 GlobalPooling GRU LSTM LastTimeStep LayerNormalization LossLayer OutputLayer SelfAttention \
                 SimpleRnn Subsampling",
            ),
        ]);
    });
}

#[test]
fn batches_that_are_none_say_what_is_missing() {
    both(|| {
        let (x, y, mask) = (ones(&[4, 3]), ones(&[4, 2]), ones(&[4]));
        let named = batch().with_example_ids([1, 2, 3, 4]).unwrap();
        let masked = DataSet::with_masks(x.clone(), y.clone(), Some(mask), None).unwrap();
        let shielded = AsyncShieldDataSetIterator::new(ListDataSetIterator::new(vec![batch()]));
        compare([
            (
                text(DataSet::new(x.clone(), ones(&[3, 2]))),
                "shape mismatch in DataSet, lhs: [4, 3], rhs: [3, 2]: the first axis counts the examples and is the \
                 same for features, labels and masks",
            ),
            (text(batch().with_example_ids([1, 2])), "DataSet: 2 ids for 4 examples; give one for each"),
            (text(batch().rows(3, 2)), "narrow: indices 3 to 3 + 2 leave axis 0 of size 4"),
            (
                text(DataSet::merge(&[named, batch()])),
                "DataSet::merge: 1 of 2 batches have ids of their examples; give them to all or to none",
            ),
            (
                text(DataSet::merge(&[masked, batch()])),
                "DataSet::merge: 1 of 2 batches have a mask; give one to all or to none",
            ),
            (text(DataSet::merge(&[])), "DataSet: a batch without features; give at least one array"),
            (
                text(MultiDataSet::new(Vec::new(), vec![y.clone()])),
                "DataSet: a batch without features; give at least one array",
            ),
            (
                text(MultiDataSet::with_masks(vec![x], vec![y], vec![None, None], Vec::new())),
                "MultiDataSet: 2 masks for 1 arrays; give one for each, with None where there is none, or no list",
            ),
            (text(ArrayDataSetIterator::new(batch(), 0)), "DataSetIterator: batch is 0; it must be at least 1"),
            (
                text(AsyncDataSetIterator::with_prefetch(shielded, 2)),
                "AsyncDataSetIterator: source is one that is shielded; it must be one whose batches may be made ahead",
            ),
        ]);
    });
}

#[test]
fn rows_of_text_that_are_none_are_told_with_file_line_and_column() {
    both(|| {
        let folder = Folder::new("texts-csv");
        let path = folder.0.join("rows.csv");
        let lead = format!("{}: ", path.display());
        let missing = text(CsvDataSetIterator::new(&path, CsvLabels::None, 2));
        assert_eq!(missing, format!("{lead}No such file or directory (os error 2)"));
        let read = |rows: &str, labels: CsvLabels| {
            fs::write(&path, rows).unwrap();
            let told = text(CsvDataSetIterator::new(&path, labels, 2).unwrap().next().unwrap());
            told.strip_prefix(&lead).unwrap_or(&told).to_owned()
        };
        let class = |column| CsvLabels::Class { column, classes: 3 };
        compare([
            (read("1,2\n3,x\n", CsvLabels::None), "line 2: column 1 has `x`, which is no number"),
            (
                read("1,\"2,3\"\n", CsvLabels::None),
                "line 1: column 1 has `\"2`, whose quotation marks are not around one number, which has no delimiter \
                 in it",
            ),
            (read("1e40\n", CsvLabels::None), "line 1: column 0 has `1e40`, which is too large for f32"),
            (read("1,2\n3\n", CsvLabels::None), "line 2: 1 columns, where the first row has 2"),
            (read("5,1\n", class(0)), "line 1: 5 is none of 3 classes"),
            (read("1,2\n", class(4)), "line 1: 2 columns, and labels are looked for in column 4"),
            (
                text(CsvDataSetIterator::new(&path, CsvLabels::Columns(2..2), 2)),
                "CsvDataSetIterator: labels is 2..2; it must be columns from one to a later one; CsvLabels::None is \
                 without labels",
            ),
        ]);
    });
}

#[test]
fn files_that_are_not_in_idx_form_are_told_what_they_have() {
    both(|| {
        let folder = Folder::new("texts-idx");
        let path = folder.0.join("numbers");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let told = text(read_idx(&path));
            told.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&told).to_owned()
        };
        let huge = [&[0u8, 0, 8, 4][..], &[255; 16]].concat();
        compare([
            (read(&[]), "failed to fill whole buffer"),
            (read(&[0, 0, 8]), "the file ends in its header"),
            (read(&[0; 4]), "begins with 0x00000000, where IDX of bytes has 0x00000801 to 0x00000804"),
            (read(&[0, 0, 8, 1, 0, 0, 0, 3, 7, 2]), "announces 3 numbers, and there are 2"),
            (read(&[0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1, 1]), "announces 3 numbers, and there are more"),
            (read(&huge), "announces [4294967295, 4294967295, 4294967295, 4294967295] numbers"),
        ]);
        let (images, labels) = (folder.0.join("images"), folder.0.join("labels"));
        fs::write(&images, [0u8, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 1, 9]).unwrap();
        fs::write(&labels, [0u8, 0, 8, 1, 0, 0, 0, 1, 2]).unwrap();
        let told = text(IdxDataSetIterator::new(&images, &labels, 2, 1));
        assert_eq!(told, "IdxDataSetIterator: index 2 is outside an axis of size 2");
    });
}

#[test]
fn a_normaliser_says_what_it_cannot_look_at() {
    both(|| {
        let (x, y) = (ones(&[4, 3]), ones(&[4, 2]));
        let fit = |batches: Vec<DataSet>| text(Normalizer::standardize().fit(&mut ListDataSetIterator::new(batches)));
        let lost = DataSet::new(x.affine(f64::NAN, 0.).unwrap(), y.clone()).unwrap();
        let masked = DataSet::with_masks(x.clone(), y.clone(), Some(y.clone()), None).unwrap();
        let mut fitted = Normalizer::standardize();
        fitted.fit(&mut ListDataSetIterator::new(vec![batch()])).unwrap();
        compare([
            (fit(Vec::new()), "Normalizer::fit: there was no number of a column; give it batches to look at"),
            (
                fit(vec![batch(), DataSet::new(y.clone(), y.clone()).unwrap()]),
                "Normalizer::fit: 2 columns, where there were 3",
            ),
            (
                fit(vec![lost]),
                "Normalizer::fit: NaN would come out: the range is of one number, or a column holds NaN, infinity or \
                 too large numbers",
            ),
            (
                fit(vec![masked]),
                "shape mismatch in Normalizer::fit, lhs: [4, 3], rhs: [4, 2]: a mask has a number for each example \
                 ([n] or [n, 1]), for each of its steps or points ([n, t] or [n, 1, t]), or for each number",
            ),
            (
                text(Normalizer::standardize().transform(&batch())),
                "Normalizer: it looked at nothing yet; call fit() first",
            ),
            (text(fitted.transform_features(&y)), "Normalizer: unexpected shape [4, 2]: needs 3 columns on axis 1"),
            (text(Normalizer::from_json("x")), "Normalizer: not JSON: expected value at line 1 column 1"),
            (text(Normalizer::from_json("{}")), "Normalizer: this is not JSON of a normaliser"),
        ]);
    });
}

#[test]
fn what_an_evaluation_cannot_count_is_told_with_what_it_counts() {
    both(|| {
        let (two, three) = (ones(&[2, 2]), ones(&[2, 3]));
        let classes = |all: [f32; 2]| Tensor::new(all, &Device::Cpu).unwrap();
        let eval = |labels: &Tensor, mask: Option<&Tensor>| text(Evaluation::default().eval(labels, &three, mask));
        let nan = three.affine(f64::NAN, 0.).unwrap();
        let scalar = ones(&[]);
        compare([
            (
                eval(&two, None),
                "shape mismatch in Evaluation::eval, lhs: [2, 2], rhs: [2, 3]: labels have the shape of the \
                 predictions, or are classes, one for each row: [n] or [n, 1], of series [n, t] or [n, 1, t]",
            ),
            (
                eval(&three, Some(&ones(&[3]))),
                "shape mismatch in Evaluation::eval, lhs: [3], rhs: [2, 3]: a mask has a number for each row ([n] or \
                 [n, 1], of series [n, t] or [n, 1, t]), for each example ([n] or [n, 1]) or for each output (the \
                 shape of the predictions)",
            ),
            (
                eval(&three, Some(&three)),
                "Evaluation::eval: a mask for each output, where rows count as a whole; give one number for each row",
            ),
            (
                text(Evaluation::default().eval(&three, &nan, None)),
                "Evaluation::eval: labels or predictions hold NaN; nothing of this batch was counted",
            ),
            (
                eval(&classes([0.5, 1.]), None),
                "Evaluation::eval: the class 0.5 of row 0 is no whole number; mask what does not count",
            ),
            (eval(&classes([7., 1.]), None), "Evaluation::eval: index 7 is outside an axis of size 3"),
            (
                text(Evaluation::default().eval(&scalar, &scalar, None)),
                "Evaluation::eval: unexpected shape []: needs rows, such as [n, c]",
            ),
            (
                text(Evaluation::default().eval_with_ids(&three, &three, None, &[1])),
                "Evaluation::eval: 1 ids for 2 examples; give one for each",
            ),
            (
                text(Roc::default().eval(&three, &three, None)),
                "Roc::eval: unexpected shape [2, 3]: needs one column, or two; RocMultiClass is for one class \
                 against all others, RocBinary for outputs of their own",
            ),
            (
                text(RegressionEvaluation::default().eval(&classes([1., 2.]), &three, None)),
                "shape mismatch in RegressionEvaluation::eval, lhs: [2], rhs: [2, 3]: the labels must have the shape \
                 of the predictions",
            ),
        ]);
    });
}

#[test]
fn settings_of_evaluations_that_do_not_fit_are_told_beside_the_columns() {
    both(|| {
        let (two, three) = (ones(&[2, 2]), ones(&[2, 3]));
        let of_two = |mut evaluation: Evaluation| text(evaluation.eval(&two, &two, None));
        let mut most_likely = Evaluation::default().with_top_n(2);
        most_likely.eval(&two, &two, None).unwrap();
        let binary = EvaluationBinary::default;
        compare([
            (
                text(Evaluation::new(2).eval(&three, &three, None)),
                "Evaluation: 3 columns, where there were 2; use one evaluation for each",
            ),
            (
                text(Evaluation::default().with_binary_decision_threshold(0.4).eval(&three, &three, None)),
                "Evaluation: a threshold decides between two classes, and here are 3",
            ),
            (
                of_two(Evaluation::default().with_positive_class(Some(2))),
                "Evaluation: 2 is none of two classes; the positive one is 0 or 1",
            ),
            (
                of_two(Evaluation::default().with_cost_array([1., 2., 3.])),
                "Evaluation: 3 costs for 2 classes; give one for each",
            ),
            (text(Evaluation::default().merge(&most_likely)), "Evaluation: top 1 and top 2 do not add up"),
            (
                text(binary().with_decision_thresholds([0.1, 0.2, 0.3]).eval(&two, &two, None)),
                "EvaluationBinary::eval: 3 thresholds for 2 outputs; give one for each",
            ),
            (
                text(binary().with_roc(10).unwrap().merge(&binary())),
                "EvaluationBinary: only one of both has ROC curves",
            ),
            (
                text(Roc::new((1 << 24) + 1)),
                "Roc::new: threshold_steps is 16777217; it must be at most 16777216; 0 is exact",
            ),
            (text(Roc::new(10).unwrap().merge(&Roc::default())), "Roc: 10 and 0 steps do not add up; 0 is exact"),
            (
                text(RocBinary::new(10).unwrap().merge(&RocBinary::new(5).unwrap())),
                "ROCBinary: 10 and 5 steps do not add up",
            ),
            (
                text(RocMultiClass::new(10).unwrap().merge(&RocMultiClass::new(5).unwrap())),
                "ROCMultiClass: 10 and 5 steps do not add up",
            ),
            (
                text(EvaluationCalibration::new(0, 5)),
                "EvaluationCalibration::new: reliability_bins is 0; it must be 1 to 1048576",
            ),
            (
                text(EvaluationCalibration::new(5, 5).unwrap().merge(&EvaluationCalibration::default())),
                "EvaluationCalibration: other bins do not add up",
            ),
            (text(Evaluation::from_json("x")), "Evaluation: not JSON: expected value at line 1 column 1"),
            (text(Evaluation::from_json("{}")), "Evaluation: this is JSON of something else"),
            (text(Evaluation::from_json(&Roc::default().to_json())), "Evaluation: this is JSON of ROC"),
            (
                text(Evaluation::from_json(r#"{"type":"Evaluation"}"#)),
                "Evaluation: `labels` is not there, or is not what it should be",
            ),
        ]);
    });
}

#[test]
fn settings_of_workers_that_do_not_fit_are_told_with_what_they_may_be() {
    both(|| {
        let net = || config().layer(out()).build().unwrap();
        let wrapper = || ParallelWrapper::builder(net());
        let inference = || ParallelInference::builder(|x: &Tensor| x.affine(2., 0.));
        let own = Box::new(ThreadCommunicator::group(1).unwrap().remove(0));
        compare([
            (text(wrapper().workers(0).build()), "ParallelWrapper: workers is 0; it must be at least 1"),
            (
                text(wrapper().averaging_frequency(0).build()),
                "ParallelWrapper: averaging_frequency is 0; it must be at least 1",
            ),
            (text(wrapper().workers(65537).build()), "ParallelWrapper: workers is 65537; it must be at most 65536"),
            (
                text(wrapper().prefetch_buffer(65537).build()),
                "ParallelWrapper: prefetch_buffer is 65537; it must be at most 65536",
            ),
            (
                text(wrapper().communicator(own).workers(2).build()),
                "ParallelWrapper: workers is 2; it must be 1 beside a communicator: start more processes",
            ),
            (text(inference().workers(0).build()), "ParallelInference: workers is 0; it must be at least 1"),
            (text(inference().batch_limit(0).build()), "ParallelInference: batch_limit is 0; it must be at least 1"),
            (text(inference().queue_limit(0).build()), "ParallelInference: queue_limit is 0; it must be at least 1"),
            (text(inference().workers(65537).build()), "ParallelInference: workers is 65537; it must be at most 65536"),
            (text(ThreadCommunicator::group(0)), "ThreadCommunicator::group: size is 0; it must be 1 to 65536"),
        ]);
    });
}

#[test]
fn what_workers_cannot_do_is_told_to_who_asked_them() {
    both(|| {
        let x = ones(&[2, 3]);
        let inference = ParallelInference::builder(|x: &Tensor| x.affine(2., 0.)).build().unwrap();
        let of_two = text(inference.outputs(&[x.clone(), x.clone()], &[]));
        inference.shutdown();
        let series = NetworkConfig::builder().tbptt_length(2).input_type(InputType::recurrent(1));
        let series = series.layer(Lstm::new(3)).layer(OutputLayer::new(1, Loss::Mse)).build().unwrap();
        let shared = ParallelWrapper::builder(series).workers(1).training_mode(TrainingMode::SharedGradients);
        let mut shared = shared.build().unwrap();
        let long = DataSet::new(ones(&[2, 1, 6]), ones(&[2, 1, 6])).unwrap();
        compare([
            (of_two, "outputs: the model has one input and no masks; give it one array"),
            (text(inference.output(&x)), "ParallelInference: it was shut down, and answers no more"),
            (
                text(shared.fit(ListDataSetIterator::new(vec![long]))),
                "fit: shared gradients are of whole series: 6 steps are more than the 2 of tbptt_length; average \
                 parameters (TrainingMode::Averaging), or give shorter series",
            ),
        ]);
    });
}
