//! Training: steps, epochs, gradients for others.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

use ndgc::{D, Error, Result, Tensor, Var, Workspace};

use super::super::data::{DataIterator, DataSet, Examples};
use super::super::place::called_here;
use super::engine::{Labels, Run};
use super::layer::InputType;
use super::masks::Masks;
use super::network::{Network, ParamInfo, TrainingListener};
use super::scratch::Slots;
use super::workspaces::ArrayType;

/// # Training
impl Network {
    /// One step on a batch; a series longer than [`tbptt_length`](super::NetworkConfig::tbptt_length) is one step a
    /// segment. Returns the score before the step: the mean of the losses, and penalties. A batch without examples is
    /// no step: nothing changes, no listener is called, and the score is that of the batch before ([`Network::score`]).
    ///
    /// # Errors
    /// [`Error::Argument`](ndgc::Error::Argument) if arrays are missing,
    /// [`Error::ShapeMismatch`](ndgc::Error::ShapeMismatch) if they do not fit; those of the layers; as
    /// [`Tensor::backward`]. No parameter is changed then, nor what updaters keep, but running means of the way
    /// forward; unless memory ends in the update itself, which needs none but for copies of gradients that are not
    /// contiguous. Those of a listener, which is called after the step.
    #[track_caller]
    pub fn fit_batch<B: Examples>(&mut self, batch: &B) -> Result<f64> {
        if batch.features().first().is_some_and(|first| first.dims().first() == Some(&0)) {
            // It has nothing to learn from; penalties and what updaters keep would move parameters all the same.
            return Ok(self.score);
        }
        called_here(match self.segments(batch) {
            Some((length, steps)) => {
                self.rnn_clear_previous_state();
                let score = catch_unwind(AssertUnwindSafe(|| self.fit_segments(batch, length, steps)));
                // Also after a panic of a layer or a listener.
                self.rnn_clear_previous_state();
                let score = score.unwrap_or_else(|panic| resume_unwind(panic));
                score.inspect(|&score| self.score = score)
            }
            None => self.fit_parts(
                [batch.features(), batch.labels()],
                [batch.features_masks(), batch.labels_masks()],
                false,
            ),
        })
    }

    /// The steps of a segment and of the whole series, where a batch is trained on in segments.
    pub(crate) fn segments(&self, batch: &dyn Examples) -> Option<(usize, usize)> {
        let length = self.config.tbptt?;
        let inputs = batch.features().iter().zip(&self.config.inputs);
        let mut series = inputs.filter(|(_, (_, kind))| matches!(kind, InputType::Recurrent { .. }));
        let &steps = series.next()?.0.dims().get(1..)?.last()?;
        (steps > length).then_some((length, steps))
    }

    /// A step for each segment of a series; recurrent layers go on from one to the next. Returns the mean score.
    fn fit_segments(&mut self, batch: &dyn Examples, length: usize, steps: usize) -> Result<f64> {
        let inputs: Vec<InputType> = self.config.inputs.iter().map(|(_, kind)| *kind).collect();
        let outputs: Vec<InputType> = self.outputs.iter().map(|&output| self.nodes[output].output).collect();
        let mut total = 0.0;
        for start in (0..steps).step_by(length) {
            let len = length.min(steps - start);
            // Steps are the last axis: of `[n, size, t]`, of numbers `[n, t]`, and of masks. A mask `[n]` has none.
            let cut = |(array, kind): (&Tensor, &InputType)| match (kind, array.dims()) {
                (InputType::Recurrent { .. }, &[_, .., last]) if last == steps => array.narrow(D::Minus1, start, len),
                _ => Ok(array.clone()),
            };
            let arrays =
                |all: &[Tensor], kinds: &[InputType]| all.iter().zip(kinds).map(cut).collect::<Result<Vec<_>>>();
            let masks = |all: &[Option<Tensor>], kinds: &[InputType]| {
                let masks = all.iter().zip(kinds);
                masks
                    .map(|(mask, kind)| mask.as_ref().map(|mask| cut((mask, kind))).transpose())
                    .collect::<Result<Vec<_>>>()
            };
            let (features, labels) = (arrays(batch.features(), &inputs)?, arrays(batch.labels(), &outputs)?);
            let (feature_masks, label_masks) =
                (masks(batch.features_masks(), &inputs)?, masks(batch.labels_masks(), &outputs)?);
            total += self.fit_parts([&features, &labels], [&feature_masks, &label_masks], true)?;
        }
        Ok(total / steps.div_ceil(length) as f64)
    }

    fn fit_parts(
        &mut self,
        [features, labels]: [&[Tensor]; 2],
        [feature_masks, label_masks]: [&[Option<Tensor>]; 2],
        carries: bool,
    ) -> Result<f64> {
        let mgr = &self.training;
        let features = self.prepared(features, feature_masks, mgr)?;
        let met = self.met(feature_masks)?;
        let masks = Masks { given: feature_masks, met: &met };
        let run = Run { features: &features, masks, mgr, training: true, again: false, carries };
        let labels = Labels { labels, masks: label_masks };
        let penalties = self.penalties()?;
        let step = mgr.enter(ArrayType::Activations)?;
        let (score, mut gradients) = self.gradients(&labels, &run)?;
        self.update(&mut gradients)?;
        drop((gradients, step, features, met));
        (self.score, self.iteration) = (score + penalties, self.iteration.saturating_add(1));
        // Of the segments of a series: a listener that asks step by step has a series of its own.
        let is_heard = carries && !self.listeners_mut().is_empty();
        let mut states: Vec<Vec<Tensor>> = if is_heard { vec![Vec::new(); self.nodes.len()] } else { Vec::new() };
        self.swap_memories(&mut states, true);
        let told = self.notify_listeners(|listener, net| listener.iteration_done(net));
        self.swap_memories(&mut states, true);
        told.map(|()| self.score)
    }

    /// One pass over the batches, which are reset before. Batches that others make ahead
    /// (`AsyncDataSetIterator`) are taken as they come.
    ///
    /// ```
    /// use ndgc::train::{ArrayDataSetIterator, DataSet, InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(OutputLayer::new(3, Loss::Mse));
    /// let mut net = net.build()?;
    /// let x = Tensor::ones((10, 3), DType::F32, &Device::Cpu)?;
    /// let mut batches = ArrayDataSetIterator::new(DataSet::new(x.clone(), x)?, 4)?; // of 4, 4 and 2
    /// net.fit(&mut batches)?;
    /// assert_eq!((net.epoch(), net.iteration()), (1, 3));
    /// net.fit(&mut batches)?; // it begins again
    /// assert_eq!((net.epoch(), net.iteration()), (2, 6));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of the iterator, of a step, of a listener; the network can be used after each.
    #[track_caller]
    pub fn fit<B: Examples, I: DataIterator<B>>(&mut self, batches: I) -> Result<()> {
        self.fit_until(batches, &mut |_| false)
    }

    /// As [`Network::fit`], but for a pass that breaks off where `ends` says so after a batch, unless that was no step:
    /// it is not counted, and listeners are not told of its end.
    #[track_caller]
    pub(super) fn fit_until<B: Examples, I: DataIterator<B>>(
        &mut self,
        mut batches: I,
        ends: &mut dyn FnMut(&Network) -> bool,
    ) -> Result<()> {
        batches.reset()?;
        self.begin_epoch()?;
        for batch in batches {
            let before = self.iteration;
            self.fit_batch(&batch?)?;
            if self.iteration != before && ends(self) {
                return Ok(());
            }
        }
        self.end_epoch()
    }

    pub(crate) fn begin_epoch(&mut self) -> Result<()> {
        self.notify_listeners(|listener, net| listener.on_epoch_start(net))
    }

    pub(crate) fn end_epoch(&mut self) -> Result<()> {
        self.epoch = self.epoch.saturating_add(1);
        self.notify_listeners(|listener, net| listener.on_epoch_end(net))
    }

    /// So many passes over the batches.
    ///
    /// # Errors
    /// As [`Network::fit`].
    #[track_caller]
    pub fn fit_epochs<B: Examples, I: DataIterator<B>>(&mut self, mut batches: I, epochs: usize) -> Result<()> {
        for _ in 0..epochs {
            self.fit(&mut batches)?;
        }
        Ok(())
    }

    /// One step on arrays: features and labels.
    ///
    /// # Errors
    /// As [`Network::fit_batch`].
    #[track_caller]
    pub fn fit_arrays(&mut self, features: &Tensor, labels: &Tensor) -> Result<f64> {
        self.fit_batch(&DataSet::new(features.clone(), labels.clone())?)
    }

    /// The score of a batch, and its gradients by the parameters' names, detached: before normalisation, penalties and
    /// updater, divided by the examples of the batch; of a whole series, however long. Nothing is changed but running
    /// means. Several threads may call it: each waits until the one before is done.
    ///
    /// ```
    /// use ndgc::train::{DataSet, InputType, Loss, NetworkConfig, OutputLayer, Updater, WeightInit};
    /// use ndgc::{Device, Tensor};
    ///
    /// let config = NetworkConfig::builder().weight_init(WeightInit::Constant(0.)).updater(Updater::sgd(0.5));
    /// let net = config.input_type(InputType::feed_forward(1)).layer(OutputLayer::new(1, Loss::Mse));
    /// let mut net = net.build()?;
    /// let batch = DataSet::new(Tensor::new(&[[2f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?)?;
    /// let (gradients, score) = net.compute_gradient_and_score(&batch)?; // of (2 w + b - 1)^2
    /// assert_eq!((score, gradients[0].0.as_str(), net.iteration()), (1., "0_W", 0));
    /// assert_eq!(gradients[0].1.to_vec2::<f32>()?, [[-4.]]);
    /// net.apply_gradients(&gradients)?; // the step that `fit_batch` would have made
    /// assert_eq!(net.param("0_W").unwrap().to_vec2::<f32>()?, [[2.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Network::fit_batch`].
    #[track_caller]
    pub fn compute_gradient_and_score<B: Examples>(&self, batch: &B) -> Result<(Vec<(String, Tensor)>, f64)> {
        called_here(self.gradient_and_score(batch, false))
    }

    /// As [`Network::compute_gradient_and_score`]; `again`: running means stay as they are.
    pub(crate) fn gradient_and_score(&self, batch: &dyn Examples, again: bool) -> Result<(Vec<(String, Tensor)>, f64)> {
        let (given, mgr) = (batch.features_masks(), &self.training);
        let features = self.prepared(batch.features(), given, mgr)?;
        let met = self.met(given)?;
        let masks = Masks { given, met: &met };
        let run = Run { features: &features, masks, mgr, training: true, again, carries: false };
        let labels = Labels { labels: batch.labels(), masks: batch.labels_masks() };
        // What layers keep of the way forward is the network's.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let step = self.training.enter(ArrayType::Activations)?;
        let (score, mut found) = self.gradients(&labels, &run)?;
        let out = Workspace::scope_out();
        let named = self.named().zip(found.iter_mut()).filter_map(|((param, _), grad)| Some((param, grad.take()?)));
        let gradients = named.map(|(param, grad)| Ok((param.name.clone(), grad.try_detach()?)));
        let gradients = gradients.collect::<Result<Vec<_>>>()?;
        drop((found, out, step));
        Ok((gradients, score + self.penalties()?))
    }

    /// A step along gradients that were computed elsewhere, by the parameters' names: as [`Network::fit_batch`] makes
    /// of its own. [`Network::score`] stays what it was.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`](ndgc::Error::CannotFindTensor) for a name that is no parameter's;
    /// [`Error::ShapeMismatch`](ndgc::Error::ShapeMismatch) and its kin for a gradient that is not like its parameter,
    /// which change nothing; as [`Updater::step`](super::Updater::step); those of a listener, which is called after the
    /// step.
    #[track_caller]
    pub fn apply_gradients(&mut self, gradients: &[(String, Tensor)]) -> Result<()> {
        called_here(self.apply(gradients, self.score))
    }

    pub(crate) fn apply(&mut self, gradients: &[(String, Tensor)], score: f64) -> Result<()> {
        let known: HashMap<&str, &Tensor> = gradients.iter().map(|(name, grad)| (name.as_str(), grad)).collect();
        let mut given: Slots =
            self.named().map(|(param, _)| known.get(param.name.as_str()).map(|&grad| grad.clone())).collect();
        if given.iter().flatten().count() != known.len() {
            for (name, _) in gradients {
                self.find(name)?;
            }
        }
        for ((param, var), grad) in self.named().zip(given.iter()) {
            grad.as_ref().map_or(Ok(()), |grad| fits(param, var, grad))?;
        }
        let step = self.training.enter(ArrayType::Activations)?;
        self.update(&mut given)?;
        drop((given, step));
        (self.score, self.iteration) = (score, self.iteration.saturating_add(1));
        self.notify_listeners(|listener, net| listener.iteration_done(net))
    }

    /// Calls the listeners, outside of all workspaces.
    fn notify_listeners(&mut self, f: impl Fn(&mut dyn TrainingListener, &Network) -> Result<()>) -> Result<()> {
        if self.listeners_mut().is_empty() {
            return Ok(());
        }
        let _out = Workspace::scope_out();
        let mut listeners = self.take_listeners();
        // They are put back also if one of them panics.
        let notify = || listeners.iter_mut().try_for_each(|listener| f(&mut **listener, self));
        let result = catch_unwind(AssertUnwindSafe(notify));
        *self.listeners_mut() = listeners;
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Whether a gradient that somebody else made is like its parameter.
fn fits(param: &ParamInfo, var: &Var, grad: &Tensor) -> Result<()> {
    let op = "apply_gradients";
    if grad.device() != var.device() {
        return Err(Error::device_mismatch(op, var.device(), grad.device()));
    }
    if grad.dtype() != var.dtype() {
        return Err(Error::dtype_mismatch(op, var.dtype(), grad.dtype()));
    }
    if grad.dims() != var.dims() {
        let why = format!("the parameter {} and its gradient have one shape", param.name);
        return Err(Error::shape_mismatch(op, var.dims(), grad.dims(), why));
    }
    Ok(())
}
