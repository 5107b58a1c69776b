//! The simulation's memory: host bytes, and the only place that touches them. Kernels run on copies of them.
//!
//! # Invariants
//! - Every byte of a [`Region`] is initialised from the start, so that reading one before it was written is
//!   a wrong value and a violation (see `check.rs`), never undefined.
//! - The bytes of regions are reached through `&mut Heap` alone: no two accesses overlap in time.
//! - A [`Task`] keeps the regions that it names, so that it may run after they were given back.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::error::Result;
use crate::device::{cpu, kernel::Kernel, shared, sim::places::AddressMap, span::Span};

/// Alignment of every region: a block's.
const ALIGN: usize = 256;
/// What fresh bytes hold: far from zero in every dtype.
const POISON: u8 = 0xCB;

/// Bytes that begin where a region may. They are atomics, since tasks share them.
#[derive(Debug)]
#[repr(align(256))]
struct AlignedBytes([AtomicU8; ALIGN]);

/// Bytes of the host, freed with their last holder.
#[derive(Debug)]
struct Region {
    lines: Vec<AlignedBytes>,
    bytes: usize,
}

impl Region {
    fn new(bytes: usize) -> Option<Arc<Self>> {
        let count = Some(bytes.div_ceil(ALIGN)).filter(|&count| count > 0)?;
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        lines.resize_with(count, || AlignedBytes([const { AtomicU8::new(POISON) }; ALIGN]));
        Some(Arc::new(Region { lines, bytes }))
    }

    fn ptr(&self) -> NonNull<u8> {
        NonNull::from(&self.lines[..]).cast()
    }

    /// Where a span that lies in here does, line by line.
    fn part(&self, span: Span) -> impl Iterator<Item = &[AtomicU8]> {
        let skip = span.ptr().addr().get() - self.ptr().addr().get();
        let end = skip + span.bytes();
        (skip / ALIGN..end.div_ceil(ALIGN)).map(move |line| {
            let start = line * ALIGN;
            &self.lines[line].0[skip.saturating_sub(start)..(end - start).min(ALIGN)]
        })
    }

    /// Whether all of a span lies in here, at an address that suits elements of `elem_bytes`.
    fn holds(&self, span: Span, elem_bytes: usize) -> bool {
        let (base, start) = (self.ptr().addr().get(), span.ptr().addr().get());
        start.checked_sub(base).is_some_and(|skip| {
            skip <= self.bytes && span.bytes() <= self.bytes - skip && start.is_multiple_of(elem_bytes)
        })
    }
}

/// Work on memory that waits for its turn.
#[derive(Debug)]
pub(super) struct Task {
    work: Work,
    /// What `work` names lies in these: all operands of a kernel, or the one of a copy.
    regions: [Option<Arc<Region>>; 5],
}

#[derive(Debug)]
enum Work {
    Kernel(Box<Kernel>),
    Upload(Span, Box<[u8]>),
    Download(Span, Landing),
}

/// Where the bytes of a download are, once it has run.
#[derive(Clone, Debug, Default)]
pub(super) struct Landing(Arc<Mutex<Vec<u8>>>);

impl Landing {
    /// The bytes that have arrived: all, or none.
    pub(super) fn take(self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Every region that was not given back.
#[derive(Debug, Default)]
pub(super) struct Heap {
    regions: AddressMap<Arc<Region>>,
    bytes: u64,
}

impl Heap {
    /// Bytes that were not given back.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let region = Region::new(bytes)?;
        let ptr = region.ptr();
        self.bytes += bytes as u64;
        self.regions.insert(ptr.addr().get(), region);
        Some(ptr)
    }

    /// Gives a region back; tasks that name it keep its bytes. `false` if there is none at this address.
    pub(super) fn free(&mut self, ptr: NonNull<u8>) -> bool {
        let region = self.regions.remove(ptr.addr().get());
        self.bytes -= region.as_ref().map_or(0, |region| region.bytes as u64);
        region.is_some()
    }

    fn find(&self, span: Span, elem_bytes: usize) -> Option<Arc<Region>> {
        let (_, region) = self.regions.last_below(span.ptr().addr().get().saturating_add(1))?;
        region.holds(span, elem_bytes).then(|| region.clone())
    }

    /// The kernel as a task. `None` if an operand names bytes that are not here, or not aligned.
    pub(super) fn kernel(&self, kernel: &Kernel) -> Option<Task> {
        let mut regions = [const { None }; 5];
        let accesses = kernel.accesses();
        for (place, (view, _)) in regions.iter_mut().zip(accesses.iter()) {
            if view.span().bytes() > 0 {
                *place = Some(self.find(view.span(), view.dtype().size_in_bytes())?);
            }
        }
        Some(Task { work: Work::Kernel(Box::new(*kernel)), regions })
    }

    /// A copy of host bytes as a task. `None` if its destination is not here, or of another size.
    pub(super) fn upload(&self, dst: Span, bytes: &[u8]) -> Option<Task> {
        let region = self.find(dst, 1).filter(|_| dst.bytes() == bytes.len())?;
        Some(Task { work: Work::Upload(dst, bytes.into()), regions: [Some(region), None, None, None, None] })
    }

    /// A copy to the host as a task, and where it will put the bytes. `None` if the source is not here.
    pub(super) fn download(&self, src: Span) -> Option<(Task, Landing)> {
        let region = self.find(src, 1)?;
        let landing = Landing::default();
        let work = Work::Download(src, landing.clone());
        Some((Task { work, regions: [Some(region), None, None, None, None] }, landing))
    }

    /// Runs a task that this heap made, for the first time or after so many replays.
    ///
    /// # Errors
    /// What the kernel says about its values: an index out of range, for instance.
    pub(super) fn run(&mut self, task: &Task, replays: u64) -> Result<()> {
        // What a task names lies in the region of that operand (`Heap::kernel`); no bytes lie in none.
        let part = |operand: usize, span: Span| task.regions[operand].iter().flat_map(move |region| region.part(span));
        // `&mut self` makes these the only accesses to any region.
        let load = |operand: usize, span: Span, mut to: &mut [u8]| {
            for line in part(operand, span) {
                let (now, rest) = to.split_at_mut(line.len());
                shared::read(line, now);
                to = rest;
            }
        };
        let store = |operand: usize, span: Span, mut bytes: &[u8]| {
            for line in part(operand, span) {
                let (now, rest) = bytes.split_at(line.len());
                shared::write(now, line);
                bytes = rest;
            }
        };
        match &task.work {
            Work::Kernel(kernel) => cpu::run_on_copies(kernel, replays, &load, &store)?,
            Work::Upload(dst, bytes) => store(0, *dst, bytes),
            Work::Download(src, landing) => {
                let mut bytes = vec![0; src.bytes()];
                load(0, *src, &mut bytes);
                *landing.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(heap: &mut Heap, src: Span) -> Option<Vec<u8>> {
        let (task, landing) = heap.download(src)?;
        heap.run(&task, 0).ok()?;
        Some(landing.take()).filter(|landed| landed.len() == src.bytes())
    }

    #[test]
    fn a_task_outlives_the_region_that_it_writes() {
        let mut heap = Heap::default();
        let ptr = heap.alloc(256).expect("256 bytes");
        let task = heap.upload(Span::new(ptr, 4), &[1, 2, 3, 4]).expect("inside");
        assert_eq!(read(&mut heap, Span::new(ptr, 4)), Some(vec![POISON; 4]));
        assert!(heap.free(ptr) && heap.bytes() == 0);
        assert!(heap.run(&task, 0).is_ok());
        assert_eq!(read(&mut heap, Span::new(ptr, 4)), None, "the region is gone for everybody else");
        assert!(!heap.free(ptr), "and cannot go twice");
    }

    #[test]
    fn spans_that_leave_their_region_are_refused() {
        let mut heap = Heap::default();
        let ptr = heap.alloc(256).expect("256 bytes");
        assert!(heap.upload(Span::new(ptr, 257), &[0; 257]).is_none());
        assert!(heap.upload(Span::new(ptr, 8), &[0; 7]).is_none());
        assert!(heap.download(Span::new(ptr, 300)).is_none());
        let (_, landing) = heap.download(Span::new(ptr, 8)).expect("inside");
        assert!(landing.take().is_empty(), "nothing has arrived");
    }
}
