//! Planned placement: which requests of a cycle may share bytes, learned from cycles that ran.
//!
//! A cycle is a list of requests, and of each it is noted how many others came before its array ended. Two whose times
//! do not overlap may have the same bytes: a plan places them so (greedy by size over lifetimes, as the planners of
//! static graphs do, arXiv 2001.03288; and again, with what ended highest placed first). The next cycle follows the
//! plan request by request. A plan is a guess, and nothing rests on it: before bytes are handed out again, who had
//! them last in this cycle must have ended. Whoever had them before that one had ended when it got them, so that is
//! all there is to ask. Invariant I15 (design.md).
//!
//! A request that is larger than planned, comes after the last planned one, or finds its bytes in use leaves the plan:
//! the rest of the cycle takes the smallest gap between what lives that holds it, or lies behind all, and a plan is
//! made of what happened. It shares what went before they part with the one that was left, so that a cycle changes from
//! one to the other where it finds out which it is. Once all cycles go by plan, those that were not needed for it are
//! given up.
//!
//! Nothing here touches memory: offsets and lengths, as in `sizing.rs`.

use std::collections::BTreeSet;
use std::fmt;

use crate::base::order::{places_by, sort_by_key};

/// What the storage of a request notes: that, and the request's number in its cycle.
pub(crate) const PLANNED: u32 = 1 << 30;
/// The storage's end is nobody's business.
pub(crate) const UNPLANNED: u32 = (1 << 31) - 1;

/// Requests of a cycle, beyond which no plan is made of it: the time for that grows with their square.
const REQUESTS_MAX: usize = 4096;
/// Times that the requests are placed from one order on, and pairs of requests that are looked at for it, once over.
const ROUNDS_MAX: usize = 32;
const PLACEMENTS_MAX: usize = 1 << 22;
/// Requests of a cycle that are numbered; those after them keep their bytes until it ends.
const NUMBERS_MAX: usize = 1 << 24;
/// Plans at a time: lengths of sequences, say.
const PLANS_MAX: usize = 16;
/// Cycles in a row that left their plans, after which only that is learned from whose number is a power of two: a loop
/// that never settles learns a few times in all.
const PATIENCE: u32 = 32;
/// Cycles in a row that left their plans, from which on the block is made for what lives in them.
const ASTRAY: u32 = 3;
/// Cycles in a row that left their plans, from which on bytes in use are learned from once there are plans that hold.
const IN_USE: u32 = 4;
/// Cycles in a row by plan, after which the block becomes as small as the plans allow, and the first time the plans as
/// few as are needed.
const STEADY: u32 = 16;

/// Not ended.
const ALIVE: u32 = u32::MAX;
/// Where a request lies that had no room in the block.
const BESIDE: usize = usize::MAX;

/// A request of the running cycle.
#[derive(Clone, Copy, Debug)]
struct Request {
    offset: usize,
    bytes: usize,
    /// Requests that were made before its array ended.
    ended: u32,
}

/// Where a plan puts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedPlace {
    offset: usize,
    bytes: usize,
    /// In the plan's list, the requests that had any of these bytes last: the first, and the one after the last.
    before: (u32, u32),
}

#[derive(Debug)]
struct MemoryPlan {
    places: Vec<PlannedPlace>,
    /// Who had the bytes of places before, place by place.
    before: Vec<u32>,
    /// What it was made for.
    lives: Vec<Life>,
    /// Bytes from the begin of the block to the end of the last place.
    size: usize,
    /// The most bytes that were alive at once in the cycle that it was made of: no plan for that needs less.
    alive: usize,
    /// Requests that lie where another plan has them.
    shared: usize,
    /// Cycles since it was followed to the end, and since one asked for just what it says.
    unused: u32,
    inexact: u32,
}

/// Why a cycle left its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanDeviation {
    /// A request, counted from 0, was larger than planned.
    Larger {
        /// The request.
        request: u64,
        /// Bytes that were planned, and asked for.
        planned: u64,
        /// See `planned`.
        asked: u64,
    },
    /// The bytes that were planned for a request were in use: an array lived longer than when the plan was made.
    InUse {
        /// The request.
        request: u64,
        /// The request whose array still had the bytes.
        of: u64,
    },
    /// There were more requests than planned.
    More {
        /// The first that was not planned.
        request: u64,
    },
}

impl fmt::Display for PlanDeviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Larger { request, planned, asked } => {
                write!(f, "request {request} asked for {asked} bytes, and {planned} were planned")
            }
            Self::InUse { request, of } => {
                write!(f, "the bytes planned for request {request} were still those of the array of request {of}")
            }
            Self::More { request } => write!(f, "request {request} was made, and none was planned"),
        }
    }
}

/// What a workspace of [`LearningPolicy::Planned`](crate::LearningPolicy::Planned) has planned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanStats {
    /// Plans that it has.
    pub plans: u64,
    /// Requests of the one that is followed, or was last.
    pub requests: u64,
    /// Bytes that it needs.
    pub bytes: u64,
    /// The most bytes that were alive at once in the cycle that it was made of: no plan needs less.
    pub alive: u64,
    /// Cycles that went by a plan to their end.
    pub planned_cycles: u64,
    /// Cycles that left their plan.
    pub deviations: u64,
    /// Why the last of them did.
    pub last_deviation: Option<PlanDeviation>,
}

/// The plans of a workspace, and what is known of its running cycle.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    plans: Vec<MemoryPlan>,
    /// The plan of the running cycle; `None` once it left it, and between cycles: the next one begins with the first.
    followed: Option<usize>,
    /// The plan that the running cycle left, and the request.
    left: Option<(usize, usize)>,
    requests: Vec<Request>,
    /// What is free below the last byte in use, in a cycle without a plan.
    gaps: Gaps,
    /// Bytes alive, and the most that were in this cycle.
    alive: usize,
    alive_max: usize,
    /// Whether each request so far asked for just what was planned.
    exact: bool,
    /// Whether all cycles went by plan for a while.
    settled: bool,
    /// Cycles in a row that had no plan to the end, and that had one.
    astray: u32,
    steady: u32,
    planned_cycles: u64,
    deviations: u64,
    last_deviation: Option<PlanDeviation>,
}

impl Planner {
    /// A cycle begins.
    #[inline(never)]
    pub(crate) fn begin(&mut self) {
        self.requests.clear();
        self.gaps = Gaps::default();
        (self.alive, self.alive_max) = (0, 0);
        (self.left, self.exact) = (None, true);
        self.followed = (!self.plans.is_empty()).then_some(0);
    }

    /// Where the next request goes, if the block has so many bytes: where the plan says, into a gap, or behind the last
    /// byte that was used, which is at `end`.
    #[inline]
    pub(crate) fn offset_of_next(&mut self, bytes: usize, end: usize, size: usize) -> usize {
        let Some(followed) = self.followed else { return self.gaps.take(bytes, end, size) };
        match self.plans[followed].fits(&self.requests, bytes) {
            Ok(place) if place.bytes == bytes || !self.exact => place.offset,
            Ok(place) => {
                let offset = place.offset;
                self.change(followed, bytes, true).unwrap_or_else(|| {
                    self.exact = false;
                    offset
                })
            }
            Err(why) => {
                let changed = self.change(followed, bytes, true).or_else(|| self.change(followed, bytes, false));
                changed.unwrap_or_else(|| {
                    self.leave(followed, why);
                    self.gaps.take(bytes, end, size)
                })
            }
        }
    }

    /// Another plan that agrees with what was placed so far takes over, if there is one: `exact`, if it says just that
    /// of the next request.
    #[cold]
    fn change(&mut self, from: usize, bytes: usize, exact: bool) -> Option<usize> {
        let next = self.requests.len();
        let placed = &self.plans[from].places[..next];
        for (at, plan) in self.plans.iter().enumerate() {
            let agrees = plan.places.get(..next).is_some_and(|places| places == placed);
            if at != from
                && agrees
                && let Ok(place) = plan.fits(&self.requests, bytes)
                && (place.bytes == bytes || !exact)
            {
                (self.followed, self.exact) = (Some(at), self.exact && exact);
                return Some(place.offset);
            }
        }
        None
    }

    /// The cycle goes on without a plan.
    #[cold]
    fn leave(&mut self, from: usize, why: PlanDeviation) {
        self.followed = None;
        self.left = Some((from, self.requests.len()));
        self.deviations += 1;
        self.last_deviation = Some(why);
        self.gaps = Gaps::between(&self.requests);
    }

    /// The next request was met, in the block or beside it. What its storage is to note.
    #[inline]
    pub(crate) fn note(&mut self, bytes: usize, offset: Option<usize>) -> u32 {
        let number = self.requests.len();
        if number == NUMBERS_MAX {
            return UNPLANNED;
        }
        self.requests.push(Request { offset: offset.unwrap_or(BESIDE), bytes, ended: ALIVE });
        self.alive += bytes;
        self.alive_max = self.alive_max.max(self.alive);
        PLANNED | number as u32
    }

    /// The last request, which noted this, was not met after all.
    pub(crate) fn take_back(&mut self, mark: u32) {
        let was_most = self.alive == self.alive_max;
        self.ended(mark);
        self.requests.pop();
        if was_most {
            self.alive_max = alive(&Life::all(&self.requests, &[]));
        }
    }

    /// The storage of a request of the running cycle, which noted this, ended.
    #[inline]
    pub(crate) fn ended(&mut self, mark: u32) {
        let now = self.requests.len() as u32;
        let Some(request) = self.requests.get_mut((mark & !PLANNED) as usize) else { return };
        if request.ended == ALIVE {
            request.ended = now;
            self.alive -= request.bytes;
            if self.followed.is_none() && request.offset != BESIDE {
                self.gaps.give(request.offset, request.bytes);
            }
        }
    }

    /// Requests so far.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// All arrays since so many requests have ended.
    pub(crate) fn ended_since(&mut self, count: usize) {
        (count..self.requests.len()).for_each(|number| self.ended(PLANNED | number as u32));
    }

    /// The cycle ends. After `shrink_after` cycles in a row that did not need it, a plan is given up.
    pub(crate) fn end(&mut self, shrink_after: Option<u32>) {
        if self.requests.is_empty() {
            return;
        }
        let due = |cycles: u32| shrink_after.is_some_and(|after| cycles >= after);
        let Some(at) = self.followed.take() else {
            (self.steady, self.astray) = (0, self.astray.saturating_add(1));
            if self.requests.len() <= REQUESTS_MAX && (self.astray < PATIENCE || self.astray.is_power_of_two()) {
                self.learn();
            }
            return;
        };
        (self.steady, self.astray) = (self.steady.saturating_add(1), 0);
        self.planned_cycles += 1;
        self.plans.iter_mut().for_each(|plan| plan.unused = plan.unused.saturating_add(1));
        self.plans.swap(0, at);
        let plan = &mut self.plans[0];
        let exact = self.exact && self.requests.len() == plan.places.len();
        (plan.unused, plan.inexact) = (0, if exact { 0 } else { plan.inexact.saturating_add(1) });
        let settles = self.steady == STEADY && !self.settled;
        self.settled |= settles;
        let outgrown = due(plan.inexact) || settles && plan.inexact >= STEADY;
        self.plans.retain(|plan| !(due(plan.unused) || settles && plan.unused >= STEADY));
        let alone = self.plans.len() == 1;
        let plan = &mut self.plans[0];
        if outgrown {
            *plan = MemoryPlan::of(Life::all(&self.requests, &[]), &[]);
        } else if settles && alone && plan.shared > 0 {
            *plan = MemoryPlan::of(std::mem::take(&mut plan.lives), &[]);
        }
    }

    /// Makes a plan of the cycle, the first of all.
    fn learn(&mut self) {
        let placed = match self.left.take() {
            // Where an array was ended by another thread, this one does not know of it: that comes and goes.
            Some(_) if self.settled && self.was_in_use() && self.astray < IN_USE => return,
            Some((from, count)) => self.plans[from].places[..count].to_vec(),
            None => Vec::new(),
        };
        let plan = MemoryPlan::of(Life::all(&self.requests, &placed), &placed);
        self.plans.retain(|other| !plan.covers(other));
        self.plans.truncate(PLANS_MAX - 1);
        self.plans.insert(0, plan);
    }

    fn was_in_use(&self) -> bool {
        matches!(self.last_deviation, Some(PlanDeviation::InUse { .. }))
    }

    /// Bytes that the largest plan needs.
    pub(crate) fn size(&self) -> usize {
        self.plans.iter().map(|plan| plan.size).max().unwrap_or(0)
    }

    /// Where cycles leave their plans again and again, the most bytes that lived in the last one, and some for gaps.
    pub(crate) fn size_astray(&self) -> Option<usize> {
        (self.astray >= ASTRAY).then_some(self.alive_max + self.alive_max / 4)
    }

    /// Whether a block that is larger than the plans need becomes smaller.
    pub(crate) fn may_shrink(&self) -> bool {
        self.steady >= STEADY
    }

    pub(crate) fn stats(&self) -> PlanStats {
        let plan = self.plans.get(self.followed.or(self.left.map(|(from, _)| from)).unwrap_or(0));
        PlanStats {
            plans: self.plans.len() as u64,
            requests: plan.map_or(0, |plan| plan.places.len() as u64),
            bytes: plan.map_or(0, |plan| plan.size as u64),
            alive: plan.map_or(0, |plan| plan.alive as u64),
            planned_cycles: self.planned_cycles,
            deviations: self.deviations,
            last_deviation: self.last_deviation,
        }
    }
}

impl MemoryPlan {
    /// The place of the request after these, if it has so many bytes and nobody uses them.
    #[inline]
    fn fits(&self, requests: &[Request], bytes: usize) -> Result<&PlannedPlace, PlanDeviation> {
        let request = requests.len() as u64;
        let Some(place) = self.places.get(requests.len()) else { return Err(PlanDeviation::More { request }) };
        if bytes > place.bytes {
            return Err(PlanDeviation::Larger { request, planned: place.bytes as u64, asked: bytes as u64 });
        }
        let before = &self.before[place.before.0 as usize..place.before.1 as usize];
        match before.iter().find(|&&of| requests[of as usize].ended == ALIVE) {
            Some(&of) => Err(PlanDeviation::InUse { request, of: of.into() }),
            None => Ok(place),
        }
    }

    /// Whether each cycle for the other one is one for this: none of its requests is larger or lives longer.
    fn covers(&self, other: &MemoryPlan) -> bool {
        let no_more = |(own, other): (&Life, &Life)| other.bytes <= own.bytes && other.until <= own.until;
        self.lives.len() >= other.lives.len() && self.lives.iter().zip(&other.lives).all(no_more)
    }

    /// A plan for a cycle of such requests, the first of which are placed already.
    fn of(lives: Vec<Life>, placed: &[PlannedPlace]) -> MemoryPlan {
        let fixed: Vec<usize> = placed.iter().map(|place| place.offset).collect();
        let (alive, offsets) = (alive(&lives), offsets(&lives, &fixed));
        let size = size_of(&lives, &offsets);
        let mut owners = Owners::default();
        let (mut places, mut before) = (Vec::with_capacity(lives.len()), Vec::new());
        for (number, (life, &offset)) in (0..).zip(lives.iter().zip(&offsets)) {
            let first = before.len() as u32;
            before.append(&mut owners.take(offset, offset + life.bytes, number));
            places.push(PlannedPlace { offset, bytes: life.bytes, before: (first, before.len() as u32) });
        }
        MemoryPlan { places, before, lives, size, alive, shared: placed.len(), unused: 0, inexact: 0 }
    }
}

/// A request as a plan sees it: its bytes, its number, and the first one that may have its bytes again.
#[derive(Clone, Copy, Debug)]
struct Life {
    bytes: usize,
    from: usize,
    until: usize,
}

impl Life {
    fn all(requests: &[Request], placed: &[PlannedPlace]) -> Vec<Life> {
        let life = |(from, request): (usize, &Request)| Life {
            bytes: placed.get(from).map_or(request.bytes, |place| place.bytes),
            from,
            until: (request.ended as usize).min(requests.len()).max(from + 1),
        };
        requests.iter().enumerate().map(life).collect()
    }

    fn meets(&self, other: &Life) -> bool {
        self.from < other.until && other.from < self.until
    }
}

/// The most bytes that are alive at once.
fn alive(lives: &[Life]) -> usize {
    let mut ends = vec![0; lives.len() + 1];
    lives.iter().for_each(|life| ends[life.until] += life.bytes);
    let mut now = 0;
    let at_once = lives.iter().zip(ends).map(|(life, ended)| {
        now = now - ended + life.bytes;
        now
    });
    at_once.max().unwrap_or(0)
}

/// Bytes from the begin of the block to the end of what lies highest.
fn size_of(lives: &[Life], offsets: &[usize]) -> usize {
    lives.iter().zip(offsets).map(|(life, at)| at + life.bytes).max().unwrap_or(0)
}

/// An offset for each; the first ones have theirs. Of several orders of placing, what needs the fewest bytes: largest
/// first by bytes, by bytes times life, by life; and from each of them on, what ended highest is placed first the next
/// time.
fn offsets(lives: &[Life], fixed: &[usize]) -> Vec<usize> {
    let least = alive(lives);
    let by_size = |life: &Life| life.bytes;
    let by_area = |life: &Life| life.bytes.saturating_mul(life.until - life.from);
    let by_time = |life: &Life| life.until - life.from;
    let keys: [&dyn Fn(&Life) -> usize; 3] = [&by_size, &by_area, &by_time];
    let rounds = (PLACEMENTS_MAX / (lives.len() * lives.len()).max(1)).clamp(1, ROUNDS_MAX);
    let (mut fewest, mut best) = (usize::MAX, Vec::new());
    for key in keys {
        let mut order: Vec<usize> = (fixed.len()..lives.len()).collect();
        sort_by_key(&mut order, |&at| std::cmp::Reverse(key(&lives[at])));
        for _ in 0..rounds {
            let offsets = place_in_order(lives, fixed, &order);
            let size = size_of(lives, &offsets);
            let highest = order.iter().position(|&at| offsets[at] + lives[at].bytes == size);
            if size < fewest {
                (fewest, best) = (size, offsets);
            }
            if fewest == least {
                return best;
            }
            // One of those that have theirs, or nothing else to place first.
            let Some(highest @ 1..) = highest else { break };
            order[..=highest].rotate_right(1);
        }
    }
    best
}

/// An offset for each: the first ones have theirs; then in this order, each into the smallest gap that holds it among
/// those that live while it does.
fn place_in_order(lives: &[Life], fixed: &[usize], order: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0; lives.len()];
    offsets[..fixed.len()].copy_from_slice(fixed);
    // What has a place, by offset.
    let mut placed = places_by(fixed.len(), &|a: usize, b: usize| fixed[a].cmp(&fixed[b]));
    for &at in order {
        let life = lives[at];
        let (mut end, mut best) = (0, None);
        for &other in placed.iter().filter(|&&other| lives[other].meets(&life)) {
            let gap = offsets[other].saturating_sub(end);
            if gap >= life.bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(offsets[other] + lives[other].bytes);
        }
        offsets[at] = best.map_or(end, |(_, offset)| offset);
        placed.insert(placed.partition_point(|&other| offsets[other] <= offsets[at]), at);
    }
    offsets
}

/// Gaps that are looked at one by one.
const FEW_GAPS: usize = 64;

/// What is free between what lives: offsets and bytes.
#[derive(Debug, Default)]
struct Gaps {
    all: BTreeSet<(usize, usize)>,
    /// Bytes and offsets of all, once there were more than a few.
    by_size: BTreeSet<(usize, usize)>,
}

impl Gaps {
    /// Between the requests that live, below the end of the last one.
    fn between(requests: &[Request]) -> Self {
        let in_block = requests.iter().filter(|request| request.offset != BESIDE);
        let mut gaps = Gaps::default();
        let end = in_block.clone().map(|request| request.offset + request.bytes).max().unwrap_or(0);
        let mut live: Vec<&Request> = in_block.filter(|request| request.ended == ALIVE).collect();
        sort_by_key(&mut live, |request| request.offset);
        let mut at = 0;
        for (from, to) in
            live.into_iter().map(|request| (request.offset, request.offset + request.bytes)).chain([(end, end)])
        {
            if from > at {
                gaps.insert(at, from - at);
            }
            at = at.max(to);
        }
        gaps
    }

    /// The smallest that holds so many bytes; else the one that ends at `end`, if what follows it up to `size` holds
    /// the rest; else `end`.
    fn take(&mut self, bytes: usize, end: usize, size: usize) -> usize {
        if let Some((at, free)) = self.smallest(bytes) {
            self.remove(at);
            if free > bytes {
                self.insert(at + bytes, free - bytes);
            }
            return at;
        }
        match self.all.last() {
            Some(&(at, free)) if at + free == end && bytes <= size && at <= size - bytes => {
                self.remove(at);
                at
            }
            _ => end,
        }
    }

    /// The smallest that holds so many bytes, the first of several: its offset and bytes.
    fn smallest(&self, bytes: usize) -> Option<(usize, usize)> {
        if self.by_size.is_empty() {
            return self.all.iter().filter(|gap| gap.1 >= bytes).min_by_key(|gap| gap.1).copied();
        }
        self.by_size.range((bytes, 0)..).next().map(|&(free, at)| (at, free))
    }

    fn insert(&mut self, at: usize, free: usize) {
        self.all.insert((at, free));
        if !self.by_size.is_empty() {
            self.by_size.insert((free, at));
        } else if self.all.len() > FEW_GAPS {
            self.by_size.extend(self.all.iter().map(|&(at, free)| (free, at)));
        }
    }

    fn remove(&mut self, at: usize) -> Option<usize> {
        let (_, free) = *self.all.range((at, 0)..).next().filter(|gap| gap.0 == at)?;
        self.all.remove(&(at, free));
        self.by_size.remove(&(free, at));
        Some(free)
    }

    /// These bytes are free.
    fn give(&mut self, mut offset: usize, mut bytes: usize) {
        let before = self.all.range(..(offset, 0)).next_back().copied();
        if let Some((before, free)) = before.filter(|(at, free)| at + free == offset) {
            self.remove(before);
            (offset, bytes) = (before, free + bytes);
        }
        if let Some(free) = self.remove(offset + bytes) {
            bytes += free;
        }
        self.insert(offset, bytes);
    }
}

/// Who had which bytes last: the begin of each range, its end and its owner. Of those there are few: a cycle of many
/// requests has no plan.
#[derive(Debug, Default)]
struct Owners(Vec<(usize, usize, u32)>);

impl Owners {
    /// These bytes have a new owner. Who had any of them.
    fn take(&mut self, start: usize, end: usize, owner: u32) -> Vec<u32> {
        let mut before = Vec::new();
        for (from, to, of) in std::mem::take(&mut self.0) {
            if from < end && start < to {
                before.push(of);
            }
            // What is left of it on either side.
            if from < start {
                self.0.push((from, to.min(start), of));
            }
            if to > end {
                self.0.push((from.max(end), to, of));
            }
        }
        self.0.push((start, end, owner));
        sort_by_key(&mut before, |&of| of);
        before.dedup();
        before
    }
}

#[cfg(test)]
mod tests;
