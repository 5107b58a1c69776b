//! Writing in place against reading: the writer flag of `storage.rs`, the sequences of `storage/writing.rs` and the
//! hazard records.

use std::sync::Arc;

use super::world::Fault;
use crate::base::sync::{AtomicU32, Ordering, UnsafeCell};
use crate::memory::{
    hazard::{Hazards, heavy},
    slot::{GUARDED, Slot},
};

const SHARED: u32 = 0;
const WRITES: u32 = 1;

/// A storage with one array, in slot 0, and two threads' records. With `unasked` that array is one that thread 0 made
/// with the bytes, and thread 1 has another one, in slot 1.
struct StorageModel {
    unasked: Option<Slot<u8>>,
    users: AtomicU32,
    buffer: UnsafeCell<u32>,
    /// As in `world.rs`.
    touched: AtomicU32,
    records: [Hazards; 2],
    fault: Fault,
}

// SAFETY: `buffer` is for loom to judge.
#[allow(unsafe_code)]
unsafe impl Sync for StorageModel {}

/// The bytes are this thread's alone.
fn alone(me: usize) -> u32 {
    (me as u32 + 1) * 2
}

impl StorageModel {
    /// The slot of the array by which a thread uses the bytes.
    fn array(&self, me: usize) -> u32 {
        if self.unasked.is_some() { me as u32 } else { 0 }
    }

    /// `registry::pin` with `is_readable`, and a read of the buffer. Gives up where that one waits for a writer.
    fn read(&self, me: usize) {
        if self.announce(me) {
            // SAFETY: for loom to judge.
            #[allow(unsafe_code)]
            self.buffer.with(|bytes| unsafe { std::ptr::read(bytes) });
            self.touched.load(Ordering::Relaxed);
        }
        self.records[me].withdraw(0, 1);
    }

    /// Announces the array until its bytes may be read; `false` if somebody writes.
    fn announce(&self, me: usize) -> bool {
        loop {
            self.records[me].announce(0, [self.array(me)], false);
            if let Some(slot) = self.unasked.as_ref().filter(|_| me == 0) {
                // `from_plain`.
                if slot.state() & GUARDED == 0 {
                    return true;
                }
            }
            let users = self.users.load(Ordering::Acquire);
            match self.fault {
                Fault::NoCheckAfterAnnouncing => return true,
                // A thread that finds the bytes another one's reads them nevertheless.
                Fault::NoShare if users & WRITES == 0 => return true,
                _ if users == SHARED || users == alone(me) => return true,
                _ if users & WRITES != 0 => return false,
                _ => {}
            }
            // `Storage::ask`.
            let _ = self.users.compare_exchange(users, SHARED, Ordering::Release, Ordering::Relaxed);
            self.records[me].withdraw(0, 1);
        }
    }

    /// `inplace::attempt`: pins the array, then `Storage::write`, which gives up here where it waits there.
    fn write(&self, me: usize) {
        if self.announce(me) {
            let users = self.users.load(Ordering::Relaxed);
            let fits = users == SHARED || users == alone(me);
            let taken =
                |now| self.users.compare_exchange(now, now | WRITES, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if fits && taken(users) {
                let guard = || self.unasked.iter().for_each(Slot::guard);
                if users == SHARED {
                    // `StorageCell::have_asked`.
                    if !matches!(self.fault, Fault::NoGuard | Fault::LateGuard) {
                        guard();
                    }
                    if self.fault != Fault::NoHeavyBarrier {
                        heavy(2);
                    }
                    if self.fault == Fault::LateGuard {
                        guard();
                    }
                }
                let mut others = self.records.iter().enumerate().filter(|&(i, _)| i != me && users == SHARED);
                let found = self.fault != Fault::NoScan && others.any(|(i, record)| record.announces(self.array(i)));
                if !found {
                    self.touched.store(1, Ordering::Relaxed);
                    // SAFETY: for loom to judge.
                    #[allow(unsafe_code)]
                    self.buffer.with_mut(|bytes| unsafe { *bytes += 1 });
                }
                // `Writing::drop`.
                let after = match self.fault {
                    Fault::AloneThoughRead => alone(me),
                    _ if found => users,
                    _ => alone(me),
                };
                self.users.store(after, Ordering::Release);
            }
        }
        self.records[me].withdraw(0, 1);
    }
}

/// The bytes are those of all threads at first, or of thread `owner` alone.
fn run(fault: Fault, owner: Option<usize>, other: fn(&StorageModel), first: fn(&StorageModel)) {
    run_with(false, fault, owner, other, first);
}

/// As [`run`], with two arrays; thread 0 made the bytes.
fn run_unasked(fault: Fault, other: fn(&StorageModel), first: fn(&StorageModel)) {
    run_with(true, fault, Some(0), other, first);
}

fn run_with(unasked: bool, fault: Fault, owner: Option<usize>, other: fn(&StorageModel), first: fn(&StorageModel)) {
    loom::model(move || {
        let slot = unasked.then(|| {
            let slot = Slot::new();
            slot.open(0);
            slot
        });
        let storage = Arc::new(StorageModel {
            unasked: slot,
            users: AtomicU32::new(owner.map_or(SHARED, alone)),
            buffer: UnsafeCell::new(0),
            touched: AtomicU32::new(0),
            records: [Hazards::new(), Hazards::new()],
            fault,
        });
        let shared = Arc::clone(&storage);
        let thread = loom::thread::spawn(move || other(&shared));
        first(&storage);
        thread.join().expect("no model thread panics");
    });
}

fn write_twice(storage: &StorageModel) {
    storage.write(1);
    storage.write(1);
}

fn write_and_read(storage: &StorageModel) {
    storage.write(1);
    storage.read(1);
}

fn read_twice(storage: &StorageModel) {
    storage.read(0);
    storage.read(0);
}

#[test]
fn nobody_reads_bytes_that_are_being_written() {
    run(Fault::None, None, |storage| storage.write(1), read_twice);
}

#[test]
fn of_two_writers_one_writes_at_a_time() {
    run(
        Fault::None,
        None,
        |storage| storage.write(1),
        |storage| {
            storage.write(0);
            storage.read(0);
        },
    );
}

#[test]
#[should_panic = "Causality violation"]
fn without_a_look_at_the_writer_a_reader_meets_it() {
    run(Fault::NoCheckAfterAnnouncing, None, |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn without_the_heavy_barrier_a_writer_misses_a_reader() {
    run(Fault::NoHeavyBarrier, None, |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn without_a_scan_a_writer_meets_a_reader() {
    run(Fault::NoScan, None, |storage| storage.write(1), |storage| storage.read(0));
}

/// The writer made the storage: it writes without a barrier, until another thread takes the bytes for all.
#[test]
fn nobody_reads_bytes_that_the_thread_writes_that_alone_used_them() {
    run(Fault::None, Some(1), write_twice, read_twice);
}

#[test]
fn a_stranger_writes_after_the_thread_that_alone_used_the_bytes_or_before_it() {
    run(Fault::None, Some(1), write_and_read, |storage| storage.write(0));
}

#[test]
#[should_panic = "Causality violation"]
fn a_reader_that_does_not_take_the_bytes_for_all_meets_their_writer() {
    run(Fault::NoShare, Some(1), |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn a_writer_that_takes_bytes_that_are_read_for_its_own_meets_the_reader() {
    run(Fault::AloneThoughRead, None, write_twice, |storage| storage.read(0));
}

/// Thread 0 reads its own array without a look at the storage, thread 1 writes through another one.
#[test]
fn nobody_who_does_not_ask_reads_bytes_that_another_thread_writes() {
    run_unasked(Fault::None, write_twice, read_twice);
}

#[test]
fn a_thread_that_does_not_ask_writes_before_another_one_or_after_it() {
    run_unasked(Fault::None, write_and_read, |storage| storage.write(0));
}

#[test]
#[should_panic = "Causality violation"]
fn a_writer_that_does_not_say_so_meets_who_does_not_ask() {
    run_unasked(Fault::NoGuard, |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn a_writer_that_says_so_after_the_barrier_meets_who_does_not_ask() {
    run_unasked(Fault::LateGuard, |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn a_writer_without_the_heavy_barrier_meets_who_does_not_ask() {
    run_unasked(Fault::NoHeavyBarrier, |storage| storage.write(1), |storage| storage.read(0));
}
