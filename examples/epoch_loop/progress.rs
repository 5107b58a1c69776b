//! What a reader sees while a mode runs.
//!
//! The parent draws: children only print reports, about [`REPORTS`] an epoch. On a terminal there is
//! one bar per mode, drawn to stderr so that stdout keeps the table alone; elsewhere there is one
//! plain line per epoch. A bar that is dropped before its last epoch stays as it stood.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::args::Mode;
use super::report::{Row, bytes};

/// Reports of a child within an epoch.
const REPORTS: usize = 20;

/// Whether a child reports after `step` of `steps`, both counted from 1.
pub(crate) fn due(step: usize, steps: usize) -> bool {
    step == steps || step.is_multiple_of(steps.div_ceil(REPORTS).max(1))
}

/// The progress of one mode.
pub(crate) struct Progress {
    mode: Mode,
    epochs: usize,
    steps_per_epoch: usize,
    /// `None` where there is no terminal.
    bar: Option<ProgressBar>,
    /// What the last finished epoch left behind.
    live: String,
}

impl Progress {
    /// Begins to show `mode`, which runs `epochs` of `steps_per_epoch` steps.
    pub(crate) fn new(mode: Mode, epochs: usize, steps_per_epoch: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(epochs.saturating_mul(steps_per_epoch) as u64);
            // A template that does not parse leaves the plain bar, which is as true.
            let style = ProgressStyle::with_template("{prefix:<10} [{bar:30}] {elapsed:>4}  {msg}");
            bar.set_style(style.map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("=> ")));
            bar.set_prefix(mode.name());
            bar.with_finish(ProgressFinish::Abandon)
        });
        Self { mode, epochs, steps_per_epoch, bar, live: String::new() }
    }

    /// Shows that `step` of `epoch`, both counted from 1, is done.
    pub(crate) fn step(&self, epoch: usize, step: usize, loss: f64) {
        if let Some(bar) = &self.bar {
            let done = epoch.saturating_sub(1).saturating_mul(self.steps_per_epoch) + step;
            bar.set_message(format!("epoch {epoch}/{}  loss {loss:.4}{}", self.epochs, self.live));
            bar.set_position(done as u64);
        }
    }

    /// Shows what an epoch left behind; after the last one the bar is complete.
    pub(crate) fn epoch_done(&mut self, row: &Row) {
        let (epoch, epochs) = (row.epoch, self.epochs);
        self.live = format!("  live {}", bytes(row.live_bytes as f64));
        let text = format!("epoch {epoch}/{epochs}  loss {:.4}{}", row.loss, self.live);
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                bar.set_position(epoch.saturating_mul(self.steps_per_epoch) as u64);
                if epoch >= epochs {
                    bar.abandon();
                }
            }
            None => eprintln!("{:<10} {text}  accuracy {:.1} %  {:.2} s", self.mode, row.accuracy * 100.0, row.seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_reports_sparsely_and_at_the_end() {
        for steps in [1, 2, 19, 20, 21, 125, 1_000, 12_345] {
            let reports = (1..=steps).filter(|step| due(*step, steps)).count();
            assert!((steps.min(REPORTS) / 2..=REPORTS + 1).contains(&reports), "{steps}: {reports}");
            assert!(due(steps, steps));
        }
        assert!(due(0, 0));
    }
}
