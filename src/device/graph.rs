//! Captured sections, as users have them: capturing, replaying, and what may be part of one.
//!
//! The rules are those of every asynchronous device (`stream/capture.rs`); here a captured section gets the device
//! that it belongs to, which lives as long.

use std::cell::Cell;
use std::fmt;

use crate::base::{
    error::{Error, Result, Site},
    local::during,
    system,
};
use crate::device::{
    budget::AllocError,
    kernel::{Kernel, OwnedView},
    span::Span,
    stream::{AsyncDevice, Captured, Driver, Granted},
};

pub(crate) use crate::device::stream::blame;

/// A handle of a device whose work is submitted, and can be captured. Cheap to clone.
pub(crate) trait Asynchronous: Clone + Send + Sync + 'static {
    /// Its raw calls.
    type Driver: Driver<Graph: 'static>;
    /// The device itself.
    fn shared(&self) -> &AsyncDevice<Self::Driver>;

    /// Bytes for an array: uninitialised, or zeroed, which is submitted; and the size of their block.
    fn reserve(&self, bytes: usize, zeroed: bool) -> Granted<(Span, usize)> {
        let (span, reserved) = self.shared().alloc(bytes)?;
        if zeroed && let Err(error) = self.zero(span) {
            self.free(span);
            return Err(AllocError::Failed(error));
        }
        Ok((span, reserved))
    }

    /// Submits the zeroing of bytes to this thread's stream.
    fn zero(&self, span: Span) -> Result<()> {
        if span.bytes() > 0 { self.launch(&Kernel::zero(span)) } else { Ok(()) }
    }

    /// A part of a block begins anew.
    fn suballocate(&self, part: Span) -> Result<()> {
        if part.bytes() > 0 { self.shared().suballocate(part) } else { Ok(()) }
    }

    /// Takes a buffer's bytes back.
    fn free(&self, span: Span) {
        self.shared().free(span);
    }

    /// Submits a kernel to this thread's stream. Its shapes are trusted; where its operands lie is not.
    fn launch(&self, kernel: &Kernel) -> Result<()> {
        self.shared().launch(kernel)
    }

    /// Submits a copy of host bytes to this thread's stream.
    fn upload(&self, dst: Span, bytes: &[u8]) -> Result<()> {
        self.shared().upload(dst, bytes)
    }

    /// Copies the whole span of a view to the host, after everything submitted that writes it.
    fn download(&self, src: &OwnedView, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.shared().download(src, take)
    }
}

/// A section of a program that was captured by [`Device::capture`](crate::Device::capture), to be run again as a whole.
///
/// A replay runs on the stream and on the bytes that the section ran on: arrays made before it, which it reads or
/// changes in place, and arrays made in it, which each replay fills anew. None of those bytes is used for anything else
/// while the graph lives, also if the arrays are closed meanwhile. What was a number on the host when the section was
/// captured stays what it was: shapes, scalars, learning rates, seeds. What counts goes on by itself: random numbers
/// are others in each replay, and a step of an optimiser is the next one. The host's own counts know nothing of
/// replays: a generator or an optimiser that is used again outside goes on from where the capture left it.
///
/// ```
/// # use ndgc::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::default());
/// let x = Tensor::new([1f32, 2.], &device)?;
/// let double = || x.affine(2., 0.);
/// double()?; // Once before, so that the device has the memory.
/// let (graph, y) = device.capture(double)?;
/// graph.replay()?;
/// assert_eq!(y.to_vec1::<f32>()?, [2., 4.]);
/// x.affine_(10., 0.)?;
/// graph.replay()?;
/// assert_eq!(y.to_vec1::<f32>()?, [20., 40.]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct Graph(Box<dyn Replays>);

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} blocks)", self.0.blocks())
    }
}

impl Graph {
    /// Submits the section, behind everything submitted before that it has to wait for, and does not wait itself, but
    /// for other threads that are reading what it writes, more than 4 MiB of it, from a CUDA device.
    ///
    /// # Errors
    /// [`Error::Capture`] while the device is being captured; [`Error::Device`]; [`Error::Forked`].
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let site = std::panic::Location::caller();
        if system::is_forked_child() {
            return Err(Error::forked("replay"));
        }
        self.0.replay().map_err(|error| blame(error, site))
    }
}

/// A captured section of whatever device.
trait Replays: Send + Sync {
    fn replay(&self) -> Result<()>;
    fn blocks(&self) -> usize;
}

struct CapturedSection<C: Asynchronous> {
    device: C,
    /// There until the drop.
    captured: Option<Captured<<C::Driver as Driver>::Graph>>,
}

impl<C: Asynchronous> Replays for CapturedSection<C> {
    fn replay(&self) -> Result<()> {
        self.captured.as_ref().map_or(Ok(()), |captured| self.device.shared().replay(captured))
    }

    fn blocks(&self) -> usize {
        self.captured.as_ref().map_or(0, Captured::blocks)
    }
}

impl<C: Asynchronous> Drop for CapturedSection<C> {
    fn drop(&mut self) {
        // A forked child gives nothing back, and waits for no lock: somebody may have had it when it was forked.
        if let Some(captured) = self.captured.take().filter(|_| !system::is_forked_child()) {
            self.device.shared().release(captured);
        }
    }
}

thread_local! {
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is capturing a section.
#[inline]
pub(crate) fn is_capturing() -> bool {
    CAPTURING.get()
}

/// Captures what `f` submits on this thread's current stream. `site`: the place of the user's call.
pub(crate) fn capture<C: Asynchronous, R>(device: &C, site: Site, f: impl FnOnce() -> Result<R>) -> Result<(Graph, R)> {
    let begun = |error| match error {
        // A refusal in the section has its own place.
        Error::Capture { site: Some(_), .. } => error,
        other => blame(other, site),
    };
    let (captured, answer) = during(&CAPTURING, true, || device.shared().capture(f)).map_err(begun)?;
    Ok((Graph(Box::new(CapturedSection { device: device.clone(), captured: Some(captured) })), answer))
}

/// The host runs everything at once, and has nothing to record.
pub(crate) fn refused_on_the_host(site: Site) -> Error {
    let what = "the host has no graphs: a capture needs a device whose work is submitted".to_owned();
    Error::Capture { device: "cpu".to_owned(), what, site: Some(site) }
}
