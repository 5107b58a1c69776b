//! Training: steps, epochs, gradients for others.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ndgc::{Result, Tensor, Var, Workspace};

use super::super::data::{DataIterator, DataSet};
use super::super::place::called_here;
use super::engine::{Examples, Labels, Run};
use super::network::{Network, ParamInfo, TrainingListener};
use super::scratch::Slots;
use super::workspaces::ArrayType;

/// # Training
impl Network {
    /// One step on a batch; a series longer than [`tbptt_length`](super::NetworkConfig::tbptt_length) is one step a
    /// segment. Returns the score before the step: the mean of the losses, and penalties.
    ///
    /// # Errors
    /// [`Error::Argument`](ndgc::Error::Argument) if arrays are missing,
    /// [`Error::ShapeMismatch`](ndgc::Error::ShapeMismatch) if they do not fit; those of the layers; as
    /// [`Tensor::backward`]. No parameter is changed then, nor what updaters keep, but running means of the way
    /// forward; unless memory ends in the update itself, which SGD and Adam need none for.
    #[track_caller]
    pub fn fit_batch<B: Examples>(&mut self, batch: &B) -> Result<f64> {
        let steps = batch.features().first().filter(|array| array.rank() == 3).and_then(|array| array.dim(2).ok());
        called_here(match (self.config.tbptt, steps) {
            (Some(length), Some(steps)) if length > 0 && steps > length => self.fit_segments(batch, length, steps),
            _ => self.fit_parts(
                [batch.features(), batch.labels()],
                [batch.features_masks(), batch.labels_masks()],
                false,
            ),
        })
    }

    /// A step for each segment of a series; recurrent layers go on from one to the next.
    fn fit_segments<B: Examples>(&mut self, batch: &B, length: usize, steps: usize) -> Result<f64> {
        self.rnn_clear_previous_state();
        let mut total = 0.0;
        for start in (0..steps).step_by(length) {
            let len = length.min(steps - start);
            let cut = |array: &Tensor| match array.rank() {
                3 => array.narrow(2, start, len),
                2 if array.dim(1)? == steps => array.narrow(1, start, len),
                _ => Ok(array.clone()),
            };
            let cut_mask = |mask: &Option<Tensor>| mask.as_ref().map(cut).transpose();
            let arrays = |all: &[Tensor]| all.iter().map(cut).collect::<Result<Vec<_>>>();
            let masks = |all: &[Option<Tensor>]| all.iter().map(cut_mask).collect::<Result<Vec<_>>>();
            let (features, labels) = (arrays(batch.features())?, arrays(batch.labels())?);
            let (feature_masks, label_masks) = (masks(batch.features_masks())?, masks(batch.labels_masks())?);
            total += self.fit_parts([&features, &labels], [&feature_masks, &label_masks], true)?;
        }
        self.rnn_clear_previous_state();
        self.score = total / steps.div_ceil(length) as f64;
        Ok(self.score)
    }

    fn fit_parts(
        &mut self,
        [features, labels]: [&[Tensor]; 2],
        [feature_masks, label_masks]: [&[Option<Tensor>]; 2],
        carries: bool,
    ) -> Result<f64> {
        let mgr = &self.training;
        let features = self.prepared(features, mgr)?;
        let run = Run { features: &features, masks: feature_masks, mgr, training: true, again: false, carries };
        let labels = Labels { labels, masks: label_masks };
        let penalties = self.penalties()?;
        let step = mgr.enter(ArrayType::Activations)?;
        let (score, mut gradients) = self.gradients(&labels, &run)?;
        self.update(&mut gradients)?;
        drop((gradients, step, features));
        (self.score, self.iteration) = (score + penalties, self.iteration + 1);
        self.tell(|listener, net| listener.iteration_done(net))?;
        Ok(self.score)
    }

    /// One pass over the batches, which are reset before. Batches that others make ahead
    /// (`AsyncDataSetIterator`) are taken as they come.
    ///
    /// # Errors
    /// Of the iterator, of a step, of a listener; the network can be used after each.
    #[track_caller]
    pub fn fit<B: Examples, I: DataIterator<B>>(&mut self, mut batches: I) -> Result<()> {
        batches.reset()?;
        self.tell(|listener, net| listener.on_epoch_start(net))?;
        for batch in batches {
            self.fit_batch(&batch?)?;
        }
        self.epoch += 1;
        self.tell(|listener, net| listener.on_epoch_end(net))
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
    /// updater, divided by the examples of the batch. Nothing is changed but running means.
    ///
    /// # Errors
    /// As [`Network::fit_batch`].
    #[track_caller]
    pub fn compute_gradient_and_score<B: Examples>(&self, batch: &B) -> Result<(Vec<(String, Tensor)>, f64)> {
        called_here(self.gradient_and_score(batch))
    }

    fn gradient_and_score<B: Examples>(&self, batch: &B) -> Result<(Vec<(String, Tensor)>, f64)> {
        let features = self.prepared(batch.features(), &self.training)?;
        let run = Run {
            features: &features,
            masks: batch.features_masks(),
            mgr: &self.training,
            training: true,
            again: false,
            carries: false,
        };
        let labels = Labels { labels: batch.labels(), masks: batch.labels_masks() };
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
    /// of its own.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`](ndgc::Error::CannotFindTensor) for a name that is no parameter's; as
    /// [`Updater::step`](super::Updater::step).
    #[track_caller]
    pub fn apply_gradients(&mut self, gradients: &[(String, Tensor)]) -> Result<()> {
        for (name, _) in gradients {
            self.find(name)?;
        }
        let grad = |(param, _): (&ParamInfo, &Var)| {
            gradients.iter().find(|(name, _)| *name == param.name).map(|(_, grad)| grad.clone())
        };
        let step = self.training.enter(ArrayType::Activations)?;
        called_here(self.update(&mut self.named().map(grad).collect::<Slots>()))?;
        drop(step);
        self.iteration += 1;
        Ok(())
    }

    /// Calls the listeners, outside of all workspaces.
    fn tell(&mut self, f: impl Fn(&mut dyn TrainingListener, &Network) -> Result<()>) -> Result<()> {
        if self.listeners_mut().is_empty() {
            return Ok(());
        }
        let _out = Workspace::scope_out();
        let mut listeners = self.take_listeners();
        // They are put back also if one of them panics.
        let told = || listeners.iter_mut().try_for_each(|listener| f(&mut **listener, self));
        let result = catch_unwind(AssertUnwindSafe(told));
        *self.listeners_mut() = listeners;
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
