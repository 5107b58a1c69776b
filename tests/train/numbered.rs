//! The numbers of the reference on ND4J and DL4J: what a successor has to have (R17 to R28), and what their tests of
//! networks (N), iterators (I), workers and callers (P) and evaluation (E) assert. Each has a test here or elsewhere
//! that shows it, or the reason why it is not here. A test reads this table: a number that is missing fails, and so
//! does a test that does not exist.
//!
//! | number | what it is here | shown by |
//! |---|---|---|
//! | R17 | each kind of array has its place, checked both ways, whatever the order of the calls that say so; the gradients of each layer are right in each mode; the default needs at most what `Separate` does (times are measured: `benches/train.rs`) | `places_are_told_and_validated`, `arrays_in_the_wrong_workspace_are_told_if_asked`, `layers_of_rows_have_their_gradients_in_each_mode`, `layers_of_images_have_their_gradients_in_each_mode`, `layers_of_series_have_their_gradients_in_each_mode`, `every_mode_gives_the_same_to_the_last_bit`, `enabled_needs_no_more_than_separate_and_little_more_than_what_lives_at_once` |
//! | R18 | an output is the caller's without a copy, or lies in its workspace; it is had anywhere, also from a listener within `fit` | `an_output_is_the_callers`, `scores_are_taken_anywhere`, `a_listener_may_use_the_network` |
//! | R19 | workers: averaged at the end whatever the frequency, which is at least 1; threads and bytes stay the same; a fault ends `fit` with it, and all goes on | `parameters_are_averaged_at_the_end_whatever_the_frequency`, `settings_that_cannot_be_are_refused`, `threads_and_bytes_are_constant_over_epochs`, `bytes_of_workers_are_constant_over_epochs`, `a_fault_of_a_worker_ends_fit_with_it_and_all_goes_on`, `a_fault_of_the_iterator_ends_fit_with_it_and_all_goes_on` |
//! | R20 | callers: limits in rows and in time; the bad fail alone; a shutdown fails what waits; who waits does not run; no batch has answers of two models | `what_waits_is_answered_together_up_to_the_limit_of_rows`, `a_request_waits_for_others_no_longer_than_it_may`, `every_mode_answers_as_the_model_alone_and_the_bad_fail_alone`, `a_shutdown_fails_what_waits_and_what_comes`, `idle_workers_cost_nothing`, `another_model_answers_from_its_update_on` |
//! | R21 | ties are one point, one class has no area, parts in any order are the whole, nothing is counted of what is masked, sums lose no digits, F-beta heeds what it is asked; predictions are kept with the ids of their examples | `areas_of_ties_are_those_of_scikit_learn`, `curves_are_those_of_nd4j_and_ties_are_one_point`, `parts_merged_in_any_order_are_the_whole_and_json_is_read_back`, `empty_ones_and_batches_of_which_nothing_counts_do_no_harm`, `numbers_far_from_zero_lose_no_digits`, `averages_that_differ_from_nd4j_are_those_of_scikit_learn`, `what_counts_is_kept_with_its_id`, `predictions_merged_in_any_order_are_those_of_the_whole`, `ids_go_where_their_examples_go`, `iterators_hand_ids_on_in_any_order` |
//! | R22 | the guide's two evaluations in one pass; more outputs than two are an error that names the kind for them | `r22_the_guides_evaluations_look_at_one_pass_together` |
//! | R23 | texts are ND4J's, with columns that never touch and averages on lines of their own; each is there as JSON too | `texts_of_classification_are_those_of_nd4j`, `counts_that_are_powers_of_ten_do_not_touch`, `tables_of_curves_are_those_of_nd4j`, `outputs_that_are_yes_or_no_are_as_nd4j_says`, `errors_of_numbers_are_as_nd4j_says`, `parts_merged_in_any_order_are_the_whole_and_json_is_read_back` |
//! | R24 | evaluating makes no array, and needs the memory of one batch however many there are | `evaluating_many_batches_needs_the_memory_of_one`, `no_array_is_made_while_evaluating`, `r24_a_million_rows_need_the_memory_of_one_batch` |
//! | R25 | a thread's workspaces as a table and as data; the debug modes change no number: the tests of training are run in each too (`.ci/run`), but for those of where arrays lie | `r25_the_table_of_workspaces_has_a_line_for_each`, `who_holds_a_block_beyond_its_cycle_is_counted`, `debug_modes_change_nothing`, `batches_made_ahead_are_whole_in_every_debug_mode`, `w61_rings_keep_their_last_cycles_in_each_mode` |
//! | R26 | a report is written when memory ends, if it is asked for; it names networks, their parameters and what updaters keep; bytes by layer are had at any time | `a_report_is_written_where_it_is_asked_for`, `reports_say_which_network_has_what`, `memory_is_reported_by_layer` |
//! | R27 | what it costs is published (`docs/train.md`) and measured by `benches/train.rs`; asserted is what no machine changes, requests and bytes, and no time | `a_step_of_a_network_asks_the_heap_for_nothing`, `memory_is_constant_over_steps`, `enabled_needs_no_more_than_separate_and_little_more_than_what_lives_at_once` |
//! | R28 | each sample of the two guides is run as a documentation test | `r28_the_samples_of_the_guides_are_run` |
//! | N1 | a graph of convolutions has its gradients in each mode, and nothing is open or astray after them | `n1_a_graph_of_convolutions_has_its_gradients_and_leaves_nothing_open` |
//! | N2 | two networks of one configuration share nothing | `networks_of_one_configuration_share_nothing` |
//! | N3 | a layer that copies into activations leaks nothing, in a row or in a graph (ndgc has no preprocessors: shapes are the layers' own affair) | `n3_a_layer_that_copies_into_activations_changes_nothing` |
//! | N4 | recurrent layers go on from step to step | `n4_each_recurrent_layer_goes_on_from_step_to_step`, `a_series_may_come_in_pieces` |
//! | N5 | series are trained in segments, each a step | `a_series_may_come_in_pieces`, `series_of_numbers_are_cut_and_rows_are_not`, `a_series_that_ends_early_leaves_nothing_for_the_next_one` |
//! | N6 | two outputs are equal and both detached | `an_output_is_the_callers` |
//! | N7 | modes are what they were set to | `modes_are_told_and_changed`, `modes_may_change_in_the_middle_of_training` |
//! | N8 | a graph with an embedding, an LSTM and its last step trains over an iterator | `a_graph_trains_over_an_iterator` |
//! | N9 | an output in the caller's workspace, three times, which is closed afterwards | `an_output_is_the_callers`, `n9_a_graph_writes_its_output_into_the_callers_workspace` |
//! | N10 | the same of a network of layers in a row | `an_output_is_the_callers` |
//! | N11 | scores within a user's workspace and in a part of the program without one | `scores_are_taken_anywhere`, `scores_of_examples_are_all_of_them_and_their_own` |
//! | N12 | a graph with two inputs trains and is evaluated | `n12_a_graph_with_two_inputs_trains_and_is_evaluated`, `networks_with_two_inputs_are_trained_too` |
//! | N13 | what is kept of the way forward changes no number; the mode decides that (`Separate` keeps nothing, the others do), and there is no second switch for it | `every_mode_gives_the_same_to_the_last_bit` |
//! | N14 | bytes by layer as text, also before there is a network, and as JSON; there is no YAML | `memory_is_reported_by_layer`, `memory_is_reported_before_there_is_a_network`, `a_report_of_memory_says_what_cannot_be_and_has_no_end_of_sizes` |
//! | N15 | one report for each time that memory ends, and none unless it is asked for | `a_report_is_written_where_it_is_asked_for` |
//! | N16 | the gradient checks of all layers run with a look at where each array lies | `layers_of_rows_have_their_gradients_in_each_mode`, `layers_of_images_have_their_gradients_in_each_mode`, `layers_of_series_have_their_gradients_in_each_mode`, `a_graph_has_its_gradients_in_each_mode` |
//! | I1 | all batches, once each, for each number that may wait, in every epoch | `batches_made_ahead_come_in_order_in_every_epoch` |
//! | I2 | a reset in the middle begins with the first | `i2_a_reset_in_the_middle_begins_with_the_first`, `orders_of_shuffled_batches_made_ahead_are_those_of_the_source` |
//! | I3 | who is slow gets all | `i3_who_is_slow_gets_all` |
//! | I4 | an error of the source arrives as it is, after what was before it | `faults_of_a_producer_come_after_what_was_before_them_and_a_reset_goes_on`, `r3_errors_and_panics_come_after_what_was_made_before` |
//! | I5 | batches of other sizes each time are whole, features, labels and masks | `batches_made_ahead_come_in_order_in_every_epoch`, `batches_that_are_kept_stay_whole` |
//! | I6 | what is detached stays whole, from a ring of a device too; a ring is of one device, so there is nothing to hand out in turn | `i6_a_ring_of_a_device_and_what_is_detached_from_it_are_whole`, `batches_that_are_kept_stay_whole` |
//! | I7 | the same of several inputs and outputs | `several_inputs_are_made_ahead_too` |
//! | I8 | the order stays; a source that was used up is reset by the first pass; a reset while the thread waits | `batches_made_ahead_come_in_order_in_every_epoch`, `an_iterator_that_was_used_up_is_reset_by_the_first_pass`, `reset_begins_again_at_any_point` |
//! | I9 | several sources of which one ends first | not here: an iterator of the standard library that takes from several is one of them, and which goes on is its own affair |
//! | I10 | batches of files, made ahead, with a reset in the middle; one thread reads, not one for each file | `i10_batches_of_a_file_are_made_ahead_in_order`, `idx_is_read_plain_and_packed_and_faults_are_named`, `csv_is_read_line_by_line_and_faults_name_the_line` |
//! | I11 | a plain iterator made ahead gives all | `batches_made_ahead_come_in_order_in_every_epoch` |
//! | P1 | answers are detached; each worker gets work | `answers_are_the_callers_and_end_with_no_workspace`, `workers_without_requests_keep_no_workspaces_of_a_model_that_was_replaced` |
//! | P2 | requests share a batch up to its limit, and get their own rows | `what_waits_is_answered_together_up_to_the_limit_of_rows`, `several_inputs_outputs_and_masks_are_put_together_too` |
//! | P3 | series of other lengths and images of other sizes are answered as by the network alone | `p3_series_and_images_of_all_sizes_are_answered_as_alone`, `many_callers_are_answered_as_by_the_network_alone` |
//! | P4 | what does not fit fails at its caller, and what fits is answered after it | `many_callers_are_answered_as_by_the_network_alone`, `every_mode_answers_as_the_model_alone_and_the_bad_fail_alone` |
//! | P5 | with masks and without, as by the network alone | `p5_masked_series_are_answered_as_alone`, `several_inputs_outputs_and_masks_are_put_together_too` |
//! | P6 | another model answers from its update on, also one of another form; all workers share one model, so there are no replicas to compare | `another_model_answers_from_its_update_on`, `models_that_are_replaced_leave_no_workspaces_behind` |
//! | P7 | several outputs | `several_inputs_outputs_and_masks_are_put_together_too` |
//! | P8 | rows, images and several inputs become one batch and come apart again | `several_inputs_outputs_and_masks_are_put_together_too`, `what_waits_is_answered_together_up_to_the_limit_of_rows`, `p3_series_and_images_of_all_sizes_are_answered_as_alone` |
//! | P9 | in place: two calls are equal, and an update is seen by all callers; one model has no replicas to choose from, so there is no balancing of loads | `p9_in_place_two_calls_are_equal_and_an_update_is_seen` |
//! | P10 | a convolutional network learns with two workers, 24 batches that wait and an average every third round | `p10_two_workers_train_a_convolutional_network`, `workers_that_are_averaged_learn_and_end_equal` |
//! | P11 | listeners are told of steps and epochs, of the first replica; there is no store of statistics, and so no session | `epochs_of_a_wrapper_are_epochs_of_its_network` |
//! | P12 | training stops by epochs, and after a pass or a step by a score that is none, with the best parameters; so it does with several workers, and on all ranks | `training_stops_when_it_does_not_help`, `training_stops_in_the_middle_of_a_pass_with_the_best_network`, `training_by_several_workers_stops_with_the_best_network`, `a_pass_of_several_workers_breaks_off_and_leaves_them_equal`, `ranks_stop_together`, `a_training_that_diverged_at_once_begins_again`, `a_worker_that_diverged_is_seen_in_the_score` |
//! | P13 | threads have names | `threads_and_bytes_are_constant_over_epochs` |
//! | P14 | one seed, one network | `p14_one_seed_is_one_network` |
//! | E1 | counts and figures; the same for every type | `figures_of_classification_are_those_of_nd4j`, `every_dtype_layout_and_device_gives_the_same_text` |
//! | E2 | names of classes, as a list; as classes are numbered, a map is a list | `texts_of_classification_are_those_of_nd4j` |
//! | E3 | what is masked is as if it were not there | `texts_of_classification_are_those_of_nd4j`, `steps_of_series_and_points_of_images_are_rows`, `series_are_evaluated_where_training_counts_them` |
//! | E4 | who always says one class has no perfect recall | `e4_who_always_says_one_class_has_no_perfect_recall` |
//! | E5 | parts are the whole, empty ones too | `parts_merged_in_any_order_are_the_whole_and_json_is_read_back`, `classes_that_were_asked_for_are_not_merged_with_others` |
//! | E6 | one column is two classes, again after each reset | `e6_one_column_counts_the_same_after_each_reset` |
//! | E7 | texts have the characters that they should | `texts_of_classification_are_those_of_nd4j` |
//! | E8 | rows and numbers of classes count alike; predictions are rows | `labels_that_train_a_network_evaluate_it` |
//! | E9 | the class among the n most likely, and merged | `figures_of_classification_are_those_of_nd4j`, `parts_merged_in_any_order_are_the_whole_and_json_is_read_back` |
//! | E10 | two classes | `figures_of_classification_are_those_of_nd4j` |
//! | E11 | figures of a class, their mean, and of all counts together | `figures_of_classification_are_those_of_nd4j`, `averages_that_differ_from_nd4j_are_those_of_scikit_learn` |
//! | E12 | the matrix as text, left out where it is large | `counts_that_are_powers_of_ten_do_not_touch`, `a_large_matrix_is_left_out_unless_it_is_asked_for` |
//! | E13 | the positive class of two may be either, or none | `e13_the_positive_class_of_two_may_be_either_or_none` |
//! | E14 | NaN is refused | `what_does_not_fit_is_refused_and_nothing_is_counted` |
//! | E15 | points of images are rows, wherever the columns are | `e15_the_columns_of_images_may_be_on_any_axis`, `steps_of_series_and_points_of_images_are_rows` |
//! | E16 | the text is the same after a reset; that of two classes is of the positive one | `e16_the_text_of_two_classes_is_the_same_after_a_reset` |
//! | E17 | thresholds and costs | `e17_thresholds_and_costs_decide_what_is_predicted`, `outputs_that_are_yes_or_no_are_as_nd4j_says` |
//! | E18 | a curve of ten steps, its area, and of one class of three | `e18_a_curve_of_ten_steps_has_eleven_points`, `curves_are_those_of_nd4j_and_ties_are_one_point` |
//! | E19 | parts of curves, also after these were asked for | `e19_parts_of_a_curve_are_the_whole`, `parts_merged_in_any_order_are_the_whole_and_json_is_read_back` |
//! | E20 | the area of precision over recall | `areas_of_ties_are_those_of_scikit_learn` |
//! | E21 | areas and points of exact curves | `curves_are_those_of_nd4j_and_ties_are_one_point`, `areas_of_ties_are_those_of_scikit_learn` |
//! | E22 | more rows than a block of the store | not here: rows are in a list that grows, and there is no block to be full |
//! | E23 | points of a curve by threshold | `points_of_a_curve_are_found` |
//! | E24 | precision and recall of a point are those of its counts | `points_of_a_curve_are_found` |
//! | E25 | a curve for each output, a mask for each | `e25_a_mask_for_each_output_is_of_that_output_alone`, `tables_of_curves_are_those_of_nd4j` |
//! | E26 | each output is an evaluation of its own column | `e26_each_output_is_an_evaluation_of_its_own_column`, `outputs_that_are_yes_or_no_are_as_nd4j_says` |
//! | E27 | errors of numbers; shapes that differ are refused; perfect predictions | `e27_perfect_predictions_have_no_error`, `errors_of_numbers_are_as_nd4j_says`, `labels_that_train_a_network_evaluate_it` |
//! | E28 | reliability, residuals and histograms | `calibration_is_as_nd4j_says` |
//! | E29 | texts of empty ones; a figure of nothing is 0 or None, and no error | `empty_ones_and_batches_of_which_nothing_counts_do_no_harm` |
//! | E30 | JSON is read back; what is cut or made up is refused; an evaluation of one's own is an `IEvaluation`, so there is no `CustomEvaluation` of closures | `parts_merged_in_any_order_are_the_whole_and_json_is_read_back`, `what_was_cut_in_json_is_an_error`, `counters_that_nobody_counted_are_not_read`, `e30_an_evaluation_of_ones_own_is_given_each_batch` |
//! | E31 | outputs that are no probabilities are no classifier's; each of several outputs has its evaluations; a listener evaluates; long series are evaluated whole, not in segments; examples have ids, by which the wrong ones are found | `a_network_of_numbers_is_no_classifier`, `a_network_says_which_examples_it_took_for_what`, `each_of_several_outputs_has_its_evaluations`, `e31_a_listener_evaluates_every_so_many_steps_or_passes`, `evaluations_see_every_batch_once` |

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ndgc::train::{
    Activation, ArrayDataSetIterator, ArrayType, AsyncDataSetIterator, Convolution2D, CsvDataSetIterator, CsvLabels,
    DataIterator, DataSet, Dense, ElementWiseVertex, Evaluation, EvaluativeListener, FnDataIterator, GlobalPooling,
    Gru, IEvaluation, InferenceMode, InputType, InvocationType, Layer, LayerConfig, ListDataIterator,
    ListDataSetIterator, Loss, Lstm, MultiDataSet, Network, NetworkConfig, OutputLayer, ParallelInference,
    ParallelWrapper, Pass, PoolingType, RegressionEvaluation, Roc, SimpleRnn, Subsampling, Updater, WorkspaceMode,
};
use ndgc::{DType, Device, Result, SimConfig, Tensor, Workspace, WorkspaceConfig, gc};

use super::both::both;
use super::network_layers::{MODES, numbers, one_hot};
use super::network_training::Folder;
use crate::common::{check, in_own_process};
use crate::counting::peak;

/// The rows of the table: number, and what shows it.
fn table() -> Vec<(&'static str, &'static str)> {
    let rows = include_str!("numbered.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let cells = rows.map(|row| row.trim_end_matches(" |").split(" | ").collect::<Vec<&str>>());
    let cells = cells.inspect(|cells| assert_eq!(cells.len(), 3, "{cells:?}"));
    cells.map(|cells| (cells[0], cells[2])).filter(|(number, _)| *number != "number").collect()
}

/// The names of the tests in a folder of the tests.
fn tests_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            tests_in(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&entry).unwrap();
            // Between the attribute and the function there may be another one.
            let after = text.split("#[test]\n").skip(1).filter_map(|after| after.split("fn ").nth(1));
            found.extend(after.filter_map(|name| name.split('(').next()).map(str::to_owned));
        }
    }
}

#[test]
fn each_number_of_the_reference_has_a_test_or_a_reason() {
    let kinds = [('R', 17..=28), ('N', 1..=16), ('I', 1..=11), ('P', 1..=14), ('E', 1..=31)];
    let all = kinds.into_iter().flat_map(|(kind, numbers)| numbers.map(move |number| format!("{kind}{number}")));
    assert_eq!(table().iter().map(|(number, _)| *number).collect::<Vec<_>>(), all.collect::<Vec<_>>());
    let (tests, mut found) = (Path::new(env!("CARGO_MANIFEST_DIR")), BTreeSet::new());
    ["train", "workspace", "it", "steady"].iter().for_each(|folder| tests_in(&tests.join(folder), &mut found));
    assert!(found.contains("each_number_of_the_reference_has_a_test_or_a_reason"), "{found:?}");
    for (number, shown) in table() {
        let names: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || shown.starts_with("not here: "), "{number} has neither a test nor a reason");
        names.iter().for_each(|name| assert!(found.contains(*name), "{number}: there is no test {name}"));
        // A test that is named by its number stands in the row.
        let own = format!("{}_", number.to_lowercase());
        for name in found.iter().filter(|name| name.starts_with(&own)) {
            assert!(names.contains(&name.as_str()), "{name} is not in the row of {number}");
        }
    }
}

pub(super) fn of(all: &[f64], dims: &[usize]) -> Tensor {
    Tensor::from_slice(all, dims, &Device::Cpu).unwrap()
}

fn values(array: &Tensor) -> Vec<f64> {
    array.to_vec::<f64>().unwrap()
}

/// Equal but for the order in which sums were rounded.
pub(super) fn near(ours: &[f64], wanted: &[f64]) -> bool {
    ours.len() == wanted.len() && ours.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12)
}

fn data(features: Tensor, labels: Tensor) -> DataSet {
    DataSet::new(features, labels).unwrap()
}

fn config(mode: WorkspaceMode) -> NetworkConfig {
    let config = NetworkConfig::builder().data_type(DType::F64).seed(5).updater(Updater::adam(0.05));
    config.training_workspace_mode(mode).inference_workspace_mode(mode)
}

/// A classifier of rows of four numbers, and batches for it.
fn classifier(mode: WorkspaceMode, classes: usize) -> (Network, ListDataSetIterator) {
    let config = config(mode).input_type(InputType::feed_forward(4)).layer(Dense::new(5).activation(Activation::Tanh));
    let batches = [6, 3, 6].map(|n| data(numbers(&[n, 4]), one_hot(&[n, classes])));
    let net = config.layer(OutputLayer::new(classes, Loss::Mcxent)).build().unwrap();
    (net, ListDataSetIterator::new(batches.into()))
}

#[test]
fn r22_the_guides_evaluations_look_at_one_pass_together() {
    both(|| {
        for mode in MODES {
            let (net, batches) = classifier(mode, 2);
            let (mut evaluation, mut roc) = (Evaluation::new(2), Roc::new(0).unwrap());
            net.do_evaluation(batches.clone(), &mut [&mut evaluation, &mut roc]).unwrap();
            let (mut wanted, mut curve) = (Evaluation::new(2), Roc::default());
            for batch in batches {
                let batch = batch.unwrap();
                let y = net.output(&batch.features).unwrap();
                let pair: [&mut dyn IEvaluation; 2] = [&mut wanted, &mut curve];
                pair.into_iter().for_each(|one| one.eval(&batch.labels, &y, None).unwrap());
            }
            assert_eq!((evaluation.rows(), &evaluation, &roc), (15, &wanted, &curve), "{mode:?}");
            // The guide's argument is the number of outputs: of two, steps to 0, 0.5 and 1.
            let mut coarse = Roc::new(2).unwrap();
            let (net, batches) = classifier(mode, 3);
            let error = net.do_evaluation(batches, &mut [&mut coarse as &mut dyn IEvaluation]).unwrap_err();
            assert!(error.to_string().contains("RocMultiClass"), "{error}");
        }
    });
}

/// In batches of ten thousand: bytes of the heap, of arrays, and requests for arrays.
#[test]
fn r24_a_million_rows_need_the_memory_of_one_batch() {
    const ROWS: usize = 10_000;
    let body = || {
        let rows = |columns: usize| Tensor::rand(0f32, 1., (ROWS, columns), &Device::Cpu).unwrap();
        let classes = Tensor::from_vec((0..ROWS as u32).map(|i| i * 7 % 10).collect(), ROWS, &Device::Cpu).unwrap();
        let halves = Tensor::from_vec((0..ROWS).map(|i| (i % 2) as f32).collect(), (ROWS, 1), &Device::Cpu).unwrap();
        let kinds: [(Box<dyn IEvaluation>, Tensor, Tensor); 3] = [
            (Box::new(Evaluation::new(10)), classes, rows(10)),
            (Box::new(Roc::new(100).unwrap()), halves, rows(1)),
            (Box::new(RegressionEvaluation::default()), rows(3), rows(3)),
        ];
        for (kind, (mut one, labels, predictions)) in kinds.into_iter().enumerate() {
            let mut most =
                |batches: usize| peak(|| (0..batches).for_each(|_| one.eval(&labels, &predictions, None).unwrap()));
            let arrays = || {
                gc::collect(); // those of the kind before
                let memory = Device::Cpu.memory();
                (memory.hits + memory.misses, memory.active)
            };
            let before = arrays();
            most(10);
            let settled = most(10);
            // Beside what the runtime may ask for itself now and then.
            assert!(most(80) < settled + 4096, "of kind {kind}");
            assert_eq!(arrays(), before, "no array was asked for, of kind {kind}");
        }
    };
    in_own_process("train::numbered::r24_a_million_rows_need_the_memory_of_one_batch", || both(body));
}

#[test]
fn r25_the_table_of_workspaces_has_a_line_for_each() {
    both(|| {
        let (mut net, batches) = classifier(WorkspaceMode::Separate, 3);
        net.fit(batches).unwrap();
        let text = Workspace::allocation_statistics();
        assert!(text.contains("Workspace name: Allocated / external (spilled) / external (pinned)\n"), "{text}");
        assert!(net.workspaces().len() > 2);
        for space in net.workspaces() {
            let stats = space.stats();
            let figures = format!("({:>11} / {:>11} / {:>11})", stats.size, stats.spilled, stats.pinned);
            let line = text.lines().find(|line| line.starts_with(&format!("{} ", space.id()))).unwrap();
            assert!(line.ends_with(&figures), "{line}, and not {figures}");
        }
    });
}

/// The blocks of code in a text that are run: of a page, or of the comments of a source file.
fn code(text: &str) -> String {
    let (mut code, mut runs) = (String::new(), None);
    for line in text.lines().map(str::trim_start) {
        let line = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).unwrap_or(line).trim_start();
        runs = match (line.strip_prefix("```"), runs) {
            (Some(kind), None) => Some(kind.is_empty() || kind == "rust"),
            (Some(_), Some(_)) => None,
            (None, runs) => {
                code += if runs == Some(true) { line } else { "" };
                code.push('\n');
                runs
            }
        };
    }
    code
}

/// What the samples of DL4J's guides on workspaces and on memory call, in a block that is run.
#[test]
fn r28_the_samples_of_the_guides_are_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let pages = ["docs/guide.md", "docs/train.md", "docs/nd4j.md"];
    let library = read("src/lib.rs");
    assert!(pages.iter().all(|page| library.contains(&format!("#[doc = include_str!(\"../{page}\")]"))));
    let sources = [
        "src/train/network/config.rs",
        "src/train/network/workspaces.rs",
        "src/train/parallel/wrapper.rs",
        "src/train/parallel/inference.rs",
        "src/train/data/prefetched.rs",
        "src/memory/periodic.rs",
    ];
    let all: String = pages.iter().chain(&sources).map(|path| code(&read(path))).collect();
    for call in [
        ".training_workspace_mode(WorkspaceMode::Separate)",
        ".inference_workspace_mode(WorkspaceMode::Single)",
        "set_auto_gc_window(",
        "toggle_periodic_gc(false)",
        ".prefetch_buffer(8)",
        ".workers(2)",
        ".averaging_frequency(5)",
        ".report_score_after_averaging(false)",
        ".workspace_mode(WorkspaceMode::Single)",
        "ParallelInference::builder(",
        "AsyncDataSetIterator::with_prefetch(",
        "AsyncShieldDataSetIterator::new(",
        ".do_evaluation(batches, &mut [&mut evaluation, &mut roc])",
        "destroy_all_workspaces_for_current_thread()",
        "Err(Error::LeakedArray(_))",
        ".detach()",
        "mgr.create(ArrayType::Activations,",
        ".leverage_to(ArrayType::ActivationGrad,",
        "fn backprop_gradient(",
        "LayerWorkspaceMgr::no_workspaces()",
        ".set_limit(",
        ".policy_location(LocationPolicy::Mmap)",
        ".policy_mirroring(MirroringPolicy::HostOnly)",
        ".unsafe_duplication()",
    ] {
        assert!(all.contains(call), "no block that is run has {call}");
    }
}

#[test]
fn n1_a_graph_of_convolutions_has_its_gradients_and_leaves_nothing_open() {
    both(|| {
        let batch = MultiDataSet::new(vec![numbers(&[2, 1, 6, 6])], vec![one_hot(&[2, 3])]).unwrap();
        let convolution = || Convolution2D::new(2, (3, 3));
        let mut expected = None;
        for mode in MODES {
            let net = config(mode)
                .validate_workspaces(true)
                .add_input("image", InputType::convolutional(1, 6, 6))
                .add_layer("a", convolution().activation(Activation::Tanh), &["image"])
                .add_layer("b", convolution(), &["image"])
                .add_vertex("sum", ElementWiseVertex::Add, &["a", "b"])
                .add_layer("pool", Subsampling::new(PoolingType::Max, (2, 2)), &["sum"])
                .add_layer("out", OutputLayer::new(3, Loss::Mcxent), &["pool"])
                .set_outputs(&["out"])
                .build()
                .unwrap();
            let (gradients, score) = net.compute_gradient_and_score(&batch).unwrap();
            assert!(gradients.iter().all(|(_, gradient)| !gradient.is_attached()), "{mode:?}");
            assert!(Workspace::current().is_none() && net.workspaces().iter().all(|space| !space.is_open()));
            let all = gradients.iter().flat_map(|(_, gradient)| values(gradient)).chain([score]);
            let all: Vec<f64> = all.collect();
            assert!(near(&all, expected.get_or_insert_with(|| all.clone())), "{mode:?}");
        }
    });
}

/// What DL4J's preprocessor of that test does.
#[derive(Debug)]
struct Copies;

impl Layer for Copies {
    fn kind(&self) -> &str {
        "Copies"
    }
    fn output_type(&self, input: InputType) -> Result<InputType> {
        Ok(input)
    }
    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        pass.workspaces().dup(ArrayType::Activations, x)
    }
}

#[test]
fn n3_a_layer_that_copies_into_activations_changes_nothing() {
    both(|| {
        let batch = MultiDataSet::from(data(numbers(&[5, 4]), one_hot(&[5, 3])));
        let hidden = || Dense::new(3).activation(Activation::Tanh);
        let out = || OutputLayer::new(3, Loss::Mcxent);
        for mode in MODES {
            let start = || config(mode).validate_workspaces(true);
            let row = || start().input_type(InputType::feed_forward(4)).layer(hidden());
            let graph = || start().add_input("in", InputType::feed_forward(4)).add_layer("a", hidden(), &["in"]);
            let copied = graph().add_layer("copy", Copies, &["a"]).add_layer("out", out(), &["copy"]);
            let pairs = [
                [row().layer(Copies).layer(out()), row().layer(out())],
                [copied.set_outputs(&["out"]), graph().add_layer("out", out(), &["a"]).set_outputs(&["out"])],
            ];
            for pair in pairs {
                let [found, wanted] = pair.map(|config| {
                    let net = config.build().unwrap();
                    let mut all: Vec<f64> = Vec::new();
                    for training in [false, true] {
                        let made = net.feed_forward(&batch.features, training).unwrap();
                        assert!(made.iter().all(|array| !array.is_attached()), "{mode:?}");
                        all.extend(values(made.last().unwrap()));
                    }
                    let (gradients, score) = net.compute_gradient_and_score(&batch).unwrap();
                    all.extend(gradients.iter().flat_map(|(_, gradient)| values(gradient)).chain([score]));
                    all
                });
                assert!(near(&found, &wanted), "{mode:?}: {found:?} and {wanted:?}");
            }
        }
    });
}

#[test]
fn n4_each_recurrent_layer_goes_on_from_step_to_step() {
    both(|| {
        for layer in [LayerConfig::from(Lstm::new(4)), Gru::new(4).into(), SimpleRnn::new(4).into()] {
            for mode in MODES {
                let net = config(mode).input_type(InputType::recurrent(3)).layer(layer.clone());
                let net = net.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
                let x = numbers(&[2, 3, 3]);
                let whole = net.output(&x).unwrap();
                for step in 0..3 {
                    let y = net.rnn_time_step(&x.get_on_dim(2, step).unwrap()).unwrap();
                    let wanted = values(&whole.get_on_dim(2, step).unwrap());
                    assert!(near(&values(&y), &wanted), "{layer:?} in {mode:?}, step {step}");
                }
            }
        }
    });
}

#[test]
fn n9_a_graph_writes_its_output_into_the_callers_workspace() {
    both(|| {
        for mode in MODES {
            let net = config(mode).add_input("in", InputType::feed_forward(4));
            let net = net.add_layer("a", Dense::new(3), &["in"]).add_layer("b", Dense::new(3), &["in"]);
            let net = net.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["a", "b"]).set_outputs(&["out"]);
            let (net, x) = (net.build().unwrap(), numbers(&[5, 4]));
            let wanted = values(&net.output(&x).unwrap());
            for _ in 0..3 {
                let cycle = Workspace::enter("EXTERNAL", &WorkspaceConfig::default()).unwrap();
                let y = net.output_in(&x, &cycle).unwrap();
                assert!(y.leverage_to("EXTERNAL").unwrap().is_same(&y) && values(&y) == wanted, "{mode:?}");
                drop(cycle);
                assert!(!Workspace::find("EXTERNAL").unwrap().is_open() && !y.is_in_scope());
            }
        }
    });
}

#[test]
fn n12_a_graph_with_two_inputs_trains_and_is_evaluated() {
    both(|| {
        for mode in MODES {
            let net = config(mode).add_input("a", InputType::feed_forward(4));
            let net = net.add_input("b", InputType::recurrent(3)).add_layer("lstm", Lstm::new(4), &["b"]);
            let net = net.add_layer("steps", GlobalPooling(PoolingType::Avg), &["lstm"]);
            let net = net.add_layer("out", OutputLayer::new(2, Loss::Mcxent), &["a", "steps"]).set_outputs(&["out"]);
            let mut net = net.build().unwrap();
            let features = vec![numbers(&[6, 4]), numbers(&[6, 3, 5])];
            let batch = MultiDataSet::new(features, vec![one_hot(&[6, 2])]).unwrap();
            let first = net.score_batch(&batch, false).unwrap();
            net.fit_epochs(ListDataIterator::new(vec![batch.clone(); 3]), 20).unwrap();
            assert!(net.score_batch(&batch, false).unwrap() < first, "{mode:?}: it learned");
            let found = net.evaluate(ListDataIterator::new(vec![batch.clone(); 3])).unwrap();
            let mut wanted = Evaluation::default();
            wanted.eval(&batch.labels[0], &net.outputs(&batch.features, &[]).unwrap()[0], None).unwrap();
            assert_eq!((found.rows(), found.accuracy()), (18, wanted.accuracy()), "{mode:?}");
        }
    });
}

/// So many batches; all numbers of one are its own.
fn source(count: usize) -> impl DataIterator<DataSet> + Send + 'static {
    FnDataIterator::new(move |n| {
        let x = Tensor::full(n as f64, (1 + n % 7, 5), &Device::Cpu)?;
        Ok((n < count).then_some(DataSet::new(x.clone(), x)?))
    })
}

#[track_caller]
fn assert_batch(batch: &DataSet, n: usize) {
    assert!(values(&batch.features).iter().all(|&x| x == n as f64), "batch {n} is whole");
}

#[test]
fn i2_a_reset_in_the_middle_begins_with_the_first() {
    both(|| {
        for prefetch in [2, 4, 8] {
            let mut batches = AsyncDataSetIterator::with_prefetch(source(100), prefetch).unwrap();
            let mut taken = 0;
            for most in [50, usize::MAX] {
                for (n, batch) in (&mut batches).take(most).enumerate() {
                    assert_batch(&batch.unwrap(), n);
                    taken += 1;
                }
                batches.reset().unwrap();
            }
            assert_eq!(taken, 150);
        }
    });
}

#[test]
fn i3_who_is_slow_gets_all() {
    both(|| {
        let batches = AsyncDataSetIterator::with_prefetch(source(100), 2).unwrap();
        let mut count = 0;
        for (n, batch) in batches.enumerate() {
            std::thread::sleep(Duration::from_millis(1));
            assert_batch(&batch.unwrap(), n);
            count += 1;
        }
        assert_eq!(count, 100);
    });
}

#[test]
fn i6_a_ring_of_a_device_and_what_is_detached_from_it_are_whole() {
    both(|| {
        let sim = Device::sim(SimConfig::default());
        let device = sim.clone();
        let source = FnDataIterator::new(move |n| {
            let x = Tensor::full(n as f64, (4, 5), &device)?;
            Ok((n < 30).then_some(DataSet::new(x.clone(), x)?))
        });
        let mut batches = AsyncDataSetIterator::on_device(&sim, source, 2).unwrap();
        let mut kept = Vec::new();
        for _ in 0..2 {
            for (n, batch) in (&mut batches).enumerate() {
                let batch = batch.unwrap();
                assert!(batch.features.is_attached() && *batch.features.device() == sim);
                kept.push((n, batch.detach().unwrap()));
            }
            batches.reset().unwrap();
        }
        drop(batches);
        assert_eq!(kept.len(), 60);
        kept.iter().for_each(|(n, batch)| assert_batch(batch, *n));
        drop(kept);
        check(&sim);
    });
}

#[test]
fn i10_batches_of_a_file_are_made_ahead_in_order() {
    both(|| {
        let folder = Folder::new("csv");
        let lines: String = (0..50).map(|n| format!("{n},{}\n", n % 3)).collect();
        fs::write(folder.0.join("rows.csv"), lines).unwrap();
        let labels = CsvLabels::Class { column: 1, classes: 3 };
        let file = CsvDataSetIterator::new(folder.0.join("rows.csv"), labels, 4).unwrap();
        let mut batches = AsyncDataSetIterator::with_prefetch(file, 2).unwrap();
        for (most, wanted) in [(3, 12), (99, 50), (99, 50)] {
            let some = (&mut batches).take(most).map(|batch| batch.unwrap().features.to_vec::<f32>().unwrap());
            let rows: Vec<f32> = some.collect::<Vec<_>>().concat();
            assert_eq!(rows, (0..wanted).map(|n| n as f32).collect::<Vec<_>>());
            batches.reset().unwrap();
        }
    });
}

/// A served network answers in each mode, with one worker and with two, as it does alone.
fn served(net: &Network, inputs: &[(Tensor, Option<Tensor>)]) {
    let alone = |(x, mask): &(Tensor, Option<Tensor>)| values(&net.output_masked(x, mask.as_ref()).unwrap());
    let wanted: Vec<Vec<f64>> = inputs.iter().map(alone).collect();
    for mode in [InferenceMode::Sequential, InferenceMode::Batched, InferenceMode::InPlace] {
        for workers in [1, 2] {
            let served = ParallelInference::builder(net.replica().unwrap()).inference_mode(mode).workers(workers);
            let served = served.build().unwrap();
            std::thread::scope(|scope| {
                for caller in 0..4 {
                    let (served, wanted) = (&served, &wanted);
                    scope.spawn(move || {
                        for at in (0..3 * inputs.len()).map(|turn| (caller + turn) % inputs.len()) {
                            let (x, mask) = &inputs[at];
                            let y =
                                served.outputs(std::slice::from_ref(x), std::slice::from_ref(mask)).unwrap().remove(0);
                            assert!(!y.is_attached() && near(&values(&y), &wanted[at]), "{mode:?}, input {at}");
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn p3_series_and_images_of_all_sizes_are_answered_as_alone() {
    both(|| {
        for mode in MODES {
            let series = config(mode).input_type(InputType::recurrent(3)).layer(Lstm::new(4));
            let series = series.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            served(&series, &[[1, 4], [2, 7], [3, 4], [2, 2]].map(|[n, t]| (numbers(&[n, 3, t]), None)));
            let images = config(mode).input_type(InputType::convolutional(1, 6, 6));
            let images = images.layer(Convolution2D::new(3, (3, 3))).layer(GlobalPooling(PoolingType::Avg));
            let images = images.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            served(&images, &[[1, 6], [2, 9], [3, 6], [1, 7]].map(|[n, h]| (numbers(&[n, 1, h, 7]), None)));
        }
    });
}

#[test]
fn p5_masked_series_are_answered_as_alone() {
    both(|| {
        for mode in MODES {
            let net = config(mode).input_type(InputType::recurrent(3)).layer(Lstm::new(4));
            let net = net.layer(GlobalPooling(PoolingType::Max)).layer(OutputLayer::new(2, Loss::Mcxent));
            let mask = of(&[1., 1., 1., 1., 0., 1., 1., 0., 0., 0.], &[2, 5]);
            let inputs = [(2, 5, Some(mask)), (1, 5, None), (1, 4, Some(of(&[1., 1., 1., 0.], &[1, 4]))), (3, 4, None)];
            served(&net.build().unwrap(), &inputs.map(|(n, t, mask)| (numbers(&[n, 3, t]), mask)));
        }
    });
}

#[test]
fn p9_in_place_two_calls_are_equal_and_an_update_is_seen() {
    both(|| {
        for mode in MODES {
            let [first, second] = [1, 2].map(|seed| {
                let config = config(mode).seed(seed).input_type(InputType::feed_forward(4));
                config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap()
            });
            let x = numbers(&[3, 4]);
            let [old, new] = [&first, &second].map(|net| values(&net.output(&x).unwrap()));
            assert_ne!(old, new);
            let served = ParallelInference::builder(first).inference_mode(InferenceMode::InPlace).build().unwrap();
            let ask = || values(&served.output(&x).unwrap());
            assert!(near(&ask(), &old) && near(&ask(), &old), "{mode:?}");
            served.update_model(second);
            let there = std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
            assert!(near(&there, &new) && near(&ask(), &new), "{mode:?}");
        }
    });
}

/// Pictures whose left or right half is brighter.
fn halves(n: usize) -> DataSet {
    let pixel = |i: usize| ((i * 37 + 11) % 23) as f64 / 46. + f64::from((i % 6 < 3) == ((i / 36).is_multiple_of(2)));
    let x: Vec<f64> = (0..36 * n).map(pixel).collect();
    let y: Vec<f64> = (0..2 * n).map(|i| f64::from(i / 2 % 2 == i % 2)).collect();
    data(of(&x, &[n, 1, 6, 6]), of(&y, &[n, 2]))
}

#[test]
fn p10_two_workers_train_a_convolutional_network() {
    both(|| {
        let net = config(WorkspaceMode::Enabled).input_type(InputType::convolutional(1, 6, 6));
        let net = net.layer(Convolution2D::new(4, (3, 3)).activation(Activation::Tanh));
        let net = net.layer(Subsampling::new(PoolingType::Max, (2, 2))).layer(OutputLayer::new(2, Loss::Mcxent));
        let wrapper = ParallelWrapper::builder(net.build().unwrap()).prefetch_buffer(24).workers(2);
        let mut wrapper = wrapper.averaging_frequency(3).report_score_after_averaging(false).build().unwrap();
        for epoch in 0..12 {
            wrapper.fit(ArrayDataSetIterator::new(halves(96), 8).unwrap().shuffled(epoch).unwrap()).unwrap();
        }
        let net = wrapper.into_model().unwrap();
        let accuracy = net.evaluate(ArrayDataSetIterator::new(halves(40), 16).unwrap()).unwrap().accuracy();
        assert!(accuracy > 0.9, "{accuracy}");
    });
}

#[test]
fn p14_one_seed_is_one_network() {
    both(|| {
        let params = |seed: u64, mode: WorkspaceMode| -> Vec<f64> {
            let net = config(mode).seed(seed).input_type(InputType::recurrent(3)).layer(Lstm::new(4));
            let net = net.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
            net.params().flat_map(|(_, var)| values(&var.as_detached_tensor())).collect()
        };
        let first = params(1, WorkspaceMode::None);
        MODES.into_iter().for_each(|mode| assert_eq!(params(1, mode), first));
        assert_ne!(params(2, WorkspaceMode::None), first);
    });
}

/// The mean distance of each batch; parts are merged by joining their lists, as one of DL4J's policies does.
#[derive(Default)]
struct Distances(Vec<f64>);

impl IEvaluation for Distances {
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, _mask: Option<&Tensor>) -> Result<()> {
        self.0.push(predictions.sub(labels)?.abs()?.mean_all()?.to_scalar::<f64>()?);
        Ok(())
    }
    fn reset(&mut self) {
        self.0.clear();
    }
    fn stats(&self) -> String {
        format!("{:?}", self.0)
    }
    fn to_json(&self) -> String {
        self.stats()
    }
}

#[test]
fn e30_an_evaluation_of_ones_own_is_given_each_batch() {
    both(|| {
        for mode in MODES {
            let (net, batches) = classifier(mode, 2);
            let (mut own, mut beside) = (Distances::default(), Evaluation::default());
            net.do_evaluation(batches.clone(), &mut [&mut own, &mut beside]).unwrap();
            assert_eq!((own.0.len(), beside.rows()), (3, 15));
            let mut joined = Distances::default();
            for batch in batches {
                let mut part = Distances::default();
                net.do_evaluation(ListDataSetIterator::new(vec![batch.unwrap()]), &mut [&mut part]).unwrap();
                joined.0.append(&mut part.0);
            }
            assert_eq!(joined.stats(), own.stats(), "{mode:?}");
        }
    });
}

#[test]
fn e31_a_listener_evaluates_every_so_many_steps_or_passes() {
    both(|| {
        for mode in MODES {
            let (mut net, batches) = classifier(mode, 2);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let [steps, starts, ends] = [(); 3].map(|()| Arc::clone(&seen));
            let new = |every, when| EvaluativeListener::new(batches.clone(), every, when);
            net.add_listener(new(2, InvocationType::IterationEnd).with_callback(move |net, found| {
                steps.lock().unwrap().push(("step", net.iteration(), found.stats()));
                Ok(())
            }));
            net.add_listener(new(1, InvocationType::EpochStart).with_callback(move |net, found| {
                starts.lock().unwrap().push(("start", net.epoch(), found.stats()));
                Ok(())
            }));
            let errors = new(2, InvocationType::EpochEnd).with_evaluation(RegressionEvaluation::default());
            net.add_listener(errors.with_callback(move |net, found| {
                assert_eq!(found.count(1), 15, "each time, it begins anew");
                ends.lock().unwrap().push(("end", net.epoch(), String::new()));
                Ok(())
            }));
            let first = net.evaluate(batches.clone()).unwrap().stats();
            net.fit_epochs(batches.clone(), 4).unwrap();
            let seen = seen.lock().unwrap();
            let told = |kind: &str| seen.iter().filter(|one| one.0 == kind).map(|one| one.1).collect::<Vec<u64>>();
            assert_eq!(told("step"), [2, 4, 6, 8, 10, 12]);
            assert_eq!((told("start"), told("end")), (vec![0, 1, 2, 3], vec![2, 4]));
            assert_eq!(seen[0], ("start", 0, first));
            let last = seen.iter().rfind(|one| one.0 == "step").unwrap();
            assert_eq!(last.2, net.evaluate(batches).unwrap().stats(), "{mode:?}");
        }
    });
}
