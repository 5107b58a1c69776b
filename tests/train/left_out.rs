//! What does not count, whatever is there: steps and examples that a mask leaves out, and batches without examples.

use ndgc::train::{
    Activation, Convolution2D, DataSet, Dense, ElementWiseVertex, Embedding, GlobalPooling, Gru, InputType,
    LastTimeStep, LayerConfig, ListDataIterator, ListDataSetIterator, Loss, Lstm, MergeVertex, MultiDataSet, Network,
    NetworkConfig, OutputLayer, ParallelInference, ParallelWrapper, PoolingType, SelfAttention, SimpleRnn,
    TrainingListener, TrainingMode, Updater,
};
use ndgc::{DType, Device, Error, NdManager, Result, Tensor, TensorExt};

use super::audited::{of, params, values};
use super::both::both;
use super::network_layers::{MODES, numbers, one_hot};

fn config() -> NetworkConfig {
    NetworkConfig::builder().data_type(DType::F64).seed(5).updater(Updater::adam(0.05))
}

/// Four series of five steps: whole, and without steps at the end, in the middle, at the start.
fn steps() -> Tensor {
    let mask = [1., 1., 1., 1., 1., 1., 1., 1., 0., 0., 1., 0., 1., 0., 1., 0., 0., 1., 1., 1.];
    of(&mask, &[4, 5])
}

/// The array, with this number where the mask has 0.
fn with(array: &Tensor, mask: &Tensor, number: f64) -> Tensor {
    array.masked_fill(&mask.eq(0f64).unwrap(), number).unwrap()
}

/// What is said of a batch and learned from it, to the last bit; all are numbers.
#[track_caller]
fn found(config: &NetworkConfig, batch: &DataSet) -> Vec<u64> {
    let mut net = config.clone().build().unwrap();
    let mut all = values(&net.output_masked(&batch.features, batch.features_mask.as_ref()).unwrap());
    let list = ListDataSetIterator::new(vec![batch.clone()]);
    let outputs = net.for_each_output(list.clone(), |_: &DataSet, output| {
        all.extend(values(output));
        Ok(())
    });
    outputs.unwrap();
    all.extend(values(&net.score_examples(batch, false).unwrap()));
    all.push(net.score_batch(batch, true).unwrap());
    let (gradients, score) = net.compute_gradient_and_score(batch).unwrap();
    all.extend(gradients.iter().flat_map(|(_, gradient)| values(gradient)));
    all.extend([score, net.fit_batch(batch).unwrap()]);
    net.fit(list).unwrap();
    all.extend(params(&net));
    assert!(all.iter().all(|number| number.is_finite()), "{all:?}");
    all.into_iter().map(f64::to_bits).collect()
}

/// Broken by: 0 times NaN, in what recurrent layers, poolings and outputs make of a mask, and in gradients of weights.
#[test]
fn masked_steps_of_a_series_may_be_anything() {
    both(|| {
        let series = || config().input_type(InputType::recurrent(3));
        let out = || OutputLayer::new(2, Loss::Mcxent);
        let each: [LayerConfig; 6] = [
            Lstm::new(4).into(),
            Lstm::new(4).activation(Activation::HardTanh).into(), // by autograd
            Gru::new(4).into(),
            SimpleRnn::new(4).into(),
            SelfAttention::new(4, 2).into(),
            Dense::new(4).activation(Activation::Tanh).into(),
        ];
        let ends: [LayerConfig; 5] = [
            LastTimeStep.into(),
            GlobalPooling(PoolingType::Max).into(),
            GlobalPooling(PoolingType::Avg).into(),
            GlobalPooling(PoolingType::Sum).into(),
            GlobalPooling(PoolingType::PNorm(2.)).into(),
        ];
        let mut cases: Vec<(NetworkConfig, bool)> = vec![(series().layer(out()), false)];
        cases.extend(each.into_iter().map(|layer| (series().layer(layer).layer(out()), false)));
        cases.extend(ends.into_iter().map(|layer| (series().layer(layer).layer(out()), true)));
        cases.push((series().tbptt_length(2).layer(Lstm::new(4)).layer(Gru::new(3)).layer(out()), false));
        let (mask, x) = (steps(), numbers(&[4, 3, 5]));
        let wide = mask.unsqueeze(1).unwrap();
        for (config, are_rows) in cases {
            let dims: &[usize] = if are_rows { &[4, 2] } else { &[4, 2, 5] };
            let labels = one_hot(dims);
            let batch = |feature: f64, label: f64| {
                let labels = if are_rows { labels.clone() } else { with(&labels, &wide, label) };
                DataSet::with_masks(with(&x, &wide, feature), labels, Some(mask.clone()), None).unwrap()
            };
            for mode in MODES {
                let config = config.clone().training_workspace_mode(mode).inference_workspace_mode(mode);
                let config = config.validate_workspaces(true);
                let wanted = found(&config, &batch(0., 0.));
                for (feature, label) in [(f64::NAN, f64::INFINITY), (f64::NEG_INFINITY, f64::NAN)] {
                    assert_eq!(found(&config, &batch(feature, label)), wanted, "{mode:?}, {feature}: {config:?}");
                }
            }
        }
    });
}

#[test]
fn masked_examples_and_numbers_may_be_anything() {
    both(|| {
        let hidden = || Dense::new(4).activation(Activation::Tanh);
        let out = || OutputLayer::new(2, Loss::Mcxent);
        let rows = config().input_type(InputType::feed_forward(3)).layer(hidden()).layer(out());
        let images = config().input_type(InputType::convolutional(2, 4, 4));
        let images = images.layer(Convolution2D::new(3, (2, 2))).layer(out());
        let pooled = config().input_type(InputType::convolutional(2, 4, 4));
        let pooled = pooled.layer(GlobalPooling(PoolingType::Avg)).layer(out());
        let words = config().input_type(InputType::feed_forward(1)).layer(Embedding::new(5, 3)).layer(out());
        let examples = of(&[1., 0., 1., 0.], &[4]);
        let cases: [(&NetworkConfig, Tensor, &[usize]); 4] = [
            (&rows, numbers(&[4, 3]), &[4, 1]),
            (&images, numbers(&[4, 2, 4, 4]), &[4, 1, 1, 1]),
            (&pooled, numbers(&[4, 2, 4, 4]), &[4, 1, 1, 1]),
            (&words, of(&[3., 1., 0., 4.], &[4, 1]), &[4, 1]),
        ];
        for (config, x, wide) in cases {
            let batch = |number: f64, mask: Tensor| {
                let features = with(&x, &examples.reshape(wide).unwrap(), number);
                let labels = with(&one_hot(&[4, 2]), &examples.reshape((4, 1)).unwrap(), number);
                DataSet::with_masks(features, labels, Some(mask.clone()), Some(mask)).unwrap()
            };
            for mask in [examples.clone(), examples.reshape((4, 1)).unwrap()] {
                let wanted = found(config, &batch(0., mask.clone()));
                let mut other = batch(f64::NAN, mask);
                assert_eq!(found(config, &other), wanted, "{config:?}");
                // Without a mask of their own labels have that of the examples; so have evaluations.
                other.labels_mask = None;
                assert_eq!(found(config, &other), wanted, "{config:?}");
                let evaluated = config.clone().build().unwrap().evaluate(ListDataSetIterator::new(vec![other]));
                assert_eq!(evaluated.unwrap().rows(), 2, "{config:?}");
            }
        }
        // A number for each of the features: what is left out of an example counts as 0.
        let (x, mask) = (numbers(&[4, 3]), of(&[1., 0., 1., 1., 1., 1., 0., 0., 0., 1., 1., 0.], &[4, 3]));
        let batch = |number| DataSet::with_masks(with(&x, &mask, number), one_hot(&[4, 2]), Some(mask.clone()), None);
        assert_eq!(found(&rows, &batch(f64::NAN).unwrap()), found(&rows, &batch(0.).unwrap()));
    });
}

/// Of several inputs each has its own mask. What a manager of the user's has is those afterwards, and no array more.
#[test]
fn masked_steps_of_one_input_among_several_may_be_anything() {
    both(|| {
        for mode in MODES {
            let config = config().training_workspace_mode(mode).inference_workspace_mode(mode);
            let config = config.add_input("row", InputType::feed_forward(2));
            let config = config.add_input("series", InputType::recurrent(3)).add_layer("gru", Gru::new(4), &["series"]);
            let config = config.add_layer("last", LastTimeStep, &["gru"]);
            let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["last", "row"]);
            let config = config.set_outputs(&["out"]);
            let learned = |number: f64| {
                let mut net = config.clone().build().unwrap();
                let (mask, row) = (steps(), numbers(&[4, 2]));
                let series = with(&numbers(&[4, 3, 5]), &mask.unsqueeze(1).unwrap(), number);
                let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
                [&series, &mask].into_iter().for_each(|array| array.attach(&manager).unwrap());
                let masks = vec![None, Some(mask)];
                let batch = MultiDataSet::with_masks(vec![row, series], vec![one_hot(&[4, 2])], masks, vec![]).unwrap();
                let mut all = vec![net.fit_batch(&batch).unwrap(), net.fit_batch(&batch).unwrap()];
                all.extend(values(&net.outputs(&batch.features, &batch.features_masks).unwrap()[0]));
                all.extend(params(&net));
                assert_eq!(manager.array_count(), 2, "nothing of a step is the manager's");
                manager.close().unwrap();
                all
            };
            let (found, wanted) = (learned(f64::NAN), learned(0.));
            assert!(found == wanted && found.iter().all(|number| number.is_finite()), "{mode:?}: {found:?}");
        }
    });
}

#[track_caller]
fn near(ours: &[f64], wanted: &[f64], what: &str) {
    let close = ours.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(ours.len() == wanted.len() && close, "{what}: {ours:?}, and not {wanted:?}");
}

/// As in DL4J: a step is there if one of the series that meet has it, and all are if one of them has no mask. The mask
/// of the first series held for all.
#[test]
fn a_step_that_one_of_several_series_has_is_there() {
    both(|| {
        let (first, second) = (of(&[1., 1., 0., 0., 1., 0.], &[2, 3]), of(&[1., 0., 1., 0., 1., 1.], &[2, 3]));
        let (examples, either) = (of(&[1., 0.], &[2]), [1., 1., 1., 0., 1., 1.]);
        let bytes = second.to_dtype(DType::U8).unwrap();
        let cases = [
            ([Some(&first), Some(&second)], either),
            ([Some(&first), Some(&bytes)], either),
            ([Some(&first), None], [1.; 6]),
            ([None, Some(&second)], [1.; 6]),
            ([Some(&first), Some(&first)], [1., 1., 0., 0., 1., 0.]),
            ([Some(&examples), Some(&second)], either),
        ];
        for mode in MODES {
            let config = config().training_workspace_mode(mode).inference_workspace_mode(mode);
            let config = config.add_input("a", InputType::recurrent(3)).add_input("b", InputType::recurrent(3));
            let joined = [
                config.clone().add_vertex("both", MergeVertex, &["a", "b"]),
                config.clone().add_vertex("both", ElementWiseVertex::Add, &["a", "b"]),
                config.add_layer("rnn", Gru::new(3), &["b"]).add_vertex("both", MergeVertex, &["rnn", "a"]),
            ];
            for config in joined {
                let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["both"]);
                let net = config.set_outputs(&["out"]).build().unwrap();
                let features = [numbers(&[2, 3, 3]), numbers(&[2, 3, 3])];
                for (masks, wanted) in &cases {
                    let y = net.outputs(&features, &masks.map(|mask| mask.cloned())).unwrap();
                    // Probabilities, and 0 where nothing counts.
                    near(&values(&y[0].sum(1).unwrap()), wanted, &format!("{mode:?}, {masks:?}"));
                }
                let longer = of(&[1.; 8], &[2, 4]);
                let error = net.outputs(&features, &[Some(first.clone()), Some(longer)]).unwrap_err();
                assert!(matches!(error, Error::ShapeMismatch { op: "mask", .. }), "{error}");
            }
        }
        // Masks of the numbers of rows say nothing about other rows.
        let config = config().add_input("a", InputType::feed_forward(3)).add_input("b", InputType::feed_forward(2));
        let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["a", "b"]).set_outputs(&["out"]);
        let masks = [Some(first), Some(of(&[1., 0., 1., 1.], &[2, 2]))];
        config.build().unwrap().outputs(&[numbers(&[2, 3]), numbers(&[2, 2])], &masks).unwrap();
    });
}

/// What a manager of the user's has is the masks afterwards, and no array more.
#[test]
fn series_that_meet_are_learned_as_one_with_the_mask_of_both() {
    both(|| {
        let second = [0., 1., 1., 1., 1., 1., 0., 0., 1., 0., 0., 0., 1., 1., 1., 0., 1., 1., 1., 0.];
        let (first, second) = (steps(), of(&second, &[4, 5]));
        let either = [1., 1., 1., 1., 1., 1., 1., 1., 1., 0., 1., 0., 1., 1., 1., 0., 1., 1., 1., 1.];
        let either = of(&either, &[4, 5]);
        let [a, b] = [(&first, 1.), (&second, -0.5)].map(|(mask, factor)| {
            let array = numbers(&[4, 3, 5]).affine(factor, 0.1).unwrap();
            with(&array, &mask.unsqueeze(1).unwrap(), 0.)
        });
        let sum = a.add(&b).unwrap();
        for mode in MODES {
            let learned = |config: NetworkConfig, features: Vec<Tensor>, masks: Vec<Tensor>| {
                let config = config.add_layer("rnn", Lstm::new(4), &["sum"]);
                let config = config.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["rnn"]);
                let mut net = config.set_outputs(&["out"]).build().unwrap();
                let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
                // Copies, which end with the manager.
                let masks: Vec<Tensor> = masks.iter().map(|mask| mask.copy().unwrap()).collect();
                masks.iter().for_each(|mask| mask.attach(&manager).unwrap());
                let (count, masks) = (masks.len(), masks.into_iter().map(Some).collect());
                let batch = MultiDataSet::with_masks(features, vec![one_hot(&[4, 2, 5])], masks, vec![]).unwrap();
                let mut all = vec![net.fit_batch(&batch).unwrap(), net.fit_batch(&batch).unwrap()];
                all.push(net.score_batch(&batch, false).unwrap());
                all.push(net.evaluate(ListDataIterator::new(vec![batch.clone()])).unwrap().rows() as f64);
                all.push(net.compute_gradient_and_score(&batch).unwrap().1);
                all.extend(params(&net));
                assert_eq!(manager.array_count(), count, "nothing of a step is the manager's");
                manager.close().unwrap();
                all
            };
            let config = config().training_workspace_mode(mode).inference_workspace_mode(mode);
            let two = config.clone().add_input("a", InputType::recurrent(3)).add_input("b", InputType::recurrent(3));
            let two = two.add_vertex("sum", ElementWiseVertex::Add, &["a", "b"]);
            let found = learned(two, vec![a.clone(), b.clone()], vec![first.clone(), second.clone()]);
            let one = config.add_input("sum", InputType::recurrent(3));
            let wanted = learned(one, vec![sum.clone()], vec![either.clone()]);
            near(&found, &wanted, &format!("{mode:?}"));
            assert_eq!(found[3], 17., "steps that count");
        }
    });
}

#[test]
fn masked_steps_may_be_anything_for_several_workers() {
    both(|| {
        let config = config().input_type(InputType::recurrent(3)).layer(Lstm::new(4));
        let config = config.layer(OutputLayer::new(2, Loss::Mcxent));
        let (mask, x, labels) = (steps(), numbers(&[4, 3, 5]), one_hot(&[4, 2, 5]));
        let features = |number: f64| with(&x, &mask.unsqueeze(1).unwrap(), number);
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let learned = |number: f64| {
                let batch = DataSet::with_masks(features(number), labels.clone(), Some(mask.clone()), None).unwrap();
                let wrapper = ParallelWrapper::builder(config.clone().build().unwrap()).training_mode(mode);
                let mut wrapper = wrapper.build().unwrap();
                wrapper.fit(ListDataSetIterator::new(vec![batch; 4])).unwrap();
                params(&wrapper.into_model().unwrap())
            };
            let (found, wanted) = (learned(f64::NAN), learned(0.));
            assert!(found == wanted && found.iter().all(|number| number.is_finite()), "{mode:?}: {found:?}");
        }
        let served = ParallelInference::builder(config.build().unwrap()).build().unwrap();
        let answer = |number| values(&served.outputs(&[features(number)], &[Some(mask.clone())]).unwrap()[0]);
        assert_eq!(answer(f64::NAN), answer(0.));
    });
}

/// No step is told to it.
#[derive(Debug)]
struct NoStep;

impl TrainingListener for NoStep {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        panic!("step {} of no example", net.iteration())
    }
}

/// Broken by: moments and penalties, which move parameters without a gradient too.
#[test]
fn a_batch_without_examples_is_no_step() {
    both(|| {
        for mode in MODES {
            let config = config().weight_decay(0.1, true).l2(0.1).training_workspace_mode(mode);
            let config = config.input_type(InputType::feed_forward(3)).layer(OutputLayer::new(2, Loss::Mcxent));
            let mut net = config.build().unwrap();
            let nothing = DataSet::new(numbers(&[0, 3]), numbers(&[0, 2])).unwrap();
            assert!(net.fit_batch(&nothing).unwrap().is_nan(), "there was no batch before");
            let score = net.fit_batch(&DataSet::new(numbers(&[4, 3]), one_hot(&[4, 2])).unwrap()).unwrap();
            let state = |net: &Network| -> Vec<f64> {
                let kept = net.updater_state().unwrap();
                params(net).into_iter().chain(kept.iter().flat_map(|(_, array)| values(array))).collect()
            };
            let before = state(&net);
            net.add_listener(NoStep);
            assert_eq!(net.fit_batch(&nothing).unwrap(), score);
            net.fit(ListDataSetIterator::new(vec![nothing; 2])).unwrap();
            assert_eq!((state(&net), net.score()), (before, score), "{mode:?}");
            assert_eq!((net.iteration(), net.epoch()), (1, 1), "{mode:?}");
        }
    });
}
