//! Reverse-mode gradients: the graph that operations record, and walking it backwards.
//!
//! Each result of a differentiable operation on a tracked operand holds a [`Node`]: the operation, the nodes of its
//! operands, and a function from the gradient of the result to theirs. The function was made by the operation
//! (`ops/`), and keeps what it needs as [`Saved`] storage, never as a handle: closing or reaping an array takes
//! nothing from the graph.
//!
//! A node's rank is one more than the largest of its operands', so a heap ordered by rank visits every node after
//! all that use it: no recursion, in the walk or in the drop of a long chain.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BinaryHeap, HashMap};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::{
    error::{Error, Result, Site},
    layout::Layout,
};
use crate::device::graph::blame;
use crate::memory::{
    owner::Owner,
    proxy::Proxy,
    registry::{self, Payload, Tracked},
    storage::Storage,
    threads::Local,
};

/// Gradients of up to three operands; `None` for one that needs none.
pub(crate) type Grads = [Option<Proxy>; 3];

type Vjp = dyn Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync;

/// A gradient for a node.
pub(crate) type Part = (Arc<Node>, Proxy);

/// From the gradient of a result and the nodes of its operands to gradients of any nodes.
type Spread = dyn Fn(&Proxy, &[Option<Arc<Node>>]) -> Result<Vec<Part>> + Send + Sync;

/// What a node does with a gradient.
enum Rule {
    /// Keeps it: it is a variable.
    Leaf,
    /// Makes those of its operands.
    Operands(Box<Vjp>),
    /// Makes those of nodes that it finds.
    Spread(Box<Spread>),
}

/// Values that gradients keep, and their bytes.
static SAVED: AtomicU64 = AtomicU64::new(0);
static SAVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Nodes alive in the process.
static NODES: AtomicU64 = AtomicU64::new(0);

/// A step of the graph.
pub(crate) struct Node {
    rank: u32,
    parents: Vec<Option<Arc<Node>>>,
    rule: Rule,
}

impl Node {
    fn new(parents: Vec<Option<Arc<Node>>>, rule: Rule) -> Self {
        NODES.fetch_add(1, Ordering::Relaxed);
        let rank = match rule {
            Rule::Leaf => 0,
            _ => 1 + parents.iter().flatten().map(|parent| parent.rank).max().unwrap_or(0),
        };
        Node { rank, parents, rule }
    }

    /// The node of a result.
    pub(crate) fn make(
        parents: &[Option<Arc<Node>>],
        vjp: impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
    ) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Node::new(parents.to_vec(), Rule::Operands(Box::new(vjp))))
    }

    /// The node of a result that gradients of more than its operands come out of.
    pub(crate) fn spreading(
        parents: Vec<Option<Arc<Node>>>,
        spread: impl Fn(&Proxy, &[Option<Arc<Node>>]) -> Result<Vec<Part>> + Send + Sync + 'static,
    ) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Node::new(parents, Rule::Spread(Box::new(spread))))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        NODES.fetch_sub(1, Ordering::Relaxed);
        // A chain of nodes would drop recursively; so each last reference found is taken apart here instead.
        let mut todo: Vec<Arc<Node>> = self.parents.drain(..).flatten().collect();
        while let Some(node) = todo.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                todo.extend(node.parents.drain(..).flatten());
            }
        }
    }
}

/// The node behind the opaque reference in an array.
pub(crate) fn node_of(tracked: &Arc<dyn Any + Send + Sync>) -> Option<Arc<Node>> {
    Arc::clone(tracked).downcast::<Node>().ok()
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
    GraphReport {
        nodes: node_count(),
        saved_values: SAVED.load(Ordering::Relaxed),
        saved_bytes: SAVED_BYTES.load(Ordering::Relaxed),
    }
}

/// Nodes of the gradient graph that are alive. Returns to what it was before a step when the step's values are
/// gone.
pub fn node_count() -> u64 {
    NODES.load(Ordering::Relaxed)
}

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations on this thread record gradients.
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
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ENABLED.with(|enabled| enabled.set(self.0));
        }
    }
    let _restore = Restore(ENABLED.with(|enabled| enabled.replace(on)));
    f()
}

/// A value kept for a gradient: a share in its storage, and which change of it.
pub(crate) struct Saved {
    storage: Storage,
    dtype: crate::base::dtype::DType,
    layout: Layout,
    version: u64,
    op: &'static str,
    site: Site,
}

impl Saved {
    pub(crate) fn of(array: &Payload, op: &'static str, site: Site) -> Self {
        Self::new(&array.storage, array.dtype, array.layout, op, site)
    }

    pub(crate) fn new(
        storage: &Storage,
        dtype: crate::base::dtype::DType,
        layout: Layout,
        op: &'static str,
        site: Site,
    ) -> Self {
        SAVED.fetch_add(1, Ordering::Relaxed);
        let saved = Saved { storage: storage.clone(), dtype, layout, version: storage.version(), op, site };
        SAVED_BYTES.fetch_add(saved.bytes(), Ordering::Relaxed);
        saved
    }

    fn bytes(&self) -> u64 {
        (self.layout.shape().elem_count() * self.dtype.size_in_bytes()) as u64
    }

    /// The value as an array of its own, owned by its handle.
    ///
    /// # Errors
    /// [`Error::ChangedSinceSaved`].
    pub(crate) fn get(&self) -> Result<Proxy> {
        if self.storage.version() != self.version {
            return Err(Error::ChangedSinceSaved { op: self.op, site: self.site });
        }
        let payload = Payload { dtype: self.dtype, layout: self.layout, storage: self.storage.clone(), node: None };
        registry::local(|local| handle_owned(local, self.op, payload, self.site))
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        SAVED.fetch_sub(1, Ordering::Relaxed);
        SAVED_BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// An array that its handles own, and with it its bytes, if those are a workspace's.
pub(crate) fn handle_owned(local: &Local, op: &'static str, payload: Payload, site: Site) -> Result<Proxy> {
    match registry::create(local, op, payload, Owner::Holders, site)? {
        Ok(key) => Ok(Proxy::from_key(key)),
        Err(_) => Err(Error::msg("handles refuse no array")),
    }
}

/// The gradients of the variables that a value depends on. Made by [`Proxy::backward`].
///
/// Gradients are owned by their handles, of which this holds one each: they end with it, whatever the switch says,
/// and nothing is left with the manager of the variables.
#[derive(Default)]
pub struct GradStore {
    grads: HashMap<usize, (Arc<Node>, Proxy)>,
}

impl std::fmt::Debug for GradStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GradStore({} gradients)", self.grads.len())
    }
}

impl GradStore {
    /// Every gradient with its variable's node.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = Part> {
        self.grads.into_values()
    }

    /// The gradient of a variable; `None` if the value did not depend on it.
    pub fn get(&self, variable: &Proxy) -> Option<&Proxy> {
        self.grads.get(&key_of(variable)?).map(|(_, grad)| grad)
    }

    /// Takes a gradient out.
    pub fn remove(&mut self, variable: &Proxy) -> Option<Proxy> {
        self.grads.remove(&key_of(variable)?).map(|(_, grad)| grad)
    }

    /// Puts a gradient in; returns the one before. Ignored for an array that is no variable.
    pub fn insert(&mut self, variable: &Proxy, grad: Proxy) -> Option<Proxy> {
        let node = tracked(variable)?;
        self.grads.insert(Arc::as_ptr(&node) as usize, (node, grad)).map(|(_, grad)| grad)
    }

    /// Number of gradients.
    pub fn len(&self) -> usize {
        self.grads.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.grads.is_empty()
    }
}

/// The node of an array that gradients are recorded for.
pub(crate) fn tracked(array: &Proxy) -> Option<Arc<Node>> {
    array.with_pinned("gradient", |array| array.node.as_ref().and_then(node_of)).ok().flatten()
}

fn key_of(array: &Proxy) -> Option<usize> {
    tracked(array).map(|node| Arc::as_ptr(&node) as usize)
}

impl Proxy {
    /// Whether it is a variable: a leaf that gradients are recorded for. A closed array says no.
    pub fn is_variable(&self) -> bool {
        tracked(self).is_some_and(|node| matches!(node.rule, Rule::Leaf))
    }
}

/// A node whose gradient is complete once every node of higher rank is done.
struct Due {
    node: Arc<Node>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |due: &Due| (due.node.rank, Arc::as_ptr(&due.node) as usize);
        key(self).cmp(&key(other))
    }
}

impl Proxy {
    /// The gradients of this value, summed over its elements, for every variable it depends on.
    ///
    /// The graph stays as it is: a second call gives the same. Intermediate gradients are released as soon as
    /// they were used.
    ///
    /// # Errors
    /// - [`Error::NoGradient`] if no variable leads here.
    /// - [`Error::ChangedSinceSaved`] if a value that is needed was changed in place.
    ///
    /// ```
    /// # use ndgc::{Device, Var};
    /// let x = Var::from_vec(vec![1f32, 2., 3.], 3, &Device::Cpu)?;
    /// let loss = x.sqr()?.sum_all()?;
    /// let grads = loss.backward()?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [2., 4., 6.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn backward(&self) -> Result<GradStore> {
        let root = self.with_pinned("backward", |array| array.node.as_ref().and_then(node_of))?;
        let Some(root) = root else {
            return Err(Error::NoGradient { array: registry::describe(self.key()) });
        };
        let site = Location::caller();
        // What is refused in a captured section is refused here, not where a derivative is computed.
        no_grad(|| walk(root, self.try_detach()?.ones_like()?)).map_err(|error| blame(error, site))
    }
}

/// Gradients that are not complete yet, and the nodes that they are of.
#[derive(Default)]
struct Walk {
    grads: HashMap<usize, Proxy>,
    due: BinaryHeap<Due>,
}

impl Walk {
    fn give(&mut self, to: &Arc<Node>, part: Proxy) -> Result<()> {
        let id = Arc::as_ptr(to) as usize;
        match self.grads.remove(&id) {
            // The first contribution is moved; it was made for this node alone, so later ones are added to it.
            None => {
                self.grads.insert(id, part);
                self.due.push(Due { node: Arc::clone(to) });
            }
            Some(sum) => {
                self.grads.insert(id, accumulate(sum, &part)?);
            }
        }
        Ok(())
    }
}

/// The gradients of the variables behind a node, from its own.
pub(crate) fn walk(root: Arc<Node>, seed: Proxy) -> Result<GradStore> {
    let mut store = GradStore::default();
    let mut walk = Walk::default();
    walk.give(&root, seed)?;
    drop(root);
    while let Some(Due { node }) = walk.due.pop() {
        let id = Arc::as_ptr(&node) as usize;
        let Some(grad) = walk.grads.remove(&id) else { continue };
        match &node.rule {
            Rule::Leaf => {
                // Operations may hand one array to two operands; a variable gets one of its own.
                let own = grad.is_unique()? && grad.is_contiguous();
                let grad = if own { grad } else { grad.copy()? };
                store.grads.insert(id, (node, grad));
            }
            Rule::Operands(vjp) => {
                let needs = std::array::from_fn(|i| node.parents.get(i).is_some_and(Option::is_some));
                let parts = vjp(&grad, needs)?;
                drop(grad);
                for (parent, part) in node.parents.iter().zip(parts) {
                    let (Some(parent), Some(part)) = (parent, part) else { continue };
                    walk.give(parent, part)?;
                }
            }
            Rule::Spread(spread) => {
                let parts = spread(&grad, &node.parents)?;
                drop(grad);
                for (to, part) in parts {
                    walk.give(&to, part)?;
                }
            }
        }
    }
    Ok(store)
}

/// Adds in place if nobody else sees the sum's bytes.
fn accumulate(sum: Proxy, part: &Proxy) -> Result<Proxy> {
    if sum.is_unique()? && sum.is_contiguous() {
        sum.add_(part)?;
        return Ok(sum);
    }
    sum.add(part)
}

/// Whether an in-place change of the array would falsify a gradient that is being recorded.
pub(crate) fn is_frozen(array: &Payload) -> bool {
    array.node.is_some() && is_grad_enabled()
}

/// The node of a new variable.
pub(crate) fn leaf() -> Tracked {
    let leaf: Arc<dyn Any + Send + Sync> = Arc::new(Node::new(Vec::new(), Rule::Leaf));
    Some(leaf)
}
