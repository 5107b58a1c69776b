//! Numbers of settings: those by which no step could be made are refused with their name, value and layer.

use ndgc::train::{
    BatchNormalization, DataSet, Dense, GradientNormalization, InputType, Layer, LayerConfig, LayerNormalization,
    LayerSettings, Loss, Moments, Network, NetworkConfig, OutputLayer, Regularization, Schedule, ScheduleKind,
    ScheduleType, Updater,
};
use ndgc::{Device, Error, Result, Tensor};

use super::both::both;
use crate::common::assert_names_its_line;

const NAN: f64 = f64::NAN;
const INFINITY: f64 = f64::INFINITY;

fn base() -> NetworkConfig {
    NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(Dense::new(2))
}

/// The network of these settings, and one with a layer of these settings.
fn built(of_network: NetworkConfig, of_layer: LayerSettings) -> [Result<()>; 2] {
    let out = || OutputLayer::new(2, Loss::Mse);
    [of_network.layer(out()), base().layer(out().with(of_layer))].map(|config| config.build().map(drop))
}

#[track_caller]
fn refused(results: [Result<()>; 2], name: &str, says: &str) {
    for (result, place) in results.into_iter().zip(["; it must be ", " in layer 1 (OutputLayer); it must be "]) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{name} is {says}{place}")), "{name}, {says}{place}: {error}");
        assert_names_its_line(&error);
    }
}

fn updated(updater: Updater) -> [Result<()>; 2] {
    built(base().updater(updater), LayerSettings::new().updater(updater))
}

fn scheduled(initial: f64, kind: ScheduleKind) -> Updater {
    Updater::sgd(Schedule::new(ScheduleType::Epoch, initial, kind))
}

#[test]
fn numbers_of_updaters_that_make_no_step_are_refused() {
    both(|| {
        for rate in [-0.1, NAN, INFINITY] {
            let all = [Updater::sgd(rate), Updater::nesterovs(rate, 0.9), Updater::adam(rate), Updater::ada_grad(rate)];
            for updater in all.into_iter().chain([Updater::adam_w(rate, 0.1), Updater::rms_prop(rate)]) {
                refused(updated(updater), "learning rate", &rate.to_string());
            }
        }
        let moments = Moments::new(0.1);
        let cases = [
            (Updater::nesterovs(0.1, -0.5), "momentum", "-0.5"),
            (Updater::nesterovs(0.1, 1.5), "momentum", "1.5"),
            (Updater::Adam(Moments { beta1: 1., ..moments }), "beta1", "1"),
            (Updater::AmsGrad(Moments { beta2: 1., ..moments }), "beta2", "1"),
            (Updater::Nadam(Moments { beta2: NAN, ..moments }), "beta2", "NaN"),
            (Updater::AdaMax(Moments { beta1: -0.1, ..moments }), "beta1", "-0.1"),
            (Updater::AdamW { moments, decay: -1. }, "decay", "-1"),
            (Updater::AdamW { moments: Moments { epsilon: -1., ..moments }, decay: 0. }, "epsilon", "-1"),
            (Updater::RmsProp { rate: 0.1.into(), decay: 2., epsilon: 1e-8 }, "decay", "2"),
            (Updater::AdaGrad { rate: 0.1.into(), epsilon: INFINITY }, "epsilon", "inf"),
            (Updater::AdaDelta { rho: NAN, epsilon: 1e-6 }, "rho", "NaN"),
            (scheduled(-1., ScheduleKind::Ramp { length: 3 }), "learning rate", "-1"),
            (scheduled(0.1, ScheduleKind::Step { decay: -0.5, step: 1 }), "decay of the learning rate", "-0.5"),
            (scheduled(0.1, ScheduleKind::Exponential { gamma: NAN }), "gamma of the learning rate", "NaN"),
            (scheduled(0.1, ScheduleKind::Poly { power: -1., max: 5 }), "power of the learning rate", "-1"),
            (scheduled(0.1, ScheduleKind::Inverse { gamma: -1., power: 2. }), "gamma of the learning rate", "-1"),
            (scheduled(0.1, ScheduleKind::Sigmoid { gamma: INFINITY, step: 2 }), "gamma of the learning rate", "inf"),
        ];
        for (updater, name, says) in cases {
            refused(updated(updater), name, says);
        }
        let cycle = ScheduleKind::Cycle { max: NAN, length: 6, annealing: 2, decay: 0.1 };
        refused(updated(scheduled(0.1, cycle)), "max of the learning rate", "NaN");
        let of_biases = LayerSettings::new().bias_updater(Updater::sgd(-1.));
        refused(built(base().bias_updater(Updater::sgd(-1.)), of_biases), "learning rate", "-1 of biases");
    });
}

#[test]
fn penalties_thresholds_and_segments_that_make_no_step_are_refused() {
    both(|| {
        use GradientNormalization as G;
        for wrong in [-0.5, NAN, INFINITY] {
            let of = |penalty: Regularization| LayerSettings::new().regularization(penalty);
            let (none, says) = (Regularization::default(), wrong.to_string());
            refused(built(base().l1(wrong), of(Regularization { l1: wrong, ..none })), "l1", &says);
            refused(built(base().l2(wrong), of(Regularization { l2: wrong, ..none })), "l2", &says);
            let penalty = Regularization { weight_decay: wrong, ..none };
            refused(built(base().weight_decay(wrong, false), of(penalty)), "weight_decay", &says);
            let of_biases = LayerSettings::new().bias_regularization(penalty);
            let results = built(base().bias_regularization(penalty), of_biases);
            refused(results, "weight_decay", &format!("{says} of biases"));
        }
        for clips in [G::ClipElementWiseAbsoluteValue, G::ClipL2PerLayer, G::ClipL2PerParamType] {
            for wrong in [-1., NAN] {
                let of_layer = LayerSettings::new().gradient_normalization(clips, wrong);
                let results = built(base().gradient_normalization(clips, wrong), of_layer);
                refused(results, "threshold of gradient_normalization", &wrong.to_string());
            }
        }
        let error = base().tbptt_length(0).layer(OutputLayer::new(2, Loss::Mse)).build().unwrap_err();
        assert!(error.to_string().contains("tbptt_length is 0; it must be at least 1"), "{error}");
        assert_names_its_line(&error);
    });
}

#[test]
fn numbers_of_normalisations_that_make_none_are_refused() {
    both(|| {
        let build = |layer: LayerConfig| base().layer(layer).layer(OutputLayer::new(2, Loss::Mse)).build().map(drop);
        let batch = BatchNormalization::new;
        for wrong in [-0.5, NAN, INFINITY] {
            let cases: [(LayerConfig, &str); 3] = [
                (batch().decay(wrong).into(), "decay"),
                (batch().epsilon(wrong).into(), "epsilon"),
                (LayerNormalization::new().epsilon(wrong).into(), "epsilon"),
            ];
            for (layer, name) in cases {
                let error = build(layer).unwrap_err();
                assert!(error.to_string().contains(&format!("{name} is {wrong}; it must be ")), "{error}");
                assert_names_its_line(&error);
            }
        }
        for decay in [0., 1.] {
            build(batch().decay(decay).epsilon(0.).into()).unwrap();
        }
    });
}

/// What stands still, or has no end, is no fault.
#[test]
fn numbers_at_the_ends_of_their_ranges_are_taken() {
    both(|| {
        use GradientNormalization as G;
        let moments = Moments { beta1: 0., beta2: 0., epsilon: 0., ..Moments::new(0.) };
        let updaters = [
            Updater::sgd(0.),
            Updater::nesterovs(0.1, 0.),
            Updater::nesterovs(0.1, 1.),
            Updater::Adam(moments),
            Updater::AdamW { moments, decay: 0. },
            Updater::RmsProp { rate: 0.1.into(), decay: 1., epsilon: 0. },
            Updater::AdaDelta { rho: 0., epsilon: 1e-6 },
            Updater::NoOp,
            scheduled(0.1, ScheduleKind::Sigmoid { gamma: -1., step: 3 }),
            scheduled(0.1, ScheduleKind::Inverse { gamma: 0., power: -1. }),
        ];
        for result in updaters.into_iter().flat_map(updated) {
            result.unwrap();
        }
        let zero = Regularization { l1: 0., l2: 0., weight_decay: 0., apply_rate: true };
        for (normalization, threshold) in [(G::ClipL2PerLayer, 0.), (G::ClipL2PerLayer, INFINITY), (G::None, NAN)] {
            let of_layer = LayerSettings::new().regularization(zero).gradient_normalization(normalization, threshold);
            let config = base().l1(0.).l2(0.).weight_decay(0., true).tbptt_length(1);
            for result in built(config.gradient_normalization(normalization, threshold), of_layer) {
                result.unwrap();
            }
        }
    });
}

/// DL4J's batch normalisation has the updater of weights, and no penalties.
#[test]
fn gains_are_no_biases() {
    both(|| {
        let built = |l2: f64| {
            let penalty = Regularization { l2, ..Regularization::default() };
            let config = NetworkConfig::builder().seed(1).updater(Updater::NoOp).bias_updater(Updater::sgd(0.1));
            let config = config.bias_regularization(penalty).input_type(InputType::feed_forward(3));
            let config = config.layer(BatchNormalization::new()).layer(LayerNormalization::new());
            config.layer(OutputLayer::new(2, Loss::Mse)).build().unwrap()
        };
        let x = Tensor::new([[1f32, 2., 3.], [3., -1., 0.5], [-2., 0., 1.]], &Device::Cpu).unwrap();
        let y = Tensor::new([[1f32, 0.], [0., 2.], [3., 1.]], &Device::Cpu).unwrap();
        let batch = DataSet::new(x, y).unwrap();
        let mut net = built(0.5);
        let scores = [&net, &built(0.)].map(|net| net.score_batch(&batch, false).unwrap());
        assert_eq!(scores[0], scores[1], "all biases are 0");
        let of = |net: &Network, name: &str| net.param(name).unwrap().to_vec::<f32>().unwrap();
        let [gains, biases] = [["0_gamma", "0_beta", "1_g"], ["1_b", "2_b", "2_b"]];
        let before = [gains.map(|name| of(&net, name)), biases.map(|name| of(&net, name))];
        net.fit_batch(&batch).unwrap();
        assert_eq!(gains.map(|name| of(&net, name)), before[0]);
        assert!(biases.map(|name| of(&net, name)).iter().zip(&before[1]).all(|(after, before)| after != before));
    });
}
