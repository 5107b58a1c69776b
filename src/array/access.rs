//! Reading arrays: metadata, elements, scalars.

use std::ops::Range;

use crate::base::{
    blocks::{StridedBlocks, StridedIndex},
    call::Call,
    dtype::{DType, WithDType, with_bits},
    error::{Error, Result},
    heap,
    layout::Layout,
    shape::{Dim, Shape},
    system::{LARGE_PAGE, advise_large_pages},
};
use crate::device::{Device, graph::blame, kernel::OwnedView};
use crate::memory::{
    proxy::Proxy,
    reclaim,
    registry::{self, Pinned},
    switch,
    threads::with_context,
};

/// # What the array is
///
/// Answered at once, and also by a handle whose array was closed, since it cannot change any more.
/// [`Proxy::is_open`] tells whether it was.
impl Proxy {
    /// Shape, strides and offset in its storage.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((2, 3))?;
    /// let column = x.t()?.get(1)?; // a view: the same bytes
    /// let layout = column.layout();
    /// assert_eq!((layout.dims(), layout.strides(), layout.offset()), (&[2usize][..], &[3isize][..], 1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[inline]
    pub fn layout(&self) -> &Layout {
        &registry::metadata(self).layout
    }

    /// The shape.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Shape, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// assert_eq!(*x.shape(), Shape::from((2, 3)));
    /// assert_eq!(Tensor::ones(x.shape(), DType::U8, &Device::Cpu)?.dims(), [2, 3]); // of one, another one
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.layout().shape()
    }

    /// Size along each axis.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// x.close();
    /// assert_eq!(x.dims(), [2, 3]); // it cannot change any more
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[inline]
    pub fn dims(&self) -> &[usize] {
        self.layout().dims()
    }

    /// Size along one axis.
    ///
    /// ```
    /// # use ndgc::{D, DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// assert_eq!((x.dim(0)?, x.dim(D::Minus1)?), (2, 3));
    /// assert!(x.dim(2).is_err());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`].
    #[track_caller]
    pub fn dim<D: Dim>(&self, dim: D) -> Result<usize> {
        self.shape().dim(dim)
    }

    /// No sizes, of a scalar.
    ///
    /// # Errors
    /// As [`Proxy::dims1`].
    #[track_caller]
    pub fn dims0(&self) -> Result<()> {
        self.shape().dims0()
    }

    /// The size of a vector.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has another number of axes.
    #[track_caller]
    pub fn dims1(&self) -> Result<usize> {
        self.shape().dims1()
    }

    /// The sizes of a matrix.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let (rows, columns) = x.dims2()?;
    /// assert_eq!((rows, columns), (2, 3));
    /// assert!(x.get(0)?.dims2().is_err()); // a row has one axis
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::dims1`].
    #[track_caller]
    pub fn dims2(&self) -> Result<(usize, usize)> {
        self.shape().dims2()
    }

    /// The sizes along three axes.
    ///
    /// # Errors
    /// As [`Proxy::dims1`].
    #[track_caller]
    pub fn dims3(&self) -> Result<(usize, usize, usize)> {
        self.shape().dims3()
    }

    /// Number of axes.
    #[doc(alias = "ndim")]
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Number of elements.
    #[doc(alias("size", "length"))]
    #[inline]
    pub fn elem_count(&self) -> usize {
        self.shape().elem_count()
    }

    /// Elements from one index to the next, for each axis.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// assert_eq!((x.stride(), x.t()?.stride()), (&[3isize, 1][..], &[1isize, 3][..]));
    /// assert_eq!(x.get(0)?.broadcast_as((5, 3))?.stride(), [0, 1]); // one row, again and again
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[inline]
    pub fn stride(&self) -> &[isize] {
        self.layout().strides()
    }

    /// Where each element lies in its storage, in row-major order.
    pub fn strided_index(&self) -> StridedIndex {
        self.layout().strided_index()
    }

    /// Where its elements lie in its storage, as blocks without a gap.
    pub fn strided_blocks(&self) -> StridedBlocks {
        self.layout().strided_blocks()
    }

    /// Whether its elements lie one after the other in row-major order.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let t = x.t()?; // the same bytes, with the first axis running fastest
    /// assert!(x.is_contiguous() && !t.is_contiguous() && t.is_fortran_contiguous());
    /// assert!(t.contiguous()?.is_contiguous()); // a copy
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.layout().is_contiguous()
    }

    /// Whether its elements lie one after the other with the first axis running fastest.
    pub fn is_fortran_contiguous(&self) -> bool {
        self.layout().is_fortran_contiguous()
    }

    /// An axis that is counted backwards from -1 if it is negative, counted from 0.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!((x.normalize_axis(-1)?, x.normalize_axis(1)?), (2, 1));
    /// assert!(x.normalize_axis(-4).is_err());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`].
    #[track_caller]
    pub fn normalize_axis(&self, axis: i64) -> Result<usize> {
        let call = Call::here("normalize_axis");
        call.named(call.axis(axis, self.shape()))
    }

    /// Element type.
    #[doc(alias = "dataType")]
    #[inline]
    pub fn dtype(&self) -> DType {
        registry::metadata(self).dtype
    }

    /// The device of its bytes.
    #[inline]
    pub fn device(&self) -> &Device {
        &registry::metadata(self).device
    }
}

/// # Memory: the bytes of the array
impl Proxy {
    /// Bytes of its storage, which its views share.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(1000, DType::F32, &Device::Cpu)?;
    /// let part = x.narrow(0, 0, 10)?;
    /// x.close();
    /// assert_eq!(part.storage_bytes()?, 4000); // ten elements keep them all
    /// assert_eq!(part.copy()?.storage_bytes()?, 40);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn storage_bytes(&self) -> Result<usize> {
        self.with_pinned(Call::here("storage_bytes"), |array| array.storage.buffer().span().bytes())
    }

    /// Whether this is the only handle of the array and nothing else uses its bytes: no view, no saved value.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// assert!(x.is_unique()?);
    /// let row = x.get(0)?; // sees what is changed in place
    /// assert!(!x.is_unique()? && !row.is_unique()?);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn is_unique(&self) -> Result<bool> {
        let alone = self.with_pinned(Call::here("is_unique"), |array| array.storage.references() == 1)?;
        Ok(alone && self.handle_count() == 1)
    }
}

/// # Gradients: whether they are recorded
impl Proxy {
    /// Whether gradients are recorded for it: it is a variable, or was computed from one. A closed array says no.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Var, no_grad};
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// assert!(w.exp()?.track_op());
    /// assert!(!no_grad(|| w.exp())?.track_op() && !w.detach().track_op());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn track_op(&self) -> bool {
        self.with_pinned("track_op", |array| array.node.is_some()).unwrap_or(false)
    }
}

/// # Reading the elements
impl Proxy {
    /// Calls `f` with the elements of a contiguous array on the host, in place.
    ///
    /// While `f` runs, the bytes stay, also if the array is closed; in-place operations on them, by anybody, give
    /// [`Error::InUse`].
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::DTypeMismatch`]; [`Error::RequiresContiguous`];
    /// [`Error::DeviceMismatch`] if it is not on the host.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::arange(0f32, 4., &Device::Cpu)?;
    /// let sum: f32 = a.with_slice(|s: &[f32]| s.iter().sum())?;
    /// assert_eq!(sum, 6.);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn with_slice<T: WithDType, R>(&self, f: impl FnOnce(&[T]) -> R) -> Result<R> {
        let call = Call::here("with_slice");
        let (mut f, mut answer) = (Some(f), None);
        call.named(self.with_bytes(call.op, T::DTYPE, &mut |bytes| {
            let elements = T::of_bytes(bytes).ok_or_else(|| no_truth(call.op))?;
            answer = f.take().map(|f| f(elements));
            Ok(())
        }))?;
        Ok(answer.expect("the elements were there"))
    }

    /// Calls `f` with the bytes of the elements, once, and while it runs they stay. For all dtypes.
    fn with_bytes(&self, op: &'static str, dtype: DType, f: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        switch::check(op)?;
        with_context(|context| {
            reclaim::on_call(context);
            let pins = registry::pin(context, op, [self.key()], true)?;
            let [array] = pins.arrays();
            if !array.layout.is_contiguous() {
                return Err(Error::RequiresContiguous { op, site: None });
            }
            let (size, count) = (dtype.size_in_bytes(), array.layout.shape().elem_count());
            let bytes = storage_bytes(op, &array, dtype)?;
            let part = if count == 0 { &[][..] } else { &bytes[array.layout.offset() * size..][..count * size] };
            f(part)
        })
    }

    /// The elements in row-major order, whatever the shape. Waits for the device.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// assert_eq!(x.t()?.to_vec::<f32>()?, [1., 3., 2., 4.]);
    /// assert!(x.to_vec::<f64>().is_err()); // nothing is converted silently
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::DTypeMismatch`] if `T` is another type; the first failure of the device's
    /// work.
    #[doc(alias("tolist", "toArray"))]
    #[track_caller]
    pub fn to_vec<T: WithDType>(&self) -> Result<Vec<T>> {
        self.read(Call::here("to_vec"), T::DTYPE, ALL).map(|(_, all)| all)
    }

    /// The shape and the elements in row-major order, of one look: for operations that compute on the host. A shape
    /// that was read before may be another array's by the time that the elements are (`intern`).
    #[track_caller]
    pub(crate) fn elements<T: WithDType>(&self, op: &'static str) -> Result<(Shape, Vec<T>)> {
        self.read(Call::here(op), T::DTYPE, ALL)
    }

    /// As [`Proxy::elements`], as unsigned integers of the size of this type.
    #[track_caller]
    pub(crate) fn bits<B: WithDType>(&self, op: &'static str, dtype: DType) -> Result<(Shape, Vec<B>)> {
        self.read(Call::here(op), dtype, ALL)
    }

    /// The shape, and the elements; of more than `most`, `edge` at each end of every longer axis.
    #[track_caller]
    pub(crate) fn ends<T: WithDType>(&self, op: &'static str, most: usize, edge: usize) -> Result<(Shape, Vec<T>)> {
        self.read(Call::here(op), T::DTYPE, Part { most, edge })
    }

    /// The shape, and a part of the elements, which are of this type; `T` is that, or the unsigned integer of its size.
    fn read<T: WithDType>(&self, call: Call, dtype: DType, part: Part) -> Result<(Shape, Vec<T>)> {
        let mut elements = Elements { op: call.op, found: Vec::new() };
        let shape = self.read_bytes(call, dtype, part, &mut elements)?;
        Ok((shape, elements.found))
    }

    /// The shape. Gives `take` the bytes of a storage. Apart from [`Proxy::read`], so that it is code once, and not for
    /// each type.
    fn read_bytes(&self, call: Call, dtype: DType, part: Part, take: &mut dyn Take) -> Result<Shape> {
        let read = |array: &Pinned<'_>| {
            let shape = *array.layout.shape();
            let edge = (shape.elem_count() > part.most).then_some(part.edge);
            if !array.storage.buffer().device().is_cpu() {
                same_type(call.op, array, dtype)?;
                download(call, array, edge, take)?;
                return Ok(shape);
            }
            let bytes = storage_bytes(call.op, array, dtype)?;
            if dtype == DType::Bool {
                // What lies between the truth values need not be any: only those are looked at.
                let own = gather(call.op, bytes, array.layout, edge)?;
                if own.iter().any(|&byte| byte > 1) {
                    return Err(no_truth(call.op));
                }
                take.take(&own, &Layout::contiguous(Shape::from(own.len())), None)?;
            } else {
                take.take(bytes, array.layout, edge)?;
            }
            Ok(shape)
        };
        call.named(self.with_pinned(call, read).flatten())
    }

    /// Writes the elements in row-major order, in the byte order of the machine, and nothing else.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[[1u8, 2], [3, 4]], &Device::Cpu)?;
    /// let mut file: Vec<u8> = Vec::new(); // or whatever else takes bytes
    /// x.t()?.write_bytes(&mut file)?;
    /// assert_eq!(file, [1, 3, 2, 4]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::to_vec`]; what the writer refuses.
    #[track_caller]
    pub fn write_bytes<W: std::io::Write>(&self, to: &mut W) -> Result<()> {
        let dtype = self.dtype();
        with_bits!(dtype, B => to.write_all(B::bytes_of(&self.bits::<B>("to_vec", dtype)?.1))?);
        Ok(())
    }

    /// The element of a scalar.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// assert_eq!(x.sum_all()?.to_scalar::<f32>()?, 6.);
    /// assert!(x.to_scalar::<f32>().is_err()); // it has an axis
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if it has axes; as [`Proxy::to_vec`].
    #[doc(alias = "item")]
    #[track_caller]
    pub fn to_scalar<T: WithDType>(&self) -> Result<T> {
        let (call, mut found) = (Call::here("to_scalar"), None);
        let mut first = |bytes: &[u8], layout: &Layout, _: Option<usize>| {
            found = T::of_bytes(bytes).ok_or_else(|| no_truth(call.op))?.get(layout.offset()).copied();
            Ok(())
        };
        let shape = self.read_bytes(call, T::DTYPE, Part { most: 0, edge: 0 }, &mut first)?;
        found.filter(|_| shape.rank() == 0).ok_or_else(|| no_scalar(call, &shape))
    }

    /// Alias of [`Proxy::to_scalar`]: candle's name.
    ///
    /// # Errors
    /// As [`Proxy::to_scalar`].
    #[track_caller]
    pub fn to_vec0<T: WithDType>(&self) -> Result<T> {
        self.to_scalar()
    }

    /// The elements of a vector.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// let copied = x.to_vec1::<f32>()?;
    /// x.close();
    /// assert_eq!(copied, [1., 2., 3.]); // the caller's own
    /// assert!(x.to_vec1::<f32>().is_err()); // of a closed array there are none
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if it has another number of axes; as [`Proxy::to_vec`].
    #[track_caller]
    pub fn to_vec1<T: WithDType>(&self) -> Result<Vec<T>> {
        let (shape, all) = self.read(Call::here("to_vec1"), T::DTYPE, ALL)?;
        shape.dims1()?;
        Ok(all)
    }

    /// The rows of a matrix.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0u32, 6, &Device::Cpu)?.reshape((2, 3))?;
    /// assert_eq!(x.t()?.to_vec2::<u32>()?, [[0, 3], [1, 4], [2, 5]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::to_vec1`].
    #[track_caller]
    pub fn to_vec2<T: WithDType>(&self) -> Result<Vec<Vec<T>>> {
        let call = Call::here("to_vec2");
        let (shape, all) = self.read::<T>(call, T::DTYPE, ALL)?;
        let (rows, columns) = shape.dims2()?;
        call.named(lists(call.op, &all, rows, columns))
    }

    /// The matrices of a three-axis array.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let x = Tensor::arange(0u32, 8, &Device::Cpu)?.reshape((2, 2, 2))?;
    /// assert_eq!(x.to_vec3::<u32>()?, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Proxy::to_vec1`].
    #[track_caller]
    pub fn to_vec3<T: WithDType>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        let call = Call::here("to_vec3");
        let (shape, all) = self.read::<T>(call, T::DTYPE, ALL)?;
        let (n, rows, columns) = shape.dims3()?;
        let size = rows * columns;
        let mut matrices = call.named(heap::room(call.op, n))?;
        for i in 0..n {
            matrices.push(call.named(lists(call.op, &all[i * size..(i + 1) * size], rows, columns))?);
        }
        Ok(matrices)
    }
}

/// As many lists of equal length, which may be 0.
fn lists<T: WithDType>(op: &'static str, all: &[T], count: usize, len: usize) -> Result<Vec<Vec<T>>> {
    let mut lists = heap::room(op, count)?;
    for i in 0..count {
        let mut list = heap::room(op, len)?;
        list.extend_from_slice(&all[i * len..(i + 1) * len]);
        lists.push(list);
    }
    Ok(lists)
}

#[cold]
fn no_scalar(call: Call, shape: &Shape) -> Error {
    Error::shape(call, shape.dims(), "no axes; index it or reduce it first")
}

/// How much to read of an array: of more than `most` elements, `edge` at each end of every longer axis.
struct Part {
    most: usize,
    edge: usize,
}

const ALL: Part = Part { most: usize::MAX, edge: 0 };

/// Who takes elements out of the bytes of a storage.
trait Take {
    /// Takes them out of these bytes, in which they lie as the layout says; so many of each end of an axis. They come
    /// behind those that were taken before.
    fn take(&mut self, bytes: &[u8], layout: &Layout, edge: Option<usize>) -> Result<()>;

    /// Whether so many elements in row-major order may come part after part, by [`Take::more`].
    fn in_parts(&mut self, _count: usize) -> Result<bool> {
        Ok(false)
    }

    /// The next of them.
    fn more(&mut self, _part: &[u8]) {}
}

impl<F: FnMut(&[u8], &Layout, Option<usize>) -> Result<()>> Take for F {
    fn take(&mut self, bytes: &[u8], layout: &Layout, edge: Option<usize>) -> Result<()> {
        self(bytes, layout, edge)
    }
}

/// All that are asked for, for a vector.
struct Elements<T> {
    op: &'static str,
    found: Vec<T>,
}

impl<T: WithDType> Take for Elements<T> {
    fn take(&mut self, bytes: &[u8], layout: &Layout, edge: Option<usize>) -> Result<()> {
        let more = gather(self.op, T::of_bytes(bytes).ok_or_else(|| no_truth(self.op))?, layout, edge)?;
        if self.found.is_empty() {
            self.found = more
        } else {
            self.found.extend(more)
        }
        Ok(())
    }

    fn in_parts(&mut self, count: usize) -> Result<bool> {
        // Not every byte is a `bool`.
        if T::DTYPE != DType::Bool && self.found.is_empty() {
            self.found = room(self.op, count)?;
        }
        Ok(T::DTYPE != DType::Bool)
    }

    fn more(&mut self, part: &[u8]) {
        if let Some(elements) = T::of_bytes(part) {
            return self.found.extend_from_slice(elements);
        }
        // They lie where no elements could.
        let first = self.found.len();
        self.found.resize(first + part.len() / size_of::<T>(), T::default());
        T::any_bytes_of(&mut self.found[first..]).into_iter().for_each(|to| to.copy_from_slice(part));
    }
}

fn same_type(op: &'static str, array: &Pinned<'_>, dtype: DType) -> Result<()> {
    if array.dtype == dtype { Ok(()) } else { Err(Error::dtype_mismatch(op, array.dtype, dtype)) }
}

/// All bytes of the storage of an array on the host, which has elements of this type.
fn storage_bytes<'a>(op: &'static str, array: &'a Pinned<'_>, dtype: DType) -> Result<&'a [u8]> {
    same_type(op, array, dtype)?;
    array.host_bytes().ok_or_else(|| {
        let lhs = array.storage.buffer().device().to_string();
        Error::device_mismatch(op, lhs, "cpu")
    })
}

#[cold]
fn no_truth(op: &'static str) -> Error {
    Error::argument(op, "array of truth values", "another byte", "bytes of 0 and 1")
}

/// Gives `take` what an array on another device holds: no more of its storage than the elements lie in, and of the ends
/// of axes each run by itself.
fn download(call: Call, array: &Pinned<'_>, edge: Option<usize>, take: &mut dyn Take) -> Result<()> {
    let (layout, mut done) = (array.layout, Ok(()));
    if edge.is_none() {
        let (first, end) = layout.bounds().unwrap_or((0, 0));
        return download_part(call, array, first..end, &layout.without_first(first), take);
    }
    for_each_run(layout, edge, &mut |first, count, stride| {
        if let (Ok(()), Some((run, reach))) = (&done, Layout::strided(Shape::from(count), &[stride])) {
            let first = first - run.offset();
            done = download_part(call, array, first..first + reach, &run, take);
        }
    });
    done
}

/// As [`download`], of a part of the storage, in which what is wanted lies as the layout says.
fn download_part(
    call: Call,
    array: &Pinned<'_>,
    part: Range<usize>,
    layout: &Layout,
    take: &mut dyn Take,
) -> Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    let size = array.dtype.size_in_bytes();
    let span = array.storage.buffer().span().part(part.start * size, part.len() * size);
    let src = OwnedView::new(span, array.dtype, *layout);
    let from = |to: &mut dyn FnMut(&[u8])| {
        array.storage.buffer().device().download(&src, to).map_err(|error| blame(error, call.site))
    };
    if layout.is_contiguous() && take.in_parts(part.len())? {
        return from(&mut |part| take.more(part));
    }
    // They lie in there as any type's elements may.
    let mut room: Vec<u64> = heap::zeros(call.op, span.bytes().div_ceil(size_of::<u64>()))?;
    let (bytes, mut done) = (&mut u64::any_bytes_of(&mut room).unwrap_or_default()[..span.bytes()], 0);
    from(&mut |part| {
        bytes[done..done + part.len()].copy_from_slice(part);
        done += part.len();
    })?;
    if array.dtype == DType::Bool {
        // A byte that is neither 0 nor 1 would be no `bool`.
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    take.take(bytes, layout, None)
}

/// An empty vector with room for so many elements: of many, on large pages, as touching small ones takes longer than
/// copying what comes there.
fn room<T>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut elements = heap::room(op, count)?;
    if count.saturating_mul(size_of::<T>()) >= 4 * LARGE_PAGE {
        advise_large_pages(elements.spare_capacity_mut());
    }
    Ok(elements)
}

/// The elements that a layout reaches, in row-major order; with `edge`, so many at each end of every longer axis.
///
/// # Errors
/// [`Error::OutOfMemory`]: there is no room on the heap.
fn gather<T: WithDType>(op: &'static str, all: &[T], layout: &Layout, edge: Option<usize>) -> Result<Vec<T>> {
    let count = count_of(layout, edge);
    let mut out = room(op, count)?;
    if edge.is_none() && layout.is_contiguous() && count > 0 {
        // What mostly is.
        out.extend_from_slice(&all[layout.offset()..][..count]);
        return Ok(out);
    }
    for_each_run(layout, edge, &mut |first, count, stride| {
        if stride == 1 {
            return out.extend_from_slice(&all[first..first + count]);
        }
        for i in 0..count as isize {
            out.push(all[(first as isize + i * stride) as usize]);
        }
    });
    Ok(out)
}

/// How many there are of an axis; of one that is longer than both its ends, these.
fn kept(dim: usize, edge: Option<usize>) -> usize {
    edge.map_or(dim, |edge| dim.min(2 * edge))
}

fn count_of(layout: &Layout, edge: Option<usize>) -> usize {
    let count = layout.dims().iter().try_fold(1usize, |count, &dim| count.checked_mul(kept(dim, edge)));
    count.unwrap_or(usize::MAX)
}

/// Calls `f` with the first, the number and the distance of elements that lie evenly, for all that [`gather`] takes.
fn for_each_run(layout: &Layout, edge: Option<usize>, f: &mut dyn FnMut(usize, usize, isize)) {
    let (count, whole) = (count_of(layout, edge), layout.shape().elem_count());
    if count == 0 {
        return;
    }
    let ([outer @ .., last], [outer_strides @ .., stride]) = (layout.dims(), layout.strides()) else {
        return f(layout.offset(), 1, 1);
    };
    if layout.is_contiguous() && count == whole {
        return f(layout.offset(), count, 1);
    }
    let mut index = [0usize; crate::base::shape::MAX_RANK];
    let mut at = layout.offset() as isize;
    for _ in 0..count / kept(*last, edge) {
        match kept(*last, edge) {
            all if all == *last => f(at as usize, all, *stride),
            ends => {
                f(at as usize, ends / 2, *stride);
                f((at + stride * (last - ends / 2) as isize) as usize, ends / 2, *stride);
            }
        }
        for axis in (0..outer.len()).rev() {
            let (dim, stride) = (outer[axis], outer_strides[axis]);
            // Over the middle that is left out.
            let kept = kept(dim, edge);
            let step = if kept < dim && index[axis] + 1 == kept / 2 { 1 + dim - kept } else { 1 };
            index[axis] += step;
            at += stride * step as isize;
            if index[axis] < dim {
                break;
            }
            at -= stride * dim as isize;
            index[axis] = 0;
        }
    }
}
