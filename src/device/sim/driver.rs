//! The driver of the simulation: counts and fails calls, shows them to the checker, queues their work.
//!
//! A call that fails on request fails before anything else sees it, so that it had no effect, as [`Driver`]
//! promises.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    budget::AllocError,
    buffer::Span,
    kernel::{Access, Kernel, View},
    sim::{
        SimCalls,
        check::{Checker, name_of},
        memory::Heap,
        queue::Queues,
    },
    stream::Driver,
};

/// What a call says about bytes that it cannot reach.
const NOT_HERE: &str = "an operand lies outside the device's memory, or has another size than the host's bytes";
const OVERLAP: &str = "an operand that is written overlaps another one";

/// The simulation below the streams and the pool.
#[derive(Debug)]
pub(super) struct SimDriver {
    name: String,
    memory_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    heap: Heap,
    queues: Queues,
    pub(super) checker: Checker,
    pub(super) calls: SimCalls,
    /// Calls until one fails, counting that one.
    pub(super) fail_in: Option<u64>,
}

impl State {
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
        let state = State {
            heap: Heap::default(),
            queues: Queues::new(streams, seed),
            checker: Checker::default(),
            calls: SimCalls::default(),
            fail_in: None,
        };
        SimDriver { name, memory_bytes, state: Mutex::new(state) }
    }

    /// A kernel that panics while it runs leaves the books as they were before it: poison means nothing here.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails it if its turn has come.
    fn begin(&self, call: &'static str, counter: fn(&mut SimCalls) -> &mut u64) -> Result<MutexGuard<'_, State>> {
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
        Error::Device { device: self.name.clone(), call, message: message.to_owned() }
    }
}

/// A span as the bytes it is.
fn bytes_of(span: Span) -> View {
    View::new(span, DType::U8, Layout::contiguous(Shape::from(span.bytes())))
}

impl Driver for SimDriver {
    fn alloc(&self, bytes: usize) -> std::result::Result<NonNull<u8>, AllocError> {
        let mut state = self.begin("alloc", |calls| &mut calls.allocations).map_err(AllocError::Failed)?;
        if state.heap.bytes().saturating_add(bytes as u64) > self.memory_bytes {
            return Err(AllocError::Exhausted);
        }
        let ptr = state.heap.alloc(bytes).ok_or(AllocError::Exhausted)?;
        state.checker.create(ptr.addr().get(), bytes);
        Ok(ptr)
    }

    fn free(&self, ptr: NonNull<u8>, _bytes: usize) -> Result<()> {
        let mut state = self.begin("free", |calls| &mut calls.frees)?;
        state.checker.destroy(ptr.addr().get());
        if state.heap.free(ptr) { Ok(()) } else { Err(self.error("free", NOT_HERE)) }
    }

    fn launch(&self, stream: usize, kernel: &Kernel) -> Result<()> {
        let mut guard = self.begin("launch", |calls| &mut calls.launches)?;
        let state = &mut *guard;
        let accesses = kernel.accesses();
        let operands: Vec<_> = accesses.iter().copied().collect();
        if !state.checker.operation(name_of(kernel), stream, &operands) {
            return Err(self.error("launch", OVERLAP));
        }
        let task = state.heap.kernel(kernel).ok_or_else(|| self.error("launch", NOT_HERE))?;
        state.queues.push(stream, task, &mut state.heap);
        Ok(())
    }

    fn upload(&self, stream: usize, dst: Span, bytes: &[u8]) -> Result<()> {
        let mut guard = self.begin("upload", |calls| &mut calls.copies)?;
        let state = &mut *guard;
        state.checker.operation("upload", stream, &[(bytes_of(dst), Access::Write)]);
        if !bytes.is_empty() || dst.bytes() > 0 {
            let task = state.heap.upload(dst, bytes).ok_or_else(|| self.error("upload", NOT_HERE))?;
            state.queues.push(stream, task, &mut state.heap);
        }
        Ok(())
    }

    fn download(&self, stream: usize, src: &View, out: &mut [u8]) -> Result<()> {
        let mut guard = self.begin("download", |calls| &mut calls.copies)?;
        let state = &mut *guard;
        state.checker.operation("download", stream, &[(*src, Access::Read)]);
        state.queues.drain(stream, &mut state.heap);
        state.checker.synchronize(stream);
        let there = src.span().bytes() == 0 && out.is_empty() || state.heap.read(src.span(), out);
        if there { Ok(()) } else { Err(self.error("download", NOT_HERE)) }
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

    fn take_fault(&self) -> Option<Error> {
        self.lock().queues.take_fault()
    }

    fn handed_out(&self, span: Span) {
        self.lock().checker.hand_out(span);
    }

    fn returned(&self, span: Span) {
        self.lock().checker.take_back(span);
    }
}
