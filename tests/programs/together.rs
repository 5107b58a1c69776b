//! Programs on several threads that share managers and pass handles on.

use std::sync::{Arc, mpsc};

use ndgc::dlpack::{DLManagedTensorVersioned, DlPack};
use ndgc::{DType, Device, Error, NdManager, Proxy, gc};

use crate::programs::{Fragile, Keeper, SIZES, Step, User, answer, caught, guess, panic};

/// Whether another thread was at the array.
fn in_use(made: &Result<Proxy, Error>) -> bool {
    matches!(made, Err(Error::InUse { .. }))
}

/// Runs each program on a thread. They share the managers, and give each other every third handle they make.
pub(crate) fn run(programs: &[Vec<Step>]) {
    let root = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let managers: Vec<NdManager> = (0..4).map(|_| root.new_sub_manager().unwrap()).collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = programs.iter().map(|_| mpsc::channel::<Proxy>()).unzip();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, (program, inbox)) in programs.iter().zip(receivers).enumerate() {
            let outbox = senders[(i + 1) % senders.len()].clone();
            let managers = managers.clone();
            let (handles, packs, guards) = (Vec::new(), Vec::new(), Vec::new());
            let mut shared = Shared { managers, handles, packs, guards, made: 0, outbox, inbox };
            threads.push(scope.spawn(move || program.iter().for_each(|step| shared.run(step))));
        }
        // The end of the scope does not wait for thread-local destructors, in which a thread hands on its orphans.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// One of several threads.
struct Shared {
    managers: Vec<NdManager>,
    handles: Vec<Proxy>,
    packs: Vec<DlPack<DLManagedTensorVersioned>>,
    guards: Vec<gc::SwitchGuard>,
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
            Step::Create { manager: m, size } => {
                let len = SIZES[size % SIZES.len()];
                self.made(manager(m).from_slice(&vec![1f32; len], (2, len / 2)));
            }
            Step::CreateShared { manager: m, closes, panics } => {
                let closed = manager(closes).clone();
                let bytes = 1f32.to_ne_bytes().repeat(6);
                let keeper = Arc::new(Keeper { bytes, closes: Box::new(move || Some(closed.clone())), panics });
                let at = manager(m).clone();
                let made = caught(|| Proxy::from_shared(keeper, 0..24, DType::F32, (2, 3), &at));
                made.into_iter().for_each(|made| self.made(made));
            }
            Step::Export { handle } => {
                let packed = self.pick(handle).map(Proxy::to_dlpack);
                self.packs.extend(packed.and_then(Result::ok));
            }
            Step::Import { manager: m, .. } => {
                if let Some(pack) = self.packs.pop() {
                    self.made(Proxy::from_dlpack(pack, manager(m)));
                }
            }
            Step::Guess { array, lives, places } => {
                let key = self.pick(array).map(|proxy| guess(proxy.key(), lives, places));
                if let Some(found) = key.and_then(Proxy::from_registry) {
                    assert_eq!(Some(found.key()), key);
                    self.handles.push(found);
                }
            }
            Step::SwitchFor { on } => self.guards.push(gc::scoped(on)),
            Step::DropGuard { guard } if !self.guards.is_empty() => {
                drop(self.guards.swap_remove(guard % self.guards.len()));
            }
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
            Step::Switch { on } => {
                if on {
                    gc::on()
                } else {
                    gc::off()
                }
            }
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
            Step::View { handle } => {
                // An exchange on another thread may come between a look at the shape and the view.
                self.pick(handle).map(|a| a.reshape((2, ()))).filter(|made| !in_use(made))
            }
            Step::Panic { handle, user: User::Slice } => {
                let _ = self.pick(handle).and_then(|a| caught(|| a.with_slice::<f32, ()>(|_| panic())));
                None
            }
            Step::Panic { handle, user: User::Part } => {
                let _ = self.pick(handle).and_then(|a| caught(|| a.compose("part", || panic())));
                None
            }
            Step::Panic { handle, user } => self.pick(handle).and_then(|a| caught(|| a.apply_op1(Fragile(user)))),
            Step::Intern { array, replacement } => {
                let pair = self.pick(array).zip(self.pick(replacement));
                // Another thread may be at either of them.
                pair.map(|(a, b)| a.intern(b.clone()).map(|()| a.clone())).filter(|made| !in_use(made))
            }
            Step::Detach { handle } => self.pick(handle).map(Proxy::try_detach),
            Step::Add { dst, src } => {
                let added = self.pick(dst).zip(self.pick(src)).map(|(a, b)| a.add_(b));
                added.filter(|added| !in_use(added))
            }
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
