//! One network trained by several threads.

use std::fmt;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use ndgc::{Device, Error, Result, Tensor, called_at, no_grad};

use super::super::data::{DataIterator, MultiDataSet};
use super::super::network::{Limits, Termination};
use super::super::place::called_here;
use super::super::shared::upcast_half;
use super::communicator::{Breaker, Communicator, MOST, ThreadCommunicator};
use super::inference::text_of;
use super::model::ParallelModel;

/// Why a rank goes no further, where no error says so.
const BROKEN_OFF: &str = "the training was broken off";

/// How workers learn from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrainingMode {
    /// Each makes steps of its own; parameters are averaged every so many rounds.
    #[default]
    Averaging,
    /// Every step is one of the mean gradient of all workers' examples, so that all replicas stay equal.
    SharedGradients,
}

/// Settings of a [`ParallelWrapper`]: see [`ParallelWrapper::builder`].
#[derive(Debug)]
pub struct ParallelWrapperBuilder<M: ParallelModel> {
    model: M,
    settings: Settings,
    workspace_mode: Option<M::WorkspaceMode>,
    communicator: Option<Remote>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    workers: usize,
    prefetch_buffer: usize,
    averaging_frequency: usize,
    average_updaters: bool,
    report_score: bool,
    mode: TrainingMode,
}

/// A communicator of the user's.
struct Remote(Box<dyn Communicator>);

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.0.rank(), self.0.size())
    }
}

impl<M: ParallelModel> ParallelWrapperBuilder<M> {
    /// Threads that train, each with a replica; 2 unless this says something else.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// Batches that wait for each worker; 2 unless this says something else. With 0, a batch is taken from the iterator
    /// when a worker is free.
    #[must_use]
    pub fn prefetch_buffer(mut self, batches: usize) -> Self {
        self.settings.prefetch_buffer = batches;
        self
    }

    /// Rounds between two averagings, in each of which every worker trains on a batch; 1 unless this says something
    /// else. At the end of [`ParallelWrapper::fit`], parameters are averaged whatever this says. As in DL4J, a mean is
    /// of all workers: one that had no batch since the last averaging counts as much as the others, with the parameters
    /// that it had then.
    #[must_use]
    pub fn averaging_frequency(mut self, rounds: usize) -> Self {
        self.settings.averaging_frequency = rounds;
        self
    }

    /// Whether the updaters' state is averaged too, as it is unless this says something else.
    #[must_use]
    pub fn average_updaters(mut self, average: bool) -> Self {
        self.settings.average_updaters = average;
        self
    }

    /// Whether the mean score is printed to the standard error after each averaging.
    #[must_use]
    pub fn report_score_after_averaging(mut self, report: bool) -> Self {
        self.settings.report_score = report;
        self
    }

    /// How workers learn from each other.
    #[must_use]
    pub fn training_mode(mut self, mode: TrainingMode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// How workspaces are used by the replicas; as the model has it unless this says something else.
    #[must_use]
    pub fn workspace_mode(mut self, mode: M::WorkspaceMode) -> Self {
        self.workspace_mode = Some(mode);
        self
    }

    /// Joins this process' one worker with those of others, instead of threads with each other. All ranks are given as
    /// many batches, and begin with the same parameters: with the same seed, or a checkpoint. Where one is at the end
    /// of its batches and others ask it for a sum, [`ParallelWrapper::fit`] ends on all ranks with an error that names
    /// it ([`Communicator::end`]).
    #[must_use]
    pub fn communicator(mut self, communicator: Box<dyn Communicator>) -> Self {
        self.communicator = Some(Remote(communicator));
        self.settings.workers = 1;
        self
    }

    /// Makes the replicas and starts the workers.
    ///
    /// ```
    /// # use ndgc::train::{InputType, Loss, NetworkConfig, OutputLayer, ParallelWrapper};
    /// # use ndgc::Error;
    /// # let net = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// # let net = net.layer(OutputLayer::new(3, Loss::Mse));
    /// let wrapper = ParallelWrapper::builder(net.clone().build()?).build()?;
    /// assert_eq!(wrapper.workers(), 2); // unless it is told something else
    /// let refused = ParallelWrapper::builder(net.build()?).workers(0).build();
    /// assert!(matches!(refused, Err(Error::Argument { argument: "workers", .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for no workers or a frequency of 0, for several workers beside a communicator, and for more
    /// than 65,536 workers or batches that wait for one; [`Error::Invalid`] if there is no thread to be had; as
    /// [`ParallelModel::replica`].
    #[track_caller]
    pub fn build(self) -> Result<ParallelWrapper<M>> {
        called_here(self.start())
    }

    fn start(mut self) -> Result<ParallelWrapper<M>> {
        let op = "ParallelWrapper";
        let settings = self.settings;
        for (argument, value) in [("workers", settings.workers), ("averaging_frequency", settings.averaging_frequency)]
        {
            if value == 0 {
                return Err(Error::argument(op, argument, value, "at least 1"));
            }
        }
        let most = [("workers", settings.workers), ("prefetch_buffer", settings.prefetch_buffer)];
        if let Some((argument, value)) = most.into_iter().find(|(_, value)| *value > MOST) {
            return Err(Error::argument(op, argument, value, "at most 65536"));
        }
        if self.communicator.is_some() && settings.workers != 1 {
            let (value, expected) = (settings.workers.to_string(), "1 beside a communicator: start more processes");
            return Err(Error::argument(op, "workers", value, expected));
        }
        if let Some(mode) = &self.workspace_mode {
            self.model.set_workspace_mode(mode)?;
        }
        let mut models = (1..settings.workers).map(|_| self.model.replica()).collect::<Result<Vec<M>>>()?;
        models.insert(0, self.model);
        let (score, failed) = (Score::new(), AtomicBool::new(false));
        let scores = (0..settings.workers).map(|_| Score::new()).collect();
        let (failure, broken_off) = (Mutex::new(None), Mutex::new(None));
        let shared = Arc::new(WrapperShared { settings, scores, score, failed, failure, broken_off });
        let (done, ends) = channel();
        let is_remote = self.communicator.is_some();
        let communicator = self.communicator.map(|remote| remote.0);
        let mut all =
            ParallelWrapper { shared, workers: Vec::new(), ends, communicator, is_remote, process: process::id() };
        for (rank, model) in models.into_iter().enumerate() {
            let (jobs, takes) = sync_channel(settings.prefetch_buffer);
            let model = Arc::new(Mutex::new(model));
            let worker =
                Worker { rank, model: Arc::clone(&model), shared: Arc::clone(&all.shared), done: done.clone() };
            let thread = thread::Builder::new().name(format!("ndgc-trainer-{rank}"));
            let thread = thread.spawn(move || worker.work(&takes));
            let thread = thread
                .map_err(|error| Error::invalid("ParallelWrapper", format!("no thread to train with: {error}")))?;
            all.workers.push(Trainer { model, jobs: Some(jobs), thread: Some(thread) });
        }
        Ok(all)
    }
}

/// Trains a model with several threads, each on a replica of its own: the names are DL4J's.
///
/// Threads, replicas and their workspaces stay from one [`ParallelWrapper::fit`] to the next. The thread that calls
/// `fit` takes batches from the iterator ahead of the workers.
///
/// An error, a panic or exhausted memory of one worker ends `fit` with that error; the model and the wrapper can be
/// used after it.
///
/// ```
/// # use ndgc::train::{ArrayDataSetIterator, DataSet, InputType, Loss, NetworkConfig, OutputLayer};
/// # use ndgc::train::{ParallelWrapper, Updater, WorkspaceMode};
/// # use ndgc::{DType, Device, Tensor};
/// # let x = Tensor::ones((64, 3), DType::F32, &Device::Cpu)?;
/// # let all = DataSet::new(x.clone(), x.narrow(1, 0, 2)?)?;
/// # let config = NetworkConfig::builder().updater(Updater::adam(0.01)).input_type(InputType::feed_forward(3));
/// let net = config.layer(OutputLayer::new(2, Loss::Mse)).build()?;
/// let mut wrapper = ParallelWrapper::builder(net)
///     .prefetch_buffer(8) // batches that wait for each worker
///     .workers(2)
///     .averaging_frequency(5)
///     .report_score_after_averaging(false)
///     .workspace_mode(WorkspaceMode::Single)
///     .build()?;
/// for epoch in 0..3 {
///     wrapper.fit(ArrayDataSetIterator::new(all.clone(), 8)?.shuffled(epoch)?)?;
/// }
/// let net = wrapper.into_model()?;
/// assert_eq!(net.output(&all.features)?.dims(), [64, 2]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct ParallelWrapper<M: ParallelModel> {
    shared: Arc<WrapperShared>,
    workers: Vec<Trainer<M>>,
    ends: Receiver<Option<Box<dyn Communicator>>>,
    /// The user's, while no `fit` runs.
    communicator: Option<Box<dyn Communicator>>,
    is_remote: bool,
    /// The process that has the workers; a forked child has none.
    process: u32,
}

/// A worker as the caller sees it.
struct Trainer<M> {
    model: Arc<Mutex<M>>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// What a worker is told to do.
enum Job {
    /// Joins a group, whose models made so many steps before, for a pass that limits may break off.
    Begin(Box<dyn Communicator>, u64, Option<Limits>),
    /// A step of its own, unless the batch has no examples; then, if it says so, as [`Job::Average`].
    Fit(MultiDataSet, bool),
    /// A step of all, and whether this batch counts: who has none is given one that does not.
    Share(MultiDataSet, bool),
    /// Averages parameters.
    Average,
    End,
}

/// The group that a worker is in.
struct Joined {
    communicator: Box<dyn Communicator>,
    /// Steps of the models when they were averaged last.
    steps: u64,
    /// Steps of its own that this worker made since.
    made: u64,
    /// Whether it said that it is at the end of its batches.
    ended: bool,
    limits: Option<Limits>,
    /// Whether they broke the pass off: all ranks find so in the same sum.
    is_broken_off: bool,
}

impl Joined {
    /// Says that this worker is at the end of its batches, once, and hears whether all are.
    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) { Ok(()) } else { self.communicator.end() }
    }

    /// 1 if there is no time left, as one of the numbers that ranks add up.
    fn is_over(&self) -> f64 {
        f64::from(u8::from(self.limits.is_some_and(|limits| limits.is_over())))
    }
}

struct WrapperShared {
    settings: Settings,
    /// The last score of each worker.
    scores: Vec<Score>,
    /// The mean score of the last averaging.
    score: Score,
    failed: AtomicBool,
    /// The first error of this `fit`.
    failure: Mutex<Option<Error>>,
    /// What broke this `fit` off without an error.
    broken_off: Mutex<Option<Termination>>,
}

/// A number that one thread writes and others look at, if there is one: a training that diverged has NaN.
struct Score(AtomicU64);

impl Score {
    /// The bits of a NaN that no score is stored as.
    const NONE: u64 = u64::MAX;

    fn new() -> Self {
        Score(AtomicU64::new(Score::NONE))
    }

    fn get(&self) -> Option<f64> {
        // Relaxed: a number alone, from which nothing follows for other memory.
        let bits = self.0.load(Ordering::Relaxed);
        (bits != Score::NONE).then(|| f64::from_bits(bits))
    }

    fn set(&self, score: Option<f64>) {
        let bits = score.map_or(Score::NONE, |score| if score.is_nan() { f64::NAN } else { score }.to_bits());
        // Relaxed: as in `get`.
        self.0.store(bits, Ordering::Relaxed);
    }
}

impl WrapperShared {
    fn has_failed(&self) -> bool {
        // Relaxed: it only says that there is no use in going on; the error itself is behind a lock.
        self.failed.load(Ordering::Relaxed)
    }

    fn set_failed(&self, failed: bool) {
        // Relaxed: as in `has_failed`.
        self.failed.store(failed, Ordering::Relaxed);
    }
}

impl<M: ParallelModel> fmt::Debug for ParallelWrapper<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ParallelWrapper").field(&self.shared.settings).finish()
    }
}

impl<M: ParallelModel> ParallelWrapper<M> {
    /// Settings to begin with, for this model.
    pub fn builder(model: M) -> ParallelWrapperBuilder<M> {
        let settings = Settings {
            workers: 2,
            prefetch_buffer: 2,
            averaging_frequency: 1,
            average_updaters: true,
            report_score: false,
            mode: TrainingMode::Averaging,
        };
        ParallelWrapperBuilder { model, settings, workspace_mode: None, communicator: None }
    }

    /// One pass over the batches, which are reset before. At its end all replicas have the mean of the parameters. A
    /// batch without examples is no step.
    ///
    /// ```
    /// # use ndgc::train::{ArrayDataSetIterator, DataSet, InputType, Loss, NetworkConfig, OutputLayer};
    /// # use ndgc::train::ParallelWrapper;
    /// # use ndgc::{DType, Device, Tensor};
    /// # let net = NetworkConfig::builder().input_type(InputType::feed_forward(3));
    /// # let net = net.layer(OutputLayer::new(3, Loss::Mse));
    /// # let x = Tensor::ones((64, 3), DType::F32, &Device::Cpu)?;
    /// let mut wrapper = ParallelWrapper::builder(net.build()?).workers(2).build()?;
    /// assert_eq!(wrapper.score(), None);
    /// wrapper.fit(ArrayDataSetIterator::new(DataSet::new(x.clone(), x)?, 8)?)?;
    /// assert!(wrapper.score().is_some());
    /// assert_eq!(wrapper.model().epoch(), 1);
    /// let replicas = wrapper.replicas()?;
    /// let ((name, one), (_, other)) = (&replicas[0][0], &replicas[1][0]);
    /// assert_eq!((name.as_str(), one.to_vec2::<f32>()?), ("0_W", other.to_vec2::<f32>()?));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first error of the iterator or of a worker, or of the model where an epoch begins or ends;
    /// [`Error::Invalid`] for a panic of a worker; [`Error::Forked`]. Of each but the last, other ranks are told by
    /// [`Communicator::abort`]: they end with an error that names this rank, in their next `fit` if an epoch ended.
    #[track_caller]
    pub fn fit<B: Into<MultiDataSet>, I: DataIterator<B>>(&mut self, batches: I) -> Result<()> {
        called_here(self.fit_until(batches, None)).map(drop)
    }

    /// As [`ParallelWrapper::fit`], but for a pass that limits may break off: it is not counted, and listeners are not
    /// told of its end. Returns which limit did.
    pub(super) fn fit_until<B: Into<MultiDataSet>, I: DataIterator<B>>(
        &mut self,
        mut batches: I,
        limits: Option<Limits>,
    ) -> Result<Option<Termination>> {
        let breaker = self.told(|all| batches.reset().and_then(|()| all.begin(limits)))?;
        let fed = catch_unwind(AssertUnwindSafe(|| self.feed(&mut batches)));
        if fed.is_err() {
            self.shared.set_failed(true);
        }
        if self.shared.has_failed()
            && let Some(breaker) = breaker
        {
            // Some may wait for a step that the others do not get.
            breaker.break_off();
        }
        let ended = self.end();
        // A panic of the iterator is its user's.
        fed.unwrap_or_else(|panic| resume_unwind(panic)).and(ended)?;
        let broken_off = *lock(&self.shared.broken_off);
        if broken_off.is_none() {
            self.told(|all| all.model().end_epoch())?;
        }
        Ok(broken_off)
    }

    /// The mean of a number of each process, and whether one of them says so, between two calls of `fit`.
    pub(super) fn agree(&mut self, number: f64, says: bool) -> Result<(f64, bool)> {
        let Some(group) = &mut self.communicator else { return Ok((number, says)) };
        let scale = 1. / group.size() as f64;
        no_grad(|| {
            let both = Tensor::from_slice(&[number, f64::from(u8::from(says))], 2, &Device::Cpu)?;
            reduce(&mut **group, std::slice::from_ref(&both), scale)?;
            let both = both.to_vec1::<f64>()?;
            Ok((both[0], both[1] > 0.))
        })
    }

    /// Runs what no worker does, which have no communicator then. Where it fails, the processes beside this one are
    /// told: they may wait for a step that does not come. A forked child is none of them, and does nothing.
    pub(super) fn told<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.process != process::id() {
            return Err(Error::forked("fit"));
        }
        let done = catch_unwind(AssertUnwindSafe(|| f(self)));
        if !matches!(done, Ok(Ok(_)))
            && let Some(group) = &mut self.communicator
        {
            let why = if let Ok(Err(error)) = &done { quietly(|| error.to_string()) } else { None };
            quietly(|| group.abort(why.as_deref().unwrap_or(BROKEN_OFF)));
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The model: what [`ParallelWrapper::fit`] made of it. While a thread has it, a second call, or one of
    /// [`ParallelWrapper::replicas`], waits: on the same thread for ever, also within one statement.
    pub fn model(&self) -> MutexGuard<'_, M> {
        lock(&self.workers[0].model)
    }

    /// The model alone; ends the workers.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a worker cannot be ended; [`Error::Forked`].
    #[track_caller]
    pub fn into_model(mut self) -> Result<M> {
        self.stop();
        if self.process != process::id() {
            return called_here(Err(Error::forked("into_model")));
        }
        let model = self.workers.drain(..).next().map(|worker| worker.model);
        let model =
            model.and_then(Arc::into_inner).ok_or_else(|| Error::invalid("into_model", "a worker still has the model"));
        Ok(called_here(model)?.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of workers of this process.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The parameters of each replica, by name; equal after [`ParallelWrapper::fit`].
    ///
    /// # Errors
    /// As [`ParallelModel::parameters`].
    #[track_caller]
    pub fn replicas(&self) -> Result<Vec<Vec<(String, Tensor)>>> {
        called_here(self.workers.iter().map(|worker| lock(&worker.model).parameters()).collect())
    }

    /// The mean score of all workers at the last averaging; None before; NaN if one of them is.
    pub fn score(&self) -> Option<f64> {
        self.shared.score.get()
    }

    /// Brings all replicas to the model's numbers, and joins the workers. Returns what ends the calls of workers that
    /// wait for each other.
    fn begin(&mut self, limits: Option<Limits>) -> Result<Option<Breaker>> {
        let mut model = self.model();
        model.begin_epoch()?;
        let (steps, epoch) = (model.iteration(), model.epoch());
        let (parameters, state) = (model.parameters()?, model.updater_state()?);
        drop(model);
        for worker in &self.workers[1..] {
            let mut replica = lock(&worker.model);
            let own = replica.parameters()?.into_iter().chain(replica.updater_state()?);
            let pairs = own.zip(parameters.iter().chain(&state));
            pairs.into_iter().try_for_each(|((_, own), (_, new))| no_grad(|| own.copy_(new)))?;
            replica.set_iteration(steps);
            replica.set_epoch(epoch);
        }
        self.shared.scores.iter().for_each(|score| score.set(None));
        self.shared.set_failed(false);
        *lock(&self.shared.failure) = None;
        *lock(&self.shared.broken_off) = None;
        let mut breaker = None;
        let group: Vec<Box<dyn Communicator>> = match self.communicator.take() {
            Some(own) => vec![own],
            None => {
                let group = ThreadCommunicator::group(self.workers.len())?;
                breaker = group.first().map(ThreadCommunicator::breaker);
                group.into_iter().map(|one| Box::new(one) as Box<dyn Communicator>).collect()
            }
        };
        self.workers.iter().zip(group).try_for_each(|(worker, one)| worker.send(Job::Begin(one, steps, limits)))?;
        Ok(breaker)
    }

    /// Hands out the batches, in rounds.
    fn feed<B: Into<MultiDataSet>, I: DataIterator<B>>(&self, batches: &mut I) -> Result<()> {
        let settings = self.shared.settings;
        let shares = settings.mode == TrainingMode::SharedGradients;
        let (mut since, mut more) = (0, true);
        while more && !self.shared.has_failed() && lock(&self.shared.broken_off).is_none() {
            let average = since + 1 == settings.averaging_frequency && !shares;
            let mut last = None;
            for worker in &self.workers {
                let batch = if more { batches.next() } else { None };
                let batch = batch.transpose().inspect_err(|_| self.shared.set_failed(true))?;
                more = batch.is_some();
                last = batch.map(Into::into).or(last);
                match (&last, average) {
                    (Some(batch), _) if shares => worker.send(Job::Share(batch.clone(), more))?,
                    (Some(batch), average) if more => worker.send(Job::Fit(batch.clone(), average))?,
                    // The others of this round wait for it.
                    (Some(_), true) => worker.send(Job::Average)?,
                    _ => break,
                }
            }
            if last.is_none() {
                break;
            }
            since = if average { 0 } else { since + 1 };
        }
        if since == 0 {
            return Ok(());
        }
        // Shared gradients leave parameters equal, but not what layers gather beside them.
        self.workers.iter().try_for_each(|worker| worker.send(Job::Average))
    }

    /// Waits until every worker is done.
    fn end(&mut self) -> Result<()> {
        for worker in &self.workers {
            worker.send(Job::End)?;
        }
        for _ in 0..self.workers.len() {
            let back = self.ends.recv().map_err(|_| gone())?;
            // A group of threads is for one `fit`, since one that was aborted cannot go on.
            self.communicator = back.filter(|_| self.is_remote);
        }
        lock(&self.shared.failure).take().map_or(Ok(()), Err)
    }

    fn stop(&mut self) {
        if self.process != process::id() {
            // The threads are the parent's, and may have locks of the channels for ever.
            let ends = std::mem::replace(&mut self.ends, channel().1);
            std::mem::forget((std::mem::take(&mut self.workers), ends, self.communicator.take()));
            return;
        }
        for worker in &mut self.workers {
            worker.jobs = None;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // It catches what panics.
                let _ = thread.join();
            }
        }
    }
}

impl<M: ParallelModel> Drop for ParallelWrapper<M> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<M> Trainer<M> {
    fn send(&self, job: Job) -> Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(gone)
    }
}

/// A worker as its thread sees it.
struct Worker<M> {
    rank: usize,
    model: Arc<Mutex<M>>,
    shared: Arc<WrapperShared>,
    done: Sender<Option<Box<dyn Communicator>>>,
}

/// What a communicator makes of arrays on the way, parts and copies, is its handles', whoever owns the arrays.
fn reduce(communicator: &mut dyn Communicator, arrays: &[Tensor], scale: f64) -> Result<()> {
    called_at(Location::caller(), || communicator.all_reduce(arrays, scale))
}

/// What of the user's may panic with nobody to tell: nothing then.
fn quietly<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(text_of).ok()
}

impl<M: ParallelModel> Worker<M> {
    fn work(&self, jobs: &Receiver<Job>) {
        let mut joined: Option<Joined> = None;
        for job in jobs {
            let ends = matches!(job, Job::End);
            // Models, communicators, batches and errors are the user's: each call of theirs may panic, and each drop.
            let done = catch_unwind(AssertUnwindSafe(|| self.take(job, &mut joined)));
            let done = done.unwrap_or_else(|panic| {
                Err(Error::invalid("ParallelWrapper", format!("worker {} panicked: {}", self.rank, text_of(panic))))
            });
            if let Err(error) = done {
                self.fail(error, joined.as_mut());
            }
            if ends {
                // The caller is there until it has got this.
                let _ = self.done.send(joined.take().map(|group| group.communicator));
            }
        }
    }

    /// Does what it is told, if nothing has failed.
    fn take(&self, job: Job, joined: &mut Option<Joined>) -> Result<()> {
        let failed = self.shared.has_failed();
        match job {
            Job::Begin(communicator, steps, limits) => {
                let (ended, is_broken_off) = (false, false);
                let group = joined.insert(Joined { communicator, steps, made: 0, ended, limits, is_broken_off });
                lock(&self.model).set_rank(group.communicator.rank());
            }
            Job::End => match joined {
                // Processes beside this one may wait for a step that does not come.
                Some(group) if failed => group.communicator.abort(BROKEN_OFF),
                Some(group) => group.end()?,
                None => {}
            },
            job => {
                if !failed
                    && let Some(group) = joined
                    && !self.is_late(&job, group)
                {
                    self.run(job, group)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a job comes after the sum that broke the pass off. Parameters are equal then; what layers gather beside
    /// shared gradients is to be averaged still.
    fn is_late(&self, job: &Job, group: &Joined) -> bool {
        let is_last = matches!(job, Job::Average) && self.shared.settings.mode == TrainingMode::SharedGradients;
        group.is_broken_off && !is_last
    }

    /// Notes the first error, and ends the calls of the others.
    fn fail(&self, error: Error, group: Option<&mut Joined>) {
        let why = quietly(|| error.to_string()).unwrap_or_default();
        let mut first = lock(&self.shared.failure);
        let late = if first.is_none() { first.replace(error) } else { Some(error) };
        drop(first);
        self.shared.set_failed(true);
        quietly(|| drop(late));
        quietly(|| group.map(|group| group.communicator.abort(&why)));
    }

    fn run(&self, job: Job, group: &mut Joined) -> Result<()> {
        let mut model = lock(&self.model);
        let average = match job {
            Job::Fit(batch, average) => {
                // A batch without examples has nothing to learn from, and is no step of the updater. The model refuses
                // one without features.
                if batch.num_examples() > 0 || batch.features.is_empty() {
                    let before = model.iteration();
                    self.shared.scores[self.rank].set(Some(model.fit_batch(&batch)?));
                    // A series in segments is a step for each; not every model counts its steps itself.
                    group.made += model.iteration().saturating_sub(before).max(1);
                }
                average
            }
            Job::Share(batch, counts) => {
                self.share(&mut model, &batch, counts, group)?;
                false
            }
            Job::Average => {
                // Of shared gradients it is behind the last step: others may have another one.
                if self.shared.settings.mode == TrainingMode::SharedGradients {
                    group.end()?;
                }
                true
            }
            Job::Begin(..) | Job::End => false,
        };
        if average { self.average(&mut model, group) } else { Ok(()) }
    }

    /// A step with the mean of the gradients, each weighed with the examples that it is of.
    fn share(&self, model: &mut M, batch: &MultiDataSet, counts: bool, group: &mut Joined) -> Result<()> {
        let (score, gradients) = if counts { model.gradients(batch)? } else { model.gradients_of_other(batch)? };
        let examples = if counts { batch.num_examples() } else { 0 };
        let mean = no_grad(|| {
            // A gradient times the examples that it is of may be no half.
            let sums_of = gradients.iter().map(|(_, array)| upcast_half(array)).collect::<Result<Vec<_>>>()?;
            let scale = |factor: f64| sums_of.iter().try_for_each(|array| array.affine_(factor, 0.).map(drop));
            let sums = if examples == 0 {
                // What does not count may be anything, and NaN stays NaN when it is multiplied with 0.
                sums_of.iter().try_for_each(|array| array.zero_().map(drop))?;
                [0., 0., group.is_over()]
            } else {
                let weight = examples as f64;
                scale(weight)?;
                [score * weight, weight, group.is_over()]
            };
            let sums = Tensor::from_slice(&sums, 3, &Device::Cpu)?;
            reduce(&mut *group.communicator, &sums_of.iter().chain([&sums]).cloned().collect::<Vec<_>>(), 1.)?;
            let Some((mean, weights)) = self.report(&sums.to_vec1::<f64>()?, group) else { return Ok(None) };
            scale(1. / weights)?;
            for ((_, array), sum) in gradients.iter().zip(&sums_of) {
                if array.dtype() != sum.dtype() {
                    array.copy_(&sum.to_dtype(array.dtype())?)?;
                }
            }
            Ok::<_, Error>(Some(mean))
        })?;
        // A round of batches without examples has no gradient, and is no step; all ranks have the same sums.
        mean.map_or(Ok(()), |mean| model.apply_gradients(&gradients, mean))
    }

    /// Gives all replicas the mean of what each learned, and the same count of steps.
    fn average(&self, model: &mut M, group: &mut Joined) -> Result<()> {
        let mut arrays: Vec<Tensor> = model.changing_parameters()?.into_iter().map(|(_, array)| array).collect();
        if self.shared.settings.average_updaters {
            arrays.extend(model.updater_state()?.into_iter().map(|(_, array)| array));
        }
        // Counters, if there are any, are equal everywhere.
        arrays.retain(|array| array.dtype().is_float());
        let [score, known] = self.shared.scores[self.rank].get().map_or([0., 0.], |score| [score, 1.]);
        let ranks = group.communicator.size();
        let (mut own, size) = (vec![0.; 3 + ranks], ranks as f64);
        (own[0], own[1], own[2]) = (score, known, group.is_over());
        own[3 + group.communicator.rank()] = group.made as f64;
        let means = no_grad(|| {
            let means = Tensor::from_vec(own, 3 + ranks, &Device::Cpu)?;
            arrays.push(means.clone());
            reduce(&mut *group.communicator, &arrays, 1. / size)?;
            means.to_vec1::<f64>()
        })?;
        // Of shared gradients each replica made the same steps, and none in rounds without examples.
        if self.shared.settings.mode == TrainingMode::Averaging {
            self.report(&means, group);
            // The most that one made: others may have had fewer batches, or some without examples.
            let most = means[3..].iter().fold(0., |most: f64, made| most.max(made * size));
            group.steps = group.steps.saturating_add(most.round() as u64);
            group.made = 0;
            model.set_iteration(group.steps);
        }
        Ok(())
    }

    /// The mean score of all ranks, from the sums of weighed scores and of weights; behind these stands whether the
    /// time of one is over. Returns it, and the sum of weights; nothing if that is 0.
    fn report(&self, sums: &[f64], group: &mut Joined) -> Option<(f64, f64)> {
        let (mean, weights) = (sums[0] / sums[1], sums[1]);
        if let Some(limits) = group.limits {
            let by_score = if weights == 0. { None } else { limits.by_score(mean) };
            let ended = by_score.or_else(|| (sums[2] > 0.).then_some(Termination::MaxTime));
            if ended.is_some() {
                group.is_broken_off = true;
                *lock(&self.shared.broken_off) = ended;
            }
        }
        if weights == 0. {
            return None;
        }
        if self.rank == 0 {
            self.shared.score.set(Some(mean));
            if self.shared.settings.report_score && group.communicator.rank() == 0 {
                // As with what listeners write.
                let _ = writeln!(std::io::stderr(), "averaged score: {mean}");
            }
        }
        Some((mean, weights))
    }
}

fn gone() -> Error {
    Error::invalid("ParallelWrapper", "a worker is gone")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
