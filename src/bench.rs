//! Doors for the benchmarks and the tests: single steps of the runtime, and what else is not seen from outside. Not
//! part of the interface.

use crate::base::{dtype::DType, error::Site, layout::Layout, shape::Shape, work};
use crate::device::{
    Device,
    buffer::{PackedBuffer, Span},
    host::pool,
    stream::{Addresses, AsyncDevice, DevicePlan, Rules, Segments},
};
use crate::memory::{
    owner::Owner,
    proxy::Proxy,
    reclaim,
    registry::{self, Parts},
    storage::Storage,
    threads::with_context,
};

/// Refuses the n-th request for host memory from now on, and all after it with `go_on`; 0 for none. Returns how many
/// were refused so far.
pub fn refuse_host_memory(n: u64, go_on: bool) -> u64 {
    crate::device::host::pool::refuse(n, go_on)
}

/// Counts so many bytes of the host as taken and as given back: the statistics of an allocation, and nothing else.
#[inline]
pub fn count_bytes(bytes: usize) {
    crate::device::host::pool::count(bytes);
    crate::device::host::pool::discount(bytes);
}

/// Nodes that the tables which this thread keeps for walks of gradients have room for.
pub fn room_of_walks() -> usize {
    crate::ops::grad::backward::room()
}

/// As [`npz::encode`](crate::npz::encode), in the long form where a size is above `short_max`.
///
/// # Errors
/// As there.
pub fn encode_npz(arrays: &[(&str, &Proxy)], short_max: u64) -> crate::Result<Vec<u8>> {
    crate::io::npz::encode_with(arrays, short_max)
}

/// Pins one array, reads its metadata, lets go.
#[inline]
pub fn resolve(array: &Proxy) -> usize {
    with_context(|context| {
        registry::pin(context, "bench", [array.key()], false).map_or(0, |pins| {
            let [a] = pins.arrays();
            a.layout.offset() + a.layout.dims()[0]
        })
    })
}

/// Pins two arrays, reads their metadata, lets go.
#[inline]
pub fn resolve_two(a: &Proxy, b: &Proxy) -> usize {
    with_context(|context| {
        registry::pin(context, "bench", [a.key(), b.key()], false).map_or(0, |pins| {
            let [a, b] = pins.arrays();
            a.layout.dims()[0] + b.layout.offset()
        })
    })
}

/// Drains, pins two arrays, and makes a third over the bytes of the first, with its owner.
///
/// # Panics
/// If one of them is closed.
#[inline]
#[track_caller]
pub fn make_from_two(a: &Proxy, b: &Proxy) -> Proxy {
    let site: Site = std::panic::Location::caller();
    with_context(|context| {
        reclaim::on_call(context);
        let pins = registry::pin(context, "bench", [a.key(), b.key()], false).expect("open");
        let [x, y] = pins.arrays();
        std::hint::black_box(x.layout.dims()[0] + y.layout.offset());
        // First the owner: parts that wait for it would be read as a whole just after they were written one by one.
        let owner = a.owner("bench").expect("open");
        let parts = Parts { dtype: x.dtype, layout: x.layout, storage: x.storage.clone(), node: None };
        Proxy::from_key(registry::create(context, "bench", parts, &owner, site).expect("a slot, and an open owner"))
    })
}

/// Bytes of an array of the host from the workspace that is open here, and nothing else: no storage, no slot, no
/// handle. Returns where they lie; 0 if they do not fit.
#[inline]
pub fn take_bytes(bytes: usize) -> usize {
    with_context(|context| context.workspaces.take_at_once(bytes).map_or(0, |(span, ..)| span.ptr().addr().get()))
}

/// What an array of the host is to be like. As operations have it from an operand, nothing of it is computed for each
/// array.
#[derive(Debug)]
pub struct Unset {
    layout: Layout,
}

impl Unset {
    /// So many f32.
    pub fn new(count: usize) -> Self {
        Unset { layout: Layout::contiguous(Shape::from(count)) }
    }

    /// An array without a value: slot, storage and bytes, and the look at the queue.
    ///
    /// # Panics
    /// If there is no memory.
    #[inline]
    #[track_caller]
    pub fn make(&self) -> Proxy {
        let site: Site = std::panic::Location::caller();
        let count = self.layout.shape().elem_count();
        let made = with_context(|context| {
            reclaim::on_call(context);
            let storage = Storage::on_host(context, count * size_of::<f32>())?;
            let parts = Parts { dtype: DType::F32, layout: &self.layout, storage, node: None };
            registry::create(context, "bench", parts, &Owner::Handles, site).ok().map(Proxy::from_key)
        });
        // A stock that is empty is filled on the ordinary way.
        made.unwrap_or_else(|| Proxy::zeros(count, DType::F32, &Device::Cpu).expect("memory"))
    }
}

/// The look at the queue that every call makes, so many times.
pub fn look_at_queue(times: u32) {
    with_context(|context| (0..times).for_each(|_| reclaim::on_call(context)));
}

#[cfg(feature = "cuda")]
pub use crate::device::cuda::{CudaConfig, compile_all as compile_cuda_kernels};

/// A CUDA device of its own, beside the one that [`Device::cuda`](crate::Device::cuda) gives.
///
/// # Errors
/// As of [`Device::cuda`](crate::Device::cuda).
#[cfg(feature = "cuda")]
pub fn cuda_device(ordinal: usize, config: CudaConfig) -> crate::Result<crate::Device> {
    crate::device::cuda::Cuda::open(ordinal, Some(config)).map(crate::Device::Cuda)
}

/// Blocks of a device's pool, with nothing in them, as storages take and have them.
#[derive(Debug)]
pub struct DevicePool {
    device: Device,
    /// With their bytes.
    blocks: Vec<(PackedBuffer, usize)>,
}

impl DevicePool {
    /// No block yet.
    pub fn new(device: &Device) -> Self {
        DevicePool { device: device.clone(), blocks: Vec::new() }
    }

    #[inline(always)]
    fn take(&self, bytes: usize) -> PackedBuffer {
        let at_once = if self.device.is_cpu() { pool::alloc_at_once(bytes) } else { None };
        match at_once {
            Some((span, reserved)) => PackedBuffer::from_pool(span, reserved),
            None => PackedBuffer::of(self.device.alloc(bytes, false).expect("memory")),
        }
    }

    /// Takes one block more.
    ///
    /// # Panics
    /// If the device has no memory left.
    pub fn fill(&mut self, bytes: usize) {
        let block = self.take(bytes);
        self.blocks.push((block, bytes));
    }

    /// Gives a block back, and takes another one, as a call does.
    ///
    /// # Panics
    /// If there are not so many blocks, or the device has no memory left.
    #[inline]
    pub fn replace(&mut self, at: usize, bytes: usize) {
        work::begin();
        let (block, had) = &mut self.blocks[at];
        std::mem::replace(block, PackedBuffer::NONE).end(*had);
        *had = bytes;
        self.blocks[at].0 = self.take(bytes);
    }

    /// Writes the first four bytes of each page of a block of the host's.
    ///
    /// # Panics
    /// If there are not so many blocks.
    #[inline]
    pub fn touch(&mut self, at: usize) {
        let (block, bytes) = &mut self.blocks[at];
        let bytes = block.as_mut(*bytes).on_host().unwrap_or_default();
        // One write a page: four of a byte each would hold up those to other pages.
        for page in bytes.chunks_mut(4096) {
            if let Some(first) = page.first_chunk_mut() {
                *first = 1u32.to_ne_bytes();
            }
        }
    }
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        self.blocks.drain(..).for_each(|(block, bytes)| block.end(bytes));
    }
}

/// The pool of a device whose driver does nothing.
#[derive(Debug)]
pub struct IdlePool {
    device: AsyncDevice<Addresses>,
    blocks: Vec<Span>,
}

impl Default for IdlePool {
    fn default() -> Self {
        Self::new()
    }
}

impl IdlePool {
    /// A pool without blocks.
    pub fn new() -> Self {
        let plan = DevicePlan { name: "idle".to_owned(), streams: 4, rules: Rules::ALL, segments: Segments::Graded };
        IdlePool { device: AsyncDevice::new(Addresses::new(u64::MAX), plan), blocks: Vec::new() }
    }

    /// Takes one block more.
    ///
    /// # Panics
    /// Never: the driver has as many addresses as there are.
    pub fn fill(&mut self, bytes: usize) {
        self.blocks.push(self.device.alloc(bytes).expect("an address").0);
    }

    /// Reads what names a block, so that it is at hand: whoever gives a block back has just used it.
    #[inline]
    pub fn look_at(&self, at: usize) {
        std::hint::black_box(self.blocks[at].bytes());
    }

    /// Gives a block back, and takes another one of its size.
    ///
    /// # Panics
    /// If there are not so many blocks.
    #[inline]
    pub fn replace(&mut self, at: usize) {
        self.change(at, self.blocks[at].bytes());
    }

    /// Gives a block back, and takes another one.
    ///
    /// # Panics
    /// If there are not so many blocks.
    #[inline]
    pub fn change(&mut self, at: usize, bytes: usize) {
        self.device.free(self.blocks[at]);
        self.blocks[at] = self.device.alloc(bytes).expect("an address").0;
    }
}
