//! The raw calls of an asynchronous device.

use std::fmt::Debug;
use std::ptr::NonNull;

use crate::base::error::{Error, Result};
use crate::device::{
    budget::AllocError,
    kernel::{Kernel, OwnedView},
    span::Span,
};

/// The answer to a request for bytes.
pub(crate) type Granted<T> = std::result::Result<T, AllocError>;

/// The raw calls of an asynchronous device, as [`AsyncDevice`](super::AsyncDevice) makes them. Streams count from 0.
///
/// A call that fails had no effect, unless it says otherwise. Between `begin_capture` and `end_capture` come launches
/// on the captured stream, `handed_out`, `suballocated`, `returned` and `destroy`, and nothing else. A launch that
/// cannot be part of a section answers [`Error::Capture`].
pub(crate) trait Driver: Send + Sync + Debug {
    /// A captured section, ready to run again.
    type Graph: Send + Sync + Debug;
    /// A copy to the host that is under way.
    type Download: Debug;
    /// Bytes of the device, aligned to 256 at least; submitted to the stream, so that its work may use them, and
    /// that of others behind it. The driver says `Exhausted` if it has too few.
    fn alloc(&self, stream: usize, bytes: usize) -> Granted<NonNull<u8>>;
    /// Gives back what `alloc` gave. The host has waited for everything that uses it.
    fn free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()>;
    /// Bytes of the device that its kernels and libraries hold for their own use.
    fn reserved(&self) -> u64 {
        0
    }
    /// Page-locked bytes of the host, aligned as those of the device, which all of its streams reach over the bus; in
    /// the order of none.
    fn alloc_on_host(&self, bytes: usize) -> Result<NonNull<u8>> {
        Err(Error::msg(format!("it has no way to {bytes} bytes of the host")))
    }
    /// Gives back what `alloc_on_host` gave. The host has waited for everything that uses it.
    fn free_on_host(&self, _ptr: NonNull<u8>, _bytes: usize) -> Result<()> {
        Ok(())
    }
    /// A round of `free` is over: what the driver keeps may go back to the system.
    fn released(&self) -> Result<()> {
        Ok(())
    }
    /// Submits a kernel.
    fn launch(&self, stream: usize, kernel: &Kernel) -> Result<()>;
    /// Whether the last launch failed since the device had no memory for the driver's own use: scratch, code.
    fn was_short(&self) -> bool {
        false
    }
    /// Submits a copy to the device. The host's bytes are free again when the call returns.
    fn upload(&self, stream: usize, dst: Span, bytes: &[u8]) -> Result<()>;
    /// Submits a copy of the whole span of a view to the host.
    fn start_download(&self, stream: usize, src: &OwnedView) -> Result<Self::Download>;
    /// Whether parts of the copy are yet to be submitted, by `finish_download`.
    fn is_in_parts(&self, _download: &Self::Download) -> bool {
        false
    }
    /// Waits for the copy, and gives it to `take`, in parts that begin and end between elements. Called without the
    /// device's lock.
    fn finish_download(&self, download: Self::Download, take: &mut dyn FnMut(&[u8])) -> Result<()>;
    /// Records the stream's event: it stands for everything submitted to the stream so far.
    fn record(&self, stream: usize) -> Result<()>;
    /// Lets a stream wait for what the event of another one stands for now.
    fn wait(&self, stream: usize, on: usize) -> Result<()>;
    /// Waits until the stream is empty. Called without the device's lock too.
    fn synchronize(&self, stream: usize) -> Result<()>;
    /// From now on launches on the stream are recorded instead of run.
    fn begin_capture(&self, stream: usize) -> Result<()>;
    /// Ends the capture, whatever happened in it. The stream works again, also if this fails.
    fn end_capture(&self, stream: usize) -> Result<Self::Graph>;
    /// Submits a captured section.
    fn replay(&self, stream: usize, graph: &Self::Graph) -> Result<()>;
    /// Forgets a captured section; what was submitted of it still runs. Never fails, never waits.
    fn destroy(&self, graph: Self::Graph);
    /// The first failure of work that has run, once; for drivers whose waiting calls do not return it.
    fn take_fault(&self) -> Option<Error> {
        None
    }
    /// A block leaves the pool for a new owner: its contents count as uninitialised.
    fn handed_out(&self, _span: Span) {}
    /// A part of a block begins anew, for whoever the block's owner gives it to: its contents count as uninitialised.
    fn suballocated(&self, _span: Span) {}
    /// Its owner is gone.
    fn returned(&self, _span: Span) {}
}
