//! The host: runs kernels on memory that this process can read, before the call returns.
//!
//! This file turns views into slices and chooses the code for their dtype, with `dispatch.rs`, `maps.rs`,
//! `types.rs`, `wide.rs` and `vector.rs`; all `unsafe` of the kernels is in these. The other files see `In` and `Out`
//! and are safe Rust: a mistake in their arithmetic is a panic or a wrong number, never a stray access.
//!
//! ```text
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
mod optim;
mod pooling;
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
use crate::kernel::{AdamHyper, CmpOp, Kernel, ReduceOp, UnaryOp, View};

use bytemuck::Pod;
use gemm_common::Parallelism;
use half::{bf16, f16};
use maps::{affine, binary, binary_assign, cast, clamp, copy, powf, unary};
use matmul::{Matrix, Target, at_once};
use number::Float;
use optim::SgdHyper;
use random::Stream;
use types::{open, with_bits, with_float, with_id, with_number, with_sums, with_wide};
use wide::{widened, wider};

pub use libm::erf;

/// An element as kernels see it: any bytes are one. Truth values are seen as bytes.
trait Element: WithDType + Pod {}
impl<T: WithDType + Pod> Element for T {}

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

/// Whether elements of `dtype` may be opened as those of `as_type`: of the same type, or as the unsigned integer of
/// their size, for kernels that look at their bits. Truth values are opened as bytes alone.
#[inline(always)]
fn opens_as(dtype: DType, as_type: DType) -> bool {
    let as_bits = matches!(as_type, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    dtype == as_type && as_type != DType::Bool || as_bits && as_type.size_in_bytes() == dtype.size_in_bytes()
}

/// A source of a kernel as slices. No bytes, no access: an empty span may dangle.
///
/// # Safety
/// As for [`run`], for a view that is read.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn source<'a, T: Element>(view: &View<'a>) -> In<'a, T> {
    assert!(opens_as(view.dtype(), T::DTYPE), "operands have the dtype that their kernel was chosen for");
    let layout = view.layout();
    if view.span().bytes() == 0 {
        return In { data: &[], layout };
    }
    // SAFETY: by the promise of `run`'s caller the span is live, initialised, aligned host memory that nobody
    // writes, at least as long as the call, from which the layout is borrowed.
    In { data: unsafe { view.span().slice() }, layout }
}

/// A destination of a kernel as slices.
///
/// # Safety
/// As for [`run`], for a view that is written; each one is opened once.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn target<'a, T: Element>(view: &View<'a>) -> Out<'a, T> {
    assert!(opens_as(view.dtype(), T::DTYPE), "operands have the dtype that their kernel was chosen for");
    let layout = view.layout();
    if view.span().bytes() == 0 {
        return Out { data: &mut [], layout };
    }
    // SAFETY: as in `source`; and by that promise nobody else touches the span, and no other operand of the kernel
    // overlaps it, so this is the only reference to its elements.
    Out { data: unsafe { view.span().slice_mut() }, layout }
}

/// Runs a kernel to its end.
///
/// # Safety
/// - The span of every view, if it has bytes, is live, initialised host memory, aligned for the view's dtype.
/// - Nobody else writes the sources or touches the destinations meanwhile.
/// - The span of a destination overlaps that of no other operand.
#[inline]
#[allow(unsafe_code)]
pub unsafe fn run(kernel: &Kernel<View<'_>>) -> Result<()> {
    // SAFETY: the caller's promises are those that `run_again` asks for.
    unsafe { run_again(kernel, 0) }
}

/// Runs a kernel of a captured section that was replayed so many times before: what counts steps or draws random
/// numbers goes on from there.
///
/// # Safety
/// As for [`run`].
#[inline]
#[allow(unsafe_code)]
pub unsafe fn run_again(kernel: &Kernel<View<'_>>, replays: u64) -> Result<()> {
    // SAFETY: every function called here has the contract of this one, for the views of this kernel.
    unsafe {
        match kernel {
            // Of these, narrow operands are widened as a whole.
            Kernel::Reduce { src, .. }
            | Kernel::ArgReduce { src, .. }
            | Kernel::Softmax { src, .. }
            | Kernel::SoftmaxGrad { out: src, .. }
            | Kernel::CrossEntropy { logits: src, .. }
            | Kernel::CrossEntropyGrad { probs: src, .. }
                if wider(src.dtype()).is_some() =>
            {
                widened(kernel, replays)
            }
            // Of these, the integers are their bits.
            Kernel::Matmul { dst, .. } | Kernel::IndexAdd { dst, .. } | Kernel::ScatterAdd { dst, .. }
                if wider(dst.dtype()) == Some(DType::F32) =>
            {
                widened(kernel, replays)
            }
            Kernel::Binary { op, lhs, rhs, dst } => binary(*op, lhs, rhs, dst),
            Kernel::BinaryAssign { op, dst, rhs } => binary_assign(*op, dst, rhs),
            Kernel::Fill { dst, value } => fill(dst, *value),
            Kernel::Arange { dst, start, step } => arange(dst, *start, *step),
            Kernel::Copy { src, dst } => copy(src, dst),
            Kernel::Cast { src, dst } => cast(src, dst),
            Kernel::Unary { op, src, dst } => unary(*op, Some(src), dst),
            Kernel::UnaryAssign { op, dst } => unary(*op, None, dst),
            Kernel::Affine { src, dst, mul, add } => affine(Some(src), dst, *mul, *add),
            Kernel::AffineAssign { dst, mul, add } => affine(None, dst, *mul, *add),
            Kernel::Powf { src, dst, exponent } => powf(src, dst, *exponent),
            Kernel::Clamp { src, dst, min, max } => clamp(src, dst, *min, *max),
            Kernel::Compare { op, lhs, rhs, dst } => compare(*op, lhs, rhs, dst),
            Kernel::Where { cond, yes, no, dst } => choose(cond, yes, no, dst),
            Kernel::UnaryGrad { op, saved, grad, dst } => unary_grad(*op, saved, grad, dst),
            Kernel::Reduce { op, src, axes, dst } => reduce(*op, src, *axes, dst),
            Kernel::ArgReduce { largest, src, axis, dst } => arg_reduce(*largest, src, *axis, dst),
            Kernel::Softmax { src, dst, log } => softmax(src, dst, *log),
            Kernel::SoftmaxGrad { out, grad, dst, log } => softmax_grad(out, grad, dst, *log),
            Kernel::CrossEntropy { logits, labels, probs, loss } => cross_entropy(logits, labels, probs, loss),
            Kernel::CrossEntropyGrad { probs, labels, grad, dst } => cross_entropy_grad(probs, labels, grad, dst),
            Kernel::Matmul { lhs, rhs, dst } => matmul(lhs, rhs, dst),
            Kernel::Bits { op, lhs, rhs, dst } => dispatch::of_bits(*op, lhs, rhs, dst),
            Kernel::Windowed(windowed) if dispatch::is_widened(windowed) => widened(kernel, replays),
            Kernel::Windowed(windowed) => dispatch::windowed(windowed),
            Kernel::Along(along) if wider(along.source().dtype()).is_some() => widened(kernel, replays),
            Kernel::Along(along) => dispatch::along(along),
            Kernel::IndexSelect { src, ids, axis, dst } => index_select(src, ids, *axis, dst),
            Kernel::IndexAdd { dst, ids, src, axis } => index_add(dst, ids, src, *axis),
            Kernel::Gather { src, ids, axis, dst } => gather(src, ids, *axis, dst),
            Kernel::ScatterAdd { dst, ids, src, axis } => scatter_add(dst, ids, src, *axis),
            Kernel::Uniform { dst, seed, first, low, high } => {
                uniform(dst, Stream { seed: *seed, first: *first, replays: replays as u32 }, *low, *high)
            }
            Kernel::Normal { dst, seed, first, mean, std } => {
                normal(dst, Stream { seed: *seed, first: *first, replays: replays as u32 }, *mean, *std)
            }
            Kernel::SgdStep { param, grad, velocity, rate, momentum, decay } => {
                let hyper = SgdHyper { rate: *rate, momentum: *momentum, decay: *decay };
                sgd(param, grad, velocity.as_ref(), hyper)
            }
            Kernel::AdamStep { param, grad, m, v, hyper } if replays == 0 => adam(param, grad, m, v, hyper),
            Kernel::AdamStep { param, grad, m, v, hyper } => adam(param, grad, m, v, &hyper.later(replays)),
        }
    }
}

// The functions below give each kernel its types. All of them have the contract of `run`.

#[allow(unsafe_code)]
unsafe fn fill(dst: &View, value: f64) -> Result<()> {
    let bits = cast::bits_of(dst.dtype(), value);
    with_bits!(dst.dtype(), T => {
        open!(T; ; dst);
        elementwise::fill(dst, bits as T);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn arange(dst: &View, start: f64, step: f64) -> Result<()> {
    with_number!("arange", dst.dtype(), T => {
        open!(T; ; dst);
        elementwise::arange(dst, start, step);
    }, N => {
        open!(N; ; dst);
        elementwise::arange(dst, start, step);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn compare(op: CmpOp, lhs: &View, rhs: &View, dst: &View) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn choose(cond: &View, yes: &View, no: &View, dst: &View) -> Result<()> {
    with_id!("where_cond", cond.dtype(), I => {
        open!(I; cond;);
        with_bits!(dst.dtype(), T => {
            open!(T; yes no; dst);
            elementwise::choose(cond, yes, no, dst);
        });
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn unary_grad(op: UnaryOp, saved: &View, grad: &View, dst: &View) -> Result<()> {
    with_float!("unary_grad", dst.dtype(), T => {
        open!(T; saved grad; dst);
        <T as elementwise::Functions>::unary_grad(op, saved, grad, dst);
    }, N => {
        open!(N; saved grad; dst);
        narrow::unary_grad(op, saved, grad, dst);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn reduce(op: ReduceOp, src: &View, axes: Axes, dst: &View) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn arg_reduce(largest: bool, src: &View, axis: usize, dst: &View) -> Result<()> {
    open!(u32; ; dst);
    with_wide!("arg_reduce", src.dtype(), T => {
        open!(T; src;);
        reduce::arg(largest, src, axis, dst);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn softmax(src: &View, dst: &View, log: bool) -> Result<()> {
    with_wide!("softmax", float dst.dtype(), T => {
        open!(T; src; dst);
        softmax::softmax(src, dst, log);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn softmax_grad(out: &View, grad: &View, dst: &View, log: bool) -> Result<()> {
    with_wide!("softmax", float dst.dtype(), T => {
        open!(T; out grad; dst);
        softmax::softmax_grad(out, grad, dst, log);
    });
    Ok(())
}

#[allow(unsafe_code)]
unsafe fn cross_entropy(logits: &View, labels: &View, probs: &View, loss: &View) -> Result<()> {
    with_id!("cross_entropy", labels.dtype(), I => {
        open!(I; labels;);
        with_wide!("cross_entropy", float logits.dtype(), T => {
            open!(T; logits; probs loss);
            softmax::cross_entropy(logits, labels, probs, loss)
        })
    })
}

#[allow(unsafe_code)]
unsafe fn cross_entropy_grad(probs: &View, labels: &View, grad: &View, dst: &View) -> Result<()> {
    with_id!("cross_entropy", labels.dtype(), I => {
        open!(I; labels;);
        with_wide!("cross_entropy", float dst.dtype(), T => {
            open!(T; probs grad; dst);
            softmax::cross_entropy_grad(probs, labels, grad, dst)
        })
    })
}

#[allow(unsafe_code)]
unsafe fn matmul(lhs: &View, rhs: &View, dst: &View) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn index_select(src: &View, ids: &View, axis: usize, dst: &View) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn index_add(dst: &View, ids: &View, src: &View, axis: usize) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn gather(src: &View, ids: &View, axis: usize, dst: &View) -> Result<()> {
    with_id!("gather", ids.dtype(), I => {
        open!(I; ids;);
        index::check("gather", ids, src.layout().dims()[axis])?;
        with_bits!(dst.dtype(), T => {
            open!(T; src; dst);
            index::gather(src, ids, axis, dst)
        })
    })
}

#[allow(unsafe_code)]
unsafe fn scatter_add(dst: &View, ids: &View, src: &View, axis: usize) -> Result<()> {
    with_id!("scatter_add", ids.dtype(), I => {
        open!(I; ids;);
        index::check("scatter_add", ids, dst.layout().dims()[axis])?;
        with_sums!("scatter_add", dst.dtype(), T => {
            open!(T; src; dst);
            index::scatter_add(dst, ids, src, axis)
        })
    })
}

#[allow(unsafe_code)]
unsafe fn uniform(dst: &View, stream: Stream, low: f64, high: f64) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn normal(dst: &View, stream: Stream, mean: f64, std: f64) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn sgd(param: &View, grad: &View, velocity: Option<&View>, hyper: SgdHyper) -> Result<()> {
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

#[allow(unsafe_code)]
unsafe fn adam(param: &View, grad: &View, m: &View, v: &View, hyper: &AdamHyper) -> Result<()> {
    with_float!("adam_step", param.dtype(), T => {
        open!(T; grad; param m v);
        optim::adam(param, grad, m, v, hyper);
    }, N => {
        open!(N; grad; param m v);
        narrow::adam(param, grad, m, v, hyper);
    });
    Ok(())
}

/// `dst = lhs x rhs` of `[M, K, N]`, all at least 1; `dst` is row-major. On up to that many threads of the current
/// pool.
fn product<T: Multiplied>(dims: [usize; 3], lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, dst: &mut [T], threads: usize) {
    assert!(dst.len() == dims[0] * dims[2], "the destination is the product's");
    product_to(dims, lhs, rhs, Target { data: dst, step: dims[2], add: false }, threads);
}

/// As [`product`], to rows that may lie apart.
fn product_to<T: Multiplied>(
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    mut dst: Target<'_, T>,
    threads: usize,
) {
    assert!(m * n * k > 0 && n <= dst.step && dst.data.len() >= (m - 1) * dst.step + n, "the product fits its place");
    lhs.check(m, k);
    rhs.check(k, n);
    if at_once([m, k, n], lhs, rhs, &mut dst) {
        return;
    }
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: `check` found both first elements inside their slices.
    #[allow(unsafe_code)]
    let (left, right) = unsafe { (lhs.data.as_ptr().offset(lhs.start), rhs.data.as_ptr().offset(rhs.start)) };
    // The routine prefers columns to rows, so it is given the transposed product, unless that is one column.
    let ([lr, lc], [rr, rc], step) = (lhs.steps, rhs.steps, dst.step as isize);
    let ((rows, columns), (mut a, mut ac, ar), (mut b, bc, mut br)) = match step {
        1 => ((m, n), (left, lc, lr), (right, rc, rr)),
        _ => ((n, m), (right, rr, rc), (left, lr, lc)),
    };
    if ac < 0 {
        // It wants the inner axis of the first side ascending; the order of the sums is its own business.
        (a, b) = (a.wrapping_offset((k - 1) as isize * ac), b.wrapping_offset((k - 1) as isize * br));
        (ac, br) = (-ac, -br);
    }
    let kept = if dst.add { T::ONE } else { T::ZERO };
    let (to, add, one) = (dst.data.as_mut_ptr(), dst.add, T::ONE);
    // SAFETY: `check` found that every `start + i * steps[0] + j * steps[1]` lies inside the slice of that side, and the
    // same places are reached in the other order; `dst` has `m` rows of `n` elements, `step` apart and so apart from each
    // other, and is borrowed for this call alone.
    #[allow(unsafe_code)]
    unsafe {
        T::general()(
            rows,
            columns,
            k,
            to,
            step,
            1,
            add,
            a,
            ac,
            ar,
            b,
            bc,
            br,
            kept,
            one,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The general routine: sizes M, N, K; the destination, its steps to the next column and row, and whether it is read; both
/// sides in the same form; factors of the destination and of the product; what is conjugated; threads.
type General<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A float that the library multiplies matrices of.
trait Multiplied: Float {
    /// The routine for the vector units of this machine.
    fn general() -> General<Self>;
}

impl Multiplied for f32 {
    fn general() -> General<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Multiplied for f64 {
    fn general() -> General<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

#[cfg(test)]
mod tests;
