//! Writing in place against reading: the writer flag of `storage.rs` and the hazard records.

use std::sync::Arc;

use super::world::Fault;
use crate::base::sync::{AtomicU32, Ordering, UnsafeCell};
use crate::memory::hazard::{Record, heavy};

/// A storage with one array, in slot 0, and two threads' records.
struct Storage {
    writer: AtomicU32,
    buffer: UnsafeCell<u32>,
    /// As in `world.rs`.
    touched: AtomicU32,
    records: [Record; 2],
    fault: Fault,
}

// SAFETY: `buffer` is for loom to judge.
#[allow(unsafe_code)]
unsafe impl Sync for Storage {}

impl Storage {
    /// `registry::try_pin` with `is_being_written`, and a read of the buffer. Gives up where that one is repeated.
    fn read(&self, me: usize) {
        self.records[me].announce(0, [0], false);
        if self.fault == Fault::NoCheckAfterAnnouncing || self.writer.load(Ordering::Acquire) == 0 {
            // SAFETY: for loom to judge.
            #[allow(unsafe_code)]
            self.buffer.with(|bytes| unsafe { std::ptr::read(bytes) });
            self.touched.load(Ordering::Relaxed);
        }
        self.records[me].withdraw(0, 1);
    }

    /// `inplace::attempt`: pins the array, then `Storage::write`, which gives up here where it waits there.
    fn write(&self, me: usize) {
        self.records[me].announce(0, [0], false);
        if self.writer.load(Ordering::Acquire) == 0
            && self.writer.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            if self.fault != Fault::NoHeavyBarrier {
                heavy(2);
            }
            let others = || self.records.iter().enumerate().filter(|&(i, _)| i != me);
            if self.fault == Fault::NoScan || !others().any(|(_, record)| record.announces(0)) {
                self.touched.store(1, Ordering::Relaxed);
                // SAFETY: for loom to judge.
                #[allow(unsafe_code)]
                self.buffer.with_mut(|bytes| unsafe { *bytes += 1 });
            }
            // `Writing::drop`.
            self.writer.store(0, Ordering::Release);
        }
        self.records[me].withdraw(0, 1);
    }
}

fn run(fault: Fault, other: fn(&Storage), first: fn(&Storage)) {
    loom::model(move || {
        let storage = Arc::new(Storage {
            writer: AtomicU32::new(0),
            buffer: UnsafeCell::new(0),
            touched: AtomicU32::new(0),
            records: [Record::new(), Record::new()],
            fault,
        });
        let shared = Arc::clone(&storage);
        let thread = loom::thread::spawn(move || other(&shared));
        first(&storage);
        thread.join().expect("no model thread panics");
    });
}

#[test]
fn nobody_reads_bytes_that_are_being_written() {
    run(
        Fault::None,
        |storage| storage.write(1),
        |storage| {
            storage.read(0);
            storage.read(0);
        },
    );
}

#[test]
fn of_two_writers_one_writes_at_a_time() {
    run(
        Fault::None,
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
    run(Fault::NoCheckAfterAnnouncing, |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn without_the_heavy_barrier_a_writer_misses_a_reader() {
    run(Fault::NoHeavyBarrier, |storage| storage.write(1), |storage| storage.read(0));
}

#[test]
#[should_panic = "Causality violation"]
fn without_a_scan_a_writer_meets_a_reader() {
    run(Fault::NoScan, |storage| storage.write(1), |storage| storage.read(0));
}
