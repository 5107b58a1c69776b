//! Fourier transforms: `ndgc::fft`, with the feature `fft`.
//!
//! There is no complex dtype: a [`Complex`] is a pair of real arrays, so that everything else works on its parts,
//! gradients too. Floats; the work is done in f64 on the host, by the crate `rustfft`, whatever dtype and device the
//! operand has, and the result goes back to both. So on another device each call copies there and back, and waits.
//!
//! Transforms are not scaled forwards, and divided by their length backwards. Each is linear: its gradient is the
//! transform the other way.

use std::f64::consts::TAU;

use rustfft::{FftPlanner, num_complex::Complex64};

use crate::array::autograd::no_grad;
use crate::base::{
    call::Call,
    dtype::DType,
    error::{Error, Result},
    heap,
    shape::{D, Dim},
};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    check,
    compose::{argument, composite, composite_at, shape_of, single, wrong_shape},
    exec::once,
};

/// Complex numbers: their real and their imaginary parts, two arrays of one shape and dtype.
#[derive(Clone, Debug)]
pub struct Complex {
    /// The real parts.
    pub re: Proxy,
    /// The imaginary parts.
    pub im: Proxy,
}

impl Complex {
    /// Both parts together.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] for integers.
    #[track_caller]
    pub fn new(re: Proxy, im: Proxy) -> Result<Self> {
        let call = Call::here("complex");
        check::float(call, re.dtype())?;
        check::same_shape(call, re.shape(), im.shape(), "the parts must have one shape")?;
        if re.dtype() != im.dtype() {
            return Err(Error::dtype_mismatch(call, re.dtype(), im.dtype()));
        }
        Ok(Complex { re, im })
    }

    /// Real numbers, with imaginary parts of 0.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers; as [`Proxy::zeros_like`].
    #[track_caller]
    pub fn from_real(re: &Proxy) -> Result<Self> {
        Self::new(re.clone(), re.aside()?.zeros_like()?)
    }

    /// `re - i im`. With gradients, as all of these.
    ///
    /// # Errors
    /// As [`Proxy::neg`].
    #[track_caller]
    pub fn conj(&self) -> Result<Self> {
        Ok(Complex { re: self.re.clone(), im: self.im.neg()? })
    }

    /// The distances from 0, as [`Proxy::hypot`]: real numbers. The gradient is the direction, and 0 where there is
    /// none.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, fft};
    /// let (re, im) = (Tensor::new(&[3f64, 0.], &Device::Cpu)?, Tensor::new(&[-4f64, 1.], &Device::Cpu)?);
    /// assert_eq!(fft::Complex::new(re, im)?.abs()?.to_vec1::<f64>()?, [5., 1.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::hypot`].
    #[track_caller]
    pub fn abs(&self) -> Result<Proxy> {
        composite(Call::here("abs"), &self.re, &mut || self.re.hypot(&self.im))
    }

    /// `x + y`.
    ///
    /// # Errors
    /// As [`Proxy::add`].
    #[track_caller]
    pub fn add(&self, rhs: &Complex) -> Result<Self> {
        Ok(Complex { re: self.re.add(&rhs.re)?, im: self.im.add(&rhs.im)? })
    }

    /// `x - y`.
    ///
    /// # Errors
    /// As [`Proxy::sub`].
    #[track_caller]
    pub fn sub(&self, rhs: &Complex) -> Result<Self> {
        Ok(Complex { re: self.re.sub(&rhs.re)?, im: self.im.sub(&rhs.im)? })
    }

    /// `x y`.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, fft};
    /// let (re, im) = (Tensor::new(&[0f64], &Device::Cpu)?, Tensor::new(&[1f64], &Device::Cpu)?);
    /// let i = fft::Complex::new(re, im)?;
    /// let square = i.mul(&i)?;
    /// assert_eq!((square.re.to_vec1::<f64>()?, square.im.to_vec1::<f64>()?), (vec![-1.], vec![0.]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::mul`].
    #[track_caller]
    pub fn mul(&self, rhs: &Complex) -> Result<Self> {
        let call = Call::here("mul");
        let re = composite(call, &self.re, &mut || self.re.mul(&rhs.re)?.sub(&self.im.mul(&rhs.im)?))?;
        let im = composite(call, &self.re, &mut || self.re.mul(&rhs.im)?.add(&self.im.mul(&rhs.re)?))?;
        Ok(Complex { re, im })
    }
}

/// A linear map along one axis: the first `n` of the elements, zeros behind them if they are fewer; their transform;
/// the first `keep` of that, zeros behind; times `scale`.
#[derive(Clone, Copy, Debug)]
struct Transform {
    axis: usize,
    n: usize,
    keep: usize,
    forwards: bool,
    scale: f64,
}

impl Transform {
    /// The map that gradients take: to an axis of `size` again.
    fn adjoint(self, size: usize) -> Self {
        Transform { keep: size, forwards: !self.forwards, ..self }
    }

    /// The values, outside the graph.
    fn values(self, x: &Complex) -> Result<Complex> {
        let Transform { axis, n, keep, forwards, scale } = self;
        let own = *x.re.shape();
        let last = own.rank().saturating_sub(1);
        let read = |part: &Proxy| part.aside()?.transpose(axis, last)?.to_dtype(DType::F64)?.elements::<f64>("fft");
        let ((shape, re), (of_im, im)) = (read(&x.re)?, read(&x.im)?);
        check::same_shape("fft", &shape, &of_im, "the parts must have one shape")?;
        let size = shape.dim(last)?;
        let mut dims = shape.dims().to_vec();
        dims[last] = keep;
        shape_of("fft", &dims, size_of::<f64>())?;
        let lines: usize = dims.iter().enumerate().filter(|&(i, _)| i != last).map(|(_, &dim)| dim).product();
        let mut line = heap::zeros::<Complex64>("fft", n)?;
        let (mut out_re, mut out_im) = (heap::room("fft", lines * keep)?, heap::room("fft", lines * keep)?);
        let mut planner = FftPlanner::<f64>::new();
        let plan = if forwards { planner.plan_fft_forward(n) } else { planner.plan_fft_inverse(n) };
        for i in 0..lines {
            line.fill(Complex64::default());
            let own = i * size..i * size + size.min(n);
            for (to, (&re, &im)) in line.iter_mut().zip(re[own.clone()].iter().zip(&im[own])) {
                *to = Complex64::new(re, im);
            }
            plan.process(&mut line);
            let filled = line.iter().copied().chain(std::iter::repeat(Complex64::default())).take(keep);
            filled.for_each(|number| {
                out_re.push(number.re * scale);
                out_im.push(number.im * scale);
            });
        }
        let write = |data: Vec<f64>| {
            let part = Proxy::from_vec(data, &dims[..], x.re.device())?.to_dtype(x.re.dtype())?;
            part.transpose(axis, last)?.contiguous()
        };
        Ok(Complex { re: write(out_re)?, im: write(out_im)? })
    }

    /// Both parts, in the graph.
    fn apply(self, call: Call, x: &Complex) -> Result<Complex> {
        let size = x.re.dim(self.axis)?;
        let mut values = None;
        let re = composite(call, &x.re, &mut || {
            let both = no_grad(|| self.values(x))?;
            values = Some(both.im);
            both.re.with_gradient(call, [&x.re, &x.im], false, move |grad, _, needs| {
                let back = self.adjoint(size).values(&Complex { re: grad.clone(), im: grad.zeros_like()? })?;
                Ok([needs[0].then_some(back.re), needs[1].then_some(back.im), None])
            })
        })?;
        let im = composite(call, &x.re, &mut || {
            let im = values.take().ok_or_else(|| Error::msg("the parts are computed together"))?;
            im.with_gradient(call, [&x.re, &x.im], false, move |grad, _, needs| {
                let back = self.adjoint(size).values(&Complex { re: grad.zeros_like()?, im: grad.clone() })?;
                Ok([needs[0].then_some(back.re), needs[1].then_some(back.im), None])
            })
        })?;
        Ok(Complex { re, im })
    }
}

/// The axis, and the length of the transform: that of the axis if none is given.
fn line(call: Call, x: &Proxy, n: Option<usize>, dim: impl Dim) -> Result<(usize, usize)> {
    check::float(call, x.dtype())?;
    let shape = *x.shape();
    let axis = call.axis(dim, &shape)?;
    let n = n.unwrap_or(shape.dims()[axis]);
    if n == 0 {
        return argument(call, "n", n, "a length from 1");
    }
    // Also of the line that is transformed, which no array holds.
    shape_of(call, &[n], size_of::<Complex64>())?;
    Ok((axis, n))
}

/// The Fourier transform along an axis, of length `n`: the axis is cut or gets zeros behind it; `None` is its size.
///
/// # Errors
/// [`Error::DimOutOfRange`]; [`Error::Argument`] for a length of 0; [`Error::UnsupportedDType`],
/// [`Error::SizeOverflow`], [`Error::StaleArray`], [`Error::OutOfMemory`].
///
/// ```
/// # use ndgc::{Device, Tensor, fft};
/// let x = Tensor::new(&[1f64, 0., 0., 0.], &Device::Cpu)?;
/// let spectrum = fft::fft(&fft::Complex::from_real(&x)?, None, 0)?;
/// assert_eq!(spectrum.re.to_vec1::<f64>()?, [1., 1., 1., 1.]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn fft<A: Dim>(x: &Complex, n: Option<usize>, dim: A) -> Result<Complex> {
    let call = Call::here("fft");
    let (axis, n) = line(call, &x.re, n, dim)?;
    Transform { axis, n, keep: n, forwards: true, scale: 1.0 }.apply(call, x)
}

/// The inverse of [`fft`].
///
/// ```
/// # use ndgc::{Device, Tensor, fft};
/// let x = Tensor::new(&[1f64, 2., 3.], &Device::Cpu)?;
/// let back = fft::ifft(&fft::fft(&fft::Complex::from_real(&x)?, None, 0)?, None, 0)?;
/// assert!(back.re.sub(&x)?.abs()?.max_all()?.to_scalar::<f64>()? < 1e-9);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`fft`].
#[track_caller]
pub fn ifft<A: Dim>(x: &Complex, n: Option<usize>, dim: A) -> Result<Complex> {
    let call = Call::here("ifft");
    let (axis, n) = line(call, &x.re, n, dim)?;
    Transform { axis, n, keep: n, forwards: false, scale: 1.0 / n as f64 }.apply(call, x)
}

/// The transform of real numbers: its first `n / 2 + 1` numbers, which determine the rest.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, fft};
/// let x = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
/// assert_eq!(fft::rfft(&x, None, 1)?.re.dims(), [2, 5]);
/// assert_eq!(fft::rfft(&x, Some(16), 1)?.re.dims(), [2, 9]); // with zeros behind it
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`fft`].
#[track_caller]
pub fn rfft<A: Dim>(x: &Proxy, n: Option<usize>, dim: A) -> Result<Complex> {
    let call = Call::here("rfft");
    let (axis, n) = line(call, x, n, dim)?;
    let transform = Transform { axis, n, keep: n / 2 + 1, forwards: true, scale: 1.0 };
    transform.apply(call, &Complex::from_real(x)?)
}

/// The inverse of [`rfft`]: `n` real numbers; `None` is twice the size of the axis less 2.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, fft};
/// let x = Tensor::ones(5, DType::F64, &Device::Cpu)?;
/// let half = fft::rfft(&x, None, 0)?;
/// assert_eq!(fft::irfft(&half, None, 0)?.dims(), [4]); // it does not know that there were five
/// assert_eq!(fft::irfft(&half, Some(5), 0)?.dims(), [5]);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`fft`].
#[track_caller]
pub fn irfft<A: Dim>(x: &Complex, n: Option<usize>, dim: A) -> Result<Proxy> {
    let call = Call::here("irfft");
    let shape = *x.re.shape();
    let axis = call.axis(dim, &shape)?;
    let n = n.unwrap_or(2 * shape.dims()[axis].saturating_sub(1));
    let (axis, n) = line(call, &x.re, Some(n), axis)?;
    composite(call, &x.re, &mut || {
        let bins = (n / 2 + 1).min(shape.dims()[axis]);
        // All but the first, and the middle one of an even length, stand for two.
        let mut weights: Vec<f64> = heap::room(call.op, bins)?;
        weights.extend((0..bins).map(|i| if i == 0 || 2 * i == n { 1.0 } else { 2.0 }));
        let mut dims = vec![1; shape.rank()];
        dims[axis] = bins;
        // Twice the number of a half may be none of theirs.
        let part = |part: &Proxy| single(&part.narrow(axis, 0, bins)?);
        let (re, im) = (part(&x.re)?, part(&x.im)?);
        let weights = Proxy::from_vec(weights, dims, re.device())?.to_dtype(re.dtype())?;
        let half = Complex { re: re.broadcast_mul(&weights)?, im: im.broadcast_mul(&weights)? };
        let transform = Transform { axis, n, keep: n, forwards: false, scale: 1.0 / n as f64 };
        transform.apply(call, &half)?.re.to_dtype(x.re.dtype())
    })
}

/// [`fft`] along the last two axes, of these lengths.
///
/// # Errors
/// As [`fft`].
#[track_caller]
pub fn fft2(x: &Complex, sizes: Option<[usize; 2]>) -> Result<Complex> {
    let [rows, columns] = sizes.map_or([None; 2], |sizes| sizes.map(Some));
    fft(&fft(x, columns, D::Minus1)?, rows, D::Minus2)
}

/// [`ifft`] along the last two axes, of these lengths: the inverse of [`fft2`].
///
/// # Errors
/// As [`fft`].
#[track_caller]
pub fn ifft2(x: &Complex, sizes: Option<[usize; 2]>) -> Result<Complex> {
    let [rows, columns] = sizes.map_or([None; 2], |sizes| sizes.map(Some));
    ifft(&ifft(x, columns, D::Minus1)?, rows, D::Minus2)
}

/// `0.5 - 0.5 cos(2 pi i / n)`: the window that [`stft`] uses mostly.
///
/// ```
/// # use ndgc::{DType, Device, fft};
/// let window = fft::hann_window(4, DType::F32, &Device::Cpu)?;
/// assert_eq!(window.to_vec1::<f32>()?, [0., 0.5, 1., 0.5]); // the next one would be 0 again
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// As [`Proxy::zeros`].
#[track_caller]
pub fn hann_window<P: crate::ops::call::place::Place + ?Sized>(n: usize, dtype: DType, at: &P) -> Result<Proxy> {
    let call = Call::here("hann_window");
    check::float(call, dtype)?;
    shape_of(call, &[n], size_of::<f64>())?;
    let mut data: Vec<f64> = call.named(heap::room(call.op, n))?;
    data.extend((0..n).map(|i| 0.5 - 0.5 * (TAU * i as f64 / n as f64).cos()));
    composite_at(call, &at, &mut once(|| Proxy::from_vec(data, n, at.device_of_place())?.to_dtype(dtype)))
}

/// The transforms of windows of `window.dims()[0]` numbers, `hop` apart, of signals `[.., time]`: `[.., bins,
/// windows]`. With `center` the first window is around the first number, and the ends are mirrored.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, fft};
/// let x = Tensor::zeros(10, DType::F32, &Device::Cpu)?;
/// let window = fft::hann_window(4, DType::F32, &Device::Cpu)?;
/// assert_eq!(fft::stft(&x, &window, 2, false)?.re.dims(), [3, 4]); // bins, and windows
/// assert_eq!(fft::stft(&x, &window, 2, true)?.re.dims(), [3, 6]);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] if the window is not a vector, or the signal is too short; [`Error::Argument`] for a hop of 0; as
/// [`rfft`].
#[track_caller]
pub fn stft(x: &Proxy, window: &Proxy, hop: usize, center: bool) -> Result<Complex> {
    let call = Call::here("stft");
    let dims = x.dims();
    let (Some(&time), &[size]) = (dims.last(), window.dims()) else {
        return wrong_shape(call, x, "at least one axis, and a window of one");
    };
    if hop == 0 || size == 0 {
        return argument(call, "hop", format!("{hop}, of a window of {size}"), "both from 1");
    }
    let side = if center { size / 2 } else { 0 };
    if time < size.saturating_sub(2 * side) || time <= side {
        return wrong_shape(call, x, "a signal that is as long as the window, or longer than half of it with center");
    }
    let last = dims.len() - 1;
    let signal = if side == 0 {
        x.clone()
    } else {
        let (front, back) = (x.narrow(last, 1, side)?, x.narrow(last, time - 1 - side, side)?);
        Proxy::cat(&[&front.flip(&[last])?, x, &back.flip(&[last])?], last)?
    };
    let windows = signal.unfold(last, size, hop)?.broadcast_mul(window)?;
    let spectra = rfft(&windows, None, D::Minus1)?;
    let turned = |part: Proxy| part.transpose(D::Minus1, D::Minus2);
    Ok(Complex { re: turned(spectra.re)?, im: turned(spectra.im)? })
}
