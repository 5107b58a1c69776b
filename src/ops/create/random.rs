//! Random numbers: counter-based, so that one seed gives one stream on any device and any number of threads.

use std::cell::RefCell;

use crate::base::{
    call::Call,
    dtype::{DType, WithDType, with_type},
    error::{Error, Result},
    shape::Shape,
    sync::SpinLock,
};
use crate::device::{Device, kernel::Kernel};
use crate::memory::proxy::Proxy;
use crate::ops::call::{check, exec::launch};
use crate::ops::call::{make::make, place::Place};

/// A stream of random numbers: a seed, and how many numbers were drawn.
///
/// Philox 4x32-10: number `i` of a seed is the same wherever and however it is computed.
///
/// ```
/// # use ndgc::{DType, Device, Generator};
/// let mut a = Generator::new(7);
/// let mut b = Generator::new(7);
/// let x = a.normal(0., 1., 100, DType::F32, &Device::Cpu)?;
/// let y = b.normal(0., 1., 100, DType::F32, &Device::Cpu)?;
/// assert_eq!(x.to_vec1::<f32>()?, y.to_vec1::<f32>()?);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generator {
    seed: u64,
    next: u64,
}

/// The stream behind `rand` and `randn`.
static COMMON: SpinLock<Generator> = SpinLock::new(Generator { seed: 0, next: 0 });

impl Generator {
    /// The stream of a seed, at its beginning.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Generator};
    /// let mut stream = Generator::new(7);
    /// let mut again = stream.clone(); // where this one is
    /// let first = stream.uniform(0., 1., 4, DType::F32, &Device::Cpu)?.to_vec1::<f32>()?;
    /// let second = stream.uniform(0., 1., 4, DType::F32, &Device::Cpu)?.to_vec1::<f32>()?;
    /// assert!(first != second); // each draw goes on in the stream
    /// assert_eq!(again.uniform(0., 1., 4, DType::F32, &Device::Cpu)?.to_vec1::<f32>()?, first);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub const fn new(seed: u64) -> Self {
        Generator { seed, next: 0 }
    }

    /// Takes the counters for `n` elements; each call begins a fresh block.
    fn reserve(&mut self, n: usize) -> u64 {
        let first = self.next;
        self.next = first.wrapping_add((n as u64).next_multiple_of(4));
        first
    }

    /// Uniform numbers in `[low, high)`.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Generator};
    /// let mut stream = Generator::new(7);
    /// let x = stream.uniform(-1., 1., (2, 500), DType::F64, &Device::Cpu)?;
    /// assert!(x.to_vec::<f64>()?.iter().all(|x| (-1.0..1.0).contains(x)));
    /// let refused = stream.uniform(1., -1., (2, 500), DType::F64, &Device::Cpu);
    /// assert!(matches!(refused, Err(Error::Argument { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if a bound is not finite, also as a number of the dtype, or `low > high`; as
    /// [`Proxy::zeros`].
    #[track_caller]
    pub fn uniform<S: Into<Shape>, P: Place + ?Sized>(
        &mut self,
        low: f64,
        high: f64,
        shape: S,
        dtype: DType,
        at: &P,
    ) -> Result<Proxy> {
        draw(Call::here("rand"), Law::Uniform(low, high), shape.into(), dtype, &at, &mut |n| {
            (self.seed, self.reserve(n))
        })
    }

    /// Normal numbers of a mean and a standard deviation. Floats only.
    ///
    /// # Errors
    /// [`Error::Argument`] if a parameter is not finite, also as a number of the dtype, or `std < 0`;
    /// [`Error::UnsupportedDType`]; as [`Proxy::zeros`].
    #[track_caller]
    pub fn normal<S: Into<Shape>, P: Place + ?Sized>(
        &mut self,
        mean: f64,
        std: f64,
        shape: S,
        dtype: DType,
        at: &P,
    ) -> Result<Proxy> {
        draw(Call::here("randn"), Law::Normal(mean, std), shape.into(), dtype, &at, &mut |n| {
            (self.seed, self.reserve(n))
        })
    }

    /// Runs `f` with this stream in place of the common one: what `f` draws on this thread, by `rand`, dropout and the
    /// like, comes from here, and the common stream stays where it is.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Generator, Tensor};
    /// let x = Tensor::ones(100, DType::F32, &Device::Cpu)?;
    /// let once = Generator::new(7).scope(|| x.dropout(0.5)?.to_vec1::<f32>())?;
    /// let again = Generator::new(7).scope(|| x.dropout(0.5)?.to_vec1::<f32>())?;
    /// assert_eq!(once, again); // the same were dropped
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn scope<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let (result, end) = replayed(self.clone(), f);
        *self = end;
        result
    }

    /// A permutation of `0..n`, for shuffling.
    ///
    /// ```
    /// # use ndgc::Generator;
    /// let mut order = Generator::new(7).permutation(5)?;
    /// assert_eq!(order, Generator::new(7).permutation(5)?); // one seed, one order
    /// order.sort();
    /// assert_eq!(order, [0, 1, 2, 3, 4]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for the numbers drawn on the way.
    #[track_caller]
    pub fn permutation(&mut self, n: usize) -> Result<Vec<usize>> {
        let drawn = self.uniform(0.0, 1.0, n, DType::F64, &Device::Cpu)?.to_vec::<f64>()?;
        let mut order: Vec<usize> = (0..n).collect();
        for (i, unit) in drawn.into_iter().enumerate().skip(1).rev() {
            order.swap(i, (unit * (i + 1) as f64) as usize);
        }
        Ok(order)
    }
}

/// A number as the dtype has it.
pub(super) fn rounded(number: f64, dtype: DType) -> f64 {
    with_type!(dtype, T => T::from_f64(number).to_f64())
}

enum Law {
    Uniform(f64, f64),
    Normal(f64, f64),
}

fn draw(
    call: Call,
    law: Law,
    shape: Shape,
    dtype: DType,
    at: &dyn Place,
    counters: &mut dyn FnMut(usize) -> (u64, u64),
) -> Result<Proxy> {
    let finite = |argument: &'static str, value: f64| {
        // A float of fewer bits than a double may not have the number.
        let own = if dtype.is_float() { rounded(value, dtype) } else { value };
        match own.is_finite() {
            true => Ok(value),
            false => Err(Error::argument(call, argument, value, "a finite number of the dtype")),
        }
    };
    let (a, b) = match law {
        Law::Uniform(low, high) | Law::Normal(low, high) => {
            (finite("first parameter", low)?, finite("second parameter", high)?)
        }
    };
    match law {
        Law::Uniform(low, high) if low > high => {
            return Err(Error::argument(call, "range", format!("{low} to {high}"), "in ascending order"));
        }
        Law::Normal(..) if b < 0.0 => {
            return Err(Error::argument(call, "std", b, "not negative"));
        }
        Law::Normal(..) => {
            check::float(call, dtype)?;
        }
        Law::Uniform(..) => {
            check::number(call, dtype)?;
        }
    }
    let count = shape.check(call, dtype.size_in_bytes())?;
    make(call, shape, dtype, at, false, &mut |out| {
        let (seed, first) = counters(count);
        let dst = out.view();
        let kernel = match law {
            Law::Uniform(..) => Kernel::Uniform { dst, seed, first, low: a, high: b },
            Law::Normal(..) => Kernel::Normal { dst, seed, first, mean: a, std: b },
        };
        launch(out.device(), &kernel)
    })
}

fn common(n: usize) -> (u64, u64) {
    let again = REPLAYED.with_borrow_mut(|again| again.as_mut().map(|again| (again.seed, again.reserve(n))));
    again.unwrap_or_else(|| COMMON.with(|generator| (generator.seed, generator.reserve(n))))
}

thread_local! {
    /// What `rand` and `randn` draw from on this thread, instead of the common stream.
    static REPLAYED: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// Where the common stream is.
pub(crate) fn position() -> Generator {
    let again = REPLAYED.with_borrow(Clone::clone);
    again.unwrap_or_else(|| COMMON.with(|generator| generator.clone()))
}

/// Moves the common stream on to where another one is, unless it began anew or is past that already.
pub(crate) fn advance(to: &Generator) {
    let forward = |own: &mut Generator| {
        if own.seed == to.seed && own.next < to.next {
            own.next = to.next;
        }
    };
    let again = REPLAYED.with_borrow_mut(|again| again.as_mut().map(forward).is_some());
    if !again {
        COMMON.with(forward);
    }
}

/// Runs `f` with what it draws on this thread coming from `start` on; where that ends.
pub(crate) fn replayed<R>(start: Generator, f: impl FnOnce() -> R) -> (R, Generator) {
    struct Restore(Option<Generator>);
    impl Drop for Restore {
        fn drop(&mut self) {
            REPLAYED.set(self.0.take());
        }
    }
    let restore = Restore(REPLAYED.replace(Some(start.clone())));
    let result = f();
    let end = REPLAYED.with_borrow(Clone::clone).unwrap_or(start);
    drop(restore);
    (result, end)
}

/// # Making arrays: at random
impl Proxy {
    /// Uniform random numbers in `[low, high)`, from the common stream ([`Device::set_seed`]).
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::rand(0f32, 1., (2, 500), &Device::Cpu)?; // the dtype is that of the bounds
    /// assert_eq!((x.dims(), x.dtype()), (&[2usize, 500][..], DType::F32));
    /// assert!(x.to_vec::<f32>()?.iter().all(|x| (0.0..1.0).contains(x)));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[doc(alias = "randomUniform")]
    #[track_caller]
    pub fn rand<S: Into<Shape>, T: WithDType>(low: T, high: T, shape: S, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::rand_as((low.to_f64(), high.to_f64()), shape.into(), T::DTYPE, &at)
    }

    /// As [`Proxy::rand`], of numbers of this dtype.
    #[track_caller]
    pub(crate) fn rand_as((low, high): (f64, f64), shape: Shape, dtype: DType, at: &dyn Place) -> Result<Self> {
        draw(Call::here("rand"), Law::Uniform(low, high), shape, dtype, at, &mut common)
    }

    /// Normal random numbers, from the common stream ([`Device::set_seed`]). Floats only.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor};
    /// let x = Tensor::randn(5f32, 0., 3, &Device::Cpu)?; // without a deviation: the mean alone
    /// assert_eq!(x.to_vec1::<f32>()?, [5.; 3]);
    /// assert!(matches!(Tensor::randn(5u32, 1, 3, &Device::Cpu), Err(Error::UnsupportedDType { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Generator::normal`].
    #[doc(alias = "randomNormal")]
    #[track_caller]
    pub fn randn<S: Into<Shape>, T: WithDType>(mean: T, std: T, shape: S, at: &(impl Place + ?Sized)) -> Result<Self> {
        Self::randn_as((mean.to_f64(), std.to_f64()), shape.into(), T::DTYPE, &at)
    }

    /// As [`Proxy::randn`], of numbers of this dtype.
    #[track_caller]
    pub(crate) fn randn_as((mean, std): (f64, f64), shape: Shape, dtype: DType, at: &dyn Place) -> Result<Self> {
        draw(Call::here("randn"), Law::Normal(mean, std), shape, dtype, at, &mut common)
    }
}

/// # The common stream of random numbers
impl Device {
    /// Begins the common stream of `rand` and `randn` anew. It is one for all devices, so that a program draws the
    /// same numbers on each.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// Device::Cpu.set_seed(7)?;
    /// let first = Tensor::randn(0f32, 1., 4, &Device::Cpu)?.to_vec1::<f32>()?;
    /// Device::Cpu.set_seed(7)?;
    /// assert_eq!(Tensor::randn(0f32, 1., 4, &Device::Cpu)?.to_vec1::<f32>()?, first);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// None; candle's programs expect a `Result`.
    #[doc(alias = "manual_seed")]
    pub fn set_seed(&self, seed: u64) -> Result<()> {
        COMMON.with(|generator| *generator = Generator::new(seed));
        Ok(())
    }
}
