//! Sections that are recorded once and replayed.
//!
//! Capturing runs a section of the program once while the driver records its kernels instead of running them. A
//! replay submits all of them with one call. Addresses are part of what was recorded, so the blocks of the section
//! stay as they are for as long as the captured section lives: nobody else gets them, whatever becomes of their
//! handles.
//!
//! # Invariants
//! - A capture begins when nothing that was submitted is left to wait for, so the section needs no wait.
//! - While it lasts, the capturing thread submits to the captured stream alone, and other threads submit nothing;
//!   everybody may free.
//! - However the section ends, by a value, an error or a panic, the capture ends with it, and the device works.
//! - A section in which anything was refused has no graph.

use std::sync::{MutexGuard, PoisonError};

use crate::base::error::{Error, Result};
use crate::device::{
    kernel::Access,
    stream::{
        AsyncDevice, DeviceState,
        driver::Driver,
        order::Clock,
        section::{BEFORE, Captured, REFUSALS, Section, WARM_UP},
    },
};

impl<D: Driver> AsyncDevice<D> {
    fn refusal(&self, what: String) -> Error {
        Error::Capture { device: self.name.clone(), what, site: None }
    }

    /// An error for the section on this thread, if there is one, and for the caller.
    #[cold]
    pub(super) fn refuse(&self, state: &mut DeviceState, what: &str, instead: &str) -> Error {
        match &mut state.section {
            Some(section) if section.is_here() => {
                let what = format!("{what} cannot be part of a captured section; {instead}");
                section.refuse(&what);
                self.refusal(what)
            }
            _ => {
                let what = format!("{what} has to wait: the device is being captured on another thread; let that end");
                self.refusal(what)
            }
        }
    }

    /// Whether what is submitted to `stream` now becomes part of a section.
    ///
    /// # Errors
    /// [`Error::Capture`] if it is another thread's section, or another stream's.
    #[inline]
    pub(super) fn may_submit(&self, state: &mut DeviceState, stream: usize, what: &str) -> Result<bool> {
        match &state.section {
            None => Ok(false),
            Some(section) if section.is_here() && section.stream == stream => Ok(true),
            Some(section) => {
                let what = if section.is_here() { "work on another stream" } else { what };
                Err(self.refuse(state, what, "keep to one stream"))
            }
        }
    }

    /// # Errors
    /// [`Error::Capture`] if a section is being captured, on whatever thread.
    #[inline]
    pub(super) fn must_not_capture(&self, state: &mut DeviceState, what: &str, instead: &str) -> Result<()> {
        if state.section.is_none() { Ok(()) } else { Err(self.refuse(state, what, instead)) }
    }

    /// A block for the section out of what the lists hold, whatever it takes; the driver is not asked.
    #[cold]
    pub(super) fn take_in_section(&self, state: &mut DeviceState, stream: usize, size: usize) -> Result<u32> {
        let DeviceState { pool, section, .. } = &mut *state;
        if let Some(block) = pool.take_any(stream, size) {
            return Ok(block);
        }
        if let Some(section) = section {
            // What the section freed, and what lies beside it, may be large enough together.
            for i in 0..section.touched.len() {
                section.touched.extend(pool.merge_into_section(section.touched[i]));
            }
            if let Some(block) = pool.take_any(stream, size) {
                return Ok(block);
            }
        }
        let what = format!("asking the driver for {size} bytes");
        Err(self.refuse(state, &what, WARM_UP))
    }

    /// Runs `f`, recording what it submits to this thread's current stream instead of running it.
    ///
    /// # Errors
    /// [`Error::Capture`] for whatever was refused in the section; else what `f` returned; else what the driver says.
    pub(crate) fn capture<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<(Captured<D::Graph>, R)> {
        let open = self.begin()?;
        let answer = f();
        let captured = open.end();
        match answer {
            Ok(answer) => Ok((captured?, answer)),
            Err(error) => {
                let captured = captured.map(|captured| self.release(captured));
                match captured {
                    Err(refused @ Error::Capture { .. }) if !matches!(error, Error::Capture { .. }) => Err(refused),
                    _ => Err(error),
                }
            }
        }
    }

    fn begin(&self) -> Result<OpenCapture<'_, D>> {
        // A section of this thread would wait for itself below.
        self.must_not_capture(&mut self.lock(), "a capture", "end the first one before")?;
        self.synchronize()?;
        let _nobody_waits = self.waiting.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        self.must_not_capture(&mut state, "a capture", "end the first one before")?;
        self.wait_locked(&mut state)?;
        let stream = state.streams.current();
        self.driver.begin_capture(stream)?;
        REFUSALS.set((0, None));
        state.section = Some(Section::new(stream));
        Ok(OpenCapture { device: self, ended: false })
    }

    fn end(&self) -> Result<Captured<D::Graph>> {
        let mut state = self.lock();
        let Some(Section { stream, refused, touched, .. }) = state.section.take() else {
            return Err(Error::msg("the section ended already"));
        };
        let ended = self.driver.end_capture(stream);
        let ended = match refused {
            None => ended,
            Some(what) => {
                // Before anybody else gets its blocks.
                let _ = ended.map(|graph| self.driver.destroy(graph));
                Err(Error::Capture { device: self.name.clone(), what, site: REFUSALS.get().1 })
            }
        };
        let blocks = state.pool.end_section(touched, ended.is_ok() && self.rules.pin_graphs);
        ended.map(|graph| Captured { graph, stream, blocks })
    }

    /// Submits a captured section to its stream, whose own memory it may use, behind everything that its blocks demand,
    /// and when the host reads nothing of what it writes in parts.
    pub(crate) fn replay(&self, captured: &Captured<D::Graph>) -> Result<()> {
        let mut guard = self.lock();
        if is_read(&guard, &captured.blocks) {
            guard = self.behind_reads(guard, &captured.blocks);
        }
        let state = &mut *guard;
        self.must_not_capture(state, "a replay", BEFORE)?;
        let stream = captured.stream;
        if self.rules.order_streams {
            let mut demanded = Clock::default();
            for &(number, writes) in &captured.blocks {
                demanded.join(&state.pool.tag_mut(number).demanded(writes));
            }
            state.streams.order_behind(&self.driver, stream, &demanded)?;
        }
        self.driver.replay(stream, &captured.graph)?;
        let tick = state.streams.advance(stream);
        for &(number, writes) in &captured.blocks {
            let access = if writes { Access::ReadWrite } else { Access::Read };
            state.pool.tag_mut(number).note(stream, tick, access);
        }
        Ok(())
    }

    /// Waits until the host reads nothing of what a section writes in parts. Reads that begin meanwhile wait, so that
    /// those of several threads, which may always overlap, are over some time.
    #[cold]
    fn behind_reads<'a>(
        &'a self,
        mut state: MutexGuard<'a, DeviceState>,
        blocks: &[(u32, bool)],
    ) -> MutexGuard<'a, DeviceState> {
        let written = || blocks.iter().filter(|&&(_, writes)| writes).map(|&(number, _)| number);
        state.replays.extend(written());
        let waited = self.turn_over.wait_while(state, |state| is_read(state, blocks));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        for number in written() {
            // Several replays may wait for one block.
            if let Some(at) = state.replays.iter().position(|&block| block == number) {
                state.replays.swap_remove(at);
            }
        }
        // Whoever is woken waits for the lock, which the caller has until the replay is submitted.
        self.turn_over.notify_all();
        state
    }

    /// Forgets a captured section. Its blocks that nobody else has wait for reuse, behind its last replay.
    pub(crate) fn release(&self, captured: Captured<D::Graph>) {
        let mut state = self.lock();
        self.driver.destroy(captured.graph);
        state.pool.unpin(&captured.blocks);
        self.reap(&mut state);
    }
}

/// Whether the host is reading, in parts, one of these blocks of a section that the section writes.
fn is_read(state: &DeviceState, blocks: &[(u32, bool)]) -> bool {
    !state.reads.is_empty() && blocks.iter().any(|&(number, writes)| writes && state.reads.contains(&number))
}

/// A capture that has begun. Ends it also when the section panics.
struct OpenCapture<'a, D: Driver> {
    device: &'a AsyncDevice<D>,
    ended: bool,
}

impl<D: Driver> OpenCapture<'_, D> {
    fn end(mut self) -> Result<Captured<D::Graph>> {
        self.ended = true;
        self.device.end()
    }
}

impl<D: Driver> Drop for OpenCapture<'_, D> {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(captured) = self.device.end()
        {
            self.device.release(captured);
        }
    }
}
