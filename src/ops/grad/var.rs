//! Variables: arrays that gradients are wanted for.

use std::ops::Deref;
use std::panic::Location;

use crate::array::autograd::{leaf, no_grad};
use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::{Error, Result},
    literal::NdLiteral,
    shape::{Shape, ShapeWithOneHole},
};
use crate::memory::{proxy::Proxy, registry::Parts, workspace::Workspace};
use crate::ops::call::{
    check,
    compose::composite_at,
    exec::{adopt_for, enter, named, pin},
    place::Place,
};

/// An array of floats that gradients are recorded for: a leaf of the graph. Dereferences to [`Proxy`].
#[derive(Clone)]
pub struct Var(Proxy);

impl Deref for Var {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.0
    }
}

impl std::fmt::Debug for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Var({:?})", self.0)
    }
}

impl Var {
    /// A variable with a copy of the array's values and the array's owner; the variable itself, if the array is one. No
    /// workspace takes it: of an array of one, its handles own the variable.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager, Var};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let start = model.ones(3, DType::F32)?;
    /// let w = Var::from_tensor(&start)?;
    /// assert!(w.is_variable() && !w.is_same(&start)); // a copy
    /// assert_eq!((w.manager()?.uuid(), model.array_count()), (model.uuid(), 2));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] if it holds no floats; as any operation.
    #[track_caller]
    pub fn from_tensor(array: &Proxy) -> Result<Self> {
        let call = Call::here("var");
        check::float(call, array.dtype())?;
        if array.is_variable() {
            return Ok(Var(array.clone()));
        }
        let _out = Workspace::scope_out();
        let copy = named(call.site, no_grad(|| array.duplicate()))?;
        Self::of_bytes(call, copy, array)
    }

    /// A variable with the bytes of an array that nobody else has, which is closed, and with the owner of another.
    fn of_bytes(call: Call, array: Proxy, owner: &Proxy) -> Result<Self> {
        // A variable outlives the cycle in which it is made.
        let _out = Workspace::scope_out();
        let made = enter(call, |context| {
            let owner = (owner.key(), owner.owner(call.op)?);
            let pins = pin(context, call.op, [&array])?;
            let [pinned] = pins.arrays();
            check::float(call, pinned.dtype)?;
            let (storage, layout, dtype) = (pinned.storage.clone(), *pinned.layout, pinned.dtype);
            drop(pins);
            // Before: its place with a manager may be the last one, and is the variable's then.
            array.close();
            adopt_for(call, context, Parts { dtype, layout: &layout, storage, node: leaf() }, owner).map(Var)
        });
        // Also where it was refused: with the switch off its manager would keep it.
        array.close();
        made
    }

    /// A variable of zeros.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Var};
    /// assert!(Var::zeros(3, DType::F32, &Device::Cpu)?.is_variable());
    /// let whole = Var::zeros(3, DType::U32, &Device::Cpu); // integers have no gradients
    /// assert!(matches!(whole, Err(Error::UnsupportedDType { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::zeros`] and [`Var::from_tensor`].
    #[track_caller]
    pub fn zeros<S: Into<Shape>>(shape: S, dtype: DType, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::consume(Proxy::zeros(shape, dtype, at)?)
    }

    /// A variable of ones.
    ///
    /// # Errors
    /// As [`Proxy::zeros`] and [`Var::from_tensor`].
    #[track_caller]
    pub fn ones<S: Into<Shape>>(shape: S, dtype: DType, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::consume(Proxy::ones(shape, dtype, at)?)
    }

    /// A variable of a vector's elements.
    ///
    /// # Errors
    /// As [`Proxy::from_slice`] and [`Var::from_tensor`].
    #[track_caller]
    pub fn from_vec<S: ShapeWithOneHole, T: WithDType>(
        data: Vec<T>,
        shape: S,
        at: &(impl Place + ?Sized),
    ) -> Result<Self> {
        Self::consume(Proxy::from_vec(data, shape, at)?)
    }

    /// A variable of normal random numbers.
    ///
    /// # Errors
    /// As [`Proxy::randn`].
    #[track_caller]
    pub fn randn<S: Into<Shape>, T: WithDType>(mean: T, std: T, shape: S, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::consume(Proxy::randn(mean, std, shape, at)?)
    }

    /// A variable of a number, or of nested arrays, slices and vectors of numbers.
    ///
    /// ```
    /// # use ndgc::{Device, Var};
    /// let w = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// let grads = w.sqr()?.sum_all()?.backward()?;
    /// assert_eq!(grads.get(&w).expect("the sum is of it").to_vec1::<f32>()?, [2., 4., 6.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::new`] and [`Var::from_tensor`].
    #[track_caller]
    pub fn new<L: NdLiteral>(data: L, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::consume(Proxy::new(data, at)?)
    }

    /// A variable of a slice's elements.
    ///
    /// # Errors
    /// As [`Proxy::from_slice`] and [`Var::from_tensor`].
    #[track_caller]
    pub fn from_slice<S: ShapeWithOneHole, T: WithDType>(
        data: &[T],
        shape: S,
        at: &(impl Place + ?Sized),
    ) -> Result<Self> {
        Self::consume(Proxy::from_slice(data, shape, at)?)
    }

    /// A variable of uniform random numbers.
    ///
    /// # Errors
    /// As [`Proxy::rand`].
    #[track_caller]
    pub fn rand<S: Into<Shape>, T: WithDType>(low: T, high: T, shape: S, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::consume(Proxy::rand(low, high, shape, at)?)
    }

    /// A variable of uniform random numbers of a float type.
    ///
    /// # Errors
    /// As [`Proxy::rand`]; [`Error::UnsupportedDType`] for integers.
    #[track_caller]
    pub fn rand_f64<S: Into<Shape>>(
        low: f64,
        high: f64,
        shape: S,
        dtype: DType,
        at: &(impl Place + ?Sized),
    ) -> Result<Self> {
        Self::drawn((shape.into(), dtype), &at, |zeros| zeros.rand_like(low, high))
    }

    /// A variable of normal random numbers of a float type.
    ///
    /// # Errors
    /// As [`Var::rand_f64`].
    #[track_caller]
    pub fn randn_f64<S: Into<Shape>>(
        mean: f64,
        std: f64,
        shape: S,
        dtype: DType,
        at: &(impl Place + ?Sized),
    ) -> Result<Self> {
        Self::drawn((shape.into(), dtype), &at, |zeros| zeros.randn_like(mean, std))
    }

    #[track_caller]
    fn drawn((shape, dtype): (Shape, DType), at: &dyn Place, draw: impl Fn(&Proxy) -> Result<Proxy>) -> Result<Self> {
        let mut like = || draw(&Proxy::zeros(shape, dtype, at.device_of_place())?);
        Self::consume(composite_at(Call::here("var"), at, &mut like)?)
    }

    /// The array, as an operand like any other, without the wrapper.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Var};
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?.into_inner();
    /// assert!(w.is_variable()); // gradients are recorded for it as before
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn into_inner(self) -> Proxy {
        self.0
    }

    /// A variable of an array that nobody else has: the array is closed, its bytes stay with the variable. Those of a
    /// workspace are copied out of it.
    #[track_caller]
    pub(crate) fn consume(array: Proxy) -> Result<Self> {
        if array.is_attached() {
            let variable = Self::from_tensor(&array);
            array.close();
            return variable;
        }
        Self::of_bytes(Call::here("var"), array.clone(), &array)
    }

    /// The array, as an operand like any other.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Var};
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// let refused = w.as_tensor().zero_(); // gradients that were recorded would be wrong
    /// assert!(matches!(refused, Err(Error::Tracked { .. }))); // Var::set, or no_grad
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn as_tensor(&self) -> &Proxy {
        &self.0
    }

    /// The variable's values outside the graph, in a handle-owned array that shares its bytes.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Var};
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// let seen = w.as_detached_tensor();
    /// w.set(&Tensor::zeros(3, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(seen.to_vec1::<f32>()?, [0.; 3]); // the same bytes
    /// assert!(!seen.track_op());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn as_detached_tensor(&self) -> Proxy {
        self.0.detach()
    }

    /// Replaces the values by those of an array of the same shape and dtype, in place.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Var};
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// let same = w.clone();
    /// w.set(&Tensor::zeros(3, DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(same.to_vec1::<f32>()?, [0.; 3]); // in place, for all handles
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::copy_`].
    #[track_caller]
    pub fn set(&self, values: &Proxy) -> Result<()> {
        let site = Location::caller();
        named(site, no_grad(|| self.0.copy_(values)))
    }
}

impl TryFrom<Proxy> for Var {
    type Error = Error;

    fn try_from(array: Proxy) -> Result<Self> {
        Var::from_tensor(&array)
    }
}
