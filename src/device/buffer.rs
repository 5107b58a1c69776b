//! Bytes of a device, owned.
//!
//! The unsafe code makes buffers of memory of others, by a promise of whoever brings it, and slices of the host's
//! bytes; and runs kernels on these. That rests on who makes a buffer: what a pool or an arena handed out, or a keeper
//! keeps, is its own (`from_pool`, `from_arena`, `foreign`), and initialised.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::base::{
    contain::drop_contained,
    dtype::WithDType,
    error::{Error, Result},
    work,
};
use crate::device::{
    Device,
    budget::AllocError,
    cpu,
    graph::Asynchronous,
    host::{mapped::MappedBlock, pool, spill::file},
    kernel::{Kernel, View},
    spill,
};
pub(crate) use ndgc_kernels::span::Span;

/// Whose memory a buffer is, if not a pool's: `keeper` keeps it, and is dropped when the buffer is.
pub(crate) struct Foreign<K: ?Sized = dyn Send + Sync> {
    /// Whether nobody may write to it.
    pub(crate) read_only: bool,
    /// Whether its bytes are ndgc's own, as those of the pool: charged to budgets, and told of in the trace.
    pub(crate) counted: bool,
    /// Bytes of it that the device counts as active.
    pub(crate) active: usize,
    pub(crate) keeper: K,
}

impl<K: ?Sized> fmt::Debug for Foreign<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// Bytes of an arena's block, which the arena takes back without asking; it knows by other means who uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaPart {
    /// The block's number.
    pub(crate) block: u32,
    /// The number of the workspace's scope.
    pub(crate) scope: u32,
    /// The cycle that they were handed out in.
    pub(crate) stamp: u64,
}

/// Whose bytes a buffer has.
#[derive(Debug)]
enum Home {
    /// The pool's of the device, which set this many aside: at least those of the span.
    Pool(usize),
    Arena(ArenaPart),
    Foreign(Box<Foreign>),
    /// Nobody's any more.
    None,
}

/// The device of what is packed.
static HOST: Device = Device::Cpu;

/// Bytes of a device, owned. Its drop gives them back to the device's pool, from any thread, and makes no
/// device call: what still runs on them is ordered before their next use by the pool (`stream/mod.rs`).
///
/// Foreign bytes go back by the drop of their keeper.
#[derive(Debug)]
pub(crate) struct Buffer {
    span: Span,
    device: Device,
    home: Home,
}

#[cold]
fn lent() -> Error {
    Error::msg("bytes that are lent for reading are not filled")
}

impl Buffer {
    /// Takes ownership of bytes that the pool of `device` handed out.
    #[inline(always)]
    pub(crate) fn from_pool(span: Span, device: Device, reserved: usize) -> Self {
        Buffer { span, device, home: Home::Pool(reserved) }
    }

    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::from_pool(Span::empty(), Device::Cpu, 0)
    }

    /// Bytes of an arena's block, for one cycle: who reads or writes them makes sure that it lasts.
    #[inline(always)]
    pub(crate) fn from_arena(span: Span, device: Device, part: ArenaPart) -> Self {
        Buffer { span, device, home: Home::Arena(part) }
    }

    /// Bytes that are not a pool's.
    ///
    /// # Safety
    /// - Until the keeper is dropped, the span is memory of the device, on the host initialised.
    /// - Until then nobody else writes to it; if it is not read-only, nobody else reads it while ndgc writes.
    pub(crate) unsafe fn foreign(span: Span, device: Device, foreign: Box<Foreign>) -> Self {
        Buffer { span, device, home: Home::Foreign(foreign) }
    }

    /// Bytes that somebody keeps, for reading: the part that `find` accepts of what the keeper answers. It is asked
    /// once, since nothing holds it to the same answer another time.
    ///
    /// # Errors
    /// Those of `find`.
    pub(crate) fn shared<K: AsRef<[u8]> + Send + Sync + ?Sized + 'static>(
        keeper: Arc<K>,
        find: impl FnOnce(&[u8]) -> Result<&[u8]>,
    ) -> Result<Self> {
        let bytes = find((*keeper).as_ref())?;
        let span = Span::new(NonNull::from(bytes).cast(), bytes.len());
        let foreign = Box::new(Foreign { read_only: true, counted: false, active: 0, keeper });
        // SAFETY: `as_ref` borrowed the bytes from what the `Arc` points to, which neither moves nor changes while
        // there is an `Arc`: so the borrow could last until the buffer drops this one.
        Ok(unsafe { Self::foreign(span, Device::Cpu, foreign) })
    }

    /// The memory of a vector, which `token` counts, what it has no elements in too. It is dropped after it.
    pub(crate) fn of_vec<T: WithDType>(data: Vec<T>, token: impl Send + Sync + 'static) -> Self {
        let (bytes, active) = (size_of_val(data.as_slice()), data.capacity() * size_of::<T>());
        let mut foreign = Box::new(Foreign { read_only: false, counted: true, active, keeper: (data, token) });
        let start = NonNull::from(foreign.keeper.0.as_mut_slice()).cast();
        // SAFETY: the vector's memory, initialised, which lies outside the box; nobody touches the vector until it is
        // dropped there.
        unsafe { Self::foreign(Span::new(start, bytes), Device::Cpu, foreign) }
    }

    /// Bytes of a file that nobody else can open.
    pub(crate) fn of_file(file: MappedBlock, bytes: usize) -> Self {
        let span = file.span().part(0, bytes);
        let foreign = Box::new(Foreign { read_only: false, counted: true, active: 0, keeper: file });
        // SAFETY: the part lies in the mapping (`Span::part` looks), which is initialised, as files are, and stays
        // until the keeper is dropped; nobody else has the mapping, nor the file.
        unsafe { Self::foreign(span, Device::Cpu, foreign) }
    }

    /// Which part of an arena it is, if it is one.
    #[inline]
    pub(crate) fn part(&self) -> Option<ArenaPart> {
        match self.home {
            Home::Arena(part) => Some(part),
            _ => None,
        }
    }

    /// Whether nobody may write to it: foreign bytes that are only lent for reading.
    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(&self.home, Home::Foreign(foreign) if foreign.read_only)
    }

    /// Whether its bytes are a pool's: they are its own, and nobody outside ndgc knows them.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        matches!(self.home, Home::Pool(_))
    }

    /// Whether its bytes are ndgc's: those of a pool, of vectors that arrays took over, and spilled ones.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        match &self.home {
            Home::Pool(_) => true,
            Home::Foreign(foreign) => foreign.counted,
            Home::Arena(_) | Home::None => false,
        }
    }

    /// Bytes of it that its device counts as active. Those of an arena's block are the workspace's.
    pub(crate) fn active(&self) -> usize {
        match &self.home {
            Home::Pool(_) if self.device.counts(self.span) => self.span.bytes(),
            Home::Foreign(foreign) => foreign.active,
            Home::Pool(_) | Home::Arena(_) | Home::None => 0,
        }
    }

    /// It, to be written.
    #[inline]
    pub(crate) fn as_mut(&mut self) -> BufferMut<'_> {
        BufferMut { span: self.span, device: &self.device, read_only: self.is_read_only() }
    }

    /// Gives its bytes back, and their pages to the system where they are the host's.
    pub(crate) fn return_pages(&mut self) {
        if let (&Home::Pool(reserved), Device::Cpu) = (&self.home, &self.device) {
            self.home = Home::None;
            pool::free_to_system(self.span, reserved);
        }
    }

    #[inline]
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    #[inline]
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

/// A buffer that nobody else uses meanwhile.
#[derive(Debug)]
pub(crate) struct BufferMut<'a> {
    span: Span,
    device: &'a Device,
    read_only: bool,
}

impl<'a> BufferMut<'a> {
    /// Its bytes, if they are the host's and it may be written.
    #[inline(always)]
    pub(crate) fn on_host(self) -> Option<&'a mut [u8]> {
        (self.device.is_cpu() && !self.read_only).then(|| {
            // SAFETY: initialised host memory, which the pool, an arena or a keeper gave to this buffer alone
            // (`from_pool`, `from_arena`, `foreign`); who made this has it alone as long as the result lasts
            // (`Buffer::as_mut`, `PackedBuffer::as_mut`).
            unsafe { slice::from_raw_parts_mut(self.span.ptr().as_ptr(), self.span.bytes()) }
        })
    }

    /// Fills it from as many bytes: at once on the host, else by a copy that is submitted.
    pub(crate) fn upload(self, bytes: &[u8]) -> Result<()> {
        let BufferMut { span, device, .. } = self;
        if bytes.len() != span.bytes() {
            return Err(Error::msg("an upload has the size of what it fills"));
        }
        match device {
            Device::Cpu => self.on_host().ok_or_else(lent)?.copy_from_slice(bytes),
            Device::Sim(sim) => sim.upload(span, bytes)?,
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.upload(span, bytes)?,
        }
        Ok(())
    }

    /// Fills it with zeros, as those of a zeroed buffer are: at once on the host, else by a kernel that is submitted.
    #[inline]
    pub(crate) fn zero(self) -> Result<()> {
        match self.device {
            Device::Cpu => self.on_host().ok_or_else(lent)?.fill(0),
            Device::Sim(sim) => sim.zero(self.span)?,
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.zero(self.span)?,
        }
        Ok(())
    }
}

/// Runs a kernel on the host's bytes to its end.
///
/// Operations make its operands (`ops/call/exec.rs`), of pinned arrays, fresh results and storages held for writing,
/// and see to it that those live, and that nobody else uses what is written meanwhile.
#[inline]
pub(crate) fn run_on_host(kernel: &Kernel<View<'_>>) -> Result<()> {
    // Every view is made from a storage that the caller pins or owns (`tests/tidy.rs` looks that `exec.rs` alone makes
    // them), so the buffers live and, since a pinned storage is not being written (`registry::pin`), sources are not
    // written meanwhile. Destinations are fresh storages that no other thread knows, or are held by a `Writing`, which
    // excludes all readers, also through another operand.
    // SAFETY: so operands live and are used by nobody else; and the host's bytes are initialised before they are handed
    // out: those of the pool, of files, of vectors, and by promise those of others.
    unsafe { cpu::run(kernel) }
}

/// A buffer as the cell of a storage has it (`memory/storage.rs`): three words for those of the host's pool and arenas.
/// The cell has the number of its bytes, and the arena's block, where others may read them; they are told again to each
/// call.
#[derive(Debug)]
pub(crate) struct PackedBuffer {
    ptr: NonNull<u8>,
    home: PackedHome,
}

/// A [`Home`], and the device.
#[derive(Debug)]
enum PackedHome {
    /// With the hint of the span.
    Pool {
        hint: u32,
        reserved: usize,
    },
    Arena {
        scope: u32,
        stamp: u64,
    },
    Whole(Box<Buffer>),
    /// Nobody's.
    None,
}

// With what the cell has beside it, it fills a line of the cache.
const _: () = assert!(size_of::<PackedBuffer>() == 24);

// SAFETY: the pointer is a span's, an address of which whoever dereferences it says what it may do.
unsafe impl Send for PackedBuffer {}

impl PackedBuffer {
    /// No bytes: what a cell has that no storage has.
    pub(crate) const NONE: Self = PackedBuffer { ptr: NonNull::dangling(), home: PackedHome::None };

    /// Bytes that the host's pool handed out.
    #[inline(always)]
    pub(crate) fn from_pool(span: Span, reserved: usize) -> Self {
        PackedBuffer { ptr: span.ptr(), home: PackedHome::Pool { hint: span.block(), reserved } }
    }

    /// Bytes of an arena's block on the host, as [`Buffer::from_arena`].
    #[inline(always)]
    pub(crate) fn from_arena(span: Span, part: ArenaPart) -> Self {
        PackedBuffer { ptr: span.ptr(), home: PackedHome::Arena { scope: part.scope, stamp: part.stamp } }
    }

    #[inline]
    pub(crate) fn of(mut buffer: Buffer) -> Self {
        match (&buffer.device, &buffer.home) {
            (Device::Cpu, &Home::Pool(reserved)) => {
                buffer.home = Home::None;
                Self::from_pool(buffer.span, reserved)
            }
            (Device::Cpu, &Home::Arena(part)) => Self::from_arena(buffer.span, part),
            _ => PackedBuffer { ptr: buffer.span.ptr(), home: PackedHome::Whole(Box::new(buffer)) },
        }
    }

    /// As [`Buffer::span`].
    #[inline(always)]
    pub(crate) fn span(&self, bytes: usize) -> Span {
        let hint = match &self.home {
            PackedHome::Pool { hint, .. } => *hint,
            PackedHome::Whole(whole) => whole.span.block(),
            PackedHome::Arena { .. } | PackedHome::None => 0,
        };
        Span::in_block(self.ptr, bytes, hint)
    }

    /// As [`Buffer::device`].
    #[inline(always)]
    pub(crate) fn device(&self) -> &Device {
        match &self.home {
            PackedHome::Whole(whole) => whole.device(),
            _ => &HOST,
        }
    }

    /// As [`Buffer::part`].
    #[inline(always)]
    pub(crate) fn part(&self, block: impl FnOnce() -> u32) -> Option<ArenaPart> {
        match &self.home {
            &PackedHome::Arena { scope, stamp } => Some(ArenaPart { block: block(), scope, stamp }),
            PackedHome::Whole(whole) => whole.part(),
            PackedHome::Pool { .. } | PackedHome::None => None,
        }
    }

    /// As [`Buffer::is_read_only`].
    #[inline(always)]
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(&self.home, PackedHome::Whole(whole) if whole.is_read_only())
    }

    /// As [`Buffer::is_pooled`].
    #[inline(always)]
    pub(crate) fn is_pooled(&self) -> bool {
        match &self.home {
            PackedHome::Pool { .. } => true,
            PackedHome::Whole(whole) => whole.is_pooled(),
            PackedHome::Arena { .. } | PackedHome::None => false,
        }
    }

    /// As [`Buffer::is_counted`].
    #[inline(always)]
    pub(crate) fn is_counted(&self) -> bool {
        match &self.home {
            PackedHome::Pool { .. } => true,
            PackedHome::Whole(whole) => whole.is_counted(),
            PackedHome::Arena { .. } | PackedHome::None => false,
        }
    }

    /// As [`Buffer::active`].
    pub(crate) fn active(&self, bytes: usize) -> usize {
        match &self.home {
            PackedHome::Pool { .. } => bytes,
            PackedHome::Whole(whole) => whole.active(),
            PackedHome::Arena { .. } | PackedHome::None => 0,
        }
    }

    /// As [`Buffer::as_mut`].
    #[inline(always)]
    pub(crate) fn as_mut(&mut self, bytes: usize) -> BufferMut<'_> {
        BufferMut { span: self.span(bytes), device: self.device(), read_only: self.is_read_only() }
    }

    /// Gives its bytes back, as the drop of a [`Buffer`].
    #[inline(always)]
    pub(crate) fn end(self, bytes: usize) {
        match self.home {
            PackedHome::Pool { hint, reserved } => pool::free(Span::in_block(self.ptr, bytes, hint), reserved),
            PackedHome::Whole(whole) => drop(whole),
            PackedHome::Arena { .. } | PackedHome::None => {}
        }
    }
}

impl Device {
    /// Bytes for an array: as their last owner left them, or zeroed.
    #[inline]
    pub(crate) fn alloc(&self, bytes: usize, zeroed: bool) -> std::result::Result<Buffer, AllocError> {
        let (span, reserved) = match self {
            Device::Cpu => {
                let (span, reserved, touched) = match pool::alloc(bytes) {
                    Err(AllocError::Exhausted) if spill::is_wanted() => return spilled(bytes),
                    given => given?,
                };
                let mut buffer = Buffer::from_pool(span, Device::Cpu, reserved);
                if let (true, Some(bytes)) = (zeroed, buffer.as_mut().on_host()) {
                    bytes[..touched].fill(0);
                }
                return Ok(buffer);
            }
            Device::Sim(sim) => sim.alloc(bytes, zeroed)?,
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.reserve(bytes, zeroed)?,
        };
        Ok(Buffer::from_pool(span, self.clone(), reserved))
    }

    /// A part of a block of this device, as uninitialised memory for something new.
    ///
    /// Work that still uses these bytes is the caller's business on the host. Elsewhere all work on parts of one block
    /// is ordered, as if each used all of it; the simulation reports whoever reads the part before it is written.
    ///
    /// # Errors
    /// [`Error::Argument`] if the part leaves the block; [`Error::Capture`] while another thread captures a section.
    #[inline]
    pub(crate) fn suballocate(&self, block: &Buffer, offset: usize, bytes: usize) -> Result<Span> {
        let whole = block.span();
        if offset > whole.bytes() || bytes > whole.bytes() - offset {
            let value = format!("{bytes} bytes at {offset} of {}", whole.bytes());
            return Err(Error::argument("suballocate", "part", value, "a range inside the block"));
        }
        let start = whole.ptr().map_addr(|at| at.checked_add(offset).expect("a block ends inside the address space"));
        let part = Span::in_block(start, bytes, whole.block());
        match self {
            Device::Cpu => {}
            Device::Sim(sim) => sim.suballocate(part)?,
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.suballocate(part)?,
        }
        Ok(part)
    }
}

/// Bytes that lie in a file, since there is no memory.
#[cold]
#[inline(never)]
fn spilled(bytes: usize) -> std::result::Result<Buffer, AllocError> {
    file(bytes).map(|file| Buffer::of_file(file, bytes))
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        match std::mem::replace(&mut self.home, Home::None) {
            Home::Pool(reserved) => match &self.device {
                Device::Cpu => pool::free(self.span, reserved),
                Device::Sim(sim) => sim.free(self.span),
                #[cfg(feature = "cuda")]
                Device::Cuda(cuda) => cuda.free(self.span),
            },
            Home::Foreign(foreign) => {
                // Most often pages of the system: others that died wait for the next call.
                work::spend(work::of_bytes(self.span.bytes()));
                end(foreign, &self.device);
            }
            Home::Arena(_) | Home::None => {}
        }
    }
}

/// Drops a keeper: the code of somebody else.
///
/// On other devices than the host everything submitted ends first: what the keeper keeps has no place in their order.
/// What failed meanwhile is left to who asks for it.
#[cold]
fn end(foreign: Box<Foreign>, device: &Device) {
    device.wait_silently();
    drop_contained(foreign);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_blocks_are_zeroed_when_asked_and_aligned() {
        for bytes in [1usize, 64, 1000, 40_000, 70_000, 5 << 20] {
            let mut first = Device::Cpu.alloc(bytes, false).expect("memory");
            assert!(first.span().ptr().addr().get().is_multiple_of(64));
            if bytes >= 1 << 16 {
                assert!(first.span().ptr().addr().get().is_multiple_of(4096));
            }
            first.as_mut().on_host().expect("the host's").fill(0xAB);
            drop(first);
            let mut again = Device::Cpu.alloc(bytes, true).expect("memory");
            assert!(again.as_mut().on_host().expect("the host's").iter().all(|&byte| byte == 0), "{bytes}");
        }
    }
}
