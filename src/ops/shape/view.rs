//! Views: arrays of their own, with a key of their own, that share the storage. No kernel runs.

use crate::array::autograd::{Grads, handle_owned, no_grad};
use crate::base::{
    call::{Asked, Call},
    error::{Error, Result},
    layout::Layout,
    shape::{D, Dim, Dims, Few, MAX_RANK, Shape, ShapeWithOneHole},
};
use crate::memory::{
    proxy::Proxy,
    registry::{self, ArrayRef, Parts, Tracked},
    workspace,
};
use crate::ops::{
    call::{
        check,
        compose::composite_at,
        exec::{adopt_parts, enter, in_composite, pin, record},
        make::failed,
    },
    elementwise::unary::{copy_as, copy_of, one},
};

/// A view of `src` through another layout, and the gradient of that. `seen`: the shape that the caller looked at to
/// know what to ask for. It is looked at again where the array is announced: `intern` may have exchanged it meanwhile.
pub(crate) fn recorded_view<F>(
    call: Call,
    (src, seen): (&Proxy, &Shape),
    layout: impl Fn(&Layout) -> Result<Layout>,
    vjp: impl Fn(&Layout) -> F,
) -> Result<Proxy>
where
    F: Fn(&Proxy, [bool; 3]) -> Result<Grads> + Send + Sync + 'static,
{
    view_by(call, (src, seen), &layout, &|a| record(&[a], || vjp(a.layout)))
}

/// As [`recorded_view`], by reference.
fn view_by(
    call: Call,
    (src, seen): (&Proxy, &Shape),
    layout: &dyn Fn(&Layout) -> Result<Layout>,
    node: &dyn Fn(&ArrayRef<'_>) -> Tracked,
) -> Result<Proxy> {
    enter(call, |context| {
        let pins = pin(context, call.op, [src])?;
        let [a] = pins.arrays();
        check::seen(call, src, seen, a.layout)?;
        let layout = layout(a.layout)?;
        let node = node(&a);
        check::inside(call, &layout, &a)?;
        let parts = Parts { dtype: a.dtype, layout: &layout, storage: a.storage.clone(), node };
        // In a workspace a view of an array of a manager ends with its handles, and not with the manager, which may go
        // on for many cycles. (A view of bytes of the cycle ends with the cycle.)
        if context.workspaces.takes(a.storage.buffer().device()) {
            handle_owned(call, context, parts)
        } else {
            adopt_parts(call, context, parts, src)
        }
    })
}

/// As [`Proxy::reshape`], of the shape that was asked for.
fn reshaped(call: Call, x: &Proxy, seen: &Shape, shape: Result<Shape>) -> Result<Proxy> {
    let count = seen.elem_count();
    let fitting = |shape: Shape| {
        if shape.check(call, x.dtype().size_in_bytes())? == count {
            return Ok(shape);
        }
        let (Call { op, site }, to) = (call, shape.dims().to_vec());
        Err(Error::Reshape { op, elem_count: count, to, hole: None, site: Some(site) })
    };
    let shape = match shape.and_then(fitting) {
        Ok(shape) => shape,
        Err(error) => return check::open(call, &[x]).and(Err(error)),
    };
    if !x.is_contiguous() && x.layout().reshape(&shape).is_none() {
        return copy_as(call, (x, seen), &shape);
    }
    let fits = |layout: &Layout| layout.reshape(&shape).ok_or_else(|| check::exchanged(call, x));
    recorded_view(call, (x, seen), fits, |from| {
        let from = *from.shape();
        move |grad: &Proxy, _| Ok(one(grad.reshape(from)?))
    })
}

/// As [`Proxy::permute`], of an array that had this shape when the axes were looked up.
fn permuted(call: Call, x: &Proxy, shape: &Shape, order: &[usize]) -> Result<Proxy> {
    let rank = shape.rank();
    let mut inverse: Few = (0..rank).map(|_| usize::MAX).collect();
    for (to, &from) in order.iter().enumerate() {
        if from < rank {
            inverse[from] = to;
        }
    }
    if order.len() != rank || inverse.contains(&usize::MAX) {
        return Err(Error::argument(call, "order", format!("{order:?}"), "each axis once"));
    }
    recorded_view(
        call,
        (x, shape),
        |layout| Ok(layout.permute(order)),
        |_| move |grad: &Proxy, _| Ok(one(grad.permute(inverse)?)),
    )
}

/// # Shape: views
///
/// The result shares the bytes of the array where its docs do not say otherwise.
impl Proxy {
    /// Another shape over the same elements in row-major order, with one size left as `()` to be computed. A view
    /// where strides can express it, else a copy.
    ///
    /// # Errors
    /// [`Error::Reshape`] if the number of elements differs; [`Error::StaleArray`]; [`Error::OutOfMemory`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::arange(0f32, 6., &Device::Cpu)?;
    /// assert_eq!(a.reshape((2, ()))?.dims(), [2, 3]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn reshape<S: ShapeWithOneHole>(&self, shape: S) -> Result<Proxy> {
        let (call, seen) = (Call::here("reshape"), *self.shape());
        reshaped(call, self, &seen, call.named(shape.into_shape(seen.elem_count())))
    }

    /// Axes `start..=end` merged into one. The array itself where `end` is not behind `start`.
    ///
    /// ```
    /// # use ndgc::{D, DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.flatten(0, 1)?.dims(), [6, 4]);
    /// assert_eq!(x.flatten(D::Minus2, D::Minus1)?.dims(), [2, 12]);
    /// assert!(x.flatten(1, 0)?.is_same(&x)); // there is nothing to merge
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; as [`Proxy::reshape`].
    #[track_caller]
    pub fn flatten<A: Dim, B: Dim>(&self, start: A, end: B) -> Result<Proxy> {
        let (call, shape) = (Call::here("flatten"), *self.shape());
        if shape.rank() == 0 {
            return self.reshape(1);
        }
        let (start, end) = (call.axis(start, &shape)?, call.axis(end, &shape)?);
        if start >= end {
            return check::same(call, self);
        }
        let dims = shape.dims();
        let merged = dims[start..=end].iter().product();
        let to: Few = dims[..start].iter().copied().chain([merged]).chain(dims[end + 1..].iter().copied()).collect();
        self.reshape(to)
    }

    /// All axes merged into one.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// assert_eq!(x.t()?.flatten_all()?.to_vec1::<f32>()?, [1., 3., 2., 4.]); // a copy: no strides say it
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::reshape`].
    #[doc(alias = "ravel")]
    #[track_caller]
    pub fn flatten_all(&self) -> Result<Proxy> {
        self.reshape(self.elem_count())
    }

    /// The last axes from `start` on merged into one.
    ///
    /// # Errors
    /// As [`Proxy::flatten`].
    #[track_caller]
    pub fn flatten_from<A: Dim>(&self, start: A) -> Result<Proxy> {
        self.flatten(start, D::Minus1)
    }

    /// Two axes exchanged.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
    /// let turned = x.transpose(0, 2)?;
    /// assert_eq!(turned.dims(), [4, 3, 2]);
    /// x.fill_(1.)?; // of both: they share the bytes
    /// assert_eq!(turned.to_vec::<f32>()?, [1.; 24]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    #[doc(alias = "swapaxes")]
    #[track_caller]
    pub fn transpose<A: Dim, B: Dim>(&self, a: A, b: B) -> Result<Proxy> {
        let call = Call::here("transpose");
        let shape = *self.shape();
        let (a, b) = (call.axis(a, &shape)?, call.axis(b, &shape)?);
        recorded_view(
            call,
            (self, &shape),
            |layout| Ok(layout.transpose(a, b)),
            |_| move |grad: &Proxy, _| Ok(one(grad.transpose(a, b)?)),
        )
    }

    /// The last two axes exchanged.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
    /// assert_eq!(x.t()?.to_vec2::<f32>()?, [[1., 4.], [2., 5.], [3., 6.]]);
    /// assert!(matches!(x.get(0)?.t(), Err(Error::DimOutOfRange { .. }))); // a vector is neither row nor column
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::transpose`]; also for an array with fewer than two axes.
    #[track_caller]
    pub fn t(&self) -> Result<Proxy> {
        self.transpose(D::Minus2, D::Minus1)
    }

    /// The axes in another order.
    ///
    /// ```
    /// # use ndgc::{D, DType, Device, Error, Tensor};
    /// let image = Tensor::zeros((480, 640, 3), DType::U8, &Device::Cpu)?;
    /// assert_eq!(image.permute((2, 0, 1))?.dims(), [3, 480, 640]); // the last axis first
    /// assert_eq!(image.permute((D::Minus1, 0, 1))?.dims(), [3, 480, 640]);
    /// assert!(matches!(image.permute((2, 0)), Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if it is not a permutation of the axes; [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    #[track_caller]
    pub fn permute<A: Dims>(&self, order: A) -> Result<Proxy> {
        let (call, shape) = (Call::here("permute"), *self.shape());
        permuted(call, self, &shape, &call.named(order.to_order(&shape, call.op))?)
    }

    /// Indices `start .. start + len` of one axis.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::arange(0f32, 5., &Device::Cpu)?;
    /// x.narrow(0, 1, 2)?.zero_()?; // a view: `x` changes
    /// assert_eq!(x.to_vec1::<f32>()?, [0., 0., 0., 3., 4.]);
    /// assert!(matches!(x.narrow(0, 4, 2), Err(Error::Narrow { start: 4, len: 2, dim: 5, .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Narrow`] if the range leaves the axis; [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    #[track_caller]
    pub fn narrow<A: Dim>(&self, dim: A, start: usize, len: usize) -> Result<Proxy> {
        let call = Call::here("narrow");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        recorded_view(
            call,
            (self, &shape),
            |layout| layout.narrow(axis, start, len),
            |from| {
                let from = *from.shape();
                move |grad: &Proxy, _| {
                    let whole = zeros_beside(grad, &from)?;
                    whole.narrow(axis, start, len)?.copy_(grad)?;
                    Ok(one(whole))
                }
            },
        )
    }

    /// One index of the first axis, which is removed. The array itself if it has no axis.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// assert_eq!(x.get(1)?.to_vec1::<f32>()?, [3., 4.]);
    /// assert!(matches!(x.get(2), Err(Error::IndexOutOfRange { index: 2, dim: 2, .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; as [`Proxy::get_on_dim`].
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<Proxy> {
        if self.rank() == 0 {
            return check::same(Call::here("get"), self);
        }
        self.get_on_dim(0, index)
    }

    /// One index of an axis, which is removed.
    ///
    /// ```
    /// # use ndgc::{D, Device, Tensor};
    /// let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
    /// assert_eq!(x.get_on_dim(D::Minus1, 1)?.to_vec1::<f32>()?, [2., 5.]); // the second column
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    #[track_caller]
    pub fn get_on_dim<A: Dim>(&self, dim: A, index: usize) -> Result<Proxy> {
        let call = Call::here("get");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        if index >= shape.dims()[axis] {
            return Err(Error::index_out_of_range(call, index as i64, shape.dims()[axis]));
        }
        recorded_view(
            call,
            (self, &shape),
            |layout| Ok(layout.select(axis, index)),
            |from| {
                let from = *from.shape();
                move |grad: &Proxy, _| {
                    let whole = zeros_beside(grad, &from)?;
                    whole.get_on_dim(axis, index)?.copy_(grad)?;
                    Ok(one(whole))
                }
            },
        )
    }

    /// One index of the first axis, as an array that `manager` owns, whatever owns this one.
    ///
    /// ```
    /// # use ndgc::{Device, NdManager, Tensor};
    /// let data = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let step = NdManager::new_base_manager(&Device::Cpu)?;
    /// let row = data.get_in(&step, 0)?;
    /// step.close()?;
    /// assert!(!row.is_open() && data.is_open());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::get`] and [`Proxy::attach`].
    #[track_caller]
    pub fn get_in(&self, manager: &crate::NdManager, index: usize) -> Result<Proxy> {
        composite_at(Call::here("get"), manager, &mut || {
            // What has no axis is its own only element, which stays with its owner.
            if self.rank() == 0 { self.reshape(()) } else { self.get(index) }
        })
    }

    /// An axis of size 1 removed; an axis of another size stays.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((1, 3), DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.squeeze(0)?.dims(), [3]);
    /// assert!(x.squeeze(1)?.is_same(&x)); // there are three
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::StaleArray`].
    #[track_caller]
    pub fn squeeze<A: Dim>(&self, dim: A) -> Result<Proxy> {
        let call = Call::here("squeeze");
        let shape = *self.shape();
        let axis = call.axis(dim, &shape)?;
        if shape.dims()[axis] != 1 {
            return check::same(call, self);
        }
        recorded_view(
            call,
            (self, &shape),
            |layout| Ok(layout.select(axis, 0)),
            |_| move |grad: &Proxy, _| Ok(one(grad.unsqueeze(axis)?)),
        )
    }

    /// An axis of size 1 inserted before `dim`.
    ///
    /// ```
    /// # use ndgc::{D, DType, Device, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.unsqueeze(0)?.dims(), [1, 3]);
    /// assert_eq!(x.unsqueeze(D::Minus1)?.dims(), [3, 1]); // behind the last one
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::RankTooLarge`]; [`Error::StaleArray`].
    #[doc(alias("expand_dims", "expandDims"))]
    #[track_caller]
    pub fn unsqueeze<A: Dim>(&self, dim: A) -> Result<Proxy> {
        let call = Call::here("unsqueeze");
        let shape = *self.shape();
        if shape.rank() == MAX_RANK {
            return Err(Error::rank_too_large(call, MAX_RANK + 1));
        }
        let axis = Asked::from(call).axis_plus_one(dim, &shape)?;
        recorded_view(
            call,
            (self, &shape),
            |layout| Ok(layout.unsqueeze(axis)),
            |_| move |grad: &Proxy, _| Ok(one(grad.squeeze(axis)?)),
        )
    }

    /// The array repeated along axes of size 1 and along new leading axes, without a copy.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let row = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// let rows = row.broadcast_as((1000, 3))?;
    /// assert_eq!(rows.storage_bytes()?, 12); // the three that there are
    /// assert!(matches!(rows.zero_(), Err(Error::Overlap { .. }))); // contiguous() has room for all
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::StaleArray`].
    #[doc(alias = "broadcast_to")]
    #[track_caller]
    pub fn broadcast_as<S: Into<Shape>>(&self, shape: S) -> Result<Proxy> {
        let call = Call::here("broadcast_as");
        let shape = shape.into();
        let size = self.dtype().size_in_bytes();
        shape.check(call, size)?;
        recorded_view(
            call,
            (self, self.shape()),
            |layout| layout.broadcast_to(&shape, call.op),
            |from| {
                let from = *from.shape();
                move |grad: &Proxy, _| Ok(one(grad.sum_to(&from)?))
            },
        )
    }

    /// Alias of [`Proxy::broadcast_as`]: PyTorch's name.
    ///
    /// # Errors
    /// As [`Proxy::broadcast_as`].
    #[track_caller]
    pub fn expand<S: Into<Shape>>(&self, shape: S) -> Result<Proxy> {
        self.broadcast_as(shape)
    }
}

/// # Memory: out of managers, workspaces and graphs
impl Proxy {
    /// The array independent of everything that would end it or track it: a handle-owned array outside the gradient
    /// graph that shares the bytes, or has a copy of them if they are a workspace's. The original stays with its owner.
    ///
    /// It returns no error, so its failure is told by the next use. A closed array gives another handle of it, which is
    /// closed as well. If the copy fails, most likely without memory for it, the result is a closed array, each use of
    /// which gives [`Error::StaleArray`] with this call and its error. [`Proxy::try_detach`] says either at once.
    ///
    /// ```
    /// # use ndgc::{Device, DType, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let kept = manager.ones(2, DType::F32)?.detach();
    /// manager.close()?;
    /// assert_eq!(kept.to_vec1::<f32>()?, [1., 1.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias("stop_gradient", "stopGradient"))]
    #[track_caller]
    pub fn detach(&self) -> Proxy {
        let call = Call::here("detach");
        self.try_detach().unwrap_or_else(|error| match error {
            Error::StaleArray(_) | Error::LeakedArray(_) | Error::Forked { .. } => self.clone(),
            // Not the array itself: it would end with its cycle, and the error would be told there, as another one.
            error => failed("detach()", call, self, &error).unwrap_or_else(|_| self.clone()),
        })
    }

    /// As [`Proxy::detach`], with the reason if it fails.
    ///
    /// # Errors
    /// [`Error::StaleArray`], [`Error::LeakedArray`]; [`Error::InUse`] while others write it and do not end;
    /// [`Error::OutOfMemory`] for the copy of a workspace's bytes.
    #[track_caller]
    pub fn try_detach(&self) -> Result<Proxy> {
        let call = Call::here("detach");
        match self.beside(call, true)? {
            Some(shared) => Ok(shared),
            // A workspace's bytes are copied.
            None => workspace::outside(|| no_grad(|| in_composite(call.site, &mut || copy_of(call, self)))),
        }
    }

    /// The same bytes in another array, outside of the gradient graph, which its handles own, or the cycle of a
    /// workspace whose bytes they are: for steps of an operation that read or write them, and leave nothing with a
    /// manager.
    #[track_caller]
    pub(crate) fn aside(&self) -> Result<Proxy> {
        self.aside_for(Call::here("detach"))
    }

    /// As [`Proxy::aside`], for a call.
    pub(crate) fn aside_for(&self, call: Call) -> Result<Proxy> {
        self.beside(call, false)?.ok_or_else(|| registry::stale(call.op, self.key()))
    }

    /// `leaving`: the bytes are the new array's from here on, and no manager's budget counts them; none if they are a
    /// workspace's.
    fn beside(&self, call: Call, leaving: bool) -> Result<Option<Proxy>> {
        enter(call, |context| {
            let pins = pin(context, call.op, [self])?;
            let [a] = pins.arrays();
            if leaving && a.storage.part().is_some() {
                return Ok(None);
            }
            let parts = Parts { dtype: a.dtype, layout: a.layout, storage: a.storage.clone(), node: None };
            let shared = handle_owned(call, context, parts)?;
            if leaving {
                a.storage.leave_budget();
            }
            Ok(Some(shared))
        })
    }
}

/// Zeros of a shape with the dtype, device and owner of another array.
pub(crate) fn zeros_beside(array: &Proxy, shape: &Shape) -> Result<Proxy> {
    crate::ops::call::inplace::filled_beside(Call::here("zeros"), array, shape, 0.0)
}
