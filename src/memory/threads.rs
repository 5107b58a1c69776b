//! What a thread owns: its hazard record, its lane of the queue, its stocks of free cells; and the table of all
//! records, which closers walk without a lock.
//!
//! A thread registers with its first call and leaves when its thread-locals are destroyed. Everything it
//! holds goes back then: stocks to the slabs, its lane to the common one, its record to the next thread. A call
//! made later still (from another thread-local's destructor) borrows a place in the table for its duration.
//!
//! The table is a snapshot behind an epoch-managed pointer: a closer pins the epoch, walks the records, lets go;
//! a thread that comes or goes publishes a new snapshot and retires the old one.

use std::cell::Cell;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::base::sync::{
    AtomicU32, AtomicU64, Inside, Ordering, Snapshot, ThreadHome, ThreadOwned, ThreadPlace, fence,
};
use crate::memory::{
    allowance::Allowance,
    budget,
    hazard::{Hazards, heavy, membarrier},
    level::{Common, Level},
    queue::{LANES, QUEUE, Ring},
    slab::Stock,
    switch, trace,
    workspace::stack::WorkspaceStack,
};

/// One thread's part of the table. Lives for ever and is passed from thread to thread.
#[derive(Debug)]
pub(crate) struct ThreadRecord {
    /// From 1 on. A thread that gets the thread record of one that ended gets what that one alone had used.
    pub(crate) number: u32,
    pub(crate) hazards: Hazards,
    /// That its thread is inside a manager's list.
    pub(crate) inside: Inside,
    /// Its lane of the reclaim queue, and the ring of that if no other thread record has the lane.
    pub(crate) lane: usize,
    pub(crate) ring: Option<&'static Ring>,
    pub(crate) counts: Counts,
}

/// Events on one thread record. Written by its thread alone, read by anyone: a sum over all thread records is exact
/// when the threads rest.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Arrays that were made, and that were closed.
    pub(crate) live: Level,
    /// Last drops that went into the queue, and what came out of it.
    pub(crate) queued: AtomicU64,
    pub(crate) drained: AtomicU64,
    /// Last drops with the switch off, and those of them that found an end.
    pub(crate) kept: Level,
}

/// The counts of threads without a record: those that only drop. What they keep is common at once.
static LOOSE: Counts = Counts::new();
static LIVE: Common = Common::new();
static KEPT: Common = Common::new();

impl Counts {
    const fn new() -> Self {
        Counts { live: Level::new(), queued: AtomicU64::new(0), drained: AtomicU64::new(0), kept: Level::new() }
    }

    /// An array was made. On the thread of this record, as whatever is counted here.
    #[inline]
    pub(crate) fn count_created(&self) {
        self.live.come(&LIVE);
    }

    /// An array was closed.
    #[inline]
    pub(crate) fn count_closed(&self) {
        self.live.go(&LIVE);
    }

    /// An array that a manager kept without a handle found an end, or a handle.
    pub(crate) fn count_unkept(&self) {
        self.kept.go(&KEPT);
    }

    /// The thread ends.
    fn tell(&self) {
        self.live.tell(&LIVE);
        self.kept.tell(&KEPT);
    }

    /// Adds to a counter of one's own thread record.
    #[inline]
    pub(crate) fn bump(counter: &AtomicU64, by: u64) {
        // Relaxed, and no locked instruction: statistics, with one writer.
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }
}

struct ThreadTable {
    /// The thread records taken now.
    records: Snapshot<Vec<&'static ThreadRecord>>,
    active: AtomicU32,
    /// Thread records of threads that ended; the lock also orders coming and going.
    free: Mutex<Vec<&'static ThreadRecord>>,
    /// Every thread record ever made, for sums.
    all: Mutex<Vec<&'static ThreadRecord>>,
}

static TABLE: ThreadTable = ThreadTable {
    records: Snapshot::none(),
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

impl ThreadTable {
    fn register(&self) -> &'static ThreadRecord {
        start_runtime();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let record = free.pop().unwrap_or_else(|| {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let lane = 1 + all.len() % (LANES - 1);
            let number = all.len() as u32 + 1;
            let record: &'static ThreadRecord = Box::leak(Box::new(ThreadRecord {
                number,
                hazards: Hazards::new(),
                inside: Inside::new(),
                lane,
                ring: (all.len() < LANES - 1).then(|| QUEUE.ring(lane)),
                counts: Counts::new(),
            }));
            all.push(record);
            record
        });
        self.records.change(|records| records.push(record));
        // Relaxed: the fence orders it.
        self.active.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `heavy`: a closer that does not find this thread record, or counts one
        // thread, made its change visible to this thread's first state read.
        fence(Ordering::SeqCst);
        record
    }

    fn leave(&self, record: &'static ThreadRecord) {
        record.counts.tell();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        self.records.change(|records| records.retain(|s| !std::ptr::eq(*s, record)));
        // Release: pairs with the Acquire in `barrier`: who counts one thread less sees its places empty.
        self.active.fetch_sub(1, Ordering::Release);
        free.push(record);
    }
}

/// Calls `f` with every thread record taken now. The caller issued the heavy barrier if it derives anything from a
/// thread record that it does not find.
pub(crate) fn for_each_record(mut f: impl FnMut(&'static ThreadRecord)) {
    TABLE.records.with(|records| records.iter().copied().for_each(&mut f));
}

/// Issues the heavy barrier of the hazard protocol.
pub(crate) fn barrier() {
    // SeqCst: orders the caller's change before the count; pairs with the fence in `register`.
    fence(Ordering::SeqCst);
    // Acquire: pairs with the Release in `leave`.
    heavy(TABLE.active.load(Ordering::Acquire));
}

/// The sum of a counter over every thread record there ever was; 0 in a forked child.
pub(crate) fn sum(counter: impl Fn(&Counts) -> &AtomicU64) -> u64 {
    if switch::forked() {
        return 0;
    }
    let all = TABLE.all.lock().unwrap_or_else(PoisonError::into_inner);
    // Relaxed: statistics, here and below.
    let records = all.iter().map(|record| counter(&record.counts).load(Ordering::Relaxed));
    records.sum::<u64>() + counter(&LOOSE).load(Ordering::Relaxed)
}

/// The most arrays that were alive at once, and that managers kept without a handle; 0 in a forked child.
pub(crate) fn peaks() -> [u64; 2] {
    if switch::forked() {
        return [0; 2];
    }
    let all = TABLE.all.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = all.iter().map(|record| &record.counts);
    [LIVE.peak(counts.clone().map(|counts| &counts.live)), KEPT.peak(counts.map(|counts| &counts.kept))]
}

/// Takes these as of now.
pub(crate) fn restart_peaks() {
    let all = TABLE.all.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = all.iter().map(|record| &record.counts);
    LIVE.restart(counts.clone().map(|counts| &counts.live));
    KEPT.restart(counts.map(|counts| &counts.kept));
}

/// Gives back what a thread that ends has in stock. The registry, which is above, says how before it hands out the
/// first slot; until then nobody has anything that another would want.
static AT_END: OnceLock<fn(&ThreadContext)> = OnceLock::new();

/// Says how a thread that ends gives back what it has.
pub(crate) fn at_end(flush: fn(&ThreadContext)) {
    let _ = AT_END.set(flush);
}

/// What the calling thread owns.
#[derive(Debug)]
pub(crate) struct ThreadContext {
    pub(crate) record: &'static ThreadRecord,
    /// That of the record.
    pub(crate) number: u32,
    /// Places of the hazard record in use: the first so many.
    pub(crate) used_places: Cell<usize>,
    pub(crate) slots: Stock,
    pub(crate) storages: Stock,
    /// Small and large cells of the gradient graph.
    pub(crate) nodes: [Stock; 2],
    /// Calls since the other lanes were looked at.
    pub(crate) calls: Cell<u32>,
    /// Whether it is ending an array that it took out of a ring.
    pub(crate) reaping: Cell<bool>,
    /// The last pushes to the lanes when they were looked at last.
    pub(crate) last_pushes: Cell<[u64; LANES]>,
    /// Its workspaces.
    pub(crate) workspaces: WorkspaceStack,
    /// The place of the first operand of the call, if it has one.
    pub(crate) first_place: Cell<usize>,
    /// What it keeps of a budget.
    allowance: &'static Allowance,
}

impl ThreadContext {
    #[cold]
    fn new() -> Self {
        let record = TABLE.register();
        RECORD.set(Some(record));
        trace::init_once();
        ThreadContext {
            record,
            number: record.number,
            used_places: Cell::new(0),
            slots: Stock::default(),
            storages: Stock::default(),
            nodes: Default::default(),
            calls: Cell::new(0),
            reaping: Cell::new(false),
            last_pushes: Cell::new([0; LANES]),
            workspaces: WorkspaceStack::default(),
            first_place: Cell::new(0),
            allowance: budget::enlist(),
        }
    }
}

impl Drop for ThreadContext {
    fn drop(&mut self) {
        RECORD.set(None);
        if switch::forked() {
            return;
        }
        self.workspaces.close();
        if let Some(flush) = AT_END.get() {
            flush(self);
        }
        budget::leave(self.allowance);
        TABLE.leave(self.record);
    }
}

thread_local! {
    static PLACE: ThreadPlace<ThreadContext> = const { ThreadPlace::new() };
    static HOME: ThreadHome<ThreadContext> = const { ThreadHome::new() };
    /// The thread record that drops on this thread use. Has no destructor, so that any drop can read it.
    static RECORD: Cell<Option<&'static ThreadRecord>> = const { Cell::new(None) };
}

const CONTEXT: ThreadOwned<ThreadContext> = ThreadOwned { place: &PLACE, home: &HOME, make: ThreadContext::new };

/// Runs `f` with what the calling thread owns, registering it if it is new here.
#[inline]
pub(crate) fn with_context<R>(f: impl FnOnce(&ThreadContext) -> R) -> R {
    CONTEXT.with(f)
}

/// Whether this thread registered, and has not left yet: then [`with_context`] takes no lock and allocates nothing. A
/// late call has a part for itself alone, and a call inside it another one.
#[inline]
pub(crate) fn is_here() -> bool {
    CONTEXT.is_here()
}

/// The thread record that this thread has now.
#[inline(always)]
pub(crate) fn record() -> Option<&'static ThreadRecord> {
    RECORD.with(Cell::get)
}

/// Counts a drop on this thread whose array goes into the queue. The thread record, if it has one.
#[inline]
pub(crate) fn count_queued() -> Option<&'static ThreadRecord> {
    let record = record();
    match record {
        Some(record) => Counts::bump(&record.counts.queued, 1),
        None => {
            // Relaxed: statistics.
            LOOSE.queued.fetch_add(1, Ordering::Relaxed);
        }
    }
    record
}

/// Counts a drop on this thread whose array stays with its manager; or, if not, that such an array found a handle, or
/// an end after all.
pub(crate) fn count_kept(stays: bool) {
    match record() {
        Some(record) if stays => record.counts.kept.come(&KEPT),
        Some(record) => record.counts.kept.go(&KEPT),
        None => {
            let counter = if stays { &LOOSE.kept.came } else { &LOOSE.kept.went };
            // Relaxed: statistics.
            counter.fetch_add(1, Ordering::Relaxed);
            KEPT.add(if stays { 1 } else { -1 }, i64::from(stays));
        }
    }
}
