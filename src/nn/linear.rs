//! The dense layer, and the multi-layer perceptron made of it.

use crate::nn::Module;
use crate::{DType, Error, Generator, Place, Result, Tensor, Var};

/// `y = x wᵀ + b` with `w` of shape `[out, in]` and `b` of shape `[out]`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Var,
    bias: Var,
}

/// A dense layer with weights and biases uniform in `±1/√in`, owned by the place.
///
/// # Errors
/// [`Error::Argument`] if a size is 0; as [`Tensor::zeros`].
///
/// ```
/// # use ndgc::{nn, nn::Module, DType, Device, Generator, Tensor};
/// let layer = nn::linear(3, 2, &mut Generator::new(1), &Device::Cpu)?;
/// let y = layer.forward(&Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [5, 2]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn linear<P: Place + ?Sized>(inputs: usize, outputs: usize, random: &mut Generator, at: &P) -> Result<Linear> {
    if inputs == 0 || outputs == 0 {
        let value = format!("{inputs} to {outputs}");
        return Err(Error::Argument { op: "linear", argument: "sizes", value, expected: "at least 1" });
    }
    let bound = 1.0 / (inputs as f64).sqrt();
    let weight = random.uniform(-bound, bound, (outputs, inputs), DType::F32, at)?;
    let bias = random.uniform(-bound, bound, outputs, DType::F32, at)?;
    let layer = Linear { weight: Var::from_tensor(&weight)?, bias: Var::from_tensor(&bias)? };
    weight.close();
    bias.close();
    Ok(layer)
}

impl Linear {
    /// A layer of given variables, `[out, in]` and `[out]`.
    pub fn new(weight: Var, bias: Var) -> Self {
        Linear { weight, bias }
    }

    /// The weights.
    pub fn weight(&self) -> &Var {
        &self.weight
    }

    /// The biases.
    pub fn bias(&self) -> &Var {
        &self.bias
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.linear(&self.weight, Some(&self.bias))
    }
}

/// Dense layers with a ReLU between each two.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// Layers of the sizes `[in, hidden.., out]`, drawn from one stream, owned by the place.
    ///
    /// # Errors
    /// As [`linear`]; [`Error::Argument`] for fewer than two sizes.
    pub fn new<P: Place + ?Sized>(sizes: &[usize], random: &mut Generator, at: &P) -> Result<Self> {
        if sizes.len() < 2 {
            let value = format!("{sizes:?}");
            return Err(Error::Argument { op: "mlp", argument: "sizes", value, expected: "an input and an output" });
        }
        let layers = sizes.windows(2).map(|pair| linear(pair[0], pair[1], random, at)).collect::<Result<_>>()?;
        Ok(Mlp { layers })
    }

    /// Every variable, in order.
    pub fn variables(&self) -> Vec<Var> {
        self.layers.iter().flat_map(|layer| [layer.weight.clone(), layer.bias.clone()]).collect()
    }
}

impl Module for Mlp {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x)?;
            if i + 1 < self.layers.len() {
                x = x.relu()?;
            }
        }
        Ok(x)
    }
}
