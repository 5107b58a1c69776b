//! The plain model, and a program run beside it.

use std::collections::HashSet;

use ndgc::{Device, Error, NdManager, Proxy, gc};

use crate::programs::{Answer, Step, answer};

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
pub(crate) struct Model {
    managers: Vec<Manager>,
    arrays: Vec<Array>,
    handles: Vec<(usize, Proxy)>,
    /// The value of all six elements of each storage.
    values: Vec<f32>,
    on: bool,
    start: (gc::GcStats, u64),
}

const BYTES: u64 = 6 * 4;

impl Model {
    pub(crate) fn new() -> Self {
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
        let array =
            Array { key: proxy.key(), open: true, owner, lenders: Vec::new(), handles: 1, kept: false, storage };
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

    pub(crate) fn run(&mut self, step: &Step) {
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
            Step::Detach { handle } => self.share(handle, Proxy::try_detach, Some(Owner::Handles)),
            Step::Add { dst, src } => self.add(dst, src),
            Step::Close { handle } => {
                let Some((id, proxy)) = self.pick(handle) else { return };
                proxy.close();
                self.arrays[id].open = false;
            }
            Step::Revive { array } => self.revive(array),
            Step::Switch { on } => {
                if on {
                    gc::on()
                } else {
                    gc::off()
                }
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
    pub(crate) fn check(&self) {
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
            assert_eq!(answer(&proxy.storage_bytes()), Answer::Stale);
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
    pub(crate) fn end(mut self) {
        self.handles.clear();
        self.managers.clear();
        gc::collect();
        let (stats, start) = (gc::stats(), &self.start.0);
        assert_eq!((stats.live, stats.queued, stats.kept), (start.live, start.queued, start.kept));
        assert_eq!(Device::Cpu.memory().active, self.start.1);
        gc::off();
    }
}
