//! How many arrays there are of a kind, and the most that there were at once, counted by threads that do not wait for
//! each other.
//!
//! Each thread record counts what came and what went on it. Of the difference its thread keeps at most 20 to itself,
//! more or fewer; what passes that goes to a common number, with the highest that the difference was. So the most is
//! exact for one thread, and for each further one at most 64 off: nobody asks what the others keep, 20 each, and the
//! highest may be 41 above what is there when it is told.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The difference that a thread keeps to itself.
const DELTA: i64 = 20;

/// What all threads have told of a kind of arrays, and the most that there were.
#[derive(Debug)]
pub(crate) struct Common {
    now: AtomicI64,
    peak: AtomicI64,
}

impl Common {
    pub(crate) const fn new() -> Self {
        Common { now: AtomicI64::new(0), peak: AtomicI64::new(0) }
    }

    /// There are so many more, or fewer, and in between there were up to `high` more.
    pub(crate) fn add(&self, by: i64, high: i64) {
        // Release: pairs with the Acquire in `with`: who finds these here finds them in no level.
        let before = self.now.fetch_add(by, Ordering::Release);
        // Relaxed: a number that is told, and nothing is read by.
        self.peak.fetch_max(before + high, Ordering::Relaxed);
    }

    /// What was told, and what these levels have beside it.
    fn with<'a>(&self, levels: impl Iterator<Item = &'a Level>, beside: fn(&Level) -> i64) -> i64 {
        // Acquire: pairs with the Release in `add`.
        let told = self.now.load(Ordering::Acquire);
        // Of a thread that goes on meanwhile one number may be from before a change and another from after it.
        told + levels.map(|level| beside(level).clamp(-DELTA, DELTA)).sum::<i64>()
    }

    /// The most that there were at once, since it was set.
    pub(crate) fn peak<'a>(&self, levels: impl Iterator<Item = &'a Level>) -> u64 {
        let most = self.with(levels, Level::most_kept);
        // Relaxed: as in `add`. Whoever was told so many is told no fewer later.
        self.peak.fetch_max(most, Ordering::Relaxed).max(most).max(0) as u64
    }

    /// Takes the most as of now.
    pub(crate) fn restart<'a>(&self, levels: impl Iterator<Item = &'a Level> + Clone) {
        levels.clone().for_each(Level::restart);
        let now = self.with(levels, Level::kept);
        // Relaxed: as in `add`.
        self.peak.store(now, Ordering::Relaxed);
    }
}

/// What came and what went on one thread record. Written by its thread alone, but for the highest, which
/// [`Common::restart`] sets.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) came: AtomicU64,
    pub(crate) went: AtomicU64,
    /// What of the difference was told.
    told: AtomicI64,
    /// The most that the difference was since then.
    high: AtomicI64,
}

impl Level {
    // Relaxed throughout: statistics, with one writer, whose numbers are summed and compared.

    pub(crate) const fn new() -> Self {
        Level { came: AtomicU64::new(0), went: AtomicU64::new(0), told: AtomicI64::new(0), high: AtomicI64::new(0) }
    }

    /// One came, on the thread of this level.
    #[inline]
    pub(crate) fn come(&self, common: &Common) {
        let came = self.came.load(Ordering::Relaxed) + 1;
        self.came.store(came, Ordering::Relaxed);
        let now = came.wrapping_sub(self.went.load(Ordering::Relaxed)) as i64;
        if now > self.high.load(Ordering::Relaxed) {
            self.rise(now, common);
        }
    }

    /// One went, on the thread of this level, wherever it came.
    #[inline]
    pub(crate) fn go(&self, common: &Common) {
        let went = self.went.load(Ordering::Relaxed) + 1;
        self.went.store(went, Ordering::Relaxed);
        let now = self.came.load(Ordering::Relaxed).wrapping_sub(went) as i64;
        if now < self.told.load(Ordering::Relaxed) - DELTA {
            self.tell(common);
        }
    }

    #[inline(never)]
    fn rise(&self, now: i64, common: &Common) {
        self.high.store(now, Ordering::Relaxed);
        if now > self.told.load(Ordering::Relaxed) + DELTA {
            self.tell(common);
        }
    }

    /// Tells the difference, on the thread of this level.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell(&self, common: &Common) {
        let (now, told) = (self.difference(), self.told.load(Ordering::Relaxed));
        let high = self.high.load(Ordering::Relaxed).max(now);
        // First, so that nobody who sums finds any in both.
        self.told.store(now, Ordering::Relaxed);
        self.high.store(now, Ordering::Relaxed);
        common.add(now - told, high - told);
    }

    fn difference(&self) -> i64 {
        let went = self.went.load(Ordering::Relaxed);
        self.came.load(Ordering::Relaxed).wrapping_sub(went) as i64
    }

    /// What of the difference was not told.
    fn kept(&self) -> i64 {
        self.difference() - self.told.load(Ordering::Relaxed)
    }

    /// The most that this was.
    fn most_kept(&self) -> i64 {
        self.high.load(Ordering::Relaxed).max(self.difference()) - self.told.load(Ordering::Relaxed)
    }

    /// Not what there is now: while its thread goes on another one cannot read that.
    fn restart(&self) {
        self.high.store(i64::MIN, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels of one kind, and how many there are, at most.
    struct Model {
        common: Common,
        levels: Vec<Level>,
        now: i64,
        peak: i64,
    }

    impl Model {
        fn new(threads: usize) -> Self {
            let levels = (0..threads).map(|_| Level::new()).collect();
            Model { common: Common::new(), levels, now: 0, peak: 0 }
        }

        fn change(&mut self, thread: usize, comes: bool) {
            let level = &self.levels[thread];
            if comes {
                level.come(&self.common)
            } else {
                level.go(&self.common)
            }
            self.now += if comes { 1 } else { -1 };
            self.peak = self.peak.max(self.now);
        }

        fn told(&self) -> i64 {
            self.common.peak(self.levels.iter()) as i64
        }

        fn restart(&mut self) {
            self.common.restart(self.levels.iter());
            self.peak = self.now;
        }
    }

    /// Numbers that look random, the same each time.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    #[test]
    fn the_most_is_exact_for_one_thread_and_within_64_for_each_further_one() {
        for threads in [1, 2, 3, 8] {
            let (mut model, mut draw) = (Model::new(threads), Draw(threads as u64));
            let off = 64 * (threads as i64 - 1);
            for round in 0..40 {
                // What some make others end, so that each has many more or many fewer than none.
                let rises = draw.below(10);
                for step in 0..if cfg!(miri) { 50 } else { 1000 } {
                    let (thread, comes) = (draw.below(threads), draw.below(10) < rises);
                    if comes || model.now > 0 {
                        model.change(if step % 3 == 0 { thread } else { thread * usize::from(comes) }, comes);
                    }
                    if draw.below(100) == 0 {
                        let (told, peak) = (model.told(), model.peak);
                        assert!((told - peak).abs() <= off, "{told} of {peak}, {threads} threads, round {round}");
                    }
                }
                if round % 4 == 3 {
                    model.restart();
                    assert_eq!(model.told(), model.now);
                }
            }
        }
    }

    #[test]
    fn threads_that_end_leave_nothing_to_themselves() {
        let (mut model, mut ends) = (Model::new(9), 0);
        for thread in 1..9 {
            (0..15).for_each(|_| model.change(thread, true));
            (0..4).for_each(|_| model.change(thread, false));
            model.levels[thread].tell(&model.common);
            ends += 11;
        }
        assert_eq!((model.told(), model.now), (ends + 4, ends));
        (0..30).for_each(|_| model.change(0, true));
        assert_eq!(model.told(), ends + 30, "as if there had been one");
    }
}
