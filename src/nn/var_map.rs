//! Variables by name.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::call::Call;
use crate::nn::init::Init;
use crate::{DType, Device, Error, Result, Shape, Tensor, Var, safetensors};

/// Variables by name, shared by clones: what is trained, saved and loaded.
#[derive(Clone, Debug, Default)]
pub struct VarMap {
    data: Arc<Mutex<HashMap<String, Var>>>,
}

impl VarMap {
    /// Without variables.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Var>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every variable, in no order.
    pub fn all_vars(&self) -> Vec<Var> {
        self.lock().values().cloned().collect()
    }

    /// The variables by name.
    pub fn data(&self) -> &Mutex<HashMap<String, Var>> {
        &self.data
    }

    /// Writes the variables to a file of safetensors.
    ///
    /// # Errors
    /// As [`safetensors::save`].
    #[track_caller]
    pub fn save<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        let all: HashMap<String, Tensor> =
            self.lock().iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
        safetensors::save(&all, path)
    }

    /// Sets every variable to what a file of safetensors has under its name.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] for a variable that is not in the file; [`Error::File`]; as [`Var::set`]. Variables
    /// before the one that failed keep their new values.
    #[track_caller]
    pub fn load<P: AsRef<Path>>(&mut self, path: P) -> Result<()> {
        let file = safetensors::SafeTensorsFile::new(path)?;
        for (name, var) in self.lock().iter() {
            set(name, var, &file.load(name, var.device())?)?;
        }
        Ok(())
    }

    /// Sets one variable.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`]; as [`Var::set`].
    #[track_caller]
    pub fn set_one<K: AsRef<str>, V: AsRef<Tensor>>(&mut self, name: K, value: V) -> Result<()> {
        self.set(std::iter::once((name, value)))
    }

    /// Sets several variables.
    ///
    /// # Errors
    /// As [`VarMap::set_one`]; those before the one that failed keep their new values.
    #[track_caller]
    pub fn set<I: Iterator<Item = (K, V)>, K: AsRef<str>, V: AsRef<Tensor>>(&mut self, values: I) -> Result<()> {
        let vars = self.lock();
        for (name, value) in values {
            let name = name.as_ref();
            let Some(var) = vars.get(name) else { return Err(Error::no_tensor(name, None, vars.keys())) };
            set(name, var, value.as_ref())?;
        }
        Ok(())
    }

    /// The variable of this name, made if there is none.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if it has another shape; as [`Init::var`].
    #[track_caller]
    pub fn get<S: Into<Shape>>(
        &self,
        shape: S,
        path: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let mut vars = self.lock();
        if let Some(var) = vars.get(path) {
            check_shape(path, var, &shape)?;
            return Ok(var.as_tensor().clone());
        }
        let var = init.var(shape, dtype, device)?;
        let tensor = var.as_tensor().clone();
        vars.insert(path.to_owned(), var);
        Ok(tensor)
    }
}

#[track_caller]
fn set(name: &str, var: &Var, value: &Tensor) -> Result<()> {
    var.set(value).map_err(|error| error.context(format!("the variable `{name}`")))
}

/// Whether a weight has the shape asked for.
#[track_caller]
pub(super) fn check_shape(name: &str, found: &Tensor, wanted: &Shape) -> Result<()> {
    if found.shape() == wanted {
        return Ok(());
    }
    let why = format!("the model wants the first for `{name}`, and the second is there");
    Err(Error::shape_mismatch(Call::here("VarBuilder::get"), wanted.dims(), found.dims(), why))
}
