//! Checkpoints: arrays as safetensors, configuration and counts as JSON.
//!
//! `model.json` names the file with the arrays, which has the number of the step in its name and is never written
//! again. Both come to their names by a rename, the JSON last: whenever the program ends, what the JSON names is whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ndgc::{Device, Error, Result, Tensor, Var, safetensors};
use serde_json::{Value, json};

use super::super::place::called_here;
use super::config::NetworkConfig;
use super::json::{At, Json};
use super::network::{Network, ParamInfo, TrainingListener};

/// What the JSON says that it is.
const FORMAT: &str = "ndgc network 1";

fn file_error(path: &Path, why: impl ToString) -> Error {
    Error::file(Some(path), None, why.to_string())
}

/// # Checkpoints
impl Network {
    /// Writes configuration, parameters, what updaters keep, and counts: `path` with the ending `.json`, and beside it
    /// a file of arrays (safetensors). The checkpoint before is there, whole, until this one is; then its arrays are
    /// deleted.
    ///
    /// ```
    /// # use ndgc::train::{InputType, Loss, Network, NetworkConfig, OutputLayer};
    /// # use ndgc::{DType, Device, Tensor};
    /// # let dir = std::env::temp_dir().join(format!("ndgc-checkpoint-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).map_err(ndgc::Error::msg)?;
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(OutputLayer::new(2,
    /// Loss::Mse)); let net = config.clone().build()?;
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
    /// [`Error::File`] of either file; the checkpoint before is there then.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        called_here(self.write(&path.as_ref().with_extension("json")))
    }

    fn write(&self, index: &Path) -> Result<()> {
        let before = read(index).ok().and_then(|value| value["arrays"].as_str().map(str::to_owned));
        let stem = index.file_stem().and_then(|stem| stem.to_str()).unwrap_or("model").to_owned();
        let step = format!("{stem}-{}", self.iteration);
        // A file that a checkpoint names is never written over: one of the same step gets another name.
        let taken = |name: &String| before.as_ref() == Some(name);
        let name =
            [format!("{step}.safetensors"), format!("{step}b.safetensors")].into_iter().find(|name| !taken(name));
        let name = name.ok_or_else(|| file_error(index, "no name is left for the arrays"))?;
        let mut arrays: HashMap<String, Tensor> =
            self.params().map(|(name, var)| (name.to_owned(), var.as_tensor().clone())).collect();
        arrays.extend(self.known_state());
        safetensors::save(&arrays, index.with_file_name(&name))?;
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
        replace(index, &value.to_string())?;
        if let Some(before) = before.filter(|before| *before != name && !before.contains(['/', '\\'])) {
            // An old file that stays does no harm.
            let _ = std::fs::remove_file(index.with_file_name(before));
        }
        Ok(())
    }

    /// Reads a checkpoint of a network with the same layers. Training then goes on as if it had not stopped, to the
    /// last digit, if it gets the same batches.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be read, or is of other layers; [`Error::CannotFindTensor`] and
    /// [`Error::ShapeMismatch`] for parameters that differ. Nothing is changed then.
    #[track_caller]
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<()> {
        called_here(self.read(&path.as_ref().with_extension("json")))
    }

    fn read(&mut self, index: &Path) -> Result<()> {
        let value = read(index)?;
        let kinds: Vec<&str> =
            value["layers"].as_array().into_iter().flatten().filter_map(|l| l["type"].as_str()).collect();
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
        called_here(Self::made_of(&path.as_ref().with_extension("json"), device))
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
        let state: Vec<(&str, &Tensor)> = arrays
            .iter()
            .filter(|(name, _)| self.param(name).is_none())
            .map(|(name, array)| (name.as_str(), array))
            .collect();
        // All that may be wrong is found before anything is changed.
        for (name, array) in &state {
            let fits = |(param, var): (&ParamInfo, &Var)| {
                let of = name.strip_prefix(&param.name).and_then(|rest| rest.strip_prefix('/'));
                of.is_some_and(|of| param.updater.state().contains(&of)) && var.dims() == array.dims()
            };
            if !self.named().any(fits) {
                return Err(file_error(index, format!("its `{name}` is nothing that the network's updaters keep")));
            }
        }
        let kept: usize = self.named().map(|(param, _)| param.updater.state().len()).sum();
        if !state.is_empty() && state.len() != kept {
            let why = format!("it has {} arrays of updaters, and the network's keep {kept}", state.len());
            return Err(file_error(index, why));
        }
        self.set_params(params)?;
        match state.is_empty() {
            true => self.named().for_each(|(param, _)| param.state().clear()),
            false => self.set_updater_state(state)?,
        }
        (self.iteration, self.epoch, self.score) = (iteration, epoch, score);
        Ok(())
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

/// Writes a file beside its place, and renames it when it is complete and on the disk.
fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension(format!("json.{}", std::process::id()));
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        file_error(path, error)
    })
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
