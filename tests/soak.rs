//! Sixteen threads create, share, use, lend, close and drop arrays of managers that are closed meanwhile. At the end
//! nothing is left, and no value was ever seen half written. On the host, and on devices whose work is submitted.

use std::sync::Mutex;

use ndgc::{CycleLease, Device, Error, NdManager, Proxy, ResetPolicy, Tensor, Workspace, WorkspaceConfig, gc};

use crate::common::{self, Dice, turn};

const THREADS: u64 = 16;
const ELEMENTS: usize = 64;
const SHAPE: (usize, usize) = (8, 8);

/// What all threads reach.
struct Shared {
    device: Device,
    rounds: u32,
    pool: Vec<Mutex<Option<Proxy>>>,
    managers: Vec<Mutex<NdManager>>,
    root: NdManager,
}

impl Shared {
    fn new(device: &Device) -> Self {
        let rounds = if device.is_cpu() { 30_000 } else { 1_000 };
        let root = NdManager::new_base_manager(device).unwrap();
        let managers = (0..6).map(|_| Mutex::new(root.new_sub_manager().unwrap())).collect();
        Shared { device: device.clone(), rounds, pool: (0..48).map(|_| Mutex::new(None)).collect(), managers, root }
    }

    fn manager(&self, dice: &mut Dice) -> NdManager {
        self.managers[dice.below(self.managers.len())].lock().unwrap().clone()
    }

    fn array(&self, dice: &mut Dice) -> Option<Proxy> {
        self.pool[dice.below(self.pool.len())].lock().unwrap().clone()
    }

    /// Puts an array into the pool; the one that was there is dropped, outside the lock or inside.
    fn keep(&self, dice: &mut Dice, array: Option<Proxy>) {
        let mut place = self.pool[dice.below(self.pool.len())].lock().unwrap();
        let old = std::mem::replace(&mut *place, array);
        if dice.below(2) == 0 {
            drop(place);
        }
        drop(old);
    }
}

/// The value, unless somebody ended the array or the manager: that is what this test is about.
fn expect<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::StaleArray(_) | Error::LeakedArray(_) | Error::ManagerClosed { .. } | Error::InUse { .. }) => None,
        Err(other) => panic!("nothing here gives {other:?}"),
    }
}

/// Whether the array could be read.
fn check(array: &Proxy) -> bool {
    if let Some(values) = expect(array.to_vec::<f32>()) {
        assert!(values.iter().all(|value| *value == values[0]), "half written: {values:?}");
    }
    if !array.device().is_cpu() {
        return true;
    }
    let look = |values: &[f32]| assert!(values.iter().all(|value| *value == values[0]), "half written: {values:?}");
    match array.with_slice(look) {
        // A transposed view.
        Err(Error::RequiresContiguous { .. }) => true,
        other => expect(other).is_some(),
    }
}

/// One random thing. Whether values were read.
fn round(shared: &Shared, dice: &mut Dice) -> bool {
    let value = dice.below(100) as f32;
    let array = shared.array(dice);
    match (dice.below(16), array) {
        (0..=3, _) => {
            let made = expect(shared.manager(dice).from_slice(&[value; ELEMENTS], SHAPE));
            shared.keep(dice, made);
        }
        (4, _) => {
            let made = expect(Proxy::from_slice(&[value; ELEMENTS], SHAPE, &shared.device));
            shared.keep(dice, made);
        }
        (5, _) => {
            let fresh = shared.root.new_sub_manager().unwrap();
            let old = {
                let mut place = shared.managers[dice.below(shared.managers.len())].lock().unwrap();
                std::mem::replace(&mut *place, fresh)
            };
            old.close().unwrap();
        }
        (6, _) => shared.keep(dice, None),
        (_, None) => {}
        (7, Some(array)) => array.close(),
        (8, Some(array)) => drop(expect(array.attach(&shared.manager(dice)))),
        (9, Some(array)) => drop(expect(array.temp_attach(&shared.manager(dice)))),
        (10, Some(array)) => {
            let other = shared.array(dice);
            let sum = other.and_then(|other| expect(array.add(&other)));
            let read = sum.as_ref().is_some_and(check);
            shared.keep(dice, sum);
            return read;
        }
        (11, Some(array)) => {
            let other = shared.array(dice);
            other.and_then(|other| expect(array.add_(&other)));
        }
        (12, Some(array)) => {
            let view = if dice.below(2) == 0 { array.t() } else { array.reshape(SHAPE) };
            shared.keep(dice, expect(view));
        }
        (13, Some(array)) => drop(expect(array.try_detach())),
        (14, Some(array)) => drop(Proxy::from_registry(array.key())),
        (_, Some(array)) => return check(&array),
    }
    false
}

fn work(shared: &Shared, thread: u64, flip: bool) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ thread);
    let mut read = 0;
    for turn in 0..shared.rounds {
        read += u32::from(round(shared, &mut dice));
        if flip && turn % 97 == 0 {
            if dice.below(2) == 0 { gc::on() } else { gc::off() }
        }
    }
    assert!(read > shared.rounds / 100, "only {read} of {} rounds met an open array", shared.rounds);
}

fn soak(flip: bool) {
    for device in common::devices() {
        soak_on(&device, flip);
    }
}

fn soak_on(device: &Device, flip: bool) {
    let _turn = turn();
    gc::on();
    gc::collect();
    let start = (gc::stats(), device.memory().active);
    let shared = Shared::new(device);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let shared = &shared;
                scope.spawn(move || work(shared, n + 1, flip))
            })
            .collect();
        // The end of the scope does not wait for thread-local destructors, in which a thread hands on its orphans.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    drop(shared);
    gc::collect();
    let end = gc::stats();
    assert_eq!((end.live, end.queued, end.kept), (start.0.live, start.0.queued, start.0.kept));
    assert_eq!(device.memory().active, start.1);
    gc::off();
    common::check(device);
}

#[test]
fn sixteen_threads_leave_nothing_behind_with_reclaiming_on() {
    soak(false);
}

#[test]
fn sixteen_threads_leave_nothing_behind_while_the_switch_goes_on_and_off() {
    soak(true);
}

/// An array that goes from thread to thread, and what is in it; none if threads write into it, but always one value.
#[derive(Clone)]
struct Passed {
    array: Proxy,
    value: Option<f32>,
}

/// Threads with workspaces of their own, which read each other's arrays while their cycles end.
struct Loops {
    device: Device,
    turns: u32,
    pool: Vec<Mutex<Option<Passed>>>,
    /// Dropped by whoever comes.
    leases: Mutex<Vec<CycleLease>>,
}

impl Loops {
    fn pass(&self, dice: &mut Dice, passed: Passed) {
        let old = self.pool[dice.below(self.pool.len())].lock().unwrap().replace(passed);
        drop(old);
    }

    fn make(&self, dice: &mut Dice) {
        let value = dice.below(1000) as f32;
        let array = Tensor::full(value, 64 + dice.below(1000), &self.device).unwrap();
        let value = (dice.below(8) > 0).then_some(value);
        let array = if dice.below(8) == 0 { array.try_detach().unwrap() } else { array };
        self.pass(dice, Passed { array, value });
    }

    /// Uses an array of whatever thread. Whether its cycle still went on.
    fn visit(&self, dice: &mut Dice) -> bool {
        let Some(Passed { array, value }) = self.pool[dice.below(self.pool.len())].lock().unwrap().clone() else {
            return false;
        };
        let look = |values: &[f32], value: Option<f32>| {
            let value = value.unwrap_or(values[0]);
            assert!(values.iter().all(|v| *v == value), "{value} was overwritten: {values:?}");
        };
        match dice.below(6) {
            0 if array.device().is_cpu() => expect(array.with_slice(|values| {
                std::thread::yield_now();
                look(values, value);
            }))
            .is_some(),
            1 => {
                let Some(sum) = expect(&array + 1.) else { return false };
                let value = value.map(|value| value + 1.);
                look(&sum.to_vec().unwrap(), value);
                self.pass(dice, Passed { array: sum, value });
                true
            }
            2 => expect(array.try_detach()).is_some_and(|copy| {
                look(&copy.to_vec().unwrap(), value);
                true
            }),
            3 if value.is_none() => expect(array.add_(&array)).is_some(),
            _ => expect(array.to_vec()).is_some_and(|values: Vec<f32>| {
                look(&values, value);
                true
            }),
        }
    }

    /// A cycle of a workspace, and one of another inside it, in which the first is entered again.
    fn turn(&self, dice: &mut Dice, configs: &[WorkspaceConfig; 2]) -> u32 {
        let enter = |at: usize| Workspace::enter_on(&self.device, ["LOOP", "RING"][at], &configs[at]).unwrap();
        let mut read = 0;
        let mut work = |dice: &mut Dice| {
            (0..1 + dice.below(4)).for_each(|_| self.make(dice));
            (0..4).for_each(|_| read += u32::from(self.visit(dice)));
        };
        let first = dice.below(2);
        let _first = enter(first);
        work(dice);
        if dice.below(2) == 0 {
            let second = enter(1 - first);
            work(dice);
            let _again = enter(first);
            work(dice);
            second.leave();
        }
        if first == 1 && dice.below(4) == 0 {
            let mut leases = self.leases.lock().unwrap();
            leases.push(_first.lease().unwrap());
            if leases.len() > 6 {
                let at = dice.below(leases.len());
                drop(leases.swap_remove(at));
            }
        }
        read
    }

    /// The life of a thread; it ends while others have its arrays.
    fn live(&self, seed: u64) {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
        let ring = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(2.);
        let configs = [WorkspaceConfig::default(), ring.build().unwrap()];
        let read: u32 = (0..self.turns).map(|_| self.turn(&mut dice, &configs)).sum();
        assert!(read > self.turns / 20, "only {read} arrays of {} turns were read", self.turns);
    }
}

#[test]
fn workspaces_of_threads_that_come_and_go_are_read_by_all() {
    let _turn = turn();
    for device in common::devices() {
        gc::on();
        gc::collect();
        let start = (gc::stats(), device.memory().active);
        let turns = if device.is_cpu() { 1_500 } else { 60 };
        let pool = (0..48).map(|_| Mutex::new(None)).collect();
        let loops = Loops { device: device.clone(), turns, pool, leases: Mutex::default() };
        for generation in 0..4 {
            std::thread::scope(|scope| {
                let loops = &loops;
                let lives: Vec<_> = (1..=8).map(|n| scope.spawn(move || loops.live(8 * generation + n))).collect();
                lives.into_iter().for_each(|life| life.join().unwrap());
            });
        }
        drop(loops);
        gc::collect();
        let end = gc::stats();
        assert_eq!((end.live, end.queued, end.kept), (start.0.live, start.0.queued, start.0.kept));
        assert_eq!(device.memory().active, start.1);
        gc::off();
        common::check(&device);
    }
}
