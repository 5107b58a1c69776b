//! Where bytes are looked for when there are none, or when the program asks: what ndgc gives back by itself, what the
//! program's caches give, and the report if all of it did not do.
//!
//! Each step is followed by another try, so that nothing is given up that need not be: dead arrays in the queue; what
//! is kept for reuse (other devices than the host end what runs first); with the switch on, dead arrays that managers
//! keep; then the program's reclaimers, those of the lowest rank first; and where the program allows it, the bytes lie
//! elsewhere: the host's in a file, those of other devices in memory of the host.

use std::cell::Cell;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{
    Arc, Mutex, Once, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use std::time::Instant;

use crate::base::{
    contain::drop_contained,
    env,
    error::{Error, Result},
    out_of_memory::{OutOfMemory, OutOfMemoryClass, RecoveryStep},
    say::say,
    system,
    units::Bytes,
};
use crate::device::{self, Device, host::spill as file, spill};
use crate::memory::{
    budget::{self, Budget, BudgetUse, NoBytes, OverBudget},
    census::{self, Within},
    composed::users,
    gc, lines,
    manager::{self, NdManager},
    owner::Refused,
    reclaim, stats, switch,
    threads::{ThreadContext, with_context},
    trace::{self, Kind},
    workspace::figures,
};

/// What a reclaimer is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pressure {
    /// Bytes that are wanted.
    pub wanted: u64,
    /// The device that has none, or whose manager's or workspace's budget has no room.
    pub device: Device,
    /// The manager whose budget has no room, or is above its soft limit, if it is that; of a workspace `workspace
    /// [NAME]`.
    pub manager: Option<String>,
}

struct RegisteredReclaimer {
    rank: i32,
    serial: u64,
    name: &'static str,
    give: Arc<dyn Fn(&Pressure) + Send + Sync>,
}

impl RegisteredReclaimer {
    fn order(&self) -> (i32, u64) {
        (self.rank, self.serial)
    }
}

/// The number of the next registration.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// By rank, then in the order of registration.
static RECLAIMERS: Mutex<Vec<RegisteredReclaimer>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread looks for bytes: what it allocates meanwhile is refused without a look.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Registers something of the program's that can give memory back, for as long as the guard lives: it is called before
/// an allocation fails, or when a soft budget is passed, on the thread that allocates. Those of a lower `rank` come
/// first, and only as many as are needed, none for a request that is larger than the device or its limit; [`trim`]
/// calls all. What it allocates itself fails at once where there is no memory. A panic ends there. It must not leave
/// the cycle of a workspace that the allocation is for: that fails then, with [`Error::Workspace`].
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use ndgc::{DType, Device, Tensor, memory};
/// let cache: Arc<Mutex<Vec<Tensor>>> = Arc::default();
/// let own = Arc::clone(&cache);
/// let _reclaimer = memory::on_pressure("embeddings", 0, move |_| own.lock().unwrap().clear());
/// cache.lock().unwrap().push(Tensor::zeros(1 << 20, DType::F32, &Device::Cpu)?);
/// # Device::Cpu.set_limit(Some(6 << 20));
/// // With room for 6 MiB:
/// let _fits = Tensor::zeros(1 << 20, DType::F32, &Device::Cpu)?;
/// assert!(cache.lock().unwrap().is_empty());
/// # Device::Cpu.set_limit(None);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[must_use = "it is called until the guard drops, with `let _ = ...` at once; name it, as in `let _cache = ...`"]
pub fn on_pressure(name: &'static str, rank: i32, give: impl Fn(&Pressure) + Send + Sync + 'static) -> Reclaimer {
    // Relaxed: a number that nobody else has.
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    // In a forked child nobody is asked, and somebody may have had the lock when it was forked.
    if switch::forked() {
        return Reclaimer(serial);
    }
    let mut all = RECLAIMERS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = all.partition_point(|other| other.order() < (rank, serial));
    all.insert(at, RegisteredReclaimer { rank, serial, name, give: Arc::new(give) });
    Reclaimer(serial)
}

/// Ends the registration of [`on_pressure`].
#[derive(Debug)]
pub struct Reclaimer(u64);

impl Drop for Reclaimer {
    fn drop(&mut self) {
        // As in `on_pressure`.
        if switch::forked() {
            return;
        }
        let mut all = RECLAIMERS.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().position(|entry| entry.serial == self.0).map(|at| all.remove(at));
        drop(all);
        // The user's, and not under the lock.
        drop_contained(own);
    }
}

/// Runs one of the program's reclaimers.
fn call(give: &(dyn Fn(&Pressure) + Send + Sync), pressure: &Pressure) {
    let ended = catch_unwind(AssertUnwindSafe(|| give(pressure)));
    drop_contained(ended);
}

/// Numbers of the first steps; those after them are the program's reclaimers.
const DRAIN: usize = 0;
const TRIM: usize = 1;
const ORPHANS: usize = 2;

/// Bytes alive and kept for reuse.
fn held(device: &Device) -> (u64, u64) {
    let memory = device.memory();
    (memory.active, memory.cached)
}

/// Steps that were taken, the arrays that they ended with their bytes, and the reclaimer that was called last: others
/// come and go.
#[derive(Default)]
struct RecoverySteps {
    taken: Vec<RecoveryStep>,
    reclaimed: u64,
    reclaimed_bytes: u64,
    called: Option<(i32, u64)>,
    /// Those registered since the first was called, by these themselves perhaps, are not called.
    until: u64,
}

impl RecoverySteps {
    /// Takes a step, whose `f` says how many arrays it ended.
    fn take(&mut self, name: &'static str, device: &Device, f: &mut dyn FnMut() -> u64) {
        let (start, before) = (Instant::now(), held(device));
        // What the program's reclaimers make is theirs, whatever operation this is a step of.
        let closed = users(f);
        let after = held(device);
        if closed > 0 {
            self.reclaimed += closed;
            self.reclaimed_bytes += before.0.saturating_sub(after.0);
        }
        // What left the arrays is kept for reuse; what left both went to the system.
        let freed = before.0.saturating_sub(after.0).max((before.0 + before.1).saturating_sub(after.0 + after.1));
        self.taken.push(RecoveryStep::new(name, freed, start.elapsed().as_micros() as u64));
    }
}

/// Tries once more after each step that may find bytes.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory) after the last one; whatever else `attempt` fails with.
#[cold]
pub(crate) fn recover<T>(
    context: &ThreadContext,
    (op, device, bytes): (&'static str, &Device, usize),
    mut why: NoBytes,
    attempt: &mut dyn FnMut() -> std::result::Result<T, NoBytes>,
) -> Result<T> {
    let mut steps = RecoverySteps::default();
    // Calls within the steps have their own.
    let first = context.first_place.get();
    let outer = LOOKING.replace(true);
    let (mut next, mut begun_again) = (0, false);
    let mut not_there = None;
    let found = loop {
        if outer || why.is_final() {
            break None;
        }
        // What is larger than the device, nothing that is closed makes room for; a budget may be raised.
        let too_big = || matches!(class(device, bytes as u64, &why, &device.memory()), OutOfMemoryClass::TooBig);
        let is_hopeless = !why.is_budget() && too_big();
        if is_hopeless || !step(context, device, &why, (bytes, next), &mut steps) {
            if why.is_budget() || !may_spill(device) {
                break None;
            }
            match elsewhere(device, bytes, attempt, &mut steps) {
                Ok(found) => break Some(found),
                Err(NoBytes::Failed(error)) => not_there = Some(error),
                Err(again) => why = again,
            }
            break None;
        }
        if next == DRAIN && !begun_again {
            stats::count_retry();
        }
        next += 1;
        match attempt() {
            Ok(found) => break Some(found),
            Err(again) => {
                // What a budget and the device have is found in different ways: once more from the first step.
                if why.is_budget() != again.is_budget() && !begun_again {
                    (next, begun_again, steps.called) = (0, true, None);
                }
                why = again;
            }
        }
    };
    LOOKING.set(outer);
    context.first_place.set(first);
    match (found, why) {
        (Some(found), _) => Ok(found),
        (None, NoBytes::Failed(error)) => Err(error),
        (None, why) => {
            let error = exhausted(context, (op, device, bytes), &why, steps);
            Err(match not_there {
                Some(not_there) => error.context(format!("{not_there}, so it was not spilled")),
                None => error,
            })
        }
    }
}

/// Whether bytes of a device may lie elsewhere.
fn may_spill(device: &Device) -> bool {
    if device.is_cpu() { file::is_allowed() } else { spill::has_room() }
}

/// Tries once more, and the bytes may lie elsewhere.
fn elsewhere<T>(
    device: &Device,
    bytes: usize,
    attempt: &mut dyn FnMut() -> std::result::Result<T, NoBytes>,
    steps: &mut RecoverySteps,
) -> std::result::Result<T, NoBytes> {
    let mut found = Err(NoBytes::Exhausted);
    steps.take("spill", device, &mut || {
        found = spill::wanted(&mut *attempt);
        0
    });
    if found.is_ok() {
        stats::count_spilled();
        trace::event(Kind::Spilled, bytes as u64, device);
    }
    found
}

/// Lets the host's arrays that memory has no room for lie in files in this folder, or none any more; returns what was
/// set before. `NDGC_SPILL` sets the folder at first. It is the last step before an allocation fails: each such array,
/// or block of a workspace, has a temporary file of its own, without a name, which is gone with its last handle,
/// whatever ends the process. The system keeps of them in memory what there is room for, so that a step that is a
/// little too large becomes slower and goes on. No limit on the host's bytes counts them
/// ([`MemoryStats::mapped`](crate::MemoryStats::mapped) does); budgets of managers do, and what these refuse is not
/// spilled. A folder that is held in memory, as `/tmp` often is, gives no room.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// memory::set_spill(Some(std::path::Path::new("/var/tmp")))?;
/// # Device::Cpu.set_limit(Some(6 << 20));
/// // With room for 6 MiB:
/// let x = Tensor::ones(1 << 20, DType::F32, &Device::Cpu)?;
/// let y = x.exp()?;
/// assert_eq!((Device::Cpu.memory().active, Device::Cpu.memory().mapped), (4 << 20, 4 << 20));
/// # Device::Cpu.set_limit(None);
/// # memory::set_spill(None)?;
/// # drop(y);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`](crate::Error::File): no file can be made there. [`Error::Forked`](crate::Error::Forked).
pub fn set_spill(folder: Option<&Path>) -> Result<Option<PathBuf>> {
    // As in `on_pressure`.
    if switch::forked() {
        return Err(Error::forked("set_spill"));
    }
    file::set_folder(folder)
}

/// Lets arrays that devices have no room for lie in page-locked memory of the host, so many bytes for all devices
/// together, or none any more; returns what was set before. `NDGC_DEVICE_SPILL` sets it at first, as `2g`, or `25%` of
/// the machine's memory. It is the last step before an allocation fails. Such an array, or block of a workspace, is
/// used like any other, by the same kernels, which reach it over the bus: a step that is a little too large becomes
/// slower and goes on. Its memory goes back when the array has ended and nothing that was submitted uses it any more,
/// and is not kept for reuse. No limit on a device's bytes counts it
/// ([`MemoryStats::pinned`](crate::MemoryStats::pinned) does), but the one on what the process has resident does, and
/// budgets of managers: what these refuse is not spilled. While a section is captured nothing is.
///
/// ```
/// # use ndgc::{DType, Device, SimConfig, Tensor, memory};
/// memory::set_device_spill(Some(64 << 20));
/// let device = Device::sim(SimConfig { memory_bytes: 6 << 20, ..SimConfig::default() });
/// let x = Tensor::ones(1 << 20, DType::F32, &device)?;
/// let y = x.exp()?;
/// assert_eq!((device.memory().active, device.memory().pinned), (4 << 20, 4 << 20));
/// # memory::set_device_spill(None);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn set_device_spill(bytes: Option<u64>) -> Option<u64> {
    // As the setters of a device.
    if switch::forked() { None } else { spill::set_room(bytes) }
}

/// Takes the step with this number. Whether there is one.
fn step(
    context: &ThreadContext,
    device: &Device,
    why: &NoBytes,
    at: (usize, usize),
    steps: &mut RecoverySteps,
) -> bool {
    let (bytes, number) = at;
    // What is kept for reuse is charged to nobody, and others want to use it again.
    let trims = !why.is_budget();
    match number {
        DRAIN => steps.take("drain", device, &mut || reclaim::drain_all(context) as u64),
        TRIM if trims => steps.take("trim", device, &mut || {
            reclaim::trim(device);
            0
        }),
        ORPHANS if switch::reclaiming() => {
            let before = steps.reclaimed_bytes;
            steps.take("collect_orphans", device, &mut || {
                // Those that fell while the switch was off: it is on, so nobody wants them kept.
                let found = gc::collect_orphans() as u64;
                if trims {
                    reclaim::trim(device);
                }
                found
            });
            stats::note_dead(device, steps.reclaimed_bytes - before);
        }
        TRIM | ORPHANS => {}
        _ => return reclaimer(context, (device, why, bytes), steps),
    }
    true
}

/// Calls the program's next reclaimer. Whether there is one.
fn reclaimer(
    context: &ThreadContext,
    (device, why, bytes): (&Device, &NoBytes, usize),
    steps: &mut RecoverySteps,
) -> bool {
    let all = RECLAIMERS.lock().unwrap_or_else(PoisonError::into_inner);
    if steps.called.is_none() {
        // Relaxed: who registered before has let go of the lock since.
        steps.until = SERIAL.load(Ordering::Relaxed);
    }
    let next = all.partition_point(|entry| Some(entry.order()) <= steps.called);
    let Some(entry) = all[next..].iter().find(|entry| entry.serial < steps.until) else { return false };
    let (name, give) = (entry.name, Arc::clone(&entry.give));
    steps.called = Some(entry.order());
    drop(all);
    let manager = match why {
        NoBytes::Budget(refusal) => Some(budget_owner(refusal)),
        NoBytes::Exhausted | NoBytes::Failed(_) => None,
    };
    let pressure = Pressure { wanted: bytes as u64, device: device.clone(), manager };
    steps.take(name, device, &mut || {
        call(&*give, &pressure);
        let found = reclaim::drain_all(context) as u64;
        if matches!(why, NoBytes::Exhausted) {
            reclaim::trim(device);
        }
        found
    });
    // Its registration may have ended meanwhile, and this be the last of it: the user's, as in `Reclaimer`.
    drop_contained(give);
    true
}

/// The soft limit of this budget, or of one above it, was passed: dead arrays are closed, and the program's reclaimers
/// give what they can until it is passed no more, also with so many arrays more.
#[cold]
pub(crate) fn relieve(context: &ThreadContext, device: &Device, bytes: usize, (payer, more): (u32, u64)) {
    if LOOKING.replace(true) {
        return;
    }
    let mut steps = RecoverySteps::default();
    // As in `recover`.
    let first = context.first_place.get();
    steps.take("drain", device, &mut || reclaim::drain_all(context) as u64);
    while let Some(over) = budget::above_soft(payer, more)
        && reclaimer(context, (device, &NoBytes::Budget(over), bytes), &mut steps)
    {}
    LOOKING.set(false);
    context.first_place.set(first);
}

/// How much [`trim`] gives back: each level what those before it do, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Trim {
    /// What is dead and waits to be closed, whatever thread dropped it, as [`gc::collect`] does. Its bytes are kept for
    /// reuse.
    Queue,
    /// What is kept for reuse goes back to the system, as by [`Device::clear_cache`].
    Cache,
    /// All that an allocation takes before it fails: with the switch on also dead arrays that managers keep, then what
    /// the program's reclaimers ([`on_pressure`]) give, which are told that `u64::MAX` bytes are wanted. One of these
    /// that calls `trim` itself calls none of them again.
    All,
}

/// Gives memory of a device back, before there is need: a server between two loads, a program that starts another one.
/// Takes the steps that an allocation takes before it fails, as far as `level` says. Returns the bytes given back, by
/// [`Trim::Queue`] to who asks next, else to the system; 0 in a forked child. What other threads keep for their small
/// arrays comes with their ends.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory::{self, Trim}};
/// # memory::trim(&Device::Cpu, Trim::All);
/// drop(Tensor::zeros(1 << 20, DType::U8, &Device::Cpu)?);
/// assert_eq!(memory::trim(&Device::Cpu, Trim::Queue), 1 << 20); // dead; kept for the next array of the size
/// assert_eq!(Device::Cpu.memory().cached, 1 << 20);
/// assert_eq!(memory::trim(&Device::Cpu, Trim::All), 1 << 20);
/// assert_eq!(Device::Cpu.memory().cached, 0);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn trim(device: &Device, level: Trim) -> u64 {
    if switch::check("memory::trim").is_err() {
        return 0;
    }
    let outer = LOOKING.replace(true);
    let last = match level {
        Trim::Queue => DRAIN,
        Trim::Cache => TRIM,
        Trim::All if outer => ORPHANS,
        Trim::All => usize::MAX,
    };
    let (before, mut steps) = (held(device), RecoverySteps::default());
    let mut take =
        |number| with_context(|context| step(context, device, &NoBytes::Exhausted, (usize::MAX, number), &mut steps));
    let mut number = 0;
    while number <= last && take(number) {
        number += 1;
    }
    LOOKING.set(outer);
    let after = held(device);
    match level {
        Trim::Queue => before.0.saturating_sub(after.0),
        // What left the arrays and is kept all the same, as while a section is captured, was not given back.
        Trim::Cache | Trim::All => (before.0 + before.1).saturating_sub(after.0 + after.1),
    }
}

/// # Memory: what is kept for reuse
impl Device {
    /// Gives the bytes kept for reuse back to the system, those of dropped arrays that wait to be reclaimed among them.
    /// Returns how many; 0 in a forked child. What other threads keep for their small arrays comes with their ends.
    /// [`memory::trim`](trim) gives less or more.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// drop(Tensor::zeros(1 << 20, DType::U8, &Device::Cpu)?); // dead
    /// assert!(Device::Cpu.clear_cache() >= 1 << 20);
    /// assert_eq!(Device::Cpu.memory().cached, 0);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias = "empty_cache")]
    pub fn clear_cache(&self) -> u64 {
        trim(self, Trim::Cache)
    }
}

/// Whose budget refused.
fn budget_owner(refusal: &OverBudget) -> String {
    match refusal.workspace() {
        Some(name) => format!("workspace [{name}]"),
        None => manager::name_of(refusal.manager),
    }
}

/// The error for what a budget refused, where nothing is tried.
#[cold]
pub(crate) fn over_budget(op: &'static str, device: &Device, refusal: OverBudget) -> Error {
    let what = (op, device, refusal.asked as usize);
    with_context(|context| exhausted(context, what, &NoBytes::Budget(refusal), RecoverySteps::default()))
}

fn class(device: &Device, bytes: u64, why: &NoBytes, memory: &crate::device::budget::MemoryStats) -> OutOfMemoryClass {
    let most = memory.limit.or_else(|| device.is_cpu().then(system::physical_bytes).flatten());
    match why {
        NoBytes::Budget(OverBudget { manager: 1.., max, is_arrays: false, .. }) if bytes > *max => {
            OutOfMemoryClass::TooBig
        }
        NoBytes::Budget(refusal) => {
            let OverBudget { used, max, is_arrays, .. } = *refusal;
            OutOfMemoryClass::OverBudget { manager: budget_owner(refusal), used, max, is_arrays }
        }
        _ if most.is_some_and(|most| bytes > most) => OutOfMemoryClass::TooBig,
        _ if memory.limit.is_some_and(|limit| memory.active + bytes > limit) => OutOfMemoryClass::OverLimit,
        _ => match over_physical_limit(device, bytes) {
            Some((resident, max)) => OutOfMemoryClass::OverPhysicalLimit { resident, max },
            None if memory.cached >= bytes => OutOfMemoryClass::Fragmented,
            None => OutOfMemoryClass::Exhausted,
        },
    }
}

/// What the process has resident, or the device has from its driver, and may have, if so many bytes would be more. They
/// come in steps of at most 2 MiB.
fn over_physical_limit(device: &Device, bytes: u64) -> Option<(u64, u64)> {
    let (resident, max) = device.physical()?;
    (resident.saturating_add(bytes.max(2 << 20)) > max).then_some((resident, max))
}

fn exhausted(
    context: &ThreadContext,
    what: (&'static str, &Device, usize),
    why: &NoBytes,
    steps: RecoverySteps,
) -> Error {
    let (op, device, bytes) = what;
    stats::count_refused();
    trace::event(Kind::Refused, bytes as u64, device);
    if let NoBytes::Budget(refusal) = why {
        budget::count_refusal(refusal);
    }
    let memory = device.memory();
    let mut error = OutOfMemory::of(device.to_string(), op, bytes as u64);
    // Of a budget what it counts: the arrays of others are left alone.
    let (managers, workspaces, workspace) = match why {
        NoBytes::Budget(refusal) => {
            (manager::subtree_of(refusal.manager), budget::workspaces_below(refusal.node), refusal.workspace())
        }
        NoBytes::Exhausted | NoBytes::Failed(_) => (Vec::new(), Vec::new(), None),
    };
    let within = match (why, &workspace) {
        (NoBytes::Exhausted | NoBytes::Failed(_), _) => Within::Device,
        (NoBytes::Budget(_), None) => Within::Managers(&managers, &workspaces),
        (NoBytes::Budget(_), Some(name)) => Within::Workspace(name),
    };
    if let Some(name) = &workspace {
        figures::refused(name, device);
    }
    let found = census::take(device, &within, 5);
    error.class = class(device, bytes as u64, why, &memory);
    if let (OutOfMemoryClass::TooBig, NoBytes::Budget(refusal)) = (&error.class, why) {
        error.budget = Some((budget_owner(refusal), refusal.max));
    }
    error.thread = context.number;
    (error.active, error.cached, error.limit) = (memory.active, memory.cached, memory.limit);
    error.largest_free = device.largest_free();
    (error.reclaimed, error.reclaimed_bytes, error.steps) = (steps.reclaimed, steps.reclaimed_bytes, steps.taken);
    (error.one_of, error.kept, error.kept_bytes) = (found.one_of, found.kept, found.kept_bytes);
    error.lines = found.lines.iter().map(|line| (line.site, line.arrays, line.bytes)).collect();
    error.largest = found.holders;
    let error = Error::OutOfMemory(Box::new(error));
    if let Some(folder) = REPORTS.get()
        && let Err(why) = write_report(&folder, device, &error)
    {
        // The error is what matters; a disk that takes no report changes nothing of it.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| say(format_args!("no crash report can be written to {}: {why}", folder.display())));
    }
    error
}

impl NdManager {
    /// The error for what it refused.
    #[cold]
    pub(crate) fn refusal(&self, op: &'static str, refused: Refused) -> Error {
        match refused {
            Refused::Closed => self.closed_error(op),
            Refused::Capped => self.capped_error(op),
            Refused::OverBudget(refusal) => over_budget(op, self.device(), refusal),
        }
    }
}

/// Runs a step that may be run again, and again, at most so many times, while it ends for lack of memory: what it left
/// behind when it failed is dead, and the next run's first request that finds no memory takes it.
///
/// ```
/// # use ndgc::{Budget, DType, Device, NdManager, memory};
/// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
/// tenant.set_budget(Budget::new().max_bytes(1000))?;
/// let mut runs = 0;
/// let x = memory::with_oom_retry(3, || {
///     runs += 1;
///     tenant.zeros(4000 / runs, DType::U8) // a smaller batch each time
/// })?;
/// assert_eq!((runs, x.elem_count()), (4, 1000));
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// The last [`Error::OutOfMemory`](crate::Error::OutOfMemory); any other error of `step` at once.
pub fn with_oom_retry<R>(retries: u32, mut step: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 0..retries {
        match step() {
            Err(error) if is_out_of_memory(&error) => {}
            answer => return answer,
        }
    }
    step()
}

/// Runs `step` on `0..items`, in one piece or, where that ends for lack of memory, in halves of it, and halves of
/// these, down to one item: the step of a training or inference that takes a part of a batch. The results stand in the
/// order of the items. What succeeded is not run again, and a piece is not tried in the size that failed before.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// let batch = Tensor::ones((64, 1024), DType::F32, &Device::Cpu)?;
/// let sums = memory::with_oom_split(64, |rows| batch.narrow(0, rows.start, rows.len())?.exp()?.sum(1))?;
/// let sums = Tensor::cat(&sums, 0)?;
/// assert_eq!(sums.dims(), [64]);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory) of one item; any other error of `step` at once.
pub fn with_oom_split<R>(items: usize, mut step: impl FnMut(std::ops::Range<usize>) -> Result<R>) -> Result<Vec<R>> {
    let (mut results, mut start, mut most) = (Vec::new(), 0, items.max(1));
    while start < items {
        let end = items.min(start.saturating_add(most));
        match step(start..end) {
            Ok(result) => {
                results.push(result);
                start = end;
            }
            Err(error) if end - start > 1 && is_out_of_memory(&error) => {
                most = (end - start).div_ceil(2);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(results)
}

fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory(_) => true,
        Error::Context { inner, .. } | Error::WithBacktrace { inner, .. } | Error::WithPath { inner, .. } => {
            is_out_of_memory(inner)
        }
        _ => false,
    }
}

/// Where reports go.
static REPORTS: env::Folder = env::Folder::new("NDGC_CRASH_REPORT");

/// Reports that a process writes at most: a loop that goes on without memory does not fill a disk.
const REPORTS_MAX: u64 = 16;

/// Writes a report for each [`Error::OutOfMemory`](crate::Error::OutOfMemory) into this folder, or none any more;
/// returns what was set before. `NDGC_CRASH_REPORT` sets the folder at first. A report is one text file,
/// `ndgc-<process>-<number>.txt`, which is never one that is there: the error, versions (ndgc's, and of the CUDA driver
/// and libraries that are open), limits, where bytes may spill to, statistics, budgets and what is charged to them,
/// managers and their arrays, workspaces, and the lines of the source that made what lives. At most 16 of a process.
/// The folder is made with the first one; the first that cannot be written is told of on standard error, with the
/// folder and why.
///
/// ```
/// # use ndgc::{Budget, DType, Device, NdManager, memory};
/// let folder = std::env::temp_dir().join(format!("ndgc-reports-{}", std::process::id()));
/// memory::set_crash_report(Some(&folder));
/// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
/// tenant.set_budget(Budget::new().max_bytes(100))?;
/// assert!(tenant.zeros(1000, DType::U8).is_err());
/// assert_eq!(std::fs::read_dir(&folder)?.count(), 1);
/// # memory::set_crash_report(None);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn set_crash_report(folder: Option<&Path>) -> Option<PathBuf> {
    REPORTS.set(folder)
}

fn write_report(folder: &Path, device: &Device, error: &Error) -> std::io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    // Relaxed: a number that nobody else has.
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    if number >= REPORTS_MAX {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    let mut file = new_report(folder, number)?;
    file.write_all(format!("{error}\n\n{}", crash_report(device)).as_bytes())
}

/// A file with the first free number from this one on: a process before may have had the same one of the system, as the
/// first process of each container has.
fn new_report(folder: &Path, mut number: u64) -> std::io::Result<File> {
    loop {
        let path = folder.join(format!("ndgc-{}-{number}.txt", std::process::id()));
        match File::create_new(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            made => return made,
        }
    }
}

/// What a report of an [`Error::OutOfMemory`](crate::Error::OutOfMemory) has below the error: versions, limits,
/// where bytes may spill to, statistics, lines and budgets of the process, and of a device its managers with their
/// arrays, and its workspaces.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, memory};
/// let model = NdManager::new_base_manager(&Device::Cpu)?;
/// model.set_name("model");
/// let _w = model.zeros(1024, DType::F32)?;
/// let report = memory::crash_report(&Device::Cpu);
/// assert!(report.contains("NDManager(model) resource count: 1, 1 array, 4.00 KiB"), "{report}");
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn crash_report(device: &Device) -> String {
    let memory = device.memory();
    let sized = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
    let mut text = format!(
        "ndgc {}, {} {}, {device}\n{}machine: {}, resident: {}\nswitch: {}\n{}\n{memory:?}\n{:?}\n\nlines:\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        device::libraries(),
        sized(system::physical_bytes()),
        sized(system::resident_bytes()),
        if switch::is_on() { "on" } else { "off" },
        spill_settings(),
        gc::stats(),
    );
    for line in lines::lines() {
        text += &format!("{line}\n");
    }
    text += "\nbudgets:\n";
    text += &budget_lines();
    text += "\nmanagers:\n";
    text + &NdManager::system(device).debug_dump()
}

/// Where bytes may lie that there is no room for: a folder, and bytes of the host that devices have and may have.
fn spill_settings() -> String {
    // As in `on_pressure`.
    if switch::forked() {
        return "spill: unknown".to_owned();
    }
    let folder = file::folder().map_or("off".to_owned(), |folder| folder.display().to_string());
    let (most, taken) = spill::bounds();
    let devices = most.map_or("off".to_owned(), |most| format!("{} of {}", Bytes(taken), Bytes(most)));
    format!("spill: {folder}, of devices: {devices}")
}

/// A line for each budget of the process: those of managers, then those of workspaces.
fn budget_lines() -> String {
    // As in `on_pressure`.
    if switch::forked() {
        return String::new();
    }
    let managers = manager::budgets().into_iter().map(|(of, most, used)| {
        let arrays = format!("{} of {}", used.arrays, limited(most.max_arrays, |arrays| arrays.to_string()));
        budget_line(&of.name(), &most, &used, &arrays)
    });
    let workspaces = budget::workspaces().into_iter().map(|(name, most, used)| {
        // How many its running cycle has, its own thread knows.
        let arrays = format!("{} in a cycle", limited(most.max_arrays, |arrays| arrays.to_string()));
        budget_line(&format!("workspace [{name}]"), &most, &used, &arrays)
    });
    managers.chain(workspaces).collect()
}

fn budget_line(name: &str, most: &Budget, used: &BudgetUse, arrays: &str) -> String {
    let bytes = |limit: Option<u64>| limited(limit, |bytes| Bytes(bytes).to_string());
    let (now, peak, reserved) = (Bytes(used.bytes), Bytes(used.peak_bytes), Bytes(used.reserved_bytes));
    let (max, soft, soft_arrays) =
        (bytes(most.max_bytes), bytes(most.soft_bytes), limited(most.soft_arrays, |arrays| arrays.to_string()));
    let BudgetUse { peak_arrays, refused, .. } = *used;
    format!(
        "{name}: {now} of {max} (soft: {soft}), peak {peak}, reserved {reserved}; arrays: {arrays} (soft: \
         {soft_arrays}), peak {peak_arrays}; refused: {refused}\n"
    )
}

fn limited(limit: Option<u64>, text: impl FnOnce(u64) -> String) -> String {
    limit.map_or_else(|| "no limit".to_owned(), text)
}
