//! The host: runs kernels on memory that this process can read, before the call returns.
//!
//! `open.rs` turns views into slices, [`Src`] and [`Dst`]; this file, `maps.rs` and `dispatch.rs` choose the code for
//! their dtype, which sees [`In`] and [`Out`]. All of it is safe Rust but the door, the call of the library that
//! multiplies matrices, and that of code for vector units.
//!
//! ```text
//! open.rs         the door: from views to slices
//! types.rs        from a dtype to a type
//! number.rs       arithmetic of one element, for each dtype that has its own
//! narrow.rs       dtypes that compute in a wider one, block by block
//! wide.rs         the same with whole operands
//! math.rs         e^x, ln, tanh, sin and cos that vectorise
//! special.rs      the error function and its relatives
//! vector.rs       the widest vector units there are
//! walk.rs         strided operands as rows
//! threads.rs      the pool of threads
//! elementwise.rs  maps, arithmetic, comparison, choice
//! cast.rs         conversion between dtypes
//! reduce.rs       sums, means, extremes and where they are
//! softmax.rs      softmax, cross entropy, their gradients
//! matmul.rs       products of matrices
//! product.rs      those that a library computes
//! bits.rs         bits of integers
//! conv.rs         convolutions
//! pooling.rs      extremes and means under a window
//! resize.rs       images of other sizes
//! scan.rs         running sums and the like
//! norm.rs         rows made even
//! index.rs        picking and adding by indices
//! random.rs       counter-based random numbers
//! optim.rs        steps of optimisers
//! dispatch.rs     the kernels of windows and along axes with their types
//! ```

mod bits;
mod cast;
pub mod conv;
mod dispatch;
mod elementwise;
mod index;
mod maps;
mod math;
mod matmul;
mod narrow;
mod norm;
mod number;
mod open;
mod optim;
mod pooling;
mod product;
mod random;
mod reduce;
mod resize;
mod scan;
mod softmax;
mod special;
pub mod threads;
mod types;
mod vector;
mod walk;
mod wide;

use crate::base::{
    dtype::{DType, WithDType},
    error::{Error, Result},
    layout::Layout,
    shape::Axes,
};
use crate::kernel::{AdamHyper, CmpOp, ReduceOp, UnaryOp};

use bytemuck::{Pod, PodCastError, try_cast_slice, try_cast_slice_mut};
use half::{bf16, f16};
use optim::SgdHyper;
use product::product;
use random::Stream;
use types::{open, with_bits, with_float, with_id, with_number, with_sums, with_wide};

pub use libm::erf;
pub use open::{run, run_again};

/// An element as kernels see it: any bytes are one. Truth values are seen as bytes.
trait Element: WithDType + Pod {}
impl<T: WithDType + Pod> Element for T {}

/// A source as the door hands it on: the bytes of its whole buffer, and which of them are its own.
#[derive(Clone, Copy, Debug)]
struct Src<'a> {
    bytes: &'a [u8],
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> Src<'a> {
    #[inline(always)]
    fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    fn layout(&self) -> &'a Layout {
        self.layout
    }
}

/// A destination, as [`Src`].
#[derive(Debug)]
struct Dst<'a> {
    bytes: &'a mut [u8],
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> Dst<'a> {
    #[inline(always)]
    fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    fn layout(&self) -> &'a Layout {
        self.layout
    }
}

/// Whether elements of `dtype` may be opened as those of `as_type`: of the same type, or as the unsigned integer of
/// their size, for kernels that look at their bits. Truth values are opened as bytes alone.
#[inline(always)]
fn opens_as(dtype: DType, as_type: DType) -> bool {
    let as_bits = matches!(as_type, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    dtype == as_type && as_type != DType::Bool || as_bits && as_type.size_in_bytes() == dtype.size_in_bytes()
}

/// No bytes may lie anywhere; others lie as their dtype wants it.
#[cold]
fn misplaced<T>(is_empty: bool, error: PodCastError, none: T) -> T {
    assert!(is_empty, "the buffer of an operand: {error}");
    none
}

/// A source: the elements of its whole buffer, and where its own lie among them.
#[derive(Debug)]
struct In<'a, T> {
    data: &'a [T],
    layout: &'a Layout,
}

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<'_, T> {}

impl<'a, T: Element> In<'a, T> {
    /// A source as elements of its dtype, or as their bits.
    #[inline(always)]
    fn of(Src { bytes, dtype, layout }: Src<'a>) -> Self {
        assert!(opens_as(dtype, T::DTYPE), "operands have the dtype that their kernel was chosen for");
        In { data: try_cast_slice(bytes).unwrap_or_else(|error| misplaced(bytes.is_empty(), error, &[])), layout }
    }
}

impl<'a, T> In<'a, T> {
    /// Its elements, if they follow each other in row-major order.
    #[inline(always)]
    fn dense(&self) -> Option<&'a [T]> {
        dense_count(self.layout).map(|count| part(self.data, self.layout.offset(), count))
    }

    /// Its elements, of a kernel that says they are contiguous.
    #[inline(always)]
    fn all(&self) -> &'a [T] {
        part(self.data, self.layout.offset(), self.layout.shape().elem_count())
    }
}

/// A destination, as [`In`].
#[derive(Debug)]
struct Out<'a, T> {
    data: &'a mut [T],
    layout: &'a Layout,
}

impl<'a, T: Element> Out<'a, T> {
    /// A destination as elements of its dtype, or as their bits.
    #[inline(always)]
    fn of(Dst { bytes, dtype, layout }: Dst<'a>) -> Self {
        assert!(opens_as(dtype, T::DTYPE), "operands have the dtype that their kernel was chosen for");
        let is_empty = bytes.is_empty();
        let data = try_cast_slice_mut(bytes).unwrap_or_else(|error| misplaced(is_empty, error, &mut []));
        Out { data, layout }
    }
}

impl<'a, T> Out<'a, T> {
    /// Whether its elements follow each other in row-major order.
    #[inline(always)]
    fn is_dense(&self) -> bool {
        dense_count(self.layout).is_some()
    }

    /// Its elements, of a kernel that says they are contiguous, or where that was checked.
    #[inline(always)]
    fn dense(self) -> &'a mut [T] {
        let count = self.layout.shape().elem_count();
        // The offset of an empty view may lie outside its buffer.
        let start = if count == 0 { 0 } else { self.layout.offset() };
        &mut self.data[start..start + count]
    }
}

#[inline(always)]
fn part<T>(data: &[T], offset: usize, count: usize) -> &[T] {
    let start = if count == 0 { 0 } else { offset };
    &data[start..start + count]
}

/// The number of elements, if they follow each other in row-major order: one pass for both.
#[inline(always)]
fn dense_count(layout: &Layout) -> Option<usize> {
    let mut count = 1;
    for (&dim, &stride) in layout.dims().iter().zip(layout.strides()).rev() {
        if dim != 1 {
            if stride != count as isize {
                return None;
            }
            count *= dim;
        }
    }
    Some(count)
}

// The functions below give each kernel its types.

fn fill(dst: Dst, value: f64) -> Result<()> {
    let bits = cast::bits_of(dst.dtype(), value);
    with_bits!(dst.dtype(), T => {
        open!(T; ; dst);
        elementwise::fill(dst, bits as T);
    });
    Ok(())
}

fn arange(dst: Dst, start: f64, step: f64) -> Result<()> {
    with_number!("arange", dst.dtype(), T => {
        open!(T; ; dst);
        elementwise::arange(dst, start, step);
    }, N => {
        open!(N; ; dst);
        elementwise::arange(dst, start, step);
    });
    Ok(())
}

fn compare(op: CmpOp, lhs: Src, rhs: Src, dst: Dst) -> Result<()> {
    open!(u8; ; dst);
    if lhs.dtype() == DType::Bool {
        open!(u8; lhs rhs;);
        elementwise::compare(op, lhs, rhs, dst);
        return Ok(());
    }
    with_number!("compare", lhs.dtype(), T => {
        open!(T; lhs rhs;);
        elementwise::compare(op, lhs, rhs, dst);
    }, N => {
        open!(N; lhs rhs;);
        narrow::compare(op, lhs, rhs, dst);
    });
    Ok(())
}

fn choose(cond: Src, yes: Src, no: Src, dst: Dst) -> Result<()> {
    with_id!("where_cond", cond.dtype(), I => {
        open!(I; cond;);
        with_bits!(dst.dtype(), T => {
            open!(T; yes no; dst);
            elementwise::choose(cond, yes, no, dst);
        });
    });
    Ok(())
}

fn unary_grad(op: UnaryOp, saved: Src, grad: Src, dst: Dst) -> Result<()> {
    with_float!("unary_grad", dst.dtype(), T => {
        open!(T; saved grad; dst);
        <T as elementwise::Functions>::unary_grad(op, saved, grad, dst);
    }, N => {
        open!(N; saved grad; dst);
        narrow::unary_grad(op, saved, grad, dst);
    });
    Ok(())
}

fn reduce(op: ReduceOp, src: Src, axes: Axes, dst: Dst) -> Result<()> {
    if op == ReduceOp::Mean && !dst.dtype().is_float() {
        return Err(Error::UnsupportedDType { op: "mean", dtype: dst.dtype(), supported: "f16, bf16, f32, f64" });
    }
    if op == ReduceOp::Sum && dst.dtype() == DType::Bool {
        return Err(Error::UnsupportedDType { op: "sum", dtype: dst.dtype(), supported: "any but bool" });
    }
    with_wide!("reduce", dst.dtype(), T => {
        open!(T; src; dst);
        reduce::reduce(op, src, axes, dst);
    });
    Ok(())
}

fn arg_reduce(largest: bool, src: Src, axis: usize, dst: Dst) -> Result<()> {
    open!(u32; ; dst);
    with_wide!("arg_reduce", src.dtype(), T => {
        open!(T; src;);
        reduce::arg(largest, src, axis, dst);
    });
    Ok(())
}

fn softmax(src: Src, dst: Dst, log: bool) -> Result<()> {
    with_wide!("softmax", float dst.dtype(), T => {
        open!(T; src; dst);
        softmax::softmax(src, dst, log);
    });
    Ok(())
}

fn softmax_grad(out: Src, grad: Src, dst: Dst, log: bool) -> Result<()> {
    with_wide!("softmax", float dst.dtype(), T => {
        open!(T; out grad; dst);
        softmax::softmax_grad(out, grad, dst, log);
    });
    Ok(())
}

fn cross_entropy(logits: Src, labels: Src, probs: Dst, loss: Dst) -> Result<()> {
    with_id!("cross_entropy", labels.dtype(), I => {
        open!(I; labels;);
        with_wide!("cross_entropy", float logits.dtype(), T => {
            open!(T; logits; probs loss);
            softmax::cross_entropy(logits, labels, probs, loss)
        })
    })
}

fn cross_entropy_grad(probs: Src, labels: Src, grad: Src, dst: Dst) -> Result<()> {
    with_id!("cross_entropy", labels.dtype(), I => {
        open!(I; labels;);
        with_wide!("cross_entropy", float dst.dtype(), T => {
            open!(T; probs grad; dst);
            softmax::cross_entropy_grad(probs, labels, grad, dst)
        })
    })
}

fn matmul(lhs: Src, rhs: Src, dst: Dst) -> Result<()> {
    if dst.dtype() == DType::Bool {
        return Err(Error::UnsupportedDType { op: "matmul", dtype: dst.dtype(), supported: "any but bool" });
    }
    match dst.dtype() {
        DType::F32 => {
            open!(f32; lhs rhs; dst);
            matmul::matmul(lhs, rhs, dst, product::<f32>);
        }
        DType::F64 => {
            open!(f64; lhs rhs; dst);
            matmul::matmul(lhs, rhs, dst, product::<f64>);
        }
        // Wrapping products are those of the bits, whatever the sign.
        dtype => with_bits!(dtype, T => {
            open!(T; lhs rhs; dst);
            matmul::matmul(lhs, rhs, dst, matmul::of_integers::<T>);
        }),
    }
    Ok(())
}

fn index_select(src: Src, ids: Src, axis: usize, dst: Dst) -> Result<()> {
    let dim = src.layout().dims()[axis];
    let ids = with_id!("index_select", ids.dtype(), I => {
        open!(I; ids;);
        index::list("index_select", ids, dim)?
    });
    with_bits!(dst.dtype(), T => {
        open!(T; src; dst);
        index::select(src, &ids, axis, dst);
    });
    Ok(())
}

fn index_add(dst: Dst, ids: Src, src: Src, axis: usize) -> Result<()> {
    let dim = dst.layout().dims()[axis];
    let ids = with_id!("index_add", ids.dtype(), I => {
        open!(I; ids;);
        index::list("index_add", ids, dim)?
    });
    with_sums!("index_add", dst.dtype(), T => {
        open!(T; src; dst);
        index::add(dst, &ids, src, axis);
    });
    Ok(())
}

fn gather(src: Src, ids: Src, axis: usize, dst: Dst) -> Result<()> {
    with_id!("gather", ids.dtype(), I => {
        open!(I; ids;);
        index::check("gather", ids, src.layout().dims()[axis])?;
        with_bits!(dst.dtype(), T => {
            open!(T; src; dst);
            index::gather(src, ids, axis, dst)
        })
    })
}

fn scatter_add(dst: Dst, ids: Src, src: Src, axis: usize) -> Result<()> {
    with_id!("scatter_add", ids.dtype(), I => {
        open!(I; ids;);
        index::check("scatter_add", ids, dst.layout().dims()[axis])?;
        with_sums!("scatter_add", dst.dtype(), T => {
            open!(T; src; dst);
            index::scatter_add(dst, ids, src, axis)
        })
    })
}

fn uniform(dst: Dst, stream: Stream, low: f64, high: f64) -> Result<()> {
    match dst.dtype() {
        DType::F32 => {
            open!(f32; ; dst);
            random::uniform_f32(dst, stream, low, high);
        }
        DType::F64 => {
            open!(f64; ; dst);
            random::uniform_f64(dst, stream, low, high);
        }
        DType::F16 => {
            open!(f16; ; dst);
            random::uniform_halves(dst, stream, low, high);
        }
        DType::BF16 => {
            open!(bf16; ; dst);
            random::uniform_halves(dst, stream, low, high);
        }
        dtype => with_number!(@ "uniform", dtype, T => {
            open!(T; ; dst);
            random::uniform_integers(dst, stream, low, high);
        }, N => { unreachable!() };
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64;),
    }
    Ok(())
}

fn normal(dst: Dst, stream: Stream, mean: f64, std: f64) -> Result<()> {
    match dst.dtype() {
        DType::F64 => {
            open!(f64; ; dst);
            random::normal_f64(dst, stream, mean, std);
        }
        DType::F32 => {
            open!(f32; ; dst);
            random::normal_f32(dst, stream, mean, std);
        }
        DType::F16 => {
            open!(f16; ; dst);
            random::normal_halves(dst, stream, mean, std);
        }
        DType::BF16 => {
            open!(bf16; ; dst);
            random::normal_halves(dst, stream, mean, std);
        }
        dtype => return Err(Error::UnsupportedDType { op: "normal", dtype, supported: "f16, bf16, f32, f64" }),
    }
    Ok(())
}

fn sgd(param: Dst, grad: Src, velocity: Option<Dst>, hyper: SgdHyper) -> Result<()> {
    with_float!("sgd_step", param.dtype(), T => {
        open!(T; grad; param);
        match velocity {
            None => optim::sgd(param, grad, hyper),
            Some(velocity) => {
                open!(T; ; velocity);
                optim::sgd_momentum(param, grad, velocity, hyper);
            }
        }
    }, N => {
        open!(N; grad; param);
        match velocity {
            None => narrow::sgd(param, grad, None, hyper),
            Some(velocity) => {
                open!(N; ; velocity);
                narrow::sgd(param, grad, Some(velocity), hyper);
            }
        }
    });
    Ok(())
}

fn adam(param: Dst, grad: Src, m: Dst, v: Dst, hyper: &AdamHyper) -> Result<()> {
    with_float!("adam_step", param.dtype(), T => {
        open!(T; grad; param m v);
        optim::adam(param, grad, m, v, hyper);
    }, N => {
        open!(N; grad; param m v);
        narrow::adam(param, grad, m, v, hyper);
    });
    Ok(())
}

#[cfg(test)]
mod tests;
