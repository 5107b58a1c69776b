//! Arrays for the tests of the layers up to the gradients, where there are no operations.

use std::panic::Location;

use crate::base::{dtype::DType, error::Result, layout::Layout, shape::Shape};
use crate::device::Device;
use crate::memory::{
    owner::Owner,
    proxy::Proxy,
    registry::{self, Parts, Pinned},
    storage::Storage,
    threads::{ThreadContext, with_context},
    workspace::planning::UNPLANNED,
};

#[track_caller]
fn made(context: &ThreadContext, layout: &Layout, storage: Storage) -> Proxy {
    let parts = Parts { dtype: DType::F32, layout, storage, node: None };
    let made = registry::create(context, "test", parts, &Owner::Handles, Location::caller());
    Proxy::from_key(made.expect("a slot"))
}

/// Runs with an array that is announced.
pub(crate) fn with_array<R>(array: &Proxy, f: impl FnOnce(&ThreadContext, &Pinned<'_>) -> Result<R>) -> Result<R> {
    with_context(|context| {
        let pins = registry::pin(context, "test", [array.key()], false)?;
        let [array] = pins.arrays();
        f(context, &array)
    })
}

/// So many zeros in f32 of the host, which their handles own.
#[track_caller]
pub(crate) fn zeros(count: usize) -> Proxy {
    with_context(|context| {
        let buffer = Device::Cpu.alloc(count * size_of::<f32>(), true).expect("memory");
        let storage = Storage::new(context, "test", buffer, UNPLANNED).expect("a cell");
        made(context, &Layout::contiguous(Shape::from(count)), storage)
    })
}

/// Another array with the bytes of one.
#[track_caller]
pub(crate) fn view(of: &Proxy) -> Result<Proxy> {
    with_array(of, |context, array| Ok(made(context, array.layout, array.storage.clone())))
}

/// Writes an array in place, what it has already; nobody else uses it.
pub(crate) fn write(array: &Proxy) -> Result<()> {
    with_array(array, |context, array| {
        let writing = array.storage.write(context, "test", array)?;
        assert!(writing.is_some(), "nobody else uses it");
        Ok(())
    })
}
