//! What the handles of an array tell of it without asking whether it is open.
//!
//! A reference to it may be held for as long as a handle is borrowed: through a close, and through an exchange of the
//! array's contents, after which another face is shown and the ones before stay where they are.

use std::sync::{Arc, LazyLock};

use dashmap::DashMap;

use crate::base::{dtype::DType, layout::Layout};
use crate::device::Device;
use crate::memory::{registry::Payload, slot::Shown};

/// What stays true of a closed array. In this order, dtype and shape lie in one line of the cache (`registry::ArraySlot`).
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Face {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) device: Device,
}

impl Face {
    pub(crate) fn of(payload: &Payload) -> Self {
        Face { dtype: payload.dtype, layout: payload.layout, device: payload.storage.buffer().device().clone() }
    }

    fn is_same(&self, other: &Face) -> bool {
        (self.dtype, self.layout) == (other.dtype, other.layout) && self.device == other.device
    }
}

/// The face of a slot's array: shown before the slot is opened, hidden when it is recycled, only read in between.
#[derive(Debug)]
pub(crate) struct FaceCell(Shown<Face>);

/// Faces among which one to show again is looked for.
const RECENT: usize = 16;

/// The faces that exchanged arrays had later, until their slot is recycled.
static LATER: LazyLock<DashMap<u32, Vec<Arc<Face>>>> = LazyLock::new(DashMap::new);

impl FaceCell {
    pub(crate) fn new() -> Self {
        FaceCell(Shown::new())
    }

    /// For a vacant slot that came from a free list to this thread alone. The face is made in its place.
    #[inline(always)]
    pub(crate) fn show(&self, face: impl FnOnce() -> Face) {
        self.0.show(face);
    }

    /// For a slot that nobody else can reach: its last proxy is gone.
    #[inline]
    pub(crate) fn hide(&self, index: u32) {
        if self.0.hide() {
            LATER.remove(&index);
        }
    }

    /// Shows another face from now on. The caller borrows a proxy of the slot, which has the number `index`.
    pub(crate) fn turn(&self, index: u32, face: Face) {
        if self.get().is_some_and(|now| now.is_same(&face)) {
            return;
        }
        let mut later = LATER.entry(index).or_default();
        // One of the last that it had is shown again: an array that changes between some shapes keeps those, and no more.
        let known = later.iter().rev().take(RECENT).find(|known| known.is_same(&face)).cloned();
        let face = known.unwrap_or_else(|| {
            later.push(Arc::new(face));
            Arc::clone(&later[later.len() - 1])
        });
        self.0.turn(&face);
    }

    /// The face, for as long as the caller borrows a proxy of the slot.
    #[inline]
    pub(crate) fn get<'a>(&self) -> Option<&'a Face> {
        self.0.get()
    }
}
