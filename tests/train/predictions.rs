//! Ids of examples: that they go where their examples go, and what evaluations say by them.

use ndgc::train::{
    Activation, ArrayDataSetIterator, AsyncDataSetIterator, AsyncMultiDataSetIterator, CsvDataSetIterator, CsvLabels,
    DataIterator, DataSet, Dense, Evaluation, IEvaluation, IdxDataSetIterator, InputType, ListDataIterator,
    ListDataSetIterator, Loss, MultiDataSet, NetworkConfig, Normalizer, NormalizingIterator, OutputLayer, Prediction,
    RocMultiClass,
};
use ndgc::{DType, Device, Error, Result, Tensor, Workspace, WorkspaceConfig};
use serde_json::{Value, json};

use super::both::both;
use super::network_layers::{MODES, numbers};
use super::network_training::Folder;
use super::numbered::of;
use crate::common::Dice;

/// Examples from `start` on, whose features and ids say which they are.
fn examples(start: usize, n: usize) -> DataSet {
    let all: Vec<f64> = (start..start + n).map(|i| i as f64).collect();
    let x = of(&all, &[n, 1]);
    DataSet::new(x.clone(), x).unwrap().with_example_ids((start..start + n).map(|i| 100 + i as u64)).unwrap()
}

/// Which examples are in a batch, each of which must have its own id.
#[track_caller]
fn numbers_of(batch: &DataSet) -> Vec<u64> {
    let numbers: Vec<u64> = batch.features.to_vec::<f64>().unwrap().into_iter().map(|x| x as u64).collect();
    let ids: Vec<u64> = numbers.iter().map(|number| 100 + number).collect();
    assert_eq!(batch.example_ids(), Some(&ids[..]));
    numbers
}

/// Which examples an iterator gives, in its order.
#[track_caller]
fn pass(batches: &mut dyn DataIterator<DataSet>) -> Vec<u64> {
    let mut all = Vec::new();
    for batch in &mut *batches {
        all.extend(numbers_of(&batch.unwrap()));
    }
    batches.reset().unwrap();
    all
}

#[track_caller]
fn refused<T>(line: u32, result: Result<T>) {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.site().is_some_and(|site| site.file() == file!() && site.line() == line), "{error}, of line {line}");
}

#[test]
fn ids_go_where_their_examples_go() {
    both(|| {
        let all = examples(0, 10);
        assert_eq!(numbers_of(&all.rows(3, 4).unwrap()), [3, 4, 5, 6]);
        let (train, test) = all.split_test_and_train(7).unwrap();
        assert_eq!(numbers_of(&test), [7, 8, 9]);
        let joined = DataSet::merge(&[test, train]).unwrap();
        assert_eq!(numbers_of(&joined), [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]);
        numbers_of(&joined.detach().unwrap());
        {
            let _cycle = Workspace::enter("IDS", &WorkspaceConfig::default()).unwrap();
            numbers_of(&joined.migrate().unwrap());
        }
        numbers_of(&all.map(Tensor::copy).unwrap());
        let some = all.map(|array| array.narrow(0, 2, 3)).unwrap();
        assert_eq!(some.example_ids(), None, "nobody said which these are");
        let several = MultiDataSet::from(joined.clone());
        assert_eq!(several.detach().unwrap().example_ids(), joined.example_ids());
        assert_eq!(several.map(|array| array.narrow(0, 2, 3)).unwrap().example_ids(), None);
        assert_eq!(DataSet::new(all.features.clone(), all.labels.clone()).unwrap().example_ids(), None);
    });
}

#[test]
fn iterators_hand_ids_on_in_any_order() {
    both(|| {
        let (all, rows) = (examples(0, 10), (0..10).collect::<Vec<u64>>());
        let plain = || ArrayDataSetIterator::new(all.clone(), 3).unwrap();
        let shuffled = || plain().shuffled(5).unwrap();
        let parts = || ListDataSetIterator::new(vec![examples(0, 4), examples(4, 6)]);
        let in_order: [Box<dyn DataIterator<DataSet>>; 3] =
            [Box::new(plain()), Box::new(parts()), Box::new(AsyncDataSetIterator::with_prefetch(parts(), 2).unwrap())];
        for mut batches in in_order {
            assert_eq!((pass(&mut *batches), pass(&mut *batches)), (rows.clone(), rows.clone()));
        }
        let in_another: [Box<dyn DataIterator<DataSet>>; 3] = [
            Box::new(shuffled()),
            Box::new(NormalizingIterator::new(shuffled(), Normalizer::image(0., 1., 1.))),
            Box::new(AsyncDataSetIterator::with_prefetch(shuffled(), 2).unwrap()),
        ];
        let mut orders = Vec::new();
        for mut batches in in_another {
            let epochs: Vec<Vec<u64>> = (0..3).map(|_| pass(&mut *batches)).collect();
            assert!(epochs[0] != rows && epochs[0] != epochs[1], "{epochs:?}");
            for epoch in &epochs {
                let mut sorted = epoch.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, rows);
            }
            orders.push(epochs);
        }
        assert!(orders[0] == orders[1] && orders[0] == orders[2]);
        let several = ListDataIterator::new(vec![MultiDataSet::from(examples(2, 3)); 3]);
        for batch in AsyncMultiDataSetIterator::with_prefetch(several, 1).unwrap() {
            assert_eq!(batch.unwrap().example_ids(), Some(&[102, 103, 104][..]));
        }
    });
}

#[test]
fn files_and_arrays_number_their_examples() {
    both(|| {
        let folder = Folder::new("ids");
        let path = |name: &str| folder.0.join(name);
        std::fs::write(path("rows.csv"), "x,y\n1,2\n\n3,4\n5,6\n").unwrap();
        let csv = || CsvDataSetIterator::new(path("rows.csv"), CsvLabels::None, 2).unwrap().with_skip_lines(1).unwrap();
        let mut batches = csv().with_example_ids();
        for _ in 0..2 {
            let ids = (&mut batches).map(|batch| batch.unwrap().example_ids().unwrap().to_vec());
            assert_eq!(ids.collect::<Vec<_>>(), [vec![2, 4], vec![5]], "lines of the file");
            batches.reset().unwrap();
        }
        assert!(csv().all(|batch| batch.unwrap().example_ids().is_none()));

        let images = [&[0u8, 0, 8, 2, 0, 0, 0, 5, 0, 0, 0, 1][..], &[0, 10, 20, 30, 40]].concat();
        std::fs::write(path("images"), images).unwrap();
        std::fs::write(path("labels"), [0u8, 0, 8, 1, 0, 0, 0, 5, 0, 1, 0, 1, 0]).unwrap();
        let idx = IdxDataSetIterator::new(path("images"), path("labels"), 2, 2).unwrap();
        let mut seen = 0;
        for batch in idx.shuffled(3).unwrap().with_example_ids().unwrap() {
            let batch = batch.unwrap();
            let rows = batch.features.to_vec::<f32>().unwrap().into_iter().map(|x| x as u64 / 10);
            assert_eq!(batch.example_ids(), Some(&rows.collect::<Vec<u64>>()[..]));
            seen += batch.num_examples();
        }
        assert_eq!(seen, 5);

        let arrays = || {
            let all = DataSet::new(examples(0, 9).features, examples(0, 9).labels).unwrap();
            ArrayDataSetIterator::new(all, 4).unwrap()
        };
        for batches in [
            arrays().with_example_ids().unwrap(),
            arrays().with_example_ids().unwrap().shuffled(3).unwrap(),
            arrays().shuffled(3).unwrap().with_example_ids().unwrap(),
        ] {
            for batch in batches {
                let batch = batch.unwrap();
                let rows = batch.features.to_vec::<f64>().unwrap().into_iter().map(|x| x as u64);
                assert_eq!(batch.example_ids(), Some(&rows.collect::<Vec<u64>>()[..]));
            }
        }
    });
}

#[test]
fn ids_that_do_not_fit_are_refused_and_nothing_is_changed() {
    both(|| {
        let all = examples(0, 4);
        refused(line!(), all.clone().with_example_ids([1, 2]));
        refused(line!(), MultiDataSet::from(all.clone()).with_example_ids(0..5));
        let bare = DataSet::new(all.features.clone(), all.labels.clone()).unwrap();
        refused(line!(), DataSet::merge(&[all.clone(), bare]));
        // Features that were exchanged for others.
        let (mut other, more) = (all.clone(), examples(0, 6));
        (other.features, other.labels) = (more.features, more.labels);
        refused(line!(), other.rows(0, 5));
        refused(line!(), DataSet::merge(&[other.clone()]));
        refused(line!(), ArrayDataSetIterator::new(other, 2).unwrap().shuffled(1));

        let (labels, predictions) = (of(&[0., 1.], &[2]), of(&[0.9, 0.1, 0.2, 0.8], &[2, 2]));
        let mut one = Evaluation::default();
        refused(line!(), one.eval_with_ids(&labels, &predictions, None, &[1]));
        assert_eq!(one, Evaluation::default());
        one.eval_with_ids(&labels, &predictions, None, &[1, 2]).unwrap();
        let before = one.clone();
        refused(line!(), one.eval_with_ids(&labels, &predictions, None, &[1, 2, 3]));
        let no_class = of(&[0., 7.], &[2]);
        let error = one.eval_with_ids(&no_class, &predictions, None, &[1, 2]).unwrap_err();
        assert!(matches!(error, Error::IndexOutOfRange { .. }), "{error}");
        assert_eq!(one, before, "nothing of these was counted or kept");

        for (place, value) in [
            ("/predictions", json!(3)),
            ("/predictions/0", json!([0, 0])),
            ("/predictions/0/0", json!(2)),
            ("/predictions/0/2", json!(-1)),
            ("/predictions/1", json!([0, 0, 9])),
        ] {
            let mut written: Value = serde_json::from_str(&before.to_json()).unwrap();
            *written.pointer_mut(place).unwrap() = value;
            refused(line!(), Evaluation::from_json(&written.to_string()));
        }
    });
}

fn kept(all: &[(usize, usize, u64)]) -> Vec<Prediction> {
    all.iter().map(|&(actual, predicted, example_id)| Prediction { actual, predicted, example_id }).collect()
}

/// Of one column, ND4J takes the first id for each row.
#[test]
fn what_counts_is_kept_with_its_id() {
    both(|| {
        let labels = of(&[0., 1., 2., 2., 1.], &[5]);
        let rows = [[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7], [0.5, 0.1, 0.4], [0.6, 0.2, 0.2]];
        let (predictions, mask) = (of(&rows.concat(), &[5, 3]), of(&[1., 0., 1., 1., 1.], &[5, 1]));
        let mut one = Evaluation::new(3);
        one.eval_with_ids(&labels, &predictions, Some(&mask), &[50, 40, 30, 20, 10]).unwrap();
        assert_eq!(one.prediction_errors(), kept(&[(1, 0, 10), (2, 0, 20)]));
        assert_eq!(one.predictions_by_actual_class(2), kept(&[(2, 0, 20), (2, 2, 30)]));
        assert_eq!(one.predictions_by_predicted_class(0), kept(&[(0, 0, 50), (1, 0, 10), (2, 0, 20)]));
        assert_eq!(one.predictions(2, 2), kept(&[(2, 2, 30)]));
        assert!(one.predictions(1, 1).is_empty(), "what is masked is not kept");
        assert!(one.predictions(7, 7).is_empty(), "there is no such class");
        one.eval(&labels, &predictions, None).unwrap();
        assert_eq!((one.rows(), one.predictions(1, 1).len(), one.predictions(2, 2).len()), (9, 0, 1));
        one.reset();
        assert!(one.predictions_by_predicted_class(0).is_empty() && one == Evaluation::new(3));

        let mut column = Evaluation::default();
        let (labels, predictions) = (of(&[1., 0., 1.], &[3, 1]), of(&[0.2, 0.3, 0.8], &[3, 1]));
        column.eval_with_ids(&labels, &predictions, None, &[7, 8, 9]).unwrap();
        assert_eq!(column.predictions_by_actual_class(1), kept(&[(1, 0, 7), (1, 1, 9)]));
    });
}

#[test]
fn steps_of_a_series_are_kept_with_its_id() {
    both(|| {
        let (mut dice, n, t) = (Dice(3), 3, 4);
        let mut numbers = |count: usize, below: usize| (0..count).map(|_| dice.below(below) as f64).collect::<Vec<_>>();
        let (classes, scores, counts) = (numbers(n * t, 3), numbers(n * t * 3, 100), numbers(n * t, 2));
        // A row for each step.
        let mut rows = Evaluation::default();
        let ids: Vec<u64> = (0..n * t).map(|row| 10 + (row / t) as u64).collect();
        let mask = of(&counts, &[n * t]);
        rows.eval_with_ids(&of(&classes, &[n * t]), &of(&scores, &[n * t, 3]), Some(&mask), &ids).unwrap();
        assert!(rows.rows() > 0 && rows.rows() < 12);
        let (labels, series, mask) = (of(&classes, &[n, t]), of(&scores, &[n, t, 3]), of(&counts, &[n, t]));
        let (second, first) = (series.permute((0, 2, 1)).unwrap(), series.permute((2, 0, 1)).unwrap());
        for (axis, predictions) in [(1, second), (-1, series), (0, first)] {
            let mut one = Evaluation::default().with_axis(axis);
            one.eval_with_ids(&labels, &predictions, Some(&mask), &[10, 11, 12]).unwrap();
            for class in 0..3 {
                let wanted = rows.predictions_by_actual_class(class);
                assert_eq!(one.predictions_by_actual_class(class), wanted, "axis {axis}, class {class}");
            }
            refused(line!(), one.eval_with_ids(&labels, &predictions, Some(&mask), &ids));
        }
    });
}

/// A mask as long as there were columns was read beyond its end.
#[test]
fn a_mask_of_examples_goes_along_them_wherever_the_columns_are() {
    both(|| {
        let (labels, series) = (of(&[0., 1., 2., 0., 1., 1., 2., 2.], &[2, 4]), numbers(&[2, 4, 3]));
        let first = series.permute((2, 0, 1)).unwrap();
        let evaluated = |axis: i64, predictions: &Tensor, mask: &Tensor| {
            let mut one = Evaluation::default().with_axis(axis);
            one.eval(&labels, predictions, Some(mask)).map(|()| (one.rows(), one.stats()))
        };
        let mask = of(&[0., 1.], &[2]);
        let wanted = evaluated(-1, &series, &mask).unwrap();
        assert_eq!(wanted.0, 4);
        assert_eq!(evaluated(0, &first, &mask).unwrap(), wanted);
        let error = evaluated(0, &first, &of(&[1., 1., 1.], &[3])).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    });
}

#[test]
fn predictions_merged_in_any_order_are_those_of_the_whole() {
    both(|| {
        for seed in 1..20 {
            let mut dice = Dice(seed);
            let (mut whole, mut parts) = (Evaluation::new(3), vec![Evaluation::new(3); 4]);
            for _ in 0..8 {
                let n = 1 + dice.below(5);
                let labels = of(&(0..n).map(|_| dice.below(3) as f64).collect::<Vec<_>>(), &[n]);
                let p = of(&(0..3 * n).map(|_| dice.below(9) as f64).collect::<Vec<_>>(), &[n, 3]);
                // Some come twice.
                let ids: Vec<u64> = (0..n).map(|_| u64::MAX - dice.below(12) as u64).collect();
                for one in [&mut whole, &mut parts[dice.below(3)]] {
                    one.eval_with_ids(&labels, &p, None, &ids).unwrap();
                }
            }
            while parts.len() > 1 {
                let part = parts.swap_remove(dice.below(parts.len()));
                let into = dice.below(parts.len());
                parts[into].merge(&part).unwrap();
            }
            assert_eq!(parts[0], whole);
            assert_eq!(parts[0].to_json(), whole.to_json());
            assert_eq!(Evaluation::from_json(&whole.to_json()).unwrap(), whole);
            for (actual, predicted) in (0..9).map(|cell| (cell / 3, cell % 3)) {
                let found = whole.predictions(actual, predicted);
                assert_eq!(found, parts[0].predictions(actual, predicted));
                assert_eq!(found.len() as u64, whole.confusion(actual, predicted));
            }
        }
        let with = |id: u64| {
            let mut one = Evaluation::default();
            one.eval_with_ids(&of(&[1.], &[1]), &of(&[0.5, 0.3], &[1, 2]), None, &[id]).unwrap();
            one
        };
        assert_ne!(with(1), with(2));
        let mut without = Evaluation::default();
        without.eval(&of(&[1.], &[1]), &of(&[0.5, 0.3], &[1, 2]), None).unwrap();
        assert!(!without.to_json().contains("predictions") && without != with(1));
    });
}

#[test]
fn a_network_says_which_examples_it_took_for_what() {
    both(|| {
        let mut dice = Dice(8);
        let x: Vec<f64> = (0..60).map(|_| dice.below(100) as f64 / 50. - 1.).collect();
        let classes: Vec<usize> = (0..20).map(|_| dice.below(3)).collect();
        let y: Vec<f64> = (0..60).map(|at| f64::from(u8::from(classes[at / 3] == at % 3))).collect();
        let all = DataSet::new(of(&x, &[20, 3]), of(&y, &[20, 3])).unwrap().with_example_ids(1000..1020).unwrap();
        for mode in MODES {
            let config = NetworkConfig::builder().data_type(DType::F64).seed(2).inference_workspace_mode(mode);
            let config =
                config.input_type(InputType::feed_forward(3)).layer(Dense::new(4).activation(Activation::Tanh));
            let net = config.layer(OutputLayer::new(3, Loss::Mcxent)).build().unwrap();
            let found = net.output(&all.features).unwrap().argmax(1).unwrap().to_vec1::<u32>().unwrap();
            let all_of_them = (0..20).map(|i| (classes[i], found[i] as usize, 1000 + i as u64));
            let mut wrong = kept(&all_of_them.filter(|one| one.0 != one.1).collect::<Vec<_>>());
            wrong.sort();
            assert!(!wrong.is_empty() && wrong.len() < 20, "{wrong:?}");

            let batches = || ArrayDataSetIterator::new(all.clone(), 6).unwrap().shuffled(4).unwrap();
            assert_eq!(net.evaluate(batches()).unwrap().prediction_errors(), wrong, "{mode:?}");
            let ahead = AsyncDataSetIterator::with_prefetch(batches(), 2).unwrap();
            let (mut one, mut roc) = (Evaluation::new(3), RocMultiClass::default());
            net.do_evaluation(ahead, &mut [&mut one, &mut roc]).unwrap();
            assert_eq!(one.prediction_errors(), wrong, "{mode:?}");
            assert_eq!(roc.column(0).unwrap().positives() + roc.column(0).unwrap().negatives(), 20);
            let several = ListDataIterator::new(vec![MultiDataSet::from(all.clone())]);
            one.reset();
            net.do_evaluation_of(several, &mut [(0, &mut one)]).unwrap();
            assert_eq!(one.prediction_errors(), wrong, "{mode:?}");

            let (mut other, few) = (all.clone(), all.rows(0, 5).unwrap());
            (other.features, other.labels) = (few.features, few.labels);
            refused(line!(), net.evaluate(ListDataSetIterator::new(vec![other])));
            let bare = DataSet::new(all.features.clone(), all.labels.clone()).unwrap();
            assert!(net.evaluate(ListDataSetIterator::new(vec![bare])).unwrap().prediction_errors().is_empty());
        }
    });
}

#[test]
fn no_array_is_made_for_ids() {
    both(|| {
        let (labels, predictions) = (of(&[0., 1., 1., 0.], &[4]), numbers(&[4, 2]));
        let mut one = Evaluation::default();
        let asked = || {
            let memory = Device::Cpu.memory();
            (memory.hits + memory.misses, memory.active)
        };
        let before = asked();
        for batch in 0..50 {
            let ids = [4 * batch, 4 * batch + 1, 4 * batch + 2, 4 * batch + 3];
            one.eval_with_ids(&labels, &predictions, None, &ids).unwrap();
        }
        assert_eq!(asked(), before);
        assert_eq!(one.predictions_by_actual_class(0).len() + one.predictions_by_actual_class(1).len(), 200);
    });
}
