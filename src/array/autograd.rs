//! Reverse-mode gradients: the graph that operations record. `ops/grad/backward.rs` goes back through it.
//!
//! Each result of a differentiable operation on a tracked operand holds a [`Node`]: the operation, the nodes of its
//! operands, and a function from the gradient of the result to theirs. The function was made by the operation
//! (`ops/`), and keeps what it needs as [`Saved`] storage, never as a handle: closing or reaping an array takes
//! nothing from the graph.
//!
//! A node's rank is one more than the largest of its operands', so a heap ordered by rank visits every node after
//! all that use it: no recursion, in the walk or in the drop of a long chain.

use std::cell::{Cell, RefCell};

use crate::base::{
    call::Call,
    error::{Error, Result, Site},
    layout::Layout,
    local::during,
    sync::{AtomicU32, Ordering},
};
use crate::memory::{
    node::{self, Give, GradStep, Node},
    owner::Owner,
    proxy::Proxy,
    registry::{self, ArrayRef, Parts, Tracked},
    storage::{self, Storage},
    threads::ThreadContext,
    workspace::validity::{self, CycleId},
};

/// Gradients of up to three operands; `None` for one that needs none.
pub(crate) type Grads = [Option<Proxy>; 3];

/// A gradient for a node.
pub(crate) type GradPart = (Node, Proxy);

/// A variable: a gradient stays with it.
struct Leaf;

impl GradStep for Leaf {
    fn operands(&mut self) -> &mut [Option<Node>] {
        &mut []
    }

    fn back(&self, _grad: Proxy, _give: &mut Give<'_>) -> Result<()> {
        Ok(())
    }
}

/// An operation on up to three operands.
struct Operation<F> {
    operands: [Option<Node>; 3],
    vjp: F,
}

impl<F> GradStep for Operation<F>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync,
{
    fn operands(&mut self) -> &mut [Option<Node>] {
        &mut self.operands
    }

    fn back(&self, grad: Proxy, give: &mut Give<'_>) -> Result<()> {
        let grads = (self.vjp)(&grad, needs(&self.operands));
        hand_on(&self.operands, grad, grads, give)
    }
}

/// Which operands want a gradient.
fn needs(operands: &[Option<Node>; 3]) -> [bool; 3] {
    operands.each_ref().map(Option::is_some)
}

/// Gives each operand its gradient, when that of the result is gone.
fn hand_on(operands: &[Option<Node>; 3], grad: Proxy, grads: Result<Grads>, give: &mut Give<'_>) -> Result<()> {
    drop(grad);
    for (operand, grad) in operands.iter().zip(grads?) {
        if let (Some(operand), Some(grad)) = (operand, grad) {
            give(operand, grad)?;
        }
    }
    Ok(())
}

/// A step that finds out in the walk whom it gives to.
struct DynamicOperation<F> {
    operands: Vec<Option<Node>>,
    vjp: F,
}

impl<F> GradStep for DynamicOperation<F>
where
    F: Fn(&Proxy, &[Option<Node>]) -> Result<Vec<GradPart>> + Send + Sync,
{
    fn operands(&mut self) -> &mut [Option<Node>] {
        &mut self.operands
    }

    fn back(&self, grad: Proxy, give: &mut Give<'_>) -> Result<()> {
        let parts = (self.vjp)(&grad, &self.operands)?;
        drop(grad);
        parts.into_iter().try_for_each(|(to, part)| give(&to, part))
    }
}

fn rank_above(operands: &[Option<Node>]) -> u32 {
    1 + operands.iter().flatten().map(Node::rank).max().unwrap_or(0)
}

/// The node of a result: `vjp` makes the gradients of the operands from that of the result.
pub(crate) fn operation(
    operands: [Option<Node>; 3],
    vjp: impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
) -> Node {
    Node::new(rank_above(&operands), Operation { operands, vjp })
}

/// The node of a result that gradients of more than its operands come out of.
pub(crate) fn dynamic_operation(
    operands: Vec<Option<Node>>,
    vjp: impl Fn(&Proxy, &[Option<Node>]) -> Result<Vec<GradPart>> + Send + Sync + 'static,
) -> Node {
    Node::new(rank_above(&operands), DynamicOperation { operands, vjp })
}

/// What the gradient graphs of the process hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphReport {
    /// Steps, and variables.
    pub nodes: u64,
    /// Values kept for derivatives; one that two steps need counts twice.
    pub saved_values: u64,
    /// The bytes of their elements. They are not memory of their own where the value itself still lives, or two steps
    /// keep one.
    pub saved_bytes: u64,
}

impl std::fmt::Display for GraphReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GraphReport { nodes, saved_values, saved_bytes } = *self;
        write!(f, "{nodes} nodes, {saved_values} saved values of {}", crate::base::units::Bytes(saved_bytes))
    }
}

/// What the gradient graphs of the process hold now: what a forward pass costs beside its values, and what
/// [`checkpoint`](crate::checkpoint) saves.
///
/// ```
/// # use ndgc::{Device, Var, graph_report};
/// let before = graph_report();
/// let x = Var::from_vec(vec![1f32, 2., 3.], 3, &Device::Cpu)?;
/// let y = x.exp()?.sum_all()?; // keeps e^x
/// assert_eq!(graph_report().saved_bytes - before.saved_bytes, 12);
/// drop((x, y));
/// # ndgc::gc::collect();
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn graph_report() -> GraphReport {
    let (saved_values, saved_bytes) = node::saved();
    GraphReport { nodes: node_count(), saved_values, saved_bytes }
}

/// Nodes of the gradient graph that are alive. Returns to what it was before a step when the step's values are
/// gone.
///
/// ```
/// # use ndgc::{Device, Var, node_count};
/// let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let before = node_count();
/// let y = x.sqr()?.sum_all()?; // recorded
/// assert!(node_count() > before);
/// drop(y);
/// ndgc::gc::collect(); // or any other call
/// assert_eq!(node_count(), before);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn node_count() -> u64 {
    node::count()
}

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations on this thread record gradients.
///
/// ```
/// # use ndgc::{is_grad_enabled, no_grad};
/// assert!(is_grad_enabled() && !no_grad(is_grad_enabled));
/// ```
#[inline]
pub fn is_grad_enabled() -> bool {
    ENABLED.with(Cell::get)
}

/// Runs `f` without recording gradients on this thread; also in-place changes of variables are allowed in it.
/// What was before is restored when `f` ends, also by a panic.
///
/// ```
/// # use ndgc::{Device, Var, no_grad};
/// let w = Var::from_vec(vec![1f32, 2.], 2, &Device::Cpu)?;
/// no_grad(|| w.affine_(0.5, 0.))?;
/// assert_eq!(w.to_vec1::<f32>()?, [0.5, 1.]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    recording(false, f)
}

/// Runs `f` with or without recording gradients on this thread.
pub(crate) fn recording<R>(on: bool, f: impl FnOnce() -> R) -> R {
    during(&ENABLED, on, f)
}

/// A version that no storage reaches.
const CHANGED: u64 = u64::MAX;

/// A saved value that a walk looked at.
struct Read {
    /// `None` if the value ended in the walk, as it was saved: its storage may be another's since.
    storage: Option<u32>,
    version: u64,
    op: &'static str,
    site: Site,
}

impl Read {
    fn changed(&self) -> Error {
        Error::ChangedSinceSaved { op: self.op, site: self.site, backward: None }
    }

    /// Of a storage that ended with a step which another thread was the last to hold nothing can be compared: what its
    /// cell has since is another's. It was when this thread's part of the step ended ([`confirm_since`]).
    fn confirm(&self) -> Result<()> {
        let Some(storage) = self.storage else { return Ok(()) };
        let now = storage::version_of(storage);
        let is_changed = self.version == CHANGED || !storage::is_of_later(now, self.version);
        if now != self.version && is_changed { Err(self.changed()) } else { Ok(()) }
    }
}

/// Values that a thread keeps room for between walks in any case. More goes back with a walk that looked at but a small
/// part of them.
const READS_KEPT: usize = 4096;
/// That part.
const PART: usize = 16;

thread_local! {
    /// Those of the walks that this thread is in.
    static READS: RefCell<Vec<Read>> = const { RefCell::new(Vec::new()) };
}

/// Runs a walk, or a part of one, and fails if one of the values that it looked at was changed before its end. No
/// operation reads an array that is being written, so a version that stands at the end stood at each read.
///
/// # Errors
/// [`Error::ChangedSinceSaved`].
pub(crate) fn confirm<R>(walk: impl FnOnce() -> Result<R>) -> Result<R> {
    /// Also if the walk panics.
    struct Forget(usize);
    impl Drop for Forget {
        fn drop(&mut self) {
            let _ = READS.try_with(|reads| {
                let mut reads = reads.borrow_mut();
                let is_large = reads.capacity() > READS_KEPT.max(PART * reads.len());
                reads.truncate(self.0);
                if self.0 == 0 && is_large {
                    reads.shrink_to(READS_KEPT);
                }
            });
        }
    }
    let begin = Forget(looked_at());
    let answer = walk()?;
    confirm_since(begin.0)?;
    Ok(answer)
}

/// How many values the walks of this thread have looked at.
pub(crate) fn looked_at() -> usize {
    // Among the last destructors of a thread there is no list any more: each value is confirmed as it is looked at.
    READS.try_with(|reads| reads.borrow().len()).unwrap_or(0)
}

/// Fails if one of those that were looked at since there were so many was changed: decisive while the step lives that
/// saved them, since another thread may end it with its next breath.
///
/// # Errors
/// [`Error::ChangedSinceSaved`].
pub(crate) fn confirm_since(before: usize) -> Result<()> {
    let confirmed = |reads: &[Read]| reads.iter().skip(before).try_for_each(Read::confirm);
    READS.try_with(|reads| confirmed(&reads.borrow())).unwrap_or(Ok(()))
}

/// A value kept for a gradient: a share in its storage, and which change of it. Invariant I8 (design.md).
pub(crate) struct Saved {
    storage: Storage,
    dtype: crate::base::dtype::DType,
    layout: Layout,
    version: u64,
    /// How often walks looked at it.
    looks: AtomicU32,
    op: &'static str,
    site: Site,
}

impl Saved {
    pub(crate) fn of(call: Call, array: &ArrayRef<'_>) -> Self {
        Self::new(call, array.storage, array.dtype, *array.layout)
    }

    pub(crate) fn new(call: Call, storage: &Storage, dtype: crate::base::dtype::DType, layout: Layout) -> Self {
        let saved = Saved {
            storage: storage.for_gradient(),
            dtype,
            layout,
            version: storage.version(),
            looks: AtomicU32::new(0),
            op: call.op,
            site: call.site,
        };
        let cycle = saved.storage.part_of_cycle().map(|part| CycleId::new(part.scope, part.stamp));
        node::count_saved(saved.bytes(), cycle);
        saved
    }

    fn bytes(&self) -> u64 {
        (self.layout.shape().elem_count() * self.dtype.size_in_bytes()) as u64
    }

    /// The value as an array of its own, owned by its handle. Whether it was still what was saved when it was read, the
    /// end of the walk tells ([`confirm`]).
    ///
    /// # Errors
    /// [`Error::ChangedSinceSaved`]; [`Error::GraphEnded`].
    pub(crate) fn get(&self) -> Result<Proxy> {
        let read = Read { storage: Some(self.storage.id()), version: self.version, op: self.op, site: self.site };
        if self.storage.version() != self.version {
            return Err(read.changed());
        }
        // Relaxed: a number for this thread's own walk.
        self.looks.fetch_add(1, Ordering::Relaxed);
        let _ = READS.try_with(|reads| reads.borrow_mut().push(read));
        let parts = Parts { dtype: self.dtype, layout: &self.layout, storage: self.storage.clone(), node: None };
        let value = registry::context(|context| handle_owned(Call { op: self.op, site: self.site }, context, parts))?;
        match registry::cycle_of(value.key()) {
            Some(cycle) if !value.is_in_scope() => Err(Error::GraphEnded {
                op: self.op,
                site: self.site,
                backward: None,
                workspace: validity::about(cycle).workspace,
            }),
            _ => Ok(value),
        }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        node::discount_saved(self.bytes());
        // A walk that looked at it looks again now, while the storage is still this one's.
        let _ = READS.try_with(|reads| {
            let Ok(mut reads) = reads.try_borrow_mut() else { return };
            let own = (Some(self.storage.id()), self.version);
            // As many as there were: those of one value stand at the end mostly, and no more of the list is walked.
            // Relaxed: as in `get`.
            let looks = self.looks.load(Ordering::Relaxed) as usize;
            let is_as_saved = self.storage.version() == self.version;
            let own = reads.iter_mut().rev().filter(|read| (read.storage, read.version) == own).take(looks);
            for read in own {
                match is_as_saved {
                    true => read.storage = None,
                    false => read.version = CHANGED,
                }
            }
            while reads.last().is_some_and(|read| read.storage.is_none()) {
                reads.pop();
            }
        });
    }
}

/// An array that its handles own.
pub(crate) fn handle_owned(call: Call, context: &ThreadContext, parts: Parts<'_>) -> Result<Proxy> {
    let made = registry::create(context, call.op, parts, &Owner::Handles, call.site);
    made.map(Proxy::from_key).map_err(|why| why.error(call.op, |_| Error::msg("handles refuse no array")))
}

/// The node of an array that gradients are recorded for.
pub(crate) fn tracked(array: &Proxy) -> Option<Node> {
    array.with_pinned("gradient", |array| array.node.clone()).ok().flatten()
}

/// # Gradients: whether the array is a variable
impl Proxy {
    /// Whether it is a variable: a leaf that gradients are recorded for. A closed array says no.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Var};
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// let y = w.exp()?;
    /// assert!(w.is_variable() && !y.is_variable() && y.track_op()); // `y` was computed from one
    /// assert!(!Tensor::ones(3, DType::F32, &Device::Cpu)?.is_variable());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn is_variable(&self) -> bool {
        tracked(self).is_some_and(|node| node.rank() == 0)
    }
}

/// Whether an in-place change of the array would falsify a gradient that is being recorded.
pub(crate) fn is_frozen(array: &ArrayRef<'_>) -> bool {
    array.node.is_some() && is_grad_enabled()
}

/// The node of a new variable.
pub(crate) fn leaf() -> Tracked {
    Some(Node::new(0, Leaf))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{
        gc,
        tests::{with_array, write, zeros},
    };

    #[test]
    fn the_room_for_what_a_large_walk_looked_at_goes_back() {
        let site = std::panic::Location::caller();
        let read = || Read { storage: None, version: 0, op: "test", site };
        let room_after = |reads: usize| {
            confirm(|| {
                READS.with(|all| all.borrow_mut().extend((0..reads).map(|_| read())));
                Ok(())
            })
            .expect("nothing was changed");
            READS.with(|all| all.borrow().capacity())
        };
        assert!(room_after(10 * READS_KEPT) >= 10 * READS_KEPT, "the next such walk uses it again");
        assert!(room_after(1) < 2 * READS_KEPT);
    }

    /// A quotient looks at its divisor twice.
    #[test]
    fn a_value_that_ends_in_a_walk_is_not_compared_with_who_has_its_place() {
        let place = |array: &Proxy| with_array(array, |_, array| Ok(array.storage.id())).expect("open");
        let has_its_place = |_| {
            // Nothing else waits, whose place would be the next.
            gc::collect();
            let array = zeros(4);
            let before = place(&array);
            let walk = || {
                let saved = with_array(&array, |_, array| Ok(Saved::of(Call::here("test"), array)))?;
                (0..2).try_for_each(|_| saved.get().map(drop))?;
                drop((array, saved));
                gc::collect();
                let next = zeros(4);
                write(&next)?;
                Ok(place(&next))
            };
            confirm(walk).expect("what was saved was not changed") == before
        };
        // Another thread may have taken the dead array in first, and has its place then.
        assert!((0..100).any(has_its_place));
    }

    /// Two walks may go through one graph, and whoever is the last to hold a step ends what it saved.
    #[test]
    fn a_value_that_another_thread_ends_in_a_walk_is_not_compared_with_who_has_its_place() {
        fn place(array: &Proxy) -> u32 {
            with_array(array, |_, array| Ok(array.storage.id())).expect("open")
        }
        let has_its_place = |_| {
            // Nothing else waits, whose place would be the next.
            gc::collect();
            let array = zeros(4);
            let before = place(&array);
            let walk = || {
                let saved = with_array(&array, |_, array| Ok(Saved::of(Call::here("test"), array)))?;
                saved.get().map(drop)?;
                drop(array);
                gc::collect();
                let elsewhere = move || {
                    drop(saved);
                    let next = zeros(4);
                    write(&next)?;
                    Ok::<_, Error>(place(&next))
                };
                std::thread::spawn(elsewhere).join().expect("no panic")
            };
            confirm(walk).expect("what was saved was not changed") == before
        };
        // As above.
        assert!((0..100).any(has_its_place));
    }

    #[test]
    fn a_value_that_was_changed_is_told_of_while_its_step_lives() {
        let array = zeros(4);
        let walk = || {
            let saved = with_array(&array, |_, array| Ok(Saved::of(Call::here("test"), array)))?;
            let before = looked_at();
            saved.get().map(drop)?;
            confirm_since(before).expect("it was not changed");
            gc::collect();
            write(&array)?;
            confirm_since(before)
        };
        assert!(matches!(confirm(walk), Err(Error::ChangedSinceSaved { op: "test", .. })));
    }

    #[test]
    fn a_value_that_was_changed_is_told_of_when_it_ended_in_the_walk() {
        let array = zeros(4);
        let walk = || {
            let saved = with_array(&array, |_, array| Ok(Saved::of(Call::here("test"), array)))?;
            saved.get().map(drop)?;
            gc::collect();
            write(&array)?;
            drop((array, saved));
            gc::collect();
            Ok(zeros(4))
        };
        assert!(matches!(confirm(walk), Err(Error::ChangedSinceSaved { op: "test", .. })));
    }
}
