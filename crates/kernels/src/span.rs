//! The address by which a kernel reaches bytes.

use std::num::NonZero;
use std::ptr::NonNull;

/// A range of device memory as kernels see it: an address and a length, without ownership.
///
/// A span promises nothing, and may dangle; only a backend turns one into references, while the submitter keeps the
/// buffers of the operands (see `ops/call/exec.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of a pointer that was exposed, so that it is found again by its address.
    address: NonZero<usize>,
    bytes: usize,
    /// The number of the block that it lies in, for a pool that numbers them; 0 if nobody said. A hint: whoever follows
    /// it looks whether the block holds the span. A whole word, so that a copy is not wider than what was written.
    block: u64,
}

impl Span {
    #[inline]
    pub fn new(ptr: NonNull<u8>, bytes: usize) -> Self {
        Span { address: ptr.expose_provenance(), bytes, block: 0 }
    }

    /// No bytes, aligned as those of a pool.
    pub fn empty() -> Self {
        #[repr(align(64))]
        struct Aligned;
        Span::new(NonNull::<Aligned>::dangling().cast(), 0)
    }

    /// A range that lies in the block with this number.
    #[inline(always)]
    pub fn in_block(ptr: NonNull<u8>, bytes: usize, block: u32) -> Self {
        Span { address: ptr.expose_provenance(), bytes, block: block.into() }
    }

    /// A part of it, so many bytes from its begin. The caller knows that it is one.
    #[inline(always)]
    pub fn part(&self, offset: usize, bytes: usize) -> Span {
        assert!(bytes <= self.bytes && offset <= self.bytes - bytes, "a part lies inside");
        let address = self.address.checked_add(offset).expect("a block ends inside the address space");
        Span { address, bytes, block: self.block }
    }

    #[inline]
    pub fn block(&self) -> u32 {
        self.block as u32
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub fn ptr(&self) -> NonNull<u8> {
        NonNull::with_exposed_provenance(self.address)
    }
}
