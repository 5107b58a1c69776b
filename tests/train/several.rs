//! Batches of several inputs and outputs: parts, merging, iterators over arrays, normalisers.

use ndgc::train::{
    ArrayDataSetIterator, ArrayMultiDataSetIterator, AsyncMultiDataSetIterator, DataIterator, DataSet, Dense,
    Embedding, InputType, ListDataIterator, Loss, MultiDataSet, Network, NetworkConfig, Normalizer,
    NormalizingIterator, OutputLayer, Updater,
};
use ndgc::{DType, Device, Error, Result, Tensor};
use serde_json::{Value, json};

use super::both::both;
use super::network_layers::numbers;
use super::network_training::Folder;
use crate::common::assert_names_its_line;

fn of(all: &[f64], dims: &[usize]) -> Tensor {
    Tensor::from_slice(all, dims, &Device::Cpu).unwrap()
}

fn values(array: &Tensor) -> Vec<f64> {
    array.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Examples `0..n`: inputs `[n, 2]` and `[n, 1]`, outputs `[n, 1]` twice, a mask of the second input and one of the
/// first output, ids from 100. All tell the example that they are of.
fn examples(n: usize) -> MultiDataSet {
    let column = |factor: f64| of(&(0..n).map(|i| factor * i as f64).collect::<Vec<_>>(), &[n, 1]);
    let first = Tensor::cat(&[column(1.), column(-1.)], 1).unwrap();
    let masks = |at: usize| -> Vec<Option<Tensor>> { (0..2).map(|i| (i == at).then(|| column(5.))).collect() };
    let all = MultiDataSet::with_masks(vec![first, column(2.)], vec![column(3.), column(4.)], masks(1), masks(0));
    all.unwrap().with_example_ids((0..n as u64).map(|i| 100 + i)).unwrap()
}

/// The examples that a batch is of, which all its arrays, masks and ids agree on.
#[track_caller]
fn told(batch: &MultiDataSet) -> Vec<usize> {
    let of_array = |array: &Tensor, factor: f64| -> Vec<usize> {
        let columns = array.dim(1).unwrap();
        values(array).iter().step_by(columns).map(|x| (x / factor).round() as usize).collect()
    };
    let all = of_array(&batch.features[0], 1.);
    assert_eq!(of_array(&batch.features[1], 2.), all);
    assert_eq!(of_array(&batch.labels[0], 3.), all);
    assert_eq!(of_array(&batch.labels[1], 4.), all);
    assert_eq!(of_array(batch.features_masks[1].as_ref().unwrap(), 5.), all);
    assert_eq!(of_array(batch.labels_masks[0].as_ref().unwrap(), 5.), all);
    assert!(batch.features_masks[0].is_none() && batch.labels_masks[1].is_none());
    assert_eq!(batch.example_ids().unwrap(), all.iter().map(|&i| 100 + i as u64).collect::<Vec<_>>());
    all
}

#[test]
fn batches_of_several_inputs_are_split_and_merged() {
    both(|| {
        let all = examples(10);
        let (train, test) = all.split_test_and_train(7).unwrap();
        assert_eq!((told(&train), told(&test)), ((0..7).collect(), (7..10).collect()));
        let whole = MultiDataSet::merge(&[test.clone(), train.clone()]).unwrap();
        assert_eq!(told(&whole), [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]);
        // A list without masks is one of none.
        let bare = |batch: &MultiDataSet| MultiDataSet::new(batch.features.clone(), batch.labels.clone()).unwrap();
        let none = MultiDataSet::with_masks(test.features.clone(), test.labels.clone(), vec![None; 2], vec![]).unwrap();
        let joined = MultiDataSet::merge(&[bare(&train), none]).unwrap();
        assert_eq!((joined.num_examples(), joined.example_ids()), (10, None));
        assert!(joined.features_masks.iter().chain(&joined.labels_masks).all(Option::is_none));

        let fewer = MultiDataSet::new(test.features.clone(), test.labels[..1].to_vec()).unwrap();
        for (batches, why) in [
            (vec![], "a batch without features"),
            (vec![train.clone(), bare(&test)], "1 of 2 batches have a mask"),
            (vec![train.clone(), fewer], "2 inputs and 1 outputs of a batch, where the first has 2 and 2"),
            (vec![train.clone(), bare_of_ids(&test)], "1 of 2 batches have ids"),
        ] {
            let error = MultiDataSet::merge(&batches).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(why), "{error}");
            assert_names_its_line(&error);
        }
        for (start, len) in [(8, 3), (usize::MAX, 2)] {
            let error = all.rows(start, len).unwrap_err();
            assert!(matches!(error, Error::Narrow { .. }), "{error}");
            assert_names_its_line(&error);
        }
    });
}

/// The same arrays and masks.
fn bare_of_ids(batch: &MultiDataSet) -> MultiDataSet {
    let (features_masks, labels_masks) = (batch.features_masks.clone(), batch.labels_masks.clone());
    MultiDataSet::with_masks(batch.features.clone(), batch.labels.clone(), features_masks, labels_masks).unwrap()
}

#[test]
fn examples_of_several_inputs_come_once_an_epoch_in_the_order_of_one() {
    both(|| {
        for (n, size) in [(10, 3), (9, 3), (1, 5), (0, 2)] {
            let mut batches = ArrayMultiDataSetIterator::new(examples(n), size).unwrap();
            let epoch = |batches: &mut dyn DataIterator<MultiDataSet>| {
                batches.flat_map(|batch| told(&batch.unwrap())).collect::<Vec<_>>()
            };
            assert_eq!(epoch(&mut batches), (0..n).collect::<Vec<_>>());
            let mut batches = batches.shuffled(5).unwrap();
            let x = of(&(0..n).map(|i| i as f64).collect::<Vec<_>>(), &[n]);
            let mut of_one = ArrayDataSetIterator::new(DataSet::new(x.clone(), x).unwrap(), size).unwrap();
            of_one = of_one.shuffled(5).unwrap();
            for _ in 0..3 {
                let order = epoch(&mut batches);
                let wanted = of_one.by_ref().flat_map(|batch| values(&batch.unwrap().features));
                assert_eq!(order, wanted.map(|x| x as usize).collect::<Vec<_>>(), "a seed is an order");
                batches.reset().unwrap();
                of_one.reset().unwrap();
            }
            let mut ahead = AsyncMultiDataSetIterator::new(batches).unwrap();
            let mut all = epoch(&mut ahead);
            all.sort_unstable();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
        assert!(ArrayMultiDataSetIterator::new(examples(3), 0).is_err());
        let numbered = ArrayMultiDataSetIterator::new(bare_of_ids(&examples(4)), 4).unwrap();
        let numbered = numbered.with_example_ids().unwrap().next().unwrap().unwrap();
        assert_eq!(numbered.example_ids(), Some(&[0, 1, 2, 3][..]));
    });
}

/// Two inputs and two outputs of other scales, masked and not.
fn several() -> MultiDataSet {
    let (a, b) = (numbers(&[12, 3]).affine(7., 2.).unwrap(), numbers(&[12, 2, 5]).affine(-3., 40.).unwrap());
    let (y, z) = (numbers(&[12, 1]).affine(100., 0.).unwrap(), numbers(&[12, 2]));
    let mask = |dims: &[usize]| numbers(dims).gt(0f64).unwrap().to_dtype(DType::F64).unwrap();
    let (b_mask, y_mask) = (mask(&[12, 5]), mask(&[12, 1]));
    MultiDataSet::with_masks(vec![a, b], vec![y, z], vec![None, Some(b_mask)], vec![Some(y_mask), None]).unwrap()
}

/// What a normaliser of one input makes of an array with a mask.
fn alone(normalizer: &Normalizer, array: &Tensor, mask: Option<&Tensor>) -> Vec<f64> {
    let mut normalizer = normalizer.clone();
    let all = DataSet::with_masks(array.clone(), array.clone(), mask.cloned(), None).unwrap();
    normalizer.fit(&mut ArrayDataSetIterator::new(all, 5).unwrap()).unwrap();
    values(&normalizer.transform_features(array).unwrap())
}

#[test]
fn each_input_and_output_is_normalised_as_if_it_were_the_only_one() {
    both(|| {
        let all = several();
        for plain in [Normalizer::standardize(), Normalizer::min_max(-1., 2.)] {
            let mut normalizer = plain.clone().with_labels();
            normalizer.fit(&mut ArrayMultiDataSetIterator::new(all.clone(), 5).unwrap()).unwrap();
            let read = Normalizer::from_json(&normalizer.to_json()).unwrap();
            assert_eq!(read, normalizer, "to the last bit");
            let made = read.transform(&all).unwrap();
            let pairs = |batch: &MultiDataSet| [batch.features.clone(), batch.labels.clone()].concat();
            let masks = [all.features_masks.clone(), all.labels_masks.clone()].concat();
            for ((made, array), mask) in pairs(&made).iter().zip(&pairs(&all)).zip(&masks) {
                assert_eq!(values(made), alone(&plain, array, mask.as_ref()));
            }
            let back = read.revert(&made).unwrap();
            for (back, array) in pairs(&back).iter().zip(&pairs(&all)) {
                assert!(values(back).iter().zip(values(array)).all(|(own, wanted)| (own - wanted).abs() < 1e-9));
            }
            // One array of several.
            for at in 0..2 {
                let one = |array: Result<Tensor>| values(&array.unwrap());
                assert_eq!(one(read.transform_features_of(at, &all.features[at])), values(&made.features[at]));
                assert_eq!(one(read.revert_features_of(at, &made.features[at])), values(&back.features[at]));
                assert_eq!(one(read.revert_labels_of(at, &made.labels[at])), values(&back.labels[at]));
            }
            // Labels stay if they are not asked for.
            let mut of_features = plain.clone();
            of_features.fit(&mut ListDataIterator::new(vec![all.clone()])).unwrap();
            assert_eq!(values(&of_features.transform(&all).unwrap().labels[0]), values(&all.labels[0]));
            assert_eq!(values(&of_features.revert_labels_of(9, &all.labels[1]).unwrap()), values(&all.labels[1]));
        }
        // Of one input and output it is the normaliser of a `DataSet`.
        let one = DataSet::new(all.features[0].clone(), all.labels[0].clone()).unwrap();
        let mut normalizer = Normalizer::standardize().with_labels();
        normalizer.fit(&mut ListDataIterator::new(vec![MultiDataSet::from(one.clone())])).unwrap();
        let made = NormalizingIterator::new(ListDataIterator::new(vec![one.clone()]), normalizer.clone());
        let made: Vec<DataSet> = made.collect::<Result<_>>().unwrap();
        assert_eq!(values(&made[0].features), values(&normalizer.transform_features(&one.features).unwrap()));
    });
}

#[test]
fn a_normaliser_leaves_inputs_alone_that_it_is_not_for_and_refuses_those_that_are_not_there() {
    both(|| {
        let all = several();
        let list = |batches: &[&MultiDataSet]| ListDataIterator::new(batches.iter().map(|&one| one.clone()).collect());
        let pixels = Normalizer::image(0., 1., 255.).only_inputs([1]);
        let mut second = Normalizer::standardize().only_inputs([1]);
        second.fit(&mut list(&[&all])).unwrap();
        for one in [pixels, second.clone()] {
            let made = Normalizer::from_json(&one.to_json()).unwrap().transform(&all).unwrap();
            assert_eq!(values(&made.features[0]), values(&all.features[0]));
            assert_ne!(values(&made.features[1]), values(&all.features[1]));
            assert_eq!(values(&one.revert(&made).unwrap().features[0]), values(&all.features[0]));
        }
        let mut both_inputs = Normalizer::standardize().with_labels();
        both_inputs.fit(&mut list(&[&all])).unwrap();
        let before = both_inputs.clone();
        let fewer = MultiDataSet::new(vec![all.features[0].clone()], all.labels.clone()).unwrap();
        let mut wrong = vec![
            (both_inputs.fit(&mut list(&[&all, &fewer])), "1 arrays of a batch, where there were 2"),
            (Normalizer::standardize().only_inputs([0, 2]).fit(&mut list(&[&all])), "there is no input 2; there are 2"),
            (Normalizer::image(0., 1., 255.).only_inputs([5]).transform(&all).map(drop), "there is no input 5"),
            (second.clone().only_inputs([0, 1]).transform(&all).map(drop), "it looked at nothing yet"),
        ];
        assert_eq!(both_inputs, before, "nothing is changed");
        wrong.extend([
            (both_inputs.transform(&fewer).map(drop), "1 inputs, and it looked at 2"),
            (both_inputs.revert_features(&all.features[0]).map(drop), "it looked at 2 inputs; say of which"),
            (both_inputs.revert_labels_of(2, &all.labels[0]).map(drop), "there is no output 2"),
            (both_inputs.revert_labels(&all.labels[0]).map(drop), "say of which, as by revert_labels_of()"),
        ]);
        // The only input is the first.
        for one in [Normalizer::image(0., 1., 255.), Normalizer::standardize()] {
            let (one, why) = (one.only_inputs([1]), "there is no input 1; there are 1");
            wrong.push((one.transform_features(&all.features[1]).map(drop), why));
            wrong.push((one.revert_features(&all.features[1]).map(drop), why));
        }
        // A batch without outputs has none to look at, be it the first or a later one.
        let bare = MultiDataSet::new(all.features.clone(), Vec::new()).unwrap();
        for batches in [[&bare, &all], [&all, &bare]] {
            let mut one = Normalizer::standardize().with_labels();
            wrong.push((one.fit(&mut list(&batches)), "there was no number of a column"));
        }
        for (refused, why) in wrong {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(why), "{error}");
            assert_names_its_line(&error);
        }
    });
}

/// With an input of words, which are numbers of rows.
#[test]
fn a_checkpoint_carries_a_normaliser_of_several_inputs() {
    both(|| {
        let folder = Folder::new("several");
        let path = folder.0.join("model");
        let config = NetworkConfig::builder().seed(2).data_type(DType::F64).updater(Updater::sgd(0.1));
        let config =
            config.add_input("words", InputType::feed_forward(1)).add_input("sizes", InputType::feed_forward(3));
        let config = config.add_layer("rows", Embedding::new(9, 4), &["words"]);
        let config = config.add_layer("hidden", Dense::new(4), &["rows", "sizes"]);
        let config = config.add_layer("out", OutputLayer::new(1, Loss::Mse), &["hidden"]).set_outputs(&["out"]);
        let words = Tensor::from_vec((0..12u32).map(|i| i % 9).collect(), (12, 1), &Device::Cpu).unwrap();
        let sizes = numbers(&[12, 3]).affine(300., 1000.).unwrap();
        let all = MultiDataSet::new(vec![words, sizes], vec![numbers(&[12, 1])]).unwrap();
        let source = || ArrayMultiDataSetIterator::new(all.clone(), 4).unwrap();
        let mut normalizer = Normalizer::standardize().only_inputs([1]).with_labels();
        normalizer.fit(&mut source()).unwrap();
        let mut net = config.build().unwrap();
        net.fit(NormalizingIterator::new(source(), normalizer.clone())).unwrap();
        assert!(net.score().is_finite());
        net.save(&path).unwrap();
        Network::add_normalizer_to_model(&path, &normalizer).unwrap();
        assert_eq!(Network::restore_normalizer_from_file(&path).unwrap(), Some(normalizer.clone()));

        let good: Value = serde_json::from_str(&normalizer.to_json()).unwrap();
        for (field, wrong) in
            [("inputs", json!("1")), ("inputs", json!([-1])), ("features", json!({})), ("labels", json!([1]))]
        {
            let mut damaged = good.clone();
            damaged[field] = wrong;
            assert!(Normalizer::from_json(&damaged.to_string()).is_err(), "{damaged}");
        }
        // That of images looks at nothing, and has its factor from the start.
        let image: Value = serde_json::from_str(&Normalizer::image(0., 1., 255.).to_json()).unwrap();
        for features in [json!([]), json!([null]), json!([{ "scale": [], "shift": [] }])] {
            let mut damaged = image.clone();
            damaged["features"] = features;
            assert!(Normalizer::from_json(&damaged.to_string()).is_err(), "{damaged}");
        }
    });
}
