//! Programs on several threads that share managers and pass handles on.

use std::sync::mpsc;

use ndgc::{Device, Error, NdManager, Proxy, gc};

use crate::programs::{Step, answer};

/// Runs each program on a thread. They share the managers, and give each other every third handle they make.
pub(crate) fn run(programs: &[Vec<Step>]) {
    let root = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let managers: Vec<NdManager> = (0..4).map(|_| root.new_sub_manager().unwrap()).collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = programs.iter().map(|_| mpsc::channel::<Proxy>()).unzip();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, (program, inbox)) in programs.iter().zip(receivers).enumerate() {
            let outbox = senders[(i + 1) % senders.len()].clone();
            let mut shared = Shared { managers: managers.clone(), handles: Vec::new(), made: 0, outbox, inbox };
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
            Step::View { handle } => self.pick(handle).map(|a| a.reshape((2, 3))),
            Step::Detach { handle } => self.pick(handle).map(Proxy::try_detach),
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
