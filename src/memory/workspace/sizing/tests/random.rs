//! Random settings, cycles and failures: no valid bytes are handed out again or freed.
//!
//! Programs are numbered, and a number is the seed of its program: the message of a failure has it. `PLAN_PROGRAMS`
//! asks for more than the usual ones, `PLAN_FIRST` for another first one.

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn of(&mut self, range: std::ops::Range<u32>) -> u32 {
        range.start + (self.next() % u64::from(range.end - range.start)) as u32
    }

    fn coin(&mut self) -> bool {
        self.of(0..2) == 1
    }

    fn bytes(&mut self) -> usize {
        match self.of(0..12) {
            0..8 => self.of(0..600) as usize,
            8..11 => self.of(500..6000) as usize,
            _ => self.of(5000..40000) as usize,
        }
    }

    fn act(&mut self) -> Act {
        match self.of(0..26) {
            0..16 => Act::Ask(self.bytes()),
            16..18 => Act::Divert(self.bytes()),
            18..20 => Act::Refuse(self.bytes()),
            20..22 => Act::Nest((0..self.of(0..4)).map(|_| self.bytes()).collect()),
            22..24 => Act::Toggle(self.coin()),
            24 if self.of(0..5) == 0 => Act::Debug(DebugMode::SpillEverything),
            24 => Act::Debug(DebugMode::Disabled),
            _ => Act::Initialize,
        }
    }

    fn cycle(&mut self) -> Cycle {
        let acts = (0..self.of(0..8)).map(|_| self.act()).collect();
        Cycle { acts, broken: self.of(0..16) == 0, trim: self.of(0..16) == 0 }
    }

    fn size(&mut self) -> u64 {
        if self.of(0..5) < 2 { 0 } else { u64::from(self.of(1..30000)) }
    }

    /// Settings that may contradict each other.
    fn settings(&mut self) -> WorkspaceConfigBuilder {
        let (exact, circular, mapped) = (self.coin(), self.coin(), self.coin());
        let learning = match self.of(0..6) {
            0..3 => (LearningPolicy::FirstLoop, 0),
            3..5 => (LearningPolicy::OverTime, self.of(0..5)),
            _ => (LearningPolicy::None, 0),
        };
        let limit = f64::from(self.of(0..5));
        let mut builder = WorkspaceConfig::builder()
            .policy_spill([SpillPolicy::External, SpillPolicy::Reallocate, SpillPolicy::Fail][self.of(0..3) as usize])
            .policy_learning(learning.0)
            .cycles_before_initialization(learning.1)
            .initial_size(self.size())
            .min_size(self.size())
            .max_size(self.size())
            .overallocation_limit(if circular { limit } else { limit * 0.3 })
            .steps_number(self.of(1..4))
            .shrink_after(if self.coin() { Some(self.of(1..20)) } else { None });
        if exact {
            builder = builder.policy_allocation(AllocationPolicy::Strict);
        }
        if circular {
            builder = builder.policy_reset(ResetPolicy::EndOfBufferReached);
        }
        if mapped {
            builder = builder.policy_location(LocationPolicy::Mmap);
        }
        builder
    }
}

/// What happens in a cycle.
#[derive(Clone, Debug)]
enum Act {
    Ask(usize),
    Divert(usize),
    Refuse(usize),
    Nest(Vec<usize>),
    Toggle(bool),
    Debug(DebugMode),
    Initialize,
}

/// A cycle, whether making a block fails at its end, and whether it is trimmed afterwards.
#[derive(Clone, Debug)]
struct Cycle {
    acts: Vec<Act>,
    broken: bool,
    trim: bool,
}

impl CheckedArena {
    fn act(&mut self, act: Act) {
        match act {
            Act::Ask(bytes) => {
                let refused = self.ask(bytes).is_err();
                assert!(!refused || self.plan.config.policy_spill() == SpillPolicy::Fail);
            }
            Act::Divert(bytes) => self.divert(bytes),
            Act::Refuse(bytes) => self.refuse(bytes),
            Act::Nest(requests) => {
                let mark = self.plan.mark();
                let before = self.block.len();
                for bytes in requests {
                    let _ = self.ask(bytes);
                }
                let need = self.plan.this_cycle();
                self.plan.rewind(mark);
                assert_eq!(self.plan.this_cycle(), need);
                if !self.plan.is_circular() {
                    self.block.truncate(before);
                }
            }
            Act::Toggle(on) => self.plan.toggle(on),
            Act::Debug(mode) => self.plan.set_debug(mode),
            Act::Initialize => self.initialize(),
        }
        self.check();
    }
}

/// Runs one program of cycles, and looks that what it keeps goes when the workspace is used on.
fn nothing_valid_is_overwritten_or_freed_in(builder: WorkspaceConfigBuilder, cycles: Vec<Cycle>) {
    let mut arena = CheckedArena::new(builder);
    for cycle in cycles {
        arena.enter();
        for act in cycle.acts {
            arena.act(act);
        }
        arena.broken = cycle.broken;
        arena.leave();
        if cycle.trim {
            arena.trim();
        }
        arena.broken = false;
        assert_eq!(arena.plan.this_cycle(), 0);
        assert!(arena.plan.is_circular() || arena.plan.offset() == 0);
        assert!(arena.plan.last_cycle() <= arena.plan.max_cycle());
    }
    // Whatever was kept outside goes when the workspace is used on.
    let need = arena.plan.block().min(ALIGN);
    arena.plan.set_debug(DebugMode::Disabled);
    let mut left = if need > 0 { 60_000 } else { 0 };
    while left > 0 && arena.plan.externals() + arena.plan.pinned() > 0 {
        arena.enter();
        let _ = arena.ask(need);
        arena.leave();
        left -= 1;
    }
    assert!(need == 0 || left > 0, "{:?}", arena.plan);
}

#[test]
fn nothing_valid_is_overwritten_or_freed() {
    let number = |name, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let first = number("PLAN_FIRST", 0);
    for seed in first..first + number("PLAN_PROGRAMS", 1000) {
        let mut random = Random(seed);
        // Others than before each time, and most draws contradict nothing.
        let builder = std::iter::repeat_with(|| random.settings()).find(|builder| builder.clone().build().is_ok());
        let builder = builder.expect("it goes on for ever");
        let cycles: Vec<_> = (0..random.of(1..60)).map(|_| random.cycle()).collect();
        let told = format!("{builder:?} {cycles:?}");
        let run = || nothing_valid_is_overwritten_or_freed_in(builder, cycles);
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            eprintln!("the program was that of seed {seed}: {told}");
            std::panic::resume_unwind(panic);
        }
    }
}
