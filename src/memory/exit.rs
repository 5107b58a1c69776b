//! The way out of a graph that ends with a cycle of a workspace: where an array that outlives the cycle is made by way
//! of values of the cycle, a step stands before its node, and the end of the cycle ends what is behind it.
//!
//! So what somebody keeps of a cycle keeps nothing of the graph inside, which could not be gone through any more. A
//! graph that keeps no value of the cycle, as a view's or a sum's, goes on.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::error::{Error, Result, Site};
use crate::memory::{
    handle::Proxy,
    node::{Give, GradStep, Node},
    threads::ThreadContext,
    workspace::validity::{self, CycleId},
};

thread_local! {
    /// Those of this thread's cycles that go on.
    static EXITS: RefCell<Vec<(Node, CycleId)>> = const { RefCell::new(Vec::new()) };
}

/// The node of a new array of the cycle `own`, or of none: behind a step of its own, if the array outlives a cycle of
/// this thread whose end ends the graph.
#[inline(never)]
pub(crate) fn placed(context: &ThreadContext, call: (&'static str, Site), node: Node, own: Option<CycleId>) -> Node {
    let leads_out = |from: &CycleId| own != Some(*from) && context.workspaces.leads_out(*from, own);
    match node.cycle().filter(leads_out) {
        Some(cycle) => noted(context, Node::new(node.rank() + 1, Exit::new(call, node)), cycle),
        None => node,
    }
}

/// A way out that the end of this cycle will find.
#[cold]
fn noted(context: &ThreadContext, exit: Node, cycle: CycleId) -> Node {
    let unused = EXITS.try_with(|exits| {
        let mut exits = exits.borrow_mut();
        // What nobody else has leads nowhere: its array ended. Mostly the last one, else found where there is no room.
        let first = if exits.len() == exits.capacity() { 0 } else { exits.len().saturating_sub(1) };
        let unused: Vec<_> = exits.extract_if(first.., |(exit, _)| exit.is_unique()).collect();
        exits.push((exit.clone(), cycle));
        unused
    });
    // A thread that is ending has none, and its graphs end with their handles.
    context.workspaces.has_exits.set(unused.is_ok());
    drop(unused);
    exit
}

/// Ends the ways out of graphs whose cycles ended. F5 of design.md, "What attack found".
pub(crate) fn end(context: &ThreadContext) {
    let taken = EXITS.try_with(RefCell::take).unwrap_or_default();
    let (go_on, ended): (Vec<_>, Vec<_>) = taken.into_iter().partition(|(_, cycle)| validity::goes_on(*cycle));
    // What was the user's in a graph may make some meanwhile.
    for (exit, cycle) in ended {
        drop(exit.step().end(&validity::about(cycle).workspace));
    }
    let _ = EXITS.try_with(|exits| {
        let mut exits = exits.borrow_mut();
        exits.extend(go_on);
        context.workspaces.has_exits.set(!exits.is_empty());
    });
}

/// The graph inside, until the cycle ends; then the name of its workspace.
struct Inside {
    node: Option<Node>,
    workspace: String,
}

/// Gives a gradient on as it is.
struct Exit {
    inside: Mutex<Inside>,
    /// The operation that made the array outside, and where it was called.
    op: &'static str,
    site: Site,
}

impl Exit {
    fn new((op, site): (&'static str, Site), node: Node) -> Self {
        Exit { inside: Mutex::new(Inside { node: Some(node), workspace: String::new() }), op, site }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GradStep for Exit {
    fn back(&self, grad: Proxy, give: &mut Give<'_>) -> Result<()> {
        let inside = self.inside();
        let Some(node) = inside.node.clone() else {
            return Err(Error::GraphEnded {
                op: self.op,
                site: self.site,
                backward: None,
                workspace: inside.workspace.clone(),
            });
        };
        drop(inside);
        give(&node, grad)
    }

    fn operands(&mut self) -> &mut [Option<Node>] {
        std::slice::from_mut(&mut self.inside.get_mut().unwrap_or_else(PoisonError::into_inner).node)
    }

    /// It does not end with the graph behind it.
    fn cycle(&mut self) -> Option<CycleId> {
        None
    }

    fn end(&self, workspace: &str) -> Option<Node> {
        let mut inside = self.inside();
        inside.workspace = workspace.to_owned();
        inside.node.take()
    }
}
