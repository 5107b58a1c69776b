//! What all kinds of evaluation can do.

use ndgc::{Result, Tensor};

/// What gathers how good predictions are. The name is ND4J's.
///
/// ```
/// # use ndgc::train::{Evaluation, IEvaluation, Roc};
/// # use ndgc::{Device, Tensor};
/// let labels = Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.]], &Device::Cpu)?;
/// let predictions = Tensor::new(&[[0.9f32, 0.1], [0.2, 0.8], [0.6, 0.4]], &Device::Cpu)?;
/// let (mut evaluation, mut roc) = (Evaluation::new(2), Roc::default());
/// for one in [&mut evaluation as &mut dyn IEvaluation, &mut roc] {
///     one.eval(&labels, &predictions, None)?;
/// }
/// assert_eq!((evaluation.rows(), roc.auc()), (3, Some(1.)));
/// assert!(evaluation.stats().contains(" Accuracy:        0.6667\n"));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub trait IEvaluation {
    /// Looks at a batch. Nothing is counted of one that is refused.
    ///
    /// ```
    /// # use ndgc::train::{Evaluation, IEvaluation};
    /// # use ndgc::{Device, Error, Tensor};
    /// let labels = Tensor::new(&[0u32, 1], &Device::Cpu)?;
    /// let predictions = Tensor::new(&[[0.9f32, 0.1], [0.8, 0.2]], &Device::Cpu)?;
    /// let mask = Tensor::new(&[1f32, 0.], &Device::Cpu)?; // the second row does not count
    /// let mut evaluation = Evaluation::new(2);
    /// evaluation.eval(&labels, &predictions, Some(&mask))?;
    /// assert_eq!((evaluation.rows(), evaluation.accuracy()), (1, 1.));
    /// let broken = Tensor::new(&[[0.9f32, 0.1], [f32::NAN, 0.2]], &Device::Cpu)?;
    /// assert!(matches!(evaluation.eval(&labels, &broken, None), Err(Error::Invalid { .. })));
    /// assert_eq!(evaluation.rows(), 1); // not even the row that is whole
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](ndgc::Error::ShapeMismatch) if labels, predictions and mask do not fit each other, or
    /// the batches before; [`Error::Invalid`](ndgc::Error::Invalid) for NaN where it counts, and if there is no memory
    /// for the numbers; as [`Tensor::to_vec`].
    #[track_caller]
    fn eval(&mut self, labels: &Tensor, predictions: &Tensor, mask: Option<&Tensor>) -> Result<()>;

    /// As [`IEvaluation::eval`], of examples with ids, one for each along the first axis, as
    /// [`DataSet::example_ids`](crate::train::DataSet::example_ids) has them: DL4J's `eval` with metadata. An
    /// [`Evaluation`](super::Evaluation) keeps each prediction with its id; what keeps no predictions, as all other
    /// kinds, leaves the ids alone.
    ///
    /// # Errors
    /// As [`IEvaluation::eval`]; [`Error::Invalid`](ndgc::Error::Invalid) if predictions are kept and there are not as
    /// many ids as examples.
    #[track_caller]
    fn eval_with_ids(
        &mut self,
        labels: &Tensor,
        predictions: &Tensor,
        mask: Option<&Tensor>,
        example_ids: &[u64],
    ) -> Result<()> {
        let _ = example_ids;
        self.eval(labels, predictions, mask)
    }

    /// Forgets what was counted, and keeps the settings.
    fn reset(&mut self);

    /// What was found, as a text for people: DL4J's lines.
    fn stats(&self) -> String;

    /// Settings, counters and figures as JSON, from which `from_json` makes it again.
    fn to_json(&self) -> String;
}
