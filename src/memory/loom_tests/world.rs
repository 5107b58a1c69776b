//! One slot with its metadata, its owner, two threads' hazard records and the queue, with the sequences of
//! `registry.rs`.

use std::sync::atomic::AtomicUsize as Tally;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::sync::{AtomicU32, Ordering, UnsafeCell, wait_turn};
use crate::memory::{
    hazard::{Hazards, announced, heavy},
    queue::{LANES, Queue},
    slot::{BUSY, CLOSED, CLOSING, KEPT, OPEN, SHARED, Shown, Slot, TURNED, generation_of},
};

/// As in `registry/slots.rs` and `owner.rs`.
const NOBODY: u32 = 0;
const HANDLES: u32 = u32::MAX;

/// A step that is left out, to see a model fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// `announce` trusts its announcement and does not look at the state.
    NoCheckAfterAnnouncing,
    /// `close_taken` and `finish_if_free` scan without the barrier.
    NoHeavyBarrier,
    /// `release` does not look at the state again.
    NoCheckAfterLettingGo,
    /// The last drop recycles the slot, before a drain took it from the queue.
    RecycleBeforeDrain,
    /// `finish_if_unannounced` does not look at the records.
    NoScan,
    /// `exchange` does not take the array from its owner.
    ExchangeWithoutOwner,
    /// A reader that did not make the array does not say that it reads.
    NoShare,
    /// A reader goes on when it said so, without another look at the state.
    NoLookAfterSharing,
    /// A closer that made the array does not ask whether others use it.
    CloserDoesNotAsk,
    /// A closer that made the array closes it from whatever state it has by then.
    CloseFromALaterState,
    /// Who did not make an array takes it from its handles without a word in its state.
    TakerDoesNotSay,
    /// A writer that found a reader says that the bytes are its own.
    AloneThoughRead,
    /// A writer of bytes of all threads does not tell those who read without a look at the storage.
    NoGuard,
    /// It tells them after the barrier.
    LateGuard,
    /// Who finishes a close recycles the slot, though somebody has a handle.
    RecycleUnderAHandle,
    /// Who has a key takes whatever handle it finds, without a look at the generation.
    NoLookAtTheGeneration,
    /// A new array's metadata is written when its slot is open already.
    ShowAfterOpening,
    /// An exchange writes over what is shown, instead of showing something else.
    ExchangeInPlace,
    /// An exchange gives up what the one before it showed, and does not leave it until the slot is recycled.
    ForgetAtTheNextExchange,
}

/// A body; tells when it drops. That nobody reads it then is seen by loom's cell in the slot.
#[derive(Debug)]
pub(super) struct Canary(Arc<Tally>);

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// What is left of metadata that was given up.
const GONE: u32 = 0;
/// Parts of metadata: dtype, layout, device.
const PARTS: usize = 3;
const DEVICE: usize = 2;

/// What an array is like: one number in all parts, so that a mix of two is seen. Each part is a cell for loom, which
/// sees what is read by a reference that was got long before.
#[derive(Debug)]
pub(super) struct MetadataModel([UnsafeCell<u32>; PARTS]);

// SAFETY: the parts are for loom to judge.
#[allow(unsafe_code)]
unsafe impl Sync for MetadataModel {}

impl MetadataModel {
    fn new(number: u32) -> Self {
        MetadataModel(std::array::from_fn(|_| UnsafeCell::new(number)))
    }

    #[allow(unsafe_code)]
    fn read(&self, part: usize) -> u32 {
        // SAFETY: for loom to judge.
        self.0[part].with(|at| unsafe { *at })
    }

    #[allow(unsafe_code)]
    fn write(&self, part: usize, number: u32) {
        // SAFETY: for loom to judge.
        self.0[part].with_mut(|at| unsafe { *at = number });
    }

    fn write_all(&self, number: u32) {
        (0..PARTS).for_each(|part| self.write(part, number));
    }
}

/// The thread that makes arrays, and one that does not.
pub(super) const MAKER: usize = 0;
pub(super) const STRANGER: usize = 1;

/// The registry of one slot.
pub(super) struct World {
    pub(super) slot: Slot<Canary>,
    /// What its array is like: the number of the slot's life, until an exchange has another number shown.
    shown: Shown<MetadataModel>,
    /// What exchanges showed: there until the end of a model, so that who reads it too late finds that it was given up.
    later: Mutex<Vec<Arc<MetadataModel>>>,
    /// Whether who recycles the slot the first time makes its next array at once.
    reuses: bool,
    /// The array's manager, whose list is this word: number 1 in the slot's first life, 2 in the next. Or its handles.
    owner: AtomicU32,
    /// Makes loom look at both orders of a read and a write of the body; it orders nothing.
    touched: AtomicU32,
    records: [Hazards; 2],
    queue: Queue,
    fault: Fault,
    // Not loom's: what they count is for the end, and orders nothing.
    made: Tally,
    dropped: Arc<Tally>,
    recycled: Tally,
    pub(super) taken_over: Tally,
}

impl World {
    /// An open array of a manager, with one handle. The generation is 1.
    pub(super) fn new(fault: Fault, reuses: bool) -> Arc<Self> {
        let world = World {
            slot: Slot::new(),
            shown: Shown::new(MetadataModel::new(GONE)),
            later: Mutex::default(),
            reuses,
            owner: AtomicU32::new(NOBODY),
            touched: AtomicU32::new(0),
            records: [Hazards::new(), Hazards::new()],
            queue: Queue::new(),
            fault,
            made: Tally::new(0),
            dropped: Arc::default(),
            recycled: Tally::new(0),
            taken_over: Tally::new(0),
        };
        world.create();
        Arc::new(world)
    }

    /// `registry::create`, after a slot was found.
    pub(super) fn create(&self) {
        // Of this life; the slot is this thread's alone.
        let show = || self.shown.change(|metadata| metadata.write_all(self.recycled() as u32 + 1));
        if self.fault != Fault::ShowAfterOpening {
            show();
        }
        let generation = self.slot.open(self.canary());
        if self.fault == Fault::ShowAfterOpening {
            show();
        }
        self.owner.store(generation, Ordering::Release);
    }

    fn canary(&self) -> Canary {
        self.made.fetch_add(1, SeqCst);
        Canary(Arc::clone(&self.dropped))
    }

    /// `registry::pin`, and two reads under it. `true` if the array was open.
    pub(super) fn pin(&self, me: usize, generation: u32) -> bool {
        loop {
            self.records[me].announce(0, [0], false);
            let state = self.slot.state();
            let usable = generation_of(state) == generation && state & (OPEN | BUSY) == OPEN;
            if !usable && self.fault != Fault::NoCheckAfterAnnouncing {
                self.release(me, generation);
                return false;
            }
            // `ArraySlot::is_looked_for`.
            let looked_for = state & SHARED != 0 || me == MAKER || self.fault == Fault::NoShare;
            if !looked_for {
                self.slot.share(generation);
            }
            if looked_for || matches!(self.fault, Fault::NoLookAfterSharing | Fault::NoCheckAfterAnnouncing) {
                self.read();
                return true;
            }
            self.release(me, generation);
        }
    }

    /// What an operation does with a pinned array.
    pub(super) fn read(&self) {
        // SAFETY: that this is sound is what the models are for: loom's cell checks it.
        #[allow(unsafe_code)]
        let _canary: &Canary = unsafe { self.slot.body() };
        self.touched.load(Ordering::Relaxed);
    }

    /// `registry::metadata`: what a handle tells of its array. The caller has one, also where a key found it or the
    /// array is closed.
    pub(super) fn metadata(&self) -> &MetadataModel {
        self.shown.get(self.slot.state())
    }

    /// The number in all parts of metadata, which the caller got by a handle that he still has.
    pub(super) fn number_of(&self, metadata: &MetadataModel) -> u32 {
        let number = metadata.read(0);
        // Others may go on between the parts.
        self.touched.load(Ordering::Relaxed);
        assert_ne!(number, GONE, "what is told is there");
        assert!((1..PARTS).all(|part| metadata.read(part) == number), "what is told is of one array");
        number
    }

    /// As [`World::metadata`], and as [`World::number_of`].
    pub(super) fn look(&self) -> u32 {
        self.number_of(self.metadata())
    }

    /// What an exchange does with the metadata (`MetadataCell::turn`), by one who has a handle; one at a time.
    pub(super) fn turn(&self, number: u32) {
        if self.fault == Fault::ExchangeInPlace {
            self.shown.change(|metadata| metadata.write_all(number));
            return;
        }
        if self.fault == Fault::ForgetAtTheNextExchange {
            self.forget_later();
        }
        // Written, since loom takes what is made with its value for as old as the thread's step before.
        let metadata = Arc::new(MetadataModel::new(GONE));
        metadata.write_all(number);
        self.later.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&metadata));
        self.shown.turn(&metadata);
        self.slot.set(TURNED);
    }

    /// `metadata::forget_later`.
    fn forget_later(&self) {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner).clone();
        later.iter().for_each(|metadata| metadata.write_all(GONE));
    }

    /// `registry::upgrade`: a handle by a key of this generation, if its array is open. The caller gives it back by
    /// `drop_proxy`.
    pub(super) fn find(&self, me: usize, generation: u32) -> bool {
        let Some(found) = self.slot.upgrade() else { return false };
        let is_open = |state: u64| generation_of(state) == generation && state & OPEN != 0;
        let is_right = generation_of(found) == generation && is_open(self.slot.state());
        if !is_right && self.fault != Fault::NoLookAtTheGeneration {
            self.drop_proxy(me);
            return false;
        }
        true
    }

    /// `registry::release`.
    pub(super) fn release(&self, me: usize, generation: u32) {
        self.records[me].withdraw(0, 1);
        let state = self.slot.state();
        if self.fault != Fault::NoCheckAfterLettingGo && state & CLOSING != 0 {
            self.finish_if_unannounced(me, generation, self.is_alone(me, state));
        }
    }

    /// `ArraySlot::is_alone`.
    fn is_alone(&self, me: usize, state: u64) -> bool {
        (state & SHARED == 0 || self.fault == Fault::CloserDoesNotAsk) && me == MAKER
    }

    /// An operation with one operand: `pin`, read, `release`.
    pub(super) fn operation(&self, me: usize) -> bool {
        let open = self.pin(me, 1);
        if open {
            self.read();
            self.release(me, 1);
        }
        open
    }

    fn barrier(&self) {
        if self.fault != Fault::NoHeavyBarrier {
            heavy(2);
        }
    }

    /// `owner::take`.
    fn take(&self, me: usize, generation: u32) -> bool {
        let mut turns = 0;
        loop {
            let state = self.slot.state();
            if state & OPEN == 0 || generation_of(state) != generation {
                return false;
            }
            match self.owner.load(Ordering::Acquire) {
                NOBODY => wait_turn(&mut turns),
                HANDLES if me != MAKER && state & SHARED == 0 && self.fault != Fault::TakerDoesNotSay => {
                    self.slot.share(generation);
                }
                owner if self.take_from(owner) => return true,
                _ => {}
            }
        }
    }

    /// `owner::take_from`, and `take_some` for the only array of a manager.
    fn take_from(&self, manager: u32) -> bool {
        self.owner.compare_exchange(manager, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// `owner::take_orphan`.
    fn take_orphan(&self, generation: u32) -> bool {
        match self.owner.load(Ordering::Acquire) {
            HANDLES => true,
            owner if owner != NOBODY && self.take_from(owner) => true,
            _ => self.take(STRANGER, generation),
        }
    }

    /// `Proxy::detach`, by the only one who knows the array.
    pub(super) fn give_to_handles(&self) {
        self.owner.store(HANDLES, Ordering::Release);
    }

    /// Moves an array from its manager to its handles, as `NdManager::ret` below the system manager does.
    pub(super) fn release_to_handles(&self, me: usize) {
        if self.take(me, 1) {
            self.give_to_handles();
        }
    }

    /// `Proxy::attach`: moves an array from its handles to a manager.
    pub(super) fn attach(&self, me: usize) {
        if self.take(me, 1) {
            self.touched.store(1, Ordering::Relaxed);
            assert!(self.slot.state() & OPEN != 0, "whoever took an array from its owner has it to himself");
            self.owner.store(1, Ordering::Release);
        }
    }

    /// `registry::close`: ends an array by a handle, which the caller keeps.
    pub(super) fn close_by_hand(&self, me: usize) {
        let state = self.slot.state();
        if self.owner.load(Ordering::Acquire) == HANDLES && self.close_at_once(me, state) {
            return;
        }
        if self.take(me, 1) && !self.close_at_once(me, self.slot.state()) {
            self.close_taken(me);
        }
    }

    /// `ending::close_at_once`.
    fn close_at_once(&self, me: usize, state: u64) -> bool {
        if state & OPEN != 0 && self.is_alone(me, state) && !self.records[me].announces(0) {
            let end = |body: &mut Option<Canary>| {
                self.owner.store(NOBODY, Ordering::Release);
                self.touched.store(1, Ordering::Relaxed);
                *body = None;
            };
            // Makes loom look at uses by others before and after this.
            self.touched.store(1, Ordering::Relaxed);
            let state = if self.fault == Fault::CloseFromALaterState { self.slot.state() } else { state };
            return self.slot.close_at_once(state, end);
        }
        false
    }

    /// `manager::close_arrays`: ends the array of a manager. The closer has no handle of it, and did not make it.
    pub(super) fn close(&self, manager: u32) {
        self.close_by(STRANGER, manager);
    }

    /// As [`World::close`], by a thread.
    pub(super) fn close_by(&self, me: usize, manager: u32) {
        if manager != NOBODY && self.take_from(manager) {
            self.close_taken(me);
        }
    }

    /// `registry::close_taken`.
    fn close_taken(&self, me: usize) {
        let before = self.slot.begin_close();
        let generation = generation_of(before);
        if before & KEPT != 0 {
            self.taken_over.fetch_add(1, SeqCst);
            if self.slot.take_last() && self.slot.orphan() {
                self.recycle();
            }
        }
        self.finish_if_unannounced(me, generation, self.is_alone(me, before));
    }

    /// `registry::finish_if_unannounced`, with the barrier before it.
    fn finish_if_unannounced(&self, me: usize, generation: u32, alone: bool) {
        if !alone {
            self.barrier();
        }
        let records = if alone { &self.records[me..=me] } else { &self.records[..] };
        if self.fault != Fault::NoScan && announced(records.iter(), 0) {
            return;
        }
        self.touched.store(1, Ordering::Relaxed);
        if let Some(body) = self.slot.finish(generation) {
            drop(body);
            if self.slot.finished() || self.fault == Fault::RecycleUnderAHandle {
                self.recycle();
            }
        }
    }

    /// `registry::drop_proxy` with the switch on: the last one queues the slot, or recycles it if it is closed.
    pub(super) fn drop_proxy(&self, lane: usize) {
        if !self.slot.drop_proxy() {
            return;
        }
        if self.owner.load(Ordering::Relaxed) == NOBODY && self.slot.state() & CLOSED != 0 {
            self.end_orphan();
            return;
        }
        if self.fault == Fault::RecycleBeforeDrain && self.take(lane, 1) {
            self.recycle();
            self.create();
        }
        self.push(lane);
    }

    /// The end of `registry::drop_proxy`. The common lane has no ring that is used.
    fn push(&self, lane: usize) {
        if lane == 0 || !self.queue.ring(lane).put(0) {
            self.queue.push(lane, 0, &self.slot.link);
        }
    }

    /// `registry::drop_proxy` with the switch off: the last one leaves its count with the manager.
    pub(super) fn drop_proxy_kept(&self, lane: usize) {
        if self.slot.drop_proxy() && self.slot.keep() & OPEN == 0 {
            self.push(lane);
        }
    }

    /// `reclaim::drain_all`, for a queue of one slot at most.
    pub(super) fn drain(&self) {
        for lane in 0..LANES {
            while self.queue.take_one(lane).is_some() {
                self.end_orphan();
            }
            let first = self.queue.take(lane);
            if first != 0 {
                assert_eq!((first, self.slot.link.load(Ordering::Relaxed)), (1, 0), "queued once");
                self.end_orphan();
            }
        }
    }

    /// `registry::end_orphan`.
    pub(super) fn end_orphan(&self) {
        if !self.slot.take_last() {
            return;
        }
        let state = self.slot.state();
        if state & CLOSED == 0 && self.take_orphan(generation_of(state)) || self.slot.orphan() {
            self.recycle();
        }
    }

    /// `registry::take_over`. `false` if there is another handle.
    pub(super) fn take_over(&self) -> bool {
        if !self.slot.take_only() {
            return false;
        }
        if self.take_orphan(1) || self.slot.orphan() {
            self.recycle();
        }
        true
    }

    /// `registry::vacate`; and what the thread that has the slot then does with it sooner or later.
    fn recycle(&self) {
        self.touched.store(1, Ordering::Relaxed);
        // `MetadataCell::hide`; what else is shown the next array's is written over.
        self.forget_later();
        self.shown.change(|metadata| metadata.write(DEVICE, GONE));
        self.slot.recycle(|body| *body = None);
        let before = self.recycled.fetch_add(1, SeqCst);
        if self.reuses && before == 0 {
            self.create();
        }
    }

    /// How often the slot was recycled so far.
    pub(super) fn recycled(&self) -> usize {
        self.recycled.load(SeqCst)
    }

    /// Drains and closes what is left, and asks for the books to agree: each body dropped once, the slot
    /// recycled `lives` times.
    pub(super) fn settle(&self, lives: usize) {
        self.drain();
        if self.slot.state() & OPEN != 0 {
            self.close(self.owner.load(Ordering::Acquire));
        }
        self.drain();
        assert_eq!(self.dropped.load(SeqCst), self.made.load(SeqCst), "each body is dropped once");
        assert_eq!(self.recycled(), lives, "each life ends with one recycling");
    }

    /// As [`World::settle`], for as many lives as were begun.
    pub(super) fn settle_all(&self) {
        self.settle(self.made.load(SeqCst));
    }

    /// `registry::exchange`, which gives up where that one waits.
    pub(super) fn exchange(&self) {
        if self.slot.state() & OPEN == 0 || self.slot.set(BUSY) & BUSY != 0 {
            return;
        }
        self.barrier();
        let owned = self.fault != Fault::ExchangeWithoutOwner;
        if !announced(self.records.iter(), 0) && (!owned || self.take(STRANGER, 1)) {
            self.touched.store(1, Ordering::Relaxed);
            // SAFETY: as in `read`.
            #[allow(unsafe_code)]
            drop(unsafe { self.slot.replace(self.canary()) });
            if owned {
                // `owner::put`.
                self.owner.store(1, Ordering::Release);
            }
        }
        self.slot.clear(BUSY);
    }
}

/// A model: a world, what happens before the threads start, and the threads.
pub(super) struct Model {
    fault: Fault,
    reuses: bool,
    handles: u32,
    before: fn(&World),
    others: Vec<fn(&World)>,
}

impl Model {
    /// An open array with so many handles.
    pub(super) fn handles(handles: u32) -> Self {
        Model { fault: Fault::None, reuses: false, handles, before: |_| (), others: Vec::new() }
    }

    /// Whoever recycles the slot makes its next array at once, with one handle, which the end of the model drops.
    pub(super) fn reusing(self) -> Self {
        Model { reuses: true, ..self }
    }

    pub(super) fn fault(self, fault: Fault) -> Self {
        Model { fault, ..self }
    }

    pub(super) fn before(self, before: fn(&World)) -> Self {
        Model { before, ..self }
    }

    /// One more thread.
    pub(super) fn beside(mut self, other: fn(&World)) -> Self {
        self.others.push(other);
        self
    }

    /// Explores it; `first` runs on the thread that is there anyway, `end` when all are done.
    pub(super) fn run(self, first: fn(&World), end: fn(&World)) {
        loom::model(move || {
            let world = World::new(self.fault, self.reuses);
            (1..self.handles).for_each(|_| world.slot.add_proxy());
            (self.before)(&world);
            let threads: Vec<_> = self
                .others
                .iter()
                .map(|&other| {
                    let world = Arc::clone(&world);
                    loom::thread::spawn(move || other(&world))
                })
                .collect();
            first(&world);
            threads.into_iter().for_each(|thread| thread.join().expect("no model thread panics"));
            end(&world);
        });
    }
}
