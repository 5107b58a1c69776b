//! What maps arrays to arrays.

use crate::quantized::QMatMul;
use crate::{Result, Tensor};

/// Something that maps an array to an array; also a function, and an optional module, where none hands its input on.
pub trait Module {
    /// The output for an input; it belongs to the owner of the input, as every result does.
    ///
    /// # Errors
    /// Those of the operations inside.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor>;
}

impl<F: Fn(&Tensor) -> Result<Tensor>> Module for F {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self(input)
    }
}

impl<M: Module> Module for Option<&M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match self {
            Some(module) => module.forward(input),
            None => Ok(input.clone()),
        }
    }
}

impl Module for QMatMul {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        QMatMul::forward(self, input)
    }
}

/// A module that may differ between training and use. Every [`Module`] is one that does not.
pub trait ModuleT {
    /// As [`Module::forward`], told whether this is training.
    ///
    /// # Errors
    /// As [`Module::forward`].
    #[track_caller]
    fn forward_t(&self, input: &Tensor, train: bool) -> Result<Tensor>;
}

impl<M: Module> ModuleT for M {
    #[track_caller]
    fn forward_t(&self, input: &Tensor, _train: bool) -> Result<Tensor> {
        self.forward(input)
    }
}

/// # Networks: modules
impl Tensor {
    /// The output of a module for this array.
    ///
    /// # Errors
    /// As [`Module::forward`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[1f32, -2.], &Device::Cpu)?;
    /// assert_eq!(x.apply(&|x: &Tensor| x.relu())?.to_vec1::<f32>()?, [1., 0.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn apply<M: Module>(&self, module: &M) -> Result<Tensor> {
        module.forward(self)
    }

    /// As [`Tensor::apply`], told whether this is training.
    ///
    /// # Errors
    /// As [`Module::forward`].
    #[track_caller]
    pub fn apply_t<M: ModuleT>(&self, module: &M, train: bool) -> Result<Tensor> {
        module.forward_t(self, train)
    }

    /// Alias of [`Tensor::key`]: candle's name.
    pub fn id(&self) -> crate::TensorId {
        self.key()
    }
}
