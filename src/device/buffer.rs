//! Bytes of a device: the owned `Buffer`, and the `Span` by which a kernel addresses them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::base::dtype::WithDType;
use crate::device::{Device, cpu::pool, graph::Asynchronous};

/// A range of device memory as kernels see it: an address and a length, without ownership.
///
/// A span may dangle; only a backend turns one into references, while the submitter keeps the buffers
/// of the operands (see `ops/exec.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    ptr: NonNull<u8>,
    bytes: usize,
    /// The number of the block that it lies in, for a pool that numbers them; 0 if nobody said. A hint: whoever
    /// follows it looks whether the block holds the span.
    block: u32,
}

// SAFETY: a span is an address and a number; what may be done with it is stated where it is
// dereferenced (`Span::slice`, `Span::slice_mut`).
#[allow(unsafe_code)]
unsafe impl Send for Span {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for Span {}

impl Span {
    #[inline]
    pub(crate) fn new(ptr: NonNull<u8>, bytes: usize) -> Self {
        Span { ptr, bytes, block: 0 }
    }

    /// A range that lies in the block with this number.
    #[inline]
    pub(crate) fn in_block(ptr: NonNull<u8>, bytes: usize, block: u32) -> Self {
        Span { ptr, bytes, block }
    }

    /// A part of it, so many bytes from its begin. The caller knows that it is one.
    #[inline]
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Span {
        debug_assert!(offset + bytes <= self.bytes);
        let ptr = self.ptr.map_addr(|at| at.checked_add(offset).expect("a block ends inside the address space"));
        Span { ptr, bytes, block: self.block }
    }

    #[inline]
    pub(crate) fn block(&self) -> u32 {
        self.block
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The bytes as elements.
    ///
    /// # Safety
    /// - Every byte is 0 or 1 if `T` is `bool`.
    /// - The span lies in host memory that stays allocated and initialised for `'a`.
    /// - Nobody writes to it during `'a`.
    /// - Its address is aligned for `T`.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn slice<'a, T: WithDType>(self) -> &'a [T] {
        // SAFETY: the caller's promises; every bit pattern is a value of another `WithDType`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>().as_ptr(), self.bytes / size_of::<T>()) }
    }

    /// The bytes as elements that may be written.
    ///
    /// # Safety
    /// As for [`Span::slice`], and nobody else reads the span during `'a`.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn slice_mut<'a, T: WithDType>(self) -> &'a mut [T] {
        // SAFETY: the caller's promises; every bit pattern is a value of another `WithDType`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>().as_ptr(), self.bytes / size_of::<T>()) }
    }
}

/// Whose memory a buffer is, if not a pool's: `keeper` keeps it, and is dropped when the buffer is.
pub(crate) struct Foreign<K: ?Sized = dyn Send + Sync> {
    /// Whether nobody may write to it.
    pub(crate) read_only: bool,
    pub(crate) keeper: K,
}

impl<K: ?Sized> fmt::Debug for Foreign<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// Bytes of an arena's block, which the arena takes back without asking; it knows by other means who uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
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
    Arena(Part),
    Foreign(Box<Foreign>),
    /// Nobody's any more.
    None,
}

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

impl Buffer {
    /// Takes ownership of bytes that the pool of `device` handed out.
    #[inline]
    pub(crate) fn from_pool(span: Span, device: Device, reserved: usize) -> Self {
        Buffer { span, device, home: Home::Pool(reserved) }
    }

    /// Bytes of an arena's block, for one cycle: who reads or writes them makes sure that it lasts.
    #[inline]
    pub(crate) fn from_arena(span: Span, device: Device, part: Part) -> Self {
        Buffer { span, device, home: Home::Arena(part) }
    }

    /// Which part of an arena it is, if it is one.
    #[inline]
    pub(crate) fn part(&self) -> Option<&Part> {
        match &self.home {
            Home::Arena(part) => Some(part),
            _ => None,
        }
    }

    /// Bytes that are not a pool's.
    ///
    /// # Safety
    /// - Until the keeper is dropped, the span is memory of the device, on the host initialised.
    /// - Until then nobody else writes to it; if it is not read-only, nobody else reads it while ndgc writes.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn foreign(span: Span, device: Device, foreign: Box<Foreign>) -> Self {
        Buffer { span, device, home: Home::Foreign(foreign) }
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

    #[inline]
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    #[inline]
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
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
            Home::Foreign(foreign) => end(foreign, &self.device),
            Home::Arena(_) | Home::None => {}
        }
    }
}

/// Drops a keeper. It is the code of somebody else: its panic, which std has reported, goes no further, since this
/// may run in the middle of a drain.
///
/// On other devices than the host everything submitted ends first: what the keeper keeps has no place in their order.
#[cold]
fn end(foreign: Box<Foreign>, device: &Device) {
    let _ = device.synchronize();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(foreign)));
}
