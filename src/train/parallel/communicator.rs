//! What joins workers: sums over all of them.

use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ndgc::{Error, Result, Tensor, claim};

use super::super::place::called_here;
use super::super::shared::upcast_half;

/// Bytes of an array that are added up, scaled and copied before the next ones: they stay in the processor's cache.
const BLOCK_BYTES: usize = 1 << 16;

/// The most workers that one process starts, and the most places for batches that wait for one of them: each has room
/// from the start.
pub(super) const MOST: usize = 1 << 16;

/// The call that errors name.
pub(super) const OP: &str = "all_reduce";

/// Sums over all workers: threads of one process, or processes of many machines.
///
/// Each rank makes the same calls in the same order. When one of them fails, it calls [`Communicator::abort`], and
/// those that wait for it end with an error.
pub trait Communicator: Send {
    /// Which of the workers this is: `0..size`.
    fn rank(&self) -> usize;

    /// Number of workers.
    fn size(&self) -> usize;

    /// Sets each array to `scale` times the sum of those in this place of all ranks. Shapes, dtypes and the factor are
    /// the same everywhere, and so are the results, bit for bit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a rank aborted or is gone, or if the ranks bring different things; as [`Tensor::add_`].
    /// Then nothing is said of the numbers.
    fn all_reduce(&mut self, arrays: &[Tensor], scale: f64) -> Result<()>;

    /// This rank is at the end of its batches: once in each pass over the data; a last average may follow. Waits until
    /// all ranks are. Does nothing unless a communicator says what. Ranks that come to as many sums are not told apart.
    ///
    /// # Errors
    /// [`Error::Invalid`] on all ranks, which names this one, if others ask for a sum instead: they have more batches,
    /// and would wait for ever, or add up what belongs to different steps. As [`Communicator::all_reduce`].
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends the calls of all other ranks with an error that says why, those to come too.
    fn abort(&mut self, why: &str);
}

/// The [`Communicator`] of threads: they add in place, each a part of the arrays, in the order of the ranks; halves as
/// f32, rounded once.
///
/// ```
/// # use ndgc::train::{Communicator, ThreadCommunicator};
/// # use ndgc::{Device, Tensor};
/// let threads = ThreadCommunicator::group(3)?.into_iter().map(|mut group| {
///     std::thread::spawn(move || {
///         let own = Tensor::full(group.rank() as f32 + 1., 4, &Device::Cpu)?;
///         group.all_reduce(&[own.clone()], 1.)?;
///         own.to_vec1::<f32>()
///     })
/// });
/// for thread in threads.collect::<Vec<_>>() {
///     assert_eq!(thread.join().unwrap()?, [6.; 4]);
/// }
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Debug)]
pub struct ThreadCommunicator {
    rank: usize,
    group: Arc<Group>,
}

#[derive(Debug)]
struct Group {
    size: usize,
    /// The process that has the threads; a forked child has none.
    process: u32,
    state: Mutex<Meeting>,
    changed: Condvar,
}

/// What a rank brings: its arrays, and what must be equal on all ranks.
type Brought = (Vec<Tensor>, u64);

/// Who has come to the meeting that is due, and what they brought.
#[derive(Debug)]
struct Meeting {
    brought: Vec<Option<Brought>>,
    /// What all brought, from the last one's coming on.
    complete: Arc<Vec<Brought>>,
    come: usize,
    /// Meetings that took place.
    number: u64,
    aborted: Option<String>,
}

impl ThreadCommunicator {
    /// As many that belong together.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0, or for more than 65,536.
    #[track_caller]
    pub fn group(size: usize) -> Result<Vec<Self>> {
        if size == 0 || size > MOST {
            let (argument, expected) = ("size", "1 to 65536");
            return called_here(Err(Error::argument("ThreadCommunicator::group", argument, size, expected)));
        }
        let brought = (0..size).map(|_| None).collect();
        let meeting = Meeting { brought, complete: Arc::default(), come: 0, number: 0, aborted: None };
        let state = Mutex::new(meeting);
        let group = Arc::new(Group { size, process: process::id(), state, changed: Condvar::new() });
        Ok((0..size).map(|rank| ThreadCommunicator { rank, group: Arc::clone(&group) }).collect())
    }

    /// What ends the calls of all ranks, for somebody who is none.
    pub(super) fn breaker(&self) -> Breaker {
        Breaker(Arc::clone(&self.group))
    }

    /// Waits until every rank has come, and hands out what all brought.
    fn meet(&self, own: Brought) -> Result<Arc<Vec<Brought>>> {
        if self.group.process != process::id() {
            return Err(Error::forked(OP));
        }
        let mut meeting = self.group.lock();
        let number = meeting.number;
        if meeting.aborted.is_none() {
            meeting.brought[self.rank] = Some(own);
            meeting.come += 1;
            if meeting.come == meeting.brought.len() {
                let all = meeting.brought.iter_mut().map(|own| own.take().unwrap_or_default()).collect();
                meeting.complete = Arc::new(all);
                meeting.come = 0;
                meeting.number += 1;
                self.group.changed.notify_all();
            }
        }
        while meeting.number == number && meeting.aborted.is_none() {
            meeting = self.group.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        match &meeting.aborted {
            // What took place did so, though a rank that was quicker may have ended since.
            Some(why) if meeting.number == number => Err(cannot_go_on(self.rank, why)),
            _ => Ok(Arc::clone(&meeting.complete)),
        }
    }

    /// Whether all brought the same. All ranks see it, and none goes on if they did not.
    fn agree(&mut self, all: &[Brought]) -> Result<()> {
        if all.iter().all(|(_, other)| *other == all[0].1) {
            return Ok(());
        }
        let ended = all.iter().position(|(_, other)| *other == ENDED);
        let why = ended.map_or_else(|| DIFFERENT.to_owned(), |rank| format!("rank {rank} {AT_END}"));
        self.abort(&why);
        Err(cannot_go_on(self.rank, &why))
    }
}

impl Communicator for ThreadCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size
    }

    fn all_reduce(&mut self, arrays: &[Tensor], scale: f64) -> Result<()> {
        let size = self.group.size;
        let all = self.meet((arrays.to_vec(), fingerprint(arrays, scale)))?;
        self.agree(&all)?;
        let mine = (0..arrays.len()).zip(shares(arrays, size)).filter(|(_, rank)| *rank == self.rank);
        let mine = mine.map(|(place, _)| place).collect::<Vec<_>>();
        // What is written is this thread's until the owner changes it again: one barrier each way, not one an array.
        let claimed = claim(all.iter().flat_map(|(own, _)| mine.iter().filter_map(|&place| own.get(place))));
        let added = claimed.and_then(|()| mine.iter().try_for_each(|&place| add_up(&all, place, scale)));
        if let Err(error) = &added {
            self.abort(&format!("{error}"));
        }
        added?;
        drop(all);
        // Nobody reads or writes its own before all have added.
        let end = self.meet((Vec::new(), 0))?;
        drop(end);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let all = self.meet((Vec::new(), ENDED))?;
        self.agree(&all)
    }

    fn abort(&mut self, why: &str) {
        self.group.abort(format!("rank {} failed: {why}", self.rank));
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self, why: String) {
        // There is nobody to tell, and a lock may be held for ever.
        if self.process != process::id() {
            return;
        }
        let mut meeting = self.lock();
        meeting.aborted.get_or_insert(why);
        meeting.brought.iter_mut().for_each(|own| *own = None);
        self.changed.notify_all();
    }
}

/// Ends the calls of all ranks of a group.
pub(super) struct Breaker(Arc<Group>);

impl Breaker {
    pub(super) fn break_off(&self) {
        self.0.abort("the training was broken off".to_owned());
    }
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        self.abort("its thread ended");
    }
}

/// What a rank says that others left alone.
pub(super) fn cannot_go_on(rank: usize, why: &str) -> Error {
    Error::invalid(OP, format!("rank {rank} cannot go on: {why}"))
}

/// Which rank adds up each array: the largest first, to whom has least. The same on all ranks.
fn shares(arrays: &[Tensor], ranks: usize) -> Vec<usize> {
    let bytes = |place: usize| arrays[place].elem_count() * arrays[place].dtype().size_in_bytes();
    let mut order: Vec<usize> = (0..arrays.len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(bytes(place)));
    let (mut loads, mut shares) = (vec![0; ranks], vec![0; arrays.len()]);
    for place in order {
        let least = (0..ranks).min_by_key(|&rank| loads[rank]).unwrap_or(0);
        shares[place] = least;
        // An array costs something, whatever its size.
        loads[least] += bytes(place) + 1024;
    }
    shares
}

/// Why ranks cannot add up.
pub(super) const DIFFERENT: &str = "the ranks brought arrays of different sizes or dtypes, or different factors";

/// What a rank says of another one that has fewer batches.
pub(super) const AT_END: &str = "is at the end of its batches, and others are not; give all ranks as many";

/// What ranks bring to [`Communicator::end`] in place of a fingerprint.
pub(super) const ENDED: u64 = u64::MAX;

/// What must be equal on all ranks that add up: the same for the same sizes, dtypes and factor alone (FNV-1a, by 8
/// bytes).
pub(super) fn fingerprint(arrays: &[Tensor], scale: f64) -> u64 {
    let mix = |all: u64, number: u64| (all ^ number).wrapping_add(0xcbf2_9ce4_8422_2325).wrapping_mul(0x0100_0000_01b3);
    arrays.iter().fold(mix(0, scale.to_bits()), |all, array| {
        let all = mix(all, array.elem_count() as u64);
        array.dtype().as_str().bytes().fold(all, |all, byte| mix(all, byte.into()))
    })
}

/// The scaled sum of what all ranks have in this place, in the order of the ranks, written to each of them.
fn add_up(all: &[Brought], place: usize, scale: f64) -> Result<()> {
    let in_place = |(own, _): &Brought| own.get(place).cloned().ok_or_else(|| Error::invalid(OP, DIFFERENT));
    let arrays = all.iter().map(in_place).collect::<Result<Vec<_>>>()?;
    let Some(first) = arrays.first() else { return Ok(()) };
    let block = BLOCK_BYTES / first.dtype().size_in_bytes();
    if first.elem_count() <= block || arrays.iter().any(|own| !own.is_contiguous() || own.dims() != first.dims()) {
        return add_block(&arrays, scale);
    }
    let flat = arrays.iter().map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?;
    for from in (0..first.elem_count()).step_by(block) {
        let count = block.min(first.elem_count() - from);
        let blocks = flat.iter().map(|own| own.narrow(0, from, count)).collect::<Result<Vec<_>>>()?;
        add_block(&blocks, scale)?;
    }
    Ok(())
}

/// The scaled sum of arrays, written to each of them. That of halves is rounded once: it may be none of theirs before
/// it is scaled.
fn add_block(arrays: &[Tensor], scale: f64) -> Result<()> {
    let Some((first, others)) = arrays.split_first() else { return Ok(()) };
    let sum = upcast_half(first)?;
    others.iter().try_for_each(|other| sum.add_(&upcast_half(other)?).map(drop))?;
    if scale != 1. {
        sum.affine_(scale, 0.)?;
    }
    if sum.dtype() != first.dtype() {
        first.copy_(&sum.to_dtype(first.dtype())?)?;
    }
    others.iter().try_for_each(|other| other.copy_(first))
}
