//! Batches made ahead: a thread fills the blocks of a ring while another one trains.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use crate::base::{call::Call, contain::drop_contained};
use crate::{CycleLease, Device, Error, ResetPolicy, Result, Workspace, WorkspaceConfig};

/// The name of the ring, on the thread that fills it.
pub const PREFETCH_WORKSPACE: &str = "PREFETCH";

/// The most elements that can wait: each has a place from the start.
const DEPTH_MAX: usize = 1 << 16;

type Producer<T> = Box<dyn FnMut(usize) -> Result<Option<T>> + Send>;

/// Elements that a thread of its own makes ahead, each in a cycle of a circular workspace of that thread.
///
/// They come in order. An error or a panic of the producer comes after all elements before it, and is the last; then,
/// as after the end, there is nothing until [`Prefetch::reset`]. A drop ends the thread and waits for it: at most until
/// the producer returns.
///
/// ```
/// # use ndgc::nn::Prefetch;
/// # use ndgc::{DType, Device, ResetPolicy, Tensor, WorkspaceConfig};
/// let ring = WorkspaceConfig::builder()
///     .policy_reset(ResetPolicy::EndOfBufferReached)
///     .overallocation_limit(4.) // a ring of 5 batches
///     .build()?;
/// let batches = Prefetch::new(&ring, 2, |n| match n {
///     0..6 => Ok(Some(Tensor::full(n as f32, (4, 3), &Device::Cpu)?)),
///     _ => Ok(None),
/// })?;
/// let mut sum = 0.;
/// for batch in batches {
///     sum += batch?.sum_all()?.to_scalar::<f32>()?;
/// }
/// assert_eq!(sum, 12. * (0. + 1. + 2. + 3. + 4. + 5.));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct Prefetch<T> {
    device: Device,
    config: WorkspaceConfig,
    depth: usize,
    state: PrefetchState<T>,
    /// The process that has the thread; a forked child has none.
    process: u32,
}

/// Where the producer is.
enum PrefetchState<T> {
    Runs(Receiver<Result<Batch<T>>>, JoinHandle<Producer<T>>),
    Rests(Producer<T>),
    /// A value that the thread could not hand over panicked when it was dropped.
    Lost,
}

impl<T> fmt::Debug for Prefetch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            PrefetchState::Runs(..) => "runs",
            PrefetchState::Rests(_) => "ended",
            PrefetchState::Lost => "lost",
        };
        f.debug_struct("Prefetch")
            .field("device", &self.device)
            .field("depth", &self.depth)
            .field("state", &state)
            .finish()
    }
}

/// An element, and the lease of the ring's part that it lies in: its arrays are valid while this lives, wherever it
/// goes.
///
/// Its drop gives that part back. Too many of them do no harm but need memory: what finds no room in the ring gets
/// memory beside it.
#[derive(Debug)]
pub struct Batch<T> {
    // Dropped in this order.
    value: T,
    /// None where workspaces are bypassed.
    lease: Option<CycleLease>,
}

impl<T> Batch<T> {
    /// The element and its lease; when that is dropped, its arrays end as soon as the ring comes round to them. There
    /// is no lease in [`DebugMode::BypassEverything`](crate::DebugMode::BypassEverything).
    pub fn into_parts(self) -> (T, Option<CycleLease>) {
        (self.value, self.lease)
    }
}

impl<T> Deref for Batch<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts a thread that calls `producer` with 0, 1, 2 and so on, until it returns `None`, fails or panics. Arrays
    /// of the host that it makes lie in the ring. Of those that it made, `depth` wait to be taken, and one more waits
    /// for a place.
    ///
    /// After a panic, a [`Prefetch::reset`] calls the producer again as the panic left it.
    ///
    /// # Errors
    /// [`Error::WorkspaceConfig`] if the configuration is not of a circular workspace; [`Error::Invalid`] for more than
    /// 65,536 places, or if there is no thread to be had. What the ring cannot be made of comes as the first element.
    #[track_caller]
    pub fn new<P>(config: &WorkspaceConfig, depth: usize, producer: P) -> Result<Self>
    where
        P: FnMut(usize) -> Result<Option<T>> + Send + 'static,
    {
        Self::new_on(&Device::Cpu, config, depth, producer)
    }

    /// As [`Prefetch::new`], for arrays of a device.
    ///
    /// # Errors
    /// As of [`Prefetch::new`].
    #[track_caller]
    pub fn new_on<P>(device: &Device, config: &WorkspaceConfig, depth: usize, producer: P) -> Result<Self>
    where
        P: FnMut(usize) -> Result<Option<T>> + Send + 'static,
    {
        let call = Call::here("Prefetch");
        if config.policy_reset() != ResetPolicy::EndOfBufferReached {
            return Err(Error::WorkspaceConfig {
                setting: "policy_reset",
                value: format!("{:?}", config.policy_reset()),
                why: "a batch has to outlive the cycle that it was made in: give ResetPolicy::EndOfBufferReached"
                    .to_owned(),
                site: Some(call.site),
            });
        }
        if depth > DEPTH_MAX {
            let why = format!("{depth} batches cannot wait, only {DEPTH_MAX}; give a smaller depth");
            return Err(Error::invalid(call, why));
        }
        let state = PrefetchState::Rests(Box::new(producer));
        let mut all = Prefetch { device: device.clone(), config: config.clone(), depth, state, process: process::id() };
        all.start(call)?;
        Ok(all)
    }

    /// Begins again with element 0, at the end, after an error, and in between. Batches that were taken before stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no thread to be had, or the producer is gone, because a value of its panicked
    /// when it was dropped; [`Error::Forked`].
    #[track_caller]
    pub fn reset(&mut self) -> Result<()> {
        let call = Call::here("reset");
        self.stop();
        self.start(call)
    }

    fn start(&mut self, call: Call) -> Result<()> {
        if self.process != process::id() {
            return Err(Error::forked(call));
        }
        let PrefetchState::Rests(producer) = std::mem::replace(&mut self.state, PrefetchState::Lost) else {
            return Err(Error::invalid(
                call,
                "the producer is gone: a batch that could not be sent panicked when it was dropped",
            ));
        };
        let (device, config) = (self.device.clone(), self.config.clone());
        let (sender, receiver) = sync_channel(self.depth);
        // A thread that cannot be had would take the producer with it: it is handed over when the thread is there.
        let (hand, hands) = sync_channel::<Producer<T>>(1);
        let body = move || match hands.recv() {
            Ok(producer) => run(&device, &config, producer, &sender),
            Err(_) => Box::new(|_| Ok(None)),
        };
        match thread::Builder::new().name("ndgc-prefetch".to_owned()).spawn(body) {
            Ok(thread) => {
                // There is a place for it, and the thread waits.
                let _ = hand.send(producer);
                self.state = PrefetchState::Runs(receiver, thread);
                Ok(())
            }
            Err(error) => {
                self.state = PrefetchState::Rests(producer);
                Err(Error::invalid(
                    call,
                    format!("no thread to make batches ahead: {error}; end some, or call reset() later"),
                ))
            }
        }
    }
}

impl<T> Prefetch<T> {
    /// Ends the thread, also while it waits for a place, and takes the producer back.
    fn stop(&mut self) {
        let (receiver, thread) = match std::mem::replace(&mut self.state, PrefetchState::Lost) {
            PrefetchState::Runs(receiver, thread) => (receiver, thread),
            other => {
                self.state = other;
                return;
            }
        };
        if self.process != process::id() {
            // The thread is the parent's, and may have a lock of the channel for ever.
            std::mem::forget((receiver, thread));
            return;
        }
        drop(receiver);
        if let Ok(producer) = thread.join() {
            self.state = PrefetchState::Rests(producer);
        }
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<Batch<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        let PrefetchState::Runs(receiver, _) = &self.state else { return None };
        if self.process != process::id() {
            return None;
        }
        let next = receiver.recv().ok();
        if !matches!(next, Some(Ok(_))) {
            self.stop();
        }
        next
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes elements and sends them, until there are no more or nobody takes them.
fn run<T>(
    device: &Device,
    config: &WorkspaceConfig,
    mut producer: Producer<T>,
    sender: &SyncSender<Result<Batch<T>>>,
) -> Producer<T> {
    for element in 0.. {
        let made = catch_unwind(AssertUnwindSafe(|| make(device, config, element, &mut producer)));
        let next = match made.unwrap_or_else(|panic| Err(Error::Msg(text_of(panic)))) {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        let is_last = next.is_err();
        if sender.send(next).is_err() || is_last {
            break;
        }
    }
    producer
}

/// An element, in a cycle of its own.
fn make<T>(
    device: &Device,
    config: &WorkspaceConfig,
    element: usize,
    producer: &mut Producer<T>,
) -> Result<Option<Batch<T>>> {
    let cycle = Workspace::enter_on(device, PREFETCH_WORKSPACE, config)?;
    let lease = if cycle.is_open() { Some(cycle.lease()?) } else { None };
    Ok(producer(element)?.map(|value| Batch { value, lease }))
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("with something that is no text");
    let text = format!("the producer of batches panicked: {text}");
    // What it carried is the producer's, and its drop may panic again.
    drop_contained(panic);
    text
}
