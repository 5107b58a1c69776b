//! What every asynchronous device shares: the order of its streams, and the reuse of its bytes.
//!
//! A device runs the work of one stream in order and the work of several streams in any order. This file
//! adds the waits that make several streams look like one program, and hands bytes from one owner to the
//! next, for every [`Driver`] alike.
//!
//! # Order
//! Each stream counts what was submitted to it; the count after an operation is its tick. A block knows the
//! tick of its last write and, for each stream, of its last use. A reader runs behind the last write, a writer
//! behind every use. What a stream is behind is a [`Clock`], so that one wait pays for all that it implies,
//! and a wait that is implied costs nothing.
//!
//! # Reuse
//! A freed block keeps its ticks. Its next owner has to write it before it reads it, and that write is ordered
//! like any other: behind every use by the former owner. So freeing makes no driver call, reuse on the stream
//! that used a block makes none either, and reuse on another stream costs one wait.
//!
//! # Invariants
//! - A block has no driver object of its own; a stream has one event, recorded again and again.
//! - A program that uses one stream records nothing and waits for nothing.
//! - A call that fails leaves ticks and blocks as they were, except for waits that the driver did accept:
//!   those are facts, and are remembered as such.
//!
//! # Why one lock
//! Submission is short next to what it submits, and the order of ticks has to be the order of submission.
//! [`AsyncDevice::synchronize`] waits without the lock; a download holds it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::error::{Error, Result};
use crate::device::{
    budget::{AllocError, MemoryStats},
    buffer::Span,
    kernel::{Access, Kernel, View},
};

/// The most streams that a device has.
pub(crate) const MAX_STREAMS: usize = 8;

/// The answer to a request for bytes.
pub(crate) type Granted<T> = std::result::Result<T, AllocError>;

/// The raw calls of an asynchronous device, as [`AsyncDevice`] makes them. Streams count from 0.
///
/// A call that fails had no effect.
pub(crate) trait Driver: Send + Sync + Debug {
    /// Bytes of the device, aligned to 64 at least. The driver says `Exhausted` if it has too few.
    fn alloc(&self, bytes: usize) -> Granted<NonNull<u8>>;
    /// Gives back what `alloc` gave. Nothing submitted uses it any more.
    fn free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()>;
    /// Submits a kernel.
    fn launch(&self, stream: usize, kernel: &Kernel) -> Result<()>;
    /// Submits a copy to the device. The host's bytes are free again when the call returns.
    fn upload(&self, stream: usize, dst: Span, bytes: &[u8]) -> Result<()>;
    /// Copies the whole span of a view to the host, after everything submitted to the stream.
    fn download(&self, stream: usize, src: &View, out: &mut [u8]) -> Result<()>;
    /// Records the stream's event: it stands for everything submitted to the stream so far.
    fn record(&self, stream: usize) -> Result<()>;
    /// Lets a stream wait for what the event of another one stands for now.
    fn wait(&self, stream: usize, on: usize) -> Result<()>;
    /// Waits until the stream is empty.
    fn synchronize(&self, stream: usize) -> Result<()>;
    /// The first failure of work that has run, once; for drivers whose waiting calls do not return it.
    fn take_fault(&self) -> Option<Error> {
        None
    }
    /// A block leaves the pool for a new owner: its contents count as uninitialised.
    fn handed_out(&self, _span: Span) {}
    /// Its owner is gone.
    fn returned(&self, _span: Span) {}
}

/// A tick of every stream: what somebody is certainly behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock([u64; MAX_STREAMS]);

impl Clock {
    pub(crate) fn get(&self, stream: usize) -> u64 {
        self.0[stream]
    }

    /// Counts an operation of a stream. Returns its tick.
    pub(crate) fn advance(&mut self, stream: usize) -> u64 {
        self.0[stream] += 1;
        self.0[stream]
    }

    /// Is behind everything that `other` is behind, from now on.
    pub(crate) fn join(&mut self, other: &Clock) {
        for (own, &other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(other);
        }
    }
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f` with `stream` as this thread's current stream on every asynchronous device. A device with fewer
/// streams counts on from its first one.
pub(crate) fn on_stream<R>(stream: usize, f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = CURRENT.try_with(|current| current.set(self.0));
        }
    }
    let _restore = Restore(CURRENT.replace(stream));
    f()
}

/// A stream's books.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// What the stream is behind; at its own place, its tick.
    behind: Clock,
    /// What its event stands for: `behind` as it was when the event was recorded.
    event: Clock,
}

/// The order of a device's streams.
#[derive(Debug)]
struct Streams {
    lanes: Vec<Lane>,
    /// What the host has waited for; everything submitted later is behind it.
    host: Clock,
}

impl Streams {
    /// The stream that this thread submits to.
    fn current(&self) -> usize {
        CURRENT.try_with(Cell::get).unwrap_or(0) % self.lanes.len()
    }

    /// Makes work submitted to `stream` from now on run behind `tick` of `other`.
    fn order<D: Driver>(&mut self, driver: &D, stream: usize, other: usize, tick: u64) -> Result<()> {
        if self.lanes[stream].behind.get(other) >= tick || self.host.get(other) >= tick {
            return Ok(());
        }
        if self.lanes[other].event.get(other) < tick {
            driver.record(other)?;
            self.lanes[other].event = self.lanes[other].behind;
        }
        driver.wait(stream, other)?;
        let event = self.lanes[other].event;
        self.lanes[stream].behind.join(&event);
        // The wait is an operation too: ticks count everything that a later event of this stream stands for.
        self.lanes[stream].behind.advance(stream);
        Ok(())
    }

    /// Whether the host has yet to wait for the stream.
    fn is_busy(&self, stream: usize) -> bool {
        self.host.get(stream) < self.lanes[stream].behind.get(stream)
    }
}

/// Bytes that the driver gave.
#[derive(Debug)]
struct Block {
    /// All of it; its owner may have asked for less.
    span: Span,
    /// The stream it was last asked for on, in whose free list it will wait.
    home: usize,
    /// Stream and tick of the last write.
    written: (usize, u64),
    /// Ticks of the last write and of the reads since then.
    used: Clock,
}

/// Above this, a block serves requests that are up to 12.5 % smaller.
const LARGE: usize = 1 << 20;

/// The size a block for `bytes` has: multiples of 256 with 8 sizes a doubling, above 1 MiB whole pages.
fn block_size(bytes: usize) -> Option<usize> {
    if bytes > LARGE {
        return bytes.checked_next_multiple_of(4096);
    }
    let grains = bytes.div_ceil(256);
    let doubling = grains.saturating_sub(1).checked_ilog2().unwrap_or(0);
    Some(grains.next_multiple_of(1 << doubling.saturating_sub(3)) * 256)
}

/// The blocks of a device: those that have an owner, and those that wait for one.
#[derive(Debug)]
struct Pool {
    /// By address.
    owned: BTreeMap<usize, Block>,
    /// For each home stream, by size and stamp.
    free: Vec<BTreeMap<(usize, u64), Block>>,
    /// Counts down, so that of equal sizes the one freed last comes first.
    next_stamp: u64,
    stats: MemoryStats,
}

impl Pool {
    fn limit_admits(&self, bytes: usize) -> bool {
        self.stats.limit.is_none_or(|limit| self.stats.active.saturating_add(bytes as u64) <= limit)
    }

    /// Takes a block of this size out of a free list: of `stream` if one waits there, else of another.
    fn take(&mut self, stream: usize, size: usize) -> Option<Block> {
        let most = if size > LARGE { size.saturating_add(size / 8) } else { size };
        let streams = self.free.len();
        for list in (0..streams).map(|i| (stream + i) % streams) {
            let found = self.free[list].range((size, 0)..=(most, u64::MAX)).next().map(|(key, _)| *key);
            if let Some(key) = found {
                self.stats.cached -= key.0 as u64;
                self.stats.hits += 1;
                return self.free[list].remove(&key);
            }
        }
        None
    }

    /// Gives a block to an owner that asked for `bytes`.
    fn give(&mut self, block: Block, bytes: usize) {
        self.stats.active += bytes as u64;
        self.stats.peak = self.stats.peak.max(self.stats.active);
        self.owned.insert(block.span.ptr().addr().get(), block);
    }

    /// Takes a block back from its owner. A span that has no owner is left alone.
    fn put(&mut self, span: Span) {
        if let Some(block) = self.owned.remove(&span.ptr().addr().get()) {
            self.stats.active -= span.bytes() as u64;
            self.stats.cached += block.span.bytes() as u64;
            self.free[block.home].insert((block.span.bytes(), self.next_stamp), block);
            self.next_stamp -= 1;
        }
    }

    /// The owned block that a span lies in. Spans of no bytes lie in none.
    fn find(&mut self, span: Span) -> Option<&mut Block> {
        let start = span.ptr().addr().get();
        let (address, block) = self.owned.range_mut(..=start).next_back()?;
        (span.bytes() > 0 && start - address + span.bytes() <= block.span.bytes()).then_some(block)
    }

    /// Forgets the free blocks that `free` accepts, up to the first that it does not.
    fn release(&mut self, free: impl Fn(Span) -> Result<()>) -> Result<()> {
        for list in &mut self.free {
            while let Some(entry) = list.first_entry() {
                free(entry.get().span)?;
                self.stats.cached -= entry.remove().span.bytes() as u64;
            }
        }
        Ok(())
    }
}

/// What may be left out, to show that a checker notices. Everything is on for real devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Operations on different streams are ordered.
    pub(crate) order_streams: bool,
    /// A block's next owner is ordered behind the former one.
    pub(crate) order_reuse: bool,
}

#[derive(Debug)]
struct State {
    streams: Streams,
    pool: Pool,
    /// A failure in a call that could not return it.
    deferred: Option<Error>,
}

/// Gives the empty span the alignment of a block.
#[repr(align(256))]
struct Aligned;

/// A device whose work is submitted: a driver, the order of its streams and the pool of its bytes.
///
/// A span that lies in no block of this device is not ordered; what becomes of it is the driver's business.
#[derive(Debug)]
pub(crate) struct AsyncDevice<D: Driver> {
    driver: D,
    rules: Rules,
    state: Mutex<State>,
}

impl<D: Driver> AsyncDevice<D> {
    pub(crate) fn new(driver: D, streams: usize, rules: Rules) -> Self {
        let count = streams.clamp(1, MAX_STREAMS);
        let streams = Streams { lanes: vec![Lane::default(); count], host: Clock::default() };
        let free = (0..count).map(|_| BTreeMap::new()).collect();
        let pool = Pool { owned: BTreeMap::new(), free, next_stamp: u64::MAX, stats: MemoryStats::default() };
        AsyncDevice { driver, rules, state: Mutex::new(State { streams, pool, deferred: None }) }
    }

    pub(crate) fn driver(&self) -> &D {
        &self.driver
    }

    /// Only a kernel can panic while the lock is held, and it leaves the books alone: poison means nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uninitialised bytes for this thread's current stream, and the size of their block.
    pub(crate) fn alloc(&self, bytes: usize) -> Granted<(Span, usize)> {
        if bytes == 0 {
            return Ok((Span::new(NonNull::<Aligned>::dangling().cast(), 0), 0));
        }
        let size = block_size(bytes).ok_or(AllocError::Exhausted)?;
        let mut guard = self.lock();
        let state = &mut *guard;
        if !state.pool.limit_admits(bytes) {
            return Err(AllocError::Exhausted);
        }
        let stream = state.streams.current();
        let mut block = match state.pool.take(stream, size) {
            Some(block) => Block { home: stream, ..block },
            None => {
                let span = Span::new(self.fresh(state, size)?, size);
                Block { span, home: stream, written: (stream, 0), used: Clock::default() }
            }
        };
        if !self.rules.order_reuse {
            (block.written, block.used) = ((stream, 0), Clock::default());
        }
        let (span, reserved) = (Span::new(block.span.ptr(), bytes), block.span.bytes());
        state.pool.give(block, bytes);
        self.driver.handed_out(span);
        Ok((span, reserved))
    }

    /// Bytes from the driver; if it has none, once more after giving it back what waits for reuse.
    #[cold]
    fn fresh(&self, state: &mut State, size: usize) -> Granted<NonNull<u8>> {
        let mut answer = self.driver.alloc(size);
        if matches!(answer, Err(AllocError::Exhausted)) && state.pool.stats.cached > 0 {
            self.trim_locked(state).map_err(AllocError::Failed)?;
            answer = self.driver.alloc(size);
        }
        state.pool.stats.misses += u64::from(answer.is_ok());
        answer
    }

    /// Takes back what [`AsyncDevice::alloc`] gave. Work that was submitted may still use it.
    pub(crate) fn free(&self, span: Span) {
        if span.bytes() > 0 {
            let mut state = self.lock();
            self.driver.returned(span);
            state.pool.put(span);
        }
    }

    /// Submits a kernel to this thread's current stream.
    pub(crate) fn launch(&self, kernel: &Kernel) -> Result<()> {
        let accesses = kernel.accesses();
        let mut state = self.lock();
        let stream = state.streams.current();
        let operands = || accesses.iter().map(|(view, access)| (view.span(), *access));
        self.submit(&mut state, stream, operands, || self.driver.launch(stream, kernel))
    }

    /// Submits a copy of host bytes to this thread's current stream.
    pub(crate) fn upload(&self, dst: Span, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let stream = state.streams.current();
        let operands = || std::iter::once((dst, Access::Write));
        self.submit(&mut state, stream, operands, || self.driver.upload(stream, dst, bytes))
    }

    /// Copies the whole span of a view to the host: on the stream that wrote it last, so that it waits for no
    /// other one.
    pub(crate) fn download(&self, src: &View, out: &mut [u8]) -> Result<()> {
        let mut state = self.lock();
        let current = state.streams.current();
        let stream = state.pool.find(src.span()).map_or(current, |block| block.written.0);
        let operands = || std::iter::once((src.span(), Access::Read));
        self.submit(&mut state, stream, operands, || self.driver.download(stream, src, out))?;
        let reached = state.streams.lanes[stream].behind;
        state.streams.host.join(&reached);
        self.report(&mut state)
    }

    /// Orders an operation behind what its operands demand, makes the call, and notes it if it succeeds.
    fn submit<I: Iterator<Item = (Span, Access)>>(
        &self,
        state: &mut State,
        stream: usize,
        operands: impl Fn() -> I,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.rules.order_streams {
            for (span, access) in operands() {
                let Some(block) = state.pool.find(span) else { continue };
                let (written, used) = (block.written, block.used);
                state.streams.order(&self.driver, stream, written.0, written.1)?;
                if access != Access::Read {
                    for other in 0..state.streams.lanes.len() {
                        state.streams.order(&self.driver, stream, other, used.get(other))?;
                    }
                }
            }
        }
        call()?;
        let tick = state.streams.lanes[stream].behind.advance(stream);
        for (span, access) in operands() {
            let Some(block) = state.pool.find(span) else { continue };
            if access != Access::Read {
                block.written = (stream, tick);
                block.used = Clock::default();
            }
            block.used.0[stream] = tick;
        }
        Ok(())
    }

    /// Waits until everything submitted before the call is done.
    ///
    /// # Errors
    /// A failed call; else the first failure, since the last report, of work that has run.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let streams = self.lock().streams.lanes.len();
        for stream in 0..streams {
            let state = self.lock();
            let (busy, reached) = (state.streams.is_busy(stream), state.streams.lanes[stream].behind);
            drop(state);
            if busy {
                self.driver.synchronize(stream)?;
                self.lock().streams.host.join(&reached);
            }
        }
        self.report(&mut self.lock())
    }

    fn report(&self, state: &mut State) -> Result<()> {
        state.deferred.take().or_else(|| self.driver.take_fault()).map_or(Ok(()), Err)
    }

    /// Gives the driver back what waits for reuse, after waiting for everything submitted. Returns the bytes.
    /// A failure on the way is the answer of the next waiting call.
    pub(crate) fn trim(&self) -> u64 {
        let mut state = self.lock();
        let before = state.pool.stats.cached;
        if let Err(error) = self.trim_locked(&mut state) {
            state.deferred.get_or_insert(error);
        }
        before - state.pool.stats.cached
    }

    fn trim_locked(&self, state: &mut State) -> Result<()> {
        for stream in 0..state.streams.lanes.len() {
            if state.streams.is_busy(stream) {
                self.driver.synchronize(stream)?;
                let reached = state.streams.lanes[stream].behind;
                state.streams.host.join(&reached);
            }
        }
        state.pool.release(|span| self.driver.free(span.ptr(), span.bytes()))
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.lock().pool.stats
    }

    pub(crate) fn reset_peak(&self) {
        let stats = &mut self.lock().pool.stats;
        stats.peak = stats.active;
    }

    /// Sets the limit on active bytes; returns the one before.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.lock().pool.stats.limit, bytes)
    }
}

impl<D: Driver> Drop for AsyncDevice<D> {
    /// Nobody has a block any more: each holds the device.
    fn drop(&mut self) {
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_waste_at_most_an_eighth_beyond_the_smallest() {
        for bytes in (1..10_000).chain((1..4000).map(|i| i * 1021)) {
            let size = block_size(bytes).expect("far from overflow");
            let most = bytes + (bytes / 8).max(256);
            assert!((bytes..most).contains(&size) && size.is_multiple_of(256), "{bytes} -> {size}");
            assert_eq!(block_size(size), Some(size), "a size is a size");
        }
        assert_eq!(block_size(usize::MAX), None);
    }
}
