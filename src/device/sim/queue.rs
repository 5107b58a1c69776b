//! Work that was submitted and has not run: a queue for each stream, and the draw among them.
//!
//! What may run is what events allow; which of it runs is drawn from the seed. A program whose streams are
//! not ordered well enough thus reads other values than the one it was written as.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::error::Error;
use crate::device::{
    sim::memory::{Heap, Task},
    stream::MAX_STREAMS,
};

/// More tasks than this do not wait: half of them run.
const QUEUED_MAX: usize = 256;

/// An entry of a stream's queue.
#[derive(Debug)]
enum QueueEntry {
    /// Something to run, with the replays of its section before this one.
    Task(Arc<Task>, u64),
    /// The stream's event; its records count from 1.
    Record(u64),
    /// Until the event of stream `on` was recorded so often.
    Wait { on: usize, record: u64 },
}

#[derive(Debug, Default)]
struct StreamLane {
    entries: VecDeque<QueueEntry>,
    /// Records submitted, and records passed.
    recorded: u64,
    passed: u64,
}

/// The queues of a device.
#[derive(Debug)]
pub(super) struct Queues {
    lanes: Vec<StreamLane>,
    tasks: usize,
    random: u64,
    /// The first failure of a task that ran.
    fault: Option<Error>,
}

impl Queues {
    pub(super) fn new(streams: usize, seed: u64) -> Self {
        let lanes = (0..streams).map(|_| StreamLane::default()).collect();
        Queues { lanes, tasks: 0, random: seed, fault: None }
    }

    /// Tasks that have not run.
    pub(super) fn tasks(&self) -> usize {
        self.tasks
    }

    /// The first failure of a task that ran, once.
    pub(super) fn take_fault(&mut self) -> Option<Error> {
        self.fault.take()
    }

    pub(super) fn push(&mut self, stream: usize, task: Arc<Task>, replays: u64, heap: &mut Heap) {
        self.lanes[stream].entries.push_back(QueueEntry::Task(task, replays));
        self.tasks += 1;
        if self.tasks > QUEUED_MAX {
            while self.tasks > QUEUED_MAX / 2 && self.step(heap) {}
        }
    }

    pub(super) fn record(&mut self, stream: usize) {
        let lane = &mut self.lanes[stream];
        lane.recorded += 1;
        lane.entries.push_back(QueueEntry::Record(lane.recorded));
    }

    /// An event that was never recorded holds nobody up.
    pub(super) fn wait(&mut self, stream: usize, on: usize) {
        let record = self.lanes[on].recorded;
        self.lanes[stream].entries.push_back(QueueEntry::Wait { on, record });
    }

    /// Runs, of every stream, as much as chance wants, and all of this one.
    pub(super) fn drain(&mut self, stream: usize, heap: &mut Heap) {
        while !self.lanes[stream].entries.is_empty() && self.step(heap) {}
    }

    /// Runs one entry of a stream that may run. `false` if there is none: then the queues are empty, because a
    /// wait names a record that was submitted before it.
    fn step(&mut self, heap: &mut Heap) -> bool {
        let mut ready = [0; MAX_STREAMS];
        let mut count = 0;
        for (stream, lane) in self.lanes.iter().enumerate() {
            let runs = match lane.entries.front() {
                None => false,
                Some(QueueEntry::Wait { on, record }) => self.lanes[*on].passed >= *record,
                Some(_) => true,
            };
            if runs {
                ready[count] = stream;
                count += 1;
            }
        }
        if count == 0 {
            return false;
        }
        let stream = ready[(self.draw() % count as u64) as usize];
        match self.lanes[stream].entries.pop_front() {
            Some(QueueEntry::Task(task, replays)) => {
                self.tasks -= 1;
                if let Err(error) = heap.run(&task, replays) {
                    self.fault.get_or_insert(error);
                }
            }
            Some(QueueEntry::Record(record)) => self.lanes[stream].passed = record,
            Some(QueueEntry::Wait { .. }) | None => {}
        }
        true
    }

    /// The next number of the sequence that the seed started: splitmix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
