//! Products with weights in blocks: `x [.., k]` times the transposed weights `[n, k]` is `[.., n]`.

use std::cell::Cell;
use std::sync::Arc;

use super::{
    k_quants::GgmlType,
    tensor::{QTensor, with_floats},
};
use crate::array::autograd::{Saved, no_grad};
use crate::base::{
    call::Call,
    dtype::{DType, WithDType},
    error::{Error, Result},
    heap,
    layout::Layout,
    shape::Shape,
};
use crate::device::{Device, cpu::quantized};
use crate::memory::proxy::Proxy;
use crate::ops::{
    call::{
        compose::{composite, wrong_shape},
        exec::compose,
    },
    create::values::of_elements,
    grad::custom::{CpuStorage, CustomOp1},
};

/// Numbers whose room a thread keeps.
const KEPT: usize = 1 << 16;

thread_local! {
    /// Where a product is computed before it is an array, so that the next one asks the heap for nothing.
    static ROOM: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Rows of an input and a result of so many numbers, in rows of `k` and `n`.
fn rows_of(counts: [usize; 2], [k, n]: [usize; 2]) -> usize {
    counts[0].checked_div(k).unwrap_or(counts[1] / n.max(1))
}

impl QTensor {
    /// `x [.., k]` times the transposed matrix `[n, k]` of these blocks, `[.., n]`, in the dtype of `x` and with its
    /// owner. Two axes or more, of f32, f16, bf16 or f8e4m3.
    ///
    /// On the host each 32 or 256 numbers of `x` are rounded to 8 bits for it, as candle does, and integers are
    /// multiplied. On another device the blocks are made floats in each call: a [`QMatMul`] does it once.
    ///
    /// The gradient of `x` is that of a product with the blocks' numbers; the blocks have none.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::ShapeMismatch`], [`Error::UnsupportedDType`], [`Error::DeviceMismatch`];
    /// [`Error::StaleArray`] if `x` or the blocks were closed.
    #[track_caller]
    pub fn matmul(&self, x: &Proxy) -> Result<Proxy> {
        let call = Call::here("qmatmul");
        let [n, k] = *self.shape.dims() else {
            return Err(Error::shape(call, self.shape.dims(), "a matrix of blocks"));
        };
        if !matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3) {
            return Err(Error::unsupported_dtype(call, x.dtype(), "f8e4m3, f16, bf16, f32"));
        }
        let shape = *x.shape();
        let [lead @ .., last] = shape.dims() else { return wrong_shape(call, x, "two axes or more") };
        if lead.is_empty() {
            return wrong_shape(call, x, "two axes or more");
        }
        if *last != k {
            return Err(Error::shape_mismatch(
                call,
                x.dims(),
                &[n, k],
                format!("the last axes differ ({last} != {k})"),
            ));
        }
        if x.device() != self.blocks.device() {
            let (lhs, rhs) = (x.device().to_string(), self.blocks.device().to_string());
            return Err(Error::device_mismatch(call, lhs, rhs));
        }
        let to = shape.with_dim(lead.len(), n);
        let m = rows_of([shape.elem_count(), to.check(call, 4)?], [k, n]);
        let (dtype, shape) = (self.dtype, self.shape);
        composite(call, x, &mut || {
            let y = no_grad(|| self.product(call, [m, k, n], x, to)?.to_dtype(x.dtype()))?;
            // What is saved stays for the gradient, also if the blocks are closed.
            let saved = self.blocks.with_pinned(call, |array| Saved::of(call, array))?;
            y.with_gradient(call, [x], false, move |grad, _, _| {
                let weights = QTensor { blocks: saved.get()?, dtype, shape };
                let grad_f32 = grad.to_dtype(DType::F32)?.reshape((m, n))?;
                let grad_x = grad_f32.matmul(&weights.dequantize(grad.device())?)?;
                let dims = [&grad.dims()[..grad.rank() - 1], &[k]].concat();
                Ok([Some(grad_x.reshape(dims)?.to_dtype(grad.dtype())?), None, None])
            })
        })
    }

    /// The product as f32.
    #[track_caller]
    fn product(&self, call: Call, [m, k, n]: [usize; 3], x: &Proxy, to: Shape) -> Result<Proxy> {
        if !x.device().is_cpu() || self.dtype.block_size() == 1 {
            let x = x.to_dtype(DType::F32)?.reshape((m, k))?;
            return x.matmul(&self.dequantize(x.device())?.t()?)?.reshape(to);
        }
        let mut room = ROOM.try_with(Cell::take).unwrap_or_default();
        heap::resize(call.op, &mut room, to.elem_count())?;
        let all = &mut room;
        let product = |x: &[f32]| {
            if x.len() != m * k {
                let (found, why) = ([x.len()], "the input was exchanged during the call");
                return Err(Error::shape_mismatch(call, &found, self.shape.dims(), why));
            }
            self.with_bytes(|blocks| quantized::product(call.op, self.dtype, [m, k, n], x, blocks, all)).flatten()
        };
        with_floats(x, product).flatten()?;
        let made = of_elements(call, f32::bytes_of(&room), (to, DType::F32), &Device::Cpu);
        if room.len() <= KEPT {
            let _ = ROOM.try_with(|kept| kept.set(room));
        }
        made
    }
}

/// The product as an operation on `x [.., k]` of f32 on the host, as candle has it: each row of `x` by itself, so that
/// it is the same in a batch of any size. Without a gradient; [`QTensor::matmul`] has one.
impl CustomOp1 for QTensor {
    fn name(&self) -> &'static str {
        "qmatmul"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let op = "qmatmul";
        let x = storage.as_slice::<f32>()?;
        let ([n, k], [lead @ .., last]) = (self.shape.dims(), layout.dims()) else {
            return Err(Error::shape(op, self.shape.dims(), "a matrix of blocks, and an input with an axis"));
        };
        if last != k {
            let why = format!("the last axes differ ({last} != {k})");
            return Err(Error::shape_mismatch(op, layout.dims(), &[*n, *k], why));
        }
        if layout.shape().check(op, size_of::<f32>())? != x.len() {
            return Err(Error::element_count(op, x.len(), layout.dims()));
        }
        let to = Shape::from([lead, &[*n]].concat());
        let count = to.check(op, 4)?;
        let sizes = [rows_of([x.len(), count], [*k, *n]), *k, *n];
        let mut all = heap::zeros(op, count)?;
        self.with_bytes(|blocks| match self.dtype.block_size() {
            1 => {
                let mut weights = heap::zeros(op, n * k)?;
                quantized::dequantize(self.dtype, blocks, &mut weights);
                f32::product(sizes, x, &weights, &mut all)
            }
            _ => quantized::product(op, self.dtype, sizes, x, blocks, &mut all),
        })
        .flatten()?;
        Ok((CpuStorage::F32(all), to))
    }
}

/// Weights `[n, k]` that inputs `[.., k]` are multiplied with: in blocks, or as floats.
///
/// Cloning it clones handles.
#[derive(Clone, Debug)]
pub enum QMatMul {
    /// In blocks, which are multiplied as they are.
    QTensor(Arc<QTensor>),
    /// As f32.
    Tensor(Proxy),
    /// As f16.
    TensorF16(Proxy),
}

impl QMatMul {
    /// Weights as they are if they are in blocks on the host; as f32, on their device and of their handles, if they are
    /// floats or lie elsewhere.
    ///
    /// # Errors
    /// As [`QTensor::dequantize`].
    #[track_caller]
    pub fn from_arc(qtensor: Arc<QTensor>) -> Result<Self> {
        if qtensor.dtype().block_size() > 1 && qtensor.device().is_cpu() {
            return Ok(QMatMul::QTensor(qtensor));
        }
        Ok(QMatMul::Tensor(qtensor.dequantize(qtensor.blocks.device())?))
    }

    /// As [`QMatMul::from_arc`].
    ///
    /// # Errors
    /// As [`QTensor::dequantize`].
    #[track_caller]
    pub fn from_qtensor(qtensor: QTensor) -> Result<Self> {
        Self::from_arc(Arc::new(qtensor))
    }

    /// The product of `xs [.., k]` with the transposed weights, `[.., n]`, with the owner of `xs`.
    ///
    /// # Errors
    /// As [`QTensor::matmul`], or [`Proxy::matmul`] for weights that are floats.
    #[track_caller]
    pub fn forward(&self, xs: &Proxy) -> Result<Proxy> {
        let call = Call::here("qmatmul");
        match self {
            QMatMul::QTensor(blocks) => blocks.matmul(xs),
            QMatMul::Tensor(weights) => compose(call, xs, &mut || times(xs, weights)),
            QMatMul::TensorF16(weights) => halved(call, xs, &|| Ok(weights.clone())),
        }
    }

    /// The weights as f16, on their device.
    ///
    /// # Errors
    /// As [`QTensor::dequantize`].
    #[track_caller]
    pub fn dequantize_f16(&self) -> Result<Proxy> {
        match self {
            QMatMul::QTensor(blocks) => blocks.dequantize_f16(blocks.blocks.device()),
            QMatMul::Tensor(weights) => weights.to_dtype(DType::F16),
            QMatMul::TensorF16(weights) => Ok(weights.clone()),
        }
    }

    /// As [`QMatMul::forward`], of floats of 16 bits, which the weights are made in each call.
    ///
    /// # Errors
    /// As [`QMatMul::forward`].
    #[track_caller]
    pub fn forward_via_f16(&self, xs: &Proxy) -> Result<Proxy> {
        halved(Call::here("qmatmul"), xs, &|| self.dequantize_f16())
    }

    /// Rows of the weights: as [`QTensor::embedding`].
    ///
    /// # Errors
    /// As [`QTensor::embedding`].
    #[track_caller]
    pub fn embedding(&self, ids: &Proxy) -> Result<Proxy> {
        match self {
            QMatMul::QTensor(blocks) => blocks.embedding(ids),
            QMatMul::Tensor(weights) | QMatMul::TensorF16(weights) => weights.embedding(ids),
        }
    }
}

/// `xs weights^T`, whatever the number of axes of `xs`.
#[track_caller]
fn times(xs: &Proxy, weights: &Proxy) -> Result<Proxy> {
    xs.broadcast_matmul(&weights.t()?)
}

/// As [`times`], in floats of 16 bits, with the dtype and the owner of `xs`.
fn halved(call: Call, xs: &Proxy, weights: &dyn Fn() -> Result<Proxy>) -> Result<Proxy> {
    compose(call, xs, &mut || times(&xs.to_dtype(DType::F16)?, &weights()?)?.to_dtype(xs.dtype()))
}
