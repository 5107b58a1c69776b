//! Who is told how training goes.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use ndgc::{Result, gc};

use super::super::data::{DataIterator, DataSet, Examples};
use super::super::evaluation::{Evaluation, IEvaluation};
use super::network::{Network, TrainingListener};

/// Prints lines on standard output. That may be closed, which is no reason to end a training.
fn print(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints the score every so many steps: DL4J's `ScoreIterationListener`.
#[derive(Debug)]
pub struct ScoreListener(pub u64);

impl TrainingListener for ScoreListener {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        if net.iteration().is_multiple_of(self.0.max(1)) {
            print(format_args!("score at iteration {} is {}", net.iteration(), net.score()));
        }
        Ok(())
    }
}

/// Prints every so many steps how many steps and milliseconds there were since the last line: DL4J's
/// `PerformanceListener`.
#[derive(Debug)]
pub struct TimeListener {
    every: u64,
    since: Option<(Instant, u64)>,
}

impl TimeListener {
    /// A line every so many steps.
    pub fn new(every: u64) -> Self {
        TimeListener { every: every.max(1), since: None }
    }
}

impl TrainingListener for TimeListener {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        let now = Instant::now();
        let (then, first) = *self.since.get_or_insert((now, net.iteration()));
        // Whoever sets the count back, as a restored checkpoint does, lets this begin again.
        let Some(steps) = net.iteration().checked_sub(first) else {
            self.since = Some((now, net.iteration()));
            return Ok(());
        };
        if steps >= self.every {
            let each = now.duration_since(then).as_secs_f64() * 1e3 / steps as f64;
            print(format_args!("iteration {}: {each:.3} ms a step", net.iteration()));
            self.since = Some((now, net.iteration()));
        }
        Ok(())
    }
}

/// What a [`MemoryListener`] saw after a step. Arrays and bytes are those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// The step.
    pub iteration: u64,
    /// Arrays that were not closed.
    pub arrays: u64,
    /// Bytes of the network's device in use, workspaces among them.
    pub bytes: u64,
    /// Bytes of the network's workspaces on this thread: blocks, and what lies beside them.
    pub workspace_bytes: u64,
    /// How often the network's workspaces asked the device for memory.
    pub requests: u64,
}

impl MemoryLine {
    /// What is there now.
    pub fn of(net: &Network) -> Self {
        let spaces = net.workspaces();
        let stats = spaces.iter().map(|space| space.stats());
        let (bytes, requests) =
            stats.fold((0, 0), |(b, r), s| (b + s.size + s.spilled + s.pinned, r + s.system_allocations));
        MemoryLine {
            iteration: net.iteration(),
            arrays: gc::stats().live,
            bytes: net.config().device.memory().active,
            workspace_bytes: bytes,
            requests,
        }
    }
}

/// Prints memory every so many steps.
#[derive(Debug)]
pub struct MemoryListener(pub u64);

impl TrainingListener for MemoryListener {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        if net.iteration().is_multiple_of(self.0.max(1)) {
            let line = MemoryLine::of(net);
            print(format_args!(
                "memory at iteration {}: {} arrays, {} bytes, of which workspaces {}; {} requests",
                line.iteration, line.arrays, line.bytes, line.workspace_bytes, line.requests
            ));
        }
        Ok(())
    }
}

/// Draws a bar of a pass over the data on standard error, at most ten times a second.
#[derive(Debug)]
pub struct ProgressListener {
    steps: u64,
    done: u64,
    drawn: Option<Instant>,
}

impl ProgressListener {
    /// For passes of so many steps.
    pub fn new(steps: u64) -> Self {
        ProgressListener { steps: steps.max(1), done: 0, drawn: None }
    }

    fn draw(&mut self, net: &Network) {
        self.drawn = Some(Instant::now());
        let filled = (self.done * 30 / self.steps).min(30) as usize;
        let (bar, rest) = ("#".repeat(filled), "-".repeat(30 - filled));
        let mut out = std::io::stderr().lock();
        // A bar that cannot be drawn is no reason to stop.
        let _ =
            write!(out, "\repoch {} [{bar}{rest}] {}/{} score {:.5}", net.epoch(), self.done, self.steps, net.score());
        let _ = out.flush();
    }
}

impl TrainingListener for ProgressListener {
    fn on_epoch_start(&mut self, _net: &Network) -> Result<()> {
        self.done = 0;
        Ok(())
    }

    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        self.done += 1;
        if self.drawn.is_none_or(|then| then.elapsed() >= Duration::from_millis(100)) {
            self.draw(net);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, net: &Network) -> Result<()> {
        self.draw(net);
        let _ = writeln!(std::io::stderr());
        Ok(())
    }
}

/// When an [`EvaluativeListener`] evaluates. The names are DL4J's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvocationType {
    /// After a step.
    IterationEnd,
    /// Before a pass over the data.
    EpochStart,
    /// After a pass over the data.
    EpochEnd,
}

/// What is done with what an [`EvaluativeListener`] found.
type Found<E> = Box<dyn FnMut(&Network, &E) -> Result<()> + Send>;

/// Evaluates the network on batches of its own every so many steps or passes, and prints what was found or gives it to
/// a function: DL4J's `EvaluativeListener`.
///
/// Each time, the evaluation begins anew ([`IEvaluation::reset`]), and so do the batches. The listener counts steps or
/// passes itself, and evaluates after each n-th; DL4J's after the first, and each n-th from there.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use ndgc::train::{Activation, DataSet, Dense, EvaluativeListener, InputType, InvocationType, ListDataSetIterator};
/// use ndgc::train::{Loss, NetworkConfig, OutputLayer, Updater};
/// use ndgc::{Device, Tensor};
///
/// let xor = DataSet::new(
///     Tensor::new(&[[0f32, 0.], [0., 1.], [1., 0.], [1., 1.]], &Device::Cpu)?,
///     Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.], [1., 0.]], &Device::Cpu)?,
/// )?;
/// let batches = ListDataSetIterator::new(vec![xor]);
/// let config = NetworkConfig::builder().seed(1).updater(Updater::adam(0.1)).input_type(InputType::feed_forward(2));
/// let config = config.layer(Dense::new(8).activation(Activation::Tanh)).layer(OutputLayer::new(2, Loss::Mcxent));
/// let mut net = config.build()?;
///
/// let accuracies = Arc::new(Mutex::new(Vec::new()));
/// let kept = Arc::clone(&accuracies);
/// let listener = EvaluativeListener::new(batches.clone(), 50, InvocationType::EpochEnd);
/// net.add_listener(listener.with_callback(move |_net, found| {
///     kept.lock().unwrap().push(found.accuracy());
///     Ok(())
/// }));
/// net.fit_epochs(batches, 100)?;
/// let accuracies = accuracies.lock().unwrap();
/// assert_eq!((accuracies.len(), accuracies[1]), (2, 1.));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct EvaluativeListener<B = DataSet, E = Evaluation> {
    batches: Box<dyn DataIterator<B> + Send>,
    evaluation: E,
    every: u64,
    when: InvocationType,
    calls: u64,
    found: Option<Found<E>>,
}

impl<B> EvaluativeListener<B> {
    /// Classifications of these batches, every so many steps or passes, printed as [`IEvaluation::stats`].
    pub fn new(batches: impl DataIterator<B> + Send + 'static, every: u64, when: InvocationType) -> Self {
        let (batches, evaluation) = (Box::new(batches), Evaluation::default());
        EvaluativeListener { batches, evaluation, every: every.max(1), when, calls: 0, found: None }
    }
}

impl<B, E> EvaluativeListener<B, E> {
    /// With an evaluation of another kind, or with settings; a function is given after that.
    #[must_use]
    pub fn with_evaluation<K: IEvaluation>(self, evaluation: K) -> EvaluativeListener<B, K> {
        let EvaluativeListener { batches, every, when, calls, .. } = self;
        EvaluativeListener { batches, evaluation, every, when, calls, found: None }
    }

    /// Gives what was found to a function instead of printing it; its error ends the training.
    #[must_use]
    pub fn with_callback(mut self, found: impl FnMut(&Network, &E) -> Result<()> + Send + 'static) -> Self {
        self.found = Some(Box::new(found));
        self
    }
}

impl<B, E> fmt::Debug for EvaluativeListener<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvaluativeListener")
            .field("when", &self.when)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl<B: Examples, E: IEvaluation> EvaluativeListener<B, E> {
    fn called(&mut self, when: InvocationType, net: &Network) -> Result<()> {
        if when != self.when {
            return Ok(());
        }
        self.calls += 1;
        if !self.calls.is_multiple_of(self.every) {
            return Ok(());
        }
        self.evaluation.reset();
        net.do_evaluation(&mut self.batches, &mut [&mut self.evaluation])?;
        match &mut self.found {
            Some(found) => found(net, &self.evaluation),
            None => {
                let (iteration, epoch) = (net.iteration(), net.epoch());
                let stats = self.evaluation.stats();
                print(format_args!("evaluation at iteration {iteration}, epoch {epoch}:\n{stats}"));
                Ok(())
            }
        }
    }
}

impl<B: Examples, E: IEvaluation + Send> TrainingListener for EvaluativeListener<B, E> {
    fn on_epoch_start(&mut self, net: &Network) -> Result<()> {
        self.called(InvocationType::EpochStart, net)
    }

    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        self.called(InvocationType::IterationEnd, net)
    }

    fn on_epoch_end(&mut self, net: &Network) -> Result<()> {
        self.called(InvocationType::EpochEnd, net)
    }
}
