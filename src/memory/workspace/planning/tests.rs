//! Plans against lifetimes that are known, and cycles that do not keep to theirs: no bytes that somebody has are handed
//! out.

use std::time::{Duration, Instant};

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn of(&mut self, range: std::ops::Range<usize>) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        range.start + (x ^ x >> 31) as usize % (range.end - range.start)
    }
}

#[derive(Clone, Copy, Debug)]
enum CycleStep {
    Ask(usize),
    /// Of those that live, counted from the oldest.
    End(usize),
}

/// Places requests as the arena does, with as much room as is asked for, and checks what it hands out.
#[derive(Debug, Default)]
struct PlannedArena {
    planner: Planner,
    high: usize,
    live: Vec<(u32, usize, usize)>,
}

impl PlannedArena {
    fn ask(&mut self, bytes: usize) -> usize {
        let at = self.planner.offset_of_next(bytes, self.high, usize::MAX);
        self.high = self.high.max(at + bytes);
        for &(_, from, to) in &self.live {
            assert!(to <= at || at + bytes <= from, "bytes {at} to {} are in use: {:?}", at + bytes, self.live);
        }
        self.live.push((self.planner.note(bytes, Some(at)), at, at + bytes));
        at
    }

    fn end(&mut self, which: usize) {
        if !self.live.is_empty() {
            let (mark, ..) = self.live.remove(which % self.live.len());
            self.planner.ended(mark);
        }
    }

    /// Runs a cycle. Where its requests were, and how many bytes from the begin of the block they took.
    fn cycle(&mut self, steps: &[CycleStep], shrink_after: Option<u32>) -> (Vec<usize>, usize) {
        self.live.clear();
        self.high = 0;
        self.planner.begin();
        let mut places = Vec::new();
        for &step in steps {
            match step {
                CycleStep::Ask(bytes) => places.push(self.ask(bytes)),
                CycleStep::End(which) => self.end(which),
            }
        }
        self.planner.end(shrink_after);
        (places, self.high)
    }
}

/// A training step of so many layers: what goes forward stays until it is used on the way back.
fn there_and_back(layers: usize, bytes: usize) -> Vec<CycleStep> {
    let forward = (0..layers).flat_map(|_| [CycleStep::Ask(bytes), CycleStep::Ask(bytes), CycleStep::End(usize::MAX)]);
    let back =
        (0..layers).flat_map(|_| [CycleStep::Ask(bytes), CycleStep::End(usize::MAX), CycleStep::End(usize::MAX)]);
    // The last one that lives ends: `End` counts from the oldest.
    let mut live = 0;
    let steps = forward.chain(back).map(|step| match step {
        CycleStep::Ask(bytes) => {
            live += 1;
            CycleStep::Ask(bytes)
        }
        CycleStep::End(_) => {
            live -= 1;
            CycleStep::End(live)
        }
    });
    steps.collect()
}

#[test]
fn a_step_is_placed_in_the_bytes_that_live_at_once() {
    let mut arena = PlannedArena::default();
    let steps = there_and_back(20, 64);
    let (_, in_gaps) = arena.cycle(&steps, None);
    assert_eq!(in_gaps, 21 * 64, "of equal requests, gaps do as well as a plan");
    let (places, planned) = arena.cycle(&steps, None);
    let stats = arena.planner.stats();
    assert_eq!((planned as u64, stats.bytes, stats.alive), (21 * 64, 21 * 64, 21 * 64));
    assert_eq!((stats.plans, stats.requests, stats.planned_cycles, stats.deviations), (1, 60, 1, 0));
    assert_eq!(arena.cycle(&steps, None).0, places, "the same places in each cycle");
}

/// What static planners are measured by: requests of mixed sizes whose lives overlap at random.
#[test]
fn plans_are_near_the_least_that_is_possible() {
    let mut worst: f64 = 1.;
    for seed in 0..200 {
        let mut random = Random(seed);
        let count = random.of(2..120);
        let requests: Vec<Request> = (0..count)
            .map(|from| Request { offset: 0, bytes: 64 * random.of(1..40), ended: (from + random.of(1..20)) as u32 })
            .collect();
        let plan = MemoryPlan::of(Life::all(&requests, &[]), &[]);
        assert!(plan.size >= plan.alive);
        worst = worst.max(plan.size as f64 / plan.alive as f64);
        for (at, a) in plan.places.iter().enumerate() {
            for (other, b) in plan.places.iter().enumerate().skip(at + 1) {
                let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(apart || requests[at].ended as usize <= other, "{seed}: {at} and {other}");
            }
        }
    }
    assert!(worst < 1.18, "{worst}");
}

/// Lives that were recorded: bytes, the request, and the one that may have its bytes again.
#[test]
fn the_step_of_a_convolutional_network_needs_no_byte_beyond_what_lives() {
    let lives = LENET.map(|(bytes, from, until)| Life { bytes, from, until });
    let alive = alive(&lives);
    let by_size = |lives: &[Life]| {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(lives[at].bytes));
        size_of(lives, &place_in_order(lives, &[], &order))
    };
    assert!(by_size(&lives) > alive + alive / 20, "one order is not enough");
    let plan = MemoryPlan::of(lives.to_vec(), &[]);
    assert_eq!((plan.size, plan.alive), (alive, alive));
}

#[test]
fn who_had_the_bytes_last_is_known_whatever_the_pieces() {
    let mut owners = Owners::default();
    assert!(owners.take(0, 100, 0).is_empty());
    assert_eq!(owners.take(40, 60, 1), [0]);
    assert_eq!(owners.take(30, 50, 2), [0, 1]);
    assert_eq!(owners.take(0, 200, 3), [0, 1, 2]);
    assert_eq!(owners.take(200, 300, 4), Vec::<u32>::new());
    assert_eq!(owners.take(199, 201, 5), [3, 4]);
}

#[test]
fn an_array_that_lives_longer_than_planned_keeps_its_bytes() {
    let mut arena = PlannedArena::default();
    let ends = [CycleStep::Ask(64), CycleStep::End(0), CycleStep::Ask(64), CycleStep::Ask(64)];
    let stays = [CycleStep::Ask(64), CycleStep::Ask(64), CycleStep::Ask(64)];
    arena.cycle(&ends, None);
    assert_eq!(arena.cycle(&ends, None), (vec![0, 0, 64], 128));
    assert_eq!(arena.cycle(&stays, None), (vec![0, 64, 128], 192), "checked before the bytes are handed out");
    let stats = arena.planner.stats();
    assert_eq!((stats.deviations, stats.last_deviation), (1, Some(PlanDeviation::InUse { request: 1, of: 0 })));
    // What does for the one does for the other.
    for _ in 0..3 {
        arena.cycle(&ends, None);
        assert_eq!(arena.cycle(&stays, None), (vec![0, 64, 128], 192));
    }
    assert_eq!((arena.planner.stats().plans, arena.planner.stats().deviations), (1, 1));
}

#[test]
fn cycles_of_two_kinds_have_a_plan_each() {
    let mut arena = PlannedArena::default();
    // In each, something lives longer than in the other.
    let one = [
        CycleStep::Ask(64),
        CycleStep::Ask(64),
        CycleStep::End(0),
        CycleStep::Ask(64),
        CycleStep::End(0),
        CycleStep::Ask(64),
    ];
    let two = [CycleStep::Ask(64), CycleStep::Ask(64), CycleStep::End(1), CycleStep::Ask(64), CycleStep::Ask(64)];
    for steps in [&one[..], &one, &two] {
        arena.cycle(steps, None);
    }
    for _ in 0..5 {
        arena.cycle(&one, None);
        arena.cycle(&two, None);
    }
    let stats = arena.planner.stats();
    assert_eq!((stats.plans, stats.deviations, stats.planned_cycles), (2, 1, 11));
}

#[test]
fn smaller_cycles_go_by_the_plan_of_the_largest() {
    let mut arena = PlannedArena::default();
    let batch = |rows: usize| there_and_back(5, 64 * rows);
    arena.cycle(&batch(3), None);
    arena.cycle(&batch(3), None);
    arena.cycle(&batch(8), None);
    assert_eq!(arena.planner.stats().deviations, 1);
    for rows in [8, 1, 3, 7, 8] {
        arena.cycle(&batch(rows), None);
    }
    let stats = arena.planner.stats();
    assert_eq!((stats.plans, stats.deviations, stats.planned_cycles), (1, 1, 6), "the larger one does for both");
    // What is not needed for long is given up.
    let large = arena.planner.size();
    (0..10).for_each(|_| drop(arena.cycle(&batch(1), Some(10))));
    assert!(arena.planner.size() < large / 4);
}

#[test]
fn a_first_cycle_that_is_like_no_other_leaves_nothing_behind() {
    let mut arena = PlannedArena::default();
    let first: Vec<CycleStep> = (0..30).map(|_| CycleStep::Ask(128)).collect();
    let steps = there_and_back(10, 64);
    arena.cycle(&first, None);
    (0..STEADY).for_each(|_| drop(arena.cycle(&steps, None)));
    assert_eq!(arena.cycle(&steps, None).1, 11 * 64);
    let stats = arena.planner.stats();
    assert_eq!((stats.plans, stats.bytes), (1, 11 * 64));
    // Also where it has the first requests in common with them, which lie badly for what follows.
    let mut arena = PlannedArena::default();
    let first: Vec<CycleStep> = (0..30).map(|_| CycleStep::Ask(64)).collect();
    let longer: Vec<CycleStep> = steps.iter().copied().chain(there_and_back(10, 128)).collect();
    arena.cycle(&first, None);
    (0..STEADY + 1).for_each(|_| drop(arena.cycle(&longer, None)));
    assert!(arena.planner.plans[0].shared == 0, "{:?}", arena.planner.stats());
    assert_eq!((arena.cycle(&longer, None).1, arena.planner.stats().plans), (11 * 128, 1));
}

#[test]
fn what_happens_once_is_not_learned() {
    let mut arena = PlannedArena::default();
    let ends = [CycleStep::Ask(64), CycleStep::End(0), CycleStep::Ask(64), CycleStep::Ask(64)];
    let stays = [CycleStep::Ask(64), CycleStep::Ask(64), CycleStep::Ask(64)];
    (0..2 * STEADY).for_each(|_| drop(arena.cycle(&ends, None)));
    assert_eq!(arena.cycle(&stays, None).1, 192);
    assert_eq!((arena.cycle(&ends, None).1, arena.planner.size()), (128, 128));
    (0..IN_USE).for_each(|_| drop(arena.cycle(&stays, None)));
    assert_eq!((arena.planner.size(), arena.planner.stats().deviations), (192, 5), "four times in a row it is");
    assert_eq!(arena.cycle(&stays, None), (vec![0, 64, 128], 192));
    assert_eq!(arena.planner.stats().deviations, 5);
}

/// As a network that is trained and asked in turn.
#[test]
fn kinds_of_cycles_that_alternate_from_the_start_are_all_planned() {
    let mut arena = PlannedArena::default();
    let kinds = [there_and_back(10, 64), there_and_back(3, 640), vec![CycleStep::Ask(64), CycleStep::Ask(6400)]];
    for _ in 0..20 {
        kinds.iter().for_each(|steps| drop(arena.cycle(steps, Some(1000))));
    }
    let stats = arena.planner.stats();
    assert!(stats.deviations < 6 && stats.planned_cycles > 50, "{stats:?}");
    // What they have in common lies where the first of them had it.
    assert!((101 * 64..110 * 64 + 1).contains(&arena.planner.size()), "{}", arena.planner.size());
}

/// What lives at most while these steps are taken.
fn lives(steps: &[CycleStep]) -> usize {
    let (mut live, mut most) = (Vec::new(), 0);
    for &step in steps {
        match step {
            CycleStep::Ask(bytes) => live.push(bytes),
            CycleStep::End(which) if !live.is_empty() => drop(live.remove(which % live.len())),
            CycleStep::End(_) => {}
        }
        most = most.max(live.iter().sum());
    }
    most
}

#[test]
fn cycles_that_are_never_alike_use_their_gaps() {
    let (mut arena, mut random) = (PlannedArena::default(), Random(1));
    let (mut used, mut needed) = (0, 0);
    for _ in 0..300 {
        let count = random.of(20..200);
        let step = |_| match random.of(0..9) {
            0..5 => CycleStep::Ask(64 * random.of(1..40)),
            _ => CycleStep::End(random.of(0..40)),
        };
        let steps: Vec<CycleStep> = (0..count).map(step).collect();
        used += arena.cycle(&steps, None).1;
        needed += lives(&steps);
        assert!(arena.planner.plans.len() <= PLANS_MAX);
    }
    assert!(used < needed * 5 / 4, "{used} and {needed}");
    assert!(arena.planner.astray > 100, "{}", arena.planner.astray);
    // And one that settles is planned.
    let steps = there_and_back(10, 64);
    (0..600).for_each(|_| drop(arena.cycle(&steps, None)));
    assert!(arena.planner.stats().planned_cycles > 100);
    assert_eq!(arena.cycle(&steps, None).1, 11 * 64);
}

/// As batches of sentences, each as long as its longest.
#[test]
fn each_length_has_its_plan() {
    let mut arena = PlannedArena::default();
    let (mut random, lengths) = (Random(3), PLANS_MAX);
    let sequence = |length: usize| -> Vec<CycleStep> {
        let step = |at: usize| [CycleStep::Ask(64 * 7), CycleStep::Ask(64 * 3), CycleStep::End(at)];
        [CycleStep::Ask(64 * length)].into_iter().chain((0..length).flat_map(step)).collect()
    };
    for _ in 0..200 {
        arena.cycle(&sequence(5 + random.of(0..lengths)), None);
    }
    let deviations = arena.planner.stats().deviations;
    for _ in 0..200 {
        arena.cycle(&sequence(5 + random.of(0..lengths)), None);
    }
    assert_eq!(arena.planner.stats().deviations, deviations, "all are known");
    assert!(deviations < 2 * lengths as u64, "{deviations}");
}

#[test]
fn gaps_are_found_divided_and_joined() {
    let mut gaps = Gaps::default();
    assert_eq!(gaps.take(64, 0, 1000), 0);
    gaps.give(64, 64);
    gaps.give(256, 128);
    assert_eq!(gaps.take(64, 512, 1000), 64, "the smallest that holds it");
    assert_eq!(gaps.take(64, 512, 1000), 256);
    gaps.give(128, 128);
    gaps.give(256, 64);
    assert_eq!(gaps.all.clone().into_iter().collect::<Vec<_>>(), [(128, 256)]);
    // What ends where nothing more was used grows into that, if there is room.
    assert_eq!(gaps.take(512, 384, 1000), 128);
    gaps.give(128, 256);
    assert_eq!(gaps.take(512, 384, 600), 384);
}

#[test]
fn many_gaps_are_taken_as_few_are() {
    let mut random = Random(3);
    let (mut many, mut few) = (Gaps::default(), Gaps::default());
    for at in 0..500 {
        let bytes = 64 * random.of(1..9);
        many.give(1024 * at, bytes);
        few.give(1024 * at, bytes);
    }
    assert!(!many.by_size.is_empty());
    let mut held = Vec::new();
    for _ in 0..3000 {
        // Each is looked at.
        few.by_size.clear();
        if held.is_empty() || random.of(0..3) > 0 {
            let bytes = 64 * random.of(1..9);
            let at = many.take(bytes, 512_000, 512_000);
            assert_eq!(few.take(bytes, 512_000, 512_000), at, "the first of the smallest");
            held.extend((at < 512_000).then_some((at, bytes)));
        } else {
            let (at, bytes) = held.swap_remove(random.of(0..held.len()));
            many.give(at, bytes);
            few.give(at, bytes);
        }
        assert_eq!(many.all, few.all);
    }
}

#[test]
fn holes_are_not_looked_at_one_by_one() {
    // Of 64 bytes each, and each request asks for more.
    const HOLES: usize = 100_000;
    let mut planner = Planner::default();
    planner.begin();
    let ask = |planner: &mut Planner, bytes: usize, end: usize| {
        let at = planner.offset_of_next(bytes, end, usize::MAX);
        assert_eq!(at, end);
        planner.note(bytes, Some(at))
    };
    let marks: Vec<u32> = (0..2 * HOLES).map(|n| ask(&mut planner, 64, 64 * n)).collect();
    marks.iter().step_by(2).for_each(|&mark| planner.ended(mark));
    let begun = Instant::now();
    for n in 0..HOLES {
        ask(&mut planner, 128, 128 * (HOLES + n));
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_request_that_was_not_met_was_never_alive() {
    let mut planner = Planner::default();
    planner.begin();
    for bytes in [640, 64] {
        planner.note(bytes, None);
    }
    planner.ended(PLANNED);
    for bytes in [128, 1 << 30] {
        let mark = planner.note(bytes, None);
        planner.take_back(mark);
        assert_eq!((planner.alive, planner.alive_max, planner.count()), (64, 704, 2));
    }
}

#[test]
fn a_cycle_of_too_many_requests_is_not_planned() {
    let mut arena = PlannedArena::default();
    let steps = vec![CycleStep::Ask(64); REQUESTS_MAX + 10];
    for _ in 0..3 {
        assert_eq!(arena.cycle(&steps, None).1, (REQUESTS_MAX + 10) * 64);
    }
    assert_eq!((arena.planner.stats().plans, arena.planner.size()), (0, 0));
}

/// Cycles that are much alike, with arrays that end earlier, later, or not at all: `PlannedArena::ask` looks at each.
#[test]
fn random_cycles_never_share_bytes_of_living_arrays() {
    let mut followed = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let step = |random: &mut Random| match random.of(0..5) {
            0..3 => CycleStep::Ask(64 * random.of(1..20)),
            _ => CycleStep::End(random.of(0..8)),
        };
        let mut kinds: Vec<Vec<CycleStep>> =
            (0..random.of(1..4)).map(|_| (0..random.of(1..60)).map(|_| step(&mut random)).collect()).collect();
        let (mut arena, shrink_after) = (PlannedArena::default(), [None, Some(2)][random.of(0..2)]);
        for _ in 0..40 {
            let kind = random.of(0..kinds.len());
            let mut steps = kinds[kind].clone();
            // Now and then it differs, for once or for ever.
            if random.of(0..4) == 0 {
                for _ in 0..random.of(1..4) {
                    let at = random.of(0..steps.len());
                    steps[at] = step(&mut random);
                }
                if random.of(0..3) == 0 {
                    kinds[kind].clone_from(&steps);
                }
            }
            if random.of(0..8) == 0 {
                steps.truncate(random.of(0..steps.len() + 1));
            }
            arena.cycle(&steps, shrink_after);
        }
        followed += arena.planner.stats().planned_cycles;
    }
    assert!(followed > 4000, "{followed}");
}

#[rustfmt::skip]
const LENET: [(usize, usize, usize); 44] = [
    (1_474_560, 0, 3), (57_600, 1, 2), (1_474_560, 2, 22), (368_640, 3, 40), (368_640, 4, 41), (409_600, 5, 8),
    (128_000, 6, 7), (409_600, 7, 22), (102_400, 8, 34), (102_400, 9, 35), (64_000, 10, 12), (64_000, 11, 13),
    (64_000, 12, 31), (1280, 13, 15), (1280, 14, 19), (1280, 15, 27), (1280, 16, 18), (1280, 17, 19), (128, 18, 22),
    (64, 19, 21), (64, 20, 23), (64, 21, 22), (64, 22, 24), (64, 23, 25), (1280, 24, 26), (1280, 25, 27),
    (1280, 26, 30), (64, 27, 44), (64_000, 28, 31), (20_032, 29, 44), (64_000, 30, 34), (2048, 31, 44),
    (102_400, 32, 35), (1_600_000, 33, 44), (409_600, 34, 40), (256, 35, 44), (368_640, 36, 41), (128_000, 37, 38),
    (100_032, 38, 44), (128_000, 39, 40), (1_474_560, 40, 44), (128, 41, 44), (2048, 42, 44), (57_600, 43, 44),
];
