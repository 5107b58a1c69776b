//! Networks: configured by layers, trained by `fit`, asked by `output`, with their memory planned in workspaces.
//!
//! In reading order: what a network is made of ([`NetworkConfig`], the layers), what it is ([`Network`]), where its
//! arrays lie ([`WorkspaceMode`], [`LayerWorkspaceMgr`]), and who is told ([`TrainingListener`]).
//!
//! Names, formulas and defaults are DL4J's where it has them; what differs says so where it stands.

mod activation;
mod checkpoint;
mod config;
mod config_json;
mod early_stopping;
mod engine;
mod fit;
mod gradient_check;
mod inference;
mod json;
mod layer;
mod layers;
mod listener;
mod loss;
mod masks;
mod memory_report;
#[allow(clippy::module_inception)] // it is what the folder is about
mod network;
mod params;
mod regularization;
mod schedule;
mod scratch;
mod settings;
mod updater;
mod vertex;
mod weight_init;
mod workspaces;

pub use activation::Activation;
pub use checkpoint::CheckpointListener;
pub use config::NetworkConfig;
pub use early_stopping::{EarlyStopped, EarlyStopping, Termination};
pub(super) use early_stopping::{Limits, Trainee};
pub use gradient_check::{GradientCheck, gradient_check};
pub use layer::{Backprop, InputType, Layer, LayerConfig, LayerSettings, Param, ParamKind, Pass, Start};
pub use layers::{
    ActivationLayer, BatchNormalization, Convolution2D, Dense, DropoutLayer, Embedding, GlobalPooling, Gru,
    LastTimeStep, LayerNormalization, LossLayer, Lstm, ModuleLayer, OutputLayer, PoolingType, RnnOutputLayer,
    SelfAttention, SimpleRnn, Subsampling,
};
pub use listener::{
    EvaluativeListener, InvocationType, MemoryLine, MemoryListener, ProgressListener, ScoreListener, TimeListener,
};
pub use loss::Loss;
pub use memory_report::{LayerMemoryReport, NetworkMemoryReport};
pub use network::{Network, TrainingListener};
pub use regularization::{GradientNormalization, Regularization};
pub use schedule::{Schedule, ScheduleKind, ScheduleType};
pub use scratch::List;
pub use updater::{Moments, Updater};
pub use vertex::{
    DuplicateToTimeSeriesVertex, ElementWiseVertex, GraphVertex, L2NormalizeVertex, MergeVertex, ScaleVertex,
    SubsetVertex,
};
pub use weight_init::WeightInit;
pub use workspaces::{ArrayType, LayerWorkspaceMgr, LayerWorkspaceMgrBuilder, WorkspaceMode, WorkspacesCloseable};
