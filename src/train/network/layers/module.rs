//! A module of `ndgc::nn`, or a function, as a layer.

use std::fmt;
use std::sync::{Arc, PoisonError};

use ndgc::nn::{ModuleT, VarBuilder, VarMap};
use ndgc::{DType, Device, Error, Result, Tensor, Var};

use super::super::layer::{InputType, Layer, Param, ParamKind, Pass, Start};
use super::super::workspaces::ArrayType;

type Module = Box<dyn ModuleT + Send + Sync>;
type Make = dyn Fn(VarBuilder<'static>) -> Result<Module> + Send + Sync;

/// Any [`Module`](ndgc::nn::Module) or [`ModuleT`] as a layer: the function that makes it is called for each network,
/// with a builder of its own, and each variable that it asks for is a parameter of the layer. They begin as the module
/// says, with random numbers of the common stream ([`Device::set_seed`]).
///
/// Where layers compute again ([`WorkspaceMode::Separate`](crate::train::WorkspaceMode::Separate), and networks with a
/// layer that has a way back of its own, as [`Lstm`](super::Lstm)), a module runs twice in a step. What it draws in
/// training, as [`Dropout`](ndgc::nn::Dropout) does, it draws of the layer's stream ([`Pass::random`]), the same both
/// times; but running means move twice. Those of [`BatchNormalization`](super::BatchNormalization) do not.
///
/// ```
/// use ndgc::nn::{self, Module};
/// use ndgc::train::{InputType, Loss, ModuleLayer, NetworkConfig, OutputLayer};
/// use ndgc::Tensor;
///
/// let hidden = ModuleLayer::new("hidden", InputType::feed_forward(8), |vb| {
///     let linear = nn::linear(4, 8, vb)?;
///     Ok(Box::new(move |x: &Tensor| linear.forward(x)?.silu()))
/// });
/// let net = NetworkConfig::builder()
///     .input_type(InputType::feed_forward(4))
///     .layer(hidden)
///     .layer(OutputLayer::new(2, Loss::Mcxent))
///     .build()?;
/// assert_eq!(net.param_names().collect::<Vec<_>>(), ["0_bias", "0_weight", "1_W", "1_b"]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone)]
pub struct ModuleLayer {
    name: String,
    output: InputType,
    make: Arc<Make>,
}

impl fmt::Debug for ModuleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleLayer({})", self.name)
    }
}

impl ModuleLayer {
    /// A layer of this name in tables, with this output, of the module that `make` makes.
    pub fn new(
        name: &str,
        output: InputType,
        make: impl Fn(VarBuilder<'static>) -> Result<Module> + Send + Sync + 'static,
    ) -> Self {
        ModuleLayer { name: name.to_owned(), output, make: Arc::new(make) }
    }
}

impl Layer for ModuleLayer {
    fn kind(&self) -> &str {
        &self.name
    }

    fn output_type(&self, _input: InputType) -> Result<InputType> {
        Ok(self.output)
    }

    fn activate(&self, _x: &Tensor, _pass: &Pass<'_>) -> Result<Tensor> {
        Err(Error::invalid("ModuleLayer", "a module is made when its network is built; use NetworkConfig::builder()"))
    }

    fn instance(&self, dtype: DType, device: &Device) -> Result<Option<Arc<dyn Layer>>> {
        let map = VarMap::new();
        let module = (self.make)(VarBuilder::from_varmap(&map, dtype, device))?;
        let data = map.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut vars: Vec<(String, Var)> = data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        drop(data);
        vars.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Some(Arc::new(Instance { of: self.clone(), module, vars })))
    }
}

/// A module with its variables.
struct Instance {
    of: ModuleLayer,
    module: Module,
    vars: Vec<(String, Var)>,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.fmt(f)
    }
}

impl Layer for Instance {
    fn kind(&self) -> &str {
        &self.of.name
    }

    fn output_type(&self, _input: InputType) -> Result<InputType> {
        Ok(self.of.output)
    }

    fn params(&self, _input: InputType) -> Result<Vec<Param>> {
        let param = |(name, var): &(String, Var)| Param {
            name: name.clone(),
            shape: *var.shape(),
            start: Start::Given(var.clone()),
            kind: if var.rank() > 1 { ParamKind::Weight } else { ParamKind::Bias },
        };
        Ok(self.vars.iter().map(param).collect())
    }

    fn activate(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let run = || self.module.forward_t(x, pass.is_training());
        let y = if pass.is_training() { pass.random().scope(run) } else { run() }?;
        // Its last operation is not known, so the result is copied where it belongs.
        pass.workspaces().leverage_to(ArrayType::Activations, &y)
    }

    fn instance(&self, dtype: DType, device: &Device) -> Result<Option<Arc<dyn Layer>>> {
        self.of.instance(dtype, device)
    }
}
