//! Checkpoints: arrays as safetensors, configuration and counts as JSON.
//!
//! `model.json` names the file with the arrays, which has the number of the step in its name and is never written
//! again. Both are brought to the disk and come to their names by a rename, the JSON last: whenever the program or the
//! machine ends, what the JSON names is whole.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use ndgc::{Device, Error, Result, Tensor, Var, safetensors};
use serde_json::{Value, json};

use super::super::data::Normalizer;
use super::super::durable::{followed, replace, sync};
use super::super::place::{called_here, of_call};
use super::config::NetworkConfig;
use super::json::{At, Json};
use super::network::{Network, TrainingListener};

/// What the JSON says that it is.
const FORMAT: &str = "ndgc network 1";

/// What to do with a checkpoint of other updaters.
const OTHER_UPDATERS: &str = "build the network with the updaters that it was saved with, or take its parameters \
                              alone: Network::load() it, and give its params() to set_params()";

fn file_error(path: &Path, why: impl ToString) -> Error {
    Error::file(Some(path), None, why.to_string())
}

/// The JSON of a checkpoint: the path with `.json` behind it, unless that is there; the ending of its arrays gives way.
fn index_of(path: &Path) -> PathBuf {
    let index = match path.extension() {
        Some(part) if part != "json" && part != "safetensors" => {
            let mut parts = part.to_owned();
            parts.push(".json");
            path.with_extension(parts)
        }
        _ => path.with_extension("json"),
    };
    // What a link leads to is the checkpoint, and its arrays lie beside that.
    followed(&index)
}

/// What the names of a checkpoint's arrays begin with, which the JSON has to tell: its own name, or the digits of that
/// where it is no text: another one of the folder that is no text has others.
fn stem_of(index: &Path) -> String {
    let stem = index.file_stem().unwrap_or_default();
    let digits = || stem.as_encoded_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    stem.to_str().map_or_else(digits, str::to_owned)
}

/// # Checkpoints
impl Network {
    /// Writes configuration, parameters, what updaters keep, and counts: `path` with `.json` behind it (`run.1` is
    /// `run.1.json`; a `.json` that is there is enough), and beside it a file of arrays (safetensors). The checkpoint
    /// before is on the disk, whole, until this one is; then its arrays are deleted. A normaliser that was in it
    /// ([`Network::add_normalizer_to_model`]) is not in this one.
    ///
    /// ```
    /// # use ndgc::train::{InputType, Loss, Network, NetworkConfig, OutputLayer};
    /// # use ndgc::{DType, Device, Tensor};
    /// # let dir = std::env::temp_dir().join(format!("ndgc-checkpoint-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// let config = config.layer(OutputLayer::new(2, Loss::Mse));
    /// let net = config.clone().build()?;
    /// net.save(dir.join("model"))?;
    ///
    /// let mut again = config.seed(9).build()?; // other random numbers
    /// again.restore(dir.join("model"))?;
    /// let found = Network::load(dir.join("model"), &Device::Cpu)?; // nothing of the network is known here
    /// let x = Tensor::ones((1, 3), DType::F32, &Device::Cpu)?;
    /// assert_eq!(again.output(&x)?.to_vec2::<f32>()?, net.output(&x)?.to_vec2::<f32>()?);
    /// assert_eq!(found.output(&x)?.to_vec2::<f32>()?, net.output(&x)?.to_vec2::<f32>()?);
    /// # std::fs::remove_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] of either file; the checkpoint before is there then, or this one, whole.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        called_here(self.write(&index_of(path.as_ref())))
    }

    fn write(&self, index: &Path) -> Result<()> {
        let before = read(index).ok().and_then(|value| value["arrays"].as_str().map(str::to_owned));
        let stem = stem_of(index);
        let step = format!("{stem}-{}", self.iteration);
        // A file that a checkpoint names is never written over: one of the same step gets another name.
        let taken = |name: &String| before.as_ref() == Some(name);
        let name =
            [format!("{step}.safetensors"), format!("{step}b.safetensors")].into_iter().find(|name| !taken(name));
        let name = name.ok_or_else(|| file_error(index, "no name is left for the arrays"))?;
        let mut arrays: HashMap<String, Tensor> =
            self.params().map(|(name, var)| (name.to_owned(), var.as_tensor().clone())).collect();
        let state = self.known_state();
        // A part of it is what a step began that then found no memory: it has no numbers yet.
        if state.len() == self.named().map(|(param, _)| param.updater.state().len()).sum::<usize>() {
            arrays.extend(state);
        }
        safetensors::save(&arrays, index.with_file_name(&name))?;
        // Before anything names them.
        sync(&index.with_file_name(&name))?;
        let layers: Vec<Value> =
            self.nodes.iter().map(|node| json!({ "name": node.name, "type": node.op.kind() })).collect();
        let value = json!({
            "format": FORMAT,
            "iteration": self.iteration,
            "epoch": self.epoch,
            "score": self.score.is_finite().then(|| self.score.write()),
            "arrays": name,
            "layers": layers,
            // Null if a layer is code.
            "config": self.config.to_value().ok(),
        });
        replace(index, value.to_string().as_bytes())?;
        let own = format!("{stem}-");
        let are_arrays = |before: &String| {
            before.starts_with(&own) && before.ends_with(".safetensors") && !before.contains(['/', '\\'])
        };
        if let Some(before) = before.filter(|before| *before != name && are_arrays(before)) {
            // An old file that stays does no harm.
            let _ = std::fs::remove_file(index.with_file_name(before));
        }
        Ok(())
    }

    /// Reads a checkpoint of a network with the same layers. Training then goes on as if it had not stopped, to the
    /// last digit, if it gets the same batches.
    ///
    /// A network with other updaters takes the parameters alone, and what its own updaters keep begins anew:
    ///
    /// ```
    /// # use ndgc::train::{InputType, Loss, Network, NetworkConfig, OutputLayer, Updater};
    /// # use ndgc::Device;
    /// # let dir = std::env::temp_dir().join(format!("ndgc-updaters-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// # let config = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// # let config = config.layer(OutputLayer::new(2, Loss::Mse));
    /// # config.clone().build()?.save(dir.join("model"))?;
    /// let net = config.updater(Updater::adam(0.01)).build()?;
    /// let saved = Network::load(dir.join("model"), &Device::Cpu)?; // with the updaters of the checkpoint
    /// net.set_params(saved.params().map(|(name, var)| (name, var.as_tensor())))?;
    /// # std::fs::remove_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// Of a network with layers that are code, build one with the updaters of the checkpoint instead of
    /// [`Network::load`], and restore that. Counts are set by [`Network::set_iteration`] and [`Network::set_epoch`].
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be read, is of other layers, or has of updaters what those of this network do
    /// not keep; [`Error::CannotFindTensor`] and [`Error::ShapeMismatch`] for parameters that differ. Nothing is
    /// changed then.
    #[track_caller]
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<()> {
        called_here(self.read(&index_of(path.as_ref())))
    }

    fn read(&mut self, index: &Path) -> Result<()> {
        let value = read(index)?;
        let mut kinds = Vec::new();
        for layer in value["layers"].as_array().map_or(&[][..], |layers| layers) {
            if let Some(kind) = layer["type"].as_str() {
                kinds.push(kind);
            }
        }
        let own: Vec<&str> = self.nodes.iter().map(|node| node.op.kind()).collect();
        if kinds != own {
            return Err(file_error(index, format!("it is of the layers {kinds:?}, and the network has {own:?}")));
        }
        let arrays = arrays(index, &value, &self.config.device)?;
        self.take(index, &value, &arrays)
    }

    /// The network of a checkpoint, built from the configuration in it, on a device: no code of the network is needed,
    /// and it takes no more memory than the files have bytes, a few times over. Training goes on as after
    /// [`Network::restore`].
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be read, with the field that is wrong; if the checkpoint has no configuration,
    /// since a layer of its network is code. Else as [`NetworkConfig::build`] and [`Network::restore`].
    #[track_caller]
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Network> {
        called_here(Self::made_of(&index_of(path.as_ref()), device))
    }

    fn made_of(index: &Path, device: &Device) -> Result<Network> {
        let value = read(index)?;
        let config = match &value["config"] {
            Value::Null => {
                let why = "it has no configuration, as a layer of the network is code; build the network in code, and \
                           restore() this";
                return Err(file_error(index, why));
            }
            config => NetworkConfig::from_value(config).map_err(|error| match error {
                Error::File { why, .. } => file_error(index, format!("`config`: {why}")),
                other => other,
            })?,
        };
        let arrays = arrays(index, &value, device)?;
        let mut network = Network::assemble(config.device(device), Some(&arrays))?;
        network.take(index, &value, &arrays)?;
        Ok(network)
    }

    /// Takes parameters, what updaters keep and counts of a checkpoint with the same layers.
    fn take(&mut self, index: &Path, value: &Value, arrays: &HashMap<String, Tensor>) -> Result<()> {
        let count = |name: &str| value[name].as_u64().ok_or_else(|| file_error(index, format!("`{name}` is no count")));
        let (iteration, epoch) = (count("iteration")?, count("epoch")?);
        let score = f64::read(&At::top(&value["score"])).unwrap_or(f64::NAN);
        let missing = |name: &str| Error::no_tensor(name, Some(index), arrays.keys());
        let params = self.param_names().map(|name| Ok((name, arrays.get(name).ok_or_else(|| missing(name))?)));
        let params = params.collect::<Result<Vec<_>>>()?;
        // All that may be wrong is found before anything is changed.
        let state = self.state_among(index, arrays)?;
        // What may find no memory, too.
        let state = if state.is_empty() { Vec::new() } else { self.fitting_state(state)? };
        self.set_params(params)?;
        if state.is_empty() {
            self.named().for_each(|(param, _)| param.state().clear());
        }
        for (array, values) in state {
            array.copy_(&values)?;
        }
        (self.iteration, self.epoch, self.score) = (iteration, epoch, score);
        Ok(())
    }

    /// What the network's updaters keep, among arrays that have it all, or nothing of it, beside the parameters.
    fn state_among<'a>(&self, index: &Path, arrays: &'a HashMap<String, Tensor>) -> Result<Vec<(&'a str, &'a Tensor)>> {
        let names: HashSet<&str> = self.param_names().collect();
        let mut kept: HashMap<String, &Var> = HashMap::new();
        for (param, var) in self.named() {
            kept.extend(param.state_names().map(|name| (name, var)));
        }
        let mut state = Vec::with_capacity(kept.len());
        for (name, array) in arrays.iter().filter(|(name, _)| !names.contains(name.as_str())) {
            if kept.get(name).is_none_or(|var| var.dims() != array.dims()) {
                let why = format!("its `{name}` is nothing that the network's updaters keep; {OTHER_UPDATERS}");
                return Err(file_error(index, why));
            }
            state.push((name.as_str(), array));
        }
        if !state.is_empty() && state.len() != kept.len() {
            let (given, own) = (state.len(), kept.len());
            let why = format!("it has {given} arrays of updaters, and the network's keep {own}; {OTHER_UPDATERS}");
            return Err(file_error(index, why));
        }
        Ok(state)
    }
}

/// # Normalisers in checkpoints
impl Network {
    /// Adds a normaliser to a checkpoint, in place of the one that it has: DL4J's
    /// `ModelSerializer.addNormalizerToModel`. The checkpoint is whole meanwhile, with it or without. The next
    /// [`Network::save`] to that path writes one without.
    ///
    /// ```
    /// # use ndgc::train::{InputType, Loss, Network, NetworkConfig, Normalizer, OutputLayer};
    /// # let dir = std::env::temp_dir().join(format!("ndgc-normalizer-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// config.layer(OutputLayer::new(2, Loss::Mse)).build()?.save(dir.join("model"))?;
    /// assert_eq!(Network::restore_normalizer_from_file(dir.join("model"))?, None);
    ///
    /// let normalizer = Normalizer::image(0., 1., 255.); // or one that looked at the training's data
    /// Network::add_normalizer_to_model(dir.join("model"), &normalizer)?;
    /// assert_eq!(Network::restore_normalizer_from_file(dir.join("model"))?, Some(normalizer));
    /// # std::fs::remove_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] if there is no checkpoint, or it cannot be written; it is whole then.
    #[track_caller]
    pub fn add_normalizer_to_model(path: impl AsRef<Path>, normalizer: &Normalizer) -> Result<()> {
        of_call(|| {
            let index = index_of(path.as_ref());
            let mut value = read(&index)?;
            value["normalizer"] = normalizer.write();
            replace(&index, value.to_string().as_bytes())
        })
    }

    /// The normaliser of a checkpoint, to the last bit; None if it has none: DL4J's
    /// `ModelSerializer.restoreNormalizerFromFile`.
    ///
    /// # Errors
    /// [`Error::File`] if there is no checkpoint, or what it has is no normaliser.
    #[track_caller]
    pub fn restore_normalizer_from_file(path: impl AsRef<Path>) -> Result<Option<Normalizer>> {
        of_call(|| {
            let index = index_of(path.as_ref());
            match &read(&index)?["normalizer"] {
                Value::Null => Ok(None),
                value => match Normalizer::read(value) {
                    Some(normalizer) => Ok(Some(normalizer)),
                    None => Err(file_error(&index, "its `normalizer` is not the JSON of one")),
                },
            }
        })
    }
}

/// The arrays that a checkpoint names.
fn arrays(index: &Path, value: &Value, device: &Device) -> Result<HashMap<String, Tensor>> {
    let name = value["arrays"].as_str().filter(|name| !name.contains(['/', '\\']));
    let name = name.ok_or_else(|| file_error(index, "`arrays` is no name of a file"))?;
    safetensors::load(index.with_file_name(name), device)
}

fn read(index: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(index).map_err(|error| file_error(index, error))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| file_error(index, error))?;
    match value["format"].as_str() {
        Some(FORMAT) => Ok(value),
        other => Err(file_error(index, format!("its format is {other:?}, and should be {FORMAT:?}"))),
    }
}

/// Saves a checkpoint every so many steps, and at the end of each pass over the data: DL4J's `CheckpointListener`.
#[derive(Debug)]
pub struct CheckpointListener {
    path: PathBuf,
    every: Option<u64>,
}

impl CheckpointListener {
    /// At the end of each pass over the data.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        CheckpointListener { path: path.into(), every: None }
    }

    /// Every so many steps too.
    pub fn every(mut self, iterations: u64) -> Self {
        self.every = Some(iterations.max(1));
        self
    }
}

impl TrainingListener for CheckpointListener {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        match self.every {
            Some(every) if net.iteration().is_multiple_of(every) => net.save(&self.path),
            _ => Ok(()),
        }
    }

    fn on_epoch_end(&mut self, net: &Network) -> Result<()> {
        net.save(&self.path)
    }
}
