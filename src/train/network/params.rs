//! Parameters and what updaters keep, by name; replicas; the table of a network.

use std::collections::HashMap;
use std::fmt::Write;

use ndgc::{Error, Result, Tensor, Var};

use super::super::place::called_here;
use super::layer::ParamKind;
use super::network::{Network, ParamInfo, Source};
use super::updater::Updater;

/// # Parameters by name
impl Network {
    /// The names of all parameters, running means among them, as `0_W`: node by node, in the order of computation.
    ///
    /// ```
    /// use ndgc::train::{BatchNormalization, Dense, InputType, Loss, NetworkConfig, OutputLayer};
    ///
    /// let config = NetworkConfig::builder().input_type(InputType::feed_forward(2)).layer(Dense::new(3));
    /// let net = config.layer(BatchNormalization::new()).layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let names: Vec<&str> = net.param_names().collect();
    /// assert_eq!(names, ["0_W", "0_b", "1_gamma", "1_beta", "1_mean", "1_log10stdev", "2_W", "2_b"]);
    /// assert_eq!(net.param("0_W").unwrap().dims(), [2, 3]); // [in, out]
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn param_names(&self) -> impl Iterator<Item = &str> {
        self.named().map(|(param, _)| param.name.as_str())
    }

    /// All parameters with their names.
    pub fn params(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.named().map(|(param, var)| (param.name.as_str(), var))
    }

    /// All but those that are frozen: an updater changes them, or their layer may.
    pub(crate) fn changing_params(&self) -> impl Iterator<Item = (&str, &Var)> {
        let may_change =
            |param: &ParamInfo| param.kind == ParamKind::State || param.is_given || param.updater != Updater::NoOp;
        let all = self.named().filter(move |(param, _)| may_change(param));
        all.map(|(param, var)| (param.name.as_str(), var))
    }

    /// A parameter by its name.
    pub fn param(&self, name: &str) -> Option<&Var> {
        self.params().find(|(other, _)| *other == name).map(|(_, var)| var)
    }

    /// Numbers in all parameters.
    pub fn num_params(&self) -> usize {
        self.named().map(|(_, var)| var.elem_count()).sum()
    }

    /// Sets a parameter to the numbers of an array of its shape; another float type is converted.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is none of this name; as [`Var::set`].
    #[track_caller]
    pub fn set_param(&self, name: &str, values: &Tensor) -> Result<()> {
        let var = self.find(name)?;
        var.set(&like(var, values)?)
    }

    /// Sets all parameters that are named, as [`Network::set_param`]; none if a name is unknown, or an array finds no
    /// memory to be converted.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{Device, Error, Tensor};
    ///
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(2)).layer(OutputLayer::new(1, Loss::Mse));
    /// let net = net.build()?;
    /// let (w, b) = (Tensor::new(&[[1f64], [2.]], &Device::Cpu)?, Tensor::new(&[3f64], &Device::Cpu)?);
    /// net.set_params([("0_W", &w), ("0_b", &b)])?; // f64 becomes what the network has
    /// let y = net.output(&Tensor::new(&[[1f32, 1.]], &Device::Cpu)?)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[6.]]);
    /// assert!(matches!(net.set_params([("0_w", &w)]), Err(Error::CannotFindTensor { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::set_param`].
    #[track_caller]
    pub fn set_params<'a>(&self, values: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<()> {
        for (var, values) in self.fitting_params(values)? {
            var.set(&values)?;
        }
        Ok(())
    }

    /// The parameters that are named, and arrays like them with what they are to be: all that may fail.
    #[track_caller]
    fn fitting_params<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    ) -> Result<Vec<(&Var, Tensor)>> {
        let known: HashMap<&str, &Var> = self.params().collect();
        let mut found = Vec::with_capacity(known.len());
        for (name, values) in values {
            let Some(&var) = known.get(name) else { return Err(Error::no_tensor(name, None, self.param_names())) };
            if var.dims() != values.dims() {
                let why = format!("the parameter {name} has another shape");
                return called_here(Err(Error::shape_mismatch("set_params", var.dims(), values.dims(), why)));
            }
            found.push((var, like(var, values)?));
        }
        Ok(found)
    }

    #[track_caller]
    pub(super) fn find(&self, name: &str) -> Result<&Var> {
        match self.param(name) {
            Some(var) => Ok(var),
            None => Err(Error::no_tensor(name, None, self.param_names())),
        }
    }

    pub(super) fn named(&self) -> impl Iterator<Item = (&ParamInfo, &Var)> {
        self.nodes.iter().flat_map(|node| node.params.iter().zip(&node.vars))
    }
}

/// # What updaters keep
impl Network {
    /// The arrays that updaters keep, by the parameter's name and their own, as `0_W/M`; those that no step has made
    /// yet begin here.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer, Updater};
    ///
    /// let config = NetworkConfig::builder().updater(Updater::adam(0.1)).input_type(InputType::feed_forward(2));
    /// let net = config.layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let state = net.updater_state()?;
    /// let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    /// assert_eq!(names, ["0_W/M", "0_W/V", "0_b/M", "0_b/V"]); // two moments of each parameter
    /// assert_eq!(state[0].1.to_vec2::<f32>()?, [[0.], [0.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn updater_state(&self) -> Result<Vec<(String, Tensor)>> {
        for (param, var) in self.named() {
            called_here(param.begin_state(var, self))?;
        }
        Ok(self.known_state())
    }

    /// Those that are there.
    pub(super) fn known_state(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        for (param, _) in self.named() {
            all.extend(param.state_names().zip(param.state().clone()));
        }
        all
    }

    /// Sets what updaters keep to these arrays, by the names of [`Network::updater_state`]; none if a name is unknown,
    /// a shape another, or an array finds no memory to be converted.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] for a name that is none; [`Error::ShapeMismatch`]; as [`Tensor::copy_`].
    #[track_caller]
    pub fn set_updater_state<'a>(&self, values: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<()> {
        for (array, values) in self.fitting_state(values)? {
            array.copy_(&values)?;
        }
        Ok(())
    }

    /// As [`Network::fitting_params`], of what updaters keep.
    #[track_caller]
    pub(super) fn fitting_state<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    ) -> Result<Vec<(Tensor, Tensor)>> {
        let known: HashMap<String, Tensor> = self.updater_state()?.into_iter().collect();
        let mut found = Vec::with_capacity(known.len());
        for (name, values) in values {
            let Some(array) = known.get(name) else { return Err(Error::no_tensor(name, None, known.keys())) };
            if array.dims() != values.dims() {
                let (op, why) = ("set_updater_state", format!("the updater's {name} has another shape"));
                return called_here(Err(Error::shape_mismatch(op, array.dims(), values.dims(), why)));
            }
            found.push((array.clone(), values.to_dtype(array.dtype())?));
        }
        Ok(found)
    }
}

/// # Replicas, and the table
impl Network {
    /// A network with the same settings, parameters, updater state and counts, that shares nothing with this one: for
    /// another thread. Listeners stay here.
    ///
    /// ```
    /// use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer, WeightInit};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().weight_init(WeightInit::Constant(0.)).input_type(InputType::feed_forward(3));
    /// let net = net.layer(OutputLayer::new(3, Loss::Mse)).build()?;
    /// let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?;
    /// let mut other = net.replica()?;
    /// std::thread::scope(|scope| scope.spawn(|| other.fit_arrays(&x, &x)).join().unwrap())?;
    /// assert_eq!((net.iteration(), other.iteration()), (0, 1));
    /// assert_eq!(net.output(&x)?.to_vec2::<f32>()?, [[0.; 3]; 4]); // as before
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::new`].
    #[track_caller]
    pub fn replica(&self) -> Result<Network> {
        let mut other = Network::new(self.config.clone())?;
        if let Some(payer) = &self.payer {
            other.charge_to(payer)?;
        }
        other.follow(self)?;
        Ok(other)
    }

    /// Takes parameters, updater state and counts of a network with the same settings. State that the other does not
    /// have yet begins again here too.
    ///
    /// # Errors
    /// As [`Network::set_params`].
    #[track_caller]
    pub fn follow(&mut self, other: &Network) -> Result<()> {
        self.set_params(other.params().map(|(name, var)| (name, var.as_tensor())))?;
        for ((param, _), (theirs, _)) in self.named().zip(other.named()) {
            if theirs.state().is_empty() {
                param.state().clear();
            }
        }
        let state = other.known_state();
        if !state.is_empty() {
            self.set_updater_state(state.iter().map(|(name, array)| (name.as_str(), array)))?;
        }
        (self.iteration, self.epoch, self.score) = (other.iteration, other.epoch, other.score);
        Ok(())
    }

    /// A table of the layers: names and kinds, sizes, parameters and their shapes.
    ///
    /// ```
    /// use ndgc::train::{Dense, InputType, Loss, NetworkConfig, OutputLayer};
    ///
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(4)).layer(Dense::new(3));
    /// let table = net.layer(OutputLayer::new(2, Loss::Mcxent)).build()?.summary();
    /// assert!(table.contains("0 (Dense)") && table.contains("Total parameters: 23"), "{table}");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn summary(&self) -> String {
        let head = ["name (type)", "in -> out", "parameters", "shapes", "inputs"];
        let (mut rows, mut wide) = (vec![head.map(str::to_owned)], [0; 5]);
        for i in 0..self.nodes.len() {
            rows.push(self.row(i));
        }
        for row in &rows {
            for (wide, cell) in wide.iter_mut().zip(row) {
                *wide = cell.chars().count().max(*wide);
            }
        }
        let width = wide.iter().sum::<usize>() + 8;
        let (double, single) = ("=".repeat(width), "-".repeat(width));
        let mut text = format!("{double}\n");
        for (i, row) in rows.iter().enumerate() {
            // Not by a format, whose width has an end.
            let padded = |(cell, wide): (&String, usize)| format!("{cell}{}", " ".repeat(wide - cell.chars().count()));
            let line: Vec<String> = row.iter().zip(wide).map(padded).collect();
            text += line.join("  ").trim_end();
            text += if i == 0 { "\n" } else { "" };
            text += if i == 0 { &double } else { "" };
            text += "\n";
        }
        let frozen: usize =
            self.named().filter(|(param, _)| param.updater == Updater::NoOp).map(|(_, var)| var.elem_count()).sum();
        let total = self.num_params();
        // Writing to a text does not fail.
        let _ = write!(
            text,
            "{single}\nTotal parameters: {total}\nTrainable: {}\nFrozen: {frozen}\n{double}\n",
            total - frozen
        );
        text
    }

    fn row(&self, i: usize) -> [String; 5] {
        let node = &self.nodes[i];
        let name = |source: &Source| match *source {
            Source::Input(i) => self.config.inputs[i].0.as_str(),
            Source::Node(i) => self.nodes[i].name.as_str(),
        };
        let input = match node.inputs[0] {
            Source::Input(i) => self.config.inputs[i].1,
            Source::Node(i) => self.nodes[i].output,
        };
        let shapes = node.params.iter().zip(&node.vars).map(|(param, var)| {
            let short = param.name.strip_prefix(&format!("{}_", node.name)).unwrap_or(&param.name);
            format!("{short}:{:?}", var.dims())
        });
        [
            format!("{} ({})", node.name, node.op.kind()),
            format!("{input} -> {}", node.output),
            node.vars.iter().map(|var| var.elem_count()).sum::<usize>().to_string(),
            shapes.collect::<Vec<_>>().join(", "),
            node.inputs.iter().map(name).collect::<Vec<_>>().join(", "),
        ]
    }
}

/// Numbers as a parameter has them: of its type, and on its device.
#[track_caller]
fn like(var: &Var, values: &Tensor) -> Result<Tensor> {
    let values = values.to_dtype(var.dtype())?;
    if values.device() == var.device() { Ok(values) } else { values.to_device(var.device()) }
}
