//! A cycle whose arrays cannot leave it by the type system.
//!
//! Each array carries the lifetime of its scope as a brand; the scope's closure must work for every lifetime, so
//! nothing that it returns or keeps outside can name one. What is caught here at compile time, [`Error::LeakedArray`]
//! catches everywhere else when it is used.

use std::marker::PhantomData;

use crate::base::{
    dtype::{DType, WithDType},
    error::Result,
    shape::{Dims, Shape, ShapeWithOneHole},
};
use crate::memory::{
    proxy::Proxy,
    workspace::{Workspace, WorkspaceCycle},
};

#[cfg(doc)]
use crate::base::error::Error;

/// Invariant in `'ws`: no lifetime stands for another.
type Brand<'ws> = PhantomData<fn(&'ws ()) -> &'ws ()>;

/// A running cycle, in which arrays with its brand are made. See [`Workspace::scope`].
#[derive(Debug)]
pub struct Scope<'ws> {
    cycle: WorkspaceCycle,
    brand: Brand<'ws>,
}

/// An array that lives as long as the scope `'ws`.
#[derive(Clone, Debug)]
pub struct Scoped<'ws> {
    array: Proxy,
    brand: Brand<'ws>,
}

/// # Cycles that the compiler ties arrays to
impl Workspace {
    /// Runs `f` in a cycle of this workspace. Arrays made through the scope carry its brand, and cannot leave `f`:
    ///
    /// ```
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// let workspace = Workspace::for_current_thread("BRAND", &WorkspaceConfig::default())?;
    /// let kept = workspace.scope(|ws| {
    ///     let x = ws.new_array(&[1f32, 2., 3.])?;
    ///     let y = (&x * 2.)?.exp()?;
    ///     Ok(y.sum_all()?.detach()) // a copy may leave
    /// })?;
    /// assert!(!kept.is_attached());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// Returned:
    /// ```compile_fail
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// # let workspace = Workspace::for_current_thread("BRAND", &WorkspaceConfig::default())?;
    /// let kept = workspace.scope(|ws| {
    ///     let x = ws.new_array(&[1f32, 2., 3.])?;
    ///     Ok(x)
    /// })?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// Put into something outside:
    /// ```compile_fail
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// # let workspace = Workspace::for_current_thread("BRAND", &WorkspaceConfig::default())?;
    /// let mut kept = Vec::new();
    /// workspace.scope(|ws| {
    ///     kept.push(ws.new_array(&[1f32, 2., 3.])?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// Taken into another scope than its own:
    /// ```compile_fail
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// # let workspace = Workspace::for_current_thread("BRAND", &WorkspaceConfig::default())?;
    /// # let other = Workspace::for_current_thread("OTHER", &WorkspaceConfig::default())?;
    /// workspace.scope(|outer| {
    ///     let x = outer.new_array(&[1f32, 2., 3.])?;
    ///     other.scope(|inner| x.add(&inner.new_array(&[1f32, 2., 3.])?).map(|y| y.detach()))
    /// })?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`Workspace::activate`]; what `f` returns.
    pub fn scope<R>(&self, f: impl for<'ws> FnOnce(&Scope<'ws>) -> Result<R>) -> Result<R> {
        f(&Scope { cycle: self.activate()?, brand: PhantomData })
    }
}

impl<'ws> Scope<'ws> {
    /// The workspace.
    pub fn workspace(&self) -> &Workspace {
        &self.cycle
    }

    fn branded(&self, array: Result<Proxy>) -> Result<Scoped<'ws>> {
        array.map(|array| Scoped { array, brand: PhantomData })
    }

    /// What `f` makes, as an array of this scope: a layer's output, whatever has no method here.
    ///
    /// A handle that `f` puts aside is not caught by the compiler, but when it is used.
    ///
    /// # Errors
    /// Those of `f`.
    #[track_caller]
    pub fn make(&self, f: impl FnOnce() -> Result<Proxy>) -> Result<Scoped<'ws>> {
        self.branded(f())
    }

    /// An array from outside, as an operand in here.
    pub fn lend(&self, array: &Proxy) -> Scoped<'ws> {
        Scoped { array: array.clone(), brand: PhantomData }
    }

    /// Zeros, on the workspace's device.
    ///
    /// # Errors
    /// As [`Proxy::zeros`].
    #[track_caller]
    pub fn zeros<S: Into<Shape>>(&self, shape: S, dtype: DType) -> Result<Scoped<'ws>> {
        self.branded(Proxy::zeros(shape, dtype, self.cycle.device()))
    }

    /// Ones, on the workspace's device.
    ///
    /// # Errors
    /// As [`Proxy::ones`].
    #[track_caller]
    pub fn ones<S: Into<Shape>>(&self, shape: S, dtype: DType) -> Result<Scoped<'ws>> {
        self.branded(Proxy::ones(shape, dtype, self.cycle.device()))
    }

    /// A number or nested arrays, on the workspace's device.
    ///
    /// # Errors
    /// As [`Proxy::new`].
    #[track_caller]
    pub fn new_array<L: crate::NdLiteral>(&self, data: L) -> Result<Scoped<'ws>> {
        self.branded(Proxy::new(data, self.cycle.device()))
    }

    /// A slice's elements, on the workspace's device.
    ///
    /// # Errors
    /// As [`Proxy::from_slice`].
    #[track_caller]
    pub fn from_slice<S: ShapeWithOneHole, T: WithDType>(&self, data: &[T], shape: S) -> Result<Scoped<'ws>> {
        self.branded(Proxy::from_slice(data, shape, self.cycle.device()))
    }
}

macro_rules! of_one {
    ($($name:ident)*) => {$(
        #[doc = concat!("As [`Proxy::", stringify!($name), "`].")]
        ///
        /// # Errors
        #[doc = concat!("As [`Proxy::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(&self) -> Result<Self> {
            self.then(self.array.$name())
        }
    )*};
}

macro_rules! of_two {
    ($($name:ident)*) => {$(
        #[doc = concat!("As [`Proxy::", stringify!($name), "`].")]
        ///
        /// # Errors
        #[doc = concat!("As [`Proxy::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(&self, rhs: &Self) -> Result<Self> {
            self.then(Proxy::$name(&self.array, &rhs.array))
        }
    )*};
}

macro_rules! with_arguments {
    ($($name:ident [$($g:ident: $b:path),*] ($($arg:ident: $t:ty),*);)*) => {$(
        #[doc = concat!("As [`Proxy::", stringify!($name), "`].")]
        ///
        /// # Errors
        #[doc = concat!("As [`Proxy::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name<$($g: $b),*>(&self, $($arg: $t),*) -> Result<Self> {
            self.then(self.array.$name($($arg),*))
        }
    )*};
}

impl Scoped<'_> {
    fn then(&self, array: Result<Proxy>) -> Result<Self> {
        array.map(|array| Scoped { array, brand: self.brand })
    }

    of_one! { sum_all mean_all t flatten_all contiguous copy }
    of_two! { matmul broadcast_matmul }
    with_arguments! {
        sum[D: Dims](dims: D);
        mean[D: Dims](dims: D);
        sum_keepdim[D: Dims](dims: D);
        mean_keepdim[D: Dims](dims: D);
        reshape[S: ShapeWithOneHole](shape: S);
        affine[](mul: f64, add: f64);
        powf[](exponent: f64);
    }

    /// What `f` makes of the array, in the same scope: for operations that have no method here.
    ///
    /// A handle that `f` puts aside is not caught by the compiler, but when it is used.
    ///
    /// # Errors
    /// Those of `f`.
    #[track_caller]
    pub fn map(&self, f: impl FnOnce(&Proxy) -> Result<Proxy>) -> Result<Self> {
        self.then(f(&self.array))
    }

    /// A copy that may leave the scope. See [`Proxy::detach`].
    #[track_caller]
    pub fn detach(&self) -> Proxy {
        self.array.detach()
    }

    /// A copy in the workspace around this one, or a detached one. See [`Proxy::leverage`].
    ///
    /// # Errors
    /// As [`Proxy::leverage`].
    #[track_caller]
    pub fn leverage(&self) -> Result<Proxy> {
        self.array.leverage()
    }

    /// Size along each axis.
    pub fn dims(&self) -> &[usize] {
        self.array.dims()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.array.dtype()
    }

    /// The only element.
    ///
    /// # Errors
    /// As [`Proxy::to_scalar`].
    #[track_caller]
    pub fn to_scalar<T: WithDType>(&self) -> Result<T> {
        self.array.to_scalar()
    }

    /// All elements in row-major order.
    ///
    /// # Errors
    /// As [`Proxy::to_vec`].
    #[track_caller]
    pub fn to_vec<T: WithDType>(&self) -> Result<Vec<T>> {
        self.array.to_vec()
    }
}

macro_rules! unary_forms {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $($form:ident)*] $kind:ident $value:tt $gradient:tt)*) => {
        impl Scoped<'_> {
            of_one! { $($name)* }
        }
    };
}
ndgc_kernels::for_each_unary!(unary_forms);

macro_rules! binary_forms {
    ([] $($(#[$doc:meta])* $op:ident
        [$name:ident $broadcast:ident $($form:ident)*] $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        impl Scoped<'_> {
            of_two! { $($name)* $($broadcast)* }
        }
    };
}
ndgc_kernels::for_each_binary!(binary_forms);

macro_rules! operators {
    ($($trait:ident $name:ident)*) => {$(
        impl<'ws> std::ops::$trait<&Scoped<'ws>> for &Scoped<'ws> {
            type Output = Result<Scoped<'ws>>;
            #[track_caller]
            fn $name(self, rhs: &Scoped<'ws>) -> Self::Output {
                self.then(std::ops::$trait::$name(&self.array, &rhs.array))
            }
        }

        impl<'ws> std::ops::$trait<f64> for &Scoped<'ws> {
            type Output = Result<Scoped<'ws>>;
            #[track_caller]
            fn $name(self, rhs: f64) -> Self::Output {
                self.then(std::ops::$trait::$name(&self.array, rhs))
            }
        }
    )*};
}
operators! { Add add Sub sub Mul mul Div div }
