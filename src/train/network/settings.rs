//! What numbers the settings of training may be.

use ndgc::{Error, Result};

use super::config::{NetworkConfig, OpConfig};
use super::layer::{LayerSettings, SHARE, is_share};
use super::regularization::{GradientNormalization, Regularization};
use super::schedule::{Schedule, ScheduleKind};
use super::updater::{Moments, Updater};

/// What a number may be: whether it is that, and how that is said.
type Range = (fn(f64) -> bool, &'static str);

/// A number of a setting: its name, what it is, and what it may be.
type Number = (&'static str, f64, Range);

const FINITE: Range = (f64::is_finite, "finite");
const SIZE: Range = (|number: f64| number.is_finite() && number >= 0.0, "finite, and at least 0");
const THRESHOLD: Range = (|number: f64| number >= 0.0, "at least 0");
const PART: Range = (is_share, SHARE);
const WHOLE: Range = (|number: f64| (0.0..=1.0).contains(&number), "at least 0 and at most 1");

/// Refuses numbers by which no step could be made, of the network and of each layer, with the layer's name.
pub(super) fn check(config: &NetworkConfig) -> Result<()> {
    if config.tbptt == Some(0) {
        let expected = "at least 1; without a call series are trained on as a whole";
        return Err(Error::argument("network", "tbptt_length", 0, expected));
    }
    let of_network = LayerSettings {
        updater: Some(config.updater),
        bias_updater: config.bias_updater,
        regularization: Some(config.regularization),
        bias_regularization: Some(config.bias_regularization),
        normalization: Some(config.normalization),
        ..LayerSettings::default()
    };
    check_numbers(&of_network, "")?;
    config.nodes.iter().try_for_each(|node| match &node.op {
        OpConfig::Layer(layer) => {
            check_numbers(&layer.settings, &format!(" in layer {} ({})", node.name, layer.layer.kind()))
        }
        OpConfig::Vertex(_) => Ok(()),
    })
}

fn check_numbers(settings: &LayerSettings, place: &str) -> Result<()> {
    let mut of_weights = settings.updater.map_or_else(Vec::new, of_updater);
    if let Some(penalty) = &settings.regularization {
        of_weights.extend(of_penalties(*penalty));
    }
    of_weights.extend(settings.normalization.and_then(of_threshold));
    let mut of_biases = settings.bias_updater.map_or_else(Vec::new, of_updater);
    if let Some(penalty) = &settings.bias_regularization {
        of_biases.extend(of_penalties(*penalty));
    }
    for (numbers, whose) in [(of_weights, ""), (of_biases, " of biases")] {
        for (name, number, (is_allowed, expected)) in numbers {
            if !is_allowed(number) {
                return Err(Error::argument("network", name, format!("{number}{whose}{place}"), expected));
            }
        }
    }
    Ok(())
}

fn of_updater(updater: Updater) -> Vec<Number> {
    let epsilon = |epsilon| ("epsilon", epsilon, SIZE);
    let of_moments = |Moments { rate, beta1, beta2, epsilon: small }: Moments| {
        with(rate, &[("beta1", beta1, PART), ("beta2", beta2, PART), epsilon(small)])
    };
    match updater {
        Updater::Sgd { rate } => with(rate, &[]),
        Updater::Nesterovs { rate, momentum } => with(rate, &[("momentum", momentum, WHOLE)]),
        Updater::Adam(moments) | Updater::AmsGrad(moments) | Updater::Nadam(moments) | Updater::AdaMax(moments) => {
            of_moments(moments)
        }
        Updater::AdamW { moments, decay } => {
            let mut all = of_moments(moments);
            all.push(("decay", decay, SIZE));
            all
        }
        Updater::RmsProp { rate, decay, epsilon: small } => with(rate, &[("decay", decay, WHOLE), epsilon(small)]),
        Updater::AdaGrad { rate, epsilon: small } => with(rate, &[epsilon(small)]),
        Updater::AdaDelta { rho, epsilon: small } => vec![("rho", rho, WHOLE), epsilon(small)],
        Updater::Gradient | Updater::NoOp => Vec::new(),
    }
}

/// The numbers of a learning rate, and others.
fn with(rate: Schedule, others: &[Number]) -> Vec<Number> {
    let mut all = vec![("learning rate", rate.initial, SIZE)];
    match rate.kind {
        ScheduleKind::Fixed | ScheduleKind::Ramp { .. } => {}
        ScheduleKind::Step { decay, .. } => all.push(("decay of the learning rate", decay, SIZE)),
        ScheduleKind::Exponential { gamma } => all.push(("gamma of the learning rate", gamma, SIZE)),
        ScheduleKind::Poly { power, .. } => all.push(("power of the learning rate", power, SIZE)),
        ScheduleKind::Inverse { gamma, power } => {
            let power = ("power of the learning rate", power, FINITE);
            all.extend([("gamma of the learning rate", gamma, SIZE), power]);
        }
        ScheduleKind::Sigmoid { gamma, .. } => all.push(("gamma of the learning rate", gamma, FINITE)),
        ScheduleKind::Cycle { max, decay, .. } => {
            let decay = ("decay of the learning rate", decay, SIZE);
            all.extend([("max of the learning rate", max, SIZE), decay]);
        }
    }
    all.extend(others);
    all
}

fn of_penalties(of: Regularization) -> [Number; 3] {
    [("l1", of.l1, SIZE), ("l2", of.l2, SIZE), ("weight_decay", of.weight_decay, SIZE)]
}

/// That of a normalisation that has one; others do not look at it.
fn of_threshold((normalization, threshold): (GradientNormalization, f64)) -> Option<Number> {
    use GradientNormalization as G;
    match normalization {
        G::None | G::RenormalizeL2PerLayer | G::RenormalizeL2PerParamType => None,
        G::ClipElementWiseAbsoluteValue | G::ClipL2PerLayer | G::ClipL2PerParamType => {
            Some(("threshold of gradient_normalization", threshold, THRESHOLD))
        }
    }
}
