//! Random programs against a plain model: who is open, who owns what, how many handles and bytes there are.
//!
//! On one thread every answer is compared after every step; on several threads the end is. Programs that fail
//! shrink. `PROPTEST_CASES` asks for more than the usual 64 programs.

mod model;
mod together;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ndgc::{CpuStorage, CustomOp1, Device, Error, Key, Layout, NdManager, Shape, gc};
use proptest::prelude::*;
use proptest::{strategy::ValueTree, test_runner::TestRunner};

use crate::common::{Turn, random_cases, turn};

/// The registry and its counts are the process's: one test at a time.
fn alone() -> Turn {
    let turn = turn();
    gc::off();
    gc::collect_orphans();
    turn
}

/// A step. Numbers choose among what there is, counted on from the first.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create {
        manager: usize,
        size: usize,
    },
    /// Over bytes of the program's own, whose end closes a manager, and panics after that.
    CreateShared {
        manager: usize,
        closes: usize,
        panics: bool,
    },
    CreateOnDevice,
    Clone {
        handle: usize,
    },
    Drop {
        handle: usize,
    },
    View {
        handle: usize,
    },
    Detach {
        handle: usize,
    },
    Add {
        dst: usize,
        src: usize,
    },
    Intern {
        array: usize,
        replacement: usize,
    },
    Panic {
        handle: usize,
        user: User,
    },
    Export {
        handle: usize,
    },
    Import {
        pack: usize,
        manager: usize,
    },
    Close {
        handle: usize,
    },
    Attach {
        handle: usize,
        manager: usize,
    },
    AttachToHandles {
        handle: usize,
    },
    Lend {
        handle: usize,
        manager: usize,
    },
    Return {
        handle: usize,
        manager: usize,
    },
    SubManager {
        parent: usize,
    },
    Cap {
        manager: usize,
    },
    CloseManager {
        manager: usize,
    },
    DropManager {
        manager: usize,
    },
    Revive {
        array: usize,
    },
    Guess {
        array: usize,
        lives: i64,
        places: i64,
    },
    Switch {
        on: bool,
    },
    SwitchFor {
        on: bool,
    },
    DropGuard {
        guard: usize,
    },
    CollectOrphans,
}

/// Code of the user's that panics.
#[derive(Clone, Copy, Debug)]
pub(crate) enum User {
    /// Who reads the elements.
    Slice,
    /// A part of an operation, after it made an array.
    Part,
    /// A custom operation's forward pass.
    Forward,
    /// A custom operation's drop.
    Drop,
}

/// Elements of the arrays that are made: some of a size that resident memory shows.
pub(crate) const SIZES: [usize; 4] = [6, 6, 1536, 40_000];

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64usize;
    let pair = || (0..64usize, 0..64usize);
    prop_oneof![
        6 => pair().prop_map(|(manager, size)| Step::Create { manager, size }),
        2 => (0..64usize, 0..64usize, any::<bool>())
            .prop_map(|(manager, closes, panics)| Step::CreateShared { manager, closes, panics }),
        2 => Just(Step::CreateOnDevice),
        3 => n.clone().prop_map(|handle| Step::Clone { handle }),
        6 => n.clone().prop_map(|handle| Step::Drop { handle }),
        2 => n.clone().prop_map(|handle| Step::View { handle }),
        1 => n.clone().prop_map(|handle| Step::Detach { handle }),
        2 => pair().prop_map(|(dst, src)| Step::Add { dst, src }),
        2 => pair().prop_map(|(array, replacement)| Step::Intern { array, replacement }),
        2 => (0..64usize, prop::sample::select(vec![User::Slice, User::Part, User::Forward, User::Drop]))
            .prop_map(|(handle, user)| Step::Panic { handle, user }),
        1 => n.clone().prop_map(|handle| Step::Export { handle }),
        1 => pair().prop_map(|(pack, manager)| Step::Import { pack, manager }),
        1 => n.clone().prop_map(|handle| Step::Close { handle }),
        3 => pair().prop_map(|(handle, manager)| Step::Attach { handle, manager }),
        1 => n.clone().prop_map(|handle| Step::AttachToHandles { handle }),
        4 => pair().prop_map(|(handle, manager)| Step::Lend { handle, manager }),
        2 => pair().prop_map(|(handle, manager)| Step::Return { handle, manager }),
        2 => n.clone().prop_map(|parent| Step::SubManager { parent }),
        1 => n.clone().prop_map(|manager| Step::Cap { manager }),
        2 => n.clone().prop_map(|manager| Step::CloseManager { manager }),
        1 => n.clone().prop_map(|manager| Step::DropManager { manager }),
        2 => n.clone().prop_map(|array| Step::Revive { array }),
        1 => (0..64usize, -2..3i64, -2..3i64)
            .prop_map(|(array, lives, places)| Step::Guess { array, lives, places }),
        2 => any::<bool>().prop_map(|on| Step::Switch { on }),
        1 => any::<bool>().prop_map(|on| Step::SwitchFor { on }),
        1 => n.prop_map(|guard| Step::DropGuard { guard }),
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
    Shape,
    ReadOnly,
}

pub(crate) fn answer<T>(result: &Result<T, Error>) -> Answer {
    match result {
        Ok(_) => Answer::Fine,
        Err(Error::StaleArray(_)) => Answer::Stale,
        Err(Error::ManagerClosed { .. }) => Answer::Closed,
        Err(Error::ManagerCapped { .. }) => Answer::Capped,
        Err(Error::ShapeMismatch { .. }) => Answer::Shape,
        Err(Error::ReadOnly { .. }) => Answer::ReadOnly,
        Err(other) => panic!("no step of these programs gives {other:?}"),
    }
}

proptest! {
    #![proptest_config(random_cases(64))]

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
        let before = (gc::stats(), settled_bytes());
        together::run(&programs);
        gc::off();
        gc::collect();
        let after = gc::stats();
        prop_assert_eq!((after.live, after.queued, after.kept), (before.0.live, before.0.queued, before.0.kept));
        prop_assert_eq!(Device::Cpu.memory().active, before.1);
    }
}

/// Bytes in use, when the thread of the test before has given back what it had: that may come after its last line.
fn settled_bytes() -> u64 {
    loop {
        let bytes = Device::Cpu.memory().active;
        std::thread::sleep(std::time::Duration::from_millis(10));
        if Device::Cpu.memory().active == bytes {
            return bytes;
        }
    }
}

/// The key of an array, a few lives and places on.
pub(crate) fn guess(key: Key, lives: i64, places: i64) -> Key {
    let (life, place) = ((key.as_ffi() >> 32) as i64 + lives, key.as_ffi() as u32 as i64 + places);
    Key::from_ffi((life.max(0) as u64) << 32 | place.max(0) as u64)
}

/// A part of the user's code panics, quietly.
pub(crate) fn panic() -> ! {
    resume_unwind(Box::new("the user's"))
}

/// Runs what may panic on purpose; `None` if it did.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

/// A custom operation that copies, and panics somewhere.
pub(crate) struct Fragile(pub(crate) User);

impl CustomOp1 for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape), Error> {
        if matches!(self.0, User::Forward) {
            panic();
        }
        Ok((storage.clone(), *layout.shape()))
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if matches!(self.0, User::Drop) && !std::thread::panicking() {
            panic();
        }
    }
}

/// Bytes of the program's own.
pub(crate) struct Keeper {
    pub(crate) bytes: Vec<u8>,
    /// Found when they end.
    pub(crate) closes: Box<dyn Fn() -> Option<NdManager> + Send + Sync>,
    pub(crate) panics: bool,
}

impl AsRef<[u8]> for Keeper {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(manager) = (self.closes)() {
            manager.close().unwrap();
        }
        if self.panics && !std::thread::panicking() {
            panic();
        }
    }
}

/// Runs one program beside the model.
fn run(steps: &[Step]) {
    let _alone = alone();
    run_alone(steps);
}

fn run_alone(steps: &[Step]) {
    let mut model = model::Model::new();
    for step in steps {
        model.run(step);
        model.check();
    }
    model.end();
}

/// Bytes of the process that lie in memory.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn many_programs_leave_no_resident_memory_behind() {
    if crate::common::ran_apart() {
        return;
    }
    let _alone = alone();
    let (mut runner, programs) = (TestRunner::deterministic(), prop::collection::vec(step(), 60..100));
    let mut settled = 0;
    for number in 0..120 {
        run_alone(&programs.new_tree(&mut runner).unwrap().current());
        if number == 40 {
            Device::Cpu.clear_cache();
            settled = resident();
        }
    }
    Device::Cpu.clear_cache();
    let left = resident().saturating_sub(settled);
    assert!(left < 8 << 20, "80 programs left {left} bytes");
}

/// Found by the random programs: looking up the key of an array that ended touched the next one in its slot.
#[test]
fn a_stale_key_leaves_the_kept_array_in_its_slot_alone() {
    for on in [false, true] {
        run(&[
            Step::CreateOnDevice,
            Step::Drop { handle: 0 },
            Step::Create { manager: 0, size: 0 },
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
            Step::Create { manager: 0, size: 0 },
            Step::Drop { handle: 0 },
            Step::Revive { array: 0 },
            Step::AttachToHandles { handle: 0 },
            Step::Switch { on },
            Step::Drop { handle: 0 },
        ]);
    }
}
