//! Doors for the benchmarks: the runtime's steps one by one, without a kernel. Not part of the interface.

use crate::base::error::Site;
use crate::memory::{
    proxy::Proxy,
    reclaim,
    registry::{self, Payload},
    threads::with_local,
};

/// Pins one array, reads its metadata, lets go.
#[inline]
pub fn resolve(array: &Proxy) -> usize {
    with_local(|local| {
        registry::pin(local, "bench", [array.key()], false).map_or(0, |pins| {
            let [a] = pins.arrays();
            a.layout.offset() + a.layout.dims()[0]
        })
    })
}

/// Pins two arrays, reads their metadata, lets go.
#[inline]
pub fn resolve_two(a: &Proxy, b: &Proxy) -> usize {
    with_local(|local| {
        registry::pin(local, "bench", [a.key(), b.key()], false).map_or(0, |pins| {
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
    with_local(|local| {
        reclaim::on_call(local);
        let pins = registry::pin(local, "bench", [a.key(), b.key()], false).expect("open");
        let [x, y] = pins.arrays();
        std::hint::black_box(x.layout.dims()[0] + y.layout.offset());
        let payload = Payload { dtype: x.dtype, layout: x.layout, storage: x.storage.clone(), node: None };
        let owner = a.owner("bench").expect("open");
        let made = registry::create(local, "bench", payload, owner, site).expect("a slot");
        Proxy::from_key(made.expect("an open owner"))
    })
}

/// The look at the queue that every call makes, so many times.
pub fn look_at_queue(times: u32) {
    with_local(|local| (0..times).for_each(|_| reclaim::on_call(local)));
}
