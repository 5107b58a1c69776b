//! Convolutions: `[batch, channels, width]` or `[batch, channels, height, width]`.

use crate::base::call::Call;
use crate::nn::{
    batch_norm::BatchNorm,
    init::{self, Init},
    module::Module,
    var_builder::VarBuilder,
};
use crate::{Error, Result, Tensor};

/// candle's choice among cuDNN's algorithms, which ndgc does not use: accepted and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // cuDNN's names
pub enum CudnnFwdAlgo {
    ImplicitGemm,
    ImplicitPrecompGemm,
    Gemm,
    Direct,
    Fft,
    FftTiling,
    Winograd,
    WinogradNonFused,
    Count,
}

macro_rules! convolution {
    (
        $(#[$config_doc:meta])* $config:ident {
            $($(#[$field_doc:meta])* $field:ident: $t:ty = $default:expr),*;
            $($(#[$last_doc:meta])* $last:ident: $of_last:ty = $last_default:expr),*
        }
        $(#[$doc:meta])* $name:ident, $axes:literal, |$x:ident, $w:ident, $c:ident| $run:expr
    ) => {
        $(#[$config_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $config {
            $($(#[$field_doc])* pub $field: $t,)*
            /// Steps between windows.
            pub stride: usize,
            /// Steps between the elements of a window.
            pub dilation: usize,
            $($(#[$last_doc])* pub $last: $of_last,)*
        }

        impl Default for $config {
            fn default() -> Self {
                $config { $($field: $default,)* stride: 1, dilation: 1, $($last: $last_default),* }
            }
        }

        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            weight: Tensor,
            bias: Option<Tensor>,
            config: $config,
        }

        impl $name {
            /// With given weights and biases.
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> Self {
                $name { weight, bias, config }
            }

            /// What it does.
            pub fn config(&self) -> &$config {
                &self.config
            }

            /// The weights.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// The biases, one a channel.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }

        impl Module for $name {
            #[track_caller]
            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                let ($w, $c) = (&self.weight, &self.config);
                match &self.bias {
                    None => $run,
                    Some(bias) => $x.compose(stringify!($name), || {
                        let mut dims = [1; 2 + $axes];
                        dims[1] = bias.shape().dims1()?;
                        let y: Tensor = $run?;
                        y.broadcast_add(&bias.reshape(dims)?)
                    }),
                }
            }
        }
    };
}

convolution! {
    /// What a [`Conv1d`] does.
    Conv1dConfig {
        /// Zeros at either end.
        padding: usize = 0;
        /// Groups of channels that do not meet.
        groups: usize = 1,
        /// Ignored.
        cudnn_fwd_algo: Option<CudnnFwdAlgo> = None
    }
    /// A convolution along one axis, with weights `[out, in / groups, k]`.
    Conv1d, 1, |x, w, c| x.conv1d(w, c.padding, c.stride, c.dilation, c.groups)
}

convolution! {
    /// What a [`Conv2d`] does.
    Conv2dConfig {
        /// Zeros at each side.
        padding: usize = 0;
        /// Groups of channels that do not meet.
        groups: usize = 1,
        /// Ignored.
        cudnn_fwd_algo: Option<CudnnFwdAlgo> = None
    }
    /// A convolution along two axes, with weights `[out, in / groups, k, k]`.
    Conv2d, 2, |x, w, c| x.conv2d(w, c.padding, c.stride, c.dilation, c.groups)
}

convolution! {
    /// What a [`ConvTranspose1d`] does.
    ConvTranspose1dConfig {
        /// Elements taken off either end.
        padding: usize = 0,
        /// Elements added at the far end.
        output_padding: usize = 0;
        /// Groups of channels that do not meet.
        groups: usize = 1
    }
    /// A transposed convolution along one axis, with weights `[in, out / groups, k]`.
    ConvTranspose1d, 1, |x, w, c| {
        x.conv_transpose1d(w, c.padding, c.output_padding, c.stride, c.dilation, c.groups)
    }
}

convolution! {
    /// What a [`ConvTranspose2d`] does.
    ConvTranspose2dConfig {
        /// Elements taken off each side.
        padding: usize = 0,
        /// Elements added at the far sides.
        output_padding: usize = 0;
    }
    /// A transposed convolution along two axes, with weights `[in, out, k, k]`.
    ConvTranspose2d, 2, |x, w, c| x.conv_transpose2d(w, c.padding, c.output_padding, c.stride, c.dilation)
}

impl Conv2d {
    /// One convolution for this one and the batch norm behind it, in use.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the batch norm has no scale and shift; as the operations inside.
    #[track_caller]
    pub fn absorb_bn(&self, bn: &BatchNorm) -> Result<Self> {
        let Some((scale, shift)) = bn.weight_and_bias() else {
            return Err(Error::invalid(Call::here("absorb_bn"), "the batch norm has no scale and shift"));
        };
        let by = scale.div(&bn.running_var().affine(1.0, bn.eps())?.sqrt()?)?;
        let weight = self.weight.broadcast_mul(&by.reshape((by.elem_count(), 1, 1, 1))?)?;
        let mean = match &self.bias {
            None => bn.running_mean().neg()?,
            Some(bias) => bias.sub(bn.running_mean())?,
        };
        Ok(Conv2d { weight, bias: Some(shift.add(&by.mul(&mean)?)?), config: self.config })
    }
}

#[track_caller]
fn grouped(op: &'static str, channels: usize, groups: usize) -> Result<usize> {
    let call = Call::here(op);
    channels.checked_div(groups).ok_or_else(|| Error::argument(call, "groups", groups, "at least 1"))
}

/// Builders of a layer: with biases, and without. `|inputs, outputs, size, config|` makes the weights' shape and what
/// they and the biases are drawn from.
macro_rules! builders {
    ($(
        $(#[$doc:meta])* $name:ident, $(#[$plain_doc:meta])* $plain:ident, $layer:ident, $config:ident,
        |$inputs:ident, $outputs:ident, $size:ident, $cfg:ident| $shape:expr, $weight:expr, $bias:expr;
    )*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name($inputs: usize, $outputs: usize, $size: usize, $cfg: $config, vb: VarBuilder) -> Result<$layer> {
            let layer = $plain($inputs, $outputs, $size, $cfg, vb.clone())?;
            let bias = vb.get_with_hints($outputs, "bias", $bias)?;
            Ok($layer { bias: Some(bias), ..layer })
        }

        $(#[$plain_doc])*
        #[track_caller]
        pub fn $plain($inputs: usize, $outputs: usize, $size: usize, $cfg: $config, vb: VarBuilder) -> Result<$layer> {
            Ok($layer::new(vb.get_with_hints($shape, "weight", $weight)?, None, $cfg))
        }
    )*};
}

builders! {
    /// A [`Conv1d`] with weights normal after He and uniform biases, or out of a file.
    ///
    /// # Errors
    /// [`Error::Argument`] for no groups; as [`VarBuilder::get_with_hints`].
    conv1d,
    /// As [`conv1d()`] without biases.
    ///
    /// # Errors
    /// As [`conv1d()`].
    conv1d_no_bias, Conv1d, Conv1dConfig,
    |inputs, outputs, size, cfg| (outputs, grouped("conv1d", inputs, cfg.groups)?, size),
    init::DEFAULT_KAIMING_NORMAL, Init::within(1.0 / (inputs as f64).sqrt());
    /// A [`Conv2d`] with weights normal after He and uniform biases, or out of a file.
    ///
    /// # Errors
    /// As [`conv1d()`].
    conv2d,
    /// As [`conv2d()`] without biases.
    ///
    /// # Errors
    /// As [`conv1d()`].
    conv2d_no_bias, Conv2d, Conv2dConfig,
    |inputs, outputs, size, cfg| (outputs, grouped("conv2d", inputs, cfg.groups)?, size, size),
    init::DEFAULT_KAIMING_NORMAL, Init::within(1.0 / (inputs as f64).sqrt());
    /// A [`ConvTranspose1d`] of uniform numbers, or out of a file.
    ///
    /// # Errors
    /// As [`conv1d()`].
    conv_transpose1d,
    /// As [`conv_transpose1d()`] without biases.
    ///
    /// # Errors
    /// As [`conv1d()`].
    conv_transpose1d_no_bias, ConvTranspose1d, ConvTranspose1dConfig,
    |inputs, outputs, size, cfg| (inputs, grouped("conv_transpose1d", outputs, cfg.groups)?, size),
    Init::within(1.0 / (outputs as f64 * size as f64).sqrt()), Init::within(1.0 / (outputs as f64 * size as f64).sqrt());
    /// A [`ConvTranspose2d`] of uniform numbers, or out of a file.
    ///
    /// # Errors
    /// As [`VarBuilder::get_with_hints`].
    conv_transpose2d,
    /// As [`conv_transpose2d()`] without biases.
    ///
    /// # Errors
    /// As [`VarBuilder::get_with_hints`].
    conv_transpose2d_no_bias, ConvTranspose2d, ConvTranspose2dConfig,
    |inputs, outputs, size, cfg| (inputs, outputs, size, size),
    Init::within(1.0 / (outputs as f64).sqrt() / size as f64), Init::within(1.0 / (outputs as f64).sqrt() / size as f64);
}
