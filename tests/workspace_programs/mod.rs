//! Random programs of workspaces against a plain model of the stack: which workspace is current, which arrays are
//! valid, and what is in them.
//!
//! Each array has a pattern of its own, and every valid one is read back after each step: bytes that two arrays share,
//! or that were used again too early, show. `PROPTEST_CASES` asks for more than the usual programs.

mod model;
mod readers;

use model::{Given, Model, Pool};
use ndgc::{
    AllocationPolicy, DebugMode, Device, Error, LearningPolicy, LocationPolicy, MirroringPolicy, ResetPolicy,
    SpillPolicy, Workspace, WorkspaceConfig, gc,
};
use proptest::prelude::*;

use crate::common::{Turn, random_cases, turn};

/// The registry and its counts are the process's: one test at a time.
fn alone() -> Turn {
    let turn = turn();
    gc::off();
    Workspace::set_debug_mode(DebugMode::Disabled);
    gc::collect();
    turn
}

/// A step. Numbers choose among what there is, counted on from the first.
#[derive(Clone, Debug)]
enum Step {
    /// Deeper by a guard, up to the `Leave` that belongs to it; as all of the next four that succeed.
    Enter {
        workspace: usize,
        config: usize,
    },
    Borrow {
        workspace: usize,
    },
    ScopeOut,
    /// Deeper without a guard: a planned panic from below ends here, and so does an early return.
    Catch,
    Leave,
    /// Cycles of a ring, or of what has this name, with an array each; one of them is leased.
    Turns {
        workspace: usize,
        config: usize,
        len: usize,
        count: usize,
    },
    EnterWrong {
        workspace: usize,
    },
    Return,
    Panic,
    Make {
        kind: Kind,
        len: usize,
    },
    View {
        array: usize,
    },
    Plus {
        array: usize,
    },
    PlusConsuming {
        array: usize,
    },
    Sum {
        array: usize,
    },
    Detach {
        array: usize,
    },
    Leverage {
        array: usize,
    },
    LeverageTo {
        array: usize,
        workspace: usize,
    },
    Migrate {
        array: usize,
        detach: bool,
    },
    Clone {
        array: usize,
    },
    Drop {
        array: usize,
    },
    Trim {
        workspace: usize,
    },
    Initialize {
        workspace: usize,
    },
    Destroy {
        workspace: usize,
    },
    Toggle {
        workspace: usize,
        on: bool,
    },
    Lease {
        workspace: usize,
    },
    DropLease {
        lease: usize,
    },
    /// Gives a handle to whoever asks.
    Give {
        array: usize,
    },
    /// Reads what somebody gave.
    Look {
        given: usize,
    },
    Switch {
        on: bool,
    },
}

/// How an array is made.
#[derive(Clone, Copy, Debug)]
enum Kind {
    F32,
    F64,
    I64,
    U8,
    Zeros,
    Ones,
    Full,
}

/// Few arrays are large, and few are empty.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..64usize, 2 => 64..700usize, 1 => 700..5_000usize, 1 => Just(0usize)]
}

fn kind() -> impl Strategy<Value = Kind> {
    use Kind::{F32, F64, Full, I64, Ones, U8, Zeros};
    prop::sample::select(vec![F32, F64, I64, U8, Zeros, Ones, Full])
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..64usize;
    prop_oneof![
        8 => (n(), n()).prop_map(|(workspace, config)| Step::Enter { workspace, config }),
        2 => n().prop_map(|workspace| Step::Borrow { workspace }),
        1 => Just(Step::ScopeOut),
        2 => Just(Step::Catch),
        12 => Just(Step::Leave),
        3 => (n(), n(), len(), 1..9usize).prop_map(|(workspace, config, len, count)| {
            Step::Turns { workspace, config, len, count }
        }),
        1 => n().prop_map(|workspace| Step::EnterWrong { workspace }),
        1 => Just(Step::Return),
        1 => Just(Step::Panic),
        12 => (kind(), len()).prop_map(|(kind, len)| Step::Make { kind, len }),
        3 => n().prop_map(|array| Step::View { array }),
        4 => n().prop_map(|array| Step::Plus { array }),
        2 => n().prop_map(|array| Step::PlusConsuming { array }),
        1 => n().prop_map(|array| Step::Sum { array }),
        2 => n().prop_map(|array| Step::Detach { array }),
        3 => n().prop_map(|array| Step::Leverage { array }),
        2 => (n(), n()).prop_map(|(array, workspace)| Step::LeverageTo { array, workspace }),
        2 => (n(), any::<bool>()).prop_map(|(array, detach)| Step::Migrate { array, detach }),
        1 => n().prop_map(|array| Step::Clone { array }),
        4 => n().prop_map(|array| Step::Drop { array }),
        1 => n().prop_map(|workspace| Step::Trim { workspace }),
        1 => n().prop_map(|workspace| Step::Initialize { workspace }),
        1 => n().prop_map(|workspace| Step::Destroy { workspace }),
        1 => (n(), any::<bool>()).prop_map(|(workspace, on)| Step::Toggle { workspace, on }),
        2 => n().prop_map(|workspace| Step::Lease { workspace }),
        2 => n().prop_map(|lease| Step::DropLease { lease }),
        2 => n().prop_map(|array| Step::Give { array }),
        2 => n().prop_map(|given| Step::Look { given }),
        1 => any::<bool>().prop_map(|on| Step::Switch { on }),
    ]
}

/// How many of the last configurations are rings.
const RINGS: usize = 5;

/// Every policy, in sizes that programs of these lengths fill, outgrow and go round.
fn configs() -> Vec<WorkspaceConfig> {
    let builder = WorkspaceConfig::builder;
    let ring = || builder().policy_reset(ResetPolicy::EndOfBufferReached);
    let fixed = || builder().policy_learning(LearningPolicy::None);
    [
        builder(),
        builder().policy_allocation(AllocationPolicy::Strict).shrink_after(2),
        fixed().initial_size(4 << 10),
        fixed().initial_size(2 << 10).policy_spill(SpillPolicy::Reallocate),
        fixed().initial_size(16 << 10).policy_spill(SpillPolicy::Fail),
        builder().policy_learning(LearningPolicy::OverTime).cycles_before_initialization(2),
        builder().policy_spill(SpillPolicy::Reallocate).max_size(8 << 10).min_size(1 << 10),
        fixed().initial_size(64 << 10).policy_location(LocationPolicy::Mmap),
        builder().policy_mirroring(MirroringPolicy::HostOnly).policy_learning(LearningPolicy::OverTime),
        builder().policy_learning(LearningPolicy::Planned),
        builder().policy_learning(LearningPolicy::Planned).initial_size(4 << 10).shrink_after(3),
        ring().policy_allocation(AllocationPolicy::Strict),
        ring().overallocation_limit(2.).steps_number(1),
        ring().overallocation_limit(3.).initial_size(1 << 10).policy_spill(SpillPolicy::Reallocate).steps_number(1),
        ring().overallocation_limit(1.).initial_size(8 << 10).policy_learning(LearningPolicy::None),
        ring().policy_allocation(AllocationPolicy::Strict).initial_size(6 << 10).policy_spill(SpillPolicy::Fail),
    ]
    .map(|builder| builder.build().unwrap())
    .into()
}

/// The counts of arrays, and the bytes of the host.
fn books() -> (u64, u64, u64, u64) {
    gc::off();
    gc::collect();
    let stats = gc::stats();
    (stats.live, stats.queued, stats.kept, Device::Cpu.memory().active)
}

/// Runs each program on a thread of its own, and looks at what is left afterwards.
fn run(programs: &[Vec<Step>], spill_everything: bool) {
    let before = books();
    // Arrays live as long then; each has memory of its own.
    Workspace::set_debug_mode(if spill_everything { DebugMode::SpillEverything } else { DebugMode::Disabled });
    let pool = Pool::default();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, program) in programs.iter().enumerate() {
            let pool = &pool;
            threads.push(scope.spawn(move || Model::new(number, pool).run(program)));
        }
        for thread in threads {
            // Its workspaces ended with the thread.
            thread.join().unwrap().iter().for_each(Given::check_ended);
        }
    });
    drop(pool);
    assert_eq!(books(), before, "arrays and bytes are what they were");
}

proptest! {
    #![proptest_config(random_cases(96))]

    #[test]
    fn a_program_on_one_thread_does_what_the_model_does(
        steps in prop::collection::vec(step(), 1..100),
        spill_everything in prop::bool::weighted(0.1),
    ) {
        let _alone = alone();
        run(&[steps], spill_everything);
    }

    #[test]
    fn programs_on_three_threads_read_each_others_arrays_exactly_or_not_at_all(
        programs in prop::array::uniform3(prop::collection::vec(step(), 1..80)),
    ) {
        let _alone = alone();
        run(&programs, false);
    }
}

/// What a use of an array may answer.
fn is_leak(error: &Error) -> bool {
    matches!(error, Error::LeakedArray(_) | Error::StaleArray(_))
}
