//! Steps of the gradient graph, as arrays hold them: counted references to cells that are used again.
//!
//! A cell has the count, the place in the graph, and the step itself: a value of any type that knows how to go back
//! (`array/autograd.rs`). Cells lie in slabs of two sizes, so that recording an operation asks the heap for nothing;
//! a larger step has a block of its own.
//!
//! The last reference ends the step. What it holds of other steps is let go of in a loop, through links in the cells: a
//! chain of any length ends without recursion and without a list beside it. One call ends as many as it has units of
//! work (`base/work.rs`); the others wait for the next.
//!
//! # Cells
//! The unsafe code rests on the count of a cell: while there is a reference, its step is only read; the last one alone
//! ends it, and a cell of a free list belongs to one thread.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::base::{
    contain::drop_contained,
    error::Result,
    sync::{AtomicU32, AtomicU64, Ordering},
    work,
};
use crate::memory::{
    handle::Proxy,
    slab::slab,
    threads::{ThreadContext, with_context},
    workspace::validity::{self, CycleId},
};

/// Takes a gradient for a step.
pub(crate) type Give<'a> = dyn FnMut(&Node, Proxy) -> Result<()> + 'a;

/// What a node does. Known to the gradient layer alone.
pub(crate) trait GradStep: Send + Sync {
    /// Makes gradients of others from that of this step.
    fn back(&self, grad: Proxy, give: &mut Give<'_>) -> Result<()>;

    /// The nodes that it holds.
    fn operands(&mut self) -> &mut [Option<Node>];

    /// The cycle of a workspace that goes on, whose end ends the graph behind it.
    fn cycle(&mut self) -> Option<CycleId> {
        going_on(self.operands())
    }

    /// The cycle behind it ended, of a workspace of this name: gives back what it holds of the graph.
    fn end(&self, _workspace: &str) -> Option<Node> {
        None
    }
}

/// Of the cycles of these nodes that go on, the one that ends first.
fn going_on(operands: &[Option<Node>]) -> Option<CycleId> {
    let mut first = None;
    for cycle in operands.iter().flatten().filter_map(Node::cycle) {
        if validity::goes_on(cycle) {
            first = first_to_end(Some(cycle), first);
        }
    }
    first
}

/// Of two cycles that go on, the one that ends first.
fn first_to_end(one: Option<CycleId>, other: Option<CycleId>) -> Option<CycleId> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => {
            Some(with_context(|context| context.workspaces.first_to_end(one, other)))
        }
        _ => one.or(other),
    }
}

/// Where a cell lies.
#[derive(Clone, Copy)]
enum CellPlace {
    Small(u32),
    Large(u32),
    Heap,
}

#[repr(C)]
struct NodeCell<S: ?Sized> {
    refs: AtomicU32,
    rank: u32,
    cycle: Option<CycleId>,
    serial: u64,
    place: CellPlace,
    /// The next cell to end, once the count is 0.
    next: Option<NonNull<NodeCell<dyn GradStep>>>,
    step: S,
}

/// Room for a cell of up to this many bytes.
#[repr(C, align(16))]
struct Space<const BYTES: usize>(UnsafeCell<MaybeUninit<[u8; BYTES]>>);

// SAFETY: the bytes are reached by whoever took the index from a free list, through a `Node` that says itself who may
// do what.
unsafe impl<const BYTES: usize> Sync for Space<BYTES> {}

impl<const BYTES: usize> Space<BYTES> {
    const fn new() -> Self {
        Space(UnsafeCell::new(MaybeUninit::uninit()))
    }

    const fn fits(cell: Layout) -> bool {
        cell.size() <= size_of::<Self>() && cell.align() <= align_of::<Self>()
    }
}

/// Views, and steps that save one value: at most 312 bytes today.
type Small = Space<320>;
/// Steps that save two, convolutions with 704 bytes among them.
type Large = Space<768>;

slab!(SMALL: Small = Space::new());
slab!(LARGE: Large = Space::new());

/// Nodes ever made, and ended.
static MADE: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Nodes alive in the process.
pub(crate) fn count() -> u64 {
    // The ended ones first: each of them was made before.
    // Acquire: pairs with the Release where a node ends; so `MADE` has those, and is read Relaxed.
    let ended = ENDED.load(Ordering::Acquire);
    MADE.load(Ordering::Relaxed).saturating_sub(ended)
}

/// Values that steps keep for their derivatives, and the bytes of these.
static SAVED: AtomicU64 = AtomicU64::new(0);
static SAVED_BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The cycle that the values are of which were kept since the last step was made, the next one's: of several the
    /// one that ends first.
    static KEPT_OF: Cell<Option<CycleId>> = const { Cell::new(None) };
}

/// One value more is kept, of a cycle of a workspace or of none, for the step that is made next.
pub(crate) fn count_saved(bytes: u64, cycle: Option<CycleId>) {
    if cycle.is_some() {
        KEPT_OF.set(first_to_end(cycle, KEPT_OF.get()));
    }
    // Relaxed: statistics, here and below; nothing is read by them, and one of the two may be ahead.
    SAVED.fetch_add(1, Ordering::Relaxed);
    SAVED_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// The step that values were kept for is not made: the next one has nothing to do with them.
pub(crate) fn forget_kept() {
    KEPT_OF.set(None);
}

/// One value less is kept.
pub(crate) fn discount_saved(bytes: u64) {
    // Relaxed: statistics, as in `count_saved`.
    SAVED.fetch_sub(1, Ordering::Relaxed);
    SAVED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}

/// Values that are kept now, and their bytes.
pub(crate) fn saved() -> (u64, u64) {
    // Relaxed: statistics, as in `count_saved`.
    (SAVED.load(Ordering::Relaxed), SAVED_BYTES.load(Ordering::Relaxed))
}

/// A counted reference to a step.
pub(crate) struct Node {
    cell: NonNull<NodeCell<dyn GradStep>>,
}

// SAFETY: a reference gives access to a `GradStep`, which is `Send` and `Sync`, and to fields that are not changed
// while there is one; the count is atomic, and the last reference, on whatever thread, ends the step.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl Node {
    /// A step of this rank: 0 for a variable, else more than that of every node that it gives to.
    pub(crate) fn new<S: GradStep + 'static>(rank: u32, mut step: S) -> Self {
        // A variable has none, whatever an operation that failed kept before it.
        let cycle = match KEPT_OF.take() {
            _ if rank == 0 => None,
            kept => first_to_end(kept, step.cycle()),
        };
        let (cell, place) = vacant(const { Layout::new::<NodeCell<S>>() });
        let cell = cell.cast::<NodeCell<S>>();
        // Relaxed: a number that nobody else has; for `count`, the node's own way to its end orders it.
        let serial = MADE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `vacant` gave room for a `NodeCell<S>`, aligned, to this call alone.
        unsafe {
            cell.write(NodeCell { refs: AtomicU32::new(1), rank, cycle, serial, place, next: None, step });
        }
        Node { cell }
    }

    /// The cycle of a workspace whose end ends its graph: the first to end of those that values which it keeps, and
    /// steps before it, are of.
    #[inline]
    pub(crate) fn cycle(&self) -> Option<CycleId> {
        self.cell().cycle
    }

    #[inline]
    fn cell(&self) -> &NodeCell<dyn GradStep> {
        // SAFETY: the cell was written by `new`, and stays as it is, but for the count, until the last reference is
        // gone; this is one.
        unsafe { self.cell.as_ref() }
    }

    /// A node is visited after all of higher rank.
    #[inline]
    pub(crate) fn rank(&self) -> u32 {
        self.cell().rank
    }

    /// Which of all nodes it is: larger than that of every node made before. No other ever gets the same.
    #[inline]
    pub(crate) fn serial(&self) -> u64 {
        self.cell().serial
    }

    /// Whether this is the only reference.
    pub(crate) fn is_unique(&self) -> bool {
        // Relaxed: a count of 1 is this one's own, from which alone another could be made.
        self.cell().refs.load(Ordering::Relaxed) == 1
    }

    /// What it does.
    #[inline]
    pub(crate) fn step(&self) -> &dyn GradStep {
        &self.cell().step
    }

    /// Gives the reference up. The cell if it was the last: the caller ends it.
    #[inline]
    fn release(self) -> Option<NonNull<NodeCell<dyn GradStep>>> {
        let this = ManuallyDrop::new(self);
        let refs = &this.cell().refs;
        // Acquire: pairs with the Release below in the references that went before. A count of 1 is this one's own,
        // from which alone another could be made.
        if refs.load(Ordering::Acquire) != 1 {
            // Release: what was done through this reference comes before the end.
            if refs.fetch_sub(1, Ordering::Release) != 1 {
                return None;
            }
            // Acquire: as above.
            refs.load(Ordering::Acquire);
        }
        Some(this.cell)
    }
}

impl Clone for Node {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the reference cloned from keeps the count above 0.
        if self.cell().refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
            // Two billion references: only leaked ones get here, and wrapping would be unsound.
            std::process::abort();
        }
        Node { cell: self.cell }
    }
}

impl Drop for Node {
    #[inline]
    fn drop(&mut self) {
        let last = Node { cell: self.cell }.release();
        if last.is_some() {
            end(last);
        }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.serial() == other.serial()
    }
}
impl Eq for Node {}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({}, rank {})", self.serial(), self.rank())
    }
}

/// A cell that lies in a slab, to be dropped there.
struct InPlace(NonNull<NodeCell<dyn GradStep>>);

impl Drop for InPlace {
    fn drop(&mut self) {
        // SAFETY: made by `end` alone, of a cell that it has just taken out of everybody's reach.
        unsafe {
            self.0.drop_in_place();
        }
    }
}

/// Cells without references, linked, that wait for a call to end them.
struct Chain(NonNull<NodeCell<dyn GradStep>>);

// SAFETY: nobody reaches the cells but through this; their steps are `Send`.
unsafe impl Send for Chain {}

static WAITING: Mutex<Vec<Chain>> = Mutex::new(Vec::new());
/// How many there are, to be read without the lock.
static CHAINS: AtomicU32 = AtomicU32::new(0);

/// Whether cells wait to be ended.
#[inline]
pub(crate) fn is_waiting() -> bool {
    // Relaxed: a hint; the lock decides.
    CHAINS.load(Ordering::Relaxed) != 0
}

/// Ends cells that wait, with the work that the call has left.
#[cold]
pub(crate) fn end_waiting() {
    while work::left() > 0 {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.pop();
        // Relaxed: a hint, as in `is_waiting`.
        CHAINS.store(waiting.len() as u32, Ordering::Relaxed);
        drop(waiting);
        match next {
            Some(Chain(first)) => end(Some(first)),
            None => return,
        }
    }
}

#[cold]
fn wait(first: NonNull<NodeCell<dyn GradStep>>) {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.push(Chain(first));
    // Relaxed: a hint, as in `is_waiting`.
    CHAINS.store(waiting.len() as u32, Ordering::Relaxed);
}

/// Ends cells without references: the first one, and those that it was the last to hold, as far as the call has work
/// left.
fn end(mut dead: Option<NonNull<NodeCell<dyn GradStep>>>) {
    while let Some(cell) = dead {
        if !work::spend(work::ONE) {
            return wait(cell);
        }
        // SAFETY: the count came to 0 in `release` on this thread, so nobody else reaches the cell; it was not ended
        // yet, since what is linked was let go of once.
        let it = unsafe { &mut *cell.as_ptr() };
        dead = it.next.take();
        for last in it.step.operands().iter_mut().filter_map(Option::take) {
            let Some(last) = last.release() else { continue };
            // SAFETY: as above.
            unsafe {
                (*last.as_ptr()).next = dead;
            }
            dead = Some(last);
        }
        let place = it.place;
        // SAFETY: as above, and `it` is not used any more. A cell on the heap came from
        // `std::alloc::alloc` with this layout (`vacant`), as a box's memory does.
        unsafe {
            match place {
                // A step may hold what the user wrote.
                CellPlace::Heap => drop_contained(Box::from_raw(cell.as_ptr())),
                CellPlace::Small(_) | CellPlace::Large(_) => drop_contained(InPlace(cell)),
            }
        }
        // Release: pairs with the Acquire in `count`.
        ENDED.fetch_add(1, Ordering::Release);
        with_context(|context| match place {
            CellPlace::Small(index) => context.nodes[0].put(index, &SMALL),
            CellPlace::Large(index) => context.nodes[1].put(index, &LARGE),
            CellPlace::Heap => {}
        });
    }
}

/// Room for a cell, which nobody else has.
fn vacant(layout: Layout) -> (NonNull<u8>, CellPlace) {
    if Small::fits(layout)
        && let Some(index) = with_context(|context| context.nodes[0].take(&SMALL))
    {
        return (start(SMALL.get(index)), CellPlace::Small(index));
    }
    if Large::fits(layout)
        && let Some(index) = with_context(|context| context.nodes[1].take(&LARGE))
    {
        return (start(LARGE.get(index)), CellPlace::Large(index));
    }
    // SAFETY: a cell is never of no bytes.
    let block = unsafe { std::alloc::alloc(layout) };
    (NonNull::new(block).unwrap_or_else(|| std::alloc::handle_alloc_error(layout)), CellPlace::Heap)
}

fn start<const BYTES: usize>(space: &'static Space<BYTES>) -> NonNull<u8> {
    NonNull::new(space.0.get().cast()).expect("a reference is not null")
}

/// A thread leaves: its stocks go back.
pub(crate) fn flush(context: &ThreadContext) {
    context.nodes[0].empty(&SMALL);
    context.nodes[1].empty(&LARGE);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A step of a size, which holds others and a token that tells whether it has ended.
    struct Holds<const BYTES: usize> {
        others: Vec<Option<Node>>,
        _token: Arc<()>,
        _bytes: [u8; BYTES],
    }

    impl<const BYTES: usize> GradStep for Holds<BYTES> {
        fn back(&self, _grad: Proxy, _give: &mut Give<'_>) -> Result<()> {
            Ok(())
        }

        fn operands(&mut self) -> &mut [Option<Node>] {
            &mut self.others
        }
    }

    type Make = fn(&Arc<()>, Vec<Node>) -> Node;

    fn holding<const BYTES: usize>(token: &Arc<()>, others: Vec<Node>) -> Node {
        Node::new(
            1,
            Holds { others: others.into_iter().map(Some).collect(), _token: Arc::clone(token), _bytes: [7; BYTES] },
        )
    }

    /// Ends what waits. Other tests may be at some of it, and put it back.
    fn end_all(left: impl Fn() -> usize) {
        let start = std::time::Instant::now();
        while left() > 0 {
            work::all(end_waiting);
            assert!(start.elapsed().as_secs() < 60, "{} steps are left", left());
            std::thread::yield_now();
        }
    }

    #[test]
    fn steps_of_every_size_end_with_their_last_reference_and_not_before() {
        let token = Arc::new(());
        let makes: [Make; 3] = [holding::<8>, holding::<600>, holding::<4000>];
        for (make, place) in makes.into_iter().zip(["small", "large", "heap"]) {
            let inner = make(&token, vec![]);
            let outer = make(&token, vec![inner.clone(), make(&token, vec![])]);
            let lies = match outer.cell().place {
                CellPlace::Small(_) => "small",
                CellPlace::Large(_) => "large",
                CellPlace::Heap => "heap",
            };
            assert_eq!(lies, place);
            assert!(outer.serial() > inner.serial() && outer != inner);
            let again = outer.clone();
            drop(outer);
            assert_eq!(Arc::strong_count(&token), 4);
            drop(again);
            assert_eq!(Arc::strong_count(&token), 2, "the inner one has another reference");
            drop(inner);
            assert_eq!(Arc::strong_count(&token), 1);
        }
    }

    #[test]
    fn a_step_with_two_ways_to_it_ends_once_and_a_cell_is_used_again() {
        let token = Arc::new(());
        let shared = holding::<8>(&token, vec![]);
        let sides = [0, 1].map(|_| holding::<8>(&token, vec![shared.clone()]));
        let top = holding::<8>(&token, sides.to_vec());
        let place = top.cell;
        drop((shared, sides));
        assert_eq!(Arc::strong_count(&token), 5);
        drop(top);
        assert_eq!(Arc::strong_count(&token), 1);
        let mut later: Vec<Node> = (0..4).map(|_| holding::<8>(&token, vec![])).collect();
        assert!(later.iter().any(|node| node.cell.addr() == place.addr()), "the cells that fell free come first");
        later.clear();
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn references_may_be_dropped_on_any_threads_at_once() {
        let token = Arc::new(());
        let rounds = if cfg!(miri) { 5 } else { 300 };
        for _ in 0..rounds {
            // As a call does: else what this thread is the last to drop waits when the work of one call is spent.
            work::begin();
            let inner = holding::<600>(&token, vec![]);
            let node = holding::<8>(&token, vec![inner]);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let node = node.clone();
                    scope.spawn(move || drop((node.clone(), node)));
                }
                drop(node);
            });
            assert_eq!(Arc::strong_count(&token), 1);
        }
    }

    #[test]
    fn what_was_kept_for_a_step_that_was_not_made_is_no_variables() {
        let cycle = CycleId::new(0, u64::MAX);
        let step = || Holds::<8> { others: vec![], _token: Arc::new(()), _bytes: [7; 8] };
        count_saved(4, Some(cycle));
        assert_eq!((Node::new(0, step()).cycle(), Node::new(1, step()).cycle()), (None, None));
        count_saved(4, Some(cycle));
        assert_eq!(Node::new(1, step()).cycle(), Some(cycle));
        [4, 4].into_iter().for_each(discount_saved);
    }

    #[test]
    fn a_chain_ends_without_recursion() {
        let token = Arc::new(());
        let length = if cfg!(miri) { 300 } else { 100_000 };
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let chain = (0..length).fold(holding::<8>(&token, vec![]), |inner, _| holding::<8>(&token, vec![inner]));
        small.spawn(move || drop(chain)).expect("a thread").join().expect("no overflow");
        end_all(|| Arc::strong_count(&token) - 1);
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn a_call_ends_so_many_steps_of_a_chain_and_the_next_one_goes_on() {
        let token = Arc::new(());
        let length = 3 * work::UNITS as usize;
        let left = || Arc::strong_count(&token) - 1;
        let ends_so_many = || {
            let chain = (1..length).fold(holding::<8>(&token, vec![]), |inner, _| holding::<8>(&token, vec![inner]));
            work::begin();
            drop(chain);
            let first = (left(), is_waiting());
            drop(holding::<8>(&token, vec![]));
            // Nor does it end what comes later.
            let found = (first, left());
            // Other tests may have some that wait too, and end some of these.
            let start = std::time::Instant::now();
            while left() > 0 {
                work::begin();
                end_waiting();
                assert!(start.elapsed().as_secs() < 60, "{} steps are left", left());
                std::thread::yield_now();
            }
            let rest = length - work::UNITS as usize;
            found == ((rest, true), rest + 1)
        };
        assert!((0..20).any(|_| ends_so_many()), "not in one of so many tries, in which no other test came between");
    }
}
