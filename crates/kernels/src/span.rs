//! The address by which a kernel reaches bytes.
//!
//! The unsafe code makes slices of it, by the promise of whoever asks for one: a span itself promises nothing.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::base::dtype::WithDType;

/// A range of device memory as kernels see it: an address and a length, without ownership.
///
/// A span may dangle; only a backend turns one into references, while the submitter keeps the buffers
/// of the operands (see `ops/call/exec.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    ptr: NonNull<u8>,
    bytes: usize,
    /// The number of the block that it lies in, for a pool that numbers them; 0 if nobody said. A hint: whoever follows
    /// it looks whether the block holds the span. A whole word, so that a copy is not wider than what was written.
    block: u64,
}

// SAFETY: a span is an address and a number; what may be done with it is stated where it is
// dereferenced (`Span::slice`, `Span::slice_mut`).
unsafe impl Send for Span {}
// SAFETY: as for `Send`.
unsafe impl Sync for Span {}

impl Span {
    #[inline]
    pub fn new(ptr: NonNull<u8>, bytes: usize) -> Self {
        Span { ptr, bytes, block: 0 }
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
        Span { ptr, bytes, block: block.into() }
    }

    /// A part of it, so many bytes from its begin. The caller knows that it is one.
    #[inline(always)]
    pub fn part(&self, offset: usize, bytes: usize) -> Span {
        assert!(bytes <= self.bytes && offset <= self.bytes - bytes, "a part lies inside");
        let ptr = self.ptr.map_addr(|at| at.checked_add(offset).expect("a block ends inside the address space"));
        Span { ptr, bytes, block: self.block }
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
    pub unsafe fn slice<'a, T: WithDType>(self) -> &'a [T] {
        // SAFETY: the caller's promises; every bit pattern is a value of another `WithDType`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>().as_ptr(), self.bytes / size_of::<T>()) }
    }

    /// The bytes as elements that may be written.
    ///
    /// # Safety
    /// As for [`Span::slice`], and nobody else reads the span during `'a`.
    #[inline]
    pub unsafe fn slice_mut<'a, T: WithDType>(self) -> &'a mut [T] {
        // SAFETY: the caller's promises; every bit pattern is a value of another `WithDType`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>().as_ptr(), self.bytes / size_of::<T>()) }
    }
}
