//! Pinned host memory on the way to the device and back.
//!
//! Uploads go through chunks that each stream fills one after the other. A full chunk is filled again once the host has
//! waited for the stream after its last copy, for whatever reason; no event is needed to know that. So the host's bytes
//! are free when the call returns, and the call itself waits only if [`CHUNKS`] are full since the last wait.
//!
//! Downloads take pieces of their own: one, or two if they are large, of which the host empties the one while the
//! device fills the other.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::base::error::Result;
use crate::device::cuda::{
    context::{CudaContext, CudaStream, PinnedMemory},
    raw::Address,
};

/// Bytes of a chunk for uploads.
const CHUNK: usize = 4 << 20;
/// Full chunks of a stream.
const CHUNKS: usize = 8;
/// Copies begin at multiples of this.
const ALIGN: usize = 64;

/// The uploads of one stream.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    current: Option<PinnedMemory>,
    used: usize,
    /// Full chunks, each with its number, in order.
    full: VecDeque<(u64, PinnedMemory)>,
    filled: u64,
    /// The copies of chunks up to this number are done.
    done: u64,
}

impl Uploads {
    /// Submits a copy of host bytes.
    pub(super) fn send(
        &mut self,
        context: &CudaContext,
        stream: &CudaStream,
        bytes: &[u8],
        dst: Address,
    ) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let left = bytes.len() - sent;
            let room = if self.current.is_some() { CHUNK - self.used } else { 0 };
            // Copies that fit a chunk are not cut in two.
            if room == 0 || (left > room && left <= CHUNK) {
                self.next(context, stream)?;
                continue;
            }
            let count = left.min(room);
            let Some(chunk) = &mut self.current else { continue };
            chunk.send(context, stream, self.used, &bytes[sent..sent + count], dst + sent as Address)?;
            self.used = (self.used + count).next_multiple_of(ALIGN).min(CHUNK);
            sent += count;
        }
        Ok(())
    }

    /// The number of the last chunk that was filled: what the host has waited for, if it waits for the stream now.
    pub(super) fn filled(&self) -> u64 {
        self.filled
    }

    /// The host has waited for everything that was submitted when [`Uploads::filled`] said `filled`.
    pub(super) fn waited(&mut self, filled: u64) {
        self.done = self.done.max(filled);
    }

    /// Makes an empty chunk the current one.
    fn next(&mut self, context: &CudaContext, stream: &CudaStream) -> Result<()> {
        if self.full.len() >= CHUNKS && self.full.front().is_some_and(|(number, _)| *number > self.done) {
            stream.synchronize(context)?;
            self.done = self.filled;
        }
        let fresh = match self.full.front() {
            Some((number, _)) if *number <= self.done => self.full.pop_front().map(|(_, chunk)| chunk),
            _ => None,
        };
        let fresh = fresh.map_or_else(|| PinnedMemory::new(context, CHUNK), Ok)?;
        if let Some(full) = self.current.replace(fresh) {
            self.filled += 1;
            self.full.push_back((self.filled, full));
        }
        self.used = 0;
        Ok(())
    }
}

/// The smallest piece for a download, and the largest; sizes double in between.
const SMALLEST: usize = 64 << 10;
pub(super) const LARGEST: usize = 4 << 20;
/// Bytes of pieces that are kept for reuse.
const KEPT: usize = 64 << 20;

/// Pieces for downloads that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    free: Mutex<Vec<PinnedMemory>>,
}

impl Downloads {
    /// A piece for at least as many bytes; at most for [`LARGEST`].
    pub(super) fn take(&self, context: &CudaContext, bytes: usize) -> Result<PinnedMemory> {
        let size = bytes.clamp(SMALLEST, LARGEST).next_power_of_two();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().position(|piece| piece.bytes() == size);
        match found {
            Some(place) => Ok(free.swap_remove(place)),
            None => PinnedMemory::new(context, size),
        }
    }

    /// Keeps a piece whose copies are done.
    pub(super) fn put(&self, context: &CudaContext, piece: PinnedMemory) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = free.iter().map(PinnedMemory::bytes).sum();
        if kept + piece.bytes() <= KEPT {
            free.push(piece);
        } else {
            piece.free(context);
        }
    }
}
