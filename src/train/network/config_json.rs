//! The configuration of a network as JSON and back.

use std::any::Any;
use std::sync::Arc;

use ndgc::{Device, Error, Result};
use serde_json::{Value, json};

use super::super::place::called_here;
use super::activation::Activation;
use super::config::{NetworkConfig, NodeConfig, OpConfig};
use super::json::{At, Json, json_enum, json_struct, object};
use super::layer::{InputType, Layer, LayerConfig, LayerSettings};
use super::layers::{
    ActivationLayer, BatchNormalization, Convolution2D, Dense, DropoutLayer, Embedding, GlobalPooling, Gru,
    LastTimeStep, LayerNormalization, LossLayer, Lstm, OutputLayer, PoolingType, SelfAttention, SimpleRnn, Subsampling,
};
use super::loss::Loss;
use super::regularization::{GradientNormalization, Regularization};
use super::schedule::{ScheduleKind, ScheduleType};
use super::updater::{Moments, Updater};
use super::vertex::{
    DuplicateToTimeSeriesVertex, ElementWiseVertex, GraphVertex, L2NormalizeVertex, MergeVertex, ScaleVertex,
    SubsetVertex,
};
use super::weight_init::WeightInit;
use super::workspaces::WorkspaceMode;

/// What the JSON says that it is.
const FORMAT: &str = "ndgc network configuration 1";

/// # As JSON
impl NetworkConfig {
    /// The configuration as JSON: all settings but the device, which is the reader's affair. Numbers are read back to
    /// the last bit.
    ///
    /// ```
    /// use ndgc::train::{Activation, Dense, InputType, Loss, NetworkConfig, OutputLayer, Updater};
    /// use ndgc::Device;
    ///
    /// let config = NetworkConfig::builder()
    ///     .updater(Updater::adam(1e-3))
    ///     .input_type(InputType::feed_forward(4))
    ///     .layer(Dense::new(3).activation(Activation::Relu))
    ///     .layer(OutputLayer::new(2, Loss::Mcxent));
    /// let text = config.to_json()?;
    /// assert!(text.contains(r#"{"Dense":{"activation":"Relu","bias_init":0.0,"has_bias":true,"n_out":3}}"#));
    /// let again = NetworkConfig::from_json(&text)?.device(&Device::Cpu);
    /// assert_eq!(again.build()?.summary(), config.build()?.summary());
    ///
    /// let wrong = NetworkConfig::from_json(&text.replace("\"n_out\":3", "\"n_out\":\"x\"")).unwrap_err();
    /// assert!(wrong.to_string().contains("`nodes.0.op.Layer.layer.Dense.n_out` is \"x\""), "{wrong}");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] that names the layer or vertex if it is one of your own, or a
    /// [`ModuleLayer`](super::ModuleLayer): those are code.
    #[track_caller]
    pub fn to_json(&self) -> Result<String> {
        Ok(called_here(self.to_value())?.to_string())
    }

    /// Reads what [`NetworkConfig::to_json`] wrote, for the host; [`NetworkConfig::device`] says otherwise.
    ///
    /// # Errors
    /// [`Error::File`] that names the field if one is missing, unknown, or not what it should be.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |error: serde_json::Error| Error::file(None, None, error.to_string());
        called_here(serde_json::from_str(text).map_err(wrong).and_then(|value| Self::from_value(&value)))
    }

    pub(super) fn to_value(&self) -> Result<Value> {
        for node in &self.nodes {
            let (argument, kind, is_known) = match &node.op {
                OpConfig::Layer(layer) => ("layer", layer.layer.kind(), layer_value(&*layer.layer).is_some()),
                OpConfig::Vertex(vertex) => ("vertex", vertex.kind(), vertex_value(&**vertex).is_some()),
            };
            if !is_known {
                let expected = "one of ndgc::train: others are code, as modules are; build their network in code, \
                                and restore() its checkpoint";
                return Err(Error::argument("to_json", argument, format!("{} ({kind})", node.name), expected));
            }
        }
        Ok(self.write())
    }

    pub(super) fn from_value(value: &Value) -> Result<Self> {
        Self::read(&At::top(value))
    }
}

impl Json for NetworkConfig {
    fn write(&self) -> Value {
        object(&mut [
            ("format", json!(FORMAT)),
            ("seed", self.seed.write()),
            ("updater", self.updater.write()),
            ("bias_updater", self.bias_updater.write()),
            ("weight_init", self.weight_init.write()),
            ("regularization", self.regularization.write()),
            ("bias_regularization", self.bias_regularization.write()),
            ("gradient_normalization", self.normalization.write()),
            ("data_type", self.dtype.write()),
            ("training_workspace_mode", self.training_mode.write()),
            ("inference_workspace_mode", self.inference_mode.write()),
            ("tbptt_length", self.tbptt.write()),
            ("validate_workspaces", self.validate.write()),
            ("inputs", self.inputs.write()),
            ("nodes", self.nodes.write()),
            ("outputs", self.outputs.write()),
        ])
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let mut fields = at.fields()?;
        let format: String = fields.take("format")?;
        if format != FORMAT {
            let why = format!("`format` is {format:?}; it must be {FORMAT:?}");
            return Err(Error::file(None, None, why));
        }
        // No array's size: any number of steps may be in a segment, those that no series has too.
        let tbptt = fields.take::<Option<u64>>("tbptt_length")?;
        let config = NetworkConfig {
            seed: fields.take("seed")?,
            updater: fields.take("updater")?,
            bias_updater: fields.take("bias_updater")?,
            weight_init: fields.take("weight_init")?,
            regularization: fields.take("regularization")?,
            bias_regularization: fields.take("bias_regularization")?,
            normalization: fields.take("gradient_normalization")?,
            dtype: fields.take("data_type")?,
            device: Device::Cpu,
            training_mode: fields.take("training_workspace_mode")?,
            inference_mode: fields.take("inference_workspace_mode")?,
            tbptt: tbptt.map(|steps| usize::try_from(steps).unwrap_or(usize::MAX)),
            validate: fields.take("validate_workspaces")?,
            inputs: fields.take("inputs")?,
            nodes: fields.take("nodes")?,
            outputs: fields.take("outputs")?,
        };
        fields.end()?;
        Ok(config)
    }
}

/// A place of a layer or vertex among the kinds that are known: how it is written, and read by its name.
macro_rules! kinds {
    ($write:ident, $read:ident, $trait:ident: $($name:literal $type:ty),*) => {
        fn $write(of: &dyn $trait) -> Option<Value> {
            let of: &dyn Any = of;
            $(if let Some(found) = of.downcast_ref::<$type>() {
                return Some(json!({ $name: found.write() }));
            })*
            None
        }

        fn $read(at: &At<'_>) -> Result<Arc<dyn $trait>> {
            match at.variant()? {
                $(($name, Some(held)) => Ok(Arc::new(<$type>::read(&held)?)),)*
                _ => Err(at.wrong(concat!("an object with one key:" $(, " ", $name)*))),
            }
        }
    };
}

kinds!(layer_value, read_layer, Layer:
    "Activation" ActivationLayer, "BatchNormalization" BatchNormalization, "Convolution2D" Convolution2D,
    "Dense" Dense, "Dropout" DropoutLayer, "Embedding" Embedding, "GlobalPooling" GlobalPooling, "GRU" Gru,
    "LSTM" Lstm, "LastTimeStep" LastTimeStep, "LayerNormalization" LayerNormalization, "LossLayer" LossLayer,
    "OutputLayer" OutputLayer, "SelfAttention" SelfAttention, "SimpleRnn" SimpleRnn, "Subsampling" Subsampling);

kinds!(vertex_value, read_vertex, GraphVertex:
    "DuplicateToTimeSeries" DuplicateToTimeSeriesVertex, "ElementWise" ElementWiseVertex,
    "L2Normalize" L2NormalizeVertex, "Merge" MergeVertex, "Scale" ScaleVertex, "Subset" SubsetVertex);

impl Json for Arc<dyn Layer> {
    /// Null for one that is code; [`NetworkConfig::to_json`] looks for those before.
    fn write(&self) -> Value {
        layer_value(&**self).unwrap_or_default()
    }

    fn read(at: &At<'_>) -> Result<Self> {
        read_layer(at)
    }
}

impl Json for Arc<dyn GraphVertex> {
    fn write(&self) -> Value {
        vertex_value(&**self).unwrap_or_default()
    }

    fn read(at: &At<'_>) -> Result<Self> {
        read_vertex(at)
    }
}

impl<T: Json> Json for Box<T> {
    fn write(&self) -> Value {
        (**self).write()
    }

    fn read(at: &At<'_>) -> Result<Self> {
        T::read(at).map(Box::new)
    }
}

json_struct!(NodeConfig { name, op, inputs });
json_enum!(OpConfig { ; Layer, Vertex });
json_struct!(LayerConfig { layer, settings });
json_struct!(LayerSettings {
    updater,
    bias_updater,
    weight_init,
    regularization,
    bias_regularization,
    normalization,
    dropout
});
json_enum!(InputType { ; ; FeedForward { size }, Recurrent { size }, Convolutional { channels, height, width } });
json_enum!(Updater { Gradient, NoOp; Adam, AmsGrad, Nadam, AdaMax;
    Sgd { rate }, Nesterovs { rate, momentum }, AdamW { moments, decay }, RmsProp { rate, decay, epsilon },
    AdaGrad { rate, epsilon }, AdaDelta { rho, epsilon } });
json_struct!(Moments { rate, beta1, beta2, epsilon });
json_enum!(ScheduleType { Iteration, Epoch });
json_enum!(ScheduleKind { Fixed; ;
    Step { decay, step }, Exponential { gamma }, Poly { power, max }, Inverse { gamma, power },
    Sigmoid { gamma, step }, Cycle { max, length, annealing, decay }, Ramp { length } });
json_enum!(WeightInit {
    Xavier, XavierUniform, Relu, ReluUniform, LecunNormal, LecunUniform; Normal, Uniform, Constant });
json_struct!(Regularization { l1, l2, weight_decay, apply_rate });
json_enum!(GradientNormalization {
    None,
    RenormalizeL2PerLayer,
    RenormalizeL2PerParamType,
    ClipElementWiseAbsoluteValue,
    ClipL2PerLayer,
    ClipL2PerParamType
});
json_enum!(WorkspaceMode { None, Single, Separate, Enabled });
json_enum!(Activation {
    Identity, Relu, Relu6, Selu, Sigmoid, HardSigmoid, Tanh, HardTanh, RationalTanh, RectifiedTanh, Softmax,
    LogSoftmax, Softplus, Softsign, Swish, Gelu, GeluErf, Mish, Cube; LeakyRelu, Elu });
json_enum!(Loss {
    Mcxent, SparseMcxent, NegativeLogLikelihood, Xent, Mse, L2, L1, MeanAbsoluteError, MeanAbsolutePercentageError,
    MeanSquaredLogarithmicError, KlDivergence, Hinge, SquaredHinge, Poisson, CosineProximity; Huber });
json_enum!(PoolingType { Max, Avg, Sum; PNorm });
json_struct!(ActivationLayer { activation = 0 });
json_struct!(DropoutLayer { share = 0 });
json_struct!(GlobalPooling { pooling = 0 });
json_struct!(LastTimeStep {});
json_enum!(ElementWiseVertex { Add, Subtract, Product, Average, Max });
json_struct!(MergeVertex {});
json_struct!(L2NormalizeVertex {});
json_struct!(DuplicateToTimeSeriesVertex {});
json_struct!(ScaleVertex { scale, shift });
json_struct!(SubsetVertex { from, to });
