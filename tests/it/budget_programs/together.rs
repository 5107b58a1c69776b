//! Programs on four threads that share the managers of a tree, each with arrays of its own; and one that looks on.

use std::sync::atomic::{AtomicBool, Ordering};

use ndgc::{Budget, BudgetUse, DType, Device, Error, NdManager, Reservation, Result, Tensor, gc};

use super::ledger::Ledger;
use crate::common::Dice;

const THREADS: usize = 4;
const ROUNDS: usize = 8;
const STEPS: usize = 500;

/// A manager that the threads share: its parent, and the budget that it begins with.
type Shared = (Option<usize>, Option<(Option<u64>, Option<u64>)>);

/// Three levels. The limits of those in `VARIED` change, and are never above these.
const TREE: [Shared; 9] = [
    (None, Some((Some(40_000), Some(150)))),
    (Some(0), Some((Some(18_000), Some(70)))),
    (Some(0), Some((Some(24_000), None))),
    (Some(0), None),
    (Some(1), Some((Some(9_000), None))),
    (Some(1), None),
    (Some(2), Some((None, Some(40)))),
    (Some(2), Some((Some(12_000), Some(45)))),
    (Some(3), Some((Some(8_000), Some(30)))),
];

/// Managers whose limits a thread changes: the thread with this number the one that stands here.
const VARIED: [usize; 2] = [4, 7];

/// The manager that lends. What comes back to it comes beyond its budget: of each thread one array of so many bytes.
const LENDER: usize = 8;
const LENT: u64 = 40;

fn budget(bytes: Option<u64>, arrays: Option<u64>) -> Budget {
    let mut budget = Budget::new();
    (budget.max_bytes, budget.max_arrays) = (bytes, arrays);
    budget
}

/// Whether it was granted; if it was not, by a budget.
fn granted<T>(result: Result<T>, answered: &mut [u64; 2]) -> Option<T> {
    match result {
        Ok(made) => {
            answered[0] += 1;
            Some(made)
        }
        Err(Error::OutOfMemory(_)) => {
            answered[1] += 1;
            None
        }
        Err(error) => panic!("no other error: {error:?}"),
    }
}

/// One thread of the program: what it has, and what it was answered.
struct Worker {
    number: usize,
    ledger: Ledger,
    managers: Vec<NdManager>,
    handles: Vec<(usize, Tensor)>,
    rooms: Vec<Reservation>,
    answered: [u64; 2],
}

impl Worker {
    fn new(number: usize, shared: &[NdManager]) -> Self {
        let mut ledger = Ledger::default();
        for (parent, limits) in TREE {
            ledger.place(parent, limits.is_some());
        }
        let (managers, handles, rooms) = (shared.to_vec(), Vec::new(), Vec::new());
        Worker { number, ledger, managers, handles, rooms, answered: [0; 2] }
    }

    /// An open manager: a shared one, or one of its own.
    fn manager(&self, dice: &mut Dice) -> usize {
        let open: Vec<usize> = (0..self.managers.len()).filter(|&at| self.ledger.places[at].is_open).collect();
        open[dice.below(open.len())]
    }

    fn create(&mut self, to: usize, size: usize) {
        let made = self.managers[to].zeros(size, DType::U8);
        if let Some(made) = granted(made, &mut self.answered) {
            let array = self.ledger.made(Some(to), size as u64);
            self.handles.push((array, made));
        }
    }

    fn end_handle(&mut self, place: usize, by_hand: bool) {
        let (array, handle) = self.handles.swap_remove(place);
        // With the switch off its manager would keep it.
        if by_hand || !gc::is_on() {
            handle.close();
        }
        drop(handle);
        self.ledger.ended(array);
    }

    fn attach(&mut self, array: usize, handle: &Tensor, to: usize) {
        if granted(handle.attach(&self.managers[to]), &mut self.answered).is_some() {
            self.ledger.moved(array, Some(to));
        }
    }

    /// The parent of a manager gets the array, if there is one within the tree.
    fn ret(&mut self, from: usize, array: usize, handle: &Tensor) {
        let Some(parent) = self.ledger.places[from].parent else { return };
        if granted(self.managers[from].ret(handle), &mut self.answered).is_some() {
            self.ledger.moved(array, Some(parent));
        }
    }

    /// An array is lent to a manager that comes and goes; what that has ends, and the array comes back.
    fn lend(&mut self, to: usize, dice: &mut Dice) {
        let made = self.managers[LENDER].zeros(LENT as usize, DType::U8);
        let Some(lent) = granted(made, &mut self.answered) else { return };
        let borrower = self.managers[to].new_sub_manager().unwrap();
        if dice.below(2) == 0 {
            borrower.set_budget(Budget::new().max_bytes(200).max_arrays(2)).unwrap();
        }
        let is_lent = granted(lent.temp_attach(&borrower), &mut self.answered).is_some();
        let _own = granted(borrower.zeros(1 + dice.below(200), DType::U8), &mut self.answered);
        let _room = granted(borrower.reserve(1 + dice.below(100) as u64), &mut self.answered);
        borrower.close().unwrap();
        assert_eq!(lent.manager().unwrap().uuid(), self.managers[LENDER].uuid(), "it is back, or stayed: {is_lent}");
        lent.close();
    }

    fn sub_manager(&mut self, parent: usize, dice: &mut Dice) {
        let manager = self.managers[parent].new_sub_manager().unwrap();
        let has_budget = dice.below(2) == 0;
        if has_budget {
            let limits = Budget::new().max_bytes(500 + dice.below(3_000) as u64).max_arrays(1 + dice.below(12) as u64);
            manager.set_budget(limits).unwrap();
        }
        self.ledger.place(Some(parent), has_budget);
        self.managers.push(manager);
    }

    /// Ends one of its own managers, with all below it.
    fn close_manager(&mut self, top: usize) {
        if !self.ledger.places[top].is_open {
            return;
        }
        for at in self.ledger.subtree(top) {
            self.ledger.places[at].is_open = false;
            self.ledger.arrays_of(at).into_iter().for_each(|array| self.ledger.ended(array));
        }
        self.managers[top].close().unwrap();
        let ledger = &self.ledger;
        self.handles.retain(|(array, handle)| {
            let is_open = ledger.arrays[*array].is_some();
            assert_eq!(handle.is_open(), is_open, "what moved out lives on, the rest ended");
            is_open
        });
    }

    fn vary(&self, dice: &mut Dice) {
        let Some(&at) = VARIED.get(self.number) else { return };
        let (bytes, arrays) = TREE[at].1.expect("it has a budget");
        let bytes = bytes.map(|most| most - dice.below(most as usize / 2) as u64);
        self.managers[at].set_budget(budget(bytes, arrays)).unwrap();
    }

    fn step_of_array(&mut self, dice: &mut Dice, step: usize) {
        let place = dice.below(self.handles.len());
        let (array, handle) = (self.handles[place].0, self.handles[place].1.clone());
        match step {
            0 => {
                if let Some(viewed) = granted(handle.narrow(0, 0, 1), &mut self.answered) {
                    let view = self.ledger.viewed(array);
                    self.handles.push((view, viewed));
                }
            }
            1 => {
                let detached = handle.try_detach().unwrap();
                let array = self.ledger.detached(array);
                self.handles.push((array, detached));
            }
            2 => {
                let to = self.manager(dice);
                self.ret(to, array, &handle);
            }
            3..=6 => {
                let to = self.manager(dice);
                self.attach(array, &handle, to);
            }
            _ => {
                drop(handle);
                self.end_handle(place, step.is_multiple_of(2));
            }
        }
    }

    fn step(&mut self, dice: &mut Dice) {
        let to = self.manager(dice);
        match dice.below(24) {
            0..=8 => self.create(to, 1 + dice.below(900)),
            9 => self.vary(dice),
            10 if self.rooms.len() < 3 => {
                let room = self.managers[to].reserve(1 + dice.below(600) as u64);
                self.rooms.extend(granted(room, &mut self.answered));
            }
            11 => drop(self.rooms.pop()),
            12 => {
                // Another thread may be faster: that it was right nobody can say.
                let _ = self.managers[to].can_fit(dice.below(900) as u64);
            }
            13 => self.lend(to, dice),
            14 if self.managers.len() < TREE.len() + 60 => self.sub_manager(to, dice),
            15 if self.managers.len() > TREE.len() => {
                let own = self.managers.len() - TREE.len();
                self.close_manager(TREE.len() + dice.below(own));
            }
            16.. if !self.handles.is_empty() => {
                let step = dice.below(12);
                self.step_of_array(dice, step);
            }
            _ => {}
        }
        while self.handles.len() > 40 {
            let place = dice.below(self.handles.len());
            self.end_handle(place, true);
        }
    }

    /// A round: what was reserved ends with it, of every other one all arrays and all managers of its own.
    fn round(&mut self, dice: &mut Dice, ends: bool) {
        (0..STEPS).for_each(|_| self.step(dice));
        self.rooms.clear();
        if ends {
            (TREE.len()..self.managers.len()).for_each(|own| self.close_manager(own));
            while !self.handles.is_empty() {
                self.end_handle(0, dice.below(2) == 0);
            }
            self.managers.truncate(TREE.len());
            self.ledger.places.truncate(TREE.len());
        }
    }
}

fn managers(device: &Device) -> Vec<NdManager> {
    let mut managers: Vec<NdManager> = Vec::new();
    for (at, (parent, limits)) in TREE.into_iter().enumerate() {
        let manager = match parent {
            Some(parent) => managers[parent].new_sub_manager().unwrap(),
            None => NdManager::new_base_manager(device).unwrap(),
        };
        manager.set_name(&format!("m{at}"));
        if let Some((bytes, arrays)) = limits {
            manager.set_budget(budget(bytes, arrays)).unwrap();
        }
        managers.push(manager);
    }
    managers
}

/// No budget has more than it may have; and none had.
fn look(managers: &[NdManager]) {
    for (at, manager) in managers.iter().enumerate() {
        let (Some((bytes, arrays)), Some(found)) = (TREE[at].1, manager.budget_use()) else { continue };
        let beyond = if at == LENDER { THREADS as u64 } else { 0 };
        let BudgetUse { bytes: has, peak_bytes, arrays: count, peak_arrays, reserved_bytes, .. } = found;
        let most = bytes.map_or(u64::MAX, |bytes| bytes + beyond * LENT);
        assert!(has <= most && peak_bytes <= most && reserved_bytes <= most, "m{at}: {found:?}");
        assert!(has <= peak_bytes && count <= peak_arrays, "m{at}: {found:?}");
        let most = arrays.map_or(u64::MAX, |arrays| arrays + beyond);
        assert!(count <= most && peak_arrays <= most, "m{at}: {found:?}");
    }
}

/// What the shared budgets say is what the threads have.
fn compare(managers: &[NdManager], sums: &[[u64; 2]], round: usize) {
    for (at, manager) in managers.iter().enumerate().filter(|&(at, _)| TREE[at].1.is_some()) {
        let found = manager.budget_use().unwrap();
        assert_eq!(([found.bytes, found.arrays], found.reserved_bytes), (sums[at], 0), "m{at} after round {round}");
    }
}

/// Runs the threads, anew in each round. How many requests were granted, and how many were refused.
pub(super) fn run(device: &Device) -> [u64; 2] {
    let managers = managers(device);
    let seeded = |number: usize| (Worker::new(number, &managers), Dice((number as u64 + 1) * 0x9E37_79B9_7F4A));
    let mut workers: Vec<_> = (0..THREADS).map(seeded).collect();
    for round in 0..ROUNDS {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    look(&managers);
                }
            });
            let begin = |(worker, dice): &mut (Worker, Dice)| worker.round(dice, round % 2 == 1);
            let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || begin(worker))).collect();
            // That of the scope does not wait for thread-local destructors, in which a thread hands on its orphans.
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            watch.join().unwrap();
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        let mut sums = [[0; 2]; TREE.len()];
        for (worker, _) in &workers {
            for (sum, own) in sums.iter_mut().zip(worker.ledger.sums()) {
                *sum = [sum[0] + own[0], sum[1] + own[1]];
            }
        }
        compare(&managers, &sums, round);
    }
    compare(&managers, &[[0; 2]; TREE.len()], ROUNDS);
    managers[0].close().unwrap();
    workers.iter().fold([0; 2], |all, (worker, _)| [all[0] + worker.answered[0], all[1] + worker.answered[1]])
}
