//! What every asynchronous device shares: the order of its streams, the reuse of its bytes, and the sections
//! that it captures and replays.
//!
//! A device runs the work of one stream in order and the work of several streams in any order. This module
//! adds the waits that make several streams look like one program, and hands bytes from one owner to the
//! next, for every [`Driver`] alike.
//!
//! ```text
//! driver.rs   Driver: the raw calls
//! addresses.rs  a driver of addresses alone
//! order.rs    ticks, clocks, and the waits between streams
//! pool.rs     blocks sub-allocated from the driver's segments
//! section.rs  what a section holds while it is captured, and after
//! spill.rs    bytes in memory of the host, where the device has none
//! mod.rs      AsyncDevice: submitting, waiting, bytes
//! capture.rs  sections that are recorded once and replayed
//! ```
//!
//! # Order
//! A block knows the tick of its last write and, for each stream, of its last use. A reader runs behind the last
//! write, a writer behind every use.
//!
//! # Reuse
//! A freed block keeps its ticks. Its next owner has to write it before it reads it, and that write is ordered
//! like any other: behind every use by the former owner. So freeing makes no driver call, reuse on the stream
//! that used a block makes none either, and reuse on another stream costs one wait.
//!
//! # Parts
//! Whoever has a block may divide it: a span with the number of the block that lies inside it counts as the block.
//! Uses of its parts are ordered as if each were a use of all of it.
//!
//! # Invariants
//! - A block has no driver object of its own.
//! - A call that fails leaves ticks and blocks as they were, except for waits that the driver did accept:
//!   those are facts, and are remembered as such.
//! - While a section is captured, nobody else submits, and the host waits for nothing.
//! - No replay comes between the parts of a read of what it writes. Other writers wait for readers above
//!   (`memory/storage/writing.rs`).
//!
//! # Why one lock
//! Submission is short next to what it submits, and the order of ticks has to be the order of submission.
//! [`AsyncDevice::synchronize`] and [`AsyncDevice::download`] wait without the lock.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::base::{
    error::{Error, Result},
    system,
};
use crate::device::{
    budget::{AllocError, MemoryStats},
    kernel::{Access, Kernel, OwnedView},
    span::Span,
    spill::is_wanted,
};

mod addresses;
mod capture;
mod driver;
mod order;
mod pool;
mod section;
mod spill;

pub use crate::device::blocks::Segments;
pub(crate) use addresses::Addresses;
pub(crate) use driver::{Driver, Granted};
pub(crate) use order::{Clock, MAX_STREAMS, on_stream};
#[cfg(feature = "cuda")]
pub(crate) use section::WARM_UP;
pub(crate) use section::{Captured, blame};

use crate::device::blocks::block_size;
use order::Streams;
use pool::{Pool, Uses};
use section::{AFTER, BEFORE, Section};

/// What may be left out, to show that a checker notices. Everything is on for real devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Operations on different streams are ordered.
    pub(crate) order_streams: bool,
    /// A block's next owner is ordered behind the former one.
    pub(crate) order_reuse: bool,
    /// What a captured section uses stays with it.
    pub(crate) pin_graphs: bool,
}

impl Rules {
    /// Nothing is left out.
    pub(crate) const ALL: Rules = Rules { order_streams: true, order_reuse: true, pin_graphs: true };
}

/// What a device is like, above its driver.
#[derive(Clone, Debug)]
pub(crate) struct DevicePlan {
    /// What errors call it.
    pub(crate) name: String,
    /// 1 to [`MAX_STREAMS`].
    pub(crate) streams: usize,
    pub(crate) rules: Rules,
    /// How much is asked of the driver at once.
    pub(crate) segments: Segments,
}

#[derive(Debug)]
struct DeviceState {
    streams: Streams,
    pool: Pool,
    /// A failure in a call that could not return it.
    deferred: Option<Error>,
    /// The section that is being captured.
    section: Option<Section>,
    /// Blocks that the host is reading in parts: those after the first are submitted without the lock.
    reads: Vec<u32>,
    /// Bytes of all segments that the driver gave.
    held: u64,
    /// Blocks that waiting replays write: who comes to read them waits behind these.
    replays: Vec<u32>,
}

/// A device whose work is submitted: a driver, the order of its streams and the pool of its bytes.
///
/// A span that lies in no block of this device is not ordered; what becomes of it is the driver's business.
#[derive(Debug)]
pub(crate) struct AsyncDevice<D: Driver> {
    driver: D,
    name: String,
    rules: Rules,
    state: Mutex<DeviceState>,
    /// Held shared by whoever waits for the device without its lock: a capture begins when nobody does.
    waiting: RwLock<()>,
    /// A read is over, or a replay has waited for those that were under way.
    turn_over: Condvar,
}

impl<D: Driver> AsyncDevice<D> {
    pub(crate) fn new(driver: D, plan: DevicePlan) -> Self {
        let DevicePlan { name, streams, rules, segments } = plan;
        let streams = streams.clamp(1, MAX_STREAMS);
        let pool = Pool::new(streams as u8, segments);
        let (streams, reads, replays) = (Streams::new(streams), Vec::new(), Vec::new());
        let state = Mutex::new(DeviceState { streams, pool, deferred: None, section: None, reads, held: 0, replays });
        AsyncDevice { driver, name, rules, state, waiting: RwLock::new(()), turn_over: Condvar::new() }
    }

    pub(crate) fn driver(&self) -> &D {
        &self.driver
    }

    /// Only a kernel can panic while the lock is held, and it leaves the books alone: poison means nothing.
    fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that the host is going to wait.
    fn wait_begins(&self) -> RwLockReadGuard<'_, ()> {
        self.waiting.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uninitialised bytes for this thread's current stream, and the size of their block.
    pub(crate) fn alloc(&self, bytes: usize) -> Granted<(Span, usize)> {
        if bytes == 0 {
            return Ok((Span::empty(), 0));
        }
        let size = block_size::<Uses>(bytes).ok_or(AllocError::Exhausted)?;
        let mut guard = self.lock();
        let state = &mut *guard;
        let stream = state.streams.current();
        let captured = self.may_submit(state, stream, "memory for an array").map_err(AllocError::Failed)?;
        match self.take(state, stream, captured, (bytes, size)) {
            Err(AllocError::Exhausted) if is_wanted() => self.spill(state, bytes, size),
            given => given,
        }
    }

    /// Bytes out of the lists, or from the driver.
    #[inline]
    fn take(
        &self,
        state: &mut DeviceState,
        stream: usize,
        captured: bool,
        (bytes, size): (usize, usize),
    ) -> Granted<(Span, usize)> {
        if !state.pool.limit_admits(bytes) {
            return Err(AllocError::Exhausted);
        }
        let block = match state.pool.take(stream, size) {
            Some(block) => {
                if !self.rules.order_reuse {
                    state.pool.forget_uses(block);
                }
                block
            }
            None if captured => self.take_in_section(state, stream, size).map_err(AllocError::Failed)?,
            None => self.fresh(state, stream, size)?,
        };
        if let Some(section) = &mut state.section {
            section.born(&mut state.pool, block);
        }
        let (span, reserved) = state.pool.give(block, stream, bytes);
        self.driver.handed_out(span);
        Ok((span, reserved))
    }

    /// A block out of a segment from the driver. If it has none: once more after giving back what waits for reuse,
    /// then a smaller one, then a block that was kept for larger requests.
    #[cold]
    fn fresh(&self, state: &mut DeviceState, stream: usize, size: usize) -> Granted<u32> {
        let segment = state.pool.segment_size(size);
        let mut answer = self.segment(state, stream, segment);
        if matches!(answer, Err(AllocError::Exhausted)) && state.pool.stats.cached > 0 {
            self.trim_locked(state).map_err(AllocError::Failed)?;
            answer = self.segment(state, stream, segment);
        }
        if matches!(answer, Err(AllocError::Exhausted)) && segment > size {
            answer = self.segment(state, stream, size);
        }
        match answer {
            Ok(whole) => Ok(state.pool.suballocate(whole, size)),
            Err(AllocError::Exhausted) => state.pool.take_any(stream, size).ok_or(AllocError::Exhausted),
            Err(failed) => Err(failed),
        }
    }

    fn segment(&self, state: &mut DeviceState, stream: usize, bytes: usize) -> Granted<u32> {
        let admits = |most: u64| self.taken(state).saturating_add(bytes as u64) <= most;
        if !state.pool.has_numbers() || !state.pool.stats.physical_limit.is_none_or(admits) {
            return Err(AllocError::Exhausted);
        }
        let ptr = self.driver.alloc(stream, bytes)?;
        state.held += bytes as u64;
        let total = &mut state.pool.stats.total_reserved;
        *total = total.saturating_add(bytes as u64);
        let tick = state.streams.advance(stream);
        Ok(state.pool.add(Span::new(ptr, bytes), stream as u8, Uses::born(stream, tick)))
    }

    /// Takes back what [`AsyncDevice::alloc`] gave. Work that was submitted may still use it.
    pub(crate) fn free(&self, span: Span) {
        if span.bytes() > 0 {
            let mut state = self.lock();
            self.driver.returned(span);
            state.pool.put(span);
            self.reap(&mut state);
        }
    }

    /// A part of a block, for which [`AsyncDevice::alloc`] gave the bytes, begins anew.
    ///
    /// # Errors
    /// [`Error::Capture`] while another thread, or another stream, is being captured.
    pub(crate) fn suballocate(&self, part: Span) -> Result<()> {
        let mut state = self.lock();
        let stream = state.streams.current();
        self.may_submit(&mut state, stream, "memory for an array")?;
        self.driver.suballocated(part);
        Ok(())
    }

    /// Submits a kernel to this thread's current stream.
    pub(crate) fn launch(&self, kernel: &Kernel) -> Result<()> {
        let accesses = kernel.accesses();
        let mut guard = self.lock();
        let state = &mut *guard;
        let stream = state.streams.current();
        let operands = || accesses.iter().map(|(view, access)| (view.span(), access));
        if self.may_submit(state, stream, "work")? {
            // No graph keeps them: they go with their keeper. Invariant I11 (design.md).
            if operands().any(|(span, _)| span.bytes() > 0 && state.pool.owned(span).is_none()) {
                return Err(self.refuse(state, "memory of others", "copy it before"));
            }
            let launched = self.driver.launch(stream, kernel);
            if let Some(section) = &mut state.section {
                launched.inspect_err(|error| section.failed(error))?;
                operands().for_each(|(span, access)| section.touched(&mut state.pool, span, access));
            }
            return Ok(());
        }
        let call = || self.driver.launch(stream, kernel);
        let launched = self.submit(state, stream, operands, call);
        if launched.is_err() && self.makes_room(state) { self.submit(state, stream, operands, call) } else { launched }
    }

    /// Gives back what waits for reuse, if a launch failed for want of memory. Whether that was anything.
    #[cold]
    fn makes_room(&self, state: &mut DeviceState) -> bool {
        let before = state.held;
        self.driver.was_short() && self.trim_locked(state).is_ok() && state.held < before
    }

    /// Submits to this thread's current stream what `call` submits to it: something that reads and writes these bytes.
    #[cfg(feature = "cuda")]
    pub(crate) fn change(&self, dst: Span, call: impl FnOnce(usize) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        self.must_not_capture(&mut state, "a sum over devices", BEFORE)?;
        let stream = state.streams.current();
        let operands = || std::iter::once((dst, Access::ReadWrite));
        self.submit(&mut state, stream, operands, || call(stream))
    }

    /// Submits a copy of host bytes to this thread's current stream.
    pub(crate) fn upload(&self, dst: Span, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        self.must_not_capture(&mut state, "a copy of numbers from the host", BEFORE)?;
        let stream = state.streams.current();
        let operands = || std::iter::once((dst, Access::Write));
        self.submit(&mut state, stream, operands, || self.driver.upload(stream, dst, bytes))
    }

    /// Copies the whole span of a view to the host, where `take` is given part after part: on the stream that wrote it
    /// last, so that it waits for no other one.
    pub(crate) fn download(&self, src: &OwnedView, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let _waits = self.wait_begins();
        let is_awaited = |state: &mut DeviceState| {
            // Mostly no replay waits.
            !state.replays.is_empty()
                && state.pool.owned(src.span()).is_some_and(|block| state.replays.contains(&block))
        };
        let mut state = self.turn_over.wait_while(self.lock(), is_awaited).unwrap_or_else(PoisonError::into_inner);
        self.must_not_capture(&mut state, "a read by the host", AFTER)?;
        let current = state.streams.current();
        let stream = state.pool.find(src.span()).map_or(current, |uses| uses.written.0);
        let operands = || std::iter::once((src.span(), Access::Read));
        let under_way = self.submit(&mut state, stream, operands, || self.driver.start_download(stream, src))?;
        let reached = state.streams.reached(stream);
        // A copy that was submitted as a whole needs nobody to wait: what comes later runs behind it.
        let block = state.pool.owned(src.span()).filter(|_| self.driver.is_in_parts(&under_way));
        state.reads.extend(block);
        drop(state);
        let read = block.map(|block| HostRead { device: self, block });
        let finished = self.driver.finish_download(under_way, take);
        drop(read);
        finished?;
        let mut state = self.lock();
        state.streams.host_waited(&reached);
        self.reap(&mut state);
        self.report(&mut state)
    }

    /// Orders an operation behind what its operands demand, makes the call, and notes it if it succeeds.
    fn submit<T, I: Iterator<Item = (Span, Access)>>(
        &self,
        state: &mut DeviceState,
        stream: usize,
        operands: impl Fn() -> I,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.rules.order_streams {
            for (span, access) in operands() {
                let Some(uses) = state.pool.find(span) else { continue };
                let (written, used) = (uses.written, uses.used);
                state.streams.order(&self.driver, stream, written.0, written.1)?;
                if access != Access::Read {
                    state.streams.order_behind(&self.driver, stream, &used)?;
                }
            }
        }
        let done = call()?;
        let tick = state.streams.advance(stream);
        for (span, access) in operands() {
            if let Some(uses) = state.pool.find(span) {
                uses.note(stream, tick, access);
            }
        }
        Ok(done)
    }

    /// Waits until everything submitted before the call is done.
    ///
    /// # Errors
    /// A failed call; else the first failure, since the last report, of work that has run.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _waits = self.wait_begins();
        self.must_not_capture(&mut self.lock(), "a wait for the device", AFTER)?;
        self.wait_unlocked()?;
        self.report(&mut self.lock())
    }

    /// As [`AsyncDevice::synchronize`], for whoever cannot say what failed: the next waiting call does. While a section
    /// is captured nothing runs, and there is nothing to wait for.
    pub(crate) fn wait_silently(&self) {
        let _waits = self.wait_begins();
        let is_captured = self.lock().section.is_some();
        let waited = if is_captured { Ok(()) } else { self.wait_unlocked() };
        if let Err(error) = waited {
            self.lock().deferred.get_or_insert(error);
        }
    }

    /// Waits for what was submitted, without the lock. The caller has announced that, so that no capture begins.
    fn wait_unlocked(&self) -> Result<()> {
        let mut state = self.lock();
        for stream in 0..state.streams.count() {
            let (busy, reached) = (state.streams.is_busy(stream), state.streams.reached(stream));
            if busy {
                drop(state);
                self.driver.synchronize(stream)?;
                state = self.lock();
                state.streams.host_waited(&reached);
            }
        }
        self.reap(&mut state);
        Ok(())
    }

    fn report(&self, state: &mut DeviceState) -> Result<()> {
        state.deferred.take().or_else(|| self.driver.take_fault()).map_or(Ok(()), Err)
    }

    /// Gives the driver back what waits for reuse, after waiting for everything submitted. Returns the bytes; none
    /// while a section is captured. A failure on the way is the answer of the next waiting call.
    pub(crate) fn trim(&self) -> u64 {
        let mut state = self.lock();
        if state.section.is_some() {
            return 0;
        }
        let before = state.pool.stats.cached;
        if let Err(error) = self.trim_locked(&mut state) {
            state.deferred.get_or_insert(error);
        }
        before - state.pool.stats.cached
    }

    fn trim_locked(&self, state: &mut DeviceState) -> Result<()> {
        self.wait_locked(state)?;
        self.reap(state);
        let went = Cell::new(0);
        let released = state.pool.release(|span| {
            self.driver.free(span.ptr(), span.bytes())?;
            went.set(went.get() + span.bytes() as u64);
            Ok(())
        });
        state.held -= went.get();
        released?;
        self.driver.released()
    }

    /// Waits until everything submitted is done, keeping others from submitting more.
    fn wait_locked(&self, state: &mut DeviceState) -> Result<()> {
        for stream in 0..state.streams.count() {
            if state.streams.is_busy(stream) {
                self.driver.synchronize(stream)?;
                let reached = state.streams.reached(stream);
                state.streams.host_waited(&reached);
            }
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.lock().pool.stats
    }

    /// Whether the statistics count the bytes of a buffer as active: not those that lie in memory of the host.
    pub(crate) fn counts(&self, span: Span) -> bool {
        self.lock().pool.counts(span)
    }

    /// Bytes of the largest free block, and of all of them. Looks at each block.
    pub(crate) fn free_bytes(&self) -> (u64, u64) {
        let state = self.lock();
        let most = state.pool.free_blocks().map(|span| span.bytes()).max();
        (most.unwrap_or(0) as u64, state.pool.stats.cached)
    }

    /// Takes the peak as of now, and with `reserved` those of what the driver gave.
    pub(crate) fn reset_peak(&self, reserved: bool) {
        let stats = &mut self.lock().pool.stats;
        stats.peak = stats.active;
        if reserved {
            (stats.peak_used, stats.peak_cached) = (stats.used, stats.cached);
            stats.peak_reserved = stats.used + stats.cached;
        }
    }

    /// Takes a peak that was before.
    pub(crate) fn raise_peak(&self, to: u64) {
        let stats = &mut self.lock().pool.stats;
        stats.peak = stats.peak.max(to);
    }

    /// What was taken from the driver, for blocks and for its own use.
    fn taken(&self, state: &DeviceState) -> u64 {
        state.held.saturating_add(self.driver.reserved())
    }

    /// What was taken from the driver, and the limit on it.
    pub(crate) fn physical(&self) -> (u64, Option<u64>) {
        let state = self.lock();
        (self.taken(&state), state.pool.stats.physical_limit)
    }

    /// Sets the limit on what is taken from the driver; what waits for reuse goes back where more is. Returns the one
    /// before.
    pub(crate) fn set_physical_limit(&self, bytes: Option<u64>) -> Option<u64> {
        let before = std::mem::replace(&mut self.lock().pool.stats.physical_limit, bytes);
        if bytes.is_some_and(|most| self.physical().0 > most) {
            self.trim();
        }
        before
    }

    /// Sets the limit on active bytes; returns the one before.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.lock().pool.stats.limit, bytes)
    }
}

/// A read of the host that is under way, in parts.
struct HostRead<'a, D: Driver> {
    device: &'a AsyncDevice<D>,
    block: u32,
}

impl<D: Driver> Drop for HostRead<'_, D> {
    fn drop(&mut self) {
        let mut state = self.device.lock();
        if let Some(at) = state.reads.iter().position(|&block| block == self.block) {
            state.reads.swap_remove(at);
        }
        drop(state);
        self.device.turn_over.notify_all();
    }
}

impl<D: Driver> Drop for AsyncDevice<D> {
    /// Nobody has a block or a graph any more: each holds the device.
    fn drop(&mut self) {
        // A forked child gives nothing back: what waits there was submitted by its parent.
        if !system::is_forked_child() {
            self.trim();
        }
    }
}
