//! The plain model, and a program run beside it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice::Iter;
use std::sync::{Arc, Mutex, PoisonError};

use ndgc::{
    CycleLease, DType, Device, Error, Proxy, ResetPolicy, SpillPolicy, Tensor, Workspace, WorkspaceConfig,
    destroy_all_workspaces_for_current_thread, gc,
};

use crate::workspace_programs::{Kind, RINGS, Step, configs, is_leak};

const NAMES: [&str; 3] = ["A", "B", "C"];

/// What an array holds, whatever its dtype.
type Content = Arc<Vec<f64>>;

fn read(array: &Proxy) -> Result<Vec<f64>, Error> {
    Ok(match array.dtype() {
        DType::F32 => array.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::F64 => array.to_vec::<f64>()?,
        DType::I64 => array.to_vec::<i64>()?.into_iter().map(|v| v as f64).collect(),
        _ => array.to_vec::<u8>()?.into_iter().map(f64::from).collect(),
    })
}

/// A handle in other hands.
#[derive(Clone)]
pub(crate) struct Given {
    array: Proxy,
    content: Content,
    attached: bool,
}

impl Given {
    /// The thread that made it is gone, or its workspaces are.
    pub(crate) fn check_ended(&self) {
        assert_eq!((self.array.is_attached(), self.array.is_in_scope()), (self.attached, !self.attached));
        match read(&self.array) {
            Ok(values) => assert!(!self.attached && values == **self.content),
            Err(error) => assert!(self.attached && is_leak(&error), "{error}"),
        }
    }

    /// The thread that made it goes on.
    fn check(&self) {
        match read(&self.array) {
            Ok(values) => assert_eq!(values, **self.content, "read by another thread"),
            Err(error) => assert!(self.attached && is_leak(&error), "{error}"),
        }
    }
}

/// What threads give each other.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Given>>);

impl Pool {
    fn give(&self, given: Given) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == 16 {
            all.remove(0);
        }
        all.push(given);
    }

    fn pick(&self, at: usize) -> Option<Given> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(at % all.len().max(1)).cloned()
    }
}

/// What an array ends with; a cycle by its place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Detached,
    Cycle(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Valid,
    /// Of a ring, whose bytes may have been used again.
    Either,
    Ended,
}

struct Array {
    proxy: Proxy,
    content: Content,
    life: Life,
    /// It was found leaked.
    gone: bool,
}

struct Cycle {
    name: usize,
    ring: bool,
    ended: bool,
    /// Whether its workspace was destroyed while it, or an older cycle, was leased: it ends with the last of the
    /// leases.
    left: Option<usize>,
}

/// A workspace that is there.
struct Place {
    workspace: Workspace,
    config: usize,
    ring: bool,
    /// The running cycle.
    cycle: Option<usize>,
}

enum Way {
    Cycle,
    Again,
    Nested { outer: usize },
    Borrowed,
    Out,
}

struct Frame {
    name: Option<usize>,
    way: Way,
}

/// A panic of the program's own.
struct Planned;

/// An early return.
struct Early;

/// Everything that a thread should see.
pub(crate) struct Model<'a> {
    configs: Vec<WorkspaceConfig>,
    pool: &'a Pool,
    /// The next array's pattern.
    next: usize,
    places: [Option<Place>; 3],
    frames: Vec<Frame>,
    cycles: Vec<Cycle>,
    arrays: Vec<Array>,
    leases: Vec<(CycleLease, usize)>,
}

/// The program.
impl<'a> Model<'a> {
    pub(crate) fn new(number: usize, pool: &'a Pool) -> Self {
        Model {
            configs: configs(),
            pool,
            next: 1000 * number,
            places: [None, None, None],
            frames: Vec::new(),
            cycles: Vec::new(),
            arrays: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// Runs a program. Returns every handle that is left.
    pub(crate) fn run(mut self, program: &[Step]) -> Vec<Given> {
        let mut steps = program.iter();
        while steps.len() > 0 {
            self.level(&mut steps);
            self.check();
        }
        // Half of the programs leave their workspaces to the end of the thread.
        if program.len().is_multiple_of(2) {
            drop(std::mem::take(&mut self.places));
            destroy_all_workspaces_for_current_thread().unwrap();
            self.leases.clear();
            self.cycles.iter_mut().for_each(|cycle| cycle.ended = true);
            self.check();
        }
        let given =
            |array: Array| Given { array: array.proxy, content: array.content, attached: array.life != Life::Detached };
        self.arrays.into_iter().map(given).collect()
    }

    /// Runs steps until this level is left in one way or another.
    fn level(&mut self, steps: &mut Iter<'_, Step>) {
        let depth = self.frames.len();
        match catch_unwind(AssertUnwindSafe(|| self.body(steps))) {
            Ok(Ok(()) | Err(Early)) => {}
            Err(panic) if panic.is::<Planned>() => {}
            Err(panic) => resume_unwind(panic),
        }
        self.leave_to(depth);
    }

    fn body(&mut self, steps: &mut Iter<'_, Step>) -> Result<(), Early> {
        while let Some(step) = steps.next() {
            match *step {
                Step::Leave => return Ok(()),
                Step::Return => return Err(Early),
                // Without the hook, which would print it.
                Step::Panic => resume_unwind(Box::new(Planned)),
                Step::Catch => self.level(steps),
                Step::Turns { workspace, config, len, count } => self.turns(workspace, config, len, count),
                Step::Enter { .. } | Step::Borrow { .. } | Step::ScopeOut => self.deeper(step, steps)?,
                _ => self.step(step),
            }
            self.check();
        }
        Ok(())
    }

    fn deeper(&mut self, step: &Step, steps: &mut Iter<'_, Step>) -> Result<(), Early> {
        let depth = self.frames.len();
        let guard: Option<Box<dyn Any>> = match *step {
            Step::Enter { workspace, config } => self.enter(workspace % 3, config),
            Step::Borrow { workspace } => self.borrow(workspace % 3),
            _ => {
                self.frames.push(Frame { name: None, way: Way::Out });
                Some(Box::new(Workspace::scope_out()))
            }
        };
        let Some(_guard) = guard else { return Ok(()) };
        self.check();
        self.body(steps)?;
        drop(_guard);
        self.leave_to(depth);
        Ok(())
    }
}

/// The stack.
impl Model<'_> {
    fn turns(&mut self, workspace: usize, config: usize, len: usize, count: usize) {
        let config = self.configs.len() - 1 - config % RINGS;
        for turn in 0..count {
            let depth = self.frames.len();
            let guard = self.enter(workspace % 3, config);
            self.make(Kind::F32, len);
            if turn == config % 3 {
                self.step_on_workspace(&Step::Lease { workspace }, workspace % 3);
            }
            self.check();
            drop(guard);
            self.leave_to(depth);
        }
    }

    fn enter(&mut self, name: usize, config: usize) -> Option<Box<dyn Any>> {
        let config = self.places[name].as_ref().map_or(config % self.configs.len(), |place| place.config);
        let settings = &self.configs[config];
        let guard = Workspace::enter(NAMES[name], settings).unwrap();
        let ring = settings.policy_reset() == ResetPolicy::EndOfBufferReached;
        let is_current = self.current() == Some(name);
        let place =
            self.places[name].get_or_insert_with(|| Place { workspace: guard.workspace(), config, ring, cycle: None });
        let way = match place.cycle {
            None => Way::Cycle,
            // A ring has no nested entries: its arrays outlive them anyway.
            Some(_) if is_current || ring => Way::Again,
            Some(outer) => Way::Nested { outer },
        };
        if !matches!(way, Way::Again) {
            place.cycle = Some(self.cycles.len());
            self.cycles.push(Cycle { name, ring, ended: false, left: None });
        }
        self.frames.push(Frame { name: Some(name), way });
        Some(Box::new(guard))
    }

    fn borrow(&mut self, name: usize) -> Option<Box<dyn Any>> {
        let place = self.places[name].as_ref()?;
        let is_borrowed = matches!(self.frames.last(), Some(Frame { name: n, way: Way::Borrowed }) if *n == Some(name));
        let result = place.workspace.borrow();
        if place.cycle.is_none() || is_borrowed {
            assert!(matches!(result, Err(Error::Workspace { .. })));
            return None;
        }
        self.frames.push(Frame { name: Some(name), way: Way::Borrowed });
        Some(Box::new(result.unwrap()))
    }

    fn leave_to(&mut self, depth: usize) {
        while self.frames.len() > depth {
            let Some(Frame { name: Some(name), way }) = self.frames.pop() else { continue };
            let Some(place) = &mut self.places[name] else { continue };
            let (Some(cycle), false) = (place.cycle, matches!(way, Way::Again | Way::Borrowed)) else { continue };
            place.cycle = if let Way::Nested { outer } = way { Some(outer) } else { None };
            // A ring ends its cycles when it needs their bytes.
            self.cycles[cycle].ended = !place.ring;
        }
    }

    /// The workspace that takes arrays.
    fn current(&self) -> Option<usize> {
        self.frames.last().and_then(|frame| frame.name)
    }

    /// The one around it.
    fn enclosing(&self) -> Option<usize> {
        let own = self.current()?;
        self.frames.iter().rev().find(|frame| frame.name != Some(own)).and_then(|frame| frame.name)
    }

    /// What an array ends with that is made for a workspace now.
    fn life_in(&self, name: Option<usize>) -> Life {
        let cycle = name.and_then(|name| self.places[name].as_ref()).and_then(|place| place.cycle);
        cycle.map_or(Life::Detached, Life::Cycle)
    }

    /// What an array ends with that is brought to what has the life `to`. One of an older entry of that workspace stays
    /// as it is.
    fn moved(&self, life: Life, to: Life) -> Life {
        let (Life::Cycle(from), Life::Cycle(into)) = (life, to) else { return to };
        let (from, into) = (&self.cycles[from], &self.cycles[into]);
        if from.name == into.name && !from.ring { life } else { to }
    }

    fn status(&self, life: Life) -> Status {
        let Life::Cycle(cycle) = life else { return Status::Valid };
        let Cycle { name, ring, ended, left } = self.cycles[cycle];
        if left.is_some() && !self.leases.iter().any(|(_, of)| self.cycles[*of].left == left) {
            return Status::Ended;
        }
        let runs = self.places[name].as_ref().is_some_and(|place| place.cycle == Some(cycle));
        let leased = self.leases.iter().any(|(_, of)| *of == cycle);
        match (ended, ring && !runs && !leased) {
            (true, _) => Status::Ended,
            (false, true) => Status::Either,
            (false, false) => Status::Valid,
        }
    }

    /// Compares everything.
    fn check(&mut self) {
        let current = self.current().and_then(|name| self.places[name].as_ref());
        let found = Workspace::current();
        assert_eq!(found.as_ref().map(Workspace::id), current.map(|place| place.workspace.id()));
        for (place, name) in self.places.iter().zip(NAMES) {
            let open = place.as_ref().map(|place| (place.cycle.is_some(), true));
            let same = |w: &Workspace| place.as_ref().is_some_and(|place| place.workspace.is_same(w));
            assert_eq!(Workspace::find(name).map(|w| (w.is_open(), same(&w))), open);
        }
        let mut youngest_gone = [None; 3];
        for at in 0..self.arrays.len() {
            let status = self.status(self.arrays[at].life);
            let array = &mut self.arrays[at];
            assert_eq!(array.proxy.is_attached(), array.life != Life::Detached);
            let in_scope = array.proxy.is_in_scope();
            match status {
                Status::Valid => assert!(in_scope && !array.gone, "ended too early"),
                Status::Ended => assert!(!in_scope, "did not end"),
                Status::Either => assert!(!in_scope || !array.gone, "came back"),
            }
            match read(&array.proxy) {
                Ok(values) => assert!(in_scope && values == **array.content, "overwritten: {:?}", array.content),
                Err(error) => assert!(!in_scope && is_leak(&error), "{error}"),
            }
            array.gone = !in_scope;
            if let (Life::Cycle(cycle), true) = (array.life, array.gone)
                && self.cycles[cycle].left.is_none()
            {
                let name = self.cycles[cycle].name;
                youngest_gone[name] = youngest_gone[name].max(Some(cycle));
            }
        }
        // A ring ends its cycles in their order.
        for array in self.arrays.iter().filter(|array| !array.gone) {
            if let Life::Cycle(cycle) = array.life
                && self.cycles[cycle].ring
                && self.cycles[cycle].left.is_none()
            {
                assert!(Some(cycle) > youngest_gone[self.cycles[cycle].name], "a younger cycle ended before");
            }
        }
    }
}

/// Steps on arrays.
impl Model<'_> {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Make { kind, len } => self.make(kind, len),
            Step::Look { given } => self.look(given),
            Step::Switch { on: true } => gc::on(),
            Step::Switch { on: false } => gc::off(),
            Step::DropLease { lease } if !self.leases.is_empty() => {
                self.leases.swap_remove(lease % self.leases.len());
            }
            Step::EnterWrong { workspace }
            | Step::Trim { workspace }
            | Step::Initialize { workspace }
            | Step::Destroy { workspace }
            | Step::Toggle { workspace, .. }
            | Step::Lease { workspace } => self.step_on_workspace(step, workspace % 3),
            Step::View { array }
            | Step::Plus { array }
            | Step::PlusConsuming { array }
            | Step::Sum { array }
            | Step::Detach { array }
            | Step::Leverage { array }
            | Step::LeverageTo { array, .. }
            | Step::Migrate { array, .. }
            | Step::Clone { array }
            | Step::Drop { array }
            | Step::Give { array }
                if !self.arrays.is_empty() =>
            {
                self.step_on_array(step, array % self.arrays.len());
            }
            _ => {}
        }
    }

    fn step_on_workspace(&mut self, step: &Step, name: usize) {
        let Some(place) = &self.places[name] else { return };
        let workspace = place.workspace.clone();
        let expect = |result: Result<(), Error>, fine: bool| match result {
            Ok(()) => assert!(fine),
            Err(error) => assert!(!fine && matches!(error, Error::Workspace { .. }), "{error}"),
        };
        match *step {
            Step::EnterWrong { .. } => {
                let other = (place.config + 1) % self.configs.len();
                expect(Workspace::enter(NAMES[name], &self.configs[other]).map(drop), false);
            }
            Step::Trim { .. } => expect(workspace.trim().map(drop), place.cycle.is_none()),
            Step::Initialize { .. } => expect(workspace.initialize(), place.cycle.is_none()),
            Step::Toggle { on, .. } => workspace.toggle_use(on),
            Step::Lease { .. } => match (workspace.lease(), place.cycle) {
                (Ok(lease), Some(cycle)) if place.ring => self.leases.push((lease, cycle)),
                (result, _) => expect(result.map(drop), false),
            },
            _ => {
                expect(workspace.destroy(), place.cycle.is_none());
                if place.cycle.is_none() {
                    self.places[name] = None;
                    let is_own = |cycle: &Cycle| cycle.name == name && cycle.left.is_none();
                    let leased = self.leases.iter().map(|(_, of)| *of).filter(|of| is_own(&self.cycles[*of])).min();
                    for (at, cycle) in self.cycles.iter_mut().enumerate().filter(|(_, cycle)| is_own(cycle)) {
                        // From the first leased cycle on they stay, until the leases go.
                        cycle.ended = leased.is_none_or(|first| at < first);
                        cycle.left = leased.filter(|_| !cycle.ended);
                    }
                    expect(workspace.activate().map(drop), false);
                }
            }
        }
    }

    fn step_on_array(&mut self, step: &Step, at: usize) {
        let Array { proxy, content, life, .. } = &self.arrays[at];
        let (proxy, content, life) = (proxy.clone(), Arc::clone(content), *life);
        let plus = || Arc::new(content.iter().map(|v| v + 3.).collect());
        let len = content.len();
        let here = self.life_in(self.current());
        match *step {
            Step::View { .. } => {
                let part = Arc::new(content[len / 3..].to_vec());
                self.made(proxy.narrow(0, len / 3, len - len / 3), part, life, Some(life));
            }
            Step::Plus { .. } => self.made(plus_three(&proxy), plus(), here, Some(life)),
            Step::PlusConsuming { .. } => {
                self.arrays.swap_remove(at);
                if proxy.dtype() == DType::U8 {
                    return;
                }
                let result = proxy + 3.;
                // A detached array that is used up may give its bytes to the result.
                let reused = life == Life::Detached && result.as_ref().is_ok_and(|result| !result.is_attached());
                self.made(result, plus(), if reused { life } else { here }, Some(life));
            }
            Step::Sum { .. } if proxy.dtype() == DType::F64 => {
                let sum = Arc::new(vec![content.iter().sum()]);
                self.made(proxy.sum_all().and_then(|sum| sum.reshape(1)), sum, here, Some(life));
            }
            Step::Detach { .. } => self.made(proxy.try_detach(), content, Life::Detached, Some(life)),
            Step::Leverage { .. } => {
                let to = if life == Life::Detached { life } else { self.moved(life, self.life_in(self.enclosing())) };
                self.made(proxy.leverage(), content, to, Some(life));
            }
            Step::LeverageTo { workspace, .. } => {
                let to = self.moved(life, self.life_in(Some(workspace % 3)));
                let result = proxy.leverage_to(NAMES[workspace % 3]);
                match (result, life) {
                    (result, Life::Detached) => self.made(result, content, life, Some(life)),
                    (Err(Error::Workspace { .. }), _) => assert_eq!(to, Life::Detached, "it is open"),
                    (result, _) => self.made(result, content, to, Some(life)),
                }
            }
            Step::Migrate { detach, .. } => {
                let to = if here == Life::Detached && !detach { life } else { self.moved(life, here) };
                self.made(proxy.migrate(detach), content, to, Some(life));
            }
            Step::Clone { .. } => {
                let gone = self.arrays[at].gone;
                self.arrays.push(Array { proxy, content, life, gone });
            }
            Step::Drop { .. } => drop(self.arrays.swap_remove(at)),
            Step::Give { .. } => {
                self.pool.give(Given { array: proxy, content, attached: life != Life::Detached });
            }
            _ => {}
        }
    }

    fn make(&mut self, kind: Kind, len: usize) {
        self.next += 1;
        let pattern = |at: usize| ((self.next * 37 + at * 7) % 251) as u8;
        let numbers: Vec<u8> = (0..len).map(pattern).collect();
        let constant = |value: f64| Arc::new(vec![value; len]);
        let device = &Device::Cpu;
        let content: Content = match kind {
            Kind::Zeros => constant(0.),
            Kind::Ones => constant(1.),
            Kind::Full => constant(self.next as f64),
            _ => Arc::new(numbers.iter().map(|v| f64::from(*v)).collect()),
        };
        let result = match kind {
            Kind::Zeros => Tensor::zeros(len, DType::F32, device),
            Kind::Ones => Tensor::ones(len, DType::I64, device),
            Kind::Full => Tensor::full(self.next as f64, len, device),
            Kind::F32 => Tensor::from_vec(content.iter().map(|v| *v as f32).collect::<Vec<_>>(), len, device),
            Kind::F64 => Tensor::from_vec(content.to_vec(), len, device),
            Kind::I64 => Tensor::from_vec(content.iter().map(|v| *v as i64).collect::<Vec<_>>(), len, device),
            Kind::U8 => Tensor::from_vec(numbers, len, device),
        };
        self.made(result, content, self.life_in(self.current()), None);
    }

    /// Something was made for `life` out of an array with the life `from`.
    fn made(&mut self, result: Result<Proxy, Error>, content: Content, life: Life, from: Option<Life>) {
        let from = from.map_or(Status::Valid, |from| self.status(from));
        match result {
            Ok(proxy) => {
                assert_ne!(from, Status::Ended, "a leaked array was used");
                self.arrays.push(Array { proxy, content, life, gone: false });
            }
            Err(Error::WorkspaceFull(_)) => {
                let Life::Cycle(cycle) = life else { panic!("no workspace was to take it") };
                let place = self.places[self.cycles[cycle].name].as_ref().unwrap();
                assert_eq!(self.configs[place.config].policy_spill(), SpillPolicy::Fail);
            }
            Err(error) => assert!(from != Status::Valid && is_leak(&error), "{error}"),
        }
    }

    /// Reads an array that somebody gave, and computes with it.
    fn look(&mut self, given: usize) {
        let Some(given) = self.pool.pick(given) else { return };
        given.check();
        let plus = Arc::new(given.content.iter().map(|v| v + 3.).collect());
        match plus_three(&given.array) {
            Err(error) if is_leak(&error) => assert!(given.attached),
            result => self.made(result, plus, self.life_in(self.current()), None),
        }
    }
}

/// Each element and three. Those of bytes might not fit, and become doubles first.
fn plus_three(array: &Proxy) -> Result<Proxy, Error> {
    if array.dtype() == DType::U8 { array.to_dtype(DType::F64)? + 3. } else { array + 3. }
}
