//! The end of a workspace's cycle against its readers: stamps, holders and hazard records.

use std::sync::Arc;

use crate::base::sync::{AtomicU32, Ordering, UnsafeCell};
use crate::memory::{
    cycle::{ForeignUse, Oldest, RetainCount},
    hazard::{Hazards, announced, heavy},
};

/// The cycle whose array is in slot 0.
const STAMP: u64 = 1;

/// A step that is left out, or made at another time, to see a model fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CycleFault {
    None,
    NoCheckAfterAnnouncing,
    NoScan,
    ScanBeforeTheEnd,
    HoldersBeforeTheScan,
    NoLookAtHolders,
    HoldAfterWithdrawing,
    NoNote,
    LookBeforeNoting,
    LookBeforeTheNoteIsSeen,
}

/// A block with one array, and two threads' records.
struct BlockModel {
    oldest: Oldest,
    retain_count: RetainCount,
    foreign: ForeignUse,
    /// Whether the storage is still the workspace's thread's alone: 0, or 1 (`Storage::ask`).
    shared: AtomicU32,
    bytes: UnsafeCell<u32>,
    /// As in `world.rs`.
    touched: AtomicU32,
    records: [Hazards; 2],
    fault: CycleFault,
}

// SAFETY: `bytes` is for loom to judge.
#[allow(unsafe_code)]
unsafe impl Sync for BlockModel {}

impl BlockModel {
    fn look(&self) {
        // SAFETY: for loom to judge.
        #[allow(unsafe_code)]
        self.bytes.with(|bytes| unsafe { std::ptr::read(bytes) });
        self.touched.load(Ordering::Relaxed);
    }

    /// `registry::attempt` for an array of a workspace, a read, and if `keep` a `Storage::clone` that is read through
    /// after the operation, and dropped.
    fn read(&self, me: usize, keep: bool) {
        self.records[me].announce(0, [0], false);
        let is_live = || self.oldest.is_live(STAMP) || self.fault == CycleFault::NoCheckAfterAnnouncing;
        let early =
            matches!(self.fault, CycleFault::LookBeforeNoting | CycleFault::LookBeforeTheNoteIsSeen) && is_live();
        let is_shared = self.shared.load(Ordering::Acquire) != 0 || self.fault == CycleFault::NoNote;
        if !is_shared {
            self.foreign.note();
            self.shared.store(1, Ordering::Release);
            self.records[me].withdraw(0, 1);
            self.records[me].announce(0, [0], false);
        }
        let live = match self.fault {
            CycleFault::LookBeforeNoting => early,
            CycleFault::LookBeforeTheNoteIsSeen if is_shared => early,
            _ => is_live(),
        };
        if live {
            self.look();
            if keep && self.fault != CycleFault::HoldAfterWithdrawing {
                self.retain_count.retain();
            }
        }
        self.records[me].withdraw(0, 1);
        if live && keep {
            if self.fault == CycleFault::HoldAfterWithdrawing {
                self.retain_count.retain();
            }
            self.look();
            self.retain_count.release();
        }
    }

    /// `workspace::block::ArenaBlock::is_in_use`, with `readers::is_read`.
    fn is_in_use(&self) -> bool {
        let by_others = self.foreign.is_noted();
        // That it is needed no model can see: the fence in `is_noted` is one to loom's light barriers too.
        if by_others {
            heavy(2);
        }
        let early = self.fault == CycleFault::HoldersBeforeTheScan && self.retain_count.is_retained();
        if by_others && self.fault != CycleFault::NoScan && announced(self.records.iter(), 0) {
            return true;
        }
        match self.fault {
            CycleFault::NoLookAtHolders => false,
            CycleFault::HoldersBeforeTheScan => early,
            _ => self.retain_count.is_retained(),
        }
    }

    /// `Arena::end`, and if something was in use then, `Arena::renew` of the next cycle's begin.
    fn end(&self) {
        let early = self.fault == CycleFault::ScanBeforeTheEnd && !self.is_in_use();
        self.oldest.end_before(STAMP + 1);
        let free = match self.fault {
            CycleFault::ScanBeforeTheEnd => early,
            _ => !self.is_in_use() || !self.is_in_use(),
        };
        if free {
            self.touched.store(1, Ordering::Relaxed);
            // SAFETY: for loom to judge.
            #[allow(unsafe_code)]
            self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
        }
    }
}

fn run(fault: CycleFault, others: &'static [fn(&BlockModel)]) {
    loom::model(move || {
        let block = Arc::new(BlockModel {
            oldest: Oldest::new(),
            retain_count: RetainCount::new(),
            foreign: ForeignUse::new(),
            shared: AtomicU32::new(0),
            bytes: UnsafeCell::new(0),
            touched: AtomicU32::new(0),
            records: [Hazards::new(), Hazards::new()],
            fault,
        });
        let threads: Vec<_> = others
            .iter()
            .map(|other| {
                let block = Arc::clone(&block);
                loom::thread::spawn(move || other(&block))
            })
            .collect();
        block.end();
        threads.into_iter().for_each(|thread| thread.join().expect("no model thread panics"));
        assert!(!block.retain_count.is_retained());
    });
}

fn reads(block: &BlockModel) {
    block.read(0, false);
}

fn keeps(block: &BlockModel) {
    block.read(0, true);
}

fn keeps_too(block: &BlockModel) {
    block.read(1, true);
}

#[test]
fn the_end_of_a_cycle_leaves_bytes_to_their_reader() {
    run(
        CycleFault::None,
        &[|block| {
            block.read(0, false);
            block.read(0, false);
        }],
    );
}

#[test]
fn the_end_of_a_cycle_leaves_bytes_to_who_holds_them() {
    run(CycleFault::None, &[keeps]);
}

#[test]
fn the_end_of_a_cycle_meets_two_readers() {
    run(CycleFault::None, &[reads, keeps_too]);
}

#[test]
#[should_panic = "Causality violation"]
fn a_reader_that_does_not_look_at_the_stamps_reads_what_is_overwritten() {
    run(CycleFault::NoCheckAfterAnnouncing, &[reads]);
}

#[test]
#[should_panic = "Causality violation"]
fn an_end_that_does_not_scan_misses_a_reader() {
    run(CycleFault::NoScan, &[reads]);
}

#[test]
#[should_panic = "Causality violation"]
fn an_end_that_scans_first_misses_a_reader() {
    run(CycleFault::ScanBeforeTheEnd, &[reads]);
}

#[test]
#[should_panic = "Causality violation"]
fn an_end_that_looks_at_holders_before_it_scans_misses_one() {
    run(CycleFault::HoldersBeforeTheScan, &[keeps]);
}

#[test]
#[should_panic = "Causality violation"]
fn an_end_that_does_not_look_at_holders_misses_one() {
    run(CycleFault::NoLookAtHolders, &[keeps]);
}

#[test]
#[should_panic = "Causality violation"]
fn a_reader_that_holds_after_withdrawing_holds_nothing() {
    run(CycleFault::HoldAfterWithdrawing, &[keeps]);
}

#[test]
#[should_panic = "Causality violation"]
fn a_reader_of_another_thread_that_does_not_say_so_is_missed() {
    run(CycleFault::NoNote, &[reads]);
}

#[test]
#[should_panic = "Causality violation"]
fn a_reader_of_another_thread_that_looks_before_it_says_so_reads_what_is_overwritten() {
    run(CycleFault::LookBeforeNoting, &[reads]);
}

#[test]
#[should_panic = "Causality violation"]
fn a_reader_that_looks_before_it_finds_that_another_said_so_reads_what_is_overwritten() {
    run(CycleFault::LookBeforeTheNoteIsSeen, &[reads, |block| block.read(1, false)]);
}
