//! How much memory a network needs, layer by layer: of a configuration, and of a network that is there.

use std::fmt::{self, Write};

use ndgc::{DType, Error, Generator, Result, Tensor, Workspace};

use super::super::place::called_here;
use super::config::NetworkConfig;
use super::json::{At, Json, json_struct};
use super::layer::Start;
use super::network::{Network, Node, nodes_of};

/// The bytes that a network needs, layer by layer in the order of computation: DL4J's `NetworkMemoryReport`.
///
/// Its text is a table. What a step makes on its way, and of results what ends before others begin, is the affair of
/// workspaces: `docs/train.md` says what they take.
///
/// ```
/// use ndgc::train::{Dense, InputType, Loss, NetworkConfig, NetworkMemoryReport, OutputLayer, Updater};
///
/// let config = NetworkConfig::builder().updater(Updater::adam(0.01)).input_type(InputType::feed_forward(4));
/// let config = config.layer(Dense::new(3)).layer(OutputLayer::new(2, Loss::Mcxent));
/// let report = config.memory_report()?; // there is no network yet
/// assert_eq!(report.parameter_bytes(), 4 * (4 * 3 + 3 + 3 * 2 + 2));
/// assert_eq!(report.updater_bytes(), 2 * report.parameter_bytes()); // two moments of each
/// assert_eq!(report.activation_bytes(32), 32 * 4 * (3 + 2)); // of a batch of 32
/// println!("{report}");
/// assert_eq!(NetworkMemoryReport::from_json(&report.to_json())?, report);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkMemoryReport {
    /// Its layers and vertices.
    pub layers: Vec<LayerMemoryReport>,
}

/// The bytes that a layer or a vertex needs: DL4J's `LayerMemoryReport`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerMemoryReport {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Bytes of its parameters, running means among them; the gradients of a step take as many.
    pub parameters: usize,
    /// Bytes that its updater keeps from the first step on.
    pub updater: usize,
    /// Bytes of what it makes of one example; of a series, of one step.
    pub activations: usize,
}

json_struct!(NetworkMemoryReport { layers });
json_struct!(LayerMemoryReport { name, kind, parameters, updater, activations });

impl NetworkMemoryReport {
    /// Bytes of all parameters.
    pub fn parameter_bytes(&self) -> usize {
        self.sum(&|layer| layer.parameters)
    }

    /// Bytes that all updaters keep.
    pub fn updater_bytes(&self) -> usize {
        self.sum(&|layer| layer.updater)
    }

    /// Bytes of all results for so many examples; of series, examples times steps.
    pub fn activation_bytes(&self, examples: usize) -> usize {
        self.sum(&|layer| layer.activations).saturating_mul(examples)
    }

    fn sum(&self, of: &dyn Fn(&LayerMemoryReport) -> usize) -> usize {
        let mut sum = 0usize;
        for layer in &self.layers {
            sum = sum.saturating_add(of(layer));
        }
        sum
    }

    /// It as JSON.
    pub fn to_json(&self) -> String {
        self.write().to_string()
    }

    /// What [`NetworkMemoryReport::to_json`] wrote.
    ///
    /// # Errors
    /// [`Error::File`] that names the field if one is missing, unknown, or not what it should be.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |error: serde_json::Error| Error::file(None, None, error.to_string());
        called_here(serde_json::from_str(text).map_err(wrong).and_then(|value| Self::read(&At::top(&value))))
    }
}

impl fmt::Display for NetworkMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = "bytes of parameters, of what updaters keep, and of the result of an example (of series: of a step)";
        write!(f, "{head}, by layer:")?;
        let mut row = |name: &str, bytes: [usize; 3]| {
            write!(f, "\n{name:<24} {:>12} {:>12} {:>12}", bytes[0], bytes[1], bytes[2])
        };
        for layer in &self.layers {
            row(&format!("{} ({})", layer.name, layer.kind), [layer.parameters, layer.updater, layer.activations])?;
        }
        row("all", [self.parameter_bytes(), self.updater_bytes(), self.activation_bytes(1)])
    }
}

/// The row of a node.
fn row(node: &Node, parameters: usize, updater: usize, dtype: DType) -> LayerMemoryReport {
    let activations = bytes(&[node.output.size()], dtype);
    LayerMemoryReport { name: node.name.clone(), kind: node.op.kind().to_owned(), parameters, updater, activations }
}

fn bytes(dims: &[usize], dtype: DType) -> usize {
    dims.iter().fold(dtype.size_in_bytes(), |all, &dim| all.saturating_mul(dim))
}

impl NetworkConfig {
    /// The bytes that its network will need, layer by layer, before there is one: DL4J's `getMemoryReport`. Nothing is
    /// made but the modules of layers that are code ([`ModuleLayer`](super::ModuleLayer)), which are asked, and end;
    /// the common stream of random numbers stays where it is.
    ///
    /// # Errors
    /// As [`NetworkConfig::build`], but for what it says of outputs and of memory.
    #[track_caller]
    pub fn memory_report(&self) -> Result<NetworkMemoryReport> {
        // A module is made as for a network.
        let _out = Workspace::scope_out();
        called_here(Generator::new(self.seed).scope(|| self.reported()))
    }

    fn reported(&self) -> Result<NetworkMemoryReport> {
        let mut sizes = Vec::new();
        let nodes = nodes_of(self, &mut |param, _, _| {
            let dtype = if let Start::Given(var) = &param.start { var.dtype() } else { self.dtype };
            sizes.push(bytes(param.shape.dims(), dtype));
            Ok(None)
        })?;
        let (mut layers, mut sizes) = (Vec::with_capacity(nodes.len()), sizes.into_iter());
        for node in &nodes {
            let (mut parameters, mut updater) = (0usize, 0usize);
            for (param, size) in node.params.iter().zip(sizes.by_ref()) {
                parameters = parameters.saturating_add(size);
                updater = updater.saturating_add(size.saturating_mul(param.updater.state().len()));
            }
            layers.push(row(node, parameters, updater, self.dtype));
        }
        Ok(NetworkMemoryReport { layers })
    }
}

impl Network {
    /// Where its bytes are, for people: as [`NetworkConfig::memory_report`], but of what updaters keep that is there by
    /// now, and with the workspaces of this thread. What DL4J writes when memory is exhausted; see
    /// [`ndgc::NdManager::report`] for arrays one by one.
    ///
    /// # Errors
    /// As [`Tensor::storage_bytes`].
    #[track_caller]
    pub fn memory_report(&self) -> Result<String> {
        let mut layers = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let [mut parameters, mut updater] = [0, 0];
            for (param, var) in node.params.iter().zip(&node.vars) {
                parameters += var.storage_bytes()?;
                updater += param.state().iter().map(Tensor::storage_bytes).sum::<Result<usize>>()?;
            }
            layers.push(row(node, parameters, updater, self.config.dtype));
        }
        let mut text = NetworkMemoryReport { layers }.to_string();
        text += "\nworkspaces of this thread (allocated / spilled / pinned):\n";
        // Writing to a text does not fail.
        for space in self.workspaces() {
            let _ = writeln!(text, "{}", space.stats());
        }
        let memory = self.config.device.memory();
        let (active, peak, limit) = (memory.active, memory.peak, memory.limit);
        let limit = limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        let _ = writeln!(text, "device {}: {active} in use, {peak} at most, limit {limit}", self.config.device);
        Ok(text)
    }
}
