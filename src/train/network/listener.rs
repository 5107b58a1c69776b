//! Who is told how training goes.

use std::io::Write;
use std::time::{Duration, Instant};

use ndgc::{Result, gc};

use super::network::{Network, TrainingListener};

/// Prints the score every so many steps: DL4J's `ScoreIterationListener`.
#[derive(Debug)]
pub struct ScoreListener(pub u64);

impl TrainingListener for ScoreListener {
    fn iteration_done(&mut self, net: &Network) -> Result<()> {
        if net.iteration().is_multiple_of(self.0.max(1)) {
            println!("score at iteration {} is {}", net.iteration(), net.score());
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
        let steps = net.iteration() - first;
        if steps >= self.every {
            let each = now.duration_since(then).as_secs_f64() * 1e3 / steps as f64;
            println!("iteration {}: {each:.3} ms a step", net.iteration());
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
            println!(
                "memory at iteration {}: {} arrays, {} bytes, of which workspaces {}; {} requests",
                line.iteration, line.arrays, line.bytes, line.workspace_bytes, line.requests
            );
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
        eprintln!();
        Ok(())
    }
}
