//! Variables by name.

use std::collections::{HashMap, hash_map::Entry};
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

    /// Not to be held while memory is taken or the user's code runs, which may look at the map.
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
    ///
    /// ```
    /// # use ndgc::{nn, nn::Init, DType, Device};
    /// # let path = std::env::temp_dir().join(format!("ndgc-varmap-{}.safetensors", std::process::id()));
    /// let named = |value| {
    ///     let weights = nn::VarMap::new();
    ///     weights.get(2, "w", Init::Const(value), DType::F32, &Device::Cpu)?;
    ///     Ok::<_, ndgc::Error>(weights)
    /// };
    /// named(7.)?.save(&path)?;
    /// let mut weights = named(0.)?; // a model is made first, and then loaded
    /// weights.load(&path)?;
    /// assert_eq!(weights.all_vars()[0].to_vec1::<f32>()?, [7., 7.]);
    /// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
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
        let vars: Vec<(String, Var)> = self.lock().iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        for (name, var) in &vars {
            set(name, var, &file.load(name, var.device())?)?;
        }
        Ok(())
    }

    /// Sets one variable.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`]; as [`Var::set`].
    ///
    /// ```
    /// # use ndgc::{nn, nn::Init, DType, Device, Error, Tensor};
    /// let mut weights = nn::VarMap::new();
    /// let w = weights.get(2, "w", Init::Const(0.), DType::F32, &Device::Cpu)?;
    /// let value = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// weights.set_one("w", &value)?;
    /// assert_eq!(w.to_vec1::<f32>()?, [1., 2.]); // layers that have it see it
    /// assert!(matches!(weights.set_one("v", &value), Err(Error::CannotFindTensor { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn set_one<K: AsRef<str>, V: AsRef<Tensor>>(&mut self, name: K, value: V) -> Result<()> {
        self.set(std::iter::once((name, value)))
    }

    /// Sets several variables. `values` may look at the map.
    ///
    /// # Errors
    /// As [`VarMap::set_one`]; those before the one that failed keep their new values.
    #[track_caller]
    pub fn set<I: Iterator<Item = (K, V)>, K: AsRef<str>, V: AsRef<Tensor>>(&mut self, values: I) -> Result<()> {
        for (name, value) in values {
            let name = name.as_ref();
            set(name, &self.find(name)?, value.as_ref())?;
        }
        Ok(())
    }

    #[track_caller]
    fn find(&self, name: &str) -> Result<Var> {
        let vars = self.lock();
        // Not in a closure, which would be the line that asked for it.
        match vars.get(name) {
            Some(var) => Ok(var.clone()),
            None => Err(Error::no_tensor(name, None, vars.keys())),
        }
    }

    /// The variable of this name, made if there is none. Of several threads that make one, all get that of the first.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if it has another shape; as [`Init::var`].
    ///
    /// ```
    /// # use ndgc::{nn, nn::Init, DType, Device, Error};
    /// let weights = nn::VarMap::new();
    /// let get = |size: usize, value| weights.get(size, "w", Init::Const(value), DType::F32, &Device::Cpu);
    /// assert_eq!(get(2, 7.)?.to_vec1::<f32>()?, [7., 7.]);
    /// assert_eq!(get(2, 0.)?.to_vec1::<f32>()?, [7., 7.]); // it is there already
    /// assert!(matches!(get(3, 7.), Err(Error::ShapeMismatch { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
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
        let found = self.lock().get(path).cloned();
        if let Some(var) = found {
            check_shape(path, &var, &shape)?;
            return Ok(var.as_tensor().clone());
        }
        let var = init.var(shape, dtype, device)?;
        match self.lock().entry(path.to_owned()) {
            Entry::Occupied(first) => {
                check_shape(path, first.get(), &shape)?;
                Ok(first.get().as_tensor().clone())
            }
            Entry::Vacant(place) => Ok(place.insert(var).as_tensor().clone()),
        }
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
