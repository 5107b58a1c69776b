//! Networks, trained by several workers and asked by many callers.

use std::ops::DerefMut;

use ndgc::{Error, Result, Tensor};

use super::super::data::{DataIterator, MultiDataSet};
use super::super::network::{Limits, Network, Termination, Trainee, WorkspaceMode};
use super::super::shared::same_bytes;
use super::model::{Model, ParallelModel};
use super::wrapper::ParallelWrapper;

/// The score and the gradients of a batch of whole series; `again`: nothing is learned on the way.
fn shared(network: &Network, batch: &MultiDataSet, again: bool) -> Result<(f64, Vec<(String, Tensor)>)> {
    if let Some((length, steps)) = network.segments(batch) {
        let why = format!(
            "shared gradients are of whole series: {steps} steps are more than the {length} of tbptt_length; average \
             parameters (TrainingMode::Averaging), or give shorter series"
        );
        return Err(Error::invalid("fit", why));
    }
    let (gradients, score) = network.gradient_and_score(batch, again)?;
    Ok((score, gradients))
}

impl Model for Network {
    fn output(&self, input: &Tensor) -> Result<Tensor> {
        Network::output(self, input)
    }

    fn outputs(&self, inputs: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        Network::outputs(self, inputs, masks)
    }
}

impl ParallelModel for Network {
    type WorkspaceMode = WorkspaceMode;

    fn replica(&self) -> Result<Self> {
        Network::replica(self)
    }

    fn fit_batch(&mut self, batch: &MultiDataSet) -> Result<f64> {
        Network::fit_batch(self, batch)
    }

    fn gradients(&mut self, batch: &MultiDataSet) -> Result<(f64, Vec<(String, Tensor)>)> {
        shared(self, batch, false)
    }

    fn gradients_of_other(&mut self, batch: &MultiDataSet) -> Result<(f64, Vec<(String, Tensor)>)> {
        shared(self, batch, true)
    }

    fn apply_gradients(&mut self, gradients: &[(String, Tensor)], score: f64) -> Result<()> {
        self.apply(gradients, score)
    }

    fn parameters(&self) -> Result<Vec<(String, Tensor)>> {
        self.params().map(|(name, var)| Ok((name.to_owned(), same_bytes(var)?))).collect()
    }

    fn changing_parameters(&self) -> Result<Vec<(String, Tensor)>> {
        self.changing_params().map(|(name, var)| Ok((name.to_owned(), same_bytes(var)?))).collect()
    }

    fn updater_state(&mut self) -> Result<Vec<(String, Tensor)>> {
        Network::updater_state(self)
    }

    fn iteration(&self) -> u64 {
        Network::iteration(self)
    }

    fn set_iteration(&mut self, iteration: u64) {
        Network::set_iteration(self, iteration);
    }

    fn epoch(&self) -> u64 {
        Network::epoch(self)
    }

    fn set_epoch(&mut self, epoch: u64) {
        Network::set_epoch(self, epoch);
    }

    fn set_rank(&mut self, rank: usize) {
        Network::set_rank(self, rank as u64);
    }

    fn begin_epoch(&mut self) -> Result<()> {
        Network::begin_epoch(self)
    }

    fn end_epoch(&mut self) -> Result<()> {
        Network::end_epoch(self)
    }

    fn set_workspace_mode(&mut self, mode: &WorkspaceMode) -> Result<()> {
        self.set_workspace_modes(*mode, self.inference_workspace_mode())
    }
}

impl<B: Into<MultiDataSet>> Trainee<B> for ParallelWrapper<Network> {
    fn network(&mut self) -> impl DerefMut<Target = Network> {
        self.model()
    }

    fn pass<I: DataIterator<B>>(&mut self, batches: &mut I, limits: Option<Limits>) -> Result<Option<Termination>> {
        self.fit_until(batches, limits)
    }

    fn agreed(&mut self, score: f64, is_over: bool) -> Result<(f64, bool)> {
        self.agree(score, is_over)
    }

    fn guarded<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.told(f)
    }
}
