//! What happens to memory, noted as it happens: a ring of records of fixed size for each thread, off at first.
//!
//! What is noted of bytes is noted of storages: made for an array of a line and of a manager, and free. Each thread
//! writes into its own ring, whose lock nobody else takes but who reads it; a full ring forgets what is oldest. A
//! storage that was noted says so itself, so that its end is noted too whatever the mode is by then.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};

use uuid::Uuid;

use crate::base::{env, error::Site, say::say, sync::SpinLock, system};
use crate::device::Device;

/// How much of what happens to memory is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceMode {
    /// Nothing.
    Off,
    /// One in 64 storages, and all events of other kinds.
    Sampled,
    /// Everything.
    Full,
}

/// Storages of which one is noted when sampled.
pub(crate) const SAMPLE: u32 = 64;
/// Bytes of a thread's ring, unless the program wants others.
const RING_BYTES: usize = 8 << 20;
/// Rings that those of threads which ended may fill.
const ENDED: usize = 8;

static MODE: AtomicU32 = AtomicU32::new(0);
/// The mode in which was noted last.
static NOTED: AtomicU32 = AtomicU32::new(0);
static RING: AtomicUsize = AtomicUsize::new(RING_BYTES);
static START: LazyLock<u64> = LazyLock::new(system::nanos);
static RINGS: Mutex<Rings> = Mutex::new(Rings { all: Vec::new(), lost: 0, cut: 0 });
/// Names that were given to managers which are closed, by key.
static MANAGERS: LazyLock<Mutex<HashMap<u64, String>>> = LazyLock::new(Mutex::default);
/// Names that are kept at most: a program may name each of its managers.
const NAMES_MAX: usize = 1 << 14;
/// Names of workspaces that had blocks, by the number that records have of them; and of devices other than the host,
/// from 1 on.
static WORKSPACES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static DEVICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A storage was made for an array: `of` is the key of its manager, or 0.
    Made,
    /// A storage is free.
    Freed,
    /// A block of a workspace was made, and freed: `of` is the number of its name.
    BlockMade,
    BlockFreed,
    /// So many bytes went back to the system.
    Trimmed,
    /// A request for so many bytes was refused.
    Refused,
    /// A request for so many bytes got them elsewhere: in a file, or a device's in memory of the host.
    Spilled,
    /// A manager was closed: `of` is its key.
    ManagerClosed,
    /// All that was dead was closed: so many arrays.
    Drained,
    /// A cycle of a workspace ended, which needed so many bytes: `of` is the number of its name, `id` the arrays.
    CycleEnded,
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Nanoseconds, since the trace began where [`each_record`] gives it.
    pub(crate) at: u64,
    /// The number of the storage or block.
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    /// The number of the device, or 0.
    pub(crate) device: u16,
    pub(crate) bytes: u64,
    pub(crate) of: u64,
    pub(crate) site: Option<Site>,
}

/// The rings of all threads, in the order of their first records.
struct Rings {
    all: Vec<Arc<SpinLock<Ring>>>,
    /// Records in rings that were given up, and when the last of them was made.
    lost: u64,
    cut: u64,
}

/// The last records of a thread.
#[derive(Default)]
struct Ring {
    records: VecDeque<Record>,
    /// How many were forgotten: the number of the first one that is there.
    lost: u64,
    /// When the last one came that found no room at all.
    cut: u64,
}

thread_local! {
    static OWN: Arc<SpinLock<Ring>> = {
        let ring = Arc::new(SpinLock::new(Ring::default()));
        let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
        rings.give_up();
        rings.all.push(Arc::clone(&ring));
        ring
    };
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

impl Rings {
    /// Gives up rings of threads that ended, the oldest first, until the others take no more than so many may.
    fn give_up(&mut self) {
        let is_ended = |ring: &Arc<SpinLock<Ring>>| Arc::strong_count(ring) == 1;
        let mut taken: usize = self.all.iter().filter(|&ring| is_ended(ring)).map(|ring| ring.with(Ring::taken)).sum();
        let Rings { all, lost, cut } = self;
        all.retain(|ring| {
            if taken <= ENDED * Ring::most() || !is_ended(ring) {
                return true;
            }
            ring.with(|ring| {
                // One more may have ended meanwhile.
                taken = taken.saturating_sub(ring.taken());
                *lost += ring.lost + ring.records.len() as u64;
                *cut = (*cut).max(ring.records.back().map_or(ring.cut, |last| last.at));
            });
            false
        });
    }
}

impl Ring {
    /// Records that it may hold.
    fn most() -> usize {
        // Relaxed: a setting.
        RING.load(Ordering::Relaxed) / size_of::<Record>()
    }

    /// The memory that it takes, in records: one of few has room for more, and one of none its place.
    fn taken(&mut self) -> usize {
        self.records.capacity().max(1)
    }

    fn push(&mut self, record: Record) {
        let most = Ring::most();
        while self.records.len() >= most {
            self.lost += 1;
            if self.records.pop_front().is_none() {
                // It is forgotten itself.
                (self.cut, self.records) = (record.at, VecDeque::new());
                return;
            }
        }
        if self.records.capacity() > most {
            // It may take less than before.
            self.records.shrink_to(most);
        }
        let len = self.records.len();
        if len == self.records.capacity() {
            // Never more memory than it may take.
            self.records.reserve_exact(len.max(64).min(most - len));
        }
        self.records.push_back(record);
    }
}

/// Takes the mode from `NDGC_TRACE`.
pub(crate) fn init_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mode = match env::var("NDGC_TRACE").as_deref() {
            None | Some("off") => return,
            Some("sampled") => TraceMode::Sampled,
            Some("full") => TraceMode::Full,
            Some(other) => {
                return say(format_args!("NDGC_TRACE={other} is not understood; it may be off, sampled or full"));
            }
        };
        set_trace(mode);
    });
}

/// Sets what is noted from now on; returns the mode before. `NDGC_TRACE=off|sampled|full` sets it at the start.
pub fn set_trace(mode: TraceMode) -> TraceMode {
    LazyLock::force(&START);
    // Relaxed: a setting, here and below.
    if mode != TraceMode::Off {
        NOTED.store(mode as u32, Ordering::Relaxed);
    }
    match MODE.swap(mode as u32, Ordering::Relaxed) {
        0 => TraceMode::Off,
        1 => TraceMode::Sampled,
        _ => TraceMode::Full,
    }
}

/// Sets the bytes that the ring of each thread may take, 8 MiB at first: 40 a record. Those of all threads that ended
/// may take eight times as much together; the oldest go first. Returns the number before.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// assert_eq!(memory::set_trace_bytes(4000), 8 << 20); // the last 100 records of each thread
/// memory::set_trace(memory::TraceMode::Full);
/// for _ in 0..200 {
///     Tensor::zeros(1, DType::F32, &Device::Cpu)?;
/// }
/// # memory::set_trace(memory::TraceMode::Off);
/// assert!(memory::timeline().lost >= 100);
/// # memory::set_trace_bytes(8 << 20);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn set_trace_bytes(bytes: usize) -> usize {
    // Relaxed: a setting.
    RING.swap(bytes, Ordering::Relaxed)
}

/// Whether anything is noted.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // Relaxed: a setting.
    MODE.load(Ordering::Relaxed) != 0
}

/// Whether the next storage is noted.
#[cold]
pub(crate) fn takes_next() -> bool {
    // Relaxed: a setting.
    if MODE.load(Ordering::Relaxed) != TraceMode::Sampled as u32 {
        return is_on();
    }
    COUNT.set(COUNT.get().wrapping_add(1));
    COUNT.get().is_multiple_of(SAMPLE)
}

/// The number of a device in records; 0 for the host.
pub(crate) fn device_number(device: &Device) -> u16 {
    if device.is_cpu() {
        return 0;
    }
    u16::try_from(number_in(&DEVICES, &device.to_string()) + 1).unwrap_or(u16::MAX)
}

/// Notes something, of a device.
#[cold]
pub(crate) fn note(kind: Kind, (id, device): (u32, u16), bytes: u64, of: u64, site: Option<Site>) {
    let at = system::nanos();
    // A thread that ends has no ring any more.
    let _ = OWN.try_with(|ring| {
        let record = Record { at, id, kind, device, bytes, of, site };
        ring.with(|ring| ring.push(record));
    });
}

/// Notes an event of so many bytes of a device.
pub(crate) fn event(kind: Kind, amount: u64, of: &Device) {
    if is_on() {
        note(kind, (0, device_number(of)), amount, 0, None);
    }
    emit(kind, amount, of);
}

/// Notes that so many arrays were closed.
pub(crate) fn note_drained(arrays: u64) {
    if is_on() {
        note(Kind::Drained, (0, 0), arrays, 0, None);
    }
    emit(Kind::Drained, arrays, &"");
}

/// Notes that a manager was closed, with the name that it was given, and its uuid.
pub(crate) fn note_closed(manager: u64, name: Option<String>, uuid: Uuid) {
    match &name {
        Some(name) => emit(Kind::ManagerClosed, 0, name),
        None => emit(Kind::ManagerClosed, 0, &uuid),
    }
    if !is_on() {
        return;
    }
    let mut managers = MANAGERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = name.filter(|_| managers.len() < NAMES_MAX) {
        managers.insert(manager, name);
    }
    drop(managers);
    note(Kind::ManagerClosed, (0, 0), 0, manager, None);
}

/// Tells the program's subscriber, whatever the mode.
#[cfg(feature = "tracing")]
fn emit(kind: Kind, amount: u64, of: &dyn fmt::Display) {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use crate::base::contain::drop_contained;

    const TARGET: &str = "ndgc::memory";
    // The subscriber is the program's, and this the middle of a close or drain: a panic ends here.
    let result = catch_unwind(AssertUnwindSafe(|| match kind {
        Kind::Drained => tracing::debug!(target: TARGET, arrays = amount, "drain"),
        Kind::Trimmed => tracing::debug!(target: TARGET, bytes = amount, device = %of, "trim"),
        Kind::Refused => tracing::warn!(target: TARGET, bytes = amount, device = %of, "refusal"),
        Kind::Spilled => tracing::warn!(target: TARGET, bytes = amount, device = %of, "spill"),
        Kind::ManagerClosed => tracing::debug!(target: TARGET, manager = %of, "close"),
        // Too many for a log: they are the trace's.
        Kind::Made | Kind::Freed | Kind::BlockMade | Kind::BlockFreed | Kind::CycleEnded => {}
    }));
    drop_contained(result);
}

#[cfg(not(feature = "tracing"))]
fn emit(_: Kind, _: u64, _: &dyn fmt::Display) {}

/// Notes that a block of a workspace was made. Whether it did: then its end is to be noted too, whatever the mode.
pub(crate) fn note_block(id: u32, device: &Device, bytes: u64, workspace: &str) -> bool {
    let is_noted = is_on();
    if is_noted {
        note(Kind::BlockMade, (id, device_number(device)), bytes, number_in(&WORKSPACES, workspace) as u64, None);
    }
    is_noted
}

/// Notes that a cycle of a workspace ended.
pub(crate) fn note_cycle(workspace: &str, bytes: u64, arrays: u64) {
    if is_on() {
        let arrays = u32::try_from(arrays).unwrap_or(u32::MAX);
        note(Kind::CycleEnded, (arrays, 0), bytes, number_in(&WORKSPACES, workspace) as u64, None);
    }
}

/// The place of a name in a list of such, which gets it if it has not; beyond [`NAMES_MAX`] all have one.
fn number_in(names: &Mutex<Vec<String>>, wanted: &str) -> usize {
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    names.iter().position(|name| name == wanted).unwrap_or_else(|| {
        match names.len() {
            NAMES_MAX => {}
            now if now + 1 == NAMES_MAX => names.push("others".to_owned()),
            _ => names.push(wanted.to_owned()),
        }
        names.len() - 1
    })
}

/// The name that a closed manager was given.
pub(crate) fn manager_name(key: u64) -> Option<String> {
    MANAGERS.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
}

/// The device that a record has the number of.
pub(crate) fn device_name(number: u16) -> String {
    let names = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    number.checked_sub(1).map_or_else(|| "cpu".to_owned(), |at| names.get(at as usize).cloned().unwrap_or_default())
}

/// The workspace that a record has the number of.
pub(crate) fn workspace_name(number: u64) -> String {
    WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner).get(number as usize).cloned().unwrap_or_default()
}

/// Records of a ring that are copied at once.
const PIECE: usize = 128;

/// A ring that is read from its oldest record on, a piece at a time: whoever notes waits for no more than that.
struct RingReader {
    ring: Arc<SpinLock<Ring>>,
    /// The number of the next record to copy, and of the first one that came too late.
    next: u64,
    end: u64,
    /// As of the ring.
    cut: u64,
    piece: std::vec::IntoIter<Record>,
}

impl RingReader {
    fn new(ring: &Arc<SpinLock<Ring>>) -> RingReader {
        let (next, end, cut) = ring.with(|own| (own.lost, own.lost + own.records.len() as u64, own.cut));
        RingReader { ring: Arc::clone(ring), next, end, cut, piece: Vec::new().into_iter() }
    }

    /// When the next record was made. What was forgotten meanwhile is passed over.
    fn at(&mut self) -> Option<u64> {
        if self.piece.as_slice().is_empty() {
            let mut piece = Vec::with_capacity(PIECE);
            self.next = self.ring.with(|ring| {
                let next = self.next.max(ring.lost);
                let count = PIECE.min(self.end.saturating_sub(next) as usize);
                // Behind the end of a ring that was cleared meanwhile there is nothing.
                piece.extend(ring.records.iter().skip((next - ring.lost) as usize).take(count));
                next + count as u64
            });
            self.piece = piece.into_iter();
        }
        self.piece.as_slice().first().map(|record| record.at)
    }
}

/// Gives each record that there is to `f`, by time. Returns how many were forgotten before, and whether they are one in
/// [`SAMPLE`]. Where one ring has forgotten, what the others have of that time is forgotten too: what ended in it would
/// seem to be alive. Takes the memory of one piece of each ring. In a forked child there are none.
pub(crate) fn each_record(mut f: impl FnMut(&Record)) -> (u64, bool) {
    if system::is_forked_child() {
        return (0, false);
    }
    let rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut readers: Vec<RingReader> = rings.all.iter().map(RingReader::new).collect();
    let (mut lost, mut cut) = (rings.lost, rings.cut);
    drop(rings);
    for reader in readers.iter_mut().filter(|reader| reader.next > 0) {
        lost += reader.next;
        cut = cut.max(reader.at().unwrap_or(0)).max(reader.cut);
    }
    // Each ring is in order, since one thread wrote it.
    let heads = readers.iter_mut().enumerate().filter_map(|(i, reader)| Some(Reverse((reader.at()?, i))));
    let mut heads: BinaryHeap<Reverse<(u64, usize)>> = heads.collect();
    while let Some(Reverse((_, ring))) = heads.pop() {
        // As many as come before those of all others.
        let until = heads.peek().map_or((u64::MAX, usize::MAX), |&Reverse(head)| head);
        while let Some(at) = readers[ring].at() {
            if (at, ring) > until {
                heads.push(Reverse((at, ring)));
                break;
            }
            match readers[ring].piece.next() {
                Some(record) if record.at >= cut => f(&Record { at: record.at.saturating_sub(*START), ..record }),
                Some(_) => lost += 1,
                None => {}
            }
        }
    }
    // Relaxed: a setting.
    (lost, NOTED.load(Ordering::Relaxed) == TraceMode::Sampled as u32)
}

/// Forgets what was noted so far.
pub fn clear_trace() {
    if system::is_forked_child() {
        return;
    }
    let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    // Those of threads that ended.
    rings.all.retain(|ring| Arc::strong_count(ring) > 1);
    (rings.lost, rings.cut) = (0, 0);
    for ring in &rings.all {
        drop(ring.with(std::mem::take));
    }
    MANAGERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring_of(records: u64) -> Arc<SpinLock<Ring>> {
        let ring = Arc::new(SpinLock::new(Ring::default()));
        let record = |at| Record { at, id: 0, kind: Kind::Trimmed, device: 0, bytes: 0, of: 0, site: None };
        ring.with(|own| (0..records).for_each(|at| own.push(record(at))));
        ring
    }

    fn times(reader: &mut RingReader) -> Vec<u64> {
        std::iter::from_fn(|| reader.at().and_then(|_| reader.piece.next())).map(|record| record.at).collect()
    }

    #[test]
    fn a_ring_is_read_in_pieces_from_its_oldest_record() {
        let count = 5 * PIECE as u64 / 2;
        assert_eq!(times(&mut RingReader::new(&ring_of(count))), (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn rings_of_threads_that_ended_are_bounded_together() {
        assert_eq!(size_of::<Record>(), 40, "as the documentation of `set_trace_bytes` says");
        let most = Ring::most() as u64;
        let full: Vec<_> = (0..=ENDED).map(|_| ring_of(most)).collect();
        let mut rings = Rings { all: [vec![ring_of(9)], full].concat(), lost: 0, cut: 0 };
        let running = Arc::clone(&rings.all[0]);
        rings.give_up();
        assert_eq!((rings.all.len(), rings.lost, rings.cut), (ENDED + 1, most, most - 1));
        assert!(Arc::ptr_eq(&rings.all[0], &running), "its thread runs");
        rings.give_up();
        assert_eq!(rings.all.len(), ENDED + 1);
        let capacity = running.with(|ring| ring.records.capacity() * size_of::<Record>());
        assert!(rings.all[1].with(|ring| ring.records.capacity()) as u64 <= most && capacity <= RING_BYTES);
    }

    #[test]
    fn rings_of_few_records_count_as_the_memory_that_they_take() {
        let capacity = |ring: &Arc<SpinLock<Ring>>| ring.with(|ring| ring.records.capacity());
        let (most, one) = (ENDED * Ring::most(), capacity(&ring_of(1)));
        let many = most / one + 10;
        let mut rings = Rings { all: (0..many).map(|_| ring_of(1)).collect(), lost: 0, cut: 0 };
        rings.give_up();
        let taken: usize = rings.all.iter().map(capacity).sum();
        assert!(taken <= most && taken + one > most, "{taken} of {most} records");
        assert_eq!(rings.lost, (many - rings.all.len()) as u64);
        // Those of no record go too, where there may be none.
        assert_eq!(Ring::default().taken(), 1);
    }

    #[test]
    fn a_ring_that_is_cleared_while_it_is_read_ends_there() {
        let ring = ring_of(5 * PIECE as u64);
        let mut reader = RingReader::new(&ring);
        assert_eq!(reader.at(), Some(0));
        drop(ring.with(std::mem::take));
        assert_eq!(times(&mut reader), (0..PIECE as u64).collect::<Vec<_>>(), "what was copied before");
    }
}
