//! Training until it does not help any more.

use std::ops::DerefMut;
use std::time::{Duration, Instant};

use ndgc::{Error, Result};

use super::super::data::{DataIterator, Examples};
use super::super::place::called_here;
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
    target_score: Option<f64>,
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
    /// The score of a pass was as low as was wanted.
    TargetScore,
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
            target_score: None,
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

    /// When the score of a pass is this or lower, DL4J's `BestScoreEpochTerminationCondition`. That pass is the best
    /// one, also where it is better by less than [`min_improvement`](EarlyStopping::min_improvement).
    pub fn target_score(mut self, score: f64) -> Self {
        self.target_score = Some(score);
        self
    }

    /// Asks [`max_time`](EarlyStopping::max_time), [`max_score`](EarlyStopping::max_score), and whether the score is a
    /// number, of the score of each batch too ([`Network::score`], which a step knows anyway), and not only after each
    /// pass: DL4J's `MaxTimeIterationTerminationCondition` and its kin. A pass that ends by one of them breaks off: it
    /// has no score, is not counted, and listeners are not told of its end.
    ///
    /// Several workers are asked together, of their mean score ([`ParallelWrapper::score`]): whenever they average, or
    /// with each step if they share gradients. Then they all make no further step.
    ///
    /// [`ParallelWrapper::score`]: crate::train::ParallelWrapper::score
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
    /// What is trained is a [`Network`], or one with several workers, a [`ParallelWrapper`]: DL4J's
    /// `EarlyStoppingParallelTrainer`. Its network has the best parameters; the other workers have them when they train
    /// again. Of several processes ([`ParallelWrapperBuilder::communicator`]) all do the same: the score of a pass is
    /// the mean of theirs, and time is over where it is for one of them.
    ///
    /// ```
    /// use ndgc::train::{ArrayDataSetIterator, DataSet, EarlyStopping, InputType, Loss, NetworkConfig, OutputLayer};
    /// use ndgc::train::ParallelWrapper;
    /// use ndgc::{DType, Device, Tensor};
    ///
    /// let x = Tensor::ones((64, 3), DType::F32, &Device::Cpu)?;
    /// let all = DataSet::new(x.clone(), x)?;
    /// let net = NetworkConfig::builder().input_type(InputType::feed_forward(3)).layer(OutputLayer::new(3, Loss::Mse));
    /// let mut wrapper = ParallelWrapper::builder(net.build()?).workers(2).build()?;
    /// let batches = ArrayDataSetIterator::new(all.clone(), 8)?;
    /// let stopping = EarlyStopping::max_epochs(20).patience(3);
    /// let ended = stopping.fit(&mut wrapper, batches, |net| net.score_batch(&all, false))?;
    /// let net = wrapper.into_model()?;
    /// assert_eq!(net.epoch(), ended.best_epoch as u64 + 1);
    /// assert_eq!(net.score_batch(&all, false)?, ended.best_score);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a least improvement that is not finite, by which no score would be better than none; as
    /// [`Network::fit`] or [`ParallelWrapper::fit`]; what `score` returns. The network has the parameters of its best
    /// score until then, if there was one.
    ///
    /// [`ParallelWrapper`]: crate::train::ParallelWrapper
    /// [`ParallelWrapper::fit`]: crate::train::ParallelWrapper::fit
    /// [`ParallelWrapperBuilder::communicator`]: crate::train::ParallelWrapperBuilder::communicator
    #[track_caller]
    pub fn fit<B, T: Trainee<B>, I: DataIterator<B>>(
        &self,
        trainee: &mut T,
        mut batches: I,
        mut score: impl FnMut(&Network) -> Result<f64>,
    ) -> Result<EarlyStopped> {
        if !self.min_improvement.is_finite() {
            let (op, argument) = ("EarlyStopping", "min_improvement");
            return called_here(Err(Error::argument(op, argument, self.min_improvement, "finite")));
        }
        called_here(trainee.guarded(|trainee| self.run(trainee, &mut batches, &mut score)))
    }

    /// The training, and the best network given back.
    fn run<B, T: Trainee<B>, I: DataIterator<B>>(
        &self,
        trainee: &mut T,
        batches: &mut I,
        score: &mut dyn FnMut(&Network) -> Result<f64>,
    ) -> Result<EarlyStopped> {
        let mut best = trainee.network().replica()?;
        let mut ended = EarlyStopped {
            reason: Termination::MaxEpochs,
            best_epoch: 0,
            best_score: f64::INFINITY,
            scores: Vec::new(),
        };
        let trained = self.train(trainee, batches, score, (&mut best, &mut ended));
        // Where no pass had a score it stays as the error, or the end of the time, found it.
        let has_best = ended.best_score < f64::INFINITY || trained.is_ok() && ended.reason != Termination::MaxTime;
        let followed = if has_best { trainee.network().follow(&best) } else { Ok(()) };
        trained.and(followed).map(|()| ended)
    }

    /// The passes, until one is the last; the best network, and how they ended, as far as they came.
    fn train<B, T: Trainee<B>, I: DataIterator<B>>(
        &self,
        trainee: &mut T,
        batches: &mut I,
        score: &mut dyn FnMut(&Network) -> Result<f64>,
        (best, ended): (&mut Network, &mut EarlyStopped),
    ) -> Result<()> {
        // An end beyond what clocks know is none.
        let end = self.max_time.and_then(|time| Instant::now().checked_add(time));
        let limits = Limits { max_score: self.max_score, end };
        for epoch in 0..self.max_epochs {
            if let Some(reason) = trainee.pass(batches, self.each_iteration.then_some(limits))? {
                ended.reason = reason;
                break;
            }
            let own = score(&trainee.network())?;
            let (now, is_over) = trainee.agreed(own, limits.is_over())?;
            ended.scores.push(now);
            if let Some(reason) = limits.by_score(now) {
                ended.reason = reason;
                break;
            }
            // All before were higher.
            let is_reached = self.target_score.is_some_and(|target| now <= target);
            if is_reached || now < ended.best_score - self.min_improvement {
                best.follow(&trainee.network())?;
                (ended.best_epoch, ended.best_score) = (epoch, now);
            } else if self.patience.is_some_and(|patience| epoch - ended.best_epoch >= patience) {
                ended.reason = Termination::NoImprovement;
                break;
            }
            if is_reached || is_over {
                ended.reason = if is_reached { Termination::TargetScore } else { Termination::MaxTime };
                break;
            }
        }
        Ok(())
    }
}

/// What [`EarlyStopping::fit`] trains. Nobody else can name it, so that there are no others.
pub trait Trainee<B> {
    /// The network: that of the first worker, if there are several.
    fn network(&mut self) -> impl DerefMut<Target = Network>;

    /// One pass over the batches, as of `fit`. Returns what broke it off, which only limits do.
    ///
    /// # Errors
    /// As of `fit`.
    fn pass<I: DataIterator<B>>(&mut self, batches: &mut I, limits: Option<Limits>) -> Result<Option<Termination>>;

    /// What all processes that train it make of the score of a pass, and of the time that is over for one of them.
    ///
    /// # Errors
    /// Where one of them cannot go on.
    fn agreed(&mut self, score: f64, is_over: bool) -> Result<(f64, bool)> {
        Ok((score, is_over))
    }

    /// Runs a training; where it fails, the processes beside this one are told.
    ///
    /// # Errors
    /// Those of `f`.
    fn guarded<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        f(self)
    }
}

impl<B: Examples> Trainee<B> for Network {
    fn network(&mut self) -> impl DerefMut<Target = Network> {
        self
    }

    fn pass<I: DataIterator<B>>(&mut self, batches: &mut I, limits: Option<Limits>) -> Result<Option<Termination>> {
        let mut ended = None;
        self.fit_until(batches, &mut |net| {
            if let Some(limits) = limits {
                ended = limits.by_score(net.score()).or_else(|| limits.is_over().then_some(Termination::MaxTime));
            }
            ended.is_some()
        })?;
        Ok(ended)
    }
}

/// What may end a training at any time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    max_score: Option<f64>,
    end: Option<Instant>,
}

impl Limits {
    /// Whether a score ends a training.
    pub(crate) fn by_score(&self, score: f64) -> Option<Termination> {
        if !score.is_finite() {
            return Some(Termination::InvalidScore);
        }
        self.max_score.is_some_and(|most| score > most).then_some(Termination::MaxScore)
    }

    /// Whether its time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}
