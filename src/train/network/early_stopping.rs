//! Training until it does not help any more.

use std::time::{Duration, Instant};

use ndgc::{Error, Result};

use super::super::data::DataIterator;
use super::super::place::called_here;
use super::engine::Examples;
use super::network::Network;

/// When to stop. After each pass over the data a score is taken, of which less is better; the network ends with the
/// parameters that had the best one.
///
/// ```
/// use ndgc::train::{DataSet, EarlyStopping, InputType, ListDataSetIterator, Loss, NetworkConfig, OutputLayer};
/// use ndgc::{Device, Tensor};
///
/// let batch = DataSet::new(
///     Tensor::new(&[[1f32, 2.], [3., -1.]], &Device::Cpu)?,
///     Tensor::new(&[[1f32], [0.]], &Device::Cpu)?,
/// )?;
/// let net = NetworkConfig::builder().input_type(InputType::feed_forward(2)).layer(OutputLayer::new(1, Loss::Mse));
/// let mut net = net.build()?;
/// let stopping = EarlyStopping::max_epochs(200).patience(5);
/// let batches = ListDataSetIterator::new(vec![batch.clone()]);
/// let ended = stopping.fit(&mut net, batches, |net| net.score_batch(&batch, false))?;
/// assert!(ended.best_score < 1. && ended.best_score == net.score_batch(&batch, false)?);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    max_epochs: usize,
    patience: Option<usize>,
    min_improvement: f64,
    max_time: Option<Duration>,
    max_score: Option<f64>,
    each_iteration: bool,
}

/// Why a training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// All passes were made.
    MaxEpochs,
    /// The score did not get better for as many passes as were allowed.
    NoImprovement,
    /// The time was over.
    MaxTime,
    /// A score was higher than the most that was allowed.
    MaxScore,
    /// A score was no number, or infinite.
    InvalidScore,
}

/// How a training ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopped {
    /// Why.
    pub reason: Termination,
    /// The pass with the best score, from 0.
    pub best_epoch: usize,
    /// That score; infinite if there was none.
    pub best_score: f64,
    /// The scores of all passes, but for one that broke off ([`EarlyStopping::each_iteration`]).
    pub scores: Vec<f64>,
}

impl EarlyStopping {
    /// After so many passes at the latest.
    pub fn max_epochs(epochs: usize) -> Self {
        EarlyStopping {
            max_epochs: epochs,
            patience: None,
            min_improvement: 0.0,
            max_time: None,
            max_score: None,
            each_iteration: false,
        }
    }

    /// After so many passes in a row without a better score, as DL4J's `ScoreImprovementEpochTerminationCondition`.
    pub fn patience(mut self, epochs: usize) -> Self {
        self.patience = Some(epochs);
        self
    }

    /// By how much a score must be lower to be better.
    pub fn min_improvement(mut self, by: f64) -> Self {
        self.min_improvement = by;
        self
    }

    /// After the pass that this time ends in, or in the middle of it ([`EarlyStopping::each_iteration`]).
    pub fn max_time(mut self, time: Duration) -> Self {
        self.max_time = Some(time);
        self
    }

    /// When a score is higher than this; one that is no number ends a training in any case.
    pub fn max_score(mut self, score: f64) -> Self {
        self.max_score = Some(score);
        self
    }

    /// Asks [`max_time`](EarlyStopping::max_time), [`max_score`](EarlyStopping::max_score), and whether the score is a
    /// number, of the score of each batch too ([`Network::score`], which a step knows anyway), and not only after each
    /// pass: DL4J's `MaxTimeIterationTerminationCondition` and its kin. A pass that ends by one of them breaks off: it
    /// has no score, is not counted, and listeners are not told of its end.
    ///
    /// ```
    /// use ndgc::train::{DataSet, EarlyStopping, InputType, ListDataSetIterator, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::train::Termination;
    /// use ndgc::{Device, Tensor};
    ///
    /// let batch = |label: f32| {
    ///     DataSet::new(Tensor::new(&[[1f32, 2.]], &Device::Cpu)?, Tensor::new(&[[label]], &Device::Cpu)?)
    /// };
    /// let net = NetworkConfig::builder().seed(1).input_type(InputType::feed_forward(2));
    /// let mut net = net.layer(OutputLayer::new(1, Loss::Mse)).build()?;
    /// let batches = ListDataSetIterator::new(vec![batch(0.)?, batch(f32::NAN)?, batch(0.)?]);
    /// let ended = EarlyStopping::max_epochs(9).each_iteration().fit(&mut net, batches, |net| Ok(net.score()))?;
    /// assert_eq!((ended.reason, ended.scores.len()), (Termination::InvalidScore, 0));
    /// assert_eq!(net.iteration(), 0); // as before the step that made NaN of it
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn each_iteration(mut self) -> Self {
        self.each_iteration = true;
        self
    }

    /// Trains, and leaves the network with the parameters of its best score. Where no pass had one, it is as before the
    /// training if a score ended that, and as it is if the time was over.
    ///
    /// # Errors
    /// [`Error::Argument`] for a least improvement that is not finite, by which no score would be better than none; as
    /// [`Network::fit`]; what `score` returns. The network has the parameters of its best score until then, if there
    /// was one.
    #[track_caller]
    pub fn fit<B: Examples, I: DataIterator<B>>(
        &self,
        net: &mut Network,
        mut batches: I,
        mut score: impl FnMut(&Network) -> Result<f64>,
    ) -> Result<EarlyStopped> {
        if !self.min_improvement.is_finite() {
            let (op, argument) = ("EarlyStopping", "min_improvement");
            return called_here(Err(Error::argument(op, argument, self.min_improvement, "finite")));
        }
        let mut best = net.replica()?;
        let mut ended = EarlyStopped {
            reason: Termination::MaxEpochs,
            best_epoch: 0,
            best_score: f64::INFINITY,
            scores: Vec::new(),
        };
        let trained = self.train(net, &mut batches, &mut score, (&mut best, &mut ended));
        // Where no pass had a score it stays as the error, or the end of the time, found it.
        let has_best = ended.best_score < f64::INFINITY || trained.is_ok() && ended.reason != Termination::MaxTime;
        let followed = if has_best { net.follow(&best) } else { Ok(()) };
        trained.and(followed).map(|()| ended)
    }

    /// The passes, until one is the last; the best network, and how they ended, as far as they came.
    #[track_caller]
    fn train<B: Examples, I: DataIterator<B>>(
        &self,
        net: &mut Network,
        batches: &mut I,
        score: &mut impl FnMut(&Network) -> Result<f64>,
        (best, ended): (&mut Network, &mut EarlyStopped),
    ) -> Result<()> {
        let begun = Instant::now();
        for epoch in 0..self.max_epochs {
            let mut broken_off = None;
            net.fit_until(&mut *batches, &mut |net| {
                if self.each_iteration {
                    broken_off = self.ends_by_score(net.score()).or_else(|| self.ends_by_time(begun));
                }
                broken_off.is_some()
            })?;
            if let Some(reason) = broken_off {
                ended.reason = reason;
                break;
            }
            let now = score(net)?;
            ended.scores.push(now);
            if let Some(reason) = self.ends_by_score(now) {
                ended.reason = reason;
                break;
            }
            if now < ended.best_score - self.min_improvement {
                best.follow(net)?;
                (ended.best_epoch, ended.best_score) = (epoch, now);
            } else if self.patience.is_some_and(|patience| epoch - ended.best_epoch >= patience) {
                ended.reason = Termination::NoImprovement;
                break;
            }
            if let Some(reason) = self.ends_by_time(begun) {
                ended.reason = reason;
                break;
            }
        }
        Ok(())
    }

    /// Whether a score ends a training.
    fn ends_by_score(&self, score: f64) -> Option<Termination> {
        if !score.is_finite() {
            return Some(Termination::InvalidScore);
        }
        self.max_score.is_some_and(|most| score > most).then_some(Termination::MaxScore)
    }

    /// Whether one that began then is out of time.
    fn ends_by_time(&self, begun: Instant) -> Option<Termination> {
        self.max_time.is_some_and(|time| begun.elapsed() >= time).then_some(Termination::MaxTime)
    }
}
