//! A driver that gives addresses with nothing behind them, and does nothing: for what the pool above it would do, and
//! costs.

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::base::error::Result;
use crate::device::{
    budget::AllocError,
    kernel::{Kernel, OwnedView},
    span::Span,
    stream::driver::{Driver, Granted},
};

/// The driver.
#[derive(Debug)]
pub(crate) struct Addresses {
    next: AtomicUsize,
    /// Bytes that it may still give.
    left: AtomicU64,
    /// Bytes that it gave.
    given: AtomicU64,
}

impl Addresses {
    /// Of a device with so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        Addresses { next: AtomicUsize::new(1 << 20), left: AtomicU64::new(bytes), given: AtomicU64::new(0) }
    }

    /// Bytes that it may still give.
    pub(crate) fn left(&self) -> u64 {
        // Relaxed, here and below: nothing but the number itself is read.
        self.left.load(Ordering::Relaxed)
    }

    /// All bytes that it gave so far.
    pub(crate) fn given(&self) -> u64 {
        // Relaxed: as above.
        self.given.load(Ordering::Relaxed)
    }
}

impl Driver for Addresses {
    type Graph = ();
    type Download = ();

    fn alloc(&self, _: usize, bytes: usize) -> Granted<NonNull<u8>> {
        // Relaxed: as above.
        let take = |left: u64| left.checked_sub(bytes as u64);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_err(|_| AllocError::Exhausted)?;
        // There are more addresses than a program asks for, but a recording may be of anything.
        let next = |at: usize| at.checked_add(bytes);
        // Relaxed: as above.
        let at = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().and_then(NonZero::new);
        let Some(at) = at else {
            // Relaxed: as above.
            self.left.fetch_add(bytes as u64, Ordering::Relaxed);
            return Err(AllocError::Exhausted);
        };
        let given = |given: u64| Some(given.saturating_add(bytes as u64));
        // Relaxed: as above.
        let _ = self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, given);
        Ok(NonNull::without_provenance(at))
    }

    fn free(&self, _: NonNull<u8>, bytes: usize) -> Result<()> {
        // Relaxed: as above.
        self.left.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn launch(&self, _: usize, _: &Kernel) -> Result<()> {
        Ok(())
    }

    fn upload(&self, _: usize, _: Span, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn start_download(&self, _: usize, _: &OwnedView) -> Result<()> {
        Ok(())
    }

    fn finish_download(&self, (): (), _: &mut dyn FnMut(&[u8])) -> Result<()> {
        Ok(())
    }

    fn record(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn begin_capture(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn end_capture(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn replay(&self, _: usize, (): &()) -> Result<()> {
        Ok(())
    }

    fn destroy(&self, (): ()) {}
}
