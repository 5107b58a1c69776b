//! Random programs against a plain model: who is open, who owns what, how many handles and bytes there are.
//!
//! On one thread every answer is compared after every step; on several threads the end is. Programs that fail
//! shrink. `PROPTEST_CASES` asks for more than the usual 64 programs.
#![allow(clippy::unwrap_used)] // a test ends with the first surprise

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use ndgc::{Device, Error, NdManager, Proxy, gc};
use proptest::prelude::*;

/// The registry and its counts are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    gc::off();
    gc::collect_orphans();
    guard
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A step. Numbers choose among what there is, counted on from the first.
#[derive(Clone, Debug)]
enum Step {
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

/// Whom an array belongs to; a manager by its place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Handles,
    Manager(usize),
}

struct Manager {
    handle: Option<NdManager>,
    parent: Option<usize>,
    open: bool,
    capped: bool,
}

struct Array {
    key: ndgc::Key,
    open: bool,
    owner: Owner,
    lenders: Vec<Owner>,
    handles: usize,
    kept: bool,
    storage: usize,
}

/// Everything there should be.
struct Model {
    managers: Vec<Manager>,
    arrays: Vec<Array>,
    handles: Vec<(usize, Proxy)>,
    /// The value of all six elements of each storage.
    values: Vec<f32>,
    on: bool,
    start: (gc::GcStats, u64),
}

const BYTES: u64 = 6 * 4;

/// What a step should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Fine,
    Stale,
    Closed,
    Capped,
}

fn answer<T>(result: &Result<T, Error>) -> Answer {
    match result {
        Ok(_) => Answer::Fine,
        Err(Error::StaleArray(_)) => Answer::Stale,
        Err(Error::ManagerClosed { .. }) => Answer::Closed,
        Err(Error::ManagerCapped { .. }) => Answer::Capped,
        Err(other) => panic!("no step of these programs gives {other:?}"),
    }
}

impl Model {
    fn new() -> Self {
        gc::collect();
        let start = (gc::stats(), Device::Cpu.memory().active);
        let root = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let root = Manager { handle: Some(root), parent: None, open: true, capped: false };
        Model { managers: vec![root], arrays: Vec::new(), handles: Vec::new(), values: Vec::new(), on: false, start }
    }

    /// The array of a handle, and the handle.
    fn pick(&self, handle: usize) -> Option<(usize, Proxy)> {
        let count = self.handles.len();
        (count > 0).then(|| self.handles[handle % count].clone())
    }

    fn manager(&self, manager: usize) -> Option<(usize, NdManager)> {
        let at = manager % self.managers.len();
        self.managers[at].handle.clone().map(|handle| (at, handle))
    }

    fn is_open(&self, owner: Owner) -> bool {
        match owner {
            Owner::Handles => true,
            Owner::Manager(manager) => self.managers[manager].open,
        }
    }

    /// What an owner answers to a new array.
    fn admits(&self, owner: Owner) -> Answer {
        match owner {
            Owner::Manager(m) if !self.managers[m].open => Answer::Closed,
            Owner::Manager(m) if self.managers[m].capped => Answer::Capped,
            _ => Answer::Fine,
        }
    }

    fn made(&mut self, result: Result<Proxy, Error>, expected: Answer, owner: Owner, storage: usize) {
        assert_eq!(answer(&result), expected);
        let Ok(proxy) = result else { return };
        let array = Array {
            key: proxy.key(),
            open: true,
            owner,
            lenders: Vec::new(),
            handles: 1,
            kept: false,
            storage,
        };
        self.arrays.push(array);
        self.handles.push((self.arrays.len() - 1, proxy));
    }

    fn create(&mut self, owner: Owner, make: impl FnOnce(&[f32]) -> Result<Proxy, Error>) {
        let value = self.values.len() as f32;
        self.values.push(value);
        self.made(make(&[value; 6]), self.admits(owner), owner, self.values.len() - 1);
    }

    /// A new array over the bytes of another one.
    fn share(&mut self, handle: usize, view: fn(&Proxy) -> Result<Proxy, Error>, owner: Option<Owner>) {
        let Some((id, proxy)) = self.pick(handle) else { return };
        let owner = owner.unwrap_or(self.arrays[id].owner);
        let expected = if self.arrays[id].open { self.admits(owner) } else { Answer::Stale };
        self.made(view(&proxy), expected, owner, self.arrays[id].storage);
    }

    fn drop_handle(&mut self, handle: usize) {
        if self.handles.is_empty() {
            return;
        }
        let (id, proxy) = self.handles.swap_remove(handle % self.handles.len());
        drop(proxy);
        let array = &mut self.arrays[id];
        array.handles -= 1;
        if array.handles > 0 || !array.open {
        } else if self.on || array.owner == Owner::Handles {
            array.open = false;
        } else {
            array.kept = true;
        }
    }

    fn attach(&mut self, handle: usize, owner: Owner, lending: bool, go: impl FnOnce(&Proxy) -> Result<(), Error>) {
        let Some((id, proxy)) = self.pick(handle) else { return };
        let admits = match self.admits(owner) {
            Answer::Capped if lending => Answer::Fine,
            other => other,
        };
        let expected = if self.arrays[id].open { admits } else { Answer::Stale };
        assert_eq!(answer(&go(&proxy)), expected);
        if expected == Answer::Fine {
            let array = &mut self.arrays[id];
            let before = std::mem::replace(&mut array.owner, owner);
            if lending {
                array.lenders.push(before);
            } else {
                array.lenders.clear();
            }
        }
    }

    fn below(&self, mut manager: usize, top: usize) -> bool {
        loop {
            if manager == top {
                return true;
            }
            match self.managers[manager].parent {
                Some(parent) => manager = parent,
                None => return false,
            }
        }
    }

    fn close_manager(&mut self, top: usize) {
        for manager in 0..self.managers.len() {
            if self.below(manager, top) {
                self.managers[manager].open = false;
            }
        }
        for id in 0..self.arrays.len() {
            if !self.arrays[id].open || self.is_open(self.arrays[id].owner) {
                continue;
            }
            let mut heir = None;
            while let (None, Some(lender)) = (heir, self.arrays[id].lenders.pop()) {
                heir = Some(lender).filter(|&lender| self.is_open(lender));
            }
            let array = &mut self.arrays[id];
            match heir {
                Some(Owner::Handles) if array.kept => (array.open, array.kept) = (false, false),
                Some(owner) => array.owner = owner,
                None => (array.open, array.kept) = (false, false),
            }
        }
    }

    fn add(&mut self, dst: usize, src: usize) {
        let (Some((to, dst)), Some((from, src))) = (self.pick(dst), self.pick(src)) else { return };
        let open = self.arrays[to].open && self.arrays[from].open;
        assert_eq!(answer(&dst.add_(&src)), if open { Answer::Fine } else { Answer::Stale });
        if open {
            self.values[self.arrays[to].storage] += self.values[self.arrays[from].storage];
        }
    }

    fn revive(&mut self, array: usize) {
        if self.arrays.is_empty() {
            return;
        }
        let id = array % self.arrays.len();
        let found = Proxy::from_registry(self.arrays[id].key);
        assert_eq!(found.is_some(), self.arrays[id].open, "a key finds an open array and no other");
        if let Some(proxy) = found {
            self.arrays[id].handles += 1;
            self.arrays[id].kept = false;
            self.handles.push((id, proxy));
        }
    }

    fn sub_manager(&mut self, parent: usize) {
        let Some((parent, handle)) = self.manager(parent) else { return };
        let made = handle.new_sub_manager();
        assert_eq!(answer(&made), if self.managers[parent].open { Answer::Fine } else { Answer::Closed });
        if let Ok(made) = made {
            self.managers.push(Manager { handle: Some(made), parent: Some(parent), open: true, capped: false });
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Create { manager } => {
                let Some((id, handle)) = self.manager(manager) else { return };
                self.create(Owner::Manager(id), |data| handle.from_slice(data, (2, 3)));
            }
            Step::CreateOnDevice => {
                self.create(Owner::Handles, |data| Proxy::from_slice(data, (2, 3), &Device::Cpu));
            }
            Step::Clone { handle } => {
                let Some((id, proxy)) = self.pick(handle) else { return };
                self.arrays[id].handles += 1;
                self.handles.push((id, proxy));
            }
            Step::Drop { handle } => self.drop_handle(handle),
            Step::View { handle } => self.share(handle, |a| a.reshape((2, 3)), None),
            Step::Detach { handle } => self.share(handle, Proxy::detach, Some(Owner::Handles)),
            Step::Add { dst, src } => self.add(dst, src),
            Step::Close { handle } => {
                let Some((id, proxy)) = self.pick(handle) else { return };
                proxy.close();
                self.arrays[id].open = false;
            }
            Step::Revive { array } => self.revive(array),
            Step::Switch { on } => {
                if on { gc::on() } else { gc::off() }
                self.on = on;
            }
            Step::CollectOrphans => {
                gc::collect_orphans();
                for array in self.arrays.iter_mut().filter(|array| array.kept) {
                    (array.open, array.kept) = (false, false);
                }
            }
            _ => self.run_on_managers(step),
        }
    }

    fn run_on_managers(&mut self, step: &Step) {
        match *step {
            Step::Attach { handle, manager } => {
                let Some((id, manager)) = self.manager(manager) else { return };
                self.attach(handle, Owner::Manager(id), false, |array| array.attach(&manager));
            }
            Step::AttachToHandles { handle } => {
                let system = NdManager::system(&Device::Cpu);
                self.attach(handle, Owner::Handles, false, |array| array.attach(&system));
            }
            Step::Lend { handle, manager } => {
                let Some((id, manager)) = self.manager(manager) else { return };
                self.attach(handle, Owner::Manager(id), true, |array| array.temp_attach(&manager));
            }
            Step::Return { handle, manager } => {
                let Some((id, manager)) = self.manager(manager) else { return };
                if !self.managers[id].open {
                    return;
                }
                let owner = self.managers[id].parent.map_or(Owner::Handles, Owner::Manager);
                self.attach(handle, owner, false, |array| manager.ret(array).map(drop));
            }
            Step::SubManager { parent } => self.sub_manager(parent),
            Step::Cap { manager } => {
                let Some((id, handle)) = self.manager(manager) else { return };
                let expected = if self.managers[id].open { Answer::Fine } else { Answer::Closed };
                assert_eq!(answer(&handle.cap()), expected);
                self.managers[id].capped |= expected == Answer::Fine;
            }
            Step::CloseManager { manager } => {
                let Some((id, handle)) = self.manager(manager) else { return };
                handle.close().unwrap();
                self.close_manager(id);
            }
            Step::DropManager { manager } => {
                let id = manager % self.managers.len();
                if self.managers[id].handle.take().is_some() {
                    self.close_manager(id);
                }
            }
            _ => unreachable!("`run` has done the others"),
        }
    }

    /// Compares everything that can be asked.
    fn check(&self) {
        gc::collect();
        let open = || self.arrays.iter().filter(|array| array.open);
        let (stats, start) = (gc::stats(), &self.start.0);
        assert_eq!(stats.live - start.live, open().count() as u64, "live arrays");
        assert_eq!(stats.kept - start.kept, open().filter(|array| array.kept).count() as u64, "kept arrays");
        assert_eq!(stats.queued, start.queued, "`collect` leaves nothing in the queue");
        let storages: HashSet<_> = open().map(|array| array.storage).collect();
        assert_eq!(Device::Cpu.memory().active - self.start.1, BYTES * storages.len() as u64, "bytes");
        for (id, manager) in self.managers.iter().enumerate() {
            let Some(handle) = &manager.handle else { continue };
            assert_eq!(handle.is_open(), manager.open);
            let owned = open().filter(|array| array.owner == Owner::Manager(id)).count();
            assert_eq!(handle.array_count(), owned, "arrays of manager {id}");
            let children = self.managers.iter().filter(|child| child.open && child.parent == Some(id)).count();
            assert_eq!(handle.manager_count(), children, "managers of manager {id}");
        }
        self.handles.iter().for_each(|(id, proxy)| self.check_handle(&self.arrays[*id], proxy));
    }

    fn check_handle(&self, array: &Array, proxy: &Proxy) {
        assert_eq!(proxy.is_open(), array.open);
        if !array.open {
            assert_eq!(answer(&proxy.dims()), Answer::Stale);
            assert_eq!(answer(&proxy.is_detached()), Answer::Stale);
            return;
        }
        assert_eq!(proxy.handle_count(), array.handles, "handles of {}", proxy.key());
        assert_eq!(proxy.to_vec::<f32>().unwrap(), [self.values[array.storage]; 6]);
        assert_eq!(proxy.is_detached().unwrap(), array.owner == Owner::Handles);
        let owner = match array.owner {
            Owner::Handles => Some(NdManager::system(&Device::Cpu).uuid()),
            Owner::Manager(manager) => self.managers[manager].handle.as_ref().map(NdManager::uuid),
        };
        assert_eq!(Some(proxy.manager().unwrap().uuid()), owner);
    }

    /// Ends everything, and asks for the start to be back.
    fn end(mut self) {
        self.handles.clear();
        self.managers.clear();
        gc::collect();
        let (stats, start) = (gc::stats(), &self.start.0);
        assert_eq!((stats.live, stats.queued, stats.kept), (start.live, start.queued, start.kept));
        assert_eq!(Device::Cpu.memory().active, self.start.1);
        gc::off();
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_program_on_one_thread_does_what_the_model_does(steps in prop::collection::vec(step(), 1..120)) {
        let _alone = alone();
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
            model.check();
        }
        model.end();
    }

    #[test]
    fn programs_on_three_threads_that_pass_handles_on_leave_nothing_behind(
        programs in prop::array::uniform3(prop::collection::vec(step(), 1..80)),
    ) {
        let _alone = alone();
        gc::collect();
        let before = (gc::stats(), Device::Cpu.memory().active);
        together(&programs);
        gc::off();
        gc::collect();
        let after = gc::stats();
        prop_assert_eq!((after.live, after.queued, after.kept), (before.0.live, before.0.queued, before.0.kept));
        prop_assert_eq!(Device::Cpu.memory().active, before.1);
    }
}

/// Runs each program on a thread. They share the managers, and give each other every third handle they make.
fn together(programs: &[Vec<Step>]) {
    let root = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let managers: Vec<NdManager> = (0..4).map(|_| root.new_sub_manager().unwrap()).collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = programs.iter().map(|_| mpsc::channel::<Proxy>()).unzip();
    std::thread::scope(|scope| {
        for (i, (program, inbox)) in programs.iter().zip(receivers).enumerate() {
            let outbox = senders[(i + 1) % senders.len()].clone();
            let mut shared = Shared { managers: managers.clone(), handles: Vec::new(), made: 0, outbox, inbox };
            scope.spawn(move || program.iter().for_each(|step| shared.run(step)));
        }
    });
}

/// One of several threads.
struct Shared {
    managers: Vec<NdManager>,
    handles: Vec<Proxy>,
    made: usize,
    outbox: mpsc::Sender<Proxy>,
    inbox: mpsc::Receiver<Proxy>,
}

impl Shared {
    fn pick(&self, handle: usize) -> Option<&Proxy> {
        self.handles.get(handle % self.handles.len().max(1))
    }

    fn made(&mut self, result: Result<Proxy, Error>) {
        answer(&result);
        let Ok(proxy) = result else { return };
        self.made += 1;
        if self.made.is_multiple_of(3) {
            // The other thread may be gone: the handle is dropped then.
            let _ = self.outbox.send(proxy.clone());
        }
        self.handles.push(proxy);
    }

    fn run(&mut self, step: &Step) {
        self.handles.extend(self.inbox.try_iter());
        let manager = |n: usize| &self.managers[n % self.managers.len()];
        match *step {
            Step::Create { manager: m } => self.made(manager(m).from_slice(&[1f32; 6], (2, 3))),
            Step::CreateOnDevice => self.made(Proxy::from_slice(&[1f32; 6], (2, 3), &Device::Cpu)),
            Step::Drop { handle } if !self.handles.is_empty() => {
                self.handles.swap_remove(handle % self.handles.len());
            }
            Step::SubManager { parent } => {
                let made = manager(parent).new_sub_manager();
                answer(&made);
                // Takes the place of one that some thread may have closed.
                if let Ok(made) = made {
                    let at = parent % self.managers.len();
                    self.managers[at] = made;
                }
            }
            Step::CloseManager { manager: m } => manager(m).close().unwrap(),
            Step::Switch { on } => if on { gc::on() } else { gc::off() },
            Step::CollectOrphans => {
                gc::collect_orphans();
            }
            Step::Revive { array } => {
                let found = self.pick(array).and_then(|proxy| Proxy::from_registry(proxy.key()));
                self.handles.extend(found);
            }
            _ => self.run_on_handle(step),
        }
    }

    fn run_on_handle(&mut self, step: &Step) {
        let manager = |n: usize| &self.managers[n % self.managers.len()];
        let made = match *step {
            Step::Clone { handle } => self.pick(handle).map(|a| Ok(a.clone())),
            Step::View { handle } => self.pick(handle).map(|a| a.reshape((2, 3))),
            Step::Detach { handle } => self.pick(handle).map(Proxy::detach),
            Step::Add { dst, src } => self.pick(dst).zip(self.pick(src)).map(|(a, b)| a.add_(b)),
            Step::Attach { handle, manager: m } => self.pick(handle).map(|a| a.attach(manager(m)).map(|()| a.clone())),
            Step::Lend { handle, manager: m } => {
                self.pick(handle).map(|a| a.temp_attach(manager(m)).map(|()| a.clone()))
            }
            Step::Return { handle, manager: m } => self.pick(handle).map(|a| manager(m).ret(a)),
            Step::AttachToHandles { handle } => {
                self.pick(handle).map(|a| a.attach(&NdManager::system(&Device::Cpu)).map(|()| a.clone()))
            }
            Step::Close { handle } => {
                self.pick(handle).inspect(|a| a.close());
                None
            }
            _ => None,
        };
        made.into_iter().for_each(|made| self.made(made));
    }
}
