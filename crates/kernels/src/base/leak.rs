//! The errors of workspaces: an array that was used after its cycle, a workspace that is full.

use std::fmt;

use crate::base::{call::Site, dtype::DType, units::Bytes};

/// An array of a workspace that was used after the end of its cycle.
///
/// The text begins as ND4J's does, and goes on with everything that is known of the array.
#[derive(Debug)]
pub struct LeakedArray {
    /// The operation.
    pub op: &'static str,
    /// Where the user called it, where that is known.
    pub site: Option<Site>,
    /// Which operand: `X` is the first, then `Y`, `Z`, and `4` and so on.
    pub operand: char,
    /// The array's name, or its key as `7v3`.
    pub array: String,
    /// Its dims.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
    /// The workspace it was made in.
    pub workspace: String,
    /// The cycle it was made in; the first is 1.
    pub cycle: u64,
    /// The workspace's last cycle.
    pub now: u64,
    /// What the workspace does now.
    pub state: WorkspaceState,
    /// Where the array was made.
    pub created: Option<Site>,
    /// Whether the workspace is circular, as those of prefetched batches are.
    pub is_ring: bool,
    /// The thread whose workspace it is, if it is not the calling one.
    pub thread: Option<String>,
    /// The workspaces that are open on the calling thread, outermost first.
    pub open: Vec<String>,
}

/// What a workspace does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkspaceState {
    /// A cycle runs.
    Open,
    /// It waits for its next cycle.
    Closed,
    /// It was destroyed, or its thread ended.
    Destroyed,
}

impl fmt::Display for LeakedArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeakedArray { op, operand, array, shape, dtype, workspace, cycle, now, .. } = self;
        write!(f, "Op [{op}] {operand} argument uses leaked workspace pointer from workspace [{workspace}]: ")?;
        write!(f, "array {array} of shape {shape:?} and dtype {dtype}")?;
        if let Some(site) = self.created {
            write!(f, ", made at {site}")?;
        }
        write!(f, " in cycle {cycle}, ended with its cycle; the workspace ")?;
        match self.state {
            WorkspaceState::Open => write!(f, "is in cycle {now}")?,
            WorkspaceState::Closed => write!(f, "is closed after cycle {now}")?,
            WorkspaceState::Destroyed => write!(f, "was destroyed after cycle {now}")?,
        }
        match &self.thread {
            Some(thread) => write!(
                f,
                ". The workspace is one of thread `{thread}`; on this thread, all open workspaces: {:?}",
                self.open
            )?,
            None => write!(f, ". All open workspaces: {:?}", self.open)?,
        }
        if self.is_ring {
            f.write_str(
                ". Its cycles are those of a ring: keep the batch, or a lease() of its cycle, as long as its arrays",
            )?;
        }
        f.write_str(
            ". Before the cycle ends, call detach() for an array that no workspace ends, \
             or leverage_to(\"NAME\") for one that lives in an enclosing workspace",
        )
    }
}

/// A request that a workspace with `SpillPolicy::Fail` has no room for.
#[derive(Debug)]
pub struct WorkspaceFull {
    /// The operation.
    pub op: &'static str,
    /// Where the user called it, where that is known.
    pub site: Option<Site>,
    /// The workspace.
    pub workspace: String,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of the workspace.
    pub size: u64,
    /// Of these, bytes in use.
    pub used: u64,
}

impl fmt::Display for WorkspaceFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkspaceFull { op, workspace, requested, size, used, .. } = self;
        write!(
            f,
            "{op}: Can't allocate memory: Workspace is full: [{workspace}] has {} of {} in use, and {} ({requested} B) \
             were asked for; choose a larger initial_size, or SpillPolicy::External or SpillPolicy::Reallocate",
            Bytes(*used),
            Bytes(*size),
            Bytes(*requested)
        )
    }
}
