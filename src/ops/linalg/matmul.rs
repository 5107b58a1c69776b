//! The matrix product.

use crate::array::autograd::{Grads, Saved};
use crate::base::{
    call::Call,
    error::{Error, Result},
    layout::Layout,
    shape::{Few, Shape},
};
use crate::device::kernel::{BinaryOp, Kernel};
use crate::memory::{
    proxy::Proxy,
    registry::{ArrayRef, Parts},
};
use crate::ops::call::{
    check,
    exec::{
        adopt, adopt_parts, allocate, compose, device, enter, launch, output, output_view, pin, record, view, view_as,
        view_of,
    },
};

/// # Linear algebra: products of matrices
impl Proxy {
    /// Matrix product over the last two axes: `[.., m, k] x [.., k, n] -> [.., m, n]`.
    ///
    /// Leading axes must be equal. The result belongs to the owner of this array. Strided operands (transposes,
    /// narrowed ones) are used as they are. Cost: `2 m n k` operations for each batch element. Sums of f16 and bf16 are
    /// kept in f32; integers wrap; truth values are refused.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if inner or leading axes differ; [`Error::Shape`] for fewer than two axes;
    /// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::DeviceMismatch`], [`Error::StaleArray`],
    /// [`Error::OutOfMemory`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let w = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// assert_eq!(w.matmul(&w)?.to_vec2::<f32>()?, [[7., 10.], [15., 22.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias("bmm", "mmul"))]
    #[track_caller]
    pub fn matmul(&self, rhs: &Proxy) -> Result<Proxy> {
        matmul(Call::here("matmul"), self, rhs, false)
    }

    /// As [`Proxy::matmul`], with broadcasting of the leading axes.
    ///
    /// # Errors
    /// As [`Proxy::matmul`].
    #[track_caller]
    pub fn broadcast_matmul(&self, rhs: &Proxy) -> Result<Proxy> {
        matmul(Call::here("broadcast_matmul"), self, rhs, true)
    }
}

fn matmul(call: Call, lhs: &Proxy, rhs: &Proxy, broadcast: bool) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [lhs, rhs])?;
        let [a, b] = pins.arrays();
        let (of_a, of_b) = (a.storage.buffer(), b.storage.buffer());
        check::same_device(call, of_a.device(), of_b.device())?;
        let aligned;
        let (shape, left, right) = match (a.layout.dims(), b.layout.dims()) {
            (&[m, k], &[inner, n]) if k == inner => (Shape::from((m, n)), a.layout, b.layout),
            _ => {
                aligned = align(call.op, &a, &b, broadcast)?;
                (aligned.0, &aligned.1, &aligned.2)
            }
        };
        check::same_dtype(call, &a, &b)?;
        let dtype = check::number(call, a.dtype)?;
        let (storage, layout) =
            (allocate(context, call.op, of_a.device(), dtype, &shape, false)?, Layout::contiguous(shape));
        let (lhs_view, rhs_view) = (view_of(of_a, dtype, left), view_of(of_b, dtype, right));
        let dst = output_view(&storage, dtype, &layout);
        launch(of_a.device(), &Kernel::Matmul { lhs: lhs_view, rhs: rhs_view, dst })?;
        let node = record(&[&a, &b], || gradient(call, &a, &b));
        adopt_parts(call, context, Parts { dtype, layout: &layout, storage, node }, lhs)
    })
}

/// The result's shape, and the operands' layouts with its leading axes.
fn align(name: &'static str, a: &ArrayRef<'_>, b: &ArrayRef<'_>, broadcast: bool) -> Result<(Shape, Layout, Layout)> {
    let (left, right) = (*a.layout.shape(), *b.layout.shape());
    for shape in [left, right] {
        if shape.rank() < 2 {
            return Err(Error::shape(name, shape.dims(), "at least two axes; use unsqueeze for a vector"));
        }
    }
    let (lead_a, lead_b) = (left.rank() - 2, right.rank() - 2);
    let (m, k) = (left.dims()[lead_a], left.dims()[lead_a + 1]);
    let (inner, n) = (right.dims()[lead_b], right.dims()[lead_b + 1]);
    if k != inner {
        let why = format!("inner axes differ ({k} != {inner}); transpose the right side or pass one with {k} rows");
        return Err(Error::shapes(name, &left, &right, why));
    }
    if left.dims()[..lead_a] == right.dims()[..lead_b] {
        return Ok((left.with_dim(lead_a + 1, n), *a.layout, *b.layout));
    }
    if !broadcast {
        let why = "leading axes differ; use broadcast_matmul to repeat axes of size 1";
        return Err(Error::shapes(name, &left, &right, why));
    }
    let lead = Shape::from(&left.dims()[..lead_a]).broadcast(&Shape::from(&right.dims()[..lead_b]), name)?;
    let with =
        |rows: usize, columns: usize| Shape::from(lead.dims().iter().copied().chain([rows, columns]).collect::<Few>());
    let shape = with(m, n);
    shape.check(name, a.dtype.size_in_bytes())?;
    Ok((shape, a.layout.broadcast_to(&with(m, k), name)?, b.layout.broadcast_to(&with(k, n), name)?))
}

fn gradient(
    call: Call,
    a: &ArrayRef<'_>,
    b: &ArrayRef<'_>,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static + use<> {
    let shapes = [*a.layout.shape(), *b.layout.shape()];
    // The gradient of each side needs the other.
    let left = b.node.is_some().then(|| Saved::of(call, a));
    let right = a.node.is_some().then(|| Saved::of(call, b));
    move |grad, needs| {
        let mut grads = [None, None, None];
        if let (true, Some(right)) = (needs[0], &right) {
            grads[0] = Some(grad.broadcast_matmul(&right.get()?.t()?)?.sum_to(&shapes[0])?);
        }
        if let (true, Some(left)) = (needs[1], &left) {
            grads[1] = Some(left.get()?.t()?.broadcast_matmul(grad)?.sum_to(&shapes[1])?);
        }
        Ok(grads)
    }
}

/// # Linear algebra: a dense layer
impl Proxy {
    /// A dense layer in one call: `[.., in] x [out, in]ᵀ + [out] -> [.., out]`, with the bias added in place; it may
    /// have one number for all outputs, as `[1]` or `[]`.
    ///
    /// The result belongs to the owner of this array, and no other array is made: nothing is left with the owner of
    /// the weights. Any dtype but truth values.
    ///
    /// # Errors
    /// As [`Proxy::matmul`]; [`Error::Shape`] for weights without two axes.
    #[track_caller]
    pub fn linear(&self, weight: &Proxy, bias: Option<&Proxy>) -> Result<Proxy> {
        let call = Call::here("linear");
        let lead = *self.shape();
        if lead.rank() > 2 {
            let last = lead.rank() - 1;
            return compose(call, self, &mut || {
                let out = self
                    .reshape((lead.dims()[..last].iter().product::<usize>(), lead.dims()[last]))?
                    .linear(weight, bias)?;
                out.reshape(lead.with_dim(last, weight.dim(0)?))
            });
        }
        enter(call, |context| {
            let pins = pin(context, call.op, [self, weight])?;
            let [x, w] = pins.arrays();
            check::same_device(call, device(&x), device(&w))?;
            check::same_dtype(call, &x, &w)?;
            check::number(call, x.dtype)?;
            let [m, k, n] = sizes(call.op, &x, &w)?;
            let out = output(context, call.op, device(&x), x.dtype, &Shape::from((m, n)), false)?;
            let turned = w.layout.transpose(0, 1);
            let kernel = Kernel::Matmul { lhs: view(&x), rhs: view_as(&w, &turned), dst: out.view() };
            launch(device(&x), &kernel)?;
            debug_assert_eq!(x.layout.dims(), [m, k]);
            let Some(bias) = bias else {
                let node = record(&[&x, &w], || linear_gradient(call, &x, &w, Shape::SCALAR));
                return adopt(call, context, out, self, node);
            };
            let pins = pin(context, call.op, [bias])?;
            let [b] = pins.arrays();
            check::same_device(call, device(&x), device(&b))?;
            check::same_dtype(call, &x, &b)?;
            if b.layout.shape().rank() > 0 && b.layout.dims() != [1] {
                let hint = "the bias has one number for each output, or one for all";
                check::same_shape(call, b.layout.shape(), &Shape::from(n), hint)?;
            }
            let expanded = b.layout.broadcast_to(&Shape::from((m, n)), call.op)?;
            launch(
                device(&x),
                &Kernel::BinaryAssign { op: BinaryOp::Add, dst: out.view(), rhs: view_as(&b, &expanded) },
            )?;
            let of_bias = *b.layout.shape();
            let node = record(&[&x, &w, &b], || linear_gradient(call, &x, &w, of_bias));
            adopt(call, context, out, self, node)
        })
    }
}

/// Rows, inputs and outputs of a dense layer.
fn sizes(name: &'static str, x: &ArrayRef<'_>, w: &ArrayRef<'_>) -> Result<[usize; 3]> {
    match (x.layout.dims(), w.layout.dims()) {
        (&[m, k], &[n, inner]) if k == inner => Ok([m, k, n]),
        (&[_, k], &[_, inner]) => {
            let why = format!("the input has {k} columns and the weights {inner}");
            Err(Error::shapes(name, x.layout.shape(), w.layout.shape(), why))
        }
        (&[_, _], found) => Err(Error::shape(name, found, "weights [out, in]")),
        (found, _) => Err(Error::shape(name, found, "at least two axes")),
    }
}

fn linear_gradient(
    call: Call,
    x: &ArrayRef<'_>,
    w: &ArrayRef<'_>,
    of_bias: Shape,
) -> impl Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static {
    let input = w.node.is_some().then(|| Saved::of(call, x));
    let weight = x.node.is_some().then(|| Saved::of(call, w));
    move |grad, needs| {
        let mut grads = [None, None, None];
        if let (true, Some(weight)) = (needs[0], &weight) {
            grads[0] = Some(grad.matmul(&weight.get()?)?);
        }
        if let (true, Some(input)) = (needs[1], &input) {
            grads[1] = Some(grad.t()?.matmul(&input.get()?)?);
        }
        if needs[2] {
            grads[2] = Some(if of_bias.dims() == [grad.dim(1)?] { grad.sum(0)? } else { grad.sum_to(&of_bias)? });
        }
        Ok(grads)
    }
}
