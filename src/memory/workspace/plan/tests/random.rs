//! Random settings, cycles and failures: no valid bytes are handed out again or freed.

use proptest::prelude::*;

use super::*;

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

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..600, 3 => 500usize..6000, 1 => 5000usize..40000]
}

fn act() -> impl Strategy<Value = Act> {
    let mode = prop_oneof![4 => Just(DebugMode::Disabled), 1 => Just(DebugMode::SpillEverything)];
    prop_oneof![
        16 => bytes().prop_map(Act::Ask),
        2 => bytes().prop_map(Act::Divert),
        2 => bytes().prop_map(Act::Refuse),
        2 => proptest::collection::vec(bytes(), 0..4).prop_map(Act::Nest),
        2 => any::<bool>().prop_map(Act::Toggle),
        1 => mode.prop_map(Act::Debug),
        1 => Just(Act::Initialize),
    ]
}

fn cycle() -> impl Strategy<Value = Cycle> {
    let acts = proptest::collection::vec(act(), 0..8);
    let rarely = || prop_oneof![15 => Just(false), 1 => Just(true)];
    (acts, rarely(), rarely()).prop_map(|(acts, broken, trim)| Cycle { acts, broken, trim })
}

fn settings() -> impl Strategy<Value = WorkspaceConfigBuilder> {
    let spill = prop_oneof![Just(SpillPolicy::External), Just(SpillPolicy::Reallocate), Just(SpillPolicy::Fail)];
    let learning = prop_oneof![
        3 => Just((LearningPolicy::FirstLoop, 0)),
        2 => (0u32..5).prop_map(|cycles| (LearningPolicy::OverTime, cycles)),
        1 => Just((LearningPolicy::None, 0)),
    ];
    let size = || prop_oneof![2 => Just(0u64), 3 => 1u64..30000];
    let policies = (any::<bool>(), any::<bool>(), any::<bool>(), spill, learning);
    let numbers = (size(), size(), size(), 0u32..5, 1u32..4, proptest::option::of(1u32..20));
    (policies, numbers).prop_map(|((exact, circular, mapped, spill, learning), numbers)| {
        let (initial, min, max, limit, steps, shrink) = numbers;
        let mut builder = WorkspaceConfig::builder()
            .policy_spill(spill)
            .policy_learning(learning.0)
            .cycles_before_initialization(learning.1)
            .initial_size(initial)
            .min_size(min)
            .max_size(max)
            .overallocation_limit(if circular { f64::from(limit) } else { f64::from(limit) * 0.3 })
            .steps_number(steps)
            .shrink_after(shrink);
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
    })
}

impl Arena {
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

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_valid_is_overwritten_or_freed(
        builder in settings().prop_filter("a contradiction", |builder| builder.clone().build().is_ok()),
        cycles in proptest::collection::vec(cycle(), 1..60),
    ) {
        let mut arena = Arena::new(builder);
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
            prop_assert_eq!(arena.plan.this_cycle(), 0);
            prop_assert!(arena.plan.is_circular() || arena.plan.offset() == 0);
            prop_assert!(arena.plan.last_cycle() <= arena.plan.max_cycle());
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
        prop_assert!(need == 0 || left > 0, "{:?}", arena.plan);
    }
}
