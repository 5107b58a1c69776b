//! Results written to an array that is there: `_into(&out)`, and `_` for the operand itself.
//!
//! No gradient is recorded. `out` has the shape and dtype of the result; it may be a view, and may share its bytes with
//! an operand, which is read first. Nothing is changed if there is an error.

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
};
use crate::device::kernel::{CmpOp, Kernel, Map};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        check,
        compose::composite,
        exec::{Once, launch, once},
        inplace::InPlace,
        target::{kernel, pair, write},
    },
    elementwise::{
        scalar::{Scalar, TensorOrScalar},
        unary,
    },
};

macro_rules! compare_into {
    ($($into:ident, $method:ident, $op:ident;)*) => {
        /// # Written to an array that is there: comparisons
        impl Proxy {
            $(
                #[doc = concat!("As [`Proxy::", stringify!($method), "`], written to `out` in u8.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    let call = Call::here(stringify!($into));
                    pair(self, rhs, out, call, false)?;
                    let op = CmpOp::$op;
                    let run: &InPlace<'_, 2> =
                        &|device, dst, [lhs, rhs]| launch(device, &Kernel::Compare { op, lhs, rhs, dst });
                    kernel(call, out, [self, rhs], &|_| Ok(DType::U8), run, &mut || self.$method(rhs))
                }
            )*
        }
    };
}

compare_into! {
    eq_into, eq, Eq;
    ne_into, ne, Ne;
    lt_into, lt, Lt;
    le_into, le, Le;
    gt_into, gt, Gt;
    ge_into, ge, Ge;
}

/// Forms in place of what is computed beside the array and copied.
macro_rules! copied_forms {
    ($($place:ident, $method:ident $(<$($g:ident),*>)? ($($arg:ident: $t:ty),*);)*) => {
        /// # In place: functions that are computed beside the array
        impl Proxy {
            $(
                #[doc = concat!("As [`Proxy::", stringify!($method), "`], in place. Returns this handle's array.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::add_`].
                #[track_caller]
                pub fn $place$(<$($g: TensorOrScalar),*>)?(&self, $($arg: $t),*) -> Result<Proxy> {
                    write(Call::here(stringify!($place)), self, &mut once(|| self.$method($($arg),*)))?;
                    Ok(self.clone())
                }
            )*
        }
    };
}

copied_forms! {
    powf_, powf(exponent: f64);
    clamp_, clamp<A, B>(min: A, max: B);
}

/// A function of one operand and numbers, written to `out`.
fn map_into(
    call: Call,
    x: &Proxy,
    (map, result): (Map, &dyn Fn(DType) -> Result<DType>),
    out: &Proxy,
    value: Once<'_, Proxy>,
) -> Result<()> {
    check::same_shape(call, x.shape(), out.shape(), "the array that is written must have this shape")?;
    kernel(call, out, [x], result, &|device, dst, [src]| launch(device, &Kernel::Map { map, src, dst }), value)
}

/// # Written to an array that is there, and set in place
impl Proxy {
    /// As [`Proxy::affine`], written to `out`, without a gradient.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let rows = Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?;
    /// x.affine_into(2., 1., &rows.get(1)?)?; // a view will do
    /// assert_eq!(rows.to_vec2::<f32>()?, [[0., 0.], [3., 5.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn affine_into(&self, mul: f64, add: f64, out: &Proxy) -> Result<()> {
        let call = Call::here("affine_into");
        let number = |dtype: DType| check::number(call, dtype);
        map_into(call, self, (Map::Affine { mul, add }, &number), out, &mut || self.affine(mul, add))
    }

    /// As [`Proxy::powf`], written to `out`, without a gradient.
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn powf_into(&self, exponent: f64, out: &Proxy) -> Result<()> {
        let call = Call::here("powf_into");
        let float = |dtype: DType| check::float(call, dtype);
        map_into(call, self, (Map::Powf(exponent), &float), out, &mut || self.powf(exponent))
    }

    /// As [`Proxy::clamp`] between numbers, written to `out`, without a gradient.
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn clamp_into(&self, min: f64, max: f64, out: &Proxy) -> Result<()> {
        let call = Call::here("clamp_into");
        unary::check_range([min, max], call)?;
        let number = |dtype: DType| check::number(call, dtype);
        map_into(call, self, (Map::Clamp { min, max }, &number), out, &mut || self.clamp(min, max))
    }

    /// As [`Proxy::where_cond`], written to `out`, without a gradient.
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn where_cond_into(&self, yes: &Proxy, no: &Proxy, out: &Proxy) -> Result<()> {
        write(Call::here("where_cond_into"), out, &mut || self.where_cond(yes, no))
    }

    /// Every element set to one value, exactly also where a double cannot hold it.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(2, DType::U64, &Device::Cpu)?;
    /// x.const_set(u64::MAX.into())?;
    /// assert_eq!(x.to_vec1::<u64>()?, [u64::MAX; 2]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn const_set(&self, value: Scalar) -> Result<()> {
        write(Call::here("const_set"), self, &mut || value.beside(self))
    }

    /// Alias of [`Proxy::zero_`]: candle's name. Returns nothing.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn zero_set(&self) -> Result<()> {
        self.fill_(0.0).map(drop).map_err(|error| error.of("zero_set"))
    }

    /// Every element set to 1.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn one_set(&self) -> Result<()> {
        self.fill_(1.0).map(drop).map_err(|error| error.of("one_set"))
    }

    /// The elements of two arrays of one shape and dtype exchanged, in place: every view of either sees it. To exchange
    /// two handles, `std::mem::swap` costs nothing.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let (x, y) = (Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[3f32, 4.], &Device::Cpu)?);
    /// let first = x.get(0)?;
    /// x.swap_(&y)?;
    /// assert_eq!((first.to_scalar::<f32>()?, y.to_vec1::<f32>()?), (3., vec![1., 2.]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::copy_`].
    #[track_caller]
    pub fn swap_(&self, other: &Proxy) -> Result<()> {
        let call = Call::here("swap_");
        check::open(call, &[self, other])?;
        let mut swap = || {
            let (own, theirs) = no_grad(|| Ok::<_, Error>((self.aside()?.copy()?, other.aside()?.copy()?)))?;
            // Whether the second change is refused is known before the first one is made.
            other.copy_(&theirs)?;
            self.copy_(&theirs)?;
            other.copy_(&own)?;
            Ok(self.clone())
        };
        composite(call, self, &mut swap).map(drop)
    }

    /// The elements replaced by those of an array of the same shape and dtype, in place; returns what they were, in an
    /// array of its own with the owner of this one.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let before = x.replace(&Tensor::new(&[3f32, 4.], &Device::Cpu)?)?;
    /// assert_eq!((before.to_vec1::<f32>()?, x.to_vec1::<f32>()?), (vec![1., 2.], vec![3., 4.]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::copy_`].
    #[track_caller]
    pub fn replace(&self, values: &Proxy) -> Result<Proxy> {
        let call = Call::here("replace");
        check::open(call, &[self, values])?;
        composite(call, self, &mut || {
            let old = no_grad(|| self.aside()?.copy())?;
            self.copy_(values)?;
            Ok(old)
        })
    }

    /// Every element drawn anew, uniform in `[low, high)`, in place.
    ///
    /// # Errors
    /// As [`Proxy::rand_like`] and [`Proxy::add_`].
    #[track_caller]
    pub fn uniform_(&self, low: f64, high: f64) -> Result<Proxy> {
        write(Call::here("uniform_"), self, &mut || self.rand_like(low, high))?;
        Ok(self.clone())
    }

    /// Every element drawn anew from a normal distribution, in place.
    ///
    /// # Errors
    /// As [`Proxy::randn_like`] and [`Proxy::add_`].
    #[track_caller]
    pub fn normal_(&self, mean: f64, std: f64) -> Result<Proxy> {
        write(Call::here("normal_"), self, &mut || self.randn_like(mean, std))?;
        Ok(self.clone())
    }

    /// Alias of [`Proxy::is_unique`]: Burn's name. Whether a change in place, or an operator that gets this handle by
    /// value, would be seen by nobody else.
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn can_mut(&self) -> Result<bool> {
        self.is_unique()
    }
}
