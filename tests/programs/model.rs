//! The plain model, and a program run beside it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use ndgc::dlpack::{DLManagedTensorVersioned, DlPack};
use ndgc::{DType, Device, Error, Key, NdManager, Proxy, gc};

use crate::programs::{Answer, Fragile, Keeper, SIZES, Step, User, answer, caught, guess, panic};

/// The managers' handles by their places in the model, for who closes one when it is dropped.
type Handles = Arc<Mutex<Vec<Option<NdManager>>>>;

/// Whom an array belongs to; a manager by its place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Handles,
    Manager(usize),
}

struct Manager {
    parent: Option<usize>,
    open: bool,
    capped: bool,
}

/// Bytes that arrays share.
struct Storage {
    len: usize,
    /// Of all its elements.
    value: f32,
    /// Of bytes of the program's own: the manager that their end closes.
    keeper: Option<usize>,
    ended: bool,
}

struct Array {
    key: Key,
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
    open_handles: Handles,
    arrays: Vec<Array>,
    handles: Vec<(usize, Proxy)>,
    storages: Vec<Storage>,
    /// What went out by DLPack, with its storage.
    packs: Vec<(usize, DlPack<DLManagedTensorVersioned>)>,
    /// Guards of the switch, with what each puts back.
    guards: Vec<(gc::SwitchGuard, bool)>,
    on: bool,
    start: (gc::GcStats, u64),
}

impl Model {
    pub(crate) fn new() -> Self {
        gc::collect();
        let start = (gc::stats(), Device::Cpu.memory().active);
        let root = NdManager::new_base_manager(&Device::Cpu).unwrap();
        Model {
            managers: vec![Manager { parent: None, open: true, capped: false }],
            open_handles: Arc::new(Mutex::new(vec![Some(root)])),
            arrays: Vec::new(),
            handles: Vec::new(),
            storages: Vec::new(),
            packs: Vec::new(),
            guards: Vec::new(),
            on: false,
            start,
        }
    }

    fn handle_of(&self, manager: usize) -> Option<NdManager> {
        self.open_handles.lock().unwrap()[manager].clone()
    }

    /// The array of a handle, and the handle.
    fn pick(&self, handle: usize) -> Option<(usize, Proxy)> {
        let count = self.handles.len();
        (count > 0).then(|| self.handles[handle % count].clone())
    }

    fn manager(&self, manager: usize) -> Option<(usize, NdManager)> {
        let at = manager % self.managers.len();
        self.handle_of(at).map(|handle| (at, handle))
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

    fn create(&mut self, owner: Owner, size: usize, make: impl FnOnce(&[f32]) -> Result<Proxy, Error>) {
        let (value, len) = (self.storages.len() as f32, SIZES[size % SIZES.len()]);
        self.storages.push(Storage { len, value, keeper: None, ended: false });
        self.made(make(&vec![value; len]), self.admits(owner), owner, self.storages.len() - 1);
    }

    /// Over bytes of the program's own.
    fn create_shared(&mut self, manager: usize, closes: usize, panics: bool) {
        let Some((id, manager)) = self.manager(manager) else { return };
        let (value, closes) = (self.storages.len() as f32, closes % self.managers.len());
        let handles = Arc::clone(&self.open_handles);
        let bytes: Vec<u8> = [value; 6].iter().flat_map(|value| value.to_ne_bytes()).collect();
        let find = move || handles.lock().unwrap()[closes].clone();
        let keeper = Arc::new(Keeper { bytes, closes: Box::new(find), panics });
        let owner = Owner::Manager(id);
        let expected = self.admits(owner);
        self.storages.push(Storage { len: 6, value, keeper: Some(closes), ended: false });
        // Refused, it is dropped at once, by whoever holds it last.
        let made = caught(|| Proxy::from_shared(keeper, 0..24, DType::F32, (2, 3), &manager));
        match made {
            Some(made) => self.made(made, expected, owner, self.storages.len() - 1),
            None => assert!(panics && expected != Answer::Fine, "only a refused one panics here"),
        }
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
            while heir.is_none()
                && let Some(lender) = self.arrays[id].lenders.pop()
            {
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

    fn storage(&mut self, array: usize) -> &mut Storage {
        &mut self.storages[self.arrays[array].storage]
    }

    fn add(&mut self, dst: usize, src: usize) {
        let (Some((to, dst)), Some((from, src))) = (self.pick(dst), self.pick(src)) else { return };
        let open = self.arrays[to].open && self.arrays[from].open;
        let (len, value) = (self.storage(from).len, self.storage(from).value);
        let into = self.storage(to);
        let expected = match () {
            () if !open => Answer::Stale,
            () if into.len != len => Answer::Shape,
            () if into.keeper.is_some() => Answer::ReadOnly,
            () => Answer::Fine,
        };
        if expected == Answer::Fine {
            into.value += value;
        }
        assert_eq!(answer(&dst.add_(&src)), expected);
    }

    fn intern(&mut self, array: usize, replacement: usize) {
        let (Some((to, array)), Some((from, replacement))) = (self.pick(array), self.pick(replacement)) else { return };
        let open = to == from || self.arrays[to].open && self.arrays[from].open;
        assert_eq!(answer(&array.intern(replacement)), if open { Answer::Fine } else { Answer::Stale });
        if open && to != from {
            self.arrays[to].storage = self.arrays[from].storage;
            self.arrays[from].open = false;
        }
    }

    /// The user's code panics in the middle of a call, and nothing has changed.
    fn panic(&mut self, handle: usize, user: User) {
        let Some((id, proxy)) = self.pick(handle) else { return };
        let open = self.arrays[id].open;
        match user {
            User::Slice => {
                let read = caught(|| proxy.with_slice::<f32, ()>(|_| panic()));
                assert_eq!(read.map(|read| answer(&read)), (!open).then_some(Answer::Stale));
            }
            User::Part => {
                let part = caught(|| {
                    proxy.compose("part", || {
                        let _made = Proxy::ones(6, DType::F32, &Device::Cpu)?;
                        panic()
                    })
                });
                assert!(part.is_none());
            }
            User::Forward => {
                let done = caught(|| proxy.apply_op1(Fragile(user)));
                assert_eq!(done.map(|done| answer(&done)), (!open).then_some(Answer::Stale));
            }
            User::Drop => assert!(caught(|| proxy.apply_op1(Fragile(user))).is_none()),
        }
    }

    fn export(&mut self, handle: usize) {
        let Some((id, proxy)) = self.pick(handle) else { return };
        let pack = proxy.to_dlpack();
        assert_eq!(answer(&pack), if self.arrays[id].open { Answer::Fine } else { Answer::Stale });
        self.packs.extend(pack.ok().map(|pack| (self.arrays[id].storage, pack)));
    }

    fn import(&mut self, pack: usize, manager: usize) {
        let Some((id, manager)) = self.manager(manager) else { return };
        if self.packs.is_empty() {
            return;
        }
        let (storage, pack) = self.packs.swap_remove(pack % self.packs.len());
        let made = caught(|| Proxy::from_dlpack(pack, &manager)).expect("a keeper's panic ends in the library");
        self.made(made, self.admits(Owner::Manager(id)), Owner::Manager(id), storage);
    }

    /// Bytes of the program's own that nobody uses any more: their end closes a manager.
    fn settle(&mut self) {
        loop {
            let used: HashSet<usize> = self.used_storages();
            let gone =
                |(id, storage): &(usize, &Storage)| storage.keeper.is_some() && !storage.ended && !used.contains(id);
            let Some((id, _)) = self.storages.iter().enumerate().find(gone) else { return };
            self.storages[id].ended = true;
            if let Some(manager) = self.storages[id].keeper.filter(|&manager| self.handle_of(manager).is_some()) {
                self.close_manager(manager);
            }
        }
    }

    fn used_storages(&self) -> HashSet<usize> {
        let open = self.arrays.iter().filter(|array| array.open).map(|array| array.storage);
        open.chain(self.packs.iter().map(|(storage, _)| *storage)).collect()
    }

    fn guess(&mut self, array: usize, lives: i64, places: i64) {
        if self.arrays.is_empty() {
            return;
        }
        let key = guess(self.arrays[array % self.arrays.len()].key, lives, places);
        match self.arrays.iter().position(|array| array.key == key) {
            Some(id) => self.revive(id),
            // Only somebody else's.
            None => assert!(Proxy::from_registry(key).is_none_or(|it| it.key() == key && self.start.0.live > 0)),
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
            self.managers.push(Manager { parent: Some(parent), open: true, capped: false });
            self.open_handles.lock().unwrap().push(Some(made));
        }
    }

    pub(crate) fn run(&mut self, step: &Step) {
        match *step {
            Step::Create { manager, size } => {
                let Some((id, handle)) = self.manager(manager) else { return };
                self.create(Owner::Manager(id), size, |data| handle.from_slice(data, (2, data.len() / 2)));
            }
            Step::CreateShared { manager, closes, panics } => self.create_shared(manager, closes, panics),
            Step::CreateOnDevice => {
                self.create(Owner::Handles, 0, |data| Proxy::from_slice(data, (2, 3), &Device::Cpu));
            }
            Step::Clone { handle } => {
                let Some((id, proxy)) = self.pick(handle) else { return };
                self.arrays[id].handles += 1;
                self.handles.push((id, proxy));
            }
            Step::Drop { handle } => self.drop_handle(handle),
            Step::View { handle } => self.share(handle, |a| a.reshape((2, ())), None),
            Step::Detach { handle } => self.share(handle, Proxy::try_detach, Some(Owner::Handles)),
            Step::Add { dst, src } => self.add(dst, src),
            Step::Intern { array, replacement } => self.intern(array, replacement),
            Step::Panic { handle, user } => self.panic(handle, user),
            Step::Export { handle } => self.export(handle),
            Step::Import { pack, manager } => self.import(pack, manager),
            Step::Guess { array, lives, places } => self.guess(array, lives, places),
            Step::SwitchFor { on } => {
                self.guards.push((gc::scoped(on), self.on));
                self.on = on;
            }
            Step::DropGuard { guard } => {
                if !self.guards.is_empty() {
                    let (_guard, before) = self.guards.swap_remove(guard % self.guards.len());
                    self.on = before;
                }
            }
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
                let handle = self.open_handles.lock().unwrap()[id].take();
                if handle.is_some() {
                    self.close_manager(id);
                }
            }
            _ => unreachable!("`run` has done the others"),
        }
    }

    /// Compares everything that can be asked.
    pub(crate) fn check(&mut self) {
        // What ends may close a manager, whose arrays then wait in the queue.
        while gc::collect() > 0 {}
        self.settle();
        let open = || self.arrays.iter().filter(|array| array.open);
        let (stats, start) = (gc::stats(), &self.start.0);
        assert_eq!(stats.live - start.live, open().count() as u64, "live arrays");
        assert_eq!(stats.kept - start.kept, open().filter(|array| array.kept).count() as u64, "kept arrays");
        assert_eq!(stats.queued, start.queued, "`collect` leaves nothing in the queue");
        let bytes = |id: usize| match &self.storages[id] {
            Storage { keeper: None, len, .. } => 4 * *len as u64,
            _ => 0,
        };
        let bytes: u64 = self.used_storages().into_iter().map(bytes).sum();
        assert_eq!(Device::Cpu.memory().active - self.start.1, bytes, "bytes");
        for (id, manager) in self.managers.iter().enumerate() {
            let Some(handle) = self.handle_of(id) else { continue };
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
        let Storage { len, value, .. } = self.storages[array.storage];
        assert!(proxy.with_slice::<f32, _>(|all| all.len() == len && all.iter().all(|one| *one == value)).unwrap());
        assert_eq!(proxy.is_detached().unwrap(), array.owner == Owner::Handles);
        let owner = match array.owner {
            Owner::Handles => Some(NdManager::system(&Device::Cpu).uuid()),
            Owner::Manager(manager) => self.handle_of(manager).map(|handle| handle.uuid()),
        };
        assert_eq!(Some(proxy.manager().unwrap().uuid()), owner);
    }

    /// Ends everything, and asks for the start to be back.
    pub(crate) fn end(mut self) {
        self.guards.clear();
        self.handles.clear();
        self.packs.clear();
        let handles = std::mem::take(&mut *self.open_handles.lock().unwrap());
        // Keepers find nothing to close any more, also none of these.
        self.open_handles.lock().unwrap().resize_with(handles.len(), || None);
        drop(handles);
        while gc::collect() > 0 {}
        let (stats, start) = (gc::stats(), &self.start.0);
        assert_eq!((stats.live, stats.queued, stats.kept), (start.live, start.queued, start.kept));
        assert_eq!(Device::Cpu.memory().active, self.start.1);
        gc::off();
    }
}
