//! What a captured section holds: which blocks it uses, what was refused in it, and whose call that was.

use std::cell::Cell;
use std::thread::{self, ThreadId};

use crate::base::error::{Error, Site};
use crate::device::{kernel::Access, span::Span, stream::pool::Pool};

/// How to go on when something belongs before the section.
pub(super) const BEFORE: &str = "do it before the section";
/// How to have the memory that a section needs.
pub(crate) const WARM_UP: &str =
    "run the section once before capturing it, and again if that run made things that stay";
/// How to go on when something belongs behind it.
pub(super) const AFTER: &str = "read after a replay";

/// A section that is being captured.
#[derive(Debug)]
pub(super) struct Section {
    thread: ThreadId,
    pub(super) stream: usize,
    /// The first thing that was refused in it.
    pub(super) refused: Option<String>,
    /// Blocks that it has to do with: at least once each, as long as they are there.
    pub(super) touched: Vec<u32>,
}

impl Section {
    /// Begins on this thread.
    pub(super) fn new(stream: usize) -> Self {
        Section { thread: thread::current().id(), stream, refused: None, touched: Vec::new() }
    }

    /// The section was given this block.
    pub(super) fn born(&mut self, pool: &mut Pool, block: u32) {
        if pool.mark_born(block) {
            self.touched.push(block);
        }
        self.touched.extend(pool.rest_of(block));
    }

    /// A kernel of the section uses a span.
    pub(super) fn touched(&mut self, pool: &mut Pool, span: Span, access: Access) {
        self.touched.extend(pool.mark_use(span, access));
    }

    /// Something was refused in it: there will be no graph.
    #[cold]
    pub(super) fn refuse(&mut self, what: &str) {
        REFUSALS.set((REFUSALS.get().0 + 1, REFUSALS.get().1));
        self.refused.get_or_insert_with(|| what.to_owned());
    }

    /// The driver did not take something: what was recorded is not the section.
    #[cold]
    pub(super) fn failed(&mut self, error: &Error) {
        match error {
            Error::Capture { what, .. } => self.refuse(what),
            other => self.refuse(&other.to_string()),
        }
    }

    pub(super) fn is_here(&self) -> bool {
        self.thread == thread::current().id()
    }
}

/// A captured section, with the blocks that it uses and whether it writes them.
#[derive(Debug)]
pub(crate) struct Captured<G> {
    pub(super) graph: G,
    pub(super) stream: usize,
    pub(super) blocks: Vec<(u32, bool)>,
}

impl<G> Captured<G> {
    /// How many blocks it uses.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }
}

thread_local! {
    /// Refusals of this thread's last capture, and the place of the first one.
    pub(super) static REFUSALS: Cell<(u32, Option<Site>)> = const { Cell::new((0, None)) };
}

/// Names the place of the user's call that failed.
#[cold]
pub(crate) fn blame(error: Error, at: Site) -> Error {
    let error = error.at(at);
    // Of later refusals in a captured section each has its own error; of the first one the capture tells, if the
    // section does not.
    if matches!(error, Error::Capture { .. }) && REFUSALS.get().0 <= 1 {
        REFUSALS.set((1, error.site()));
    }
    error
}
