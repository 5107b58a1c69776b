//! Planned placement: which requests of a cycle may share bytes, learned from cycles that ran.
//!
//! A cycle is a list of requests, and of each it is noted how many others came before its array ended. Two whose times
//! do not overlap may have the same bytes: a plan places them so (greedy by size over lifetimes, as the planners of
//! static graphs do; arXiv 2001.03288). The next cycle follows the plan request by request. A plan is a guess, and
//! nothing rests on it: before bytes are handed out again, who had them last in this cycle must have ended. Whoever had
//! them before that one had ended when it got them, so that is all there is to ask. Invariant I15 (design.md).
//!
//! A request that is larger than planned, comes after the last planned one, or finds its bytes in use leaves the plan:
//! the rest of the cycle lies side by side behind what was placed, and a plan is made of what happened. It shares what
//! went before they part with the one that was left, so that a cycle changes from one to the other where it finds out
//! which it is. Once all cycles go by plan, those that were not needed for it are given up.
//!
//! Nothing here touches memory: offsets and lengths, as in `sizing.rs`.

use std::collections::BTreeMap;
use std::fmt;

/// What the storage of a request notes: that, and the request's number in its cycle.
pub(crate) const PLANNED: u32 = 1 << 30;
/// The storage's end is nobody's business.
pub(crate) const UNPLANNED: u32 = (1 << 31) - 1;

/// Requests of a cycle, beyond which none is planned: the time to make a plan grows with their square.
const REQUESTS_MAX: usize = 8192;
/// Plans at a time.
const PLANS_MAX: usize = 4;
/// Cycles in a row that left their plans, after which only every [`LEARN_EVERY`]th is learned from, and the next one
/// tries what was.
const PATIENCE: u32 = 8;
/// See [`PATIENCE`].
const LEARN_EVERY: u32 = 16;
const LEARN_LAST: u32 = LEARN_EVERY - 1;
/// Cycles in a row by plan, after which the block becomes as small as the plans allow, and the first time the plans as
/// few as are needed.
const STEADY: u32 = 16;

/// Not ended.
const ALIVE: u32 = u32::MAX;

/// A request of the running cycle.
#[derive(Clone, Copy, Debug)]
struct Request {
    bytes: usize,
    /// Requests that were made before its array ended.
    ended: u32,
}

/// Where a plan puts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: usize,
    bytes: usize,
    /// In the plan's list, the requests that had any of these bytes last: the first, and the one after the last.
    before: (u32, u32),
}

#[derive(Debug)]
struct MemoryPlan {
    places: Vec<Place>,
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
    recording: bool,
    /// Whether each request so far asked for just what was planned.
    exact: bool,
    /// Whether all cycles went by plan for a while, and the request since then whose bytes were in use.
    settled: bool,
    doubted: Option<usize>,
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
        (self.left, self.exact) = (None, true);
        self.recording = self.astray < PATIENCE || matches!(self.astray % LEARN_EVERY, 0 | LEARN_LAST);
        self.followed = (self.recording && !self.plans.is_empty()).then_some(0);
    }

    /// Whether requests of the running cycle are numbered.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording
    }

    /// Where the plan puts the next request. `None`: the cycle has no plan, or leaves it here.
    #[inline]
    pub(crate) fn offset_of_next(&mut self, bytes: usize) -> Option<usize> {
        let plan = &self.plans[self.followed?];
        match plan.fits(&self.requests, bytes) {
            Ok(place) => {
                self.exact &= place.bytes == bytes;
                Some(place.offset)
            }
            Err(why) => self.change(bytes, why),
        }
    }

    /// Another plan that agrees with what was placed so far takes over, or none does.
    #[cold]
    fn change(&mut self, bytes: usize, why: PlanDeviation) -> Option<usize> {
        let (from, next) = (self.followed.take()?, self.requests.len());
        let placed = &self.plans[from].places[..next];
        let agrees = |plan: &MemoryPlan| plan.places.get(..next).is_some_and(|places| places == placed);
        for (at, plan) in self.plans.iter().enumerate() {
            if at != from
                && agrees(plan)
                && let Ok(place) = plan.fits(&self.requests, bytes)
            {
                (self.followed, self.exact) = (Some(at), self.exact && place.bytes == bytes);
                return Some(place.offset);
            }
        }
        self.left = Some((from, next));
        self.deviations += 1;
        self.last_deviation = Some(why);
        None
    }

    /// The next request was met, wherever. What its storage is to note.
    #[inline]
    pub(crate) fn note(&mut self, bytes: usize) -> u32 {
        let number = self.requests.len();
        if number == REQUESTS_MAX {
            // Too many for a plan: the cycle goes on without one, and so do the next.
            self.requests.clear();
            (self.recording, self.followed, self.astray) = (false, None, PATIENCE);
            self.plans.clear();
            return UNPLANNED;
        }
        self.requests.push(Request { bytes, ended: ALIVE });
        PLANNED | number as u32
    }

    /// The last request was not met after all.
    pub(crate) fn take_back(&mut self) {
        self.requests.pop();
    }

    /// The storage of a request of the running cycle, which noted this, ended.
    #[inline]
    pub(crate) fn ended(&mut self, mark: u32) {
        let now = self.requests.len() as u32;
        if let Some(request) = self.requests.get_mut((mark & !PLANNED) as usize) {
            request.ended = now;
        }
    }

    /// Requests so far.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// All arrays since so many requests have ended.
    pub(crate) fn ended_since(&mut self, count: usize) {
        let now = self.requests.len() as u32;
        for request in self.requests.iter_mut().skip(count) {
            request.ended = request.ended.min(now);
        }
    }

    /// The cycle ends. After `shrink_after` cycles in a row that did not need it, a plan is given up.
    pub(crate) fn end(&mut self, shrink_after: Option<u32>) {
        if !self.recording {
            self.astray = self.astray.saturating_add(1);
            return;
        }
        if self.requests.is_empty() {
            return;
        }
        let due = |cycles: u32| shrink_after.is_some_and(|after| cycles >= after);
        let Some(at) = self.followed.take() else {
            (self.steady, self.astray) = (0, self.astray.saturating_add(1));
            return self.learn();
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
            Some((_, request))
                if self.settled && self.was_in_use() && self.doubted.replace(request) != Some(request) =>
            {
                return;
            }
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

    /// Whether cycles leave their plans again and again: then the block holds what they need beside them, too.
    pub(crate) fn is_astray(&self) -> bool {
        self.astray > PLANS_MAX as u32
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
    fn fits(&self, requests: &[Request], bytes: usize) -> Result<&Place, PlanDeviation> {
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
    fn of(lives: Vec<Life>, placed: &[Place]) -> MemoryPlan {
        let fixed: Vec<usize> = placed.iter().map(|place| place.offset).collect();
        let by_size = |life: &Life| life.bytes;
        let by_area = |life: &Life| life.bytes.saturating_mul(life.until - life.from);
        let size_of =
            |offsets: &[usize]| lives.iter().zip(offsets).map(|(life, at)| at + life.bytes).max().unwrap_or(0);
        let by_time = |life: &Life| life.until - life.from;
        let orders: [&dyn Fn(&Life) -> usize; 3] = [&by_size, &by_area, &by_time];
        let offsets =
            orders.map(|order| place_greedily(&lives, &fixed, order)).into_iter().min_by_key(|all| size_of(all));
        let offsets = offsets.unwrap_or_default();
        let mut owners = Owners::default();
        let (mut places, mut before) = (Vec::with_capacity(lives.len()), Vec::new());
        for (number, (life, &offset)) in (0..).zip(lives.iter().zip(&offsets)) {
            let first = before.len() as u32;
            before.append(&mut owners.take(offset, offset + life.bytes, number));
            places.push(Place { offset, bytes: life.bytes, before: (first, before.len() as u32) });
        }
        let (size, alive) = (size_of(&offsets), alive(&lives));
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
    fn all(requests: &[Request], placed: &[Place]) -> Vec<Life> {
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

/// An offset for each: the first ones have theirs; then the largest first, each into the smallest gap that holds it
/// among those that live while it does.
fn place_greedily(lives: &[Life], fixed: &[usize], size: &dyn Fn(&Life) -> usize) -> Vec<usize> {
    let mut offsets = vec![0; lives.len()];
    offsets[..fixed.len()].copy_from_slice(fixed);
    // What has a place, by offset.
    let mut placed: Vec<usize> = (0..fixed.len()).collect();
    placed.sort_by_key(|&at| offsets[at]);
    let mut rest: Vec<usize> = (fixed.len()..lives.len()).collect();
    rest.sort_by_key(|&at| std::cmp::Reverse(size(&lives[at])));
    for at in rest {
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

/// Who had which bytes last: the begin of each range, and its end and owner.
#[derive(Debug, Default)]
struct Owners(BTreeMap<usize, (usize, u32)>);

impl Owners {
    /// These bytes have a new owner. Who had any of them.
    fn take(&mut self, start: usize, end: usize, owner: u32) -> Vec<u32> {
        let first = self.0.range(..=start).next_back().map_or(start, |(&from, _)| from);
        let met: Vec<(usize, (usize, u32))> =
            self.0.range(first..end).map(|(&from, &held)| (from, held)).filter(|(_, (to, _))| *to > start).collect();
        let mut before: Vec<u32> = met.iter().map(|(_, (_, of))| *of).collect();
        for (from, (to, of)) in met {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, (start, of));
            }
            if to > end {
                self.0.insert(end, (to, of));
            }
        }
        self.0.insert(start, (end, owner));
        before.sort_unstable();
        before.dedup();
        before
    }
}

#[cfg(test)]
mod tests;
