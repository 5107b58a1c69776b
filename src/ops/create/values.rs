//! Making arrays: with a device (their handles own them) or with a manager (it does).

use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::{Error, Result},
    heap,
    literal::NdLiteral,
    shape::{Shape, ShapeWithOneHole},
};
use crate::device::kernel::Kernel;
use crate::memory::{manager::NdManager, proxy::Proxy, workspace::block};
use crate::ops::{
    call::{
        check,
        exec::{compose_at, launch},
        inplace::like,
        make::make,
        place::Place,
    },
    exchange::foreign::of_vec,
};

/// An array of a copy of these elements.
pub(crate) fn of_elements(call: Call, data: &[u8], (shape, dtype): (Shape, DType), at: &dyn Place) -> Result<Proxy> {
    make(call, shape, dtype, at, false, &mut |out| {
        let given = data.len() / dtype.size_in_bytes();
        if given != shape.elem_count() {
            return Err(Error::element_count(call, given, shape.dims()));
        }
        out.buffer().upload(data)
    })
}

/// An array of these elements, or unsigned integers of their size, in the vector's memory if it may take that.
pub(crate) fn of_values<T: WithDType>(
    call: Call,
    data: Vec<T>,
    (shape, dtype): (Shape, DType),
    at: &dyn Place,
) -> Result<Proxy> {
    match of_vec(call, data, (shape, dtype), at) {
        Ok(taken) => taken,
        Err(data) => of_elements(call, T::bytes_of(&data), (shape, dtype), at),
    }
}

/// # Making arrays: of values
impl Proxy {
    /// An array of a number, or of nested arrays, slices and vectors of numbers.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if vectors beside each other differ in length; [`Error::Shape`] if nothing says how
    /// long an inner one is; as [`Proxy::zeros`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// assert_eq!(a.dims(), [2, 2]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn new<L: NdLiteral>(data: L, at: &(impl Place + ?Sized)) -> Result<Self> {
        let call = Call::here("new");
        let (shape, data) = call.named(data.flatten())?;
        of_elements(call, L::Elem::bytes_of(&data), (shape, L::Elem::DTYPE), &at)
    }

    /// An array of the elements of a slice, in row-major order. The shape may have a hole, as for [`Proxy::reshape`].
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let data = [1f32, 2., 3., 4., 5., 6.];
    /// let x = Tensor::from_slice(&data, (2, ()), &Device::Cpu)?; // a copy
    /// assert_eq!(x.dims(), [2, 3]);
    /// let refused = Tensor::from_slice(&data, (2, 2), &Device::Cpu);
    /// assert!(matches!(refused, Err(Error::ElementCount { given: 6, .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the shape holds another number of elements, [`Error::Reshape`] if no size fits its
    /// hole; as [`Proxy::zeros`].
    #[track_caller]
    pub fn from_slice<S: ShapeWithOneHole, T: WithDType>(
        data: &[T],
        shape: S,
        at: &(impl Place + ?Sized),
    ) -> Result<Self> {
        let call = Call::here("from_slice");
        let shape = call.named(shape.into_shape(data.len()))?;
        of_elements(call, T::bytes_of(data), (shape, T::DTYPE), &at)
    }

    /// An array of the elements of a vector, in row-major order. On the host it takes the vector's memory, if that is
    /// 4 KiB at least; the bytes are counted, and freed with the array's storage.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let data = vec![0.5f32; 2048]; // 8 KiB
    /// let place = data.as_ptr();
    /// let x = Tensor::from_vec(data, (2, 1024), &Device::Cpu)?;
    /// assert!(x.with_slice(|elements: &[f32]| elements.as_ptr() == place)?); // nothing was copied
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::from_slice`].
    #[track_caller]
    pub fn from_vec<S: ShapeWithOneHole, T: WithDType>(
        data: Vec<T>,
        shape: S,
        at: &(impl Place + ?Sized),
    ) -> Result<Self> {
        let call = Call::here("from_vec");
        let shape = call.named(shape.into_shape(data.len()))?;
        of_values(call, data, (shape, T::DTYPE), &at)
    }

    /// An array of zeros.
    ///
    /// Made with a [`Device`](crate::Device), its handles own it; made with an [`NdManager`], that does.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager, Tensor};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let y = Tensor::zeros((2, 3), DType::F32, &manager)?;
    /// manager.close()?;
    /// assert!(x.is_open() && !y.is_open());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::ManagerClosed`], [`Error::ManagerCapped`]: nothing is allocated.
    /// - [`Error::OutOfMemory`], [`Error::RankTooLarge`], [`Error::SizeOverflow`].
    #[track_caller]
    pub fn zeros<S: Into<Shape>>(shape: S, dtype: DType, at: &(impl Place + ?Sized)) -> Result<Self> {
        make(Call::here("zeros"), shape.into(), dtype, &at, true, &mut |_| Ok(()))
    }

    /// An array of zeros; but in the file of a mapped workspace
    /// ([`LocationPolicy::Mmap`](crate::LocationPolicy::Mmap)), whose bytes stay from cycle to cycle, an array of what
    /// the file has at its place. Zeros there too are: what the workspace has no room for, which does not lie in the
    /// file, and booleans, for which not every byte is a value.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn empty<S: Into<Shape>>(shape: S, dtype: DType, at: &(impl Place + ?Sized)) -> Result<Self> {
        make(Call::here("empty"), shape.into(), dtype, &at, false, &mut |out| {
            if dtype != DType::Bool && out.storage.part().is_some_and(|part| block::is_file(part.block)) {
                return Ok(());
            }
            out.buffer().zero()
        })
    }

    /// An array of ones.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::ones((), DType::F32, &Device::Cpu)?; // a scalar: no axes, one element
    /// assert_eq!((x.rank(), x.elem_count(), x.to_scalar::<f32>()?), (0, 1, 1.));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn ones<S: Into<Shape>>(shape: S, dtype: DType, at: &(impl Place + ?Sized)) -> Result<Self> {
        filled(Call::here("ones"), shape.into(), dtype, &at, 1.0)
    }

    /// An array that repeats one value.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::full(u64::MAX, (2, 3), &Device::Cpu)?; // the dtype is the value's
    /// assert_eq!(x.dtype(), DType::U64);
    /// assert_eq!(x.to_vec::<u64>()?, [u64::MAX; 6]); // exactly, where a double is not
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[doc(alias = "valueArrayOf")]
    #[track_caller]
    pub fn full<T: WithDType, S: Into<Shape>>(value: T, shape: S, at: &(impl Place + ?Sized)) -> Result<Self> {
        let (call, shape) = (Call::here("full"), shape.into());
        if T::DTYPE.is_int() && T::DTYPE.size_in_bytes() == 8 {
            // A large one would lose bits as a double.
            let device = at.device_of_place();
            return compose_at(call, &at, &mut || {
                of_elements(call, T::bytes_of(&[value]), (Shape::SCALAR, T::DTYPE), device)?.broadcast_as(shape)?.copy()
            });
        }
        filled(call, shape, T::DTYPE, &at, value.to_f64())
    }

    /// `start, start + 1, ..` up to but without `end`.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// assert_eq!(Tensor::arange(0f32, 2.5, &Device::Cpu)?.to_vec1::<f32>()?, [0., 1., 2.]);
    /// assert_eq!(Tensor::arange(3u32, 3, &Device::Cpu)?.dims(), [0]); // nothing lies between
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::arange_step`].
    #[track_caller]
    pub fn arange<T: WithDType>(start: T, end: T, at: &(impl Place + ?Sized)) -> Result<Self> {
        arange(Call::here("arange"), start, end, T::from_f64(1.0), &at)
    }

    /// `start, start + step, ..` up to but without `end`.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let down = Tensor::arange_step(1f32, 0., -0.25, &Device::Cpu)?;
    /// assert_eq!(down.to_vec1::<f32>()?, [1., 0.75, 0.5, 0.25]);
    /// assert!(matches!(Tensor::arange_step(0u32, 4, 0, &Device::Cpu), Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the step is 0 or not a number; as [`Proxy::zeros`].
    #[track_caller]
    pub fn arange_step<T: WithDType>(start: T, end: T, step: T, at: &(impl Place + ?Sized)) -> Result<Self> {
        arange(Call::here("arange_step"), start, end, step, &at)
    }

    /// Zeros of the shape, dtype, device and owner of this array.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = model.ones((2, 3), DType::U8)?;
    /// let y = x.zeros_like()?;
    /// assert_eq!((y.dims(), y.dtype()), (x.dims(), DType::U8));
    /// assert_eq!(y.manager()?.uuid(), model.uuid());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::zeros`]; [`Error::StaleArray`].
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Self> {
        like(Call::here("zeros_like"), self, 0.0)
    }

    /// Ones of the shape, dtype, device and owner of this array.
    ///
    /// # Errors
    /// As [`Proxy::zeros_like`].
    #[track_caller]
    pub fn ones_like(&self) -> Result<Self> {
        like(Call::here("ones_like"), self, 1.0)
    }

    /// One value in the shape, dtype, device and owner of this array.
    ///
    /// # Errors
    /// As [`Proxy::zeros_like`].
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Result<Self> {
        like(Call::here("full_like"), self, value)
    }
}

fn filled(call: Call, shape: Shape, dtype: DType, at: &dyn Place, value: f64) -> Result<Proxy> {
    make(call, shape, dtype, at, false, &mut |out| launch(out.device(), &Kernel::Fill { dst: out.view(), value }))
}

/// The first integer after which doubles have gaps.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// As [`arange`], in the numbers' own type.
fn large_arange<T: WithDType>(call: Call, start: T, end: T, step: T, at: &dyn Place) -> Result<Proxy> {
    let (first, last, by) = (start.to_i128(), end.to_i128(), step.to_i128());
    let count = if by > 0 { (last - first + by - 1) / by } else { (last - first + by + 1) / by };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    Shape::from(count).check(call, size_of::<T>())?;
    let mut values: Vec<T> = call.named(heap::room(call.op, count))?;
    let mut value = first;
    for _ in 0..count {
        values.push(T::from_i128(value));
        value += by;
    }
    of_elements(call, T::bytes_of(&values), (Shape::from(count), T::DTYPE), at)
}

fn arange<T: WithDType>(call: Call, start: T, end: T, step: T, at: &dyn Place) -> Result<Proxy> {
    check::number(call, T::DTYPE)?;
    let (first, last, by) = (start.to_f64(), end.to_f64(), step.to_f64());
    let steps = ((last - first) / by).ceil();
    if by == 0.0 || !steps.is_finite() || steps > isize::MAX as f64 {
        let value = format!("{by} from {first} to {last}");
        return Err(Error::argument(call, "step", value, "a step that reaches the end"));
    }
    let steps = steps.max(0.0) as usize;
    if const { !T::DTYPE.is_float() } && first.abs().max(last.abs()) >= EXACT {
        // Doubles cannot tell these numbers apart.
        return large_arange(call, start, end, step, at);
    }
    make(call, Shape::from(steps), T::DTYPE, at, false, &mut |out| {
        launch(out.device(), &Kernel::Arange { dst: out.view(), start: first, step: by })
    })
}

/// # Making arrays that it owns
impl NdManager {
    /// An array of zeros that this manager owns. See [`Proxy::zeros`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, NdManager};
    /// let batch = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = batch.zeros((2, 3), DType::F32)?;
    /// assert_eq!((x.manager()?.uuid(), batch.array_count()), (batch.uuid(), 1));
    /// batch.close()?; // ends `x` too
    /// assert!(matches!(batch.zeros((2, 3), DType::F32), Err(Error::ManagerClosed { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn zeros<S: Into<Shape>>(&self, shape: S, dtype: DType) -> Result<Proxy> {
        Proxy::zeros(shape, dtype, self)
    }

    /// An array of ones that this manager owns.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn ones<S: Into<Shape>>(&self, shape: S, dtype: DType) -> Result<Proxy> {
        Proxy::ones(shape, dtype, self)
    }

    /// An array that repeats one value, that this manager owns.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn full<T: WithDType, S: Into<Shape>>(&self, value: T, shape: S) -> Result<Proxy> {
        Proxy::full(value, shape, self)
    }

    /// An array of numbers that this manager owns. See [`Proxy::new`].
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let batch = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = batch.create([[1u8, 2, 3], [4, 5, 6]])?;
    /// assert_eq!((x.dims(), x.dtype()), (&[2usize, 3][..], DType::U8));
    /// assert_eq!(x.manager()?.uuid(), batch.uuid());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn create<L: NdLiteral>(&self, data: L) -> Result<Proxy> {
        Proxy::new(data, self)
    }

    /// An array of a slice's elements that this manager owns.
    ///
    /// # Errors
    /// As [`Proxy::from_slice`].
    #[track_caller]
    pub fn from_slice<S: ShapeWithOneHole, T: WithDType>(&self, data: &[T], shape: S) -> Result<Proxy> {
        Proxy::from_slice(data, shape, self)
    }

    /// An array of a vector's elements that this manager owns.
    ///
    /// # Errors
    /// As [`Proxy::from_slice`].
    #[track_caller]
    pub fn from_vec<S: ShapeWithOneHole, T: WithDType>(&self, data: Vec<T>, shape: S) -> Result<Proxy> {
        Proxy::from_vec(data, shape, self)
    }

    /// `start, start + 1, ..` without `end`, that this manager owns.
    ///
    /// # Errors
    /// As [`Proxy::arange_step`].
    #[track_caller]
    pub fn arange<T: WithDType>(&self, start: T, end: T) -> Result<Proxy> {
        Proxy::arange(start, end, self)
    }

    /// Uniform random numbers that this manager owns. See [`Proxy::rand`].
    ///
    /// # Errors
    /// As [`Proxy::rand`].
    #[track_caller]
    pub fn rand<S: Into<Shape>, T: WithDType>(&self, low: T, high: T, shape: S) -> Result<Proxy> {
        Proxy::rand(low, high, shape, self)
    }

    /// Normal random numbers that this manager owns. See [`Proxy::randn`].
    ///
    /// # Errors
    /// As [`Proxy::randn`].
    #[track_caller]
    pub fn randn<S: Into<Shape>, T: WithDType>(&self, mean: T, std: T, shape: S) -> Result<Proxy> {
        Proxy::randn(mean, std, shape, self)
    }
}
