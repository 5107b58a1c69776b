//! Functions as modules.

use std::fmt;
use std::sync::Arc;

use crate::nn::module::{Module, ModuleT};
use crate::{Result, Tensor};

type ForwardFn<'a> = dyn 'a + Fn(&Tensor) -> Result<Tensor> + Send + Sync;
type ForwardFnT<'a> = dyn 'a + Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync;

/// A function as a module.
#[derive(Clone)]
pub struct Func<'a>(Arc<ForwardFn<'a>>);

impl fmt::Debug for Func<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Func")
    }
}

impl<'a> Func<'a> {
    /// A function as a module.
    pub fn new<F: 'a + Fn(&Tensor) -> Result<Tensor> + Send + Sync>(f: F) -> Self {
        Func(Arc::new(f))
    }
}

/// A function as a module.
pub fn func<'a, F: 'a + Fn(&Tensor) -> Result<Tensor> + Send + Sync>(f: F) -> Func<'a> {
    Func::new(f)
}

impl Module for Func<'_> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (self.0)(input)
    }
}

/// A function that is told whether this is training, as a module.
#[derive(Clone)]
pub struct FuncT<'a>(Arc<ForwardFnT<'a>>);

impl fmt::Debug for FuncT<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FuncT")
    }
}

impl<'a> FuncT<'a> {
    /// A function as a module.
    pub fn new<F: 'a + Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync>(f: F) -> Self {
        FuncT(Arc::new(f))
    }
}

/// A function that is told whether this is training, as a module.
pub fn func_t<'a, F: 'a + Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync>(f: F) -> FuncT<'a> {
    FuncT::new(f)
}

impl ModuleT for FuncT<'_> {
    #[track_caller]
    fn forward_t(&self, input: &Tensor, train: bool) -> Result<Tensor> {
        (self.0)(input, train)
    }
}
