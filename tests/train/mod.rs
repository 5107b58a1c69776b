//! Training: networks, data, evaluation, several workers.

pub(crate) mod both;

mod audited;
mod audited_around;
mod budgets;
mod data;
mod evaluation;
mod evaluation_kinds;
mod kept;
mod left_out;
mod mended;
mod network_dl4j;
mod network_failure;
mod network_json;
mod network_layers;
mod network_memory;
mod network_training;
mod numbered;
mod parallel;
mod parallel_inference;
mod parallel_network;
mod predictions;
mod settings;
mod several;
mod texts;
