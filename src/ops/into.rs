//! Results written to an array that is there: `_into(&out)`, and `_` for the operand itself.
//!
//! No gradient is recorded. `out` has the shape and dtype of the result; it may be a view, and may share its bytes with
//! an operand, which is read first. Nothing is changed if there is an error.

use std::panic::Location;

use crate::array::autograd::no_grad;
use crate::base::{
    dtype::DType,
    error::{Error, Result, Site},
};
use crate::device::kernel::{BinaryOp, CmpOp, Kernel, UnaryOp};
use crate::memory::proxy::Proxy;
use crate::ops::{
    binary, check,
    compose::{renamed, whole},
    inplace::{Change, into},
    scalar::TensorOrScalar,
    unary,
};

/// Writes what `value` computes to `out`.
fn write(out: &Proxy, op: &'static str, site: Site, value: impl FnOnce() -> Result<Proxy>) -> Result<()> {
    let write = || {
        let value = no_grad(value)?;
        out.copy_(&value)?;
        Ok(out.clone())
    };
    whole(op, site, out, write).map(drop)
}

/// Writes the result of a kernel of `N` operands, each of which has the shape of `out` or is broadcast to it, to `out`:
/// by the kernel itself if `out` is contiguous, else by way of `value`.
fn kernel<const N: usize>(
    out: &Proxy,
    operands: [&Proxy; N],
    dtype: DType,
    (op, site): (&'static str, Site),
    kernel: &Change<'_, N>,
    value: impl FnOnce() -> Result<Proxy>,
) -> Result<()> {
    check::open(op, &operands)?;
    check::open_as(op, out, 2)?;
    if out.dtype() != dtype {
        return Err(Error::DTypeMismatch { op, lhs: dtype, rhs: out.dtype() });
    }
    if !out.is_contiguous() {
        return write(out, op, site, value);
    }
    let run = || {
        let wide =
            |x: &Proxy| no_grad(|| if x.shape() == out.shape() { Ok(x.clone()) } else { x.broadcast_as(out.shape()) });
        let mut operands = operands.map(Proxy::clone);
        for operand in &mut operands {
            *operand = wide(operand)?;
        }
        into(out, std::array::from_fn(|i| &operands[i]), op, site, kernel)?;
        Ok(out.clone())
    };
    whole(op, site, out, run).map(drop)
}

/// That the common shape of two operands is that of `out`, and their dtypes are one.
fn pair(a: &Proxy, b: &Proxy, out: &Proxy, op: &'static str, broadcast: bool) -> Result<()> {
    let hint = "the operation wants equal shapes; use the broadcast_ form to repeat axes of size 1";
    let shape = match broadcast {
        true => a.shape().broadcast(b.shape(), op)?,
        false => check::same_shape(op, a.shape(), b.shape(), hint).map(|()| *a.shape())?,
    };
    check::same_shape(op, &shape, out.shape(), "the array that is written must have the shape of the result")?;
    if a.dtype() != b.dtype() {
        return Err(Error::DTypeMismatch { op, lhs: a.dtype(), rhs: b.dtype() });
    }
    Ok(())
}

macro_rules! unary_into {
    ($($into:ident, $method:ident, $op:ident;)*) => {
        impl Proxy {
            $(
                #[doc = concat!("As [`Proxy::", stringify!($method), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, out: &Proxy) -> Result<()> {
                    let (op, site) = (stringify!($into), Location::caller());
                    unary::defined(UnaryOp::$op, op, self.dtype())?;
                    check::same_shape(op, self.shape(), out.shape(), "the array that is written must have this shape")?;
                    let run: &Change<'_, 1> = &|dst, [src]| Kernel::Unary { op: UnaryOp::$op, src, dst };
                    kernel(out, [self], self.dtype(), (op, site), run, || self.$method())
                }
            )*
        }
    };
}

unary_into! {
    neg_into, neg, Neg;
    abs_into, abs, Abs;
    sign_into, sign, Sign;
    sqr_into, sqr, Sqr;
    relu_into, relu, Relu;
    exp_into, exp, Exp;
    log_into, log, Log;
    sqrt_into, sqrt, Sqrt;
    tanh_into, tanh, Tanh;
    sigmoid_into, sigmoid, Sigmoid;
    recip_into, recip, Recip;
    sin_into, sin, Sin;
    cos_into, cos, Cos;
}

macro_rules! binary_into {
    ($($into:ident, $method:ident, $wide_into:ident, $wide:ident, $op:ident;)*) => {
        impl Proxy {
            $(
                #[doc = concat!("As [`Proxy::", stringify!($method), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    let (op, site) = (stringify!($into), Location::caller());
                    binary::defined(BinaryOp::$op, op, self.dtype())?;
                    pair(self, rhs, out, op, false)?;
                    let run: &Change<'_, 2> = &|dst, [lhs, rhs]| Kernel::Binary { op: BinaryOp::$op, lhs, rhs, dst };
                    kernel(out, [self, rhs], self.dtype(), (op, site), run, || self.$method(rhs))
                }

                #[doc = concat!("As [`Proxy::", stringify!($wide), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $wide_into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    let (op, site) = (stringify!($wide_into), Location::caller());
                    binary::defined(BinaryOp::$op, op, self.dtype())?;
                    pair(self, rhs, out, op, true)?;
                    let run: &Change<'_, 2> = &|dst, [lhs, rhs]| Kernel::Binary { op: BinaryOp::$op, lhs, rhs, dst };
                    kernel(out, [self, rhs], self.dtype(), (op, site), run, || self.$wide(rhs))
                }
            )*
        }
    };
}

binary_into! {
    add_into, add, broadcast_add_into, broadcast_add, Add;
    sub_into, sub, broadcast_sub_into, broadcast_sub, Sub;
    mul_into, mul, broadcast_mul_into, broadcast_mul, Mul;
    div_into, div, broadcast_div_into, broadcast_div, Div;
    maximum_into, maximum, broadcast_maximum_into, broadcast_maximum, Maximum;
    minimum_into, minimum, broadcast_minimum_into, broadcast_minimum, Minimum;
    pow_into, pow, broadcast_pow_into, broadcast_pow, Pow;
}

macro_rules! compare_into {
    ($($into:ident, $method:ident, $op:ident;)*) => {
        impl Proxy {
            $(
                #[doc = concat!("As [`Proxy::", stringify!($method), "`], written to `out` in u8.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into(&self, rhs: &Proxy, out: &Proxy) -> Result<()> {
                    let (op, site) = (stringify!($into), Location::caller());
                    pair(self, rhs, out, op, false)?;
                    let run: &Change<'_, 2> = &|dst, [lhs, rhs]| Kernel::Compare { op: CmpOp::$op, lhs, rhs, dst };
                    kernel(out, [self, rhs], DType::U8, (op, site), run, || self.$method(rhs))
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

/// Both forms of what is composed of others: computed, then copied.
macro_rules! composed_forms {
    ($($into:ident, $place:ident, $method:ident $(<$($g:ident),*>)? ($($arg:ident: $t:ty),*);)*) => {
        impl Proxy {
            $(
                #[doc = concat!("As [`Proxy::", stringify!($method), "`], written to `out`, without a gradient.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::copy_`].
                #[track_caller]
                pub fn $into$(<$($g: TensorOrScalar),*>)?(&self, $($arg: $t,)* out: &Proxy) -> Result<()> {
                    let op = stringify!($into);
                    check::open_as(op, self, 0)?;
                    check::open_as(op, out, 2)?;
                    write(out, op, Location::caller(), || self.$method($($arg),*))
                }

                #[doc = concat!("As [`Proxy::", stringify!($method), "`], in place. Returns this handle's array.")]
                ///
                /// # Errors
                /// Nothing is changed then: as the method and [`Proxy::add_`].
                #[track_caller]
                pub fn $place$(<$($g: TensorOrScalar),*>)?(&self, $($arg: $t),*) -> Result<Proxy> {
                    write(self, stringify!($place), Location::caller(), || self.$method($($arg),*))?;
                    Ok(self.clone())
                }
            )*
        }
    };
}

composed_forms! {
    expm1_into, expm1_, expm1();
    log1p_into, log1p_, log1p();
    log2_into, log2_, log2();
    log10_into, log10_, log10();
    ln_into, ln_, ln();
    square_into, square_, square();
    rsqrt_into, rsqrt_, rsqrt();
    tan_into, tan_, tan();
    asin_into, asin_, asin();
    acos_into, acos_, acos();
    atan_into, atan_, atan();
    sinh_into, sinh_, sinh();
    cosh_into, cosh_, cosh();
    asinh_into, asinh_, asinh();
    acosh_into, acosh_, acosh();
    atanh_into, atanh_, atanh();
    floor_into, floor_, floor();
    ceil_into, ceil_, ceil();
    round_into, round_, round();
    trunc_into, trunc_, trunc();
    frac_into, frac_, frac();
    round_to_into, round_to_, round_to(decimals: i32);
    softplus_into, softplus_, softplus();
    silu_into, silu_, silu();
    gelu_into, gelu_, gelu();
    hard_sigmoid_into, hard_sigmoid_, hard_sigmoid();
    mish_into, mish_, mish();
    elu_into, elu_, elu(alpha: f64);
    selu_into, selu_, selu(alpha: f64, gamma: f64);
    leaky_relu_into, leaky_relu_, leaky_relu(slope: f64);
    prelu_into, prelu_, prelu(slopes: &Proxy);
    powf_into, powf_, powf(exponent: f64);
    powi_into, powi_, powi(exponent: i32);
    clamp_into, clamp_, clamp<A, B>(min: A, max: B);
    clamp_min_into, clamp_min_, clamp_min(min: f64);
    clamp_max_into, clamp_max_, clamp_max(max: f64);
    addcmul_into, addcmul_, addcmul(a: &Proxy, b: &Proxy, value: f64);
    addcdiv_into, addcdiv_, addcdiv(a: &Proxy, b: &Proxy, value: f64);
    lerp_into, lerp_, lerp(end: &Proxy, weight: f64);
    fmod_into, fmod_, fmod(rhs: &Proxy);
    rem_into, rem_, rem(rhs: &Proxy);
    floor_div_into, floor_div_, floor_div(rhs: &Proxy);
    masked_fill_into, masked_fill_, masked_fill(mask: &Proxy, value: f64);
    erf_into, erf_, erf();
    erfinv_into, erfinv_, erfinv();
    gelu_erf_into, gelu_erf_, gelu_erf();
    gammaln_into, gammaln_, gammaln();
    lgamma_into, lgamma_, lgamma();
    digamma_into, digamma_, digamma();
    atan2_into, atan2_, atan2(x: &Proxy);
    bitwise_and_into, bitwise_and_, bitwise_and(rhs: &Proxy);
    bitwise_or_into, bitwise_or_, bitwise_or(rhs: &Proxy);
    bitwise_xor_into, bitwise_xor_, bitwise_xor(rhs: &Proxy);
    bitwise_not_into, bitwise_not_, bitwise_not();
    bitwise_left_shift_into, bitwise_left_shift_, bitwise_left_shift(rhs: &Proxy);
    bitwise_right_shift_into, bitwise_right_shift_, bitwise_right_shift(rhs: &Proxy);
}

impl Proxy {
    /// As [`Proxy::affine`], written to `out`, without a gradient.
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn affine_into(&self, mul: f64, add: f64, out: &Proxy) -> Result<()> {
        let (op, site) = ("affine_into", Location::caller());
        check::number(op, self.dtype())?;
        check::same_shape(op, self.shape(), out.shape(), "the array that is written must have this shape")?;
        let run: &Change<'_, 1> = &|dst, [src]| Kernel::Affine { src, dst, mul, add };
        kernel(out, [self], self.dtype(), (op, site), run, || self.affine(mul, add))
    }

    /// As [`Proxy::where_cond`], written to `out`, without a gradient.
    ///
    /// # Errors
    /// Nothing is changed then: as the method and [`Proxy::copy_`].
    #[track_caller]
    pub fn where_cond_into(&self, yes: &Proxy, no: &Proxy, out: &Proxy) -> Result<()> {
        write(out, "where_cond_into", Location::caller(), || self.where_cond(yes, no))
    }

    /// Every element set to one value, exactly also where a double cannot hold it.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn const_set<T: TensorOrScalar>(&self, value: T) -> Result<()> {
        write(self, "const_set", Location::caller(), || value.beside(self))
    }

    /// Every element set to 0.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn zero_set(&self) -> Result<()> {
        self.fill_(0.0).map(drop).map_err(|error| renamed("zero_set", error))
    }

    /// Every element set to 1.
    ///
    /// # Errors
    /// As [`Proxy::add_`].
    #[track_caller]
    pub fn one_set(&self) -> Result<()> {
        self.fill_(1.0).map(drop).map_err(|error| renamed("one_set", error))
    }

    /// The elements of two arrays of one shape and dtype exchanged, in place: every view of either sees it. To exchange
    /// two handles, `std::mem::swap` costs nothing.
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::copy_`].
    #[track_caller]
    pub fn swap_(&self, other: &Proxy) -> Result<()> {
        let (op, site) = ("swap_", Location::caller());
        check::open(op, &[self, other])?;
        let swap = || {
            let (own, theirs) = no_grad(|| Ok::<_, Error>((self.detach().copy()?, other.detach().copy()?)))?;
            // Whether the second change is refused is known before the first one is made.
            other.copy_(&theirs)?;
            self.copy_(&theirs)?;
            other.copy_(&own)?;
            Ok(self.clone())
        };
        whole(op, site, self, swap).map(drop)
    }

    /// The elements replaced by those of an array of the same shape and dtype, in place; returns what they were, in an
    /// array of its own with the owner of this one.
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::copy_`].
    #[track_caller]
    pub fn replace(&self, values: &Proxy) -> Result<Proxy> {
        let (op, site) = ("replace", Location::caller());
        check::open(op, &[self, values])?;
        whole(op, site, self, || {
            let old = no_grad(|| self.detach().copy())?;
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
        write(self, "uniform_", Location::caller(), || self.rand_like(low, high))?;
        Ok(self.clone())
    }

    /// Every element drawn anew from a normal distribution, in place.
    ///
    /// # Errors
    /// As [`Proxy::randn_like`] and [`Proxy::add_`].
    #[track_caller]
    pub fn normal_(&self, mean: f64, std: f64) -> Result<Proxy> {
        write(self, "normal_", Location::caller(), || self.randn_like(mean, std))?;
        Ok(self.clone())
    }

    /// As [`Proxy::is_unique`]: whether a change in place, or an operator that gets this handle by value, would be seen
    /// by nobody else.
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    pub fn can_mut(&self) -> Result<bool> {
        self.is_unique()
    }
}
