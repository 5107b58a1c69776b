//! Bytes in memory of the host, for which the device has no room, where the program allows it (`device/spill.rs`).
//!
//! Each is a block like others for who uses it: the same ticks, the same order. It is not the device's memory: no limit
//! on the device counts it, and nobody else gets it afterwards. It goes back with the drop of its owner, or with the
//! next wait for what still uses it.

use crate::base::error::{Error, Result};
use crate::device::{
    budget::AllocError,
    span::Span,
    spill,
    stream::{AsyncDevice, DeviceState, driver::Driver, driver::Granted},
};

impl<D: Driver> AsyncDevice<D> {
    /// Bytes in memory of the host, and the size of their block.
    #[cold]
    pub(super) fn spill(&self, state: &mut DeviceState, bytes: usize, size: usize) -> Granted<(Span, usize)> {
        if state.section.is_some() {
            return Err(AllocError::Failed(Error::msg("a section that is captured takes no memory of the host")));
        }
        if !state.pool.has_numbers() {
            return Err(AllocError::Exhausted);
        }
        spill::take(size as u64).map_err(AllocError::Failed)?;
        let given = self.driver.alloc_on_host(size).inspect_err(|_| spill::give_back(size as u64));
        let segment = Span::new(given.map_err(AllocError::Failed)?, size);
        let span = state.pool.give_on_host(segment, bytes);
        self.driver.handed_out(span);
        Ok((span, size))
    }

    /// Gives back what lies in memory of the host, if nobody has it any more and what used it is over. A failure is the
    /// answer of the next waiting call.
    #[inline]
    pub(super) fn reap(&self, state: &mut DeviceState) {
        if !state.pool.leaving.is_empty()
            && state.section.is_none()
            && let Err(error) = self.release_on_host(state)
        {
            state.deferred.get_or_insert(error);
        }
    }

    #[cold]
    fn release_on_host(&self, state: &mut DeviceState) -> Result<()> {
        let DeviceState { streams, pool, .. } = state;
        let free = |segment: Span| {
            self.driver.free_on_host(segment.ptr(), segment.bytes())?;
            spill::give_back(segment.bytes() as u64);
            Ok(())
        };
        pool.release_on_host(|uses| streams.is_over(uses), free)
    }
}
