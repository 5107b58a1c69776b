//! The figures of a device under names that stay, and what parts of a program use of it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::base::{
    order::{sort_by, value_of},
    units::Bytes,
};
use crate::device::Device;
use crate::memory::{
    budget, gc, lines,
    manager::{self, ManagerInfo, NdManager},
    node, reclaim, registry,
    slot::KEPT,
    storage, switch,
    threads::{self, with_context},
    workspace::{block, figures},
};

/// Allocations that failed at first and were tried again, those that ended in an error, and those that were spilled.
static RETRIES: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static SPILLED: AtomicU64 = AtomicU64::new(0);

/// An allocation is tried again.
pub(crate) fn count_retry() {
    // Relaxed: statistics, here and below.
    RETRIES.fetch_add(1, Ordering::Relaxed);
}

/// An allocation ends in an error.
pub(crate) fn count_refused() {
    // Relaxed: as above.
    REFUSED.fetch_add(1, Ordering::Relaxed);
}

/// An allocation was spilled.
pub(crate) fn count_spilled() {
    // Relaxed: as above.
    SPILLED.fetch_add(1, Ordering::Relaxed);
}

/// The most bytes of dead arrays that were found, by the names of devices: no two have the same.
static PEAK_DEAD: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());

/// So many bytes of dead arrays were found on a device. The most that were, since its peaks began anew.
pub(crate) fn note_dead(device: &Device, bytes: u64) -> u64 {
    // The parent's; a lock of it may be held for ever.
    if switch::forked() {
        return 0;
    }
    let (name, mut all) = (device.to_string(), PEAK_DEAD.lock().unwrap_or_else(PoisonError::into_inner));
    if bytes > 0 {
        let peak = value_of(&mut all, name.clone());
        *peak = (*peak).max(bytes);
    }
    all.iter().find(|(of, _)| *of == name).map_or(0, |&(_, peak)| peak)
}

/// Names that PyTorch's users know, and those they stand for.
const ALIASES: [(&str, &str); 23] = [
    ("active.all.allocated", "arrays.created"),
    ("active.all.current", "arrays.current"),
    ("active.all.freed", "arrays.closed"),
    ("active.all.peak", "arrays.peak"),
    ("active_bytes.all.allocated", "bytes.total"),
    ("active_bytes.all.current", "bytes.current"),
    ("active_bytes.all.peak", "bytes.peak"),
    ("allocated_bytes.all.allocated", "bytes.total"),
    ("allocated_bytes.all.current", "bytes.current"),
    ("allocated_bytes.all.peak", "bytes.peak"),
    ("allocation.all.allocated", "arrays.created"),
    ("allocation.all.current", "arrays.current"),
    ("allocation.all.freed", "arrays.closed"),
    ("allocation.all.peak", "arrays.peak"),
    ("num_alloc_retries", "requests.retried"),
    ("num_device_alloc", "pool.misses"),
    ("num_ooms", "requests.refused"),
    ("requested_bytes.all.allocated", "bytes.total"),
    ("requested_bytes.all.current", "bytes.current"),
    ("requested_bytes.all.peak", "bytes.peak"),
    ("reserved_bytes.all.allocated", "bytes.total_reserved"),
    ("reserved_bytes.all.current", "bytes.reserved"),
    ("reserved_bytes.all.peak", "bytes.peak_reserved"),
];

/// Figures of a device, its workspaces and the process, or of a manager, by name. Made by [`stats`] and
/// [`NdManager::stats`](crate::NdManager::stats).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats(Vec<Figure>);

type Figure = (Cow<'static, str>, u64);

impl Stats {
    fn of(some: &[(&'static str, u64)], limits: &[(&'static str, Option<u64>)], mut all: Vec<Figure>) -> Self {
        let limits = limits.iter().filter_map(|&(name, limit)| Some((name, limit?)));
        all.extend(some.iter().copied().chain(limits).map(|(name, value)| (name.into(), value)));
        sort_by(&mut all, Ord::cmp);
        Stats(all)
    }

    /// The figure with a name, or with one of PyTorch's `memory_stats()` where there is the same here:
    /// `allocated_bytes.all.current` is `bytes.current`.
    pub fn get(&self, name: &str) -> Option<u64> {
        let named = |name: &str| self.iter().find(|&(own, _)| own == name).map(|(_, value)| value);
        named(name).or_else(|| named(ALIASES.iter().find(|&&(alias, _)| alias == name)?.1))
    }

    /// All of them, by name.
    ///
    /// ```
    /// # use ndgc::{Device, memory};
    /// let stats = memory::stats(&Device::Cpu);
    /// let pool: Vec<&str> = stats.iter().map(|(name, _)| name).filter(|name| name.starts_with("pool.")).collect();
    /// assert_eq!(pool, ["pool.hits", "pool.misses"]);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> + '_ {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(26);
        self.iter().try_for_each(|(name, value)| {
            let is_size = name.rsplit('.').nth(1) == Some("bytes");
            let size = if is_size { format!(" ({})", Bytes(value)) } else { String::new() };
            // Not by a format, whose width has an end; a workspace's name has none.
            let rest = " ".repeat(width - name.chars().count());
            writeln!(f, "{name}{rest} {value:>16}{size}")
        })
    }
}

/// The figures of a device:
///
/// | name | |
/// |---|---|
/// | `bytes.current`, `.peak`, `.total` | of live storages and blocks of workspaces, as asked for; all that were |
/// | `bytes.used`, `.cached`, `.reserved` | of blocks of the pool that are handed out; kept for reuse; both |
/// | `bytes.peak_used`, `.peak_cached`, `.peak_reserved` | the most that each of them was, which no [`scope`] begins anew |
/// | `bytes.total_used`, `.total_reserved` | of all blocks that were handed out; all that the system or driver gave |
/// | `bytes.limit` | the limit, if there is one |
/// | `bytes.saved`, `.workspaces` | of values that gradients need; of blocks of workspaces |
/// | `bytes.dead`, `.peak_dead` | of arrays that managers keep though nobody has a handle; the most that was found |
/// | `bytes.captured`, `.mapped`, `.pinned` | as in [`MemoryStats`](crate::MemoryStats); `bytes.current` has none of them |
/// | `pool.hits`, `.misses` | requests served from what was kept, and from the system or driver |
/// | `requests.retried`, `.refused`, `.spilled` | of the process: allocations that needed a second try; that failed; that were spilled |
/// | `arrays.current`, `.created`, `.closed`, `.queued`, `.drained`, `.kept` | of the process, as in [`GcStats`](gc::GcStats) |
/// | `arrays.peak`, `.peak_kept` | the most that were alive at once, and that managers kept without a handle, which no scope begins anew; at most 64 off for each thread after the first |
/// | `threads.interrupts` | of the process, as there |
///
/// And of each workspace whose memory is the device's, by its name; those of several threads with one name add up.
/// Files are not counted. A name goes with the last of its workspaces, and begins again at 0:
///
/// | name | |
/// |---|---|
/// | `workspace.NAME.bytes.current`, `.peak`, `.total` | of its blocks, those among them that wait for a reader; at most; of all that it took |
/// | `workspace.NAME.bytes.spilled` | of those of the last that it took beside its block, for what had no room |
/// | `workspace.NAME.cycles.total` | cycles that began |
/// | `workspace.NAME.requests.refused` | requests that its budget refused |
///
/// The names do not change. `bytes.dead` walks all arrays where managers keep dead ones; the others are sums. So
/// `bytes.peak_dead` is the most that anybody found who looked: a call of this, a request that the device refused and
/// whose error is no estimate ([`OutOfMemory::one_of`](crate::OutOfMemory::one_of)), and what a request that found no
/// room, also in a budget, or [`memory::trim`](crate::memory::trim), took back of dead arrays at once, with what other
/// threads freed meanwhile. What came and went between is not in it; no [`scope`] begins it anew. Those of `arrays`,
/// `requests` and `threads`, and `bytes.saved`, are of the whole process, whatever the device.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// let x = Tensor::zeros(1024, DType::F32, &Device::Cpu)?;
/// let stats = memory::stats(&Device::Cpu);
/// assert_eq!(stats.get("bytes.current"), Some(4096));
/// assert_eq!(stats.get("allocated_bytes.all.current"), Some(4096));
/// println!("{stats}");
/// # drop(x);
/// # ndgc::gc::collect();
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn stats(device: &Device) -> Stats {
    let (memory, arrays, [peak, peak_kept]) = (device.memory(), gc::stats(), threads::peaks());
    let workspaces = block::by_workspace(&|_, at| at == device).iter().map(|(_, (_, bytes))| bytes).sum();
    let dead = if arrays.kept == 0 { 0 } else { lines::kept_bytes(device) };
    // Relaxed: statistics.
    let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let all = [
        ("arrays.closed", arrays.closed),
        ("arrays.created", arrays.created),
        ("arrays.current", arrays.live),
        ("arrays.drained", arrays.drained),
        ("arrays.kept", arrays.kept),
        ("arrays.peak", peak),
        ("arrays.peak_kept", peak_kept),
        ("arrays.queued", arrays.queued),
        ("bytes.cached", memory.cached),
        ("bytes.captured", memory.captured),
        ("bytes.current", memory.active),
        ("bytes.dead", dead),
        ("bytes.mapped", memory.mapped),
        ("bytes.peak", memory.peak),
        ("bytes.peak_cached", memory.peak_cached),
        ("bytes.peak_dead", note_dead(device, dead)),
        ("bytes.peak_reserved", memory.peak_reserved),
        ("bytes.peak_used", memory.peak_used),
        ("bytes.pinned", memory.pinned),
        ("bytes.reserved", memory.used + memory.cached),
        ("bytes.saved", node::saved().1),
        ("bytes.total", memory.total),
        ("bytes.total_reserved", memory.total_reserved),
        ("bytes.total_used", memory.total_used),
        ("bytes.used", memory.used),
        ("bytes.workspaces", workspaces),
        ("pool.hits", memory.hits),
        ("pool.misses", memory.misses),
        ("requests.refused", read(&REFUSED)),
        ("requests.retried", read(&RETRIES)),
        ("requests.spilled", read(&SPILLED)),
        ("threads.interrupts", arrays.interrupts),
    ];
    let mut named = Vec::new();
    figures::of_device(device).iter().for_each(|(name, of)| named.extend(of_workspace(name, of)));
    Stats::of(&all, &[("bytes.limit", memory.limit)], named)
}

/// The figures of a workspace under their names.
fn of_workspace(name: &str, of: &figures::Figures) -> [Figure; 6] {
    [
        ("bytes.current", of.bytes),
        ("bytes.peak", of.peak),
        ("bytes.total", of.total),
        ("bytes.spilled", of.spilled),
        ("cycles.total", of.cycles),
        ("requests.refused", of.refused),
    ]
    .map(|(figure, value)| (format!("workspace.{name}.{figure}").into(), value))
}

/// # Statistics: its figures
impl NdManager {
    /// The figures of this manager with those below it, by names that do not change:
    ///
    /// | name | |
    /// |---|---|
    /// | `arrays.current`, `.dead` | arrays; those of them that nobody has a handle of |
    /// | `bytes.current`, `.dead` | of their storages, each once: those below it add up to these |
    /// | `managers.current` | open managers, itself among them |
    ///
    /// With a budget of its own, which may be without limits (`set_budget(Budget::new())`), also what that counted
    /// since it was set, as in [`BudgetUse`](crate::BudgetUse):
    ///
    /// | name | |
    /// |---|---|
    /// | `arrays.peak`, `.total`, `bytes.charged`, `.peak`, `.total` | charged now, at most, and in all |
    /// | `bytes.held` | kept free by reservations |
    /// | `arrays.limit`, `.soft`, `bytes.limit`, `.soft` | its limits, those that there are |
    /// | `requests.refused`, `.soft` | requests that it refused; that passed a soft limit |
    ///
    /// Walks its arrays. What is dead and queued is closed before. Nothing in a forked child.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, NdManager};
    /// let epoch = NdManager::new_base_manager(&Device::Cpu)?;
    /// epoch.set_budget(Budget::new())?;
    /// for _ in 0..3 {
    ///     epoch.new_sub_manager()?.zeros(1024, DType::F32)?; // ends with its manager
    /// }
    /// let stats = epoch.stats();
    /// assert_eq!((stats.get("bytes.current"), stats.get("bytes.peak")), (Some(0), Some(4096)));
    /// assert_eq!(stats.get("bytes.total"), Some(12288));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        if switch::check("NdManager::stats").is_err() {
            return Stats(Vec::new());
        }
        with_context(reclaim::drain_all);
        let (mut held, mut storages, managers) = (HeldFigures::default(), HashSet::new(), self.subtree());
        managers.iter().for_each(|manager| held.add(manager, &mut storages));
        let own = [
            ("arrays.current", held.arrays),
            ("arrays.dead", held.dead),
            ("bytes.current", held.bytes),
            ("bytes.dead", held.dead_bytes),
            ("managers.current", managers.len() as u64),
        ];
        let of_own = |number, is_own: bool| is_own.then(|| (budget::usage(number), budget::limits(number)));
        let Some((used, limits)) = manager::in_budget(self, of_own) else {
            return Stats::of(&own, &[], Vec::new());
        };
        let limits = [
            ("arrays.limit", limits.max_arrays),
            ("arrays.soft", limits.soft_arrays),
            ("bytes.limit", limits.max_bytes),
            ("bytes.soft", limits.soft_bytes),
        ];
        let charged = [
            ("arrays.peak", used.peak_arrays),
            ("arrays.total", used.total_arrays),
            ("bytes.charged", used.bytes),
            ("bytes.held", used.reserved_bytes),
            ("bytes.peak", used.peak_bytes),
            ("bytes.total", used.total_bytes),
            ("requests.refused", used.refused),
            ("requests.soft", used.soft_passed),
        ];
        Stats::of(&[&own[..], &charged].concat(), &limits, Vec::new())
    }
}

/// What managers hold.
#[derive(Debug, Default)]
pub(super) struct HeldFigures {
    pub(super) arrays: u64,
    /// Arrays that nobody has a handle of.
    pub(super) dead: u64,
    pub(super) bytes: u64,
    pub(super) dead_bytes: u64,
}

impl HeldFigures {
    /// Adds a manager's own arrays; of storages those that were not counted before.
    pub(super) fn add(&mut self, manager: &ManagerInfo, storages: &mut HashSet<u32>) {
        manager.for_each_array(|index| {
            let core = &registry::slot(index).core;
            let is_dead = core.state() & KEPT != 0 && core.proxies() == 1;
            let new = registry::storage_of(index).filter(|&id| storages.insert(id));
            let bytes = new.map_or(0, storage::bytes_of);
            self.arrays += 1;
            self.bytes += bytes;
            if is_dead {
                self.dead += 1;
                self.dead_bytes += bytes;
            }
        });
    }
}

/// Of the figures those that only grow; the others are of a moment.
#[cfg(feature = "metrics")]
const COUNTERS: [&str; 14] = [
    "arrays.closed",
    "arrays.created",
    "arrays.drained",
    "bytes.spilled",
    "bytes.total",
    "bytes.total_reserved",
    "bytes.total_used",
    "cycles.total",
    "pool.hits",
    "pool.misses",
    "requests.refused",
    "requests.retried",
    "requests.spilled",
    "threads.interrupts",
];

/// Gives the figures of [`stats`] to the recorder of the crate `metrics` that the program has installed, each as
/// `ndgc.` and its name, with the label `device`: what only grows as counters, the others as gauges. Those of
/// workspaces are `ndgc.workspace.bytes.current` and so on, with the label `workspace` too. Those of the whole process
/// have no label: whatever devices are published, they are there once. Call it as often as the program's exporter
/// looks. With the feature `metrics`.
///
/// ```
/// # use ndgc::{Device, memory};
/// memory::publish_metrics(&Device::Cpu); // ndgc.bytes.current{device="cpu"}, ndgc.arrays.current, and so on
/// ```
#[cfg(feature = "metrics")]
pub fn publish_metrics(device: &Device) {
    let label = ("device", device.to_string());
    for (name, value) in stats(device).iter() {
        let (figure, key, labels) = match split(name) {
            Some((workspace, figure)) => {
                let labels = vec![label.clone(), ("workspace", workspace.to_owned())];
                (figure, format!("ndgc.workspace.{figure}"), labels)
            }
            None if is_of_process(name) => (name, format!("ndgc.{name}"), Vec::new()),
            None => (name, format!("ndgc.{name}"), vec![label.clone()]),
        };
        match COUNTERS.contains(&figure) {
            true => metrics::counter!(key, &labels).absolute(value),
            false => metrics::gauge!(key, &labels).set(value as f64),
        }
    }
}

/// Whether a figure is the same whatever the device.
#[cfg(feature = "metrics")]
fn is_of_process(name: &str) -> bool {
    name == "bytes.saved" || ["arrays.", "requests.", "threads."].iter().any(|group| name.starts_with(group))
}

/// The workspace of a figure, and the figure.
#[cfg(feature = "metrics")]
fn split(name: &str) -> Option<(&str, &str)> {
    let named = name.strip_prefix("workspace.")?;
    let (workspace, _) = named.rsplit_once('.')?.0.rsplit_once('.')?;
    Some((workspace, &named[workspace.len() + 1..]))
}

/// What the runs of a part of a program did with the memory of a device. Other threads' doings meanwhile are in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scope {
    /// Its name, after those of the parts that it is in: `epoch/eval`.
    pub path: String,
    /// Runs.
    pub runs: u64,
    /// Their time together.
    pub time: Duration,
    /// Arrays made.
    pub created: u64,
    /// The most bytes above those at the begin of a run.
    pub peak_bytes: u64,
    /// Bytes alive more at the ends of the runs than at their begins, or less.
    pub left_bytes: i64,
    /// Arrays alive more, or less.
    pub left_arrays: i64,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scope { path, runs, time, created, peak_bytes, left_bytes, left_arrays } = self;
        write!(
            f,
            "{path}: {runs} runs in {time:.1?}, {created} arrays made, peak {}, left {left_arrays} arrays and {left_bytes} B",
            Bytes(*peak_bytes)
        )
    }
}

/// By path.
static SCOPES: Mutex<Vec<(String, Scope)>> = Mutex::new(Vec::new());

thread_local! {
    static PATH: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// A scope that goes on. The peak of its device begins with it.
struct Begun {
    number: u64,
    device: Device,
    /// The peak of what was before: since the scope of the device before this one here began.
    before: u64,
    /// The most bytes that were active in it until the peak was reset last.
    peak: u64,
}

/// Those of all threads, in the order of their begins.
static BEGUN: Mutex<Vec<Begun>> = Mutex::new(Vec::new());

/// Begins a scope: its number, and the bytes that are active.
fn begin(device: &Device) -> (u64, u64) {
    if switch::forked() {
        return (0, 0);
    }
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    let number = begun.last().map_or(0, |last| last.number + 1);
    let memory = device.memory();
    // The others go on: no part is told of them.
    device.restart_peak(false);
    begun.push(Begun { number, device: device.clone(), before: memory.peak, peak: 0 });
    (number, memory.active)
}

/// Ends a scope: the peak since its begin, and the bytes that are active.
fn end(device: &Device, number: u64) -> (u64, u64) {
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = device.memory();
    let Some(at) = begun.iter().position(|scope| scope.number == number) else { return (memory.peak, memory.active) };
    let own = begun.remove(at);
    let (mut peak, mut is_last) = (memory.peak.max(own.peak), true);
    // Those of other threads that began later have what was before them; the first of them has the rest from now on.
    for later in begun[at..].iter_mut().filter(|later| later.device == own.device) {
        peak = peak.max(later.before);
        if std::mem::take(&mut is_last) {
            later.before = later.before.max(own.before);
        }
    }
    if is_last {
        device.raise_peak(own.before);
    }
    (peak, memory.active)
}

/// # Memory: its peaks
impl Device {
    /// Takes the peaks as of now: of bytes that are live, used, cached and reserved, and of the arrays of the process;
    /// that of dead bytes begins with what is found next. A [`scope`] that goes on keeps what it had.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// Tensor::zeros(1 << 20, DType::U8, &Device::Cpu)?.close();
    /// assert!(Device::Cpu.memory().peak >= 1 << 20);
    /// Device::Cpu.reset_peak();
    /// assert!(Device::Cpu.memory().peak < 1 << 20);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn reset_peak(&self) {
        if switch::forked() {
            return;
        }
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peak = self.memory().peak;
        for scope in begun.iter_mut().rev().filter(|scope| scope.device == *self) {
            scope.peak = scope.peak.max(peak);
            // Before it began it was in those around it, and nobody's peak from now on.
            peak = peak.max(std::mem::take(&mut scope.before));
        }
        self.restart_peak(true);
        threads::restart_peaks();
        let name = self.to_string();
        PEAK_DEAD.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| *of != name);
    }
}

/// Where a scope began; its end, also by a panic, is counted.
struct OpenScope<'d> {
    name: &'d str,
    device: &'d Device,
    number: u64,
    start: Instant,
    parent: usize,
    active: u64,
    arrays: gc::GcStats,
}

/// Runs `f` and adds to the scope of this name what it did with the memory of a device. Scopes within it have a path.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, memory};
/// # memory::clear_scopes();
/// memory::scope("epoch", &Device::Cpu, || {
///     memory::scope("eval", &Device::Cpu, || drop(Tensor::zeros(1024, DType::F32, &Device::Cpu)));
/// });
/// let scopes = memory::scopes();
/// assert_eq!((scopes[1].path.as_str(), scopes[1].created, scopes[1].peak_bytes), ("epoch/eval", 1, 4096));
/// ```
pub fn scope<R>(name: &str, device: &Device, f: impl FnOnce() -> R) -> R {
    // Among the last destructors of a thread there is no path any more: it stands alone.
    let parent = PATH.try_with(|path| {
        let mut path = path.borrow_mut();
        let parent = path.len();
        if parent > 0 {
            path.push('/');
        }
        path.push_str(name);
        parent
    });
    let parent = parent.unwrap_or(0);
    let (number, active) = begin(device);
    let _open = OpenScope { name, device, number, start: Instant::now(), parent, active, arrays: gc::stats() };
    f()
}

impl Drop for OpenScope<'_> {
    fn drop(&mut self) {
        let leave = || {
            let left = PATH.try_with(|path| {
                let mut path = path.borrow_mut();
                let own = path.clone();
                path.truncate(self.parent);
                own
            });
            left.unwrap_or_else(|_| self.name.to_owned())
        };
        if switch::forked() {
            leave();
            return;
        }
        let time = self.start.elapsed();
        gc::collect();
        let ((peak, active), arrays, path) = (end(self.device, self.number), gc::stats(), leave());
        let mut all = SCOPES.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = value_of(&mut all, path.clone());
        scope.path = path;
        scope.runs += 1;
        scope.time += time;
        scope.created += arrays.created - self.arrays.created;
        scope.peak_bytes = scope.peak_bytes.max(peak.saturating_sub(self.active));
        scope.left_bytes += active as i64 - self.active as i64;
        scope.left_arrays += arrays.live as i64 - self.arrays.live as i64;
    }
}

/// The scopes so far, by path. None in a forked child.
pub fn scopes() -> Vec<Scope> {
    if switch::forked() {
        return Vec::new();
    }
    SCOPES.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, scope)| scope.clone()).collect()
}

/// Forgets the scopes so far.
pub fn clear_scopes() {
    if switch::forked() {
        return;
    }
    SCOPES.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
