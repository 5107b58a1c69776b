//! What every operation runs through: enter, pin, check, allocate, launch, record, adopt.
//!
//! ```text
//! enter     the entry check (`memory/switch.rs`); up to a batch of dead arrays is closed
//! pin       operands are announced; from here their bytes stay, whoever closes them
//! check     shapes, dtypes, devices (`check.rs`); nothing has changed if one fails
//! allocate  bytes for the result; on exhaustion: reap all, trim, retry once, else `OutOfMemory`
//! launch    the kernel is submitted
//! record    if gradients are wanted: what the derivative needs is kept as storage, not as a handle
//! adopt     the result gets a slot, and the owner of the first operand
//! ```
//!
//! An elementwise operation is a row of the table in `crates/kernels/src/operations.rs`, and its tests are one of
//! `crates/kernels/tests/kernels/cpu/formulas.rs`.
//!
//! Others touch: the method (in the family's file here), the kernel (`kernel.rs` of the kernels) and its code for the
//! host (`cpu/` there) and CUDA, and the tests' tables.

use crate::array::autograd::{self, Grads};
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result, Site},
    heap,
    layout::Layout,
    shape::Shape,
};
use crate::device::{
    Device,
    buffer::{BufferMut, run_on_host},
    cpu::few::{self, FEW},
    graph::{blame, is_capturing},
    host::pool::SMALL_MAX,
    kernel::{Kernel, Map, View},
};
use crate::memory::{
    budget::{self, NoBytes},
    composed::{self, composite_site, note_owner},
    key::Key,
    manager::NdManager,
    owner::{Owner, Refused},
    pressure,
    proxy::Proxy,
    reclaim,
    registry::{self, ArrayRef, NotPinned, Parts, Pinned, Pins, Refuses, Tracked},
    storage::{BufferRef, Storage},
    switch,
    threads::{ThreadContext, with_context},
    workspace::{
        self,
        planning::UNPLANNED,
        validity::{self, CycleId},
    },
};
use crate::ops::call::place::Place;

/// Begins a call: makes the entry check, and closes some dead arrays. An error names the call's place.
#[inline]
pub(crate) fn enter<R>(call: Call, f: impl FnOnce(&ThreadContext) -> Result<R>) -> Result<R> {
    let answer = switch::check(call.op).and_then(|()| {
        with_context(|context| {
            reclaim::on_call(context);
            f(context)
        })
    });
    named(call.site, answer)
}

/// The answer; an error names `site`. For calls made of others, which name places in here.
#[inline]
pub(crate) fn named<R>(site: Site, answer: Result<R>) -> Result<R> {
    // An error of another type for a moment, so that the answer that there mostly is moves alone: else it would be
    // copied with the room for an error around it, read as a whole just after it was written by parts.
    struct Nameless(Error);
    match answer.map_err(Nameless) {
        Ok(value) => Ok(value),
        Err(Nameless(error)) => Err(blame(error, site)),
    }
}

/// Announces the operands.
#[inline(always)]
pub(crate) fn pin<'a, const N: usize>(
    context: &'a ThreadContext,
    op: &'static str,
    arrays: [&'a Proxy; N],
) -> std::result::Result<Pins<'a, N>, NotPinned> {
    let refuses = if is_capturing() { Some(captured as Refuses) } else { None };
    registry::pin_if(context, op, arrays.map(Proxy::key), false, refuses)
}

/// Refuses an operand whose bytes other cycles have when the section runs again.
fn captured(op: &'static str, arrays: &[Pinned<'_>]) -> Result<()> {
    let Some(array) = arrays.iter().find(|array| array.storage.part().is_some()) else { return Ok(()) };
    let what = format!(
        "{op}: array {} is of a workspace, whose next cycles use its bytes again; detach() it before the section",
        registry::describe(array.key)
    );
    Err(Error::Capture { device: device(array).to_string(), what, site: None })
}

/// An operand as kernels see it.
#[inline(always)]
pub(crate) fn view<'a>(array: &'a Pinned<'_>) -> View<'a> {
    view_as(array, array.layout)
}

/// An operand seen through another layout of the same storage.
#[inline(always)]
pub(crate) fn view_as<'a>(array: &Pinned<'_>, layout: &'a Layout) -> View<'a> {
    View::new(array.storage.buffer().span(), array.dtype, layout)
}

#[inline(always)]
pub(crate) fn device<'a>(array: &ArrayRef<'a>) -> &'a Device {
    array.storage.buffer().device()
}

/// A result that nobody knows yet.
pub(crate) struct Output {
    pub(crate) storage: Storage,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
}

impl Output {
    /// Where the bytes are: the host, for host-only arrays of a device.
    #[inline]
    pub(crate) fn device(&self) -> &Device {
        self.storage.buffer().device()
    }

    /// Its bytes, which are nobody else's.
    #[inline]
    pub(crate) fn buffer(&mut self) -> BufferMut<'_> {
        self.storage.own_buffer().expect("nobody knows a fresh result")
    }

    /// That the cycle which its bytes are of, if they are of one, goes on: for who ran the program's code meanwhile.
    pub(crate) fn goes_on(&self, op: &'static str) -> Result<()> {
        goes_on(op, self.storage.part().map(|part| CycleId::new(part.scope, part.stamp)))
    }

    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        self.view_as(&self.layout)
    }

    /// It seen through another layout.
    #[inline(always)]
    pub(crate) fn view_as<'a>(&self, layout: &'a Layout) -> View<'a> {
        output_view(&self.storage, self.dtype, layout)
    }
}

/// An operand of a pinned array, or of one that was taken over, whose buffer is at hand.
#[inline(always)]
pub(crate) fn view_of<'a>(buffer: BufferRef<'_>, dtype: DType, layout: &'a Layout) -> View<'a> {
    View::new(buffer.span(), dtype, layout)
}

/// Bytes that nobody else knows as kernels see them: a result's, or those of an array that was taken over.
#[inline(always)]
pub(crate) fn output_view<'a>(storage: &Storage, dtype: DType, layout: &'a Layout) -> View<'a> {
    View::new(storage.buffer().span(), dtype, layout)
}

/// A contiguous result. In line: its layout is made where it stays.
#[inline(always)]
pub(crate) fn output(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    dtype: DType,
    shape: &Shape,
    zeroed: bool,
) -> Result<Output> {
    let storage = bytes_of_output(context, op, device, dtype, shape, zeroed)?;
    Ok(Output { storage, layout: Layout::contiguous(*shape), dtype })
}

/// As [`output`], of bytes that no array is made with: they are for this call alone, or for a gradient.
#[inline(never)]
pub(crate) fn aside(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    dtype: DType,
    shape: &Shape,
) -> Result<Output> {
    let storage = allocate_for::<false>(context, op, device, (dtype, shape), false, || first_budget(context))?;
    Ok(Output { storage, layout: Layout::contiguous(*shape), dtype })
}

/// As [`allocate`], whose code is here once.
#[inline(never)]
fn bytes_of_output(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    dtype: DType,
    shape: &Shape,
    zeroed: bool,
) -> Result<Storage> {
    allocate(context, op, device, dtype, shape, zeroed)
}

/// The layout of a contiguous result: that of an operand, if its elements lie so from the first of its buffer on.
#[inline(always)]
pub(crate) fn dense<'a>(like: &'a Layout, own: &'a mut Option<Layout>) -> &'a Layout {
    if like.offset() == 0 && like.is_contiguous() { like } else { own.insert(Layout::contiguous(*like.shape())) }
}

/// Bytes for a contiguous result.
#[inline(always)]
pub(crate) fn allocate(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    dtype: DType,
    shape: &Shape,
    zeroed: bool,
) -> Result<Storage> {
    allocate_for::<true>(context, op, device, (dtype, shape), zeroed, || first_budget(context))
}

/// As [`allocate`], charged to the budget that `budget` tells, where budgets are in use; `ARRAY`: for an array, which
/// may be counted at once.
#[inline(always)]
pub(crate) fn allocate_for<const ARRAY: bool>(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    (dtype, shape): (DType, &Shape),
    zeroed: bool,
    budget: impl Fn() -> u32,
) -> Result<Storage> {
    let bytes = shape.bytes(op, dtype.size_in_bytes())?;
    let payer = if budget::is_in_use() { payer(context, device, &budget) } else { 0 };
    let at_once = if payer == 0 {
        on_host(context, device, bytes, zeroed)
    } else {
        charged_on_host(context, device, (bytes, zeroed), payer, ARRAY)
    };
    if let Some(storage) = at_once {
        return Ok(storage);
    }
    storage_for(context, op, device, (bytes, zeroed), payer)
}

/// Bytes of the host that this thread has in stock.
#[inline(always)]
fn on_host(context: &ThreadContext, device: &Device, bytes: usize, zeroed: bool) -> Option<Storage> {
    if !matches!(device, Device::Cpu) || bytes == 0 {
        return None;
    }
    let mut storage = Storage::on_host(context, bytes)?;
    if zeroed {
        storage.own_buffer()?.on_host()?.fill(0);
    }
    Some(storage)
}

/// As [`on_host`], charged to a budget that grants them without more ado.
#[inline(never)]
fn charged_on_host(
    context: &ThreadContext,
    device: &Device,
    (bytes, zeroed): (usize, bool),
    payer: u32,
    for_array: bool,
) -> Option<Storage> {
    // Of larger ones there is none in stock.
    if !device.is_cpu() || !(1..=SMALL_MAX).contains(&bytes) {
        return None;
    }
    // Steps of a composed operation are their handles'.
    let with_array = budget::charge_at_once(payer, bytes as u64, for_array && composite_site().is_none())?;
    match on_host(context, device, bytes, zeroed) {
        // A workspace pays for its own.
        Some(storage) if !storage.is_made_in_arena() => {
            storage.charged_to(payer, with_array);
            Some(storage)
        }
        storage => {
            budget::revoke_at_once(payer, bytes as u64, with_array);
            storage
        }
    }
}

/// Bytes of any device, wherever they come from; `payer` is the budget that they are charged to.
/// Invariant I10 (design.md).
#[inline(never)]
fn storage_for(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    (bytes, zeroed): (usize, bool),
    payer: u32,
) -> Result<Storage> {
    let mut above_soft = false;
    let storage = match charged_storage(context, op, device, (bytes, zeroed), payer, &mut above_soft) {
        Ok(storage) => storage,
        Err(why) => {
            let cycle = context.workspaces.cycle_of(device);
            let mut attempt = || charged_storage(context, op, device, (bytes, zeroed), payer, &mut above_soft);
            let storage = pressure::recover(context, (op, device, bytes), why, &mut attempt)?;
            goes_on(op, cycle)?;
            storage
        }
    };
    // A workspace pays for its own, and nobody counts its arrays with those of managers.
    for (payer, more) in [(if above_soft { payer } else { 0 }, 1), (context.workspaces.above_soft.take(), 0)] {
        if payer != 0 {
            let cycle = context.workspaces.cycle_of(device);
            pressure::relieve(context, device, bytes, (payer, more));
            goes_on(op, cycle)?;
        }
    }
    Ok(storage)
}

/// That the program's code, which ran just now, did not end the cycle that a call takes its bytes of: what it has of
/// them is no array yet, which would hold the block, and may be another one's by now, or become one's with the next
/// request, where it was a ring's that was left. Invariant I13 (design.md).
#[cold]
#[inline(never)]
fn goes_on(op: &'static str, cycle: Option<CycleId>) -> Result<()> {
    let Some(cycle) = cycle.filter(|&cycle| !validity::is_newest(cycle)) else { return Ok(()) };
    let why = "its cycle ended within the call, and with it what the call had of it; code that it runs must not end it";
    Err(Error::workspace(op, &validity::about(cycle).workspace, why))
}

/// As [`storage_for`], without a look for more. In the place of its caller, which would read the answer again while it
/// is still being written.
#[inline(always)]
fn charged_storage(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    (bytes, zeroed): (usize, bool),
    payer: u32,
    above_soft: &mut bool,
) -> std::result::Result<Storage, NoBytes> {
    if payer == 0 {
        return storage_at_once(context, op, device, bytes, zeroed);
    }
    if let Some(refusal) = budget::full(payer) {
        return Err(NoBytes::Budget(refusal));
    }
    let charge = budget::charge(payer, bytes as u64).map_err(NoBytes::Budget)?;
    let storage = storage_at_once(context, op, device, bytes, zeroed);
    match &storage {
        Ok(storage) if storage.part().is_none() => {
            let is_above = charge.is_above_soft();
            let payer = charge.settle();
            *above_soft = is_above | budget::passes_soft_arrays(payer, 1);
            if payer != 0 {
                storage.charged_to(payer, false);
            }
        }
        // A workspace pays for its own.
        _ => charge.revoke(),
    }
    storage
}

/// As [`charged_storage`], charged to nobody.
#[inline(always)]
fn storage_at_once(
    context: &ThreadContext,
    op: &'static str,
    device: &Device,
    bytes: usize,
    zeroed: bool,
) -> std::result::Result<Storage, NoBytes> {
    if let Some(storage) = on_host(context, device, bytes, zeroed) {
        return Ok(storage);
    }
    // What a captured section writes must not lie where the next cycle does.
    let workspace = || if is_capturing() { None } else { context.workspaces.take(op, device, bytes) };
    let (buffer, mark) = workspace().unwrap_or_else(|| Ok((device.alloc(bytes, zeroed)?, UNPLANNED)))?;
    let is_dirty = zeroed && buffer.part().is_some();
    let mut storage = Storage::new(context, op, buffer, mark).map_err(NoBytes::Failed)?;
    // The storage's end tells the workspace, also if this fails.
    if is_dirty && let Some(bytes) = storage.own_buffer() {
        bytes.zero().map_err(NoBytes::Failed)?;
    }
    Ok(storage)
}

/// The budget that bytes for a new array are charged to: that of its owner. Steps of a composed operation charge that
/// of the owner of its result.
#[cold]
#[inline(never)]
fn payer(context: &ThreadContext, device: &Device, budget: &dyn Fn() -> u32) -> u32 {
    if context.workspaces.takes(device) && !is_capturing() {
        return 0;
    }
    if composite_site().is_none() {
        return budget();
    }
    // Asked for each step: its manager may be closed meanwhile, and the number be another's.
    composed::noted_owner().map_or(0, |owner| budget_of(&owner))
}

/// The number of the budget of the first operand's owner.
#[cold]
fn first_budget(context: &ThreadContext) -> u32 {
    registry::first_operand(context).map_or(0, |owner| budget_of(&owner))
}

/// The number of an owner's budget. By reference: who just wrote the owner is not waited for.
#[inline]
pub(crate) fn budget_of(owner: &Owner) -> u32 {
    match owner {
        Owner::Manager(id) => id.payer(),
        Owner::Handles | Owner::Cycle(_) => 0,
    }
}

/// Results that are made one after the other. If one is refused those before it are closed: with the switch off their
/// manager would keep them. More than there is memory for are refused before the first is made.
pub(crate) fn all_or_none(call: Call, results: impl Iterator<Item = Result<Proxy>>) -> Result<Vec<Proxy>> {
    let mut all = call.named(heap::room(call.op, results.size_hint().1.unwrap_or(0)))?;
    for result in results {
        match result {
            Ok(result) => all.push(result),
            Err(error) => {
                all.iter().for_each(Proxy::close);
                return Err(error);
            }
        }
    }
    Ok(all)
}

/// As [`all_or_none`], of two.
pub(crate) fn both_or_none(
    first: Result<Proxy>,
    second: impl FnOnce(&Proxy) -> Result<Proxy>,
) -> Result<(Proxy, Proxy)> {
    let first = first?;
    match second(&first) {
        Ok(second) => Ok((first, second)),
        Err(error) => {
            first.close();
            Err(error)
        }
    }
}

/// Looks for room where the budget of an owner has none for one more array. Who takes bytes for it has looked before,
/// but not a view, a second result, or the result of a composed operation.
#[inline(always)]
fn room_for_array(context: &ThreadContext, op: &'static str, storage: &Storage, owner: &Owner) -> Result<()> {
    if budget::is_in_use() && is_full(storage, owner) {
        return look_for_room(context, op, storage.buffer().device(), owner);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn is_full(storage: &Storage, owner: &Owner) -> bool {
    let payer = budget_of(owner);
    // No manager gets what lies in a workspace.
    !storage.is_counted_ahead(payer) && budget::full(payer).is_some() && storage.part().is_none()
}

#[cold]
#[inline(never)]
fn look_for_room(context: &ThreadContext, op: &'static str, device: &Device, owner: &Owner) -> Result<()> {
    let mut attempt = || budget::full(budget_of(owner)).map_or(Ok(()), |refusal| Err(NoBytes::Budget(refusal)));
    match attempt() {
        Ok(()) => Ok(()),
        Err(why) => pressure::recover(context, (op, device, 1), why, &mut attempt),
    }
}

/// Submits a kernel whose sources are pinned (or owned by the caller) and whose destination is fresh, or held for
/// writing: with operands that [`view`] and its relatives here made, and none that overlaps a destination.
#[inline]
pub(crate) fn launch(device: &Device, kernel: &Kernel<View<'_>>) -> Result<()> {
    match device {
        Device::Cpu => run_on_host(kernel),
        device => device.submit(kernel),
    }
}

/// Makes an array of a fresh result, with the owner of an operand.
#[inline(always)]
pub(crate) fn adopt(
    call: Call,
    context: &ThreadContext,
    Output { storage, layout, dtype }: Output,
    first: &Proxy,
    node: Tracked,
) -> Result<Proxy> {
    // Part by part, as in `registry::create`.
    adopt_fresh(call, context, (dtype, &layout), storage, first, node)
}

#[inline(never)]
fn adopt_fresh(
    call: Call,
    context: &ThreadContext,
    (dtype, layout): (DType, &Layout),
    storage: Storage,
    first: &Proxy,
    node: Tracked,
) -> Result<Proxy> {
    adopt_parts(call, context, Parts { dtype, layout, storage, node }, first)
}

/// Makes an array of its parts, with the owner of an operand: in the place where small operations are made, since the
/// parts would be written and read again on the way to another.
#[inline(always)]
pub(crate) fn adopt_parts(call: Call, context: &ThreadContext, parts: Parts<'_>, first: &Proxy) -> Result<Proxy> {
    let (owner, site) = match composite_site() {
        None => (first.owner(call.op)?, call.site),
        Some(site) => (Owner::Handles, site),
    };
    room_for_array(context, call.op, &parts.storage, &owner)?;
    match registry::create(context, call.op, parts, &owner, site) {
        Ok(key) => Ok(Proxy::from_key(key)),
        Err(why) => Err(why.error(call.op, |refused| refusal(call.op, first.key(), owner, refused))),
    }
}

/// Makes an array of its parts, with the owner that the first operand has, or had.
#[inline(never)]
pub(crate) fn adopt_for(
    call: Call,
    context: &ThreadContext,
    parts: Parts<'_>,
    (first, owner): (Key, Owner),
) -> Result<Proxy> {
    let (owner, site) = match composite_site() {
        None => (owner, call.site),
        Some(site) => (Owner::Handles, site),
    };
    match registry::create(context, call.op, parts, &owner, site) {
        Ok(key) => Ok(Proxy::from_key(key)),
        Err(why) => Err(why.error(call.op, |refused| refusal(call.op, first, owner, refused))),
    }
}

/// A part of an operation, by reference: what surrounds it is code once, and not for each part.
pub(crate) type Once<'f, R> = &'f mut dyn FnMut() -> Result<R>;

/// `f` as an [`Once`].
pub(crate) fn once<R>(f: impl FnOnce() -> Result<R>) -> impl FnMut() -> Result<R> {
    let mut f = Some(f);
    move || match f.take() {
        Some(f) => f(),
        None => Err(twice()),
    }
}

#[cold]
fn twice() -> Error {
    Error::msg("a part of an operation runs once")
}

/// An operation composed of others. What they make on the way belongs to its handles, and is gone when `f` ends,
/// whatever the switch says; only the result gets the owner of `first`. All of it was made at `site`.
pub(crate) fn compose(call: Call, first: &Proxy, f: Once<'_, Proxy>) -> Result<Proxy> {
    note_owner(|| first.owner(call.op).ok());
    let result = in_composite(call.site, f)?;
    given(call.op, result, (first.key(), first.owner(call.op)?))
}

/// As [`compose`], whose first operand, with this owner, `f` may use up.
pub(crate) fn compose_for(call: Call, (first, owner): (Key, Owner), f: Once<'_, Proxy>) -> Result<Proxy> {
    note_owner(|| Some(owner));
    let result = in_composite(call.site, f)?;
    given(call.op, result, (first, owner))
}

/// The result of steps, in the hands of the owner of the first operand.
fn given(op: &'static str, result: Proxy, (first, owner): (Key, Owner)) -> Result<Proxy> {
    // In a workspace nothing is linked to a manager, as in `view.rs`.
    let in_workspace = || with_context(|context| context.workspaces.takes(result.device()));
    if composite_site().is_some()
        || !matches!(owner, Owner::Manager(_))
        || result.owner(op)? != Owner::Handles
        || in_workspace()
    {
        return Ok(result);
    }
    give(op, result, owner, |refused| refusal(op, first, owner, refused))
}

/// Gives the result of a composed operation to its owner.
fn give(op: &'static str, result: Proxy, owner: Owner, refusal: impl FnOnce(Refused) -> Error) -> Result<Proxy> {
    with_context(|context| {
        if budget::is_in_use() {
            result.with_pinned(op, |array| room_for_array(context, op, array.storage, &owner))??;
        }
        result.give_to(context, op, owner, refusal)
    })
}

/// As [`compose`], with several results.
pub(crate) fn compose_all<const N: usize>(call: Call, first: &Proxy, f: Once<'_, [Proxy; N]>) -> Result<[Proxy; N]> {
    note_owner(|| first.owner(call.op).ok());
    let mut results = in_composite(call.site, f)?;
    let is_free = |result: &Proxy| matches!(result.owner(call.op), Ok(Owner::Handles));
    let mut given = [false; N];
    for at in 0..N {
        let was_free = is_free(&results[at]);
        match compose(call, first, &mut || Ok(results[at].clone())) {
            Ok(result) => {
                given[at] = was_free && !is_free(&result);
                results[at] = result;
            }
            Err(error) => {
                // The others end with their handles, or were somebody's before, as operands are.
                results.iter().zip(given).filter(|(_, given)| *given).for_each(|(result, _)| result.close());
                return Err(error);
            }
        }
    }
    Ok(results)
}

/// As [`compose`], with a result for a place that the caller named.
pub(crate) fn compose_at(call: Call, at: &dyn Place, f: Once<'_, Proxy>) -> Result<Proxy> {
    note_owner(|| Some(at.owner()));
    let result = in_composite(call.site, f)?;
    if result.is_attached() {
        // As in `place`.
        return if at.takes_arrays() { Ok(result) } else { Err(at.refusal(call.op, Refused::Closed)) };
    }
    give(call.op, result, at.owner(), |refused| at.refusal(call.op, refused))
}

/// Runs `f` as part of a call that was made at `site`, which an error names; what it makes belongs to its handles.
pub(crate) fn in_composite<R>(site: Site, f: Once<'_, R>) -> Result<R> {
    let _restore = composed::begin(site);
    named(site, f())
}

/// Makes what is there to be kept (weights, state of layers and optimisers, caches) for a call at `site`: outside of
/// whatever cycle of a workspace is open.
pub(crate) fn kept<R>(site: Site, f: impl FnOnce() -> Result<R>) -> Result<R> {
    workspace::outside(|| in_composite(site, &mut once(f)))
}

#[cold]
fn refusal(op: &'static str, first: Key, owner: Owner, refused: Refused) -> Error {
    let manager = match owner {
        Owner::Manager(id) => NdManager::of(id),
        Owner::Handles | Owner::Cycle(_) => None,
    };
    match manager {
        Some(manager) => manager.refusal(op, refused),
        // The manager closed while the operation ran, and the operand with it.
        None => registry::stale(op, first),
    }
}

/// Makes an array in a place that the caller named. In line: as [`adopt_parts`].
#[inline(always)]
pub(crate) fn place(
    call: Call,
    context: &ThreadContext,
    (dtype, layout): (DType, &Layout),
    storage: Storage,
    (place, owner): (&dyn Place, &Owner),
) -> Result<Proxy> {
    // A workspace that takes its arrays does not open a closed manager again. It is linked in none of the manager's
    // lists, so none is taken from the thread that has it to itself.
    if storage.part().is_some() && !place.takes_arrays() {
        return Err(place.refusal(call.op, Refused::Closed));
    }
    room_for_array(context, call.op, &storage, owner)?;
    let parts = Parts { dtype, layout, storage, node: None };
    match registry::create(context, call.op, parts, owner, composite_site().unwrap_or(call.site)) {
        Ok(key) => Ok(Proxy::from_key(key)),
        Err(why) => Err(why.error(call.op, |refused| place.refusal(call.op, refused))),
    }
}

/// The gradient node of a result, if gradients are wanted and any operand has one. `vjp` is called only then; it
/// returns what turns the gradient of the result into those of the operands.
#[inline(always)]
pub(crate) fn record<F>(operands: &[&ArrayRef<'_>], vjp: impl FnOnce() -> F) -> Tracked
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    if !is_recorded(operands) {
        return None;
    }
    Some(autograd::operation(nodes_of(operands), vjp()))
}

/// Whether gradients are wanted and any operand has a node. Apart from `record`, of which there is one for each
/// derivative.
#[inline(always)]
fn is_recorded(operands: &[&ArrayRef<'_>]) -> bool {
    operands.iter().any(|operand| operand.node.is_some()) && autograd::is_grad_enabled()
}

/// The nodes of up to three operands.
fn nodes_of(operands: &[&ArrayRef<'_>]) -> [Tracked; 3] {
    let mut nodes = [const { None }; 3];
    for (node, operand) in nodes.iter_mut().zip(operands) {
        node.clone_from(operand.node);
    }
    nodes
}

/// A function of one operand to a fresh result of the same shape.
#[inline]
pub(crate) fn map1<F>(
    call: Call,
    src: &Proxy,
    dtype: impl Fn(DType) -> Result<DType>,
    map: Map,
    vjp: impl Fn(&Pinned<'_>, &OutputParts<'_>) -> F,
) -> Result<Proxy>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    enter(call, |context| {
        let pins = pin(context, call.op, [src])?;
        let [a] = pins.arrays();
        let (dtype, mut other) = (dtype(a.dtype)?, None);
        let layout = dense(a.layout, &mut other);
        let own = a.storage.buffer();
        let mut storage = allocate(context, call.op, own.device(), dtype, layout.shape(), false)?;
        if dtype != a.dtype || !map_on_the_spot(map, &a, &mut storage) {
            let (src, dst) = (view_of(own, a.dtype, a.layout), output_view(&storage, dtype, layout));
            launch(own.device(), &Kernel::Map { map, src, dst })?;
        }
        let node = record(&[&a], || vjp(&a, &OutputParts { storage: &storage, layout }));
        adopt_parts(call, context, Parts { dtype, layout, storage, node }, src)
    })
}

/// Computes a few dense numbers of the host without a kernel. `false` if the operand is another.
#[inline(never)]
pub(crate) fn map_on_the_spot(map: Map, a: &Pinned<'_>, out: &mut Storage) -> bool {
    let Some(result) = few_bytes(out, a.dtype) else { return false };
    dense_part(a, a.layout, result.len()).is_some_and(|src| few::map(map, a.dtype, src, result))
}

/// The bytes of a result on the host that has elements, but few.
#[inline(always)]
pub(crate) fn few_bytes(out: &mut Storage, dtype: DType) -> Option<&mut [u8]> {
    let most = FEW * dtype.size_in_bytes();
    out.own_buffer().and_then(BufferMut::on_host).filter(|result| (1..=most).contains(&result.len()))
}

/// The bytes of an operand on the host, so many, if its elements follow each other there.
#[inline(always)]
pub(crate) fn dense_part<'p>(array: &Pinned<'p>, layout: &Layout, bytes: usize) -> Option<&'p [u8]> {
    let start = layout.offset() * array.dtype.size_in_bytes();
    array.host_bytes().filter(|_| layout.is_contiguous())?.get(start..start.checked_add(bytes)?)
}

/// What a derivative may save of the result.
pub(crate) struct OutputParts<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) layout: &'a Layout,
}
