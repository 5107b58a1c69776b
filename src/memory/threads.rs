//! What a thread owns: its hazard record, its lane of the queue, its stocks of free cells; and the table of all
//! records, which closers walk without a lock.
//!
//! A thread registers with its first call and leaves when its thread-locals are destroyed. Everything it
//! holds goes back then: stocks to the slabs, its lane to the common one, its record to the next thread. A call
//! made later still (from another thread-local's destructor) borrows a place in the table for its duration.
//!
//! The table is a snapshot behind an epoch-managed pointer: a closer pins the epoch, walks the records, lets go;
//! a thread that comes or goes publishes a new snapshot and retires the old one.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::{Mutex, Once, PoisonError};

use crossbeam_epoch::{self as epoch, Atomic, Owned};

use crate::base::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::memory::{
    hazard::{Record, heavy, membarrier},
    queue::LANES,
    registry, switch,
    workspace::desk::Desk,
};

/// One thread's part of the table. Lives for ever and is passed from thread to thread.
#[derive(Debug)]
pub(crate) struct Seat {
    /// From 1 on. A thread that gets the seat of one that ended gets what that one alone had used.
    pub(crate) number: u32,
    pub(crate) record: Record,
    /// This seat's lane of the reclaim queue.
    pub(crate) lane: usize,
    pub(crate) counts: Counts,
}

/// Events on one seat. Written by its thread alone, read by anyone: a sum over all seats is exact when the
/// threads rest.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) created: AtomicU64,
    pub(crate) closed: AtomicU64,
    /// Last drops that went into the queue, and what came out of it.
    pub(crate) queued: AtomicU64,
    pub(crate) drained: AtomicU64,
    /// Last drops with the switch off, and how many of them found an end.
    pub(crate) kept: AtomicU64,
    pub(crate) unkept: AtomicU64,
}

/// The counts of threads without a seat: those that only drop.
static LOOSE: Counts = Counts {
    created: AtomicU64::new(0),
    closed: AtomicU64::new(0),
    queued: AtomicU64::new(0),
    drained: AtomicU64::new(0),
    kept: AtomicU64::new(0),
    unkept: AtomicU64::new(0),
};

impl Counts {
    /// Adds to a counter of one's own seat.
    #[inline]
    pub(crate) fn bump(counter: &AtomicU64, by: u64) {
        // Relaxed, and no locked instruction: statistics, with one writer.
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }
}

struct Table {
    /// The seats taken now.
    seats: Atomic<Vec<&'static Seat>>,
    active: AtomicU32,
    /// Seats of threads that ended; the lock also orders coming and going.
    free: Mutex<Vec<&'static Seat>>,
    /// Every seat ever made, for sums.
    all: Mutex<Vec<&'static Seat>>,
}

static TABLE: Table = Table {
    seats: Atomic::null(),
    active: AtomicU32::new(0),
    free: Mutex::new(Vec::new()),
    all: Mutex::new(Vec::new()),
};

fn start_runtime() {
    static START: Once = Once::new();
    START.call_once(|| {
        membarrier::register();
        switch::watch_forks();
    });
}

impl Table {
    fn register(&self) -> &'static Seat {
        start_runtime();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let seat = free.pop().unwrap_or_else(|| {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let lane = 1 + all.len() % (LANES - 1);
            let number = all.len() as u32 + 1;
            let seat: &'static Seat =
                Box::leak(Box::new(Seat { number, record: Record::new(), lane, counts: Counts::default() }));
            all.push(seat);
            seat
        });
        self.publish(|seats| seats.push(seat));
        self.active.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `heavy`: a closer that does not find this seat, or counts one thread, made
        // its change visible to this thread's first state read.
        fence(Ordering::SeqCst);
        seat
    }

    fn leave(&self, seat: &'static Seat) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        self.publish(|seats| seats.retain(|s| !std::ptr::eq(*s, seat)));
        // Release: pairs with the Acquire in `barrier`: who counts one thread less sees its places empty.
        self.active.fetch_sub(1, Ordering::Release);
        free.push(seat);
    }

    /// Replaces the snapshot. Called under the lock of `free`.
    fn publish(&self, change: impl FnOnce(&mut Vec<&'static Seat>)) {
        let guard = epoch::pin();
        let old = self.seats.load(Ordering::Relaxed, &guard);
        // SAFETY: the snapshot is retired only below, under the lock that the caller holds, so `old` is alive.
        #[allow(unsafe_code)]
        let mut seats = unsafe { old.as_ref() }.cloned().unwrap_or_default();
        change(&mut seats);
        // AcqRel: Release pairs with the Acquire in `for_each_seat`; the vector is complete before it is seen.
        let old = self.seats.swap(Owned::new(seats), Ordering::AcqRel, &guard);
        if !old.is_null() {
            // SAFETY: `old` was unlinked by the swap; who loaded it before is pinned.
            #[allow(unsafe_code)]
            unsafe {
                guard.defer_destroy(old);
            }
        }
    }
}

/// Calls `f` with every seat taken now. The caller issued the heavy barrier if it derives anything from a seat
/// that it does not find.
pub(crate) fn for_each_seat(mut f: impl FnMut(&'static Seat)) {
    let guard = epoch::pin();
    // Acquire: pairs with the AcqRel swap in `publish`.
    let seats = TABLE.seats.load(Ordering::Acquire, &guard);
    // SAFETY: the guard keeps the snapshot.
    #[allow(unsafe_code)]
    for seat in unsafe { seats.as_ref() }.into_iter().flatten() {
        f(seat);
    }
}

/// Issues the heavy barrier of the hazard protocol.
pub(crate) fn barrier() {
    // SeqCst: orders the caller's change before the count; pairs with the fence in `register`.
    fence(Ordering::SeqCst);
    // Acquire: pairs with the Release in `leave`.
    heavy(TABLE.active.load(Ordering::Acquire));
}

/// The sum of a counter over every seat there ever was.
pub(crate) fn sum(counter: impl Fn(&Counts) -> &AtomicU64) -> u64 {
    let all = TABLE.all.lock().unwrap_or_else(PoisonError::into_inner);
    let seats = all.iter().map(|seat| counter(&seat.counts).load(Ordering::Relaxed));
    seats.sum::<u64>() + counter(&LOOSE).load(Ordering::Relaxed)
}

/// What the calling thread owns.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) seat: &'static Seat,
    /// Places of the hazard record in use: the first so many.
    pub(crate) used_places: Cell<usize>,
    pub(crate) slots: RefCell<Vec<u32>>,
    pub(crate) storages: RefCell<Vec<u32>>,
    /// Small and large cells of the gradient graph.
    pub(crate) nodes: [RefCell<Vec<u32>>; 2],
    /// Calls since the other lanes were looked at.
    pub(crate) calls: Cell<u32>,
    /// The heads of the lanes when they were looked at last.
    pub(crate) heads: Cell<[u32; LANES]>,
    /// Its workspaces.
    pub(crate) desk: Desk,
}

impl Local {
    #[cold]
    fn new() -> Self {
        Local {
            seat: TABLE.register(),
            used_places: Cell::new(0),
            slots: RefCell::default(),
            storages: RefCell::default(),
            nodes: Default::default(),
            calls: Cell::new(0),
            heads: Cell::new([0; LANES]),
            desk: Desk::default(),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        SEAT.set(None);
        HERE.set(std::ptr::null());
        if switch::forked() {
            return;
        }
        self.desk.close();
        registry::flush(self);
        TABLE.leave(self.seat);
    }
}

thread_local! {
    static LOCAL: OnceCell<Local> = const { OnceCell::new() };
    /// The seat that drops on this thread use. Has no destructor, so that any drop can read it.
    static SEAT: Cell<Option<&'static Seat>> = const { Cell::new(None) };
    /// The value in `LOCAL`, or null before it is made and after it is gone. Has no destructor either.
    static HERE: Cell<*const Local> = const { Cell::new(std::ptr::null()) };
}

/// What the calling thread owns, for the length of a call.
struct Entered {
    here: *const Local,
    /// Of a thread whose own is gone already: borrowed for this call.
    late: Option<Box<Local>>,
}

impl Entered {
    #[inline(always)]
    fn local(&self) -> &Local {
        match &self.late {
            // SAFETY: `HERE` was set by `register` to the value in `LOCAL`, which stays in its place until `Local::drop`
            // sets `HERE` back to null; this thread alone reads its `HERE`, and `with_local` hands on no longer borrow
            // than its own call, inside which no thread-local of this thread is destroyed.
            #[allow(unsafe_code)]
            None => unsafe { &*self.here },
            Some(late) => late,
        }
    }
}

#[inline(always)]
fn enter() -> Entered {
    let here = HERE.with(Cell::get);
    if here.is_null() { register() } else { Entered { here, late: None } }
}

#[cold]
fn register() -> Entered {
    let here = LOCAL.try_with(|local| {
        let local = local.get_or_init(Local::new);
        SEAT.set(Some(local.seat));
        HERE.set(local);
        std::ptr::from_ref(local)
    });
    match here {
        Ok(here) => Entered { here, late: None },
        Err(_) => Entered { here: std::ptr::null(), late: Some(Box::new(Local::new())) },
    }
}

/// Runs `f` with what the calling thread owns, registering it if it is new here.
#[inline]
pub(crate) fn with_local<R>(f: impl FnOnce(&Local) -> R) -> R {
    f(enter().local())
}

/// The lane for a drop on this thread.
#[inline]
pub(crate) fn lane() -> usize {
    SEAT.with(Cell::get).map_or(0, |seat| seat.lane)
}

/// Counts an event of a drop on this thread.
#[inline]
pub(crate) fn count_here(counter: impl Fn(&Counts) -> &AtomicU64) {
    match SEAT.with(Cell::get) {
        Some(seat) => Counts::bump(counter(&seat.counts), 1),
        None => {
            // Relaxed: statistics.
            counter(&LOOSE).fetch_add(1, Ordering::Relaxed);
        }
    }
}
