//! Blocks with a shape: made of floats and made floats, and looked up row by row.

use std::borrow::Cow;
use std::fmt;

use crate::array::autograd::no_grad;
use crate::base::{
    call::{Asked, Call},
    dtype::DType,
    error::{Error, Result},
    ggml::GgmlDType,
    heap,
    shape::Shape,
};
use crate::device::{Device, cpu::quantized};
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    compose::{argument, composite, composite_at, wrong_shape},
    place::Place,
};

/// Blocks without a shape: what [`QTensor::new`] takes.
#[derive(Debug)]
pub struct QStorage {
    blocks: Proxy,
    dtype: GgmlDType,
}

impl QStorage {
    /// Blocks of their bytes, as files have them.
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the last block is not whole; as [`Proxy::zeros`].
    #[track_caller]
    pub fn from_data<P: Place + ?Sized>(data: Cow<'_, [u8]>, at: &P, dtype: GgmlDType) -> Result<Self> {
        whole("from_data", data.len(), dtype)?;
        let len = data.len();
        Ok(QStorage { blocks: Proxy::from_vec(data.into_owned(), len, at)?, dtype })
    }

    /// The blocks' format.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// Bytes of the blocks.
    pub fn size_in_bytes(&self) -> usize {
        self.blocks.elem_count()
    }
}

fn whole(op: &'static str, bytes: usize, dtype: GgmlDType) -> Result<()> {
    match bytes.is_multiple_of(dtype.type_size()) {
        true => Ok(()),
        false => Err(Error::element_count(op, bytes, &[bytes / dtype.type_size(), dtype.type_size()])),
    }
}

/// Bytes of the blocks of a shape, whose last axis has whole blocks.
pub(super) fn bytes_of(call: impl Into<Asked>, shape: &Shape, dtype: GgmlDType) -> Result<usize> {
    let (call, len) = (call.into(), dtype.block_size());
    if shape.dims().last().is_none_or(|last| !last.is_multiple_of(len)) {
        let expected = format!("at least one axis, and a last one that {len} divides, for blocks of {dtype}");
        return Err(Error::shape(call, shape.dims(), expected));
    }
    // No format has more bytes for a number than f32.
    Ok(shape.check(call, 4)? / len * dtype.type_size())
}

/// Numbers in blocks, which share scales along the last axis.
///
/// It has one handle of the array of its blocks. That is closed like any other: by hand, with its manager, or when this
/// value, and with it the handle, is dropped.
///
/// ```
/// # use ndgc::{Device, Tensor, quantized::{GgmlDType, QMatMul, QTensor}};
/// let weights = Tensor::ones((4, 64), ndgc::DType::F32, &Device::Cpu)?;
/// let blocks = QTensor::quantize(&weights, GgmlDType::Q8_0)?;
/// assert_eq!(blocks.storage_size_in_bytes(), 4 * 2 * 34); // rows of two blocks of 34 bytes
/// let x = Tensor::ones((1, 64), ndgc::DType::F32, &Device::Cpu)?;
/// let y = QMatMul::from_qtensor(blocks)?.forward(&x)?;
/// assert!(y.to_vec2::<f32>()?[0].iter().all(|y| (y - 64.).abs() < 0.1));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct QTensor {
    /// Bytes, contiguous: as many as the shape's blocks have.
    pub(super) blocks: Proxy,
    pub(super) dtype: GgmlDType,
    pub(super) shape: Shape,
}

impl fmt::Debug for QTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QTensor[{:?}; {:?}]", self.shape, self.dtype)
    }
}

impl QTensor {
    /// Blocks with a shape.
    ///
    /// ```
    /// # use ndgc::{Device, quantized::{GgmlDType, QStorage, QTensor}};
    /// # use std::borrow::Cow;
    /// let bytes = vec![0u8; 2 * 34]; // two blocks, as in a file
    /// let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, GgmlDType::Q8_0)?;
    /// let matrix = QTensor::new(storage, (2, 32))?;
    /// assert_eq!(matrix.dequantize(&Device::Cpu)?.to_vec2::<f32>()?, [[0f32; 32]; 2]);
    /// let storage = QStorage::from_data(Cow::Owned(vec![0u8; 34]), &Device::Cpu, GgmlDType::Q8_0)?;
    /// assert!(QTensor::new(storage, (2, 32)).is_err()); // one block is too few
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if the last axis is not one of whole blocks; [`Error::ElementCount`] if the shape has another
    /// number of them.
    #[track_caller]
    pub fn new<S: Into<Shape>>(storage: QStorage, shape: S) -> Result<Self> {
        Self::from_blocks(storage.blocks, storage.dtype, shape)
    }

    /// The bytes of blocks, as files have them, with a shape: an array of [`DType::U8`], of any contiguous shape, which
    /// nothing else should change.
    ///
    /// # Errors
    /// As [`QTensor::new`]; [`Error::UnsupportedDType`] if the array is not one of bytes.
    #[track_caller]
    pub fn from_blocks<S: Into<Shape>>(blocks: Proxy, dtype: GgmlDType, shape: S) -> Result<Self> {
        let (call, shape) = (Call::here("from_blocks"), shape.into());
        if blocks.dtype() != DType::U8 {
            return Err(Error::unsupported_dtype(call, blocks.dtype(), "u8"));
        }
        if !blocks.is_contiguous() {
            return wrong_shape(call, &blocks, "a contiguous array; call contiguous()");
        }
        let (bytes, given) = (bytes_of(call, &shape, dtype)?, blocks.elem_count());
        if bytes != given {
            return Err(Error::element_count(call, given, &[bytes]));
        }
        Ok(QTensor { blocks, dtype, shape })
    }

    /// The blocks that come nearest to an array of floats, of any layout. They lie on its device, with its owner.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor, quantized::{GgmlDType, QTensor}};
    /// let rows = |width| Tensor::ones((2, width), DType::F32, &Device::Cpu);
    /// let blocks = QTensor::quantize(&rows(64)?, GgmlDType::Q4_0)?;
    /// assert_eq!(blocks.shape().dims(), [2, 64]); // that of the numbers
    /// assert_eq!(blocks.blocks().dtype(), DType::U8); // the blocks are an array of bytes
    /// let refused = QTensor::quantize(&rows(50)?, GgmlDType::Q4_0); // rows of blocks of 32
    /// assert!(matches!(refused, Err(Error::Shape { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if it has no axis, or the last one is not one of whole blocks; as [`Proxy::to_vec`] and
    /// [`Proxy::zeros`].
    #[track_caller]
    pub fn quantize(src: &Proxy, dtype: GgmlDType) -> Result<Self> {
        let (call, shape) = (Call::here("quantize"), *src.shape());
        let bytes = bytes_of(call, &shape, dtype)?;
        let blocks = no_grad(|| composite(call, src, &mut || packed(src, dtype, &[], bytes, src.device())))?;
        Ok(QTensor { blocks, dtype, shape })
    }

    /// As [`QTensor::quantize`], of an array on the host, put at a place.
    ///
    /// # Errors
    /// As [`QTensor::quantize`]; [`Error::DeviceMismatch`] for an array of another device.
    #[track_caller]
    pub fn quantize_onto<P: Place + ?Sized>(src: &Proxy, dtype: GgmlDType, at: &P) -> Result<Self> {
        let (call, shape) = (Call::here("quantize_onto"), *src.shape());
        on_host(call.op, src)?;
        let bytes = bytes_of(call, &shape, dtype)?;
        let blocks = no_grad(|| composite_at(call, &at, &mut || packed(src, dtype, &[], bytes, at.device_of_place())))?;
        Ok(QTensor { blocks, dtype, shape })
    }

    /// As [`QTensor::quantize`], to a format of 256 numbers a block and fewer than 8 bits, where an error matters by
    /// the importance of its place along the last axis: the squares of what the weights there are multiplied with, on
    /// average.
    ///
    /// # Errors
    /// As [`QTensor::quantize`]; [`Error::Argument`] for another format; [`Error::ElementCount`] if there is not a
    /// number for each place.
    #[track_caller]
    pub fn quantize_imatrix(src: &Proxy, imatrix_weights: &[f32], dtype: GgmlDType) -> Result<Self> {
        let (call, shape) = (Call::here("quantize_imatrix"), *src.shape());
        let bytes = weighable(call.op, &shape, imatrix_weights, dtype)?;
        let mut pack = || packed(src, dtype, imatrix_weights, bytes, src.device());
        Ok(QTensor { blocks: no_grad(|| composite(call, src, &mut pack))?, dtype, shape })
    }

    /// As [`QTensor::quantize_imatrix`], of an array on the host, put at a place.
    ///
    /// # Errors
    /// As [`QTensor::quantize_imatrix`]; [`Error::DeviceMismatch`] for an array of another device.
    #[track_caller]
    pub fn quantize_imatrix_onto<P: Place + ?Sized>(
        src: &Proxy,
        imatrix_weights: &[f32],
        dtype: GgmlDType,
        at: &P,
    ) -> Result<Self> {
        let (call, shape) = (Call::here("quantize_imatrix_onto"), *src.shape());
        on_host(call.op, src)?;
        let bytes = weighable(call.op, &shape, imatrix_weights, dtype)?;
        let mut pack = || packed(src, dtype, imatrix_weights, bytes, at.device_of_place());
        Ok(QTensor { blocks: no_grad(|| composite_at(call, &at, &mut pack))?, dtype, shape })
    }

    /// The blocks: an array of bytes.
    pub fn blocks(&self) -> &Proxy {
        &self.blocks
    }

    /// The blocks' format.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// The device of the blocks.
    pub fn device(&self) -> Device {
        self.blocks.device().clone()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The shape of the numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of the blocks.
    pub fn storage_size_in_bytes(&self) -> usize {
        self.blocks.elem_count()
    }

    /// A copy of the blocks' bytes.
    ///
    /// # Errors
    /// As [`Proxy::to_vec`].
    #[track_caller]
    pub fn data(&self) -> Result<Cow<'_, [u8]>> {
        self.blocks.to_vec::<u8>().map(Cow::Owned)
    }

    /// The numbers as f32, put at a place: a device, or a manager, which then owns them.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, quantized::{GgmlDType, QTensor}};
    /// let x = Tensor::arange(0f32, 32., &Device::Cpu)?;
    /// let again = QTensor::quantize(&x, GgmlDType::Q8_0)?.dequantize(&Device::Cpu)?;
    /// let errors = x.sub(&again)?.abs()?.to_vec1::<f32>()?;
    /// assert!(errors.iter().all(|error| *error < 0.2)); // half a step of 31 / 127, or less
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::to_vec`] and [`Proxy::zeros`].
    #[track_caller]
    pub fn dequantize<P: Place + ?Sized>(&self, at: &P) -> Result<Proxy> {
        composite_at(Call::here("dequantize"), &at, &mut || {
            let mut all = heap::zeros("dequantize", self.shape.elem_count())?;
            self.with_bytes(|bytes| quantized::dequantize(self.dtype, bytes, &mut all))?;
            Proxy::from_vec(all, self.shape, at.device_of_place())
        })
    }

    /// The numbers as f16, put at a place.
    ///
    /// # Errors
    /// As [`QTensor::dequantize`].
    #[track_caller]
    pub fn dequantize_f16<P: Place + ?Sized>(&self, at: &P) -> Result<Proxy> {
        let call = Call::here("dequantize_f16");
        composite_at(call, &at, &mut || self.dequantize(at.device_of_place())?.to_dtype(DType::F16))
    }

    /// Rows of a matrix as f32: of `[rows, n]` and indices `[..]`, `[.., n]`, with the indices' owner and on the device
    /// of the blocks. Only those rows are made floats.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, Tensor, quantized::{GgmlDType, QTensor}};
    /// let table = QTensor::quantize(&Tensor::zeros((10, 32), DType::F32, &Device::Cpu)?, GgmlDType::Q8_0)?;
    /// let rows = table.embedding(&Tensor::new(&[[3u32, 3, 9]], &Device::Cpu)?)?;
    /// assert_eq!((rows.dims(), rows.dtype()), (&[1, 3, 32][..], DType::F32));
    /// let outside = Tensor::new(&[10u32], &Device::Cpu)?;
    /// assert!(matches!(table.embedding(&outside), Err(Error::IndexOutOfRange { .. })));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if this is no matrix; [`Error::UnsupportedDType`] for indices that are no integers;
    /// [`Error::IndexOutOfRange`]; as [`Proxy::to_vec`].
    #[track_caller]
    pub fn embedding(&self, ids: &Proxy) -> Result<Proxy> {
        let call = Call::here("embedding");
        let [rows, n] = *self.shape.dims() else {
            return Err(Error::shape(call, self.shape.dims(), "a matrix"));
        };
        if !ids.dtype().is_int() {
            return Err(Error::unsupported_dtype(call, ids.dtype(), "any integers"));
        }
        composite(call, ids, &mut || {
            let (shape, list) = ids.to_dtype(DType::I64)?.elements::<i64>(call.op)?;
            if let Some(&index) = list.iter().find(|id| !usize::try_from(**id).is_ok_and(|id| id < rows)) {
                return Err(Error::index_out_of_range(call, index, rows));
            }
            let to = Shape::from([shape.dims(), &[n]].concat());
            let mut all = heap::zeros(call.op, to.check(call, 4)?)?;
            let row = n / self.dtype.block_size() * self.dtype.type_size();
            self.with_bytes(|bytes| {
                for (to, id) in all.chunks_exact_mut(n.max(1)).zip(list) {
                    quantized::dequantize(self.dtype, &bytes[id as usize * row..][..row], to);
                }
            })?;
            Proxy::from_vec(all, to, self.blocks.device())
        })
    }

    /// Calls `f` with the blocks' bytes: in place on the host, else with a copy.
    #[track_caller]
    pub(super) fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let call = Call::here("to_vec");
        let wanted = bytes_of(call, &self.shape, self.dtype)?;
        let checked = |bytes: &[u8]| match bytes.len() == wanted {
            true => Ok(f(bytes)),
            // Their array was exchanged for another one (`Proxy::intern`).
            false => Err(Error::element_count(call, bytes.len(), &[wanted])),
        };
        match self.blocks.device().is_cpu() {
            true => self.blocks.with_slice(checked)?,
            false => checked(&self.blocks.elements::<u8>("to_vec")?.1),
        }
    }
}

fn on_host(op: &'static str, src: &Proxy) -> Result<()> {
    if src.device().is_cpu() {
        return Ok(());
    }
    Err(Error::device_mismatch(op, src.device(), Device::Cpu))
}

/// Bytes of the blocks of a shape, for a format whose numbers can be weighed, and a weight for each place of a row.
fn weighable(op: &'static str, shape: &Shape, weights: &[f32], dtype: GgmlDType) -> Result<usize> {
    use GgmlDType::{Q2K, Q3K, Q4K, Q5K, Q6K};
    if !matches!(dtype, Q2K | Q3K | Q4K | Q5K | Q6K) {
        return argument(op, "dtype", dtype, "Q2K, Q3K, Q4K, Q5K or Q6K");
    }
    let bytes = bytes_of(op, shape, dtype)?;
    match shape.dims().last() {
        Some(&last) if last != weights.len() => Err(Error::element_count(op, weights.len(), &[last])),
        _ => Ok(bytes),
    }
}

/// An array's blocks, as an array of the device.
#[track_caller]
fn packed(src: &Proxy, dtype: GgmlDType, importance: &[f32], bytes: usize, device: &Device) -> Result<Proxy> {
    let mut blocks = heap::zeros("quantize", bytes)?;
    with_floats(src, |numbers| quantized::weighed(dtype, numbers, importance, &mut blocks))?;
    Proxy::from_vec(blocks, bytes, device)
}

/// Calls `f` with the elements of an array as f32, in row-major order: in place if they lie so on the host.
#[track_caller]
pub(super) fn with_floats<R>(x: &Proxy, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let x = x.to_dtype(DType::F32)?;
    match x.device().is_cpu() {
        true => x.contiguous()?.with_slice(f),
        false => Ok(f(&x.elements::<f32>("to_vec")?.1)),
    }
}
