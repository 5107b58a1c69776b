//! Normalisation of channels over a batch.

use crate::base::call::Call;
use crate::nn::{init, module::ModuleT, var_builder::VarBuilder};
use crate::ops::call::compose::in_single;
use crate::{Error, Result, Shape, Tensor, Var, no_grad};

/// What a [`BatchNorm`] does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// Whether the mean is taken off in training.
    pub remove_mean: bool,
    /// Whether there are scale and shift.
    pub affine: bool,
    /// Share of the batch in the running statistics.
    pub momentum: f64,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        BatchNormConfig { eps: 1e-5, remove_mean: true, affine: true, momentum: 0.1 }
    }
}

impl From<f64> for BatchNormConfig {
    fn from(eps: f64) -> Self {
        BatchNormConfig { eps, ..Self::default() }
    }
}

/// Each channel (axis 1) brought to mean 0 and variance 1, then scaled and shifted: in training by the statistics of
/// the batch, which go into the running ones; else by the running ones.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    running_mean: Var,
    running_var: Var,
    weight_and_bias: Option<(Tensor, Tensor)>,
    remove_mean: bool,
    eps: f64,
    momentum: f64,
}

impl BatchNorm {
    /// With given statistics, scale and shift, of one number a channel.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::Shape`]; as [`Var::from_tensor`].
    #[track_caller]
    pub fn new(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
    ) -> Result<Self> {
        Self::new_with_momentum(num_features, running_mean, running_var, weight, bias, eps, 0.1)
    }

    /// As [`BatchNorm::new`] without scale and shift.
    ///
    /// # Errors
    /// As [`BatchNorm::new`].
    #[track_caller]
    pub fn new_no_bias(num_features: usize, running_mean: Tensor, running_var: Tensor, eps: f64) -> Result<Self> {
        Self::new_no_bias_with_momentum(num_features, running_mean, running_var, eps, 0.1)
    }

    /// As [`BatchNorm::new`] with another share of the batch.
    ///
    /// # Errors
    /// As [`BatchNorm::new`].
    #[track_caller]
    pub fn new_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        let config = BatchNormConfig { eps, momentum, ..BatchNormConfig::default() };
        Self::of(num_features, [&running_mean, &running_var], Some((weight, bias)), config)
    }

    /// As [`BatchNorm::new_no_bias`] with another share of the batch.
    ///
    /// # Errors
    /// As [`BatchNorm::new`].
    #[track_caller]
    pub fn new_no_bias_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        let config = BatchNormConfig { eps, momentum, ..BatchNormConfig::default() };
        Self::of(num_features, [&running_mean, &running_var], None, config)
    }

    #[track_caller]
    fn of(
        features: usize,
        statistics: [&Tensor; 2],
        weight_and_bias: Option<(Tensor, Tensor)>,
        config: BatchNormConfig,
    ) -> Result<Self> {
        let BatchNormConfig { eps, remove_mean, momentum, .. } = config;
        let call = Call::here("batch_norm");
        if eps.is_nan() || eps < 0.0 {
            return Err(Error::argument(call, "eps", eps, "not negative"));
        }
        if !(0.0..=1.0).contains(&momentum) {
            return Err(Error::argument(call, "momentum", momentum, "from 0 to 1"));
        }
        let mut arrays = statistics.to_vec();
        if let Some((weight, bias)) = &weight_and_bias {
            arrays.extend([weight, bias]);
        }
        for array in arrays {
            if array.dims() != [features] {
                return Err(Error::shape(call, array.dims(), format!("one number for each of {features} channels")));
            }
        }
        let [running_mean, running_var] = statistics.map(Var::from_tensor);
        let (running_mean, running_var) = (running_mean?, running_var?);
        Ok(BatchNorm { running_mean, running_var, weight_and_bias, remove_mean, eps, momentum })
    }

    /// The running means.
    pub fn running_mean(&self) -> &Tensor {
        self.running_mean.as_tensor()
    }

    /// The running variances.
    pub fn running_var(&self) -> &Tensor {
        self.running_var.as_tensor()
    }

    /// Added to the variance.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Share of the batch in the running statistics.
    pub fn momentum(&self) -> f64 {
        self.momentum
    }

    /// Scale and shift.
    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.weight_and_bias.as_ref().map(|(weight, bias)| (weight, bias))
    }

    /// The sizes by which a number a channel is broadcast over `x`.
    #[track_caller]
    fn by_channel(&self, x: &Tensor) -> Result<Shape> {
        let features = self.running_mean.elem_count();
        let dims = x.dims();
        if dims.get(1) != Some(&features) {
            let expected = format!("at least 2 axes, with {features} channels on axis 1");
            return Err(Error::shape(Call::here("batch_norm"), dims, expected));
        }
        Ok(Shape::from(&[1, features, 1, 1, 1, 1][..dims.len()]))
    }

    #[track_caller]
    fn scaled(&self, x: Tensor, dims: Shape) -> Result<Tensor> {
        match &self.weight_and_bias {
            None => Ok(x),
            Some((weight, bias)) => x.broadcast_mul(&weight.reshape(dims)?)?.broadcast_add(&bias.reshape(dims)?),
        }
    }

    /// In training. The running variance takes the unbiased one of the batch; of one value a channel there is none, and
    /// it stays.
    ///
    /// # Errors
    /// [`Error::Shape`], also for no value; as the operations inside. The running statistics are as before then.
    #[track_caller]
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        let dims = self.by_channel(x)?;
        let axes = &[0, 2, 3, 4, 5][..dims.rank() - 1];
        let others = x.dims().iter().enumerate().filter(|&(axis, _)| axis != 1);
        let count: usize = others.map(|(_, &size)| size).product();
        if count == 0 {
            let expected = "a value for each channel, to train";
            return Err(Error::shape(Call::here("batch_norm"), x.dims(), expected));
        }
        let mut statistics = None;
        let y = x.compose("batch_norm", || {
            // The squares of halves may be none of theirs, and their mean, rounded, is far from it.
            let even = in_single(x, |x| {
                let mean = x.mean_keepdim(axes)?;
                let centred = if self.remove_mean { x.broadcast_sub(&mean)? } else { x.clone() };
                let variance = centred.sqr()?.mean_keepdim(axes)?;
                statistics = Some(no_grad(|| {
                    let moved_mean = || {
                        let old = self.running_mean.aside()?.copy()?;
                        Ok::<_, Error>([moved(&self.running_mean, &mean, self.momentum, 1.0)?, old])
                    };
                    let unbiased = || count as f64 / (count - 1) as f64;
                    let moved_variance = || moved(&self.running_var, &variance, self.momentum, unbiased());
                    let mean = self.remove_mean.then(moved_mean).transpose()?;
                    Ok::<_, Error>((mean, (count > 1).then(moved_variance).transpose()?))
                })?);
                centred.broadcast_div(&variance.affine(1.0, self.eps)?.sqrt()?)
            })?;
            self.scaled(even, dims)
        })?;
        match statistics.map_or(Ok(()), |(mean, variance)| self.follow(mean, variance)) {
            Ok(()) => Ok(y),
            Err(error) => {
                y.close();
                Err(error.of(Call::here("batch_norm")))
            }
        }
    }

    /// The running statistics set to these, when nothing else can fail; the means to the second ones again, if somebody
    /// is reading the variances.
    fn follow(&self, mean: Option<[Tensor; 2]>, variance: Option<Tensor>) -> Result<()> {
        mean.iter().try_for_each(|[moved, _]| self.running_mean.set(moved))?;
        let set = variance.map_or(Ok(()), |moved| self.running_var.set(&moved));
        if let (Err(_), Some([_, old])) = (&set, &mean) {
            self.running_mean.set(old)?;
        }
        set
    }

    #[track_caller]
    fn forward_eval(&self, x: &Tensor) -> Result<Tensor> {
        let dims = self.by_channel(x)?;
        x.compose("batch_norm", || {
            let mean = self.running_mean.aside()?.reshape(dims)?;
            let root = self.running_var.aside()?.affine(1.0, self.eps)?.sqrt()?.reshape(dims)?;
            self.scaled(x.broadcast_sub(&mean)?.broadcast_div(&root)?, dims)
        })
    }
}

/// What a running statistic becomes, moved towards that of the batch, which of halves is in f32.
#[track_caller]
fn moved(running: &Var, batch: &Tensor, share: f64, by: f64) -> Result<Tensor> {
    let batch = batch.reshape(running.dims())?.affine(share * by, 0.0)?;
    let old = running.aside()?.to_dtype(batch.dtype())?;
    old.affine(1.0 - share, 0.0)?.add(&batch)?.to_dtype(running.dtype())
}

impl ModuleT for BatchNorm {
    #[track_caller]
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { self.forward_train(x) } else { self.forward_eval(x) }
    }
}

/// A [`BatchNorm`] with means of 0 and variances of 1, scale 1 and shift 0, or out of a file.
///
/// # Errors
/// As [`BatchNorm::new`] and [`VarBuilder::get_with_hints`].
///
/// ```
/// # use ndgc::{nn, nn::ModuleT, DType, Device, Tensor};
/// let weights = nn::VarMap::new();
/// let vb = nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let norm = nn::batch_norm(1, 1e-5, vb)?;
/// let x = Tensor::new(&[[1f32], [3.]], &Device::Cpu)?; // two rows of one channel
/// let y = norm.forward_t(&x, true)?.to_vec2::<f32>()?;
/// assert!((y[0][0] + 1.).abs() < 1e-3 && (y[1][0] - 1.).abs() < 1e-3);
/// let mean = norm.running_mean().to_vec1::<f32>()?[0]; // a tenth of the way from 0 to 2
/// assert!((mean - 0.2).abs() < 1e-6);
/// assert!(weights.data().lock().unwrap().contains_key("running_mean")); // saved with the weights
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn batch_norm<C: Into<BatchNormConfig>>(num_features: usize, config: C, vb: VarBuilder) -> Result<BatchNorm> {
    let config = config.into();
    let running_mean = vb.get_with_hints(num_features, "running_mean", init::ZERO)?;
    let running_var = vb.get_with_hints(num_features, "running_var", init::ONE)?;
    let weight_and_bias = match config.affine {
        true => Some((
            vb.get_with_hints(num_features, "weight", init::ONE)?,
            vb.get_with_hints(num_features, "bias", init::ZERO)?,
        )),
        false => None,
    };
    BatchNorm::of(num_features, [&running_mean, &running_var], weight_and_bias, config)
}
