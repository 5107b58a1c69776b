//! Padding along several axes.

use crate::base::{call::Call, error::Result, heap, layout::Layout, shape::Shape};
use crate::device::kernel::Kernel;
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, wrong_shape},
        exec::{adopt, device, enter, launch, output, pin, record, view},
    },
    elementwise::unary::one,
};

/// What stands around an array that was padded.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A number.
    Constant(f64),
    /// The array in a mirror that stands on its first and its last entry, which are not repeated.
    Reflect,
    /// Its first and its last entry.
    Replicate,
    /// The array again, as if its ends met.
    Circular,
}

const OP: &str = "pad";

/// The part of a padded layout that holds the array.
fn inner(padded: Layout, pads: &[(usize, usize)], shape: &Shape) -> Result<Layout> {
    let lead = shape.rank() - pads.len();
    pads.iter()
        .enumerate()
        .try_fold(padded, |layout, (i, &(left, _))| layout.narrow(lead + i, left, shape.dims()[lead + i]))
}

/// `to` is the padded shape of `seen`, by which it was asked for.
fn constant(call: Call, (x, seen): (&Proxy, &Shape), pads: &[(usize, usize)], to: Shape, value: f64) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [x])?;
        let [a] = pins.arrays();
        check::seen(call, x, seen, a.layout)?;
        let shape = *seen;
        let out = output(context, call.op, device(&a), a.dtype, &to, false)?;
        let place = inner(out.layout, pads, &shape)?;
        launch(device(&a), &Kernel::Fill { dst: out.view(), value })?;
        launch(device(&a), &Kernel::copy(view(&a), out.view_as(&place)))?;
        let lefts: Vec<usize> = pads.iter().map(|pad| pad.0).collect();
        let node = record(&[&a], || {
            move |grad: &Proxy, _: [bool; 3]| {
                let lead = shape.rank() - lefts.len();
                let mut part = grad.clone();
                for (i, &left) in lefts.iter().enumerate() {
                    part = part.narrow(lead + i, left, shape.dims()[lead + i])?;
                }
                Ok(one(part))
            }
        });
        adopt(call, context, out, x, node)
    })
}

/// Which entry of an axis of `size` stands at each place of the padded one.
fn sources(mode: PadMode, size: usize, (left, right): (usize, usize)) -> Result<Vec<i64>> {
    let mut places: Vec<i64> = heap::room(OP, left + size + right)?;
    let (size, left) = (size as i64, left as i64);
    let of = |place: i64| match mode {
        PadMode::Replicate => place.clamp(0, size - 1),
        PadMode::Circular => place.rem_euclid(size),
        _ if place < 0 => -place,
        _ if place >= size => 2 * (size - 1) - place,
        _ => place,
    };
    places.extend((-left..size + right as i64).map(of));
    Ok(places)
}

/// # Shape: padding
impl Proxy {
    #[track_caller]
    pub(crate) fn ext_pad(&self, pads: &[(usize, usize)], mode: PadMode) -> Result<Proxy> {
        let call = Call::here(OP);
        let shape = *self.shape();
        let Some(lead) = shape.rank().checked_sub(pads.len()) else {
            return argument(call, "pads", format!("{pads:?}"), "at most one pair for each axis");
        };
        let mut to = shape;
        for (i, &(left, right)) in pads.iter().enumerate() {
            to = to.with_dim(lead + i, shape.dims()[lead + i].saturating_add(left).saturating_add(right));
        }
        to.check(call, self.dtype().size_in_bytes())?;
        if let PadMode::Constant(value) = mode {
            return constant(call, (self, &shape), pads, to, value);
        }
        composite(call, self, &mut || {
            let mut padded = check::same(OP, self)?;
            for (i, &pad) in pads.iter().enumerate().filter(|(_, pad)| **pad != (0, 0)) {
                let size = shape.dims()[lead + i];
                let least = match mode {
                    PadMode::Reflect => pad.0.max(pad.1) + 1,
                    PadMode::Circular => pad.0.max(pad.1),
                    _ => 1,
                };
                if size < least {
                    return wrong_shape(OP, self, &format!("at least {least} entries along axis {}", lead + i));
                }
                let ids = sources(mode, size, pad)?;
                let count = ids.len();
                let ids = Proxy::from_vec(ids, count, self.device())?;
                padded = padded.index_select(&ids, lead + i)?;
            }
            Ok(padded)
        })
    }
}
