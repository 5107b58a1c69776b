//! Activations with numbers; and those composed of other operations, as dropout, attention and rotary positions are.
//!
//! All of floats, with gradients; the result belongs to the owner of the receiver.

use crate::array::autograd::{Saved, no_grad};
use crate::base::{
    call::{Asked, Call},
    dtype::DType,
    error::{Error, Result},
    shape::{D, Dim, Few, Shape},
};
use crate::device::kernel::{Kernel, Map, Rectifier};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::{argument, composite, in_single, number, single, wrong_shape},
        exec::{launch, map1},
        inplace::InPlace,
    },
    elementwise::unary::{gradient, one},
};

/// A function with another slope below 0; its gradient is one kernel too.
fn rectifier(call: Call, x: &Proxy, rectifier: Rectifier) -> Result<Proxy> {
    map1(
        call,
        x,
        |dtype| check::float(call, dtype),
        Map::Rectifier(rectifier),
        |a, _| {
            let saved = Saved::of(call, a);
            move |grad: &Proxy, _| {
                let kernel: &InPlace<'_, 2> = &|device, dst, [saved, grad]| {
                    launch(device, &Kernel::RectifierGrad { rectifier, saved, grad, dst })
                };
                Ok(one(gradient(call, &saved.get()?, grad, kernel)?))
            }
        },
    )
}

/// The sizes of one rotation: `x` has positions on axis `at`, and pairs on the last one.
fn angles(x: &Proxy, table: &Proxy, at: usize, op: &'static str) -> Result<Proxy> {
    let (batch, _, _, width) = x.dims4()?;
    let positions = x.dim(at)?;
    let found = *table.shape();
    let fits = match *found.dims() {
        [all, half] => all >= positions && half * 2 == width,
        [b, all, half] => b == batch && all >= positions && half * 2 == width,
        _ => false,
    };
    if !fits {
        let why = "the angles are [positions, width / 2] or [batch, positions, width / 2], with enough positions";
        return Err(Error::shapes(op, x.shape(), &found, why));
    }
    let table = table.narrow(D::Minus2, 0, positions)?;
    let (batch, half) = (if found.rank() == 3 { batch } else { 1 }, width / 2);
    if at == 1 { table.reshape((batch, positions, 1, half)) } else { table.reshape((batch, 1, positions, half)) }
}

/// Each pair turned by its angle; pairs are the halves of the last axis, or neighbours on it.
fn rotated(call: Call, x: &Proxy, tables: [&Proxy; 2], at: usize, neighbours: bool) -> Result<Proxy> {
    composite(call, x, &mut || {
        check::float(call, x.dtype())?;
        let shape = *x.shape();
        let &[a, b, c, width] = shape.dims() else {
            return wrong_shape(call, x, "4 axes");
        };
        let [cos, sin] = tables;
        let (cos, sin) = (angles(x, cos, at, call.op)?, angles(x, sin, at, call.op)?);
        let half = width / 2;
        let (first, second) = if neighbours {
            let pairs = x.reshape((a, b, c, half, 2))?;
            (pairs.get_on_dim(4, 0)?, pairs.get_on_dim(4, 1)?)
        } else {
            (x.narrow(3, 0, half)?, x.narrow(3, half, half)?)
        };
        let left = first.broadcast_mul(&cos)?.sub(&second.broadcast_mul(&sin)?)?;
        let right = first.broadcast_mul(&sin)?.add(&second.broadcast_mul(&cos)?)?;
        match neighbours {
            true => Proxy::stack(&[left, right], 4)?.reshape(shape),
            false => Proxy::cat(&[left, right], 3),
        }
    })
}

/// What attention is asked for.
struct Attention<'a> {
    mask: Option<&'a Proxy>,
    causal: bool,
    scale: f64,
    softcapping: f64,
}

fn attention(call: Call, q: &Proxy, k: &Proxy, v: &Proxy, ask: &Attention<'_>) -> Result<Proxy> {
    for array in [q, k, v] {
        if array.rank() != 4 {
            return wrong_shape(call, array, "4 axes: batch, heads, positions, width");
        }
    }
    let ((batch, heads, rows, width), (_, groups, columns, _)) = (q.dims4()?, k.dims4()?);
    let depth = v.dim(3)?;
    check::same_shape(call, k.shape(), &Shape::from((batch, groups, columns, width)), "keys must fit the queries")?;
    check::same_shape(call, v.shape(), &Shape::from((batch, groups, columns, depth)), "values must fit the keys")?;
    if groups == 0 || !heads.is_multiple_of(groups) {
        return argument(call, "heads of the keys", groups, "a divisor of the heads of the queries");
    }
    for other in [Some(k), Some(v), ask.mask].into_iter().flatten() {
        if other.dtype() != q.dtype() {
            return Err(Error::dtype_mismatch(call, q.dtype(), other.dtype()));
        }
    }
    // Heads that share keys are taken as further rows, so that no key is repeated.
    let shared = heads / groups * rows;
    // The products of halves, before they are scaled, may be none of theirs.
    in_single(q, |q| {
        let (k, v) = (single(k)?, single(v)?);
        let scores = q.reshape((batch, groups, shared, width))?.matmul(&k.t()?)?.affine(ask.scale, 0.0)?;
        let mut scores = scores.reshape((batch, heads, rows, columns))?;
        if ask.softcapping != 1.0 {
            scores = scores.affine(1.0 / ask.softcapping, 0.0)?.tanh()?.affine(ask.softcapping, 0.0)?;
        }
        if let Some(mask) = ask.mask {
            scores = scores.add(&single(mask)?.broadcast_as(*scores.shape())?)?;
        }
        if ask.causal {
            let ones = number(&scores, 1.0, call.site)?.broadcast_as((rows, columns))?;
            let past = ones.ext_tril(columns as i64 - rows as i64)?;
            let future = past.broadcast_eq(&number(&scores, 0.0, call.site)?)?;
            scores = scores.ext_masked_fill(&future, f64::NEG_INFINITY)?;
        }
        let weights = scores.softmax(D::Minus1)?.reshape((batch, groups, shared, columns))?;
        weights.matmul(&v)?.reshape((batch, heads, rows, depth))
    })
}

/// # Networks: activations, dropout, attention
impl Proxy {
    /// `x` above 0, `alpha (e^x - 1)` below. Element by element; floats, with a gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[-1000f32, 0., 3.], &Device::Cpu)?;
    /// assert_eq!(x.elu(2.)?.to_vec1::<f32>()?, [-2., 0., 3.]); // never below -alpha
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::exp`].
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Result<Proxy> {
        rectifier(Call::here("elu"), self, Rectifier { scale: 1.0, below: alpha, curved: true })
    }

    /// `gamma` times [`Proxy::elu`]. Element by element; floats, with a gradient.
    ///
    /// # Errors
    /// As [`Proxy::exp`].
    #[track_caller]
    pub fn selu(&self, alpha: f64, gamma: f64) -> Result<Proxy> {
        rectifier(Call::here("selu"), self, Rectifier { scale: gamma, below: alpha, curved: true })
    }

    /// `x` above 0, `slope x` below. Element by element; floats, with a gradient.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[-4f32, 0., 3.], &Device::Cpu)?;
    /// assert_eq!(x.leaky_relu(0.25)?.to_vec1::<f32>()?, [-1., 0., 3.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::exp`].
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Result<Proxy> {
        rectifier(Call::here("leaky_relu"), self, Rectifier { scale: 1.0, below: slope, curved: false })
    }

    /// As [`Proxy::leaky_relu`], with slopes that are learned: one, one for each entry of axis 1, or one for each
    /// element. With gradients of both; that at 0 is the slope, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] of the slopes; as [`Proxy::exp`].
    #[track_caller]
    pub fn prelu(&self, slopes: &Proxy) -> Result<Proxy> {
        let op = "prelu";
        composite(Call::here(op), self, &mut || {
            let (shape, of_slopes) = (*self.shape(), *slopes.shape());
            let slopes = if of_slopes.elem_count() == 1 {
                slopes.reshape(())?
            } else if of_slopes == shape {
                slopes.clone()
            } else if shape.rank() >= 2 && of_slopes.dims() == [shape.dims()[1]] {
                let channels = shape.dims()[1];
                slopes.reshape((0..shape.rank()).map(|axis| if axis == 1 { channels } else { 1 }).collect::<Few>())?
            } else {
                return Err(Error::shapes(op, &shape, &of_slopes, "needs one slope, or one for each entry of axis 1"));
            };
            check::float(op, self.dtype())?;
            // What is above 0 is chosen, not added to a 0 times its slope: that is NaN where one is infinite.
            let below = self.ext_clamp_max(0.0)?.broadcast_mul(&slopes)?;
            self.gt(0.0)?.where_cond(self, &below)
        })
    }

    /// The first half of the last axis through [`Proxy::silu`], times the second half.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let x = Tensor::ones((5, 8), DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.swiglu()?.dims(), [5, 4]); // half of it is the gate
    /// assert!(matches!(x.narrow(1, 0, 7)?.swiglu(), Err(Error::Shape { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if the last axis has an odd size; as [`Proxy::exp`].
    #[track_caller]
    pub fn swiglu(&self) -> Result<Proxy> {
        let op = "swiglu";
        composite(Call::here(op), self, &mut || {
            let size = self.dim(D::Minus1)?;
            if !size.is_multiple_of(2) {
                return wrong_shape(op, self, "an even size of the last axis");
            }
            let half = size / 2;
            in_single(self, |x| x.narrow(D::Minus1, 0, half)?.silu()?.mul(&x.narrow(D::Minus1, half, half)?))
        })
    }

    #[track_caller]
    pub(crate) fn ext_glu<A: Dim>(&self, dim: A) -> Result<Proxy> {
        let op = "glu";
        composite(Call::here(op), self, &mut || {
            let axis = Asked::from(op).axis(dim, self.shape())?;
            let size = self.dim(axis)?;
            if !size.is_multiple_of(2) {
                return wrong_shape(op, self, "an even size of the axis");
            }
            in_single(self, |x| x.narrow(axis, 0, size / 2)?.mul(&x.narrow(axis, size / 2, size / 2)?.sigmoid()?))
        })
    }

    #[track_caller]
    pub(crate) fn ext_celu(&self, alpha: f64) -> Result<Proxy> {
        let call = Call::here("celu");
        composite(call, self, &mut || {
            check::float(call, self.dtype())?;
            // 0 times an infinity would be NaN, also above 0.
            let fits = |number: f64| match self.dtype() {
                DType::F64 => number.is_normal(),
                _ => (number as f32).is_normal(),
            };
            if !fits(alpha) || !fits(1.0 / alpha) {
                return argument(call, "alpha", alpha, "a finite number other than 0, with an inverse in the dtype");
            }
            in_single(self, |x| {
                let below = x.ext_clamp_max(0.0)?.affine(1.0 / alpha, 0.0)?.expm1()?.affine(alpha, 0.0)?;
                x.relu()?.add(&below)
            })
        })
    }

    #[track_caller]
    pub(crate) fn ext_softshrink(&self, lambda: f64) -> Result<Proxy> {
        let call = Call::here("softshrink");
        composite(call, self, &mut || {
            check::float(call, self.dtype())?;
            if lambda < 0.0 || !lambda.is_finite() {
                return argument(call, "lambda", lambda, "0 or more, and finite");
            }
            in_single(self, |x| {
                // Chosen, since the slope 1 of one part and -1 of another make NaN of an infinite gradient.
                let near = no_grad(|| x.clamp(-lambda, lambda))?;
                x.sub(&near)?.ext_masked_fill(&near.eq(x)?, 0.0)
            })
        })
    }

    #[track_caller]
    pub(crate) fn ext_hardshrink(&self, lambda: f64) -> Result<Proxy> {
        let call = Call::here("hardshrink");
        composite(call, self, &mut || {
            check::float(call, self.dtype())?;
            self.ext_masked_fill(&no_grad(|| self.abs())?.le(lambda)?, 0.0)
        })
    }

    /// Each element 0 with probability `p`, else divided by `1 - p`; drawn from the common stream of random numbers.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor};
    /// let x = Tensor::ones(1000, DType::F32, &Device::Cpu)?;
    /// let kept = x.dropout(0.5)?.to_vec1::<f32>()?;
    /// assert!(kept.iter().all(|&x| x == 0. || x == 2.)); // the mean stays about the same
    /// assert!(matches!(x.dropout(1.), Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if `p` is not in `[0, 1)`; as [`Proxy::rand`].
    #[track_caller]
    pub fn dropout(&self, p: f64) -> Result<Proxy> {
        let call = Call::here("dropout");
        composite(call, self, &mut || {
            let dtype = check::float(call, self.dtype())?;
            if !(0.0..1.0).contains(&p) {
                return argument(call, "p", p, "at least 0 and less than 1");
            }
            let drawn = Proxy::rand(0f32, 1f32, *self.shape(), self.device())?;
            let kept = drawn.broadcast_ge(&number(&drawn, p, call.site)?)?;
            self.mul(&kept.to_dtype(dtype)?.affine(1.0 / (1.0 - p), 0.0)?)
        })
    }

    /// Attention: queries `[batch, heads, rows, width]`, keys `[batch, groups, columns, width]`, values `[batch,
    /// groups, columns, depth]` to `[batch, heads, rows, depth]`; the groups divide the heads. `mask` is added to the
    /// scores (broadcast); `causal`: each row sees the columns up to its own, counted from the end; `softcapping` other
    /// than 1 bounds the scores by a tanh. Of halves, scores and weights are f32. With gradients of all.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let q = Tensor::zeros((1, 1, 2, 3), DType::F32, &Device::Cpu)?; // so each key counts the same
    /// let v = Tensor::new(&[[[[0f32], [4.]]]], &Device::Cpu)?;
    /// let (all, past) = (q.sdpa(&q, &v, None, false, 1., 1.)?, q.sdpa(&q, &v, None, true, 1., 1.)?);
    /// assert_eq!(all.to_vec::<f32>()?, [2., 2.]);
    /// assert_eq!(past.to_vec::<f32>()?, [0., 2.]); // the first row sees the first column alone
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::Argument`]; as
    /// [`Proxy::matmul`].
    #[track_caller]
    pub fn sdpa(
        &self,
        keys: &Proxy,
        values: &Proxy,
        mask: Option<&Proxy>,
        causal: bool,
        scale: f64,
        softcapping: f64,
    ) -> Result<Proxy> {
        let call = Call::here("sdpa");
        let ask = Attention { mask, causal, scale, softcapping };
        composite(call, self, &mut || attention(call, self, keys, values, &ask))
    }

    /// Rotary positions of `[batch, heads, positions, width]`: pairs are the halves of the last axis. `cos` and `sin`
    /// are `[positions, width / 2]`, or with a leading batch axis; more positions than needed are left. With gradients.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?; // one position, one pair
    /// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
    /// assert_eq!(x.rope(&cos, &sin)?.to_vec::<f32>()?, [-2., 1.]); // a quarter of a turn
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::ShapeMismatch`]; as [`Proxy::mul`].
    #[track_caller]
    pub fn rope(&self, cos: &Proxy, sin: &Proxy) -> Result<Proxy> {
        rotated(Call::here("rope"), self, [cos, sin], 2, false)
    }

    /// As [`Proxy::rope`], with neighbours on the last axis as pairs.
    ///
    /// # Errors
    /// As [`Proxy::rope`].
    #[track_caller]
    pub fn rope_i(&self, cos: &Proxy, sin: &Proxy) -> Result<Proxy> {
        rotated(Call::here("rope_i"), self, [cos, sin], 2, true)
    }

    /// As [`Proxy::rope`], for `[batch, positions, heads, width]`.
    ///
    /// # Errors
    /// As [`Proxy::rope`].
    #[track_caller]
    pub fn rope_thd(&self, cos: &Proxy, sin: &Proxy) -> Result<Proxy> {
        rotated(Call::here("rope_thd"), self, [cos, sin], 1, false)
    }
}
