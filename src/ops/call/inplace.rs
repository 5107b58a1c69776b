//! Changes in place: the operation excludes every other use of the bytes while it writes.

use std::cell::OnceCell;

use crate::array::autograd;
use crate::base::{
    call::Call,
    error::{Error, Result},
    shape::Shape,
    sync::wait_turn,
};
use crate::device::{
    Device,
    kernel::{BinaryOp, Kernel, Map, View},
};
use crate::memory::{
    exit,
    proxy::Proxy,
    registry::{self, ArrayRef, OwnedArray, Pinned},
};
use crate::ops::call::{
    check,
    exec::{adopt, device, enter, launch, named, output, pin, view},
};

/// For errors of arrays that fitted before they were announced.
pub(crate) const EXCHANGED: &str = "one of them was exchanged meanwhile";
/// Attempts to get the exclusive right to a storage before giving up.
const ATTEMPTS: u32 = 1 << 16;

/// Submits to the device of an array what writes the first view, or changes it in place, and reads the others.
pub(crate) type InPlace<'k, const N: usize> = dyn for<'v> Fn(&Device, View<'v>, [View<'v>; N]) -> Result<()> + 'k;

/// What the kernel asks of the array to be changed and of the others. It is asked where all are announced: what was
/// found before may be another array's by then (`intern`).
pub(crate) type Fits<'k, const N: usize> = dyn Fn(&ArrayRef<'_>, &[Pinned<'_>; N]) -> Result<()> + 'k;

/// Changes `dst` in place, and reads `N` others.
///
/// A source that shares bytes with `dst` is copied first. Fails without a change if the bytes are in use by a call
/// further up on this thread, or by a closure elsewhere.
pub(crate) fn into<const N: usize>(
    call: Call,
    dst: &Proxy,
    sources: [&Proxy; N],
    fits: &Fits<'_, N>,
    change: &InPlace<'_, N>,
) -> Result<()> {
    let copies = [const { OnceCell::new() }; N];
    let mut operands = sources;
    let mut turns = 0;
    loop {
        match attempt(call, dst, operands, fits, change)? {
            Attempt::Done => return Ok(()),
            Attempt::Shares(i) => {
                let copy = named(call.site, autograd::no_grad(|| sources[i].aside()?.copy()))?;
                operands[i] = copies[i].get_or_init(|| copy);
            }
            Attempt::Busy if turns > ATTEMPTS => {
                let array = registry::describe(dst.key());
                return Err(Error::in_use(call, array, "operations on other threads that do not end"));
            }
            Attempt::Busy => wait_turn(&mut turns),
        }
    }
}

/// What came of an attempt to change an array.
enum Attempt {
    Done,
    /// Another thread uses the bytes and will not for long.
    Busy,
    /// This source has the bytes that are to be changed.
    Shares(usize),
}

fn attempt<const N: usize>(
    call: Call,
    dst: &Proxy,
    sources: [&Proxy; N],
    fits: &Fits<'_, N>,
    change: &InPlace<'_, N>,
) -> Result<Attempt> {
    enter(call, |context| {
        let pins = pin(context, call.op, [dst])?;
        let [d] = pins.arrays();
        check_target(call.op, dst, &d)?;
        let pins = registry::pin_now(context, call.op, sources.map(Proxy::key));
        // Which of all operands it is that was closed.
        let pins = pins.or_else(|error| check::open_from(call, &sources, 1).and(Err(error)))?;
        let Some(pins) = pins else { return Ok(Attempt::Busy) };
        let pins = pins.arrays();
        for source in &pins {
            check::same_device(call, device(&d), device(source))?;
        }
        fits(&d, &pins)?;
        if let Some(shares) = pins.iter().position(|source| source.storage.id() == d.storage.id()) {
            return Ok(Attempt::Shares(shares));
        }
        let Some(_writing) = d.storage.write(context, call.op, &d)? else { return Ok(Attempt::Busy) };
        change(device(&d), view(&d), pins.each_ref().map(view))?;
        Ok(Attempt::Done)
    })
}

/// Whether an array may be changed through a detached view of it, which says nothing of its gradient.
pub(crate) fn writable(array: &Proxy, op: &'static str) -> Result<()> {
    if array.track_op() && autograd::is_grad_enabled() {
        return Err(Error::Tracked { op, array: registry::describe(array.key()), site: None });
    }
    Ok(())
}

fn check_target(name: &'static str, dst: &Proxy, d: &ArrayRef<'_>) -> Result<()> {
    if autograd::is_frozen(d) {
        return Err(Error::Tracked { op: name, array: registry::describe(dst.key()), site: None });
    }
    if d.layout.repeats() {
        return Err(Error::Overlap { op: name, shape: d.layout.dims().to_vec(), site: None });
    }
    Ok(())
}

/// In-place arithmetic with another array, which is broadcast to this one's shape.
pub(crate) fn assign(call: Call, dst: &Proxy, rhs: &Proxy, op: BinaryOp) -> Result<()> {
    // What the handles say; asked again where both are announced. Of a closed array it is the close that is told.
    let (shape, dtype) = (dst.shape(), dst.dtype());
    let refuse = |error: Error| check::open(call, &[dst, rhs]).and(Err(error));
    if dtype != rhs.dtype() {
        return refuse(Error::dtype_mismatch(call, dtype, rhs.dtype()));
    }
    check::domain(call, op.domain(), dtype).map(drop).or_else(refuse)?;
    let expanded;
    let rhs = if shape == rhs.shape() {
        rhs
    } else {
        check::open(call, &[dst, rhs])?;
        expanded = autograd::no_grad(|| rhs.aside()?.broadcast_as(*shape))
            .map_err(|_| Error::shapes(call, shape, rhs.shape(), "the right side does not broadcast to the left"))?;
        &expanded
    };
    let fits = |d: &ArrayRef<'_>, [r]: &[Pinned<'_>; 1]| {
        check::same_dtype(call, d, r)?;
        check::domain(call, op.domain(), d.dtype)?;
        check::same_shape(call, d.layout.shape(), r.layout.shape(), EXCHANGED)
    };
    into(call, dst, [rhs], &fits, &|device, dst, [rhs]| launch(device, &Kernel::BinaryAssign { op, dst, rhs }))
}

/// `x / number`, in place, of floats.
pub(crate) fn divide_in_place(call: Call, x: &Proxy, number: f64) -> Result<Proxy> {
    let fits = |d: &ArrayRef<'_>, []: &[Pinned<'_>; 0]| check::float(call, d.dtype).map(drop);
    let map = Map::Divide { number, first: false };
    into(call, x, [], &fits, &|device, dst, []| launch(device, &Kernel::MapAssign { map, dst }))?;
    Ok(x.clone())
}

/// # In place: numbers and copies
impl Proxy {
    /// `x * mul + add`, in place.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn affine_(&self, mul: f64, add: f64) -> Result<Proxy> {
        let fits = |d: &ArrayRef<'_>, []: &[Pinned<'_>; 0]| check::number("affine_", d.dtype).map(drop);
        let map = Map::Affine { mul, add };
        into(Call::here("affine_"), self, [], &fits, &|device, dst, []| {
            launch(device, &Kernel::MapAssign { map, dst })
        })?;
        Ok(self.clone())
    }

    /// Every element set to one value.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn fill_(&self, value: f64) -> Result<Proxy> {
        into(Call::here("fill_"), self, [], &|_, _| Ok(()), &|device, dst, []| {
            launch(device, &Kernel::Fill { dst, value })
        })?;
        Ok(self.clone())
    }

    /// Every element set to 0.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn zero_(&self) -> Result<Proxy> {
        self.fill_(0.0).map_err(|error| error.of("zero_"))
    }

    /// The elements of an array of the same shape and dtype written into this one.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[doc(alias("assign", "copyTo"))]
    #[track_caller]
    pub fn copy_(&self, src: &Proxy) -> Result<()> {
        let call = Call::here("copy_");
        let refuse = |error: Error| check::open(call, &[self, src]).and(Err(error));
        check::same_shape(call, self.shape(), src.shape(), "copy_ wants equal shapes").or_else(refuse)?;
        if self.dtype() != src.dtype() {
            return refuse(Error::dtype_mismatch(call, self.dtype(), src.dtype()));
        }
        let fits = |d: &ArrayRef<'_>, [s]: &[Pinned<'_>; 1]| {
            check::same_dtype(call, d, s)?;
            check::same_shape(call, d.layout.shape(), s.layout.shape(), EXCHANGED)
        };
        into(call, self, [src], &fits, &|device, dst, [src]| launch(device, &Kernel::copy(src, dst)))
    }
}

/// # Memory: the content of another array
impl Proxy {
    /// Gives this array the content of another (shape, dtype, bytes and all), for all its handles, and closes the
    /// other. This array keeps its key, its name and its owner; bytes of a workspace's cycle that it does not end with
    /// it holds beyond that, which keeps their block from the next cycles.
    ///
    /// # Errors
    /// [`Error::StaleArray`] of either; [`Error::InUse`]. Nothing is changed then.
    #[track_caller]
    pub fn intern(&self, replacement: Proxy) -> Result<()> {
        let call = Call::here("intern");
        if self.is_same(&replacement) {
            return Ok(());
        }
        check::open(call, &[self, &replacement])?;
        enter(call, |context| {
            let owned = {
                let pins = pin(context, call.op, [&replacement])?;
                let [r] = pins.arrays();
                let own = registry::cycle_of(self.key());
                let node = r.node.clone().map(|node| exit::placed(context, (call.op, call.site), node, own));
                OwnedArray { dtype: r.dtype, layout: *r.layout, storage: r.storage.clone(), node }
            };
            registry::exchange(context, call.op, self.key(), owned).map(drop)
        })?;
        replacement.close();
        Ok(())
    }
}

/// One value in the shape, dtype, device and owner of another array.
pub(crate) fn like(call: Call, array: &Proxy, value: f64) -> Result<Proxy> {
    let shape = *array.shape();
    filled_beside(call, array, &shape, value)
}

/// One value in a shape, with the dtype, device and owner of another array.
pub(crate) fn filled_beside(call: Call, array: &Proxy, shape: &Shape, value: f64) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [array])?;
        let [a] = pins.arrays();
        // By its bits: those of -0 are not all zero.
        let is_zero = value.to_bits() == 0;
        let out = output(context, call.op, device(&a), a.dtype, shape, is_zero)?;
        if !is_zero {
            launch(device(&a), &Kernel::Fill { dst: out.view(), value })?;
        }
        adopt(call, context, out, array, None)
    })
}
