//! The dense layer, and the multi-layer perceptron made of it.

use std::panic::Location;

use crate::base::call::Call;
use crate::nn::{
    init::{self, Init},
    module::Module,
    var_builder::VarBuilder,
};
use crate::ops::call::exec::kept;
use crate::{DType, Error, Generator, Place, Result, Tensor, Var};

/// `y = x wᵀ + b` with `w` of shape `[out, in]` and `b` of shape `[out]`, or another that broadcasts to `y`, or none.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// A dense layer: weights normal after He, biases uniform in `±1/√in` (zeros without inputs), or both out of a file.
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
///
/// ```
/// # use ndgc::{nn, nn::Module, DType, Device, Tensor};
/// let weights = nn::VarMap::new();
/// let vb = nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let layer = nn::linear(3, 2, vb.pp("first"))?;
/// let y = layer.forward(&Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [5, 2]);
/// assert!(weights.data().lock().unwrap().contains_key("first.weight"));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", init::DEFAULT_KAIMING_NORMAL)?;
    let bias = vb.get_with_hints(out_dim, "bias", Init::within(1.0 / (in_dim as f64).sqrt()))?;
    Ok(Linear::new(weight, Some(bias)))
}

/// As [`linear()`] without biases.
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", init::DEFAULT_KAIMING_NORMAL)?;
    Ok(Linear::new(weight, None))
}

/// [`linear()`] or [`linear_no_bias`].
///
/// # Errors
/// As [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    if bias { linear(in_dim, out_dim, vb) } else { linear_no_bias(in_dim, out_dim, vb) }
}

impl Linear {
    /// A layer of given weights, `[out, in]`, and biases, `[out]`.
    ///
    /// ```
    /// # use ndgc::{nn, nn::Module, Device, Tensor};
    /// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?; // two in, three out
    /// let bias = Tensor::new(&[0f32, 0., 1.], &Device::Cpu)?;
    /// let layer = nn::Linear::new(weight, Some(bias));
    /// let y = layer.forward(&Tensor::new(&[[1f32, 1.]], &Device::Cpu)?)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[3., 7., 12.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Linear { weight, bias }
    }

    /// The weights.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The biases.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) if bias.rank() > 1 => input.linear(&self.weight, None)?.broadcast_add(bias),
            bias => input.linear(&self.weight, bias.as_ref()),
        }
    }
}

/// Dense layers with a ReLU between each two.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
    variables: Vec<Var>,
}

impl Mlp {
    /// Layers of the sizes `[in, hidden.., out]`, uniform in `±1/√in`, drawn from one stream on the device of the
    /// place. The variables belong to their handles, as all that layers keep.
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer than two sizes, or one of 0; as [`Tensor::zeros`].
    #[track_caller]
    pub fn new<P: Place + ?Sized>(sizes: &[usize], random: &mut Generator, at: &P) -> Result<Self> {
        if sizes.len() < 2 || sizes.contains(&0) {
            let value = format!("{sizes:?}");
            let expected = "an input and an output, each at least 1";
            return Err(Error::argument(Call::here("mlp"), "sizes", value, expected));
        }
        kept(Location::caller(), || Self::drawn(sizes, random, at))
    }

    fn drawn<P: Place + ?Sized>(sizes: &[usize], random: &mut Generator, at: &P) -> Result<Self> {
        let mut mlp = Mlp { layers: Vec::new(), variables: Vec::new() };
        for pair in sizes.windows(2) {
            let bound = 1.0 / (pair[0] as f64).sqrt();
            let [weight, bias] = [vec![pair[1], pair[0]], vec![pair[1]]].map(|shape| {
                let drawn = random.uniform(-bound, bound, shape, DType::F32, at)?;
                let variable = Var::from_tensor(&drawn);
                drawn.close();
                variable
            });
            let (weight, bias) = (weight?, bias?);
            mlp.layers.push(Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone())));
            mlp.variables.extend([weight, bias]);
        }
        Ok(mlp)
    }

    /// Every variable, in order.
    pub fn variables(&self) -> Vec<Var> {
        self.variables.clone()
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
