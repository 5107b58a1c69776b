//! Shape, dtype and device of an array, readable through any handle even after it was closed.
//!
//! A reference to it may be held for as long as a handle is borrowed: through a close, and through an exchange of the
//! array's contents, after which other metadata is shown and what was there before stays where it is.

use std::sync::{Arc, LazyLock};

use dashmap::DashMap;

use crate::base::{dtype::DType, layout::Layout, shape::Shape};
use crate::device::Device;
use crate::memory::slot::{Shown, TURNED};

/// What stays true of a closed array. In this order, dtype and shape lie in one line of the cache
/// (`registry/slots.rs`).
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Metadata {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) device: Device,
}

impl Metadata {
    #[inline(always)]
    pub(crate) fn new(dtype: DType, layout: &Layout, device: Device) -> Self {
        Metadata { dtype, layout: *layout, device }
    }

    fn is_same(&self, other: &Metadata) -> bool {
        (self.dtype, self.layout) == (other.dtype, other.layout) && self.device == other.device
    }
}

/// The metadata of a slot's array: shown before the slot is opened, hidden when it is recycled, only read in between.
/// A slot without an array has the host for its device.
#[derive(Debug)]
pub(crate) struct MetadataCell(Shown<Metadata>);

/// How many of the last ones are looked at for one to show again.
const RECENT: usize = 16;

/// The metadata that exchanged arrays had later, until their slot is recycled.
static LATER: LazyLock<DashMap<u32, Vec<Arc<Metadata>>>> = LazyLock::new(DashMap::new);

#[cold]
#[inline(never)]
fn forget_later(index: u32) {
    LATER.remove(&index);
}

impl MetadataCell {
    pub(crate) fn new() -> Self {
        MetadataCell(Shown::new(Metadata::new(DType::F32, &Layout::contiguous(Shape::SCALAR), Device::Cpu)))
    }

    /// For a vacant slot that came from a free list to this thread alone. The metadata is written where it stays.
    #[inline(always)]
    pub(crate) fn show(&self, dtype: DType, layout: &Layout, device: &Device) {
        self.0.change(|shown| {
            shown.layout = *layout;
            shown.dtype = dtype;
            if !matches!(device, Device::Cpu) {
                shown.device = device.clone();
            }
        });
    }

    /// For a slot that nobody else can reach: its last proxy is gone. It has the number `index`, and this state.
    #[inline(always)]
    pub(crate) fn hide(&self, index: u32, state: u64) {
        if state & TURNED != 0 {
            forget_later(index);
        }
        self.0.change(|shown| {
            if !matches!(shown.device, Device::Cpu) {
                shown.device = Device::Cpu;
            }
        });
    }

    /// Has other metadata shown as soon as the slot is marked [`TURNED`]; nothing is to be done if it is shown already.
    /// The caller borrows a proxy of the slot, which has the number `index` and this state.
    pub(crate) fn turn(&self, index: u32, state: u64, metadata: Metadata) -> bool {
        if self.get(state).is_same(&metadata) {
            return false;
        }
        let mut later = LATER.entry(index).or_default();
        // One of the last that it had is shown again: an array that changes between some shapes keeps those, and no
        // more.
        let known = later.iter().rev().take(RECENT).find(|known| known.is_same(&metadata)).cloned();
        let metadata = known.unwrap_or_else(|| {
            later.push(Arc::new(metadata));
            Arc::clone(&later[later.len() - 1])
        });
        self.0.turn(&metadata);
        true
    }

    /// The metadata, for as long as the caller borrows a proxy of the slot, which has this state.
    #[inline(always)]
    pub(crate) fn get<'a>(&self, state: u64) -> &'a Metadata {
        self.0.get(state)
    }
}
