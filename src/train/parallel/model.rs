//! What is trained by several workers, and what answers many callers.

use ndgc::{Error, Result, Tensor};

use super::super::data::MultiDataSet;

/// What answers: one array for another, row by row.
///
/// Requests that come at one time are put together along the first axis, so the rows of an output depend on the same
/// rows of the input alone.
pub trait Model: Send + Sync {
    /// The output for an input. It must not lie in a workspace of the model's own: the caller keeps it.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn output(&self, input: &Tensor) -> Result<Tensor>;

    /// The outputs for an input each, of models that have several of either, or are given masks: one for each input, or
    /// none at all.
    ///
    /// # Errors
    /// Those of the operations inside; [`Error::Invalid`] of a model that has one input and knows no masks, if it is
    /// given something else.
    fn outputs(&self, inputs: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        match inputs {
            [input] if masks.iter().all(Option::is_none) => Ok(vec![self.output(input)?]),
            _ => Err(Error::invalid("outputs", "the model has one input and no masks; give it one array")),
        }
    }
}

impl<F: Fn(&Tensor) -> Result<Tensor> + Send + Sync> Model for F {
    fn output(&self, input: &Tensor) -> Result<Tensor> {
        self(input)
    }
}

/// What [`ParallelWrapper`] trains: several copies of it, a worker each.
///
/// Arrays that are handed out share their bytes with the model's own ([`Var::as_detached_tensor`]): what is written to
/// them is what the model goes on with. They have the same names in the same order in each replica.
///
/// [`ParallelWrapper`]: super::ParallelWrapper
/// [`Var::as_detached_tensor`]: ndgc::Var::as_detached_tensor
pub trait ParallelModel: Sized + Send + 'static {
    /// How workspaces are used in training.
    type WorkspaceMode: Clone + Send + 'static;

    /// A copy with parameters and updater state of its own, and workspaces of the thread that it trains on.
    ///
    /// # Errors
    /// As [`Tensor::copy`].
    fn replica(&self) -> Result<Self>;

    /// One step on a batch, and the score before it.
    ///
    /// # Errors
    /// Those of the operations inside; then nothing is said of the parameters but that they can be read and written.
    fn fit_batch(&mut self, batch: &MultiDataSet) -> Result<f64>;

    /// The score of a batch and its mean gradients by the parameters' names, without a step. They are arrays of their
    /// own, which stay valid until [`ParallelModel::apply_gradients`], and the same ones for every batch.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn gradients(&mut self, batch: &MultiDataSet) -> Result<(f64, Vec<(String, Tensor)>)>;

    /// As [`ParallelModel::gradients`], of a batch that another replica trains on, where this one has none: they do not
    /// count, and nothing is to be learned on the way, such as running means.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn gradients_of_other(&mut self, batch: &MultiDataSet) -> Result<(f64, Vec<(String, Tensor)>)> {
        self.gradients(batch)
    }

    /// One step with these gradients, in the order in which they were handed out; the score is the mean of all the
    /// examples that they are of.
    ///
    /// # Errors
    /// Those of the operations inside.
    fn apply_gradients(&mut self, gradients: &[(String, Tensor)], score: f64) -> Result<()>;

    /// The parameters, and what else is learned and averaged.
    ///
    /// # Errors
    /// As [`Tensor::try_detach`].
    fn parameters(&self) -> Result<Vec<(String, Tensor)>>;

    /// Those of [`ParallelModel::parameters`] that a step may change, in their order: the others, such as frozen ones,
    /// are not averaged, since a mean of equal numbers may be another one. All unless the model says something else.
    ///
    /// # Errors
    /// As [`ParallelModel::parameters`].
    fn changing_parameters(&self) -> Result<Vec<(String, Tensor)>> {
        self.parameters()
    }

    /// What the updater keeps between steps, zeros where it has not begun.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn updater_state(&mut self) -> Result<Vec<(String, Tensor)>>;

    /// Steps so far, which schedules and updaters look at.
    fn iteration(&self) -> u64;

    /// Sets the number of steps so far.
    fn set_iteration(&mut self, iteration: u64);

    /// Passes over the data so far, for models that count them.
    fn epoch(&self) -> u64 {
        0
    }

    /// Sets the number of passes so far.
    fn set_epoch(&mut self, epoch: u64) {
        let _ = epoch;
    }

    /// Sets which of the replicas it is, from 0, so that each draws random numbers of its own.
    fn set_rank(&mut self, rank: usize) {
        let _ = rank;
    }

    /// A pass over the data begins. The first replica alone is told; it has the listeners.
    ///
    /// # Errors
    /// What should end the training.
    fn begin_epoch(&mut self) -> Result<()> {
        Ok(())
    }

    /// A pass over the data ended, and is to be counted. The first replica alone is told.
    ///
    /// # Errors
    /// What should end the training.
    fn end_epoch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Sets how workspaces are used in training.
    ///
    /// # Errors
    /// [`Error::Workspace`] if one is open.
    fn set_workspace_mode(&mut self, mode: &Self::WorkspaceMode) -> Result<()>;
}
