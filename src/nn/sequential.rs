//! Modules one after the other.

use std::fmt;

use crate::nn::{func::func, module::Module};
use crate::{Result, Tensor};

/// Modules one after the other.
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Module>>,
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequential({} layers)", self.layers.len())
    }
}

/// No module yet: the output is the input.
pub fn seq() -> Sequential {
    Sequential::default()
}

impl Sequential {
    /// Number of modules.
    pub fn len(&self) -> i64 {
        self.layers.len() as i64
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// With another module at the end.
    #[allow(clippy::should_implement_trait)] // candle's name
    pub fn add<M: Module + 'static>(mut self, layer: M) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// With a function at the end.
    pub fn add_fn<F: 'static + Fn(&Tensor) -> Result<Tensor> + Send + Sync>(self, f: F) -> Self {
        self.add(func(f))
    }

    /// The output of each module.
    ///
    /// # Errors
    /// As [`Module::forward`].
    #[track_caller]
    pub fn forward_all(&self, input: &Tensor) -> Result<Vec<Tensor>> {
        let mut all: Vec<Tensor> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            all.push(layer.forward(all.last().unwrap_or(input))?);
        }
        Ok(all)
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(x)
    }
}
