//! The driver of the simulation: counts and fails calls, shows them to the checker, queues their work.
//!
//! A call that fails on request fails before anything else sees it, so that it had no effect, as [`Driver`]
//! promises. While a stream is captured, calls that a real driver would not take fail, and spoil the capture.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
    layout::Layout,
    order::sort_by_key,
    shape::Shape,
    sync::{AtomicU64, Ordering},
};
use crate::device::{
    budget::AllocError,
    kernel::{Access, Kernel, OwnedView},
    sim::{
        check::{Checker, range_of},
        memory::{Heap, Landing, Task},
        queue::Queues,
    },
    span::Span,
    stream::{Clock, Driver},
};

/// Driver calls that were made, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimCalls {
    /// Bytes asked of the driver, the device's or the host's; a request served from what is kept makes no call.
    pub allocations: u64,
    /// Bytes given back to the driver.
    pub frees: u64,
    /// Kernels.
    pub launches: u64,
    /// Copies from and to the host.
    pub copies: u64,
    /// Events recorded.
    pub records: u64,
    /// Waits of one stream for another.
    pub waits: u64,
    /// Waits of the host for a stream, those of downloads aside.
    pub synchronisations: u64,
    /// Captures begun.
    pub captures: u64,
    /// Captures ended.
    pub graphs: u64,
    /// Replays.
    pub replays: u64,
}

/// What a call says about bytes that it cannot reach.
const NOT_HERE: &str = "an operand lies outside the device's memory, or has another size than the host's bytes";
const OVERLAP: &str = "an operand that is written overlaps another one";
const IN_CAPTURE: &str = "not while a stream is captured";

/// The simulation below the streams and the pool.
#[derive(Debug)]
pub(crate) struct SimDriver {
    name: String,
    memory_bytes: u64,
    state: Mutex<SimState>,
}

#[derive(Debug)]
pub(super) struct SimState {
    heap: Heap,
    /// Bytes of the heap that stand for the host's.
    on_host: u64,
    queues: Queues,
    pub(super) checker: Checker,
    pub(super) calls: SimCalls,
    /// Calls until one fails, counting that one.
    pub(super) fail_in: Option<u64>,
    recording: Option<CaptureRecording>,
    /// Sections captured so far.
    sections: u64,
}

/// What a captured section does, in order.
#[derive(Debug)]
enum RecordedStep {
    HandedOut(Span),
    SubAllocated(Span),
    Kernel(&'static str, Vec<(OwnedView, Access)>, Arc<Task>),
}

/// A capture that has begun.
#[derive(Debug)]
struct CaptureRecording {
    stream: usize,
    steps: Vec<RecordedStep>,
    /// Whether something was called that cannot be.
    spoilt: bool,
}

/// A captured section.
#[derive(Debug)]
pub(crate) struct SimGraph {
    section: u64,
    steps: Vec<RecordedStep>,
    replays: AtomicU64,
}

/// A copy to the host that is under way.
#[derive(Debug)]
pub(crate) struct SimDownload {
    stream: usize,
    bytes: usize,
    reached: Clock,
    landing: Landing,
}

impl SimState {
    pub(super) fn pending(&self) -> usize {
        self.queues.tasks()
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> u64 {
        self.heap.bytes()
    }
}

impl SimDriver {
    pub(super) fn new(name: String, memory_bytes: u64, streams: usize, seed: u64) -> Self {
        let state = SimState {
            heap: Heap::default(),
            on_host: 0,
            queues: Queues::new(streams, seed),
            checker: Checker::default(),
            calls: SimCalls::default(),
            fail_in: None,
            recording: None,
            sections: 0,
        };
        SimDriver { name, memory_bytes, state: Mutex::new(state) }
    }

    /// A kernel that panics while it runs leaves the books as they were before it: poison means nothing here.
    pub(super) fn lock(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails it if its turn has come, or if a stream is captured.
    fn begin(&self, call: &'static str, counter: fn(&mut SimCalls) -> &mut u64) -> Result<MutexGuard<'_, SimState>> {
        let mut state = self.count(call, counter)?;
        if let Some(recording) = &mut state.recording {
            recording.spoilt = true;
            return Err(self.error(call, IN_CAPTURE));
        }
        Ok(state)
    }

    fn count(&self, call: &'static str, counter: fn(&mut SimCalls) -> &mut u64) -> Result<MutexGuard<'_, SimState>> {
        let mut state = self.lock();
        *counter(&mut state.calls) += 1;
        if let Some(left) = state.fail_in {
            state.fail_in = (left > 1).then(|| left - 1);
            if left <= 1 {
                return Err(self.error(call, "made to fail on request"));
            }
        }
        Ok(state)
    }

    fn error(&self, call: &'static str, message: &str) -> Error {
        Error::device(&self.name, call, message)
    }
}

/// A span as the bytes it is.
fn bytes_of(span: Span) -> OwnedView {
    OwnedView::new(span, DType::U8, Layout::contiguous(Shape::from(span.bytes())))
}

impl SimDriver {
    /// A kernel becomes part of the section.
    fn record_kernel(&self, state: &mut SimState, stream: usize, kernel: &Kernel) -> Result<()> {
        let SimState { recording, checker, heap, .. } = state;
        let Some(recording) = recording else { return Ok(()) };
        if recording.stream != stream {
            recording.spoilt = true;
            return Err(self.error("launch", IN_CAPTURE));
        }
        let operands: Vec<_> = kernel.accesses().iter().map(|(view, access)| (*view, access)).collect();
        if !checker.recorded(kernel.name(), stream, &operands) {
            return Err(self.error("launch", OVERLAP));
        }
        let task = heap.kernel(kernel).ok_or_else(|| self.error("launch", NOT_HERE))?;
        recording.steps.push(RecordedStep::Kernel(kernel.name(), operands, Arc::new(task)));
        Ok(())
    }
}

/// The bytes that a section uses.
fn ranges(steps: &[RecordedStep]) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    for step in steps {
        match step {
            RecordedStep::HandedOut(span) | RecordedStep::SubAllocated(span) => all.push(range_of(*span)),
            RecordedStep::Kernel(_, operands, _) => all.extend(operands.iter().map(|(view, _)| range_of(view.span()))),
        }
    }
    all.retain(|range| !range.is_empty());
    sort_by_key(&mut all, |range| (range.start, range.end));
    all.dedup();
    all
}

impl Driver for SimDriver {
    type Graph = SimGraph;
    type Download = SimDownload;

    fn alloc(&self, stream: usize, bytes: usize) -> std::result::Result<NonNull<u8>, AllocError> {
        let mut state = self.begin("alloc", |calls| &mut calls.allocations).map_err(AllocError::Failed)?;
        if (state.heap.bytes() - state.on_host).saturating_add(bytes as u64) > self.memory_bytes {
            return Err(AllocError::Exhausted);
        }
        let ptr = state.heap.alloc(bytes).ok_or(AllocError::Exhausted)?;
        state.checker.create(Some(stream), ptr.addr().get(), bytes);
        Ok(ptr)
    }

    fn alloc_on_host(&self, bytes: usize) -> Result<NonNull<u8>> {
        let mut state = self.begin("alloc_on_host", |calls| &mut calls.allocations)?;
        let ptr = state.heap.alloc(bytes).ok_or_else(|| self.error("alloc_on_host", "the host has no memory"))?;
        state.on_host += bytes as u64;
        state.checker.create(None, ptr.addr().get(), bytes);
        Ok(ptr)
    }

    fn free_on_host(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        self.free(ptr, bytes)?;
        self.lock().on_host -= bytes as u64;
        Ok(())
    }

    fn free(&self, ptr: NonNull<u8>, _bytes: usize) -> Result<()> {
        let mut state = self.begin("free", |calls| &mut calls.frees)?;
        state.checker.destroy(ptr.addr().get());
        if state.heap.free(ptr) { Ok(()) } else { Err(self.error("free", NOT_HERE)) }
    }

    fn launch(&self, stream: usize, kernel: &Kernel) -> Result<()> {
        let mut guard = self.count("launch", |calls| &mut calls.launches)?;
        let state = &mut *guard;
        if state.recording.is_some() {
            return self.record_kernel(state, stream, kernel);
        }
        let operands: Vec<_> = kernel.accesses().iter().map(|(view, access)| (*view, access)).collect();
        if !state.checker.operation(kernel.name(), stream, &operands) {
            return Err(self.error("launch", OVERLAP));
        }
        let task = state.heap.kernel(kernel).ok_or_else(|| self.error("launch", NOT_HERE))?;
        state.queues.push(stream, Arc::new(task), 0, &mut state.heap);
        Ok(())
    }

    fn upload(&self, stream: usize, dst: Span, bytes: &[u8]) -> Result<()> {
        let mut guard = self.begin("upload", |calls| &mut calls.copies)?;
        let state = &mut *guard;
        state.checker.operation("upload", stream, &[(bytes_of(dst), Access::Write)]);
        if !bytes.is_empty() || dst.bytes() > 0 {
            let task = state.heap.upload(dst, bytes).ok_or_else(|| self.error("upload", NOT_HERE))?;
            state.queues.push(stream, Arc::new(task), 0, &mut state.heap);
        }
        Ok(())
    }

    fn start_download(&self, stream: usize, src: &OwnedView) -> Result<SimDownload> {
        let mut guard = self.begin("download", |calls| &mut calls.copies)?;
        let state = &mut *guard;
        state.checker.operation("download", stream, &[(*src, Access::Read)]);
        let mut landing = Landing::default();
        if src.span().bytes() > 0 {
            let (task, place) = state.heap.download(src.span()).ok_or_else(|| self.error("download", NOT_HERE))?;
            landing = place;
            state.queues.push(stream, Arc::new(task), 0, &mut state.heap);
        }
        Ok(SimDownload { stream, bytes: src.span().bytes(), reached: state.checker.reached(stream), landing })
    }

    fn finish_download(&self, download: SimDownload, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let SimDownload { stream, bytes, reached, landing } = download;
        let mut guard = self.lock();
        let state = &mut *guard;
        state.queues.drain(stream, &mut state.heap);
        state.checker.host_waited(&reached);
        drop(guard);
        let landed = landing.take();
        if landed.len() != bytes {
            return Err(self.error("download", NOT_HERE));
        }
        take(&landed);
        Ok(())
    }

    fn record(&self, stream: usize) -> Result<()> {
        let mut state = self.begin("record", |calls| &mut calls.records)?;
        state.checker.record(stream);
        state.queues.record(stream);
        Ok(())
    }

    fn wait(&self, stream: usize, on: usize) -> Result<()> {
        let mut state = self.begin("wait", |calls| &mut calls.waits)?;
        state.checker.wait(stream, on);
        state.queues.wait(stream, on);
        Ok(())
    }

    fn synchronize(&self, stream: usize) -> Result<()> {
        let mut guard = self.begin("synchronize", |calls| &mut calls.synchronisations)?;
        let state = &mut *guard;
        state.queues.drain(stream, &mut state.heap);
        state.checker.synchronize(stream);
        Ok(())
    }

    fn begin_capture(&self, stream: usize) -> Result<()> {
        let mut state = self.begin("begin_capture", |calls| &mut calls.captures)?;
        state.recording = Some(CaptureRecording { stream, steps: Vec::new(), spoilt: false });
        Ok(())
    }

    fn end_capture(&self, stream: usize) -> Result<SimGraph> {
        // Taken first: the capture ends whether or not this call fails.
        let recording = self.lock().recording.take();
        let mut state = self.count("end_capture", |calls| &mut calls.graphs)?;
        match recording {
            Some(CaptureRecording { stream: begun, steps, spoilt: false }) if begun == stream => {
                state.sections += 1;
                let section = state.sections;
                state.checker.pin(section, ranges(&steps));
                Ok(SimGraph { section, steps, replays: AtomicU64::new(0) })
            }
            _ => Err(self.error("end_capture", "the capture was spoilt, or never begun")),
        }
    }

    fn replay(&self, stream: usize, graph: &SimGraph) -> Result<()> {
        let mut guard = self.begin("replay", |calls| &mut calls.replays)?;
        let SimState { checker, queues, heap, .. } = &mut *guard;
        // Relaxed: changed under the lock.
        let replays = graph.replays.fetch_add(1, Ordering::Relaxed);
        for step in &graph.steps {
            match step {
                RecordedStep::HandedOut(span) => checker.begin_block(*span),
                RecordedStep::SubAllocated(span) => checker.begin_life(range_of(*span)),
                RecordedStep::Kernel(name, operands, task) => {
                    checker.replayed(name, stream, operands);
                    queues.push(stream, task.clone(), replays, heap);
                }
            }
        }
        Ok(())
    }

    fn destroy(&self, graph: SimGraph) {
        self.lock().checker.unpin(graph.section);
    }

    fn take_fault(&self) -> Option<Error> {
        self.lock().queues.take_fault()
    }

    fn handed_out(&self, span: Span) {
        let mut state = self.lock();
        state.checker.hand_out(span);
        if let Some(recording) = &mut state.recording {
            recording.steps.push(RecordedStep::HandedOut(span));
        }
    }

    fn suballocated(&self, span: Span) {
        let mut state = self.lock();
        state.checker.suballocate(span);
        if let Some(recording) = &mut state.recording {
            recording.steps.push(RecordedStep::SubAllocated(span));
        }
    }

    fn returned(&self, span: Span) {
        self.lock().checker.take_back(span);
    }
}
