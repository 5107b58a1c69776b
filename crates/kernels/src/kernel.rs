//! What a backend is asked to do: a closed list of kernels over views of memory.
//!
//! A kernel is plain data, so that a backend may run it at once (cpu), later (sim) or translate it into
//! a launch. Shapes, dtypes and bounds were checked by `ops` before a kernel is built; a backend relies
//! on the facts stated at each variant. Shape letters: B batch, M K N matrix sizes, R rows, C columns.

use crate::base::{
    dtype::DType,
    layout::Layout,
    shape::{Axes, Shape},
};
pub use crate::operations::{BinaryOp, Domain, Kept, UnaryOp};
use crate::{along::Along, span::Span, window::Windowed};

/// An operand: some elements of a buffer.
///
/// Having one tells that every place it leads to lies inside the span, checked by [`View::new`].
#[derive(Clone, Copy, Debug)]
pub struct View {
    span: Span,
    dtype: DType,
    layout: Layout,
}

impl View {
    #[inline]
    pub fn new(span: Span, dtype: DType, layout: Layout) -> Self {
        let end = layout.bounds().map(|(_, end)| end);
        let fits = |end: usize| end <= span.bytes() / dtype.size_in_bytes();
        assert!(end.is_some_and(fits), "a view stays inside its buffer");
        View { span, dtype, layout }
    }

    #[inline]
    pub fn span(&self) -> Span {
        self.span
    }

    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// An operand by reference, for calls on the host that build no kernel. Unlike a [`View`] it promises nothing: the
/// host's kernels look at the bounds again.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    span: Span,
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> At<'a> {
    #[inline(always)]
    pub fn new(span: Span, dtype: DType, layout: &'a Layout) -> Self {
        At { span, dtype, layout }
    }

    #[inline(always)]
    pub fn span(&self) -> Span {
        self.span
    }

    #[inline(always)]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }
}

impl<'a> From<&'a View> for At<'a> {
    #[inline(always)]
    fn from(view: &'a View) -> Self {
        At { span: view.span, dtype: view.dtype, layout: &view.layout }
    }
}

/// A function of one operand, element by element, into a result of its shape.
#[derive(Clone, Copy, Debug)]
pub enum Map {
    Unary(UnaryOp),
    Affine { mul: f64, add: f64 },
    Powf(f64),
    Clamp { min: f64, max: f64 },
    Copy,
    Cast,
}

impl Map {
    pub fn kernel(self, src: View, dst: View) -> Kernel {
        match self {
            Map::Unary(op) => Kernel::Unary { op, src, dst },
            Map::Affine { mul, add } => Kernel::Affine { src, dst, mul, add },
            Map::Powf(exponent) => Kernel::Powf { src, dst, exponent },
            Map::Clamp { min, max } => Kernel::Clamp { src, dst, min, max },
            Map::Copy => Kernel::Copy { src, dst },
            Map::Cast => Kernel::Cast { src, dst },
        }
    }
}

/// Bits of two integers, or of truth values. Shifts by a negative number of places, or as many as there are bits, leave
/// zeros, or the sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOp {
    And,
    Or,
    Xor,
    /// Of the left operand alone.
    Not,
    Shl,
    Shr,
}

/// A comparison; the result is 0 or 1 in u8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

/// A reduction. Sums of floats are pairwise or in several lanes, never one long chain. `Mean` exists
/// for floats only. `Max` and `Min` give NaN if any element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    Sum,
    Mean,
    Max,
    Min,
}

/// One piece of work for a backend.
///
/// Unless a variant says otherwise: `dst` is contiguous, shares no byte with a source, and has the shape
/// of every source (broadcasts are strides of 0 in the source's layout). A `dst` of a kernel named
/// "in place" is also read, may have any layout that does not repeat, and may not overlap the sources.
#[derive(Clone, Copy, Debug)]
pub enum Kernel {
    /// `dst = value`, converted as `as` does. Any non-repeating layout.
    Fill { dst: View, value: f64 },
    /// `dst[i] = start + i * step`, computed in f64, or in i64 for integers.
    Arange { dst: View, start: f64, step: f64 },
    /// `dst = src`, same dtype. `dst` may have any non-repeating layout.
    Copy { src: View, dst: View },
    /// `dst = src as dtype of dst`.
    Cast { src: View, dst: View },
    /// `dst = op(src)`.
    Unary { op: UnaryOp, src: View, dst: View },
    /// In place: `dst = op(dst)`.
    UnaryAssign { op: UnaryOp, dst: View },
    /// `dst = src * mul + add`; for integers the scalars are converted first.
    Affine { src: View, dst: View, mul: f64, add: f64 },
    /// In place: `dst = dst * mul + add`.
    AffineAssign { dst: View, mul: f64, add: f64 },
    /// `dst = src ^ exponent`, floats.
    Powf { src: View, dst: View, exponent: f64 },
    /// `dst = clamp(src, min, max)`; NaN stays NaN.
    Clamp { src: View, dst: View, min: f64, max: f64 },
    /// `dst = op(lhs, rhs)`.
    Binary { op: BinaryOp, lhs: View, rhs: View, dst: View },
    /// In place: `dst = op(dst, rhs)`.
    BinaryAssign { op: BinaryOp, dst: View, rhs: View },
    /// `dst (u8) = lhs op rhs`.
    Compare { op: CmpOp, lhs: View, rhs: View, dst: View },
    /// `dst = cond != 0 ? yes : no`; `cond` is u8, u32 or i64.
    Where { cond: View, yes: View, no: View, dst: View },
    /// `dst` = the gradient of `op` for its operand, floats. `saved` is what the row of `op` keeps: the operand, the result,
    /// or, if it keeps nothing, any array of the shape.
    UnaryGrad { op: UnaryOp, saved: View, grad: View, dst: View },
    /// Reduces `axes` of `src`; `dst` has the kept axes in order (or as size 1), contiguous. Empty
    /// reductions of `Max` and `Min` were refused before. u8 and u32 sums wrap in their own dtype.
    Reduce { op: ReduceOp, src: View, axes: Axes, dst: View },
    /// `dst (u32) = ` index of the first largest (or smallest) element along `axis`; the first NaN wins.
    ArgReduce { largest: bool, src: View, axis: usize, dst: View },
    /// Softmax over the last axis: `src [R, C]`, rows contiguous or strided; `log`: its logarithm.
    Softmax { src: View, dst: View, log: bool },
    /// Gradient of (log-)softmax over the last axis from its output: `out`, `grad`, `dst` are `[R, C]`.
    SoftmaxGrad { out: View, grad: View, dst: View, log: bool },
    /// Mean negative log likelihood of `labels (u32 or i64, [R])` under the log-softmax of
    /// `logits [R, C]`: `loss` is a scalar, `probs [R, C]` the softmax, for the gradient. A label
    /// outside `0..C` is an error (`Error::IndexOutOfRange` from the backend on cpu and sim).
    CrossEntropy { logits: View, labels: View, probs: View, loss: View },
    /// `dst = (probs - onehot(labels)) * grad / R`; `grad` is a scalar.
    CrossEntropyGrad { probs: View, labels: View, grad: View, dst: View },
    /// `dst [B.., M, N] = lhs [B.., M, K] x rhs [B.., K, N]`, any strides (0 in batch axes), floats.
    Matmul { lhs: View, rhs: View, dst: View },
    /// `dst = op(lhs, rhs)` of integers or truth values.
    Bits { op: BitOp, lhs: View, rhs: View, dst: View },
    /// Windows over images.
    Window(Windowed),
    /// Along one axis.
    Along(Along),
    /// `dst = src` with `axis` indexed by `ids` (rank 1): `dst.dims[axis] == ids.len`. Ids u8, u32 or i64;
    /// one outside is an error.
    IndexSelect { src: View, ids: View, axis: usize, dst: View },
    /// In place: `dst[.., ids[i], ..] += src[.., i, ..]` along `axis`, in order of `i`.
    IndexAdd { dst: View, ids: View, src: View, axis: usize },
    /// `dst[i][j] = src[i][ids[i][j]]` along `axis`: `ids` and `dst` have one shape, its other axes are at
    /// most those of `src`.
    Gather { src: View, ids: View, axis: usize, dst: View },
    /// In place: `dst[i][ids[i][j]] += src[i][j]` along `axis`; `ids` and `src` have one shape.
    ScatterAdd { dst: View, ids: View, src: View, axis: usize },
    /// Uniform in `[low, high)` from Philox4x32-10 with key `seed`, counter from `first` (in elements).
    Uniform { dst: View, seed: u64, first: u64, low: f64, high: f64 },
    /// Normal, by Box-Muller over the same stream.
    Normal { dst: View, seed: u64, first: u64, mean: f64, std: f64 },
    /// In place: `param -= rate * (grad + decay * param)`; with `velocity`:
    /// `velocity = momentum * velocity + grad'`, `param -= rate * velocity`. All contiguous, floats.
    SgdStep { param: View, grad: View, velocity: Option<View>, rate: f64, momentum: f64, decay: f64 },
    /// In place: Adam with bias corrections `1 - beta^t` given as `fix1`, `fix2`, and decoupled decay.
    AdamStep { param: View, grad: View, m: View, v: View, hyper: AdamHyper },
}

/// The numbers of one Adam step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamHyper {
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub decay: f64,
    /// `1 - beta1^t`.
    pub fix1: f64,
    /// `1 - beta2^t`.
    pub fix2: f64,
    /// `t`, from 1: each replay of a captured step is the one after.
    pub step: u64,
}

impl AdamHyper {
    /// `1 - beta^t`, of both betas.
    pub fn fixes([beta1, beta2]: [f64; 2], step: u64) -> [f64; 2] {
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        [1.0 - beta1.powi(step), 1.0 - beta2.powi(step)]
    }

    /// The numbers of the step so many steps later.
    pub fn later(self, steps: u64) -> Self {
        let step = self.step.saturating_add(steps);
        let [fix1, fix2] = Self::fixes([self.beta1, self.beta2], step);
        AdamHyper { fix1, fix2, step, ..self }
    }
}

/// The operands of a kernel, by what it does with them.
#[derive(Debug, Default)]
pub struct Accesses {
    views: [Option<(View, Access)>; 5],
    len: usize,
}

/// What a kernel does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

impl Accesses {
    fn push(&mut self, view: View, access: Access) {
        self.views[self.len] = Some((view, access));
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &(View, Access)> {
        self.views[..self.len].iter().flatten()
    }
}

/// What is done with every operand of a kernel.
pub type Operands<'f> = &'f mut dyn FnMut(&mut View, Access);

/// Hands on a list of operands.
pub fn each<'v>(f: Operands<'_>, list: impl IntoIterator<Item = (&'v mut View, Access)>) {
    list.into_iter().for_each(|(view, access)| f(view, access));
}

impl Kernel {
    /// Zeroes all bytes of a span.
    pub fn zero(span: Span) -> Self {
        let layout = Layout::contiguous(Shape::from(span.bytes()));
        Kernel::Fill { dst: View::new(span, DType::U8, layout), value: 0.0 }
    }

    /// Every operand with what the kernel does to it.
    pub fn accesses(&self) -> Accesses {
        let mut accesses = Accesses::default();
        let mut kernel = *self;
        kernel.operands(&mut |view, access| accesses.push(*view, access));
        accesses
    }

    /// The same kernel with what `f` makes of each operand, in the order of [`Kernel::accesses`].
    pub fn with_views(mut self, f: &mut dyn FnMut(View) -> View) -> Self {
        self.operands(&mut |view, _| *view = f(*view));
        self
    }

    /// Calls `f` with every operand and what the kernel does to it.
    fn operands(&mut self, f: Operands<'_>) {
        use Access::{Read, ReadWrite, Write};
        match self {
            Kernel::Fill { dst, .. }
            | Kernel::Arange { dst, .. }
            | Kernel::Uniform { dst, .. }
            | Kernel::Normal { dst, .. } => each(f, [(dst, Write)]),
            Kernel::UnaryAssign { dst, .. } | Kernel::AffineAssign { dst, .. } => each(f, [(dst, ReadWrite)]),
            Kernel::Copy { src, dst }
            | Kernel::Cast { src, dst }
            | Kernel::Unary { src, dst, .. }
            | Kernel::Affine { src, dst, .. }
            | Kernel::Powf { src, dst, .. }
            | Kernel::Clamp { src, dst, .. }
            | Kernel::Reduce { src, dst, .. }
            | Kernel::ArgReduce { src, dst, .. }
            | Kernel::Softmax { src, dst, .. } => each(f, [(src, Read), (dst, Write)]),
            Kernel::Binary { lhs, rhs, dst, .. }
            | Kernel::Compare { lhs, rhs, dst, .. }
            | Kernel::Bits { lhs, rhs, dst, .. }
            | Kernel::Matmul { lhs, rhs, dst } => each(f, [(lhs, Read), (rhs, Read), (dst, Write)]),
            Kernel::BinaryAssign { dst, rhs, .. } => each(f, [(dst, ReadWrite), (rhs, Read)]),
            Kernel::Where { cond, yes, no, dst } => each(f, [(cond, Read), (yes, Read), (no, Read), (dst, Write)]),
            Kernel::UnaryGrad { saved, grad, dst, .. } => each(f, [(saved, Read), (grad, Read), (dst, Write)]),
            Kernel::SoftmaxGrad { out, grad, dst, .. } => each(f, [(out, Read), (grad, Read), (dst, Write)]),
            Kernel::CrossEntropy { logits, labels, probs, loss } => {
                each(f, [(logits, Read), (labels, Read), (probs, Write), (loss, Write)]);
            }
            Kernel::CrossEntropyGrad { probs, labels, grad, dst } => {
                each(f, [(probs, Read), (labels, Read), (grad, Read), (dst, Write)]);
            }
            Kernel::IndexSelect { src, ids, dst, .. } | Kernel::Gather { src, ids, dst, .. } => {
                each(f, [(src, Read), (ids, Read), (dst, Write)]);
            }
            Kernel::IndexAdd { dst, ids, src, .. } | Kernel::ScatterAdd { dst, ids, src, .. } => {
                each(f, [(dst, ReadWrite), (ids, Read), (src, Read)]);
            }
            Kernel::Window(windowed) => windowed.operands(f),
            Kernel::Along(along) => along.operands(f),
            Kernel::SgdStep { param, grad, velocity, .. } => {
                let both = [(param, ReadWrite), (grad, Read)];
                each(f, both.into_iter().chain(velocity.as_mut().map(|velocity| (velocity, ReadWrite))));
            }
            Kernel::AdamStep { param, grad, m, v, .. } => {
                each(f, [(param, ReadWrite), (grad, Read), (m, ReadWrite), (v, ReadWrite)]);
            }
        }
    }
}
