//! The short road: functions of dense operands on the host, element by element, which are what small programs are made
//! of. It does what `exec.rs` describes, and builds no kernel, copies no layout and passes no error along: those bytes,
//! written in small pieces and read in large ones, cost more than the operation (design.md, "Budgets").
//!
//! `None` from anything here means that nothing has happened: the long road takes over, and knows what to say.

use crate::array::autograd::Grads;
use crate::base::{
    dtype::DType,
    error::{Result, Site},
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    Device,
    kernel::{BinaryOp, Map},
};
use crate::memory::{
    owner::{self, Owner},
    proxy::Proxy,
    registry::{self, Payload, Pinned, Vacant},
    storage::Storage,
    threads::Local,
};
use crate::ops::exec::{self, Made, binary_on_host, map_on_host, matmul_on_host, record};

/// Bytes for a result of `dtype` with the layout of `like`, which is dense from the first byte of a buffer of the host.
#[inline(always)]
fn bytes_like(local: &Local, like: &Payload, dtype: DType) -> Option<Storage> {
    let layout = &like.layout;
    let count = layout.shape().elem_count();
    if !matches!(exec::device(like), Device::Cpu) || count == 0 || layout.offset() != 0 || !layout.is_contiguous() {
        return None;
    }
    let bytes = count.checked_mul(dtype.size_in_bytes()).filter(|&bytes| bytes <= isize::MAX as usize)?;
    Storage::on_host(local, bytes)
}

/// The owner of a result, and the place that made it.
#[inline(always)]
fn owner_of_result(first: &Proxy, site: Site) -> Option<(Owner, Site)> {
    match exec::steps_site() {
        Some(site) => Some((Owner::Handles, site)),
        None if owner::is_unlisted(first.key().index()) => Some((Owner::Handles, site)),
        None => Some((owner::owner_of(first.key().index(), first.key().generation())?, site)),
    }
}

/// A function of one operand. `dtype`: of the result, or `None` if the function is none of the operand's.
#[inline(always)]
pub(crate) fn map<F>(
    site: Site,
    src: &Proxy,
    dtype: impl Fn(DType) -> Option<DType>,
    map: Map,
    vjp: &impl Fn(&Pinned<'_>, &Made<'_>) -> F,
) -> Option<Proxy>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    exec::call_at_once(|local| {
        let pins = registry::pin_at_once(local, [src.key()])?;
        let [a] = pins.arrays();
        let dtype = dtype(a.dtype)?;
        let (owner, site) = owner_of_result(src, site)?;
        let vacant = Vacant::take(local)?;
        let storage = bytes_like(local, &a, dtype)?;
        let made = Made { storage: &storage, dtype, layout: &a.layout };
        map_on_host(map, &a, &made).ok()?;
        let node = record([&a], || vjp(&a, &made));
        vacant.fill((dtype, &a.layout), storage, node, owner, site).map(Proxy::from_key)
    })
}

/// A function of two operands of one shape.
#[inline(always)]
pub(crate) fn binary<F>(
    site: Site,
    a: &Proxy,
    b: &Proxy,
    op: BinaryOp,
    vjp: impl FnOnce(&Pinned<'_>, &Pinned<'_>) -> F,
) -> Option<Proxy>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    exec::call_at_once(|local| {
        let pins = registry::pin_at_once(local, [a.key(), b.key()])?;
        let [x, y] = pins.arrays();
        if x.dtype != y.dtype || x.layout.shape() != y.layout.shape() || !matches!(exec::device(&y), Device::Cpu) {
            return None;
        }
        let (owner, site) = owner_of_result(a, site)?;
        let vacant = Vacant::take(local)?;
        let storage = bytes_like(local, &x, x.dtype)?;
        let made = Made { storage: &storage, dtype: x.dtype, layout: &x.layout };
        binary_on_host(op, &x, &y, &made).ok()?;
        let node = record([&x, &y], || vjp(&x, &y));
        vacant.fill((x.dtype, &x.layout), storage, node, owner, site).map(Proxy::from_key)
    })
}

/// The product of two matrices of floats, strided or not.
#[inline(always)]
pub(crate) fn matmul<F>(
    site: Site,
    a: &Proxy,
    b: &Proxy,
    vjp: impl FnOnce(&Pinned<'_>, &Pinned<'_>) -> F,
) -> Option<Proxy>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    exec::call_at_once(|local| {
        let pins = registry::pin_at_once(local, [a.key(), b.key()])?;
        let [x, y] = pins.arrays();
        let (&[m, k], &[inner, n]) = (x.layout.dims(), y.layout.dims()) else { return None };
        let known = matches!(x.dtype, DType::F32 | DType::F64) && x.dtype == y.dtype && k == inner;
        if !known || !matches!((exec::device(&x), exec::device(&y)), (Device::Cpu, Device::Cpu)) {
            return None;
        }
        let bytes = m.checked_mul(n)?.checked_mul(x.dtype.size_in_bytes()).filter(|&bytes| bytes > 0)?;
        let (owner, site) = owner_of_result(a, site)?;
        let vacant = Vacant::take(local)?;
        let storage = Storage::on_host(local, bytes)?;
        let layout = Layout::contiguous(Shape::from((m, n)));
        let made = Made { storage: &storage, dtype: x.dtype, layout: &layout };
        matmul_on_host(&x, &y, &made).ok()?;
        let node = record([&x, &y], || vjp(&x, &y));
        vacant.fill((x.dtype, &layout), storage, node, owner, site).map(Proxy::from_key)
    })
}
