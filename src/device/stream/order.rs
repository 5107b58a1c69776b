//! The order of a device's streams: ticks, clocks, and the waits that make several streams one program.
//!
//! Each stream counts what was submitted to it; the count after an operation is its tick. What a stream is
//! behind is a [`Clock`], so that one wait pays for all that it implies, and a wait that is implied costs nothing.
//!
//! # Invariants
//! - A stream has one event, recorded again and again.
//! - A program that uses one stream records nothing and waits for nothing.

use std::cell::Cell;

use crate::base::{error::Result, local::during};
use crate::device::stream::driver::Driver;

/// The most streams that a device has.
pub(crate) const MAX_STREAMS: usize = 8;

/// A tick of every stream: what somebody is certainly behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock([u64; MAX_STREAMS]);

impl Clock {
    /// Nothing but this tick of this stream.
    pub(crate) fn at(stream: usize, tick: u64) -> Self {
        let mut clock = Clock::default();
        clock.0[stream] = tick;
        clock
    }

    pub(crate) fn get(&self, stream: usize) -> u64 {
        self.0[stream]
    }

    pub(crate) fn set(&mut self, stream: usize, tick: u64) {
        self.0[stream] = tick;
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
    during(&CURRENT, stream, f)
}

/// A stream's books.
#[derive(Clone, Copy, Debug, Default)]
struct StreamClock {
    /// What the stream is behind; at its own place, its tick.
    behind: Clock,
    /// What its event stands for: `behind` as it was when the event was recorded.
    event: Clock,
}

/// The order of a device's streams.
#[derive(Debug)]
pub(super) struct Streams {
    clocks: Vec<StreamClock>,
    /// What the host has waited for; everything submitted later is behind it.
    host: Clock,
}

impl Streams {
    pub(super) fn new(count: usize) -> Self {
        Streams { clocks: vec![StreamClock::default(); count], host: Clock::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.clocks.len()
    }

    /// The stream that this thread submits to.
    pub(super) fn current(&self) -> usize {
        CURRENT.try_with(Cell::get).unwrap_or(0) % self.clocks.len()
    }

    /// Makes work submitted to `stream` from now on run behind `tick` of `other`.
    pub(super) fn order<D: Driver>(&mut self, driver: &D, stream: usize, other: usize, tick: u64) -> Result<()> {
        if self.clocks[stream].behind.get(other) >= tick || self.host.get(other) >= tick {
            return Ok(());
        }
        if self.clocks[other].event.get(other) < tick {
            driver.record(other)?;
            self.clocks[other].event = self.clocks[other].behind;
        }
        driver.wait(stream, other)?;
        let event = self.clocks[other].event;
        self.clocks[stream].behind.join(&event);
        // The wait is an operation too: ticks count everything that a later event of this stream stands for.
        self.clocks[stream].behind.advance(stream);
        Ok(())
    }

    /// Makes work submitted to `stream` from now on run behind every tick of `clock`.
    pub(super) fn order_behind<D: Driver>(&mut self, driver: &D, stream: usize, clock: &Clock) -> Result<()> {
        (0..self.clocks.len()).try_for_each(|other| self.order(driver, stream, other, clock.get(other)))
    }

    /// Counts an operation that was submitted. Returns its tick.
    pub(super) fn advance(&mut self, stream: usize) -> u64 {
        self.clocks[stream].behind.advance(stream)
    }

    /// What everything submitted to the stream so far is behind or is itself.
    pub(super) fn reached(&self, stream: usize) -> Clock {
        self.clocks[stream].behind
    }

    /// The host waited for what had `reached`.
    pub(super) fn host_waited(&mut self, reached: &Clock) {
        self.host.join(reached);
    }

    /// Whether the host has waited for every tick of `clock`.
    pub(super) fn is_over(&self, clock: &Clock) -> bool {
        (0..self.clocks.len()).all(|stream| self.host.get(stream) >= clock.get(stream))
    }

    /// Whether the host has yet to wait for the stream.
    pub(super) fn is_busy(&self, stream: usize) -> bool {
        self.host.get(stream) < self.clocks[stream].behind.get(stream)
    }
}
