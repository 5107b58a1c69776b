//! The numbers of ND4J's tests, with our alignment, on an arena that checks what the plan tells it to do.

use super::super::config::{ResetPolicy, WorkspaceConfigBuilder};
use super::*;

mod random;

const ALIGN: usize = 64;
const MIB: usize = 1 << 20;

/// Bytes that an array of so many `f64` takes.
fn el(count: usize) -> usize {
    (count * 8).next_multiple_of(ALIGN)
}

/// Bytes of a ring's block that was learned from that need.
fn padded(need: usize) -> usize {
    ((need as f64 * 1.3) as usize).next_multiple_of(ALIGN)
}

/// Something that lies in memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    generation: u64,
    step: u64,
    at: usize,
    bytes: usize,
}

/// Does what the plan says, and checks that nothing valid is ever overwritten or freed.
#[derive(Debug)]
struct CheckedArena {
    plan: Plan,
    block: Vec<Piece>,
    externals: Vec<Piece>,
    pinned: Vec<Piece>,
    /// Cycles before are not promised to be there.
    oldest: u64,
    /// How often a block was made.
    made: usize,
    /// Whether making one fails.
    broken: bool,
}

impl CheckedArena {
    fn new(builder: WorkspaceConfigBuilder) -> CheckedArena {
        let plan = Plan::new(&builder.build().expect("no contradiction"), ALIGN);
        let mut arena = CheckedArena {
            plan,
            block: Vec::new(),
            externals: Vec::new(),
            pinned: Vec::new(),
            oldest: 0,
            made: 0,
            broken: false,
        };
        match arena.plan.first_size() {
            0 => {}
            size => arena.make(size),
        }
        arena
    }

    fn make(&mut self, size: usize) {
        let max = self.plan.config.max_size() as usize;
        assert!(max == 0 || size <= max, "{size} is more than {max}");
        if !self.broken {
            self.made += 1;
            self.plan.sized(size);
            self.oldest = self.block.drain(..).map(|piece| piece.generation + 1).fold(self.oldest, u64::max);
            self.promise();
        }
    }

    /// Of a ring the cycles of the last turn are there, the running one among them; while each takes what it needs, up
    /// to one less.
    fn promise(&mut self) {
        let whole = if self.plan.is_circular() { self.plan.turn() - usize::from(self.plan.elastic) } else { 1 };
        self.oldest = self.oldest.max((self.plan.generation() + 1).saturating_sub(whole.max(1) as u64));
    }

    fn enter(&mut self) {
        self.plan.enter();
        if !self.plan.is_circular() {
            self.block.clear();
        }
        self.promise();
        self.block.retain(|piece| piece.generation >= self.oldest);
    }

    fn ask(&mut self, bytes: usize) -> Result<Placement, Full> {
        let fails = self.plan.config.policy_spill() == SpillPolicy::Fail;
        let before = fails.then(|| format!("{:?}", self.plan));
        let placement = self.plan.place(bytes);
        self.promise();
        match placement {
            Ok(placement) => self.book(placement, bytes),
            Err(Full) => assert_eq!(before, Some(format!("{:?}", self.plan)), "a refusal changed something"),
        }
        self.check();
        placement
    }

    fn divert(&mut self, bytes: usize) {
        let placement = match self.plan.place(bytes) {
            Ok(Placement::Block(_)) => self.plan.divert(bytes),
            Ok(placement) => placement,
            Err(Full) => return,
        };
        assert!(!matches!(placement, Placement::Block(_)));
        self.book(placement, bytes);
        self.check();
    }

    fn refuse(&mut self, bytes: usize) {
        let books =
            |plan: &Plan| (plan.this_cycle(), plan.spilled(), plan.externals(), plan.pinned_bytes(), plan.pinned());
        let (before, offset) = (books(&self.plan), self.plan.offset());
        if let Ok(placement) = self.plan.place(bytes) {
            self.plan.take_back(placement, bytes);
            assert_eq!(books(&self.plan), before);
            // A ring may have begun anew for it.
            assert!([offset, 0].contains(&self.plan.offset()));
        }
    }

    fn book(&mut self, placement: Placement, bytes: usize) {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let mut piece = Piece { generation: self.plan.generation(), step: self.plan.step(), at: 0, bytes };
        match placement {
            Placement::External => self.externals.push(piece),
            Placement::Pinned => self.pinned.push(piece),
            Placement::Block(at) => {
                assert!(at % ALIGN == 0 && at + bytes <= self.plan.size(), "{at} {bytes} {:?}", self.plan);
                piece.at = at;
                for other in self.block.iter().filter(|other| other.generation >= self.oldest) {
                    assert!(at + bytes <= other.at || other.at + other.bytes <= at, "{piece:?} {other:?} {self:?}");
                }
                self.block.push(piece);
            }
        }
    }

    fn leave(&mut self) -> Leave {
        let leave = self.plan.leave();
        let (oldest, circular) = (self.oldest, self.plan.is_circular());
        let valid = |pieces: &[Piece]| pieces.iter().any(|piece| circular && piece.generation >= oldest);
        if leave.free_externals {
            assert!(!valid(&self.externals), "{self:?}");
            let all = std::mem::take(&mut self.externals);
            self.plan.released_externals(all.iter().map(|piece| piece.bytes).sum(), all.len() as u64);
        }
        let (free, kept): (Vec<_>, Vec<_>) =
            self.pinned.iter().partition(|piece| piece.step < leave.free_pinned_before);
        assert!(!valid(&free), "{free:?} of {self:?}");
        self.plan.released_pinned(free.iter().map(|piece| piece.bytes).sum(), free.len() as u64);
        self.pinned = kept;
        if let Some(size) = leave.resize {
            assert!(!valid(&self.block), "{self:?}");
            self.make(size);
        }
        self.check();
        leave
    }

    fn check(&self) {
        let plan = &self.plan;
        assert!(plan.offset() <= plan.size(), "{plan:?}");
        assert!(plan.block() <= plan.size(), "{plan:?}");
        let sum = |pieces: &[Piece]| (pieces.iter().map(|piece| piece.bytes).sum::<usize>(), pieces.len() as u64);
        assert_eq!((plan.spilled(), plan.externals()), sum(&self.externals));
        assert_eq!((plan.pinned_bytes(), plan.pinned()), sum(&self.pinned));
    }

    fn cycle(&mut self, requests: &[usize]) -> Vec<Placement> {
        self.enter();
        let placements = requests.iter().map(|bytes| self.ask(*bytes).expect("room")).collect();
        self.leave();
        placements
    }

    fn cycles(&mut self, count: usize, requests: &[usize]) {
        for _ in 0..count {
            self.cycle(requests);
        }
    }

    fn initialize(&mut self) {
        if let Some(size) = self.plan.initialize() {
            self.make(size);
        }
    }

    fn trim(&mut self) {
        if let Some(size) = self.plan.trim() {
            self.make(size);
        }
    }
}

fn strict() -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().policy_allocation(AllocationPolicy::Strict)
}

fn over_time(cycles: u32) -> WorkspaceConfigBuilder {
    strict().policy_learning(LearningPolicy::OverTime).cycles_before_initialization(cycles)
}

/// A ring of so many blocks beside the first.
fn ring(more: usize) -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(more as f64)
}

fn strict_ring() -> WorkspaceConfigBuilder {
    strict().policy_reset(ResetPolicy::EndOfBufferReached)
}

#[test]
fn w2_min_size_is_the_floor_of_what_is_learned() {
    let mut arena = CheckedArena::new(strict().min_size(10 * MIB as u64));
    arena.enter();
    assert_eq!(arena.ask(el(100)), Ok(Placement::External));
    assert_eq!(arena.plan.size(), 0);
    arena.leave();
    arena.enter();
    assert_eq!(arena.plan.size(), 10 * MIB);
}

#[test]
fn w13_first_loop_goes_outside_once() {
    let mut arena = CheckedArena::new(strict());
    assert_eq!(arena.cycle(&[el(100)]), [Placement::External]);
    assert_eq!(arena.cycle(&[el(100)]), [Placement::Block(0)]);
    assert_eq!((arena.plan.size(), arena.plan.spilled()), (el(100), 0));
}

#[test]
fn w15_initial_size_gets_its_slack_at_once() {
    let over = WorkspaceConfig::builder().overallocation_limit(1.0).policy_learning(LearningPolicy::None);
    assert_eq!(CheckedArena::new(over.clone().initial_size(1024)).plan.size(), 2048);
    assert_eq!(CheckedArena::new(over.clone().initial_size(1024).max_size(1500)).plan.size(), 1500);
    assert_eq!(CheckedArena::new(over.clone().min_size(1024)).plan.size(), 1024);
    let mapped = over.initial_size(1024).policy_location(LocationPolicy::Mmap);
    assert_eq!(CheckedArena::new(mapped).plan.size(), 1024);
}

#[test]
fn w16_first_loop_gets_its_slack() {
    let mut arena = CheckedArena::new(WorkspaceConfig::builder().overallocation_limit(1.0));
    arena.cycle(&[el(100)]);
    assert_eq!(arena.plan.size(), 2 * el(100));
}

#[test]
fn w17_over_time_waits_for_initialize() {
    let builder = WorkspaceConfig::builder().overallocation_limit(1.0).policy_learning(LearningPolicy::OverTime);
    let mut arena = CheckedArena::new(builder);
    assert_eq!(arena.plan.initialize(), None);
    for count in 1..=10 {
        arena.cycle(&[el(10 * count)]);
        assert_eq!(arena.plan.size(), 0);
    }
    arena.initialize();
    assert_eq!(arena.plan.size(), 2 * el(100));
}

#[test]
fn w18_what_is_made_while_switched_off_does_not_count() {
    let mut arena = CheckedArena::new(strict());
    arena.enter();
    arena.ask(el(100)).expect("room");
    arena.plan.toggle(false);
    assert_eq!(arena.ask(el(100)), Ok(Placement::External));
    arena.plan.toggle(true);
    arena.ask(el(100)).expect("room");
    arena.leave();
    assert_eq!(arena.plan.size(), 2 * el(100));
    arena.enter();
    arena.ask(el(100)).expect("room");
    assert_eq!(arena.plan.offset(), el(100));
    arena.plan.toggle(false);
    assert_eq!(arena.ask(el(100)), Ok(Placement::External));
    assert_eq!(arena.plan.offset(), el(100));
    arena.plan.toggle(true);
    arena.ask(el(100)).expect("room");
    assert_eq!(arena.plan.offset(), 2 * el(100));
    arena.plan.toggle(false);
    arena.leave();
    assert!(arena.plan.is_on());
    assert_eq!((arena.plan.externals(), arena.plan.spilled()), (0, 0));
}

#[test]
fn w19_an_initialised_loop_begins_and_ends_at_0() {
    let mut arena = CheckedArena::new(over_time(0));
    arena.cycle(&[el(10)]);
    arena.initialize();
    for _ in 0..10 {
        assert_eq!(arena.plan.offset(), 0);
        assert_eq!(arena.cycle(&[el(10)]), [Placement::Block(0)]);
    }
    assert_eq!(arena.plan.offset(), 0);
}

#[test]
fn w20_growing_cycles_stay_outside_until_then() {
    let mut arena = CheckedArena::new(over_time(0));
    for count in 1..=100 {
        assert_eq!(arena.cycle(&[el(count)]), [Placement::External]);
    }
    arena.initialize();
    arena.enter();
    arena.ask(el(10)).expect("room");
    assert_eq!((arena.plan.size(), arena.plan.offset()), (el(100), el(10)));
}

#[test]
fn w21_first_loop_learns_the_sum() {
    let mut arena = CheckedArena::new(strict());
    arena.cycle(&[el(100), el(10)]);
    assert_eq!((arena.plan.size(), arena.plan.offset()), (el(100) + el(10), 0));
}

#[test]
fn w22_a_smaller_cycle_fits() {
    let mut arena = CheckedArena::new(strict());
    arena.cycle(&[el(100), el(100)]);
    arena.enter();
    assert_eq!(arena.ask(el(100)), Ok(Placement::Block(0)));
    assert_eq!(arena.plan.offset(), el(100));
    arena.leave();
    assert_eq!(arena.plan.offset(), 0);
    assert_eq!((arena.plan.last_cycle(), arena.plan.max_cycle()), (el(100), 2 * el(100)));
}

#[test]
fn w23_each_request_moves_the_offset_by_its_rounded_size() {
    let mut arena = CheckedArena::new(strict().initial_size(10 * MIB as u64).max_size(10 * MIB as u64));
    arena.enter();
    let mut expected = 0;
    for bytes in [80, 1, 0, 64, 65, 800] {
        assert_eq!(arena.ask(bytes), Ok(Placement::Block(expected)));
        expected += bytes.max(1).next_multiple_of(ALIGN);
        assert_eq!((arena.plan.offset(), arena.plan.this_cycle()), (expected, expected));
    }
}

#[test]
fn w24_fail_refuses_and_goes_on() {
    let mut arena = CheckedArena::new(strict().initial_size(el(100) as u64).policy_spill(SpillPolicy::Fail));
    arena.enter();
    for bytes in [el(100) + 1, usize::MAX, usize::MAX - ALIGN, isize::MAX as usize] {
        assert_eq!(arena.ask(bytes), Err(Full));
        assert_eq!((arena.plan.offset(), arena.plan.this_cycle()), (0, 0));
    }
    assert_eq!(arena.ask(el(10)), Ok(Placement::Block(0)));
}

#[test]
fn w31_a_ring_learns_over_time() {
    let builder = ring(4).policy_learning(LearningPolicy::OverTime).cycles_before_initialization(5);
    let mut arena = CheckedArena::new(builder);
    for cycle in 1..=100 {
        arena.cycle(&[el(100)]);
        let block = if cycle < 5 { 0 } else { padded(el(100)) };
        assert_eq!((arena.plan.block(), arena.plan.size()), (block, 5 * block));
    }
}

#[test]
fn w32_a_ring_of_a_given_size_is_filled_cycle_by_cycle() {
    let mut arena = CheckedArena::new(strict_ring().initial_size(100 * el(100) as u64));
    for cycle in 1..=100 {
        arena.cycle(&[el(100)]);
        assert_eq!((arena.plan.offset(), arena.plan.turn()), (cycle * el(100), 100));
    }
    arena.enter();
    assert_eq!(arena.plan.offset(), 0);
}

#[test]
fn w36_the_first_cycle_of_a_ring_stays_until_it_turned() {
    let mut arena = CheckedArena::new(strict_ring().overallocation_limit(1.0).min_size(10 * MIB as u64));
    arena.enter();
    arena.ask(el(10000)).expect("room");
    assert_eq!((arena.plan.size(), arena.plan.externals()), (0, 1));
    arena.leave();
    assert_eq!((arena.plan.size(), arena.plan.offset(), arena.plan.externals()), (10 * MIB, 0, 1));
    let blocks = 10 * MIB / padded(el(10000));
    arena.cycles(blocks, &[el(10000)]);
    assert_eq!(arena.plan.externals(), 1);
    arena.cycle(&[el(10000)]);
    assert_eq!(arena.plan.externals(), 0);
}

#[test]
fn w37_a_ring_grows_when_nothing_in_it_is_valid() {
    let (small, large) = (el(8 * 128 * 100), el(8 * 128 * 200));
    let mut arena = CheckedArena::new(ring(3).policy_spill(SpillPolicy::Reallocate));
    arena.cycle(&[small]);
    let block = padded(small);
    assert_eq!((arena.plan.block(), arena.plan.size(), arena.plan.offset()), (block, 4 * block, 0));
    assert_eq!((arena.plan.cycles(), arena.plan.step()), (1, 0));
    arena.cycle(&[small]);
    assert_eq!((arena.plan.offset(), arena.plan.cycles(), arena.plan.step()), (block, 2, 0));
    arena.cycle(&[large]);
    assert_eq!((arena.plan.offset(), arena.plan.pinned(), arena.plan.step()), (block, 1, 0));
    arena.cycle(&[small]);
    assert_eq!((arena.plan.pinned(), arena.plan.cycles(), arena.plan.step()), (2, 4, 0));
    arena.cycle(&[small]);
    assert_eq!((arena.plan.pinned(), arena.plan.cycles(), arena.plan.step()), (3, 5, 1));
    arena.cycles(12, &[small]);
    assert_eq!((arena.plan.step(), arena.plan.block()), (4, padded(large)));
    assert_eq!((arena.plan.size(), arena.plan.offset()), (4 * padded(large), 4 * padded(large)));
    assert_eq!(arena.made, 2);
}

#[test]
fn w38_reallocate_grows_to_a_larger_cycle() {
    let mut arena = CheckedArena::new(over_time(0).policy_spill(SpillPolicy::Reallocate));
    arena.cycle(&[el(100)]);
    arena.initialize();
    assert_eq!(arena.plan.size(), el(100));
    arena.cycle(&[el(1000)]);
    assert_eq!(arena.plan.max_cycle(), el(1000));
    arena.initialize();
    assert_eq!(arena.plan.size(), el(1000));
    assert_eq!(arena.cycle(&[el(500)]), [Placement::Block(0)]);
}

#[test]
fn w39_reallocate_grows_after_the_cycles_to_learn_from() {
    let mut arena = CheckedArena::new(over_time(3).policy_spill(SpillPolicy::Reallocate));
    for count in 1..=10 {
        arena.cycle(&[el(100 * count)]);
        assert_eq!(arena.plan.size(), if count < 3 { 0 } else { el(100 * count) });
    }
}

#[test]
fn w40_a_few_smaller_cycles_do_not_shrink_it() {
    let builder = WorkspaceConfig::builder()
        .overallocation_limit(0.0)
        .policy_learning(LearningPolicy::OverTime)
        .policy_spill(SpillPolicy::Reallocate);
    let mut arena = CheckedArena::new(builder);
    for count in 1..=10 {
        arena.cycle(&[el(100 * count)]);
        if count == 3 {
            arena.initialize();
            assert_eq!(arena.plan.size(), el(300));
        }
    }
    for count in (1..=10).rev() {
        arena.cycle(&[el(100 * count)]);
    }
    arena.initialize();
    assert_eq!(arena.plan.size(), el(1000));
    // The last four needed 400 and less.
    arena.trim();
    assert_eq!(arena.plan.size(), el(400));
}

#[test]
fn w41_the_second_cycle_of_a_ring_takes_one_block() {
    let mut arena = CheckedArena::new(strict_ring().min_size(10 * MIB as u64));
    arena.cycle(&[el(10)]);
    assert_eq!((arena.plan.size(), arena.plan.offset()), (10 * MIB, 0));
    arena.cycle(&[el(10)]);
    assert_eq!((arena.plan.size(), arena.plan.offset()), (10 * MIB, padded(el(10))));
}

#[test]
fn w42_a_loop_knows_its_last_cycle() {
    let mut arena = CheckedArena::new(over_time(0));
    for count in 1..=100 {
        arena.cycle(&[el(count)]);
        assert_eq!(arena.plan.last_cycle(), el(count));
    }
    arena.initialize();
    assert_eq!((arena.plan.size(), arena.plan.offset()), (el(100), 0));
}

#[test]
fn w43_a_nested_entry_adds_to_its_cycle() {
    let mut arena = CheckedArena::new(strict().initial_size(10 * MIB as u64));
    arena.enter();
    arena.ask(el(100)).expect("room");
    let mark = arena.plan.mark();
    assert_eq!(arena.ask(el(100)), Ok(Placement::Block(el(100))));
    assert_eq!(arena.ask(10 * MIB), Ok(Placement::External));
    arena.block.pop();
    arena.plan.rewind(mark);
    assert_eq!(arena.plan.offset(), el(100));
    assert_eq!(arena.ask(el(50)), Ok(Placement::Block(el(100))));
    arena.leave();
    // The most that was there at once, not the sum.
    assert_eq!(arena.plan.last_cycle(), 2 * el(100) + 10 * MIB);
}

#[test]
fn w45_external_does_not_grow() {
    let mut arena = CheckedArena::new(over_time(0));
    arena.cycle(&[el(100)]);
    arena.initialize();
    arena.cycle(&[el(1000)]);
    arena.initialize();
    assert_eq!(arena.plan.size(), el(100));
}

#[test]
fn w46_only_the_first_cycles_are_learned_from() {
    let mut arena = CheckedArena::new(over_time(3));
    for count in 1..10 {
        arena.cycle(&[el(100 * count)]);
    }
    arena.initialize();
    assert_eq!(arena.plan.size(), el(300));
}

#[test]
fn w51_a_ring_pins_what_is_too_large() {
    let mut arena = CheckedArena::new(ring(3));
    arena.cycle(&[el(500), el(500)]);
    let block = padded(2 * el(500));
    assert_eq!((arena.plan.step(), arena.plan.spilled()), (0, 2 * el(500)));
    assert_eq!((arena.plan.block(), arena.plan.size()), (block, 4 * block));
    arena.cycle(&[el(2000)]);
    assert_eq!((arena.plan.step(), arena.plan.spilled()), (0, 2 * el(500)));
    assert_eq!((arena.plan.pinned_bytes(), arena.plan.pinned()), (el(2000), 1));
    assert_eq!((arena.plan.offset(), arena.plan.this_cycle()), (0, 0));
    for round in 0..4 {
        for cycle in 1..=4 {
            arena.cycle(&[el(500), el(500)]);
            assert_eq!(arena.plan.offset(), cycle * block);
        }
        assert_eq!(arena.plan.pinned(), if round < 2 { 1 } else { 0 });
    }
    let outside = |plan: &Plan| (plan.spilled(), plan.externals(), plan.pinned_bytes(), plan.pinned());
    assert_eq!(outside(&arena.plan), (0, 0, 0, 0));
    for _ in 0..100 {
        arena.enter();
        for _ in 0..3 {
            arena.ask(el(500)).expect("room");
        }
        assert_eq!(arena.plan.this_cycle(), 3 * el(500));
        arena.leave();
    }
    assert!(arena.plan.pinned() > 0 && arena.plan.pinned_bytes() > 0);
    assert!(arena.plan.pinned() <= 12, "not more than three turns");
    assert_eq!((arena.plan.spilled(), arena.plan.externals()), (0, 0));
    arena.cycles(100, &[el(500), el(500)]);
    assert_eq!(outside(&arena.plan), (0, 0, 0, 0));
    assert_eq!(arena.plan.size(), 4 * block);
}

#[test]
fn w52_a_ring_grows_and_keeps_nothing_outside() {
    let mut arena = CheckedArena::new(ring(3).policy_spill(SpillPolicy::Reallocate));
    arena.cycle(&[el(500), el(500)]);
    assert_eq!(arena.plan.size(), 4 * padded(2 * el(500)));
    arena.cycles(100, &[el(500), el(500), el(500)]);
    assert_eq!(arena.plan.block(), padded(3 * el(500)));
    assert_eq!(arena.plan.size(), 4 * arena.plan.block());
    assert_eq!((arena.plan.spilled(), arena.plan.externals()), (0, 0));
    assert_eq!((arena.plan.pinned_bytes(), arena.plan.pinned()), (0, 0));
    assert_eq!(arena.made, 2);
}

#[test]
fn w57_a_mapped_workspace_spills() {
    let bytes = 200 * MIB;
    let builder = WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap).initial_size(bytes as u64);
    let mut arena = CheckedArena::new(builder);
    assert_eq!(arena.plan.size(), bytes);
    assert_eq!(arena.cycle(&[bytes + el(1000), el(1000)]), [Placement::External, Placement::Block(0)]);
    assert_eq!((arena.plan.size(), arena.plan.externals()), (bytes, 0));
}

#[test]
fn w61_spill_everything_learns_nothing() {
    let mut arena = CheckedArena::new(strict().initial_size(10 * MIB as u64));
    arena.plan.set_debug(DebugMode::SpillEverything);
    arena.enter();
    assert_eq!(arena.ask(el(100)), Ok(Placement::External));
    assert_eq!((arena.plan.offset(), arena.plan.spilled()), (0, el(100)));
    arena.leave();
    let mut arena = CheckedArena::new(strict());
    arena.plan.set_debug(DebugMode::SpillEverything);
    arena.cycle(&[el(100)]);
    assert_eq!((arena.plan.size(), arena.plan.spilled(), arena.plan.initialize()), (0, 0, None));
    arena.plan.set_debug(DebugMode::Disabled);
    arena.cycle(&[el(100)]);
    assert_eq!(arena.plan.size(), el(100));
}

/// A ring of `el(100)` bytes, of which nothing is learned.
fn small_ring(spill: SpillPolicy) -> CheckedArena {
    let builder = strict_ring().policy_learning(LearningPolicy::None).initial_size(el(100) as u64);
    CheckedArena::new(builder.policy_spill(spill))
}

#[test]
fn r7_what_is_larger_than_a_ring_spills() {
    let mut arena = small_ring(SpillPolicy::External);
    for _ in 0..20 {
        let placements = arena.cycle(&[el(1000), el(50)]);
        assert!(matches!(placements[..], [Placement::Pinned, Placement::Block(_)]), "{placements:?}");
        assert!(arena.plan.pinned() <= 6, "{:?}", arena.plan);
    }
    assert_eq!((arena.plan.size(), arena.made), (el(100), 1));
}

#[test]
fn r7_what_is_larger_than_a_ring_grows_it() {
    let mut arena = small_ring(SpillPolicy::Reallocate);
    arena.cycles(20, &[el(1000)]);
    assert_eq!((arena.plan.size(), arena.made), (padded(el(1000)), 2));
    assert_eq!(arena.cycle(&[el(1000)]), [Placement::Block(0)]);
    arena.cycles(20, &[el(1000)]);
    assert_eq!((arena.plan.pinned(), arena.made), (0, 2));
}

#[test]
fn r7_what_is_larger_than_a_ring_fails() {
    let mut arena = small_ring(SpillPolicy::Fail);
    arena.enter();
    assert_eq!(arena.ask(el(60)), Ok(Placement::Block(0)));
    assert_eq!(arena.ask(el(60)), Err(Full));
    assert_eq!(arena.ask(el(1000)), Err(Full));
    assert_eq!(arena.ask(el(40)), Ok(Placement::Block(el(60))));
}

#[test]
fn r8_slow_growth_makes_few_blocks() {
    let mut arena = CheckedArena::new(WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate));
    for count in 1..=1000 {
        arena.cycle(&[el(8 * count)]);
    }
    let doublings_of_1_3 = (1000f64.ln() / 1.3f64.ln()).ceil() as usize;
    assert!(arena.made <= doublings_of_1_3 + 1, "{} blocks", arena.made);
    let mut arena = CheckedArena::new(ring(3).policy_spill(SpillPolicy::Reallocate));
    for count in 1..=1000 {
        arena.cycle(&[el(8 * count)]);
    }
    assert!(arena.made <= doublings_of_1_3 + 1, "{} blocks", arena.made);
}

#[test]
fn r8_the_maximum_is_met_to_the_byte() {
    let max = el(1000) + 7;
    for builder in [strict(), WorkspaceConfig::builder()] {
        let mut arena = CheckedArena::new(builder.max_size(max as u64).policy_spill(SpillPolicy::Reallocate));
        arena.cycle(&[el(100)]);
        arena.cycle(&[2 * el(1000)]);
        assert_eq!(arena.plan.size(), max);
        arena.cycles(3, &[2 * el(1000)]);
        assert_eq!((arena.plan.size(), arena.made), (max, 2));
    }
    let mut arena = CheckedArena::new(ring(3).max_size(max as u64).policy_spill(SpillPolicy::Reallocate));
    arena.cycle(&[el(100)]);
    arena.cycles(40, &[2 * el(1000)]);
    assert_eq!((arena.plan.size(), arena.plan.block(), arena.made), (max, el(1000), 2));
}

#[test]
fn r8_small_cycles_shrink_it() {
    let builder = WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).shrink_after(10);
    let mut arena = CheckedArena::new(builder);
    arena.cycle(&[el(1000)]);
    let large = arena.plan.size();
    for _ in 0..3 {
        arena.cycles(9, &[el(100)]);
        arena.cycle(&[el(800)]);
    }
    assert_eq!(arena.plan.size(), large);
    arena.cycles(9, &[el(104)]);
    assert_eq!(arena.plan.size(), large);
    arena.cycle(&[el(96)]);
    assert_eq!(arena.plan.size(), grown(el(104), 0.3));
    arena.cycles(30, &[el(104)]);
    assert_eq!(arena.made, 2);
    arena.cycle(&[el(200)]);
    assert_eq!(arena.plan.size(), grown(el(200), 0.3));
    assert_eq!(arena.plan.max_cycle(), el(1000));
}

#[test]
fn r8_a_ring_shrinks_when_nothing_in_it_is_valid() {
    let mut arena = CheckedArena::new(ring(3).shrink_after(10));
    arena.cycle(&[el(1000)]);
    arena.cycles(10, &[el(104)]);
    assert_eq!(arena.plan.size(), 4 * padded(el(1000)));
    arena.cycles(12, &[el(104)]);
    assert_eq!(arena.plan.size(), 4 * padded(el(104)));
    arena.cycles(50, &[el(104)]);
    assert_eq!((arena.plan.pinned(), arena.made), (0, 2));
}

#[test]
fn r8_trim_goes_by_the_last_cycles_and_keeps_min_size() {
    let mut arena = CheckedArena::new(strict().min_size(el(200) as u64));
    assert_eq!(arena.plan.trim(), None);
    arena.cycle(&[el(1000)]);
    assert_eq!(arena.plan.trim(), None);
    arena.cycle(&[el(300)]);
    arena.cycle(&[el(104)]);
    assert_eq!(arena.plan.trim(), Some(el(304)));
    arena.enter();
    assert_eq!(arena.plan.trim(), Some(el(304)));
    arena.ask(1).expect("room");
    assert_eq!(arena.plan.trim(), None);
    arena.leave();
    arena.trim();
    arena.cycle(&[el(16)]);
    arena.trim();
    assert_eq!(arena.plan.size(), el(200));
}

#[test]
fn a_block_that_could_not_be_made_changes_nothing() {
    let mut arena = CheckedArena::new(WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate));
    arena.broken = true;
    arena.cycles(3, &[el(100)]);
    assert_eq!((arena.plan.size(), arena.plan.externals()), (0, 0));
    arena.broken = false;
    arena.cycle(&[el(100)]);
    arena.broken = true;
    let size = arena.plan.size();
    arena.cycles(3, &[el(1000)]);
    assert_eq!(arena.plan.size(), size);
    assert_eq!(arena.cycle(&[el(100)]), [Placement::Block(0)]);
}

#[test]
fn a_diverted_request_leaves_the_bytes_to_the_next() {
    let mut arena = CheckedArena::new(strict().initial_size(el(100) as u64));
    arena.enter();
    arena.divert(el(50));
    assert_eq!((arena.plan.offset(), arena.plan.spilled(), arena.plan.this_cycle()), (0, el(50), el(50)));
    assert_eq!(arena.ask(el(100)), Ok(Placement::Block(0)));
}

#[test]
fn sizes_that_no_memory_has_do_not_wrap() {
    for builder in [strict(), WorkspaceConfig::builder(), ring(1000), strict_ring().initial_size(4096)] {
        let mut plan = Plan::new(&builder.policy_spill(SpillPolicy::Reallocate).build().expect("settings"), 256);
        plan.enter();
        for bytes in [usize::MAX, usize::MAX - 255, usize::MAX - 256, isize::MAX as usize, usize::MAX] {
            assert!(!matches!(plan.place(bytes), Ok(Placement::Block(_))));
        }
        let leave = plan.leave();
        assert!(leave.resize.is_none_or(|size| size <= isize::MAX as usize));
    }
}

#[test]
fn a_ring_without_room_for_a_block_does_not_turn_at_each_entry() {
    let mut arena = CheckedArena::new(ring(2).max_size(1));
    arena.cycle(&[el(8)]);
    assert_eq!((arena.plan.size(), arena.plan.block(), arena.plan.externals()), (1, 0, 1));
    arena.cycle(&[]);
    assert_eq!(arena.plan.externals(), 1);
    arena.cycles(6, &[el(8)]);
    assert_eq!(arena.plan.externals(), 0);
}

#[test]
fn a_ring_with_fewer_blocks_than_planned_keeps_fewer_cycles() {
    let builder = ring(3).policy_learning(LearningPolicy::OverTime).max_size(el(8) as u64).steps_number(1);
    let mut arena = CheckedArena::new(builder);
    arena.cycles(12, &[]);
    arena.cycle(&[el(8)]);
    arena.enter();
    assert_eq!((arena.oldest, arena.plan.turn()), (11, 4));
    arena.initialize();
    assert_eq!((arena.plan.size(), arena.plan.turn()), (el(8), 1));
    arena.leave();
    assert_eq!(arena.plan.pinned(), 0);
}
