//! Random programs against a plain model: who is open, who owns what, how many handles and bytes there are.
//!
//! On one thread every answer is compared after every step; on several threads the end is. Programs that fail
//! shrink. `PROPTEST_CASES` asks for more than the usual 64 programs.

mod model;
mod together;

use ndgc::{Device, Error, gc};
use proptest::prelude::*;

use crate::common::{Turn, turn};

/// The registry and its counts are the process's: one test at a time.
fn alone() -> Turn {
    let turn = turn();
    gc::off();
    gc::collect_orphans();
    turn
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A step. Numbers choose among what there is, counted on from the first.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create { manager: usize },
    CreateOnDevice,
    Clone { handle: usize },
    Drop { handle: usize },
    View { handle: usize },
    Detach { handle: usize },
    Add { dst: usize, src: usize },
    Close { handle: usize },
    Attach { handle: usize, manager: usize },
    AttachToHandles { handle: usize },
    Lend { handle: usize, manager: usize },
    Return { handle: usize, manager: usize },
    SubManager { parent: usize },
    Cap { manager: usize },
    CloseManager { manager: usize },
    DropManager { manager: usize },
    Revive { array: usize },
    Switch { on: bool },
    CollectOrphans,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64usize;
    let pair = || (0..64usize, 0..64usize);
    prop_oneof![
        6 => n.clone().prop_map(|manager| Step::Create { manager }),
        2 => Just(Step::CreateOnDevice),
        3 => n.clone().prop_map(|handle| Step::Clone { handle }),
        6 => n.clone().prop_map(|handle| Step::Drop { handle }),
        2 => n.clone().prop_map(|handle| Step::View { handle }),
        1 => n.clone().prop_map(|handle| Step::Detach { handle }),
        2 => pair().prop_map(|(dst, src)| Step::Add { dst, src }),
        1 => n.clone().prop_map(|handle| Step::Close { handle }),
        3 => pair().prop_map(|(handle, manager)| Step::Attach { handle, manager }),
        1 => n.clone().prop_map(|handle| Step::AttachToHandles { handle }),
        4 => pair().prop_map(|(handle, manager)| Step::Lend { handle, manager }),
        2 => pair().prop_map(|(handle, manager)| Step::Return { handle, manager }),
        2 => n.clone().prop_map(|parent| Step::SubManager { parent }),
        1 => n.clone().prop_map(|manager| Step::Cap { manager }),
        2 => n.clone().prop_map(|manager| Step::CloseManager { manager }),
        1 => n.clone().prop_map(|manager| Step::DropManager { manager }),
        2 => n.prop_map(|array| Step::Revive { array }),
        2 => any::<bool>().prop_map(|on| Step::Switch { on }),
        1 => Just(Step::CollectOrphans),
    ]
}

/// What a step should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Fine,
    Stale,
    Closed,
    Capped,
}

pub(crate) fn answer<T>(result: &Result<T, Error>) -> Answer {
    match result {
        Ok(_) => Answer::Fine,
        Err(Error::StaleArray(_)) => Answer::Stale,
        Err(Error::ManagerClosed { .. }) => Answer::Closed,
        Err(Error::ManagerCapped { .. }) => Answer::Capped,
        Err(other) => panic!("no step of these programs gives {other:?}"),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_program_on_one_thread_does_what_the_model_does(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps);
    }

    #[test]
    fn programs_on_three_threads_that_pass_handles_on_leave_nothing_behind(
        programs in prop::array::uniform3(prop::collection::vec(step(), 1..80)),
    ) {
        let _alone = alone();
        gc::collect();
        let before = (gc::stats(), Device::Cpu.memory().active);
        together::run(&programs);
        gc::off();
        gc::collect();
        let after = gc::stats();
        prop_assert_eq!((after.live, after.queued, after.kept), (before.0.live, before.0.queued, before.0.kept));
        prop_assert_eq!(Device::Cpu.memory().active, before.1);
    }
}

/// Runs one program beside the model.
fn run(steps: &[Step]) {
    let _alone = alone();
    let mut model = model::Model::new();
    for step in steps {
        model.run(step);
        model.check();
    }
    model.end();
}

/// Found by the random programs: looking up the key of an array that ended touched the next one in its slot.
#[test]
fn a_stale_key_leaves_the_kept_array_in_its_slot_alone() {
    for on in [false, true] {
        run(&[
            Step::CreateOnDevice,
            Step::Drop { handle: 0 },
            Step::Create { manager: 0 },
            Step::Drop { handle: 0 },
            Step::Switch { on },
            Step::Revive { array: 0 },
            Step::Revive { array: 1 },
        ]);
    }
}

/// An array that only its manager keeps, lent by its handles, of which none is left when it comes back.
#[test]
fn a_kept_array_that_was_lent_by_its_handles_ends_with_the_borrower() {
    run(&[
        Step::CreateOnDevice,
        Step::SubManager { parent: 0 },
        Step::Lend { handle: 0, manager: 1 },
        Step::Drop { handle: 0 },
        Step::CloseManager { manager: 1 },
    ]);
}

/// A handle found by key takes the place of the count that the manager kept.
#[test]
fn a_kept_array_that_was_found_by_key_is_an_ordinary_one() {
    for on in [false, true] {
        run(&[
            Step::Create { manager: 0 },
            Step::Drop { handle: 0 },
            Step::Revive { array: 0 },
            Step::AttachToHandles { handle: 0 },
            Step::Switch { on },
            Step::Drop { handle: 0 },
        ]);
    }
}
