//! Evaluation: ND4J's own answers in `data/evaluation.json`, and where ours differ on purpose.

use ndgc::train::{
    Averaging, BinaryCounts, Evaluation, EvaluationBinary, EvaluationCalibration, IEvaluation, Metric,
    RegressionEvaluation, RegressionMetric, Roc, RocBinary, RocMultiClass,
};
use ndgc::{DType, Device, Tensor};
use serde_json::Value;

use super::both::both;

fn answers() -> Value {
    serde_json::from_str(include_str!("data/evaluation.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect()
}

fn array(value: &Value) -> Tensor {
    let shape: Vec<usize> = numbers(&value["shape"]).into_iter().map(|x| x as usize).collect();
    Tensor::from_vec(numbers(&value["values"]), shape, &Device::Cpu).unwrap()
}

fn arrays(case: &Value) -> (Tensor, Tensor) {
    (array(&case["labels"]), array(&case["predictions"]))
}

#[track_caller]
fn close(ours: f64, theirs: f64, what: &str) {
    assert!((ours - theirs).abs() <= 1e-10 * theirs.abs().max(1.), "{what}: {ours}, and ND4J says {theirs}");
}

#[track_caller]
fn close_all(ours: &[f64], theirs: &Value, what: &str) {
    let theirs = numbers(theirs);
    assert_eq!(ours.len(), theirs.len(), "{what}: as many");
    ours.iter().zip(theirs).for_each(|(&ours, theirs)| close(ours, theirs, what));
}

const METRICS: [(&str, Metric); 8] = [
    ("precision", Metric::Precision),
    ("recall", Metric::Recall),
    ("f1", Metric::F1),
    ("fbeta_2", Metric::FBeta(2.)),
    ("g_measure", Metric::GMeasure),
    ("mcc", Metric::Mcc),
    ("false_positive_rate", Metric::FalsePositiveRate),
    ("false_negative_rate", Metric::FalseNegativeRate),
];

fn evaluation_of(case: &str) -> Evaluation {
    match case {
        "names and top 2" => Evaluation::new(4).with_labels(["cat", "dog", "emu", "fox"]).with_top_n(2),
        "two columns, threshold 0.3" => Evaluation::new(2).with_binary_decision_threshold(0.3),
        "two columns, costs 1 and 3" => Evaluation::new(2).with_cost_array([1., 3.]),
        _ => Evaluation::default(),
    }
}

fn evaluated(case: &Value) -> Evaluation {
    let (labels, predictions) = arrays(case);
    let mask = case.get("mask").map(array);
    let mut evaluation = evaluation_of(case["case"].as_str().unwrap());
    evaluation.eval(&labels, &predictions, mask.as_ref()).unwrap();
    evaluation
}

fn counts_of(value: &Value) -> BinaryCounts {
    let of = |key: &str| value[key].as_u64().unwrap();
    BinaryCounts {
        true_positives: of("tp"),
        false_positives: of("fp"),
        true_negatives: of("tn"),
        false_negatives: of("fn"),
    }
}

/// Named differences of the figures:
/// - ND4J's macro F1 and F-beta leave out classes whose F is 0, because they were never predicted or never occur, so
///   that never predicting a class makes the mean better. Ours, as scikit-learn's, count them with 0.
/// - Of two classes, ND4J's averaged F is that of class 1 whichever average is asked for.
/// - The micro average of the rate of false negatives is that of false positives in ND4J.
/// - Matthews' coefficient of a class that is never predicted is 0/0; ND4J gives NaN, scikit-learn and we 0.
#[test]
fn figures_of_classification_are_those_of_nd4j() {
    both(|| {
        for case in answers()["evaluation"].as_array().unwrap() {
            let (name, expected, ours) = (case["case"].as_str().unwrap(), &case["expected"], evaluated(case));
            let (two, left_out) = (ours.num_classes() == 2, name == "a class never predicted");
            for (key, value) in [
                ("accuracy", ours.accuracy()),
                ("precision", ours.precision()),
                ("recall", ours.recall()),
                ("false_alarm_rate", ours.false_alarm_rate()),
                ("top_n_accuracy", ours.top_n_accuracy()),
                ("rows", ours.rows() as f64),
            ] {
                close(value, expected[key].as_f64().unwrap(), &format!("{name}: {key}"));
            }
            for (key, averaging) in [("macro", Averaging::Macro), ("micro", Averaging::Micro)] {
                for (metric_name, metric) in METRICS {
                    let is_f = matches!(metric, Metric::F1 | Metric::FBeta(_));
                    let micro = averaging == Averaging::Micro;
                    let differs = is_f && (two || left_out && !micro) || micro && metric == Metric::FalseNegativeRate;
                    match expected[key][metric_name].as_f64() {
                        Some(theirs) if !differs => {
                            close(
                                ours.score_averaged(metric, averaging),
                                theirs,
                                &format!("{name}: {key} {metric_name}"),
                            );
                        }
                        Some(_) => {}
                        None => assert!(left_out && metric == Metric::Mcc, "{name}: {key} {metric_name} is NaN there"),
                    }
                }
            }
            for (class, theirs) in expected["per_class"].as_array().unwrap().iter().enumerate() {
                assert_eq!(ours.counts(class), counts_of(theirs), "{name}: counts of {class}");
                for (metric_name, metric) in METRICS {
                    let theirs = theirs[metric_name].as_f64().unwrap_or(0.);
                    close(ours.score_of(metric, class), theirs, &format!("{name}: {metric_name} of {class}"));
                }
            }
            for (actual, row) in expected["confusion_actual_predicted"].as_array().unwrap().iter().enumerate() {
                let row: Vec<u64> = row.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
                let own: Vec<u64> = (0..row.len()).map(|predicted| ours.confusion(actual, predicted)).collect();
                assert_eq!(own, row, "{name}: row {actual} of the matrix");
            }
        }
    });
}

#[test]
fn averages_that_differ_from_nd4j_are_those_of_scikit_learn() {
    both(|| {
        let answers = answers();
        let case = |name: &str| {
            let all = answers["evaluation"].as_array().unwrap();
            evaluated(all.iter().find(|case| case["case"] == name).unwrap())
        };
        // sklearn.metrics.f1_score(average="macro"), matthews per class, fbeta_score(beta=2).
        let left_out = case("a class never predicted");
        let means = [2. / 3., 28. / 41., 20. / 29., 0.].iter().sum::<f64>() / 4.;
        close(left_out.f1(), means, "macro F1");
        let missed = left_out.score_averaged(Metric::FalseNegativeRate, Averaging::Micro);
        close(missed, 1. - left_out.accuracy(), "micro rate of false negatives");
        assert_eq!(left_out.score_of(Metric::Mcc, 3), 0.);
        let two = case("two columns");
        close(two.score_averaged(Metric::F1, Averaging::Macro), (34. / 44. + 46. / 56.) / 2., "macro F1 of two");
        close(two.score_averaged(Metric::F1, Averaging::Micro), 0.8, "micro F1 of two");
        close(two.f1(), 46. / 56., "F1 of the positive class");
        let first = two.clone().with_positive_class(Some(0));
        close(first.f1(), 34. / 44., "F1 of the other class, where that is the positive one");
    });
}

/// Named differences of the text: the F1 of a class that is never predicted, see above, and no note of it.
#[test]
fn texts_of_classification_are_those_of_nd4j() {
    both(|| {
        for case in answers()["evaluation"].as_array().unwrap() {
            let mut theirs = case["expected"]["stats"].as_str().unwrap().to_owned();
            if case["case"] == "a class never predicted" {
                theirs = theirs
                    .replace(" F1 Score:        0.6797\t(1 class excluded from average)", " F1 Score:        0.5098");
            }
            assert_eq!(evaluated(case).stats(), theirs);
        }
    });
}

#[test]
fn counts_that_are_powers_of_ten_do_not_touch() {
    both(|| {
        let labels = Tensor::zeros(10, DType::U32, &Device::Cpu).unwrap();
        let predictions = Tensor::new([[1f32, 0.]; 10], &Device::Cpu).unwrap();
        let mut evaluation = Evaluation::default();
        evaluation.eval(&labels, &predictions, None).unwrap();
        assert!(evaluation.stats().contains("\n  0  1\n-------\n 10  0 | 0 = 0\n  0  0 | 1 = 1\n"));
        assert!(evaluation.stats().ends_with(&evaluation.confusion_to_string()));
        let named = evaluation.with_labels(["a,b", "\"c\""]);
        let lines = ["actual,\"a,b\",\"\"\"c\"\"\"", "\"a,b\",10,0", "\"\"\"c\"\"\",0,0", ""];
        assert_eq!(named.confusion_csv(), lines.join("\n"));
    });
}

#[test]
fn a_large_matrix_is_left_out_unless_it_is_asked_for() {
    both(|| {
        let labels = Tensor::zeros(3, DType::U32, &Device::Cpu).unwrap();
        let predictions = Tensor::ones((3, 31), DType::F64, &Device::Cpu).unwrap();
        let mut evaluation = Evaluation::default();
        evaluation.eval(&labels, &predictions, None).unwrap();
        assert!(evaluation.stats().contains("not generated due to space requirements for 31 classes"));
        assert!(evaluation.stats_with(true, Some(true)).contains("Confusion Matrix"));
        assert!(evaluation.stats().contains("30 classes were never predicted by the model and were excluded"));
    });
}

/// What is equal in exact arithmetic may differ in the last digit.
pub(crate) fn same_text(ours: &str, theirs: &str) {
    let (ours, theirs): (Vec<_>, Vec<_>) = (ours.split(' ').collect(), theirs.split(' ').collect());
    assert_eq!(ours.len(), theirs.len(), "{ours:?}\n{theirs:?}");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        match (ours.trim().parse::<f64>(), theirs.trim().parse::<f64>()) {
            (Ok(ours), Ok(theirs)) => close(ours, theirs, "in the text"),
            _ if ours.contains('\n') && ours.split('\n').count() == theirs.split('\n').count() => {
                ours.split('\n').zip(theirs.split('\n')).for_each(|(ours, theirs)| same_text(ours, theirs));
            }
            _ => assert_eq!(ours, theirs),
        }
    }
}

fn note_mended(theirs: &str) -> String {
    theirs.replace("steps); accuracy may reduced", "steps; accuracy may be reduced")
}

/// The probability that a positive has the larger score, where ties count half.
fn mann_whitney(case: &Value) -> f64 {
    let (labels, scores) = (numbers(&case["labels"]["values"]), numbers(&case["predictions"]["values"]));
    let (mut won, mut pairs) = (0., 0.);
    for (i, _) in labels.iter().enumerate().filter(|(_, label)| **label == 1.) {
        for (j, _) in labels.iter().enumerate().filter(|(_, label)| **label == 0.) {
            pairs += 1.;
            won += if scores[i] > scores[j] {
                1.
            } else if scores[i] == scores[j] {
                0.5
            } else {
                0.
            };
        }
    }
    won / pairs
}

/// Named differences: ND4J's exact mode takes equal scores one by one in the order in which they came, so that its area
/// depends on that order. Ours is that of scikit-learn.
#[test]
fn curves_are_those_of_nd4j_and_ties_are_one_point() {
    both(|| {
        for case in answers()["roc"].as_array().unwrap() {
            let (labels, predictions) = arrays(case);
            let (expected, steps) = (&case["expected"], case["threshold_steps"].as_u64().unwrap() as usize);
            let name = format!("{} with {steps} steps", case["case"]);
            let remove = case["remove_redundant"].as_bool().unwrap();
            let mut roc = Roc::new(steps).unwrap().with_remove_redundant_points(remove);
            roc.eval(&labels, &predictions, None).unwrap();
            assert_eq!(roc.positives(), expected["positives"].as_u64().unwrap());
            assert_eq!(roc.negatives(), expected["negatives"].as_u64().unwrap());
            let (curve, pr) = (roc.roc_curve().unwrap(), roc.precision_recall_curve().unwrap());
            if steps == 0 {
                close(curve.auc, mann_whitney(case), &name);
            }
            if case["case"] == "ties" && steps == 0 {
                assert!(curve.thresholds.windows(2).skip(1).all(|pair| pair[0] > pair[1]), "each threshold once");
                continue;
            }
            close_all(&curve.thresholds, &expected["roc_threshold"], &name);
            close_all(&curve.false_positive_rates, &expected["roc_fpr"], &name);
            close_all(&curve.true_positive_rates, &expected["roc_tpr"], &name);
            close_all(&pr.thresholds, &expected["pr_threshold"], &name);
            close_all(&pr.precisions, &expected["pr_precision"], &name);
            close_all(&pr.recalls, &expected["pr_recall"], &name);
            close(curve.auc, expected["auc"].as_f64().unwrap(), &name);
            close(pr.auprc, expected["auprc"].as_f64().unwrap(), &name);
            same_text(&roc.stats(), &note_mended(expected["stats"].as_str().unwrap()));
        }
    });
}

/// From scikit-learn: 30 examples, `roc_auc_score` and `auc(recall, precision)`.
#[test]
fn areas_of_ties_are_those_of_scikit_learn() {
    both(|| {
        let area = |labels: &[f64], scores: &[f64]| {
            let mut roc = Roc::default();
            let of = |all: &[f64]| Tensor::from_slice(all, all.len(), &Device::Cpu).unwrap();
            roc.eval(&of(labels), &of(scores), None).unwrap();
            (roc.auc(), roc.auprc())
        };
        assert_eq!(area(&[1., 0.], &[0.5, 0.5]), (Some(0.5), Some(0.75)));
        assert_eq!(area(&[0., 1.], &[0.5, 0.5]), (Some(0.5), Some(0.75)));
        assert_eq!(area(&[1., 1.], &[0.5, 0.7]), (None, Some(1.)), "one class has no area");
        assert_eq!(area(&[0., 0.], &[0.5, 0.7]), (None, None));
        assert_eq!(area(&[0., 0., 1., 1.], &[0.1, 0.4, 0.35, 0.8]).0, Some(0.75));
        let pr = area(&[0., 0., 1., 1.], &[0.1, 0.4, 0.35, 0.8]).1.unwrap();
        close(pr, 0.791_666_666_666_666_6, "the area under precision over recall");
    });
}

/// ND4J's curves have thresholds 1 and 0 at their ends whatever the scores are.
#[test]
fn points_of_curves_of_scores_that_are_no_probabilities_have_their_thresholds() {
    both(|| {
        let of = |all: &[f64]| Tensor::from_slice(all, all.len(), &Device::Cpu).unwrap();
        for (scores, wanted) in [
            ([-3., -1., -2., -0.5], [1., -0.5, -1., -2., -3.]),
            ([2., 5., 3., 9.], [f64::INFINITY, 9., 5., 3., 2.]),
            ([-3., 0., -2., 9.], [f64::INFINITY, 9., 0., -2., -3.]),
        ] {
            let mut roc = Roc::default().with_remove_redundant_points(false);
            roc.eval(&of(&[0., 1., 1., 0.]), &of(&scores), None).unwrap();
            let (curve, pr) = (roc.roc_curve().unwrap(), roc.precision_recall_curve().unwrap());
            // Where all are above 0, that is a threshold for nothing more.
            let end: &[f64] = if scores[0] > 0. { &[0.] } else { &[] };
            assert_eq!(curve.thresholds, [&wanted[..], end].concat());
            assert!(pr.thresholds.iter().rev().eq(&curve.thresholds));
            for (i, &threshold) in curve.thresholds.iter().enumerate() {
                let counts = roc.counts_at_threshold(threshold);
                close(curve.true_positive_rates[i], counts.score(Metric::Recall), "rate of the counts");
                close(curve.false_positive_rates[i], counts.score(Metric::FalsePositiveRate), "rate of the counts");
                let at = pr.point_at_threshold(threshold);
                close(pr.recalls[at], counts.score(Metric::Recall), "recall of the counts");
            }
        }
    });
}

#[test]
fn points_of_a_curve_are_found() {
    both(|| {
        let mut roc = Roc::new(100).unwrap();
        let of = |all: &[f64]| Tensor::from_slice(all, all.len(), &Device::Cpu).unwrap();
        roc.eval(&of(&[0., 1., 0., 1.]), &of(&[0.1, 0.4, 0.45, 0.9]), None).unwrap();
        let curve = roc.precision_recall_curve().unwrap();
        assert_eq!((curve.point_at_threshold(0.05), curve.point_at_threshold(0.0495)), (5, 5));
        assert_eq!(curve.thresholds[curve.point_at_precision(1.)], 0.46);
        assert_eq!(curve.thresholds[curve.point_at_recall(1.)], 0.4);
        for threshold in [0., 0.3, 0.42, 0.9, 1.] {
            let (counts, at) = (roc.counts_at_threshold(threshold), curve.point_at_threshold(threshold));
            if threshold < 1. {
                close(curve.recalls[at], counts.score(Metric::Recall), "recall of the counts");
                close(curve.precisions[at], counts.score(Metric::Precision), "precision of the counts");
            }
        }
    });
}

/// Named differences: the average stands on a line of its own; the note's grammar.
#[test]
fn tables_of_curves_are_those_of_nd4j() {
    both(|| {
        let answers = answers();
        let multi = &answers["roc_multi_class"];
        let (labels, predictions) = arrays(multi);
        for expected in multi["expected"].as_array().unwrap() {
            let mut roc = RocMultiClass::new(expected["threshold_steps"].as_u64().unwrap() as usize).unwrap();
            roc.eval(&labels, &predictions, None).unwrap();
            let of = |area: &dyn Fn(usize) -> Option<f64>| (0..3).map(|i| area(i).unwrap()).collect::<Vec<_>>();
            close_all(&of(&|class| roc.auc(class)), &expected["auc"], "areas");
            close_all(&of(&|class| roc.auprc(class)), &expected["auprc"], "areas of precision over recall");
            close(roc.average_auc().unwrap(), expected["average_auc"].as_f64().unwrap(), "average");
            close(roc.average_auprc().unwrap(), expected["average_auprc"].as_f64().unwrap(), "average");
            let theirs = note_mended(expected["stats"].as_str().unwrap()).replace("Average", "\nAverage");
            assert_eq!(roc.stats(), theirs);
        }
        let (labels, predictions) = arrays(&answers["binary"]);
        let (mut roc, expected) = (RocBinary::default(), &answers["binary"]["roc_binary_exact"]);
        roc.eval(&labels, &predictions, None).unwrap();
        assert_eq!(roc.stats(), expected["stats"].as_str().unwrap());
        close(roc.average_auc().unwrap(), expected["average_auc"].as_f64().unwrap(), "average");
    });
}

#[test]
fn outputs_that_are_yes_or_no_are_as_nd4j_says() {
    both(|| {
        let binary = &answers()["binary"];
        let ((labels, predictions), mask) = (arrays(binary), array(&binary["mask"]));
        for expected in binary["expected"].as_array().unwrap() {
            let name = expected["case"].as_str().unwrap();
            let (mut ours, mask) = match name {
                "plain, with exact ROC" => (EvaluationBinary::default().with_roc(0).unwrap(), None),
                "mask per label" => (EvaluationBinary::default(), Some(&mask)),
                _ => (EvaluationBinary::default().with_decision_thresholds([0.3, 0.5, 0.7]), None),
            };
            ours.eval(&labels, &predictions, mask).unwrap();
            for (output, theirs) in expected["per_label"].as_array().unwrap().iter().enumerate() {
                assert_eq!(ours.counts(output), counts_of(theirs), "{name}: {output}");
                for (key, metric) in METRICS.into_iter().take(6).chain([("accuracy", Metric::Accuracy)]) {
                    close(ours.score_of(metric, output), theirs[key].as_f64().unwrap(), &format!("{name}: {key}"));
                }
            }
            close(ours.average(Metric::Accuracy), expected["average_accuracy"].as_f64().unwrap(), name);
            close(ours.average(Metric::F1), expected["average_f1"].as_f64().unwrap(), name);
            close(ours.average(Metric::Mcc), expected["average_mcc"].as_f64().unwrap(), name);
            assert_eq!(ours.stats(), expected["stats"].as_str().unwrap());
        }
    });
}

const REGRESSION: [(&str, RegressionMetric); 6] = [
    ("mse", RegressionMetric::Mse),
    ("mae", RegressionMetric::Mae),
    ("rmse", RegressionMetric::Rmse),
    ("rse", RegressionMetric::Rse),
    ("pearson", RegressionMetric::PearsonCorrelation),
    ("r2", RegressionMetric::RSquared),
];

#[test]
fn errors_of_numbers_are_as_nd4j_says() {
    both(|| {
        let regression = &answers()["regression"];
        let ((labels, predictions), mask) = (arrays(regression), array(&regression["mask"]));
        for expected in regression["expected"].as_array().unwrap() {
            let (name, mut ours) = (expected["case"].as_str().unwrap(), RegressionEvaluation::default());
            if name == "names" {
                ours = ours.with_labels(["height", "weight", "age"]);
            }
            ours.eval(&labels, &predictions, (name == "mask").then_some(&mask)).unwrap();
            for (key, metric) in REGRESSION {
                for (column, theirs) in expected["per_column"].as_array().unwrap().iter().enumerate() {
                    close(
                        ours.score(metric, column).unwrap(),
                        theirs[key].as_f64().unwrap(),
                        &format!("{name}: {key}"),
                    );
                }
                let theirs = expected[format!("average_{key}").as_str()].as_f64().unwrap();
                close(ours.average(metric).unwrap(), theirs, &format!("{name}: average {key}"));
            }
            assert_eq!(ours.stats(), expected["stats"].as_str().unwrap());
        }
    });
}

#[test]
fn numbers_far_from_zero_lose_no_digits() {
    both(|| {
        let mut ours = RegressionEvaluation::default();
        let of = |off: f64| Tensor::from_slice(&[1e9 + off, 1e9 + 1. + off, 1e9 + 2. + off], (3, 1), &Device::Cpu);
        ours.eval(&of(0.).unwrap(), &of(0.5).unwrap(), None).unwrap();
        close(ours.score(RegressionMetric::RSquared, 0).unwrap(), 1. - 0.75 / 2., "R²");
        close(ours.score(RegressionMetric::PearsonCorrelation, 0).unwrap(), 1., "correlation");
    });
}

#[test]
fn calibration_is_as_nd4j_says() {
    both(|| {
        let case = &answers()["calibration"];
        let ((labels, predictions), expected) = (arrays(case), &case["expected"]);
        let bins = |key: &str| case[key].as_u64().unwrap() as usize;
        let mut ours = EvaluationCalibration::new(bins("reliability_bins"), bins("histogram_bins")).unwrap();
        ours.eval(&labels, &predictions, None).unwrap();
        let same = |ours: Vec<u64>, theirs: &Value, what: &str| {
            assert_eq!(ours.iter().map(|&n| n as f64).collect::<Vec<_>>(), numbers(theirs), "{what}");
        };
        same(ours.label_counts(), &expected["label_counts"], "labels");
        same(ours.prediction_counts(), &expected["prediction_counts"], "predictions");
        same(ours.residuals(None).unwrap().counts, &expected["residual_counts"], "residuals");
        same(ours.probabilities(None).unwrap().counts, &expected["probability_counts"], "probabilities");
        for (class, theirs) in expected["per_class"].as_array().unwrap().iter().enumerate() {
            let diagram = ours.reliability_diagram(class).unwrap();
            close_all(&diagram.mean_predicted, &theirs["mean_predicted"], "mean of the bins");
            close_all(&diagram.fraction_positive, &theirs["fraction_positive"], "positives of the bins");
            same(ours.residuals(Some(class)).unwrap().counts, &theirs["residual_counts"], "residuals of a class");
            same(ours.probabilities(Some(class)).unwrap().counts, &theirs["probability_counts"], "of a class");
        }
        assert_eq!(ours.stats(), expected["stats"].as_str().unwrap());
    });
}
