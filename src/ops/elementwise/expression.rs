//! Expressions of arrays and numbers without `?` at each step, whose temporaries give their bytes on.

use std::panic::Location;

use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::device::kernel::{BinaryOp, UnaryOp};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::reuse::{Operand, Temporary},
    elementwise::{
        binary::{reusing, with_number},
        scalar::Scalar,
        unary::unary_of,
    },
    grad::var::Var,
};

/// A part of an expression in [`t!`](crate::t): a number, an array, or the error that came before.
#[derive(Debug)]
pub enum Term<'a> {
    /// A number.
    Number(Scalar),
    /// An array that is read.
    Lent(&'a Proxy),
    /// A temporary, whose bytes the next step may take.
    Given(Proxy),
    /// The error of a part; the rest of the expression is not computed.
    Failed(Error),
}

/// What an expression in [`t!`](crate::t) may name: arrays, variables and numbers, also behind references.
pub trait AsTerm {
    /// It as a part of an expression.
    fn term(&self) -> Term<'_>;
}

impl AsTerm for Proxy {
    fn term(&self) -> Term<'_> {
        Term::Lent(self)
    }
}

impl AsTerm for Var {
    fn term(&self) -> Term<'_> {
        Term::Lent(self.as_tensor())
    }
}

impl<T: AsTerm> AsTerm for &T {
    fn term(&self) -> Term<'_> {
        (**self).term()
    }
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl AsTerm for $t {
            fn term(&self) -> Term<'_> {
                Term::Number((*self).into())
            }
        }
    )*};
}
numbers!(f64, f32, i32, i64, u32);

impl AsTerm for usize {
    fn term(&self) -> Term<'_> {
        Term::Number((*self as u64).into())
    }
}

impl From<f64> for Term<'_> {
    fn from(number: f64) -> Self {
        Term::Number(number.into())
    }
}

impl From<Proxy> for Term<'_> {
    fn from(array: Proxy) -> Self {
        Term::Given(array)
    }
}

impl From<Result<Proxy>> for Term<'_> {
    fn from(array: Result<Proxy>) -> Self {
        array.map_or_else(Term::Failed, Term::Given)
    }
}

impl<'a> Term<'a> {
    /// What an expression names.
    pub fn of(named: &'a (impl AsTerm + ?Sized)) -> Self {
        named.term()
    }

    /// The array that the expression is.
    ///
    /// # Errors
    /// That of the first part that failed; [`Error::Argument`] for an expression of numbers alone.
    #[track_caller]
    pub fn result(self) -> Result<Proxy> {
        match self {
            Term::Lent(array) => Ok(array.clone()),
            Term::Given(array) => Ok(array),
            Term::Failed(error) => Err(error),
            Term::Number(number) => Err(no_array(Call::here("t!"), number)),
        }
    }

    /// What a method of the array gives.
    #[track_caller]
    pub fn then<R>(self, method: impl FnOnce(&Proxy) -> R) -> Term<'static>
    where
        Term<'static>: From<R>,
    {
        match self {
            Term::Lent(array) => method(array).into(),
            Term::Given(array) => method(&array).into(),
            Term::Failed(error) => Term::Failed(error),
            Term::Number(number) => Term::Failed(no_array(Call::here("t!"), number)),
        }
    }

    /// What a method without arguments gives. A temporary is passed to a function of the table in a form that may take
    /// its bytes, and to another method as the array that it is.
    #[doc(hidden)]
    #[track_caller]
    pub fn method<R, S>(self, lent: impl FnOnce(&Proxy) -> R, given: impl FnOnce(Temporary) -> S) -> Term<'static>
    where
        Term<'static>: From<R> + From<S>,
    {
        match self {
            Term::Lent(array) => lent(array).into(),
            Term::Given(array) => given(Temporary(array)).into(),
            Term::Failed(error) => Term::Failed(error),
            Term::Number(number) => Term::Failed(no_array(Call::here("t!"), number)),
        }
    }
}

fn no_array(call: Call, number: Scalar) -> Error {
    Error::argument(call, "expression", number.to_f64(), "one with an array; a number has no methods here")
}

/// What an operator makes of two numbers: computed in doubles, but of whole ones exactly if i64 holds that.
fn of_numbers(x: Scalar, y: Scalar, op: BinaryOp) -> Scalar {
    let exact = x.whole().zip(y.whole()).and_then(|(x, y)| match op {
        BinaryOp::Add => x.checked_add(y),
        BinaryOp::Sub => x.checked_sub(y),
        BinaryOp::Mul => x.checked_mul(y),
        _ => None,
    });
    if let Some(Ok(exact)) = exact.map(i64::try_from) {
        return exact.into();
    }
    let (x, y) = (x.to_f64(), y.to_f64());
    let number = match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        _ => x / y,
    };
    number.into()
}

fn combine(left: Term<'_>, right: Term<'_>, op: BinaryOp, call: Call) -> Term<'static> {
    let operand = |term| match term {
        Term::Lent(array) => Ok(Ok(Operand::Borrowed(array))),
        Term::Given(array) => Ok(Ok(Operand::Owned(array))),
        Term::Number(number) => Ok(Err(number)),
        Term::Failed(error) => Err(error),
    };
    let (left, right) = match (operand(left), operand(right)) {
        (Ok(left), Ok(right)) => (left, right),
        (Err(error), _) | (_, Err(error)) => return Term::Failed(error),
    };
    match (left, right) {
        (Err(x), Err(y)) => Term::Number(of_numbers(x, y, op)),
        (Ok(x), Ok(y)) => reusing(call, (x, y), op, false).into(),
        (Ok(x), Err(n)) => with_number(x, op, n, false, call.site).into(),
        (Err(n), Ok(x)) => with_number(x, op, n, true, call.site).into(),
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        impl<'a, 'b> std::ops::$trait<Term<'b>> for Term<'a> {
            type Output = Term<'static>;
            #[track_caller]
            fn $method(self, rhs: Term<'b>) -> Term<'static> {
                combine(self, rhs, BinaryOp::$trait, Call::here(stringify!($method)))
            }
        }
    )*};
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

impl std::ops::Neg for Term<'_> {
    type Output = Term<'static>;
    #[track_caller]
    fn neg(self) -> Term<'static> {
        let site = Location::caller();
        match self {
            Term::Number(number) => Term::Number(of_numbers(Scalar::F64(-1.0), number, BinaryOp::Mul)),
            Term::Lent(array) => unary_of(Operand::Borrowed(array), UnaryOp::Neg, site).into(),
            Term::Given(array) => unary_of(Operand::Owned(array), UnaryOp::Neg, site).into(),
            Term::Failed(error) => Term::Failed(error),
        }
    }
}

/// An expression of arrays and numbers with `+ - * /`, parentheses and methods, as one [`Result`](crate::Result): no
/// `?` inside, and no `&` before a name.
///
/// Arrays that are named are read. What is made on the way gives its bytes to the next step where nobody can see that,
/// so that a chain needs one buffer. Arguments of methods and functions are as in any other place. Shapes must be
/// equal, as with the operators; the gradient is recorded. Numbers among themselves are doubles, and whole ones exact
/// as far as i64 reaches.
///
/// ```
/// # use ndgc::{Device, Tensor, t};
/// let x = Tensor::new([1f32, 2., 3.], &Device::Cpu)?;
/// let y = t!(3.0 * x.powi(2) - 4.0 * x + 5.0)?;
/// assert_eq!(y.to_vec1::<f32>()?, [4., 9., 20.]);
/// let z = t!(-(x + y).sqrt() / (2 * x.maximum(&y)))?;
/// assert_eq!(z.dims(), [3]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[macro_export]
macro_rules! t {
    (@operand [$($o:tt)*] - $($r:tt)*) => { $crate::t!(@operand [$($o)* -] $($r)*) };
    (@operand [$($o:tt)*] & $($r:tt)*) => { $crate::t!(@operand [$($o)*] $($r)*) };
    (@operand [$($o:tt)*] ($($in:tt)*) $($r:tt)*) => {
        $crate::t!(@after [$($o)* ($crate::t!(@operand [] $($in)*))] $($r)*)
    };
    (@operand [$($o:tt)*] $n:literal $($r:tt)*) => { $crate::t!(@after [$($o)* $crate::Term::from($n as f64)] $($r)*) };
    (@operand [$($o:tt)*] $i:ident $($r:tt)*) => { $crate::t!(@path [$($o)*] [$i] $($r)*) };
    (@path [$($o:tt)*] [$($p:tt)*] :: $i:ident $($r:tt)*) => { $crate::t!(@path [$($o)*] [$($p)* :: $i] $($r)*) };
    (@path [$($o:tt)*] [$($p:tt)*] . $m:ident ($($a:tt)*) $($r:tt)*) => {
        $crate::t!(@after [$($o)* $crate::Term::of(&$($p)*)] . $m ($($a)*) $($r)*)
    };
    (@path [$($o:tt)*] [$($p:tt)*] . $f:tt $($r:tt)*) => { $crate::t!(@path [$($o)*] [$($p)* . $f] $($r)*) };
    (@path [$($o:tt)*] [$($p:tt)*] [$($x:tt)*] $($r:tt)*) => { $crate::t!(@path [$($o)*] [$($p)* [$($x)*]] $($r)*) };
    (@path [$($o:tt)*] [$($p:tt)*] ($($a:tt)*) $($r:tt)*) => {
        $crate::t!(@after [$($o)* $crate::Term::from($($p)* ($($a)*))] $($r)*)
    };
    (@path [$($o:tt)*] [$($p:tt)*] $($r:tt)*) => { $crate::t!(@after [$($o)* $crate::Term::of(&$($p)*)] $($r)*) };
    (@after [$($o:tt)*] ? $($r:tt)*) => { $crate::t!(@after [$($o)*] $($r)*) };
    (@after [$($o:tt)*] . $m:ident () $($r:tt)*) => {
        $crate::t!(@after [$($o)* .method(|array| array.$m(), |temporary| temporary.$m())] $($r)*)
    };
    (@after [$($o:tt)*] . $m:ident ($($a:tt)*) $($r:tt)*) => {
        $crate::t!(@after [$($o)* .then(|array| array.$m($($a)*))] $($r)*)
    };
    (@after [$($o:tt)*] + $($r:tt)*) => { $crate::t!(@operand [$($o)* +] $($r)*) };
    (@after [$($o:tt)*] - $($r:tt)*) => { $crate::t!(@operand [$($o)* -] $($r)*) };
    (@after [$($o:tt)*] * $($r:tt)*) => { $crate::t!(@operand [$($o)* *] $($r)*) };
    (@after [$($o:tt)*] / $($r:tt)*) => { $crate::t!(@operand [$($o)* /] $($r)*) };
    (@after [$($o:tt)*]) => { $($o)* };
    ($($t:tt)+) => { $crate::Term::result($crate::t!(@operand [] $($t)+)) };
}
