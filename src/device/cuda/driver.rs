//! The driver of a CUDA device, as `stream/` asks for it: segments, launches, copies, events, captures.
//!
//! # Invariants
//! - Everything but [`Driver::finish_download`] and [`Driver::synchronize`] is called under the device's lock, and
//!   those two hold the lock in here for moments only.
//! - An operation is one launch, but for convolutions. What a first use needs (code, scratch, a handle of a library) is
//!   made then and kept.
//! - Between the beginning and the end of a capture nothing is made: what would be is an error.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::{
    dtype::DType,
    error::{Error, Result},
};
use crate::device::{
    budget::AllocError,
    cuda::{
        blas,
        checked::{self, FunctionHandle, Rank},
        context::{CapturedGraph, CudaContext, CudaEvent, CudaStream, PinnedMemory},
        conv,
        kernels::{Entry, Kernels},
        launch::{Arguments, GRID, Launch, LaunchResources, PICKS, THREADS, plan, scratch_needed},
        params::{Counter, Params, address},
        raw::Address,
        staging::{Downloads, LARGEST, Uploads},
    },
    kernel::{Kernel, OwnedView},
    span::Span,
    stream::{Driver, Granted, WARM_UP},
    window::Windowed,
};

/// Bytes of scratch that a stream has from the start of its use; it grows by doubling.
const SCRATCH: u64 = 1 << 20;
/// Tickets of a stream: groups of outputs that several blocks may share.
const TICKETS: u64 = 16 << 10;
/// Graphs that are alive at once and use random numbers or steps.
const COUNTERS: u64 = 1024;
/// Blocks of a launch for each multiprocessor: enough to hide memory behind arithmetic.
const BLOCKS: u64 = 16;

/// Memory of a stream that its launches share, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Scratch {
    address: Address,
    bytes: u64,
    tickets: Address,
}

#[derive(Debug, Default)]
struct StreamState {
    scratch: Scratch,
    uploads: Uploads,
    blas: Option<blas::BlasHandle>,
}

/// A section that is being captured.
#[derive(Debug)]
struct Capture {
    counter: Address,
    counted: bool,
}

#[derive(Debug, Default)]
struct DriverState {
    streams: Vec<StreamState>,
    capture: Option<Capture>,
    /// Counters of graphs: those that are free, and how many of the segment were ever used.
    counters: Vec<Address>,
    first_counter: Address,
    counters_used: u64,
    /// Bytes for the libraries and the kernels' own use.
    reserved: u64,
    /// Memory of the host that blocks lie in.
    on_host: Vec<PinnedMemory>,
}

/// A captured section.
#[derive(Debug)]
pub(crate) struct Replayable {
    graph: CapturedGraph,
    /// None if nothing in it asks for the number of replays.
    counter: Option<Address>,
}

/// A download under way.
#[derive(Debug)]
pub(crate) struct Pending {
    stream: usize,
    src: Address,
    bytes: usize,
    /// Where its parts go, in turns. The first is on its way.
    pieces: [Option<PinnedMemory>; 2],
}

/// The driver of one device.
#[derive(Debug)]
pub(crate) struct CudaDriver {
    context: CudaContext,
    streams: Vec<CudaStream>,
    events: Vec<CudaEvent>,
    kernels: Kernels,
    downloads: Downloads,
    /// Where kernels write the first bad index that they meet.
    fault: PinnedMemory,
    state: Mutex<DriverState>,
    capturing: AtomicBool,
    pub(super) tf32: AtomicBool,
    pub(super) ordered: AtomicBool,
}

impl CudaDriver {
    pub(super) fn new(context: CudaContext, streams: usize) -> Result<Self> {
        let fault = PinnedMemory::new(&context, 64)?;
        // Last: what fails here is left with the driver by nobody.
        let (made, events) = match CudaStream::make(&context, streams) {
            Ok(made) => made,
            Err(error) => {
                fault.free(&context);
                return Err(error);
            }
        };
        let state =
            DriverState { streams: (0..streams).map(|_| StreamState::default()).collect(), ..DriverState::default() };
        let [capturing, tf32, ordered] = [const { AtomicBool::new(false) }; 3];
        let (kernels, downloads, state) = (Kernels::new(), Downloads::default(), Mutex::new(state));
        Ok(CudaDriver { context, streams: made, events, kernels, downloads, fault, state, capturing, tf32, ordered })
    }

    pub(super) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Nothing in here panics half way: poison means nothing.
    fn lock(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for something that a capture cannot do.
    fn refused(&self, what: String) -> Error {
        Error::Capture { device: self.context.name.clone(), what, site: None }
    }

    /// That for what is made when it is first used.
    fn is_made_before(&self, what: &str) -> Error {
        self.refused(format!("{what} cannot be part of a captured section; {WARM_UP}"))
    }

    /// What a launch of this kernel may use.
    fn resources(&self, state: &mut DriverState, stream: usize, kernel: &Kernel) -> Result<LaunchResources> {
        let needed = scratch_needed(kernel);
        if state.streams[stream].scratch.bytes < needed.max(1) {
            self.grow(state, stream, needed)?;
        }
        let Scratch { address, bytes, tickets } = state.streams[stream].scratch;
        let replay = match &mut state.capture {
            Some(capture) => {
                capture.counted |= match kernel {
                    Kernel::OptimizerStep { rule, .. } => rule.counts(),
                    _ => matches!(kernel, Kernel::Uniform { .. } | Kernel::Normal { .. }),
                };
                capture.counter
            }
            None => 0,
        };
        Ok(LaunchResources {
            blocks: u64::from(self.context.multiprocessors) * BLOCKS,
            scratch: address,
            scratch_bytes: bytes,
            tickets,
            ticket_count: TICKETS,
            fault: self.fault.address(),
            replay,
            // Relaxed: a setting of its own.
            ordered: self.ordered.load(Ordering::Relaxed),
        })
    }

    /// More scratch for a stream. The old one stays: graphs may know its address.
    #[cold]
    fn grow(&self, state: &mut DriverState, stream: usize, needed: u64) -> Result<()> {
        if state.capture.is_some() {
            return Err(self.is_made_before("scratch memory of a kernel"));
        }
        let own = &self.streams[stream];
        let scratch = &mut state.streams[stream].scratch;
        let bytes = needed.max(SCRATCH).checked_next_power_of_two().unwrap_or(needed);
        if scratch.tickets == 0 {
            let tickets = self.own_bytes(TICKETS * 4, stream)?;
            self.or_free(tickets, stream, self.context.fill_zero(tickets, TICKETS as usize * 4, own))?;
            scratch.tickets = tickets;
            state.reserved += TICKETS * 4;
        }
        scratch.address = self.own_bytes(bytes, stream)?;
        scratch.bytes = bytes;
        state.reserved += bytes;
        Ok(())
    }

    /// An answer; bytes that were for it go back if it is a failure.
    fn or_free<T>(&self, bytes: Address, stream: usize, answer: Result<T>) -> Result<T> {
        answer.inspect_err(|_| drop(self.context.free(bytes, &self.streams[stream])))
    }

    /// The answer of an operation that is several calls. Those before one that failed are no operation which others
    /// would wait for, so the host does: their operands may be anybody's afterwards.
    fn whole(&self, state: &DriverState, stream: usize, answer: Result<()>) -> Result<()> {
        answer.inspect_err(|_| {
            // What a section recorded goes with it.
            if state.capture.is_none() {
                let _ = self.streams[stream].synchronize(&self.context);
            }
        })
    }

    /// Bytes for the driver's own use.
    fn own_bytes(&self, bytes: u64, stream: usize) -> Result<Address> {
        self.context.alloc(bytes as usize, &self.streams[stream]).map_err(|error| match error {
            AllocError::Failed(error) => error,
            AllocError::Exhausted => {
                let message = format!("no memory for {bytes} bytes of scratch; free some arrays first");
                Error::device(&self.context.name, "cuMemAllocFromPoolAsync", message)
            }
        })
    }

    fn launch_one(&self, state: &mut DriverState, stream: usize, kernel: &Kernel) -> Result<()> {
        if let Kernel::Fill { dst, value } = kernel
            && value.to_bits() == 0
            && dst.layout().is_contiguous()
        {
            let bytes = dst.layout().shape().elem_count() * dst.dtype().size_in_bytes();
            let fill = || self.context.fill_zero(address(dst), bytes, &self.streams[stream]);
            return if bytes == 0 { Ok(()) } else { fill() };
        }
        let resources = self.resources(state, stream, kernel)?;
        let Some(launch) = plan(kernel, &resources) else { return Ok(()) };
        if launch.entry == Entry::Matmul && self.multiply(state, stream, &launch)? {
            return Ok(());
        }
        self.submit(stream, &launch)
    }

    fn submit(&self, stream: usize, launch: &Launch) -> Result<()> {
        match &launch.arguments {
            Arguments::Each(params) => self.start(stream, launch, params),
            Arguments::Fold(params) => self.start(stream, launch, params),
            Arguments::Rows(params) => self.start(stream, launch, params),
            Arguments::Pick(params) => self.start(stream, launch, params),
            Arguments::Draw(params) => self.start(stream, launch, params),
            Arguments::Step(params) => self.start(stream, launch, params),
            Arguments::Product(params) => self.start(stream, launch, params),
            Arguments::Slide(params) => self.start(stream, launch, params),
            Arguments::Scan(params) => self.start(stream, launch, params),
            Arguments::Norm(params) => self.start(stream, launch, params),
        }
    }

    fn start<P: Params>(&self, stream: usize, launch: &Launch, params: &P) -> Result<()> {
        let blocks = launch.blocks.min(GRID) as u32;
        self.start_entry(stream, launch.entry, launch.dtype, blocks, params)
    }

    fn start_entry<P: Params>(&self, stream: usize, entry: Entry, dtype: DType, blocks: u32, params: &P) -> Result<()> {
        let function = match self.kernels.loaded(entry, dtype) {
            Some(function) => function,
            None => self.load(entry, dtype)?,
        };
        let own = self.streams[stream].raw;
        self.context.call(|api| api.launch(function, [blocks, THREADS as u32], own, params))
    }

    #[cold]
    fn load(&self, entry: Entry, dtype: DType) -> Result<FunctionHandle> {
        // Relaxed: while a section is captured its thread alone submits (`stream/capture.rs`), and that thread set it.
        if self.capturing.load(Ordering::Relaxed) {
            return Err(self.is_made_before(&format!("the first use of the kernel {} of {dtype}", entry.name())));
        }
        self.kernels.load(&self.context, entry, dtype)
    }

    /// A product by the library. `false` if it has to be the own kernel.
    fn multiply(&self, state: &mut DriverState, stream: usize, launch: &Launch) -> Result<bool> {
        let Arguments::Product(product) = &launch.arguments else { return Ok(false) };
        // The library has floats of 8 bits on some devices, with other sums.
        let known = matches!(launch.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        let planned = blas::plan(product).filter(|_| known);
        let Some(call) = planned.filter(|_| blas::is_present()) else { return Ok(false) };
        if state.streams[stream].blas.is_none() {
            if state.capture.is_some() {
                return Err(self.is_made_before("the first matrix product of a stream"));
            }
            let workspace = self.own_bytes(blas::WORKSPACE as u64, stream)?;
            let handle = blas::BlasHandle::new(&self.context, &self.streams[stream], workspace);
            state.streams[stream].blas = Some(self.or_free(workspace, stream, handle)?);
            state.reserved += blas::WORKSPACE as u64;
        }
        // Relaxed: a setting of its own.
        let tf32 = self.tf32.load(Ordering::Relaxed);
        match &mut state.streams[stream].blas {
            Some(handle) => handle.run(&self.context, launch, &call, tf32).map(|()| true),
            None => Ok(false),
        }
    }

    /// Submits a sum over several devices: as [`Rank::add_up`].
    pub(super) fn add_up(
        &self,
        rank: &Rank,
        address: Address,
        count: usize,
        dtype: c_int,
        stream: usize,
    ) -> Result<()> {
        // The library takes the context that is current.
        self.context.make_current()?;
        self.context.check(rank.add_up(address, count, dtype, self.streams[stream].raw))
    }

    /// The number of replays of a graph that is to be captured, 0 by now.
    fn counter(&self, state: &mut DriverState, stream: usize) -> Result<Address> {
        let counter = match state.counters.pop() {
            Some(counter) => counter,
            None => {
                if state.first_counter == 0 {
                    state.first_counter = self.own_bytes(COUNTERS * 8, stream)?;
                    state.reserved += COUNTERS * 8;
                }
                if state.counters_used == COUNTERS {
                    return Err(self.refused(format!("there are {COUNTERS} graphs, and can be no more; drop some")));
                }
                state.counters_used += 1;
                state.first_counter + 8 * (state.counters_used - 1)
            }
        };
        let zeroed = self.context.fill_zero(counter, 8, &self.streams[stream]);
        zeroed.inspect_err(|_| state.counters.push(counter)).map(|()| counter)
    }

    /// Gives away each part of a download that came, while the next one is under way.
    fn receive(&self, pending: &mut Pending, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Pending { stream, src, bytes, pieces: [now, next] } = pending;
        let mut done = 0;
        while let Some(piece) = now {
            self.synchronize(*stream)?;
            let part = (*bytes - done).min(LARGEST);
            if *bytes - done > part {
                let left = *bytes - done - part;
                let free = match next.take() {
                    Some(free) => free,
                    None => self.downloads.take(&self.context, left)?,
                };
                let from = *src + (done + part) as Address;
                next.insert(free).receive(&self.context, &self.streams[*stream], from, left.min(LARGEST))?;
            }
            take(piece.readable(part));
            done += part;
            if done == *bytes {
                break;
            }
            std::mem::swap(now, next);
        }
        Ok(())
    }
}

impl Driver for CudaDriver {
    type Graph = Replayable;
    type Download = Pending;

    fn reserved(&self) -> u64 {
        self.lock().reserved
    }

    fn alloc(&self, stream: usize, bytes: usize) -> Granted<NonNull<u8>> {
        let address = self.context.alloc(bytes, &self.streams[stream])?;
        let ptr = NonNull::new(std::ptr::without_provenance_mut(address as usize)).ok_or(AllocError::Exhausted)?;
        checked::report_block(address, bytes, false);
        Ok(ptr)
    }

    fn free(&self, ptr: NonNull<u8>, _bytes: usize) -> Result<()> {
        if self.context.is_lost() {
            return Ok(());
        }
        self.context.free(ptr.addr().get() as Address, &self.streams[0])
    }

    fn alloc_on_host(&self, bytes: usize) -> Result<NonNull<u8>> {
        let piece = PinnedMemory::new(&self.context, bytes)?;
        let address = piece.address();
        let Some(ptr) = NonNull::new(std::ptr::without_provenance_mut(address as usize)) else {
            piece.free(&self.context);
            return Err(Error::msg("the driver gave memory of the host at address 0"));
        };
        checked::report_block(address, bytes, false);
        self.lock().on_host.push(piece);
        Ok(ptr)
    }

    fn free_on_host(&self, ptr: NonNull<u8>, _bytes: usize) -> Result<()> {
        let mut state = self.lock();
        let found = state.on_host.iter().position(|piece| piece.address() == ptr.addr().get() as Address);
        if let Some(at) = found {
            state.on_host.swap_remove(at).free(&self.context);
        }
        Ok(())
    }

    fn released(&self) -> Result<()> {
        if self.context.is_lost() {
            return Ok(());
        }
        self.streams[0].synchronize(&self.context)?;
        self.context.trim()
    }

    fn launch(&self, stream: usize, kernel: &Kernel) -> Result<()> {
        // Relaxed: as the field says.
        self.context.short.store(false, Ordering::Relaxed);
        let mut state = self.lock();
        match kernel {
            Kernel::Windowed(part @ Windowed::Conv { .. }) => {
                let launched = conv::parts(part, &mut |part| self.launch_one(&mut state, stream, part));
                self.whole(&state, stream, launched)
            }
            _ => self.launch_one(&mut state, stream, kernel),
        }
    }

    fn was_short(&self) -> bool {
        // Relaxed: as the field says.
        self.context.short.load(Ordering::Relaxed)
    }

    fn upload(&self, stream: usize, dst: Span, bytes: &[u8]) -> Result<()> {
        let address = dst.ptr().addr().get() as Address;
        let mut state = self.lock();
        let sent = state.streams[stream].uploads.send(&self.context, &self.streams[stream], bytes, address);
        self.whole(&state, stream, sent)
    }

    fn start_download(&self, stream: usize, src: &OwnedView) -> Result<Pending> {
        let (span, bytes) = (src.span(), src.span().bytes());
        let address = span.ptr().addr().get() as Address;
        let mut pending = Pending { stream, src: address, bytes, pieces: [None, None] };
        if bytes > 0 {
            let mut piece = self.downloads.take(&self.context, bytes)?;
            let submitted = piece.receive(&self.context, &self.streams[stream], address, bytes.min(LARGEST));
            if let Err(error) = submitted {
                self.downloads.put(&self.context, piece);
                return Err(error);
            }
            pending.pieces[0] = Some(piece);
        }
        Ok(pending)
    }

    fn is_in_parts(&self, pending: &Pending) -> bool {
        pending.bytes > LARGEST
    }

    fn finish_download(&self, mut pending: Pending, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let received = self.receive(&mut pending, take);
        // A piece that the device may still write to is never used again.
        if received.is_ok() || self.synchronize(pending.stream).is_ok() {
            pending.pieces.into_iter().flatten().for_each(|piece| self.downloads.put(&self.context, piece));
        }
        received
    }

    fn record(&self, stream: usize) -> Result<()> {
        self.events[stream].record(&self.context, &self.streams[stream])
    }

    fn wait(&self, stream: usize, on: usize) -> Result<()> {
        self.streams[stream].wait(&self.context, &self.events[on])
    }

    fn synchronize(&self, stream: usize) -> Result<()> {
        let filled = self.lock().streams[stream].uploads.filled();
        self.streams[stream].synchronize(&self.context)?;
        self.lock().streams[stream].uploads.waited(filled);
        Ok(())
    }

    fn begin_capture(&self, stream: usize) -> Result<()> {
        let mut state = self.lock();
        if state.streams[stream].scratch.bytes == 0 {
            self.grow(&mut state, stream, 0)?;
        }
        if self.kernels.loaded(Entry::Bump, DType::U32).is_none() {
            self.kernels.load(&self.context, Entry::Bump, DType::U32)?;
        }
        let counter = self.counter(&mut state, stream)?;
        // The device has nothing to do when a capture begins, and the counter is no exception.
        let begun = self.streams[stream].synchronize(&self.context);
        if let Err(error) = begun.and_then(|()| self.streams[stream].begin_capture(&self.context)) {
            state.counters.push(counter);
            return Err(error);
        }
        state.capture = Some(Capture { counter, counted: false });
        // Relaxed: read in `load`, by this thread.
        self.capturing.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn end_capture(&self, stream: usize) -> Result<Replayable> {
        let mut state = self.lock();
        let Some(Capture { counter, counted }) = state.capture.take() else {
            return Err(Error::msg("no section is being captured"));
        };
        // Relaxed: as in `begin_capture`.
        self.capturing.store(false, Ordering::Relaxed);
        let bumped = match counted {
            true => self.start_entry(stream, Entry::Bump, DType::U32, 1, &Counter { address: counter }),
            false => Ok(()),
        };
        let graph = self.streams[stream].end_capture(&self.context);
        let error = match (bumped, graph) {
            (Ok(()), Ok(graph)) if counted => return Ok(Replayable { graph, counter: Some(counter) }),
            (Ok(()), Ok(graph)) => {
                state.counters.push(counter);
                return Ok(Replayable { graph, counter: None });
            }
            (Err(error), Ok(graph)) => {
                graph.destroy(&self.context);
                error
            }
            (_, Err(error)) => error,
        };
        state.counters.push(counter);
        Err(error)
    }

    fn replay(&self, stream: usize, graph: &Replayable) -> Result<()> {
        graph.graph.launch(&self.context, &self.streams[stream])
    }

    fn destroy(&self, graph: Replayable) {
        self.lock().counters.extend(graph.counter);
        graph.graph.destroy(&self.context);
    }

    fn take_fault(&self) -> Option<Error> {
        // Acquire: its partner is the fence of the kernel before it sets 2 (`report` in `kernels/prelude.cu`): if that
        // came first, the words below are what it wrote. They are Relaxed: nobody writes them while this one is 2.
        let state = self.fault.word(0);
        if state.load(Ordering::Acquire) != 2 {
            return None;
        }
        let word = |index| self.fault.word(index).load(Ordering::Relaxed);
        let u64_at = |low| u64::from(word(low)) | u64::from(word(low + 1)) << 32;
        let op = PICKS.get(word(1) as usize).copied().unwrap_or("an operation with indices");
        let error = Error::index_out_of_range(op, u64_at(2) as i64, u64_at(4) as usize);
        // Release: its partner is the exchange of the next kernel that finds 0, and writes the words: they were read
        // before.
        state.store(0, Ordering::Release);
        Some(error)
    }

    fn handed_out(&self, span: Span) {
        checked::report_block(span.ptr().addr().get() as Address, span.bytes(), true);
    }

    fn returned(&self, span: Span) {
        checked::report_block(span.ptr().addr().get() as Address, span.bytes(), false);
    }
}
