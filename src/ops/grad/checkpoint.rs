//! Computing a part of the forward pass again in the backward one, instead of keeping what its gradients need.

use crate::array::autograd::{
    Saved, dynamic_operation, handle_owned, is_grad_enabled, leaf, no_grad, recording, tracked,
};
use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::memory::{
    node::forget_kept,
    proxy::Proxy,
    registry::{self, Parts, Tracked},
};
use crate::ops::{
    call::{
        check,
        compose::{argument, composite},
        exec::{adopt_parts, enter, once, pin},
    },
    create::random,
    grad::backward::walk,
};

/// `f(inputs)` without keeping anything between: its gradients compute it again, with the same random numbers.
///
/// Gradients go to the inputs, and to every variable that `f` uses. What is kept are the inputs; what it costs is a
/// second forward pass of `f`. The result belongs to the owner of the first input, and is recorded also if nothing in
/// `f` turns out to be a variable.
///
/// `f` is called once now and once for each `backward`, and must compute the same each time; of the common stream of
/// random numbers it gets the same ones again ([`Device::set_seed`](crate::Device::set_seed)). Numbers that other
/// threads draw from the common stream during the first call may be the same ones.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) without inputs; those of `f`; in `backward`
/// [`Error::ChangedSinceSaved`](crate::Error::ChangedSinceSaved) if an input was changed in place meanwhile.
///
/// ```
/// # use ndgc::{Device, Tensor, Var, checkpoint};
/// let w = Var::from_vec(vec![2f32, 3.], 2, &Device::Cpu)?;
/// let x = Var::from_vec(vec![1f32, 2.], 2, &Device::Cpu)?;
/// let inside = w.clone();
/// let y = checkpoint(move |x: &[Tensor]| x[0].mul(&inside)?.sqr(), &[&x])?;
/// let grads = y.sum_all()?.backward()?;
/// assert_eq!(grads.get(&w).unwrap().to_vec1::<f32>()?, [4., 24.]); // 2 w x^2
/// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [8., 36.]); // 2 x w^2
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<F>(f: F, inputs: &[&Proxy]) -> Result<Proxy>
where
    F: Fn(&[Proxy]) -> Result<Proxy> + Send + Sync + 'static,
{
    let call = Call::here("checkpoint");
    let Some(&first) = inputs.first() else { return argument(call, "inputs", "[]", "at least one array") };
    let mut run = once(|| {
        let start = random::position();
        let given = inputs
            .iter()
            .map(|input| if input.is_attached() { input.try_detach() } else { input.aside() })
            .collect::<Result<Vec<_>>>()?;
        let (out, end) = random::replayed(start.clone(), || no_grad(|| f(&given)));
        let out = out?;
        random::advance(&end);
        if !is_grad_enabled() {
            return beside(call, &out, None);
        }
        let look = |input: &&Proxy| input.with_pinned(call, |a| (a.node.clone(), Saved::of(call, a)));
        let found = inputs.iter().map(look).collect::<Result<(Vec<_>, Vec<_>)>>();
        let (parents, saved) = found.inspect_err(|_| forget_kept())?;
        let node = dynamic_operation(parents, move |grad, parents| {
            let stand_ins = saved
                .iter()
                .zip(parents)
                .map(|(saved, parent)| if parent.is_some() { stand_in(&saved.get()?, call.site) } else { saved.get() })
                .collect::<Result<Vec<_>>>()?;
            // Before the program's code, which may exchange them; of what that gives, all in one look.
            let own: Vec<_> = stand_ins.iter().map(tracked).collect();
            let (again, _) = random::replayed(start.clone(), || recording(true, || f(&stand_ins)));
            let again = again?;
            let (root, shape, dtype) = again.with_pinned(call, |a| (a.node.clone(), *a.layout.shape(), a.dtype))?;
            check::same_shape(call, &shape, grad.shape(), "the function must compute the same each time")?;
            if dtype != grad.dtype() {
                return Err(Error::dtype_mismatch(call, dtype, grad.dtype()));
            }
            let Some(root) = root else { return Ok(Vec::new()) };
            let parts = no_grad(|| walk(root, grad.clone()))?.into_parts().map(|(node, part)| {
                let place = own.iter().position(|own| own.as_ref() == Some(&node));
                let outside = place.and_then(|place| parents[place].clone());
                (outside.unwrap_or(node), part)
            });
            Ok(parts.collect())
        });
        beside(call, &out, Some(node))
    });
    composite(call, first, &mut run)
}

/// The bytes of what the user's function returned in an array of its own, which gets the owner of the first input: the
/// other one may be anybody's.
fn beside(call: Call, out: &Proxy, node: Tracked) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [out])?;
        let [o] = pins.arrays();
        let parts = Parts { dtype: o.dtype, layout: o.layout, storage: o.storage.clone(), node };
        adopt_parts(call, context, parts, out)
    })
}

/// A variable with the bytes of an array.
fn stand_in(array: &Proxy, site: crate::Site) -> Result<Proxy> {
    let call = Call { op: "checkpoint", site };
    registry::context(|context| {
        let pins = pin(context, call.op, [array])?;
        let [a] = pins.arrays();
        let parts = Parts { dtype: a.dtype, layout: a.layout, storage: a.storage.clone(), node: leaf() };
        handle_owned(call, context, parts)
    })
}
