//! Counts of the host's bytes, and the limits on them.
//!
//! `active` counts the bytes asked for. Each thread keeps a difference of at most 64 KiB to itself, so the sum
//! over all threads is exact whenever it is read, and the peak is exact for one thread and at most 64 KiB off
//! for each further one. With a limit set, every request is counted at once; where what the threads keep to themselves
//! may decide, they are asked, and none moves its difference meanwhile.
//!
//! Relaxed throughout: numbers that are summed, compared with a limit and reported; nobody reads other memory by them.
//! A sum for a report that is taken while another thread moves its difference may miss that.
//!
//! # Used and kept
//! Between two calls of the store by one thread what is used and what is kept for reuse changes by the thread's cache
//! alone. So a thread notes the least and the most that waited there, and tells the store before it changes something
//! there: the peaks of both are exact for one thread, and off by no more than what the caches have for several. Whoever
//! asks for the figures has all threads tell.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::base::{env, system, units::parse_limit};
use crate::device::budget::MemoryStats;
use crate::device::host::{
    mapped::mapped_bytes,
    store::{Store, store},
};

/// The difference a thread keeps to itself.
const DELTA_BYTES: i64 = 64 << 10;
const NO_LIMIT: u64 = u64::MAX;
/// One that admits everything but what a test wants refused.
const REFUSING: u64 = NO_LIMIT - 1;

/// Sums over all threads; all statistics, read by nobody for anything but reports and the limit.
struct Totals {
    active: AtomicI64,
    peak: AtomicI64,
    total: AtomicI64,
    limit: AtomicU64,
}

static COUNTS: Totals = Totals {
    active: AtomicI64::new(0),
    peak: AtomicI64::new(0),
    total: AtomicI64::new(0),
    limit: AtomicU64::new(NO_LIMIT),
};

/// The part of the counts that one thread keeps to itself. Written by its thread alone, but for the
/// highest, which [`reset_peak`] sets, and what [`Share::tell`] does. A line of the cache, and what is told, behind it.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Share {
    /// All that was counted for whatever thread had this share.
    total: AtomicI64,
    /// What of it was taken back, or moved to the common count: the difference is this thread's. Two numbers, each
    /// written once for a block that comes and goes, where one would wait for its own last write.
    settled: AtomicI64,
    /// The most that the difference was since it was moved.
    high: AtomicI64,
    /// Bytes of the blocks in the thread's cache, and the least and the most of them since it told the store.
    cached: AtomicI64,
    least: AtomicI64,
    most: AtomicI64,
    /// Blocks that were handed out of the cache, and their bytes.
    hits: AtomicU64,
    hit_bytes: AtomicI64,
    /// What it told the store that its cache has. Under the store's lock.
    told: AtomicI64,
}

static SHARES: Mutex<Vec<&'static Share>> = Mutex::new(Vec::new());
/// The most that all shares may keep to themselves.
static UNSEEN: AtomicI64 = AtomicI64::new(0);
static FREE_SHARES: Mutex<Vec<&'static Share>> = Mutex::new(Vec::new());

impl Share {
    pub(super) fn take() -> &'static Share {
        let free = FREE_SHARES.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| {
            let share: &'static Share = Box::leak(Box::default());
            let mut shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
            shares.push(share);
            UNSEEN.store(shares.len() as i64 * DELTA_BYTES, Ordering::Relaxed);
            share
        })
    }

    /// Adds to one of this thread's own numbers. Relaxed: one writer, and readers only sum.
    #[inline]
    fn add(counter: &AtomicI64, by: i64) -> i64 {
        let now = counter.load(Ordering::Relaxed) + by;
        counter.store(now, Ordering::Relaxed);
        now
    }

    /// A block of the thread's cache was handed out.
    #[inline]
    pub(super) fn hit(&self, size: usize) {
        let now = Share::add(&self.cached, -(size as i64));
        if now < self.least.load(Ordering::Relaxed) {
            self.least.store(now, Ordering::Relaxed);
        }
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Share::add(&self.hit_bytes, size as i64);
    }

    /// A block was put into the thread's cache.
    #[inline]
    pub(super) fn cache(&self, size: usize) {
        let now = Share::add(&self.cached, size as i64);
        if now > self.most.load(Ordering::Relaxed) {
            self.most.store(now, Ordering::Relaxed);
        }
    }

    /// Tells the store what waited in the thread's cache, before something changes there, and that so many bytes of it
    /// go to the store now. If none go, other threads may call it: what its own one notes at that moment may be lost.
    pub(super) fn tell(&self, store: &mut Store, given: usize) {
        let [told, least, most] = [&self.told, &self.least, &self.most].map(|number| number.load(Ordering::Relaxed));
        store.note_use(least - told, most - told);
        if given > 0 {
            Share::add(&self.cached, -(given as i64));
        }
        let now = self.cached.load(Ordering::Relaxed);
        store.waiting += now - told;
        for number in [&self.told, &self.least, &self.most] {
            number.store(now, Ordering::Relaxed);
        }
    }

    /// The thread ends. Under the lock that whoever sums holds: it may end a moment after who waited for it goes on.
    pub(super) fn give_back(&'static self) {
        let shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
        self.move_difference();
        drop(shares);
        FREE_SHARES.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }

    /// The bytes that this thread keeps to itself, or more: what was settled is read first.
    fn active(&self) -> i64 {
        // Acquire: pairs with the Release in `count_settled`.
        let settled = self.settled.load(Ordering::Acquire);
        self.total.load(Ordering::Relaxed) - settled
    }

    /// As [`Share::active`] for whoever sums. Of a thread that goes on meanwhile one number may be from before a change
    /// and the other from after it, and a change is moved at once, so that the common count may have it too.
    fn kept(&self) -> i64 {
        self.active().min(DELTA_BYTES)
    }

    /// The most that this thread kept to itself, for whoever sums.
    fn most_kept(&self) -> i64 {
        self.high.load(Ordering::Relaxed).min(DELTA_BYTES)
    }

    /// Counts bytes in all of which the common count has those that there are.
    fn count_settled(&self, bytes: i64) {
        Share::add(&self.total, bytes);
        // Release: pairs with the Acquire in `active`, which finds them in the total as well.
        self.settled.store(self.settled.load(Ordering::Relaxed) + bytes, Ordering::Release);
    }

    /// Moves the difference to the common count. With a limit under the lock, so that whoever compares finds the bytes
    /// in one of the two.
    #[cold]
    fn settle(&self) {
        let _shares = is_limited().then(|| SHARES.lock().unwrap_or_else(PoisonError::into_inner));
        self.move_difference();
    }

    fn move_difference(&self) {
        let delta = self.active();
        Share::add(&self.settled, delta);
        // First of the two, so that nobody who sums finds the bytes in both.
        let high = self.high.swap(0, Ordering::Relaxed);
        let before = COUNTS.active.fetch_add(delta, Ordering::Relaxed);
        COUNTS.peak.fetch_max(before + high, Ordering::Relaxed);
    }

    /// Counts bytes of a new block.
    #[inline]
    pub(super) fn charge(&self, bytes: usize) {
        let now = Share::add(&self.total, bytes as i64) - self.settled.load(Ordering::Relaxed);
        if now > self.high.load(Ordering::Relaxed) {
            self.high.store(now, Ordering::Relaxed);
            if now > DELTA_BYTES {
                self.settle();
            }
        }
    }
}

/// Takes the limits from the environment.
pub(super) fn read_limits_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(bytes) = limit_of("NDGC_MAX_BYTES") {
            COUNTS.limit.store(bytes, Ordering::Relaxed);
        }
        let physical = first_physical_limit(env::var("NDGC_MAX_PHYSICAL_BYTES").as_deref(), system::group_bytes());
        store(|store| store.physical_max = physical);
    });
}

/// What is said, or what the control group may have: whoever passes that is killed, and told nothing.
fn first_physical_limit(said: Option<&str>, group: Option<u64>) -> Option<u64> {
    said.map_or(group, |text| parse_limit(text, system::physical_bytes()).flatten())
}

/// The bytes that a variable says, if it does.
pub(crate) fn limit_of(name: &str) -> Option<u64> {
    let text = env::var(name)?;
    // What is not understood is refused by whatever call comes first (`switch::check`).
    parse_limit(&text, system::physical_bytes()).flatten()
}

/// A variable with a limit that cannot be understood: its name, what it is, and what it may be.
pub(crate) fn unreadable_limit() -> Option<(&'static str, String, &'static str)> {
    ["NDGC_MAX_BYTES", "NDGC_MAX_PHYSICAL_BYTES", "NDGC_DEVICE_SPILL"].into_iter().find_map(|name| {
        let value = env::var(name).filter(|value| parse_limit(value, system::physical_bytes()).is_none())?;
        Some((name, value, "like 800m, 2g, 50% or none"))
    })
}

/// Whether there is a limit on the bytes asked for.
#[inline]
pub(super) fn is_limited() -> bool {
    COUNTS.limit.load(Ordering::Relaxed) != NO_LIMIT
}

/// A request that may be served.
pub(super) enum Grant<'a> {
    /// There is no limit: it is counted here once it is served.
    Uncounted(&'a Share),
    /// Its bytes are counted, and so many are active with it.
    Counted(Option<&'a Share>, i64),
}

impl Grant<'_> {
    /// It was served.
    pub(super) fn take(self, bytes: usize) {
        match self {
            Grant::Uncounted(share) => share.charge(bytes),
            Grant::Counted(share, active) => {
                if active > COUNTS.peak.load(Ordering::Relaxed) {
                    COUNTS.peak.fetch_max(active, Ordering::Relaxed);
                }
                match share {
                    Some(share) => share.count_settled(bytes as i64),
                    None => {
                        COUNTS.total.fetch_add(bytes as i64, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// It was not.
    pub(super) fn give_back(self, bytes: usize) {
        if let Grant::Counted(..) = self {
            COUNTS.active.fetch_sub(bytes as i64, Ordering::Relaxed);
        }
    }
}

/// Looks at a request before it is served. `None` if the limit forbids it.
#[inline]
pub(super) fn grant(share: Option<&Share>, bytes: usize) -> Option<Grant<'_>> {
    let limit = COUNTS.limit.load(Ordering::Relaxed);
    match share {
        Some(share) if limit == NO_LIMIT => Some(Grant::Uncounted(share)),
        _ => grant_within(limit, share, bytes as i64),
    }
}

/// What a test wants refused: requests until the first refusal, counting that one, 0 for none; whether all after it are
/// refused as well; and how many were.
static REFUSE_IN: AtomicU64 = AtomicU64::new(0);
static REFUSE_ON: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Refuses the n-th request from now on, of any thread, and all after it with `go_on`; 0: none. Returns how many were
/// refused so far. For tests: while it refuses there is a limit, if one that admits everything.
#[cfg(feature = "bench")]
pub(crate) fn refuse(n: u64, go_on: bool) -> u64 {
    REFUSE_ON.store(go_on, Ordering::Relaxed);
    REFUSE_IN.store(n, Ordering::Relaxed);
    let (from, to) = if n > 0 { (NO_LIMIT, REFUSING) } else { (REFUSING, NO_LIMIT) };
    let _ = COUNTS.limit.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    REFUSED.load(Ordering::Relaxed)
}

fn is_refused() -> bool {
    let next = |left: u64| {
        if left == 1 && REFUSE_ON.load(Ordering::Relaxed) { Some(1) } else { left.checked_sub(1) }
    };
    let refused = REFUSE_IN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) == Ok(1);
    REFUSED.fetch_add(u64::from(refused), Ordering::Relaxed);
    refused
}

fn grant_within(limit: u64, share: Option<&Share>, bytes: i64) -> Option<Grant<'_>> {
    if REFUSE_IN.load(Ordering::Relaxed) > 0 && is_refused() {
        return None;
    }
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    grant_beside(most, share, bytes).or_else(|| grant_last(most, share, bytes))
}

/// As [`grant`] of a thread, where there is a limit, if it is so far that other threads need not be asked.
pub(super) fn grant_far(share: &Share, bytes: usize) -> Option<Grant<'_>> {
    // What is refused on purpose is refused once, by `grant_within`.
    let limit = i64::try_from(COUNTS.limit.load(Ordering::Relaxed)).ok()?;
    (REFUSE_IN.load(Ordering::Relaxed) == 0).then(|| grant_beside(limit, Some(share), bytes as i64))?
}

/// Grants what is within the limit whatever the threads keep to themselves.
fn grant_beside(most: i64, share: Option<&Share>, bytes: i64) -> Option<Grant<'_>> {
    // What it kept to itself before there was a limit would be added to what is counted now.
    if let Some(share) = share
        && share.high.load(Ordering::Relaxed) > 0
    {
        share.settle();
    }
    let active = count_within(most.saturating_sub(UNSEEN.load(Ordering::Relaxed)), bytes)?;
    Some(Grant::Counted(share, active + share.map_or(0, Share::active)))
}

/// As [`grant_within`], of bytes that may be the last ones.
#[cold]
fn grant_last(most: i64, share: Option<&Share>, bytes: i64) -> Option<Grant<'_>> {
    let shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(share) = share {
        share.move_difference();
    }
    // Until they are counted below, what the others keep to themselves only becomes less.
    count_within(most.saturating_sub(shares.iter().map(|share| share.kept()).sum()), bytes)
        .map(|active| Grant::Counted(share, active))
}

/// Counts bytes if there are not more than `most` with them: what there is then.
fn count_within(most: i64, bytes: i64) -> Option<i64> {
    let with = |active: i64| active.checked_add(bytes).filter(|&now| now <= most);
    let before = COUNTS.active.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok()?;
    Some(before + bytes)
}

#[inline]
pub(super) fn discharge(share: Option<&Share>, bytes: usize) {
    match share {
        Some(share) => {
            let settled = Share::add(&share.settled, bytes as i64);
            if share.total.load(Ordering::Relaxed) - settled < -DELTA_BYTES {
                share.settle();
            }
        }
        None => {
            COUNTS.active.fetch_sub(bytes as i64, Ordering::Relaxed);
        }
    }
}

fn sum(number: impl Fn(&Share) -> i64) -> i64 {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|share| number(share)).sum()
}

/// Bytes of the largest block that is kept for reuse.
pub(crate) fn largest_free() -> u64 {
    store(|store| store.largest_free())
}

/// Bytes of the host.
pub(crate) fn stats() -> MemoryStats {
    let shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    let common = COUNTS.active.load(Ordering::Relaxed);
    let active = common + shares.iter().map(|share| share.kept()).sum::<i64>();
    drop(shares);
    // Whoever was told so many is told no lower peak.
    COUNTS.peak.fetch_max(active, Ordering::Relaxed);
    let limit = COUNTS.limit.load(Ordering::Relaxed);
    MemoryStats {
        active: active.max(0) as u64,
        peak: COUNTS.peak.load(Ordering::Relaxed).max(common + sum(Share::most_kept)) as u64,
        total: (COUNTS.total.load(Ordering::Relaxed) + sum(|share| share.total.load(Ordering::Relaxed))) as u64,
        mapped: mapped_bytes(),
        limit: (limit < REFUSING).then_some(limit),
        physical_limit: physical_limit(),
        ..store(of_pool)
    }
}

/// A block of the store is about to be taken or given back, by whoever has this share.
pub(super) fn tell(share: Option<&Share>, store: &mut Store) {
    match share {
        Some(share) => share.tell(store, 0),
        None => store.note_use(0, 0),
    }
}

/// What the pool has, and had.
fn of_pool(store: &mut Store) -> MemoryStats {
    let shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    shares.iter().for_each(|share| share.tell(store, 0));
    store.note_use(0, 0);
    let cached = store.kept().max(0) as u64;
    let all = |number: fn(&Share) -> u64| shares.iter().map(|share| number(share)).sum::<u64>();
    MemoryStats {
        used: store.used().max(0) as u64,
        cached,
        peak_used: store.peak_used.max(0) as u64,
        peak_cached: store.peak_kept.max(0) as u64,
        // Of threads that take and give meanwhile more may be found than there is.
        peak_reserved: (store.note_resident() as u64).max(cached),
        total_used: store.total_used + all(|share| share.hit_bytes.load(Ordering::Relaxed) as u64),
        total_reserved: store.total_resident,
        hits: store.hits() + all(|share| share.hits.load(Ordering::Relaxed)),
        misses: store.misses,
        ..MemoryStats::default()
    }
}

/// Takes the peak as of now, and with `reserved` those of what the pool has.
pub(crate) fn reset_peak(reserved: bool) {
    if reserved {
        store(|store| {
            of_pool(store);
            store.restart_peaks();
        });
    }
    let shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    shares.iter().for_each(|share| share.high.store(share.kept(), Ordering::Relaxed));
    drop(shares);
    COUNTS.peak.store(stats().active as i64, Ordering::Relaxed);
}

/// Takes a peak that was before.
pub(crate) fn raise_peak(to: u64) {
    COUNTS.peak.fetch_max(to as i64, Ordering::Relaxed);
}

/// Sets the limit on what the process has resident; what waits here beyond it goes back. Returns the one before.
pub(crate) fn set_physical_limit(bytes: Option<u64>) -> Option<u64> {
    read_limits_once();
    store(|store| {
        let before = std::mem::replace(&mut store.physical_max, bytes);
        store.note_use(0, 0);
        store.physical_admits(0);
        before
    })
}

/// The limit on what the process has resident.
pub(crate) fn physical_limit() -> Option<u64> {
    read_limits_once();
    store(|store| store.physical_max)
}

/// Sets the limit on active bytes; returns the one before.
pub(crate) fn set_limit(bytes: Option<u64>) -> Option<u64> {
    read_limits_once();
    let before = COUNTS.limit.swap(bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    (before != NO_LIMIT).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_limits_resident_memory_unless_something_else_is_said() {
        let group = Some(4 << 30);
        assert_eq!(first_physical_limit(None, group), group);
        assert_eq!(first_physical_limit(None, None), None);
        assert_eq!(first_physical_limit(Some("none"), group), None);
        assert_eq!(first_physical_limit(Some("1g"), group), Some(1 << 30));
    }

    /// Broken by: one number of a share from before a change, and another one from after it.
    #[test]
    fn what_comes_and_goes_while_it_is_summed_is_found_once_at_most() {
        const LARGE: usize = 1 << 31;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let share = Share::take();
                for _ in 0..200_000 {
                    share.charge(LARGE);
                    discharge(Some(share), LARGE);
                }
                share.give_back();
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                let MemoryStats { active, peak, .. } = stats();
                // With room for other tests.
                assert!(active < 3 << 30 && peak < 3 << 30, "{active} bytes, {peak} at most");
                reset_peak(false);
            }
        });
    }
}
