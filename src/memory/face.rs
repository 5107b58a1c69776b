//! What the handles of an array tell of it without asking whether it is open.
//!
//! A reference to it may be held for as long as a handle is borrowed: through a close, and through an exchange of the
//! array's contents, after which another face is shown and the ones before stay where they are.

use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, LazyLock};

use dashmap::DashMap;

use crate::base::{
    dtype::DType,
    layout::Layout,
    sync::{Ordering, UnsafeCell},
};
use crate::device::Device;
use crate::memory::registry::Payload;

/// What stays true of a closed array.
#[derive(Clone, Debug)]
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
pub(crate) struct FaceCell {
    first: UnsafeCell<Option<Face>>,
    /// The face after an exchange that changed it, in `LATER`; null before.
    now: AtomicPtr<Face>,
}

// SAFETY: written by the one thread that has the slot while it has no proxy (`show`, `hide`); read through a borrowed
// proxy alone.
#[allow(unsafe_code)]
unsafe impl Sync for FaceCell {}

/// The faces that exchanged arrays had later, until their slot is recycled.
static LATER: LazyLock<DashMap<u32, Vec<Arc<Face>>>> = LazyLock::new(DashMap::new);

impl FaceCell {
    pub(crate) fn new() -> Self {
        FaceCell { first: UnsafeCell::new(None), now: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// For a vacant slot that came from a free list to this thread alone. The face is made in its place.
    #[inline(always)]
    pub(crate) fn show(&self, face: impl FnOnce() -> Face) {
        // SAFETY: no proxy of the slot exists, so nobody reads, and a vacant slot has no face that would have to be
        // dropped.
        #[allow(unsafe_code)]
        self.first.with_mut(|at| unsafe { at.write(Some(face())) });
    }

    /// For a slot that nobody else can reach: its last proxy is gone.
    #[inline]
    pub(crate) fn hide(&self, index: u32) {
        // Relaxed: see above.
        if !self.now.load(Ordering::Relaxed).is_null() {
            self.now.store(std::ptr::null_mut(), Ordering::Relaxed);
            LATER.remove(&index);
        }
        // SAFETY: no proxy is left, and a face is read through a borrowed one alone.
        #[allow(unsafe_code)]
        self.first.with_mut(|face| unsafe { *face = None });
    }

    /// Shows another face from now on. The caller borrows a proxy of the slot, which has the number `index`.
    pub(crate) fn turn(&self, index: u32, face: Face) {
        if self.get().is_some_and(|now| now.is_same(&face)) {
            return;
        }
        let face = Arc::new(face);
        // Release: pairs with the Acquire in `get`.
        self.now.store(Arc::as_ptr(&face).cast_mut(), Ordering::Release);
        LATER.entry(index).or_default().push(face);
    }

    /// The face, for as long as the caller borrows a proxy of the slot.
    #[inline]
    pub(crate) fn get<'a>(&self) -> Option<&'a Face> {
        // Acquire: pairs with the Release in `turn`.
        let now = self.now.load(Ordering::Acquire);
        if !now.is_null() {
            // SAFETY: it lies in an `Arc` of `LATER`, which holds it until the slot is recycled.
            #[allow(unsafe_code)]
            return Some(unsafe { &*now });
        }
        // SAFETY: shown before the first proxy, and hidden after the last one.
        #[allow(unsafe_code)]
        self.first.with(|face| unsafe { (*face).as_ref() })
    }
}
