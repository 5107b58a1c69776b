//! Normalisation over groups of channels.

use crate::base::call::Call;
use crate::nn::{init, module::Module, var_builder::VarBuilder};
use crate::{Error, Result, Tensor};

/// Each group of channels (axis 1) of each row brought to mean 0 and variance 1, then scaled and shifted by channel.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// With given scale and shift, of one number a channel.
    ///
    /// # Errors
    /// [`Error::Argument`] if the groups do not divide the channels.
    #[track_caller]
    pub fn new(weight: Tensor, bias: Tensor, num_channels: usize, num_groups: usize, eps: f64) -> Result<Self> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let value = format!("{num_groups} for {num_channels} channels");
            let (call, expected) = (Call::here("group_norm"), "a divisor of the number of channels");
            return Err(Error::argument(call, "num_groups", value, expected));
        }
        Ok(GroupNorm { weight, bias, eps, num_channels, num_groups })
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let dims = x.dims();
        if dims.len() < 3 || dims[1] != self.num_channels {
            let expected = format!("at least 3 axes, with {} channels on axis 1", self.num_channels);
            return Err(Error::shape(Call::here("group_norm"), dims, expected));
        }
        x.group_norm(self.num_groups, &self.weight, &self.bias, self.eps)
    }
}

/// A [`GroupNorm`] of ones and zeros, or out of a file.
///
/// # Errors
/// As [`GroupNorm::new`] and [`VarBuilder::get_with_hints`].
#[track_caller]
pub fn group_norm(num_groups: usize, num_channels: usize, eps: f64, vb: VarBuilder) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", init::ONE)?;
    let bias = vb.get_with_hints(num_channels, "bias", init::ZERO)?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
