//! One model that answers many callers.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ndgc::{Error, Result, Tensor, Workspace, no_grad};

use super::super::network::LayerWorkspaceMgr;
use super::super::place::called_here;
use super::communicator::MOST;
use super::model::Model;

/// Who runs the model for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InferenceMode {
    /// A worker, one request after the other.
    Sequential,
    /// A worker, all requests that wait together, row by row.
    #[default]
    Batched,
    /// The caller's own thread; there are no workers.
    InPlace,
}

/// Settings of a [`ParallelInference`]: see [`ParallelInference::builder`].
#[derive(Clone)]
pub struct ParallelInferenceBuilder {
    model: Arc<dyn Model>,
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    mode: InferenceMode,
    workers: usize,
    batch_limit: usize,
    queue_limit: usize,
    max_latency: Duration,
}

impl fmt::Debug for ParallelInferenceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelInferenceBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ParallelInferenceBuilder {
    /// Who runs the model; [`InferenceMode::Batched`] unless this says something else.
    ///
    /// ```
    /// # use ndgc::train::{InferenceMode, ParallelInference};
    /// # use ndgc::{Device, Tensor};
    /// let double = |x: &Tensor| x.affine(2., 0.);
    /// let inference = ParallelInference::builder(double).inference_mode(InferenceMode::InPlace).build()?;
    /// assert_eq!(inference.output(&Tensor::new(&[[3f32]], &Device::Cpu)?)?.to_vec2::<f32>()?, [[6.]]);
    /// assert!(inference.served().is_empty()); // no worker was there: the caller did it
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[must_use]
    pub fn inference_mode(mut self, mode: InferenceMode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// Threads that answer; 1 unless this says something else.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// The most rows that requests are put together to; 32 unless this says something else. A single request may have
    /// more. ND4J counts requests, so that its batches have no limit.
    #[must_use]
    pub fn batch_limit(mut self, rows: usize) -> Self {
        self.settings.batch_limit = rows;
        self
    }

    /// The most requests that wait; further callers wait for a place. 64 unless this says something else.
    #[must_use]
    pub fn queue_limit(mut self, requests: usize) -> Self {
        self.settings.queue_limit = requests;
        self
    }

    /// How long a request may wait for others to fill its batch. 0 unless this says something else: then what waits
    /// when a worker is free is a batch. It waits no longer where those that do not fit it are as many rows as a batch,
    /// or have all places.
    #[must_use]
    pub fn max_latency(mut self, latency: Duration) -> Self {
        self.settings.max_latency = latency;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`Error::Argument`] for a limit or a number of workers that is 0, and for more than 65,536 workers;
    /// [`Error::Invalid`] if there is no thread to be had.
    #[track_caller]
    pub fn build(self) -> Result<ParallelInference> {
        let ParallelInferenceBuilder { model, settings } = self;
        let Settings { mode, workers, batch_limit, queue_limit, .. } = settings;
        let limits = [("workers", workers), ("batch_limit", batch_limit), ("queue_limit", queue_limit)];
        if let Some((argument, value)) = limits.into_iter().find(|(_, value)| *value == 0) {
            let (op, expected, value) = ("ParallelInference", "at least 1", value.to_string());
            return called_here(Err(Error::argument(op, argument, value, expected)));
        }
        if workers > MOST {
            return called_here(Err(Error::argument("ParallelInference", "workers", workers, "at most 65536")));
        }
        let workers = if mode == InferenceMode::InPlace { 0 } else { workers };
        let shared = Arc::new(InferenceShared {
            model: Mutex::new(model),
            queue: Mutex::new(RequestQueue {
                waiting: VecDeque::new(),
                looking: false,
                gathering: false,
                closed: false,
            }),
            arrived: Condvar::new(),
            taken: Condvar::new(),
            served: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            settings,
        });
        let mut all = ParallelInference { shared, workers: Mutex::new(Vec::new()), process: process::id() };
        for worker in 0..workers {
            let shared = Arc::clone(&all.shared);
            let thread = thread::Builder::new().name(format!("ndgc-inference-{worker}"));
            let started = thread.spawn(move || shared.work(worker));
            let started = started
                .map_err(|error| Error::invalid("ParallelInference", format!("no thread to answer with: {error}")));
            all.workers.get_mut().unwrap_or_else(PoisonError::into_inner).push(called_here(started)?);
        }
        Ok(all)
    }
}

/// A model that many threads ask at once; requests are answered together where that is faster.
///
/// Answers are the caller's: no workspace ends them. A request that the model refuses, or panics at, fails alone. Idle
/// workers wait without using the processor, but for one that looks for 30 us whether more comes: to be woken takes
/// longer than a small model. A drop, or [`ParallelInference::shutdown`], ends them, and requests that wait then fail.
///
/// ```
/// # use ndgc::train::ParallelInference;
/// # use ndgc::{DType, Device, Tensor};
/// let weights = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
/// let model = move |x: &Tensor| x.matmul(&weights);
/// let inference = ParallelInference::builder(model).workers(2).batch_limit(16).build()?;
/// std::thread::scope(|scope| {
///     for _ in 0..8 {
///         scope.spawn(|| {
///             let x = Tensor::ones((1, 4), DType::F32, &Device::Cpu)?;
///             assert_eq!(inference.output(&x)?.to_vec2::<f32>()?, [[4., 4.]]);
///             assert!(inference.output(&Tensor::ones((1, 5), DType::F32, &Device::Cpu)?).is_err());
///             Ok::<(), ndgc::Error>(())
///         });
///     }
/// });
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct ParallelInference {
    shared: Arc<InferenceShared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// The process that has the workers; a forked child has none.
    process: u32,
}

impl fmt::Debug for ParallelInference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ParallelInference").field(&self.shared.settings).finish()
    }
}

impl ParallelInference {
    /// Settings to begin with, for this model.
    pub fn builder(model: impl Model + 'static) -> ParallelInferenceBuilder {
        let (mode, max_latency) = (InferenceMode::default(), Duration::ZERO);
        let settings = Settings { mode, workers: 1, batch_limit: 32, queue_limit: 64, max_latency };
        ParallelInferenceBuilder { model: Arc::new(model), settings }
    }

    /// The output for an input of one or more rows. Waits for it.
    ///
    /// # Errors
    /// Those of the model for this input; [`Error::Invalid`] if it panicked, or after a shutdown; [`Error::Forked`].
    #[track_caller]
    pub fn output(&self, input: &Tensor) -> Result<Tensor> {
        match &self.outputs(std::slice::from_ref(input), &[])?[..] {
            [output] => Ok(output.clone()),
            all => {
                let why = format!("the model has {} outputs; call outputs()", all.len());
                called_here(Err(Error::invalid("ParallelInference", why)))
            }
        }
    }

    /// The outputs for an array for each input, and masks: one for each input, or none at all. Waits for them.
    ///
    /// # Errors
    /// As [`ParallelInference::output`].
    #[track_caller]
    pub fn outputs(&self, inputs: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        called_here(self.answered(inputs, masks))
    }

    fn answered(&self, inputs: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        if self.process != process::id() {
            return Err(Error::forked("output"));
        }
        if self.shared.settings.mode == InferenceMode::InPlace {
            if self.shared.lock().closed {
                return Err(closed());
            }
            // The answer is the caller's, as from a worker.
            let _out = Workspace::scope_out();
            return run(&*self.shared.model(), inputs, masks);
        }
        let reply = Arc::new(Reply::default());
        let rows = inputs.first().and_then(|input| input.dims().first().copied()).unwrap_or(1);
        let (inputs, masks, arrived) = (inputs.to_vec(), masks.to_vec(), Instant::now());
        let request = InferenceRequest { inputs, masks, rows, arrived, reply: Some(Arc::clone(&reply)) };
        if self.shared.put(request)? {
            // Its worker is awake already.
            until(&mut || reply.answer.try_lock().is_ok_and(|answer| answer.is_some()));
        }
        reply.wait()
    }

    /// Answers with another model from now on. Requests that are being answered still get the old one's; no batch has
    /// answers of both. Workers then give back the workspaces of a network that is gone, callers in place with their
    /// next request. A forked child answers nothing, and changes none.
    ///
    /// ```
    /// # use ndgc::train::ParallelInference;
    /// # use ndgc::{Device, Tensor};
    /// let inference = ParallelInference::builder(|x: &Tensor| x.affine(2., 0.)).build()?;
    /// let x = Tensor::new(&[[3f32]], &Device::Cpu)?;
    /// assert_eq!(inference.output(&x)?.to_vec2::<f32>()?, [[6.]]);
    /// inference.update_model(|x: &Tensor| x.affine(10., 0.)); // other threads may be asking
    /// assert_eq!(inference.output(&x)?.to_vec2::<f32>()?, [[30.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn update_model(&self, model: impl Model + 'static) {
        if self.process == process::id() {
            let before = std::mem::replace(&mut *lock(&self.shared.model), Arc::new(model));
            // Without the lock: it may be large.
            drop(before);
            self.shared.notify_idle_workers();
        }
    }

    /// Requests that each worker answered.
    pub fn served(&self) -> Vec<u64> {
        // Relaxed: numbers to look at, from which nothing follows.
        self.shared.served.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Ends the workers when they have answered what they are at; requests that wait fail, and those that come. Waits
    /// for the workers, but within the model not for the one that runs it, and not where another call waits for them.
    ///
    /// ```
    /// # use ndgc::train::ParallelInference;
    /// # use ndgc::{Device, Error, Tensor};
    /// let inference = ParallelInference::builder(|x: &Tensor| x.affine(2., 0.)).build()?;
    /// let x = Tensor::new(&[[3f32]], &Device::Cpu)?;
    /// inference.output(&x)?;
    /// inference.shutdown();
    /// assert_eq!(inference.served(), [1]); // by the one worker
    /// assert!(matches!(inference.output(&x), Err(Error::Invalid { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn shutdown(&self) {
        // There is nobody to wait for, and a lock may be held for ever.
        if self.process != process::id() {
            return;
        }
        let waiting = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            std::mem::take(&mut queue.waiting)
        };
        self.shared.arrived.notify_all();
        self.shared.taken.notify_all();
        waiting.into_iter().for_each(|request| request.give(Err(closed())));
        let this = thread::current().id();
        // Without the lock: the model of a worker that is waited for may come here too.
        let workers = std::mem::take(&mut *lock(&self.workers));
        for worker in workers {
            // The model may call this, or drop what it is of: its own thread ends behind it.
            if worker.thread().id() != this {
                // A panic of a worker's own would be a fault here; nobody waits for it any more.
                let _ = worker.join();
            }
        }
    }
}

impl Drop for ParallelInference {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What callers and workers share.
struct InferenceShared {
    settings: Settings,
    model: Mutex<Arc<dyn Model>>,
    queue: Mutex<RequestQueue>,
    /// A request came, or a worker stopped gathering.
    arrived: Condvar,
    /// There is a place in the queue.
    taken: Condvar,
    served: Vec<AtomicU64>,
}

struct RequestQueue {
    waiting: VecDeque<InferenceRequest>,
    /// A worker looks whether a request comes, and need not be woken.
    looking: bool,
    /// A worker waits for requests to fill its batch: the others leave them to it.
    gathering: bool,
    closed: bool,
}

struct InferenceRequest {
    inputs: Vec<Tensor>,
    masks: Vec<Option<Tensor>>,
    rows: usize,
    arrived: Instant,
    /// None once it is given.
    reply: Option<Arc<Reply>>,
}

/// How long who waits looks before it sleeps. Other threads that could run do meanwhile.
const LOOKS: Duration = Duration::from_micros(30);

/// Looks whether something is so, for [`LOOKS`] at most.
fn until(is_so: &mut dyn FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < LOOKS {
        thread::yield_now();
    }
}

/// Where an answer is left, and the caller waits.
#[derive(Default)]
struct Reply {
    answer: Mutex<Option<Result<Vec<Tensor>>>>,
    given: Condvar,
}

impl Reply {
    fn give(&self, answer: Result<Vec<Tensor>>) {
        *lock(&self.answer) = Some(answer);
        self.given.notify_one();
    }

    fn wait(&self) -> Result<Vec<Tensor>> {
        let mut answer = lock(&self.answer);
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            answer = self.given.wait(answer).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl InferenceShared {
    fn lock(&self) -> MutexGuard<'_, RequestQueue> {
        lock(&self.queue)
    }

    fn model(&self) -> Arc<dyn Model> {
        Arc::clone(&lock(&self.model))
    }

    /// Whether a worker was looking for it.
    fn put(&self, request: InferenceRequest) -> Result<bool> {
        let mut queue = self.lock();
        while queue.waiting.len() >= self.settings.queue_limit && !queue.closed {
            queue = self.taken.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.closed {
            return Err(closed());
        }
        queue.waiting.push_back(request);
        // Only the worker that gathers listens then; it could be any of those that wait.
        let (looking, gathering) = (queue.looking, queue.gathering);
        drop(queue);
        if gathering {
            self.arrived.notify_all()
        } else if !looking {
            self.arrived.notify_one()
        }
        Ok(looking)
    }

    fn work(&self, worker: usize) {
        while let Some(batch) = self.take() {
            // Relaxed: as in `served`.
            self.served[worker].fetch_add(batch.len() as u64, Ordering::Relaxed);
            // What the model drops may panic: its last handle may go here, and what a panic of its carried does.
            let _ = catch_unwind(AssertUnwindSafe(|| answer(&*self.model(), batch))).map_err(text_of);
            if LayerWorkspaceMgr::any_ended() {
                // The model was replaced meanwhile, and this was the last one to use it.
                self.notify_idle_workers();
            }
        }
    }

    /// Lets the workers that wait look whether a network ended.
    fn notify_idle_workers(&self) {
        // Under the lock: none is between its look and its wait.
        let _queue = self.lock();
        self.arrived.notify_all();
    }

    /// The next requests to answer together; None at the end.
    fn take(&self) -> Option<Vec<InferenceRequest>> {
        let mut looked = false;
        let mut queue = self.lock();
        while !queue.closed && (queue.gathering || queue.waiting.is_empty()) {
            if LayerWorkspaceMgr::any_ended() {
                // Without the lock: pages that go back take a while.
                drop(queue);
                LayerWorkspaceMgr::release_ended();
                queue = self.lock();
                continue;
            }
            if !(looked || queue.looking || queue.gathering) {
                queue = self.look(queue);
                looked = true;
                continue;
            }
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            looked = false;
        }
        let first = queue.waiting.pop_front()?;
        if self.settings.mode == InferenceMode::Sequential {
            let others_wait = !queue.waiting.is_empty();
            drop(queue);
            self.taken.notify_one();
            if others_wait {
                // Nobody was woken for it while this worker looked.
                self.arrived.notify_one();
            }
            return Some(vec![first]);
        }
        let limit = self.settings.batch_limit;
        let deadline = first.arrived.checked_add(self.settings.max_latency);
        let (mut rows, mut batch) = (first.rows, vec![first]);
        loop {
            rows += fitting(&mut queue.waiting, &mut batch, limit.saturating_sub(rows));
            self.taken.notify_all();
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if rows >= limit || left.is_zero() || queue.closed || self.is_pressed(&queue.waiting) {
                break;
            }
            queue.gathering = true;
            queue = match self.arrived.wait_timeout(queue, left) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        let others_wait = queue.gathering || !queue.waiting.is_empty();
        queue.gathering = false;
        drop(queue);
        if others_wait {
            self.arrived.notify_all();
        }
        Some(batch)
    }

    /// Looks for [`LOOKS`] whether a request comes.
    fn look<'a>(&'a self, mut queue: MutexGuard<'a, RequestQueue>) -> MutexGuard<'a, RequestQueue> {
        queue.looking = true;
        drop(queue);
        until(&mut || match self.queue.try_lock() {
            Ok(queue) => queue.closed || !queue.waiting.is_empty(),
            Err(_) => false,
        });
        let mut queue = self.lock();
        queue.looking = false;
        queue
    }

    /// Whether requests that do not fit the batch of who gathers end that: they are as many rows as a batch, or have
    /// all places, so that nobody else can come.
    fn is_pressed(&self, waiting: &VecDeque<InferenceRequest>) -> bool {
        let rows = waiting.iter().fold(0, |rows: usize, request| rows.saturating_add(request.rows));
        rows >= self.settings.batch_limit || waiting.len() >= self.settings.queue_limit
    }
}

impl InferenceRequest {
    /// Answers it.
    fn give(mut self, answer: Result<Vec<Tensor>>) {
        if let Some(reply) = self.reply.take() {
            reply.give(answer);
        }
    }

    /// All its arrays: inputs, then masks.
    fn arrays(&self) -> impl Iterator<Item = Option<&Tensor>> {
        self.inputs.iter().map(Some).chain(self.masks.iter().map(Option::as_ref))
    }

    /// Whether rows of both can be put together: everything but their number is the same.
    fn fits(&self, other: &Self) -> bool {
        let same = |(a, b): (Option<&Tensor>, Option<&Tensor>)| match (a, b) {
            (Some(a), Some(b)) => {
                let rows = |array: &Tensor, of: &Self| array.dims().first() == Some(&of.rows);
                let whole = rows(a, self) && rows(b, other) && a.dims()[1..] == b.dims()[1..];
                whole && a.dtype() == b.dtype() && a.device().location() == b.device().location()
            }
            (a, b) => a.is_none() && b.is_none(),
        };
        let counts = |of: &Self| (of.inputs.len(), of.masks.len());
        counts(self) == counts(other) && self.arrays().zip(other.arrays()).all(same)
    }
}

impl Drop for InferenceRequest {
    fn drop(&mut self) {
        // Its caller waits.
        if let Some(reply) = self.reply.take() {
            reply.give(Err(Error::invalid("ParallelInference", "its worker panicked before there was an answer")));
        }
    }
}

/// Moves the requests that fit those of the batch, of at most so many rows, and says of how many they are.
fn fitting(waiting: &mut VecDeque<InferenceRequest>, batch: &mut Vec<InferenceRequest>, most: usize) -> usize {
    let (mut rows, mut at) = (0, 0);
    while at < waiting.len() && rows < most {
        let other = &waiting[at];
        if rows + other.rows <= most && batch[0].fits(other) {
            rows += other.rows;
            batch.extend(waiting.remove(at));
        } else {
            at += 1;
        }
    }
    rows
}

/// Answers a batch with one model.
fn answer(model: &dyn Model, batch: Vec<InferenceRequest>) {
    if batch.len() > 1
        && let Ok(answers) = together(model, &batch)
    {
        batch.into_iter().zip(answers).for_each(|(request, answer)| request.give(Ok(answer)));
        return;
    }
    // One by one: who is refused is so alone.
    batch.into_iter().for_each(|request| {
        let answer = run(model, &request.inputs, &request.masks);
        request.give(answer);
    });
}

/// The answers to several requests, from one run.
fn together(model: &dyn Model, batch: &[InferenceRequest]) -> Result<Vec<Vec<Tensor>>> {
    let join = |place: usize| {
        let all: Option<Vec<&Tensor>> = batch.iter().map(|request| request.arrays().nth(place).flatten()).collect();
        all.map(|all| no_grad(|| Tensor::cat(&all, 0))).transpose()
    };
    let inputs = batch[0].inputs.len();
    let joined = (0..batch[0].arrays().count()).map(join).collect::<Result<Vec<_>>>()?;
    let whole: Vec<Tensor> = joined[..inputs].iter().flatten().cloned().collect();
    let outputs = run(model, &whole, &joined[inputs..])?;
    let rows: usize = batch.iter().map(|request| request.rows).sum();
    if outputs.iter().any(|output| output.dims().first() != Some(&rows)) {
        return Err(Error::invalid("ParallelInference", "the model does not answer row by row"));
    }
    let mut start = 0;
    let part = |request: &InferenceRequest| {
        let first = start;
        start += request.rows;
        // Copies: who keeps an answer does not keep those of others.
        outputs.iter().map(|output| output.narrow(0, first, request.rows)?.copy()).collect()
    };
    batch.iter().map(part).collect()
}

/// The model's answer; a panic is an error.
fn run(model: &dyn Model, inputs: &[Tensor], masks: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
    // This thread may have answered with a network that was replaced.
    LayerWorkspaceMgr::release_ended();
    let made = catch_unwind(AssertUnwindSafe(|| no_grad(|| model.outputs(inputs, masks))));
    made.unwrap_or_else(|panic| {
        Err(Error::invalid("ParallelInference", format!("the model panicked: {}", text_of(panic))))
    })
}

/// What a panic said. What it carried is somebody else's, and its drop may panic again.
pub(super) fn text_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("something that is no text").to_owned();
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
    text
}

fn closed() -> Error {
    Error::invalid("ParallelInference", "it was shut down, and answers no more")
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
