//! An exact model of budgets for programs on one thread: what each request is answered, and every figure after it.

use ndgc::{Budget, DType, Device, Error, NdManager, OutOfMemoryClass, Reservation, Result, Tensor, gc};

use super::ledger::Ledger;
use crate::common::Dice;

/// The most bytes and arrays of a budget.
type Limits = [Option<u64>; 2];

/// Bytes, or arrays, in the pairs of numbers below.
const BYTES: usize = 0;
const ARRAYS: usize = 1;

/// The budget of a manager, if it has one.
#[derive(Debug, Default)]
struct Node {
    limits: Limits,
    reserved: u64,
    peak: [u64; 2],
    total: [u64; 2],
    refused: u64,
}

impl Node {
    fn budget(&self) -> Budget {
        let mut budget = Budget::new();
        (budget.max_bytes, budget.max_arrays) = (self.limits[BYTES], self.limits[ARRAYS]);
        budget
    }
}

/// Whose budget refuses, and what it has, may have, and is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    node: usize,
    used: u64,
    max: u64,
    asked: u64,
    is_arrays: bool,
}

/// What a call should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Fine,
    Closed,
    Stale,
    Refused(Refusal),
}

/// On whose reservations a request draws.
#[derive(Clone, Copy)]
enum Draws {
    All,
    /// On those above the first.
    Above,
    None,
}

/// What is charged to a node, beside what it had reserved.
#[derive(Clone, Copy)]
struct Part {
    node: usize,
    drawn: u64,
    left: u64,
}

/// Everything there should be, and what there is.
pub(super) struct Model {
    device: Device,
    ledger: Ledger,
    managers: Vec<NdManager>,
    nodes: Vec<Node>,
    /// The program's handles, with their arrays, which may be closed.
    handles: Vec<(usize, Tensor)>,
    /// Reservations, and whose budget they are of.
    rooms: Vec<(Option<usize>, Reservation)>,
    /// Which step this is, for messages.
    at: (u64, usize),
    /// Requests that were granted, and that a budget refused.
    pub(super) answered: [u64; 2],
}

impl Model {
    /// A tree of three levels with budgets in bytes and in arrays, another one without a budget at its root.
    pub(super) fn new(device: &Device, seed: u64) -> Self {
        let mut model = Model {
            device: device.clone(),
            ledger: Ledger::default(),
            managers: Vec::new(),
            nodes: Vec::new(),
            handles: Vec::new(),
            rooms: Vec::new(),
            at: (seed, 0),
            answered: [0; 2],
        };
        let all: [(Option<usize>, Option<Limits>); 9] = [
            (None, Some([Some(10_000), Some(40)])),
            (None, None),
            (Some(0), Some([Some(6_000), None])),
            (Some(0), Some([None, Some(18)])),
            (Some(0), None),
            (Some(2), Some([Some(3_000), Some(9)])),
            (Some(2), None),
            (Some(4), Some([Some(2_000), None])),
            (Some(1), Some([Some(2_500), Some(8)])),
        ];
        for (parent, limits) in all {
            let handle = match parent {
                Some(parent) => model.managers[parent].new_sub_manager().unwrap(),
                None => NdManager::new_base_manager(device).unwrap(),
            };
            model.add(parent, handle, limits);
        }
        model
    }

    fn add(&mut self, parent: Option<usize>, handle: NdManager, limits: Option<Limits>) {
        let number = self.ledger.place(parent, limits.is_some());
        handle.set_name(&format!("m{number}"));
        let node = Node { limits: limits.unwrap_or_default(), ..Node::default() };
        if limits.is_some() {
            assert_eq!(handle.set_budget(node.budget()).unwrap(), Budget::new());
        }
        self.managers.push(handle);
        self.nodes.push(node);
    }

    /// Bytes and arrays that are charged to each node.
    fn now(&self) -> Vec<[u64; 2]> {
        let mut now = self.ledger.sums();
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.reserved > 0) {
            self.ledger.above(Some(at)).into_iter().for_each(|above| now[above][BYTES] += node.reserved);
        }
        now
    }

    fn refusal(&self, node: usize, used: u64, asked: u64, what: usize) -> Option<Refusal> {
        let max = self.nodes[node].limits[what]?;
        (used + asked > max).then_some(Refusal { node, used, max, asked, is_arrays: what == ARRAYS })
    }

    /// Whether these nodes admit an array more.
    fn counted(&self, now: &[[u64; 2]], levels: &[usize]) -> std::result::Result<(), Refusal> {
        let refusal = levels.iter().find_map(|&node| self.refusal(node, now[node][ARRAYS], 1, ARRAYS));
        refusal.map_or(Ok(()), Err)
    }

    /// What bytes that are charged to these nodes add to each.
    fn charged(
        &self,
        now: &[[u64; 2]],
        levels: &[usize],
        bytes: u64,
        (draws, is_forced): (Draws, bool),
    ) -> std::result::Result<Vec<Part>, Refusal> {
        let (mut left, mut parts) = (bytes, Vec::new());
        for (at, &node) in levels.iter().enumerate() {
            let may_draw = match draws {
                Draws::All => true,
                Draws::Above => at > 0,
                Draws::None => false,
            };
            let drawn = if may_draw { left.min(self.nodes[node].reserved) } else { 0 };
            left -= drawn;
            parts.push(Part { node, drawn, left });
            if left == 0 {
                break;
            }
            if let Some(refusal) = self.refusal(node, now[node][BYTES], left, BYTES).filter(|_| !is_forced) {
                return Err(refusal);
            }
        }
        Ok(parts)
    }

    /// What bytes add that move to another manager's budget, or come into one.
    fn transferred(
        &self,
        now: &[[u64; 2]],
        (from, to): (Option<usize>, Option<usize>),
        bytes: u64,
        is_forced: bool,
    ) -> std::result::Result<Vec<Part>, Refusal> {
        let (levels, above) = (self.ledger.levels(from, to), self.ledger.above(to));
        // Within one tree nothing comes in that could be reserved for.
        let draws = if levels.len() == above.len() { Draws::All } else { Draws::None };
        self.charged(now, &levels, bytes, (draws, is_forced))
    }

    /// It was granted.
    fn charge(&mut self, parts: &[Part]) {
        for &Part { node, drawn, left } in parts {
            self.nodes[node].reserved -= drawn;
            self.nodes[node].total[BYTES] += left;
        }
    }

    fn count(&mut self, levels: &[usize]) {
        levels.iter().for_each(|&node| self.nodes[node].total[ARRAYS] += 1);
    }

    fn note_peaks(&mut self) {
        let now = self.now();
        for (node, now) in self.nodes.iter_mut().zip(now) {
            node.peak = [node.peak[0].max(now[0]), node.peak[1].max(now[1])];
        }
    }

    /// Compares what a call answered. `bytes`: of a request for new bytes.
    fn answered<T>(&mut self, result: &Result<T>, expected: Answer, bytes: Option<u64>) {
        let at = self.at;
        match (result, expected) {
            (Ok(_), Answer::Fine) => self.answered[0] += 1,
            (Err(Error::ManagerClosed { .. }), Answer::Closed) | (Err(Error::StaleArray(_)), Answer::Stale) => {}
            (Err(Error::OutOfMemory(found)), Answer::Refused(Refusal { node, used, max, asked, is_arrays })) => {
                self.answered[1] += 1;
                self.nodes[node].refused += 1;
                let (name, is_too_big) = (format!("m{node}"), !is_arrays && bytes.unwrap_or(asked) > max);
                match &found.class {
                    OutOfMemoryClass::TooBig => {
                        assert_eq!((is_too_big, &found.budget), (true, &Some((name, max))), "{at:?}: {found:?}");
                    }
                    class => {
                        let over = OutOfMemoryClass::OverBudget { manager: name, used, max, is_arrays };
                        assert_eq!((is_too_big, class), (false, &over), "{at:?}");
                    }
                }
            }
            (Err(error), expected) => panic!("{at:?}: {expected:?}, but {error:?}"),
            (Ok(_), expected) => panic!("{at:?}: {expected:?}, but it was granted"),
        }
    }

    /// A handle of the program's.
    fn pick(&self, dice: &mut Dice) -> Option<(usize, usize, Tensor)> {
        if self.handles.is_empty() {
            return None;
        }
        let place = dice.below(self.handles.len());
        let (array, handle) = &self.handles[place];
        Some((place, *array, handle.clone()))
    }

    /// Whether there is another array with its bytes, or somebody lent it: what such arrays do together depends on the
    /// order in which a close finds them.
    fn is_shared(&self, array: usize) -> bool {
        self.ledger.arrays[array].as_ref().is_some_and(|open| self.ledger.bytes[open.bytes].arrays > 1)
    }

    fn is_lent(&self, array: usize) -> bool {
        self.ledger.arrays[array].as_ref().is_some_and(|open| !open.lenders.is_empty())
    }

    fn create(&mut self, to: usize, size: u64) {
        let (now, levels) = (self.now(), self.ledger.above(Some(to)));
        let granted = self.counted(&now, &levels).and_then(|()| self.charged(&now, &levels, size, (Draws::All, false)));
        let expected = match &granted {
            _ if !self.ledger.places[to].is_open => Answer::Closed,
            Ok(_) => Answer::Fine,
            Err(refusal) => Answer::Refused(*refusal),
        };
        assert_eq!(self.managers[to].can_fit(size), expected == Answer::Fine, "{:?}: {expected:?}", self.at);
        let made = self.managers[to].zeros(size as usize, DType::U8);
        self.answered(&made, expected, Some(size));
        if let (Ok(made), Ok(parts)) = (made, granted) {
            self.count(&levels);
            self.charge(&parts);
            let array = self.ledger.made(Some(to), size);
            self.handles.push((array, made));
        }
    }

    fn create_free(&mut self, size: u64) {
        let made = Tensor::zeros(size as usize, DType::U8, &self.device).unwrap();
        let array = self.ledger.made(None, size);
        self.handles.push((array, made));
    }

    fn view(&mut self, array: usize, handle: &Tensor) {
        let viewed = handle.narrow(0, 0, 1);
        let Some(open) = self.ledger.arrays[array].clone() else {
            return self.answered(&viewed, Answer::Stale, None);
        };
        let (now, levels, bytes) = (self.now(), self.ledger.above(open.home), self.ledger.bytes[open.bytes].clone());
        // Bytes that nobody pays for come along.
        let comes = if bytes.payer.is_none() { self.ledger.payer_of(open.home) } else { None };
        let granted =
            self.counted(&now, &levels).and_then(|()| self.transferred(&now, (None, comes), bytes.size, false));
        let expected = granted.as_ref().map_or_else(|&refusal| Answer::Refused(refusal), |_| Answer::Fine);
        self.answered(&viewed, expected, None);
        if let (Ok(viewed), Ok(parts)) = (viewed, granted) {
            self.count(&levels);
            self.charge(&parts);
            let view = self.ledger.viewed(array);
            self.handles.push((view, viewed));
        }
    }

    fn detach(&mut self, array: usize, handle: &Tensor) {
        let is_open = self.ledger.arrays[array].is_some();
        let detached = handle.try_detach();
        self.answered(&detached, if is_open { Answer::Fine } else { Answer::Stale }, None);
        if let Ok(detached) = detached {
            let array = self.ledger.detached(array);
            self.handles.push((array, detached));
        }
    }

    /// What a move of an array is answered, and what it adds.
    fn moving(&self, array: usize, to: Option<usize>) -> (Answer, Vec<usize>, Vec<Part>) {
        let Some(open) = &self.ledger.arrays[array] else { return (Answer::Stale, Vec::new(), Vec::new()) };
        if !self.ledger.is_open(to) {
            return (Answer::Closed, Vec::new(), Vec::new());
        }
        let (now, levels, bytes) = (self.now(), self.ledger.levels(open.home, to), &self.ledger.bytes[open.bytes]);
        let way = (bytes.payer, self.ledger.payer_of(to));
        match self.counted(&now, &levels).and_then(|()| self.transferred(&now, way, bytes.size, false)) {
            Ok(parts) => (Answer::Fine, levels, parts),
            Err(refusal) => (Answer::Refused(refusal), Vec::new(), Vec::new()),
        }
    }

    /// An array goes to another owner, for good or until that closes.
    fn move_by<T>(&mut self, array: usize, to: Option<usize>, lends: bool, go: impl FnOnce() -> Result<T>) {
        let (expected, levels, parts) = self.moving(array, to);
        self.answered(&go(), expected, None);
        if expected == Answer::Fine {
            self.count(&levels);
            self.charge(&parts);
            let before = self.ledger.open(array).home;
            self.ledger.moved(array, to);
            let lenders = &mut self.ledger.arrays[array].as_mut().expect("open").lenders;
            if lends { lenders.push(before) } else { lenders.clear() }
        }
    }

    /// The manager's parent gets the array.
    fn ret(&mut self, from: usize, array: usize, handle: &Tensor) {
        let manager = self.managers[from].clone();
        if !self.ledger.places[from].is_open {
            return self.answered(&manager.ret(handle), Answer::Closed, None);
        }
        self.move_by(array, self.ledger.places[from].parent, false, || manager.ret(handle));
    }

    fn drop_handle(&mut self, place: usize) {
        let array = self.handles[place].0;
        // What its lenders get back then is another matter.
        if self.is_lent(array) && !gc::is_on() {
            return;
        }
        drop(self.handles.swap_remove(place));
        let is_kept = self.ledger.arrays[array].as_ref().is_some_and(|open| open.home.is_some()) && !gc::is_on();
        if !is_kept {
            self.ledger.ended(array);
        }
    }

    fn close_manager(&mut self, top: usize) {
        self.managers[top].close().unwrap();
        if !self.ledger.places[top].is_open {
            return;
        }
        let closed = self.ledger.subtree(top);
        closed.iter().for_each(|&at| self.ledger.places[at].is_open = false);
        for at in closed {
            let arrays = self.ledger.arrays_of(at);
            let ended: Vec<usize> = arrays.into_iter().filter(|&array| !self.gives_back(array)).collect();
            self.note_peaks();
            ended.into_iter().for_each(|array| self.ledger.ended(array));
        }
    }

    /// An array of a closed manager goes to its nearest open lender, also beyond a budget. Whether there is one.
    fn gives_back(&mut self, array: usize) -> bool {
        let open = self.ledger.open(array).clone();
        let Some(at) = open.lenders.iter().rposition(|&lender| self.ledger.is_open(lender)) else { return false };
        let (to, bytes) = (open.lenders[at], self.ledger.bytes[open.bytes].clone());
        let (now, levels) = (self.now(), self.ledger.levels(open.home, to));
        let way = (bytes.payer, self.ledger.payer_of(to));
        let parts = self.transferred(&now, way, bytes.size, true).expect("nobody refuses");
        self.count(&levels);
        self.charge(&parts);
        self.ledger.moved(array, to);
        self.ledger.arrays[array].as_mut().expect("open").lenders.truncate(at);
        true
    }

    fn sub_manager(&mut self, parent: usize, limits: Option<Limits>) {
        let made = self.managers[parent].new_sub_manager();
        let is_open = self.ledger.places[parent].is_open;
        self.answered(&made, if is_open { Answer::Fine } else { Answer::Closed }, None);
        if let Ok(made) = made {
            self.add(Some(parent), made, limits);
        }
    }

    fn set_budget(&mut self, of: usize, limits: Limits) {
        if !self.ledger.places[of].has_budget {
            return;
        }
        let node = Node { limits, ..Node::default() };
        let before = self.managers[of].set_budget(node.budget());
        let is_open = self.ledger.places[of].is_open;
        self.answered(&before, if is_open { Answer::Fine } else { Answer::Closed }, None);
        if let Ok(before) = before {
            assert_eq!(before, self.nodes[of].budget(), "{:?}", self.at);
            self.nodes[of].limits = limits;
        }
    }

    fn reserve(&mut self, of: usize, bytes: u64) {
        let (now, levels) = (self.now(), self.ledger.above(Some(of)));
        let granted = self.charged(&now, &levels, bytes, (Draws::Above, false));
        let expected = match &granted {
            _ if !self.ledger.places[of].is_open => Answer::Closed,
            Ok(_) => Answer::Fine,
            Err(refusal) => Answer::Refused(*refusal),
        };
        let room = self.managers[of].reserve(bytes);
        self.answered(&room, expected, Some(bytes));
        if let (Ok(room), Ok(parts)) = (room, granted) {
            self.charge(&parts);
            if let Some(&node) = levels.first() {
                self.nodes[node].reserved += bytes;
            }
            self.rooms.push((levels.first().copied(), room));
        }
    }

    fn end_room(&mut self, place: usize) {
        let (node, room) = self.rooms.swap_remove(place);
        if let Some(node) = node {
            self.nodes[node].reserved -= room.bytes().min(self.nodes[node].reserved);
        }
        drop(room);
    }

    fn step_of_array(&mut self, dice: &mut Dice, step: usize) {
        let Some((place, array, handle)) = self.pick(dice) else { return };
        let to = dice.below(self.managers.len());
        match step {
            0 if !self.is_lent(array) => self.view(array, &handle),
            1 if !self.is_lent(array) => self.detach(array, &handle),
            2 => {
                drop(handle);
                self.drop_handle(place);
            }
            3 => {
                handle.close();
                self.ledger.ended(array);
            }
            4 | 5 => {
                let manager = self.managers[to].clone();
                self.move_by(array, Some(to), false, || handle.attach(&manager));
            }
            6 => {
                let system = NdManager::system(&self.device);
                self.move_by(array, None, false, || handle.attach(&system));
            }
            7 if !self.is_shared(array) => {
                let manager = self.managers[to].clone();
                self.move_by(array, Some(to), true, || handle.temp_attach(&manager));
            }
            8 => self.ret(to, array, &handle),
            _ => {}
        }
    }

    /// One step of a random program, and a look at every figure.
    pub(super) fn step(&mut self, dice: &mut Dice) {
        self.at.1 += 1;
        let limit = |dice: &mut Dice, most: usize| (dice.below(4) > 0).then(|| dice.below(most) as u64);
        match dice.below(20) {
            0..=5 => {
                let (to, size) = (dice.below(self.managers.len()), 1 + dice.below(1_500) as u64);
                self.create(to, size);
            }
            6 => self.create_free(1 + dice.below(1_500) as u64),
            7 if self.managers.len() < 24 => {
                let limits = (dice.below(2) == 0).then(|| [limit(dice, 3_000), limit(dice, 8)]);
                self.sub_manager(dice.below(self.managers.len()), limits);
            }
            // Not those of the beginning.
            8 if self.managers.len() > 9 => self.close_manager(9 + dice.below(self.managers.len() - 9)),
            9 => {
                let limits = [limit(dice, 9_000), limit(dice, 40)];
                self.set_budget(dice.below(self.managers.len()), limits);
            }
            10 => self.reserve(dice.below(self.managers.len()), 1 + dice.below(1_000) as u64),
            11 if !self.rooms.is_empty() => self.end_room(dice.below(self.rooms.len())),
            12.. => {
                let step = dice.below(9);
                self.step_of_array(dice, step);
            }
            _ => {}
        }
        self.note_peaks();
        self.check();
    }

    fn check(&self) {
        let now = self.now();
        for (at, manager) in self.managers.iter().enumerate() {
            let place = &self.ledger.places[at];
            let node = self.ledger.payer_of(Some(at)).filter(|_| place.is_open);
            let found = manager.budget_use().map(|found| {
                let bytes = [found.bytes, found.peak_bytes, found.total_bytes, found.reserved_bytes];
                (bytes, [found.arrays, found.peak_arrays, found.total_arrays], found.refused)
            });
            let expected = node.map(|at| {
                let (Node { reserved, peak, total, refused, .. }, now) = (&self.nodes[at], now[at]);
                ([now[0], peak[0], total[0], *reserved], [now[1], peak[1], total[1]], *refused)
            });
            assert_eq!(found, expected, "{:?}: m{at}", self.at);
            let own = if place.is_open && place.has_budget { self.nodes[at].budget() } else { Budget::new() };
            assert_eq!(manager.budget(), own, "{:?}: m{at}", self.at);
        }
    }

    /// Everything is dropped, and nothing is left.
    pub(super) fn end(mut self) {
        self.handles.clear();
        while !self.rooms.is_empty() {
            self.end_room(0);
        }
        gc::collect_orphans();
        (0..self.ledger.arrays.len()).for_each(|array| self.ledger.ended(array));
        assert!(self.now().iter().all(|now| *now == [0, 0]));
        self.check();
        for base in [0, 1] {
            self.close_manager(base);
        }
        self.check();
    }
}
