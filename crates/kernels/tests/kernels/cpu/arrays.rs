//! What the tests of the kernels share: arrays of any layout, and plain loops over their indices.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use ndgc_kernels::base::{
    dtype::{DType, WithDType, with_type},
    error::Result,
    layout::Layout,
    shape::Shape,
};
use ndgc_kernels::{
    cpu,
    kernel::{Kernel, OwnedView, View},
    span::Span,
};

/// A generator of small numbers for tests.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// `0 .. n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }

    /// A number with two decimals around 0; whole and not negative for integers, 0 or 1 for truth values.
    pub(super) fn value(&mut self, dtype: DType) -> f64 {
        match dtype {
            DType::Bool => self.below(2) as f64,
            _ if dtype.is_float() => self.below(801) as f64 / 100.0 - 4.0,
            _ => self.below(20) as f64,
        }
    }

    /// A layout of this shape: permuted, narrowed on every side, and repeated along some axes if `repeats`.
    /// Returns the elements of the buffer too.
    fn layout(&mut self, dims: &[usize], repeats: bool) -> (Layout, usize) {
        let mut order: Vec<usize> = (0..dims.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i + 1));
        }
        let once: Vec<usize> = dims.iter().map(|&dim| if repeats && self.below(4) == 0 { 1 } else { dim }).collect();
        let pads: Vec<(usize, usize)> = dims.iter().map(|_| (self.below(3) / 2, self.below(3) / 2)).collect();
        let outer: Vec<usize> = order.iter().map(|&axis| once[axis] + pads[axis].0 + pads[axis].1).collect();
        let back: Vec<usize> =
            (0..dims.len()).map(|axis| order.iter().position(|&o| o == axis).expect("all")).collect();
        let mut layout = Layout::contiguous(Shape::from(&outer[..])).permute(&back);
        for axis in 0..dims.len() {
            // An axis of no elements is not repeated, but an axis of one may become one of none.
            let len = once[axis].min(dims[axis].max(1));
            layout = layout.narrow(axis, pads[axis].0, len).expect("inside");
        }
        let whole = Shape::from(dims);
        let layout = layout.broadcast_to(&whole, "test").expect("sizes of one repeat");
        (layout, outer.iter().product::<usize>().max(1))
    }
}

/// Shapes of every rank, with axes of no and of one element, and rows longer than what is staged at a time.
pub(super) const SHAPES: [&[usize]; 16] = [
    &[],
    &[1],
    &[0],
    &[5],
    &[700],
    &[3, 4],
    &[40, 33],
    &[3, 0],
    &[1, 600],
    &[300, 2],
    &[2, 5, 3],
    &[17, 1, 40],
    &[2, 3, 0, 2],
    &[3, 2, 4, 5],
    &[2, 1, 3, 2, 4],
    &[2, 3, 1, 2, 3, 2],
];

/// An array of a test, alone in its buffer.
#[derive(Clone)]
pub(super) struct Array {
    words: Vec<u64>,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

impl Array {
    /// Contiguous, and full of a value that no kernel should leave there.
    pub(super) fn new(dtype: DType, dims: &[usize]) -> Self {
        let layout = Layout::contiguous(Shape::from(dims));
        let mut array = Array { words: vec![0; layout.shape().elem_count().max(1)], dtype, layout };
        array.fill(|_| 77.0);
        array
    }

    /// Contiguous, with these values.
    pub(super) fn of(dtype: DType, dims: &[usize], values: &[f64]) -> Self {
        let mut array = Array::new(dtype, dims);
        array.fill(|i| values.get(i % values.len().max(1)).copied().unwrap_or(0.0));
        array
    }

    /// Contiguous, of one axis, with these elements to the last bit.
    pub(super) fn line<T: WithDType>(elements: &[T]) -> Self {
        let mut array = Array::new(T::DTYPE, &[elements.len()]);
        array.all()[..elements.len()].copy_from_slice(elements);
        array
    }

    /// Of a random layout and random values.
    pub(super) fn random(draw: &mut Draw, dtype: DType, dims: &[usize]) -> Self {
        Array::of_layout(draw, dtype, dims, true)
    }

    /// As [`Array::random`], without repeated elements.
    pub(super) fn random_target(draw: &mut Draw, dtype: DType, dims: &[usize]) -> Self {
        Array::of_layout(draw, dtype, dims, false)
    }

    fn of_layout(draw: &mut Draw, dtype: DType, dims: &[usize], repeats: bool) -> Self {
        let (layout, elements) = if draw.below(4) == 0 {
            let layout = Layout::contiguous(Shape::from(dims));
            (layout, layout.shape().elem_count().max(1))
        } else {
            draw.layout(dims, repeats)
        };
        let mut array = Array { words: vec![0; elements], dtype, layout };
        array.fill(|_| draw.value(dtype));
        array
    }

    /// The same layout with other values.
    pub(super) fn map(mut self, mut f: impl FnMut(f64) -> f64) -> Self {
        with_type!(self.dtype, T => self.all::<T>().iter_mut().for_each(|x| *x = T::from_f64(f(x.to_f64()))));
        self
    }

    fn fill(&mut self, mut value: impl FnMut(usize) -> f64) {
        let count = self.words.len();
        with_type!(self.dtype, T => {
            for i in 0..count {
                self.put(i, T::from_f64(value(i)));
            }
        });
    }

    /// Writes one element of the buffer.
    pub(super) fn put<T: WithDType>(&mut self, i: usize, value: T) {
        self.all::<T>()[i] = value;
    }

    /// All elements of the buffer, or its bytes.
    pub(super) fn all<T: WithDType>(&mut self) -> &mut [T] {
        let span = self.span();
        // SAFETY: the span is that of `self.words`, borrowed as long as the result, of more than enough alignment.
        unsafe { std::slice::from_raw_parts_mut(span.ptr().cast::<T>().as_ptr(), span.bytes() / size_of::<T>()) }
    }

    fn span(&mut self) -> Span {
        let bytes = self.words.len() * self.dtype.size_in_bytes();
        Span::new(NonNull::from(&mut self.words[..]).cast(), bytes)
    }

    pub(super) fn view(&mut self) -> OwnedView {
        OwnedView::new(self.span(), self.dtype, self.layout)
    }

    /// Its buffer by another layout, wherever that leads.
    pub(super) fn view_by<'a>(&mut self, layout: &'a Layout) -> View<'a> {
        View::new(self.span(), self.dtype, layout)
    }

    /// As it lies in its buffer.
    pub(super) fn typed<T: WithDType>(&self) -> Vec<T> {
        assert_eq!(self.dtype, T::DTYPE);
        let mut copy = self.clone();
        let all: Vec<T> = copy.all().to_vec();
        offsets(&self.layout).into_iter().map(|at| all[at]).collect()
    }

    /// In row-major order.
    pub(super) fn values(&self) -> Vec<f64> {
        with_type!(self.dtype, T => self.typed::<T>().into_iter().map(WithDType::to_f64).collect())
    }

    pub(super) fn dims(&self) -> &[usize] {
        self.layout.dims()
    }
}

/// Every index of a shape, in row-major order.
pub(super) fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &dim in dims {
        all = all.into_iter().flat_map(|index| (0..dim).map(move |i| [&index[..], &[i]].concat())).collect();
    }
    all
}

/// Where the elements lie, in row-major order.
fn offsets(layout: &Layout) -> Vec<usize> {
    let mut all = vec![layout.offset() as isize];
    for (&dim, &step) in layout.dims().iter().zip(layout.strides()) {
        all = all.into_iter().flat_map(|at| (0..dim as isize).map(move |i| at + i * step)).collect();
    }
    all.into_iter().map(|at| at as usize).collect()
}

/// Runs a kernel over views of arrays of a test.
pub(super) fn run(kernel: &Kernel) -> Result<()> {
    run_again(kernel, 0)
}

/// As [`run`], as after so many replays.
pub(super) fn run_again(kernel: &Kernel, replays: u64) -> Result<()> {
    // SAFETY: the views are of different arrays, each with its own initialised buffer, which its test holds.
    unsafe { cpu::run_again(&kernel.borrowed(), replays) }
}

/// As [`run`], over views whose layouts nobody looked at.
pub(super) fn run_unseen(kernel: &Kernel<View<'_>>) -> Result<()> {
    // SAFETY: as in `run_again`. Of layouts nothing is promised there.
    unsafe { cpu::run_again(kernel, 0) }
}

/// Equal within `tolerance` times their size, or both NaN.
#[track_caller]
pub(super) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&x, &y)) in found.iter().zip(expected).enumerate() {
        let close = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * y.abs().max(1.0);
        assert!(close, "{what}: element {i} is {x}, expected {y}");
    }
}

/// Every dtype that computes.
pub(super) const NUMBERS: [DType; 13] = {
    let mut numbers = [DType::U8; 13];
    let mut i = 0;
    while i < 13 {
        numbers[i] = DType::ALL[i + 1];
        i += 1;
    }
    numbers
};

/// Every dtype of floats.
pub(super) const FLOATS: [DType; 5] = [DType::F8E4M3, DType::F16, DType::BF16, DType::F32, DType::F64];

/// The rounding that a few operations of a dtype may add.
pub(super) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F8E4M3 => 0.13,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        DType::F32 => 2e-5,
        DType::F64 => 1e-12,
        _ => 0.0,
    }
}

/// Brings a number to the range of a dtype: a whole one as wrapping arithmetic does.
pub(super) fn wrapped(dtype: DType, value: f64) -> f64 {
    with_type!(dtype, T => {
        if dtype.is_float() { T::from_f64(value).to_f64() } else { T::from_i128(value as i128).to_f64() }
    })
}
