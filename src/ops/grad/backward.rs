//! Walking the graph backwards, and the gradients that come of it.
//!
//! The lists and tables of a walk are kept by its thread for the next one, and so is the table of a [`GradStore`] that
//! ends: a training step that was made before asks the heap for nothing.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

use crate::array::autograd::{GradPart, confirm, confirm_since, looked_at, no_grad, tracked};
use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::memory::{
    key::Key,
    node::Node,
    proxy::Proxy,
    registry::{self, Pinned},
};
use crate::ops::call::{
    check,
    exec::{in_composite, once},
};

/// By the serial of a node.
type NodeTable<T> = HashMap<u64, T, BuildHasherDefault<Scatter>>;

/// Scatters serials, which are small and consecutive, over the bits that a table looks at.
#[derive(Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Tables that a thread keeps: enough for walks within a walk, and for a store in use beside the next.
const KEPT: usize = 4;
/// Nodes that a table has room for which is kept in any case. A larger one goes with a walk that needs but a small part
/// of it, since to clear it takes as long as it is.
const ROOM: usize = 1 << 16;
/// That part.
const PART: usize = 16;

thread_local! {
    static PASSES: RefCell<Vec<BackwardPass>> = const { RefCell::new(Vec::new()) };
    static STORES: RefCell<Vec<NodeTable<GradPart>>> = const { RefCell::new(Vec::new()) };
}

/// The gradients of the variables that a value depends on. Made by [`Proxy::backward`].
///
/// Gradients are owned by their handles, of which this holds one each: they end with it, whatever the switch says,
/// and nothing is left with the manager of the variables. Those that are made in a cycle of a workspace end with that:
/// [`GradStore::detach`] takes them out.
pub struct GradStore {
    grads: NodeTable<GradPart>,
}

impl Default for GradStore {
    fn default() -> Self {
        GradStore { grads: STORES.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default() }
    }
}

impl Drop for GradStore {
    fn drop(&mut self) {
        let mut grads = std::mem::take(&mut self.grads);
        grads.clear();
        // A thread that is ending keeps nothing.
        let _ = STORES.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if grads.capacity() > 0 && kept.len() < KEPT {
                kept.push(grads);
            }
        });
    }
}

impl std::fmt::Debug for GradStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GradStore({} gradients)", self.grads.len())
    }
}

impl GradStore {
    /// Every gradient with its variable's node.
    pub(crate) fn into_parts(mut self) -> impl Iterator<Item = GradPart> {
        std::mem::take(&mut self.grads).into_values()
    }

    /// The gradient of a variable; `None` if the value did not depend on it.
    pub fn get(&self, variable: &Proxy) -> Option<&Proxy> {
        self.grads.get(&key_of(variable)?).map(|(_, grad)| grad)
    }

    /// The gradient of a variable by its [`Proxy::id`], while the variable lives.
    pub fn get_id(&self, id: Key) -> Option<&Proxy> {
        self.get(&Proxy::from_key(registry::upgrade(id)?))
    }

    /// Takes a gradient out.
    ///
    /// ```
    /// # use ndgc::{Device, Var};
    /// let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
    /// let mut grads = x.sqr()?.sum_all()?.backward()?;
    /// let grad = grads.remove(&x).expect("the sum depends on it");
    /// drop(grads); // ends those that it has
    /// assert_eq!(grad.to_vec1::<f32>()?, [2., 4.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn remove(&mut self, variable: &Proxy) -> Option<Proxy> {
        self.grads.remove(&key_of(variable)?).map(|(_, grad)| grad)
    }

    /// Puts a gradient in; returns the one before. Ignored for an array that no gradient is recorded for; of one that
    /// was computed from variables it keeps the graph.
    pub fn insert(&mut self, variable: &Proxy, grad: Proxy) -> Option<Proxy> {
        let node = tracked(variable)?;
        self.grads.insert(node.serial(), (node, grad)).map(|(_, grad)| grad)
    }

    /// As [`GradStore::insert`], by the variable's [`Proxy::id`], while the variable lives.
    pub fn insert_id(&mut self, id: Key, grad: Proxy) -> Option<Proxy> {
        self.insert(&Proxy::from_key(registry::upgrade(id)?), grad)
    }

    /// Adds the gradients of another store: those of one variable are summed, in a new array.
    ///
    /// ```
    /// # use ndgc::{Device, Var};
    /// let (x, y) = (Var::new(2f32, &Device::Cpu)?, Var::new(5f32, &Device::Cpu)?);
    /// let mut grads = x.sqr()?.backward()?;
    /// grads.extend(x.mul(&y)?.backward()?)?; // of another loss
    /// assert_eq!(grads.get(&x).unwrap().to_scalar::<f32>()?, 9.);
    /// assert_eq!(grads.get(&y).unwrap().to_scalar::<f32>()?, 2.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::add`], most likely [`Error::OutOfMemory`] or [`Error::StaleArray`]; what was added by then stays.
    #[track_caller]
    pub fn extend(&mut self, other: Self) -> Result<()> {
        let call = Call::here("extend");
        for (node, grad) in other.into_parts() {
            match self.grads.get_mut(&node.serial()) {
                Some((_, own)) => *own = no_grad(|| own.add(&grad)).map_err(|error| error.of(call))?,
                None => {
                    self.grads.insert(node.serial(), (node, grad));
                }
            }
        }
        Ok(())
    }

    /// The gradients independent of the cycle of a workspace in which they were made: those of a workspace copied out
    /// of it, the others as they are.
    ///
    /// # Errors
    /// As [`Proxy::try_detach`].
    ///
    /// ```
    /// # use ndgc::{Device, Var, Workspace, WorkspaceConfig};
    /// let x = Var::from_vec(vec![1f32, 2.], 2, &Device::Cpu)?;
    /// let grads = Workspace::cycle("STEP", &WorkspaceConfig::default(), || x.sqr()?.sum_all()?.backward()?.detach())?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [2., 4.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn detach(mut self) -> Result<GradStore> {
        for (_, grad) in self.grads.values_mut() {
            if grad.is_attached() {
                *grad = grad.try_detach()?;
            }
        }
        Ok(self)
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

fn key_of(array: &Proxy) -> Option<u64> {
    array.with_pinned("gradient", |array| array.node.as_ref().map(Node::serial)).ok().flatten()
}

/// A node whose gradient is complete once every node of higher rank is done. Of two of one rank, the one made later
/// goes first, so that sums are added up in the same order each time.
struct Due(Node);

impl Due {
    fn key(&self) -> (u32, u64) {
        (self.0.rank(), self.0.serial())
    }
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
        self.key().cmp(&other.key())
    }
}

/// Gradients that are not complete yet, and the nodes that they are of.
#[derive(Default)]
struct BackwardPass {
    /// `None` for a node that was visited: the table then grows with the graph alone, and not with what was removed.
    grads: NodeTable<Option<Proxy>>,
    due: BinaryHeap<Due>,
}

impl BackwardPass {
    fn give(&mut self, to: &Node, part: Proxy) -> Result<()> {
        let place = self.grads.entry(to.serial()).or_default();
        *place = match place.take() {
            // The first contribution is moved; it was made for this node alone, so later ones are added to it.
            None => {
                self.due.push(Due(to.clone()));
                Some(part)
            }
            Some(sum) => Some(accumulate(sum, &part)?),
        };
        Ok(())
    }

    fn run(&mut self, root: Node, seed: Proxy) -> Result<GradStore> {
        let mut store = GradStore::default();
        self.give(&root, seed)?;
        drop(root);
        while let Some(Due(node)) = self.due.pop() {
            let Some(grad) = self.grads.get_mut(&node.serial()).and_then(Option::take) else { continue };
            if node.rank() > 0 {
                let before = looked_at();
                node.step().back(grad, &mut |to, part| self.give(to, part))?;
                confirm_since(before)?;
                continue;
            }
            // Operations may hand one array to two operands; a variable gets one of its own.
            let grad = if is_own(&grad)? { grad } else { grad.copy()? };
            store.grads.insert(node.serial(), (node, grad));
        }
        Ok(store)
    }
}

/// # Gradients: going back
impl Proxy {
    /// The gradients of this value, summed over its elements, for every variable it depends on.
    ///
    /// The graph stays as it is: a second call gives the same. Intermediate gradients are released as soon as
    /// they were used.
    ///
    /// # Errors
    /// - [`Error::NoGradient`] if no variable leads here.
    /// - [`Error::ChangedSinceSaved`] if a value that is needed was changed in place.
    /// - [`Error::GraphEnded`] if it was an array of a workspace's cycle that ended.
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
        walk_from(Location::caller(), Cow::Borrowed(self))
    }

    /// As [`Proxy::backward`], for the last time: what was saved for a gradient ends as soon as it was used, where no
    /// other handle leads to it, so that values and gradients need not all live at once.
    ///
    /// ```
    /// # use ndgc::{Device, Var, graph_report};
    /// let x = Var::new(&[0f32, 1.], &Device::Cpu)?;
    /// let loss = x.exp()?.sum_all()?; // keeps e^x
    /// assert_eq!(graph_report().saved_bytes, 8);
    /// let grads = loss.backward_once()?; // uses the loss up, and what was kept for it
    /// # ndgc::gc::collect();
    /// assert_eq!((graph_report().saved_bytes, grads.len()), (0, 1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::backward`].
    #[track_caller]
    pub fn backward_once(self) -> Result<GradStore> {
        walk_from(Location::caller(), Cow::Owned(self))
    }
}

/// The gradients behind a value, which is let go of before the walk if it was given up.
fn walk_from(site: &'static Location<'static>, from: Cow<'_, Proxy>) -> Result<GradStore> {
    let look = |array: &Pinned<'_>| (array.node.clone(), *array.layout.shape(), array.dtype);
    let call = Call { op: "backward", site };
    let (root, shape, dtype) = from.with_pinned(call, look)?;
    let Some(root) = root else {
        return Err(Error::NoGradient { op: call.op, array: registry::describe(from.key()), site: Some(site) });
    };
    // What is refused in a captured section is refused here, not where a derivative is computed.
    let mut walk = once(|| {
        let seed = no_grad(|| from.aside()?.ones_like())?;
        if (*seed.shape(), seed.dtype()) != (shape, dtype) {
            return Err(check::exchanged("backward", &from));
        }
        drop(from);
        no_grad(|| walk(root, seed))
    });
    // Gradients are made by the line that asks for them.
    in_composite(site, &mut walk)
}

/// The gradients of the variables behind a node, from its own.
pub(crate) fn walk(root: Node, seed: Proxy) -> Result<GradStore> {
    let mut walk = PASSES.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default();
    let answer = confirm(|| walk.run(root, seed));
    let is_fitting = walk.grads.capacity() <= ROOM.max(PART * walk.grads.len());
    // Not before the end of a walk that failed: what it holds is let go of here.
    walk.grads.clear();
    walk.due.clear();
    let _ = PASSES.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if is_fitting && kept.len() < KEPT {
            kept.push(walk);
        }
    });
    answer
}

/// Whether nobody else sees the array's bytes, which lie side by side and may be changed: a user's derivative may give
/// memory that was lent for reading.
fn is_own(grad: &Proxy) -> Result<bool> {
    let is_free = |array: &Pinned<'_>| array.storage.references() == 1 && !array.storage.buffer().is_read_only();
    let alone = grad.with_pinned("backward", |array| is_free(array) && array.layout.is_contiguous())?;
    Ok(alone && grad.handle_count() == 1)
}

/// Adds in place if nobody else sees the sum's bytes.
fn accumulate(sum: Proxy, part: &Proxy) -> Result<Proxy> {
    if is_own(&sum)? {
        sum.add_(part)?;
        return Ok(sum);
    }
    sum.add(part)
}

/// Nodes that the tables which this thread keeps have room for.
#[cfg(feature = "bench")]
pub(crate) fn room() -> usize {
    PASSES.with_borrow(|kept| kept.iter().map(|pass| pass.grads.capacity()).max().unwrap_or(0))
}
