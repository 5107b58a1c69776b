//! Operations that the user writes against plain vectors on the host: candle's `CustomOp` and `InplaceOp`.
//!
//! Such an operation gets its operands as [`CpuStorage`], copied out in row-major order, with a contiguous layout that
//! starts at 0; what it returns is copied in. It costs those copies and no unsafe code.

use std::any::Any;
use std::sync::Arc;

use float8::F8E4M3;
use half::{bf16, f16};

use crate::array::autograd::{Saved, no_grad};
use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::{Error, Result},
    layout::Layout,
    shape::Shape,
};
use crate::device::Device;
use crate::memory::{
    composed::{composite_site, users},
    proxy::Proxy,
};
use crate::ops::call::{check, compose::composite, exec::once};

macro_rules! cpu_storage {
    ($($(#[$doc:meta])* $variant:ident $t:ty;)*) => {
        /// Elements on the host, in row-major order.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        #[allow(missing_docs)] // a variant a dtype
        pub enum CpuStorage {
            $($variant(Vec<$t>),)*
        }

        impl CpuStorage {
            /// The dtype of the elements.
            pub fn dtype(&self) -> DType {
                match self {
                    $(CpuStorage::$variant(_) => DType::$variant,)*
                }
            }

            fn any(&self) -> &dyn Any {
                match self {
                    $(CpuStorage::$variant(all) => all,)*
                }
            }

            fn any_mut(&mut self) -> &mut dyn Any {
                match self {
                    $(CpuStorage::$variant(all) => all,)*
                }
            }

            /// The elements of an array, and the layout in which they lie here.
            #[track_caller]
            fn of(op: &'static str, array: &Proxy) -> Result<(Self, Layout)> {
                let supported = "a dtype with a `CpuStorage`";
                match array.dtype() {
                    $(DType::$variant => {
                        let (shape, all) = array.elements(op)?;
                        Ok((CpuStorage::$variant(all), Layout::contiguous(shape)))
                    })*
                    #[allow(unreachable_patterns)] // dtypes that only features have
                    dtype => Err(Error::unsupported_dtype(op, dtype, supported)),
                }
            }

            #[track_caller]
            fn into_array(self, shape: Shape) -> Result<Proxy> {
                match self {
                    $(CpuStorage::$variant(all) => Proxy::from_vec(all, shape, &Device::Cpu),)*
                }
            }
        }
    };
}
cpu_storage! {
    Bool bool; U8 u8; U16 u16; U32 u32; U64 u64; I8 i8; I16 i16; I32 i32; I64 i64; F8E4M3 F8E4M3; F16 f16; BF16 bf16;
    F32 f32; F64 f64;
}

impl CpuStorage {
    /// The elements.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`].
    pub fn as_slice<T: WithDType>(&self) -> Result<&[T]> {
        let mismatch = Error::dtype_mismatch("as_slice", self.dtype(), T::DTYPE);
        self.any().downcast_ref::<Vec<T>>().map(Vec::as_slice).ok_or(mismatch)
    }

    /// The elements, to be changed.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`].
    pub fn as_mut_slice<T: WithDType>(&mut self) -> Result<&mut [T]> {
        let mismatch = Error::dtype_mismatch("as_mut_slice", self.dtype(), T::DTYPE);
        self.any_mut().downcast_mut::<Vec<T>>().map(Vec::as_mut_slice).ok_or(mismatch)
    }
}

/// Elements on a CUDA device, which custom operations do not get: there is no value of this type.
#[derive(Clone, Debug)]
pub enum CudaStorage {}

/// Elements on a device of Apple's: there is no value of this type.
#[derive(Clone, Debug)]
pub enum MetalStorage {}

/// What [`Proxy::storage_and_layout`] gives: a copy of the elements on the host, or why there is none.
#[derive(Debug)]
#[non_exhaustive]
pub enum Storage {
    /// The elements, from any device.
    Cpu(CpuStorage),
    /// Never.
    Cuda(CudaStorage),
    /// Never.
    Metal(MetalStorage),
    /// The array was closed, or its device failed.
    Unreadable(Error),
}

/// A [`Storage`], where candle's programs expect the guard of a lock.
#[derive(Debug)]
pub struct StorageRef(Storage);

impl std::ops::Deref for StorageRef {
    type Target = Storage;

    fn deref(&self) -> &Storage {
        &self.0
    }
}

/// What storages of all devices can be asked, under candle's name.
pub trait BackendStorage: Sized {
    /// The dtype of the elements.
    fn dtype(&self) -> DType;

    /// A copy.
    ///
    /// # Errors
    /// None on the host.
    fn try_clone(&self, layout: &Layout) -> Result<Self>;

    /// A copy on the host.
    ///
    /// # Errors
    /// None on the host.
    fn to_cpu_storage(&self) -> Result<CpuStorage>;
}

impl BackendStorage for CpuStorage {
    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn try_clone(&self, _layout: &Layout) -> Result<Self> {
        Ok(self.clone())
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        Ok(self.clone())
    }
}

/// `f` of each element of a storage that a layout reaches, in row-major order; of none beyond its end.
///
/// ```
/// # use ndgc::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, cpu_backend::unary_map, map_dtype};
/// struct Twice;
/// impl CustomOp1 for Twice {
///     fn name(&self) -> &'static str {
///         "twice"
///     }
///     fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
///         Ok((map_dtype!("twice", s, |s| unary_map(s, l, |x| x + x), (F32, F64, I64)), *l.shape()))
///     }
/// }
/// let x = Tensor::new([1i64, 2], &Device::Cpu)?;
/// assert_eq!(x.apply_op1_no_bwd(&Twice)?.to_vec1::<i64>()?, [2, 4]);
/// assert!(x.to_dtype(ndgc::DType::U8)?.apply_op1_no_bwd(&Twice).is_err());
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn unary_map<T: Copy, U: Copy>(elements: &[T], layout: &Layout, f: impl FnMut(T) -> U) -> Vec<U> {
    layout.strided_index().filter_map(|place| elements.get(place).copied()).map(f).collect()
}

/// `f` of each two elements that lie at the same index of two layouts, as [`unary_map`].
pub fn binary_map<T: Copy, U: Copy>(
    lhs_layout: &Layout,
    rhs_layout: &Layout,
    lhs: &[T],
    rhs: &[T],
    mut f: impl FnMut(T, T) -> U,
) -> Vec<U> {
    let places = lhs_layout.strided_index().zip(rhs_layout.strided_index());
    places.filter_map(|(l, r)| Some(f(*lhs.get(l)?, *rhs.get(r)?))).collect()
}

/// The storage that a function makes of the vector in another, for the dtypes named; others are
/// [`Error::UnsupportedDTypeForOp`], which the function around it returns.
#[macro_export]
macro_rules! map_dtype {
    ($op:expr, $storage:expr, $f:expr, ($($dtype:ident),+ $(,)?)) => {
        match $storage {
            $($crate::CpuStorage::$dtype(elements) => $crate::CpuStorage::$dtype($f(elements)),)+
            other => return Err($crate::Error::UnsupportedDTypeForOp(other.dtype(), $op).into()),
        }
    };
}

type Forward = Result<(CpuStorage, Shape)>;

fn no_code<R>(op: &'static str, device: &str) -> Result<R> {
    let (lhs, rhs) = (device.to_owned(), "cpu".to_owned());
    Err(Error::device_mismatch(op, lhs, rhs))
}

macro_rules! custom_op {
    ($(#[$doc:meta])* $name:ident, ($($s:ident $l:ident),+), ($($arg:ident),+), $bwd:ty) => {
        $(#[$doc])*
        pub trait $name {
            /// The name in errors.
            fn name(&self) -> &'static str;

            /// The result of operands on the host.
            ///
            /// # Errors
            /// Whatever the operation refuses.
            fn cpu_fwd(&self, $($s: &CpuStorage, $l: &Layout),+) -> Result<(CpuStorage, Shape)>;

            /// Never called: arrays of other devices are refused.
            ///
            /// # Errors
            /// [`Error::DeviceMismatch`].
            #[allow(unused_variables)]
            fn cuda_fwd(&self, $($s: &CudaStorage, $l: &Layout),+) -> Result<(CudaStorage, Shape)> {
                no_code(self.name(), "cuda")
            }

            /// Never called.
            ///
            /// # Errors
            /// [`Error::DeviceMismatch`].
            #[allow(unused_variables)]
            fn metal_fwd(&self, $($s: &MetalStorage, $l: &Layout),+) -> Result<(MetalStorage, Shape)> {
                no_code(self.name(), "metal")
            }

            /// The gradients of the operands, of operands, result and the result's gradient.
            ///
            /// # Errors
            /// [`Error::BackwardNotSupported`] if the operation has none, as without this method.
            #[allow(unused_variables)]
            fn bwd(&self, $($arg: &Proxy,)+ res: &Proxy, grad_res: &Proxy) -> Result<$bwd> {
                Err(Error::BackwardNotSupported { op: self.name(), site: None })
            }
        }
    };
}

custom_op!(
    /// An operation of one operand.
    CustomOp1, (storage layout), (arg), Option<Proxy>
);
custom_op!(
    /// An operation of two operands.
    CustomOp2, (s1 l1, s2 l2), (arg1, arg2), (Option<Proxy>, Option<Proxy>)
);
custom_op!(
    /// An operation of three operands.
    CustomOp3, (s1 l1, s2 l2, s3 l3), (arg1, arg2, arg3), (Option<Proxy>, Option<Proxy>, Option<Proxy>)
);

macro_rules! inplace_op {
    ($(#[$doc:meta])* $name:ident, ($($s:ident $l:ident),*)) => {
        $(#[$doc])*
        pub trait $name {
            /// The name in errors.
            fn name(&self) -> &'static str;

            /// Changes the first operand's elements; their number stays.
            ///
            /// # Errors
            /// Whatever the operation refuses; the array is unchanged then.
            fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout, $($s: &CpuStorage, $l: &Layout),*) -> Result<()>;

            /// Never called: arrays of other devices are refused.
            ///
            /// # Errors
            /// [`Error::DeviceMismatch`].
            #[allow(unused_variables)]
            fn cuda_fwd(
                &self, storage: &mut CudaStorage, layout: &Layout, $($s: &CudaStorage, $l: &Layout),*
            ) -> Result<()> {
                no_code(self.name(), "cuda")
            }

            /// Never called.
            ///
            /// # Errors
            /// [`Error::DeviceMismatch`].
            #[allow(unused_variables)]
            fn metal_fwd(
                &self, storage: &mut MetalStorage, layout: &Layout, $($s: &MetalStorage, $l: &Layout),*
            ) -> Result<()> {
                no_code(self.name(), "metal")
            }
        }
    };
}

inplace_op!(
    /// A change of one array in place.
    InplaceOp1, ()
);
inplace_op!(
    /// A change of an array in place, with another operand.
    InplaceOp2, (s2 l2)
);
inplace_op!(
    /// A change of an array in place, with two other operands.
    InplaceOp3, (s2 l2, s3 l3)
);

/// The operands on the host.
#[track_caller]
fn gather<const N: usize>(op: &'static str, arrays: [&Proxy; N]) -> Result<[(CpuStorage, Layout); N]> {
    let mut all = Vec::with_capacity(N);
    for array in arrays {
        if !array.device().is_cpu() {
            return no_code(op, &array.device().to_string());
        }
        all.push(CpuStorage::of(op, array)?);
    }
    all.try_into().map_err(|_| Error::msg("one storage an operand"))
}

/// The result of a custom operation, outside the graph.
#[track_caller]
fn forward<const N: usize>(
    op: &'static str,
    arrays: [&Proxy; N],
    fwd: impl FnOnce(&[(CpuStorage, Layout); N]) -> Forward,
) -> Result<Proxy> {
    let all = gather(op, arrays)?;
    let (storage, shape) = users(|| fwd(&all))?;
    storage.into_array(shape)
}

/// The result as a function of the operands.
fn recorded<const N: usize>(
    call: Call,
    arrays: [&Proxy; N],
    result: Proxy,
    bwd: impl Fn(&[Proxy], &Proxy, &Proxy) -> Result<[Option<Proxy>; 3]> + Send + Sync + 'static,
) -> Result<Proxy> {
    let saved = result.with_pinned(call, |array| Saved::of(call, array))?;
    result.with_gradient(call, arrays, true, move |grad, operands, needs| {
        // Arrays of the walk are nobody's to exchange: the next step relies on their shape and dtype.
        let asks = Call { op: call.op, site: composite_site().unwrap_or(call.site) };
        let (result, shown) = (saved.get()?, grad.aside_for(asks)?);
        let mut grads = users(|| bwd(operands, &result, &shown))?;
        for (grad, needed) in grads.iter_mut().zip(needs) {
            *grad = grad.take().filter(|_| needed).map(|grad| grad.aside_for(asks)).transpose()?;
        }
        Ok(grads)
    })
}

/// # Operations of your own: by code for elements
///
/// Operands are on the host; results belong to the owner of this array.
impl Proxy {
    /// Applies a custom operation, with its gradient.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] for an array that is not on the host; those of the operation.
    #[track_caller]
    pub fn apply_op1<C: 'static + CustomOp1 + Send + Sync>(&self, op: C) -> Result<Proxy> {
        self.apply_op1_arc(Arc::new(Box::new(op)))
    }

    /// As [`Proxy::apply_op1`], for an operation that others have too.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op1_arc(&self, op: Arc<Box<dyn CustomOp1 + Send + Sync>>) -> Result<Proxy> {
        let call = Call::here(op.name());
        let mut run = once(|| {
            let result = forward(call.op, [self], |[(s, l)]| op.cpu_fwd(s, l))?;
            recorded(call, [self], result, move |args, res, grad| {
                op.bwd(&args[0], res, grad).map(|grad| [grad, None, None])
            })
        });
        composite(call, self, &mut run)
    }

    /// Applies a custom operation without recording it.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op1_no_bwd<C: CustomOp1>(&self, op: &C) -> Result<Proxy> {
        composite(Call::here(op.name()), self, &mut || forward(op.name(), [self], |[(s, l)]| op.cpu_fwd(s, l)))
    }

    /// Applies a custom operation of two operands, with its gradient.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op2<C: 'static + CustomOp2 + Send + Sync>(&self, rhs: &Proxy, op: C) -> Result<Proxy> {
        self.apply_op2_arc(rhs, Arc::new(Box::new(op)))
    }

    /// As [`Proxy::apply_op2`], for an operation that others have too.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op2_arc(&self, rhs: &Proxy, op: Arc<Box<dyn CustomOp2 + Send + Sync>>) -> Result<Proxy> {
        let call = Call::here(op.name());
        let mut run = once(|| {
            let result = forward(call.op, [self, rhs], |[(s1, l1), (s2, l2)]| op.cpu_fwd(s1, l1, s2, l2))?;
            recorded(call, [self, rhs], result, move |args, res, grad| {
                op.bwd(&args[0], &args[1], res, grad).map(|(a, b)| [a, b, None])
            })
        });
        composite(call, self, &mut run)
    }

    /// Applies a custom operation of two operands without recording it.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op2_no_bwd<C: CustomOp2>(&self, rhs: &Proxy, op: &C) -> Result<Proxy> {
        composite(Call::here(op.name()), self, &mut || {
            forward(op.name(), [self, rhs], |[(s1, l1), (s2, l2)]| op.cpu_fwd(s1, l1, s2, l2))
        })
    }

    /// Applies a custom operation of three operands, with its gradient.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op3<C: 'static + CustomOp3 + Send + Sync>(&self, t2: &Proxy, t3: &Proxy, op: C) -> Result<Proxy> {
        self.apply_op3_arc(t2, t3, Arc::new(Box::new(op)))
    }

    /// As [`Proxy::apply_op3`], for an operation that others have too.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op3_arc(&self, t2: &Proxy, t3: &Proxy, op: Arc<Box<dyn CustomOp3 + Send + Sync>>) -> Result<Proxy> {
        let call = Call::here(op.name());
        let mut run = once(|| {
            let all = [self, t2, t3];
            let result = forward(call.op, all, |[(s1, l1), (s2, l2), (s3, l3)]| op.cpu_fwd(s1, l1, s2, l2, s3, l3))?;
            recorded(call, all, result, move |args, res, grad| {
                op.bwd(&args[0], &args[1], &args[2], res, grad).map(|(a, b, c)| [a, b, c])
            })
        });
        composite(call, self, &mut run)
    }

    /// Applies a custom operation of three operands without recording it.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`].
    #[track_caller]
    pub fn apply_op3_no_bwd<C: CustomOp3>(&self, t2: &Proxy, t3: &Proxy, op: &C) -> Result<Proxy> {
        composite(Call::here(op.name()), self, &mut || {
            let run = |[(s1, l1), (s2, l2), (s3, l3)]: &[(CpuStorage, Layout); 3]| op.cpu_fwd(s1, l1, s2, l2, s3, l3);
            forward(op.name(), [self, t2, t3], run)
        })
    }

    /// Changes this array by a custom operation.
    ///
    /// # Errors
    /// As [`Proxy::apply_op1`] and [`Proxy::copy_`]; [`Error::ElementCount`] if the number of elements changed.
    #[track_caller]
    pub fn inplace_op1<C: InplaceOp1>(&self, op: &C) -> Result<()> {
        let call = Call::here(op.name());
        let run = || {
            let [(mut s, l)] = gather(op.name(), [self])?;
            op.cpu_fwd(&mut s, &l)?;
            self.copy_(&s.into_array(*l.shape())?)
        };
        run().map_err(|error| error.of(call))
    }

    /// Changes this array by a custom operation with another operand.
    ///
    /// # Errors
    /// As [`Proxy::inplace_op1`]; [`Error::Argument`] if an operand shares the bytes that are changed.
    #[track_caller]
    pub fn inplace_op2<C: InplaceOp2>(&self, rhs: &Proxy, op: &C) -> Result<()> {
        let call = Call::here(op.name());
        let run = || {
            check::apart(call, self, &[rhs])?;
            let [(mut s, l), (s2, l2)] = gather(op.name(), [self, rhs])?;
            op.cpu_fwd(&mut s, &l, &s2, &l2)?;
            self.copy_(&s.into_array(*l.shape())?)
        };
        run().map_err(|error| error.of(call))
    }

    /// Changes this array by a custom operation with two other operands.
    ///
    /// # Errors
    /// As [`Proxy::inplace_op2`].
    #[track_caller]
    pub fn inplace_op3<C: InplaceOp3>(&self, t2: &Proxy, t3: &Proxy, op: &C) -> Result<()> {
        let call = Call::here(op.name());
        let run = || {
            check::apart(call, self, &[t2, t3])?;
            let [(mut s, l), (s2, l2), (s3, l3)] = gather(op.name(), [self, t2, t3])?;
            op.cpu_fwd(&mut s, &l, &s2, &l2, &s3, &l3)?;
            self.copy_(&s.into_array(*l.shape())?)
        };
        run().map_err(|error| error.of(call))
    }

    /// A copy of the elements on the host, in row-major order, and their layout. [`Proxy::with_slice`] lends them
    /// without a copy.
    #[track_caller]
    pub fn storage_and_layout(&self) -> (StorageRef, Layout) {
        let (storage, layout) = match no_grad(|| CpuStorage::of("storage_and_layout", self)) {
            Ok((storage, layout)) => (Storage::Cpu(storage), layout),
            Err(error) => (Storage::Unreadable(error), Layout::contiguous(*self.shape())),
        };
        (StorageRef(storage), layout)
    }
}
